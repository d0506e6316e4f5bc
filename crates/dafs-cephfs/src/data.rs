//! A data server: content of files by their inodes, through its own client of the file system.
//!
//! Notes
//! * It can serve any byte, so a layout that is out of date costs time and nothing else: misplaced
//!   requests are counted.
//! * Written data is at the storage daemons when the call returns. Only this client knows the size
//!   until it is synced, or until the MDS asks for it because another client reads the attributes.
//! * So a write below a size that the MDS knows is stable without a sync, which would wait for the
//!   MDS journal. The time of the change follows within seconds; readers of the attributes see it
//!   at once.
//!
//! Invariants
//! * A file is open here only while it is in use. Otherwise its capabilities would delay other
//!   clients, and a removed file would keep its space.

use crate::ends::Ends;
use crate::id::Object;
use crate::limits::{DATA_FILES_OPEN_MAX, DATA_IDLE, ENDS_MAX, PATTERN_PLACES_MAX};
use crate::map::OsdMap;
use crate::server;
use crate::stripes::Stripes;
use crate::sys::{Handle, Inode, Mount, NO_SNAPSHOT};
use dafs_mem::Shrinking as _;
use dafs_mem::{Mutex, VolatileSlice};
use dafs_store::backend::{FILE_BYTES_MAX, Uses, continued, continued_to_end};
use dafs_store::inode::{Ids, Inode as _};
use dafs_store::{
    Attr, DataFile, DataFiles, FileId, FsId, OpenFile, PartOfFile, Result, Stability, StoreError,
    Wait,
};
use rustc_hash::{FxHashMap, FxHashSet};
use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

/// A data server of a CephFS.
#[derive(Debug)]
pub struct CephData {
    shared: Arc<Shared>,
}

/// The state that a data server and its files share.
struct Shared {
    mount: Mutex<Arc<Mount>>,
    map: Arc<OsdMap>,
    ids: Arc<Ids>,
    fs_id: FsId,
    /// The daemons next to it.
    daemons: FxHashSet<u32>,
    open: Mutex<FxHashMap<Object, Open>>,
    uses: Uses<Object>,
    /// The ends of misplaced writes, by file. Such a file may have grown beyond the pattern that
    /// clients know.
    ends: Mutex<FxHashMap<Object, u64>>,
    indirect_bytes: AtomicU64,
    /// True if it finds the placement of files itself, to count misplaced requests: then this
    /// process has no metadata server that would do it.
    learns: bool,
    /// Called when written data may be lost.
    lost: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

/// The least size of a file whose written data is all stable; `None` for a file that is not open
/// for writing.
pub(crate) type Settled = Option<u64>;

/// An open file.
#[derive(Clone)]
struct Open {
    handle: Arc<Handle>,
    inode: Arc<Inode>,
    writable: bool,
    stripes: Arc<Stripes>,
    used: Instant,
    /// True if data was written since the last sync.
    written: Arc<AtomicBool>,
    ends: Arc<Mutex<Ends>>,
}

/// A write runs while this guard lives.
struct Writing<'a>(&'a Mutex<Ends>);

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.0.lock().write_ends();
    }
}

impl Open {
    /// Begins a write that ends at `end`.
    fn begin_write(&self, end: u64) -> Writing<'_> {
        self.ends.lock().write_begins(end);
        Writing(&self.ends)
    }

    /// Returns the size of the file if it is stable, even if this client dies.
    fn known_size(&self) -> Result<Option<u64>> {
        let size = self.inode.size_here()?;
        Ok(Some(size).filter(|&size| self.ends.lock().is_known(size)))
    }

    /// Makes the size of the file and all written data stable, and returns the size.
    fn settle(&self) -> Result<u64> {
        if let Some(size) = self.known_size()? {
            return Ok(size);
        }
        let size = self.inode.size_here()?;
        let syncing = self.ends.lock().sync_begins();
        self.handle.sync()?;
        self.ends.lock().synced(&syncing);
        Ok(size)
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("daemons", &self.daemons).finish_non_exhaustive()
    }
}

impl CephData {
    /// Makes a data server. `ids` seals the handles of files, which belong to the file system
    /// `fs_id`.
    pub(crate) fn new(
        mount: Arc<Mount>,
        map: Arc<OsdMap>,
        ids: Arc<Ids>,
        fs_id: FsId,
        daemons: FxHashSet<u32>,
        learns: bool,
    ) -> Self {
        let mount = Mutex::new(mount);
        let (open, uses, ends, indirect_bytes) = Default::default();
        let lost = OnceLock::new();
        let shared = Shared {
            mount,
            map,
            ids,
            fs_id,
            daemons,
            open,
            uses,
            ends,
            indirect_bytes,
            learns,
            lost,
        };
        Self { shared: Arc::new(shared) }
    }

    /// Sets the function that is called when data written here may be lost.
    pub fn tell_of_lost_data(&self, lost: Box<dyn Fn() + Send + Sync>) {
        // INVARIANT: it is set once, before clients connect.
        let _ = self.shared.lost.set(lost);
    }

    pub(crate) fn mount(&self) -> Arc<Mount> {
        self.shared.mount()
    }

    /// Closes all files. Data that cannot be made stable is reported as lost.
    pub(crate) fn close_all(&self) {
        self.shared.close(|_, _| true);
    }

    /// Replaces the mount. The caller calls it while no request works on a file, and after closing
    /// all files.
    pub(crate) fn renew(&self, mount: Arc<Mount>) {
        let last = std::mem::replace(&mut *self.shared.mount.lock(), mount);
        let open = std::mem::take(&mut *self.shared.table());
        // Closing the files and the mount of an evicted client may take long, or for ever. If no
        // thread can be started, this thread does it.
        let give_back = move || drop((open, last));
        let thread = std::thread::Builder::new().name("dafs-ceph-old".to_owned());
        if let Err(error) = thread.spawn(give_back) {
            tracing::warn!(%error, "there is no thread for a mount that is not used any more");
        }
    }

    /// Returns the object of a client's handle.
    pub(crate) fn object(&self, file: &FileId) -> Result<Object> {
        self.shared.ids.open(file)
    }

    /// Waits for the end of all running requests.
    pub(crate) fn await_uses(&self, limit: Duration) -> Result<()> {
        self.shared.uses.await_all(limit)
    }

    /// Finds the placement of the open files after a change of the map of daemons.
    pub(crate) fn learn(&self) {
        let open: Vec<_> = self.shared.table().iter().map(|(o, open)| (*o, open.clone())).collect();
        open.iter().for_each(|(object, open)| self.shared.learn(*object, &open.stripes));
    }

    /// Returns the files that may have grown beyond their pattern since the last call, with their
    /// ends.
    pub(crate) fn take_ends(&self) -> FxHashMap<Object, u64> {
        std::mem::take(&mut *self.shared.ends.lock())
    }

    /// Closes files that were not used for a while.
    pub(crate) fn close_idle(&self) {
        let now = Instant::now();
        self.shared.close(|_, open| now.duration_since(open.used) >= DATA_IDLE);
    }

    /// Waits for the requests on a file that were authorised before, and closes the file.
    pub(crate) fn drop_grants(&self, object: Object) -> Result<()> {
        self.shared.uses.await_end(&object)?;
        self.shared.close(|other, _| *other == object);
        Ok(())
    }

    /// Returns the size of a file that is open here for writing, if it is stable already; `None` if
    /// it must be made stable first. Does not wait.
    pub(crate) fn settled_size(&self, object: Object) -> Result<Option<Settled>> {
        match self.shared.written(object) {
            None => Ok(Some(None)),
            Some(open) => Ok(open.known_size()?.map(Some)),
        }
    }

    /// Makes the size of a file that was written here known and stable.
    pub(crate) fn settle(&self, object: Object) -> Result<Settled> {
        self.shared.written(object).map(|open| open.settle()).transpose()
    }
}

impl Shared {
    fn table(&self) -> MutexGuard<'_, FxHashMap<Object, Open>> {
        self.open.lock()
    }

    fn mount(&self) -> Arc<Mount> {
        self.mount.lock().clone()
    }

    /// Finds the placement of a file. Without it, misplaced requests are not counted.
    fn learn(&self, object: Object, stripes: &Stripes) {
        if self.learns
            && let Err(error) = self.map.daemons(object.ino, stripes, 0..PATTERN_PLACES_MAX as u64)
        {
            tracing::debug!(%error, "where a file of CephFS lies is not known");
        }
    }

    fn inode(&self, object: Object) -> Result<Inode> {
        self.mount().inode(object.ino, object.snap)
    }

    /// Returns a file that is open for writing.
    fn written(&self, object: Object) -> Option<Open> {
        self.table().get(&object).filter(|open| open.writable).cloned()
    }

    /// Returns the open file of an object.
    fn opened(&self, object: Object, write: bool) -> Result<Open> {
        let now = Instant::now();
        if let Some(open) = self.table().get_mut(&object).filter(|open| open.writable || !write) {
            open.used = now;
            return Ok(open.clone());
        }
        if write && object.snap != NO_SNAPSHOT {
            return Err(StoreError::ReadOnly);
        }
        let inode = Arc::new(self.inode(object)?);
        // The metadata server has authorised the client.
        let flags = if write { libc::O_RDWR } else { libc::O_RDONLY };
        let handle = Arc::new(inode.open(flags, &server())?);
        let stripes = Arc::new(crate::layouts::stripes(&inode)?);
        self.learn(object, &stripes);
        let (written, ends) = Default::default();
        let open = Open {
            handle,
            inode: inode.clone(),
            writable: write,
            stripes,
            used: now,
            written,
            ends,
        };
        if self.table().len() >= DATA_FILES_OPEN_MAX {
            self.close(|_, _| true);
        }
        let mut table = self.table();
        // In a race, another thread may have opened it. Only one entry may track the writes.
        if let Some(other) = table.get(&object).filter(|other| other.writable).cloned() {
            drop(table);
            return Ok(other);
        }
        let gone = match table.get(&object) {
            None if table.len() >= DATA_FILES_OPEN_MAX => return Err(StoreError::Busy),
            _ => table.insert(object, open.clone()),
        };
        // A close may block, so it is done after the lock is released.
        drop(table);
        drop(gone);
        Ok(open)
    }

    /// Closes unused files. A file stays in the table until its size is stable, so that a
    /// concurrent request for the size waits for that.
    fn close(&self, which: impl Fn(&Object, &Open) -> bool) {
        let chosen =
            |(object, open): (&Object, &Open)| which(object, open).then(|| (*object, open.clone()));
        let chosen: Vec<_> = self.table().iter().filter_map(chosen).collect();
        for (object, open) in chosen {
            // A sync fails if the cluster has evicted this client. Then all later calls fail, too.
            open.written.store(false, Ordering::SeqCst);
            if open.writable
                && let Err(error) = open.handle.sync()
            {
                // First, because the error is reported only once.
                if let Some(lost) = self.lost.get() {
                    lost();
                }
                tracing::warn!(%error, "how far a file of CephFS reaches may be lost");
            }
            let mut table = self.table();
            let unused = table.get(&object).is_some_and(|now| {
                // Only this function and the table refer to it, and it was not written since.
                now.used == open.used
                    && Arc::strong_count(&now.handle) == 2
                    && !now.written.load(Ordering::SeqCst)
            });
            let gone = if unused { table.remove_and_shrink(&object) } else { None };
            drop(table);
            drop(gone);
        }
    }

    /// Makes the data written here and its size stable.
    fn sync(&self, object: Object) -> Result<()> {
        match self.written(object) {
            Some(open) => open.settle().map(drop),
            None => self.inode(object)?.sync(),
        }
    }

    /// Counts the bytes of a range that are next to other data servers.
    fn count(&self, object: Object, stripes: &Stripes, (offset, len): (u64, usize), write: bool) {
        let Some(last) = (len as u64).checked_sub(1).and_then(|more| offset.checked_add(more))
        else {
            return;
        };
        let unit_bytes = u64::from(stripes.unit_bytes.get());
        let units = offset / unit_bytes..last / unit_bytes + 1;
        for unit in units {
            // The counter is not worth a question to the monitors.
            match self.map.known_daemon(object.ino, stripes, unit) {
                None => continue,
                Some(Some(daemon)) if self.daemons.contains(&daemon) => continue,
                Some(_) => {}
            }
            let from = offset.max(unit * unit_bytes);
            let bytes = last - from.min(last) + 1;
            let bytes = bytes.min(unit_bytes - from % unit_bytes);
            self.indirect_bytes.fetch_add(bytes, Ordering::Relaxed);
            let mut ends = self.ends.lock();
            if write && (ends.len() < ENDS_MAX || ends.contains_key(&object)) {
                let end = ends.entry(object).or_insert(0);
                *end = (*end).max(last + 1);
            }
        }
    }
}

impl DataFiles for CephData {
    fn fs_id(&self) -> FsId {
        self.shared.fs_id
    }

    fn open(&self, id: &FileId) -> Result<Arc<dyn DataFile>> {
        let object = self.shared.ids.open(id)?;
        Ok(Arc::new(CephDataFile { data: self.shared.clone(), object, id: *id }))
    }

    fn indirect_bytes(&self) -> u64 {
        self.shared.indirect_bytes.load(Ordering::Relaxed)
    }
}

/// A file of a data server.
struct CephDataFile {
    data: Arc<Shared>,
    object: Object,
    id: FileId,
}

fn len(views: &[VolatileSlice<'_>]) -> usize {
    views.iter().map(VolatileSlice::len).sum()
}

impl OpenFile for CephDataFile {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn id(&self) -> FileId {
        self.id
    }

    fn read_at(&self, views: &[VolatileSlice<'_>], offset: u64, wait: Wait) -> Result<usize> {
        if wait == Wait::Never {
            return Err(StoreError::WouldBlock);
        }
        if offset > FILE_BYTES_MAX {
            return Ok(0);
        }
        let open = self.data.opened(self.object, false)?;
        self.data.count(self.object, &open.stripes, (offset, len(views)), false);
        continued_to_end(views, offset, |views, offset| open.handle.read(views, offset))
    }

    fn write_at(
        &self,
        views: &[VolatileSlice<'_>],
        offset: u64,
        stability: Stability,
        wait: Wait,
    ) -> Result<usize> {
        if wait == Wait::Never {
            return Err(StoreError::WouldBlock);
        }
        let wanted = len(views);
        if offset.checked_add(wanted as u64).is_none_or(|end| end > FILE_BYTES_MAX) {
            return Err(StoreError::FileTooBig);
        }
        let open = self.data.opened(self.object, true)?;
        self.data.count(self.object, &open.stripes, (offset, wanted), true);
        open.written.store(true, Ordering::SeqCst);
        let writing = open.begin_write(offset + wanted as u64);
        let count = continued(views, offset, |views, offset| open.handle.write(views, offset))?;
        drop(writing);
        if stability != Stability::Unstable {
            open.settle()?;
        }
        Ok(count)
    }

    fn sync(&self) -> Result<()> {
        self.data.sync(self.object)
    }

    fn attr(&self) -> Result<Attr> {
        self.data.inode(self.object)?.stat()
    }
}

impl PartOfFile for CephDataFile {}

impl DataFile for CephDataFile {
    fn use_begins(&self) -> u64 {
        self.data.uses.begin(&self.object)
    }

    fn use_ends(&self, begun: u64) {
        self.data.uses.end(&self.object, begun);
    }
}
