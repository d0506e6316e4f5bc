//! The outstanding operations of a client.

use crate::model::content::{ChangeId, Tick};
use crate::model::names::{Change, FileNumber, Place};
use dafs_dat::EndpointId;
use dafs_wire::dafs::{StateId, Verifier};
use std::collections::BTreeSet;

/// The buffer of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) index: usize,
    pub(crate) offset: usize,
}

/// A directory listing under way.
#[derive(Debug, Clone)]
pub(crate) struct Listing {
    pub(crate) dir: Option<u8>,
    pub(crate) cookie: u64,
    pub(crate) verifier: Verifier,
    /// Names seen on earlier pages.
    pub(crate) seen: BTreeSet<u8>,
    /// The state of the tree when the listing began.
    pub(crate) version: u64,
}

/// One operation.
#[derive(Debug, Clone)]
pub(crate) enum Task {
    /// Looks for the client's own top directory.
    FindHome,
    /// Looks for a directory below it.
    FindDirectory {
        name: u8,
        version: u64,
    },
    /// Looks for a file by name.
    FindFile {
        file: FileNumber,
        version: u64,
    },
    /// Looks up a name, to find out which change happened.
    Decide {
        place: Place,
    },
    /// Opens a file by name.
    Open {
        file: FileNumber,
        reads: bool,
        writes: bool,
        version: u64,
    },
    /// Makes and opens a file.
    Create {
        change: Change,
        file: FileNumber,
    },
    /// Changes names.
    Names {
        change: Change,
    },
    Close {
        file: FileNumber,
    },
    Read {
        file: FileNumber,
        begin: Tick,
        offset: u64,
        asked: u64,
        slot: Slot,
        state: StateId,
    },
    Write {
        file: FileNumber,
        change: ChangeId,
        len: u64,
        slot: Slot,
        state: StateId,
        stability: dafs_wire::dafs::Stability,
    },
    Truncate {
        file: FileNumber,
        change: ChangeId,
        state: StateId,
    },
    SetMode {
        file: FileNumber,
        mode: u32,
    },
    Stat {
        file: FileNumber,
        begin: Tick,
        version: u64,
        settled: bool,
    },
    List(Listing),
    ReadLink {
        number: u64,
        version: u64,
    },
    FindLink {
        number: u64,
        version: u64,
    },
    Commit {
        file: FileNumber,
    },
    /// Asks where the server shows blocks of a file.
    Expose {
        file: FileNumber,
        state: StateId,
        /// The exposure that the client knows, or 0, and the number of its segments.
        exposure: u64,
        known: u32,
        connection: EndpointId,
    },
    Null,
}

impl Task {
    /// The change of the client's own tree, if it is one.
    pub(crate) fn change(&self) -> Option<&Change> {
        match self {
            Task::Create { change, .. } | Task::Names { change } => Some(change),
            _ => None,
        }
    }

    /// The file that it concerns.
    pub(crate) fn file(&self) -> Option<FileNumber> {
        match self {
            Task::FindFile { file, .. }
            | Task::Open { file, .. }
            | Task::Create { file, .. }
            | Task::Close { file }
            | Task::Read { file, .. }
            | Task::Write { file, .. }
            | Task::Truncate { file, .. }
            | Task::SetMode { file, .. }
            | Task::Stat { file, .. }
            | Task::Commit { file }
            | Task::Expose { file, .. } => Some(*file),
            _ => None,
        }
    }
}
