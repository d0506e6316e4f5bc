//! Files of which each of some nodes has the whole: copies.
//!
//! What is not obvious
//! * A copy is fresh if it has all that anybody was told to be stable. The record says which are not
//!   (stale), and whether the fresh ones may differ in what nobody was told of (torn): it says so before
//!   anybody writes, until all of it is stable everywhere and nobody writes.
//! * A record that says so and is found by a new run, or a writer that went without a word, leave copies
//!   that may differ for good. One of them is the truth then: it alone is read, until the others have been
//!   made like it (`mend`).
//! * Clients that hold a layout for writing write all copies themselves, and overlapping writes of theirs
//!   and of this server would come to them in different orders. So this server has their layouts given
//!   back before it writes; meanwhile and while a file is mended they get none.
//!
//! Invariants
//! * What cannot be done on a copy is acknowledged only after the record says, stably, that the copy is
//!   stale, and after its data server has been told to forget what it knew of the file, or believes
//!   nothing any more. There is always a fresh one.
//! * Writers through this server write to all copies under one lock for each file (`Order`), mending goes
//!   on under the same, piece by piece, and writers write to the copy that is being mended, too.
//! * A copy whose write verifier is another one than before the first write to it that is not known to be
//!   stable has lost something: it is not counted when that is made stable.
//! * Lock order: the gate of the file, `order`, `lending`.

mod io;
mod leave;
mod lend;
mod lose;
mod mend;

pub use leave::Leaving;

use super::pending::Entry;
use super::record::{Record, Whole, places, remapped};
use super::state::{FileState, Place};
use super::{Shared, lock};
use crate::limits::{
    COPY_ATTEMPTS_MAX, COPY_REPORT_PAUSE, COPY_REPORT_PAUSE_MAX, COPY_TURNS_MAX, SURE_NAP,
    SURE_NAPS_MAX, SURE_WAITERS_MAX, TORN_FILES_MAX,
};
use dafs_store::node::Node;
use dafs_store::{COPIES_MAX, FileId, Result, StoreError};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Instant;

/// All copies are as good as each other.
const ALL_ALIKE: u8 = u8::MAX;

/// What is known of the copies of one file in use.
pub(super) struct Copies {
    order: Mutex<Order>,
    /// The copy that alone is read because others may differ from it. Changed with `order` locked, or
    /// alone behind the gate.
    truth: AtomicU8,
    lending: Mutex<Lending>,
    /// Clients do not write by themselves any more.
    returned: Condvar,
}

/// In what order the copies are written, and what is known of that.
#[derive(Default)]
pub(super) struct Order {
    /// For each copy its write verifier, from before what may not be stable there.
    unstable: [Option<u64>; COPIES_MAX],
    /// Stale copies whose data servers may still go by what they were told.
    unsure: u8,
    /// Fresh copies that have been made like the truth.
    alike: u8,
    /// The copy that is being mended.
    mending: Option<usize>,
    /// Another one whenever what is being mended has to be begun again.
    turn: u64,
    /// How often somebody has begun to write through this server, and when last.
    writes: u64,
    written: Option<Instant>,
    /// How often clients said that they cannot write somewhere, and since when that is looked after.
    reports: u32,
    mend_from: Option<Instant>,
}

/// Whether clients write to the copies by themselves.
#[derive(Default)]
struct Lending {
    lent: bool,
    /// How often that was allowed.
    lends: u64,
    /// Nobody else is allowed to before.
    barred_until: Option<Instant>,
    /// A client has found no room: who wants to write is told that there is none before that time.
    full_until: Option<Instant>,
}

/// How an attempt has ended that nobody else is in the way of.
enum Step<T> {
    Done(T),
    /// Something has to be done alone first.
    First(Chore),
}

enum Chore {
    /// Let the record say that somebody writes.
    Tear,
    /// Let the record say that copies are stale.
    GiveUp(u8),
    /// Have clients give their layouts for writing back.
    Return,
    /// Wait until data servers of stale copies believe nothing any more.
    Wait,
    /// Wait until a node has served others: its copy is none the worse for that.
    Turn,
}

impl Default for Copies {
    fn default() -> Self {
        Self {
            order: Mutex::default(),
            truth: AtomicU8::new(ALL_ALIKE),
            lending: Mutex::default(),
            returned: Condvar::new(),
        }
    }
}

impl Copies {
    fn order(&self) -> MutexGuard<'_, Order> {
        lock(&self.order)
    }

    /// The copy that alone is read now, if it is not any fresh one.
    fn truth(&self) -> Option<usize> {
        match self.truth.load(Ordering::SeqCst) {
            ALL_ALIKE => None,
            at => Some(at.into()),
        }
    }

    fn set_truth(&self, order: &mut Order, truth: Option<usize>) {
        let truth = truth.and_then(|at| u8::try_from(at).ok());
        order.alike = truth.map_or(0, |at| 1 << at);
        order.restart();
        self.truth.store(truth.unwrap_or(ALL_ALIKE), Ordering::SeqCst);
    }
}

impl Order {
    /// What is being mended is worth nothing.
    fn restart(&mut self) {
        self.turn += 1;
        self.mending = None;
    }

    /// Only the copies of these places are left, in this order.
    fn keep(&mut self, kept: &[usize]) {
        let before = std::mem::take(&mut self.unstable);
        for (now, &at) in self.unstable.iter_mut().zip(kept) {
            *now = before[at];
        }
        self.unsure = remapped(self.unsure, kept);
        self.alike = remapped(self.alike, kept);
        self.restart();
    }

    /// A client cannot write to a copy: it may be the client, so that is not looked after at once.
    fn note_report(&mut self) {
        let pause = COPY_REPORT_PAUSE * 2u32.saturating_pow(self.reports.min(16));
        self.reports = self.reports.saturating_add(1);
        self.mend_from = Some(Instant::now() + pause.min(COPY_REPORT_PAUSE_MAX));
    }
}

impl Shared {
    /// Lists a file for its stale copies to be mended.
    fn list_to_mend(&self, file: FileId, record: &Record, stale: u8) -> Result<()> {
        let nodes = places(stale).map(|at| record.nodes[at]).collect();
        let _server = self.as_server()?;
        self.mends.enter(&Entry { component: record.component, file, nodes })
    }
}

impl FileState {
    /// Spreads a file that is placed now over some nodes, with those first that are there: the others have
    /// their copies made when they are.
    pub(super) fn make_whole(&self, record: &mut Record) -> Result<()> {
        let shared = self.shared();
        let slots = shared.slots.staying();
        let mut nodes: Vec<_> = slots.iter().map(|slot| &*slot.node).collect();
        let first = usize::from(record.first) % nodes.len();
        nodes.rotate_left(first);
        let all_away = !nodes.iter().any(|node| node.is_there());
        nodes.sort_by_key(|node| !node.is_there());
        nodes.truncate(shared.options.copies);
        let away = |(at, node): (usize, &&dyn Node)| match all_away || node.is_there() {
            true => 0,
            false => 1 << at,
        };
        let stale = nodes.iter().enumerate().map(away).fold(0, |all, bit| all | bit);
        record.nodes = nodes.iter().map(|node| node.number()).collect();
        record.first = 0;
        record.whole = Some(Whole { stale, torn: true });
        if stale != 0 {
            shared.list_to_mend(self.id(), record, stale)?;
        }
        self.note_torn();
        Ok(())
    }

    /// Runs something on a node of a copied file.
    fn at_copy<T>(
        &self,
        record: &Record,
        at: usize,
        run: impl FnOnce(&dyn Node) -> Result<T>,
    ) -> Result<T> {
        let _server = self.shared().as_server()?;
        run(&*self.shared().slot(record.nodes[at])?.node)
    }

    /// Attempts something on the copies, in the order of all that change them, and does before what it
    /// says is to be done first.
    fn on_copies<T>(
        &self,
        mut attempt: impl FnMut(&Record, &mut Order) -> Result<Step<T>>,
    ) -> Result<T> {
        let (mut attempts, mut naps) = (0..COPY_ATTEMPTS_MAX, 0..SURE_NAPS_MAX);
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
                Chore::Wait => &mut naps,
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
                Chore::Wait => self.nap()?,
                Chore::Turn => std::thread::sleep(SURE_NAP),
            }
        }
    }

    /// Waits a little for data servers that cannot be reached: not every client knows how to come again.
    /// Few do, because threads that wait serve nobody.
    fn nap(&self) -> Result<()> {
        let napping = &self.shared().napping;
        let is_admitted = napping.fetch_add(1, Ordering::SeqCst) < SURE_WAITERS_MAX;
        if is_admitted {
            std::thread::sleep(SURE_NAP);
        }
        napping.fetch_sub(1, Ordering::SeqCst);
        if is_admitted { Ok(()) } else { Err(StoreError::Busy) }
    }

    /// Something cannot be done on some fresh copies. On the others it can, unless there are none.
    fn without<T>(record: &Record, failed: u8, error: StoreError) -> Result<Step<T>> {
        match record.fresh_mask() & !failed {
            0 => Err(error),
            _ => Ok(Step::First(Chore::GiveUp(failed))),
        }
    }

    /// Says in the record that somebody writes.
    fn tear(&self) -> Result<()> {
        let mut place = self.enter_alone()?;
        let Some((record, whole)) = copied(&place) else { return Err(StoreError::Busy) };
        if !whole.torn {
            let record = Record { whole: Some(Whole { torn: true, ..whole }), ..record.clone() };
            self.keep_stable(&mut place, record)?;
        }
        drop(place);
        self.note_torn();
        Ok(())
    }

    /// Says in the record that copies are stale, which are counted by their places among these nodes.
    fn give_up(&self, nodes: &[u32], failed: u8) -> Result<()> {
        let mut place = self.enter_alone()?;
        let Some((record, whole)) = copied(&place) else { return Err(StoreError::Busy) };
        if record.nodes != nodes {
            // Copies have left or come meanwhile, and others have these places: whoever asks finds out anew.
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
        self.shared().list_to_mend(self.id(), record, stale)?;
        let record = Record { whole: Some(Whole { stale, ..whole }), ..record.clone() };
        self.keep_stable(&mut place, record.clone())?;
        self.note_given_up(&record, failed);
        Ok(())
    }

    /// Copies that differ could not be given up.
    fn doubt(&self) {
        // Who reads the record anew takes them to differ by itself.
        let Ok(place) = self.enter() else { return };
        if let Some((record, _)) = copied(&place) {
            self.tell_apart(record, &mut self.copies().order());
        }
    }

    /// Changes the record, stably. The caller is alone.
    fn keep_stable(&self, place: &mut Place, record: Record) -> Result<()> {
        let kept = self.keep(&record).and_then(|()| self.sync_meta(&*self.writer()?));
        // What is kept is not known after an error.
        *place = if kept.is_ok() { Place::Striped(record) } else { Place::Unknown };
        kept
    }

    /// The record says now that some copies are stale. The caller is alone behind the gate.
    pub(super) fn note_given_up(&self, record: &Record, failed: u8) {
        for at in places(failed) {
            let (node, component) = (record.nodes[at], record.component);
            tracing::warn!(node, %component, "a copy of a file is out of date from now on");
        }
        let copies = self.copies();
        let mut order = copies.order();
        order.unsure |= failed;
        places(failed).for_each(|at| order.unstable[at] = None);
        let truth = copies.truth();
        if record.fresh_mask().is_power_of_two() {
            copies.set_truth(&mut order, None);
        } else if truth.is_some_and(|at| failed & 1 << at != 0) {
            copies.set_truth(&mut order, record.fresh().next());
        }
        order.restart();
        drop(order);
        self.note_moved(record);
    }

    /// Clients that were told where the file lies are to be told anew.
    fn note_moved(&self, record: &Record) {
        if self.announce_again(record) {
            lock(&self.shared().moved).push(self.id());
        }
    }

    /// What is acknowledged from now on is not on the stale copies: has their data servers let go of the
    /// file first.
    fn be_sure(&self, record: &Record, order: &mut Order) -> Result<()> {
        for at in places(order.unsure) {
            // One that is not configured any more has nobody to ask.
            if self.shared().slot(record.nodes[at]).is_ok() {
                let forgotten = self.at_copy(record, at, |node| node.forget(&record.component));
                forgotten.map_err(|_| StoreError::Busy)?;
            }
            order.unsure &= !(1 << at);
        }
        Ok(())
    }

    /// The same for what is done alone.
    pub(super) fn be_sure_alone(&self, record: &Record) -> Result<()> {
        match record.whole {
            Some(_) => self.be_sure(record, &mut self.copies().order()),
            None => Ok(()),
        }
    }

    /// Keeps the file in mind until its copies are known to be alike. False if there are too many: such a
    /// one is found torn by its next user, and what may be lost of it is not known any more.
    fn note_torn(&self) -> bool {
        if lock(&self.shared().torn).contains_key(&self.id()) {
            return true;
        }
        let own = self.shared().state(&self.id());
        let mut torn = lock(&self.shared().torn);
        let noted = torn.len() < TORN_FILES_MAX || torn.contains_key(&self.id());
        let before = if noted { torn.insert(self.id(), own) } else { None };
        drop(torn);
        drop(before);
        noted
    }

    /// A record was read that an earlier use has left. The caller is alone.
    pub(super) fn note_loaded(&self, record: &Record) -> Result<()> {
        let Some(whole) = record.whole else { return Ok(()) };
        let copies = self.copies();
        let mut order = copies.order();
        order.unsure = whole.stale;
        if record.fresh_mask().is_power_of_two() {
            copies.set_truth(&mut order, None);
        } else if whole.torn && copies.truth().is_none_or(|at| whole.stale & 1 << at != 0) {
            let slot = |at: usize| self.shared().slot(record.nodes[at]);
            let there = |at: &usize| slot(*at).is_ok_and(|slot| slot.node.is_there());
            let truth = record.fresh().find(there).or_else(|| record.fresh().next());
            copies.set_truth(&mut order, truth);
        }
        drop(order);
        self.announce_again(record);
        if whole.torn {
            self.note_torn();
        }
        if whole.stale != 0 && !self.shared().mends.has(&record.component) {
            self.shared().list_to_mend(self.id(), record, whole.stale)?;
        }
        Ok(())
    }

    /// Copies may differ for good: one of them is the truth from now on, the first one if it is there.
    fn choose_truth(
        &self,
        record: &Record,
        order: &mut Order,
        not: Option<usize>,
    ) -> Option<usize> {
        let size = |at: &usize| self.at_copy(record, *at, |node| node.size(&record.component));
        let truth = record.fresh().filter(|at| Some(*at) != not).find(|at| size(at).is_ok())?;
        self.copies().set_truth(order, Some(truth));
        self.note_moved(record);
        Some(truth)
    }

    /// Cuts the copies, and says on which that could not be done. The caller is alone.
    pub(super) fn cut_copies(&self, record: &Record, size: u64) -> Result<u8> {
        let mut order = self.copies().order();
        order.restart();
        self.be_sure(record, &mut order)?;
        let (mut failed, mut trouble) = (0, StoreError::Busy);
        for at in record.fresh() {
            if let Err(error) = self.at_copy(record, at, |node| node.cut(&record.component, size)) {
                failed |= 1 << at;
                trouble = error;
            }
        }
        if failed == record.fresh_mask() {
            return Err(trouble);
        }
        if failed != 0 {
            let stale = record.whole.map_or(0, |whole| whole.stale) | failed;
            self.shared().list_to_mend(self.id(), record, stale)?;
        }
        Ok(failed)
    }

    /// How far the copies reach that may be read, as far as they can be asked.
    pub(super) fn reach_of_copies(&self, record: &Record) -> Result<u64> {
        let mask = self.copies().truth().map_or(record.fresh_mask(), |at| 1 << at);
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

/// The record of a file with copies.
fn copied(place: &Place) -> Option<(&Record, Whole)> {
    match place {
        Place::Striped(record) => record.whole.map(|whole| (record, whole)),
        _ => None,
    }
}
