//! Every bound of TLS that all transports share.

use std::time::Duration;

/// Handshakes under way at a server. Each holds at most 128 KiB of a stranger.
pub(crate) const HANDSHAKES_MAX: usize = 1024;

/// The same for one host.
pub(crate) const HANDSHAKES_PER_HOST_MAX: usize = 64;

/// Timeout for a handshake.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
