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
//!   others the session is unknown. A request of one user is not that of another user of the same
//!   session ([`Sender`]).
//! * They are kept until the client discards them, comes back as a new instance, or their time is
//!   over. They are bounded in number and bytes, of all and per client, and the oldest go first.

mod ended;
mod session;

pub use ended::{EndedSession, NoReply, Replies};
pub use session::SessionReplies;

use crate::client::Identity;
use crate::durable::Effect;
use sha2::{Digest as _, Sha256};
use std::sync::Arc;

/// The principal that sent a request: the first half of the SHA-256 of its mechanism and name. So
/// it is the same in all runs of the server, and nobody finds two principals with the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Sender(pub(crate) [u8; 16]);

impl Sender {
    /// The sender where the session has only one, and in records of an earlier version.
    pub const OF_SESSION: Self = Self([0; 16]);

    /// Returns the sender of this identity.
    pub fn of(identity: &Identity) -> Self {
        let mut hash = Sha256::new();
        hash.update((identity.mechanism.len() as u64).to_be_bytes());
        hash.update(identity.mechanism);
        hash.update(&identity.principal);
        let mut sender = [0; 16];
        sender.copy_from_slice(&hash.finalize()[..16]);
        Self(sender)
    }
}

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
    /// The principal that sent it.
    pub sender: Sender,
}

impl RequestKey {
    /// True if the answer to this request answers `other`, which may be a retry.
    pub(crate) fn answers(&self, other: &Self) -> bool {
        let sender = if self.sender == Sender::OF_SESSION { self.sender } else { other.sender };
        *self == Self { sender, ..*other }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_of_another_principal_is_no_retry() {
        let sender =
            |mechanism, name: &[u8]| Sender::of(&Identity { mechanism, principal: name.to_vec() });
        let anna = sender("gss", b"anna");
        assert_eq!(anna, sender("gss", b"anna"), "it is the same in all runs");
        let key =
            |sender| RequestKey { session: [1; 8], stream: 2, sequence: 3, procedure: 4, sender };
        assert!(key(anna).answers(&key(anna)));
        let others = [sender("gss", b"bert"), sender("sys", b"anna"), sender("gssa", b"nna")];
        for other in others.into_iter().chain([Sender::OF_SESSION]) {
            assert!(!key(anna).answers(&key(other)));
        }
        assert!(!key(anna).answers(&RequestKey { procedure: 5, ..key(anna) }));
        // A record of an earlier version does not name the sender.
        assert!(key(Sender::OF_SESSION).answers(&key(anna)));
    }
}
