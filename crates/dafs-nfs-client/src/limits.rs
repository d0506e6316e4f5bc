//! Bounds of the client.

use std::time::Duration;

/// The most slots that a client keeps.
pub(crate) const SLOTS_MAX: u32 = 4096;

/// The most slots of a back channel that a client keeps.
pub(crate) const BACK_SLOTS_MAX: u32 = 64;

/// The timeout of [`patiently`](crate::patiently).
pub const PATIENCE: Duration = Duration::from_secs(20);
