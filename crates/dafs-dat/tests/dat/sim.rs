//! The simulated provider: its promises beyond the contract of every provider, and the faults that
//! it injects.

use dafs_dat::sim::{Direction, SimAdapter, SimFaults, SimNetwork};
use dafs_dat::{
    Access, Adapter, Address, Completion, ConnectError, DisconnectReason, EndpointId, Event,
    Instant, MemoryRegion, Operation, ProtectionDomain, RemoteBuffer, WorkStatus,
};
use dafs_mem::{Buffer, Site};
use std::sync::Arc;
use std::time::Duration;

/// Bytes that a frame adds to its payload, as `SimNetwork::cut_after` documents.
const HEADER_BYTES: u64 = 24;

struct Peer {
    adapter: SimAdapter,
    domain: ProtectionDomain,
    endpoint: EndpointId,
    buffer: Arc<Buffer>,
    region: MemoryRegion,
    events: Vec<Event>,
}

impl Peer {
    fn new(network: &SimNetwork, host: u32) -> Self {
        let mut adapter = network.adapter(host);
        let domain = adapter.protection_domain();
        let buffer = adapter.allocate(1 << 20).unwrap();
        let all = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let region = adapter.register(domain, buffer.clone(), all).unwrap();
        Self { adapter, domain, endpoint: EndpointId(0), buffer, region, events: Vec::new() }
    }

    fn poll(&mut self) {
        self.adapter.poll(Instant(0), &mut self.events);
    }

    fn fill(&self, offset: usize, bytes: &[u8]) {
        self.buffer.slice(offset, bytes.len()).unwrap().copy_from(bytes, Site::Inspect);
    }

    fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        self.buffer.slice(offset, len).unwrap().to_vec(Site::Inspect)
    }

    fn receive(&mut self, work: u64, offset: usize, len: usize) {
        let segment = self.region.local(offset, len);
        self.adapter.post_receive(self.endpoint, work, segment).unwrap();
    }

    fn send(&mut self, work: u64, offset: usize, len: usize) {
        let segment = self.region.local(offset, len);
        self.adapter.post_send(self.endpoint, work, &[segment]).unwrap();
    }

    fn write(&mut self, work: u64, offset: usize, len: usize, remote: RemoteBuffer) {
        let segment = self.region.local(offset, len);
        self.adapter.rdma_write(self.endpoint, work, &[segment], remote).unwrap();
    }

    fn completions(&self) -> Vec<Completion> {
        let only = |event: &Event| match event {
            Event::Completion(completion) => Some(*completion),
            _ => None,
        };
        self.events.iter().filter_map(only).collect()
    }

    fn status(&self, work: u64) -> Option<WorkStatus> {
        let mut found = self.completions().into_iter().filter(|c| c.work == work);
        let status = found.next().map(|completion| completion.status);
        assert!(found.next().is_none(), "work {work} completed twice");
        status
    }

    fn end(&self) -> Option<DisconnectReason> {
        match self.events.last()? {
            Event::Disconnected { reason, .. } => Some((**reason).clone()),
            _ => None,
        }
    }
}

/// Runs the network until no event is left within `limit`.
fn settle(network: &SimNetwork, peers: &mut [&mut Peer], limit: Duration) {
    let end = network.now() + limit;
    loop {
        peers.iter_mut().for_each(|peer| peer.poll());
        match network.next_event().filter(|at| *at <= end) {
            Some(at) => network.advance_to(at),
            None => break,
        }
    }
    peers.iter_mut().for_each(|peer| peer.poll());
}

const A_WHILE: Duration = Duration::from_millis(100);

/// A connected pair: client on host 2, server on host 1.
fn pair(seed: u64, faults: SimFaults) -> (SimNetwork, Peer, Peer) {
    let network = SimNetwork::new(seed, faults);
    let (mut client, mut server) = (Peer::new(&network, 2), Peer::new(&network, 1));
    server.adapter.listen(&Address::Sim(1)).unwrap();
    client.endpoint = client.adapter.connect(client.domain, &Address::Sim(1), b"hello").unwrap();
    settle(&network, &mut [&mut client, &mut server], A_WHILE);
    let Some(Event::ConnectRequest { request, private_data, peer, .. }) = server.events.pop()
    else {
        panic!("no request arrived");
    };
    assert_eq!((private_data.as_slice(), peer.sim_host), (b"hello".as_slice(), Some(2)));
    server.endpoint = server.adapter.accept(request, server.domain, b"welcome").unwrap();
    settle(&network, &mut [&mut client, &mut server], A_WHILE);
    let up = client.events.pop();
    assert!(
        matches!(up, Some(Event::Established { private_data, .. }) if *private_data == b"welcome")
    );
    assert!(matches!(server.events.pop(), Some(Event::Established { .. })));
    (network, client, server)
}

#[test]
fn messages_writes_and_reads_arrive_in_order() {
    for seed in 0..50 {
        let (network, mut client, mut server) = pair(seed, SimFaults::none());
        server.receive(1, 0, 100);
        server.receive(2, 100, 100);
        client.fill(0, b"first");
        client.fill(10, b"second");
        client.fill(5000, &[7; 100_000]);
        let target = server.region.remote(200_000, 100_000).unwrap();
        client.write(10, 5000, 100_000, target);
        client.send(11, 0, 5);
        client.send(12, 10, 6);
        let source = server.region.remote(200_000, 1000).unwrap();
        let sink = client.region.local(500_000, 1000);
        client.adapter.rdma_read(client.endpoint, 13, sink, source).unwrap();
        while server.status(1).is_none() {
            let next = network.next_event().unwrap();
            network.advance_to(next);
            client.poll();
            server.poll();
        }
        // The write was posted before the send, so it has arrived completely.
        assert_eq!(server.bytes(200_000, 100_000), vec![7; 100_000]);
        settle(&network, &mut [&mut client, &mut server], A_WHILE);
        assert_eq!(server.status(1), Some(WorkStatus::Ok(5)));
        assert_eq!(server.status(2), Some(WorkStatus::Ok(6)));
        assert_eq!((server.bytes(0, 5), server.bytes(100, 6)), (b"first".into(), b"second".into()));
        assert_eq!(client.status(10), Some(WorkStatus::Ok(100_000)));
        assert_eq!(client.status(13), Some(WorkStatus::Ok(1000)));
        assert_eq!(client.bytes(500_000, 1000), vec![7; 1000]);
        client.adapter.disconnect(client.endpoint);
        settle(&network, &mut [&mut client, &mut server], A_WHILE);
        assert_eq!(client.end(), Some(DisconnectReason::Local));
        assert_eq!(server.end(), Some(DisconnectReason::Peer));
        assert_eq!(network.connection_count(), 0);
    }
}

#[test]
fn a_cut_places_exactly_the_bytes_before_it() {
    for bytes in [0, 1, 23, 24, 25, 24 + 4999, 24 + 5000, 24 + 5000 + 24, 24 + 5000 + 24 + 3] {
        let (network, mut client, mut server) = pair(bytes, SimFaults::none());
        server.receive(1, 0, 100);
        client.fill(0, &[9; 5000]);
        client.fill(8000, b"done");
        client.write(10, 0, 5000, server.region.remote(1000, 5000).unwrap());
        client.send(11, 8000, 4);
        assert!(network.cut_after(client.endpoint, Direction::Outgoing, bytes));
        settle(&network, &mut [&mut client, &mut server], Duration::from_secs(1));
        let placed = bytes.saturating_sub(HEADER_BYTES).min(5000) as usize;
        assert_eq!(server.bytes(1000, placed), vec![9; placed], "cut after {bytes}");
        assert_eq!(server.bytes(1000 + placed, 5000 - placed), vec![0; 5000 - placed]);
        assert_eq!(server.status(1), Some(WorkStatus::Flushed));
        assert!(client.status(10).is_some() && client.status(11).is_some());
        assert!(matches!(client.end(), Some(DisconnectReason::Lost(_))));
        assert!(matches!(server.end(), Some(DisconnectReason::Lost(_))));
    }
}

#[test]
fn a_send_without_a_receive_breaks_the_connection() {
    let (network, mut client, mut server) = pair(1, SimFaults::none());
    server.receive(1, 0, 100);
    client.send(10, 0, 5);
    client.send(11, 0, 5);
    settle(&network, &mut [&mut client, &mut server], A_WHILE);
    assert_eq!(server.status(1), Some(WorkStatus::Ok(5)));
    assert!(matches!(server.end(), Some(DisconnectReason::Protocol(_))));
    assert!(matches!(client.end(), Some(DisconnectReason::Terminated(_))));
}

#[test]
fn a_message_longer_than_the_receive_breaks_the_connection() {
    let (network, mut client, mut server) = pair(1, SimFaults::none());
    server.receive(1, 0, 4);
    client.send(10, 0, 5);
    settle(&network, &mut [&mut client, &mut server], A_WHILE);
    assert_eq!(server.status(1), Some(WorkStatus::Flushed));
    assert!(matches!(server.end(), Some(DisconnectReason::Protocol(_))));
}

#[test]
fn forged_keys_ranges_and_dead_registrations_reach_no_memory() {
    type Forge = fn(&mut Peer) -> RemoteBuffer;
    let forgeries: [Forge; 5] = [
        |server| RemoteBuffer {
            key: server.region.key ^ 1,
            ..server.region.remote(0, 64).unwrap()
        },
        |server| {
            let past = server.region.remote((1 << 20) - 63, 63).unwrap();
            RemoteBuffer { len: 64, ..past }
        },
        |server| RemoteBuffer { address: u64::MAX - 3, ..server.region.remote(0, 64).unwrap() },
        |server| {
            let other = server.adapter.protection_domain();
            let buffer = server.buffer.clone();
            let all = Access::REMOTE_READ | Access::REMOTE_WRITE;
            server.adapter.register(other, buffer, all).unwrap().remote(0, 64).unwrap()
        },
        |server| {
            let remote = server.region.remote(0, 64).unwrap();
            server.adapter.deregister(server.region.id);
            remote
        },
    ];
    for (index, forge) in forgeries.into_iter().enumerate() {
        for reading in [false, true] {
            let (network, mut client, mut server) = pair(index as u64, SimFaults::none());
            let remote = forge(&mut server);
            client.fill(0, &[0xee; 64]);
            if reading {
                let sink = client.region.local(100, 64);
                client.adapter.rdma_read(client.endpoint, 10, sink, remote).unwrap();
            } else {
                client.write(10, 0, 64, remote);
            }
            settle(&network, &mut [&mut client, &mut server], A_WHILE);
            assert!(matches!(server.end(), Some(DisconnectReason::Protocol(_))), "{index}");
            assert!(matches!(client.end(), Some(DisconnectReason::Terminated(_))), "{index}");
            assert!(!server.bytes(0, 1 << 20).contains(&0xee));
            assert_eq!(network.counts().violations, 1);
        }
    }
}

#[test]
fn mapped_memory_needs_the_same_rights_and_outlives_its_registration() {
    let (network, mut client, mut server) = pair(2, SimFaults::none());
    let remote = client.region.remote(100, 50).unwrap();
    let need = Access::REMOTE_WRITE;
    assert!(server.adapter.map_remote(server.endpoint, remote, need).is_none());
    network.map_memory(true);
    let forged = RemoteBuffer { key: remote.key ^ 1, ..remote };
    assert!(server.adapter.map_remote(server.endpoint, forged, need).is_none());
    let window = server.adapter.map_remote(server.endpoint, remote, need).unwrap();
    window.view().copy_from(&[3; 50], Site::Inspect);
    assert_eq!(client.bytes(99, 52), [vec![0], vec![3; 50], vec![0]].concat());
    client.adapter.deregister(client.region.id);
    drop(client);
    assert_eq!(window.view().to_vec(Site::Inspect), vec![3; 50]);
    assert!(server.adapter.map_remote(server.endpoint, remote, need).is_none());
}

#[test]
fn granted_memory_is_mapped_by_one_peer_for_reading_until_the_grant_ends() {
    let (network, mut client, mut server) = pair(2, SimFaults::none());
    let buffer = Arc::new(Buffer::zeroed(4096).unwrap());
    assert!(!server.adapter.can_grant());
    assert!(server.adapter.grant(server.endpoint, &buffer).is_none());
    network.grant_memory(true);
    assert!(server.adapter.can_grant());
    assert!(server.adapter.peer(server.endpoint).unwrap().process.is_some());
    let region = server.adapter.grant(server.endpoint, &buffer).unwrap();
    let remote = region.remote(0, 4096).unwrap();
    let need = Access::REMOTE_READ;
    let map = |peer: &mut Peer, need| peer.adapter.map_remote(peer.endpoint, remote, need);
    assert!(map(&mut client, Access::REMOTE_WRITE).is_none());
    assert!(map(&mut server, need).is_none(), "the owner");
    let mut other = Peer::new(&network, 3);
    other.endpoint = other.adapter.connect(other.domain, &Address::Sim(1), b"").unwrap();
    settle(&network, &mut [&mut other, &mut server], A_WHILE);
    let Some(Event::ConnectRequest { request, .. }) = server.events.pop() else { panic!() };
    let second = server.adapter.accept(request, server.domain, b"").unwrap();
    settle(&network, &mut [&mut other, &mut server], A_WHILE);
    assert!(map(&mut other, need).is_none(), "another connection");
    let window = map(&mut client, need).unwrap();
    assert!(!window.is_writable());
    buffer.view().fill(7);
    assert_eq!(window.view().to_vec(Site::Inspect), vec![7; 4096]);
    server.adapter.revoke(second, region.id);
    assert!(map(&mut client, need).is_some(), "a grant of another connection");
    server.adapter.revoke(server.endpoint, region.id);
    assert!(map(&mut client, need).is_none());
    assert_eq!(window.view().to_vec(Site::Inspect), vec![7; 4096]);
}

#[test]
fn refusals_and_timeouts_are_told_apart() {
    let network = SimNetwork::new(3, SimFaults::none());
    let (mut client, mut server) = (Peer::new(&network, 2), Peer::new(&network, 1));
    let attempt = |client: &mut Peer, server: &mut Peer| {
        client.adapter.connect(client.domain, &Address::Sim(1), b"").unwrap();
        settle(&network, &mut [client, server], Duration::from_secs(10));
        match client.events.pop() {
            Some(Event::ConnectFailed { error, .. }) => *error,
            other => panic!("{other:?}"),
        }
    };
    assert!(matches!(attempt(&mut client, &mut server), ConnectError::Io(_)));
    server.adapter.listen(&Address::Sim(1)).unwrap();
    // The request gets no answer.
    assert!(matches!(attempt(&mut client, &mut server), ConnectError::TimedOut(_)));
    let Some(Event::ConnectRequest { request, .. }) = server.events.pop() else { panic!() };
    let late = server.adapter.accept(request, server.domain, b"");
    assert!(matches!(late, Err(ConnectError::Gone)));
    network.partition(1, 2, true);
    assert!(matches!(attempt(&mut client, &mut server), ConnectError::TimedOut(_)));
    assert!(server.events.is_empty());
    network.partition(1, 2, false);
    client.adapter.connect(client.domain, &Address::Sim(1), b"").unwrap();
    settle(&network, &mut [&mut client, &mut server], A_WHILE);
    let Some(Event::ConnectRequest { request, .. }) = server.events.pop() else { panic!() };
    server.adapter.reject(request, b"no");
    settle(&network, &mut [&mut client, &mut server], A_WHILE);
    let Some(Event::ConnectFailed { error, .. }) = client.events.pop() else { panic!() };
    assert!(matches!(*error, ConnectError::Rejected(data) if data == b"no"));
    assert_eq!(network.connection_count(), 0);
}

#[test]
fn a_partition_delays_and_then_breaks() {
    let (network, mut client, mut server) = pair(4, SimFaults::none());
    server.receive(1, 0, 100);
    network.partition(1, 2, true);
    client.send(10, 0, 5);
    settle(&network, &mut [&mut client, &mut server], A_WHILE);
    assert!(server.status(1).is_none());
    network.partition(1, 2, false);
    settle(&network, &mut [&mut client, &mut server], A_WHILE);
    assert_eq!(server.status(1), Some(WorkStatus::Ok(5)));
    network.partition(1, 2, true);
    settle(&network, &mut [&mut client, &mut server], Duration::from_secs(60));
    assert!(matches!(client.end(), Some(DisconnectReason::Lost(_))));
    assert!(matches!(server.end(), Some(DisconnectReason::Lost(_))));
}

#[test]
fn a_paused_host_hears_nothing_until_it_goes_on() {
    let (network, mut client, mut server) = pair(5, SimFaults::none());
    server.receive(1, 0, 100);
    network.pause(1, network.now() + Duration::from_millis(200));
    client.send(10, 0, 5);
    settle(&network, &mut [&mut client, &mut server], A_WHILE);
    assert!(network.is_paused(1) || server.status(1).is_none());
    settle(&network, &mut [&mut client, &mut server], Duration::from_millis(200));
    assert_eq!(server.status(1), Some(WorkStatus::Ok(5)));
}

#[test]
fn the_end_of_a_process_is_noticed() {
    let (network, client, mut server) = pair(6, SimFaults::none());
    server.receive(1, 0, 100);
    drop(client);
    settle(&network, &mut [&mut server], A_WHILE);
    assert_eq!(server.status(1), Some(WorkStatus::Flushed));
    assert!(matches!(server.end(), Some(DisconnectReason::Lost(_))));
    assert_eq!((network.region_count(2), network.connection_count()), (0, 0));
}

/// Sends messages back and forth on a rough network until the connection breaks or all have
/// arrived; returns the digest, and checks that all work completed once.
fn rough_run(seed: u64) -> (u64, bool) {
    let (network, mut client, mut server) = pair(seed, SimFaults::none());
    network.set_faults(SimFaults::rough());
    let cut = 1 + (seed * 7919) % 60_000;
    network.cut_after(client.endpoint, Direction::Outgoing, cut);
    for work in 0..20 {
        server.receive(work, work as usize * 2000, 2000);
    }
    for work in 0..20 {
        client.fill(work as usize * 2000, &[work as u8 + 1; 2000]);
        let offset = 100_000 + work as usize * 2000;
        client.write(100 + work, 0, 1500, server.region.remote(offset, 1500).unwrap());
        client.send(200 + work, work as usize * 2000, 2000);
    }
    settle(&network, &mut [&mut client, &mut server], Duration::from_secs(60));
    for work in 0..20 {
        assert!(client.status(100 + work).is_some() && client.status(200 + work).is_some());
        assert!(server.status(work).is_some());
        if server.status(work) == Some(WorkStatus::Ok(2000)) {
            let expected = vec![work as u8 + 1; 2000];
            assert_eq!(server.bytes(work as usize * 2000, 2000), expected);
        }
    }
    let received = |peer: &Peer| {
        let whole = |c: &&Completion| c.operation == Operation::Receive;
        peer.completions().iter().filter(whole).count()
    };
    assert_eq!(received(&server), 20);
    assert!(client.end().is_some() && server.end().is_some());
    (network.digest(), network.counts().torn > 0)
}

#[test]
fn a_seed_replays_to_the_same_digest() {
    let runs: Vec<_> = (0..40).map(rough_run).collect();
    let again: Vec<_> = (0..40).map(rough_run).collect();
    assert_eq!(runs, again);
    assert!(runs.windows(2).all(|pair| pair[0].0 != pair[1].0));
    assert!(runs.iter().filter(|(_, torn)| *torn).count() > 10);
}

/// An endless loop within a turn fails and does not hang a simulation.
#[test]
#[should_panic(expected = "a turn that does not end")]
fn a_turn_without_an_end_is_found_out() {
    let (_network, mut client, _server) = pair(1, SimFaults::none());
    let segment = client.region.local(0, 8);
    loop {
        // Such a caller ignores the result.
        let _ = client.adapter.post_send(client.endpoint, 1, &[segment]);
    }
}
