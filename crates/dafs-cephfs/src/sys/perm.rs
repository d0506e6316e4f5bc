//! Callers, as libcephfs wants them.

use super::mount::Mount;
use super::types::UserPerm;
use crate::nudge::Waiting;
use dafs_store::{Cred, Result, StoreError};
use std::ptr::NonNull;

/// Who calls.
pub(crate) struct Perm<'a> {
    mount: &'a Mount,
    raw: NonNull<UserPerm>,
    /// The library refers to them.
    _groups: Box<[libc::gid_t]>,
    /// What needs a caller asks the metadata server for something.
    _waiting: Waiting,
}

impl<'a> Perm<'a> {
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
        // SAFETY: it came from `ceph_userperm_new`, nobody else has it, no call uses it any more.
        unsafe { (self.mount.calls().ceph_userperm_destroy)(self.raw.as_ptr()) };
    }
}
