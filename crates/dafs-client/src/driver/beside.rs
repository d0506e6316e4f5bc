//! What those ask of the driver who read and write at data servers: of the session with the metadata server
//! its names, of those with data servers that they move along while nobody waits for them.

use super::{Shared, Slot};
use crate::attributes::FileHandle;
use crate::core::RegisteredMemory;
use crate::error::{Error, Result};
use crate::layouts::Recalls;
use dafs_mem::Buffer;
use dafs_wire::dafs::{Procedure, StateId};
use std::sync::Arc;
use std::task::Waker;

impl Shared {
    /// Who is asked when the server recalls a layout.
    pub(crate) fn hear_recalls(&self, recalls: Recalls) -> Result<()> {
        self.lock()?.core.back.recalls = Some(recalls);
        self.helper.wake();
        Ok(())
    }

    /// What the server calls an open now.
    pub(crate) fn current_open(&self, name: StateId) -> Result<StateId> {
        let current = self.lock()?.core.held.current(name);
        current.map_err(|status| Error::Status { procedure: Procedure::ReadDirect, status })
    }

    /// An open of a file for writing, if there is one.
    pub(crate) fn writer_of(&self, handle: &FileHandle) -> Option<StateId> {
        self.lock().ok()?.core.held.writer_of(handle)
    }

    /// Registers memory that belongs to another session, for one transfer.
    pub(crate) fn lend(&self, memory: &Arc<Buffer>) -> Result<Arc<RegisteredMemory>> {
        let registered = self.lock()?.register(memory.clone());
        registered.map_err(|error| self.failed(&error))
    }

    /// Has an operation moved along by a thread of its session's, and `waker` called when it is over. True if
    /// that is so already, or if there is no thread to be had, so that it has to be waited for.
    pub(crate) fn attend(self: &Arc<Self>, slot: &Slot, waker: &Waker) -> bool {
        if self.start_mover().is_err() {
            return true;
        }
        // Wakers are the application's: they are cloned and dropped without the lock.
        let waker = waker.clone();
        let mut driver = self.lock_regardless();
        let is_done = driver.operations.is_done(slot);
        let unneeded = driver.operations.wake(slot, waker);
        self.hurry(&mut driver);
        drop(driver);
        drop(unneeded);
        self.mover.attend();
        is_done
    }
}
