//! The operations of a client.

use super::batch::Part;
use super::board::BoardAsk;
use super::visit::Visit;
use crate::crash::model::gate::Watch;
use crate::crash::model::names::Change;
use crate::crash::model::vault::Ask;
use crate::pattern::WriteId;
use dafs_client::core::BatchHints;
use dafs_wire::dafs::{FileHandle, Stability, StateId, Verifier};

/// An object that every client looks up.
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
    /// The second member of such a chain.
    ChainedClose,
    /// Closes a created file. `ends` is the number of the server's ends at that time.
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
    /// An asynchronous batch, before it is submitted.
    Transfers(Vec<Part>, BatchHints),
    /// One transfer of it, after it was submitted.
    Transfer(Part),
    Append {
        record: WriteId,
        len: usize,
        direct: bool,
        /// The known state of the fence, for an append to the fenced file.
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
    /// A request about the open board.
    Board(BoardAsk),
    /// Returns a delegation.
    Return(StateId),
    OpenVault {
        vault: usize,
    },
    /// A step of a visit. It gets its number in the model when it is asked.
    Guarded {
        visit: Visit,
        ask: Ask,
        number: Option<u64>,
    },
}
