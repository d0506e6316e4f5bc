//! A data server: content of files by their names for good, on a brick of this machine, past the daemon
//! that serves it.
//!
//! What is not obvious
//! * What is not on the brick, or does not stay there, goes by way of GlusterFS: a layout that is out of
//!   date is slow and not wrong. Such bytes are counted, and the file's layouts are taken back.
//! * GlusterFS keeps times apart from a file's own, so that they do not move when the brick's file is
//!   written. What was written is remembered until the metadata server has moved them.
//!
//! Invariants
//! * Nothing is answered that was read or written on a brick before a look behind it has shown that the
//!   file is still there for good. Else it is done again by way of GlusterFS.
//! * A file is open here only while it is used, so that what was removed does not keep its space; and for
//!   as long as something of it was not synced, since a system tells of a failure only those who had the
//!   file open. What then cannot be synced is told of.

use crate::attr::attr;
use crate::brick::{Brick, look};
use crate::id::Ids;
use crate::limits::{
    DATA_FILES_OPEN_MAX, DATA_IDLE, DATA_NOTES_MAX, FILE_BYTES_MAX, MOVED_PAUSE, MOVED_TRIES_MAX,
    PRIVILEGE_BITS,
};
use crate::server;
use crate::sys::{Gfid, Handle, Mount};
use dafs_mem::{VolatileSlice, preadv2, pwritev2};
use dafs_store::backend::{Uses, continued, continued_to_end};
use dafs_store::{
    Attr, DataFile, DataFiles, FileId, FsId, FsStat, NAME_BYTES_MAX, OpenFile, PartOfFile, Result,
    Stability, StoreError, Wait,
};
use rustc_hash::{FxHashMap, FxHashSet};
use std::any::Any;
use std::fs::File;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// A data server of a volume.
#[derive(Debug)]
pub struct GlusterData {
    shared: Arc<Shared>,
}

/// What a data server and its files share.
struct Shared {
    mount: Arc<Mount>,
    brick: Brick,
    ids: Arc<Ids>,
    fs_id: FsId,
    /// The volume has this brick, and lies on its bricks in a way that lets them be used so.
    direct: AtomicBool,
    open: Mutex<FxHashMap<Gfid, Open>>,
    uses: Uses<Gfid>,
    /// Files that were written here and whose times do not say so yet.
    written: Mutex<FxHashSet<Gfid>>,
    /// Files that were asked for and do not lie here.
    astray: Mutex<FxHashSet<Gfid>>,
    indirect_bytes: AtomicU64,
    /// Told when what was written may be lost.
    lost: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

/// A file of the brick that is open.
#[derive(Clone)]
struct Open {
    file: Arc<File>,
    used: Instant,
    /// Something was written to it since it was synced last.
    written: Arc<AtomicBool>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("brick", &self.brick).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What these hold is whole between any two steps.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl GlusterData {
    /// `ids` seals the handles of files for data servers, which are of the file system `fs_id`.
    pub(crate) fn new(mount: Arc<Mount>, brick: Brick, ids: Arc<Ids>, fs_id: FsId) -> Self {
        let direct = AtomicBool::new(true);
        let (open, uses, written, astray, indirect_bytes) = Default::default();
        let lost = OnceLock::new();
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
            lost,
        };
        Self { shared: Arc::new(shared) }
    }

    /// Says who is told, from now on, that what was written here may be lost.
    pub fn tell_of_lost_data(&self, lost: Box<dyn Fn() + Send + Sync>) {
        // INVARIANT: said once, before clients come.
        let _ = self.shared.lost.set(lost);
    }

    /// How far a file reaches that lies on the brick, for good as far as one can see.
    pub(crate) fn size_here(&self, gfid: &Gfid) -> Result<Option<u64>> {
        Ok(self.shared.file(gfid)?.map(|(_, attr)| attr.size))
    }

    /// The object that clients call so.
    pub(crate) fn gfid(&self, file: &FileId) -> Result<Gfid> {
        self.shared.ids.open(file)
    }

    /// Waits for the end of all requests that have begun.
    pub(crate) fn await_uses(&self, limit: Duration) -> Result<()> {
        self.shared.uses.await_all(limit)
    }

    /// Says whether the brick may be used past GlusterFS; tells whether that is new.
    pub(crate) fn set_direct(&self, direct: bool) -> bool {
        self.shared.direct.swap(direct, Ordering::SeqCst) != direct
    }

    /// Which files were asked for here since the last call and do not lie here.
    pub(crate) fn take_astray(&self) -> FxHashSet<Gfid> {
        std::mem::take(&mut *lock(&self.shared.astray))
    }

    /// Whether a file was written here and its times do not say so yet. The next one to ask is told
    /// that they do.
    pub(crate) fn take_written(&self, gfid: &Gfid) -> bool {
        lock(&self.shared.written).remove(gfid)
    }

    /// Makes a file stable if it lies here; tells whether it does.
    pub(crate) fn settle(&self, gfid: &Gfid) -> Result<bool> {
        self.shared.sync_here(gfid)
    }

    /// Closes what was not used for a while.
    pub(crate) fn close_idle(&self) {
        let now = Instant::now();
        self.shared.close(|_, open| now.duration_since(open.used) >= DATA_IDLE);
    }

    /// Waits until no request uses a file that was judged before, and closes it.
    pub(crate) fn forget(&self, gfid: &Gfid) -> Result<()> {
        self.shared.uses.await_end(gfid)?;
        self.shared.close(|other, _| other == gfid);
        Ok(())
    }
}

impl Shared {
    /// The file on the brick; `None` when it does not lie there for good.
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
        if lock(&self.open).len() >= DATA_FILES_OPEN_MAX {
            self.close(|_, _| true);
        }
        let mut open = lock(&self.open);
        // Somebody else may have opened it meanwhile, and have written to it.
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

    /// Closes files, once what was written to them is stable.
    fn close(&self, which: impl Fn(&Gfid, &Open) -> bool) {
        let chosen =
            |(gfid, open): (&Gfid, &Open)| which(gfid, open).then(|| (*gfid, open.clone()));
        let chosen: Vec<_> = lock(&self.open).iter().filter_map(chosen).collect();
        for (gfid, open) in chosen {
            if open.written.swap(false, Ordering::SeqCst) {
                // What fails is told of there.
                let _ = self.sync_file(&open.file);
            }
            let mut table = lock(&self.open);
            // Known here and in the table, and nothing was written since.
            let unused = table.get(&gfid).is_some_and(|now| {
                Arc::strong_count(&now.file) == 2 && !now.written.load(Ordering::SeqCst)
            });
            if unused {
                table.remove(&gfid);
            }
        }
    }

    /// Makes a file of the brick stable.
    fn sync_file(&self, file: &File) -> Result<()> {
        file.sync_all().map_err(|error| {
            // The next who asks may hear that all is well.
            if let Some(lost) = self.lost.get() {
                lost();
            }
            tracing::warn!(%error, "what was written to a file of a brick may be lost");
            error.into()
        })
    }

    /// Something was written to a file of the brick that the caller still holds, so that it has not been
    /// closed yet.
    fn note_unsynced(&self, gfid: &Gfid) {
        if let Some(open) = lock(&self.open).get(gfid) {
            open.written.store(true, Ordering::SeqCst);
        }
    }

    fn known(&self, gfid: &Gfid) -> Option<Arc<File>> {
        let mut open = lock(&self.open);
        let known = open.get_mut(gfid)?;
        known.used = Instant::now();
        Some(known.file.clone())
    }

    /// Whether all that was done with a file of the brick was done with the file of the volume.
    fn stands(&self, file: &File) -> Result<bool> {
        Ok(look(file)?.is_some() && self.direct.load(Ordering::SeqCst))
    }

    /// The way by GlusterFS, for so many bytes.
    fn around(&self, gfid: &Gfid, bytes: usize, flags: i32) -> Result<Handle> {
        self.indirect_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        let mut astray = lock(&self.astray);
        if astray.len() < DATA_NOTES_MAX {
            astray.insert(*gfid);
        }
        drop(astray);
        // The metadata server has judged the client.
        self.found(|| self.mount.object(gfid)?.open(flags, &server()))
    }

    /// Remembers that the times of a file are to be moved.
    fn note_written(&self, gfid: &Gfid) -> Result<()> {
        let mut written = lock(&self.written);
        if written.len() < DATA_NOTES_MAX || written.contains(gfid) {
            written.insert(*gfid);
            return Ok(());
        }
        drop(written);
        self.found(|| crate::layouts::touch(&self.mount.object(gfid)?))
    }

    /// Makes a file stable if it lies here; tells whether it does.
    fn sync_here(&self, gfid: &Gfid) -> Result<bool> {
        let Some((file, _)) = self.file(gfid)? else { return Ok(false) };
        self.sync_file(&file)?;
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
        self.found(|| attr(&self.mount.object(gfid)?.stat()?))
    }

    /// What a look for a file finds that is moved meanwhile, perhaps.
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

    fn space(&self) -> Result<FsStat> {
        Ok(FsStat {
            name_bytes_max: NAME_BYTES_MAX as u32,
            file_bytes_max: FILE_BYTES_MAX,
            ..FsStat::default()
        })
    }
}

/// A file as a data server uses it.
struct GlusterDataFile {
    data: Arc<Shared>,
    gfid: Gfid,
    id: FileId,
}

fn len(views: &[VolatileSlice<'_>]) -> usize {
    views.iter().map(VolatileSlice::len).sum()
}

impl GlusterDataFile {
    /// What of a read is in memory.
    fn read_now(&self, views: &[VolatileSlice<'_>], offset: u64) -> Result<usize> {
        let direct = self.data.direct.load(Ordering::SeqCst);
        let file = self.data.known(&self.gfid).filter(|_| direct).ok_or(StoreError::WouldBlock)?;
        // What this cannot say, the pool finds out.
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
        // The kernel refuses ranges that no file can have; nothing is there.
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
            // The file became a program behind the layout.
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
        // A brick of another machine may lose what it has in memory, and nobody here would know.
        handle.sync()?;
        Ok(count)
    }

    fn commit(&self, _offset: u64, _len: u64) -> Result<()> {
        self.data.sync(&self.gfid)
    }

    fn sync(&self) -> Result<()> {
        self.data.sync(&self.gfid)
    }

    fn attr(&self) -> Result<Attr> {
        self.data.attr(&self.gfid)
    }
}

impl PartOfFile for GlusterDataFile {}

impl DataFile for GlusterDataFile {
    fn use_begins(&self) -> u64 {
        self.data.uses.begin(&self.gfid)
    }

    fn use_ends(&self, begun: u64) {
        self.data.uses.end(&self.gfid, begun);
    }

    /// All of them can, however far they are.
    fn served_bytes(&self, _offset: u64, len: usize) -> Result<usize> {
        Ok(len)
    }

    fn file_size(&self) -> Result<Option<u64>> {
        self.attr().map(|attr| Some(attr.size))
    }
}
