//! A store that behaves like a slow and failing disk on command, over the store in memory.

use super::{assert_may_wait, assert_may_wait_for_others};
use dafs_mem::VolatileSlice;
use dafs_store::{
    AccessMask, Acl, Attr, CacheAdvice, Capabilities, CreateHow, Created, Cred, DirChange,
    DirEntry, FileId, FsId, FsStat, Made, MemoryStore, NewObject, OpenFile, OpenMode, Result,
    SeekWhat, SetAttr, SetXattr, Stability, Store, StoreError, Wait, Waits,
};
use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// What the disk does now; clones share it.
#[derive(Clone)]
pub struct Disk(Arc<Knobs>);

struct Knobs {
    /// Nothing is in memory: every transfer has to wait.
    slow: AtomicBool,
    /// Reads and writes at or behind this byte of any file fail.
    bad_from: AtomicU64,
    /// Names and attributes cannot be made stable.
    bad_sync: AtomicBool,
    /// An attempt to do so ends in a panic.
    mad_sync: AtomicBool,
    /// The next transfer ends in a panic.
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

    /// Calls that wrote something.
    pub fn writes(&self) -> u64 {
        self.0.writes.load(Ordering::Relaxed)
    }

    /// The bytes of a transfer that succeed.
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

/// The store on that disk.
pub struct DiskStore {
    pub inner: MemoryStore,
    pub disk: Disk,
    /// What it says that it waits for.
    pub waits: Waits,
}

impl DiskStore {
    /// Fails when it is a reactor that waits for what the store says that it waits for.
    fn waited(&self, data: bool) {
        match self.waits {
            Waits::Never => {}
            Waits::Data if !data => {}
            Waits::Data | Waits::Always => assert_may_wait_for_others(),
        }
    }

    fn wrap(&self, inner: Arc<dyn OpenFile>) -> Arc<dyn OpenFile> {
        Arc::new(DiskFile { inner, disk: self.disk.clone() })
    }
}

struct DiskFile {
    inner: Arc<dyn OpenFile>,
    disk: Disk,
}

fn head<'a>(views: &[VolatileSlice<'a>], mut bytes: usize) -> Vec<VolatileSlice<'a>> {
    let mut head = Vec::new();
    for view in views {
        let part = bytes.min(view.len());
        head.extend(view.slice(0, part));
        bytes -= part;
    }
    head
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
        self.inner.read_at(&head(views, bytes), offset, wait)
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
        self.inner.write_at(&head(views, bytes), offset, stability, wait)
    }

    fn commit(&self, offset: u64, len: u64) -> Result<()> {
        self.inner.commit(offset, len)
    }

    fn sync(&self) -> Result<()> {
        self.inner.sync()
    }

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

    fn copy_from(
        &self,
        source: &dyn OpenFile,
        source_offset: u64,
        offset: u64,
        len: u64,
    ) -> Result<u64> {
        self.inner.copy_from(source, source_offset, offset, len)
    }

    fn clone_range_from(
        &self,
        source: &dyn OpenFile,
        source_offset: u64,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        self.inner.clone_range_from(source, source_offset, offset, len)
    }

    fn attr(&self) -> Result<Attr> {
        self.inner.attr()
    }
}

impl Store for DiskStore {
    fn fs_id(&self) -> FsId {
        self.inner.fs_id()
    }

    fn root(&self) -> FileId {
        self.inner.root()
    }

    fn getattr(&self, id: &FileId) -> Result<Attr> {
        self.waited(false);
        self.inner.getattr(id)
    }

    fn setattr(
        &self,
        cred: &Cred,
        id: &FileId,
        change: &SetAttr,
        file: Option<&dyn OpenFile>,
    ) -> Result<Attr> {
        self.waited(change.size.is_some());
        self.inner.setattr(cred, id, change, file)
    }

    fn access(&self, cred: &Cred, id: &FileId, wanted: AccessMask) -> Result<AccessMask> {
        self.waited(false);
        self.inner.access(cred, id, wanted)
    }

    fn lookup(&self, cred: &Cred, dir: &FileId, name: &[u8]) -> Result<(FileId, Attr)> {
        self.waited(false);
        self.inner.lookup(cred, dir, name)
    }

    fn parent(&self, cred: &Cred, dir: &FileId) -> Result<FileId> {
        self.waited(false);
        self.inner.parent(cred, dir)
    }

    fn open(&self, cred: &Cred, id: &FileId, mode: OpenMode) -> Result<Arc<dyn OpenFile>> {
        self.waited(false);
        let act = self.disk.0.on_open.lock().unwrap().take();
        if let Some(act) = act {
            act();
        }
        self.inner.open(cred, id, mode).map(|file| self.wrap(file))
    }

    fn create(
        &self,
        cred: &Cred,
        dir: &FileId,
        name: &[u8],
        how: CreateHow,
        attr: &SetAttr,
        mode: OpenMode,
    ) -> Result<Created> {
        self.waited(attr.size.is_some());
        if matches!(how, CreateHow::Exclusive(_)) {
            assert_may_wait();
        }
        let created = self.inner.create(cred, dir, name, how, attr, mode)?;
        Ok(Created { file: self.wrap(created.file.clone()), ..created })
    }

    fn create_unlinked(
        &self,
        cred: &Cred,
        dir: &FileId,
        attr: &SetAttr,
        mode: OpenMode,
    ) -> Result<Created> {
        let created = self.inner.create_unlinked(cred, dir, attr, mode)?;
        Ok(Created { file: self.wrap(created.file.clone()), ..created })
    }

    fn make(
        &self,
        cred: &Cred,
        dir: &FileId,
        name: &[u8],
        object: NewObject<'_>,
        attr: &SetAttr,
    ) -> Result<Made> {
        self.waited(false);
        self.inner.make(cred, dir, name, object, attr)
    }

    fn link(&self, cred: &Cred, id: &FileId, dir: &FileId, name: &[u8]) -> Result<DirChange> {
        self.waited(false);
        self.inner.link(cred, id, dir, name)
    }

    fn remove(&self, cred: &Cred, dir: &FileId, name: &[u8]) -> Result<DirChange> {
        self.waited(true);
        self.inner.remove(cred, dir, name)
    }

    fn rename(
        &self,
        cred: &Cred,
        from_dir: &FileId,
        from: &[u8],
        to_dir: &FileId,
        to: &[u8],
    ) -> Result<(DirChange, DirChange)> {
        self.waited(true);
        self.inner.rename(cred, from_dir, from, to_dir, to)
    }

    fn readdir(
        &self,
        cred: &Cred,
        dir: &FileId,
        cookie: u64,
        attr: bool,
        sink: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<bool> {
        self.inner.readdir(cred, dir, cookie, attr, sink)
    }

    fn readlink(&self, cred: &Cred, id: &FileId) -> Result<Vec<u8>> {
        self.waited(false);
        self.inner.readlink(cred, id)
    }

    fn attr_dir(&self, cred: &Cred, id: &FileId) -> Result<FileId> {
        self.waited(false);
        self.inner.attr_dir(cred, id)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { waits: self.waits, ..self.inner.capabilities() }
    }

    fn xattr(&self, cred: &Cred, id: &FileId, name: &[u8]) -> Result<Vec<u8>> {
        self.inner.xattr(cred, id, name)
    }

    fn set_xattr(
        &self,
        cred: &Cred,
        id: &FileId,
        name: &[u8],
        value: &[u8],
        how: SetXattr,
    ) -> Result<DirChange> {
        self.inner.set_xattr(cred, id, name, value, how)
    }

    fn list_xattrs(&self, cred: &Cred, id: &FileId) -> Result<Vec<Vec<u8>>> {
        self.inner.list_xattrs(cred, id)
    }

    fn remove_xattr(&self, cred: &Cred, id: &FileId, name: &[u8]) -> Result<DirChange> {
        self.inner.remove_xattr(cred, id, name)
    }

    fn acl(&self, id: &FileId) -> Result<Acl> {
        self.inner.acl(id)
    }

    fn set_acl(&self, cred: &Cred, id: &FileId, acl: &Acl) -> Result<()> {
        self.inner.set_acl(cred, id, acl)
    }

    fn commit_names(&self, ids: &[FileId]) -> Result<()> {
        assert!(!self.disk.0.mad_sync.load(Ordering::Relaxed), "a mistake in the store");
        if self.disk.0.bad_sync.load(Ordering::Relaxed) {
            return Err(StoreError::Io);
        }
        self.inner.commit_names(ids)
    }

    fn fs_stat(&self, cred: &Cred, id: &FileId) -> Result<FsStat> {
        self.waited(true);
        self.inner.fs_stat(cred, id)
    }
}
