//! Files with copies: each of some nodes has the whole file.
//!
//! Notes
//! * A copy is fresh if it has all data that was acknowledged as stable. The record lists the
//!   others (stale). It also says if the fresh ones may differ in data that was not acknowledged as
//!   stable (torn). It says so before the first write, until all data is stable on all copies and
//!   no writer is active.
//! * Copies may differ for good after a crash that left the record torn, or after a client that
//!   held a layout for writing disappeared. Then one of them is authoritative: only this one is
//!   read, until a repair has made the others equal to it.
//! * Clients that hold a layout for writing write all copies themselves. Overlapping writes of
//!   clients and of this server would reach the copies in different orders. So this server recalls
//!   these layouts before it writes. Meanwhile, and while a file is repaired, clients get no new
//!   ones.
//!
//! Invariants
//! * If an operation fails on a copy, it is acknowledged only after two steps. The record says,
//!   stably, that the copy is stale. And the copy's data server has dropped its cached
//!   authorisations for the file, or they have expired. At least one copy is always fresh.
//! * Writers through this server write to all copies under one lock for each file (`Order`). Repair
//!   takes the same lock piece by piece, and writers also write to the copy under repair.
//! * A copy has lost data if its write verifier differs from the one before the first write to it
//!   that is not known to be stable. Such a copy does not count when that data is made stable.
//! * Lock order: the gate of the file, `order`, `lending`.

mod io;
mod leave;
mod lend;
mod lose;
mod repair;
mod scrub;

pub use leave::Leaving;
pub use scrub::{Fault, Faults, Scrubbed};

use super::Shared;
use super::pending::Entry;
use super::record::{Record, Whole, places, remapped};
use super::state::{FileState, Place};
use crate::limits::{
    COPY_ATTEMPTS_MAX, COPY_REPORT_PAUSE, COPY_REPORT_PAUSE_MAX, COPY_TURNS_MAX, GRANT_WAITERS_MAX,
    GRANT_WAITS_MAX, RETRY_PAUSE, TORN_FILES_MAX,
};
use dafs_mem::{Condvar, Mutex};
use dafs_store::node::Node;
use dafs_store::{COPIES_MAX, FileId, Result, StoreError};
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Instant;

/// The value of `authoritative` if no copy is: all fresh copies are equally good.
const ALL_ALIKE: u8 = u8::MAX;

/// The state of the copies of one file in use.
pub(super) struct Copies {
    order: Mutex<Order>,
    /// The authoritative copy, if there is one. It changes while `order` is locked, or while the
    /// gate is held exclusively.
    authoritative: AtomicU8,
    lending: Mutex<Lending>,
    /// Notified when no client holds a layout for writing any more.
    returned: Condvar,
}

/// Serialises the writes to the copies, and holds their state.
#[derive(Default)]
pub(super) struct Order {
    /// For each copy its write verifier from before the first write that may not be stable there.
    unstable: [Option<u64>; COPIES_MAX],
    /// Stale copies whose data servers may still hold cached authorisations.
    may_hold_grants: u8,
    /// Fresh copies that have been made equal to the authoritative one.
    alike: u8,
    /// The copy under repair.
    repairing: Option<usize>,
    /// The epoch of repair. It changes whenever a running repair must be begun again.
    turn: u64,
    /// Counts the writes through this server.
    writes: u64,
    written: Option<Instant>,
    /// Counts the reports of clients about copies that they cannot write, and the time from which
    /// these copies may be repaired.
    reports: u32,
    repair_from: Option<Instant>,
}

/// The layouts for writing that clients hold.
#[derive(Default)]
struct Lending {
    lent: bool,
    /// Counts the layouts for writing that were given out.
    lends: u64,
    /// Clients get no layouts for writing before this time.
    barred_until: Option<Instant>,
    /// A client has found a full device: writers get `NoSpace` until this time.
    full_until: Option<Instant>,
}

/// The end of an attempt.
enum Step<T> {
    Done(T),
    /// Another step must be done first.
    First(Chore),
}

enum Chore {
    /// Mark the record as torn: a writer is active.
    Tear,
    /// Mark copies as stale in the record.
    GiveUp(u8),
    /// Recall the layouts for writing.
    Return,
    /// Wait until the cached authorisations at data servers of stale copies are dropped or have
    /// expired.
    Wait,
    /// Wait for a node that is crowded. Its copy stays fresh.
    Turn,
}

impl Default for Copies {
    fn default() -> Self {
        Self {
            order: Mutex::default(),
            authoritative: AtomicU8::new(ALL_ALIKE),
            lending: Mutex::default(),
            returned: Condvar::new(),
        }
    }
}

impl Copies {
    fn order(&self) -> MutexGuard<'_, Order> {
        self.order.lock()
    }

    /// Returns the authoritative copy, if there is one.
    fn authoritative(&self) -> Option<usize> {
        match self.authoritative.load(Ordering::SeqCst) {
            ALL_ALIKE => None,
            at => Some(at.into()),
        }
    }

    fn set_authoritative(&self, order: &mut Order, authoritative: Option<usize>) {
        let authoritative = authoritative.and_then(|at| u8::try_from(at).ok());
        order.alike = authoritative.map_or(0, |at| 1 << at);
        order.restart();
        self.authoritative.store(authoritative.unwrap_or(ALL_ALIKE), Ordering::SeqCst);
    }
}

impl Order {
    /// Voids a running repair.
    fn restart(&mut self) {
        self.turn += 1;
        self.repairing = None;
    }

    /// Keeps only the state of the copies at these places, in this order.
    fn keep(&mut self, kept: &[usize]) {
        let before = std::mem::take(&mut self.unstable);
        for (now, &at) in self.unstable.iter_mut().zip(kept) {
            *now = before[at];
        }
        self.may_hold_grants = remapped(self.may_hold_grants, kept);
        self.alike = remapped(self.alike, kept);
        self.restart();
    }

    /// Records the report of a client that cannot write to a copy. The client may be at fault, so
    /// the repair is delayed.
    fn note_report(&mut self, now: Instant) {
        let pause = COPY_REPORT_PAUSE * 2u32.saturating_pow(self.reports.min(16));
        self.reports = self.reports.saturating_add(1);
        self.repair_from = Some(now + pause.min(COPY_REPORT_PAUSE_MAX));
    }
}

impl Shared {
    /// Adds a file to the list of files whose stale copies are to be repaired.
    fn list_for_repair(&self, file: FileId, record: &Record, stale: u8) -> Result<()> {
        let nodes = places(stale).map(|at| record.nodes[at]).collect();
        let _server = self.as_server()?;
        self.repairs.enter(&Entry { component: record.component, file, nodes })
    }
}

impl FileState {
    /// Gives a new file its copies. Nodes that are reachable come first; the copies on others are
    /// stale until they are repaired.
    pub(super) fn make_whole(&self, record: &mut Record) -> Result<()> {
        let shared = self.shared();
        let slots = shared.slots.staying();
        let mut nodes: Vec<_> = slots.iter().map(|slot| &*slot.node).collect();
        let first = usize::from(record.first) % nodes.len();
        nodes.rotate_left(first);
        let all_away = !nodes.iter().any(|node| node.is_reachable());
        nodes.sort_by_key(|node| !node.is_reachable());
        nodes.truncate(shared.options.copies);
        let away = |(at, node): (usize, &&dyn Node)| match all_away || node.is_reachable() {
            true => 0,
            false => 1 << at,
        };
        let stale = nodes.iter().enumerate().map(away).fold(0, |all, bit| all | bit);
        record.nodes = nodes.iter().map(|node| node.number()).collect();
        record.first = 0;
        record.whole = Some(Whole { stale, torn: true });
        if stale != 0 {
            shared.list_for_repair(self.id(), record, stale)?;
        }
        self.note_torn();
        Ok(())
    }

    /// Runs a function on the node of a copy.
    fn at_copy<T>(
        &self,
        record: &Record,
        at: usize,
        run: impl FnOnce(&dyn Node) -> Result<T>,
    ) -> Result<T> {
        let _server = self.shared().as_server()?;
        run(&*self.shared().slot(record.nodes[at])?.node)
    }

    /// Attempts an operation on the copies, under the lock that serialises all changes. Does the
    /// steps first that the attempt asks for.
    fn on_copies<T>(
        &self,
        mut attempt: impl FnMut(&Record, &mut Order) -> Result<Step<T>>,
    ) -> Result<T> {
        let (mut attempts, mut waits) = (0..COPY_ATTEMPTS_MAX, 0..GRANT_WAITS_MAX);
        let mut turns = 0..COPY_TURNS_MAX;
        loop {
            let place = self.enter()?;
            let Place::Striped(record) = &*place else { return Err(StoreError::Busy) };
            let mut order = self.copies().order();
            let chore = match attempt(record, &mut order)? {
                Step::Done(done) => return Ok(done),
                Step::First(chore) => chore,
            };
            drop(order);
            let nodes = record.nodes.clone();
            drop(place);
            let count = match chore {
                Chore::Wait => &mut waits,
                Chore::Turn => &mut turns,
                Chore::Tear | Chore::GiveUp(_) | Chore::Return => &mut attempts,
            };
            if count.next().is_none() {
                return Err(StoreError::Busy);
            }
            match chore {
                Chore::Tear => self.tear()?,
                Chore::GiveUp(failed) => {
                    self.give_up(&nodes, failed).inspect_err(|_| self.doubt())?;
                }
                Chore::Return => self.await_return()?,
                Chore::Wait => self.wait_for_grants()?,
                Chore::Turn => self.shared().clock().sleep(RETRY_PAUSE),
            }
        }
    }

    /// Waits a little for unreachable data servers, because not every client can retry. Few threads
    /// may do so, because a waiting thread serves no other request.
    fn wait_for_grants(&self) -> Result<()> {
        let waiters = &self.shared().grant_waiters;
        let is_admitted = waiters.fetch_add(1, Ordering::SeqCst) < GRANT_WAITERS_MAX;
        if is_admitted {
            self.shared().clock().sleep(RETRY_PAUSE);
        }
        waiters.fetch_sub(1, Ordering::SeqCst);
        if is_admitted { Ok(()) } else { Err(StoreError::Busy) }
    }

    /// Handles an operation that has failed on some fresh copies: they are given up, unless no
    /// fresh copy would remain.
    fn without<T>(record: &Record, failed: u8, error: StoreError) -> Result<Step<T>> {
        match record.fresh_mask() & !failed {
            0 => Err(error),
            _ => Ok(Step::First(Chore::GiveUp(failed))),
        }
    }

    /// Marks the record as torn, stably.
    fn tear(&self) -> Result<()> {
        let mut place = self.enter_exclusive()?;
        let Some((record, whole)) = copied(&place) else { return Err(StoreError::Busy) };
        if !whole.torn {
            let record = Record { whole: Some(Whole { torn: true, ..whole }), ..record.clone() };
            self.keep_stable(&mut place, record)?;
        }
        drop(place);
        self.note_torn();
        Ok(())
    }

    /// Marks copies as stale in the record, stably. `failed` holds their places among these nodes.
    fn give_up(&self, nodes: &[u32], failed: u8) -> Result<()> {
        let mut place = self.enter_exclusive()?;
        let Some((record, whole)) = copied(&place) else { return Err(StoreError::Busy) };
        if record.nodes != nodes {
            // Other copies have these places by now. The caller looks again.
            return Ok(());
        }
        let failed = failed & record.fresh_mask();
        if failed == record.fresh_mask() {
            return Err(StoreError::Busy);
        }
        if failed == 0 {
            return Ok(());
        }
        let stale = whole.stale | failed;
        self.shared().list_for_repair(self.id(), record, stale)?;
        let record = Record { whole: Some(Whole { stale, ..whole }), ..record.clone() };
        self.keep_stable(&mut place, record.clone())?;
        self.note_given_up(&record, failed);
        Ok(())
    }

    /// Handles a failure to give up copies that differ.
    fn doubt(&self) {
        // If the record cannot be read now, its next reader treats the copies as different anyway.
        let Ok(place) = self.enter() else { return };
        if let Some((record, _)) = copied(&place) {
            self.tell_apart(record, &mut self.copies().order());
        }
    }

    /// Changes the record, stably. The caller holds the gate exclusively.
    fn keep_stable(&self, place: &mut Place, record: Record) -> Result<()> {
        let kept = self.keep(&record).and_then(|()| self.sync_meta(&*self.writer()?));
        // After an error the content of the record is unknown.
        *place = if kept.is_ok() { Place::Striped(record) } else { Place::Unknown };
        kept
    }

    /// Applies a record that has marked some copies as stale. The caller holds the gate
    /// exclusively.
    pub(super) fn note_given_up(&self, record: &Record, failed: u8) {
        for at in places(failed) {
            let (node, component) = (record.nodes[at], record.component);
            tracing::warn!(node, %component, "a copy of a file is out of date from now on");
        }
        let copies = self.copies();
        let mut order = copies.order();
        order.may_hold_grants |= failed;
        places(failed).for_each(|at| order.unstable[at] = None);
        let authoritative = copies.authoritative();
        if record.fresh_mask().is_power_of_two() {
            copies.set_authoritative(&mut order, None);
        } else if authoritative.is_some_and(|at| failed & 1 << at != 0) {
            copies.set_authoritative(&mut order, record.fresh().next());
        }
        order.restart();
        drop(order);
        self.note_moved(record);
    }

    /// Reports a change of the file's placement, if clients know the placement.
    fn note_moved(&self, record: &Record) {
        if self.announce_again(record) {
            self.shared().moved.lock().push(self.id());
        }
    }

    /// Makes the data servers of the stale copies drop their cached authorisations for the file,
    /// because those copies will lack the next acknowledged write.
    fn drop_stale_grants(&self, record: &Record, order: &mut Order) -> Result<()> {
        for at in places(order.may_hold_grants) {
            // A node that is not configured any more cannot be asked.
            if self.shared().slot(record.nodes[at]).is_ok() {
                let dropped = self.at_copy(record, at, |node| node.drop_grants(&record.component));
                dropped.map_err(|_| StoreError::Busy)?;
            }
            order.may_hold_grants &= !(1 << at);
        }
        Ok(())
    }

    /// Does the same for a caller that holds the gate exclusively.
    pub(super) fn drop_stale_grants_exclusive(&self, record: &Record) -> Result<()> {
        match record.whole {
            Some(_) => self.drop_stale_grants(record, &mut self.copies().order()),
            None => Ok(()),
        }
    }

    /// Keeps the state of the file until its copies are known to be equal. False if there are too
    /// many such files: then the next user finds the file torn, and the verifiers of its unstable
    /// data are lost.
    fn note_torn(&self) -> bool {
        if self.shared().torn.lock().contains_key(&self.id()) {
            return true;
        }
        let own = self.shared().state(&self.id());
        let mut torn = self.shared().torn.lock();
        let noted = torn.len() < TORN_FILES_MAX || torn.contains_key(&self.id());
        let before = if noted { torn.insert(self.id(), own) } else { None };
        drop(torn);
        drop(before);
        noted
    }

    /// Takes over a record that an earlier use has left. The caller holds the gate exclusively.
    pub(super) fn note_loaded(&self, record: &Record) -> Result<()> {
        let Some(whole) = record.whole else { return Ok(()) };
        let copies = self.copies();
        let mut order = copies.order();
        order.may_hold_grants = whole.stale;
        if record.fresh_mask().is_power_of_two() {
            copies.set_authoritative(&mut order, None);
        } else if whole.torn && copies.authoritative().is_none_or(|at| whole.stale & 1 << at != 0) {
            let slot = |at: usize| self.shared().slot(record.nodes[at]);
            let there = |at: &usize| slot(*at).is_ok_and(|slot| slot.node.is_reachable());
            let authoritative = record.fresh().find(there).or_else(|| record.fresh().next());
            copies.set_authoritative(&mut order, authoritative);
        }
        drop(order);
        self.announce_again(record);
        if whole.torn {
            self.note_torn();
        }
        if whole.stale != 0 && !self.shared().repairs.has(&record.component) {
            self.shared().list_for_repair(self.id(), record, whole.stale)?;
        }
        Ok(())
    }

    /// Makes one of the copies authoritative, because they may differ for good. Prefers the first
    /// one that is reachable.
    fn choose_authoritative(
        &self,
        record: &Record,
        order: &mut Order,
        not: Option<usize>,
    ) -> Option<usize> {
        let size = |at: &usize| self.at_copy(record, *at, |node| node.size(&record.component));
        let authoritative =
            record.fresh().filter(|at| Some(*at) != not).find(|at| size(at).is_ok())?;
        self.copies().set_authoritative(order, Some(authoritative));
        self.note_moved(record);
        Some(authoritative)
    }

    /// Truncates the copies, and returns those for which that failed. The caller holds the gate
    /// exclusively.
    pub(super) fn truncate_copies(&self, record: &Record, size: u64) -> Result<u8> {
        let mut order = self.copies().order();
        order.restart();
        self.drop_stale_grants(record, &mut order)?;
        let (mut failed, mut trouble) = (0, StoreError::Busy);
        for at in record.fresh() {
            if let Err(error) =
                self.at_copy(record, at, |node| node.truncate(&record.component, size))
            {
                failed |= 1 << at;
                trouble = error;
            }
        }
        if failed == record.fresh_mask() {
            return Err(trouble);
        }
        if failed != 0 {
            let stale = record.whole.map_or(0, |whole| whole.stale) | failed;
            self.shared().list_for_repair(self.id(), record, stale)?;
        }
        Ok(failed)
    }

    /// Returns the size of the longest readable copy, of those that can be asked.
    pub(super) fn reach_of_copies(&self, record: &Record) -> Result<u64> {
        let mask = self.copies().authoritative().map_or(record.fresh_mask(), |at| 1 << at);
        let mut reach = Err(StoreError::Busy);
        for at in places(mask) {
            match self.at_copy(record, at, |node| node.size(&record.component)) {
                Ok(size) => reach = Ok(reach.unwrap_or(0).max(size)),
                Err(error) if reach.is_err() => reach = Err(error),
                Err(_) => {}
            }
        }
        reach
    }
}

/// Returns the record of a file with copies.
fn copied(place: &Place) -> Option<(&Record, Whole)> {
    match place {
        Place::Striped(record) => record.whole.map(|whole| (record, whole)),
        _ => None,
    }
}
