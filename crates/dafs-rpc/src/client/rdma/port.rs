//! An adapter that connections share, and the threads that wait for their calls.
//!
//! The threads follow the leader/followers pattern: one waiting thread is the leader and polls the
//! adapter. The others sleep until their call ends or the leader leaves. So a program with one
//! thread pays for no hand-over between threads, and no background thread delays a reply on the way
//! to its waiter.
//!
//! Invariants
//! * A thread touches the driver only under its lock. A leader that spins yields the lock to
//!   threads that want it. A leader that sleeps, or runs a callback handler, holds no lock.
//! * While a leader sleeps the adapter is armed, or the leader's eventfd has been written. Every
//!   thread that touches the adapter meanwhile restores this before it unlocks.

use super::driver::{Driver, Leader};
use super::helper::Helper;
use super::sleep::Sleep;
use super::waiter::Waiter;
use crate::client::Server;
use crate::client::memory::Memory;
use crate::client::options::WaitPolicy;
use dafs_dat::{Adapter, EndpointId, Instant};
use dafs_mem::Mutex;
use rustix::time::{ClockId, clock_gettime};
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, MutexGuard, Weak};

/// An adapter for connections on direct access transports, and the memory that is registered with
/// it. Clones share the port. The port outlives its connections: memory can be used again after a
/// reconnect.
///
/// Waiting threads take turns in polling the adapter. Threads that must not disturb each other use
/// different ports.
///
/// Memory keeps its key while it is registered. A server that received the key once can use it over
/// any connection of this port: it can read and change the memory later, even while a call to
/// another server uses it. So servers that do not trust each other belong to different ports, too.
#[derive(Debug, Clone)]
pub struct Port {
    pub(super) shared: Arc<Shared>,
}

pub(in crate::client) struct Shared {
    driver: Mutex<Driver>,
    /// Threads that want the lock while the leader spins with it.
    pub(super) contenders: AtomicU32,
    pub(super) sleep: Sleep,
    pub(super) policy: WaitPolicy,
    pub(super) helper: Helper,
    this: Weak<Shared>,
}

pub(super) type Guard<'a> = MutexGuard<'a, Driver>;

impl Port {
    /// Makes a port on this adapter.
    ///
    /// # Errors
    /// When there are no file descriptors left.
    pub fn new(adapter: Box<dyn Adapter>) -> io::Result<Self> {
        Self::with_wait(adapter, WaitPolicy::default())
    }

    /// Makes a port on this adapter with a wait policy.
    ///
    /// # Errors
    /// When there are no file descriptors left.
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

    /// Allocates `bytes` of zeroed memory where the transport moves data fastest. Registers it once
    /// for all calls that will use it.
    ///
    /// # Errors
    /// `ENOMEM` and similar errors, or too many registrations.
    pub fn allocate(&self, bytes: usize) -> io::Result<Memory> {
        let mut driver = self.shared.lock();
        driver.base.reap();
        let memory = driver.base.allocate(bytes);
        self.shared.keep_armed(&mut driver);
        memory
    }

    /// Polls once without waiting, unless another thread polls. For programs that check for replies
    /// now and then ([`Pending::is_answered`](crate::client::Pending::is_answered)) and for
    /// simulated time.
    pub fn poll(&self, now: Instant) {
        let mut driver = self.shared.lock();
        self.shared.progress_beside(&mut driver, now);
        drop(self.shared.take_back_calls(driver));
    }
}

impl Shared {
    pub(super) fn lock(&self) -> Guard<'_> {
        if let Some(guard) = self.driver.try_lock() {
            return guard;
        }
        self.contenders.fetch_add(1, Ordering::Relaxed);
        let guard = self.driver.lock();
        self.contenders.fetch_sub(1, Ordering::Relaxed);
        guard
    }

    /// Sends what was posted: now, or with the leader's next poll.
    pub(super) fn send(&self, driver: &mut Driver) {
        if driver.leader != Leader::Polling {
            driver.held_back = 0;
            driver.base.adapter.flush();
            self.keep_armed(driver);
        }
    }

    /// Sends what was posted only if the leader sleeps; else the caller's next poll sends it.
    pub(super) fn send_if_asleep(&self, driver: &mut Driver) {
        if driver.leader == Leader::Sleeping {
            self.send(driver);
        }
    }

    /// Arms the adapter again. Every thread that touched the adapter while the leader may sleep
    /// must call this.
    pub(super) fn keep_armed(&self, driver: &mut Driver) {
        if driver.leader == Leader::Sleeping && !driver.base.adapter.arm().unwrap_or(false) {
            self.sleep.ring();
        }
    }

    /// Polls once from a thread that does not become the leader.
    pub(super) fn progress_beside(&self, driver: &mut Driver, now: Instant) {
        if driver.leader == Leader::Polling {
            return;
        }
        // The driver wakes each thread whose call has ended, but a sleeping leader is not among
        // them.
        let news = driver.progress(now) > 0 || driver.is_called();
        if news && driver.leader == Leader::Sleeping {
            self.sleep.ring();
        }
        self.keep_armed(driver);
    }

    /// Runs the handlers of waiting callbacks, without the lock.
    pub(super) fn take_back_calls<'a>(&'a self, mut driver: Guard<'a>) -> Guard<'a> {
        while let Some((endpoint, handler, call)) = driver.next_back_call() {
            drop(driver);
            handler(call.request(Server::Rdma(self.this.clone(), endpoint)));
            driver = self.lock();
        }
        driver
    }

    /// Answers a callback.
    pub(in crate::client) fn answer(&self, endpoint: EndpointId, xid: u32, record: &crate::Reply) {
        let mut driver = self.lock();
        if let Some((connection, base)) = driver.on(endpoint) {
            connection.answer(base, xid, record);
            self.send(&mut driver);
        }
    }

    /// Polls, or waits for the leader, until `done` returns a value; `None` when the timeout
    /// expires first. With `call` the thread is woken when that call ends.
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

/// The coarse monotonic clock of the kernel: some milliseconds late, very cheap.
pub(super) fn coarse_now() -> Instant {
    let time = clock_gettime(ClockId::MonotonicCoarse);
    Instant(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}
