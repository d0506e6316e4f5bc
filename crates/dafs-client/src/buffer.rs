//! Registered buffers of the application.
//!
//! Invariants
//! * When the last handle on borrowed memory is gone, and no operation uses it, the server cannot
//!   reach it any more.

use crate::client::Client;
use crate::core::RegisteredMemory;
use crate::driver::Shared;
use crate::error::{Error, Result};
use dafs_mem::{Buffer, VolatileSlice};
use std::sync::{Arc, Weak};

/// Memory that the server reads and writes directly. Cheap to clone; clones are the same memory.
///
/// It may be dropped while operations use it: the memory stays until they are over. What is in it
/// while an operation is in flight is anybody's guess, so it is only seen through
/// [`VolatileSlice`].
///
/// Over shared memory the server may still write what a lost session was asking for. After an
/// operation failed because the session ended, or by its deadline, drop the buffers that
/// [`Client::buffer`] made, which is safe at any time, and put no other data in them.
#[derive(Debug, Clone)]
pub struct IoBuffer {
    // Dropped before `_borrowed`, which relies on that.
    memory: Arc<RegisteredMemory>,
    _borrowed: Option<Borrowed>,
}

/// A handle on memory of the caller's. Its end ends the registration if it was the last one.
#[derive(Debug, Clone)]
struct Borrowed {
    shared: Weak<Shared>,
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        // Without the session there is no registration either.
        if let Some(shared) = self.shared.upgrade() {
            shared.reap();
        }
    }
}

impl IoBuffer {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// True when there is no byte in it.
    pub fn is_empty(&self) -> bool {
        self.memory.is_empty()
    }

    /// The whole memory.
    pub fn view(&self) -> VolatileSlice<'_> {
        self.memory.view()
    }

    /// `len` bytes from `offset`; `None` if they are not inside.
    pub fn slice(&self, offset: usize, len: usize) -> Option<VolatileSlice<'_>> {
        self.memory.slice(offset, len)
    }

    /// True while an operation uses the memory, or there is another clone.
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.memory) > 1
    }

    pub(crate) fn memory(&self) -> &Arc<RegisteredMemory> {
        &self.memory
    }
}

impl Client {
    /// Allocates and registers `bytes` of zeroed memory where this client's transport moves data
    /// fastest.
    ///
    /// # Errors
    /// No memory, or the session is over.
    pub fn buffer(&self, bytes: usize) -> Result<IoBuffer> {
        allocate(self.shared(), bytes)
    }

    /// Registers memory of the caller's, for use in place. Over shared memory the server cannot
    /// reach it directly, so [`Client::buffer`] is faster there.
    ///
    /// # Safety
    /// `bytes` bytes at `address` must stay mapped, readable and writable until the buffer, its
    /// clones and every operation on them are gone, and nobody may hold a Rust reference into them
    /// while an operation is in flight.
    ///
    /// # Errors
    /// Too many registrations, or the session is over.
    pub unsafe fn register(&self, address: *mut u8, bytes: usize) -> Result<IoBuffer> {
        // SAFETY: the caller's promise is that of `Buffer::borrowed`.
        let buffer = unsafe { Buffer::borrowed(address, bytes) };
        let mut driver = self.shared().lock()?;
        let memory = driver.register(Arc::new(buffer)).map_err(|e| self.shared().failed(&e))?;
        let borrowed = Borrowed { shared: Arc::downgrade(self.shared()) };
        Ok(IoBuffer { memory, _borrowed: Some(borrowed) })
    }
}

pub(crate) fn allocate(shared: &Shared, bytes: usize) -> Result<IoBuffer> {
    let mut driver = shared.lock()?;
    let buffer = driver.allocate(bytes).map_err(|e| Error::Memory(e.to_string().into()))?;
    let memory = driver.register(buffer).map_err(|e| shared.failed(&e))?;
    Ok(IoBuffer { memory, _borrowed: None })
}
