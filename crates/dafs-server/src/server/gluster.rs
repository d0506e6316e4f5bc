//! Exports of GlusterFS, and the data servers that give clients access to its bricks.

use super::engine_servers::{DataSockets, EngineServers};
use super::rdma::RdmaListeners;
use super::stores::OpenedStore;
use super::{StartError, listen};
use crate::config::{DataServerPlace, ExportConfig, GlusterConfig};
use dafs_gluster::{DataPlace, DataServerOptions, GlusterOptions, GlusterStore};
use dafs_service::Export;
use dafs_store::ExportSecret;
use std::path::Path;

/// Opens the store of an export, and the sockets of its data servers. Waits for the bricks for a
/// limited time.
pub(super) fn open(
    export: &ExportConfig,
    gluster: &GlusterConfig,
    secret: ExportSecret,
    state: &Path,
) -> Result<OpenedStore, StartError> {
    let mut data_servers = Vec::new();
    let cluster_secret = gluster.cluster_secret.as_deref();
    let mut servers = EngineServers::new(export, cluster_secret, &secret, state)?;
    for server in &gluster.data_servers {
        let brick = server.brick.clone();
        let place = match &server.place {
            DataServerPlace::Local(address, rdma) => {
                let listener = listen::fresh(*address)?;
                let rdma = RdmaListeners::of_data_server(rdma)?;
                let sockets = DataSockets { listener, rdma, apart: false };
                DataPlace::Here(servers.add_local(sockets, brick.clone())?)
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
        data_keys: servers.data_keys(),
        data_fs: |fs| Export::fs_of(fs, ""),
    });
    let name = export.name.clone();
    let store = store.map_err(|error| StartError::Gluster { name, volume, root, error })?;
    let files = store.data_servers();
    files.iter().for_each(|files| files.tell_of_lost_data(servers.on_lost_data()));
    Ok(servers.with_store(store, files))
}
