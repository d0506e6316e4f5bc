//! How connections begin, time out and end.

use super::accept::{accept, channel};
use super::connection::{Channel, Phase, Session};
use super::{Engine, Link, Port, Shared, back, work};
use dafs_dat::connections::Closed;
use dafs_dat::{EndpointId, Instant, PeerInfo, RequestId};
use dafs_mem::Shrinking as _;
use dafs_wire::dafs::SERVER_STOPS;
use std::sync::atomic::Ordering;
use std::time::Duration;

impl Engine {
    pub(super) fn connect_request(
        &mut self,
        port: usize,
        request: RequestId,
        private_data: &[u8],
        peer: PeerInfo,
        now: Instant,
    ) {
        let Port { link, connections, .. } = &mut self.ports[port];
        let refuse = |link: &mut Link, why: &str| {
            tracing::warn!(%peer, "connection refused: {why}");
            let text = &why.as_bytes()[..why.len().min(dafs_dat::PRIVATE_DATA_BYTES_MAX)];
            link.adapter.reject(request, text);
        };
        if self.closing {
            return refuse(link, SERVER_STOPS);
        }
        let channel = match channel(private_data) {
            Ok(Channel::Optimistic) if !shows_remotely(link, &self.shared) => {
                return refuse(link, "no file is shown to clients of other hosts");
            }
            Ok(channel) => channel,
            Err(why) => return refuse(link, why),
        };
        let counted = link.adapter.admitted(request);
        let admitted = match self.shared.registry.admit(counted, &peer, &self.shared.limits) {
            Ok(admitted) => admitted,
            Err(refusal) => return refuse(link, &refusal.to_string()),
        };
        let owner = self.shared.registry.owner(&peer);
        let accepted = accept(link, request, (peer.clone(), owner), channel, now);
        match accepted {
            Ok(mut connection) => {
                connection.admitted = Some(admitted);
                link.credits += 1;
                link.optimistic_channels += usize::from(channel == Channel::Optimistic);
                connections.insert(connection.endpoint, connection);
            }
            Err(error) => tracing::warn!(%peer, %error, "connection could not be accepted"),
        }
    }

    /// Handles the end of a connection by the transport.
    pub(super) fn end(&mut self, port: usize, endpoint: EndpointId, reason: &str, now: Instant) {
        let Some(connection) = self.ports[port].connections.get_mut(&endpoint) else { return };
        match connection.closed() {
            // No tick has logged this yet.
            Some(closed @ Closed::Refused) if connection.phase != Phase::Closing => {
                tracing::warn!(peer = %connection.peer, "connection refused: {closed}");
            }
            _ => tracing::debug!(peer = %connection.peer, reason, "connection ended"),
        }
        connection.ended = true;
        connection.gone.store(true, Ordering::Relaxed);
        connection.phase = Phase::Closing;
        self.ports[port].link.batches_due.remove(&endpoint);
        self.leave(port, endpoint, now);
        // Others may wait for its resources.
        self.resume_waiting(port, now);
    }

    /// Removes an ended connection with the last of its jobs: these may be using its memory, and
    /// their work belongs to its session.
    pub(super) fn leave(&mut self, port: usize, endpoint: EndpointId, now: Instant) {
        let Port { link, connections, .. } = &mut self.ports[port];
        if !connections.get(&endpoint).is_some_and(|connection| connection.ended) {
            return;
        }
        let mut working = false;
        for id in self.pending.of(port as u32, endpoint) {
            // An emptied job uses nothing.
            let is_working =
                |work: &work::Work| work.has_job() && !matches!(work, work::Work::Canceled);
            if self.pending.get_mut(id).is_some_and(|pending| is_working(&pending.work)) {
                working = true;
            } else if let Some(pending) = self.pending.take(id) {
                // Jobs of this connection may wait for its change locks.
                if let Some(connection) = connections.get_mut(&endpoint) {
                    connection.drop_change(&pending.call);
                }
                pending.work.abandon(link);
            }
        }
        let session = connections.get(&endpoint).and_then(|connection| {
            connection.session.as_ref().filter(|session| session.proven.is_some())
        });
        let settled = session.is_none_or(|session| self.shared.registry.close_batches(session.id));
        if working || !settled {
            return;
        }
        let Some(mut connection) = connections.remove_and_shrink(&endpoint) else { return };
        link.credits -= usize::from(connection.credits.nreq);
        link.shares.is_stale = true;
        connection.receives.release(&mut *link.adapter);
        connection.shown.release(endpoint, &mut *link.adapter);
        // All posted work has been reported, except for losses by a panic here or in the transport.
        link.staging.reclaim(&mut *link.adapter, &connection.owner);
        link.replies.reclaim(&connection.owner);
        if connection.channel == Channel::Optimistic {
            link.optimistic_channels -= 1;
            if let Some(session) = &connection.session {
                let address = back::Address::new(&self.inbox, port as u32, endpoint);
                self.shared.registry.unbind_optimistic(session.id, &address);
            }
        }
        if let Some(Session { id, proven: Some(proven), replies, .. }) = connection.session.take() {
            if let Some(replies) = replies {
                let ended = replies.freeze();
                self.shared.service.replies.keep(id.0, &proven.client, ended, now.0);
            }
            self.shared.registry.remove_session(id);
            proven.client.session_ended();
        }
        if let Some(back) = connection.back.take() {
            back.end(&self.shared.service, &self.shared.registry);
        }
    }

    /// Checks timeouts, and frees unused memory.
    pub(super) fn tick(&mut self, now: Instant) {
        self.count_remote_reads();
        let handshake = Duration::from_secs(self.shared.limits.handshake_seconds);
        self.shared.authenticator.trim(now);
        let lease = self.shared.service.config().lease_time;
        let pending = &self.pending;
        for Port { link, connections, .. } in &mut self.ports {
            link.staging.trim(&mut *link.adapter);
            link.replies.trim(&mut *link.adapter);
            for connection in connections.values_mut().filter(|connection| !connection.ended) {
                connection.weigh(&self.shared.service.importance);
                let late = match connection.phase {
                    Phase::New | Phase::Unproven => now.since(connection.opened_at) > handshake,
                    Phase::Bound => {
                        let session = connection.session.as_ref();
                        !session.is_some_and(|s| self.shared.registry.has_session(s.id))
                            || connection.back.as_ref().is_some_and(|back| back.is_overdue(now))
                    }
                    // Its state stays for a lease, in which another proof may come.
                    Phase::Ready => connection.proof_ended_before(now, lease),
                    Phase::Closing => false,
                };
                let (owner, need) = (connection.owner, |id| pending.need(id));
                let stalled =
                    connection.is_stalled(now, || link.staging.others_wait_for(&owner, need));
                let closed = connection.closed().map(|closed| closed.to_string());
                if late || stalled || closed.is_some() {
                    let why = match (&closed, connection.phase) {
                        (Some(closed), _) => closed,
                        _ if stalled => "the client stopped answering in time",
                        (_, Phase::Bound) => "no session, or no answer to a call in time",
                        (_, Phase::Ready) => "the client's proof of identity has ended",
                        _ => "no session in time",
                    };
                    tracing::warn!(peer = %connection.peer, "connection dropped: {why}");
                    connection.phase = Phase::Closing;
                    link.adapter.abort(connection.endpoint);
                }
                connection.shown.trim(connection.endpoint, &mut *link.adapter);
                connection
                    .receives
                    .shrink(&mut *link.adapter, usize::from(connection.credits.nreq) + 1);
            }
        }
        for port in 0..self.ports.len() {
            let connections = self.ports[port].connections.iter();
            let called = connections.filter(|(_, connection)| connection.back.is_some());
            // In an order that does not depend on the table.
            let mut called: Vec<EndpointId> = called.map(|(endpoint, _)| *endpoint).collect();
            called.sort_unstable();
            for endpoint in called {
                self.with(port, endpoint, now, |context| context.assure_client());
            }
        }
        // Transfers may also wait because the system had no memory for a chunk.
        for port in 0..self.ports.len() {
            self.resume_waiting(port, now);
        }
    }
}

/// True if clients may read exposed memory by RDMA over this transport.
fn shows_remotely(link: &Link, shared: &Shared) -> bool {
    link.adapter.can_grant_reads() && shared.exposed.is_some() && shared.service.exposes_remotely()
}
