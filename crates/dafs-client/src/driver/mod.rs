//! One session and its adapter, shared by threads.
//!
//! A waiting thread drives: one of them is the leader and polls the adapter, the others wait until
//! it hands over. No thread of the library stands between an answer and its waiter.
//!
//! Invariants
//! * The driver is only touched under its lock. A leader holds it while it polls, neither while it
//!   spins in between nor while it sleeps.
//! * While a leader sleeps the adapter is armed, or the leader's wake-up has been rung: every
//!   thread that touches the adapter meanwhile makes sure of that before it unlocks. A submission to
//!   a group whose program polls soon may leave that to the poll: if none comes, the helper polls.
//! * A leader that stops leading wakes a follower, if there is one. The thread that has polled
//!   wakes the followers whose operations are over. It wakes a follower that waits for no single
//!   operation whenever any is over, and when the session or its back-control channel has changed
//!   its stage. It wakes no other.

mod back;
mod calls;
mod clock;
mod data_servers;
mod exposed;
mod followed;
mod followers;
mod grouped;
mod progress;
mod spare;
mod spinning;
mod waiter;

use crate::backoff::Backoff;
use crate::buffer::{End, Ending, IoBuffer};
use crate::core::{
    BackStage, Done, Failure, Piece, Prepared, Refused, RemoteReadStats, SessionCore, SessionInfo,
    SessionStats, Stage,
};
use crate::delegation::{DelegationHolder, Holders};
use crate::error::{Error, Result};
use crate::fork::{self, ForkMutex};
use crate::helper::Helper;
use crate::limit::Limit;
use crate::limits::UNPROBED_DEADLINE_FACTOR;
use crate::mover::Mover;
use crate::operations::{Continuation, Operations};
use crate::optimistic::OptimisticUse;
use crate::options::{Transport, TransportKind, WaitPolicy};
use crate::outcome::ended;
use crate::span::OUTSIDE;
use crate::wakeup::Wakeup;
use clock::{Asleep, awake_or_not};
use dafs_dat::tls::TlsPeer;
use dafs_dat::{Adapter, Event, Instant, RegisterError};
use dafs_mem::Mutex;
use dafs_wire::dafs::{ByteOrder, Checksum, Close, Procedure, StateId, Status};
use followed::Followed;
use followers::{Bells, Followers, ring};
use rustc_hash::FxHashSet;
use spare::{Spare, Transports};
use spinning::Spinning;
use std::collections::VecDeque;
use std::fmt::Display;
use std::io;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard, Weak};
use std::task::Waker;
use std::time::Duration;
use waiter::Waiter;
pub(crate) use {crate::operations::Slot, clock::coarse_now, spare::Way};

/// The state of the lead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leader {
    Nobody,
    Polling,
    Sleeping,
}

/// State at the server that the application has released.
#[derive(Debug, Clone, Copy)]
enum Leave {
    File(Close),
    Delegation(StateId),
}

/// The part under the lock.
pub(crate) struct Driver {
    adapter: Box<dyn Adapter>,
    /// Another transport to the same server.
    spare: Option<Spare>,
    core: SessionCore,
    events: Vec<Event>,
    operations: Operations,
    /// Wakers to be called without the lock: they may drop objects that take it.
    wakers: Vec<Waker>,
    /// Continuations of completed operations, which are called without the lock for the same
    /// reason.
    followed: Vec<(Continuation, Done)>,
    /// State to release as soon as there is room for one more operation; at most all that is held.
    leaves: VecDeque<Leave>,
    /// OPENs whose callers keep the delegation that comes along.
    keeping: FxHashSet<u64>,
    holders: Holders,
    /// BC_GETATTR questions to the holders, for the helper thread, which may call them.
    questions: VecDeque<(u64, Weak<dyn DelegationHolder>)>,
    /// True when there are some, to be read without the lock.
    asked: Arc<AtomicBool>,
    helper: Helper,
    /// The time until which the server certainly keeps its promises, on the boot-time clock.
    lease_until: Arc<AtomicU64>,
    /// The same on the monotonic clock.
    promised_until: Instant,
    asleep: Asleep,
    /// Restarts of the server that were detected.
    restarts: Arc<AtomicU64>,
    /// The number of the operation channel's connection, to be read without the lock; 0 for none.
    connection: Arc<AtomicU64>,
    leader: Leader,
    followers: Followers,
    spinning: Spinning,
    /// The stages of which waiters have been notified.
    told: (Stage, BackStage),
    /// Counts polls of all threads, so that the helper sees whether it must poll itself.
    drives: u64,
    /// Requests wait for a poll although a leader sleeps.
    gathering: bool,
    deadline: Option<Duration>,
    server: Arc<str>,
}

/// The state that all clones of a client share.
pub(crate) struct Shared {
    /// Dropped by hand: a fork must leave the descriptors alone that it shares with its parent.
    driver: ManuallyDrop<Mutex<Driver>>,
    /// Threads that wait for the lock.
    contenders: AtomicU32,
    wakeup: Wakeup,
    helper: Helper,
    mover: Mover,
    asked: Arc<AtomicBool>,
    lease_until: Arc<AtomicU64>,
    /// The time of the last poll of a thread that waits for no answer.
    heard_at: AtomicU64,
    /// The number of notices that holders of delegations have not taken yet.
    pending_notices: Arc<AtomicUsize>,
    restarts: Arc<AtomicU64>,
    connection: Arc<AtomicU64>,
    forks: u32,
    policy: WaitPolicy,
    server: Arc<str>,
    transports: Transports,
    order: ByteOrder,
    info: SessionInfo,
    deadline: Option<Duration>,
    /// The longest wait of a call for one operation, whatever the server is doing.
    patience: Option<Duration>,
    pub(crate) staging: ForkMutex<Vec<IoBuffer>>,
    /// For borrowed buffers that outlive the session in which they were registered.
    end: Arc<End>,
    optimistic: OptimisticUse,
}

type Guard<'a> = MutexGuard<'a, Driver>;

impl Shared {
    /// `spare` is another transport to the same server.
    pub(crate) fn new(
        mut driver: Driver,
        policy: WaitPolicy,
        transport: Transport,
        spare: Option<Way>,
    ) -> io::Result<Arc<Self>> {
        let transports = driver.keep_spare(transport, spare);
        let info = driver.core.info().clone();
        let order = driver.core.byte_order();
        let deadline = driver.deadline;
        let helper = driver.helper.clone();
        let (lease_until, restarts) = (driver.lease_until.clone(), driver.restarts.clone());
        let (asked, connection) = (driver.asked.clone(), driver.connection.clone());
        let pending_notices = driver.holders.pending_notices().clone();
        let shared = Arc::new(Self {
            server: driver.server.clone(),
            driver: ManuallyDrop::new(Mutex::new(driver)),
            contenders: AtomicU32::new(0),
            wakeup: Wakeup::new()?,
            helper,
            mover: Mover::default(),
            asked,
            lease_until,
            heard_at: AtomicU64::new(0),
            pending_notices,
            restarts,
            connection,
            forks: fork::count(),
            policy,
            transports,
            order,
            info,
            deadline,
            patience: deadline.map(|time| time.saturating_mul(UNPROBED_DEADLINE_FACTOR)),
            staging: ForkMutex::new(Vec::new()),
            end: Arc::default(),
            optimistic: OptimisticUse::default(),
        });
        shared.helper.start(&shared)?;
        Ok(shared)
    }

    pub(crate) fn transport(&self) -> &Transport {
        self.transports.current()
    }

    /// True if a registration keeps the pages that its addresses have when it is made, also when the
    /// program maps other memory there.
    pub(crate) fn pins_memory(&self) -> bool {
        self.transports.first().kind == TransportKind::Verbs
    }

    pub(crate) fn end(&self) -> &Arc<End> {
        &self.end
    }

    pub(crate) fn optimistic(&self) -> &OptimisticUse {
        &self.optimistic
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
        // In a fork the lock may be held for ever.
        self.lock().map_or_else(|_| SessionStats::default(), |driver| driver.core.stats())
    }

    pub(crate) fn remote_read_stats(&self) -> RemoteReadStats {
        // As above.
        self.lock()
            .map_or_else(|_| RemoteReadStats::default(), |driver| driver.core.remote_read_stats())
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.lock().is_ok_and(|driver| driver.core.stage() == Stage::Ready)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.lock().map_or(true, |driver| driver.core.failure().is_some())
    }

    /// The driver, unless this process is a fork of the one that connected.
    pub(crate) fn lock(&self) -> Result<Guard<'_>> {
        self.check_process()?;
        Ok(self.lock_regardless())
    }

    /// Called before any lock is taken, by every entry point of the application.
    ///
    /// # Errors
    /// [`Error::Forked`] when this process is a fork of the one that connected.
    pub(crate) fn check_process(&self) -> Result<()> {
        if self.forks == fork::count() { Ok(()) } else { Err(Error::Forked) }
    }

    /// The driver, unless another thread has it now.
    pub(crate) fn lock_if_free(&self) -> Option<Guard<'_>> {
        // A panic under the lock leaves the state machine between two of its steps; its own checks
        // decide about the session.
        self.driver.try_lock()
    }

    pub(crate) fn lock_regardless(&self) -> Guard<'_> {
        if let Some(guard) = self.lock_if_free() {
            return guard;
        }
        self.contenders.fetch_add(1, Ordering::Relaxed);
        let guard = self.driver.lock();
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

    /// The error for an invalid answer.
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
            Refused::NotTrusted => {
                Error::Status { procedure: Procedure::RegisterCred, status: Status::NotAuthorized }
            }
            Refused::NotReady => Error::Argument("the session is not open yet"),
            Refused::Encode(_) => Error::Argument("the request does not fit a message"),
        }
    }

    /// True when data of this length is appended within a message.
    pub(crate) fn appends_inline(&self, bytes: usize) -> Result<bool> {
        Ok(self.lock()?.core.link.appends_inline(bytes))
    }

    /// The checksum that travels with direct data, when the session has checksums.
    pub(crate) fn data_checksum(&self, piece: &Piece) -> Result<Checksum> {
        Ok(self.lock()?.core.link.data_checksum(piece.checked())?)
    }

    /// The checksum of several pieces, one behind the other.
    pub(crate) fn data_checksum_of(&self, pieces: &[Piece]) -> Result<Checksum> {
        if !self.info.checksums {
            return Ok(Checksum::ZERO);
        }
        Ok(self.lock()?.core.link.checksum_of(pieces.iter().map(Piece::checked))?)
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
        let len = range.end.checked_sub(range.start).ok_or(OUTSIDE)?;
        if range.end > buffer.len() {
            return Err(OUTSIDE);
        }
        let len = u32::try_from(len.min(limit)).unwrap_or(u32::MAX);
        if offset.checked_add(len.into()).is_none_or(|end| end > i64::MAX.cast_unsigned()) {
            return Err(Error::Argument("the range lies beyond the largest file"));
        }
        Piece::new(buffer.memory(), range.start, len).ok_or(OUTSIDE)
    }

    /// Starts an operation with a waiter.
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

    /// Starts all of several operations, or none.
    fn start_all(
        &self,
        driver: &mut Driver,
        count: usize,
        start: impl FnOnce(&mut Driver, &[Slot]) -> Result<(), Refused>,
    ) -> Result<Vec<Slot>> {
        let slots: Vec<_> = (0..count).map_while(|_| driver.operations.open()).collect();
        let started = match slots.len() == count {
            true => start(driver, &slots),
            false => Err(Refused::Full),
        };
        if let Err(refused) = started {
            slots.into_iter().for_each(|slot| driver.operations.forget(slot));
            return Err(self.refused(refused));
        }
        self.tell(driver);
        Ok(slots)
    }

    /// Delivers results that a submission has produced at once, and wakes their waiters: no event
    /// will do so.
    fn tell(&self, driver: &mut Driver) {
        if driver.hand_out() > 0 {
            self.wake_waiters(driver);
        }
    }

    /// Wakes waiters for a change that no event announces.
    fn wake_waiters(&self, driver: &mut Driver) {
        let mut bells = Bells::new();
        driver.call_done(&mut bells);
        ring(&mut bells);
        match driver.leader {
            Leader::Sleeping => self.wakeup.ring(),
            // The leader checks before it sleeps.
            Leader::Polling => {}
            Leader::Nobody if driver.followed.is_empty() => {}
            Leader::Nobody => self.mover.attend(),
        }
    }

    /// Closes a file without waiting, now or as soon as there is room.
    pub(crate) fn close_file(&self, close: Close) {
        let Ok(mut driver) = self.lock() else { return };
        driver.leaves.push_back(Leave::File(close));
        driver.leave_all();
        self.sent(&mut driver);
    }

    /// Called by every thread that touched the adapter while the leader sleeps.
    fn keep_armed(&self, driver: &mut Driver) {
        if driver.leader == Leader::Sleeping && !driver.adapter.arm().unwrap_or(false) {
            self.wakeup.ring();
        }
    }

    /// Ends registrations without a holder.
    pub(crate) fn reap(&self) {
        // In a fork the memory is a copy that no server knows.
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

    /// Retries while the server answers DELAY or GRACE, within the time of one operation.
    pub(crate) fn patiently<T>(&self, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
        let mut backoff = Backoff::new(self.deadline);
        loop {
            match attempt() {
                Err(error) if error.is_passing() && backoff.pause() => {}
                result => return result,
            }
        }
    }

    /// The protection of the operation channel by TLS.
    pub(crate) fn tls(&self) -> Option<Arc<TlsPeer>> {
        self.lock().ok()?.tls()
    }

    /// Sends a proof of identity that was due, or notes why there is none.
    pub(crate) fn give_proof(&self, prepared: Prepared) {
        let Ok(mut driver) = self.lock() else { return };
        driver.give_proof(prepared);
        // The end of the session may be the result.
        self.tell(&mut driver);
        self.keep_armed(&mut driver);
        drop(driver);
        // No other thread may be waiting for the answer.
        self.helper.wake();
    }

    /// Polls once from a thread that does not become the leader.
    pub(crate) fn poll_once(&self, driver: &mut Driver) {
        if driver.leader == Leader::Polling {
            return;
        }
        let completed = driver.progress(coarse_now());
        if completed > 0 {
            self.wake_waiters(driver);
        } else {
            self.keep_armed(driver);
        }
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
        self.wait_of(driver, time, None, done)
    }

    /// As [`wait`](Self::wait), for the end of one operation if one is named.
    fn wait_of<'a, T>(
        &'a self,
        mut driver: Guard<'a>,
        time: Option<Duration>,
        tag: Option<u64>,
        done: impl FnMut(&mut Driver) -> Option<T>,
    ) -> Result<T> {
        let limit = Limit::current().map(|limit| limit.at.since(Instant::now()));
        let time = [time, limit].into_iter().flatten().min();
        if time.is_some_and(|time| time.is_zero()) {
            // There is no time to wait, but completions that have arrived must be seen.
            self.poll_once(&mut driver);
        }
        Waiter::new(self, time, tag).run(driver, done)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.check_process().is_err() {
            return;
        }
        self.helper.stop();
        self.mover.stop();
        // Dropped in the opposite order: the application's wakers may drop objects that wait for
        // the end.
        let mut wakers = Vec::new();
        let mut followed = Followed::default();
        let _ending = Ending(&self.end);
        // SAFETY: the driver is taken once, here, and not used afterwards.
        let driver = unsafe { ManuallyDrop::take(&mut self.driver) };
        let mut driver = driver.into_inner();
        // The server frees the session at once when it is told; otherwise it would detect the loss.
        driver.core.close(&mut *driver.adapter, Instant::now());
        driver.adapter.flush();
        driver.progress(Instant::now());
        wakers.append(&mut driver.wakers);
        followed.append(&mut driver.followed);
        let rest = driver.operations.take_followed().into_iter();
        followed.extend(rest.map(|then| (then, Done::Lost(Failure::Closed))));
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Client({}, {})", self.server, self.transport().kind)
    }
}
