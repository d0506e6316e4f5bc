//! Replies: the destination of each part.
//!
//! Bulk data with a write chunk is written there, unless it lies there already. The rest is sent
//! inline, or written to the reply chunk if it does not fit a message.
//!
//! Invariants
//! * RDMA writes are posted before the reply that announces their data.
//! * A reply that fits nowhere becomes an RDMA_ERROR, and the connection continues.

use super::connection::Ending;
use super::layout::cut;
use super::link::Context;
use crate::answer::AnswerTo;
use crate::call_chunks::CallChunks;
use crate::handler::Handler;
use crate::memory::Block;
use crate::reply::{Part, PieceData, Rejection, Reply};
use dafs_dat::{LocalSegment, RegisterError};
use dafs_mem::{Site, VolatileSlice};
use dafs_wire::rpcrdma::{Body, Chunk, Chunks, Header, HeaderFault, Segment};
use smallvec::SmallVec;
use std::sync::Arc;

/// The local parts of a reply that are written by RDMA.
type Locals = SmallVec<[LocalSegment; 4]>;

impl<H: Handler> Context<'_, H> {
    /// Answers a call with these chunks.
    pub(super) fn answer(
        &mut self,
        to: AnswerTo,
        answer: Result<Reply, Rejection>,
        call_chunks: Option<Arc<CallChunks>>,
    ) {
        self.connection.credits.end();
        if !self.connection.is_closing() {
            self.grant();
            let xid = to.xid;
            let reply = to.complete(answer);
            if let Err(ending) = self.send_reply(xid, reply, call_chunks.as_ref()) {
                self.fail(ending);
            }
        }
        if let Some(call_chunks) = call_chunks {
            self.core.keep(call_chunks);
        }
    }

    fn send_reply(
        &mut self,
        xid: u32,
        reply: Reply,
        call_chunks: Option<&Arc<CallChunks>>,
    ) -> Result<(), Ending> {
        // Results of another call, from a reply cache, do not know this call's chunks.
        let placed = call_chunks.is_some_and(|call_chunks| reply.is_for(call_chunks));
        let mut stream_bytes = 0;
        reply.message(placed, |part| stream_bytes += part.len());
        let mut chunks = Chunks::default();
        for (number, sink) in
            call_chunks.map_or(&[][..], |call_chunks| &call_chunks.sinks).iter().enumerate()
        {
            let own = reply.placed().find(|(sink, _)| placed && *sink == number);
            chunks.writes.push(filled(&sink.chunk, own.map_or(0, |(_, data)| data.len())));
        }
        let room = call_chunks.and_then(|call_chunks| call_chunks.reply.as_ref());
        chunks.reply = room.map(|chunk| filled(chunk, 0));
        let credits = self.connection.credits.granted();
        let mut header = Header { xid, credits, body: Body::Message(chunks) };
        let fits = |header: &Header, bytes| {
            header.encoded_bytes() + bytes <= self.connection.send_bytes_max
        };
        let inline = fits(&header, stream_bytes);
        if !inline {
            let long = room.filter(|room| stream_bytes as u64 <= room.len());
            let (Some(room), true) = (long, fits(&header, 0)) else {
                tracing::debug!(
                    peer = %self.connection.peer, bytes = stream_bytes,
                    "a reply does not fit where its caller wants it"
                );
                return self.send_error(xid, HeaderFault::Chunk);
            };
            if let Body::Message(mut chunks) = header.body {
                chunks.reply = Some(filled(room, stream_bytes));
                header.body = Body::NoMessage(chunks);
            }
        }
        let invalidate = call_chunks.and_then(|call_chunks| call_chunks.invalidate);
        let out = self.begin_message()?;
        if let Some(call_chunks) = call_chunks
            && placed
        {
            self.write_placed(out, &reply, call_chunks)?;
        }
        if !inline && let Some(room) = room {
            self.write_stream(out, &reply, placed, room, stream_bytes)?;
        }
        self.send(out, &header, invalidate, |space| {
            if inline {
                copy_message(&reply, placed, space);
            }
        })?;
        self.keep_until_sent(out, reply);
        Ok(())
    }

    /// Writes the bulk data that has a write chunk.
    fn write_placed(
        &mut self,
        out: u32,
        reply: &Reply,
        call_chunks: &CallChunks,
    ) -> Result<(), Ending> {
        for (sink, data) in reply.placed() {
            let (PieceData::Block(block), Some(sink)) = (data, call_chunks.sinks.get(sink)) else {
                // The data lies there already.
                continue;
            };
            let local = self.source(out, block, 0..block.filled());
            let local = self.or_end(out, local)?;
            let remote = cut(&sink.chunk.segments, 0, block.filled());
            let written = self.write(out, &[local], remote);
            self.or_end(out, written)?;
        }
        Ok(())
    }

    /// Writes the whole reply, without data in write chunks, to the reply chunk.
    fn write_stream(
        &mut self,
        out: u32,
        reply: &Reply,
        placed: bool,
        room: &Chunk,
        stream_bytes: usize,
    ) -> Result<(), Ending> {
        let mut copied_bytes = 0;
        reply.message(placed, |part| copied_bytes += part.bytes_to_copy());
        let copied = Block::new(copied_bytes).map_err(RegisterError::from);
        let mut copied = self.or_end(out, copied)?;
        let mut pieces: SmallVec<[(std::ops::Range<usize>, Option<&Block>); 4]> = SmallVec::new();
        reply.message(placed, |part| match part {
            Part::Piece(PieceData::Block(block)) => pieces.push((0..block.filled(), Some(block))),
            other => {
                let at = copied.filled();
                let len = other.bytes_to_copy();
                other.copy_to(copied.space(len));
                copied.fill(len);
                pieces.push((at..at + len, None));
            }
        });
        let mut locals = Locals::new();
        let mut own = None;
        for (range, block) in pieces {
            if range.is_empty() {
                continue;
            }
            let local = match (block, own) {
                (Some(block), _) => self.source(out, block, range),
                (None, Some(region)) => {
                    Ok(LocalSegment { region, offset: range.start, len: range.len() })
                }
                (None, None) => self.source(out, &copied, range),
            };
            let local = self.or_end(out, local)?;
            if block.is_none() {
                own = Some(local.region);
            }
            locals.push(local);
        }
        if let Some(outgoing) = self.link.outgoing.get_mut(out) {
            outgoing.copied = Some(copied);
        }
        let written = self.write(out, &locals, cut(&room.segments, 0, stream_bytes));
        self.or_end(out, written)
    }
}

/// A chunk as a reply returns it, with the written lengths.
fn filled(chunk: &Chunk, bytes: usize) -> Chunk {
    let mut left = bytes;
    let fill = |segment: &Segment| {
        let length = left.min(segment.length as usize);
        left -= length;
        Segment { length: length as u32, ..*segment }
    };
    Chunk { segments: chunk.segments.iter().map(fill).collect() }
}

fn copy_message(reply: &Reply, placed: bool, space: &mut Vec<u8>) {
    reply.message(placed, |part| match part {
        Part::Head(bytes) => space.extend_from_slice(bytes),
        Part::Piece(data) => {
            let at = space.len();
            space.resize(at + data.len(), 0);
            match data {
                PieceData::Block(block) => {
                    let place = VolatileSlice::from_mut(&mut space[at..]);
                    place.copy_from(block.bytes(), Site::RpcRdmaMessage)
                }
                PieceData::Placed(window, _) => {
                    window.view().copy_to(&mut space[at..], Site::RpcRdmaMessage)
                }
            };
        }
    });
}

impl Part<'_> {
    fn len(&self) -> usize {
        match self {
            Part::Head(bytes) => bytes.len(),
            Part::Piece(data) => data.len(),
        }
    }

    /// Bytes that do not lie in memory to write from.
    fn bytes_to_copy(&self) -> usize {
        match self {
            Part::Piece(PieceData::Block(_)) => 0,
            other => other.len(),
        }
    }

    fn copy_to(&self, space: VolatileSlice<'_>) {
        match self {
            Part::Head(bytes) => space.copy_from(bytes, Site::RpcRdmaMessage),
            Part::Piece(PieceData::Placed(window, _)) => {
                space.copy_from_volatile(window.view(), Site::RpcRdmaMessage)
            }
            Part::Piece(PieceData::Block(_)) => 0,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returned_chunks_tell_what_was_written() {
        let segment = |length| Segment { handle: 1, length, offset: 0 };
        let chunk =
            Chunk { segments: [segment(10), segment(20), segment(30)].into_iter().collect() };
        let lengths = |bytes| {
            let chunk = filled(&chunk, bytes);
            chunk.segments.iter().map(|segment| segment.length).collect::<Vec<_>>()
        };
        assert_eq!(lengths(0), [0, 0, 0]);
        assert_eq!(lengths(25), [10, 15, 0]);
        assert_eq!(lengths(60), [10, 20, 30]);
    }
}
