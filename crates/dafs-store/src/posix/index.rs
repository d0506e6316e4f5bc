//! Where objects were last seen, for servers that may not open objects by handle.
//!
//! Invariants
//! * The index is a memory of hints. Nothing is believed before the kernel confirmed it.
//! * It is bounded; what it forgot is found again by a scan.
//! * Scans take at most half of the time, one at a time.

use super::cache::ClockCache;
use super::node::lock;
use crate::limits::{GONE_IDS_MAX, INDEX_ENTRIES_MAX, SCAN_WAIT_MAX_MS};
use crate::{FileId, Result, StoreError};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// The directory that an object is in, and its name there.
type Place = (FileId, Box<[u8]>);

/// Places by id.
pub(super) struct Index {
    places: Mutex<ClockCache<FileId, Place>>,
    /// Ids of objects whose last name this store removed.
    gone: Mutex<ClockCache<FileId, ()>>,
    /// When the next scan may begin.
    next_scan: Mutex<Option<Instant>>,
}

/// The right to scan.
pub(super) struct Scan<'a> {
    pub(super) next: MutexGuard<'a, Option<Instant>>,
}

impl Scan<'_> {
    /// Ends the scan, which pays for its time with a pause of the same length.
    pub(super) fn finished(&mut self, took: Duration) {
        *self.next = Some(Instant::now() + took);
    }
}

impl Index {
    pub(super) fn new() -> Self {
        Self {
            places: Mutex::new(ClockCache::new(INDEX_ENTRIES_MAX)),
            gone: Mutex::new(ClockCache::new(GONE_IDS_MAX)),
            next_scan: Mutex::new(None),
        }
    }

    pub(super) fn learn(&self, id: FileId, parent: FileId, name: &[u8]) {
        let mut places = lock(&self.places);
        let known = places.get(&id).is_some_and(|(p, n)| *p == parent && **n == *name);
        if !known {
            places.insert(id, (parent, name.into()));
        }
    }

    pub(super) fn place(&self, id: &FileId) -> Option<Place> {
        lock(&self.places).get(id).cloned()
    }

    /// Drops an entry that did not lead to its object.
    pub(super) fn misled(&self, id: &FileId) {
        lock(&self.places).remove(id);
    }

    /// Notes that a name is gone; a place that another name led to stays.
    pub(super) fn unlearn(&self, id: &FileId, parent: FileId, name: &[u8]) {
        let mut places = lock(&self.places);
        if places.get(id).is_some_and(|(p, n)| *p == parent && **n == *name) {
            places.remove(id);
        }
    }

    /// Notes that an object lost its last name and is gone for good.
    pub(super) fn bury(&self, id: &FileId) {
        lock(&self.places).remove(id);
        lock(&self.gone).insert(*id, ());
    }

    pub(super) fn is_gone(&self, id: &FileId) -> bool {
        lock(&self.gone).get(id).is_some()
    }

    /// Waits for a running scan and for the pause after it; `Busy` when the pause is long.
    pub(super) fn start_scan(&self) -> Result<Scan<'_>> {
        let next = lock(&self.next_scan);
        let pause = next.map_or(Duration::ZERO, |at| at.saturating_duration_since(Instant::now()));
        if pause > Duration::from_millis(SCAN_WAIT_MAX_MS) {
            return Err(StoreError::Busy);
        }
        std::thread::sleep(pause);
        Ok(Scan { next })
    }
}
