//! The rate at which hosts begin contexts: a token bucket for each host.
//!
//! A bucket is one number, the time at which it is full (the generic cell rate algorithm). A full
//! bucket needs no entry.
//!
//! Invariants
//! * In any time a host begins no more contexts than the rate allows in it, and a burst.
//! * The memory for hosts is bounded. Hosts without room for an entry share one bucket.

use crate::limits::{GSS_BURST, GSS_RATED_HOSTS_MAX};
use dafs_dat::connections::Origin;
use dafs_mem::Shrinking as _;
use rustc_hash::FxHashMap;
use std::collections::hash_map::Entry;
use std::time::Duration;

/// The buckets of all hosts.
#[derive(Debug)]
pub(super) struct Rates {
    /// The time in which one token flows into a bucket.
    token_ns: u64,
    /// The time in which an empty bucket gets full.
    bucket_ns: u64,
    full_at_ns: FxHashMap<Origin, u64>,
    /// The bucket of hosts without an entry.
    others_full_at_ns: u64,
}

impl Rates {
    /// Full buckets for this rate.
    pub(super) fn new(per_second: u32) -> Self {
        let second_ns = Duration::from_secs(1).as_nanos() as u64;
        Self {
            token_ns: second_ns / u64::from(per_second.max(1)),
            bucket_ns: u64::try_from(GSS_BURST.as_nanos()).unwrap_or(u64::MAX),
            full_at_ns: FxHashMap::default(),
            others_full_at_ns: 0,
        }
    }

    /// Takes a token out of the host's bucket. False if it has none.
    pub(super) fn take(&mut self, host: Origin, now_ns: u64) -> bool {
        let has_room = self.full_at_ns.len() < GSS_RATED_HOSTS_MAX;
        let full_at_ns = match self.full_at_ns.entry(host) {
            Entry::Occupied(bucket) => bucket.into_mut(),
            Entry::Vacant(bucket) if has_room => bucket.insert(now_ns),
            Entry::Vacant(_) => &mut self.others_full_at_ns,
        };
        let after_ns = (*full_at_ns).max(now_ns).saturating_add(self.token_ns);
        let has_token = after_ns - now_ns <= self.bucket_ns;
        if has_token {
            *full_at_ns = after_ns;
        }
        has_token
    }

    /// Forgets the hosts whose buckets are full.
    pub(super) fn tick(&mut self, now_ns: u64) {
        self.full_at_ns.retain(|_, full_at_ns| *full_at_ns > now_ns);
        self.full_at_ns.shrink_if_sparse();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PER_SECOND: u32 = 10;
    const BURST: usize = PER_SECOND as usize * GSS_BURST.as_secs() as usize;

    fn taken(rates: &mut Rates, host: u32, tries: usize, now_ns: u64) -> usize {
        (0..tries).filter(|_| rates.take(Origin::Sim(host), now_ns)).count()
    }

    #[test]
    fn hosts_have_buckets_of_their_own() {
        let mut rates = Rates::new(PER_SECOND);
        assert_eq!(taken(&mut rates, 1, 1000, 0), BURST);
        assert_eq!(taken(&mut rates, 2, 3, 0), 3);
        assert_eq!(taken(&mut rates, 1, 1000, 499_999_999), 4);
        assert_eq!(taken(&mut rates, 1, 1000, 500_000_000), 1);
        let full_ns = 500_000_000 + GSS_BURST.as_nanos() as u64;
        rates.tick(full_ns - 1);
        assert_eq!(rates.full_at_ns.len(), 1);
        rates.tick(full_ns);
        assert!(rates.full_at_ns.is_empty());
        assert_eq!(taken(&mut rates, 1, 1000, full_ns), BURST);
    }

    #[test]
    fn hosts_beyond_the_limit_share_a_bucket() {
        let mut rates = Rates::new(PER_SECOND);
        for host in 0..GSS_RATED_HOSTS_MAX as u32 {
            assert!(rates.take(Origin::Sim(host), 0));
        }
        let more = GSS_RATED_HOSTS_MAX as u32..GSS_RATED_HOSTS_MAX as u32 + 1000;
        let taken_by_more = more.filter(|host| rates.take(Origin::Sim(*host), 0)).count();
        assert_eq!(taken_by_more, BURST);
        assert_eq!(rates.full_at_ns.len(), GSS_RATED_HOSTS_MAX);
        assert!(rates.take(Origin::Sim(0), 0), "a host with an entry is unhurt");
    }

    proptest! {
        #[test]
        fn no_time_has_more_than_a_burst_and_the_rate(
            steps in prop::collection::vec((0u64..3_000_000_000, 0usize..100), 1..50),
        ) {
            let mut rates = Rates::new(PER_SECOND);
            let (mut now_ns, mut times) = (0, Vec::new());
            for (passed_ns, tries) in steps {
                now_ns += passed_ns;
                let got = taken(&mut rates, 1, tries, now_ns);
                times.extend(std::iter::repeat_n(now_ns, got));
            }
            for (from, from_ns) in times.iter().enumerate() {
                for (to, to_ns) in times.iter().enumerate().skip(from) {
                    let flown = (to_ns - from_ns) as usize / 100_000_000;
                    prop_assert!(to - from < BURST + flown + 1);
                }
            }
        }
    }
}
