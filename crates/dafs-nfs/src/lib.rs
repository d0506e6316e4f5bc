//! The NFS front doors: NFSv4.1 and 4.2, NFSv3 and MOUNT as RPC programs over one `dafs-service`.
//!
//! Semantics live in `dafs-service`; here are sessions, replay, and the way between wire and service.

mod admission;

pub use admission::{Admission, FindOwner, Origin, Who};
