//! The threads that serve a mount.
//!
//! Invariants
//! * A thread that has received a request answers it before it stops, or has handed it over to one
//!   that does: these are waited for as well, so that no request is lost.
//! * While a thread carries out an operation that may wait for another mount, another one receives,
//!   up to [`ASIDE_MAX`]: the other mount may wait for a read here.

use crate::kernel::{
    Agreed, Device, Errno, Offer, Operation, Received, Request, Room, accept, refuse_version,
};
use crate::limits::{ASIDE_MAX, HANDOVER_STOP_PATIENCE, WRITE_BYTES_MAX};
use crate::serve::Server;
use crate::turns::Turns;
use dafs_mem::{Condvar, Mutex};
use rustix::thread::{Pid, gettid};
use signal_hook::consts::SIGUSR1;
use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

/// The reason why [`Session::run`] has returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The mount is gone.
    Unmounted,
    /// All threads have stopped, as asked.
    Stopped,
    /// They were asked to stop, and one is in an operation that does not end.
    Stuck,
}

/// Threads that serve a mount.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) server: Arc<Server>,
    threads: usize,
    stops: AtomicBool,
    /// All threads.
    running: Mutex<Vec<Pid>>,
    state: Mutex<State>,
    changed: Condvar,
    /// Those of [`threads`](Self::threads) that carry out a request.
    busy: AtomicUsize,
    /// Turns to receive.
    turns: Turns,
}

#[derive(Debug, Default)]
struct State {
    /// Threads that were started.
    made: usize,
    /// Those among them that carry out one request, and then end.
    aside: usize,
    /// Those that have stopped, and wait to go on.
    stopped: usize,
    /// The end of the first one that has ended.
    ended: Option<io::Result<Ended>>,
}

/// Negotiates with the kernel. Called once for a mount, before anything else.
///
/// # Errors
/// Those of the device; the kernel is too old.
pub(crate) fn begin(device: &Device) -> io::Result<Agreed> {
    // The kernel passes a request only to a reader with room for the longest one.
    let mut bytes = vec![0; WRITE_BYTES_MAX as usize + 4096];
    loop {
        let len = match rustix::io::read(device.as_fd(), &mut bytes) {
            Ok(len) => len,
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        };
        let strange = || io::Error::from_raw_os_error(libc::EPROTO);
        let request = Request::parse(&bytes[..len]).map_err(|_| strange())?;
        let Operation::Init { major, minor, read_ahead, flags, more_flags } = request.operation
        else {
            device.answer(request.unique, Err(Errno::EIO));
            return Err(strange());
        };
        let offer = Offer { major, minor, read_ahead, flags, more_flags };
        tracing::debug!(?offer, "the kernel begins");
        if let Some(answer) = refuse_version(&offer) {
            device.answer(request.unique, Ok(&answer));
            continue;
        }
        let accepted = accept(&offer);
        let answer = accepted.as_ref().map(|(answer, _)| &answer[..]);
        device.answer(request.unique, answer.map_err(|error| *error));
        let failed = |error: Errno| io::Error::from_raw_os_error(error.number());
        return accepted.map(|(_, agreed)| agreed).map_err(failed);
    }
}

impl Session {
    /// [`prepare`](Self::prepare) makes its resources, and it serves from [`go_on`](Self::go_on)
    /// on.
    pub(crate) fn new(server: Arc<Server>, threads: usize) -> Self {
        Self {
            server,
            threads,
            stops: AtomicBool::new(true),
            running: Mutex::default(),
            state: Mutex::default(),
            changed: Condvar::new(),
            busy: AtomicUsize::new(0),
            turns: Turns::default(),
        }
    }

    /// Makes the threads and their memory, so that this cannot fail later. They wait.
    ///
    /// # Errors
    /// No memory or threads.
    pub(crate) fn prepare(self: &Arc<Self>) -> io::Result<()> {
        let no_memory = |error: dafs_client::Error| io::Error::other(error.to_string());
        let client = &self.server.tree.client;
        let rooms = (0..self.threads).map(|_| Room::new(client));
        let rooms = rooms.collect::<Result<Vec<_>, _>>().map_err(no_memory)?;
        for room in rooms {
            let session = self.clone();
            let thread = std::thread::Builder::new().name("dafs-mount".into());
            thread.spawn(move || {
                let work = AssertUnwindSafe(|| session.work(room));
                let ended = std::panic::catch_unwind(work);
                let panicked = |_| Err(io::Error::other("a thread panicked"));
                session.state.lock().ended.get_or_insert(ended.unwrap_or_else(panicked));
                session.changed.notify_all();
                // The others see it, too.
                session.turns.set_open(true);
            })?;
            self.state.lock().made += 1;
        }
        Ok(())
    }

    /// Serves until the mount is gone or all threads have stopped after [`stop`](Self::stop), for
    /// which they have some time.
    ///
    /// # Errors
    /// Those of the device.
    pub(crate) fn run(&self) -> io::Result<Ended> {
        let mut until = None;
        let mut state = self.state.lock();
        loop {
            // When the mount is gone no program waits for operations under way.
            if let Some(ended) = state.ended.take() {
                return ended;
            }
            if !self.stops.load(Ordering::SeqCst) {
                until = None;
                state = self.changed.wait(state);
                continue;
            }
            let until = *until.get_or_insert_with(|| Instant::now() + HANDOVER_STOP_PATIENCE);
            if state.stopped == state.made {
                drop(state);
                // No thread is left that could begin one.
                let is_over = self.server.handed.wait(until);
                return Ok(if is_over { Ended::Stopped } else { Ended::Stuck });
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Ended::Stuck);
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.0;
        }
    }

    /// Carries out requests, one after the other; returns how the mount has ended.
    fn work(self: &Arc<Self>, mut room: Room) -> io::Result<Ended> {
        self.running.lock().push(gettid());
        loop {
            if self.stops.load(Ordering::SeqCst) {
                self.wait_to_go_on();
            }
            if let Err(error) = room.renew(&self.server.tree.client) {
                // Without a session no data can be transferred; everything else still has an
                // answer.
                tracing::debug!(%error, "no memory for transfers");
            }
            self.turns.take();
            let received = self.server.device.receive(&mut room);
            self.turns.pass();
            match received {
                Ok(Received::Request(bytes)) => self.carry_out(&mut room, bytes),
                Ok(Received::Nothing) => {}
                Ok(Received::Unmounted) => return Ok(Ended::Unmounted),
                Err(error) => return Err(error),
            }
        }
    }

    fn carry_out(self: &Arc<Self>, room: &mut Room, bytes: usize) {
        let is_last = self.busy.fetch_add(1, Ordering::SeqCst) + 1 >= self.threads;
        let aside = if is_last { room.copy_to_set_aside(bytes) } else { None };
        if aside.is_none_or(|request| !self.set_aside(request)) {
            self.server.carry_out(room, bytes);
        }
        self.busy.fetch_sub(1, Ordering::SeqCst);
    }

    /// Lets another thread carry out a request; false when there is none.
    fn set_aside(self: &Arc<Self>, request: Vec<u8>) -> bool {
        let mut state = self.state.lock();
        if state.aside >= ASIDE_MAX {
            return false;
        }
        let session = self.clone();
        let thread = std::thread::Builder::new().name("dafs-aside".into());
        let begun = thread.spawn(move || {
            session.server.carry_out_alone(&request);
            let mut state = session.state.lock();
            state.made -= 1;
            state.aside -= 1;
            session.changed.notify_all();
        });
        match begun {
            Ok(_) => {
                state.made += 1;
                state.aside += 1;
                true
            }
            Err(error) => {
                tracing::warn!(%error, "no thread for what may wait for another mount");
                false
            }
        }
    }

    fn wait_to_go_on(&self) {
        let mut state = self.state.lock();
        state.stopped += 1;
        self.changed.notify_all();
        let stops = |_: &mut State| self.stops.load(Ordering::SeqCst);
        self.changed.wait_while(state, stops).stopped -= 1;
    }

    /// Lets every thread stop when it has answered the request that it has received.
    ///
    /// # Errors
    /// Those of the device.
    pub(crate) fn stop(&self) -> io::Result<()> {
        // Without a handler the signal would end the process; the handler has no effect.
        signal_hook::flag::register(SIGUSR1, Arc::default())?;
        // From now on no thread begins to wait, and those that wait already are woken.
        self.server.device.set_waiting(false)?;
        self.set_stops(true);
        for thread in self.running.lock().iter() {
            crate::wake::wake(*thread, SIGUSR1);
        }
        Ok(())
    }

    /// Lets the threads begin, or revokes a [`stop`](Self::stop).
    ///
    /// # Errors
    /// Those of the device.
    pub(crate) fn go_on(&self) -> io::Result<()> {
        self.server.device.set_waiting(true)?;
        self.set_stops(false);
        Ok(())
    }

    fn set_stops(&self, stops: bool) {
        // Under the lock, so that no thread checks before and waits after it.
        let state = self.state.lock();
        self.stops.store(stops, Ordering::SeqCst);
        // So no thread goes on before the turns are few again.
        self.turns.set_open(stops);
        drop(state);
        self.changed.notify_all();
    }
}
