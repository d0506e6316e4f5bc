//! Incoming messages. The client checks here all that a server sends before it uses any of it.

use super::super::base::Base;
use super::Connection;
use super::call::{Offered, State};
use crate::client::core::results;
use crate::client::error::CallError;
use crate::memory::Block;
use crate::record::Record;
use dafs_mem::{Site, VolatileSlice};
use dafs_wire::rpc::{Direction, peek};
use dafs_wire::rpcrdma::{Body, Chunk, Chunks, Header, HeaderFault};
use dafs_wire::xdr::MovedItem;
use smallvec::SmallVec;
use std::io;
use std::thread::Thread;

/// The location of a reply's RPC message.
enum Message {
    /// In the block, from this offset on.
    Inline(Block, usize),
    /// In the reply chunk.
    Long,
}

/// The data that a server has placed.
struct Placed {
    moved: SmallVec<[MovedItem; 2]>,
    reply_bytes: usize,
}

impl Connection {
    /// Handles the message of `bytes` bytes in a receive slot.
    ///
    /// # Errors
    /// The violation in the message; the connection must end.
    pub(super) fn take_message(
        &mut self,
        base: &mut Base,
        slot: u32,
        bytes: usize,
    ) -> Result<(), String> {
        let message = private_copy(self.receives.view(slot), bytes, Site::RpcRdmaInline)
            .map_err(|error| error.to_string())?;
        self.post_receive(base, slot)?;
        let (header, at) = Header::decode(message.bytes()).map_err(|error| error.to_string())?;
        match header.body {
            Body::Message(chunks) => {
                let rpc = &message.bytes()[at..];
                let (xid, direction) = peek(rpc).map_err(|error| error.to_string())?;
                if xid != header.xid {
                    return Err("a message has two transaction numbers".to_owned());
                }
                match direction {
                    Direction::Call => self.take_call(base, xid, rpc, &chunks),
                    Direction::Reply => {
                        let message = Message::Inline(message, at);
                        self.take_reply(base, xid, header.credits, &chunks, message)
                    }
                }
            }
            // Only a call that does not fit a message has read chunks; a reply has none.
            Body::NoMessage(chunks) if !chunks.reads.is_empty() => {
                self.refuse_call(base, header.xid)
            }
            Body::NoMessage(chunks) => {
                self.take_reply(base, header.xid, header.credits, &chunks, Message::Long)
            }
            Body::Error(HeaderFault::Version { low, high }) => Err(format!(
                "the server speaks versions {low} to {high} of RPC-over-RDMA, this side version 1"
            )),
            Body::Error(HeaderFault::Chunk) => {
                if self.is_sent(header.xid) {
                    self.grant(header.credits);
                    self.finish(base, header.xid, |_, _| Err(CallError::Chunks));
                }
                Ok(())
            }
            // RDMA_DONE is obsolete and has no effect (RFC 8166 section 4.5).
            Body::Done => Ok(()),
        }
    }

    fn is_sent(&self, xid: u32) -> bool {
        self.calls.get(&xid).is_some_and(|call| matches!(call.state, State::Sent))
    }

    /// Takes the server's credit grant. Zero credits would deadlock the connection, so they count
    /// as one (RFC 8166 section 3.3.1).
    fn grant(&mut self, credits: u32) {
        self.credits = credits.clamp(1, self.credits_wanted);
    }

    fn take_reply(
        &mut self,
        base: &mut Base,
        xid: u32,
        credits: u32,
        chunks: &Chunks,
        message: Message,
    ) -> Result<(), String> {
        let Some(call) = self.calls.get(&xid).filter(|call| matches!(call.state, State::Sent))
        else {
            // No call is outstanding under this XID.
            return Ok(());
        };
        let placed = validate(&call.offered, chunks)?;
        if matches!(message, Message::Long) && placed.reply_bytes == 0 {
            return Err("a reply without a message has no reply chunk either".to_owned());
        }
        let is_raw = call.is_raw;
        self.grant(credits);
        self.finish(base, xid, |_, offered| {
            let (block, start) = match message {
                Message::Inline(block, start) => (block, start),
                Message::Long => (long_reply(offered, xid, placed.reply_bytes)?, 0),
            };
            let mut results = results(Record::Block(block), start, is_raw)?;
            results.place(placed.moved);
            Ok(results)
        });
        Ok(())
    }

    /// Ends a call that was at the server.
    fn finish(
        &mut self,
        base: &mut Base,
        xid: u32,
        outcome: impl FnOnce(&mut Base, &Offered) -> Result<crate::client::Results, CallError>,
    ) {
        let Some(call) = self.calls.get_mut(&xid) else { return };
        let offered = std::mem::take(&mut call.offered);
        self.ended += 1;
        if call.is_abandoned {
            self.calls.remove(&xid);
        } else {
            call.state = State::Over(outcome(base, &offered));
            call.waiter.take().iter().for_each(Thread::unpark);
        }
        self.in_flight -= 1;
        let expected = offered.expected_bytes();
        offered.release(base);
        self.expect(base, 0, expected);
        self.pump(base);
    }
}

/// A private copy of the message in the reply chunk; the server cannot reach the copy.
fn long_reply(offered: &Offered, xid: u32, bytes: usize) -> Result<Block, CallError> {
    // INVARIANT: `validate` finds bytes of a reply chunk only where one was offered.
    let memory = offered.long_reply.as_ref().ok_or(CallError::Malformed)?;
    let copy = private_copy(memory.view(), bytes, Site::RpcRdmaLong);
    let copy = copy.map_err(|error| CallError::NoMemory(error.kind()))?;
    match peek(copy.bytes()) {
        Ok((rpc_xid, Direction::Reply)) if rpc_xid == xid => Ok(copy),
        _ => Err(CallError::Malformed),
    }
}

/// A private copy of the first `len` bytes of memory that others may write; a shorter memory is
/// copied whole.
fn private_copy(view: VolatileSlice<'_>, len: usize, site: Site) -> io::Result<Block> {
    let len = len.min(view.len());
    let mut block = Block::new(len)?;
    let copied = match view.slice(0, len) {
        Some(view) => block.space(len).copy_from_volatile(view, site),
        None => 0,
    };
    block.fill(copied);
    Ok(block)
}

/// Checks the chunks that a server returns against those that the client offered.
fn validate(offered: &Offered, chunks: &Chunks) -> Result<Placed, String> {
    if !chunks.reads.is_empty() {
        return Err("a reply names memory to be read".to_owned());
    }
    if chunks.writes.len() > offered.sinks.len() {
        return Err("a reply has more write chunks than the call".to_owned());
    }
    let mut moved = SmallVec::new();
    for (index, sink) in offered.sinks.iter().enumerate() {
        let len = chunks.writes.get(index).map_or(Ok(0), |chunk| placed(chunk, sink.len()))?;
        moved.push(MovedItem { at: None, len });
    }
    let room = offered.long_reply.as_ref().map_or(0, |memory| memory.len());
    let reply_bytes = chunks.reply.as_ref().map_or(Ok(0), |chunk| placed(chunk, room))?;
    Ok(Placed { moved, reply_bytes })
}

/// Returns the bytes that a server reports in a chunk: one segment, at most `room` bytes.
fn placed(chunk: &Chunk, room: usize) -> Result<usize, String> {
    let len = chunk.len();
    match usize::try_from(len) {
        Ok(len) if len <= room && chunk.segments.len() <= 1 => Ok(len),
        _ => Err(format!(
            "a chunk of {room} bytes in one segment came back as {len} bytes in {}",
            chunk.segments.len()
        )),
    }
}
