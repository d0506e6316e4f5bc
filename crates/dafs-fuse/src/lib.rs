//! Mounts a tree of a DAFS server, so that every program can use it: a FUSE file system over the
//! client library.
//!
//! | module | what it does |
//! |---|---|
//! | `nodes` | what the kernel's numbers of nodes mean |
//! | `handles` | what the kernel's numbers of open files and directories mean |
//! | `tree` | names: looking up, making, removing, renaming; attributes |
//! | `xattrs` | extended attributes |
//! | `content` | open files: reading, writing, making stable |
//! | `listing` | open directories |
//! | `locking` | locks of ranges and files |
//! | `serve` | the kernel's requests, each given to one of these |
//! | `mounting` | mounting and unmounting |
//!
//! The kernel checks permissions by the attributes that the server tells; the server does so again for
//! the user of the session. What the kernel keeps it believes for [`MountOptions::belief`]; content
//! only while size and time of change are the same, and never from one open to the next without
//! asking.
//!
//! Invariants
//! * Every request of the kernel is answered exactly once, within the deadline of the client; only
//!   requests for locks may wait for longer, and they end with a signal.
//! * The tables hold what the kernel knows or has open, and nothing else.

mod content;
mod convert;
mod handles;
pub mod limits;
mod listing;
mod locking;
mod mounting;
mod nodes;
mod serve;
mod signals;
mod tree;
mod xattrs;

pub use crate::mounting::{Mount, MountError, MountOptions, Unmounted, unmount};
