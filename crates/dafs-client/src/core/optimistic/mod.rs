//! Optimistic reads over a network: the client reads blocks of files by RDMA from memory that the server
//! shows to it, without a request.
//!
//! That memory is reached over a connection of its own, the optimistic channel: a key that is no good any
//! more ends that connection, and the session goes on. The client asks on the operation channel where
//! blocks are (X_EXPOSE_GET).
//!
//! ```text
//!       a file was read twice       connected         CONNECT_BIND answered
//! Off ----------------------> Dialing ----> Binding ----------------------> Bound
//!  ^                             |             |                              |
//!  +---- Wait <------------------+-------------+---------- any loss ----------+
//! ```
//!
//! Invariants
//! * The channel never outlives the connection of its session: it is cut first, so that it cannot
//!   reach memory that is withdrawn.
//! * With the channel the client forgets all places, because their keys are no good elsewhere.
//! * A loss of the channel costs no call: reads under way on it become requests.

mod channel;
mod directory;
mod reads;
mod remote_blocks;
mod small;

use super::auth::Authenticator;
use super::back::{bind_answer, connect_bind, may_change};
use super::call::Call;
use super::failure::Failure;
use super::proofs::{Awaited, Prepared, ProofChannel, ProofOrder, Run, challenge_of};
use super::session::{SessionCore, Stage};
use crate::limits::{
    OPTIMISTIC_ANSWER_TIME, OPTIMISTIC_REFUSED_PAUSE, OPTIMISTIC_SLOW_PAUSE, RECONNECT_PAUSE_MAX,
    RECONNECT_PAUSE_MIN, RECOVERY_ANSWER_TIME,
};
use channel::{Channel, Phase};
use dafs_dat::{
    Adapter, Completion, ConnectError, EndpointId, Event, Instant, Operation, WorkStatus,
};
use dafs_wire::dafs::{ChannelUse, FileHandle, Outcome, Reply, StateId, Status};
use directory::{Directory, Miss, Question};
pub use remote_blocks::{RemoteBlocks, RemoteRead};
use rustc_hash::FxHashMap;
use small::SmallFiles;
use std::sync::Arc;

/// The reads of a session that could have been hits, by their outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RemoteReadStats {
    /// Reads from the server's memory, without a request.
    pub hits: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Reads of blocks that the server did not show.
    pub absent: u64,
    /// Reads of blocks that changed meanwhile, each of which is tried once more. Reads that a device has
    /// answered late.
    pub stale: u64,
    /// Reads of blocks whose place the client did not know, or which take too many reads by RDMA.
    pub unknown: u64,
    /// Reads when the server of a device had answered no request for a second. The request asks if it
    /// lives.
    pub dead: u64,
    /// Optimistic channels that were lost after the server had bound them.
    pub lost: u64,
}

/// The state of the channel.
#[derive(Debug, Default)]
enum State {
    #[default]
    Off,
    /// No attempt before this time.
    Wait(Instant),
    Open(Box<Channel>),
}

/// The last read that was no hit.
#[derive(Debug, Clone, Copy)]
struct Missed {
    /// The open.
    name: StateId,
    file: FileHandle,
    miss: Miss,
    /// The file has a place among small ones, and the miss is about that.
    is_small: bool,
    /// The client may ask for the places of blocks.
    may_ask: bool,
}

/// A question under way.
#[derive(Debug)]
struct Asked {
    question: Question,
    file: FileHandle,
    /// The exposure that it names, or 0, and the number of segments of that.
    known: (u64, u32),
    /// The number of channels that had ended when it was asked.
    ended: u64,
}

/// The optimistic reads of a session.
#[derive(Debug, Default)]
pub(crate) struct Optimistic {
    /// The application wants them, and the server has not declined.
    is_wanted: bool,
    state: State,
    /// Losses in a row.
    losses: u32,
    /// The number of channels that have ended.
    ended: u64,
    /// The exchange by which the channel is bound.
    run: Option<Run>,
    /// The wait of the channel for its proof.
    pub(super) proof: Awaited,
    directory: Directory,
    small: SmallFiles,
    questions: FxHashMap<u64, Asked>,
    last_question: u64,
    missed: Option<Missed>,
    stats: RemoteReadStats,
}

impl Optimistic {
    /// Those of a session. `is_wanted` is true if the application wants them.
    pub(super) fn new(is_wanted: bool) -> Self {
        Self { is_wanted, ..Self::default() }
    }

    fn channel(&mut self) -> Option<&mut Channel> {
        match &mut self.state {
            State::Open(channel) => Some(channel),
            _ => None,
        }
    }

    /// True when the endpoint is that of the channel.
    pub(super) fn is_at(&self, endpoint: EndpointId) -> bool {
        matches!(&self.state, State::Open(channel) if channel.endpoint == endpoint)
    }

    /// The protection of proofs on the channel.
    pub(super) fn proof_channel(&self) -> ProofChannel {
        match &self.state {
            State::Open(channel) => channel.protection.clone(),
            _ => ProofChannel::default(),
        }
    }

    /// The number of reads under way.
    pub(super) fn reads_under_way(&self) -> usize {
        match &self.state {
            State::Open(channel) => channel.read_count(),
            _ => 0,
        }
    }

    /// True if a call of this tag is under way.
    pub(super) fn has(&self, tag: u64) -> bool {
        matches!(&self.state, State::Open(channel) if channel.has(tag))
    }

    /// The time at which the channel is given up, unless an event comes first.
    pub(super) fn timeout(&self) -> Option<Instant> {
        match &self.state {
            State::Open(channel) if channel.phase != Phase::Bound => Some(channel.due),
            State::Open(channel) => Some(channel.oldest()? + OPTIMISTIC_ANSWER_TIME),
            _ => None,
        }
    }

    /// Forgets an open that the application closes.
    pub(super) fn closed(&mut self, name: StateId) {
        self.directory.closed(name);
    }

    /// Ends the connection, if there is one. Returns the reads that were under way on it, which are
    /// requests now.
    fn cut(&mut self, adapter: &mut dyn Adapter) -> Vec<Call> {
        self.proof = Awaited::Over;
        self.run = None;
        self.missed = None;
        let State::Open(channel) = std::mem::take(&mut self.state) else { return Vec::new() };
        self.ended += 1;
        self.directory.forget_places();
        self.small.forget_places();
        channel.cut(adapter).into_iter().map(reads::Read::into_call).collect()
    }
}

impl SessionCore {
    /// The reads so far that could have been hits, over a network.
    pub fn remote_read_stats(&self) -> RemoteReadStats {
        self.optimistic.stats
    }

    /// The session's connection is gone or at its end, and the channel goes first.
    pub(super) fn cut_optimistic(&mut self, adapter: &mut dyn Adapter) {
        let calls = self.optimistic.cut(adapter);
        self.optimistic.state = State::Off;
        self.optimistic.losses = 0;
        self.optimistic.questions.clear();
        calls.into_iter().for_each(|call| self.calls.wait(&mut self.link, call));
    }

    /// The channel is gone. Its reads wait to be sent as requests, and another channel is made when
    /// there is use for it: soon, or much later if the reason may last.
    pub(super) fn lose_optimistic(&mut self, adapter: &mut dyn Adapter, why: Failure) {
        let now = self.link.now;
        let optimistic = &mut self.optimistic;
        let bound_at = match &optimistic.state {
            State::Open(channel) if channel.phase == Phase::Bound => Some(channel.bound_at),
            _ => None,
        };
        let soon = RECONNECT_PAUSE_MIN * (1 << optimistic.losses.min(16));
        let pause = match &why {
            // On a slow network each channel would delay its reads anew.
            Failure::Deadline(_) if bound_at.is_some() => OPTIMISTIC_SLOW_PAUSE,
            why if why.is_passing() => soon.min(RECONNECT_PAUSE_MAX),
            _ => OPTIMISTIC_REFUSED_PAUSE,
        };
        let stable = bound_at.is_some_and(|at| at + RECONNECT_PAUSE_MAX <= now);
        optimistic.losses = if stable { 0 } else { optimistic.losses.saturating_add(1) };
        optimistic.stats.lost += u64::from(bound_at.is_some());
        tracing::debug!(failure = %why, ?pause, "optimistic channel lost");
        let calls = optimistic.cut(adapter);
        optimistic.state = State::Wait(now + pause);
        calls.into_iter().for_each(|call| self.calls.wait(&mut self.link, call));
    }

    /// Makes the channel, if it can be made now.
    fn dial_optimistic(&mut self, adapter: &mut dyn Adapter) {
        let now = self.link.now;
        match self.optimistic.state {
            State::Off => {}
            State::Wait(until) if until <= now => {}
            _ => return,
        }
        if self.stage != Stage::Ready {
            return;
        }
        let hello = super::hello::optimistic_private_data(&self.link.config);
        match adapter.connect(self.link.conn.domain, &self.link.address, &hello) {
            Ok(endpoint) => {
                let due = now + RECOVERY_ANSWER_TIME;
                let channel = Channel::new(self.link.conn.domain, endpoint, due);
                self.optimistic.state = State::Open(Box::new(channel));
            }
            Err(error) => self.lose_optimistic(adapter, Failure::lost(error)),
        }
    }

    /// Processes an event of the channel's endpoint.
    pub(super) fn on_optimistic_event(&mut self, adapter: &mut dyn Adapter, event: Event) {
        match event {
            Event::Completion(completion) => self.on_optimistic_completion(adapter, completion),
            Event::Established { .. } => self.prove_on_optimistic(adapter),
            Event::ConnectFailed { error, .. } => {
                // A server that shows nothing to other hosts, or does not know such channels.
                let is_refused = matches!(*error, ConnectError::Rejected { .. });
                let failure = match is_refused {
                    true => Failure::refused(error),
                    false => Failure::lost(error),
                };
                self.lose_optimistic(adapter, failure);
            }
            Event::Disconnected { reason, .. } => {
                self.lose_optimistic(adapter, Failure::lost(reason));
            }
            Event::ConnectRequest { .. } => {}
        }
        if self.stage == Stage::Closing || !self.calls.waiting.is_empty() {
            self.pump(adapter);
        }
        self.after_miss(adapter);
    }

    /// Binds the channel, at once or when the driver has had a proof made.
    fn prove_on_optimistic(&mut self, adapter: &mut dyn Adapter) {
        let Some(channel) = self.optimistic.channel() else { return };
        channel.protection = ProofChannel::of(adapter, Some(channel.endpoint));
        let authenticator: Arc<dyn Authenticator> = self.link.config.authenticator.clone();
        if authenticator.may_wait() {
            self.optimistic.proof = Awaited::Wanted;
        } else {
            let order = ProofOrder::new(&authenticator, &self.optimistic.proof_channel());
            self.bind_optimistic(adapter, order.prepare());
        }
    }

    /// Binds the channel with a proof that was prepared.
    pub(super) fn bind_optimistic(&mut self, adapter: &mut dyn Adapter, prepared: Prepared) {
        self.optimistic.proof = Awaited::Over;
        let proof_channel = self.optimistic.proof_channel();
        let Some(channel) = self.optimistic.channel() else { return };
        let bound = prepared.checked(&proof_channel, &self.link.config).map_err(Failure::lost);
        let bound = bound.and_then(|(exchange, proof)| {
            let message = connect_bind(&self.link, (ChannelUse::Optimistic, 1), &proof)?;
            let too_long = || Failure::refused("the proof of identity is too long");
            channel.send(adapter, &message.ok_or_else(too_long)?)?;
            channel.phase = Phase::Binding;
            Ok(exchange)
        });
        match bound {
            Ok(exchange) => self.optimistic.run = Some(Run(exchange)),
            Err(failure) => self.lose_optimistic(adapter, failure),
        }
    }

    fn on_optimistic_completion(&mut self, adapter: &mut dyn Adapter, completion: Completion) {
        let Some(channel) = self.optimistic.channel() else { return };
        let slot = completion.work as u32;
        match (completion.operation, completion.status) {
            (Operation::RdmaRead, WorkStatus::Ok(_)) => {
                self.on_optimistic_read(adapter, completion.work);
            }
            (Operation::Receive, WorkStatus::Ok(bytes)) => {
                let message = channel.take_message(slot, bytes as usize);
                if let Err(failure) = self.on_optimistic_bound(&message) {
                    self.lose_optimistic(adapter, failure);
                }
            }
            (Operation::Send | Operation::Receive, _) => channel.free(slot),
            // The end of the channel follows.
            (Operation::RdmaRead | Operation::RdmaWrite, _) => {}
        }
    }

    /// Processes the answer to CONNECT_BIND.
    fn on_optimistic_bound(&mut self, message: &[u8]) -> Result<(), Failure> {
        let now = self.link.now;
        let answer = bind_answer(&self.link, message)?;
        let Some(channel) = self.optimistic.channel() else { return Ok(()) };
        if channel.phase != Phase::Binding {
            return Err(Failure::lost("the server sends messages on an optimistic channel"));
        }
        match answer {
            Outcome::Ok(Reply::ConnectBind(reply)) => {
                (channel.phase, channel.bound_at) = (Phase::Bound, now);
                if let Some(mut run) = self.optimistic.run.take() {
                    run.0.accepted(&challenge_of(&reply.auth)).map_err(Failure::refused)?;
                }
                tracing::debug!("optimistic channel bound");
                Ok(())
            }
            Outcome::Ok(_) => Err(Failure::protocol("an answer of another procedure")),
            Outcome::Error { status, .. } => {
                // Checksums, or a server that has changed its mind.
                self.optimistic.is_wanted &= status != Status::NotSupp;
                let reason = format_args!("CONNECT_BIND failed: {status}");
                Err(match may_change(status) {
                    true => Failure::lost(reason),
                    false => Failure::refused(reason),
                })
            }
        }
    }

    /// Gives up a channel that does not answer.
    pub(super) fn optimistic_on_time(&mut self, adapter: &mut dyn Adapter) {
        let is_due = self.optimistic.timeout().is_some_and(|at| at <= self.link.now);
        if is_due {
            self.lose_optimistic(adapter, Failure::Deadline(OPTIMISTIC_ANSWER_TIME));
            self.pump(adapter);
        }
    }
}
