//! How much all locks with recovery may take, and how much of that one client may.
//!
//! Clients are told apart by their names, as where locks are kept: a client that comes back under the
//! same name still has what its older instances have left behind.
//!
//! Invariants
//! * What is taken is given back once, when the lock is kept or undone; what earlier runs have left is
//!   counted like everything else.
//! * One client leaves room for others.

use crate::Result;
use crate::error::ServiceError;
use crate::limits::{
    UNDO_BYTES_MAX, UNDO_BYTES_PER_CLIENT_MAX, UNDO_BYTES_PER_LOCK_MAX, UNDO_LOCKS_MAX,
    UNDO_LOCKS_PER_CLIENT_MAX,
};
use dafs_store::StoreError;
use rustc_hash::FxHashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What is taken.
#[derive(Default)]
pub(super) struct Room(Mutex<Taken>);

#[derive(Default)]
struct Taken {
    all: Share,
    clients: FxHashMap<Box<[u8]>, Share>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Share {
    locks: usize,
    bytes: u64,
}

/// The room of one lock, given back when it goes.
pub(super) struct LockRoom<'a> {
    room: &'a Room,
    client: &'a [u8],
    kept: bool,
}

impl LockRoom<'_> {
    /// The lock is had; its room is given back with [`Room::give_lock`].
    pub(super) fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for LockRoom<'_> {
    fn drop(&mut self) {
        if !self.kept {
            self.room.give_lock(self.client, 0);
        }
    }
}

impl Room {
    /// Takes the room of another lock of a client.
    ///
    /// # Errors
    /// `Resource` when the client, or all together, have as many as they may.
    pub(super) fn take_lock<'a>(&'a self, client: &'a [u8]) -> Result<LockRoom<'a>> {
        let mut taken = self.lock();
        let own = taken.clients.get(client).map_or(0, |share| share.locks);
        if taken.all.locks >= UNDO_LOCKS_MAX || own >= UNDO_LOCKS_PER_CLIENT_MAX {
            return Err(ServiceError::Resource);
        }
        taken.add(client, Share { locks: 1, bytes: 0 });
        Ok(LockRoom { room: self, client, kept: false })
    }

    /// Counts a lock that an earlier run has left, with what was saved for it.
    pub(super) fn count_left(&self, client: &[u8], bytes: u64) {
        self.lock().add(client, Share { locks: 1, bytes });
    }

    /// Gives back a lock, with what was saved for it.
    pub(super) fn give_lock(&self, client: &[u8], bytes: u64) {
        self.lock().remove(client, Share { locks: 1, bytes });
    }

    /// Takes room to save `more` bytes for a lock of a client that has `held` bytes.
    ///
    /// # Errors
    /// `Quota` when the client has as many as it may for all its locks; `NoSpace` when the lock has,
    /// or all locks together have.
    pub(super) fn take_bytes(&self, client: &[u8], held: u64, more: u64) -> dafs_store::Result<()> {
        let mut taken = self.lock();
        let own = taken.clients.get(client).map_or(0, |share| share.bytes);
        if held + more > UNDO_BYTES_PER_LOCK_MAX || taken.all.bytes + more > UNDO_BYTES_MAX {
            return Err(StoreError::NoSpace);
        }
        if own + more > UNDO_BYTES_PER_CLIENT_MAX {
            return Err(StoreError::Quota);
        }
        taken.add(client, Share { locks: 0, bytes: more });
        Ok(())
    }

    /// Gives back bytes of a lock that goes on.
    pub(super) fn give_bytes(&self, client: &[u8], bytes: u64) {
        self.lock().remove(client, Share { locks: 0, bytes });
    }

    /// Bytes of all.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> u64 {
        self.lock().all.bytes
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        // Nothing in here panics but assertions, which leave it whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Taken {
    fn add(&mut self, client: &[u8], more: Share) {
        let add = |share: &mut Share| {
            share.locks += more.locks;
            share.bytes += more.bytes;
        };
        add(&mut self.all);
        match self.clients.get_mut(client) {
            Some(share) => add(share),
            None => drop(self.clients.insert(client.into(), more)),
        }
    }

    fn remove(&mut self, client: &[u8], less: Share) {
        let remove = |share: &mut Share| {
            debug_assert!(
                share.locks >= less.locks && share.bytes >= less.bytes,
                "given back twice"
            );
            share.locks = share.locks.saturating_sub(less.locks);
            share.bytes = share.bytes.saturating_sub(less.bytes);
        };
        remove(&mut self.all);
        let Some(share) = self.clients.get_mut(client) else { return };
        remove(share);
        if *share == Share::default() {
            self.clients.remove(client);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCK: u64 = UNDO_BYTES_PER_LOCK_MAX;

    #[test]
    fn one_client_does_not_take_all_locks() {
        let room = Room::default();
        let take = |client| room.take_lock(client).map(LockRoom::keep);
        (0..UNDO_LOCKS_PER_CLIENT_MAX).for_each(|_| take(b"greedy").unwrap());
        assert_eq!(take(b"greedy"), Err(ServiceError::Resource));
        take(b"other").unwrap();
        room.give_lock(b"greedy", 0);
        // One that comes to nothing leaves nothing.
        drop(room.take_lock(b"greedy").unwrap());
        take(b"greedy").unwrap();
        for client in [b"c", b"d"] {
            (0..UNDO_LOCKS_PER_CLIENT_MAX).for_each(|_| take(client).unwrap());
        }
        (1..UNDO_LOCKS_PER_CLIENT_MAX).for_each(|_| take(b"other").unwrap());
        assert_eq!(take(b"another"), Err(ServiceError::Resource), "there is a bound for all");
    }

    #[test]
    fn one_client_does_not_take_all_bytes() {
        let room = Room::default();
        let locks = UNDO_BYTES_PER_CLIENT_MAX / LOCK;
        for _ in 0..locks {
            room.take_lock(b"greedy").map(LockRoom::keep).unwrap();
            assert_eq!(room.take_bytes(b"greedy", 0, LOCK), Ok(()));
            assert_eq!(room.take_bytes(b"greedy", LOCK, 1), Err(StoreError::NoSpace));
        }
        assert_eq!(room.take_bytes(b"greedy", 0, 1), Err(StoreError::Quota));
        assert_eq!(room.take_bytes(b"other", 0, 1), Ok(()));
        room.give_bytes(b"other", 1);
        // What an earlier run has left counts, too.
        let left = UNDO_BYTES_MAX - UNDO_BYTES_PER_CLIENT_MAX;
        room.count_left(b"left", left);
        assert_eq!(room.take_bytes(b"other", 0, 1), Err(StoreError::NoSpace));
        room.give_lock(b"left", left);
        (0..locks).for_each(|_| room.give_lock(b"greedy", LOCK));
        assert!(room.bytes() == 0 && room.lock().clients.is_empty());
    }
}
