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
use std::io;
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
                    let _ = session.server.tree.client.predecessor_ended();
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
    fn introduce(&self, session: &Session, source: &str, stream: UnixStream) -> io::Result<()> {
        check(&stream)?;
        greet(&stream)?;
        let tree = &session.server.tree;
        let mut identity =
            tree.client.identity().map_err(|error| io::Error::other(error.to_string()))?;
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

    /// True when a process waits until this one has stopped.
    pub(crate) fn is_ready(&self) -> bool {
        self.ready.lock().is_some()
    }

    /// The process for which this one has stopped.
    pub(crate) fn ready(&self) -> Option<UnixStream> {
        self.ready.lock().take()
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
