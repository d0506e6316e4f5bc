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

    /// Enters ranges of a file that are in the cache and leave first. Returns the ranges that leave
    /// now, oldest first: only those beyond the bound.
    pub fn leaves_first(&self, key: K, ranges: Vec<Range<u64>>) -> Vec<(K, Range<u64>)> {
        let mut leaving = Vec::new();
        if !ranges.is_empty() {
            self.change(|lists| {
                for range in ranges {
                    lists.cut(&key, &range);
                    lists.first.insert(key, range);
                }
                while let Some(oldest) = lists.first.pop_beyond(self.bytes_max) {
                    leaving.push(oldest);
                }
            });
        }
        leaving
    }

    /// Enters a range that is about to be dropped. Returns the range to drop: this one, and what did
    /// not leave before beside it, within the same large pages. The caller reports the outcome with
    /// [`remains`](Self::remains).
    pub fn leaves_now(&self, key: K, range: Range<u64>) -> Range<u64> {
        let mut whole = range.clone();
        if !range.is_empty() {
            self.change(|lists| {
                lists.cut(&key, &range);
                whole = lists.dropped.around(&key, &range);
                lists.dropped.insert(key, range);
            });
        }
        whole
    }

    /// Notes what is in the cache of a range that was dropped.
    pub fn remains(&self, key: K, range: &Range<u64>, left: Vec<Range<u64>>) {
        self.change(|lists| {
            lists.dropped.cut(&key, range);
            left.into_iter().for_each(|left| lists.dropped.insert(key, left));
        });
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

    /// Adds a range as the newest, merged with those beside it up to the size of a large page.
    fn insert(&mut self, key: K, range: Range<u64>) {
        let mut whole = range;
        self.0.retain(|(of, entry)| {
            let beside = entry.end == whole.start || whole.end == entry.start;
            let both = entry.start.min(whole.start)..entry.end.max(whole.end);
            let joins = *of == key && beside && both.end - both.start <= LEAVING_STEP_BYTES;
            if joins {
                whole = both;
            }
            !joins
        });
        self.0.push_back((key, whole));
    }

    /// Returns a range with the entries beside it, as far as they lie in its large pages.
    fn around(&self, key: &K, range: &Range<u64>) -> Range<u64> {
        let mut whole = range.clone();
        let first = range.start - range.start % LEAVING_STEP_BYTES;
        let last = range.end.checked_next_multiple_of(LEAVING_STEP_BYTES).unwrap_or(range.end);
        // Each pass finds the next one, if there is one.
        loop {
            let beside = |(of, entry): &&(K, Range<u64>)| {
                let before = entry.end == whole.start && whole.start > first;
                of == key && (before || entry.start == whole.end && whole.end < last)
            };
            let Some((_, entry)) = self.0.iter().find(beside) else { return whole };
            whole = entry.start.max(first).min(whole.start)..entry.end.min(last).max(whole.end);
        }
    }

    /// Takes the oldest range, if there are too many bytes or ranges.
    fn pop_beyond(&mut self, bytes_max: u64) -> Option<(K, Range<u64>)> {
        let bytes: u128 = self.0.iter().map(|(_, range)| u128::from(range.end - range.start)).sum();
        let is_full = bytes > bytes_max.into() || self.0.len() > LEAVING_RANGES_MAX;
        if is_full { self.0.pop_front() } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: u64 = LEAVING_STEP_BYTES;

    fn first(leaving: &Leaving<u32>, key: u32, range: Range<u64>) -> Vec<(u32, Range<u64>)> {
        leaving.leaves_first(key, vec![range])
    }

    #[test]
    fn the_oldest_unwanted_data_leaves_beyond_the_bound() {
        let leaving = Leaving::new(100);
        assert_eq!(first(&leaving, 1, 0..60), []);
        assert_eq!(first(&leaving, 2, 0..40), []);
        assert_eq!(first(&leaving, 3, 0..10), [(1, 0..60)]);
        assert_eq!(first(&leaving, 3, 500..700), [(2, 0..40), (3, 0..10), (3, 500..700)]);
    }

    #[test]
    fn only_the_oldest_parts_of_a_long_use_leave() {
        let leaving = Leaving::new(4 * STEP);
        for at in 0..4 {
            assert_eq!(first(&leaving, 1, at * STEP..(at + 1) * STEP), []);
        }
        // The first part is used again.
        assert_eq!(first(&leaving, 1, 0..STEP), []);
        assert_eq!(first(&leaving, 2, 0..STEP), [(1, STEP..2 * STEP)]);
    }

    #[test]
    fn a_range_that_comes_again_is_the_newest() {
        let leaving = Leaving::new(100);
        first(&leaving, 1, 0..50);
        first(&leaving, 2, 0..50);
        first(&leaving, 1, 0..50);
        assert_eq!(first(&leaving, 3, 0..50), [(2, 0..50)]);
    }

    #[test]
    fn wanted_data_stays() {
        let leaving = Leaving::new(100);
        first(&leaving, 1, 0..100);
        leaving.stays(2, 0..100);
        leaving.stays(1, 20..30);
        assert_eq!(first(&leaving, 2, 0..60), [(1, 0..20), (1, 30..100)]);
        leaving.stays(2, 0..u64::MAX);
        assert_eq!(first(&leaving, 3, 0..100), []);
        assert_eq!(leaving.leaves_first(4, Vec::new()), []);
        assert_eq!(leaving.leaves_now(4, 7..7), 7..7);
    }

    #[test]
    fn ranges_beside_each_other_are_dropped_as_one() {
        let leaving = Leaving::new(100);
        assert_eq!(leaving.leaves_now(1, 10..20), 10..20);
        assert_eq!(leaving.leaves_now(1, 30..40), 30..40);
        assert_eq!(leaving.leaves_now(2, 20..30), 20..30);
        assert_eq!(leaving.leaves_now(1, 20..30), 10..40);
        leaving.remains(1, &(10..40), std::iter::once(35..40).collect());
        assert_eq!(leaving.leaves_now(1, 0..35), 0..40, "it is dropped with what remains");
        leaving.remains(1, &(0..40), Vec::new());
        assert_eq!(leaving.leaves_now(1, 40..50), 40..50, "nothing remains beside it");
        // A large page lies in two ranges that are longer.
        let half = STEP / 2;
        assert_eq!(leaving.leaves_now(3, 0..3 * half), 0..3 * half);
        assert_eq!(leaving.leaves_now(3, 3 * half..6 * half), STEP..6 * half);
        assert_eq!(leaving.leaves_now(3, u64::MAX - 5..u64::MAX), u64::MAX - 5..u64::MAX);
    }

    #[test]
    fn a_commit_drops_what_was_to_leave_and_nothing_else() {
        let leaving = Leaving::new(100);
        assert_eq!(leaving.committed(1), []);
        leaving.leaves_now(1, 0..10);
        leaving.leaves_now(1, 20..30);
        leaving.leaves_now(2, 0..10);
        first(&leaving, 1, 40..50);
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
        let left = (0..10_000).map(|at| first(&leaving, 1, at * 10..at * 10 + 1).len());
        assert_eq!(left.sum::<usize>(), 10_000 - LEAVING_RANGES_MAX);
        // A part that stays in the middle of a range makes two of it.
        let leaving = Leaving::new(u64::MAX);
        first(&leaving, 1, 0..100_000);
        leaving.leaves_now(2, 0..100_000);
        for at in 0..10_000 {
            leaving.stays(1, at * 10..at * 10 + 1);
            leaving.stays(2, at * 10..at * 10 + 1);
        }
        let lists = leaving.lists.lock();
        assert_eq!([lists.first.0.len(), lists.dropped.0.len()], [LEAVING_RANGES_MAX; 2]);
    }
}
