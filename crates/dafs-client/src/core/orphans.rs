//! Orphans: calls that the server still processes after their callers have timed out.
//!
//! DAFS cannot cancel a request. A caller that has timed out on an OPEN or a LOCK does not own the
//! result, which must not conflict with others.
//!
//! Invariants
//! * A call completes once for its caller. Its later fate at the server is handled here, and
//!   nowhere else.
//! * An open or a lock without an owner is released as soon as it is known to exist: with the late
//!   answer, or when recovery has found out.
//! * The server cannot reach memory of the caller's when its call has completed.

use super::call::{Call, Completed, Done, Purpose, Work};
use super::failure::Failure;
use super::memory::RegisteredMemory;
use super::session::{SessionCore, Stage};
use crate::backoff::is_passing;
use crate::delegation::Granted;
use crate::limits::RECOVERY_RETRY_PAUSE;
use dafs_dat::{Adapter, Instant};
use dafs_wire::dafs::{
    ByteOrder, Close, FileHandle, Lock, LockType, LockU, Outcome, Procedure, Reply, Request,
    StateId, Status, decode_request,
};
use rustc_hash::FxHashMap;
use std::time::Duration;

/// The remaining state of a call that has completed before it was answered.
#[derive(Debug, Clone, Copy)]
pub(super) enum Orphan {
    /// An open file.
    Open,
    /// A lock, by the state-id of its open.
    Lock(LockU),
    /// No state that would have to be undone.
    Nothing,
}

/// An open or a lock without an owner.
#[derive(Debug)]
struct Stray {
    number: u64,
    request: StrayRequest,
    asked: bool,
}

/// By the state-ids that the application would have known.
#[derive(Debug, Clone, Copy)]
enum StrayRequest {
    Close(FileHandle, StateId),
    Unlock(LockU),
}

/// The orphans of one session.
#[derive(Debug, Default)]
pub(crate) struct Orphans {
    /// By the tag of the call; no more than there are requests in flight and in doubt.
    calls: FxHashMap<u64, Orphan>,
    strays: Vec<Stray>,
    last: u64,
    /// The server has answered a release with DELAY.
    hold: Option<Instant>,
}

impl Orphans {
    /// The orphan of a call whose connection is gone: `None` if a caller waits for it.
    pub(super) fn of(&self, tag: u64) -> Option<Orphan> {
        self.calls.get(&tag).copied()
    }

    /// Forgets a call that has no further effect; true when it was an orphan.
    pub(super) fn forget(&mut self, tag: u64) -> bool {
        self.calls.remove(&tag).is_some()
    }

    /// Marks releases as not sent, because their connection is gone.
    pub(crate) fn forget_questions(&mut self) {
        self.hold = None;
        self.strays.iter_mut().for_each(|stray| stray.asked = false);
    }

    fn add(&mut self, request: StrayRequest) {
        self.last += 1;
        self.strays.push(Stray { number: self.last, request, asked: false });
    }

    /// Keeps locks that overlap one that the application asks for after all.
    pub(crate) fn wanted(&mut self, lock: &Lock) {
        let same = |other: &LockU| {
            let end = |offset: u64, length: u64| offset.saturating_add(length);
            other.state_id == lock.state_id
                && other.offset < end(lock.offset, lock.length)
                && lock.offset < end(other.offset, other.length)
        };
        for orphan in self.calls.values_mut() {
            if matches!(orphan, Orphan::Lock(other) if same(other)) {
                *orphan = Orphan::Nothing;
            }
        }
        self.strays.retain(|stray| match &stray.request {
            StrayRequest::Unlock(other) => stray.asked || !same(other),
            StrayRequest::Close(..) => true,
        });
    }
}

/// The state that a request creates, as far as that has to be undone.
pub(super) fn orphan_of(bytes: &[u8], order: ByteOrder) -> Orphan {
    match decode_request(bytes, order, 0) {
        Ok((_, Request::Open(_))) => Orphan::Open,
        Ok((_, Request::Lock(lock))) => {
            let lock_type = match lock.lock_type {
                LockType::Read | LockType::ReadWait => LockType::Read,
                _ => LockType::Write,
            };
            let Lock { fh, state_id, offset, length, .. } = lock;
            Orphan::Lock(LockU { fh, lock_type, state_id, offset, length })
        }
        _ => Orphan::Nothing,
    }
}

/// True when the server could still reach memory that the caller uses.
fn reaches_memory(work: &Work) -> bool {
    names_memory(work, |memory| !memory.is_private())
}

/// True when it could do so even after the end of the connection.
pub(super) fn lends_memory(work: &Work) -> bool {
    names_memory(work, |memory| !memory.is_private() && memory.is_mappable())
}

fn names_memory(work: &Work, such: impl Fn(&RegisteredMemory) -> bool) -> bool {
    match work {
        Work::Message { memory, .. } => memory.iter().any(|piece| such(piece.memory())),
        // The data of an inline read comes in the memory of messages.
        Work::ReadInline(_) => false,
        Work::ReadDirect(call) => such(call.into.memory()),
        Work::Write(call) => such(call.from.memory()),
    }
}

impl SessionCore {
    /// Ends a call whose caller has timed out, after the time `after`: with [`Failure::Unsent`]
    /// when the server has certainly not done it, with [`Failure::Deadline`] when it may have, or
    /// may yet. Other calls go on.
    ///
    /// If the server has the call and it names memory of the application's, the connection is cut,
    /// because the server could still reach the memory; the session ends, too, if it is not
    /// recovered. If the server may have mapped the memory, the call ends when the server has
    /// released it.
    pub fn give_up(&mut self, adapter: &mut dyn Adapter, now: Instant, tag: u64, after: Duration) {
        self.now = now;
        if !self.chains.holds(tag)
            && let Some(call) = self.take_unsent(tag)
        {
            let failure = overdue(&call, after);
            self.finish(Purpose::Caller(tag), Done::Lost(failure));
        } else if let Some(flight) =
            self.conn.flights.iter().flatten().find(|flight| flight.purpose == Purpose::Caller(tag))
        {
            if lends_memory(&flight.work) {
                self.fail(adapter, Failure::Deadline(after));
                self.lent_is_overdue(tag, after);
                self.reap(adapter);
                return self.pump(adapter, now);
            }
            let cut = reaches_memory(&flight.work);
            let orphan = match &flight.work {
                Work::Message { bytes, .. } => orphan_of(bytes, self.order),
                _ => Orphan::Nothing,
            };
            // Without recovery the request was not kept, and the procedure says what the answer
            // creates.
            let orphan = match (orphan, flight.procedure) {
                (Orphan::Nothing, Procedure::Open) => Orphan::Open,
                (orphan, _) => orphan,
            };
            self.let_go(tag, orphan, after);
            if cut {
                self.fail(adapter, Failure::Deadline(after));
            }
        } else if self.lent_is_overdue(tag, after) {
            // The call ends when recovery ends.
        } else if let Some(orphan) = self.recovery_lets_go(tag) {
            match orphan {
                Orphan::Nothing => {
                    self.finish(Purpose::Caller(tag), Done::Lost(Failure::Deadline(after)));
                }
                orphan => self.let_go(tag, orphan, after),
            }
        } else if self.chains.holds(tag) {
            // It completes with the others of its chain, which are given up one by one.
            self.let_go(tag, Orphan::Nothing, after);
        } else {
            self.give_up_transfer(adapter, now, tag, after);
        }
        self.reap(adapter);
        self.pump(adapter, now);
    }

    /// Completes a call that the server may have carried out, or may carry out yet.
    pub(super) fn let_go(&mut self, tag: u64, orphan: Orphan, after: Duration) {
        self.completed.push_back(Completed { tag, done: Done::Lost(Failure::Deadline(after)) });
        self.orphans.calls.insert(tag, orphan);
    }

    /// The only place where ended calls leave.
    pub(crate) fn complete(&mut self, tag: u64, done: Done) {
        match self.orphans.calls.remove(&tag) {
            None => self.completed.push_back(Completed { tag, done }),
            Some(orphan) => self.on_orphan(orphan, &done),
        }
    }

    /// Processes the answer to an orphaned call.
    fn on_orphan(&mut self, orphan: Orphan, done: &Done) {
        let Done::Answered(reply) = done else { return };
        match (orphan, reply.decode()) {
            (Orphan::Open | Orphan::Nothing, Ok(Outcome::Ok(Reply::Open(opened)))) => {
                tracing::debug!("closing a file that was opened too late");
                if let Some(granted) = Granted::of(&opened) {
                    // It has no holder, so it is returned.
                    self.back.tell_unwanted(granted.state_id);
                }
                self.orphans.add(StrayRequest::Close(opened.fh, opened.state_id));
            }
            (Orphan::Lock(lock), Ok(Outcome::Ok(Reply::Lock))) => {
                tracing::debug!("releasing a lock that came too late");
                self.orphans.add(StrayRequest::Unlock(lock));
            }
            _ => {}
        }
    }

    /// Releases opens and locks without an owner, as far as there is room.
    pub(super) fn return_orphans(&mut self, adapter: &mut dyn Adapter, now: Instant) {
        if self.orphans.hold.is_some_and(|at| at > now) {
            return;
        }
        while self.stage == Stage::Ready
            && self.conn.has_room()
            && let Some(at) = self.orphans.strays.iter().position(|stray| !stray.asked)
        {
            let Stray { number, request, .. } = self.orphans.strays[at];
            let server = self.info.client_id;
            let keeps_track = self.config.recovery.is_some() || self.back.is_wanted();
            let request = match request {
                // A later member of its chain closed it.
                StrayRequest::Close(_, name) if keeps_track && self.opens.open(name).is_none() => {
                    Err(Status::StaleStateId)
                }
                StrayRequest::Close(fh, name) => {
                    let current = self.opens.current_for_close(name, server);
                    current.map(|state_id| Request::Close(Close { fh, state_id }))
                }
                StrayRequest::Unlock(lock) => {
                    let current = self.opens.current(lock.state_id);
                    current.map(|state_id| Request::LockU(LockU { state_id, ..lock }))
                }
            };
            match request {
                Ok(request) => {
                    self.orphans.strays[at].asked = true;
                    self.send_own(adapter, now, Purpose::Stray(number), &request);
                }
                // It was lost with the server's last run.
                Err(_) => self.returned(number),
            }
        }
    }

    /// The answer to a release.
    pub(super) fn on_returned(&mut self, number: u64, status: Status) {
        if !is_passing(status) {
            return self.returned(number);
        }
        self.orphans.hold = Some(self.now + RECOVERY_RETRY_PAUSE);
        let mut strays = self.orphans.strays.iter_mut();
        if let Some(stray) = strays.find(|stray| stray.number == number) {
            stray.asked = false;
        }
    }

    fn returned(&mut self, number: u64) {
        let strays = &mut self.orphans.strays;
        let Some(at) = strays.iter().position(|stray| stray.number == number) else { return };
        match strays.swap_remove(at).request {
            StrayRequest::Close(_, name) => self.opens.closed(name),
            StrayRequest::Unlock(lock) => self.opens.unlocked(&lock),
        }
    }

    /// The time at which a release answered with DELAY is retried.
    pub(super) fn orphans_timeout(&self) -> Option<Instant> {
        self.orphans.hold
    }

    /// Retries releases that were answered with DELAY.
    pub(super) fn orphans_on_time(&mut self, adapter: &mut dyn Adapter, now: Instant) {
        self.orphans.hold = None;
        self.return_orphans(adapter, now);
    }

    /// Removes a call that the server does not have.
    pub(super) fn take_unsent(&mut self, tag: u64) -> Option<Call> {
        if let Some(at) = self.waiting.iter().position(|call| call.tag == tag) {
            return self.waiting.remove(at);
        }
        let at = self.delayed.iter().position(|(_, call)| call.tag == tag)?;
        self.delayed.remove(at).map(|(_, call)| call)
    }
}

/// The end of a call that has waited for too long to be sent.
pub(super) fn overdue(call: &Call, after: Duration) -> Failure {
    if call.maybe_done { Failure::Deadline(after) } else { Failure::Unsent(after) }
}
