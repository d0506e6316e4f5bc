//! The metadata server's view of a data server on another machine.
//!
//! Invariants
//! * Without a connection every call but `drop_grants` returns `Busy` at once, and the caller retries.
//! * `drop_grants` succeeds when the data server says so, or when all its cached authorisations have
//!   expired since its last question. Questions to an earlier run of this server count as asked
//!   when this run began.

use crate::data::NodeCounters;
use crate::gate::Gate;
use crate::hello::{HelloError, Initiator, Keys, Member};
use crate::limits::{
    CALL_TIME, GRANT_TTL_MAX, HELLO_TIME, NODE_CALLS_MAX, RECONNECT_MAX, RECONNECT_MIN, STUCK_TIME,
    TURN_TIME,
};
use crate::link::{Answers, Link, Pace, read_record_until};
use crate::memory;
use crate::refusal::{of_service, of_store, taken};
use crate::secret::ClusterSecret;
use crate::time;
use dafs_mem::{Condvar, Mutex, Site, VolatileSlice};
use dafs_service::{Flavour, ForeignStates, ForeignUse, Identity, ServiceError, StateId, StateRef};
use dafs_store::node::{ComponentId, Node, NodeSpace, Written};
use dafs_store::vital;
use dafs_store::{Result, Stability, StoreError};
use dafs_wire::cluster::{Answer, Call, DATA_BYTES_MAX, HELLO_BYTES_MAX, Membership, StateUse};
use std::io::{self, ErrorKind, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::{Arc, MutexGuard, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use thiserror::Error;

/// The metadata server's interface for data servers of other processes: it judges state-ids without
/// waiting, and reaches data that they lack. The provided methods serve a file system whose data
/// servers reach every byte, and see sizes, by themselves. Calls end in bounded time.
pub trait Metadata: ForeignStates {
    /// Returns the size of the file of a component. Servers name components by their ids, and not by
    /// the handles of clients as in [`ForeignStates::size`].
    ///
    /// # Errors
    /// [`StoreError::Busy`] while it is not known.
    fn size_of(&self, _component: &ComponentId) -> Result<u64> {
        Err(StoreError::NotSupported)
    }

    /// Reads from the file of a component, up to the end of the bytes on the node with the first
    /// byte.
    ///
    /// # Errors
    /// The node's.
    fn read(
        &self,
        _component: &ComponentId,
        _views: &[VolatileSlice<'_>],
        _offset: u64,
    ) -> Result<usize> {
        Err(StoreError::NotSupported)
    }

    /// Writes to that file, without a change of its size. The data is stable on return.
    ///
    /// # Errors
    /// The node's.
    fn write(
        &self,
        _component: &ComponentId,
        _views: &[VolatileSlice<'_>],
        _offset: u64,
    ) -> Result<usize> {
        Err(StoreError::NotSupported)
    }
}

/// The configuration of a remote node.
#[derive(Debug)]
pub struct RemoteConfig {
    /// The number of the node.
    pub number: u32,
    /// The address at which its data server accepts the metadata server: HOST:PORT.
    pub control: String,
    /// The secret of the cluster.
    pub secret: Arc<ClusterSecret>,
    /// The identity of the store.
    pub store: [u8; 16],
    /// The file with the record of the node's directory. It is made at the first use.
    pub memory: PathBuf,
    /// True if the directory contains files, so that an older state of it must not be served. Where
    /// another file system keeps the files, the directory only identifies the node.
    pub holds_files: bool,
}

/// The state of a data server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeStatus {
    /// True if it is connected.
    pub connected: bool,
    /// The reason if it is not, in words.
    pub trouble: String,
}

/// A node behind a control connection.
pub struct RemoteNode {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    config: RemoteConfig,
    metadata: OnceLock<Arc<dyn Metadata>>,
    state: Mutex<State>,
    stopped: Condvar,
    /// Limits the calls that wait for its data.
    data: Gate,
}

struct State {
    link: Option<Arc<Link>>,
    /// The data server's description of itself, from the last connection.
    member: Option<Member>,
    trouble: String,
    /// The last known space.
    space: Option<NodeSpace>,
    /// The last known counters of its clients.
    counters: NodeCounters,
    /// The latest time at which the data server may have asked about a state-id.
    asked: Duration,
    /// When all authorisations from an earlier run of this server expire, if it does not connect
    /// before. A connection sets it to zero.
    old_grants_end: Duration,
    stop: bool,
}

impl std::fmt::Debug for RemoteNode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RemoteNode").field("config", &self.shared.config).finish_non_exhaustive()
    }
}

/// Why there is no connection.
#[derive(Debug, Error)]
enum ConnectError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Hello(#[from] HelloError),
    #[error("cannot remember which directory the node has: {0}")]
    Memory(io::Error),
}

impl RemoteNode {
    /// Connects to a data server, and connects again after each loss of the connection, until this
    /// is dropped.
    ///
    /// # Errors
    /// No thread can be started for it.
    pub fn start(config: RemoteConfig) -> io::Result<Self> {
        let state = State {
            link: None,
            member: None,
            trouble: "not connected yet".to_owned(),
            space: None,
            counters: NodeCounters::default(),
            asked: time::now(),
            old_grants_end: time::now() + GRANT_TTL_MAX,
            stop: false,
        };
        let shared = Arc::new(Shared {
            config,
            metadata: OnceLock::new(),
            state: Mutex::new(state),
            stopped: Condvar::new(),
            data: Gate::new(NODE_CALLS_MAX, TURN_TIME, STUCK_TIME),
        });
        let own = shared.clone();
        let name = format!("dafs-node-{}", own.config.number);
        let thread = vital::spawn(name, move || own.run())?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Sets the metadata server that answers the data server. Before this its clients are told to
    /// wait.
    pub fn answer_by(&self, metadata: Arc<dyn Metadata>) {
        let _ = self.shared.metadata.set(metadata);
    }

    /// Returns its state.
    pub fn status(&self) -> NodeStatus {
        let state = self.shared.lock();
        let connected = state.link.as_ref().is_some_and(|link| !link.is_closed());
        NodeStatus { connected, trouble: state.trouble.clone() }
    }

    /// Declares the node's directory lost: from now on another one can replace it, an empty one or
    /// one that was made for the node. No file may rely on its old content.
    ///
    /// # Errors
    /// Those of the file with the record of the directory.
    pub fn give_up_directory(&self) -> io::Result<()> {
        memory::give_up(&self.shared.config.memory)
    }

    /// Returns the counters of its clients. For a data server that is away, these are the last
    /// known ones.
    pub fn counters(&self) -> NodeCounters {
        let told = self.call(Call::Counters, |answer| match answer {
            Answer::Counters { read, written, indirect } => Some(NodeCounters {
                read_bytes: read,
                written_bytes: written,
                indirect_bytes: indirect,
            }),
            _ => None,
        });
        let mut state = self.shared.lock();
        if let Ok(told) = told {
            state.counters = told;
        }
        state.counters
    }

    /// The address for the metadata server.
    pub fn control(&self) -> &str {
        &self.shared.config.control
    }

    fn member<T>(&self, part: impl FnOnce(&Member) -> T) -> Option<T> {
        self.shared.lock().member.as_ref().map(part)
    }

    fn call<T>(&self, call: Call<'_>, take: impl FnOnce(Answer<'_>) -> Option<T>) -> Result<T> {
        let link = self.shared.lock().link.clone().ok_or(StoreError::Busy)?;
        link.call(call, CALL_TIME, |answer| taken(answer, take)).map_err(|_| StoreError::Busy)?
    }
}

impl Drop for RemoteNode {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.stop = true;
        // Drops the connection.
        let link = state.link.take();
        drop(state);
        if let Some(link) = link {
            link.close();
        }
        self.shared.stopped.notify_all();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

fn done(answer: Answer<'_>) -> Option<()> {
    matches!(answer, Answer::Done).then_some(())
}

impl Node for RemoteNode {
    fn number(&self) -> u32 {
        self.shared.config.number
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        self.member(|member| member.addresses.clone()).unwrap_or_default()
    }

    fn serves_clients(&self) -> bool {
        self.member(|member| !member.addresses.is_empty()).unwrap_or(true)
    }

    fn rdma_addresses(&self) -> Vec<SocketAddr> {
        self.member(|member| member.rdma_addresses.clone()).unwrap_or_default()
    }

    fn dafs_addresses(&self) -> Vec<SocketAddr> {
        self.member(|member| member.dafs_addresses.clone()).unwrap_or_default()
    }

    fn run(&self) -> u64 {
        self.member(|member| member.run).unwrap_or_default()
    }

    fn is_reachable(&self) -> bool {
        self.status().connected
    }

    fn grant_ttl(&self) -> Duration {
        GRANT_TTL_MAX
    }

    fn read(
        &self,
        component: &ComponentId,
        views: &[VolatileSlice<'_>],
        offset: u64,
    ) -> Result<usize> {
        let mut done = 0;
        let wanted: usize = views.iter().map(VolatileSlice::len).sum();
        while done < wanted {
            let offset = offset.checked_add(done as u64).ok_or(StoreError::FileTooBig)?;
            let len = (wanted - done).min(DATA_BYTES_MAX);
            let call = Call::Read { component: component.0, offset, len: len as u32 };
            let _turn = self.shared.data.enter()?;
            // A short count means that the component ends there, so an error is never reported as a
            // short count.
            let count = self.call(call, |answer| match answer {
                Answer::Data(data) if data.len() <= len => {
                    scatter(data, views, done);
                    Some(data.len())
                }
                _ => None,
            })?;
            done += count;
            if count < len {
                break;
            }
        }
        Ok(done)
    }

    fn write(
        &self,
        component: &ComponentId,
        views: &[VolatileSlice<'_>],
        offset: u64,
        stability: Stability,
    ) -> Result<Written> {
        let wanted: usize = views.iter().map(VolatileSlice::len).sum();
        let stable = stability != Stability::Unstable;
        let mut all = Written { count: 0, verifier: 0 };
        loop {
            let offset = offset.checked_add(all.count as u64).ok_or(StoreError::FileTooBig)?;
            let data = gather(views, all.count, (wanted - all.count).min(DATA_BYTES_MAX));
            let call = Call::Write { component: component.0, offset, stable, data: &data };
            let turn = self.shared.data.enter();
            let written = turn.and_then(|_turn| {
                self.call(call, |answer| match answer {
                    Answer::Written { count, verifier } if count as usize <= data.len() => {
                        Some(Written { count: count as usize, verifier })
                    }
                    _ => None,
                })
            });
            match written {
                // The first part may be lost by now: its own verifier shows that.
                Ok(written) if all.count > 0 && written.verifier != all.verifier => return Ok(all),
                Ok(written) => {
                    all = Written { count: all.count + written.count, ..written };
                    if written.count < data.len() || all.count == wanted {
                        return Ok(all);
                    }
                }
                Err(_) if all.count > 0 => return Ok(all),
                Err(error) => return Err(error),
            }
        }
    }

    fn commit(&self, component: &ComponentId) -> Result<u64> {
        let _turn = self.shared.data.enter()?;
        self.call(Call::Commit { component: component.0 }, |answer| match answer {
            Answer::Verifier(verifier) => Some(verifier),
            _ => None,
        })
    }

    fn truncate(&self, component: &ComponentId, size: u64) -> Result<()> {
        self.call(Call::Cut { component: component.0, size }, done)
    }

    fn size(&self, component: &ComponentId) -> Result<u64> {
        self.call(Call::Size { component: component.0 }, |answer| match answer {
            Answer::Size(size) => Some(size),
            _ => None,
        })
    }

    fn remove(&self, component: &ComponentId) -> Result<()> {
        self.call(Call::Remove { component: component.0 }, done)
    }

    /// For a node that is away, this is the last known space.
    fn space(&self) -> Result<NodeSpace> {
        let space = self.call(Call::Space, |answer| match answer {
            Answer::Space { total, free, available } => Some(NodeSpace { total, free, available }),
            _ => None,
        });
        let mut state = self.shared.lock();
        match space {
            Ok(space) => state.space = Some(space),
            Err(StoreError::Busy) => return state.space.ok_or(StoreError::Busy),
            Err(_) => {}
        }
        space
    }

    fn drop_grants(&self, component: &ComponentId) -> Result<()> {
        let link = self.shared.lock().link.clone();
        if let Some(link) = link {
            let call = Call::RevokeAuthorisation { component: component.0 };
            if let Ok(answer) = link.call(call, CALL_TIME, |answer| taken(answer, done)) {
                return answer;
            }
        }
        // Long enough after the last question that it may have asked.
        let over = self.shared.lock().asked + GRANT_TTL_MAX;
        if time::now() < over { Err(StoreError::Busy) } else { Ok(()) }
    }

    fn rejoin(&self) {
        let link = self.shared.lock().link.clone();
        if let Some(link) = link {
            link.close();
        }
    }

    fn take_astray(&self) -> Result<Vec<ComponentId>> {
        self.call(Call::MissingComponents, |answer| match answer {
            Answer::Data(data) => {
                let (components, rest) = data.as_chunks();
                rest.is_empty().then(|| components.iter().copied().map(ComponentId).collect())
            }
            _ => None,
        })
    }

    fn old_grants_expired(&self) -> Result<()> {
        let end = self.shared.lock().old_grants_end;
        if time::now() < end { Err(StoreError::Busy) } else { Ok(()) }
    }
}

/// Returns `len` bytes of the views from `skip` on.
pub(crate) fn gather(views: &[VolatileSlice<'_>], mut skip: usize, len: usize) -> Vec<u8> {
    let mut data = vec![0; len];
    let mut done = 0;
    for view in views {
        let cut = skip.min(view.len());
        skip -= cut;
        let part = view.slice(cut, (view.len() - cut).min(len - done));
        done += part.map_or(0, |part| part.copy_to(&mut data[done..], Site::Cluster));
    }
    data.truncate(done);
    data
}

/// Copies bytes into the views from `skip` on.
pub(crate) fn scatter(mut data: &[u8], views: &[VolatileSlice<'_>], mut skip: usize) {
    for view in views {
        let cut = skip.min(view.len());
        skip -= cut;
        let part = view.slice(cut, (view.len() - cut).min(data.len()));
        let copied = part.map_or(0, |part| part.copy_from(data, Site::Cluster));
        data = &data[copied..];
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn run(self: Arc<Self>) {
        let number = self.config.number;
        let mut pause = RECONNECT_MIN;
        while !self.lock().stop {
            match self.connect() {
                Ok(link) => {
                    tracing::info!(number, control = self.config.control, "a node is there");
                    pause = RECONNECT_MIN;
                    link.wait_closed();
                    let mut state = self.lock();
                    state.link = None;
                    "the connection was lost".clone_into(&mut state.trouble);
                    let stop = state.stop;
                    drop(state);
                    if !stop {
                        tracing::warn!(number, control = self.config.control, "a node was lost");
                    }
                }
                Err(error) => {
                    let text = error.to_string();
                    let mut state = self.lock();
                    if state.trouble != text {
                        let control = &self.config.control;
                        tracing::warn!(number, control, "a node cannot be used: {text}");
                        state.trouble = text;
                    }
                }
            }
            let waited = self.stopped.wait_timeout_while(self.lock(), pause, |state| !state.stop);
            drop(waited);
            pause = (pause * 2).min(RECONNECT_MAX);
        }
    }

    fn connect(self: &Arc<Self>) -> std::result::Result<Arc<Link>, ConnectError> {
        let config = &self.config;
        let mut last = io::Error::new(ErrorKind::NotFound, "the name has no address");
        let mut connected = None;
        for address in config.control.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, HELLO_TIME) {
                Ok(stream) => {
                    connected = Some(stream);
                    break;
                }
                Err(error) => last = error,
            }
        }
        let stream = connected.ok_or(last)?;
        let end = Instant::now() + HELLO_TIME;
        stream.set_write_timeout(Some(HELLO_TIME))?;
        let mut nonce = [0; 32];
        getrandom::fill(&mut nonce).map_err(io::Error::other)?;
        let initiator = Initiator::new(&config.secret, config.store, config.number, nonce);
        send(&stream, &initiator.hello())?;
        let challenge = read_record_until(&stream, HELLO_BYTES_MAX, end)?;
        let membership = memory::recall(&config.memory).map_err(ConnectError::Memory)?;
        let membership = match membership {
            Membership::Known { incarnation, .. } if !config.holds_files => {
                Membership::Known { incarnation, joins: 0 }
            }
            membership => membership,
        };
        let (join, Keys { sealer, mut opener }) = initiator.join(&challenge, membership)?;
        send(&stream, &join)?;
        let record = read_record_until(&stream, HELLO_BYTES_MAX, end)?;
        let joined = opener.open(&record).map_err(io::Error::other)?;
        let member = Initiator::joined(joined, membership)?;
        let answers = Arc::new(MetadataAnswers { node: self.clone() });
        let name = format!("dafs-node-{}", config.number);
        let link = Arc::new(Link::start(&name, stream, (sealer, opener), answers)?);
        // Before any other work on this connection, because the record detects an older state of
        // the directory. The disk may take longer than a data server waits for a message.
        if let Err(error) = memory::remember(&config.memory, member.mark) {
            link.close();
            return Err(ConnectError::Memory(error));
        }
        let mut state = self.lock();
        if state.stop {
            link.close();
        }
        state.link = Some(link.clone());
        state.member = Some(member);
        // With the new connection its cache is empty.
        state.old_grants_end = Duration::ZERO;
        state.trouble.clear();
        Ok(link)
    }
}

/// Sends a message of the handshake.
pub(crate) fn send(mut stream: &TcpStream, message: &[u8]) -> io::Result<()> {
    let len = u32::try_from(message.len()).map_err(io::Error::other)?;
    stream.write_all(&[&len.to_be_bytes(), message].concat())
}

/// The metadata server's answers to a data server.
struct MetadataAnswers {
    node: Arc<Shared>,
}

impl MetadataAnswers {
    fn check(
        &self,
        metadata: &dyn Metadata,
        wanted: &StateUse<'_>,
    ) -> dafs_service::Result<Option<Duration>> {
        // Before the check: a later `drop_grants` must know of this question.
        let mut state = self.node.lock();
        state.asked = state.asked.max(time::now());
        drop(state);
        let known = ["none", "sys", "text", "gss"];
        let mechanism = known.into_iter().find(|known| known.as_bytes() == wanted.mechanism);
        let mechanism = mechanism.ok_or(ServiceError::BadStateId)?;
        let identity = Identity { mechanism, principal: wanted.principal.to_vec() };
        let flavour = match wanted.flavour {
            b"" => None,
            name => {
                let known = |flavour: &Flavour| flavour.name().as_bytes() == name;
                let flavour = Flavour::ALL.into_iter().find(known);
                Some(flavour.ok_or(StoreError::Access)?)
            }
        };
        let security = std::str::from_utf8(wanted.security).ok();
        let security = security.and_then(|name| name.parse().ok()).ok_or(StoreError::Access)?;
        metadata.check(&ForeignUse {
            owner: wanted.owner,
            identity: &identity,
            component: wanted.handle,
            state: StateRef { id: StateId(wanted.state), seqid: wanted.seqid },
            write: wanted.write,
            flavour,
            security,
            now_ns: dafs_dat::Instant::now().0,
        })
    }
}

impl Answers for MetadataAnswers {
    fn pace(&self, call: &Call<'_>) -> Pace {
        match call {
            Call::CheckState(_) => Pace::Quick,
            Call::ReadFile { .. } | Call::WriteFile { .. } => Pace::Others,
            _ => Pace::Device,
        }
    }

    fn answer<'s>(&self, call: &Call<'_>, space: &'s mut Vec<u8>) -> Answer<'s> {
        let Some(metadata) = self.node.metadata.get() else {
            return Answer::Refused(of_service(ServiceError::Delay));
        };
        let refused = |error| Answer::Refused(of_store(error));
        match call {
            Call::CheckState(wanted) => match self.check(&**metadata, wanted) {
                Ok(None) => Answer::Done,
                Ok(Some(age)) => {
                    Answer::DoneWithin { age_ns: age.as_nanos().try_into().unwrap_or(u64::MAX) }
                }
                Err(error) => Answer::Refused(of_service(error)),
            },
            Call::FileSize { component } => {
                metadata.size_of(&ComponentId(*component)).map_or_else(refused, Answer::Size)
            }
            Call::ReadFile { component, offset, len } => {
                space.resize(*len as usize, 0);
                let view = VolatileSlice::from_mut(space);
                match metadata.read(&ComponentId(*component), &[view], *offset) {
                    Ok(count) => Answer::Data(&space[..count]),
                    Err(error) => refused(error),
                }
            }
            Call::WriteFile { component, offset, data } => {
                space.extend_from_slice(data);
                let view = VolatileSlice::from_mut(space);
                let written = metadata.write(&ComponentId(*component), &[view], *offset);
                written.map_or_else(refused, |count| Answer::Written {
                    count: count as u32,
                    verifier: 0,
                })
            }
            _ => refused(StoreError::NotSupported),
        }
    }
}
