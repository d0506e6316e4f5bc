//! The windows that one question about the places of a file's blocks names.
//!
//! Invariants
//! * A question names the windows that a read needs, and no more than X_EXPOSE_GET may name.
//! * Two groups of the same width are the same, or have no window in common. So questions leave no gaps
//!   between groups.

use dafs_wire::dafs::EXPOSED_WINDOWS_MAX;
use std::ops::RangeInclusive;

/// The most windows of one question.
const WINDOWS_MAX: u64 = EXPOSED_WINDOWS_MAX as u64;

/// The number of windows to ask for at a time: twice as many after each answer with the place of a window
/// that a read needed, because reads go on beside it. One after an answer without: the server may tell of
/// fewer windows than it was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AskWidth(u64);

impl Default for AskWidth {
    fn default() -> Self {
        Self(1)
    }
}

impl AskWidth {
    /// The windows to ask for when a read needs some, with those beside the first one whose place is not
    /// known. Where all are known, these alone: they may have changed.
    pub(crate) fn windows(
        self,
        needed: &RangeInclusive<u64>,
        is_known: impl Fn(u64) -> bool,
    ) -> RangeInclusive<u64> {
        let Some(missed) = needed.clone().find(|window| !is_known(*window)) else {
            return needed.clone();
        };
        let first = missed - missed % self.0;
        let last = first.saturating_add(self.0 - 1).max(*needed.end());
        first.max(last.saturating_sub(WINDOWS_MAX - 1))..=last
    }

    /// Notes an answer. The places of all windows that a read needed were known before, and are now.
    pub(crate) fn answered(&mut self, was_known: bool, is_known: bool) {
        match (was_known, is_known) {
            (true, _) => {}
            (false, true) => self.0 = (self.0 * 2).min(WINDOWS_MAX),
            (false, false) => self.0 = 1,
        }
    }
}

// Else two questions of the largest width could leave a gap.
const _: () = assert!(WINDOWS_MAX.is_power_of_two());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_about_twice_as_many_windows_after_each_answer() {
        let (mut width, mut asked) = (AskWidth::default(), Vec::new());
        for _ in 0..8 {
            let windows = width.windows(&(1000..=1000), |_| false);
            let count = windows.clone().count() as u64;
            assert!(windows.contains(&1000) && windows.start().is_multiple_of(count));
            asked.push(count);
            width.answered(false, true);
        }
        assert_eq!(asked, [1, 2, 4, 8, 16, 32, 64, 64]);
        // News about a known window says nothing about others.
        width.answered(true, true);
        assert_eq!(width, AskWidth(64));
        width.answered(false, false);
        assert_eq!(width.windows(&(1000..=1000), |_| false), 1000..=1000);
    }

    #[test]
    fn a_question_has_all_windows_that_a_read_needs() {
        let unknown = |_: u64| false;
        for (width, asked) in [(1, 7..=8), (2, 6..=8), (4, 4..=8), (8, 0..=8)] {
            assert_eq!(AskWidth(width).windows(&(7..=8), unknown), asked);
        }
        assert_eq!(AskWidth(64).windows(&(63..=64), unknown), 1..=64, "no more than 64");
        assert_eq!(AskWidth(8).windows(&(7..=8), |window| window == 7), 8..=15);
        assert_eq!(AskWidth(8).windows(&(7..=8), |_| true), 7..=8);
        let end = AskWidth(64).windows(&(u64::MAX..=u64::MAX), unknown);
        assert_eq!(end, u64::MAX - 63..=u64::MAX);
    }
}
