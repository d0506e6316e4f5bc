//! Opens, and transfers of data under them, as all versions see them.

use super::error::Result;
use crate::files::Handle;
use dafs_rpc::client::MemorySlice;
use dafs_wire::nfs4::{ShareAccess, StableHow, Stateid, Status};
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An open file. NFSv3 has none, so there only handle and access mean something.
#[derive(Debug)]
pub(crate) struct Open {
    /// Tells it from all others of its mount.
    pub(crate) number: u64,
    pub(crate) handle: Handle,
    pub(crate) read: bool,
    pub(crate) write: bool,
    held: Mutex<Held>,
    /// Held by whoever opens it anew.
    reopening: Mutex<()>,
}

/// What the server knows an open by.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Held {
    pub(crate) stateid: Stateid,
    /// Why the server would not give it back, if it lost it.
    pub(crate) lost: Option<Status>,
}

impl Open {
    pub(crate) fn new(
        number: u64,
        handle: Handle,
        read: bool,
        write: bool,
        stateid: Stateid,
    ) -> Self {
        let held = Mutex::new(Held { stateid, lost: None });
        Self { number, handle, read, write, held, reopening: Mutex::default() }
    }

    pub(crate) fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until nobody else opens it anew.
    pub(crate) fn reopening(&self) -> MutexGuard<'_, ()> {
        self.reopening.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The name of the open for READ and WRITE, whatever its version: OPENs and their reclaim
    /// change it meanwhile (RFC 8881 8.2.2).
    pub(crate) fn stateid(&self) -> Stateid {
        Stateid { seqid: 0, ..self.held().stateid }
    }

    pub(crate) fn share_access(&self) -> u32 {
        let read = if self.read { ShareAccess::READ } else { 0 };
        read | if self.write { ShareAccess::WRITE } else { 0 }
    }

    /// The name of its owner. Every open has an owner of its own, so that closing one file leaves
    /// another open of the same file alone.
    pub(crate) fn owner(&self) -> [u8; 8] {
        self.number.to_be_bytes()
    }
}

/// What is moved.
#[derive(Debug, Clone)]
pub(crate) struct Transfer {
    pub(crate) open: Arc<Open>,
    pub(crate) offset: u64,
    pub(crate) memory: MemorySlice,
    pub(crate) direction: Direction,
}

/// Which way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Read,
    Write(StableHow),
}

/// What was moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Moved {
    pub(crate) bytes: usize,
    /// The read reached the end of the file.
    pub(crate) eof: bool,
    pub(crate) stable: StableHow,
    pub(crate) verifier: [u8; 8],
}

/// One READ or WRITE under way.
pub(crate) trait Flight: Send + Sync + Debug {
    /// Waits until it is over. To be called once.
    fn wait(&self) -> Result<Moved>;

    /// True when `wait` would not wait for the server.
    fn is_answered(&self) -> bool;
}
