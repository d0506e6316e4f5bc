//! The parts of a file that a layout still covers.
//!
//! Invariants
//! * Parts are in order and do not touch. There are at most [`SPANS_MAX`]. A return that would make
//!   more parts is ignored: its holder keeps more than it knows, which does no harm.

use crate::limits::LAYOUT_SPANS_MAX as SPANS_MAX;

/// Ranges from the first byte to behind the last. `u64::MAX` is the end of any file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Spans(Vec<(u64, u64)>);

impl Spans {
    pub(super) fn whole() -> Self {
        Self(vec![(0, u64::MAX)])
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn remove(&mut self, first: u64, end: u64) {
        if first >= end {
            return;
        }
        let cut = |&(a, b): &(u64, u64)| [(a, b.min(first)), (a.max(end), b)];
        let left: Vec<_> = self.0.iter().flat_map(cut).filter(|(a, b)| a < b).collect();
        if left.len() <= SPANS_MAX {
            self.0 = left;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layout_returned_in_parts_is_gone_at_the_end() {
        let mut spans = Spans::whole();
        spans.remove(100, 200);
        assert_eq!(spans.0, [(0, 100), (200, u64::MAX)]);
        spans.remove(150, 300);
        spans.remove(7, 7);
        assert_eq!(spans.0, [(0, 100), (300, u64::MAX)]);
        spans.remove(0, 100);
        assert_eq!(spans.0, [(300, u64::MAX)]);
        assert!(!spans.is_empty());
        spans.remove(0, u64::MAX);
        assert!(spans.is_empty());
    }

    #[test]
    fn a_client_cannot_exceed_the_number_of_parts() {
        let mut spans = Spans::whole();
        for at in 0..10 * SPANS_MAX as u64 {
            spans.remove(2 * at, 2 * at + 1);
        }
        assert!(spans.0.len() <= SPANS_MAX);
        spans.remove(0, u64::MAX);
        assert!(spans.is_empty());
    }
}
