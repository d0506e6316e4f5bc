//! The outstanding batches of a client on one back-control channel, seen by the reactor that
//! accepts the batches and by the one that executes them.
//!
//! Invariants
//! * A request is cancelled or begins, never both: the ledger decides, under its lock.

use super::Finished;
use crate::limits::{BATCH_ENDED_MAX, BATCH_OWED_MAX};
use dafs_mem::Mutex;
use dafs_wire::dafs::CancelOutcome;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::VecDeque;
use std::collections::hash_map::Entry;
use std::sync::Arc;

/// The ledger of asynchronous batches.
#[derive(Debug, Default)]
pub(crate) struct Batches {
    ledger: Mutex<Ledger>,
    gate: Arc<Gate>,
}

/// Stops the work on a session's batches, on all the channels that it has had.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    state: Mutex<GateState>,
}

#[derive(Debug, Default)]
struct GateState {
    /// The number of reads and writes of files under way.
    working: usize,
    /// The session is over, so no more work begins.
    closed: bool,
}

impl Gate {
    /// Begins access to files. Returns false when the session is over. `stop_work` must follow.
    pub(super) fn start_work(&self) -> bool {
        let mut state = self.state.lock();
        state.working += usize::from(!state.closed);
        !state.closed
    }

    /// Ends access to files. Returns true when the end of the session waits for that.
    pub(super) fn stop_work(&self) -> bool {
        let mut state = self.state.lock();
        state.working -= 1;
        state.closed && state.working == 0
    }

    /// Closes the gate with its session. Returns true when no work is under way. Otherwise the
    /// connection is notified when that is so.
    pub(crate) fn close(&self) -> bool {
        let mut state = self.state.lock();
        state.closed = true;
        state.working == 0
    }

    pub(crate) fn is_working(&self) -> bool {
        self.state.lock().working > 0
    }
}

/// How far an outstanding request has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// It has not begun.
    Queued,
    /// Its data is on its way, or a thread uses the file for it.
    Begun,
    /// The client has cancelled it before it began.
    Canceled,
    /// It is over, and its completion is still to be reported.
    Over,
}

#[derive(Debug, Default)]
struct Ledger {
    /// Request-ids in use (DAFS O55).
    ids: FxHashMap<u64, Progress>,
    /// The last requests that were reported.
    ended: Ended,
    /// Completions owed: accepted requests that are not reported.
    owed: usize,
    /// The number of completions to report together.
    together: usize,
    /// Another channel replaces it, so no more work begins.
    closed: bool,
}

/// The last requests that were reported, and whether they had been cancelled.
#[derive(Debug, Default)]
struct Ended {
    /// Each with the place of its latest report.
    found: FxHashMap<u64, (u64, bool)>,
    /// The ids in the order of their reports, which are numbered from `first` on.
    order: VecDeque<u64>,
    first: u64,
}

impl Ended {
    fn push(&mut self, id: u64, canceled: bool) {
        if self.order.len() == BATCH_ENDED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            // The number may have been used again since.
            if self.found.get(&oldest).is_some_and(|(place, _)| *place == self.first) {
                self.found.remove(&oldest);
            }
            self.first += 1;
        }
        self.found.insert(id, (self.first + self.order.len() as u64, canceled));
        self.order.push_back(id);
    }

    fn outcome(&self, id: u64) -> CancelOutcome {
        match self.found.get(&id) {
            Some((_, true)) => CancelOutcome::Canceled,
            Some((_, false)) => CancelOutcome::Done,
            None => CancelOutcome::Unknown,
        }
    }
}

impl Ledger {
    /// Takes out a request that has not begun. `fresh` becomes true if it was not taken out before.
    fn cancel(&mut self, id: u64, fresh: &mut bool) -> CancelOutcome {
        match self.ids.get_mut(&id) {
            Some(progress @ Progress::Queued) => {
                *progress = Progress::Canceled;
                *fresh = true;
                CancelOutcome::Canceled
            }
            Some(Progress::Canceled) => CancelOutcome::Canceled,
            Some(Progress::Begun) => CancelOutcome::TooLate,
            Some(Progress::Over) => CancelOutcome::Done,
            None => self.ended.outcome(id),
        }
    }
}

impl Batches {
    /// Makes the ledger of a channel that replaces another one.
    pub(crate) fn succeeding(former: Option<&Self>, gate: &Arc<Gate>) -> Self {
        let together = former.map_or(0, |former| former.ledger.lock().together);
        let ledger = Mutex::new(Ledger { together, ..Ledger::default() });
        Self { ledger, gate: gate.clone() }
    }

    pub(super) fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Begins access to files for this channel. See [`Gate`].
    pub(super) fn start_work(&self) -> bool {
        let ledger = self.ledger.lock();
        !ledger.closed && self.gate.start_work()
    }

    /// Lets no more work begin for this channel.
    pub(crate) fn close(&self) {
        self.ledger.lock().closed = true;
    }

    /// Makes room for `count` requests. Returns false when there is none.
    pub(super) fn reserve(&self, count: usize, num_completions: u32) -> bool {
        let mut ledger = self.ledger.lock();
        if num_completions != 0 {
            ledger.together = num_completions as usize;
        }
        let fits = ledger.owed + count <= BATCH_OWED_MAX;
        if fits {
            ledger.owed += count;
        }
        fits
    }

    /// Enters a request-id. Returns false when it is in use.
    pub(super) fn enter(&self, id: u64) -> bool {
        match self.ledger.lock().ids.entry(id) {
            Entry::Vacant(vacant) => {
                vacant.insert(Progress::Queued);
                true
            }
            Entry::Occupied(_) => false,
        }
    }

    /// True while a request of this id is outstanding.
    pub(super) fn is_outstanding(&self, id: u64) -> bool {
        self.ledger.lock().ids.contains_key(&id)
    }

    /// Takes out requests that have not begun. The channel reports them as cancelled: the flag is
    /// true if it has to look for some that were not taken out before.
    pub(crate) fn cancel(&self, ids: impl Iterator<Item = u64>) -> (Vec<CancelOutcome>, bool) {
        let (mut ledger, mut fresh) = (self.ledger.lock(), false);
        let outcomes = ids.map(|id| ledger.cancel(id, &mut fresh)).collect();
        (outcomes, fresh)
    }

    /// Returns the requests that were cancelled and are not reported, which must not begin.
    pub(super) fn canceled(&self) -> FxHashSet<u64> {
        let ledger = self.ledger.lock();
        let canceled = ledger.ids.iter().filter(|(_, progress)| **progress == Progress::Canceled);
        canceled.map(|(id, _)| *id).collect()
    }

    /// Begins requests. Returns the places of those that were cancelled before, and do not begin.
    pub(super) fn begin(&self, ids: impl Iterator<Item = u64>) -> Vec<usize> {
        let mut ledger = self.ledger.lock();
        let mut canceled = Vec::new();
        for (place, id) in ids.enumerate() {
            match ledger.ids.get_mut(&id) {
                Some(Progress::Canceled) => canceled.push(place),
                Some(progress) => *progress = Progress::Begun,
                None => {}
            }
        }
        canceled
    }

    /// Notes requests that are over and not reported yet.
    pub(super) fn over(&self, finished: &[Finished]) {
        let mut ledger = self.ledger.lock();
        for finished in finished.iter().filter(|finished| finished.entered) {
            if let Some(progress @ (Progress::Queued | Progress::Begun)) =
                ledger.ids.get_mut(&finished.completion.request_id)
            {
                *progress = Progress::Over;
            }
        }
    }

    /// True if `count` finished requests are to be reported now: enough of them, or all outstanding
    /// ones.
    pub(super) fn is_due(&self, count: usize) -> bool {
        let ledger = self.ledger.lock();
        count > 0 && (count >= ledger.together.max(1) || count >= ledger.owed)
    }

    pub(super) fn reported(&self, finished: &[Finished]) {
        let mut ledger = self.ledger.lock();
        ledger.owed = ledger.owed.saturating_sub(finished.len());
        for finished in finished.iter().filter(|finished| finished.entered) {
            let id = finished.completion.request_id;
            let canceled = ledger.ids.remove(&id) == Some(Progress::Canceled);
            ledger.ended.push(id, canceled);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::completion;
    use super::*;
    use dafs_wire::dafs::{Checksum, Status};

    fn finished(id: u64, entered: bool) -> Finished {
        Finished { completion: completion(id, Status::Ok, 0, Checksum::ZERO), entered }
    }

    #[test]
    fn completions_are_reported_together_or_when_nothing_is_left() {
        let batches = Batches::default();
        assert!(batches.reserve(4, 3));
        assert!((1..=4).all(|id| batches.enter(id)));
        assert!(!batches.enter(2));
        assert!(!batches.is_due(0) && !batches.is_due(2));
        assert!(batches.is_due(3));
        batches.reported(&[finished(1, true), finished(2, true), finished(3, true)]);
        assert!(batches.is_due(1), "one is left, and nothing else will come");
        assert!(batches.enter(2) && batches.is_outstanding(4));
    }

    #[test]
    fn a_refused_reuse_leaves_the_id_to_its_owner() {
        let batches = Batches::default();
        assert!(batches.reserve(2, 0) && batches.enter(7));
        batches.reported(&[finished(7, false)]);
        assert!(batches.is_outstanding(7));
    }

    #[test]
    fn a_request_is_cancelled_or_begins() {
        use CancelOutcome as O;
        let batches = Batches::default();
        let cancel = |ids: &[u64]| batches.cancel(ids.iter().copied());
        assert!(batches.reserve(3, 0) && (1..=3).all(|id| batches.enter(id)));
        assert_eq!(cancel(&[2]), (vec![O::Canceled], true));
        assert_eq!(batches.begin([1, 2, 3].into_iter()), [1]);
        // A request that was taken out before needs no second look.
        let again = vec![O::TooLate, O::Canceled, O::Unknown];
        assert_eq!(cancel(&[1, 2, 4]), (again, false));
        batches.over(&[finished(1, true), finished(2, true)]);
        assert_eq!(cancel(&[1, 2]), (vec![O::Done, O::Canceled], false));
        batches.reported(&[finished(1, true), finished(2, true)]);
        assert_eq!(cancel(&[1, 2]), (vec![O::Done, O::Canceled], false));
        // A number that is used again denotes the later request.
        assert!(batches.enter(2));
        assert!(batches.canceled().is_empty());
        assert_eq!(batches.begin([2].into_iter()), []);
        assert_eq!(cancel(&[2]), (vec![O::TooLate], false));
    }

    #[test]
    fn the_memory_of_ended_requests_is_bounded() {
        let batches = Batches::default();
        let end = |id| {
            assert!(batches.reserve(1, 0) && batches.enter(id));
            batches.reported(&[finished(id, true)]);
        };
        let cancel = |id| batches.cancel(std::iter::once(id)).0[0];
        (0..=BATCH_ENDED_MAX as u64).for_each(end);
        assert_eq!([cancel(0), cancel(1)], [CancelOutcome::Unknown, CancelOutcome::Done]);
        // The latest use of a number counts.
        end(1);
        assert_eq!(cancel(1), CancelOutcome::Done);
        (5000..5000 + BATCH_ENDED_MAX as u64 - 1).for_each(end);
        assert_eq!(cancel(1), CancelOutcome::Done);
        end(9000);
        assert_eq!(cancel(1), CancelOutcome::Unknown);
        let ledger = batches.ledger.lock();
        assert_eq!(ledger.ended.found.len(), BATCH_ENDED_MAX);
        assert_eq!(ledger.ended.order.len(), BATCH_ENDED_MAX);
    }

    #[test]
    fn the_end_of_a_session_waits_for_work_and_lets_no_more_begin() {
        let gate = Gate::default();
        assert!(gate.start_work() && gate.start_work());
        assert!(!gate.close());
        assert!(!gate.start_work());
        assert!(!gate.stop_work());
        assert!(gate.stop_work(), "the last one tells");
        assert!(gate.close());
    }

    #[test]
    fn a_channel_that_is_replaced_begins_nothing_more() {
        let gate = Arc::<Gate>::default();
        let former = Batches::succeeding(None, &gate);
        assert!(former.start_work());
        former.close();
        assert!(!former.start_work() && gate.is_working());
        assert!(!former.gate().stop_work() && !gate.is_working());
        assert!(Batches::succeeding(Some(&former), &gate).start_work());
    }

    #[test]
    fn outstanding_requests_are_bounded() {
        let batches = Batches::default();
        assert!(batches.reserve(BATCH_OWED_MAX, 0));
        assert!(!batches.reserve(1, 0));
    }
}
