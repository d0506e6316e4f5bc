//! Comparisons of copies, as administrators order and see them.

use serde::{Deserialize, Serialize};

/// An order about the comparison of copies in an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScrubOrder {
    /// Begin a comparison of all files.
    Start {
        /// The most bytes that each node reads in a second. `None` for the default.
        bytes_per_second: Option<u64>,
        /// Repair copies that are certainly wrong.
        mend: bool,
    },
    /// Report on the last comparison.
    Show,
    /// End a running comparison.
    Stop,
}

/// The state of a comparison of copies, since it began.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubReport {
    /// It has not come to its end yet.
    pub running: bool,
    /// It was stopped before its end.
    pub stopped: bool,
    /// Files that were compared, or whose stripes were read.
    pub files: u64,
    /// Their bytes, each copy counted once.
    pub bytes: u64,
    /// The time that it has taken.
    pub milliseconds: u64,
    /// Files that wait for a time without writers.
    pub waiting_files: u64,
    /// Files that were not compared, because they were in use whenever it came to them.
    pub in_use_files: u64,
    /// Files that were not compared, because one of their nodes could not be asked.
    pub away_files: u64,
    /// Files with a fault.
    pub faulty_files: u64,
    /// Those of them whose wrong copies are being repaired.
    pub mended_files: u64,
    /// The faults, one for each copy. The first ones, if there are very many.
    pub faults: Vec<FaultReport>,
    /// The reason why it could not look at some files or directories. Empty if it has met all.
    pub trouble: String,
}

/// The fault of a copy, or of the stripes on a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultReport {
    /// The file, as clients name it.
    pub path: String,
    /// The number of the node.
    pub node: u32,
    /// `differs`, `missing` or `unreadable`.
    pub fault: String,
    /// The number of a node whose copy is right. `null` if that is not certain.
    pub right: Option<u32>,
    /// The copy is being repaired.
    pub mended: bool,
}
