//! One connection as a state machine. It posts work to the adapter of its port, handles the
//! adapter's events, and keeps the outcome of each call until the caller fetches it.
//!
//! Invariants
//! * The calls at the server never exceed the credits that it granted, and one before its first
//!   reply (RFC 8166 section 3.3.1).
//! * Before the client sends a call it posts a receive for the reply; it also posts one for every
//!   callback that the server may send.
//! * Outgoing messages are bounded too, even if a server replies without taking them.
//! * Every call ends exactly once: replied, refused, or lost with the connection.
//! * When a call has ended, the server cannot reach its memory. Shared memory is the exception;
//!   there the memory is marked as spoiled.
//! * After the connection has ended the client posts nothing.

mod back;
mod call;
mod reply;
#[cfg(test)]
mod tests;

use super::base::Base;
use crate::client::BackHandler;
use crate::client::core::{Results, ServerCall};
use crate::client::error::CallError;
use crate::client::options::Options;
use crate::limits::{BACK_CREDITS, CREDITS_MAX};
use call::{Call, State};
use dafs_dat::slots::SlotPool;
use dafs_dat::{Address, Completion, ConnectError, EndpointId, Event, Operation, WorkStatus};
use dafs_wire::rpcrdma::PrivateData;
use dafs_wire::rpcrdma::limits::{INLINE_BYTES_DEFAULT, INLINE_BYTES_MAX};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::thread::Thread;

/// Slots are allocated this many at a time, so that an idle connection stays small.
const SLOTS_PER_SLAB: usize = 16;

/// The state of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Connecting,
    Up,
    Over,
}

pub(super) struct Connection {
    pub(super) endpoint: EndpointId,
    stage: Stage,
    /// True when the adapter has reported the end of the endpoint.
    is_gone: bool,
    /// True when no handle refers to the connection.
    is_forgotten: bool,
    connect_error: Option<ConnectError>,
    options: Options,
    pub(super) back: Option<Arc<BackHandler>>,
    /// The reason for the end, shared with the handles.
    broken: Arc<OnceLock<String>>,
    /// The longest message to the server; below, the longest one from it.
    send_bytes: usize,
    reply_bytes: usize,
    calls: FxHashMap<u32, Call>,
    next_xid: u32,
    credits: u32,
    credits_wanted: u32,
    /// Calls at the server.
    in_flight: u32,
    /// Calls that wait for a credit.
    waiting: VecDeque<u32>,
    sends: SlotPool,
    receives: SlotPool,
    /// Posted receives that have not been consumed.
    posted: u32,
    /// Sends that have not completed.
    sending: u32,
    /// Callbacks that have not been answered.
    back_unanswered: u32,
    back_calls: VecDeque<ServerCall>,
    /// Bytes that the adapter was told to expect as remote writes.
    expected_bytes: u64,
    scratch: Vec<u8>,
    /// Calls that have ended since the last [`Self::take_ended`].
    ended: usize,
}

impl Connection {
    /// Starts to connect.
    ///
    /// # Errors
    /// Errors that the adapter reports at once.
    pub(super) fn connect(
        base: &mut Base,
        address: &Address,
        options: Options,
        back: Option<Arc<BackHandler>>,
        first_xid: u32,
    ) -> Result<Self, ConnectError> {
        // Private data states sizes in units (RFC 8797 section 4).
        let inline = options.inline_bytes.clamp(INLINE_BYTES_DEFAULT, INLINE_BYTES_MAX);
        let inline = inline / INLINE_BYTES_DEFAULT * INLINE_BYTES_DEFAULT;
        let private = PrivateData {
            remote_invalidation: false,
            send_bytes: inline as u32,
            receive_bytes: inline as u32,
        };
        let endpoint = base.adapter.connect(base.domain, address, &private.encode())?;
        Ok(Self {
            endpoint,
            stage: Stage::Connecting,
            is_gone: false,
            is_forgotten: false,
            connect_error: None,
            back,
            broken: Arc::default(),
            send_bytes: inline,
            reply_bytes: inline,
            calls: FxHashMap::default(),
            next_xid: first_xid,
            credits: 1,
            credits_wanted: options.credits.clamp(1, CREDITS_MAX),
            in_flight: 0,
            waiting: VecDeque::new(),
            sends: SlotPool::new(base.domain, inline, SLOTS_PER_SLAB),
            receives: SlotPool::new(base.domain, inline, SLOTS_PER_SLAB),
            posted: 0,
            sending: 0,
            back_unanswered: 0,
            back_calls: VecDeque::new(),
            expected_bytes: 0,
            scratch: Vec::new(),
            ended: 0,
            options,
        })
    }

    pub(super) fn stage(&self) -> Stage {
        self.stage
    }

    pub(super) fn broken(&self) -> &Arc<OnceLock<String>> {
        &self.broken
    }

    /// True when the adapter, too, has ended the connection.
    pub(super) fn is_gone(&self) -> bool {
        self.is_gone
    }

    /// Marks the connection as without handles.
    pub(super) fn forget(&mut self) {
        self.is_forgotten = true;
        self.back = None;
    }

    pub(super) fn is_forgotten(&self) -> bool {
        self.is_forgotten
    }

    /// Takes the reason why the connection could not be established.
    pub(super) fn take_connect_error(&mut self) -> Option<ConnectError> {
        self.connect_error.take()
    }

    pub(super) fn has_back_calls(&self) -> bool {
        !self.back_calls.is_empty()
    }

    /// Calls at the server.
    pub(super) fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Calls at the server, and those that wait for a credit.
    pub(super) fn unanswered(&self) -> usize {
        self.in_flight as usize + self.waiting.len()
    }

    pub(super) fn ended(&self) -> CallError {
        CallError::Disconnected(self.broken.get().cloned().unwrap_or_default())
    }

    /// Takes the next callback.
    pub(super) fn take_back_call(&mut self) -> Option<ServerCall> {
        self.back_calls.pop_front()
    }

    /// Returns how many calls have ended since the last look.
    pub(super) fn take_ended(&mut self) -> usize {
        std::mem::take(&mut self.ended)
    }

    /// Fetches the outcome of a call that has ended and forgets the call.
    pub(super) fn fetch(&mut self, xid: u32) -> Option<Result<Results, CallError>> {
        if !self.is_over(xid) {
            return None;
        }
        match self.calls.remove(&xid)?.state {
            State::Over(outcome) => Some(outcome),
            State::Waiting { .. } | State::Sent => None,
        }
    }

    /// True when the call has ended.
    pub(super) fn is_over(&self, xid: u32) -> bool {
        self.calls.get(&xid).is_none_or(|call| matches!(call.state, State::Over(_)))
    }

    /// Registers `waiter` to be woken when the call ends.
    pub(super) fn wait(&mut self, xid: u32, waiter: Thread) {
        if let Some(call) = self.calls.get_mut(&xid) {
            call.waiter = Some(waiter);
        }
    }

    /// Cancels a call. If the server can reach memory of the caller for it, the connection ends,
    /// because the caller may use the memory from now on.
    pub(super) fn give_up(&mut self, base: &mut Base, xid: u32) {
        let Some(call) = self.calls.get_mut(&xid) else { return };
        match call.state {
            State::Over(_) => {
                self.calls.remove(&xid);
            }
            State::Waiting { slot, .. } => {
                self.sends.give_back(slot);
                self.waiting.retain(|&waiting| waiting != xid);
                if let Some(call) = self.calls.remove(&xid) {
                    call.offered.release(base);
                }
            }
            State::Sent => {
                call.is_abandoned = true;
                if call.offered.is_exposed() {
                    let reason = "a call was given up while the server could reach its memory";
                    self.break_off(base, reason.to_owned());
                }
            }
        }
    }

    /// Handles an event of this connection's endpoint.
    pub(super) fn handle(&mut self, base: &mut Base, event: Event) {
        match event {
            Event::Established { private_data, .. } => self.established(base, &private_data),
            Event::ConnectFailed { error, .. } => {
                self.is_gone = true;
                self.end(base, error.to_string());
                self.connect_error = Some(*error);
                self.release(base);
            }
            Event::Disconnected { reason, .. } => {
                self.is_gone = true;
                self.end(base, reason.to_string());
                self.release(base);
            }
            Event::Completion(completion) => self.completed(base, completion),
            Event::ConnectRequest { .. } => {}
        }
    }

    fn established(&mut self, base: &mut Base, private_data: &[u8]) {
        if self.stage != Stage::Connecting {
            return;
        }
        self.stage = Stage::Up;
        let (takes, sends) = match PrivateData::find(private_data) {
            Some(told) => (told.receive_bytes as usize, told.send_bytes as usize),
            None => (INLINE_BYTES_DEFAULT, INLINE_BYTES_DEFAULT),
        };
        self.send_bytes = self.send_bytes.min(takes);
        self.reply_bytes = self.reply_bytes.min(sends);
        if let Err(reason) = self.post_receives(base) {
            self.break_off(base, reason);
        }
    }

    fn completed(&mut self, base: &mut Base, completion: Completion) {
        let slot = completion.work as u32;
        match (completion.operation, completion.status) {
            (Operation::Send, _) => {
                self.sends.give_back(slot);
                self.sending -= 1;
                if self.stage == Stage::Up {
                    self.pump(base);
                }
            }
            (Operation::Receive, WorkStatus::Flushed) => self.posted -= 1,
            (Operation::Receive, WorkStatus::Ok(bytes)) => {
                self.posted -= 1;
                if self.stage != Stage::Up {
                    return;
                }
                let taken = match completion.invalidated {
                    None => self.take_message(base, slot, bytes as usize),
                    Some(_) => Err("the server has invalidated a key unasked".to_owned()),
                };
                if let Err(reason) = taken {
                    self.break_off(base, reason);
                }
            }
            (Operation::RdmaWrite | Operation::RdmaRead, _) => {
                debug_assert!(false, "a client posts no RDMA");
            }
        }
    }

    /// Posts the receives for replies to the calls at the server and for callbacks.
    fn post_receives(&mut self, base: &mut Base) -> Result<(), String> {
        while self.posted < self.in_flight.max(1) + BACK_CREDITS {
            let slot = self.receives.take(&mut *base.adapter).map_err(|e| e.to_string())?;
            self.post_receive(base, slot)?;
        }
        Ok(())
    }

    fn post_receive(&mut self, base: &mut Base, slot: u32) -> Result<(), String> {
        let segment = self.receives.segment(slot, self.receives.slot_bytes());
        let posted = base.adapter.post_receive(self.endpoint, slot.into(), segment);
        posted.map_err(|error| format!("cannot post a receive: {error}"))?;
        self.posted += 1;
        Ok(())
    }

    fn post_send(&mut self, base: &mut Base, slot: u32, len: usize) -> Result<(), String> {
        let segments = [self.sends.segment(slot, len)];
        let posted = base.adapter.post_send(self.endpoint, slot.into(), &segments);
        posted.map_err(|error| {
            self.sends.give_back(slot);
            format!("cannot post a send: {error}")
        })?;
        self.sending += 1;
        Ok(())
    }

    /// True when too many sends are incomplete to add another call.
    fn is_clogged(&self) -> bool {
        self.sending >= 2 * self.credits_wanted
    }

    /// Tells the adapter how many bytes the server may still write here.
    fn expect(&mut self, base: &mut Base, more: u64, less: u64) {
        if more != less {
            self.expected_bytes = self.expected_bytes.saturating_add(more).saturating_sub(less);
            base.adapter.expect_remote_writes(self.endpoint, self.expected_bytes);
        }
    }

    /// Closes the connection gracefully if no call is at the server, else aborts it.
    pub(super) fn close(&mut self, base: &mut Base) {
        let reason = "it was closed on this side".to_owned();
        if self.calls.values().any(|call| matches!(call.state, State::Sent)) {
            self.break_off(base, reason);
        } else if self.stage != Stage::Over {
            base.adapter.disconnect(self.endpoint);
            self.end(base, reason);
        }
    }

    pub(super) fn break_off(&mut self, base: &mut Base, reason: String) {
        if self.stage != Stage::Over {
            base.adapter.abort(self.endpoint);
            self.end(base, reason);
        }
    }

    /// Handles the end of the connection: the server can reach no memory any more.
    fn end(&mut self, base: &mut Base, reason: String) {
        if self.stage == Stage::Over {
            return;
        }
        self.stage = Stage::Over;
        let _ = self.broken.set(reason);
        let error = self.ended();
        for call in self.calls.values_mut() {
            let offered = std::mem::take(&mut call.offered);
            match call.state {
                State::Over(_) => continue,
                State::Waiting { slot, .. } => self.sends.give_back(slot),
                State::Sent if base.is_mapped => offered.spoil(),
                State::Sent => {}
            }
            offered.release(base);
            call.state = State::Over(Err(error.clone()));
            self.ended += 1;
            call.waiter.take().iter().for_each(Thread::unpark);
        }
        self.calls.retain(|_, call| !call.is_abandoned);
        self.waiting.clear();
        self.back_calls.clear();
        self.in_flight = 0;
        self.expected_bytes = 0;
    }

    /// Frees the memory for messages; no work is posted on it any more.
    fn release(&mut self, base: &mut Base) {
        self.sends.release(&mut *base.adapter);
        self.receives.release(&mut *base.adapter);
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("endpoint", &self.endpoint)
            .field("stage", &self.stage)
            .field("in_flight", &self.in_flight)
            .finish_non_exhaustive()
    }
}
