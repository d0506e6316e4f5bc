//! A metadata server and data servers as processes on several machines: the control connection
//! between them, and its use by each side.
//!
//! | module | what |
//! |---|---|
//! | `secret` | the secret of a cluster, and the MACs made with it |
//! | `tls` | TLS below all messages |
//! | `hello` | the proof of both sides that they know the secret (no I/O) |
//! | `grants` | a data server's cache of authorisations by state-id (no I/O) |
//! | `mark` | the mark that identifies a directory of a node, and an older state of it |
//! | `memory` | the metadata server's record of these marks |
//! | `link` | a connection with calls both ways: threads and a socket |
//! | `remote` | a data server on another machine as a [`Node`](dafs_store::node::Node) |
//! | `data` | a data server: its directory, its answers, its questions |
//!
//! Invariants
//! * Nothing is sent or used outside TLS 1.3. A peer gets no answer before it has proved, for this
//!   TLS connection, that it knows the secret.
//! * A metadata server works only with the directory that it knows for the node, and with no state
//!   of it from before its last join.
//! * All requests of a metadata server on one connection end before the next connection begins, so
//!   that no late write overtakes a newer one. For requests of a data server to it (writes to
//!   stripes of other nodes) this does not hold yet.

#![forbid(unsafe_code)]

mod data;
mod gate;
mod grants;
mod hello;
mod limits;
mod link;
mod mark;
mod memory;
mod refusal;
mod remote;
mod secret;
mod time;
mod tls;

pub use data::{
    Announce, Answering, DataNode, DataNodeConfig, DataNodeError, Judge, NodeCounters, Opened,
};
pub use limits::{GRANT_TTL, GRANT_TTL_MAX};
pub use memory::{JoinError, join_directory};
pub use remote::{Metadata, NodeStatus, RemoteConfig, RemoteNode};
pub use secret::{ClusterSecret, SecretError};
