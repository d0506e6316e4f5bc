//! Open regular files.
//!
//! Invariants
//! * The descriptor was opened with the caller's rights, and writes run as the caller. So the
//!   kernel clears setuid bits and charges quotas as for a local writer.
//! * A short count of a blocking read means the end of the file.

use super::export::{Export, stat_fd};
use super::ident::Caller;
use super::node::Node;
use super::sys;
use crate::limits::INLINE_WRITE_BYTES_MAX;
use dafs_mem::{VolatileSlice, cached_pages, preadv2, pwritev2};
use dafs_store::backend::{FILE_BYTES_MAX, before, check_regular, continued, drop_cached};
use dafs_store::{Attr, Cred, FileId, OpenFile, OpenMode, Result, Stability, StoreError, Wait};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::any::Any;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// An open of a file.
pub(super) struct PosixFile {
    export: Arc<Export>,
    node: Arc<Node>,
    fd: Arc<OwnedFd>,
    mode: OpenMode,
    cred: Cred,
}

pub(super) fn data_flags(mode: OpenMode) -> Result<OFlags> {
    // The open must not block on a device or pipe that has replaced a file.
    let base = OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    match (mode.read, mode.write) {
        (true, false) => Ok(base | OFlags::RDONLY),
        (false, true) => Ok(base | OFlags::WRONLY),
        (true, true) => Ok(base | OFlags::RDWR),
        (false, false) => Err(StoreError::Invalid),
    }
}

/// Returns the error of an open for data. Without a free descriptor it fails until a file is
/// closed.
pub(super) fn open_error(errno: Errno) -> StoreError {
    match errno {
        Errno::MFILE | Errno::NFILE => StoreError::TooManyOpen,
        errno => errno.into(),
    }
}

impl PosixFile {
    /// Opens a held object as the caller.
    pub(super) fn open(
        export: &Arc<Export>,
        _caller: &Caller,
        cred: &Cred,
        node: &Arc<Node>,
        mode: OpenMode,
    ) -> Result<Arc<Self>> {
        check_regular(node.kind)?;
        let flags = data_flags(mode)?;
        if mode.write {
            export.writable()?;
        }
        let fd = Arc::new(export.reopen(node, flags).map_err(open_error)?);
        let file = Self::from_fd(export, cred, node, mode, fd);
        // An id does not reopen a removed file. It stays usable through opens from before.
        let stat = stat_fd(file.fd.as_fd())?;
        if stat.stx_nlink == 0 && !export.nodes.is_open_elsewhere(node) {
            drop(file);
            export.nodes.forget(&node.id);
            return Err(StoreError::Stale);
        }
        export.tell(node, &stat);
        Ok(file)
    }

    /// Takes over a descriptor that was opened as the caller.
    pub(super) fn from_fd(
        export: &Arc<Export>,
        cred: &Cred,
        node: &Arc<Node>,
        mode: OpenMode,
        fd: Arc<OwnedFd>,
    ) -> Arc<Self> {
        export.nodes.opened(node);
        Arc::new(Self { export: export.clone(), node: node.clone(), fd, mode, cred: cred.clone() })
    }

    /// Returns the descriptor, for the other steps of a create.
    pub(super) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    pub(super) fn export(&self) -> &Export {
        &self.export
    }

    pub(super) fn mode(&self) -> OpenMode {
        self.mode
    }

    /// Takes on the identity under which the file is changed. Fails without write access.
    pub(super) fn as_writer(&self) -> Result<Caller> {
        if !self.mode.write {
            return Err(StoreError::Access);
        }
        self.export.check_file_contained(&self.node, Wait::Allowed)?;
        self.export.identity.caller(&self.cred)
    }

    /// Fails without read access.
    pub(super) fn check_reader(&self, wait: Wait) -> Result<()> {
        if !self.mode.read {
            return Err(StoreError::Access);
        }
        self.export.check_file_contained(&self.node, wait)
    }

    /// Changes the file and records the change.
    pub(super) fn change<T>(&self, apply: impl FnOnce() -> Result<T>) -> Result<T> {
        let _caller = self.as_writer()?;
        let done = apply()?;
        self.export.note_change(&self.node, self.fd.as_fd())?;
        Ok(done)
    }

    /// Writes without waiting, or fails.
    fn write_now(&self, views: &[VolatileSlice<'_>], offset: u64) -> Result<usize> {
        if self.export.in_memory {
            return self.write_through(views, offset, 0);
        }
        let refused = &self.export.no_nowait_write;
        if !refused.load(Ordering::Relaxed) {
            match pwritev2(self.fd.as_fd(), views, offset, libc::RWF_NOWAIT) {
                Ok(written) => return Ok(written),
                Err(error) if is_unsupported(&error) => refused.store(true, Ordering::Relaxed),
                Err(error) => return Err(error.into()),
            }
        }
        // A buffered write goes to the page cache. It rarely waits for a journal or for dirty pages.
        let len = views.iter().map(VolatileSlice::len).sum::<usize>();
        if len > INLINE_WRITE_BYTES_MAX || !self.edges_are_in_memory(offset, len as u64)? {
            return Err(StoreError::WouldBlock);
        }
        self.write_through(views, offset, 0)
    }

    /// True if a write need not read first: pages that it covers only in part are in memory or lie
    /// beyond the end of the file. Whole pages need no check.
    fn edges_are_in_memory(&self, offset: u64, len: u64) -> Result<bool> {
        let page_bytes = sys::page_bytes();
        let end = offset.checked_add(len).ok_or(StoreError::FileTooBig)?;
        let edges = [offset, end].map(|at| (at % page_bytes != 0).then(|| at - at % page_bytes));
        if edges == [None, None] {
            return Ok(true);
        }
        let size = stat_fd(self.fd.as_fd())?.stx_size;
        let in_memory = |page: u64| page >= size || self.is_in_memory(page);
        let [head, tail] = edges;
        Ok(head.is_none_or(in_memory) && (tail == head || tail.is_none_or(in_memory)))
    }

    /// True if the page at an offset is in memory. False also if that is unknown.
    fn is_in_memory(&self, page: u64) -> bool {
        match cached_pages(self.fd.as_fd(), page..page + sys::page_bytes()) {
            // Before Linux 6.5, and in some sandboxes, only a read shows it, which changes the time
            // of the last access.
            Err(_) => {
                let mut byte = [0];
                let view = [VolatileSlice::from_mut(&mut byte)];
                preadv2(self.fd.as_fd(), &view, page, libc::RWF_NOWAIT).is_ok()
            }
            Ok(pages) => pages != 0,
        }
    }

    /// Drops content from the kernel's cache that clients do not need again, now that it is stable.
    fn drop_unneeded(&self) {
        for range in self.export.leaving.committed(self.node.id) {
            // Content that cannot be dropped stays until the kernel needs its memory.
            let _ = drop_cached(self.fd.as_fd(), &range);
        }
    }

    fn write_through(&self, views: &[VolatileSlice<'_>], offset: u64, flags: i32) -> Result<usize> {
        continued(views, offset, |views, offset| pwritev2(self.fd.as_fd(), views, offset, flags))
    }
}

fn is_unsupported(error: &std::io::Error) -> bool {
    error.raw_os_error() == Some(libc::EOPNOTSUPP)
}

impl OpenFile for PosixFile {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn id(&self) -> FileId {
        self.node.id
    }

    fn read_at(&self, views: &[VolatileSlice<'_>], offset: u64, wait: Wait) -> Result<usize> {
        self.check_reader(wait)?;
        // The kernel refuses ranges beyond the longest file, where there is no data to read.
        let room = usize::try_from(FILE_BYTES_MAX.saturating_sub(offset)).unwrap_or(usize::MAX);
        if room == 0 {
            return Ok(0);
        }
        let clipped;
        let views = if views.iter().map(VolatileSlice::len).sum::<usize>() > room {
            clipped = before(views, room);
            &clipped
        } else {
            views
        };
        if wait == Wait::Allowed || self.export.in_memory {
            return continued(views, offset, |views, at| preadv2(self.fd.as_fd(), views, at, 0));
        }
        let refused: &AtomicBool = &self.export.no_nowait_read;
        if refused.load(Ordering::Relaxed) {
            return Err(StoreError::WouldBlock);
        }
        match preadv2(self.fd.as_fd(), views, offset, libc::RWF_NOWAIT) {
            Ok(read) => Ok(read),
            Err(error) if is_unsupported(&error) => {
                refused.store(true, Ordering::Relaxed);
                Err(StoreError::WouldBlock)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// A file system that cannot tell whether it would wait gives the kernel no way to wait without a
    /// thread either.
    fn read_descriptor(&self) -> Option<BorrowedFd<'_>> {
        let waits_aside =
            !self.export.in_memory && !self.export.no_nowait_read.load(Ordering::Relaxed);
        (waits_aside && self.check_reader(Wait::Never).is_ok()).then(|| self.fd.as_fd())
    }

    fn write_at(
        &self,
        views: &[VolatileSlice<'_>],
        offset: u64,
        stability: Stability,
        wait: Wait,
    ) -> Result<usize> {
        if !self.mode.write {
            return Err(StoreError::Access);
        }
        if offset > FILE_BYTES_MAX {
            return Err(StoreError::FileTooBig);
        }
        self.export.check_file_contained(&self.node, wait)?;
        let flags = match stability {
            Stability::Unstable => 0,
            Stability::Data => libc::RWF_DSYNC,
            Stability::File => libc::RWF_DSYNC | libc::RWF_SYNC,
        };
        if wait == Wait::Allowed {
            return self.change(|| self.write_through(views, offset, flags));
        }
        if stability != Stability::Unstable && !self.export.in_memory {
            return Err(StoreError::WouldBlock);
        }
        self.change(|| self.write_now(views, offset))
    }

    fn commit(&self, _offset: u64, _len: u64) -> Result<()> {
        // No call that takes a range also makes stable what is needed to find the data.
        rustix::fs::fdatasync(&self.fd)?;
        self.drop_unneeded();
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        rustix::fs::fsync(&self.fd)?;
        self.drop_unneeded();
        Ok(())
    }

    fn check_written_back(&self) -> Result<()> {
        Ok(sys::check_written_back(self.fd.as_fd())?)
    }

    fn clone_to(&self, copy: &std::fs::File) -> Result<()> {
        self.share_with(copy.as_fd())
    }

    fn clone_back(&self, copy: &std::fs::File) -> Result<()> {
        self.replace_by(copy.as_fd())
    }

    fn attr(&self) -> Result<Attr> {
        self.export.check_file_contained(&self.node, Wait::Allowed)?;
        self.export.node_attr(&self.node, &stat_fd(self.fd.as_fd())?)
    }
}

impl Drop for PosixFile {
    fn drop(&mut self) {
        self.export.nodes.closed(&self.node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PosixOptions, PosixStore};
    use dafs_store::{CacheAdvice, CreateHow, ExportSecret, SetAttr, Store};

    /// A store in a directory, and the new file `f` in it.
    fn new_file(dir: &std::path::Path) -> (PosixStore, dafs_store::Created) {
        let options = PosixOptions::new(ExportSecret::from_bytes([7; 16]));
        let store = PosixStore::open(dir, options).unwrap();
        let cred =
            Cred::new(rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let (how, none) = (CreateHow::Guarded, SetAttr::default());
        let mode = OpenMode { read: true, write: true };
        let made = store.create(&cred, &store.root(), b"f", how, &none, mode).unwrap();
        (store, made)
    }

    #[test]
    fn a_write_that_would_read_first_does_not_do_so_inline() {
        // Not the usual place for temporary files, which may live in memory.
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let (store, made) = new_file(dir.path());
        // As where the file system does not know the flag.
        store.export.no_nowait_write.store(true, Ordering::Relaxed);
        let page = sys::page_bytes();
        let mut bytes = vec![7; 4 * page as usize];
        let views = [VolatileSlice::from_mut(&mut bytes)];
        let write = |offset: u64, len: u64, wait| {
            let part = [views[0].slice(0, len as usize).unwrap()];
            made.file.write_at(&part, offset, Stability::Unstable, wait)
        };
        assert_eq!(write(0, 4 * page, Wait::Allowed), Ok(4 * page as usize));
        assert_eq!(write(4 * page + 5, 7, Wait::Never), Ok(7), "beyond the end");
        made.file.commit(0, 0).unwrap();
        made.file.advise(0, 0, CacheAdvice::DontNeed).unwrap();
        let mut byte = [0];
        let first = [VolatileSlice::from_mut(&mut byte)];
        if made.file.read_at(&first, 0, Wait::Never) != Err(StoreError::WouldBlock) {
            println!("SKIPPED: the file system keeps everything in memory");
            return;
        }
        made.file.advise(0, 0, CacheAdvice::DontNeed).unwrap();
        assert_eq!(write(2 * page, page, Wait::Never), Ok(page as usize), "a whole page");
        made.file.commit(0, 0).unwrap();
        for (offset, len) in [(page, page + 1), (page + 1, page - 1)] {
            // Read-ahead of the last check may still bring the page in, but not for ever.
            let refused = (0..1000).any(|_| {
                made.file.advise(0, 0, CacheAdvice::DontNeed).unwrap();
                let refused = write(offset, len, Wait::Never) == Err(StoreError::WouldBlock);
                made.file.commit(0, 0).unwrap();
                refused
            });
            assert!(refused, "{len} bytes at {offset}");
        }
        assert_eq!(write(page + 1, 5, Wait::Allowed), Ok(5));
        assert_eq!(write(page + 2, 5, Wait::Never), Ok(5), "the page is in memory now");
    }

    #[test]
    fn a_long_write_is_done_inline_in_one_call() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let (store, made) = new_file(dir.path());
        if store.export.in_memory {
            println!("SKIPPED: the file system keeps everything in memory");
            return;
        }
        store.export.no_nowait_write.store(true, Ordering::Relaxed);
        let mut bytes = vec![7; INLINE_WRITE_BYTES_MAX + 1];
        let views = [VolatileSlice::from_mut(&mut bytes)];
        let write = |len: usize| {
            let part = [views[0].slice(0, len).unwrap()];
            made.file.write_at(&part, 0, Stability::Unstable, Wait::Never)
        };
        assert_eq!(write(INLINE_WRITE_BYTES_MAX), Ok(INLINE_WRITE_BYTES_MAX));
        assert_eq!(write(INLINE_WRITE_BYTES_MAX + 1), Err(StoreError::WouldBlock));
    }

    #[test]
    fn a_write_is_no_access() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let (store, made) = new_file(dir.path());
        store.export.no_nowait_write.store(true, Ordering::Relaxed);
        let mut bytes = *b"hello";
        let views = [VolatileSlice::from_mut(&mut bytes)];
        made.file.write_at(&views, 0, Stability::Unstable, Wait::Allowed).unwrap();
        let long_ago = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
        let outside = std::fs::File::options().write(true).open(dir.path().join("f")).unwrap();
        outside.set_times(std::fs::FileTimes::new().set_accessed(long_ago)).unwrap();
        assert_eq!(made.file.write_at(&views, 1, Stability::Unstable, Wait::Never), Ok(5));
        assert_eq!(outside.metadata().unwrap().accessed().unwrap(), long_ago);
    }

    #[test]
    fn a_descriptor_is_lent_to_readers_alone() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let (store, made) = new_file(dir.path());
        let lends = |file: &dyn OpenFile| file.read_descriptor().is_some();
        // A file system in memory never waits.
        assert_eq!(lends(&*made.file), !store.export.in_memory);
        let cred =
            Cred::new(rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let writer = OpenMode { read: false, write: true };
        let writer = store.open(&cred, &made.file.id(), writer).unwrap();
        assert!(!lends(&*writer));
        store.export.no_nowait_read.store(true, Ordering::Relaxed);
        assert!(!lends(&*made.file), "each read would take a thread of the kernel");
    }

    #[test]
    fn data_that_can_be_written_back_is_not_lost() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let (_store, made) = new_file(dir.path());
        let mut bytes = *b"hello";
        let views = [VolatileSlice::from_mut(&mut bytes)];
        made.file.write_at(&views, 0, Stability::Unstable, Wait::Allowed).unwrap();
        made.file.check_written_back().unwrap();
        made.file.sync().unwrap();
        made.file.check_written_back().unwrap();
    }

    #[test]
    fn only_the_asked_part_of_views_is_kept() {
        let (mut a, mut b) = ([1; 3], [2; 4]);
        let views = [VolatileSlice::from_mut(&mut a), VolatileSlice::from_mut(&mut b)];
        let lens = |keep| before(&views, keep).iter().map(VolatileSlice::len).collect::<Vec<_>>();
        assert_eq!((lens(2), lens(3), lens(5)), (vec![2], vec![3], vec![3, 2]));
    }
}
