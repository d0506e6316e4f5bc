//! The second connection of a session: its messages, its receives, and the order of the server's
//! calls (DAFS 7 with roles reversed).
//!
//! Invariants
//! * Before the client offers credits it posts a receive for each of them, and one for the reply to
//!   the offer; before it answers a call it posts a receive for the next one.
//! * A call that is out of sequence, or on a stream with an unanswered call, is never carried out.

use crate::core::failure::Failure;
use crate::core::messages::MessagePool;
use crate::core::proofs::ProofChannel;
use crate::limits::{BACK_CREDITS, MESSAGE_BYTES_MIN};
use dafs_dat::{Adapter, EndpointId, Instant, ProtectionDomain};
use dafs_wire::dafs::RequestHeader;

/// Messages of this channel are short, so they are the shortest that a server may be offered.
pub(super) const MESSAGE_BYTES: usize = MESSAGE_BYTES_MIN as usize;

/// Send slots beyond those for answers: a slot is free again when its completion has been polled,
/// which may be after the server's next call.
const SPARE_SENDS: usize = 16;

/// The phases of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// It is being made.
    Dialing,
    /// CONNECT_BIND has been sent.
    Binding,
    /// The server may call.
    Bound,
}

#[derive(Debug, Clone, Copy, Default)]
struct Stream {
    /// The number of the last call; streams begin at 1.
    last: u16,
    /// The call has not been answered.
    in_hand: bool,
}

/// The connection.
#[derive(Debug)]
pub(super) struct Channel {
    pub(super) endpoint: EndpointId,
    pub(super) phase: Phase,
    /// The protection of proofs on it, once it is established.
    pub(super) protection: ProofChannel,
    /// The timeout of the attempt to bind the channel.
    pub(super) due: Instant,
    /// The sending time of CONNECT_BIND.
    pub(super) asked_at: Instant,
    /// The time when it was bound.
    pub(super) bound_at: Instant,
    pub(super) sends: MessagePool,
    pub(super) receives: MessagePool,
    /// Bytes that the server may write into the client's memory for batches.
    pub(super) expected_bytes: u64,
    streams: Vec<Stream>,
}

impl Channel {
    pub(super) fn new(domain: ProtectionDomain, endpoint: EndpointId, due: Instant) -> Self {
        let credits = usize::from(BACK_CREDITS);
        Self {
            endpoint,
            phase: Phase::Dialing,
            protection: ProofChannel::default(),
            due,
            asked_at: due,
            bound_at: due,
            sends: MessagePool::new(domain, MESSAGE_BYTES, credits + SPARE_SENDS),
            receives: MessagePool::new(domain, MESSAGE_BYTES, credits + 1),
            expected_bytes: 0,
            streams: Vec::new(),
        }
    }

    /// Posts a receive.
    pub(super) fn post_receive(&mut self, adapter: &mut dyn Adapter) -> Result<(), Failure> {
        let slot = self.receives.take(adapter)?;
        let slot = slot.ok_or_else(|| Failure::memory("the message pool is used up"))?;
        let segment = self.receives.segment(slot, MESSAGE_BYTES);
        adapter.post_receive(self.endpoint, slot.into(), segment).map_err(Failure::lost)
    }

    pub(super) fn send(
        &mut self,
        adapter: &mut dyn Adapter,
        message: &[u8],
    ) -> Result<(), Failure> {
        let slot = self.sends.take(adapter)?;
        let slot = slot.ok_or_else(|| Failure::lost("the server does not take its answers"))?;
        self.sends.store(slot, message);
        let segment = self.sends.segment(slot, message.len());
        adapter.post_send(self.endpoint, slot.into(), &[segment]).map_err(Failure::lost)
    }

    /// The message of `bytes` bytes in a receive slot, which is freed.
    pub(super) fn take_message(&mut self, slot: u32, bytes: usize) -> Result<Vec<u8>, Failure> {
        let mut message = vec![0; bytes.min(MESSAGE_BYTES)];
        self.receives.fetch(slot, &mut message);
        self.receives.put(slot);
        if bytes > MESSAGE_BYTES {
            return Err(Failure::protocol("a call is longer than its receive"));
        }
        Ok(message)
    }

    /// The channel is bound: the server may have `credits` calls outstanding.
    pub(super) fn bound(&mut self, credits: u16, now: Instant) {
        self.phase = Phase::Bound;
        self.bound_at = now;
        self.streams = vec![Stream::default(); usize::from(credits)];
    }

    /// The credits that every answer grants.
    pub(super) fn credits(&self) -> u16 {
        self.streams.len() as u16
    }

    /// Begins a call.
    pub(super) fn begin(&mut self, header: &RequestHeader) -> Result<(), Failure> {
        let (number, sequence) = (header.stream_id, header.seq_number);
        let Some(stream) = self.streams.get_mut(usize::from(number)) else {
            return Err(Failure::protocol(format_args!(
                "the server calls on stream {number}, for which it has no credit"
            )));
        };
        if stream.in_hand || sequence != stream.last.wrapping_add(1) {
            return Err(Failure::protocol(format_args!(
                "the server's call number {sequence} on stream {number} comes out of turn"
            )));
        }
        *stream = Stream { last: sequence, in_hand: true };
        Ok(())
    }

    /// Ends a call, which is being answered.
    pub(super) fn end(&mut self, header: &RequestHeader) {
        if let Some(stream) = self.streams.get_mut(usize::from(header.stream_id)) {
            stream.in_hand = false;
        }
    }

    /// Ends the connection at once; afterwards no data of the server reaches this process over it.
    pub(super) fn cut(mut self, adapter: &mut dyn Adapter) {
        adapter.abort(self.endpoint);
        self.sends.release(adapter);
        self.receives.release(adapter);
    }
}
