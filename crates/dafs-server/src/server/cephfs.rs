//! Exports of CephFS, and the data servers that let clients reach its storage daemons.

use super::data::{DataDoor, Spread};
use super::far::FarServers;
use super::here::Here;
use super::{StartError, listen, state, striped};
use crate::admin::NodeReport;
use crate::config::{CephFsConfig, DataServerPlace, ExportConfig};
use crate::pool::{Pool, ThreadPool};
use dafs_cephfs::{
    CephData, CephOptions, CephStore, DataPlace, DataServerOptions, OpenError, in_network,
};
use dafs_service::{Admits, Export, Service, WriteVerifier};
use dafs_store::{DataFiles, ExportSecret, Store};
use std::net::TcpListener;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// Mounts of one export, so that not all that goes on with different files meets at one lock.
const MOUNTS: usize = 2;

/// An open store, with what its data servers need.
pub(super) struct Ceph {
    store: Arc<CephStore>,
    secret: ExportSecret,
    admits: Admits,
    /// Those of the data servers of this process, and whether each is in a network of its own.
    listeners: Mutex<Vec<(TcpListener, bool)>>,
    far: FarServers,
}

/// Opens the store of an export, and the sockets of its data servers. Waits for the cluster for a
/// while.
pub(super) fn open(
    export: &ExportConfig,
    ceph: &CephFsConfig,
    secret: ExportSecret,
    state: &Path,
) -> Result<Arc<Ceph>, StartError> {
    let (mut listeners, mut data_servers) = (Vec::new(), Vec::new());
    let cluster_secret = ceph.cluster_secret.as_deref();
    let mut far = FarServers::new(&export.name, cluster_secret, &secret, state)?;
    for server in &ceph.data_servers {
        let daemons = server.osds.clone();
        let place = match &server.place {
            DataServerPlace::Here(address) => {
                let network = server.network_namespace.clone();
                let listener = in_network(network.as_deref(), || listen::fresh(*address));
                let listener = listener.map_err(|error| {
                    let path = network.clone().unwrap_or_default();
                    let (name, root) = (export.name.clone(), ceph.root.clone());
                    StartError::CephFs { name, root, error: OpenError::Network { path, error } }
                })??;
                let address = listener.local_addr()?;
                listeners.push((listener, network.is_some()));
                DataPlace::Here { address, network }
            }
            DataServerPlace::Far { number, control } => {
                DataPlace::Far(far.connect(*number, control, format!("OSDs {daemons:?}"))?)
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
        // Whoever has the same name takes over what the other holds, as this server does after a crash.
        identity: format!("{}-{}", state::server_name(&secret), export.name),
        secret,
        mounts: MOUNTS,
        data_servers,
        data_secret: far.data_secret(),
        told: ceph.told,
        data_fs: |fs| Export::fs_of(fs, ""),
    });
    let (name, root) = (export.name.clone(), ceph.root.clone());
    let store = Arc::new(store.map_err(|error| StartError::CephFs { name, root, error })?);
    let (admits, listeners) = (export.options.admits.clone(), Mutex::new(listeners));
    Ok(Arc::new(Ceph { store, secret, admits, listeners, far }))
}

impl Ceph {
    pub(super) fn store(&self) -> Arc<dyn Store> {
        self.store.clone()
    }
}

impl Spread for Ceph {
    fn nodes(&self, export: &str) -> Vec<NodeReport> {
        self.far.report(export)
    }

    fn tell_of_lost_data(&self, verifier: &Arc<WriteVerifier>) {
        for files in self.store.data_servers() {
            let verifier = verifier.clone();
            files.tell_of_lost_data(Box::new(move || verifier.change()));
        }
    }

    /// Those of this process; to those of others it is said who answers them.
    fn take_doors(&self, service: &Arc<Service>) -> Vec<DataDoor> {
        let states = Arc::new(Here::new(service));
        self.far.answer_by(&states);
        let mut listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        let opened = (0_u32..).zip(listeners.drain(..)).zip(self.store.data_servers());
        let open =
            |((number, (listener, apart)), files): ((u32, (TcpListener, bool)), Arc<CephData>)| {
                let of = [&files.fs_id().0[..], &number.to_be_bytes()].concat();
                DataDoor {
                    listener,
                    dafs: None,
                    number,
                    files,
                    // As long as it would have if it were a process on a machine of its own.
                    pool: apart.then(|| Arc::new(ThreadPool::new()) as Arc<dyn Pool>),
                    states: states.clone(),
                    admits: self.admits.clone(),
                    identity: striped::derive(&self.secret, b"data server", &of),
                }
            };
        opened.map(open).collect()
    }
}
