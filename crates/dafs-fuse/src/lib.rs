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
//! | `delegated` | files that the kernel may keep, because the server asks before others change them |
//! | `kept` | what was written and is not stable yet |
//! | `rights` | bits that lend rights, taken when files are changed |
//! | `listing` | open directories |
//! | `changes` | what was changed here since a listing was fetched |
//! | `locking` | locks of ranges and files |
//! | `kernel` | the kernel's requests out of bytes, answers into bytes |
//! | `serve` | the requests, each given to one of these |
//! | `session` | the threads that do so |
//! | `mounting`, `attach` | mounting and unmounting |
//! | `handover` | going on in another process |
//!
//! The kernel checks permissions by the attributes that the server tells; the server does so again for
//! the user of the session. What the kernel keeps it believes for [`MountOptions::belief`]; content
//! only while size and time of change are the same, and never from one open to the next without
//! asking. Who gets a lock sees what was written before it.
//!
//! Invariants
//! * Every request of the kernel is answered exactly once, within the deadline of the client; only
//!   requests for locks may wait for longer, and they end with a signal.
//! * The tables hold what the kernel knows or has open, and nothing else.

mod attach;
mod changes;
mod content;
mod convert;
mod delegated;
mod handles;
mod handover;
mod kept;
mod kernel;
pub mod limits;
mod listing;
mod locking;
mod mounting;
mod nodes;
mod pass;
mod rights;
mod serve;
mod session;
mod tree;
mod wake;
mod xattrs;

pub use crate::handover::TakeOverError;
pub use crate::mounting::{Ended, Mount, MountError, MountOptions, MountPlace, Unmounted, unmount};
