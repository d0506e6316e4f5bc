//! libcephfs and librados, loaded at run time: the only module of this crate with unsafe code.
//!
//! Notes
//! * Each library is loaded when it is first needed, and never unloaded.
//! * Its calls block, and those of one mount share a lock.
//! * It copies arguments before it returns, except a caller's groups, to which it keeps a
//!   reference.
//!
//! Invariants
//! * Every inode, open file and open directory holds the mount that it came from, and is released
//!   to it exactly once; a mount ends after all of them.
//! * Inodes are used only with the mount that they came from.

mod dir;
mod handle;
mod inode;
mod library;
mod mount;
mod perm;
mod rados;
mod table;
mod types;

pub(crate) use handle::Handle;
pub(crate) use inode::Inode;
pub(crate) use mount::{ClusterOptions, Mount, MountOptions};
pub(crate) use rados::Rados;
pub(crate) use types::{NO_SNAPSHOT, StatX, set};

use dafs_store::StoreError;
use std::ffi::{CString, c_int};
use std::sync::OnceLock;
use table::Functions;
use thiserror::Error;

/// The reason why a library cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Unavailable {
    /// The library is not installed, or cannot be loaded.
    #[error(
        "CephFS needs the library {name}, which cannot be loaded; install it (Debian: apt install {package}): {why}"
    )]
    #[allow(missing_docs, reason = "the message says it")]
    Missing { name: &'static str, package: &'static str, why: String },
    /// The library lacks a function.
    #[error(
        "the installed {name} is too old: it has no function {function}; 16.2 is known to work"
    )]
    #[allow(missing_docs, reason = "the message says it")]
    TooOld { name: &'static str, function: &'static str },
}

/// Returns the functions of the library, which the first call loads.
fn functions() -> Result<&'static Functions, Unavailable> {
    static FUNCTIONS: OnceLock<Result<Functions, Unavailable>> = OnceLock::new();
    FUNCTIONS.get_or_init(Functions::open).as_ref().map_err(Clone::clone)
}

/// Maps the result of a call: a count, or the negative of an error number.
fn checked(answer: c_int) -> Result<usize, StoreError> {
    usize::try_from(answer).map_err(|_| StoreError::from_errno(answer.saturating_neg()))
}

/// Converts bytes to a string of the library.
fn c_string(bytes: &[u8]) -> Result<CString, StoreError> {
    CString::new(bytes).map_err(|_| StoreError::Invalid)
}
