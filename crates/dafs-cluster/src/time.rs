//! The clock of cached authorisations.

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// Time since the machine was started. It goes on while the machine sleeps, as that of the other
/// machine does.
pub(crate) fn now() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    let (seconds, nanoseconds) = (u64::try_from(now.tv_sec), u32::try_from(now.tv_nsec));
    Duration::new(seconds.unwrap_or(0), nanoseconds.unwrap_or(0))
}
