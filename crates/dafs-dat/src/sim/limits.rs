//! Limits and fixed times of the simulated network.

use std::time::Duration;

/// All delays are multiples of this. On a coarse grid unrelated events often fall on the same
/// instant, and their order is then drawn at random. That produces the interesting interleavings.
pub(super) const GRID: Duration = Duration::from_micros(10);

/// The size of a frame's header on the byte stream, in bytes.
pub(super) const HEADER_BYTES: u64 = 24;

/// The most receives, and the most other work, outstanding on one endpoint.
pub(super) const OUTSTANDING_MAX: usize = 1 << 17;

/// Timeout for establishing a connection.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Timeout of a side during a partition: drawn between these two.
pub(super) const GIVE_UP_MIN: Duration = Duration::from_secs(2);
/// See [`GIVE_UP_MIN`].
pub(super) const GIVE_UP_MAX: Duration = Duration::from_secs(20);

/// Interval at which an answer to a connection request retries to cross a partition.
pub(super) const RETRY: Duration = Duration::from_millis(50);

/// Requests that a side may post, or try to, between two polls; more mean an endless loop. It is
/// far more than a host posts that drains its queues after a long stall.
pub(super) const POSTS_PER_POLL_MAX: u64 = 1 << 18;
