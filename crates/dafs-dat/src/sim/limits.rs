//! Limits and fixed times of the simulated network.

use std::time::Duration;

/// All delays are multiples of this. A coarse grid makes unrelated events fall on the same instant
/// often, and their order is then drawn: that is where the interesting interleavings are.
pub(super) const GRID: Duration = Duration::from_micros(10);

/// What a frame's header counts for on the byte stream, in bytes.
pub(super) const HEADER_BYTES: u64 = 24;

/// The most receives, and the most other work, outstanding on one endpoint.
pub(super) const OUTSTANDING_MAX: usize = 1 << 17;

/// How long a connection may take to be made.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// After how much silence of a partition a side gives up: seeded between these two.
pub(super) const GIVE_UP_MIN: Duration = Duration::from_secs(2);
/// See [`GIVE_UP_MIN`].
pub(super) const GIVE_UP_MAX: Duration = Duration::from_secs(20);

/// How often an answer to a connection request tries to cross a partition.
pub(super) const RETRY: Duration = Duration::from_millis(50);

/// Requests that a side may post, or try to, from one poll to the next; more mean that it goes round
/// in circles. Far more than a host does that drains all it has after a long stall.
pub(super) const POSTS_PER_POLL_MAX: u64 = 1 << 18;
