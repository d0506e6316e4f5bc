//! The store of a world: the memory store with seeded delays, short transfers and, on purpose,
//! errors.

use dafs_dat::sim::SimRng;
use dafs_mem::Mutex;
use dafs_store::{Attr, OpenFile, Result, Store, StoreError, Wait};
use dafs_testkit::stores::layer::{FileLayer, Layer, Layered, LayeredFile, Transfer, Verdict};
use std::sync::Arc;

/// The faults of the store. Chances are in parts per million.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct StoreFaults {
    /// Chance that a call with `Wait::Never` would block.
    pub(crate) would_block_ppm: u32,
    /// Chance that a transfer is cut short.
    pub(crate) short_ppm: u32,
    /// Chance that a write fails with an I/O error and changes nothing.
    pub(crate) error_ppm: u32,
    /// Danger: one write in this many is reported done and forgotten. 0: none. No store may do
    /// that; this proves that the checks notice.
    pub(crate) danger_forget_every: u32,
    /// Danger: one size of an open file in this many is reported as it was before. 0: none.
    pub(crate) danger_stale_every: u32,
}

#[derive(Debug)]
struct Chance {
    rng: SimRng,
    faults: StoreFaults,
    writes: u32,
    looks: u32,
    /// The last reported size.
    size: u64,
}

type SharedChance = Arc<Mutex<Chance>>;

/// A layer that does all that a slow and strained store may do.
pub(crate) struct Strained(SharedChance);

impl Strained {
    pub(crate) fn over(store: Arc<dyn Store>, faults: StoreFaults, rng: SimRng) -> Layered<Self> {
        let chance = Chance { rng, faults, writes: 0, looks: 0, size: 0 };
        Layered::new(store, Self(Arc::new(Mutex::new(chance))))
    }

    pub(crate) fn control(&self) -> StoreControl {
        StoreControl(self.0.clone())
    }
}

impl Layer for Strained {
    fn wrap(&self, inner: Arc<dyn OpenFile>) -> Arc<dyn OpenFile> {
        LayeredFile::over(inner, SimFile(self.0.clone()))
    }
}

/// Ends all legal faults; the dangerous ones stay.
#[derive(Clone)]
pub(crate) struct StoreControl(SharedChance);

impl StoreControl {
    pub(crate) fn calm(&self) {
        let mut chance = self.0.lock();
        chance.faults.error_ppm = 0;
    }
}

struct SimFile(SharedChance);

impl FileLayer for SimFile {
    fn judge(&self, transfer: Transfer) -> Result<Verdict> {
        let Transfer { bytes, wait, writes: writing, .. } = transfer;
        let mut chance = self.0.lock();
        let Chance { rng, faults, writes, .. } = &mut *chance;
        if wait == Wait::Never && rng.chance(faults.would_block_ppm) {
            return Err(StoreError::WouldBlock);
        }
        if writing && rng.chance(faults.error_ppm) {
            return Err(StoreError::Io);
        }
        *writes += u32::from(writing);
        let every = faults.danger_forget_every;
        let forget = writing && every > 0 && writes.is_multiple_of(every);
        let short = bytes > 1 && rng.chance(faults.short_ppm);
        // A read that may wait is short only at the end of the file. Only other transfers are cut.
        let cut = short && (writing || wait == Wait::Never);
        let bytes = if cut { rng.between(1, bytes as u64 - 1) as usize } else { bytes };
        Ok(if forget { Verdict::Forget(bytes) } else { Verdict::Pass(bytes) })
    }

    fn attr(&self, mut attr: Attr) -> Attr {
        let mut chance = self.0.lock();
        chance.looks += 1;
        let every = chance.faults.danger_stale_every;
        let stale = every > 0 && chance.looks.is_multiple_of(every) && chance.size < attr.size;
        let before = std::mem::replace(&mut chance.size, attr.size);
        attr.size = if stale { before } else { attr.size };
        attr
    }
}
