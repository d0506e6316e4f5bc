//! The simulated provider: a network in memory whose every delay, order and fault follows from a
//! seed.
//!
//! The adapters share one [`SimNetwork`]. The network does not run by itself: the driver of a world
//! asks for the [next event](SimNetwork::next_event) and [advances the
//! time](SimNetwork::advance_to); adapters then report the delivered events.
//!
//! Each direction of a connection is a stream of bytes. Messages and RDMA transfers cross it in
//! pieces, and it can be lost after any byte. Bytes before the loss are placed, the rest is not; a
//! send that was reported as transmitted may never arrive. The two sides learn of the loss at
//! different times. Connections overtake each other, but each keeps its own order.
//!
//! Invariants
//! * The same seed and the same calls give the same events; [`SimNetwork::digest`] proves it.
//! * Work is held back until the adapter is flushed or polled, and bytes are taken from memory as
//!   late as the contract allows. So code that forgets to flush, or reuses memory too early, fails
//!   here.
//! * The acceptor's work waits until the connector has sent.

mod adapter;
mod connection;
mod digest;
mod fabric;
mod faults;
mod limits;
mod network;
mod rng;
mod seeds;
mod teardown;
mod transfer;

pub use adapter::SimAdapter;
pub use digest::SimDigest;
pub use fabric::SimCounts;
pub use faults::SimFaults;
pub use rng::SimRng;
pub use seeds::seeds_of_the_day;

use crate::{EndpointId, Instant, RegionTable};
use connection::{Side, Stage};
use dafs_mem::Mutex;
use fabric::Port;
use network::Network;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::sync::Arc;

type Shared = Arc<Mutex<Network>>;

/// The direction of bytes, seen from an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Away from it.
    Outgoing,
    /// Towards it.
    Incoming,
}

/// A simulated network. Clones share the network.
#[derive(Debug, Clone)]
pub struct SimNetwork {
    shared: Shared,
}

impl SimNetwork {
    /// A network whose delays and faults follow from `seed`.
    pub fn new(seed: u64, faults: SimFaults) -> Self {
        Self { shared: Arc::new(Mutex::new(Network::new(seed, faults))) }
    }

    /// A new process on a host. A host may have several; one of them may listen.
    pub fn adapter(&self, host: u32) -> SimAdapter {
        let mut network = self.shared.lock();
        let rng = network.fabric.rng.fork();
        let port = network.fabric.ports.len();
        network.fabric.ports.push(Port {
            host,
            regions: RegionTable::new(),
            bases: FxHashMap::default(),
            keys: FxHashMap::default(),
            granted: FxHashMap::default(),
            granted_reads: 0,
            domains: 0,
            ready: VecDeque::new(),
            dirty: Vec::new(),
            listener: None,
            rng,
            dropped: false,
        });
        SimAdapter::new(self.shared.clone(), port)
    }

    /// The current simulated time.
    pub fn now(&self) -> Instant {
        self.shared.lock().fabric.now
    }

    /// The time of the next event, if there is one.
    pub fn next_event(&self) -> Option<Instant> {
        self.shared.lock().fabric.next_time()
    }

    /// The number of events to come.
    pub fn scheduled(&self) -> usize {
        self.shared.lock().fabric.scheduled()
    }

    /// Runs all events that are due until `now`.
    pub fn advance_to(&self, now: Instant) {
        self.shared.lock().advance_to(now);
    }

    /// Changes the knobs; losses already planned for existing connections stay planned.
    pub fn set_faults(&self, faults: SimFaults) {
        self.shared.lock().fabric.faults = faults;
    }

    /// Lets peers reach each other's memory directly ([`Adapter::map_remote`](
    /// crate::Adapter::map_remote)), as over shared memory.
    pub fn map_memory(&self, maps: bool) {
        self.shared.lock().fabric.maps_memory = maps;
    }

    /// Makes all adapters processes of one host, of the user nobody. They can then show memory to each
    /// other ([`Adapter::grant`](crate::Adapter::grant)).
    pub fn grant_memory(&self, grants: bool) {
        self.shared.lock().fabric.grants_memory = grants;
    }

    /// Decides if peers read memory by RDMA that is granted to them
    /// ([`Adapter::can_grant_reads`](crate::Adapter::can_grant_reads)).
    pub fn grant_reads(&self, grants: bool) {
        self.shared.lock().fabric.grants_reads = grants;
    }

    /// Ends all trouble: no faults, no planned losses, no partition, no pause. Lost connections
    /// stay lost, and both sides still learn of it with their own delay.
    pub fn calm(&self) {
        let mut network = self.shared.lock();
        network.fabric.faults = SimFaults::none();
        network.fabric.paused.clear();
        for connection in network.connections.values_mut() {
            connection.halves.iter_mut().for_each(|half| half.line.cut = None);
        }
        let blocked: Vec<_> = network.fabric.blocked.iter().copied().collect();
        blocked.into_iter().for_each(|(a, b)| network.partition(a, b, false));
    }

    /// Partitions two hosts, or joins them again. Traffic in flight waits; after some seconds the
    /// sides time out independently.
    pub fn partition(&self, a: u32, b: u32, apart: bool) {
        self.shared.lock().partition(a, b, apart);
    }

    /// Pauses a host until `until`, including its network stack.
    pub fn pause(&self, host: u32, until: Instant) {
        self.shared.lock().fabric.paused.insert(host, until);
    }

    /// Ends every process of a host suddenly. Its adapters must not be used any more.
    pub fn end_processes(&self, host: u32) {
        let mut network = self.shared.lock();
        let ports: Vec<usize> = (0..network.fabric.ports.len())
            .filter(|port| network.fabric.ports[*port].host == host)
            .filter(|port| !network.fabric.ports[*port].dropped)
            .collect();
        ports.into_iter().for_each(|port| network.drop_port(port));
    }

    /// True if a host is paused now.
    pub fn is_paused(&self, host: u32) -> bool {
        let network = self.shared.lock();
        network.fabric.paused.get(&host).is_some_and(|until| *until > network.fabric.now)
    }

    /// True if a host has events to poll.
    pub fn is_ready(&self, host: u32) -> bool {
        self.shared
            .lock()
            .fabric
            .ports
            .iter()
            .any(|port| port.host == host && !port.ready.is_empty())
    }

    /// The live endpoints of a host, in the order of creation.
    pub fn endpoints(&self, host: u32) -> Vec<EndpointId> {
        let network = self.shared.lock();
        let of_host = |half: &&connection::Half| {
            network.fabric.ports[half.port].host == host && half.stage != Stage::Closed
        };
        let halves = network.connections.values().flat_map(|connection| &connection.halves);
        let mut endpoints: Vec<_> = halves.filter(of_host).filter_map(|h| h.endpoint).collect();
        endpoints.sort_unstable();
        endpoints
    }

    /// Loses the connection after `bytes` more bytes in one direction (a message or transfer counts
    /// 24 bytes besides its payload). False when there is no such endpoint.
    pub fn cut_after(&self, endpoint: EndpointId, direction: Direction, bytes: u64) -> bool {
        let cut = |connection: &mut connection::Connection, _: &mut fabric::Fabric, side: Side| {
            let sender = if direction == Direction::Outgoing { side } else { side.other() };
            let line = &mut connection.half_mut(sender).line;
            line.cut = Some(line.position.saturating_add(bytes));
        };
        self.shared.lock().on_endpoint(endpoint, cut).is_some()
    }

    /// Loses the connection now. False when there is no such endpoint.
    pub fn lose(&self, endpoint: EndpointId) -> bool {
        let mut network = self.shared.lock();
        let lose = |connection: &mut connection::Connection, fabric: &mut fabric::Fabric, _| {
            connection.lose(fabric, None, "the connection was cut");
        };
        network.on_endpoint(endpoint, lose).is_some()
    }

    /// Receives posted on an endpoint and not yet consumed; 0 when it no longer exists.
    pub fn posted_receives(&self, endpoint: EndpointId) -> usize {
        let count = |connection: &mut connection::Connection, _: &mut fabric::Fabric, side| {
            connection.half(side).receives.len()
        };
        self.shared.lock().on_endpoint(endpoint, count).unwrap_or(0)
    }

    /// Memory regions registered by all processes of a host.
    pub fn region_count(&self, host: u32) -> usize {
        let network = self.shared.lock();
        let of_host = network.fabric.ports.iter().filter(|port| port.host == host);
        of_host.map(|port| port.keys.len()).sum()
    }

    /// The connections of a host of which at least one side has not reported its end.
    pub fn connections(&self, host: u32) -> Vec<u64> {
        let network = self.shared.lock();
        let touches = |connection: &&connection::Connection| {
            connection.halves.iter().any(|half| network.fabric.ports[half.port].host == host)
        };
        network.connections.values().filter(touches).map(|connection| connection.id).collect()
    }

    /// Connections of which at least one side has not reported its end.
    pub fn connection_count(&self) -> usize {
        self.shared.lock().connections.len()
    }

    /// A hash over every event and every payload byte delivered so far.
    pub fn digest(&self) -> u64 {
        self.shared.lock().fabric.digest.value()
    }

    /// Totals since the start.
    pub fn counts(&self) -> SimCounts {
        self.shared.lock().fabric.counts
    }
}
