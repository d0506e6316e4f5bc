//! The results of a call: built by a handler, then sent.
//!
//! Invariants
//! * The head begins with room for the record mark, the longest reply header and what protects
//!   results in front, so that all of them are written in place when the reply leaves. The record
//!   begins where they begin; the bytes before are stale and never leave.
//! * Bulk data lies in the head, in a block of its own or in the caller's memory, and is not moved
//!   or copied again.
//! * A reply does not depend on its transport; a cached one can leave over another. A reply to a
//!   call over RDMA also knows the write chunk of each piece.

use crate::call_chunks::{CallChunks, Sink};
use crate::limits::{BULK_IN_HEAD_BYTES_MAX, FRONT_BYTES_MAX, HEAD_BYTES, HEADS_KEPT_MAX};
use crate::memory::{Block, source};
use crate::output::Parts;
use dafs_dat::RemoteWindow;
use dafs_mem::{Site, VolatileSlice};
use dafs_wire::rpc::limits::{FRAGMENT_MARK_BYTES, SUCCESS_HEADER_BYTES};
use dafs_wire::rpc::{AcceptStatus, FragmentMark, RejectStatus, ReplyHeader};
use dafs_wire::xdr::{Encode, Encoder, padded};
use smallvec::SmallVec;
use std::cell::RefCell;
use std::io;
use std::sync::Arc;

/// Offset of the results in the head.
const RESULTS_AT: usize = FRAGMENT_MARK_BYTES + FRONT_BYTES_MAX;

/// Offset of the record of results that follow a header with an empty verifier.
const PLAIN_AT: usize = RESULTS_AT - SUCCESS_HEADER_BYTES - FRAGMENT_MARK_BYTES;

thread_local! {
    static HEADS: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// The results of one call, in XDR.
#[derive(Debug)]
pub struct Reply {
    /// Room, record mark, header and all results that are not in a piece. Empty only while dropped.
    head: Vec<u8>,
    /// Offset of the record mark in the head.
    record_at: usize,
    /// Bulk data between bytes of the head.
    pieces: SmallVec<[Piece; 1]>,
    /// Bytes in `pieces`.
    piece_bytes: usize,
    /// Bulk items so far, including empty ones.
    items: usize,
    /// The call's chunks, for results that use them.
    call_chunks: Option<Arc<CallChunks>>,
}

/// A piece of bulk data.
#[derive(Debug)]
struct Piece {
    /// Bytes of the head before the piece.
    at: usize,
    /// Bytes of the head after the piece that are its padding.
    padding: usize,
    data: PieceData,
    /// The index of its write chunk.
    sink: Option<usize>,
}

#[derive(Debug)]
pub(crate) enum PieceData {
    Block(Block),
    /// The data lies in the first bytes of the caller's memory.
    Placed(RemoteWindow, usize),
}

impl PieceData {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Block(block) => block.filled(),
            Self::Placed(_, len) => *len,
        }
    }
}

/// A part of a record.
pub(crate) enum Part<'a> {
    Head(&'a [u8]),
    Piece(&'a PieceData),
}

/// A position in a [`Reply`] to which it can be truncated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    head: usize,
    pieces: usize,
    piece_bytes: usize,
    items: usize,
}

impl Reply {
    /// Empty results.
    pub fn new() -> Self {
        let pooled = HEADS.try_with(|heads| heads.borrow_mut().pop()).ok().flatten();
        // Zeroed once, so that the whole capacity stays initialised; see `bulk_in_head`.
        let mut head = pooled.unwrap_or_else(|| vec![0; HEAD_BYTES]);
        // The room keeps the bytes of an earlier reply.
        head.resize(RESULTS_AT, 0);
        let (pieces, call_chunks) = (SmallVec::new(), None);
        Self { head, record_at: PLAIN_AT, pieces, piece_bytes: 0, items: 0, call_chunks }
    }

    /// Empty results of a call with these chunks.
    pub(crate) fn for_call_chunks(call_chunks: Option<&Arc<CallChunks>>) -> Self {
        let call_chunks = call_chunks.filter(|call_chunks| !call_chunks.sinks.is_empty()).cloned();
        let mut reply = Self::new();
        reply.call_chunks = call_chunks;
        reply
    }

    /// Results that were kept with [`Reply::to_bytes`].
    pub fn from_bytes(results: &[u8]) -> Self {
        let mut reply = Self::new();
        reply.head.extend_from_slice(results);
        reply
    }

    /// An encoder that appends to the results. Positions of the encoder are valid for later
    /// encoders of this reply, but do not count bulk data and do not start at zero.
    #[inline]
    pub fn encoder(&mut self) -> Encoder<'_> {
        Encoder::new(&mut self.head)
    }

    /// Bytes of results so far, bulk data and padding included.
    #[inline]
    pub fn len(&self) -> usize {
        self.head.len() - RESULTS_AT + self.piece_bytes
    }

    /// True when there are no results.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The end of the results so far.
    #[inline]
    pub fn mark(&self) -> Mark {
        let (pieces, piece_bytes) = (self.pieces.len(), self.piece_bytes);
        Mark { head: self.head.len(), pieces, piece_bytes, items: self.items }
    }

    /// Removes all results after `mark`, which was taken from this reply.
    pub fn truncate_to(&mut self, mark: Mark) {
        debug_assert!(mark.head >= RESULTS_AT && mark.head <= self.head.len());
        self.head.truncate(mark.head.max(RESULTS_AT));
        self.pieces.truncate(mark.pieces);
        self.piece_bytes = mark.piece_bytes;
        self.items = mark.items;
    }

    /// Memory at the end of the results for up to `len_max` bytes of file data. It holds stale
    /// bytes of earlier use; [`BulkSpace::finish`] must cut off those that are not filled. Without
    /// that call the results stay unchanged.
    ///
    /// Over RDMA the data of the first [`BulkSpace::finish`] goes into the caller's first write
    /// chunk, that of the second into the second, and so on. So the handler must call it for each
    /// DDP-eligible item (for NFS RFC 8267), also for an empty one.
    ///
    /// # Errors
    /// When there is no memory.
    pub fn bulk(&mut self, len_max: usize) -> io::Result<BulkSpace<'_>> {
        if let Some(sink) = self.sink(len_max) {
            let memory = match &sink.window {
                Some(window) => Memory::Window(window.clone()),
                None => Memory::Block(Block::new(padded(len_max))?),
            };
            let sink = Some(self.items);
            return Ok(BulkSpace { reply: self, memory, len_max, is_item: true, sink });
        }
        self.space(len_max, true)
    }

    /// The same for data that stays inside the results, because it is not DDP-eligible.
    ///
    /// # Errors
    /// When there is no memory.
    pub fn bulk_here(&mut self, len_max: usize) -> io::Result<BulkSpace<'_>> {
        self.space(len_max, false)
    }

    fn space(&mut self, len_max: usize, is_item: bool) -> io::Result<BulkSpace<'_>> {
        let room = self.head.capacity() - self.head.len();
        // The padding must fit too; otherwise the head would be reallocated under the view.
        let in_head = self.head.capacity() == HEAD_BYTES
            && len_max <= BULK_IN_HEAD_BYTES_MAX
            && padded(len_max) <= room;
        let memory =
            if in_head { Memory::Head } else { Memory::Block(Block::new(padded(len_max))?) };
        Ok(BulkSpace { reply: self, memory, len_max, is_item, sink: None })
    }

    /// The write chunk of the next item, if it has room for `len_max` bytes.
    fn sink(&self, len_max: usize) -> Option<&Sink> {
        let sink = self.call_chunks.as_ref()?.sinks.get(self.items)?;
        (len_max > 0 && len_max <= sink.len_max).then_some(sink)
    }

    /// A copy of the results, for a reply cache. Meant for short results.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len());
        self.visit_results(|part| match part {
            Part::Head(part) => bytes.extend_from_slice(part),
            Part::Piece(PieceData::Block(block)) => bytes.extend_from_slice(block.bytes()),
            Part::Piece(PieceData::Placed(window, len)) => {
                let at = bytes.len();
                bytes.resize(at + len, 0);
                window.view().copy_to(&mut bytes[at..], Site::RpcRdmaMessage);
            }
        });
        bytes
    }

    /// Passes the parts of the results to `see`, in order.
    fn visit_results<'a>(&'a self, see: impl FnMut(Part<'a>)) {
        self.visit_from(RESULTS_AT, see);
    }

    /// Passes the parts of the complete record with its mark to `see`, in order.
    pub(crate) fn visit_record<'a>(&'a self, see: impl FnMut(Part<'a>)) {
        self.visit_from(self.record_at, see);
    }

    /// Passes the parts from byte `from` of the head on to `see`, in order.
    fn visit_from<'a>(&'a self, from: usize, mut see: impl FnMut(Part<'a>)) {
        let mut at = from;
        for piece in &self.pieces {
            see(Part::Head(&self.head[at..piece.at]));
            see(Part::Piece(&piece.data));
            at = piece.at;
        }
        see(Part::Head(&self.head[at..]));
    }

    /// Writes the record mark and the header of a successful reply.
    pub(crate) fn seal(&mut self, xid: u32) {
        let mut bytes = [0; FRAGMENT_MARK_BYTES + SUCCESS_HEADER_BYTES];
        // INVARIANT: results are bounded by memory blocks and heads far below a fragment's limit; a
        // longer one would be announced as empty and make the peer end the connection.
        let mark = FragmentMark::whole(self.len() + SUCCESS_HEADER_BYTES)
            .unwrap_or(FragmentMark { len: 0, last: true });
        bytes[..4].copy_from_slice(&mark.to_bytes());
        bytes[4..8].copy_from_slice(&xid.to_be_bytes());
        // REPLY, accepted with an empty verifier, SUCCESS: all zero but the direction.
        bytes[11] = 1;
        self.record_at = PLAIN_AT;
        self.head[PLAIN_AT..RESULTS_AT].copy_from_slice(&bytes);
    }

    /// Writes `front`, of at most [`FRONT_BYTES_MAX`] bytes, before the results, and the record mark
    /// before it.
    pub(crate) fn set_front(&mut self, front: &[u8]) {
        debug_assert!(front.len() <= FRONT_BYTES_MAX, "a header that is longer than its room");
        let front_at = RESULTS_AT - front.len();
        self.head[front_at..RESULTS_AT].copy_from_slice(front);
        self.record_at = front_at - FRAGMENT_MARK_BYTES;
        self.mark_whole();
    }

    /// Appends bytes that follow the results.
    pub(crate) fn append(&mut self, bytes: &[u8]) {
        self.head.extend_from_slice(bytes);
    }

    /// The parts of the results, in order.
    ///
    /// # Errors
    /// When data lies in the caller's memory, which may change.
    pub(crate) fn results(&self) -> io::Result<SmallVec<[&[u8]; 8]>> {
        let (mut parts, mut is_private) = (SmallVec::new(), true);
        self.visit_results(|part| match part {
            Part::Head(part) => parts.push(part),
            Part::Piece(PieceData::Block(block)) => parts.push(block.bytes()),
            Part::Piece(PieceData::Placed(..)) => is_private = false,
        });
        let refusal = || io::Error::other("results lie in the memory of their caller");
        is_private.then_some(parts).ok_or_else(refusal)
    }

    /// A complete record of a header and a block.
    pub(crate) fn of_block(front: &[u8], block: Block) -> Self {
        let mut reply = Self::new();
        reply.piece_bytes = block.filled();
        let (at, data) = (reply.head.len(), PieceData::Block(block));
        reply.pieces.push(Piece { at, padding: 0, data, sink: None });
        reply.set_front(front);
        reply
    }

    /// A complete record that denies or rejects a call.
    pub(crate) fn refusal(header: &ReplyHeader<'_>) -> Self {
        Self::record(|encoder| header.encode(encoder))
    }

    /// A complete record, such as a callback. `write` encodes all bytes after the record mark.
    pub(crate) fn record(write: impl FnOnce(&mut Encoder<'_>)) -> Self {
        let mut reply = Self::new();
        reply.record_at = RESULTS_AT - FRAGMENT_MARK_BYTES;
        write(&mut Encoder::new(&mut reply.head));
        reply.mark_whole();
        reply
    }

    fn mark_whole(&mut self) {
        let len = self.record_bytes() - FRAGMENT_MARK_BYTES;
        let mark = FragmentMark::whole(len).unwrap_or(FragmentMark { len: 0, last: true });
        self.head[self.record_at..][..FRAGMENT_MARK_BYTES].copy_from_slice(&mark.to_bytes());
    }

    /// Bytes of the complete record with its mark.
    pub(crate) fn record_bytes(&self) -> usize {
        self.head.len() - self.record_at + self.piece_bytes
    }

    /// Memory that the record holds while it is queued.
    pub(crate) fn held_bytes(&self) -> usize {
        let bytes = |piece: &Piece| match &piece.data {
            PieceData::Block(block) => block.capacity(),
            PieceData::Placed(..) => 0,
        };
        self.head.capacity() + self.pieces.iter().map(bytes).sum::<usize>()
    }

    /// True if its bulk data was made for the chunks of this call.
    pub(crate) fn is_for(&self, call_chunks: &Arc<CallChunks>) -> bool {
        self.call_chunks.as_ref().is_some_and(|own| Arc::ptr_eq(own, call_chunks))
    }

    /// Releases the chunks; data in the caller's memory stays there.
    pub(crate) fn forget_call_chunks(&mut self) {
        self.call_chunks = None;
    }

    /// Ends the loans of bulk data to transports.
    pub(crate) fn take_back(&self) {
        for piece in &self.pieces {
            if let PieceData::Block(block) = &piece.data {
                block.take_back();
            }
        }
    }

    /// Bulk data with a write chunk, with the index of the chunk.
    pub(crate) fn placed(&self) -> impl Iterator<Item = (usize, &PieceData)> {
        self.pieces.iter().filter_map(|piece| Some((piece.sink?, &piece.data)))
    }

    /// Passes the parts of the message, without record mark, to `see` in order. With `placed`, data
    /// in write chunks and its padding are left out.
    pub(crate) fn message<'a>(&'a self, placed: bool, mut see: impl FnMut(Part<'a>)) {
        let mut at = self.record_at + FRAGMENT_MARK_BYTES;
        for piece in &self.pieces {
            see(Part::Head(&self.head[at..piece.at]));
            at = piece.at;
            if placed && piece.sink.is_some() {
                at += piece.padding;
            } else {
                see(Part::Piece(&piece.data));
            }
        }
        see(Part::Head(&self.head[at..]));
    }

    /// Appends the parts of the record after its first `skip` bytes to `parts`.
    pub(crate) fn gather<'a>(&'a self, mut skip: usize, parts: &mut Parts<'a>) {
        self.visit_record(|part| {
            let view = match part {
                Part::Head(bytes) => source(bytes),
                Part::Piece(PieceData::Block(block)) => source(block.bytes()),
                Part::Piece(PieceData::Placed(window, _)) => window.view(),
            };
            let len = match part {
                Part::Head(bytes) => bytes.len(),
                Part::Piece(data) => data.len(),
            };
            let skipped = skip.min(len);
            skip -= skipped;
            parts.extend(view.slice(skipped, len - skipped).filter(|part| !part.is_empty()));
        });
    }
}

impl Default for Reply {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        let head = std::mem::take(&mut self.head);
        if head.capacity() == HEAD_BYTES {
            let _ = HEADS.try_with(|heads| {
                let mut heads = heads.borrow_mut();
                if heads.len() < HEADS_KEPT_MAX {
                    heads.push(head);
                }
            });
        }
    }
}

/// Memory for file data at the end of a [`Reply`].
#[derive(Debug)]
pub struct BulkSpace<'r> {
    reply: &'r mut Reply,
    memory: Memory,
    len_max: usize,
    /// True if the data is DDP-eligible.
    is_item: bool,
    /// The index of its write chunk.
    sink: Option<usize>,
}

#[derive(Debug)]
enum Memory {
    /// The spare capacity of the reply's head.
    Head,
    Block(Block),
    /// The caller's mapped memory.
    Window(RemoteWindow),
}

impl BulkSpace<'_> {
    /// Capacity in bytes.
    pub fn len_max(&self) -> usize {
        self.len_max
    }

    /// The memory, for `preadv` and similar calls.
    pub fn view(&mut self) -> VolatileSlice<'_> {
        match &mut self.memory {
            Memory::Head => {}
            Memory::Block(block) => return block.space(self.len_max),
            Memory::Window(window) => {
                let view = window.view().slice(0, self.len_max);
                // INVARIANT: the window is at least `len_max` long.
                return view.unwrap_or_else(|| VolatileSlice::from_mut(&mut []));
            }
        }
        let spare = self.reply.head.spare_capacity_mut();
        debug_assert!(self.len_max <= spare.len());
        let len = self.len_max.min(spare.len());
        // SAFETY: `len` bytes at the start of the spare capacity belong to the head, which is
        // borrowed exclusively for as long as the view lives and is not used meanwhile.
        unsafe { VolatileSlice::new(spare.as_mut_ptr().cast(), len) }
    }

    /// Appends the first `len` bytes of the memory, and their XDR padding, to the results. The
    /// caller writes the count before them.
    pub fn finish(self, len: usize) {
        debug_assert!(len <= self.len_max, "more was filled than there is");
        let len = len.min(self.len_max);
        let padding = &[0; 4][..padded(len) - len];
        let reply = self.reply;
        reply.items += usize::from(self.is_item);
        let data = match self.memory {
            _ if len == 0 => return,
            Memory::Head => {
                let end = reply.head.len() + len;
                // SAFETY: the bytes lie inside the capacity, which `bulk` checked to be the one
                // that the head was made with: its memory has not moved since it was zeroed as a
                // whole.
                unsafe { reply.head.set_len(end) };
                reply.head.extend_from_slice(padding);
                return;
            }
            Memory::Block(mut block) => {
                block.fill(len);
                PieceData::Block(block)
            }
            Memory::Window(window) => PieceData::Placed(window, len),
        };
        reply.piece_bytes += len;
        let (at, padding_bytes) = (reply.head.len(), padding.len());
        reply.pieces.push(Piece { at, padding: padding_bytes, data, sink: self.sink });
        reply.head.extend_from_slice(padding);
    }
}

/// The reason why a call gets no results, as the caller learns it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rejection {
    /// The call was accepted but not executed: no such program or procedure, bad arguments.
    Accept(AcceptStatus),
    /// The call was denied: its credential is not sufficient.
    Reject(RejectStatus),
}

impl Rejection {
    pub(crate) fn header(self, xid: u32) -> ReplyHeader<'static> {
        match self {
            Self::Accept(status) => ReplyHeader::accepted(xid, status),
            Self::Reject(status) => ReplyHeader::denied(xid, status),
        }
    }
}

#[cfg(test)]
mod tests;
