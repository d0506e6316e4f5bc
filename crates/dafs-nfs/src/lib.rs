//! The NFS front ends: NFSv4.1 and 4.2, NFSv3, NFS_ACL, MOUNT, NLM and NSM as RPC programs over one
//! `dafs-service`.
//!
//! `dafs-service` holds the semantics. This crate has sessions, replay caches, and the conversion
//! between wire and service. It knows neither sockets nor clocks: calls come from the RPC server
//! with the time in them, and operations that may wait go to a [`Pool`].

pub mod limits;

mod admission;
mod args;
mod certificate;
mod connection;
mod disk;
mod gss;
mod handler;
mod io;
mod listings;
mod measure;
mod mount;
mod nlm;
mod principal;
mod refusals;
mod shared;
mod v3;
mod v4;
mod wire_handle;

pub use admission::{Admission, CallerIdentity, Origin};
pub use gss::NfsGss;
pub use handler::NfsHandler;
pub use nlm::Peers;
pub use shared::{NfsCounts, NfsOptions, NfsSessionFacts, NfsShared};
