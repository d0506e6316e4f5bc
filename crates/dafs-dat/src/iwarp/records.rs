//! TLS records of a connection, protected in user space: the part of a record whose rest has not
//! come, sealed bytes that the socket has not taken, and their work.
//!
//! Invariants
//! * FPDUs are sealed whole, into records that no FPDU straddles. So the receiver places a segment
//!   as soon as its record is open.
//! * Sealed bytes leave before any others, and completely.
//! * Work is reported when the kernel has its last record, in the order in which it was sealed.
//! * A connection keeps less than one record of received bytes, and less than one block of sealed
//!   ones. It keeps received ones only while its peer pauses inside a record, and sealed ones only
//!   while its socket is full.

use super::limits::IDLE_QUEUE_CAPACITY;
use super::receive::Receiver;
use super::transmit::{Chunk, Finished, Progress, SendFailure, Transmitter};
use crate::RegionTable;
use crate::tls::{ServerTls, Trusted, now_seconds};
use dafs_mem::{Site, VolatileSlice, count_copy};
use dafs_tls::{
    Alert, Channel, Distrust, End, HEADER_BYTES, OVERHEAD_BYTES, OpenError, Opened, Opener,
    PLAIN_BYTES_MAX, Peer, RECORD_BYTES_MAX, SealError, Sealer, ServerSide, TrafficKeys,
    sealed_bytes,
};
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

/// Bytes of the block in which the connections of an adapter seal and open records, one connection
/// at a time: one record whose rest has not come, and eight more.
pub(super) const BLOCK_BYTES: usize = 9 * RECORD_BYTES_MAX;

/// The records of a connection.
#[derive(Debug)]
pub(super) struct Records {
    sealer: Sealer,
    opener: Opener,
    /// A part of a received record.
    kept: Vec<u8>,
    /// Sealed bytes, of which `sent` have left.
    rest: Vec<u8>,
    sent: usize,
    /// Sealed bytes of FPDUs that have left since the beginning.
    left_bytes: u64,
    /// Sealed work, with the value of `left_bytes` at which its last record has left.
    leaving: VecDeque<(u64, Finished)>,
    /// The client whose certificate must stay trusted.
    pub(super) client: Option<Box<Client>>,
    /// The server whose certificate must stay trusted.
    pub(super) server: Option<Box<Trusted>>,
}

/// A client whose certificate was verified.
#[derive(Debug)]
pub(super) struct Client {
    peer: Peer,
    host: Arc<ServerTls>,
    /// The generation of the configuration that has judged it last.
    generation: u64,
    /// The second, since 1970, after which it is judged again.
    ends_seconds: u64,
}

impl Client {
    pub(super) fn new(peer: Peer, host: Arc<ServerTls>, generation: u64) -> Self {
        let ends_seconds = peer.ends_seconds(now_seconds());
        Self { peer, host, generation, ends_seconds }
    }

    /// Judges the certificate again if there is doubt.
    pub(super) fn check(&mut self) -> Result<(), Distrust> {
        let (side, now_seconds) = (self.host.side(), now_seconds());
        if self.is_in_doubt(&side, now_seconds) { self.judge(&side, now_seconds) } else { Ok(()) }
    }

    /// True if the certificate must be judged again, because of the files or the time.
    pub(super) fn is_in_doubt(&self, side: &ServerSide, now_seconds: u64) -> bool {
        now_seconds > self.ends_seconds || self.generation < side.trust_generation()
    }

    /// Judges the certificate again.
    pub(super) fn judge(&mut self, side: &ServerSide, now_seconds: u64) -> Result<(), Distrust> {
        side.still_trusts(&self.peer, now_seconds)?;
        self.generation = side.generation();
        self.ends_seconds = self.peer.ends_seconds(now_seconds);
        Ok(())
    }
}

impl Records {
    pub(super) fn new(keys: TrafficKeys) -> Self {
        let Channel { sealer, opener } = Channel::new(keys);
        Self {
            sealer,
            opener,
            kept: Vec::new(),
            rest: Vec::new(),
            sent: 0,
            left_bytes: 0,
            leaving: VecDeque::new(),
            client: None,
            server: None,
        }
    }

    /// Records in the direction that has more of them.
    pub(super) fn count(&self) -> u64 {
        self.sealer.records().max(self.opener.records())
    }

    /// Reads one record of the set-up, and not a byte more. Appends its data, which is the bytes of
    /// frames. Returns zero at the end of the stream.
    pub(super) fn read_setup(
        &mut self,
        mut stream: &TcpStream,
        frame: &mut Vec<u8>,
    ) -> io::Result<usize> {
        loop {
            let have = self.kept.len();
            let need = Opener::record_bytes(&self.kept).map_err(io::Error::other)?;
            let need = need.unwrap_or(HEADER_BYTES);
            if have < need {
                self.kept.resize(need, 0);
                let result = stream.read(&mut self.kept[have..]);
                self.kept.truncate(have + *result.as_ref().unwrap_or(&0));
                if result? == 0 {
                    return Ok(0);
                }
                continue;
            }
            let mut record = std::mem::take(&mut self.kept);
            match self.opener.open(&mut record).map_err(io::Error::other)? {
                Opened::Data(plain) => {
                    frame.extend_from_slice(plain);
                    return Ok(plain.len());
                }
                Opened::Nothing => {}
                Opened::Closed => return Ok(0),
            }
        }
    }

    /// Seals a short message: a frame of the set-up, or a Terminate. Only when no sealed bytes wait.
    pub(super) fn seal_short(&mut self, plain: &[u8]) -> Result<Vec<u8>, SealError> {
        debug_assert!(self.rest.is_empty(), "records overtake others");
        let mut sealed = vec![0; sealed_bytes(plain.len())];
        self.sealer.seal(&[plain], &mut sealed)?;
        Ok(sealed)
    }

    /// Makes the last record: close_notify or an alert. `None` if another one has left in part.
    pub(super) fn close(&mut self, alert: Alert) -> Option<[u8; OVERHEAD_BYTES + 2]> {
        if self.rest.is_empty() { self.sealer.close(alert).ok() } else { None }
    }

    /// True while sealed bytes wait for the socket.
    pub(super) fn is_pending(&self) -> bool {
        !self.rest.is_empty()
    }

    /// Puts the kept part of a record in front of the bytes that were read behind the first
    /// `RECORD_BYTES_MAX` bytes of the block. Returns where it begins.
    pub(super) fn put_kept(&mut self, block: &mut [u8]) -> usize {
        let start = RECORD_BYTES_MAX - self.kept.len();
        block[start..RECORD_BYTES_MAX].copy_from_slice(&self.kept);
        count_copy(Site::IwarpTlsReceive, self.kept.len());
        self.kept = Vec::new();
        start
    }

    /// Keeps the part of a record.
    pub(super) fn keep(&mut self, part: &[u8]) {
        debug_assert!(part.len() < RECORD_BYTES_MAX && self.kept.is_empty());
        self.kept = part.to_vec();
        count_copy(Site::IwarpTlsReceive, part.len());
    }

    /// Opens the record at the front of `stream` in its place, if it is whole; returns its bytes
    /// and its content.
    pub(super) fn open<'a>(
        &mut self,
        stream: &'a mut [u8],
    ) -> Result<Option<(usize, Opened<'a>)>, OpenError> {
        let Some(bytes) = Opener::record_bytes(stream)? else { return Ok(None) };
        let Some(record) = stream.get_mut(..bytes) else { return Ok(None) };
        Ok(Some((bytes, self.opener.open(record)?)))
    }

    /// Judges the end of the stream.
    pub(super) fn end(&self) -> End {
        self.opener.end(self.kept.len())
    }

    /// Sends sealed bytes; the socket's rest waits. Appends work whose last record has left.
    fn send(
        &mut self,
        mut stream: &TcpStream,
        sealed: &[u8],
        finished: &mut Vec<Finished>,
    ) -> io::Result<()> {
        let sent = match stream.write(sealed) {
            Err(error) if is_passing(&error) => 0,
            sent => sent?,
        };
        self.rest = sealed[sent..].to_vec();
        count_copy(Site::IwarpTlsSend, self.rest.len());
        self.note_left(sent, finished);
        Ok(())
    }

    /// Sends the rest; true if no sealed bytes wait any more.
    fn send_rest(
        &mut self,
        mut stream: &TcpStream,
        finished: &mut Vec<Finished>,
    ) -> io::Result<bool> {
        while self.sent < self.rest.len() {
            match stream.write(&self.rest[self.sent..]) {
                Ok(sent) => {
                    self.sent += sent;
                    self.note_left(sent, finished);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        (self.rest, self.sent) = (Vec::new(), 0);
        Ok(true)
    }

    /// Moves the work whose last record has left with these bytes.
    fn note_left(&mut self, bytes: usize, finished: &mut Vec<Finished>) {
        self.left_bytes += bytes as u64;
        while let Some(&(end, done)) = self.leaving.front()
            && end <= self.left_bytes
        {
            self.leaving.pop_front();
            finished.push(done);
        }
    }

    /// Takes back the work whose last record has not left; no more is sent.
    pub(super) fn flush(&mut self, finished: &mut Vec<Finished>) {
        finished.extend(self.leaving.drain(..).map(|(_, done)| done));
    }
}

pub(super) fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

impl Transmitter {
    /// Does as [`pump`](Self::pump), through TLS.
    pub(super) fn pump_sealed(
        &mut self,
        (records, block): (&mut Records, &mut [u8]),
        stream: &TcpStream,
        (table, receiver): (&RegionTable, &mut Receiver),
        finished: &mut Vec<Finished>,
        budget_bytes: usize,
    ) -> Result<Progress, SendFailure> {
        let mut sent = 0;
        loop {
            if !records.send_rest(stream, finished).map_err(SendFailure::Io)? {
                return Ok(Progress::Blocked);
            }
            if sent >= budget_bytes && !self.is_empty() {
                return Ok(Progress::Budget);
            }
            let (sealed, result) = self.seal(records, block, (table, receiver), finished);
            if sealed > 0 {
                self.note_said();
                records.send(stream, &block[..sealed], finished).map_err(SendFailure::Io)?;
                sent += sealed;
            }
            // The work before the one that failed has left, as far as the socket takes it.
            result?;
            if sealed == 0 {
                self.shrink();
                records.leaving.shrink_to(IDLE_QUEUE_CAPACITY);
                return Ok(Progress::Idle);
            }
        }
    }

    /// Seals FPDUs until the block is full, there are no more, or one fails. Returns the bytes of
    /// the records, which must leave, and the failure. `finished` is as it was.
    fn seal(
        &mut self,
        records: &mut Records,
        block: &mut [u8],
        (table, receiver): (&RegionTable, &mut Receiver),
        finished: &mut Vec<Finished>,
    ) -> (usize, Result<(), SendFailure>) {
        let (mut sealed, before) = (0, finished.len());
        while let Some(room) = block.get_mut(sealed..sealed + PLAIN_BYTES_MAX + OVERHEAD_BYTES) {
            let plain = &mut room[HEADER_BYTES..HEADER_BYTES + PLAIN_BYTES_MAX];
            let (filled, result) = self.fill(plain, (table, receiver), finished);
            if filled > 0 {
                let bytes = filled + OVERHEAD_BYTES;
                let end = records.left_bytes + (sealed + bytes) as u64;
                records.leaving.extend(finished.drain(before..).map(|done| (end, done)));
                if let Err(error) = records.sealer.seal_in_place(&mut room[..bytes]) {
                    return (sealed, Err(SendFailure::Io(io::Error::other(error))));
                }
                sealed += bytes;
            }
            if filled == 0 || result.is_err() {
                return (sealed, result);
            }
        }
        (sealed, Ok(()))
    }

    /// Fills a record with FPDUs until it has no room for the next one, there are no more, or one
    /// fails. Returns their bytes and the failure, and appends the work that ends with them.
    fn fill(
        &mut self,
        plain: &mut [u8],
        (table, receiver): (&RegionTable, &mut Receiver),
        finished: &mut Vec<Finished>,
    ) -> (usize, Result<(), SendFailure>) {
        let mut filled = 0;
        loop {
            // One FPDU at a time.
            if let Err(failure) = self.plan(table, receiver) {
                return (filled, Err(failure));
            }
            let bytes = self.chunks.iter().map(Chunk::len).sum::<usize>();
            let Some(room) = plain.get_mut(filled..filled + bytes).filter(|_| bytes > 0) else {
                return (filled, Ok(()));
            };
            if let Err(failure) = self.gather(room, table) {
                return (filled, Err(failure));
            }
            self.consume(bytes, receiver, finished);
            filled += bytes;
        }
    }

    /// Copies the planned output, as memory may change while it is sealed.
    fn gather(&self, mut out: &mut [u8], table: &RegionTable) -> Result<(), SendFailure> {
        for chunk in &self.chunks {
            let (now, later) = out.split_at_mut(chunk.len());
            if let Chunk::Header { start, end } = *chunk {
                now.copy_from_slice(&self.headers[start..end]);
            } else if let Some(view) = self.payload(chunk, table)? {
                view.copy_to(VolatileSlice::from_mut(now), Site::IwarpTlsSend)
                    .map_err(SendFailure::Inaccessible)?;
            }
            out = later;
        }
        debug_assert!(out.is_empty(), "the planned bytes are those of the chunks");
        Ok(())
    }
}
