//! The locks of one file, and the persistent locks of holders that are gone: the states of DAFS
//! 9.3, without clocks, clients or disks.
//!
//! | state | where |
//! |---|---|
//! | held | in the ranges; breakable too, once its holder's lease is over |
//! | breakable | in the ranges as above, or an orphan of a holder whose state has ended |
//! | broken | among the broken ones, until a client repairs it |
//!
//! Invariants
//! * Only a repair is granted over a broken lock. A request that conflicts with an orphaned lock
//!   breaks that lock before it is decided.
//! * A persistent lock is never cut or merged: it is released, replaced and repaired as a whole, so
//!   that it stays one entry with one number.
//! * A persistent lock is forgotten only by its holder's unlock, by the unlock that follows its
//!   repair, or with its file.

use super::ranges::{Changed, Locked, RangeList, Special};
use super::{LockKind, Range};
use crate::client::ClientKey;
use std::sync::Arc;

/// A lock owner, named so that it is recognised after restarts of server and client.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LockHolder {
    /// The client's key while it held the lock.
    pub client: ClientKey,
    /// The client's own name.
    pub name: Vec<u8>,
    /// The verifier of the client's instance.
    pub verifier: [u8; 8],
    /// How the client authenticated.
    pub mechanism: String,
    /// The principal that it authenticated as.
    pub principal: Vec<u8>,
    /// The owner's name at that client.
    pub owner: Vec<u8>,
}

impl LockHolder {
    /// True for the same owner of the same client instance, under any key of the server.
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

    /// True when the client has restarted since.
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
pub(crate) struct Orphan {
    pub(crate) range: Range,
    pub(crate) kind: LockKind,
    pub(crate) special: Special,
    pub(crate) holder: Arc<LockHolder>,
}

/// A requested lock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wish<'a, O> {
    pub(crate) range: Range,
    pub(crate) kind: LockKind,
    /// The owner's state, if it has any on this file.
    pub(crate) own: Option<O>,
    /// The owner's identity. `None` for clients without persistent locks.
    pub(crate) me: Option<&'a LockHolder>,
    pub(crate) repair: bool,
}

/// The decision about a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict<O> {
    /// Grant it.
    Free,
    /// This lock conflicts.
    Denied(Locked<O>),
    /// Only locks of these expired holders conflict: end their leases and retry.
    Lapsed(Vec<O>),
    /// This broken lock conflicts.
    Broken(Orphan),
    /// This orphaned lock conflicts, perhaps with others: break all that do.
    Breaks(Orphan),
    /// The request concerns a part of a persistent lock, which is changed as a whole or not at all.
    Part,
    /// A repair of a range without a broken lock.
    NothingBroken,
}

/// The changes of a grant, so that it can be reverted.
#[derive(Debug)]
pub(crate) struct Granted<O> {
    pub(crate) range: Range,
    pub(crate) changed: Changed,
    /// Pieces that the owner had in the range.
    pub(crate) before: Vec<Locked<O>>,
    /// Orphaned locks of the owner itself.
    pub(crate) reclaimed: Vec<Orphan>,
    pub(crate) repaired: Vec<Orphan>,
}

impl<O> Granted<O> {
    /// The numbers of the locks that it has replaced.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u64> {
        let held = self.before.iter().filter_map(|held| held.special);
        let orphans = self.reclaimed.iter().chain(&self.repaired).map(|orphan| orphan.special);
        held.chain(orphans).map(|special| special.number)
    }

    /// The names of the clients that had those locks, if the owner belongs to the client `own`.
    pub(crate) fn former<'a>(&'a self, own: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        let held = self.before.iter().filter(|held| held.special.is_some()).map(move |_| own);
        let orphans = self.reclaimed.iter().chain(&self.repaired);
        held.chain(orphans.map(|orphan| &*orphan.holder.name))
    }
}

/// All locks of a file.
#[derive(Debug, Clone)]
pub(crate) struct LockBook<O> {
    pub(crate) ranges: RangeList<O>,
    /// Breakable: their holders' state has ended, and no conflicting request has come since.
    orphans: Vec<Orphan>,
    broken: Vec<Orphan>,
}

impl<O> Default for LockBook<O> {
    fn default() -> Self {
        Self { ranges: RangeList::default(), orphans: Vec::new(), broken: Vec::new() }
    }
}

impl<O: Copy + Eq> LockBook<O> {
    /// True when there are orphaned or broken locks.
    pub(crate) fn has_left(&self) -> bool {
        !self.orphans.is_empty() || !self.broken.is_empty()
    }

    pub(crate) fn orphans(&self) -> &[Orphan] {
        &self.orphans
    }

    pub(crate) fn broken(&self) -> &[Orphan] {
        &self.broken
    }

    /// Decides about a request. `lapsed` is true for owners whose lease is over.
    pub(crate) fn decide(&self, wish: &Wish<'_, O>, lapsed: impl Fn(O) -> bool) -> Verdict<O> {
        let Wish { range, kind, own, .. } = *wish;
        let mut broken =
            self.broken.iter().filter(|orphan| orphan.range.overlaps(range)).peekable();
        if wish.repair {
            if broken.peek().is_none() {
                return Verdict::NothingBroken;
            }
            if broken.any(|orphan| !range.contains(orphan.range)) {
                return Verdict::Part;
            }
        } else if let Some(orphan) = broken.next() {
            return Verdict::Broken(orphan.clone());
        }
        let conflicts = || self.ranges.conflicts(range, kind, own);
        if let Some(held) = conflicts().find(|held| !lapsed(held.owner)) {
            return Verdict::Denied(*held);
        }
        let over: Vec<O> = conflicts().map(|held| held.owner).collect();
        if !over.is_empty() {
            return Verdict::Lapsed(over);
        }
        if let Some(orphan) = self.orphans.iter().find(|orphan| wish.breaks(orphan)) {
            return Verdict::Breaks(orphan.clone());
        }
        let own_orphans =
            self.orphans.iter().filter(|orphan| wish.is_of(orphan)).map(|orphan| orphan.range);
        let special = self.ranges.specials(own).map(|held| held.range);
        if own_orphans.chain(special).any(|kept| kept.overlaps(range) && !range.contains(kept)) {
            return Verdict::Part;
        }
        Verdict::Free
    }

    /// Joins the properties of the owner's own locks in the range that need a record, held or
    /// orphaned. A lock that replaces them inherits these.
    pub(crate) fn inherited(&self, wish: &Wish<'_, O>) -> Option<Special> {
        let held = self.ranges.specials(wish.own).map(|held| (held.range, held.special));
        let orphans = self.orphans.iter().filter(|orphan| wish.is_of(orphan));
        let orphans = orphans.map(|orphan| (orphan.range, Some(orphan.special)));
        let inside = held.chain(orphans).filter(|(range, _)| range.overlaps(wish.range));
        inside.filter_map(|(_, special)| special).reduce(Special::join)
    }

    /// Grants a request of `owner` that conflicts with no lock.
    pub(crate) fn grant(
        &mut self,
        wish: &Wish<'_, O>,
        owner: O,
        special: Option<Special>,
    ) -> Granted<O> {
        debug_assert!(self.decide(wish, |_| false) == Verdict::Free);
        let range = wish.range;
        let before = self.ranges.own_in(range, owner);
        let take = |orphan: &mut Orphan| orphan.range.overlaps(range) && wish.is_of(orphan);
        let reclaimed = self.orphans.extract_if(.., take).collect();
        let mut repaired = Vec::new();
        if wish.repair {
            let covered = |orphan: &mut Orphan| orphan.range.overlaps(range);
            repaired = self.broken.extract_if(.., covered).collect();
        }
        let changed = self.ranges.set(range, wish.kind, owner, special);
        Granted { range, changed, before, reclaimed, repaired }
    }

    /// Reverts a grant. Returns the number of ranges removed and added.
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
    /// `Part` when one of them extends beyond the range.
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

    /// Ends the state of an owner: its persistent locks become orphans, the others are released.
    /// Returns the number of its ranges, and the number of orphans.
    pub(crate) fn withdraw(&mut self, owner: O, holder: &Arc<LockHolder>) -> (usize, usize) {
        let kept = self.ranges.specials(Some(owner)).filter_map(|held| {
            let special = held.special.filter(|special| special.persist)?;
            let Locked { range, kind, .. } = *held;
            Some(Orphan { range, kind, special, holder: holder.clone() })
        });
        let kept: Vec<Orphan> = kept.collect();
        let count = kept.len();
        self.orphans.extend(kept);
        (self.ranges.clear_owner(owner), count)
    }

    /// Breaks the orphaned locks that match, and returns them.
    pub(crate) fn break_orphans(&mut self, matches: impl Fn(&Orphan) -> bool) -> Vec<Orphan> {
        let now: Vec<Orphan> = self.orphans.extract_if(.., |orphan| matches(orphan)).collect();
        self.broken.extend(now.iter().cloned());
        now
    }

    /// Enters a lock from a record, after the server's restart.
    pub(crate) fn restore(&mut self, orphan: Orphan, broken: bool) {
        if broken { self.broken.push(orphan) } else { self.orphans.push(orphan) }
    }

    /// Forgets an orphaned lock that its holder had released after all.
    pub(crate) fn forget_orphan(&mut self, number: u64) -> bool {
        let before = self.orphans.len();
        self.orphans.retain(|orphan| orphan.special.number != number);
        self.orphans.len() < before
    }

    /// Forgets all orphaned and broken locks, and returns them: the file is gone.
    pub(crate) fn forget_orphans(&mut self) -> Vec<Orphan> {
        let mut orphans = std::mem::take(&mut self.orphans);
        orphans.append(&mut self.broken);
        orphans
    }

    pub(crate) fn is_broken_in(&self, range: Range) -> bool {
        self.broken.iter().any(|orphan| orphan.range.overlaps(range))
    }
}

impl<O> Wish<'_, O> {
    /// True if this request breaks an orphaned lock.
    pub(crate) fn breaks(&self, orphan: &Orphan) -> bool {
        orphan.range.overlaps(self.range) && orphan.kind.conflicts(self.kind) && !self.is_of(orphan)
    }

    fn is_of(&self, orphan: &Orphan) -> bool {
        self.me.is_some_and(|me| orphan.holder.is_same(me))
    }
}
