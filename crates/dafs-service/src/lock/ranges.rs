//! The locked ranges of one file, with POSIX semantics: an owner's new lock replaces its older ones
//! where they overlap, and neighbours of one owner and kind are merged.
//!
//! Invariants
//! * Entries are sorted by their first byte.
//! * Entries of one owner do not overlap, and neighbours of one owner and kind are merged.
//! * Entries of two owners overlap only if both are for reading.
//! * A special entry is never merged or cut.

use super::{LockKind, Range};

/// The special properties of a lock, and its number in all runs of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Special {
    pub(crate) number: u64,
    /// It outlives its holder (DAFS 9.3).
    pub(crate) persist: bool,
    /// Changes under it are undone when its holder fails (DAFS 9.5).
    pub(crate) autorecover: bool,
    /// It is held to repair the damage under a broken lock (DAFS O34).
    pub(crate) repair: bool,
}

impl Special {
    /// Returns the properties of a lock that replaces both.
    pub(crate) fn join(self, other: Self) -> Self {
        Self {
            number: self.number,
            persist: self.persist || other.persist,
            autorecover: self.autorecover || other.autorecover,
            repair: self.repair || other.repair,
        }
    }
}

/// One locked range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Locked<O> {
    pub(crate) range: Range,
    pub(crate) kind: LockKind,
    pub(crate) owner: O,
    pub(crate) special: Option<Special>,
}

/// All locked ranges of a file.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct RangeList<O>(Vec<Locked<O>>);

impl<O> Default for RangeList<O> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

/// The number of entries that a change has removed and added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Changed {
    pub(crate) removed: usize,
    pub(crate) added: usize,
}

impl<O: Copy + Eq> RangeList<O> {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Locked<O>> {
        self.0.iter()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// True when unlocking this range cuts one entry of the owner's in two.
    pub(crate) fn splits(&self, range: Range, owner: O) -> bool {
        let cut = |entry: &Locked<O>| {
            entry.owner == owner && entry.range.first < range.first && entry.range.last > range.last
        };
        let end = self.0.partition_point(|entry| entry.range.first < range.first);
        self.0[..end].iter().any(cut)
    }

    pub(crate) fn has_owner(&self, owner: O) -> bool {
        self.0.iter().any(|entry| entry.owner == owner)
    }

    /// The locks that conflict with one of this owner, by their first byte.
    pub(crate) fn conflicts(
        &self,
        range: Range,
        kind: LockKind,
        owner: Option<O>,
    ) -> impl Iterator<Item = &Locked<O>> {
        let end = self.0.partition_point(|entry| entry.range.first <= range.last);
        self.0[..end].iter().filter(move |entry| {
            Some(entry.owner) != owner && entry.range.overlaps(range) && entry.kind.conflicts(kind)
        })
    }

    /// The special locks of an owner.
    pub(crate) fn specials(&self, owner: Option<O>) -> impl Iterator<Item = &Locked<O>> {
        self.0.iter().filter(move |entry| entry.special.is_some() && Some(entry.owner) == owner)
    }

    /// The owner's entries in a range, cut to it.
    pub(crate) fn own_in(&self, range: Range, owner: O) -> Vec<Locked<O>> {
        let own = self.0.iter().filter(|e| e.owner == owner && e.range.overlaps(range));
        let cut = own.map(|entry| {
            let first = entry.range.first.max(range.first);
            let last = entry.range.last.min(range.last);
            Locked { range: Range { first, last }, ..*entry }
        });
        cut.collect()
    }

    /// Enters a piece as it was.
    pub(crate) fn put_back(&mut self, entry: Locked<O>) {
        self.insert(entry);
    }

    /// Locks a range for an owner, in place of its locks there. The caller has checked that no lock
    /// conflicts.
    pub(crate) fn set(
        &mut self,
        range: Range,
        kind: LockKind,
        owner: O,
        special: Option<Special>,
    ) -> Changed {
        debug_assert!(self.conflicts(range, kind, Some(owner)).next().is_none());
        let mut changed = self.clear(range, owner);
        let mut merged = range;
        let before = self.0.len();
        self.0.retain(|entry| {
            let touches = entry.range.last.checked_add(1) == Some(merged.first)
                || merged.last.checked_add(1) == Some(entry.range.first);
            let plain = special.is_none() && entry.special.is_none();
            let joins = touches && plain && entry.owner == owner && entry.kind == kind;
            if joins {
                merged.first = merged.first.min(entry.range.first);
                merged.last = merged.last.max(entry.range.last);
            }
            !joins
        });
        changed.removed += before - self.0.len();
        self.insert(Locked { range: merged, kind, owner, special });
        changed.added += 1;
        changed
    }

    /// Unlocks a range for an owner. Its parts on both sides stay.
    pub(crate) fn clear(&mut self, range: Range, owner: O) -> Changed {
        let mut kept = Vec::new();
        let before = self.0.len();
        self.0.retain(|entry| {
            let hit = entry.owner == owner && entry.range.overlaps(range);
            if hit {
                debug_assert!(entry.special.is_none() || range.contains(entry.range));
                let mut keep = |first, last| {
                    kept.push(Locked { range: Range { first, last }, ..*entry });
                };
                if entry.range.first < range.first {
                    keep(entry.range.first, range.first - 1);
                }
                if entry.range.last > range.last {
                    keep(range.last + 1, entry.range.last);
                }
            }
            !hit
        });
        let changed = Changed { removed: before - self.0.len(), added: kept.len() };
        kept.into_iter().for_each(|entry| self.insert(entry));
        changed
    }

    /// Unlocks all ranges of an owner. Returns their number.
    pub(crate) fn clear_owner(&mut self, owner: O) -> usize {
        let before = self.0.len();
        self.0.retain(|entry| entry.owner != owner);
        before - self.0.len()
    }

    fn insert(&mut self, entry: Locked<O>) {
        let at = self.0.partition_point(|other| other.range.first <= entry.range.first);
        self.0.insert(at, entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BYTES: u64 = 24;

    /// A step of a client: lock or unlock.
    #[derive(Debug, Clone, Copy)]
    struct Step {
        range: Range,
        owner: u8,
        kind: Option<LockKind>,
    }

    fn step() -> impl Strategy<Value = Step> {
        let kind = prop_oneof![Just(None), Just(Some(LockKind::Read)), Just(Some(LockKind::Write))];
        (0..BYTES, 1..=BYTES, 0..3_u8, kind).prop_map(|(first, length, owner, kind)| {
            // The upper end of the model stands for the largest offset.
            let last = (first + length - 1).min(BYTES - 1);
            let last = if last == BYTES - 1 { u64::MAX } else { last };
            Step { range: Range { first, last }, owner, kind }
        })
    }

    type Model = [[Option<LockKind>; 3]; BYTES as usize];

    fn bytes(range: Range) -> std::ops::Range<usize> {
        range.first as usize..range.last.min(BYTES - 1) as usize + 1
    }

    fn conflicts(model: &Model, range: Range, kind: LockKind, owner: u8) -> bool {
        bytes(range).any(|byte| {
            (0..3).filter(|&other| other != usize::from(owner)).any(|other| {
                model[byte][other]
                    .is_some_and(|held| held == LockKind::Write || kind == LockKind::Write)
            })
        })
    }

    fn check_form(list: &RangeList<u8>) {
        assert!(list.0.windows(2).all(|pair| pair[0].range.first <= pair[1].range.first));
        for (at, one) in list.0.iter().enumerate() {
            assert!(one.range.first <= one.range.last);
            for other in list.0[at + 1..].iter().filter(|other| other.owner == one.owner) {
                assert!(!one.range.overlaps(other.range), "{one:?} {other:?}");
                let touch = one.range.last.checked_add(1) == Some(other.range.first);
                assert!(!(touch && one.kind == other.kind), "{one:?} {other:?}");
            }
        }
    }

    proptest! {
        #[test]
        fn ranges_are_what_a_model_of_single_bytes_says(
            steps in prop::collection::vec(step(), 1..60)
        ) {
            let mut list = RangeList::default();
            let mut model: Model = [[None; 3]; BYTES as usize];
            for Step { range, owner, kind } in steps {
                let before = list.0.len();
                let splits = kind.is_none() && list.splits(range, owner);
                let changed = match kind {
                    Some(kind) => {
                        let denied = list.conflicts(range, kind, Some(owner)).next().is_some();
                        prop_assert_eq!(denied, conflicts(&model, range, kind, owner));
                        if denied {
                            continue;
                        }
                        list.set(range, kind, owner, None)
                    }
                    None => list.clear(range, owner),
                };
                bytes(range).for_each(|byte| model[byte][usize::from(owner)] = kind);
                prop_assert_eq!(before + changed.added - changed.removed, list.0.len());
                prop_assert_eq!(splits, kind.is_none() && list.0.len() > before);
                check_form(&list);
                for byte in 0..BYTES {
                    for owner in 0..3_u8 {
                        let at = if byte == BYTES - 1 { u64::MAX } else { byte };
                        let hit = list.iter().find(|entry| {
                            let one = Range { first: at, last: at };
                            entry.owner == owner && entry.range.overlaps(one)
                        });
                        let expected = model[byte as usize][usize::from(owner)];
                        prop_assert_eq!(hit.map(|entry| entry.kind), expected);
                    }
                }
            }
        }
    }

    #[test]
    fn ranges_end_at_the_largest_offset() {
        let invalid = Err(ServiceErrorKind);
        let range = |offset, length| Range::new(offset, length).map_err(|_| ServiceErrorKind);
        assert_eq!(range(5, 0), invalid);
        assert_eq!(range(u64::MAX, 2), invalid);
        assert_eq!(range(u64::MAX, 1), Ok(Range { first: u64::MAX, last: u64::MAX }));
        assert_eq!(range(7, u64::MAX), Ok(Range { first: 7, last: u64::MAX }));
        assert_eq!(range(7, u64::MAX).map(Range::length), Ok(u64::MAX));
        assert_eq!(range(7, 3).map(Range::length), Ok(3));
    }

    #[derive(Debug, PartialEq, Clone, Copy)]
    struct ServiceErrorKind;
}
