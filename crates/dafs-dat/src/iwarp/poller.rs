//! The poll loop: direct reads, epoll, timers.
//!
//! Invariants
//! * The last timer started for a connection is its deadline; earlier ones expire without effect.
//! * While few connections are busy the adapter reads their sockets directly, because one `recv`
//!   costs less than an epoll call before it. It still calls epoll now and then, and whenever
//!   direct reads after a sleep find no input, so no connection starves.
//! * The epoll set is level-triggered: it reports again what a turn leaves undone.
//! * A panic in the work for one connection ends that connection and no other.

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

/// The token of handshakes that other threads give back.
pub(super) const RETURN_TOKEN: u64 = u64::MAX;

/// The timer for certificates that are judged again.
pub(super) const JUDGE_TOKEN: u64 = u64::MAX - 1;

pub(super) fn listener_token(index: usize) -> u64 {
    LISTENER_BIT | index as u64
}

impl IwarpAdapter {
    /// One round of all work; events collect in the core.
    pub(super) fn turn(&mut self, now: Instant) {
        self.now = now;
        self.core.checked = None;
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

    /// Sends queued work, as a turn of its own.
    pub(super) fn send_now(&mut self) {
        self.core.checked = None;
        self.pump_dirty();
    }

    /// Serves the recently busy connections without an epoll call. Returns true if anything
    /// arrived.
    fn try_active(&mut self) -> bool {
        // After a sleep any one of many connections may be ready; epoll reports which.
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

    /// Adds a connection to the direct list, unless that is full.
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
                // The program has closed descriptors that are not its own.
                self.core.watch.lose();
                tracing::error!("cannot poll: {error}");
                return;
            }
        };
        if count > limits::ACTIVE_COUNT_MAX {
            // Many connections are busy: one epoll call is cheaper than a read of each.
            self.active.clear();
        }
        let many = count > limits::ACTIVE_COUNT_MAX;
        for index in 0..count {
            let Ready { token, events } = self.core.epoll.ready(index);
            if token == RETURN_TOKEN {
                self.take_returns();
            } else if token & LISTENER_BIT != 0 {
                self.accept_ready((token & !LISTENER_BIT) as usize);
            } else {
                self.entry_ready(token, events, many);
            }
        }
    }

    fn entry_ready(&mut self, id: u64, events: u32, many: bool) {
        self.confine(id, |adapter| adapter.look_after(id, events, many));
    }

    /// Runs work for one socket; a panic ends that socket's connection.
    pub(super) fn confine(&mut self, id: u64, work: impl FnOnce(&mut Self)) {
        if confined(|| work(self)).is_none() {
            self.expel(id);
        }
    }

    /// Ends a connection that met a bug of this program.
    fn expel(&mut self, id: u64) {
        match self.slots.get(id) {
            Some(Entry::Connection(_)) => self.end(id, End::Fault),
            Some(Entry::Request(_)) => self.drop_request(id),
            Some(Entry::Lingering(_)) => drop(self.slots.remove(id)),
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
            Some(Entry::Lingering(_)) => self.drain_lingering(id),
            None => {}
        }
    }

    /// Runs `step` on a connection and ends the connection if it fails. Returns `None` if the
    /// connection no longer exists.
    pub(super) fn serve<T>(
        &mut self,
        id: u64,
        step: impl FnOnce(&mut Connection, &mut Core) -> Result<T, End>,
    ) -> Option<T> {
        let Some(Entry::Connection(connection)) = self.slots.get_mut(id) else { return None };
        let done = confined(|| step(connection, &mut self.core)).unwrap_or(Err(End::Fault));
        done.map_err(|end| self.end(id, end)).ok()
    }

    /// Sends the queued work of connections.
    fn pump_dirty(&mut self) {
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
            if id == JUDGE_TOKEN {
                self.judge_some();
            } else if id & LISTENER_BIT != 0 {
                self.wake_listener((id & !LISTENER_BIT) as usize);
            } else {
                self.confine(id, |adapter| adapter.timer_ran_out(id, now));
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

    #[test]
    fn a_fault_in_the_set_up_of_a_connection_ends_it_alone() {
        use crate::{Event, ListenerId};
        let adapter = || IwarpAdapter::new(IwarpConfig::default()).unwrap();
        let (mut server, mut client) = (adapter(), adapter());
        server.listen(&Address::Tcp("127.0.0.1:0".parse().unwrap())).unwrap();
        let address = server.listener_address(ListenerId(0)).unwrap();
        let (domain, before) = (client.protection_domain(), crate::confine::faults());
        let mut events = Vec::new();
        crate::confine::fault::arm();
        client.connect(domain, &address, b"").unwrap();
        while events.is_empty() {
            server.poll(Instant::now(), &mut events);
            client.poll(Instant::now(), &mut events);
        }
        assert!(matches!(events[..], [Event::ConnectFailed { .. }]), "{events:?}");
        assert_eq!((crate::confine::faults(), server.socket_count()), (before + 1, 0));
        events.clear();
        client.connect(domain, &address, b"").unwrap();
        while events.is_empty() {
            client.poll(Instant::now(), &mut events);
            server.poll(Instant::now(), &mut events);
        }
        assert!(matches!(events[..], [Event::ConnectRequest { .. }]), "{events:?}");
    }

    #[test]
    fn a_socket_is_checked_once_for_all_that_a_turn_sends_and_receives() {
        use crate::descriptors::CHECKS;
        use crate::{Access, Event, ListenerId, Operation};
        const SENDS: usize = 32;
        let config = IwarpConfig { guarded: true, ..IwarpConfig::default() };
        let mut client = IwarpAdapter::new(config).unwrap();
        let mut server = IwarpAdapter::new(IwarpConfig::default()).unwrap();
        server.listen(&Address::Tcp("127.0.0.1:0".parse().unwrap())).unwrap();
        let address = server.listener_address(ListenerId(0)).unwrap();
        let domains = [client.protection_domain(), server.protection_domain()];
        let near = client.connect(domains[0], &address, b"").unwrap();
        let (mut far, mut events) = (None, Vec::new());
        while events.is_empty() {
            server.poll(Instant::now(), &mut events);
            for event in events.drain(..) {
                if let Event::ConnectRequest { request, .. } = event {
                    far = Some(server.accept(request, domains[1], b"").unwrap());
                }
            }
            client.poll(Instant::now(), &mut events);
        }
        let far = far.unwrap();
        let place = |adapter: &mut IwarpAdapter, domain| {
            let buffer = adapter.allocate(64).unwrap();
            adapter.register(domain, buffer, Access::LOCAL_WRITE).unwrap().local(0, 64)
        };
        let (here, there) = (place(&mut client, domains[0]), place(&mut server, domains[1]));
        let received = |events: &mut Vec<Event>| {
            let operations = events.drain(..).filter_map(|event| match event {
                Event::Completion(done) => Some(done.operation),
                _ => None,
            });
            operations.filter(|operation| *operation == Operation::Receive).count()
        };
        client.post_receive(near, 0, here).unwrap();
        let before = CHECKS.get();
        for work in 0..SENDS as u64 {
            server.post_receive(far, work, there).unwrap();
            client.post_send(near, work, &[here]).unwrap();
        }
        assert_eq!(CHECKS.get(), before, "nothing has left");
        client.flush();
        assert_eq!(CHECKS.get(), before + 1, "all have left together");
        let mut count = 0;
        while count < SENDS {
            server.poll(Instant::now(), &mut events);
            count += received(&mut events);
        }
        server.post_send(far, 0, &[there]).unwrap();
        server.flush();
        client.note_active(near.0);
        events.clear();
        while received(&mut events) == 0 {
            // No look at other connections.
            client.polls_since_kernel = 0;
            client.post_send(near, 0, &[here]).unwrap();
            let before = CHECKS.get();
            client.poll(Instant::now(), &mut events);
            assert_eq!(CHECKS.get(), before + 1);
        }
    }
}
