//! Completion groups: results of operations that a program collects together.
//!
//! Invariants
//! * Every operation that was submitted to a group yields exactly one completion, also when the
//!   session ends.
//! * The event descriptor is readable exactly while there are completions to fetch.
//! * Operations in flight and completions not fetched are bounded together, so a group that is
//!   never polled does not grow.

use crate::attributes::Stability;
use crate::batch::Batch;
use crate::buffer::IoBuffer;
use crate::client::Client;
use crate::error::{Error, Result};
use crate::file::File;
use crate::fork::ForkMutex;
use crate::limits::GROUP_OPERATIONS_MAX;
use crate::span::Span;
use crate::wakeup::Wakeup;
use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Operations whose results are fetched together, by any thread. Clones are the same group.
///
/// ```no_run
/// # use dafs_client::{Client, ConnectOptions, DafsUrl, OpenOptions};
/// # let url = DafsUrl::parse("dafs://server/tree/file")?;
/// # let client = Client::connect(&url, &ConnectOptions::default())?;
/// let file = client.open(url.path(), &OpenOptions::read())?;
/// let buffer = client.buffer(1 << 20)?;
/// let group = client.completion_group();
/// for block in 0..16 {
///     let at = block * 65536;
///     group.read(block as u64, &file, &buffer, at..at + 65536, at as u64)?;
/// }
/// let mut completions = Vec::new();
/// group.wait(&mut completions, usize::MAX, None)?;
/// for completion in completions {
///     println!("block {}: {} bytes", completion.user_data, completion.result?);
/// }
/// # Ok::<(), dafs_client::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct CompletionGroup {
    client: Client,
    state: Arc<GroupState>,
}

/// One completed operation.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Completion {
    /// The value that the caller gave with the operation.
    pub user_data: u64,
    /// Its id, as the submission returned it.
    pub operation: OperationId,
    /// The bytes moved, which may be fewer than asked for; 0 for a commit; for an append, which is
    /// atomic, its offset in the file.
    pub result: Result<usize>,
}

/// The id of an operation of one client; no id is used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OperationId(pub(crate) u64);

impl OperationId {
    /// The id of no operation.
    pub(crate) const NONE: Self = Self(u64::MAX);

    /// As a number, for interfaces to other languages.
    pub fn to_u64(self) -> u64 {
        self.0
    }

    /// The inverse of [`to_u64`](Self::to_u64); any other number names no operation.
    pub fn from_u64(number: u64) -> Self {
        Self(number)
    }
}

/// The part that operations refer to.
#[derive(Debug, Default)]
pub(crate) struct GroupState {
    ready: ForkMutex<VecDeque<Completion>>,
    in_flight: AtomicUsize,
    /// Operations in flight, and completions not fetched yet.
    held: AtomicUsize,
    event: OnceLock<Wakeup>,
    /// A thread sleeps on the descriptor, so the mover thread must make progress for it.
    watched: AtomicBool,
    /// The program polls after it has submitted.
    polled: AtomicBool,
}

impl GroupState {
    /// Reserves room for `count` more operations: each becomes a completion, or is given back.
    ///
    /// # Errors
    /// [`Error::TooMany`]: there is no room.
    pub(crate) fn reserve(&self, count: usize) -> Result<()> {
        let take =
            |held: usize| held.checked_add(count).filter(|held| *held <= GROUP_OPERATIONS_MAX);
        let taken = self.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        taken.map_err(|_| Error::TooMany).map(drop)
    }

    /// Gives back reserved room that was not used.
    pub(crate) fn give_back(&self, count: usize) {
        self.held.fetch_sub(count, Ordering::Relaxed);
    }

    /// Counts operations that started in reserved room.
    pub(crate) fn begun(&self, count: usize) {
        self.in_flight.fetch_add(count, Ordering::Relaxed);
    }

    /// Takes back [`begun`](Self::begun): the operations did not start. Their room stays reserved.
    pub(crate) fn not_begun(&self, count: usize) {
        self.in_flight.fetch_sub(count, Ordering::Relaxed);
    }

    /// Ends operations that [`begun`](Self::begun) counted.
    pub(crate) fn finished(&self, completions: impl IntoIterator<Item = Completion>) {
        let mut ready = self.ready.lock_here();
        let before = ready.len();
        ready.extend(completions);
        self.in_flight.fetch_sub(ready.len() - before, Ordering::Relaxed);
        if before == 0
            && !ready.is_empty()
            && let Some(event) = self.event.get()
        {
            event.ring();
        }
    }

    /// Completes operations that could not be submitted with this error, in room that was reserved
    /// for them. Called under the lock of the driver, because waiters of the group must be woken.
    pub(crate) fn refuse(&self, user_data: &[u64], error: &Error) {
        self.begun(user_data.len());
        self.finished(user_data.iter().map(|&user_data| Completion {
            user_data,
            operation: OperationId::NONE,
            result: Err(error.clone()),
        }));
    }

    /// Puts completions that were taken back, ahead of all others. Called under the lock of the
    /// driver, because waiters of the group must be woken.
    pub(crate) fn put_back(&self, completions: Vec<Completion>) {
        let mut ready = self.ready.lock_here();
        let was_empty = ready.is_empty();
        self.held.fetch_add(completions.len(), Ordering::Relaxed);
        completions.into_iter().rev().for_each(|completion| ready.push_front(completion));
        if was_empty
            && !ready.is_empty()
            && let Some(event) = self.event.get()
        {
            event.ring();
        }
    }

    pub(crate) fn is_watched(&self) -> bool {
        self.watched.load(Ordering::Relaxed)
    }

    pub(crate) fn is_polled(&self) -> bool {
        self.polled.load(Ordering::Relaxed)
    }

    fn take(&self, completions: &mut Vec<Completion>, max: usize) -> usize {
        // A fork has no operations of its own.
        let Ok(mut ready) = self.ready.lock() else { return 0 };
        let count = ready.len().min(max);
        if count == 0 {
            return 0;
        }
        completions.extend(ready.drain(..count));
        if ready.is_empty()
            && let Some(event) = self.event.get()
        {
            event.clear();
        }
        self.held.fetch_sub(count, Ordering::Relaxed);
        count
    }
}

impl Client {
    /// A new completion group.
    pub fn completion_group(&self) -> CompletionGroup {
        CompletionGroup { client: self.clone(), state: Arc::default() }
    }
}

impl CompletionGroup {
    /// The client whose operations the group takes.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Starts a read into `range` of `buffer`, as [`File::submit_read`].
    ///
    /// The cheapest way to keep many operations in flight: those submitted between two polls leave
    /// together with the second.
    ///
    /// # Errors
    /// As [`File::submit_read`]; [`Error::TooMany`] also when more than [`GROUP_OPERATIONS_MAX`]
    /// are in flight or wait to be fetched.
    pub fn read(
        &self,
        user_data: u64,
        file: &File,
        buffer: &IoBuffer,
        range: Range<usize>,
        offset: u64,
    ) -> Result<OperationId> {
        self.check(file)?;
        file.read_in(&self.state, user_data, &Span { buffer, range, offset })
    }

    /// Starts a write of `range` of `buffer`, as [`File::submit_write`].
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn write(
        &self,
        user_data: u64,
        file: &File,
        buffer: &IoBuffer,
        range: Range<usize>,
        offset: u64,
        stability: Stability,
    ) -> Result<OperationId> {
        self.check(file)?;
        file.write_in(&self.state, user_data, &Span { buffer, range, offset }, stability)
    }

    /// Starts to make `len` bytes from `offset` stable (0: to the end of the file), as
    /// [`File::commit`]. Writes that are in flight now are not covered. Dirty data of the client's
    /// cache is written back before this returns.
    ///
    /// # Errors
    /// As [`read`](Self::read), and those of the write-back.
    pub fn commit(
        &self,
        user_data: u64,
        file: &File,
        offset: u64,
        len: u64,
    ) -> Result<OperationId> {
        self.check(file)?;
        file.commit_in(&self.state, user_data, offset, len)
    }

    /// Starts to append `range` of `buffer` to the file, as [`File::append_from`]. The server may
    /// carry out several in flight in any order.
    ///
    /// # Errors
    /// As [`read`](Self::read), and as [`File::append_from`] for invalid arguments.
    pub fn append(
        &self,
        user_data: u64,
        file: &File,
        buffer: &IoBuffer,
        range: Range<usize>,
        stability: Stability,
    ) -> Result<OperationId> {
        self.check(file)?;
        file.append_in(&self.state, user_data, buffer, range, stability)
    }

    /// Sends a batch; each of its transfers has a completion of its own, with the value that
    /// `user_data` returns for its index in the batch.
    ///
    /// # Errors
    /// As [`Batch::submit`], and as [`read`](Self::read): nothing was sent then. A batch that was
    /// sent in part is no error here: each of its transfers has a completion that says what
    /// happened.
    pub fn batch(
        &self,
        batch: Batch,
        user_data: impl FnMut(usize) -> u64,
    ) -> Result<Vec<OperationId>> {
        self.client.shared().check_process()?;
        if !batch.is_of(&self.client) {
            return Err(Error::ForeignFile);
        }
        batch.submit_in(&self.state, user_data)
    }

    /// Makes progress and appends finished operations to `completions`; returns how many. Never
    /// blocks, and makes no system call that its transport does not need. Over shared memory it
    /// makes one to wake a server that sleeps, and one at each 128th poll, or after 20
    /// microseconds, to detect that the server has gone. Over TCP each poll tries to receive.
    pub fn poll(&self, completions: &mut Vec<Completion>) -> usize {
        self.poll_up_to(completions, usize::MAX)
    }

    /// As [`poll`](Self::poll), for up to `max` completions; the others stay to be fetched.
    pub fn poll_up_to(&self, completions: &mut Vec<Completion>, max: usize) -> usize {
        let shared = self.client.shared();
        if shared.check_process().is_err() {
            return 0;
        }
        // A poll sends queued submissions, even when results wait already.
        shared.move_along(self.state.in_flight.load(Ordering::Relaxed) > 0);
        self.state.take(completions, max)
    }

    /// As [`poll`](Self::poll), but waits until at least `count` have been fetched or the group has
    /// no operation in flight any more, as the wait policy says: 1 waits for any, `usize::MAX` for
    /// all. Several threads may wait; each completion goes to one of them.
    ///
    /// # Errors
    /// [`Error::TimedOut`] when `time` has passed first; finished operations are in `completions`.
    /// A `time` of zero polls once.
    pub fn wait(
        &self,
        completions: &mut Vec<Completion>,
        count: usize,
        time: Option<Duration>,
    ) -> Result<usize> {
        self.wait_up_to(completions, count, usize::MAX, time)
    }

    /// As [`wait`](Self::wait), for up to `max` completions; the others stay to be fetched.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub fn wait_up_to(
        &self,
        completions: &mut Vec<Completion>,
        count: usize,
        max: usize,
        time: Option<Duration>,
    ) -> Result<usize> {
        let (mut fetched, count) = (0, count.min(max));
        let shared = self.client.shared();
        if count == 0 {
            shared.check_process()?;
            return Ok(self.poll_up_to(completions, max));
        }
        shared.wait_any(time, |_| {
            fetched += self.state.take(completions, max - fetched);
            let over = fetched >= count || self.state.in_flight.load(Ordering::Relaxed) == 0;
            over.then_some(fetched)
        })
    }

    /// Gives completions back that were fetched and could not be passed on: they are fetched again,
    /// ahead of all others.
    pub fn put_back(&self, completions: Vec<Completion>) {
        if self.client.shared().check_process().is_ok() {
            self.client.shared().put_back_in(&self.state, completions);
        }
    }

    /// Promises a poll soon after submissions, as an event loop can make one at the end of each turn.
    /// Until then submissions gather also while a thread of the client's sleeps on behalf of
    /// [`descriptor`](Self::descriptor). Without the promise each of them is sent at once in that
    /// case. Those that no poll sends leave some milliseconds later.
    pub fn promise_polls(&self) {
        self.state.polled.store(true, Ordering::Relaxed);
    }

    /// Operations in flight; those that are over and wait to be fetched are not among them.
    pub fn in_flight(&self) -> usize {
        self.state.in_flight.load(Ordering::Relaxed)
    }

    /// Cancels an operation if the server cannot reach its memory now, else asks the server to take
    /// it out, as [`Pending::cancel`] says; true when it is over. Its completion comes in any case,
    /// and says whether it happened.
    ///
    /// [`Pending::cancel`]: crate::Pending::cancel
    pub fn cancel(&self, operation: OperationId) -> bool {
        self.client.shared().cancel_tag(operation.0)
    }

    /// Asks the server not to wait any longer for the window of an asynchronous batch, for one of
    /// its transfers (HURRY_UP).
    ///
    /// # Errors
    /// The end of the session.
    pub fn expedite(&self, operation: OperationId) -> Result<()> {
        self.client.shared().hurry_tag(operation.0)
    }

    /// A descriptor that is readable while completions wait to be fetched, for `epoll` and its
    /// like. Only its readiness has a meaning; it must not be read. From the first call on, a
    /// thread of the client's makes progress for the group, so a caller that can wait or poll is
    /// faster without.
    ///
    /// # Errors
    /// No descriptor or thread could be had, or this process is a fork.
    pub fn descriptor(&self) -> Result<BorrowedFd<'_>> {
        let shared = self.client.shared();
        shared.check_process()?;
        let memory = |error: std::io::Error| Error::Memory(error.to_string().into());
        // First, so that a group marked as watched can rely on the thread.
        shared.start_mover()?;
        if self.state.event.get().is_none() {
            let event = Wakeup::new().map_err(memory)?;
            let ready = self.state.ready.lock()?;
            if !ready.is_empty() {
                event.ring();
            }
            // Another thread may have won the race; then this event is dropped.
            let _ = self.state.event.set(event);
        }
        if !self.state.watched.swap(true, Ordering::Relaxed) {
            shared.watch_group(&self.state);
        }
        let event = self.state.event.get().map(Wakeup::descriptor);
        event.ok_or(Error::Argument("the group has no descriptor"))
    }

    /// Holds the lock, for tests.
    #[cfg(test)]
    pub(crate) fn hold(&self) -> std::sync::MutexGuard<'_, VecDeque<Completion>> {
        self.state.ready.lock_here()
    }

    fn check(&self, file: &File) -> Result<()> {
        self.client.shared().check_process()?;
        file.check_of(&self.client)
    }
}

#[cfg(test)]
mod tests;
