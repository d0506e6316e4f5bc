//! The NFS front doors: NFSv4.1 and 4.2, NFSv3 and MOUNT as RPC programs over one `dafs-service`.
//!
//! Semantics live in `dafs-service`; here are sessions, replay, and the way between wire and service.
//! Nothing here knows a socket or a clock: calls come from the RPC server with the time in them, and
//! what may wait goes to a [`Pool`](dafs_service::Pool).

pub mod limits;

mod admission;
mod args;
mod connection;
mod handler;
mod io;
mod listings;
mod measure;
mod mount;
mod principal;
mod refusals;
mod shared;
mod v3;
mod v4;
mod wire_handle;

pub use admission::{Admission, Origin, Who};
pub use handler::NfsHandler;
pub use shared::{NfsCounts, NfsOptions, NfsShared};
