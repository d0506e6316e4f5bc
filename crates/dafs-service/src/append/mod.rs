//! APPEND (DAFS 13.3): a write at the end of the file, which is chosen in the same step.
//!
//! Invariants
//! * No two appends get the same offset, and no other write through the service comes between the
//!   choice of the offset and the data.
//! * An append is atomic: all of its data is written or none. It is stable when it has succeeded.
//! * From the moment that the journal knows the offset of an append until it knows the result, no
//!   other operation through the service changes the file.

mod file;
mod writers;

pub(crate) use writers::Writers;

use crate::handle::Handle;
use crate::open::Opens;
use crate::state::StateRef;
use crate::{Caller, Result};
use dafs_mem::VolatileSlice;
use dafs_store::{OpenMode, Stability, StoreError};

impl Opens {
    /// Writes all of `views` at the end of a file and returns the offset. All of the data must be
    /// in memory already. The thread may wait for the disk. A thread that may not wait gets the
    /// file by [`io_file`](Self::io_file) and has another one call its `append`.
    ///
    /// # Errors
    /// Those of `io_file`. `Invalid` for data that need not be stable. The store's, with no data
    /// written.
    pub fn append(
        &self,
        caller: Caller<'_>,
        handle: &Handle,
        state: impl Into<StateRef>,
        views: &[VolatileSlice<'_>],
        stability: Stability,
    ) -> Result<u64> {
        if stability == Stability::Unstable {
            return Err(StoreError::Invalid.into());
        }
        let file = self.io_file(caller, handle, state, OpenMode { read: false, write: true })?;
        Ok(file.append(views, stability)?)
    }
}
