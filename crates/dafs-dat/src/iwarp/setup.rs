//! The set-up of connections.
//!
//! Invariants
//! * Set-up frames are read exactly, so bytes after them belong to FPDUs.
//! * A partial set-up ends by its timer. Their number is bounded; further connections are closed at
//!   once.

use super::adapter::{Entry, IwarpAdapter, Stream};
use super::connection::{Connection, Stage};
use super::handshake::{self, Agreed, Offer};
use super::limits;
use super::records::Records;
use super::secure::Guard;
use super::sys;
use super::teardown::End;
use crate::connections::{Admitted, Origin, Refusal};
use crate::descriptors::{Guarded, Watch, kept};
use crate::tls::{ShakeError, Shaking};
use crate::{
    Address, ConnectError, EndpointId, Event, ListenerId, PeerInfo, ProtectionDomain, RequestId,
};
use dafs_tls::Alert;
use dafs_wire::iwarp::mpa::{Decoded, Frame, FrameKind};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

/// A peer's connection before `accept`.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) stream: Stream,
    pub(super) admitted: Option<Arc<Admitted>>,
    /// The reason to reject it once its request has arrived.
    refusal: Option<Refusal>,
    pub(super) peer: PeerInfo,
    listener: ListenerId,
    pub(super) guard: Guard,
    bytes: Vec<u8>,
    /// The request, once it has arrived and was reported to the consumer.
    offer: Option<Offer>,
}

impl Request {
    /// True if the peer has sent only a part of it.
    pub(super) fn is_partial(&self) -> bool {
        self.offer.is_none()
    }
}

/// A listening socket.
#[derive(Debug)]
pub(super) struct Listener {
    pub(super) socket: TcpListener,
    /// True while it pauses because there are no file descriptors.
    pub(super) resting: bool,
}

/// The result of reading a set-up frame.
enum FrameRead<T> {
    Done(T),
    Partial,
}

/// Reads the rest of a set-up frame and no byte more; validates a complete frame.
fn read_frame<T, E: From<io::Error> + From<dafs_wire::iwarp::mpa::MpaError>>(
    (mut stream, mut records): (&TcpStream, Option<&mut Records>),
    bytes: &mut Vec<u8>,
    kind: FrameKind,
    validate: impl FnOnce(&Frame<'_>) -> Result<T, E>,
) -> Result<FrameRead<T>, E> {
    loop {
        let need = match Frame::decode(kind, bytes)? {
            // A record ends with the frame, because FPDUs have records of their own.
            Decoded::Frame(_, used) if used < bytes.len() => {
                let text = "data follows the set-up frame in one record of TLS";
                return Err(io::Error::new(io::ErrorKind::InvalidData, text).into());
            }
            Decoded::Frame(frame, _) => return validate(&frame).map(FrameRead::Done),
            Decoded::Need(need) => need,
        };
        let result = match records.as_deref_mut() {
            Some(records) => records.read_setup(stream, bytes),
            None => {
                let have = bytes.len();
                bytes.resize(need, 0);
                let result = stream.read(&mut bytes[have..]);
                bytes.truncate(have + *result.as_ref().unwrap_or(&0));
                result
            }
        };
        match result {
            Ok(0) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Ok(FrameRead::Partial);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
}

impl IwarpAdapter {
    /// Adds a listening socket that is bound already. Several adapters, each with its own clone of
    /// one socket, share its connections; the kernel wakes one of them for each.
    ///
    /// # Errors
    /// The error of the socket calls.
    pub fn add_listener(&mut self, socket: TcpListener) -> io::Result<ListenerId> {
        socket.set_nonblocking(true)?;
        let index = self.listeners.len();
        self.core.epoll.add(
            &socket,
            sys::READABLE | sys::EXCLUSIVE,
            super::poller::listener_token(index),
        )?;
        self.listeners.push(Listener { socket, resting: false });
        Ok(ListenerId(index as u32))
    }

    pub(super) fn bind(&mut self, address: SocketAddr) -> io::Result<ListenerId> {
        let domain = socket2::Domain::for_address(address);
        let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        socket.listen(limits::LISTEN_BACKLOG)?;
        self.add_listener(socket.into())
    }

    pub(super) fn start_connect(
        &mut self,
        domain: ProtectionDomain,
        address: &Address,
        private_data: &[u8],
    ) -> Result<EndpointId, ConnectError> {
        let Address::Tcp(address) = address else { return Err(ConnectError::AddressKind) };
        handshake::check_private_data(private_data)?;
        if self.slots.count() >= self.core.config.connection_count_max {
            let text = format!("{} connections are open, which is the limit", self.slots.count());
            return Err(ConnectError::Io(io::Error::new(io::ErrorKind::QuotaExceeded, text)));
        }
        let family = socket2::Domain::for_address(*address);
        let socket = socket2::Socket::new(family, socket2::Type::STREAM, None)?;
        let socket = socket2::Socket::from(kept(socket.into())?);
        sys::prepare(socket2::SockRef::from(&socket))?;
        match socket.connect(&(*address).into()) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        let config = self.core.config_of(self.core.config.tls.is_some());
        let stage = Stage::Connecting { request: handshake::request(config, private_data) };
        let stream = Guarded::new(Arc::new(TcpStream::from(socket)), &self.core.watch);
        let is_local = crate::is_local(*address);
        let peer = PeerInfo { address: Some(*address), is_local, ..PeerInfo::default() };
        let id = self.insert_connection(stream, peer, domain, true, stage)?;
        let added = match self.slots.get(id) {
            Some(Entry::Connection(connection)) => {
                let events = sys::READABLE | sys::WRITABLE;
                self.core.epoll.add(&*connection.stream, events, id)
            }
            _ => Ok(()),
        };
        if let Err(error) = added {
            self.slots.remove(id);
            return Err(error.into());
        }
        self.start_timer(id, self.core.config.handshake_timeout);
        Ok(EndpointId(id))
    }

    fn insert_connection(
        &mut self,
        stream: Stream,
        peer: PeerInfo,
        domain: ProtectionDomain,
        initiator: bool,
        stage: Stage,
    ) -> Result<u64, ConnectError> {
        self.core.keys.refill(1)?;
        let first_sink_stag = self.core.keys.take().unwrap_or(1);
        let make = |id| {
            Entry::Connection(Box::new(Connection::new(
                id,
                stream,
                peer,
                domain,
                initiator,
                stage,
                first_sink_stag,
            )))
        };
        self.slots.insert(make).ok_or(ConnectError::Gone)
    }

    /// Closes the listening sockets. A copy may stay open, so the kernel does not forget them by
    /// itself.
    pub(super) fn drop_listeners(&mut self) {
        for listener in self.listeners.drain(..).filter(|listener| !listener.resting) {
            if let Err(error) = self.core.epoll.remove(&listener.socket) {
                tracing::warn!("cannot stop listening: {error}");
            }
        }
    }

    /// Takes new connections from a listener.
    pub(super) fn accept_ready(&mut self, index: usize) {
        for _ in 0..limits::ACCEPT_COUNT_PER_TURN {
            let Some(listener) = self.listeners.get(index) else { return };
            match listener.socket.accept() {
                Ok((stream, peer)) => {
                    // The connection may have taken the last file descriptor.
                    if let Err(error) = self.admit(ListenerId(index as u32), stream, peer) {
                        return self.make_room(index, &error);
                    }
                }
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN) => return,
                    Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM) => {
                        return self.make_room(index, &error);
                    }
                    // The connection ended in the queue; the next may be alive.
                    _ => {}
                },
            }
        }
    }

    /// Handles a lack of file descriptors: evicts a connection that is not established, and pauses
    /// the listener.
    fn make_room(&mut self, index: usize, error: &io::Error) {
        tracing::warn!("cannot accept connections for the moment: {error}");
        if let Some(connections) = &self.connections {
            connections.make_room();
        }
        self.rest_listener(index);
    }

    /// Pauses a listener that cannot accept; otherwise it would stay ready and spin.
    fn rest_listener(&mut self, index: usize) {
        let listener = &mut self.listeners[index];
        if self.core.epoll.remove(&listener.socket).is_ok() {
            listener.resting = true;
            let token = super::poller::listener_token(index);
            self.start_timer(token, Duration::from_millis(limits::LISTENER_REST_MS));
        }
    }

    pub(super) fn wake_listener(&mut self, index: usize) {
        let Some(listener) = self.listeners.get_mut(index) else { return };
        if listener.resting {
            listener.resting = false;
            let token = super::poller::listener_token(index);
            let events = sys::READABLE | sys::EXCLUSIVE;
            if let Err(error) = self.core.epoll.add(&listener.socket, events, token) {
                tracing::error!("cannot listen any more: {error}");
            }
        }
    }

    /// Begins to set up an accepted connection, or refuses it.
    ///
    /// # Errors
    /// When there are no descriptors or memory to find the user of the connection.
    fn admit(
        &mut self,
        listener: ListenerId,
        stream: TcpStream,
        peer: SocketAddr,
    ) -> io::Result<()> {
        let config = &self.core.config;
        if self.slots.count() >= config.connection_count_max
            || self.request_count >= config.handshake_count_max
        {
            let connections = self.slots.count();
            tracing::warn!(%peer, connections, "connection refused: the limit is reached");
            return Ok(());
        }
        if sys::prepare(socket2::SockRef::from(&stream)).is_err() {
            return Ok(());
        }
        // Ask now: the peer has had no time to exit and leave its port to another process.
        let info = crate::tcp_peer(&stream, peer).inspect_err(|_| {
            tracing::warn!(%peer, "connection refused: it is not known whose it is");
        })?;
        let stream = Arc::new(stream);
        let (mut admitted, mut refusal) = (None, None);
        if let Some(connections) = &self.connections {
            match connections.admit(Origin::of_peer(&info), Arc::downgrade(&stream) as _) {
                Ok(place) => admitted = Some(place),
                Err(error) => {
                    tracing::warn!(%peer, "connection refused: {error}");
                    if self.turned_away_count >= limits::TURNED_AWAY_COUNT_MAX {
                        return Ok(());
                    }
                    self.turned_away_count += 1;
                    refusal = Some(error);
                }
            }
        }
        // A listening adapter does not share its process with a foreign program, so no watch is
        // needed.
        let stream = Guarded::new(stream, &Watch::default());
        let guard = if self.tls.is_some() { Guard::Unknown } else { Guard::Clear };
        let (peer, bytes, offer) = (info, Vec::new(), None);
        let request = Request { stream, admitted, refusal, peer, listener, guard, bytes, offer };
        let Some(id) = self.slots.insert(|_| Entry::Request(Box::new(request))) else {
            return Ok(());
        };
        self.request_count += 1;
        let added = match self.slots.get(id) {
            Some(Entry::Request(request)) => {
                self.core.epoll.add(&*request.stream, sys::READABLE, id)
            }
            _ => Ok(()),
        };
        if added.is_err() {
            self.drop_request(id);
            return Ok(());
        }
        self.start_timer(id, self.core.config.handshake_timeout);
        // The request has often arrived already.
        self.confine(id, |adapter| adapter.request_ready(id));
        Ok(())
    }

    pub(super) fn drop_request(&mut self, id: u64) {
        if let Some(Entry::Request(request)) = self.slots.remove(id) {
            self.forget_request(&request);
        }
    }

    fn forget_request(&mut self, request: &Request) {
        self.request_count -= 1;
        self.turned_away_count -= usize::from(request.refusal.is_some());
    }

    /// Handles input, or the end, of a peer's set-up.
    pub(super) fn request_ready(&mut self, id: u64) {
        let Some(Entry::Request(request)) = self.slots.get_mut(id) else { return };
        if request.offer.is_some() {
            // Until the consumer decides, only the end of the connection is watched.
            return self.drop_request(id);
        }
        #[cfg(test)]
        crate::confine::fault::strike();
        match self.secure_request(id) {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => return self.refuse_handshake(id, &error),
        }
        let Some(Entry::Request(request)) = self.slots.get_mut(id) else { return };
        let Request { stream, guard, bytes, peer, .. } = &mut **request;
        let validate =
            |frame: &Frame<'_>| handshake::validate_request(frame).map_err(handshake::protocol);
        match read_frame((stream, guard.records()), bytes, FrameKind::Request, validate) {
            Ok(FrameRead::Partial) => {}
            Ok(FrameRead::Done(offer)) => self.request_complete(id, offer),
            Err(error) => {
                if bytes.is_empty() || FrameKind::Request.is_begun_by(bytes) {
                    tracing::info!(%peer, "connection refused: {error}");
                } else if peer
                    .address
                    .is_some_and(|address| self.complaints.may_complain(address.ip(), self.now))
                {
                    let port = stream.local_addr().map_or(0, |address| address.port());
                    tracing::warn!(
                        "a plain TCP client (not iWARP) connected to port {port} from {peer} and \
                         was refused: {}",
                        super::plain_tcp::guess(bytes)
                    );
                }
                self.drop_request(id);
            }
        }
    }

    fn request_complete(&mut self, id: u64, offer: Offer) {
        let Some(Entry::Request(request)) = self.slots.get_mut(id) else { return };
        if self.core.epoll.change(&*request.stream, sys::PEER_CLOSED, id).is_err() {
            return self.drop_request(id);
        }
        if let Some(admitted) = &request.admitted {
            admitted.hear();
        }
        if let Some(refusal) = request.refusal {
            request.offer = Some(offer);
            return self.start_reject(RequestId(id), refusal.to_string().as_bytes());
        }
        let event = Event::ConnectRequest {
            listener: request.listener,
            request: RequestId(id),
            private_data: Box::new(offer.private_data.clone()),
            peer: Box::new(request.peer.clone()),
        };
        request.bytes = Vec::new();
        request.offer = Some(offer);
        self.core.events.push(event);
    }

    fn take_request(&mut self, id: u64) -> Result<(Request, Offer), ConnectError> {
        match self.slots.get_mut(id) {
            Some(Entry::Request(request)) if request.offer.is_some() => {}
            _ => return Err(ConnectError::Gone),
        }
        let Some(Entry::Request(mut request)) = self.slots.remove(id) else {
            return Err(ConnectError::Gone);
        };
        self.forget_request(&request);
        let offer = request.offer.take().ok_or(ConnectError::Gone)?;
        // The socket leaves the epoll set and joins again under its next identifier.
        self.core.epoll.remove(&*request.stream)?;
        Ok((*request, offer))
    }

    pub(super) fn start_accept(
        &mut self,
        request: RequestId,
        domain: ProtectionDomain,
        private_data: &[u8],
    ) -> Result<EndpointId, ConnectError> {
        handshake::check_private_data(private_data)?;
        let (request, offer) = self.take_request(request.0)?;
        let Request { stream, admitted, peer, guard, .. } = request;
        let mut records = guard.into_records();
        let config = self.core.config_of(records.is_some());
        let (mut frame, agreed) = handshake::reply(config, &offer, private_data, false);
        if let Some(records) = &mut records {
            frame = records.seal_short(&frame).map_err(io::Error::other)?;
        }
        let stage = Stage::Sending { frame, sent: 0 };
        let id = self.insert_connection(stream, peer, domain, false, stage)?;
        let Some(Entry::Connection(connection)) = self.slots.get_mut(id) else {
            return Err(ConnectError::Gone);
        };
        connection.admitted = admitted;
        connection.tls = records;
        connection.agree(&self.core, &agreed);
        let events = sys::READABLE | sys::WRITABLE;
        if let Err(error) = self.core.epoll.add(&*connection.stream, events, id) {
            self.slots.remove(id);
            return Err(error.into());
        }
        self.start_timer(id, self.core.config.handshake_timeout);
        self.watch_client(id);
        self.setup_ready(id);
        Ok(EndpointId(id))
    }

    pub(super) fn start_reject(&mut self, request: RequestId, private_data: &[u8]) {
        let data = &private_data[..private_data.len().min(crate::PRIVATE_DATA_BYTES_MAX)];
        let Ok((mut request, offer)) = self.take_request(request.0) else { return };
        let mut records = request.guard.records();
        let config = self.core.config_of(records.is_some());
        let (mut frame, _) = handshake::reply(config, &offer, data, true);
        if let Some(records) = &mut records {
            let Ok(sealed) = records.seal_short(&frame) else { return };
            frame = sealed;
            frame.extend(records.close(Alert::CLOSE_NOTIFY).into_iter().flatten());
        }
        // A new socket has room for a frame. The socket is closed at once, so that none stays
        // uncounted. A correct peer has sent no unread data, which would cause a reset.
        let _ = (&**request.stream).write_all(&frame);
    }

    /// Continues the set-up of a connection; ends the connection if that fails.
    pub(super) fn setup_ready(&mut self, id: u64) {
        loop {
            match self.setup_step(id) {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => return self.end(id, End::Setup(error)),
            }
        }
    }

    /// Runs one step; returns `true` if another can follow at once.
    fn setup_step(&mut self, id: u64) -> Result<bool, ConnectError> {
        let Some(Entry::Connection(connection)) = self.slots.get_mut(id) else { return Ok(false) };
        connection.stream.check()?;
        match &mut connection.stage {
            Stage::Open => Ok(false),
            Stage::Connecting { request } => {
                if let Some(error) = connection.stream.take_error()? {
                    return Err(error.into());
                }
                match connection.stream.peer_addr() {
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::NotConnected => return Ok(false),
                    Err(error) => return Err(error.into()),
                }
                let request = std::mem::take(request);
                connection.stage = match &self.core.config.tls {
                    None => Stage::Sending { frame: request, sent: 0 },
                    Some(tls) => {
                        let handshake = tls.begin().map_err(ShakeError::from)?;
                        let shaking = Box::new(Shaking::new(handshake, None, 0));
                        Stage::Securing { shaking, request }
                    }
                };
                Ok(true)
            }
            Stage::Securing { .. } => self.secure_connection(id),
            Stage::Sending { frame, sent } => match (&**connection.stream).write(&frame[*sent..]) {
                Ok(written) => {
                    *sent += written;
                    if *sent < frame.len() {
                        return Ok(true);
                    }
                    self.core.epoll.change(&*connection.stream, sys::READABLE, id)?;
                    if connection.initiator {
                        connection.stage = Stage::AwaitingReply { reply: Vec::new() };
                    } else {
                        self.open(id, None, Vec::new());
                    }
                    Ok(true)
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(true),
                Err(error) => Err(error.into()),
            },
            Stage::AwaitingReply { reply } => {
                let records = connection.tls.as_deref_mut();
                let config = self.core.config_of(records.is_some());
                let validate = |frame: &Frame<'_>| handshake::validate_reply(config, frame);
                let source = (&**connection.stream, records);
                match read_frame(source, reply, FrameKind::Reply, validate)? {
                    FrameRead::Partial => Ok(false),
                    FrameRead::Done((agreed, private_data)) => {
                        self.open(id, Some(&agreed), private_data);
                        Ok(false)
                    }
                }
            }
        }
    }

    fn open(&mut self, id: u64, agreed: Option<&Agreed>, private_data: Vec<u8>) {
        let Some(Entry::Connection(connection)) = self.slots.get_mut(id) else { return };
        if let Some(agreed) = agreed {
            connection.agree(&self.core, agreed);
        }
        connection.stage = Stage::Open;
        let first_timer = connection.opening.next_timer();
        let private_data = Box::new(private_data);
        self.core.events.push(Event::Established { endpoint: EndpointId(id), private_data });
        self.note_active(id);
        if let Some(after) = first_timer {
            self.start_timer(id, after);
        }
    }
}
