//! Backoff for failed data servers: a client avoids them for a while, longer each time, so that no
//! transfer waits for them meanwhile.

use crate::limits::{NODE_PAUSE_MAX, NODE_PAUSE_MIN};
use std::time::{Duration, Instant};

/// The backoff of one data server.
#[derive(Debug, Default)]
pub struct ServerBackoff {
    not_before: Option<Instant>,
    pause: Duration,
}

impl ServerBackoff {
    /// True if it has failed recently and is avoided.
    pub fn is_avoided(&self, now: Instant) -> bool {
        self.not_before.is_some_and(|time| now < time)
    }

    /// Notes a success.
    pub fn reached(&mut self) {
        *self = Self::default();
    }

    /// Notes that it could not be reached, or did not answer.
    pub fn failed(&mut self, now: Instant) {
        self.pause = (self.pause * 2).clamp(NODE_PAUSE_MIN, NODE_PAUSE_MAX);
        self.not_before = now.checked_add(self.pause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound_and_end_when_it_is_reached() {
        let mut node = ServerBackoff::default();
        let mut now = Instant::now();
        assert!(!node.is_avoided(now));
        let mut pauses = Vec::new();
        for _ in 0..10 {
            node.failed(now);
            let begun = now;
            while node.is_avoided(now) {
                now += NODE_PAUSE_MIN;
            }
            pauses.push(now - begun);
        }
        assert_eq!(pauses[..3], [NODE_PAUSE_MIN, 2 * NODE_PAUSE_MIN, 4 * NODE_PAUSE_MIN]);
        assert_eq!(pauses.last(), Some(&NODE_PAUSE_MAX));
        node.failed(now);
        node.reached();
        assert!(!node.is_avoided(now));
        node.failed(now);
        assert!(!node.is_avoided(now + NODE_PAUSE_MIN), "it begins anew");
    }
}
