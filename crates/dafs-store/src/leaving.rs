//! The order in which unwanted data leaves the cache of a server: data that clients do not expect to
//! need again leaves before all other data (DAFS 13.4).
//!
//! A server sees no pressure on the cache of its kernel. So it keeps a bounded amount of such data,
//! for other clients that may still want it, and drops the oldest beyond the bound. It also
//! remembers data that it could not drop: what is not stable yet stays in the cache until a commit,
//! and the kernel drops large pages only when a range covers them as a whole.
//!
//! Invariants
//! * Bytes that leave first, and the numbers of ranges in both lists, are bounded.
//! * A byte of a file is in the lists at most once.

use crate::limits::{LEAVING_RANGES_MAX, LEAVING_STEP_BYTES};
use dafs_mem::Mutex;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Ranges of files that leave the cache first, by the keys of their files.
#[derive(Debug)]
pub struct Leaving<K> {
    bytes_max: u64,
    /// The numbers of ranges in both lists, and in that of dropped ones, readable without the lock.
    count: AtomicUsize,
    dropped_count: AtomicUsize,
    lists: Mutex<Lists<K>>,
}

#[derive(Debug)]
struct Lists<K> {
    /// Unwanted data in the cache, oldest first.
    first: Ranges<K>,
    /// Data that was dropped, and may not have left.
    dropped: Ranges<K>,
}

#[derive(Debug)]
struct Ranges<K>(VecDeque<(K, Range<u64>)>);

impl<K: Copy + Eq> Leaving<K> {
    /// Makes an empty list that keeps up to `bytes_max` bytes of unwanted data in the cache.
    pub fn new(bytes_max: u64) -> Self {
        let lists = Lists { first: Ranges::new(), dropped: Ranges::new() };
        let count = AtomicUsize::new(0);
        Self { bytes_max, count, dropped_count: AtomicUsize::new(0), lists: Mutex::new(lists) }
    }

    /// Enters a range that leaves first. Returns the ranges that leave now, oldest first: only those
    /// beyond the bound.
    pub fn leaves_first(&self, key: K, range: Range<u64>) -> Vec<(K, Range<u64>)> {
        let mut leaving = Vec::new();
        if range.is_empty() {
            return leaving;
        }
        self.change(|lists| {
            lists.cut(&key, &range);
            lists.first.insert(key, range, u64::MAX);
            while let Some(oldest) = lists.first.pop_beyond(self.bytes_max) {
                leaving.push(oldest);
            }
        });
        leaving
    }

    /// Enters a range that is about to be dropped. Returns the range to drop: this one, with those
    /// beside it that did not leave before. The caller reports the outcome with
    /// [`has_left`](Self::has_left).
    pub fn leaves_now(&self, key: K, range: Range<u64>) -> Range<u64> {
        let mut whole = range.clone();
        if !range.is_empty() {
            self.change(|lists| {
                lists.cut(&key, &range);
                whole = lists.dropped.insert(key, range, LEAVING_STEP_BYTES);
            });
        }
        whole
    }

    /// Takes a dropped range off the list, because no page of it is in the cache any more.
    pub fn has_left(&self, key: K, range: &Range<u64>) {
        self.change(|lists| lists.dropped.cut(&key, range));
    }

    /// Takes a range off the lists, because it is wanted again.
    pub fn stays(&self, key: K, range: Range<u64>) {
        if self.count.load(Ordering::Acquire) != 0 {
            self.change(|lists| lists.cut(&key, &range));
        }
    }

    /// Takes the dropped ranges of a file off the list, because its data is stable now and can leave.
    pub fn committed(&self, key: K) -> Vec<Range<u64>> {
        let mut taken = Vec::new();
        if self.dropped_count.load(Ordering::Acquire) != 0 {
            self.change(|lists| {
                lists.dropped.0.retain(|(of, range)| {
                    let leaves = *of == key;
                    if leaves {
                        taken.push(range.clone());
                    }
                    !leaves
                });
            });
        }
        taken
    }

    fn change(&self, change: impl FnOnce(&mut Lists<K>)) {
        let mut lists = self.lists.lock();
        change(&mut lists);
        // Data off the list stays in the cache like any other.
        lists.first.trim();
        lists.dropped.trim();
        let dropped = lists.dropped.0.len();
        self.dropped_count.store(dropped, Ordering::Release);
        self.count.store(lists.first.0.len() + dropped, Ordering::Release);
    }
}

impl<K: Copy + Eq> Lists<K> {
    fn cut(&mut self, key: &K, range: &Range<u64>) {
        self.first.cut(key, range);
        self.dropped.cut(key, range);
    }
}

impl<K: Copy + Eq> Ranges<K> {
    const fn new() -> Self {
        Self(VecDeque::new())
    }

    fn trim(&mut self) {
        let excess = self.0.len().saturating_sub(LEAVING_RANGES_MAX);
        self.0.drain(..excess);
    }

    /// Takes a range of a file out of all entries.
    fn cut(&mut self, key: &K, range: &Range<u64>) {
        for at in (0..self.0.len()).rev() {
            let (of, entry) = &self.0[at];
            if of != key || entry.start >= range.end || range.start >= entry.end {
                continue;
            }
            let parts = [range.end..entry.end, entry.start..range.start];
            self.0.remove(at);
            for part in parts.into_iter().filter(|part| part.start < part.end) {
                self.0.insert(at, (*key, part));
            }
        }
    }

    /// Adds a range as the newest, merged with those beside it up to `bytes_max` bytes. Returns the
    /// whole.
    fn insert(&mut self, key: K, range: Range<u64>, bytes_max: u64) -> Range<u64> {
        let mut whole = range;
        self.0.retain(|(of, entry)| {
            let beside = entry.end == whole.start || whole.end == entry.start;
            let both = entry.start.min(whole.start)..entry.end.max(whole.end);
            let joins = *of == key && beside && both.end - both.start <= bytes_max;
            if joins {
                whole = both;
            }
            !joins
        });
        self.0.push_back((key, whole.clone()));
        whole
    }

    /// Takes the oldest range, or its beginning, if there are too many bytes or ranges.
    fn pop_beyond(&mut self, bytes_max: u64) -> Option<(K, Range<u64>)> {
        let bytes: u128 = self.0.iter().map(|(_, range)| u128::from(range.end - range.start)).sum();
        let excess = bytes.saturating_sub(bytes_max.into());
        if self.0.len() > LEAVING_RANGES_MAX {
            return self.0.pop_front();
        }
        let (key, oldest) = self.0.front_mut().filter(|_| excess > 0)?;
        // Large pages leave only as a whole.
        let end = u64::try_from(excess).ok().and_then(|excess| oldest.start.checked_add(excess));
        let end = end.and_then(|end| end.checked_next_multiple_of(LEAVING_STEP_BYTES));
        match end.filter(|end| *end < oldest.end) {
            None => self.0.pop_front(),
            Some(end) => {
                let beginning = (*key, oldest.start..end);
                oldest.start = end;
                Some(beginning)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_unwanted_data_leaves_beyond_the_bound() {
        let leaving = Leaving::new(100);
        assert_eq!(leaving.leaves_first(1, 0..60), []);
        assert_eq!(leaving.leaves_first(2, 0..40), []);
        assert_eq!(leaving.leaves_first(3, 0..10), [(1, 0..60)]);
        assert_eq!(leaving.leaves_first(3, 500..700), [(2, 0..40), (3, 0..10), (3, 500..700)]);
    }

    #[test]
    fn only_the_excess_of_a_long_range_leaves() {
        let (step, leaving) = (LEAVING_STEP_BYTES, Leaving::new(4 * LEAVING_STEP_BYTES));
        assert_eq!(leaving.leaves_first(1, 0..3 * step), []);
        assert_eq!(leaving.leaves_first(1, 3 * step..5 * step), [(1, 0..step)]);
        assert_eq!(leaving.leaves_first(1, 5 * step..5 * step + 1), [(1, step..2 * step)]);
        let all = leaving.leaves_first(2, 0..10 * step);
        assert_eq!(all, [(1, 2 * step..5 * step + 1), (2, 0..6 * step)]);
    }

    #[test]
    fn a_range_that_comes_again_is_the_newest() {
        let leaving = Leaving::new(100);
        leaving.leaves_first(1, 0..50);
        leaving.leaves_first(2, 0..50);
        leaving.leaves_first(1, 0..50);
        assert_eq!(leaving.leaves_first(3, 0..50), [(2, 0..50)]);
    }

    #[test]
    fn wanted_data_stays() {
        let leaving = Leaving::new(100);
        leaving.leaves_first(1, 0..100);
        leaving.stays(2, 0..100);
        leaving.stays(1, 20..30);
        assert_eq!(leaving.leaves_first(2, 0..60), [(1, 0..20), (1, 30..100)]);
        leaving.stays(2, 0..u64::MAX);
        assert_eq!(leaving.leaves_first(3, 0..100), []);
        assert_eq!(leaving.leaves_first(4, 7..7), []);
        assert_eq!(leaving.leaves_now(4, 7..7), 7..7);
    }

    #[test]
    fn ranges_beside_each_other_are_dropped_as_one() {
        let leaving = Leaving::new(100);
        assert_eq!(leaving.leaves_now(1, 10..20), 10..20);
        assert_eq!(leaving.leaves_now(1, 30..40), 30..40);
        assert_eq!(leaving.leaves_now(2, 20..30), 20..30);
        assert_eq!(leaving.leaves_now(1, 20..30), 10..40);
        let far = LEAVING_STEP_BYTES;
        assert_eq!(leaving.leaves_now(1, 40..far + 40), 40..far + 40, "too long for one");
        leaving.has_left(1, &(0..40));
        assert_eq!(leaving.leaves_now(1, 0..10), 0..10, "nothing of it is left beside it");
    }

    #[test]
    fn a_commit_drops_what_was_to_leave_and_nothing_else() {
        let leaving = Leaving::new(100);
        assert_eq!(leaving.committed(1), []);
        leaving.leaves_now(1, 0..10);
        leaving.leaves_now(1, 20..30);
        leaving.leaves_now(2, 0..10);
        leaving.leaves_first(1, 40..50);
        assert_eq!(leaving.committed(1), [0..10, 20..30]);
        assert_eq!(leaving.committed(1), []);
        assert_eq!(leaving.committed(2).len(), 1);
    }

    #[test]
    fn the_number_of_ranges_is_bounded() {
        let leaving = Leaving::new(u64::MAX);
        for at in 0..10_000 {
            leaving.leaves_now(1, at * 10..at * 10 + 1);
        }
        assert_eq!(leaving.committed(1).len(), LEAVING_RANGES_MAX);
        let left = (0..10_000).map(|at| leaving.leaves_first(1, at * 10..at * 10 + 1).len());
        assert_eq!(left.sum::<usize>(), 10_000 - LEAVING_RANGES_MAX);
        // A part that stays in the middle of a range makes two of it.
        let leaving = Leaving::new(u64::MAX);
        leaving.leaves_first(1, 0..100_000);
        leaving.leaves_now(2, 0..100_000);
        for at in 0..10_000 {
            leaving.stays(1, at * 10..at * 10 + 1);
            leaving.stays(2, at * 10..at * 10 + 1);
        }
        let lists = leaving.lists.lock();
        assert_eq!([lists.first.0.len(), lists.dropped.0.len()], [LEAVING_RANGES_MAX; 2]);
    }
}
