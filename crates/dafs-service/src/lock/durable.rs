//! The queue of lock records to the disk. The table queues changes in the order in which it makes
//! them. The first thread that waits writes all queued changes in one step.
//!
//! Invariants
//! * Changes become durable in the order of the queue, so a later one never without all earlier
//!   ones.
//! * A change that cannot be reverted, such as the break of a lock, stays queued until it is
//!   written.

use super::records::LockChange;
use crate::Result;
use crate::client::Client;
use crate::error::ServiceError;
use crate::hosts::{ByName, Host, has_share};
use crate::limits::{KEPT_LOCKS_MAX, KEPT_LOCKS_PER_CLIENT_MAX};
use crate::records::ClientRecords;
use dafs_mem::{Condvar, Mutex};
use dafs_store::StoreError;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// A queued change, to ask for its result. Read and written under the queue's lock only.
#[derive(Debug, Default)]
pub(crate) struct Ticket(Mutex<Option<bool>>);

impl Ticket {
    fn fate(&self) -> Option<bool> {
        *self.0.lock()
    }

    fn settle(&self, written: bool) {
        *self.0.lock() = Some(written);
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
    /// A thread is writing.
    writing: bool,
}

/// The queue of changes, and counts of the records.
#[derive(Default)]
pub(crate) struct LockLog {
    queue: Mutex<Queue>,
    written: Condvar,
    /// The number of the last lock with a record.
    last: AtomicU64,
    /// Locks with a record, held or orphaned.
    kept: AtomicUsize,
    /// The counts of clients and hosts. They change only under the table's lock.
    kept_of: Mutex<ByName>,
}

impl LockLog {
    /// Allocates a number for a lock with a record.
    pub(crate) fn next(&self) -> u64 {
        self.last.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Notes a number that is in use already.
    pub(crate) fn skip_to(&self, number: u64) {
        self.last.fetch_max(number, Ordering::Relaxed);
    }

    pub(crate) fn kept(&self) -> usize {
        self.kept.load(Ordering::SeqCst)
    }

    /// True if a client may have another lock with a record. From now on, the records of its name
    /// count for its host.
    pub(crate) fn has_room(&self, client: &Client) -> bool {
        let (mut kept_of, host) = (self.kept_of.lock(), client.host().host());
        kept_of.move_to(client.name(), host);
        let own = kept_of.of_name(client.name()) as usize;
        let of_host = kept_of.of_host(host) as usize;
        own < KEPT_LOCKS_PER_CLIENT_MAX && has_share(of_host, self.kept(), KEPT_LOCKS_MAX)
    }

    /// Counts another lock with a record, of a client of this name. A new name is at this host.
    pub(crate) fn add_kept(&self, client: &[u8], host: Host) {
        self.kept.fetch_add(1, Ordering::SeqCst);
        self.kept_of.lock().add(client, host, 1);
    }

    /// Counts the removal of records.
    pub(crate) fn remove_kept(&self, client: &[u8], count: usize) {
        if count == 0 {
            return;
        }
        let before = self.kept.fetch_sub(count, Ordering::SeqCst);
        let mut kept_of = self.kept_of.lock();
        let own = kept_of.of_name(client) as usize;
        debug_assert!(before >= own && own >= count, "more locks were given up than there were");
        kept_of.remove(client, count as u64);
    }

    /// Queues changes. The caller holds the table's lock, which gives them their order.
    pub(crate) fn put(&self, changes: Vec<LockChange>, stays: bool) -> Arc<Ticket> {
        let ticket = Arc::new(Ticket::default());
        self.queue.lock().waiting.push(Queued { ticket: ticket.clone(), changes, stays });
        ticket
    }

    /// True when all changes are durable.
    pub(crate) fn is_clean(&self) -> bool {
        let queue = self.queue.lock();
        queue.waiting.is_empty() && !queue.writing
    }

    /// Waits until the changes of a ticket are durable. If no other thread is writing, this one
    /// writes them, together with those of others.
    ///
    /// # Errors
    /// An I/O error when they cannot be written.
    pub(crate) fn wait(&self, records: &dyn ClientRecords, ticket: &Ticket) -> Result<()> {
        let mut queue = self.queue.lock();
        loop {
            match ticket.fate() {
                Some(true) => return Ok(()),
                Some(false) => return Err(ServiceError::Store(StoreError::Io)),
                None => {}
            }
            if queue.writing {
                queue = self.written.wait(queue);
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
            queue = self.queue.lock();
        }
    }

    /// Makes all changes so far durable.
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
}

/// Reports a result for each change of a batch, however the write ends, so that no thread waits for
/// ever.
struct Writing<'a> {
    log: &'a LockLog,
    batch: Vec<Queued>,
    written: bool,
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        let mut queue = self.log.queue.lock();
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
    use crate::client::{ClientKey, ClientKind, Identity};
    use crate::hosts::HostUse;
    use crate::records::{ClientRecord, RecordsError};
    use std::sync::atomic::AtomicBool;

    /// Records the steps in which changes are written, and lets a test delay one.
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
            self.steps.lock().push(changes.to_vec());
            drop(self.gate.lock());
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
            let gate = disk.gate.lock();
            let first = remove(1);
            let (log, disk) = (&log, &disk);
            scope.spawn(move || log.wait(disk, &first).unwrap());
            while disk.steps.lock().is_empty() {
                std::thread::yield_now();
            }
            // These come while the first is being written.
            for ticket in (2..10).map(remove) {
                scope.spawn(move || log.wait(disk, &ticket).unwrap());
            }
            drop(gate);
        });
        let steps = disk.steps.lock();
        assert_eq!(steps.len(), 2);
        assert_eq!(steps[1], (2..10).map(LockChange::Remove).collect::<Vec<_>>());
        assert!(log.is_clean());
    }

    #[test]
    fn no_client_and_no_host_takes_all_room_for_records() {
        let log = LockLog::default();
        let client = |name: &str, host| {
            let (key, nobody) = (ClientKey(1), Identity { mechanism: "none", principal: vec![] });
            let host = Arc::new(HostUse::new(Host::User(host)));
            Client::new(key, ClientKind::Dafs, name.as_bytes(), 1, nobody, host, 0)
        };
        let fill = |client: &Client| {
            let add = |_: &usize| {
                let has_room = log.has_room(client);
                if has_room {
                    log.add_kept(client.name(), client.host().host());
                }
                has_room
            };
            (0..).take_while(add).count()
        };
        let greedy = ["a", "b", "c"].map(|name| client(name, 1));
        let quarter = KEPT_LOCKS_MAX / 4;
        assert_eq!(greedy.each_ref().map(|client| fill(client)), [quarter, quarter, 0]);
        log.remove_kept(b"a", 1);
        assert!(log.has_room(&greedy[2]));
        log.add_kept(b"a", Host::Unknown);
        assert!(log.has_room(&client("other", 2)) && !log.has_room(&greedy[2]));
        // A client's locks move with it to its host.
        assert!(!log.has_room(&client("a", 3)) && log.has_room(&greedy[2]));
        log.remove_kept(b"a", quarter);
        log.remove_kept(b"b", quarter);
        assert!(log.kept_of.lock().is_empty() && log.kept() == 0);
    }

    #[test]
    fn a_change_stays_queued_until_it_is_written() {
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
        assert_eq!(disk.steps.lock().last().unwrap(), &[LockChange::Remove(1)]);
        assert!(log.is_clean());
    }
}
