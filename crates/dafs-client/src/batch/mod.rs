//! Many reads and writes in few messages (DAFS 13.2): scattered in files and in memory, put in
//! order by the server.
//!
//! A batch travels in as many messages as it needs. The server answers a message when all its
//! transfers are over. For an asynchronous batch ([`Batch::asynchronous`]) it reports transfers one
//! by one, on the back-control channel, and may gather and order them meanwhile. The caller need
//! not wait in either case.
//!
//! Invariants
//! * Each transfer has exactly one result. After a lost connection transfers without a result are
//!   sent again, so a write may be done twice (DAFS 12).
//! * A batch write is unstable; [`File::commit`] makes it stable, or reports its loss. The answer
//!   does not name the write verifier, so the client asks for it before (DAFS O53).

mod flight;
mod grouped;

use self::flight::{Flights, canceled};
pub(crate) use self::grouped::Sent;
use crate::backoff::{Backoff, is_passing};
use crate::buffer::IoBuffer;
use crate::cache::{DirectUse, Effect};
use crate::client::Client;
use crate::core::{BatchHints, Piece, Pieces, ReplyMessage, SessionInfo};
use crate::driver::{Shared, Slot};
use crate::error::{Error, Result};
use crate::file::File;
use crate::limits::BATCH_PIECES_MAX;
use crate::uncommitted::Uncommitted;
use dafs_wire::dafs::{
    BatchSubmit, Checksum, DirectBuffer, FileChunk, FileHandle, HEADER_BYTES, ReadWrite,
    ReadWriteRequest, Request, Seq, StateId, Verifier,
};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Bytes of a request around its transfers: header, fixed section, count and pad.
const AROUND_BYTES: usize = HEADER_BYTES + 16 + 8;

/// Bytes of a transfer, and of the count and pad of each of its two lists.
const TRANSFER_BYTES: usize = 96 + 2 * 8;

/// Bytes of a range of a file, and of a buffer.
const RANGE_BYTES: usize = 16;

/// Bytes of a reply around its completions, and of a completion.
const REPLY_AROUND_BYTES: usize = HEADER_BYTES + 8 + 8;
const COMPLETION_BYTES: usize = 24;

/// The first id of synchronous batches: beyond all that the session gives to asynchronous ones,
/// because an id must be unique among all that are outstanding (DAFS O55).
const SYNCHRONOUS_IDS: u64 = 1 << 63;

/// Reads and writes that are collected before they are sent.
#[derive(Debug)]
pub struct Batch {
    client: Client,
    transfers: Vec<Transfer>,
    /// Present for an asynchronous one.
    hints: Option<BatchHints>,
}

#[derive(Debug, Clone)]
struct Transfer {
    handle: FileHandle,
    state_id: StateId,
    /// Nearly always one, as are the pieces.
    chunks: SmallVec<[FileChunk; 1]>,
    pieces: Pieces,
    /// For a write: the file's record of unstable data, and the verifier before.
    writes: Option<(Arc<Uncommitted>, Verifier)>,
}

impl Transfer {
    fn wire_bytes(&self) -> usize {
        TRANSFER_BYTES + RANGE_BYTES * (self.chunks.len() + self.pieces.len())
    }
}

/// A batch under way. Dropping it abandons the results, not the transfers.
#[must_use = "a transfer whose result is not looked at may have failed"]
pub struct PendingBatch {
    shared: Arc<Shared>,
    transfers: Vec<Transfer>,
    /// The messages, with the transfers that went in each.
    messages: Vec<(Option<Slot>, Range<usize>)>,
    /// The transfers of an asynchronous batch.
    flights: Option<Flights>,
    results: Vec<Result<usize>>,
    /// Results that [`PendingBatch::next`] has not handed out.
    ready: VecDeque<usize>,
    /// Its use of files that the client's cache knows.
    used: Option<DirectUse>,
}

impl Client {
    /// An empty batch.
    pub fn batch(&self) -> Batch {
        Batch { client: self.clone(), transfers: Vec::new(), hints: None }
    }
}

impl Batch {
    /// Adds a read of `ranges` of a file, as offset and length, into `memory`; the two need not be
    /// cut alike, but have the same sum. Returns its index among the results. The result is the
    /// number of bytes read: fewer than asked for when a range ends behind the end of the file, and
    /// then bytes of the ranges behind that one are not counted.
    ///
    /// # Errors
    /// A file of another client, a range outside its buffer, sums that differ, too many ranges,
    /// more than the server takes at once.
    pub fn read(
        &mut self,
        file: &File,
        ranges: &[(u64, usize)],
        memory: &[(&IoBuffer, Range<usize>)],
    ) -> Result<usize> {
        let max = self.client.shared().info().read_bytes_max;
        let transfer = self.transfer(file, ranges, memory, max)?;
        self.transfers.push(transfer);
        Ok(self.transfers.len() - 1)
    }

    /// Adds a write of `memory` to `ranges` of a file, as [`Batch::read`] does. Its result is the
    /// number of bytes written, from the start; the caller writes the rest.
    ///
    /// The first write since a COMMIT asks the server for its write verifier and waits for the
    /// answer.
    ///
    /// # Errors
    /// As [`Batch::read`], and those of asking for the verifier.
    pub fn write(
        &mut self,
        file: &File,
        ranges: &[(u64, usize)],
        memory: &[(&IoBuffer, Range<usize>)],
    ) -> Result<usize> {
        let max = self.client.shared().info().write_bytes_max;
        let mut transfer = self.transfer(file, ranges, memory, max)?;
        transfer.writes = Some(file.watch_batch()?);
        self.transfers.push(transfer);
        Ok(self.transfers.len() - 1)
    }

    fn transfer(
        &self,
        file: &File,
        ranges: &[(u64, usize)],
        memory: &[(&IoBuffer, Range<usize>)],
        max: u64,
    ) -> Result<Transfer> {
        if ranges.len() > BATCH_PIECES_MAX || memory.len() > BATCH_PIECES_MAX {
            return Err(Error::Argument("a transfer of a batch is cut into too many pieces"));
        }
        file.check_of(&self.client)?;
        let shared = self.client.shared();
        let piece = |(buffer, range): &(&IoBuffer, Range<usize>)| {
            shared.piece(buffer, range.clone(), 0, usize::MAX)
        };
        let pieces = memory.iter().map(piece).collect::<Result<Pieces>>()?;
        let cache_hint = file.hint();
        let chunk = |&(offset, len): &(u64, usize)| {
            let byte_count = u32::try_from(len).ok()?;
            offset.checked_add(len as u64).filter(|end| i64::try_from(*end).is_ok())?;
            Some(FileChunk { offset, byte_count, cache_hint })
        };
        let chunks = ranges.iter().map(chunk).collect::<Option<SmallVec<_>>>();
        let chunks = chunks.ok_or(Error::Argument("the range lies beyond the largest file"))?;
        let wanted: u64 = ranges.iter().map(|(_, len)| *len as u64).sum();
        let room: u64 = pieces.iter().map(|piece| u64::from(piece.len())).sum();
        if wanted != room {
            return Err(Error::Argument(
                "the ranges and the memory of a transfer differ in length",
            ));
        }
        if wanted > max {
            return Err(Error::Argument("a transfer of a batch is longer than the server takes"));
        }
        let (handle, state_id) = (*file.handle(), file.state_id());
        Ok(Transfer { handle, state_id, chunks, pieces, writes: None })
    }

    /// Lets the server wait up to `window` to gather and order the transfers with others before it
    /// begins. It reports each by itself, over the back-control channel, which is made for it (DAFS
    /// 13.2). `together` asks for reports of so many transfers at a time from now on, in this
    /// session; 0 leaves that number as it is. The server reports at once when no other transfer is
    /// under way.
    ///
    /// This pays for many transfers whose results are wanted one by one, or not soon; a synchronous
    /// batch is cheaper for results that are wanted soon.
    #[must_use]
    pub fn asynchronous(self, window: Duration, together: u32) -> Self {
        Self { hints: Some(BatchHints { window, completions: together }), ..self }
    }

    /// Transfers that have been added.
    pub fn len(&self) -> usize {
        self.transfers.len()
    }

    /// True when there is none.
    pub fn is_empty(&self) -> bool {
        self.transfers.is_empty()
    }

    /// Sends the batch; the results can be waited for later.
    ///
    /// # Errors
    /// Too many operations, a session that is over. Some messages may have been sent then; their
    /// results are lost.
    pub fn submit(self) -> Result<PendingBatch> {
        let Self { client, transfers, hints } = self;
        let used = client.before(|| effect_of(&transfers));
        let shared = client.shared().clone();
        let results = (0..transfers.len()).map(|_| Ok(0)).collect();
        let flights = match hints {
            Some(hints) => Some(Flights::begin(&shared, &transfers, hints)?),
            None => None,
        };
        let ready = VecDeque::new();
        let messages = Vec::new();
        let mut pending =
            PendingBatch { shared, transfers, messages, flights, results, ready, used };
        if pending.flights.is_some() {
            return Ok(pending);
        }
        let mut first = 0;
        while first < pending.transfers.len() {
            let end = first + message_len(pending.shared.info(), &pending.transfers[first..]);
            let slot = pending.send(first..end)?;
            pending.messages.push((Some(slot), first..end));
            first = end;
        }
        Ok(pending)
    }

    pub(crate) fn is_of(&self, client: &Client) -> bool {
        self.client.is_same(client)
    }

    /// Sends the batch and waits for all results. Transfers that the server answers with DELAY are
    /// retried.
    ///
    /// # Errors
    /// Those of [`Batch::submit`], and the end of the session. Errors of a transfer are in its
    /// result.
    pub fn run(self) -> Result<Vec<Result<usize>>> {
        let (client, hints) = (self.client.clone(), self.hints);
        let mut backoff = Backoff::new(client.shared().deadline());
        let mut pending = self.submit()?;
        pending.finish(None)?;
        let transfers = std::mem::take(&mut pending.transfers);
        let mut results = std::mem::take(&mut pending.results);
        loop {
            let passing = |result: &Result<usize>| match result {
                Err(error) => error.status().is_some_and(is_passing),
                Ok(_) => false,
            };
            let again: Vec<_> = (0..results.len()).filter(|&at| passing(&results[at])).collect();
            if again.is_empty() || !backoff.pause() {
                return Ok(results);
            }
            let transfers = again.iter().map(|&at| transfers[at].clone()).collect();
            let repeated = Batch { client: client.clone(), transfers, hints }.submit()?.wait()?;
            for (at, result) in again.into_iter().zip(repeated) {
                results[at] = result;
            }
        }
    }
}

impl PendingBatch {
    fn send(&self, range: Range<usize>) -> Result<Slot> {
        with_request(&self.shared, &self.transfers[range], |request, memory| {
            self.shared.submit(|driver, tag| driver.submit(tag, request, memory))
        })
    }

    /// True when [`wait`](Self::wait) will not block. Makes progress without blocking.
    pub fn is_done(&self) -> bool {
        if let Some(flights) = &self.flights {
            return flights.is_done();
        }
        let mut slots = self.messages.iter().filter_map(|(slot, _)| slot.as_ref());
        slots.all(|slot| self.shared.is_done(slot))
    }

    /// Waits for all results, in the order in which the transfers were added.
    ///
    /// # Errors
    /// The end of the session, or an invalid answer. Errors of a transfer are in its result.
    pub fn wait(mut self) -> Result<Vec<Result<usize>>> {
        self.finish(None)?;
        Ok(std::mem::take(&mut self.results))
    }

    /// Waits for all results for up to `time` per message. After [`Error::TimedOut`] the caller may
    /// wait again.
    ///
    /// # Errors
    /// As [`wait`](Self::wait), and [`Error::TimedOut`].
    pub fn wait_deadline(&mut self, time: Duration) -> Result<Vec<Result<usize>>> {
        self.finish(Some(time))?;
        Ok(std::mem::take(&mut self.results))
    }

    /// Waits for the next transfer that is over, for up to `time`: its index among those that were
    /// added, and its result. `None` when all have been handed out. Results of a synchronous batch
    /// come by the message.
    ///
    /// # Errors
    /// As [`wait_deadline`](Self::wait_deadline).
    pub fn next(&mut self, time: Option<Duration>) -> Result<Option<(usize, Result<usize>)>> {
        if let Some(flights) = &mut self.flights
            && self.ready.is_empty()
        {
            let next = flights.next(time)?;
            if let Some((place, result)) = &next {
                self.results[*place] = result.clone();
            }
            return Ok(next);
        }
        while self.ready.is_empty() {
            let open = self.messages.iter().position(|(slot, _)| slot.is_some());
            let Some(at) = open else { return Ok(None) };
            self.take_message(at, time)?;
            self.ready.extend(self.messages[at].1.clone());
        }
        Ok(self.ready.pop_front().map(|place| (place, self.results[place].clone())))
    }

    /// Asks the server not to wait for the window of an asynchronous batch any longer, for the
    /// transfer at `place` (HURRY_UP). Its result comes as always.
    ///
    /// # Errors
    /// The end of the session.
    pub fn hurry(&self, place: usize) -> Result<()> {
        self.flights.as_ref().map_or(Ok(()), |flights| flights.hurry(place))
    }

    /// Cancels the transfers that have not been sent to the server yet; returns how many that are.
    /// Asks the server to take out what it has not begun of the others (X_CANCEL, an extension).
    /// Does not wait for its answer. Each transfer still has its result: [`Error::Canceled`] if
    /// nothing of it has happened or will happen, else what it would have been. Those of a synchronous
    /// batch whose connection is lost are an exception, as [`Error::Canceled`] says.
    ///
    /// A server without the extension is asked to begin with the transfers of an asynchronous batch
    /// at once instead, so that they are over soon.
    ///
    /// # Errors
    /// The end of the session.
    pub fn cancel(&mut self) -> Result<usize> {
        let Some(flights) = &mut self.flights else {
            let mut taken = 0;
            for (slot, range) in &self.messages {
                let unsent = slot.as_ref().is_some_and(|slot| self.shared.cancel_unsent(slot));
                taken += if unsent { range.len() } else { 0 };
            }
            return Ok(taken);
        };
        let taken = flights.cancel()?;
        for place in &taken {
            self.results[*place] = canceled();
        }
        let count = taken.len();
        self.ready.extend(taken);
        Ok(count)
    }

    fn finish(&mut self, time: Option<Duration>) -> Result<()> {
        while let Some(flights) = &mut self.flights
            && flights.left() > 0
        {
            if let Some((place, result)) = flights.next(time)? {
                self.results[place] = result;
            }
        }
        for at in 0..self.messages.len() {
            self.take_message(at, time)?;
        }
        Ok(())
    }

    /// Waits for the answer to a message, if it has not been taken.
    fn take_message(&mut self, at: usize, time: Option<Duration>) -> Result<()> {
        let Some(slot) = &self.messages[at].0 else { return Ok(()) };
        let reply = self.shared.wait_reply(slot, time);
        if !matches!(reply, Err(Error::TimedOut(_))) {
            self.messages[at].0 = None;
        }
        let range = self.messages[at].1.clone();
        if matches!(reply, Err(Error::Canceled)) {
            self.results[range].iter_mut().for_each(|result| *result = canceled());
            return Ok(());
        }
        self.take_reply(range, &reply?)
    }

    fn take_reply(&mut self, range: Range<usize>, reply: &ReplyMessage) -> Result<()> {
        let driver = self.shared.lock()?;
        let results = grouped::results(&self.transfers[range.clone()], reply, driver.core());
        drop(driver);
        let results = results.map_err(|reason| self.shared.broken(&reason))?;
        for (place, result) in range.zip(results) {
            self.results[place] = result;
        }
        Ok(())
    }
}

/// The number of transfers, from the first, that fit one message, and whose answers fit one.
fn message_len(info: &SessionInfo, transfers: &[Transfer]) -> usize {
    let mut room = (info.request_bytes as usize).saturating_sub(AROUND_BYTES);
    let replies = (info.response_bytes as usize).saturating_sub(REPLY_AROUND_BYTES);
    let count_max = (replies / COMPLETION_BYTES).max(1);
    let fits = |transfer: &&Transfer| {
        let fits = transfer.wire_bytes() <= room;
        room = room.saturating_sub(transfer.wire_bytes());
        fits
    };
    // A transfer that does not fit alone is refused when it is encoded.
    transfers.iter().take(count_max).take_while(fits).count().max(1)
}

/// Runs `send` with the message for transfers and the memory that the server reaches through it.
fn with_request<T>(
    shared: &Shared,
    transfers: &[Transfer],
    send: impl FnOnce(&Request<'_>, Pieces) -> Result<T>,
) -> Result<T> {
    let pieces = || transfers.iter().flat_map(|transfer| &transfer.pieces);
    let mut buffers: Vec<DirectBuffer> = Vec::with_capacity(transfers.len());
    buffers.extend(pieces().map(Piece::direct_buffer));
    let mut rest = &buffers[..];
    let mut requests = Vec::with_capacity(transfers.len());
    for (index, transfer) in transfers.iter().enumerate() {
        let write = transfer.writes.is_some();
        let (buffers, others) = rest.split_at(transfer.pieces.len());
        rest = others;
        requests.push(ReadWriteRequest {
            fh: transfer.handle,
            request_id: SYNCHRONOUS_IDS + index as u64,
            state_id: transfer.state_id,
            rw_flag: if write { ReadWrite::Write } else { ReadWrite::Read },
            chunks: Seq::new(&transfer.chunks),
            buffers: Seq::new(buffers),
            direct_checksum: match write {
                true => shared.data_checksum_of(&transfer.pieces)?,
                false => Checksum::ZERO,
            },
        });
    }
    let request = Request::BatchSubmit(BatchSubmit {
        requests: Seq::new(&requests),
        usec_window: 0,
        num_completions: 0,
        synchronous: true,
    });
    let mut memory = Pieces::new();
    for piece in pieces() {
        if !memory.last_mut().is_some_and(|last| last.extend(piece)) {
            memory.push(piece.clone());
        }
    }
    send(&request, memory)
}

/// The effect of transfers on the content of their files.
fn effect_of(transfers: &[Transfer]) -> Effect {
    let of = |transfer: &Transfer| match transfer.writes {
        Some(_) => Effect::Change(transfer.handle, 0..u64::MAX),
        None => Effect::Read(transfer.handle),
    };
    transfers.iter().map(of).fold(Effect::None, Effect::and)
}

impl Drop for PendingBatch {
    fn drop(&mut self) {
        let left = self.messages.iter().any(|(slot, _)| slot.is_some())
            || self.flights.as_ref().is_some_and(|flights| flights.left() > 0);
        if left {
            // The end of its writes will not be seen, so their files are never cached again.
            std::mem::forget(self.used.take());
        }
        for (slot, _) in &mut self.messages {
            if let Some(slot) = slot.take() {
                self.shared.abandon(slot);
            }
        }
    }
}

impl std::fmt::Debug for PendingBatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PendingBatch({} transfers)", self.transfers.len())
    }
}
