//! Inodes and their operations.

use super::dir::DirStream;
use super::handle::Handle;
use super::mount::Mount;
use super::perm::Perm;
use super::types::{RawInode, STAT_AS_KNOWN, STATX_ALL, StatX, set};
use super::{c_string, checked};
use crate::attr::attr;
use crate::id::Object;
use crate::{object, server};
use dafs_store::inode::{self, Known};
use dafs_store::{Attr, Cred, Result, StoreError};
use std::ffi::c_int;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

/// A reference to an inode of a mount.
pub struct Inode {
    mount: Arc<Mount>,
    raw: NonNull<RawInode>,
}

// SAFETY: the library counts references and locks inodes with their mount; any thread may call it.
unsafe impl Send for Inode {}
// SAFETY: as above.
unsafe impl Sync for Inode {}

impl Inode {
    /// Takes over a reference of the library.
    pub(super) fn new(mount: &Arc<Mount>, raw: *mut RawInode) -> Result<Self> {
        let raw = NonNull::new(raw).ok_or(StoreError::Io)?;
        Ok(Self { mount: mount.clone(), raw })
    }

    pub(crate) fn mount(&self) -> &Arc<Mount> {
        &self.mount
    }

    pub(super) fn raw(&self) -> *mut RawInode {
        self.raw.as_ptr()
    }

    fn perm(&self, cred: &Cred) -> Result<Perm<'_>> {
        Perm::new(&self.mount, cred)
    }

    fn known(&self, raw: *mut RawInode, stat: &StatX) -> Result<Known<Self>> {
        let inode = Self::new(&self.mount, raw)?;
        Ok(Known { key: object(stat), inode, attr: attr(stat)? })
    }

    /// Returns all attributes, from the MDS or from the cache that its capabilities permit.
    pub(crate) fn statx(&self) -> Result<StatX> {
        let (perm, mut stat) = (self.perm(&server())?, StatX::empty());
        // SAFETY: the inode is one of this mount; `stat` takes the answer.
        checked(unsafe {
            (self.mount.calls().ceph_ll_getattr)(
                self.mount.raw(),
                self.raw(),
                &mut stat,
                STATX_ALL,
                0,
                perm.raw(),
            )
        })?;
        Ok(stat)
    }

    /// Returns the size that this mount knows, without asking the MDS.
    pub(crate) fn size_here(&self) -> Result<u64> {
        let (perm, mut stat) = (self.perm(&server())?, StatX::empty());
        // SAFETY: the inode is one of this mount; `stat` takes the answer.
        checked(unsafe {
            (self.mount.calls().ceph_ll_getattr)(
                self.mount.raw(),
                self.raw(),
                &mut stat,
                STATX_ALL,
                STAT_AS_KNOWN,
                perm.raw(),
            )
        })?;
        Ok(stat.size)
    }

    /// Sets the attributes in `mask` (of [`set`](super::set)).
    pub(crate) fn set_stat(&self, mut stat: StatX, mask: i32, cred: &Cred) -> Result<()> {
        let perm = self.perm(cred)?;
        // SAFETY: the inode is one of this mount; `stat` is ours and whole.
        checked(unsafe {
            (self.mount.calls().ceph_ll_setattr)(
                self.mount.raw(),
                self.raw(),
                &mut stat,
                mask,
                perm.raw(),
            )
        })
        .map(drop)
    }

    /// Opens a regular file, with the flags of open(2).
    pub(crate) fn open(&self, flags: i32, cred: &Cred) -> Result<Handle> {
        let perm = self.perm(cred)?;
        let mut raw = null_mut();
        // SAFETY: the inode is one of this mount; `raw` takes the answer.
        checked(unsafe {
            (self.mount.calls().ceph_ll_open)(
                self.mount.raw(),
                self.raw(),
                flags,
                &mut raw,
                perm.raw(),
            )
        })?;
        Handle::new(&self.mount, raw)
    }

    /// Gives an inode of the same mount another name in this directory.
    pub(crate) fn link(&self, target: &Self, name: &[u8], cred: &Cred) -> Result<()> {
        let perm = self.perm(cred)?;
        assert!(Arc::ptr_eq(&self.mount, &target.mount), "inodes of one mount");
        let name = c_string(name)?;
        // SAFETY: both inodes are of this mount, as was just seen; the name ends with a zero.
        checked(unsafe {
            (self.mount.calls().ceph_ll_link)(
                self.mount.raw(),
                target.raw(),
                self.raw(),
                name.as_ptr(),
                perm.raw(),
            )
        })
        .map(drop)
    }

    /// Removes the name of an object that is not a directory.
    pub(crate) fn unlink(&self, name: &[u8], cred: &Cred) -> Result<()> {
        let perm = self.perm(cred)?;
        let name = c_string(name)?;
        // SAFETY: the inode is one of this mount, the name ends with a zero.
        checked(unsafe {
            (self.mount.calls().ceph_ll_unlink)(
                self.mount.raw(),
                self.raw(),
                name.as_ptr(),
                perm.raw(),
            )
        })
        .map(drop)
    }

    /// Removes an empty directory.
    pub(crate) fn rmdir(&self, name: &[u8], cred: &Cred) -> Result<()> {
        let perm = self.perm(cred)?;
        let name = c_string(name)?;
        // SAFETY: the inode is one of this mount, the name ends with a zero.
        checked(unsafe {
            (self.mount.calls().ceph_ll_rmdir)(
                self.mount.raw(),
                self.raw(),
                name.as_ptr(),
                perm.raw(),
            )
        })
        .map(drop)
    }

    /// Makes this mount's changes stable: attributes, and names in a directory.
    pub(crate) fn sync(&self) -> Result<()> {
        // SAFETY: the inode is one of this mount.
        checked(unsafe { (self.mount.calls().ceph_ll_sync_inode)(self.mount.raw(), self.raw(), 0) })
            .map(drop)
    }
}

impl inode::Inode for Inode {
    type Key = Object;
    type Handle = Handle;
    type Listing = DirStream;

    fn stat(&self) -> Result<Attr> {
        attr(&self.statx()?)
    }

    fn truncate(&self, size: u64, cred: &Cred) -> Result<()> {
        self.set_stat(StatX { size, ..StatX::empty() }, set::SIZE, cred)
    }

    fn lookup(&self, name: &[u8], cred: &Cred) -> Result<Known<Self>> {
        let perm = self.perm(cred)?;
        let name = c_string(name)?;
        let (mut raw, mut stat) = (null_mut(), StatX::empty());
        // SAFETY: the inode is one of this mount, the name ends with a zero, the rest takes answers.
        checked(unsafe {
            (self.mount.calls().ceph_ll_lookup)(
                self.mount.raw(),
                self.raw(),
                name.as_ptr(),
                &mut raw,
                &mut stat,
                STATX_ALL,
                0,
                perm.raw(),
            )
        })?;
        self.known(raw, &stat)
    }

    fn create(
        &self,
        name: &[u8],
        mode: u32,
        flags: i32,
        cred: &Cred,
    ) -> Result<(Known<Self>, Handle)> {
        let perm = self.perm(cred)?;
        let name = c_string(name)?;
        let (mut raw, mut file, mut stat) = (null_mut(), null_mut(), StatX::empty());
        // SAFETY: the inode is one of this mount, the name ends with a zero, the rest takes answers.
        checked(unsafe {
            (self.mount.calls().ceph_ll_create)(
                self.mount.raw(),
                self.raw(),
                name.as_ptr(),
                mode,
                flags | libc::O_CREAT | libc::O_EXCL,
                &mut raw,
                &mut file,
                &mut stat,
                STATX_ALL,
                0,
                perm.raw(),
            )
        })?;
        let handle = Handle::new(&self.mount, file);
        let known = self.known(raw, &stat);
        Ok((known?, handle?))
    }

    fn mkdir(&self, name: &[u8], mode: u32, cred: &Cred) -> Result<Known<Self>> {
        let perm = self.perm(cred)?;
        let name = c_string(name)?;
        let (mut raw, mut stat) = (null_mut(), StatX::empty());
        // SAFETY: the inode is one of this mount, the name ends with a zero, the rest takes answers.
        checked(unsafe {
            (self.mount.calls().ceph_ll_mkdir)(
                self.mount.raw(),
                self.raw(),
                name.as_ptr(),
                mode,
                &mut raw,
                &mut stat,
                STATX_ALL,
                0,
                perm.raw(),
            )
        })?;
        self.known(raw, &stat)
    }

    fn mknod(&self, name: &[u8], mode: u32, device: u64, cred: &Cred) -> Result<Known<Self>> {
        let perm = self.perm(cred)?;
        let name = c_string(name)?;
        let (mut raw, mut stat) = (null_mut(), StatX::empty());
        // SAFETY: the inode is one of this mount, the name ends with a zero, the rest takes answers.
        checked(unsafe {
            (self.mount.calls().ceph_ll_mknod)(
                self.mount.raw(),
                self.raw(),
                name.as_ptr(),
                mode,
                device,
                &mut raw,
                &mut stat,
                STATX_ALL,
                0,
                perm.raw(),
            )
        })?;
        self.known(raw, &stat)
    }

    fn symlink(&self, name: &[u8], text: &[u8], cred: &Cred) -> Result<Known<Self>> {
        let perm = self.perm(cred)?;
        let (name, text) = (c_string(name)?, c_string(text)?);
        let (mut raw, mut stat) = (null_mut(), StatX::empty());
        // SAFETY: the inode is one of this mount, both texts end with a zero, the rest takes
        // answers.
        checked(unsafe {
            (self.mount.calls().ceph_ll_symlink)(
                self.mount.raw(),
                self.raw(),
                name.as_ptr(),
                text.as_ptr(),
                &mut raw,
                &mut stat,
                STATX_ALL,
                0,
                perm.raw(),
            )
        })?;
        self.known(raw, &stat)
    }

    fn rename(&self, from: &[u8], to_dir: &Self, to: &[u8], cred: &Cred) -> Result<()> {
        let perm = self.perm(cred)?;
        assert!(Arc::ptr_eq(&self.mount, &to_dir.mount), "inodes of one mount");
        let (from, to) = (c_string(from)?, c_string(to)?);
        // SAFETY: both inodes are of this mount, as was just seen; the names end with a zero.
        checked(unsafe {
            (self.mount.calls().ceph_ll_rename)(
                self.mount.raw(),
                self.raw(),
                from.as_ptr(),
                to_dir.raw(),
                to.as_ptr(),
                perm.raw(),
            )
        })
        .map(drop)
    }

    fn readlink(&self, buffer: &mut [u8], cred: &Cred) -> Result<usize> {
        let perm = self.perm(cred)?;
        // SAFETY: the inode is one of this mount; the buffer is ours and has the given length.
        let len = checked(unsafe {
            (self.mount.calls().ceph_ll_readlink)(
                self.mount.raw(),
                self.raw(),
                buffer.as_mut_ptr().cast(),
                buffer.len(),
                perm.raw(),
            )
        })?;
        Ok(len.min(buffer.len()))
    }

    fn open_dir(&self, cred: &Cred) -> Result<DirStream> {
        let perm = self.perm(cred)?;
        let mut raw = null_mut();
        // SAFETY: the inode is one of this mount; `raw` takes the answer.
        checked(unsafe {
            (self.mount.calls().ceph_ll_opendir)(self.mount.raw(), self.raw(), &mut raw, perm.raw())
        })?;
        DirStream::new(&self.mount, raw)
    }

    fn statfs(&self) -> Result<libc::statvfs> {
        let mut stat = std::mem::MaybeUninit::<libc::statvfs>::zeroed();
        // SAFETY: the inode is one of this mount; `stat` takes the answer.
        checked(unsafe {
            (self.mount.calls().ceph_ll_statfs)(self.mount.raw(), self.raw(), stat.as_mut_ptr())
        })?;
        // SAFETY: all of its fields are numbers, for which zero is a value.
        Ok(unsafe { stat.assume_init() })
    }

    fn xattr(&self, name: &[u8], buffer: &mut [u8], cred: &Cred) -> Result<usize> {
        let perm = self.perm(cred)?;
        let name = c_string(name)?;
        // SAFETY: the inode is one of this mount, the name ends with a zero, the buffer is ours and
        // has the given length.
        checked_xattr(unsafe {
            (self.mount.calls().ceph_ll_getxattr)(
                self.mount.raw(),
                self.raw(),
                name.as_ptr(),
                buffer.as_mut_ptr().cast(),
                buffer.len(),
                perm.raw(),
            )
        })
    }

    fn set_xattr(&self, name: &[u8], value: &[u8], flags: i32, cred: &Cred) -> Result<()> {
        let perm = self.perm(cred)?;
        let name = c_string(name)?;
        // SAFETY: the inode is one of this mount, the name ends with a zero, the value has the
        // given length.
        checked_xattr(unsafe {
            (self.mount.calls().ceph_ll_setxattr)(
                self.mount.raw(),
                self.raw(),
                name.as_ptr(),
                value.as_ptr().cast(),
                value.len(),
                flags,
                perm.raw(),
            )
        })
        .map(drop)
    }

    fn list_xattrs(&self, buffer: &mut [u8], cred: &Cred) -> Result<usize> {
        let perm = self.perm(cred)?;
        let mut len = 0;
        // SAFETY: the inode is one of this mount; the buffer is ours and has the given length;
        // `len` takes the answer.
        checked_xattr(unsafe {
            (self.mount.calls().ceph_ll_listxattr)(
                self.mount.raw(),
                self.raw(),
                buffer.as_mut_ptr().cast(),
                buffer.len(),
                &mut len,
                perm.raw(),
            )
        })?;
        Ok(len.min(buffer.len()))
    }

    fn remove_xattr(&self, name: &[u8], cred: &Cred) -> Result<()> {
        let perm = self.perm(cred)?;
        let name = c_string(name)?;
        // SAFETY: the inode is one of this mount, the name ends with a zero.
        checked_xattr(unsafe {
            (self.mount.calls().ceph_ll_removexattr)(
                self.mount.raw(),
                self.raw(),
                name.as_ptr(),
                perm.raw(),
            )
        })
        .map(drop)
    }
}

/// Maps error numbers that have another meaning for extended attributes.
fn checked_xattr(answer: c_int) -> Result<usize> {
    match answer.saturating_neg() {
        libc::ENODATA => Err(StoreError::NoXattr),
        libc::ERANGE | libc::E2BIG => Err(StoreError::XattrTooBig),
        _ => checked(answer),
    }
}

impl Drop for Inode {
    fn drop(&mut self) {
        // SAFETY: the reference is ours, and is given back once.
        unsafe { (self.mount.calls().ceph_ll_put)(self.mount.raw(), self.raw()) };
    }
}
