//! libcephfs, opened at run time: the only module of this crate with unsafe code.
//!
//! What is not obvious
//! * The library is opened when first needed and never closed.
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
mod mount;
mod perm;
mod table;
mod types;

pub(crate) use handle::Handle;
pub(crate) use inode::Inode;
pub(crate) use mount::{Mount, MountOptions};
pub(crate) use perm::Perm;
pub(crate) use types::{NO_SNAPSHOT, StatX, set};

use dafs_store::StoreError;
use std::ffi::{CString, c_int};
use std::sync::OnceLock;
use table::Functions;
use thiserror::Error;

/// Why libcephfs cannot be used at all.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Unavailable {
    /// It is not installed, or cannot be loaded.
    #[error(
        "CephFS needs the library libcephfs, which cannot be loaded; install it (Debian: apt install libcephfs2): {0}"
    )]
    Missing(String),
    /// It lacks a function.
    #[error("the installed libcephfs is too old: it has no function {0}; 16.2 is known to work")]
    TooOld(&'static str),
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
