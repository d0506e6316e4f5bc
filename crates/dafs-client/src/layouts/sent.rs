//! Requests under way at data servers.
//!
//! Invariants
//! * The client notes a write when a thread reads the data server's answer, whichever thread that
//!   is. So a thread that gives a layout back knows all that was written by it.
//! * Once a part is settled, the data server cannot access its memory any more.
//! * The application's stop callback does not run while the parts of a piece are locked. A waker is
//!   only cloned or dropped then.

use super::file::{FileLayout, Grant};
use super::nodes::{Node, is_hurry};
use crate::backoff::is_passing;
use crate::buffer::IoBuffer;
use crate::core::{Done, Piece, ReadCall, RegisteredMemory, WriteCall};
use crate::driver::{Shared, Slot};
use crate::error::{Error, Result};
use crate::fork::ForkMutex;
use crate::limit;
use crate::limits::{STOP_PERIOD, UNPROBED_DEADLINE_FACTOR};
use crate::opened::Opened;
use crate::outcome::failure_of;
use dafs_parallel::limits::NODE_ANSWER_TIMEOUT;
use dafs_parallel::{Cut, Fault, Moved};
use dafs_wire::dafs::{Commit, FileHandle, Request, Stability, Status, Verifier};
use std::ops::Range;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

pub(super) type Failure = Fault<Error>;
/// The pause between two looks for answers to requests of other threads.
const SETTLE_NAP: Duration = Duration::from_millis(1);

type Came = Result<Moved<Stability>, Failure>;

/// The stability of data that was read, and of parts that wrote nothing.
const STABLEST: Stability = Stability::ALL[Stability::ALL.len() - 1];

/// A piece of a transfer, in parts that went to one data server each.
#[derive(Debug)]
pub(crate) struct Sent {
    layout: Arc<FileLayout>,
    grant: Arc<Grant>,
    legs: ForkMutex<Vec<Leg>>,
}

/// The part of a piece that goes to one data server.
#[derive(Debug)]
struct Leg {
    component: usize,
    bytes: usize,
    /// The offset in the file behind its last byte.
    end: u64,
    came: Stage,
}

#[derive(Debug)]
enum Stage {
    UnderWay(UnderWay),
    Over(Came),
}

/// A request that was sent.
#[derive(Debug)]
struct UnderWay {
    session: Arc<Shared>,
    slot: Slot,
    write: bool,
    memory: Arc<RegisteredMemory>,
}

/// A transfer that is sent in pieces.
pub(super) struct Piecemeal<'a> {
    pub(super) file: &'a Opened,
    pub(super) layout: &'a Arc<FileLayout>,
    pub(super) grant: &'a Arc<Grant>,
    pub(super) buffer: &'a IoBuffer,
    /// Where the transfer begins in the buffer and in the file.
    pub(super) start: usize,
    pub(super) offset: u64,
    pub(super) write: Option<Stability>,
}

impl Piecemeal<'_> {
    /// Sends a piece, given by its range in the transfer, to the components of these copies.
    pub(super) fn send(
        &self,
        piece: Range<usize>,
        copies: impl Iterator<Item = usize>,
    ) -> Arc<Sent> {
        let mut legs = Vec::with_capacity(1);
        for copy in copies {
            let offset = self.offset + piece.start as u64;
            for cut in self.grant.plan.cuts(copy, offset, piece.len()) {
                let sent = self.send_cut(&piece, &cut);
                let (component, bytes) = (cut.component, cut.range.len());
                let end = offset + cut.range.end as u64;
                let came = match sent {
                    Ok(under_way) => Stage::UnderWay(under_way),
                    Err(failure) => Stage::Over(Err(failure)),
                };
                legs.push(Leg { component, bytes, end, came });
            }
        }
        let (layout, grant) = (self.layout.clone(), self.grant.clone());
        Arc::new(Sent { layout, grant, legs: ForkMutex::new(legs) })
    }

    fn send_cut(&self, piece: &Range<usize>, cut: &Cut) -> Result<UnderWay, Failure> {
        let plan = &self.grant.plan;
        let place = &plan.places[cut.component];
        let of = self.file.client.shared();
        let session = self.grant.nodes[cut.component].session(of, place);
        let session = session?;
        let begun = (|| {
            let state_id = of.current_open(self.file.state_id)?;
            let memory = session.lend(self.buffer.memory().buffer())?;
            let at = self.start + piece.start + cut.range.start;
            let len = u32::try_from(cut.range.len()).unwrap_or(u32::MAX);
            let outside = Error::Argument("the range does not lie inside the buffer");
            let data = Piece::new(&memory, at, len).ok_or(outside)?;
            let (handle, offset) = (place.handle, cut.component_offset);
            let hint = self.file.hint.get();
            let slot = session.submit(|driver, tag| match self.write {
                None => {
                    let call = ReadCall { handle, state_id, offset, into: data, hint };
                    driver.submit_read(tag, call)
                }
                Some(stability) => {
                    let (from, delegation) = (data, None);
                    let call =
                        WriteCall { handle, state_id, offset, stability, from, delegation, hint };
                    driver.submit_write(tag, call, None)
                }
            })?;
            Ok((memory, slot))
        })();
        let (memory, slot) = begun.map_err(|error: Error| match error.is_fatal() {
            // The session ended before it sent anything.
            true => Fault::Unavailable,
            false => Fault::Failed(error),
        })?;
        Ok(UnderWay { session, slot, write: self.write.is_some(), memory })
    }
}

impl Sent {
    /// True if no part could be sent, because the data servers are known to be away.
    pub(super) fn is_away(&self) -> bool {
        let legs = self.legs.lock_here();
        legs.iter().all(|leg| matches!(leg.came, Stage::Over(Err(Fault::Unavailable))))
    }

    /// Lets threads of the sessions drive the parts, so that data servers do not wait for one
    /// another.
    pub(super) fn attend(&self) {
        for leg in &*self.legs.lock_here() {
            if let Stage::UnderWay(UnderWay { session, slot, .. }) = &leg.came {
                session.attend(slot, Waker::noop());
            }
        }
    }

    /// True if all parts are answered. Does not wait; if false, `waker` is called when one of them
    /// is.
    pub(super) fn is_answered(&self, waker: Option<&Waker>) -> bool {
        let Ok(mut legs) = self.legs.lock() else { return true };
        let mut all = true;
        for leg in &mut *legs {
            let Stage::UnderWay(UnderWay { session, slot, .. }) = &leg.came else { continue };
            let is_done =
                session.is_done(slot) || waker.is_some_and(|waker| session.attend(slot, waker));
            all &= is_done;
            if is_done {
                // The request is over, so this returns at once.
                let _ = self.settle_leg(leg, None);
            }
        }
        all
    }

    /// True if all parts are answered and were done in full.
    pub(super) fn is_whole(&self) -> bool {
        let legs = self.legs.lock_here();
        legs.iter()
            .all(|leg| matches!(&leg.came, Stage::Over(Ok(moved)) if moved.bytes == leg.bytes))
    }

    /// True if all parts are of one component.
    pub(super) fn is_of_one(&self) -> bool {
        let legs = self.legs.lock_here();
        let mut components = legs.iter().map(|leg| leg.component);
        let first = components.next();
        components.all(|component| Some(component) == first)
    }

    /// Waits until all parts are answered, or given up.
    pub(super) fn settle(&self) {
        // A fork has nothing to wait for.
        let _ = self.settle_until(None);
    }

    /// The same for a thread that has not sent them. It does not block the sender's look for the
    /// answers.
    pub(super) fn settle_for_sender(&self) {
        let end = Instant::now() + NODE_ANSWER_TIMEOUT;
        while !self.is_answered(None) && Instant::now() < end {
            std::thread::sleep(SETTLE_NAP);
        }
        self.settle();
    }

    /// The same, but not beyond `until`.
    ///
    /// # Errors
    /// [`Error::TimedOut`], after which the caller can wait again; [`Error::Forked`].
    pub(super) fn settle_until(&self, until: Option<Instant>) -> Result<()> {
        let begun = Instant::now();
        let patience = NODE_ANSWER_TIMEOUT * UNPROBED_DEADLINE_FACTOR;
        while limit::can_be_stopped() && !limit::is_over() {
            if begun.elapsed() >= patience {
                // A wait without interruptions times out here as well.
                return limit::within(Duration::ZERO, || self.settle_legs(until));
            }
            let look = Instant::now() + STOP_PERIOD;
            let end = until.map_or(look, |until| until.min(look));
            match limit::unstopped(|| self.settle_legs(Some(end))) {
                Err(Error::TimedOut(_)) if until.is_none_or(|until| end < until) => {
                    // If the callback asks to stop, the thread has no time left and the loop ends.
                    limit::is_stopped();
                }
                Err(Error::TimedOut(_)) => return Err(Error::TimedOut(begun.elapsed())),
                told => return told,
            }
        }
        self.settle_legs(until)
    }

    fn settle_legs(&self, until: Option<Instant>) -> Result<()> {
        let mut legs = self.legs.lock()?;
        legs.iter_mut().try_for_each(|leg| self.settle_leg(leg, until))
    }

    fn settle_leg(&self, leg: &mut Leg, until: Option<Instant>) -> Result<()> {
        let Stage::UnderWay(under_way) = &leg.came else { return Ok(()) };
        let time = until.map(|until| until.saturating_duration_since(Instant::now()));
        let done = match under_way.session.wait_done(&under_way.slot, time) {
            Err(Error::TimedOut(waited)) if until.is_some() => return Err(Error::TimedOut(waited)),
            done => done,
        };
        let stage = std::mem::replace(&mut leg.came, Stage::Over(Err(Fault::Short)));
        if let Stage::UnderWay(under_way) = stage {
            leg.came = Stage::Over(self.finish(leg, under_way, done));
        }
        Ok(())
    }

    fn finish(&self, leg: &Leg, under_way: UnderWay, done: Result<Done>) -> Came {
        let UnderWay { session, slot: _, write, memory } = under_way;
        // The data server may not write to the memory from now on.
        drop(memory);
        session.reap();
        let (bytes, eof, stable, verifier) = match done {
            Ok(Done::Read { bytes, end_of_file }) if !write => {
                (bytes as usize, end_of_file, STABLEST, None)
            }
            Ok(Done::Written { bytes, committed, verifier }) if write => {
                let unstable = (committed == Stability::Unstable).then_some(verifier.0);
                (bytes as usize, false, committed, unstable)
            }
            Ok(other) => {
                let error = failure_of(other, session.server_name());
                return Err(self.failed(leg, &session, write, error));
            }
            Err(error) => return Err(self.failed(leg, &session, write, error)),
        };
        self.grant.nodes[leg.component].answered();
        let verifier = match write {
            true => {
                let end = leg.end - (leg.bytes - bytes.min(leg.bytes)) as u64;
                self.layout.wrote(&self.grant, leg.component, (end, bytes), verifier)
            }
            false => [0; 8],
        };
        Ok(Moved { bytes, eof, stable, verifier })
    }

    fn failed(&self, leg: &Leg, session: &Arc<Shared>, write: bool, error: Error) -> Failure {
        let node = &self.grant.nodes[leg.component];
        if is_outgrown(&error) {
            node.outgrow(session);
        } else {
            node.met(session, &error);
        }
        if !write && is_hurry(session, &error) {
            // The deadline says nothing about the data server. A write may have been done, so it
            // fails.
            return Fault::Unavailable;
        }
        Fault::Failed(error)
    }

    /// True if nothing was sent, because too many requests are under way already.
    pub(super) fn is_turned_away(&self) -> bool {
        let is_full =
            |leg: &Leg| matches!(leg.came, Stage::Over(Err(Fault::Failed(Error::TooMany))));
        self.legs.lock_here().iter().all(is_full)
    }

    /// Waits, and returns the result of the piece.
    pub(super) fn take(
        &self,
        write: bool,
        piece_bytes: usize,
    ) -> Result<Moved<Stability>, dafs_parallel::Faults<Error>> {
        self.settle();
        let mut legs = self.legs.lock_here();
        let came = legs.drain(..).map(|leg| {
            let came = match leg.came {
                Stage::Over(came) => came,
                Stage::UnderWay(_) => Err(Fault::Short),
            };
            (leg.component, leg.bytes, came)
        });
        dafs_parallel::sum(came, write, piece_bytes, STABLEST)
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        // The memory may be the caller's, who uses it again.
        self.settle();
    }
}

/// A COMMIT that was sent to a data server.
pub(crate) struct Committing {
    node: Arc<Node>,
    session: Arc<Shared>,
    slot: Slot,
}

impl Committing {
    pub(super) fn begin(
        node: Arc<Node>,
        session: Arc<Shared>,
        fh: FileHandle,
    ) -> Result<Self, Uncommitted> {
        let commit = Commit { fh, offset: 0, count: 0 };
        let request = Request::Commit(commit);
        let slot = session.submit(|driver, tag| driver.submit(tag, &request, None));
        let slot = slot.map_err(|error| Uncommitted::new(&session, error))?;
        session.attend(&slot, Waker::noop());
        Ok(Self { node, session, slot })
    }

    /// Waits for the answer, and returns the verifier in it.
    pub(super) fn finish(self) -> Result<Verifier, Uncommitted> {
        let Self { node, session, slot } = self;
        let reply = session
            .wait_reply(&slot, None)
            .and_then(|reply| session.taken(&reply, |reply| Some(reply.commit()?.verifier)));
        match &reply {
            Ok(_) => node.answered(),
            Err(error) => node.met(&session, error),
        }
        reply.map_err(|error| Uncommitted::new(&session, error))
    }
}

/// The reasons why a data server has committed nothing.
pub(crate) enum Uncommitted {
    Unreachable,
    /// A retry may succeed soon.
    PutOff,
    /// Its session was aborted for a caller's deadline.
    Hurried,
    /// Its session is over.
    Over,
    Refused,
}

impl Uncommitted {
    fn new(session: &Shared, error: Error) -> Self {
        match &error {
            Error::TooMany => Self::PutOff,
            error if error.status().is_some_and(is_passing) => Self::PutOff,
            error if is_hurry(session, error) => Self::Hurried,
            error if error.is_fatal() => Self::Over,
            _ => Self::Refused,
        }
    }
}

/// True if a data server refused a request, and did nothing, because its session is too old: the
/// client has written the same bytes through the server since the session began.
pub(super) fn is_outgrown(error: &Error) -> bool {
    error.status() == Some(Status::XSessionOld)
}
