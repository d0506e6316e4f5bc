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

use dafs_mem::Library;
use dafs_store::StoreError;
use std::ffi::{CStr, CString, c_int};

/// Describes a library, whose interface has been stable since 2016.
const fn ceph_library(name: &'static str, package: &'static str, file: &'static CStr) -> Library {
    Library { file_system: "CephFS", name, package, file, version: "16.2" }
}

/// Maps the result of a call: a count, or the negative of an error number.
fn checked(answer: c_int) -> Result<usize, StoreError> {
    usize::try_from(answer).map_err(|_| StoreError::from_errno(answer.saturating_neg()))
}

/// Converts bytes to a string of the library.
fn c_string(bytes: &[u8]) -> Result<CString, StoreError> {
    CString::new(bytes).map_err(|_| StoreError::Invalid)
}
