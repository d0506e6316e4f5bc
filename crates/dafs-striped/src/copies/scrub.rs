//! Comparison of the copies of a file, by digests that the nodes compute. Of files with stripes it
//! shows whether the nodes can read them.
//!
//! Invariants
//! * No lock is held while a node computes a digest. A comparison of copies counts only if the file
//!   was quiet from its first digest to its last one: no writer, repair, move or truncation has
//!   changed the state that [`Quiet`] holds.
//! * A copy is called wrong only if others show that. It has no data at all or its node cannot read
//!   it, while the others have data and are equal. Or more than half of the copies that count are
//!   equal, and it differs from them.

use super::super::StripedStore;
use super::super::record::{Record, places};
use super::super::state::{FileState, Place};
use super::copied;
use crate::limits::{COPY_ATTEMPTS_MAX, COPY_TURNS_MAX, DIGEST_ALONE_BYTES, RETRY_PAUSE};
use dafs_store::node::{DIGEST_BYTES_MAX, Digest};
use dafs_store::{FileId, Result, StoreError};
use siphasher::sip128::{Hasher128, SipHasher24};
use std::hash::Hasher;
use std::io;
use std::panic::resume_unwind;
use std::thread::ScopedJoinHandle;

/// Limits the bytes that nodes read.
type Pace<'a> = &'a dyn Fn(&[u32], usize) -> bool;

/// The outcome of a comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scrubbed {
    /// The copies are equal, and stripes can be read.
    Sound,
    /// The file was in use, so nothing is known of it.
    InUse,
    /// The node with this number could not be asked.
    Away(u32),
    /// Something is wrong.
    Faulty(Faults),
}

/// The faults of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Faults {
    /// The numbers of the nodes with a fault. If no copy is known to be right, this has all copies
    /// that differ.
    pub nodes: Vec<(u32, Fault)>,
    /// The number of a node whose copy is right. `None` if that is not certain.
    pub right: Option<u32>,
}

/// The fault of a copy, or of a node's stripes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It differs from other copies.
    Differs,
    /// The node has no data of the file.
    Missing,
    /// The node's device reports an error.
    Unreadable,
}

/// The state of a file with copies that nothing is changing.
#[derive(PartialEq)]
struct Quiet {
    record: Record,
    size: u64,
    turn: u64,
    writes: u64,
    lends: u64,
}

/// A copy, as its node reads it.
struct Seen {
    node: u32,
    /// A hash of the content. `None` if the node cannot read it.
    sum: Option<u128>,
    has_bytes: bool,
}

impl StripedStore {
    /// Compares the copies of a file that count, or reads its stripes. `pace` gets the numbers of nodes, and
    /// of the bytes that each of them has read; it may sleep, and returns false to stop.
    ///
    /// # Errors
    /// Those of the metadata.
    pub fn scrub(&self, file: &FileId, pace: Pace<'_>) -> Result<Scrubbed> {
        self.shared.state(file).scrub(pace)
    }

    /// Does a copy lack bytes at the start of the file that another one has, or can its node not read them?
    /// False if the node cannot be asked, or has no copy that counts.
    ///
    /// # Errors
    /// * [`StoreError::NotSupported`] for a file without copies.
    /// * Those of the metadata.
    pub fn has_lost_copy(&self, file: &FileId, node: u32) -> Result<bool> {
        self.shared.state(file).has_lost_copy(node)
    }

    /// Gives up the copies of a file on nodes for whose numbers `is_wrong` is true. Repair makes
    /// them equal to the others.
    ///
    /// # Errors
    /// * [`StoreError::NotSupported`] for a file without copies.
    /// * [`StoreError::Invalid`] if no copy would count any more.
    /// * [`StoreError::NoDevice`] if none of those that still count would be on a reachable node.
    /// * Those of the list of files to be repaired and of the metadata. [`StoreError::Busy`] passes, and has not
    ///   passed for a while.
    pub fn give_up_copies(&self, file: &FileId, is_wrong: &dyn Fn(u32) -> bool) -> Result<()> {
        self.shared.state(file).give_up_copies(is_wrong)
    }
}

impl FileState {
    fn scrub(&self, pace: Pace<'_>) -> Result<Scrubbed> {
        let place = self.enter()?;
        let Place::Striped(record) = &*place else { return Ok(Scrubbed::Sound) };
        let record = record.clone();
        drop(place);
        match record.whole {
            Some(_) => self.scrub_copies(pace),
            None => self.scrub_stripes(&record, pace),
        }
    }

    fn scrub_copies(&self, pace: Pace<'_>) -> Result<Scrubbed> {
        let Some(quiet) = self.quiet()? else { return Ok(Scrubbed::InUse) };
        let record = &quiet.record;
        let places: Vec<_> = record.fresh().collect();
        let nodes: Vec<_> = places.iter().map(|&at| record.nodes[at]).collect();
        let mut sums: Vec<_> = places.iter().map(|_| Some(SipHasher24::new())).collect();
        let mut has_bytes = vec![false; places.len()];
        let mut offset = 0;
        while offset < quiet.size {
            let left = usize::try_from(quiet.size - offset).unwrap_or(usize::MAX);
            let len = left.min(DIGEST_BYTES_MAX);
            let readable = places.iter().zip(&sums).filter(|(_, sum)| sum.is_some());
            let readable: Vec<_> = readable.map(|(&at, _)| at).collect();
            if readable.is_empty() {
                break;
            }
            let mut digests = self.digests(record, &readable, (offset, len)).into_iter();
            for ((&node, sum), has_bytes) in nodes.iter().zip(&mut sums).zip(&mut has_bytes) {
                let Some(hasher) = sum else { continue };
                let Some(digest) = digests.next() else { continue };
                match digest {
                    Ok(Digest { count, hash }) => {
                        hasher.write(&hash);
                        *has_bytes |= count > 0;
                    }
                    Err(StoreError::Io) => *sum = None,
                    Err(_) => return Ok(Scrubbed::Away(node)),
                }
            }
            if !pace(&nodes, len) || self.quiet()?.as_ref() != Some(&quiet) {
                return Ok(Scrubbed::InUse);
            }
            offset += len as u64;
        }
        let seen = nodes.iter().zip(sums).zip(has_bytes).map(|((&node, sum), has_bytes)| Seen {
            node,
            sum: sum.map(|hasher| u128::from(hasher.finish128())),
            has_bytes,
        });
        Ok(judge(&seen.collect::<Vec<_>>()))
    }

    /// Reads all stripes. Nothing else has their content.
    fn scrub_stripes(&self, record: &Record, pace: Pace<'_>) -> Result<Scrubbed> {
        let size = self.attr()?.size;
        let (mut offset, mut unreadable) = (0, Vec::new());
        while offset < size {
            let left = usize::try_from(size - offset).unwrap_or(usize::MAX);
            let mut pieces = record.pieces(offset, left.min(DIGEST_BYTES_MAX));
            let Some(piece) = pieces.next() else { break };
            offset += piece.len as u64;
            let node = record.nodes[piece.place];
            match self.digest(record, piece.place, piece.offset, piece.len) {
                Ok(_) => {}
                Err(StoreError::Io) if unreadable.contains(&node) => {}
                Err(StoreError::Io) => unreadable.push(node),
                Err(_) => return Ok(Scrubbed::Away(node)),
            }
            if !pace(&[node], piece.len) {
                return Ok(Scrubbed::InUse);
            }
        }
        // A component that was moved meanwhile had no bytes to read.
        if self.look()?.as_ref() != Some(record) {
            return Ok(Scrubbed::InUse);
        }
        let nodes: Vec<_> = unreadable.into_iter().map(|node| (node, Fault::Unreadable)).collect();
        Ok(match nodes.is_empty() {
            true => Scrubbed::Sound,
            false => Scrubbed::Faulty(Faults { nodes, right: None }),
        })
    }

    /// Returns the present state. `None` if something may be changing the file.
    fn quiet(&self) -> Result<Option<Quiet>> {
        let place = self.enter()?;
        let Some((record, whole)) = copied(&place) else { return Ok(None) };
        let order = self.copies().order();
        if whole.torn || order.repairing.is_some() || self.is_lent() {
            return Ok(None);
        }
        let (turn, writes, lends) = (order.turn, order.writes, self.lends());
        let (record, size) = (record.clone(), self.attr()?.size);
        Ok(Some(Quiet { record, size, turn, writes, lends }))
    }

    /// Has nodes compute the digests of the same bytes of copies. For many bytes all do so at once: this
    /// thread asks one of them itself.
    fn digests(
        &self,
        record: &Record,
        places: &[usize],
        (offset, len): (u64, usize),
    ) -> Vec<Result<Digest>> {
        let digest = |at: usize| self.digest(record, at, offset, len);
        if len <= DIGEST_ALONE_BYTES {
            return places.iter().map(|&at| digest(at)).collect();
        }
        let Some((&own, others)) = places.split_first() else { return Vec::new() };
        std::thread::scope(|scope| {
            let ask = |&at: &usize| {
                let thread = std::thread::Builder::new().name("dafs-scrub".to_owned());
                (at, thread.spawn_scoped(scope, move || digest(at)))
            };
            let asked: Vec<_> = others.iter().map(ask).collect();
            let own = digest(own);
            let answer = |(at, thread): (usize, io::Result<ScopedJoinHandle<'_, _>>)| match thread {
                Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
                // The system has no thread left.
                Err(_) => digest(at),
            };
            std::iter::once(own).chain(asked.into_iter().map(answer)).collect()
        })
    }

    /// Has a node compute a digest. A crowded one is asked again.
    fn digest(&self, record: &Record, at: usize, offset: u64, len: usize) -> Result<Digest> {
        let mut turns = 0..COPY_TURNS_MAX;
        loop {
            let slot = self.slot(record, at).map_err(|_| StoreError::Busy)?;
            // Only the node's error counts as that of a device.
            let server = self.shared().as_server().map_err(|_| StoreError::Busy)?;
            let digest = slot.node.digest(&record.component, offset, len);
            drop(server);
            if digest != Err(StoreError::Crowded) || turns.next().is_none() {
                return digest;
            }
            self.shared().clock().sleep(RETRY_PAUSE);
        }
    }

    fn has_lost_copy(&self, node: u32) -> Result<bool> {
        let place = self.enter()?;
        let Some((record, _)) = copied(&place) else { return Err(StoreError::NotSupported) };
        let record = record.clone();
        drop(place);
        let places: Vec<_> = record.fresh().collect();
        let Some(asked) = places.iter().position(|&at| record.nodes[at] == node) else {
            return Ok(false);
        };
        let digests = self.digests(&record, &places, (0, DIGEST_BYTES_MAX));
        let has_bytes = |digest: &Result<Digest>| digest.as_ref().is_ok_and(|it| it.count > 0);
        Ok(match &digests[asked] {
            Err(error) => *error == StoreError::Io,
            Ok(found) => found.count == 0 && digests.iter().any(has_bytes),
        })
    }

    fn give_up_copies(&self, is_wrong: &dyn Fn(u32) -> bool) -> Result<()> {
        // The places of copies may change meanwhile, and copies may be given up for other reasons.
        for _ in 0..COPY_ATTEMPTS_MAX {
            let place = self.enter()?;
            let Some((record, _)) = copied(&place) else { return Err(StoreError::NotSupported) };
            let (nodes, fresh) = (record.nodes.clone(), record.fresh_mask());
            let wrong = record.fresh().filter(|at| is_wrong(nodes[*at]));
            let wrong = wrong.fold(0, |mask, at| mask | 1 << at);
            drop(place);
            if wrong == 0 {
                return Ok(());
            }
            if wrong == fresh {
                return Err(StoreError::Invalid);
            }
            let is_there = |at: usize| {
                let slot = self.shared().slot(nodes[at]);
                slot.is_ok_and(|slot| slot.node.is_reachable())
            };
            // A node that is away may have lost its copy, and the others could not come back.
            if !places(fresh & !wrong).any(is_there) {
                return Err(StoreError::NoDevice);
            }
            match self.give_up(&nodes, wrong) {
                Err(StoreError::Busy) => self.shared().clock().sleep(RETRY_PAUSE),
                other => other?,
            }
        }
        Err(StoreError::Busy)
    }
}

/// Finds the copies that are wrong.
fn judge(copies: &[Seen]) -> Scrubbed {
    let readable: Vec<_> = copies.iter().filter(|copy| copy.sum.is_some()).collect();
    let are_equal = |of: &[&Seen]| of.windows(2).all(|pair| pair[0].sum == pair[1].sum);
    if readable.len() == copies.len() && are_equal(&readable) {
        return Scrubbed::Sound;
    }
    let with_bytes: Vec<_> = readable.iter().copied().filter(|copy| copy.has_bytes).collect();
    let count = |sum: Option<u128>| readable.iter().filter(|copy| copy.sum == sum).count();
    let right = if are_equal(&readable) {
        readable.first().copied()
    } else if are_equal(&with_bytes) {
        with_bytes.first().copied()
    } else {
        readable.iter().copied().find(|copy| 2 * count(copy.sum) > copies.len())
    };
    // A copy without data may be the one that has lost it, while another one cannot be read.
    let right = right.filter(|copy| copy.has_bytes);
    let fault = |copy: &Seen| {
        if copy.sum.is_none() {
            Some(Fault::Unreadable)
        } else if right.is_some_and(|right| right.sum == copy.sum) {
            None
        } else if copy.has_bytes {
            Some(Fault::Differs)
        } else {
            Some(Fault::Missing)
        }
    };
    let nodes = copies.iter().filter_map(|copy| Some((copy.node, fault(copy)?))).collect();
    Scrubbed::Faulty(Faults { nodes, right: right.map(|copy| copy.node) })
}

#[cfg(test)]
mod tests {
    use super::Fault::{Differs, Missing, Unreadable};
    use super::*;

    /// Judges copies on nodes 1, 2 and so on: by sum, 0 for no data, `None` for an unreadable one.
    fn judged(sums: &[Option<u128>]) -> Scrubbed {
        let seen = |(sum, node): (&Option<u128>, u32)| {
            let has_bytes = sum.is_some_and(|sum| sum > 0);
            Seen { node, sum: *sum, has_bytes }
        };
        judge(&sums.iter().zip(1..).map(seen).collect::<Vec<_>>())
    }

    fn faulty(right: Option<u32>, nodes: &[(u32, Fault)]) -> Scrubbed {
        Scrubbed::Faulty(Faults { nodes: nodes.to_vec(), right })
    }

    #[test]
    fn a_copy_is_wrong_only_if_others_show_it() {
        let (a, b, c) = (Some(7), Some(8), Some(9));
        assert_eq!(judged(&[a, a]), Scrubbed::Sound);
        assert_eq!(judged(&[Some(0), Some(0)]), Scrubbed::Sound, "no data was written");
        assert_eq!(judged(&[a]), Scrubbed::Sound);
        assert_eq!(judged(&[a, b]), faulty(None, &[(1, Differs), (2, Differs)]));
        assert_eq!(judged(&[b, a, a]), faulty(Some(2), &[(1, Differs)]));
        let all = [(1, Differs), (2, Differs), (3, Differs)];
        assert_eq!(judged(&[a, b, c]), faulty(None, &all));
        let none = [(1, Differs), (2, Differs), (3, Differs), (4, Differs)];
        assert_eq!(judged(&[a, a, b, b]), faulty(None, &none), "half is not more than half");
    }

    #[test]
    fn what_is_missing_or_unreadable_needs_no_majority() {
        let (a, b, none) = (Some(7), Some(8), Some(0));
        assert_eq!(judged(&[none, a]), faulty(Some(2), &[(1, Missing)]));
        assert_eq!(judged(&[none, none, a]), faulty(Some(3), &[(1, Missing), (2, Missing)]));
        assert_eq!(judged(&[None, a]), faulty(Some(2), &[(1, Unreadable)]));
        let both = [(1, Unreadable), (2, Missing)];
        assert_eq!(judged(&[None, none]), faulty(None, &both), "the last data is not given up");
        assert_eq!(judged(&[None]), faulty(None, &[(1, Unreadable)]));
        let all = [(1, Unreadable), (2, Differs), (3, Differs)];
        assert_eq!(judged(&[None, a, b]), faulty(None, &all));
        let two = [(1, Differs), (2, Differs), (3, Missing)];
        assert_eq!(judged(&[a, b, none]), faulty(None, &two));
    }
}
