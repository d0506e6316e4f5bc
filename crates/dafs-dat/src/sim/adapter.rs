//! The simulated network as one process sees it.

use super::Shared;
use super::connection::{Connection, Frame, Memory, PendingRead, Receive, Side, Stage, Verb};
use super::fabric::Fabric;
use super::limits::{OUTSTANDING_MAX, POSTS_PER_POLL_MAX};
use crate::types::{
    Access, Address, EndpointId, Event, ListenerId, LocalSegment, PeerInfo, ProtectionDomain,
    RegionId, RemoteBuffer, RemoteWindow, RequestId, Transfer, total_len,
};
use crate::{
    Adapter, ConnectError, Instant, MemoryRegion, PRIVATE_DATA_BYTES_MAX, PostError, RegisterError,
};
use dafs_mem::Buffer;
use std::cell::Cell;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// An adapter of the simulated network. Dropping it is the sudden death of its process.
#[derive(Debug)]
pub struct SimAdapter {
    shared: Shared,
    port: usize,
    /// Requests since the last poll, including refused ones.
    posts: Cell<u64>,
}

impl SimAdapter {
    pub(super) fn new(shared: Shared, port: usize) -> Self {
        Self { shared, port, posts: Cell::new(0) }
    }

    /// Runs `action` on the side of a connection that belongs to this adapter.
    fn on<T>(
        &self,
        endpoint: EndpointId,
        action: impl FnOnce(&mut Connection, &mut Fabric, Side) -> T,
    ) -> Option<T> {
        let port = self.port;
        self.shared
            .lock()
            .on_endpoint(endpoint, |connection, fabric, side| {
                (connection.half(side).port == port).then(|| action(connection, fabric, side))
            })
            .flatten()
    }

    /// Counts a request, so that an endless loop fails the test and does not hang it.
    fn count_post(&self) {
        self.posts.set(self.posts.get() + 1);
        assert!(self.posts.get() <= POSTS_PER_POLL_MAX, "a turn that does not end");
    }

    /// Checks a transfer and queues its frame.
    fn queue(
        &self,
        endpoint: EndpointId,
        work: u64,
        transfer: Transfer<'_>,
    ) -> Result<(), PostError> {
        self.count_post();
        let post = |connection: &mut Connection, fabric: &mut Fabric, side: Side| {
            let half = connection.half_mut(side);
            if half.stage != Stage::Up {
                return Err(PostError::NotConnected);
            }
            if half.outstanding() >= OUTSTANDING_MAX {
                return Err(PostError::QueueFull);
            }
            transfer.check_len()?;
            let (port, domain) = (half.port, half.domain);
            let (segments, verb) = match transfer {
                Transfer::Send { segments, invalidate } => (segments, Verb::Send(invalidate)),
                Transfer::Write { segments, remote } => (segments, Verb::Write(remote)),
                Transfer::Read { segment, remote } => {
                    let memory = resolve(fabric, port, domain, segment, Access::LOCAL_WRITE)?;
                    half.reads.push_back(PendingRead { work, memory });
                    (&[][..], Verb::ReadRequest(remote))
                }
            };
            let payload = total_len(segments)? as usize;
            let memory =
                |segment: &LocalSegment| resolve(fabric, port, domain, *segment, Access::empty());
            let segments = segments.iter().map(memory).collect::<Result<_, _>>()?;
            let work = Some(work).filter(|_| !matches!(verb, Verb::ReadRequest(_)));
            half.line.held.push_back(Frame { verb, work, segments, payload });
            fabric.ports[port].dirty.push(endpoint);
            Ok(())
        };
        self.on(endpoint, post).unwrap_or(Err(PostError::NotConnected))
    }

    fn flush_held(&mut self) {
        let mut network = self.shared.lock();
        let dirty = std::mem::take(&mut network.fabric.ports[self.port].dirty);
        for endpoint in dirty {
            network.on_endpoint(endpoint, |connection, fabric, side| {
                connection.flush(fabric, side);
            });
        }
    }
}

/// The memory behind a local segment.
fn resolve(
    fabric: &Fabric,
    port: usize,
    domain: ProtectionDomain,
    segment: LocalSegment,
    need: Access,
) -> Result<Memory, PostError> {
    let regions = &fabric.ports[port].regions;
    regions.local(domain, segment, need)?;
    let buffer = regions.buffer(segment.region).ok_or(PostError::Region)?.clone();
    Ok(Memory { buffer, offset: segment.offset, len: segment.len })
}

fn check_private_data(data: &[u8]) -> Result<(), ConnectError> {
    if data.len() > PRIVATE_DATA_BYTES_MAX {
        return Err(ConnectError::PrivateData { bytes: data.len(), max: PRIVATE_DATA_BYTES_MAX });
    }
    Ok(())
}

impl Adapter for SimAdapter {
    fn name(&self) -> &'static str {
        "sim"
    }

    fn protection_domain(&mut self) -> ProtectionDomain {
        self.shared.lock().fabric.ports[self.port].new_domain()
    }

    fn register(
        &mut self,
        domain: ProtectionDomain,
        buffer: Arc<Buffer>,
        access: Access,
    ) -> Result<MemoryRegion, RegisterError> {
        self.shared.lock().fabric.ports[self.port].register(domain, buffer, access)
    }

    fn deregister(&mut self, region: RegionId) {
        self.shared.lock().fabric.ports[self.port].deregister(region);
    }

    fn listen(&mut self, address: &Address) -> io::Result<ListenerId> {
        let Address::Sim(host) = address else { return Err(io::ErrorKind::Unsupported.into()) };
        let mut network = self.shared.lock();
        if network.fabric.ports[self.port].host != *host {
            return Err(io::ErrorKind::AddrNotAvailable.into());
        }
        // A host has one listener; a second request for it returns the same.
        match network.listeners.get(host) {
            Some((port, listener)) if *port == self.port => return Ok(*listener),
            Some(_) => return Err(io::ErrorKind::AddrInUse.into()),
            None => {}
        }
        let listener = ListenerId(*host);
        network.listeners.insert(*host, (self.port, listener));
        network.fabric.ports[self.port].listener = Some(listener);
        Ok(listener)
    }

    fn listener_address(&self, listener: ListenerId) -> Option<Address> {
        let network = self.shared.lock();
        let port = &network.fabric.ports[self.port];
        (port.listener == Some(listener)).then_some(Address::Sim(port.host))
    }

    fn connect(
        &mut self,
        domain: ProtectionDomain,
        address: &Address,
        private_data: &[u8],
    ) -> Result<EndpointId, ConnectError> {
        let Address::Sim(host) = address else { return Err(ConnectError::AddressKind) };
        check_private_data(private_data)?;
        Ok(self.shared.lock().connect(self.port, domain, *host, private_data))
    }

    fn accept(
        &mut self,
        request: RequestId,
        domain: ProtectionDomain,
        private_data: &[u8],
    ) -> Result<EndpointId, ConnectError> {
        check_private_data(private_data)?;
        self.shared.lock().accept(self.port, request, domain, private_data)
    }

    fn reject(&mut self, request: RequestId, private_data: &[u8]) {
        let data = &private_data[..private_data.len().min(PRIVATE_DATA_BYTES_MAX)];
        self.shared.lock().reject(self.port, request, data);
    }

    fn peer(&self, endpoint: EndpointId) -> Option<PeerInfo> {
        let find = |connection: &mut Connection, fabric: &mut Fabric, side: Side| {
            fabric.peer(fabric.ports[connection.half(side.other()).port].host)
        };
        self.on(endpoint, find)
    }

    fn post_receive(
        &mut self,
        endpoint: EndpointId,
        work: u64,
        segment: LocalSegment,
    ) -> Result<(), PostError> {
        self.count_post();
        let post = |connection: &mut Connection, fabric: &mut Fabric, side: Side| {
            let half = connection.half_mut(side);
            if !matches!(half.stage, Stage::Opening | Stage::Up) {
                return Err(PostError::NotConnected);
            }
            if half.receives.len() >= OUTSTANDING_MAX {
                return Err(PostError::QueueFull);
            }
            let (port, domain) = (half.port, half.domain);
            let memory = resolve(fabric, port, domain, segment, Access::LOCAL_WRITE)?;
            half.receives.push_back(Receive { work, memory });
            Ok(())
        };
        self.on(endpoint, post).unwrap_or(Err(PostError::NotConnected))
    }

    fn post(
        &mut self,
        endpoint: EndpointId,
        work: u64,
        transfer: Transfer<'_>,
    ) -> Result<(), PostError> {
        self.queue(endpoint, work, transfer)
    }

    fn map_remote(
        &mut self,
        endpoint: EndpointId,
        remote: RemoteBuffer,
        need: Access,
    ) -> Option<RemoteWindow> {
        let map = |connection: &mut Connection, fabric: &mut Fabric, side: Side| {
            if connection.half(side).stage != Stage::Up {
                return None;
            }
            let peer = connection.half(side.other());
            let port = &fabric.ports[peer.port];
            let mapped =
                fabric.maps_memory.then(|| port.window(peer.domain, remote, need)).flatten();
            let granted = || port.granted_window(peer.endpoint?, remote, need);
            mapped.or_else(|| fabric.grants_memory.then(granted).flatten())
        };
        self.on(endpoint, map).flatten()
    }

    fn grant(&mut self, endpoint: EndpointId, buffer: &Arc<Buffer>) -> Option<MemoryRegion> {
        let grant = |connection: &mut Connection, fabric: &mut Fabric, side: Side| {
            let half = connection.half(side);
            let grants = fabric.grants_memory || fabric.grants_reads;
            let may_grant = grants && half.stage == Stage::Up;
            may_grant.then(|| fabric.ports[half.port].grant(endpoint, buffer.clone())).flatten()
        };
        self.on(endpoint, grant).flatten()
    }

    fn can_grant(&self) -> bool {
        self.shared.lock().fabric.grants_memory
    }

    fn can_grant_reads(&self) -> bool {
        self.shared.lock().fabric.grants_reads
    }

    fn granted_reads(&self) -> u64 {
        self.shared.lock().fabric.ports[self.port].granted_reads
    }

    fn revoke(&mut self, endpoint: EndpointId, region: RegionId) {
        self.shared.lock().fabric.ports[self.port].revoke(endpoint, region);
    }

    fn is_mappable(&self, _: &Buffer) -> bool {
        self.shared.lock().fabric.maps_memory
    }

    fn poll(&mut self, _now: Instant, events: &mut Vec<Event>) -> usize {
        self.posts.set(0);
        self.flush_held();
        let mut network = self.shared.lock();
        if network.fabric.paused_until(self.port).is_some() {
            return 0;
        }
        let ready = &mut network.fabric.ports[self.port].ready;
        let count = ready.len();
        events.extend(ready.drain(..));
        count
    }

    fn flush(&mut self) {
        self.flush_held();
    }

    fn arm(&mut self) -> io::Result<bool> {
        self.flush_held();
        Ok(self.shared.lock().fabric.ports[self.port].ready.is_empty())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn next_timeout(&self) -> Option<Instant> {
        // Time passes only in `SimNetwork::advance_to`.
        None
    }

    fn disconnect(&mut self, endpoint: EndpointId) {
        self.on(endpoint, |connection, fabric, side| connection.disconnect(fabric, side));
    }

    fn abort(&mut self, endpoint: EndpointId) {
        self.on(endpoint, |connection, fabric, side| connection.abort(fabric, side));
    }
}

impl Drop for SimAdapter {
    fn drop(&mut self) {
        self.shared.lock().drop_port(self.port);
    }
}
