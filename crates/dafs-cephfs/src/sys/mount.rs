//! Mounts: one session with the metadata servers each.

use super::inode::Inode;
use super::table::Functions;
use super::types::{InodeNumber, MountInfo, NO_SNAPSHOT, VersionedInode};
use super::{c_string, checked, functions};
use crate::{OpenError, limits};
use dafs_store::{Result, StoreError};
use std::ffi::{CString, c_int};
use std::path::PathBuf;
use std::ptr::{NonNull, null, null_mut};
use std::sync::Arc;

/// The client's state at the metadata servers is dropped (`CEPH_RECLAIM_RESET`).
const RECLAIM_RESET: u32 = 1;

/// What to mount, and as whom.
#[derive(Debug, Clone)]
pub(crate) struct MountOptions {
    pub(crate) config: Option<PathBuf>,
    pub(crate) user: Option<String>,
    pub(crate) file_system: Option<String>,
    pub(crate) root: String,
    pub(crate) uuid: String,
}

/// A mount.
pub(crate) struct Mount {
    calls: &'static Functions,
    raw: NonNull<MountInfo>,
    mounted: bool,
}

// SAFETY: the library locks what belongs to a mount; its calls may come from any thread.
unsafe impl Send for Mount {}
// SAFETY: as above.
unsafe impl Sync for Mount {}

impl std::fmt::Debug for Mount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Mount(..)")
    }
}

impl Mount {
    /// Mounts. A client of the same uuid that is still known to the metadata servers, such as this
    /// program before a crash, loses what it holds: else whatever it held open for writing would
    /// keep others waiting until its session ends.
    ///
    /// # Errors
    /// What went wrong, for whoever set this up.
    pub(crate) fn new(options: &MountOptions) -> std::result::Result<Self, OpenError> {
        let calls = functions()?;
        let user = options.user.as_deref().map(plain).transpose()?;
        let mut raw = null_mut();
        // SAFETY: `raw` takes the answer; the name is null or ends with a zero.
        let made = unsafe {
            (calls.ceph_create)(&mut raw, user.as_deref().map_or(null(), |u| u.as_ptr()))
        };
        step("making a client", made)?;
        let raw = NonNull::new(raw).ok_or(OpenError::Step("making a client", StoreError::Busy))?;
        let mut mount = Self { calls, raw, mounted: false };
        mount.configure(options)?;
        // SAFETY: the mount is there and not initialised yet.
        step("starting a client", unsafe { (calls.ceph_init)(mount.raw()) })?;
        if let Some(name) = &options.file_system {
            let name = plain(name)?;
            // SAFETY: the mount is initialised and not mounted; the name ends with a zero.
            let chosen = unsafe { (calls.ceph_select_filesystem)(mount.raw(), name.as_ptr()) };
            step("choosing the file system", chosen)?;
        }
        mount.take_over(&plain(&options.uuid)?);
        let root = plain(&options.root)?;
        // SAFETY: the mount is initialised and not mounted; the path ends with a zero.
        step("mounting", unsafe { (calls.ceph_mount)(mount.raw(), root.as_ptr()) })?;
        mount.mounted = true;
        Ok(mount)
    }

    fn configure(&self, options: &MountOptions) -> std::result::Result<(), OpenError> {
        use std::os::unix::ffi::OsStrExt;
        let config = options.config.as_ref().map(|path| CString::new(path.as_os_str().as_bytes()));
        let config = config.transpose().map_err(|_| OpenError::ZeroByte)?;
        let path = config.as_deref().map_or(null(), |path| path.as_ptr());
        // SAFETY: the mount is there; the path is null or ends with a zero.
        let read = unsafe { (self.calls.ceph_conf_read_file)(self.raw(), path) };
        step("reading the configuration of ceph", read)?;
        for (name, value) in limits::SETTINGS {
            // SAFETY: the mount is there; both texts end with a zero.
            let done =
                unsafe { (self.calls.ceph_conf_set)(self.raw(), name.as_ptr(), value.as_ptr()) };
            step("setting an option of ceph", done)?;
        }
        Ok(())
    }

    /// Takes a uuid over. It has to be set after the old state is dropped: before, the metadata
    /// server takes this client for the one whose state it shall drop.
    fn take_over(&self, uuid: &CString) {
        // SAFETY: the mount is initialised and not mounted; the uuid ends with a zero.
        let dropped = unsafe {
            let dropped = (self.calls.ceph_start_reclaim)(self.raw(), uuid.as_ptr(), RECLAIM_RESET);
            (self.calls.ceph_finish_reclaim)(self.raw());
            (self.calls.ceph_set_uuid)(self.raw(), uuid.as_ptr());
            dropped
        };
        if dropped < 0 && dropped != -libc::ENOENT {
            tracing::warn!(
                errno = -dropped,
                "what this client held before cannot be dropped at once: until its old session \
                 ends, some files may keep their users waiting"
            );
        }
    }

    pub(super) fn calls(&self) -> &'static Functions {
        self.calls
    }

    pub(super) fn raw(&self) -> *mut MountInfo {
        self.raw.as_ptr()
    }

    /// The directory that is mounted.
    pub(crate) fn root(self: &Arc<Self>) -> Result<Inode> {
        let mut raw = null_mut();
        // SAFETY: the mount is mounted; `raw` takes the answer.
        checked(unsafe { (self.calls.ceph_ll_lookup_root)(self.raw(), &mut raw) })?;
        Inode::new(self, raw)
    }

    /// An inode by its number and snapshot. [`StoreError::Stale`] when there is no such one.
    pub(crate) fn inode(self: &Arc<Self>, ino: u64, snap: u64) -> Result<Inode> {
        let mut raw = null_mut();
        // SAFETY: the mount is mounted; `raw` takes the answer.
        let found = unsafe {
            match snap {
                NO_SNAPSHOT => {
                    (self.calls.ceph_ll_lookup_inode)(self.raw(), InodeNumber(ino), &mut raw)
                }
                snap => {
                    let version = VersionedInode { ino, snap };
                    (self.calls.ceph_ll_lookup_vino)(self.raw(), version, &mut raw)
                }
            }
        };
        checked(found).map_err(|error| match error {
            StoreError::NotFound => StoreError::Stale,
            other => other,
        })?;
        Inode::new(self, raw)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // SAFETY: nobody else has the mount, and all that came from it has been given back, as each
        // of those holds it. What is not mounted must not be unmounted.
        unsafe {
            if self.mounted {
                (self.calls.ceph_unmount)(self.raw());
            }
            (self.calls.ceph_release)(self.raw());
        }
    }
}

fn plain(text: &str) -> std::result::Result<CString, OpenError> {
    c_string(text.as_bytes()).map_err(|_| OpenError::ZeroByte)
}

fn step(what: &'static str, answer: c_int) -> std::result::Result<(), OpenError> {
    checked(answer).map(drop).map_err(|error| OpenError::Step(what, error))
}
