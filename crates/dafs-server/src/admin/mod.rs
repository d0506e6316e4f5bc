//! The administrators' interface: a UNIX socket in the state directory, for root and the server's
//! user.
//!
//! Each connection has one request, a line of JSON. The answer is a line of JSON, too. `report.rs`
//! has both. A process that takes the server over says more: `hand_over`.
//!
//! Invariants
//! * Only its owner can open the socket, so the file system authenticates the administrator.
//! * A second server with the same state directory does not take the socket from the first.
//! * A peer that sends no request, or does not read the answer, blocks no other. Each peer has a
//!   thread, their number is small, and silent ones make room. A request that panics fails alone.

mod report;
mod scrub;

pub use report::{
    AdminReply, AdminRequest, ClientReport, ExportReport, ExposedReport, FenceOrder, FenceReport,
    LatencyReport, LayoutReport, LockReport, NodeReport, RefusedKey, ReloadReport, SessionReport,
    StatusReport, UserOrder, UserReport,
};
pub use scrub::{FaultReport, ScrubOrder, ScrubReport};

use crate::hand_over::HAND_OVER;
use crate::limits::{ADMIN_PEERS_MAX, ADMIN_REQUEST_BYTES_MAX, ADMIN_TIMEOUT};
use crate::peers::serve_each;
use dafs_dat::connections::{Admitted, ConnectionLimits, Connections, Origin};
use dafs_store::vital;
use rustix::net::Shutdown;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use thiserror::Error;

/// Talks to a process that takes the server over.
pub(crate) type HandOver = Box<dyn Fn(UnixStream) -> io::Result<()> + Send + Sync>;

/// Answers administrators.
pub(crate) type AdminHandler = Box<dyn Fn(AdminRequest) -> AdminReply + Send + Sync>;

/// The reason why a server cannot be asked.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AdminError {
    /// No server listens.
    #[error(
        "no server answers at {path}: {error}; see whether it runs, ask as its user or as root, and name \
         another server by --config FILE, --state-directory DIR or --server URL",
        path = .path.display()
    )]
    Unreachable {
        /// The path of the socket.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// No server of dafs answers at an address, or its certificate is not trusted.
    #[error("no server answers at {server}: {error}; see whether it runs, and has admin_listen")]
    NoServer {
        /// Its host and port.
        server: String,
        /// The error of the connection.
        error: io::Error,
    },
    /// The server refuses the request.
    #[error("the server refuses the request with status {status}: {text}")]
    Refused {
        /// The status of HTTP.
        status: u16,
        /// The reason.
        text: String,
    },
    /// The server accepts the connection and does not answer.
    #[error("the server did not answer: {0}")]
    NoAnswer(io::Error),
}

/// Returns the path of the socket.
pub(crate) fn socket_path(state_directory: &Path) -> PathBuf {
    state_directory.join("admin.sock")
}

/// Sends a request to the server of a state directory.
///
/// # Errors
/// The server cannot be reached.
pub fn ask(state_directory: &Path, request: &AdminRequest) -> Result<AdminReply, AdminError> {
    let path = socket_path(state_directory);
    let mut stream = UnixStream::connect(&path)
        .map_err(|error| AdminError::Unreachable { path: path.clone(), error })?;
    let exchange = || {
        stream.set_read_timeout(Some(ADMIN_TIMEOUT))?;
        let mut line = serde_json::to_vec(request).map_err(io::Error::other)?;
        line.push(b'\n');
        stream.write_all(&line)?;
        let mut answer = String::new();
        BufReader::new(&stream).read_line(&mut answer)?;
        serde_json::from_str(&answer).map_err(io::Error::other)
    };
    let mut exchange = exchange;
    exchange().map_err(AdminError::NoAnswer)
}

/// The thread behind the socket. It ends when this is dropped.
pub(crate) struct AdminSocket {
    path: PathBuf,
    listener: UnixListener,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl AdminSocket {
    /// Listens in the state directory.
    ///
    /// # Errors
    /// The socket cannot be made, for instance because another server uses this directory.
    pub(crate) fn start(
        state_directory: &Path,
        handler: AdminHandler,
        hand_over: HandOver,
    ) -> io::Result<Self> {
        let path = socket_path(state_directory);
        let listener = match UnixListener::bind(&path) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                if UnixStream::connect(&path).is_ok() {
                    return Err(error);
                }
                // A server that was killed has left it.
                std::fs::remove_file(&path)?;
                UnixListener::bind(&path)?
            }
            other => other?,
        };
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600))?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let own = listener.try_clone()?;
        let run = move || accept(&listener, &stopped, (&handler, &hand_over));
        let thread = vital::spawn("dafs-admin", run)?;
        Ok(Self { path, listener: own, stop, thread: Some(thread) })
    }
}

impl Drop for AdminSocket {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // The thread sleeps in accept, and the end of listening wakes it. A connection would take a descriptor, of
        // which none may be left.
        let woken = rustix::net::shutdown(&self.listener, Shutdown::Both).is_ok();
        if let Some(thread) = self.thread.take().filter(|_| woken) {
            let _ = thread.join();
        }
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Serves peers until the server stops.
fn accept(listener: &UnixListener, stopped: &AtomicBool, answers: (&AdminHandler, &HandOver)) {
    let limits = ConnectionLimits { total: ADMIN_PEERS_MAX, per_address: ADMIN_PEERS_MAX };
    let next = || {
        let (stream, _) = listener.accept()?;
        let user = rustix::net::sockopt::socket_peercred(&stream)?.uid;
        Ok((stream, Origin::User(user.as_raw())))
    };
    let serve = |stream: &UnixStream, admitted: &Admitted| serve(stream, admitted, answers);
    serve_each("dafs-admin", &Connections::new(limits), stopped, next, serve);
}

fn serve(
    stream: &UnixStream,
    admitted: &Admitted,
    (handler, hand_over): (&AdminHandler, &HandOver),
) -> io::Result<()> {
    // The permissions are set a moment after the socket is made, so the kernel is asked for the
    // peer's user, too.
    let peer = rustix::net::sockopt::socket_peercred(stream)?.uid;
    if !peer.is_root() && peer != rustix::process::geteuid() {
        return Ok(());
    }
    stream.set_read_timeout(Some(ADMIN_TIMEOUT))?;
    stream.set_write_timeout(Some(ADMIN_TIMEOUT))?;
    let mut line = String::new();
    BufReader::new(stream.take(ADMIN_REQUEST_BYTES_MAX)).read_line(&mut line)?;
    admitted.establish();
    if line.trim_end() == HAND_OVER {
        return hand_over(stream.try_clone()?);
    }
    let reply = match serde_json::from_str(&line) {
        Ok(request) => answer_of(handler, request),
        Err(error) => AdminReply::Failed(format!("this is not a request: {error}")),
    };
    let mut answer = serde_json::to_vec(&reply).map_err(io::Error::other)?;
    answer.push(b'\n');
    let mut stream = stream;
    stream.write_all(&answer)
}

/// Carries out a request. One that panics has failed.
pub(crate) fn answer_of(handler: &AdminHandler, request: AdminRequest) -> AdminReply {
    catch_unwind(AssertUnwindSafe(|| handler(request))).unwrap_or_else(|_| {
        AdminReply::Failed("the server failed to serve the request; see its log".to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn echo() -> AdminHandler {
        Box::new(|request| AdminReply::Done(format!("{request:?}")))
    }

    fn nobody() -> HandOver {
        Box::new(|_| Ok(()))
    }

    #[test]
    fn keys_of_clients_are_not_rounded() {
        let session = SessionReport {
            client: 0xf4cd_8a18_0b48_f21f,
            trusted: true,
            ..SessionReport::default()
        };
        let text = serde_json::to_string(&session).unwrap();
        assert!(text.contains(r#""client":"f4cd8a180b48f21f""#), "{text}");
        assert_eq!(serde_json::from_str::<SessionReport>(&text).unwrap(), session);
    }

    #[test]
    fn requests_are_answered_and_the_socket_goes_with_the_server() {
        let dir = tempfile::tempdir().unwrap();
        let socket = AdminSocket::start(dir.path(), echo(), nobody()).unwrap();
        let mode = std::fs::metadata(socket_path(dir.path())).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let reply = ask(dir.path(), &AdminRequest::Expire { client: 7 }).unwrap();
        assert_eq!(reply, AdminReply::Done("Expire { client: 7 }".to_owned()));
        assert!(
            AdminSocket::start(dir.path(), echo(), nobody()).is_err(),
            "taken from a living server"
        );
        drop(socket);
        assert!(matches!(
            ask(dir.path(), &AdminRequest::Clients),
            Err(AdminError::Unreachable { .. })
        ));
    }

    #[test]
    fn peers_that_ask_nothing_hold_up_nobody_else() {
        let dir = tempfile::tempdir().unwrap();
        let socket = AdminSocket::start(dir.path(), echo(), nobody()).unwrap();
        let connect = || UnixStream::connect(socket_path(dir.path())).unwrap();
        let mut silent: Vec<_> = (0..3 * ADMIN_PEERS_MAX).map(|_| connect()).collect();
        ask(dir.path(), &AdminRequest::Clients).unwrap();
        // They are accepted in the order of their arrival, so the first has made room.
        silent[0].set_read_timeout(Some(ADMIN_TIMEOUT / 2)).unwrap();
        assert_eq!(silent[0].read_to_string(&mut String::new()).unwrap(), 0, "turned away");
        drop(silent);
        drop(socket);
    }

    #[test]
    fn a_request_that_panics_fails_alone() {
        let dir = tempfile::tempdir().unwrap();
        let handler: AdminHandler = Box::new(|request| match request {
            AdminRequest::Expire { .. } => panic!("a handler that fails, on purpose"),
            request => AdminReply::Done(format!("{request:?}")),
        });
        let socket = AdminSocket::start(dir.path(), handler, nobody()).unwrap();
        for client in 0..2 * ADMIN_PEERS_MAX as u64 {
            let reply = ask(dir.path(), &AdminRequest::Expire { client }).unwrap();
            assert!(matches!(reply, AdminReply::Failed(text) if text.contains("log")));
        }
        let reply = ask(dir.path(), &AdminRequest::Clients).unwrap();
        assert_eq!(reply, AdminReply::Done("Clients".to_owned()));
        drop(socket);
    }

    #[test]
    fn a_socket_left_behind_is_replaced_and_nonsense_is_answered() {
        let dir = tempfile::tempdir().unwrap();
        drop(UnixListener::bind(socket_path(dir.path())).unwrap());
        let _socket = AdminSocket::start(dir.path(), echo(), nobody()).unwrap();
        let mut stream = UnixStream::connect(socket_path(dir.path())).unwrap();
        stream.write_all(b"nonsense\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.contains("this is not a request"), "{answer}");
    }
}
