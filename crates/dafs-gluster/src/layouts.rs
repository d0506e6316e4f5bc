//! Where files lie, for clients that go to the data servers themselves.
//!
//! What is not obvious
//! * A volume that is plain has each file whole on one brick. Stripes in a pattern of one place say that
//!   to every pNFS client, and their state-ids are judged by the metadata server at each use, which
//!   those of copies (flexible files) are not by all.
//! * GlusterFS tells the brick of a file by the name of its host and a path, and several hosts may have
//!   the same path, or one host several names. So the bricks are looked at instead, by those data servers
//!   of other machines that there are: a file lies on the one that has it, for good, and not as a mark
//!   that it is elsewhere.
//! * GlusterFS has a file whether or not the data server of its brick is there: without one, clients use
//!   the metadata server.
//!
//! Invariants
//! * A brick that the volume does not have, or not any more, holds no file, whatever lies on it.
//! * A file whose placement was told and that turns out to lie elsewhere is told of.

use crate::attr::{attr, change};
use crate::data::GlusterData;
use crate::id::Ids;
use crate::limits::{PLACED_MAX, PRIVILEGE_BITS, UNIT_BYTES, WATCH_INTERVAL};
use crate::sys::{Gfid, Mount, Object};
use crate::volume::Volume;
use crate::{GlusterStore, Shared, server};
use dafs_store::node::{ComponentId, Node};
use dafs_store::vital;
use dafs_store::{
    Device, DeviceKey, FileId, FsId, Kind, Layouts, NfsAddresses, Packing, Placement, Result,
    SetAttr, SetTime, StoreError,
};
use rustc_hash::{FxHashMap, FxHashSet};
use siphasher::sip128::{Hasher128, SipHasher24};
use std::hash::Hasher;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// The data server of a brick.
pub(crate) struct Server {
    place: Place,
    /// As the volume calls it.
    brick: String,
    /// The brick may be used past GlusterFS.
    direct: AtomicBool,
    /// What it was called when that was looked at last.
    known: Mutex<Option<DeviceKey>>,
}

/// Where a data server is.
pub(crate) enum Place {
    /// In this process, and clients reach it there.
    Here(Arc<GlusterData>, NfsAddresses),
    /// In another one.
    Far(Arc<dyn Node>),
}

impl Server {
    pub(crate) fn new(place: Place, brick: String) -> Self {
        let (direct, known) = (AtomicBool::new(true), Mutex::default());
        let server = Self { place, brick, direct, known };
        *lock(&server.known) = server.device().map(|(key, _)| key);
        server
    }

    /// What clients are told of it. `None` while it is away. After each of its starts it has another name:
    /// clients that have found it dead come back to it then.
    fn device(&self) -> Option<(DeviceKey, Device)> {
        let (addresses, run) = match &self.place {
            Place::Here(_, addresses) => (addresses.clone(), 0),
            Place::Far(node) if node.is_there() => (node.nfs_addresses(), node.run()),
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

    /// Whether a file lies on its brick, for good as far as one can see.
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

    /// The file was written, and nothing says so, as far as that is known.
    fn take_written(&self, gfid: &Gfid) -> bool {
        match &self.place {
            Place::Here(data, _) => data.take_written(gfid),
            // It says so itself, unless it has gone meanwhile.
            Place::Far(node) => match node.commit(&ComponentId(*gfid)) {
                Ok(_) | Err(StoreError::NoDevice | StoreError::Stale | StoreError::NotFound) => {
                    false
                }
                Err(_) => true,
            },
        }
    }

    /// Makes a file stable if it lies on its brick; tells whether it does. One that is away does not
    /// know: that is asked of GlusterFS.
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

    fn forget(&self, gfid: &Gfid) -> Result<()> {
        match &self.place {
            Place::Here(data, _) => data.forget(gfid),
            Place::Far(node) => node.forget(&ComponentId(*gfid)),
        }
    }

    /// Which files were asked for there and do not lie there.
    fn take_astray(&self) -> Result<FxHashSet<Gfid>> {
        match &self.place {
            Place::Here(data, _) => Ok(data.take_astray()),
            Place::Far(node) if node.is_there() => {
                Ok(node.take_astray()?.into_iter().map(|component| component.0).collect())
            }
            Place::Far(_) => Ok(FxHashSet::default()),
        }
    }
}

fn epoch(key: &DeviceKey) -> u64 {
    let (epoch, _) = key.0.split_at(8);
    epoch.iter().fold(0, |epoch, &byte| epoch << 8 | u64::from(byte))
}

/// The data servers of a store, and what clients were told of them.
pub(crate) struct Spread {
    mount: Arc<Mount>,
    servers: Vec<Server>,
    ids: Arc<Ids>,
    /// The file system of the handles that clients show to data servers.
    data_fs: FsId,
    volume: Mutex<Volume>,
    told: Mutex<Told>,
}

/// Files whose placement was told, with the number of the data server, and those of them that lie
/// elsewhere now.
#[derive(Default)]
struct Told {
    files: FxHashMap<Gfid, Known>,
    moved: Vec<Gfid>,
    /// Placements told so far.
    count: u64,
}

struct Known {
    server: usize,
    /// Which of all placements that were told it is.
    told: u64,
}

impl Told {
    fn take_back(&mut self, which: impl Fn(&Gfid, usize) -> bool) {
        let Self { files, moved, .. } = self;
        let gone = files.extract_if(|gfid, known| which(gfid, known.server));
        moved.extend(gone.map(|(gfid, _)| gfid));
    }

    /// A placement is told. When there are too many, nobody looks any more after those that were told
    /// longest ago, so they are given back.
    fn insert(&mut self, gfid: &Gfid, server: usize) {
        if self.files.len() >= PLACED_MAX && !self.files.contains_key(gfid) {
            let mut all: Vec<_> = self.files.values().map(|known| known.told).collect();
            let (_, &mut oldest, _) = all.select_nth_unstable(PLACED_MAX / 16);
            let gone = self.files.extract_if(|_, known| known.told < oldest);
            self.moved.extend(gone.map(|(gfid, _)| gfid));
        }
        self.count += 1;
        self.files.insert(*gfid, Known { server, told: self.count });
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What these hold is whole between any two steps.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sets the time of a file's last change to now.
pub(crate) fn touch(object: &Object) -> Result<()> {
    let wish = SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() };
    let (stat, mask) = change(&wish)?;
    object.set_stat(stat, mask, &server())
}

/// Ends the rights that a file gives to those who run it.
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
        Self { mount, servers, ids, data_fs, volume, told }
    }

    /// The data servers of this process.
    pub(crate) fn here(&self) -> impl Iterator<Item = &Arc<GlusterData>> {
        self.servers.iter().filter_map(|server| match &server.place {
            Place::Here(data, _) => Some(data),
            Place::Far(_) => None,
        })
    }

    fn place(&self, gfid: &Gfid) -> Result<Option<Placement>> {
        // Most files are where they were.
        let last = lock(&self.told).files.get(gfid).map(|known| known.server);
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
                // One that goes away now is as one that is away.
                Ok(false) | Err(StoreError::Busy) => {}
                Err(error) => return Err(error),
            }
        }
        let Some((at, key)) = found else { return Ok(None) };
        lock(&self.told).insert(gfid, at);
        let file = self.ids.seal(gfid);
        Ok(Some(Placement {
            epoch: epoch(&key),
            spread: dafs_store::Spread::Stripes(dafs_store::Stripes {
                device: key,
                first_place: 0,
                unit_bytes: UNIT_BYTES,
                packing: Packing::Sparse,
                handles: vec![[&self.data_fs.0[..], &file.0[..]].concat().into_boxed_slice()],
            }),
        }))
    }

    /// The data servers, the one first that clients were told of last.
    fn likely(&self, gfid: &Gfid) -> impl Iterator<Item = &Server> {
        let last = lock(&self.told).files.get(gfid).map(|known| known.server);
        let others = (0..self.servers.len()).filter(move |at| Some(*at) != last);
        last.into_iter().chain(others).map(|at| &self.servers[at])
    }

    /// The volume may consist of something else now.
    fn look_again(&self) -> Result<()> {
        let volume = Volume::parse(&self.mount.volfile()?);
        let mut known = lock(&self.volume);
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
                lock(&self.told).take_back(|_, of| of == at);
            }
        }
        *known = volume;
        Ok(())
    }

    /// What is to be done now and then.
    fn turn(&self) {
        if let Err(error) = self.look_again() {
            tracing::warn!(%error, "the volume of GlusterFS is not described");
        }
        for (at, server) in self.servers.iter().enumerate() {
            if let Place::Here(data, _) = &server.place {
                data.close_idle();
            }
            // Clients are to go through the metadata server while it is away, and to it again when it is
            // back.
            let key = server.device().map(|(key, _)| key);
            if std::mem::replace(&mut *lock(&server.known), key) != key {
                lock(&self.told).take_back(|_, of| of == at);
            }
            match server.take_astray() {
                Ok(astray) if astray.is_empty() => {}
                Ok(astray) => {
                    lock(&self.told).take_back(|gfid, of| of == at && astray.contains(gfid));
                }
                Err(error) => tracing::debug!(%error, "a data server does not say what it lacks"),
            }
        }
    }
}

/// The thread that watches the volume. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Watch {
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    pub(crate) fn start(spread: &Arc<Spread>) -> std::io::Result<Self> {
        let (end, ended) = channel();
        let spread: Weak<Spread> = Arc::downgrade(spread);
        let run = move || {
            while ended.recv_timeout(WATCH_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                let Some(spread) = spread.upgrade() else { return };
                spread.turn();
            }
        };
        let thread = vital::spawn("dafs-gluster-watch", run)?;
        Ok(Self { end: Some(end), thread: Some(thread) })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        drop(self.end.take());
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that watches the volume of GlusterFS had failed");
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
        // Whoever writes ends the rights that a program runs with, unless it is root, whom a data server
        // does not know.
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
        // Far ones move the time themselves, which does no harm.
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
        Ok(attr(&object.stat()?)?.size)
    }

    /// The size is the brick's and always known. That the file was changed is not.
    fn settle(&self, file: &FileId) -> Result<()> {
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

    fn forget(&self, file: &FileId) -> Result<()> {
        let spread = self.shared.spread()?;
        let gfid = self.shared.ids.open(file)?;
        let mut told = Ok(());
        for server in &spread.servers {
            told = told.and(server.forget(&gfid));
        }
        told
    }

    fn belief(&self) -> Duration {
        let servers = self.shared.spread().map_or(&[][..], |spread| &spread.servers);
        let belief = |server: &Server| match &server.place {
            Place::Here(..) => Duration::ZERO,
            Place::Far(node) => node.belief(),
        };
        servers.iter().map(belief).max().unwrap_or_default()
    }

    fn settled(&self) -> Result<()> {
        let servers = &self.shared.spread()?.servers;
        servers.iter().try_for_each(|server| match &server.place {
            Place::Here(..) => Ok(()),
            Place::Far(node) => node.settled(),
        })
    }

    fn take_moved(&self, sink: &mut dyn FnMut(FileId)) {
        let Ok(spread) = self.shared.spread() else { return };
        let moved = std::mem::take(&mut lock(&spread.told).moved);
        moved.into_iter().for_each(|gfid| sink(self.shared.ids.seal(&gfid)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_were_told_longest_ago_are_given_back() {
        let gfid = |number: u64| -> Gfid { u128::from(number).to_be_bytes() };
        let mut told = Told::default();
        let max = PLACED_MAX as u64;
        (0..max).for_each(|number| told.insert(&gfid(number), 0));
        // The first is told again.
        told.insert(&gfid(0), 1);
        assert!(told.moved.is_empty());
        told.insert(&gfid(max), 1);
        told.moved.sort_unstable();
        assert!(told.moved.iter().copied().eq((1..=max / 16).map(gfid)));
        assert_eq!(told.files.len() as u64, max + 1 - max / 16);
    }
}
