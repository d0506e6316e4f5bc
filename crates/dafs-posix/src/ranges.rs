//! Operations on whole files: size, holes, allocation and deallocation, copies and shared content.

use super::export::{Export, stat_fd};
use super::file::{PosixFile, data_flags};
use super::sys;
use dafs_store::backend::{
    COPY_BYTES_MAX, FILE_BYTES_MAX, advise_local, check_advice, check_range, check_ranges,
    copy_pieces, drop_now,
};
use dafs_store::{
    Advised, CacheAdvice, CopyRange, FileId, OpenFile, OpenMode, Result, SeekWhat, StoreError,
    Wait, WholeFile,
};
use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::Errno;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};

/// The whole file.
const WHOLE: CopyRange = CopyRange::new(0, 0, 0);

impl WholeFile for PosixFile {
    fn advise(&self, offset: u64, len: u64, advice: CacheAdvice) -> Result<Advised> {
        let export = self.export();
        if export.in_memory {
            check_advice(offset, len)?;
            return Ok(Advised::Ignored);
        }
        let (range, order) = ((offset, len), (&export.leaving, self.id()));
        advise_local(self.fd().as_fd(), range, advice, order, |id, range| {
            // Content that cannot be dropped stays until the kernel needs its memory.
            let _ = drop_closed(export, &id, range);
        })
    }

    fn set_size(&self, size: u64) -> Result<()> {
        if size > FILE_BYTES_MAX {
            return Err(StoreError::FileTooBig);
        }
        self.change(|| Ok(rustix::fs::ftruncate(self.fd(), size)?))
    }

    fn seek(&self, offset: u64, what: SeekWhat) -> Result<Option<u64>> {
        let target = match what {
            SeekWhat::Data => SeekFrom::Data(offset),
            SeekWhat::Hole => SeekFrom::Hole(offset),
        };
        if i64::try_from(offset).is_err() {
            return Err(StoreError::PastEnd);
        }
        match rustix::fs::seek(self.fd(), target) {
            Ok(found) => Ok(Some(found)),
            Err(Errno::NXIO) if offset < self.size()? => Ok(None),
            Err(Errno::NXIO) => Err(StoreError::PastEnd),
            Err(errno) => Err(errno.into()),
        }
    }

    fn allocate(&self, offset: u64, len: u64) -> Result<()> {
        check_range(offset, len)?;
        let flags = FallocateFlags::empty();
        self.change(|| Ok(rustix::fs::fallocate(self.fd(), flags, offset, len)?))
    }

    fn deallocate(&self, offset: u64, len: u64) -> Result<()> {
        check_range(offset, len)?;
        if !self.mode().write {
            return Err(StoreError::Access);
        }
        // There is no data behind the end, and the kernel refuses ranges behind the longest
        // possible file.
        let len = len.min(self.size()?.saturating_sub(offset));
        if len == 0 {
            return Ok(());
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        self.change(|| Ok(rustix::fs::fallocate(self.fd(), flags, offset, len)?))
    }

    fn copy_from(&self, source: &dyn OpenFile, range: CopyRange) -> Result<u64> {
        check_ranges(source.id() == self.id(), range)?;
        let range = CopyRange { len: range.len.min(COPY_BYTES_MAX), ..range };
        if let Some(other) = source.as_any().downcast_ref::<Self>() {
            let copied = self.copy_in_kernel(other, range)?;
            if copied > 0 || range.len == 0 || other.size()? <= range.source_offset {
                return Ok(copied);
            }
        }
        copy_pieces(self, source, range)
    }

    fn clone_range_from(&self, source: &dyn OpenFile, range: CopyRange) -> Result<()> {
        check_ranges(false, range)?;
        let Some(other) = source.as_any().downcast_ref::<Self>() else {
            return Err(StoreError::NotSupported);
        };
        other.check_reader(Wait::Allowed)?;
        self.change(|| Ok(sys::clone_range(self.fd().as_fd(), other.fd().as_fd(), range)?))
    }
}

/// Drops a range of a file that may be closed from the kernel's cache.
fn drop_closed(export: &Export, id: &FileId, range: &Range<u64>) -> Result<()> {
    let node = export.nodes.open_node(id).or_else(|| export.nodes.get(id));
    let node = node.ok_or(StoreError::Stale)?;
    let _server = export.identity.server()?;
    let file = export.reopen(&node, data_flags(OpenMode { read: true, write: false })?)?;
    drop_now(file.as_fd(), (&export.leaving, *id), range.clone())
}

impl PosixFile {
    fn size(&self) -> Result<u64> {
        Ok(stat_fd(self.fd().as_fd())?.stx_size)
    }

    /// Copies as much as the kernel can copy itself, 0 if it cannot.
    fn copy_in_kernel(&self, source: &Self, range: CopyRange) -> Result<u64> {
        source.check_reader(Wait::Allowed)?;
        self.change(|| self.copy_pieces(source, range))
    }

    fn copy_pieces(&self, source: &Self, range: CopyRange) -> Result<u64> {
        let (mut done, mut at) = (0, (range.source_offset, range.offset));
        while done < range.len {
            let left = usize::try_from(range.len - done).unwrap_or(usize::MAX);
            let (from, to) = (Some(&mut at.0), Some(&mut at.1));
            match rustix::fs::copy_file_range(source.fd(), from, self.fd(), to, left) {
                Ok(0) => break,
                Ok(copied) => done += copied as u64,
                Err(Errno::INTR) => {}
                Err(_) if done > 0 => break,
                Err(Errno::XDEV | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => break,
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(done)
    }

    /// Makes an empty file share all content of this one.
    pub(super) fn share_with(&self, copy: BorrowedFd<'_>) -> Result<()> {
        Ok(sys::clone_range(copy, self.fd().as_fd(), WHOLE)?)
    }

    /// Makes this file share all content of another one, and gives it its size.
    pub(super) fn replace_by(&self, copy: BorrowedFd<'_>) -> Result<()> {
        self.change(|| {
            // The end of the source need not be at a block boundary, so both files need the same
            // size.
            rustix::fs::ftruncate(self.fd(), rustix::fs::fstat(copy)?.st_size as u64)?;
            Ok(sys::clone_range(self.fd().as_fd(), copy, WHOLE)?)
        })
    }
}
