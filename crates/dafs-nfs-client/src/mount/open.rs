//! Opens, and transfers of data under them, as all versions see them.

use super::error::Result;
use crate::files::Handle;
use dafs_mem::Mutex;
use dafs_rpc::client::MemorySlice;
use dafs_wire::nfs4::{ShareAccess, StableHow, Stateid, Status};
use std::fmt::Debug;
use std::ops::Range;
use std::sync::{Arc, MutexGuard};

/// An open file. NFSv3 has no opens, so there only handle and access are used.
#[derive(Debug)]
pub(crate) struct Open {
    /// Its number, unique within its mount.
    pub(crate) number: u64,
    pub(crate) handle: Handle,
    pub(crate) read: bool,
    pub(crate) write: bool,
    /// The size of the file at the open, if the open asked for it.
    size: Option<u64>,
    held: Mutex<Held>,
    /// Held by the thread that opens it anew.
    reopening: Mutex<()>,
}

/// The state of an open at the server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Held {
    pub(crate) stateid: Stateid,
    /// The status with which the server refused to reclaim it.
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
        Self { number, handle, read, write, size: None, held, reopening: Mutex::default() }
    }

    /// Sets the size of the file at the open.
    pub(crate) fn of_size(self, size: Option<u64>) -> Self {
        Self { size, ..self }
    }

    /// The size of the file at the open, if the open asked for it.
    pub(crate) fn known_size(&self) -> Option<u64> {
        self.size
    }

    /// The part of so many bytes that a read may find, as far as the size is known.
    pub(crate) fn readable(&self, offset: u64, bytes: u64) -> u64 {
        self.size.map_or(bytes, |size| bytes.min(size.saturating_sub(offset)))
    }

    /// The part of the bytes found that lies behind the known size.
    pub(crate) fn grown(&self, offset: u64, found: u64) -> u64 {
        found - self.readable(offset, found)
    }

    pub(crate) fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock()
    }

    /// Waits until no other thread opens it anew.
    pub(crate) fn reopening(&self) -> MutexGuard<'_, ()> {
        self.reopening.lock()
    }

    /// The state-id of the open for READ and WRITE, with seqid 0 for any version: OPENs and their
    /// reclaim change the seqid meanwhile (RFC 8881 8.2.2).
    pub(crate) fn stateid(&self) -> Stateid {
        Stateid { seqid: 0, ..self.held().stateid }
    }

    pub(crate) fn share_access(&self) -> u32 {
        let read = if self.read { ShareAccess::READ } else { 0 };
        read | if self.write { ShareAccess::WRITE } else { 0 }
    }

    /// The open owner. Every open has an owner of its own, so that CLOSE of one file leaves another
    /// open of the same file alone.
    pub(crate) fn owner(&self) -> [u8; 8] {
        self.number.to_be_bytes()
    }
}

/// A transfer of data.
#[derive(Debug, Clone)]
pub(crate) struct Transfer {
    pub(crate) open: Arc<Open>,
    pub(crate) offset: u64,
    pub(crate) memory: MemorySlice,
    pub(crate) direction: Direction,
}

impl Transfer {
    /// A part of the transfer; `None` if it does not lie inside.
    pub(crate) fn part(&self, range: Range<usize>) -> Option<Self> {
        let offset = self.offset.checked_add(range.start as u64)?;
        Some(Self { memory: self.memory.slice(range)?, offset, ..self.clone() })
    }

    /// Its parts, in order, of so many bytes at most.
    pub(crate) fn pieces(&self, bytes_max: usize) -> impl Iterator<Item = Self> {
        let len = self.memory.len();
        let starts = (0..len).step_by(bytes_max.max(1));
        starts.filter_map(move |at| self.part(at..len.min(at.saturating_add(bytes_max))))
    }
}

/// The direction of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Read,
    Write(StableHow),
}

/// The side that has taken unstable data, and may lose it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keeper {
    /// The mounted server.
    Server,
    /// The data servers of the file's layout, all together.
    DataServers,
}

/// The result of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Moved {
    pub(crate) bytes: usize,
    /// True when the read reached the end of the file.
    pub(crate) eof: bool,
    pub(crate) stable: StableHow,
    pub(crate) keeper: Keeper,
    /// Changes when the keeper has lost unstable data.
    pub(crate) verifier: [u8; 8],
}

/// The verifiers of both keepers, from a COMMIT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Committed {
    /// Zero if there was no COMMIT at the mounted server.
    pub(crate) server: [u8; 8],
    pub(crate) data_servers: [u8; 8],
}

impl Committed {
    /// The verifiers when there is only one server.
    pub(crate) fn by_server(verifier: [u8; 8]) -> Self {
        Self { server: verifier, data_servers: [0; 8] }
    }
}

/// One READ or WRITE under way.
pub(crate) trait Flight: Send + Sync + Debug {
    /// Waits until it is over. Called once.
    fn wait(&self) -> Result<Moved>;

    /// True when `wait` would not block.
    fn is_answered(&self) -> bool;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_counts_by_what_is_there_and_what_came_later_once_it_is_found() {
        let open = || Open::new(0, Handle(vec![1]), true, false, Stateid::ANONYMOUS);
        assert_eq!((open().readable(0, 100), open().grown(0, 100)), (100, 0), "nothing is known");
        let known = open().of_size(Some(10));
        assert_eq!((known.readable(0, 100), known.grown(0, 10)), (10, 0));
        assert_eq!((known.readable(4, 3), known.grown(4, 3)), (3, 0));
        assert_eq!((known.readable(8, 100), known.grown(8, 100)), (2, 98));
        assert_eq!((known.readable(50, 100), known.grown(50, 7)), (0, 7));
    }
}
