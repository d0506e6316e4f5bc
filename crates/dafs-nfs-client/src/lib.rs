//! A user-level NFS client in two layers.
//!
//! [`mount`] is for programs: files of a server by NFSv3, 4.1 and 4.2, over TCP and over direct
//! access transports, with everything made good that a server or a network loses.
//!
//! The rest is for tests and measurements: NFSv4.1 and 4.2 sessions and NFSv3 calls over
//! `dafs-rpc`, next to [`connect`] and the functions of [`Session`] for files also the calls below
//! them ([`Connection`], [`Compound`], [`exchange_id`], [`create_session`]), with which a test can
//! send what no sane client would.
//!
//! Invariants of the lower layer
//! * Errors of the server come through as they are; nothing is repeated unless the caller asks
//!   ([`patiently`]).
//! * Many calls can be on their way at a time, from one thread or several.

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
pub use dafs_rpc::client::{CallError, Identity};
pub use data::{LockRange, Locked, Written, write_result};
pub use error::NfsError;
pub use files::{Entry, Handle, STAT, Stat, read_result};
pub use limits::PATIENCE;
pub use open::{Create, Delegation, OpenFile, OpenOptions, append_open};
pub use session::{PendingCompound, Session, patiently};
pub use slots::Slots;
