//! A thread that drives one engine: it turns, spins for a while, and sleeps.
//!
//! Invariants
//! * Before it sleeps, it arms every adapter and checks the inbox, so it misses no event.

use crate::engine::{DiskReads, Engine, EngineCounts, JobDone, ReadRing, Shared};
use crate::inbox::Inbox;
use crate::start_gate::StartGate;
use dafs_dat::{Adapter, Instant, Spin, Wake};
use dafs_mem::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use smallvec::SmallVec;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Turns with work between two readings of the clock.
const TURNS_PER_CLOCK_READING: u32 = 32;

/// The timeout for requests under way when the server stops. Clients that are answered need not ask
/// the next server for the outcome.
const QUIET: Duration = Duration::from_millis(200);

/// The timeout for an orderly close of connections after that.
const CLOSE: Duration = Duration::from_secs(2);

/// The timeout for changes with durable replies after that. One that is dropped is in doubt: its client gets an
/// error from the next server, where it could get the reply.
const SETTLE: Duration = Duration::from_secs(3);

/// The time between two looks at connections that close.
const CLOSE_CHECK: Duration = Duration::from_millis(20);

/// The state that a reactor shares with its server.
struct Control {
    stop: AtomicBool,
    /// Updated before the reactor sleeps and on request.
    counts: Mutex<(EngineCounts, DiskReads)>,
    publish: AtomicBool,
    inbox: Arc<Inbox<JobDone>>,
    /// Shut at the latest when the reactor stops, for a thread that has not begun.
    gate: StartGate,
}

impl Control {
    fn set_counts(&self, engine: &Engine) {
        *self.counts.lock() = (engine.counts(), engine.disk_reads());
    }
}

/// The counts of a reactor's engine, for metrics. It outlives the reactor.
#[derive(Clone)]
pub struct Gauge(Arc<Control>);

impl Gauge {
    /// Returns the latest counts, and requests fresh ones.
    pub fn counts(&self) -> EngineCounts {
        self.0.publish.store(true, Ordering::Relaxed);
        let (counts, _) = *self.0.counts.lock();
        self.0.inbox.wake();
        counts
    }

    /// Returns the reads from disks, as of the same moment as the latest counts.
    pub fn disk_reads(&self) -> DiskReads {
        self.0.counts.lock().1
    }
}

/// A thread that drives an engine of its own.
pub struct Reactor {
    control: Arc<Control>,
    thread: Option<JoinHandle<()>>,
}

impl Reactor {
    /// Starts a reactor over `adapters`, which listen. It begins when `gate` opens. With a ring the kernel
    /// carries out its reads from disks, without one the pool.
    ///
    /// # Errors
    /// The system has no thread or descriptor left.
    pub fn start(
        name: String,
        shared: Arc<Shared>,
        adapters: Vec<Box<dyn Adapter>>,
        wake: Wake,
        ring: Option<ReadRing>,
        gate: &StartGate,
    ) -> io::Result<Self> {
        let inbox = Arc::new(Inbox::watched()?);
        let engine = Engine::new(shared, adapters, inbox.clone());
        let (stop, publish) = (AtomicBool::new(false), AtomicBool::new(false));
        let (counts, gate) = (Mutex::default(), gate.clone());
        let control = Arc::new(Control { stop, counts, publish, inbox, gate });
        let own = control.clone();
        let thread = control.gate.spawn(name, move || run(engine, wake, ring, &own))?;
        Ok(Self { control, thread: Some(thread) })
    }

    /// Returns the counts of its engine.
    pub fn gauge(&self) -> Gauge {
        Gauge(self.control.clone())
    }

    /// Begins to close the connections in order.
    pub fn begin_stop(&self) {
        self.control.stop.store(true, Ordering::Relaxed);
        self.control.gate.shut();
        self.control.inbox.wake();
    }

    /// Closes the connections of all reactors in order, and waits for the threads.
    pub fn stop(reactors: &mut [Self]) {
        reactors.iter().for_each(Self::begin_stop);
        for thread in reactors.iter_mut().filter_map(|reactor| reactor.thread.take()) {
            if thread.join().is_err() {
                tracing::error!("a reactor had failed");
            }
        }
    }

    /// Drops the results that came after the end of the threads, with all that they keep open.
    pub fn drop_results(reactors: &[Self]) {
        for reactor in reactors {
            let mut results = Vec::new();
            reactor.control.inbox.take(&mut results);
        }
    }
}

/// Runs until it is stopped.
fn run(mut engine: Engine, wake: Wake, ring: Option<ReadRing>, control: &Control) {
    if let Some(Err(error)) = ring.map(|ring| engine.use_ring(ring)) {
        tracing::warn!(%error, "a reactor has no io_uring: the pool carries out its reads from disks");
    }
    let mut spin = Spin::new(wake);
    let mut is_idle = false;
    let (mut quiet_by, mut close_by): (Option<Instant>, Option<Instant>) = (None, None);
    let mut now = Instant::now();
    let mut turns = 0u32;
    loop {
        // Timeouts are coarse. While there is work, the clock is read only at intervals, unless each
        // turn needs it.
        turns = turns.wrapping_add(1);
        let is_due = turns.is_multiple_of(TURNS_PER_CLOCK_READING);
        if is_idle || quiet_by.is_some() || is_due || engine.has_optimistic_channels() {
            now = Instant::now();
        }
        // All changes of a turn are made stable together.
        let held = dafs_journal::hold_jobs();
        let busy = engine.turn(now);
        drop(held);
        if control.publish.swap(false, Ordering::Relaxed) {
            control.set_counts(&engine);
        }
        if control.stop.load(Ordering::Relaxed) {
            let quiet_by = *quiet_by.get_or_insert(now + QUIET);
            if close_by.is_none() && (engine.quiesce() || now >= quiet_by) {
                engine.close_all();
                close_by = Some(now + CLOSE);
            }
            let is_over = engine.counts() == EngineCounts::default()
                && !engine.adapters().any(|adapter| adapter.is_lingering());
            let is_late =
                |by: Instant| now >= by && (now >= by + SETTLE || !engine.has_logged_changes());
            if close_by.is_some_and(|by| is_over || is_late(by)) {
                return control.set_counts(&engine);
            }
        }
        if !is_idle && !busy {
            // The time at which it began to be idle.
            now = Instant::now();
        }
        spin.turned(busy, now.0);
        is_idle = !busy;
        if (busy && wake != Wake::Sleep) || !spin.is_over(now.0) {
            continue;
        }
        if !busy {
            control.set_counts(&engine);
        }
        // No event tells that a peer has received everything.
        let limit = if quiet_by.is_some() { CLOSE_CHECK } else { Duration::MAX };
        if let Err(error) = sleep(&mut engine, now, limit) {
            // The reactor goes on without sleep, which costs a core but keeps the service alive.
            tracing::error!(%error, "the reactor cannot sleep");
        }
        now = Instant::now();
        spin.slept(now.0);
    }
}

/// Waits for an event, a finished job, the next timeout or the limit. Then marks the transports that
/// are ready for the engine.
fn sleep(engine: &mut Engine, now: Instant, limit: Duration) -> io::Result<()> {
    let mut armed = true;
    for adapter in engine.adapters() {
        armed &= adapter.arm()?;
    }
    let inbox = engine.inbox().clone();
    if !armed || !inbox.fall_asleep() {
        engine.woken(|_| true);
        return Ok(());
    }
    let wait = engine.next_timeout().since(now).min(limit);
    let timeout = Timespec {
        tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(wait.subsec_nanos()),
    };
    let adapters = engine.adapters().filter_map(|adapter| adapter.descriptor());
    let descriptors = adapters.chain(inbox.descriptor());
    let mut set: SmallVec<[PollFd<'_>; 4]> =
        descriptors.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    let woken = poll(&mut set, Some(&timeout));
    let ready: SmallVec<[bool; 4]> = set.iter().map(|fd| !fd.revents().is_empty()).collect();
    drop(set);
    // It is the last of the set, behind one descriptor for each adapter.
    inbox.wake_up(ready.last() == Some(&true));
    match woken {
        Ok(0) | Err(rustix::io::Errno::INTR) => engine.woken(|_| true),
        Ok(_) => engine.woken(|adapter| ready[adapter]),
        Err(error) => return Err(error.into()),
    }
    Ok(())
}
