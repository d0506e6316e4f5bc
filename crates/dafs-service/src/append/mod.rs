//! APPEND (DAFS 13.3): a write whose place is the end of the file at that moment.
//!
//! Invariants
//! * No two appends get the same place, and no other write through the service comes between the
//!   choice of the end and the data.
//! * An append is there whole or not at all, and stable when it has succeeded.
//! * From the moment that the journal knows the place of an append until it knows what came of it,
//!   nothing else that goes through the service changes the file.

mod file;
mod writers;

pub(crate) use writers::Writers;

use crate::handle::Handle;
use crate::state::StateRef;
use crate::{Caller, Result, Service};
use dafs_mem::VolatileSlice;
use dafs_store::{OpenMode, Stability, StoreError};

impl Service {
    /// Writes all of `views` at the end of a file and returns where. All of the data must be in
    /// memory already. For a thread that may wait for the disk; one that may not gets the file by
    /// [`io_file`](Self::io_file) and calls its `append` elsewhere.
    ///
    /// # Errors
    /// Those of `io_file`; `Invalid` for data that need not be stable; the store's, with nothing
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
