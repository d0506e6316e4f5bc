//! The shared-memory provider: two processes on one host.
//!
//! A connection is a UNIX socket and a piece of memory that both processes map. Messages go through
//! one ring per direction in that memory. The socket sets the connection up, passes descriptors,
//! serves as the doorbell of a sleeping side, and reports the death of a process. Memory from
//! [`Adapter::allocate`] that is registered for remote access is shared with the peer, which then
//! accesses it directly. RDMA is one copy, and [`Adapter::map_remote`] lets the kernel read or
//! write file data there without any copy. Records in the ring reach other memory; the owner's
//! adapter applies them when it polls.
//!
//! The doorbell is the socket and not an event descriptor for all connections of an adapter: a
//! hostile peer with such a descriptor could read it and so steal the wake-ups of other
//! connections. The socket also identifies the connection to check.
//!
//! This provider does not access memory of other processes by process id (`process_vm_writev`): a
//! peer may have executed a set-uid program since, and a privileged server would write into that.
//!
//! The cost of a peer
//! * Pages of a memory file are charged to the process that touches them first. A peer may share
//!   memory that it has never touched, or has punched holes into. This process then pays for pages
//!   that it fills on the peer's request; they stay charged until the peer closes the file. A
//!   connection reaches no more than `PEER_MAPPED_BYTES_MAX` at a time, but a peer that shares one
//!   file after the other and keeps them all can exceed it. A server that does not trust its local
//!   users limits their memory files from outside, by control groups.
//!
//! Invariants
//! * No system call, no allocation and no lock on the path of a message or an RDMA transfer while
//!   the peer is awake and the ring has room.
//! * Before a side sleeps it sets its sleep words, issues a full fence, and then checks its rings
//!   again. A side publishes records, issues a full fence, and then checks the peer's sleep word.
//!   So no wake-up is lost.
//! * Any user of the host can bind a name. So an adapter connects only to listeners of root and of
//!   its own user, and sends no data to others.
//! * A peer can break its own connection only: memory of the connection is not trusted, mapped
//!   files are sealed, and every count that a peer influences has a limit.

mod arena;
mod conn;
mod drive;
mod layout;
mod life;
mod limits;
mod packet;
mod post;
mod ring;
mod setup;
mod share;
mod slab;
mod sys;

use crate::Adapter;
use crate::connections::{Admitted, Connections};
use crate::descriptors::{Guarded, Watch, kept};
use crate::error::{ConnectError, PostError, RegisterError};
use crate::keys::KeySource;
use crate::memory::{MemoryRegion, RegionTable};
use crate::time::Instant;
use crate::types::{
    Access, Address, EndpointId, Event, ListenerId, LocalSegment, PeerInfo, PeerProcess,
    ProtectionDomain, RegionId, RemoteBuffer, RemoteWindow, RequestId, Transfer,
};
use arena::Arena;
pub use arena::{discard, exposed_buffer, lock, unlock};
use conn::{Conn, Stage};
use dafs_mem::Buffer;
pub use life::{Life, is_alive};
use rustc_hash::FxHashMap;
use rustix::event::epoll;
use setup::{Listener, Request};
use share::Shareable;
use slab::Slab;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

/// The settings of the shared-memory provider.
#[derive(Debug, Clone)]
pub struct ShmConfig {
    /// Bytes of each of the two rings of a connection that this side starts; a power of two between
    /// 4 KiB and 1 MiB. Longer messages pass in pieces.
    pub ring_bytes: u32,
    /// Connections of this adapter, including those being set up. Further ones are refused with a
    /// text.
    pub connections_max: usize,
    /// Incoming connections that have not been accepted yet. Further ones are refused with a text.
    pub pending_max: usize,
    /// Timeout for the peer's part of the set-up.
    pub handshake_timeout: Duration,
    /// Buffers of [`Adapter::allocate`] that can be shared with peers; each holds a file descriptor
    /// while it lives. Further ones are ordinary memory. With zero no memory is shared: the peer
    /// reaches memory through the rings only, and none after the connection has ended.
    pub shareable_buffers_max: usize,
    /// Other code in this process may close file descriptors of the adapter, as a library must
    /// expect of its program: see [`Adapter::is_intact`].
    pub guarded: bool,
}

impl Default for ShmConfig {
    fn default() -> Self {
        Self {
            ring_bytes: limits::RING_BYTES_DEFAULT,
            connections_max: limits::CONNECTIONS_MAX_DEFAULT,
            pending_max: limits::PENDING_MAX_DEFAULT,
            handshake_timeout: limits::HANDSHAKE_TIMEOUT_DEFAULT,
            shareable_buffers_max: limits::ARENAS_MAX_DEFAULT,
            guarded: false,
        }
    }
}

/// Binds a listening socket to an abstract name. Several adapters may share it
/// ([`ShmAdapter::add_listener`]); each incoming connection goes to one of them.
///
/// # Errors
/// The error of the socket calls. `EADDRINUSE` when another process owns the name.
pub fn bind_listener(name: &str) -> io::Result<OwnedFd> {
    sys::listener(name, limits::BACKLOG)
}

/// The process that listens under an abstract name, as the kernel reports it. `None` if there is no
/// listener, or its queue is full.
pub fn holder(name: &str) -> Option<PeerProcess> {
    sys::peer_process(sys::connect(name).ok()?.as_fd())
}

/// The shared-memory provider, used by one thread.
pub struct ShmAdapter {
    config: ShmConfig,
    /// The user whose listeners are trusted besides those of root.
    own_user: u32,
    descriptors: Watch,
    epoll: Guarded<OwnedFd>,
    regions: RegionTable,
    keys: KeySource,
    /// Registrations with remote access to memory that can be shared with peers.
    shareable: FxHashMap<u32, Shareable>,
    domains: u32,
    conns: Slab<Conn>,
    requests: Slab<Request>,
    listeners: Vec<Listener>,
    /// Events that the next poll reports.
    ready: Vec<Event>,
    /// Connections whose rings are scanned.
    busy: Vec<u64>,
    /// Connections whose peers may need a doorbell.
    dirty: Vec<u64>,
    /// Connections and requests with a deadline.
    timed: Vec<u64>,
    /// The time of the next check of `timed`.
    check_at: Option<Instant>,
    /// True if `arm` has set sleep words and no poll followed.
    armed: bool,
    /// True if `arm` found no work, so the caller may have slept.
    slept: bool,
    polls_since_look: u32,
    looked_at: Instant,
    /// The domain of granted buffers, which no connection has.
    grants: Option<ProtectionDomain>,
    /// The keys of granted buffers, by region.
    granted: FxHashMap<u32, u32>,
    /// Regions whose keys peers have invalidated while a connection is served.
    invalidated: Vec<RegionId>,
    /// Counts live shareable buffers.
    arenas: Arc<AtomicUsize>,
    /// The limits for connections that peers begin.
    connections: Option<Arc<Connections>>,
}

impl ShmAdapter {
    /// An adapter without listeners and connections.
    ///
    /// # Errors
    /// `InvalidInput` for an invalid ring size; other errors when no file descriptor is left.
    pub fn new(config: ShmConfig) -> io::Result<Self> {
        if layout::connection_bytes(config.ring_bytes).is_none() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!(
                    "ring_bytes must be a power of two from {} to {}",
                    limits::RING_BYTES_MIN,
                    limits::RING_BYTES_MAX
                ),
            ));
        }
        let watch = if config.guarded { Watch::new() } else { Watch::default() };
        let epoll = kept(epoll::create(epoll::CreateFlags::CLOEXEC)?)?;
        Ok(Self {
            config,
            own_user: rustix::process::geteuid().as_raw(),
            epoll: Guarded::new(epoll, &watch),
            descriptors: watch,
            regions: RegionTable::new(),
            keys: KeySource::new(),
            shareable: FxHashMap::default(),
            domains: 0,
            conns: Slab::new(),
            requests: Slab::new(),
            listeners: Vec::new(),
            ready: Vec::new(),
            busy: Vec::new(),
            dirty: Vec::new(),
            timed: Vec::new(),
            check_at: None,
            armed: false,
            slept: false,
            polls_since_look: 0,
            looked_at: Instant::default(),
            grants: None,
            granted: FxHashMap::default(),
            invalidated: Vec::new(),
            arenas: Arc::new(AtomicUsize::new(0)),
            connections: None,
        })
    }

    /// Listens on a socket of [`bind_listener`], or on a duplicate of one that other adapters
    /// listen on too.
    ///
    /// # Errors
    /// When epoll cannot watch the socket.
    pub fn add_listener(&mut self, socket: OwnedFd) -> io::Result<ListenerId> {
        self.watch_listener(socket)
    }

    /// Counts and limits the connections that peers begin, from their acceptance.
    pub fn count_in(&mut self, connections: Arc<Connections>) {
        self.connections = Some(connections);
    }

    /// Withdraws a region from all peers that share it.
    fn withdraw(&mut self, region: RegionId) {
        if let Some(shareable) = self.shareable.remove(&region.0) {
            for conn in self.conns.iter_mut().filter(|conn| conn.domain == shareable.domain) {
                conn.withdraw(shareable.key);
            }
        }
    }

    /// Checks that the descriptors still belong to this adapter.
    fn check_descriptors(&self) -> io::Result<()> {
        self.epoll.check()?;
        for name in &self.busy {
            if let Some(socket) = self.conns.get(*name).and_then(|conn| conn.socket.as_ref()) {
                socket.check()?;
            }
        }
        Ok(())
    }

    /// Open connections and connections being set up.
    pub fn connection_count(&self) -> usize {
        self.conns.len() + self.requests.len()
    }
}

impl Adapter for ShmAdapter {
    fn name(&self) -> &'static str {
        "shm"
    }

    fn allocate(&mut self, bytes: usize) -> io::Result<Arc<Buffer>> {
        let most = self.config.shareable_buffers_max;
        arena::allocate(bytes, &self.arenas, most, &self.descriptors).map(Arc::new)
    }

    fn protection_domain(&mut self) -> ProtectionDomain {
        self.domains += 1;
        ProtectionDomain(self.domains)
    }

    fn register(
        &mut self,
        domain: ProtectionDomain,
        buffer: Arc<Buffer>,
        access: Access,
    ) -> Result<MemoryRegion, RegisterError> {
        let shareable = self.is_mappable(&buffer);
        let region =
            self.regions.register(domain, buffer.clone(), access, self.keys.for_registration()?)?;
        if shareable && access.intersects(Access::REMOTE_READ | Access::REMOTE_WRITE) {
            let shareable = Shareable { domain, key: region.key, access, buffer };
            for conn in self.conns.iter_mut().filter(|conn| conn.domain == domain) {
                conn.share(&shareable);
            }
            self.shareable.insert(region.id.0, shareable);
        }
        Ok(region)
    }

    fn deregister(&mut self, region: RegionId) {
        self.regions.deregister(region);
        self.withdraw(region);
    }

    fn listen(&mut self, address: &Address) -> io::Result<ListenerId> {
        match address {
            Address::Shm(name) => self.watch_listener(bind_listener(name)?),
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    fn listener_address(&self, listener: ListenerId) -> Option<Address> {
        let listener = self.listeners.get(listener.0 as usize)?;
        sys::name_of(listener.socket.as_fd()).map(Address::Shm)
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
        self.accept_request(request, domain, private_data)
    }

    fn reject(&mut self, request: RequestId, private_data: &[u8]) {
        self.reject_request(request, private_data);
    }

    fn admitted(&self, request: RequestId) -> Option<Arc<Admitted>> {
        self.admitted_request(request)
    }

    fn peer(&self, endpoint: EndpointId) -> Option<PeerInfo> {
        self.conns.get(endpoint.0).map(|conn| conn.peer.clone())
    }

    fn post_receive(
        &mut self,
        endpoint: EndpointId,
        work: u64,
        segment: LocalSegment,
    ) -> Result<(), PostError> {
        self.receive(endpoint, work, segment)
    }

    fn post(
        &mut self,
        endpoint: EndpointId,
        work: u64,
        transfer: Transfer<'_>,
    ) -> Result<(), PostError> {
        match transfer {
            Transfer::Send { segments, invalidate } => {
                self.send(endpoint, work, segments, invalidate)
            }
            Transfer::Write { segments, remote } => self.write(endpoint, work, segments, remote),
            Transfer::Read { segment, remote } => self.read(endpoint, work, segment, remote),
        }
    }

    fn map_remote(
        &mut self,
        endpoint: EndpointId,
        remote: RemoteBuffer,
        need: Access,
    ) -> Option<RemoteWindow> {
        self.window(endpoint, remote, need)
    }

    fn grant(&mut self, endpoint: EndpointId, buffer: &Arc<Buffer>) -> Option<MemoryRegion> {
        let domain = self.grants.unwrap_or_else(|| self.protection_domain());
        self.grants = Some(domain);
        let (access, buffer) = (Access::REMOTE_READ, buffer.clone());
        let random = self.keys.for_registration().ok()?;
        let region = self.regions.register(domain, buffer.clone(), access, random).ok()?;
        let shareable = Shareable { domain, key: region.key, access, buffer };
        if self.conns.get_mut(endpoint.0).is_some_and(|conn| conn.share(&shareable)) {
            self.granted.insert(region.id.0, region.key);
            return Some(region);
        }
        self.regions.deregister(region.id);
        None
    }

    fn can_grant(&self) -> bool {
        true
    }

    fn revoke(&mut self, endpoint: EndpointId, region: RegionId) {
        let Some(key) = self.granted.remove(&region.0) else { return };
        self.regions.deregister(region);
        if let Some(conn) = self.conns.get_mut(endpoint.0) {
            conn.withdraw(key);
        }
    }

    fn is_mappable(&self, buffer: &Buffer) -> bool {
        self.config.shareable_buffers_max > 0 && Arena::of(buffer).is_some()
    }

    fn poll(&mut self, now: Instant, events: &mut Vec<Event>) -> usize {
        self.drive(now);
        let count = self.ready.len();
        events.append(&mut self.ready);
        count
    }

    fn flush(&mut self) {
        self.ring_doorbells();
    }

    fn arm(&mut self) -> io::Result<bool> {
        if self.descriptors.is_due() {
            self.check_descriptors()?;
        }
        Ok(self.prepare_to_sleep())
    }

    fn is_intact(&self) -> bool {
        !self.descriptors.is_lost()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.epoll.as_fd())
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.check_at
    }

    fn stop_listening(&mut self) {
        self.drop_listeners();
    }

    fn disconnect(&mut self, endpoint: EndpointId) {
        self.start_close(endpoint);
    }

    fn abort(&mut self, endpoint: EndpointId) {
        if let Some(conn) = self.conns.get_mut(endpoint.0) {
            // Queued work must not reach the ring any more, and arrived records must not reach the
            // caller.
            conn.close(&mut self.ready);
            conn.flush(&mut self.ready);
            self.finish(endpoint.0, crate::DisconnectReason::Local, setup::CloseNotice::None);
        }
    }
}

impl Drop for ShmAdapter {
    fn drop(&mut self) {
        // Peers learn of a graceful end; their mappings stay valid for them.
        let names: Vec<u64> = self
            .conns
            .iter_mut()
            .filter(|conn| matches!(conn.stage, Stage::Open | Stage::Closing))
            .map(|conn| conn.id.0)
            .collect();
        for name in names {
            self.finish(name, crate::DisconnectReason::Local, setup::CloseNotice::Close);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_at_what_a_peer_sent_ends_its_connection_alone() {
        let adapter = || ShmAdapter::new(ShmConfig::default()).unwrap();
        let mut server = adapter();
        let name = format!("dafs-fault-{}", std::process::id());
        server.listen(&Address::Shm(name)).unwrap();
        crate::confine::fault::check(&mut server, [&mut adapter(), &mut adapter()]);
    }
}
