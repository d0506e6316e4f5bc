//! Asynchronous copies (RFC 7862 4.2, 15.2, 15.8, 15.9).
//!
//! Invariants
//! * A copy belongs to one client. No other can query or cancel it.
//! * Each slice of a copy is checked against the state-ids that began it, so a copy ends with the
//!   state that allowed it.
//! * A copy occupies a pool thread for one slice at a time.
//! * The table is bounded: of finished copies the oldest are dropped first. Hosts share the running
//!   ones.

use crate::limits::{COPIES_ENDED_MAX, COPIES_PER_CLIENT_MAX, COPIES_RUNNING_MAX};
use dafs_mem::Mutex;
use dafs_service::{ClientKey, Host, has_share};
use dafs_wire::nfs4::{StableHow, Stateid, Status};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// The last four bytes of a copy's state-id, which are zero in those of the service.
const MARK: [u8; 4] = *b"copy";

/// The result of an asynchronous copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OffloadOutcome {
    /// The final status.
    pub(crate) status: Status,
    /// Bytes copied.
    pub(crate) copied: u64,
    /// The stability of the copied data.
    pub(crate) committed: StableHow,
    /// The write verifier.
    pub(crate) verifier: [u8; 8],
}

/// A running copy, or one that has ended a short while ago.
#[derive(Debug)]
pub(crate) struct Copy {
    number: u64,
    client: ClientKey,
    host: Host,
    copied: AtomicU64,
    cancelled: AtomicBool,
    outcome: OnceLock<Status>,
}

impl Copy {
    /// Returns its state-id.
    pub(crate) fn stateid(&self) -> Stateid {
        let mut other = [0; 12];
        other[..8].copy_from_slice(&self.number.to_be_bytes());
        other[8..].copy_from_slice(&MARK);
        Stateid { seqid: 1, other }
    }

    /// Returns the bytes copied so far.
    pub(crate) fn copied(&self) -> u64 {
        self.copied.load(Ordering::Relaxed)
    }

    /// Returns its final status, once it has ended.
    pub(crate) fn outcome(&self) -> Option<Status> {
        self.outcome.get().copied()
    }

    /// True when it has been cancelled.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// Counts the copied bytes of a slice.
    pub(crate) fn add(&self, bytes: u64) {
        self.copied.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// All asynchronous copies of a server.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// The server ends, and no copy begins any more.
    is_over: bool,
    last: u64,
    running: usize,
    known: FxHashMap<u64, Arc<Copy>>,
    ended: VecDeque<u64>,
}

impl Copies {
    /// Adds a copy of a client at a host.
    ///
    /// # Errors
    /// Returns `None` when too many copies are under way, or the server ends.
    pub(crate) fn begin(&self, client: ClientKey, host: Host) -> Option<Arc<Copy>> {
        let mut inner = self.inner.lock();
        let running = || inner.known.values().filter(|copy| copy.outcome().is_none());
        let own = running().filter(|copy| copy.client == client).count();
        let of_host = running().filter(|copy| copy.host == host).count();
        let has_room = has_share(of_host, inner.running, COPIES_RUNNING_MAX);
        if inner.is_over || own >= COPIES_PER_CLIENT_MAX || !has_room {
            return None;
        }
        inner.last += 1;
        inner.running += 1;
        let copy = Arc::new(Copy {
            number: inner.last,
            client,
            host,
            copied: AtomicU64::new(0),
            cancelled: AtomicBool::new(false),
            outcome: OnceLock::new(),
        });
        inner.known.insert(copy.number, copy.clone());
        Some(copy)
    }

    /// Finds a copy by its state-id.
    ///
    /// # Errors
    /// `BadStateId` when the client has no such copy.
    pub(crate) fn find(&self, client: ClientKey, stateid: &Stateid) -> Result<Arc<Copy>, Status> {
        let [a, b, c, d, e, f, g, h, mark @ ..] = stateid.other;
        let number = u64::from_be_bytes([a, b, c, d, e, f, g, h]);
        let inner = self.inner.lock();
        let copy = inner.known.get(&number).filter(|copy| copy.client == client);
        copy.filter(|_| mark == MARK).cloned().ok_or(Status::BadStateId)
    }

    /// Records the final status of a copy.
    pub(crate) fn end(&self, copy: &Copy, outcome: Status) {
        let mut inner = self.inner.lock();
        if copy.outcome.set(outcome).is_err() {
            return;
        }
        inner.running = inner.running.saturating_sub(1);
        if copy.is_cancelled() {
            inner.known.remove(&copy.number);
            return;
        }
        inner.ended.push_back(copy.number);
        if inner.ended.len() > COPIES_ENDED_MAX
            && let Some(oldest) = inner.ended.pop_front()
        {
            inner.known.remove(&oldest);
        }
    }

    /// Cancels a copy, or removes one that has ended.
    pub(crate) fn cancel(&self, copy: &Copy) {
        let mut inner = self.inner.lock();
        copy.cancelled.store(true, Ordering::Relaxed);
        if copy.outcome().is_some() {
            inner.known.remove(&copy.number);
        }
    }

    /// Ends all copies after their present slices, and lets none begin. Their clients find them gone, as
    /// after a crash of the server.
    pub(crate) fn end_all(&self) {
        let mut inner = self.inner.lock();
        inner.is_over = true;
        inner.known.values().for_each(|copy| copy.cancelled.store(true, Ordering::Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_ends_waits_for_no_copy() {
        let copies = Copies::default();
        let mine = ClientKey(1);
        let copy = copies.begin(mine, Host::Unknown).unwrap();
        assert!(!copy.is_cancelled());
        copies.end_all();
        assert!(copy.is_cancelled() && copies.begin(mine, Host::Unknown).is_none());
        copies.end(&copy, Status::Ok);
        assert!(copies.find(mine, &copy.stateid()).is_err());
    }

    #[test]
    fn a_copy_is_found_by_its_client_until_it_is_forgotten() {
        let copies = Copies::default();
        let (mine, other) = (ClientKey(1), ClientKey(2));
        let copy = copies.begin(mine, Host::Unknown).unwrap();
        copy.add(7);
        assert_eq!(copies.find(mine, &copy.stateid()).unwrap().copied(), 7);
        assert_eq!(copies.find(other, &copy.stateid()).unwrap_err(), Status::BadStateId);
        copies.end(&copy, Status::Ok);
        assert_eq!(copies.find(mine, &copy.stateid()).unwrap().outcome(), Some(Status::Ok));
        copies.cancel(&copy);
        assert_eq!(copies.find(mine, &copy.stateid()).unwrap_err(), Status::BadStateId);
    }

    #[test]
    fn ended_copies_make_room_oldest_first() {
        let copies = Copies::default();
        let mine = ClientKey(1);
        let all: Vec<_> = (0..COPIES_PER_CLIENT_MAX)
            .map(|_| copies.begin(mine, Host::Unknown).unwrap())
            .collect();
        assert!(copies.begin(mine, Host::Unknown).is_none());
        all.iter().for_each(|copy| copies.end(copy, Status::Ok));
        for _ in 0..COPIES_ENDED_MAX {
            let copy = copies.begin(mine, Host::Unknown).unwrap();
            copies.end(&copy, Status::Ok);
        }
        assert!(copies.find(mine, &all[0].stateid()).is_err());
    }
    #[test]
    fn no_host_takes_all_copies_under_way() {
        let copies = Copies::default();
        let fill = |host| {
            let each = COPIES_PER_CLIENT_MAX as u64;
            let begin = |number: &u64| {
                let client = ClientKey(u64::from(host) << 32 | (number / each));
                copies.begin(client, Host::User(host)).is_some()
            };
            (0..).take_while(begin).count()
        };
        assert_eq!([1, 2].map(fill), [COPIES_RUNNING_MAX / 2, COPIES_RUNNING_MAX / 4]);
        assert!(fill(3) > 0);
    }
}
