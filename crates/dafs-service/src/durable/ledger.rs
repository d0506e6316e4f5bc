//! What the journal is to remember, and the changes under way.
//!
//! Invariants
//! * What is in memory is what the log says: both change in one step, under the lock.
//! * Per session and stream there is one entry: the latest change. A new one on the stream shows
//!   that the reply to the one before was received.
//! * Records of conflicting changes stand in the log in the order of their execution, because a
//!   change leaves its places only after its last record was appended.

use super::change::Owned;
use super::intent::Intent;
use super::places::{PlaceList, Places};
use super::record::{self, About};
use super::{Effect, Notify, Session};
use dafs_journal::{Appended, Log};
use dafs_store::Store;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// The latest change of a stream, as the record that says what is known of it.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) about: About,
    pub(super) record: Vec<u8>,
}

/// A session, and what became of its changes.
#[derive(Debug, Default)]
pub(super) struct Kept {
    pub(super) session: Option<Session>,
    /// Its record, once it is in the log.
    pub(super) record: Vec<u8>,
    pub(super) streams: FxHashMap<u16, Entry>,
    /// It is of an earlier run, and has no new changes.
    pub(super) recovered: bool,
    /// It has, or may have, changed something that nothing is kept of. So that nothing is known of a
    /// request does not mean that it was not carried out.
    pub(super) incomplete: bool,
}

impl Kept {
    /// Notes that nothing is kept of some change of it.
    pub(super) fn make_incomplete(&mut self) {
        self.incomplete = true;
        if let Some(session) = &self.session {
            self.record.clear();
            record::put_session(session, true, &mut self.record);
        }
    }
}

/// A change under way.
pub(super) struct Flight {
    pub(super) about: About,
    pub(super) store: Arc<dyn Store>,
    pub(super) places: PlaceList,
    /// What was found before it; `None` while it waits for its places.
    pub(super) intent: Option<Arc<Intent>>,
    /// What to do when its places are free.
    pub(super) waiting: Option<Waiting>,
    /// The log knows already what came of it.
    pub(super) ended: bool,
}

/// A change whose places others hold.
pub(super) struct Waiting {
    pub(super) change: Owned,
    pub(super) ready: Notify,
}

/// A change that was carried out and is to be made stable.
pub(super) struct Executed {
    pub(super) op: u64,
    pub(super) order_le: bool,
    pub(super) reply: Vec<u8>,
    pub(super) ready: Notify,
}

#[derive(Default)]
pub(super) struct Ledger {
    pub(super) sessions: FxHashMap<[u8; 8], Kept>,
    pub(super) flights: FxHashMap<u64, Flight>,
    pub(super) places: Places,
    pub(super) executed: Vec<Executed>,
    /// Appends whose place the log knows and whose end it does not, as records, by change. They
    /// outlast their sessions, and appends that nobody could bring to an end outlast their changes.
    pub(super) placed: FxHashMap<u64, Vec<u8>>,
    /// A job that makes executed changes stable is under way.
    pub(super) committing: bool,
    pub(super) next_op: u64,
    pub(super) recovered_sessions: usize,
    /// When what earlier runs have left is of no use any more.
    pub(super) recovered_until_ns: u64,
    buffer: Vec<u8>,
}

impl Ledger {
    /// Appends what `put` writes and, when the segment is full, begins another one.
    fn append(&mut self, log: &Arc<Log>, put: impl FnOnce(&mut Vec<u8>)) -> u64 {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        put(&mut buffer);
        let Appended { sequence, full } = log.append(&buffer);
        self.buffer = buffer;
        if full {
            log.rotate(&mut self.live());
        }
        sequence
    }

    /// Every record that is of use.
    pub(super) fn live(&self) -> impl Iterator<Item = &[u8]> {
        let sessions = self.sessions.values().filter(|kept| !kept.record.is_empty());
        let sessions = sessions.flat_map(|kept| {
            let entries = kept.streams.values().map(|entry| entry.record.as_slice());
            std::iter::once(kept.record.as_slice()).chain(entries)
        });
        sessions.chain(self.placed.values().map(Vec::as_slice))
    }

    /// Sees to it that the log knows the session.
    fn know(&mut self, log: &Arc<Log>, id: &[u8; 8]) -> Option<u64> {
        let kept = self.sessions.entry(*id).or_default();
        if !kept.record.is_empty() {
            return None;
        }
        // A front door that has not introduced it keeps no answers for anybody in particular.
        let nobody = || Session {
            id: *id,
            client: Vec::new(),
            verifier: [0; 8],
            mechanism: String::new(),
            principal: Vec::new(),
        };
        let mut record = Vec::new();
        let incomplete = kept.incomplete;
        record::put_session(kept.session.get_or_insert_with(nobody), incomplete, &mut record);
        kept.record.clone_from(&record);
        Some(self.append(log, |out| out.extend_from_slice(&record)))
    }

    /// Notes whose a session is; the number of the record, if there was none before.
    pub(super) fn introduce(&mut self, log: &Arc<Log>, session: &Session) -> Option<u64> {
        self.sessions.entry(session.id).or_default().session = Some(session.clone());
        self.know(log, &session.id)
    }

    /// Notes that a session is about to change something that nothing is kept of; the number of the
    /// record, if the log does not say so yet.
    pub(super) fn leave_out(&mut self, log: &Arc<Log>, id: &[u8; 8]) -> Option<u64> {
        // Nobody asks about a session that was not introduced.
        let kept = self.sessions.get_mut(id).filter(|kept| !kept.incomplete)?;
        kept.make_incomplete();
        let record = kept.record.clone();
        Some(self.append(log, |out| out.extend_from_slice(&record)))
    }

    /// Notes a change that is about to be carried out.
    pub(super) fn intend(&mut self, log: &Arc<Log>, about: &About, intent: &Intent) -> u64 {
        if intent.appends() {
            let mut record = Vec::new();
            record::put_placed(about, intent, &mut record);
            self.placed.insert(about.op, record);
        }
        self.note(log, about, |out| record::put_intent(about, intent, out))
    }

    /// Notes what came of an append, when nothing else can have changed its file yet.
    pub(super) fn ended(&mut self, log: &Arc<Log>, about: &About, effect: Option<&Effect>) -> u64 {
        self.placed.remove(&about.op);
        match effect {
            Some(effect) if self.is_latest(about) => {
                self.note(log, about, |out| record::put_happened(about, effect, out))
            }
            _ => self.dropped(log, about),
        }
    }

    /// Notes the reply to a change.
    pub(super) fn reply(
        &mut self,
        log: &Arc<Log>,
        about: &About,
        order_le: bool,
        bytes: &[u8],
    ) -> u64 {
        // The session may have been forgotten meanwhile: then nobody will ask.
        if !self.is_latest(about) {
            return self.dropped(log, about);
        }
        self.note(log, about, |out| record::put_reply(about, order_le, bytes, out))
    }

    /// Notes that a change could not be made stable.
    pub(super) fn failed(&mut self, log: &Arc<Log>, about: &About) -> u64 {
        if !self.is_latest(about) {
            return self.dropped(log, about);
        }
        self.note(log, about, |out| record::put_failed(about, out))
    }

    /// Lets go of what is known of a stream: its client has its answer. The number of the record that
    /// says so, if there was anything.
    pub(super) fn outlived(
        &mut self,
        log: &Arc<Log>,
        session: &[u8; 8],
        stream: u16,
    ) -> Option<u64> {
        let entry = self.sessions.get_mut(session)?.streams.remove(&stream)?;
        Some(self.append(log, |out| record::put_dropped(entry.about.op, out)))
    }

    /// Notes that a change was not carried out, or that nobody will ask for it.
    pub(super) fn dropped(&mut self, log: &Arc<Log>, about: &About) -> u64 {
        if let Some(kept) = self.sessions.get_mut(&about.key.session)
            && kept.streams.get(&about.key.stream).is_some_and(|entry| entry.about.op == about.op)
        {
            kept.streams.remove(&about.key.stream);
        }
        self.append(log, |out| record::put_dropped(about.op, out))
    }

    /// Whether what comes of a change may still be asked for: its session is known, and its stream
    /// has not gone on.
    fn is_latest(&self, about: &About) -> bool {
        self.sessions.get(&about.key.session).is_some_and(|kept| {
            let entry = kept.streams.get(&about.key.stream);
            entry.is_none_or(|entry| entry.about.op <= about.op)
        })
    }

    /// Makes what `put` writes the entry of a change.
    fn note(&mut self, log: &Arc<Log>, about: &About, put: impl FnOnce(&mut Vec<u8>)) -> u64 {
        self.know(log, &about.key.session);
        let entry = self.entry(about);
        entry.about = *about;
        entry.record.clear();
        put(&mut entry.record);
        self.append_entry(log, about)
    }

    fn entry(&mut self, about: &About) -> &mut Entry {
        let kept = self.sessions.entry(about.key.session).or_default();
        let empty = || Entry { about: *about, record: Vec::new() };
        kept.streams.entry(about.key.stream).or_insert_with(empty)
    }

    fn append_entry(&mut self, log: &Arc<Log>, about: &About) -> u64 {
        let record = std::mem::take(&mut self.entry(about).record);
        let Appended { sequence, full } = log.append(&record);
        self.entry(about).record = record;
        if full {
            log.rotate(&mut self.live());
        }
        sequence
    }

    /// Forgets a session; the number of the record that says so, if the log knew it.
    pub(super) fn forget(&mut self, log: &Arc<Log>, id: &[u8; 8]) -> Option<u64> {
        let kept = self.sessions.remove(id)?;
        self.recovered_sessions -= usize::from(kept.recovered);
        let known = !kept.record.is_empty();
        known.then(|| self.append(log, |out| record::put_forgotten(id, out)))
    }
}
