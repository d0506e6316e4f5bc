//! Two transports to one server, of which a session uses one at a time.
//!
//! A device may be removed, at either end, while the network goes on. So a session that has chosen a
//! device by itself tries both in turn once the server has been away for a while.
//!
//! Invariants
//! * The transport changes only between two attempts to connect, when neither has a connection, and
//!   no memory that an operation names is registered with the one that is left.
//! * The transport that is left goes on to end its connections: a device cannot be removed before.

use super::Driver;
use crate::limits::ONE_TRANSPORT_TIME;
use crate::options::Transport;
use dafs_dat::{Adapter, Address, Instant};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The way to a server by one transport.
pub(crate) struct Way {
    pub(crate) adapter: Box<dyn Adapter>,
    pub(crate) address: Address,
    pub(crate) transport: Transport,
}

/// The transport that is not in use.
pub(super) struct Spare {
    adapter: Box<dyn Adapter>,
    address: Address,
    /// Set while the session uses the one that was the spare at first.
    swapped: Arc<AtomicBool>,
}

/// The transports of a session, for those who ask.
#[derive(Debug)]
pub(super) struct Transports {
    first: Transport,
    second: Option<Transport>,
    swapped: Arc<AtomicBool>,
}

impl Transports {
    /// The transport in use.
    pub(super) fn current(&self) -> &Transport {
        match &self.second {
            Some(second) if self.swapped.load(Ordering::Relaxed) => second,
            _ => &self.first,
        }
    }

    /// The transport that was chosen at first, which the session may come back to.
    pub(super) fn first(&self) -> &Transport {
        &self.first
    }
}

impl Driver {
    /// Adds a second transport.
    pub(super) fn keep_spare(&mut self, first: Transport, spare: Option<Way>) -> Transports {
        let swapped = Arc::new(AtomicBool::new(false));
        let second = spare.map(|Way { adapter, address, transport }| {
            self.spare = Some(Spare { adapter, address, swapped: swapped.clone() });
            transport
        });
        Transports { first, second, swapped }
    }

    /// Changes the transport if the present one leads nowhere. True if it did: a thread that waits
    /// for events waits for those of the wrong one then.
    pub(super) fn change_if_stuck(&mut self, now: Instant) -> bool {
        let Some(spare) = &mut self.spare else { return false };
        if !self.core.is_stuck(now, ONE_TRANSPORT_TIME) {
            return false;
        }
        std::mem::swap(&mut self.adapter, &mut spare.adapter);
        let address = self.core.link.address.clone();
        let address = std::mem::replace(&mut spare.address, address);
        spare.swapped.fetch_xor(true, Ordering::Relaxed);
        tracing::debug!(server = %self.server, transport = self.adapter.name(), "trying another way");
        self.core.change_transport(&mut *spare.adapter, &mut *self.adapter, address);
        true
    }

    /// Goes on with the ends of connections of the transport that is not in use.
    pub(super) fn settle_spare(&mut self, now: Instant) {
        let Some(spare) = &mut self.spare else { return };
        if spare.adapter.next_timeout().is_some_and(|at| at <= now) {
            // They are about connections that the session has given up.
            let mut events = Vec::new();
            spare.adapter.poll(now, &mut events);
        }
    }

    /// The time at which the transport that is not in use must be polled.
    pub(super) fn spare_timeout(&self) -> Option<Instant> {
        self.spare.as_ref()?.adapter.next_timeout()
    }
}
