//! libgfapi, opened at run time: the only module of this crate with unsafe code.
//!
//! What is not obvious
//! * The library is opened when first needed and never closed; neither is a volume given back, which
//!   takes ten seconds.
//! * It tells errors by `errno`, and knows callers by thread: each call here says who calls first.
//! * It copies what it is handed before it returns.
//!
//! Invariants
//! * Every object, open file and open directory holds the mount that it came from, and is given back
//!   exactly once.
//! * Objects are used with the mount that they came from, and no other.

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

/// Why the library cannot be used at all.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Unavailable {
    /// It is not installed, or cannot be loaded.
    #[error(
        "GlusterFS needs the library libgfapi, which cannot be loaded; install it (Debian: apt install libgfapi0): {why}"
    )]
    #[allow(missing_docs, reason = "the message says it")]
    Missing { why: String },
    /// It lacks a function.
    #[error(
        "the installed libgfapi is too old: it has no function {function}; 10.3 is known to work"
    )]
    #[allow(missing_docs, reason = "the message says it")]
    TooOld { function: &'static str },
}

/// The functions of the library, which is opened by the first call.
fn functions() -> Result<&'static Functions, Unavailable> {
    static FUNCTIONS: OnceLock<Result<Functions, Unavailable>> = OnceLock::new();
    FUNCTIONS.get_or_init(Functions::open).as_ref().map_err(Clone::clone)
}

/// What the last call of this thread that failed says about it.
fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// What the last call of this thread says that has failed.
fn failure() -> StoreError {
    StoreError::from_errno(errno())
}

/// What a call answered: a count, or less than nothing, with the error in `errno`.
fn checked(answer: isize) -> Result<usize, StoreError> {
    usize::try_from(answer).map_err(|_| failure())
}

/// The same of a call that answers with a number of 32 bits.
fn checked_int(answer: c_int) -> Result<usize, StoreError> {
    checked(isize::try_from(answer).unwrap_or(-1))
}

/// Bytes as the library wants names.
fn c_string(bytes: &[u8]) -> Result<CString, StoreError> {
    CString::new(bytes).map_err(|_| StoreError::Invalid)
}
