//! Callers in the form of libcephfs.

use super::mount::Mount;
use super::types::UserPerm;
use crate::nudge::Waiting;
use dafs_store::{Cred, Result, StoreError};
use std::ptr::NonNull;

/// The identity of a caller.
pub(crate) struct Perm<'a> {
    mount: &'a Mount,
    raw: NonNull<UserPerm>,
    /// The library keeps a reference to them.
    _groups: Box<[libc::gid_t]>,
    /// Counts as a running request, because the calls that need a caller go to the MDS.
    _waiting: Waiting,
}

impl<'a> Perm<'a> {
    /// Makes the identity of a caller.
    ///
    /// # Errors
    /// [`StoreError::Busy`] when there is no memory.
    pub(crate) fn new(mount: &'a Mount, cred: &Cred) -> Result<Self> {
        let mut groups: Box<[libc::gid_t]> = (&*cred.groups).into();
        let count = i32::try_from(groups.len()).map_err(|_| StoreError::Invalid)?;
        // SAFETY: the groups are `count` and live as long as what is made here, at a fixed address.
        let raw = unsafe {
            (mount.calls().ceph_userperm_new)(cred.uid, cred.gid, count, groups.as_mut_ptr())
        };
        let raw = NonNull::new(raw).ok_or(StoreError::Busy)?;
        Ok(Self { mount, raw, _groups: groups, _waiting: mount.waits().begin() })
    }

    pub(super) fn raw(&self) -> *const UserPerm {
        self.raw.as_ptr()
    }
}

impl Drop for Perm<'_> {
    fn drop(&mut self) {
        // SAFETY: it came from `ceph_userperm_new`, no other code has it, no call uses it any more.
        unsafe { (self.mount.calls().ceph_userperm_destroy)(self.raw.as_ptr()) };
    }
}
