//! Contexts that have carried a verified call, in the order in which they make room for others.
//!
//! Invariants
//! * A context of the principal that has the most makes room. So no number of contexts of one
//!   principal removes any of another that has fewer.
//! * Of that principal the context with the earliest time goes, and of several such principals the
//!   one with the earliest time.

use dafs_mem::Shrinking as _;
use rustc_hash::FxHashMap;
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

/// A time and the serial number of a context.
pub(super) type Used = (u64, u64);

/// Contexts by principal and time.
#[derive(Debug, Default)]
pub(super) struct Proven {
    len: usize,
    of_principal: FxHashMap<Arc<[u8]>, BTreeSet<Used>>,
    /// For each principal: the number of its contexts, and the earliest of them.
    ranks: BTreeSet<(usize, Reverse<Used>)>,
}

impl Proven {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Adds a context.
    pub(super) fn insert(&mut self, principal: &Arc<[u8]>, used: Used) {
        self.change(principal, |own| own.insert(used));
    }

    /// Removes a context.
    pub(super) fn remove(&mut self, principal: &Arc<[u8]>, used: Used) {
        self.change(principal, |own| own.remove(&used));
    }

    /// The context that makes room next.
    pub(super) fn first(&self) -> Option<Used> {
        self.ranks.last().map(|(_, Reverse(used))| *used)
    }

    fn change(&mut self, principal: &Arc<[u8]>, change: impl FnOnce(&mut BTreeSet<Used>) -> bool) {
        let own = self.of_principal.entry(principal.clone()).or_default();
        if let Some(rank) = rank(own) {
            self.ranks.remove(&rank);
        }
        self.len -= own.len();
        let changed = change(own);
        debug_assert!(changed, "a context is here twice, or not at all");
        self.len += own.len();
        match rank(own) {
            Some(rank) => {
                self.ranks.insert(rank);
            }
            None => {
                self.of_principal.remove_and_shrink(principal);
            }
        }
    }
}

fn rank(own: &BTreeSet<Used>) -> Option<(usize, Reverse<Used>)> {
    own.first().map(|first| (own.len(), Reverse(*first)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_principal_with_the_most_makes_room() {
        let [anna, bert, eve]: [Arc<[u8]>; 3] = [[1].into(), [2].into(), [3].into()];
        let mut proven = Proven::default();
        assert_eq!(proven.first(), None);
        for (principal, used) in [(&anna, 1), (&bert, 2), (&eve, 3), (&eve, 4), (&anna, 5)] {
            proven.insert(principal, (used, used));
        }
        assert_eq!((proven.first(), proven.len()), (Some((1, 1)), 5));
        proven.insert(&eve, (6, 6));
        assert_eq!(proven.first(), Some((3, 3)));
        proven.remove(&eve, (3, 3));
        proven.remove(&eve, (4, 4));
        assert_eq!(proven.first(), Some((1, 1)));
        for (principal, used) in [(&anna, 1), (&anna, 5), (&bert, 2), (&eve, 6)] {
            proven.remove(principal, (used, used));
        }
        assert_eq!((proven.first(), proven.len()), (None, 0));
        assert!(proven.of_principal.is_empty() && proven.ranks.is_empty());
    }

    proptest! {
        #[test]
        fn a_flood_removes_none_of_principals_with_fewer(
            flood in prop::collection::vec((0u8..6, 1usize..5), 1..300),
        ) {
            const MAX: usize = 32;
            let mut proven = Proven::default();
            let mut owners: Vec<(Used, Arc<[u8]>)> = Vec::new();
            let mut serial = 0;
            for (principal, times) in flood {
                let principal: Arc<[u8]> = [principal].into();
                for _ in 0..times {
                    serial += 1;
                    proven.insert(&principal, (serial, serial));
                    owners.push(((serial, serial), principal.clone()));
                    if proven.len() <= MAX {
                        continue;
                    }
                    let gone = proven.first().unwrap();
                    let at = owners.iter().position(|(used, _)| *used == gone).unwrap();
                    let count = |of: &Arc<[u8]>| owners.iter().filter(|(_, own)| own == of).count();
                    let most = owners.iter().map(|(_, own)| count(own)).max().unwrap();
                    prop_assert_eq!(count(&owners[at].1), most);
                    let (used, owner) = owners.remove(at);
                    proven.remove(&owner, used);
                }
                prop_assert_eq!(proven.len(), owners.len());
            }
        }
    }
}
