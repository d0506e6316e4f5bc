//! Open directories.

use super::mount::Mount;
use super::object::gfid_of;
use super::types::{Gfid, RawFd, Stat, WITH_OBJECT, WITH_STAT, XStat};
use super::{checked_int, failure};
use crate::attr::attr;
use dafs_store::Result;
use dafs_store::inode::{Listed, Listing};
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

/// An open directory of a volume.
pub struct DirStream {
    mount: Arc<Mount>,
    raw: NonNull<RawFd>,
}

// SAFETY: the library lets any thread use an open directory, one at a time.
unsafe impl Send for DirStream {}

impl DirStream {
    /// Takes over an open directory of the library; null means a failure.
    pub(super) fn new(mount: &Arc<Mount>, raw: *mut RawFd) -> Result<Self> {
        let raw = NonNull::new(raw).ok_or_else(failure)?;
        Ok(Self { mount: mount.clone(), raw })
    }
}

impl Listing<Gfid> for DirStream {
    fn seek(&mut self, position: i64) -> Result<()> {
        // SAFETY: the directory is one of this volume and is used by one thread at a time.
        unsafe { (self.mount.calls().glfs_seekdir)(self.raw.as_ptr(), position) };
        Ok(())
    }

    fn next(&mut self, with_object: bool) -> Result<Option<Listed<Gfid>>> {
        let calls = self.mount.calls_as(&crate::server())?;
        let mut entry = MaybeUninit::<libc::dirent>::zeroed();
        let (mut found, mut told) = (null_mut(), null_mut());
        let want = if with_object { WITH_STAT | WITH_OBJECT } else { 0 };
        // SAFETY: the directory is one of this volume and is used by one thread at a time; the rest
        // takes answers.
        let answer = checked_int(unsafe {
            (calls.glfs_xreaddirplus_r)(
                self.raw.as_ptr(),
                want,
                &mut told,
                entry.as_mut_ptr(),
                &mut found,
            )
        });
        let told = Told { mount: &self.mount, raw: told };
        let got = answer?;
        if found.is_null() {
            return Ok(None);
        }
        // SAFETY: the library has filled it, and it is made of numbers.
        let entry = unsafe { entry.assume_init() };
        // SAFETY: the library has put a zero behind the name.
        let name = unsafe { CStr::from_ptr(entry.d_name.as_ptr()) }.to_bytes().to_vec();
        let all = with_object && got & want as usize == want as usize;
        let object = if all { told.object()? } else { None };
        let object = object.and_then(|(gfid, stat)| Some((gfid, attr(&stat).ok()?)));
        Ok(Some(Listed { name, file_id: entry.d_ino, next: entry.d_off, object }))
    }
}

/// The library's data of an entry.
struct Told<'a> {
    mount: &'a Mount,
    raw: *mut XStat,
}

impl Told<'_> {
    fn object(&self) -> Result<Option<(Gfid, Stat)>> {
        if self.raw.is_null() {
            return Ok(None);
        }
        let calls = self.mount.calls();
        // SAFETY: it comes from this volume; the data that it refers to lives as long as it.
        let (object, stat) = unsafe {
            (
                (calls.glfs_xreaddirplus_get_object)(self.raw),
                (calls.glfs_xreaddirplus_get_stat)(self.raw),
            )
        };
        if object.is_null() || stat.is_null() {
            return Ok(None);
        }
        // SAFETY: not null, as just checked, and alive.
        let stat = unsafe { *stat };
        Ok(Some((gfid_of(self.mount, object)?, stat)))
    }
}

impl Drop for Told<'_> {
    fn drop(&mut self) {
        if !self.raw.is_null() {
            // SAFETY: it is ours, and is released once, with the data that it refers to.
            unsafe { (self.mount.calls().glfs_free)(self.raw.cast()) };
        }
    }
}

impl Drop for DirStream {
    fn drop(&mut self) {
        // SAFETY: the open directory is ours, and is closed once.
        unsafe { (self.mount.calls().glfs_closedir)(self.raw.as_ptr()) };
    }
}
