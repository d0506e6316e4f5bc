//! What a call over RDMA brought along besides its message: where its data lies and where its
//! results go.
//!
//! Invariants
//! * It does not change from the time the handler sees the call.
//! * Data that was fetched is private memory; the memory of a peer that is mapped here is only
//!   seen through volatile views.

use crate::memory::{Block, source};
use dafs_dat::RemoteWindow;
use dafs_mem::VolatileSlice;
use dafs_wire::rpcrdma::Chunk;
use dafs_wire::xdr::{Apart, ApartItem};
use smallvec::SmallVec;

/// The chunks of one call.
#[derive(Debug, Default)]
pub(crate) struct Exchange {
    /// Arguments that stayed apart: where they belong, and their bytes, one for one.
    pub(crate) items: SmallVec<[ApartItem; 1]>,
    pub(crate) data: SmallVec<[Data; 1]>,
    /// Where bulk results go, one after the other.
    pub(crate) sinks: SmallVec<[Sink; 1]>,
    /// Where a reply goes that is too long to be sent.
    pub(crate) reply: Option<Chunk>,
    /// A key of the caller's that it wants to be told is no longer needed.
    pub(crate) invalidate: Option<u32>,
}

/// The bytes of an argument.
#[derive(Debug)]
pub(crate) enum Data {
    /// They were fetched.
    Block(Block),
    /// They lie in the caller's memory.
    Window(RemoteWindow),
}

/// A write chunk of the caller's.
#[derive(Debug)]
pub(crate) struct Sink {
    pub(crate) chunk: Chunk,
    /// Bytes that it takes.
    pub(crate) len_max: usize,
    /// The memory itself, if it can be reached and is in one piece.
    pub(crate) window: Option<RemoteWindow>,
}

impl Exchange {
    /// Forgets everything, so that the memory can be used for another call.
    pub(crate) fn clear(&mut self) {
        self.items.clear();
        self.data.clear();
        self.sinks.clear();
        self.reply = None;
        self.invalidate = None;
    }

    /// The bytes of an argument that stayed apart.
    pub(crate) fn data(&self, apart: &Apart) -> Option<VolatileSlice<'_>> {
        let view = match self.data.get(apart.index)? {
            Data::Block(block) => source(block.bytes()),
            Data::Window(window) => window.view(),
        };
        // Padding may have come along.
        view.slice(0, apart.len)
    }
}
