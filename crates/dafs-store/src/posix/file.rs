//! Open regular files.
//!
//! Invariants
//! * The descriptor was opened with the caller's rights, and writes run as the caller, so that the
//!   kernel ends setuid bits and charges quotas as for a local writer.
//! * A short count of a blocking read means the end of the file.

use super::attr;
use super::export::{Export, stat_fd};
use super::ident::Caller;
use super::node::Node;
use crate::limits::{FILE_BYTES_MAX, INLINE_WRITE_BYTES_MAX};
use crate::{
    Attr, CacheAdvice, Cred, FileId, Kind, OpenFile, OpenMode, Result, Stability, StoreError, Wait,
};
use dafs_mem::{VolatileSlice, preadv2, pwritev2};
use rustix::fs::{Advice, OFlags};
use std::num::NonZeroU64;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// One open.
pub(super) struct PosixFile {
    export: Arc<Export>,
    node: Arc<Node>,
    fd: OwnedFd,
    mode: OpenMode,
    cred: Cred,
}

/// The flags of an open for data.
pub(super) fn data_flags(mode: OpenMode) -> Result<OFlags> {
    // A device or pipe that took the place of a file must not block the open.
    let base = OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    match (mode.read, mode.write) {
        (true, false) => Ok(base | OFlags::RDONLY),
        (false, true) => Ok(base | OFlags::WRONLY),
        (true, true) => Ok(base | OFlags::RDWR),
        (false, false) => Err(StoreError::Invalid),
    }
}

/// What opening an object that is no regular file is answered with.
pub(super) fn check_regular(kind: Kind) -> Result<()> {
    match kind {
        Kind::Regular => Ok(()),
        Kind::Directory => Err(StoreError::IsDirectory),
        Kind::Symlink => Err(StoreError::Symlink),
        _ => Err(StoreError::BadType),
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
        let fd = export.reopen(node, flags)?;
        let file = Self::from_fd(export, cred, node, mode, fd);
        // An id does not bring a removed file back; only those who have it open keep it.
        if stat_fd(file.fd.as_fd())?.stx_nlink == 0 && !export.nodes.is_open_elsewhere(node) {
            drop(file);
            export.nodes.forget(&node.id);
            return Err(StoreError::Stale);
        }
        Ok(file)
    }

    /// Takes over a descriptor that was opened as the caller.
    pub(super) fn from_fd(
        export: &Arc<Export>,
        cred: &Cred,
        node: &Arc<Node>,
        mode: OpenMode,
        fd: OwnedFd,
    ) -> Arc<Self> {
        export.nodes.opened(node);
        Arc::new(Self { export: export.clone(), node: node.clone(), fd, mode, cred: cred.clone() })
    }

    /// The open itself, for what else belongs to a create.
    pub(super) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// One write without waiting, or the refusal.
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
        // A small buffered write goes to the page cache; that it can wait for a journal or for
        // dirty pages to drain is rare enough.
        if views.iter().map(VolatileSlice::len).sum::<usize>() > INLINE_WRITE_BYTES_MAX {
            return Err(StoreError::WouldBlock);
        }
        self.write_through(views, offset, 0)
    }

    fn write_through(&self, views: &[VolatileSlice<'_>], offset: u64, flags: i32) -> Result<usize> {
        continued(views, offset, |views, offset| pwritev2(self.fd.as_fd(), views, offset, flags))
    }
}

fn is_unsupported(error: &std::io::Error) -> bool {
    error.raw_os_error() == Some(libc::EOPNOTSUPP)
}

/// Repeats a transfer until everything is done, nothing more comes, or an error ends it. Progress
/// hides an error.
fn continued(
    views: &[VolatileSlice<'_>],
    offset: u64,
    mut transfer: impl FnMut(&[VolatileSlice<'_>], u64) -> std::io::Result<usize>,
) -> Result<usize> {
    let wanted: usize = views.iter().map(VolatileSlice::len).sum();
    let mut done = 0;
    let mut rest;
    let mut left = views;
    while done < wanted {
        let at = offset.checked_add(done as u64).ok_or(StoreError::FileTooBig)?;
        match transfer(left, at) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(_) if done > 0 => break,
            Err(error) => return Err(error.into()),
        }
        if done < wanted {
            rest = after(views, done);
            left = &rest;
        }
    }
    Ok(done)
}

/// The views without their first `skip` bytes.
fn after<'a>(views: &[VolatileSlice<'a>], mut skip: usize) -> Vec<VolatileSlice<'a>> {
    let mut rest = Vec::with_capacity(views.len());
    for view in views {
        let cut = skip.min(view.len());
        skip -= cut;
        rest.extend(view.slice(cut, view.len() - cut).filter(|part| !part.is_empty()));
    }
    rest
}

impl OpenFile for PosixFile {
    fn id(&self) -> FileId {
        self.node.id
    }

    fn read_at(&self, views: &[VolatileSlice<'_>], offset: u64, wait: Wait) -> Result<usize> {
        if !self.mode.read {
            return Err(StoreError::Access);
        }
        if offset > FILE_BYTES_MAX {
            return Err(StoreError::Invalid);
        }
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
        let _caller = self.export.identity.caller(&self.cred)?;
        let flags = match stability {
            Stability::Unstable => 0,
            Stability::Data => libc::RWF_DSYNC,
            Stability::File => libc::RWF_DSYNC | libc::RWF_SYNC,
        };
        if wait == Wait::Allowed {
            return self.write_through(views, offset, flags);
        }
        if stability != Stability::Unstable && !self.export.in_memory {
            return Err(StoreError::WouldBlock);
        }
        self.write_now(views, offset)
    }

    fn commit(&self, _offset: u64, _len: u64) -> Result<()> {
        // No call that takes a range also makes stable what is needed to find the data.
        Ok(rustix::fs::fdatasync(&self.fd)?)
    }

    fn advise(&self, offset: u64, len: u64, advice: CacheAdvice) -> Result<()> {
        let advice = match advice {
            CacheAdvice::Normal => Advice::Normal,
            CacheAdvice::Random => Advice::Random,
            CacheAdvice::Sequential => Advice::Sequential,
            CacheAdvice::WillNeed => Advice::WillNeed,
            CacheAdvice::DontNeed => Advice::DontNeed,
        };
        if offset > FILE_BYTES_MAX || len > FILE_BYTES_MAX {
            return Err(StoreError::Invalid);
        }
        Ok(rustix::fs::fadvise(&self.fd, offset, NonZeroU64::new(len), advice)?)
    }

    fn set_size(&self, size: u64) -> Result<()> {
        if !self.mode.write {
            return Err(StoreError::Access);
        }
        if size > FILE_BYTES_MAX {
            return Err(StoreError::FileTooBig);
        }
        let _caller = self.export.identity.caller(&self.cred)?;
        Ok(rustix::fs::ftruncate(&self.fd, size)?)
    }

    fn attr(&self) -> Result<Attr> {
        attr::attr(&stat_fd(self.fd.as_fd())?)
    }
}

impl Drop for PosixFile {
    fn drop(&mut self) {
        self.export.nodes.closed(&self.node);
    }
}
