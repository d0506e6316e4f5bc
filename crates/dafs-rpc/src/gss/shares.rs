//! A bounded set of contexts that the hosts of clients share.
//!
//! Invariants
//! * A host adds another entry only while it has fewer than are left (dynamic thresholds). Above
//!   its share it loses its own oldest entry instead. So a flood from one host removes no entry of
//!   another.
//! * The set never has more entries than its limit.

use dafs_dat::connections::Origin;
use dafs_mem::Shrinking as _;
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};

/// There is no room, and no entry may make some.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Full;

/// Entries by their number, which grows with time.
#[derive(Debug)]
pub(super) struct Shares<T> {
    max: usize,
    per_origin_max: usize,
    all: BTreeMap<u64, (Origin, T)>,
    of_origin: FxHashMap<Origin, BTreeSet<u64>>,
}

impl<T> Shares<T> {
    /// An empty set for at most `max` entries, `per_origin_max` of them of one host.
    pub(super) fn new(max: usize, per_origin_max: usize) -> Self {
        Self { max, per_origin_max, all: BTreeMap::new(), of_origin: FxHashMap::default() }
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Adds an entry with a new number. Returns the entry that was removed for it, with its number:
    /// the oldest of the host, or of all if the host has none. Only entries for which `may_go` is
    /// true are removed.
    ///
    /// # Errors
    /// When there is no such entry. The new one is dropped.
    pub(super) fn push(
        &mut self,
        number: u64,
        origin: Origin,
        value: T,
        may_go: impl Fn(&T) -> bool,
    ) -> Result<Option<(u64, T)>, Full> {
        debug_assert!(!self.all.contains_key(&number), "two entries with one number");
        let own = self.of_origin.get(&origin);
        let own_count = own.map_or(0, BTreeSet::len);
        let has_share = own_count < self.per_origin_max.min(self.max.saturating_sub(self.len()));
        let gone = if has_share {
            None
        } else {
            let goes = |number: &u64| self.all.get(number).is_some_and(|(_, value)| may_go(value));
            let oldest = match own {
                Some(own) => own.iter().copied().find(goes),
                None => self.all.keys().copied().find(goes),
            };
            let oldest = oldest.ok_or(Full)?;
            self.remove(oldest).map(|value| (oldest, value))
        };
        self.all.insert(number, (origin, value));
        self.of_origin.entry(origin).or_default().insert(number);
        Ok(gone)
    }

    pub(super) fn entry(&mut self, number: u64) -> Option<&mut T> {
        self.all.get_mut(&number).map(|(_, value)| value)
    }

    /// Removes an entry.
    pub(super) fn remove(&mut self, number: u64) -> Option<T> {
        let (origin, value) = self.all.remove(&number)?;
        if let Some(own) = self.of_origin.get_mut(&origin) {
            own.remove(&number);
            if own.is_empty() {
                self.of_origin.remove_and_shrink(&origin);
            }
        }
        Some(value)
    }

    /// Removes all entries for which `goes` is true.
    pub(super) fn remove_if(&mut self, goes: impl Fn(&T) -> bool) -> Vec<T> {
        let going = self.all.iter().filter(|(_, (_, value))| goes(value));
        let going: Vec<u64> = going.map(|(number, _)| *number).collect();
        going.into_iter().filter_map(|number| self.remove(number)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn entries_that_may_not_go_stay() {
        let mut shares = Shares::new(8, 2);
        let host = Origin::Sim(1);
        assert_eq!(shares.push(1, host, false, |goes| *goes), Ok(None));
        assert_eq!(shares.push(2, host, true, |goes| *goes), Ok(None));
        assert_eq!(shares.push(3, host, false, |goes| *goes), Ok(Some((2, true))));
        assert_eq!(shares.push(4, host, true, |goes| *goes), Err(Full));
        assert_eq!(shares.push(5, Origin::Sim(2), true, |goes| *goes), Ok(None));
        *shares.entry(3).unwrap() = true;
        assert_eq!(shares.remove_if(|goes| *goes), [true, true]);
        assert_eq!((shares.len(), shares.of_origin.len()), (1, 1));
    }

    proptest! {
        #[test]
        fn a_flood_removes_its_own(flood in prop::collection::vec(1u32..6, 1..400)) {
            let mut shares = Shares::new(32, 20);
            shares.push(0, Origin::Sim(0), 0, |_| true).unwrap();
            for (number, host) in (1..).zip(flood) {
                let gone = shares.push(number, Origin::Sim(host), host, |_| true);
                let own = shares.of_origin[&Origin::Sim(host)].len();
                prop_assert!(own <= 20 && shares.len() <= 32);
                prop_assert!(gone.unwrap().is_none_or(|(_, of)| of == host));
            }
            prop_assert!(shares.of_origin.values().map(BTreeSet::len).sum::<usize>() == shares.len());
            prop_assert_eq!(shares.remove(0), Some(0));
        }
    }
}
