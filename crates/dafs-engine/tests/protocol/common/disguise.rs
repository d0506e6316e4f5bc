//! An adapter that makes a simulated host look like another peer to the server. The simulated
//! network's own peers are all trusted, and most of the rules are about untrusted ones.

use dafs_dat::sim::SimAdapter;
use dafs_dat::{
    Access, Adapter, Address, ConnectError, EndpointId, Event, Instant, ListenerId, LocalSegment,
    MemoryRegion, Operation, PeerInfo, PostError, ProtectionDomain, RegionId, RegisterError,
    RemoteBuffer, RemoteWindow, RequestId, Transfer,
};
use dafs_mem::Buffer;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Returns the peer information for a simulated host.
pub type Mask = fn(u32) -> PeerInfo;

/// The adapter.
pub struct Disguise {
    inner: SimAdapter,
    mask: Mask,
    loses: Arc<AtomicBool>,
}

impl Disguise {
    pub fn new(inner: SimAdapter, mask: Mask, loses: Arc<AtomicBool>) -> Self {
        Self { inner, mask, loses }
    }

    /// Loses sends and transfers, and the connection, as a panic in a transport does.
    fn lose(&mut self, events: &mut Vec<Event>) {
        let mut lost = Vec::new();
        events.retain(|event| match event {
            Event::Completion(done) if done.operation != Operation::Receive => {
                lost.push(done.endpoint);
                false
            }
            _ => true,
        });
        lost.dedup();
        lost.into_iter().for_each(|endpoint| self.inner.abort(endpoint));
    }

    fn masked(&self, peer: PeerInfo) -> PeerInfo {
        peer.sim_host.map_or(peer, self.mask)
    }
}

impl Adapter for Disguise {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn allocate(&mut self, bytes: usize) -> io::Result<Arc<Buffer>> {
        self.inner.allocate(bytes)
    }

    fn protection_domain(&mut self) -> ProtectionDomain {
        self.inner.protection_domain()
    }

    fn register(
        &mut self,
        domain: ProtectionDomain,
        buffer: Arc<Buffer>,
        access: Access,
    ) -> Result<MemoryRegion, RegisterError> {
        self.inner.register(domain, buffer, access)
    }

    fn deregister(&mut self, region: RegionId) {
        self.inner.deregister(region);
    }

    fn listen(&mut self, address: &Address) -> io::Result<ListenerId> {
        self.inner.listen(address)
    }

    fn listener_address(&self, listener: ListenerId) -> Option<Address> {
        self.inner.listener_address(listener)
    }

    fn connect(
        &mut self,
        domain: ProtectionDomain,
        address: &Address,
        private_data: &[u8],
    ) -> Result<EndpointId, ConnectError> {
        self.inner.connect(domain, address, private_data)
    }

    fn accept(
        &mut self,
        request: RequestId,
        domain: ProtectionDomain,
        private_data: &[u8],
    ) -> Result<EndpointId, ConnectError> {
        self.inner.accept(request, domain, private_data)
    }

    fn reject(&mut self, request: RequestId, private_data: &[u8]) {
        self.inner.reject(request, private_data);
    }

    fn peer(&self, endpoint: EndpointId) -> Option<PeerInfo> {
        self.inner.peer(endpoint).map(|peer| self.masked(peer))
    }

    fn post_receive(
        &mut self,
        endpoint: EndpointId,
        work: u64,
        segment: LocalSegment,
    ) -> Result<(), PostError> {
        self.inner.post_receive(endpoint, work, segment)
    }

    fn post(
        &mut self,
        endpoint: EndpointId,
        work: u64,
        transfer: Transfer<'_>,
    ) -> Result<(), PostError> {
        self.inner.post(endpoint, work, transfer)
    }

    fn map_remote(
        &mut self,
        endpoint: EndpointId,
        remote: RemoteBuffer,
        need: Access,
    ) -> Option<RemoteWindow> {
        self.inner.map_remote(endpoint, remote, need)
    }

    fn grant(&mut self, endpoint: EndpointId, buffer: &Arc<Buffer>) -> Option<MemoryRegion> {
        self.inner.grant(endpoint, buffer)
    }

    fn can_grant_reads(&self) -> bool {
        self.inner.can_grant_reads()
    }

    fn granted_reads(&self) -> u64 {
        self.inner.granted_reads()
    }

    fn revoke(&mut self, endpoint: EndpointId, region: RegionId) {
        self.inner.revoke(endpoint, region);
    }

    fn expect_remote_writes(&mut self, endpoint: EndpointId, bytes: u64) {
        self.inner.expect_remote_writes(endpoint, bytes);
    }

    fn poll(&mut self, now: Instant, events: &mut Vec<Event>) -> usize {
        let from = events.len();
        let count = self.inner.poll(now, events);
        if self.loses.load(Ordering::Relaxed) {
            self.lose(events);
        }
        for event in &mut events[from..] {
            if let Event::ConnectRequest { peer, .. } = event {
                **peer = self.masked((**peer).clone());
            }
        }
        count
    }

    fn flush(&mut self) {
        self.inner.flush();
    }

    fn arm(&mut self) -> io::Result<bool> {
        self.inner.arm()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.inner.descriptor()
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.inner.next_timeout()
    }

    fn disconnect(&mut self, endpoint: EndpointId) {
        self.inner.disconnect(endpoint);
    }

    fn abort(&mut self, endpoint: EndpointId) {
        self.inner.abort(endpoint);
    }
}
