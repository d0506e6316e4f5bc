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
mod library;
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
use std::sync::OnceLock;
use table::Functions;
use thiserror::Error;

/// The reason why the library cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Unavailable {
    /// The library is not installed, or cannot be loaded.
    #[error(
        "GlusterFS needs the library libgfapi, which cannot be loaded; install it (Debian: apt install libgfapi0): {why}"
    )]
    #[allow(missing_docs, reason = "the message says it")]
    Missing { why: String },
    /// The library lacks a function.
    #[error(
        "the installed libgfapi is too old: it has no function {function}; 10.3 is known to work"
    )]
    #[allow(missing_docs, reason = "the message says it")]
    TooOld { function: &'static str },
}

/// Returns the functions of the library, which the first call loads.
fn functions() -> Result<&'static Functions, Unavailable> {
    static FUNCTIONS: OnceLock<Result<Functions, Unavailable>> = OnceLock::new();
    FUNCTIONS.get_or_init(Functions::open).as_ref().map_err(Clone::clone)
}

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
