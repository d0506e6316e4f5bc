//! Change locks: the locks on names and files that changes under way hold.
//!
//! Invariants
//! * A change enters the queues of all its locks at once, in the order of the intents, so there is
//!   no deadlock. A change with a name may wait for the lock of one file after that, and releases
//!   it before it waits for another. The holder of a file's lock waits for no other lock.
//! * A lock is held by one change, or shared by several that hold it in the same mode.
//! * After a logged change has released a lock, the position of its last record in the log is known
//!   here, until the log is durable up to there.

use crate::handle::Handle;
use rustc_hash::{FxHashMap, FxHasher};
use smallvec::SmallVec;
use std::hash::{Hash, Hasher};

/// A change lock. Two different objects may share one by their hash, which makes one of their
/// changes wait for no reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct ChangeLock {
    what: u64,
    hold: Hold,
}

/// The mode in which a change holds a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Hold {
    /// Exclusive.
    Alone,
    /// Shared with other writes at an offset.
    Write,
    /// Shared with other guarded changes.
    Guard,
}

/// The locks of one change.
pub(super) type LockList = SmallVec<[ChangeLock; 2]>;

impl ChangeLock {
    /// The lock of a name in a directory. `dir` is the key of the directory in the table of opens.
    pub(super) fn name(dir: &Handle, name: &[u8]) -> Self {
        let mut hasher = FxHasher::default();
        (dir, name).hash(&mut hasher);
        Self { what: hasher.finish(), hold: Hold::Alone }
    }

    /// The lock of a file's content and attributes.
    pub(super) fn file(file: &Handle, hold: Hold) -> Self {
        let mut hasher = FxHasher::default();
        file.hash(&mut hasher);
        Self { what: hasher.finish(), hold }
    }

    /// The same lock for a guarded change.
    pub(super) fn guarded(self) -> Self {
        Self { hold: Hold::Guard, ..self }
    }
}

/// The positions up to which the log must be durable before an object of logged changes is changed
/// again. Otherwise a finished change would look after a crash as if it had never begun.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Ends {
    /// To survive the end of the process.
    pub(super) written: u64,
    /// To survive a loss of power.
    pub(super) stable: u64,
}

impl Ends {
    fn join(self, other: Self) -> Self {
        let (written, stable) = (self.written.max(other.written), self.stable.max(other.stable));
        Self { written, stable }
    }
}

/// The holders and waiters of all locks, first come first served.
#[derive(Debug, Default)]
pub(super) struct ChangeLocks {
    lines: FxHashMap<u64, SmallVec<[(u64, Hold); 2]>>,
    ends: FxHashMap<u64, Ends>,
    /// The number of ends at which durable ones are removed.
    sweep_at: usize,
}

impl ChangeLocks {
    /// Enqueues a change. True when it need not wait.
    pub(super) fn enter(&mut self, op: u64, locks: &[ChangeLock]) -> bool {
        for (index, lock) in locks.iter().enumerate() {
            if !locks[..index].iter().any(|earlier| earlier.what == lock.what) {
                self.lines.entry(lock.what).or_default().push((op, lock.hold));
            }
        }
        self.is_first(op, locks)
    }

    /// Enqueues a change at one more lock. True when it need not wait there.
    pub(super) fn join(&mut self, op: u64, lock: ChangeLock) -> bool {
        let line = self.lines.entry(lock.what).or_default();
        if !line.iter().any(|&(other, _)| other == op) {
            line.push((op, lock.hold));
        }
        self.is_first(op, &[lock])
    }

    /// True if no other change blocks this one.
    pub(super) fn is_first(&self, op: u64, locks: &[ChangeLock]) -> bool {
        locks.iter().all(|lock| {
            let line = self.lines.get(&lock.what).map_or(&[][..], |line| line.as_slice());
            let at = line.iter().position(|&(other, _)| other == op).unwrap_or(0);
            at == 0 || at < in_front(line)
        })
    }

    /// Removes a change, and adds to `next` the changes that it does not block any more.
    pub(super) fn leave(&mut self, op: u64, locks: &[ChangeLock], next: &mut Vec<u64>) {
        for lock in locks {
            let Some(line) = self.lines.get_mut(&lock.what) else { continue };
            let Some(at) = line.iter().position(|&(other, _)| other == op) else { continue };
            let before = in_front(line);
            line.remove(at);
            // The holders in front stay there.
            let stay = before - usize::from(at < before);
            next.extend(line[..in_front(line)].iter().skip(stay).map(|&(other, _)| other));
            if line.is_empty() {
                self.lines.remove(&lock.what);
            }
        }
    }

    /// Notes the log positions of a change that releases its locks. `is_kept` is true for positions
    /// that need no note any more.
    pub(super) fn end(
        &mut self,
        locks: &[ChangeLock],
        ends: Ends,
        is_kept: impl Fn(&Ends) -> bool,
    ) {
        if self.ends.len() >= self.sweep_at {
            self.ends.retain(|_, ends| !is_kept(ends));
            // Each swept entry was added since the last sweep, so the cost of an entry is a check
            // or two.
            self.sweep_at = (2 * self.ends.len()).max(ENDS_SWEEP_MIN);
        }
        for lock in locks {
            let former = self.ends.entry(lock.what).or_default();
            *former = former.join(ends);
        }
    }

    /// Returns up to where the log must be durable before the objects of these locks change.
    pub(super) fn ends<'a>(&self, locks: impl IntoIterator<Item = &'a ChangeLock>) -> Ends {
        let ends = locks.into_iter().filter_map(|lock| self.ends.get(&lock.what));
        ends.copied().fold(Ends::default(), Ends::join)
    }

    /// The number of locks that are held.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.lines.len()
    }
}

/// With fewer ends there is no sweep.
const ENDS_SWEEP_MIN: usize = 1024;

/// The number of changes that hold a lock together. The others wait.
fn in_front(line: &[(u64, Hold)]) -> usize {
    match line.first() {
        None => 0,
        Some((_, Hold::Alone)) => 1,
        Some((_, first)) => line.iter().take_while(|(_, hold)| hold == first).count(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_store::{FILE_ID_BYTES, FileId, FsId};

    fn handle(id: u8) -> Handle {
        Handle { fs: FsId([0; 16]), file: FileId([id; FILE_ID_BYTES]) }
    }

    fn list(locks: &[ChangeLock]) -> LockList {
        locks.iter().copied().collect()
    }

    #[test]
    fn the_first_goes_and_those_that_share_go_together() {
        let mut locks = ChangeLocks::default();
        let exclusive = list(&[ChangeLock::file(&handle(1), Hold::Alone)]);
        let shared = list(&[ChangeLock::file(&handle(1), Hold::Write)]);
        assert!(locks.enter(1, &shared));
        assert!(locks.enter(2, &shared));
        assert!(!locks.enter(3, &exclusive));
        assert!(!locks.enter(4, &shared), "nobody overtakes");
        let mut next = Vec::new();
        locks.leave(1, &shared, &mut next);
        assert!(!locks.is_first(3, &exclusive));
        locks.leave(2, &shared, &mut next);
        assert!(locks.is_first(3, &exclusive) && !locks.is_first(4, &shared));
        assert_eq!(next, [3]);
        locks.leave(3, &exclusive, &mut next);
        assert!(next.contains(&4) && locks.is_first(4, &shared));
        locks.leave(4, &shared, &mut next);
        assert_eq!(locks.len(), 0);
    }

    #[test]
    fn changes_that_nothing_is_kept_of_go_together_and_with_no_others() {
        let mut locks = ChangeLocks::default();
        let guard = list(&[ChangeLock::file(&handle(1), Hold::Guard)]);
        let write = list(&[ChangeLock::file(&handle(1), Hold::Write)]);
        assert!(locks.enter(1, &guard));
        assert!(locks.enter(2, &guard) && locks.join(2, guard[0]));
        assert!(!locks.enter(3, &write));
        assert!(!locks.enter(4, &guard), "nobody overtakes");
        locks.leave(1, &guard, &mut Vec::new());
        assert!(!locks.is_first(3, &write));
        locks.leave(2, &guard, &mut Vec::new());
        assert!(locks.is_first(3, &write) && !locks.is_first(4, &guard));
        locks.leave(3, &write, &mut Vec::new());
        assert!(locks.is_first(4, &guard));
        locks.leave(4, &guard, &mut Vec::new());
        assert_eq!(locks.len(), 0);
    }

    /// Waiters that cannot go on are not woken.
    #[test]
    fn only_those_are_told_who_can_go_on() {
        let mut locks = ChangeLocks::default();
        let guard = [ChangeLock::file(&handle(1), Hold::Guard)];
        let alone = [ChangeLock::file(&handle(1), Hold::Alone)];
        let leave = |locks: &mut ChangeLocks, op, lock: &[ChangeLock]| {
            let mut next = Vec::new();
            locks.leave(op, lock, &mut next);
            next
        };
        assert!(locks.enter(1, &guard) && locks.enter(2, &guard));
        assert!(!locks.enter(3, &alone) && !locks.enter(4, &guard) && !locks.enter(5, &alone));
        assert!(!locks.enter(6, &alone) && !locks.enter(7, &guard));
        assert_eq!(leave(&mut locks, 1, &guard), [], "the other is still there");
        assert_eq!(leave(&mut locks, 3, &alone), [4], "who stood between has gone");
        assert_eq!(leave(&mut locks, 6, &alone), [], "others are still in the way");
        assert_eq!(leave(&mut locks, 4, &guard), []);
        assert_eq!(leave(&mut locks, 2, &guard), [5]);
        assert_eq!(leave(&mut locks, 2, &guard), [], "it has gone");
        assert!(!locks.enter(8, &alone));
        assert_eq!(leave(&mut locks, 5, &alone), [7]);
        assert_eq!(leave(&mut locks, 7, &guard), [8]);
        assert_eq!(leave(&mut locks, 8, &alone), []);
        assert_eq!(locks.len(), 0);
    }

    #[test]
    fn ends_are_known_until_they_are_kept() {
        let mut locks = ChangeLocks::default();
        let at = |id: u16| ChangeLock::name(&handle(0), &id.to_be_bytes());
        let ends = |sequence| Ends { written: sequence, stable: sequence };
        let sweep = 4 * ENDS_SWEEP_MIN as u64;
        for sequence in 1..=sweep {
            let kept = |ends: &Ends| ends.stable + 10 < sequence;
            locks.end(&[at(sequence as u16), at(0)], ends(sequence), kept);
            assert!(locks.ends.len() <= ENDS_SWEEP_MIN + 2);
        }
        assert_eq!(locks.ends(&[at(0), at(9)]), ends(sweep), "nine is swept");
        assert_eq!(locks.ends(&[at(9)]), Ends::default());
        assert_eq!(locks.ends(&[at(sweep as u16 - 1)]), ends(sweep - 1));
        locks.end(&[at(0)], Ends { written: sweep + 1, stable: 0 }, |_| false);
        assert_eq!(locks.ends(&[at(0)]), Ends { written: sweep + 1, stable: sweep });
    }

    #[test]
    fn renames_that_cross_each_other_do_not_wait_for_ever() {
        let mut locks = ChangeLocks::default();
        let (a, b) = (ChangeLock::name(&handle(1), b"a"), ChangeLock::name(&handle(1), b"b"));
        let (one, two) = (list(&[a, b]), list(&[b, a]));
        assert!(locks.enter(1, &one));
        assert!(!locks.enter(2, &two));
        let same = list(&[a, a]);
        assert!(!locks.enter(3, &same));
        locks.leave(1, &one, &mut Vec::new());
        assert!(locks.is_first(2, &two) && !locks.is_first(3, &same));
        locks.leave(2, &two, &mut Vec::new());
        assert!(locks.is_first(3, &same));
        locks.leave(3, &same, &mut Vec::new());
        assert_eq!(locks.len(), 0);
    }
}
