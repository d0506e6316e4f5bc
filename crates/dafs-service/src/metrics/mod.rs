//! Counters that every front end feeds: operations, their latency, and the client or export.
//!
//! Invariants
//! * Recording takes no lock and allocates nothing, except for the first request of a host or user.
//! * A histogram's buckets are powers of two of microseconds, so that the numbers of two servers
//!   can be added.

mod log;
mod usage;

pub use log::{LogSink, LoggedRequest};
pub use usage::{Class, Done, ExportUse, LatencyCounts, SharedUsage, Usage, UsageCounts, Usages};

use crate::hosts::Host;
use crate::layout::DeviceUse;
use log::RequestLog;
use std::sync::Arc;
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
    /// NFS_ACL, the access control lists of NFSv3.
    NfsAcl,
    /// NLM, the locks of NFSv3.
    Nlm,
}

impl FrontEnd {
    /// All front ends.
    pub const ALL: [Self; 6] =
        [Self::Dafs, Self::Nfs4, Self::Nfs3, Self::Mount, Self::NfsAcl, Self::Nlm];

    /// The label in metrics.
    pub fn label(self) -> &'static str {
        match self {
            Self::Dafs => "dafs",
            Self::Nfs4 => "nfs4",
            Self::Nfs3 => "nfs3",
            Self::Mount => "mount",
            Self::NfsAcl => "nfs_acl",
            Self::Nlm => "nlm",
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

/// An answered request, with all that it counts for.
#[derive(Debug)]
pub struct Answered<'a> {
    /// The front end by which it came.
    pub front_end: FrontEnd,
    /// The name of the operation.
    pub operation: &'static str,
    /// The host of the client.
    pub host: Host,
    /// The user, if the request has one.
    pub user: Option<u32>,
    /// The counters of the client's record, if it has one.
    pub client: Option<&'a Usage>,
    /// The export, if the request used one.
    pub export: Option<&'a Arc<ExportUse>>,
    /// Its outcome.
    pub done: Done,
    /// As in [`LoggedRequest`].
    pub stages_ns: [u64; 3],
}

/// Counters of every operation of every front end.
#[derive(Debug)]
pub struct Metrics {
    front_ends: [Box<[OperationMetrics]>; FrontEnd::ALL.len()],
    hosts: Usages<Host>,
    users: Usages<u32>,
    log: RequestLog,
}

impl Default for Metrics {
    fn default() -> Self {
        let front_end = |_| (0..OPERATIONS_MAX).map(|_| OperationMetrics::default()).collect();
        Self {
            front_ends: std::array::from_fn(front_end),
            hosts: Usages::default(),
            users: Usages::default(),
            log: RequestLog::default(),
        }
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

    /// Counts one request for its client, host, user and export, and logs it if that is wanted.
    pub fn record_request(&self, request: &Answered<'_>) {
        let done = &request.done;
        if let Some(client) = request.client {
            client.record(done);
        }
        if let Some(export) = request.export {
            export.record(done);
        }
        // Users of this host are one party, so many of them leave room for other hosts.
        let host = if let Host::User(_) = request.host { Host::User(0) } else { request.host };
        self.hosts.of(host).record(done);
        if let Some(user) = request.user {
            self.users.of(user).record(done);
        }
        self.log.put(request.done.duration_ns, |is_slow| LoggedRequest {
            front_end: request.front_end,
            operation: request.operation,
            host: request.host,
            user: request.user,
            export: request.export.cloned(),
            done: request.done,
            stages_ns: request.stages_ns,
            is_slow,
        });
    }

    /// The use by hosts.
    pub fn hosts(&self) -> &Usages<Host> {
        &self.hosts
    }

    /// The use by users.
    pub fn users(&self) -> &Usages<u32> {
        &self.users
    }

    /// Sends requests to a log from now on. Only the first log counts.
    pub fn log_to(&self, sink: LogSink) {
        self.log.set(sink);
    }

    /// Requests that are missing in the log, because its queue was full.
    pub fn lost_log_lines(&self) -> u64 {
        self.log.lost()
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
    fn users_of_this_host_are_one_party() {
        let metrics = Metrics::default();
        for uid in 0..3 {
            metrics.record_request(&Answered {
                front_end: FrontEnd::Dafs,
                operation: "NULL",
                host: Host::User(uid),
                user: None,
                client: None,
                export: None,
                done: Done::default(),
                stages_ns: [0; 3],
            });
        }
        let hosts = metrics.hosts().now();
        assert_eq!(hosts.len(), 1);
        assert_eq!(hosts[0].1.operations(), 3);
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
