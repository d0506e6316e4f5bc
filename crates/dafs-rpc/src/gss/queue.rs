//! The requests for contexts that wait for a thread of the mechanism, or have one.
//!
//! Invariants
//! * A host has no more of them, and no more bytes of tokens, than its limits and than are left for
//!   all (dynamic thresholds). So a flood from one host keeps no other host out.
//! * The next leg of a context finds room where a new context does not.

use crate::limits::{
    GSS_QUEUED_BYTES_MAX, GSS_QUEUED_BYTES_PER_HOST_MAX, GSS_QUEUED_MAX, GSS_QUEUED_PER_HOST_MAX,
};
use dafs_dat::connections::Origin;
use dafs_mem::Shrinking as _;
use rustc_hash::FxHashMap;

/// Requests, and the bytes of their tokens.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Load {
    requests: usize,
    token_bytes: usize,
}

impl Load {
    fn add(&mut self, token_bytes: usize) {
        self.requests += 1;
        self.token_bytes += token_bytes;
    }

    fn subtract(&mut self, token_bytes: usize) {
        self.requests -= 1;
        self.token_bytes -= token_bytes;
    }
}

/// The leg of a context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Leg {
    First,
    Next,
}

/// The requests by host.
#[derive(Debug, Default)]
pub(super) struct Queue {
    all: Load,
    of_host: FxHashMap<Origin, Load>,
}

impl Queue {
    pub(super) fn len(&self) -> usize {
        self.all.requests
    }

    /// Adds a request; false if there is no room.
    #[must_use]
    pub(super) fn enter(&mut self, host: Origin, leg: Leg, token_bytes: usize) -> bool {
        let own = self.of_host.get(&host).copied().unwrap_or_default();
        let limit = |max: usize| if leg == Leg::Next { max + max / 8 } else { max };
        let left = limit(GSS_QUEUED_MAX).saturating_sub(self.all.requests);
        let left_bytes = limit(GSS_QUEUED_BYTES_MAX).saturating_sub(self.all.token_bytes);
        let bytes_max = limit(GSS_QUEUED_BYTES_PER_HOST_MAX).min(left_bytes);
        let has_room = own.requests < limit(GSS_QUEUED_PER_HOST_MAX).min(left)
            && own.token_bytes + token_bytes <= bytes_max;
        if has_room {
            self.all.add(token_bytes);
            self.of_host.entry(host).or_default().add(token_bytes);
        }
        has_room
    }

    /// Removes a request that was added with these values.
    pub(super) fn leave(&mut self, host: Origin, token_bytes: usize) {
        self.all.subtract(token_bytes);
        if let Some(own) = self.of_host.get_mut(&host) {
            own.subtract(token_bytes);
            if *own == Load::default() {
                self.of_host.remove_and_shrink(&host);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As many first legs as find room.
    fn flood(queue: &mut Queue, host: u32, token_bytes: usize) -> usize {
        std::iter::repeat_with(|| queue.enter(Origin::Sim(host), Leg::First, token_bytes))
            .take_while(|entered| *entered)
            .count()
    }

    #[test]
    fn a_host_has_many_small_requests_or_few_large_ones() {
        let mut queue = Queue::default();
        assert_eq!(flood(&mut queue, 1, 2000), 1024);
        assert_eq!(flood(&mut queue, 2, 64 << 10), 64);
        // The next legs of the contexts that have begun.
        assert!(queue.enter(Origin::Sim(1), Leg::Next, 2000));
        assert!(queue.enter(Origin::Sim(2), Leg::Next, 64 << 10));
        for _ in 0..1025 {
            queue.leave(Origin::Sim(1), 2000);
        }
        assert_eq!((queue.len(), queue.of_host.len()), (65, 1));
        assert_eq!(flood(&mut queue, 1, 2000), 1024);
    }

    #[test]
    fn many_hosts_leave_room_for_another_one() {
        for token_bytes in [2000, 64 << 10] {
            let mut queue = Queue::default();
            for host in 0..8 {
                assert!(flood(&mut queue, host, token_bytes) >= 64, "{host}");
            }
            for host in 8..100 {
                flood(&mut queue, host, token_bytes);
            }
            assert!(queue.all.requests <= GSS_QUEUED_MAX);
            assert!(queue.all.token_bytes <= GSS_QUEUED_BYTES_MAX);
        }
    }
}
