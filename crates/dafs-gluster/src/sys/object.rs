//! Objects and their operations.

use super::dir::DirStream;
use super::handle::Handle;
use super::mount::{Mount, gone};
use super::table::Functions;
use super::types::{Fs, Gfid, RawObject, Stat, no_stat};
use super::{c_string, checked, checked_int, errno, failure};
use crate::attr::attr;
use dafs_store::inode::{Inode, Known};
use dafs_store::{Attr, Cred, Result, StoreError};
use std::ffi::c_int;
use std::ptr::{NonNull, null, null_mut};
use std::sync::Arc;

/// A reference to an object of a volume.
pub struct Object {
    mount: Arc<Mount>,
    raw: NonNull<RawObject>,
}

// SAFETY: the library counts references and locks shared state; any thread may call it.
unsafe impl Send for Object {}
// SAFETY: as above.
unsafe impl Sync for Object {}

impl Object {
    /// Takes over a reference of the library; null means a failure.
    pub(super) fn new(mount: &Arc<Mount>, raw: *mut RawObject) -> Result<Self> {
        let raw = NonNull::new(raw).ok_or_else(failure)?;
        Ok(Self { mount: mount.clone(), raw })
    }

    fn raw(&self) -> *mut RawObject {
        self.raw.as_ptr()
    }

    /// Returns what every call takes: the functions, with the caller's identity, the volume and the
    /// object.
    fn call(&self, cred: &Cred) -> Result<(&'static Functions, *mut Fs, *mut RawObject)> {
        Ok((self.mount.calls_as(cred)?, self.mount.raw(), self.raw()))
    }

    pub(crate) fn gfid(&self) -> Result<Gfid> {
        gfid_of(&self.mount, self.raw())
    }

    /// Sets the attributes in `mask` (of [`set`](super::set)).
    pub(crate) fn set_stat(&self, mut stat: Stat, mask: i32, cred: &Cred) -> Result<()> {
        let (lib, volume, object) = self.call(cred)?;
        // SAFETY: the object is one of this volume; `stat` is ours and whole.
        checked_int(unsafe { (lib.glfs_h_setattrs)(volume, object, &mut stat, mask) }).map(drop)
    }

    /// True if a caller has all rights of a mask of access(2).
    pub(crate) fn allows(&self, mask: c_int, cred: &Cred) -> Result<bool> {
        let (lib, volume, object) = self.call(cred)?;
        // SAFETY: the object is one of this volume.
        match checked_int(unsafe { (lib.glfs_h_access)(volume, object, mask) }) {
            Ok(_) => Ok(true),
            Err(StoreError::Access | StoreError::NotOwner) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Opens a regular file, with the flags of open(2).
    pub(crate) fn open(&self, flags: i32, cred: &Cred) -> Result<Handle> {
        let (lib, volume, object) = self.call(cred)?;
        // SAFETY: the object is one of this volume.
        Handle::new(&self.mount, unsafe { (lib.glfs_h_open)(volume, object, flags) })
    }

    /// Gives an object of the same volume another name in this directory.
    pub(crate) fn link(&self, target: &Self, name: &[u8], cred: &Cred) -> Result<()> {
        assert!(Arc::ptr_eq(&self.mount, &target.mount), "objects of one volume");
        let (name, target) = (c_string(name)?, target.raw());
        let (lib, volume, dir) = self.call(cred)?;
        // SAFETY: both objects are of this volume, as was just seen; the name ends with a zero.
        checked_int(unsafe { (lib.glfs_h_link)(volume, target, dir, name.as_ptr()) }).map(drop)
    }

    /// Removes a name; a directory must be empty.
    pub(crate) fn remove(&self, name: &[u8], cred: &Cred) -> Result<()> {
        let name = c_string(name)?;
        let (lib, volume, dir) = self.call(cred)?;
        // SAFETY: the object is one of this volume, the name ends with a zero.
        checked_int(unsafe { (lib.glfs_h_unlink)(volume, dir, name.as_ptr()) }).map(drop)
    }

    fn known(&self, raw: *mut RawObject, stat: &Stat) -> Result<Known<Self>> {
        let inode = Self::new(&self.mount, raw)?;
        Ok(Known { key: inode.gfid()?, inode, attr: attr(stat)? })
    }
}

impl Inode for Object {
    type Key = Gfid;
    type Handle = Handle;
    type Listing = DirStream;

    /// Asks the bricks. [`StoreError::Stale`] for a removed object.
    fn stat(&self) -> Result<Attr> {
        let ((lib, volume, object), mut stat) = (self.call(&crate::server())?, no_stat());
        // SAFETY: the object is one of this volume; `stat` takes the answer.
        checked_int(unsafe { (lib.glfs_h_stat)(volume, object, &mut stat) }).map_err(gone)?;
        attr(&stat)
    }

    fn truncate(&self, size: u64, cred: &Cred) -> Result<()> {
        let size = i64::try_from(size).map_err(|_| StoreError::FileTooBig)?;
        let (lib, volume, object) = self.call(cred)?;
        // SAFETY: the object is one of this volume.
        checked_int(unsafe { (lib.glfs_h_truncate)(volume, object, size) }).map(drop)
    }

    fn lookup(&self, name: &[u8], cred: &Cred) -> Result<Known<Self>> {
        let (name, mut stat) = (c_string(name)?, no_stat());
        let (lib, volume, dir) = self.call(cred)?;
        // SAFETY: the object is one of this volume, the name ends with a zero, `stat` takes the answer.
        let raw = unsafe { (lib.glfs_h_lookupat)(volume, dir, name.as_ptr(), &mut stat, 0) };
        self.known(raw, &stat)
    }

    fn create(
        &self,
        name: &[u8],
        mode: u32,
        flags: i32,
        cred: &Cred,
    ) -> Result<(Known<Self>, Handle)> {
        let (name, mut stat, mut file) = (c_string(name)?, no_stat(), null_mut());
        let flags = flags | libc::O_CREAT | libc::O_EXCL;
        let (lib, volume, dir) = self.call(cred)?;
        // SAFETY: the object is one of this volume, the name ends with a zero, the rest takes answers.
        let raw = unsafe {
            let name = name.as_ptr();
            (lib.glfs_h_creat_open)(volume, dir, name, flags, mode, &mut stat, &mut file)
        };
        let known = self.known(raw, &stat)?;
        Ok((known, Handle::new(&self.mount, file)?))
    }

    fn mkdir(&self, name: &[u8], mode: u32, cred: &Cred) -> Result<Known<Self>> {
        let (name, mut stat) = (c_string(name)?, no_stat());
        let (lib, volume, dir) = self.call(cred)?;
        // SAFETY: the object is one of this volume, the name ends with a zero, `stat` takes the answer.
        let raw = unsafe { (lib.glfs_h_mkdir)(volume, dir, name.as_ptr(), mode, &mut stat) };
        self.known(raw, &stat)
    }

    fn mknod(&self, name: &[u8], mode: u32, device: u64, cred: &Cred) -> Result<Known<Self>> {
        let (name, mut stat) = (c_string(name)?, no_stat());
        let (lib, volume, dir) = self.call(cred)?;
        // SAFETY: the object is one of this volume, the name ends with a zero, `stat` takes the answer.
        let raw =
            unsafe { (lib.glfs_h_mknod)(volume, dir, name.as_ptr(), mode, device, &mut stat) };
        self.known(raw, &stat)
    }

    fn symlink(&self, name: &[u8], text: &[u8], cred: &Cred) -> Result<Known<Self>> {
        let (name, text, mut stat) = (c_string(name)?, c_string(text)?, no_stat());
        let (lib, volume, dir) = self.call(cred)?;
        // SAFETY: the object is one of this volume, both texts end with a zero, `stat` takes the answer.
        let raw =
            unsafe { (lib.glfs_h_symlink)(volume, dir, name.as_ptr(), text.as_ptr(), &mut stat) };
        self.known(raw, &stat)
    }

    fn rename(&self, from: &[u8], to_dir: &Self, to: &[u8], cred: &Cred) -> Result<()> {
        assert!(Arc::ptr_eq(&self.mount, &to_dir.mount), "objects of one volume");
        let (from, to) = (c_string(from)?, c_string(to)?);
        let (lib, volume, dir) = self.call(cred)?;
        // SAFETY: both objects are of this volume, as was just seen; the names end with a zero.
        checked_int(unsafe {
            (lib.glfs_h_rename)(volume, dir, from.as_ptr(), to_dir.raw(), to.as_ptr())
        })
        .map(drop)
    }

    fn readlink(&self, buffer: &mut [u8], cred: &Cred) -> Result<usize> {
        let ((lib, volume, object), len) = (self.call(cred)?, buffer.len());
        // SAFETY: the object is one of this volume; the buffer is ours and has the given length.
        let got = checked_int(unsafe {
            (lib.glfs_h_readlink)(volume, object, buffer.as_mut_ptr().cast(), len)
        })?;
        Ok(got.min(len))
    }

    fn open_dir(&self, cred: &Cred) -> Result<DirStream> {
        let (lib, volume, dir) = self.call(cred)?;
        // SAFETY: the object is one of this volume.
        DirStream::new(&self.mount, unsafe { (lib.glfs_h_opendir)(volume, dir) })
    }

    fn statfs(&self) -> Result<libc::statvfs> {
        let (lib, volume, object) = self.call(&crate::server())?;
        let mut stat = std::mem::MaybeUninit::<libc::statvfs>::zeroed();
        // SAFETY: the object is one of this volume; `stat` takes the answer.
        checked_int(unsafe { (lib.glfs_h_statfs)(volume, object, stat.as_mut_ptr()) })?;
        // SAFETY: all of its fields are numbers, for which zero is a value.
        Ok(unsafe { stat.assume_init() })
    }

    fn xattr(&self, name: &[u8], buffer: &mut [u8], cred: &Cred) -> Result<usize> {
        let (name, value, len) = (c_string(name)?, buffer.as_mut_ptr().cast(), buffer.len());
        let (lib, volume, object) = self.call(cred)?;
        // SAFETY: the object is one of this volume, the name ends with a zero, the buffer is ours
        // and has the given length.
        checked_xattr(unsafe { (lib.glfs_h_getxattrs)(volume, object, name.as_ptr(), value, len) })
    }

    fn list_xattrs(&self, buffer: &mut [u8], cred: &Cred) -> Result<usize> {
        let (list, len) = (buffer.as_mut_ptr().cast(), buffer.len());
        let (lib, volume, object) = self.call(cred)?;
        // SAFETY: the object is one of this volume; the buffer is ours and has the given length; a
        // null name asks for all names.
        let got =
            checked_xattr(unsafe { (lib.glfs_h_getxattrs)(volume, object, null(), list, len) })?;
        Ok(got.min(len))
    }

    fn set_xattr(&self, name: &[u8], value: &[u8], flags: i32, cred: &Cred) -> Result<()> {
        let (name, value, len) = (c_string(name)?, value.as_ptr().cast(), value.len());
        let (lib, volume, object) = self.call(cred)?;
        // SAFETY: the object is one of this volume, the name ends with a zero, the value has the
        // given length.
        checked_xattr(unsafe {
            (lib.glfs_h_setxattrs)(volume, object, name.as_ptr(), value, len, flags)
        })
        .map(drop)
    }

    fn remove_xattr(&self, name: &[u8], cred: &Cred) -> Result<()> {
        let name = c_string(name)?;
        let (lib, volume, object) = self.call(cred)?;
        // SAFETY: the object is one of this volume, the name ends with a zero.
        checked_xattr(unsafe { (lib.glfs_h_removexattrs)(volume, object, name.as_ptr()) }).map(drop)
    }
}

/// Returns the gfid of an object that may not be ours.
pub(super) fn gfid_of(mount: &Mount, raw: *mut RawObject) -> Result<Gfid> {
    let (mut gfid, len) = ([0; size_of::<Gfid>()], size_of::<Gfid>() as c_int);
    // SAFETY: the object is one of this volume; the buffer has the given length.
    let got = unsafe { (mount.calls().glfs_h_extract_handle)(raw, gfid.as_mut_ptr(), len) };
    if checked(got)? == gfid.len() { Ok(gfid) } else { Err(StoreError::Io) }
}

/// Maps error numbers that have another meaning for extended attributes.
fn checked_xattr(answer: c_int) -> Result<usize> {
    checked_int(answer).map_err(|error| match errno() {
        libc::ENODATA => StoreError::NoXattr,
        libc::ERANGE | libc::E2BIG => StoreError::XattrTooBig,
        _ => error,
    })
}

impl Drop for Object {
    fn drop(&mut self) {
        // SAFETY: the reference is ours, and is released once.
        unsafe { (self.mount.calls().glfs_h_close)(self.raw()) };
    }
}
