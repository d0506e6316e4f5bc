//! One DAFS session as a state machine without I/O of its own: it posts work to the adapter that
//! each call passes, is fed the adapter's events and the time, and queues completed calls.
//!
//! Invariants
//! * Every accepted call completes exactly once: answered, refused by the server, or lost with the
//!   session (`completed` grows by one entry per call, in `finish` alone).
//! * A receive is posted before each request, so that its reply always finds one (DAFS 7).
//! * Outstanding requests never exceed the credits; see [`Streams`](super::streams::Streams).
//! * After the end of a session no request is sent and none is in flight.
//! * Between the loss of a connection and the end of recovery no call of the application is sent.

use super::back::Back;
use super::call::{Call, Completed, Done, Purpose};
use super::chain::{Chains, Ended};
use super::config::{SessionConfig, SessionInfo};
use super::connection::Connection;
use super::failure::Failure;
use super::memory::{Graveyard, RegisteredMemory};
use super::open_states::OpenStates;
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

/// The state of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The transport connection is being made.
    Connecting,
    /// The session is being opened: options, authentication, credential, root, limits.
    Opening,
    /// Calls are accepted and sent.
    Ready,
    /// The connection was lost and another one is being made, or the outcome of earlier requests is
    /// being found out. Calls are accepted and sent later.
    Recovering,
    /// DISCONNECT has been sent, or waits for requests in flight.
    Closing,
    /// The final state.
    Over,
}

/// Counters of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct SessionStats {
    /// Requests that the server allows to be outstanding.
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
    pub(crate) opens: OpenStates,
    pub(crate) chains: Chains,
    /// The back-control channel and the state that depends on it.
    pub(crate) back: Back,
    /// Calls that wait for a credit, or for a connection.
    pub(crate) waiting: VecDeque<Call>,
    /// Calls that a restarted server has answered with GRACE, with the time of the retry; earliest
    /// first.
    pub(crate) delayed: VecDeque<(Instant, Call)>,
    /// The time of the first GRACE since the connection was made.
    pub(crate) grace_since: Option<Instant>,
    /// Present while a lost connection is being replaced.
    pub(crate) recovery: Option<Box<Recovery>>,
    /// The loss of the first in the current row of connections that have failed.
    pub(crate) lost_at: Option<Instant>,
    /// The application has asked for the end of the session.
    pub(crate) closing: bool,
    /// Calls that have completed before they were answered.
    pub(crate) orphans: Orphans,
    pub(crate) completed: VecDeque<Completed>,
    /// The buffer in which messages are encoded.
    pub(crate) scratch: Vec<u8>,
    pub(crate) info: SessionInfo,
    pub(crate) cred_handle: CredHandle,
    pub(crate) next_analyzer: u64,
    pub(crate) desired: u16,
    pub(crate) demand_peak: u16,
    /// The time that the caller passed last.
    pub(crate) now: Instant,
    pub(crate) last_request: Instant,
    /// The time of the last reply, or of the end of recovery.
    pub(crate) last_reply: Instant,
    /// The sending time of the latest request that was answered in a session in order; `None`
    /// before the first reply.
    pub(crate) promised_from: Option<Instant>,
    /// The time of the last reply in a session in order.
    pub(crate) answered_at: Instant,
    /// A lower bound of all deadlines of requests.
    pub(crate) first_deadline: Option<Instant>,
    pub(crate) failure: Option<Failure>,
    pub(crate) stats: SessionStats,
}

impl SessionCore {
    /// Starts to connect. [`handle`](Self::handle) takes it from there; the session is open when
    /// [`stage`](Self::stage) says so.
    ///
    /// # Errors
    /// Those that the transport detects at once.
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
            opens: OpenStates::default(),
            chains: Chains::default(),
            back: Back::default(),
            waiting: VecDeque::new(),
            delayed: VecDeque::new(),
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

    /// The state of the session.
    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// The negotiated parameters; complete once the session is ready. A recovery may change them.
    pub fn info(&self) -> &SessionInfo {
        &self.info
    }

    /// The byte order of the session.
    pub fn byte_order(&self) -> ByteOrder {
        self.order
    }

    /// The reason why the session is over.
    pub fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    /// The next completed call.
    pub fn take_completed(&mut self) -> Option<Completed> {
        self.completed.pop_front()
    }

    /// True when no request is outstanding or waiting, those of the session's own included.
    pub fn is_idle(&self) -> bool {
        self.is_idle_but_for(0)
    }

    /// True when no more than so many calls are outstanding or waiting, and there is no recovery
    /// and no batch.
    pub fn is_idle_but_for(&self, calls: usize) -> bool {
        let outstanding = usize::from(self.conn.streams.outstanding());
        outstanding + self.waiting.len() + self.delayed.len() <= calls
            && self.recovery.is_none()
            && self.back.batches.is_idle()
    }

    /// The number of restarts of the server that were detected.
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

    /// Ends registrations without a holder. Called after every step that may have dropped memory
    /// and before its result is seen.
    pub fn reap(&mut self, adapter: &mut dyn Adapter) {
        for region in self.graveyard.exhume() {
            adapter.deregister(region);
        }
    }

    /// Processes one event of the adapter. Events of other endpoints are ignored.
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
                // The connection may have ended meanwhile, and with it its message buffers.
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

    /// Sends calls as far as possible.
    fn go_on(&mut self, adapter: &mut dyn Adapter, now: Instant) {
        self.advance(adapter, now);
        self.pump(adapter, now);
    }

    /// Ends the session in order, once no call is in flight any more: no further call is accepted.
    pub fn close(&mut self, adapter: &mut dyn Adapter, now: Instant) {
        self.now = now;
        self.closing = true;
        match self.stage {
            Stage::Ready => {
                self.stage = Stage::Closing;
                self.pump(adapter, now);
            }
            Stage::Connecting | Stage::Opening => self.end(adapter, Failure::Closed),
            // No call needs the result of the recovery.
            Stage::Recovering if self.has_no_calls() => self.end(adapter, Failure::Closed),
            Stage::Recovering | Stage::Closing | Stage::Over => {}
        }
    }

    /// Ends the session at once; all calls in flight are lost.
    pub fn abort(&mut self, adapter: &mut dyn Adapter) {
        self.end(adapter, Failure::Closed);
    }

    /// The final end of the session.
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
        self.queue_delayed();
        let doubts = self.recovery.take().into_iter().flat_map(|recovery| recovery.into_calls());
        for call in doubts.chain(std::mem::take(&mut self.waiting)) {
            self.finish(Purpose::Caller(call.tag), Done::Lost(failure.clone()));
        }
        // The server releases all state of the session.
        self.orphans = Orphans::default();
        self.first_deadline = None;
        self.reap(adapter);
    }

    /// The only place where a call completes.
    pub(crate) fn finish(&mut self, purpose: Purpose, done: Done) {
        if let Purpose::Caller(tag) = purpose {
            let server = self.info.client_id;
            match self.chains.end(tag, done, server) {
                Ended::Alone(done) => self.complete(tag, done),
                Ended::Pending => {}
                Ended::Chain(chain) => self.finish_chain(chain),
            }
        }
    }

    /// Tells the transport how many bytes are still to be placed here.
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
    /// dropped since its end.
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
