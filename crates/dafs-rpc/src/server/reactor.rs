//! A thread that serves connections: wait, serve, handle the inbox and the timeouts.
//!
//! Invariants
//! * Before the thread sleeps it has announced that in its inbox and has found the inbox empty.
//! * A connection with pending work is in the list of connections to resume, or a readiness event,
//!   an answer or a timeout resumes it.
//! * A panic in the work for one connection ends that connection and no other.

use super::group::{Shared, add};
use super::lingering::{Lingering, LingeringSet};
use super::peer::{EVENTS, Peer};
use super::worker::Worker;
use crate::call::{CallerProcess, ConnectionId};
use crate::connection::{Connection, Ending, shielded};
use crate::handler::{CallbackError, Handler};
use crate::inbox::{Command, Injector};
use crate::limits::{
    ACCEPT_REST, ACCEPTS_PER_TURN, EVENTS_PER_TURN, KEEPALIVE_IDLE, KEEPALIVE_INTERVAL,
    KEEPALIVE_PROBES, RECEIVE_BYTES, TICK_MILLISECONDS,
};
use crate::memory;
use dafs_dat::Spin;
use dafs_dat::connections::{Admitted, Closed, Origin};
use rustc_hash::FxHashMap;
use rustix::event::Timespec;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{SocketFlags, sockopt};
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// The epoll data of events that belong to no connection. No connection has such an identifier.
const INBOX: u64 = u64::MAX;
const LISTENERS: u64 = u64::MAX - 0xffff;

/// One thread's share of a server.
pub struct Reactor<H: Handler> {
    worker: Worker<H>,
    epoll: OwnedFd,
    slots: Vec<Option<Box<Peer>>>,
    free: Vec<u32>,
    serial: u64,
    /// Connections to resume without an event.
    again: Vec<ConnectionId>,
    /// Connections that wait for memory, by host.
    starved: FxHashMap<Origin, VecDeque<ConnectionId>>,
    lingering: LingeringSet,
    commands: Vec<Command>,
    /// Connections that commands addressed.
    touched: Vec<ConnectionId>,
    messages: Vec<H::Message>,
    /// False while file descriptors are short, until the next tick.
    listening: bool,
    next_tick_ns: u64,
    handler_at_ns: u64,
    stop_by_ns: Option<u64>,
}

impl<H: Handler> Reactor<H> {
    pub(super) fn new(
        shared: Arc<Shared>,
        number: usize,
        injector: Injector<H::Message>,
        handler: H,
    ) -> io::Result<Self> {
        let mut reactor = Self {
            worker: Worker::new(shared, number, injector, handler)?,
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            slots: Vec::new(),
            free: Vec::new(),
            serial: 0,
            again: Vec::new(),
            starved: FxHashMap::default(),
            lingering: LingeringSet::default(),
            commands: Vec::new(),
            touched: Vec::new(),
            messages: Vec::new(),
            listening: false,
            next_tick_ns: 0,
            handler_at_ns: u64::MAX,
            stop_by_ns: None,
        };
        let inbox = reactor.worker.inbox.descriptor();
        epoll::add(&reactor.epoll, inbox, EventData::new_u64(INBOX), EventFlags::IN)?;
        reactor.listen(true)?;
        Ok(reactor)
    }

    /// Serves until the group is stopped.
    pub fn run(mut self) {
        let mut spin = Spin::new(self.worker.shared.config.wake);
        let mut events = Vec::with_capacity(EVENTS_PER_TURN);
        memory::keep_here();
        self.worker.shared.started(self.worker.number);
        self.worker.now_ns = now_ns();
        loop {
            self.wait(&mut events, &mut spin);
            let busy = self.turn(&events);
            if self.stop_by_ns.is_some() && self.may_end() {
                return;
            }
            spin.turned(busy, self.worker.now_ns);
        }
    }

    /// Fills `events`; sleeps if there is no other work.
    fn wait(&mut self, events: &mut Vec<Event>, spin: &mut Spin) {
        events.clear();
        let may_sleep = self.again.is_empty() && spin.is_over(self.worker.now_ns);
        let sleep = may_sleep && self.worker.inbox.fall_asleep();
        let due_ns = self.next_tick_ns.min(self.worker.judge_at_ns).min(self.handler_at_ns);
        let ns = if sleep { due_ns.saturating_sub(self.worker.now_ns) } else { 0 };
        let timeout =
            Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 };
        let waited =
            epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), Some(&timeout));
        if let Err(error) = waited
            && error != Errno::INTR
        {
            // Timeouts and the inbox continue: the loss of a core is better than the loss of the
            // service.
            tracing::error!(%error, "an RPC reactor cannot wait for its connections");
        }
        self.worker.now_ns = now_ns();
        if sleep {
            self.worker.inbox.awake();
            spin.slept(self.worker.now_ns);
        }
    }

    /// Does all work that is ready; returns true if there was any.
    fn turn(&mut self, events: &[Event]) -> bool {
        let mut busy = !events.is_empty() || !self.again.is_empty();
        for id in std::mem::take(&mut self.again) {
            match self.peer(id) {
                Some(peer) => {
                    peer.listed = false;
                    self.serve(id);
                }
                None => self.linger(id),
            }
        }
        for event in events {
            // Copy the fields out of the packed struct.
            let (data, flags) = (event.data.u64(), event.flags);
            match data {
                INBOX => self.worker.inbox.acknowledge(),
                LISTENERS.. => self.accept((data - LISTENERS) as usize),
                _ => {
                    let id = ConnectionId(data);
                    match self.peer(id) {
                        Some(peer) => {
                            peer.note(flags);
                            self.serve(id);
                        }
                        None => self.linger(id),
                    }
                }
            }
        }
        if self.worker.inbox.check() {
            busy = true;
            self.run_commands();
        }
        self.feed_starved();
        if self.worker.now_ns >= self.next_tick_ns {
            self.tick();
        } else if self.worker.now_ns >= self.worker.judge_at_ns {
            let broken = self.worker.judge_some(&mut self.slots, false);
            broken.into_iter().for_each(|(id, ending)| self.end(id, &ending));
        }
        let next = shielded(|| self.worker.handler.turn_over(self.worker.now_ns));
        self.handler_at_ns = next.unwrap_or(Some(0)).unwrap_or(u64::MAX);
        busy |= self.handler_at_ns <= self.worker.now_ns;
        self.worker.publish();
        busy
    }

    /// Resumes connections that waited for memory, as long as there is some for their hosts.
    fn feed_starved(&mut self) {
        if self.starved.is_empty() {
            return;
        }
        let hosts: Vec<Origin> = self.starved.keys().copied().collect();
        for host in hosts {
            while !self.worker.budget.is_spent() {
                let Some(id) = self.starved.get_mut(&host).and_then(VecDeque::pop_front) else {
                    self.starved.remove(&host);
                    break;
                };
                let Some(peer) = self.peer(id) else { continue };
                peer.starved_listed = false;
                self.serve(id);
                if self.peer(id).is_some_and(|peer| peer.starved_listed) {
                    // The connection stays the first of its host.
                    self.starved.entry(host).or_default().rotate_right(1);
                    break;
                }
            }
        }
    }

    /// Ends connections while partial records take the whole budget, or none of them can make
    /// progress: of the host that holds the most, the half with the oldest records.
    fn relieve_budget(&mut self) {
        while self.worker.budget.is_spent() || self.is_stuck() {
            let Some(host) = self.worker.budget.largest_holder() else { return };
            let connections = self.slots.iter().flatten().map(|peer| &peer.connection);
            let mut holders: Vec<(u64, ConnectionId)> = connections
                .filter_map(|connection| Some((connection.holds_for(host)?, connection.id)))
                .collect();
            if holders.is_empty() {
                return;
            }
            holders.sort_unstable_by_key(|(since_ns, _)| *since_ns);
            holders.truncate(holders.len().div_ceil(2));
            holders.into_iter().for_each(|(_, id)| self.end(id, &Ending::Hoarding));
            self.feed_starved();
        }
    }

    /// True if all partial records of RPC wait for memory that others of them hold: a deadlock. A
    /// partial record of TLS hides none.
    fn is_stuck(&self) -> bool {
        let peers = || self.slots.iter().flatten();
        peers().any(|peer| peer.starved)
            && peers().all(|peer| peer.starved || peer.connection.partial_record_bytes() == 0)
    }

    fn peer(&mut self, id: ConnectionId) -> Option<&mut Peer> {
        let peer = self.slots.get_mut(id.slot())?.as_deref_mut()?;
        (peer.connection.id == id).then_some(peer)
    }

    /// Goes on with a connection that has ended, if it lingers.
    fn linger(&mut self, id: ConnectionId) {
        if self.lingering.advance(id, self.worker.receive_space(RECEIVE_BYTES)) {
            self.again.push(id);
        }
    }

    fn serve(&mut self, id: ConnectionId) {
        let Some(Some(peer)) = self.slots.get_mut(id.slot()) else { return };
        let served = shielded(|| self.worker.serve(peer)).unwrap_or_else(|| {
            self.worker.forget_input();
            Err(Ending::Fault)
        });
        match served {
            Err(ending) => self.end(id, &ending),
            Ok(()) if peer.starved => {
                if !std::mem::replace(&mut peer.starved_listed, true) {
                    let host = peer.connection.host();
                    self.starved.entry(host).or_default().push_back(id);
                }
            }
            Ok(()) => {
                let takes = self.worker.may_take(peer);
                if takes && peer.has_input() && !peer.listed {
                    peer.listed = true;
                    self.again.push(id);
                }
            }
        }
    }

    /// Executes the commands of other threads.
    fn run_commands(&mut self) {
        if self.worker.shared.is_stopping() && self.stop_by_ns.is_none() {
            let timeout = self.worker.shared.config.stop_timeout;
            self.stop_by_ns = Some(self.worker.now_ns.saturating_add(nanoseconds(timeout)));
            // A stopping reactor accepts no connection; a failure here would only let one in.
            let _ = self.listen(false);
        }
        let mut commands = std::mem::take(&mut self.commands);
        self.worker.inbox.take(&mut commands);
        let mut touched = std::mem::take(&mut self.touched);
        for command in commands.drain(..) {
            let about = command.connection();
            match shielded(|| self.run_command(command)) {
                Some(id) => touched.extend(id),
                None => about.into_iter().for_each(|id| self.end(id, &Ending::Fault)),
            }
        }
        self.commands = commands;
        // Their answers leave together.
        touched.drain(..).for_each(|id| self.serve_if_there(id));
        self.touched = touched;
        let mut messages = std::mem::take(&mut self.messages);
        self.worker.injector.take(&mut messages);
        for message in messages.drain(..) {
            shielded(|| self.worker.handler.message(message));
        }
        self.messages = messages;
    }

    fn serve_if_there(&mut self, id: ConnectionId) {
        if let Some(peer) = self.peer(id)
            && std::mem::take(&mut peer.listed)
        {
            self.serve(id);
        }
    }

    /// Executes one command; returns the connection to serve afterwards, once per connection.
    fn run_command(&mut self, command: Command) -> Option<ConnectionId> {
        let id = match command {
            Command::Adopt { stream, peer, admitted } => {
                self.adopt(stream, peer, admitted);
                return None;
            }
            Command::Close { connection } => {
                self.end(connection, &Ending::Asked);
                return None;
            }
            Command::Answer { connection, .. }
            | Command::Forget { connection, .. }
            | Command::Shaken { connection, .. }
            | Command::CallBack { connection, .. } => connection,
        };
        let peer = self.slots.get_mut(id.slot()).and_then(Option::as_deref_mut);
        let Some(peer) = peer.filter(|peer| peer.connection.id == id) else {
            if let Command::CallBack { call, .. } = command {
                let result = Err(CallbackError::Disconnected);
                shielded(|| self.worker.handler.back_reply(id, call.token, result));
            }
            return None;
        };
        let mut result = Ok(());
        match command {
            Command::Answer { to, answer, held_bytes, .. } => {
                peer.connection.answer_later(to, answer, held_bytes, self.worker.now_ns);
            }
            Command::Forget { held_bytes, .. } => {
                peer.connection.forget(held_bytes, self.worker.now_ns);
            }
            Command::CallBack { call, .. } => result = self.worker.call_back(peer, &call),
            Command::Shaken { stepped, .. } => result = self.worker.shaken(peer, *stepped),
            Command::Adopt { .. } | Command::Close { .. } => {}
        }
        if let Err(ending) = result {
            self.end(id, &ending);
            return None;
        }
        // The flag shows that the connection is in a list already, this one or that of the next
        // turn.
        (!std::mem::replace(&mut peer.listed, true)).then_some(id)
    }

    /// Checks the timeouts.
    fn tick(&mut self) {
        let now_ns = self.worker.now_ns;
        let config = &self.worker.shared.config;
        let shortest = [config.stall_timeout, config.output_timeout, config.back_timeout];
        let shortest = shortest.into_iter().min().map_or(u64::MAX, nanoseconds);
        let tick_ns = (TICK_MILLISECONDS * 1_000_000).min(shortest / 4).max(1_000_000);
        self.next_tick_ns = now_ns.saturating_add(tick_ns);
        if !self.listening && self.stop_by_ns.is_none() {
            // File descriptors may be free again; if not, the next accept fails again.
            let _ = self.listen(true);
        }
        let mut broken = self.worker.judge_some(&mut self.slots, true);
        for peer in self.slots.iter_mut().flatten() {
            let looked = shielded(|| {
                self.worker.tick_tls(peer)?;
                peer.connection.tick(&mut self.worker.turn())
            });
            if let Err(ending) = looked.unwrap_or(Err(Ending::Fault)) {
                broken.push((peer.connection.id, ending));
            }
        }
        broken.into_iter().for_each(|(id, ending)| self.end(id, &ending));
        self.lingering.tick(now_ns);
        self.relieve_budget();
        shielded(|| self.worker.handler.tick(now_ns));
        memory::trim();
    }
}

/// Acceptance and end of connections.
impl<H: Handler> Reactor<H> {
    fn listen(&mut self, on: bool) -> io::Result<()> {
        if self.listening == on {
            return Ok(());
        }
        self.listening = on;
        for (number, listener) in self.worker.shared.listeners.iter().enumerate() {
            if on {
                let data = EventData::new_u64(LISTENERS + number as u64);
                epoll::add(&self.epoll, listener, data, EventFlags::IN | EventFlags::EXCLUSIVE)?;
            } else {
                epoll::delete(&self.epoll, listener)?;
            }
        }
        Ok(())
    }

    fn accept(&mut self, listener: usize) {
        for _ in 0..ACCEPTS_PER_TURN {
            let shared = self.worker.shared.clone();
            let Some(listener) = shared.listeners.get(listener) else { return };
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            match rustix::net::acceptfrom_with(listener, flags) {
                Ok((stream, Some(peer))) => match SocketAddr::try_from(peer) {
                    Ok(peer) => {
                        // The connection may have taken the last file descriptor.
                        if let Err(error) = self.place(stream, peer) {
                            return self.make_room(&error);
                        }
                    }
                    Err(error) => tracing::debug!(%error, "a peer without internet address"),
                },
                Ok((_, None)) => {}
                Err(Errno::AGAIN) => return,
                Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) => {
                    return self.make_room(&error.into());
                }
                // The connection ended in the queue; the next may be alive.
                Err(error) => tracing::debug!(%error, "a connection could not be accepted"),
            }
        }
    }

    /// Handles a lack of file descriptors: closes a connection that is not established, and stops
    /// accepting for a while. Without that the reactor would loop.
    fn make_room(&mut self, error: &io::Error) {
        self.lingering.clear();
        let made_room = self.worker.shared.connections.make_room();
        tracing::warn!(%error, made_room, "cannot accept a connection; trying again soon");
        let _ = self.listen(false);
        let soon_ns = self.worker.now_ns.saturating_add(nanoseconds(ACCEPT_REST));
        self.next_tick_ns = self.next_tick_ns.min(soon_ns);
    }

    /// Finds a reactor for a new connection.
    ///
    /// # Errors
    /// When there are no descriptors or memory to find the user of the connection.
    fn place(&mut self, stream: OwnedFd, peer: SocketAddr) -> io::Result<()> {
        // Ask now: the peer has had no time to exit and leave its port to another process.
        let info = dafs_dat::tcp_peer(&stream, peer).inspect_err(|_| {
            add(&self.worker.counters().refused, 1);
            tracing::warn!(%peer, "connection refused: it is not known whose it is");
        })?;
        let (stream, origin) = (Arc::new(stream), Origin::of_peer(&info));
        let process = CallerProcess::from(&info);
        let admitted = self.worker.shared.connections.admit(origin, Arc::downgrade(&stream) as _);
        let admitted = match admitted {
            Ok(admitted) => admitted,
            Err(refusal) => {
                add(&self.worker.counters().refused, 1);
                tracing::warn!(%peer, "connection refused: {refusal}");
                return Ok(());
            }
        };
        self.worker.shared.enter();
        add(&self.worker.counters().accepted, 1);
        let number = self.worker.shared.choose(self.worker.number);
        if number == self.worker.number {
            self.adopt(stream, (peer, process), admitted);
        } else {
            let inbox = &self.worker.shared.members[number].inbox;
            inbox.push(Command::Adopt { stream, peer: (peer, process), admitted });
        }
        Ok(())
    }

    /// Begins to serve a connection that has been counted already.
    fn adopt(
        &mut self,
        stream: Arc<OwnedFd>,
        (address, process): (SocketAddr, CallerProcess),
        admitted: Arc<Admitted>,
    ) {
        // Replies must not wait for each other, and the kernel must detect dead peers.
        let _ = sockopt::set_tcp_nodelay(&stream, true);
        let _ = sockopt::set_socket_keepalive(&stream, true);
        let _ = sockopt::set_tcp_keepidle(&stream, KEEPALIVE_IDLE);
        let _ = sockopt::set_tcp_keepintvl(&stream, KEEPALIVE_INTERVAL);
        let _ = sockopt::set_tcp_keepcnt(&stream, KEEPALIVE_PROBES);
        let slot = self.free.pop().unwrap_or(self.slots.len() as u32);
        let fits = slot < ConnectionId::slots_max();
        self.serial += 1;
        let id = ConnectionId::new(self.worker.number as u8, slot, self.serial);
        let watched = epoll::add(&self.epoll, stream.as_fd(), EventData::new_u64(id.0), EVENTS);
        if !fits || watched.is_err() {
            tracing::warn!(peer = %address, "cannot watch a connection");
            if fits {
                self.keep_free(slot);
            }
            self.worker.shared.leave();
            self.worker.shared.unload(self.worker.number);
            return;
        }
        let config = &self.worker.shared.config;
        let mut connection = Connection::new(id, (address, process), config, self.worker.now_ns);
        connection.admitted = Some(admitted);
        if self.worker.shared.tls.is_some() {
            connection.offer_tls();
        }
        let peer = Some(Box::new(Peer::new(stream, connection)));
        match self.slots.get_mut(slot as usize) {
            Some(place) => *place = peer,
            None => self.slots.push(peer),
        }
        tracing::debug!(peer = %address, ?id, "connected");
        // The first event reports whether there is input.
        if let Some(peer) = self.peer(id) {
            peer.readable = false;
        }
    }

    /// Keeps the slot of an ended connection for the next one.
    fn keep_free(&mut self, slot: u32) {
        if slot as usize >= self.slots.len() {
            self.slots.push(None);
        }
        self.free.push(slot);
    }

    fn end(&mut self, id: ConnectionId, ending: &Ending) {
        if self.peer(id).is_none() {
            return;
        }
        let Some(mut peer) = self.slots[id.slot()].take() else { return };
        self.worker.count_waiting(&mut peer, 0);
        let address = peer.connection.peer;
        let closed = peer.connection.closed();
        self.worker.counters().count(closed);
        match closed.map(Ending::Counted).as_ref().unwrap_or(ending) {
            ending @ Ending::Counted(Closed::Refused) => {
                tracing::warn!(peer = %address, ?id, "connection refused: {ending}");
            }
            ending if ending.is_quiet() => {
                tracing::debug!(peer = %address, ?id, %ending, "connection ended");
            }
            ending => {
                add(&self.worker.counters().broken, 1);
                add(&self.worker.counters().tls_failed, u64::from(ending.is_of_tls()));
                tracing::info!(peer = %address, ?id, %ending, "connection broken off");
            }
        }
        let Peer { socket, mut connection, mut tls, .. } = *peer;
        let mut lingering = Lingering {
            socket,
            goodbye: tls.as_deref_mut().and_then(|tls| tls.goodbye(ending)),
            tls: tls.and_then(|tls| tls.into_kernel()),
            host: connection.host(),
            _admitted: connection.admitted.take(),
            since_ns: self.worker.now_ns,
            has_ended: false,
            is_idle: false,
        };
        if closed.is_some() || !lingering.is_needed(ending) {
            let _ = lingering.say_goodbye();
        } else if self.lingering.keep(id, lingering) {
            // No event tells of input that has come already.
            self.again.push(id);
        }
        // INVARIANT: slots are numbered below 2^20.
        self.free.push(id.slot() as u32);
        connection.end(&mut self.worker.turn());
        self.worker.shared.leave();
        self.worker.shared.unload(self.worker.number);
    }

    /// Ends the connections of a stopping reactor when everything is sent. True when none lingers
    /// for a peer that may not have received it, or the timeout has expired.
    fn may_end(&mut self) -> bool {
        let late = self.stop_by_ns.is_some_and(|by_ns| self.worker.now_ns >= by_ns);
        // A sleeping reactor must check again soon.
        let soon_ns = self.worker.now_ns.saturating_add(20_000_000);
        self.next_tick_ns = self.next_tick_ns.min(soon_ns);
        if !late && !self.slots.iter().flatten().all(|peer| peer.connection.is_answered()) {
            return false;
        }
        self.end_all();
        late || self.lingering.may_stop()
    }

    fn end_all(&mut self) {
        self.worker.shared.ended(self.worker.number);
        let ids: Vec<_> = self.slots.iter().flatten().map(|peer| peer.connection.id).collect();
        ids.into_iter().for_each(|id| self.end(id, &Ending::Stopped));
        self.worker.publish();
    }
}

/// The machine's monotonic clock.
fn now_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
