//! Acceptance and end of connections.
//!
//! Invariants
//! * A connection is counted from its acceptance until it ends.
//! * The server releases all that a connection held when its adapter reports the end; the handler
//!   learns of the end last.

use super::connection::{Connection, Ending, address};
use super::link::{Context, Link};
use super::reactor::RdmaReactor;
use crate::call::ConnectionId;
use crate::connection::shielded;
use crate::handler::Handler;
use crate::server::group::add;
use dafs_dat::connections::{Admitted, Closed, Origin, Refusal};
use dafs_dat::{EndpointId, PeerInfo, RequestId};
use dafs_wire::rpcrdma::PrivateData;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

impl<H: Handler> RdmaReactor<H> {
    pub(super) fn connect_request(
        &mut self,
        port: usize,
        request: RequestId,
        private_data: &[u8],
        info: &PeerInfo,
    ) {
        let peer = address(info);
        if self.stop_by_ns.is_some() {
            return self.ports[port].link.adapter.reject(request, &[]);
        }
        let admitted = self.ports[port].link.adapter.admitted(request);
        let admitted = admitted.map_or_else(|| self.admit(info), Ok);
        let admitted = match admitted {
            Ok(admitted) => admitted,
            Err(refusal) => {
                add(&self.core.counters().refused, 1);
                tracing::warn!(%peer, "connection refused: {refusal}");
                return self.ports[port].link.adapter.reject(request, &[]);
            }
        };
        let inline_bytes = self.core.shared.config.rdma_inline_bytes;
        let Link { adapter, domain, .. } = &mut self.ports[port].link;
        let told = u32::try_from(inline_bytes).unwrap_or(u32::MAX);
        let answer =
            PrivateData { remote_invalidation: false, send_bytes: told, receive_bytes: told };
        let endpoint = match adapter.accept(request, *domain, &answer.encode()) {
            Ok(endpoint) => endpoint,
            Err(error) => {
                tracing::debug!(%peer, %error, "a connection that was gone at once");
                return;
            }
        };
        let slot = self.free.pop().unwrap_or(self.slots.len() as u32);
        if slot >= ConnectionId::slots_max() {
            tracing::warn!(%peer, "a reactor has no place for another connection");
            adapter.abort(endpoint);
            return;
        }
        add(&self.core.counters().accepted, 1);
        self.serial += 1;
        let id = ConnectionId::new(self.core.number as u8, slot, self.serial);
        let now_ns = self.core.now_ns;
        let security = info.transport_security();
        let user = info.tls.as_ref().and_then(|tls| tls.user.clone());
        let mut connection = Connection::new(id, (port, endpoint), peer, info.into(), now_ns);
        connection.admitted = Some(admitted);
        (connection.security, connection.user) = (security, user);
        self.core.shared.enter();
        tracing::debug!(%peer, ?id, transport = adapter.name(), "connected");
        let connection = Some(Box::new(connection));
        match self.slots.get_mut(slot as usize) {
            Some(place) => *place = connection,
            None => self.slots.push(connection),
        }
        self.ports[port].connections.insert(endpoint, slot);
        self.attend(slot, |context| {
            context.connection.learn(private_data, inline_bytes);
            context.post_receives();
        });
    }

    /// Counts a connection of an adapter that does not count itself.
    fn admit(&self, info: &PeerInfo) -> Result<Arc<Admitted>, Refusal> {
        let no_socket = Weak::<OwnedFd>::new();
        self.core.shared.connections.admit(Origin::of_peer(info), no_socket)
    }

    /// Handles the adapter's report that a connection has ended.
    pub(super) fn ended(&mut self, port: usize, endpoint: EndpointId, ending: Ending) {
        let Some(slot) = self.ports[port].connections.remove(&endpoint) else { return };
        // All posted work has been reported, except for work that a panic in the transport has
        // lost.
        if let Some(Context { link, connection, .. }) = self.context(slot) {
            if connection.sends > 0 {
                link.reclaim_messages(connection.id);
            }
            if connection.fetches > 0 {
                link.reclaim_fetches(connection.id);
            }
        }
        self.end(slot, ending);
    }

    /// Removes a connection that its adapter has removed already.
    pub(super) fn end(&mut self, slot: u32, ending: Ending) {
        let Some(mut connection) = self.slots[slot as usize].take() else { return };
        let (peer, id) = (connection.peer, connection.id);
        // The server's own reason says more than the adapter's.
        let ending = connection.ending.take().unwrap_or(ending);
        let closed = connection.closed();
        self.core.counters().count(closed);
        let ending = closed.map_or(ending, Ending::Counted);
        if closed == Some(Closed::Refused) {
            tracing::warn!(%peer, ?id, "connection refused: {ending}");
        } else if ending.is_ordinary() {
            tracing::debug!(%peer, ?id, %ending, "connection ended");
        } else {
            add(&self.core.counters().broken, 1);
            tracing::info!(%peer, ?id, %ending, "connection broken off");
        }
        self.core.receive_slots -= connection.receives.total();
        connection.receives.release(&mut *self.ports[connection.port].link.adapter);
        self.core.release(connection.host, connection.held_bytes);
        self.core.shared.leave();
        self.free.push(slot);
        if let Some(back) = connection.back.take() {
            back.calls.end(id, &mut self.core.turn());
        }
        if connection.known {
            shielded(|| self.core.handler.disconnected(id));
        }
    }
}
