//! The placement of files, for clients that access the data servers themselves.
//!
//! Notes
//! * A plain volume has each file whole on one brick. A layout of stripes with a pattern of one
//!   place describes that to every pNFS client. Its state-ids are checked by the metadata server at
//!   each use; those of copies (flexible files) are not with all clients.
//! * GlusterFS returns the brick of a file as a host name and a path. Several hosts may have the
//!   same path, and one host several names. So this module asks the bricks instead, through the
//!   data servers. A file is on the brick that has it, unless it is being moved or is only a link
//!   to another brick there.
//! * GlusterFS has a file even if the data server of its brick is unreachable: then clients use the
//!   metadata server.
//!
//! Invariants
//! * A brick that the volume does not have, or not any more, counts as empty.
//! * If a file with a placement in use is found elsewhere, the store reports that its placement has
//!   changed.

use crate::attr::change;
use crate::data::GlusterData;
use crate::limits::{PRIVILEGE_BITS, UNIT_BYTES};
use crate::sys::{Gfid, Mount, Object};
use crate::volume::Volume;
use crate::{GlusterStore, Shared, server};
use dafs_mem::{Failing, Mutex};
use dafs_store::inode::{Ids, Inode, Placed};
use dafs_store::node::{ComponentId, Node};
use dafs_store::{
    Device, DeviceKey, FileId, FsId, Kind, Layouts, NfsAddresses, Placement, Result, SetAttr,
    SetTime, StoreError,
};
use rustc_hash::FxHashSet;
use siphasher::sip128::{Hasher128, SipHasher24};
use std::hash::Hasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

/// The data server of a brick.
pub(crate) struct Server {
    place: Place,
    /// The name of the brick in the volume.
    brick: String,
    /// True if data servers may bypass GlusterFS on the brick.
    direct: AtomicBool,
    /// Its device as of the last turn.
    known: Mutex<Option<DeviceKey>>,
}

/// The process of a data server.
pub(crate) enum Place {
    /// This process, with the addresses for clients.
    Here(Arc<GlusterData>, NfsAddresses),
    /// Another process.
    Far(Arc<dyn Node>),
}

impl Server {
    pub(crate) fn new(place: Place, brick: String) -> Self {
        let (direct, known) = (AtomicBool::new(true), Mutex::default());
        let server = Self { place, brick, direct, known };
        *server.known.lock() = server.device().map(|(key, _)| key);
        server
    }

    /// Returns the device of the data server; `None` while it is unreachable. The device differs
    /// after each start: clients that have marked the data server as dead then retry it.
    fn device(&self) -> Option<(DeviceKey, Device)> {
        let (addresses, run) = match &self.place {
            Place::Here(_, addresses) => (addresses.clone(), 0),
            Place::Far(node) if node.is_reachable() => (node.nfs_addresses(), node.run()),
            Place::Far(_) => return None,
        };
        if addresses.tcp.is_empty() {
            return None;
        }
        let mut hasher = SipHasher24::new();
        addresses.write_to(&mut hasher);
        hasher.write_u64(run);
        hasher.write(self.brick.as_bytes());
        let key = DeviceKey(hasher.finish128().as_bytes());
        Some((key, Device { pattern: vec![0], servers: vec![addresses] }))
    }

    /// True if a file is on its brick and is not being moved.
    fn has(&self, gfid: &Gfid) -> Result<bool> {
        let size = match &self.place {
            Place::Here(data, _) => return Ok(data.size_here(gfid)?.is_some()),
            Place::Far(node) => node.size(&ComponentId(*gfid)),
        };
        match size {
            Ok(_) => Ok(true),
            Err(StoreError::NoDevice) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// True if the file was written there and its times were not updated yet, as far as that is
    /// known.
    fn take_written(&self, gfid: &Gfid) -> bool {
        match &self.place {
            Place::Here(data, _) => data.take_written(gfid),
            // It updates them itself, unless the file was removed meanwhile.
            Place::Far(node) => match node.commit(&ComponentId(*gfid)) {
                Ok(_) | Err(StoreError::NoDevice | StoreError::Stale | StoreError::NotFound) => {
                    false
                }
                Err(_) => true,
            },
        }
    }

    /// Makes a file stable if it is on its brick. True if it is. An unreachable data server does
    /// not know that; then the caller asks GlusterFS.
    fn settle(&self, gfid: &Gfid) -> Result<bool> {
        match &self.place {
            Place::Here(data, _) => data.settle(gfid),
            Place::Far(node) => match node.commit(&ComponentId(*gfid)) {
                Ok(_) => Ok(true),
                Err(StoreError::NoDevice | StoreError::Busy) => Ok(false),
                Err(error) => Err(error),
            },
        }
    }

    fn drop_grants(&self, gfid: &Gfid) -> Result<()> {
        match &self.place {
            Place::Here(data, _) => data.drop_grants(gfid),
            Place::Far(node) => node.drop_grants(&ComponentId(*gfid)),
        }
    }

    /// Returns the files that clients have asked for there and that are not there.
    fn take_astray(&self) -> Result<FxHashSet<Gfid>> {
        match &self.place {
            Place::Here(data, _) => Ok(data.take_astray()),
            Place::Far(node) if node.is_reachable() => {
                Ok(node.take_astray()?.into_iter().map(|component| component.0).collect())
            }
            Place::Far(_) => Ok(FxHashSet::default()),
        }
    }
}

/// The data servers of a store, and the placements that clients have got.
pub(crate) struct Spread {
    mount: Arc<Mount>,
    servers: Vec<Server>,
    ids: Arc<Ids>,
    /// The file system id in the handles that clients show to data servers.
    data_fs: FsId,
    volume: Mutex<Volume>,
    /// The numbers of the data servers of files with placements in use.
    told: Mutex<Placed<Gfid, usize>>,
    looks: Failing,
}

/// Sets the mtime of a file to now.
pub(crate) fn touch(object: &Object) -> Result<()> {
    let wish = SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() };
    let (stat, mask) = change(&wish)?;
    object.set_stat(stat, mask, &server())
}

/// Clears setuid and setgid of a file.
pub(crate) fn end_privilege(object: &Object, mode: u32) -> Result<()> {
    let mode = Some(mode & !PRIVILEGE_BITS);
    let (stat, mask) = change(&SetAttr { mode, ..SetAttr::default() })?;
    object.set_stat(stat, mask, &server())
}

impl Spread {
    pub(crate) fn new(
        mount: Arc<Mount>,
        servers: Vec<Server>,
        ids: Arc<Ids>,
        data_fs: FsId,
        volume: Volume,
    ) -> Self {
        let (volume, told) = (Mutex::new(volume), Mutex::default());
        Self { mount, servers, ids, data_fs, volume, told, looks: Failing::default() }
    }

    /// Returns the data servers of this process.
    pub(crate) fn here(&self) -> impl Iterator<Item = &Arc<GlusterData>> {
        self.servers.iter().filter_map(|server| match &server.place {
            Place::Here(data, _) => Some(data),
            Place::Far(_) => None,
        })
    }

    fn place(&self, gfid: &Gfid) -> Result<Option<Placement>> {
        // Most files are where they were.
        let last = self.told.lock().get(gfid).copied();
        let others = (0..self.servers.len()).filter(|at| Some(*at) != last);
        let mut found = None;
        for at in last.into_iter().chain(others) {
            let server = &self.servers[at];
            let Some((key, _)) = server.device().filter(|_| server.direct.load(SeqCst)) else {
                continue;
            };
            match server.has(gfid) {
                Ok(true) => {
                    found = Some((at, key));
                    break;
                }
                // A data server that becomes unreachable now counts as unreachable.
                Ok(false) | Err(StoreError::Busy) => {}
                Err(error) => return Err(error),
            }
        }
        let Some((at, key)) = found else { return Ok(None) };
        self.told.lock().insert(*gfid, at);
        Ok(Some(self.ids.placement(*gfid, self.data_fs, key, UNIT_BYTES)))
    }

    /// Returns the data servers, first the one of the file's last placement.
    fn likely(&self, gfid: &Gfid) -> impl Iterator<Item = &Server> {
        let last = self.told.lock().get(gfid).copied();
        let others = (0..self.servers.len()).filter(move |at| Some(*at) != last);
        last.into_iter().chain(others).map(|at| &self.servers[at])
    }

    /// Reads the description of the volume, which may have changed.
    fn look_again(&self) -> Result<()> {
        let volume = Volume::parse(&self.mount.volfile()?);
        let mut known = self.volume.lock();
        if *known == volume {
            return Ok(());
        }
        for (at, server) in self.servers.iter().enumerate() {
            let direct = volume.other.is_none() && volume.bricks.contains(&server.brick);
            if let Place::Here(data, _) = &server.place {
                data.set_direct(direct);
            }
            if server.direct.swap(direct, SeqCst) != direct {
                let (brick, other) = (&server.brick, &volume.other);
                tracing::warn!(brick, direct, ?other, "the volume of GlusterFS was changed");
            }
            if !direct {
                self.told.lock().remove_all(|_, of| *of == at);
            }
        }
        *known = volume;
        Ok(())
    }

    /// Does the periodic work.
    pub(crate) fn turn(&self) {
        match self.looks.news(&self.look_again()) {
            Some(Err(error)) => {
                tracing::warn!(%error, "the volume of GlusterFS is not described");
            }
            Some(Ok(())) => tracing::info!("the volume of GlusterFS is described again"),
            None => {}
        }
        for (at, server) in self.servers.iter().enumerate() {
            if let Place::Here(data, _) = &server.place {
                data.close_idle();
            }
            // While a data server is unreachable, clients use the metadata server instead of it.
            let key = server.device().map(|(key, _)| key);
            if std::mem::replace(&mut *server.known.lock(), key) != key {
                self.told.lock().remove_all(|_, of| *of == at);
            }
            match server.take_astray() {
                Ok(astray) if astray.is_empty() => {}
                Ok(astray) => {
                    self.told.lock().remove_all(|gfid, of| *of == at && astray.contains(gfid));
                }
                Err(error) => tracing::debug!(%error, "a data server does not say what it lacks"),
            }
        }
    }
}

impl std::fmt::Debug for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Spread").field("servers", &self.servers.len()).finish_non_exhaustive()
    }
}

impl Shared {
    fn spread(&self) -> Result<&Arc<Spread>> {
        self.spread.as_ref().map(|(spread, _)| spread).ok_or(StoreError::NotSupported)
    }
}

impl Layouts for GlusterStore {
    fn placement(&self, file: &FileId, write: bool) -> Result<Option<Placement>> {
        let spread = self.shared.spread()?;
        let (gfid, object, attr) = self.shared.object(file)?;
        object?;
        // A write by any user but root must clear setuid and setgid. A data server does not know
        // the user.
        if attr.kind != Kind::Regular || write && attr.mode & PRIVILEGE_BITS != 0 {
            return Ok(None);
        }
        spread.place(&gfid)
    }

    fn device(&self, key: &DeviceKey) -> Option<Device> {
        let mut devices = self.shared.spread().ok()?.servers.iter().filter_map(Server::device);
        devices.find(|(known, _)| known == key).map(|(_, device)| device)
    }

    fn devices(&self) -> Vec<DeviceKey> {
        let Ok(spread) = self.shared.spread() else { return Vec::new() };
        spread.servers.iter().filter_map(|server| Some(server.device()?.0)).collect()
    }

    fn commit(&self, file: &FileId, end: Option<u64>) -> Result<u64> {
        let spread = self.shared.spread()?;
        let (gfid, object, known) = self.shared.object(file)?;
        if end.is_some_and(|end| end > known.size) {
            return Err(StoreError::Invalid);
        }
        let object = object?;
        // Data servers in other processes have updated the time themselves, which does no harm.
        for data in spread.here() {
            data.take_written(&gfid);
        }
        touch(&object)?;
        let mut stable = false;
        for server in spread.likely(&gfid) {
            stable = stable || server.settle(&gfid)?;
        }
        if !stable {
            object.open(libc::O_RDWR, &server())?.sync()?;
        }
        Ok(object.stat()?.size)
    }

    /// The brick always knows the size, but not the mtime.
    fn recover_size(&self, file: &FileId) -> Result<()> {
        let spread = self.shared.spread()?;
        let gfid = self.shared.ids.open(file)?;
        let mut written = false;
        for server in spread.likely(&gfid) {
            written |= server.take_written(&gfid);
        }
        if !written {
            return Ok(());
        }
        match spread.mount.object(&gfid).and_then(|object| touch(&object)) {
            Err(StoreError::Stale | StoreError::NotFound) => Ok(()),
            done => done,
        }
    }

    fn knows_ends(&self) -> bool {
        true
    }

    fn drop_grants(&self, file: &FileId) -> Result<()> {
        let spread = self.shared.spread()?;
        let gfid = self.shared.ids.open(file)?;
        let told = spread.servers.iter().map(|server| server.drop_grants(&gfid));
        told.fold(Ok(()), Result::and)
    }

    fn grant_ttl(&self) -> Duration {
        let servers = self.shared.spread().map_or(&[][..], |spread| &spread.servers);
        let grant_ttl = |server: &Server| match &server.place {
            Place::Here(..) => Duration::ZERO,
            Place::Far(node) => node.grant_ttl(),
        };
        servers.iter().map(grant_ttl).max().unwrap_or_default()
    }

    fn old_grants_expired(&self) -> Result<()> {
        let servers = &self.shared.spread()?.servers;
        servers.iter().try_for_each(|server| match &server.place {
            Place::Here(..) => Ok(()),
            Place::Far(node) => node.old_grants_expired(),
        })
    }

    fn take_moved(&self, sink: &mut dyn FnMut(FileId)) {
        let Ok(spread) = self.shared.spread() else { return };
        let moved = spread.told.lock().take_moved();
        moved.into_iter().for_each(|gfid| sink(self.shared.ids.seal(gfid)));
    }
}
