//! Changes whose replies survive a crash of the server, on exports that are configured so.
//!
//! Before a front end executes a change, it logs the intent with [`Durable::intend`] and waits
//! until the change may go on. Then it executes the change by the ordinary call. Before it sends
//! the reply, it hands the reply to [`Durable::settle`]. After a restart each logged change either
//! is known to have happened, with its reply or the data for one, or has left no trace.
//!
//! A front end that changes names or attributes and needs no such reply asks for a
//! [`Durable::guard`] instead: recovery can judge a logged change only if no other change of the
//! same object came in between.

mod attributes;
mod bytes;
mod change;
mod change_locks;
mod evidence;
mod execution;
mod guard;
mod intent;
mod journal;
mod ledger;
mod record;
mod recover;
mod shares;
mod slots;

pub use change::{Change, MaskedMode};
pub use execution::Execution;
pub use recover::{JournalConfig, JournalError, Recovered};

use journal::Journal;

use crate::client::ClientKind;
use crate::export::{Export, Exports};
use crate::handle::Handle;
use crate::limits::{CLIENT_NAME_BYTES_MAX, REPLY_RETENTION_NS};
use crate::replies::RequestKey;
use crate::{Caller, Client, Result, WriteVerifier};
use crc_fast::CrcAlgorithm;
use dafs_store::{AppendWitness, StoreError};
use execution::Ending;
use intent::Intent;
use record::Record;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// The failures that the replies to changes of an export survive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// None: replies end with the session.
    #[default]
    Off,
    /// The end of the server's process.
    Crash,
    /// The loss of power, too: a change and its intent are stable before the reply is sent. The
    /// reply itself has been handed to the system by then.
    Power,
}

impl FromStr for Durability {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text {
            "off" => Ok(Self::Off),
            "crash" => Ok(Self::Crash),
            "power" => Ok(Self::Power),
            _ => Err("use off, crash or power".to_owned()),
        }
    }
}

/// Called once when a change may go on, or with the error that the request ends with. It comes from
/// any thread, under no lock, and must not block.
pub type Notify = Box<dyn FnOnce(Result<()>) + Send>;

/// A change whose intent is logged. The front end hands it to [`Durable::settle`] after the
/// execution, successful or not. If it is dropped instead, with each [`Execution`] of it, the change
/// was not executed, or is in doubt if its execution may have begun. A guarded change may be dropped
/// after its execution.
#[must_use]
pub struct LoggedChange {
    ending: Arc<Ending>,
    place: Handle,
    unchanged: bool,
    executed: bool,
    /// The file, length and digest of an append.
    append: Option<(Handle, u64, u32)>,
}

impl LoggedChange {
    fn new(ending: Arc<Ending>, change: &Change<'_>) -> Self {
        let append = match *change {
            Change::Append { file, len, digest } => Some((*file, len, digest)),
            _ => None,
        };
        let (unchanged, executed) = (false, false);
        let place = *change.place();
        Self { ending, place, unchanged, executed, append }
    }

    /// True if the change has a guard only, so that there is no reply to record.
    pub fn is_guard(&self) -> bool {
        self.ending.is_guard
    }

    /// Returns the handle by which a job on another thread executes the change. The front end may end
    /// before that job.
    pub fn execution(&self) -> Execution {
        Execution::new(self.ending.clone())
    }

    /// Returns the witness of an append, which must see its execution. `None` for other changes.
    /// Without a call of the witness the append has not begun, and recovery does not know it.
    pub fn witness(&self) -> Option<Arc<dyn AppendWitness>> {
        let (file, len, digest) = self.append?;
        let journal = self.ending.journal.clone();
        let (number, offset) = (self.number(), AtomicU64::new(0));
        Some(Arc::new(Witness { journal, number, file, len, digest, offset }))
    }

    /// Its number in the journal, unique in this run.
    pub fn number(&self) -> u64 {
        self.ending.number
    }

    /// The object under which its intent is logged: the directory of the name, the target directory
    /// of a rename, or the object. The front end executes the change there, even if the path leads
    /// elsewhere by now.
    pub fn place(&self) -> &Handle {
        &self.place
    }

    /// Notes that the change was made, or may have been, whatever the reply says.
    pub fn executed(&mut self) {
        self.ending.begin();
        self.executed = true;
        self.unchanged = false;
    }

    /// Notes that the request was refused and changed nothing, so that nothing has to be made
    /// stable. It has no effect after [`executed`](Self::executed).
    pub fn nothing_changed(&mut self) {
        self.unchanged = !self.executed;
    }
}

/// Records an append in the journal.
struct Witness {
    journal: Arc<Journal>,
    number: u64,
    file: Handle,
    len: u64,
    digest: u32,
    offset: AtomicU64,
}

impl AppendWitness for Witness {
    fn placed(&self, offset: u64) -> std::result::Result<(), StoreError> {
        self.offset.store(offset, Ordering::Relaxed);
        let &Self { file, len, digest, .. } = self;
        let placed = self.journal.place(self.number, Intent::Append { file, offset, len, digest });
        placed.map_err(|_| StoreError::Io)
    }

    fn ended(&self, appended: bool) -> std::result::Result<(), StoreError> {
        let (file, offset, len) = (self.file, self.offset.load(Ordering::Relaxed), self.len);
        let effect = appended.then_some(Effect::Appended { file, offset, len });
        self.journal.ended(self.number, effect.as_ref()).map_err(|_| StoreError::Io)
    }
}

/// How a change goes on after its intent.
pub enum Intended {
    /// No record is needed. The request is executed as usual.
    Unneeded,
    /// It may be executed at once. The notification is not used.
    Ready(LoggedChange),
    /// It may be executed after the notification, which can come before this call returns.
    Waiting(LoggedChange),
}

/// When a reply may be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Settled {
    /// At once. The notification is not used.
    Now,
    /// After the notification, which can come before this call returns.
    Later,
}

/// A session and its client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// Its id.
    pub id: [u8; 8],
    /// The host of its client, by [`Host::to_bytes`](crate::Host::to_bytes): clients of one host
    /// have one share.
    pub host: Vec<u8>,
    /// The client's name, which is the same in all its runs.
    pub client: Vec<u8>,
    /// The verifier of the client's instance.
    pub verifier: [u8; 8],
    /// How the client authenticated.
    pub mechanism: String,
    /// The principal that it authenticated as.
    pub principal: Vec<u8>,
}

impl Session {
    /// True if this is a session of the same instance of this client.
    pub fn is_of(&self, client: &Client) -> bool {
        let identity = client.identity();
        self.client == client.name()
            && self.verifier == client.verifier()
            && self.mechanism == identity.mechanism
            && self.principal == identity.principal
    }
}

/// The known result of a request that was executed before a restart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// Its reply as it was, or would have been, sent.
    Reply {
        /// The bytes.
        bytes: Vec<u8>,
        /// True if they are in little-endian order.
        order_le: bool,
    },
    /// It was executed, and there is no reply yet.
    Happened(Effect),
    /// It was executed and could not be made stable, or others have changed the same object, so its
    /// effect may exist or not. The reply was, or would have been, an error of the device.
    Failed,
}

/// The effect of a change, from which a reply can be made. Other values of the reply, such as
/// attributes, are read when the reply is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// A file, directory or other object was made, or opened.
    Made {
        /// The directory.
        dir: Handle,
        /// The object.
        object: Handle,
        /// True if it is new.
        created: bool,
        /// The change attribute of the directory before.
        dir_before: u64,
    },
    /// A name was removed.
    Removed {
        /// The directory.
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
        /// The directory.
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
        /// Length in bytes.
        len: u64,
    },
    /// All data was appended, and is stable.
    Appended {
        /// The file.
        file: Handle,
        /// Offset of the data, in bytes.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
}

/// Returns the checksum by which data is recognised. `before` is the checksum of the data before
/// it, or 0.
pub fn digest(before: u32, bytes: &[u8]) -> u32 {
    let state = u64::from(!before);
    let mut digest = crc_fast::Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, state);
    digest.update(bytes);
    digest.finalize() as u32
}

/// Joins two digests: `before`, and `part` of the `part_bytes` bytes after it.
pub fn digest_join(before: u32, part: u32, part_bytes: u64) -> u32 {
    let (before, part) = (u64::from(before), u64::from(part));
    crc_fast::checksum_combine(CrcAlgorithm::Crc32Iscsi, before, part, part_bytes) as u32
}

/// Statistics of the journal, for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct JournalStatistics {
    /// The log itself.
    pub log: dafs_journal::Statistics,
    /// Rounds in which changes were made stable in the exports.
    pub rounds: u64,
    /// Changes that were made stable in them.
    pub committed: u64,
    /// Changes under way.
    pub in_flight: usize,
    /// Guarded changes under way.
    pub guarded: usize,
    /// Known sessions, of this run and of earlier ones.
    pub sessions: usize,
    /// Their changes with a record.
    pub changes: usize,
    /// Size of these records, in bytes.
    pub kept_bytes: usize,
}

/// The changes whose replies survive a crash, in the journal if the server keeps one.
pub struct Durable {
    exports: Arc<Exports>,
    /// How long the replies of an ended session are kept.
    pub(crate) retention_ns: u64,
    journal: OnceLock<Arc<Journal>>,
    /// The write verifier that changes when unstable data may be lost.
    lost: Arc<OnceLock<Arc<WriteVerifier>>>,
}

impl Durable {
    pub(crate) fn new(exports: Arc<Exports>, lease_ns: u64) -> Self {
        let retention_ns = REPLY_RETENTION_NS.max(lease_ns.saturating_mul(3));
        Self { exports, retention_ns, journal: OnceLock::new(), lost: Arc::default() }
    }

    /// True if there is a journal, in which exports may keep replies.
    pub fn has_journal(&self) -> bool {
        self.journal.get().is_some()
    }

    /// Logs the intent of a change that is about to be executed for the request `key`.
    ///
    /// # Errors
    /// `Resource` when too many changes are under way or too many records are kept, of the session
    /// or of all. The store's error when the journal cannot be written or the state before the
    /// change cannot be read.
    pub fn intend(
        &self,
        caller: Caller<'_>,
        key: &RequestKey,
        change: &Change<'_>,
        ready: Notify,
    ) -> Result<Intended> {
        let Some(journal) = self.journal.get() else { return Ok(Intended::Unneeded) };
        let namespace = self.exports.namespace();
        let export = namespace.export(change.place())?;
        let options = export.options();
        // A caller without a session cannot ask for a reply.
        let stateless = caller.client.kind() == ClientKind::Stateless;
        if stateless || options.read_only || !change.is_kept() || !change.is_possible() {
            return Ok(Intended::Unneeded);
        }
        let power = match options.durable_replies {
            Durability::Off => {
                journal.leave_out(&key.session)?;
                return self.guard(caller, change, || ready);
            }
            // The session is forgotten, so no client can ask for the reply.
            _ if !journal.lock().knows(&key.session) => {
                return self.guard(caller, change, || ready);
            }
            Durability::Crash => false,
            Durability::Power => true,
        };
        let locks = change.locks(|handle| export.key(handle));
        let cred = export.map_cred(caller.cred);
        journal.intend(export.store(), power, key, (change, &cred), locks, ready)
    }

    /// Sets the verifier that changes when the objects of a change cannot be made stable: then
    /// unstable data of any client may be lost. Only the first call has an effect.
    pub fn tell_of_lost_data(&self, verifier: Arc<WriteVerifier>) {
        let _first = self.lost.set(verifier);
    }

    /// Takes the reply to an executed change, as it will be sent: its bytes, and true for
    /// little-endian order.
    pub fn settle(&self, op: LoggedChange, reply: &[u8], order_le: bool, ready: Notify) -> Settled {
        let journal = op.ending.journal.clone();
        journal.settle(op, reply, order_le, ready)
    }

    /// Records the start of a session whose replies are to be found after a restart. The front end
    /// may tell the client about the session when its record outlives what its changes do.
    /// Otherwise the client could not ask for their results. Without a journal this does nothing.
    pub fn keep_session(&self, session: &Session, ready: Notify) -> Settled {
        let Some(journal) = self.journal.get() else { return Settled::Now };
        if session.client.len() > CLIENT_NAME_BYTES_MAX {
            // No client has such a name.
            return Settled::Now;
        }
        let is_power = |export: &Arc<Export>| export.options().durable_replies == Durability::Power;
        let power = self.exports.namespace().exports().any(is_power);
        journal.introduce(session, power, ready)
    }

    /// Forgets a session and all its replies: its client needs them no more, has restarted, or has
    /// not asked for them for too long.
    pub fn forget_session(&self, session: &[u8; 8]) {
        let Some(journal) = self.journal.get() else { return };
        let noted = journal.lock().forget(&journal.log, session);
        if let Some(sequence) = noted {
            // If this is lost, the session is forgotten later.
            let _ = journal.log.flush(sequence);
        }
    }

    /// Forgets the answer to the latest change of a stream, before the request's number is used
    /// again. The client has used the stream since, so it has the answer. Returns if `ready` must
    /// be waited for.
    pub fn outlived(&self, session: &[u8; 8], stream: u16, ready: Notify) -> Settled {
        let journal = self.journal.get();
        match journal.and_then(|journal| journal.outlived(session, stream, ready)) {
            Some(()) => Settled::Later,
            None => Settled::Now,
        }
    }

    /// Finds a session of an earlier run of the server.
    pub fn kept_session(&self, session: &[u8; 8]) -> Option<Session> {
        let ledger = self.journal.get()?.lock();
        let kept = ledger.sessions.get(session).filter(|kept| kept.recovered)?;
        kept.session.clone()
    }

    /// Returns the result of a request of an earlier run. `None` when it was not executed.
    pub fn kept_answer(&self, key: &RequestKey) -> Option<Answer> {
        let ledger = self.journal.get()?.lock();
        let kept = ledger.sessions.get(&key.session).filter(|kept| kept.recovered)?;
        let entry = kept.streams.get(&key.stream).filter(|entry| entry.about.key.answers(key))?;
        match Record::decode(&entry.record)? {
            Record::Reply { order_le, bytes, .. } => Some(Answer::Reply { bytes, order_le }),
            Record::Happened { effect, .. } => Some(Answer::Happened(effect)),
            Record::Failed { .. } => Some(Answer::Failed),
            _ => None,
        }
    }

    /// True if a request without a record, of a session of an earlier run, was not executed.
    /// Otherwise that is not known: the session has made changes without a record, or records were
    /// lost.
    pub(crate) fn is_kept_whole(&self, session: &[u8; 8]) -> bool {
        let Some(journal) = self.journal.get() else { return false };
        journal.lock().sessions.get(session).is_some_and(|kept| !kept.incomplete)
    }

    /// Returns the statistics of the journal. `None` without a journal.
    pub fn journal_statistics(&self) -> Option<JournalStatistics> {
        let journal = self.journal.get()?;
        let ledger = journal.lock();
        Some(JournalStatistics {
            log: journal.log.statistics(),
            rounds: journal.rounds.load(Ordering::Relaxed),
            committed: journal.committed.load(Ordering::Relaxed),
            in_flight: ledger.flights.len(),
            guarded: ledger.guards.len(),
            sessions: ledger.sessions.len(),
            changes: ledger.sessions.values().map(|kept| kept.streams.len()).sum(),
            kept_bytes: ledger.bytes(),
        })
    }

    /// Forgets sessions of earlier runs after the time in which clients may ask for them (DAFS
    /// O50).
    pub(crate) fn tick(&self, now_ns: u64) {
        let Some(journal) = self.journal.get() else { return };
        journal.give_up_guards(now_ns);
        let mut ledger = journal.lock();
        if ledger.recovered_sessions == 0 || now_ns < ledger.recovered_until_ns {
            return;
        }
        let old = ledger.sessions.iter().filter(|(_, kept)| kept.recovered);
        let old: Vec<_> = old.map(|(id, _)| *id).collect();
        for id in &old {
            ledger.forget(&journal.log, id);
        }
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
        let (head, tail) = (digest(0, b"1234"), digest(0, b"56789"));
        assert_eq!(digest_join(head, tail, 5), digest(0, b"123456789"));
        assert_eq!(digest_join(head, digest(0, b""), 0), head);
    }
}
