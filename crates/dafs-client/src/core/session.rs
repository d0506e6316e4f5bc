//! One DAFS session as a state machine without I/O of its own: it posts work to an adapter that it
//! is handed, is fed the adapter's events and the time, and queues what has completed.
//!
//! Invariants
//! * Every call taken completes exactly once: answered, refused by the server, or lost with the
//!   session (`completed` grows by one entry per call, in `finish` alone).
//! * A receive is posted before each request, so that its reply always finds one (DAFS 7).
//! * Outstanding requests never exceed the credits; see [`Streams`](super::streams::Streams).
//! * After the end of a session nothing is sent and nothing is in flight.
//! * Between the loss of a connection and the end of recovery no call of the application is sent.

use super::back::Back;
use super::call::{Call, Completed, Done, Purpose};
use super::chain::{Chains, Ended};
use super::config::{SessionConfig, SessionInfo};
use super::connection::Connection;
use super::failure::Failure;
use super::held::Held;
use super::memory::{Graveyard, RegisteredMemory};
use super::orphans::Orphans;
use super::recovery::Recovery;
use crate::limits::{LEASE_ASSUMED, MESSAGE_BYTES_MAX, MESSAGE_BYTES_MIN};
use dafs_dat::{
    Access, Adapter, Address, Completion, ConnectError, Event, Instant, Operation, RegisterError,
    WorkStatus,
};
use dafs_mem::{Buffer, Gone};
use dafs_wire::dafs::{ByteOrder, CredHandle};
use std::collections::VecDeque;
use std::sync::{Arc, Weak};

/// Where a session stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The transport connection is being made.
    Connecting,
    /// The session is being opened: options, authentication, credential, root, limits.
    Opening,
    /// Calls are taken and sent.
    Ready,
    /// The connection was lost and another one is being made, or what the server did before is
    /// being found out. Calls are taken and sent later.
    Recovering,
    /// DISCONNECT has been sent, or waits for what is in flight.
    Closing,
    /// Nothing more will happen.
    Over,
}

/// Counters of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct SessionStats {
    /// Requests that the server lets us have outstanding.
    pub credits: u16,
    /// Requests outstanding.
    pub in_flight: u16,
    /// Calls that wait for a credit.
    pub queued: usize,
    /// Requests answered.
    pub answered: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Reads and writes whose data travelled inside messages.
    pub inline_transfers: u64,
    /// Reads and writes whose data was placed directly.
    pub direct_transfers: u64,
    /// NULLs sent to keep leases alive or to give credits back.
    pub nulls: u64,
    /// Connections lost and recovered from.
    pub recoveries: u64,
    /// Restarts of the server seen.
    pub restarts: u64,
}

/// The state machine. All methods that post work take the one adapter it was connected with.
pub struct SessionCore {
    pub(crate) config: SessionConfig,
    pub(crate) address: Address,
    pub(crate) order: ByteOrder,
    pub(crate) stage: Stage,
    pub(crate) conn: Connection,
    pub(crate) graveyard: Arc<Graveyard>,
    /// The application's memory, for the next connection; only kept when there may be one.
    pub(crate) memories: Vec<Weak<RegisteredMemory>>,
    pub(crate) held: Held,
    pub(crate) chains: Chains,
    /// The back-control channel and what hangs on it.
    pub(crate) back: Back,
    /// Calls that wait for a credit, or for a connection.
    pub(crate) waiting: VecDeque<Call>,
    /// Calls that a restarted server has put off, with when to ask again; earliest first.
    pub(crate) put_off: VecDeque<(Instant, Call)>,
    /// When the server first put a request off since the connection was made.
    pub(crate) grace_since: Option<Instant>,
    /// There while a lost connection is being replaced.
    pub(crate) recovery: Option<Box<Recovery>>,
    /// When the first of the connections was lost that have come to nothing since.
    pub(crate) lost_at: Option<Instant>,
    /// The application wants the session to end.
    pub(crate) closing: bool,
    /// What is left of calls that have completed before they were answered.
    pub(crate) orphans: Orphans,
    pub(crate) completed: VecDeque<Completed>,
    /// Where messages are put together.
    pub(crate) scratch: Vec<u8>,
    pub(crate) info: SessionInfo,
    pub(crate) cred_handle: CredHandle,
    pub(crate) next_analyzer: u64,
    pub(crate) desired: u16,
    pub(crate) demand_peak: u16,
    /// The time that the caller told last.
    pub(crate) now: Instant,
    pub(crate) last_request: Instant,
    /// When the last reply came, or recovery was over.
    pub(crate) last_reply: Instant,
    /// When the latest request was sent that has been answered in a session that was in order; none
    /// has before the first reply.
    pub(crate) promised_from: Option<Instant>,
    /// When the last reply came in a session that was in order.
    pub(crate) answered_at: Instant,
    /// No request is due before this; it may be too early, never too late.
    pub(crate) first_deadline: Option<Instant>,
    pub(crate) failure: Option<Failure>,
    pub(crate) stats: SessionStats,
}

impl SessionCore {
    /// Starts to connect. [`handle`](Self::handle) takes it from there; the session is open when
    /// [`stage`](Self::stage) says so.
    ///
    /// # Errors
    /// What the transport can tell at once.
    pub fn connect(
        adapter: &mut dyn Adapter,
        config: SessionConfig,
        address: &Address,
        now: Instant,
    ) -> Result<Self, ConnectError> {
        let conn = new_connection(adapter, &config);
        let mut core = Self {
            address: address.clone(),
            order: config.byte_order,
            stage: Stage::Connecting,
            conn,
            graveyard: Arc::default(),
            memories: Vec::new(),
            held: Held::default(),
            chains: Chains::default(),
            back: Back::default(),
            waiting: VecDeque::new(),
            put_off: VecDeque::new(),
            grace_since: None,
            recovery: None,
            lost_at: None,
            closing: false,
            orphans: Orphans::default(),
            completed: VecDeque::new(),
            scratch: vec![0; message_bytes(config.request_bytes)],
            info: SessionInfo { lease: LEASE_ASSUMED, ..SessionInfo::default() },
            cred_handle: CredHandle::SESSION,
            next_analyzer: 1,
            desired: config.requests.max(1),
            demand_peak: 0,
            now,
            last_request: now,
            last_reply: now,
            promised_from: None,
            answered_at: now,
            first_deadline: None,
            failure: None,
            stats: SessionStats::default(),
            config,
        };
        core.dial(adapter)?;
        Ok(core)
    }

    /// Starts one attempt to connect.
    pub(crate) fn dial(&mut self, adapter: &mut dyn Adapter) -> Result<(), ConnectError> {
        let hello = super::hello::private_data(&self.config);
        // Connect requests and their replies carry none (DAFS O20).
        self.info.checksums = false;
        self.conn.endpoint = Some(adapter.connect(self.conn.domain, &self.address, &hello)?);
        Ok(())
    }

    /// Where the session stands.
    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// What was agreed on; complete once the session is ready. A recovery may change it.
    pub fn info(&self) -> &SessionInfo {
        &self.info
    }

    /// The byte order of the session.
    pub fn byte_order(&self) -> ByteOrder {
        self.order
    }

    /// Why the session is over.
    pub fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    /// The next call that is over.
    pub fn take_completed(&mut self) -> Option<Completed> {
        self.completed.pop_front()
    }

    /// True when nothing is outstanding or waiting, requests of our own included.
    pub fn is_idle(&self) -> bool {
        self.is_idle_but_for(0)
    }

    /// True when no more than so many calls are outstanding or waiting, and nothing else is under way.
    pub fn is_idle_but_for(&self, calls: usize) -> bool {
        let outstanding = usize::from(self.conn.streams.outstanding());
        outstanding + self.waiting.len() + self.put_off.len() <= calls
            && self.recovery.is_none()
            && self.back.batches.is_idle()
    }

    /// How often the server was found to have restarted.
    pub fn restarts(&self) -> u64 {
        self.stats.restarts
    }

    /// The counters.
    pub fn stats(&self) -> SessionStats {
        SessionStats {
            credits: self.conn.streams.granted(),
            in_flight: self.conn.streams.outstanding(),
            queued: self.waiting.len(),
            ..self.stats
        }
    }

    /// Registers memory for transfers in this session.
    ///
    /// # Errors
    /// That of the adapter.
    pub fn register(
        &mut self,
        adapter: &mut dyn Adapter,
        buffer: Arc<Buffer>,
    ) -> Result<Arc<RegisteredMemory>, RegisterError> {
        self.reap(adapter);
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let region = adapter.register(self.conn.domain, buffer.clone(), access)?;
        let (mappable, graveyard) = (adapter.is_mappable(&buffer), self.graveyard.clone());
        let memory = Arc::new(RegisteredMemory::new(buffer, region, graveyard, mappable));
        self.remember(&memory);
        Ok(memory)
    }

    /// True when the memory was registered in this session.
    pub fn owns(&self, memory: &RegisteredMemory) -> bool {
        memory.belongs_to(&self.graveyard)
    }

    /// Ends registrations that nobody holds any more. To be called after every step that may have
    /// dropped memory and before its result is seen.
    pub fn reap(&mut self, adapter: &mut dyn Adapter) {
        for region in self.graveyard.exhume() {
            adapter.deregister(region);
        }
    }

    /// Takes one event of the adapter. Events of other endpoints are left alone.
    pub fn handle(&mut self, adapter: &mut dyn Adapter, event: Event, now: Instant) {
        self.now = now;
        let ours = self.conn.endpoint;
        let endpoint = match &event {
            Event::Completion(completion) => Some(completion.endpoint),
            Event::Established { endpoint, .. }
            | Event::ConnectFailed { endpoint, .. }
            | Event::Disconnected { endpoint, .. } => Some(*endpoint),
            Event::ConnectRequest { .. } => None,
        };
        match event {
            _ if endpoint.is_some_and(|endpoint| self.is_back(endpoint)) => {
                self.on_back_event(adapter, event, now);
            }
            Event::Completion(completion) if Some(completion.endpoint) == ours => {
                self.on_completion(adapter, completion, now);
            }
            Event::Established { endpoint, .. } if Some(endpoint) == ours => {
                self.on_established(adapter, now);
            }
            Event::ConnectFailed { endpoint, error } if Some(endpoint) == ours => {
                if self.recovery.is_some() {
                    return self.fail(adapter, Failure::lost(error));
                }
                self.end(adapter, Failure::refused(error));
            }
            Event::Disconnected { endpoint, reason } if Some(endpoint) == ours => {
                if self.stage == Stage::Closing && self.is_idle() {
                    return self.end(adapter, Failure::Closed);
                }
                self.fail(adapter, Failure::lost(reason));
            }
            _ => {}
        }
    }

    fn on_established(&mut self, adapter: &mut dyn Adapter, now: Instant) {
        if !matches!(self.stage, Stage::Connecting | Stage::Recovering) {
            return;
        }
        if let Err(failure) = self.renew_memory(adapter) {
            return self.end(adapter, failure);
        }
        if self.stage == Stage::Connecting {
            self.stage = Stage::Opening;
        }
        self.send_connect(adapter, now);
    }

    fn on_completion(&mut self, adapter: &mut dyn Adapter, completion: Completion, now: Instant) {
        let slot = completion.work as u32;
        match (completion.operation, completion.status) {
            (Operation::Receive, WorkStatus::Ok(bytes)) => {
                self.conn.posted -= 1;
                let result = self.on_message(adapter, slot, bytes as usize, now);
                // Unless the connection has ended meanwhile, and with it its message buffers.
                if self.conn.endpoint == Some(completion.endpoint) {
                    self.conn.receives.put(slot);
                }
                match result {
                    Ok(()) => self.go_on(adapter, now),
                    Err(failure) => self.fail(adapter, failure),
                }
            }
            (Operation::Receive, _) => self.conn.receives.put(slot),
            (Operation::Send, _) => {
                self.conn.sends.put(slot);
                // A call may have waited for the slot and not for a credit.
                if !self.waiting.is_empty() || self.recovery.is_some() {
                    self.go_on(adapter, now);
                }
            }
            (Operation::RdmaRead | Operation::RdmaWrite, _) => {}
        }
    }

    /// Sends what can be sent now.
    fn go_on(&mut self, adapter: &mut dyn Adapter, now: Instant) {
        self.advance(adapter, now);
        self.pump(adapter, now);
    }

    /// Ends the session in order, once nothing is in flight any more: no further call is taken.
    pub fn close(&mut self, adapter: &mut dyn Adapter, now: Instant) {
        self.now = now;
        self.closing = true;
        match self.stage {
            Stage::Ready => {
                self.stage = Stage::Closing;
                self.pump(adapter, now);
            }
            Stage::Connecting | Stage::Opening => self.end(adapter, Failure::Closed),
            // Nobody waits for what a recovery could still achieve.
            Stage::Recovering if self.has_no_calls() => self.end(adapter, Failure::Closed),
            Stage::Recovering | Stage::Closing | Stage::Over => {}
        }
    }

    /// Ends the session at once; everything in flight is lost.
    pub fn abort(&mut self, adapter: &mut dyn Adapter) {
        self.end(adapter, Failure::Closed);
    }

    /// The end for good.
    pub(crate) fn end(&mut self, adapter: &mut dyn Adapter, failure: Failure) {
        if self.stage == Stage::Over {
            return;
        }
        tracing::debug!(%failure, "session is over");
        self.stage = Stage::Over;
        self.failure = Some(failure.clone());
        self.end_back(adapter, &failure);
        for (_, flight) in self.conn.cut(adapter) {
            let is_gone = flight.is_callers() && flight.work.is_gone();
            let failure = if is_gone { Gone.into() } else { failure.clone() };
            self.finish(flight.purpose, Done::Lost(failure));
        }
        self.stop_putting_off();
        let doubts = self.recovery.take().into_iter().flat_map(|recovery| recovery.into_calls());
        for call in doubts.chain(std::mem::take(&mut self.waiting)) {
            self.finish(Purpose::Caller(call.tag), Done::Lost(failure.clone()));
        }
        // With the session the server takes back all that was held in it.
        self.orphans = Orphans::default();
        self.first_deadline = None;
        self.reap(adapter);
    }

    /// The one place where a call completes.
    pub(crate) fn finish(&mut self, purpose: Purpose, done: Done) {
        if let Purpose::Caller(tag) = purpose {
            let server = self.info.client_id;
            match self.chains.end(tag, done, server) {
                Ended::Alone(done) => self.complete(tag, done),
                Ended::Kept => {}
                Ended::Chain(chain) => self.finish_chain(chain),
            }
        }
    }

    /// Tells the transport how much is still to be placed here.
    pub(crate) fn expect(&mut self, adapter: &mut dyn Adapter, more: u64, less: u64) {
        if more != less {
            self.conn.expected_bytes =
                self.conn.expected_bytes.saturating_add(more).saturating_sub(less);
            if let Some(endpoint) = self.conn.endpoint {
                adapter.expect_remote_writes(endpoint, self.conn.expected_bytes);
            }
        }
    }

    /// Frees the message buffers of a session that is over, and the application's memory that was
    /// given back since its end.
    pub fn release(&mut self, adapter: &mut dyn Adapter) {
        self.abort(adapter);
        self.reap(adapter);
        self.conn.release(adapter);
    }
}

/// A connection for the sizes that the session proposes.
pub(crate) fn new_connection(adapter: &mut dyn Adapter, config: &SessionConfig) -> Connection {
    let (request_bytes, response_bytes) =
        (message_bytes(config.request_bytes), message_bytes(config.response_bytes));
    Connection::new(adapter, config.requests_max, request_bytes, response_bytes)
}

fn message_bytes(wish: u32) -> usize {
    wish.clamp(MESSAGE_BYTES_MIN, MESSAGE_BYTES_MAX) as usize
}

impl std::fmt::Debug for SessionCore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SessionCore")
            .field("stage", &self.stage)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}
