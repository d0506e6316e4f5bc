//! Exports of GlusterFS, and the data servers that give clients access to its bricks.

use super::data::{DataServerParts, DataServers, NodeUsage};
use super::engine_servers::EngineServers;
use super::local_metadata::LocalMetadata;
use super::nfs_rdma::RdmaListeners;
use super::{StartError, listen, striped};
use crate::admin::NodeReport;
use crate::config::{DataServerPlace, ExportConfig, GlusterConfig};
use dafs_gluster::{DataPlace, DataServerOptions, GlusterData, GlusterOptions, GlusterStore};
use dafs_mem::Mutex;
use dafs_service::{Admits, Export, Service, WriteVerifier};
use dafs_store::{DataFiles, ExportSecret, NfsAddresses, Store};
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;

/// An open store, with the state for its data servers.
pub(super) struct Gluster {
    store: Arc<GlusterStore>,
    secret: ExportSecret,
    admits: Admits,
    /// The sockets of the data servers of this process.
    listeners: Mutex<Vec<(TcpListener, RdmaListeners)>>,
    servers: EngineServers,
    name: String,
}

/// Opens the store of an export, and the sockets of its data servers. Waits for the bricks for a
/// limited time.
pub(super) fn open(
    export: &ExportConfig,
    gluster: &GlusterConfig,
    secret: ExportSecret,
    state: &Path,
) -> Result<Arc<Gluster>, StartError> {
    let (mut listeners, mut data_servers) = (Vec::new(), Vec::new());
    let cluster_secret = gluster.cluster_secret.as_deref();
    let mut servers = EngineServers::new(&export.name, cluster_secret, &secret, state)?;
    for server in &gluster.data_servers {
        let brick = server.brick.clone();
        let place = match &server.place {
            DataServerPlace::Local(address, rdma) => {
                let (listener, rdma) =
                    (listen::fresh(*address)?, RdmaListeners::of_data_server(rdma)?);
                let address = listener.local_addr()?;
                let addresses = NfsAddresses { tcp: vec![address], rdma: rdma.addresses() };
                listeners.push((listener, rdma));
                servers.add_here(address, brick.clone());
                DataPlace::Here(addresses)
            }
            DataServerPlace::Remote { number, control } => {
                DataPlace::Far(servers.connect(*number, control, brick.clone())?)
            }
        };
        data_servers.push(DataServerOptions { place, brick });
    }
    let GlusterConfig { volume, servers: addresses, root, .. } = gluster.clone();
    let store = GlusterStore::open(&GlusterOptions {
        volume: volume.clone(),
        servers: addresses,
        root: root.clone(),
        secret,
        data_servers,
        data_secret: servers.data_secret(),
        data_fs: |fs| Export::fs_of(fs, ""),
    });
    let name = export.name.clone();
    let store = store.map_err(|error| StartError::Gluster { name, volume, root, error })?;
    let (admits, listeners) = (export.options.admits.clone(), Mutex::new(listeners));
    let (store, name) = (Arc::new(store), export.name.clone());
    Ok(Arc::new(Gluster { store, secret, admits, listeners, servers, name }))
}

impl Gluster {
    pub(super) fn store(&self) -> Arc<dyn Store> {
        self.store.clone()
    }
}

impl DataServers for Gluster {
    fn nodes(&self, export: &str) -> Vec<NodeReport> {
        self.servers.report(export)
    }

    fn count_by(&self, number: u32, usage: NodeUsage) {
        self.servers.count_by(number, usage);
    }

    fn tell_of_lost_data(&self, verifier: &Arc<WriteVerifier>) {
        for files in self.store.data_servers() {
            let verifier = verifier.clone();
            files.tell_of_lost_data(Box::new(move || verifier.change()));
        }
    }

    /// Returns the front ends of this process's data servers, and connects the other data servers
    /// to the metadata server.
    fn take_parts(&self, service: &Arc<Service>) -> Vec<DataServerParts> {
        let states = Arc::new(LocalMetadata::new(service));
        self.servers.answer_by(&states);
        let mut listeners = self.listeners.lock();
        let opened = (0_u32..).zip(self.servers.numbers_here()).zip(listeners.drain(..));
        type Opened = (((u32, u32), (TcpListener, RdmaListeners)), Arc<GlusterData>);
        let open = |(((place, number), (listener, rdma)), files): Opened| {
            let of = [&files.fs_id().0[..], &place.to_be_bytes()].concat();
            DataServerParts {
                export: Some(self.name.clone()),
                listener,
                rdma,
                dafs: None,
                number,
                files,
                pool: None,
                states: states.clone(),
                admits: self.admits.clone(),
                identity: striped::derive(&self.secret, b"data server", &of),
            }
        };
        opened.zip(self.store.data_servers()).map(open).collect()
    }
}
