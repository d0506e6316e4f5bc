//! Cancellation of single calls, and orphans: calls that the server still processes after their
//! callers have timed out.
//!
//! DAFS cannot cancel a request, and our extension only a transfer that has not begun. A caller that
//! has timed out on an OPEN or a LOCK does not own the result, which must not conflict with others.
//!
//! Invariants
//! * A call completes once for its caller. Its later fate at the server is handled here, and
//!   nowhere else.
//! * An open or a lock without an owner is released as soon as it is known to exist: with the late
//!   answer, or when recovery has found out.
//! * The server cannot reach memory of the caller's when its call has completed. So a call is
//!   cancelled only before it is sent, and between the loss of its connection and the
//!   retransmission, if the server cannot have mapped its memory.

use super::call::{Call, Done, Purpose, Work};
use super::calls::Calls;
use super::failure::Failure;
use super::link::Link;
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
    pub(super) calls: FxHashMap<u64, Orphan>,
    strays: Vec<Stray>,
    last: u64,
    /// The server has answered a release with DELAY: no other before this time.
    pub(super) hold: Option<Instant>,
}

impl Orphans {
    /// The orphan of a call whose connection is gone: `None` if a caller waits for it.
    pub(super) fn of(&self, tag: u64) -> Option<Orphan> {
        self.calls.get(&tag).copied()
    }

    /// Forgets a call that has no further effect; yields the orphan that it was.
    pub(super) fn forget(&mut self, tag: u64) -> Option<Orphan> {
        self.calls.remove(&tag)
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

impl Calls {
    /// Processes the answer to an orphaned call.
    pub(super) fn on_orphan(&mut self, orphan: Orphan, done: &Done) {
        let Done::Answered(reply) = done else { return };
        match (orphan, reply.decode()) {
            (Orphan::Open | Orphan::Nothing, Ok(Outcome::Ok(Reply::Open(opened)))) => {
                tracing::debug!("closing a file that was opened too late");
                if let Some(granted) = Granted::of(&opened) {
                    // It has no holder, so it is returned.
                    self.delegations.tell_unwanted(granted.state_id);
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

    /// The next release of an open or a lock without an owner, if it can be sent now.
    fn next_release(&mut self, link: &Link) -> Option<(Purpose, Request<'static>)> {
        if self.orphans.hold.is_some_and(|at| at > link.now) {
            return None;
        }
        while let Some(stray) = self.orphans.strays.iter_mut().find(|stray| !stray.asked) {
            let (number, server) = (stray.number, link.info.client_id);
            let request = match stray.request {
                // A later member of its chain closed it.
                StrayRequest::Close(_, name)
                    if self.keeps_requests && self.opens.open(name).is_none() =>
                {
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
                    stray.asked = true;
                    return Some((Purpose::Stray(number), request));
                }
                // It was lost with the server's last run.
                Err(_) => self.returned(number),
            }
        }
        None
    }

    /// The answer to a release.
    pub(super) fn on_returned(&mut self, number: u64, status: Status, now: Instant) {
        if !is_passing(status) {
            return self.returned(number);
        }
        self.orphans.hold = Some(now + RECOVERY_RETRY_PAUSE);
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
}

impl SessionCore {
    /// Cancels a call, which then ends with [`Failure::Canceled`]; true when it is over. Other
    /// calls go on, also while the session recovers.
    ///
    /// False means that the server has the call; or had it and may still move its data; or the call
    /// belongs to a chain; or there is no call of this tag any more. The server is asked to take a
    /// transfer out, if it can: [`cancel_at_server`](Self::cancel_at_server).
    pub fn cancel(&mut self, adapter: &mut dyn Adapter, now: Instant, tag: u64) -> bool {
        self.link.now = now;
        let is_taken = !self.calls.chains.holds(tag)
            && (self.calls.take_unsent(tag).is_some()
                || self.cancel_transfer(tag)
                || self.recovery.as_mut().is_some_and(|recovery| recovery.give_up(tag)));
        if !is_taken {
            self.cancel_at_server(adapter, now, tag);
            return false;
        }
        self.finish(Purpose::Caller(tag), Done::Lost(Failure::Canceled));
        self.reap(adapter);
        match self.stage {
            // The end of the session may have waited for this call.
            Stage::Closing => self.pump(adapter),
            Stage::Recovering if self.closing && self.has_no_calls() => {
                self.end(adapter, Failure::Closed);
            }
            _ => {}
        }
        true
    }

    /// Ends a call whose caller has timed out, after the time `after`: with [`Failure::Unsent`]
    /// when the server has certainly not done it, with [`Failure::Deadline`] when it may have, or
    /// may yet. Other calls go on.
    ///
    /// If the server has the call and it names memory of the application's, the connection is cut,
    /// because the server could still reach the memory; the session ends, too, if it is not
    /// recovered. If the server may have mapped the memory, the call ends when the server has
    /// released it.
    pub fn give_up(&mut self, adapter: &mut dyn Adapter, now: Instant, tag: u64, after: Duration) {
        self.link.now = now;
        if self.optimistic.has(tag) {
            // Its data must not arrive any more.
            self.lose_optimistic(adapter, Failure::Deadline(after));
        }
        if !self.calls.chains.holds(tag)
            && let Some(call) = self.calls.take_unsent(tag)
        {
            let failure = overdue(&call, after);
            self.finish(Purpose::Caller(tag), Done::Lost(failure));
        } else if let Some(flight) = self
            .link
            .conn
            .flights
            .iter()
            .flatten()
            .find(|flight| flight.purpose == Purpose::Caller(tag))
        {
            if lends_memory(&flight.work) {
                self.fail(adapter, Failure::Deadline(after));
                if let Some(recovery) = &mut self.recovery {
                    recovery.lent_is_overdue(tag, (now, after));
                }
                self.reap(adapter);
                return self.pump(adapter);
            }
            let cut = reaches_memory(&flight.work);
            let orphan = match &flight.work {
                Work::Message { bytes, .. } => orphan_of(bytes, self.link.order),
                _ => Orphan::Nothing,
            };
            // Without recovery the request was not kept, and the procedure says what the answer
            // creates.
            let orphan = match (orphan, flight.procedure) {
                (Orphan::Nothing, Procedure::Open) => Orphan::Open,
                (orphan, _) => orphan,
            };
            self.calls.let_go(tag, orphan, after);
            if cut {
                self.fail(adapter, Failure::Deadline(after));
            }
        } else if let Some(recovery) = &mut self.recovery
            && recovery.lent_is_overdue(tag, (now, after))
        {
            // The call ends when recovery ends.
        } else if let Some(recovery) = &mut self.recovery
            && let Some(orphan) = recovery.let_go(tag, &self.calls.chains, self.link.order)
        {
            match orphan {
                Orphan::Nothing => {
                    self.finish(Purpose::Caller(tag), Done::Lost(Failure::Deadline(after)));
                }
                orphan => self.calls.let_go(tag, orphan, after),
            }
        } else if self.calls.chains.holds(tag) {
            // It completes with the others of its chain, which are given up one by one.
            self.calls.let_go(tag, Orphan::Nothing, after);
        } else {
            self.give_up_transfer(adapter, tag, after);
        }
        self.reap(adapter);
        self.pump(adapter);
    }

    /// Releases opens and locks without an owner, as far as there is room.
    pub(super) fn return_orphans(&mut self, adapter: &mut dyn Adapter) {
        while self.stage == Stage::Ready
            && self.link.conn.has_room()
            && let Some((purpose, request)) = self.calls.next_release(&self.link)
        {
            self.send_own(adapter, purpose, &request);
        }
    }
}

/// The end of a call that has waited for too long to be sent.
pub(super) fn overdue(call: &Call, after: Duration) -> Failure {
    if call.maybe_done { Failure::Deadline(after) } else { Failure::Unsent(after) }
}
