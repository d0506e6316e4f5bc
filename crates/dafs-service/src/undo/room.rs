//! The room for all locks with recovery, and the shares of clients and hosts in it.
//!
//! Clients are identified by their names, as in the table of kept locks: a client that comes back
//! under the same name still has the room that its older instances have taken.
//!
//! Invariants
//! * Room is returned exactly once, when the lock is kept or undone. Logs of earlier runs count
//!   like all others.
//! * One client leaves room for others, and so does one host with all its clients.

use crate::Result;
use crate::error::ServiceError;
use crate::hosts::{ByName, Host};
use crate::limits::{
    UNDO_BYTES_MAX, UNDO_BYTES_PER_CLIENT_MAX, UNDO_BYTES_PER_LOCK_MAX, UNDO_LOCKS_MAX,
    UNDO_LOCKS_PER_CLIENT_MAX,
};
use dafs_mem::Mutex;
use dafs_store::StoreError;

/// The room that is taken.
#[derive(Default)]
pub(super) struct Room(Mutex<Taken>);

#[derive(Default)]
struct Taken {
    locks: Counted,
    bytes: Counted,
}

/// A count, by client and host.
#[derive(Default)]
struct Counted {
    all: u64,
    whose: ByName,
}

impl Counted {
    fn add(&mut self, client: &[u8], host: Host, more: u64) {
        self.all += more;
        self.whose.add(client, host, more);
    }

    fn remove(&mut self, client: &[u8], less: u64) {
        debug_assert!(self.all >= less && self.whose.of_name(client) >= less, "given back twice");
        self.all = self.all.saturating_sub(less);
        self.whose.remove(client, less);
    }
}

/// The room of one lock, returned when it is dropped.
pub(super) struct LockRoom<'a> {
    room: &'a Room,
    client: &'a [u8],
    kept: bool,
}

impl LockRoom<'_> {
    /// The lock was granted. Its room is returned with [`Room::give_lock`].
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
    /// Takes the room for another lock of a client, which is at this host now.
    ///
    /// # Errors
    /// `Resource` when the client, or its host, has its share.
    pub(super) fn take_lock<'a>(&'a self, client: &'a [u8], host: Host) -> Result<LockRoom<'a>> {
        let mut taken = self.0.lock();
        taken.locks.whose.move_to(client, host);
        taken.bytes.whose.move_to(client, host);
        let (all, own) = (taken.locks.all, taken.locks.whose.of_name(client));
        let of_host = taken.locks.whose.of_host(host);
        if own >= UNDO_LOCKS_PER_CLIENT_MAX || of_host >= UNDO_LOCKS_MAX.saturating_sub(all) {
            return Err(ServiceError::Resource);
        }
        taken.locks.add(client, host, 1);
        Ok(LockRoom { room: self, client, kept: false })
    }

    /// Counts a lock of an earlier run, with its saved bytes.
    pub(super) fn count_left(&self, client: &[u8], bytes: u64) {
        let mut taken = self.0.lock();
        taken.locks.add(client, Host::Unknown, 1);
        taken.bytes.add(client, Host::Unknown, bytes);
    }

    /// Returns the room of a lock, with its saved bytes.
    pub(super) fn give_lock(&self, client: &[u8], bytes: u64) {
        let mut taken = self.0.lock();
        taken.locks.remove(client, 1);
        taken.bytes.remove(client, bytes);
    }

    /// Takes room to save `more` bytes for a lock of a client that has saved `held` bytes for it.
    ///
    /// # Errors
    /// `Quota` when the client, or its host, has its share for all its locks. `NoSpace` when the
    /// lock has its limit, or all have.
    pub(super) fn take_bytes(&self, client: &[u8], held: u64, more: u64) -> dafs_store::Result<()> {
        let mut taken = self.0.lock();
        if held + more > UNDO_BYTES_PER_LOCK_MAX || taken.bytes.all + more > UNDO_BYTES_MAX {
            return Err(StoreError::NoSpace);
        }
        let host = taken.locks.whose.host(client);
        let (own, of_host) = (taken.bytes.whose.of_name(client), taken.bytes.whose.of_host(host));
        let left = UNDO_BYTES_MAX - taken.bytes.all;
        if own + more > UNDO_BYTES_PER_CLIENT_MAX || of_host + more > left {
            return Err(StoreError::Quota);
        }
        taken.bytes.add(client, host, more);
        Ok(())
    }

    /// Returns the room of some bytes of a lock that goes on.
    pub(super) fn give_bytes(&self, client: &[u8], bytes: u64) {
        self.0.lock().bytes.remove(client, bytes);
    }

    /// Bytes of all locks.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> u64 {
        self.0.lock().bytes.all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCK: u64 = UNDO_BYTES_PER_LOCK_MAX;

    const ONE: Host = Host::User(1);
    const TWO: Host = Host::User(2);

    #[test]
    fn no_client_and_no_host_takes_all_locks() {
        let room = Room::default();
        let take = |client, host| room.take_lock(client, host).map(LockRoom::keep);
        let fill = |client, host| (0..).take_while(|_| take(client, host).is_ok()).count() as u64;
        assert_eq!(fill(b"greedy", ONE), UNDO_LOCKS_PER_CLIENT_MAX);
        assert_eq!(take(b"greedy", ONE), Err(ServiceError::Resource));
        room.give_lock(b"greedy", 0);
        // A lock that is not granted takes no room.
        drop(room.take_lock(b"greedy", ONE).unwrap());
        take(b"greedy", ONE).unwrap();
        assert_eq!(fill(b"again", ONE), UNDO_LOCKS_MAX / 2 - UNDO_LOCKS_PER_CLIENT_MAX);
        assert_eq!(take(b"another", ONE), Err(ServiceError::Resource), "its host has half");
        assert_eq!(fill(b"other", TWO), UNDO_LOCKS_MAX / 4);
        take(b"honest", Host::User(3)).unwrap();
    }

    #[test]
    fn no_client_and_no_host_takes_all_bytes() {
        let room = Room::default();
        let locks = UNDO_BYTES_PER_CLIENT_MAX / LOCK;
        for _ in 0..locks {
            room.take_lock(b"greedy", ONE).map(LockRoom::keep).unwrap();
            assert_eq!(room.take_bytes(b"greedy", 0, LOCK), Ok(()));
            assert_eq!(room.take_bytes(b"greedy", LOCK, 1), Err(StoreError::NoSpace));
        }
        assert_eq!(room.take_bytes(b"greedy", 0, 1), Err(StoreError::Quota));
        for (client, host) in [(b"again", ONE), (b"other", TWO)] {
            room.take_lock(client, host).map(LockRoom::keep).unwrap();
        }
        assert_eq!(room.take_bytes(b"again", 0, 1), Err(StoreError::Quota), "its host has half");
        assert_eq!(room.take_bytes(b"other", 0, 1), Ok(()));
        room.give_lock(b"other", 1);
        room.give_lock(b"again", 0);
        // A log of an earlier run counts, too.
        let left = UNDO_BYTES_MAX - UNDO_BYTES_PER_CLIENT_MAX;
        room.count_left(b"left", left);
        assert_eq!(room.take_bytes(b"other", 0, 1), Err(StoreError::NoSpace));
        room.give_lock(b"left", left);
        (0..locks).for_each(|_| room.give_lock(b"greedy", LOCK));
        let taken = room.0.lock();
        assert!(
            taken.bytes.all == 0 && taken.bytes.whose.is_empty() && taken.locks.whose.is_empty()
        );
    }
}
