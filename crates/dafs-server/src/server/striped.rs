//! Exports whose files are spread over local directories, and the data servers that let clients reach
//! those by themselves (pNFS).
//!
//! Invariants
//! * A directory becomes a node's once. That is remembered in the state directory, so that a file
//!   system that is not mounted is not taken for an empty node.

use super::data::{DataDoor, Spread};
use super::{StartError, listen};
use crate::config::{ExportConfig, NodeConfig};
use dafs_nfs::{ForeignStates, ForeignUse};
use dafs_service::{Admits, Export, Service};
use dafs_store::striped::{
    ComponentHandle, ComponentStore, DirectoryNode, Node, component_store_fs,
};
use dafs_store::{
    ExportSecret, FileId, FsId, PosixOptions, PosixStore, Store, StoreError, StripedOptions,
    StripedStore,
};
use siphasher::sip128::{Hasher128, SipHasher24};
use std::hash::Hasher;
use std::net::{SocketAddr, TcpListener};
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// Where it is remembered which directories are nodes', in the state directory.
const NODES: &str = "nodes";

/// Where components of removed files are listed, in the state directory.
const REMOVED: &str = "removed";

/// An open store, with what its data servers need.
pub(super) struct Striped {
    store: Arc<StripedStore>,
    secret: [u8; 16],
    component_fs: FsId,
    admits: Admits,
    doors: Mutex<Vec<Door>>,
}

/// A node that clients may reach, and where.
struct Door {
    node: Arc<DirectoryNode>,
    listener: TcpListener,
}

/// Opens the store of an export, and the sockets of its data servers.
pub(super) fn open(
    export: &ExportConfig,
    (path, unit_bytes, nodes): (&Path, NonZeroU32, &[NodeConfig]),
    secret: ExportSecret,
    state: &Path,
) -> Result<Arc<Striped>, StartError> {
    let failed = |error| StartError::Export { path: path.to_owned(), error };
    let read_only = export.options.read_only;
    let options = PosixOptions { read_only, ..PosixOptions::new(secret) };
    let meta = PosixStore::open(path, options).map_err(failed)?;
    let identity = derive(&secret, b"store", &meta.fs_id().0);
    let stripes = derive(&secret, b"stripes", &identity);
    let component_fs = Export::fs_of(&component_store_fs(&stripes), "");
    let mut doors = Vec::new();
    let mut opened: Vec<Arc<dyn Node>> = Vec::new();
    for node in nodes {
        let listener = node.listen.map(listen::fresh).transpose()?;
        let address = listener.as_ref().map(TcpListener::local_addr).transpose()?;
        let directory = open_node(node, &identity, address, state)?;
        opened.push(directory.clone());
        doors.extend(listener.map(|listener| Door { node: directory, listener }));
    }
    let options = StripedOptions {
        secret: stripes,
        component_fs,
        unit_bytes,
        removed: state.join(REMOVED).join(hex(&identity)),
        // Local directories lose nothing while this process lives but with an error.
        lost: Box::new(|| {}),
    };
    let store = Arc::new(StripedStore::open(meta, opened, options).map_err(failed)?);
    let (admits, doors) = (export.options.admits.clone(), Mutex::new(doors));
    Ok(Arc::new(Striped { store, secret: stripes, component_fs, admits, doors }))
}

fn open_node(
    node: &NodeConfig,
    store: &[u8; 16],
    address: Option<SocketAddr>,
    state: &Path,
) -> Result<Arc<DirectoryNode>, StartError> {
    let made = state.join(NODES).join(format!("{}-{}", hex(store), node.number));
    if !made.exists() {
        DirectoryNode::make(&node.path, store, node.number)?;
        std::fs::create_dir_all(state.join(NODES))?;
        std::fs::File::create(&made)?.sync_all()?;
        std::fs::File::open(state.join(NODES))?.sync_all()?;
    }
    let addresses = address.into_iter().collect();
    Ok(Arc::new(DirectoryNode::open(&node.path, store, node.number, addresses)?))
}

/// A key for one purpose. It tells nothing about the secret.
pub(super) fn derive(secret: &ExportSecret, purpose: &[u8], of: &[u8]) -> [u8; 16] {
    let mut hasher = SipHasher24::new_with_key(secret.as_bytes());
    hasher.write(purpose);
    hasher.write(of);
    let hash = hasher.finish128();
    (u128::from(hash.h1) << 64 | u128::from(hash.h2)).to_be_bytes()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Striped {
    pub(super) fn store(&self) -> Arc<dyn Store> {
        self.store.clone()
    }
}

impl Spread for Striped {
    fn take_doors(&self, service: &Arc<Service>) -> Vec<DataDoor> {
        let (secret, component_fs) = (self.secret, self.component_fs);
        let mut doors = self.doors.lock().unwrap_or_else(PoisonError::into_inner);
        let open = |Door { node, listener }| {
            let number: u32 = node.number();
            let (service, store) = (service.clone(), self.store.clone());
            DataDoor {
                listener,
                number,
                files: Arc::new(ComponentStore::new(node, secret, component_fs, None)),
                states: Arc::new(Here { service, store, secret, component_fs }),
                admits: self.admits.clone(),
                identity: derive(
                    &ExportSecret::from_bytes(secret),
                    b"data server",
                    &number.to_be_bytes(),
                ),
            }
        };
        doors.drain(..).map(open).collect()
    }
}

/// The metadata server in the same process.
struct Here {
    service: Arc<Service>,
    store: Arc<StripedStore>,
    secret: [u8; 16],
    component_fs: FsId,
}

impl ForeignStates for Here {
    fn check(&self, wanted: &ForeignUse<'_>) -> dafs_service::Result<()> {
        let ForeignUse { owner, identity, component, state, write, now_ns } = *wanted;
        self.service.vouch((owner, identity), component, state, write, now_ns)
    }

    fn size(&self, component: &FileId) -> Result<u64, StoreError> {
        let handle = ComponentHandle::open(component, &self.component_fs, &self.secret)?;
        self.store.size_of(&handle.component)
    }
}
