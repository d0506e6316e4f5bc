//! One file: writes, commits, and retransmission of lost writes.
//!
//! Invariants
//! * Locks are taken in this order: `settling`, `order`, `state`, the queue. No thread waits for
//!   the server under the last two.

use super::memory::{Charge, Memory, Reachable};
use super::pace::Fresh;
use super::pieces::{Data, Origin, Pieces};
use crate::kernel::Errno;
use crate::limits::{KEPT_ATTEMPTS_MAX, KEPT_PIECE_COST, KEPT_UNCOPIED_MIN, WRITE_BYTES_MAX};
use crate::tree::Outcome;
use dafs_client::{Verifier, WriteState};
use dafs_mem::{Mutex, RwLock, Site};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, RwLockReadGuard, RwLockWriteGuard, Weak};
use std::time::Instant;

/// The reason why an operation failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    /// A retry may succeed.
    Passing(Errno),
    /// The server refuses it for good.
    Final(Errno),
}

impl Failure {
    pub(crate) fn errno(self) -> Errno {
        match self {
            Self::Passing(errno) | Self::Final(errno) => errno,
        }
    }
}

/// The server's operations on one file.
pub(crate) trait Store: Debug {
    /// An open of the file.
    type Writer: Clone + Debug;
    /// Memory that the server can reach.
    type Buffer: Reachable + Debug;

    fn write(
        &self,
        writer: &Self::Writer,
        from: &Self::Buffer,
        range: Range<usize>,
        offset: u64,
    ) -> Result<WriteState, Failure>;

    fn write_stably(
        &self,
        writer: &Self::Writer,
        from: &Self::Buffer,
        len: usize,
        offset: u64,
    ) -> Result<(), Failure>;

    fn commit(&self) -> Result<Verifier, Failure>;

    /// A buffer for the longest write.
    fn buffer(&self) -> Result<Self::Buffer, Failure>;

    /// False when others may have accessed the file against this mount's locks.
    fn may_write_again(&self) -> bool;

    /// The size of the file at the server, if it can be asked.
    fn size(&self) -> Option<u64>;

    /// The number of restarts of the server that were detected.
    fn restarts(&self) -> u64;
}

/// The failures that a user of the file has been told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen(u64);

impl Seen {
    /// A user who has yet to be told.
    pub(crate) const NOTHING: Self = Self(u64::MAX);
}

#[derive(Debug)]
struct State<S: Store> {
    pieces: Pieces<S::Writer, S::Buffer>,
    /// Number of the last write.
    writes: u64,
    /// The verifier of the last write, while writes are retained.
    verifier: Option<Verifier>,
    /// The writes since the last commit began, while writes are retained.
    fresh: Fresh,
    /// Place in the queue, while writes are retained.
    turn: Option<u64>,
    /// The number of losses, and the reason of the last one.
    failures: u64,
    reason: Errno,
}

type Waiting<S> = (u64, BTreeMap<u64, Weak<RetainedFile<S>>>);

/// The files with retained writes, oldest first, and the next place.
#[derive(Debug)]
pub(super) struct Queue<S: Store>(Mutex<Waiting<S>>);

impl<S: Store> Default for Queue<S> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<S: Store> Queue<S> {
    fn lock(&self) -> MutexGuard<'_, Waiting<S>> {
        self.0.lock()
    }

    pub(super) fn all(&self) -> Vec<Arc<RetainedFile<S>>> {
        self.lock().1.values().filter_map(Weak::upgrade).collect()
    }

    fn oldest(&self, count: usize) -> Vec<Arc<RetainedFile<S>>> {
        self.lock().1.values().filter_map(Weak::upgrade).take(count).collect()
    }
}

/// A file that is open, and its retained writes.
#[derive(Debug)]
pub(crate) struct RetainedFile<S: Store> {
    store: S,
    memory: Arc<Memory<S::Buffer>>,
    queue: Arc<Queue<S>>,
    /// Held by the thread that makes it stable.
    settling: Mutex<()>,
    itself: Weak<Self>,
    /// Shared by writers; exclusive for retransmission and for changes of the size.
    pub(super) order: RwLock<()>,
    state: Mutex<State<S>>,
    /// Restarts of the server up to which no data is in doubt.
    restarts: AtomicU64,
}

/// Exclusive right to write to the file.
type Alone<'a> = RwLockWriteGuard<'a, ()>;

impl<S: Store> RetainedFile<S> {
    pub(super) fn new(store: S, memory: Arc<Memory<S::Buffer>>, queue: Arc<Queue<S>>) -> Arc<Self> {
        let restarts = store.restarts().into();
        let state = State {
            pieces: Pieces::default(),
            writes: 0,
            verifier: None,
            fresh: Fresh::default(),
            turn: None,
            failures: 0,
            reason: Errno::EIO,
        };
        let (settling, order, state) = (Mutex::default(), RwLock::default(), Mutex::new(state));
        Arc::new_cyclic(|itself| {
            let itself = itself.clone();
            Self { store, memory, queue, settling, itself, order, state, restarts }
        })
    }

    fn with_others(&self) -> RwLockReadGuard<'_, ()> {
        self.order.read()
    }

    fn alone(&self) -> Alone<'_> {
        self.order.write()
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.state.lock().pieces.is_empty()
    }

    /// The losses up to now, which a new user of the file need not be told.
    pub(crate) fn seen(&self) -> Seen {
        Seen(self.state.lock().failures)
    }

    /// Reports a loss to a user who has not seen it.
    pub(crate) fn told(&self, seen: &mut Seen) -> Outcome<()> {
        let state = self.state.lock();
        let now = Seen(state.failures);
        if std::mem::replace(seen, now) == now { Ok(()) } else { Err(state.reason) }
    }

    /// As [`told`](Self::told), without recording the report: a program that closes a duplicate
    /// descriptor may ignore it.
    pub(crate) fn tell(&self, seen: Seen) -> Outcome<()> {
        let state = self.state.lock();
        if seen == Seen(state.failures) { Ok(()) } else { Err(state.reason) }
    }

    /// Writes the front of `data`, and retains it until it is stable. A buffer that is retained is
    /// replaced by another one.
    pub(crate) fn write(
        &self,
        writer: &S::Writer,
        data: &mut S::Buffer,
        len: usize,
        offset: u64,
    ) -> Outcome<()> {
        let is_long = len >= KEPT_UNCOPIED_MIN;
        let bytes = if is_long { WRITE_BYTES_MAX as usize } else { len };
        let Some(charge) = self.room(KEPT_PIECE_COST + bytes) else {
            return self.write_stably(writer, data, len, offset);
        };
        let with_others = self.with_others();
        let write_state = self.store.write(writer, data, 0..len, offset).map_err(Failure::errno)?;
        if write_state == WriteState::Stable {
            self.replaced(data, len, offset);
            return Ok(());
        }
        let other = if is_long { self.spare() } else { None };
        let mut state = self.state.lock();
        state.writes += 1;
        let origin = Origin::new(writer.clone(), write_state, state.writes);
        match other {
            Some(other) => {
                let full = std::mem::replace(data, other);
                state.pieces.take(offset, full, len, origin, charge);
            }
            None => {
                let source = data.slice(0, len).ok_or(Errno::EINVAL)?;
                state.pieces.copy(offset, source, origin, charge);
                self.memory.trim();
            }
        }
        // The verifier differs from that of earlier writes: those are lost.
        let verifier = match write_state {
            WriteState::Unstable(verifier) => Some(verifier),
            WriteState::Stable | WriteState::Lost => None,
        };
        let is_lost = verifier.is_none() || state.verifier.is_some_and(|v| Some(v) != verifier);
        state.verifier = verifier;
        state.fresh.add(len);
        let is_due = self.memory.pace.is_due(&state.fresh);
        self.note(&mut state);
        drop((state, with_others));
        if is_lost {
            // Other clients must not see old content; a program that calls `fsync` gets the error.
            let _ = self.settle();
        } else if is_due && let Some(_settling) = self.settling.try_lock() {
            // After a failure the writes stay retained.
            let _ = self.settle_under(None);
        }
        Ok(())
    }

    /// Writes the front of `data`, stable when this returns.
    pub(crate) fn write_stably(
        &self,
        writer: &S::Writer,
        data: &S::Buffer,
        len: usize,
        offset: u64,
    ) -> Outcome<()> {
        let _with_others = self.with_others();
        self.store.write_stably(writer, data, len, offset).map_err(Failure::errno)?;
        self.replaced(data, len, offset);
        Ok(())
    }

    /// Appends the front of `data` by `append`, which returns its offset; it is stable then. The
    /// server must know the end of the file, so all writes are stable before, and no other thread
    /// writes.
    ///
    /// # Errors
    /// Those of `append`, and of [`settle`](Self::settle).
    pub(crate) fn append(
        &self,
        data: &S::Buffer,
        len: usize,
        append: impl FnOnce(&S::Buffer) -> Outcome<u64>,
    ) -> Outcome<()> {
        let (_alone, settled) = self.settled_alone();
        settled?;
        let offset = append(data)?;
        self.replaced(data, len, offset);
        Ok(())
    }

    /// Releases locks by `unlock`; also reports whether all writes are stable. No thread writes in
    /// between, and unstable writes are never retransmitted: others may overwrite them from then
    /// on. If the server still has them, the next commit finds that nothing is lost.
    pub(crate) fn unlock<T>(&self, unlock: impl FnOnce() -> T) -> (Outcome<()>, T) {
        let (_alone, settled) = self.settled_alone();
        if settled.is_err() {
            self.state.lock().pieces.expose();
        }
        (settled, unlock())
    }

    /// Excludes other writers once no write is retained, unless that fails.
    fn settled_alone(&self) -> (Alone<'_>, Outcome<()>) {
        let _settling = self.settling.lock();
        // Most of it while others write.
        let settled = self.settle_under(None);
        let alone = self.alone();
        let settled = settled.and_then(|()| self.settle_under(Some(&alone)));
        debug_assert!(settled.is_err() || self.state.lock().pieces.is_empty());
        (alone, settled)
    }

    fn replaced(&self, data: &S::Buffer, len: usize, offset: u64) {
        let mut state = self.state.lock();
        if let Some(source) = data.slice(0, len) {
            state.pieces.replaced(offset, source);
        }
        self.note(&mut state);
    }

    /// Changes the size of the file by `change`.
    pub(crate) fn resize<T>(&self, size: u64, change: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
        let _alone = self.alone();
        let done = change();
        let is_cut = match done {
            Ok(_) => true,
            // Data that a lost server has truncated must not come back.
            Err(Errno::ECONNRESET | Errno::ETIMEDOUT) => self.store.size() == Some(size),
            Err(_) => false,
        };
        if is_cut {
            let mut state = self.state.lock();
            state.pieces.cut(size);
            self.note(&mut state);
        }
        done
    }

    /// Another buffer for long writes.
    fn spare(&self) -> Option<S::Buffer> {
        self.memory.take_free().or_else(|| self.store.buffer().ok())
    }

    /// Reserves memory to retain a write; makes the oldest files stable until there is enough.
    /// `None` when the write is better not retained.
    fn room(&self, bytes: usize) -> Option<Charge<S::Buffer>> {
        for _ in 0..KEPT_ATTEMPTS_MAX {
            if let Some(charge) = self.memory.charge(bytes) {
                return Some(charge);
            }
            self.make_room()?;
        }
        None
    }

    /// Makes the oldest idle file stable. A server may take long for one file, and only writers of
    /// that one should wait.
    fn make_room(&self) -> Option<()> {
        for file in self.queue.oldest(KEPT_ATTEMPTS_MAX) {
            let Some(_settling) = file.settling.try_lock() else { continue };
            return file.settle_under(None).ok();
        }
        let is_kept = !self.state.lock().pieces.is_empty();
        if is_kept { self.settle().ok() } else { None }
    }

    /// Enters or leaves the queue, after a change.
    fn note(&self, state: &mut State<S>) {
        match (state.pieces.is_empty(), state.turn) {
            (false, None) => {
                let mut queue = self.queue.lock();
                let (next, files) = &mut *queue;
                files.insert(*next, self.itself.clone());
                state.turn = Some(*next);
                *next += 1;
            }
            (true, Some(turn)) => {
                self.queue.lock().1.remove(&turn);
                state.turn = None;
            }
            _ => {}
        }
        if state.pieces.is_empty() {
            state.verifier = None;
            state.fresh = Fresh::default();
        }
    }

    /// Makes all writes to the file stable; retransmits them, if need be. A final loss is reported
    /// by [`told`](Self::told), and is no error of this.
    ///
    /// # Errors
    /// The server cannot be asked now; all writes stay retained.
    pub(crate) fn settle(&self) -> Outcome<()> {
        let _settling = self.settling.lock();
        self.settle_under(None)
    }

    /// As [`settle`](Self::settle), for a thread that holds `settling` and may be `alone`.
    fn settle_under(&self, alone: Option<&Alone<'_>>) -> Outcome<()> {
        for _ in 0..KEPT_ATTEMPTS_MAX {
            let restarts = self.store.restarts();
            let (number, fresh) = {
                let mut state = self.state.lock();
                if state.pieces.is_empty() {
                    return Ok(());
                }
                (state.writes, std::mem::take(&mut state.fresh))
            };
            let begun = Instant::now();
            let verifier = match self.store.commit() {
                Ok(verifier) => verifier,
                Err(Failure::Passing(errno)) => return Err(errno),
                Err(Failure::Final(errno)) => {
                    self.lose(errno, alone);
                    return Ok(());
                }
            };
            self.memory.pace.learn(&fresh, begun, begun.elapsed());
            let is_lost = {
                let mut state = self.state.lock();
                let is_lost = state.pieces.committed(number, verifier);
                self.note(&mut state);
                is_lost
            };
            if !is_lost {
                self.restarts.store(restarts, Ordering::Release);
                return Ok(());
            }
            match self.write_again(verifier, alone) {
                Ok(()) => {}
                Err(Failure::Passing(errno)) => return Err(errno),
                Err(Failure::Final(errno)) => {
                    self.lose(errno, alone);
                    return Ok(());
                }
            }
        }
        self.lose(Errno::EIO, alone);
        Ok(())
    }

    /// Makes all stable if the server has restarted since that was done last: neither others nor
    /// this mount may see the content from before.
    ///
    /// # Errors
    /// As [`settle`](Self::settle).
    pub(crate) fn settle_after_restart(&self) -> Outcome<()> {
        if !self.is_in_doubt() {
            return Ok(());
        }
        let restarts = self.store.restarts();
        self.settle()?;
        self.restarts.store(restarts, Ordering::Release);
        Ok(())
    }

    /// True when the server's last answers may be from before a retransmission.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.restarts.load(Ordering::Acquire) != self.store.restarts()
    }

    /// Retransmits pieces that were not written under the verifier. Pieces that the server refuses
    /// are lost.
    ///
    /// # Errors
    /// Those that concern all pieces.
    fn write_again(&self, verifier: Verifier, alone: Option<&Alone<'_>>) -> Result<(), Failure> {
        let _alone = alone.is_none().then(|| self.alone());
        let mut state = self.state.lock();
        let (pieces, number) = (std::mem::take(&mut state.pieces), state.writes);
        drop(state);
        let mut taken = Taken { file: self, pieces, number };
        let Taken { pieces, number, .. } = &mut taken;
        let mut count = 0_usize;
        let mut refused = Vec::new();
        // Short ones go through a buffer that the server can reach.
        let mut through = None;
        for (offset, piece) in pieces.iter_mut() {
            if piece.origin.write_state == WriteState::Unstable(verifier) {
                continue;
            }
            if piece.origin.is_exposed {
                refused.push((offset, Errno::EIO));
                continue;
            }
            // Checked each time: it may take long, and others may get access to the file meanwhile.
            if !self.store.may_write_again() {
                return Err(Failure::Final(Errno::EIO));
            }
            let written = match &mut piece.data {
                Data::Received(received) => {
                    let range = received.start..received.start + piece.len;
                    let buffer = received.buffer().ok_or(Failure::Final(Errno::EIO))?;
                    let written = self.store.write(&piece.origin.writer, buffer, range, offset);
                    if written.is_err() {
                        received.mark_unsafe();
                    }
                    written
                }
                Data::Copied(bytes) => {
                    let buffer = match through.take() {
                        Some(buffer) => buffer,
                        None => self.spare().ok_or(Failure::Passing(Errno::ENOMEM))?,
                    };
                    let place = buffer.slice(0, bytes.len());
                    let place = place.ok_or(Failure::Final(Errno::EIO))?;
                    place.copy_from(bytes, Site::MountKept);
                    let writer = &piece.origin.writer;
                    // The buffer is not reused after a failure.
                    let written = self.store.write(writer, &buffer, 0..bytes.len(), offset);
                    through = written.is_ok().then_some(buffer);
                    written
                }
            };
            *number += 1;
            count += 1;
            let write_state = match written {
                Ok(write_state) => write_state,
                Err(Failure::Final(errno)) => {
                    refused.push((offset, errno));
                    continue;
                }
                Err(passing) => return Err(passing),
            };
            piece.origin = Origin::new(piece.origin.writer.clone(), write_state, *number);
        }
        for (offset, _) in &refused {
            pieces.remove(*offset);
        }
        if let Some(buffer) = through {
            self.memory.put_free(buffer);
        }
        tracing::info!(count, "the server has lost what was not stable; it was written again");
        drop(taken);
        let mut state = self.state.lock();
        state.verifier = None;
        if let Some((_, reason)) = refused.last() {
            self.fail(&mut state, *reason);
        }
        self.note(&mut state);
        Ok(())
    }

    /// Drops retained writes that cannot be made stable.
    fn lose(&self, reason: Errno, alone: Option<&Alone<'_>>) {
        let _alone = alone.is_none().then(|| self.alone());
        let mut state = self.state.lock();
        // They may have been truncated or overwritten meanwhile.
        if !state.pieces.is_empty() {
            state.pieces = Pieces::default();
            self.fail(&mut state, reason);
        }
        self.note(&mut state);
    }

    fn fail(&self, state: &mut State<S>, reason: Errno) {
        tracing::warn!(?reason, file = ?self.store, "what was written to a file is lost");
        state.failures += 1;
        state.reason = reason;
    }
}

/// Pieces that are being retransmitted, which go back whatever the outcome.
struct Taken<'a, S: Store> {
    file: &'a RetainedFile<S>,
    pieces: Pieces<S::Writer, S::Buffer>,
    /// Number of the last write.
    number: u64,
}

impl<S: Store> Drop for Taken<'_, S> {
    fn drop(&mut self) {
        let mut state = self.file.state.lock();
        // No thread adds pieces meanwhile.
        debug_assert!(state.pieces.is_empty());
        self.pieces.drop_stable();
        state.pieces = std::mem::take(&mut self.pieces);
        // Also those that were written before one failed.
        state.writes = self.number;
    }
}

impl<S: Store> Drop for RetainedFile<S> {
    fn drop(&mut self) {
        let state = self.state.lock();
        if let Some(turn) = state.turn {
            tracing::warn!(file = ?self.store, "a file is closed whose data may not be stable");
            self.queue.lock().1.remove(&turn);
        }
    }
}
