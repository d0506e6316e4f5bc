//! A data server next to storage daemons as a process of its own. Its metadata server reaches it by
//! a control connection, and names files by their inodes.
//!
//! Invariants
//! * When another metadata server connects, or the same one again, the data server mounts as a new
//!   client, because the metadata server may have evicted the old one. It reports data that it
//!   could not make stable before as lost.

use crate::data::CephData;
use crate::id::ID_VERSION;
use crate::limits::WATCH_INTERVAL;
use crate::map::OsdMap;
use crate::nudge::{Nudge, Waits};
use crate::server::{component, object};
use crate::sys::{ClusterOptions, Mount, MountOptions, Rados};
use crate::{OpenError, in_time};
use dafs_mem::{Failing, Mutex};
use dafs_store::inode::Ids;
use dafs_store::node::{ComponentId, Node};
use dafs_store::vital::Periodic;
use dafs_store::{DataKeys, FileId, Result, StoreError};
use siphasher::sip128::{Hasher128, SipHasher24};
use std::hash::Hasher;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The options of a data server.
#[derive(Debug, Clone)]
pub struct CephNodeOptions {
    /// The configuration of the cluster; `None` takes ceph's default places.
    pub config: Option<PathBuf>,
    /// The user of the cluster, without "client."; `None` is admin.
    pub user: Option<String>,
    /// The file with the user's key; `None` takes the one of the configuration.
    pub keyring: Option<PathBuf>,
    /// The name of the file system, if the cluster has several.
    pub file_system: Option<String>,
    /// A directory that has all files in it, from the top of the file system.
    pub root: String,
    /// The numbers of the storage daemons next to it.
    pub daemons: Vec<u32>,
    /// The keys of the file ids, which the metadata server has, too.
    pub data_keys: DataKeys,
    /// The number by which the metadata server identifies it.
    pub number: u32,
    /// The addresses for clients.
    pub addresses: Vec<SocketAddr>,
}

/// A data server next to storage daemons.
pub struct CephNode {
    data: Arc<CephData>,
    mounting: MountOptions,
    /// Watches the requests of the current mount.
    nudge: Mutex<Nudge>,
    number: u32,
    addresses: Vec<SocketAddr>,
    /// True once a metadata server has connected.
    joined: AtomicBool,
    _watch: Periodic,
}

impl std::fmt::Debug for CephNode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CephNode").field("data", &self.data).finish_non_exhaustive()
    }
}

/// Returns the identity of a data server in the cluster. It never changes, so a mount with the same
/// identity evicts the old client.
pub(crate) fn client_name(store: &[u8; 16], number: u32) -> String {
    let mut hasher = SipHasher24::new_with_key(store);
    hasher.write(b"client of the cluster");
    format!("dafs-{:032x}-data-{number}", hasher.finish128().as_u128())
}

impl CephNode {
    /// Mounts the file system. Waits for the cluster for a limited time.
    ///
    /// # Errors
    /// The missing or wrong setting, for administrators.
    pub fn open(options: &CephNodeOptions) -> std::result::Result<Self, OpenError> {
        let options = options.clone();
        in_time(move || Self::open_here(options))
    }

    fn open_here(options: CephNodeOptions) -> std::result::Result<Self, OpenError> {
        let CephNodeOptions { config, user, keyring, number, addresses, data_keys, .. } = options;
        let mounting = MountOptions {
            cluster: ClusterOptions { config, user, keyring },
            file_system: options.file_system,
            root: options.root,
            uuid: client_name(data_keys.store(), number),
            waits: Arc::new(Waits::default()),
        };
        let rados = Rados::connect(&mounting.cluster)?;
        let map = Arc::new(OsdMap::new(Box::new(rados)).map_err(OpenError::Map)?);
        let mount = Arc::new(Mount::new(&mounting)?);
        let nudge = Nudge::start(&mounting.waits, [&mount].into_iter());
        let nudge = Mutex::new(nudge.map_err(OpenError::Thread)?);
        let ids = Arc::new(Ids::of_data_servers(ID_VERSION, data_keys));
        let (data_fs, daemons) = (ids.fs_id(), options.daemons.into_iter().collect());
        let data = Arc::new(CephData::new(mount, map.clone(), ids, data_fs, daemons, true));
        let asks = Failing::default();
        let turn = move |data: &CephData| {
            let refreshed = map.refresh();
            match asks.news(&refreshed) {
                Some(Err(error)) => tracing::warn!(%error, "the monitors of ceph do not answer"),
                Some(Ok(_)) => tracing::info!("the monitors of ceph answer again"),
                None => {}
            }
            if matches!(refreshed, Ok(true)) {
                data.learn();
            }
            data.close_idle();
        };
        let watch = Periodic::start("dafs-ceph-watch", WATCH_INTERVAL, &data, turn);
        let watch = watch.map_err(OpenError::Thread)?;
        let joined = AtomicBool::new(false);
        Ok(Self { data, mounting, nudge, number, addresses, joined, _watch: watch })
    }

    /// Returns its files, for the front end of clients.
    pub fn data(&self) -> &Arc<CephData> {
        &self.data
    }

    /// Returns the id by which the metadata server names a file.
    ///
    /// # Errors
    /// [`StoreError::BadHandle`] for an id that this store did not make.
    pub fn component(&self, file: &FileId) -> Result<ComponentId> {
        self.data.object(file).map(component)
    }

    /// Mounts as a new client of the cluster.
    fn renew(&self) -> std::result::Result<(), OpenError> {
        let mounting = MountOptions { waits: Arc::new(Waits::default()), ..self.mounting.clone() };
        let waits = mounting.waits.clone();
        // The new mount evicts the old client, so its data must be stable before.
        self.data.close_all();
        let mount = in_time(move || Mount::new(&mounting).map(Arc::new))?;
        let nudge = Nudge::start(&waits, [&mount].into_iter()).map_err(OpenError::Thread)?;
        self.data.renew(mount);
        *self.nudge.lock() = nudge;
        Ok(())
    }
}

impl Node for CephNode {
    fn number(&self) -> u32 {
        self.number
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        self.addresses.clone()
    }

    /// Returns the size of a file that was written here, and makes its data stable. For other files
    /// the file system has the size.
    fn size(&self, component: &ComponentId) -> Result<u64> {
        self.data.settle(object(component))?.ok_or(StoreError::NoDevice)
    }

    fn drop_grants(&self, component: &ComponentId) -> Result<()> {
        self.data.drop_grants(object(component))
    }

    fn await_uses(&self, limit: Duration) -> Result<()> {
        self.data.await_uses(limit)?;
        if self.joined.swap(true, Ordering::SeqCst) {
            self.renew().map_err(|error| {
                tracing::warn!("this data server cannot become a client of CephFS again: {error}");
                StoreError::Busy
            })?;
        }
        Ok(())
    }
}
