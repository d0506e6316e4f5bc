//! The locks of one file, and what is left of those whose holders are gone: the states of DAFS 9.3,
//! without clocks, clients or disks.
//!
//! | state | where |
//! |---|---|
//! | held | in the ranges; breakable too, once its holder's lease is over |
//! | breakable | in the ranges as above, or left behind by a holder whose state has ended |
//! | broken | among the broken ones, until somebody repairs |
//!
//! Invariants
//! * Nothing is granted over a broken lock but its repair, and nothing that conflicts with one that
//!   was left behind before that is broken.
//! * A persistent lock is never cut or merged: it is given up, replaced and repaired as a whole, so
//!   that it stays one entry with one number.
//! * What a persistent lock was is never forgotten but by its holder's unlock, by the unlock that
//!   follows its repair, or with its file.

use super::ranges::{Changed, Locked, RangeList, Special};
use super::{LockKind, Range};
use crate::client::ClientKey;
use std::sync::Arc;

/// A lock owner, named so that it is known again after restarts of server and client.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LockHolder {
    /// The client's key while it held the lock.
    pub client: ClientKey,
    /// The client's own name.
    pub name: Vec<u8>,
    /// Of the client's instance.
    pub verifier: [u8; 8],
    /// How the client proved who it is.
    pub mechanism: String,
    /// Who it is.
    pub principal: Vec<u8>,
    /// The owner's name at that client.
    pub owner: Vec<u8>,
}

impl LockHolder {
    /// True for the same owner of the same client instance, whatever key the server gave it.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.is_instance(&other.name, other.verifier, &other.mechanism, &other.principal)
            && self.owner == other.owner
    }

    fn is_client(&self, name: &[u8], mechanism: &str, principal: &[u8]) -> bool {
        (&*self.name, &*self.mechanism, &*self.principal) == (name, mechanism, principal)
    }

    fn is_instance(
        &self,
        name: &[u8],
        verifier: [u8; 8],
        mechanism: &str,
        principal: &[u8],
    ) -> bool {
        self.is_client(name, mechanism, principal) && self.verifier == verifier
    }

    /// True when the client has been started anew since.
    pub(crate) fn is_older(
        &self,
        name: &[u8],
        verifier: [u8; 8],
        mechanism: &str,
        principal: &[u8],
    ) -> bool {
        self.is_client(name, mechanism, principal) && self.verifier != verifier
    }
}

/// A persistent lock without the state of its holder.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Left {
    pub(crate) range: Range,
    pub(crate) kind: LockKind,
    pub(crate) special: Special,
    pub(crate) holder: Arc<LockHolder>,
}

/// A lock that somebody wants.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wish<'a, O> {
    pub(crate) range: Range,
    pub(crate) kind: LockKind,
    /// The owner's state, if it has any on this file.
    pub(crate) own: Option<O>,
    /// Who the owner is; `None` for clients without persistent locks.
    pub(crate) me: Option<&'a LockHolder>,
    pub(crate) repair: bool,
}

/// What is to be done about a wish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict<O> {
    /// Grant it.
    Free,
    /// This lock is in the way.
    Denied(Locked<O>),
    /// Only locks of these holders are in the way, whose leases are over: end them and ask again.
    Lapsed(Vec<O>),
    /// This broken lock is in the way.
    Broken(Left),
    /// This lock was left behind and is in the way, perhaps with others: break all that are.
    Breaks(Left),
    /// A part of a persistent lock is concerned, which is changed as a whole or not at all.
    Part,
    /// A repair where nothing is broken.
    NothingBroken,
}

/// What a grant has changed, so that it can be taken back.
#[derive(Debug)]
pub(crate) struct Granted<O> {
    pub(crate) range: Range,
    pub(crate) changed: Changed,
    /// Pieces that the owner had in the range.
    pub(crate) before: Vec<Locked<O>>,
    /// What was left behind by the owner itself.
    pub(crate) reclaimed: Vec<Left>,
    pub(crate) repaired: Vec<Left>,
}

impl<O> Granted<O> {
    /// The numbers of the locks that it has taken the place of.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u64> {
        let held = self.before.iter().filter_map(|held| held.special);
        let left = self.reclaimed.iter().chain(&self.repaired).map(|left| left.special);
        held.chain(left).map(|special| special.number)
    }

    /// The names of the clients that had those locks, if the owner is of the client `own`.
    pub(crate) fn former<'a>(&'a self, own: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        let held = self.before.iter().filter(|held| held.special.is_some()).map(move |_| own);
        let left = self.reclaimed.iter().chain(&self.repaired);
        held.chain(left.map(|left| &*left.holder.name))
    }
}

/// All locks of a file.
#[derive(Debug, Clone)]
pub(crate) struct LockBook<O> {
    pub(crate) ranges: RangeList<O>,
    /// Breakable: their holders' state has ended, but nobody has wanted them since.
    orphans: Vec<Left>,
    broken: Vec<Left>,
}

impl<O> Default for LockBook<O> {
    fn default() -> Self {
        Self { ranges: RangeList::default(), orphans: Vec::new(), broken: Vec::new() }
    }
}

impl<O: Copy + Eq> LockBook<O> {
    /// True when nothing was left behind.
    pub(crate) fn has_left(&self) -> bool {
        !self.orphans.is_empty() || !self.broken.is_empty()
    }

    pub(crate) fn orphans(&self) -> &[Left] {
        &self.orphans
    }

    pub(crate) fn broken(&self) -> &[Left] {
        &self.broken
    }

    /// What is to be done about a wish, if `lapsed` says whose lease is over.
    pub(crate) fn decide(&self, wish: &Wish<'_, O>, lapsed: impl Fn(O) -> bool) -> Verdict<O> {
        let Wish { range, kind, own, .. } = *wish;
        let mut broken = self.broken.iter().filter(|left| left.range.overlaps(range)).peekable();
        if wish.repair {
            if broken.peek().is_none() {
                return Verdict::NothingBroken;
            }
            if broken.any(|left| !range.contains(left.range)) {
                return Verdict::Part;
            }
        } else if let Some(left) = broken.next() {
            return Verdict::Broken(left.clone());
        }
        let conflicts = || self.ranges.conflicts(range, kind, own);
        if let Some(held) = conflicts().find(|held| !lapsed(held.owner)) {
            return Verdict::Denied(*held);
        }
        let over: Vec<O> = conflicts().map(|held| held.owner).collect();
        if !over.is_empty() {
            return Verdict::Lapsed(over);
        }
        if let Some(left) = self.orphans.iter().find(|left| wish.breaks(left)) {
            return Verdict::Breaks(left.clone());
        }
        let own_left = self.orphans.iter().filter(|left| wish.is_of(left)).map(|left| left.range);
        let special = self.ranges.specials(own).map(|held| held.range);
        if own_left.chain(special).any(|kept| kept.overlaps(range) && !range.contains(kept)) {
            return Verdict::Part;
        }
        Verdict::Free
    }

    /// The owner's own locks in the range that need a record, held or left behind: what replaces
    /// them inherits what they are.
    pub(crate) fn inherited(&self, wish: &Wish<'_, O>) -> Option<Special> {
        let held = self.ranges.specials(wish.own).map(|held| (held.range, held.special));
        let left = self.orphans.iter().filter(|left| wish.is_of(left));
        let left = left.map(|left| (left.range, Some(left.special)));
        let inside = held.chain(left).filter(|(range, _)| range.overlaps(wish.range));
        inside.filter_map(|(_, special)| special).reduce(Special::join)
    }

    /// Grants a wish of `owner` that nothing stands against.
    pub(crate) fn grant(
        &mut self,
        wish: &Wish<'_, O>,
        owner: O,
        special: Option<Special>,
    ) -> Granted<O> {
        debug_assert!(self.decide(wish, |_| false) == Verdict::Free);
        let range = wish.range;
        let before = self.ranges.own_in(range, owner);
        let take = |left: &mut Left| left.range.overlaps(range) && wish.is_of(left);
        let reclaimed = self.orphans.extract_if(.., take).collect();
        let mut repaired = Vec::new();
        if wish.repair {
            let covered = |left: &mut Left| left.range.overlaps(range);
            repaired = self.broken.extract_if(.., covered).collect();
        }
        let changed = self.ranges.set(range, wish.kind, owner, special);
        Granted { range, changed, before, reclaimed, repaired }
    }

    /// Takes a grant back. Returns how many ranges that removed and added.
    pub(crate) fn revert(&mut self, granted: Granted<O>, owner: O) -> Changed {
        let mut changed = self.ranges.clear(granted.range, owner);
        changed.added += granted.before.len();
        granted.before.into_iter().for_each(|held| self.ranges.put_back(held));
        self.orphans.extend(granted.reclaimed);
        self.broken.extend(granted.repaired);
        changed
    }

    /// The numbers of the owner's locks in a range that have records.
    ///
    /// # Errors
    /// `Part` when one of them reaches over the range.
    pub(crate) fn kept_in(&self, range: Range, owner: O) -> Result<Vec<u64>, Verdict<O>> {
        let mut numbers = Vec::new();
        for held in self.ranges.specials(Some(owner)) {
            if !held.range.overlaps(range) {
                continue;
            }
            if !range.contains(held.range) {
                return Err(Verdict::Part);
            }
            numbers.extend(held.special.map(|special| special.number));
        }
        Ok(numbers)
    }

    /// The state of an owner has ended: its persistent locks are left behind, the others are free.
    /// Returns how many ranges it had, and what was left.
    pub(crate) fn withdraw(&mut self, owner: O, holder: &Arc<LockHolder>) -> (usize, usize) {
        let kept = self.ranges.specials(Some(owner)).filter_map(|held| {
            let special = held.special.filter(|special| special.persist)?;
            let Locked { range, kind, .. } = *held;
            Some(Left { range, kind, special, holder: holder.clone() })
        });
        let kept: Vec<Left> = kept.collect();
        let left = kept.len();
        self.orphans.extend(kept);
        (self.ranges.clear_owner(owner), left)
    }

    /// Breaks what was left behind and matches; returns it.
    pub(crate) fn break_left(&mut self, matches: impl Fn(&Left) -> bool) -> Vec<Left> {
        let now: Vec<Left> = self.orphans.extract_if(.., |left| matches(left)).collect();
        self.broken.extend(now.iter().cloned());
        now
    }

    /// Enters what a record says was there before the server's restart.
    pub(crate) fn restore(&mut self, left: Left, broken: bool) {
        if broken { self.broken.push(left) } else { self.orphans.push(left) }
    }

    /// A lock that was left behind after all has been given up by its holder.
    pub(crate) fn forget_orphan(&mut self, number: u64) -> bool {
        let before = self.orphans.len();
        self.orphans.retain(|left| left.special.number != number);
        self.orphans.len() < before
    }

    /// Forgets all that was left, with its numbers: the file is gone.
    pub(crate) fn forget_left(&mut self) -> Vec<Left> {
        let mut left = std::mem::take(&mut self.orphans);
        left.append(&mut self.broken);
        left
    }

    pub(crate) fn is_broken_in(&self, range: Range) -> bool {
        self.broken.iter().any(|left| left.range.overlaps(range))
    }
}

impl<O> Wish<'_, O> {
    /// Whether a lock that was left behind is broken by this wish.
    pub(crate) fn breaks(&self, left: &Left) -> bool {
        left.range.overlaps(self.range) && left.kind.conflicts(self.kind) && !self.is_of(left)
    }

    fn is_of(&self, left: &Left) -> bool {
        self.me.is_some_and(|me| left.holder.is_same(me))
    }
}
