//! The administrators' interface: a UNIX socket in the state directory, for root and the server's
//! user.
//!
//! Each connection has one request, a line of JSON. The answer is a line of JSON, too.
//!
//! Invariants
//! * Only its owner can open the socket, so the file system authenticates the administrator.
//! * A second server with the same state directory does not take the socket from the first.
//! * A peer that sends no request, or does not read the answer, blocks no other. Each peer has a
//!   thread, their number is small, and silent ones make room. A request that panics fails alone.

use crate::limits::{ADMIN_PEERS_MAX, ADMIN_REQUEST_BYTES_MAX, ADMIN_TIMEOUT};
use crate::peers::serve_each;
use dafs_dat::connections::{Admitted, ConnectionLimits, Connections, Origin};
use dafs_service::ExposureCounts;
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

/// A request of an administrator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AdminRequest {
    /// List the clients and their state.
    Clients,
    /// Expire a client: all its state is released.
    Expire {
        /// Its key, from the answer to `Clients`.
        client: u64,
    },
    /// Reload the configuration file.
    Reload,
    /// List the sessions.
    Sessions,
    /// Count the blocks that clients of this host read without requests.
    Exposed,
    /// List locked and broken byte ranges.
    Locks,
    /// Show the layout of a file.
    Layout {
        /// The path of the file, as clients name it.
        path: String,
    },
    /// List the nodes of exports with data servers.
    Nodes,
    /// Drain a node: move all files off it. Or undo that.
    Drain {
        /// The export of the node. By default the only one that has nodes.
        export: Option<String>,
        /// Its number.
        node: u32,
        /// Keep files on the node after all.
        undo: bool,
    },
    /// Replace the lost directory of a node by an empty one, where files have copies.
    Replace {
        /// The export of the node. By default the only one that has nodes.
        export: Option<String>,
        /// Its number.
        node: u32,
    },
    /// List the fences of file systems.
    Fences {
        /// The exports. None means all.
        exports: Vec<String>,
    },
    /// Change the fences of file systems. The answer is `Fences`, when the fenced clients have no
    /// request under way any more.
    Fence {
        /// The exports. None means all.
        exports: Vec<String>,
        /// The change of the names.
        change: FenceOrder,
        /// Fence ids, and names of NFS clients.
        names: Vec<String>,
    },
}

/// The kind of a change of a fence's list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FenceOrder {
    /// Give access only to these.
    Set,
    /// Give access to these, too.
    Add,
    /// Remove access of these.
    Remove,
    /// Lift the fence.
    Clear,
}

/// The server's answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AdminReply {
    /// The clients.
    Clients(Vec<ClientReport>),
    /// The sessions.
    Sessions(Vec<SessionReport>),
    /// The blocks that clients of this host read without requests.
    Exposed(ExposedReport),
    /// The locks. Locks that their holders have left behind come first.
    Locks(Vec<LockReport>),
    /// The layout of a file.
    Layout(LayoutReport),
    /// The nodes.
    Nodes(Vec<NodeReport>),
    /// The fences of file systems.
    Fences(Vec<FenceReport>),
    /// Success.
    Done(String),
    /// Failure, with the reason.
    Failed(String),
}

/// A node, for administrators.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeReport {
    /// The export of the node.
    pub export: String,
    /// Its number.
    pub number: u32,
    /// Its directory, or the address where its data server waits for the metadata server.
    pub place: String,
    /// Its addresses for clients.
    pub addresses: Vec<SocketAddr>,
    /// It can be used now.
    pub connected: bool,
    /// The reason why it cannot.
    pub trouble: String,
    /// The size of its file system.
    pub total_bytes: u64,
    /// The free space of its file system.
    pub available_bytes: u64,
    /// All files are being moved off it.
    pub leaving: bool,
    /// No file is left on it, so it can be removed from the configuration.
    pub empty: bool,
    /// Files that were moved off nodes of the export since the server started.
    pub moved_files: u64,
    /// The bytes of these files.
    pub moved_bytes: u64,
    /// Files whose copies on it are incomplete.
    pub files_to_mend: u64,
    /// Bytes that clients have read at its data server since that started.
    pub read_bytes: u64,
    /// Bytes that clients have written there.
    pub written_bytes: u64,
    /// The part of these bytes that lies on other nodes.
    pub indirect_bytes: u64,
}

/// A client, for administrators.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientReport {
    /// Its key in requests.
    #[serde(with = "hex_key")]
    pub client: u64,
    /// The protocol of its front end.
    pub door: String,
    /// The client's own name, with bytes that are no text escaped.
    pub name: String,
    /// Its transport, where that is known.
    pub transport: String,
    /// The principal that it has authenticated as.
    pub principal: String,
    /// The address of its last request, if it came over a network.
    pub address: String,
    /// Seconds since its last request.
    pub silent_seconds: u64,
    /// Its lease has ended. Its state is revoked as soon as another client's request conflicts.
    pub courtesy: bool,
    /// Its open files.
    pub opens: u64,
    /// Its locked byte ranges.
    pub locks: u64,
    /// Its delegations.
    pub delegations: u64,
    /// Requests since its registration.
    pub operations: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// The files on which it has state, each with a description of the state.
    pub holds: Vec<String>,
}

/// A session of a client of DAFS or NFSv4.1, for administrators.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionReport {
    /// The protocol of its front end: `dafs` or `nfs4`.
    pub door: String,
    /// Its id.
    pub session: String,
    /// The key of its client, as in [`ClientReport`].
    #[serde(with = "hex_key")]
    pub client: u64,
    /// The client's own name, with bytes that are no text escaped.
    pub name: String,
    /// Its id for fences. `null` if it has given none.
    pub fence_id: Option<String>,
    /// The address of the peer.
    pub peer: String,
    /// Its transport. Empty for NFS, whose sessions use any number of connections.
    pub transport: String,
    /// The server trusts the client's choice of users.
    pub trusted: bool,
    /// Messages and data carry checksums.
    pub checksums: bool,
    /// Seconds since it connected.
    pub age_seconds: u64,
    /// Requests that it may have outstanding: credits, or slots.
    pub credits: u16,
    /// Its weight by the rules of `[[importance]]`, 1 to 10,000.
    pub weight: u32,
    /// Credits by its weight while all sessions want more than there are, or the slots that its client
    /// is asked to come down to. `null` if it may have all that it wants.
    pub share: Option<u16>,
    /// Requests that have arrived and are not answered.
    pub in_flight: u16,
    /// Cached replies for the case that the connection is lost. `null` if the session has no reply
    /// cache.
    pub replies: Option<u64>,
    /// Their bytes.
    pub replies_bytes: Option<u64>,
    /// Open files of its client.
    pub opens: u64,
    /// Owners of its client that have locked parts of a file.
    pub locks: u64,
    /// Delegations of its client.
    pub delegations: u64,
}

/// The memory from which clients of this host read files without requests, for administrators. What
/// is not said to be now is counted since the server started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExposedReport {
    /// Files in it now. Small files that share segments are one.
    pub files: u64,
    /// Small files that share segments now.
    pub small_files: u64,
    /// Blocks in it now, of 4096 bytes.
    pub frames_published: u64,
    /// Frames that wait for reuse now.
    pub frames_waiting: u64,
    /// Frames without a block now.
    pub frames_free: u64,
    /// Requests that have read these files. Reads from the memory are no requests.
    pub missed: u64,
    /// Blocks that were put there.
    pub published: u64,
    /// Blocks that were not put there: they changed meanwhile, or were not in the system's cache.
    pub wasted: u64,
    /// Blocks that changes have taken away.
    pub changed: u64,
    /// Blocks that made room for others.
    pub evicted: u64,
    /// Those of them that requests have brought back soon.
    pub restored: u64,
    /// Segments of frames that files have given to others, or for window pages of their own.
    pub given: u64,
}

impl From<ExposureCounts> for ExposedReport {
    fn from(counts: ExposureCounts) -> Self {
        Self {
            files: counts.files,
            small_files: counts.small_files,
            frames_published: counts.frames_published,
            frames_waiting: counts.frames_waiting,
            frames_free: counts.frames_free,
            missed: counts.missed,
            published: counts.published,
            wasted: counts.wasted,
            changed: counts.changed,
            evicted: counts.evicted,
            restored: counts.restored,
            given: counts.given,
        }
    }
}

/// A lock of a byte range.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockReport {
    /// One of these: `held`. `breakable` when its holder is gone and may come back. `broken`.
    /// `undone` when it was lost, and the file is to be restored to its state before the lock.
    pub state: String,
    /// Its file, by export and inode number.
    pub file: String,
    /// First byte.
    pub offset: u64,
    /// Bytes. `null` for all from there on.
    pub length: Option<u64>,
    /// It conflicts with all other locks.
    pub exclusive: bool,
    /// It outlives its holder.
    pub persist: bool,
    /// It is held to repair a file with a broken lock.
    pub repair: bool,
    /// Writes under it are undone when its holder fails.
    pub auto_recover: bool,
    /// The reason why the file could not be restored yet. `null` if no attempt has failed.
    pub trouble: Option<String>,
    /// The key of the client that holds it or held it.
    #[serde(with = "hex_key")]
    pub client: u64,
    /// The client's own name, with bytes that are no text escaped.
    pub name: String,
    /// The owner at that client, likewise.
    pub owner: String,
}

/// Keys of clients in the usual form: 16 hexadecimal digits. Programs that read JSON would round
/// larger numbers.
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

/// The layout of a file on data servers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LayoutReport {
    /// Bytes of the file.
    pub size_bytes: u64,
    /// `stripes`, `copies`, or empty for a file at the server itself.
    pub form: String,
    /// Bytes of a stripe.
    pub unit_bytes: u32,
    /// The index in the pattern of the first stripe.
    pub first_place: u32,
    /// For each place of the pattern the number of its server in `servers`.
    pub pattern: Vec<u32>,
    /// The data servers, each with its addresses.
    pub servers: Vec<Vec<String>>,
    /// The components have no holes.
    pub dense: bool,
    /// The numbers in `servers` of the data servers with incomplete copies.
    pub stale: Vec<u32>,
}

/// The fence of a file system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FenceReport {
    /// The export of the file system.
    pub export: String,
    /// There is a list. Without one every client has access.
    pub fenced: bool,
    /// The clients with access if there is a list.
    pub names: Vec<String>,
}

/// Answers administrators.
pub(crate) type AdminHandler = Box<dyn Fn(AdminRequest) -> AdminReply + Send + Sync>;

/// The reason why a server cannot be asked.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AdminError {
    /// No server listens.
    #[error(
        "no server answers at {path}: {error}; see whether it runs, and name the state directory that it \
         was started with by --state-directory",
        path = .path.display()
    )]
    Unreachable {
        /// The path of the socket.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The server accepts the connection and does not answer.
    #[error("the server did not answer: {0}")]
    NoAnswer(io::Error),
}

fn socket_path(state_directory: &Path) -> PathBuf {
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
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl AdminSocket {
    /// Listens in the state directory.
    ///
    /// # Errors
    /// The socket cannot be made, for instance because another server uses this directory.
    pub(crate) fn start(state_directory: &Path, handler: AdminHandler) -> io::Result<Self> {
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
        let run = move || accept(&listener, &stopped, &handler);
        let thread = vital::spawn("dafs-admin", run)?;
        Ok(Self { path, stop, thread: Some(thread) })
    }
}

impl Drop for AdminSocket {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // The thread sleeps in accept, and a connection wakes it.
        let woken = UnixStream::connect(&self.path).is_ok();
        if let Some(thread) = self.thread.take().filter(|_| woken) {
            let _ = thread.join();
        }
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Serves peers until the server stops.
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
    let reply = match serde_json::from_str(&line) {
        Ok(request) => catch_unwind(AssertUnwindSafe(|| handler(request))).unwrap_or_else(|_| {
            AdminReply::Failed("the server failed to serve the request; see its log".to_owned())
        }),
        Err(error) => AdminReply::Failed(format!("this is not a request: {error}")),
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
        assert!(answer.contains("this is not a request"), "{answer}");
    }
}
