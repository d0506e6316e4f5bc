//! A data server of a brick as a process of its own. Its metadata server reaches it by a control
//! connection, and names files by their gfids.
//!
//! Notes
//! * The metadata server finds the brick of a file by asking for its size: other data servers
//!   answer `NoDevice`.
//!
//! Invariants
//! * A brick that the volume does not have, or not any more, counts as empty.
//! * When a commit has returned, the file's mtime reflects its last write.

use crate::data::GlusterData;
use crate::layouts::touch;
use crate::limits::{ID_VERSION, WATCH_INTERVAL};
use crate::sys::{Mount, MountOptions};
use crate::volume::Volume;
use crate::{OpenError, mounted, open_brick, path_of_brick, plain_volume};
use dafs_mem::Failing;
use dafs_store::inode::Ids;
use dafs_store::node::{ComponentId, Node};
use dafs_store::vital::Periodic;
use dafs_store::{DataKeys, FileId, Result, StoreError};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// The options of a data server of a brick.
#[derive(Debug, Clone)]
pub struct GlusterNodeOptions {
    /// The name of the volume.
    pub volume: String,
    /// Hosts whose management daemons know it; see [`GlusterOptions`](crate::GlusterOptions).
    pub servers: Vec<(String, Option<u16>)>,
    /// The name of the brick in the volume. The brick is on this machine.
    pub brick: String,
    /// The keys of the file ids, which the metadata server has, too.
    pub data_keys: DataKeys,
    /// The number by which the metadata server identifies it.
    pub number: u32,
    /// The addresses for clients.
    pub addresses: Vec<SocketAddr>,
}

/// A data server of a brick.
pub struct GlusterNode {
    data: Arc<GlusterData>,
    mount: Arc<Mount>,
    number: u32,
    addresses: Vec<SocketAddr>,
    _watch: Periodic,
}

impl std::fmt::Debug for GlusterNode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GlusterNode").field("data", &self.data).finish_non_exhaustive()
    }
}

impl GlusterNode {
    /// Opens the brick, and becomes a client of the volume. Waits for its bricks for a limited
    /// time.
    ///
    /// # Errors
    /// The missing or wrong setting, for administrators.
    pub fn open(options: &GlusterNodeOptions) -> std::result::Result<Self, OpenError> {
        let options = options.clone();
        crate::in_time(move || Self::open_here(&options))
    }

    fn open_here(options: &GlusterNodeOptions) -> std::result::Result<Self, OpenError> {
        if options.servers.is_empty() {
            return Err(OpenError::Servers);
        }
        let GlusterNodeOptions { volume, servers, brick, data_keys, .. } = options.clone();
        let mount = mounted(&MountOptions { volume, servers })?;
        let volume_id = mount.volume_id().map_err(OpenError::VolumeId)?;
        let path = path_of_brick(&plain_volume(&mount)?, &brick)?;
        let opened = open_brick(&path, &brick, &volume_id)?;
        let ids = Arc::new(Ids::of_data_servers(ID_VERSION, data_keys));
        let data_fs = ids.fs_id();
        let data = Arc::new(GlusterData::new(mount.clone(), opened, ids, data_fs));
        let (watched, looks) = (mount.clone(), Failing::default());
        let turn = move |data: &GlusterData| {
            match looks.news(&look_again(&watched, data, &brick)) {
                Some(Err(error)) => {
                    tracing::warn!(%error, "the volume of GlusterFS is not described");
                }
                Some(Ok(())) => tracing::info!("the volume of GlusterFS is described again"),
                None => {}
            }
            data.close_idle();
        };
        let watch = Periodic::start("dafs-gluster-watch", WATCH_INTERVAL, &data, turn);
        let watch = watch.map_err(OpenError::Thread)?;
        let (number, addresses) = (options.number, options.addresses.clone());
        Ok(Self { data, mount, number, addresses, _watch: watch })
    }

    /// Returns its files, for the front end of clients.
    pub fn data(&self) -> &Arc<GlusterData> {
        &self.data
    }

    /// Returns the id by which the metadata server names a file.
    ///
    /// # Errors
    /// [`StoreError::BadHandle`] for an id that this store did not make.
    pub fn component(&self, file: &FileId) -> Result<ComponentId> {
        self.data.gfid(file).map(ComponentId)
    }
}

/// Reads the description of the volume, which may have changed.
fn look_again(mount: &Mount, data: &GlusterData, brick: &str) -> Result<()> {
    let volume = Volume::parse(&mount.volfile()?);
    let direct = volume.other.is_none() && volume.bricks.iter().any(|known| known == brick);
    if data.set_direct(direct) {
        let other = &volume.other;
        tracing::warn!(brick, direct, ?other, "the volume of GlusterFS was changed");
    }
    Ok(())
}

impl Node for GlusterNode {
    fn number(&self) -> u32 {
        self.number
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        self.addresses.clone()
    }

    fn commit(&self, component: &ComponentId) -> Result<u64> {
        if self.data.take_written(&component.0) {
            touch(&self.mount.object(&component.0)?)?;
        }
        // The front end tells the writers of lost data.
        if self.data.settle(&component.0)? { Ok(0) } else { Err(StoreError::NoDevice) }
    }

    fn size(&self, component: &ComponentId) -> Result<u64> {
        self.data.size_here(&component.0)?.ok_or(StoreError::NoDevice)
    }

    fn drop_grants(&self, component: &ComponentId) -> Result<()> {
        self.data.drop_grants(&component.0)
    }

    fn await_uses(&self, limit: Duration) -> Result<()> {
        self.data.await_uses(limit)
    }

    fn take_astray(&self) -> Result<Vec<ComponentId>> {
        Ok(self.data.take_astray().into_iter().map(ComponentId).collect())
    }
}
