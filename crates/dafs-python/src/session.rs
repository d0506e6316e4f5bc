//! A session.

use crate::memory::Span;
use dafs_client::{Client, ConnectOptions, DafsUrl, Error, IoBuffer, TransportKind};
use dafs_mem::Mutex;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard};

/// A session of this process.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) client: Client,
    /// The path of the URL, without a slash at the end.
    pub(crate) base: Vec<u8>,
    /// The client caches content, so that reads are better copied from the cache.
    pub(crate) is_cached: bool,
    /// Registered memory that Python has, by address. Its owner removes it. Only locked with the
    /// GIL held.
    known: Mutex<BTreeMap<usize, Registered>>,
}

/// Memory of this process, by address, that servers of any session may write to even after an
/// operation has been given up: its length, and true if that has happened. Only locked with the GIL
/// held, so that a fork finds it free.
static SHARED: Mutex<BTreeMap<usize, (usize, Arc<AtomicBool>)>> = Mutex::new(BTreeMap::new());

fn shared() -> MutexGuard<'static, BTreeMap<usize, (usize, Arc<AtomicBool>)>> {
    SHARED.lock()
}

/// A part of registered memory.
#[derive(Debug, Clone)]
pub(crate) struct Registered {
    pub(crate) buffer: IoBuffer,
    pub(crate) range: Range<usize>,
    /// For memory that a server may write to even after an operation has been given up: true if
    /// that has happened. Shared by all parts of it.
    spent: Option<Arc<AtomicBool>>,
}

impl Registered {
    /// All of a client's buffer over shared memory.
    pub(crate) fn shared(buffer: IoBuffer) -> Self {
        let range = 0..buffer.len();
        Self { buffer, range, spent: Some(Arc::default()) }
    }

    /// Memory that the server cannot access after the operation, however that ended.
    pub(crate) fn borrowed(buffer: IoBuffer, range: Range<usize>) -> Self {
        Self { buffer, range, spent: None }
    }

    /// Notes the result of an operation on it.
    pub(crate) fn note<T>(&self, result: &Result<T, Error>) {
        if let (Some(spent), Err(Error::Deadline { .. } | Error::Lost { .. })) =
            (&self.spent, result)
        {
            spent.store(true, Ordering::Relaxed);
        }
    }
}

impl Session {
    pub(crate) fn connect(url: &DafsUrl, options: &ConnectOptions) -> dafs_client::Result<Self> {
        let client = Client::connect(url, options)?;
        let mut base = url.path().to_vec();
        while base.last() == Some(&b'/') {
            base.pop();
        }
        let is_cached = options.cache.is_some();
        Ok(Self { client, base, is_cached, known: Mutex::default() })
    }

    /// True if memory other than the client's own is accessed by copying.
    pub(crate) fn copies_foreign_memory(&self) -> bool {
        self.client.transport().kind == TransportKind::Shm
    }

    /// Enters a registration, for operations on memory at `address`.
    pub(crate) fn add(&self, address: usize, own: &Registered) {
        self.known.lock().insert(address, own.clone());
    }

    /// Removes a registration. Drop the returned value without the GIL.
    pub(crate) fn remove(&self, address: usize, own: &Registered) -> Option<Registered> {
        let mut known = self.known.lock();
        // Another owner may have registered the same memory again.
        let is_same = known.get(&address)?.buffer.view().as_ptr() == own.buffer.view().as_ptr();
        if is_same { known.remove(&address) } else { None }
    }

    /// Notes that Python has got the memory of a buffer.
    pub(crate) fn remember(address: usize, own: &Registered) {
        if let Some(spent) = &own.spent {
            shared().insert(address, (own.range.len(), spent.clone()));
        }
    }

    /// Notes that Python has it no longer.
    pub(crate) fn forget(address: usize) {
        shared().remove(&address);
    }

    /// Checks that memory may be used, by this session or another.
    ///
    /// # Errors
    /// `BufferError`: a server may still write to it.
    pub(crate) fn check(span: Span) -> PyResult<()> {
        let end = span.address().saturating_add(span.len());
        match shared().range(..end).next_back() {
            Some((start, (len, spent)))
                if start + len > span.address() && spent.load(Ordering::Relaxed) =>
            {
                Err(PyBufferError::new_err(
                    "the server may still write to this buffer, for an operation that was given up; \
                     use a new one",
                ))
            }
            _ => Ok(()),
        }
    }

    /// The registration of some memory.
    ///
    /// # Errors
    /// `BufferError`: it must not be used any more.
    pub(crate) fn own(&self, span: Span) -> PyResult<Option<Registered>> {
        Self::check(span)?;
        let known = self.known.lock();
        let Some((start, own)) = known.range(..=span.address()).next_back() else {
            return Ok(None);
        };
        let at = own.range.start + (span.address() - start);
        let Some(end) = at.checked_add(span.len()).filter(|end| *end <= own.range.end) else {
            return Ok(None);
        };
        Ok(Some(Registered { range: at..end, ..own.clone() }))
    }
}
