//! One TCP connection with its receiver and its transmitter.
//!
//! Invariants
//! * The responder sends no FPDU before the initiator's first one has arrived. The initiator delays
//!   its first FPDU to a peer of another implementation (`opening`).
//! * A turn ends when the socket is drained or full, or after `TURN_BYTES`.
//! * When a send fails because the peer is gone, this side still receives and reports earlier data
//!   of the peer: a Terminate may be there.

use super::adapter::Stream;
use super::core::Core;
use super::handshake::Agreed;
use super::limits;
use super::opening::{Due, Opening};
use super::receive::{Inbound, Receiver};
use super::records::Records;
use super::sys;
use super::teardown::End;
use super::transmit::{Progress, SendFailure, Transmitter};
use crate::connections::Admitted;
use crate::tls::Shaking;
use crate::{Instant, Operation, PeerInfo, ProtectionDomain, WorkStatus};
use dafs_mem::{Site, VolatileSlice};
use dafs_tls::PLAIN_BYTES_MAX;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

/// The progress of the set-up of a connection.
#[derive(Debug)]
pub(super) enum Stage {
    /// TCP connects; then this request is sent.
    Connecting { request: Vec<u8> },
    /// The handshake of TLS; then this request is sent.
    Securing { shaking: Box<Shaking>, request: Vec<u8> },
    /// This side sends its set-up frame.
    Sending { frame: Vec<u8>, sent: usize },
    /// The request was sent; this much of the reply has arrived.
    AwaitingReply { reply: Vec<u8> },
    /// FPDUs flow.
    Open,
}

/// A connection of this adapter, from `connect` or `accept` on.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) id: u64,
    pub(super) stream: Stream,
    /// Its entry in the connection limits, until the socket is closed.
    pub(super) admitted: Option<Arc<Admitted>>,
    pub(super) peer: PeerInfo,
    pub(super) domain: ProtectionDomain,
    pub(super) initiator: bool,
    pub(super) stage: Stage,
    pub(super) rx: Receiver,
    pub(super) tx: Transmitter,
    /// The records of TLS.
    pub(super) tls: Option<Box<Records>>,
    /// `disconnect` was called; the connection ends when all work is sent.
    pub(super) closing: bool,
    /// The socket is full, and epoll will report when it is not.
    pub(super) blocked: bool,
    /// True while it is in the list of connections with work to send.
    pub(super) dirty: bool,
    /// The deadline of the set-up, or of the graceful end once that was requested. A timer that
    /// expires earlier belongs to a former deadline.
    pub(super) deadline: Instant,
    /// Consecutive direct reads without input.
    pub(super) misses: u32,
    /// The state of a cautious opening: the peer may miss the first FPDU.
    pub(super) opening: Opening,
    may_send: bool,
    foreign: bool,
    turns: u32,
    /// The error after which no more can be sent.
    send_error: Option<String>,
}

impl Connection {
    pub(super) fn new(
        id: u64,
        stream: Stream,
        peer: PeerInfo,
        domain: ProtectionDomain,
        initiator: bool,
        stage: Stage,
        first_sink_stag: u32,
    ) -> Self {
        Self {
            id,
            stream,
            admitted: None,
            peer,
            domain,
            initiator,
            stage,
            rx: Receiver::new(domain, false, 0),
            tx: Transmitter::new(domain, first_sink_stag),
            tls: None,
            closing: false,
            blocked: false,
            dirty: false,
            deadline: Instant::default(),
            misses: 0,
            opening: Opening::Done,
            may_send: initiator,
            foreign: false,
            turns: 0,
            send_error: None,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self.stage, Stage::Open)
    }

    /// Applies the result of the handshake.
    pub(super) fn agree(&mut self, core: &Core, agreed: &Agreed) {
        self.rx.agree(agreed.crc, agreed.inbound_reads_max);
        self.foreign = !agreed.large_fpdu;
        self.opening = Opening::new(self.initiator, self.foreign);
        if self.tls.is_some() {
            self.rx.site = Site::IwarpTlsReceive;
        }
        let one_per_call = self.tls.is_some() || self.foreign && agreed.crc;
        self.tx.agree(agreed.crc, one_per_call, agreed.outbound_reads_max);
        self.limit_fpdu(core);
    }

    fn limit_fpdu(&mut self, core: &Core) {
        let bytes = match (self.foreign, core.config.foreign_fpdu_bytes_max) {
            (false, _) => core.config.fpdu_bytes_max,
            (true, Some(bytes)) => bytes,
            // If the socket cannot report a size it is about to fail; the minimum works on any
            // path.
            (true, None) => sys::send_segment_bytes(&*self.stream).unwrap_or(0),
        };
        let bytes_max = if self.tls.is_some() { PLAIN_BYTES_MAX } else { limits::FPDU_BYTES_MAX };
        self.tx.limit_fpdu(bytes.min(bytes_max));
    }

    /// Adds the connection to the list of those with work to send.
    pub(super) fn mark_dirty(&mut self, core: &mut Core) {
        if !self.dirty && !self.blocked {
            self.dirty = true;
            core.dirty.push(self.id);
        }
    }

    /// Passes queued work to the kernel.
    pub(super) fn pump(&mut self, core: &mut Core) -> Result<(), End> {
        if !self.is_open() {
            return Ok(());
        }
        if !self.may_send {
            // Sending is still on hold, and after `disconnect` that hold will not end.
            return if self.closing { Err(End::Local) } else { Ok(()) };
        }
        if self.opening.is_held() {
            return Ok(());
        }
        if self.foreign {
            self.turns = self.turns.wrapping_add(1);
            if self.turns.is_multiple_of(limits::TURNS_PER_SEGMENT_SIZE) {
                self.limit_fpdu(core);
            }
        }
        self.check_stream(core)?;
        self.check_limit(core)?;
        self.check_server()?;
        let result = match &mut self.tls {
            None => self.tx.pump(
                &self.stream,
                &core.regions,
                &mut self.rx,
                &mut core.finished,
                limits::TURN_BYTES,
            ),
            Some(_) => self.pump_records(core),
        };
        let mut finished = std::mem::take(&mut core.finished);
        for done in finished.drain(..).filter(|done| done.is_reported()) {
            core.complete(self.id, done.work, done.operation, WorkStatus::Ok(done.bytes));
        }
        core.finished = finished;
        match result {
            Ok(Progress::Idle) => {
                self.set_blocked(core, false)?;
                if self.closing && self.tx.is_empty() {
                    return Err(End::Local);
                }
                self.check_spent(core)
            }
            Ok(Progress::Blocked) => self.set_blocked(core, true),
            Ok(Progress::Budget) => {
                self.set_blocked(core, false)?;
                self.mark_dirty(core);
                Ok(())
            }
            Err(SendFailure::Inaccessible(gone)) => Err(End::Lost(gone.to_string())),
            Err(SendFailure::Violation(violation)) => Err(End::Violation(violation)),
            Err(SendFailure::Io(error)) => Err(self.drain_after(core, &error)),
        }
    }

    /// Receives the data from before the connection broke, then returns the reason for the end. A
    /// socket may fail to send while the peer still sends, so this does not wait for the last of
    /// it.
    fn drain_after(&mut self, core: &mut Core, error: &io::Error) -> End {
        let text = error.to_string();
        self.send_error = Some(text.clone());
        for _ in 0..limits::DRAIN_TURN_COUNT_MAX {
            match self.receive(core) {
                Ok(true) => {}
                Ok(false) => break,
                Err(end) => return end,
            }
        }
        End::Lost(text)
    }

    /// Handles the timer of a cautious opening. Returns the time until the next one.
    pub(super) fn go_on_opening(&mut self, core: &mut Core) -> Option<Duration> {
        let heard = self.rx.segment_count() > 0;
        match self.opening.timer_ran_out(self.tx.has_said(), heard) {
            Due::Nothing => {}
            Due::Speak => self.mark_dirty(core),
            Due::Nudge => {
                tracing::debug!(peer = %self.peer, "no answer yet; sending an empty RDMA write");
                self.tx.nudge();
                self.mark_dirty(core);
            }
        }
        self.opening.next_timer()
    }

    fn set_blocked(&mut self, core: &mut Core, blocked: bool) -> Result<(), End> {
        if self.blocked == blocked {
            return Ok(());
        }
        let events = if blocked { sys::READABLE | sys::WRITABLE } else { sys::READABLE };
        core.epoll
            .change(&*self.stream, events, self.id)
            .map_err(|error| End::Lost(error.to_string()))?;
        self.blocked = blocked;
        if blocked {
            core.blocked_count += 1;
        } else {
            core.blocked_count -= 1;
        }
        Ok(())
    }

    /// Receives until the socket is drained. Returns true if anything arrived.
    pub(super) fn receive(&mut self, core: &mut Core) -> Result<bool, End> {
        let mut total = 0;
        self.check_stream(core)?;
        if self.tls.is_some() {
            return self.receive_records(core);
        }
        while total < limits::TURN_BYTES {
            let (wanted, in_place, result) = self.read_socket(core)?;
            let bytes = match result {
                Ok(0) => return Err(self.end_of_stream()),
                Ok(bytes) => bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                // The target memory is no longer accessible; the stream continues.
                Err(error) if error.raw_os_error() == Some(libc::EFAULT) && in_place > 0 => {
                    self.rx.lose(&core.regions).map_err(End::Violation)?;
                    continue;
                }
                Err(error) => return Err(End::Lost(error.to_string())),
            };
            total += bytes;
            let placed = bytes.min(in_place);
            let result = self.take(core, placed, bytes - placed);
            self.deliver(core)?;
            result.map_err(End::Violation)?;
            if bytes < wanted {
                break;
            }
        }
        Ok(total > 0)
    }

    /// Checks that other code has not closed the socket, so that its number now belongs to another
    /// one. A turn that sends and receives checks once: a thread of the program that closes the socket
    /// within the turn could as well do so between a check and the use.
    fn check_stream(&self, core: &mut Core) -> Result<(), End> {
        if core.checked != Some(self.id) {
            self.stream.check().map_err(|error| End::Lost(error.to_string()))?;
            core.checked = Some(self.id);
        }
        Ok(())
    }

    /// Makes one system call: it reads into the target memory of the payload, if that is known and
    /// pays off, and the rest into the staging area. Returns the requested bytes, how many of them
    /// go to the target memory, and the result.
    fn read_socket(&mut self, core: &mut Core) -> Result<(usize, usize, io::Result<usize>), End> {
        let stage_max = self.rx.stage_bytes_max().unwrap_or(usize::MAX).min(core.staging.len());
        let staging = &mut core.staging[..stage_max];
        let view = self.rx.direct_view(&core.regions).map_err(End::Violation)?;
        Ok(match view {
            Some(view) => {
                let wanted = view.len() + stage_max;
                let views = [view, VolatileSlice::from_mut(staging)];
                (wanted, view.len(), dafs_mem::recvmsg(self.stream.as_fd(), &views))
            }
            None => (stage_max, 0, (&**self.stream).read(staging)),
        })
    }

    /// Feeds the receiver with the bytes of one call.
    fn take(
        &mut self,
        core: &mut Core,
        placed: usize,
        staged: usize,
    ) -> Result<(), super::Violation> {
        if placed > 0 {
            self.rx.placed(placed, &core.regions)?;
        }
        self.rx.consume(&core.staging[..staged], &mut core.regions, &mut core.inbound)
    }

    pub(super) fn deliver(&mut self, core: &mut Core) -> Result<(), End> {
        let mut inbound = std::mem::take(&mut core.inbound);
        let mut end = None;
        for item in inbound.drain(..) {
            match item {
                Inbound::Received { work, bytes, invalidated } => {
                    core.received(self.id, work, bytes, invalidated);
                }
                Inbound::ReadDone { work, bytes } => {
                    core.complete(self.id, work, Operation::RdmaRead, WorkStatus::Ok(bytes));
                    // A queued read may be sent now.
                    if self.tx.work_count() > 0 {
                        self.mark_dirty(core);
                    }
                }
                Inbound::ReadRequested(request) => {
                    core.granted_reads += u64::from(self.rx.granted.is_some());
                    self.tx.answer(request);
                    self.mark_dirty(core);
                }
                Inbound::Terminated(codes) => end = Some(End::Terminated(codes)),
            }
        }
        core.inbound = inbound;
        if !self.may_send && self.rx.segment_count() > 0 {
            self.may_send = true;
            if !self.tx.is_empty() {
                self.mark_dirty(core);
            }
        }
        end.map_or(Ok(()), Err)
    }

    pub(super) fn end_of_stream(&self) -> End {
        match &self.send_error {
            Some(error) => End::Lost(error.clone()),
            None if self.closing => End::Local,
            None if self.rx.at_boundary() => End::Peer,
            None => End::Lost("the stream ended in the middle of a message".to_owned()),
        }
    }
}

/// The memory of an idle connection, besides its posted work.
const _: () = assert!(size_of::<Connection>() <= 1024);
