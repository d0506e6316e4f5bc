//! A store that behaves like a slow and failing disk on command, above the store in memory.

use super::{assert_may_wait, assert_may_wait_for_others};
use dafs_mem::VolatileSlice;
use dafs_store::backend::before;
use dafs_store::{
    Attr, CacheAdvice, Capabilities, CopyRange, CreateHow, FileId, MemoryStore, OpenFile, Result,
    SeekWhat, Stability, StoreError, Wait, Waits, WholeFile,
};
use dafs_testkit::stores::layer::{Call, Layer, Layered};
use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// The present faults of the disk. Clones share it.
#[derive(Clone)]
pub struct Disk(Arc<Knobs>);

struct Knobs {
    /// No data is in memory: every transfer has to wait.
    slow: AtomicBool,
    /// Reads and writes at or behind this byte of any file fail.
    bad_from: AtomicU64,
    /// Names and attributes cannot be made stable.
    bad_sync: AtomicBool,
    /// A sync panics.
    mad_sync: AtomicBool,
    /// The next transfer panics.
    mad_transfer: AtomicBool,
    writes: AtomicU64,
    /// Runs once, inside the next open of an existing file.
    on_open: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Disk {
    pub fn new() -> Self {
        Self(Arc::new(Knobs {
            slow: AtomicBool::new(false),
            bad_from: AtomicU64::new(u64::MAX),
            bad_sync: AtomicBool::new(false),
            mad_sync: AtomicBool::new(false),
            mad_transfer: AtomicBool::new(false),
            writes: AtomicU64::new(0),
            on_open: Mutex::new(None),
        }))
    }

    pub fn set_slow(&self, slow: bool) {
        self.0.slow.store(slow, Ordering::Relaxed);
    }

    pub fn set_bad_from(&self, byte: u64) {
        self.0.bad_from.store(byte, Ordering::Relaxed);
    }

    pub fn set_bad_sync(&self, bad: bool) {
        self.0.bad_sync.store(bad, Ordering::Relaxed);
    }

    pub fn set_mad_sync(&self, mad: bool) {
        self.0.mad_sync.store(mad, Ordering::Relaxed);
    }

    pub fn make_next_transfer_mad(&self) {
        self.0.mad_transfer.store(true, Ordering::Relaxed);
    }

    /// Runs `act` in the middle of the next open of an existing file.
    pub fn on_open(&self, act: impl FnOnce() + Send + 'static) {
        *self.0.on_open.lock().unwrap() = Some(Box::new(act));
    }

    /// Returns the number of calls that wrote data.
    pub fn writes(&self) -> u64 {
        self.0.writes.load(Ordering::Relaxed)
    }

    /// Returns the bytes of a transfer that succeed.
    fn judge(&self, offset: u64, len: usize, wait: Wait) -> Result<usize> {
        assert!(!self.0.mad_transfer.swap(false, Ordering::Relaxed), "on purpose");
        if wait == Wait::Never && self.0.slow.load(Ordering::Relaxed) {
            return Err(StoreError::WouldBlock);
        }
        let bad_from = self.0.bad_from.load(Ordering::Relaxed);
        let good = if bad_from == u64::MAX { u64::MAX } else { bad_from.saturating_sub(offset) };
        if good == 0 && len > 0 {
            return Err(StoreError::Io);
        }
        Ok(len.min(usize::try_from(good).unwrap_or(usize::MAX)))
    }
}

/// A layer that puts a store on that disk.
pub struct OnDisk {
    disk: Disk,
    /// The waits that it declares.
    waits: Waits,
}

impl OnDisk {
    pub fn over(store: MemoryStore, disk: Disk, waits: Waits) -> Layered<Self> {
        Layered::new(Arc::new(store), Self { disk, waits })
    }

    /// Fails when a reactor waits for the store in a declared way.
    fn waited(&self, data: bool) {
        match self.waits {
            Waits::Never => {}
            Waits::Data if !data => {}
            Waits::Data | Waits::Always => assert_may_wait_for_others(),
        }
    }
}

impl Layer for OnDisk {
    fn before(&self, call: Call<'_>) -> Result<()> {
        match call {
            Call::CreateUnlinked | Call::ReadDir | Call::Xattr | Call::Acl => {}
            Call::SetAttr(change) => self.waited(change.size.is_some()),
            Call::Remove | Call::Rename | Call::FsStat => self.waited(true),
            Call::GetAttr
            | Call::Access
            | Call::Lookup
            | Call::Parent
            | Call::Make
            | Call::Link
            | Call::ReadLink
            | Call::AttrDir => self.waited(false),
            Call::Open => {
                self.waited(false);
                let act = self.disk.0.on_open.lock().unwrap().take();
                if let Some(act) = act {
                    act();
                }
            }
            Call::Create(how, attr) => {
                self.waited(attr.size.is_some());
                if matches!(how, CreateHow::Exclusive(_)) {
                    assert_may_wait();
                }
            }
            Call::CommitNames => {
                assert!(!self.disk.0.mad_sync.load(Ordering::Relaxed), "a mistake in the store");
                if self.disk.0.bad_sync.load(Ordering::Relaxed) {
                    return Err(StoreError::Io);
                }
            }
        }
        Ok(())
    }

    fn wrap(&self, inner: Arc<dyn OpenFile>) -> Arc<dyn OpenFile> {
        Arc::new(DiskFile { inner, disk: self.disk.clone() })
    }

    fn capabilities(&self, below: Capabilities) -> Capabilities {
        Capabilities { waits: self.waits, ..below }
    }
}

struct DiskFile {
    inner: Arc<dyn OpenFile>,
    disk: Disk,
}

fn sum(views: &[VolatileSlice<'_>]) -> usize {
    views.iter().map(VolatileSlice::len).sum()
}

impl OpenFile for DiskFile {
    fn as_any(&self) -> &dyn Any {
        self.inner.as_any()
    }

    fn id(&self) -> FileId {
        self.inner.id()
    }

    fn read_at(&self, views: &[VolatileSlice<'_>], offset: u64, wait: Wait) -> Result<usize> {
        let bytes = self.disk.judge(offset, sum(views), wait)?;
        self.inner.read_at(&before(views, bytes), offset, wait)
    }

    fn write_at(
        &self,
        views: &[VolatileSlice<'_>],
        offset: u64,
        stability: Stability,
        wait: Wait,
    ) -> Result<usize> {
        let bytes = self.disk.judge(offset, sum(views), wait)?;
        self.disk.0.writes.fetch_add(1, Ordering::Relaxed);
        self.inner.write_at(&before(views, bytes), offset, stability, wait)
    }

    fn commit(&self, offset: u64, len: u64) -> Result<()> {
        self.inner.commit(offset, len)
    }

    fn sync(&self) -> Result<()> {
        self.inner.sync()
    }

    fn attr(&self) -> Result<Attr> {
        self.inner.attr()
    }
}

impl WholeFile for DiskFile {
    fn advise(&self, offset: u64, len: u64, advice: CacheAdvice) -> Result<()> {
        self.inner.advise(offset, len, advice)
    }

    fn set_size(&self, size: u64) -> Result<()> {
        self.inner.set_size(size)
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
