//! The ledger: the state that the journal records, and the changes under way.
//!
//! Invariants
//! * The ledger equals the content of the log: both change in one step, under the lock.
//! * Per session and stream there is one entry: the latest change. A new one on the stream shows
//!   that the client has received the reply to the one before.
//! * The content of a checkpoint is bounded, so that it can be read: every change under way
//!   reserves its part of the room, and a record that does not fit is not made.
//! * Records of conflicting changes are in the log in the order of their execution, because a
//!   change releases its change locks only after its last record was appended.

use super::change::Owned;
use super::change_locks::{ChangeLock, ChangeLocks, Ends, LockList};
use super::guard::Guards;
use super::intent::Intent;
use super::record::{self, About};
use super::{Effect, Notify, Session};
use crate::limits::{
    DURABLE_BYTES_MAX, DURABLE_CHANGE_BYTES, DURABLE_CHANGES_MAX, DURABLE_RESERVE_BYTES,
    DURABLE_SESSION_BYTES_MAX,
};
use dafs_journal::{Appended, CHECKPOINT_BYTES_MAX, Log, record_bytes};
use dafs_mem::Shrinking as _;
use dafs_store::{Cred, Store};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// The latest change of a stream, with its present record.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) about: About,
    pub(super) record: Vec<u8>,
}

/// Returns the size of a record in a checkpoint. A missing one takes no space.
fn cost(record: &[u8]) -> usize {
    if record.is_empty() { 0 } else { record_bytes(record.len()) }
}

/// A session, and the results of its changes.
#[derive(Debug, Default)]
pub(super) struct Kept {
    pub(super) session: Option<Session>,
    /// Its record, once it is in the log.
    pub(super) record: Vec<u8>,
    pub(super) streams: FxHashMap<u16, Entry>,
    /// It is from an earlier run, and has no new changes.
    pub(super) recovered: bool,
    /// It has, or may have, made a change without a record. So a request without a record may have
    /// been executed.
    pub(super) incomplete: bool,
    /// The size of its records in a checkpoint.
    bytes: usize,
}

impl Kept {
    /// Computes the size of its records in a checkpoint.
    pub(super) fn count(&self) -> usize {
        let entries = self.streams.values().map(|entry| cost(&entry.record));
        cost(&self.record) + entries.sum::<usize>()
    }

    /// Notes that it has made a change without a record.
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
    /// Its change locks since the intent.
    pub(super) locks: LockList,
    /// The file of its name at the last lookup, if it empties that file.
    pub(super) emptied: Option<ChangeLock>,
    /// Its pre-image. `None` while it waits for its change locks.
    pub(super) intent: Option<Arc<Intent>>,
    /// The rest of the work, for when its change locks are free.
    pub(super) waiting: Option<Waiting>,
    /// The log has its result already.
    pub(super) ended: bool,
}

impl Flight {
    /// True if no other change blocks it.
    pub(super) fn is_first(&self, op: u64, locks: &ChangeLocks) -> bool {
        let emptied = self.emptied.as_slice();
        locks.is_first(op, &self.locks) && locks.is_first(op, emptied)
    }

    /// Releases its change locks, and adds the changes behind it to `next`.
    pub(super) fn leave(&self, op: u64, locks: &mut ChangeLocks, next: &mut Vec<u64>) {
        locks.leave(op, &self.locks, next);
        locks.leave(op, self.emptied.as_slice(), next);
    }
}

/// A change that waits for change locks.
pub(super) struct Waiting {
    pub(super) change: Owned,
    pub(super) cred: Cred,
    pub(super) ready: Notify,
}

/// A change that was executed and is to be made stable.
pub(super) struct Executed {
    pub(super) op: u64,
    pub(super) order_le: bool,
    pub(super) reply: Vec<u8>,
    pub(super) ready: Notify,
}

pub(super) struct Ledger {
    pub(super) sessions: FxHashMap<[u8; 8], Kept>,
    pub(super) flights: FxHashMap<u64, Flight>,
    /// Guarded changes under way.
    pub(super) guards: Guards,
    pub(super) locks: ChangeLocks,
    pub(super) executed: Vec<Executed>,
    /// Records of appends whose offset is in the log and whose end is not, by change. They outlive
    /// their sessions. An append that could not be ended outlives its change.
    pub(super) placed: FxHashMap<u64, Vec<u8>>,
    /// A job is making executed changes stable.
    pub(super) committing: bool,
    pub(super) next_op: u64,
    pub(super) recovered_sessions: usize,
    /// The time until which clients may ask for the replies of earlier runs.
    pub(super) recovered_until_ns: u64,
    buffer: Vec<u8>,
    /// The size of all live records in a checkpoint, and its limit.
    bytes: usize,
    bytes_max: usize,
    /// The size for the sessions of each host.
    of_host: FxHashMap<Vec<u8>, usize>,
}

impl Default for Ledger {
    fn default() -> Self {
        Self {
            sessions: FxHashMap::default(),
            flights: FxHashMap::default(),
            guards: Guards::default(),
            locks: ChangeLocks::default(),
            executed: Vec::new(),
            placed: FxHashMap::default(),
            committing: false,
            next_op: 0,
            recovered_sessions: 0,
            recovered_until_ns: 0,
            buffer: Vec::new(),
            bytes: 0,
            bytes_max: DURABLE_BYTES_MAX,
            of_host: FxHashMap::default(),
        }
    }
}

impl Ledger {
    /// The size of all live records in a checkpoint.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Computes the sizes after the log was read.
    pub(super) fn count(&mut self) {
        self.of_host.clear();
        for kept in self.sessions.values_mut() {
            kept.bytes = kept.count();
            if let Some(session) = &kept.session {
                *self.of_host.entry(session.host.clone()).or_default() += kept.bytes;
            }
        }
        self.bytes = self.live().map(cost).sum();
    }

    /// Notes that the record `sequence` has the result of a change.
    pub(super) fn end(&mut self, log: &Log, flight: &Flight, sequence: u64) {
        let power = flight.about.power;
        let ends = Ends { written: sequence, stable: if power { sequence } else { 0 } };
        let stable = log.stable();
        let kept = |ends: &Ends| ends.stable <= stable && log.is_written(ends.written);
        self.locks.end(&flight.locks, ends, kept);
        self.locks.end(flight.emptied.as_slice(), ends, kept);
    }

    /// The free space of a checkpoint, without the part of changes under way.
    fn spare_bytes(&self) -> usize {
        let used = self.bytes + self.flights.len() * DURABLE_CHANGE_BYTES;
        self.bytes_max.saturating_sub(used)
    }

    /// The part of that for new changes.
    fn left_bytes(&self) -> usize {
        let reserve = DURABLE_RESERVE_BYTES.min(self.bytes_max / 8);
        self.spare_bytes().saturating_sub(reserve)
    }

    /// True if there is room for another change, and its reply, of any session.
    pub(super) fn has_room(&self) -> bool {
        self.flights.len() < DURABLE_CHANGES_MAX && self.left_bytes() >= DURABLE_CHANGE_BYTES
    }

    /// True if there is room for another change of this session. Records of its host may take at
    /// most as much as is left.
    pub(super) fn has_room_for(&self, id: &[u8; 8]) -> bool {
        let kept = self.sessions.get(id);
        let kept_bytes = kept.map_or(0, |kept| kept.bytes);
        let host = kept.and_then(|kept| kept.session.as_ref()).map(|session| &session.host);
        let of_host = host.and_then(|host| self.of_host.get(host)).copied().unwrap_or(0);
        self.has_room()
            && kept_bytes + DURABLE_CHANGE_BYTES <= DURABLE_SESSION_BYTES_MAX
            && of_host + DURABLE_CHANGE_BYTES <= self.left_bytes()
    }

    /// True if the record of a change may grow to this size.
    fn fits(&self, about: &About, bytes: usize) -> bool {
        let Some(kept) = self.sessions.get(&about.key.session) else { return true };
        let entry = kept.streams.get(&about.key.stream);
        let more = bytes.saturating_sub(entry.map_or(0, |entry| cost(&entry.record)));
        more <= self.spare_bytes() && kept.bytes + more <= DURABLE_SESSION_BYTES_MAX
    }

    /// A record of a session takes `after` bytes instead of `before`.
    fn charge(&mut self, id: &[u8; 8], before: usize, after: usize) {
        if let Some(kept) = self.sessions.get_mut(id) {
            kept.bytes = kept.bytes + after - before;
            self.bytes = self.bytes + after - before;
            if let Some(session) = &kept.session {
                count_host(&mut self.of_host, session, before, after);
            }
        }
    }

    /// Begins another segment.
    fn rotate(&self, log: &Arc<Log>) {
        debug_assert_eq!(self.bytes, self.live().map(cost).sum::<usize>(), "all is counted");
        assert!(self.bytes as u64 <= CHECKPOINT_BYTES_MAX, "a checkpoint can be read");
        log.rotate(&mut self.live());
    }

    /// Removes the entry of a stream.
    pub(super) fn remove(&mut self, id: &[u8; 8], stream: u16) -> Option<Entry> {
        let entry = self.sessions.get_mut(id)?.streams.remove(&stream)?;
        self.charge(id, cost(&entry.record), 0);
        Some(entry)
    }

    fn remove_placed(&mut self, op: u64) {
        if let Some(record) = self.placed.remove_and_shrink(&op) {
            self.bytes -= cost(&record);
        }
    }

    /// Appends the record that `put` writes. Begins another segment when this one is full.
    fn append(&mut self, log: &Arc<Log>, put: impl FnOnce(&mut Vec<u8>)) -> u64 {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        put(&mut buffer);
        let Appended { sequence, full } = log.append(&buffer);
        self.buffer = buffer;
        if full {
            self.rotate(log);
        }
        sequence
    }

    /// All live records.
    pub(super) fn live(&self) -> impl Iterator<Item = &[u8]> {
        let sessions = self.sessions.values().filter(|kept| !kept.record.is_empty());
        let sessions = sessions.flat_map(|kept| {
            let entries = kept.streams.values().map(|entry| entry.record.as_slice());
            std::iter::once(kept.record.as_slice()).chain(entries)
        });
        sessions.chain(self.placed.values().map(Vec::as_slice))
    }

    /// Notes a session and its client. Returns the number of the record, if there was none before.
    /// Without room there is none for its changes either, and its record is written with the first
    /// change for which there is room.
    pub(super) fn introduce(&mut self, log: &Arc<Log>, session: &Session) -> Option<u64> {
        let kept = self.sessions.entry(session.id).or_default();
        if let Some(before) = kept.session.replace(session.clone()) {
            count_host(&mut self.of_host, &before, kept.bytes, 0);
        }
        count_host(&mut self.of_host, session, 0, kept.bytes);
        let mut record = Vec::new();
        record::put_session(session, false, &mut record);
        match cost(&record) <= self.spare_bytes() {
            true => self.tell(log, &session.id),
            false => None,
        }
    }

    /// Writes the record of a session if the log does not have it.
    fn tell(&mut self, log: &Arc<Log>, id: &[u8; 8]) -> Option<u64> {
        let kept = self.sessions.get_mut(id).filter(|kept| kept.record.is_empty())?;
        let mut record = Vec::new();
        record::put_session(kept.session.as_ref()?, kept.incomplete, &mut record);
        kept.record.clone_from(&record);
        self.charge(id, 0, cost(&record));
        Some(self.append(log, |out| out.extend_from_slice(&record)))
    }

    /// True if changes of a session can have records: it is known, and not forgotten.
    pub(super) fn knows(&self, id: &[u8; 8]) -> bool {
        self.sessions.contains_key(id)
    }

    /// Notes that a session is about to make a change without a record. Returns the number of the
    /// record, if the log did not have this yet.
    pub(super) fn leave_out(&mut self, log: &Arc<Log>, id: &[u8; 8]) -> Option<u64> {
        // No client asks about an unknown session.
        let kept = self.sessions.get_mut(id).filter(|kept| !kept.incomplete)?;
        if kept.record.is_empty() {
            kept.incomplete = true;
            return None;
        }
        kept.make_incomplete();
        let record = kept.record.clone();
        Some(self.append(log, |out| out.extend_from_slice(&record)))
    }

    /// Records the intent of a change. For a forgotten session, that can only be an append: no
    /// client will ask for it, but a partial one must be removed.
    pub(super) fn intend(&mut self, log: &Arc<Log>, about: &About, intent: &Intent) -> u64 {
        if intent.appends() {
            let mut record = Vec::new();
            record::put_placed(about, intent, &mut record);
            self.bytes += cost(&record);
            self.placed.insert(about.op, record);
            if !self.knows(&about.key.session) {
                return self.append(log, |out| record::put_placed(about, intent, out));
            }
        }
        let sequence = self.note(log, about, |out| record::put_intent(about, intent, out));
        let bytes = cost(&self.entry(about).record) * (1 + usize::from(intent.appends()));
        debug_assert!(bytes <= DURABLE_CHANGE_BYTES, "{bytes}");
        sequence
    }

    /// Records the result of an append, before any other change of its file is possible.
    pub(super) fn ended(&mut self, log: &Arc<Log>, about: &About, effect: Option<&Effect>) -> u64 {
        self.remove_placed(about.op);
        match effect {
            Some(effect) if self.is_latest(about) => {
                self.note(log, about, |out| record::put_happened(about, effect, out))
            }
            _ => self.dropped(log, about),
        }
    }

    /// Records the reply to a change.
    pub(super) fn reply(
        &mut self,
        log: &Arc<Log>,
        about: &About,
        order_le: bool,
        bytes: &[u8],
    ) -> u64 {
        // The session may have been forgotten meanwhile: then no client will ask.
        if !self.is_latest(about) {
            return self.dropped(log, about);
        }
        let mut record = std::mem::take(&mut self.buffer);
        record.clear();
        record::put_reply(about, order_le, bytes, &mut record);
        // The disk proves nothing once others have changed the same.
        let sequence = match self.fits(about, cost(&record)) {
            true => self.note(log, about, |out| out.extend_from_slice(&record)),
            false => self.failed(log, about),
        };
        self.buffer = record;
        sequence
    }

    /// Records that a change could not be made stable.
    pub(super) fn failed(&mut self, log: &Arc<Log>, about: &About) -> u64 {
        if !self.is_latest(about) {
            return self.dropped(log, about);
        }
        self.note(log, about, |out| record::put_failed(about, out))
    }

    /// Forgets the entry of a stream, because its client has the answer. Returns the number of the
    /// record, if there was an entry.
    pub(super) fn outlived(
        &mut self,
        log: &Arc<Log>,
        session: &[u8; 8],
        stream: u16,
    ) -> Option<u64> {
        let entry = self.remove(session, stream)?;
        Some(self.append(log, |out| record::put_dropped(entry.about.op, out)))
    }

    /// Records that a change was not executed, or that no client will ask for it.
    pub(super) fn dropped(&mut self, log: &Arc<Log>, about: &About) -> u64 {
        let key = &about.key;
        if let Some(kept) = self.sessions.get(&key.session)
            && kept.streams.get(&key.stream).is_some_and(|entry| entry.about.op == about.op)
        {
            self.remove(&key.session, key.stream);
        }
        self.append(log, |out| record::put_dropped(about.op, out))
    }

    /// True if a client may still ask for the result of a change: its session is known, and its
    /// stream has not gone on.
    fn is_latest(&self, about: &About) -> bool {
        self.sessions.get(&about.key.session).is_some_and(|kept| {
            let entry = kept.streams.get(&about.key.stream);
            entry.is_none_or(|entry| entry.about.op <= about.op)
        })
    }

    /// Makes the record that `put` writes the entry of a change.
    fn note(&mut self, log: &Arc<Log>, about: &About, put: impl FnOnce(&mut Vec<u8>)) -> u64 {
        // The changes of an unknown session would never be forgotten.
        assert!(self.knows(&about.key.session), "a session is known that has changes");
        self.tell(log, &about.key.session);
        let entry = self.entry(about);
        let before = cost(&entry.record);
        entry.about = *about;
        entry.record.clear();
        put(&mut entry.record);
        let after = cost(&entry.record);
        self.charge(&about.key.session, before, after);
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
            self.rotate(log);
        }
        sequence
    }

    /// Forgets a session. Returns the number of the record, if the log knew it.
    pub(super) fn forget(&mut self, log: &Arc<Log>, id: &[u8; 8]) -> Option<u64> {
        let kept = self.sessions.remove_and_shrink(id)?;
        self.bytes -= kept.bytes;
        if let Some(session) = &kept.session {
            count_host(&mut self.of_host, session, kept.bytes, 0);
        }
        self.recovered_sessions -= usize::from(kept.recovered);
        let known = !kept.record.is_empty();
        known.then(|| self.append(log, |out| record::put_forgotten(id, out)))
    }
}

/// The records of a session take `after` bytes instead of `before`.
fn count_host(
    of_host: &mut FxHashMap<Vec<u8>, usize>,
    session: &Session,
    before: usize,
    after: usize,
) {
    match of_host.get_mut(&session.host) {
        Some(bytes) => {
            *bytes = *bytes + after - before;
            if *bytes == 0 {
                of_host.remove(&session.host);
            }
        }
        None if after > before => drop(of_host.insert(session.host.clone(), after - before)),
        None => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handle::Handle;
    use crate::replies::{RequestKey, Sender};
    use dafs_journal::Recovery;
    use dafs_journal::sim::SimDisk;
    use dafs_store::{FileId, FsId};

    fn session(number: u64) -> Session {
        Session {
            id: number.to_be_bytes(),
            host: Vec::new(),
            client: Vec::new(),
            verifier: [0; 8],
            mechanism: String::new(),
            principal: Vec::new(),
        }
    }

    fn key(session: [u8; 8], stream: u16) -> RequestKey {
        RequestKey { session, stream, sequence: 1, procedure: 9, sender: Sender::OF_SESSION }
    }

    fn intend(ledger: &mut Ledger, log: &Arc<Log>, session: &Session, stream: u16) -> About {
        ledger.next_op += 1;
        let key = key(session.id, stream);
        ledger.introduce(log, session);
        let about = About { op: ledger.next_op, key, power: false };
        let file = Handle { fs: FsId([1; 16]), file: FileId([2; 48]) };
        ledger.intend(log, &about, &Intent::Append { file, offset: 0, len: 1, digest: 3 });
        about
    }

    fn log() -> Arc<Log> {
        let recovery = Recovery::scan(Arc::new(SimDisk::new()), [1; 16], &mut |_| ()).unwrap();
        recovery.start(64 << 10, Arc::new(|job| job()), &mut std::iter::empty()).unwrap()
    }

    /// It is like the others when there is room again.
    #[test]
    fn a_session_without_room_is_told_with_its_first_change() {
        let log = log();
        for leaves_out in [false, true] {
            let mut ledger = Ledger { bytes_max: 0, ..Ledger::default() };
            assert_eq!(ledger.introduce(&log, &session(1)), None);
            assert!(ledger.knows(&session(1).id) && !ledger.has_room_for(&session(1).id));
            if leaves_out {
                assert_eq!(ledger.leave_out(&log, &session(1).id), None);
            }
            assert_eq!((ledger.live().count(), ledger.bytes), (0, 0));
            ledger.bytes_max = 256 << 10;
            let key = key(session(1).id, 0);
            let about = About { op: 1, key, power: false };
            let file = Handle { fs: FsId([1; 16]), file: FileId([2; 48]) };
            let intent = Intent::Append { file, offset: 0, len: 1, digest: 3 };
            ledger.intend(&log, &about, &intent);
            ledger.ended(&log, &about, None);
            ledger.reply(&log, &about, false, b"done");
            let live: Vec<_> = ledger.live().map(|record| record.to_vec()).collect();
            let mut record = Vec::new();
            record::put_session(&session(1), leaves_out, &mut record);
            assert!(live.len() == 2 && live[0] == record);
            ledger.forget(&log, &session(1).id);
            assert!(ledger.bytes == 0 && ledger.of_host.is_empty());
        }
    }

    /// One host's sessions leave room for changes of others.
    #[test]
    fn no_host_takes_all_that_can_be_kept() {
        let log = log();
        let mut ledger = Ledger { bytes_max: 256 << 10, ..Ledger::default() };
        let mut fill = |host: u8| {
            let mut count = 0_u32;
            for number in 1000 * u64::from(host)..1000 * u64::from(host) + 500 {
                let own = Session { host: vec![host], ..session(number) };
                ledger.introduce(&log, &own);
                if !ledger.has_room_for(&own.id) {
                    ledger.forget(&log, &own.id);
                    break;
                }
                let about = intend(&mut ledger, &log, &own, 0);
                ledger.ended(&log, &about, None);
                ledger.reply(&log, &about, false, &[7; 1000]);
                count += 1;
            }
            count
        };
        let (first, second) = (fill(1), fill(2));
        assert!((first / 2).abs_diff(second) <= 2, "{first} {second}");
        assert!(fill(3) > 0);
        assert!(ledger.of_host.values().sum::<usize>() == ledger.bytes);
    }

    /// The next start can read the journal, for any behaviour of clients.
    #[test]
    fn a_checkpoint_is_bounded() {
        let log = log();
        let mut ledger = Ledger { bytes_max: 256 << 10, ..Ledger::default() };
        let mut replies = 0;
        for number in 0..2000 {
            if !ledger.has_room() {
                continue;
            }
            let about = intend(&mut ledger, &log, &session(number), 0);
            // Some never end.
            if number % 8 != 0 {
                ledger.ended(&log, &about, None);
                ledger.reply(&log, &about, false, &[7; 3000]);
                replies += 1;
            }
        }
        // A reply takes only room that is reserved for accepted changes.
        let before = ledger.bytes;
        let under_way: Vec<_> =
            (1..20).map(|stream| intend(&mut ledger, &log, &session(1), stream)).collect();
        for about in &under_way {
            ledger.reply(&log, about, false, &[7; 3000]);
        }
        assert!(ledger.bytes > before && ledger.bytes > ledger.bytes_max / 8 * 7);
        assert!(replies > 60, "{replies}");
        assert!(ledger.bytes <= ledger.bytes_max, "{}", ledger.bytes);
        assert_eq!(ledger.bytes, ledger.live().map(cost).sum::<usize>());
        for session in 0..2000_u64 {
            ledger.forget(&log, &session.to_be_bytes());
        }
        ledger
            .placed
            .keys()
            .copied()
            .collect::<Vec<_>>()
            .iter()
            .for_each(|op| ledger.remove_placed(*op));
        assert_eq!(ledger.bytes, 0);
        assert!(ledger.has_room());
    }
}
