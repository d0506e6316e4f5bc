//! A data server: content of files by their gfids, on a brick of this machine, bypassing its
//! daemon.
//!
//! Notes
//! * Requests for a file that is not on the brick, or is about to leave it, go through GlusterFS.
//!   So a layout that is out of date costs time and nothing else. Their bytes are counted, and the
//!   layouts of the file are recalled.
//! * GlusterFS keeps the times of a file separately, so a direct write to the brick does not change
//!   them. The data server remembers written files until the metadata server has updated their
//!   times.
//!
//! Invariants
//! * After each read or write on a brick a check shows that the file has not begun to move.
//!   Otherwise the data server repeats the request through GlusterFS before it replies.
//! * A file is open here only while it is in use, so that a removed file does not keep its space. A
//!   file with unsynced data stays open, because the kernel reports a failed write only to
//!   descriptors from before it. If its sync fails, the loss is reported.

use crate::brick::{Brick, look};
use crate::limits::{
    DATA_FILES_OPEN_MAX, DATA_IDLE, DATA_NOTES_MAX, MOVED_PAUSE, MOVED_TRIES_MAX, PRIVILEGE_BITS,
};
use crate::server;
use crate::sys::{Gfid, Handle, Mount};
use dafs_mem::Shrinking as _;
use dafs_mem::{Mutex, VolatileSlice, preadv2, pwritev2};
use dafs_store::backend::{
    FILE_BYTES_MAX, LEAVING_BYTES_MAX, Leaving, Uses, advise_local, continued, continued_to_end,
    drop_cached,
};
use dafs_store::inode::{Ids, Inode};
use dafs_store::{
    Advised, Attr, CacheAdvice, DataFile, DataFiles, FileId, FsId, OpenFile, PartOfFile, Result,
    Stability, StoreError, Wait,
};
use rustc_hash::{FxHashMap, FxHashSet};
use std::any::Any;
use std::fs::File;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// A data server of a volume.
#[derive(Debug)]
pub struct GlusterData {
    shared: Arc<Shared>,
}

/// The state that a data server and its files share.
struct Shared {
    mount: Arc<Mount>,
    brick: Brick,
    ids: Arc<Ids>,
    fs_id: FsId,
    /// True if the volume has this brick and data servers may bypass GlusterFS on it.
    direct: AtomicBool,
    open: Mutex<FxHashMap<Gfid, Open>>,
    uses: Uses<Gfid>,
    /// Files that were written here and whose times were not updated yet.
    written: Mutex<FxHashSet<Gfid>>,
    /// Files that clients asked for and that are not here.
    astray: Mutex<FxHashSet<Gfid>>,
    indirect_bytes: AtomicU64,
    /// Data that leaves the kernel's cache first.
    leaving: Leaving<Gfid>,
    /// Called when written data may be lost.
    lost: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

/// An open file of the brick.
#[derive(Clone)]
struct Open {
    file: Arc<File>,
    used: Instant,
    /// True if data was written since the last sync.
    written: Arc<AtomicBool>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("brick", &self.brick).finish_non_exhaustive()
    }
}

impl GlusterData {
    /// Makes a data server. `ids` seals the handles of files, which belong to the file system
    /// `fs_id`.
    pub(crate) fn new(mount: Arc<Mount>, brick: Brick, ids: Arc<Ids>, fs_id: FsId) -> Self {
        let direct = AtomicBool::new(true);
        let (open, uses, written, astray, indirect_bytes) = Default::default();
        let (leaving, lost) = (Leaving::new(LEAVING_BYTES_MAX), OnceLock::new());
        let shared = Shared {
            mount,
            brick,
            ids,
            fs_id,
            direct,
            open,
            uses,
            written,
            astray,
            indirect_bytes,
            leaving,
            lost,
        };
        Self { shared: Arc::new(shared) }
    }

    /// Sets the function that is called when data written here may be lost.
    pub fn tell_of_lost_data(&self, lost: Box<dyn Fn() + Send + Sync>) {
        // INVARIANT: it is set once, before clients connect.
        let _ = self.shared.lost.set(lost);
    }

    /// Returns the size of a file that is on the brick and is not being moved.
    pub(crate) fn size_here(&self, gfid: &Gfid) -> Result<Option<u64>> {
        Ok(self.shared.file(gfid)?.map(|(_, attr)| attr.size))
    }

    /// Returns the object of a client's handle.
    pub(crate) fn gfid(&self, file: &FileId) -> Result<Gfid> {
        self.shared.ids.open(file)
    }

    /// Waits for the end of all running requests.
    pub(crate) fn await_uses(&self, limit: Duration) -> Result<()> {
        self.shared.uses.await_all(limit)
    }

    /// Sets if the data server may bypass GlusterFS on the brick. True if that has changed.
    pub(crate) fn set_direct(&self, direct: bool) -> bool {
        self.shared.direct.swap(direct, Ordering::SeqCst) != direct
    }

    /// Returns the files that clients have asked for here since the last call and that are not
    /// here.
    pub(crate) fn take_astray(&self) -> FxHashSet<Gfid> {
        std::mem::take(&mut *self.shared.astray.lock())
    }

    /// True if a file was written here and its times were not updated yet. The caller updates them.
    pub(crate) fn take_written(&self, gfid: &Gfid) -> bool {
        self.shared.written.lock().remove(gfid)
    }

    /// Makes a file stable if it is here. True if it is.
    pub(crate) fn settle(&self, gfid: &Gfid) -> Result<bool> {
        self.shared.sync_here(gfid)
    }

    /// Closes files that were not used for a while.
    pub(crate) fn close_idle(&self) {
        let now = Instant::now();
        self.shared.close(|_, open| now.duration_since(open.used) >= DATA_IDLE);
    }

    /// Waits for the requests on a file that were authorised before, and closes the file.
    pub(crate) fn drop_grants(&self, gfid: &Gfid) -> Result<()> {
        self.shared.uses.await_end(gfid)?;
        self.shared.close(|other, _| other == gfid);
        Ok(())
    }
}

impl Shared {
    /// Returns the file on the brick; `None` if it is not there or is being moved.
    fn file(&self, gfid: &Gfid) -> Result<Option<(Arc<File>, Attr)>> {
        if !self.direct.load(Ordering::SeqCst) {
            return Ok(None);
        }
        if let Some(file) = self.known(gfid) {
            if let Some(attr) = look(&file)? {
                return Ok(Some((file, attr)));
            }
            drop(file);
            self.close(|other, _| other == gfid);
        }
        let (file, attr) = match self.brick.file(gfid) {
            Err(StoreError::NoDevice) => return Ok(None),
            opened => opened?,
        };
        let file = Arc::new(file);
        if self.open.lock().len() >= DATA_FILES_OPEN_MAX {
            self.close(|_, _| true);
        }
        let mut open = self.open.lock();
        // In a race, another thread may have opened it and written to it.
        let known = match open.get(gfid) {
            Some(known) => known.file.clone(),
            None if open.len() >= DATA_FILES_OPEN_MAX => return Err(StoreError::Busy),
            None => {
                let (used, written) = (Instant::now(), Arc::default());
                open.insert(*gfid, Open { file: file.clone(), used, written });
                file
            }
        };
        Ok(Some((known, attr)))
    }

    /// Closes files, after making their data stable.
    fn close(&self, which: impl Fn(&Gfid, &Open) -> bool) {
        let chosen =
            |(gfid, open): (&Gfid, &Open)| which(gfid, open).then(|| (*gfid, open.clone()));
        let chosen: Vec<_> = self.open.lock().iter().filter_map(chosen).collect();
        for (gfid, open) in chosen {
            if open.written.swap(false, Ordering::SeqCst) {
                // `sync_file` reports a failure.
                let _ = self.sync_file(&open.file);
            }
            let mut table = self.open.lock();
            // Only this function and the table refer to it, and it was not written since.
            let unused = table.get(&gfid).is_some_and(|now| {
                Arc::strong_count(&now.file) == 2 && !now.written.load(Ordering::SeqCst)
            });
            if unused {
                table.remove_and_shrink(&gfid);
            }
        }
    }

    /// Makes a file of the brick stable.
    fn sync_file(&self, file: &File) -> Result<()> {
        file.sync_all().map_err(|error| {
            // First, because the error is reported only once.
            if let Some(lost) = self.lost.get() {
                lost();
            }
            tracing::warn!(%error, "what was written to a file of a brick may be lost");
            error.into()
        })
    }

    /// Records a write to a file of the brick. The caller holds the file, so it is still in the
    /// table.
    fn note_unsynced(&self, gfid: &Gfid) {
        if let Some(open) = self.open.lock().get(gfid) {
            open.written.store(true, Ordering::SeqCst);
        }
    }

    fn known(&self, gfid: &Gfid) -> Option<Arc<File>> {
        let mut open = self.open.lock();
        let known = open.get_mut(gfid)?;
        known.used = Instant::now();
        Some(known.file.clone())
    }

    /// True if the requests on a file of the brick have reached the file of the volume.
    fn stands(&self, file: &File) -> Result<bool> {
        Ok(look(file)?.is_some() && self.direct.load(Ordering::SeqCst))
    }

    /// Opens a file through GlusterFS, for a request of so many bytes.
    fn around(&self, gfid: &Gfid, bytes: usize, flags: i32) -> Result<Handle> {
        self.indirect_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        let mut astray = self.astray.lock();
        if astray.len() < DATA_NOTES_MAX {
            astray.insert(*gfid);
        }
        drop(astray);
        // The metadata server has authorised the client.
        self.found(|| self.mount.object(gfid)?.open(flags, &server()))
    }

    /// Records that the times of a file must be updated.
    fn note_written(&self, gfid: &Gfid) -> Result<()> {
        let mut written = self.written.lock();
        if written.len() < DATA_NOTES_MAX || written.contains(gfid) {
            written.insert(*gfid);
            return Ok(());
        }
        drop(written);
        self.found(|| crate::layouts::touch(&self.mount.object(gfid)?))
    }

    /// Makes a file stable if it is here. True if it is.
    fn sync_here(&self, gfid: &Gfid) -> Result<bool> {
        let Some((file, _)) = self.file(gfid)? else { return Ok(false) };
        self.sync_file(&file)?;
        for range in self.leaving.committed(*gfid) {
            let _ = drop_cached(file.as_fd(), &range);
        }
        self.stands(&file)
    }

    fn sync(&self, gfid: &Gfid) -> Result<()> {
        if self.sync_here(gfid)? {
            return Ok(());
        }
        self.around(gfid, 0, libc::O_RDWR)?.sync()
    }

    fn attr(&self, gfid: &Gfid) -> Result<Attr> {
        if let Some((_, attr)) = self.file(gfid)? {
            return Ok(attr);
        }
        self.found(|| self.mount.object(gfid)?.stat())
    }

    /// Looks up a file, with retries, because GlusterFS may be moving it.
    fn found<T>(&self, look: impl Fn() -> Result<T>) -> Result<T> {
        for tried in 1..MOVED_TRIES_MAX {
            match look() {
                Err(StoreError::Stale) => std::thread::sleep(MOVED_PAUSE * tried),
                found => return found,
            }
        }
        look()
    }
}

impl DataFiles for GlusterData {
    fn fs_id(&self) -> FsId {
        self.shared.fs_id
    }

    fn open(&self, id: &FileId) -> Result<Arc<dyn DataFile>> {
        let gfid = self.shared.ids.open(id)?;
        Ok(Arc::new(GlusterDataFile { data: self.shared.clone(), gfid, id: *id }))
    }

    fn indirect_bytes(&self) -> u64 {
        self.shared.indirect_bytes.load(Ordering::Relaxed)
    }
}

/// A file of a data server.
struct GlusterDataFile {
    data: Arc<Shared>,
    gfid: Gfid,
    id: FileId,
}

fn len(views: &[VolatileSlice<'_>]) -> usize {
    views.iter().map(VolatileSlice::len).sum()
}

impl GlusterDataFile {
    /// Reads the part that is in memory.
    fn read_now(&self, views: &[VolatileSlice<'_>], offset: u64) -> Result<usize> {
        let direct = self.data.direct.load(Ordering::SeqCst);
        let file = self.data.known(&self.gfid).filter(|_| direct).ok_or(StoreError::WouldBlock)?;
        // Worker threads retry all other cases with waiting.
        let count = preadv2(file.as_fd(), views, offset, libc::RWF_NOWAIT)
            .map_err(|_| StoreError::WouldBlock)?;
        if self.data.stands(&file)? { Ok(count) } else { Err(StoreError::WouldBlock) }
    }
}

impl OpenFile for GlusterDataFile {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn id(&self) -> FileId {
        self.id
    }

    fn read_at(&self, views: &[VolatileSlice<'_>], offset: u64, wait: Wait) -> Result<usize> {
        if wait == Wait::Never {
            return self.read_now(views, offset);
        }
        let wanted = len(views);
        let end = offset.checked_add(wanted as u64).filter(|&end| end <= FILE_BYTES_MAX);
        // The kernel refuses ranges that no file can have, where there is no data.
        if end.is_none() && offset >= self.attr()?.size {
            return Ok(0);
        }
        if let Some((file, _)) = self.data.file(&self.gfid)? {
            let read = |views: &[VolatileSlice<'_>], at| preadv2(file.as_fd(), views, at, 0);
            let count = continued_to_end(views, offset, read)?;
            if self.data.stands(&file)? {
                return Ok(count);
            }
        }
        let handle = self.data.around(&self.gfid, wanted, libc::O_RDONLY)?;
        continued_to_end(views, offset, |views, offset| handle.read(views, offset))
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
        let flags = match stability {
            Stability::Unstable => 0,
            Stability::Data => libc::RWF_DSYNC,
            Stability::File => libc::RWF_DSYNC | libc::RWF_SYNC,
        };
        if let Some((file, attr)) = self.data.file(&self.gfid)? {
            // The file has got setuid or setgid after its layout was handed out.
            if attr.mode & PRIVILEGE_BITS != 0 {
                let object = self.data.mount.object(&self.gfid)?;
                crate::layouts::end_privilege(&object, attr.mode)?;
            }
            self.data.note_written(&self.gfid)?;
            let write = |views: &[VolatileSlice<'_>], at| pwritev2(file.as_fd(), views, at, flags);
            let written = continued(views, offset, write);
            self.data.note_unsynced(&self.gfid);
            let count = written?;
            if self.data.stands(&file)? {
                return Ok(count);
            }
        }
        let handle = self.data.around(&self.gfid, wanted, libc::O_RDWR)?;
        let count = continued(views, offset, |views, offset| handle.write(views, offset))?;
        // A brick of another machine may lose unstable data, and this data server would not notice.
        handle.sync()?;
        Ok(count)
    }

    fn sync(&self) -> Result<()> {
        self.data.sync(&self.gfid)
    }

    fn attr(&self) -> Result<Attr> {
        self.data.attr(&self.gfid)
    }
}

impl PartOfFile for GlusterDataFile {
    /// A file that is not on the brick is not in the cache of this machine either.
    fn advise_part(&self, offset: u64, len: u64, advice: CacheAdvice) -> Result<Advised> {
        if advice.is_pattern() {
            return Ok(Advised::Ignored);
        }
        let Some((file, _)) = self.data.file(&self.gfid)? else { return Ok(Advised::Ignored) };
        let order = (&self.data.leaving, self.gfid);
        advise_local(file.as_fd(), (offset, len), advice, order, |other, range| {
            // Data that cannot be dropped stays until the kernel needs its memory.
            if let Ok(Some((file, _))) = self.data.file(&other) {
                let _ = drop_cached(file.as_fd(), range);
            }
        })
    }
}

impl DataFile for GlusterDataFile {
    fn use_begins(&self) -> u64 {
        self.data.uses.begin(&self.gfid)
    }

    fn use_ends(&self, begun: u64) {
        self.data.uses.end(&self.gfid, begun);
    }
}
