//! Recovery from a journal of an earlier run.

use super::evidence::Verdict;
use super::intent::{Intent, server};
use super::journal::Journal;
use super::ledger::{Entry, Ledger};
use super::record::{self, About, Record};
use super::shares;
use super::{Durability, Durable};
use crate::export::Namespace;
use crate::limits::{BUSY_STORE_PAUSE, BUSY_STORE_TRIES_MAX};
use dafs_journal::{Disk, LogFailed, Recovery, ScanError, Spawn};
use dafs_store::{OpenMode, Store, StoreError};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::sync::Arc;
use thiserror::Error;

/// The place and parameters of a service's journal.
pub struct JournalConfig {
    /// The segments.
    pub disk: Arc<dyn Disk>,
    /// Identifies the run of the system.
    pub boot: [u8; 16],
    /// The size of a segment, most often [`dafs_journal::SEGMENT_BYTES`].
    pub segment_bytes: u64,
    /// Runs work that waits for the disk. Two jobs may be under way at once.
    pub spawn: Spawn,
}

/// Why a journal cannot be used. It stays unchanged.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum JournalError {
    /// It cannot be read.
    #[error(transparent)]
    Scan(#[from] ScanError),
    /// It contains a record that this program does not understand.
    #[error(
        "the journal holds a record that this program does not know; start the program that wrote \
         it, or move the journal's directory to another place to start without it"
    )]
    Unknown,
    /// The result of a change cannot be found out.
    #[error("cannot determine the outcome of the last changes in export {export:?}: {error}")]
    Store {
        /// The name of the export.
        export: String,
        /// The reason.
        error: StoreError,
    },
    /// A new segment cannot be written.
    #[error(transparent)]
    Write(#[from] LogFailed),
}

/// The result of reading a journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Recovered {
    /// Sessions of earlier runs.
    pub sessions: usize,
    /// Changes with their replies.
    pub replies: usize,
    /// Changes without a reply that have happened.
    pub happened: usize,
    /// Changes without a reply that have not happened.
    pub not_happened: usize,
    /// Changes with an unknown result. The system has rebooted since and their exports keep replies
    /// only for the end of the server's process, or the exports are gone, or others have changed
    /// the same.
    pub lost: usize,
}

/// The state while a journal is read.
#[derive(Default)]
struct Reading {
    ledger: Ledger,
    /// Session and stream of each change's entry.
    ops: FxHashMap<u64, ([u8; 8], u16)>,
    /// Appends that may be partial.
    placed: BTreeMap<u64, (About, Intent)>,
    unknown: bool,
}

impl Reading {
    fn read(&mut self, bytes: &[u8]) {
        let sessions = &mut self.ledger.sessions;
        let about = match Record::decode(bytes) {
            None => {
                self.unknown = true;
                return;
            }
            Some(Record::Session { session, incomplete }) => {
                let kept = sessions.entry(session.id).or_default();
                (kept.record, kept.recovered) = (bytes.to_vec(), true);
                kept.incomplete = incomplete;
                kept.session = Some(session);
                return;
            }
            Some(Record::Forgotten(id)) => {
                sessions.remove(&id);
                return;
            }
            Some(Record::Placed { about, intent }) => {
                self.ledger.next_op = self.ledger.next_op.max(about.op);
                self.placed.insert(about.op, (about, intent));
                return;
            }
            Some(Record::Dropped { op }) => {
                self.placed.remove(&op);
                if let Some((session, stream)) = self.ops.remove(&op)
                    && let Some(kept) = sessions.get_mut(&session)
                    && kept.streams.get(&stream).is_some_and(|entry| entry.about.op == op)
                {
                    kept.streams.remove(&stream);
                }
                return;
            }
            Some(Record::Intent { about, intent }) => {
                if intent.appends() {
                    self.placed.insert(about.op, (about, intent));
                }
                about
            }
            Some(
                Record::Reply { about, .. }
                | Record::Happened { about, .. }
                | Record::Failed { about },
            ) => {
                self.placed.remove(&about.op);
                about
            }
        };
        self.ledger.next_op = self.ledger.next_op.max(about.op);
        let (session, stream) = (about.key.session, about.key.stream);
        // The session's record comes first, unless it was forgotten.
        let Some(kept) = sessions.get_mut(&session) else { return };
        let entry = Entry { about, record: bytes.to_vec() };
        if let Some(before) = kept.streams.insert(stream, entry) {
            self.ops.remove(&before.about.op);
        }
        self.ops.insert(about.op, (session, stream));
    }
}

impl Durable {
    /// Begins to keep durable replies, for exports that are configured so: reads the journal of the
    /// last run, finds out the results of changes without a reply, and begins a new journal. The
    /// server calls it once, before it serves any request.
    ///
    /// # Errors
    /// An error in the journal, which then stays unchanged.
    ///
    /// # Panics
    /// When it is called twice.
    pub fn start_journal(
        &self,
        config: JournalConfig,
        now_ns: u64,
    ) -> Result<Recovered, JournalError> {
        let JournalConfig { disk, boot, segment_bytes, spawn } = config;
        let mut reading = Reading::default();
        let recovery = Recovery::scan(disk, boot, &mut |bytes| reading.read(bytes))?;
        if reading.unknown {
            return Err(JournalError::Unknown);
        }
        let mut ledger = reading.ledger;
        let namespace = self.exports.namespace();
        let rebooted = recovery.rebooted();
        take_back(&ledger, &reading.placed, &namespace, rebooted)?;
        let mut recovered = judge(&mut ledger, &namespace, rebooted)?;
        shares::limit(&mut ledger.sessions);
        ledger.count();
        recovered.sessions = ledger.sessions.len();
        ledger.recovered_sessions = ledger.sessions.len();
        ledger.recovered_until_ns = now_ns.saturating_add(self.retention_ns);
        let log = recovery.start(segment_bytes, spawn.clone(), &mut ledger.live())?;
        let journal = Arc::new(Journal::new(log, spawn, ledger, self.lost.clone()));
        assert!(self.journal.set(journal).is_ok(), "the journal is begun once");
        Ok(recovered)
    }
}

/// Finds out the result of each change without a reply.
fn judge(
    ledger: &mut Ledger,
    namespace: &Namespace,
    rebooted: bool,
) -> Result<Recovered, JournalError> {
    let mut recovered = Recovered::default();
    let mut entries: Vec<&mut Entry> = Vec::new();
    // The journal need not contain a trace of changes that were not stable either.
    let forgetful = rebooted
        && namespace.exports().any(|export| export.options().durable_replies == Durability::Crash);
    for kept in ledger.sessions.values_mut() {
        let before = kept.streams.len();
        // A reboot loses the changes that survive only the end of a process.
        kept.streams.retain(|_, entry| entry.about.power || !rebooted);
        let lost = before - kept.streams.len();
        if forgetful || lost > 0 {
            kept.make_incomplete();
        }
        recovered.lost += lost;
        entries.extend(kept.streams.values_mut());
    }
    entries.sort_unstable_by_key(|entry| entry.about.op);
    let (mut gone, mut unknown) = (Vec::new(), Vec::new());
    let mut touched = FxHashMap::default();
    for entry in entries {
        let Some(Record::Intent { about, intent }) = Record::decode(&entry.record) else {
            match Record::decode(&entry.record) {
                Some(Record::Happened { .. }) => recovered.happened += 1,
                _ => recovered.replies += 1,
            }
            continue;
        };
        let Ok(export) = namespace.export(intent.place()) else {
            recovered.lost += 1;
            unknown.push(about.key.session);
            gone.push(about);
            continue;
        };
        let failed = |error| JournalError::Store { export: export.name().to_owned(), error };
        match patiently(|| intent.judge(&**export.store())).map_err(failed)? {
            Verdict::Happened(effect) => {
                recovered.happened += 1;
                entry.record.clear();
                record::put_happened(&about, &effect, &mut entry.record);
                // The reply says that data is stable, whatever else is.
                patiently(|| commit_data(&**export.store(), &intent)).map_err(failed)?;
                if about.power {
                    let ids: &mut Vec<_> = touched.entry(export.fs()).or_default();
                    intent.touched(&**export.store(), ids);
                }
            }
            Verdict::InDoubt => {
                recovered.lost += 1;
                entry.record.clear();
                record::put_failed(&about, &mut entry.record);
            }
            Verdict::Not => {
                recovered.not_happened += 1;
                gone.push(about);
            }
        }
    }
    for about in gone {
        if let Some(kept) = ledger.sessions.get_mut(&about.key.session) {
            kept.streams.remove(&about.key.stream);
        }
    }
    for session in unknown {
        if let Some(kept) = ledger.sessions.get_mut(&session) {
            kept.make_incomplete();
        }
    }
    // Changes that are reported as happened must survive the next loss of power.
    for export in namespace.exports() {
        if let Some(mut ids) = touched.remove(&export.fs()) {
            ids.sort_unstable();
            ids.dedup();
            let failed = |error| JournalError::Store { export: export.name().to_owned(), error };
            patiently(|| export.store().commit_names(&ids)).map_err(failed)?;
        }
    }
    Ok(recovered)
}

/// Removes the rest of partial appends that no client will ask for any more: their sessions are
/// forgotten, or have gone on.
fn take_back(
    ledger: &Ledger,
    placed: &BTreeMap<u64, (About, Intent)>,
    namespace: &Namespace,
    rebooted: bool,
) -> Result<(), JournalError> {
    for (about, intent) in placed.values() {
        let kept = ledger.sessions.get(&about.key.session);
        let entry = kept.and_then(|kept| kept.streams.get(&about.key.stream));
        let asked = entry.is_some_and(|entry| entry.about.op == about.op);
        // Without `power` the record of its end may be lost with the power.
        if asked || (rebooted && !about.power) {
            continue;
        }
        let Ok(export) = namespace.export(intent.place()) else { continue };
        let failed = |error| JournalError::Store { export: export.name().to_owned(), error };
        patiently(|| intent.judge(&**export.store())).map_err(failed)?;
    }
    Ok(())
}

/// Retries while the store is busy: a store that may not open by handle searches for a file in slices,
/// and a start that gave up would search from the beginning, and give up again.
fn patiently<T>(mut call: impl FnMut() -> Result<T, StoreError>) -> Result<T, StoreError> {
    for attempt in 0..BUSY_STORE_TRIES_MAX {
        match call() {
            Err(StoreError::Busy) => {
                if attempt == 0 {
                    tracing::info!(
                        "a store searches for a file of the last changes; the start waits"
                    );
                }
                std::thread::sleep(BUSY_STORE_PAUSE);
            }
            done => return done,
        }
    }
    call()
}

/// Makes the data of a change stable: the process may have ended before it did so.
fn commit_data(store: &dyn Store, intent: &Intent) -> Result<(), StoreError> {
    let (Intent::Write { file, .. } | Intent::Append { file, .. }) = intent else { return Ok(()) };
    let mode = OpenMode { read: true, write: false };
    store.open(&server(), &file.file, mode)?.commit(0, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_store_is_asked_again_and_other_errors_are_final() {
        let mut answers =
            [Err(StoreError::Busy), Err(StoreError::Busy), Ok(7), Err(StoreError::Io)].into_iter();
        assert_eq!(patiently(|| answers.next().unwrap()), Ok(7));
        assert_eq!(patiently(|| answers.next().unwrap()), Err(StoreError::Io));
    }
}
