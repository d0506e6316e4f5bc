//! Reclaiming opens and locks from a restarted server (DAFS 9, 10.1, 12).
//!
//! Invariants
//! * A lock is reclaimed as soon as its own open has been: no other open delays it.
//! * Opens that are not reclaimed come last. A server answers GRACE to new opens until all reclaims
//!   are done, and accepts no reclaim after that.
//! * A request that the server delays for ever is given up before the session is.

use super::{Calls, Link, Recovery, Step, in_step};
use crate::backoff::is_passing;
use crate::core::call::{Purpose, ReplyMessage};
use crate::core::open_states::{HeldLock, OpenState};
use crate::core::session::SessionCore;
use crate::core::users::User;
use dafs_dat::{Adapter, Instant};
use dafs_wire::dafs::{Open, OpenClaim, Outcome, Path, Reply, Request, StateId, Status};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;

/// The opens and locks still to be reclaimed.
#[derive(Debug, Default)]
pub(super) struct Reclaim {
    opens: VecDeque<StateId>,
    /// Opens that are made anew, because they cannot be reclaimed.
    anew: VecDeque<StateId>,
    locks: VecDeque<(StateId, HeldLock)>,
    /// Unanswered requests, by number: no more than there are credits, however often the server
    /// answers DELAY.
    asked: FxHashMap<usize, Asked>,
    last: usize,
    /// The time until which delayed requests are retried.
    until: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Asked {
    Open(StateId, bool),
    Lock(StateId, HeldLock),
}

impl Asked {
    pub(super) fn name(&self) -> StateId {
        let (Self::Open(name, _) | Self::Lock(name, _)) = *self;
        name
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self, Self::Open(..))
    }

    /// The request that reclaims `open`, or one of its locks; `None` when another lock of it is
    /// lost, for then the open is as good as lost.
    pub(super) fn request<'a>(
        &self,
        open: &'a OpenState,
        link: &Link,
        calls: &Calls,
    ) -> Option<Request<'a>> {
        let claim = match self {
            Self::Lock(name, lock) => {
                let current = calls.opens.current(*name).ok()?;
                return Some(Request::Lock(lock.request(open.handle, current)));
            }
            // An empty path names the object itself.
            Self::Open(_, true) => OpenClaim::Null { dir: open.handle, path: Path::new(&[]) },
            Self::Open(_, false) => {
                let server = link.info.client_id;
                let delegate_type = calls.delegations.to_reclaim(&open.handle, server);
                OpenClaim::Previous { fh: open.handle, delegate_type }
            }
        };
        Some(Request::Open(Open {
            claim,
            create: None,
            delete_disposition: open.disposition,
            owner: &open.owner,
            share_access: open.access,
            share_deny: open.deny,
            share_key: open.key,
        }))
    }
}

impl Reclaim {
    /// The next request of this step, if there is one and there is room for it.
    pub(super) fn next(&mut self, step: Step, room: bool) -> Option<Asked> {
        if !room {
            return None;
        }
        let lock = self.locks.pop_front().map(|(name, lock)| Asked::Lock(name, lock));
        let next = lock.or_else(|| Some(Asked::Open(self.opens.pop_front()?, false)));
        let anew = || Some(Asked::Open(self.anew.pop_front()?, true));
        next.or_else(|| (step == Step::Anew).then(anew)?)
    }

    /// True when no request of this step is left, nor unanswered.
    pub(super) fn is_over(&self, step: Step) -> bool {
        self.locks.is_empty()
            && self.opens.is_empty()
            && (step != Step::Anew || self.anew.is_empty())
            && self.asked.is_empty()
    }

    /// Puts a request back for a retry, behind all others.
    fn again(&mut self, asked: Asked) {
        match asked {
            Asked::Lock(name, lock) => self.locks.push_back((name, lock)),
            Asked::Open(name, false) => self.opens.push_back(name),
            Asked::Open(name, true) => self.anew.push_back(name),
        }
    }

    /// Puts a request back that was not sent, before all others.
    pub(super) fn put_back(&mut self, asked: Asked) {
        match asked {
            Asked::Lock(name, lock) => self.locks.push_front((name, lock)),
            Asked::Open(name, false) => self.opens.push_front(name),
            Asked::Open(name, true) => self.anew.push_front(name),
        }
    }

    pub(super) fn ask(&mut self, what: Asked) -> usize {
        self.last += 1;
        self.asked.insert(self.last, what);
        self.last
    }

    fn answered(&mut self, number: usize) -> Option<Asked> {
        self.asked.remove(&number)
    }
}

impl Recovery {
    pub(super) fn begin_opens(&mut self, link: &Link, calls: &Calls) {
        let (now, server) = (link.now, link.info.client_id);
        let opens = calls.opens.opens_to_reclaim(server).into();
        // Locks of opens that were reclaimed before recovery had to begin again.
        let mut locks = calls.opens.locks_to_reclaim(server);
        locks.retain(|(name, _)| calls.opens.open(*name).is_some_and(|open| open.is_at(server)));
        let (until, locks) = (Some(now + self.until.since(now) / 2), locks.into());
        self.reclaim = Reclaim { opens, locks, until, ..Reclaim::default() };
    }

    /// Gives up the opens of a user that the server does not register.
    pub(in crate::core) fn refuse_user(
        &mut self,
        calls: &mut Calls,
        link: &Link,
        user: &User,
        status: Status,
    ) {
        let mut lost = Vec::new();
        for names in [&mut self.reclaim.opens, &mut self.reclaim.anew] {
            names.retain(|name| {
                let open = calls.opens.open(*name);
                let is_his = open.is_some_and(|open| link.is_call_of(open.user.as_ref(), user));
                lost.extend(is_his.then_some(*name));
                !is_his
            });
        }
        lost.into_iter().for_each(|name| calls.give_up_open(name, status));
    }

    /// Processes the answer to one of these.
    pub(super) fn on_reclaimed(
        &mut self,
        link: &Link,
        calls: &mut Calls,
        number: usize,
        reply: &ReplyMessage,
    ) {
        let (now, server) = (link.now, link.info.client_id);
        let Some(asked) = self.reclaim.answered(number) else { return };
        if is_passing(reply.status) && self.reclaim.until.is_some_and(|until| now < until) {
            self.reclaim.again(asked);
            return self.retry_later(now);
        }
        match asked {
            Asked::Open(name, anew) => match reply.decode() {
                Ok(Outcome::Ok(Reply::Open(open))) if open.state_id != StateId::ZERO => {
                    calls.opens.reclaimed(name, open.state_id, server);
                    self.reclaim.locks.extend(calls.opens.locks_of(name, server));
                    calls.delegations.regained(&open, anew, server, now);
                }
                // The grace period is over, or the server cannot reclaim. This open conflicts with
                // no other, so a new one is as good.
                _ if !anew
                    && !is_gone(reply.status)
                    && calls.opens.open(name).is_some_and(|open| open.is_harmless()) =>
                {
                    self.reclaim.anew.push_back(name);
                }
                _ => calls.give_up_open(name, reply.status),
            },
            Asked::Lock(name, lock) if reply.status.is_ok() => {
                calls.opens.lock_reclaimed(name, &lock, server);
            }
            Asked::Lock(name, _) => calls.give_up_open(name, reply.status),
        }
    }
}

impl SessionCore {
    /// Sends as many reclaims as there are credits for; true when all requests of this step are
    /// answered.
    pub(super) fn reclaim_some(&mut self, adapter: &mut dyn Adapter, step: Step) -> bool {
        while let Some(recovery) = in_step(&mut self.recovery, step) {
            let Some(asked) = recovery.reclaim.next(step, self.link.conn.has_room()) else {
                return recovery.reclaim.is_over(step);
            };
            // Copied, because sending needs all of the session; it is a few dozen bytes.
            let open = self.calls.opens.open(asked.name()).cloned();
            // The user that opened the file opens it again; locks belong to the open.
            let user = open.as_ref().filter(|_| asked.is_open()).and_then(|open| open.user.clone());
            match self.take_turn(adapter, user.as_ref()) {
                Ok(true) => {}
                Ok(false) => {
                    if let Some(recovery) = in_step(&mut self.recovery, step) {
                        recovery.reclaim.put_back(asked);
                    }
                    return false;
                }
                Err(status) => {
                    self.calls.give_up_open(asked.name(), status);
                    continue;
                }
            }
            let Some(recovery) = in_step(&mut self.recovery, step) else { return false };
            let request =
                open.as_ref().and_then(|open| asked.request(open, &self.link, &self.calls));
            if let Some(request) = request {
                let number = recovery.reclaim.ask(asked);
                self.send_own_as(adapter, Purpose::Reclaim(number), &request, user);
            }
        }
        false
    }
}

impl Calls {
    fn give_up_open(&mut self, name: StateId, status: Status) {
        tracing::warn!(%status, "an open or a lock could not be taken back after a restart");
        let told = if is_gone(status) { Status::Stale } else { Status::StaleStateId };
        self.opens.lost(name, told);
    }
}

/// True when the file does not exist any more.
fn is_gone(status: Status) -> bool {
    matches!(status, Status::Stale | Status::BadHandle | Status::FhExpired | Status::NoEnt)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_puts_off_for_ever_costs_no_memory() {
        let mut reclaim = Reclaim::default();
        let name = StateId([1; 8]);
        let first = reclaim.ask(Asked::Open(name, false));
        for _ in 0..1000 {
            let number = reclaim.ask(Asked::Open(name, true));
            assert!(matches!(reclaim.answered(number), Some(Asked::Open(_, true))));
            assert!(reclaim.answered(number).is_none(), "answered twice");
        }
        assert!(matches!(reclaim.answered(first), Some(Asked::Open(_, false))));
        assert!(reclaim.asked.is_empty() && reclaim.asked.capacity() < 100);
    }
}
