//! The undo of writes under a lock whose holder has failed (DAFS 9.5).
//!
//! From the grant of such a lock on, the pre-image of each byte of its file is saved to a log in
//! the state directory, before the byte is first overwritten or cut off. When the holder releases
//! the lock, the log is discarded. When the lock is lost, the file is restored before it can be
//! locked again. Content and size are undone, but attributes are not. If the state directory lies
//! on the file system of the file, and that can share content between files, the whole file is
//! saved at once as a copy that shares content.
//!
//! Invariants
//! * No byte below the size at the time of the lock is changed before its pre-image is stable in
//!   the log, or in a copy beside it.
//! * A restore is idempotent: it can be repeated from any point, also by another run of the server.
//! * A file has one log at most, because the lock is for writing and covers the whole file.
//! * Long work, on behalf of a caller that may not wait, is done by another thread, once at a time
//!   for each file.

mod earlier;
mod error;
mod frames;
mod index;
mod log;
mod room;
mod run;
#[cfg(test)]
mod tests;
mod trouble;

pub use error::UndoError;
pub use index::undo_list_instance;
pub(crate) use log::Holder;

use crate::Result;
use crate::append::Writers;
use crate::error::ServiceError;
use crate::handle::Handle;
use crate::hosts::Host;
use dafs_journal::Spawn;
use dafs_mem::{Mutex, RwLock, VolatileSlice};
use dafs_store::{OpenFile, Stability, StoreError, Wait, own};
use index::Index;
use log::{Head, Log, RECORD_BYTES_MAX};
use room::Room;
use rustc_hash::{FxHashMap, FxHashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use trouble::Trouble;

/// Pre-images are saved in whole blocks of this length.
const BLOCK_BYTES: u64 = 16 << 10;

const SUFFIX: &str = "undo";

/// The undo logs of all files.
#[derive(Default)]
pub(crate) struct Undo {
    /// The number of `entries`. A write checks no further while it is zero.
    active: AtomicUsize,
    /// The space that they take.
    room: Room,
    /// The directory of the logs, and their list. Not set until the server sets it.
    directory: OnceLock<(PathBuf, Arc<Index>)>,
    next: AtomicU64,
    /// Runs work that waits for the disk, on behalf of threads that may not wait.
    elsewhere: OnceLock<Spawn>,
    entries: RwLock<FxHashMap<Handle, Arc<Entry>>>,
}

/// The undo log of one file.
pub(crate) struct Entry {
    pub(crate) head: EntryHead,
    /// It is from an earlier run, and its holder has not reclaimed the lock yet.
    restored: AtomicBool,
    /// Its holder has lost the lock, and the file is to be restored.
    forfeited: AtomicBool,
    /// Another thread is working on it.
    busy: AtomicBool,
    /// Why the file could not be restored, if that was tried.
    trouble: Mutex<Option<Trouble>>,
    saved: Mutex<Saved>,
}

/// The immutable part.
pub(crate) struct EntryHead {
    pub(crate) key: Handle,
    pub(crate) holder: Holder,
    /// The lock outlives its holder's failure, and is undone only when another client's request
    /// conflicts.
    pub(crate) persist: bool,
    size: u64,
}

struct Saved {
    log: Log,
    /// To read pre-images and to restore the file.
    file: Option<Arc<dyn OpenFile>>,
    blocks: FxHashSet<u64>,
    bytes: u64,
    /// Kept or restored: no more is to be saved.
    over: bool,
    /// The log could not be written: its content beyond the last record is not known.
    failed: bool,
}

impl Undo {
    /// Reads the logs of an earlier run, and places new ones in the same directory. Returns the
    /// files that they are for.
    ///
    /// # Errors
    /// The directory cannot be made or read, or a log is damaged.
    pub(crate) fn open(&self, directory: &Path) -> std::result::Result<Vec<Handle>, UndoError> {
        // It contains bytes of all users' files.
        own::make_directory(directory).map_err(io::Error::from)?;
        let mut entries = self.entries.write();
        let (mut logs, copies) = index::find_logs(directory)?;
        let (index, listed) = index::open_list(directory, &mut logs)?;
        if let Some((number, _)) = listed.iter().find(|(number, _)| !logs.contains(number)) {
            return Err(UndoError::Missing(log::path_of(directory, *number)));
        }
        self.next.store(logs.last().map_or(0, |last| last + 1), Ordering::Relaxed);
        let unlisted = |number: &&u64| !listed.iter().any(|(listed, _)| listed == *number);
        // These files were not changed under their locks yet, or the logs were discarded.
        for number in logs.iter().filter(unlisted) {
            std::fs::remove_file(log::path_of(directory, *number))?;
        }
        for number in copies.iter().filter(unlisted) {
            std::fs::remove_file(log::copy_path(&log::path_of(directory, *number)))?;
        }
        for listed in listed {
            let (log, head) = Log::open(index.clone(), directory, listed.0)?;
            if log.listed() != listed {
                return Err(UndoError::Missing(log::path_of(directory, listed.0)));
            }
            if log.is_older() {
                return Err(UndoError::Older(log::path_of(directory, listed.0)));
            }
            if entries.contains_key(&head.key) {
                // The file was locked again later, so the changes under this lock were to be kept.
                log.remove()?;
                continue;
            }
            let blocks = log.records.iter().flat_map(|record| blocks(record.offset, record.len));
            let blocks: FxHashSet<u64> = blocks.collect();
            let bytes = log.records.iter().map(|record| record.len as u64).sum();
            let Head { key, size, persist, holder, .. } = head;
            let saved = Saved { log, file: None, blocks, bytes, over: false, failed: false };
            self.room.count_left(&holder.name, bytes);
            let head = EntryHead { key, holder, persist, size };
            let entry = Entry::new(head, true, saved);
            entries.insert(key, Arc::new(entry));
            self.active.fetch_add(1, Ordering::SeqCst);
        }
        // INVARIANT: opened once, at the start.
        let _ = self.directory.set((directory.to_owned(), index));
        Ok(entries.keys().copied().collect())
    }

    /// True when logs can be kept.
    pub(crate) fn is_open(&self) -> bool {
        self.directory.get().is_some()
    }

    /// True while no file has an undo log. Costs one load.
    pub(crate) fn is_empty(&self) -> bool {
        self.active.load(Ordering::SeqCst) == 0
    }

    pub(crate) fn len(&self) -> usize {
        self.active.load(Ordering::SeqCst)
    }

    pub(crate) fn find(&self, key: &Handle) -> Option<Arc<Entry>> {
        if self.is_empty() {
            return None;
        }
        self.entries.read().get(key).cloned()
    }

    pub(crate) fn all(&self) -> Vec<Arc<Entry>> {
        if self.is_empty() {
            return Vec::new();
        }
        let entries = self.entries.read();
        entries.values().cloned().collect()
    }

    /// Begins to save pre-images of a file that `holder` has locked from `host`, if it still
    /// `holds` the lock when all is ready. `file` is open for reading and writing, and not counted
    /// among the writers. If the holder had the lock before and has reclaimed it, all changes since
    /// its first lock can be undone.
    ///
    /// # Errors
    /// * `NotSupported` without a directory, `Resource` at the limit of the client or of all.
    /// * `Busy` while another holder's changes are not undone.
    /// * `Expired` when the lock was lost meanwhile.
    /// * Those of the disk.
    pub(crate) fn begin(
        &self,
        key: Handle,
        (holder, host): (Holder, Host),
        persist: bool,
        file: Arc<dyn OpenFile>,
        writers: &Writers,
        holds: impl FnOnce(&Entry) -> bool,
    ) -> Result<()> {
        let (directory, index) = self.directory.get().ok_or(ServiceError::NotSupported)?;
        if let Some(entry) = self.find(&key) {
            if entry.head.holder != holder {
                return Err(StoreError::Busy.into());
            }
            let mut saved = entry.saved.lock();
            if saved.over || entry.is_forfeited() {
                return Err(StoreError::Busy.into());
            }
            entry.restored.store(false, Ordering::SeqCst);
            saved.file = Some(file);
            return Ok(());
        }
        let client = holder.name.clone();
        let room = self.room.take_lock(&client, host)?;
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        // Every later writer sees the entry.
        let _alone = writers.alone(&key);
        if let Some(entry) = self.find(&key) {
            // In a race, another session has locked the file for the same owner.
            return if entry.head.holder == holder { Ok(()) } else { Err(StoreError::Busy.into()) };
        }
        let copied = log::copy(&log::path_of(directory, number), &*file).unwrap_or_else(|error| {
            tracing::debug!(%error, "overwritten blocks are saved instead of a copy");
            None
        });
        let size = copied.map_or_else(|| file.attr().map(|attr| attr.size), Ok)?;
        let head = Head { key, size, persist, copied: copied.is_some(), holder };
        let log = Log::create(index.clone(), directory, number, &head);
        let log = log.map_err(|error| not_logged(&error))?;
        let Head { holder, .. } = head;
        let blocks = FxHashSet::default();
        let saved = Saved { log, file: Some(file), blocks, bytes: 0, over: false, failed: false };
        let head = EntryHead { key, holder, persist, size };
        let entry = Entry::new(head, false, saved);
        let entry = Arc::new(entry);
        let mut entries = self.entries.write();
        entries.insert(key, entry.clone());
        self.active.fetch_add(1, Ordering::SeqCst);
        room.keep();
        drop(entries);
        // If the lock is lost from now on, the file is restored by the entry. If it was lost
        // before, another client may have had the lock and written. No writer has come since.
        if holds(&entry) {
            return Ok(());
        }
        self.discard(&entry);
        Err(ServiceError::Expired)
    }

    /// Saves the pre-image of a write, if the file is under such a lock. The caller counts among
    /// the file's writers until it has written.
    ///
    /// # Errors
    /// * `WouldBlock` when that needs the disk and `wait` forbids it.
    /// * `NoSpace` above the limit of a lock or of all, `Quota` above that of a client.
    /// * `Busy` for a file under a lock of an earlier run that cannot be opened.
    /// * Those of the disk.
    pub(crate) fn before_write(
        &self,
        key: &Handle,
        offset: u64,
        len: u64,
        wait: Wait,
    ) -> dafs_store::Result<()> {
        match self.find(key) {
            Some(entry) => entry.save(self, offset, len, wait),
            None => Ok(()),
        }
    }

    /// Runs `act` for an entry where it may wait: on another thread, unless one is working on the
    /// entry, or on this one if no way to spawn was set.
    pub(crate) fn run(&self, entry: &Arc<Entry>, act: impl FnOnce(&Arc<Entry>) + Send + 'static) {
        let Some(spawn) = self.elsewhere.get() else { return act(entry) };
        if !entry.busy.swap(true, Ordering::SeqCst) {
            let busy = Busy(entry.clone());
            spawn(Box::new(move || act(&busy.0)));
        }
    }

    /// Discards the log: the changes are kept. This is stable on return.
    ///
    /// # Errors
    /// Those of the disk. Then all changes can still be undone.
    pub(crate) fn keep(&self, entry: &Arc<Entry>) -> Result<()> {
        let mut saved = entry.saved.lock();
        if !saved.over {
            saved.log.remove().map_err(|error| {
                saved.log.take_back();
                not_logged(&error)
            })?;
            self.forget(entry, &mut saved);
        }
        Ok(())
    }

    /// Keeps the changes under a lock that is released for good, as the next start would find out
    /// too. False when the lock was lost before: then they are undone.
    pub(crate) fn keep_given_up(&self, entry: &Arc<Entry>) -> bool {
        !entry.is_forfeited() && self.discard(entry)
    }

    /// Discards the log. True unless that was done before.
    fn discard(&self, entry: &Arc<Entry>) -> bool {
        let mut saved = entry.saved.lock();
        if saved.over {
            return false;
        }
        if let Err(error) = saved.log.remove() {
            tracing::warn!(%error, "a log that is needed no more cannot be removed yet");
        }
        self.forget(entry, &mut saved);
        true
    }

    /// Restores a file to the time when it was locked. This is stable on return. `open` opens the
    /// file where it is not open.
    ///
    /// # Errors
    /// Those of the disk. Then the restore is to be repeated.
    pub(crate) fn roll_back(
        &self,
        entry: &Arc<Entry>,
        writers: &Writers,
        open: impl FnOnce() -> dafs_store::Result<Arc<dyn OpenFile>>,
    ) -> Result<()> {
        let _alone = writers.alone(&entry.head.key);
        let mut saved = entry.saved.lock();
        if saved.over {
            return Ok(());
        }
        let _changing = writers.exposure.begin_change(&entry.head.key, 0, u64::MAX);
        match saved.file.clone().map_or_else(open, Ok) {
            Ok(file) => saved.put_back(&*file, entry.head.size)?,
            // The file is gone, so there is no content to restore.
            Err(StoreError::Stale) => {}
            Err(error) => return Err(error.into()),
        }
        saved.log.remove().map_err(|error| not_logged(&error))?;
        let (bytes, size) = (saved.bytes, entry.head.size);
        self.forget(entry, &mut saved);
        let holder = entry.head.holder.name.escape_ascii();
        tracing::warn!(client = %holder, bytes, size, "a lost lock is rolled back");
        Ok(())
    }

    fn forget(&self, entry: &Arc<Entry>, saved: &mut Saved) {
        saved.over = true;
        saved.file = None;
        self.room.give_lock(&entry.head.holder.name, saved.bytes);
        let mut entries = self.entries.write();
        entries.remove(&entry.head.key);
        self.active.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Marks an entry as busy while it lives. The mark ends also in a panic.
struct Busy(Arc<Entry>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.busy.store(false, Ordering::SeqCst);
    }
}

impl Writers {
    /// True if a caller that may not wait would have to, in order to change the file from `offset`
    /// to its end. Another thread then saves the pre-image.
    pub(crate) fn must_wait_to_cut(
        self: &Arc<Self>,
        key: &Handle,
        offset: u64,
        wait: Wait,
    ) -> bool {
        if wait == Wait::Allowed {
            return false;
        }
        if self.is_alone(key) {
            return true;
        }
        let Some(entry) = self.undo.find(key).filter(|_| self.undo.elsewhere.get().is_some())
        else {
            return false;
        };
        // The cut itself returns other errors.
        if entry.save(&self.undo, offset, u64::MAX, wait) != Err(StoreError::WouldBlock) {
            return false;
        }
        let writers = self.clone();
        self.undo.run(&entry, move |entry| {
            let _together = writers.together(&entry.head.key, Wait::Allowed);
            if let Err(error) = entry.save(&writers.undo, offset, u64::MAX, Wait::Allowed) {
                tracing::debug!(%error, "not all data of a truncation could be saved");
            }
        });
        true
    }
}

impl Entry {
    fn new(head: EntryHead, restored: bool, saved: Saved) -> Self {
        let (restored, forfeited, busy) = (restored.into(), false.into(), false.into());
        let (trouble, saved) = (Mutex::new(None), Mutex::new(saved));
        Self { head, restored, forfeited, busy, trouble, saved }
    }

    /// From now on the holder cannot reclaim it.
    pub(crate) fn forfeit(&self) {
        self.forfeited.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_forfeited(&self) -> bool {
        self.forfeited.load(Ordering::SeqCst)
    }

    /// True if the file is to be restored, or could not be opened.
    pub(crate) fn is_lost(&self) -> bool {
        self.is_forfeited() || self.trouble().is_some()
    }

    /// True until the holder has reclaimed the lock that it had before the server's restart.
    pub(crate) fn is_restored(&self) -> bool {
        self.restored.load(Ordering::SeqCst)
    }

    /// Sets the file for an entry of an earlier run.
    pub(crate) fn set_file(&self, file: Arc<dyn OpenFile>) {
        self.saved.lock().file = Some(file);
    }

    fn save(&self, undo: &Undo, offset: u64, len: u64, wait: Wait) -> dafs_store::Result<()> {
        let end = offset.saturating_add(len).min(self.head.size);
        if offset >= end {
            return Ok(());
        }
        let mut saved = match (self.saved.try_lock(), wait) {
            (Some(saved), _) => saved,
            (None, Wait::Never) => return Err(StoreError::WouldBlock),
            (None, Wait::Allowed) => self.saved.lock(),
        };
        if saved.over || saved.log.copied {
            return Ok(());
        }
        let (mut block, last) = (offset / BLOCK_BYTES, (end - 1) / BLOCK_BYTES);
        while block <= last {
            let run = (block..=last)
                .take(RECORD_BYTES_MAX / BLOCK_BYTES as usize)
                .take_while(|block| !saved.blocks.contains(block))
                .count() as u64;
            if run == 0 {
                block += 1;
                continue;
            }
            let start = block * BLOCK_BYTES;
            let bytes = (run * BLOCK_BYTES).min(self.head.size - start);
            let client = &self.head.holder.name;
            undo.room.take_bytes(client, saved.bytes, bytes)?;
            if wait == Wait::Never {
                undo.room.give_bytes(client, bytes);
                return Err(if saved.failed { StoreError::Io } else { StoreError::WouldBlock });
            }
            match saved.save_run(start, bytes as usize) {
                Ok(()) => saved.bytes += bytes,
                Err(error) => {
                    undo.room.give_bytes(client, bytes);
                    return Err(error);
                }
            }
            saved.blocks.extend(block..block + run);
            block += run;
        }
        Ok(())
    }
}

impl Saved {
    fn save_run(&mut self, start: u64, len: usize) -> dafs_store::Result<()> {
        let file = self.file.as_ref().ok_or(StoreError::Busy)?;
        if self.failed {
            return Err(StoreError::Io);
        }
        let mut data = vec![0; len];
        let mut done = 0;
        while done < len {
            let view = VolatileSlice::from_mut(&mut data[done..]);
            match file.read_at(&[view], start + done as u64, Wait::Allowed)? {
                // A local process has cut the file, bypassing the server: the rest reads as zeros.
                0 => break,
                count => done += count,
            }
        }
        self.log.append(start, &data).map_err(|error| {
            self.failed = true;
            not_logged(&error)
        })
    }

    fn put_back(&self, file: &dyn OpenFile, size: u64) -> dafs_store::Result<()> {
        if self.log.copied {
            let copy = self.log.open_copy().map_err(|error| not_logged(&error))?;
            file.clone_back(&copy)?;
            return file.sync();
        }
        file.set_size(size)?;
        for &record in &self.log.records {
            let mut data = self.log.read(record).map_err(|error| not_logged(&error))?;
            let mut done = 0;
            while done < data.len() {
                let at = record.offset + done as u64;
                let view = VolatileSlice::from_mut(&mut data[done..]);
                match file.write_at(&[view], at, Stability::Unstable, Wait::Allowed)? {
                    0 => return Err(StoreError::Io),
                    count => done += count,
                }
            }
        }
        file.sync()
    }
}

/// The blocks that a record of this offset and length has saved.
fn blocks(offset: u64, len: usize) -> impl Iterator<Item = u64> {
    offset / BLOCK_BYTES..(offset + len as u64).div_ceil(BLOCK_BYTES)
}

fn not_logged(error: &io::Error) -> StoreError {
    tracing::error!(%error, "the pre-image for an undo log cannot be saved");
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => StoreError::NoSpace,
        _ => StoreError::Io,
    }
}
