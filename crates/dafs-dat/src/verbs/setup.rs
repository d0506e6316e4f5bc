//! The set-up of connections.
//!
//! Invariants
//! * A partial set-up ends by its timeout. The number of those that peers start is bounded, and
//!   further ones are refused.
//! * The queue pair, with the posted receives, exists before the peer can send.

use super::adapter::{Entry, VerbsAdapter};
use super::cm::{CmEvent, CmId, ReadDepths};
use super::connection::{Connection, Deadline, Stage};
use super::device::DeviceKind;
use super::ffi;
use super::fork;
use super::limits;
use super::private;
use super::sys::Domain;
use super::teardown::End;
use crate::iwarp::opening::Opening;
use crate::{
    ConnectError, DisconnectReason, EndpointId, Event, ListenerId, PRIVATE_DATA_BYTES_MAX,
    PeerInfo, ProtectionDomain, RequestId,
};
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

/// Set in the tokens of listeners, never in those of entries.
const LISTENER: u64 = 1 << 63;

/// A peer's request before `accept`.
#[derive(Debug)]
pub(super) struct Request {
    cm: CmId,
    peer: SocketAddr,
    reads: ReadDepths,
    pub(super) deadline: Deadline,
}

fn check_private_data(data: &[u8]) -> Result<(), ConnectError> {
    let (bytes, max) = (data.len(), PRIVATE_DATA_BYTES_MAX);
    if bytes > max { Err(ConnectError::PrivateData { bytes, max }) } else { Ok(()) }
}

/// An error with the failed step, and the system's error kind.
fn explain(error: io::Error, what: &str) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

impl VerbsAdapter {
    pub(super) fn start_listening(&mut self, address: SocketAddr) -> io::Result<ListenerId> {
        fork::check()?;
        let token = LISTENER | self.listeners.len() as u64;
        let cm = self.channel.identifier(token)?;
        let listened = cm.bind(address).and_then(|()| cm.listen(limits::LISTEN_BACKLOG));
        listened.map_err(|error| listen_error(error, address))?;
        if !address.ip().is_unspecified() && !self.chosen.device.is(cm.context()) {
            let device = &self.chosen.info.name;
            let text = format!("{address} is not an address of the RDMA device {device}");
            return Err(io::Error::new(io::ErrorKind::AddrNotAvailable, text));
        }
        self.listeners.push(Some(cm));
        Ok(ListenerId((self.listeners.len() - 1) as u32))
    }

    fn new_connection(
        &self,
        cm: CmId,
        peer: SocketAddr,
        domain: ProtectionDomain,
        stage: Stage,
        reads: ReadDepths,
        private_data: &[u8],
    ) -> Connection {
        Connection {
            cm,
            id: 0,
            peer,
            domain,
            is_initiator: matches!(stage, Stage::Connecting),
            stage,
            private_data: private::encode(private_data, self.chosen.is_infiniband()),
            inbound_reads: reads.inbound,
            outbound_reads: reads.outbound,
            queue: None,
            depths: self.chosen.depths,
            is_written: self.chosen.is_software(),
            waiting: VecDeque::new(),
            sends: VecDeque::new(),
            reads: VecDeque::new(),
            receives: VecDeque::new(),
            closing: false,
            dirty: false,
            deadline: Deadline::after(self.config.handshake_timeout),
            opening: Opening::Done,
            has_said: false,
            has_heard: false,
            grants: Vec::new(),
            own_domain: None,
        }
    }

    fn add_connection(&mut self, mut connection: Connection) -> Result<EndpointId, ConnectError> {
        let full = || io::Error::new(io::ErrorKind::QuotaExceeded, "too many connections");
        if self.slots.count() >= self.config.connection_count_max {
            return Err(full().into());
        }
        let id = self.slots.insert(|id| {
            connection.id = id;
            connection.cm.set_token(id);
            Entry::Connection(Box::new(connection))
        });
        let id = id.ok_or_else(full)?;
        self.unsettled.push(id);
        Ok(EndpointId(id))
    }

    pub(super) fn start_connecting(
        &mut self,
        domain: ProtectionDomain,
        address: SocketAddr,
        private_data: &[u8],
    ) -> Result<EndpointId, ConnectError> {
        fork::check().map_err(io::Error::from)?;
        check_private_data(private_data)?;
        let reads = ReadDepths {
            inbound: self.chosen.inbound_reads_max,
            outbound: self.chosen.outbound_reads_max,
        };
        let cm = self.channel.identifier(0)?;
        let stage = Stage::Connecting;
        let connection = self.new_connection(cm, address, domain, stage, reads, private_data);
        let endpoint = self.add_connection(connection)?;
        let found = self.connection_mut(endpoint.0).map_or(Ok(()), |connection| {
            connection.cm.resolve_address(address, limits::RESOLVE_TIMEOUT_MS)
        });
        if let Err(error) = found {
            self.slots.remove(endpoint.0);
            return Err(no_way(error, address).into());
        }
        Ok(endpoint)
    }

    pub(super) fn start_accepting(
        &mut self,
        request: RequestId,
        (domain, own_domain): (ProtectionDomain, Option<Arc<Domain>>),
        private_data: &[u8],
    ) -> Result<EndpointId, ConnectError> {
        check_private_data(private_data)?;
        let Some(request) = self.take_request(request.0) else { return Err(ConnectError::Gone) };
        let Request { cm, peer, reads, .. } = *request;
        let stage = Stage::Accepting;
        let mut connection = self.new_connection(cm, peer, domain, stage, reads, private_data);
        connection.own_domain = own_domain;
        let endpoint = self.add_connection(connection)?;
        if let Err(error) = self.make_queue_pair(endpoint.0) {
            if let Some(Entry::Connection(connection)) = self.slots.remove(endpoint.0) {
                let _ = connection.cm.reject(&[]);
            }
            return Err(error.into());
        }
        self.mark_dirty(endpoint.0);
        Ok(endpoint)
    }

    fn take_request(&mut self, id: u64) -> Option<Box<Request>> {
        if fork::is_child() || !matches!(self.slots.get(id), Some(Entry::Request(_))) {
            return None;
        }
        self.request_count -= 1;
        match self.slots.remove(id) {
            Some(Entry::Request(request)) => Some(request),
            _ => None,
        }
    }

    pub(super) fn refuse(&mut self, request: RequestId, private_data: &[u8]) {
        let data = &private_data[..private_data.len().min(PRIVATE_DATA_BYTES_MAX)];
        if let Some(request) = self.take_request(request.0) {
            let data = private::encode(data, self.chosen.is_infiniband());
            if let Err(error) = request.cm.reject(&data) {
                tracing::debug!(%error, peer = %request.peer, "cannot reject");
            }
        }
    }

    pub(super) fn drop_request(&mut self, id: u64) {
        self.refuse(RequestId(id), &[]);
    }

    fn make_queue_pair(&mut self, id: u64) -> io::Result<()> {
        let entries = self.chosen.depths.sends + self.chosen.depths.receives;
        let queue = self.queues.take(entries)?;
        let Self { slots, queues, memory, .. } = self;
        let Some(Entry::Connection(connection)) = slots.get_mut(id) else {
            queues.give_back(queue, entries);
            return Err(io::ErrorKind::NotConnected.into());
        };
        let no_domain = || io::Error::new(io::ErrorKind::InvalidInput, "no such protection domain");
        let domain = match &connection.own_domain {
            Some(own) => Some(&**own),
            None => memory.domain(connection.domain),
        };
        let made = domain.ok_or_else(no_domain).and_then(|domain| {
            connection
                .cm
                .create_queue_pair(domain, queues.get(queue), connection.depths)
                .map_err(|error| explain(error, "the RDMA device gives no queue pair"))
        });
        if let Err(error) = made {
            queues.give_back(queue, entries);
            return Err(error);
        }
        connection.queue = Some(queue);
        connection.post_kept_receives()
    }

    pub(super) fn take_cm_events(&mut self) {
        for _ in 0..limits::CM_EVENT_COUNT_PER_TURN {
            match self.channel.next() {
                Ok(Some(event)) => self.cm_event(event),
                Ok(None) => return,
                Err(error) => {
                    tracing::error!(%error, "cannot take events of the connection manager");
                    return;
                }
            }
        }
        // More events may be pending.
        self.slept = true;
    }

    fn cm_event(&mut self, event: CmEvent) {
        if event.kind == ffi::CM_DEVICE_REMOVAL {
            self.is_removed = true;
        }
        if event.token & LISTENER != 0 {
            return self.listener_event(event);
        }
        let id = event.token;
        match self.slots.get(id) {
            Some(Entry::Connection(_)) => self.connection_event(id, event),
            Some(Entry::Request(_)) => {
                // The only further event of a request is its end.
                self.take_request(id);
            }
            Some(Entry::Lingering { .. }) => {
                self.slots.remove(id);
            }
            None => {}
        }
    }

    fn listener_event(&mut self, event: CmEvent) {
        let listener = ListenerId((event.token & !LISTENER) as u32);
        let Some(mut cm) = event.request else {
            if event.kind == ffi::CM_DEVICE_REMOVAL {
                let device = &self.chosen.info.name;
                tracing::error!(device, "the RDMA device was removed, nothing listens there now");
                // The kernel waits for this.
                if let Some(listener) = self.listeners.get_mut(listener.0 as usize) {
                    *listener = None;
                }
            }
            return;
        };
        let Some(peer) = cm.peer_address() else { return };
        let refusal = if !self.chosen.device.is(cm.context()) {
            Some("it came over another RDMA device")
        } else if self.request_count >= self.config.handshake_count_max {
            Some("too many are being set up")
        } else if self.slots.count() >= self.config.connection_count_max {
            Some("too many connections")
        } else {
            None
        };
        if let Some(refusal) = refusal {
            tracing::debug!(%peer, "connection request refused: {refusal}");
            let _ = cm.reject(&[]);
            return;
        }
        let reads = ReadDepths {
            inbound: self.chosen.inbound_reads_max.min(event.responder_resources),
            outbound: self.chosen.outbound_reads_max.min(event.initiator_depth),
        };
        let deadline = Deadline::after(self.config.handshake_timeout);
        let id = self.slots.insert(|id| {
            cm.set_token(id);
            Entry::Request(Box::new(Request { cm, peer, reads, deadline }))
        });
        let Some(id) = id else { return };
        self.request_count += 1;
        self.unsettled.push(id);
        let data = private::decode(event.private_data, self.chosen.is_infiniband());
        self.events.push(Event::ConnectRequest {
            listener,
            request: RequestId(id),
            private_data: Box::new(data),
            peer: Box::new(peer_info(peer)),
        });
    }

    fn connection_event(&mut self, id: u64, event: CmEvent) {
        let Some(connection) = self.connection_mut(id) else { return };
        let peer = connection.peer;
        let is_initiator = connection.is_initiator;
        match event.kind {
            ffi::CM_ADDR_RESOLVED => {
                if let Err(error) = self.address_is_resolved(id) {
                    self.end(id, End::Setup(ConnectError::Io(error)));
                }
            }
            ffi::CM_ROUTE_RESOLVED => {
                let reads = ReadDepths {
                    inbound: connection.inbound_reads,
                    outbound: connection.outbound_reads,
                };
                let data = std::mem::take(&mut connection.private_data);
                if let Err(error) = connection.cm.connect(&data, reads) {
                    self.end(id, End::Setup(ConnectError::Io(error)));
                }
            }
            ffi::CM_ESTABLISHED => {
                let depth = event.initiator_depth;
                self.established(id, event.private_data, is_initiator.then_some(depth));
            }
            ffi::CM_DISCONNECTED => {
                // Messages that arrived before the disconnect come first.
                self.reap();
                self.end(id, End::Peer);
            }
            ffi::CM_DEVICE_REMOVAL => {
                let text = "the RDMA device was removed".to_owned();
                self.end(id, End::Because(DisconnectReason::Lost(text)));
            }
            ffi::CM_ADDR_ERROR | ffi::CM_ROUTE_ERROR => {
                let error = no_way(system_error(event.status), peer);
                self.end(id, End::Setup(ConnectError::Io(error)));
            }
            ffi::CM_REJECTED => {
                let error = self.rejection(event);
                self.end(id, End::Setup(error));
            }
            ffi::CM_UNREACHABLE => self.time_is_up(id),
            ffi::CM_CONNECT_ERROR => {
                let error = ConnectError::Io(system_error(event.status));
                self.end(id, End::Setup(error));
            }
            ffi::CM_TIMEWAIT_EXIT => {}
            kind => tracing::debug!(kind, %peer, "event of the connection manager"),
        }
    }

    fn address_is_resolved(&mut self, id: u64) -> io::Result<()> {
        let device = self.chosen.device;
        let Some(connection) = self.connection_mut(id) else { return Ok(()) };
        let peer = connection.peer;
        if !device.is(connection.cm.context()) {
            let name = &self.chosen.info.name;
            let text = format!("{peer} is not reached over the RDMA device {name} but another");
            return Err(io::Error::new(io::ErrorKind::NetworkUnreachable, text));
        }
        self.make_queue_pair(id)?;
        let Some(connection) = self.connection_mut(id) else { return Ok(()) };
        connection.cm.resolve_route(limits::RESOLVE_TIMEOUT_MS)
    }

    /// Marks a connection as established. `outbound_reads` is the number that the peer has agreed
    /// to.
    pub(super) fn established(
        &mut self,
        id: u64,
        private_data: Vec<u8>,
        outbound_reads: Option<u8>,
    ) {
        let is_infiniband = self.chosen.is_infiniband();
        let is_siw = self.chosen.info.kind == DeviceKind::SoftIwarp;
        let Some(connection) = self.connection_mut(id) else { return };
        if !matches!(connection.stage, Stage::Connecting | Stage::Accepted) {
            return;
        }
        connection.stage = Stage::Open;
        if is_siw {
            connection.opening = match connection.is_initiator {
                true => Opening::new(true, true),
                false => Opening::of_listener(),
            };
            if let Some(timeout) = connection.opening.next_timer() {
                connection.deadline = Deadline::after(timeout);
            }
        }
        // iWARP drivers differ in the meaning of this number, and MPA negotiates it anyway.
        if let Some(reads) = outbound_reads.filter(|_| is_infiniband) {
            connection.outbound_reads = connection.outbound_reads.min(reads);
        }
        let data = if connection.is_initiator {
            private::decode(private_data, is_infiniband)
        } else {
            Vec::new()
        };
        let endpoint = EndpointId(id);
        self.events.push(Event::Established { endpoint, private_data: Box::new(data) });
    }

    /// Handles the timeout of a set-up or of a graceful end.
    pub(super) fn time_is_up(&mut self, id: u64) {
        let timeout = self.config.handshake_timeout;
        let Some(connection) = self.connection_mut(id) else { return };
        let end = match connection.stage {
            Stage::Open => End::Local,
            Stage::Connecting => End::Setup(ConnectError::TimedOut(timeout)),
            _ => End::Because(DisconnectReason::Lost("the set-up took too long".to_owned())),
        };
        self.end(id, end);
    }

    /// The reason for a rejection: the peer's program rejected with its data, or there is no
    /// listener.
    fn rejection(&self, event: CmEvent) -> ConnectError {
        let refused =
            |text: String| ConnectError::Io(io::Error::new(io::ErrorKind::ConnectionRefused, text));
        let nobody = || refused("nobody listens there".to_owned());
        if self.chosen.is_infiniband() {
            return match event.status {
                ffi::REJ_CONSUMER_DEFINED => {
                    ConnectError::Rejected(private::decode(event.private_data, true))
                }
                ffi::REJ_INVALID_SERVICE => nobody(),
                reason => refused(format!("the connection manager refused, reason {reason}")),
            };
        }
        let was_asked = event.status != -libc::ECONNREFUSED || !event.private_data.is_empty();
        if was_asked { ConnectError::Rejected(event.private_data) } else { nobody() }
    }
}

/// The identity of a peer: a connection of an RDMA device has no socket whose owner the kernel
/// could report.
pub(super) fn peer_info(peer: SocketAddr) -> PeerInfo {
    let is_local = crate::is_of_this_host(peer);
    PeerInfo { address: Some(peer), is_local, ..PeerInfo::default() }
}

/// The error for a status number of the connection manager, negative or not.
fn system_error(status: i32) -> io::Error {
    io::Error::from_raw_os_error(status.saturating_abs())
}

fn no_way(error: io::Error, to: SocketAddr) -> io::Error {
    let text = format!(
        "no RDMA device leads to {to}: {error}; the interface of that network needs one, see \
         `rdma link`"
    );
    io::Error::new(error.kind(), text)
}

fn listen_error(error: io::Error, address: SocketAddr) -> io::Error {
    let text = match error.raw_os_error() {
        Some(libc::EADDRINUSE) => format!(
            "{address} is in use by another RDMA listener, or by a TCP listener: a siw device \
             shares the ports of TCP with this machine, so that the iwarp provider and a siw \
             device need different ones"
        ),
        Some(libc::ENODEV | libc::EADDRNOTAVAIL) => format!(
            "no RDMA device has the address {}; `rdma link` lists the devices with their \
             interfaces",
            address.ip()
        ),
        _ => format!("cannot listen on {address} for RDMA: {error}"),
    };
    io::Error::new(error.kind(), text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_is_taken_is_explained() {
        let address = "10.0.2.15:20049".parse().unwrap();
        let text = |number| listen_error(io::Error::from_raw_os_error(number), address).to_string();
        assert!(text(libc::EADDRINUSE).contains("siw device shares the ports of TCP"));
        assert!(text(libc::ENODEV).contains("no RDMA device has the address 10.0.2.15"));
        assert!(text(libc::EACCES).contains("10.0.2.15:20049"));
    }
}
