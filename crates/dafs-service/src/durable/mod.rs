//! Changes whose replies survive a crash of the server, on exports that say so.
//!
//! A front door that is about to carry out a change announces it with [`Service::intend`], waits
//! until it may go on, carries it out by the ordinary call, and hands the reply to
//! [`Service::settle`] before it sends it. After a restart each announced change is either known to
//! have happened, with its reply or with what the reply must say, or has left no trace.
//!
//! Whoever changes names or attributes and needs no such reply asks for a [`Service::guard`] instead:
//! what became of an announced change can be told only while nobody else changes the same.

mod attributes;
mod bytes;
mod change;
mod evidence;
mod guard;
mod intent;
mod keeper;
mod ledger;
mod places;
mod record;
mod recover;
mod shares;
mod slots;

pub use change::{Change, MaskedMode};
pub use recover::{Journal, JournalError, Recovered};

pub(crate) use keeper::Keeper;

use crate::client::ClientKind;
use crate::export::Export;
use crate::handle::Handle;
use crate::limits::CLIENT_NAME_BYTES_MAX;
use crate::replies::RequestKey;
use crate::{Caller, Client, Result, Service, WriteVerifier};
use crc_fast::CrcAlgorithm;
use dafs_store::{AppendWitness, StoreError};
use intent::Intent;
use record::Record;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What the replies to changes of an export survive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// Nothing: they live with the session.
    #[default]
    Off,
    /// The end of the server's process.
    Crash,
    /// The loss of power, too: a change and its announcement are stable before the reply is sent. The
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

/// Told once that a change may go on, or why it must not: then the request fails with that error.
/// Called from any thread, under no lock; must not block.
pub type Notify = Box<dyn FnOnce(Result<()>) + Send>;

/// A change that was announced. It is to be handed to [`Service::settle`] when it has been carried
/// out, successfully or not; one that is dropped instead was not carried out. One that is guarded only
/// may as well be dropped when it has been carried out.
#[must_use]
pub struct Op {
    keeper: Arc<Keeper>,
    number: u64,
    place: Handle,
    /// Nothing is kept of it.
    guard: bool,
    unchanged: bool,
    carried_out: bool,
    settled: bool,
    /// The file, length and digest of an append.
    append: Option<(Handle, u64, u32)>,
}

impl Op {
    fn new(keeper: Arc<Keeper>, number: u64, change: &Change<'_>) -> Self {
        let append = match *change {
            Change::Append { file, len, digest } => Some((*file, len, digest)),
            _ => None,
        };
        let (unchanged, carried_out, settled) = (false, false, false);
        let place = *change.place();
        let guard = false;
        Self { keeper, number, place, guard, unchanged, carried_out, settled, append }
    }

    /// Whether nothing is kept of it, so that there is nothing to settle.
    pub fn is_guard(&self) -> bool {
        self.guard
    }

    /// Before whose eyes an append is to be carried out; `None` for other changes. Until then it has
    /// not begun, and is not known to anybody after a restart.
    pub fn witness(&self) -> Option<Arc<dyn AppendWitness>> {
        let (file, len, digest) = self.append?;
        let (keeper, number, offset) = (self.keeper.clone(), self.number, AtomicU64::new(0));
        Some(Arc::new(Witness { keeper, number, file, len, digest, offset }))
    }

    /// Its number in the journal; no other one of this run has the same.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Where it was announced: the directory of the name, the target's for a rename, or the object.
    /// It is to be carried out there, even if the path that led there leads elsewhere now.
    pub fn place(&self) -> &Handle {
        &self.place
    }

    /// Says that the change was made, whatever the reply will say.
    pub fn carried_out(&mut self) {
        self.carried_out = true;
        self.unchanged = false;
    }

    /// Says that the request was refused and changed nothing, so that nothing has to be made stable;
    /// unless it was said to be carried out.
    pub fn nothing_changed(&mut self) {
        self.unchanged = !self.carried_out;
    }
}

/// Notes an append in the journal.
struct Witness {
    keeper: Arc<Keeper>,
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
        let placed = self.keeper.place(self.number, Intent::Append { file, offset, len, digest });
        placed.map_err(|_| StoreError::Io)
    }

    fn ended(&self, appended: bool) -> std::result::Result<(), StoreError> {
        let (file, offset, len) = (self.file, self.offset.load(Ordering::Relaxed), self.len);
        let effect = appended.then_some(Effect::Appended { file, offset, len });
        self.keeper.ended(self.number, effect.as_ref()).map_err(|_| StoreError::Io)
    }
}

impl Drop for Op {
    fn drop(&mut self) {
        match self.settled {
            true => {}
            false if self.guard => self.keeper.end_guard(self.number),
            // It may have been carried out already, or by half.
            false if std::thread::panicking() => self.keeper.doubt(self.number),
            false => self.keeper.abandon(self.number),
        }
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
    /// Where its client is, by [`Host::to_bytes`](crate::Host::to_bytes): clients of one host share what
    /// hosts get.
    pub host: Vec<u8>,
    /// The name that its client goes by in all its runs.
    pub client: Vec<u8>,
    /// Which run of the client it belongs to.
    pub verifier: [u8; 8],
    /// How the client proved who it is.
    pub mechanism: String,
    /// Who it is.
    pub principal: Vec<u8>,
}

impl Session {
    /// Whether this is a session of the same run of this client.
    pub fn is_of(&self, client: &Client) -> bool {
        let identity = client.identity();
        self.client == client.name()
            && self.verifier == client.verifier()
            && self.mechanism == identity.mechanism
            && self.principal == identity.principal
    }
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
    /// It was carried out and could not be made stable, or others have changed the same, so it may be
    /// there or not; the reply was, or would have been, an error of the device.
    Failed,
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

/// The digest of what `before` is that of, followed by `part_bytes` bytes of which `part` is that.
pub fn digest_join(before: u32, part: u32, part_bytes: u64) -> u32 {
    let (before, part) = (u64::from(before), u64::from(part));
    crc_fast::checksum_combine(CrcAlgorithm::Crc32Iscsi, before, part, part_bytes) as u32
}

/// What the journal has done and holds, for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct JournalStatistics {
    /// The log itself.
    pub log: dafs_journal::Statistics,
    /// Rounds in which changes were made stable in the exports.
    pub rounds: u64,
    /// Changes that were made stable in them.
    pub committed: u64,
    /// Changes that are under way.
    pub in_flight: usize,
    /// The same of those that nothing is kept of.
    pub guarded: usize,
    /// Sessions that are known, of this run and of earlier ones.
    pub sessions: usize,
    /// Changes of theirs of which something is known.
    pub changes: usize,
    /// What is known of all of them, in bytes.
    pub kept_bytes: usize,
}

impl Service {
    /// Announces a change that is about to be carried out for the request `key`.
    ///
    /// # Errors
    /// `Resource` when too many changes are under way or too much is kept, of the session or of all; the store's error when the journal cannot be
    /// written or the state before the change cannot be found out.
    pub fn intend(
        &self,
        caller: Caller<'_>,
        key: &RequestKey,
        change: &Change<'_>,
        ready: Notify,
    ) -> Result<Intended> {
        let Some(keeper) = self.keeper.get() else { return Ok(Intended::Unneeded) };
        let namespace = self.namespace();
        let export = namespace.export(change.place())?;
        let options = export.options();
        // Who has no session cannot ask for a reply.
        let stateless = caller.client.kind() == ClientKind::Stateless;
        if stateless || options.read_only || !change.is_kept() || !change.is_possible() {
            return Ok(Intended::Unneeded);
        }
        let power = match options.durable_replies {
            Durability::Off => {
                keeper.leave_out(&key.session)?;
                return self.guard(caller, change, || ready);
            }
            // It is forgotten, so nobody can ask for the reply.
            _ if !keeper.lock().knows(&key.session) => return self.guard(caller, change, || ready),
            Durability::Crash => false,
            Durability::Power => true,
        };
        let places = change.places(|handle| export.key(handle));
        let cred = export.map_cred(caller.cred);
        keeper.intend(export.store(), power, key, (change, &cred), places, ready)
    }

    /// Has a verifier change when what a change has touched cannot be made stable: unstable data of
    /// anybody may be lost then. Only the first one that is given counts.
    pub fn tell_of_lost_data(&self, verifier: Arc<WriteVerifier>) {
        let _first = self.lost.set(verifier);
    }

    /// Takes the reply of a change that was carried out, as it will be sent: its bytes, and whether
    /// they are in little-endian order.
    pub fn settle(&self, op: Op, reply: &[u8], order_le: bool, ready: Notify) -> Settled {
        let keeper = op.keeper.clone();
        keeper.settle(op, reply, order_le, ready)
    }

    /// Notes that a session has begun, whose replies are to be found after a restart. Its client may
    /// be told so when the session is known to outlive what its changes do: else it could not be told
    /// what became of them. Does nothing when no journal is kept.
    pub fn keep_session(&self, session: &Session, ready: Notify) -> Settled {
        let Some(keeper) = self.keeper.get() else { return Settled::Now };
        if session.client.len() > CLIENT_NAME_BYTES_MAX {
            // No client has such a name.
            return Settled::Now;
        }
        let is_power = |export: &Arc<Export>| export.options().durable_replies == Durability::Power;
        let power = self.namespace().exports().any(is_power);
        keeper.introduce(session, power, ready)
    }

    /// Forgets a session and all its replies: its client has said that it needs them no more, has
    /// begun anew, or has not asked for them for too long.
    pub fn forget_session(&self, session: &[u8; 8]) {
        let Some(keeper) = self.keeper.get() else { return };
        let noted = keeper.lock().forget(&keeper.log, session);
        if let Some(sequence) = noted {
            // If this is lost, the session is forgotten later.
            let _ = keeper.log.flush(sequence);
        }
    }

    /// Forgets the answer to the latest change of a stream, before its request's number could be that
    /// of another request: the client, which has used the stream since, has the answer. Tells when
    /// `ready` must be waited for.
    pub fn outlived(&self, session: &[u8; 8], stream: u16, ready: Notify) -> Settled {
        let keeper = self.keeper.get();
        match keeper.and_then(|keeper| keeper.outlived(session, stream, ready)) {
            Some(()) => Settled::Later,
            None => Settled::Now,
        }
    }

    /// A session of an earlier run of the server.
    pub fn kept_session(&self, session: &[u8; 8]) -> Option<Session> {
        let ledger = self.keeper.get()?.lock();
        let kept = ledger.sessions.get(session).filter(|kept| kept.recovered)?;
        kept.session.clone()
    }

    /// What became of a request of an earlier run; `None` when it was not carried out.
    pub fn kept_answer(&self, key: &RequestKey) -> Option<Answer> {
        let ledger = self.keeper.get()?.lock();
        let kept = ledger.sessions.get(&key.session).filter(|kept| kept.recovered)?;
        let entry = kept.streams.get(&key.stream).filter(|entry| entry.about.key == *key)?;
        match Record::decode(&entry.record)? {
            Record::Reply { order_le, bytes, .. } => Some(Answer::Reply { bytes, order_le }),
            Record::Happened { effect, .. } => Some(Answer::Happened(effect)),
            Record::Failed { .. } => Some(Answer::Failed),
            _ => None,
        }
    }

    /// Whether a request of a session of an earlier run that nothing is known of was not carried out.
    /// Otherwise that cannot be said: the session has changed something that was not kept, or that
    /// was lost.
    pub(crate) fn is_kept_whole(&self, session: &[u8; 8]) -> bool {
        let Some(keeper) = self.keeper.get() else { return false };
        keeper.lock().sessions.get(session).is_some_and(|kept| !kept.incomplete)
    }

    /// What the journal has done and holds; `None` when there is none.
    pub fn journal_statistics(&self) -> Option<JournalStatistics> {
        let keeper = self.keeper.get()?;
        let ledger = keeper.lock();
        Some(JournalStatistics {
            log: keeper.log.statistics(),
            rounds: keeper.rounds.load(Ordering::Relaxed),
            committed: keeper.committed.load(Ordering::Relaxed),
            in_flight: ledger.flights.len(),
            guarded: ledger.guards.len(),
            sessions: ledger.sessions.len(),
            changes: ledger.sessions.values().map(|kept| kept.streams.len()).sum(),
            kept_bytes: ledger.bytes(),
        })
    }

    /// Forgets what earlier runs have left when nobody has asked for it for long enough (DAFS O50).
    pub(crate) fn tick_journal(&self, now_ns: u64) {
        let Some(keeper) = self.keeper.get() else { return };
        keeper.give_up_guards(now_ns);
        let mut ledger = keeper.lock();
        if ledger.recovered_sessions == 0 || now_ns < ledger.recovered_until_ns {
            return;
        }
        let old = ledger.sessions.iter().filter(|(_, kept)| kept.recovered);
        let old: Vec<_> = old.map(|(id, _)| *id).collect();
        for id in &old {
            ledger.forget(&keeper.log, id);
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
