//! The administrator's door: a UNIX socket in the state directory, for root and the server's user.
//!
//! One request per connection, a line of JSON; the answer is a line of JSON.
//!
//! Invariants
//! * The socket can be opened by its owner alone, so the file system proves who asks.
//! * A second server over the same state directory does not take the socket from the first.
//! * A peer that does not ask, or does not read the answer, holds up nobody but itself: each has a
//!   thread, there are few, and silent ones make room. A request that panics fails alone.

use crate::limits::{ADMIN_PEERS_MAX, ADMIN_REQUEST_BYTES_MAX, ADMIN_TIMEOUT};
use crate::peers::serve_each;
use dafs_dat::connections::{Admitted, ConnectionLimits, Connections, Origin};
use dafs_store::vital;
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use thiserror::Error;

/// What an administrator may ask for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AdminRequest {
    /// Who is known, and what do they hold?
    Clients,
    /// End a client: all that it holds is released.
    Expire {
        /// Its key, as `Clients` told it.
        client: u64,
    },
    /// Read the configuration file again.
    Reload,
    /// Which sessions are there?
    Sessions,
    /// Which byte ranges are locked, or were and are broken?
    Locks,
    /// Where does a file lie?
    Layout {
        /// The file, as clients name it.
        path: String,
    },
    /// Which nodes do exports have whose files are spread?
    Nodes,
    /// Move everything off a node, or leave it where it is after all.
    Drain {
        /// The export that the node is a part of; the only one that has nodes if it is left out.
        export: Option<String>,
        /// Its number.
        node: u32,
        /// It stays.
        undo: bool,
    },
    /// Have an empty directory take the place of one that is lost, where files have copies.
    Replace {
        /// The export that the node is a part of; the only one that has nodes if it is left out.
        export: Option<String>,
        /// Its number.
        node: u32,
    },
    /// Who has access to file systems?
    Fences {
        /// The exports; none are all.
        exports: Vec<String>,
    },
    /// Change who has access to file systems. Answered with `Fences`, when nothing of those who were
    /// shut out is under way any more.
    Fence {
        /// The exports; none are all.
        exports: Vec<String>,
        /// What to do with the names.
        change: FenceOrder,
        /// Fence ids, and names of NFS clients.
        names: Vec<String>,
    },
}

/// How the list of a fence changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FenceOrder {
    /// Only these have access.
    Set,
    /// These have access, too.
    Add,
    /// These have no access any more.
    Remove,
    /// Everybody has access.
    Clear,
}

/// What the server says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AdminReply {
    /// The clients.
    Clients(Vec<ClientReport>),
    /// The sessions.
    Sessions(Vec<SessionReport>),
    /// The locks; those that their holders have left behind first.
    Locks(Vec<LockReport>),
    /// Where a file lies.
    Layout(LayoutReport),
    /// The nodes.
    Nodes(Vec<NodeReport>),
    /// The fences of file systems.
    Fences(Vec<FenceReport>),
    /// It was done.
    Done(String),
    /// It could not be done, and why.
    Failed(String),
}

/// A node as an administrator sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeReport {
    /// The export that it is a part of.
    pub export: String,
    /// Its number.
    pub number: u32,
    /// Its directory, or where its data server waits for the metadata server.
    pub place: String,
    /// Where clients reach it.
    pub addresses: Vec<SocketAddr>,
    /// Whether it can be used now.
    pub connected: bool,
    /// Why not.
    pub trouble: String,
    /// Its space.
    pub total_bytes: u64,
    /// What is left of it.
    pub available_bytes: u64,
    /// Everything is being moved off it.
    pub leaving: bool,
    /// That is done: it can be taken out of the configuration.
    pub empty: bool,
    /// Files that were moved off nodes of the export since the server started, and their bytes.
    pub moved_files: u64,
    /// See above.
    pub moved_bytes: u64,
    /// Files whose copies there lack something.
    pub files_to_mend: u64,
    /// Bytes that clients have read at its data server since that was started.
    pub read_bytes: u64,
    /// Bytes that they have written there.
    pub written_bytes: u64,
    /// What of these lies on other nodes.
    pub indirect_bytes: u64,
}

/// A client as an administrator sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientReport {
    /// The key to name it by.
    #[serde(with = "hex_key")]
    pub client: u64,
    /// The protocol by which it came.
    pub door: String,
    /// The name it gave itself, with bytes that are no text escaped.
    pub name: String,
    /// How data travels, where that is known.
    pub transport: String,
    /// How it proved who it is.
    pub principal: String,
    /// Where it was last heard from, if it came by a network.
    pub address: String,
    /// Seconds since it was last heard from.
    pub silent_seconds: u64,
    /// Its lease has ended; what it holds goes as soon as somebody else wants it.
    pub courtesy: bool,
    /// Files it has open.
    pub opens: u64,
    /// Byte ranges it has locked.
    pub locks: u64,
    /// Delegations it holds.
    pub delegations: u64,
    /// Requests since it came.
    pub operations: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// The files it holds something of, each with what, in words.
    pub holds: Vec<String>,
}

/// A session of a DAFS client as an administrator sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionReport {
    /// Its id.
    pub session: String,
    /// The key of its client, as in [`ClientReport`].
    #[serde(with = "hex_key")]
    pub client: u64,
    /// The name the client gave itself, with bytes that are no text escaped.
    pub name: String,
    /// Who it is to fences; `null` if it has not said so.
    pub fence_id: Option<String>,
    /// Where it comes from.
    pub peer: String,
    /// How data travels.
    pub transport: String,
    /// Whether the server trusts it.
    pub trusted: bool,
    /// Whether messages and data carry checksums.
    pub checksums: bool,
    /// Seconds since it connected.
    pub age_seconds: u64,
    /// Requests that it may have outstanding.
    pub credits: u16,
    /// Requests that have come and are not answered.
    pub in_flight: u16,
    /// Replies kept for it, should the connection be lost; `null` if it wants none kept.
    pub replies: Option<u64>,
    /// Their bytes.
    pub replies_bytes: Option<u64>,
    /// Files that its client has open.
    pub opens: u64,
    /// Owners of its client that have locked parts of a file.
    pub locks: u64,
    /// Delegations that its client holds.
    pub delegations: u64,
}

/// A lock of a byte range.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockReport {
    /// `held`; `breakable` when its holder is gone and may come back; `broken`; `undone` when it was
    /// lost, and the file is to be put back as it was before it.
    pub state: String,
    /// Its file, by export and inode number.
    pub file: String,
    /// First byte.
    pub offset: u64,
    /// Bytes; `null` for all from there on.
    pub length: Option<u64>,
    /// Against everybody else.
    pub exclusive: bool,
    /// It outlives its holder.
    pub persist: bool,
    /// It is held to mend what a broken one has left.
    pub repair: bool,
    /// What is written to the file under it is undone when its holder fails.
    pub auto_recover: bool,
    /// Why the file could not be put back yet; `null` if that was not tried in vain.
    pub trouble: Option<String>,
    /// The key of the client that holds it or held it.
    #[serde(with = "hex_key")]
    pub client: u64,
    /// The name that client gave itself, with bytes that are no text escaped.
    pub name: String,
    /// The owner at that client, likewise.
    pub owner: String,
}

/// Keys of clients as everything else writes them: 16 hexadecimal digits, because programs that read
/// JSON round larger numbers.
mod hex_key {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields by reference")]
    pub(super) fn serialize<S: Serializer>(key: &u64, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&format_args!("{key:016x}"))
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<u64, D::Error> {
        let digits = String::deserialize(from)?;
        u64::from_str_radix(&digits, 16).map_err(D::Error::custom)
    }
}

/// Where a file lies among data servers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LayoutReport {
    /// Bytes of the file.
    pub size_bytes: u64,
    /// `stripes`, `copies`, or nothing for a file at the server itself.
    pub form: String,
    /// Bytes of a stripe.
    pub unit_bytes: u32,
    /// The place in the pattern of the first stripe.
    pub first_place: u32,
    /// For each place of the pattern the number of its server in `servers`.
    pub pattern: Vec<u32>,
    /// The data servers, each with the addresses that lead to it.
    pub servers: Vec<Vec<String>>,
    /// Whether components have no holes.
    pub dense: bool,
    /// The numbers in `servers` of those whose copies lack something.
    pub stale: Vec<u32>,
}

/// The fence of a file system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FenceReport {
    /// The export that leads to it.
    pub export: String,
    /// Whether there is a list. If not, everybody has access.
    pub fenced: bool,
    /// Who has access if there is.
    pub names: Vec<String>,
}

/// Answers administrators.
pub(crate) type AdminHandler = Box<dyn Fn(AdminRequest) -> AdminReply + Send + Sync>;

/// Why a server cannot be asked.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AdminError {
    /// Nobody listens.
    #[error(
        "no server answers at {path}: {error}; see whether it runs, and name the state directory that it \
         was started with by --state-directory",
        path = .path.display()
    )]
    Unreachable {
        /// Where it was looked for.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// It listens and does not speak.
    #[error("the server did not answer: {0}")]
    NoAnswer(io::Error),
}

fn socket_path(state_directory: &Path) -> PathBuf {
    state_directory.join("admin.sock")
}

/// Asks the server of a state directory.
///
/// # Errors
/// When it cannot be reached.
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

/// The thread behind the socket; ended when dropped.
pub(crate) struct AdminSocket {
    path: PathBuf,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl AdminSocket {
    /// Listens in the state directory.
    ///
    /// # Errors
    /// When the socket cannot be made, for one because another server uses this directory.
    pub(crate) fn start(state_directory: &Path, handler: AdminHandler) -> io::Result<Self> {
        let path = socket_path(state_directory);
        let listener = match UnixListener::bind(&path) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                if UnixStream::connect(&path).is_ok() {
                    return Err(error);
                }
                // Left by a server that was killed.
                std::fs::remove_file(&path)?;
                UnixListener::bind(&path)?
            }
            other => other?,
        };
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600))?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let run = move || accept(&listener, &stopped, &handler);
        let thread = vital::spawn("dafs-admin", run)?;
        Ok(Self { path, stop, thread: Some(thread) })
    }
}

impl Drop for AdminSocket {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // The thread sleeps in accept; a connection wakes it.
        let woken = UnixStream::connect(&self.path).is_ok();
        if let Some(thread) = self.thread.take().filter(|_| woken) {
            let _ = thread.join();
        }
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Serves whoever comes, until the server stops.
fn accept(listener: &UnixListener, stopped: &AtomicBool, handler: &AdminHandler) {
    let limits = ConnectionLimits { total: ADMIN_PEERS_MAX, per_address: ADMIN_PEERS_MAX };
    let next = || {
        let (stream, _) = listener.accept()?;
        let user = rustix::net::sockopt::socket_peercred(&stream)?.uid;
        Ok((stream, Origin::User(user.as_raw())))
    };
    let serve = |stream: &UnixStream, admitted: &Admitted| serve(stream, admitted, handler);
    serve_each("dafs-admin", &Connections::new(limits), stopped, next, serve);
}

fn serve(stream: &UnixStream, admitted: &Admitted, handler: &AdminHandler) -> io::Result<()> {
    // The permissions come a moment after the socket, so the kernel is asked, too.
    let peer = rustix::net::sockopt::socket_peercred(stream)?.uid;
    if !peer.is_root() && peer != rustix::process::geteuid() {
        return Ok(());
    }
    stream.set_read_timeout(Some(ADMIN_TIMEOUT))?;
    stream.set_write_timeout(Some(ADMIN_TIMEOUT))?;
    let mut line = String::new();
    BufReader::new(stream.take(ADMIN_REQUEST_BYTES_MAX)).read_line(&mut line)?;
    admitted.establish();
    let reply = match serde_json::from_str(&line) {
        Ok(request) => catch_unwind(AssertUnwindSafe(|| handler(request))).unwrap_or_else(|_| {
            AdminReply::Failed("the server failed at this, and its log says where".to_owned())
        }),
        Err(error) => AdminReply::Failed(format!("this is no request: {error}")),
    };
    let mut answer = serde_json::to_vec(&reply).map_err(io::Error::other)?;
    answer.push(b'\n');
    let mut stream = stream;
    stream.write_all(&answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn echo() -> AdminHandler {
        Box::new(|request| AdminReply::Done(format!("{request:?}")))
    }

    #[test]
    fn keys_of_clients_are_not_rounded() {
        let session = SessionReport {
            session: String::new(),
            client: 0xf4cd_8a18_0b48_f21f,
            name: String::new(),
            fence_id: None,
            peer: String::new(),
            transport: String::new(),
            trusted: true,
            checksums: false,
            age_seconds: 0,
            credits: 1,
            in_flight: 0,
            replies: None,
            replies_bytes: None,
            opens: 0,
            locks: 0,
            delegations: 0,
        };
        let text = serde_json::to_string(&session).unwrap();
        assert!(text.contains(r#""client":"f4cd8a180b48f21f""#), "{text}");
        assert_eq!(serde_json::from_str::<SessionReport>(&text).unwrap(), session);
    }

    #[test]
    fn requests_are_answered_and_the_socket_goes_with_the_server() {
        let dir = tempfile::tempdir().unwrap();
        let socket = AdminSocket::start(dir.path(), echo()).unwrap();
        let mode = std::fs::metadata(socket_path(dir.path())).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let reply = ask(dir.path(), &AdminRequest::Expire { client: 7 }).unwrap();
        assert_eq!(reply, AdminReply::Done("Expire { client: 7 }".to_owned()));
        assert!(AdminSocket::start(dir.path(), echo()).is_err(), "taken from a living server");
        drop(socket);
        assert!(matches!(
            ask(dir.path(), &AdminRequest::Clients),
            Err(AdminError::Unreachable { .. })
        ));
    }

    #[test]
    fn peers_that_ask_nothing_hold_up_nobody_else() {
        let dir = tempfile::tempdir().unwrap();
        let socket = AdminSocket::start(dir.path(), echo()).unwrap();
        let connect = || UnixStream::connect(socket_path(dir.path())).unwrap();
        let mut silent: Vec<_> = (0..3 * ADMIN_PEERS_MAX).map(|_| connect()).collect();
        ask(dir.path(), &AdminRequest::Clients).unwrap();
        // They are taken in the order in which they come, so the first has made room.
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
        let socket = AdminSocket::start(dir.path(), handler).unwrap();
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
        let _socket = AdminSocket::start(dir.path(), echo()).unwrap();
        let mut stream = UnixStream::connect(socket_path(dir.path())).unwrap();
        stream.write_all(b"nonsense\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.contains("this is no request"), "{answer}");
    }
}
