//! Waits until no request of fenced sessions is under way any more (DAFS 11).
//!
//! Invariants
//! * An engine handles a fence between two requests. Earlier requests have finished or are in the
//!   table of waiting ones. Later requests see the fence.
//! * A waiting request is over when its entry is gone, and when all work that was posted until then
//!   has completed: read data is sent when the entry goes. A session that takes too long is ended,
//!   which ends its RDMA. A job that has begun to write is always waited for.
//! * Changes of fences do not wait for each other here.

use super::Engine;
use super::work::{JobDone, PendingId, Work};
use crate::inbox::Inbox;
use crate::limits::FENCE_DRAIN_TIME;
use dafs_dat::{EndpointId, Instant};
use dafs_mem::Mutex;
use dafs_service::{Drain, Draining, Subject};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The service's drain requests to an engine, from any thread.
pub(super) struct DrainRequests {
    some: AtomicBool,
    requests: Mutex<Vec<Draining>>,
    /// Wakes the engine.
    inbox: Arc<Inbox<JobDone>>,
}

impl DrainRequests {
    pub(super) fn new(inbox: Arc<Inbox<JobDone>>) -> Arc<Self> {
        Arc::new(Self { some: AtomicBool::new(false), requests: Mutex::default(), inbox })
    }

    /// True if the engine has a drain request.
    pub(super) fn is_some(&self) -> bool {
        self.some.load(Ordering::Acquire)
    }

    fn take(&self) -> Vec<Draining> {
        if !self.is_some() {
            return Vec::new();
        }
        let mut requests = self.requests.lock();
        self.some.store(false, Ordering::Release);
        std::mem::take(&mut *requests)
    }
}

impl Drain for DrainRequests {
    fn drain(&self, draining: Draining) {
        let mut requests = self.requests.lock();
        requests.push(draining);
        self.some.store(true, Ordering::Release);
        drop(requests);
        self.inbox.wake();
    }
}

/// A fence with work under way here.
pub(super) struct UnderWay {
    /// Its drop notifies the waiter.
    _draining: Draining,
    sessions: Vec<FencedSession>,
    since: Instant,
}

/// A fenced session.
struct FencedSession {
    port: usize,
    endpoint: EndpointId,
    /// Requests that wait.
    requests: Vec<PendingId>,
    /// The number of posted sends when the last of them was seen.
    sent: u64,
}

impl Engine {
    /// Takes new drain requests, and checks the earlier ones.
    pub(super) fn drain(&mut self, now: Instant) {
        for draining in self.drain_requests.take() {
            let begun = self.begin_drain(draining, now);
            self.drains.push(begun);
        }
        if self.drains.is_empty() {
            return;
        }
        let mut drains = std::mem::take(&mut self.drains);
        drains.retain_mut(|under_way| {
            under_way.sessions.retain_mut(|session| {
                let waited = !session.requests.is_empty();
                let is_waiting = |work: &Work| !matches!(work, Work::Canceled);
                session.requests.retain(|&id| {
                    self.pending.get_mut(id).is_some_and(|pending| is_waiting(&pending.work))
                });
                let connection = self.ports[session.port].connections.get(&session.endpoint);
                let sent = connection.filter(|connection| !connection.ended);
                let is_sent = sent.is_none_or(|connection| {
                    if waited {
                        session.sent = connection.sent_total;
                    }
                    connection.sent_completed() >= session.sent
                });
                !session.requests.is_empty() || !is_sent
            });
            !under_way.sessions.is_empty()
        });
        let late: Vec<_> =
            drains.iter().filter(|d| now.since(d.since) > FENCE_DRAIN_TIME).collect();
        late.into_iter().for_each(|under_way| self.end_late(under_way));
        self.drains = drains;
    }

    fn begin_drain(&mut self, draining: Draining, now: Instant) -> UnderWay {
        let mut sessions = Vec::new();
        for (port, there) in self.ports.iter().enumerate() {
            for connection in there.connections.values() {
                let Some(session) = &connection.session else { continue };
                if !draining.concerns(&Subject::Session(&session.fence_id)) {
                    continue;
                }
                let (endpoint, sent) = (connection.endpoint, connection.sent_total);
                let requests = self.pending.of(port as u32, endpoint);
                sessions.push(FencedSession { port, endpoint, requests, sent });
            }
        }
        for session in &mut sessions {
            session.requests.retain(|&id| {
                let work = self.pending.get_mut(id).map(|pending| &pending.work);
                // The first two use no file, the third has not begun, and the fourth is over. The
                // last changes a fence, as the one that waits here does.
                !matches!(
                    work,
                    None | Some(
                        Work::Authenticate
                            | Work::Register
                            | Work::Again
                            | Work::Canceled
                            | Work::Fence
                    )
                )
            });
        }
        UnderWay { _draining: draining, sessions, since: now }
    }

    /// Ends sessions that do not finish in time.
    fn end_late(&mut self, under_way: &UnderWay) {
        for &FencedSession { port, endpoint, .. } in &under_way.sessions {
            let super::Port { link, connections, .. } = &mut self.ports[port];
            if let Some(connection) = connections.get_mut(&endpoint)
                && connection.phase != super::Phase::Closing
            {
                tracing::warn!(peer = %connection.peer, "session ended: it is fenced and goes on");
                connection.phase = super::Phase::Closing;
                link.adapter.abort(endpoint);
            }
        }
    }
}
