//! Every bound of what serves beside the engine, in one place; those of sessions are the engine's
//! (`dafs_engine::SessionLimits`).

use dafs_dat::connections::ConnectionLimits;
use dafs_engine::FENCE_DRAIN_TIME;

/// Connections get this part of the descriptors that the process may open.
pub(crate) const CONNECTIONS_SHARE: usize = 4;

/// As many opens as this part of the descriptors are possible, and as many delegations. Each takes two
/// descriptors at most: one of its own, and one of the object.
pub(crate) const FILES_SHARE: usize = 6;

/// Threads that check passwords.
pub(crate) const PROOF_THREADS_MAX: usize = 1;

/// Bytes of an administrator's request.
pub(crate) const ADMIN_REQUEST_BYTES_MAX: u64 = 512 << 10;

/// How long nothing is accepted when there are no descriptors for that.
pub(crate) const ACCEPT_REST: std::time::Duration = std::time::Duration::from_millis(100);

/// Administrators that are served at once; more are turned away.
pub(crate) const ADMIN_PEERS_MAX: usize = 8;

/// Locks that administrators are shown.
pub(crate) const LOCKS_SHOWN_MAX: usize = 10_000;

/// Things that a client holds, shown to administrators.
pub(crate) const HOLDINGS_SHOWN_MAX: usize = 1000;

/// How long an administrator may take to ask, and the server to answer.
pub(crate) const ADMIN_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(10);

/// How long an administrator waits for what a fence shuts out: less than for the answer.
pub(crate) const ADMIN_FENCE_TIME: std::time::Duration = std::time::Duration::from_secs(8);

/// How long a server that stops waits for blocking calls that are under way.
pub(crate) const STOP_TIME: std::time::Duration = std::time::Duration::from_secs(5);

/// Bytes of a scraper's request.
pub(crate) const METRICS_REQUEST_BYTES_MAX: usize = 8 << 10;

/// Scrapers that are served at once, and those of them from one address.
pub(crate) const METRICS_PEERS: ConnectionLimits = ConnectionLimits { total: 16, per_address: 8 };

/// How long a scraper may take to ask, and then to read.
pub(crate) const METRICS_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(2);

/// How often it is looked whether copies of files can be mended.
pub(crate) const MEND_INTERVAL: std::time::Duration = std::time::Duration::from_secs(1);

/// How long nobody has written to a file whose copies are then known to be alike.
pub(crate) const MEND_IDLE: std::time::Duration = std::time::Duration::from_secs(5);

/// How much of files is compared in a second while copies are mended.
pub(crate) const MEND_BYTES_PER_SECOND: usize = 64 << 20;

/// How long files are moved off nodes before others get a turn.
pub(crate) const MOVE_TURN: std::time::Duration = std::time::Duration::from_millis(200);

/// How long a file that cannot be moved now keeps others waiting to be moved.
pub(crate) const MOVE_PATIENCE: std::time::Duration = std::time::Duration::from_secs(120);

/// How long a data server that is to be taken in may take to be there.
pub(crate) const JOIN_TIME: std::time::Duration = std::time::Duration::from_secs(5);

const _: () = assert!(JOIN_TIME.as_secs() < ADMIN_TIMEOUT.as_secs());
const _: () = assert!(ADMIN_FENCE_TIME.as_secs() < ADMIN_TIMEOUT.as_secs());
const _: () = assert!(FENCE_DRAIN_TIME.as_secs() < ADMIN_FENCE_TIME.as_secs());
