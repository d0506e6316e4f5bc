//! A cache of registrations for local work, which outlive their regions: pinning memory is slow,
//! and programs register the same buffers again.
//!
//! Only registrations without rights for peers are cached. A registration that a peer may use ends
//! with its region, so that its key is refused at once.
//!
//! Invariants
//! * A buffer is registered once for each domain and right, even if it has several regions.
//! * Registrations without a region stay below a budget of bytes and a number; the least recently
//!   used is dropped first. A registration whose buffer has no other holder is not cached.
//! * Posted work holds its registrations, so that one that leaves the cache ends after the work.

use super::limits::IDLE_REGISTRATION_COUNT_MAX;
use crate::ProtectionDomain;
use dafs_mem::Buffer;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Debug)]
pub(super) struct Registered<M> {
    // Dropped first: the memory must outlive the registration.
    pub(super) registration: M,
    pub(super) buffer: Arc<Buffer>,
}

/// The identity of a registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key {
    domain: ProtectionDomain,
    /// The address of the buffer's object. Two buffers may borrow the same addresses, and other pages
    /// may have been mapped there in between.
    buffer: usize,
    len: usize,
    writable: bool,
}

impl Key {
    pub(super) fn new(domain: ProtectionDomain, buffer: &Buffer, writable: bool) -> Self {
        Self { domain, buffer: std::ptr::from_ref(buffer).addr(), len: buffer.len(), writable }
    }
}

#[derive(Debug)]
struct Entry<M> {
    registered: Arc<Registered<M>>,
    /// Regions that use it.
    user_count: usize,
    /// Its age among the idle ones.
    idle_since: u64,
}

/// The registrations of one adapter.
#[derive(Debug)]
pub(super) struct Cache<M> {
    entries: FxHashMap<Key, Entry<M>>,
    /// Registrations without a user, least recently used first.
    idle: BTreeMap<u64, Key>,
    idle_bytes: usize,
    idle_bytes_max: usize,
    turn: u64,
}

impl<M> Cache<M> {
    pub(super) fn new(idle_bytes_max: usize) -> Self {
        Self {
            entries: FxHashMap::default(),
            idle: BTreeMap::new(),
            idle_bytes: 0,
            idle_bytes_max,
            turn: 0,
        }
    }

    /// Returns the registration of this buffer for one more user; `register` makes it if there is
    /// none. If that fails while some are idle, drops those and retries.
    pub(super) fn take<E>(
        &mut self,
        domain: ProtectionDomain,
        buffer: &Arc<Buffer>,
        writable: bool,
        mut register: impl FnMut() -> Result<M, E>,
    ) -> Result<Arc<Registered<M>>, E> {
        self.sweep();
        let key = Key::new(domain, buffer, writable);
        if let Some(entry) = self.entries.get_mut(&key) {
            if entry.user_count == 0 {
                self.idle.remove(&entry.idle_since);
                self.idle_bytes -= key.len;
            }
            entry.user_count += 1;
            return Ok(entry.registered.clone());
        }
        let registration = match register() {
            Err(_) if !self.idle.is_empty() => {
                self.shrink(0, 0);
                register()?
            }
            result => result?,
        };
        let registered = Arc::new(Registered { registration, buffer: buffer.clone() });
        let entry = Entry { registered: registered.clone(), user_count: 1, idle_since: 0 };
        self.entries.insert(key, entry);
        Ok(registered)
    }

    /// Removes one user.
    pub(super) fn give_back(&mut self, key: Key) {
        let Some(entry) = self.entries.get_mut(&key) else {
            debug_assert!(false, "what is given back was taken");
            return;
        };
        debug_assert!(entry.user_count > 0);
        entry.user_count -= 1;
        if entry.user_count > 0 {
            return;
        }
        self.turn += 1;
        entry.idle_since = self.turn;
        self.idle.insert(self.turn, key);
        self.idle_bytes += key.len;
        self.sweep();
        self.shrink(self.idle_bytes_max, IDLE_REGISTRATION_COUNT_MAX);
    }

    /// Drops idle registrations of buffers that only this cache holds, which cannot be registered
    /// again.
    pub(super) fn sweep(&mut self) {
        let entries = &mut self.entries;
        let idle_bytes = &mut self.idle_bytes;
        self.idle.retain(|_, key| {
            let is_known = entries.get(key).is_some_and(|entry| {
                let registered = &entry.registered;
                Arc::strong_count(registered) > 1 || Arc::strong_count(&registered.buffer) > 1
            });
            if !is_known {
                entries.remove(key);
                *idle_bytes -= key.len;
            }
            is_known
        });
    }

    /// Drops the least recently used until both limits hold.
    fn shrink(&mut self, bytes: usize, count: usize) {
        while self.idle_bytes > bytes || self.idle.len() > count {
            let Some((_, key)) = self.idle.pop_first() else { return };
            self.idle_bytes -= key.len;
            self.entries.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::rc::Rc;

    /// A registration that counts the live ones.
    struct Fake(Rc<Cell<usize>>);

    impl Drop for Fake {
        fn drop(&mut self) {
            self.0.set(self.0.get() - 1);
        }
    }

    struct Device {
        alive: Rc<Cell<usize>>,
        made: usize,
        room: usize,
    }

    impl Device {
        fn register(&mut self) -> Result<Fake, ()> {
            if self.alive.get() >= self.room {
                return Err(());
            }
            self.made += 1;
            self.alive.set(self.alive.get() + 1);
            Ok(Fake(self.alive.clone()))
        }
    }

    const DOMAIN: ProtectionDomain = ProtectionDomain(1);

    fn device() -> Device {
        Device { alive: Rc::default(), made: 0, room: usize::MAX }
    }

    fn buffer(bytes: usize) -> Arc<Buffer> {
        Arc::new(Buffer::zeroed(bytes).unwrap())
    }

    fn take(cache: &mut Cache<Fake>, device: &mut Device, buffer: &Arc<Buffer>) -> Key {
        cache.take(DOMAIN, buffer, true, || device.register()).unwrap();
        Key::new(DOMAIN, buffer, true)
    }

    #[test]
    fn the_same_buffer_is_registered_once() {
        let (mut cache, mut device, buffer) = (Cache::new(1 << 20), device(), buffer(4096));
        let key = take(&mut cache, &mut device, &buffer);
        take(&mut cache, &mut device, &buffer);
        assert_eq!(device.made, 1);
        // Another right or domain is another registration.
        cache.take(DOMAIN, &buffer, false, || device.register()).unwrap();
        cache.take(ProtectionDomain(2), &buffer, true, || device.register()).unwrap();
        assert_eq!(device.made, 3);
        cache.give_back(key);
        cache.give_back(key);
        assert_eq!(device.alive.get(), 3, "it stays");
        take(&mut cache, &mut device, &buffer);
        assert_eq!(device.made, 3, "and is used again");
        assert_eq!(cache.idle_bytes, 0);
    }

    #[test]
    fn memory_that_is_borrowed_again_is_registered_again() {
        let (mut cache, mut device, memory) = (Cache::new(1 << 20), device(), buffer(4096));
        let borrow = || {
            // SAFETY: the memory outlives both, and nothing is transferred.
            Arc::new(unsafe { Buffer::borrowed(memory.as_ptr(), memory.len()) })
        };
        let (one, other) = (borrow(), borrow());
        take(&mut cache, &mut device, &one);
        take(&mut cache, &mut device, &other);
        assert_eq!(device.made, 2);
    }

    #[test]
    fn the_longest_idle_goes_when_the_budget_is_used_up() {
        let (mut cache, mut device) = (Cache::new(8192), device());
        let buffers = [buffer(4096), buffer(4096), buffer(4096)];
        let keys = [0, 1, 2].map(|i| take(&mut cache, &mut device, &buffers[i]));
        assert_eq!(device.alive.get(), 3);
        cache.give_back(keys[1]);
        cache.give_back(keys[0]);
        cache.give_back(keys[2]);
        assert_eq!((device.alive.get(), cache.idle_bytes), (2, 8192));
        take(&mut cache, &mut device, &buffers[0]);
        take(&mut cache, &mut device, &buffers[2]);
        assert_eq!(device.made, 3);
        take(&mut cache, &mut device, &buffers[1]);
        assert_eq!(device.made, 4);
        // A buffer above the whole budget is never cached.
        let large = buffer(8193);
        let key = take(&mut cache, &mut device, &large);
        cache.give_back(key);
        assert_eq!((device.alive.get(), cache.idle_bytes), (3, 0));
    }

    #[test]
    fn the_number_of_idle_ones_is_bounded() {
        let (mut cache, mut device) = (Cache::new(usize::MAX), device());
        let buffers: Vec<_> = (0..IDLE_REGISTRATION_COUNT_MAX + 5).map(|_| buffer(1)).collect();
        for buffer in &buffers {
            let key = take(&mut cache, &mut device, buffer);
            cache.give_back(key);
        }
        assert_eq!(device.alive.get(), IDLE_REGISTRATION_COUNT_MAX);
    }

    #[test]
    fn a_buffer_that_nobody_has_is_not_kept() {
        let (mut cache, mut device) = (Cache::new(1 << 20), device());
        let (one, other) = (buffer(4096), buffer(4096));
        let key = take(&mut cache, &mut device, &one);
        cache.give_back(key);
        assert_eq!(device.alive.get(), 1);
        drop(one);
        take(&mut cache, &mut device, &other);
        assert_eq!((device.alive.get(), cache.idle_bytes), (1, 0));
    }

    #[test]
    fn posted_work_keeps_what_it_uses() {
        let (mut cache, mut device) = (Cache::new(0), device());
        let buffer = buffer(4096);
        let held = cache.take(DOMAIN, &buffer, true, || device.register()).unwrap();
        cache.give_back(Key::new(DOMAIN, &buffer, true));
        drop(buffer);
        assert_eq!(device.alive.get(), 1);
        drop(held);
        assert_eq!(device.alive.get(), 0);
    }

    #[test]
    fn idle_ones_make_room_for_one_that_does_not_fit() {
        let (mut cache, mut device) = (Cache::new(1 << 20), device());
        device.room = 1;
        let (one, other) = (buffer(4096), buffer(4096));
        let key = take(&mut cache, &mut device, &one);
        assert!(cache.take(DOMAIN, &other, true, || device.register()).is_err());
        cache.give_back(key);
        take(&mut cache, &mut device, &other);
        assert_eq!((device.made, device.alive.get()), (2, 1));
    }
}
