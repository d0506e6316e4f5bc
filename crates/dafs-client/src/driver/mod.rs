//! One session and its adapter, shared by threads.
//!
//! Whoever waits drives: one waiting thread is the leader and polls the adapter, the others wait
//! until it hands over. No thread of ours stands between an answer and its waiter.
//!
//! Invariants
//! * The driver is only touched under its lock. A leader that spins gives the lock to whoever
//!   wants it; a leader that sleeps holds no lock.
//! * While a leader sleeps the adapter is armed, or the leader's wake-up has been rung: every
//!   thread that touches the adapter meanwhile sees to that before it unlocks.
//! * A leader that stops leading wakes a follower, if there is one.

mod clock;
mod waiter;

use crate::backoff::{Backoff, is_passing};
use crate::buffer::IoBuffer;
use crate::cache::DirectUse;
use crate::core::{
    BackEvent, BackStage, BatchCall, BatchHints, ChainMember, Completed, Done, Failure, Piece,
    ReadCall, Refused, RegisteredMemory, ReplyMessage, SessionCore, SessionInfo, SessionStats,
    Stage, WriteCall,
};
use crate::delegation::{Granted, HeldAttributes, Holders, News, Recalled};
use crate::error::{Error, Result};
use crate::fork;
use crate::helper::Helper;
use crate::limits::BACK_WAIT;
use crate::operations::{Finished, Operations};
use crate::options::{Transport, WaitPolicy};
use crate::outcome::{ended, failure_of, moved};
use crate::pending::Moved;
use crate::uncommitted::Uncommitted;
use crate::wakeup::Wakeup;
use dafs_dat::{Adapter, Event, Instant, RegisterError};
use dafs_mem::Buffer;
use dafs_wire::dafs::{
    Attributes, ByteOrder, ChainFlags, Checksum, Close, DelegReturn, Outcome, Procedure, Reply,
    Request, StateId,
};
use rustc_hash::FxHashSet;
use std::collections::VecDeque;
use std::fmt::Display;
use std::io;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::time::Duration;
use waiter::{Spinning, Waiter};

pub(crate) use {crate::operations::Slot, clock::coarse_now};

/// Who drives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leader {
    Nobody,
    Polling,
    Sleeping,
}

/// Something held at the server that nobody wants any more.
#[derive(Debug, Clone, Copy)]
enum Leave {
    File(Close),
    Delegation(StateId),
}

/// The part under the lock.
pub(crate) struct Driver {
    adapter: Box<dyn Adapter>,
    core: SessionCore,
    events: Vec<Event>,
    operations: Operations,
    /// Results of tagged operations that have not been fetched.
    ready: VecDeque<(u64, Result<usize>)>,
    /// What is given up as soon as there is room for one more operation; at most all that is held.
    leaves: VecDeque<Leave>,
    /// Operations that open files and keep the delegation that comes along.
    keeping: FxHashSet<u64>,
    holders: Holders,
    /// What the server asks the holders, for the helper thread: it may call them.
    questions: VecDeque<(u64, Weak<dyn Recalled>)>,
    /// There are some; for a look without the lock.
    asked: Arc<AtomicBool>,
    helper: Helper,
    /// Until when the server keeps its promises for certain, on the coarse clock.
    lease_until: Arc<AtomicU64>,
    /// Restarts of the server seen.
    restarts: Arc<AtomicU64>,
    leader: Leader,
    followers: u32,
    spinning: Spinning,
    /// Counts the times that anybody moved things along, for the helper to see whether it must.
    drives: u64,
    deadline: Option<Duration>,
    server: Arc<str>,
}

/// What all clones of a client share.
pub(crate) struct Shared {
    /// Dropped by hand: a fork must leave the descriptors alone that it shares with its parent.
    driver: ManuallyDrop<Mutex<Driver>>,
    /// Followers wait here.
    turn: Condvar,
    /// Threads that want the lock while somebody spins with it.
    contenders: AtomicU32,
    wakeup: Wakeup,
    helper: Helper,
    asked: Arc<AtomicBool>,
    lease_until: Arc<AtomicU64>,
    restarts: Arc<AtomicU64>,
    forks: u32,
    policy: WaitPolicy,
    server: Arc<str>,
    transport: Transport,
    order: ByteOrder,
    info: SessionInfo,
    deadline: Option<Duration>,
    pub(crate) staging: Mutex<Vec<IoBuffer>>,
}

type Guard<'a> = MutexGuard<'a, Driver>;

impl Driver {
    pub(crate) fn new(
        adapter: Box<dyn Adapter>,
        core: SessionCore,
        server: Arc<str>,
        deadline: Option<Duration>,
    ) -> Self {
        Self {
            adapter,
            core,
            events: Vec::new(),
            operations: Operations::new(),
            ready: VecDeque::new(),
            leaves: VecDeque::new(),
            keeping: FxHashSet::default(),
            holders: Holders::default(),
            questions: VecDeque::new(),
            asked: Arc::default(),
            helper: Helper::default(),
            lease_until: Arc::default(),
            restarts: Arc::default(),
            leader: Leader::Nobody,
            followers: 0,
            spinning: Spinning::default(),
            drives: 0,
            deadline,
            server,
        }
    }

    pub(crate) fn core(&self) -> &SessionCore {
        &self.core
    }

    pub(crate) fn adapter(&mut self) -> &mut dyn Adapter {
        &mut *self.adapter
    }

    /// Polls the adapter once and hands out what has completed; returns how much that was.
    pub(crate) fn progress(&mut self, now: Instant) -> usize {
        self.drives = self.drives.wrapping_add(1);
        // Before the server's next write is let in.
        self.core.reap(&mut *self.adapter);
        let mut events = std::mem::take(&mut self.events);
        let seen = self.adapter.poll(now, &mut events);
        for event in events.drain(..) {
            self.core.handle(&mut *self.adapter, event, now);
        }
        self.events = events;
        if self.core.next_timeout().is_some_and(|at| at <= now) {
            self.core.on_time(&mut *self.adapter, now);
        }
        if seen > 0 {
            self.adapter.flush();
        }
        // An operation may have held memory last whose owner waits for nothing but its result.
        self.core.reap(&mut *self.adapter);
        let count = self.hand_out();
        if self.core.back_stage() != BackStage::Off {
            self.hear();
        }
        if !self.leaves.is_empty() {
            self.leave_all();
        }
        count
    }

    /// Passes on what the server wants of the holders of delegations.
    fn hear(&mut self) {
        self.restarts.store(self.core.stats().restarts, Ordering::Release);
        self.lease_until.store(self.core.promised_until().0, Ordering::Release);
        while let Some(event) = self.core.take_back_event() {
            match event {
                BackEvent::Recall { delegation, truncate } => {
                    if !self.holders.tell(delegation, News::Recall { truncate }) {
                        self.leave_delegation(delegation);
                    }
                }
                BackEvent::Lost { delegation } => {
                    self.holders.tell(delegation, News::Lost);
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
    }

    fn answer(&mut self, question: u64, answer: Option<HeldAttributes>) {
        let attributes = answer.map(|held| Attributes {
            change: Some(held.change),
            object_size: Some(held.size),
            time_modify: held.modified,
            ..Attributes::default()
        });
        self.core.answer_question(&mut *self.adapter, question, attributes.as_ref());
        self.adapter.flush();
    }

    /// Nobody holds a delegation.
    fn leave_delegation(&mut self, name: StateId) {
        if self.core.give_up_delegation(name) {
            self.leaves.push_back(Leave::Delegation(name));
        }
    }

    /// Gives up what nobody wants any more, as far as there is room.
    fn leave_all(&mut self) {
        while let Some(leave) = self.leaves.front() {
            let request = match *leave {
                Leave::File(close) => Request::Close(close),
                Leave::Delegation(state_id) => Request::DelegReturn(DelegReturn { state_id }),
            };
            let Some(slot) = self.operations.open() else { return };
            // Nobody waits, but what stays open keeps others out: it has all the time that a server
            // which is away needs to come back.
            let (adapter, now) = (&mut *self.adapter, coarse_now());
            match self.core.submit(adapter, now, slot.tag(), &request, None, None) {
                Ok(()) => self.operations.abandon(slot),
                Err(Refused::Full) => return self.operations.forget(slot),
                // With the session the server takes back all that was held in it.
                Err(_) => {
                    self.operations.forget(slot);
                    return self.leaves.clear();
                }
            }
            self.leaves.pop_front();
        }
    }

    /// Gives completed calls to whoever asked for them.
    pub(crate) fn hand_out(&mut self) -> usize {
        let mut count = 0;
        while let Some(Completed { tag, done }) = self.core.take_completed() {
            count += 1;
            self.leave_unwanted(tag, &done);
            if let Finished::Tagged(tag, done) = self.operations.finish(tag, done) {
                let result = moved(done, &self.server).map(|moved| moved.bytes);
                self.ready.push_back((tag, result));
            }
        }
        count
    }

    /// A delegation that nobody has asked for is given back at once: it would only keep others
    /// waiting.
    fn leave_unwanted(&mut self, tag: u64, done: &Done) {
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
        self.core.submit_read(&mut *self.adapter, coarse_now(), tag, call, self.deadline)
    }

    /// `writes` is told when the data was written and is not stable.
    pub(crate) fn submit_write(
        &mut self,
        tag: u64,
        call: WriteCall,
        writes: Option<Arc<Uncommitted>>,
    ) -> Result<(), Refused> {
        self.core.submit_write(&mut *self.adapter, coarse_now(), tag, call, self.deadline)?;
        self.operations.watch(tag, writes);
        Ok(())
    }

    /// The operation is a use of a file beside the cache.
    pub(crate) fn keep(&mut self, tag: u64, used: Option<DirectUse>) {
        self.operations.keep(tag, used);
    }

    pub(crate) fn submit(
        &mut self,
        tag: u64,
        request: &Request<'_>,
        memory: impl IntoIterator<Item = Piece>,
    ) -> Result<(), Refused> {
        let (now, deadline) = (coarse_now(), self.deadline);
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

    /// True when operations are in flight that no thread is looking after.
    pub(crate) fn is_unattended(&self) -> bool {
        self.leader == Leader::Nobody && !(self.core.is_idle() && self.leaves.is_empty())
    }

    /// Takes the result of an operation, if it is over.
    pub(crate) fn take(&mut self, slot: &Slot) -> Option<Done> {
        self.operations.take(slot)
    }

    /// How often somebody must look for calls of the server.
    pub(crate) fn listens_every(&self) -> Option<Duration> {
        self.core.listens_every()
    }

    /// True while a thread sees to it that things move along.
    pub(crate) fn is_led(&self) -> bool {
        self.leader != Leader::Nobody
    }

    pub(crate) fn drives(&self) -> u64 {
        self.drives
    }

    /// When somebody must poll even if nothing arrives.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        [self.core.next_timeout(), self.adapter.next_timeout()].into_iter().flatten().min()
    }
}

impl Shared {
    pub(crate) fn new(
        driver: Driver,
        policy: WaitPolicy,
        transport: Transport,
    ) -> io::Result<Arc<Self>> {
        let info = driver.core.info().clone();
        let order = driver.core.byte_order();
        let deadline = driver.deadline;
        let helper = driver.helper.clone();
        let (lease_until, restarts) = (driver.lease_until.clone(), driver.restarts.clone());
        let asked = driver.asked.clone();
        let shared = Arc::new(Self {
            server: driver.server.clone(),
            driver: ManuallyDrop::new(Mutex::new(driver)),
            turn: Condvar::new(),
            contenders: AtomicU32::new(0),
            wakeup: Wakeup::new()?,
            helper,
            asked,
            lease_until,
            restarts,
            forks: fork::count(),
            policy,
            transport,
            order,
            info,
            deadline,
            staging: Mutex::new(Vec::new()),
        });
        shared.helper.start(&shared)?;
        Ok(shared)
    }

    pub(crate) fn transport(&self) -> &Transport {
        &self.transport
    }

    pub(crate) fn server(&self) -> &str {
        &self.server
    }

    pub(crate) fn server_name(&self) -> &Arc<str> {
        &self.server
    }

    pub(crate) fn info(&self) -> &SessionInfo {
        &self.info
    }

    pub(crate) fn byte_order(&self) -> ByteOrder {
        self.order
    }

    pub(crate) fn stats(&self) -> SessionStats {
        // In a fork the lock may be one that is held for ever.
        self.lock().map_or_else(|_| SessionStats::default(), |driver| driver.core.stats())
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.lock().is_ok_and(|driver| driver.core.stage() == Stage::Ready)
    }

    /// The driver, unless this process is a fork of the one that connected.
    pub(crate) fn lock(&self) -> Result<Guard<'_>> {
        if self.forks != fork::count() {
            return Err(Error::Forked);
        }
        Ok(self.lock_regardless())
    }

    /// The driver, unless another thread has it now.
    pub(crate) fn lock_if_free(&self) -> Option<Guard<'_>> {
        match self.driver.try_lock() {
            Ok(guard) => Some(guard),
            // A panic under the lock leaves the state machine as it was between two steps at
            // worst; its own checks decide about the session.
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    pub(crate) fn lock_regardless(&self) -> Guard<'_> {
        if let Some(guard) = self.lock_if_free() {
            return guard;
        }
        self.contenders.fetch_add(1, Ordering::Relaxed);
        let guard = self.driver.lock().unwrap_or_else(PoisonError::into_inner);
        self.contenders.fetch_sub(1, Ordering::Relaxed);
        guard
    }

    /// The error for the end of the session.
    pub(crate) fn ended(&self, failure: &Failure) -> Error {
        ended(failure, &self.server)
    }

    /// The error for memory that could not be registered.
    pub(crate) fn failed(&self, error: &RegisterError) -> Error {
        Error::Memory(error.to_string().into())
    }

    /// The error for an answer that cannot be understood.
    pub(crate) fn broken(&self, reason: &dyn Display) -> Error {
        Error::Protocol { server: self.server.clone(), reason: reason.to_string().into() }
    }

    fn refused(&self, refused: Refused) -> Error {
        match refused {
            Refused::Over(failure) => self.ended(&failure),
            Refused::Full => Error::TooMany,
            Refused::ForeignMemory => Error::ForeignBuffer,
            Refused::ChainForm(reason) => Error::Argument(reason),
            Refused::ChainTooLong { members, credits } => Error::ChainTooLong { members, credits },
            Refused::NotReady => Error::Argument("the session is not open yet"),
            Refused::Encode(_) => Error::Argument("the request does not fit a message"),
        }
    }

    /// Whether data of this length is appended within a message.
    pub(crate) fn appends_inline(&self, bytes: usize) -> Result<bool> {
        Ok(self.lock()?.core.appends_inline(bytes))
    }

    /// The checksum that travels with direct data, when the session has checksums.
    pub(crate) fn data_checksum(&self, piece: &Piece) -> Result<Checksum> {
        Ok(self.lock()?.core.data_checksum(piece.view()))
    }

    /// The checksum of the first `limit` bytes of several pieces, one behind the other.
    pub(crate) fn data_checksum_of(&self, pieces: &[Piece], limit: usize) -> Result<Checksum> {
        if !self.info.checksums {
            return Ok(Checksum::ZERO);
        }
        let mut left = u32::try_from(limit).unwrap_or(u32::MAX);
        let views = pieces.iter().map(|piece| {
            let len = piece.len().min(left);
            left -= len;
            piece.first(len)
        });
        Ok(self.lock()?.core.checksum_of(views))
    }

    pub(crate) fn deadline(&self) -> Option<Duration> {
        self.deadline
    }

    /// `range` of a buffer, cut to `limit` bytes.
    pub(crate) fn piece(
        &self,
        buffer: &IoBuffer,
        range: Range<usize>,
        offset: u64,
        limit: usize,
    ) -> Result<Piece> {
        const BAD_RANGE: Error = Error::Argument("the range does not lie inside the buffer");
        let len = range.end.checked_sub(range.start).ok_or(BAD_RANGE)?;
        if range.end > buffer.len() {
            return Err(BAD_RANGE);
        }
        let len = u32::try_from(len.min(limit)).unwrap_or(u32::MAX);
        if offset.checked_add(len.into()).is_none_or(|end| end > i64::MAX.cast_unsigned()) {
            return Err(Error::Argument("the range lies beyond the largest file"));
        }
        Piece::new(buffer.memory(), range.start, len).ok_or(BAD_RANGE)
    }

    /// Starts an operation whose result somebody will wait for.
    pub(crate) fn submit(
        &self,
        start: impl FnOnce(&mut Driver, u64) -> Result<(), Refused>,
    ) -> Result<Slot> {
        let mut driver = self.lock()?;
        let slot = self.start(&mut driver, start)?;
        self.sent(&mut driver);
        Ok(slot)
    }

    fn start(
        &self,
        driver: &mut Driver,
        start: impl FnOnce(&mut Driver, u64) -> Result<(), Refused>,
    ) -> Result<Slot> {
        let slot = driver.operations.open().ok_or(Error::TooMany)?;
        if let Err(refused) = start(driver, slot.tag()) {
            driver.operations.forget(slot);
            return Err(self.refused(refused));
        }
        self.tell(driver);
        Ok(slot)
    }

    /// Hands out what a submission has ended at once, and wakes those who wait for it: nothing will
    /// arrive that does.
    fn tell(&self, driver: &mut Driver) {
        if driver.hand_out() == 0 {
            return;
        }
        if driver.followers > 0 {
            self.turn.notify_all();
        }
        if driver.leader == Leader::Sleeping {
            self.wakeup.ring();
        }
    }

    /// Starts an operation whose result is fetched under the caller's tag.
    pub(crate) fn submit_tagged(
        &self,
        tag: u64,
        start: impl FnOnce(&mut Driver, u64) -> Result<(), Refused>,
    ) -> Result<()> {
        let mut driver = self.lock()?;
        let slot = driver.operations.open_tagged(tag).ok_or(Error::TooMany)?;
        if let Err(refused) = start(&mut driver, slot.tag()) {
            driver.operations.forget(slot);
            return Err(self.refused(refused));
        }
        self.tell(&mut driver);
        // Who submits like this polls for the results, which sends all at once; the helper sees
        // to it should that not happen.
        self.hurry(&mut driver);
        self.helper.attend();
        Ok(())
    }

    /// Closes a file without waiting, now or as soon as there is room.
    pub(crate) fn close_file(&self, close: Close) {
        let Ok(mut driver) = self.lock() else { return };
        driver.leaves.push_back(Leave::File(close));
        driver.leave_all();
        self.sent(&mut driver);
    }

    /// Asks for the connection over which the server can call.
    pub(crate) fn listen(&self) -> Result<()> {
        let mut driver = self.lock()?;
        let inner = &mut *driver;
        if inner.core.back_stage() == BackStage::Off {
            inner.core.want_back(&mut *inner.adapter, coarse_now());
            self.sent(&mut driver);
            self.helper.wake();
        }
        Ok(())
    }

    /// As [`listen`](Self::listen), and waits for it as long as it is worth. Whether the server will
    /// call is its own affair.
    fn await_back(&self) -> Result<()> {
        self.listen()?;
        let driver = self.lock()?;
        let coming = |driver: &Driver| {
            driver.core.back_stage() == BackStage::Coming && driver.core.stage() == Stage::Ready
        };
        match self.wait(driver, Some(BACK_WAIT), |driver| (!coming(driver)).then_some(())) {
            Ok(()) | Err(Error::TimedOut(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Gives a delegation back that nobody holds, without waiting.
    pub(crate) fn leave_delegation(&self, name: StateId) {
        let Ok(mut driver) = self.lock() else { return };
        driver.holders.remove(name);
        driver.leave_delegation(name);
        driver.leave_all();
        self.sent(&mut driver);
    }

    /// Registers the holder of a delegation; false when that is gone.
    pub(crate) fn hold(
        self: &Arc<Self>,
        name: StateId,
        holder: Weak<dyn Recalled>,
    ) -> Result<bool> {
        let mut driver = self.lock()?;
        if !driver.core.holds_delegation(name) {
            return Ok(false);
        }
        let held = driver.holders.insert(name, holder, self);
        held.map_err(|error| Error::Memory(error.to_string().into()))?;
        self.helper.wake();
        Ok(true)
    }

    /// A delegation has no holder any more; false when it need not be returned.
    pub(crate) fn release(&self, name: StateId) -> Result<bool> {
        let mut driver = self.lock()?;
        driver.holders.remove(name);
        Ok(driver.core.give_up_delegation(name))
    }

    /// Restarts of the server that those who listen to it have been told of.
    pub(crate) fn restarts_heard(&self) -> u64 {
        self.restarts.load(Ordering::Acquire)
    }

    pub(crate) fn is_in_lease(&self) -> bool {
        // In a fork nobody hears of its end.
        self.forks == fork::count() && coarse_now().0 < self.lease_until.load(Ordering::Acquire)
    }

    /// Asks the holders what the server wants to know of them, and answers it. Called by the helper
    /// thread, without the lock.
    pub(crate) fn answer_questions(&self) {
        // Whoever polls would be kept up by somebody who wants the lock every few milliseconds.
        if !self.asked.swap(false, Ordering::Acquire) {
            return;
        }
        loop {
            let next = self.lock_regardless().questions.pop_front();
            let Some((question, holder)) = next else { return };
            let answer = holder.upgrade().and_then(|holder| holder.attributes());
            let mut driver = self.lock_regardless();
            driver.answer(question, answer);
            self.keep_armed(&mut driver);
        }
    }

    /// Sees to it that what was submitted leaves: at once when nothing else is under way or the
    /// leader sleeps, else with the next poll.
    fn sent(&self, driver: &mut Driver) {
        match driver.leader {
            Leader::Polling => {}
            Leader::Sleeping => self.hurry(driver),
            Leader::Nobody => {
                if driver.core.stats().in_flight <= 1 {
                    driver.adapter.flush();
                }
                self.helper.attend();
            }
        }
    }

    /// Sends what was submitted if nobody else is about to: the leader sleeps, and the caller will
    /// wait for it.
    fn hurry(&self, driver: &mut Driver) {
        if driver.leader == Leader::Sleeping {
            driver.adapter.flush();
            self.keep_armed(driver);
        }
    }

    /// Hands an asynchronous batch over; `writes` are told what was written and is not stable.
    pub(crate) fn submit_batch(
        &self,
        mut calls: Vec<BatchCall>,
        writes: Vec<Option<Arc<Uncommitted>>>,
        hints: BatchHints,
    ) -> Result<Vec<Slot>> {
        let mut guard = self.lock()?;
        let driver = &mut *guard;
        let mut slots = Vec::with_capacity(calls.len());
        for call in &mut calls {
            let Some(slot) = driver.operations.open() else { break };
            call.tag = slot.tag();
            slots.push(slot);
        }
        let taken = if slots.len() == calls.len() {
            for (slot, writes) in slots.iter().zip(writes) {
                driver.operations.watch(slot.tag(), writes);
            }
            let (core, adapter) = (&mut driver.core, &mut *driver.adapter);
            core.submit_batch(adapter, coarse_now(), calls, hints, driver.deadline)
        } else {
            Err(Refused::Full)
        };
        if let Err(refused) = taken {
            slots.into_iter().for_each(|slot| driver.operations.forget(slot));
            return Err(self.refused(refused));
        }
        self.tell(driver);
        self.sent(driver);
        Ok(slots)
    }

    /// Waits until `take` yields the result of some operation.
    pub(crate) fn wait_any<T>(
        &self,
        time: Option<Duration>,
        take: impl FnMut(&mut Driver) -> Option<T>,
    ) -> Result<T> {
        let driver = self.lock()?;
        self.wait(driver, time, take)
    }

    /// A transfer of a batch is not to wait for its window.
    pub(crate) fn hurry_transfer(&self, slot: &Slot) -> Result<()> {
        let mut guard = self.lock()?;
        let driver = &mut *guard;
        driver.core.hurry_transfer(&mut *driver.adapter, coarse_now(), slot.tag());
        self.sent(driver);
        Ok(())
    }

    /// Takes a transfer of a batch back; hands the slot back when it is too late.
    pub(crate) fn cancel_transfer(&self, slot: Slot) -> Result<Option<Slot>> {
        let mut driver = self.lock()?;
        if !driver.core.cancel_transfer(slot.tag()) {
            return Ok(Some(slot));
        }
        driver.operations.forget(slot);
        Ok(None)
    }

    /// Must be called by whoever touched the adapter while the leader sleeps.
    fn keep_armed(&self, driver: &mut Driver) {
        if driver.leader == Leader::Sleeping && !driver.adapter.arm().unwrap_or(false) {
            self.wakeup.ring();
        }
    }

    /// Ends the registrations that nobody holds any more.
    pub(crate) fn reap(&self) {
        // In a fork the memory is a copy that no server knows of.
        let Ok(mut driver) = self.lock() else { return };
        let inner = &mut *driver;
        inner.core.reap(&mut *inner.adapter);
        self.keep_armed(&mut driver);
    }

    pub(crate) fn flush(&self) -> Result<()> {
        let mut driver = self.lock()?;
        driver.adapter.flush();
        self.keep_armed(&mut driver);
        match driver.core.failure() {
            Some(failure) => Err(self.ended(failure)),
            None => Ok(()),
        }
    }

    /// Makes attempts until the server no longer puts it off, or the time of one operation is over.
    pub(crate) fn patiently<T>(&self, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
        let mut backoff = Backoff::new(self.deadline);
        loop {
            match attempt() {
                Err(error) if error.is_passing() && backoff.pause() => {}
                result => return result,
            }
        }
    }

    /// Sends one request and waits for its answer. A server that puts it off is asked again.
    pub(crate) fn call(&self, request: &Request<'_>) -> Result<ReplyMessage> {
        self.call_with(request, None)
    }

    /// As [`call`](Self::call), for a request that names memory for direct transfer.
    pub(crate) fn call_with(
        &self,
        request: &Request<'_>,
        memory: Option<Piece>,
    ) -> Result<ReplyMessage> {
        self.call_keeping(request, memory, false)
    }

    /// Opens a file; with `keep` the delegation that may come along is the caller's.
    pub(crate) fn call_open(&self, request: &Request<'_>, keep: bool) -> Result<ReplyMessage> {
        if keep {
            self.await_back()?;
        }
        self.call_keeping(request, None, keep)
    }

    fn call_keeping(
        &self,
        request: &Request<'_>,
        memory: Option<Piece>,
        keep: bool,
    ) -> Result<ReplyMessage> {
        let mut backoff = Backoff::new(self.deadline);
        loop {
            let memory = memory.clone();
            let mut driver = self.lock()?;
            let slot = self.start(&mut driver, |driver, tag| {
                driver.submit(tag, request, memory)?;
                if keep {
                    driver.keeping.insert(tag);
                }
                Ok(())
            })?;
            self.hurry(&mut driver);
            match self.wait_slot(driver, &slot, None)? {
                Done::Answered(reply) if is_passing(reply.status()) && backoff.pause() => {}
                Done::Answered(reply) => return Ok(reply),
                done => return Err(failure_of(done, &self.server)),
            }
        }
    }

    /// Sends requests as a chain and waits for the answers to all of them.
    pub(crate) fn call_chain(
        &self,
        members: &[(Request<'_>, ChainFlags)],
    ) -> Result<Vec<Result<ReplyMessage>>> {
        let mut guard = self.lock()?;
        let driver = &mut *guard;
        let mut slots = Vec::with_capacity(members.len());
        let mut chain = Vec::with_capacity(members.len());
        for &(request, takes) in members {
            let Some(slot) = driver.operations.open() else { break };
            chain.push(ChainMember { tag: slot.tag(), request, takes });
            slots.push(slot);
        }
        let taken = if chain.len() == members.len() {
            let (core, adapter) = (&mut driver.core, &mut *driver.adapter);
            core.submit_chain(adapter, coarse_now(), &chain, driver.deadline)
        } else {
            Err(Refused::Full)
        };
        if let Err(refused) = taken {
            slots.into_iter().for_each(|slot| driver.operations.forget(slot));
            return Err(self.refused(refused));
        }
        self.tell(driver);
        self.hurry(driver);
        drop(guard);
        Ok(slots.iter().map(|slot| self.wait_reply(slot, None)).collect())
    }

    /// Runs a read or write and waits for its end.
    pub(crate) fn transfer(
        &self,
        start: impl FnOnce(&mut Driver, u64) -> Result<(), Refused>,
    ) -> Result<Moved> {
        let mut driver = self.lock()?;
        let slot = self.start(&mut driver, start)?;
        self.hurry(&mut driver);
        moved(self.wait_slot(driver, &slot, None)?, &self.server)
    }

    pub(crate) fn wait_moved(&self, slot: &Slot, time: Option<Duration>) -> Result<Moved> {
        let driver = self.lock()?;
        moved(self.wait_slot(driver, slot, time)?, &self.server)
    }

    /// Waits for the answer to any request but a read or write.
    pub(crate) fn wait_reply(&self, slot: &Slot, time: Option<Duration>) -> Result<ReplyMessage> {
        let driver = self.lock()?;
        match self.wait_slot(driver, slot, time)? {
            Done::Answered(reply) => Ok(reply),
            done => Err(failure_of(done, &self.server)),
        }
    }

    fn wait_slot(&self, driver: Guard<'_>, slot: &Slot, time: Option<Duration>) -> Result<Done> {
        self.wait(driver, time, |driver| driver.operations.take(slot))
    }

    pub(crate) fn is_done(&self, slot: &Slot) -> bool {
        let Ok(mut driver) = self.lock() else { return true };
        if !driver.operations.is_done(slot) {
            self.progress_beside(&mut driver);
        }
        driver.operations.is_done(slot)
    }

    /// Gives an operation up if that is possible now; true when it is over.
    pub(crate) fn cancel(&self, slot: &Slot) -> bool {
        // A fork has no operations of its own.
        let Ok(mut driver) = self.lock() else { return true };
        let inner = &mut *driver;
        if inner.core.cancel(&mut *inner.adapter, Instant::now(), slot.tag()) {
            self.tell(&mut driver);
            self.keep_armed(&mut driver);
        }
        driver.operations.is_done(slot)
    }

    pub(crate) fn abandon(&self, slot: Slot) {
        if let Ok(mut driver) = self.lock() {
            driver.operations.abandon(slot);
        }
    }

    /// Polls once from a thread that will not stay.
    pub(crate) fn progress_beside(&self, driver: &mut Driver) {
        if driver.leader == Leader::Polling {
            return;
        }
        let completed = driver.progress(coarse_now());
        if completed > 0 && driver.followers > 0 {
            self.turn.notify_all();
        }
        if driver.leader == Leader::Sleeping {
            if completed > 0 {
                self.wakeup.ring();
            } else {
                self.keep_armed(driver);
            }
        }
    }

    pub(crate) fn poll_completions(&self, completions: &mut Vec<(u64, Result<usize>)>) -> usize {
        // A fork has no operations of its own to report.
        let Ok(mut driver) = self.lock() else { return 0 };
        self.progress_beside(&mut driver);
        let count = driver.ready.len();
        completions.extend(driver.ready.drain(..));
        count
    }

    pub(crate) fn wait_completions(
        &self,
        completions: &mut Vec<(u64, Result<usize>)>,
        count: usize,
        time: Option<Duration>,
    ) -> Result<usize> {
        let driver = self.lock()?;
        let mut fetched = 0;
        self.wait(driver, time, |driver| {
            fetched += driver.ready.len();
            completions.extend(driver.ready.drain(..));
            (fetched >= count || driver.operations.tagged() == 0).then_some(())
        })?;
        Ok(fetched)
    }

    pub(crate) fn disconnect(&self) -> Result<()> {
        let mut driver = self.lock()?;
        if let Some(failure) = driver.core.failure() {
            return Err(self.ended(failure));
        }
        let inner = &mut *driver;
        inner.core.close(&mut *inner.adapter, Instant::now());
        self.wait(driver, Some(self.info.lease), |driver| {
            (driver.core.stage() == Stage::Over).then(|| driver.core.failure().cloned())
        })
        .and_then(|failure| match failure {
            Some(Failure::Closed) | None => Ok(()),
            Some(failure) => Err(self.ended(&failure)),
        })
    }

    /// Drives, or waits for the leader, until `done` yields something.
    fn wait<'a, T>(
        &'a self,
        driver: Guard<'a>,
        time: Option<Duration>,
        done: impl FnMut(&mut Driver) -> Option<T>,
    ) -> Result<T> {
        Waiter::new(self, time).run(driver, done)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.forks != fork::count() {
            return;
        }
        self.helper.stop();
        // SAFETY: the driver is taken once, here, and not used afterwards.
        let driver = unsafe { ManuallyDrop::take(&mut self.driver) };
        let mut driver = driver.into_inner().unwrap_or_else(PoisonError::into_inner);
        // The server frees the session at once when it is told; it would notice anyway.
        driver.core.close(&mut *driver.adapter, Instant::now());
        driver.adapter.flush();
        driver.progress(Instant::now());
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Client({}, {})", self.server, self.transport.kind)
    }
}
