//! A connection to the monitors, by librados.

use super::ceph_library;
use super::mount::{ClusterOptions, plain};
use crate::{OpenError, Step, limits};
use dafs_mem::library;
use dafs_store::{Result, StoreError};
use libc::{c_char, c_int, c_void};
use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::ptr::{NonNull, null, null_mut};

// SAFETY: the initialisers of librados have no requirements; the types are those of its header.
library! {
    unsafe Functions, ceph_library("librados", "librados2", c"librados.so.2");
    fn rados_create(*mut *mut c_void, *const c_char) -> c_int;
    fn rados_conf_read_file(*mut c_void, *const c_char) -> c_int;
    fn rados_conf_set(*mut c_void, *const c_char, *const c_char) -> c_int;
    fn rados_connect(*mut c_void) -> c_int;
    fn rados_shutdown(*mut c_void);
    fn rados_mon_command(
        *mut c_void,
        *mut *const c_char,
        usize,
        *const c_char,
        usize,
        *mut *mut c_char,
        *mut usize,
        *mut *mut c_char,
        *mut usize,
    ) -> c_int;
    fn rados_buffer_free(*mut c_char);
}

/// A connection to the monitors.
pub(crate) struct Rados {
    calls: &'static Functions,
    raw: NonNull<c_void>,
}

// SAFETY: the library locks the state of a connection; any thread may call it.
unsafe impl Send for Rados {}
// SAFETY: as above.
unsafe impl Sync for Rados {}

impl Rados {
    /// Connects. Waits for the monitors for a limited time.
    ///
    /// # Errors
    /// The cause, for administrators.
    pub(crate) fn connect(options: &ClusterOptions) -> std::result::Result<Self, OpenError> {
        let calls = Functions::get()?;
        let user = options.user.as_deref().map(plain).transpose()?;
        let mut raw = null_mut();
        // SAFETY: `raw` takes the answer; the name is null or ends with a zero.
        let made =
            unsafe { (calls.rados_create)(&mut raw, user.as_deref().map_or(null(), CStr::as_ptr)) };
        let raw = NonNull::new(raw).filter(|_| made >= 0);
        let failed = OpenError::Step { step: Step::Client, errno: made.saturating_neg() };
        let rados = Self { calls, raw: raw.ok_or(failed)? };
        let config = options.config.as_ref().map(|path| CString::new(path.as_os_str().as_bytes()));
        let config = config.transpose().map_err(|_| OpenError::ZeroByte)?;
        let path = config.as_deref().map_or(null(), CStr::as_ptr);
        // SAFETY: the connection exists; the path is null or ends with a zero.
        Step::Configuration.check(unsafe { (calls.rados_conf_read_file)(rados.raw(), path) })?;
        for (name, value) in limits::MONITOR_SETTINGS {
            rados.set(name, value)?;
        }
        if let Some(keyring) = &options.keyring {
            let path = CString::new(keyring.as_os_str().as_bytes());
            rados.set(c"keyring", &path.map_err(|_| OpenError::ZeroByte)?)?;
        }
        // SAFETY: the connection exists.
        Step::Monitors.check(unsafe { (calls.rados_connect)(rados.raw()) })?;
        Ok(rados)
    }

    fn set(&self, name: &CStr, value: &CStr) -> std::result::Result<(), OpenError> {
        // SAFETY: the connection exists; both texts end with a zero.
        let done =
            unsafe { (self.calls.rados_conf_set)(self.raw(), name.as_ptr(), value.as_ptr()) };
        Step::Option.check(done)
    }

    fn raw(&self) -> *mut c_void {
        self.raw.as_ptr()
    }

    /// Sends a command, and returns the answer of the monitors, which is JSON. Waits for a limited
    /// time.
    pub(crate) fn ask(&self, command: &str) -> Result<Vec<u8>> {
        let command = CString::new(command).map_err(|_| StoreError::Invalid)?;
        let mut commands = [command.as_ptr()];
        let (mut answer, mut answer_len) = (null_mut(), 0);
        let (mut words, mut words_len) = (null_mut(), 0);
        // SAFETY: the connection exists; one command that ends with a zero, no input; the rest
        // takes answers.
        let asked = unsafe {
            (self.calls.rados_mon_command)(
                self.raw(),
                commands.as_mut_ptr(),
                commands.len(),
                null(),
                0,
                &mut answer,
                &mut answer_len,
                &mut words,
                &mut words_len,
            )
        };
        let text = if answer.is_null() {
            Vec::new()
        } else {
            // SAFETY: the library has made a text of that length, and no other code has it.
            unsafe { std::slice::from_raw_parts(answer.cast::<u8>(), answer_len) }.to_vec()
        };
        for buffer in [answer, words] {
            if !buffer.is_null() {
                // SAFETY: the library has made it; it is released once.
                unsafe { (self.calls.rados_buffer_free)(buffer) };
            }
        }
        super::checked(asked)?;
        Ok(text)
    }
}

impl Drop for Rados {
    fn drop(&mut self) {
        // SAFETY: no other code has the connection, and no call uses it any more.
        unsafe { (self.calls.rados_shutdown)(self.raw()) };
    }
}
