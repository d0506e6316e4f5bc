//! libgfapi, loaded at run time: the only module of this crate with unsafe code.
//!
//! Notes
//! * The library is loaded when it is first needed, and never unloaded. A volume is never closed,
//!   which would take ten seconds.
//! * It returns errors in `errno`, and keeps the caller's identity per thread: each call here sets
//!   it first.
//! * It copies arguments before it returns.
//!
//! Invariants
//! * Every object, open file and open directory holds the mount that it came from, and is released
//!   exactly once.
//! * Objects are used only with the mount that they came from.

mod dir;
mod handle;
mod mount;
mod object;
mod table;
mod types;

pub(crate) use handle::Handle;
pub(crate) use mount::{Mount, MountOptions};
pub(crate) use object::Object;
pub(crate) use types::{Gfid, Stat, no_stat, set};

use dafs_store::StoreError;
use std::ffi::{CString, c_int};
use std::io;

/// Returns the error number of this thread's last failed call.
fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// Returns the error of this thread's last failed call.
fn failure() -> StoreError {
    StoreError::from_errno(errno())
}

/// Maps the result of a call: a count, or a negative number with the error in `errno`.
fn checked(answer: isize) -> Result<usize, StoreError> {
    usize::try_from(answer).map_err(|_| failure())
}

/// Maps the 32-bit result of a call.
fn checked_int(answer: c_int) -> Result<usize, StoreError> {
    checked(isize::try_from(answer).unwrap_or(-1))
}

/// Converts bytes to a string of the library.
fn c_string(bytes: &[u8]) -> Result<CString, StoreError> {
    CString::new(bytes).map_err(|_| StoreError::Invalid)
}
