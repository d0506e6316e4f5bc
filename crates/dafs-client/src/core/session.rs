//! One DAFS session as a state machine without I/O of its own: it posts work to an adapter that it
//! is handed, is fed the adapter's events and the time, and queues what has completed.
//!
//! Invariants
//! * Every call taken completes exactly once: answered, refused by the server, or lost with the
//!   session (`completed` grows by one entry per call, in `finish` alone).
//! * A receive is posted before each request, so that its reply always finds one (DAFS 7).
//! * Outstanding requests never exceed the credits; see [`Streams`](super::streams::Streams).
//! * After the end of a session nothing is sent and nothing is in flight.

use super::call::{Completed, Done, Flight, Purpose, ReadCall, WriteCall};
use super::config::{SessionConfig, SessionInfo};
use super::failure::Failure;
use super::memory::{Graveyard, Piece, RegisteredMemory};
use super::messages::MessagePool;
use super::streams::Streams;
use crate::limits::{LEASE_ASSUMED, MESSAGE_BYTES_MAX, MESSAGE_BYTES_MIN};
use dafs_dat::{
    Access, Adapter, Address, Completion, ConnectError, EndpointId, Event, Instant, Operation,
    ProtectionDomain, RegisterError, WorkStatus,
};
use dafs_mem::Buffer;
use dafs_wire::dafs::{ByteOrder, CredHandle};
use std::collections::VecDeque;
use std::sync::Arc;

/// Where a session stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The transport connection is being made.
    Connecting,
    /// The session is being opened: options, authentication, credential, root, limits.
    Opening,
    /// Calls are taken.
    Ready,
    /// DISCONNECT has been sent, or waits for what is in flight.
    Closing,
    /// Nothing more will happen.
    Over,
}

/// Counters of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
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
}

/// A call that waits for a credit.
#[derive(Debug)]
pub(crate) enum Waiting {
    Read(u64, ReadCall),
    Write(u64, WriteCall),
    /// An encoded request, to be given its header when it is sent.
    Message {
        tag: u64,
        bytes: Vec<u8>,
        keep: Option<Piece>,
    },
}

impl Waiting {
    fn tag(&self) -> u64 {
        match self {
            Self::Read(tag, _) | Self::Write(tag, _) | Self::Message { tag, .. } => *tag,
        }
    }
}

/// The state machine. All methods that post work take the one adapter it was connected with.
pub struct SessionCore {
    pub(crate) config: SessionConfig,
    pub(crate) order: ByteOrder,
    pub(crate) stage: Stage,
    pub(crate) domain: ProtectionDomain,
    pub(crate) endpoint: EndpointId,
    pub(crate) graveyard: Arc<Graveyard>,
    pub(crate) streams: Streams,
    /// Requests outstanding, by stream.
    pub(crate) flights: Vec<Option<Flight>>,
    pub(crate) waiting: VecDeque<(Option<(Instant, std::time::Duration)>, Waiting)>,
    pub(crate) completed: VecDeque<Completed>,
    pub(crate) sends: MessagePool,
    pub(crate) receives: MessagePool,
    /// Receives posted and not consumed.
    pub(crate) posted: usize,
    /// Where messages are put together.
    pub(crate) scratch: Vec<u8>,
    pub(crate) info: SessionInfo,
    pub(crate) cred_handle: CredHandle,
    pub(crate) next_analyzer: u64,
    pub(crate) expected_bytes: u64,
    pub(crate) auth_steps: u32,
    pub(crate) desired: u16,
    pub(crate) demand_peak: u16,
    pub(crate) last_request: Instant,
    /// When the last reply came.
    pub(crate) last_reply: Instant,
    pub(crate) shrink_at: Option<Instant>,
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
        let domain = adapter.protection_domain();
        let order = config.byte_order;
        let hello = super::hello::private_data(&config);
        let endpoint = adapter.connect(domain, address, &hello)?;
        let sizes = |bytes: u32| bytes.clamp(MESSAGE_BYTES_MIN, MESSAGE_BYTES_MAX) as usize;
        let (request_bytes, response_bytes) =
            (sizes(config.request_bytes), sizes(config.response_bytes));
        let requests_max = config.requests_max.max(1);
        // A send slot is free again when its completion has been seen, which may be after the
        // reply; the spare ones keep the next request from waiting for that.
        let slots = usize::from(requests_max) + 16;
        Ok(Self {
            order,
            stage: Stage::Connecting,
            domain,
            endpoint,
            graveyard: Arc::default(),
            streams: Streams::new(requests_max),
            flights: (0..requests_max).map(|_| None).collect(),
            waiting: VecDeque::new(),
            completed: VecDeque::new(),
            sends: MessagePool::new(domain, request_bytes, slots),
            receives: MessagePool::new(domain, response_bytes, slots),
            posted: 0,
            scratch: vec![0; request_bytes],
            info: SessionInfo { lease: LEASE_ASSUMED, ..SessionInfo::default() },
            cred_handle: CredHandle::SESSION,
            next_analyzer: 1,
            expected_bytes: 0,
            auth_steps: 0,
            desired: config.requests.max(1),
            demand_peak: 0,
            last_request: now,
            last_reply: now,
            shrink_at: None,
            first_deadline: None,
            failure: None,
            stats: SessionStats::default(),
            config,
        })
    }

    /// Where the session stands.
    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// What was agreed on; complete once the session is ready.
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

    /// Requests outstanding or waiting for a credit, ours included.
    pub fn is_idle(&self) -> bool {
        self.streams.outstanding() == 0 && self.waiting.is_empty()
    }

    /// The counters.
    pub fn stats(&self) -> SessionStats {
        SessionStats {
            credits: self.streams.granted(),
            in_flight: self.streams.outstanding(),
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
        let region = adapter.register(self.domain, buffer.clone(), access)?;
        Ok(Arc::new(RegisteredMemory::new(buffer, region, self.graveyard.clone())))
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
        match event {
            Event::Completion(completion) if completion.endpoint == self.endpoint => {
                self.on_completion(adapter, completion, now);
            }
            Event::Established { endpoint, .. }
                if endpoint == self.endpoint && self.stage == Stage::Connecting =>
            {
                if let Err(failure) = self.check_peer(adapter) {
                    return self.end(adapter, failure);
                }
                self.stage = Stage::Opening;
                self.send_connect(adapter, now);
            }
            Event::ConnectFailed { endpoint, error } if endpoint == self.endpoint => {
                self.end(adapter, Failure::refused(error));
            }
            Event::Disconnected { endpoint, reason } if endpoint == self.endpoint => {
                let failure = if self.stage == Stage::Closing && self.is_idle() {
                    Failure::Closed
                } else {
                    Failure::lost(reason)
                };
                self.end(adapter, failure);
            }
            _ => {}
        }
    }

    /// The first message carries a proof of identity, which is for the server alone: whoever may
    /// bind a name on this host could be at the other end.
    fn check_peer(&self, adapter: &dyn Adapter) -> Result<(), Failure> {
        let Some(trusted) = &self.config.trusted_users else { return Ok(()) };
        let process = adapter.peer(self.endpoint).and_then(|peer| peer.process);
        match process {
            Some(process) if trusted.contains(&process.uid) => Ok(()),
            Some(process) => Err(Failure::refused(format_args!(
                "the shared-memory socket belongs to user {}, whom this process does not trust",
                process.uid
            ))),
            None => Err(Failure::refused("the owner of the shared-memory socket is unknown")),
        }
    }

    fn on_completion(&mut self, adapter: &mut dyn Adapter, completion: Completion, now: Instant) {
        let slot = completion.work as u32;
        match (completion.operation, completion.status) {
            (Operation::Receive, WorkStatus::Ok(bytes)) if self.stage != Stage::Over => {
                self.posted -= 1;
                let result = self.on_message(adapter, slot, bytes as usize, now);
                self.receives.put(slot);
                match result {
                    Ok(()) => self.pump(adapter, now),
                    Err(failure) => self.end(adapter, failure),
                }
            }
            (Operation::Receive, _) => self.receives.put(slot),
            (Operation::Send, _) => {
                self.sends.put(slot);
                // A call may have waited for the slot and not for a credit.
                if !self.waiting.is_empty() {
                    self.pump(adapter, now);
                }
            }
            (Operation::RdmaRead | Operation::RdmaWrite, _) => {}
        }
    }

    /// Ends the session in order, once nothing is in flight any more: no further call is taken.
    pub fn close(&mut self, adapter: &mut dyn Adapter, now: Instant) {
        match self.stage {
            Stage::Ready => {
                self.stage = Stage::Closing;
                self.pump(adapter, now);
            }
            Stage::Connecting | Stage::Opening => self.end(adapter, Failure::Closed),
            Stage::Closing | Stage::Over => {}
        }
    }

    /// Ends the session at once; everything in flight is lost.
    pub fn abort(&mut self, adapter: &mut dyn Adapter) {
        self.end(adapter, Failure::Closed);
    }

    pub(crate) fn end(&mut self, adapter: &mut dyn Adapter, failure: Failure) {
        if self.stage == Stage::Over {
            return;
        }
        tracing::debug!(%failure, "session is over");
        self.stage = Stage::Over;
        adapter.abort(self.endpoint);
        self.failure = Some(failure.clone());
        for stream in 0..self.flights.len() {
            if let Some(flight) = self.flights[stream].take() {
                self.finish(flight.purpose, Done::Lost(failure.clone()));
            }
        }
        for (_, waiting) in std::mem::take(&mut self.waiting) {
            self.finish(Purpose::Caller(waiting.tag()), Done::Lost(failure.clone()));
        }
        self.streams = Streams::new(1);
        self.expected_bytes = 0;
        self.first_deadline = None;
        self.shrink_at = None;
        self.reap(adapter);
    }

    /// The one place where a call completes.
    pub(crate) fn finish(&mut self, purpose: Purpose, done: Done) {
        if let Purpose::Caller(tag) = purpose {
            self.completed.push_back(Completed { tag, done });
        }
    }

    /// Tells the transport how much is still to be placed here.
    pub(crate) fn expect(&mut self, adapter: &mut dyn Adapter, more: u64, less: u64) {
        if more != less {
            self.expected_bytes = self.expected_bytes.saturating_add(more).saturating_sub(less);
            adapter.expect_remote_writes(self.endpoint, self.expected_bytes);
        }
    }

    /// Frees the message buffers of a session that is over, and the application's memory that was
    /// given back since its end.
    pub fn release(&mut self, adapter: &mut dyn Adapter) {
        self.abort(adapter);
        self.reap(adapter);
        self.sends.release(adapter);
        self.receives.release(adapter);
    }
}

impl std::fmt::Debug for SessionCore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SessionCore")
            .field("stage", &self.stage)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}
