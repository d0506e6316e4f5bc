//! Copies that leave a node which is being emptied. First another node gets a stale copy, which is
//! repaired. Then the record drops the old copy.
//!
//! Invariants
//! * The record drops a copy only when as many others as a file shall have are fresh, on reachable
//!   nodes that stay, and when the data server of the copy has dropped its cached authorisations.
//!   If the record has no room for another copy, one such fresh copy suffices.
//! * Before a record names a new node, and before it drops an old one, a list names the node. The
//!   entry is not worked off until the change is done.

use super::super::pending::Entry;
use super::super::record::{Record, Whole};
use super::super::state::{FileState, Place};
use super::super::{Shared, StripedStore};
use super::copied;
use crate::limits::REPAIR_BAR;
use dafs_store::node::ComponentId;
use dafs_store::{COPIES_MAX, FileId, Result, StoreError};
use siphasher::sip::SipHasher24;
use std::collections::BTreeSet;

/// The outcome of an attempt to move copies of a file off nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leaving {
    /// No copy of the file is to leave.
    Nothing,
    /// Retry later: other copies must be repaired first, or clients hold layouts for writing.
    Waits,
    /// The copies have left. This many bytes are on other nodes now.
    Left(u64),
}

/// The next step.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Plan {
    Nothing,
    Wait,
    /// Give these nodes a copy, too.
    Add(Vec<u32>),
    /// Keep only the copies at these places.
    Keep(Vec<usize>),
}

impl StripedStore {
    /// Does the next step to move the copies of a file off nodes that are being emptied.
    ///
    /// # Errors
    /// [`StoreError::Busy`] when the file cannot be used now; those of the lists and of the
    /// metadata.
    pub fn leave_nodes(&self, file: &FileId) -> Result<Leaving> {
        self.shared.state(file).leave_nodes()
    }
}

/// Protects the components of a file that has begun to move from removal.
struct Moving<'a> {
    shared: &'a Shared,
    component: ComponentId,
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        self.shared.moving.lock().remove(&self.component);
    }
}

impl FileState {
    fn leave_nodes(&self) -> Result<Leaving> {
        let shared = self.shared();
        let place = self.enter()?;
        let Some((record, _)) = copied(&place) else { return Ok(Leaving::Nothing) };
        let (component, plan) = (record.component, self.plan(record));
        let nodes = match &plan {
            Plan::Nothing => return Ok(Leaving::Nothing),
            Plan::Wait => return Ok(Leaving::Waits),
            Plan::Add(nodes) => nodes.clone(),
            Plan::Keep(kept) => without(record, kept).map(|at| record.nodes[at]).collect(),
        };
        // Released first, to avoid a deadlock: the thread that works off the list enters the gates
        // of files while it holds the lock of the list.
        drop(place);
        shared.moving.lock().insert(component);
        let _moving = Moving { shared, component };
        let server = shared.as_server()?;
        shared.enter_moved(Entry { component, file: self.id(), nodes })?;
        drop(server);
        let mut place = self.enter_exclusive()?;
        let Some((record, _)) = copied(&place) else { return Err(StoreError::Busy) };
        let record = record.clone();
        // The list must name exactly the nodes of the change.
        if self.plan(&record) != plan {
            return Ok(Leaving::Waits);
        }
        match plan {
            Plan::Add(nodes) => self.add_copies(&mut place, &record, &nodes),
            Plan::Keep(kept) => self.keep_copies(&mut place, &record, &kept),
            Plan::Nothing | Plan::Wait => Ok(Leaving::Waits),
        }
    }

    fn plan(&self, record: &Record) -> Plan {
        let shared = self.shared();
        let staying = shared.slots.staying();
        let staying = staying.iter().map(|slot| (slot.node.number(), slot.node.is_reachable()));
        let staying: Vec<_> = staying.collect();
        plan(record, &shared.slots.leaving(), &staying, shared.options.copies)
    }

    /// Gives more nodes a copy, which is stale until it is repaired. The caller holds the gate
    /// exclusively.
    fn add_copies(&self, place: &mut Place, record: &Record, nodes: &[u32]) -> Result<Leaving> {
        let Some(whole) = record.whole else { return Err(StoreError::Busy) };
        let (mut more, mut stale) = (record.clone(), whole.stale);
        for &number in nodes {
            stale |= 1 << more.nodes.len();
            more.nodes.push(number);
        }
        more.whole = Some(Whole { stale, ..whole });
        self.shared().list_for_repair(self.id(), &more, stale)?;
        self.keep_stable(place, more.clone())?;
        self.announce_again(&more);
        Ok(Leaving::Waits)
    }

    /// Keeps only the copies at some places. The caller holds the gate exclusively.
    fn keep_copies(&self, place: &mut Place, record: &Record, kept: &[usize]) -> Result<Leaving> {
        let mut order = self.copies().order();
        if order.repairing.is_some() || self.copies().authoritative().is_some() {
            return Ok(Leaving::Waits);
        }
        if self.bar(REPAIR_BAR) {
            // Clients would write to a copy that does not count any more, and miss one that does.
            self.ask_lent(true);
            return Ok(Leaving::Waits);
        }
        let bytes = self.attr()?.size;
        let fewer = record.keeping(kept);
        // First, so that the data server cannot renew its authorisation.
        self.announce_again(&fewer);
        let mut gone = without(record, kept);
        let drop_grants = |at| self.at_copy(record, at, |node| node.drop_grants(&record.component));
        if gone.try_for_each(drop_grants).is_err() {
            self.announce_again(record);
            return Ok(Leaving::Waits);
        }
        if let Some(Whole { stale, .. }) = fewer.whole.filter(|whole| whole.stale != 0) {
            self.shared().list_for_repair(self.id(), &fewer, stale)?;
        }
        self.keep_stable(place, fewer.clone())?;
        order.keep(kept);
        drop(order);
        self.unbar();
        self.note_moved(&fewer);
        let component = fewer.component;
        tracing::info!(%component, nodes = ?fewer.nodes, "copies of a file have left a node");
        Ok(Leaving::Left(bytes.saturating_mul((record.nodes.len() - kept.len()) as u64)))
    }
}

/// Returns the places that are not kept.
fn without(record: &Record, kept: &[usize]) -> impl Iterator<Item = usize> {
    (0..record.nodes.len()).filter(|at| !kept.contains(at))
}

/// Plans the next step for a file. `staying` holds the nodes that stay, and true for those that are
/// reachable; `copies` is the number of copies that files shall have.
fn plan(record: &Record, leaving: &BTreeSet<u32>, staying: &[(u32, bool)], copies: usize) -> Plan {
    let leaves = |at: &usize| leaving.contains(&record.nodes[*at]);
    let places = 0..record.nodes.len();
    let kept: Vec<_> = places.clone().filter(|at| !leaves(at)).collect();
    let Some(first) = places.clone().find(leaves) else { return Plan::Nothing };
    let is_reachable = |number: u32| staying.contains(&(number, true));
    let sound = record.fresh().filter(|at| !leaves(at) && is_reachable(record.nodes[*at])).count();
    // A file with copies keeps at least two, even if the setting is 1 by now.
    let wanted = copies.max(2).min(staying.len());
    if sound >= wanted.max(1) {
        return Plan::Keep(kept);
    }
    if kept.len() >= wanted {
        return Plan::Wait;
    }
    let mut unused: Vec<_> = staying
        .iter()
        .filter(|(number, there)| *there && !record.nodes.contains(number))
        .map(|(number, _)| *number)
        .collect();
    if unused.is_empty() {
        return Plan::Wait;
    }
    // Spreads files over different nodes.
    let turn = SipHasher24::new().hash(&record.component.0) % unused.len() as u64;
    unused.rotate_left(usize::try_from(turn).unwrap_or(0));
    match COPIES_MAX - record.nodes.len().min(COPIES_MAX) {
        // The record is full, so one copy makes room.
        0 if sound > 0 => Plan::Keep(places.filter(|at| *at != first).collect()),
        0 => Plan::Wait,
        room => {
            unused.truncate(room.min(wanted - kept.len()));
            Plan::Add(unused)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroU32;

    /// A file with copies on these nodes, with a bit in `stale` for each that is stale.
    fn record(nodes: &[u32], stale: u8) -> Record {
        Record {
            component: ComponentId([9; 16]),
            unit_bytes: NonZeroU32::new(4096).expect("a unit"),
            first: 0,
            nodes: nodes.to_vec(),
            truncating: None,
            truncations: Vec::new(),
            whole: Some(Whole { stale, torn: true }),
        }
    }

    /// Plans for nodes 1 to 4, of which some leave and some are unreachable.
    fn planned(nodes: &[u32], stale: u8, leaving: &[u32], away: &[u32]) -> Plan {
        let staying: Vec<_> = (1..=4)
            .filter(|number| !leaving.contains(number))
            .map(|number| (number, !away.contains(&number)))
            .collect();
        plan(&record(nodes, stale), &leaving.iter().copied().collect(), &staying, 2)
    }

    #[test]
    fn another_copy_is_made_first_and_only_where_it_is_needed() {
        assert_eq!(planned(&[1, 2], 0, &[3], &[]), Plan::Nothing);
        let added = planned(&[1, 2], 0, &[1], &[]);
        assert!(matches!(&added, Plan::Add(nodes) if [[3], [4]].iter().any(|one| nodes == one)));
        assert_eq!(planned(&[1, 2], 0, &[1], &[3]), Plan::Add(vec![4]));
        assert_eq!(planned(&[1, 2], 0, &[1], &[3, 4]), Plan::Wait);
        assert_eq!(planned(&[1, 2, 3], 0b100, &[1], &[]), Plan::Wait, "it is not repaired yet");
        assert_eq!(planned(&[1, 2, 3], 0, &[1], &[]), Plan::Keep(vec![1, 2]));
        assert_eq!(planned(&[1, 2, 3], 0, &[1], &[2]), Plan::Wait, "that would leave one");
        let Plan::Add(both) = planned(&[1, 2], 0, &[1, 2], &[]) else { panic!("both leave") };
        assert_eq!(both.iter().collect::<BTreeSet<_>>(), [&3, &4].into());
        // A stale copy leaves like a fresh one.
        assert_eq!(planned(&[1, 2, 3], 0b001, &[1], &[]), Plan::Keep(vec![1, 2]));
        // The copies that stay may be stale while the one that leaves is the only fresh one.
        assert_eq!(planned(&[1, 2, 3], 0b110, &[1], &[]), Plan::Wait);
    }

    #[test]
    fn fewer_nodes_than_copies_are_enough_and_more_copies_than_wanted_go() {
        let leaving = |numbers: &[u32]| numbers.iter().copied().collect::<BTreeSet<_>>();
        let one_stays = plan(&record(&[1, 2], 0), &leaving(&[1]), &[(2, true)], 3);
        assert_eq!(one_stays, Plan::Keep(vec![1]));
        assert_eq!(plan(&record(&[1], 0), &leaving(&[1]), &[(2, false)], 3), Plan::Wait);
        let staying: Vec<_> = (2..=4).map(|number| (number, true)).collect();
        let three = plan(&record(&[1, 2, 3], 0), &leaving(&[1]), &staying, 2);
        assert_eq!(three, Plan::Keep(vec![1, 2]));
        // The setting has changed to 1.
        let two = plan(&record(&[1, 2], 0), &leaving(&[1]), &staying, 1);
        assert!(matches!(two, Plan::Add(nodes) if nodes.len() == 1));
    }

    #[test]
    fn where_there_is_no_room_for_another_copy_one_makes_room() {
        let nodes: Vec<_> = (1..=8).collect();
        let staying: Vec<_> = (2..=9).map(|number| (number, true)).collect();
        let leaving = [1].into();
        let made = plan(&record(&nodes, 0), &leaving, &staying, 8);
        assert_eq!(made, Plan::Keep((1..8).collect()));
        assert_eq!(plan(&record(&nodes, 0xfe), &leaving, &staying, 8), Plan::Wait);
        let next = plan(&record(&nodes[1..], 0), &[2].into(), &staying[1..], 7);
        assert_eq!(next, Plan::Add(vec![9]));
    }
}
