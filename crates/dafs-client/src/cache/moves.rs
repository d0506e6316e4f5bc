//! Requests that fill the memory of the cache, and that write dirty data back.
//!
//! Invariants
//! * Each request ends once: by the thread that waits for it, or by one that finds it done.
//! * A thread that waits for a request holds no lock that its end needs, so there is no deadlock.

use super::Cache;
use super::content::{FileId, TransferId};
use super::state::{Order, Owner, State};
use crate::attributes::{FileHandle, Stability};
use crate::backoff::Backoff;
use crate::buffer;
use crate::client::Client;
use crate::core::{ReadCall, WriteCall};
use crate::error::{Error, Result};
use crate::limit::{self, Limit};
use crate::limits::{CACHE_SLAB_BYTES, PIPELINE_BYTES, PIPELINE_DEPTH, STOP_PERIOD};
use crate::opened::Opened;
use crate::optimistic::ReadStart;
use crate::pending::Pending;
use dafs_dat::Instant;
use dafs_wire::dafs::StateId;
use std::ops::Range;
use std::time::Duration;

/// The time that an interruptible caller waits at once.
const LONG: Duration = Duration::from_secs(3600);

/// The time limit of a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WaitLimit {
    /// None, because others rely on it.
    Endless,
    /// The caller's limit.
    OfCaller,
}

/// Dirty data that is sent before the first wait, in bytes.
const FLUSH_BYTES: u64 = (PIPELINE_BYTES * PIPELINE_DEPTH) as u64;

impl Cache {
    /// Sends reads for an open file. A hit takes the place of a request and its answer: its bytes are
    /// those of one moment after the order, and are entered or discarded by the same rules.
    pub(super) fn send_reads(&self, reader: &Opened, orders: Vec<Order>) {
        let (client, shared) = (&reader.client, reader.client.shared());
        let limit = client.read_bytes_max();
        let (handle, state_id, hint) = (reader.handle, reader.state_id, reader.hint.get());
        let mut is_sent = false;
        for Order { transfer, buffer } in orders {
            let range = memory_range(&transfer.memory);
            let piece = shared.piece(&buffer, range, transfer.offset, limit);
            let pending = piece.and_then(|into| {
                let call = ReadCall { handle, state_id, offset: transfer.offset, into, hint };
                let read = reader.start_read(call);
                is_sent |= matches!(read, ReadStart::Request(_));
                Pending::read_ahead(shared, read)
            });
            self.started(transfer.id, pending);
        }
        if is_sent {
            shared.send_ahead();
        }
    }

    fn send_writes(&self, client: &Client, writer: &Writer, orders: Vec<Order>) {
        let Writer { handle, owner, delegation } = writer;
        let (handle, delegation) = (*handle, Some(*delegation));
        let limit = client.write_bytes_max();
        let (state_id, hint) = (owner.state_id, owner.hint.get());
        for Order { transfer, buffer } in orders {
            let range = memory_range(&transfer.memory);
            let piece = client.shared().piece(&buffer, range, transfer.offset, limit);
            let pending = piece.and_then(|from| {
                let (offset, stability) = (transfer.offset, Stability::Unstable);
                let call =
                    WriteCall { handle, state_id, offset, stability, from, delegation, hint };
                let writes = Some(owner.writes.clone());
                Pending::submit(client.shared(), |driver, tag| {
                    driver.submit_write(tag, call, writes)
                })
            });
            self.started(transfer.id, pending);
        }
    }

    fn started(&self, id: TransferId, pending: Result<Pending<usize>>) {
        let mut state = self.lock();
        match pending {
            Ok(pending) => state.sent(id, pending),
            Err(error) => drop(state.ended(id, Err(error))),
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Waits until a request is over; yields its error, to the thread that waited.
    ///
    /// Others rely on the request, so this ignores the caller's limit.
    pub(super) fn wait(&self, id: TransferId) -> Option<Error> {
        self.wait_as(id, WaitLimit::Endless)
    }

    /// As [`wait`](Self::wait), within the limit of the thread; the request goes on.
    pub(super) fn wait_in_limit(&self, id: TransferId) -> Option<Error> {
        self.wait_as(id, WaitLimit::OfCaller)
    }

    fn wait_as(&self, id: TransferId, kind: WaitLimit) -> Option<Error> {
        let mut state = self.lock();
        loop {
            if !state.is_in_flight(id) {
                return None;
            }
            let limit = Limit::current().filter(|_| kind == WaitLimit::OfCaller);
            let left = limit.map(|limit| limit.at.since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return limit.map(|limit| Error::TimedOut(limit.after));
            }
            let stoppable = kind == WaitLimit::OfCaller && limit::can_be_stopped();
            if let Some(mut pending) = state.take_pending(id) {
                drop(state);
                let result = match left {
                    Some(left) => pending.wait_moved_for(left),
                    // It ends early when the caller is interrupted, which sets a limit.
                    None if stoppable => pending.wait_moved_for(LONG),
                    None => limit::without(|| pending.end_moved()),
                };
                let mut now = self.lock();
                let ended = match result {
                    Err(Error::TimedOut(_)) => {
                        now.sent(id, pending);
                        None
                    }
                    result => Some(now.ended(id, result)),
                };
                drop(now);
                self.changed.notify_all();
                match ended {
                    Some(error) => return error,
                    None => state = self.lock(),
                }
                continue;
            }
            // Another thread waits for it, or is about to send it.
            let time = match stoppable {
                true => Some(left.map_or(STOP_PERIOD, |left| left.min(STOP_PERIOD))),
                false => left,
            };
            let changed = &self.changed;
            state = match time {
                Some(time) => changed.wait_timeout(state, time).0,
                None => changed.wait(state),
            };
            if stoppable {
                // The interruption callback may use the client.
                drop(state);
                limit::is_stopped();
                state = self.lock();
            }
        }
    }

    /// Ends the requests that are done; true if there was one.
    pub(super) fn harvest(&self) -> bool {
        let ids = self.lock().unattended();
        let mut found = false;
        for id in ids {
            let Some(pending) = self.lock().take_pending(id) else { continue };
            if pending.is_done() {
                let result = pending.wait_moved();
                self.lock().ended(id, result);
                found = true;
            } else {
                self.lock().sent(id, pending);
            }
            self.changed.notify_all();
        }
        found
    }

    /// Makes room for blocks; false when there is none unless needed data is evicted.
    pub(super) fn make_room(&self, client: &Client) -> bool {
        if self.lock().content.pool().can_grow() {
            // Registering memory takes the lock of the driver, so this lock is not held meanwhile.
            match buffer::allocate(client.shared(), CACHE_SLAB_BYTES) {
                Ok(slab) => {
                    self.lock().add_slab(slab);
                    return true;
                }
                Err(error) => {
                    tracing::warn!(%error, "the cache gets no more memory");
                    self.lock().content.pool().stop_growing();
                }
            }
        }
        if self.harvest() {
            return true;
        }
        let files = self.lock().content.unwritten_files();
        let any = !files.is_empty();
        files.into_iter().for_each(|file| self.write_back(client, file));
        any
    }

    /// Begins to write dirty data back, without waiting for it.
    pub(super) fn start_write_back(&self, client: &Client, id: FileId, mut state: Guard<'_>) {
        let Some((writer, orders)) = orders(&mut state, id, &(0..u64::MAX)) else { return };
        drop(state);
        self.send_writes(client, &writer, orders);
    }

    /// Writes back the data that was dirty before, and waits for it. The writer gets errors with
    /// its next call.
    ///
    /// It goes through the file once, so it terminates beside an active writer; it retries requests
    /// that the server answers with DELAY.
    pub(super) fn write_back(&self, client: &Client, id: FileId) {
        let mut backoff = Backoff::new(client.shared().deadline());
        while let Some(error) = self.write_back_once(client, id) {
            // The limit of the thread that happens to wait must not lose data.
            if !limit::without(|| backoff.pause()) {
                let mut state = self.lock();
                if state.content.give_up(id) > 0 {
                    state.failed(id, error);
                }
            }
        }
    }

    /// Yields the error of the retries, if there was one.
    fn write_back_once(&self, client: &Client, id: FileId) -> Option<Error> {
        let mut state = self.lock();
        let retries = state.file(id)?.retries;
        let mut range = 0..state.content.size(id);
        while state.content.unwritten_of(id) > 0
            && let Some((writer, orders)) = orders(&mut state, id, &range)
        {
            range.start = orders.iter().map(|order| order.transfer.end()).max()?;
            drop(state);
            let ids: Vec<_> = orders.iter().map(|order| order.transfer.id).collect();
            self.send_writes(client, &writer, orders);
            ids.into_iter().for_each(|id| drop(self.wait(id)));
            state = self.lock();
        }
        // Another thread may have begun to write some of it.
        let newest = state.content.newest();
        while let Some(flight) = state.content.first_in_flight(id, true)
            && flight <= newest
        {
            drop(state);
            self.wait(flight);
            state = self.lock();
        }
        let delayed = state.file(id)?.retries != retries && state.content.unsent_of(id) > 0;
        delayed.then_some(Error::TooMany)
    }

    /// Writes the dirty data of all files back.
    pub(super) fn write_back_all(&self, client: &Client) {
        let files = self.lock().content.unwritten_files();
        files.into_iter().for_each(|file| self.write_back(client, file));
    }
}

type Guard<'a> = std::sync::MutexGuard<'a, State>;

/// The target of dirty data, its owner, and its delegation.
struct Writer {
    handle: FileHandle,
    owner: Owner,
    delegation: StateId,
}

/// The requests for the dirty data of a range.
fn orders(state: &mut State, id: FileId, range: &Range<u64>) -> Option<(Writer, Vec<Order>)> {
    let file = state.files.get(&id)?;
    let (handle, owner) = (file.handle, file.owner.clone()?);
    let Some(delegation) = file.held.as_ref().map(|held| held.state_id) else {
        if state.content.give_up(id) > 0 {
            state.failed(id, Error::DelegationLost);
        }
        return None;
    };
    let transfers = state.content.flush(id, range.clone(), FLUSH_BYTES);
    if transfers.is_empty() {
        return None;
    }
    Some((Writer { handle, owner, delegation }, state.order(id, transfers, true)))
}

fn memory_range(memory: &super::content::Segment) -> Range<usize> {
    memory.start as usize..memory.start as usize + memory.len as usize
}
