//! One thread per client for work that has no waiter: keeping the lease alive, and operations that
//! were started and left alone.
//!
//! Invariants
//! * The thread holds no reference to the client while it sleeps, so it does not keep it alive.
//! * It makes progress only when no other thread has done so since its last look, or when requests
//!   wait for a poll although a leader sleeps. It never waits for threads that make progress.
//! * A panic does not end the thread: the lease is kept alive.

use crate::core::ProofOrder;
use crate::driver::Shared;
use crate::limits::{BACK_TICK_DRIVEN, HELPER_TICK};
use dafs_dat::Instant;
use dafs_dat::confine::confined;
use dafs_mem::{Condvar, Mutex};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The longest sleep.
const SLEEP_MAX: Duration = Duration::from_secs(3600);

/// The pause after a panic, which will come again if its cause is still there.
const AFTER_PANIC: Duration = Duration::from_secs(1);

/// Ticks without work before the thread goes back to long sleeps.
const IDLE_TICKS: u32 = 50;

#[derive(Debug, Default)]
struct Bell {
    state: Mutex<State>,
    changed: Condvar,
    /// The thread sleeps until a submission.
    deaf: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    stop: bool,
    rung: bool,
}

/// The client's end of the thread.
#[derive(Debug, Clone, Default)]
pub(crate) struct Helper {
    bell: Arc<Bell>,
}

impl Helper {
    pub(crate) fn start(&self, shared: &Arc<Shared>) -> io::Result<()> {
        let (bell, shared) = (self.bell.clone(), Arc::downgrade(shared));
        std::thread::Builder::new()
            .name("dafs-helper".into())
            .spawn(move || run(&bell, &shared))
            .map(drop)
    }

    /// Called after a submission that may have no waiter.
    pub(crate) fn attend(&self) {
        // The common case is a thread that ticks or a caller that will wait; one load.
        if self.bell.deaf.load(Ordering::Relaxed) {
            self.bell.ring(false);
        }
    }

    /// Wakes the thread for work that only it does.
    pub(crate) fn wake(&self) {
        self.bell.ring(false);
    }

    pub(crate) fn stop(&self) {
        self.bell.ring(true);
    }
}

impl Bell {
    fn ring(&self, stop: bool) {
        let mut state = self.state.lock();
        state.rung = true;
        state.stop |= stop;
        self.deaf.store(false, Ordering::Relaxed);
        self.changed.notify_one();
    }

    /// Sleeps for `time`, or until rung. Returns false when the thread is to end.
    fn sleep(&self, time: Duration) -> bool {
        let state = self.state.lock();
        let result = self.changed.wait_timeout_while(state, time, |state| !state.rung);
        let (mut state, _) = result;
        state.rung = false;
        !state.stop
    }
}

fn run(bell: &Bell, shared: &Weak<Shared>) {
    let (mut seen, mut idle_ticks) = (0, 0);
    loop {
        let Some(client) = shared.upgrade() else { return };
        let time = confined(|| look(bell, &client, &mut seen, &mut idle_ticks));
        // This may be the last reference; dropping it then stops this thread.
        drop(client);
        if !bell.sleep(time.unwrap_or(AFTER_PANIC)) {
            return;
        }
        bell.deaf.store(false, Ordering::Relaxed);
    }
}

/// Has a proof of identity made on a thread of its own: it may wait for other machines, and this one keeps the
/// lease alive.
fn make_proof(client: &Arc<Shared>, order: ProofOrder) {
    let (shared, order) = (Arc::downgrade(client), Arc::new(order));
    let ordered = order.clone();
    let work = move || {
        let prepared = confined(|| order.prepare());
        let prepared =
            prepared.unwrap_or_else(|| order.refuse("a panic of the authenticator".into()));
        if let Some(client) = shared.upgrade() {
            client.give_proof(prepared);
        }
    };
    let started = std::thread::Builder::new().name("dafs-proof".into()).spawn(work);
    if let Err(error) = started {
        client.give_proof(ordered.refuse(error.to_string()));
    }
}

/// Does the work that no other thread does; returns the time to the next look.
fn look(bell: &Bell, client: &Arc<Shared>, seen: &mut u64, idle_ticks: &mut u32) -> Duration {
    let Some(mut driver) = client.lock_if_free() else {
        // The thread that has the lock makes progress, and this one would only delay it.
        client.answer_questions();
        // At least one look must confirm that no operation is left without a waiter.
        *idle_ticks = (*idle_ticks + 1).min(IDLE_TICKS - 1);
        return HELPER_TICK;
    };
    let now = Instant::now();
    let due = driver.next_timeout().is_some_and(|at| at <= now);
    let is_driven = driver.drives() != *seen;
    let listens_every = driver.listens_every();
    let alone = driver.is_unattended() || (listens_every.is_some() && !driver.is_led());
    let gathers = driver.is_gathering();
    if due || gathers || (alone && !is_driven) {
        client.poll_once(&mut driver);
    }
    // A thread that has driven lately receives the server's calls, and will probably go on.
    let listens_every = match is_driven {
        true => listens_every.map(|time| time.max(BACK_TICK_DRIVEN)),
        false => listens_every,
    };
    let proof = driver.begin_proof(now);
    *seen = driver.drives();
    *idle_ticks = match gathers || driver.is_unattended() {
        true => 0,
        false => (*idle_ticks + 1).min(IDLE_TICKS),
    };
    let time = if *idle_ticks < IDLE_TICKS {
        HELPER_TICK
    } else {
        bell.deaf.store(true, Ordering::Relaxed);
        // Also while another thread listens: no wake-up announces that it stops.
        let time = driver.next_timeout().map_or(SLEEP_MAX, |at| at.since(now));
        let proof_in = driver.proof_due_at().map_or(SLEEP_MAX, |at| at.since(now));
        let time = time.min(proof_in);
        time.min(listens_every.unwrap_or(SLEEP_MAX)).clamp(HELPER_TICK, SLEEP_MAX)
    };
    drop(driver);
    if let Some(order) = proof {
        make_proof(client, order);
    }
    client.answer_questions();
    time
}
