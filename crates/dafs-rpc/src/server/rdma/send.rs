//! Replies and other messages on their way to a peer.
//!
//! Invariants
//! * Receives are posted before the message that grants them; data is written before the reply that
//!   tells of it is sent.
//! * A reply that fits nowhere is an RDMA_ERROR, and the connection lives on.
//! * What a message is sent or written from is kept until all of its work is over.

use super::connection::Ending;
use super::layout::cut;
use super::link::{Context, Tag};
use crate::exchange::Exchange;
use crate::handler::Handler;
use crate::limits::{RDMA_RECEIVE_BYTES_MAX, RDMA_SENDS_PER_CREDIT, RDMA_WORK_BYTES};
use crate::memory::Block;
use crate::reply::{Part, PieceData, Rejection, Reply};
use crate::server::group::add;
use dafs_dat::{
    Access, GATHER_SEGMENTS_MAX, LocalSegment, PostError, RegionId, RegisterError, RemoteBuffer,
};
use dafs_mem::{Site, VolatileSlice};
use dafs_wire::rpcrdma::{Body, Chunk, Chunks, Header, HeaderFault, Segment};
use dafs_wire::xdr::{Encode, Encoder};
use smallvec::SmallVec;
use std::sync::Arc;

/// A message on its way, and the writes that go before it.
#[derive(Debug)]
pub(super) struct Outgoing {
    slot: u32,
    /// Bulk data that is being written, and what else is.
    reply: Option<Reply>,
    copied: Option<Block>,
    regions: SmallVec<[RegionId; 2]>,
    /// Work that is not over.
    remaining: u32,
    held_bytes: usize,
}

/// The parts of a reply that are not sent with it.
type Locals = SmallVec<[LocalSegment; 4]>;

impl<H: Handler> Context<'_, H> {
    /// Answers a call that came with these chunks.
    pub(super) fn answer(
        &mut self,
        xid: u32,
        answer: Result<Reply, Rejection>,
        exchange: Option<Arc<Exchange>>,
    ) {
        self.connection.credits.end();
        if !self.connection.is_closing() {
            self.grant();
            let reply = match answer {
                Ok(mut reply) => {
                    reply.seal(xid);
                    reply
                }
                Err(rejection) => Reply::refusal(&rejection.header(xid)),
            };
            if let Err(ending) = self.send_reply(xid, reply, exchange.as_deref(), exchange.as_ref())
            {
                self.fail(ending);
            }
        }
        if let Some(exchange) = exchange {
            self.core.keep(exchange);
        }
    }

    /// Says that a message could not be handled.
    pub(super) fn refuse(&mut self, xid: u32, fault: HeaderFault) {
        self.connection.credits.end();
        self.grant();
        if let Err(ending) = self.send_error(xid, fault) {
            self.fail(ending);
        }
    }

    fn send_error(&mut self, xid: u32, fault: HeaderFault) -> Result<(), Ending> {
        add(&self.core.counters().rdma_errors, 1);
        let credits = self.connection.credits.granted();
        let header = Header { xid, credits, body: Body::Error(fault) };
        let out = self.begin_message()?;
        self.send(out, &header, None, |_| {})
    }

    /// Posts what a message to be sent next may grant.
    fn grant(&mut self) {
        let aim = self.connection.credits.aim(self.core.shared.config.rdma_credits_max);
        let inline_bytes = self.core.shared.config.rdma_inline_bytes;
        let roomy = self.core.receive_slots * inline_bytes < RDMA_RECEIVE_BYTES_MAX;
        if aim > self.connection.credits.granted() && roomy {
            self.connection.credits.raise(aim);
        }
        self.post_receives();
    }

    /// Posts the receives that are missing.
    pub(super) fn post_receives(&mut self) {
        if self.connection.is_closing() {
            return;
        }
        let config = &self.core.shared.config;
        let missing = self.connection.credits.missing() as usize;
        for left in (1..=missing).rev() {
            let receives = &mut self.connection.receives;
            let adapter = &mut *self.link.adapter;
            let mut slot = receives.take();
            if slot.is_none() {
                let grown =
                    receives.grow(adapter, self.link.domain, left, config.rdma_inline_bytes);
                if let Err(error) = grown {
                    return self.fail(error);
                }
                self.core.receive_slots += left;
                slot = receives.take();
            }
            let Some((slot, segment)) = slot else { return };
            let work = Tag::Receive(slot).pack();
            if let Err(error) = adapter.post_receive(self.connection.endpoint, work, segment) {
                receives.give_back(slot);
                return self.fail(error);
            }
            self.connection.credits.post();
        }
    }

    fn send_reply(
        &mut self,
        xid: u32,
        mut reply: Reply,
        exchange: Option<&Exchange>,
        shared: Option<&Arc<Exchange>>,
    ) -> Result<(), Ending> {
        // Results that were made for another call know nothing of this one's chunks.
        let placed = shared.is_some_and(|exchange| reply.is_for(exchange));
        let mut stream_bytes = 0;
        reply.message(placed, |part| stream_bytes += part.len());
        let mut chunks = Chunks::default();
        for (number, sink) in
            exchange.map_or(&[][..], |exchange| &exchange.sinks).iter().enumerate()
        {
            let own = reply.placed().find(|(sink, _)| placed && *sink == number);
            chunks.writes.push(filled(&sink.chunk, own.map_or(0, |(_, data)| data.len())));
        }
        let room = exchange.and_then(|exchange| exchange.reply.as_ref());
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
        let invalidate = exchange.and_then(|exchange| exchange.invalidate);
        let out = self.begin_message()?;
        if let Some(exchange) = exchange
            && placed
        {
            self.write_placed(out, &reply, exchange)?;
        }
        if !inline && let Some(room) = room {
            self.write_stream(out, &reply, placed, room, stream_bytes)?;
        }
        self.send(out, &header, invalidate, |space| {
            if inline {
                copy_message(&reply, placed, space);
            }
        })?;
        let held_bytes = match self.link.outgoing.get_mut(out) {
            Some(outgoing) if !outgoing.regions.is_empty() => {
                let held_bytes = reply.held_bytes()
                    + outgoing.copied.as_ref().map_or(0, Block::capacity)
                    + outgoing.remaining as usize * RDMA_WORK_BYTES;
                outgoing.held_bytes += held_bytes;
                // The memory of the chunks is for the next call.
                reply.forget_exchange();
                outgoing.reply = Some(reply);
                held_bytes
            }
            _ => 0,
        };
        self.hold(held_bytes);
        Ok(())
    }

    /// Takes what a message needs.
    pub(super) fn begin_message(&mut self) -> Result<u32, Ending> {
        let sends_max = RDMA_SENDS_PER_CREDIT.saturating_mul(self.connection.credits.granted() + 4);
        if self.connection.sends >= sends_max {
            return Err(Ending::Unread);
        }
        let slot = self.link.sends.take(&mut *self.link.adapter)?;
        if self.connection.sends == 0 {
            self.connection.sends_since_ns = self.core.now_ns;
        }
        self.connection.sends += 1;
        let held_bytes = self.link.sends.slot_bytes();
        let outgoing = Outgoing {
            slot,
            reply: None,
            copied: None,
            regions: SmallVec::new(),
            remaining: 0,
            held_bytes,
        };
        self.hold(held_bytes);
        Ok(self.link.outgoing.insert(outgoing))
    }

    /// Writes the bulk data that has a place at the caller.
    fn write_placed(&mut self, out: u32, reply: &Reply, exchange: &Exchange) -> Result<(), Ending> {
        for (sink, data) in reply.placed() {
            let (PieceData::Block(block), Some(sink)) = (data, exchange.sinks.get(sink)) else {
                // It is there already.
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

    /// Writes the whole reply, but for what was placed, to the reply chunk.
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

    /// Registers a block to write from it.
    fn source(
        &mut self,
        out: u32,
        block: &Block,
        range: std::ops::Range<usize>,
    ) -> Result<LocalSegment, Ending> {
        // INVARIANT: only a block that is being dropped has no memory.
        let Some(buffer) = block.lend() else { return Err(PostError::Region.into()) };
        let access = Access::empty();
        let region = self.link.adapter.register(self.link.domain, buffer.clone(), access)?;
        if let Some(outgoing) = self.link.outgoing.get_mut(out) {
            outgoing.regions.push(region.id);
        }
        Ok(region.local(range.start, range.len()))
    }

    /// Writes local memory to the pieces of the peer's, which are as long together.
    fn write(
        &mut self,
        out: u32,
        locals: &[LocalSegment],
        remotes: impl Iterator<Item = RemoteBuffer>,
    ) -> Result<(), Ending> {
        let mut locals = locals.iter().copied();
        let mut rest: Option<LocalSegment> = None;
        for mut remote in remotes {
            while remote.len > 0 {
                let mut gathered: SmallVec<[LocalSegment; GATHER_SEGMENTS_MAX]> = SmallVec::new();
                let mut bytes = 0;
                while gathered.len() < GATHER_SEGMENTS_MAX && bytes < remote.len as usize {
                    let Some(local) = rest.take().or_else(|| locals.next()) else { break };
                    let len = local.len.min(remote.len as usize - bytes);
                    gathered.push(LocalSegment { len, ..local });
                    bytes += len;
                    if len < local.len {
                        let (offset, len) = (local.offset + len, local.len - len);
                        rest = Some(LocalSegment { offset, len, ..local });
                    }
                }
                if bytes == 0 {
                    debug_assert!(false, "less is written than was said");
                    return Ok(());
                }
                let now = RemoteBuffer { len: bytes as u32, ..remote };
                let (endpoint, work) = (self.connection.endpoint, Tag::Out(out).pack());
                self.link.adapter.rdma_write(endpoint, work, &gathered, now)?;
                self.posted(out);
                add(&self.core.counters().rdma_writes, 1);
                add(&self.core.counters().rdma_written_bytes, bytes as u64);
                remote.address = remote.address.wrapping_add(bytes as u64);
                remote.len -= bytes as u32;
            }
        }
        Ok(())
    }

    /// Sends a message: the header and what `fill` appends to it.
    pub(super) fn send(
        &mut self,
        out: u32,
        header: &Header,
        invalidate: Option<u32>,
        fill: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), Ending> {
        let mut scratch = std::mem::take(&mut self.core.scratch);
        scratch.clear();
        header.encode(&mut Encoder::new(&mut scratch));
        fill(&mut scratch);
        let sent = self.post_message(out, &scratch, invalidate);
        self.core.scratch = scratch;
        self.or_end(out, sent.map_err(Ending::from))
    }

    fn post_message(
        &mut self,
        out: u32,
        message: &[u8],
        invalidate: Option<u32>,
    ) -> Result<(), PostError> {
        let Some(&mut Outgoing { slot, .. }) = self.link.outgoing.get_mut(out) else {
            return Err(PostError::Region);
        };
        let space = self.link.sends.bytes_mut(slot);
        let Some(space) = space.get_mut(..message.len()) else { return Err(PostError::Length) };
        space.copy_from_slice(message);
        let segments = [self.link.sends.segment(slot, message.len())];
        let (endpoint, work) = (self.connection.endpoint, Tag::Out(out).pack());
        let adapter = &mut self.link.adapter;
        match invalidate {
            Some(key) => adapter.post_send_invalidate(endpoint, work, &segments, key)?,
            None => adapter.post_send(endpoint, work, &segments)?,
        }
        self.posted(out);
        add(&self.core.counters().sent_bytes, message.len() as u64);
        Ok(())
    }

    fn posted(&mut self, out: u32) {
        if let Some(outgoing) = self.link.outgoing.get_mut(out) {
            outgoing.remaining += 1;
        }
    }

    /// Passes a result on; after a failure, a message of which nothing was posted is over.
    fn or_end<T, E: Into<Ending>>(&mut self, out: u32, result: Result<T, E>) -> Result<T, Ending> {
        result.map_err(|error| {
            if self.link.outgoing.get_mut(out).is_some_and(|out| out.remaining == 0) {
                self.message_over(out);
            }
            error.into()
        })
    }

    /// A piece of work of a message is over.
    pub(super) fn sent_part(&mut self, out: u32) {
        self.connection.sends_since_ns = self.core.now_ns;
        let Some(outgoing) = self.link.outgoing.get_mut(out) else { return };
        debug_assert!(outgoing.remaining > 0, "work that nobody waits for");
        outgoing.remaining = outgoing.remaining.saturating_sub(1);
        if outgoing.remaining == 0 {
            self.message_over(out);
        }
    }

    fn message_over(&mut self, out: u32) {
        let Some(mut outgoing) = self.link.outgoing.remove(out) else { return };
        for region in outgoing.regions.drain(..) {
            self.link.adapter.deregister(region);
        }
        outgoing.copied.iter().for_each(Block::take_back);
        outgoing.reply.iter().for_each(Reply::take_back);
        self.link.sends.give_back(outgoing.slot);
        self.connection.sends -= 1;
        self.release(outgoing.held_bytes);
    }
}

/// A chunk as a reply returns it: with the lengths that were written.
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
        Part::Piece(PieceData::Block(block)) => space.extend_from_slice(block.bytes()),
        Part::Piece(PieceData::Placed(window, len)) => {
            let at = space.len();
            space.resize(at + len, 0);
            window.view().copy_to(&mut space[at..], Site::RpcRdmaMessage);
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

    /// Bytes that are not in memory to write from.
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
