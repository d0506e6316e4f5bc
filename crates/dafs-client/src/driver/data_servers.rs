//! The driver's part in transfers at data servers. The session with the metadata server translates
//! names; sessions with data servers make progress for transfers without a waiter.

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
    /// Sets the receiver of layout recalls.
    pub(crate) fn hear_recalls(&self, recalls: Recalls) -> Result<()> {
        self.lock()?.core.back.recalls = Some(recalls);
        self.helper.wake();
        Ok(())
    }

    /// The server's current state-id of an open.
    pub(crate) fn current_open(&self, name: StateId) -> Result<StateId> {
        let current = self.lock()?.core.calls.opens.current(name);
        current.map_err(|status| Error::Status { procedure: Procedure::ReadDirect, status })
    }

    /// An open of a file for writing, if there is one.
    pub(crate) fn writer_of(&self, handle: &FileHandle) -> Option<StateId> {
        self.lock().ok()?.core.calls.opens.writer_of(handle)
    }

    /// Registers memory that belongs to another session, for one transfer.
    pub(crate) fn lend(&self, memory: &Arc<Buffer>) -> Result<Arc<RegisteredMemory>> {
        let registered = self.lock()?.register(memory.clone());
        registered.map_err(|error| self.failed(&error))
    }

    /// Has the mover thread of this session make progress for an operation, and call `waker` when
    /// it is over. True if it is over already, or if no thread could be started, so that the caller
    /// must wait for it.
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
