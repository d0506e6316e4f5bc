//! The session without I/O: the part that the simulator runs as it is shipped.

mod auth;
mod call;
mod config;
mod failure;
mod hello;
mod memory;
mod messages;
mod opening;
mod receive;
mod session;
mod streams;
mod submit;
mod timers;

pub(crate) use auth::Fixed;
pub use auth::{Authenticator, Challenge, Proof};
pub use call::{Completed, Done, ReadCall, Refused, ReplyMessage, WriteCall};
pub use config::{CredentialIds, SessionConfig, SessionInfo};
pub use failure::Failure;
pub use memory::{Piece, RegisteredMemory};
pub use session::{SessionCore, SessionStats, Stage};
