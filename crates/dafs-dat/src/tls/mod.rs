//! TLS of TCP connections, as all transports and front ends share it: certificates, a bounded number
//! of handshakes, a handshake on a socket that does not block, the peer as TLS names it.
//!
//! | part | file |
//! |---|---|
//! | a client's demand: certificates, the server's name, the protocol | `client.rs` |
//! | a server's certificates, and its handshakes under way | `host.rs` |
//! | a handshake as a state of a connection | `shaking.rs` |
//! | protection, identity and channel binding of a connection | `peer.rs` |
//! | a server that a client judges again | `trusted.rs` |

mod client;
mod host;
pub mod limits;
mod peer;
mod shaking;
mod trusted;

pub use client::ClientTls;
pub use host::{Job, LookUp, RunJob, ServerTls, Ticket, now_seconds};
pub use peer::TlsPeer;
pub use shaking::{ShakeError, Shaking, Step, Stepped, Wait};
pub use trusted::Trusted;
