//! Exports of CephFS, and the data servers that give clients access to its storage daemons.

use super::engine_servers::{DataSockets, EngineServers};
use super::rdma::RdmaListeners;
use super::stores::OpenedStore;
use super::{StartError, listen, state};
use crate::config::{CephFsConfig, DataServerPlace, ExportConfig};
use dafs_cephfs::{CephOptions, CephStore, DataPlace, DataServerOptions, OpenError, in_network};
use dafs_service::Export;
use dafs_store::ExportSecret;
use std::path::Path;

/// The number of mounts of one export, so that operations on different files do not all compete for
/// one lock.
const MOUNTS: usize = 2;

/// Opens the store of an export, and the sockets of its data servers. Waits for the cluster for a
/// limited time.
pub(super) fn open(
    export: &ExportConfig,
    ceph: &CephFsConfig,
    secret: ExportSecret,
    state: &Path,
) -> Result<OpenedStore, StartError> {
    let mut data_servers = Vec::new();
    let cluster_secret = ceph.cluster_secret.as_deref();
    let mut servers = EngineServers::new(export, cluster_secret, &secret, state)?;
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
                let sockets = DataSockets { listener, rdma, apart: network.is_some() };
                let addresses = servers.add_local(sockets, format!("OSDs {daemons:?}"))?;
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
        data_keys: servers.data_keys(),
        told: ceph.told,
        data_fs: |fs| Export::fs_of(fs, ""),
    });
    let (name, root) = (export.name.clone(), ceph.root.clone());
    let store = store.map_err(|error| StartError::CephFs { name, root, error })?;
    let files = store.data_servers();
    files.iter().for_each(|files| files.tell_of_lost_data(servers.on_lost_data()));
    Ok(servers.with_store(store, files))
}
