//! Set-up and tear-down of connections.
//!
//! Initiator: connect the socket, check its owner, make the connection memory, send a hello with
//! the memory's descriptor, wait for the answer. Acceptor: accept the socket, check and map the
//! memory of the hello, report the request; `accept` answers, and the connection is open on both
//! sides. Accepted connections, unanswered requests and waiting times are all limited.

use super::ShmAdapter;
use super::conn::{Conn, Stage};
use super::layout::{self, Side};
use super::limits::{
    ACCEPT_PAUSE, ACCEPTS_PER_POLL, BACKLOG_RETRY, BACKLOG_TIMEOUT, CLOSE_TIMEOUT,
};
use super::packet::Packet;
use super::sys::{self, Mapping};
use crate::PRIVATE_DATA_BYTES_MAX;
use crate::connections::{Admitted, Origin};
use crate::descriptors::{Guarded, Watch};
use crate::error::{ConnectError, DisconnectReason};
use crate::time::Instant;
use crate::types::{
    Address, EndpointId, Event, ListenerId, PeerInfo, PrivateData, ProtectionDomain, RequestId,
};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Marks epoll tokens and deadlines of a request.
pub(super) const REQUEST: u64 = 1 << 63;

/// Marks epoll tokens of a listener.
pub(super) const LISTENER: u64 = 1 << 62;

const PROTOCOL: &str = "the dafs shared-memory protocol";

/// A listening socket.
pub(super) struct Listener {
    pub(super) socket: OwnedFd,
    /// The listener is not watched until then, because the process had no file descriptor left.
    pub(super) paused_until: Option<Instant>,
}

/// An incoming connection before `accept`.
pub(super) struct Request {
    listener: ListenerId,
    socket: Guarded<Arc<OwnedFd>>,
    admitted: Option<Arc<Admitted>>,
    peer: PeerInfo,
    /// The connection memory and the size of its rings, after a valid hello.
    memory: Option<(Arc<Mapping>, u32)>,
    deadline: Option<Instant>,
}

/// The last message to the peer.
pub(super) enum CloseNotice {
    /// None; the peer sees the socket close.
    None,
    /// A graceful close.
    Close,
    /// A report that the peer broke a rule.
    Terminate,
}

fn check_private_data(private_data: &[u8]) -> Result<(), ConnectError> {
    let (bytes, max) = (private_data.len(), PRIVATE_DATA_BYTES_MAX);
    if bytes > max { Err(ConnectError::PrivateData { bytes, max }) } else { Ok(()) }
}

fn peer_info(socket: &OwnedFd) -> PeerInfo {
    let process = sys::peer_process(socket.as_fd());
    let groups = sys::peer_groups(socket.as_fd());
    PeerInfo { process, groups, is_local: true, ..PeerInfo::default() }
}

/// The outcome of one attempt to reach a listener.
enum Dialled {
    Sent(Guarded<Arc<OwnedFd>>),
    Later,
}

/// Checks that a listener is trusted to be a server: any user may bind an abstract name.
fn check_owner(name: &str, socket: &OwnedFd, own_user: u32) -> io::Result<()> {
    let text = match sys::peer_process(socket.as_fd()) {
        Some(process) if process.uid == 0 || process.uid == own_user => return Ok(()),
        Some(process) => format!(
            "the socket @{name} is of user {}, who is not trusted: only root and user {own_user} are",
            process.uid
        ),
        None => format!("the socket @{name} is of an unknown user"),
    };
    Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
}

/// Connects and sends the hello. A listener of another user gets no data.
fn dial(
    name: &str,
    hello: &[u8],
    file: &OwnedFd,
    watch: &Watch,
    own_user: u32,
) -> io::Result<Dialled> {
    let socket = match sys::connect(name) {
        Ok(socket) => Guarded::new(Arc::new(socket), watch),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Dialled::Later),
        Err(error) => return Err(error),
    };
    check_owner(name, &socket, own_user)?;
    sys::send(socket.as_fd(), hello, Some(file.as_fd()))?;
    Ok(Dialled::Sent(socket))
}

/// Removes a socket from the epoll instance, unless the descriptor belongs to the program by now.
fn unwatch(instance: &Guarded<OwnedFd>, socket: &impl AsFd) -> io::Result<()> {
    instance.check()?;
    Ok(epoll::delete(instance, socket)?)
}

impl ShmAdapter {
    pub(super) fn watch(&self, socket: &OwnedFd, token: u64, flags: EventFlags) -> io::Result<()> {
        self.epoll.check()?;
        Ok(epoll::add(&self.epoll, socket, EventData::new_u64(token), flags)?)
    }

    /// Schedules a check of the deadlines in the next poll, which knows the time.
    fn add_timed(&mut self, token: u64) {
        self.timed.push(token);
        self.check_at = Some(Instant::default());
    }

    pub(super) fn watch_listener(&mut self, socket: OwnedFd) -> io::Result<ListenerId> {
        let id = self.listeners.len() as u32;
        self.watch(&socket, LISTENER | u64::from(id), EventFlags::IN | EventFlags::EXCLUSIVE)?;
        self.listeners.push(Listener { socket, paused_until: None });
        Ok(ListenerId(id))
    }

    /// Closes the listening sockets. A copy may stay open, so the kernel does not forget them by
    /// itself.
    pub(super) fn drop_listeners(&mut self) {
        for listener in self.listeners.drain(..).filter(|own| own.paused_until.is_none()) {
            if let Err(error) = unwatch(&self.epoll, &listener.socket) {
                tracing::warn!(%error, "cannot stop listening");
            }
        }
    }

    pub(super) fn start_connect(
        &mut self,
        domain: ProtectionDomain,
        address: &Address,
        private_data: &[u8],
    ) -> Result<EndpointId, ConnectError> {
        let Address::Shm(name) = address else { return Err(ConnectError::AddressKind) };
        check_private_data(private_data)?;
        if self.connection_count() >= self.config.connections_max {
            let text = format!(
                "this process has {} shared-memory connections, which is its limit",
                self.config.connections_max
            );
            return Err(io::Error::other(text).into());
        }
        let ring_bytes = self.config.ring_bytes;
        // INVARIANT: `new` has checked the ring size.
        let bytes = layout::connection_bytes(ring_bytes).expect("a checked ring size");
        let file = sys::memory_file("dafs-connection", bytes)?;
        let memory =
            Arc::new(Mapping::within(&sys::CONNECTION_MAPPINGS, file.as_fd(), bytes, true)?);
        let parts = layout::open(memory, ring_bytes, Side::Initiator);
        let hello = Packet::Hello { ring_bytes, private_data: private_data.to_vec() }.encode();
        let (stage, socket, peer) =
            match dial(name, &hello, &file, &self.descriptors, self.own_user)? {
                Dialled::Sent(socket) => {
                    let peer = peer_info(&socket);
                    (Stage::Waiting, Some(socket), peer)
                }
                Dialled::Later => {
                    (Stage::Dialing { name: name.clone(), hello, file }, None, PeerInfo::default())
                }
            };
        let conn = |name| Conn::new(EndpointId(name), domain, stage, socket, peer, parts);
        let name = self.conns.insert(conn);
        self.watch_conn(name)?;
        self.add_timed(name);
        Ok(EndpointId(name))
    }

    /// Adds the socket of a connection to epoll; a failure ends the connection.
    fn watch_conn(&mut self, name: u64) -> io::Result<()> {
        let Some(conn) = self.conns.get(name) else { return Ok(()) };
        let Some(socket) = &conn.socket else { return Ok(()) };
        self.watch(socket, name, EventFlags::IN | EventFlags::RDHUP).inspect_err(|_| {
            self.conns.remove(name);
        })
    }

    /// Accepts the incoming connections of a listener.
    pub(super) fn accept_incoming(&mut self, listener: u32, now: Instant) {
        for _ in 0..ACCEPTS_PER_POLL {
            let Some(own) = self.listeners.get(listener as usize) else { return };
            let socket = match sys::accept(own.socket.as_fd()) {
                Ok(socket) => socket,
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(Errno::AGAIN) => return,
                Err(error) => {
                    tracing::warn!(%error, "cannot take shared-memory connections for a moment");
                    if let Some(connections) = &self.connections {
                        connections.make_room();
                    }
                    self.pause_listener(listener, now);
                    return;
                }
            };
            let full = self.connection_count() >= self.config.connections_max
                || self.requests.len() >= self.config.pending_max;
            if full {
                let text = "the server has as many connections as it allows".to_owned();
                let _ = sys::send(socket.as_fd(), &Packet::Refuse { text }.encode(), None);
                continue;
            }
            let (peer, socket) = (peer_info(&socket), Arc::new(socket));
            let origin = Origin::of_peer(&peer);
            let admitted = self
                .connections
                .as_ref()
                .map(|connections| connections.admit(origin, Arc::downgrade(&socket) as _));
            let admitted = match admitted.transpose() {
                Ok(admitted) => admitted,
                Err(refusal) => {
                    tracing::warn!(%peer, "connection refused: {refusal}");
                    let refuse = Packet::Refuse { text: refusal.to_string() };
                    let _ = sys::send(socket.as_fd(), &refuse.encode(), None);
                    continue;
                }
            };
            let request = Request {
                listener: ListenerId(listener),
                // A listening adapter does not share its process with a foreign program, so no
                // watch is needed.
                socket: Guarded::new(socket, &Watch::default()),
                admitted,
                peer,
                memory: None,
                deadline: Some(now + self.config.handshake_timeout),
            };
            let name = self.requests.insert(|_| request);
            let flags = EventFlags::IN | EventFlags::RDHUP;
            let watched =
                self.requests.get(name).map(|r| self.watch(&r.socket, REQUEST | name, flags));
            if !matches!(watched, Some(Ok(()))) {
                self.requests.remove(name);
                return;
            }
            self.add_timed(REQUEST | name);
            // The peer sends the hello right after the connect, so it has usually arrived.
            self.request_ready(name);
        }
    }

    fn pause_listener(&mut self, listener: u32, now: Instant) {
        let until = now + ACCEPT_PAUSE;
        let paused = &mut self.listeners[listener as usize];
        if unwatch(&self.epoll, &paused.socket).is_ok() {
            paused.paused_until = Some(until);
            self.check_at = Some(self.check_at.map_or(until, |at| at.min(until)));
        }
    }

    /// Handles input on the socket of a request.
    pub(super) fn request_ready(&mut self, name: u64) {
        let Some(request) = self.requests.get_mut(name) else { return };
        let packet = match sys::receive(request.socket.as_fd()) {
            Err(Errno::AGAIN | Errno::INTR) => return,
            Ok(packet) if packet.len > 0 => packet,
            // The peer has left; `accept` will report it.
            Ok(_) | Err(_) => return self.drop_request(name),
        };
        // If several descriptors were sent, the peer is at fault for a lost one.
        let is_short = packet.descriptor_lost && packet.descriptor.is_none();
        let hello = match Packet::decode(&packet.bytes[..packet.len]) {
            _ if packet.truncated => Err("a hello that is too long"),
            Ok(Packet::Hello { .. }) if request.memory.is_some() => Err("a second hello"),
            Ok(Packet::Hello { ring_bytes, private_data }) => packet
                .descriptor
                .ok_or(if packet.descriptor_lost {
                    "the server has no file descriptor left"
                } else {
                    "a hello without its memory file"
                })
                .and_then(|file| open_memory(&file, ring_bytes))
                .map(|memory| (memory, ring_bytes, private_data)),
            Ok(_) => Err("something else than a hello"),
            Err(text) => Err(text),
        };
        match hello {
            Ok((memory, ring_bytes, private_data)) => {
                request.memory = Some((memory, ring_bytes));
                if let Some(admitted) = &request.admitted {
                    admitted.hear();
                }
                request.deadline = None;
                self.ready.push(Event::ConnectRequest {
                    listener: request.listener,
                    request: RequestId(name),
                    private_data: Box::new(private_data),
                    peer: Box::new(request.peer.clone()),
                });
            }
            Err(text) => {
                if is_short && let Some(connections) = &self.connections {
                    connections.make_room();
                }
                tracing::warn!(peer = %request.peer, "refused a shared-memory connection: {text}");
                let refuse = Packet::Refuse { text: text.to_owned() };
                let _ = sys::send(request.socket.as_fd(), &refuse.encode(), None);
                self.drop_request(name);
            }
        }
    }

    pub(super) fn drop_request(&mut self, name: u64) {
        if let Some(request) = self.requests.remove(name) {
            let _ = unwatch(&self.epoll, &request.socket);
        }
    }

    pub(super) fn accept_request(
        &mut self,
        request: RequestId,
        domain: ProtectionDomain,
        private_data: &[u8],
    ) -> Result<EndpointId, ConnectError> {
        check_private_data(private_data)?;
        let Request { socket, admitted, peer, memory, .. } =
            self.requests.remove(request.0).ok_or(ConnectError::Gone)?;
        let _ = unwatch(&self.epoll, &socket);
        let (memory, ring_bytes) = memory.ok_or(ConnectError::Gone)?;
        let answer = Packet::Accept { private_data: private_data.to_vec() }.encode();
        sys::send(socket.as_fd(), &answer, None).map_err(|_| ConnectError::Gone)?;
        let parts = layout::open(memory, ring_bytes, Side::Acceptor);
        let name = self.conns.insert(|name| {
            let id = EndpointId(name);
            let mut conn = Conn::new(id, domain, Stage::Open, Some(socket), peer, parts);
            conn._admitted = admitted;
            conn
        });
        self.watch_conn(name)?;
        self.established(name, PrivateData::new());
        Ok(EndpointId(name))
    }

    pub(super) fn admitted_request(&self, request: RequestId) -> Option<Arc<Admitted>> {
        self.requests.get(request.0)?.admitted.clone()
    }

    pub(super) fn reject_request(&mut self, request: RequestId, private_data: &[u8]) {
        if let Some(waiting) = self.requests.get(request.0) {
            let packet = Packet::Reject { private_data: private_data.to_vec() };
            let _ = sys::send(waiting.socket.as_fd(), &packet.encode(), None);
        }
        self.drop_request(request.0);
    }

    /// Marks a connection as open and reports it.
    fn established(&mut self, name: u64, private_data: PrivateData) {
        let Some(conn) = self.conns.get_mut(name) else { return };
        conn.stage = Stage::Open;
        conn.deadline = None;
        let domain = conn.domain;
        for region in self.shareable.values().filter(|region| region.domain == domain) {
            conn.share(region);
        }
        let endpoint = EndpointId(name);
        let private_data = Box::new(private_data);
        self.ready.push(Event::Established { endpoint, private_data });
        self.make_busy(name);
    }

    /// Handles the answer to a hello.
    pub(super) fn answer_ready(&mut self, name: u64) {
        let Some(socket) = self.conns.get(name).and_then(|conn| conn.socket.as_ref()) else {
            return;
        };
        let protocol =
            |detail: &str| ConnectError::Protocol { protocol: PROTOCOL, detail: detail.to_owned() };
        if !socket.is_ours() {
            return self.connect_failed(name, ConnectError::Gone);
        }
        let packet = match sys::receive(socket.as_fd()) {
            Err(Errno::AGAIN | Errno::INTR) => return,
            Ok(packet) if packet.len > 0 => packet,
            Ok(_) | Err(_) => return self.connect_failed(name, ConnectError::Gone),
        };
        match Packet::decode(&packet.bytes[..packet.len]) {
            Ok(Packet::Accept { private_data }) => self.established(name, private_data),
            Ok(Packet::Reject { private_data }) => {
                self.connect_failed(name, ConnectError::Rejected(private_data));
            }
            Ok(Packet::Refuse { text }) => {
                let error = io::Error::new(io::ErrorKind::ConnectionRefused, text);
                self.connect_failed(name, ConnectError::Io(error));
            }
            Ok(_) => self.connect_failed(name, protocol("an answer out of turn")),
            Err(text) => self.connect_failed(name, protocol(text)),
        }
    }

    pub(super) fn connect_failed(&mut self, name: u64, error: ConnectError) {
        let Some(mut conn) = self.conns.remove(name) else { return };
        if let Some(socket) = conn.socket.as_ref().filter(|socket| socket.is_ours()) {
            let _ = unwatch(&self.epoll, socket);
        }
        conn.flush(&mut self.ready);
        self.ready.push(Event::ConnectFailed { endpoint: conn.id, error: Box::new(error) });
    }

    /// Handles expired deadlines, and records the time of the next check.
    pub(super) fn check_timers(&mut self, now: Instant) {
        let mut next: Option<Instant> = None;
        let mut remember = |at: Instant| next = Some(next.map_or(at, |next| next.min(at)));
        let mut index = 0;
        while let Some(&token) = self.timed.get(index) {
            match self.check_timer(token, now) {
                Some(at) => {
                    remember(at);
                    index += 1;
                }
                None => {
                    self.timed.swap_remove(index);
                }
            }
        }
        for index in 0..self.listeners.len() {
            let Some(until) = self.listeners[index].paused_until else { continue };
            let token = LISTENER | index as u64;
            let flags = EventFlags::IN | EventFlags::EXCLUSIVE;
            if now < until {
                remember(until);
            } else if self.watch(&self.listeners[index].socket, token, flags).is_ok() {
                self.listeners[index].paused_until = None;
            } else {
                remember(now + ACCEPT_PAUSE);
            }
        }
        self.check_at = next;
    }

    /// Returns the time of the next check of this entry; `None` when it needs no more.
    fn check_timer(&mut self, token: u64, now: Instant) -> Option<Instant> {
        if token & REQUEST != 0 {
            let deadline = self.requests.get(token & !REQUEST)?.deadline?;
            if now < deadline {
                return Some(deadline);
            }
            self.drop_request(token & !REQUEST);
            return None;
        }
        let timeout = self.config.handshake_timeout;
        let conn = self.conns.get_mut(token)?;
        let closing = matches!(conn.stage, Stage::Closing);
        if matches!(conn.stage, Stage::Open) {
            return None;
        }
        let span = match conn.stage {
            Stage::Closing => CLOSE_TIMEOUT,
            Stage::Dialing { .. } => timeout.min(BACKLOG_TIMEOUT),
            _ => timeout,
        };
        let deadline = *conn.deadline.get_or_insert(now + span);
        if now >= deadline {
            if closing {
                self.finish(token, DisconnectReason::Local, CloseNotice::Close);
            } else {
                self.connect_failed(token, ConnectError::TimedOut(span));
            }
            return None;
        }
        let Stage::Dialing { name, hello, file } = &conn.stage else { return Some(deadline) };
        match dial(name, hello, file, &self.descriptors, self.own_user) {
            Ok(Dialled::Later) => Some(deadline.min(now + BACKLOG_RETRY)),
            Ok(Dialled::Sent(socket)) => {
                conn.peer = peer_info(&socket);
                conn.socket = Some(socket);
                conn.stage = Stage::Waiting;
                let deadline = now + timeout;
                conn.deadline = Some(deadline);
                match self.watch_conn(token) {
                    Ok(()) => Some(deadline),
                    Err(error) => {
                        self.connect_failed(token, error.into());
                        None
                    }
                }
            }
            Err(error) => {
                self.connect_failed(token, error.into());
                None
            }
        }
    }

    /// Starts a graceful end of a connection.
    pub(super) fn start_close(&mut self, endpoint: EndpointId) {
        let Some(conn) = self.conns.get_mut(endpoint.0) else { return };
        match conn.stage {
            Stage::Closing => {}
            Stage::Dialing { .. } | Stage::Waiting => {
                self.finish(endpoint.0, DisconnectReason::Local, CloseNotice::None);
            }
            Stage::Open => {
                conn.deadline = None;
                conn.close(&mut self.ready);
                self.make_busy(endpoint.0);
                self.add_timed(endpoint.0);
            }
        }
    }

    /// Ends a connection: flushes its work, informs the peer, reports the end.
    pub(super) fn finish(&mut self, name: u64, reason: DisconnectReason, notice: CloseNotice) {
        let Some(mut conn) = self.conns.remove(name) else { return };
        if let Some(socket) = conn.socket.as_ref().filter(|socket| socket.is_ours()) {
            let packet = match notice {
                CloseNotice::None => None,
                CloseNotice::Close => Some(Packet::Close),
                CloseNotice::Terminate => {
                    tracing::warn!(peer = %conn.peer, "shared-memory connection ended: {reason}");
                    Some(Packet::Terminate { text: reason.to_string() })
                }
            };
            if let Some(packet) = packet {
                // If the socket is full, the peer learns of the end when the socket closes.
                let _ = sys::send(socket.as_fd(), &packet.encode(), None);
            }
            let _ = unwatch(&self.epoll, socket);
        }
        conn.flush(&mut self.ready);
        let reason = Box::new(reason);
        self.ready.push(Event::Disconnected { endpoint: conn.id, reason });
    }
}

/// Checks and maps the connection memory of a peer.
fn open_memory(file: &OwnedFd, ring_bytes: u32) -> Result<Arc<Mapping>, &'static str> {
    let bytes =
        layout::connection_bytes(ring_bytes).ok_or("rings of a size that is not allowed")?;
    sys::check_memory_file(file.as_fd(), bytes)?;
    let mapping = Mapping::within(&sys::CONNECTION_MAPPINGS, file.as_fd(), bytes, true)
        .map_err(|_| "connection memory that cannot be mapped")?;
    Ok(Arc::new(mapping))
}

#[cfg(test)]
mod tests {
    use super::super::ShmConfig;
    use super::super::sys::tests::as_another_user;
    use super::*;
    use crate::Adapter;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixDatagram;
    use std::time::Duration;

    /// A listener of another user, and its address; `None` where the test cannot change the user.
    fn of_another_user(backlog: i32) -> Option<(OwnedFd, Address)> {
        if !rustix::process::geteuid().is_root() {
            println!("SKIPPED: only root can become another user");
            return None;
        }
        let listener = as_another_user(|| sys::listener("", backlog)).unwrap();
        let address = Address::Shm(sys::name_of(listener.as_fd()).unwrap());
        Some((listener, address))
    }

    #[test]
    fn a_listener_of_another_user_is_told_nothing() {
        let Some((listener, address)) = of_another_user(8) else { return };
        let mut adapter = ShmAdapter::new(ShmConfig::default()).unwrap();
        let domain = adapter.protection_domain();
        let error = adapter.connect(domain, &address, b"private").unwrap_err().to_string();
        assert!(error.contains("is of user 1234"), "{error}");
        let packet = sys::receive(sys::accept(listener.as_fd()).unwrap().as_fd()).unwrap();
        assert_eq!((packet.len, packet.descriptor.is_none()), (0, true), "it was closed");
        // Other processes can query the listener too.
        let Address::Shm(name) = address else { panic!() };
        assert_eq!(super::super::holder(&name).map(|process| process.uid), Some(1234));
        assert_eq!(super::super::holder("dafs-of-nobody"), None);
    }

    #[test]
    fn a_listener_with_a_full_queue_is_not_waited_for_long() {
        let Some((listener, address)) = of_another_user(0) else { return };
        let Address::Shm(name) = &address else { panic!() };
        let waiting: Vec<_> = std::iter::from_fn(|| sys::connect(name).ok()).collect();
        let mut adapter = ShmAdapter::new(ShmConfig::default()).unwrap();
        let domain = adapter.protection_domain();
        let endpoint = adapter.connect(domain, &address, b"").unwrap();
        let (start, mut events) = (Instant::now(), Vec::new());
        adapter.poll(start, &mut events);
        adapter.poll(start + (BACKLOG_TIMEOUT - Duration::from_millis(1)), &mut events);
        assert!(events.is_empty(), "{events:?}");
        adapter.poll(start + BACKLOG_TIMEOUT, &mut events);
        let [Event::ConnectFailed { endpoint: failed, .. }] = events.as_slice() else {
            panic!("{events:?}")
        };
        assert_eq!(*failed, endpoint);
        // When the queue has room at last, the adapter checks the owner.
        let endpoint = adapter.connect(domain, &address, b"").unwrap();
        events.clear();
        adapter.poll(start, &mut events);
        drop(sys::accept(listener.as_fd()).unwrap());
        adapter.poll(start + BACKLOG_RETRY, &mut events);
        let [Event::ConnectFailed { endpoint: failed, error }] = events.as_slice() else {
            panic!("{events:?}")
        };
        assert_eq!(*failed, endpoint);
        assert!(error.to_string().contains("is of user 1234"), "{error}");
        drop(waiting);
    }

    #[test]
    fn a_socket_stays_in_the_epoll_instance_of_the_program() {
        let create = || epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let (ours, of_program, socket) = (create(), create(), UnixDatagram::unbound().unwrap());
        let add = |to: &OwnedFd| {
            epoll::add(to, &socket, EventData::new_u64(1), EventFlags::IN).map_err(io::Error::from)
        };
        let ours = Guarded::new(ours, &Watch::new());
        add(&ours).unwrap();
        unwatch(&ours, &socket).unwrap();
        add(&of_program).unwrap();
        // SAFETY: takes no memory; the number is that of a descriptor of this test.
        unsafe { libc::dup2(of_program.as_raw_fd(), ours.as_raw_fd()) };
        unwatch(&ours, &socket).unwrap_err();
        assert_eq!(add(&of_program).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    }
}
