//! Data servers of a file system that keeps its files itself: those of this process, and those in
//! processes of their own.

use super::StartError;
use super::data::NodeUsage;
use super::local_metadata::LocalMetadata;
use super::striped::{Joining, derive};
use crate::admin::NodeReport;
use dafs_cluster::{ClusterSecret, NodeCounters, NodeStatus, RemoteNode};
use dafs_store::ExportSecret;
use dafs_store::node::Node as _;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// The data servers of one export.
pub(super) struct EngineServers {
    joining: Joining,
    data_secret: Option<ExportSecret>,
    /// The data servers of other processes, each with its local part for administrators.
    nodes: Vec<(Arc<RemoteNode>, String)>,
    /// The data servers of this process, in the order of the configuration.
    here: Vec<HereServer>,
}

/// A data server of this process.
struct HereServer {
    address: SocketAddr,
    /// Its local part of the file system.
    beside: String,
    /// Set when it runs.
    usage: OnceLock<NodeUsage>,
}

impl EngineServers {
    /// Makes the empty set of the export `name`.
    pub(super) fn new(
        name: &str,
        cluster_secret: Option<&Path>,
        secret: &ExportSecret,
        state: &Path,
    ) -> Result<Self, StartError> {
        let cluster = cluster_secret.map(ClusterSecret::load).transpose()?.map(Arc::new);
        let store = derive(secret, b"engine", name.as_bytes());
        let data_secret = cluster.as_ref().map(|cluster| cluster.component_secret(&store));
        let data_secret = data_secret.map(ExportSecret::from_bytes);
        let joining = Joining::new(cluster, store, state, false);
        Ok(Self { joining, data_secret, nodes: Vec::new(), here: Vec::new() })
    }

    /// Returns the key of the names by which they know files.
    pub(super) fn data_secret(&self) -> Option<ExportSecret> {
        self.data_secret
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

    /// Adds a data server of this process.
    pub(super) fn add_here(&mut self, address: SocketAddr, beside: String) {
        self.here.push(HereServer { address, beside, usage: OnceLock::new() });
    }

    /// Returns the numbers of the data servers of this process. They have none in the
    /// configuration, so they get unused ones.
    pub(super) fn numbers_here(&self) -> Vec<u32> {
        let is_free = |number: &u32| self.nodes.iter().all(|(node, _)| node.number() != *number);
        (1..).filter(is_free).take(self.here.len()).collect()
    }

    /// Sets the counters of a data server of this process.
    pub(super) fn count_by(&self, number: u32, usage: NodeUsage) {
        let at = self.numbers_here().into_iter().position(|known| known == number);
        if let Some(server) = at.and_then(|at| self.here.get(at)) {
            let _ = server.usage.set(usage);
        }
    }

    /// Sets the metadata server for data servers of other processes.
    pub(super) fn answer_by(&self, metadata: &Arc<LocalMetadata>) {
        self.nodes.iter().for_each(|(node, _)| node.answer_by(metadata.clone()));
    }

    /// Returns the reports on them for administrators.
    pub(super) fn report(&self, export: &str) -> Vec<NodeReport> {
        let here = self.numbers_here().into_iter().zip(&self.here).map(|(number, server)| {
            let status = NodeStatus { connected: true, trouble: String::new() };
            let counters = server.usage.get().map(NodeUsage::now).unwrap_or_default();
            report(export, (number, server.beside.clone()), vec![server.address], status, counters)
        });
        let far = self.nodes.iter().map(|(node, beside)| {
            let place = format!("{} ({beside})", node.control());
            let (status, counters) = (node.status(), node.counters());
            report(export, (node.number(), place), node.addresses(), status, counters)
        });
        here.chain(far).collect()
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
        trouble,
        // The file system has its own tools for the rest.
        total_bytes: 0,
        available_bytes: 0,
        leaving: false,
        empty: false,
        moved_files: 0,
        moved_bytes: 0,
        files_to_mend: 0,
        read_bytes: counters.read_bytes,
        written_bytes: counters.written_bytes,
        indirect_bytes: counters.indirect_bytes,
    }
}
