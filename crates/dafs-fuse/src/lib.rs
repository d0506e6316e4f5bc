//! Mounts a tree of a DAFS server, so that every program can use it: a FUSE file system over the
//! client library.
//!
//! | module | what it does |
//! |---|---|
//! | `nodes` | the kernel's node numbers |
//! | `handles` | the kernel's numbers of open files and directories |
//! | `tree` | names: looking up, making, removing, renaming; attributes |
//! | `xattrs` | extended attributes |
//! | `content` | open files: reading, writing, making stable |
//! | `delegated` | files that the kernel may cache under delegations |
//! | `kept` | unstable writes, retained until they are stable |
//! | `rights` | clearing setuid and setgid when files are changed |
//! | `callers` | the users of programs |
//! | `listing` | open directories |
//! | `changes` | changes made here since a listing was fetched |
//! | `locking` | locks of ranges and files |
//! | `kernel` | decoding of the kernel's requests, encoding of answers |
//! | `serve` | dispatch of requests to these |
//! | `session`, `turns` | the threads that serve requests |
//! | `mounting`, `attach` | mounting and unmounting |
//! | `handover` | handing a mount over to another process |
//!
//! The kernel checks permissions by the attributes that the server returns. The server checks them
//! again: for the user of each program in a mount with [`MountOptions::callers`], else for the user
//! of the session. The kernel caches names and attributes for
//! [`MountOptions::cache_timeout`]. It caches content only while size and time of change are the
//! same, and never from one open to the next without asking. The holder of a lock sees all writes
//! before it.
//!
//! Invariants
//! * Every request of the kernel is answered exactly once, within the deadline of the client; only
//!   requests for locks may wait for longer, and they end with a signal.
//! * The tables hold exactly the objects that the kernel knows or has open.
//! * With [`MountOptions::callers`] a program gets no open file and no answer about a name that the
//!   server has not granted to its user. An open file is used with the rights of its opener.

mod attach;
mod callers;
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
mod turns;
mod wake;
mod xattrs;

pub use crate::handover::TakeOverError;
pub use crate::mounting::{Ended, Mount, MountError, MountOptions, MountPlace, Unmounted, unmount};
