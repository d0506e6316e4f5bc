//! The metrics without labels of a server's parts, and their values.

#[cfg(test)]
use super::{data::DATA, kerberos::GSS, tls::TLS};
#[cfg(test)]
use crate::metrics::Definition;
use crate::metrics::{Sample, Source, counter, gauge, samples};
use dafs_dat::connections::ConnectionCounts;
use dafs_engine::{DiskReads, EngineCounts, ExposedMemory};
use dafs_nfs::NfsCounts;
use dafs_rpc::server::Statistics;
use dafs_service::durable::JournalStatistics;
use dafs_service::{ExposureCounts, Service, ServiceCounts};

/// The state of all front ends.
pub(super) struct ServerNow {
    service: ServiceCounts,
    connections: ConnectionCounts,
    lost_log_lines: u64,
}

pub(super) const SERVER: &[Source<ServerNow>] = &[
    gauge("dafs_all_connections", "Connections at all front ends", |now: &ServerNow| {
        now.connections.connections as u64
    }),
    counter("dafs_connections_refused_total", "Connections refused", |now: &ServerNow| {
        now.connections.refused
    }),
    counter(
        "dafs_connections_evicted_total",
        "Connections closed to make room for others",
        |now: &ServerNow| now.connections.evicted,
    ),
    gauge("dafs_clients", "Clients known", |now: &ServerNow| now.service.clients as u64),
    gauge("dafs_opens", "Opens of all clients", |now: &ServerNow| now.service.opens as u64),
    gauge("dafs_open_files", "Files that are open", |now: &ServerNow| {
        now.service.open_files as u64
    }),
    gauge("dafs_locks", "Lock owners with byte ranges", |now: &ServerNow| now.service.locks as u64),
    gauge("dafs_lock_waiters", "Waiting lock owners", |now: &ServerNow| {
        now.service.lock_waiters as u64
    }),
    gauge("dafs_delegations", "Delegations held", |now: &ServerNow| now.service.delegations as u64),
    gauge("dafs_revoked", "Revoked state that is not freed yet", |now: &ServerNow| {
        now.service.revoked as u64
    }),
    counter(
        "dafs_log_lost_requests_total",
        "Requests missing in the access log and the slow log, whose queue was full",
        |now: &ServerNow| now.lost_log_lines,
    ),
];

/// The state of the engines.
pub(super) struct EnginesNow {
    counts: EngineCounts,
    reads: DiskReads,
}

pub(super) const ENGINES: &[Source<EnginesNow>] = &[
    gauge("dafs_connections", "DAFS connections", |now: &EnginesNow| now.counts.connections as u64),
    gauge("dafs_sessions", "DAFS sessions", |now: &EnginesNow| now.counts.sessions as u64),
    gauge("dafs_pending", "DAFS requests that wait", |now: &EnginesNow| now.counts.pending as u64),
    gauge(
        "dafs_fetches",
        "RDMA reads under way of data that DAFS clients write",
        |now: &EnginesNow| now.counts.fetches as u64,
    ),
    gauge(
        "dafs_pulled_bytes",
        "Data that these reads have brought and no store has yet",
        |now: &EnginesNow| now.counts.pulled_bytes as u64,
    ),
    gauge("dafs_credits", "DAFS credits granted", |now: &EnginesNow| now.counts.credits as u64),
    gauge(
        "dafs_credits_short",
        "Transports of threads that have too few credits",
        |now: &EnginesNow| now.counts.credits_short as u64,
    ),
    gauge(
        "dafs_credits_owed",
        "Credits that clients are asked to give back",
        |now: &EnginesNow| now.counts.credits_owed as u64,
    ),
    gauge("dafs_important_sessions", "DAFS sessions above weight 100", |now: &EnginesNow| {
        now.counts.important_sessions as u64
    }),
    gauge("dafs_important_credits", "Credits of these sessions", |now: &EnginesNow| {
        now.counts.important_credits as u64
    }),
    gauge(
        "dafs_exposed_channels",
        "Connections over which clients read files from memory by RDMA",
        |now: &EnginesNow| now.counts.optimistic_channels as u64,
    ),
    counter(
        "dafs_disk_reads_ring_total",
        "Reads from disks given to io_uring",
        |now: &EnginesNow| now.reads.ring,
    ),
    counter(
        "dafs_disk_reads_pool_total",
        "Reads from disks given to the pool, also after io_uring",
        |now: &EnginesNow| now.reads.pool,
    ),
];

/// The files that clients read without requests.
pub(super) struct ExposedNow {
    counts: ExposureCounts,
    used_bytes: u64,
    locked_bytes: u64,
    remote_reads: u64,
}

pub(super) const EXPOSED: &[Source<ExposedNow>] = &[
    gauge("dafs_exposed_bytes", "Memory of optimistic reads", |now: &ExposedNow| now.used_bytes),
    gauge(
        "dafs_exposed_locked_bytes",
        "Memory of optimistic reads that is never swapped",
        |now: &ExposedNow| now.locked_bytes,
    ),
    gauge("dafs_exposed_files", "Files in the memory of optimistic reads", |now: &ExposedNow| {
        now.counts.files
    }),
    gauge(
        "dafs_exposed_small_files",
        "Small files there that share segments",
        |now: &ExposedNow| now.counts.small_files,
    ),
    gauge("dafs_exposed_frames_published", "Frames there with a block", |now: &ExposedNow| {
        now.counts.frames_published
    }),
    gauge("dafs_exposed_frames_waiting", "Frames there that wait for reuse", |now: &ExposedNow| {
        now.counts.frames_waiting
    }),
    gauge("dafs_exposed_frames_free", "Frames there without a block", |now: &ExposedNow| {
        now.counts.frames_free
    }),
    counter(
        "dafs_exposed_grants_total",
        "Opens and clients that were shown files",
        |now: &ExposedNow| now.counts.grants,
    ),
    counter(
        "dafs_exposed_missed_total",
        "Requests that have read files which their client was shown",
        |now: &ExposedNow| now.counts.missed,
    ),
    counter("dafs_exposed_published_total", "Blocks put there", |now: &ExposedNow| {
        now.counts.published
    }),
    counter(
        "dafs_exposed_wasted_total",
        "Blocks not put there, because they changed or were not cached",
        |now: &ExposedNow| now.counts.wasted,
    ),
    counter(
        "dafs_exposed_changed_total",
        "Blocks that changes have taken away",
        |now: &ExposedNow| now.counts.changed,
    ),
    counter(
        "dafs_exposed_evicted_total",
        "Blocks that made room for others",
        |now: &ExposedNow| now.counts.evicted,
    ),
    counter(
        "dafs_exposed_restored_total",
        "Evicted blocks that requests have brought back",
        |now: &ExposedNow| now.counts.restored,
    ),
    counter(
        "dafs_exposed_given_total",
        "Segments of frames that files have given away",
        |now: &ExposedNow| now.counts.given,
    ),
    counter("dafs_exposed_withdrawn_total", "Files that were taken away", |now: &ExposedNow| {
        now.counts.withdrawn
    }),
    counter(
        "dafs_exposed_remote_reads_total",
        "Reads by RDMA, two or more for each hit",
        |now: &ExposedNow| now.remote_reads,
    ),
];

pub(super) const JOURNAL: &[Source<JournalStatistics>] = &[
    counter("dafs_journal_records_total", "Records in the journal", |now: &JournalStatistics| {
        now.log.records
    }),
    counter(
        "dafs_journal_bytes_total",
        "Bytes written to the journal",
        |now: &JournalStatistics| now.log.bytes,
    ),
    counter("dafs_journal_syncs_total", "Syncs of the journal", |now: &JournalStatistics| {
        now.log.syncs
    }),
    counter(
        "dafs_journal_waiters_total",
        "Changes and sessions that waited for a sync",
        |now: &JournalStatistics| now.log.waiters,
    ),
    counter(
        "dafs_journal_segments_total",
        "Segments of the journal begun",
        |now: &JournalStatistics| now.log.segments,
    ),
    counter(
        "dafs_journal_rounds_total",
        "Rounds that made changes stable in the exports",
        |now: &JournalStatistics| now.rounds,
    ),
    counter(
        "dafs_journal_committed_total",
        "Changes made stable in these rounds",
        |now: &JournalStatistics| now.committed,
    ),
    gauge("dafs_journal_changes", "Changes under way", |now: &JournalStatistics| {
        now.in_flight as u64
    }),
    gauge(
        "dafs_journal_kept_sessions",
        "Sessions that the journal knows",
        |now: &JournalStatistics| now.sessions as u64,
    ),
    gauge(
        "dafs_journal_kept_changes",
        "Changes of these sessions that it knows",
        |now: &JournalStatistics| now.changes as u64,
    ),
];

pub(super) const NFS: &[Source<Statistics>] = &[
    gauge("dafs_nfs_connections", "NFS connections", |now: &Statistics| now.connections),
    counter("dafs_nfs_refused_total", "NFS connections refused", |now: &Statistics| now.refused),
    counter(
        "dafs_nfs_broken_total",
        "NFS connections closed for errors of the peer",
        |now: &Statistics| now.broken,
    ),
    counter(
        "dafs_nfs_received_bytes_total",
        "Bytes received from NFS clients",
        |now: &Statistics| now.received_bytes,
    ),
    counter("dafs_nfs_sent_bytes_total", "Bytes sent to NFS clients", |now: &Statistics| {
        now.sent_bytes
    }),
    gauge("dafs_nfs_rdma_connections", "NFS connections over RDMA", |now: &Statistics| {
        now.rdma_connections
    }),
    counter("dafs_nfs_rdma_calls_total", "NFS calls over RDMA", |now: &Statistics| now.rdma_calls),
    counter(
        "dafs_nfs_rdma_reads_total",
        "RDMA reads of data that NFS clients write",
        |now: &Statistics| now.rdma_reads,
    ),
    counter(
        "dafs_nfs_rdma_read_bytes_total",
        "Bytes fetched by these reads",
        |now: &Statistics| now.rdma_read_bytes,
    ),
    counter(
        "dafs_nfs_rdma_writes_total",
        "RDMA writes of data that NFS clients read",
        |now: &Statistics| now.rdma_writes,
    ),
    counter(
        "dafs_nfs_rdma_written_bytes_total",
        "Bytes placed by these writes",
        |now: &Statistics| now.rdma_written_bytes,
    ),
    counter(
        "dafs_nfs_rdma_errors_total",
        "Messages answered with RDMA_ERROR",
        |now: &Statistics| now.rdma_errors,
    ),
];

pub(super) const NFS_SESSIONS: &[Source<NfsCounts>] = &[
    gauge("dafs_nfs_sessions", "NFSv4.1 sessions", |now: &NfsCounts| now.sessions as u64),
    gauge(
        "dafs_nfs_cached_bytes",
        "Replies kept for retries of NFSv4.1 clients",
        |now: &NfsCounts| now.cached_bytes as u64,
    ),
    gauge("dafs_nfs_slots", "Slots of NFSv4.1 sessions", |now: &NfsCounts| now.slots as u64),
    gauge("dafs_nfs_slots_owed", "Slots that clients are asked to give back", |now: &NfsCounts| {
        now.slots_owed as u64
    }),
    gauge("dafs_nfs_important_sessions", "NFSv4.1 sessions above weight 100", |now: &NfsCounts| {
        now.important_sessions as u64
    }),
    gauge("dafs_nfs_important_slots", "Slots of these sessions", |now: &NfsCounts| {
        now.important_slots as u64
    }),
    counter(
        "dafs_nfs_disk_reads_ring_total",
        "NFS reads from disks given to io_uring",
        |now: &NfsCounts| now.ring_reads,
    ),
    counter(
        "dafs_nfs_disk_reads_pool_total",
        "NFS reads from disks given to the pool, also after io_uring",
        |now: &NfsCounts| now.pool_reads,
    ),
];

/// Returns the values of the state of all front ends.
pub(super) fn of_server(service: &Service, connections: ConnectionCounts) -> Vec<Sample> {
    let lost_log_lines = service.metrics().lost_log_lines();
    samples(SERVER, &ServerNow { service: service.counts(), connections, lost_log_lines })
}

/// Returns the values of the engines of these reactors.
pub(super) fn of_engines(reactors: &[dafs_engine::Gauge]) -> Vec<Sample> {
    let counts = reactors.iter().map(dafs_engine::Gauge::counts).sum();
    let reads = reactors.iter().map(dafs_engine::Gauge::disk_reads).sum();
    samples(ENGINES, &EnginesNow { counts, reads })
}

/// Returns the values of files that clients read without requests.
pub(super) fn of_exposed(counts: ExposureCounts, memory: &ExposedMemory) -> Vec<Sample> {
    let now = ExposedNow {
        counts,
        used_bytes: memory.used_bytes() as u64,
        locked_bytes: memory.locked_bytes() as u64,
        remote_reads: memory.remote_reads(),
    };
    samples(EXPOSED, &now)
}

/// Returns the definitions of all of these metrics.
#[cfg(test)]
pub(crate) fn metric_sources() -> Vec<Definition> {
    fn of<T: ?Sized>(sources: &[Source<T>]) -> Vec<Definition> {
        sources.iter().map(|source| source.definition).collect()
    }
    let parts = [
        of(SERVER),
        of(ENGINES),
        of(EXPOSED),
        of(JOURNAL),
        of(NFS),
        of(NFS_SESSIONS),
        of(DATA),
        of(GSS),
        of(TLS),
    ];
    parts.concat()
}
