//! Waking a leader that sleeps.
//!
//! Invariants
//! * A ring goes into a socket or nowhere: the program may have closed the descriptor and reopened
//!   its number as a file, into which `write` would write.

use dafs_dat::descriptors::{Guarded, Watch, kept};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// Rings that one system call reads.
const RINGS_PER_CALL: usize = 64;

/// A pair of sockets beside the transport's own descriptor.
#[derive(Debug)]
pub(crate) struct Wakeup {
    heard: Guarded<OwnedFd>,
    rung: Guarded<OwnedFd>,
    watch: Watch,
}

/// The descriptors of one sleep. They live as long as the client, which outlives the sleep of any
/// thread that is inside one of its calls.
#[derive(Debug)]
pub(crate) struct Sleeper {
    transport: RawFd,
    bell: RawFd,
}

impl Wakeup {
    pub(crate) fn new() -> io::Result<Self> {
        let mut pair = [-1; 2];
        let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: the call writes two descriptors into an array of two.
        if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, pair.as_mut_ptr()) } < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptors are new and have no other owner.
        let [heard, rung] = pair.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
        let watch = Watch::new();
        Ok(Self {
            heard: Guarded::new(kept(heard)?, &watch),
            rung: Guarded::new(kept(rung)?, &watch),
            watch,
        })
    }

    /// Wakes the sleeper, or the next one.
    pub(crate) fn ring(&self) {
        if !self.rung.is_ours() {
            return;
        }
        let (one, flags) = ([1u8], libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
        // SAFETY: the buffer is valid for its length. A full socket means that it rings already.
        unsafe { libc::send(self.rung.as_raw_fd(), one.as_ptr().cast(), one.len(), flags) };
    }

    /// Reads and discards rings.
    pub(crate) fn clear(&self) {
        if !self.heard.is_ours() {
            return;
        }
        let mut rings = [0u8; RINGS_PER_CALL];
        let flags = libc::MSG_DONTWAIT;
        loop {
            // SAFETY: the buffer is valid for its length. An empty socket is no error.
            let count = unsafe {
                libc::recv(self.heard.as_raw_fd(), rings.as_mut_ptr().cast(), rings.len(), flags)
            };
            if count < RINGS_PER_CALL as isize {
                return;
            }
        }
    }

    /// False when the program was found to have closed a descriptor; the check runs from time to
    /// time.
    pub(crate) fn is_intact(&self) -> bool {
        if self.watch.is_due() { self.heard.is_ours() } else { !self.watch.is_lost() }
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.heard.as_fd()
    }

    pub(crate) fn sleeper(&self, transport: BorrowedFd<'_>) -> Sleeper {
        Sleeper { transport: transport.as_raw_fd(), bell: self.heard.as_raw_fd() }
    }
}

impl Sleeper {
    /// Sleeps until one of the descriptors is ready or `time` has passed; may return early. True
    /// when the bell was rung.
    pub(crate) fn sleep(&self, time: Option<Duration>) -> bool {
        let wait = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut list = [wait(self.transport), wait(self.bell)];
        let time = time.map(|time| libc::timespec {
            tv_sec: time.as_secs().min(i32::MAX as u64) as libc::time_t,
            tv_nsec: time.subsec_nanos().into(),
        });
        let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: the list and the time are valid for the call.
        unsafe {
            libc::ppoll(list.as_mut_ptr(), list.len() as libc::nfds_t, time, std::ptr::null())
        };
        list[1].revents != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_are_heard_and_taken_back() {
        let bell = Wakeup::new().unwrap();
        let rings = || bell.sleeper(bell.descriptor()).sleep(Some(Duration::ZERO));
        assert!(!rings());
        for count in [1, RINGS_PER_CALL, 3 * RINGS_PER_CALL + 1, 1 << 20] {
            (0..count).for_each(|_| bell.ring());
            assert!(rings(), "{count}");
            bell.clear();
            assert!(!rings(), "{count}");
        }
    }
}
