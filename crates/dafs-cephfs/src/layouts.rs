//! The placement of files, for clients that access the data servers themselves.
//!
//! Notes
//! * The daemons of a file's objects follow no repeating rule, so each file has its own pattern,
//!   which covers a few times its size. A file that outgrows it gets another one.
//! * Finding the daemon of each unit takes longer than opening a file. So placements are cached
//!   until one of their inputs changes.
//!
//! Invariants
//! * A placement names no daemon without a data server: clients access such a file through the
//!   metadata server.
//! * When the map of daemons has changed, every file with a placement in use is checked again.

use crate::data::{CephData, Settled};
use crate::id::Object;
use crate::limits::{DEVICES_MAX, PATTERN_BYTES_MIN, PATTERN_PLACES_MAX, PLACE_TRIES_MAX};
use crate::map::OsdMap;
pub(crate) use crate::server::{Evict, Place, Server};
use crate::stripes::Stripes;
use crate::sys::{Inode, NO_SNAPSHOT};
use crate::{CephStore, Shared, server};
use dafs_mem::{Failing, Mutex};
use dafs_store::inode::{Ids, Inode as _, Placed};
use dafs_store::{
    Device, DeviceKey, FileId, FsId, Layouts, NfsAddresses, Placement, Result, StoreError,
};
use rustc_hash::FxHashMap;
use siphasher::sip128::{Hasher128, SipHasher24};
use std::hash::Hasher;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The extended attribute with the layout of a file.
const LAYOUT: &[u8] = b"ceph.file.layout";

/// Reads how a file is divided into objects.
pub(crate) fn stripes(inode: &Inode) -> Result<Stripes> {
    let mut text = vec![0; 1024];
    let len = inode.xattr(LAYOUT, &mut text, &server())?;
    Stripes::parse(&text[..len])
}

/// The data servers of a store, and the placements that clients have got.
pub(crate) struct Spread {
    map: Arc<OsdMap>,
    servers: Vec<Arc<Server>>,
    ids: Arc<Ids>,
    /// The file system id in the handles that clients show to data servers.
    data_fs: FsId,
    by: crate::Told,
    evict: Arc<Evict>,
    /// Counts the checks of all placements.
    looks: AtomicU64,
    /// The epoch of the map at the last check.
    looked: AtomicU64,
    devices: Mutex<Devices>,
    told: Mutex<Told>,
    asks: Failing,
}

/// The devices that clients may ask about. The oldest are dropped first. A client that does not
/// find its device uses the metadata server, or asks for a layout again.
#[derive(Default)]
struct Devices {
    known: FxHashMap<DeviceKey, (Device, u64)>,
    uses: u64,
}

/// Files with placements in use.
#[derive(Default)]
struct Told {
    files: Placed<Object, Known>,
}

#[derive(Clone)]
struct Known {
    stripes: Arc<Stripes>,
    /// True if the file had content, so that its layout cannot change any more.
    fixed: bool,
    places: usize,
    device: DeviceKey,
    /// The inputs of the device; `None` if they changed while it was made.
    seen: Option<Seen>,
}

/// The inputs of a device, other than the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    looks: u64,
    /// The epoch of the map of daemons.
    map: u64,
    /// A hash of the reachable data servers and their addresses.
    doors: u64,
}

impl Told {
    /// Records a placement.
    fn insert(
        &mut self,
        object: Object,
        (stripes, fixed): (Arc<Stripes>, bool),
        places: usize,
        device: DeviceKey,
    ) {
        let known = Known { stripes, fixed, places, device, seen: None };
        let before = self.files.insert(object, known);
        if before.is_some_and(|before| before.device != device) {
            // Other clients may have got the previous device.
            self.files.note_moved(object);
        }
    }

    /// Records the inputs of a device after they have not changed while it was made.
    fn made_of(&mut self, object: Object, device: DeviceKey, seen: Seen) {
        if let Some(known) = self.files.get_mut(&object).filter(|known| known.device == device) {
            known.seen = Some(seen);
        }
    }

    /// Returns a cached placement of a file of this size, if its inputs have not changed.
    fn again(
        &mut self,
        object: Object,
        size: u64,
        seen: Seen,
    ) -> Option<(Arc<Stripes>, DeviceKey)> {
        let known = self.files.get(&object)?;
        let is_same = known.fixed
            && known.places == places(size, known.stripes.unit_bytes)
            && known.seen == Some(seen);
        if !is_same {
            return None;
        }
        let again = (known.stripes.clone(), known.device);
        self.files.renew(&object);
        Some(again)
    }

    /// Records the end of a file that data servers have written to. A file with content keeps its
    /// layout, so the next placement does not ask the MDS for it. True if the file has outgrown its
    /// pattern.
    fn reached(&mut self, object: Object, end: u64) -> bool {
        let Some(known) = self.files.get_mut(&object) else { return false };
        known.fixed |= end > 0;
        let unit_bytes = u64::from(known.stripes.unit_bytes.get());
        known.places < PATTERN_PLACES_MAX && end > known.places as u64 * unit_bytes
    }

    /// Returns how a file is divided into objects, if it is known and cannot change.
    fn stripes(&self, object: Object) -> Option<Arc<Stripes>> {
        self.files.get(&object).filter(|known| known.fixed).map(|known| known.stripes.clone())
    }
}

/// Returns the number of units that a pattern covers for a file of some size, with room for a file
/// that is growing.
fn places(size: u64, unit_bytes: NonZeroU32) -> usize {
    let bytes = size.saturating_mul(2).max(PATTERN_BYTES_MIN);
    let units = usize::try_from(bytes.div_ceil(unit_bytes.get().into())).unwrap_or(usize::MAX);
    // Powers of two, so that a growing file rarely changes its pattern.
    units.min(PATTERN_PLACES_MAX).next_power_of_two()
}

/// Returns the data servers round robin. The first one depends on the file.
fn by_turns(ino: u64, places: usize, servers: usize) -> Vec<u32> {
    let turns = (0..servers as u32).cycle();
    turns.skip(ino as usize % servers.max(1)).take(places).collect()
}

fn hash_door(hasher: &mut SipHasher24, (addresses, run): &(NfsAddresses, u64)) {
    addresses.write_to(hasher);
    hasher.write_u64(*run);
}

impl Spread {
    pub(crate) fn new(
        map: Arc<OsdMap>,
        servers: Vec<Arc<Server>>,
        ids: Arc<Ids>,
        (data_fs, by): (FsId, crate::Told),
        evict: Arc<Evict>,
    ) -> Self {
        let (looks, devices, told, asks) = Default::default();
        let looked = AtomicU64::new(map.number());
        Self { map, servers, ids, data_fs, by, evict, looks, looked, devices, told, asks }
    }

    /// Returns the data servers of this process.
    pub(crate) fn here(&self) -> impl Iterator<Item = &Arc<CephData>> {
        self.servers.iter().filter_map(|server| server.here())
    }

    /// Returns the device of a file. `None` if one of its daemons has no reachable data server.
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
        // Other data servers are not part of the device.
        let mut used = pattern.clone();
        used.sort_unstable();
        used.dedup();
        let doors = used.iter().map(|&at| self.servers[at as usize].door());
        let Some(doors) = doors.collect::<Option<Vec<_>>>() else { return Ok(None) };
        let place = |at: &u32| used.binary_search(at).ok().and_then(|at| u32::try_from(at).ok());
        let pattern: Vec<_> = pattern.iter().filter_map(place).collect();
        let mut hasher = SipHasher24::new();
        doors.iter().for_each(|door| hash_door(&mut hasher, door));
        let servers = doors.into_iter().map(|(addresses, _)| addresses).collect();
        pattern.iter().for_each(|&server| hasher.write_u32(server));
        let key = DeviceKey(hasher.finish128().as_bytes());
        Ok(Some((key, Device { pattern, servers })))
    }

    fn note_device(&self, key: DeviceKey, device: Device) {
        let mut devices = self.devices.lock();
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

    /// True if clients may still ask about a device. Then it becomes one of the last to be dropped.
    fn touch_device(&self, key: &DeviceKey) -> bool {
        let mut devices = self.devices.lock();
        devices.uses += 1;
        let now = devices.uses;
        devices.known.get_mut(key).map(|(_, used)| *used = now).is_some()
    }

    fn seen(&self) -> Seen {
        let mut hasher = SipHasher24::new();
        for server in &self.servers {
            let door = server.door();
            hasher.write_u8(door.is_some().into());
            door.iter().for_each(|door| hash_door(&mut hasher, door));
        }
        let doors = hasher.finish();
        Seen { looks: self.looks.load(Ordering::SeqCst), map: self.map.number(), doors }
    }

    fn place(&self, object: Object, inode: &Inode, size: u64) -> Result<Option<Placement>> {
        let seen = self.seen();
        let again = self.told.lock().again(object, size, seen);
        if let Some((stripes, key)) = again.filter(|(_, key)| self.touch_device(key)) {
            return Ok(Some(self.placement(object, &stripes, key)));
        }
        let known = self.told.lock().stripes(object);
        let stripes = match known {
            Some(stripes) => stripes,
            // This call asks the MDS.
            None => Arc::new(stripes(inode)?),
        };
        let places = places(size, stripes.unit_bytes);
        let mut key = None;
        for _ in 0..PLACE_TRIES_MAX {
            let before = self.seen();
            let Some((found, device)) = self.device_of(object, &stripes, places)? else {
                // The file also lost its earlier placement.
                self.told.lock().files.remove(object);
                return Ok(None);
            };
            self.note_device(found, device);
            self.told.lock().insert(object, (stripes.clone(), size > 0), places, found);
            // Otherwise a check of all placements may have missed this one.
            if self.seen() == before {
                self.told.lock().made_of(object, found, before);
                key = Some(found);
                break;
            }
        }
        let key = key.ok_or(StoreError::Busy)?;
        Ok(Some(self.placement(object, &stripes, key)))
    }

    fn placement(&self, object: Object, stripes: &Stripes, key: DeviceKey) -> Placement {
        self.ids.placement(object, self.data_fs, key, stripes.unit_bytes)
    }

    /// Makes all data servers make the size of a file stable. Returns the least size of the file,
    /// if one of them knows it.
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
        // Each of them may wait for a disk or a network, so they run in parallel.
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

    /// Drops the placement of a file that has outgrown its pattern, so that it gets another one.
    fn note_size(&self, object: Object, end: u64) {
        let mut told = self.told.lock();
        if told.reached(object, end) {
            told.files.remove(object);
        }
    }

    /// Checks all placements after a change of the map of daemons.
    fn look_again(&self) {
        self.looks.fetch_add(1, Ordering::SeqCst);
        let files: Vec<_> =
            self.told.lock().files.iter().map(|(&object, known)| (object, known.clone())).collect();
        for (object, known) in files {
            let device = self.device_of(object, &known.stripes, known.places);
            if matches!(&device, Ok(Some((key, _))) if *key == known.device) {
                continue;
            }
            self.told.lock().files.remove(object);
        }
    }

    /// Does the periodic work.
    pub(crate) fn turn(&self) {
        match self.asks.news(&self.map.refresh()) {
            Some(Err(error)) => tracing::warn!(%error, "the monitors of ceph do not answer"),
            Some(Ok(_)) => tracing::info!("the monitors of ceph answer again"),
            None => {}
        }
        // A request for a placement may have fetched the new map before.
        let number = self.map.number();
        if self.looked.swap(number, Ordering::SeqCst) != number {
            self.look_again();
        }
        for data in self.here() {
            data.close_idle();
            data.take_ends().into_iter().for_each(|(object, end)| self.note_size(object, end));
        }
        // While a data server is unreachable, clients use the metadata server instead of it.
        let changed = self.servers.iter().filter(|server| server.turn(&self.evict)).count();
        if changed > 0 {
            self.look_again();
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

    /// A placement that has changed is not in the table any more.
    fn is_current(&self, file: &FileId, epoch: u64) -> bool {
        let (Ok(spread), Ok(object)) = (self.shared.spread(), self.shared.ids.open(file)) else {
            return false;
        };
        let told = spread.told.lock();
        let known = told.files.get(&object);
        known.is_some_and(|known| spread.ids.epoch_of(&known.device) == epoch)
    }

    fn device(&self, key: &DeviceKey) -> Option<Device> {
        let mut devices = self.shared.spread().ok()?.devices.lock();
        devices.uses += 1;
        let now = devices.uses;
        let (device, used) = devices.known.get_mut(key)?;
        *used = now;
        Some(device.clone())
    }

    fn devices(&self) -> Vec<DeviceKey> {
        let Ok(spread) = self.shared.spread() else { return Vec::new() };
        spread.devices.lock().known.keys().copied().collect()
    }

    fn commit(&self, file: &FileId, end: Option<u64>) -> Result<u64> {
        let spread = self.shared.spread()?;
        let object = self.shared.ids.open(file)?;
        // The data servers that were written to know the size. A question to the MDS would revoke
        // the write capabilities of all data servers, which each must then get again.
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

    /// The file system always knows the size, because the data servers are its clients.
    fn recover_size(&self, _file: &FileId) -> Result<()> {
        Ok(())
    }

    fn knows_ends(&self) -> bool {
        true
    }

    fn drop_grants(&self, file: &FileId) -> Result<()> {
        let spread = self.shared.spread()?;
        let object = self.shared.ids.open(file)?;
        let told = spread.servers.iter().map(|server| server.drop_grants(object));
        told.fold(Ok(()), Result::and)
    }

    fn grant_ttl(&self) -> Duration {
        let servers = self.shared.spread().map_or(&[][..], |spread| &spread.servers);
        servers.iter().map(|server| server.grant_ttl()).max().unwrap_or_default()
    }

    fn old_grants_expired(&self) -> Result<()> {
        self.shared.spread()?.servers.iter().try_for_each(|server| server.old_grants_expired())
    }

    fn take_moved(&self, sink: &mut dyn FnMut(FileId)) {
        let Ok(spread) = self.shared.spread() else { return };
        let moved = spread.told.lock().files.take_moved();
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
    fn stripes_are_cached_once_a_file_has_content_and_moves_are_reported() {
        let text = b"stripe_unit=65536 stripe_count=1 object_size=65536 pool=data";
        let stripes = Arc::new(Stripes::parse(text).unwrap());
        let object = Object { ino: 1, snap: NO_SNAPSHOT };
        let (here, there) = (DeviceKey([0; 16]), DeviceKey([1; 16]));
        let mut told = Told::default();
        told.insert(object, (stripes.clone(), false), 1, here);
        assert!(told.stripes(object).is_none(), "somebody may have it cut otherwise");
        assert!(!told.reached(object, 0) && told.stripes(object).is_none());
        assert!(!told.reached(object, 5000) && told.stripes(object).is_some());
        assert!(told.reached(object, 65_537), "it has outgrown a pattern of one unit");
        told.insert(object, (stripes.clone(), true), 1, here);
        assert!(told.stripes(object).is_some());
        assert!(told.files.take_moved().is_empty());
        told.insert(object, (stripes, true), 1, there);
        assert_eq!(told.files.take_moved(), [object]);
        told.files.remove(object);
        told.files.remove(object);
        assert_eq!(told.files.take_moved(), [object]);
        assert!(told.stripes(object).is_none());
    }

    #[test]
    fn a_placement_is_cached_while_its_inputs_stay() {
        let text = b"stripe_unit=4194304 stripe_count=1 object_size=4194304 pool=data";
        let stripes = Arc::new(Stripes::parse(text).unwrap());
        let object = |ino| Object { ino, snap: NO_SNAPSHOT };
        let (here, there) = (DeviceKey([0; 16]), DeviceKey([1; 16]));
        let seen = Seen { looks: 1, map: 2, doors: 3 };
        let size = 5000;
        let mut told = Told::default();
        told.insert(object(1), (stripes.clone(), true), places(size, stripes.unit_bytes), here);
        let again = |told: &mut Told, size, seen| {
            told.again(object(1), size, seen).map(|(_, device)| device)
        };
        assert_eq!(again(&mut told, size, seen), None, "it changed while it was made");
        told.made_of(object(1), there, seen);
        assert_eq!(again(&mut told, size, seen), None, "that was another one");
        told.made_of(object(1), here, seen);
        assert_eq!(again(&mut told, size, seen), Some(here));
        for other in [Seen { looks: 2, ..seen }, Seen { map: 3, ..seen }, Seen { doors: 4, ..seen }]
        {
            assert_eq!(again(&mut told, size, other), None);
        }
        assert_eq!(again(&mut told, 1 << 30, seen), None, "it has grown out of that");
        // The layout of a file without content may still change.
        told.insert(object(1), (stripes.clone(), false), places(0, stripes.unit_bytes), here);
        told.made_of(object(1), here, seen);
        assert_eq!(again(&mut told, 0, seen), None);
        // A data server has written to it since.
        assert!(!told.reached(object(1), size));
        assert_eq!(again(&mut told, size, seen), Some(here));
        told.insert(object(1), (stripes.clone(), true), places(size, stripes.unit_bytes), there);
        assert_eq!(again(&mut told, size, seen), None, "made of what was there before");
        told.files.remove(object(1));
        assert_eq!(again(&mut told, size, seen), None);
    }
}
