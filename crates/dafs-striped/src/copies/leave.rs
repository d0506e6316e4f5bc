//! Copies that leave a node which is being emptied: another node gets one first, which is mended as one
//! that is out of date, and then the record names the old one no more.
//!
//! Invariants
//! * A copy is left out when as many others as a file is to have are up to date, on nodes that stay and
//!   that are there, and when its data server lets nobody use it any more.
//! * From before a record names a node, and from before it names one no more, until that is done, a list
//!   says that something may be left there, and nobody works on that entry.

use super::super::pending::Entry;
use super::super::record::{Record, Whole};
use super::super::state::{FileState, Place};
use super::super::{Shared, StripedStore, lock};
use super::copied;
use crate::limits::MEND_BAR;
use dafs_store::node::ComponentId;
use dafs_store::{COPIES_MAX, FileId, Result, StoreError};
use siphasher::sip::SipHasher24;
use std::collections::BTreeSet;

/// What became of an attempt to have the copies of a file leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leaving {
    /// No copy of the file is to leave.
    Nothing,
    /// Other copies are to be mended before, or clients write: it is to be tried again.
    Waits,
    /// They have left; so many bytes lie elsewhere now.
    Left(u64),
}

/// What is to be done next.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Plan {
    Nothing,
    Wait,
    /// These nodes get a copy, too.
    Add(Vec<u32>),
    /// Only the copies of these places are kept.
    Keep(Vec<usize>),
}

impl StripedStore {
    /// Goes on with having the copies of a file leave nodes that are being emptied.
    ///
    /// # Errors
    /// [`StoreError::Busy`] when the file cannot be used now; those of the lists and of the metadata.
    pub fn leave_nodes(&self, file: &FileId) -> Result<Leaving> {
        self.shared.state(file).leave_nodes()
    }
}

/// Keeps what a component has left from being removed.
struct Moving<'a> {
    shared: &'a Shared,
    component: ComponentId,
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        lock(&self.shared.moving).remove(&self.component);
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
        // Who works on the list looks at records.
        drop(place);
        lock(&shared.moving).insert(component);
        let _moving = Moving { shared, component };
        let server = shared.as_server()?;
        shared.enter_moved(Entry { component, file: self.id(), nodes })?;
        drop(server);
        let mut place = self.enter_alone()?;
        let Some((record, _)) = copied(&place) else { return Err(StoreError::Busy) };
        let record = record.clone();
        // What was entered is what is done.
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
        let staying = staying.iter().map(|slot| (slot.node.number(), slot.node.is_there()));
        let staying: Vec<_> = staying.collect();
        plan(record, &shared.slots.leaving(), &staying, shared.options.copies)
    }

    /// Gives more nodes a copy, which is out of date until it is mended. The caller is alone.
    fn add_copies(&self, place: &mut Place, record: &Record, nodes: &[u32]) -> Result<Leaving> {
        let Some(whole) = record.whole else { return Err(StoreError::Busy) };
        let (mut more, mut stale) = (record.clone(), whole.stale);
        for &number in nodes {
            stale |= 1 << more.nodes.len();
            more.nodes.push(number);
        }
        more.whole = Some(Whole { stale, ..whole });
        self.shared().list_to_mend(self.id(), &more, stale)?;
        self.keep_stable(place, more.clone())?;
        self.announce_again(&more);
        Ok(Leaving::Waits)
    }

    /// Keeps only the copies of some places. The caller is alone.
    fn keep_copies(&self, place: &mut Place, record: &Record, kept: &[usize]) -> Result<Leaving> {
        let mut order = self.copies().order();
        if order.mending.is_some() || self.copies().truth().is_some() {
            return Ok(Leaving::Waits);
        }
        if self.bar(MEND_BAR) {
            // They would go on writing to what is no copy any more, and not to what is one.
            self.ask_lent(true);
            return Ok(Leaving::Waits);
        }
        let bytes = self.attr()?.size;
        let fewer = record.keeping(kept);
        // Before it can ask anew.
        self.announce_again(&fewer);
        let mut gone = without(record, kept);
        let forget = |at| self.at_copy(record, at, |node| node.forget(&record.component));
        if gone.try_for_each(forget).is_err() {
            self.announce_again(record);
            return Ok(Leaving::Waits);
        }
        if let Some(Whole { stale, .. }) = fewer.whole.filter(|whole| whole.stale != 0) {
            self.shared().list_to_mend(self.id(), &fewer, stale)?;
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

/// The other places.
fn without(record: &Record, kept: &[usize]) -> impl Iterator<Item = usize> {
    (0..record.nodes.len()).filter(|at| !kept.contains(at))
}

/// What is to be done next for a file, where of the nodes that stay it is known whether they are there,
/// and files are to have so many copies.
fn plan(record: &Record, leaving: &BTreeSet<u32>, staying: &[(u32, bool)], copies: usize) -> Plan {
    let leaves = |at: &usize| leaving.contains(&record.nodes[*at]);
    let places = 0..record.nodes.len();
    let kept: Vec<_> = places.clone().filter(|at| !leaves(at)).collect();
    let Some(first) = places.clone().find(leaves) else { return Plan::Nothing };
    let is_there = |number: u32| staying.contains(&(number, true));
    let sound = record.fresh().filter(|at| !leaves(at) && is_there(record.nodes[*at])).count();
    // Files from when the setting was another one keep two.
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
    // Files go to different nodes.
    let turn = SipHasher24::new().hash(&record.component.0) % unused.len() as u64;
    unused.rotate_left(usize::try_from(turn).unwrap_or(0));
    match COPIES_MAX - record.nodes.len().min(COPIES_MAX) {
        // As many as there may be: one makes room.
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

    /// With these copies; a bit for each that is out of date.
    fn record(nodes: &[u32], stale: u8) -> Record {
        Record {
            component: ComponentId([9; 16]),
            unit_bytes: NonZeroU32::new(4096).expect("a unit"),
            first: 0,
            nodes: nodes.to_vec(),
            cutting: None,
            owed: Vec::new(),
            whole: Some(Whole { stale, torn: true }),
        }
    }

    /// Nodes 1 to 4, of which some leave and some are away.
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
        assert_eq!(planned(&[1, 2, 3], 0b100, &[1], &[]), Plan::Wait, "it is not mended yet");
        assert_eq!(planned(&[1, 2, 3], 0, &[1], &[]), Plan::Keep(vec![1, 2]));
        assert_eq!(planned(&[1, 2, 3], 0, &[1], &[2]), Plan::Wait, "that would leave one");
        let Plan::Add(both) = planned(&[1, 2], 0, &[1, 2], &[]) else { panic!("both leave") };
        assert_eq!(both.iter().collect::<BTreeSet<_>>(), [&3, &4].into());
        // A copy that is out of date leaves as one that is not.
        assert_eq!(planned(&[1, 2, 3], 0b001, &[1], &[]), Plan::Keep(vec![1, 2]));
        // Of one that stays there may be none that is up to date.
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
        // The setting is another one by now.
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
