//! Data servers in processes of their own, of a file system that keeps its files itself.

use super::StartError;
use super::here::Here;
use super::striped::{Joining, derive};
use crate::admin::NodeReport;
use dafs_cluster::{ClusterSecret, RemoteNode};
use dafs_store::ExportSecret;
use dafs_store::striped::Node as _;
use std::path::Path;
use std::sync::Arc;

/// Those of one export.
pub(super) struct FarServers {
    joining: Joining,
    data_secret: Option<ExportSecret>,
    /// Each, and what it is next to, for administrators.
    nodes: Vec<(Arc<RemoteNode>, String)>,
}

impl FarServers {
    /// Those of the export `name`, of which there are none yet.
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
        let joining = Joining::new(cluster, store, state);
        Ok(Self { joining, data_secret, nodes: Vec::new() })
    }

    /// The key of the names by which they know files.
    pub(super) fn data_secret(&self) -> Option<ExportSecret> {
        self.data_secret
    }

    /// Connects to one, now and whenever it comes back.
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

    /// Says who answers them.
    pub(super) fn answer_by(&self, here: &Arc<Here>) {
        self.nodes.iter().for_each(|(node, _)| node.answer_by(here.clone()));
    }

    /// What administrators are told of them.
    pub(super) fn report(&self, export: &str) -> Vec<NodeReport> {
        let report = |(node, beside): &(Arc<RemoteNode>, String)| {
            let status = node.status();
            NodeReport {
                export: export.to_owned(),
                number: node.number(),
                place: format!("{} ({beside})", node.control()),
                addresses: node.addresses(),
                connected: status.connected,
                trouble: status.trouble,
                // The file system has its own tools for the rest.
                total_bytes: 0,
                available_bytes: 0,
                leaving: false,
                empty: false,
                moved_files: 0,
                moved_bytes: 0,
                files_to_mend: 0,
            }
        };
        self.nodes.iter().map(report).collect()
    }
}
