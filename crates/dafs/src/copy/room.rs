//! What becomes of objects that met a full file system. Objects are copied together, so a large one
//! that does not fit takes the space of others until it fails and is removed.
//!
//! Invariants
//! * Such an object is tried once more at the end of the copy, when no other is under way. So one
//!   that fits then gets its space, and nothing waits for a long transfer.
//! * The smallest of them go first. After one did not fit alone, no larger one is tried.
//! * The walk needs a directory at once. It waits for some time for the ends of other objects.

use super::error::{CopyError, Outcome};
use super::report::Report;
use crate::limits::{LATE_OBJECTS_MAX, ROOM_WAIT};
use dafs_mem::{Condvar, Mutex};
use std::time::Duration;

/// The number of objects that are being copied.
#[derive(Debug, Default)]
pub(super) struct Room {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    active: u32,
    ended: u64,
    /// The time that directories have waited.
    waited: Duration,
}

impl Room {
    /// Copies an object with `copy`.
    pub(super) fn copy(&self, copy: impl FnOnce() -> Outcome) -> Outcome {
        self.state.lock().active += 1;
        let outcome = copy();
        let mut state = self.state.lock();
        state.active -= 1;
        state.ended += 1;
        self.changed.notify_all();
        outcome
    }

    /// Makes a directory with `make`, and again after the end of other objects if the file system is
    /// full.
    pub(super) fn directory<T>(&self, mut make: impl FnMut() -> Outcome<T>) -> Outcome<T> {
        loop {
            let (others, ended) = {
                let state = self.state.lock();
                (state.active, state.ended)
            };
            match make() {
                Err(CopyError::NoSpace(text)) => {
                    let state = self.state.lock();
                    let left = ROOM_WAIT.saturating_sub(state.waited);
                    if others == 0 || left.is_zero() {
                        return Err(CopyError::NoSpace(text));
                    }
                    let start = std::time::Instant::now();
                    let same = |state: &mut State| state.ended == ended && state.active > 0;
                    let (mut state, _) = self.changed.wait_timeout_while(state, left, same);
                    state.waited += start.elapsed();
                }
                outcome => return outcome,
            }
        }
    }
}

/// Objects that met a full file system.
#[derive(Debug)]
pub(super) struct Late<T> {
    waiting: Mutex<Vec<Waiting<T>>>,
}

#[derive(Debug)]
struct Waiting<T> {
    object: T,
    bytes: u64,
    why: String,
}

impl<T> Late<T> {
    pub(super) const fn new() -> Self {
        Self { waiting: Mutex::new(Vec::new()) }
    }

    /// Keeps an object of `bytes` if its file system was full. Returns its outcome so far.
    pub(super) fn keep(
        &self,
        outcome: Outcome,
        object: T,
        bytes: impl FnOnce(&T) -> u64,
    ) -> Outcome {
        let why = match outcome {
            Err(CopyError::NoSpace(why)) => why,
            outcome => return outcome,
        };
        let bytes = bytes(&object);
        let mut waiting = self.waiting.lock();
        if waiting.len() >= LATE_OBJECTS_MAX {
            return Err(CopyError::NoSpace(why));
        }
        waiting.push(Waiting { object, bytes, why });
        Ok(())
    }

    /// Tries these objects once more with `copy`, one after the other.
    pub(super) fn finish(self, report: &Report, mut copy: impl FnMut(&T) -> Outcome) {
        let mut waiting = self.waiting.into_inner();
        waiting.sort_by_key(|late| late.bytes);
        let mut is_full = false;
        for Waiting { object, why, .. } in waiting {
            if report.is_stopped() {
                return;
            }
            let outcome = if is_full { Err(CopyError::NoSpace(why)) } else { copy(&object) };
            is_full |= matches!(outcome, Err(CopyError::NoSpace(_)));
            report.book(outcome);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicU32, Ordering};

    fn full<T>() -> Outcome<T> {
        Err(CopyError::NoSpace("the disk is full".to_owned()))
    }

    #[test]
    fn objects_that_fit_alone_are_copied_at_the_end() {
        let (late, report) = (Late::new(), Report::new());
        for bytes in [30, 2, 40, 1, 3] {
            assert!(late.keep(full(), bytes, |&bytes| bytes).is_ok());
        }
        assert!(late.keep(Ok(()), 7, |&bytes| bytes).is_ok());
        let other = Err(CopyError::Object("it is no file".to_owned()));
        assert!(matches!(late.keep(other, 7, |&bytes| bytes), Err(CopyError::Object(_))));
        let (mut space, mut tried) = (4, Vec::new());
        late.finish(&report, |&bytes| {
            tried.push(bytes);
            if bytes > space {
                return full();
            }
            space -= bytes;
            Ok(())
        });
        assert_eq!(
            (tried, space),
            (vec![1, 2, 3], 1),
            "30 and 40 are larger than what did not fit"
        );
        assert!(report.result().is_err());
    }

    #[test]
    fn only_so_many_are_kept() {
        let late = Late::new();
        assert!((0..LATE_OBJECTS_MAX).all(|number| late.keep(full(), number, |_| 0).is_ok()));
        assert!(matches!(late.keep(full(), 0, |_| 0), Err(CopyError::NoSpace(_))));
    }

    #[test]
    fn a_directory_waits_for_the_end_of_an_object() {
        let (room, both_run, tries) = (Room::default(), Barrier::new(2), AtomicU32::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                room.copy(|| {
                    both_run.wait();
                    both_run.wait();
                    full()
                })
            });
            both_run.wait();
            let made = room.directory(|| {
                if tries.fetch_add(1, Ordering::Relaxed) == 0 {
                    both_run.wait();
                    return full();
                }
                Ok(())
            });
            assert!(made.is_ok());
        });
        assert_eq!(tries.load(Ordering::Relaxed), 2);
        let mut alone = 0;
        let made = room.directory(|| {
            alone += 1;
            full::<()>()
        });
        assert!(matches!(made, Err(CopyError::NoSpace(_))));
        assert_eq!(alone, 1, "no other object will leave its space");
    }
}
