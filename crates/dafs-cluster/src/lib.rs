//! A metadata server and data servers that are processes of other machines: the control connection
//! between them, and what each side makes of it.
//!
//! | module | what |
//! |---|---|
//! | `secret` | the secret of a cluster, and the codes made with it |
//! | `hello` | how the two get to know each other (no I/O) |
//! | `seal` | records and their codes (no I/O) |
//! | `belief` | what a data server believes of state-ids, and for how long (no I/O) |
//! | `mark` | by what a directory of a node, and an older state of it, is known |
//! | `memory` | what a metadata server remembers of that |
//! | `link` | a connection with calls both ways: threads and a socket |
//! | `remote` | a data server as the metadata server sees it: a [`Node`](dafs_store::node::Node) |
//! | `data` | a data server: its directory, its answers, its questions |
//!
//! Invariants
//! * Nothing is answered to whoever has not shown that he knows the secret, and no record is looked at
//!   that was not made by him, for this connection, in this order.
//! * A metadata server works only with the directory that it knows the node by, and with no state of it from
//!   before it was joined last.
//! * What a metadata server has asked for on one connection is over before the next one begins, so that
//!   no late write passes a newer one. That does not hold yet for what a data server asks of it
//!   (writes to stripes of other nodes).

#![forbid(unsafe_code)]

mod belief;
mod data;
mod gate;
mod hello;
mod limits;
mod link;
mod mark;
mod memory;
mod refusal;
mod remote;
mod seal;
mod secret;
mod time;

pub use data::{
    Announce, Answering, DataNode, DataNodeConfig, DataNodeError, Judge, NodeCounters, Opened,
};
pub use limits::{STATE_BELIEF, STATE_BELIEF_OVER};
pub use memory::{JoinError, join_directory};
pub use remote::{Metadata, NodeStatus, RemoteConfig, RemoteNode};
pub use secret::{ClusterSecret, SecretError};
