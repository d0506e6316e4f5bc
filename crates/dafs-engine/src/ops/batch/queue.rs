//! The work of one connection for batches: transfers in their window, loads that wait for their
//! turn, completions that have not been reported.
//!
//! Invariants
//! * A transfer begins no later than the end of its window, unless there is no room.
//! * RDMA posted for loads stays well below the limit of one connection.

use super::load::{self, Owner, gather};
use super::{Batches, Finished, Submission, Transfer, completion};
use crate::engine::request::Context;
use crate::engine::work::{PendingId, Work};
use crate::limits::{
    BATCH_GATHER_BYTES, BATCH_GATHER_COUNT, LOAD_MOVES_MAX, LOADS_ACTIVE_MAX, LOADS_PER_TURN,
};
use crate::ops::transport::check_channel;
use dafs_dat::Instant;
use dafs_wire::dafs::{Checksum, Status};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::sync::Arc;

/// RDMA operations that loads of one connection may have posted or planned.
const MOVES_MAX: usize = 3 * LOAD_MOVES_MAX;

/// The batches of one connection.
#[derive(Default)]
pub(crate) struct Queue {
    /// The ledger, for a back-control channel.
    batches: Option<Arc<Batches>>,
    /// Transfers in their window, with its end.
    waiting: Vec<(Instant, Transfer)>,
    waiting_bytes: usize,
    /// Loads that have not begun.
    ready: VecDeque<PendingId>,
    /// Loads that have had their turn, and the RDMA operations they may take.
    active: Vec<PendingId>,
    active_moves: usize,
    /// Completions that are not reported.
    finished: Vec<Finished>,
    /// A report has begun and goes on until all are reported.
    reporting: bool,
}

impl Queue {
    pub(crate) fn of_channel(batches: Arc<Batches>) -> Self {
        Self { batches: Some(batches), ..Self::default() }
    }

    /// Begins access to files. See [`Gate`](super::Gate).
    pub(super) fn start_work(&self) -> bool {
        self.batches.as_ref().is_none_or(|batches| batches.start_work())
    }

    /// Ends access to files. Returns true when the end of the session waits for that.
    pub(super) fn stop_work(&self) -> bool {
        self.batches.as_ref().is_some_and(|batches| batches.gate().stop_work())
    }

    /// True when a load could begin if there were room.
    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    pub(super) fn load_over(&mut self, id: PendingId, moves: usize) {
        self.active.retain(|active| *active != id);
        self.active_moves -= moves;
    }

    pub(super) fn finished(&mut self, finished: impl Iterator<Item = Finished>) {
        let before = self.finished.len();
        self.finished.extend(finished);
        let finished = &self.finished[before..];
        // A client that cancels does not wait for the others.
        self.reporting |=
            finished.iter().any(|finished| finished.completion.status == Status::XCanceled);
        if let Some(batches) = &self.batches {
            batches.over(finished);
        }
    }

    /// The ledger, for a back-control channel.
    pub(super) fn batches(&self) -> Option<&Arc<Batches>> {
        self.batches.as_ref()
    }

    /// Notes that a load, which has not begun, plans `moves` fewer RDMA operations. It may have had
    /// its turn, and wait for chunks. `gone` is true when nothing is left of it.
    pub(super) fn shrink(&mut self, id: PendingId, moves: usize, gone: bool) {
        let place = self.ready.iter().position(|ready| *ready == id);
        match place {
            Some(place) if gone => drop(self.ready.remove(place)),
            Some(_) => {}
            None => {
                self.active_moves -= moves;
                self.active.retain(|active| !gone || *active != id);
            }
        }
    }

    /// True if a load has had its turn: it may wait for chunks.
    pub(super) fn is_active(&self, id: PendingId) -> bool {
        self.active.contains(&id)
    }

    /// Notes that loads are gone that have not begun, each with the RDMA operations that it planned.
    pub(super) fn drop_loads(&mut self, gone: &FxHashMap<PendingId, usize>) {
        self.ready.retain(|ready| !gone.contains_key(ready));
        self.active.retain(|active| {
            let moves = gone.get(active);
            self.active_moves -= moves.copied().unwrap_or(0);
            moves.is_none()
        });
    }

    /// Takes the completions to report now, at most `max`.
    pub(crate) fn take_report(&mut self, max: usize) -> Option<Vec<Finished>> {
        let batches = self.batches.as_ref()?;
        self.reporting |= batches.is_due(self.finished.len());
        if !self.reporting || max == 0 {
            return None;
        }
        let count = self.finished.len().min(max);
        let report: Vec<_> = self.finished.drain(..count).collect();
        self.reporting = !self.finished.is_empty();
        batches.reported(&report);
        (!report.is_empty()).then_some(report)
    }

    /// Takes the transfers that are due. When one is due or enough has gathered, it takes all,
    /// because more transfers sort better.
    fn take_due(&mut self, now: Instant) -> Vec<Transfer> {
        let due = self.waiting.iter().any(|(due, _)| *due <= now)
            || self.waiting_bytes >= BATCH_GATHER_BYTES
            || self.waiting.len() >= BATCH_GATHER_COUNT;
        if !due {
            return Vec::new();
        }
        self.waiting_bytes = 0;
        std::mem::take(&mut self.waiting).into_iter().map(|(_, transfer)| transfer).collect()
    }

    fn next_due(&self) -> Option<Instant> {
        self.waiting.iter().map(|(due, _)| *due).min()
    }
}

/// Handles an asynchronous batch on its back-control channel.
pub(crate) fn submitted(cx: &mut Context<'_>, submission: Submission) {
    let Submission { mut transfers, mut refused, submitted, window, proof } = submission;
    transfers.retain(|transfer| match check_channel(cx, &transfer.handle, proof) {
        Ok(()) => true,
        Err(status) => {
            let completion = completion(transfer.id, status, 0, Checksum::ZERO);
            refused.push(Finished { completion, entered: true });
            false
        }
    });
    let Some(queue) = cx.queue().as_mut() else { return };
    queue.finished(refused.into_iter());
    let due = submitted + window;
    if window.is_zero() {
        enqueue(cx, transfers, Owner::Channel);
    } else {
        queue.waiting_bytes += transfers.iter().map(|transfer| transfer.bytes).sum::<usize>();
        queue.waiting.extend(transfers.into_iter().map(|transfer| (due, transfer)));
    }
    turn(cx);
}

/// Begins one transfer before its window ends (HURRY_UP).
pub(crate) fn start_now(cx: &mut Context<'_>, id: u64) {
    let Some(queue) = cx.queue().as_mut() else { return };
    let place = queue.waiting.iter().position(|(_, transfer)| transfer.id == id);
    if let Some(place) = place {
        let (_, transfer) = queue.waiting.remove(place);
        queue.waiting_bytes -= transfer.bytes;
        enqueue(cx, vec![transfer], Owner::Channel);
        turn(cx);
    }
}

/// Drops the requests of asynchronous batches that were cancelled, and reports them.
pub(crate) fn drop_canceled(cx: &mut Context<'_>) {
    let Some(queue) = cx.queue().as_mut() else { return };
    let Some(batches) = queue.batches.clone() else { return };
    let canceled = batches.canceled();
    let mut dropped = Vec::new();
    let waiting = queue.waiting.extract_if(.., |(_, transfer)| canceled.contains(&transfer.id));
    for (_, transfer) in waiting {
        queue.waiting_bytes -= transfer.bytes;
        dropped.push(transfer.id);
    }
    let loads: Vec<PendingId> = queue.ready.iter().chain(&queue.active).copied().collect();
    for id in loads {
        let Some((Work::Load(load), _)) = cx.work(id) else { continue };
        let moves = load.moves_max();
        let taken = load.take_canceled(&canceled);
        if taken.is_empty() {
            continue;
        }
        dropped.extend(taken);
        let (fewer, gone) = (moves - load.moves_max(), load.is_empty());
        if gone {
            cx.forget_waiting(id);
            cx.discard(id);
        } else {
            // It may need fewer chunks now.
            cx.transfers().note_due();
        }
        if let Some(queue) = cx.queue() {
            queue.shrink(id, fewer, gone);
        }
    }
    let Some(queue) = cx.queue().as_mut() else { return };
    let dropped = dropped.into_iter().map(|id| {
        let completion = completion(id, Status::XCanceled, 0, Checksum::ZERO);
        Finished { completion, entered: true }
    });
    queue.finished(dropped);
    turn(cx);
}

pub(super) fn enqueue(cx: &mut Context<'_>, transfers: Vec<Transfer>, owner: Owner) {
    for load in gather(transfers, owner) {
        let id = cx.insert(Work::Load(Box::new(load)));
        cx.queue().get_or_insert_default().ready.push_back(id);
        if let Owner::Request(batch) = owner
            && let Some((Work::Batch(batch), _)) = cx.work(batch)
        {
            batch.loads.push(id);
        }
    }
}

/// Begins due work, reports completions, and sets the time of the next check.
pub(crate) fn turn(cx: &mut Context<'_>) {
    let now = cx.now;
    cx.set_queue_due(None);
    let Some(queue) = cx.queue().as_mut() else { return };
    let due = queue.take_due(now);
    if !due.is_empty() {
        enqueue(cx, due, Owner::Channel);
    }
    let mut again = None;
    let mut begun = 0;
    while !cx.transfers().is_closing()
        && let Some(id) = next_load(cx)
    {
        load::start(cx, id);
        begun += 1;
        if begun == LOADS_PER_TURN {
            again = Some(now);
            break;
        }
    }
    cx.pump_back();
    let Some(queue) = cx.queue().as_mut() else { return };
    let due = again.into_iter().chain(queue.next_due()).min();
    cx.set_queue_due(due);
}

/// Takes the next load, if there is room for it.
fn next_load(cx: &mut Context<'_>) -> Option<PendingId> {
    let id = *cx.queue().as_ref()?.ready.front()?;
    let (moves, posted) = match cx.work(id) {
        Some((Work::Load(load), by)) => (load.moves_max(), by.posted()),
        _ => (0, 0),
    };
    let queue = cx.queue().as_mut()?;
    let planned = posted + queue.active_moves;
    if queue.active.len() >= LOADS_ACTIVE_MAX || planned > 0 && planned + moves > MOVES_MAX {
        return None;
    }
    queue.ready.pop_front();
    queue.active.push(id);
    queue.active_moves += moves;
    Some(id)
}
