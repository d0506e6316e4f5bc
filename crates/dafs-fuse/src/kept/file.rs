//! One file: written to, made stable, written again.
//!
//! Invariants
//! * Locks are taken in this order: `settling`, `order`, `state`, the queue. Nobody waits for the server
//!   under the last two.

use super::memory::{Charge, Memory, Reachable};
use super::pieces::{Data, Origin, Pieces};
use crate::kernel::Errno;
use crate::limits::{KEPT_ATTEMPTS_MAX, KEPT_PIECE_COST, KEPT_UNCOPIED_MIN, WRITE_BYTES_MAX};
use crate::tree::Outcome;
use dafs_client::{Standing, Verifier};
use dafs_mem::Site;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError,
    Weak,
};

/// Why something was not done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    /// It may work later.
    Passing(Errno),
    /// The server will not do it.
    Final(Errno),
}

impl Failure {
    pub(crate) fn errno(self) -> Errno {
        match self {
            Self::Passing(errno) | Self::Final(errno) => errno,
        }
    }
}

/// What the server does for one file.
pub(crate) trait Store: Debug {
    /// An open of the file.
    type Writer: Clone + Debug;
    /// Memory that it reaches.
    type Buffer: Reachable + Debug;

    fn write(
        &self,
        writer: &Self::Writer,
        from: &Self::Buffer,
        range: Range<usize>,
        offset: u64,
    ) -> Result<Standing, Failure>;

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

    /// False when others may have been let to the file against our locks.
    fn may_write_again(&self) -> bool;

    /// How long the file is there, if that can be asked.
    fn size(&self) -> Option<u64>;

    /// How often the server is known to have restarted.
    fn restarts(&self) -> u64;
}

/// Failures that somebody has been told of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen(u64);

impl Seen {
    /// Somebody who is yet to be told.
    pub(crate) const NOTHING: Self = Self(u64::MAX);
}

#[derive(Debug)]
struct State<S: Store> {
    pieces: Pieces<S::Writer, S::Buffer>,
    /// Number of the last write.
    writes: u64,
    /// The verifier of the last write, while anything is kept.
    verifier: Option<Verifier>,
    /// Place in the queue, while anything is kept.
    turn: Option<u64>,
    /// How often something was lost, and why the last time.
    failures: u64,
    reason: Errno,
}

type Waiting<S> = (u64, BTreeMap<u64, Weak<KeptFile<S>>>);

/// The files that have something kept, oldest first, and the next place.
#[derive(Debug)]
pub(super) struct Queue<S: Store>(Mutex<Waiting<S>>);

impl<S: Store> Default for Queue<S> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<S: Store> Queue<S> {
    fn lock(&self) -> MutexGuard<'_, Waiting<S>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn all(&self) -> Vec<Arc<KeptFile<S>>> {
        self.lock().1.values().filter_map(Weak::upgrade).collect()
    }

    fn oldest(&self, count: usize) -> Vec<Arc<KeptFile<S>>> {
        self.lock().1.values().filter_map(Weak::upgrade).take(count).collect()
    }
}

/// A file that somebody has open, and what is kept of it.
#[derive(Debug)]
pub(crate) struct KeptFile<S: Store> {
    store: S,
    memory: Arc<Memory<S::Buffer>>,
    queue: Arc<Queue<S>>,
    /// Held by the one who makes it stable.
    settling: Mutex<()>,
    itself: Weak<Self>,
    /// Shared by those who write; for one alone who writes again or changes the size.
    pub(super) order: RwLock<()>,
    state: Mutex<State<S>>,
    /// Restarts of the server after which nothing was in doubt.
    restarts: AtomicU64,
}

/// Nobody else writes to the file.
type Alone<'a> = RwLockWriteGuard<'a, ()>;

impl<S: Store> KeptFile<S> {
    pub(super) fn new(store: S, memory: Arc<Memory<S::Buffer>>, queue: Arc<Queue<S>>) -> Arc<Self> {
        let restarts = store.restarts().into();
        let state = State {
            pieces: Pieces::default(),
            writes: 0,
            verifier: None,
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

    fn state(&self) -> MutexGuard<'_, State<S>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with_others(&self) -> RwLockReadGuard<'_, ()> {
        self.order.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn alone(&self) -> Alone<'_> {
        self.order.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn settling(&self) -> MutexGuard<'_, ()> {
        self.settling.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.state().pieces.is_empty()
    }

    /// What somebody who opens the file now need not be told any more.
    pub(crate) fn seen(&self) -> Seen {
        Seen(self.state().failures)
    }

    /// That something was lost, told to each who has not seen it.
    pub(crate) fn told(&self, seen: &mut Seen) -> Outcome<()> {
        let state = self.state();
        let now = Seen(state.failures);
        if std::mem::replace(seen, now) == now { Ok(()) } else { Err(state.reason) }
    }

    /// The same without its counting as told: who closes one of several descriptors may not listen.
    pub(crate) fn tell(&self, seen: Seen) -> Outcome<()> {
        let state = self.state();
        if seen == Seen(state.failures) { Ok(()) } else { Err(state.reason) }
    }

    /// Writes what is at the front of `data`, and keeps it until it is stable. A buffer that is kept is
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
        let standing = self.store.write(writer, data, 0..len, offset).map_err(Failure::errno)?;
        if standing == Standing::Stable {
            self.replaced(data, len, offset);
            return Ok(());
        }
        let other = if is_long { self.spare() } else { None };
        let mut state = self.state();
        state.writes += 1;
        let origin = Origin::new(writer.clone(), standing, state.writes);
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
        // Another one than of what was written before: that is lost.
        let verifier = match standing {
            Standing::Unstable(verifier) => Some(verifier),
            Standing::Stable | Standing::Lost => None,
        };
        let is_lost = verifier.is_none() || state.verifier.is_some_and(|v| Some(v) != verifier);
        state.verifier = verifier;
        self.note(&mut state);
        drop((state, with_others));
        if is_lost {
            // Others are not to see what was there before; who asks for it hears whether that worked.
            let _ = self.settle();
        }
        Ok(())
    }

    /// Writes what is at the front of `data`, stable when this returns.
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

    /// Appends what is at the front of `data` in whichever way `append` does that, which tells where it
    /// is; it is stable then. The server has to know where the file ends, so all is stable before, and
    /// nobody else writes.
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

    /// Gives up locks in whichever way `unlock` does that; tells also whether all is stable. Nobody writes
    /// in between, and what is not stable is not written again: others may write over it from then on. If
    /// the server still has it, the next who makes it stable finds that nothing is lost.
    pub(crate) fn unlock<T>(&self, unlock: impl FnOnce() -> T) -> (Outcome<()>, T) {
        let (_alone, settled) = self.settled_alone();
        if settled.is_err() {
            self.state().pieces.expose();
        }
        (settled, unlock())
    }

    /// Keeps all others from writing when nothing is kept, unless that fails.
    fn settled_alone(&self) -> (Alone<'_>, Outcome<()>) {
        let _settling = self.settling();
        // Most of it while others write.
        let settled = self.settle_under(None);
        let alone = self.alone();
        let settled = settled.and_then(|()| self.settle_under(Some(&alone)));
        debug_assert!(settled.is_err() || self.state().pieces.is_empty());
        (alone, settled)
    }

    fn replaced(&self, data: &S::Buffer, len: usize, offset: u64) {
        let mut state = self.state();
        if let Some(source) = data.slice(0, len) {
            state.pieces.replaced(offset, source);
        }
        self.note(&mut state);
    }

    /// Changes the size of the file in whichever way `change` does that.
    pub(crate) fn resize<T>(&self, size: u64, change: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
        let _alone = self.alone();
        let done = change();
        let is_cut = match done {
            Ok(_) => true,
            // What a server has cut that does not know it any more is not to come back.
            Err(Errno::ECONNRESET | Errno::ETIMEDOUT) => self.store.size() == Some(size),
            Err(_) => false,
        };
        if is_cut {
            let mut state = self.state();
            state.pieces.cut(size);
            self.note(&mut state);
        }
        done
    }

    /// Another buffer for long writes.
    fn spare(&self) -> Option<S::Buffer> {
        self.memory.take_free().or_else(|| self.store.buffer().ok())
    }

    /// Room for something to be kept; makes the oldest stable until there is enough. `None` when it is
    /// better not to keep it.
    fn room(&self, bytes: usize) -> Option<Charge<S::Buffer>> {
        for _ in 0..KEPT_ATTEMPTS_MAX {
            if let Some(charge) = self.memory.charge(bytes) {
                return Some(charge);
            }
            self.make_room()?;
        }
        None
    }

    /// Makes the oldest stable that nobody is at: a server may take long for one file, and only those who
    /// write to that one are to wait.
    fn make_room(&self) -> Option<()> {
        for file in self.queue.oldest(KEPT_ATTEMPTS_MAX) {
            let Some(_settling) = file.try_settling() else { continue };
            return file.settle_under(None).ok();
        }
        let is_kept = !self.state().pieces.is_empty();
        if is_kept { self.settle().ok() } else { None }
    }

    fn try_settling(&self) -> Option<MutexGuard<'_, ()>> {
        match self.settling.try_lock() {
            Ok(settling) => Some(settling),
            Err(TryLockError::Poisoned(settling)) => Some(settling.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Takes or leaves the place in the queue, after a change.
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
        }
    }

    /// Makes all stable that was written to the file; writes it again, if need be. What is lost
    /// for good is an error to be [`told`](Self::told), not one of this.
    ///
    /// # Errors
    /// The server cannot be asked now; all is kept.
    pub(crate) fn settle(&self) -> Outcome<()> {
        let _settling = self.settling();
        self.settle_under(None)
    }

    /// The same, for who makes it stable already and may be `alone`.
    fn settle_under(&self, alone: Option<&Alone<'_>>) -> Outcome<()> {
        for _ in 0..KEPT_ATTEMPTS_MAX {
            let restarts = self.store.restarts();
            let number = {
                let state = self.state();
                if state.pieces.is_empty() {
                    return Ok(());
                }
                state.writes
            };
            let verifier = match self.store.commit() {
                Ok(verifier) => verifier,
                Err(Failure::Passing(errno)) => return Err(errno),
                Err(Failure::Final(errno)) => {
                    self.lose(errno, alone);
                    return Ok(());
                }
            };
            let is_lost = {
                let mut state = self.state();
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

    /// Makes all stable if the server has restarted since that was done last: others, and we ourselves,
    /// are not to see what was there before.
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

    /// True when what the server told last may be from before something was written again.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.restarts.load(Ordering::Acquire) != self.store.restarts()
    }

    /// Writes again what was not written under the verifier. What the server will not write is lost.
    ///
    /// # Errors
    /// Of what concerns all.
    fn write_again(&self, verifier: Verifier, alone: Option<&Alone<'_>>) -> Result<(), Failure> {
        let _alone = alone.is_none().then(|| self.alone());
        let mut state = self.state();
        let (pieces, number) = (std::mem::take(&mut state.pieces), state.writes);
        drop(state);
        let mut taken = Taken { file: self, pieces, number };
        let Taken { pieces, number, .. } = &mut taken;
        let mut count = 0_usize;
        let mut refused = Vec::new();
        // Short ones go through a buffer that the server reaches.
        let mut through = None;
        for (offset, piece) in pieces.iter_mut() {
            if piece.origin.standing == Standing::Unstable(verifier) {
                continue;
            }
            if piece.origin.is_exposed {
                refused.push((offset, Errno::EIO));
                continue;
            }
            // Each time: it may take long, and others are let to the file meanwhile.
            if !self.store.may_write_again() {
                return Err(Failure::Final(Errno::EIO));
            }
            let written = match &mut piece.data {
                Data::Received(received) => {
                    let range = received.start..received.start + piece.len;
                    let buffer = received.buffer().ok_or(Failure::Final(Errno::EIO))?;
                    let written = self.store.write(&piece.origin.writer, buffer, range, offset);
                    if written.is_err() {
                        received.spoil();
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
                    // After a failure it is not used again.
                    let written = self.store.write(writer, &buffer, 0..bytes.len(), offset);
                    through = written.is_ok().then_some(buffer);
                    written
                }
            };
            *number += 1;
            count += 1;
            let standing = match written {
                Ok(standing) => standing,
                Err(Failure::Final(errno)) => {
                    refused.push((offset, errno));
                    continue;
                }
                Err(passing) => return Err(passing),
            };
            piece.origin = Origin::new(piece.origin.writer.clone(), standing, *number);
        }
        for (offset, _) in &refused {
            pieces.remove(*offset);
        }
        if let Some(buffer) = through {
            self.memory.put_free(buffer);
        }
        tracing::info!(count, "the server has lost what was not stable; it was written again");
        drop(taken);
        let mut state = self.state();
        state.verifier = None;
        if let Some((_, reason)) = refused.last() {
            self.fail(&mut state, *reason);
        }
        self.note(&mut state);
        Ok(())
    }

    /// What is kept cannot be made stable.
    fn lose(&self, reason: Errno, alone: Option<&Alone<'_>>) {
        let _alone = alone.is_none().then(|| self.alone());
        let mut state = self.state();
        // It may have been cut or written over meanwhile.
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

/// Pieces that are written again, which go back whatever becomes of that.
struct Taken<'a, S: Store> {
    file: &'a KeptFile<S>,
    pieces: Pieces<S::Writer, S::Buffer>,
    /// Number of the last write.
    number: u64,
}

impl<S: Store> Drop for Taken<'_, S> {
    fn drop(&mut self) {
        let mut state = self.file.state();
        // Nobody adds any meanwhile.
        debug_assert!(state.pieces.is_empty());
        self.pieces.drop_stable();
        state.pieces = std::mem::take(&mut self.pieces);
        // Also of those that were written before one failed.
        state.writes = self.number;
    }
}

impl<S: Store> Drop for KeptFile<S> {
    fn drop(&mut self) {
        let state = self.state();
        if let Some(turn) = state.turn {
            tracing::warn!(file = ?self.store, "a file is closed whose data may not be stable");
            self.queue.lock().1.remove(&turn);
        }
    }
}
