//! One connection: its posted work, and the translation of records into completions.
//!
//! Invariants
//! * Posted work is in exactly one of the queues here or has completed. `flush` empties all queues
//!   once, before the adapter reports the end.
//! * A record is applied only after it was checked against the posted receives and registered
//!   regions of this side. This side looks its regions up in its own table, never in shared memory.
//! * Responses to staged reads overtake queued work; otherwise two sides that read from each other
//!   could deadlock.

use super::arena::PeerRegions;
use super::layout::Control;
use super::limits::{READS_OUTSTANDING_MAX, RECORDS_PER_POLL};
use super::ring::{Consumer, Corrupt, Kind, Producer, Record, WORDS_MAX};
use super::share::SharedRegions;
use crate::GATHER_SEGMENTS_MAX;
use crate::connections::Admitted;
use crate::descriptors::Guarded;
use crate::error::DisconnectReason;
use crate::memory::RegionTable;
use crate::time::Instant;
use crate::types::{
    Access, Completion, EndpointId, Event, Operation, PeerInfo, ProtectionDomain, RegionId,
    RemoteBuffer, WorkStatus,
};
use dafs_mem::{Buffer, CheckedSlice, Inaccessible, Site};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The state of a connection.
#[derive(Debug)]
pub(super) enum Stage {
    /// The listener's queue is full; the hello waits, with the connection memory.
    Dialing { name: String, hello: Vec<u8>, file: OwnedFd },
    /// The hello is sent.
    Waiting,
    /// Both sides have accepted the connection.
    Open,
    /// This side has called `disconnect`; work that was posted before is still sent.
    Closing,
}

/// A piece of a buffer that posted work keeps alive.
#[derive(Debug, Clone)]
pub(super) struct Piece {
    pub(super) buffer: Arc<Buffer>,
    pub(super) offset: usize,
    pub(super) len: usize,
}

impl Piece {
    fn view(&self) -> CheckedSlice<'_> {
        // INVARIANT: the range was checked against the buffer when the work was posted, and a
        // buffer never changes its length.
        self.buffer.checked(self.offset, self.len).expect("checked when posted")
    }
}

/// A posted receive.
#[derive(Debug)]
pub(super) struct Receive {
    pub(super) work: u64,
    pub(super) piece: Piece,
}

/// Work that waits for room in the ring.
#[derive(Debug)]
pub(super) enum Work {
    Send { work: u64, pieces: Vec<Piece>, total: usize, done: usize, invalidate: Option<u32> },
    Write { work: u64, pieces: Vec<Piece>, total: usize, done: usize, remote: RemoteBuffer },
    Read { work: u64, sink: Piece, remote: RemoteBuffer },
}

/// A staged read whose data has not all arrived.
#[derive(Debug)]
struct Reading {
    work: u64,
    sink: Piece,
    arrived: usize,
}

/// A staged read of the peer, to be answered.
#[derive(Debug)]
struct Response {
    piece: Piece,
    done: usize,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Conn {
    pub(super) id: EndpointId,
    pub(super) domain: ProtectionDomain,
    pub(super) stage: Stage,
    /// None while dialing.
    pub(super) socket: Option<Guarded<Arc<OwnedFd>>>,
    /// Its entry in the connection limits, until the socket is closed.
    pub(super) _admitted: Option<Arc<Admitted>>,
    pub(super) peer: PeerInfo,
    pub(super) control: Control,
    pub(super) producer: Producer,
    pub(super) consumer: Consumer,
    pub(super) receives: VecDeque<Receive>,
    /// Bytes of the message that is arriving.
    arrived: usize,
    pub(super) queue: VecDeque<Work>,
    responses: VecDeque<Response>,
    reads: VecDeque<Reading>,
    /// Packets that the socket has not taken yet.
    pub(super) packets: VecDeque<(Vec<u8>, Option<OwnedFd>)>,
    /// Regions that the peer shares.
    pub(super) regions: PeerRegions,
    pub(super) region_packets_seen: u32,
    /// Regions that this side shares.
    pub(super) shared_regions: SharedRegions,
    /// The deadline of set-up or tear-down.
    pub(super) deadline: Option<Instant>,
    /// The reason for the end; it takes effect once the ring is empty.
    pub(super) end: Option<DisconnectReason>,
    /// True while it is in the adapter's list of connections to scan.
    pub(super) busy: bool,
    /// True while this side's sleep word is set.
    pub(super) asleep: bool,
    /// True while it is in the adapter's list of connections whose peer may need a doorbell.
    pub(super) dirty: bool,
    /// True if records were published since the last check of the peer's sleep word.
    pub(super) published: bool,
    /// True if records were published to a peer that is awake, so that the socket was not checked.
    pub(super) unlooked: bool,
    /// Polls since the last activity.
    pub(super) idle_polls: u32,
}

/// The parts of the adapter that a connection needs to make progress.
pub(super) struct Surroundings<'a> {
    pub(super) regions: &'a mut RegionTable,
    pub(super) ready: &'a mut Vec<Event>,
    /// Regions whose keys messages have invalidated, to be withdrawn from the peers that share
    /// them.
    pub(super) invalidated: &'a mut Vec<RegionId>,
}

impl From<Corrupt> for DisconnectReason {
    fn from(corrupt: Corrupt) -> Self {
        DisconnectReason::Protocol(corrupt.0.to_owned())
    }
}

fn protocol(text: &str) -> DisconnectReason {
    DisconnectReason::Protocol(text.to_owned())
}

/// Calls `then` with the views of `len` bytes of `pieces` after the first `skip`.
fn gather<T>(
    pieces: &[Piece],
    mut skip: usize,
    mut len: usize,
    then: impl FnOnce(&[CheckedSlice<'_>]) -> T,
) -> T {
    let mut views = [CheckedSlice::from_mut(&mut []); GATHER_SEGMENTS_MAX];
    let mut count = 0;
    for piece in pieces {
        let here = piece.len.saturating_sub(skip).min(len);
        if here > 0 {
            // INVARIANT: skip + here <= piece.len by the line above.
            views[count] = piece.view().slice(skip, here).expect("inside the piece");
            count += 1;
        }
        skip = skip.saturating_sub(piece.len);
        len -= here;
    }
    then(&views[..count])
}

impl Conn {
    pub(super) fn new(
        id: EndpointId,
        domain: ProtectionDomain,
        stage: Stage,
        socket: Option<Guarded<Arc<OwnedFd>>>,
        peer: PeerInfo,
        memory: (Control, Producer, Consumer),
    ) -> Self {
        let (control, producer, consumer) = memory;
        Self {
            id,
            domain,
            stage,
            socket,
            _admitted: None,
            peer,
            control,
            producer,
            consumer,
            receives: VecDeque::new(),
            arrived: 0,
            queue: VecDeque::new(),
            responses: VecDeque::new(),
            reads: VecDeque::new(),
            packets: VecDeque::new(),
            regions: PeerRegions::default(),
            region_packets_seen: 0,
            shared_regions: SharedRegions::default(),
            deadline: None,
            end: None,
            busy: false,
            asleep: false,
            dirty: false,
            published: false,
            unlooked: false,
            idle_polls: 0,
        }
    }

    pub(super) fn complete(
        &self,
        ready: &mut Vec<Event>,
        operation: Operation,
        work: u64,
        bytes: usize,
    ) {
        // Lengths were limited to 32 bits when the work was posted.
        self.report(ready, operation, work, WorkStatus::Ok(bytes as u32), None);
    }

    fn report(
        &self,
        ready: &mut Vec<Event>,
        operation: Operation,
        work: u64,
        status: WorkStatus,
        invalidated: Option<u32>,
    ) {
        let endpoint = self.id;
        let completion = Completion { endpoint, work, operation, status, invalidated };
        ready.push(Event::Completion(completion));
    }

    /// True if a poll has work here.
    pub(super) fn has_work(&self) -> bool {
        self.consumer.ready() || self.stalled() || self.end.is_some()
    }

    /// True if work waits for room in the ring.
    pub(super) fn stalled(&self) -> bool {
        !self.queue.is_empty() || !self.responses.is_empty()
    }

    /// True if work that waits for room could be sent now.
    pub(super) fn can_move(&mut self) -> bool {
        let enough = self.producer.ring_bytes() / 4;
        let reads_full = self.reads.len() >= READS_OUTSTANDING_MAX
            && matches!(self.queue.front(), Some(Work::Read { .. }));
        let waits_for_room = !self.responses.is_empty() || (!self.queue.is_empty() && !reads_full);
        waits_for_room && !matches!(self.producer.fits(Kind::Write, enough), Ok(None))
    }

    /// Applies the records that have arrived. Returns true if there were any.
    pub(super) fn take_records(
        &mut self,
        around: &mut Surroundings<'_>,
    ) -> Result<bool, DisconnectReason> {
        if !matches!(self.stage, Stage::Open) {
            return Ok(false);
        }
        for taken in 0..RECORDS_PER_POLL {
            let Some(record) = self.consumer.peek()? else {
                return Ok(taken > 0);
            };
            match record.kind {
                Kind::Message | Kind::MessageInvalidate => self.take_message(&record, around)?,
                Kind::Write => self.take_write(&record, around.regions)?,
                Kind::Read => self.take_read(&record, around.regions)?,
                Kind::ReadData => self.take_read_data(&record, around.ready)?,
            }
            self.consumer.consume(&record);
            #[cfg(test)]
            crate::confine::fault::strike();
        }
        Ok(true)
    }

    fn take_message(
        &mut self,
        record: &Record,
        around: &mut Surroundings<'_>,
    ) -> Result<(), DisconnectReason> {
        let receive = self
            .receives
            .front()
            .ok_or_else(|| protocol("a message arrived and no receive was posted"))?;
        let end = self.arrived + record.len;
        let target = receive
            .piece
            .view()
            .slice(self.arrived, record.len)
            .ok_or_else(|| protocol("a message is larger than the posted receive"))?;
        self.consumer.copy_to(record, target, Site::ShmRingReceive)?;
        self.arrived = end;
        if record.last {
            let work = receive.work;
            let invalidated = match record.kind {
                Kind::MessageInvalidate => Some(self.invalidate(record.words[0], around)?),
                _ => None,
            };
            self.receives.pop_front();
            self.arrived = 0;
            // The receive's length was limited to 32 bits when it was posted.
            let status = WorkStatus::Ok(end as u32);
            self.report(around.ready, Operation::Receive, work, status, invalidated);
        }
        Ok(())
    }

    /// Invalidates the key of a record.
    fn invalidate(
        &self,
        word: u64,
        around: &mut Surroundings<'_>,
    ) -> Result<u32, DisconnectReason> {
        let key = u32::try_from(word).unwrap_or(0);
        let region = around.regions.invalidate(self.domain, key).map_err(|error| {
            protocol(&format!("a message asks to invalidate key {key:#010x}: {error}"))
        })?;
        around.invalidated.push(region);
        Ok(key)
    }

    fn take_write(
        &mut self,
        record: &Record,
        regions: &RegionTable,
    ) -> Result<(), DisconnectReason> {
        let remote = remote_of(record.words[0] as u32, record.words[1], record.len);
        let (_, target) = regions
            .remote(self.domain, remote, Access::REMOTE_WRITE)
            .map_err(|error| protocol(&format!("RDMA write refused: {error}")))?;
        // The buffer records that its memory is inaccessible; that is not the peer's fault.
        let _ = self.consumer.copy_to(record, target, Site::ShmRdma);
        Ok(())
    }

    fn take_read(
        &mut self,
        record: &Record,
        regions: &RegionTable,
    ) -> Result<(), DisconnectReason> {
        if self.responses.len() >= READS_OUTSTANDING_MAX {
            return Err(protocol("more RDMA reads outstanding than allowed"));
        }
        let len = (record.words[0] >> 32) as usize;
        let remote = remote_of(record.words[0] as u32, record.words[1], len);
        let refused = |error| protocol(&format!("RDMA read refused: {error}"));
        let (segment, _) =
            regions.remote(self.domain, remote, Access::REMOTE_READ).map_err(refused)?;
        // INVARIANT: the lookup just succeeded.
        let buffer = regions.buffer(segment.region).expect("a region that was found").clone();
        let piece = Piece { buffer, offset: segment.offset, len: segment.len };
        self.responses.push_back(Response { piece, done: 0 });
        Ok(())
    }

    fn take_read_data(
        &mut self,
        record: &Record,
        ready: &mut Vec<Event>,
    ) -> Result<(), DisconnectReason> {
        let wrong = || protocol("read data that does not fit the read");
        let reading = self.reads.front_mut().ok_or_else(wrong)?;
        let target = reading.sink.view().slice(reading.arrived, record.len).ok_or_else(wrong)?;
        self.consumer.copy_to(record, target, Site::ShmRdma)?;
        reading.arrived += record.len;
        if record.last {
            let (work, len) = (reading.work, reading.arrived);
            if len != reading.sink.len {
                return Err(wrong());
            }
            self.reads.pop_front();
            self.complete(ready, Operation::RdmaRead, work, len);
        }
        Ok(())
    }

    /// The payload size of the next record of a transfer with `left` bytes to go. Returns `None`
    /// when the free room is too small to be worth a record.
    fn chunk(&mut self, kind: Kind, left: usize) -> Result<Option<usize>, Corrupt> {
        let quarter = self.producer.ring_bytes() / 4;
        let room = self.producer.fits(kind, left.min(quarter))?;
        Ok(room.map(|room| left.min(room).min(2 * quarter)))
    }

    /// Writes queued work to the ring as far as it fits. Returns true if any was written.
    pub(super) fn progress(&mut self, ready: &mut Vec<Event>) -> Result<bool, DisconnectReason> {
        if !matches!(self.stage, Stage::Open | Stage::Closing) {
            return Ok(false);
        }
        let mut moved = false;
        while let Some(mut response) = self.responses.pop_front() {
            let (piece, left) = (&response.piece, response.piece.len - response.done);
            let Some(chunk) = self.chunk(Kind::ReadData, left)? else {
                self.responses.push_front(response);
                break;
            };
            gather(std::slice::from_ref(piece), response.done, chunk, |views| {
                self.producer.push(Kind::ReadData, chunk == left, [0; 2], views, Site::ShmRdma)
            })?;
            (moved, self.published) = (true, true);
            response.done += chunk;
            if chunk < left {
                self.responses.push_front(response);
            }
        }
        // Work leaves the queue only after all steps that can fail, so that it is flushed on a
        // failure.
        while let Some(chunk) = self.room()? {
            let Some(work) = self.queue.pop_front() else { break };
            (moved, self.published) = (true, true);
            let (rest, outcome) = self.step(work, chunk, ready);
            if let Some(rest) = rest {
                self.queue.push_front(rest);
            }
            outcome?;
        }
        Ok(moved)
    }

    /// The payload size of the next record for the first work in the queue, if there is work and it
    /// can proceed.
    fn room(&mut self) -> Result<Option<usize>, Corrupt> {
        match self.queue.front() {
            None => Ok(None),
            Some(&Work::Send { total, done, invalidate, .. }) => {
                self.chunk(message_kind(invalidate), total - done)
            }
            Some(&Work::Write { total, done, .. }) => self.chunk(Kind::Write, total - done),
            Some(Work::Read { .. }) if self.reads.len() >= READS_OUTSTANDING_MAX => Ok(None),
            Some(Work::Read { .. }) => self.producer.fits(Kind::Read, 0),
        }
    }

    /// Writes one record for `work`, with `chunk` bytes of payload unless it is a read. Returns the
    /// rest of the work: all of it if its memory is no longer accessible.
    fn step(
        &mut self,
        work: Work,
        chunk: usize,
        ready: &mut Vec<Event>,
    ) -> (Option<Work>, Result<(), Inaccessible>) {
        match work {
            Work::Send { work, pieces, total, mut done, invalidate } => {
                let left = total - done;
                let (kind, words) = (message_kind(invalidate), message_words(invalidate));
                let pushed = gather(&pieces, done, chunk, |views| {
                    self.producer.push(kind, chunk == left, words, views, Site::ShmRingSend)
                });
                if chunk < left || pushed.is_err() {
                    done += if pushed.is_ok() { chunk } else { 0 };
                    return (Some(Work::Send { work, pieces, total, done, invalidate }), pushed);
                }
                self.complete(ready, Operation::Send, work, total);
            }
            Work::Write { work, pieces, total, mut done, remote } => {
                let left = total - done;
                let words = [u64::from(remote.key), remote.address.wrapping_add(done as u64)];
                let pushed = gather(&pieces, done, chunk, |views| {
                    self.producer.push(Kind::Write, chunk == left, words, views, Site::ShmRdma)
                });
                if chunk < left || pushed.is_err() {
                    done += if pushed.is_ok() { chunk } else { 0 };
                    return (Some(Work::Write { work, pieces, total, done, remote }), pushed);
                }
                self.complete(ready, Operation::RdmaWrite, work, total);
            }
            Work::Read { work, sink, remote } => {
                let words = [u64::from(remote.len) << 32 | u64::from(remote.key), remote.address];
                let pushed = self.producer.push(Kind::Read, true, words, &[], Site::ShmRdma);
                self.reads.push_back(Reading { work, sink, arrived: 0 });
                return (None, pushed);
            }
        }
        (None, Ok(()))
    }

    /// Completes all posted work as flushed.
    pub(super) fn flush(&mut self, ready: &mut Vec<Event>) {
        self.flush_receives(ready);
        self.flush_reads(ready);
        self.responses.clear();
        for work in std::mem::take(&mut self.queue) {
            let (operation, work) = match work {
                Work::Send { work, .. } => (Operation::Send, work),
                Work::Write { work, .. } => (Operation::RdmaWrite, work),
                Work::Read { work, .. } => (Operation::RdmaRead, work),
            };
            self.flushed(ready, operation, work);
        }
    }

    fn flushed(&self, ready: &mut Vec<Event>, operation: Operation, work: u64) {
        self.report(ready, operation, work, WorkStatus::Flushed, None);
    }

    fn flush_receives(&mut self, ready: &mut Vec<Event>) {
        for receive in std::mem::take(&mut self.receives) {
            self.flushed(ready, Operation::Receive, receive.work);
        }
    }

    fn flush_reads(&mut self, ready: &mut Vec<Event>) {
        for reading in std::mem::take(&mut self.reads) {
            self.flushed(ready, Operation::RdmaRead, reading.work);
        }
    }

    /// Starts a graceful end: only work that can still be sent stays queued.
    pub(super) fn close(&mut self, ready: &mut Vec<Event>) {
        self.stage = Stage::Closing;
        self.flush_receives(ready);
        self.flush_reads(ready);
        self.responses.clear();
        for work in std::mem::take(&mut self.queue) {
            match work {
                Work::Read { work, .. } => self.flushed(ready, Operation::RdmaRead, work),
                other => self.queue.push_back(other),
            }
        }
    }
}

/// The kind of the records of a message.
pub(super) fn message_kind(invalidate: Option<u32>) -> Kind {
    match invalidate {
        Some(_) => Kind::MessageInvalidate,
        None => Kind::Message,
    }
}

/// The control words of the records of a message.
pub(super) fn message_words(invalidate: Option<u32>) -> [u64; WORDS_MAX] {
    [invalidate.map_or(0, u64::from), 0]
}

/// A range that a record names; a length above 32 bits fits no region.
fn remote_of(key: u32, address: u64, len: usize) -> RemoteBuffer {
    RemoteBuffer { key, address, len: u32::try_from(len).unwrap_or(u32::MAX) }
}
