//! The network itself: time, set-up of connections, partitions.

use super::connection::{Connection, Half, Side, Stage, Verb};
use super::fabric::{Fabric, Wake};
use super::faults::SimFaults;
use super::limits::{CONNECT_TIMEOUT, GIVE_UP_MAX, GIVE_UP_MIN, RETRY};
use crate::types::{EndpointId, Event, ListenerId, ProtectionDomain, RequestId};
use crate::{ConnectError, DisconnectReason, Instant};
use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

/// All state of a simulated network.
#[derive(Debug)]
pub(super) struct Network {
    pub(super) fabric: Fabric,
    pub(super) connections: BTreeMap<u64, Connection>,
    /// The adapter that listens for a host.
    pub(super) listeners: BTreeMap<u32, (usize, ListenerId)>,
    last_connection: u64,
    last_endpoint: u64,
}

impl Network {
    pub(super) fn new(seed: u64, faults: SimFaults) -> Self {
        Self {
            fabric: Fabric::new(seed, faults),
            connections: BTreeMap::new(),
            listeners: BTreeMap::new(),
            last_connection: 0,
            last_endpoint: 0,
        }
    }

    /// Runs all events that are due until `now`.
    pub(super) fn advance_to(&mut self, now: Instant) {
        while let Some((time, id, wake)) = self.fabric.next_until(now) {
            self.fabric.now = self.fabric.now.max(time);
            self.happen(id, wake);
        }
        self.fabric.now = self.fabric.now.max(now);
    }

    /// Runs `action` on a connection, and removes it once it is over.
    fn with<T>(
        &mut self,
        id: u64,
        action: impl FnOnce(&mut Connection, &mut Fabric) -> T,
    ) -> Option<T> {
        let connection = self.connections.get_mut(&id)?;
        let result = action(connection, &mut self.fabric);
        if connection.is_over() {
            self.connections.remove(&id);
        }
        Some(result)
    }

    /// Runs `action` on the connection of an endpoint.
    pub(super) fn on_endpoint<T>(
        &mut self,
        endpoint: EndpointId,
        action: impl FnOnce(&mut Connection, &mut Fabric, Side) -> T,
    ) -> Option<T> {
        let &(id, side) = self.fabric.endpoints.get(&endpoint)?;
        self.with(id, |connection, fabric| action(connection, fabric, side))
    }

    fn happen(&mut self, id: u64, wake: Wake) {
        let Some(connection) = self.connections.get(&id) else { return };
        // A paused host is inactive, including its network stack.
        let actor = match wake {
            Wake::ConnectArrive | Wake::AcceptorUp => Side::Acceptor,
            Wake::ConnectRefused | Wake::ConnectTimeout | Wake::AnswerArrive => Side::Connector,
            Wake::Transmit(side)
            | Wake::Arrive(side)
            | Wake::LocalDone(side)
            | Wake::Notice(side)
            | Wake::GiveUp(side, _) => side,
        };
        if let Some(until) = self.fabric.paused_until(connection.half(actor).port) {
            self.fabric.at(until, id, wake);
            return;
        }
        if wake == Wake::ConnectArrive {
            self.connect_arrive(id);
            return;
        }
        self.with(id, |connection, fabric| match wake {
            Wake::ConnectArrive => {}
            Wake::ConnectRefused => {
                connection.fail(fabric, refused());
                connection.forsake(fabric, "the connection was refused");
            }
            Wake::ConnectTimeout => connection.time_out(fabric),
            Wake::AnswerArrive => connection.answer_arrive(fabric),
            Wake::AcceptorUp => connection.announce(fabric, Side::Acceptor),
            Wake::Transmit(side) => connection.transmit(fabric, side),
            Wake::Arrive(side) => connection.arrive(fabric, side),
            Wake::LocalDone(side) => connection.local_done(fabric, side),
            Wake::Notice(side) => connection.notice(fabric, side),
            Wake::GiveUp(side, partition) => connection.give_up(fabric, side, partition),
        });
    }

    pub(super) fn new_endpoint(&mut self, id: u64, side: Side) -> EndpointId {
        self.last_endpoint += 1;
        let endpoint = EndpointId(self.last_endpoint);
        self.fabric.endpoints.insert(endpoint, (id, side));
        endpoint
    }

    /// Starts a connection from an adapter to a host.
    pub(super) fn connect(
        &mut self,
        port: usize,
        domain: ProtectionDomain,
        host: u32,
        private_data: &[u8],
    ) -> EndpointId {
        self.last_connection += 1;
        let id = self.last_connection;
        let endpoint = self.new_endpoint(id, Side::Connector);
        let mut connector = Half::new(port, domain, true);
        connector.endpoint = Some(endpoint);
        // The acceptor's half belongs to the host's listener; without a listener it is closed from
        // the start.
        let target = self.listeners.get(&host).map(|(listener, _)| *listener);
        let mut acceptor = Half::new(target.unwrap_or(port), ProtectionDomain(0), false);
        if target.is_none() {
            acceptor.stage = Stage::Closed;
        }
        let connection = Connection {
            id,
            halves: [connector, acceptor],
            lost: false,
            answered: false,
            request_data: private_data.to_vec(),
            answer_data: Vec::new(),
        };
        self.connections.insert(id, connection);
        let fabric = &mut self.fabric;
        let (hop, back) = (fabric.hop(), fabric.hop());
        match target {
            None => fabric.after(hop + back, id, Wake::ConnectRefused),
            Some(_) if fabric.rng.chance(fabric.faults.refuse_ppm) => {
                fabric.after(hop + back, id, Wake::ConnectRefused);
            }
            Some(_) => fabric.after(hop, id, Wake::ConnectArrive),
        }
        fabric.after(CONNECT_TIMEOUT, id, Wake::ConnectTimeout);
        endpoint
    }

    fn connect_arrive(&mut self, id: u64) {
        let Some(connection) = self.connections.get(&id) else { return };
        let hosts = connection.halves.each_ref().map(|half| self.fabric.ports[half.port].host);
        let lost = self.fabric.rng.chance(self.fabric.faults.connect_loss_ppm);
        let gone = connection.half(Side::Connector).stage == Stage::Closed;
        if lost || gone || self.fabric.is_blocked(hosts[0], hosts[1]) {
            return;
        }
        let port = connection.half(Side::Acceptor).port;
        let Some(listener) = self.fabric.ports[port].listener else {
            let delay = self.fabric.hop();
            self.fabric.after(delay, id, Wake::ConnectRefused);
            return;
        };
        let peer = self.fabric.peer(hosts[0]);
        let event = Event::ConnectRequest {
            listener,
            request: RequestId(id),
            private_data: Box::new(connection.request_data.clone()),
            peer: Box::new(peer),
        };
        self.fabric.report(port, event);
    }

    /// The application accepts.
    pub(super) fn accept(
        &mut self,
        port: usize,
        request: RequestId,
        domain: ProtectionDomain,
        private_data: &[u8],
    ) -> Result<EndpointId, ConnectError> {
        let id = request.0;
        let open = self.connections.get(&id).is_some_and(|connection| {
            let acceptor = connection.half(Side::Acceptor);
            acceptor.port == port
                && !connection.answered
                && acceptor.stage == Stage::Opening
                && connection.half(Side::Connector).stage == Stage::Opening
        });
        if !open {
            return Err(ConnectError::Gone);
        }
        let endpoint = self.new_endpoint(id, Side::Acceptor);
        self.fabric.counts.connections += 1;
        self.with(id, |connection, fabric| {
            connection.answered = true;
            connection.answer_data = private_data.to_vec();
            let acceptor = connection.half_mut(Side::Acceptor);
            acceptor.endpoint = Some(endpoint);
            acceptor.domain = domain;
            connection.plan_loss(fabric);
            let (up, answer) = (fabric.hop(), fabric.hop());
            fabric.after(up, id, Wake::AcceptorUp);
            fabric.after(answer, id, Wake::AnswerArrive);
            if fabric.rng.chance(fabric.faults.connect_loss_ppm) {
                connection.lose(fabric, None, "the connection was lost while it was made");
            }
        });
        Ok(endpoint)
    }

    /// The application rejects.
    pub(super) fn reject(&mut self, port: usize, request: RequestId, private_data: &[u8]) {
        self.with(request.0, |connection, fabric| {
            let acceptor = connection.half_mut(Side::Acceptor);
            if acceptor.port != port || acceptor.endpoint.is_some() {
                return;
            }
            acceptor.stage = Stage::Closed;
            connection.answered = true;
            connection.answer_data = private_data.to_vec();
            let delay = fabric.hop();
            fabric.after(delay, connection.id, Wake::AnswerArrive);
        });
    }

    /// Partitions two hosts or joins them again.
    pub(super) fn partition(&mut self, a: u32, b: u32, apart: bool) {
        let pair = (a.min(b), a.max(b));
        let fabric = &mut self.fabric;
        let changed =
            if apart { fabric.blocked.insert(pair) } else { fabric.blocked.remove(&pair) };
        if !changed {
            return;
        }
        fabric.partitions += 1;
        let epoch = fabric.partitions;
        for connection in self.connections.values() {
            let hosts = connection.halves.each_ref().map(|half| fabric.ports[half.port].host);
            if (hosts[0].min(hosts[1]), hosts[0].max(hosts[1])) != pair {
                continue;
            }
            for side in Side::BOTH {
                let range = (GIVE_UP_MIN.as_micros() as u64, GIVE_UP_MAX.as_micros() as u64);
                let patience =
                    Duration::from_micros(fabric.rng.between(range.0, range.1) / 10 * 10);
                if apart {
                    fabric.after(patience, connection.id, Wake::GiveUp(side, epoch));
                } else {
                    let delay = fabric.hop();
                    fabric.after(delay, connection.id, Wake::Arrive(side));
                }
            }
        }
    }

    /// A process has ended: its peers will find their connections lost.
    pub(super) fn drop_port(&mut self, port: usize) {
        self.fabric.ports[port].dropped = true;
        self.fabric.ports[port].listener = None;
        self.listeners.retain(|_, (listener, _)| *listener != port);
        let ids: Vec<u64> = self.connections.keys().copied().collect();
        for id in ids {
            self.with(id, |connection, fabric| {
                for side in Side::BOTH {
                    if connection.half(side).port == port {
                        connection.close(fabric, side, DisconnectReason::Local);
                        connection.lose(fabric, None, "the peer's process has ended");
                    }
                }
            });
        }
        let table = &mut self.fabric.ports[port];
        table.regions = crate::RegionTable::new();
        table.bases.clear();
        table.keys.clear();
        table.granted.clear();
        table.ready.clear();
    }
}

fn refused() -> ConnectError {
    ConnectError::Io(io::Error::from(io::ErrorKind::ConnectionRefused))
}

impl Connection {
    /// Draws whether and where this connection will be lost.
    fn plan_loss(&mut self, fabric: &mut Fabric) {
        if !fabric.rng.chance(fabric.faults.loss_ppm) {
            return;
        }
        let side = if fabric.rng.chance(500_000) { Side::Connector } else { Side::Acceptor };
        let byte = fabric.rng.log_below(fabric.faults.loss_bytes_max);
        self.half_mut(side).line.cut = Some(byte);
    }

    fn answer_arrive(&mut self, fabric: &mut Fabric) {
        let hosts = self.halves.each_ref().map(|half| fabric.ports[half.port].host);
        if fabric.is_blocked(hosts[0], hosts[1]) {
            fabric.after(RETRY, self.id, Wake::AnswerArrive);
            return;
        }
        let accepted = self.half(Side::Acceptor).endpoint.is_some();
        let data = std::mem::take(&mut self.answer_data);
        if !accepted {
            self.fail(fabric, ConnectError::Rejected(data));
            return;
        }
        if self.lost || self.half(Side::Connector).stage != Stage::Opening {
            return;
        }
        let half = self.half_mut(Side::Connector);
        half.stage = Stage::Up;
        if let Some(endpoint) = half.endpoint {
            let event = Event::Established { endpoint, private_data: Box::new(data) };
            fabric.report(half.port, event);
        }
    }

    fn time_out(&mut self, fabric: &mut Fabric) {
        if self.half(Side::Connector).stage != Stage::Opening {
            return;
        }
        self.fail(fabric, ConnectError::TimedOut(CONNECT_TIMEOUT));
        self.forsake(fabric, "the peer gave up waiting");
    }

    /// The connector ended before it was connected.
    pub(super) fn forsake(&mut self, fabric: &mut Fabric, why: &str) {
        if self.half(Side::Acceptor).endpoint.is_some() {
            self.lose(fabric, None, why);
        } else {
            self.half_mut(Side::Acceptor).stage = Stage::Closed;
        }
    }

    /// Reports one transmitted work item, or the requested end.
    fn local_done(&mut self, fabric: &mut Fabric, side: Side) {
        let half = self.half_mut(side);
        if let Some(done) = half.line.done.pop_front() {
            let port = half.port;
            let endpoint = Some(done.endpoint);
            fabric.complete(port, endpoint, done.work, done.operation, done.status);
        } else if half.stage == Stage::Closing && half.line.queue.is_empty() {
            self.close(fabric, side, DisconnectReason::Local);
        }
    }

    fn give_up(&mut self, fabric: &mut Fabric, side: Side, partition: u64) {
        let hosts = self.halves.each_ref().map(|half| fabric.ports[half.port].host);
        let current = fabric.partitions == partition;
        if !current || !fabric.is_blocked(hosts[0], hosts[1]) {
            return;
        }
        let lost = "no answer from the peer".to_owned();
        self.close(fabric, side, DisconnectReason::Lost(lost));
        self.lose(fabric, None, "the peer gave the connection up");
    }

    /// Starts a graceful end.
    pub(super) fn disconnect(&mut self, fabric: &mut Fabric, side: Side) {
        let half = self.half_mut(side);
        match half.stage {
            Stage::Closing | Stage::Closed => {}
            Stage::Opening => self.abort(fabric, side),
            Stage::Up => {
                half.stage = Stage::Closing;
                half.line.held.push_back(super::connection::Frame {
                    verb: Verb::Close,
                    work: None,
                    segments: Vec::new(),
                    payload: 0,
                });
                self.flush(fabric, side);
            }
        }
    }

    /// Ends the connection at once.
    pub(super) fn abort(&mut self, fabric: &mut Fabric, side: Side) {
        let opening = self.half(side).stage == Stage::Opening;
        self.close(fabric, side, DisconnectReason::Local);
        if opening && side == Side::Connector {
            self.forsake(fabric, "the peer has left");
        } else {
            self.lose(fabric, None, "connection reset by the peer");
        }
    }
}
