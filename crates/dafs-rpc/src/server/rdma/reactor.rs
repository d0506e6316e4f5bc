//! One turn of a reactor over RDMA: handle the events of the adapters, the inbox and the timeouts.
//! Waiting is elsewhere, so that the same code runs under simulated time.
//!
//! Invariants
//! * A connection is in the table from its acceptance until its adapter has reported its end.
//! * No code here waits.
//! * A panic in the work for one connection ends that connection and no other.

use super::connection::{Arrived, Connection, Ending};
use super::link::{Context, Core, Link, Tag};
use crate::call::ConnectionId;
use crate::connection::shielded;
use crate::handler::{CallbackError, Handler};
use crate::inbox::{Command, Injector};
use crate::limits::{
    QUIET_STRIDE, QUIET_TURNS, RDMA_CREDITS_INITIAL, RDMA_FETCH_SHORT_TIMEOUT,
    STALL_TIMEOUT_DIVISOR, STARVED_PER_TURN, TICK_MILLISECONDS,
};
use crate::memory;
use crate::server::group::{Shared, add};
use dafs_dat::{Adapter, Completion, DisconnectReason, EndpointId, Event, Instant, WorkStatus};
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// One thread's share of a server, for peers over direct access transports.
pub struct RdmaReactor<H: Handler> {
    pub(super) core: Core<H>,
    pub(super) ports: Vec<Port>,
    pub(super) slots: Vec<Option<Box<Connection>>>,
    pub(super) free: Vec<u32>,
    pub(super) serial: u64,
    injector: Injector<H::Message>,
    events: Vec<Event>,
    commands: Vec<Command>,
    messages: Vec<H::Message>,
    pub(super) next_tick_ns: u64,
    /// The time of the turn that the handler needs.
    handler_at_ns: u64,
    pub(super) stop_by_ns: Option<u64>,
    turns: u32,
}

/// An adapter and its connections.
pub(super) struct Port {
    pub(super) link: Link,
    pub(super) connections: FxHashMap<EndpointId, u32>,
    /// True when the reactor skips it in the next turn.
    pub(super) quiet: bool,
    /// Turns since its last event.
    pub(super) quiet_turns: u32,
}

impl<H: Handler> RdmaReactor<H> {
    pub(in crate::server) fn new(
        shared: Arc<Shared>,
        number: usize,
        adapters: Vec<Box<dyn Adapter>>,
        injector: Injector<H::Message>,
        handler: H,
    ) -> Self {
        let inline_bytes = shared.config.rdma_inline_bytes;
        let port = |adapter| Port {
            link: Link::new(adapter, inline_bytes),
            connections: FxHashMap::default(),
            quiet: false,
            quiet_turns: 0,
        };
        Self {
            core: Core::new(shared, number, handler),
            ports: adapters.into_iter().map(port).collect(),
            slots: Vec::new(),
            free: Vec::new(),
            serial: 0,
            injector,
            events: Vec::new(),
            commands: Vec::new(),
            messages: Vec::new(),
            next_tick_ns: 0,
            handler_at_ns: u64::MAX,
            stop_by_ns: None,
            turns: 0,
        }
    }

    /// Does all work at `now_ns` of the monotonic clock; returns true if there was any. A
    /// simulation calls it directly; [`RdmaReactor::run`] calls it in a loop.
    pub fn turn(&mut self, now_ns: u64) -> bool {
        self.core.now_ns = now_ns;
        let mut busy = false;
        let mut events = std::mem::take(&mut self.events);
        self.turns = self.turns.wrapping_add(1);
        let skip = self.ports.len() > 1 && !self.turns.is_multiple_of(QUIET_STRIDE);
        for port in 0..self.ports.len() {
            let Port { link, quiet, quiet_turns, .. } = &mut self.ports[port];
            if std::mem::take(quiet) || skip && *quiet_turns >= QUIET_TURNS {
                continue;
            }
            link.adapter.poll(Instant(now_ns), &mut events);
            *quiet_turns = if events.is_empty() { quiet_turns.saturating_add(1) } else { 0 };
            busy |= !events.is_empty();
            for event in events.drain(..) {
                self.event(port, event);
            }
        }
        self.events = events;
        if self.core.inbox.check() {
            busy = true;
            self.run_commands();
        }
        self.feed_starved();
        if now_ns >= self.next_tick_ns {
            self.tick();
        }
        let next = shielded(|| self.core.handler.turn_over(now_ns));
        self.handler_at_ns = next.unwrap_or(Some(0)).unwrap_or(u64::MAX);
        busy |= self.handler_at_ns <= now_ns;
        if busy {
            self.ports.iter_mut().for_each(|port| port.link.adapter.flush());
        }
        self.publish();
        busy
    }

    /// The time of the next [`RdmaReactor::turn`] if no event comes before.
    pub fn next_turn_ns(&self) -> u64 {
        let adapters = self.ports.iter().filter_map(|port| port.link.adapter.next_timeout());
        adapters.map(|time| time.0).fold(self.next_tick_ns.min(self.handler_at_ns), u64::min)
    }

    /// Closes the connections of a stopping reactor in order when every call has been answered and
    /// every answer sent. True when peers have received that and the connections have ended, or the
    /// timeout has expired.
    pub(super) fn may_end(&mut self) -> bool {
        let Some(stop_by_ns) = self.stop_by_ns else { return false };
        if self.core.now_ns >= stop_by_ns {
            return true;
        }
        // A sleeping reactor must check again soon.
        let soon_ns = self.core.now_ns.saturating_add(20_000_000);
        self.next_tick_ns = self.next_tick_ns.min(soon_ns);
        let mut connections = self.slots.iter().flatten();
        if !connections.all(|connection| connection.is_closing() || connection.is_answered()) {
            return false;
        }
        self.close_all();
        let is_over =
            |port: &Port| port.connections.is_empty() && !port.link.adapter.is_lingering();
        self.ports.iter().all(is_over)
    }

    /// Begins the orderly end of all connections. Their adapters report it.
    fn close_all(&mut self) {
        for connection in self.slots.iter_mut().flatten().filter(|other| !other.is_closing()) {
            connection.ending = Some(Ending::Asked);
            self.ports[connection.port].link.adapter.disconnect(connection.endpoint);
        }
        self.ports.iter_mut().for_each(|port| port.link.adapter.flush());
    }

    /// Ends all connections at once.
    pub(super) fn end_all(&mut self) {
        self.close_all();
        for slot in 0..self.slots.len() as u32 {
            self.end(slot, Ending::Asked);
        }
        self.publish();
    }

    /// Publishes the counts of this turn.
    fn publish(&mut self) {
        let tally = std::mem::take(&mut self.core.tally);
        let counters = self.core.counters();
        let connections = (self.slots.len() - self.free.len()) as u64;
        counters.rdma_connections.store(connections, Ordering::Relaxed);
        add(&counters.calls, tally.calls);
        add(&counters.rdma_calls, tally.calls);
        add(&counters.rejected, tally.rejected);
        add(&counters.unasked, tally.unasked);
    }

    fn event(&mut self, port: usize, event: Event) {
        match event {
            Event::Completion(completion) => self.completion(port, completion),
            Event::ConnectRequest { request, private_data, peer, .. } => {
                self.connect_request(port, request, &private_data, &peer);
            }
            // The peer sends first.
            Event::Established { .. } => {}
            Event::ConnectFailed { endpoint, error } => {
                self.ended(port, endpoint, Ending::Connect(error));
            }
            Event::Disconnected { endpoint, reason } => {
                self.ended(port, endpoint, Ending::Transport(reason));
            }
        }
    }

    fn completion(&mut self, port: usize, completion: Completion) {
        let Some(&slot) = self.ports[port].connections.get(&completion.endpoint) else { return };
        self.attend(slot, |context| {
            match Tag::unpack(completion.work) {
                Tag::Receive(slot) => match completion.status {
                    WorkStatus::Ok(len) => context.arrived(Arrived { slot, len: len as usize }),
                    WorkStatus::Flushed => context.connection.receives.give_back(slot),
                },
                Tag::Out(index) => context.sent_part(index),
                Tag::Fetch(index) => {
                    if completion.status == WorkStatus::Flushed {
                        context.fail(Ending::Transport(Box::new(DisconnectReason::Local)));
                    }
                    context.fetched_part(index);
                }
            }
            if !context.connection.queue.is_empty() {
                context.resume();
            }
        });
    }

    /// Runs `part` for the connection in a slot, if there is one. A panic ends the connection.
    pub(super) fn attend(&mut self, slot: u32, part: impl FnOnce(&mut Context<'_, H>)) {
        let Some(mut context) = self.context(slot) else { return };
        if shielded(|| part(&mut context)).is_none() {
            context.fail(Ending::Fault);
        }
    }

    pub(super) fn context(&mut self, slot: u32) -> Option<Context<'_, H>> {
        let connection = self.slots.get_mut(slot as usize)?.as_deref_mut()?;
        let link = &mut self.ports[connection.port].link;
        Some(Context { core: &mut self.core, link, connection })
    }

    pub(super) fn find(&mut self, id: ConnectionId) -> Option<Context<'_, H>> {
        // INVARIANT: slots are numbered below 2^20.
        self.context(id.slot() as u32).filter(|context| context.connection.id == id)
    }

    /// Resumes connections that waited for memory, as long as there is some.
    fn feed_starved(&mut self) {
        for _ in 0..self.core.starved.len().min(STARVED_PER_TURN) {
            let Some(id) = self.core.starved.pop_front() else { return };
            if self.find(id).is_some() {
                self.attend(id.slot() as u32, |context| {
                    context.connection.starved = false;
                    context.resume();
                });
            }
        }
    }

    /// Executes the commands of other threads.
    fn run_commands(&mut self) {
        if self.core.shared.is_stopping() && self.stop_by_ns.is_none() {
            let timeout = nanoseconds(self.core.shared.config.stop_timeout);
            self.stop_by_ns = Some(self.core.now_ns.saturating_add(timeout));
        }
        let mut commands = std::mem::take(&mut self.commands);
        self.core.inbox.take(&mut commands);
        for command in commands.drain(..) {
            let about = command.connection();
            if shielded(|| self.run_command(command)).is_none()
                && let Some(mut context) = about.and_then(|id| self.find(id))
            {
                context.fail(Ending::Fault);
            }
        }
        self.commands = commands;
        let mut messages = std::mem::take(&mut self.messages);
        self.injector.take(&mut messages);
        for message in messages.drain(..) {
            shielded(|| self.core.handler.message(message));
        }
        self.messages = messages;
    }

    fn run_command(&mut self, command: Command) {
        match command {
            Command::Answer { connection, to, answer, held_bytes, call_chunks } => {
                let Some(mut context) = self.find(connection) else { return };
                context.forget(held_bytes);
                context.answer(to, answer, call_chunks);
                context.resume();
            }
            Command::Forget { connection, held_bytes } => {
                let Some(mut context) = self.find(connection) else { return };
                context.forget(held_bytes);
                context.drop_call();
                context.resume();
            }
            Command::CallBack { connection, call } => match self.find(connection) {
                Some(mut context) => context.send_callback(&call),
                None => {
                    let result = Err(CallbackError::Disconnected);
                    shielded(|| self.core.handler.back_reply(connection, call.token, result));
                }
            },
            Command::Close { connection } => {
                if let Some(mut context) = self.find(connection) {
                    context.fail(Ending::Asked);
                }
            }
            // Other reactors serve byte streams.
            Command::Adopt { .. } | Command::Shaken { .. } => {}
        }
    }

    /// Checks the timeouts.
    fn tick(&mut self) {
        let now_ns = self.core.now_ns;
        let config = &self.core.shared.config;
        let shortest = [config.rdma_fetch_timeout, config.output_timeout, config.back_timeout];
        let shortest = shortest.into_iter().min().map_or(u64::MAX, nanoseconds);
        let tick_ns = (TICK_MILLISECONDS * 1_000_000).min(shortest / 4).max(1_000_000);
        self.next_tick_ns = now_ns.saturating_add(tick_ns);
        for slot in 0..self.slots.len() {
            self.attend(slot as u32, |context| context.tick());
        }
        shielded(|| self.core.handler.tick(now_ns));
        memory::trim();
        for Port { link, .. } in &mut self.ports {
            link.sends.trim(&mut *link.adapter);
        }
    }
}

impl<H: Handler> Context<'_, H> {
    fn tick(&mut self) {
        let now_ns = self.core.now_ns;
        let id = self.connection.id;
        if let Some(back) = &mut self.connection.back {
            back.calls.tick(id, &mut self.core.turn());
            let calls = &back.calls;
            back.queue.retain(|(xid, _)| calls.awaits(*xid));
        }
        self.connection.credits.tick(RDMA_CREDITS_INITIAL);
        let slots = self.connection.receives.total();
        self.connection.receives.shrink(&mut *self.link.adapter, 0);
        self.core.receive_slots -= slots - self.connection.receives.total();
        // Others wait for the memory of stalled connections. Then single pieces are not enough:
        // complete calls must arrive before a short timeout.
        let short = self.is_short();
        let divisor = if short { STALL_TIMEOUT_DIVISOR } else { 1 };
        let config = &self.core.shared.config;
        let passed =
            |since_ns: u64, time| now_ns >= since_ns.saturating_add(nanoseconds(time) / divisor);
        let connection = &self.connection;
        let moved_ns =
            if short { connection.fetched_since_ns } else { connection.fetches_since_ns };
        let fetch_timeout = match short {
            // The cap of the short timeout, multiplied because `passed` divides it again.
            true => config
                .rdma_fetch_timeout
                .min(RDMA_FETCH_SHORT_TIMEOUT * STALL_TIMEOUT_DIVISOR as u32),
            false => config.rdma_fetch_timeout,
        };
        let stalled = connection.fetches > 0 && passed(moved_ns, fetch_timeout);
        let unread =
            connection.sends > 0 && passed(connection.sends_since_ns, config.output_timeout);
        let first_call = config.first_call_timeout;
        // A first call may wait for memory of this server, or for the establishment of a context; a
        // call that is being fetched has its own timeout.
        let silent = !connection.known
            && connection.queue.is_empty()
            && connection.fetches == 0
            && connection.pending == 0
            && now_ns >= connection.begun_ns.saturating_add(nanoseconds(first_call));
        if let Some(closed) = connection.closed() {
            self.fail(Ending::Counted(closed));
        } else if silent {
            self.fail(Ending::Silent);
        } else if stalled {
            self.fail(Ending::Stalled);
        } else if unread {
            self.fail(Ending::Unread);
        }
    }
}

pub(super) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
