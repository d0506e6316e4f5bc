//! The rest of a read, which has to wait for a device: on the pool, or in the kernel's ring.
//!
//! Invariants
//! * It owns all that is used for it: the open file, and the memory that it fills.
//! * Both ways have the same result. The ring alone never reports an error: then the pool reads on,
//!   and gets the error itself.

use crate::engine::allowed::Anonymous;
use crate::engine::transfers::Windows;
use crate::engine::work::ReadEnd;
use crate::ops::read::{skip, views};
use dafs_mem::{Buffer, VolatileSlice};
use dafs_store::backend::FILE_BYTES_MAX;
use dafs_store::{OpenFile, StoreError, Wait};
use smallvec::SmallVec;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// The memory that a read fills.
pub(crate) enum ReadMemory {
    /// Memory of the server.
    Buffer(Arc<Buffer>),
    /// The client's memory, mapped into this process.
    Windows(Windows),
}

/// The bytes of a read that are done, of those that are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Extent {
    wanted: usize,
    done: usize,
}

/// The next step of a read after a completion.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// It is over.
    Over(ReadEnd),
    /// The rest is read in the same way.
    Ring,
    /// The pool reads the rest.
    Pool,
}

impl Extent {
    /// Adds the result of one operation: bytes, or a negative error.
    fn completed(&mut self, result: i32) -> Next {
        let Ok(count) = usize::try_from(result) else { return Next::Pool };
        self.done = self.wanted.min(self.done + count);
        if count == 0 {
            Next::Over(ReadEnd { count: self.done, eof: true })
        } else if self.done == self.wanted {
            Next::Over(ReadEnd { count: self.done, eof: false })
        } else {
            // A short one may have reached the end of the file. The next one tells.
            Next::Ring
        }
    }
}

/// A read that has to wait.
pub(crate) struct DiskRead {
    file: Arc<dyn OpenFile>,
    /// It has no open.
    anonymous: Option<Anonymous>,
    memory: ReadMemory,
    /// The position in the memory.
    at: usize,
    /// The position in the file.
    offset: u64,
    extent: Extent,
}

impl DiskRead {
    /// Makes a read of `wanted` bytes at `offset` of a file into memory from `at` on.
    pub(crate) fn new(
        (file, anonymous): (Arc<dyn OpenFile>, Option<Anonymous>),
        (memory, at): (ReadMemory, usize),
        (offset, wanted): (u64, usize),
    ) -> Self {
        Self { file, anonymous, memory, at, offset, extent: Extent { wanted, done: 0 } }
    }

    /// Returns the memory of the rest.
    fn rest(&self) -> SmallVec<[VolatileSlice<'_>; 4]> {
        let Extent { wanted, done } = self.extent;
        match &self.memory {
            ReadMemory::Buffer(buffer) => {
                buffer.slice(self.at + done, wanted - done).into_iter().collect()
            }
            ReadMemory::Windows(windows) => skip(&views(windows, self.at + wanted), self.at + done),
        }
    }

    /// Returns file, position and memory of the rest, if one operation of the kernel may read it now
    /// as the store would.
    pub(super) fn operation(&self) -> Option<(BorrowedFd<'_>, u64, VolatileSlice<'_>)> {
        Anonymous::check(self.anonymous.as_ref()).ok()?;
        let offset = self.offset.checked_add(self.extent.done as u64)?;
        let left = (self.extent.wanted - self.extent.done) as u64;
        offset.checked_add(left).filter(|end| *end <= FILE_BYTES_MAX)?;
        let file = self.file.read_descriptor()?;
        // The pool reads into many pieces at once.
        let [view] = self.rest()[..] else { return None };
        Some((file, offset, view))
    }

    pub(super) fn completed(&mut self, result: i32) -> Next {
        self.extent.completed(result)
    }

    /// Drops the read, but for its memory, which the kernel may fill at any time. The kernel has the file
    /// of a read that has begun open itself.
    pub(super) fn leave_memory(self) {
        std::mem::forget(self.memory);
    }

    /// Reads the rest if that is still allowed, and waits for devices. Runs on the pool.
    pub(crate) fn run(mut self) -> Result<ReadEnd, StoreError> {
        match self.run_all() {
            // The data before the error is good. The client gets the error when it reads on.
            Err(_) if self.extent.done > 0 => Ok(ReadEnd { count: self.extent.done, eof: false }),
            end => end,
        }
    }

    fn run_all(&mut self) -> Result<ReadEnd, StoreError> {
        Anonymous::check(self.anonymous.as_ref())?;
        while self.extent.done < self.extent.wanted {
            let rest = self.rest();
            if rest.is_empty() {
                return Err(StoreError::Io);
            }
            let offset = self.offset + self.extent.done as u64;
            let count = self.file.read_at(&rest, offset, Wait::Allowed)?;
            drop(rest);
            if count == 0 {
                return Ok(ReadEnd { count: self.extent.done, eof: true });
            }
            self.extent.done += count;
        }
        Ok(ReadEnd { count: self.extent.done, eof: false })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completions_add_up_to_the_result_of_the_store() {
        let run = |results: &[i32]| {
            let mut extent = Extent { wanted: 10, done: 0 };
            let (last, first) = results.split_last().unwrap();
            for result in first {
                assert_eq!(extent.completed(*result), Next::Ring, "{results:?}");
            }
            (extent.completed(*last), extent.done)
        };
        let over = |count, eof| (Next::Over(ReadEnd { count, eof }), count);
        assert_eq!(run(&[10]), over(10, false), "the end of the file is not asked for");
        assert_eq!(run(&[0]), over(0, true));
        assert_eq!(run(&[4, 6]), over(10, false));
        assert_eq!(run(&[4, 3, 0]), over(7, true));
        // EINTR, EIO, EAGAIN, EINVAL, EOPNOTSUPP, and none that there is.
        for error in [-4, -5, -11, -22, -95, i32::MIN] {
            assert_eq!(run(&[error]), (Next::Pool, 0));
            assert_eq!(run(&[1, 2, error]), (Next::Pool, 3), "it goes on behind the data");
        }
        // No kernel does this.
        assert_eq!(run(&[i32::MAX]), over(10, false));
    }
}
