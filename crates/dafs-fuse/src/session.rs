//! The threads that serve a mount.
//!
//! Invariants
//! * A thread that has received a request answers it before it stops: nothing is lost when they do.

use crate::kernel::{
    Device, Errno, Offer, Operation, Received, Request, Room, accept, refuse_version,
};
use crate::limits::WRITE_BYTES_MAX;
use crate::serve::Server;
use rustix::thread::{Pid, gettid};
use signal_hook::consts::SIGUSR1;
use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};

/// Why the threads have stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The mount is gone.
    Unmounted,
    /// They were told to.
    Stopped,
}

/// Threads that serve a mount.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) server: Arc<Server>,
    threads: usize,
    stops: AtomicBool,
    /// The threads that are at it.
    running: Mutex<Vec<Pid>>,
}

/// Agrees with the kernel on how to go on. To be done once for a mount, before anything else.
///
/// # Errors
/// The device's; the kernel is too old.
pub(crate) fn begin(device: &Device) -> io::Result<()> {
    // The kernel hands a request only to who has room for the longest one.
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
        let answer = accept(&offer);
        device.answer(request.unique, answer.as_deref().map_err(|error| *error));
        return answer.map(drop).map_err(|error| io::Error::from_raw_os_error(error.number()));
    }
}

impl Session {
    pub(crate) fn new(server: Arc<Server>, threads: usize) -> Self {
        Self { server, threads, stops: AtomicBool::new(false), running: Mutex::default() }
    }

    /// Serves until the mount is gone or [`stop`](Self::stop) is called.
    ///
    /// # Errors
    /// The device's; no memory or threads.
    pub(crate) fn run(self: &Arc<Self>) -> io::Result<Ended> {
        let no_memory = |error: dafs_client::Error| io::Error::other(error.to_string());
        let client = &self.server.tree.client;
        let rooms = (0..self.threads).map(|_| Room::new(client));
        let rooms = rooms.collect::<Result<Vec<_>, _>>().map_err(no_memory)?;
        let (tell, ends) = mpsc::channel();
        for room in rooms {
            let (session, tell) = (self.clone(), tell.clone());
            let thread = std::thread::Builder::new().name("dafs-mount".into());
            thread.spawn(move || {
                let work = AssertUnwindSafe(|| session.work(room));
                let ended = std::panic::catch_unwind(work);
                let panicked = |_| Err(io::Error::other("a thread panicked"));
                // Nobody listens any more when the mount is gone.
                let _ = tell.send(ended.unwrap_or_else(panicked));
            })?;
        }
        drop(tell);
        // When the mount is gone nobody waits for those that are still at something, perhaps for ever.
        ends.into_iter()
            .find(|end| !matches!(end, Ok(Ended::Stopped)))
            .unwrap_or(Ok(Ended::Stopped))
    }

    /// Carries out requests, one after the other.
    fn work(&self, mut room: Room) -> io::Result<Ended> {
        let thread = gettid();
        self.running().push(thread);
        let ended = loop {
            if self.stops.load(Ordering::SeqCst) {
                break Ok(Ended::Stopped);
            }
            if let Err(error) = room.renew(&self.server.tree.client) {
                // Nothing can be read or written without a session; everything else still has an answer.
                tracing::debug!(%error, "no memory for transfers");
            }
            match self.server.device.receive(&mut room) {
                Ok(Received::Request(bytes)) => self.server.carry_out(&mut room, bytes),
                Ok(Received::Nothing) => {}
                Ok(Received::Unmounted) => break Ok(Ended::Unmounted),
                Err(error) => break Err(error),
            }
        };
        self.running().retain(|running| *running != thread);
        ended
    }

    /// Lets every thread stop when it has answered what it has received.
    ///
    /// # Errors
    /// The device's.
    pub(crate) fn stop(&self) -> io::Result<()> {
        // Without a handler the signal would end the process; what the handler does is nothing.
        signal_hook::flag::register(SIGUSR1, Arc::default())?;
        self.stops.store(true, Ordering::SeqCst);
        // From now on nobody begins to wait, and who waits already is woken.
        self.server.device.set_waiting(false)?;
        for thread in self.running().iter() {
            crate::wake::wake(*thread, SIGUSR1);
        }
        Ok(())
    }

    /// Takes a [`stop`](Self::stop) back, once all have stopped.
    pub(crate) fn go_on(&self) -> io::Result<()> {
        self.stops.store(false, Ordering::SeqCst);
        self.server.device.set_waiting(true)
    }

    fn running(&self) -> std::sync::MutexGuard<'_, Vec<Pid>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
