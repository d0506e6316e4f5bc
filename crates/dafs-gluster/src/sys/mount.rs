//! Volumes, as clients of GlusterFS.

use super::object::Object;
use super::table::Functions;
use super::types::{Fs, Gfid};
use super::{c_string, checked, checked_int, errno};
use crate::limits::{LOG_LEVEL, PORT_USUAL, SETTINGS, VOLFILE_BYTES_MAX, VOLFILE_TRIES_MAX};
use crate::{OpenError, Step};
use dafs_store::{Cred, Result, StoreError};
use std::ffi::{CStr, CString};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

/// The root directory of every volume.
const TOP: Gfid = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];

/// The volume, and the hosts that know it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct MountOptions {
    pub(crate) volume: String,
    /// Management daemons, by host and port, in the order of the attempts.
    pub(crate) servers: Vec<(String, Option<u16>)>,
}

/// A client of a volume. It lives until this process ends.
pub(crate) struct Mount {
    calls: &'static Functions,
    raw: NonNull<Fs>,
}

// SAFETY: any thread may call the library on a volume.
unsafe impl Send for Mount {}
// SAFETY: as above.
unsafe impl Sync for Mount {}

impl std::fmt::Debug for Mount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Mount(..)")
    }
}

fn plain(text: &str) -> std::result::Result<CString, OpenError> {
    c_string(text.as_bytes()).map_err(|_| OpenError::ZeroByte)
}

impl Mount {
    /// Becomes a client of a volume. Waits for its bricks.
    ///
    /// # Errors
    /// The cause, for administrators.
    pub(crate) fn new(options: &MountOptions) -> std::result::Result<Self, OpenError> {
        let calls = Functions::get()?;
        let volume = plain(&options.volume)?;
        // SAFETY: the name ends with a zero.
        let raw = unsafe { (calls.glfs_new)(volume.as_ptr()) };
        let raw =
            NonNull::new(raw).ok_or(OpenError::Step { step: Step::Client, errno: libc::ENOMEM })?;
        let mount = Self { calls, raw };
        mount.configure(options)?;
        // SAFETY: the volume exists and was not initialised yet.
        Step::Mount.check(unsafe { (calls.glfs_init)(mount.raw()) })?;
        Ok(mount)
    }

    fn configure(&self, options: &MountOptions) -> std::result::Result<(), OpenError> {
        for (host, port) in &options.servers {
            let (host, port) = (plain(host)?, port.unwrap_or(PORT_USUAL));
            // SAFETY: the volume exists; the texts end with a zero.
            let set = unsafe {
                let transport = c"tcp".as_ptr();
                (self.calls.glfs_set_volfile_server)(
                    self.raw(),
                    transport,
                    host.as_ptr(),
                    port.into(),
                )
            };
            Step::Server.check(set)?;
        }
        // The calls themselves report errors.
        // SAFETY: the volume exists; the path ends with a zero.
        let logging =
            unsafe { (self.calls.glfs_set_logging)(self.raw(), c"/dev/null".as_ptr(), LOG_LEVEL) };
        Step::Option.check(logging)?;
        SETTINGS.iter().try_for_each(|(part, name, value)| self.set(part, name, value))
    }

    fn set(&self, part: &CStr, name: &CStr, value: &CStr) -> std::result::Result<(), OpenError> {
        // SAFETY: the volume exists and is not initialised yet; all texts end with a zero.
        let done = unsafe {
            (self.calls.glfs_set_xlator_option)(
                self.raw(),
                part.as_ptr(),
                name.as_ptr(),
                value.as_ptr(),
            )
        };
        Step::Option.check(done)
    }

    pub(super) fn raw(&self) -> *mut Fs {
        self.raw.as_ptr()
    }

    /// Returns the functions, after setting the identity of this thread's calls until the next
    /// change.
    pub(super) fn calls_as(&self, cred: &Cred) -> Result<&'static Functions> {
        // SAFETY: the groups have the given number, and are copied.
        let told = unsafe {
            [
                (self.calls.glfs_setfsuid)(cred.uid),
                (self.calls.glfs_setfsgid)(cred.gid),
                (self.calls.glfs_setfsgroups)(cred.groups.len(), cred.groups.as_ptr()),
            ]
        };
        match told {
            [0, 0, 0] => Ok(self.calls),
            _ => Err(StoreError::Busy),
        }
    }

    /// Returns the functions that ask no brick.
    pub(super) fn calls(&self) -> &'static Functions {
        self.calls
    }

    /// Returns the root of the volume.
    pub(crate) fn top(self: &Arc<Self>) -> Result<Object> {
        self.object(&TOP)
    }

    /// Returns an object by its gfid. [`StoreError::Stale`] if it does not exist. The library does
    /// not ask again for objects that it knows, so the returned object may have been removed.
    pub(crate) fn object(self: &Arc<Self>, gfid: &Gfid) -> Result<Object> {
        let calls = self.calls_as(&crate::server())?;
        let (mut gfid, len) = (*gfid, size_of::<Gfid>() as i32);
        // SAFETY: the volume is initialised; the gfid has the given length; no attributes are asked
        // for.
        let raw = unsafe {
            (calls.glfs_h_create_from_handle)(self.raw(), gfid.as_mut_ptr(), len, null_mut())
        };
        Object::new(self, raw).map_err(gone)
    }

    /// Returns the permanent id of the volume.
    pub(crate) fn volume_id(&self) -> Result<[u8; 16]> {
        let mut id = [0_u8; 16];
        // SAFETY: the volume is initialised; the buffer has the given length.
        let len = checked_int(unsafe {
            (self.calls.glfs_get_volumeid)(self.raw(), id.as_mut_ptr().cast(), id.len())
        })?;
        if len == id.len() { Ok(id) } else { Err(StoreError::Io) }
    }

    /// Returns the last description of the volume from its management daemon.
    pub(crate) fn volfile(&self) -> Result<Vec<u8>> {
        let mut text = Vec::new();
        for _ in 0..VOLFILE_TRIES_MAX {
            // The library fills a buffer that is too long with data from behind the description. So
            // a call with an empty buffer asks for the length first.
            // SAFETY: the volume is initialised; nothing is written to a buffer of no bytes.
            let missing = unsafe { (self.calls.glfs_get_volfile)(self.raw(), null_mut(), 0) };
            let len = missing.unsigned_abs();
            if missing >= 0 || len > VOLFILE_BYTES_MAX {
                return Err(StoreError::Io);
            }
            text.resize(len, 0);
            // SAFETY: the volume is initialised; the buffer is ours and has the given length.
            let got = unsafe {
                (self.calls.glfs_get_volfile)(self.raw(), text.as_mut_ptr().cast(), text.len())
            };
            // A negative result means that it has grown meanwhile.
            if got >= 0 {
                return Ok(text);
            }
        }
        Err(StoreError::Busy)
    }
}

/// Maps the error of a call by gfid: a missing object was removed.
pub(crate) fn gone(error: StoreError) -> StoreError {
    match error {
        StoreError::NotFound => StoreError::Stale,
        other => other,
    }
}

/// Maps the result of a call that transfers bytes.
pub(super) fn moved(answer: isize) -> std::io::Result<usize> {
    checked(answer).map_err(|_| std::io::Error::from_raw_os_error(errno()))
}
