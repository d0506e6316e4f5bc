//! The work for one connection at a time: read, serve calls, send.
//!
//! Invariants
//! * One connection gets a bounded share of a turn; the rest of its work is listed for the next.
//! * All replies of a turn leave in one system call, unless they are too many.

use super::group::{Counters, Shared, add};
use super::peer::Peer;
use crate::connection::{Ending, Progress, Tally, TurnContext};
use crate::handler::{CallbackError, Handler};
use crate::inbox::{CallbackRequest, Inbox, Injector};
use crate::limits::{
    LARGE_RECORD_BYTES, READS_PER_TURN, RECEIVE_BYTES, RECEIVE_BYTES_BEFORE_LARGE,
};
use crate::memory::Block;
use crate::record::Budget;
use crate::reply::Reply;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

/// The parts of a reactor that serving needs.
pub(super) struct Worker<H: Handler> {
    pub(super) shared: Arc<Shared>,
    pub(super) number: usize,
    pub(super) inbox: Arc<Inbox>,
    pub(super) injector: Injector<H::Message>,
    pub(super) handler: H,
    pub(super) now_ns: u64,
    pub(super) budget: Budget,
    /// Memory of queued replies and waiting calls in the connections of this reactor.
    waiting_bytes: usize,
    /// The default target of reads.
    receive: Block,
    tally: Tally,
    /// The slots behind those whose certificates were judged last: of strangers, of trusted
    /// clients.
    pub(super) judged_to: [usize; 2],
    /// The time to judge more of them, if some wait.
    pub(super) judge_at_ns: u64,
    /// The memory of an output queue, lent to the connection in service.
    spare: VecDeque<Reply>,
}

impl<H: Handler> Worker<H> {
    pub(super) fn new(
        shared: Arc<Shared>,
        number: usize,
        injector: Injector<H::Message>,
        handler: H,
    ) -> io::Result<Self> {
        Ok(Self {
            inbox: shared.members[number].inbox.clone(),
            budget: Budget::new(shared.config.assembly_bytes_max),
            shared,
            number,
            injector,
            handler,
            now_ns: 0,
            waiting_bytes: 0,
            receive: Block::new(RECEIVE_BYTES)?,
            tally: Tally::default(),
            judged_to: [0; 2],
            judge_at_ns: u64::MAX,
            spare: VecDeque::new(),
        })
    }

    pub(super) fn counters(&self) -> &Counters {
        &self.shared.members[self.number].counters
    }

    /// All fields but the target of reads.
    pub(super) fn split(&mut self) -> (&mut Block, TurnContext<'_, H>) {
        let turn = TurnContext {
            handler: &mut self.handler,
            inbox: &self.inbox,
            budget: &mut self.budget,
            config: &self.shared.config,
            tally: &mut self.tally,
            now_ns: self.now_ns,
        };
        (&mut self.receive, turn)
    }

    pub(super) fn turn(&mut self) -> TurnContext<'_, H> {
        self.split().1
    }

    /// Memory for bytes that are used before the next connection is served.
    pub(super) fn receive_space(&mut self, len: usize) -> &mut [u8] {
        self.receive.spare(len)
    }

    /// Serves a connection: sends its queue, serves its calls, sends the replies.
    pub(super) fn serve(&mut self, peer: &mut Peer) -> Result<(), Ending> {
        peer.connection.output.lend(&mut self.spare);
        let mut served = self.flush(peer);
        if served.is_ok() && !self.shared.is_stopping() {
            served = self.check_trust(peer).and_then(|()| self.advance_tls(peer));
            served = served.and_then(|()| self.take_in(peer));
            // Answers from before the connection broke may still arrive.
            let flushed = self.flush(peer);
            served = served.and(flushed).and_then(|()| self.advance_tls(peer));
            served = served.and_then(|()| self.check_spent(peer));
        }
        peer.connection.output.lend(&mut self.spare);
        self.count_waiting(peer, peer.held_bytes());
        let waiting_bytes_max = self.shared.config.waiting_bytes_max;
        if self.waiting_bytes > waiting_bytes_max.saturating_mul(2)
            && !peer.connection.output.is_empty()
        {
            return Err(Ending::Crowded);
        }
        served
    }

    /// Queues a callback to a peer, unless it has lost its trust.
    pub(super) fn call_back(
        &mut self,
        peer: &mut Peer,
        call: &CallbackRequest,
    ) -> Result<(), Ending> {
        let (trusted, id) = (self.check_trust(peer), peer.connection.id);
        match trusted {
            Ok(()) => peer.connection.send_callback(call, &mut self.turn()),
            Err(_) => self.turn().back_reply(id, call.token, Err(CallbackError::Disconnected)),
        }
        trusted
    }

    /// Discards the input of a connection that met a fault.
    pub(super) fn forget_input(&mut self) {
        self.receive.truncate(0);
    }

    /// Replaces a connection's memory of the last count by the current one.
    pub(super) fn count_waiting(&mut self, peer: &mut Peer, bytes: usize) {
        let before = std::mem::replace(&mut peer.waiting_bytes, bytes);
        self.waiting_bytes = (self.waiting_bytes + bytes).saturating_sub(before);
    }

    /// True when the reactor may take more calls of the connection. While all connections together
    /// hold too much, those that hold some of it wait first.
    pub(super) fn may_take(&self, peer: &Peer) -> bool {
        let config = &self.shared.config;
        peer.connection.may_take(config)
            && (self.waiting_bytes < config.waiting_bytes_max || peer.connection.is_answered())
    }

    pub(super) fn flush(&mut self, peer: &mut Peer) -> Result<(), Ending> {
        let sent_bytes = peer.flush(self.now_ns)?;
        add(&self.counters().sent_bytes, sent_bytes);
        Ok(())
    }

    fn take_in(&mut self, peer: &mut Peer) -> Result<(), Ending> {
        if peer.connection.has_deferred_input() {
            if self.may_take(peer) {
                peer.connection.process_deferred_input(&mut self.turn())?;
            }
            return Ok(());
        }
        for _ in 0..READS_PER_TURN {
            if !peer.has_input() || peer.connection.has_deferred_input() || !self.may_take(peer) {
                return Ok(());
            }
            peer.starved = !peer.connection.reader().make_room(&mut self.budget)?;
            if peer.starved {
                return Ok(());
            }
            match Self::opens_records(peer) {
                true => self.open_and_process(peer)?,
                false => self.read_and_process(peer)?,
            }
        }
        Ok(())
    }

    fn read_and_process(&mut self, peer: &mut Peer) -> Result<(), Ending> {
        let careful = peer.connection.expects_large()
            || self.budget.is_spent()
            || peer.connection.reader().space().len() >= LARGE_RECORD_BYTES;
        let len = if careful { RECEIVE_BYTES_BEFORE_LARGE } else { RECEIVE_BYTES };
        let Some((direct, through)) = peer.read(self.receive.space(len))? else {
            return Ok(());
        };
        add(&self.counters().received_bytes, (direct + through) as u64);
        peer.connection.received(direct, self.now_ns);
        self.receive.fill(through);
        let processed = self.process(peer, through);
        self.receive.truncate(0);
        processed
    }

    /// Serves the first `len` received bytes, up to the limit of a turn.
    fn process(&mut self, peer: &mut Peer, len: usize) -> Result<(), Ending> {
        let (receive, mut turn) = self.split();
        let mut input = &receive.bytes()[..len];
        if peer.connection.process(&mut input, &mut turn)? == Progress::Drained {
            return Ok(());
        }
        let at = len - input.len();
        peer.connection.defer_input(&self.receive.bytes()[at..len])
    }

    /// Publishes the counts of this turn.
    pub(super) fn publish(&mut self) {
        let tally = std::mem::take(&mut self.tally);
        let counters = self.counters();
        add(&counters.calls, tally.calls);
        add(&counters.rejected, tally.rejected);
        add(&counters.unasked, tally.unasked);
    }
}
