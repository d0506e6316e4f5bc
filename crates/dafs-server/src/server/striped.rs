//! Exports whose files are spread over local directories, and the data servers that let clients reach
//! those by themselves (pNFS).
//!
//! Invariants
//! * A directory becomes a node's once. That is remembered in the state directory, so that a file
//!   system that is not mounted is not taken for an empty node.
//! * Each data server is a server of its own to clients: no session, client or state is shared with
//!   the other doors, which judge every use of a component.

use super::nfs::{self, Elsewhere};
use super::{Random, StartError, listen};
use crate::config::{Config, ExportConfig, NodeConfig};
use crate::engine::Shared;
use dafs_dat::Instant;
use dafs_nfs::{DataRole, ForeignStates, ForeignUse, NfsHandler, NfsShared};
use dafs_rpc::server::Group;
use dafs_service::{
    Admits, Export, ExportOptions, Namespace, NoRecords, Service, ServiceConfig, Squash,
};
use dafs_store::striped::{
    ComponentHandle, ComponentStore, DirectoryNode, Node, component_store_fs,
};
use dafs_store::{
    DataFiles, DataStore, ExportSecret, FileId, FsId, PosixOptions, PosixStore, Store, StoreError,
    StripedOptions, StripedStore,
};
use siphasher::sip128::{Hasher128, SipHasher24};
use std::hash::Hasher;
use std::net::{SocketAddr, TcpListener};
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Where it is remembered which directories are nodes', in the state directory.
const NODES: &str = "nodes";

/// Where components of removed files are listed, in the state directory.
const REMOVED: &str = "removed";

/// An open store, with what its data servers need.
pub(super) struct Striped {
    store: Arc<StripedStore>,
    secret: [u8; 16],
    component_fs: FsId,
    admits: Admits,
    doors: Mutex<Vec<Door>>,
}

/// A node that clients may reach, and where.
struct Door {
    node: Arc<DirectoryNode>,
    listener: TcpListener,
}

/// Opens the store of an export, and the sockets of its data servers.
pub(super) fn open(
    export: &ExportConfig,
    (path, unit_bytes, nodes): (&Path, NonZeroU32, &[NodeConfig]),
    secret: ExportSecret,
    state: &Path,
) -> Result<Arc<Striped>, StartError> {
    let failed = |error| StartError::Export { path: path.to_owned(), error };
    let read_only = export.options.read_only;
    let options = PosixOptions { read_only, ..PosixOptions::new(secret) };
    let meta = PosixStore::open(path, options).map_err(failed)?;
    let identity = derive(&secret, b"store", &meta.fs_id().0);
    let stripes = derive(&secret, b"stripes", &identity);
    let component_fs = Export::fs_of(&component_store_fs(&stripes), "");
    let mut doors = Vec::new();
    let mut opened: Vec<Arc<dyn Node>> = Vec::new();
    for node in nodes {
        let listener = node.listen.map(listen::fresh).transpose()?;
        let address = listener.as_ref().map(TcpListener::local_addr).transpose()?;
        let directory = open_node(node, &identity, address, state)?;
        opened.push(directory.clone());
        doors.extend(listener.map(|listener| Door { node: directory, listener }));
    }
    let options = StripedOptions {
        secret: stripes,
        component_fs,
        unit_bytes,
        removed: state.join(REMOVED).join(hex(&identity)),
        // Local directories lose nothing while this process lives but with an error.
        lost: Box::new(|| {}),
    };
    let store = Arc::new(StripedStore::open(meta, opened, options).map_err(failed)?);
    let (admits, doors) = (export.options.admits.clone(), Mutex::new(doors));
    Ok(Arc::new(Striped { store, secret: stripes, component_fs, admits, doors }))
}

fn open_node(
    node: &NodeConfig,
    store: &[u8; 16],
    address: Option<SocketAddr>,
    state: &Path,
) -> Result<Arc<DirectoryNode>, StartError> {
    let made = state.join(NODES).join(format!("{}-{}", hex(store), node.number));
    if !made.exists() {
        DirectoryNode::make(&node.path, store, node.number)?;
        std::fs::create_dir_all(state.join(NODES))?;
        std::fs::File::create(&made)?.sync_all()?;
        std::fs::File::open(state.join(NODES))?.sync_all()?;
    }
    let addresses = address.into_iter().collect();
    Ok(Arc::new(DirectoryNode::open(&node.path, store, node.number, addresses)?))
}

/// A key for one purpose. It tells nothing about the secret.
fn derive(secret: &ExportSecret, purpose: &[u8], of: &[u8]) -> [u8; 16] {
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

/// The metadata server in the same process.
struct Here {
    service: Arc<Service>,
    store: Arc<StripedStore>,
    secret: [u8; 16],
    component_fs: FsId,
}

impl ForeignStates for Here {
    fn check(&self, wanted: &ForeignUse<'_>) -> dafs_service::Result<()> {
        let ForeignUse { owner, identity, component, state, write, now_ns } = *wanted;
        self.service.vouch((owner, identity), component, state, write, now_ns)
    }

    fn size(&self, component: &FileId) -> Result<u64, StoreError> {
        let handle = ComponentHandle::open(component, &self.component_fs, &self.secret)?;
        self.store.size_of(&handle.component)
    }
}

/// What a data server has done.
#[derive(Clone)]
pub(super) struct DataCounters {
    group: Arc<Group>,
    files: Arc<dyn DataFiles>,
}

/// What all data servers of a server have done, as it is told to Prometheus.
pub(super) fn gauges(data: &[DataCounters]) -> Vec<(&'static str, &'static str, u64)> {
    if data.is_empty() {
        return Vec::new();
    }
    let rpc: Vec<_> = data.iter().map(|data| data.group.statistics()).collect();
    let indirect = data.iter().map(|data| data.files.indirect_bytes()).sum();
    vec![
        ("data_servers", "Data servers", data.len() as u64),
        ("data_connections", "Connections to them", rpc.iter().map(|r| r.connections).sum()),
        ("data_received_bytes", "Bytes received", rpc.iter().map(|r| r.received_bytes).sum()),
        ("data_sent_bytes", "Bytes sent", rpc.iter().map(|r| r.sent_bytes).sum()),
        ("data_indirect_bytes", "Bytes asked for that another one has", indirect),
    ]
}

/// A data server with its threads. Dropping it ends them.
pub(super) struct DataServer {
    group: Arc<Group>,
    files: Arc<dyn DataFiles>,
    threads: Vec<JoinHandle<()>>,
}

impl DataServer {
    /// Starts those of a store.
    pub(super) fn start_all(
        config: &Config,
        shared: &Arc<Shared>,
        striped: &Striped,
    ) -> Result<Vec<Self>, StartError> {
        let mut doors = striped.doors.lock().unwrap_or_else(PoisonError::into_inner);
        doors.drain(..).map(|door| Self::start(config, shared, striped, door)).collect()
    }

    fn start(
        config: &Config,
        shared: &Arc<Shared>,
        striped: &Striped,
        door: Door,
    ) -> Result<Self, StartError> {
        let Door { node, listener } = door;
        let (secret, component_fs) = (striped.secret, striped.component_fs);
        let number = node.number();
        let files = Arc::new(ComponentStore::new(node, secret, component_fs, None));
        let store = striped.store.clone();
        let states = Here { service: shared.service.clone(), store, secret, component_fs };
        let admits = striped.admits.clone();
        let options = ExportOptions { admits, squash: Squash::None, ..ExportOptions::default() };
        let store = Arc::new(DataStore::new(files.clone()));
        let namespace = Namespace::new(vec![Export::new("", store, options)])?;
        let random = Random::draw()?;
        let service = ServiceConfig::new(config.lease_time, random.instance);
        let now_ns = Instant::now().0;
        let service = Service::with_records(service, namespace, Box::new(NoRecords), now_ns)?;
        let role = DataRole { files: files.clone(), states: Arc::new(states) };
        let secret = ExportSecret::from_bytes(striped.secret);
        let identity = derive(&secret, b"data server", &number.to_be_bytes());
        let nfs = NfsShared::new_data_server(
            Arc::new(service),
            Arc::new(Elsewhere(shared.pool.clone())),
            // An error of a device is told once, to whoever asks first.
            shared.write_verifier.clone(),
            nfs::admission(vec![listener.local_addr()?.port()]),
            nfs::options(config, &identity, random.secret),
            role,
        );
        let group = Arc::new(Group::new(vec![listener], 1, nfs::rpc_config(config))?);
        let mut server = Self { group, files, threads: Vec::new() };
        let reactor = server.group.reactor(|_| NfsHandler::new(nfs))?;
        let thread = std::thread::Builder::new().name(format!("dafs-data-{number}"));
        server.threads.push(thread.spawn(|| reactor.run())?);
        Ok(server)
    }

    /// The counters, for somebody who outlives this.
    pub(super) fn counters(&self) -> DataCounters {
        DataCounters { group: self.group.clone(), files: self.files.clone() }
    }
}

impl Drop for DataServer {
    fn drop(&mut self) {
        self.group.stop();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a reactor of a data server had failed");
            }
        }
    }
}
