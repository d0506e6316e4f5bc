//! A second try for objects that met a full file system: the unfinished copies of others take
//! space there too, until they fail and are removed.
//!
//! Invariants
//! * The second try runs alone. No object is tried a third time.
//! * An object that was alone from its start is not tried again: the result would be the same.

use super::error::{CopyError, Outcome};
use dafs_mem::{Mutex, RwLock};

/// The objects that are being copied.
#[derive(Debug, Default)]
pub(super) struct Room {
    /// Shared by first tries. A second try holds it for writing.
    tries: RwLock<()>,
    use_of: Mutex<Use>,
}

#[derive(Debug, Default)]
struct Use {
    active: u32,
    begun: u64,
}

impl Room {
    /// Copies an object with `copy`, and again if there was no space beside other objects.
    pub(super) fn copy<T>(&self, mut copy: impl FnMut() -> Outcome<T>) -> Outcome<T> {
        let shared = self.tries.read();
        let (others, number) = {
            let mut now = self.use_of.lock();
            now.active += 1;
            now.begun += 1;
            (now.active - 1, now.begun)
        };
        let outcome = copy();
        let was_alone = {
            let mut now = self.use_of.lock();
            now.active -= 1;
            others == 0 && now.begun == number
        };
        drop(shared);
        match outcome {
            Err(CopyError::NoSpace(_)) if !was_alone => {
                let _alone = self.tries.write();
                copy()
            }
            outcome => outcome,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicBool, Ordering};

    fn full<T>() -> Outcome<T> {
        Err(CopyError::NoSpace("the disk is full".to_owned()))
    }

    #[test]
    fn an_object_that_fits_gets_the_space_of_one_that_does_not() {
        let (room, is_full) = (Room::default(), AtomicBool::new(false));
        let (both_run, small_failed) = (Barrier::new(2), Barrier::new(2));
        let (mut large_tries, mut small_tries) = (0, 0);
        let large = || {
            room.copy(|| {
                large_tries += 1;
                if large_tries == 1 {
                    is_full.store(true, Ordering::Relaxed);
                    both_run.wait();
                    small_failed.wait();
                    is_full.store(false, Ordering::Relaxed);
                }
                full::<()>()
            })
        };
        let small = || {
            room.copy(|| {
                small_tries += 1;
                if small_tries == 1 {
                    both_run.wait();
                    assert!(is_full.load(Ordering::Relaxed));
                    small_failed.wait();
                    return full();
                }
                assert!(!is_full.load(Ordering::Relaxed), "the second try is not alone");
                Ok(())
            })
        };
        std::thread::scope(|scope| {
            let (large, small) = (scope.spawn(large), scope.spawn(small));
            assert!(matches!(large.join(), Ok(Err(CopyError::NoSpace(_)))));
            assert!(matches!(small.join(), Ok(Ok(()))));
        });
        assert_eq!((large_tries, small_tries), (2, 2));
    }

    #[test]
    fn an_object_without_others_is_tried_once() {
        let room = Room::default();
        for _ in 0..2 {
            let mut tries = 0;
            let outcome = room.copy(|| {
                tries += 1;
                full::<()>()
            });
            assert!(matches!(outcome, Err(CopyError::NoSpace(_))));
            assert_eq!(tries, 1);
        }
    }

    #[test]
    fn other_errors_are_final() {
        let room = Room::default();
        let mut tries = 0;
        let outcome = room.copy(|| {
            tries += 1;
            std::thread::scope(|scope| scope.spawn(|| room.copy(|| Ok(()))).join())
                .unwrap()
                .unwrap();
            Err::<(), _>(CopyError::Object("it is no file".to_owned()))
        });
        assert!(matches!(outcome, Err(CopyError::Object(_))));
        assert_eq!(tries, 1);
    }
}
