//! Connections as the front ends see them: the way to call a client back, and the clients to call.
//!
//! Invariants
//! * A closed connection carries no more callbacks, and all sessions soon drop it.

use crate::listings::Listings;
use crate::v4::session::{NfsClient, Session};
use dafs_mem::Mutex;
use dafs_rpc::{CallbackRequest, ConnectionRef};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

/// One connection.
#[derive(Debug)]
pub(crate) struct Connection {
    reference: ConnectionRef,
    /// The listing budget of its reactor.
    listings: Arc<Listings>,
    closed: AtomicBool,
    /// Clients whose callbacks may use it.
    clients: Mutex<Vec<Weak<NfsClient>>>,
    /// The session of the last request, which saves a lookup in the table that all reactors share.
    recent: Mutex<Weak<Session>>,
}

impl Connection {
    pub(crate) fn new(reference: ConnectionRef, listings: Arc<Listings>) -> Arc<Self> {
        Arc::new(Self {
            reference,
            listings,
            closed: AtomicBool::new(false),
            clients: Mutex::default(),
            recent: Mutex::default(),
        })
    }

    /// Returns the session of the last request over it, if it lives.
    pub(crate) fn recent_session(&self) -> Option<Arc<Session>> {
        let recent = self.recent.lock();
        recent.upgrade().filter(|session| !session.is_gone())
    }

    /// Remembers the session of a request.
    pub(crate) fn set_recent_session(&self, session: &Arc<Session>) {
        *self.recent.lock() = Arc::downgrade(session);
    }

    /// Returns the listing budget of its reactor.
    pub(crate) fn listings(&self) -> &Arc<Listings> {
        &self.listings
    }

    /// Returns its unique number.
    pub(crate) fn id(&self) -> u64 {
        self.reference.id().to_u64()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Sends a call to the client. Never waits.
    pub(crate) fn send_callback(&self, call: CallbackRequest) {
        self.reference.send_callback(call);
    }

    /// Records that a client's callbacks may use it.
    pub(crate) fn serves(&self, client: &Arc<NfsClient>) {
        let mut clients = self.clients.lock();
        clients.retain(|known| known.strong_count() > 0);
        if !clients.iter().any(|known| std::ptr::eq(known.as_ptr(), Arc::as_ptr(client))) {
            clients.push(Arc::downgrade(client));
        }
    }

    /// Protects it from being closed to make room for other connections.
    pub(crate) fn establish(&self) {
        self.reference.establish();
    }

    /// Marks it closed, and returns the clients that lose it as a back channel.
    pub(crate) fn close(&self) -> Vec<Arc<NfsClient>> {
        self.closed.store(true, Ordering::Release);
        let mut clients = self.clients.lock();
        std::mem::take(&mut *clients).iter().filter_map(Weak::upgrade).collect()
    }
}
