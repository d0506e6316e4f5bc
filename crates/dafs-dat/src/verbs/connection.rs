//! One connection: its queue pair, what the device has of its work, and what waits.
//!
//! Invariants
//! * The device completes sends in order, and receives in order, so what it has is two queues whose
//!   fronts complete first.
//! * Work holds the registrations it uses until it has completed or its queue pair is gone.
//! * There is never more with the device than the queue pair, and its share of the completion
//!   queue, can take.

use super::cm::CmId;
use super::memory::Held;
use super::plan::{self, Requests, Span};
use super::qp::{CHAIN_COUNT_MAX, Depths, SendRequest};
use super::teardown::End;
use crate::iwarp::opening::{Due, Opening};
use crate::{Instant, Operation, ProtectionDomain, RemoteBuffer};
use dafs_mem::Buffer;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// How far a connection is.
#[derive(Debug)]
pub(super) enum Stage {
    /// The address and the route to it are being looked up, or the peer has been asked.
    Connecting,
    /// `accept` was called; the peer is told with the next turn, so that receives posted meanwhile
    /// are there before its first message.
    Accepting,
    /// The peer was told.
    Accepted,
    Open,
    /// The device flushes what it has.
    Ending(End),
}

/// A time limit that starts with the next turn.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadline {
    pub(super) timeout: Duration,
    pub(super) at: Option<Instant>,
}

impl Deadline {
    pub(super) fn after(timeout: Duration) -> Self {
        Self { timeout, at: None }
    }

    /// Starts the time if it has not started; tells whether it is up.
    pub(super) fn is_over(&mut self, now: Instant) -> bool {
        now >= *self.at.get_or_insert(now + self.timeout)
    }
}

/// What is reported when work is done, and what it needs until then.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) work: u64,
    pub(super) operation: Operation,
    pub(super) len: u32,
    pub(super) _held: SmallVec<[Held; 2]>,
    /// A block that goes back to the adapter.
    pub(super) staging: Option<Arc<Buffer>>,
}

/// A request to the device that waits for room.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) request: SendRequest,
    /// Of the last request of its work.
    pub(super) done: Option<Done>,
}

/// A receive.
#[derive(Debug)]
pub(super) struct Receive {
    pub(super) work: u64,
    pub(super) segment: Option<super::ffi::ibv_sge>,
    pub(super) _held: Option<Held>,
}

/// A connection of this adapter, from `connect` or `accept` on.
#[derive(Debug)]
pub(super) struct Connection {
    // Dropped first: the device must have let go before the memory does.
    pub(super) cm: CmId,
    pub(super) id: u64,
    pub(super) peer: SocketAddr,
    pub(super) domain: ProtectionDomain,
    pub(super) is_initiator: bool,
    pub(super) stage: Stage,
    /// What the peer is to be told, as the connection manager takes it.
    pub(super) private_data: Vec<u8>,
    pub(super) inbound_reads: u8,
    pub(super) outbound_reads: u8,
    /// The completion queue of the queue pair, once there is one.
    pub(super) queue: Option<usize>,
    pub(super) depths: Depths,
    /// The device is told of work by a system call.
    pub(super) is_written: bool,
    pub(super) waiting: VecDeque<Waiting>,
    pub(super) sends: VecDeque<Option<Done>>,
    pub(super) receives: VecDeque<Receive>,
    /// `disconnect` was called; ends when all is handed over.
    pub(super) closing: bool,
    /// In the list of those with something to hand over.
    pub(super) dirty: bool,
    pub(super) deadline: Deadline,
    /// The care for siw, which may miss the first message at either end.
    pub(super) opening: Opening,
    /// Something was handed to the device.
    pub(super) has_said: bool,
    /// Something of the peer has arrived.
    pub(super) has_heard: bool,
}

impl Connection {
    pub(super) fn is_open(&self) -> bool {
        matches!(self.stage, Stage::Open)
    }

    /// Whether posting still makes sense.
    pub(super) fn is_usable(&self) -> bool {
        !self.closing && !matches!(self.stage, Stage::Ending(_))
    }

    /// Whether it needs no looking after by time.
    pub(super) fn is_settled(&self) -> bool {
        self.is_open() && !self.closing && self.opening == Opening::Done
    }

    /// Whether the device has nothing left.
    pub(super) fn is_drained(&self) -> bool {
        self.sends.is_empty() && self.receives.is_empty()
    }

    /// Whether all sends, writes and reads are done.
    pub(super) fn is_sent(&self) -> bool {
        self.sends.is_empty() && self.waiting.is_empty()
    }

    /// The number under which the device knows receives of this connection; sends have one less.
    pub(super) fn receive_id(id: u64) -> u64 {
        id << 1 | 1
    }

    /// Hands a receive to the device, or keeps it until there is a queue pair.
    pub(super) fn post_receive(&mut self, receive: Receive) -> io::Result<()> {
        if self.queue.is_some() {
            self.cm.post_receive(Self::receive_id(self.id), receive.segment)?;
        }
        self.receives.push_back(receive);
        Ok(())
    }

    /// Hands over the receives that were posted before there was a queue pair.
    pub(super) fn post_kept_receives(&mut self) -> io::Result<()> {
        for receive in &self.receives {
            self.cm.post_receive(Self::receive_id(self.id), receive.segment)?;
        }
        Ok(())
    }

    /// The time of a cautious opening has run out: perhaps the peer or our own device must be made
    /// to look at what it has missed. Either needs something that arrives: a write of nothing at
    /// the peer, the answer to a read of nothing here. Neither names memory.
    pub(super) fn go_on_opening(&mut self) {
        let said = self.has_said || !self.is_initiator;
        if self.opening.timer_ran_out(said, self.has_heard) == Due::Nudge {
            tracing::debug!(peer = %self.peer, "no word yet; sending an empty RDMA request");
            let nothing = RemoteBuffer { key: 0, address: 0, len: 0 };
            let nowhere = Span { address: 0, len: 0, key: 0, may_go: false };
            let requests = match self.is_initiator {
                true => plan::write(&[], nothing, 1),
                false if self.outbound_reads > 0 => plan::read(nowhere, nothing),
                false => Requests::new(),
            };
            self.waiting
                .extend(requests.into_iter().map(|request| Waiting { request, done: None }));
        }
        if let Some(timeout) = self.opening.next_timer() {
            self.deadline = Deadline::after(timeout);
        }
    }

    /// Hands over what waits, as far as there is room.
    pub(super) fn post_waiting(&mut self) -> io::Result<()> {
        if self.opening.is_held() {
            return Ok(());
        }
        loop {
            // One place stays free: siw reports a completion a moment before it frees the place.
            let room = (self.depths.sends as usize).saturating_sub(1 + self.sends.len());
            let count = room.min(CHAIN_COUNT_MAX).min(self.waiting.len());
            if count == 0 {
                return Ok(());
            }
            let posted = {
                let requests = self.waiting.iter_mut().take(count);
                let mut chain: SmallVec<[&mut SendRequest; CHAIN_COUNT_MAX]> =
                    requests.map(|waiting| &mut waiting.request).collect();
                self.cm.post_sends(self.id << 1, &mut chain, self.is_written)
            };
            self.has_said |= posted.count > 0;
            self.sends.extend(self.waiting.drain(..posted.count).map(|waiting| waiting.done));
            if let Some(error) = posted.error {
                return Err(error);
            }
        }
    }
}
