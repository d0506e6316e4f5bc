//! Where files lie, for clients that go to the data servers themselves.
//!
//! What is not obvious
//! * A volume that is plain has each file whole on one brick. Stripes in a pattern of one place say that
//!   to every pNFS client, and their state-ids are judged by the metadata server at each use, which
//!   those of copies (flexible files) are not by all.
//! * GlusterFS tells the brick of a file by the name of its host and a path, and several hosts may have
//!   the same path, or one host several names. All data servers are on this machine, so their bricks are
//!   looked at instead: a file lies on the one that has it, for good, and not as a mark that it is
//!   elsewhere.
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
use dafs_store::{
    Attr, Device, DeviceKey, FileId, FsId, Kind, Layouts, Packing, Placement, Result, SetAttr,
    SetTime, StoreError,
};
use rustc_hash::FxHashMap;
use siphasher::sip128::{Hasher128, SipHasher24};
use std::hash::Hasher;
use std::net::SocketAddr;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;

/// The data server of a brick.
pub(crate) struct Server {
    pub(crate) data: Arc<GlusterData>,
    /// As the volume calls it.
    brick: String,
    key: DeviceKey,
    device: Device,
}

impl Server {
    pub(crate) fn new(data: GlusterData, brick: String, address: SocketAddr) -> Self {
        let mut hasher = SipHasher24::new();
        hasher.write(address.to_string().as_bytes());
        hasher.write_u8(0);
        hasher.write(brick.as_bytes());
        let key = DeviceKey(hasher.finish128().as_bytes());
        let device = Device { pattern: vec![0], servers: vec![vec![address]] };
        Self { data: Arc::new(data), brick, key, device }
    }

    fn epoch(&self) -> u64 {
        let (epoch, _) = self.key.0.split_at(8);
        epoch.iter().fold(0, |epoch, &byte| epoch << 8 | u64::from(byte))
    }
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

    pub(crate) fn servers(&self) -> impl Iterator<Item = &Arc<GlusterData>> {
        self.servers.iter().map(|server| &server.data)
    }

    fn place(&self, gfid: &Gfid) -> Result<Option<Placement>> {
        let mut found = None;
        for (at, server) in self.servers.iter().enumerate() {
            if server.data.has(gfid)? {
                found = Some((at, server));
                break;
            }
        }
        let Some((at, server)) = found else { return Ok(None) };
        lock(&self.told).insert(gfid, at);
        let file = self.ids.seal(gfid);
        Ok(Some(Placement {
            epoch: server.epoch(),
            spread: dafs_store::Spread::Stripes(dafs_store::Stripes {
                device: server.key,
                first_place: 0,
                unit_bytes: UNIT_BYTES,
                packing: Packing::Sparse,
                handles: vec![[&self.data_fs.0[..], &file.0[..]].concat().into_boxed_slice()],
            }),
        }))
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
            if server.data.set_direct(direct) {
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
            server.data.close_idle();
            let astray = server.data.take_astray();
            if !astray.is_empty() {
                lock(&self.told).take_back(|gfid, of| of == at && astray.contains(gfid));
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
        let thread =
            std::thread::Builder::new().name("dafs-gluster-watch".to_owned()).spawn(run)?;
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
        let servers = &self.shared.spread().ok()?.servers;
        servers.iter().find(|server| server.key == *key).map(|server| server.device.clone())
    }

    fn devices(&self) -> Vec<DeviceKey> {
        let Ok(spread) = self.shared.spread() else { return Vec::new() };
        spread.servers.iter().map(|server| server.key).collect()
    }

    fn commit(&self, file: &FileId, end: Option<u64>) -> Result<Attr> {
        let spread = self.shared.spread()?;
        let (gfid, object, known) = self.shared.object(file)?;
        if end.is_some_and(|end| end > known.size) {
            return Err(StoreError::Invalid);
        }
        let object = object?;
        for server in spread.servers() {
            server.take_written(&gfid);
        }
        touch(&object)?;
        let mut stable = false;
        for server in spread.servers() {
            stable = stable || server.settle(&gfid)?;
        }
        if !stable {
            object.open(libc::O_RDWR, &server())?.sync()?;
        }
        attr(&object.stat()?)
    }

    /// The size is the brick's and always known. That the file was changed is not.
    fn settle(&self, file: &FileId) -> Result<()> {
        let spread = self.shared.spread()?;
        let gfid = self.shared.ids.open(file)?;
        let mut written = false;
        for server in spread.servers() {
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

    fn forget(&self, file: &FileId) -> Result<()> {
        let spread = self.shared.spread()?;
        let gfid = self.shared.ids.open(file)?;
        let mut told = Ok(());
        for server in spread.servers() {
            told = told.and(server.forget(&gfid));
        }
        told
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
