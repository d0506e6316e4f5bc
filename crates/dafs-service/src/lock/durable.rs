//! The way of lock records to the disk: changes are queued in the order in which the table made them,
//! and whoever waits first writes all that are queued, in one step.
//!
//! Invariants
//! * Changes become durable in the order in which they were queued, so no later one without all
//!   earlier ones.
//! * What happened whether the disk wants it or not, such as that a lock was broken, stays queued
//!   until it is written.

use super::records::LockChange;
use crate::Result;
use crate::error::ServiceError;
use crate::limits::{KEPT_LOCKS_MAX, KEPT_LOCKS_PER_CLIENT_MAX};
use crate::records::ClientRecords;
use dafs_store::StoreError;
use rustc_hash::FxHashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// One queued change, to ask for its fate. Read and written under the queue's lock only.
#[derive(Debug, Default)]
pub(crate) struct Ticket(Mutex<Option<bool>>);

impl Ticket {
    fn fate(&self) -> Option<bool> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn settle(&self, written: bool) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(written);
    }
}

struct Queued {
    ticket: Arc<Ticket>,
    changes: Vec<LockChange>,
    /// It stays queued if it cannot be written.
    stays: bool,
}

#[derive(Default)]
struct Queue {
    waiting: Vec<Queued>,
    /// Somebody is writing just now.
    writing: bool,
}

/// The queue of changes, and what is counted about them.
#[derive(Default)]
pub(crate) struct LockLog {
    queue: Mutex<Queue>,
    written: Condvar,
    /// The number of the last lock with a record.
    last: AtomicU64,
    /// Locks with a record, held or left.
    kept: AtomicUsize,
    /// The same by the names of the clients that hold or held them. Changed only under the table's
    /// lock.
    kept_of: Mutex<FxHashMap<Box<[u8]>, usize>>,
}

impl LockLog {
    /// A number for a lock with a record.
    pub(crate) fn next(&self) -> u64 {
        self.last.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// A number that is taken already.
    pub(crate) fn skip_to(&self, number: u64) {
        self.last.fetch_max(number, Ordering::Relaxed);
    }

    pub(crate) fn kept(&self) -> usize {
        self.kept.load(Ordering::SeqCst)
    }

    /// Whether a client of this name may have another lock with a record.
    pub(crate) fn has_room(&self, client: &[u8]) -> bool {
        let own = self.lock_kept_of().get(client).copied().unwrap_or(0);
        self.kept() < KEPT_LOCKS_MAX && own < KEPT_LOCKS_PER_CLIENT_MAX
    }

    /// There is another lock with a record, of a client of this name.
    pub(crate) fn add_kept(&self, client: &[u8]) {
        self.kept.fetch_add(1, Ordering::SeqCst);
        let mut kept_of = self.lock_kept_of();
        match kept_of.get_mut(client) {
            Some(count) => *count += 1,
            None => drop(kept_of.insert(client.into(), 1)),
        }
    }

    /// There are so many fewer.
    pub(crate) fn remove_kept(&self, client: &[u8], count: usize) {
        if count == 0 {
            return;
        }
        let before = self.kept.fetch_sub(count, Ordering::SeqCst);
        let mut kept_of = self.lock_kept_of();
        let own = kept_of.get(client).copied().unwrap_or(0);
        debug_assert!(before >= own && own >= count, "more locks were given up than there were");
        match own.saturating_sub(count) {
            0 => drop(kept_of.remove(client)),
            left => drop(kept_of.insert(client.into(), left)),
        }
    }

    fn lock_kept_of(&self) -> MutexGuard<'_, FxHashMap<Box<[u8]>, usize>> {
        self.kept_of.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues changes. To be called under the table's lock, which makes their order.
    pub(crate) fn put(&self, changes: Vec<LockChange>, stays: bool) -> Arc<Ticket> {
        let ticket = Arc::new(Ticket::default());
        self.lock().waiting.push(Queued { ticket: ticket.clone(), changes, stays });
        ticket
    }

    /// True when all that happened is durable.
    pub(crate) fn is_clean(&self) -> bool {
        let queue = self.lock();
        queue.waiting.is_empty() && !queue.writing
    }

    /// Waits until the changes of a ticket are durable; writes them itself, with those of others,
    /// unless somebody else is at it.
    ///
    /// # Errors
    /// An I/O error when they cannot be written.
    pub(crate) fn wait(&self, records: &dyn ClientRecords, ticket: &Ticket) -> Result<()> {
        let mut queue = self.lock();
        loop {
            match ticket.fate() {
                Some(true) => return Ok(()),
                Some(false) => return Err(ServiceError::Store(StoreError::Io)),
                None => {}
            }
            if queue.writing {
                queue = self.written.wait(queue).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            queue.writing = true;
            let batch = std::mem::take(&mut queue.waiting);
            drop(queue);
            let mut writing = Writing { log: self, batch, written: false };
            let changes: Vec<LockChange> =
                writing.batch.iter().flat_map(|queued| queued.changes.iter().cloned()).collect();
            match records.change_locks(&changes) {
                Ok(()) => writing.written = true,
                Err(error) => tracing::error!(%error, "lock records cannot be written"),
            }
            drop(writing);
            queue = self.lock();
        }
    }

    /// Makes all that has happened durable.
    ///
    /// # Errors
    /// An I/O error when that is not possible.
    pub(crate) fn flush(&self, records: &dyn ClientRecords) -> Result<()> {
        if self.is_clean() {
            return Ok(());
        }
        let ticket = self.put(Vec::new(), false);
        self.wait(records, &ticket)
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Settles a batch however its writing ends, so that nobody waits for it for ever.
struct Writing<'a> {
    log: &'a LockLog,
    batch: Vec<Queued>,
    written: bool,
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        let mut queue = self.log.lock();
        queue.writing = false;
        let mut kept = Vec::new();
        for queued in std::mem::take(&mut self.batch) {
            queued.ticket.settle(self.written);
            if queued.stays && !self.written {
                kept.push(queued);
            }
        }
        kept.append(&mut queue.waiting);
        queue.waiting = kept;
        self.log.written.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::{ClientRecord, RecordsError};
    use std::sync::atomic::AtomicBool;

    /// Counts the steps in which changes are written, and lets a test hold one up.
    #[derive(Default)]
    struct Disk {
        steps: Mutex<Vec<Vec<LockChange>>>,
        fails: AtomicBool,
        gate: Mutex<()>,
    }

    impl ClientRecords for Disk {
        fn load(&self) -> std::result::Result<Vec<ClientRecord>, RecordsError> {
            Ok(Vec::new())
        }

        fn put(&self, _: &ClientRecord) -> std::result::Result<(), RecordsError> {
            Ok(())
        }

        fn remove(&self, _: &[ClientRecord]) -> std::result::Result<(), RecordsError> {
            Ok(())
        }

        fn load_locks(&self) -> std::result::Result<Vec<super::super::LockRecord>, RecordsError> {
            Ok(Vec::new())
        }

        fn change_locks(&self, changes: &[LockChange]) -> std::result::Result<(), RecordsError> {
            self.steps.lock().unwrap().push(changes.to_vec());
            drop(self.gate.lock().unwrap());
            match self.fails.load(Ordering::SeqCst) {
                true => Err(RecordsError::new("no")),
                false => Ok(()),
            }
        }
    }

    #[test]
    fn many_that_wait_are_written_in_one_step() {
        let (log, disk) = (LockLog::default(), Disk::default());
        let remove = |number| log.put(vec![LockChange::Remove(number)], false);
        std::thread::scope(|scope| {
            let gate = disk.gate.lock().unwrap();
            let first = remove(1);
            let (log, disk) = (&log, &disk);
            scope.spawn(move || log.wait(disk, &first).unwrap());
            while disk.steps.lock().unwrap().is_empty() {
                std::thread::yield_now();
            }
            // These come while the first is being written.
            for ticket in (2..10).map(remove) {
                scope.spawn(move || log.wait(disk, &ticket).unwrap());
            }
            drop(gate);
        });
        let steps = disk.steps.lock().unwrap();
        assert_eq!(steps.len(), 2);
        assert_eq!(steps[1], (2..10).map(LockChange::Remove).collect::<Vec<_>>());
        assert!(log.is_clean());
    }

    #[test]
    fn one_client_does_not_take_all_room_for_records() {
        let log = LockLog::default();
        (0..KEPT_LOCKS_PER_CLIENT_MAX).for_each(|_| log.add_kept(b"greedy"));
        assert!(!log.has_room(b"greedy") && log.has_room(b"other"));
        log.remove_kept(b"greedy", 1);
        assert!(log.has_room(b"greedy"));
        for name in [b"b", b"c", b"d"] {
            (0..KEPT_LOCKS_PER_CLIENT_MAX).for_each(|_| log.add_kept(name));
        }
        assert!(log.has_room(b"other"));
        log.add_kept(b"other");
        assert!(!log.has_room(b"another"), "there is a bound for all");
        log.remove_kept(b"other", 1);
        assert!(log.has_room(b"another") && log.lock_kept_of().len() == 4);
    }

    #[test]
    fn what_has_happened_stays_queued_until_it_is_written() {
        let (log, disk) = (LockLog::default(), Disk::default());
        disk.fails.store(true, Ordering::SeqCst);
        let happened = log.put(vec![LockChange::Remove(1)], true);
        let wanted = log.put(vec![LockChange::Remove(2)], false);
        assert!(log.wait(&disk, &wanted).is_err());
        assert!(log.wait(&disk, &happened).is_err());
        assert!(!log.is_clean());
        assert!(log.flush(&disk).is_err());
        disk.fails.store(false, Ordering::SeqCst);
        log.flush(&disk).unwrap();
        assert_eq!(disk.steps.lock().unwrap().last().unwrap(), &[LockChange::Remove(1)]);
        assert!(log.is_clean());
    }
}
