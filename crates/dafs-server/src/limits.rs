//! Every bound of the server's parts besides the engine, in one place. The bounds of sessions are
//! the engine's (`dafs_engine::SessionLimits`).

use dafs_dat::connections::ConnectionLimits;
use dafs_engine::FENCE_DRAIN_TIME;
use dafs_service::limits::STATE_DIGESTED_MAX;

/// The reciprocal of the share of the process's descriptors for connections.
pub(crate) const CONNECTIONS_SHARE: usize = 4;

/// The reciprocal of the share of descriptors for opens. The same share is for delegations. Each
/// takes at most two descriptors: its own, and that of the object.
pub(crate) const FILES_SHARE: usize = 6;

/// Threads for NFS clients over TCP, and for those over RDMA: a group of RPC reactors has at most 256.
pub(crate) const NFS_THREADS_MAX: usize = 128;

/// Requests that wait for the thread of the log of requests.
pub(crate) const REQUEST_LOG_QUEUE_MAX: usize = 1 << 16;

/// The pause of that thread when there is no request for it.
pub(crate) const REQUEST_LOG_INTERVAL: std::time::Duration = std::time::Duration::from_millis(50);

/// Earlier files of the access log that are kept.
pub(crate) const ACCESS_LOGS_KEPT: u32 = 5;

/// Threads that check passwords.
pub(crate) const PROOF_THREADS_MAX: usize = 1;

/// Bytes of an administrator's request.
pub(crate) const ADMIN_REQUEST_BYTES_MAX: u64 = 512 << 10;

/// The pause of accept when descriptors are short.
pub(crate) const ACCEPT_REST: std::time::Duration = std::time::Duration::from_millis(100);

/// Administrators that are served at once. More are refused.
pub(crate) const ADMIN_PEERS_MAX: usize = 8;

/// Administrators of other machines that are served at once, in all and from one address.
pub(crate) const ADMIN_HTTP_PEERS: ConnectionLimits =
    ConnectionLimits { total: 16, per_address: 8 };

/// The timeout of a request over HTTP, and then of the read of its answer.
pub(crate) const ADMIN_HTTP_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(5);

/// Bytes of an answer that a client takes.
pub(crate) const ADMIN_ANSWER_BYTES_MAX: usize = 64 << 20;

/// Requests without the right token in a second that are answered as such. Others are told to wait.
pub(crate) const REFUSALS_PER_SECOND: u32 = 10;

/// The interval of log lines about such requests.
pub(crate) const REFUSALS_LOG_INTERVAL: std::time::Duration = std::time::Duration::from_secs(10);

/// Locks in an answer to administrators.
pub(crate) const LOCKS_SHOWN_MAX: usize = 10_000;

/// State descriptions of a client in an answer to administrators.
pub(crate) const HOLDINGS_SHOWN_MAX: usize = 1000;

/// The timeout of an administrator's request, and of the answer.
pub(crate) const ADMIN_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(10);

/// The timeout of an administrator's request for the drain of a fence: shorter than that of the
/// answer.
pub(crate) const ADMIN_FENCE_TIME: std::time::Duration = std::time::Duration::from_secs(8);

/// The time within which a node answers a question of an administrator. Later it counts as silent.
pub(crate) const PROBE_TIME: std::time::Duration = std::time::Duration::from_secs(2);

/// The exports that are asked about their nodes at once.
pub(crate) const EXPORTS_ASKED_AT_ONCE: usize = 16;

const _: () = assert!(PROBE_TIME.as_secs() < ADMIN_HTTP_TIMEOUT.as_secs());
const _: () = assert!(PROBE_TIME.as_secs() < ADMIN_TIMEOUT.as_secs());

/// The timeout for blocking calls under way when the server stops.
pub(crate) const STOP_TIME: std::time::Duration = std::time::Duration::from_secs(5);

/// The timeout for checks of passwords and look-ups of users then. A database of users may never answer, and
/// nothing takes the results any more.
pub(crate) const LOOK_UP_STOP_TIME: std::time::Duration = std::time::Duration::from_secs(1);

/// The time for which clients read memory of a server by its RDMA device after the last request that it
/// has answered, and the pause of the next server if the last one was killed meanwhile.
pub(crate) const DEVICE_TRUST_TIME: std::time::Duration = std::time::Duration::from_secs(1);

/// Bytes of a scraper's request.
pub(crate) const METRICS_REQUEST_BYTES_MAX: usize = 8 << 10;

/// Scrapers that are served at once, in all and from one address.
pub(crate) const METRICS_PEERS: ConnectionLimits = ConnectionLimits { total: 16, per_address: 8 };

/// The timeout of a scraper's request, and then of its read.
pub(crate) const METRICS_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(2);

/// The time without writes after which copies of a file are known to be equal.
pub(crate) const MEND_IDLE: std::time::Duration = std::time::Duration::from_secs(5);

/// The checks for copies of files to repair in such a time.
pub(crate) const MEND_CHECKS: u32 = 5;

/// The bytes of files that are compared in a second while copies are repaired.
pub(crate) const MEND_BYTES_PER_SECOND: usize = 64 << 20;

/// The most files in use that a comparison of copies keeps for later.
pub(crate) const SCRUB_WAITING_MAX: usize = 4096;

/// The rounds in which it looks at them again. The pause before each is the time of [`MEND_IDLE`] and one check
/// more, so that a file whose writer has ended is compared in the first or second one.
pub(crate) const SCRUB_ROUNDS: usize = 4;

/// Files that are compared at once: small ones wait for no answer about others, and the queue of a node stays
/// short for its clients.
pub(crate) const SCRUB_FILES_AT_ONCE: usize = 8;

/// Faults in its report.
pub(crate) const SCRUB_FAULTS_MAX: usize = 1000;

/// The longest time of one step of moving files off nodes.
pub(crate) const MOVE_TURN: std::time::Duration = std::time::Duration::from_millis(200);

/// The timeout of a file that cannot be moved now and blocks other moves.
pub(crate) const MOVE_PATIENCE: std::time::Duration = std::time::Duration::from_secs(120);

/// Rules for the importance of sessions.
pub(crate) const IMPORTANCE_RULES_MAX: usize = 256;

/// The interval of looks at the files of TLS.
pub(crate) const TLS_LOOK_INTERVAL: std::time::Duration = std::time::Duration::from_secs(1);

/// The timeout for a new data server to be reachable.
pub(crate) const JOIN_TIME: std::time::Duration = std::time::Duration::from_secs(5);

const _: () = assert!(JOIN_TIME.as_secs() < ADMIN_TIMEOUT.as_secs());
const _: () = assert!(ADMIN_FENCE_TIME.as_secs() < ADMIN_TIMEOUT.as_secs());
const _: () = assert!(FENCE_DRAIN_TIME.as_secs() < ADMIN_FENCE_TIME.as_secs());

/// The longest notification of an NFSv3 client's restart, in bytes: an RPC header with credential and
/// verifier, a name and a number.
pub(crate) const MONITOR_DATAGRAM_BYTES_MAX: usize = 2048;

/// The listening sockets that a server passes to the next one.
pub(crate) const HAND_OVER_SOCKETS_MAX: usize = 128;

/// Bytes of a message between a server and the next one.
pub(crate) const HAND_OVER_LINE_BYTES_MAX: usize = 64 << 10;

const _: () = assert!(21 * STATE_DIGESTED_MAX < HAND_OVER_LINE_BYTES_MAX);

/// The time that each of two servers has for its part of a hand-over: to end, or to start.
pub(crate) const HAND_OVER_TIME: std::time::Duration = std::time::Duration::from_secs(60);

/// The time after the end of a process within which the kernel has released all that it had.
pub(crate) const HAND_OVER_END_TIME: std::time::Duration = std::time::Duration::from_millis(300);
