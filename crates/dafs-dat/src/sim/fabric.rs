//! The state that all connections share: time, the schedule, the adapters' memory and event queues,
//! random choices.

use super::connection::Side;
use super::digest::SimDigest;
use super::faults::SimFaults;
use super::limits::GRID;
use super::rng::SimRng;
use crate::types::{
    Access, Completion, EndpointId, Event, ListenerId, LocalSegment, Operation, PeerInfo,
    PeerProcess, ProtectionDomain, RegionId, RemoteBuffer, RemoteWindow, WorkStatus,
};
use crate::{Instant, MemoryRegion, PostError, RegionTable, RegisterError};
use dafs_mem::{Buffer, PAGE_BYTES, VolatileSlice};
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// The user and the group of all processes of one host.
const NOBODY: u32 = 65534;

/// A scheduled event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wake {
    /// A connection request reaches the listener's host.
    ConnectArrive,
    /// A refusal by the network reaches the connector.
    ConnectRefused,
    /// The connector's timeout expires.
    ConnectTimeout,
    /// The application's answer reaches the connector.
    AnswerArrive,
    /// The acceptor's connection is up.
    AcceptorUp,
    /// This side transmits its next piece.
    Transmit(Side),
    /// Pieces reach this side.
    Arrive(Side),
    /// This side reports transmitted work.
    LocalDone(Side),
    /// This side learns that the link is lost.
    Notice(Side),
    /// This side's timeout for the partition with this number expires.
    GiveUp(Side, u64),
}

/// Totals of a world, for reports and for tests that check their own coverage.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SimCounts {
    /// Connections that were established.
    pub connections: u64,
    /// Connections whose link was lost.
    pub lost: u64,
    /// Messages received completely.
    pub messages: u64,
    /// Messages and transfers of which only a part arrived.
    pub torn: u64,
    /// Bytes placed by RDMA.
    pub rdma_bytes: u64,
    /// Connections that ended because a side broke a rule of the transport.
    pub violations: u64,
}

/// One adapter as the network sees it.
#[derive(Debug)]
pub(super) struct Port {
    pub(super) host: u32,
    pub(super) regions: RegionTable,
    /// Simulated and real start address of each key's region. Peers see simulated addresses, so
    /// that messages are the same bytes in every run.
    pub(super) bases: FxHashMap<u32, (u64, u64)>,
    pub(super) keys: FxHashMap<RegionId, u32>,
    /// The endpoint whose peer may map or read a region that is granted to it, and the region's domain,
    /// by key.
    pub(super) granted: FxHashMap<u32, (EndpointId, ProtectionDomain)>,
    /// RDMA reads of such regions so far.
    pub(super) granted_reads: u64,
    pub(super) domains: u32,
    pub(super) ready: VecDeque<Event>,
    /// Endpoints with work held back.
    pub(super) dirty: Vec<EndpointId>,
    pub(super) listener: Option<ListenerId>,
    pub(super) rng: SimRng,
    pub(super) dropped: bool,
}

impl Port {
    /// Makes a protection domain.
    pub(super) fn new_domain(&mut self) -> ProtectionDomain {
        self.domains += 1;
        ProtectionDomain(self.domains)
    }

    /// Registers a buffer under a simulated address.
    pub(super) fn register(
        &mut self,
        domain: ProtectionDomain,
        buffer: Arc<Buffer>,
        access: Access,
    ) -> Result<MemoryRegion, RegisterError> {
        let rng = &mut self.rng;
        let region = self.regions.register(domain, buffer, access, || rng.bits() as u32)?;
        // Real addresses differ from run to run; peers and digests see these instead.
        let base = (1 + rng.below(1 << 40)) * PAGE_BYTES as u64;
        self.bases.insert(region.key, (base, region.address));
        self.keys.insert(region.id, region.key);
        Ok(MemoryRegion { address: base, ..region })
    }

    /// Ends a registration.
    pub(super) fn deregister(&mut self, region: RegionId) {
        self.regions.deregister(region);
        if let Some(key) = self.keys.remove(&region) {
            self.bases.remove(&key);
        }
    }

    /// Registers a buffer for the peer of one endpoint alone.
    pub(super) fn grant(&mut self, to: EndpointId, buffer: Arc<Buffer>) -> Option<MemoryRegion> {
        let domain = self.new_domain();
        let region = self.register(domain, buffer, Access::REMOTE_READ).ok()?;
        self.granted.insert(region.key, (to, domain));
        Some(region)
    }

    /// Ends a grant to the peer of an endpoint.
    pub(super) fn revoke(&mut self, from: EndpointId, region: RegionId) {
        let Some(key) = self.keys.get(&region).copied() else { return };
        if self.granted.get(&key).is_some_and(|(endpoint, _)| *endpoint == from) {
            self.granted.remove(&key);
            self.deregister(region);
        }
    }

    /// The memory that is granted to the peer of an endpoint, for reading alone.
    pub(super) fn granted_window(
        &self,
        endpoint: EndpointId,
        remote: RemoteBuffer,
        need: Access,
    ) -> Option<RemoteWindow> {
        let (owner, domain) = *self.granted.get(&remote.key)?;
        let (segment, view) = self.find(domain, remote, need).ok()?;
        let buffer = self.regions.buffer(segment.region).filter(|_| owner == endpoint)?.clone();
        // SAFETY: the range lies inside the buffer, which the window keeps alive, and is writable.
        Some(unsafe { RemoteWindow::read_only(view.as_ptr(), view.len(), buffer) })
    }

    /// The memory that a peer names by a simulated address.
    pub(super) fn remote(
        &self,
        domain: ProtectionDomain,
        remote: RemoteBuffer,
        need: Access,
    ) -> Result<VolatileSlice<'_>, PostError> {
        self.find(domain, remote, need).map(|(_, view)| view)
    }

    /// The memory that the peer of an endpoint names to read it: of the endpoint's domain, or granted
    /// to that peer.
    pub(super) fn readable(
        &self,
        (endpoint, domain): (Option<EndpointId>, ProtectionDomain),
        remote: RemoteBuffer,
    ) -> Result<VolatileSlice<'_>, PostError> {
        let granted = self.granted.get(&remote.key);
        let granted = granted.filter(|(owner, _)| Some(*owner) == endpoint);
        let domain = granted.map_or(domain, |(_, domain)| *domain);
        self.remote(domain, remote, Access::REMOTE_READ)
    }

    /// The same memory as a window that keeps it alive.
    pub(super) fn window(
        &self,
        domain: ProtectionDomain,
        remote: RemoteBuffer,
        need: Access,
    ) -> Option<RemoteWindow> {
        let (segment, view) = self.find(domain, remote, need).ok()?;
        let buffer = self.regions.buffer(segment.region)?.clone();
        // SAFETY: the range lies inside the buffer, which the window keeps alive.
        Some(unsafe { RemoteWindow::new(view.as_ptr(), view.len(), buffer) })
    }

    /// Invalidates a key.
    pub(super) fn invalidate(
        &mut self,
        domain: ProtectionDomain,
        key: u32,
    ) -> Result<(), PostError> {
        let region = self.regions.invalidate(domain, key)?;
        self.bases.remove(&key);
        self.keys.remove(&region);
        Ok(())
    }

    fn find(
        &self,
        domain: ProtectionDomain,
        remote: RemoteBuffer,
        need: Access,
    ) -> Result<(LocalSegment, VolatileSlice<'_>), PostError> {
        let &(simulated, real) = self.bases.get(&remote.key).ok_or(PostError::Region)?;
        // A shift modulo 2^64: an address outside of the simulated range stays outside of the real
        // one.
        let address = remote.address.wrapping_sub(simulated).wrapping_add(real);
        let shifted = RemoteBuffer { address, ..remote };
        let found = self.regions.remote(domain, shifted, need)?;
        Ok((found.0, found.1.view()))
    }
}

/// All state but the connections.
#[derive(Debug)]
pub(super) struct Fabric {
    pub(super) now: Instant,
    pub(super) rng: SimRng,
    pub(super) faults: SimFaults,
    /// By time, then by a drawn number (unrelated events at one instant come in any order), then by
    /// age.
    schedule: BTreeMap<(Instant, u32, u64), (u64, Wake)>,
    sequence: u64,
    pub(super) ports: Vec<Port>,
    pub(super) endpoints: FxHashMap<EndpointId, (u64, Side)>,
    pub(super) paused: BTreeMap<u32, Instant>,
    pub(super) blocked: BTreeSet<(u32, u32)>,
    pub(super) partitions: u64,
    /// True if peers may access each other's memory directly, as over shared memory.
    pub(super) maps_memory: bool,
    /// True if all hosts are processes of one host, which can show memory to each other.
    pub(super) grants_memory: bool,
    /// True if peers read memory that is granted to them by RDMA.
    pub(super) grants_reads: bool,
    pub(super) digest: SimDigest,
    pub(super) counts: SimCounts,
}

impl Fabric {
    pub(super) fn new(seed: u64, faults: SimFaults) -> Self {
        Self {
            now: Instant(0),
            rng: SimRng::new(seed),
            faults,
            schedule: BTreeMap::new(),
            sequence: 0,
            ports: Vec::new(),
            endpoints: FxHashMap::default(),
            paused: BTreeMap::new(),
            blocked: BTreeSet::new(),
            partitions: 0,
            maps_memory: false,
            grants_memory: false,
            grants_reads: false,
            digest: SimDigest::default(),
            counts: SimCounts::default(),
        }
    }

    pub(super) fn at(&mut self, time: Instant, connection: u64, wake: Wake) {
        let tie = self.rng.bits() as u32;
        self.sequence += 1;
        self.schedule.insert((time, tie, self.sequence), (connection, wake));
    }

    pub(super) fn after(&mut self, delay: Duration, connection: u64, wake: Wake) {
        self.at(self.now + delay, connection, wake);
    }

    pub(super) fn next_time(&self) -> Option<Instant> {
        self.schedule.first_key_value().map(|((time, _, _), _)| *time)
    }

    pub(super) fn scheduled(&self) -> usize {
        self.schedule.len()
    }

    pub(super) fn next_until(&mut self, limit: Instant) -> Option<(Instant, u64, Wake)> {
        let entry = self.schedule.first_entry().filter(|entry| entry.key().0 <= limit)?;
        let ((time, _, _), (connection, wake)) = entry.remove_entry();
        Some((time, connection, wake))
    }

    pub(super) fn steps(&mut self, max: u32) -> Duration {
        GRID * (1 + self.rng.below(u64::from(max)) as u32)
    }

    /// The identity of a peer on this host.
    pub(super) fn peer(&self, host: u32) -> PeerInfo {
        let process = PeerProcess { pid: host as i32, uid: NOBODY, gid: NOBODY };
        let process = self.grants_memory.then_some(process);
        PeerInfo { process, sim_host: Some(host), ..PeerInfo::default() }
    }

    /// The time one hop takes.
    pub(super) fn hop(&mut self) -> Duration {
        let slow = self.rng.chance(self.faults.slow_ppm);
        self.steps(if slow { self.faults.slow_steps_max } else { self.faults.delay_steps_max })
    }

    /// The delay after which a side notices that the link is lost.
    pub(super) fn notice(&mut self) -> Duration {
        if self.rng.chance(self.faults.silent_ppm) {
            let steps = self.faults.silence.as_micros() / GRID.as_micros();
            return self.steps(u32::try_from(steps).unwrap_or(u32::MAX));
        }
        self.steps(self.faults.notice_steps_max)
    }

    pub(super) fn is_blocked(&self, a: u32, b: u32) -> bool {
        self.blocked.contains(&(a.min(b), a.max(b)))
    }

    pub(super) fn paused_until(&self, port: usize) -> Option<Instant> {
        let until = *self.paused.get(&self.ports[port].host)?;
        (until > self.now).then_some(until)
    }

    /// Queues an event for an adapter.
    pub(super) fn report(&mut self, port: usize, event: Event) {
        self.hash(&[self.now.0, port as u64]);
        match &event {
            Event::Completion(completion) => self.hash_completion(completion),
            Event::ConnectRequest { request, private_data, .. } => {
                self.hash(&[1, request.0]);
                self.digest.bytes(private_data);
            }
            Event::Established { endpoint, private_data } => {
                self.hash(&[2, endpoint.0]);
                self.digest.bytes(private_data);
            }
            Event::ConnectFailed { endpoint, error } => {
                self.hash(&[3, endpoint.0]);
                self.digest.bytes(error.to_string().as_bytes());
            }
            Event::Disconnected { endpoint, reason } => {
                self.hash(&[4, endpoint.0]);
                self.digest.bytes(reason.to_string().as_bytes());
            }
        }
        if !self.ports[port].dropped {
            self.ports[port].ready.push_back(event);
        }
    }

    pub(super) fn complete(
        &mut self,
        port: usize,
        endpoint: Option<EndpointId>,
        work: u64,
        operation: Operation,
        status: WorkStatus,
    ) {
        if let Some(endpoint) = endpoint {
            let invalidated = None;
            let completion = Completion { endpoint, work, operation, status, invalidated };
            self.report(port, Event::Completion(completion));
        }
    }

    /// Handles a complete message.
    pub(super) fn received(
        &mut self,
        port: usize,
        endpoint: Option<EndpointId>,
        work: u64,
        bytes: u32,
        invalidated: Option<u32>,
    ) {
        if let Some(endpoint) = endpoint {
            let (operation, status) = (Operation::Receive, WorkStatus::Ok(bytes));
            let completion = Completion { endpoint, work, operation, status, invalidated };
            self.report(port, Event::Completion(completion));
        }
    }

    fn hash_completion(&mut self, completion: &Completion) {
        let operation = match completion.operation {
            Operation::Receive => 10,
            Operation::Send => 11,
            Operation::RdmaWrite => 12,
            Operation::RdmaRead => 13,
        };
        let status = match completion.status {
            WorkStatus::Ok(bytes) => u64::from(bytes),
            WorkStatus::Flushed => u64::MAX,
        };
        self.hash(&[completion.endpoint.0, completion.work, operation, status]);
        if let Some(key) = completion.invalidated {
            self.hash(&[u64::from(key)]);
        }
    }

    fn hash(&mut self, words: &[u64]) {
        words.iter().for_each(|word| self.digest.word(*word));
    }
}
