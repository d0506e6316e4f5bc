//! The inbox that returns the results of other threads to a reactor.
//!
//! Invariants
//! * The reactor declares that it sleeps only while the inbox is empty, in one step. So a thread
//!   that finds it awake knows that it will check the inbox again. The items and the sleep flag are
//!   under one lock, so memory order is no concern.
//! * The descriptor is written at most once for each declared sleep. If that write comes late,
//!   after the reactor has woken for another reason, the next sleep ends early. The kernel's ring for
//!   reads writes it, too, when it has completions, awake or not.

use dafs_mem::Mutex;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

#[derive(Debug)]
struct Contents<T> {
    items: Vec<T>,
    /// The reactor sleeps or is about to, and no thread has woken it yet.
    asleep: bool,
}

/// Results on their way back to one reactor.
#[derive(Debug)]
pub struct Inbox<T> {
    contents: Mutex<Contents<T>>,
    /// Wakes the reactor. `None` where the caller drives it.
    waker: Option<OwnedFd>,
}

impl<T> Inbox<T> {
    /// Makes an inbox that no reactor sleeps on.
    pub fn unwatched() -> Self {
        Self::with_waker(None)
    }

    /// Makes an inbox with a descriptor to sleep on.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn watched() -> io::Result<Self> {
        let flags = rustix::event::EventfdFlags::NONBLOCK | rustix::event::EventfdFlags::CLOEXEC;
        Ok(Self::with_waker(Some(rustix::event::eventfd(0, flags)?)))
    }

    fn with_waker(waker: Option<OwnedFd>) -> Self {
        Self { contents: Mutex::new(Contents { items: Vec::new(), asleep: false }), waker }
    }

    /// Adds an item and wakes the reactor if it sleeps.
    pub fn push(&self, item: T) {
        let mut contents = self.contents.lock();
        contents.items.push(item);
        let asleep = std::mem::take(&mut contents.asleep);
        drop(contents);
        if asleep {
            self.wake();
        }
    }

    /// Wakes the reactor.
    pub fn wake(&self) {
        if let Some(waker) = &self.waker {
            // The only failure is a full counter, which means that it is readable already.
            let _ = rustix::io::write(waker, &1u64.to_ne_bytes());
        }
    }

    /// Moves all items into `items`, which must be empty.
    pub fn take(&self, items: &mut Vec<T>) {
        debug_assert!(items.is_empty(), "results of an earlier turn were not handled");
        std::mem::swap(&mut self.contents.lock().items, items);
    }

    /// Declares that the reactor is about to sleep on the descriptor. Returns false when there is
    /// an item to take first.
    pub fn fall_asleep(&self) -> bool {
        let mut contents = self.contents.lock();
        contents.asleep = contents.items.is_empty();
        contents.asleep
    }

    /// Declares that the reactor is awake. `readable` is true if the descriptor was readable.
    pub fn wake_up(&self, readable: bool) {
        self.contents.lock().asleep = false;
        if let Some(waker) = self.waker.as_ref().filter(|_| readable) {
            let _ = rustix::io::read(waker, &mut [0; 8]);
        }
    }

    /// Returns the descriptor to wait on.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.waker.as_ref().map(AsFd::as_fd)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    #[test]
    fn only_a_reactor_that_sleeps_is_woken() {
        let inbox = Inbox::watched().unwrap();
        let readable = || {
            let mut set = [PollFd::from_borrowed_fd(inbox.descriptor().unwrap(), PollFlags::IN)];
            poll(&mut set, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
        };
        let mut some = Vec::new();
        inbox.push(1);
        assert!(!readable() && !inbox.fall_asleep(), "there is something to take first");
        inbox.take(&mut some);
        assert!(inbox.fall_asleep());
        inbox.push(2);
        assert!(readable());
        // A reactor that is awake checks the inbox by itself.
        inbox.wake_up(true);
        assert!(!readable());
        inbox.push(3);
        assert!(!readable() && !inbox.fall_asleep());
        some.clear();
        inbox.take(&mut some);
        assert_eq!(some, [2, 3]);
        // Woken by another event.
        assert!(inbox.fall_asleep());
        inbox.wake_up(false);
        inbox.push(4);
        assert!(!readable());
        // Woken without an item.
        inbox.wake();
        assert!(readable());
    }

    /// With a lost wake-up the reactor would sleep with an item in its inbox.
    #[test]
    fn no_wake_up_is_lost() {
        const THREADS: usize = 4;
        const ITEMS: usize = 20_000;
        let inbox = Inbox::watched().unwrap();
        let (mut taken, mut some) = (0, Vec::new());
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let inbox = &inbox;
                scope.spawn(move || {
                    for item in 0..ITEMS {
                        inbox.push(item);
                        // Repeatedly the inbox becomes empty, and the reactor falls asleep.
                        if item % (3 + thread) == 0 {
                            std::thread::yield_now();
                        }
                    }
                });
            }
            while taken < THREADS * ITEMS {
                inbox.take(&mut some);
                taken += some.drain(..).count();
                if taken == THREADS * ITEMS || !inbox.fall_asleep() {
                    continue;
                }
                let fd = inbox.descriptor().unwrap();
                let mut set = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
                let woken = poll(&mut set, Some(&Timespec { tv_sec: 60, tv_nsec: 0 })).unwrap();
                inbox.wake_up(woken == 1);
                assert!(woken == 1, "asleep with {taken} taken");
            }
        });
        assert_eq!(taken, THREADS * ITEMS);
    }
}
