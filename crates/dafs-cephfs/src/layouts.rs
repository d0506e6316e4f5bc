//! Where files lie, for clients that go to the data servers themselves.
//!
//! What is not obvious
//! * The daemons of a file's objects follow no rule that repeats, so each file has a pattern of its own,
//!   which covers a few times its size. A file that has grown beyond it gets another one.
//!
//! Invariants
//! * A placement names no daemon that has no data server: such a file is reached through the metadata
//!   server.
//! * Every file whose placement was told is looked at again when the map of daemons has changed.

use crate::data::{CephData, Settled};
use crate::id::{Ids, Object};
use crate::limits::{
    DEVICES_MAX, PATTERN_BYTES_MIN, PATTERN_PLACES_MAX, PLACED_MAX, WATCH_INTERVAL,
};
use crate::map::OsdMap;
pub(crate) use crate::server::{Place, Server, ShutOut};
use crate::stripes::Stripes;
use crate::sys::{Inode, NO_SNAPSHOT, Perm};
use crate::{CephStore, Shared, server};
use dafs_store::{
    Device, DeviceKey, FileId, FsId, Layouts, Packing, Placement, Result, StoreError,
};
use rustc_hash::FxHashMap;
use siphasher::sip128::{Hasher128, SipHasher24};
use std::hash::Hasher;
use std::num::NonZeroU32;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// The attribute that tells how a file is cut.
const LAYOUT: &[u8] = b"ceph.file.layout";

/// How a file is cut into objects.
pub(crate) fn stripes(inode: &Inode, perm: &Perm<'_>) -> Result<Stripes> {
    let mut text = vec![0; 1024];
    let len = inode.xattr(LAYOUT, &mut text, perm)?;
    Stripes::parse(&text[..len])
}

/// The data servers of a store, and what clients were told of them.
pub(crate) struct Spread {
    map: Arc<OsdMap>,
    servers: Vec<Arc<Server>>,
    ids: Arc<Ids>,
    /// The file system of the handles that clients show to data servers.
    data_fs: FsId,
    by: crate::Told,
    shut_out: Arc<ShutOut>,
    devices: Mutex<Devices>,
    told: Mutex<Told>,
}

/// Devices that clients may ask about. The oldest go first: who does not find one uses the metadata
/// server, or asks for a layout again.
#[derive(Default)]
struct Devices {
    known: FxHashMap<DeviceKey, (Device, u64)>,
    uses: u64,
}

/// Files whose placement was told, and those of them that lie elsewhere now.
#[derive(Default)]
struct Told {
    files: FxHashMap<Object, Known>,
    moved: Vec<Object>,
    /// Placements told so far.
    count: u64,
}

#[derive(Clone)]
struct Known {
    stripes: Arc<Stripes>,
    places: usize,
    device: DeviceKey,
    /// Which of all placements that were told it is.
    told: u64,
}

impl Told {
    /// A placement is told. When there are too many, nobody looks any more after those that were told
    /// longest ago, so they are given back.
    fn insert(&mut self, object: Object, stripes: Arc<Stripes>, places: usize, device: DeviceKey) {
        if self.files.len() >= PLACED_MAX && !self.files.contains_key(&object) {
            let mut oldest: Vec<_> =
                self.files.iter().map(|(object, known)| (known.told, *object)).collect();
            let (first, ..) = oldest.select_nth_unstable_by_key(PLACED_MAX / 16, |(told, _)| *told);
            for (_, object) in first {
                self.files.remove(object);
                self.moved.push(*object);
            }
        }
        self.count += 1;
        self.files.insert(object, Known { stripes, places, device, told: self.count });
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What these hold is whole between any two steps.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How many units a pattern covers for a file of some size: with room to grow, for files that are being
/// written.
fn places(size: u64, unit_bytes: NonZeroU32) -> usize {
    let bytes = size.saturating_mul(2).max(PATTERN_BYTES_MIN);
    let units = usize::try_from(bytes.div_ceil(unit_bytes.get().into())).unwrap_or(usize::MAX);
    // In few steps, lest it becomes another one each time.
    units.min(PATTERN_PLACES_MAX).next_power_of_two()
}

/// The data servers one after the other; which is first differs from file to file.
fn by_turns(ino: u64, places: usize, servers: usize) -> Vec<u32> {
    let turns = (0..servers as u32).cycle();
    turns.skip(ino as usize % servers.max(1)).take(places).collect()
}

impl Spread {
    pub(crate) fn new(
        map: Arc<OsdMap>,
        servers: Vec<Arc<Server>>,
        ids: Arc<Ids>,
        (data_fs, by): (FsId, crate::Told),
        shut_out: Arc<ShutOut>,
    ) -> Self {
        let (devices, told) = Default::default();
        Self { map, servers, ids, data_fs, by, shut_out, devices, told }
    }

    /// The data servers of this process.
    pub(crate) fn here(&self) -> impl Iterator<Item = &Arc<CephData>> {
        self.servers.iter().filter_map(|server| server.here())
    }

    /// The device of a file. `None` when one of its daemons has no data server, or none that is there.
    fn device_of(
        &self,
        object: Object,
        stripes: &Stripes,
        places: usize,
    ) -> Result<Option<(DeviceKey, Device)>> {
        let Some(daemons) = self.map.daemons(object.ino, stripes, 0..places as u64)? else {
            return Ok(None);
        };
        let server_of = |daemon: u32| {
            let at = self.servers.iter().position(|server| server.is_next_to(daemon))?;
            u32::try_from(at).ok()
        };
        let pattern: Option<Vec<u32>> = match self.by {
            crate::Told::Placement => daemons.into_iter().map(server_of).collect(),
            crate::Told::Turns => Some(by_turns(object.ino, places, self.servers.len())),
        };
        let Some(pattern) = pattern else { return Ok(None) };
        // Those without a part of it have no say.
        let mut used = pattern.clone();
        used.sort_unstable();
        used.dedup();
        let doors = used.iter().map(|&at| self.servers[at as usize].door());
        let Some(doors) = doors.collect::<Option<Vec<_>>>() else { return Ok(None) };
        let place = |at: &u32| used.binary_search(at).ok().and_then(|at| u32::try_from(at).ok());
        let pattern: Vec<_> = pattern.iter().filter_map(place).collect();
        let mut hasher = SipHasher24::new();
        for (addresses, run) in &doors {
            for address in addresses {
                hasher.write(address.to_string().as_bytes());
                hasher.write_u8(0);
            }
            hasher.write_u64(*run);
        }
        let servers = doors.into_iter().map(|(addresses, _)| addresses).collect();
        pattern.iter().for_each(|&server| hasher.write_u32(server));
        let key = DeviceKey(hasher.finish128().as_bytes());
        Ok(Some((key, Device { pattern, servers })))
    }

    fn note_device(&self, key: DeviceKey, device: Device) {
        let mut devices = lock(&self.devices);
        devices.uses += 1;
        let now = devices.uses;
        if devices.known.len() >= DEVICES_MAX && !devices.known.contains_key(&key) {
            let oldest = devices.known.iter().min_by_key(|(_, (_, used))| *used);
            if let Some(oldest) = oldest.map(|(key, _)| *key) {
                devices.known.remove(&oldest);
            }
        }
        devices.known.entry(key).or_insert((device, now)).1 = now;
    }

    fn place(&self, object: Object, inode: &Inode, size: u64) -> Result<Option<Placement>> {
        let stripes = stripes(inode, &Perm::new(inode.mount(), &server())?)?;
        let places = places(size, stripes.unit_bytes);
        let Some((key, device)) = self.device_of(object, &stripes, places)? else {
            return Ok(None);
        };
        self.note_device(key, device);
        let unit_bytes = stripes.unit_bytes;
        lock(&self.told).insert(object, Arc::new(stripes), places, key);
        let (epoch, _) = key.0.split_at(8);
        let epoch = epoch.iter().fold(0, |epoch, &byte| epoch << 8 | u64::from(byte));
        let file = self.ids.seal(object);
        Ok(Some(Placement {
            epoch,
            spread: dafs_store::Spread::Stripes(dafs_store::Stripes {
                device: key,
                first_place: 0,
                unit_bytes,
                packing: Packing::Sparse,
                handles: vec![[&self.data_fs.0[..], &file.0[..]].concat().into_boxed_slice()],
            }),
        }))
    }

    /// Has all data servers make stable how far a file reaches. Tells how far it does at least, if one of
    /// them knows.
    fn settle(&self, object: Object) -> Result<Settled> {
        let mut size = None;
        let mut waiting = Vec::new();
        for server in &self.servers {
            match server.settled_size(object)? {
                Some(settled) => size = size.max(settled),
                None => waiting.push(server),
            }
        }
        let Some((first, others)) = waiting.split_first() else { return Ok(size) };
        // Each waits for a disk or a network, so they do at the same time.
        std::thread::scope(|scope| {
            let others: Vec<_> =
                others.iter().map(|server| scope.spawn(|| server.settle(object))).collect();
            let mut settled = first.settle(object).map(|first| size.max(first));
            for other in others {
                let other = other.join().unwrap_or(Err(StoreError::Io));
                settled = settled.and_then(|size| Ok(size.max(other?)));
            }
            settled
        })
    }

    /// A file reaches so far now: if its pattern has become too short, it gets another one.
    fn note_size(&self, object: Object, end: u64) {
        let mut told = lock(&self.told);
        let outgrown = told.files.get(&object).is_some_and(|known| {
            let unit_bytes = u64::from(known.stripes.unit_bytes.get());
            known.places < PATTERN_PLACES_MAX && end > known.places as u64 * unit_bytes
        });
        if outgrown {
            told.files.remove(&object);
            told.moved.push(object);
        }
    }

    /// The map of daemons has changed: looks which files lie elsewhere now.
    fn look_again(&self) {
        let files: Vec<_> =
            lock(&self.told).files.iter().map(|(&object, known)| (object, known.clone())).collect();
        for (object, known) in files {
            let device = self.device_of(object, &known.stripes, known.places);
            if matches!(&device, Ok(Some((key, _))) if *key == known.device) {
                continue;
            }
            let mut told = lock(&self.told);
            if told.files.remove(&object).is_some() {
                told.moved.push(object);
            }
        }
    }

    /// What is to be done now and then.
    fn turn(&self) {
        match self.map.refresh() {
            Ok(true) => self.look_again(),
            Ok(false) => {}
            Err(error) => tracing::warn!(%error, "the monitors of ceph do not answer"),
        }
        for data in self.here() {
            data.close_idle();
            data.take_ends().into_iter().for_each(|(object, end)| self.note_size(object, end));
        }
        // Clients are to go through the metadata server while one is away, and to it again when it is back.
        let changed = self.servers.iter().filter(|server| server.turn(&self.shut_out)).count();
        if changed > 0 {
            self.look_again();
        }
    }
}

/// The thread that watches the map of daemons. Dropping it ends it.
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
        let thread = std::thread::Builder::new().name("dafs-ceph-watch".to_owned()).spawn(run)?;
        Ok(Self { end: Some(end), thread: Some(thread) })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        drop(self.end.take());
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that watches the map of ceph had failed");
        }
    }
}

impl std::fmt::Debug for Spread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Spread").field("servers", &self.servers).finish_non_exhaustive()
    }
}

impl Shared {
    fn spread(&self) -> Result<&Arc<Spread>> {
        self.spread.as_ref().map(|(spread, _)| spread).ok_or(StoreError::NotSupported)
    }
}

impl Layouts for CephStore {
    fn placement(&self, file: &FileId, _write: bool) -> Result<Option<Placement>> {
        let spread = self.shared.spread()?;
        let (object, inode) = self.shared.inode(file)?;
        if object.snap != NO_SNAPSHOT {
            return Ok(None);
        }
        let size = self.shared.stat(object, &inode)?.size;
        spread.place(object, &inode, size)
    }

    fn device(&self, key: &DeviceKey) -> Option<Device> {
        let mut devices = lock(&self.shared.spread().ok()?.devices);
        devices.uses += 1;
        let now = devices.uses;
        let (device, used) = devices.known.get_mut(key)?;
        *used = now;
        Some(device.clone())
    }

    fn devices(&self) -> Vec<DeviceKey> {
        let Ok(spread) = self.shared.spread() else { return Vec::new() };
        lock(&spread.devices).known.keys().copied().collect()
    }

    fn commit(&self, file: &FileId, end: Option<u64>) -> Result<u64> {
        let spread = self.shared.spread()?;
        let object = self.shared.ids.open(file)?;
        // What it was written with knows how far it reaches. To ask the metadata server of ceph would take
        // from all data servers the leave to write back, which each has to get again.
        let known = spread.settle(object)?;
        let size = match known.filter(|known| end.is_none_or(|end| end <= *known)) {
            Some(size) => size,
            None => {
                let (object, inode) = self.shared.inode(file)?;
                self.shared.stat(object, &inode)?.size
            }
        };
        if end.is_some_and(|end| end > size) {
            return Err(StoreError::Invalid);
        }
        spread.note_size(object, size);
        Ok(size)
    }

    /// The data servers are clients of the file system, whose size is always known to it.
    fn settle(&self, _file: &FileId) -> Result<()> {
        Ok(())
    }

    fn forget(&self, file: &FileId) -> Result<()> {
        let spread = self.shared.spread()?;
        let object = self.shared.ids.open(file)?;
        let mut told = Ok(());
        for server in &spread.servers {
            told = told.and(server.forget(object));
        }
        told
    }

    fn belief(&self) -> Duration {
        let servers = self.shared.spread().map_or(&[][..], |spread| &spread.servers);
        servers.iter().map(|server| server.belief()).max().unwrap_or_default()
    }

    fn settled(&self) -> Result<()> {
        self.shared.spread()?.servers.iter().try_for_each(|server| server.settled())
    }

    fn take_moved(&self, sink: &mut dyn FnMut(FileId)) {
        let Ok(spread) = self.shared.spread() else { return };
        let moved = std::mem::take(&mut lock(&spread.told).moved);
        moved.into_iter().for_each(|object| sink(self.shared.ids.seal(object)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_cover_files_and_what_may_come() {
        let unit = |bytes| NonZeroU32::new(bytes).unwrap();
        assert_eq!(places(0, unit(4 << 20)), 64);
        assert_eq!(places(200 << 20, unit(4 << 20)), 128);
        assert_eq!(places(0, unit(1 << 30)), 1);
        assert_eq!(places(0, unit(65_536)), 1024);
        assert_eq!(places(u64::MAX, unit(4 << 20)), 1024);
    }

    #[test]
    fn without_placement_all_data_servers_have_their_turn() {
        assert_eq!(by_turns(4, 7, 3), [1, 2, 0, 1, 2, 0, 1]);
        assert_eq!(by_turns(6, 2, 3), [0, 1]);
    }

    #[test]
    fn those_that_were_told_longest_ago_are_given_back() {
        let text = b"stripe_unit=65536 stripe_count=1 object_size=65536 pool=data";
        let stripes = Arc::new(Stripes::parse(text).unwrap());
        let object = |ino| Object { ino, snap: NO_SNAPSHOT };
        let mut told = Told::default();
        let max = PLACED_MAX as u64;
        for ino in 0..max {
            told.insert(object(ino), stripes.clone(), 1, DeviceKey([0; 16]));
        }
        // The first is told again.
        told.insert(object(0), stripes.clone(), 1, DeviceKey([0; 16]));
        assert!(told.moved.is_empty());
        told.insert(object(max), stripes, 1, DeviceKey([0; 16]));
        let mut moved: Vec<_> = told.moved.iter().map(|object| object.ino).collect();
        moved.sort_unstable();
        assert!(moved.into_iter().eq(1..=max / 16));
        assert_eq!(told.files.len() as u64, max + 1 - max / 16);
    }
}
