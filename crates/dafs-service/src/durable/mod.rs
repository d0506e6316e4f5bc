//! Changes whose replies survive a crash of the server, on exports that say so.
//!
//! A front door that is about to carry out a change announces it with [`Service::intend`], waits
//! until it may go on, carries it out by the ordinary call, and hands the reply to
//! [`Service::settle`] before it sends it. After a restart each announced change is either known to
//! have happened, with its reply or with what the reply must say, or has left no trace.

mod change;

pub use change::Change;

use crate::handle::Handle;
use crate::replies::RequestKey;
use crate::{Caller, Result, Service};
use crc_fast::CrcAlgorithm;

/// What the replies to changes of an export survive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// Nothing: they live with the session.
    #[default]
    Off,
    /// The end of the server's process.
    Crash,
    /// The loss of power, too: a change and its reply are stable before the reply is sent.
    Power,
}

/// Told once that a change may go on, or why it must not: then the request fails with that error.
/// Called from any thread, under no lock; must not block.
pub type Notify = Box<dyn FnOnce(Result<()>) + Send>;

/// A change that was announced. It is to be handed to [`Service::settle`] when it has been carried
/// out, successfully or not; one that is dropped instead was not carried out.
#[must_use]
pub struct Op {
    number: u64,
    unchanged: bool,
}

impl Op {
    /// Its number in the journal; no two ever have the same.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Says that the request was refused and changed nothing, so that nothing has to be made stable.
    pub fn nothing_changed(&mut self) {
        self.unchanged = true;
    }
}

/// How a change that is announced goes on.
pub enum Intended {
    /// Nothing is to be kept; the request is carried out as ever.
    Unneeded,
    /// It may be carried out at once. The notification is not used.
    Ready(Op),
    /// It may be carried out when the notification has come, which can be before this call returns.
    Waiting(Op),
}

/// When a reply may be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Settled {
    /// At once. The notification is not used.
    Now,
    /// When the notification has come, which can be before this call returns.
    Later,
}

/// A session, and whose it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// Its id.
    pub id: [u8; 8],
    /// The name that its client goes by in all its runs.
    pub client: Vec<u8>,
    /// Which run of the client it belongs to.
    pub verifier: [u8; 8],
    /// How the client proved who it is.
    pub mechanism: String,
    /// Who it is.
    pub principal: Vec<u8>,
}

/// What is known of a request that was carried out before a restart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// Its reply as it was, or would have been, sent.
    Reply {
        /// The bytes.
        bytes: Vec<u8>,
        /// Whether they are in little-endian order.
        order_le: bool,
    },
    /// It was carried out, and there is no reply yet.
    Happened(Effect),
}

/// What a change has done, from which a reply can be made. Everything else that the reply tells, such
/// as attributes, is asked for now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// A file, directory or other object was made, or opened.
    Made {
        /// Where.
        dir: Handle,
        /// It.
        object: Handle,
        /// Whether it is new.
        created: bool,
        /// The change attribute of the directory before.
        dir_before: u64,
    },
    /// A name was removed.
    Removed {
        /// Where.
        dir: Handle,
        /// The change attribute of the directory before.
        dir_before: u64,
    },
    /// An object was renamed.
    Renamed {
        /// The directory of the old name.
        from_dir: Handle,
        /// Its change attribute before.
        from_before: u64,
        /// The directory of the new name.
        to_dir: Handle,
        /// Its change attribute before.
        to_before: u64,
    },
    /// A name was added.
    Linked {
        /// The file.
        source: Handle,
        /// Where.
        dir: Handle,
        /// The change attribute of the directory before.
        dir_before: u64,
    },
    /// Attributes were set, all that were asked for.
    AttrSet {
        /// The object.
        file: Handle,
    },
    /// All data was written, as stable as it was asked for.
    Written {
        /// The file.
        file: Handle,
        /// How much, in bytes.
        len: u64,
    },
    /// All data was appended, and is stable.
    Appended {
        /// The file.
        file: Handle,
        /// Where it begins, in bytes.
        offset: u64,
        /// How much, in bytes.
        len: u64,
    },
}

/// Sums up data, by which it is found again. `before` is the sum of what comes before it, or 0.
pub fn digest(before: u32, bytes: &[u8]) -> u32 {
    let state = u64::from(!before);
    let mut digest = crc_fast::Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, state);
    digest.update(bytes);
    digest.finalize() as u32
}

impl Service {
    /// Announces a change that is about to be carried out for the request `key`.
    ///
    /// # Errors
    /// `Resource` when too many changes are under way; the store's error when the journal cannot be
    /// written.
    pub fn intend(
        &self,
        _caller: Caller<'_>,
        _key: &RequestKey,
        change: &Change<'_>,
        _ready: Notify,
    ) -> Result<Intended> {
        let namespace = self.namespace();
        let export = namespace.export(change.place())?;
        debug_assert_eq!(export.options().durable_replies, Durability::Off);
        Ok(Intended::Unneeded)
    }

    /// Takes the reply of a change that was carried out, as it will be sent: its bytes, and whether
    /// they are in little-endian order.
    pub fn settle(&self, _op: Op, _reply: &[u8], _order_le: bool, _ready: Notify) -> Settled {
        Settled::Now
    }

    /// Notes that a session has begun, whose replies are to be found after a restart. Does nothing
    /// when no export keeps any.
    pub fn keep_session(&self, _session: &Session) {}

    /// Forgets a session and all its replies: its client has said that it needs them no more, has
    /// begun anew, or has not asked for them for too long.
    pub fn forget_session(&self, _session: &[u8; 8]) {}

    /// A session of an earlier run of the server.
    pub fn kept_session(&self, _session: &[u8; 8]) -> Option<Session> {
        None
    }

    /// What became of a request of an earlier run; `None` when it was not carried out.
    pub fn kept_answer(&self, _key: &RequestKey) -> Option<Answer> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_of_parts_is_that_of_the_whole() {
        assert_eq!(digest(0, b"123456789"), 0xe306_9283);
        assert_eq!(digest(digest(0, b"1234"), b"56789"), 0xe306_9283);
        assert_eq!(digest(7, b""), 7);
    }
}
