//! Counters that every front end feeds: operations, their latency, and the client or export.
//!
//! Invariants
//! * Recording takes no lock and allocates nothing.
//! * A histogram's buckets are powers of two of microseconds, so that the numbers of two servers
//!   can be added.

use crate::layout::DeviceUse;
use std::sync::atomic::{AtomicU64, Ordering};

/// The front end by which an operation came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FrontEnd {
    /// DAFS.
    Dafs,
    /// NFSv4.1 and 4.2.
    Nfs4,
    /// NFSv3.
    Nfs3,
    /// MOUNT.
    Mount,
}

impl FrontEnd {
    /// All front ends.
    pub const ALL: [Self; 4] = [Self::Dafs, Self::Nfs4, Self::Nfs3, Self::Mount];

    /// The label in metrics.
    pub fn label(self) -> &'static str {
        match self {
            Self::Dafs => "dafs",
            Self::Nfs4 => "nfs4",
            Self::Nfs3 => "nfs3",
            Self::Mount => "mount",
        }
    }
}

/// Operations of one front end that are counted apart. Larger numbers count as the last.
pub const OPERATIONS_MAX: usize = 176;

/// Buckets of a histogram: up to 1, 2, 4, ... 2^20 microseconds, and beyond.
pub const BUCKETS: usize = 22;

/// A histogram of durations.
#[derive(Debug)]
pub struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: std::array::from_fn(|_| AtomicU64::new(0)), sum_ns: AtomicU64::new(0) }
    }
}

impl Histogram {
    /// Counts one duration.
    pub fn record(&self, duration_ns: u64) {
        let micros = duration_ns.div_ceil(1000).max(1);
        let bucket = (u64::BITS - (micros - 1).leading_zeros()) as usize;
        self.buckets[bucket.min(BUCKETS - 1)].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(duration_ns, Ordering::Relaxed);
    }

    /// Returns the count of each bucket, and the sum of all durations in nanoseconds.
    pub fn read(&self) -> ([u64; BUCKETS], u64) {
        let buckets = std::array::from_fn(|at| self.buckets[at].load(Ordering::Relaxed));
        (buckets, self.sum_ns.load(Ordering::Relaxed))
    }

    /// Returns the upper end of a bucket in seconds. The last has none, so it is infinite.
    pub fn bound_seconds(bucket: usize) -> f64 {
        if bucket + 1 >= BUCKETS { f64::INFINITY } else { (1u64 << bucket) as f64 / 1e6 }
    }
}

/// Counters of one operation of one front end.
#[derive(Debug, Default)]
pub struct OperationMetrics {
    /// Time from the arrival of the request to the answer.
    pub latency: Histogram,
    /// Refused requests.
    pub errors: AtomicU64,
}

/// Use by one client or of one export.
#[derive(Debug, Default)]
pub struct Usage {
    /// Requests.
    pub operations: AtomicU64,
    /// Refused requests.
    pub errors: AtomicU64,
    /// Bytes of file data read.
    pub read_bytes: AtomicU64,
    /// Bytes of file data written.
    pub written_bytes: AtomicU64,
    /// Latency of requests.
    pub latency: Histogram,
}

impl Usage {
    /// Counts one request.
    pub fn record(&self, done: &Done) {
        self.operations.fetch_add(1, Ordering::Relaxed);
        if done.failed {
            self.errors.fetch_add(1, Ordering::Relaxed);
        }
        if done.read_bytes > 0 {
            self.read_bytes.fetch_add(done.read_bytes, Ordering::Relaxed);
        }
        if done.written_bytes > 0 {
            self.written_bytes.fetch_add(done.written_bytes, Ordering::Relaxed);
        }
        self.latency.record(done.duration_ns);
    }
}

/// I/O at data servers, as clients report it. A counter stays at the greatest number rather than to
/// wrap.
#[derive(Debug, Default)]
pub struct DirectUse {
    /// Reads.
    pub reads: AtomicU64,
    /// Bytes read.
    pub read_bytes: AtomicU64,
    /// Writes, counting those of each copy.
    pub writes: AtomicU64,
    /// Bytes written.
    pub written_bytes: AtomicU64,
}

impl DirectUse {
    /// Adds to the counters.
    pub(crate) fn record(&self, added: &DeviceUse) {
        let counters = [
            (&self.reads, added.read.operations),
            (&self.read_bytes, added.read.bytes),
            (&self.writes, added.written.operations),
            (&self.written_bytes, added.written.bytes),
        ];
        for (counter, more) in counters {
            let add = |count: u64| Some(count.saturating_add(more));
            let _ = counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
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

/// Counters of every operation of every front end.
#[derive(Debug)]
pub struct Metrics {
    front_ends: [Box<[OperationMetrics]>; FrontEnd::ALL.len()],
}

impl Default for Metrics {
    fn default() -> Self {
        let front_end = |_| (0..OPERATIONS_MAX).map(|_| OperationMetrics::default()).collect();
        Self { front_ends: std::array::from_fn(front_end) }
    }
}

impl Metrics {
    /// The counters of an operation by its number in the protocol.
    pub fn operation(&self, front_end: FrontEnd, number: u32) -> &OperationMetrics {
        let number = usize::try_from(number).unwrap_or(OPERATIONS_MAX).min(OPERATIONS_MAX - 1);
        &self.front_ends[front_end as usize][number]
    }

    /// Counts one operation.
    pub fn record(&self, front_end: FrontEnd, number: u32, duration_ns: u64, failed: bool) {
        let operation = self.operation(front_end, number);
        operation.latency.record(duration_ns);
        if failed {
            operation.errors.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_counted_in_the_bucket_whose_bound_is_the_next_above() {
        let cases =
            [(0, 0), (1, 0), (1000, 0), (1001, 1), (2000, 1), (2001, 2), (4000, 2), (4001, 3)];
        for (duration_ns, bucket) in cases {
            let histogram = Histogram::default();
            histogram.record(duration_ns);
            let (buckets, sum_ns) = histogram.read();
            assert_eq!(buckets.iter().position(|&count| count == 1), Some(bucket), "{duration_ns}");
            assert_eq!(sum_ns, duration_ns);
            assert!(duration_ns as f64 / 1e9 <= Histogram::bound_seconds(bucket));
        }
        let histogram = Histogram::default();
        histogram.record(u64::MAX);
        assert_eq!(histogram.read().0[BUCKETS - 1], 1);
    }

    #[test]
    fn unknown_operations_are_counted_together() {
        let metrics = Metrics::default();
        metrics.record(FrontEnd::Nfs4, u32::MAX, 5, true);
        metrics.record(FrontEnd::Nfs4, OPERATIONS_MAX as u32 - 1, 5, false);
        let last = metrics.operation(FrontEnd::Nfs4, OPERATIONS_MAX as u32 + 5);
        assert_eq!(last.latency.read().0[0], 2);
        assert_eq!(last.errors.load(Ordering::Relaxed), 1);
        let other = metrics.operation(FrontEnd::Nfs3, OPERATIONS_MAX as u32 - 1);
        assert_eq!(other.latency.read().0[0], 0);
    }
}
