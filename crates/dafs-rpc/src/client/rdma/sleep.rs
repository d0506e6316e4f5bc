//! Sleep until the transport has an event or another thread rings the bell, an eventfd.

use dafs_dat::Adapter;
use dafs_mem::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

/// The wake-up sources of one port.
#[derive(Debug)]
pub(super) struct Sleep {
    bell: OwnedFd,
    /// A duplicate of the adapter's descriptor, so that a thread can wait without the adapter; and
    /// the number of the original.
    transport: Mutex<Option<(RawFd, Arc<OwnedFd>)>>,
}

impl Sleep {
    pub(super) fn new() -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self { bell, transport: Mutex::default() })
    }

    /// Wakes the sleeper, or the next thread that sleeps.
    pub(super) fn ring(&self) {
        // A full counter means that the bell has been rung already.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    /// The adapter's descriptor, if it has one.
    pub(super) fn transport(&self, adapter: &dyn Adapter) -> Option<Arc<OwnedFd>> {
        let descriptor = adapter.descriptor()?;
        let mut known = self.transport.lock();
        match &*known {
            Some((number, own)) if *number == descriptor.as_raw_fd() => Some(own.clone()),
            _ => {
                let own = Arc::new(descriptor.try_clone_to_owned().ok()?);
                *known = Some((descriptor.as_raw_fd(), own.clone()));
                Some(own)
            }
        }
    }

    /// Sleeps until the transport is ready, the bell rings or `time` has passed; may return early.
    pub(super) fn sleep(&self, transport: &OwnedFd, time: Duration) {
        let mut list =
            [PollFd::new(transport, PollFlags::IN), PollFd::new(&self.bell, PollFlags::IN)];
        let _ = poll(&mut list, Some(&timespec(time)));
        if !list[1].revents().is_empty() {
            let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        }
    }
}

/// Sleeps until the transport is ready or `time` has passed, and ignores the bell.
pub(super) fn watch(transport: &OwnedFd, time: Duration) {
    let _ = poll(&mut [PollFd::new(transport, PollFlags::IN)], Some(&timespec(time)));
}

fn timespec(time: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(time.subsec_nanos()),
    }
}
