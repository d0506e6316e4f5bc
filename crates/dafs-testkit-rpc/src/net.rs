//! The simulated network with a server on it, and the steps of a world.

use super::program::Program;
use super::raw::Raw;
use dafs_dat::sim::{SimFaults, SimNetwork};
use dafs_dat::{Adapter, Address, Instant};
use dafs_rpc::server::{Config, Group, RdmaReactor};
use std::time::Duration;

pub const SERVER_HOST: u32 = 1;

/// Steps within which a network must become quiet.
const STEPS_MAX: usize = 1_000_000;
/// Outgoing messages per registration of the server. The server keeps the registration.
const SENDS_PER_REGION: usize = 32;

/// The network, and perhaps the product's server.
pub struct Net {
    pub network: SimNetwork,
    pub program: Program,
    server: Option<(Group, RdmaReactor<Program>)>,
    credits_max: u32,
    /// At least the network's time; it passes on while the network has no event.
    now: Instant,
}

impl Net {
    /// A server on this network.
    pub fn new(network: SimNetwork, config: Config) -> Self {
        let program = Program::default();
        let credits_max = config.rdma_credits_max;
        let group = Group::new(Vec::new(), 1, config).unwrap();
        let mut adapter = network.adapter(SERVER_HOST);
        adapter.listen(&Address::Sim(SERVER_HOST)).unwrap();
        let handler = program.clone();
        let reactor = group.rdma_reactor(vec![Box::new(adapter)], |_| handler).unwrap();
        let (server, now) = (Some((group, reactor)), Instant(1));
        Self { network, program, server, credits_max, now }
    }

    /// A server on a network that loses nothing.
    pub fn calm(seed: u64) -> Self {
        Self::new(SimNetwork::new(seed, SimFaults::none()), Config::default())
    }

    /// A network without a server, for a test that plays one.
    pub fn without_server() -> Self {
        let network = SimNetwork::new(1, SimFaults::none());
        let program = Program::default();
        Self { network, program, server: None, credits_max: 0, now: Instant(1) }
    }

    pub fn now(&self) -> Instant {
        self.now.max(self.network.now())
    }

    /// The most credits that the server grants.
    pub fn credits_max(&self) -> u32 {
        self.credits_max
    }

    /// Runs a turn of the server, unless its host is paused. Returns true if it had work.
    pub fn serve_once(&mut self) -> bool {
        let now = self.now();
        match &mut self.server {
            Some((_, reactor)) if !self.network.is_paused(SERVER_HOST) => reactor.turn(now.0),
            _ => false,
        }
    }

    /// Runs the next event of the network. Returns false when there is none.
    pub fn travel(&mut self) -> bool {
        let Some(at) = self.network.next_event() else { return false };
        self.now = self.now().max(at);
        self.network.advance_to(self.now);
        true
    }

    /// Runs everything until no event is left.
    pub fn settle_with(&mut self, raws: &mut [&mut Raw], mut poll: impl FnMut(Instant)) {
        for _ in 0..STEPS_MAX {
            let mut busy = self.serve_once();
            for raw in raws.iter_mut() {
                busy |= raw.poll(self.now());
            }
            poll(self.now());
            if !self.travel() && !busy {
                return;
            }
        }
        panic!("the network does not come to rest");
    }

    pub fn settle(&mut self, raws: &mut [&mut Raw]) {
        self.settle_with(raws, |_| ());
    }

    /// Runs at most `count` steps, until no event is left. Returns the number of steps.
    pub fn steps(&mut self, raw: &mut Raw, count: usize) -> usize {
        raw.flush();
        for step in 0..count {
            let busy = self.serve_once() | raw.poll(self.now());
            if !self.travel() && !busy {
                return step;
            }
        }
        count
    }

    /// Lets time pass in steps of a second while only the server runs.
    pub fn pass(&mut self, time: Duration) {
        for _ in 0..time.as_secs() {
            self.now = self.now() + Duration::from_secs(1);
            self.network.advance_to(self.now);
            while self.serve_once() {}
        }
    }

    /// Stops a host, with its network stack, as soon as the server has begun to read from it.
    pub fn stop_when_read(&mut self, host: u32) {
        let reads = |net: &Self| net.server.as_ref().unwrap().0.statistics().rdma_reads;
        while reads(self) == 0 {
            self.serve_once();
            assert!(self.travel(), "the server reads nothing");
        }
        self.network.pause(host, self.now() + Duration::from_secs(3600));
    }

    pub fn resume(&mut self, host: u32) {
        self.network.pause(host, self.now());
    }

    /// Open connections of the server.
    pub fn connections(&self) -> u64 {
        self.server.as_ref().map_or(0, |(group, _)| group.statistics().connections)
    }

    /// Receives that the server has posted on all its connections.
    pub fn posted_receives(&self) -> usize {
        let endpoints = self.network.endpoints(SERVER_HOST);
        endpoints.into_iter().map(|endpoint| self.network.posted_receives(endpoint)).sum()
    }

    /// Checks that the server has no connection and no resource of former ones, except for memory
    /// for as many outgoing messages as there were at a time.
    pub fn assert_idle(&mut self, sends_max: usize) {
        while self.serve_once() {}
        assert_eq!(self.connections(), 0);
        let regions = self.network.region_count(SERVER_HOST);
        assert!(
            regions <= sends_max.div_ceil(SENDS_PER_REGION),
            "{regions} registrations are left"
        );
        let account = self.program.account();
        let mut ended = account.ended.clone();
        ended.sort_unstable();
        ended.dedup();
        assert_eq!(ended.len(), account.ended.len(), "a connection ends once");
    }
}
