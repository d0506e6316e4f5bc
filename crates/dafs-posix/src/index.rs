//! Where objects were last seen, for servers that may not open objects by handle, and for exports
//! with `subtree_check`.
//!
//! Invariants
//! * The index is a memory of hints. Nothing is believed before the kernel confirmed it.
//! * It is bounded; what it forgot is found again by a scan.
//! * Nobody waits for a scan: there is one at a time, each call takes it a little further, and
//!   after a whole slice it rests as long as the slice took. Whoever comes meanwhile is told `Busy`.
//! * What a complete scan did not find counts as gone for a few seconds, unless the store sees it.

use super::cache::ClockCache;
use super::node::{Node, lock};
use crate::limits::{GONE_IDS_MAX, INDEX_ENTRIES_MAX, MISSING_KEEP_MS, SCAN_WANTED_MAX};
use dafs_store::{FileId, Result, StoreError};
use rustc_hash::FxHashSet;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

/// The directory that an object is in, and its name there.
type Place = (FileId, Box<[u8]>);

/// Places by id.
pub(super) struct Index {
    places: Mutex<ClockCache<FileId, Place>>,
    /// Ids of objects whose last name this store removed.
    gone: Mutex<ClockCache<FileId, ()>>,
    /// Ids that a scan did not find, and until when that counts.
    missing: Mutex<ClockCache<FileId, Instant>>,
    scan: Mutex<Scan>,
}

/// A directory that a scan is in.
pub(super) struct Listing {
    pub(super) dir: Arc<Node>,
    pub(super) fd: OwnedFd,
    /// Names that were read and not looked at yet.
    pub(super) names: Vec<Box<[u8]>>,
}

/// A walk through the whole export, which goes on where the last call left it.
#[derive(Default)]
pub(super) struct Scan {
    /// Directories that are still to be listed.
    pub(super) directories: Vec<FileId>,
    pub(super) listing: Option<Listing>,
    /// Entries that a scan looks at before it gives up, and how many of them are left.
    entries_max: usize,
    entries_left: usize,
    /// What is looked for since this scan began, and what the next one will look for.
    wanted: FxHashSet<FileId>,
    waiting: FxHashSet<FileId>,
    /// Set when the server lacked something, so that not finding proves nothing.
    pub(super) hindered: bool,
    rests_until: Option<Instant>,
}

impl Scan {
    /// Notes what is looked for; begins a scan if none is under way.
    ///
    /// # Errors
    /// [`StoreError::Busy`] while the scan rests.
    pub(super) fn want(&mut self, id: &FileId, root: &FileId) -> Result<()> {
        if self.wanted.len() + self.waiting.len() >= SCAN_WANTED_MAX {
            // Those who asked first may have gone away; those who still care ask again.
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

    /// Begins at the root, for all who wait.
    pub(super) fn begin(&mut self, root: &FileId) {
        self.wanted = std::mem::take(&mut self.waiting);
        self.directories = vec![*root];
        self.listing = None;
        self.entries_left = self.entries_max;
        self.hindered = false;
    }

    /// Counts an entry; false when the export is larger than what is looked through.
    pub(super) fn count_entry(&mut self) -> bool {
        let left = self.entries_left.checked_sub(1);
        self.entries_left = left.unwrap_or(0);
        left.is_some()
    }

    /// Notes that something was seen; tells whether it was looked for.
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
    /// An index whose scans give up after so many entries.
    pub(super) fn new(scan_entries_max: usize) -> Self {
        Self {
            places: Mutex::new(ClockCache::new(INDEX_ENTRIES_MAX)),
            gone: Mutex::new(ClockCache::new(GONE_IDS_MAX)),
            missing: Mutex::new(ClockCache::new(GONE_IDS_MAX)),
            scan: Mutex::new(Scan { entries_max: scan_entries_max, ..Scan::default() }),
        }
    }

    pub(super) fn learn(&self, id: FileId, parent: FileId, name: &[u8]) {
        let mut places = lock(&self.places);
        let known = places.get(&id).is_some_and(|(p, n)| *p == parent && **n == *name);
        if !known {
            places.insert(id, (parent, name.into()));
        }
        drop(places);
        lock(&self.missing).remove(&id);
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

    /// Whether this store removed an object for good.
    pub(super) fn is_gone(&self, id: &FileId) -> bool {
        lock(&self.gone).get(id).is_some()
    }

    /// Whether a scan did not find an object a moment ago.
    pub(super) fn is_missing(&self, id: &FileId) -> bool {
        let mut missing = lock(&self.missing);
        let counts = missing.get(id).is_some_and(|&until| Instant::now() < until);
        if !counts {
            missing.remove(id);
        }
        counts
    }

    /// The scan, to take it further.
    ///
    /// # Errors
    /// [`StoreError::Busy`] while another thread does.
    pub(super) fn try_scan(&self) -> Result<MutexGuard<'_, Scan>> {
        match self.scan.try_lock() {
            Ok(scan) => Ok(scan),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => Err(StoreError::Busy),
        }
    }

    /// Ends a scan that looked through everything: what it did not find is gone for now.
    pub(super) fn scan_ended(&self, scan: &mut Scan) {
        scan.directories.clear();
        scan.listing = None;
        let not_found = std::mem::take(&mut scan.wanted);
        if scan.hindered {
            return;
        }
        let until = Instant::now() + Duration::from_millis(MISSING_KEEP_MS);
        let mut missing = lock(&self.missing);
        for id in not_found {
            missing.insert(id, until);
        }
    }
}
