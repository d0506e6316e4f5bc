//! `dafs serve --role data`: a process that serves the components of one directory, or what a file system
//! keeps next to it, for a metadata server that connects to it.
//!
//! Invariants
//! * Clients are let in when it is known which node the directory is, and not before.

use super::data::{DataCounters, DataDoor, DataServer, by_node, gauges};
use super::listen::Listener;
use super::nfs_rdma::RdmaDoors;
use super::{Random, StartError, descriptors, listen, operation_name};
use crate::config::{BrickConfig, Config, DataRdma, EngineConfig, OsdConfig};
use crate::limits::STOP_TIME;
use crate::metrics::{MetricsPort, ServerCollector};
use dafs_cephfs::{CephNode, CephNodeOptions};
use dafs_cluster::{Answering, ClusterSecret, DataNode, DataNodeConfig, Judge, Opened};
use dafs_dat::connections::Connections;
use dafs_engine::ThreadPool;
use dafs_gluster::{GlusterNode, GlusterNodeOptions};
use dafs_service::{Admits, Export, ForeignStates, ForeignUse, WriteVerifier};
use dafs_store::node::{
    ComponentHandle, ComponentId, ComponentStore, DirectoryNode, Node, component_store_fs,
};
use dafs_store::{DataFiles, ExportSecret, FileId, FsId, StoreError};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// What a data server needs to know.
#[derive(Debug)]
pub struct DataServerConfig {
    /// Where its components are; empty at the first start.
    pub directory: PathBuf,
    /// What it is next to, where another file system keeps the files. The directory is for who it is,
    /// then.
    pub engine: Option<EngineConfig>,
    /// The file with the secret of the cluster.
    pub cluster_secret: PathBuf,
    /// Where the metadata server connects.
    pub control: SocketAddr,
    /// Where clients connect. The metadata server tells them, so it has to be the one address that they
    /// can reach.
    pub nfs: SocketAddr,
    /// Where those connect that come over RDMA, which is told to them in the same way.
    pub rdma: DataRdma,
    /// Where those connect that speak DAFS, which is told to them in the same way.
    pub dafs: Option<SocketAddr>,
    /// Which clients may connect by NFS.
    pub admits: Admits,
    /// Everything that all servers have: waiting, limits, the lease, metrics. Its exports and other
    /// addresses are not looked at.
    pub general: Config,
}

/// A data server with its threads. Dropping it ends it.
pub struct DataProcess {
    /// First, so that nobody is let in any more.
    node: DataNode,
    nfs: SocketAddr,
    rdma: Vec<SocketAddr>,
    dafs: Option<SocketAddr>,
    metrics: Option<SocketAddr>,
    door: Arc<Mutex<Option<Running>>>,
    pool: Arc<ThreadPool>,
}

struct Running {
    /// First: it looks at the door.
    _metrics: Option<MetricsPort>,
    door: DataServer,
}

impl DataProcess {
    /// Serves a directory as soon as a metadata server says which node it is, or at once if that is
    /// known.
    ///
    /// # Errors
    /// What stands in the way, and what to do about it.
    pub fn start(config: DataServerConfig) -> Result<Self, StartError> {
        descriptors::raise_limit();
        let connections = descriptors::connections(&config.general.limits);
        let secret = Arc::new(ClusterSecret::load(&config.cluster_secret)?);
        let clients = listen::fresh(config.nfs)?;
        let nfs = clients.local_addr()?;
        let rdma_clients = RdmaDoors::of_data_server(&config.rdma)?;
        let rdma = rdma_clients.addresses();
        let dafs_clients = config.dafs.map(Listener::fresh).transpose()?;
        let dafs = dafs_clients.as_ref().map(|listener| listener.address);
        let failed = |error| StartError::Listen { address: config.control, error };
        let control = listen::fresh(config.control)?;
        control.set_nonblocking(false).map_err(failed)?;
        // Whoever starts it hears now what is in the way, and not the metadata server when it comes.
        drop(rdma_clients.adapters(&config.general, &connections, 0, 1)?);
        let metrics_port = config.general.metrics_listen.map(MetricsPort::listen).transpose()?;
        let metrics = metrics_port.as_ref().map(TcpListener::local_addr).transpose()?;
        let random = Random::draw()?;
        let write_verifier = Arc::new(WriteVerifier::new(random.write_verifier));
        let (pool, door) = (Arc::new(ThreadPool::new()), Arc::new(Mutex::new(None)));
        let changed = write_verifier.clone();
        let directory = config.directory.clone();
        let sockets =
            Sockets { clients, rdma: rdma_clients, dafs: dafs_clients, metrics: metrics_port };
        let mut opener = Opener {
            config,
            connections,
            sockets: Some(sockets),
            pool: pool.clone(),
            write_verifier,
            door: door.clone(),
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
        Ok(Self { node, nfs, rdma, dafs, metrics, door, pool })
    }

    /// Where the metadata server connects.
    pub fn control_address(&self) -> SocketAddr {
        self.node.address()
    }

    /// Where clients connect.
    pub fn nfs_address(&self) -> SocketAddr {
        self.nfs
    }

    /// Where clients connect over RDMA.
    pub fn rdma_addresses(&self) -> &[SocketAddr] {
        &self.rdma
    }

    /// Where clients connect that speak DAFS.
    pub fn dafs_address(&self) -> Option<SocketAddr> {
        self.dafs
    }

    /// Where Prometheus asks, if anywhere.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics
    }

    /// Lets nobody in any more, and waits for the threads.
    pub fn stop(self) {
        let Self { node, door, pool, .. } = self;
        drop(node);
        drop(door.lock().unwrap_or_else(PoisonError::into_inner).take());
        if !pool.finish(STOP_TIME) {
            tracing::warn!("blocking calls are still under way after {STOP_TIME:?}");
        }
    }
}

/// Where others come in.
struct Sockets {
    clients: TcpListener,
    rdma: RdmaDoors,
    dafs: Option<Listener>,
    metrics: Option<TcpListener>,
}

/// Opens the door when the directory is known.
struct Opener {
    config: DataServerConfig,
    connections: Arc<Connections>,
    /// Until they are used. What is next to the directory may have to be waited for before.
    sockets: Option<Sockets>,
    pool: Arc<ThreadPool>,
    write_verifier: Arc<WriteVerifier>,
    door: Arc<Mutex<Option<Running>>>,
}

impl Opener {
    fn run(&mut self, opened: Opened, judge: Judge) -> Result<Answering, StartError> {
        let (running, answering) = self.open(opened, judge)?;
        *self.door.lock().unwrap_or_else(PoisonError::into_inner) = Some(running);
        Ok(answering)
    }

    /// Opens what is served.
    fn serve(&self, opened: &Opened, judge: Judge) -> Result<Served, StartError> {
        let Opened { node, component_secret: secret, .. } = opened;
        let Some(engine) = &self.config.engine else {
            let component_fs = Export::fs_of(&component_store_fs(secret), "");
            let way = Arc::new(judge.clone());
            let files = ComponentStore::new(node.clone(), *secret, component_fs, way);
            let states = Far { judge, secret: *secret, component_fs };
            let (files, states) = (Arc::new(files), Arc::new(states));
            return Ok(Served { answering: node.clone(), files, states });
        };
        let secret = ExportSecret::from_bytes(*secret);
        match engine.clone() {
            EngineConfig::Ceph(ceph) => self.serve_ceph(ceph, secret, node, judge),
            EngineConfig::Gluster(brick) => self.serve_brick(brick, secret, node, judge),
        }
    }

    fn serve_ceph(
        &self,
        ceph: OsdConfig,
        data_secret: ExportSecret,
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
            data_secret,
            number: own.number(),
            addresses: own.addresses(),
        });
        let failed = |error| StartError::Osds { osds: ceph.osds, error };
        let node = Arc::new(node.map_err(failed)?);
        let changed = self.write_verifier.clone();
        node.data().tell_of_lost_data(Box::new(move || changed.change()));
        let named = node.clone();
        let component = Box::new(move |file: &FileId| named.component(file));
        let (files, states) = (node.data().clone(), Arc::new(FarEngine { judge, component }));
        Ok(Served { answering: node, files, states })
    }

    fn serve_brick(
        &self,
        BrickConfig { volume, servers, brick }: BrickConfig,
        data_secret: ExportSecret,
        own: &DirectoryNode,
        judge: Judge,
    ) -> Result<Served, StartError> {
        let failed = |error| StartError::Brick { brick: brick.clone(), error };
        let node = GlusterNode::open(&GlusterNodeOptions {
            volume,
            servers,
            brick: brick.clone(),
            data_secret,
            number: own.number(),
            addresses: own.addresses(),
        });
        let node = Arc::new(node.map_err(failed)?);
        let changed = self.write_verifier.clone();
        node.data().tell_of_lost_data(Box::new(move || changed.change()));
        let named = node.clone();
        let component = Box::new(move |file: &FileId| named.component(file));
        let (files, states) = (node.data().clone(), Arc::new(FarEngine { judge, component }));
        Ok(Served { answering: node, files, states })
    }

    fn open(&mut self, opened: Opened, judge: Judge) -> Result<(Running, Answering), StartError> {
        let Served { answering: node, files, states } = self.serve(&opened, judge)?;
        let sockets = self.sockets.take().ok_or(StartError::DoorLost)?;
        let Sockets { clients, rdma, dafs, metrics } = sockets;
        // The door holds the judge, and that whoever has this: the door is not to be held by it.
        let running = Arc::downgrade(&self.door);
        let told = move || {
            let running = running.upgrade()?;
            let running = running.lock().unwrap_or_else(PoisonError::into_inner);
            Some(running.as_ref()?.door.counters().usage().now())
        };
        let counters = Box::new(move || told().unwrap_or_default());
        let Opened { node: own, store, .. } = opened;
        let number = own.number();
        let mut identity = store;
        identity[..4].iter_mut().zip(number.to_be_bytes()).for_each(|(own, byte)| *own ^= byte);
        let parts = DataDoor {
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
        let door = DataServer::start(general, &self.connections, pool, write_verifier, parts)?;
        let answered = metrics.map(|port| MetricsPort::start(port, collector(&door)));
        let metrics = answered.transpose()?;
        if let Some(port) = &metrics {
            tracing::info!("metrics at http://{}/metrics", port.address);
        }
        tracing::info!(number, "clients are let in");
        Ok((Running { _metrics: metrics, door }, Answering { node, counters }))
    }
}

fn collector(door: &DataServer) -> ServerCollector {
    let counters: Vec<DataCounters> = vec![door.counters()];
    let nodes = counters.clone();
    let (gauges, nodes) = (Box::new(move || gauges(&counters)), Box::new(move || by_node(&nodes)));
    ServerCollector { service: door.service(), name: operation_name, gauges, nodes }
}

/// What a data server serves.
struct Served {
    /// Who answers the metadata server.
    answering: Arc<dyn Node>,
    files: Arc<dyn DataFiles>,
    states: Arc<dyn ForeignStates>,
}

/// What the handle of a file on the wire says after the id of its file system.
fn file_of(handle: &[u8]) -> Result<FileId, StoreError> {
    let file = handle.get(size_of::<FsId>()..).and_then(|file| file.try_into().ok());
    file.map(FileId).ok_or(StoreError::BadHandle)
}

/// What a file is called between servers.
type Named = Box<dyn Fn(&FileId) -> Result<ComponentId, StoreError> + Send + Sync>;

/// The metadata server behind the control connection, for what another file system keeps.
struct FarEngine {
    judge: Judge,
    component: Named,
}

impl ForeignStates for FarEngine {
    fn check(&self, wanted: &ForeignUse<'_>) -> dafs_service::Result<Option<Duration>> {
        let ForeignUse { owner, identity, component: handle, state, write, .. } = *wanted;
        let component = (self.component)(&file_of(handle)?)?;
        self.judge.check((owner, identity), (&component, handle), state, write)
    }
}

/// The metadata server behind the control connection.
struct Far {
    judge: Judge,
    secret: [u8; 16],
    component_fs: FsId,
}

impl ForeignStates for Far {
    fn check(&self, wanted: &ForeignUse<'_>) -> dafs_service::Result<Option<Duration>> {
        let ForeignUse { owner, identity, component: handle, state, write, .. } = *wanted;
        let component = ComponentHandle::open(&file_of(handle)?, &self.component_fs, &self.secret)?;
        self.judge.check((owner, identity), (&component.component, handle), state, write)
    }

    fn size(&self, component: &FileId) -> Result<u64, StoreError> {
        let handle = ComponentHandle::open(component, &self.component_fs, &self.secret)?;
        self.judge.size(&handle.component)
    }
}
