//! Threads that wait while another one leads.
//!
//! Each has a bell of its own, so that a leader wakes exactly the threads whose results are there.
//!
//! Invariants
//! * Everything here happens under the driver's lock, except the ringing: a woken thread needs that
//!   lock first, and would only wait for it.
//! * A thread that is rung is not on the list any more. It looks for its result, leads without a
//!   leader, or enters the list again.
//! * A late ring, when another thread uses the bell already, is a spurious wake-up of that thread;
//!   all threads check again after a wake-up.

use crate::limits::BELLS_KEPT;
use dafs_mem::Condvar;
use smallvec::SmallVec;
use std::sync::Arc;

/// The condition variable that one thread sleeps on.
pub(super) type Bell = Arc<Condvar>;

/// Bells to be rung when the lock is free.
pub(super) type Bells = SmallVec<[Bell; 4]>;

/// The list of followers.
#[derive(Debug, Default)]
pub(super) struct Followers {
    /// In the order of arrival.
    waiting: Vec<Follower>,
    /// Bells without a thread.
    free: Vec<Bell>,
}

#[derive(Debug)]
struct Follower {
    bell: Bell,
    /// The operation that it waits for; without one it wakes whenever any is over.
    tag: Option<u64>,
}

impl Followers {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Adds a waiting thread.
    pub(super) fn enter(&mut self, tag: Option<u64>) -> Bell {
        let bell = self.free.pop().unwrap_or_default();
        self.waiting.push(Follower { bell: bell.clone(), tag });
        bell
    }

    /// Removes a thread that has stopped waiting, rung or not.
    pub(super) fn depart(&mut self, bell: Bell) {
        if let Some(at) = self.waiting.iter().position(|one| Arc::ptr_eq(&one.bell, &bell)) {
            self.waiting.remove(at);
        }
        if self.free.len() < BELLS_KEPT {
            self.free.push(bell);
        }
    }

    /// Removes the followers to be woken: operations are over, those for which `is_done` is true
    /// among them.
    pub(super) fn take_done(&mut self, mut is_done: impl FnMut(u64) -> bool, bells: &mut Bells) {
        self.waiting.retain(|one| {
            let stays = one.tag.is_some_and(|tag| !is_done(tag));
            if !stays {
                bells.push(one.bell.clone());
            }
            stays
        });
    }

    /// Removes the follower that is to lead: the last to arrive, because its answer will be the
    /// last to come, and so it leads for longest.
    pub(super) fn take_next(&mut self, bells: &mut Bells) {
        bells.extend(self.waiting.pop().map(|one| one.bell));
    }
}

/// Wakes the threads. The driver's lock should be free.
pub(super) fn ring(bells: &mut Bells) {
    bells.drain(..).for_each(|bell| bell.notify_one());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_same(bells: &Bells, expected: &[&Bell]) -> bool {
        bells.len() == expected.len()
            && bells.iter().zip(expected).all(|(one, other)| Arc::ptr_eq(one, other))
    }

    #[test]
    fn only_those_are_woken_who_have_something_to_look_at() {
        let mut followers = Followers::default();
        let [one, any, two] = [Some(1), None, Some(2)].map(|tag| followers.enter(tag));
        let mut bells = Bells::new();
        followers.take_done(|tag| tag == 2, &mut bells);
        assert!(is_same(&bells, &[&any, &two]));
        bells.clear();
        followers.take_done(|_| false, &mut bells);
        assert!(bells.is_empty() && !followers.is_empty());
        followers.take_next(&mut bells);
        assert!(is_same(&bells, &[&one]) && followers.is_empty());
    }

    #[test]
    fn the_last_follower_leads_next() {
        let mut followers = Followers::default();
        let [_first, last] = [Some(1), Some(2)].map(|tag| followers.enter(tag));
        let mut bells = Bells::new();
        followers.take_next(&mut bells);
        assert!(is_same(&bells, &[&last]));
    }

    #[test]
    fn bells_are_used_again() {
        let mut followers = Followers::default();
        let bell = followers.enter(Some(1));
        followers.depart(bell.clone());
        assert!(followers.is_empty());
        assert!(Arc::ptr_eq(&bell, &followers.enter(Some(2))));
        for tag in 0..2 * BELLS_KEPT as u64 {
            followers.depart(Bell::default());
            assert!(followers.free.len() <= BELLS_KEPT, "{tag}");
        }
    }
}
