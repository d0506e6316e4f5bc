//! Registered buffers of the application.
//!
//! Invariants
//! * When the last handle on borrowed memory is gone, and no operation uses it, the server cannot
//!   reach it any more.

use crate::client::Client;
use crate::core::RegisteredMemory;
use crate::driver::Shared;
use crate::error::{Error, Result};
use crate::fork::ForkMutex;
use dafs_mem::{Buffer, Condvar, VolatileSlice};
use std::sync::{Arc, Weak};

/// Memory that the server reads and writes directly. Cheap to clone; clones are the same memory.
///
/// It may be dropped while operations use it: the memory stays until they are over. Its content is
/// undefined while an operation is in flight, so it is only seen through [`VolatileSlice`].
///
/// Over shared memory the server may still write data that a lost session had requested. After an
/// operation failed because the session ended, or by its deadline, drop the buffers that
/// [`Client::buffer`] made, which is safe at any time, and put no other data in them.
#[derive(Debug, Clone)]
pub struct IoBuffer {
    // Dropped before `_borrowed`, which relies on that.
    memory: Arc<RegisteredMemory>,
    _borrowed: Option<Borrowed>,
}

/// A handle on memory of the caller's. The last handle ends the registration when it is dropped.
#[derive(Debug, Clone)]
struct Borrowed {
    shared: Weak<Shared>,
    end: Arc<End>,
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        match self.shared.upgrade() {
            Some(shared) => shared.reap(),
            // The session is ending: its registrations are over once it is gone altogether.
            None => self.end.wait(),
        }
    }
}

/// The end of a session's last reference: its registrations end with it, which takes a moment.
#[derive(Debug, Default)]
pub(crate) struct End {
    come: ForkMutex<bool>,
    changed: Condvar,
}

/// Announces the end when it is dropped.
pub(crate) struct Ending<'a>(pub(crate) &'a End);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        // A fork has no registrations.
        if let Ok(mut come) = self.0.come.lock() {
            *come = true;
            self.0.changed.notify_all();
        }
    }
}

impl End {
    fn wait(&self) {
        if let Ok(come) = self.come.lock() {
            drop(self.changed.wait_while(come, |come| !*come));
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

    /// True when it was registered in this session.
    pub(crate) fn is_of(&self, shared: &Shared) -> bool {
        shared.lock().is_ok_and(|driver| driver.core().owns(&self.memory))
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
    /// clones and every operation on them are gone. No Rust reference into them may exist while an
    /// operation is in flight.
    ///
    /// # Errors
    /// Too many registrations, or the session is over.
    pub unsafe fn register(&self, address: *mut u8, bytes: usize) -> Result<IoBuffer> {
        // SAFETY: the caller's promise is the one that `Buffer::borrowed` asks for.
        let buffer = unsafe { Buffer::borrowed(address, bytes) };
        let mut driver = self.shared().lock()?;
        let memory = driver.register(Arc::new(buffer)).map_err(|e| self.shared().failed(&e))?;
        let end = self.shared().end().clone();
        let borrowed = Borrowed { shared: Arc::downgrade(self.shared()), end };
        Ok(IoBuffer { memory, _borrowed: Some(borrowed) })
    }
}

pub(crate) fn allocate(shared: &Shared, bytes: usize) -> Result<IoBuffer> {
    let mut driver = shared.lock()?;
    let buffer = driver.allocate(bytes).map_err(|e| Error::Memory(e.to_string().into()))?;
    let memory = driver.register(buffer).map_err(|e| shared.failed(&e))?;
    Ok(IoBuffer { memory, _borrowed: None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::served::connected;
    use std::sync::mpsc;
    use std::time::Duration;

    #[test]
    fn the_last_handle_waits_for_the_end_of_the_session() {
        let (_served, client) = connected();
        let mut memory = vec![0u8; 4096];
        // SAFETY: it outlives the buffer, and is never transferred.
        let buffer = unsafe { client.register(memory.as_mut_ptr(), memory.len()).unwrap() };
        let borrowed = buffer._borrowed.clone().unwrap();
        drop(client);
        // Dropping the client ends the session, as others see it: the session does not wait for
        // buffers.
        drop(buffer);
        // The drop of a handle while the session is still ending.
        let ending = Borrowed { shared: Weak::new(), end: Arc::default() };
        assert!(!Arc::ptr_eq(&ending.end, &borrowed.end));
        let end = ending.end.clone();
        let (tell, told) = mpsc::channel();
        let last = std::thread::spawn(move || {
            drop(ending);
            tell.send(()).unwrap();
        });
        let early = told.recv_timeout(Duration::from_millis(50));
        assert!(early.is_err(), "the server might still reach it");
        drop(Ending(&end));
        told.recv().unwrap();
        last.join().unwrap();
    }
}
