//! An adapter that connections share, and the threads that wait for them.
//!
//! Whoever waits drives: one waiting thread is the leader and polls the adapter, the others sleep
//! until their call is over or the leader leaves. So a program with one thread pays for no
//! hand-over at all, and no thread of ours stands between an answer and its waiter.
//!
//! Invariants
//! * The driver is only touched under its lock. A leader that spins gives the lock to whoever
//!   wants it; a leader that sleeps, or takes a call of the server's, holds no lock.
//! * While a leader sleeps the adapter is armed, or the leader's bell has been rung: every thread
//!   that touches the adapter meanwhile sees to that before it unlocks.

use super::driver::{Driver, Leader};
use super::helper::Helper;
use super::sleep::Sleep;
use super::waiter::Waiter;
use crate::client::Server;
use crate::client::memory::Memory;
use crate::client::options::WaitPolicy;
use dafs_dat::{Adapter, EndpointId, Instant};
use rustix::time::{ClockId, clock_gettime};
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};

/// An adapter for connections on direct access transports, and the memory that is registered with
/// it. Clones are the same port. It outlives its connections: memory can be used again after a
/// reconnect.
///
/// The threads that wait for calls take turns in driving the adapter, so the calls of threads that
/// should not disturb each other belong on different ports.
///
/// Memory keeps its key while it is registered, and a server that was told it once can use it over any
/// connection of this port: it can read and change the memory later, also while that is used for a
/// call to another server. So servers that do not trust each other belong on different ports, too.
#[derive(Debug, Clone)]
pub struct Port {
    pub(super) shared: Arc<Shared>,
}

pub(in crate::client) struct Shared {
    driver: Mutex<Driver>,
    /// Threads that want the lock while somebody spins with it.
    pub(super) contenders: AtomicU32,
    pub(super) sleep: Sleep,
    pub(super) policy: WaitPolicy,
    pub(super) helper: Helper,
    this: Weak<Shared>,
}

pub(super) type Guard<'a> = MutexGuard<'a, Driver>;

impl Port {
    /// A port on this adapter.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub fn new(adapter: Box<dyn Adapter>) -> io::Result<Self> {
        Self::with_wait(adapter, WaitPolicy::default())
    }

    /// A port on this adapter whose threads wait so.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub fn with_wait(adapter: Box<dyn Adapter>, policy: WaitPolicy) -> io::Result<Self> {
        let sleep = Sleep::new()?;
        let driver = Mutex::new(Driver::new(adapter));
        let shared = Arc::new_cyclic(|this| Shared {
            driver,
            contenders: AtomicU32::new(0),
            sleep,
            policy,
            helper: Helper::default(),
            this: this.clone(),
        });
        Ok(Self { shared })
    }

    /// Allocates `bytes` of zeroed memory where the transport moves data fastest and registers it,
    /// once for all calls that will use it.
    ///
    /// # Errors
    /// `ENOMEM` and its kind, or too many registrations.
    pub fn allocate(&self, bytes: usize) -> io::Result<Memory> {
        let mut driver = self.shared.lock();
        driver.base.reap();
        let memory = driver.base.allocate(bytes);
        self.shared.keep_armed(&mut driver);
        memory
    }

    /// Moves things along once without waiting, unless another thread does that. For programs that
    /// look for answers now and then ([`Pending::is_answered`](crate::client::Pending::
    /// is_answered)) and for simulated time.
    pub fn poll(&self, now: Instant) {
        let mut driver = self.shared.lock();
        self.shared.progress_beside(&mut driver, now);
        drop(self.shared.take_back_calls(driver));
    }
}

impl Shared {
    pub(super) fn lock(&self) -> Guard<'_> {
        match self.driver.try_lock() {
            Ok(guard) => return guard,
            // A panic under the lock leaves a connection as it was between two steps at worst.
            Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {}
        }
        self.contenders.fetch_add(1, Ordering::Relaxed);
        let guard = self.driver.lock().unwrap_or_else(PoisonError::into_inner);
        self.contenders.fetch_sub(1, Ordering::Relaxed);
        guard
    }

    /// Sees to it that what was posted leaves: now, or with the leader's next poll.
    pub(super) fn send(&self, driver: &mut Driver) {
        if driver.leader != Leader::Polling {
            driver.held_back = 0;
            driver.base.adapter.flush();
            self.keep_armed(driver);
        }
    }

    /// The same for what may wait for the next poll: the caller will see to that.
    pub(super) fn send_if_asleep(&self, driver: &mut Driver) {
        if driver.leader == Leader::Sleeping {
            self.send(driver);
        }
    }

    /// Must be called by whoever touched the adapter while the leader may sleep.
    pub(super) fn keep_armed(&self, driver: &mut Driver) {
        if driver.leader == Leader::Sleeping && !driver.base.adapter.arm().unwrap_or(false) {
            self.sleep.ring();
        }
    }

    /// Polls once from a thread that will not stay.
    pub(super) fn progress_beside(&self, driver: &mut Driver, now: Instant) {
        if driver.leader == Leader::Polling {
            return;
        }
        // Threads whose calls are over are woken one by one; but the leader does not sleep there.
        let news = driver.progress(now) > 0 || driver.is_called();
        if news && driver.leader == Leader::Sleeping {
            self.sleep.ring();
        }
        self.keep_armed(driver);
    }

    /// Hands calls of the server to whoever takes them, without the lock.
    pub(super) fn take_back_calls<'a>(&'a self, mut driver: Guard<'a>) -> Guard<'a> {
        while let Some((endpoint, handler, call)) = driver.next_back_call() {
            drop(driver);
            handler(call.request(Server::Rdma(self.this.clone(), endpoint)));
            driver = self.lock();
        }
        driver
    }

    /// Answers a call of the server's.
    pub(in crate::client) fn answer(&self, endpoint: EndpointId, xid: u32, record: &crate::Reply) {
        let mut driver = self.lock();
        if let Some((connection, base)) = driver.on(endpoint) {
            connection.answer(base, xid, record);
            self.send(&mut driver);
        }
    }

    /// Drives, or waits for the leader, until `done` yields something; `None` when the time has
    /// come first. With `call` this thread is woken when that call is over.
    pub(super) fn wait<T>(
        &self,
        until: std::time::Instant,
        call: Option<(EndpointId, u32)>,
        done: impl FnMut(&mut Driver) -> Option<T>,
    ) -> Option<T> {
        Waiter::new(self, until, call).run(done)
    }

    pub(super) fn weak(&self) -> Weak<Self> {
        self.this.clone()
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Port")
    }
}

/// The machine's monotonic clock as the kernel last noted it: some milliseconds late, very cheap.
pub(super) fn coarse_now() -> Instant {
    let time = clock_gettime(ClockId::MonotonicCoarse);
    Instant(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}
