//! A data server: the components of one directory, controlled by a metadata server that connects to
//! it.
//!
//! Invariants
//! * It works for one metadata server at a time: the one that has authenticated by the secret and
//!   asks for this node. First all requests of an earlier one, and all uses of clients that it has
//!   authorised, have ended, and the cache of its authorisations is empty.
//! * An empty directory becomes that of the node only when the metadata server says that the node
//!   was never used.
//! * A join is recorded in the directory before the metadata server is told that it has joined.
//! * A use is checked while it is counted, so that `drop_grants` can wait for it.
//! * A connection outlives the secret by which it was made by `LINK_CHANGE_TIME` at most.

mod answers;
mod directory;
mod judge;

pub use judge::Judge;

use crate::gate::Gate;
use crate::grants::Grants;
use crate::hello::{HelloError, Responder, Wanted};
use crate::limits::{DRAIN_TIME, ELSEWHERE_MAX, HELLO_TIME, HELLOS, LINK_CHANGE_TIME, TURN_TIME};
use crate::link::Link;
use crate::mark::Mark;
use crate::secret::{ClusterSecret, Secret};
use crate::tls::{self, Line, Receiver, Secured, Sender, TlsError};
use answers::DataAnswers;
use dafs_dat::connections::{Admitted, Connections, Origin};
use dafs_mem::Mutex;
use dafs_store::node::{DirectoryError, DirectoryNode, Node};
use dafs_store::{DataKeys, vital};
use dafs_tls::ServerSide;
use dafs_wire::cluster::{HELLO_BYTES_MAX, Joined, Refusal, VERSION};
use rustix::net::Shutdown;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use thiserror::Error;

/// Why a data server cannot start.
#[derive(Debug, Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum DataNodeError {
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    #[error("cannot start a data server: {0}")]
    System(#[from] io::Error),
    #[error("cannot start a data server: {0}")]
    Key(String),
}

/// The configuration of a data server.
pub struct DataNodeConfig {
    /// The directory of its components. Empty at the first start.
    pub directory: PathBuf,
    /// The secret of the cluster.
    pub secret: Arc<ClusterSecret>,
    /// Accepts connections of the metadata server. The end of the data server ends listening, also for
    /// duplicates of this descriptor.
    pub listener: TcpListener,
    /// The addresses for clients, which the metadata server passes on to them.
    pub addresses: Vec<SocketAddr>,
    /// The addresses for NFS over RDMA.
    pub rdma_addresses: Vec<SocketAddr>,
    /// The addresses for DAFS.
    pub dafs_addresses: Vec<SocketAddr>,
    /// Called when the directory is known to belong to a node. It opens the front end for clients,
    /// which asks the judge about each use. Without a front end there is no data server: it is
    /// called again for the next metadata server that connects, because the cause of a failure may
    /// have gone by then.
    pub opened: Announce,
    /// Called when unstable data of clients may be lost.
    pub lost: Box<dyn Fn() + Send + Sync>,
}

/// A directory that belongs to a node.
#[derive(Debug, Clone)]
pub struct Opened {
    /// The directory. It is empty except for its marker where another file system keeps the files.
    pub node: Arc<DirectoryNode>,
    /// The identity of its store.
    pub store: [u8; 16],
    /// The keys of what clients show.
    pub keys: DataKeys,
}

/// A running data server, without its front end for clients. It ends when it is dropped.
pub struct DataNode {
    shared: Arc<Shared>,
    address: SocketAddr,
    listener: TcpListener,
    thread: Option<JoinHandle<()>>,
}

/// Bytes that clients have moved at a data server since its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NodeCounters {
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Those of them that are on other nodes.
    pub indirect_bytes: u64,
}

/// Opens the front end for clients.
pub type Announce = Box<dyn FnMut(Opened, Judge) -> io::Result<Answering> + Send>;

/// Answers the metadata server.
pub struct Answering {
    /// The directory itself, or a replacement.
    pub node: Arc<dyn Node>,
    /// The counters of clients.
    pub counters: Box<dyn Fn() -> NodeCounters + Send + Sync>,
}

/// The served directory, once it is known.
struct Serving {
    opened: Opened,
    answering: Answering,
}

struct Shared {
    directory: PathBuf,
    secret: Arc<ClusterSecret>,
    /// The key for TLS.
    tls: Arc<ServerSide>,
    addresses: Vec<SocketAddr>,
    rdma_addresses: Vec<SocketAddr>,
    dafs_addresses: Vec<SocketAddr>,
    /// Random, and different after each start.
    run: u64,
    lost: Arc<dyn Fn() + Send + Sync>,
    /// Set until the front end is open.
    announce: Mutex<Option<Announce>>,
    serving: OnceLock<Serving>,
    grants: Mutex<Grants>,
    /// Limits the requests that wait for bytes on other nodes.
    elsewhere: Gate,
    /// Held while a metadata server joins, so that one joins at a time.
    joining: Mutex<()>,
    /// The connection of the present metadata server. Never held during a wait.
    link: Mutex<Option<Arc<Link>>>,
    /// The secret by which the last connection was made.
    link_secret: Mutex<Option<Secret>>,
    /// See [`LINK_CHANGE_TIME`].
    link_change_time: Duration,
    /// Peers that have not authenticated yet.
    strangers: Arc<Connections>,
    stop: AtomicBool,
}

impl std::fmt::Debug for DataNode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DataNode")
            .field("directory", &self.shared.directory)
            .finish_non_exhaustive()
    }
}

impl DataNode {
    /// Starts to accept metadata servers. A directory that already belongs to a node is opened at
    /// once.
    ///
    /// # Errors
    /// The directory contains other files, and the errors of the system.
    pub fn start(config: DataNodeConfig) -> Result<Self, DataNodeError> {
        Self::start_with(config, LINK_CHANGE_TIME)
    }

    pub(crate) fn start_with(
        config: DataNodeConfig,
        link_change_time: Duration,
    ) -> Result<Self, DataNodeError> {
        let DataNodeConfig { directory, secret, listener, .. } = config;
        let DataNodeConfig { addresses, rdma_addresses, dafs_addresses, .. } = config;
        let DataNodeConfig { opened, lost, .. } = config;
        let mut run = [0; 8];
        getrandom::fill(&mut run).map_err(io::Error::other)?;
        let shared = Arc::new(Shared {
            directory,
            secret,
            tls: tls::server_side().map_err(|error| DataNodeError::Key(error.to_string()))?,
            addresses,
            rdma_addresses,
            dafs_addresses,
            run: u64::from_le_bytes(run),
            lost: lost.into(),
            announce: Mutex::new(Some(opened)),
            serving: OnceLock::new(),
            grants: Mutex::default(),
            // The cause of a missing turn does not matter to clients.
            elsewhere: Gate::new(ELSEWHERE_MAX, TURN_TIME, Duration::ZERO),
            joining: Mutex::default(),
            link: Mutex::default(),
            link_secret: Mutex::default(),
            link_change_time,
            strangers: Connections::new(HELLOS),
            stop: AtomicBool::new(false),
        });
        match directory::found(&shared.directory)? {
            Some((store, number)) => drop(shared.open(store, number)?),
            None => DirectoryNode::check_empty(&shared.directory)?,
        }
        let address = listener.local_addr()?;
        let (own, accepting) = (shared.clone(), listener.try_clone()?);
        let thread = vital::spawn("dafs-control", move || own.accept(&accepting))?;
        Ok(Self { shared, address, listener, thread: Some(thread) })
    }

    /// The address for the metadata server.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Puts the secrets in force that were read again. They judge the proofs of clients. A connection by
    /// another secret goes on for a while, for the metadata server to replace it. True if they differ from
    /// those before.
    pub fn follow_secret(&self, read: &ClusterSecret) -> bool {
        let changed = self.shared.secret.follow(read);
        if let Some(Serving { opened, .. }) = self.shared.serving.get() {
            self.shared.secret.change_keys(&opened.keys);
        }
        if changed {
            self.shared.limit_link();
        }
        changed
    }

    /// True if a metadata server is connected.
    pub fn is_connected(&self) -> bool {
        self.shared.link.lock().as_ref().is_some_and(|link| !link.is_closed())
    }
}

impl Drop for DataNode {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        drop(self.shared.announce.lock().take());
        if let Some(link) = self.shared.link.lock().take() {
            link.close();
        }
        // The thread sleeps in accept, and the end of listening wakes it. A connection would, too, but
        // a sandbox allows none.
        let woken = rustix::net::shutdown(&self.listener, Shutdown::Both).is_ok();
        if let Some(thread) = self.thread.take().filter(|_| woken) {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        for stream in listener.incoming() {
            if self.stop.load(Ordering::SeqCst) {
                return;
            }
            let (stream, peer, origin) = match stream.and_then(known) {
                Ok(Some(known)) => known,
                Ok(None) => continue,
                Err(error) => {
                    // For instance because there are no descriptors.
                    let made_room = self.strangers.make_room();
                    tracing::warn!(
                        %error, made_room,
                        "cannot let in a metadata server; trying again soon"
                    );
                    std::thread::sleep(crate::limits::RECONNECT_MIN);
                    continue;
                }
            };
            let stream = Arc::new(stream);
            // Its thread wakes up and ends when another connection takes its place.
            let admitted = self.strangers.admit(origin, Arc::downgrade(&stream) as _);
            let stranger = match admitted {
                Ok(stranger) => stranger,
                Err(refusal) => {
                    tracing::warn!(%peer, "a metadata server cannot be let in: {refusal}");
                    continue;
                }
            };
            let own = self.clone();
            let greet = move || {
                if let Err(error) = own.greet(stream, stranger) {
                    tracing::warn!(%peer, "no metadata server: {error}");
                }
            };
            let builder = std::thread::Builder::new().name("dafs-hello".to_owned());
            if let Err(error) = builder.spawn(greet) {
                tracing::warn!(%peer, %error, "a metadata server cannot be let in");
            }
        }
    }

    /// Authenticates a peer that has connected.
    fn greet(
        self: &Arc<Self>,
        stream: Arc<TcpStream>,
        stranger: Arc<Admitted>,
    ) -> Result<(), GreetError> {
        let end = Instant::now() + HELLO_TIME;
        let line = &mut Line { stream: &stream, end };
        let Secured { mut sender, mut receiver, binding } = tls::accept(&self.tls, line)?;
        let hello = receiver.receive(HELLO_BYTES_MAX, line)?;
        let mut nonce = [0; 32];
        getrandom::fill(&mut nonce).map_err(io::Error::other)?;
        let responder = Responder::new((&self.secret, binding), hello.body(), nonce)?;
        sender.greet(&responder.challenge(), line)?;
        let join = receiver.receive(HELLO_BYTES_MAX, line)?;
        let wanted = responder.wanted(join.body())?;
        // From here on it has authenticated, and is not closed to make room.
        drop(stranger);
        // A thread that shuts it down to make room holds it, too.
        let gone = || io::Error::from(io::ErrorKind::ConnectionAborted);
        let stream = Arc::into_inner(stream).ok_or_else(gone)?;
        self.join(stream, &wanted, (sender, receiver), (end, responder.secret()))
    }

    /// Begins to work for a metadata server that has authenticated.
    fn join(
        self: &Arc<Self>,
        stream: TcpStream,
        wanted: &Wanted,
        (mut sender, receiver): (Sender, Receiver),
        (end, secret): (Instant, Secret),
    ) -> Result<(), GreetError> {
        let _joining = self.joining.lock();
        // Past the end, the metadata server does not wait for the answer any more: it may have
        // connected again since.
        let in_time = || match Instant::now() < end {
            true => Ok(()),
            false => Err(io::Error::from(io::ErrorKind::TimedOut)),
        };
        in_time()?;
        let refused = |sender: &mut Sender, refusal: Refusal| {
            sender.greet(&Joined::Refused(refusal), &mut &stream)?;
            Err(GreetError::Hello(refusal.into()))
        };
        if wanted.version != VERSION {
            return refused(&mut sender, Refusal::Version);
        }
        // A metadata server that wants another node does not disturb the one of this node.
        let answering = match self.answering_for(wanted) {
            Ok(answering) => answering,
            Err(refusal) => return refused(&mut sender, refusal),
        };
        let mark = match directory::marked(&self.directory, wanted.membership) {
            Ok(mark) => mark,
            Err(refusal) => return refused(&mut sender, refusal),
        };
        // On a busy disk this may take long.
        let Mark { incarnation, joins } = match directory::join(&self.directory, mark) {
            Ok(mark) => mark,
            Err(refusal) => return refused(&mut sender, refusal),
        };
        in_time()?;
        let last = self.link.lock().clone();
        if last.is_some_and(|last| !last.drain(DRAIN_TIME)) {
            return refused(&mut sender, Refusal::Busy);
        }
        *self.link.lock() = None;
        self.grants.lock().forget_all();
        // Uses that the earlier metadata server has authorised end before any work for the next
        // one.
        if answering.await_uses(DRAIN_TIME).is_err() {
            return refused(&mut sender, Refusal::Busy);
        }
        let told = [&self.addresses, &self.rdma_addresses, &self.dafs_addresses];
        let told = told.map(|all| all.iter().map(SocketAddr::to_string).collect::<Vec<_>>());
        let [addresses, rdma_addresses, dafs_addresses] =
            told.each_ref().map(|all| all.iter().map(|address| address.as_bytes()).collect());
        let run = self.run;
        let welcome =
            Joined::Welcome { incarnation, joins, run, addresses, rdma_addresses, dafs_addresses };
        sender.greet(&welcome, &mut &stream)?;
        let node = answering.clone();
        let answers = Arc::new(DataAnswers { node, shared: Arc::downgrade(self) });
        // The metadata server replaces a connection whose keys are spent.
        let ends = (sender, receiver);
        let link = Link::start("dafs-control", stream, ends, answers, u64::MAX)?;
        self.begin_with(link, secret);
        // The drop may have checked the link before it was set.
        if self.stop.load(Ordering::SeqCst) {
            *self.link.lock() = None;
        }
        tracing::info!(number = wanted.number, "a metadata server is there");
        Ok(())
    }

    fn begin_with(self: &Arc<Self>, link: Link, secret: Secret) {
        *self.link_secret.lock() = Some(secret);
        *self.link.lock() = Some(Arc::new(link));
        // The secrets may have changed meanwhile.
        self.limit_link();
    }

    /// Ends the connection after some time if it was made by a secret that is not accepted any more, and was
    /// not replaced: a third one that knows the secret may be between the two, and put that off.
    fn limit_link(self: &Arc<Self>) {
        let Some(link) = self.spent_link() else { return };
        let (shared, watched) = (Arc::downgrade(self), Arc::downgrade(&link));
        let time = self.link_change_time;
        let watch = move || {
            std::thread::sleep(time);
            let Some((shared, link)) = shared.upgrade().zip(watched.upgrade()) else { return };
            if shared.spent_link().is_some_and(|spent| Arc::ptr_eq(&spent, &link)) {
                tracing::warn!(
                    "the metadata server has not replaced the connection by the old secret of the cluster, so \
                     it is ended: see whether that server has read the new one, by dafs reload"
                );
                link.close();
            }
        };
        let thread = std::thread::Builder::new().name("dafs-secret".to_owned());
        if thread.spawn(watch).is_err() {
            link.close();
        }
    }

    /// Returns the connection if the secret by which it was made is not accepted any more.
    fn spent_link(&self) -> Option<Arc<Link>> {
        let link = self.link.lock().clone()?;
        let secret = (*self.link_secret.lock())?;
        let is_spent = !link.is_closed() && !self.secret.now().accepts(secret);
        is_spent.then_some(link)
    }

    fn counters(&self) -> NodeCounters {
        self.serving.get().map(|serving| (serving.answering.counters)()).unwrap_or_default()
    }

    /// Returns the node that answers for the directory, if it is the wanted one or becomes it.
    fn answering_for(self: &Arc<Self>, wanted: &Wanted) -> Result<&Arc<dyn Node>, Refusal> {
        if let Some(Serving { opened, answering }) = self.serving.get() {
            let same = opened.store == wanted.store && opened.node.number() == wanted.number;
            return if same { Ok(&answering.node) } else { Err(Refusal::OtherNode) };
        }
        directory::adopt(&self.directory, wanted)?;
        self.open(wanted.store, wanted.number).map_err(|error| {
            tracing::error!("the directory cannot be served: {error}");
            Refusal::Failed
        })
    }

    fn open(
        self: &Arc<Self>,
        store: [u8; 16],
        number: u32,
    ) -> Result<&Arc<dyn Node>, DataNodeError> {
        let addresses = self.addresses.clone();
        let node = DirectoryNode::open(&self.directory, &store, number, addresses)?;
        let lost = self.lost.clone();
        let node = Arc::new(node.telling(Box::new(move || lost())));
        let opened = Opened { node, store, keys: self.secret.data_keys(&store) };
        let judge = Judge { shared: self.clone() };
        let mut announce =
            self.announce.lock().take().ok_or_else(|| io::Error::other("it ends"))?;
        match announce(opened.clone(), judge) {
            Ok(answering) => {
                let serving = self.serving.get_or_init(|| Serving { opened, answering });
                // The secrets may have changed meanwhile.
                self.secret.change_keys(&serving.opened.keys);
                Ok(&serving.answering.node)
            }
            Err(error) => {
                *self.announce.lock() =
                    Some(announce).filter(|_| !self.stop.load(Ordering::SeqCst));
                Err(error.into())
            }
        }
    }
}

/// Returns a connection with its origin. `None` if it has ended already.
///
/// # Errors
/// The origin cannot be found, for lack of descriptors or memory.
fn known(stream: TcpStream) -> io::Result<Option<(TcpStream, SocketAddr, Origin)>> {
    let Ok(peer) = stream.peer_addr() else { return Ok(None) };
    let origin = Origin::of_peer(&dafs_dat::tcp_peer(&stream, peer)?);
    Ok(Some((stream, peer, origin)))
}

#[derive(Debug, Error)]
enum GreetError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Tls(#[from] TlsError),
    #[error("{0}")]
    Hello(#[from] HelloError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_end_needs_no_connection_to_itself() {
        let dir = tempfile::tempdir().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let config = DataNodeConfig {
            directory: dir.path().to_owned(),
            secret: Arc::new(ClusterSecret::from_bytes([1; 32])),
            listener,
            addresses: Vec::new(),
            rdma_addresses: Vec::new(),
            dafs_addresses: Vec::new(),
            opened: Box::new(|_, _| Err(io::ErrorKind::Unsupported.into())),
            lost: Box::new(|| {}),
        };
        let mut node = DataNode::start(config).unwrap();
        let shared = Arc::downgrade(&node.shared);
        // As with a sandbox, the process cannot connect to it: port 0 is nobody's.
        node.address.set_port(0);
        drop(node);
        assert!(shared.upgrade().is_none(), "its thread has not ended");
        assert!(TcpStream::connect(address).is_err(), "it listens still");
    }
}
