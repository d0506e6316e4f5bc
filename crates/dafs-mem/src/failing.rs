//! The log of work that is repeated.

use std::sync::atomic::{AtomicBool, Ordering};

/// Remembers whether the last attempt of repeated work has failed. So a log gets the first failure and
/// the success after the last one, not every attempt while a disk or another machine fails.
#[derive(Debug, Default)]
pub struct Failing(AtomicBool);

impl Failing {
    /// Notes an attempt. Returns its outcome if it is worth a line: a failure after a success, or a
    /// success after a failure. Work has not failed before its first attempt.
    pub fn news<'a, T, E>(&self, outcome: &'a Result<T, E>) -> Option<&'a Result<T, E>> {
        let fails = outcome.is_err();
        (self.0.swap(fails, Ordering::Relaxed) != fails).then_some(outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failure_and_the_success_after_the_last_are_news() {
        let failing = Failing::default();
        let (well, ill) = (Ok::<u8, &str>(1), Err("a disk"));
        let attempts = [well, ill, ill, well, well, ill];
        let news: Vec<_> = attempts.iter().map(|outcome| failing.news(outcome).copied()).collect();
        assert_eq!(news, [None, Some(ill), None, Some(well), None, Some(ill)]);
    }
}
