//! A user-level NFS client in two layers.
//!
//! [`mount`] is for programs: files of a server by NFSv3, 4.1 and 4.2, over TCP and over direct
//! access transports, with recovery from losses of the server and of the network.
//!
//! The rest is for tests and measurements: NFSv4.1 and 4.2 sessions and NFSv3 calls over
//! `dafs-rpc`. Below [`connect`] and the functions of [`Session`] for files it has the single calls
//! ([`Connection`], [`Compound`], [`exchange_id`], [`create_session`]), with which a test can send
//! invalid requests.
//!
//! Invariants of the lower layer
//! * Errors of the server are returned unchanged; a request is retried only if the caller asks for
//!   it ([`patiently`]).
//! * Many calls can be under way at a time, from one thread or several.

#![forbid(unsafe_code)]

mod back;
mod client;
mod compound;
mod connection;
mod data;
mod error;
mod files;
mod limits;
pub mod mount;
mod open;
mod session;
mod slots;
pub mod v3;

pub use back::{BackChannel, BackChannels, BackHandler, IgnoreCallbacks};
pub use client::{
    CALLBACK_PROGRAM, Exchanged, Options, add_connection, bind_connection, connect, connect_over,
    create_session, create_session_args, destroy_client_id, exchange_id,
};
pub use compound::{Compound, Results};
pub use connection::{Connection, PendingCall};
pub use dafs_rpc::client::{CallError, Identity, Options as RpcOptions, Port};
pub use data::{LockRange, Locked, Written, write_result};
pub use error::NfsError;
pub use files::{Entry, Handle, STAT, Stat, read_result};
pub use limits::PATIENCE;
pub use open::{Create, Delegation, OpenFile, OpenOptions, append_open};
pub use session::{PendingCompound, Session, patiently};
pub use slots::Slots;
