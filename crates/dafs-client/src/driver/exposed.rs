//! The driver's part in optimistic reads: memory that the server shows to a connection.
//!
//! Invariants
//! * A number of a connection on which memory can be mapped is not used again in this session: a
//!   session that has two transports (`spare.rs`) has none by which memory is mapped. So memory that
//!   was mapped on a connection that is gone is told apart without the lock.

use super::{Driver, Shared};
use crate::error::{Error, Result};
use crate::operations::Mailbox;
use dafs_dat::{Access, RemoteBuffer, RemoteWindow};
use dafs_wire::dafs::Request;
use std::sync::atomic::Ordering;

impl Shared {
    /// The number of the operation channel's connection as of the last poll; 0 if there is none.
    pub(crate) fn connection(&self) -> u64 {
        self.connection.load(Ordering::Acquire)
    }

    /// Sends a question whose answer, or the reason why there is none, goes to a mailbox.
    pub(crate) fn ask_later(&self, request: &Request<'_>, answer: Mailbox) -> Result<()> {
        let mut driver = self.lock()?;
        let slot = driver.operations.open().ok_or(Error::TooMany)?;
        if let Err(refused) = driver.submit(slot.tag(), request, None) {
            driver.operations.forget(slot);
            return Err(self.refused(refused));
        }
        driver.operations.post(slot, answer);
        self.tell(&mut driver);
        self.sent(&mut driver);
        Ok(())
    }

    /// Maps memory that the server shows to the operation channel, for reading.
    pub(crate) fn map_exposed(&self, remote: RemoteBuffer) -> Option<RemoteWindow> {
        let mut driver = self.lock().ok()?;
        let inner = &mut *driver;
        let endpoint = inner.core.endpoint()?;
        let window = inner.adapter.map_remote(endpoint, remote, Access::REMOTE_READ);
        self.keep_armed(&mut driver);
        window
    }
}

impl Driver {
    /// Notes the connection of the operation channel for threads without the lock.
    pub(super) fn note_connection(&mut self) {
        let number = self.core.endpoint().map_or(0, |endpoint| endpoint.0 + 1);
        // Readers keep their copy of the word as long as it does not change.
        if self.connection.load(Ordering::Relaxed) != number {
            self.connection.store(number, Ordering::Release);
        }
    }
}
