//! The store of a world: the memory store with seeded delays, short transfers and, on purpose,
//! errors.

use dafs_dat::sim::SimRng;
use dafs_mem::{Mutex, VolatileSlice};
use dafs_store::backend::before;
use dafs_store::{
    Attr, CacheAdvice, CopyRange, FileId, OpenFile, Result, SeekWhat, Stability, Store, StoreError,
    Wait, WholeFile,
};
use dafs_testkit::stores::layer::{Layer, Layered};
use std::any::Any;
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
        Arc::new(SimFile { inner, chance: self.0.clone() })
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

struct SimFile {
    inner: Arc<dyn OpenFile>,
    chance: SharedChance,
}

/// The decision about a call.
struct Verdict {
    bytes: usize,
    forget: bool,
}

impl SimFile {
    fn judge(&self, bytes: usize, wait: Wait, writing: bool) -> Result<Verdict> {
        let mut chance = self.chance.lock();
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
        Ok(Verdict { bytes, forget })
    }
}

fn sum(views: &[VolatileSlice<'_>]) -> usize {
    views.iter().map(VolatileSlice::len).sum()
}

impl OpenFile for SimFile {
    fn as_any(&self) -> &dyn Any {
        self.inner.as_any()
    }

    fn id(&self) -> FileId {
        self.inner.id()
    }

    fn read_at(&self, views: &[VolatileSlice<'_>], offset: u64, wait: Wait) -> Result<usize> {
        let verdict = self.judge(sum(views), wait, false)?;
        self.inner.read_at(&before(views, verdict.bytes), offset, wait)
    }

    fn write_at(
        &self,
        views: &[VolatileSlice<'_>],
        offset: u64,
        stability: Stability,
        wait: Wait,
    ) -> Result<usize> {
        let verdict = self.judge(sum(views), wait, true)?;
        if verdict.forget {
            return Ok(verdict.bytes);
        }
        self.inner.write_at(&before(views, verdict.bytes), offset, stability, wait)
    }

    fn commit(&self, offset: u64, len: u64) -> Result<()> {
        self.inner.commit(offset, len)
    }

    fn sync(&self) -> Result<()> {
        self.inner.sync()
    }

    fn attr(&self) -> Result<Attr> {
        let mut attr = self.inner.attr()?;
        let mut chance = self.chance.lock();
        chance.looks += 1;
        let every = chance.faults.danger_stale_every;
        let stale = every > 0 && chance.looks.is_multiple_of(every) && chance.size < attr.size;
        let before = std::mem::replace(&mut chance.size, attr.size);
        attr.size = if stale { before } else { attr.size };
        Ok(attr)
    }
}

impl WholeFile for SimFile {
    fn set_size(&self, size: u64) -> Result<()> {
        self.inner.set_size(size)
    }

    fn advise(&self, offset: u64, len: u64, advice: CacheAdvice) -> Result<()> {
        self.inner.advise(offset, len, advice)
    }

    fn seek(&self, offset: u64, what: SeekWhat) -> Result<Option<u64>> {
        self.inner.seek(offset, what)
    }

    fn allocate(&self, offset: u64, len: u64) -> Result<()> {
        self.inner.allocate(offset, len)
    }

    fn deallocate(&self, offset: u64, len: u64) -> Result<()> {
        self.inner.deallocate(offset, len)
    }

    fn copy_from(&self, source: &dyn OpenFile, range: CopyRange) -> Result<u64> {
        self.inner.copy_from(source, range)
    }

    fn clone_range_from(&self, source: &dyn OpenFile, range: CopyRange) -> Result<()> {
        self.inner.clone_range_from(source, range)
    }
}
