//! The chunks of a call over RDMA: its argument data and the memory for its results.
//!
//! Invariants
//! * The call chunks do not change from the time the handler sees the call.
//! * Fetched data is private memory. The mapped memory of a peer is only accessed through volatile
//!   views.

use crate::memory::{Block, source};
use dafs_dat::RemoteWindow;
use dafs_mem::VolatileSlice;
use dafs_wire::rpcrdma::Chunk;
use dafs_wire::xdr::{MovedData, MovedItem};
use smallvec::SmallVec;

#[derive(Debug, Default)]
pub(crate) struct CallChunks {
    /// Arguments outside of the message: their positions, and their bytes, one for one.
    pub(crate) items: SmallVec<[MovedItem; 1]>,
    pub(crate) data: SmallVec<[Data; 1]>,
    /// Write chunks for bulk results, in order.
    pub(crate) sinks: SmallVec<[Sink; 1]>,
    /// The reply chunk, for a reply that does not fit a message.
    pub(crate) reply: Option<Chunk>,
    /// A key that the caller wants the server to invalidate.
    pub(crate) invalidate: Option<u32>,
}

/// The bytes of an argument.
#[derive(Debug)]
pub(crate) enum Data {
    /// Private memory with the fetched bytes.
    Block(Block),
    /// The caller's mapped memory.
    Window(RemoteWindow),
}

/// A write chunk of the caller's.
#[derive(Debug)]
pub(crate) struct Sink {
    pub(crate) chunk: Chunk,
    /// Bytes that the chunk takes.
    pub(crate) len_max: usize,
    /// The memory itself, if it is mapped and in one piece.
    pub(crate) window: Option<RemoteWindow>,
}

impl CallChunks {
    /// Clears all fields, so that the call chunks can serve another call.
    pub(crate) fn clear(&mut self) {
        self.items.clear();
        self.data.clear();
        self.sinks.clear();
        self.reply = None;
        self.invalidate = None;
    }

    /// The bytes of an argument outside of the message.
    pub(crate) fn data(&self, moved: &MovedData) -> Option<VolatileSlice<'_>> {
        let view = match self.data.get(moved.index)? {
            Data::Block(block) => source(block.bytes()),
            Data::Window(window) => window.view(),
        };
        // The chunk may include the padding.
        view.slice(0, moved.len)
    }
}
