//! The DAFS engine, without I/O of its own: it takes events from adapters, the time and finished
//! jobs, and posts work. The reactor has the threads, clocks and sleeps. The simulator drives the
//! same code. An engine with a ring ([`disk`]) reads from disks itself, and the simulator gives it none.
//!
//! Invariants
//! * A receive is posted before the reply that grants it. Posted receives and requests in progress
//!   always add up to the credits of a connection.
//! * A fault of one connection ends only that connection, with a log line that gives the reason. A
//!   panic in its processing counts as such a fault.
//! * All resources of a connection (memory, waiting requests, its entry in the registry) are
//!   released when it ends.

mod accept;
pub(crate) mod allowed;
pub(crate) mod back;
mod batches;
mod binding;
mod cancel;
mod certificate;
mod chain;
mod connection;
pub(crate) mod convert;
mod counts;
pub(crate) mod credentials;
mod data_door;
pub(crate) mod disk;
mod drain;
mod durable;
pub(crate) mod flows;
mod gss;
pub(crate) mod hints;
mod lifetime;
pub(crate) mod measure;
pub(crate) mod memory;
mod options;
mod proven;
mod registry;
mod reply;
pub(crate) mod request;
mod resume;
pub(crate) mod session_ops;
mod shares;
pub(crate) mod shown;
pub(crate) mod staging;
mod survey;
mod ticker;
pub(crate) mod transfers;
mod waiting;
pub(crate) mod work;

pub use counts::EngineCounts;
pub use disk::{DiskReads, PageRing, ReadRing};
pub use registry::Registry;
pub use survey::SessionFacts;
pub use ticker::Ticker;
pub use work::{JobDone, JobResult};

use crate::auth::Authenticator;
use crate::exposed::ExposedMemory;
use crate::inbox::Inbox;
use crate::limits::SessionLimits;
use back::{BackFront, Mail};
use connection::{Channel, Connection, Phase};
use dafs_dat::confine::confined;
use dafs_dat::{
    Adapter, Address, Completion, DisconnectReason, EndpointId, Event, Instant, ListenerId,
    Operation, ProtectionDomain, WorkStatus,
};
use dafs_service::{DataRole, Drain, Pool, Service, WriteVerifier};
use disk::Disk;
use drain::{DrainRequests, UnderWay};
use memory::{Replies, ReplySlot};
use request::Context;
use rustc_hash::FxHashMap;
use shares::CreditShares;
use shown::Remainders;
use staging::Staging;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use work::{Arrival, PendingId, PendingTable};

/// The interval of timeout checks.
const TICK: Duration = Duration::from_millis(500);

/// Turns without an event after which a transport is polled less often, as long as another one has
/// work. On some transports a poll costs a system call.
const QUIET_TURNS: u32 = 512;

/// The interval of these polls, in turns.
const QUIET_STRIDE: u32 = 16;

/// The state that all engines of a server share.
pub struct Shared {
    /// The semantics.
    pub service: Arc<Service>,
    /// Decides which clients are admitted.
    pub authenticator: Arc<Authenticator>,
    /// Sessions and connections of all engines.
    pub registry: Arc<Registry>,
    /// The pool for blocking calls.
    pub pool: Arc<dyn Pool>,
    /// Bounds.
    pub limits: SessionLimits,
    /// Changes whenever unstable data may have been lost, for instance at a start of the server.
    pub write_verifier: Arc<WriteVerifier>,
    /// The clock for durations of requests, used only for metrics.
    pub clock: fn() -> Instant,
    /// The pool for password checks. It is separate from the pool above, because any peer may
    /// request a check.
    pub proofs: Arc<dyn Pool>,
    /// The memory in which it exposes files to clients.
    pub exposed: Option<Arc<ExposedMemory>>,
    /// For the front end of a data server: the data that it serves, and its metadata server.
    pub data: Option<DataRole>,
}

/// One reactor's share of the server.
pub struct Engine {
    shared: Arc<Shared>,
    inbox: Arc<Inbox<JobDone>>,
    /// The service's way to the clients. The service holds it weakly.
    front: Arc<BackFront>,
    ports: Vec<Port>,
    pending: PendingTable,
    /// Reads that wait for the disk.
    disk: Disk,
    events: Vec<Event>,
    done: Vec<JobDone>,
    /// Drain requests of fences.
    drain_requests: Arc<DrainRequests>,
    drains: Vec<UnderWay>,
    next_tick: Instant,
    turns: u32,
    /// True when the server stops.
    closing: bool,
}

/// One transport with its connections.
struct Port {
    link: Link,
    /// Turns since its last event.
    quiet_turns: u32,
    /// It is known to have no event in the next turn.
    asleep: bool,
    connections: FxHashMap<EndpointId, Connection>,
}

/// The transport and its memory.
pub(crate) struct Link {
    adapter: Box<dyn Adapter>,
    domain: ProtectionDomain,
    replies: Replies,
    staging: Staging,
    /// The cost of listings in this turn.
    listed: usize,
    /// The times at which connections have to check their batches.
    batches_due: FxHashMap<EndpointId, Instant>,
    /// Optimistic channels, bound or not yet.
    optimistic_channels: usize,
    /// Reads by RDMA from exposed memory, as of the last tick.
    granted_reads: u64,
    remainders: Remainders,
    /// Credits of all connections.
    credits: usize,
    /// Their division while they are scarce.
    shares: CreditShares,
    /// The server stops.
    is_closing: bool,
}

/// Stands for a chunk's number while another piece of the same chunk is still being sent.
const PIECE_ONLY: u32 = u32::MAX;

/// The meaning of a work tag. The tag is a number: the kind above, an index below.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tag {
    Receive(u32),
    Reply(ReplySlot),
    /// A chunk that is being sent to the client, and is free when it is sent.
    ChunkOut(u32),
    /// A read into a chunk or mapped memory, for a waiting request (table index and chunk).
    ChunkIn {
        pending: u32,
        chunk: u32,
    },
}

impl Tag {
    fn pack(self) -> u64 {
        match self {
            Tag::Receive(slot) => u64::from(slot),
            Tag::Reply(slot) => 1 << 56 | u64::from(slot.0),
            Tag::ChunkOut(chunk) => 2 << 56 | u64::from(chunk),
            Tag::ChunkIn { pending, chunk } => {
                debug_assert!(pending < 1 << 24);
                3 << 56 | u64::from(pending) << 32 | u64::from(chunk)
            }
        }
    }

    fn unpack(work: u64) -> Self {
        let index = work as u32;
        match work >> 56 {
            0 => Tag::Receive(index),
            1 => Tag::Reply(ReplySlot(index)),
            2 => Tag::ChunkOut(index),
            _ => Tag::ChunkIn { pending: (work >> 32) as u32 & 0x00ff_ffff, chunk: index },
        }
    }
}

impl Engine {
    /// Makes an engine over `adapters`. Results of blocking calls come to `inbox`.
    pub fn new(
        shared: Arc<Shared>,
        adapters: Vec<Box<dyn Adapter>>,
        inbox: Arc<Inbox<JobDone>>,
    ) -> Self {
        let reply_bytes = shared.limits.response_bytes_max as usize;
        let port = |mut adapter: Box<dyn Adapter>| {
            let domain = adapter.protection_domain();
            let replies = Replies::new(domain, reply_bytes);
            let staging = Staging::new(domain);
            let link = Link {
                adapter,
                domain,
                replies,
                staging,
                listed: 0,
                batches_due: FxHashMap::default(),
                optimistic_channels: 0,
                granted_reads: 0,
                remainders: Remainders::default(),
                credits: 0,
                shares: CreditShares::default(),
                is_closing: false,
            };
            Port { link, quiet_turns: 0, asleep: false, connections: FxHashMap::default() }
        };
        let drain_requests = DrainRequests::new(inbox.clone());
        let drain: Arc<dyn Drain> = drain_requests.clone();
        shared.service.fences.add_drain(Arc::downgrade(&drain));
        let (service, registry) = (shared.service.clone(), shared.registry.clone());
        Self {
            shared,
            inbox,
            front: Arc::new(BackFront { service, registry }),
            drain_requests,
            drains: Vec::new(),
            ports: adapters.into_iter().map(port).collect(),
            pending: PendingTable::default(),
            disk: Disk::default(),
            events: Vec::new(),
            done: Vec::new(),
            next_tick: Instant(0),
            turns: 0,
            closing: false,
        }
    }

    /// Returns the adapters, for a driver that waits on their descriptors.
    pub fn adapters(&mut self) -> impl Iterator<Item = &mut Box<dyn Adapter>> {
        self.ports.iter_mut().map(|port| &mut port.link.adapter)
    }

    /// Starts to listen on an adapter, by its index in the list given to `new`.
    ///
    /// # Errors
    /// Those of [`Adapter::listen`].
    pub fn listen(&mut self, adapter: usize, address: &Address) -> io::Result<ListenerId> {
        self.ports[adapter].link.adapter.listen(address)
    }

    /// Returns the inbox for results.
    pub fn inbox(&self) -> &Arc<Inbox<JobDone>> {
        &self.inbox
    }

    /// Counts the state that is held now.
    pub fn counts(&self) -> EngineCounts {
        let mut counts = EngineCounts { pending: self.pending.len(), ..EngineCounts::default() };
        for port in &self.ports {
            counts.connections += port.connections.len();
            let level = port.link.shares.level;
            counts.credits_short += usize::from(level.is_some());
            let fetches = port.connections.values().map(|other| other.fetches_posted as usize);
            counts.fetches += fetches.sum::<usize>();
            let bound = |connection: &&Connection| {
                connection.channel == Channel::Optimistic && connection.phase == Phase::Bound
            };
            counts.optimistic_channels += port.connections.values().filter(bound).count();
            let ready = |connection: &&Connection| connection.phase == Phase::Ready;
            for connection in port.connections.values().filter(ready) {
                counts.sessions += 1;
                counts.credits_owed += usize::from(connection.owed(&self.shared.limits, level));
                if connection.weighed.weight.is_raised() {
                    counts.important_sessions += 1;
                    counts.important_credits += usize::from(connection.credits.nreq);
                }
            }
            counts.replies += port.link.replies.in_use();
            counts.chunks += port.link.staging.in_use();
            counts.pulled_bytes += port.link.staging.pulled_bytes();
            counts.credits += port.link.credits;
        }
        counts
    }

    /// Handles all pending events. Returns true when there were any.
    pub fn turn(&mut self, now: Instant) -> bool {
        let mut busy = false;
        self.share_credits(now);
        self.check_looks(now);
        self.turns = self.turns.wrapping_add(1);
        let skip = self.ports.len() > 1 && !self.turns.is_multiple_of(QUIET_STRIDE);
        for index in 0..self.ports.len() {
            let port = &mut self.ports[index];
            port.link.listed = 0;
            if std::mem::take(&mut port.asleep) || skip && port.quiet_turns >= QUIET_TURNS {
                continue;
            }
            let mut events = std::mem::take(&mut self.events);
            port.link.adapter.poll(now, &mut events);
            busy |= !events.is_empty();
            port.quiet_turns =
                if events.is_empty() { port.quiet_turns.saturating_add(1) } else { 0 };
            for event in events.drain(..) {
                self.event(index, event, now);
            }
            self.events = events;
        }
        if self.collect(now) {
            busy = true;
            // Mail to an own connection may have been answered.
            self.collect(now);
        }
        busy |= self.collect_reads(now);
        self.drain(now);
        busy |= self.batches(now);
        for port in 0..self.ports.len() {
            if self.ports[port].link.staging.is_due() {
                self.resume_waiting(port, now);
            }
        }
        let ticks = now >= self.next_tick;
        if ticks {
            self.tick(now);
            self.next_tick = now + TICK;
        }
        self.begin_reads(now);
        // The work of a tick may be the only work of this turn.
        if busy || ticks {
            for port in &mut self.ports {
                port.link.adapter.flush();
            }
        }
        busy || self.fill_remainder()
    }

    /// Notes that the driver has slept. `ready` is true for each adapter, by its index in the list
    /// given to `new`, that has an event. The others need no poll in the next turn.
    pub fn woken(&mut self, ready: impl Fn(usize) -> bool) {
        for (index, port) in self.ports.iter_mut().enumerate() {
            port.quiet_turns = 0;
            port.asleep = !ready(index);
        }
    }

    /// Returns the time at which `turn` must be called even without an event.
    pub fn next_timeout(&self) -> Instant {
        if self.drain_requests.is_some() || self.has_remainders() {
            return Instant(0);
        }
        let adapters = self.ports.iter().filter_map(|port| port.link.adapter.next_timeout());
        let batches = self.ports.iter().flat_map(|port| port.link.batches_due.values().copied());
        let others = batches.chain(self.retry_of_reads());
        adapters.chain(others).fold(self.next_tick, Instant::min)
    }

    /// Accepts no connection from now on. Answers GRACE, which says that nothing was done, to changes
    /// that come alone, but for writes and appends. Returns true when no request is under way any more.
    /// Call `turn` until then, or for as long as you want to wait for it.
    pub fn quiesce(&mut self) -> bool {
        if !self.closing {
            self.closing = true;
            for Port { link, .. } in &mut self.ports {
                link.is_closing = true;
                link.adapter.stop_listening();
            }
        }
        self.pending.len() == 0
    }

    /// Ends every connection in order, and accepts no other. Call `turn` until `counts` shows none.
    pub fn close_all(&mut self) {
        self.quiesce();
        for port in &mut self.ports {
            for connection in port.connections.values_mut().filter(|other| !other.ended) {
                connection.phase = Phase::Closing;
                port.link.adapter.disconnect(connection.endpoint);
            }
        }
    }

    fn event(&mut self, port: usize, event: Event, now: Instant) {
        match event {
            Event::Completion(completion) => self.completion(port, completion, now),
            Event::ConnectRequest { request, private_data, peer, .. } => {
                self.connect_request(port, request, &private_data, *peer, now);
            }
            // The client speaks first.
            Event::Established { .. } => {}
            Event::ConnectFailed { endpoint, error } => {
                self.end(port, endpoint, &error.to_string(), now);
            }
            Event::Disconnected { endpoint, reason } => match *reason {
                DisconnectReason::Local | DisconnectReason::Peer => {
                    self.end(port, endpoint, "closed", now);
                }
                reason => {
                    let connection = self.ports[port].connections.get(&endpoint);
                    match connection.map(|connection| (connection.channel, &connection.peer)) {
                        // The peer of an exposure that has ended finds that out so.
                        Some((Channel::Optimistic, peer)) => {
                            tracing::info!(%peer, %reason, "optimistic channel has ended");
                        }
                        Some((_, peer)) => tracing::warn!(%peer, %reason, "connection has ended"),
                        None => {}
                    }
                    self.end(port, endpoint, &reason.to_string(), now);
                }
            },
        }
    }

    fn completion(&mut self, port: usize, completion: Completion, now: Instant) {
        let Completion { endpoint, work, operation, status, .. } = completion;
        match (Tag::unpack(work), operation) {
            (Tag::Receive(slot), Operation::Receive) => match status {
                WorkStatus::Ok(len) => {
                    self.with(port, endpoint, now, |context| context.receive(slot, len as usize));
                }
                WorkStatus::Flushed => {
                    if let Some(connection) = self.ports[port].connections.get_mut(&endpoint) {
                        connection.credits.posted -= 1;
                    }
                }
            },
            (Tag::Reply(slot), _) => {
                self.ports[port].link.replies.give_back(slot);
                self.progress(port, endpoint, now);
            }
            (Tag::ChunkOut(PIECE_ONLY), _) => {
                self.progress(port, endpoint, now);
                self.batch_room(port, endpoint, now);
            }
            (Tag::ChunkOut(chunk), _) => {
                self.ports[port].link.staging.give_back(chunk);
                self.progress(port, endpoint, now);
                self.batch_room(port, endpoint, now);
                self.resume_waiting(port, now);
            }
            (Tag::ChunkIn { pending, chunk }, _) => {
                self.progress(port, endpoint, now);
                if let Some(connection) = self.ports[port].connections.get_mut(&endpoint) {
                    connection.fetches_posted -= 1;
                    connection.fetch_progress_at = now;
                }
                let ok = matches!(status, WorkStatus::Ok(_));
                self.fetched(port, endpoint, pending, chunk, ok, now);
            }
            (Tag::Receive(_), _) => debug_assert!(false, "a tag came back with other work"),
        }
    }

    /// Notes the completion of posted work, which shows that the client is alive.
    fn progress(&mut self, port: usize, endpoint: EndpointId, now: Instant) {
        if let Some(connection) = self.ports[port].connections.get_mut(&endpoint) {
            connection.work_posted -= 1;
            connection.progress_at = now;
        }
    }

    fn fetched(
        &mut self,
        port: usize,
        endpoint: EndpointId,
        index: u32,
        chunk: u32,
        ok: bool,
        now: Instant,
    ) {
        let Some(id) = self.pending.id_at(index) else {
            return debug_assert!(false, "RDMA completed for a request that is gone");
        };
        self.with(port, endpoint, now, |context| context.fetched(id, chunk, ok));
        self.resume_waiting(port, now);
    }

    /// Resumes the transfers that wait for chunks, in turn.
    fn resume_waiting(&mut self, port: usize, now: Instant) {
        loop {
            let Self { ports, pending, .. } = self;
            let next = ports[port].link.staging.next(|id| pending.need(id));
            let Some(id) = next else { return };
            let Some(endpoint) = pending.get_mut(id).map(|pending| pending.endpoint) else {
                continue;
            };
            self.with(port, endpoint, now, |context| context.resume(id));
        }
    }

    /// Runs `act` for a connection, if it still exists. A panic in it ends only that connection.
    fn with(
        &mut self,
        port: usize,
        endpoint: EndpointId,
        now: Instant,
        act: impl FnOnce(&mut Context<'_>),
    ) {
        let Port { link, connections, .. } = &mut self.ports[port];
        let Some(connection) = connections.get_mut(&endpoint) else { return };
        let mut context = Context {
            shared: &self.shared,
            inbox: &self.inbox,
            front: &self.front,
            port: port as u32,
            link,
            pending: &mut self.pending,
            disk: &mut self.disk,
            connection,
            now,
            deferred: false,
        };
        let done = confined(|| {
            act(&mut context);
            context.run_chains();
        });
        if done.is_none() {
            context.doubt_changes();
            context.drop_session("this server failed at what the client sent; please report it");
        }
    }

    /// Handles finished jobs.
    fn collect(&mut self, now: Instant) -> bool {
        let mut done = std::mem::take(&mut self.done);
        self.inbox.take(&mut done);
        let busy = !done.is_empty();
        for JobDone(arrival) in done.drain(..) {
            match arrival {
                Arrival::Result { pending, result } => self.job_over(pending, result, now),
                Arrival::Mail { port, endpoint, mail } => {
                    self.mail(port as usize, endpoint, mail, now);
                }
            }
        }
        self.done = done;
        busy
    }

    /// Goes on with the request of a finished job.
    fn job_over(&mut self, id: PendingId, result: JobResult, now: Instant) {
        let Some(pending) = self.pending.get_mut(id) else { return };
        let (endpoint, port) = (pending.endpoint, pending.call.port as usize);
        self.with(port, endpoint, now, |context| context.job_done(id, result));
        self.leave(port, endpoint, now);
        self.resume_waiting(port, now);
    }

    /// Delivers mail to a connection.
    fn mail(&mut self, port: usize, endpoint: EndpointId, mail: Mail, now: Instant) {
        if self.ports[port].connections.contains_key(&endpoint) {
            self.with(port, endpoint, now, |context| context.mail(mail));
            self.leave(port, endpoint, now);
        } else {
            mail.undeliverable(&self.shared.service, &self.shared.registry);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_come_back_as_they_went() {
        for tag in [
            Tag::Receive(7),
            Tag::Reply(ReplySlot(1 << 23 | 5)),
            Tag::ChunkOut(63),
            Tag::ChunkIn { pending: 0x00ff_fffe, chunk: 9 },
        ] {
            assert_eq!(Tag::unpack(tag.pack()), tag);
        }
    }
}
