//! Reads and writes of any length under way.
//!
//! Invariants
//! * A transfer that is abandoned goes on, and keeps its memory until it is over.

use super::error::{MountError, Result};
use super::file::File;
use super::open::{Flight, Moved};
use dafs_rpc::client::MemorySlice;
use dafs_wire::nfs4::StableHow;
use smallvec::SmallVec;
use std::sync::Arc;

/// The parts of a transfer, none longer than the server takes.
pub(crate) type Parts = SmallVec<[Part; 1]>;

#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) flight: Arc<dyn Flight>,
    pub(crate) memory: MemorySlice,
    pub(crate) offset: u64,
}

/// A read under way.
#[derive(Debug)]
#[must_use = "its memory is written until it has been waited for"]
pub struct PendingRead {
    pub(crate) file: File,
    pub(crate) parts: Parts,
}

impl PendingRead {
    /// Waits for the read; returns the number of bytes read, which is less than was asked for only
    /// at the end of the file.
    ///
    /// # Errors
    /// The server's answer, or [`MountError::Lost`].
    pub fn wait(self) -> Result<usize> {
        let mut total = 0;
        let mut result = Ok(());
        let mut ended = false;
        for part in self.parts {
            // Each part is waited for, so that the memory belongs to the caller again.
            let moved = part.flight.wait();
            if ended || result.is_err() {
                continue;
            }
            let done =
                moved.and_then(|moved| self.file.read_rest(&part.memory, part.offset, moved));
            match done {
                Ok(bytes) => {
                    total += bytes;
                    ended = bytes < part.memory.len();
                }
                Err(error) => result = Err(error),
            }
        }
        result.map(|()| total)
    }

    /// True when [`PendingRead::wait`] would hardly block.
    pub fn is_answered(&self) -> bool {
        self.parts.iter().all(|part| part.flight.is_answered())
    }
}

/// The result of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// The number of bytes, all that were to be written.
    pub bytes: usize,
    /// The least stability of all its parts.
    pub stable: StableHow,
    /// Changes when the server has lost unstable data: compare it with the one of
    /// [`File::commit`](super::File::commit).
    pub verifier: [u8; 8],
}

/// A write under way.
#[derive(Debug)]
#[must_use = "nobody knows whether it worked until it has been waited for"]
pub struct PendingWrite {
    pub(crate) file: File,
    pub(crate) parts: Parts,
    pub(crate) stable: StableHow,
}

impl PendingWrite {
    /// Waits until all is written.
    ///
    /// # Errors
    /// The server's answer, [`MountError::Lost`], [`MountError::WriteZero`];
    /// [`MountError::WritesLost`] when the server lost unstable data of this file before.
    pub fn wait(self) -> Result<Written> {
        let mut all = Written { bytes: 0, stable: StableHow::FileSync, verifier: [0; 8] };
        let mut result = Ok(());
        for part in self.parts {
            let moved = part.flight.wait();
            if result.is_err() {
                continue;
            }
            let done = moved.and_then(|moved| {
                self.file.write_rest(&part.memory, part.offset, self.stable, moved)
            });
            match done {
                Ok(Moved { bytes, stable, verifier, .. }) => {
                    all.bytes += bytes;
                    all.stable = least_stable(all.stable, stable);
                    all.verifier = verifier;
                }
                Err(error) => result = Err(error),
            }
        }
        result.map(|()| all)
    }

    /// True when [`PendingWrite::wait`] would hardly block.
    pub fn is_answered(&self) -> bool {
        self.parts.iter().all(|part| part.flight.is_answered())
    }
}

pub(crate) fn least_stable(a: StableHow, b: StableHow) -> StableHow {
    if (a as u32) < (b as u32) { a } else { b }
}

/// Refuses a transfer of no bytes.
pub(crate) fn check_not_empty(memory: &MemorySlice) -> Result<()> {
    match memory.is_empty() {
        true => Err(MountError::Argument("there is no memory to transfer")),
        false => Ok(()),
    }
}
