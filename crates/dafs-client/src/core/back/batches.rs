//! Asynchronous batches (DAFS 13.2): transfers that the server acknowledges at once and reports
//! over the back-control channel when they are over.
//!
//! Invariants
//! * An accepted transfer is in exactly one place until it completes: waiting, delayed, or at the
//!   server under a number that was never used before. It completes once.
//! * Transfers that the server had when the channel, or the session, was lost are submitted again:
//!   reads and writes in place are idempotent.
//! * The memory of a transfer that the server was asked for stays lent until a completion ends it,
//!   or until another channel proves that the server has stopped all work for the former one. Where
//!   the server can map the client's memory, the end of a connection does not stop it. A transfer
//!   with such memory is not cancelled and does not time out, unless the session loses its
//!   connection first.
//! * Transfers at the server are bounded, whatever the application submits.
//! * A transfer that ends as cancelled was not done: the server has taken it out, and never had it
//!   before.

use super::Back;
use crate::backoff::is_passing;
use crate::core::call::{Done, Due, Purpose, Refused, ReplyMessage, Work};
use crate::core::calls::Calls;
use crate::core::failure::Failure;
use crate::core::link::Link;
use crate::core::memory::Piece;
use crate::core::open_states::OpenStates;
use crate::core::session::{SessionCore, Stage};
use crate::core::submit::{Terms, due};
use crate::limits::{
    BATCH_OUTSTANDING_MAX, BATCH_WAITING_MAX, OPERATION_DEADLINE, RECOVERY_ANSWER_TIME,
    RECOVERY_RETRY_PAUSE,
};
use dafs_dat::{Adapter, Instant};
use dafs_mem::Inaccessible;
use dafs_wire::dafs::{
    BatchSubmit, Checksum, CompletionNotification, DirectBuffer, FileChunk, FileHandle,
    HEADER_BYTES, HurryUp, Outcome, Procedure, ReadWrite, ReadWriteRequest, Reply, Request, Seq,
    Stability, StateId, Status, Verifier,
};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::VecDeque;
use std::time::Duration;

/// Bytes of a request around its transfers: header, fixed section, count and pad.
const AROUND_BYTES: usize = HEADER_BYTES + 16 + 8;

/// Bytes of a transfer, and of the count and pad of each of its two lists.
const TRANSFER_BYTES: usize = 96 + 2 * 8;

/// Bytes of a range of a file, and of a buffer.
const RANGE_BYTES: usize = 16;

/// One transfer of a batch.
#[derive(Debug, Clone)]
pub struct BatchCall {
    /// The caller's tag.
    pub tag: u64,
    /// The file.
    pub handle: FileHandle,
    /// The open.
    pub state_id: StateId,
    /// Ranges of the file.
    pub chunks: Vec<FileChunk>,
    /// The memory, of the same length in all.
    pub pieces: Vec<Piece>,
    /// For a write: the write verifier from before it, which its completion does not name.
    pub write: Option<Verifier>,
}

impl BatchCall {
    fn bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| u64::from(piece.len())).sum()
    }

    /// True for a write whose memory is unmapped. Touches every byte.
    fn sends_what_is_gone(&self) -> bool {
        self.write.is_some() && self.pieces.iter().any(Piece::is_gone)
    }

    fn wire_bytes(&self) -> usize {
        TRANSFER_BYTES + RANGE_BYTES * (self.chunks.len() + self.pieces.len())
    }
}

/// Hints for the treatment of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BatchHints {
    /// Time that the server may take to gather and order work before it begins.
    pub window: Duration,
    /// The number of completions to report together from now on in this session; 0 leaves it as it
    /// is.
    pub completions: u32,
}

#[derive(Debug)]
struct Transfer {
    call: BatchCall,
    due: Due,
    /// Microseconds.
    window: u32,
    /// The server may still move its data, for a channel that is gone.
    is_lent: bool,
    /// The server was asked for it over a channel that is gone, and may have done it.
    was_asked: bool,
    /// The server was asked to take it out.
    canceled: bool,
}

/// The parts of a request for a transfer that depend on the connection.
struct Part {
    state_id: StateId,
    buffers: Vec<DirectBuffer>,
    checksum: Checksum,
}

/// The asynchronous batches of a session.
#[derive(Debug, Default)]
pub(crate) struct Batches {
    waiting: VecDeque<Transfer>,
    /// Transfers answered with DELAY, with the time of the retry; earliest first, because the
    /// pauses are all alike.
    delayed: VecDeque<(Instant, Transfer)>,
    /// At the server, by number.
    out: FxHashMap<u64, Transfer>,
    last_number: u64,
    /// BATCH_SUBMITs without an answer: the numbers in them.
    messages: FxHashMap<u64, Vec<u64>>,
    last_message: u64,
    /// Numbers whose window is over.
    hurries: VecDeque<u64>,
    /// Numbers that the server is to take out.
    cancels: Vec<u64>,
    /// Completions to report together.
    together: u32,
    /// The server has no room; no further transfers before this, or before a completion.
    hold: Option<Instant>,
    /// A lower bound of all deadlines of transfers.
    first_due: Option<Instant>,
}

impl Batches {
    /// True when all accepted transfers are over.
    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.delayed.is_empty() && self.out.is_empty()
    }

    /// True when the server can no longer bring a batch that was sent before to the channel.
    pub(super) fn may_move(&self) -> bool {
        self.messages.is_empty()
    }

    /// The channel is gone: its transfers are queued again.
    pub(super) fn come_back(&mut self) {
        let mut out: Vec<(u64, Transfer)> = self.out.drain().collect();
        out.sort_unstable_by_key(|(number, _)| *number);
        for (_, transfer) in out.into_iter().rev() {
            self.waiting.push_front(Transfer { is_lent: true, was_asked: true, ..transfer });
        }
        self.hurries.clear();
        self.cancels.clear();
        self.hold = None;
    }

    /// Notes that the server is to take out the transfers that it has and whose tags are `wanted`.
    /// False when it has none of them, or may have done them for a channel that is gone: then nobody
    /// could say afterwards if they happened.
    pub(in crate::core) fn cancel_later(&mut self, mut wanted: impl FnMut(u64) -> bool) -> bool {
        let mut any = false;
        for (number, transfer) in &mut self.out {
            if !transfer.was_asked && wanted(transfer.call.tag) {
                any = true;
                if !std::mem::replace(&mut transfer.canceled, true) {
                    self.cancels.push(*number);
                }
            }
        }
        any
    }

    /// The server has refused X_CANCEL. Transfers that it was to take out begin at once instead, so
    /// that they are over soon, and may be cancelled again.
    pub(in crate::core) fn cancels_refused(&mut self) {
        let canceled = self.out.iter_mut().filter(|(_, transfer)| transfer.canceled);
        for (number, transfer) in canceled {
            transfer.canceled = false;
            if std::mem::take(&mut transfer.window) != 0 {
                self.hurries.push_back(*number);
            }
        }
    }

    /// The numbers that the server is to take out.
    pub(in crate::core) fn take_cancels(&mut self) -> Vec<u64> {
        let mut numbers = std::mem::take(&mut self.cancels);
        numbers.sort_unstable();
        numbers
    }

    /// Forgets messages whose connection is gone.
    pub(super) fn forget_messages(&mut self) {
        debug_assert!(self.out.is_empty(), "the channel goes first");
        self.messages.clear();
        self.look_at_all();
    }

    /// Ends all lending: the server has stopped the work for channels that are gone.
    pub(crate) fn settle(&mut self) {
        self.waiting.iter_mut().for_each(|transfer| transfer.is_lent = false);
        self.look_at_all();
    }

    /// Includes transfers that were lent, which may be overdue, in `first_due`.
    fn look_at_all(&mut self) {
        let due = self.waiting.iter().filter_map(|transfer| transfer.due);
        self.first_due = due.map(|(at, _)| at).chain(self.first_due).min();
    }

    /// True while the server may move data for a channel that is gone.
    pub(crate) fn has_lent(&self) -> bool {
        self.waiting.iter().any(|transfer| transfer.is_lent)
    }

    fn note_due(&mut self, due: Due) {
        if let Some((at, _)) = due {
            self.first_due = Some(self.first_due.map_or(at, |first| first.min(at)));
        }
    }

    pub(super) fn timeout(&self) -> Option<Instant> {
        let delayed = self.delayed.front().map(|(at, _)| *at);
        [self.first_due, delayed, self.hold].into_iter().flatten().min()
    }

    fn has_room(&self) -> bool {
        self.hold.is_none() && self.out.len() < BATCH_OUTSTANDING_MAX
    }

    /// The number of queued transfers that fit a message of `bytes` bytes.
    fn front_count(&self, bytes: usize) -> usize {
        let Some(first) = self.waiting.front() else { return 0 };
        let mut room = bytes.saturating_sub(AROUND_BYTES);
        let count_max = BATCH_OUTSTANDING_MAX.saturating_sub(self.out.len());
        let fits = |transfer: &&Transfer| {
            let wire_bytes = transfer.call.wire_bytes();
            let fits = wire_bytes <= room && transfer.window == first.window;
            room = room.saturating_sub(wire_bytes);
            fits
        };
        // A transfer that does not fit alone is refused when it is encoded.
        self.waiting.iter().take(count_max).take_while(fits).count().max(1)
    }
}

impl SessionCore {
    /// Accepts an asynchronous batch. Each transfer ends by itself, with [`Done::Read`],
    /// [`Done::Written`], [`Done::Refused`] or [`Done::Lost`], in any order. The back-control
    /// channel is made if it does not exist. The window of the hints counts on top of the deadline.
    ///
    /// # Errors
    /// The reason why no transfer was accepted.
    pub fn submit_batch(
        &mut self,
        adapter: &mut dyn Adapter,
        now: Instant,
        calls: Vec<BatchCall>,
        hints: BatchHints,
        deadline: Option<Duration>,
    ) -> Result<(), Refused> {
        self.admit(adapter, now, &[])?;
        let mut memory = calls.iter().flat_map(|call| &call.pieces);
        if !memory.all(|piece| self.owns(piece.memory())) {
            return Err(Refused::ForeignMemory);
        }
        let batches = &mut self.back.batches;
        if batches.waiting.len() + calls.len() > BATCH_WAITING_MAX {
            return Err(Refused::Full);
        }
        if hints.completions != 0 {
            batches.together = hints.completions;
        }
        let window = u32::try_from(hints.window.as_micros()).unwrap_or(u32::MAX);
        let due = due(now, deadline.map(|deadline| deadline + hints.window));
        batches.note_due(due);
        let transfer = |call| Transfer {
            call,
            due,
            window,
            is_lent: false,
            was_asked: false,
            canceled: false,
        };
        batches.waiting.extend(calls.into_iter().map(transfer));
        self.want_back(adapter, now);
        if let super::BackStage::Refused(status) = self.back_stage() {
            self.back.end_batches(&self.link, &mut self.calls, &refused(status));
        }
        self.pump(adapter);
        Ok(())
    }

    /// Asks the server not to wait for a transfer's window any longer (HURRY_UP).
    pub fn hurry_transfer(&mut self, adapter: &mut dyn Adapter, now: Instant, tag: u64) {
        self.link.now = now;
        let batches = &mut self.back.batches;
        let place = batches.waiting.iter().position(|transfer| transfer.call.tag == tag);
        if let Some(mut transfer) = place.and_then(|place| batches.waiting.remove(place)) {
            transfer.window = 0;
            batches.waiting.push_front(transfer);
        }
        let delayed = batches.delayed.iter_mut().map(|(_, transfer)| transfer);
        delayed.filter(|transfer| transfer.call.tag == tag).for_each(|found| found.window = 0);
        let out = batches.out.iter_mut();
        let mut out = out.filter(|(_, found)| found.call.tag == tag && found.window != 0);
        if let Some((&number, transfer)) = out.next() {
            transfer.window = 0;
            batches.hurries.push_back(number);
        }
        self.pump(adapter);
    }

    /// Cancels a transfer that the server cannot have done or be moving; false when it may, and
    /// then it ends as it would have. A cancelled transfer has no completion.
    pub fn cancel_transfer(&mut self, tag: u64) -> bool {
        let batches = &mut self.back.batches;
        let before = batches.waiting.len() + batches.delayed.len();
        batches.waiting.retain(|transfer| transfer.call.tag != tag || transfer.was_asked);
        batches.delayed.retain(|(_, transfer)| transfer.call.tag != tag || transfer.was_asked);
        before != batches.waiting.len() + batches.delayed.len()
    }

    /// Cancels transfers in the same way, and removes their tags. Returns these.
    pub fn cancel_transfers(&mut self, tags: &mut FxHashSet<u64>) -> Vec<u64> {
        let batches = &mut self.back.batches;
        let mut taken = Vec::new();
        let mut stays = |transfer: &Transfer| {
            let is_over = !transfer.was_asked && tags.remove(&transfer.call.tag);
            taken.extend(is_over.then_some(transfer.call.tag));
            !is_over
        };
        batches.waiting.retain(&mut stays);
        batches.delayed.retain(|(_, transfer)| stays(transfer));
        taken
    }

    /// Submits the transfers that can be submitted now; one message when other calls wait for
    /// credits.
    pub(crate) fn pump_batches(&mut self, adapter: &mut dyn Adapter) {
        if !matches!(self.stage, Stage::Ready | Stage::Closing) || !self.back.is_bound() {
            return;
        }
        while let Some(&number) = self.back.batches.hurries.front()
            && self.link.conn.has_room()
        {
            self.back.batches.hurries.pop_front();
            // The transfer may be over by now, which the server tolerates.
            let request = Request::HurryUp(HurryUp { request_id: number });
            self.send_own(adapter, Purpose::Hurry, &request);
        }
        while self.link.conn.has_room() && self.back.batches.has_room() && self.back.is_bound() {
            let count = self.back.batches.front_count(self.link.info.request_bytes as usize);
            if count == 0 {
                return;
            }
            self.send_batch(adapter, count);
            if !self.calls.waiting.is_empty() {
                return;
            }
        }
    }

    /// Submits the first `count` queued transfers to the server.
    fn send_batch(&mut self, adapter: &mut dyn Adapter, count: usize) {
        let transfers: Vec<Transfer> = self.back.batches.waiting.drain(..count).collect();
        // A transfer that has cost a connection would cost the next as well.
        let (gone, transfers): (Vec<Transfer>, Vec<Transfer>) =
            transfers.into_iter().partition(Transfer::is_gone);
        self.back.end_gone(&self.link, &mut self.calls, gone);
        let window = transfers.first().map_or(0, |transfer| transfer.window);
        let mut parts = Vec::with_capacity(count);
        for transfer in transfers {
            match transfer.part(&self.link, &self.calls.opens) {
                Ok(part) => parts.push((transfer, part)),
                Err(done) => transfer.finish(&self.link, &mut self.calls, done),
            }
        }
        let first = self.back.batches.last_number + 1;
        let mut requests = Vec::with_capacity(parts.len());
        for (number, (transfer, part)) in (first..).zip(&parts) {
            let call = &transfer.call;
            let is_write = call.write.is_some();
            requests.push(ReadWriteRequest {
                fh: call.handle,
                request_id: number,
                state_id: part.state_id,
                rw_flag: if is_write { ReadWrite::Write } else { ReadWrite::Read },
                chunks: Seq::new(&call.chunks),
                buffers: Seq::new(&part.buffers),
                direct_checksum: part.checksum,
            });
        }
        if requests.is_empty() {
            return;
        }
        let batches = &mut self.back.batches;
        batches.last_message += 1;
        let message = batches.last_message;
        let request = Request::BatchSubmit(BatchSubmit {
            requests: Seq::new(&requests),
            usec_window: window,
            num_completions: batches.together,
            synchronous: false,
        });
        let encoded = self.link.encode_own(&request);
        let (numbers, transfers): (Vec<u64>, Vec<Transfer>) =
            (first..).zip(parts).map(|(number, (transfer, ..))| (number, transfer)).unzip();
        match encoded {
            Ok((header, bytes)) => {
                let expected = transfers.iter().map(Transfer::expected_bytes).sum();
                let batches = &mut self.back.batches;
                batches.last_number += numbers.len() as u64;
                // The server has it whether the send succeeds or not: a failure ends the
                // connection.
                batches.out.extend(numbers.iter().copied().zip(transfers));
                batches.messages.insert(message, numbers);
                self.back.expect(adapter, expected, 0);
                let (of, purpose) = ((Procedure::BatchSubmit, header), Purpose::Batch(message));
                let terms = Terms::own(purpose, due(self.link.now, Some(OPERATION_DEADLINE)));
                let message = terms.outgoing(of, Work::own(), bytes, None);
                if let Err(failure) = self.link.transmit(adapter, message) {
                    self.fail(adapter, failure);
                }
            }
            // A transfer that does not fit alone will never fit.
            Err(error) => {
                for transfer in transfers {
                    let failure = Failure::refused(&error);
                    transfer.finish(&self.link, &mut self.calls, Done::Lost(failure));
                }
            }
        }
    }

    /// Processes the answer to a BATCH_SUBMIT.
    pub(crate) fn on_batch_reply(
        &mut self,
        adapter: &mut dyn Adapter,
        message: u64,
        reply: &ReplyMessage,
    ) -> Result<(), Failure> {
        let Some(numbers) = self.back.batches.messages.remove(&message) else { return Ok(()) };
        match reply.decode().map_err(Failure::protocol)? {
            // A busy server may have run it at once.
            Outcome::Ok(Reply::BatchSubmit(reply)) => {
                // Transfers that returned with their channel meanwhile are submitted again in any
                // case.
                let out = &self.back.batches.out;
                let back = numbers.into_iter().filter(|number| !out.contains_key(number));
                let back: Vec<u64> = back.collect();
                let (link, calls) = (&mut self.link, &mut self.calls);
                self.back.on_completions(link, calls, adapter, reply.completions, &back)?;
            }
            Outcome::Ok(_) => return Err(Failure::protocol("an answer of another procedure")),
            Outcome::Error { status, .. } => {
                // Missing transfers have returned with their channel.
                let out = &mut self.back.batches.out;
                let mut transfers: Vec<Transfer> =
                    numbers.iter().filter_map(|number| out.remove(number)).collect();
                let expected = transfers.iter().map(Transfer::expected_bytes).sum();
                self.back.expect(adapter, 0, expected);
                let is_full = matches!(status, Status::WhoaCowboy | Status::Resource);
                if !is_full && !is_passing(status) && status != Status::BackChannelUnusable {
                    for transfer in transfers {
                        transfer.finish(&self.link, &mut self.calls, refused(status));
                    }
                    return Ok(());
                }
                while let Some(transfer) = transfers.pop() {
                    if transfer.is_unwanted() {
                        let done = Done::Lost(Failure::Canceled);
                        transfer.finish(&self.link, &mut self.calls, done);
                    } else {
                        self.back.batches.waiting.push_front(transfer);
                    }
                }
                self.back.batches.hold = Some(self.link.now + RECOVERY_RETRY_PAUSE);
                if status == Status::BackChannelUnusable && self.back.is_bound() {
                    let failure = Failure::lost("the server has lost it");
                    self.back.lose(&self.link, &mut self.calls.delegations, adapter, failure);
                }
            }
        }
        self.back_turn(adapter);
        Ok(())
    }

    /// Does the work that is due: ends transfers that have timed out, and retries delayed ones.
    pub(super) fn batches_on_time(&mut self, adapter: &mut dyn Adapter) {
        let now = self.link.now;
        if self.back.batches.first_due.is_some_and(|at| at <= now) {
            self.expire_batches(adapter);
        }
        let batches = &mut self.back.batches;
        batches.hold = batches.hold.filter(|at| *at > now);
        while batches.delayed.front().is_some_and(|(at, _)| *at <= now) {
            batches.waiting.extend(batches.delayed.pop_front().map(|(_, transfer)| transfer));
        }
        self.pump(adapter);
    }

    fn expire_batches(&mut self, adapter: &mut dyn Adapter) {
        let now = self.link.now;
        let overdue = |transfer: &Transfer| transfer.due.filter(|(at, _)| *at <= now);
        if let Some((_, after)) = self.back.batches.out.values().find_map(overdue) {
            // DAFS cannot cancel a transfer, so the channel that could carry it out is given up.
            let held = &mut self.calls.delegations;
            self.back.lose(&self.link, held, adapter, Failure::Deadline(after));
        }
        // No new channel has proved in time that the server has stopped.
        let given_up = |transfer: &&Transfer| {
            transfer.is_lent && transfer.expires_at(true).is_some_and(|at| at <= now)
        };
        if matches!(self.stage, Stage::Ready | Stage::Closing)
            && let Some(transfer) = self.back.batches.waiting.iter().find(given_up)
        {
            let after = transfer.due.map_or(OPERATION_DEADLINE, |(_, after)| after);
            self.fail(adapter, Failure::Deadline(after));
        }
        // The wait for an unreachable server is as long as for all other calls.
        let lends = matches!(self.stage, Stage::Ready | Stage::Closing);
        let batches = &mut self.back.batches;
        let late = |transfer: &Transfer| transfer.expires_at(lends).is_some_and(|at| at <= now);
        let (mut over, waiting): (VecDeque<_>, _) =
            std::mem::take(&mut batches.waiting).into_iter().partition(late);
        let (late, delayed): (VecDeque<_>, _) =
            std::mem::take(&mut batches.delayed).into_iter().partition(|(_, found)| late(found));
        over.extend(late.into_iter().map(|(_, transfer)| transfer));
        (batches.waiting, batches.delayed) = (waiting, delayed);
        let delayed = batches.delayed.iter().map(|(_, transfer)| transfer);
        let rest = batches.waiting.iter().chain(delayed);
        let rest = rest.chain(batches.out.values());
        batches.first_due = rest.filter_map(|transfer| transfer.expires_at(lends)).min();
        for transfer in over {
            let after = transfer.due.map_or(OPERATION_DEADLINE, |(_, after)| after);
            let done = Done::Lost(Failure::Deadline(after));
            transfer.finish(&self.link, &mut self.calls, done);
        }
    }

    /// The caller of a transfer has timed out, after the time `after`. The transfer ends as soon as
    /// the server has released its memory.
    pub(in crate::core) fn give_up_transfer(
        &mut self,
        adapter: &mut dyn Adapter,
        tag: u64,
        after: Duration,
    ) {
        let Batches { waiting, delayed, out, .. } = &mut self.back.batches;
        let all = waiting.iter_mut().chain(delayed.iter_mut().map(|(_, transfer)| transfer));
        let mut all = all.chain(out.values_mut());
        if let Some(transfer) = all.find(|transfer| transfer.call.tag == tag) {
            transfer.due = Some((self.link.now, after));
            self.expire_batches(adapter);
        }
    }
}

impl Back {
    /// Ends writes whose memory is unmapped, and all others of that kind that wait: each would cost
    /// a connection.
    fn end_gone(&mut self, link: &Link, calls: &mut Calls, mut gone: Vec<Transfer>) {
        if gone.is_empty() {
            return;
        }
        let waiting = std::mem::take(&mut self.batches.waiting);
        let (more, waiting): (Vec<Transfer>, Vec<Transfer>) =
            waiting.into_iter().partition(|transfer| transfer.call.sends_what_is_gone());
        self.batches.waiting = waiting.into();
        gone.extend(more);
        for transfer in gone {
            transfer.finish(link, calls, Done::Lost(Inaccessible.into()));
        }
    }

    /// Ends transfers. Those in `back` are submitted again, so their completions are ignored.
    pub(super) fn on_completions(
        &mut self,
        link: &mut Link,
        calls: &mut Calls,
        adapter: &mut dyn Adapter,
        completions: Seq<'_, CompletionNotification>,
        back: &[u64],
    ) -> Result<(), Failure> {
        let later = link.now + RECOVERY_RETRY_PAUSE;
        for completion in completions.iter() {
            let number = completion.request_id;
            let Some(transfer) = self.batches.out.remove(&number) else {
                if back.contains(&number) {
                    continue;
                }
                return Err(Failure::protocol(format_args!(
                    "the server reports transfer {number}, which it does not have"
                )));
            };
            self.batches.hold = None;
            self.expect(adapter, 0, transfer.expected_bytes());
            match transfer.outcome(link, &completion) {
                Ok(Done::Refused { status, .. })
                    if is_passing(status) && transfer.is_unwanted() =>
                {
                    transfer.finish(link, calls, Done::Lost(Failure::Canceled));
                }
                Ok(Done::Refused { status, .. })
                    if is_passing(status) && transfer.due.is_none_or(|(at, _)| later < at) =>
                {
                    self.batches.delayed.push_back((later, transfer));
                }
                Ok(done) => transfer.finish(link, calls, done),
                Err(failure) => {
                    // It is not over; the handler of the failure decides about it.
                    self.batches.waiting.push_front(transfer);
                    return Err(failure);
                }
            }
        }
        Ok(())
    }

    /// Ends all transfers that are not at the server: it refuses the channel, or the session ends.
    pub(super) fn end_batches(&mut self, link: &Link, calls: &mut Calls, done: &Done) {
        let delayed = std::mem::take(&mut self.batches.delayed).into_iter();
        let waiting = std::mem::take(&mut self.batches.waiting).into_iter();
        for transfer in waiting.chain(delayed.map(|(_, transfer)| transfer)) {
            transfer.finish(link, calls, done.clone());
        }
    }

    /// Tells the transport how many bytes are still to be placed here over the channel.
    fn expect(&mut self, adapter: &mut dyn Adapter, more: u64, less: u64) {
        if let Some(channel) = self.channel()
            && more != less
        {
            channel.expected_bytes =
                channel.expected_bytes.saturating_add(more).saturating_sub(less);
            adapter.expect_remote_writes(channel.endpoint, channel.expected_bytes);
        }
    }
}

impl Transfer {
    /// The time at which it times out; with `lends` not before the server has had the time to stop
    /// its work on it.
    fn expires_at(&self, lends: bool) -> Option<Instant> {
        let more = if lends && self.is_lent { RECOVERY_ANSWER_TIME } else { Duration::ZERO };
        self.due.map(|(at, _)| at + more)
    }

    /// True if the caller has cancelled it, and the server cannot have done it.
    fn is_unwanted(&self) -> bool {
        self.canceled && !self.was_asked
    }

    /// True when memory that it sends is unmapped. If a connection may have been lost for it, every
    /// byte is touched.
    fn is_gone(&self) -> bool {
        if self.was_asked {
            return self.call.sends_what_is_gone();
        }
        self.call.write.is_some() && self.call.pieces.iter().any(Piece::is_unreadable)
    }

    /// The parts of a transfer for this connection, or the result with which it ends here.
    fn part(&self, link: &Link, opens: &OpenStates) -> Result<Part, Done> {
        let call = &self.call;
        let buffers: Result<Vec<DirectBuffer>, Failure> =
            call.pieces.iter().map(Piece::current_buffer).collect();
        let state_id = opens.current(call.state_id).map_err(refused)?;
        let buffers = buffers.map_err(Done::Lost)?;
        let checksum = match call.write {
            // Detect unmapped memory while that costs no connection.
            Some(_) => link.checksum_of(call.pieces.iter().map(Piece::checked)),
            None => Ok(Checksum::ZERO),
        };
        let checksum = checksum.map_err(|gone| Done::Lost(gone.into()))?;
        Ok(Part { state_id, buffers, checksum })
    }

    fn outcome(
        &self,
        link: &mut Link,
        completion: &CompletionNotification,
    ) -> Result<Done, Failure> {
        let (status, bytes) = (completion.status, completion.bytes_transferred);
        if !status.is_ok() {
            return Ok(refused(status));
        }
        let wanted = self.call.bytes();
        if u64::from(bytes) > wanted {
            return Err(Failure::protocol(format_args!(
                "a transfer of {wanted} bytes is said to have moved {bytes}"
            )));
        }
        link.stats.direct_transfers += 1;
        if let Some(verifier) = self.call.write {
            link.stats.bytes_written += u64::from(bytes);
            return Ok(Done::Written { bytes, committed: Stability::Unstable, verifier });
        }
        let mut left = bytes;
        let views = self.call.pieces.iter().map(|piece| {
            let len = piece.len().min(left);
            left -= len;
            piece.first(len)
        });
        let sum = link.checksum_of(views);
        if sum.is_err() || self.call.pieces.iter().any(Piece::is_lost) {
            return Ok(Done::Lost(Inaccessible.into()));
        }
        if link.info.checksums && sum != Ok(completion.direct_checksum) {
            return Err(Failure::corrupt("the checksum of data read does not match"));
        }
        link.stats.bytes_read += u64::from(bytes);
        Ok(Done::Read { bytes, end_of_file: false })
    }

    /// The only place where a transfer of a batch completes.
    fn finish(&self, link: &Link, calls: &mut Calls, done: Done) {
        calls.finish(link, Purpose::Caller(self.call.tag), done);
    }

    /// Bytes that the server may write into the client's memory for it.
    fn expected_bytes(&self) -> u64 {
        if self.call.write.is_some() { 0 } else { self.call.bytes() }
    }
}

pub(super) fn refused(status: Status) -> Done {
    Done::Refused { procedure: Procedure::BatchSubmit, status }
}
