//! What a client asks for.

use super::batch::Part;
use super::board::BoardAsk;
use super::visit::Visit;
use crate::crash::model::gate::Watch;
use crate::crash::model::names::Change;
use crate::crash::model::vault::Ask;
use crate::pattern::WriteId;
use dafs_client::core::BatchHints;
use dafs_wire::dafs::{FileHandle, Stability, StateId, Verifier};

/// One of the objects that every client looks up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    Dir(u8),
    Data,
    Log,
    Gate,
}

/// One operation of the application.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Job {
    Find(Target),
    Names(Change),
    /// Creates a file and closes it in one chain.
    Chained(Change),
    /// The second member of that.
    ChainedClose,
    /// Closes what a create has opened; `ends` tells how often the server had ended by then.
    Close {
        handle: FileHandle,
        state: StateId,
        ends: u32,
        run: u64,
    },
    Write {
        slot: usize,
        write: WriteId,
        stability: Stability,
    },
    Read {
        slot: usize,
    },
    Commit {
        covered: Vec<(usize, WriteId, Verifier)>,
    },
    /// A batch that is answered as a whole.
    Batch(Vec<Part>),
    /// An asynchronous batch, before it was handed over.
    Transfers(Vec<Part>, BatchHints),
    /// One transfer of it, afterwards.
    Transfer(Part),
    Append {
        record: WriteId,
        len: usize,
        direct: bool,
        /// To the fenced file, and what is certain of the fence.
        gate: Option<Watch>,
    },
    Fence {
        client: usize,
        admit: bool,
        number: u64,
    },
    OpenBoard {
        number: usize,
        writes: bool,
    },
    /// About the board that is open.
    Board(BoardAsk),
    /// Gives a delegation back.
    Return(StateId),
    OpenVault {
        vault: usize,
    },
    /// A step of a visit; its number in the model, once it was asked.
    Guarded {
        visit: Visit,
        ask: Ask,
        number: Option<u64>,
    },
}
