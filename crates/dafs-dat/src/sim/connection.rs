//! One connection: two byte streams of framed operations.
//!
//! Invariants
//! * Within one direction pieces arrive in the order in which they left.
//! * Bytes leave local memory piece by piece when they are transmitted, not when the work is
//!   posted. So memory that is reused before its completion shows as wrong data.
//! * A closed side has no posted work left and reports no more events.

use super::limits::HEADER_BYTES;
use crate::types::{Completion, EndpointId, PrivateData, ProtectionDomain, RemoteBuffer};
use crate::{DisconnectReason, Instant};
use dafs_mem::{Buffer, Site, VolatileSlice};
use std::collections::VecDeque;
use std::sync::Arc;

/// One end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// The end that called `connect`.
    Connector,
    /// The end that listens.
    Acceptor,
}

impl Side {
    pub(super) const BOTH: [Side; 2] = [Side::Connector, Side::Acceptor];

    pub(super) fn other(self) -> Side {
        match self {
            Side::Connector => Side::Acceptor,
            Side::Acceptor => Side::Connector,
        }
    }
}

/// Memory of posted work; it keeps its buffer alive after the region has ended.
#[derive(Debug, Clone)]
pub(super) struct Memory {
    pub(super) buffer: Arc<Buffer>,
    pub(super) offset: usize,
    pub(super) len: usize,
}

impl Memory {
    /// The part of at most `len` bytes from `offset`.
    pub(super) fn view(&self, offset: usize, len: usize) -> Option<VolatileSlice<'_>> {
        self.buffer.slice(self.offset, self.len)?.slice(offset, len)
    }
}

/// Appends `len` bytes from position `from` of the gathered `segments` to `bytes`.
pub(super) fn gather(segments: &[Memory], mut from: usize, mut len: usize, bytes: &mut Vec<u8>) {
    for segment in segments {
        if from >= segment.len {
            from -= segment.len;
            continue;
        }
        let part = len.min(segment.len - from);
        if let Some(view) = segment.view(from, part) {
            bytes.extend_from_slice(&view.to_vec(Site::Sim));
        }
        len -= part;
        from = 0;
        if len == 0 {
            return;
        }
    }
}

/// A posted receive.
#[derive(Debug)]
pub(super) struct Receive {
    pub(super) work: u64,
    pub(super) memory: Memory,
}

/// A posted RDMA read that waits for its response.
#[derive(Debug)]
pub(super) struct PendingRead {
    pub(super) work: u64,
    pub(super) memory: Memory,
}

/// The effect of a frame.
#[derive(Debug, Clone)]
pub(super) enum Verb {
    /// A message for the peer's next receive; also the key of the peer that it invalidates.
    Send(Option<u32>),
    /// Bytes for the peer's memory.
    Write(RemoteBuffer),
    /// A request to read the peer's memory.
    ReadRequest(RemoteBuffer),
    /// The response to the oldest request of the peer.
    ReadResponse(RemoteBuffer),
    /// A graceful end.
    Close,
}

/// One operation that waits to be transmitted.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) verb: Verb,
    /// The work tag to complete when the last byte has been transmitted.
    pub(super) work: Option<u64>,
    pub(super) segments: Vec<Memory>,
    /// Payload bytes on the stream.
    pub(super) payload: usize,
}

/// A part of a frame in flight.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) at: Instant,
    pub(super) verb: Verb,
    pub(super) offset: usize,
    pub(super) bytes: Vec<u8>,
    /// Payload of the whole frame.
    pub(super) total: usize,
    pub(super) first: bool,
    pub(super) last: bool,
}

impl Piece {
    pub(super) fn stream_bytes(&self) -> u64 {
        self.bytes.len() as u64 + if self.first { HEADER_BYTES } else { 0 }
    }

    /// The part of the piece that remains when only `stream_bytes` of it get through.
    pub(super) fn truncated(mut self, stream_bytes: u64) -> Option<Piece> {
        if stream_bytes >= self.stream_bytes() {
            return Some(self);
        }
        let header = if self.first { HEADER_BYTES } else { 0 };
        let keep = stream_bytes.checked_sub(header)? as usize;
        self.bytes.truncate(keep);
        self.last = false;
        Some(self)
    }
}

/// One direction, seen from its sender.
#[derive(Debug, Default)]
pub(super) struct Line {
    /// Posted but held back until the adapter is flushed or polled.
    pub(super) held: VecDeque<Frame>,
    /// Waiting to be transmitted; the first one may be in transmission.
    pub(super) queue: VecDeque<Frame>,
    /// Transmitted payload of the first frame.
    pub(super) head_sent: usize,
    /// True if the header of the first frame has been transmitted.
    pub(super) head_begun: bool,
    pub(super) flight: VecDeque<Piece>,
    /// Bytes transmitted since the connection was established.
    pub(super) position: u64,
    /// The byte after which the connection is lost.
    pub(super) cut: Option<u64>,
    pub(super) last_arrival: Instant,
    pub(super) transmit_scheduled: bool,
    /// Transmitted work that is not yet reported.
    pub(super) done: VecDeque<Completion>,
}

/// The state of one side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Waits for an answer (connector) or for the application's decision (acceptor).
    Opening,
    /// May send.
    Up,
    /// Has started a graceful end.
    Closing,
    /// Has reported its last event.
    Closed,
}

/// One side of a connection.
#[derive(Debug)]
pub(super) struct Half {
    /// Index of the adapter.
    pub(super) port: usize,
    pub(super) endpoint: Option<EndpointId>,
    pub(super) domain: ProtectionDomain,
    pub(super) stage: Stage,
    pub(super) receives: VecDeque<Receive>,
    /// The receive into which a message is being placed.
    pub(super) current: Option<Receive>,
    pub(super) reads: VecDeque<PendingRead>,
    /// The outgoing direction of this side.
    pub(super) line: Line,
    /// The acceptor may not send before it has received a frame (the connector sends first).
    pub(super) may_speak: bool,
    /// The reason that the side will report when it notices the loss of the connection.
    pub(super) reason: Option<DisconnectReason>,
}

impl Half {
    pub(super) fn new(port: usize, domain: ProtectionDomain, may_speak: bool) -> Self {
        Self {
            port,
            endpoint: None,
            domain,
            stage: Stage::Opening,
            receives: VecDeque::new(),
            current: None,
            reads: VecDeque::new(),
            line: Line::default(),
            may_speak,
            reason: None,
        }
    }

    /// Outstanding work, without receives.
    pub(super) fn outstanding(&self) -> usize {
        let line = &self.line;
        line.held.len() + line.queue.len() + line.done.len() + self.reads.len()
    }
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) id: u64,
    pub(super) halves: [Half; 2],
    /// The link is lost; the sides may not know yet.
    pub(super) lost: bool,
    /// True if the application has answered the request.
    pub(super) answered: bool,
    pub(super) request_data: PrivateData,
    pub(super) answer_data: PrivateData,
}

impl Connection {
    pub(super) fn half(&self, side: Side) -> &Half {
        &self.halves[side as usize]
    }

    pub(super) fn half_mut(&mut self, side: Side) -> &mut Half {
        &mut self.halves[side as usize]
    }

    /// True when both sides have reported their last event.
    pub(super) fn is_over(&self) -> bool {
        self.halves.iter().all(|half| half.stage == Stage::Closed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(first: bool, payload: usize) -> Piece {
        let bytes = vec![7; payload];
        Piece {
            at: Instant(0),
            verb: Verb::Send(None),
            offset: 0,
            bytes,
            total: payload,
            first,
            last: true,
        }
    }

    #[test]
    fn a_cut_leaves_exactly_the_prefix() {
        assert!(piece(true, 10).truncated(HEADER_BYTES - 1).is_none());
        let header_only = piece(true, 10).truncated(HEADER_BYTES).unwrap();
        assert!(header_only.bytes.is_empty() && !header_only.last);
        let part = piece(true, 10).truncated(HEADER_BYTES + 9).unwrap();
        assert!(part.bytes.len() == 9 && !part.last);
        let whole = piece(true, 10).truncated(HEADER_BYTES + 10).unwrap();
        assert!(whole.bytes.len() == 10 && whole.last);
        assert_eq!(piece(false, 10).truncated(4).unwrap().bytes.len(), 4);
    }

    #[test]
    fn gathering_crosses_segments() {
        let buffer = Arc::new(Buffer::zeroed(10).unwrap());
        buffer.view().copy_from(b"0123456789", Site::Inspect);
        let part = |offset, len| Memory { buffer: buffer.clone(), offset, len };
        let segments = [part(8, 2), part(0, 0), part(0, 5)];
        let mut bytes = Vec::new();
        gather(&segments, 1, 4, &mut bytes);
        assert_eq!(bytes, b"9012");
    }
}
