//! An index of the last known names of objects, for servers that may not open objects by handle,
//! and for exports with `subtree_check`.
//!
//! Invariants
//! * The index holds hints only. The kernel confirms each of them before its use.
//! * It is bounded. A scan finds dropped entries again.
//! * No call waits for a scan. There is one scan at a time, and each call continues it by a slice.
//!   After a whole slice the scan rests as long as the slice took, and other calls get `Busy`.
//! * An object that a complete scan did not find counts as gone for a few seconds, unless the store
//!   sees it.

use super::cache::ClockCache;
use super::node::Node;
use crate::limits::{GONE_IDS_MAX, INDEX_ENTRIES_MAX, MISSING_KEEP_MS, SCAN_WANTED_MAX};
use dafs_mem::Mutex;
use dafs_store::{FileId, Result, StoreError};
use rustc_hash::FxHashSet;
use std::os::fd::OwnedFd;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

/// The directory that an object is in, and its name there.
type Place = (FileId, Box<[u8]>);

/// Places by id.
pub(super) struct Index {
    places: Mutex<ClockCache<FileId, Place>>,
    /// Ids of objects whose last name this store removed.
    gone: Mutex<ClockCache<FileId, ()>>,
    /// Ids that a scan did not find, with the times until which they count as gone.
    missing: Mutex<ClockCache<FileId, Instant>>,
    scan: Mutex<Scan>,
}

/// The directory that a scan is reading.
pub(super) struct Listing {
    pub(super) dir: Arc<Node>,
    pub(super) fd: OwnedFd,
    /// Names that were read and not examined yet.
    pub(super) names: Vec<Box<[u8]>>,
}

/// A walk through the whole export, which continues where the last call stopped.
#[derive(Default)]
pub(super) struct Scan {
    /// Directories that are still to be read.
    pub(super) directories: Vec<FileId>,
    pub(super) listing: Option<Listing>,
    /// The entries that a scan reads before it gives up, and how many of them are left.
    entries_max: usize,
    entries_left: usize,
    /// The objects that this scan looks for, and those that the next one will look for.
    wanted: FxHashSet<FileId>,
    waiting: FxHashSet<FileId>,
    /// True if the server lacked resources, so that a failed search proves nothing.
    pub(super) hindered: bool,
    rests_until: Option<Instant>,
}

impl Scan {
    /// Adds an object to look for, and begins a scan if none is under way.
    ///
    /// # Errors
    /// [`StoreError::Busy`] while the scan rests.
    pub(super) fn want(&mut self, id: &FileId, root: &FileId) -> Result<()> {
        if self.wanted.len() + self.waiting.len() >= SCAN_WANTED_MAX {
            // The first clients may have gone away; the others will retry.
            self.waiting.clear();
        }
        if !self.wanted.contains(id) {
            self.waiting.insert(*id);
        }
        if self.rests_until.is_some_and(|until| Instant::now() < until) {
            return Err(StoreError::Busy);
        }
        if !self.is_under_way() {
            self.begin(root);
        }
        Ok(())
    }

    fn is_under_way(&self) -> bool {
        self.listing.is_some() || !self.directories.is_empty()
    }

    /// Begins a scan at the root, for all waiting objects.
    pub(super) fn begin(&mut self, root: &FileId) {
        self.wanted = std::mem::take(&mut self.waiting);
        self.directories = vec![*root];
        self.listing = None;
        self.entries_left = self.entries_max;
        self.hindered = false;
    }

    /// Counts an entry. False if the export is larger than a scan may read.
    pub(super) fn count_entry(&mut self) -> bool {
        let left = self.entries_left.checked_sub(1);
        self.entries_left = left.unwrap_or(0);
        left.is_some()
    }

    /// Records that an object was seen. True if it was looked for.
    pub(super) fn saw(&mut self, id: &FileId) -> bool {
        let waited = self.waiting.remove(id);
        self.wanted.remove(id) || waited
    }

    /// Rests as long as the last slice took, so that scans take at most half of the time.
    pub(super) fn rest(&mut self, took: Duration) {
        self.rests_until = Some(Instant::now() + took);
    }
}

impl Index {
    /// Makes an index whose scans give up after so many entries.
    pub(super) fn new(scan_entries_max: usize) -> Self {
        Self {
            places: Mutex::new(ClockCache::new(INDEX_ENTRIES_MAX)),
            gone: Mutex::new(ClockCache::new(GONE_IDS_MAX)),
            missing: Mutex::new(ClockCache::new(GONE_IDS_MAX)),
            scan: Mutex::new(Scan { entries_max: scan_entries_max, ..Scan::default() }),
        }
    }

    pub(super) fn learn(&self, id: FileId, parent: FileId, name: &[u8]) {
        let mut places = self.places.lock();
        let known = places.get(&id).is_some_and(|(p, n)| *p == parent && **n == *name);
        if !known {
            places.insert(id, (parent, name.into()));
        }
        drop(places);
        self.missing.lock().remove(&id);
    }

    pub(super) fn place(&self, id: &FileId) -> Option<Place> {
        self.places.lock().get(id).cloned()
    }

    /// Drops an entry that did not lead to its object.
    pub(super) fn misled(&self, id: &FileId) {
        self.places.lock().remove(id);
    }

    /// Removes an entry if its name is gone. An entry with another name stays.
    pub(super) fn unlearn(&self, id: &FileId, parent: FileId, name: &[u8]) {
        let mut places = self.places.lock();
        if places.get(id).is_some_and(|(p, n)| *p == parent && **n == *name) {
            places.remove(id);
        }
    }

    /// Records that an object has lost its last name and is gone for good.
    pub(super) fn bury(&self, id: &FileId) {
        self.places.lock().remove(id);
        self.gone.lock().insert(*id, ());
    }

    /// True if this store has removed an object for good.
    pub(super) fn is_gone(&self, id: &FileId) -> bool {
        self.gone.lock().get(id).is_some()
    }

    /// True if a scan did not find an object a moment ago.
    pub(super) fn is_missing(&self, id: &FileId) -> bool {
        let mut missing = self.missing.lock();
        let counts = missing.get(id).is_some_and(|&until| Instant::now() < until);
        if !counts {
            missing.remove(id);
        }
        counts
    }

    /// Locks the scan, to continue it.
    ///
    /// # Errors
    /// [`StoreError::Busy`] while another thread does.
    pub(super) fn try_scan(&self) -> Result<MutexGuard<'_, Scan>> {
        self.scan.try_lock().ok_or(StoreError::Busy)
    }

    /// Ends a complete scan. Objects that it did not find are gone for now.
    pub(super) fn scan_ended(&self, scan: &mut Scan) {
        scan.directories.clear();
        scan.listing = None;
        let not_found = std::mem::take(&mut scan.wanted);
        if scan.hindered {
            return;
        }
        let until = Instant::now() + Duration::from_millis(MISSING_KEEP_MS);
        let mut missing = self.missing.lock();
        for id in not_found {
            missing.insert(id, until);
        }
    }
}
