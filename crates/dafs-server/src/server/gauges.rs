//! The gauges of both front ends: names and texts for Prometheus.

use dafs_engine::{DiskReads, EngineCounts, ExposedMemory};
use dafs_nfs::NfsCounts;
use dafs_service::ExposureCounts;

/// Name, help and value.
type Gauge = (&'static str, &'static str, u64);

/// Returns the gauges of the engines of these reactors.
pub(super) fn of_engines(reactors: &[dafs_engine::Gauge]) -> Vec<Gauge> {
    let counts: EngineCounts = reactors.iter().map(dafs_engine::Gauge::counts).sum();
    let reads: DiskReads = reactors.iter().map(dafs_engine::Gauge::disk_reads).sum();
    let gauge = |name, help, value: usize| (name, help, value as u64);
    vec![
        gauge("dafs_connections", "DAFS connections", counts.connections),
        gauge("dafs_sessions", "DAFS sessions", counts.sessions),
        gauge("dafs_pending", "DAFS requests that wait", counts.pending),
        gauge("dafs_fetches", "RDMA reads of what clients write", counts.fetches),
        gauge("dafs_pulled_bytes", "Data read by them, and not written yet", counts.pulled_bytes),
        gauge("dafs_credits", "Credits granted", counts.credits),
        gauge("dafs_credits_short", "Transports with too few credits", counts.credits_short),
        gauge("dafs_credits_owed", "Credits to be given back", counts.credits_owed),
        gauge("dafs_important_sessions", "Those above weight 100", counts.important_sessions),
        gauge("dafs_important_credits", "Credits of these", counts.important_credits),
        gauge(
            "dafs_exposed_channels",
            "Clients that read files from memory by RDMA",
            counts.optimistic_channels,
        ),
        ("dafs_disk_reads_ring", "Reads from disks given to io_uring", reads.ring),
        ("dafs_disk_reads_pool", "Those given to the pool, also after io_uring", reads.pool),
    ]
}

/// Returns the gauges of files that clients read without requests.
pub(super) fn of_exposed(counts: &ExposureCounts, memory: &ExposedMemory) -> Vec<Gauge> {
    vec![
        ("dafs_exposed_bytes", "Memory of optimistic reads", memory.used_bytes() as u64),
        ("dafs_exposed_locked_bytes", "Memory of them never swapped", memory.locked_bytes() as u64),
        ("dafs_exposed_files", "Files in it", counts.files),
        ("dafs_exposed_small_files", "Small files that share segments", counts.small_files),
        ("dafs_exposed_frames_published", "Blocks in it", counts.frames_published),
        ("dafs_exposed_frames_waiting", "Frames that wait for reuse", counts.frames_waiting),
        ("dafs_exposed_frames_free", "Frames without a block", counts.frames_free),
        ("dafs_exposed_grants", "Opens and clients that were shown files", counts.grants),
        ("dafs_exposed_missed", "Requests that have read their files", counts.missed),
        ("dafs_exposed_published", "Blocks put there", counts.published),
        ("dafs_exposed_wasted", "Blocks not put there: changed, or not cached", counts.wasted),
        ("dafs_exposed_changed", "Blocks that changes have taken away", counts.changed),
        ("dafs_exposed_evicted", "Blocks that made room for others", counts.evicted),
        ("dafs_exposed_restored", "Those that requests have brought back", counts.restored),
        ("dafs_exposed_given", "Segments of frames that files have given away", counts.given),
        ("dafs_exposed_withdrawn", "Files that were taken away", counts.withdrawn),
        ("dafs_exposed_remote_reads", "Reads by RDMA, two or more a hit", memory.remote_reads()),
    ]
}

/// Returns the gauges of NFSv4.1 sessions.
pub(super) fn of_nfs_sessions(counts: &NfsCounts) -> Vec<Gauge> {
    let gauge = |name, help, value: usize| (name, help, value as u64);
    vec![
        gauge("nfs_sessions", "NFSv4.1 sessions", counts.sessions),
        gauge("nfs_cached_bytes", "Bytes of replies for retries", counts.cached_bytes),
        gauge("nfs_slots", "Slots of NFSv4.1 sessions", counts.slots),
        gauge("nfs_slots_owed", "Slots to be given back", counts.slots_owed),
        gauge("nfs_important_sessions", "Those above weight 100", counts.important_sessions),
        gauge("nfs_important_slots", "Slots of these", counts.important_slots),
    ]
}
