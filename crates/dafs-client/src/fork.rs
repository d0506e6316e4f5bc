//! Detection of forks, and locks that a fork never takes.
//!
//! A system call per operation to ask for the process id would cost more than the check is worth.
//! The kernel empties a page of ours in every child instead, however the child was made.
//!
//! Invariants
//! * A fork takes no lock that its parent made: a thread that the fork lacks may have held it, and
//!   would hold it for ever.
//! * A fork drops nothing that such a lock protects: it may be half changed.

use crate::error::{Error, Result};
use dafs_mem::{Mutex, RwLock};
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};

/// The number of this process; zero in one that has just been forked.
static CURRENT: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());

/// In place of the page, on a kernel that wipes no page in a child.
static TOLD: AtomicU32 = AtomicU32::new(0);

/// The last number that this process or its ancestors have had.
static LAST: AtomicU32 = AtomicU32::new(0);

extern "C" fn in_child() {
    TOLD.store(0, Ordering::Relaxed);
}

/// A number that differs between a process and its forks.
pub(crate) fn count() -> u32 {
    let mut current = CURRENT.load(Ordering::Acquire);
    if current.is_null() {
        current = install();
    }
    // SAFETY: the pointer is to a static or to a page that is never unmapped, both aligned for the
    // number and only used as an atomic. A child may find it wiped, which is a valid number.
    let current = unsafe { &*current };
    match current.load(Ordering::Relaxed) {
        0 => number(current),
        number => number,
    }
}

/// Gives this process its number.
#[cold]
fn number(current: &AtomicU32) -> u32 {
    let next = LAST.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
    match current.compare_exchange(0, next, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => next,
        Err(known) => known,
    }
}

/// Without `Once`, on which a fork would deadlock waiting for a thread that it lacks.
#[cold]
fn install() -> *mut AtomicU32 {
    let new = emptied_page().unwrap_or_else(|| {
        // SAFETY: the handler only stores to an atomic, which is allowed in a forked child. If it
        // cannot be installed either, forks are not detected.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        std::ptr::from_ref(&TOLD).cast_mut()
    });
    let null = std::ptr::null_mut();
    match CURRENT.compare_exchange(null, new, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => new,
        // Another thread won the race; this thread's page, if it is one, is never used.
        Err(known) => known,
    }
}

/// A page that the kernel wipes in every child.
fn emptied_page() -> Option<*mut AtomicU32> {
    const BYTES: usize = 4096;
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE);
    // SAFETY: a new private mapping; the advice concerns that alone. It is never unmapped.
    unsafe {
        let flags = flags | libc::MAP_ANONYMOUS;
        let page = libc::mmap(std::ptr::null_mut(), BYTES, protection, flags, -1, 0);
        if page == libc::MAP_FAILED || libc::madvise(page, BYTES, libc::MADV_WIPEONFORK) != 0 {
            return None;
        }
        Some(page.cast())
    }
}

/// A value that no fork of the process that made it uses or drops.
#[derive(Debug)]
struct Own<T> {
    forks: u32,
    value: ManuallyDrop<T>,
}

impl<T> Own<T> {
    fn new(value: T) -> Self {
        Self { forks: count(), value: ManuallyDrop::new(value) }
    }

    /// Returns the value, `None` in a fork.
    fn get(&self) -> Option<&T> {
        if self.forks == count() { Some(&self.value) } else { None }
    }
}

impl<T> Drop for Own<T> {
    fn drop(&mut self) {
        if self.forks == count() {
            // SAFETY: dropped once, here, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

/// A mutex that only the process that made it can lock.
#[derive(Debug)]
pub(crate) struct ForkMutex<T>(Own<Mutex<T>>);

impl<T> ForkMutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Own::new(Mutex::new(value)))
    }

    /// # Errors
    /// [`Error::Forked`], without waiting.
    pub(crate) fn lock(&self) -> Result<MutexGuard<'_, T>> {
        // The protected data is consistent between any two steps, so poison is ignored.
        Ok(self.0.get().ok_or(Error::Forked)?.lock())
    }

    /// Without waiting: `None` while another thread has it, and in a fork.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.get()?.try_lock()
    }

    /// For callers who have made sure that this is no fork.
    ///
    /// # Panics
    /// In a fork, where waiting would be a deadlock.
    pub(crate) fn lock_here(&self) -> MutexGuard<'_, T> {
        // INVARIANT: every entry point of the application has checked before.
        self.lock().expect("the caller has made sure that this is no fork")
    }
}

impl<T: Default> Default for ForkMutex<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

/// A lock for readers and writers that only the process that made it can take.
#[derive(Debug)]
pub(crate) struct ForkRwLock<T>(Own<RwLock<T>>);

impl<T> ForkRwLock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Own::new(RwLock::new(value)))
    }

    /// Without waiting: `None` while another thread writes, and in a fork.
    pub(crate) fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        self.0.get()?.try_read()
    }

    /// For callers who have made sure that this is no fork.
    ///
    /// # Panics
    /// In a fork, where waiting would be a deadlock.
    pub(crate) fn read_here(&self) -> RwLockReadGuard<'_, T> {
        self.here().read()
    }

    /// As [`read_here`](Self::read_here), to change the value.
    ///
    /// # Panics
    /// In a fork.
    pub(crate) fn write_here(&self) -> RwLockWriteGuard<'_, T> {
        self.here().write()
    }

    fn here(&self) -> &RwLock<T> {
        // INVARIANT: every entry point of the application has checked before.
        self.0.get().expect("the caller has made sure that this is no fork")
    }
}

impl<T: Default> Default for ForkRwLock<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

#[cfg(test)]
mod tests;
