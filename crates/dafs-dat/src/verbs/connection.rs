//! One connection: its queue pair, its work in the device, and its queued work.
//!
//! Invariants
//! * The device completes sends and writes in order, reads in order, and receives in order. A send
//!   may complete before an earlier read, as Linux siw does. So its work is three queues whose
//!   fronts complete first, and the number of each request names its queue.
//! * Work holds its registrations until it has completed or its queue pair is destroyed.
//! * The device never has more work than the queue pair, and its share of the completion queue, can
//!   hold.

use super::cm::CmId;
use super::ffi;
use super::memory::Held;
use super::plan::{self, Requests, Span};
use super::qp::{CHAIN_COUNT_MAX, Depths, SendRequest};
use super::sys::Domain;
use super::teardown::End;
use crate::iwarp::opening::{Due, Opening};
use crate::{Instant, Operation, ProtectionDomain, RegionId, RemoteBuffer};
use dafs_mem::Buffer;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// The state of a connection.
#[derive(Debug)]
pub(super) enum Stage {
    /// The address and the route are being resolved, or the request was sent.
    Connecting,
    /// `accept` was called. The next turn sends the answer, so that receives posted meanwhile exist
    /// before the peer's first message.
    Accepting,
    /// The answer was sent.
    Accepted,
    Open,
    /// The device flushes its work.
    Ending(End),
}

/// A timeout that starts with the next turn.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadline {
    pub(super) timeout: Duration,
    pub(super) at: Option<Instant>,
}

impl Deadline {
    pub(super) fn after(timeout: Duration) -> Self {
        Self { timeout, at: None }
    }

    /// Starts the timeout if it has not started; returns true when it has expired.
    pub(super) fn is_over(&mut self, now: Instant) -> bool {
        now >= *self.at.get_or_insert(now + self.timeout)
    }
}

/// The report of completed work, and the resources that it needs until then.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) work: u64,
    pub(super) operation: Operation,
    pub(super) len: u32,
    pub(super) _held: SmallVec<[Held; 2]>,
    /// A staging block to return to the adapter.
    pub(super) staging: Option<Arc<Buffer>>,
}

/// A work request that waits for room in the device.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) request: SendRequest,
    /// Set for the last request of its work.
    pub(super) done: Option<Done>,
}

#[derive(Debug)]
pub(super) struct Receive {
    pub(super) work: u64,
    pub(super) segment: Option<ffi::ibv_sge>,
    pub(super) _held: Option<Held>,
}

/// One of the queues of a connection's work in the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lane {
    /// Sends and RDMA writes.
    Send,
    Receive,
    /// RDMA reads.
    Read,
}

impl Lane {
    /// The lane of a request to the device.
    pub(super) fn of(opcode: i32) -> Self {
        if opcode == ffi::WR_RDMA_READ { Lane::Read } else { Lane::Send }
    }

    /// The number of a connection's requests in this lane.
    pub(super) fn number(self, connection: u64) -> u64 {
        let lane = match self {
            Lane::Send => 0,
            Lane::Receive => 1,
            Lane::Read => 2,
        };
        connection << 2 | lane
    }

    /// The connection and the lane of a number.
    pub(super) fn split(number: u64) -> (u64, Self) {
        let lane = match number & 3 {
            0 => Lane::Send,
            1 => Lane::Receive,
            _ => Lane::Read,
        };
        (number >> 2, lane)
    }
}

/// A connection of this adapter, from `connect` or `accept` on.
#[derive(Debug)]
pub(super) struct Connection {
    // Dropped first: the device must release the memory before it is freed.
    pub(super) cm: CmId,
    pub(super) id: u64,
    pub(super) peer: SocketAddr,
    pub(super) domain: ProtectionDomain,
    pub(super) is_initiator: bool,
    pub(super) stage: Stage,
    /// The private data for the peer, as the connection manager takes it.
    pub(super) private_data: Vec<u8>,
    pub(super) inbound_reads: u8,
    pub(super) outbound_reads: u8,
    /// The completion queue of the queue pair, once there is one.
    pub(super) queue: Option<usize>,
    pub(super) depths: Depths,
    /// True if a system call informs the device of work.
    pub(super) is_written: bool,
    pub(super) waiting: VecDeque<Waiting>,
    /// Sends and writes in the device.
    pub(super) sends: VecDeque<Option<Done>>,
    /// Reads in the device.
    pub(super) reads: VecDeque<Option<Done>>,
    pub(super) receives: VecDeque<Receive>,
    /// `disconnect` was called; the connection ends when all work is posted.
    pub(super) closing: bool,
    /// True while it is in the list of those with work to post.
    pub(super) dirty: bool,
    pub(super) deadline: Deadline,
    /// The state of a cautious opening: siw may miss the first message at either end.
    pub(super) opening: Opening,
    /// True once the device got any work.
    pub(super) has_said: bool,
    /// True once a message of the peer has arrived.
    pub(super) has_heard: bool,
    /// The regions that are granted to the peer.
    pub(super) grants: Vec<RegionId>,
    /// The domain of the queue pair, if no other connection has it. Then work registers its memory there.
    pub(super) own_domain: Option<Arc<Domain>>,
}

impl Connection {
    pub(super) fn is_open(&self) -> bool {
        matches!(self.stage, Stage::Open)
    }

    /// True if posting is still possible.
    pub(super) fn is_usable(&self) -> bool {
        !self.closing && !matches!(self.stage, Stage::Ending(_))
    }

    /// True if no deadline applies.
    pub(super) fn is_settled(&self) -> bool {
        self.is_open() && !self.closing && self.opening == Opening::Done
    }

    /// True if the device has no work left.
    pub(super) fn is_drained(&self) -> bool {
        self.sends.is_empty() && self.reads.is_empty() && self.receives.is_empty()
    }

    /// True if all sends, writes and reads have completed.
    pub(super) fn is_sent(&self) -> bool {
        self.sends.is_empty() && self.reads.is_empty() && self.waiting.is_empty()
    }

    /// The number of sends, writes and reads in the device.
    pub(super) fn posted_count(&self) -> usize {
        self.sends.len() + self.reads.len()
    }

    /// Posts a receive, or keeps it until there is a queue pair.
    pub(super) fn post_receive(&mut self, receive: Receive) -> io::Result<()> {
        if self.queue.is_some() {
            self.cm.post_receive(Lane::Receive.number(self.id), receive.segment)?;
        }
        self.receives.push_back(receive);
        Ok(())
    }

    /// Posts the receives that were kept until there was a queue pair.
    pub(super) fn post_kept_receives(&mut self) -> io::Result<()> {
        for receive in &self.receives {
            self.cm.post_receive(Lane::Receive.number(self.id), receive.segment)?;
        }
        Ok(())
    }

    /// Handles the timer of a cautious opening: the peer, or the own device, may have missed a
    /// message. A further arrival makes it look: a zero-length write at the peer, the response to a
    /// zero-length read here. Neither names memory.
    pub(super) fn go_on_opening(&mut self) {
        let said = self.has_said || !self.is_initiator;
        if self.opening.timer_ran_out(said, self.has_heard) == Due::Nudge {
            tracing::debug!(peer = %self.peer, "no word yet; sending an empty RDMA request");
            let nothing = RemoteBuffer { key: 0, address: 0, len: 0 };
            let nowhere = Span { address: 0, len: 0, key: 0, may_be_unmapped: false };
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

    /// Posts waiting requests, as far as there is room.
    pub(super) fn post_waiting(&mut self) -> io::Result<()> {
        if self.opening.is_held() {
            return Ok(());
        }
        loop {
            // One slot stays free: siw reports a completion a moment before it frees the slot.
            let room = (self.depths.sends as usize).saturating_sub(1 + self.posted_count());
            let count = room.min(CHAIN_COUNT_MAX).min(self.waiting.len());
            if count == 0 {
                return Ok(());
            }
            let posted = {
                let requests = self.waiting.iter_mut().take(count);
                let mut chain: SmallVec<[&mut SendRequest; CHAIN_COUNT_MAX]> =
                    requests.map(|waiting| &mut waiting.request).collect();
                self.cm.post_sends(self.id, &mut chain, self.is_written)
            };
            self.has_said |= posted.count > 0;
            for Waiting { request, done } in self.waiting.drain(..posted.count) {
                match Lane::of(request.opcode) {
                    Lane::Read => self.reads.push_back(done),
                    Lane::Send | Lane::Receive => self.sends.push_back(done),
                }
            }
            if let Some(error) = posted.error {
                return Err(error);
            }
        }
    }
}
