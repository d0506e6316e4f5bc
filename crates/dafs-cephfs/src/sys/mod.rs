//! libcephfs and librados, opened at run time: the only module of this crate with unsafe code.
//!
//! What is not obvious
//! * Each library is opened when first needed and never closed.
//! * Its calls wait, and those of one mount have one lock in common.
//! * It copies what it is handed before it returns, and it takes a caller's groups by reference.
//!
//! Invariants
//! * Every inode, open file and open directory holds the mount that it came from, and is given back
//!   to it exactly once; a mount ends after all of them.
//! * Inodes are used with the mount that they came from, and no other.

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
pub(crate) use perm::Perm;
pub(crate) use rados::Rados;
pub(crate) use types::{NO_SNAPSHOT, StatX, set};

use dafs_store::StoreError;
use std::ffi::{CString, c_int};
use std::sync::OnceLock;
use table::Functions;
use thiserror::Error;

/// Why a library cannot be used at all.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Unavailable {
    /// It is not installed, or cannot be loaded.
    #[error(
        "CephFS needs the library {name}, which cannot be loaded; install it (Debian: apt install {package}): {why}"
    )]
    #[allow(missing_docs, reason = "the message says it")]
    Missing { name: &'static str, package: &'static str, why: String },
    /// It lacks a function.
    #[error(
        "the installed {name} is too old: it has no function {function}; 16.2 is known to work"
    )]
    #[allow(missing_docs, reason = "the message says it")]
    TooOld { name: &'static str, function: &'static str },
}

/// The functions of the library, which is opened by the first call.
fn functions() -> Result<&'static Functions, Unavailable> {
    static FUNCTIONS: OnceLock<Result<Functions, Unavailable>> = OnceLock::new();
    FUNCTIONS.get_or_init(Functions::open).as_ref().map_err(Clone::clone)
}

/// What a call answered: a count, or the negative of an error number.
fn checked(answer: c_int) -> Result<usize, StoreError> {
    usize::try_from(answer).map_err(|_| StoreError::from_errno(answer.saturating_neg()))
}

/// Bytes as the library wants names.
fn c_string(bytes: &[u8]) -> Result<CString, StoreError> {
    CString::new(bytes).map_err(|_| StoreError::Invalid)
}
