//! The loop of a worker: small files are under way together, other objects are copied one by one.
//!
//! Invariants
//! * A worker never waits for the walk while it has files under way, because the walk may wait for them.
//! * A worker with as many files under way as it may have ends half of them before it begins others. It
//!   waits for the youngest of these first. The older ones are most often over then, so that it sleeps once.
//! * Each object's outcome is booked once, before the object is dropped.

use super::error::Outcome;
use super::queue::Queue;
use super::report::Report;
use super::room::Late;
use crate::limits::{SMALL_UNDER_WAY_MAX, WORKERS};
use std::collections::VecDeque;

/// Small files that a worker may have under way if the server takes `under_way_max` of all.
pub(super) fn share(under_way_max: usize) -> usize {
    (under_way_max / WORKERS).clamp(1, SMALL_UNDER_WAY_MAX)
}

/// Copies the objects of a queue, with up to `under_way_max` small files under way. `step` copies an
/// object, or begins a small file and returns it; for such a file it is called again, to end it. `bytes`
/// is the length of an object.
pub(super) fn work<T, S>(
    (report, late): (&Report, &Late<T>),
    (queue, under_way_max): (&Queue<'_, T>, usize),
    bytes: impl Fn(&T) -> u64,
    mut step: impl FnMut(&T, Option<S>) -> Outcome<Option<S>>,
) {
    let mut under_way = VecDeque::with_capacity(under_way_max);
    // Files to end before others begin: the oldest ones.
    let mut due: usize = 0;
    loop {
        let next = match under_way.len() {
            0 => queue.pop(),
            count if due == 0 && count < under_way_max => queue.pop_now(),
            count => {
                due = if due == 0 { count.div_ceil(2) } else { due };
                None
            }
        };
        let (object, active, outcome) = match next {
            Some(object) => {
                let active = report.room.begin();
                match step(&object, None) {
                    Ok(Some(small)) => {
                        under_way.push_back((object, active, small));
                        continue;
                    }
                    outcome => (object, active, outcome),
                }
            }
            None => {
                due = due.saturating_sub(1);
                let Some((object, active, small)) = under_way.remove(due) else { return };
                let outcome = step(&object, Some(small));
                (object, active, outcome)
            }
        };
        late.book(report, report.room.end(active, outcome.map(drop)), object, &bytes);
    }
}

/// Copies one object.
pub(super) fn alone<T, S>(
    object: &T,
    mut step: impl FnMut(&T, Option<S>) -> Outcome<Option<S>>,
) -> Outcome {
    match step(object, None)? {
        Some(small) => step(object, Some(small)).map(drop),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::queue;
    use super::*;
    use crate::copy::error::CopyError;
    use dafs_mem::Mutex;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    #[test]
    fn small_files_are_under_way_together_and_each_is_booked_once() {
        let (report, late) = (Report::new(), Late::new());
        let (is_filled, most) = (AtomicBool::new(false), AtomicUsize::new(0));
        let ended = Mutex::new(Vec::new());
        queue::run(
            &report,
            |queue| {
                (0..200_u64).for_each(|number| queue.push(number));
                is_filled.store(true, Ordering::Relaxed);
            },
            |queue| {
                let (mut own, mut due) = (0_usize, 0_usize);
                work(
                    (&report, &late),
                    (queue, share(usize::MAX)),
                    |_| 1,
                    |&number, small| match small {
                        None if number % 10 == 0 => Ok(None),
                        None => {
                            while !is_filled.load(Ordering::Relaxed) {
                                std::thread::yield_now();
                            }
                            assert_eq!(due, 0, "it ends half of them first");
                            own += 1;
                            due = if own == SMALL_UNDER_WAY_MAX { own.div_ceil(2) } else { 0 };
                            most.fetch_max(own, Ordering::Relaxed);
                            Ok(Some(number))
                        }
                        Some(small) => {
                            assert_eq!(small, number);
                            own -= 1;
                            due = due.saturating_sub(1);
                            ended.lock().push(small);
                            match small {
                                7 => Err(CopyError::NoSpace("full".to_owned())),
                                _ => Ok(None),
                            }
                        }
                    },
                );
            },
        );
        let most = most.into_inner();
        assert!((2..=SMALL_UNDER_WAY_MAX).contains(&most), "{most}");
        let mut ended = ended.into_inner();
        ended.sort_unstable();
        assert!(ended.iter().copied().eq((0..200).filter(|number| number % 10 != 0)));
        let mut again = Vec::new();
        late.finish(&report, |&number| {
            again.push(number);
            alone(&number, |&number, small| Ok(small.is_none().then_some(number)))
        });
        assert_eq!(again, [7], "it met the full file system");
        assert!(report.result().is_ok());
    }
}
