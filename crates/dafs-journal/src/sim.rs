//! A disk in memory that loses unstable data, for simulations and tests.
//!
//! Invariants
//! * Deterministic: the caller chooses the losses.
//! * Writes become stable in sectors, each wholly or not at all, in any order.

use crate::disk::Disk;
use dafs_mem::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::sync::MutexGuard;

/// The unit of an atomic write to the device, in bytes.
pub const SECTOR_BYTES: usize = 512;

#[derive(Default, Clone)]
struct Segment {
    content: Vec<u8>,
    stable: Vec<u8>,
    /// Sectors whose content is not stable.
    dirty: Vec<usize>,
}

#[derive(Default)]
struct State {
    segments: BTreeMap<u64, Segment>,
    /// Removed segments, which may reappear.
    removed: BTreeMap<u64, Segment>,
    spare: Option<Vec<u8>>,
    calls: u64,
    fail_after: Option<u64>,
    syncs: u64,
    key: [u8; 16],
}

/// A disk in memory.
#[derive(Default)]
pub struct SimDisk(Mutex<State>);

impl SimDisk {
    /// Makes an empty disk.
    pub fn new() -> Self {
        Self::default()
    }

    /// Changes the key of the records' checksums.
    pub fn change_key(&self, key: [u8; 16]) {
        self.0.lock().key = key;
    }

    fn enter(&self) -> io::Result<MutexGuard<'_, State>> {
        let mut state = self.0.lock();
        state.calls += 1;
        if state.fail_after.is_some_and(|after| state.calls > after) {
            return Err(io::Error::other("the simulated disk fails"));
        }
        Ok(state)
    }

    /// Cuts the power: each unstable sector, and each removal, survives only if `lasts` returns
    /// true.
    pub fn cut_power(&self, lasts: &mut dyn FnMut() -> bool) {
        let mut state = self.0.lock();
        for segment in state.segments.values_mut() {
            let mut dirty = std::mem::take(&mut segment.dirty);
            dirty.sort_unstable();
            dirty.dedup();
            for sector in dirty {
                if lasts() {
                    segment.keep(sector);
                }
            }
            segment.content = segment.stable.clone();
        }
        for (number, segment) in std::mem::take(&mut state.removed) {
            if !lasts() {
                let content = segment.stable.clone();
                let back = Segment { content, stable: segment.stable, dirty: Vec::new() };
                state.segments.entry(number).or_insert(back);
            }
        }
        state.spare = None;
    }

    /// Makes every call fail after `calls` more of them. `None` ends that.
    pub fn fail_after(&self, calls: Option<u64>) {
        let mut state = self.0.lock();
        state.fail_after = calls.map(|calls| state.calls + calls);
    }

    /// The number of syncs.
    pub fn syncs(&self) -> u64 {
        self.0.lock().syncs
    }

    /// Damages the content of a segment. Makes the segment if it is missing.
    pub fn tamper(&self, segment: u64, change: impl FnOnce(&mut Vec<u8>)) {
        let mut state = self.0.lock();
        let segment = state.segments.entry(segment).or_default();
        change(&mut segment.content);
        segment.stable = segment.content.clone();
        segment.dirty.clear();
    }

    /// Removes a segment, to simulate a loss.
    pub fn lose(&self, segment: u64) {
        self.0.lock().segments.remove(&segment);
    }
}

impl Segment {
    fn keep(&mut self, sector: usize) {
        let from = sector * SECTOR_BYTES;
        let to = (from + SECTOR_BYTES).min(self.content.len());
        if self.stable.len() < to {
            self.stable.resize(to, 0);
        }
        self.stable[from..to].copy_from_slice(&self.content[from..to]);
    }
}

fn missing() -> io::Error {
    io::ErrorKind::NotFound.into()
}

impl Disk for SimDisk {
    fn key(&self) -> [u8; 16] {
        self.0.lock().key
    }

    fn list(&self) -> io::Result<Vec<u64>> {
        Ok(self.enter()?.segments.keys().copied().collect())
    }

    fn read(&self, segment: u64) -> io::Result<Vec<u8>> {
        let state = self.enter()?;
        state.segments.get(&segment).map(|segment| segment.content.clone()).ok_or_else(missing)
    }

    fn make(&self, segment: u64, len_bytes: u64) -> io::Result<()> {
        let mut state = self.enter()?;
        let mut content = state.spare.take().unwrap_or_default();
        content.resize(usize::try_from(len_bytes).map_err(io::Error::other)?, 0);
        let made = Segment { stable: content.clone(), content, dirty: Vec::new() };
        state.removed.remove(&segment);
        state.segments.insert(segment, made);
        Ok(())
    }

    fn write(&self, segment: u64, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.enter()?;
        let segment = state.segments.get_mut(&segment).ok_or_else(missing)?;
        let from = usize::try_from(offset).map_err(io::Error::other)?;
        let to = from + bytes.len();
        if segment.content.len() < to {
            segment.content.resize(to, 0);
        }
        segment.content[from..to].copy_from_slice(bytes);
        segment.dirty.extend(from / SECTOR_BYTES..to.div_ceil(SECTOR_BYTES));
        Ok(())
    }

    fn sync(&self, segment: u64) -> io::Result<()> {
        let mut state = self.enter()?;
        state.syncs += 1;
        let segment = state.segments.get_mut(&segment).ok_or_else(missing)?;
        for sector in std::mem::take(&mut segment.dirty) {
            segment.keep(sector);
        }
        Ok(())
    }

    fn remove(&self, segment: u64) -> io::Result<()> {
        let mut state = self.enter()?;
        let gone = state.segments.remove(&segment).ok_or_else(missing)?;
        state.spare = Some(gone.content.clone());
        state.removed.insert(segment, gone);
        Ok(())
    }

    fn name(&self, segment: u64) -> String {
        format!("segment {segment}")
    }
}
