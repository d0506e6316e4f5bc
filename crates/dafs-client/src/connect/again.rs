//! Further attempts to open a session with a server that leaves before the session is open.
//!
//! Another process may take the place of the server (`dafs serve --take-over`). The server then ends the
//! connections that it has accepted, and those that come later wait for the other process.
//!
//! Invariants
//! * The attempts are few. So a server that always leaves, such as one of another protocol, is reported soon.
//! * All of them together take no longer than connecting may take.
//! * A server whose answer is no is asked once.

use super::{Attempt, Target};
use crate::core::Failure;
use crate::driver::{Shared, Way};
use crate::limit;
use dafs_dat::Instant;
use std::sync::Arc;
use std::time::Duration;

impl Attempt {
    /// True if a server was there, and gave no answer.
    fn has_left(&self) -> bool {
        matches!(self, Self::Left(_) | Self::Refused(Failure::Lost(_)))
    }

    /// The same when there is no further attempt by that transport.
    fn last(self) -> Self {
        match self {
            Self::Left(reason) => Self::Unreachable(reason),
            other => other,
        }
    }
}

impl Target {
    /// Connects and opens a session by what `way` makes, and tries again after `pauses` where the server leaves.
    /// A client has another way around a data server that leaves.
    pub(super) fn open_again(
        &self,
        pauses: &[Duration],
        way: impl Fn() -> Result<Way, Attempt>,
    ) -> Result<Arc<Shared>, Attempt> {
        let first = match self.open_session(way()?, None, None) {
            Err(attempt) if attempt.has_left() => attempt,
            other => return other,
        };
        let pauses: &[Duration] = if self.is_data_server() { &[] } else { pauses };
        for &pause in pauses {
            if !self.rest(pause)? {
                break;
            }
            tracing::debug!(server = %self.server, "connecting again: the server has left");
            match self.open_session(way()?, None, None) {
                Err(attempt) if attempt.has_left() => {}
                // The other process does not listen yet.
                Err(Attempt::Unreachable(_)) => {}
                other => return other,
            }
        }
        Err(first.last())
    }

    /// Waits, unless there is no time for it. Returns false then.
    fn rest(&self, pause: Duration) -> Result<bool, Attempt> {
        let until = Instant::now() + pause;
        if until >= self.until {
            return Ok(false);
        }
        loop {
            let left = until.since(Instant::now());
            if left.is_zero() {
                return Ok(true);
            }
            if limit::is_stopped_in(left, std::thread::sleep) {
                return Err(Attempt::Stopped);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{ConnectOptions, TransportChoice};
    use crate::served::{Served, Wire};
    use std::sync::atomic::Ordering;

    fn target() -> Target {
        let options =
            ConnectOptions { transport: TransportChoice::Iwarp, ..ConnectOptions::default() };
        Target::new("host:1".into(), options, None)
    }

    #[test]
    fn a_server_that_leaves_is_tried_again() {
        let served = Served::new();
        // The first connection is cut before it is made, and the second one before the session is open.
        let mut lengths = [Some(0), Some(250)].into_iter();
        let wire = Wire::new(served.address, move || lengths.next().flatten());
        assert!(target().open(&[wire.address]).is_ok());
        assert!(wire.cuts.load(Ordering::SeqCst) >= 2);
    }

    #[test]
    fn a_server_that_always_leaves_is_reported() {
        let served = Served::new();
        for bytes in [0, 250] {
            let wire = Wire::new(served.address, move || Some(bytes));
            let error = target().open(&[wire.address]).map(drop).unwrap_err();
            assert!(matches!(error, crate::Error::Connect { .. }), "{error}");
        }
        let other = Target { metadata: Some("host:2".into()), ..target() };
        let mut lengths = [Some(0)].into_iter();
        let wire = Wire::new(served.address, move || lengths.next().flatten());
        assert!(other.open(&[wire.address]).is_err(), "data servers are not waited for");
    }

    #[test]
    fn no_attempt_is_made_when_the_time_is_over() {
        let target = Target { until: Instant::now() + Duration::from_secs(1), ..target() };
        assert!(matches!(target.rest(Duration::from_secs(2)), Ok(false)));
        assert!(matches!(target.rest(Duration::from_millis(1)), Ok(true)));
    }
}
