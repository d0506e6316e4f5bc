//! What one open file has written and not committed, as far as it takes to tell a loss.
//!
//! Invariants
//! * A write that was answered as unstable is watched from its answer until a COMMIT of the whole
//!   file that was sent after that answer, or until its loss has been reported.

use crate::fork::ForkMutex;
use crate::standing::Standing;
use dafs_wire::dafs::Verifier;

/// The unstable writes of one open file. The server may change its write verifier at any time,
/// within a session too: what was written under another one than COMMIT returns is gone (DAFS O53).
#[derive(Debug, Default)]
pub(crate) struct Uncommitted {
    state: ForkMutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The verifier of the first write watched.
    first: Option<Verifier>,
    /// A later write came under another one.
    lost: bool,
    /// Writes answered so far.
    answered: u64,
    /// Of those the first ones whose fate has been told.
    settled: u64,
}

/// Where a COMMIT began.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mark(u64);

impl Uncommitted {
    /// Keeps everybody else out of it.
    #[cfg(test)]
    pub(crate) fn hold(&self) -> impl Sized {
        self.state.lock_here()
    }

    /// A write was answered as unstable.
    pub(crate) fn written(&self, verifier: Verifier) {
        let mut state = self.state.lock_here();
        state.answered += 1;
        state.lost |= *state.first.get_or_insert(verifier) != verifier;
    }

    /// The verifier of the writes watched, if there are any.
    pub(crate) fn verifier(&self) -> Option<Verifier> {
        self.state.lock_here().first
    }

    /// How what was written since the beginning stands.
    pub(crate) fn standing(&self) -> Standing {
        let state = self.state.lock_here();
        match state.first {
            _ if state.lost => Standing::Lost,
            Some(verifier) => Standing::Unstable(verifier),
            None => Standing::Stable,
        }
    }

    /// True when something may have been lost and only a COMMIT can tell; `restarted` says that the
    /// server has restarted since the file was opened.
    pub(crate) fn is_in_doubt(&self, restarted: bool) -> bool {
        let state = self.state.lock_here();
        state.lost || (restarted && state.first.is_some())
    }

    /// To be called before a COMMIT is sent.
    pub(crate) fn mark(&self) -> Mark {
        Mark(self.state.lock_here().answered)
    }

    /// True when a COMMIT that was answered with `verifier` covers all that it was meant for;
    /// `whole` says that this was the whole file. A loss is reported once.
    pub(crate) fn committed(&self, mark: Mark, verifier: Verifier, whole: bool) -> bool {
        let mut state = self.state.lock_here();
        if mark.0 <= state.settled {
            // One that was sent later has told it, or there was nothing to tell.
            return true;
        }
        let survived = !state.lost && state.first.is_none_or(|first| first == verifier);
        if whole || !survived {
            // A write that was answered meanwhile may have come after the COMMIT.
            state.first = (state.answered != mark.0).then_some(verifier);
            state.lost = false;
            state.settled = mark.0;
        }
        survived
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
    fn who_keeps_the_data_is_told_when_two_verifiers_answered() {
        let writes = Uncommitted::default();
        assert_eq!(writes.standing(), Standing::Stable);
        writes.written(OLD);
        assert_eq!(writes.standing(), Standing::Unstable(OLD));
        writes.written(NEW);
        assert_eq!(writes.standing(), Standing::Lost);
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
        assert!(writes.committed(early, NEW, true), "told once");
        writes.written(NEW);
        assert!(commit(&writes, NEW, true));
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
