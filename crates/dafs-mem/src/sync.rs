//! Locks that a panic does not poison.
//!
//! Invariants
//! * After a panic of a thread that held a lock, the state behind it is that of the last complete
//!   statement. The users of these locks accept that.

use std::sync::{
    LockResult, MutexGuard, PoisonError, RwLockReadGuard, RwLockWriteGuard, TryLockError,
    TryLockResult, WaitTimeoutResult,
};
use std::time::Duration;

fn whole<T>(locked: LockResult<T>) -> T {
    locked.unwrap_or_else(PoisonError::into_inner)
}

fn if_free<T>(tried: TryLockResult<T>) -> Option<T> {
    match tried {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(guard)) => Some(guard.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// A [`std::sync::Mutex`] without poison.
#[derive(Debug, Default)]
pub struct Mutex<T: ?Sized>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    /// Makes a mutex with a value.
    pub const fn new(value: T) -> Self {
        Self(std::sync::Mutex::new(value))
    }

    /// Takes the value out.
    pub fn into_inner(self) -> T {
        whole(self.0.into_inner())
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits for the lock.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        whole(self.0.lock())
    }

    /// Takes the lock if that needs no wait.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        if_free(self.0.try_lock())
    }

    /// Returns the value, which no other thread can use.
    pub fn get_mut(&mut self) -> &mut T {
        whole(self.0.get_mut())
    }
}

/// A [`std::sync::RwLock`] without poison.
#[derive(Debug, Default)]
pub struct RwLock<T: ?Sized>(std::sync::RwLock<T>);

impl<T> RwLock<T> {
    /// Makes a lock with a value.
    pub const fn new(value: T) -> Self {
        Self(std::sync::RwLock::new(value))
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Waits for a shared lock.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        whole(self.0.read())
    }

    /// Waits for the exclusive lock.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        whole(self.0.write())
    }

    /// Takes a shared lock if that needs no wait.
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        if_free(self.0.try_read())
    }

    /// Takes the exclusive lock if that needs no wait.
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        if_free(self.0.try_write())
    }

    /// Returns the value, which no other thread can use.
    pub fn get_mut(&mut self) -> &mut T {
        whole(self.0.get_mut())
    }
}

/// A [`std::sync::Condvar`] for a [`Mutex`].
#[derive(Debug, Default)]
pub struct Condvar(std::sync::Condvar);

impl Condvar {
    /// Makes a condition variable.
    pub const fn new() -> Self {
        Self(std::sync::Condvar::new())
    }

    /// Wakes all waiting threads.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }

    /// Wakes one waiting thread.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Waits until another thread notifies, or for no reason.
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        whole(self.0.wait(guard))
    }

    /// Waits while a condition holds.
    pub fn wait_while<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        condition: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T> {
        whole(self.0.wait_while(guard, condition))
    }

    /// Waits like [`wait`](Self::wait), for a limited time.
    pub fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        limit: Duration,
    ) -> (MutexGuard<'a, T>, WaitTimeoutResult) {
        whole(self.0.wait_timeout(guard, limit))
    }

    /// Waits while a condition holds, for a limited time.
    pub fn wait_timeout_while<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        limit: Duration,
        condition: impl FnMut(&mut T) -> bool,
    ) -> (MutexGuard<'a, T>, WaitTimeoutResult) {
        whole(self.0.wait_timeout_while(guard, limit, condition))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;

    #[test]
    fn locks_are_usable_after_a_panic() {
        let (mutex, lock) = (Mutex::new(1), RwLock::new(1));
        let failed = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let _guards = (mutex.lock(), lock.write());
                panic!("on purpose");
            });
            thread.join().is_err()
        });
        assert!(failed);
        assert_eq!((*mutex.lock(), *lock.read()), (1, 1));
        assert!(lock.try_read().is_some() && lock.try_write().is_some());
        assert!(mutex.try_lock().is_some() && mutex.into_inner() == 1);
    }
}
