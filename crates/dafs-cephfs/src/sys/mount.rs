//! Mounts: each is a session with the metadata servers.

use super::inode::Inode;
use super::table::Functions;
use super::types::{InodeNumber, MountInfo, NO_SNAPSHOT, VersionedInode};
use super::{c_string, checked};
use crate::nudge::Waits;
use crate::{OpenError, Step, limits};
use dafs_store::{Result, StoreError};
use std::ffi::{CStr, CString};
use std::path::PathBuf;
use std::ptr::{NonNull, null, null_mut};
use std::sync::Arc;

/// Drops the state of the old client at the metadata servers (`CEPH_RECLAIM_RESET`).
const RECLAIM_RESET: u32 = 1;

/// The cluster, and our user in it.
#[derive(Debug, Clone)]
pub(crate) struct ClusterOptions {
    pub(crate) config: Option<PathBuf>,
    pub(crate) user: Option<String>,
    pub(crate) keyring: Option<PathBuf>,
}

/// The file system to mount, and the identity of the client.
#[derive(Debug, Clone)]
pub(crate) struct MountOptions {
    pub(crate) cluster: ClusterOptions,
    pub(crate) file_system: Option<String>,
    pub(crate) root: String,
    pub(crate) uuid: String,
    /// Records its requests.
    pub(crate) waits: Arc<Waits>,
}

pub(crate) struct Mount {
    calls: &'static Functions,
    raw: NonNull<MountInfo>,
    mounted: bool,
    waits: Arc<Waits>,
}

// SAFETY: the library locks the state of a mount; any thread may call it.
unsafe impl Send for Mount {}
// SAFETY: as above.
unsafe impl Sync for Mount {}

impl std::fmt::Debug for Mount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Mount(..)")
    }
}

impl Mount {
    /// Mounts. This evicts an old client with the same uuid, such as this program before a crash.
    /// Otherwise the capabilities of its open files would block other clients until its session
    /// times out.
    ///
    /// # Errors
    /// The cause, for administrators.
    pub(crate) fn new(options: &MountOptions) -> std::result::Result<Self, OpenError> {
        let calls = Functions::get()?;
        let user = options.cluster.user.as_deref().map(plain).transpose()?;
        let mut raw = null_mut();
        // SAFETY: `raw` takes the answer; the name is null or ends with a zero.
        let made = unsafe {
            (calls.ceph_create)(&mut raw, user.as_deref().map_or(null(), |u| u.as_ptr()))
        };
        Step::Client.check(made)?;
        let raw =
            NonNull::new(raw).ok_or(OpenError::Step { step: Step::Client, errno: libc::ENOMEM })?;
        let mut mount = Self { calls, raw, mounted: false, waits: options.waits.clone() };
        mount.configure(options)?;
        // SAFETY: the mount is there and not initialised yet.
        Step::Start.check(unsafe { (calls.ceph_init)(mount.raw()) })?;
        if let Some(name) = &options.file_system {
            let name = plain(name)?;
            // SAFETY: the mount is initialised and not mounted; the name ends with a zero.
            let chosen = unsafe { (calls.ceph_select_filesystem)(mount.raw(), name.as_ptr()) };
            Step::FileSystem.check(chosen)?;
        }
        mount.take_over(&plain(&options.uuid)?);
        let root = plain(&options.root)?;
        // SAFETY: the mount is initialised and not mounted; the path ends with a zero.
        Step::Mount.check(unsafe { (calls.ceph_mount)(mount.raw(), root.as_ptr()) })?;
        mount.mounted = true;
        Ok(mount)
    }

    fn configure(&self, options: &MountOptions) -> std::result::Result<(), OpenError> {
        use std::os::unix::ffi::OsStrExt;
        let config =
            options.cluster.config.as_ref().map(|path| CString::new(path.as_os_str().as_bytes()));
        let config = config.transpose().map_err(|_| OpenError::ZeroByte)?;
        let path = config.as_deref().map_or(null(), |path| path.as_ptr());
        // SAFETY: the mount is there; the path is null or ends with a zero.
        let read = unsafe { (self.calls.ceph_conf_read_file)(self.raw(), path) };
        Step::Configuration.check(read)?;
        for (name, value) in limits::SETTINGS {
            self.set(name, value)?;
        }
        if let Some(keyring) = &options.cluster.keyring {
            let path = CString::new(keyring.as_os_str().as_bytes());
            self.set(c"keyring", &path.map_err(|_| OpenError::ZeroByte)?)?;
        }
        Ok(())
    }

    fn set(&self, name: &CStr, value: &CStr) -> std::result::Result<(), OpenError> {
        // SAFETY: the mount is there; both texts end with a zero.
        let done = unsafe { (self.calls.ceph_conf_set)(self.raw(), name.as_ptr(), value.as_ptr()) };
        Step::Option.check(done)
    }

    /// Reclaims a uuid. It is set after the old state was dropped: before that, the MDS would take
    /// this client for the one whose state it must drop.
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

    /// Returns its running requests.
    pub(crate) fn waits(&self) -> &Arc<Waits> {
        &self.waits
    }

    /// Makes the metadata servers flush this mount's changes to their journals, and waits for that.
    pub(crate) fn sync_all(&self) -> Result<()> {
        // SAFETY: the mount is mounted.
        checked(unsafe { (self.calls.ceph_sync_fs)(self.raw()) }).map(drop)
    }

    pub(super) fn raw(&self) -> *mut MountInfo {
        self.raw.as_ptr()
    }

    /// Returns the mounted directory.
    pub(crate) fn root(self: &Arc<Self>) -> Result<Inode> {
        let mut raw = null_mut();
        // SAFETY: the mount is mounted; `raw` takes the answer.
        checked(unsafe { (self.calls.ceph_ll_lookup_root)(self.raw(), &mut raw) })?;
        Inode::new(self, raw)
    }

    /// Returns an inode by its number and snapshot. [`StoreError::Stale`] if it does not exist.
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
        // SAFETY: no other code has the mount, and all that came from it has been released, as each
        // of those holds it. A mount that is not mounted must not be unmounted.
        unsafe {
            if self.mounted {
                (self.calls.ceph_unmount)(self.raw());
            }
            (self.calls.ceph_release)(self.raw());
        }
    }
}

pub(super) fn plain(text: &str) -> std::result::Result<CString, OpenError> {
    c_string(text.as_bytes()).map_err(|_| OpenError::ZeroByte)
}
