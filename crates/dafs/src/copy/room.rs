//! The second try of objects that met a full file system. Objects are copied together, so a large
//! one that does not fit takes the space of others until it fails and is removed.
//!
//! Invariants
//! * Such an object is tried once more at the end of the copy, when no other is under way. So one
//!   that fits then gets its space, and nothing waits for a long transfer. One that was alone is
//!   not, unless another has met the full file system before: that may free its space late.
//! * The smallest of them are kept, and go first. Few large ones that do not fit alone are tried.
//! * An object's outcome is booked before its directory may end.
//! * The walk needs a directory at once. It waits for some time for the ends of other objects.

use super::error::{CopyError, Outcome};
use super::report::Report;
use crate::limits::{LATE_FAILURES_MAX, LATE_OBJECTS_MAX, LATE_PAUSE, PIECE_BYTES, ROOM_WAIT};
use dafs_mem::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The number of objects that are being copied.
#[derive(Debug, Default)]
pub(super) struct Room {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    active: u32,
    begun: u64,
    ended: u64,
    /// True if an object has met a full file system.
    has_been_full: bool,
    /// The time that directories have waited, and those that wait.
    waited: Duration,
    waiting: u32,
}

/// An object that is being copied.
#[derive(Debug)]
pub(super) struct Active {
    /// Objects that were being copied when it began.
    others: u32,
    number: u64,
}

impl Room {
    /// Begins to copy an object.
    pub(super) fn begin(&self) -> Active {
        let mut state = self.state.lock();
        state.active += 1;
        state.begun += 1;
        Active { others: state.active - 1, number: state.begun }
    }

    /// Ends that, with its outcome. A full file system is an error like others for an object to which no
    /// other one will leave space.
    pub(super) fn end(&self, Active { others, number }: Active, outcome: Outcome) -> Outcome {
        let mut state = self.state.lock();
        state.active -= 1;
        state.ended += 1;
        if state.waiting > 0 {
            self.changed.notify_all();
        }
        let Err(CopyError::NoSpace(why)) = outcome else { return outcome };
        let is_alone = others == 0 && state.begun == number;
        let is_first = !std::mem::replace(&mut state.has_been_full, true);
        Err(if is_alone && is_first { CopyError::Object(why) } else { CopyError::NoSpace(why) })
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
                    let mut state = self.state.lock();
                    let left = ROOM_WAIT.saturating_sub(state.waited);
                    let is_alone = others == 0 && state.active == 0 && state.ended == ended;
                    if is_alone || left.is_zero() {
                        return Err(CopyError::NoSpace(text));
                    }
                    let start = Instant::now();
                    let same = |state: &mut State| state.ended == ended && state.active > 0;
                    state.waiting += 1;
                    let (mut state, _) = self.changed.wait_timeout_while(state, left, same);
                    state.waiting -= 1;
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
    waiting: Mutex<Waiting<T>>,
}

#[derive(Debug)]
struct Waiting<T> {
    /// By length, and by a number of their own. Each with its first error.
    objects: BTreeMap<(u64, u64), (T, String)>,
    numbers: u64,
}

impl<T> Late<T> {
    pub(super) const fn new() -> Self {
        Self { waiting: Mutex::new(Waiting { objects: BTreeMap::new(), numbers: 0 }) }
    }

    /// Books the outcome of an object of `bytes`, or keeps it if its file system was full.
    pub(super) fn book(
        &self,
        report: &Report,
        outcome: Outcome,
        object: T,
        bytes: impl FnOnce(&T) -> u64,
    ) {
        let why = match outcome {
            Err(CopyError::NoSpace(why)) => why,
            outcome => return report.book(outcome),
        };
        let bytes = bytes(&object);
        let mut waiting = self.waiting.lock();
        waiting.numbers += 1;
        let number = waiting.numbers;
        waiting.objects.insert((bytes, number), (object, why));
        if waiting.objects.len() > LATE_OBJECTS_MAX
            && let Some((_, (object, why))) = waiting.objects.pop_last()
        {
            drop(waiting);
            report.book(Err(CopyError::NoSpace(why)));
            drop(object);
        }
    }

    /// Tries these objects once more with `copy`, one after the other.
    pub(super) fn finish(self, report: &Report, mut copy: impl FnMut(&T) -> Outcome) {
        let waiting = self.waiting.into_inner().objects;
        if !waiting.is_empty() && !report.is_stopped() {
            std::thread::sleep(LATE_PAUSE);
        }
        let mut failures = 0;
        for ((bytes, _), (object, why)) in waiting {
            if report.is_stopped() {
                return;
            }
            if failures >= LATE_FAILURES_MAX {
                report.book(Err(CopyError::NoSpace(why)));
                continue;
            }
            let outcome = copy(&object);
            let is_large = bytes > PIECE_BYTES as u64;
            failures += u32::from(is_large && matches!(outcome, Err(CopyError::NoSpace(_))));
            report.book(outcome);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    fn full<T>() -> Outcome<T> {
        Err(CopyError::NoSpace("the disk is full".to_owned()))
    }

    fn copied(room: &Room, copy: impl FnOnce() -> Outcome) -> Outcome {
        let active = room.begin();
        room.end(active, copy())
    }

    #[test]
    fn objects_that_fit_alone_are_copied_at_the_end() {
        let (late, report) = (Late::new(), Report::new());
        let large = PIECE_BYTES as u64 * 3;
        let lengths = [30, 2, 40, 1, 3].into_iter().chain((0..6).map(|more| large + more));
        lengths.for_each(|bytes| late.book(&report, full(), bytes, |&bytes| bytes));
        late.book(&report, Ok(()), 7, |&bytes| bytes);
        assert!(report.result().is_ok(), "none has failed so far");
        let (mut space, mut tried) = (4, Vec::new());
        late.finish(&report, |&bytes| {
            tried.push(bytes);
            if bytes > space {
                return full();
            }
            space -= bytes;
            Ok(())
        });
        let large_tried = (0..u64::from(LATE_FAILURES_MAX)).map(|more| large + more);
        let expected: Vec<u64> = [1, 2, 3, 30, 40].into_iter().chain(large_tried).collect();
        assert_eq!(tried, expected);
        assert_eq!(report.errors(), 2 + 1 + 6, "each of the others has failed once");
    }

    #[test]
    fn other_errors_are_booked_at_once() {
        let (late, report) = (Late::new(), Report::new());
        late.book(&report, Err(CopyError::Object("it is no file".to_owned())), (), |()| 0);
        assert!(report.result().is_err());
        late.finish(&report, |()| panic!("it is not tried again"));
    }

    #[test]
    fn the_smallest_are_kept() {
        let (late, report) = (Late::new(), Report::new());
        let count = LATE_OBJECTS_MAX as u64;
        (0..count).for_each(|_| late.book(&report, full(), 9, |&bytes| bytes));
        assert!(report.result().is_ok());
        (0..3).for_each(|bytes| late.book(&report, full(), bytes, |&bytes| bytes));
        assert_eq!(report.errors(), 3, "larger ones gave way");
        let mut tried = Vec::new();
        late.finish(&report, |&bytes| {
            tried.push(bytes);
            Ok(())
        });
        assert_eq!((tried.len(), &tried[..4]), (LATE_OBJECTS_MAX, &[0, 1, 2, 9][..]));
    }

    #[test]
    fn a_directory_waits_for_the_end_of_an_object() {
        let (room, both_run, tries) = (Room::default(), Barrier::new(2), AtomicU32::new(0));
        let is_removed = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                copied(&room, || {
                    both_run.wait();
                    both_run.wait();
                    std::thread::sleep(Duration::from_millis(20));
                    is_removed.store(true, Ordering::Relaxed);
                    full()
                })
            });
            both_run.wait();
            let made = room.directory(|| {
                if tries.fetch_add(1, Ordering::Relaxed) == 0 {
                    both_run.wait();
                    return full();
                }
                assert!(is_removed.load(Ordering::Relaxed), "nothing has left space yet");
                Ok(())
            });
            assert!(made.is_ok());
        });
        assert_eq!(tries.load(Ordering::Relaxed), 2);
        assert!(
            matches!(copied(&room, full), Err(CopyError::NoSpace(_))),
            "the first may free more"
        );
        let room = Room::default();
        assert!(matches!(copied(&room, full), Err(CopyError::Object(_))), "it is not to be kept");
        let mut alone = 0;
        let made = room.directory(|| {
            alone += 1;
            full::<()>()
        });
        assert!(matches!(made, Err(CopyError::NoSpace(_))));
        assert_eq!(alone, 1, "no other object will leave its space");
    }
}
