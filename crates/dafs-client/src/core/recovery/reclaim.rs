//! Reclaiming opens and locks from a restarted server (DAFS 9, 10.1, 12).
//!
//! Invariants
//! * A lock is reclaimed as soon as its own open has been: no other open delays it.
//! * Opens that are not reclaimed come last. A server answers GRACE to new opens until all reclaims
//!   are done, and accepts no reclaim after that.
//! * A request that the server delays for ever is given up before the session is.

use super::{Recovery, SessionCore, Step, in_step};
use crate::backoff::is_passing;
use crate::core::call::{Purpose, ReplyMessage};
use crate::core::open_states::HeldLock;
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
enum Asked {
    Open(StateId, bool),
    Lock(StateId, HeldLock),
}

impl Reclaim {
    /// The next request.
    fn next(&mut self, step: Step) -> Option<Asked> {
        if let Some((name, lock)) = self.locks.pop_front() {
            return Some(Asked::Lock(name, lock));
        }
        if let Some(name) = self.opens.pop_front() {
            return Some(Asked::Open(name, false));
        }
        let name = (step == Step::Anew).then(|| self.anew.pop_front())?;
        name.map(|name| Asked::Open(name, true))
    }

    /// Puts a request back that was not sent.
    fn put_back(&mut self, next: Asked) {
        match next {
            Asked::Lock(name, lock) => self.locks.push_front((name, lock)),
            Asked::Open(name, false) => self.opens.push_front(name),
            Asked::Open(name, true) => self.anew.push_front(name),
        }
    }

    /// Puts a request back for a retry, behind all others.
    fn again(&mut self, asked: Asked) {
        match asked {
            Asked::Lock(name, lock) => self.locks.push_back((name, lock)),
            Asked::Open(name, false) => self.opens.push_back(name),
            Asked::Open(name, true) => self.anew.push_back(name),
        }
    }

    fn ask(&mut self, what: Asked) -> usize {
        self.last += 1;
        self.asked.insert(self.last, what);
        self.last
    }

    fn answered(&mut self, number: usize) -> Option<Asked> {
        self.asked.remove(&number)
    }
}

impl SessionCore {
    pub(super) fn begin_opens(&mut self) {
        let server = self.info.client_id;
        let opens = self.opens.opens_to_reclaim(server).into();
        // Locks of opens that were reclaimed before recovery had to begin again.
        let mut locks = self.opens.locks_to_reclaim(server);
        locks.retain(|(name, _)| self.opens.open(*name).is_some_and(|open| open.is_at(server)));
        let now = self.now;
        if let Some(recovery) = &mut self.recovery {
            let until = Some(now + recovery.until.since(now) / 2);
            let locks = locks.into();
            recovery.reclaim = Reclaim { opens, locks, until, ..Reclaim::default() };
        }
    }

    /// Sends as many requests as there are credits for; true when all requests of this step are
    /// answered.
    pub(super) fn reclaim_some(
        &mut self,
        adapter: &mut dyn Adapter,
        now: Instant,
        step: Step,
    ) -> bool {
        while let Some(Recovery { reclaim, .. }) = in_step(&mut self.recovery, step) {
            let Some(next) = reclaim.next(step) else { return reclaim.asked.is_empty() };
            if !self.conn.has_room() {
                reclaim.put_back(next);
                return false;
            }
            let number = reclaim.ask(next);
            match next {
                Asked::Open(name, anew) => self.ask_for_open(adapter, now, number, name, anew),
                Asked::Lock(name, lock) => self.ask_for_lock(adapter, now, number, name, &lock),
            }
        }
        false
    }

    fn ask_for_open(
        &mut self,
        adapter: &mut dyn Adapter,
        now: Instant,
        number: usize,
        name: StateId,
        anew: bool,
    ) {
        let Some(open) = self.opens.open(name) else { return self.forget_question(number) };
        // Copied, because sending needs all of the session; it is a few dozen bytes.
        let open = open.clone();
        let claim = if anew {
            // An empty path names the object itself.
            OpenClaim::Null { dir: open.handle, path: Path::new(&[]) }
        } else {
            let server = self.info.client_id;
            let delegate_type = self.back.delegations.to_reclaim(&open.handle, server);
            OpenClaim::Previous { fh: open.handle, delegate_type }
        };
        let request = Request::Open(Open {
            claim,
            create: None,
            delete_disposition: open.disposition,
            owner: &open.owner,
            share_access: open.access,
            share_deny: open.deny,
            share_key: open.key,
        });
        self.send_own(adapter, now, Purpose::Reclaim(number), &request);
    }

    fn ask_for_lock(
        &mut self,
        adapter: &mut dyn Adapter,
        now: Instant,
        number: usize,
        name: StateId,
        lock: &HeldLock,
    ) {
        let Some(open) = self.opens.open(name) else { return self.forget_question(number) };
        // When another lock of it is lost, the open is as good as lost.
        let Ok(current) = self.opens.current(name) else { return self.forget_question(number) };
        let request = Request::Lock(lock.request(open.handle, current));
        self.send_own(adapter, now, Purpose::Reclaim(number), &request);
    }

    fn forget_question(&mut self, number: usize) {
        if let Some(recovery) = &mut self.recovery {
            recovery.reclaim.answered(number);
        }
    }

    /// Processes the answer to one of these.
    pub(in crate::core) fn on_reclaimed(&mut self, number: usize, reply: &ReplyMessage) {
        let (now, server) = (self.now, self.info.client_id);
        let Some(recovery) = &mut self.recovery else { return };
        let Some(asked) = recovery.reclaim.answered(number) else { return };
        if is_passing(reply.status) && recovery.reclaim.until.is_some_and(|until| now < until) {
            recovery.reclaim.again(asked);
            return recovery.retry_later(now);
        }
        match asked {
            Asked::Open(name, anew) => match reply.decode() {
                Ok(Outcome::Ok(Reply::Open(open))) if open.state_id != StateId::ZERO => {
                    self.opens.reclaimed(name, open.state_id, server);
                    recovery.reclaim.locks.extend(self.opens.locks_of(name, server));
                    self.back.regained(&open, anew, server, self.now);
                }
                // The grace period is over, or the server cannot reclaim. This open conflicts with
                // no other, so a new one is as good.
                _ if !anew
                    && !is_gone(reply.status)
                    && self.opens.open(name).is_some_and(|open| open.is_harmless()) =>
                {
                    recovery.reclaim.anew.push_back(name);
                }
                _ => self.give_up_open(name, reply.status),
            },
            Asked::Lock(name, lock) if reply.status.is_ok() => {
                self.opens.lock_reclaimed(name, &lock, server);
            }
            Asked::Lock(name, _) => self.give_up_open(name, reply.status),
        }
    }

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
