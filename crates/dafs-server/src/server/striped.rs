//! Exports whose files are distributed over nodes: local directories, with data servers that give
//! clients direct access (pNFS), and data servers of other machines.
//!
//! Invariants
//! * A directory becomes a node once. The state directory records that. So a file system that is
//!   not mounted is not taken for an empty node, nor an older state of it for the newest.
//! * The service of the metadata server authorises every use of a component by clients.

mod mending;
mod replacement;
mod scrub;

use super::StartError;
use super::data::{DataServerParts, DataServers, NodeUsage};
use super::listen::{self, Listener};
use super::node_drain::{NodeDrain, Progress};
use super::node_probes::{NodeProbes, silent_text};
use super::rdma::RdmaListeners;
use crate::admin::{NodeReport, ScrubOrder, ScrubReport};
use crate::config::{ExportConfig, ExportSource, NodeConfig, NodePlace};
use dafs_cluster::{
    ClusterSecret, Metadata, NodeCounters, RemoteConfig, RemoteNode, join_directory,
};
use dafs_dat::Instant;
use dafs_mem::{Mutex, VolatileSlice};
use dafs_posix::{PosixOptions, PosixStore};
use dafs_service::{
    Admits, Export, ForeignStates, ForeignUse, Service, ServiceError, WriteVerifier,
};
use dafs_store::node::{
    ComponentHandle, ComponentId, ComponentStore, DirectoryNode, Elsewhere, Node, NodeSpace,
    component_store_fs,
};
use dafs_store::{DataKeys, ExportSecret, FileId, FsId, Stability, Store, StoreError, own};
use dafs_striped::{StripedOptions, StripedStore, SystemClock};
use mending::Mender;
use replacement::NodeReplacement;
use scrub::Scrubber;
use siphasher::sip128::{Hasher128, SipHasher24};
use std::collections::BTreeMap;
use std::hash::Hasher;
use std::net::TcpListener;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// The directory with records of nodes, in the state directory.
const NODES: &str = "nodes";

/// Length of the id of a file system, before the name of a file in it.
const FS_ID_BYTES: usize = 16;

/// The directory with lists of components of removed files, in the state directory.
const REMOVED: &str = "removed";

/// The directory with lists of components that files have left on another node.
const MOVED: &str = "moved";
/// The directory with lists of files whose copies need repair, in the state directory.
const MENDS: &str = "mends";

/// An open store, with the state for its data servers.
pub(super) struct Striped {
    pub(super) store: Arc<StripedStore>,
    /// The keys of the handles of components.
    keys: DataKeys,
    component_fs: FsId,
    admits: Admits,
    listeners: Mutex<Vec<NodeListener>>,
    pub(super) nodes: Mutex<Vec<OpenNode>>,
    /// The questions of administrators to them.
    probes: NodeProbes<NodeAnswer>,
    pub(super) joining: Joining,
    /// The metadata server for data servers, set once the server runs.
    pub(super) metadata: OnceLock<Arc<LocalMetadata>>,
    drain: Mutex<NodeDrain>,
    /// The progress of the drain.
    pub(super) progress: Mutex<Progress>,
    replacement: Mutex<NodeReplacement>,
    /// The progress of replacements for each node, as text.
    replaced: Mutex<BTreeMap<u32, String>>,
    scrubber: Mutex<Scrubber>,
    /// The counters of the data servers of this process, by their numbers.
    usages: Mutex<BTreeMap<u32, NodeUsage>>,
    name: String,
    /// The write verifier that changes when unstable data is lost, set once the server runs.
    verifier: Arc<OnceLock<Arc<WriteVerifier>>>,
    _mender: Mender,
}

/// A node that clients may access, with its sockets.
struct NodeListener {
    node: Arc<DirectoryNode>,
    listener: TcpListener,
    rdma: RdmaListeners,
    dafs: Option<RdmaListeners>,
}

/// The parameters for a node of another machine.
pub(super) struct Joining {
    secret: Option<Arc<ClusterSecret>>,
    store: [u8; 16],
    state: PathBuf,
    /// Nodes keep files in their directories.
    hold_files: bool,
}

impl Joining {
    pub(super) fn new(
        secret: Option<Arc<ClusterSecret>>,
        store: [u8; 16],
        state: &Path,
        hold_files: bool,
    ) -> Self {
        Self { secret, store, state: state.to_owned(), hold_files }
    }

    /// Returns the path of the record for the directory of a node.
    fn memory(&self, number: u32) -> PathBuf {
        self.state.join(NODES).join(format!("{}-{number}", hex(&self.store)))
    }

    /// Puts the secrets of the cluster in force that were read again, with the keys of what clients
    /// show to data servers. Layouts by another key than the present one are recalled. True if the
    /// secrets have changed.
    pub(super) fn follow_secret(
        &self,
        read: &ClusterSecret,
        keys: &DataKeys,
        service: &Service,
    ) -> bool {
        let Some(secret) = &self.secret else { return false };
        let (changed, before) = (secret.follow(read), keys.own());
        secret.change_keys(keys);
        if keys.own() != before {
            service.layouts.renew_all(Instant::now().0);
        }
        changed
    }

    pub(super) fn connect(
        &self,
        number: u32,
        control: &str,
    ) -> Result<Arc<RemoteNode>, StartError> {
        let (control, store, memory) = (control.to_owned(), self.store, self.memory(number));
        let secret =
            self.secret.clone().ok_or_else(|| std::io::Error::other("no cluster secret"))?;
        let holds_files = self.hold_files;
        let config = RemoteConfig { number, control, secret, store, memory, holds_files };
        Ok(Arc::new(RemoteNode::start(config)?))
    }
}

/// A node, with its connection.
#[derive(Clone)]
pub(super) enum OpenNode {
    Local(Arc<DirectoryNode>, PathBuf),
    Remote(Arc<RemoteNode>),
}

impl OpenNode {
    pub(super) fn node(&self) -> Arc<dyn Node> {
        match self {
            Self::Local(node, _) => node.clone(),
            Self::Remote(node) => node.clone(),
        }
    }

    /// Asks it what administrators see of it, which may wait for its disk.
    fn ask(&self) -> NodeAnswer {
        let counters = match self {
            // This process counts them.
            Self::Local(..) => NodeCounters::default(),
            Self::Remote(node) => node.counters(),
        };
        NodeAnswer { space: self.node().space(), counters }
    }
}

/// The answer of a node to the question of an administrator.
#[derive(Clone)]
struct NodeAnswer {
    space: Result<NodeSpace, StoreError>,
    counters: NodeCounters,
}

/// Opens the store of an export, and the sockets of its data servers.
pub(super) fn open(
    export: &ExportConfig,
    (path, unit_bytes, copies, nodes): (&Path, NonZeroU32, usize, &[NodeConfig]),
    cluster_secret: Option<&Path>,
    secret: ExportSecret,
    state: &Path,
) -> Result<Arc<Striped>, StartError> {
    let failed = |error| StartError::Export { path: path.to_owned(), error };
    let read_only = export.options.read_only;
    let options = PosixOptions { read_only, ..PosixOptions::new(secret) };
    let meta = PosixStore::open(path, options).map_err(failed)?;
    let identity = derive(&secret, b"store", &meta.fs_id().0);
    let stripes = derive(&secret, b"stripes", &identity);
    let cluster = cluster_secret.map(ClusterSecret::load).transpose()?.map(Arc::new);
    // Data servers of other machines know only this secret.
    let own = || DataKeys::new(identity, stripes);
    let keys = cluster.as_ref().map_or_else(own, |secret| secret.data_keys(&identity));
    let component_fs = Export::fs_of(&component_store_fs(&identity), "");
    let joining = Joining::new(cluster, identity, state, true);
    for list in [NODES, REMOVED, MOVED, MENDS] {
        own::make_directory(&state.join(list))?;
    }
    let verifier = Arc::new(OnceLock::<Arc<WriteVerifier>>::new());
    let lost = || {
        let changed = verifier.clone();
        Box::new(move || {
            if let Some(verifier) = changed.get() {
                verifier.change();
            }
        })
    };
    let mut listeners = Vec::new();
    let mut opened = Vec::new();
    for node in nodes {
        let memory = joining.memory(node.number);
        match &node.place {
            NodePlace::Directory { path, listen, rdma, dafs_listen, dafs_verbs } => {
                let listener = listen.map(listen::fresh).transpose()?;
                let address = listener.as_ref().map(TcpListener::local_addr).transpose()?;
                let rdma = RdmaListeners::of_data_server(rdma)?;
                let dafs = dafs_listen.map(Listener::fresh).transpose()?;
                let dafs_addresses = dafs.iter().map(|listener| listener.address).collect();
                let dafs = dafs.map(|listener| {
                    let verbs = dafs_verbs.then_some(listener.address).into_iter().collect();
                    RdmaListeners::of_dafs(vec![listener], verbs)
                });
                let (own, addresses) = ((&identity, node.number), address.into_iter().collect());
                let directory = join_directory(path, own, addresses, &memory)?;
                let directory = directory.telling(lost()).serving_rdma(rdma.addresses());
                let directory = directory.serving_dafs(dafs_addresses);
                let directory = Arc::new(directory);
                opened.push(OpenNode::Local(directory.clone(), path.clone()));
                let with_listener =
                    |listener| NodeListener { node: directory, listener, rdma, dafs };
                listeners.extend(listener.map(with_listener));
            }
            NodePlace::Remote(control) => {
                opened.push(OpenNode::Remote(joining.connect(node.number, control)?));
            }
        }
    }
    let options = StripedOptions {
        secret: stripes,
        component_keys: keys.clone(),
        component_fs,
        unit_bytes,
        copies,
        removed: state.join(REMOVED).join(hex(&identity)),
        left: state.join(MOVED).join(hex(&identity)),
        leaving: state.join(NODES).join(format!("{}-leaving", hex(&identity))),
        repairs: state.join(MENDS).join(hex(&identity)),
        clock: Arc::new(SystemClock),
        lost: lost(),
    };
    let all = opened.iter().map(OpenNode::node).collect();
    let store = Arc::new(StripedStore::open(meta, all, options).map_err(failed)?);
    Ok(Arc::new(Striped {
        _mender: Mender::start(&store, export.mend_idle)?,
        store,
        keys,
        component_fs,
        admits: export.options.admits.clone(),
        listeners: Mutex::new(listeners),
        nodes: Mutex::new(opened),
        probes: NodeProbes::default(),
        joining,
        metadata: OnceLock::new(),
        drain: Mutex::default(),
        progress: Mutex::default(),
        replacement: Mutex::default(),
        replaced: Mutex::default(),
        scrubber: Mutex::new(Scrubber::new(export.mend_idle)),
        usages: Mutex::default(),
        name: export.name.clone(),
        verifier,
    }))
}

/// Derives a key for one purpose. It does not reveal the secret.
pub(super) fn derive(secret: &ExportSecret, purpose: &[u8], of: &[u8]) -> [u8; 16] {
    let mut hasher = SipHasher24::new_with_key(secret.as_bytes());
    hasher.write(purpose);
    hasher.write(of);
    let hash = hasher.finish128();
    (u128::from(hash.h1) << 64 | u128::from(hash.h2)).to_be_bytes()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Striped {
    pub(super) fn store(&self) -> Arc<dyn Store> {
        self.store.clone()
    }
}

impl DataServers for Striped {
    fn nodes(&self, export: &str) -> Vec<NodeReport> {
        let (open, leaving) = (self.nodes.lock().clone(), self.store.leaving());
        let progress = self.progress.lock().clone();
        let replaced = self.replaced.lock().clone();
        let empty: Vec<_> =
            leaving.iter().filter(|number| progress.is_empty(&self.store, **number)).collect();
        let to_mend = self.store.to_repair().ok();
        let ask = |open: &OpenNode| {
            let open = open.clone();
            (open.node().number(), move || open.ask())
        };
        let told = self.probes.ask(open.iter().map(ask));
        let report = |open: &OpenNode| {
            let node = open.node();
            let number = node.number();
            let probed = told.get(&number);
            let silent_for = probed.and_then(|probed| probed.silent_for);
            let answer = probed.and_then(|probed| probed.answer.clone());
            let (space, counters) = answer
                .map_or((Err(StoreError::Busy), NodeCounters::default()), |answer| {
                    (answer.space, answer.counters)
                });
            let (place, connected, trouble, counters) = match open {
                OpenNode::Local(_, path) => {
                    let trouble = space.err().map_or_else(String::new, |error| error.to_string());
                    let usage = self.usages.lock().get(&number).cloned();
                    let counters = usage.map(|usage| usage.now()).unwrap_or_default();
                    (path.display().to_string(), space.is_ok(), trouble, counters)
                }
                OpenNode::Remote(node) => {
                    let status = node.status();
                    (node.control().to_owned(), status.connected, status.trouble, counters)
                }
            };
            let (connected, trouble) =
                silent_for.map_or((connected, trouble), |time| (false, silent_text(time)));
            let space = space.unwrap_or_default();
            let leaving = leaving.contains(&number);
            let trouble = match (connected && leaving, replaced.get(&number)) {
                (true, _) => progress.trouble.clone(),
                (false, Some(text)) if !connected => format!("{trouble}; {text}"),
                _ => trouble,
            };
            NodeReport {
                export: export.to_owned(),
                number,
                place,
                addresses: node.addresses(),
                connected,
                silent: silent_for.is_some(),
                trouble,
                total_bytes: space.total,
                available_bytes: space.available,
                leaving,
                empty: empty.contains(&&number),
                moved_files: progress.moved_files,
                moved_bytes: progress.moved_bytes,
                left_files: progress.left.map(|(files, _)| files),
                left_bytes: progress.left.map(|(_, bytes)| bytes),
                files_to_mend: to_mend
                    .as_ref()
                    .map(|counts| counts.get(&number).copied().unwrap_or(0)),
                read_bytes: counters.read_bytes,
                written_bytes: counters.written_bytes,
                indirect_bytes: counters.indirect_bytes,
            }
        };
        open.iter().map(report).collect()
    }

    fn turn(&self, service: &Service) {
        let mut drain = self.drain.lock();
        drain.turn(&self.store, service);
        *self.progress.lock() = drain.progress();
        drop(drain);
        let nodes = self.nodes.lock().clone();
        let mut replacement = self.replacement.lock();
        replacement.turn(&self.store, &nodes);
        *self.replaced.lock() = replacement.states();
    }

    fn replace(&self, number: u32) -> Result<(), String> {
        let nodes = self.nodes.lock().clone();
        let node = nodes.iter().find(|open| open.node().number() == number);
        if let Some(OpenNode::Local(..)) = node {
            return Err(format!(
                "node {number} is a directory of this machine: only those of data servers can be \
                replaced"
            ));
        }
        self.store.set_lost(number, true).map_err(|error| match error {
            StoreError::NotFound => format!("there is no node {number}"),
            StoreError::Busy => {
                format!("node {number} is there: nothing is lost. To take it away, drain it")
            }
            error => format!("cannot record that the data of node {number} is lost: {error}"),
        })
    }

    fn set_leaving(&self, number: u32, leaves: bool) -> Result<(), String> {
        self.store.set_leaving(number, leaves).map_err(|error| match error {
            StoreError::NotFound => format!("there is no node {number}"),
            StoreError::Invalid => format!(
                "node {number} is needed: without it fewer nodes would take files than files are to \
                 have copies, or none; add one first"
            ),
            error => format!("cannot record that node {number} is draining: {error}"),
        })
    }

    fn scrub(&self, order: &ScrubOrder) -> Result<ScrubReport, String> {
        self.scrubber.lock().order(&self.store, &self.name, order)
    }

    fn repair(&self, file: &FileId, node: u32) -> Result<(), String> {
        // All other copies would be made like it.
        if self.store.has_lost_copy(file, node).is_ok_and(|is_lost| is_lost) {
            return Err(format!(
                "node {node} has lost its copy, or cannot read it: name a node that still has the file"
            ));
        }
        self.store.give_up_copies(file, &|number| number != node).map_err(|error| match error {
            StoreError::NotSupported => "it has no copies".to_owned(),
            StoreError::Invalid => {
                format!("its copy on node {node} is out of date, or there is none: see dafs layout")
            }
            StoreError::NoDevice => format!(
                "node {node} is missing: bring it back first, because all other copies are given up for the \
                 one there"
            ),
            error => error.to_string(),
        })
    }

    fn adapt(&self, from: &ExportSource, to: &ExportSource) -> Result<(), String> {
        self.change_nodes(from, to)
    }

    fn follow_secret(&self, read: &ClusterSecret, service: &Service) -> bool {
        let changed = self.joining.follow_secret(read, &self.keys, service);
        for node in self.nodes.lock().iter() {
            if let OpenNode::Remote(node) = node {
                node.follow_secret();
            }
        }
        changed
    }

    fn count_by(&self, number: u32, usage: NodeUsage) {
        self.usages.lock().insert(number, usage);
    }

    fn tell_of_lost_data(&self, verifier: &Arc<WriteVerifier>) {
        let _ = self.verifier.set(verifier.clone());
    }

    /// Returns the front ends of this process's data servers, and connects the other data servers
    /// to the metadata server.
    fn take_parts(&self, service: &Arc<Service>) -> Vec<DataServerParts> {
        let metadata = Arc::new(LocalMetadata {
            service: Arc::downgrade(service),
            store: Arc::downgrade(&self.store),
            keys: self.keys.clone(),
            component_fs: self.component_fs,
        });
        let _ = self.metadata.set(metadata.clone());
        for node in self.nodes.lock().iter() {
            if let OpenNode::Remote(node) = node {
                node.answer_by(metadata.clone());
            }
        }
        let mut listeners = self.listeners.lock();
        let open = |NodeListener { node, listener, rdma, dafs }| {
            let number = node.number();
            let (keys, way) = (self.keys.clone(), metadata.clone());
            let files = ComponentStore::new(node, keys, self.component_fs, way);
            let store = ExportSecret::from_bytes(*self.keys.store());
            DataServerParts {
                export: Some(self.name.clone()),
                listener,
                rdma,
                dafs,
                number,
                files: Arc::new(files),
                pool: None,
                states: metadata.clone(),
                admits: self.admits.clone(),
                identity: derive(&store, b"data server", &number.to_be_bytes()),
            }
        };
        listeners.drain(..).map(open).collect()
    }
}

/// The metadata server in the same process. Its references are weak, to avoid a cycle: nodes hold
/// it, and the store holds nodes.
pub(super) struct LocalMetadata {
    service: Weak<Service>,
    store: Weak<StripedStore>,
    keys: DataKeys,
    component_fs: FsId,
}

impl LocalMetadata {
    fn store(&self) -> Result<Arc<StripedStore>, StoreError> {
        self.store.upgrade().ok_or(StoreError::Busy)
    }

    /// Checks that clients may use a component. A copy that has become stale may not be used,
    /// whatever layouts are out. Neither may a component that does not belong to the file yet, or
    /// any more.
    fn check_usable(&self, component: &[u8]) -> dafs_service::Result<()> {
        let file = component.get(FS_ID_BYTES..).and_then(|file| file.first_chunk());
        let file = FileId(*file.ok_or(StoreError::BadHandle)?);
        let handle = ComponentHandle::open_with(&file, &self.component_fs, &self.keys)?;
        let store = self.store()?;
        if !store.may_be_used(&handle.component, handle.node) {
            return Err(ServiceError::BadLayout);
        }
        Ok(store.admits(&handle)?)
    }
}

impl ForeignStates for LocalMetadata {
    fn check(&self, wanted: &ForeignUse<'_>) -> dafs_service::Result<Option<Duration>> {
        let service = self.service.upgrade().ok_or(StoreError::Busy)?;
        let age = service.layouts.vouch(wanted)?;
        self.check_usable(wanted.component)?;
        Ok(age)
    }

    fn size(&self, component: &FileId) -> Result<u64, StoreError> {
        let handle = ComponentHandle::open_with(component, &self.component_fs, &self.keys)?;
        self.store()?.size_of(&handle.component)
    }
}

/// Serves I/O that a data server of this process has no local data for.
impl Elsewhere for LocalMetadata {
    fn read(
        &self,
        handle: &ComponentHandle,
        views: &[VolatileSlice<'_>],
        offset: u64,
    ) -> Result<usize, StoreError> {
        self.store()?.read_component(&handle.component, views, offset)
    }

    /// The data is always stable then, because a commit at that data server would not reach it.
    fn write(
        &self,
        handle: &ComponentHandle,
        views: &[VolatileSlice<'_>],
        offset: u64,
        _stability: Stability,
    ) -> Result<usize, StoreError> {
        self.store()?.write_component(&handle.component, views, offset)
    }
}

impl Metadata for LocalMetadata {
    fn size_of(&self, component: &ComponentId) -> Result<u64, StoreError> {
        self.store()?.size_of(component)
    }

    fn read(
        &self,
        component: &ComponentId,
        views: &[VolatileSlice<'_>],
        offset: u64,
    ) -> Result<usize, StoreError> {
        self.store()?.read_component(component, views, offset)
    }

    fn write(
        &self,
        component: &ComponentId,
        views: &[VolatileSlice<'_>],
        offset: u64,
    ) -> Result<usize, StoreError> {
        self.store()?.write_component(component, views, offset)
    }
}
