//! Exports of GlusterFS, and the data servers that let clients reach its bricks.

use super::data::{DataDoor, Spread};
use super::far::FarServers;
use super::here::Here;
use super::{StartError, listen, striped};
use crate::admin::NodeReport;
use crate::config::{DataServerPlace, ExportConfig, GlusterConfig};
use dafs_gluster::{DataPlace, DataServerOptions, GlusterData, GlusterOptions, GlusterStore};
use dafs_service::{Admits, Export, Service, WriteVerifier};
use dafs_store::{DataFiles, ExportSecret, Store};
use std::net::TcpListener;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// An open store, with what its data servers need.
pub(super) struct Gluster {
    store: Arc<GlusterStore>,
    secret: ExportSecret,
    admits: Admits,
    /// Those of the data servers of this process.
    listeners: Mutex<Vec<TcpListener>>,
    far: FarServers,
}

/// Opens the store of an export, and the sockets of its data servers. Waits for the bricks for a while.
pub(super) fn open(
    export: &ExportConfig,
    gluster: &GlusterConfig,
    secret: ExportSecret,
    state: &Path,
) -> Result<Arc<Gluster>, StartError> {
    let (mut listeners, mut data_servers) = (Vec::new(), Vec::new());
    let cluster_secret = gluster.cluster_secret.as_deref();
    let mut far = FarServers::new(&export.name, cluster_secret, &secret, state)?;
    for server in &gluster.data_servers {
        let brick = server.brick.clone();
        let place = match &server.place {
            DataServerPlace::Here(address) => {
                let listener = listen::fresh(*address)?;
                let address = listener.local_addr()?;
                listeners.push(listener);
                DataPlace::Here(address)
            }
            DataServerPlace::Far { number, control } => {
                DataPlace::Far(far.connect(*number, control, brick.clone())?)
            }
        };
        data_servers.push(DataServerOptions { place, brick });
    }
    let GlusterConfig { volume, servers, root, .. } = gluster.clone();
    let store = GlusterStore::open(&GlusterOptions {
        volume: volume.clone(),
        servers,
        root: root.clone(),
        secret,
        data_servers,
        data_secret: far.data_secret(),
        data_fs: |fs| Export::fs_of(fs, ""),
    });
    let name = export.name.clone();
    let store = store.map_err(|error| StartError::Gluster { name, volume, root, error })?;
    let (admits, listeners) = (export.options.admits.clone(), Mutex::new(listeners));
    Ok(Arc::new(Gluster { store: Arc::new(store), secret, admits, listeners, far }))
}

impl Gluster {
    pub(super) fn store(&self) -> Arc<dyn Store> {
        self.store.clone()
    }
}

impl Spread for Gluster {
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
        let open = |((number, listener), files): ((u32, TcpListener), Arc<GlusterData>)| {
            let of = [&files.fs_id().0[..], &number.to_be_bytes()].concat();
            DataDoor {
                listener,
                dafs: None,
                number,
                files,
                pool: None,
                states: states.clone(),
                admits: self.admits.clone(),
                identity: striped::derive(&self.secret, b"data server", &of),
            }
        };
        opened.map(open).collect()
    }
}
