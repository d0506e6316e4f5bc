//! The metadata server's view of a data server on another machine.
//!
//! Invariants
//! * Without a connection every call but `drop_grants` returns `Busy` at once, and the caller
//!   retries. While a connection gets new keys, calls wait for it, up to `HELLO_TIME`.
//! * `drop_grants` succeeds when the data server says so, or when all its cached authorisations
//!   have expired since its last question. Questions to an earlier run of this server count as
//!   asked when this run began.

mod answers;
mod connection;

use crate::data::NodeCounters;
use crate::gate::Gate;
use crate::hello::Member;
use crate::limits::{
    ADVICE_CALLS_MAX, ADVICE_TURN_TIME, CALL_TIME, GRANT_TTL_MAX, NODE_CALLS_MAX, SPACE_TIME,
    STUCK_TIME, TURN_TIME,
};
use crate::link::Link;
use crate::memory;
use crate::refusal::{known, taken};
use crate::secret::{ClusterSecret, Secrets};
use crate::time;
use dafs_mem::{Condvar, Mutex, Site, VolatileSlice};
use dafs_service::ForeignStates;
use dafs_store::node::{ComponentId, DIGEST_BYTES_MAX, Digest, Node, NodeSpace, Written};
use dafs_store::vital;
use dafs_store::{Advised, CacheAdvice, Result, Stability, StoreError};
use dafs_wire::cluster::{Answer, Call, DATA_BYTES_MAX, RangeAdvice};
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, MutexGuard, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The metadata server's interface for data servers of other processes: it judges state-ids without
/// waiting, and reaches data that they lack. The provided methods serve a file system whose data
/// servers reach every byte, and see sizes, by themselves. Calls end in bounded time.
pub trait Metadata: ForeignStates {
    /// Returns the size of the file of a component. Servers name components by their ids, and not
    /// by the handles of clients as in [`ForeignStates::size`].
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
    /// Notifies the end, the end of calls and of questions for space, and a renewed connection.
    changed: Condvar,
    /// Records of one direction after which a connection is replaced.
    records_max: u64,
    /// Limits the calls that wait for its data.
    data: Gate,
    /// Limits the calls that give advice, so that slow ones hold up no data.
    advice: Gate,
}

struct State {
    link: Option<Arc<Link>>,
    /// The secrets that were accepted when it was made.
    secrets: Option<Secrets>,
    /// The end of the time in which calls wait for a connection with new keys.
    held_until: Option<Instant>,
    /// Calls under way.
    calls: usize,
    /// The data server's description of itself, from the last connection.
    member: Option<Member>,
    trouble: String,
    /// The last known space.
    space: Option<NodeSpace>,
    /// True while a call asks for it.
    asks_space: bool,
    /// The last known counters of its clients.
    counters: NodeCounters,
    /// The latest time at which the data server may have asked about a state-id.
    asked: Duration,
    /// When all authorisations from an earlier run of this server expire, if it does not connect
    /// before. A connection sets it to zero.
    old_grants_end: Duration,
    stop: bool,
}

impl State {
    /// How long calls wait for a connection with new keys.
    fn hold(&self) -> Option<Duration> {
        let left = self.held_until?.checked_duration_since(Instant::now())?;
        Some(left).filter(|left| !left.is_zero() && !self.stop)
    }
}

impl std::fmt::Debug for RemoteNode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RemoteNode").field("config", &self.shared.config).finish_non_exhaustive()
    }
}

impl RemoteNode {
    /// Connects to a data server, and connects again after each loss of the connection, until this
    /// is dropped.
    ///
    /// # Errors
    /// No thread can be started for it.
    pub fn start(config: RemoteConfig) -> io::Result<Self> {
        Self::start_with(config, dafs_tls::RECORDS_BEFORE_END)
    }

    fn start_with(config: RemoteConfig, records_max: u64) -> io::Result<Self> {
        let state = State {
            link: None,
            secrets: None,
            held_until: None,
            calls: 0,
            member: None,
            trouble: "not connected yet".to_owned(),
            space: None,
            asks_space: false,
            counters: NodeCounters::default(),
            asked: time::now(),
            old_grants_end: time::now() + GRANT_TTL_MAX,
            stop: false,
        };
        let shared = Arc::new(Shared {
            config,
            metadata: OnceLock::new(),
            state: Mutex::new(state),
            changed: Condvar::new(),
            records_max,
            data: Gate::new(NODE_CALLS_MAX, TURN_TIME, STUCK_TIME),
            advice: Gate::new(ADVICE_CALLS_MAX, ADVICE_TURN_TIME, STUCK_TIME),
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

    /// Follows a change of the secret of the cluster: a connection is replaced between calls if it may
    /// have been made with a secret that is not accepted any more.
    pub fn follow_secret(&self) {
        self.shared.follow_secret();
    }

    /// Returns its state.
    pub fn status(&self) -> NodeStatus {
        let state = self.shared.lock();
        let connected = state.link.as_ref().is_some_and(|link| !link.is_closed());
        let connected = connected || state.hold().is_some();
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
        let call = |link: &Link| link.call(call, CALL_TIME, |answer| taken(answer, take));
        self.shared.with_link(call).map_err(|_| StoreError::Busy)?
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
        self.shared.changed.notify_all();
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

    fn digest(&self, component: &ComponentId, offset: u64, len: usize) -> Result<Digest> {
        let len = len.min(DIGEST_BYTES_MAX);
        let call = Call::Digest { component: component.0, offset, len: len as u32 };
        let _turn = self.shared.data.enter()?;
        let take = |answer: Answer<'_>| match answer {
            Answer::Digest { count, hash } if count as usize <= len => {
                Ok(Digest { count: count as usize, hash })
            }
            // Only the error of a device may count as damage of a copy.
            Answer::Refused(number) => Err(known(number).unwrap_or(StoreError::Malformed)),
            _ => Err(StoreError::Malformed),
        };
        let digest = self.shared.with_link(|link: &Link| link.call(call, CALL_TIME, take));
        let digest = digest.map_err(|_| StoreError::Busy)?;
        if digest == Err(StoreError::Malformed) {
            let node = self.shared.config.number;
            tracing::error!(node, "a data server answers what the protocol does not allow");
        }
        digest
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

    fn advise(
        &self,
        component: &ComponentId,
        offset: u64,
        len: u64,
        advice: CacheAdvice,
    ) -> Result<Advised> {
        let advice = match advice {
            CacheAdvice::WillNeed => RangeAdvice::WillNeed,
            CacheAdvice::Keep => RangeAdvice::Keep,
            CacheAdvice::LeaveFirst => RangeAdvice::LeaveFirst,
            CacheAdvice::DontNeed => RangeAdvice::DontNeed,
            CacheAdvice::Normal | CacheAdvice::Random | CacheAdvice::Sequential => {
                return Ok(Advised::Ignored);
            }
        };
        let Ok(_turn) = self.shared.advice.enter() else { return Ok(Advised::Ignored) };
        match self.call(Call::Advise { component: component.0, offset, len, advice }, done) {
            Ok(()) => Ok(Advised::Followed),
            Err(StoreError::NotSupported) => Ok(Advised::Ignored),
            Err(error) => Err(error),
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

    /// For a node that is away, or is being asked, this is the last known space. The first answer is waited
    /// for a moment. A call that hangs keeps a thread of the data server, which has few.
    fn space(&self) -> Result<NodeSpace> {
        let mut state = self.shared.lock();
        if std::mem::replace(&mut state.asks_space, true) {
            let is_coming = |state: &mut State| state.asks_space && state.space.is_none();
            let waited = self.shared.changed.wait_timeout_while(state, SPACE_TIME, is_coming);
            return waited.0.space.ok_or(StoreError::Busy);
        }
        drop(state);
        let space = self.call(Call::Space, |answer| match answer {
            Answer::Space { total, free, available } => Some(NodeSpace { total, free, available }),
            _ => None,
        });
        let mut state = self.shared.lock();
        state.asks_space = false;
        self.shared.changed.notify_all();
        match space {
            Ok(space) => state.space = Some(space),
            Err(StoreError::Busy) => return state.space.ok_or(StoreError::Busy),
            Err(_) => {}
        }
        space
    }

    fn drop_grants(&self, component: &ComponentId) -> Result<()> {
        let call = Call::RevokeAuthorisation { component: component.0 };
        let call = |link: &Link| link.call(call, CALL_TIME, |answer| taken(answer, done));
        if let Ok(answer) = self.shared.with_link(call) {
            return answer;
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
}

#[cfg(test)]
mod tests;
