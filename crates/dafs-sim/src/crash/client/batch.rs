//! Batches: several slots of the client's own file in one request. The client waits for the answer,
//! or the server reports each transfer over the back-control channel.
//!
//! Invariants
//! * Each transfer ends once. A cancelled one has no effect: it was cancelled before its request was
//!   sent, or the server has taken it out before it began.

use super::job::Job;
use super::{Client, Flight};
use crate::crash::model::slots::{SLOT_BYTES, SLOTS, Slots};
use crate::crash::{Danger, Shared};
use crate::pattern::WriteId;
use dafs_client::core::{BatchCall, BatchHints, Piece, Refused, ReplyMessage};
use dafs_dat::Instant;
use dafs_mem::Site;
use dafs_wire::dafs::{
    BatchSubmit, Checksum, DirectBuffer, FileChunk, HintWord, ReadWrite, ReadWriteRequest, Reply,
    Request, Seq, StateId, Status, Verifier, checksum,
};
use std::time::Duration;

/// Most transfers of a batch.
const PARTS_MAX: u64 = 5;

/// The first tag of transfers that the session does not tag: beyond all of the session's tags.
const SYNCHRONOUS_IDS: u64 = 1 << 63;

/// One transfer: a slot, and the write to it unless it is a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) slot: usize,
    pub(super) write: Option<WriteId>,
    /// The write verifier from before it.
    pub(super) verifier: Verifier,
}

impl Part {
    fn chunk(&self) -> FileChunk {
        let byte_count = SLOT_BYTES as u32;
        FileChunk { offset: Slots::offset(self.slot), byte_count, cache_hint: HintWord::NONE }
    }

    /// Fills memory with the data to write, or with bytes that no write contains.
    fn fill(&self, piece: &Piece, danger: Danger) {
        match self.write {
            Some(write) => {
                let data = write.bytes(Slots::offset(self.slot), SLOT_BYTES);
                let some = if danger == Danger::TornBatch { SLOT_BYTES / 2 } else { SLOT_BYTES };
                piece.view().copy_from(&data[..some], Site::Inspect);
            }
            None => piece.view().fill(0xdb),
        }
    }
}

impl Client {
    /// Draws a batch of unused slots.
    pub(super) fn draw_batch(&mut self, shared: &mut Shared) -> Option<Job> {
        let verifier = self.verifier.filter(|_| self.plan.batches)?;
        let mut parts: Vec<Part> = Vec::new();
        for _ in 0..self.rng.between(1, PARTS_MAX) {
            let slot = self.rng.below(SLOTS as u64) as usize;
            if !self.slots.begin(slot) {
                continue;
            }
            let write = self.rng.chance(700_000).then(|| shared.common.next_write());
            if let Some(write) = write {
                self.slots.begin_write(slot, write, shared.cuts);
            }
            parts.push(Part { slot, write, verifier });
        }
        if parts.is_empty() {
            return None;
        }
        if self.rng.chance(400_000) {
            return Some(Job::Batch(parts));
        }
        let window = Duration::from_millis([0, 5, 400][self.rng.below(3) as usize]);
        let completions = self.rng.below(4) as u32;
        Some(Job::Transfers(parts, BatchHints { window, completions }))
    }

    /// Shortens the deadline of an outstanding transfer, or cancels it, here or at the server.
    pub(super) fn meddle(&mut self, shared: &mut Shared) -> Result<(), String> {
        let transfers = self.flights.iter().filter_map(|(tag, flight)| match flight.job {
            Job::Transfer(part) => Some((*tag, part)),
            _ => None,
        });
        let all: Vec<(u64, Part)> = transfers.collect();
        if all.is_empty() {
            return Ok(());
        }
        let (tag, part) = all[self.rng.below(all.len() as u64) as usize];
        let draw = self.rng.below(10);
        let Some(session) = &mut self.session else { return Ok(()) };
        if draw < 4 {
            shared.common.note(|| format!("c{} hurries {part:?}", self.number));
            session.hurry_transfer(&mut self.adapter, shared.common.now, tag);
        } else if draw < 6 && (session.cancel_transfer(tag) || shared.danger == Danger::FalseCancel)
        {
            shared.common.note(|| format!("c{} takes {part:?} back", self.number));
            shared.lock_counts.taken_back += 1;
            let flight = self.flights.remove(&tag);
            let Flight { piece, .. } = flight.ok_or("a transfer of nobody was taken back")?;
            self.pieces_free.extend(piece);
            if let Some(write) = part.write {
                self.slots.taken_back(part.slot, write);
            }
            self.slots.end(part.slot);
        } else if (6..8).contains(&draw)
            && session.cancel_at_server(&mut self.adapter, shared.common.now, tag)
        {
            shared.common.note(|| format!("c{} asks for {part:?} to be taken out", self.number));
        }
        Ok(())
    }

    /// Handles the end of a transfer that the server has taken out.
    pub(super) fn taken_out(&mut self, shared: &mut Shared, part: Part) {
        shared.common.note(|| format!("c{}: {part:?} was taken out", self.number));
        shared.lock_counts.taken_out += 1;
        if let Some(write) = part.write {
            self.slots.taken_back(part.slot, write);
        }
        self.slots.end(part.slot);
    }

    /// Submits the transfers of an asynchronous batch, each with a tag and a piece of its own.
    pub(super) fn submit_transfers(
        &mut self,
        shared: &mut Shared,
        parts: Vec<Part>,
        hints: BatchHints,
    ) -> Result<(), String> {
        let now = shared.common.now;
        let Some(handle) = self.handles.data.filter(|_| self.pieces_free.len() >= parts.len())
        else {
            self.again(now, Job::Transfers(parts, hints));
            return Ok(());
        };
        let places = self.pieces_free.split_off(self.pieces_free.len() - parts.len());
        let (first, mut calls) = (self.last_tag + 1, Vec::new());
        for (tag, (part, place)) in (first..).zip(parts.iter().zip(&places)) {
            let piece = self.piece(*place, SLOT_BYTES).ok_or("there is no memory")?;
            part.fill(&piece, shared.danger);
            calls.push(BatchCall {
                tag,
                handle,
                state_id: StateId::ZERO,
                chunks: vec![part.chunk()],
                pieces: vec![piece],
                write: part.write.map(|_| part.verifier),
            });
        }
        let taken = match &mut self.session {
            Some(session) => session.submit_batch(&mut self.adapter, now, calls, hints, None),
            None => Err(Refused::NotReady),
        };
        match taken {
            Ok(()) => {
                self.last_tag += parts.len() as u64;
                for (tag, (part, place)) in (first..).zip(parts.into_iter().zip(places)) {
                    let (job, piece) = (Job::Transfer(part), Some(place));
                    let ends = shared.ends;
                    self.flights.insert(tag, Flight { job, piece, ends, since: now });
                }
                return Ok(());
            }
            Err(Refused::Over(_) | Refused::Full | Refused::NotReady) => {
                self.again(now, Job::Transfers(parts, hints));
            }
            Err(error) => return Err(format!("a batch was not taken: {error}")),
        }
        self.pieces_free.extend(places);
        Ok(())
    }

    /// Sends a batch that is answered as a whole.
    pub(super) fn send_batch(
        &mut self,
        now: Instant,
        tag: u64,
        parts: &[Part],
        (place, danger): (usize, Danger),
    ) -> Option<Result<(), Refused>> {
        let fh = self.handles.data?;
        let sums = self.session.as_ref()?.info().checksums;
        let whole = self.piece(place, parts.len() * SLOT_BYTES)?;
        let chunks: Vec<FileChunk> = parts.iter().map(Part::chunk).collect();
        let mut buffers: Vec<DirectBuffer> = Vec::new();
        let mut direct_checksums = Vec::new();
        for (index, part) in parts.iter().enumerate() {
            let piece = self.part_piece(place, index, SLOT_BYTES)?;
            part.fill(&piece, danger);
            buffers.push(piece.direct_buffer());
            direct_checksums.push(match part.write {
                Some(_) if sums => checksum(&piece.view().to_vec(Site::Inspect)),
                _ => Checksum::ZERO,
            });
        }
        let request = |(index, part): (usize, &Part)| ReadWriteRequest {
            fh,
            request_id: SYNCHRONOUS_IDS + index as u64,
            state_id: StateId::ZERO,
            rw_flag: if part.write.is_some() { ReadWrite::Write } else { ReadWrite::Read },
            chunks: Seq::new(&chunks[index..=index]),
            buffers: Seq::new(&buffers[index..=index]),
            direct_checksum: direct_checksums[index],
        };
        let requests: Vec<_> = parts.iter().enumerate().map(request).collect();
        let request = Request::BatchSubmit(BatchSubmit {
            requests: Seq::new(&requests),
            usec_window: 0,
            num_completions: 0,
            synchronous: true,
        });
        let session = self.session.as_mut()?;
        Some(session.submit(&mut self.adapter, now, tag, &request, Some(whole), None))
    }

    fn part_piece(&self, place: usize, index: usize, len: usize) -> Option<Piece> {
        let at = place * super::PIECE_BYTES + index * SLOT_BYTES;
        Piece::new(self.memory.as_ref()?, at, u32::try_from(len).ok()?)
    }

    /// Handles the answer to a batch as a whole.
    pub(super) fn batch_done(
        &mut self,
        shared: &mut Shared,
        parts: &[Part],
        place: Option<usize>,
        message: &ReplyMessage,
    ) -> Result<(), String> {
        let outcome = message.decode().map_err(|error| error.to_string())?;
        let Ok(Reply::BatchSubmit(reply)) = outcome.into_result() else {
            return Err(format!("the batch was refused: {}", message.status()));
        };
        let mut left: Vec<Option<&Part>> = parts.iter().map(Some).collect();
        let mut again = Vec::new();
        for completion in reply.completions.iter() {
            let index = completion.request_id.wrapping_sub(SYNCHRONOUS_IDS) as usize;
            let part = left.get_mut(index).and_then(Option::take);
            let part = *part.ok_or_else(|| format!("{completion:?} tells of no transfer"))?;
            let bytes = completion.bytes_transferred as usize;
            match completion.status {
                Status::Ok => {
                    let data = match part.write {
                        Some(_) => Vec::new(),
                        None => place
                            .and_then(|place| self.part_piece(place, index, bytes))
                            .ok_or("more was read than there is memory for")?
                            .view()
                            .to_vec(Site::Inspect),
                    };
                    self.part_done(shared, part, bytes, data)?;
                }
                Status::Delay | Status::Grace | Status::Resource => again.push(part),
                status => return Err(format!("{part:?} was refused with {status}")),
            }
        }
        if left.iter().any(Option::is_some) {
            return Err(format!("nothing is told of {left:?}"));
        }
        if !again.is_empty() {
            self.again(shared.common.now, Job::Batch(again));
        }
        Ok(())
    }

    /// Handles a successful transfer; `data` is the read data.
    pub(super) fn part_done(
        &mut self,
        shared: &mut Shared,
        part: Part,
        bytes: usize,
        mut data: Vec<u8>,
    ) -> Result<(), String> {
        shared.common.counts.succeeded += 1;
        shared.lock_counts.transfers += 1;
        let Part { slot, write, verifier } = part;
        match write {
            Some(_) if bytes != SLOT_BYTES => {
                return Err(format!("{bytes} bytes of {part:?} were written"));
            }
            Some(write) => {
                shared.common.counts.bytes_written += bytes as u64;
                let committed = dafs_wire::dafs::Stability::Unstable;
                self.slots.written(slot, write, committed, verifier);
            }
            None => {
                shared.common.counts.bytes_read += bytes as u64;
                // The file may end before the slot.
                data.resize(SLOT_BYTES, 0);
                shared.common.digest.bytes(&data);
                self.slots.check(slot, &data, shared.cuts)?;
            }
        }
        self.slots.end(slot);
        Ok(())
    }

    /// Notes a transfer whose outcome stays unknown; a write may still take effect.
    pub(super) fn part_lost(&mut self, part: Part) {
        if part.write.is_none() {
            self.slots.end(part.slot);
        }
    }
}
