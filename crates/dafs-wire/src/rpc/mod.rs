//! ONC RPC version 2 (RFC 5531): headers of calls and replies, credentials, record marks.
//!
//! Invariants
//! * A header that decodes is within the limits of [`limits`]; what is wrong with another is said
//!   so exactly that the right reply can be made from the error alone.
//! * Nothing here knows a program, a socket or which credentials are good.

mod auth;
mod call;
pub mod limits;
mod record;
mod reply;

pub use auth::{AuthFlavor, AuthSys, Groups, OpaqueAuth};
pub use call::{CallError, CallHeader, Direction, peek};
pub use record::FragmentMark;
pub use reply::{AcceptStatus, AuthStatus, RejectStatus, ReplyHeader, ReplyStatus, VersionRange};
