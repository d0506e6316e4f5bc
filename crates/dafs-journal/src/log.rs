//! Append and group commit.
//!
//! Invariants
//! * Lock order: the owner's lock, `sync`, `io`, `maker`, `state`. `state` is held for operations
//!   in memory only, `io` during writes. Notifications are called without any lock.
//! * Records are written in the order in which they were appended.
//! * At most one job makes the log stable, and it ends when no caller waits. Every waiter is
//!   notified, whatever fails: a panic of the disk is a failure like others.
//! * A segment is made exactly once, before the first write to it, under `maker`.
//! * A segment is removed only when the checkpoint of the next one is stable.

use crate::disk::{Disk, Spawn};
use crate::error::LogFailed;
use crate::format::{HEADER_BYTES, Header, KEY_BYTES, Kind, Record, Seal};
use crate::limits::BUFFER_SPARE_BYTES_MAX;
use crate::turn::{Turn, Turns};
use dafs_mem::{Condvar, Mutex};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard};

/// Called once, under no lock, when the requested records are stable, or cannot be made stable.
pub type Done = Box<dyn FnOnce(Result<(), LogFailed>) + Send>;

/// The result of an append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Appended {
    /// The record's number, for [`Log::sync_soon`] and [`Log::flush`].
    pub sequence: u64,
    /// The segment is full enough: call [`Log::rotate`].
    pub full: bool,
}

/// Statistics since the log began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Statistics {
    /// Records appended, without those of checkpoints.
    pub records: u64,
    /// Bytes of the log, with checkpoints.
    pub bytes: u64,
    /// Syncs of the disk.
    pub syncs: u64,
    /// Notifications after these.
    pub waiters: u64,
    /// Segments begun.
    pub segments: u64,
}

/// Bytes for one position of one segment.
struct Chunk {
    segment: u64,
    offset: u64,
    bytes: Vec<u8>,
}

struct State {
    /// Chunks to write, in order. Appends extend the last one.
    pending: Vec<Chunk>,
    segment: u64,
    /// The position of the next record in the segment.
    offset: u64,
    checkpoint_end: u64,
    /// The number of the next record.
    next: u64,
    /// All records up to this number are stable.
    stable: u64,
    /// The number of the latest confirmation.
    confirmed: u64,
    waiters: Vec<(u64, Done)>,
    /// A job that makes the log stable is running or about to run.
    syncing: bool,
    /// The number of waiters that the latest job has served at once.
    told: usize,
    /// The number of waiters that a job waits for.
    gathers: Option<usize>,
    /// A sync is due although no caller waits.
    sync_wanted: bool,
    /// Segments to be removed after the present segment's checkpoint is stable.
    obsolete: Vec<u64>,
    /// A segment made in advance.
    spare: Option<u64>,
    spare_buffer: Vec<u8>,
    failed: bool,
}

/// The state of the writer.
struct Io {
    /// Segments with unstable writes.
    dirty: Vec<u64>,
}

/// A log that accepts records.
pub struct Log {
    disk: Arc<dyn Disk>,
    spawn: Spawn,
    boot: [u8; 16],
    key: [u8; KEY_BYTES],
    segment_bytes: u64,
    state: Mutex<State>,
    io: Mutex<Io>,
    /// All records up to this number are written. Changes under `io`.
    written: AtomicU64,
    /// Notified when a job has as many waiters as it waits for.
    gathered: Condvar,
    /// Held while segments are made.
    maker: Mutex<()>,
    /// Taken during a sync, so that one thread at a time handles the dirty segments.
    sync: Turns,
    records: AtomicU64,
    bytes: AtomicU64,
    syncs: AtomicU64,
    waiters: AtomicU64,
    segments: AtomicU64,
}

/// Calls the disk. After a panic, as after an error, the effect of the call is not known.
fn tried(call: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let mistake = |_| Err(io::Error::other("a mistake in the server"));
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(mistake)
}

impl Log {
    pub(crate) fn begin(
        disk: Arc<dyn Disk>,
        boot: [u8; 16],
        segment_bytes: u64,
        spawn: Spawn,
        segment: u64,
        sequence: u64,
        obsolete: Vec<u64>,
        live: &mut dyn Iterator<Item = &[u8]>,
    ) -> Result<Arc<Self>, LogFailed> {
        let state = State {
            pending: Vec::new(),
            segment: segment - 1,
            offset: 0,
            checkpoint_end: 0,
            next: sequence,
            stable: sequence - 1,
            confirmed: sequence - 1,
            waiters: Vec::new(),
            syncing: false,
            told: 0,
            gathers: None,
            sync_wanted: false,
            obsolete,
            spare: None,
            spare_buffer: Vec::new(),
            failed: false,
        };
        let log = Arc::new(Self {
            key: disk.key(),
            disk,
            spawn,
            boot,
            segment_bytes,
            state: Mutex::new(state),
            io: Mutex::new(Io { dirty: Vec::new() }),
            written: AtomicU64::new(sequence - 1),
            gathered: Condvar::new(),
            maker: Mutex::new(()),
            sync: Turns::default(),
            records: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            syncs: AtomicU64::new(0),
            waiters: AtomicU64::new(0),
            segments: AtomicU64::new(0),
        });
        log.new_segment(&mut log.state.lock(), live);
        log.sync_now()?;
        log.make_spare();
        Ok(log)
    }

    /// Appends a record to the chunks in memory. It survives the end of the process only after
    /// [`flush`](Self::flush), and a loss of power only after [`sync_soon`](Self::sync_soon), has
    /// covered it. The caller must not append records longer than
    /// [`RECORD_BYTES_MAX`](crate::RECORD_BYTES_MAX).
    pub fn append(&self, payload: &[u8]) -> Appended {
        let mut state = self.state.lock();
        let sequence = self.put(&mut state, Kind::Record, payload);
        self.records.fetch_add(1, Ordering::Relaxed);
        let room = state.offset - state.checkpoint_end;
        // A checkpoint is written again only after as many bytes of other records.
        let full = state.offset >= self.segment_bytes / 8 * 7 && room >= state.checkpoint_end;
        Appended { sequence, full }
    }

    /// Begins a new segment with `live`, all live records so far. The caller excludes appends
    /// meanwhile.
    pub fn rotate(self: &Arc<Self>, live: &mut dyn Iterator<Item = &[u8]>) {
        let mut state = self.state.lock();
        let old = state.segment;
        self.new_segment(&mut state, live);
        state.obsolete.push(old);
        state.sync_wanted = true;
        self.ensure_job(state);
    }

    fn new_segment(&self, state: &mut State, live: &mut dyn Iterator<Item = &[u8]>) {
        self.segments.fetch_add(1, Ordering::Relaxed);
        state.segment += 1;
        let (segment, first) = (state.segment, state.next);
        let (len_bytes, boot) = (self.segment_bytes, self.boot);
        let key_sum = Seal { key: self.key, segment }.key_sum();
        let header = Header { segment, len_bytes, first, boot, key_sum };
        state.pending.push(Chunk { segment, offset: 0, bytes: header.encode().to_vec() });
        state.offset = HEADER_BYTES as u64;
        for payload in live {
            self.put(state, Kind::Checkpoint, payload);
        }
        self.put(state, Kind::CheckpointEnd, &[]);
        state.checkpoint_end = state.offset;
    }

    fn put(&self, state: &mut State, kind: Kind, payload: &[u8]) -> u64 {
        let (segment, offset, sequence) = (state.segment, state.offset, state.next);
        state.next += 1;
        if state.failed {
            return sequence;
        }
        if state.pending.last().is_none_or(|chunk| chunk.segment != segment) {
            let bytes = std::mem::take(&mut state.spare_buffer);
            state.pending.push(Chunk { segment, offset, bytes });
        }
        let stable = state.stable;
        if let Some(chunk) = state.pending.last_mut() {
            let seal = Seal { key: self.key, segment };
            Record { sequence, stable, kind, payload }.encode(&seal, &mut chunk.bytes);
        }
        let room = Record::room(payload.len()) as u64;
        self.bytes.fetch_add(room, Ordering::Relaxed);
        state.offset += room;
        sequence
    }

    /// Writes the records at least up to `sequence`, so that they survive the process.
    ///
    /// # Errors
    /// The disk has failed, now or earlier.
    pub fn flush(&self, sequence: u64) -> Result<(), LogFailed> {
        // A caller whose records are written does not wait for the writer.
        if self.is_written(sequence) {
            return Ok(());
        }
        let mut io = self.io.lock();
        match self.is_written(sequence) {
            true => Ok(()),
            false => self.write_pending(&mut io),
        }
    }

    /// True if all records up to `sequence` are written, even if the log has failed since.
    pub fn is_written(&self, sequence: u64) -> bool {
        self.written.load(Ordering::Acquire) >= sequence
    }

    /// True if the disk has failed, so that no more records are kept.
    pub fn has_failed(&self) -> bool {
        self.state.lock().failed
    }

    fn write_pending(&self, io: &mut Io) -> Result<(), LogFailed> {
        let mut state = self.state.lock();
        if state.failed {
            return Err(LogFailed);
        }
        let (chunks, upto) = (std::mem::take(&mut state.pending), state.next - 1);
        drop(state);
        let write = |chunk: &Chunk| -> io::Result<()> {
            if chunk.offset == 0 {
                self.need_segment(chunk.segment)?;
            }
            self.disk.write(chunk.segment, chunk.offset, &chunk.bytes)
        };
        let done = tried(|| chunks.iter().try_for_each(write));
        for chunk in &chunks {
            if !io.dirty.contains(&chunk.segment) {
                io.dirty.push(chunk.segment);
            }
        }
        let mut state = self.state.lock();
        if let Err(error) = done {
            self.fail(&mut state, "written", &error);
            return Err(LogFailed);
        }
        self.written.store(upto, Ordering::Release);
        if let Some(mut chunk) = chunks.into_iter().next_back()
            && chunk.bytes.capacity() <= BUFFER_SPARE_BYTES_MAX
        {
            chunk.bytes.clear();
            state.spare_buffer = chunk.bytes;
        }
        Ok(())
    }

    /// Makes a segment if it does not exist yet.
    fn need_segment(&self, segment: u64) -> io::Result<()> {
        let _maker = self.maker.lock();
        if self.state.lock().spare.take_if(|spare| *spare == segment).is_some() {
            return Ok(());
        }
        self.disk.make(segment, self.segment_bytes)
    }

    fn fail(&self, state: &mut State, what: &str, error: &io::Error) {
        let segment = self.disk.name(state.segment);
        tracing::error!(%error, segment, "the journal cannot be {what}; no more changes are taken");
        state.failed = true;
        // No more records are written.
        state.pending = Vec::new();
    }

    /// Makes all records up to `sequence` stable, together with those of other waiters, and then
    /// calls `done`.
    pub fn sync_soon(self: &Arc<Self>, sequence: u64, done: Done) {
        let mut state = self.state.lock();
        // A record that was not appended is not waited for.
        let sequence = sequence.min(state.next - 1);
        let outcome = match (state.failed, state.stable >= sequence) {
            (true, _) => Err(LogFailed),
            (false, true) => Ok(()),
            (false, false) => {
                state.waiters.push((sequence, done));
                if state.gathers.is_some_and(|wanted| state.waiters.len() >= wanted) {
                    state.gathers = None;
                    self.gathered.notify_one();
                }
                return self.ensure_job(state);
            }
        };
        drop(state);
        done(outcome);
    }

    fn ensure_job(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        if std::mem::replace(&mut state.syncing, true) {
            return;
        }
        drop(state);
        let log = self.clone();
        (self.spawn)(Box::new(move || log.sync_job()));
    }

    fn sync_job(self: &Arc<Self>) {
        loop {
            let mut state = self.state.lock();
            if state.waiters.is_empty() && !state.sync_wanted {
                state.syncing = false;
                return;
            }
            state = self.gather(state);
            state.sync_wanted = false;
            drop(state);
            let outcome = self.sync_now();
            let mut state = self.state.lock();
            let stable = if outcome.is_ok() { state.stable } else { u64::MAX };
            let waiters = std::mem::take(&mut state.waiters);
            let (told, rest): (Vec<_>, Vec<_>) =
                waiters.into_iter().partition(|&(sequence, _)| sequence <= stable);
            state.waiters = rest;
            state.told = told.len();
            drop(state);
            self.waiters.fetch_add(told.len() as u64, Ordering::Relaxed);
            for (_, done) in told {
                // A panic of one must not affect the others.
                let _ = catch_unwind(AssertUnwindSafe(|| done(outcome)));
            }
        }
    }

    /// Waits a moment while fewer callers want a sync than the last one served: those have been
    /// answered, and will want the next one together with the present waiters. The wait always ends
    /// after the disk's patience, also while the server stops.
    fn gather<'a>(&self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let (patience, wanted) = (self.disk.patience(), state.told);
        if state.waiters.len() >= wanted || patience.is_zero() {
            return state;
        }
        state.gathers = Some(wanted);
        (state, _) =
            self.gathered.wait_timeout_while(state, patience, |state| state.gathers.is_some());
        state.gathers = None;
        state
    }

    /// Makes all records up to `sequence` stable, together with those of other waiters, and waits
    /// for that.
    ///
    /// # Errors
    /// The disk has failed, now or earlier.
    pub fn sync_through(&self, sequence: u64) -> Result<(), LogFailed> {
        // A caller whose records are stable does not wait for others.
        match self.sync.take(|| self.is_stable(sequence)) {
            None => Ok(()),
            Some(turn) => self.sync_all(&turn),
        }
    }

    /// True if all records up to `sequence` are stable.
    pub fn is_stable(&self, sequence: u64) -> bool {
        self.stable() >= sequence
    }

    /// The number up to which all records are stable.
    pub fn stable(&self) -> u64 {
        self.state.lock().stable
    }

    /// Makes all earlier records stable, and waits for that.
    ///
    /// # Errors
    /// The disk has failed, now or earlier.
    pub fn sync_now(&self) -> Result<(), LogFailed> {
        self.sync.take(|| false).map_or(Ok(()), |turn| self.sync_all(&turn))
    }

    fn sync_all(&self, _turn: &Turn<'_>) -> Result<(), LogFailed> {
        let mut io = self.io.lock();
        self.write_pending(&mut io)?;
        let dirty = std::mem::take(&mut io.dirty);
        let written = self.written.load(Ordering::Acquire);
        // Others may write meanwhile. This sync does not cover their records.
        drop(io);
        self.syncs.fetch_add(1, Ordering::Relaxed);
        let synced = tried(|| dirty.iter().try_for_each(|&segment| self.disk.sync(segment)));
        let mut state = self.state.lock();
        if let Err(error) = synced {
            self.fail(&mut state, "made stable", &error);
            return Err(LogFailed);
        }
        state.stable = state.stable.max(written);
        // They were replaced before the segment that was just synced.
        let newest = dirty.iter().max().copied().unwrap_or(0);
        let gone: Vec<u64> = state.obsolete.extract_if(.., |number| *number < newest).collect();
        self.confirm(state);
        for &segment in &gone {
            if let Err(error) = tried(|| self.disk.remove(segment)) {
                // The next start ignores and removes it.
                let segment = self.disk.name(segment);
                tracing::warn!(%error, segment, "an old segment of the journal cannot be removed");
            }
        }
        if !gone.is_empty() {
            self.make_spare();
        }
        Ok(())
    }

    /// Writes a confirmation that the whole log is stable, unless there is one or more records were
    /// appended. It is not waited for. Without it, damage of the last records could not be
    /// distinguished from the effect of a crash.
    fn confirm(&self, mut state: MutexGuard<'_, State>) {
        let all = state.stable + 1 == state.next && state.pending.is_empty();
        if !all || state.stable == state.confirmed {
            return;
        }
        state.confirmed = self.put(&mut state, Kind::Confirmation, &[]);
        drop(state);
        // Later callers get the error. The records of this sync are stable.
        let _ = self.write_pending(&mut self.io.lock());
    }

    /// Makes the next segment in advance.
    fn make_spare(&self) {
        let _maker = self.maker.lock();
        let state = self.state.lock();
        // The writer of that segment takes `maker` first.
        let next = state.segment + 1;
        if state.failed || state.spare == Some(next) {
            return;
        }
        drop(state);
        match tried(|| self.disk.make(next, self.segment_bytes)) {
            Ok(()) => self.state.lock().spare = Some(next),
            // The writer that needs it retries, and fails if it still cannot be made.
            Err(error) => {
                let segment = self.disk.name(next);
                tracing::warn!(%error, segment, "no room for the next segment of the journal");
            }
        }
    }

    /// The statistics so far.
    pub fn statistics(&self) -> Statistics {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Statistics {
            records: read(&self.records),
            bytes: read(&self.bytes),
            syncs: read(&self.syncs),
            waiters: read(&self.waiters),
            segments: read(&self.segments),
        }
    }
}
