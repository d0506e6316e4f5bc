//! The client library for C: `libdafs.so` with the header `dafs.h`, which is made from this crate.
//!
//! Each function looks up its handles, checks its arguments, and calls `dafs-client`, or for mounts
//! `dafs-nfs-client`; it does no other work.
//!
//! Invariants
//! * No panic leaves the library: it ends as `DAP_E_INTERNAL`.
//! * A handle is a number. A closed, foreign or invented one is an error, never a memory access.
//! * A pointer is checked for null before it is followed. Memory for data is checked to be mapped;
//!   lengths are bounded before they are used.
//! * A handle in use by another thread, and a buffer in use by an operation, cannot be closed
//!   (`DAP_E_BUSY`).

#![allow(non_camel_case_types, reason = "types have the names that they have in C")]

mod attributes;
mod batch;
mod boundary;
mod buffer;
mod chain;
mod directory;
mod error;
mod fence;
mod file;
mod group;
mod handle;
mod hint;
mod limits;
mod lock;
mod mount;
mod names;
mod options;
mod pointer;
mod session;
mod transfer;

pub use crate::attributes::*;
pub use crate::batch::*;
pub use crate::buffer::*;
pub use crate::chain::*;
pub use crate::directory::*;
pub use crate::error::*;
pub use crate::fence::*;
pub use crate::file::*;
pub use crate::group::*;
pub use crate::handle::{
    dap_batch_t, dap_buffer_t, dap_chain_t, dap_dir_t, dap_file_t, dap_group_t, dap_mount_dir_t,
    dap_mount_file_t, dap_mount_t, dap_session_t,
};
pub use crate::hint::*;
pub use crate::lock::*;
pub use crate::mount::*;
pub use crate::names::*;
pub use crate::options::*;
pub use crate::session::*;
pub use crate::transfer::*;
