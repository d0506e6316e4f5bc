//! Objects and their operations.

use super::dir::DirStream;
use super::handle::Handle;
use super::mount::{Mount, gone};
use super::types::{Gfid, RawObject, Stat, no_stat};
use super::{c_string, checked, checked_int, errno, failure};
use dafs_store::{Cred, Result, StoreError};
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

    /// Returns all attributes from the bricks. [`StoreError::Stale`] for a removed object.
    pub(crate) fn stat(&self) -> Result<Stat> {
        let calls = self.mount.calls_as(&crate::server())?;
        let mut stat = no_stat();
        // SAFETY: the object is one of this volume; `stat` takes the answer.
        let done = unsafe { (calls.glfs_h_stat)(self.mount.raw(), self.raw(), &mut stat) };
        checked_int(done).map_err(gone)?;
        Ok(stat)
    }

    /// Sets the attributes in `mask` (of [`set`](super::set)).
    pub(crate) fn set_stat(&self, mut stat: Stat, mask: i32, cred: &Cred) -> Result<()> {
        let calls = self.mount.calls_as(cred)?;
        // SAFETY: the object is one of this volume; `stat` is ours and whole.
        let done =
            unsafe { (calls.glfs_h_setattrs)(self.mount.raw(), self.raw(), &mut stat, mask) };
        checked_int(done).map(drop)
    }

    /// Changes the size.
    pub(crate) fn truncate(&self, size: u64, cred: &Cred) -> Result<()> {
        let size = i64::try_from(size).map_err(|_| StoreError::FileTooBig)?;
        let calls = self.mount.calls_as(cred)?;
        // SAFETY: the object is one of this volume.
        checked_int(unsafe { (calls.glfs_h_truncate)(self.mount.raw(), self.raw(), size) })
            .map(drop)
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

    /// Looks up one component below a directory. Follows no link.
    pub(crate) fn lookup(&self, name: &[u8], cred: &Cred) -> Result<(Self, Stat)> {
        let (name, mut stat) = (c_string(name)?, no_stat());
        let calls = self.mount.calls_as(cred)?;
        // SAFETY: the object is one of this volume, the name ends with a zero, `stat` takes the answer.
        let raw = unsafe {
            (calls.glfs_h_lookupat)(self.mount.raw(), self.raw(), name.as_ptr(), &mut stat, 0)
        };
        Ok((Self::new(&self.mount, raw)?, stat))
    }

    /// Opens a regular file, with the flags of open(2).
    pub(crate) fn open(&self, flags: i32, cred: &Cred) -> Result<Handle> {
        let calls = self.mount.calls_as(cred)?;
        // SAFETY: the object is one of this volume.
        let raw = unsafe { (calls.glfs_h_open)(self.mount.raw(), self.raw(), flags) };
        Handle::new(&self.mount, raw)
    }

    /// Makes and opens a regular file that does not exist.
    pub(crate) fn create(
        &self,
        name: &[u8],
        mode: u32,
        flags: i32,
        cred: &Cred,
    ) -> Result<(Self, Handle, Stat)> {
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
        let object = Self::new(&self.mount, raw)?;
        Ok((object, Handle::new(&self.mount, file)?, stat))
    }

    /// Makes a directory.
    pub(crate) fn mkdir(&self, name: &[u8], mode: u32, cred: &Cred) -> Result<(Self, Stat)> {
        let (name, mut stat) = (c_string(name)?, no_stat());
        let calls = self.mount.calls_as(cred)?;
        // SAFETY: the object is one of this volume, the name ends with a zero, `stat` takes the answer.
        let raw = unsafe {
            (calls.glfs_h_mkdir)(self.mount.raw(), self.raw(), name.as_ptr(), mode, &mut stat)
        };
        Ok((Self::new(&self.mount, raw)?, stat))
    }

    /// Makes a special file; the mode holds its kind.
    pub(crate) fn mknod(
        &self,
        name: &[u8],
        mode: u32,
        device: u64,
        cred: &Cred,
    ) -> Result<(Self, Stat)> {
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
        Ok((Self::new(&self.mount, raw)?, stat))
    }

    /// Makes a symlink.
    pub(crate) fn symlink(&self, name: &[u8], text: &[u8], cred: &Cred) -> Result<(Self, Stat)> {
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
        Ok((Self::new(&self.mount, raw)?, stat))
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

    /// Renames from this directory to another one of the same volume.
    pub(crate) fn rename(&self, from: &[u8], to_dir: &Self, to: &[u8], cred: &Cred) -> Result<()> {
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

    /// Reads the text of a symlink into `buffer`, and returns its length.
    pub(crate) fn readlink(&self, buffer: &mut [u8], cred: &Cred) -> Result<usize> {
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

    /// Opens a directory for listing.
    pub(crate) fn open_dir(&self, cred: &Cred) -> Result<DirStream> {
        let calls = self.mount.calls_as(cred)?;
        // SAFETY: the object is one of this volume.
        let raw = unsafe { (calls.glfs_h_opendir)(self.mount.raw(), self.raw()) };
        DirStream::new(&self.mount, raw)
    }

    /// Returns space and files of the volume.
    pub(crate) fn statfs(&self) -> Result<libc::statvfs> {
        let calls = self.mount.calls_as(&crate::server())?;
        let mut stat = std::mem::MaybeUninit::<libc::statvfs>::zeroed();
        // SAFETY: the object is one of this volume; `stat` takes the answer.
        checked_int(unsafe {
            (calls.glfs_h_statfs)(self.mount.raw(), self.raw(), stat.as_mut_ptr())
        })?;
        // SAFETY: all of its fields are numbers, for which zero is a value.
        Ok(unsafe { stat.assume_init() })
    }

    /// Reads the value of an extended attribute, whose name includes the prefix, into `buffer`.
    pub(crate) fn xattr(&self, name: &[u8], buffer: &mut [u8], cred: &Cred) -> Result<usize> {
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

    /// Lists the names of extended attributes, each with a final zero, and returns the length of
    /// the list.
    pub(crate) fn list_xattrs(&self, buffer: &mut [u8], cred: &Cred) -> Result<usize> {
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

    /// Sets an extended attribute, with the flags of setxattr(2).
    pub(crate) fn set_xattr(
        &self,
        name: &[u8],
        value: &[u8],
        flags: i32,
        cred: &Cred,
    ) -> Result<()> {
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

    /// Removes an extended attribute.
    pub(crate) fn remove_xattr(&self, name: &[u8], cred: &Cred) -> Result<()> {
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
