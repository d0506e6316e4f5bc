//! Files with several names: the first name met is copied, the others become links to the copy.
//!
//! Invariants
//! * At most one worker copies a file. Workers that meet it meanwhile under other names wait for
//!   it. A waiter holds no resource that the copying worker needs.
//! * An entry is removed when its file has been met under all of its names.

use super::error::{CopyError, Outcome};
use super::report::{Copied, Report};
use dafs_mem::{Condvar, Mutex};
use std::collections::HashMap;
use std::hash::Hash;

#[derive(Debug)]
enum State<P> {
    Copying,
    /// The place of the copy, and the number of names still to come.
    Copied(P, u32),
}

/// The files that have been met under some of their names.
#[derive(Debug)]
pub(super) struct Links<K, P> {
    known: Mutex<HashMap<K, State<P>>>,
    settled: Condvar,
}

/// The decision about a name.
#[derive(Debug)]
pub(super) enum Claim<'a, K: Hash + Eq + Clone, P> {
    /// Copy the file, then call [`First::copied`].
    First(First<'a, K, P>),
    /// Link to the existing copy.
    Link(P),
}

/// The duty to copy a file. Dropping it passes the duty to another name.
#[derive(Debug)]
pub(super) struct First<'a, K: Hash + Eq + Clone, P> {
    links: &'a Links<K, P>,
    key: K,
    others: u32,
    done: bool,
}

impl<K: Hash + Eq + Clone, P: Clone> Links<K, P> {
    pub(super) fn new() -> Self {
        Self { known: Mutex::new(HashMap::new()), settled: Condvar::new() }
    }

    /// Decides about a name of a file that has `names` names.
    pub(super) fn claim(&self, key: K, names: u32) -> Claim<'_, K, P> {
        let mut known = self.known.lock();
        loop {
            match known.get_mut(&key) {
                None => {
                    known.insert(key.clone(), State::Copying);
                    let others = names.saturating_sub(1);
                    return Claim::First(First { links: self, key, others, done: false });
                }
                Some(State::Copied(place, left)) => {
                    let place = place.clone();
                    *left = left.saturating_sub(1);
                    if *left == 0 {
                        known.remove(&key);
                    }
                    return Claim::Link(place);
                }
                Some(State::Copying) => {
                    known = self.settled.wait(known);
                }
            }
        }
    }

    /// Makes a further name of the copy at `place` with `link`, or copies the file with `copy` where
    /// that cannot be. A full file system takes the claim back, because there may be another try.
    pub(super) fn link_or_copy(
        &self,
        report: &Report,
        (key, place): (K, P),
        link: impl FnOnce(&P) -> Outcome,
        copy: impl FnOnce() -> Outcome,
    ) -> Outcome {
        let outcome = match link(&place) {
            Ok(()) => {
                report.add(Copied::HardLink);
                Ok(())
            }
            Err(CopyError::Object(why)) => {
                report.warn(&format!(
                    "{why}: it cannot become a further name of its file, and is copied"
                ));
                copy()
            }
            error => error,
        };
        if let Err(CopyError::NoSpace(_)) = outcome {
            self.take_back(key, place);
        }
        outcome
    }

    /// Takes back a claim that returned the copy at `place`, for another one under the same name.
    fn take_back(&self, key: K, place: P) {
        let mut known = self.known.lock();
        if let State::Copied(_, left) = known.entry(key).or_insert(State::Copied(place, 0)) {
            *left += 1;
        }
    }
}

impl<K: Hash + Eq + Clone, P> First<'_, K, P> {
    /// Notes that the copy is complete and has its final name.
    pub(super) fn copied(mut self, place: P) {
        self.done = true;
        let mut known = self.links.known.lock();
        if self.others == 0 {
            known.remove(&self.key);
        } else {
            known.insert(self.key.clone(), State::Copied(place, self.others));
        }
        self.links.settled.notify_all();
    }
}

impl<K: Hash + Eq + Clone, P> Drop for First<'_, K, P> {
    fn drop(&mut self) {
        if !self.done {
            self.links.known.lock().remove(&self.key);
            self.links.settled.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_share_one_copy_and_leave_nothing_behind() {
        let links = Links::new();
        let Claim::First(first) = links.claim(7, 3) else { panic!("it was never met") };
        first.copied("a");
        for _ in 0..2 {
            assert!(matches!(links.claim(7, 3), Claim::Link("a")));
        }
        assert!(links.known.lock().is_empty());
    }

    #[test]
    fn a_name_that_met_a_full_file_system_becomes_a_link_later() {
        let (links, report) = (Links::new(), Report::new());
        let Claim::First(first) = links.claim(7, 3) else { panic!("it was never met") };
        first.copied("a");
        let full = || Err(CopyError::NoSpace("the disk is full".to_owned()));
        let refused = || Err(CopyError::Object("it is another file system".to_owned()));
        for is_refused in [false, true] {
            assert!(matches!(links.claim(7, 3), Claim::Link("a")));
            let link = |_: &_| if is_refused { refused() } else { full() };
            let outcome = links.link_or_copy(&report, (7, "a"), link, || {
                assert!(is_refused, "a full file system is no reason for a second copy");
                full()
            });
            assert!(matches!(outcome, Err(CopyError::NoSpace(_))));
        }
        for _ in 0..2 {
            let Claim::Link(place) = links.claim(7, 3) else { panic!("the copy is forgotten") };
            let copy = || unreachable!("it is linked");
            assert!(links.link_or_copy(&report, (7, place), |_| Ok(()), copy).is_ok());
        }
        assert!(links.known.lock().is_empty());
    }

    #[test]
    fn a_failed_copy_leaves_the_duty_to_the_next_name() {
        let links: Links<i32, ()> = Links::new();
        std::thread::scope(|scope| {
            let Claim::First(first) = links.claim(7, 2) else { panic!("it was never met") };
            let other = scope.spawn(|| matches!(links.claim(7, 2), Claim::First(_)));
            drop(first);
            assert!(other.join().unwrap());
        });
    }
}
