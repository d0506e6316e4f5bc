//! The use that clients, hosts, users and exports make of the server.
//!
//! Invariants
//! * Counting takes no lock. It allocates for the first request of a host or a user only.
//! * Of hosts and of users [`USAGES_MAX`] each are counted apart, in the order in which they come. The
//!   others are counted together, so their number bounds neither memory nor the text of the metrics.

use super::{BUCKETS, Histogram};
use crate::limits::{USAGE_SHARDS, USAGES_MAX};
use rustc_hash::FxBuildHasher;
use std::hash::{BuildHasher, Hash};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The class of a request, by the file data that it moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// It returned file data.
    Read,
    /// It took file data, and perhaps returned some, too.
    Write,
    /// It moved none.
    Other,
}

impl Class {
    /// All classes.
    pub const ALL: [Self; 3] = [Self::Read, Self::Write, Self::Other];

    /// The label in metrics.
    pub fn label(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Other => "other",
        }
    }
}

/// A request that has been answered.
#[derive(Debug, Clone, Copy, Default)]
pub struct Done {
    /// From arrival to answer, in nanoseconds.
    pub duration_ns: u64,
    /// True if the request was refused.
    pub failed: bool,
    /// Bytes of file data read.
    pub read_bytes: u64,
    /// Bytes of file data written.
    pub written_bytes: u64,
}

impl Done {
    /// The class of the request.
    pub fn class(&self) -> Class {
        match (self.read_bytes, self.written_bytes) {
            (0, 0) => Class::Other,
            (_, 0) => Class::Read,
            _ => Class::Write,
        }
    }
}

/// Counters of the use by one client, or by one thread's share of a party.
#[derive(Debug, Default)]
pub struct Usage {
    errors: AtomicU64,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
    /// By [`Class`].
    latency: [Histogram; Class::ALL.len()],
}

impl Usage {
    /// Counts one request.
    pub fn record(&self, done: &Done) {
        if done.failed {
            self.errors.fetch_add(1, Ordering::Relaxed);
        }
        if done.read_bytes > 0 {
            self.read_bytes.fetch_add(done.read_bytes, Ordering::Relaxed);
        }
        if done.written_bytes > 0 {
            self.written_bytes.fetch_add(done.written_bytes, Ordering::Relaxed);
        }
        self.latency[done.class() as usize].record(done.duration_ns);
    }

    /// Returns the present counts.
    pub fn now(&self) -> UsageCounts {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        UsageCounts {
            errors: load(&self.errors),
            read_bytes: load(&self.read_bytes),
            written_bytes: load(&self.written_bytes),
            latency: std::array::from_fn(|class| {
                let (buckets, sum_ns) = self.latency[class].read();
                LatencyCounts { buckets, sum_ns }
            }),
        }
    }
}

/// The counts of a [`Usage`] at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UsageCounts {
    /// Refused requests.
    pub errors: u64,
    /// Bytes of file data read.
    pub read_bytes: u64,
    /// Bytes of file data written.
    pub written_bytes: u64,
    /// Requests and their durations, by [`Class`].
    pub latency: [LatencyCounts; Class::ALL.len()],
}

impl UsageCounts {
    /// Requests of all classes.
    pub fn operations(&self) -> u64 {
        self.latency.iter().map(LatencyCounts::count).sum()
    }

    /// Adds the counts of another party.
    pub fn add(&mut self, other: &Self) {
        self.errors += other.errors;
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
        for (own, more) in self.latency.iter_mut().zip(&other.latency) {
            own.sum_ns += more.sum_ns;
            for (own, more) in own.buckets.iter_mut().zip(&more.buckets) {
                *own += more;
            }
        }
    }
}

/// The counts of a [`Histogram`] at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LatencyCounts {
    /// Durations in each bucket.
    pub buckets: [u64; BUCKETS],
    /// The sum of all durations, in nanoseconds.
    pub sum_ns: u64,
}

impl LatencyCounts {
    /// The number of durations.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }
}

/// A share of the counters, on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard(Usage);

/// Counters that several threads feed. Threads take turns in having a share, so few write to one
/// cache line.
#[derive(Debug, Default)]
pub struct SharedUsage([Shard; USAGE_SHARDS]);

/// The threads that have counted something so far.
static THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static SHARD: usize = THREADS.fetch_add(1, Ordering::Relaxed) % USAGE_SHARDS;
}

impl SharedUsage {
    /// Counts one request.
    pub fn record(&self, done: &Done) {
        self.0[SHARD.with(|shard| *shard)].0.record(done);
    }

    /// Returns the present counts.
    pub fn now(&self) -> UsageCounts {
        let mut counts = UsageCounts::default();
        for shard in &self.0 {
            counts.add(&shard.0.now());
        }
        counts
    }
}

/// The use of one export.
#[derive(Debug)]
pub struct ExportUse {
    name: String,
    usage: SharedUsage,
}

impl ExportUse {
    pub(crate) fn new(name: &str) -> Self {
        Self { name: name.to_owned(), usage: SharedUsage::default() }
    }

    /// The name of the export below the root.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Counts one request.
    pub fn record(&self, done: &Done) {
        self.usage.record(done);
    }

    /// Returns the present counts.
    pub fn now(&self) -> UsageCounts {
        self.usage.now()
    }
}

/// A party with its use, once there is one.
type Slot<K> = OnceLock<(K, Box<SharedUsage>)>;

/// The use by each of a bounded number of parties: hosts, or users.
#[derive(Debug)]
pub struct Usages<K> {
    slots: Box<[Slot<K>]>,
    /// The use by all others.
    others: SharedUsage,
}

impl<K> Default for Usages<K> {
    fn default() -> Self {
        let slots = (0..USAGES_MAX).map(|_| OnceLock::new()).collect();
        Self { slots, others: SharedUsage::default() }
    }
}

impl<K: Copy + Eq + Hash> Usages<K> {
    /// Returns the counters of a party. A thread waits here for another one only while that enters
    /// a new party.
    pub(super) fn of(&self, party: K) -> &SharedUsage {
        let start = FxBuildHasher.hash_one(party) as usize % USAGES_MAX;
        let (before, after) = self.slots.split_at(start);
        for slot in after.iter().chain(before) {
            let (found, usage) = slot.get_or_init(|| (party, Box::default()));
            if *found == party {
                return usage;
            }
        }
        &self.others
    }

    /// Returns the counts of each party, and those of all others together under `None`, if there
    /// are any.
    pub fn now(&self) -> Vec<(Option<K>, UsageCounts)> {
        let apart = self.slots.iter().filter_map(OnceLock::get);
        let mut all: Vec<_> = apart.map(|(party, usage)| (Some(*party), usage.now())).collect();
        let others = self.others.now();
        if others.operations() > 0 {
            all.push((None, others));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ: Done = Done { duration_ns: 3000, failed: false, read_bytes: 7, written_bytes: 0 };

    #[test]
    fn threads_add_up() {
        let usage = SharedUsage::default();
        std::thread::scope(|scope| {
            for _ in 0..2 * USAGE_SHARDS {
                scope.spawn(|| usage.record(&READ));
            }
        });
        let counts = usage.now();
        assert_eq!(counts.operations(), 2 * USAGE_SHARDS as u64);
        assert_eq!(counts.read_bytes, 14 * USAGE_SHARDS as u64);
        assert_eq!(counts.latency[Class::Read as usize].count(), counts.operations());
        assert_eq!(counts.latency[Class::Read as usize].sum_ns, 6000 * USAGE_SHARDS as u64);
    }

    #[test]
    fn classes_and_errors_are_told_apart() {
        let usage = Usage::default();
        usage.record(&READ);
        usage.record(&Done { written_bytes: 5, ..READ });
        usage.record(&Done { failed: true, read_bytes: 0, ..READ });
        let counts = usage.now();
        assert_eq!((counts.read_bytes, counts.written_bytes, counts.errors), (14, 5, 1));
        assert!(counts.latency.iter().all(|class| class.count() == 1));
    }

    #[test]
    fn parties_beyond_the_bound_are_counted_together() {
        let usages = Usages::<u32>::default();
        let parties = 3 * USAGES_MAX as u32;
        for party in (0..parties).chain(0..parties) {
            usages.of(party).record(&READ);
        }
        let all = usages.now();
        assert_eq!(all.len(), USAGES_MAX + 1);
        for (party, counts) in all {
            let expected = if party.is_some() { 2 } else { 4 * USAGES_MAX as u64 };
            assert_eq!(counts.operations(), expected, "{party:?}");
        }
    }
}
