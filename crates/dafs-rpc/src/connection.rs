//! One connection of a server, without I/O: bytes in, calls to the handler, records out.
//!
//! Invariants
//! * The connection takes no call while too many are outstanding or too much output is queued.
//!   Input that was read already is deferred then.
//! * Every callback completes exactly once, at the latest when the connection ends.
//! * Replies without a callback are ignored; a record that is not RPC ends the connection.

use crate::answer::AnswerTo;
use crate::back::{self, Back};
use crate::call::{CallerProcess, ConnectionId};
use crate::dispatch::{Incoming, Outcome, dispatch};
use crate::handler::{CallbackError, Handler};
use crate::inbox::{CallbackRequest, Inbox};
use crate::limits::{CALLS_PER_TURN, FLUSH_BYTES, LARGE_RECORD_BYTES, STALL_TIMEOUT_DIVISOR};
use crate::memory::Block;
use crate::output::Output;
use crate::record::{Budget, Record, RecordError, RecordReader};
use crate::reply::{Rejection, Reply};
use crate::server::Config;
use crate::tls::{Offer, TlsEnding, TransportSecurity, probe};
use dafs_dat::confine::confined;
use dafs_dat::connections::{Admitted, Closed, Origin};
use dafs_mem::Site;
use dafs_wire::rpc::{Direction, peek};
use dafs_wire::xdr::XdrError;
use std::net::SocketAddr;
use std::sync::Arc;
use thiserror::Error;

/// The reason why a connection ends.
#[derive(Debug, Error)]
pub(crate) enum Ending {
    #[error("the peer closed it")]
    Closed,
    #[error("it was closed on request")]
    Asked,
    #[error("the server stops")]
    Stopped,
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("the peer sent {0}")]
    NotRecords(#[from] RecordError),
    #[error("the peer sent no RPC message: {0}")]
    NotRpc(#[from] XdrError),
    #[error("the peer sent a call again with the same sequence number, or far too late")]
    Replayed,
    #[error("the peer did not complete a record in time")]
    Stalled,
    #[error("the peer did not read its replies in time")]
    Unread,
    #[error("the peer did not read its replies, and too much waits for peers like it")]
    Crowded,
    #[error("TLS: {0}")]
    Tls(#[from] TlsEnding),
    #[error("{0}")]
    Counted(Closed),
    #[error("the peer made no call in time")]
    Silent,
    #[error("its host holds most of the memory for half records, and there is no more")]
    Hoarding,
    #[error("this server failed at what the peer sent; please report it")]
    Fault,
}

impl Ending {
    /// True if TLS has ended the connection.
    pub(crate) fn is_of_tls(&self) -> bool {
        matches!(self, Self::Tls(_))
    }

    /// True if the peer may still send, and must get what was sent to it: replies, or an alert.
    pub(crate) fn lingers(&self) -> bool {
        match self {
            Self::Tls(ending) => ending.lingers(),
            other => matches!(
                other,
                Self::Asked | Self::NotRecords(_) | Self::NotRpc(_) | Self::Replayed
            ),
        }
    }

    /// True for the usual ends of a connection.
    pub(crate) fn is_quiet(&self) -> bool {
        match self {
            Self::Tls(ending) => ending.is_quiet(),
            other => {
                matches!(other, Self::Closed | Self::Asked | Self::Stopped | Self::Counted(_))
            }
        }
    }
}

/// The outcome of processing input.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// All input has been consumed.
    Drained,
    /// The reactor must send output and serve other connections before this one takes more input.
    Flush,
}

/// The parts of the reactor that a connection uses during a turn.
pub(crate) struct TurnContext<'r, H> {
    pub(crate) handler: &'r mut H,
    pub(crate) inbox: &'r Arc<Inbox>,
    pub(crate) budget: &'r mut Budget,
    pub(crate) config: &'r Config,
    pub(crate) tally: &'r mut Tally,
    pub(crate) now_ns: u64,
}

impl<H: Handler> TurnContext<'_, H> {
    pub(crate) fn back_reply(
        &mut self,
        id: ConnectionId,
        token: u64,
        result: Result<&[u8], CallbackError>,
    ) {
        shielded(|| self.handler.back_reply(id, token, result));
    }
}

/// Counters of a turn, before they are added to the statistics.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) calls: u64,
    pub(crate) rejected: u64,
    pub(crate) unasked: u64,
}

/// The state of one connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) id: ConnectionId,
    pub(crate) peer: SocketAddr,
    process: CallerProcess,
    reader: RecordReader,
    /// Input that was read and waits.
    deferred_input: Option<DeferredInput>,
    pub(crate) output: Output,
    /// Deferred calls without an answer.
    pending: usize,
    /// Memory that deferred calls hold.
    pending_bytes: usize,
    back: Option<Box<Back>>,
    /// True when the last record was large, so the reactor reads little ahead.
    expects_large: bool,
    /// True once the handler knows the connection.
    known: bool,
    /// TLS while the connection is in the clear.
    offer: Offer,
    /// The protection of the bytes that come now.
    security: TransportSecurity,
    /// The user that the peer's certificate names.
    user: Option<Arc<str>>,
    /// True while a part of a record of TLS has come.
    is_inside_tls: bool,
    /// Memory that this part takes of the budget.
    inside_tls_bytes: usize,
    /// True if no more calls are taken, and the connection ends when all are answered.
    is_draining: bool,
    /// Its entry in the connection counts.
    pub(crate) admitted: Option<Arc<Admitted>>,
    /// The time since when the peer could have made its first call.
    begun_ns: u64,
    last_input_ns: u64,
    record_since_ns: u64,
    output_since_ns: u64,
}

#[derive(Debug)]
struct DeferredInput {
    block: Block,
    /// Bytes of the input that have been consumed.
    at: usize,
}

impl Connection {
    pub(crate) fn new(
        id: ConnectionId,
        (peer, process): (SocketAddr, CallerProcess),
        config: &Config,
        now_ns: u64,
    ) -> Self {
        Self {
            id,
            peer,
            process,
            reader: RecordReader::new(config.record_bytes_max, process.host(peer.ip())),
            deferred_input: None,
            output: Output::default(),
            pending: 0,
            pending_bytes: 0,
            back: None,
            expects_large: false,
            known: false,
            offer: Offer::None,
            security: TransportSecurity::None,
            user: None,
            is_inside_tls: false,
            inside_tls_bytes: 0,
            is_draining: false,
            admitted: None,
            begun_ns: now_ns,
            last_input_ns: now_ns,
            record_since_ns: now_ns,
            output_since_ns: now_ns,
        }
    }

    /// True when the connection may take more calls.
    #[inline]
    pub(crate) fn may_take(&self, config: &Config) -> bool {
        !self.offer.is_taken()
            && !self.is_draining
            && self.pending < config.calls_per_connection_max
            && self.pending_bytes < config.pending_bytes_max
            && self.output.held_bytes() < config.output_bytes_max
    }

    /// Memory in queued replies and waiting calls.
    pub(crate) fn waiting_bytes(&self) -> usize {
        let deferred_bytes = self.deferred_input.as_ref().map_or(0, |input| input.block.capacity());
        self.output.held_bytes() + deferred_bytes + self.pending_bytes
    }

    /// True when input was deferred.
    #[inline]
    pub(crate) fn has_deferred_input(&self) -> bool {
        self.deferred_input.is_some()
    }

    /// True when the reactor should read little, because a large record is likely to begin.
    #[inline]
    pub(crate) fn expects_large(&self) -> bool {
        self.expects_large
    }

    /// The origin that resource limits are counted for.
    pub(crate) fn host(&self) -> Origin {
        self.process.host(self.peer.ip())
    }

    /// If the connection holds memory of this origin for a partial record, the time since when.
    pub(crate) fn holds_for(&self, host: Origin) -> Option<u64> {
        let holds_tls = self.inside_tls_bytes > 0 && self.host() == host;
        (holds_tls || self.reader.holds_for(host)).then_some(self.record_since_ns)
    }

    /// Memory of the budget that a partial record of RPC holds.
    pub(crate) fn partial_record_bytes(&self) -> usize {
        self.reader.partial_bytes()
    }

    pub(crate) fn reader(&mut self) -> &mut RecordReader {
        &mut self.reader
    }

    /// True when no record, call or reply is in progress.
    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        self.is_answered()
            && self.deferred_input.is_none()
            && !self.reader.is_inside()
            && self.back.as_ref().is_none_or(|back| back.is_empty())
    }

    /// The reason why the connection limits closed it, if they did.
    pub(crate) fn closed(&self) -> Option<Closed> {
        self.admitted.as_ref()?.closed()
    }

    /// True when every call has been answered and every answer sent.
    pub(crate) fn is_answered(&self) -> bool {
        !self.is_waited_for() && self.output.is_empty()
    }

    /// True when deferred calls have no answer yet.
    #[inline]
    pub(crate) fn is_waited_for(&self) -> bool {
        self.pending > 0
    }

    /// Counts bytes that were read; the first `direct` of them went straight into place.
    #[inline]
    pub(crate) fn received(&mut self, direct: usize, now_ns: u64) {
        self.reader.filled(direct);
        self.last_input_ns = now_ns;
    }

    /// Takes records from the front of `input` and serves them, at least one if it is complete.
    pub(crate) fn process<H: Handler>(
        &mut self,
        input: &mut &[u8],
        turn: &mut TurnContext<'_, H>,
    ) -> Result<Progress, Ending> {
        let was_inside = self.reader.is_inside();
        let mut whole = 0u32;
        while let Some(record) = self.reader.next(input, turn.budget)? {
            whole += 1;
            debug_assert!(!self.offer.is_taken(), "the probe is the last record in the clear");
            match record {
                Record::Here(bytes) => {
                    self.expects_large = bytes.len() >= LARGE_RECORD_BYTES;
                    self.serve(bytes, None, turn)?;
                }
                Record::Block(block) => {
                    self.expects_large = block.filled() >= LARGE_RECORD_BYTES;
                    let block = Arc::new(block);
                    self.serve(block.bytes(), Some(&block), turn)?;
                }
            }
            if self.offer.is_taken() && !input.is_empty() {
                return Err(TlsEnding::Early.into());
            }
            let full = whole >= CALLS_PER_TURN
                || self.output.held_bytes() >= FLUSH_BYTES
                || !self.may_take(turn.config);
            if full {
                self.record_since_ns = turn.now_ns;
                return Ok(Progress::Flush);
            }
        }
        if whole > 0 || !was_inside {
            self.record_since_ns = turn.now_ns;
        }
        Ok(Progress::Drained)
    }

    /// Keeps input until the connection may take more calls.
    pub(crate) fn defer_input(&mut self, input: &[u8]) -> Result<(), Ending> {
        debug_assert!(self.deferred_input.is_none(), "input overtakes deferred input");
        if !input.is_empty() {
            let mut block = Block::new(input.len())?;
            let copied = block.space(input.len()).copy_from(input, Site::RpcStaging);
            block.fill(copied);
            self.deferred_input = Some(DeferredInput { block, at: 0 });
        }
        Ok(())
    }

    /// As [`Connection::process`], for deferred input.
    pub(crate) fn process_deferred_input<H: Handler>(
        &mut self,
        turn: &mut TurnContext<'_, H>,
    ) -> Result<Progress, Ending> {
        let Some(mut deferred_input) = self.deferred_input.take() else {
            return Ok(Progress::Drained);
        };
        let mut input = &deferred_input.block.bytes()[deferred_input.at..];
        let progress = self.process(&mut input, turn)?;
        if progress == Progress::Flush && !input.is_empty() {
            deferred_input.at = deferred_input.block.filled() - input.len();
            self.deferred_input = Some(deferred_input);
        }
        Ok(progress)
    }

    #[inline]
    fn serve<H: Handler>(
        &mut self,
        record: &[u8],
        block: Option<&Arc<Block>>,
        turn: &mut TurnContext<'_, H>,
    ) -> Result<(), Ending> {
        #[cfg(test)]
        assert_ne!(record, crate::server::FAULT, "on purpose");
        let (_, direction) = peek(record)?;
        match direction {
            Direction::Call => self.serve_call(record, block, turn),
            Direction::Reply => {
                self.take_back_reply(record, turn);
                Ok(())
            }
        }
    }

    fn serve_call<H: Handler>(
        &mut self,
        record: &[u8],
        block: Option<&Arc<Block>>,
        turn: &mut TurnContext<'_, H>,
    ) -> Result<(), Ending> {
        if self.offer == Offer::Open
            && let Some(xid) = probe::find(record)
        {
            turn.tally.calls += 1;
            self.offer = Offer::Asked(xid);
            return Ok(());
        }
        let held_bytes = block.map_or(record.len(), |block| block.capacity());
        let incoming = Incoming {
            record,
            block,
            call_chunks: None,
            held_bytes,
            connection_id: self.id,
            peer: self.peer,
            process: self.process,
            is_rdma: false,
            security: self.security,
            user: self.user.as_ref(),
            admitted: self.admitted.as_ref(),
        };
        match dispatch(&incoming, &mut self.known, turn)? {
            Outcome::Answer(to, answer) => self.output.push(to.complete(answer)),
            Outcome::Kept(held_bytes) => {
                self.pending += 1;
                self.pending_bytes += held_bytes;
            }
            Outcome::Dropped => {}
            Outcome::Replayed => return Err(Ending::Replayed),
        }
        Ok(())
    }

    /// Queues the answer to a deferred call.
    pub(crate) fn answer_later(
        &mut self,
        to: AnswerTo,
        answer: Result<Reply, Rejection>,
        held_bytes: usize,
        now_ns: u64,
    ) {
        self.forget(held_bytes, now_ns);
        self.output.push(to.complete(answer));
    }

    /// Frees the slot and the memory of a deferred call.
    pub(crate) fn forget(&mut self, held_bytes: usize, now_ns: u64) {
        // The establishment of a context may take long, and the peer makes its first call after it.
        self.begun_ns = now_ns;
        debug_assert!(self.pending > 0, "an answer to no call");
        self.pending = self.pending.saturating_sub(1);
        self.pending_bytes = self.pending_bytes.saturating_sub(held_bytes);
    }

    /// Records progress of the output: a part was sent, or output has just begun to wait.
    #[inline]
    pub(crate) fn output_moved(&mut self, now_ns: u64) {
        self.output_since_ns = now_ns;
    }
}

/// TLS.
impl Connection {
    /// Lets the peer ask for TLS.
    pub(crate) fn offer_tls(&mut self) {
        self.offer = Offer::Open;
    }

    /// The state of the offer.
    #[inline]
    pub(crate) fn offer(&self) -> Offer {
        self.offer
    }

    /// Queues the answer to a probe, the last bytes in the clear.
    pub(crate) fn begin_tls(&mut self, xid: u32) {
        self.output.push(probe::answer(xid));
        self.offer = Offer::Begun;
    }

    /// Takes calls again, which come inside TLS from now on.
    pub(crate) fn secured(
        &mut self,
        security: TransportSecurity,
        user: Option<Arc<str>>,
        now_ns: u64,
    ) {
        self.offer = Offer::None;
        (self.security, self.user) = (security, user);
        self.begun_ns = now_ns;
    }

    /// Changes the protection of the bytes that come now: a client has become trusted.
    pub(crate) fn set_security(&mut self, security: TransportSecurity) {
        self.security = security;
    }

    /// Takes no more calls from now on.
    pub(crate) fn drain(&mut self) {
        self.is_draining = true;
    }

    /// True if the connection takes no more calls.
    pub(crate) fn is_draining(&self) -> bool {
        self.is_draining
    }

    /// Says whether a part of a record of TLS has come, and how much memory it takes.
    pub(crate) fn set_inside_tls(
        &mut self,
        part_bytes: Option<usize>,
        budget: &mut Budget,
        now_ns: u64,
    ) {
        if part_bytes.is_some() && !self.is_inside_tls && !self.reader.is_inside() {
            self.record_since_ns = now_ns;
        }
        self.is_inside_tls = part_bytes.is_some();
        let before = std::mem::replace(&mut self.inside_tls_bytes, part_bytes.unwrap_or(0));
        budget.exchange(self.host(), before, self.inside_tls_bytes);
    }
}

/// The reverse direction: callbacks.
impl Connection {
    /// Queues a callback to the peer.
    pub(crate) fn send_callback<H: Handler>(
        &mut self,
        call: &CallbackRequest,
        turn: &mut TurnContext<'_, H>,
    ) {
        self.known = true;
        let back = self.back.get_or_insert_default();
        let full = self.offer.is_taken()
            || self.is_draining
            || back.len() >= turn.config.back_calls_max
            || self.output.held_bytes() >= turn.config.output_bytes_max;
        if full {
            return turn.back_reply(self.id, call.token, Err(CallbackError::TooMany));
        }
        let xid = back.begin(call.token, turn.now_ns, turn.config.back_timeout);
        self.output.push(Reply::record(|encoder| back::encode(xid, call, encoder)));
    }

    fn take_back_reply<H: Handler>(&mut self, record: &[u8], turn: &mut TurnContext<'_, H>) {
        match &mut self.back {
            Some(back) => back.take_reply(self.id, record, turn),
            None => turn.tally.unasked += 1,
        }
    }

    /// Checks the timeouts of the callbacks and of the connection.
    pub(crate) fn tick<H: Handler>(&mut self, turn: &mut TurnContext<'_, H>) -> Result<(), Ending> {
        let now_ns = turn.now_ns;
        if let Some(back) = &mut self.back {
            back.tick(self.id, turn);
        }
        let passed = |since_ns: u64, timeout| now_ns >= since_ns.saturating_add(timeout);
        if !self.output.is_empty() {
            let timeout = nanoseconds(turn.config.output_timeout);
            if passed(self.output_since_ns, timeout) {
                return Err(Ending::Unread);
            }
        }
        // A peer is not at fault while the server does not read from it. It is at fault while it
        // holds the memory that others wait for.
        let starved = self.reader.is_starved(turn.budget);
        let first_call = nanoseconds(turn.config.first_call_timeout);
        // A first record in progress may be slow; the timeouts below apply to it.
        let is_inside = self.reader.is_inside() || self.is_inside_tls;
        let is_silent = !self.known && !is_inside && !self.is_waited_for();
        if is_silent && passed(self.begun_ns, first_call) {
            return Err(Ending::Silent);
        }
        if !is_inside || !self.may_take(turn.config) || starved {
            self.record_since_ns = now_ns;
            return Ok(());
        }
        let divisor = if turn.budget.is_tight() { STALL_TIMEOUT_DIVISOR } else { 1 };
        let stall = nanoseconds(turn.config.stall_timeout) / divisor;
        let silent = passed(self.last_input_ns.max(self.record_since_ns), stall);
        if silent || passed(self.record_since_ns, stall.saturating_mul(4)) {
            return Err(Ending::Stalled);
        }
        Ok(())
    }

    /// Gives back the memory of partial records.
    pub(crate) fn release(&mut self, budget: &mut Budget) {
        self.reader.discard(budget);
        budget.exchange(self.host(), std::mem::take(&mut self.inside_tls_bytes), 0);
    }

    /// Tells the handler that the connection has ended.
    pub(crate) fn end<H: Handler>(mut self, turn: &mut TurnContext<'_, H>) {
        self.release(turn.budget);
        if let Some(back) = self.back.take() {
            back.end(self.id, turn);
        }
        if self.known {
            shielded(|| turn.handler.disconnected(self.id));
        }
    }
}

/// Runs a part of a handler, or work for one connection. Returns none after a panic, which must not
/// end the other connections of this thread. The panic has been reported where it happened.
#[inline]
pub(crate) fn shielded<T>(part: impl FnOnce() -> T) -> Option<T> {
    confined(part)
}

fn nanoseconds(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
