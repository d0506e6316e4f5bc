//! ONC RPC for any program: server and client over TCP record marking (RFC 5531).
//!
//! A server is some reactors, each with a [`Handler`] of its own; a handler gets a [`Call`] and
//! gives a [`Reply`] at once, or later through a [`Responder`], and can call its peers back over
//! their own connections. Nothing here knows what a program does.
//!
//! Invariants
//! * What a peer sends is handled without a panic and in bounded memory; what is not RPC ends its
//!   connection and no other.
//! * Bulk data is not copied in user space, but for what [`dafs_mem::Site`] counts.
//! * Steady traffic allocates nothing.

mod auth;
mod back;
mod call;
pub mod client;
mod connection;
mod dispatch;
mod exchange;
mod handler;
mod inbox;
mod limits;
mod local;
mod local_connection;
mod memory;
mod output;
mod record;
mod reply;
pub mod server;

pub use call::{Call, ConnectionId, ConnectionRef, Credential, OwnedArgs, Responder};
pub use dafs_dat::PeerProcess;
pub use dafs_wire::rpc::{AcceptStatus, AuthStatus, AuthSys, Groups, RejectStatus, VersionRange};
pub use handler::{BackError, Handled, Handler};
pub use inbox::{BackCall, Injector};
pub use local::{LocalCall, LocalEvent, LocalReactor};
pub use local_connection::{LocalConnection, LocalEnding};
pub use reply::{BulkSpace, Mark, Rejection, Reply};
