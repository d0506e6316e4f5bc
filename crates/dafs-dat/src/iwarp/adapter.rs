//! The implementation of the [`Adapter`](crate::Adapter) trait; each function is a few lines over
//! the modules beside it.

use super::config::IwarpConfig;
use super::connection::Connection;
use super::core::Core;
use super::limits;
use super::opening::Opening;
use super::plain_tcp::Complaints;
use super::receive::PostedReceive;
use super::secure::Serving;
use super::setup::{Listener, Request};
use super::slots::Slots;
use super::teardown::{End, Lingering};
use super::transmit::{Kind, Piece};
use crate::connections::{Admitted, Connections};
use crate::descriptors::Guarded;
use crate::types::total_len;
use crate::{
    Access, Adapter, Address, ConnectError, EndpointId, Event, Instant, ListenerId, LocalSegment,
    MemoryRegion, PeerInfo, PostError, ProtectionDomain, RegionId, RegisterError, RemoteBuffer,
    RequestId, Transfer,
};
use dafs_mem::Buffer;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::net::TcpStream;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

/// The socket of a connection. The connection limits may have to shut it down.
pub(super) type Stream = Guarded<Arc<TcpStream>>;

/// A socket of the adapter.
#[derive(Debug)]
pub(super) enum Entry {
    /// The set-up of a peer's connection before `accept`.
    Request(Box<Request>),
    /// A connection from `connect` or `accept` on.
    Connection(Box<Connection>),
    /// The connection has ended and was reported; the socket waits for the peer to close, and for
    /// room for the last bytes.
    Lingering(Lingering),
}

/// iWARP over TCP in user space, for one thread.
pub struct IwarpAdapter {
    pub(super) core: Core,
    pub(super) slots: Slots<Entry>,
    pub(super) listeners: Vec<Listener>,
    pub(super) timers: BinaryHeap<Reverse<(Instant, u64)>>,
    /// Timers that start with the next poll.
    pub(super) unstamped: Vec<(u64, Duration)>,
    pub(super) now: Instant,
    /// Connections that the adapter reads directly, without an epoll call before.
    pub(super) active: Vec<u64>,
    pub(super) polls_since_kernel: u32,
    /// True if the caller may have slept since the last epoll call.
    pub(super) slept: bool,
    /// Set-ups of peers' connections before `accept`.
    pub(super) request_count: usize,
    /// Those of them that will be rejected once their request has arrived.
    pub(super) turned_away_count: usize,
    /// The limits for connections that peers begin.
    pub(super) connections: Option<Arc<Connections>>,
    pub(super) complaints: Complaints,
    /// TLS for the connections of peers.
    pub(super) tls: Option<Serving>,
    pub(super) dirty_scratch: Vec<u64>,
    next_domain: u32,
}

impl IwarpAdapter {
    /// An adapter without connections.
    ///
    /// # Errors
    /// A setting outside its limits, or no file descriptor for epoll.
    pub fn new(config: IwarpConfig) -> io::Result<Self> {
        config.check()?;
        Ok(Self {
            core: Core::new(config)?,
            slots: Slots::new(),
            listeners: Vec::new(),
            timers: BinaryHeap::new(),
            unstamped: Vec::new(),
            now: Instant::default(),
            active: Vec::new(),
            polls_since_kernel: 0,
            slept: false,
            request_count: 0,
            turned_away_count: 0,
            connections: None,
            complaints: Complaints::default(),
            tls: None,
            dirty_scratch: Vec::new(),
            next_domain: 0,
        })
    }

    /// Counts and limits the connections that peers begin, from their acceptance.
    pub fn count_in(&mut self, connections: Arc<Connections>) {
        self.connections = Some(connections);
    }

    /// Sockets in use: connections, set-ups, and those that wait for their peer to close.
    pub fn socket_count(&self) -> usize {
        self.slots.count()
    }

    /// The connection, if it accepts posted work.
    fn open_connection(&mut self, endpoint: EndpointId) -> Result<usable::Usable<'_>, PostError> {
        match self.slots.get_mut(endpoint.0) {
            Some(Entry::Connection(connection)) if !connection.closing => {
                Ok(usable::Usable { connection, core: &mut self.core })
            }
            _ => Err(PostError::NotConnected),
        }
    }
}

mod usable {
    //! Posting work to a connection that is not closing.

    use super::*;

    pub(super) struct Usable<'a> {
        pub(super) connection: &'a mut Connection,
        pub(super) core: &'a mut Core,
    }

    impl Usable<'_> {
        /// Checks all segments and queues the work; queues none of it on an error.
        pub(super) fn post(
            self,
            work: u64,
            kind: Kind,
            segments: &[LocalSegment],
            need: Access,
        ) -> Result<(), PostError> {
            let Usable { connection, core } = self;
            if !connection.is_open() {
                return Err(PostError::NotConnected);
            }
            if connection.tx.work_count() >= limits::WORK_COUNT_MAX {
                return Err(PostError::QueueFull);
            }
            let len = total_len(segments)?;
            for segment in segments {
                core.regions.local(connection.domain, *segment, need)?;
            }
            let regions = &core.regions;
            // INVARIANT: every segment was just found in the table.
            let pieces = segments.iter().filter_map(|segment| {
                let buffer = regions.buffer(segment.region)?.clone();
                Some(Piece { buffer, offset: segment.offset, len: segment.len })
            });
            connection.tx.post(work, kind, len, pieces);
            connection.mark_dirty(core);
            Ok(())
        }
    }
}

impl Adapter for IwarpAdapter {
    fn name(&self) -> &'static str {
        "iwarp"
    }

    fn protection_domain(&mut self) -> ProtectionDomain {
        self.next_domain += 1;
        ProtectionDomain(self.next_domain)
    }

    fn register(
        &mut self,
        domain: ProtectionDomain,
        buffer: Arc<Buffer>,
        access: Access,
    ) -> Result<MemoryRegion, RegisterError> {
        let Core { regions, keys, .. } = &mut self.core;
        regions.register(domain, buffer, access, keys.for_registration()?)
    }

    fn deregister(&mut self, region: RegionId) {
        self.core.regions.deregister(region);
    }

    fn listen(&mut self, address: &Address) -> io::Result<ListenerId> {
        match address {
            Address::Tcp(address) => self.bind(*address),
            _ => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                format!("iWARP listens on an IP address and port, not on {address}"),
            )),
        }
    }

    fn listener_address(&self, listener: ListenerId) -> Option<Address> {
        let listener = self.listeners.get(listener.0 as usize)?;
        listener.socket.local_addr().ok().map(Address::Tcp)
    }

    fn connect(
        &mut self,
        domain: ProtectionDomain,
        address: &Address,
        private_data: &[u8],
    ) -> Result<EndpointId, ConnectError> {
        self.start_connect(domain, address, private_data)
    }

    fn accept(
        &mut self,
        request: RequestId,
        domain: ProtectionDomain,
        private_data: &[u8],
    ) -> Result<EndpointId, ConnectError> {
        self.start_accept(request, domain, private_data)
    }

    fn reject(&mut self, request: RequestId, private_data: &[u8]) {
        self.start_reject(request, private_data);
    }

    fn admitted(&self, request: RequestId) -> Option<Arc<Admitted>> {
        match self.slots.get(request.0)? {
            Entry::Request(request) => request.admitted.clone(),
            _ => None,
        }
    }

    fn peer(&self, endpoint: EndpointId) -> Option<PeerInfo> {
        match self.slots.get(endpoint.0)? {
            Entry::Connection(connection) => Some(connection.peer.clone()),
            _ => None,
        }
    }

    fn post_receive(
        &mut self,
        endpoint: EndpointId,
        work: u64,
        segment: LocalSegment,
    ) -> Result<(), PostError> {
        let usable::Usable { connection, core } = self.open_connection(endpoint)?;
        if connection.rx.receive_count() >= limits::RECEIVE_COUNT_MAX {
            return Err(PostError::QueueFull);
        }
        core.regions.local(connection.domain, segment, Access::LOCAL_WRITE)?;
        let buffer = core.regions.buffer(segment.region).ok_or(PostError::Region)?.clone();
        let (offset, len) = (segment.offset, segment.len);
        connection.rx.post_receive(PostedReceive { work, buffer, offset, len });
        Ok(())
    }

    fn post(
        &mut self,
        endpoint: EndpointId,
        work: u64,
        transfer: Transfer<'_>,
    ) -> Result<(), PostError> {
        transfer.check_len()?;
        let usable = self.open_connection(endpoint)?;
        match transfer {
            Transfer::Send { segments, invalidate } => {
                usable.post(work, Kind::Send { invalidate }, segments, Access::empty())
            }
            Transfer::Write { segments, remote: RemoteBuffer { key: stag, address, .. } } => {
                usable.post(work, Kind::Write { stag, address }, segments, Access::empty())
            }
            Transfer::Read { segment, remote: RemoteBuffer { key: stag, address, .. } } => {
                if usable.connection.is_open() && usable.connection.tx.outbound_reads_max() == 0 {
                    // The peer answers no reads, so this one would never complete.
                    return Err(PostError::QueueFull);
                }
                usable.post(work, Kind::Read { stag, address }, &[segment], Access::LOCAL_WRITE)
            }
        }
    }

    fn grant(&mut self, endpoint: EndpointId, buffer: &Arc<Buffer>) -> Option<MemoryRegion> {
        let Some(Entry::Connection(connection)) = self.slots.get_mut(endpoint.0) else {
            return None;
        };
        let has_room = self.core.regions.has_room_for_grants();
        if connection.closing || !connection.is_open() || !has_room {
            return None;
        }
        let domain = match connection.rx.granted {
            Some(domain) => domain,
            None => {
                self.next_domain += 1;
                ProtectionDomain(self.next_domain)
            }
        };
        (connection.rx.granted, connection.tx.granted) = (Some(domain), Some(domain));
        let Core { regions, keys, .. } = &mut self.core;
        let random = keys.for_registration().ok()?;
        regions.register(domain, buffer.clone(), Access::REMOTE_READ, random).ok()
    }

    fn can_grant_reads(&self) -> bool {
        true
    }

    fn granted_reads(&self) -> u64 {
        self.core.granted_reads
    }

    fn revoke(&mut self, _: EndpointId, region: RegionId) {
        self.core.regions.deregister(region);
    }

    fn expect_remote_writes(&mut self, endpoint: EndpointId, bytes: u64) {
        if let Some(Entry::Connection(connection)) = self.slots.get_mut(endpoint.0) {
            connection.rx.expect_writes(bytes);
        }
    }

    fn poll(&mut self, now: Instant, events: &mut Vec<Event>) -> usize {
        self.turn(now);
        let count = self.core.events.len();
        events.append(&mut self.core.events);
        count
    }

    fn polls_by_system_call(&self) -> bool {
        true
    }

    fn flush(&mut self) {
        self.send_now();
    }

    fn arm(&mut self) -> io::Result<bool> {
        self.send_now();
        self.slept = true;
        if self.core.watch.is_due() {
            self.core.epoll.check()?;
        }
        // The epoll set is level-triggered, so its descriptor is readable as soon as a socket is. A
        // connection that used up its turn, or a timer that has not started, makes no socket
        // readable.
        Ok(self.core.events.is_empty() && self.core.dirty.is_empty() && self.unstamped.is_empty())
    }

    fn is_intact(&self) -> bool {
        !self.core.watch.is_lost()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.core.epoll.descriptor())
    }

    fn next_timeout(&self) -> Option<Instant> {
        if !self.unstamped.is_empty() {
            return Some(self.now);
        }
        self.timers.peek().map(|Reverse((when, _))| *when)
    }

    fn stop_listening(&mut self) {
        self.drop_listeners();
    }

    fn is_lingering(&self) -> bool {
        self.slots.iter().any(|entry| match entry {
            Entry::Request(_) => false,
            Entry::Connection(connection) => connection.closing,
            Entry::Lingering(lingering) => lingering.is_needed(),
        })
    }

    fn disconnect(&mut self, endpoint: EndpointId) {
        let timeout = self.core.config.linger_timeout;
        let Some(Entry::Connection(connection)) = self.slots.get_mut(endpoint.0) else { return };
        if connection.closing {
            return;
        }
        if !connection.is_open() {
            return self.end(endpoint.0, End::Local);
        }
        connection.closing = true;
        // Posted work is sent now, and no nudges follow it.
        connection.opening = Opening::Done;
        connection.mark_dirty(&mut self.core);
        self.start_timer(endpoint.0, timeout);
    }

    fn abort(&mut self, endpoint: EndpointId) {
        if let Some(Entry::Connection(_)) = self.slots.get(endpoint.0) {
            self.end(endpoint.0, End::Aborted);
        }
    }
}
