//! The adapter's side: registered memory, posted work, and the account of what completes.

use super::peer::{Peer, fresh_address};
use super::stream::Memory;
use dafs_dat::iwarp::{IwarpAdapter, IwarpConfig};
use dafs_dat::{
    Access, Adapter, Address, EndpointId, Event, Instant, LocalSegment, MemoryRegion, Operation,
    ProtectionDomain, RemoteBuffer, RequestId, WorkStatus,
};
use dafs_mem::Buffer;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// The content of memory that the peer must not see. No step of a stream repeats it.
pub const SECRET: [u8; 4] = [0xde, 0xad, 0xc0, 0xde];
/// The content of memory that the peer may read but not change.
const OPEN: u8 = 0x11;
const REGION_BYTES: usize = 16 * 1024;
const RECEIVE_BYTES: usize = 2048;
const RECEIVES: usize = 6;
/// Rounds in a row without news after which nothing is under way any more, as loopback goes.
const QUIET_ROUNDS: u32 = 3;
/// Rounds, most of them with a little sleep, within which an end must be reported.
const END_ROUNDS_MAX: u32 = 20_000;

struct Region {
    buffer: Arc<Buffer>,
    region: MemoryRegion,
}

pub struct World {
    adapter: IwarpAdapter,
    now: Instant,
    domain: ProtectionDomain,
    /// The peer may read and write.
    target: Region,
    /// The peer may read.
    source: Region,
    /// Receives and reads of ours land here; nothing for the peer.
    inbox: Region,
    /// Of another domain.
    foreign: Region,
    /// Of this domain, for nobody else.
    private: Region,
    request: Option<RequestId>,
    endpoint: Option<EndpointId>,
    established: bool,
    over: bool,
    /// Posted and not completed, in order: receives, sends, writes, reads.
    posted: [VecDeque<u64>; 4],
    /// Keys that the peer has invalidated.
    dead: Vec<u32>,
}

fn region(
    adapter: &mut IwarpAdapter,
    domain: ProtectionDomain,
    access: Access,
    fill: &[u8; 4],
) -> Region {
    let buffer = Arc::new(Buffer::zeroed(REGION_BYTES).expect("a few pages"));
    buffer
        .slice(0, REGION_BYTES)
        .expect("all")
        .copy_from(&fill.repeat(REGION_BYTES / fill.len()), dafs_mem::Site::Inspect);
    let region = adapter.register(domain, buffer.clone(), access).expect("few regions");
    Region { buffer, region }
}

fn queue(operation: Operation) -> usize {
    match operation {
        Operation::Receive => 0,
        Operation::Send => 1,
        Operation::RdmaWrite => 2,
        Operation::RdmaRead => 3,
    }
}

impl World {
    pub fn new(crc: bool, announce: bool) -> Self {
        let config = IwarpConfig { crc, announce, inbound_reads_max: 3, ..IwarpConfig::default() };
        let mut adapter = IwarpAdapter::new(config).expect("good settings");
        let (domain, other) = (adapter.protection_domain(), adapter.protection_domain());
        let all = Access::all();
        let target = region(&mut adapter, domain, all, &[0; 4]);
        let source = region(&mut adapter, domain, Access::REMOTE_READ, &[OPEN; 4]);
        let inbox = region(&mut adapter, domain, Access::LOCAL_WRITE, &SECRET);
        let foreign = region(&mut adapter, other, all, &SECRET);
        let private = region(&mut adapter, domain, Access::empty(), &SECRET);
        Self {
            adapter,
            now: Instant(1),
            domain,
            target,
            source,
            inbox,
            foreign,
            private,
            request: None,
            endpoint: None,
            established: false,
            over: false,
            posted: Default::default(),
            dead: Vec::new(),
        }
    }

    /// Regions that the peer knows: some of their keys are valid.
    pub fn memory(&self) -> [Memory; 5] {
        [&self.target, &self.source, &self.inbox, &self.foreign, &self.private]
            .map(|region| Memory { key: region.region.key, base: region.region.address })
    }

    pub fn listen(&mut self) -> SocketAddr {
        let listener = self.adapter.listen(&Address::Tcp(fresh_address())).expect("an address");
        match self.adapter.listener_address(listener) {
            Some(Address::Tcp(address)) => address,
            other => panic!("a TCP listener at {other:?}"),
        }
    }

    pub fn connect(&mut self, address: SocketAddr) {
        let connected = self.adapter.connect(self.domain, &Address::Tcp(address), b"hello");
        self.endpoint = Some(connected.expect("a listener on this host"));
    }

    /// Accepts or rejects a request, if one has come.
    pub fn answer(&mut self, accept: bool) {
        let Some(request) = self.request.take() else { return };
        if accept {
            self.endpoint = self.adapter.accept(request, self.domain, b"welcome").ok();
        } else {
            self.adapter.reject(request, b"no");
        }
    }

    /// Posts receives, and the other work that the bits choose.
    pub fn post(&mut self, bits: u8) {
        let Some(endpoint) = self.endpoint else { return };
        let piece = |region: &Region, index: usize| LocalSegment {
            region: region.region.id,
            offset: index * RECEIVE_BYTES,
            len: RECEIVE_BYTES,
        };
        let remote = RemoteBuffer { key: 7, address: 0x1000, len: RECEIVE_BYTES as u32 };
        for index in 0..RECEIVES {
            let segment = piece(&self.inbox, index);
            if self.adapter.post_receive(endpoint, index as u64, segment).is_ok() {
                self.posted[0].push_back(index as u64);
            }
        }
        for index in 0..usize::from(bits & 0x03) {
            let segments = [piece(&self.source, index)];
            if self.adapter.post_send(endpoint, index as u64, &segments).is_ok() {
                self.posted[1].push_back(index as u64);
            }
            if bits & 0x04 != 0
                && self.adapter.rdma_write(endpoint, index as u64, &segments, remote).is_ok()
            {
                self.posted[2].push_back(index as u64);
            }
            let sink = piece(&self.inbox, RECEIVES + index % 2);
            if bits & 0x08 != 0
                && self.adapter.rdma_read(endpoint, index as u64, sink, remote).is_ok()
            {
                self.posted[3].push_back(index as u64);
            }
        }
        if bits & 0x10 != 0 {
            self.adapter.expect_remote_writes(endpoint, 1 << 20);
        }
    }

    /// One poll. Returns whether anything was reported.
    pub fn turn(&mut self) -> bool {
        self.now = Instant(self.now.0 + 1000);
        let mut events = Vec::new();
        let count = self.adapter.poll(self.now, &mut events);
        assert_eq!(count, events.len());
        for event in events {
            self.take(event);
        }
        count > 0
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::ConnectRequest { request, .. } => {
                assert!(self.request.is_none() && self.endpoint.is_none());
                self.request = Some(request);
            }
            Event::Established { endpoint, .. } => {
                self.of_ours(endpoint);
                assert!(!self.established, "established twice");
                self.established = true;
            }
            Event::Completion(completion) => {
                self.of_ours(completion.endpoint);
                let posted = &mut self.posted[queue(completion.operation)];
                assert_eq!(posted.pop_front(), Some(completion.work), "out of order or twice");
                if let WorkStatus::Ok(bytes) = completion.status {
                    assert!(bytes as usize <= RECEIVE_BYTES);
                }
                if let Some(key) = completion.invalidated {
                    assert!(completion.operation == Operation::Receive);
                    assert!([&self.target, &self.source].iter().any(|r| r.region.key == key));
                    assert!(!self.dead.contains(&key), "a key dies once");
                    self.dead.push(key);
                }
            }
            Event::ConnectFailed { endpoint, error } => {
                self.of_ours(endpoint);
                assert!(!self.established && !error.to_string().is_empty());
                self.over = true;
            }
            Event::Disconnected { endpoint, reason } => {
                self.of_ours(endpoint);
                assert!(!reason.to_string().is_empty());
                self.over = true;
            }
        }
        if self.over {
            assert!(self.posted.iter().all(VecDeque::is_empty), "work is lost: {:?}", self.posted);
        }
    }

    fn of_ours(&self, endpoint: EndpointId) {
        assert_eq!(self.endpoint, Some(endpoint));
        assert!(!self.over, "something is reported after the end");
    }

    /// Goes on until nothing more happens.
    pub fn settle(&mut self, peer: &mut Peer) {
        let mut quiet = 0;
        while quiet < QUIET_ROUNDS {
            let news = self.turn() | peer.listen();
            quiet = if news { 0 } else { quiet + 1 };
        }
    }

    pub fn disconnect(&mut self) {
        if let Some(endpoint) = self.endpoint {
            self.adapter.disconnect(endpoint);
        }
    }

    pub fn abort(&mut self) {
        if let Some(endpoint) = self.endpoint {
            self.adapter.abort(endpoint);
        }
    }

    /// The peer is done; the adapter must come to an end, its timers at the latest.
    pub fn end(&mut self, peer: &mut Peer) {
        for round in 0..END_ROUNDS_MAX {
            self.turn();
            peer.listen();
            let over = self.over || self.endpoint.is_none();
            if over && self.adapter.socket_count() == 0 {
                return;
            }
            if round > 50 {
                // All timers have run out by now; the rest is up to the kernel.
                self.now = self.now + Duration::from_secs(60);
                peer.reset();
            }
            if round > 200 {
                std::thread::sleep(Duration::from_micros(50));
            }
        }
        panic!("over: {}, {} sockets left", self.over, self.adapter.socket_count());
    }

    /// Memory that was not the peer's is as it was.
    pub fn check(&self) {
        let holds = |region: &Region, fill: [u8; 4]| {
            region.buffer.slice(0, REGION_BYTES).expect("all").scan(|bytes| {
                assert!(bytes.chunks(fill.len()).all(|part| part == fill), "memory was changed");
            });
        };
        holds(&self.source, [OPEN; 4]);
        holds(&self.foreign, SECRET);
        holds(&self.private, SECRET);
    }
}
