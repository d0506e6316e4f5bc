//! `dafs serve --role data`: a data server in a process of its own. It serves the components of one
//! directory, or the local part of another file system, to a metadata server that connects to it.
//!
//! Invariants
//! * Clients are admitted only when the node of the directory is known.

use super::data::{DataCounters, DataServer, DataServerParts, by_node, of_data_servers};
use super::listen::Listener;
use super::rdma::RdmaListeners;
use super::tls::Tls;
use super::{Random, StartError, descriptors, listen, operation_name};
use crate::config::{BrickConfig, Config, DataRdma, EngineConfig, OsdConfig};
use crate::limits::STOP_TIME;
use crate::metrics::{MetricsPort, MetricsTls, ServerCollector};
use dafs_cephfs::{CephNode, CephNodeOptions};
use dafs_cluster::{
    Answering, ClusterSecret, DataNode, DataNodeConfig, Judge, Opened, SecretError,
};
use dafs_dat::connections::Connections;
use dafs_engine::{StartGate, ThreadPool};
use dafs_gluster::{GlusterNode, GlusterNodeOptions};
use dafs_mem::Mutex;
use dafs_rpc::tls::ServerTls;
use dafs_service::{Admits, Export, ForeignStates, ForeignUse, WriteVerifier};
use dafs_store::node::{
    ComponentHandle, ComponentId, ComponentStore, DirectoryNode, Node, component_store_fs,
};
use dafs_store::{DataFiles, DataKeys, FileId, FsId, StoreError};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// The configuration of a data server.
#[derive(Debug)]
pub struct DataServerConfig {
    /// The directory of its components, empty at the first start.
    pub directory: PathBuf,
    /// The local part of another file system, if that keeps the files. Then the directory only
    /// holds the server's identity.
    pub engine: Option<EngineConfig>,
    /// The file with the secret of the cluster.
    pub cluster_secret: PathBuf,
    /// The address for the metadata server.
    pub control: SocketAddr,
    /// The address for clients. The metadata server passes it on, so it has to be the one address
    /// that clients can reach.
    pub nfs: SocketAddr,
    /// The RDMA addresses for clients, which the metadata server passes on.
    pub rdma: DataRdma,
    /// The address for DAFS clients, which the metadata server passes on.
    pub dafs: Option<SocketAddr>,
    /// Serve DAFS by the RDMA device of that address, too.
    pub dafs_verbs: bool,
    /// The clients that may connect by NFS.
    pub admits: Admits,
    /// The settings that all servers have: waits, limits, the lease, metrics, Kerberos, TLS. Its
    /// exports and other addresses are ignored.
    pub general: Config,
}

/// A data server with its threads. They end when this is dropped.
pub struct DataProcess {
    /// Dropped first, so that no further client is admitted.
    node: DataNode,
    /// The file with the secret of the cluster.
    secret: PathBuf,
    nfs: SocketAddr,
    rdma: Vec<SocketAddr>,
    dafs: Option<SocketAddr>,
    metrics: Option<SocketAddr>,
    running: Arc<Mutex<Option<Running>>>,
    /// Follows the files of TLS.
    tls: Option<Tls>,
    pool: Arc<ThreadPool>,
}

struct Running {
    /// Dropped first, because it uses the front end.
    _metrics: Option<MetricsPort>,
    server: DataServer,
}

impl DataProcess {
    /// Serves a directory as soon as a metadata server names its node, or at once if that is known.
    ///
    /// # Errors
    /// The problem, and its solution.
    pub fn start(config: DataServerConfig) -> Result<Self, StartError> {
        descriptors::raise_limit();
        let connections = descriptors::connections(&config.general.limits);
        let secret = Arc::new(ClusterSecret::load(&config.cluster_secret)?);
        let clients = listen::fresh(config.nfs)?;
        let nfs = clients.local_addr()?;
        let rdma_clients = RdmaListeners::of_data_server(&config.rdma)?;
        let rdma = rdma_clients.addresses();
        let dafs_clients = config.dafs.map(Listener::fresh).transpose()?;
        let dafs = dafs_clients.as_ref().map(|listener| listener.address);
        let dafs_clients = dafs_clients.map(|listener| {
            let verbs = config.dafs_verbs.then_some(listener.address).into_iter().collect();
            RdmaListeners::of_dafs(vec![listener], verbs)
        });
        let failed = |error| StartError::Listen { address: config.control, error };
        let control = listen::fresh(config.control)?;
        control.set_nonblocking(false).map_err(failed)?;
        // So the caller sees errors now, and not the metadata server later.
        for listeners in [Some(&rdma_clients), dafs_clients.as_ref()].into_iter().flatten() {
            drop(listeners.adapters(&config.general, (&connections, None), 0, 1)?);
        }
        let tls = config.general.tls.as_ref();
        let pool = Arc::new(ThreadPool::new());
        let tls = tls.map(|files| Tls::start(files, None, pool.clone())).transpose()?;
        // So the caller sees this error now, too.
        if config.general.metrics_listen.is_some() {
            drop(MetricsTls::demanded(&config.general, tls.as_ref().map(Tls::shared))?);
        }
        let metrics_port = config.general.metrics_listen.map(MetricsPort::listen).transpose()?;
        let metrics = metrics_port.as_ref().map(TcpListener::local_addr).transpose()?;
        let random = Random::draw()?;
        let write_verifier = Arc::new(WriteVerifier::new(random.write_verifier));
        let running = Arc::new(Mutex::new(None));
        let changed = write_verifier.clone();
        let (directory, secret_file) = (config.directory.clone(), config.cluster_secret.clone());
        let sockets =
            Sockets { clients, rdma: rdma_clients, dafs: dafs_clients, metrics: metrics_port };
        let mut opener = Opener {
            config,
            connections,
            tls: tls.as_ref().map(Tls::shared),
            sockets: Some(sockets),
            pool: pool.clone(),
            write_verifier,
            running: running.clone(),
        };
        let node = DataNode::start(DataNodeConfig {
            directory,
            secret,
            listener: control,
            addresses: vec![nfs],
            rdma_addresses: rdma.clone(),
            dafs_addresses: dafs.into_iter().collect(),
            opened: Box::new(move |opened, judge| {
                opener.run(opened, judge).map_err(|error| io::Error::other(error.to_string()))
            }),
            lost: Box::new(move || changed.change()),
        })?;
        Ok(Self { node, secret: secret_file, nfs, rdma, dafs, metrics, running, tls, pool })
    }

    /// Reads the file with the secret of the cluster again. Connections and transfers go on. True if
    /// it has changed.
    ///
    /// # Errors
    /// The fault of the file. Then the secret before stays in force.
    pub fn read_secret(&self) -> Result<bool, SecretError> {
        Ok(self.node.follow_secret(&ClusterSecret::load(&self.secret)?))
    }

    /// Returns the address for the metadata server.
    pub fn control_address(&self) -> SocketAddr {
        self.node.address()
    }

    /// Returns the address for clients.
    pub fn nfs_address(&self) -> SocketAddr {
        self.nfs
    }

    /// Returns the RDMA addresses for clients.
    pub fn rdma_addresses(&self) -> &[SocketAddr] {
        &self.rdma
    }

    /// Returns the address for DAFS clients.
    pub fn dafs_address(&self) -> Option<SocketAddr> {
        self.dafs
    }

    /// Returns the address for Prometheus, if there is one.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics
    }

    /// Admits no further client, and waits for the threads.
    pub fn stop(self) {
        let Self { node, running, tls, pool, .. } = self;
        drop(node);
        drop(running.lock().take());
        drop(tls);
        if !pool.finish(STOP_TIME) {
            tracing::warn!("blocking calls are still under way after {STOP_TIME:?}");
        }
    }
}

/// The sockets for clients and Prometheus.
struct Sockets {
    clients: TcpListener,
    rdma: RdmaListeners,
    dafs: Option<RdmaListeners>,
    metrics: Option<TcpListener>,
}

/// Starts the front ends when the directory is known.
struct Opener {
    config: DataServerConfig,
    connections: Arc<Connections>,
    tls: Option<Arc<ServerTls>>,
    /// Kept until they are used. The local part of another file system may have to be waited for
    /// before.
    sockets: Option<Sockets>,
    pool: Arc<ThreadPool>,
    write_verifier: Arc<WriteVerifier>,
    running: Arc<Mutex<Option<Running>>>,
}

impl Opener {
    fn run(&mut self, opened: Opened, judge: Judge) -> Result<Answering, StartError> {
        let (running, answering) = self.open(opened, judge)?;
        *self.running.lock() = Some(running);
        Ok(answering)
    }

    /// Opens the served files.
    fn serve(&self, opened: &Opened, judge: Judge) -> Result<Served, StartError> {
        let (node, keys) = (&opened.node, opened.keys.clone());
        match self.config.engine.clone() {
            Some(EngineConfig::Ceph(ceph)) => self.serve_ceph(ceph, keys, node, judge),
            Some(EngineConfig::Gluster(brick)) => self.serve_brick(brick, keys, node, judge),
            None => {
                let component_fs = Export::fs_of(&component_store_fs(keys.store()), "");
                let way = Arc::new(judge.clone());
                let files = ComponentStore::new(node.clone(), keys.clone(), component_fs, way);
                let states = RemoteMetadata { judge, keys, component_fs };
                let (files, states) = (Arc::new(files), Arc::new(states));
                Ok(Served { answering: node.clone(), files, states })
            }
        }
    }

    fn serve_ceph(
        &self,
        ceph: OsdConfig,
        data_keys: DataKeys,
        own: &DirectoryNode,
        judge: Judge,
    ) -> Result<Served, StartError> {
        let node = CephNode::open(&CephNodeOptions {
            config: ceph.conf,
            user: ceph.id,
            keyring: ceph.keyring,
            file_system: ceph.fs,
            root: ceph.root,
            daemons: ceph.osds.clone(),
            data_keys,
            number: own.number(),
            addresses: own.addresses(),
        });
        let failed = |error| StartError::Osds { osds: ceph.osds, error };
        let node = Arc::new(node.map_err(failed)?);
        let changed = self.write_verifier.clone();
        node.data().tell_of_lost_data(Box::new(move || changed.change()));
        let named = node.clone();
        let component = Box::new(move |file: &FileId| named.component(file));
        let (files, states) = (node.data().clone(), Arc::new(RemoteEngine { judge, component }));
        Ok(Served { answering: node, files, states })
    }

    fn serve_brick(
        &self,
        BrickConfig { volume, servers, brick }: BrickConfig,
        data_keys: DataKeys,
        own: &DirectoryNode,
        judge: Judge,
    ) -> Result<Served, StartError> {
        let failed = |error| StartError::Brick { brick: brick.clone(), error };
        let node = GlusterNode::open(&GlusterNodeOptions {
            volume,
            servers,
            brick: brick.clone(),
            data_keys,
            number: own.number(),
            addresses: own.addresses(),
        });
        let node = Arc::new(node.map_err(failed)?);
        let changed = self.write_verifier.clone();
        node.data().tell_of_lost_data(Box::new(move || changed.change()));
        let named = node.clone();
        let component = Box::new(move |file: &FileId| named.component(file));
        let (files, states) = (node.data().clone(), Arc::new(RemoteEngine { judge, component }));
        Ok(Served { answering: node, files, states })
    }

    fn open(&mut self, opened: Opened, judge: Judge) -> Result<(Running, Answering), StartError> {
        let Served { answering: node, files, states } = self.serve(&opened, judge)?;
        let sockets = self.sockets.take().ok_or(StartError::ListenersTaken)?;
        let Sockets { clients, rdma, dafs, metrics } = sockets;
        // The front end holds the judge, and the judge holds the owner of this. So this reference
        // to the front end is weak.
        let running = Arc::downgrade(&self.running);
        let told = move || {
            let running = running.upgrade()?;
            let running = running.lock();
            Some(running.as_ref()?.server.counters().usage().now())
        };
        let counters = Box::new(move || told().unwrap_or_default());
        let Opened { node: own, store, .. } = opened;
        let number = own.number();
        let mut identity = store;
        identity[..4].iter_mut().zip(number.to_be_bytes()).for_each(|(own, byte)| *own ^= byte);
        let parts = DataServerParts {
            export: None,
            number,
            listener: clients,
            rdma,
            dafs,
            files,
            pool: None,
            states,
            admits: self.config.admits.clone(),
            identity,
        };
        let general = &self.config.general;
        let (pool, write_verifier) = (self.pool.clone(), self.write_verifier.clone());
        let front = (&self.connections, self.tls.as_ref());
        let gate = StartGate::default();
        let own = (write_verifier, gate.clone());
        let server = DataServer::start(general, front, pool, own, parts)?;
        let mut answered = None;
        if let Some(port) = metrics {
            let secured = MetricsTls::demanded(general, self.tls.clone())?;
            let port = MetricsPort::start(port, collector(&server), secured)?;
            tracing::info!("metrics at {}", port.url());
            answered = Some(port);
        }
        gate.open();
        tracing::info!(number, "clients are admitted");
        Ok((Running { _metrics: answered, server }, Answering { node, counters }))
    }
}

fn collector(server: &DataServer) -> ServerCollector {
    let counters: Vec<DataCounters> = vec![server.counters()];
    let nodes = counters.clone();
    let samples =
        Box::new(move || [of_data_servers(&counters), crate::sandbox::in_numbers()].concat());
    let nodes = Box::new(move || by_node(&nodes));
    let (service, started) = (server.service(), SystemTime::now());
    ServerCollector { service, name: operation_name, samples, nodes, started }
}

/// The served files of a data server.
struct Served {
    /// Answers the metadata server.
    answering: Arc<dyn Node>,
    files: Arc<dyn DataFiles>,
    states: Arc<dyn ForeignStates>,
}

/// Returns the part of a file's wire handle behind the id of its file system.
fn file_of(handle: &[u8]) -> Result<FileId, StoreError> {
    let file = handle.get(size_of::<FsId>()..).and_then(|file| file.try_into().ok());
    file.map(FileId).ok_or(StoreError::BadHandle)
}

/// Returns the name of a file between servers.
type Named = Box<dyn Fn(&FileId) -> Result<ComponentId, StoreError> + Send + Sync>;

/// The metadata server behind the control connection, for files of another file system.
struct RemoteEngine {
    judge: Judge,
    component: Named,
}

impl ForeignStates for RemoteEngine {
    fn check(&self, wanted: &ForeignUse<'_>) -> dafs_service::Result<Option<Duration>> {
        let component = (self.component)(&file_of(wanted.component)?)?;
        self.judge.check(&component, wanted)
    }

    fn size(&self, _component: &FileId) -> Result<u64, StoreError> {
        Err(StoreError::NotSupported)
    }
}

/// The metadata server behind the control connection.
struct RemoteMetadata {
    judge: Judge,
    keys: DataKeys,
    component_fs: FsId,
}

impl ForeignStates for RemoteMetadata {
    fn check(&self, wanted: &ForeignUse<'_>) -> dafs_service::Result<Option<Duration>> {
        let file = file_of(wanted.component)?;
        let component = ComponentHandle::open_with(&file, &self.component_fs, &self.keys)?;
        self.judge.check(&component.component, wanted)
    }

    fn size(&self, component: &FileId) -> Result<u64, StoreError> {
        let handle = ComponentHandle::open_with(component, &self.component_fs, &self.keys)?;
        self.judge.size(&handle.component)
    }
}
