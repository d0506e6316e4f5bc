//! A store that behaves like a slow and failing disk on command, above the store in memory.

use super::{assert_may_wait, assert_may_wait_for_others};
use dafs_store::{
    Advised, CacheAdvice, Capabilities, CreateHow, MemoryStore, OpenFile, Result, StoreError, Wait,
    Waits,
};
use dafs_testkit::stores::layer::{
    Call, FileLayer, Layer, Layered, LayeredFile, Transfer, Verdict,
};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// The present faults of the disk. Clones share it.
#[derive(Clone)]
pub struct Disk {
    knobs: Arc<Knobs>,
    /// The number of the store in the view of which this is.
    store: usize,
}

/// A look at a read, with the number of its bytes.
type Look = Box<dyn Fn(usize) + Send>;

struct Knobs {
    /// No data is in memory: every transfer has to wait.
    slow: AtomicBool,
    /// The store whose writes have to wait, by its number.
    slow_writes: AtomicUsize,
    /// Reads and writes at or behind this byte of any file fail.
    bad_from: AtomicU64,
    /// Names and attributes cannot be made stable.
    bad_sync: AtomicBool,
    /// A sync panics.
    mad_sync: AtomicBool,
    /// The next transfer panics.
    mad_transfer: AtomicBool,
    writes: AtomicU64,
    /// The advice so far, and its answer.
    advice: Mutex<Vec<(u64, u64, CacheAdvice)>>,
    advised: Mutex<Result<Advised>>,
    /// Runs once, inside the next open of an existing file.
    on_open: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    /// Runs inside each read, with the number of its bytes.
    on_read: Mutex<Option<Look>>,
    /// The descriptor that all files lend.
    lent: OnceLock<OwnedFd>,
}

impl Disk {
    pub fn new() -> Self {
        let knobs = Arc::new(Knobs {
            slow: AtomicBool::new(false),
            slow_writes: AtomicUsize::new(usize::MAX),
            bad_from: AtomicU64::new(u64::MAX),
            bad_sync: AtomicBool::new(false),
            mad_sync: AtomicBool::new(false),
            mad_transfer: AtomicBool::new(false),
            writes: AtomicU64::new(0),
            advice: Mutex::default(),
            advised: Mutex::new(Ok(Advised::Followed)),
            on_open: Mutex::new(None),
            on_read: Mutex::new(None),
            lent: OnceLock::new(),
        });
        Self { knobs, store: 0 }
    }

    /// The same disk for the store of this number.
    pub fn of_store(&self, store: usize) -> Self {
        Self { knobs: self.knobs.clone(), store }
    }

    /// From now on writes of this store have to wait.
    pub fn set_slow_writes(&self, store: usize) {
        self.knobs.slow_writes.store(store, Ordering::Relaxed);
    }

    /// From now on each file lends this descriptor to those that read without the store. Only once.
    pub fn lend(&self, descriptor: OwnedFd) {
        self.knobs.lent.set(descriptor).unwrap();
    }

    pub fn set_slow(&self, slow: bool) {
        self.knobs.slow.store(slow, Ordering::Relaxed);
    }

    pub fn set_bad_from(&self, byte: u64) {
        self.knobs.bad_from.store(byte, Ordering::Relaxed);
    }

    pub fn set_bad_sync(&self, bad: bool) {
        self.knobs.bad_sync.store(bad, Ordering::Relaxed);
    }

    pub fn set_mad_sync(&self, mad: bool) {
        self.knobs.mad_sync.store(mad, Ordering::Relaxed);
    }

    pub fn make_next_transfer_mad(&self) {
        self.knobs.mad_transfer.store(true, Ordering::Relaxed);
    }

    /// Returns the advice since the last call: offset, length and kind.
    pub fn take_advice(&self) -> Vec<(u64, u64, CacheAdvice)> {
        std::mem::take(&mut *self.knobs.advice.lock().unwrap())
    }

    /// Sets the answer to advice.
    pub fn set_advised(&self, advised: Result<Advised>) {
        *self.knobs.advised.lock().unwrap() = advised;
    }

    /// Runs `act` in the middle of the next open of an existing file.
    pub fn on_open(&self, act: impl FnOnce() + Send + 'static) {
        *self.knobs.on_open.lock().unwrap() = Some(Box::new(act));
    }

    /// Runs `look` in the middle of each read from now on, with the number of its bytes.
    pub fn on_read(&self, look: impl Fn(usize) + Send + 'static) {
        *self.knobs.on_read.lock().unwrap() = Some(Box::new(look));
    }

    /// Returns the number of calls that wrote data.
    pub fn writes(&self) -> u64 {
        self.knobs.writes.load(Ordering::Relaxed)
    }
}

impl FileLayer for Disk {
    fn judge(&self, transfer: Transfer) -> Result<Verdict> {
        let Transfer { offset, bytes: len, wait, writes } = transfer;
        assert!(!self.knobs.mad_transfer.swap(false, Ordering::Relaxed), "on purpose");
        if !writes && let Some(look) = &*self.knobs.on_read.lock().unwrap() {
            look(len);
        }
        let slow_writes = self.knobs.slow_writes.load(Ordering::Relaxed) == self.store;
        let is_slow = self.knobs.slow.load(Ordering::Relaxed) || writes && slow_writes;
        if wait == Wait::Never && is_slow {
            return Err(StoreError::WouldBlock);
        }
        let bad_from = self.knobs.bad_from.load(Ordering::Relaxed);
        let good = if bad_from == u64::MAX { u64::MAX } else { bad_from.saturating_sub(offset) };
        if good == 0 && len > 0 {
            return Err(StoreError::Io);
        }
        self.knobs.writes.fetch_add(u64::from(writes), Ordering::Relaxed);
        Ok(Verdict::Pass(len.min(usize::try_from(good).unwrap_or(usize::MAX))))
    }

    fn read_descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.knobs.lent.get().map(AsFd::as_fd)
    }

    fn advise(
        &self,
        below: &dyn OpenFile,
        (offset, len): (u64, u64),
        advice: CacheAdvice,
    ) -> Result<Advised> {
        assert_may_wait();
        below.advise(offset, len, advice)?;
        self.knobs.advice.lock().unwrap().push((offset, len, advice));
        *self.knobs.advised.lock().unwrap()
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
                let act = self.disk.knobs.on_open.lock().unwrap().take();
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
                assert!(
                    !self.disk.knobs.mad_sync.load(Ordering::Relaxed),
                    "a mistake in the store"
                );
                if self.disk.knobs.bad_sync.load(Ordering::Relaxed) {
                    return Err(StoreError::Io);
                }
            }
        }
        Ok(())
    }

    fn wrap(&self, inner: Arc<dyn OpenFile>) -> Arc<dyn OpenFile> {
        LayeredFile::over(inner, self.disk.clone())
    }

    fn capabilities(&self, below: Capabilities) -> Capabilities {
        Capabilities { waits: self.waits, ..below }
    }
}
