//! Repair of copies. Stale copies get the data that they lack, and copies that may differ
//! are made equal to the authoritative one. It goes on piece by piece, while the file is in use.
//!
//! Invariants
//! * While a copy is under repair, no client holds a layout for writing, and writers through this
//!   server write to that copy, too. A piece is read and written under the lock of writers
//!   (`Order`).
//! * A repair ends at once when the source or the target is given up, the file is truncated, or
//!   another copy becomes authoritative: each piece checks the epoch (`Order::turn`) first.
//! * A copy becomes fresh when all its data and all data of the source is stable, and neither node
//!   has lost data since before the first piece.

use super::super::pending::Entry;
use super::super::record::{Record, Whole, places};
use super::super::state::{FileState, Place};
use super::super::{Shared, StripedStore};
use super::{Order, Step, copied};
use crate::limits::{REPAIR_BAR, REPAIR_PIECE_BYTES, RETRY_PAUSE};
use dafs_mem::Shrinking as _;
use dafs_mem::VolatileSlice;
use dafs_store::node::{Digest, Node};
use dafs_store::{Result, Stability, Store, StoreError};
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::time::Duration;

/// A running repair.
struct Job {
    source: usize,
    target: usize,
    turn: u64,
    /// The write verifiers of the source and the target.
    verifiers: [u64; 2],
}

impl StripedStore {
    /// Repairs the copies that can be repaired now. Records of files that were not written for
    /// `idle` are marked as not torn. `pace` gets the number of compared bytes; it may sleep, and
    /// returns false to stop.
    pub fn repair(&self, idle: Duration, pace: &dyn Fn(usize) -> bool) {
        let shared = &self.shared;
        // Writers wait less if their data is stable already.
        let torn: Vec<_> = shared.torn.lock().values().cloned().collect();
        for state in torn {
            if !pace(0) {
                return;
            }
            if let Err(error) = state.calm(idle, pace) {
                tracing::debug!(%error, "copies of a file are not known to be alike yet");
            }
        }
        let entries = shared.as_server().and_then(|_server| shared.repairs.due());
        match shared.failing.repairs.news(&entries) {
            Some(Err(error)) => {
                tracing::error!(%error, "the list of files to be repaired cannot be read");
            }
            Some(Ok(_)) => tracing::info!("the list of files to be repaired can be read again"),
            None => {}
        }
        for entry in entries.unwrap_or_default() {
            if !pace(0) {
                return;
            }
            if let Err(error) = shared.repair_listed(&entry, pace) {
                tracing::debug!(component = %entry.component, %error, "a copy is not repaired yet");
            }
        }
    }

    /// Returns the number of files to be repaired on each node, by its number. Omits nodes without
    /// any.
    ///
    /// # Errors
    /// Those of the list.
    pub fn to_repair(&self) -> Result<FxHashMap<u32, u64>> {
        let _server = self.shared.as_server()?;
        self.shared.repairs.count()
    }
}

impl Shared {
    fn repair_listed(self: &Arc<Self>, entry: &Entry, pace: &dyn Fn(usize) -> bool) -> Result<()> {
        let gone = match self.meta.getattr(&entry.file) {
            Ok(attr) => attr.links == 0,
            Err(StoreError::Stale | StoreError::NotFound) => true,
            Err(error) => return Err(error),
        };
        let state = self.state(&entry.file);
        let is_it = |record: &Record| record.component == entry.component;
        if gone || !copied(&*state.enter()?).is_some_and(|(record, _)| is_it(record)) {
            let _server = self.as_server()?;
            return self.repairs.strike_off(&entry.component);
        }
        state.repair(pace)
    }
}

impl FileState {
    /// Repairs the copies of the file, one after the other.
    fn repair(&self, pace: &dyn Fn(usize) -> bool) -> Result<()> {
        while let Some(job) = self.begin_repair()? {
            let repaired = self.repair_pieces(&job, pace).and_then(|()| self.end_repair(&job));
            if let Err(error) = repaired {
                self.copies().order().restart();
                self.unbar();
                return Err(error);
            }
        }
        self.unbar();
        self.strike_off()
    }

    /// Finds a copy that can be repaired now, and begins. `None` if all copies are fresh and equal.
    fn begin_repair(&self) -> Result<Option<Job>> {
        let place = self.enter()?;
        let Some((record, whole)) = copied(&place) else { return Ok(None) };
        let mut order = self.copies().order();
        let authoritative = self.copies().authoritative();
        let torn = authoritative.map_or(0, |_| record.fresh_mask() & !order.alike);
        if torn | whole.stale == 0 {
            return Ok(None);
        }
        let size = |at: &usize| self.at_copy(record, *at, |node| node.size(&record.component));
        let early = order.repair_from.is_some_and(|from| from > self.shared().clock().now());
        let stale = if early { 0 } else { whole.stale };
        // A stale copy that is to leave its node is not repaired.
        let leaving = self.shared().slots.leaving();
        let stays = |at: &usize| !leaving.contains(&record.nodes[*at]);
        let mut targets = places(torn).chain(places(stale).filter(stays));
        let target = targets.find(|at| size(at).is_ok()).ok_or(StoreError::Busy)?;
        let mut sources =
            authoritative.into_iter().chain(record.fresh().filter(|_| authoritative.is_none()));
        let source = sources.find(|at| size(at).is_ok()).ok_or(StoreError::Busy)?;
        if self.bar(REPAIR_BAR) {
            drop((order, place));
            self.await_return()?;
            // `LENDING_PAUSE` keeps clients from new layouts for writing meanwhile.
            return self.begin_repair();
        }
        let mut verifiers = [0; 2];
        for (at, verifier) in [source, target].into_iter().zip(&mut verifiers) {
            self.at_copy(record, at, |node| node.drop_grants(&record.component))?;
            *verifier = self.at_copy(record, at, |node| node.commit(&record.component))?;
        }
        if *order.unstable[source].get_or_insert(verifiers[0]) != verifiers[0] {
            drop((order, place));
            // The commit gives the copy up, or makes the writers write again.
            return self.commit_copies().and(Err(StoreError::Busy));
        }
        order.repairing = Some(target);
        Ok(Some(Job { source, target, turn: order.turn, verifiers }))
    }

    fn repair_pieces(&self, job: &Job, pace: &dyn Fn(usize) -> bool) -> Result<()> {
        let mut wanted = vec![0; REPAIR_PIECE_BYTES];
        let mut offset = 0;
        loop {
            let place = self.enter()?;
            let Some((record, _)) = copied(&place) else { return Err(StoreError::Busy) };
            let order = self.copies().order();
            order.check(job)?;
            let piece = || {
                let views = [VolatileSlice::from_mut(&mut wanted)];
                let read = |node: &dyn Node| node.read(&record.component, &views, offset);
                let count = self.at_copy(record, job.source, read)?;
                if !self.has_bytes(record, job.target, offset, &wanted[..count])? {
                    let views = [VolatileSlice::from_mut(&mut wanted[..count])];
                    let unstable = Stability::Unstable;
                    let verifier =
                        self.write_whole(record, job.target, &views, offset, unstable)?;
                    if verifier != job.verifiers[1] {
                        return Err(StoreError::Busy);
                    }
                }
                Ok(Some(count))
            };
            let count = match run(piece) {
                Ok(Some(0)) => return Ok(()),
                done => done?.unwrap_or(0),
            };
            drop((order, place));
            if count == 0 {
                self.shared().clock().sleep(RETRY_PAUSE);
            }
            offset += count as u64;
            self.bar(REPAIR_BAR);
            if !pace(count) {
                return Err(StoreError::Busy);
            }
        }
    }

    /// True if the device of a copy has these bytes. It may be able to write what it cannot read.
    fn has_bytes(&self, record: &Record, at: usize, offset: u64, bytes: &[u8]) -> Result<bool> {
        let (component, len) = (&record.component, bytes.len());
        match self.at_copy(record, at, |node| node.digest(component, offset, len)) {
            Ok(digest) => Ok(digest == Digest::of(component, bytes, len)),
            Err(StoreError::Io) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Makes the repaired copy fresh.
    fn end_repair(&self, job: &Job) -> Result<()> {
        let mut place = self.enter_exclusive()?;
        let Some((record, whole)) = copied(&place) else { return Err(StoreError::Busy) };
        let record = record.clone();
        let mut order = self.copies().order();
        order.check(job)?;
        let size = self.at_copy(&record, job.source, |node| node.size(&record.component))?;
        self.at_copy(&record, job.target, |node| node.truncate(&record.component, size))?;
        for (at, verifier) in [job.source, job.target].into_iter().zip(job.verifiers) {
            if self.at_copy(&record, at, |node| node.commit(&record.component))? != verifier {
                return Err(StoreError::Busy);
            }
        }
        let bit = 1 << job.target;
        let mut repaired = record;
        if whole.stale & bit != 0 {
            repaired.whole = Some(Whole { stale: whole.stale & !bit, ..whole });
            self.keep_stable(&mut place, repaired.clone())?;
            order.may_hold_grants &= !bit;
        }
        order.unstable[job.target] = Some(job.verifiers[1]);
        order.alike |= bit;
        order.restart();
        if order.alike & repaired.fresh_mask() == repaired.fresh_mask() {
            self.copies().set_authoritative(&mut order, None);
        }
        drop(order);
        self.note_moved(&repaired);
        tracing::info!(node = repaired.nodes[job.target], component = %repaired.component, "a copy is repaired");
        Ok(())
    }

    /// Strikes the file off the list of files to be repaired, if no copy is stale.
    fn strike_off(&self) -> Result<()> {
        let place = self.enter_exclusive()?;
        match copied(&place) {
            Some((record, whole)) if whole.stale == 0 => {
                let _server = self.shared().as_server()?;
                self.shared().repairs.strike_off(&record.component)
            }
            _ => Ok(()),
        }
    }

    /// Marks the record as not torn, when no writer is active and all data is stable on all copies.
    /// First makes copies equal that may differ.
    fn calm(&self, idle: Duration, pace: &dyn Fn(usize) -> bool) -> Result<()> {
        match self.attr() {
            Ok(attr) if attr.links > 0 => {}
            // A file without a name will not be found again.
            Ok(_) | Err(StoreError::Stale | StoreError::NotFound) => {
                self.forget_torn();
                return Ok(());
            }
            Err(error) => return Err(error),
        }
        if self.copies().authoritative().is_some()
            && let Err(error) = self.repair(pace)
            && self.copies().authoritative().is_some()
        {
            return Err(error);
        }
        if self.is_lent() {
            self.ask_lent(false);
            return Ok(());
        }
        let now = self.shared().clock().now();
        let is_idle = |order: &Order| {
            order.written.is_none_or(|at| now.saturating_duration_since(at) >= idle)
        };
        let writes = self.on_copies(|record, order| {
            if !is_idle(order) || self.copies().authoritative().is_some() || self.is_lent() {
                return Ok(Step::Done(None));
            }
            Ok(match self.commit_step(record, order)? {
                Step::Done(()) => Step::Done(Some((order.writes, self.lends()))),
                Step::First(chore) => Step::First(chore),
            })
        })?;
        let Some(writes) = writes else { return Ok(()) };
        let mut place = self.enter_exclusive()?;
        let Some((record, whole)) = copied(&place) else { return Ok(()) };
        let order = self.copies().order();
        let same = writes == (order.writes, self.lends());
        if same && !self.is_lent() && self.copies().authoritative().is_none() {
            let calm = Record { whole: Some(Whole { torn: false, ..whole }), ..record.clone() };
            if whole.torn {
                // If a crash undoes this change, the next run compares the copies once more.
                let kept = self.keep(&calm);
                *place = if kept.is_ok() { Place::Striped(calm) } else { Place::Unknown };
                kept?;
            }
            drop((order, place));
            self.forget_torn();
        }
        Ok(())
    }

    fn forget_torn(&self) {
        // The last reference to the state is dropped after the lock is released.
        let known = self.shared().torn.lock().remove_and_shrink(&self.id());
        drop(known);
    }
}

/// Runs the repair of a piece. `None` if a node is crowded.
fn run(piece: impl FnOnce() -> Result<Option<usize>>) -> Result<Option<usize>> {
    match piece() {
        Err(StoreError::Crowded) => Ok(None),
        done => done,
    }
}

impl Order {
    fn check(&self, job: &Job) -> Result<()> {
        match self.turn == job.turn && self.repairing == Some(job.target) {
            true => Ok(()),
            false => Err(StoreError::Busy),
        }
    }
}
