//! Exports of CephFS, and the data servers that give clients access to its storage daemons.

use super::data::{DataServerParts, DataServers, NodeUsage};
use super::engine_servers::EngineServers;
use super::local_metadata::LocalMetadata;
use super::nfs_rdma::RdmaListeners;
use super::{StartError, listen, state, striped};
use crate::admin::NodeReport;
use crate::config::{CephFsConfig, DataServerPlace, ExportConfig};
use dafs_cephfs::{
    CephData, CephOptions, CephStore, DataPlace, DataServerOptions, OpenError, in_network,
};
use dafs_engine::ThreadPool;
use dafs_mem::Mutex;
use dafs_service::{Admits, Export, Pool, Service, WriteVerifier};
use dafs_store::{DataFiles, ExportSecret, NfsAddresses, Store};
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;

/// The number of mounts of one export, so that operations on different files do not all compete for
/// one lock.
const MOUNTS: usize = 2;

/// The sockets of a data server of this process, and true if it has a network namespace of its own.
type Opened = (TcpListener, RdmaListeners, bool);

/// An open store, with the state for its data servers.
pub(super) struct Ceph {
    store: Arc<CephStore>,
    secret: ExportSecret,
    admits: Admits,
    /// The sockets of the data servers of this process.
    listeners: Mutex<Vec<Opened>>,
    servers: EngineServers,
    name: String,
}

/// Opens the store of an export, and the sockets of its data servers. Waits for the cluster for a
/// limited time.
pub(super) fn open(
    export: &ExportConfig,
    ceph: &CephFsConfig,
    secret: ExportSecret,
    state: &Path,
) -> Result<Arc<Ceph>, StartError> {
    let (mut listeners, mut data_servers) = (Vec::new(), Vec::new());
    let cluster_secret = ceph.cluster_secret.as_deref();
    let mut servers = EngineServers::new(&export.name, cluster_secret, &secret, state)?;
    for server in &ceph.data_servers {
        let daemons = server.osds.clone();
        let place = match &server.place {
            DataServerPlace::Local(address, rdma) => {
                let network = server.network_namespace.clone();
                let opened = in_network(network.as_deref(), || {
                    Ok::<_, StartError>((
                        listen::fresh(*address)?,
                        RdmaListeners::of_data_server(rdma)?,
                    ))
                });
                let opened = opened.map_err(|error| {
                    let path = network.clone().unwrap_or_default();
                    let (name, root) = (export.name.clone(), ceph.root.clone());
                    StartError::CephFs { name, root, error: OpenError::Network { path, error } }
                })??;
                let (listener, rdma) = opened;
                let address = listener.local_addr()?;
                let addresses = NfsAddresses { tcp: vec![address], rdma: rdma.addresses() };
                listeners.push((listener, rdma, network.is_some()));
                servers.add_here(address, format!("OSDs {daemons:?}"));
                DataPlace::Here { addresses, network }
            }
            DataServerPlace::Remote { number, control } => {
                DataPlace::Far(servers.connect(*number, control, format!("OSDs {daemons:?}"))?)
            }
        };
        data_servers.push(DataServerOptions { place, daemons });
    }
    let store = CephStore::open(&CephOptions {
        config: ceph.conf.clone(),
        user: ceph.id.clone(),
        keyring: ceph.keyring.clone(),
        file_system: ceph.fs.clone(),
        root: ceph.root.clone(),
        // A mount with the same name takes over the state of the earlier one, as this server does
        // after a crash.
        identity: format!("{}-{}", state::server_name(&secret), export.name),
        secret,
        mounts: MOUNTS,
        data_servers,
        data_secret: servers.data_secret(),
        told: ceph.told,
        data_fs: |fs| Export::fs_of(fs, ""),
    });
    let (name, root) = (export.name.clone(), ceph.root.clone());
    let store = Arc::new(store.map_err(|error| StartError::CephFs { name, root, error })?);
    let (admits, listeners) = (export.options.admits.clone(), Mutex::new(listeners));
    let name = export.name.clone();
    Ok(Arc::new(Ceph { store, secret, admits, listeners, servers, name }))
}

impl Ceph {
    pub(super) fn store(&self) -> Arc<dyn Store> {
        self.store.clone()
    }
}

impl DataServers for Ceph {
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
        type Numbered = (((u32, u32), Opened), Arc<CephData>);
        let open = |(((place, number), (listener, rdma, apart)), files): Numbered| {
            let of = [&files.fs_id().0[..], &place.to_be_bytes()].concat();
            DataServerParts {
                export: Some(self.name.clone()),
                listener,
                rdma,
                dafs: None,
                number,
                files,
                // As many threads as a process on a machine of its own would have.
                pool: apart.then(|| Arc::new(ThreadPool::new()) as Arc<dyn Pool>),
                states: states.clone(),
                admits: self.admits.clone(),
                identity: striped::derive(&self.secret, b"data server", &of),
            }
        };
        opened.zip(self.store.data_servers()).map(open).collect()
    }
}
