//! A thread that drives a reactor over RDMA: turn, poll for a while, sleep.
//!
//! Invariants
//! * Before the thread sleeps it has announced that in its inbox, has found the inbox empty, and
//!   has armed every adapter.

use super::reactor::RdmaReactor;
use crate::handler::Handler;
use crate::memory;
use dafs_dat::{Instant, Spin};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use smallvec::SmallVec;
use std::io;

impl<H: Handler> RdmaReactor<H> {
    /// Serves until the group is stopped.
    pub fn run(mut self) {
        let mut spin = Spin::new(self.core.shared.config.wake);
        memory::keep_here();
        loop {
            let busy = self.turn(Instant::now().0);
            if self.may_end() {
                break;
            }
            spin.turned(busy, self.core.now_ns);
            if !busy && spin.is_over(self.core.now_ns) {
                if let Err(error) = self.sleep() {
                    // The reactor continues without sleeping: the loss of a core is better than the
                    // loss of the service.
                    tracing::error!(%error, "an RPC reactor cannot wait for its connections");
                }
                spin.slept(Instant::now().0);
            }
        }
        self.end_all();
    }

    /// Waits for an event, a command or the next timeout.
    fn sleep(&mut self) -> io::Result<()> {
        let inbox = self.core.inbox.clone();
        if !inbox.fall_asleep() {
            return Ok(());
        }
        let slept = self.wait();
        inbox.awake();
        if slept? {
            inbox.acknowledge();
        }
        Ok(())
    }

    /// True when the inbox woke it.
    fn wait(&mut self) -> io::Result<bool> {
        let mut armed = true;
        for port in &mut self.ports {
            armed &= port.link.adapter.arm()?;
        }
        // Poll all adapters anew, whichever event woke the thread.
        self.ports.iter_mut().for_each(|port| port.quiet_turns = 0);
        if !armed {
            return Ok(false);
        }
        let ns = self.next_turn_ns().saturating_sub(Instant::now().0);
        let timeout =
            Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 };
        let mut set: SmallVec<[PollFd<'_>; 4]> = SmallVec::new();
        // The inbox comes first. An adapter without a descriptor is polled whenever the thread
        // wakes.
        set.push(PollFd::from_borrowed_fd(self.core.inbox.descriptor(), PollFlags::IN));
        let mut polled: SmallVec<[bool; 4]> = SmallVec::new();
        for port in &self.ports {
            let descriptor = port.link.adapter.descriptor();
            polled.push(descriptor.is_some());
            set.extend(descriptor.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        }
        let woken = poll(&mut set, Some(&timeout));
        let ready: SmallVec<[bool; 4]> = set.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(set);
        match woken {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(false),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        let mut adapters = ready[1..].iter();
        for (port, polled) in self.ports.iter_mut().zip(polled) {
            port.quiet = polled && adapters.next() == Some(&false);
        }
        Ok(ready[0])
    }
}
