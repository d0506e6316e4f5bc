//! Data servers of a file system that keeps its files itself: those of this process, and those in
//! processes of their own.

use super::StartError;
use super::data::{DataServerParts, DataServers, NodeUsage};
use super::local_metadata::LocalMetadata;
use super::node_probes::{NodeProbes, silent_text};
use super::rdma::RdmaListeners;
use super::stores::OpenedStore;
use super::striped::{Joining, derive};
use crate::admin::NodeReport;
use crate::config::ExportConfig;
use dafs_cluster::{ClusterSecret, NodeCounters, NodeStatus, RemoteNode};
use dafs_engine::ThreadPool;
use dafs_mem::Mutex;
use dafs_service::{Admits, Pool, Service, WriteVerifier};
use dafs_store::node::Node as _;
use dafs_store::{DataFiles, DataKeys, ExportSecret, NfsAddresses, Store};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// The data servers of one export.
pub(super) struct EngineServers {
    name: String,
    secret: ExportSecret,
    admits: Admits,
    joining: Joining,
    /// The keys of the names by which data servers of other processes know files.
    data_keys: Option<DataKeys>,
    /// The data servers of other processes, each with its local part for administrators.
    nodes: Vec<(Arc<RemoteNode>, String)>,
    /// The questions of administrators to them.
    probes: NodeProbes<NodeCounters>,
    /// The data servers of this process, in the order of the configuration.
    local: Vec<LocalServer>,
    /// The files at each of them.
    files: Vec<Arc<dyn DataFiles>>,
    /// Their sockets, until they start.
    sockets: Mutex<Vec<DataSockets>>,
    /// The write verifier that changes when unstable data is lost.
    verifier: Arc<OnceLock<Arc<WriteVerifier>>>,
}

/// The sockets of a data server of this process.
pub(super) struct DataSockets {
    pub(super) listener: TcpListener,
    pub(super) rdma: RdmaListeners,
    /// True if it has a network namespace of its own.
    pub(super) apart: bool,
}

/// A data server of this process.
struct LocalServer {
    address: SocketAddr,
    /// Its local part of the file system.
    beside: String,
    /// Set when it runs.
    usage: OnceLock<NodeUsage>,
}

impl EngineServers {
    /// Makes the empty set of an export.
    pub(super) fn new(
        export: &ExportConfig,
        cluster_secret: Option<&Path>,
        secret: &ExportSecret,
        state: &Path,
    ) -> Result<Self, StartError> {
        let cluster = cluster_secret.map(ClusterSecret::load).transpose()?.map(Arc::new);
        let store = derive(secret, b"engine", export.name.as_bytes());
        let data_keys = cluster.as_ref().map(|cluster| cluster.data_keys(&store));
        let joining = Joining::new(cluster, store, state, false);
        Ok(Self {
            name: export.name.clone(),
            secret: *secret,
            admits: export.options.admits.clone(),
            joining,
            data_keys,
            nodes: Vec::new(),
            probes: NodeProbes::default(),
            local: Vec::new(),
            files: Vec::new(),
            sockets: Mutex::default(),
            verifier: Arc::default(),
        })
    }

    /// Returns the keys of the names by which they know files.
    pub(super) fn data_keys(&self) -> Option<DataKeys> {
        self.data_keys.clone()
    }

    /// Connects to a data server, now and whenever it comes back.
    pub(super) fn connect(
        &mut self,
        number: u32,
        control: &str,
        beside: String,
    ) -> Result<Arc<RemoteNode>, StartError> {
        let node = self.joining.connect(number, control)?;
        self.nodes.push((node.clone(), beside));
        Ok(node)
    }

    /// Adds a data server of this process. Returns its addresses.
    pub(super) fn add_local(
        &mut self,
        sockets: DataSockets,
        beside: String,
    ) -> Result<NfsAddresses, StartError> {
        let address = sockets.listener.local_addr()?;
        let addresses = NfsAddresses { tcp: vec![address], rdma: sockets.rdma.addresses() };
        self.local.push(LocalServer { address, beside, usage: OnceLock::new() });
        self.sockets.lock().push(sockets);
        Ok(addresses)
    }

    /// Returns the call by which a data server of this process reports that unstable data is lost.
    pub(super) fn on_lost_data(&self) -> Box<dyn Fn() + Send + Sync> {
        let verifier = self.verifier.clone();
        Box::new(move || verifier.get().into_iter().for_each(|verifier| verifier.change()))
    }

    /// Returns the open store. `files` are those at each data server of this process.
    pub(super) fn with_store<D: DataFiles + 'static>(
        mut self,
        store: impl Store + 'static,
        files: Vec<Arc<D>>,
    ) -> OpenedStore {
        self.files = files.into_iter().map(|files| files as Arc<dyn DataFiles>).collect();
        (Arc::new(store), Some(Arc::new(self)))
    }

    /// Returns the numbers of the data servers of this process. They have none in the
    /// configuration, so they get unused ones.
    fn local_numbers(&self) -> Vec<u32> {
        let is_free = |number: &u32| self.nodes.iter().all(|(node, _)| node.number() != *number);
        (1..).filter(is_free).take(self.local.len()).collect()
    }
}

impl DataServers for EngineServers {
    /// Returns the front ends of this process's data servers, and connects the other data servers
    /// to the metadata server.
    fn take_parts(&self, service: &Arc<Service>) -> Vec<DataServerParts> {
        let states = Arc::new(LocalMetadata::new(service));
        self.nodes.iter().for_each(|(node, _)| node.answer_by(states.clone()));
        let sockets = std::mem::take(&mut *self.sockets.lock());
        let opened = (0_u32..).zip(self.local_numbers()).zip(sockets).zip(&self.files);
        let parts = opened.map(|(((place, number), sockets), files)| {
            let DataSockets { listener, rdma, apart } = sockets;
            let of = [&files.fs_id().0[..], &place.to_be_bytes()].concat();
            DataServerParts {
                export: Some(self.name.clone()),
                listener,
                rdma,
                dafs: None,
                number,
                files: files.clone(),
                // As many threads as a process on a machine of its own would have.
                pool: apart.then(|| Arc::new(ThreadPool::new()) as Arc<dyn Pool>),
                states: states.clone(),
                admits: self.admits.clone(),
                identity: derive(&self.secret, b"data server", &of),
            }
        });
        parts.collect()
    }

    fn tell_of_lost_data(&self, verifier: &Arc<WriteVerifier>) {
        let _first = self.verifier.set(verifier.clone());
    }

    fn follow_secret(&self, read: &ClusterSecret, service: &Service) -> bool {
        let keys = self.data_keys.as_ref();
        let changed = keys.is_some_and(|keys| self.joining.follow_secret(read, keys, service));
        self.nodes.iter().for_each(|(node, _)| node.follow_secret());
        changed
    }

    fn count_by(&self, number: u32, usage: NodeUsage) {
        let at = self.local_numbers().into_iter().position(|known| known == number);
        if let Some(server) = at.and_then(|at| self.local.get(at)) {
            let _ = server.usage.set(usage);
        }
    }

    fn nodes(&self, export: &str) -> Vec<NodeReport> {
        let local = self.local_numbers().into_iter().zip(&self.local).map(|(number, server)| {
            let status = NodeStatus { connected: true, trouble: String::new() };
            let counters = server.usage.get().map(NodeUsage::now).unwrap_or_default();
            report(export, (number, server.beside.clone()), vec![server.address], status, counters)
        });
        let ask = |(node, _): &(Arc<RemoteNode>, String)| {
            let node = node.clone();
            (node.number(), move || node.counters())
        };
        let told = self.probes.ask(self.nodes.iter().map(ask));
        let remote = self.nodes.iter().map(|(node, beside)| {
            let place = format!("{} ({beside})", node.control());
            let probed = told.get(&node.number());
            let silent_for = probed.and_then(|probed| probed.silent_for);
            let counters = probed.and_then(|probed| probed.answer).unwrap_or_default();
            let status = match silent_for {
                Some(time) => NodeStatus { connected: false, trouble: silent_text(time) },
                None => node.status(),
            };
            let report = report(export, (node.number(), place), node.addresses(), status, counters);
            NodeReport { silent: silent_for.is_some(), ..report }
        });
        local.chain(remote).collect()
    }
}

fn report(
    export: &str,
    (number, place): (u32, String),
    addresses: Vec<SocketAddr>,
    NodeStatus { connected, trouble }: NodeStatus,
    counters: NodeCounters,
) -> NodeReport {
    NodeReport {
        export: export.to_owned(),
        number,
        place,
        addresses,
        connected,
        silent: false,
        trouble,
        // The file system has its own tools for the rest.
        total_bytes: 0,
        available_bytes: 0,
        leaving: false,
        empty: false,
        moved_files: 0,
        moved_bytes: 0,
        left_files: None,
        left_bytes: None,
        files_to_mend: Some(0),
        read_bytes: counters.read_bytes,
        written_bytes: counters.written_bytes,
        indirect_bytes: counters.indirect_bytes,
    }
}
