//! The mover thread. It makes progress while a program sleeps outside of this library: a task whose
//! waker is to be called, or a thread in `epoll`; also for operations with a continuation while no
//! other thread drives. The first user starts it.
//!
//! Invariants
//! * The thread holds a reference to the client only while operations are in flight that are
//!   watched or have a continuation, so it does not keep the client alive.
//! * Wakers are called without the driver's lock; a panic of one does not affect others.
//! * A panic does not end the thread.

use crate::driver::Shared;
use dafs_dat::confine::confined;
use dafs_mem::{Condvar, Mutex};
use std::io;
use std::sync::{Arc, MutexGuard, Weak};

/// The client's end of the thread.
#[derive(Debug, Clone, Default)]
pub(crate) struct Mover {
    bell: Arc<Bell>,
}

#[derive(Debug, Default)]
struct Bell {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    started: bool,
    rung: bool,
    stop: bool,
    #[cfg(test)]
    is_broken: bool,
}

impl Mover {
    /// Starts the thread, if it does not run yet: before anything relies on it, so that no
    /// operation is in flight when that fails. Called without the driver's lock.
    ///
    /// # Errors
    /// The thread could not be started.
    pub(crate) fn start(&self, shared: &Arc<Shared>) -> io::Result<()> {
        let mut state = self.bell.lock();
        #[cfg(test)]
        if state.is_broken {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        if !state.started {
            let (bell, shared) = (self.bell.clone(), Arc::downgrade(shared));
            let thread = std::thread::Builder::new().name("dafs-mover".into());
            thread.spawn(move || run(&bell, &shared))?;
            state.started = true;
        }
        Ok(())
    }

    /// Wakes the thread to make progress.
    pub(crate) fn attend(&self) {
        let mut state = self.bell.lock();
        debug_assert!(state.started, "who needs the thread has started it");
        if !state.rung {
            state.rung = true;
            self.bell.changed.notify_one();
        }
    }

    /// Makes the start of the thread fail, as in a process that has too many.
    #[cfg(test)]
    pub(crate) fn break_it(&self) {
        self.bell.lock().is_broken = true;
    }

    /// Holds the lock, for tests.
    #[cfg(test)]
    pub(crate) fn hold(&self) -> impl Sized {
        self.bell.lock()
    }

    pub(crate) fn stop(&self) {
        let mut state = self.bell.lock();
        state.stop = true;
        self.bell.changed.notify_one();
    }
}

impl Bell {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Sleeps until rung. Returns false when the thread is to end.
    fn sleep(&self) -> bool {
        let state = self.lock();
        let mut state = self.changed.wait_while(state, |state| !state.rung && !state.stop);
        state.rung = false;
        !state.stop
    }
}

fn run(bell: &Bell, shared: &Weak<Shared>) {
    while bell.sleep() {
        let Some(client) = shared.upgrade() else { return };
        // Waiting threads detect by themselves that a connection has failed in this way.
        let _ = confined(|| client.move_watched());
        // This may be the last reference; dropping it then stops this thread.
        drop(client);
    }
}
