//! Connections as the front doors see them: a way to call the client back, and who is called.
//!
//! Invariants
//! * A connection that is closed carries nothing any more and is soon forgotten by all sessions.

use crate::listings::Listings;
use crate::v4::session::{NfsClient, Session};
use dafs_rpc::{BackCall, ConnectionRef};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// One connection.
#[derive(Debug)]
pub(crate) struct Connection {
    reference: ConnectionRef,
    /// Those of its reactor.
    listings: Arc<Listings>,
    closed: AtomicBool,
    /// Clients that may be called over it.
    clients: Mutex<Vec<Weak<NfsClient>>>,
    /// The session of the last request, so that the next one need not look where all reactors do.
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

    /// The session of the last request over it, if it lives.
    pub(crate) fn recent_session(&self) -> Option<Arc<Session>> {
        let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.upgrade().filter(|session| !session.is_gone())
    }

    /// Remembers the session of a request.
    pub(crate) fn set_recent_session(&self, session: &Arc<Session>) {
        *self.recent.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(session);
    }

    /// The budget for listings of its reactor.
    pub(crate) fn listings(&self) -> &Arc<Listings> {
        &self.listings
    }

    /// Its number, which no other connection has.
    pub(crate) fn id(&self) -> u64 {
        self.reference.id().to_u64()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Sends a call to the client; never waits.
    pub(crate) fn call_back(&self, call: BackCall) {
        self.reference.call_back(call);
    }

    /// Remembers that a client may be called over it.
    pub(crate) fn serves(&self, client: &Arc<NfsClient>) {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        clients.retain(|known| known.strong_count() > 0);
        if !clients.iter().any(|known| std::ptr::eq(known.as_ptr(), Arc::as_ptr(client))) {
            clients.push(Arc::downgrade(client));
        }
    }

    /// It is of use, and will not be closed to make room for others.
    pub(crate) fn establish(&self) {
        self.reference.establish();
    }

    /// Marks it closed, and gives the clients that lose it as a back channel.
    pub(crate) fn close(&self) -> Vec<Arc<NfsClient>> {
        self.closed.store(true, Ordering::Release);
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *clients).iter().filter_map(Weak::upgrade).collect()
    }
}
