//! One DAFS session as a state machine without I/O of its own: it posts work to the adapter that
//! each call passes, is fed the adapter's events and the time, and queues completed calls.
//!
//! Invariants
//! * Every accepted call completes exactly once; see [`Calls`].
//! * Outstanding requests never exceed the credits; see [`Streams`](super::streams::Streams).
//! * After the end of a session no request is sent and none is in flight.
//! * Between the loss of a connection and the end of recovery no call of the application is sent.

use super::back::Back;
use super::call::{Completed, Done, Purpose};
use super::calls::Calls;
use super::cancel::Cancels;
use super::config::{SessionConfig, SessionInfo};
use super::failure::Failure;
use super::link::Link;
use super::memory::{Memories, RegisteredMemory};
use super::optimistic::Optimistic;
use super::orphans::Orphans;
use super::proofs::Proofs;
use super::recovery::Recovery;
use dafs_dat::{
    Adapter, Address, Completion, ConnectError, EndpointId, Event, Instant, Operation,
    RegisterError, WorkStatus,
};
use dafs_mem::{Buffer, Inaccessible};
use dafs_wire::dafs::{ByteOrder, SERVER_STOPS};
use std::io::ErrorKind;
use std::sync::Arc;

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
    /// Requests outstanding, and reads by RDMA without a request.
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
    pub(crate) link: Link,
    pub(crate) stage: Stage,
    /// The application's memory.
    pub(crate) memories: Memories,
    pub(crate) calls: Calls,
    pub(crate) back: Back,
    pub(super) optimistic: Optimistic,
    /// Work that the server is to be asked to take out.
    pub(super) cancels: Cancels,
    pub(crate) proofs: Proofs,
    /// Present while a lost connection is being replaced.
    pub(crate) recovery: Option<Box<Recovery>>,
    /// The server has not answered yet that it knows that all was reclaimed.
    pub(super) completion_due: bool,
    /// The loss of the first in the current row of connections that have failed.
    pub(crate) lost_at: Option<Instant>,
    /// The application has asked for the end of the session.
    pub(crate) closing: bool,
    pub(crate) failure: Option<Failure>,
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
        let keeps_requests = config.recovery.is_some();
        let optimistic = Optimistic::new(config.optimistic && !config.is_data_server);
        let mut core = Self {
            link: Link::new(adapter, config, address.clone(), now),
            stage: Stage::Connecting,
            memories: Memories::default(),
            calls: Calls { keeps_requests, ..Calls::default() },
            back: Back::default(),
            optimistic,
            cancels: Cancels::default(),
            proofs: Proofs::default(),
            recovery: None,
            completion_due: false,
            lost_at: None,
            closing: false,
            failure: None,
        };
        core.link.dial(adapter)?;
        Ok(core)
    }

    /// The operation channel's connection; `None` while there is none.
    pub fn endpoint(&self) -> Option<EndpointId> {
        self.link.conn.endpoint
    }

    /// The state of the session.
    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// The negotiated parameters; complete once the session is ready. A recovery may change them.
    pub fn info(&self) -> &SessionInfo {
        &self.link.info
    }

    /// The byte order of the session.
    pub fn byte_order(&self) -> ByteOrder {
        self.link.order
    }

    /// The reason why the session is over.
    pub fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    /// The next completed call.
    pub fn take_completed(&mut self) -> Option<Completed> {
        self.calls.completed.pop_front()
    }

    /// True when no request is outstanding or waiting, those of the session's own included.
    pub fn is_idle(&self) -> bool {
        self.is_idle_but_for(0)
    }

    /// True when no more than so many calls are outstanding or waiting, and there is no recovery
    /// and no batch.
    pub fn is_idle_but_for(&self, calls: usize) -> bool {
        let outstanding = usize::from(self.link.conn.streams.outstanding());
        let outstanding = outstanding + self.optimistic.reads_under_way();
        outstanding + self.calls.waiting.len() + self.calls.delayed.len() <= calls
            && self.recovery.is_none()
            && self.back.batches.is_idle()
    }

    /// The counters.
    pub fn stats(&self) -> SessionStats {
        // Reads that need no request are few.
        let by_rdma = self.optimistic.reads_under_way() as u16;
        SessionStats {
            credits: self.link.conn.streams.granted(),
            in_flight: self.link.conn.streams.outstanding().saturating_add(by_rdma),
            queued: self.calls.waiting.len(),
            ..self.link.stats
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
        let keep = self.link.config.recovery.is_some();
        self.memories.register(adapter, self.link.conn.domain, buffer, keep)
    }

    /// True when the memory was registered in this session.
    pub fn owns(&self, memory: &RegisteredMemory) -> bool {
        self.memories.own(memory)
    }

    /// Ends registrations without a holder. Called after every step that may have dropped memory
    /// and before its result is seen.
    pub fn reap(&mut self, adapter: &mut dyn Adapter) {
        self.memories.reap(adapter);
    }

    /// Processes one event of the adapter. Events of other endpoints are ignored.
    pub fn handle(&mut self, adapter: &mut dyn Adapter, event: Event, now: Instant) {
        self.link.now = now;
        let ours = self.link.conn.endpoint;
        let endpoint = match &event {
            Event::Completion(completion) => Some(completion.endpoint),
            Event::Established { endpoint, .. }
            | Event::ConnectFailed { endpoint, .. }
            | Event::Disconnected { endpoint, .. } => Some(*endpoint),
            Event::ConnectRequest { .. } => None,
        };
        match event {
            _ if endpoint.is_some_and(|endpoint| self.back.is_at(endpoint)) => {
                self.on_back_event(adapter, event);
            }
            _ if endpoint.is_some_and(|endpoint| self.optimistic.is_at(endpoint)) => {
                self.on_optimistic_event(adapter, event);
            }
            Event::Completion(completion) if Some(completion.endpoint) == ours => {
                self.on_completion(adapter, completion);
            }
            Event::Established { endpoint, .. } if Some(endpoint) == ours => {
                self.on_established(adapter);
            }
            Event::ConnectFailed { endpoint, error } if Some(endpoint) == ours => {
                if self.recovery.is_some() {
                    return self.fail(adapter, Failure::lost(error));
                }
                let failure = match has_left(&error) {
                    true => Failure::lost(error),
                    false => Failure::refused(error),
                };
                self.end(adapter, failure);
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

    fn on_established(&mut self, adapter: &mut dyn Adapter) {
        if !matches!(self.stage, Stage::Connecting | Stage::Recovering) {
            return;
        }
        self.link.conn.established = true;
        if let Err(failure) = self.memories.renew(adapter, self.link.conn.domain) {
            return match self.stage {
                // A device may take it later, and another transport now.
                Stage::Recovering => self.fail(adapter, Failure::lost(failure)),
                _ => self.end(adapter, failure),
            };
        }
        if self.stage == Stage::Connecting {
            self.stage = Stage::Opening;
        }
        self.open(adapter);
    }

    fn on_completion(&mut self, adapter: &mut dyn Adapter, completion: Completion) {
        let slot = completion.work as u32;
        match (completion.operation, completion.status) {
            (Operation::Receive, WorkStatus::Ok(bytes)) => {
                self.link.conn.posted -= 1;
                let result = self.on_message(adapter, slot, bytes as usize);
                // The connection may have ended meanwhile, and with it its message buffers.
                if self.link.conn.endpoint == Some(completion.endpoint) {
                    self.link.conn.receives.put(slot);
                }
                match result {
                    Ok(()) => self.go_on(adapter),
                    Err(failure) => self.fail(adapter, failure),
                }
            }
            (Operation::Receive, _) => self.link.conn.receives.put(slot),
            (Operation::Send, _) => {
                self.link.conn.sends.put(slot);
                // A call may have waited for the slot and not for a credit.
                if !self.calls.waiting.is_empty() || self.recovery.is_some() {
                    self.go_on(adapter);
                }
            }
            (Operation::RdmaRead | Operation::RdmaWrite, _) => {}
        }
    }

    /// Sends calls as far as possible.
    fn go_on(&mut self, adapter: &mut dyn Adapter) {
        self.advance(adapter);
        self.pump(adapter);
    }

    /// Ends the session in order, once no call is in flight any more: no further call is accepted.
    pub fn close(&mut self, adapter: &mut dyn Adapter, now: Instant) {
        self.link.now = now;
        self.closing = true;
        match self.stage {
            Stage::Ready => {
                self.stage = Stage::Closing;
                self.pump(adapter);
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
        self.cut_optimistic(adapter);
        for (_, flight) in self.link.conn.cut(adapter) {
            let is_gone = flight.is_callers() && flight.work.is_gone();
            let failure = if is_gone { Inaccessible.into() } else { failure.clone() };
            self.finish(flight.purpose, Done::Lost(failure));
        }
        self.calls.queue_delayed();
        let doubts = self.recovery.take().into_iter().flat_map(|recovery| recovery.into_calls());
        for call in doubts.chain(std::mem::take(&mut self.calls.waiting)) {
            self.finish(Purpose::Caller(call.tag), Done::Lost(failure.clone()));
        }
        // The server releases all state of the session.
        self.calls.orphans = Orphans::default();
        self.link.first_deadline = None;
        self.reap(adapter);
    }

    /// Ends a call.
    pub(crate) fn finish(&mut self, purpose: Purpose, done: Done) {
        self.calls.finish(&self.link, purpose, done);
    }

    /// Frees the message buffers of a session that is over, and the application's memory that was
    /// dropped since its end.
    pub fn release(&mut self, adapter: &mut dyn Adapter) {
        self.abort(adapter);
        self.reap(adapter);
        self.link.conn.release(adapter);
    }
}

/// True if the server was there and has left, or is about to end.
fn has_left(error: &ConnectError) -> bool {
    match error {
        ConnectError::Gone | ConnectError::TlsCut(_) => true,
        ConnectError::Rejected(private_data) => private_data.starts_with(SERVER_STOPS.as_bytes()),
        ConnectError::Io(error) => matches!(
            error.kind(),
            ErrorKind::BrokenPipe
                | ErrorKind::ConnectionAborted
                | ErrorKind::ConnectionReset
                | ErrorKind::UnexpectedEof
        ),
        _ => false,
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
