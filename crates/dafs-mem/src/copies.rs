//! Counters of user-space copies of payload, one per named site.
//!
//! The rule of the project is that bulk data is placed once. Where a copy remains, it has a name
//! here, so that a test can assert that a path has none and an operator can see what a workload
//! pays.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

macro_rules! sites {
    ($($(#[$doc:meta])* $name:ident => $label:literal,)*) => {
        /// A place in the program where payload is copied in user space.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Site { $($(#[$doc])* $name,)* }

        impl Site {
            /// Every site, in declaration order.
            pub const ALL: &'static [Site] = &[$(Site::$name,)*];

            /// The value of the `site` label in `dafs_bytes_copied_total`.
            pub fn label(self) -> &'static str {
                match self { $(Site::$name => $label,)* }
            }
        }
    };
}

sites! {
    /// iWARP: from the receive staging area into a posted receive or a registered buffer. Small
    /// messages only, or the head of a segment that arrived together with them.
    IwarpStaging => "iwarp_staging",
    /// iWARP: a message of few bytes into one piece with its headers.
    IwarpSmallSend => "iwarp_small_send",
    /// iWARP with CRC: a short answer to an RDMA read out of memory that may change before it is
    /// sent.
    IwarpAnswer => "iwarp_answer",
    /// iWARP over TLS in user space: data into the block in which it is sealed, and sealed bytes
    /// that the socket did not take.
    IwarpTlsSend => "iwarp_tls_send",
    /// iWARP over TLS in user space: opened data into its place, and the part of a record whose
    /// rest has not come.
    IwarpTlsReceive => "iwarp_tls_receive",
    /// Shared memory: a message into a ring slot (sender side).
    ShmRingSend => "shm_ring_send",
    /// Shared memory: a message out of a ring slot (receiver side).
    ShmRingReceive => "shm_ring_receive",
    /// Shared memory: RDMA between the arenas of two processes where neither side could work in
    /// the other's memory directly.
    ShmRdma => "shm_rdma",
    /// RDMA devices: the last segments of a message that has more than the device gathers.
    VerbsStaging => "verbs_staging",
    /// The simulated transport copies everything; it is never used in production.
    Sim => "sim",
    /// Client: data of an inline read from the reply into the caller's buffer.
    ClientInlineRead => "client_inline_read",
    /// Client: data of an append or a chained write, from the caller's buffer into the memory that
    /// the request is sent from.
    ClientInlineWrite => "client_inline_write",
    /// Client: data inside a request, kept for a retry if the connection is lost.
    ClientKept => "client_kept",
    /// Client: caller memory that is not registered, staged through a registered buffer.
    ClientStaging => "client_staging",
    /// Server: reply data that could not be produced in its send buffer.
    ServerInline => "server_inline",
    /// Data in a negotiated checksum, from memory that a peer can reach.
    Checksum => "checksum",
    /// Client: data that the cache keeps, to a reader or from a writer.
    ClientCache => "client_cache",
    /// Mount: data of a short write, kept until the server has made it stable.
    MountKept => "mount_kept",
    /// Cluster: data between a metadata server and its data servers, in and out of messages.
    Cluster => "cluster",
    /// The in-memory store: file content in and out.
    MemoryStore => "memory_store",
    /// Posix store: the value of a named attribute, which the kernel hands over whole.
    NamedAttr => "named_attr",
    /// NFS: the text of a symbolic link, on its way between the store and memory that a peer can
    /// reach.
    NfsText => "nfs_text",
    /// RPC: the part of a large record that arrived in one read with other records.
    RpcStaging => "rpc_staging",
    /// RPC: arguments of a call whose answer is deferred and that arrived with other calls.
    RpcDeferred => "rpc_deferred",
    /// RPC client: data inside the results, copied to the caller's memory.
    RpcPlacement => "rpc_placement",
    /// RPC over RDMA: results without a place in the caller's memory, into memory to send or to
    /// write them from.
    RpcRdmaMessage => "rpc_rdma_message",
    /// RPC client on RDMA: a message into the memory it is sent from, or out of that it was
    /// received in; with it data that is short enough to travel inside.
    RpcRdmaInline => "rpc_rdma_inline",
    /// RPC client on RDMA: a call or a reply that is too long for a message, into or out of memory
    /// that the server reaches.
    RpcRdmaLong => "rpc_rdma_long",
    /// RPC over TLS in user space: the part of a record whose rest has not come, and data of a
    /// client, which its program may change meanwhile.
    TlsRecord => "tls_record",
    /// GSS: data of a message, from memory that a peer can reach, while it is signed, sealed or
    /// opened.
    Gss => "gss",
    /// Tests and tools that look into a buffer.
    Inspect => "inspect",
}

/// Sets of counters. Threads are spread over them, so that threads that copy at the same time do
/// not contend for a cache line. That would cost more than a small copy itself.
const SHARDS: usize = 32;

#[repr(align(128))]
struct Shard([AtomicU64; Site::ALL.len()]);

static BYTES: [Shard; SHARDS] =
    [const { Shard([const { AtomicU64::new(0) }; Site::ALL.len()]) }; SHARDS];

/// Threads that have copied so far.
static THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// This thread's set of counters.
    static SHARD: &'static Shard = &BYTES[THREADS.fetch_add(1, Ordering::Relaxed) % SHARDS];
}

/// The state of one site's counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyCount {
    /// The site.
    pub site: Site,
    /// Bytes copied there since the process started.
    pub bytes: u64,
}

/// Counts a copy that was not made by a [`VolatileSlice`](crate::VolatileSlice), such as one by an
/// encoder.
pub fn count_copy(site: Site, bytes: usize) {
    record(site, bytes);
}

pub(crate) fn record(site: Site, bytes: usize) {
    // Relaxed: a statistic, without an order to other memory.
    SHARD.with(|shard| shard.0[site as usize].fetch_add(bytes as u64, Ordering::Relaxed));
}

/// Bytes copied at `site` since the process started.
pub fn copied_bytes(site: Site) -> u64 {
    BYTES.iter().map(|shard| shard.0[site as usize].load(Ordering::Relaxed)).sum()
}

/// All counters, in declaration order.
pub fn copies() -> impl Iterator<Item = CopyCount> {
    Site::ALL.iter().map(|&site| CopyCount { site, bytes: copied_bytes(site) })
}
