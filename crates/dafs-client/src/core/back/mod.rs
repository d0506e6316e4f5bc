//! The back-control channel: a second connection, over which the server calls the client (DAFS 4.2,
//! 13.2). It is made for the first caller that wants delegations, or submits an asynchronous batch.
//!
//! ```text
//!        wanted, and the session is ready        connected          CONNECT_BIND answered
//! Off ------------------------------------> Dialing ----> Binding ----------------------> Bound
//!  ^                                           |             |                              |
//!  +---- Wait <--------------------------------+-------------+---------- any loss ----------+
//! ```
//!
//! Invariants
//! * The channel never outlives the connection of its session: it is cut first, so that it cannot
//!   reach memory that is withdrawn.
//! * A loss of the channel alone leaves the session intact; a protocol violation on it ends the
//!   session, as on the operation channel.
//! * A new channel is not made while the server may still bring batches to the one before
//!   ([`Batches`]), so no batch is carried out on two.
//! * When the server has not been able to call for long, the client returns its delegations by
//!   itself.
//! * A delegation is used no longer than the server may wait for its return after a recall that has
//!   not arrived. A channel that has been silent for long while delegations are held is presumed
//!   dead, and a server calls more often than that.

pub(crate) use batches::Batches;
pub use batches::{BatchCall, BatchHints};
pub(super) use bind::{bind_answer, connect_bind};
pub(crate) use delegations::Delegations;

mod batches;
mod bind;
mod calls;
mod channel;
mod delegations;

use super::call::{Done, Purpose};
use super::failure::Failure;
use super::link::Link;
use super::proofs::{Awaited, ProofChannel, ProofOrder, Run, challenge_of};
use super::session::{SessionCore, Stage};
use super::timers::earlier;
use crate::backoff::is_passing;
use crate::layouts::Recalls;
use crate::limits::{
    BACK_CREDITS, BACK_IDLE_TICK, BACK_STABLE_TIME, BACK_TICK, MESSAGE_BYTES_MIN,
    RECONNECT_PAUSE_MAX, RECONNECT_PAUSE_MIN, RECOVERY_ANSWER_TIME,
};
use channel::{Channel, Phase};
use dafs_dat::{Adapter, Completion, Event, Instant, Operation, WorkStatus};
use dafs_wire::dafs::{
    AttrMask, Attributes, ConnectBindReply, DelegReturn, Outcome, Reply, Request, RequestHeader,
    StateId, Status,
};
use std::time::Duration;

/// A call of the server to the application.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackEvent {
    /// The server recalls a delegation.
    Recall {
        /// The delegation.
        delegation: StateId,
        /// The file is about to be truncated to zero.
        truncate: bool,
    },
    /// BC_GETATTR: the server asks for attributes as the holder of a delegation has them; answered
    /// with [`SessionCore::answer_question`].
    Question {
        /// The number for the answer.
        question: u64,
        /// The delegation.
        delegation: StateId,
    },
    /// A delegation is gone, and others may have used its file since.
    Lost {
        /// The delegation.
        delegation: StateId,
    },
}

/// The state of the back-control channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackStage {
    /// It has not been asked for.
    Off,
    /// It is being made, for the first time or again.
    Coming,
    /// The server may call.
    Bound,
    /// The server refuses it, with this status.
    Refused(Status),
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Off,
    /// No attempt before this time.
    Wait(Instant),
    Open(Channel),
    Refused(Status),
}

/// The channel, and the batches that depend on it.
#[derive(Debug, Default)]
pub(crate) struct Back {
    /// It has been asked for.
    pub(crate) wanted: bool,
    /// The server supports one (CLIENT_CONNECT).
    pub(crate) agreed: bool,
    state: State,
    /// Losses in a row.
    losses: u32,
    /// The exchange by which the channel is bound.
    run: Option<Run>,
    /// The wait of the channel for its proof.
    pub(super) proof: Awaited,
    /// The time since when the server cannot call.
    down_since: Option<Instant>,
    /// The time when the server was last heard on a channel: all its calls before that have
    /// arrived.
    heard_at: Instant,
    /// The same of the channels before this one.
    heard_before: Instant,
    pub(crate) batches: Batches,
    /// Questions that have not been answered.
    questions: Vec<(u64, RequestHeader, AttrMask)>,
    last_question: u64,
    /// The receiver of layout recalls, if there may be any.
    pub(crate) recalls: Option<Recalls>,
}

impl Back {
    fn channel(&mut self) -> Option<&mut Channel> {
        match &mut self.state {
            State::Open(channel) => Some(channel),
            _ => None,
        }
    }

    /// The channel, once the server may call.
    fn bound(&mut self) -> Option<&mut Channel> {
        self.channel().filter(|channel| channel.phase == Phase::Bound)
    }

    /// Accounts for a suspension of the machine for `time`.
    pub(crate) fn slept(&mut self, time: Duration) {
        self.heard_at = earlier(self.heard_at, time);
        self.heard_before = earlier(self.heard_before, time);
    }

    /// The time when the server was last heard on the channel, if delegations are held; zero if it
    /// never was.
    pub(crate) fn heard_at(&self, held: &Delegations) -> Option<Instant> {
        (!held.is_empty()).then_some(self.heard_at)
    }

    /// The time since when the server may have recalled delegations without the recall arriving.
    fn unconfirmed_since(&self, held: &Delegations) -> Instant {
        self.heard_at.max(held.held_since())
    }

    /// The earliest time at which a recall that arrives now may have been sent first. A server
    /// repeats recalls that earlier channels have lost in the first part of a lease.
    fn recalled_since(&self, held: &Delegations, lease: Duration, now: Instant) -> Instant {
        match &self.state {
            State::Open(channel) if has_caught_up(channel, lease, now) => {
                self.unconfirmed_since(held)
            }
            _ => self.heard_before.max(held.held_since()),
        }
    }

    /// True when the endpoint is that of the channel.
    pub(crate) fn is_at(&self, endpoint: dafs_dat::EndpointId) -> bool {
        matches!(&self.state, State::Open(channel) if channel.endpoint == endpoint)
    }

    fn is_bound(&self) -> bool {
        matches!(&self.state, State::Open(channel) if channel.phase == Phase::Bound)
    }

    /// True when the channel would be of use now.
    fn is_needed(&self, stage: Stage) -> bool {
        let needed = match stage {
            Stage::Ready => true,
            Stage::Closing => !self.batches.is_idle(),
            _ => false,
        };
        needed && self.wanted && self.batches.may_move()
    }

    /// The channel is gone; another one is made, unless the session ends.
    fn lose(
        &mut self,
        link: &Link,
        held: &mut Delegations,
        adapter: &mut dyn Adapter,
        why: Failure,
    ) {
        let stable = matches!(
            &self.state,
            State::Open(channel)
                if channel.phase == Phase::Bound && channel.bound_at + BACK_STABLE_TIME <= link.now
        );
        self.close(link, held, adapter);
        self.losses = if stable { 0 } else { self.losses.saturating_add(1) };
        let pause = RECONNECT_PAUSE_MIN * (1 << self.losses.min(16));
        let pause = pause.min(RECONNECT_PAUSE_MAX);
        tracing::debug!(failure = %why, ?pause, "back-control channel lost");
        self.state = State::Wait(link.now + pause);
        self.down_since.get_or_insert(link.now);
    }

    /// Ends the connection, if there is one, with all that was under way on it.
    fn close(&mut self, link: &Link, held: &mut Delegations, adapter: &mut dyn Adapter) {
        if let State::Open(channel) = std::mem::replace(&mut self.state, State::Off) {
            if has_caught_up(&channel, link.info.lease, link.now) {
                self.heard_before = self.heard_at;
            }
            channel.cut(adapter);
        }
        self.proof = Awaited::Over;
        self.questions.clear();
        held.events.retain(|event| !matches!(event, BackEvent::Question { .. }));
        self.batches.come_back();
    }

    /// The session's connection is gone, and the channel goes first.
    pub(crate) fn cut(&mut self, link: &Link, held: &mut Delegations, adapter: &mut dyn Adapter) {
        self.close(link, held, adapter);
        self.batches.forget_messages();
        held.strays.clear();
        self.losses = 0;
        self.down_since = self.wanted.then_some(link.now);
    }

    /// The server cannot call, and a new channel may come too late for the leases.
    fn recall_all(&self, held: &mut Delegations, now: Instant) {
        held.recall_all(self.down_since.unwrap_or(now).min(self.unconfirmed_since(held)));
    }

    /// The time at which delegations are returned because the server cannot call.
    fn down_until(&self, held: &Delegations, lease: Duration) -> Option<Instant> {
        let since = self.down_since.filter(|_| !held.is_empty())?;
        // After a silence there is less time.
        Some((since + lease / 3).min(self.unconfirmed_since(held) + lease / 2))
    }

    /// The time at which a silent channel is given up.
    fn silent_until(&self, held: &Delegations, lease: Duration) -> Option<Instant> {
        (self.is_bound() && !held.is_empty()).then(|| self.unconfirmed_since(held) + lease / 3)
    }

    /// The time at which the channel needs work, unless an event comes first.
    pub(crate) fn timeout(&self, link: &Link, held: &Delegations, stage: Stage) -> Option<Instant> {
        if !self.wanted {
            return None;
        }
        let state = match &self.state {
            State::Wait(until) if self.is_needed(stage) => Some(*until),
            State::Open(channel) if channel.phase != Phase::Bound => Some(channel.due),
            _ => None,
        };
        let (silent, down) =
            (self.silent_until(held, link.info.lease), self.down_until(held, link.info.lease));
        [state, silent, down, self.batches.timeout()].into_iter().flatten().min()
    }
}

impl SessionCore {
    /// Asks for the back-control channel, for as long as the session lives. It is made when the
    /// session is ready; [`back_stage`](Self::back_stage) tells.
    pub fn want_back(&mut self, adapter: &mut dyn Adapter, now: Instant) {
        self.link.now = now;
        if !self.back.wanted {
            (self.back.wanted, self.calls.keeps_requests) = (true, true);
            self.back_turn(adapter);
        }
    }

    /// The state of the channel.
    pub fn back_stage(&self) -> BackStage {
        match &self.back.state {
            _ if !self.back.wanted => BackStage::Off,
            _ if self.back.is_bound() => BackStage::Bound,
            State::Refused(status) => BackStage::Refused(*status),
            _ => BackStage::Coming,
        }
    }

    /// The next call of the server to the application.
    pub fn take_back_event(&mut self) -> Option<BackEvent> {
        self.calls.delegations.events.pop_front()
    }

    /// The longest time for which an idle driver may leave the adapter alone, because the server
    /// may call; `None` without a channel.
    pub fn listens_every(&self) -> Option<Duration> {
        let State::Open(channel) = &self.back.state else { return None };
        let greeted =
            channel.phase == Phase::Bound && channel.bound_at + BACK_STABLE_TIME <= self.link.now;
        let layouts = self.back.recalls.as_ref().is_some_and(Recalls::are_expected);
        if greeted && self.calls.delegations.is_empty() && !layouts {
            return Some(BACK_IDLE_TICK);
        }
        Some(BACK_TICK)
    }

    /// Answers a BC_GETATTR with attributes; `None` makes the server recall the delegation. A
    /// question whose channel is gone is dropped.
    pub fn answer_question(
        &mut self,
        adapter: &mut dyn Adapter,
        question: u64,
        answer: Option<&Attributes<'_>>,
    ) {
        if let Err(failure) = self.back.answer_question(&self.link, adapter, question, answer) {
            self.back.lose(&self.link, &mut self.calls.delegations, adapter, failure);
        }
    }

    /// Makes the channel if it has been asked for and can be made now.
    pub(crate) fn back_turn(&mut self, adapter: &mut dyn Adapter) {
        let now = self.link.now;
        if !self.back.is_needed(self.stage) {
            return;
        }
        match self.back.state {
            State::Off => {}
            State::Wait(until) if until <= now => {}
            _ => return,
        }
        if !self.back.agreed {
            return self.refuse_back(adapter, Status::BackChannelUnusable);
        }
        self.back.down_since.get_or_insert(now);
        let hello = super::hello::back_private_data(&self.link.config);
        match adapter.connect(self.link.conn.domain, &self.link.address, &hello) {
            Ok(endpoint) => {
                let due = now + RECOVERY_ANSWER_TIME;
                let channel = Channel::new(self.link.conn.domain, endpoint, due);
                self.back.state = State::Open(channel);
            }
            Err(error) => {
                let failure = Failure::lost(error);
                self.back.lose(&self.link, &mut self.calls.delegations, adapter, failure);
            }
        }
    }

    /// Processes an event of the channel's endpoint.
    pub(crate) fn on_back_event(&mut self, adapter: &mut dyn Adapter, event: Event) {
        let result = match event {
            Event::Completion(completion) => self.on_back_completion(adapter, completion),
            Event::Established { .. } => {
                if let Some(channel) = self.back.channel() {
                    channel.protection = ProofChannel::of(adapter, Some(channel.endpoint));
                }
                let authenticator = self.link.config.authenticator.clone();
                if !authenticator.may_wait() {
                    let order = ProofOrder::new(&authenticator, &self.back.proof_channel());
                    return self.bind_back(adapter, order.prepare());
                }
                self.back.proof = Awaited::Wanted;
                Ok(())
            }
            Event::ConnectFailed { error, .. } => Err(Failure::lost(error)),
            Event::Disconnected { reason, .. } => Err(Failure::lost(reason)),
            Event::ConnectRequest { .. } => Ok(()),
        };
        self.go_on_with_back(adapter, result);
    }

    pub(in crate::core) fn go_on_with_back(
        &mut self,
        adapter: &mut dyn Adapter,
        result: Result<(), Failure>,
    ) {
        match result {
            Ok(()) => {}
            // Another channel may succeed.
            Err(failure) if failure.is_passing() => {
                self.back.lose(&self.link, &mut self.calls.delegations, adapter, failure);
            }
            Err(failure) => self.end(adapter, failure),
        }
        self.pump(adapter);
    }

    fn on_back_completion(
        &mut self,
        adapter: &mut dyn Adapter,
        completion: Completion,
    ) -> Result<(), Failure> {
        let Some(channel) = self.back.channel() else { return Ok(()) };
        let slot = completion.work as u32;
        let bytes = match (completion.operation, completion.status) {
            (Operation::Receive, WorkStatus::Ok(bytes)) => bytes as usize,
            (Operation::Receive, WorkStatus::Flushed) => {
                channel.receives.put(slot);
                return Ok(());
            }
            (Operation::Send, _) => {
                channel.sends.put(slot);
                return Ok(());
            }
            (Operation::RdmaRead | Operation::RdmaWrite, _) => return Ok(()),
        };
        let phase = channel.phase;
        let message = channel.take_message(slot, bytes)?;
        match phase {
            Phase::Dialing => Err(Failure::protocol("a message came before one was sent")),
            Phase::Binding => self.on_bind_reply(adapter, &message),
            Phase::Bound => self.back.on_call(&mut self.link, &mut self.calls, adapter, &message),
        }
    }

    fn on_bind_reply(&mut self, adapter: &mut dyn Adapter, message: &[u8]) -> Result<(), Failure> {
        match bind_answer(&self.link, message)? {
            Outcome::Ok(Reply::ConnectBind(reply)) => {
                let credits = bind_credits(&reply)?;
                if let Some(mut run) = self.back.run.take() {
                    run.0.accepted(&challenge_of(&reply.auth)).map_err(Failure::refused)?;
                }
                if let Some(channel) = self.back.channel() {
                    channel.bound(credits, self.link.now);
                    // Recalls that get lost from now on are lost on this channel. The answer may
                    // have waited here, so its request counts.
                    self.back.heard_at = channel.asked_at;
                }
                self.back.down_since = None;
                tracing::debug!(credits, "back-control channel bound");
                // The server has stopped the work for the former channel.
                self.back.batches.settle();
                self.batches_on_time(adapter);
                Ok(())
            }
            Outcome::Ok(_) => Err(Failure::protocol("an answer of another procedure")),
            Outcome::Error { status, .. } if may_change(status) => {
                Err(Failure::lost(format_args!("CONNECT_BIND failed: {status}")))
            }
            // With the session the server also ends the work for the former channel.
            Outcome::Error { status, .. } if self.back.batches.has_lent() => {
                let failure = format_args!("the server binds no channel any more: {status}");
                self.fail(adapter, Failure::lost(failure));
                Ok(())
            }
            Outcome::Error { status, .. } => {
                self.refuse_back(adapter, status);
                Ok(())
            }
        }
    }

    /// There will be no channel in this session.
    pub(in crate::core) fn refuse_back(&mut self, adapter: &mut dyn Adapter, status: Status) {
        tracing::warn!(%status, "the server wants no back-control channel");
        let held = &mut self.calls.delegations;
        self.back.close(&self.link, held, adapter);
        self.back.state = State::Refused(status);
        self.back.recall_all(held, self.link.now);
        self.back.end_batches(&self.link, &mut self.calls, &batches::refused(status));
    }

    /// The session is over, and with it everything that depends on the channel.
    pub(crate) fn end_back(&mut self, adapter: &mut dyn Adapter, failure: &Failure) {
        self.back.cut(&self.link, &mut self.calls.delegations, adapter);
        self.back.end_batches(&self.link, &mut self.calls, &Done::Lost(failure.clone()));
        self.back.batches = Batches::default();
        self.calls.delegations.end();
    }

    /// Returns delegations without a holder.
    pub(crate) fn return_strays(&mut self, adapter: &mut dyn Adapter) {
        while self.stage == Stage::Ready
            && self.link.conn.has_room()
            && let Some(stray) = self.calls.delegations.strays.pop()
        {
            self.send_return(adapter, stray);
        }
    }

    /// Before the end of a session without calls: returns all delegations, so that others need not
    /// wait for them. True when this side has done so.
    pub(crate) fn is_settled(&mut self, adapter: &mut dyn Adapter) -> bool {
        let mut flights = self.link.conn.flights.iter().flatten();
        let settled = self.calls.waiting.is_empty()
            && self.calls.delayed.is_empty()
            && self.recovery.is_none()
            && self.back.batches.is_idle()
            && self.optimistic.reads_under_way() == 0
            && flights.all(|flight| matches!(flight.purpose, Purpose::Return | Purpose::Stray(_)));
        let server = self.link.info.client_id;
        while settled
            && self.link.conn.has_room()
            && let Some(held) = self.calls.delegations.next_to_return(server)
        {
            self.send_return(adapter, held);
        }
        settled && self.link.conn.has_room()
    }

    fn send_return(&mut self, adapter: &mut dyn Adapter, state_id: StateId) {
        let request = Request::DelegReturn(DelegReturn { state_id });
        self.send_own(adapter, Purpose::Return, &request);
    }

    /// Does the work that is due.
    pub(crate) fn back_on_time(&mut self, adapter: &mut dyn Adapter) {
        let now = self.link.now;
        if !self.back.wanted {
            return;
        }
        let (lease, held) = (self.link.info.lease, &mut self.calls.delegations);
        if let State::Open(channel) = &self.back.state
            && channel.phase != Phase::Bound
            && channel.due <= now
        {
            self.back.lose(&self.link, held, adapter, Failure::Deadline(RECOVERY_ANSWER_TIME));
        }
        if self.back.silent_until(held, lease).is_some_and(|at| at <= now) {
            self.back.lose(&self.link, held, adapter, Failure::Deadline(lease / 3));
        }
        if self.back.down_until(held, lease).is_some_and(|at| at <= now) {
            // Once only, until another channel has been bound.
            self.back.down_since = None;
            self.back.recall_all(held, now);
        }
        self.batches_on_time(adapter);
        self.back_turn(adapter);
    }
}

/// True when the server has had the time to repeat recalls that earlier channels have lost.
fn has_caught_up(channel: &Channel, lease: Duration, now: Instant) -> bool {
    channel.phase == Phase::Bound && channel.bound_at + lease / 4 <= now
}

/// True when a retry of CONNECT_BIND may soon have another answer.
pub(super) fn may_change(status: Status) -> bool {
    is_passing(status) || matches!(status, Status::Resource | Status::UnknownSession)
}

/// The credits that the server has accepted.
fn bind_credits(reply: &ConnectBindReply<'_>) -> Result<u16, Failure> {
    let sizes = [reply.max_request_size, reply.max_response_size];
    let credits = u16::try_from(reply.max_requests).ok();
    let credits = credits.filter(|credits| (1..=BACK_CREDITS).contains(credits));
    match credits {
        Some(credits) if sizes == [MESSAGE_BYTES_MIN; 2] => Ok(credits),
        _ => Err(Failure::protocol(format_args!(
            "CONNECT_BIND was answered with {} calls of {} bytes where {BACK_CREDITS} of \
             {MESSAGE_BYTES_MIN} were offered",
            reply.max_requests, reply.max_request_size
        ))),
    }
}
