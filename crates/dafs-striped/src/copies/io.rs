//! Reading and writing copies, and making them stable.

use super::super::record::{Record, places};
use super::super::state::FileState;
use super::{Chore, Order, Step};
use dafs_mem::VolatileSlice;
use dafs_store::backend::{after, before};
use dafs_store::{OpenFile, Result, Stability, StoreError};

impl FileState {
    /// Reads from one of the copies, and from another one if that fails. Bytes that the copy lacks
    /// read as zeros.
    pub(in super::super) fn read_copies(
        &self,
        record: &Record,
        size: u64,
        views: &[VolatileSlice<'_>],
        offset: u64,
    ) -> Result<usize> {
        let wanted: usize = views.iter().map(VolatileSlice::len).sum();
        let there = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX);
        let part = before(views, wanted.min(there));
        let len = part.iter().map(VolatileSlice::len).sum();
        if len == 0 {
            return Ok(0);
        }
        let read =
            |at| self.at_copy(record, at, |node| node.read(&record.component, &part, offset));
        let filled = |count| {
            after(&part, count).iter().for_each(|view| view.fill(0));
            len
        };
        if let Some(authoritative) = self.copies().authoritative() {
            let error = match read(authoritative) {
                Ok(count) => return Ok(filled(count)),
                // The node is reachable, and another copy may have different data.
                Err(StoreError::Crowded) => return Err(StoreError::Busy),
                Err(error) => error,
            };
            let mut order = self.copies().order();
            // Another thread may have chosen another copy before.
            let other = match self.copies().authoritative() {
                Some(now) if now == authoritative => {
                    self.choose_authoritative(record, &mut order, Some(authoritative))
                }
                now => now,
            };
            drop(order);
            return read(other.ok_or(error)?).map(filled).map_err(StoreError::of_node);
        }
        let mut trouble = StoreError::Busy;
        // All readers begin with the same copy, so that they see the same data.
        for at in record.fresh() {
            match read(at) {
                Ok(count) => return Ok(filled(count)),
                Err(error) => trouble = error,
            }
        }
        Err(trouble.of_node())
    }

    /// Writes to all copies, and extends the size to the end of the data. Acknowledges the whole
    /// range or none of it.
    pub(in super::super) fn write_copies(
        &self,
        meta: &dyn OpenFile,
        views: &[VolatileSlice<'_>],
        offset: u64,
        stability: Stability,
    ) -> Result<usize> {
        let len: usize = views.iter().map(VolatileSlice::len).sum();
        let mut parted = false;
        let written = self.on_copies(|record, order| {
            if let Some(step) = self.in_the_way(record, order)? {
                return Ok(step);
            }
            // Without the state of the file a loss of unstable data would go unnoticed.
            let stability = match stability {
                Stability::Unstable if !self.note_torn() => Stability::Data,
                wanted => wanted,
            };
            order.writes += 1;
            order.written = Some(self.shared().clock().now());
            let (mut failed, mut trouble, mut crowded) = (0, StoreError::Busy, false);
            parted = true;
            for at in record.fresh() {
                match self.write_whole(record, at, views, offset, stability) {
                    Ok(verifier) if stability == Stability::Unstable => {
                        order.unstable[at].get_or_insert(verifier);
                    }
                    Ok(_) => {}
                    Err(StoreError::Crowded) => crowded = true,
                    Err(error) => {
                        failed |= 1 << at;
                        trouble = worse(trouble, error);
                    }
                }
            }
            if failed != 0 {
                self.set_loose();
                order.restart();
                // Some copies may have the data, or a part of it.
                if failed == record.fresh_mask() || is_of_space(trouble) {
                    parted = false;
                    self.tell_apart(record, order);
                    return Err(trouble);
                }
                return Self::without(record, failed, trouble);
            }
            if crowded {
                return Ok(Step::First(Chore::Turn));
            }
            if let Some(target) = order.repairing
                && record.fresh_mask() & 1 << target == 0
            {
                match self.write_whole(record, target, views, offset, Stability::Unstable) {
                    Err(StoreError::Crowded) => return Ok(Step::First(Chore::Turn)),
                    Err(_) => order.restart(),
                    Ok(_) => {}
                }
            }
            parted = false;
            // If the size cannot be extended, data beyond it must be truncated before the file
            // grows.
            self.extend(meta, offset + len as u64).inspect_err(|_| self.set_loose())?;
            Ok(Step::Done(len))
        });
        if parted && written.is_err() {
            // The writer gets an error, so no retry will make the copies equal again.
            self.set_loose();
            self.copies().order().restart();
            self.doubt();
        }
        written
    }

    /// Returns the step that must be done before this server writes.
    fn in_the_way<T>(&self, record: &Record, order: &mut Order) -> Result<Option<Step<T>>> {
        if self.is_lent() {
            return Ok(Some(Step::First(Chore::Return)));
        }
        if record.whole.is_some_and(|whole| !whole.torn) {
            return Ok(Some(Step::First(Chore::Tear)));
        }
        Ok(self.must_wait_for_grants(record, order)?.then_some(Step::First(Chore::Wait)))
    }

    /// True if the caller must wait until data servers of stale copies have dropped their
    /// authorisations.
    fn must_wait_for_grants(&self, record: &Record, order: &mut Order) -> Result<bool> {
        match self.drop_stale_grants(record, order) {
            Err(StoreError::Busy) => Ok(true),
            sure => sure.map(|()| false),
        }
    }

    /// Writes the views to one copy. Returns the verifier, which is the same for all parts.
    pub(super) fn write_whole(
        &self,
        record: &Record,
        at: usize,
        views: &[VolatileSlice<'_>],
        offset: u64,
        stability: Stability,
    ) -> Result<u64> {
        let len: usize = views.iter().map(VolatileSlice::len).sum();
        let (mut done, mut verifier) = (0, None);
        while done < len {
            let part = after(views, done);
            let offset = offset + done as u64;
            let written = self.at_copy(record, at, |node| {
                node.write(&record.component, &part, offset, stability)
            })?;
            let first = *verifier.get_or_insert(written.verifier);
            // With another verifier the parts before may be lost.
            if written.count == 0 || first != written.verifier {
                return Err(StoreError::Io);
            }
            done += written.count;
        }
        verifier.ok_or(StoreError::Io)
    }

    /// Makes one copy authoritative, because copies may differ and no retry will make them equal.
    pub(super) fn tell_apart(&self, record: &Record, order: &mut Order) {
        if record.fresh_mask().is_power_of_two() {
            return;
        }
        if let Some(authoritative) = self.copies().authoritative() {
            // The copies that have been made equal to it may differ again.
            self.copies().set_authoritative(order, Some(authoritative));
            return;
        }
        if self.choose_authoritative(record, order, None).is_none() {
            self.copies().set_authoritative(order, record.fresh().next());
        }
    }

    /// Makes all copies stable.
    pub(in super::super) fn commit_copies(&self) -> Result<()> {
        self.on_copies(|record, order| self.commit_step(record, order))
    }

    /// Makes all copies stable, in one attempt. A copy that has lost unstable data is given up. If
    /// no copy has kept all of it, none is given up, and the writers get an error and must write
    /// again.
    pub(super) fn commit_step(&self, record: &Record, order: &mut Order) -> Result<Step<()>> {
        if self.must_wait_for_grants(record, order)? {
            return Ok(Step::First(Chore::Wait));
        }
        let (mut failed, mut lost, mut trouble, mut crowded) = (0, 0, StoreError::Busy, false);
        for at in record.fresh() {
            match self.at_copy(record, at, |node| node.commit(&record.component)) {
                Ok(verifier) if order.unstable[at].is_none_or(|known| known == verifier) => {}
                Ok(_) => lost |= 1 << at,
                Err(StoreError::Crowded) => crowded = true,
                Err(error) => {
                    failed |= 1 << at;
                    trouble = error;
                }
            }
        }
        if failed | lost == 0 && crowded {
            return Ok(Step::First(Chore::Turn));
        }
        if failed | lost == 0 {
            if !self.is_lent() {
                order.unstable = Default::default();
            }
            return Ok(Step::Done(()));
        }
        if failed | lost == record.fresh_mask() && lost != 0 {
            tracing::warn!(component = %record.component, "all copies have lost what was not stable");
            places(lost).for_each(|at| order.unstable[at] = None);
            self.tell_apart(record, order);
            (self.shared().options.lost)();
            return Err(StoreError::Busy);
        }
        order.restart();
        Self::without(record, failed | lost, trouble)
    }
}

/// Returns the more important of two errors.
fn worse(one: StoreError, other: StoreError) -> StoreError {
    if is_of_space(one) { one } else { other }
}

/// True for a lack of space. A copy that is given up for that could never be repaired.
fn is_of_space(error: StoreError) -> bool {
    matches!(error, StoreError::NoSpace | StoreError::Quota | StoreError::FileTooBig)
}
