//! Inodes and their operations.

use super::dir::DirStream;
use super::handle::Handle;
use super::mount::Mount;
use super::perm::Perm;
use super::table::Functions;
use super::types::{MountInfo, RawInode, STAT_AS_KNOWN, STATX_ALL, StatX, UserPerm, set};
use super::{c_string, checked};
use crate::attr::attr;
use crate::id::Object;
use crate::{object, server};
use dafs_store::inode::{self, Known};
use dafs_store::{Attr, Cred, Result, StoreError};
use std::ffi::{c_char, c_int};
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

/// The arguments of every call on an inode: the functions, the mount, the inode and the caller.
type Call<'a> = (&'static Functions, *mut MountInfo, *mut RawInode, Perm<'a>);

/// The arguments of every call that finds or makes an entry of a directory.
struct Entry {
    mount: *mut MountInfo,
    dir: *mut RawInode,
    /// Ends with a zero.
    name: *const c_char,
    /// Takes the inode.
    found: *mut *mut RawInode,
    /// Takes the attributes.
    stat: *mut StatX,
    perm: *const UserPerm,
}

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

    fn call(&self, cred: &Cred) -> Result<Call<'_>> {
        Ok((self.mount.calls(), self.mount.raw(), self.raw(), Perm::new(&self.mount, cred)?))
    }

    /// Finds or makes an entry of this directory. All pointers are valid during `call`.
    fn entry(
        &self,
        name: &[u8],
        cred: &Cred,
        call: impl FnOnce(&Functions, Entry) -> c_int,
    ) -> Result<Known<Self>> {
        let (lib, mount, dir, perm) = self.call(cred)?;
        let (name, mut raw, mut stat) = (c_string(name)?, null_mut(), StatX::empty());
        let (found, perm) = (&raw mut raw, perm.raw());
        let entry = Entry { mount, dir, name: name.as_ptr(), found, stat: &mut stat, perm };
        checked(call(lib, entry))?;
        let inode = Self::new(&self.mount, raw)?;
        Ok(Known { key: object(&stat), inode, attr: attr(&stat)? })
    }

    fn stat_with(&self, flags: u32) -> Result<StatX> {
        let ((lib, mount, inode, perm), mut stat) = (self.call(&server())?, StatX::empty());
        // SAFETY: the inode is one of this mount; `stat` takes the answer.
        checked(unsafe {
            (lib.ceph_ll_getattr)(mount, inode, &mut stat, STATX_ALL, flags, perm.raw())
        })?;
        Ok(stat)
    }

    /// Returns all attributes, from the MDS or from the cache that its capabilities permit.
    pub(crate) fn statx(&self) -> Result<StatX> {
        self.stat_with(0)
    }

    /// Returns the size that this mount knows, without asking the MDS.
    pub(crate) fn size_here(&self) -> Result<u64> {
        Ok(self.stat_with(STAT_AS_KNOWN)?.size)
    }

    /// Sets the attributes in `mask` (of [`set`](super::set)).
    pub(crate) fn set_stat(&self, mut stat: StatX, mask: i32, cred: &Cred) -> Result<()> {
        let (lib, mount, inode, perm) = self.call(cred)?;
        // SAFETY: the inode is one of this mount; `stat` is ours and whole.
        checked(unsafe { (lib.ceph_ll_setattr)(mount, inode, &mut stat, mask, perm.raw()) })
            .map(drop)
    }

    /// Opens a regular file, with the flags of open(2).
    pub(crate) fn open(&self, flags: i32, cred: &Cred) -> Result<Handle> {
        let ((lib, mount, inode, perm), mut raw) = (self.call(cred)?, null_mut());
        // SAFETY: the inode is one of this mount; `raw` takes the answer.
        checked(unsafe { (lib.ceph_ll_open)(mount, inode, flags, &mut raw, perm.raw()) })?;
        Handle::new(&self.mount, raw)
    }

    /// Gives an inode of the same mount another name in this directory.
    pub(crate) fn link(&self, target: &Self, name: &[u8], cred: &Cred) -> Result<()> {
        let (lib, mount, dir, perm) = self.call(cred)?;
        assert!(Arc::ptr_eq(&self.mount, &target.mount), "inodes of one mount");
        let (name, target) = (c_string(name)?, target.raw());
        // SAFETY: both inodes are of this mount, as was just seen; the name ends with a zero.
        checked(unsafe { (lib.ceph_ll_link)(mount, target, dir, name.as_ptr(), perm.raw()) })
            .map(drop)
    }

    /// Removes the name of an object that is not a directory.
    pub(crate) fn unlink(&self, name: &[u8], cred: &Cred) -> Result<()> {
        let ((lib, mount, dir, perm), name) = (self.call(cred)?, c_string(name)?);
        // SAFETY: the inode is one of this mount, the name ends with a zero.
        checked(unsafe { (lib.ceph_ll_unlink)(mount, dir, name.as_ptr(), perm.raw()) }).map(drop)
    }

    /// Removes an empty directory.
    pub(crate) fn rmdir(&self, name: &[u8], cred: &Cred) -> Result<()> {
        let ((lib, mount, dir, perm), name) = (self.call(cred)?, c_string(name)?);
        // SAFETY: the inode is one of this mount, the name ends with a zero.
        checked(unsafe { (lib.ceph_ll_rmdir)(mount, dir, name.as_ptr(), perm.raw()) }).map(drop)
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
        // SAFETY: as `entry` says.
        self.entry(name, cred, |lib, e| unsafe {
            (lib.ceph_ll_lookup)(e.mount, e.dir, e.name, e.found, e.stat, STATX_ALL, 0, e.perm)
        })
    }

    fn create(
        &self,
        name: &[u8],
        mode: u32,
        flags: i32,
        cred: &Cred,
    ) -> Result<(Known<Self>, Handle)> {
        let (mut file, flags) = (null_mut(), flags | libc::O_CREAT | libc::O_EXCL);
        // SAFETY: as `entry` says; `file` takes an answer.
        let known = self.entry(name, cred, |lib, e| unsafe {
            (lib.ceph_ll_create)(
                e.mount, e.dir, e.name, mode, flags, e.found, &mut file, e.stat, STATX_ALL, 0,
                e.perm,
            )
        });
        let handle = Handle::new(&self.mount, file);
        Ok((known?, handle?))
    }

    fn mkdir(&self, name: &[u8], mode: u32, cred: &Cred) -> Result<Known<Self>> {
        // SAFETY: as `entry` says.
        self.entry(name, cred, |lib, e| unsafe {
            (lib.ceph_ll_mkdir)(e.mount, e.dir, e.name, mode, e.found, e.stat, STATX_ALL, 0, e.perm)
        })
    }

    fn mknod(&self, name: &[u8], mode: u32, device: u64, cred: &Cred) -> Result<Known<Self>> {
        // SAFETY: as `entry` says.
        self.entry(name, cred, |lib, e| unsafe {
            (lib.ceph_ll_mknod)(
                e.mount, e.dir, e.name, mode, device, e.found, e.stat, STATX_ALL, 0, e.perm,
            )
        })
    }

    fn symlink(&self, name: &[u8], text: &[u8], cred: &Cred) -> Result<Known<Self>> {
        let text = c_string(text)?;
        // SAFETY: as `entry` says; the text ends with a zero.
        self.entry(name, cred, |lib, e| unsafe {
            let text = text.as_ptr();
            (lib.ceph_ll_symlink)(
                e.mount, e.dir, e.name, text, e.found, e.stat, STATX_ALL, 0, e.perm,
            )
        })
    }

    fn rename(&self, from: &[u8], to_dir: &Self, to: &[u8], cred: &Cred) -> Result<()> {
        let (lib, mount, dir, perm) = self.call(cred)?;
        assert!(Arc::ptr_eq(&self.mount, &to_dir.mount), "inodes of one mount");
        let (from, to, to_dir) = (c_string(from)?, c_string(to)?, to_dir.raw());
        // SAFETY: both inodes are of this mount, as was just seen; the names end with a zero.
        checked(unsafe {
            (lib.ceph_ll_rename)(mount, dir, from.as_ptr(), to_dir, to.as_ptr(), perm.raw())
        })
        .map(drop)
    }

    fn readlink(&self, buffer: &mut [u8], cred: &Cred) -> Result<usize> {
        let ((lib, mount, inode, perm), len) = (self.call(cred)?, buffer.len());
        // SAFETY: the inode is one of this mount; the buffer is ours and has the given length.
        let got = checked(unsafe {
            (lib.ceph_ll_readlink)(mount, inode, buffer.as_mut_ptr().cast(), len, perm.raw())
        })?;
        Ok(got.min(len))
    }

    fn open_dir(&self, cred: &Cred) -> Result<DirStream> {
        let ((lib, mount, dir, perm), mut raw) = (self.call(cred)?, null_mut());
        // SAFETY: the inode is one of this mount; `raw` takes the answer.
        checked(unsafe { (lib.ceph_ll_opendir)(mount, dir, &mut raw, perm.raw()) })?;
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
        let ((lib, mount, inode, perm), name) = (self.call(cred)?, c_string(name)?);
        let (value, len) = (buffer.as_mut_ptr().cast(), buffer.len());
        // SAFETY: the inode is one of this mount, the name ends with a zero, the buffer is ours and
        // has the given length.
        checked_xattr(unsafe {
            (lib.ceph_ll_getxattr)(mount, inode, name.as_ptr(), value, len, perm.raw())
        })
    }

    fn set_xattr(&self, name: &[u8], value: &[u8], flags: i32, cred: &Cred) -> Result<()> {
        let ((lib, mount, inode, perm), name) = (self.call(cred)?, c_string(name)?);
        let (value, len) = (value.as_ptr().cast(), value.len());
        // SAFETY: the inode is one of this mount, the name ends with a zero, the value has the
        // given length.
        checked_xattr(unsafe {
            (lib.ceph_ll_setxattr)(mount, inode, name.as_ptr(), value, len, flags, perm.raw())
        })
        .map(drop)
    }

    fn list_xattrs(&self, buffer: &mut [u8], cred: &Cred) -> Result<usize> {
        let ((lib, mount, inode, perm), mut got) = (self.call(cred)?, 0);
        let (list, len) = (buffer.as_mut_ptr().cast(), buffer.len());
        // SAFETY: the inode is one of this mount; the buffer is ours and has the given length;
        // `got` takes the answer.
        checked_xattr(unsafe {
            (lib.ceph_ll_listxattr)(mount, inode, list, len, &mut got, perm.raw())
        })?;
        Ok(got.min(len))
    }

    fn remove_xattr(&self, name: &[u8], cred: &Cred) -> Result<()> {
        let ((lib, mount, inode, perm), name) = (self.call(cred)?, c_string(name)?);
        // SAFETY: the inode is one of this mount, the name ends with a zero.
        checked_xattr(unsafe { (lib.ceph_ll_removexattr)(mount, inode, name.as_ptr(), perm.raw()) })
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
