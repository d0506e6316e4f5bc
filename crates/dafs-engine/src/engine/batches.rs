//! The times at which connections check their batches.

use super::Engine;
use crate::ops::batch::turn;
use dafs_dat::{EndpointId, Instant};
use smallvec::SmallVec;

impl Engine {
    /// Begins a load that waited for the end of RDMA.
    pub(super) fn batch_room(&mut self, port: usize, endpoint: EndpointId, now: Instant) {
        let connection = self.ports[port].connections.get(&endpoint);
        let batch = connection.and_then(|connection| connection.batch.as_ref());
        if batch.is_some_and(|batch| batch.has_ready()) {
            self.with(port, endpoint, now, turn);
        }
    }

    /// Handles the batches that are due.
    pub(super) fn batches(&mut self, now: Instant) -> bool {
        let mut busy = false;
        for port in 0..self.ports.len() {
            let due = &self.ports[port].link.batches_due;
            if due.is_empty() {
                continue;
            }
            let due = due.iter().filter(|(_, at)| **at <= now).map(|(endpoint, _)| *endpoint);
            // In an order that does not depend on the table.
            let mut due: SmallVec<[EndpointId; 4]> = due.collect();
            due.sort_unstable();
            for endpoint in due {
                busy = true;
                self.with(port, endpoint, now, turn);
            }
        }
        busy
    }
}
