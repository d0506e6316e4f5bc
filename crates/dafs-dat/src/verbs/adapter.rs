//! The implementation of the [`Adapter`](crate::Adapter) trait; each function is a few lines over
//! the modules beside it.

use super::cm::{CmId, EventChannel};
use super::command_thread;
use super::config::VerbsConfig;
use super::connection::{Connection, Deadline, Receive, Stage};
use super::device::{self, Chosen, DeviceInfo};
use super::error::VerbsError;
use super::fork;
use super::library::Library;
use super::limits;
use super::memory::Memory;
use super::queues::Queues;
use super::setup::Request;
use super::sys::{Domain, Reaped};
use super::teardown::End;
use crate::iwarp::opening::Opening;
use crate::iwarp::slots::Slots;
use crate::{
    Access, Adapter, Address, ConnectError, EndpointId, Event, Instant, ListenerId, LocalSegment,
    MemoryRegion, PeerInfo, PostError, ProtectionDomain, RegionId, RegisterError, RequestId,
    Transfer,
};
use dafs_mem::Buffer;
use rustix::event::epoll;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// The domain of a connection's memory, and the domain that it alone has, if any.
pub(super) type Place = (ProtectionDomain, Option<Arc<Domain>>);

/// A connection manager identifier of this adapter.
#[derive(Debug)]
pub(super) enum Entry {
    /// A peer's request before `accept`.
    Request(Box<Request>),
    /// A connection from `connect` or `accept` on.
    Connection(Box<Connection>),
    /// The connection has ended and was reported; the entry waits for the peer's disconnect.
    Lingering { _cm: CmId, deadline: Deadline },
}

/// One RDMA device, for one thread.
///
/// An adapter uses one device, which [`VerbsConfig::device`] chooses. A listener must be bound to
/// an address of the device, and connections must be routed over it; others are refused with a text
/// that says so. A server with several devices opens an adapter for each.
pub struct VerbsAdapter {
    // The field order is the drop order: identifiers with their queue pairs and the memory of their
    // work, then memory, then queues, then the channel.
    pub(super) slots: Slots<Entry>,
    /// `None` when its device no longer exists.
    pub(super) listeners: Vec<Option<CmId>>,
    pub(super) memory: Memory,
    pub(super) queues: Queues,
    pub(super) channel: EventChannel,
    epoll: OwnedFd,
    pub(super) library: &'static Library,
    pub(super) chosen: Chosen,
    pub(super) config: VerbsConfig,
    pub(super) now: Instant,
    pub(super) events: Vec<Event>,
    /// Connections with work to post.
    pub(super) dirty: Vec<u64>,
    /// Entries with a deadline.
    pub(super) unsettled: Vec<u64>,
    /// Connections that completions have shown to be broken.
    pub(super) broken: Vec<(u64, End)>,
    pub(super) reaped: Vec<Reaped>,
    /// Free staging blocks.
    pub(super) staging: Vec<Arc<Buffer>>,
    pub(super) request_count: usize,
    /// The device was removed. Connections end by events of the connection manager and by their
    /// deadlines, and the device gives no notice of completions any more.
    pub(super) is_removed: bool,
    /// True once a failure of a completion queue was logged.
    pub(super) has_complained: bool,
    /// True once a memory window was made, to see if the driver can.
    pub(super) has_tried_windows: bool,
    /// True once the log has told that the limit on locked memory leaves no room for grants.
    pub(super) has_told_limit: bool,
    pub(super) polls_since_cm: u32,
    /// True if the caller may have slept since the last check of the connection manager.
    pub(super) slept: bool,
}

impl VerbsAdapter {
    /// Opens a device.
    ///
    /// # Errors
    /// A library or device that is missing, with its remedy; a setting outside its limits.
    pub fn open(config: VerbsConfig) -> Result<Self, VerbsError> {
        config.check()?;
        let library = Library::get()?;
        command_thread::run(|| Self::open_here(library, config))
    }

    fn open_here(library: &'static Library, config: VerbsConfig) -> Result<Self, VerbsError> {
        let channel = EventChannel::new(library)?;
        let chosen = device::choose(library, &channel, &config)?;
        let failed = |what| move |error| VerbsError::Io { what, error };
        let queues = Queues::new(&chosen).map_err(failed("make a completion channel"))?;
        let epoll = watch(&[channel.descriptor(), queues.channel().descriptor()])
            .map_err(failed("make an epoll descriptor"))?;
        let memory = Memory::new(
            config.idle_registered_bytes_max,
            chosen.region_bytes_max,
            chosen.sink_is_written(),
        );
        tracing::debug!(device = chosen.info.name, kind = %chosen.info.kind, "RDMA device opened");
        Ok(Self {
            slots: Slots::new(),
            listeners: Vec::new(),
            memory,
            queues,
            channel,
            epoll,
            library,
            chosen,
            config,
            now: Instant::default(),
            events: Vec::new(),
            dirty: Vec::new(),
            unsettled: Vec::new(),
            broken: Vec::new(),
            reaped: Vec::new(),
            staging: Vec::new(),
            request_count: 0,
            is_removed: false,
            has_complained: false,
            has_tried_windows: false,
            has_told_limit: false,
            polls_since_cm: 0,
            slept: true,
        })
    }

    /// The device of this adapter.
    pub fn device(&self) -> &DeviceInfo {
        &self.chosen.info
    }

    /// Connections, including those being set up and those that wait for the peer's disconnect.
    pub fn connection_count(&self) -> usize {
        self.slots.count()
    }

    /// The connection with this identifier; none in a child of a fork, which must not touch it.
    pub(super) fn connection_mut(&mut self, id: u64) -> Option<&mut Connection> {
        if fork::is_child() {
            return None;
        }
        match self.slots.get_mut(id) {
            Some(Entry::Connection(connection)) => Some(connection),
            _ => None,
        }
    }

    pub(super) fn mark_dirty(&mut self, id: u64) {
        let Some(connection) = self.connection_mut(id) else { return };
        if !std::mem::replace(&mut connection.dirty, true) {
            self.dirty.push(id);
        }
    }

    /// The domain of a connection that accepts sends, and the one of its own that it may have.
    fn open_domain(&mut self, endpoint: EndpointId) -> Result<Place, PostError> {
        match self.connection_mut(endpoint.0) {
            Some(connection) if connection.is_usable() && connection.is_open() => {
                if connection.waiting.len() + connection.posted_count() >= limits::WORK_COUNT_MAX {
                    return Err(PostError::QueueFull);
                }
                Ok((connection.domain, connection.own_domain.clone()))
            }
            _ => Err(PostError::NotConnected),
        }
    }
}

/// An epoll descriptor that is readable when one of these is.
fn watch(descriptors: &[BorrowedFd<'_>]) -> io::Result<OwnedFd> {
    let epoll = crate::descriptors::kept(epoll::create(epoll::CreateFlags::CLOEXEC)?)?;
    for descriptor in descriptors {
        let data = epoll::EventData::new_u64(0);
        epoll::add(&epoll, descriptor, data, epoll::EventFlags::IN)?;
    }
    Ok(epoll)
}

impl Adapter for VerbsAdapter {
    fn name(&self) -> &'static str {
        "verbs"
    }

    /// If the device has no domain left, the result is a domain in which every registration fails.
    fn protection_domain(&mut self) -> ProtectionDomain {
        match self.chosen.device.domain() {
            Ok(domain) => self.memory.add_domain(domain),
            Err(error) => {
                // A client asks again with each attempt to connect.
                if !self.is_removed {
                    tracing::error!(%error, "the RDMA device gives no protection domain");
                }
                ProtectionDomain(0)
            }
        }
    }

    fn register(
        &mut self,
        domain: ProtectionDomain,
        buffer: Arc<Buffer>,
        access: Access,
    ) -> Result<MemoryRegion, RegisterError> {
        fork::check().map_err(io::Error::from)?;
        self.memory.register(domain, buffer, access)
    }

    fn deregister(&mut self, region: RegionId) {
        self.memory.deregister(region);
    }

    fn listen(&mut self, address: &Address) -> io::Result<ListenerId> {
        match address {
            Address::Verbs(address) => self.start_listening(*address),
            _ => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                format!("RDMA devices listen on verbs:IP:PORT, not on {address}"),
            )),
        }
    }

    fn listener_address(&self, listener: ListenerId) -> Option<Address> {
        let listener = self.listeners.get(listener.0 as usize)?;
        listener.as_ref()?.local_address().map(Address::Verbs)
    }

    fn connect(
        &mut self,
        domain: ProtectionDomain,
        address: &Address,
        private_data: &[u8],
    ) -> Result<EndpointId, ConnectError> {
        match address {
            Address::Verbs(address) => self.start_connecting(domain, *address, private_data),
            _ => Err(ConnectError::AddressKind),
        }
    }

    fn accept(
        &mut self,
        request: RequestId,
        domain: ProtectionDomain,
        private_data: &[u8],
    ) -> Result<EndpointId, ConnectError> {
        self.start_accepting(request, (domain, None), private_data)
    }

    fn accept_isolated(
        &mut self,
        request: RequestId,
        domain: ProtectionDomain,
        private_data: &[u8],
    ) -> Result<EndpointId, ConnectError> {
        match self.domain_for_grants() {
            Ok(own) => self.start_accepting(request, (domain, own), private_data),
            Err(error) => {
                self.refuse(request, &[]);
                Err(error)
            }
        }
    }

    fn reject(&mut self, request: RequestId, private_data: &[u8]) {
        self.refuse(request, private_data);
    }

    fn peer(&self, endpoint: EndpointId) -> Option<PeerInfo> {
        match self.slots.get(endpoint.0)? {
            Entry::Connection(connection) => Some(super::setup::peer_info(connection.peer)),
            _ => None,
        }
    }

    fn post_receive(
        &mut self,
        endpoint: EndpointId,
        work: u64,
        segment: LocalSegment,
    ) -> Result<(), PostError> {
        if fork::is_child() {
            return Err(PostError::NotConnected);
        }
        let Self { slots, memory, .. } = self;
        let connection = match slots.get_mut(endpoint.0) {
            Some(Entry::Connection(connection)) if connection.is_usable() => connection,
            _ => return Err(PostError::NotConnected),
        };
        if connection.receives.len() >= connection.depths.receives as usize {
            return Err(PostError::QueueFull);
        }
        memory.check(connection.domain, segment, Access::LOCAL_WRITE)?;
        let length = u32::try_from(segment.len).map_err(|_| PostError::Length)?;
        let span = match &connection.own_domain {
            Some(own) => memory.span_in(own, segment)?,
            None => memory.span(segment)?,
        };
        let (segment, held) = match span {
            Some((span, held)) if length > 0 => (Some(span.segment()), Some(held)),
            _ => (None, None),
        };
        let receive = Receive { work, segment, _held: held };
        connection.post_receive(receive).map_err(|error| {
            tracing::debug!(%error, "the device takes no receive");
            PostError::NotConnected
        })
    }

    fn post(
        &mut self,
        endpoint: EndpointId,
        work: u64,
        transfer: Transfer<'_>,
    ) -> Result<(), PostError> {
        transfer.check_len()?;
        let place = self.open_domain(endpoint)?;
        match transfer {
            Transfer::Send { segments, invalidate } => {
                self.queue_send(endpoint, place, work, segments, invalidate)
            }
            Transfer::Write { segments, remote } => {
                self.queue_write(endpoint, place, work, segments, remote)
            }
            Transfer::Read { segment, remote } => {
                self.queue_read(endpoint, place, work, segment, remote)
            }
        }
    }

    fn grant(&mut self, endpoint: EndpointId, buffer: &Arc<Buffer>) -> Option<MemoryRegion> {
        self.add_grant(endpoint.0, buffer)
    }

    fn can_grant_reads(&self) -> bool {
        self.chosen.may_grant()
    }

    fn keeps_granted_pages(&self) -> bool {
        true
    }

    fn revoke(&mut self, endpoint: EndpointId, region: RegionId) {
        self.end_grant(endpoint.0, region);
    }

    fn poll(&mut self, now: Instant, events: &mut Vec<Event>) -> usize {
        self.turn(now);
        let count = self.events.len();
        events.append(&mut self.events);
        count
    }

    fn flush(&mut self) {
        self.hand_over();
    }

    fn arm(&mut self) -> io::Result<bool> {
        self.prepare_to_sleep()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.epoll.as_fd())
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.earliest_deadline()
    }

    fn disconnect(&mut self, endpoint: EndpointId) {
        let timeout = self.config.linger_timeout;
        let Some(connection) = self.connection_mut(endpoint.0) else { return };
        if !connection.is_usable() {
            return;
        }
        if !connection.is_open() {
            return self.end(endpoint.0, End::Local);
        }
        connection.closing = true;
        // Posted work is sent now. No later work depends on it, so no follow-ups are needed.
        connection.opening = Opening::Done;
        connection.deadline = Deadline::after(timeout);
        self.unsettled.push(endpoint.0);
        self.mark_dirty(endpoint.0);
    }

    fn abort(&mut self, endpoint: EndpointId) {
        if let Some(connection) = self.connection_mut(endpoint.0) {
            if !matches!(connection.stage, Stage::Ending(_)) {
                connection.stage = Stage::Ending(End::Local);
                // The device flushes its work; work that it has completed before is still reported
                // as such.
                let _ = connection.cm.disconnect();
                self.reap();
            }
            self.finish(endpoint.0);
        }
    }
}
