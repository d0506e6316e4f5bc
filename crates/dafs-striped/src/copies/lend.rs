//! Copies that clients read and write themselves, by layouts.
//!
//! Invariants
//! * Before a client gets a layout for writing, the record is stably marked as torn, and the write
//!   verifiers of all fresh copies are known.
//! * While clients hold layouts for writing, this server does not write and repairs no copy.

use super::super::record::{Record, places};
use super::super::state::FileState;
use super::super::{Shared, StripedStore};
use super::{Chore, Lending, Step};
use crate::limits::{COPY_REPORT_PAUSE, LENDING_PAUSE, RETURN_WAIT};
use dafs_store::node::ComponentId;
use dafs_store::{CopyState, DeviceKey, FileCopy, FileId, Placement, Result, Spread, StoreError};
use siphasher::sip128::{Hasher128, SipHasher24};
use std::hash::Hasher;
use std::sync::MutexGuard;
use std::time::Duration;

impl Shared {
    /// Returns the placement of some of the copies, and the copies that it names. It leaves out
    /// those without a device.
    fn copies_placement(&self, record: &Record, mask: u8) -> Option<(Placement, u8)> {
        let (mut copies, mut told) = (Vec::new(), 0);
        let mut epoch = SipHasher24::new_with_key(&record.component.0);
        // Before devices and handles are made with it.
        epoch.write(&self.options.component_keys.own());
        for at in places(mask) {
            let Some(device) = self.device_of_copy(record, at) else { continue };
            let handle = self.seal(record, record.nodes[at], (0, 1));
            copies.push(FileCopy { device, handle });
            told |= 1 << at;
        }
        places(told).for_each(|at| epoch.write_u32(record.nodes[at]));
        let epoch = epoch.finish128().h1;
        (told != 0).then_some((Placement { epoch, spread: Spread::Copies(copies) }, told))
    }

    fn device_of_copy(&self, record: &Record, at: usize) -> Option<DeviceKey> {
        self.note_device(&[self.slots.find(record.nodes[at])?])
    }
}

impl FileState {
    fn lending(&self) -> MutexGuard<'_, Lending> {
        self.copies().lending.lock()
    }

    pub(in super::super) fn is_lent(&self) -> bool {
        self.lending().lent
    }

    /// Returns the number of layouts for writing that were given out.
    pub(super) fn lends(&self) -> u64 {
        self.lending().lends
    }

    /// Gives out no layouts for writing for the given time. True if clients hold some now.
    pub(super) fn bar(&self, time: Duration) -> bool {
        let until = self.shared().clock().now() + time;
        let mut lending = self.lending();
        lending.barred_until = lending.barred_until.max(Some(until));
        lending.lent
    }

    pub(super) fn unbar(&self) {
        self.lending().barred_until = None;
    }

    /// Asks the service if clients still hold layouts for writing. With `recall` it recalls them.
    pub(super) fn ask_lent(&self, recall: bool) {
        let mut asked = self.shared().asked.lock();
        *asked.entry(self.id()).or_default() |= recall;
    }

    /// Waits for a limited time until no client holds a layout for writing.
    pub(in super::super) fn await_return(&self) -> Result<()> {
        self.bar(LENDING_PAUSE);
        self.ask_lent(true);
        let lent = |lending: &mut Lending| lending.lent;
        let waited = self.copies().returned.wait_timeout_while(self.lending(), RETURN_WAIT, lent);
        match waited.1.timed_out() {
            false => Ok(()),
            true => Err(StoreError::Busy),
        }
    }

    /// Returns the placement for a layout.
    pub(in super::super) fn place_copies(&self, write: bool) -> Result<Option<Placement>> {
        if !write {
            let place = self.enter()?;
            let Some((record, _)) = super::copied(&place) else { return Ok(None) };
            let mask = self.copies().authoritative().map_or(record.fresh_mask(), |at| 1 << at);
            self.announce(record);
            return Ok(self
                .shared()
                .copies_placement(record, mask)
                .map(|(placement, _)| placement));
        }
        self.on_copies(|record, order| {
            if self.is_full() {
                return Err(StoreError::NoSpace);
            }
            let now = self.shared().clock().now();
            let barred = self.lending().barred_until.is_some_and(|until| until > now);
            // The repair of a piece may take longer than `barred_until`.
            if barred || order.repairing.is_some() || self.copies().authoritative().is_some() {
                return Ok(Step::Done(None));
            }
            if record.whole.is_some_and(|whole| !whole.torn) {
                return Ok(Step::First(Chore::Tear));
            }
            self.drop_stale_grants(record, order)?;
            let mut failed = 0;
            for at in record.fresh() {
                match self.at_copy(record, at, |node| node.commit(&record.component)) {
                    Ok(verifier) if *order.unstable[at].get_or_insert(verifier) == verifier => {}
                    // A crowded node gets no further writer.
                    Err(StoreError::Crowded) => return Ok(Step::Done(None)),
                    _ => failed |= 1 << at,
                }
            }
            if failed != 0 {
                return Self::without(record, failed, StoreError::Busy);
            }
            // The write verifiers must outlive the opens of the file.
            if !self.note_torn() {
                return Ok(Step::Done(None));
            }
            let fresh = record.fresh_mask();
            let Some((placement, told)) = self.shared().copies_placement(record, fresh) else {
                return Ok(Step::Done(None));
            };
            // A writer must write to all fresh copies.
            if told != fresh {
                return Ok(Step::Done(None));
            }
            self.open_to_writers(record)?;
            self.announce(record);
            let mut lending = self.lending();
            lending.lent = true;
            lending.lends += 1;
            Ok(Step::Done(Some(placement)))
        })
    }

    /// Handles a client's report that it cannot write to a device. The copy there is given up, if
    /// another one is left. The device may be one from before a restart of the data server.
    pub(in super::super) fn report_copy(&self, device: &DeviceKey) -> Result<()> {
        self.on_copies(|record, order| {
            let told = self.shared().nodes_of_device(device);
            let is_it = |at: &usize| told.contains(&record.nodes[*at]);
            match record.fresh().find(is_it) {
                Some(at) if record.fresh_mask() != 1 << at => {
                    order.note_report(self.shared().clock().now());
                    Ok(Step::First(Chore::GiveUp(1 << at)))
                }
                _ => self.drop_stale_grants(record, order).map(Step::Done),
            }
        })
    }

    /// Handles a client's report that a device is full. Its copy is not given up, because a repair
    /// would find no room either. Other copies may have data that the client could not write there.
    /// So the full copy becomes authoritative, and the others are made equal to it, which needs no
    /// room. Writers get `NoSpace` for a while, because a repair compares whole copies and must not
    /// begin again at once.
    pub(in super::super) fn report_full_copy(&self, device: &DeviceKey) -> Result<()> {
        self.on_copies(|record, order| {
            if self.is_full() {
                return Ok(Step::Done(()));
            }
            let told = self.shared().nodes_of_device(device);
            let Some(full) = record.fresh().find(|at| told.contains(&record.nodes[*at])) else {
                return Ok(Step::Done(()));
            };
            if record.whole.is_some_and(|whole| !whole.torn) {
                return Ok(Step::First(Chore::Tear));
            }
            if self.copies().authoritative().is_none() && !record.fresh_mask().is_power_of_two() {
                self.copies().set_authoritative(order, Some(full));
                self.note_moved(record);
            }
            self.tell_apart(record, order);
            self.set_loose();
            let until = self.shared().clock().now() + COPY_REPORT_PAUSE;
            self.lending().full_until = Some(until);
            Ok(Step::Done(()))
        })
    }

    /// True if a client has found a full device a short while ago.
    fn is_full(&self) -> bool {
        let now = self.shared().clock().now();
        self.lending().full_until.is_some_and(|until| until > now)
    }

    /// Recovers from a client that has disappeared with a layout for writing. Its last writes may
    /// have reached only some copies. The size becomes that of the authoritative copy.
    pub(in super::super) fn settle_copies(&self) -> Result<()> {
        self.on_copies(|record, order| {
            if record.whole.is_some_and(|whole| !whole.torn) {
                return Ok(Step::First(Chore::Tear));
            }
            self.tell_apart(record, order);
            self.set_loose();
            self.adopt(record).map(Step::Done)
        })
    }

    /// Extends the size to the data that clients have written by layouts. They still hold these, so
    /// their copies are not compared.
    pub(in super::super) fn reach_copies(&self) -> Result<()> {
        self.on_copies(|record, _| {
            self.set_loose();
            self.adopt(record).map(Step::Done)
        })
    }

    /// Returns the copies, for administrators.
    pub(in super::super) fn list_copies(&self) -> Result<Vec<CopyState>> {
        let place = self.enter()?;
        let Some((record, _)) = super::copied(&place) else { return Ok(Vec::new()) };
        let fresh = self.copies().authoritative().map_or(record.fresh_mask(), |at| 1 << at);
        let state = |(at, &node): (usize, &u32)| {
            let addresses = self.shared().slot(node).map(|slot| slot.node.addresses());
            let addresses = addresses.unwrap_or_default();
            CopyState { node, addresses, fresh: fresh & 1 << at != 0 }
        };
        Ok(record.nodes.iter().enumerate().map(state).collect())
    }
}

impl StripedStore {
    /// True if clients may use the copy on a node. They may not use a stale copy, or one that the
    /// record does not name any more.
    pub fn may_be_used(&self, component: &ComponentId, node: u32) -> bool {
        let files = self.shared.files.lock();
        let usable = files.get(component).and_then(|known| known.usable.as_ref());
        usable.is_none_or(|nodes| nodes.contains(&node))
    }

    /// Asks `sink` about clients that hold layouts for writing.
    pub(in super::super) fn ask_of_lent(&self, sink: &mut dyn FnMut(FileId, bool) -> bool) {
        let asked = std::mem::take(&mut *self.shared.asked.lock());
        let now = self.shared.clock().now();
        for (file, recall) in asked {
            let state = self.shared.state(&file);
            // `sink` does not know layouts that are given out from now on.
            let lends = state.lending().lends;
            let none = sink(file, recall);
            let mut lending = state.lending();
            if none && lending.lends == lends {
                lending.lent = false;
                drop(lending);
                state.copies().returned.notify_all();
            } else if recall && lending.barred_until.is_some_and(|until| until > now) {
                drop(lending);
                state.ask_lent(true);
            }
        }
    }
}
