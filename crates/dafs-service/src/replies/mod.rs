//! Kept replies, so that a client that lost its connection learns the outcome of its requests (DAFS
//! 12).
//!
//! While a session is in use, its replies belong to the front end that fills them
//! ([`SessionReplies`]), without a lock. When it has ended, the service takes them over. They are
//! found by the id of the old session, until the client needs them no longer.
//!
//! Invariants
//! * Per stream only the latest request whose reply is kept has an entry, and only until a newer
//!   request arrives on the stream, which proves that its reply was received. So an entry never
//!   answers for another request after its sequence numbers have wrapped.
//! * Replies of an ended session do not change any more: its work has stopped before.
//! * Only the client that sent the requests finds them, by name, identity and instance. To all
//!   others the session is unknown.
//! * They are kept until the client discards them, comes back as a new instance, or their time is
//!   over. They are bounded in number and bytes, of all and per client, and the oldest go first.

mod ended;
mod session;

pub use ended::{EndedSession, NoReply, Replies};
pub use session::SessionReplies;

use crate::durable::Effect;
use std::sync::Arc;

/// Names one request of one session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestKey {
    /// The session that it was sent on.
    pub session: [u8; 8],
    /// Its stream.
    pub stream: u16,
    /// Its number in the stream.
    pub sequence: u16,
    /// Its procedure, as the protocol numbers them.
    pub procedure: u32,
}

/// The reply to a request that was executed, as it was sent or would have been.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptReply {
    /// The whole message.
    pub bytes: Arc<[u8]>,
    /// True when its numbers are in little-endian order.
    pub little_endian: bool,
}

/// The outcome of a request that was executed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kept {
    /// Its reply.
    Reply(KeptReply),
    /// Its effect, if no reply was made before.
    Happened(Effect),
    /// It could not be made stable. Its effect may exist or not, and it was answered with an error.
    Failed,
}

/// A kept reply of a session that has ended, with its request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The stream of the request.
    pub stream: u16,
    /// Its number in the stream.
    pub sequence: u16,
    /// Its procedure.
    pub procedure: u32,
    /// The whole reply.
    pub bytes: Arc<[u8]>,
}
