//! Work under the driver's lock: delivering results, and releasing state that the application has
//! dropped.

use super::clock::Asleep;
use super::followers::{Bells, Followers};
use super::spinning::Spinning;
use super::{Driver, Leader, Leave, Slot, coarse_now};
use crate::acting;
use crate::cache::DirectUse;
use crate::core::{
    BackEvent, BackStage, Completed, Done, Failure, Piece, Prepared, ProofOrder, ReadCall, Refused,
    RegisteredMemory, SessionCore, SessionStats, WriteCall,
};
use crate::delegation::{DelegationNotice, Granted, HeldAttributes, Holders};
use crate::error::Result;
use crate::group::{Completion, OperationId};
use crate::helper::Helper;
use crate::operations::{Finished, Grouped, GroupedKind, Operations};
use crate::optimistic::ReadStart;
use crate::outcome::{appended_word, moved};
use crate::uncommitted::Uncommitted;
use dafs_dat::descriptors::Watch;
use dafs_dat::tls::TlsPeer;
use dafs_dat::{Adapter, Instant, RegisterError};
use dafs_mem::Buffer;
use dafs_wire::dafs::{Attributes, DelegReturn, Outcome, Procedure, Reply, Request, StateId};
use rustc_hash::FxHashSet;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

impl Driver {
    pub(crate) fn new(
        adapter: Box<dyn Adapter>,
        core: SessionCore,
        server: Arc<str>,
        deadline: Option<Duration>,
    ) -> Self {
        Self {
            adapter,
            spare: None,
            told: (core.stage(), core.back_stage()),
            core,
            events: Vec::new(),
            operations: Operations::new(),
            wakers: Vec::new(),
            followed: Vec::new(),
            leaves: VecDeque::new(),
            keeping: FxHashSet::default(),
            holders: Holders::default(),
            questions: VecDeque::new(),
            asked: Arc::default(),
            helper: Helper::default(),
            lease_until: Arc::default(),
            promised_until: Instant(0),
            asleep: Asleep::new(),
            restarts: Arc::default(),
            connection: Arc::default(),
            leader: Leader::Nobody,
            followers: Followers::default(),
            spinning: Spinning::default(),
            drives: 0,
            gathering: false,
            deadline,
            server,
        }
    }

    pub(crate) fn core(&self) -> &SessionCore {
        &self.core
    }

    /// Notes whether another process may have a session of the same client.
    pub(crate) fn share_identity(&mut self, is_shared: bool) {
        self.core.share_identity(is_shared);
    }

    /// The time at which a proof of identity is due, if one is.
    pub(crate) fn proof_due_at(&self) -> Option<Instant> {
        self.core.proof_due_at()
    }

    /// Begins a proof that is due.
    pub(crate) fn begin_proof(&mut self, now: Instant) -> Option<ProofOrder> {
        self.core.begin_proof(now)
    }

    /// Sends a proof that was due.
    pub(crate) fn give_proof(&mut self, prepared: Prepared) {
        self.core.give_proof(&mut *self.adapter, prepared, Instant::now());
        self.adapter.flush();
    }

    /// The protection of the operation channel by TLS.
    pub(crate) fn tls(&self) -> Option<Arc<TlsPeer>> {
        self.adapter.peer(self.core.endpoint()?)?.tls
    }

    pub(crate) fn adapter(&mut self) -> &mut dyn Adapter {
        &mut *self.adapter
    }

    /// Polls the adapter once and delivers completions; returns the number of events for waiters.
    pub(crate) fn progress(&mut self, now: Instant) -> usize {
        self.drives = self.drives.wrapping_add(1);
        // The poll sends them.
        self.gathering = false;
        // Before the server's next write is processed.
        self.core.reap(&mut *self.adapter);
        let mut events = std::mem::take(&mut self.events);
        let seen = self.adapter.poll(now, &mut events);
        for event in events.drain(..) {
            self.core.handle(&mut *self.adapter, event, now);
        }
        self.events = events;
        if !self.adapter.is_intact() {
            self.lose_descriptors();
        }
        if self.core.next_timeout().is_some_and(|at| at <= now) {
            self.core.on_time(&mut *self.adapter, now);
        }
        let changed = self.change_if_stuck(now);
        self.settle_spare(now);
        if seen > 0 {
            self.adapter.flush();
        }
        // An operation may have been the last holder of memory whose owner waits only for its
        // result.
        self.core.reap(&mut *self.adapter);
        // Before a caller gets an answer of the server's new run.
        self.restarts.store(self.core.link.stats.restarts, Ordering::Release);
        let count = self.hand_out() + usize::from(changed);
        if self.core.back_stage() != BackStage::Off {
            self.hear();
        }
        if !self.leaves.is_empty() {
            self.leave_all();
        }
        if self.core.proof_due_at().is_some_and(|at| at <= now) {
            self.helper.wake();
        }
        count
    }

    /// The program has closed descriptors of the library. No other connection can be waited for
    /// either, so the session is over.
    pub(super) fn lose_descriptors(&mut self) {
        self.core.end(&mut *self.adapter, Failure::lost(Watch::LOST));
    }

    #[cfg(test)]
    pub(crate) fn holders(&mut self) -> &mut Holders {
        &mut self.holders
    }

    /// Passes the server's calls on to the holders of delegations.
    pub(super) fn hear(&mut self) {
        while let Some(event) = self.core.take_back_event() {
            match event {
                BackEvent::Recall { delegation, truncate } => {
                    if !self.holders.tell(delegation, DelegationNotice::Recall { truncate }) {
                        self.leave_delegation(delegation);
                    }
                }
                BackEvent::Lost { delegation } => {
                    self.holders.tell(delegation, DelegationNotice::Lost);
                }
                BackEvent::Question { question, delegation } => {
                    match self.holders.get(delegation) {
                        Some(holder) => {
                            self.questions.push_back((question, holder));
                            self.asked.store(true, Ordering::Release);
                            self.helper.wake();
                        }
                        None => self.answer(question, None),
                    }
                }
            }
        }
        // Last, so that the lease is not extended before a holder is notified of a loss before
        // that.
        if self.core.promised_until() != self.promised_until {
            self.notice_sleep();
            self.promised_until = self.core.promised_until();
            let until = match self.promised_until {
                // No promise holds.
                Instant(0) => Instant(0),
                until => self.asleep.awake_or_not(until),
            };
            self.lease_until.store(until.0, Ordering::Release);
        }
    }

    /// Accounts for a suspension of the machine, during which leases have run on.
    fn notice_sleep(&mut self) {
        if let Some(time) = self.asleep.more() {
            tracing::debug!(?time, "the machine has been suspended");
            self.core.slept(time);
        }
    }

    pub(super) fn answer(&mut self, question: u64, answer: Option<HeldAttributes>) {
        let attributes = answer.map(|held| Attributes {
            change: Some(held.change),
            object_size: Some(held.size),
            time_modify: held.modified,
            ..Attributes::default()
        });
        self.core.answer_question(&mut *self.adapter, question, attributes.as_ref());
        self.adapter.flush();
    }

    /// Returns a delegation without a holder.
    pub(super) fn leave_delegation(&mut self, name: StateId) {
        if self.core.calls.delegations.returning(name) {
            self.leaves.push_back(Leave::Delegation(name));
        }
    }

    /// Releases state that the application has dropped, as far as there is room.
    pub(super) fn leave_all(&mut self) {
        while let Some(leave) = self.leaves.front() {
            let request = match *leave {
                Leave::File(close) => Request::Close(close),
                Leave::Delegation(state_id) => Request::DelegReturn(DelegReturn { state_id }),
            };
            let Some(slot) = self.operations.open() else { return };
            // There is no waiter, but an open may conflict with others: the request has no timeout,
            // so that an unreachable server can come back.
            let (adapter, now) = (&mut *self.adapter, coarse_now());
            match self.core.submit(adapter, now, slot.tag(), &request, None, None) {
                // There is no waker to call.
                Ok(()) => drop(self.operations.abandon(slot)),
                Err(Refused::Full) => return self.operations.forget(slot),
                // With the session the server releases all of its state.
                Err(_) => {
                    self.operations.forget(slot);
                    return self.leaves.clear();
                }
            }
            self.leaves.pop_front();
        }
    }

    /// Delivers completed calls to their owners. Returns the number of events for waiters: these
    /// calls, and one more when the session or its back-control channel has changed its stage.
    pub(crate) fn hand_out(&mut self) -> usize {
        self.note_connection();
        let stages = (self.core.stage(), self.core.back_stage());
        let mut count = usize::from(std::mem::replace(&mut self.told, stages) != stages);
        while let Some(Completed { tag, done }) = self.core.take_completed() {
            count += 1;
            self.leave_unwanted(tag, &done);
            match self.operations.finish(tag, done) {
                Finished::Waiting => {}
                Finished::Wake(waker) => self.wakers.push(waker),
                Finished::Grouped(grouped, done) => self.complete(tag, grouped, done),
                Finished::Followed(then, done) => self.followed.push((then, done)),
            }
        }
        count
    }

    /// Removes the followers to be woken from their list, after operations have completed.
    pub(super) fn call_done(&mut self, bells: &mut Bells) {
        if !self.followers.is_empty() {
            let operations = &self.operations;
            self.followers.take_done(|tag| operations.is_over(tag), bells);
        }
    }

    /// Hands the result of an operation to its group.
    fn complete(&mut self, tag: u64, Grouped { group, kind }: Grouped, done: Done) {
        let operation = OperationId(tag);
        let (user_data, result) = match kind {
            GroupedKind::Transfer(user_data) => {
                (user_data, moved(done, &self.server).map(|moved| moved.bytes))
            }
            GroupedKind::Commit(user_data, watch) => {
                (user_data, watch.judge(done, &self.server).map(|()| 0))
            }
            GroupedKind::Append(user_data) => (user_data, appended_word(done, &self.server)),
            GroupedKind::Batch(sent) => {
                let results = sent.results(done, &self.server, &self.core);
                return group.finished(results.map(|(user_data, result)| Completion {
                    user_data,
                    operation,
                    result,
                }));
            }
        };
        group.finished([Completion { user_data, operation, result }]);
    }

    /// Returns a delegation that was not asked for at once: it would only delay other clients.
    pub(super) fn leave_unwanted(&mut self, tag: u64, done: &Done) {
        let wanted = self.keeping.remove(&tag);
        if let Done::Answered(reply) = done
            && reply.procedure() == Procedure::Open
            && !wanted
            && let Ok(Outcome::Ok(Reply::Open(opened))) = reply.decode()
            && let Some(granted) = Granted::of(&opened)
        {
            self.leave_delegation(granted.state_id);
        }
    }

    pub(crate) fn submit_read(&mut self, tag: u64, call: ReadCall) -> Result<(), Refused> {
        self.core.act_as(acting::current());
        self.core.submit_read(&mut *self.adapter, coarse_now(), tag, call, self.deadline)
    }

    /// Submits a read, unless it is over: its result is handed out with those of the server.
    pub(crate) fn start_read(&mut self, tag: u64, read: ReadStart) -> Result<(), Refused> {
        match read {
            ReadStart::Hit(moved) => {
                self.core.calls.complete(tag, moved.into_read());
                Ok(())
            }
            ReadStart::Request(call) => self.submit_read(tag, call),
        }
    }

    /// `writes` is updated when the write is answered as unstable.
    pub(crate) fn submit_write(
        &mut self,
        tag: u64,
        call: WriteCall,
        writes: Option<Arc<Uncommitted>>,
    ) -> Result<(), Refused> {
        if call.delegation.is_some() {
            self.notice_sleep();
        }
        self.core.act_as(acting::current());
        self.core.submit_write(&mut *self.adapter, coarse_now(), tag, call, self.deadline)?;
        self.operations.watch(tag, writes);
        Ok(())
    }

    /// Ties a use of a file that bypasses the cache to the operation.
    pub(crate) fn keep(&mut self, tag: u64, used: Option<Arc<DirectUse>>) {
        self.operations.keep(tag, used);
    }

    pub(crate) fn submit(
        &mut self,
        tag: u64,
        request: &Request<'_>,
        memory: impl IntoIterator<Item = Piece>,
    ) -> Result<(), Refused> {
        let (now, deadline) = (coarse_now(), self.deadline);
        self.core.act_as(acting::current());
        self.core.submit(&mut *self.adapter, now, tag, request, memory, deadline)
    }

    pub(crate) fn allocate(&mut self, bytes: usize) -> io::Result<Arc<Buffer>> {
        self.adapter.allocate(bytes)
    }

    pub(crate) fn register(
        &mut self,
        buffer: Arc<Buffer>,
    ) -> Result<Arc<RegisteredMemory>, RegisterError> {
        self.core.register(&mut *self.adapter, buffer)
    }

    /// True when operations are in flight for which no thread makes progress. A reader makes
    /// progress for its own read-ahead, and otherwise the thread that polls for calls of the server
    /// does.
    pub(crate) fn is_unattended(&self) -> bool {
        let ahead = self.listens_every().map_or(0, |_| self.operations.ahead());
        let is_idle = self.core.is_idle_but_for(ahead) && self.leaves.is_empty();
        self.leader == Leader::Nobody && !is_idle
    }

    /// Takes the result of an operation, if it is over.
    pub(crate) fn take(&mut self, slot: &Slot) -> Option<Done> {
        self.operations.take(slot)
    }

    /// True while a program sleeps outside of this library for an operation in flight.
    pub(super) fn is_watched(&self) -> bool {
        self.operations.watched() > 0
    }

    /// True while an operation without a waiter has a continuation.
    pub(super) fn is_followed(&self) -> bool {
        self.operations.followed() > 0 || !self.followed.is_empty()
    }

    pub(crate) fn is_done(&self, slot: &Slot) -> bool {
        self.operations.is_done(slot)
    }

    /// The longest time between polls for calls of the server.
    pub(crate) fn listens_every(&self) -> Option<Duration> {
        self.core.listens_every()
    }

    /// True if nothing is gained when submitted requests wait for later ones: no other is in flight,
    /// or there is no credit for another one.
    pub(super) fn must_send(&self) -> bool {
        let SessionStats { in_flight, queued, .. } = self.core.stats();
        in_flight <= 1 || queued > 0
    }

    /// True if requests wait for a poll although a leader sleeps.
    pub(crate) fn is_gathering(&self) -> bool {
        self.gathering
    }

    /// True while a thread leads.
    pub(crate) fn is_led(&self) -> bool {
        self.leader != Leader::Nobody
    }

    pub(crate) fn drives(&self) -> u64 {
        self.drives
    }

    /// The time at which a thread must poll even if no event arrives.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        let timeouts =
            [self.core.next_timeout(), self.adapter.next_timeout(), self.spare_timeout()];
        timeouts.into_iter().flatten().min()
    }
}
