//! Replies that are kept, so that a client that lost its connection learns what became of its
//! requests (DAFS 12).
//!
//! While a session is in use, its replies belong to the front door that fills them
//! ([`SessionReplies`]), without a lock. When it has ended they are handed over to the service and
//! found by the name of the old session, until the client needs them no longer.
//!
//! Invariants
//! * Per stream only the latest request that is to be kept has an entry, and only until a newer
//!   request arrives on the stream, which proves that its reply was received. So an entry never
//!   answers for another request whose numbers have come round.
//! * Replies of an ended session do not change any more: its work has stopped before.
//! * They are found by the client that earned them only, by name, proof and instance; to everybody
//!   else the session is unknown.
//! * Kept until the client says so, comes back as a new instance, or their time is over; bounded in
//!   number and bytes, of all and per client, where the oldest go first.

mod ended;
mod session;

pub(crate) use ended::EndedSessions;
pub use ended::{EndedSession, NoReply};
pub use session::SessionReplies;

use crate::durable::Effect;
use std::sync::Arc;

/// Names one request of one session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestKey {
    /// The session it was sent on.
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

/// What is known of a request that was executed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kept {
    /// Its reply.
    Reply(KeptReply),
    /// What it has done, before a reply was made.
    Happened(Effect),
    /// It could not be made stable; it may be there or not, and was answered with an error.
    Failed,
}

/// A kept reply of a session that has ended, with what it answers.
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
