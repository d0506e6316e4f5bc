//! ONC RPC version 2 (RFC 5531): headers of calls and replies, credentials, record marks.
//!
//! Invariants
//! * A decoded header is within [`limits`]. The error for any other header has all details for the
//!   right reply.
//! * This module knows no program, no socket and no policy for credentials.

mod auth;
mod call;
pub mod gss;
pub mod limits;
mod record;
mod reply;

pub use auth::{AuthFlavor, AuthSys, Groups, OpaqueAuth};
pub use call::{CallError, CallHeader, Direction, peek};
pub use record::FragmentMark;
pub use reply::{AcceptStatus, AuthStatus, RejectStatus, ReplyHeader, ReplyStatus, VersionRange};
