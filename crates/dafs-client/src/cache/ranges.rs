//! A set of bytes of a block: a short list of ranges.
//!
//! Invariants
//! * The ranges are in order, none is empty, and no two overlap or touch.

use smallvec::SmallVec;
use std::ops::Range;

/// A set of bytes of one block.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Ranges(SmallVec<[(u32, u32); 2]>);

impl Ranges {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of ranges.
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// The number of bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.0.iter().map(|&(start, end)| u64::from(end - start)).sum()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Range<u32>> + '_ {
        self.0.iter().map(|&(start, end)| start..end)
    }

    pub(super) fn insert(&mut self, range: Range<u32>) {
        if range.is_empty() {
            return;
        }
        // Ranges that overlap or touch are merged.
        let first = self.0.partition_point(|&(_, end)| end < range.start);
        let after = self.0.partition_point(|&(start, _)| start <= range.end);
        if first == after {
            return self.0.insert(first, (range.start, range.end));
        }
        let start = self.0[first].0.min(range.start);
        let end = self.0[after - 1].1.max(range.end);
        self.0[first] = (start, end);
        self.0.drain(first + 1..after);
    }

    pub(super) fn remove(&mut self, range: Range<u32>) {
        if range.is_empty() || !self.overlaps(&range) {
            return;
        }
        let mut left = SmallVec::new();
        for &(start, end) in &self.0 {
            let before = (start, end.min(range.start));
            let behind = (start.max(range.end), end);
            left.extend([before, behind].into_iter().filter(|(start, end)| start < end));
        }
        self.0 = left;
    }

    /// True when all of `range` is in it.
    pub(super) fn contains(&self, range: &Range<u32>) -> bool {
        let at = self.0.partition_point(|&(_, end)| end < range.end);
        range.is_empty() || self.0.get(at).is_some_and(|&(start, _)| start <= range.start)
    }

    pub(super) fn overlaps(&self, range: &Range<u32>) -> bool {
        self.overlap(range.clone()).next().is_some()
    }

    /// The parts of `range` that are in it.
    pub(super) fn overlap(&self, range: Range<u32>) -> impl Iterator<Item = Range<u32>> + '_ {
        let first = self.0.partition_point(|&(_, end)| end <= range.start);
        let inside = self.0[first..].iter().take_while(move |&&(start, _)| start < range.end);
        let parts = inside.map(move |&(start, end)| start.max(range.start)..end.min(range.end));
        parts.filter(|part| !part.is_empty())
    }

    /// The parts of `range` that are not in it.
    pub(super) fn gaps(&self, range: Range<u32>) -> SmallVec<[Range<u32>; 2]> {
        let mut gaps = SmallVec::new();
        let mut at = range.start;
        for inside in self.overlap(range.clone()) {
            if at < inside.start {
                gaps.push(at..inside.start);
            }
            at = inside.end;
        }
        if at < range.end {
            gaps.push(at..range.end);
        }
        gaps
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BYTES: u32 = 64;

    fn members(ranges: &Ranges) -> Vec<bool> {
        (0..BYTES).map(|at| ranges.contains(&(at..at + 1))).collect()
    }

    proptest! {
        #[test]
        fn they_are_the_set_of_their_bytes(
            steps in proptest::collection::vec((any::<bool>(), 0..BYTES, 0..=BYTES), 1..40),
        ) {
            let mut ranges = Ranges::default();
            let mut model = vec![false; BYTES as usize];
            for (insert, start, end) in steps {
                let range = start..end.max(start);
                model[start as usize..range.end as usize].fill(insert);
                if insert { ranges.insert(range.clone()) } else { ranges.remove(range.clone()) }
                prop_assert_eq!(&members(&ranges), &model);
                prop_assert_eq!(ranges.bytes(), model.iter().filter(|byte| **byte).count() as u64);
                let list: Vec<_> = ranges.iter().collect();
                prop_assert!(list.iter().all(|range| !range.is_empty()));
                prop_assert!(list.windows(2).all(|pair| pair[0].end < pair[1].start));
                let inside = &model[start as usize..range.end as usize];
                prop_assert_eq!(ranges.overlaps(&range), inside.contains(&true));
                prop_assert_eq!(ranges.contains(&range), !inside.contains(&false));
                let mut gaps = vec![false; BYTES as usize];
                for gap in ranges.gaps(range.clone()) {
                    gaps[gap.start as usize..gap.end as usize].fill(true);
                }
                for at in range {
                    prop_assert_eq!(gaps[at as usize], !model[at as usize]);
                }
            }
        }
    }
}
