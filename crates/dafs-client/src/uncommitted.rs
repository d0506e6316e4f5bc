//! The unstable writes of one open file, as far as needed to detect a loss.
//!
//! Invariants
//! * A write that was answered as unstable is watched from its answer until a COMMIT of the whole
//!   file that was sent after that answer, or until its loss has been reported.
//! * A COMMIT is judged by the writes that were answered before it was sent, however late its
//!   answer is processed. Each COMMIT of those writes that was under way when a loss was found
//!   reports it; none sent later does.

use crate::fork::ForkMutex;
use crate::limits::VERIFIERS_MAX;
use crate::write_state::WriteState;
use dafs_wire::dafs::Verifier;
use std::collections::VecDeque;

/// The unstable writes of one open file. The server may change its write verifier at any time,
/// within a session too: data that was written under another verifier than COMMIT returns is gone
/// (DAFS O53).
#[derive(Debug, Default)]
pub(crate) struct Uncommitted {
    state: ForkMutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The writes watched, in the order of their answers.
    runs: VecDeque<Run>,
    /// Writes answered so far.
    answered: u64,
    /// The number of writes, from the first, whose fate has been reported.
    settled: u64,
    /// The last of them that were lost.
    lost: Option<Run>,
}

/// Successive writes under one verifier; `None` stands for several verifiers.
#[derive(Debug, Clone, Copy)]
struct Run {
    verifier: Option<Verifier>,
    /// The number of the last one.
    last: u64,
}

/// The state at the start of a COMMIT.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mark {
    /// Writes answered by then.
    answered: u64,
    /// The number of writes whose fate was reported by then.
    settled: u64,
}

impl State {
    /// True when data is gone, by whatever verifier a COMMIT returns.
    fn is_lost(&self) -> bool {
        self.runs.len() > 1 || self.runs.front().is_some_and(|run| run.verifier.is_none())
    }
}

impl Uncommitted {
    /// Holds the lock, for tests.
    #[cfg(test)]
    pub(crate) fn hold(&self) -> impl Sized {
        self.state.lock_here()
    }

    /// Records a write that was answered as unstable.
    pub(crate) fn written(&self, verifier: Verifier) {
        let mut state = self.state.lock_here();
        state.answered += 1;
        let (last, is_full) = (state.answered, state.runs.len() == VERIFIERS_MAX);
        match state.runs.back_mut() {
            Some(run) if run.verifier == Some(verifier) => run.last = last,
            Some(run) if is_full => *run = Run { verifier: None, last },
            _ => state.runs.push_back(Run { verifier: Some(verifier), last }),
        }
    }

    /// The verifier of the writes watched, if there are any.
    pub(crate) fn verifier(&self) -> Option<Verifier> {
        self.state.lock_here().runs.front()?.verifier
    }

    /// The state of the writes since the beginning.
    pub(crate) fn write_state(&self) -> WriteState {
        let state = self.state.lock_here();
        match state.runs.front().and_then(|run| run.verifier) {
            _ if state.is_lost() => WriteState::Lost,
            Some(verifier) => WriteState::Unstable(verifier),
            None => WriteState::Stable,
        }
    }

    /// True when data may have been lost and only a COMMIT can tell; `restarted` says that the
    /// server has restarted since the file was opened.
    pub(crate) fn is_in_doubt(&self, restarted: bool) -> bool {
        let state = self.state.lock_here();
        state.is_lost() || (restarted && !state.runs.is_empty())
    }

    /// Called before a COMMIT is sent.
    pub(crate) fn mark(&self) -> Mark {
        let state = self.state.lock_here();
        Mark { answered: state.answered, settled: state.settled }
    }

    /// True when a COMMIT that was answered with `verifier` covers all writes that it was sent for;
    /// `whole` says that it covered the whole file.
    pub(crate) fn committed(&self, mark: Mark, verifier: Verifier, whole: bool) -> bool {
        let mut state = self.state.lock_here();
        // Writes that are stable under their own verifier are not concerned by a later loss.
        let was_told =
            state.lost.is_some_and(|run| run.last > mark.settled && run.verifier != Some(verifier));
        if mark.answered <= state.settled {
            // A COMMIT that was sent later has reported it, or there was nothing to report.
            return !was_told;
        }
        let mut before = state.settled;
        let mut lost: Option<Run> = None;
        for run in &state.runs {
            let is_covered = before < mark.answered;
            before = run.last;
            if is_covered && run.verifier != Some(verifier) {
                let verifier = if lost.is_none() { run.verifier } else { None };
                lost = Some(Run { verifier, last: run.last.min(mark.answered) });
            }
        }
        if whole || lost.is_some() {
            state.settled = mark.answered;
            state.runs.retain(|run| run.last > mark.answered);
            state.lost = match (lost, state.lost) {
                // Both losses stay known: the answer to an early COMMIT may be processed after
                // both.
                (Some(new), Some(old)) if old.verifier != new.verifier => {
                    Some(Run { verifier: None, ..new })
                }
                (new, old) => new.or(old),
            };
        }
        lost.is_none() && !was_told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: Verifier = Verifier([1; 8]);
    const NEW: Verifier = Verifier([2; 8]);

    fn commit(writes: &Uncommitted, verifier: Verifier, whole: bool) -> bool {
        writes.committed(writes.mark(), verifier, whole)
    }

    #[test]
    fn a_loss_is_reported_once() {
        let writes = Uncommitted::default();
        writes.written(OLD);
        writes.written(OLD);
        assert!(commit(&writes, OLD, true));
        assert!(commit(&writes, NEW, true), "nothing was at stake");
        writes.written(NEW);
        assert!(!commit(&writes, OLD, true));
        assert!(commit(&writes, OLD, true));
        writes.written(OLD);
        writes.written(NEW);
        assert!(!commit(&writes, NEW, true), "lost between two writes");
    }

    #[test]
    fn doubt_begins_with_a_restart_and_ends_with_a_commit() {
        let writes = Uncommitted::default();
        assert!(!writes.is_in_doubt(true), "nothing is at stake");
        writes.written(OLD);
        assert!(!writes.is_in_doubt(false));
        assert!(writes.is_in_doubt(true));
        assert!(commit(&writes, OLD, true));
        assert!(!writes.is_in_doubt(true));
        writes.written(OLD);
        writes.written(NEW);
        assert!(writes.is_in_doubt(false), "two verifiers tell by themselves");
    }

    #[test]
    fn a_writer_hears_that_two_verifiers_answered() {
        let writes = Uncommitted::default();
        assert_eq!(writes.write_state(), WriteState::Stable);
        writes.written(OLD);
        assert_eq!(writes.write_state(), WriteState::Unstable(OLD));
        writes.written(NEW);
        assert_eq!(writes.write_state(), WriteState::Lost);
    }

    #[test]
    fn a_commit_of_a_part_leaves_the_rest_watched() {
        let writes = Uncommitted::default();
        writes.written(OLD);
        assert!(commit(&writes, OLD, false));
        assert!(!commit(&writes, NEW, true));
    }

    #[test]
    fn an_answer_that_is_looked_at_late_says_nothing_of_what_came_later() {
        let writes = Uncommitted::default();
        writes.written(OLD);
        let early = writes.mark();
        writes.written(OLD);
        assert!(commit(&writes, OLD, true));
        writes.written(NEW);
        assert!(writes.committed(early, OLD, true), "it was stable before the restart");
        assert!(commit(&writes, NEW, true));
        writes.written(OLD);
        let early = writes.mark();
        assert!(!commit(&writes, NEW, true));
        assert!(!writes.committed(early, NEW, true), "its writes are gone, too");
        assert!(commit(&writes, NEW, true), "told, and not again");
        writes.written(NEW);
        assert!(commit(&writes, NEW, true));
    }

    #[test]
    fn a_loss_is_told_to_who_asked_for_what_is_lost() {
        let writes = Uncommitted::default();
        writes.written(OLD);
        let first = writes.mark();
        writes.written(OLD);
        writes.written(NEW);
        let second = writes.mark();
        assert!(writes.committed(first, OLD, true), "stable before the restart");
        assert!(!writes.committed(second, NEW, true), "the second write is gone");
        assert!(commit(&writes, NEW, true), "told");

        writes.written(OLD);
        let (first, second) = (writes.mark(), writes.mark());
        assert!(!writes.committed(first, NEW, true));
        writes.written(NEW);
        let third = writes.mark();
        assert!(!writes.committed(second, NEW, true), "it was to cover the same");
        assert!(writes.committed(third, NEW, true));

        writes.written(OLD);
        let early = writes.mark();
        writes.written(OLD);
        assert!(!commit(&writes, NEW, true));
        assert!(writes.committed(early, OLD, true), "its own was stable by then");
    }

    #[test]
    fn verifiers_are_not_kept_without_end() {
        let writes = Uncommitted::default();
        for number in 0..100 {
            writes.written(Verifier([number; 8]));
        }
        assert_eq!(writes.state.lock_here().runs.len(), VERIFIERS_MAX);
        assert!(!commit(&writes, Verifier([99; 8]), true));
        writes.written(OLD);
        assert!(commit(&writes, OLD, true));
    }

    #[test]
    fn a_write_beside_a_commit_stays_watched() {
        let writes = Uncommitted::default();
        writes.written(OLD);
        let mark = writes.mark();
        writes.written(OLD);
        assert!(writes.committed(mark, OLD, true));
        assert!(!commit(&writes, NEW, true));
    }
}
