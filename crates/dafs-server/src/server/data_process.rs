//! `dafs serve --role data`: a process that serves the components of one directory, for a metadata
//! server that connects to it.
//!
//! Invariants
//! * Clients are let in when it is known which node the directory is, and not before.

use super::data::{DataCounters, DataDoor, DataServer, gauges};
use super::listen::Listener;
use super::{Random, StartError, listen, operation_name, raise_descriptor_limit};
use crate::config::Config;
use crate::limits::STOP_TIME;
use crate::metrics::{MetricsPort, ServerCollector};
use crate::pool::ThreadPool;
use dafs_cluster::{ClusterSecret, DataNode, DataNodeConfig, Judge, Opened};
use dafs_nfs::{ForeignStates, ForeignUse};
use dafs_service::{Admits, Export, WriteVerifier};
use dafs_store::striped::{ComponentHandle, ComponentStore, Node as _, component_store_fs};
use dafs_store::{FileId, FsId, StoreError};
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
    /// The file with the secret of the cluster.
    pub cluster_secret: PathBuf,
    /// Where the metadata server connects.
    pub control: SocketAddr,
    /// Where clients connect. The metadata server tells them, so it has to be the one address that they
    /// can reach.
    pub nfs: SocketAddr,
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
    dafs: Option<SocketAddr>,
    door: Arc<Mutex<Option<Running>>>,
    pool: Arc<ThreadPool>,
}

struct Running {
    /// First: it looks at the door.
    _metrics: Option<MetricsPort>,
    _door: DataServer,
}

impl DataProcess {
    /// Serves a directory as soon as a metadata server says which node it is, or at once if that is
    /// known.
    ///
    /// # Errors
    /// What stands in the way, and what to do about it.
    pub fn start(config: DataServerConfig) -> Result<Self, StartError> {
        raise_descriptor_limit();
        let secret = Arc::new(ClusterSecret::load(&config.cluster_secret)?);
        let clients = listen::fresh(config.nfs)?;
        let nfs = clients.local_addr()?;
        let dafs_clients = config.dafs.map(Listener::fresh).transpose()?;
        let dafs = dafs_clients.as_ref().map(|listener| listener.address);
        let failed = |error| StartError::Listen { address: config.control, error };
        let control = listen::fresh(config.control)?;
        control.set_nonblocking(false).map_err(failed)?;
        let random = Random::draw()?;
        let write_verifier = Arc::new(WriteVerifier::new(random.write_verifier));
        let (pool, door) = (Arc::new(ThreadPool::new()), Arc::new(Mutex::new(None)));
        let changed = write_verifier.clone();
        let directory = config.directory.clone();
        let opener = Opener {
            config,
            clients,
            dafs_clients,
            pool: pool.clone(),
            write_verifier,
            door: door.clone(),
        };
        let node = DataNode::start(DataNodeConfig {
            directory,
            secret,
            listener: control,
            addresses: vec![nfs],
            dafs_addresses: dafs.into_iter().collect(),
            opened: Box::new(move |opened, judge| {
                opener.run(opened, judge).map_err(|error| io::Error::other(error.to_string()))
            }),
            lost: Box::new(move || changed.change()),
        })?;
        Ok(Self { node, nfs, dafs, door, pool })
    }

    /// Where the metadata server connects.
    pub fn control_address(&self) -> SocketAddr {
        self.node.address()
    }

    /// Where clients connect.
    pub fn nfs_address(&self) -> SocketAddr {
        self.nfs
    }

    /// Where clients connect that speak DAFS.
    pub fn dafs_address(&self) -> Option<SocketAddr> {
        self.dafs
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

/// Opens the door when the directory is known.
struct Opener {
    config: DataServerConfig,
    clients: TcpListener,
    dafs_clients: Option<Listener>,
    pool: Arc<ThreadPool>,
    write_verifier: Arc<WriteVerifier>,
    door: Arc<Mutex<Option<Running>>>,
}

impl Opener {
    fn run(self, opened: Opened, judge: Judge) -> Result<(), StartError> {
        let door = self.door.clone();
        let running = self.open(opened, judge)?;
        *door.lock().unwrap_or_else(PoisonError::into_inner) = Some(running);
        Ok(())
    }

    fn open(self, opened: Opened, judge: Judge) -> Result<Running, StartError> {
        let Opened { node, store, component_secret: secret } = opened;
        let number = node.number();
        let component_fs = Export::fs_of(&component_store_fs(&secret), "");
        let way = Arc::new(judge.clone());
        let files = Arc::new(ComponentStore::new(node, secret, component_fs, Some(way)));
        let states = Far { judge, secret, component_fs };
        let mut identity = store;
        identity[..4].iter_mut().zip(number.to_be_bytes()).for_each(|(own, byte)| *own ^= byte);
        let parts = DataDoor {
            number,
            listener: self.clients,
            dafs: self.dafs_clients,
            files,
            pool: None,
            states: Arc::new(states),
            admits: self.config.admits.clone(),
            identity,
        };
        let general = &self.config.general;
        let door = DataServer::start(general, self.pool, self.write_verifier, parts)?;
        let metrics = general.metrics_listen.map(|address| {
            MetricsPort::start(address, collector(&door))
                .map_err(|error| StartError::Metrics { address, error })
        });
        let metrics = metrics.transpose()?;
        if let Some(port) = &metrics {
            tracing::info!("metrics at http://{}/metrics", port.address);
        }
        tracing::info!(number, "clients are let in");
        Ok(Running { _metrics: metrics, _door: door })
    }
}

fn collector(door: &DataServer) -> ServerCollector {
    let counters: Vec<DataCounters> = vec![door.counters()];
    let gauges = Box::new(move || gauges(&counters));
    ServerCollector { service: door.service(), name: operation_name, gauges }
}

/// The metadata server behind the control connection.
struct Far {
    judge: Judge,
    secret: [u8; 16],
    component_fs: FsId,
}

impl ForeignStates for Far {
    fn check(&self, wanted: &ForeignUse<'_>) -> dafs_service::Result<Option<Duration>> {
        let ForeignUse { owner, identity, component, state, write, .. } = *wanted;
        self.judge.check((owner, identity), component, state, write)
    }

    fn size(&self, component: &FileId) -> Result<u64, StoreError> {
        let handle = ComponentHandle::open(component, &self.component_fs, &self.secret)?;
        self.judge.size(&handle.component)
    }
}
