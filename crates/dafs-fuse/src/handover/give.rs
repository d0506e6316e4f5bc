//! The process that serves a mount, and hands it over to another one.

use super::socket::{CONNECTED, GO_ON, TAKEN, address, check, greet, receive, send, send_with};
use super::state::{Codec as _, DirectoryState, FileState, Introduction, OwnerState, State};
use crate::limits::{
    HANDOVER_KEEPING_PATIENCE, HANDOVER_LOCKS_PATIENCE, HANDOVER_PATIENCE, HANDOVER_PAUSE,
    KEPT_PATIENCE,
};
use crate::serve::Server;
use crate::session::Session;
use dafs_mem::Mutex;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::time::Instant;

/// Owners of opens that this process may still use until it stops.
const OWNERS_TO_COME: u64 = 1 << 32;

/// Listens for a process that asks for the mount.
#[derive(Debug, Default)]
pub(crate) struct Listener {
    /// A process that is connected to the server and waits until this one has stopped.
    ready: Mutex<Option<UnixStream>>,
    /// The processes that were told which client this one is.
    others: Arc<Others>,
}

/// The number of other processes that may have a session of the same client. That of a process goes on
/// until its end, also when it gives the hand-over up or is given up.
#[derive(Debug, Default)]
struct Others(Mutex<usize>);

impl Others {
    /// Tells another process which client this one is, and counts it.
    fn add<T>(&self, tell: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let mut count = self.0.lock();
        let told = tell()?;
        *count += 1;
        Ok(told)
    }

    /// Waits for the end of a process in a thread of its own. With the last one it calls `alone`.
    fn await_end(
        self: &Arc<Self>,
        process: OwnedFd,
        alone: impl FnOnce() + Send + 'static,
    ) -> io::Result<()> {
        let own = self.clone();
        let thread = std::thread::Builder::new().name("dafs-successor".into());
        thread.spawn(move || {
            while let Err(error) = poll(&mut [PollFd::new(&process, PollFlags::IN)], None) {
                if error != Errno::INTR {
                    return;
                }
            }
            let mut count = own.0.lock();
            *count -= 1;
            if *count == 0 {
                alone();
            }
        })?;
        Ok(())
    }
}

impl Listener {
    /// Starts to listen; `former` is the process that had the mount before, whose end is waited
    /// for.
    ///
    /// # Errors
    /// The thread could not be started.
    pub(crate) fn start(
        session: &Arc<Session>,
        device: &str,
        source: &str,
        former: Option<UnixStream>,
    ) -> io::Result<Arc<Self>> {
        let listener = Arc::<Self>::default();
        let (own, session) = (listener.clone(), session.clone());
        let (device, source) = (device.to_owned(), source.to_owned());
        let thread = std::thread::Builder::new().name("dafs-handover".into());
        thread.spawn(move || {
            if let Some(former) = former {
                // The former process sends no more messages; it only ends.
                let end = receive(&former).map_err(|error| error.kind());
                if matches!(end, Err(io::ErrorKind::UnexpectedEof)) {
                    // A fork has no mount.
                    let _ = session.server.tree.client.others_have_ended();
                }
            }
            let listening = address(&device).and_then(|at| bind(&at));
            let listening = match listening {
                Ok(listening) => listening,
                Err(error) => {
                    return tracing::warn!(%error, "the mount cannot be handed over to others");
                }
            };
            for stream in listening.incoming() {
                match stream.and_then(|stream| own.introduce(&session, &source, stream)) {
                    Ok(()) => {}
                    Err(error) => tracing::warn!(%error, "somebody did not take the mount over"),
                }
            }
        })?;
        Ok(listener)
    }

    /// Lets another process connect to the server, and stops when it has.
    fn introduce(
        &self,
        session: &Arc<Session>,
        source: &str,
        stream: UnixStream,
    ) -> io::Result<()> {
        check(&stream)?;
        greet(&stream)?;
        // Before it is told anything: its end would not be noticed later, if it has no number any more.
        let process = process(socket_peercred(&stream)?.pid)?;
        let tree = &session.server.tree;
        let tell = || tree.client.identity().map_err(|error| io::Error::other(error.to_string()));
        let mut identity = self.others.add(tell)?;
        if let Err(error) = process.and_then(|process| self.await_end(session, process)) {
            // A restarted server is never told that this client has reclaimed all.
            tracing::warn!(%error, "the end of the next process of the mount cannot be noticed");
        }
        identity.next_owner += OWNERS_TO_COME;
        let root = tree.nodes.root();
        let introduction = Introduction { identity, root, source: source.as_bytes().to_vec() };
        send(&stream, &introduction.encode())?;
        if receive(&stream)? != CONNECTED {
            return Err(io::Error::other("it could not connect to the server"));
        }
        // Most of it while requests are still served.
        settle(&session.server)?;
        // While reads are still answered: a thread that has got a lock makes the kernel drop pages,
        // which waits for them.
        if let Err(error) = stop_keeping(&session.server) {
            session.server.delegated.pause(false);
            return Err(error);
        }
        if !session.server.locks.pause(HANDOVER_LOCKS_PATIENCE) {
            resume(&session.server);
            return Err(io::Error::other("requests for locks do not come to an end"));
        }
        // An earlier process that was not served has timed out.
        *self.ready.lock() = Some(stream);
        let stopped = session.stop();
        if stopped.is_err() {
            drop(self.ready());
            resume(&session.server);
        }
        stopped
    }

    /// When the other process has ended, this one has its client for itself again.
    fn await_end(&self, session: &Arc<Session>, process: OwnedFd) -> io::Result<()> {
        let session = Arc::downgrade(session);
        self.others.await_end(process, move || {
            if let Some(session) = session.upgrade() {
                // A fork has no mount.
                let _ = session.server.tree.client.others_have_ended();
            }
        })
    }

    /// True when a process waits until this one has stopped.
    pub(crate) fn is_ready(&self) -> bool {
        self.ready.lock().is_some()
    }

    /// The process for which this one has stopped.
    pub(crate) fn ready(&self) -> Option<UnixStream> {
        self.ready.lock().take()
    }
}

/// Returns a running process, or why its end cannot be waited for, such as that it belongs to another
/// name space.
///
/// # Errors
/// It has ended.
fn process(number: Pid) -> io::Result<io::Result<OwnedFd>> {
    match pidfd_open(number, PidfdFlags::empty()) {
        Err(Errno::SRCH) => Err(io::Error::other("it has ended")),
        process => Ok(process.map_err(io::Error::from)),
    }
}

/// Listens, as soon as the former process does not any more: its end takes a moment.
fn bind(at: &SocketAddr) -> io::Result<UnixListener> {
    let until = Instant::now() + HANDOVER_PATIENCE;
    loop {
        match UnixListener::bind_addr(at) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < until => {
                std::thread::sleep(HANDOVER_PAUSE);
            }
            other => return other,
        }
    }
}

/// Resumes service after a process has not taken the mount.
pub(crate) fn resume(server: &Arc<Server>) {
    server.resume_locks();
    server.delegated.pause(false);
}

/// Gives everything to another process; all threads have stopped.
///
/// # Errors
/// The other process has not taken it. This one can go on as before.
pub(crate) fn give(server: &Arc<Server>, stream: &UnixStream) -> io::Result<()> {
    let paused = match server.locks.pause(HANDOVER_LOCKS_PATIENCE) {
        true => Ok(server.locks.unanswered()),
        false => Err(io::Error::other("requests for locks do not come to an end")),
    };
    let waiting = paused.as_deref().unwrap_or_default().to_vec();
    let state = paused.and_then(|waiting| state(server, &waiting));
    let given = state.and_then(|state| {
        send_with(stream, &state.encode(), server.device.as_fd())?;
        let answer = receive(stream)?;
        if answer != TAKEN {
            return Err(io::Error::other(String::from_utf8_lossy(&answer).into_owned()));
        }
        send(stream, GO_ON)
    });
    if given.is_err() {
        server.locks.take_back(waiting);
        resume(server);
    }
    given
}

/// Stops caching under delegations, and lets the server know all opens.
fn stop_keeping(server: &Arc<Server>) -> io::Result<()> {
    let stopped = server.stop_keeping(HANDOVER_KEEPING_PATIENCE);
    stopped.map_err(|error| {
        tracing::debug!(?error, "the server does not know all that is open");
        unknown()
    })
}

/// The next process would not know them either.
fn unknown() -> io::Error {
    io::Error::other("the server does not come to know all that is open")
}

/// Makes all writes stable.
fn settle(server: &Server) -> io::Result<()> {
    let settled = server.kept.settle(KEPT_PATIENCE);
    settled.map_err(|_| io::Error::other("the server does not make stable what was written"))
}

fn state(server: &Server, waiting: &[crate::locking::Request]) -> io::Result<State> {
    let given_up = server.locks.given_up();
    let mut state = State { waiting: waiting.to_vec(), given_up, ..State::default() };
    // Unstable writes would be forgotten.
    settle(server)?;
    if server.delegated.has_promised() {
        return Err(unknown());
    }
    state.agreed = server.agreed;
    state.nodes = server.tree.nodes.all();
    state.next_file = server.files.next_number();
    for (number, file) in server.files.all() {
        state.files.push(FileState {
            number,
            node: file.node,
            handle: *file.file.handle(),
            flags: file.flags,
            user: file.user.clone(),
            open_owner: file.file.open_owner(),
            is_lost: file.is_lost(),
        });
    }
    for (number, directory) in server.directories.all() {
        let (handle, listing) = directory.pause();
        let user = directory.user.clone();
        state.directories.push(DirectoryState { number, handle, user, listing });
    }
    let mut lost = false;
    server.locks.for_each(|node, (name, process), open, handles| {
        let Ok(locks) = open.locks() else {
            lost = true;
            return;
        };
        let ranges =
            locks.iter().map(|range| (range.offset(), range.length(), range.is_exclusive()));
        // Its locks were taken through these.
        let mut through = handles.iter().filter_map(|number| server.files.get(*number));
        state.owners.push(OwnerState {
            node,
            name,
            process,
            handle: *open.handle(),
            open_owner: open.open_owner(),
            handles: handles.to_vec(),
            user: through.next().and_then(|file| file.user.clone()),
            locks: ranges.collect(),
        });
    });
    match lost {
        // The holders of those locks would not be notified.
        true => {
            Err(io::Error::other("locks were lost; it can be taken over when they are given up"))
        }
        false => Ok(state),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};
    use std::sync::mpsc::{TryRecvError, channel};
    use std::time::Duration;

    #[test]
    fn a_process_is_alone_when_all_that_were_told_have_ended() {
        let others = Arc::<Others>::default();
        let (sender, alone) = channel();
        let start = || -> Child {
            let child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
            others.add(|| Ok(())).unwrap();
            let process = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
            let sender = sender.clone();
            others.await_end(process, move || sender.send(()).unwrap()).unwrap();
            child
        };
        let end = |mut child: Child| {
            child.kill().unwrap();
            child.wait().unwrap();
        };
        let (first, second) = (start(), start());
        end(first);
        let told = || *others.0.lock();
        while told() == 2 {
            std::thread::yield_now();
        }
        assert_eq!(alone.try_recv(), Err(TryRecvError::Empty), "the other one goes on");
        end(second);
        alone.recv_timeout(Duration::from_secs(60)).unwrap();
        assert_eq!(told(), 0);
    }

    #[test]
    fn a_process_that_has_ended_is_told_nothing() {
        let mut child = Command::new("true").spawn().unwrap();
        let number = Pid::from_child(&child);
        assert!(process(number).unwrap().is_ok());
        child.wait().unwrap();
        process(number).unwrap_err();
    }

    #[test]
    fn a_process_that_was_told_nothing_does_not_count() {
        let others = Others::default();
        others.add(|| Err::<(), _>(io::ErrorKind::Other.into())).unwrap_err();
        assert_eq!(*others.0.lock(), 0);
    }
}
