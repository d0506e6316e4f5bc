//! Objects and their operations.

use super::dir::DirStream;
use super::handle::Handle;
use super::mount::{Mount, gone};
use super::types::{Gfid, RawObject, Stat, no_stat};
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

    /// Returns its gfid.
    pub(crate) fn gfid(&self) -> Result<Gfid> {
        gfid_of(&self.mount, self.raw())
    }

    /// Sets the attributes in `mask` (of [`set`](super::set)).
    pub(crate) fn set_stat(&self, mut stat: Stat, mask: i32, cred: &Cred) -> Result<()> {
        let calls = self.mount.calls_as(cred)?;
        // SAFETY: the object is one of this volume; `stat` is ours and whole.
        let done =
            unsafe { (calls.glfs_h_setattrs)(self.mount.raw(), self.raw(), &mut stat, mask) };
        checked_int(done).map(drop)
    }

    /// True if a caller has all rights of a mask of access(2).
    pub(crate) fn allows(&self, mask: c_int, cred: &Cred) -> Result<bool> {
        let calls = self.mount.calls_as(cred)?;
        // SAFETY: the object is one of this volume.
        match checked_int(unsafe { (calls.glfs_h_access)(self.mount.raw(), self.raw(), mask) }) {
            Ok(_) => Ok(true),
            Err(StoreError::Access | StoreError::NotOwner) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Opens a regular file, with the flags of open(2).
    pub(crate) fn open(&self, flags: i32, cred: &Cred) -> Result<Handle> {
        let calls = self.mount.calls_as(cred)?;
        // SAFETY: the object is one of this volume.
        let raw = unsafe { (calls.glfs_h_open)(self.mount.raw(), self.raw(), flags) };
        Handle::new(&self.mount, raw)
    }

    /// Gives an object of the same volume another name in this directory.
    pub(crate) fn link(&self, target: &Self, name: &[u8], cred: &Cred) -> Result<()> {
        assert!(Arc::ptr_eq(&self.mount, &target.mount), "objects of one volume");
        let name = c_string(name)?;
        let calls = self.mount.calls_as(cred)?;
        // SAFETY: both objects are of this volume, as was just seen; the name ends with a zero.
        checked_int(unsafe {
            (calls.glfs_h_link)(self.mount.raw(), target.raw(), self.raw(), name.as_ptr())
        })
        .map(drop)
    }

    /// Removes a name; a directory must be empty.
    pub(crate) fn remove(&self, name: &[u8], cred: &Cred) -> Result<()> {
        let name = c_string(name)?;
        let calls = self.mount.calls_as(cred)?;
        // SAFETY: the object is one of this volume, the name ends with a zero.
        checked_int(unsafe { (calls.glfs_h_unlink)(self.mount.raw(), self.raw(), name.as_ptr()) })
            .map(drop)
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
        let calls = self.mount.calls_as(&crate::server())?;
        let mut stat = no_stat();
        // SAFETY: the object is one of this volume; `stat` takes the answer.
        let done = unsafe { (calls.glfs_h_stat)(self.mount.raw(), self.raw(), &mut stat) };
        checked_int(done).map_err(gone)?;
        attr(&stat)
    }

    fn truncate(&self, size: u64, cred: &Cred) -> Result<()> {
        let size = i64::try_from(size).map_err(|_| StoreError::FileTooBig)?;
        let calls = self.mount.calls_as(cred)?;
        // SAFETY: the object is one of this volume.
        checked_int(unsafe { (calls.glfs_h_truncate)(self.mount.raw(), self.raw(), size) })
            .map(drop)
    }

    fn lookup(&self, name: &[u8], cred: &Cred) -> Result<Known<Self>> {
        let (name, mut stat) = (c_string(name)?, no_stat());
        let calls = self.mount.calls_as(cred)?;
        // SAFETY: the object is one of this volume, the name ends with a zero, `stat` takes the answer.
        let raw = unsafe {
            (calls.glfs_h_lookupat)(self.mount.raw(), self.raw(), name.as_ptr(), &mut stat, 0)
        };
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
        let calls = self.mount.calls_as(cred)?;
        // SAFETY: the object is one of this volume, the name ends with a zero, the rest takes answers.
        let raw = unsafe {
            (calls.glfs_h_creat_open)(
                self.mount.raw(),
                self.raw(),
                name.as_ptr(),
                flags | libc::O_CREAT | libc::O_EXCL,
                mode,
                &mut stat,
                &mut file,
            )
        };
        let known = self.known(raw, &stat)?;
        Ok((known, Handle::new(&self.mount, file)?))
    }

    fn mkdir(&self, name: &[u8], mode: u32, cred: &Cred) -> Result<Known<Self>> {
        let (name, mut stat) = (c_string(name)?, no_stat());
        let calls = self.mount.calls_as(cred)?;
        // SAFETY: the object is one of this volume, the name ends with a zero, `stat` takes the answer.
        let raw = unsafe {
            (calls.glfs_h_mkdir)(self.mount.raw(), self.raw(), name.as_ptr(), mode, &mut stat)
        };
        self.known(raw, &stat)
    }

    fn mknod(&self, name: &[u8], mode: u32, device: u64, cred: &Cred) -> Result<Known<Self>> {
        let (name, mut stat) = (c_string(name)?, no_stat());
        let calls = self.mount.calls_as(cred)?;
        // SAFETY: the object is one of this volume, the name ends with a zero, `stat` takes the answer.
        let raw = unsafe {
            (calls.glfs_h_mknod)(
                self.mount.raw(),
                self.raw(),
                name.as_ptr(),
                mode,
                device,
                &mut stat,
            )
        };
        self.known(raw, &stat)
    }

    fn symlink(&self, name: &[u8], text: &[u8], cred: &Cred) -> Result<Known<Self>> {
        let (name, text, mut stat) = (c_string(name)?, c_string(text)?, no_stat());
        let calls = self.mount.calls_as(cred)?;
        // SAFETY: the object is one of this volume, both texts end with a zero, `stat` takes the answer.
        let raw = unsafe {
            (calls.glfs_h_symlink)(
                self.mount.raw(),
                self.raw(),
                name.as_ptr(),
                text.as_ptr(),
                &mut stat,
            )
        };
        self.known(raw, &stat)
    }

    fn rename(&self, from: &[u8], to_dir: &Self, to: &[u8], cred: &Cred) -> Result<()> {
        assert!(Arc::ptr_eq(&self.mount, &to_dir.mount), "objects of one volume");
        let (from, to) = (c_string(from)?, c_string(to)?);
        let calls = self.mount.calls_as(cred)?;
        // SAFETY: both objects are of this volume, as was just seen; the names end with a zero.
        checked_int(unsafe {
            (calls.glfs_h_rename)(
                self.mount.raw(),
                self.raw(),
                from.as_ptr(),
                to_dir.raw(),
                to.as_ptr(),
            )
        })
        .map(drop)
    }

    fn readlink(&self, buffer: &mut [u8], cred: &Cred) -> Result<usize> {
        let calls = self.mount.calls_as(cred)?;
        // SAFETY: the object is one of this volume; the buffer is ours and has the given length.
        let len = checked_int(unsafe {
            (calls.glfs_h_readlink)(
                self.mount.raw(),
                self.raw(),
                buffer.as_mut_ptr().cast(),
                buffer.len(),
            )
        })?;
        Ok(len.min(buffer.len()))
    }

    fn open_dir(&self, cred: &Cred) -> Result<DirStream> {
        let calls = self.mount.calls_as(cred)?;
        // SAFETY: the object is one of this volume.
        let raw = unsafe { (calls.glfs_h_opendir)(self.mount.raw(), self.raw()) };
        DirStream::new(&self.mount, raw)
    }

    fn statfs(&self) -> Result<libc::statvfs> {
        let calls = self.mount.calls_as(&crate::server())?;
        let mut stat = std::mem::MaybeUninit::<libc::statvfs>::zeroed();
        // SAFETY: the object is one of this volume; `stat` takes the answer.
        checked_int(unsafe {
            (calls.glfs_h_statfs)(self.mount.raw(), self.raw(), stat.as_mut_ptr())
        })?;
        // SAFETY: all of its fields are numbers, for which zero is a value.
        Ok(unsafe { stat.assume_init() })
    }

    fn xattr(&self, name: &[u8], buffer: &mut [u8], cred: &Cred) -> Result<usize> {
        let name = c_string(name)?;
        let calls = self.mount.calls_as(cred)?;
        // SAFETY: the object is one of this volume, the name ends with a zero, the buffer is ours
        // and has the given length.
        checked_xattr(unsafe {
            (calls.glfs_h_getxattrs)(
                self.mount.raw(),
                self.raw(),
                name.as_ptr(),
                buffer.as_mut_ptr().cast(),
                buffer.len(),
            )
        })
    }

    fn list_xattrs(&self, buffer: &mut [u8], cred: &Cred) -> Result<usize> {
        let calls = self.mount.calls_as(cred)?;
        // SAFETY: the object is one of this volume; the buffer is ours and has the given length; a
        // null name asks for all names.
        let len = checked_xattr(unsafe {
            (calls.glfs_h_getxattrs)(
                self.mount.raw(),
                self.raw(),
                null(),
                buffer.as_mut_ptr().cast(),
                buffer.len(),
            )
        })?;
        Ok(len.min(buffer.len()))
    }

    fn set_xattr(&self, name: &[u8], value: &[u8], flags: i32, cred: &Cred) -> Result<()> {
        let name = c_string(name)?;
        let calls = self.mount.calls_as(cred)?;
        // SAFETY: the object is one of this volume, the name ends with a zero, the value has the
        // given length.
        checked_xattr(unsafe {
            (calls.glfs_h_setxattrs)(
                self.mount.raw(),
                self.raw(),
                name.as_ptr(),
                value.as_ptr().cast(),
                value.len(),
                flags,
            )
        })
        .map(drop)
    }

    fn remove_xattr(&self, name: &[u8], cred: &Cred) -> Result<()> {
        let name = c_string(name)?;
        let calls = self.mount.calls_as(cred)?;
        // SAFETY: the object is one of this volume, the name ends with a zero.
        checked_xattr(unsafe {
            (calls.glfs_h_removexattrs)(self.mount.raw(), self.raw(), name.as_ptr())
        })
        .map(drop)
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
