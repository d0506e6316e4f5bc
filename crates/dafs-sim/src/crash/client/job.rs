//! What a client asks for.

use super::visit::Visit;
use crate::crash::model::names::Change;
use crate::crash::model::vault::Ask;
use crate::pattern::WriteId;
use dafs_wire::dafs::{FileHandle, Stability, StateId, Verifier};

/// One of the objects that every client looks up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    Dir(u8),
    Data,
    Log,
}

/// One operation of the application.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Job {
    Find(Target),
    Names(Change),
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
    Append {
        record: WriteId,
        len: usize,
        direct: bool,
    },
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
