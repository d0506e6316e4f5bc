//! Waking a leader that sleeps.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// An event descriptor beside the transport's own.
#[derive(Debug)]
pub(crate) struct Wakeup {
    event: OwnedFd,
}

/// What one sleep waits for. The descriptors live as long as the client, which outlives the sleep
/// of any thread that is inside one of its calls.
#[derive(Debug)]
pub(crate) struct Sleeper {
    transport: RawFd,
    event: RawFd,
}

impl Wakeup {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: the call takes no memory.
        let event = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
        if event < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and nobody else's.
        let event = unsafe { OwnedFd::from_raw_fd(event) };
        Ok(Self { event: dafs_dat::descriptors::kept(event)? })
    }

    /// Wakes the sleeper, or the next one.
    pub(crate) fn ring(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: the buffer is valid for its length. A full counter means that it rings already.
        unsafe { libc::write(self.event.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Takes back rings that have been heard.
    pub(crate) fn clear(&self) {
        let mut count = [0u8; 8];
        // SAFETY: the buffer is valid for its length. An empty counter is no trouble.
        unsafe { libc::read(self.event.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    pub(crate) fn sleeper(&self, transport: BorrowedFd<'_>) -> Sleeper {
        Sleeper { transport: transport.as_raw_fd(), event: self.event.as_raw_fd() }
    }
}

impl Sleeper {
    /// Sleeps until one of the descriptors is ready or `time` has passed; may return early. True
    /// when the wake-up was rung.
    pub(crate) fn sleep(&self, time: Option<Duration>) -> bool {
        let wait = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut list = [wait(self.transport), wait(self.event)];
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
