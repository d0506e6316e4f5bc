//! The poll loop: what is tried directly, what the kernel is asked, timers.
//!
//! Invariants
//! * The last timer started for a connection is its deadline; earlier ones run out unheard.
//! * While few connections are busy their sockets are tried directly, because one `recv` costs
//!   less than asking the kernel first; it is still asked now and then, and whenever a direct try
//!   after sleeping finds nothing, so nobody starves.
//! * The set is level-triggered: what a turn leaves undone is reported again.
//! * A panic in what is done for one connection ends that connection and nothing else.

use super::adapter::{Entry, IwarpAdapter};
use super::connection::Connection;
use super::core::Core;
use super::limits;
use super::sys::{self, Ready};
use super::teardown::End;
use crate::Instant;
use crate::confine::confined;
use std::cmp::Reverse;
use std::time::Duration;

/// Marks tokens and timers of listeners; identifiers of connections stay below it.
const LISTENER_BIT: u64 = 1 << 63;

/// The token of a listener.
pub(super) fn listener_token(index: usize) -> u64 {
    LISTENER_BIT | index as u64
}

impl IwarpAdapter {
    /// One round of everything; events collect in the core.
    pub(super) fn turn(&mut self, now: Instant) {
        self.now = now;
        self.run_timers();
        self.pump_dirty();
        let tried = self.try_active();
        self.polls_since_kernel += 1;
        let polls_max = match self.active.len() < self.slots.count() {
            true => limits::POLLS_PER_KERNEL_POLL_FOR_OTHERS,
            false => limits::POLLS_PER_KERNEL_POLL,
        };
        let ask = self.active.is_empty()
            || self.core.blocked_count > 0
            || self.polls_since_kernel >= polls_max
            || (self.slept && !tried);
        if ask {
            self.ask_kernel();
        }
        self.pump_dirty();
    }

    /// Serves the connections that were busy lately without asking the kernel. Returns whether
    /// anything came.
    fn try_active(&mut self) -> bool {
        // After sleeping, any one of many may be the reason; the kernel knows which.
        if self.slept && self.active.len() > limits::ACTIVE_COUNT_FEW {
            return false;
        }
        let misses_max = match self.active.len() > limits::ACTIVE_COUNT_FEW {
            true => limits::ACTIVE_MISS_COUNT_MAX_OF_MANY,
            false => limits::ACTIVE_MISS_COUNT_MAX,
        };
        let mut any = false;
        let mut index = 0;
        while let Some(&id) = self.active.get(index) {
            let came = self.serve(id, |connection, core| {
                let came = connection.receive(core)?;
                connection.misses = if came { 0 } else { connection.misses + 1 };
                Ok((came, connection.misses < misses_max))
            });
            let (came, keep) = came.unwrap_or((true, true));
            any |= came;
            if !keep {
                self.active.swap_remove(index);
            } else if self.active.get(index) == Some(&id) {
                index += 1;
            }
        }
        any
    }

    /// Makes a connection one of those tried directly, unless there are many.
    pub(super) fn note_active(&mut self, id: u64) {
        if self.active.len() < limits::ACTIVE_COUNT_MAX && !self.active.contains(&id) {
            if let Some(Entry::Connection(connection)) = self.slots.get_mut(id) {
                connection.misses = 0;
            }
            self.active.push(id);
        }
    }

    fn ask_kernel(&mut self) {
        self.polls_since_kernel = 0;
        self.slept = false;
        if self.core.watch.is_lost() {
            return;
        }
        let count = match self.core.epoll.poll() {
            Ok(count) => count,
            Err(error) => {
                // The program has closed what is not its own.
                self.core.watch.lose();
                tracing::error!("cannot poll: {error}");
                return;
            }
        };
        if count > limits::ACTIVE_COUNT_MAX {
            // Many are busy: one question to the kernel is cheaper than trying each.
            self.active.clear();
        }
        let many = count > limits::ACTIVE_COUNT_MAX;
        for index in 0..count {
            let Ready { token, events } = self.core.epoll.ready(index);
            if token & LISTENER_BIT != 0 {
                self.accept_ready((token & !LISTENER_BIT) as usize);
            } else {
                self.entry_ready(token, events, many);
            }
        }
    }

    fn entry_ready(&mut self, id: u64, events: u32, many: bool) {
        if confined(|| self.look_after(id, events, many)).is_none() {
            self.expel(id);
        }
    }

    /// Ends what met a fault of this program.
    fn expel(&mut self, id: u64) {
        match self.slots.get(id) {
            Some(Entry::Connection(_)) => self.end(id, End::Fault),
            Some(Entry::Request(_)) => self.drop_request(id),
            Some(Entry::Lingering { .. }) => drop(self.slots.remove(id)),
            None => {}
        }
    }

    fn look_after(&mut self, id: u64, events: u32, many: bool) {
        match self.slots.get(id) {
            Some(Entry::Connection(connection)) if connection.is_open() => {
                let came = self.serve(id, |connection, core| {
                    if events & sys::WRITABLE != 0 {
                        connection.pump(core)?;
                    }
                    if events & (sys::READABLE | sys::BROKEN) != 0 {
                        return connection.receive(core);
                    }
                    Ok(false)
                });
                if came == Some(true) && !many {
                    self.note_active(id);
                }
            }
            Some(Entry::Connection(_)) => self.setup_ready(id),
            Some(Entry::Request(_)) => self.request_ready(id),
            Some(Entry::Lingering { .. }) => self.drain_lingering(id),
            None => {}
        }
    }

    /// Runs `step` on a connection and ends the connection if it fails. `None` if it is gone.
    pub(super) fn serve<T>(
        &mut self,
        id: u64,
        step: impl FnOnce(&mut Connection, &mut Core) -> Result<T, End>,
    ) -> Option<T> {
        let Some(Entry::Connection(connection)) = self.slots.get_mut(id) else { return None };
        let done = confined(|| step(connection, &mut self.core)).unwrap_or(Err(End::Fault));
        done.map_err(|end| self.end(id, end)).ok()
    }

    /// Sends what connections have queued.
    pub(super) fn pump_dirty(&mut self) {
        if self.core.dirty.is_empty() {
            return;
        }
        let mut dirty = std::mem::take(&mut self.dirty_scratch);
        std::mem::swap(&mut dirty, &mut self.core.dirty);
        for id in dirty.drain(..) {
            self.serve(id, |connection, core| {
                connection.dirty = false;
                connection.pump(core)
            });
        }
        self.dirty_scratch = dirty;
    }

    /// Starts a timer; it runs from the next poll on, which knows the time.
    pub(super) fn start_timer(&mut self, id: u64, after: Duration) {
        self.unstamped.push((id, after));
    }

    fn run_timers(&mut self) {
        let now = self.now;
        for (id, after) in self.unstamped.drain(..) {
            let when = now + after;
            self.timers.push(Reverse((when, id)));
            if let Some(Entry::Connection(connection)) = self.slots.get_mut(id) {
                connection.deadline = when;
            }
        }
        while let Some(Reverse((when, id))) = self.timers.peek().copied() {
            if when > now {
                return;
            }
            self.timers.pop();
            if id & LISTENER_BIT != 0 {
                self.wake_listener((id & !LISTENER_BIT) as usize);
            } else if confined(|| self.timer_ran_out(id, now)).is_none() {
                self.expel(id);
            }
        }
    }

    fn go_on_opening(&mut self, id: u64) {
        if let Some(Entry::Connection(connection)) = self.slots.get_mut(id)
            && let Some(after) = connection.go_on_opening(&mut self.core)
        {
            self.start_timer(id, after);
        }
    }

    fn timer_ran_out(&mut self, id: u64, now: Instant) {
        match self.slots.get(id) {
            Some(Entry::Connection(connection)) if now >= connection.deadline => {
                if !connection.is_open() {
                    let timeout = self.core.config.handshake_timeout;
                    self.end(id, End::Setup(crate::ConnectError::TimedOut(timeout)));
                } else if connection.closing {
                    self.end(id, End::Aborted);
                } else {
                    self.go_on_opening(id);
                }
            }
            Some(Entry::Request(request)) if request.is_partial() => {
                tracing::info!(peer = %request.peer, "connection refused: set-up took too long");
                self.drop_request(id);
            }
            Some(Entry::Lingering { .. }) => {
                self.slots.remove(id);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iwarp::IwarpConfig;
    use crate::{Adapter, Address};

    #[test]
    fn a_fault_at_what_a_peer_sent_ends_its_connection_alone() {
        let adapter = || IwarpAdapter::new(IwarpConfig::default()).unwrap();
        let mut server = adapter();
        server.listen(&Address::Tcp("127.0.0.1:0".parse().unwrap())).unwrap();
        crate::confine::fault::check(&mut server, [&mut adapter(), &mut adapter()]);
    }
}
