//! Data of a record that is read from the socket straight to where the caller wants it.

use super::memory::MemorySlice;
use dafs_mem::{Site, VolatileSlice};
use dafs_wire::xdr::padded;

/// Such data in a record of which not all has come.
#[derive(Debug)]
pub(crate) struct Aside {
    /// Which call it belongs to.
    pub(crate) xid: u32,
    /// Bytes of the record before it.
    pub(crate) at: usize,
    /// Bytes of the results before it.
    pub(crate) position: usize,
    /// Its length, without padding.
    pub(crate) len: usize,
    /// Bytes that have come, of the padding too.
    done: usize,
    /// Where it goes; nowhere when nobody wants it any more.
    sink: Option<MemorySlice>,
}

impl Aside {
    /// `sink` holds at least `len` bytes.
    pub(crate) fn new(xid: u32, at: usize, position: usize, len: usize, sink: MemorySlice) -> Self {
        debug_assert!(len <= sink.len());
        Self { xid, at, position, len, done: 0, sink: Some(sink) }
    }

    /// True when all of it has come.
    pub(crate) fn is_complete(&self) -> bool {
        self.left() == 0
    }

    /// Bytes that have not come, of the padding too.
    pub(crate) fn left(&self) -> usize {
        padded(self.len) - self.done
    }

    /// Where the next bytes go, at most `len_max`; `None` for bytes that nobody wants.
    pub(crate) fn space(&self, len_max: usize) -> Option<VolatileSlice<'_>> {
        let len = self.len.checked_sub(self.done).filter(|&left| left > 0)?.min(len_max);
        self.sink.as_ref()?.view().slice(self.done, len)
    }

    /// Counts bytes as come, at most those that are left; returns how many that were.
    pub(crate) fn filled(&mut self, len: usize) -> usize {
        let len = len.min(self.left());
        self.done += len;
        len
    }

    /// Takes bytes that came another way; returns how many of them belong here.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> usize {
        if let Some(space) = self.space(bytes.len()) {
            space.copy_from(bytes, Site::RpcPlacement);
        }
        self.filled(bytes.len())
    }

    /// Nobody wants it any more.
    pub(crate) fn forsake(&mut self) {
        self.sink = None;
    }
}
