//! The shared-memory provider: its promises beyond the contract of every provider, and its defence
//! against hostile peers.

use crate::pair::{self, Memory, Pair, pattern, status, status_of};
use dafs_dat::shm::{self, ShmAdapter, ShmConfig};
use dafs_dat::{
    Access, Adapter, Address, ConnectError, DisconnectReason, Event, Instant, Operation, PostError,
    WorkStatus,
};
use dafs_mem::{Buffer, Site};
use std::os::fd::AsFd;
use std::sync::Arc;

const ALL: Access = Access::all();

#[test]
fn an_adapter_that_shares_nothing_shares_no_buffer_of_another() {
    let mut shows = ShmAdapter::new(ShmConfig::default()).unwrap();
    let hides =
        ShmAdapter::new(ShmConfig { shareable_buffers_max: 0, ..ShmConfig::default() }).unwrap();
    let buffer = shows.allocate(4096).unwrap();
    assert_eq!([shows.is_mappable(&buffer), hides.is_mappable(&buffer)], [true, false]);
}

#[test]
fn private_data_travels_both_ways_and_the_peer_is_known() {
    let mut adapter = ShmAdapter::new(ShmConfig::default()).unwrap();
    let listener = adapter.listen(&Address::Shm(String::new())).unwrap();
    let address = adapter.listener_address(listener).unwrap();
    let domain = adapter.protection_domain();
    let long = [7; dafs_dat::PRIVATE_DATA_BYTES_MAX];
    let endpoint = adapter.connect(domain, &address, &long).unwrap();
    let mut events = Vec::new();
    adapter.poll(Instant::now(), &mut events);
    let request = match events.as_slice() {
        [Event::ConnectRequest { request, private_data, peer, .. }] => {
            assert_eq!(**private_data, long);
            let process = peer.process.unwrap();
            assert_eq!(process.pid as u32, std::process::id());
            *request
        }
        other => panic!("{other:?}"),
    };
    let accepted = adapter.accept(request, domain, b"welcome").unwrap();
    events.clear();
    for _ in 0..300 {
        adapter.poll(Instant::now(), &mut events);
    }
    let established: Vec<_> = events
        .iter()
        .map(|event| match event {
            Event::Established { endpoint, private_data } => (*endpoint, private_data.to_vec()),
            other => panic!("{other:?}"),
        })
        .collect();
    assert!(established.contains(&(endpoint, b"welcome".to_vec())));
    assert!(established.contains(&(accepted, Vec::new())));
    assert!(matches!(
        adapter.connect(domain, &address, &[0; 45]),
        Err(ConnectError::PrivateData { bytes: 45, max: 44 })
    ));
    assert!(matches!(
        adapter.connect(domain, &Address::Sim(1), &[]),
        Err(ConnectError::AddressKind)
    ));
    let nobody = Address::Shm("dafs-test-nobody-listens-here".to_owned());
    assert!(matches!(adapter.connect(domain, &nobody, &[]), Err(ConnectError::Io(_))));
}

#[test]
fn a_rejection_carries_private_data() {
    let (mut client, mut server, address) = pair::adapters(ShmConfig::default());
    let domain = client.protection_domain();
    let endpoint = client.connect(domain, &address, b"hello").unwrap();
    let memory = Memory::new(&mut client, domain, 64, ALL, true);
    client.post_receive(endpoint, 1, memory.region.local(0, 64)).unwrap();
    let request = pair::wait_request(&mut server);
    server.reject(request, b"go away");
    let events = pair::wait(&mut client, |events| events.len() == 2);
    assert_eq!(status(&events[0]), (Operation::Receive, 1, WorkStatus::Flushed));
    match &events[1] {
        Event::ConnectFailed { endpoint: failed, error } => {
            assert_eq!(*failed, endpoint);
            assert!(matches!(&**error, ConnectError::Rejected(data) if data == b"go away"));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn messages_of_all_sizes_arrive_in_order_and_whole() {
    let mut pair = Pair::new(ShmConfig::default());
    const SIZES: [usize; 12] = [0, 1, 7, 8, 64, 4095, 4096, 9000, 16384, 20000, 100_000, 300_001];
    let source = pair.left_memory(300_001, Access::empty(), true);
    let targets: Vec<Memory> =
        SIZES.iter().map(|_| pair.right_memory(300_001, Access::LOCAL_WRITE, false)).collect();
    source.fill(3);
    for (number, target) in targets.iter().enumerate() {
        let segment = target.region.local(0, 300_001);
        pair.right.post_receive(pair.at_right, number as u64, segment).unwrap();
    }
    for (number, &size) in SIZES.iter().enumerate() {
        let third = size / 3;
        let parts = [
            source.region.local(0, third),
            source.region.local(third, 0),
            source.region.local(third, size - third),
        ];
        pair.left.post_send(pair.at_left, 100 + number as u64, &parts).unwrap();
    }
    pair.run();
    let sent = pair.take_left();
    let received = pair.take_right();
    assert_eq!((sent.len(), received.len()), (SIZES.len(), SIZES.len()));
    for (number, &size) in SIZES.iter().enumerate() {
        let done = WorkStatus::Ok(size as u32);
        assert_eq!(status(&sent[number]), (Operation::Send, 100 + number as u64, done));
        assert_eq!(status(&received[number]), (Operation::Receive, number as u64, done));
        assert!(targets[number].bytes(0, size) == pattern(3, size), "message of {size} bytes");
    }
}

/// Writes and reads both ways, for every kind of memory of the target and of the initiator.
#[test]
fn rdma_reaches_shared_and_ordinary_memory() {
    for (shared, len) in [(true, 100), (true, 70_000), (false, 100), (false, 70_000)] {
        let mut pair = Pair::new(ShmConfig::default());
        let target = pair.right_memory(len + 10, ALL, shared);
        let local = pair.left_memory(len + 10, ALL, !shared);
        let inbox = pair.right_memory(16, ALL, true);
        pair.right.post_receive(pair.at_right, 9, inbox.region.local(0, 16)).unwrap();
        local.fill(5);
        let remote = target.region.remote(10, len as u32).unwrap();
        let half = len / 2;
        let parts = [local.region.local(0, half), local.region.local(half, len - half)];
        pair.left.rdma_write(pair.at_left, 1, &parts, remote).unwrap();
        pair.left.post_send(pair.at_left, 2, &[local.region.local(0, 1)]).unwrap();
        // The write must be placed by the time the message is reported, in whichever poll that is.
        while pair.right_events.is_empty() {
            pair.step();
        }
        assert!(target.bytes(10, len) == pattern(5, len), "shared {shared}, {len} bytes");
        pair.run();
        target.fill(8);
        local.fill(0);
        let sink = local.region.local(10, len);
        pair.left.rdma_read(pair.at_left, 3, sink, remote).unwrap();
        pair.run();
        assert!(local.bytes(10, len) == pattern(8, len + 10)[10..], "shared {shared}, {len}");
        let done = WorkStatus::Ok(len as u32);
        let events = pair.take_left();
        assert_eq!(status(&events[0]), (Operation::RdmaWrite, 1, done));
        assert_eq!(status(&events[1]), (Operation::Send, 2, WorkStatus::Ok(1)));
        assert_eq!(status(&events[2]), (Operation::RdmaRead, 3, done));
        let window = pair.left.map_remote(pair.at_left, remote, Access::REMOTE_WRITE);
        assert_eq!(window.is_some(), shared);
    }
}

#[test]
fn many_reads_of_ordinary_memory_both_ways_at_once_do_not_lock_up() {
    let mut pair = Pair::new(ShmConfig { ring_bytes: 4096, ..ShmConfig::default() });
    let left = pair.left_memory(10_000, ALL, false);
    let right = pair.right_memory(10_000, ALL, false);
    let (to_left, to_right) =
        (left.region.remote(0, 5000).unwrap(), right.region.remote(0, 5000).unwrap());
    for work in 0..200 {
        let sink = left.region.local(5000, 5000);
        pair.left.rdma_read(pair.at_left, work, sink, to_right).unwrap();
        let sink = right.region.local(5000, 5000);
        pair.right.rdma_read(pair.at_right, work, sink, to_left).unwrap();
    }
    pair.run();
    assert_eq!((pair.take_left().len(), pair.take_right().len()), (200, 200));
}

#[test]
fn a_window_is_the_peers_memory_and_outlives_the_connection() {
    let mut pair = Pair::new(ShmConfig::default());
    let target = pair.right_memory(5000, ALL, true);
    let remote = target.region.remote(1000, 4000).unwrap();
    let window = pair.left.map_remote(pair.at_left, remote, Access::REMOTE_WRITE).unwrap();
    assert!(window.is_writable());
    window.view().slice(0, 5).unwrap().copy_from(b"hello", Site::Inspect);
    assert_eq!(target.bytes(1000, 5), b"hello");
    pair.left.abort(pair.at_left);
    window.view().slice(0, 5).unwrap().copy_from(b"still", Site::Inspect);
    assert_eq!(target.bytes(1000, 5), b"still");
}

#[test]
fn a_window_needs_the_right_that_was_granted() {
    let mut pair = Pair::new(ShmConfig::default());
    let target = pair.right_memory(4096, Access::REMOTE_READ, true);
    let remote = target.region.remote(0, 4096).unwrap();
    assert!(pair.left.map_remote(pair.at_left, remote, Access::REMOTE_WRITE).is_none());
    let window = pair.left.map_remote(pair.at_left, remote, Access::REMOTE_READ).unwrap();
    assert!(!window.is_writable());
    target.fill(3);
    assert_eq!(window.view().to_vec(Site::Inspect), pattern(3, 4096));
    let zeros = std::fs::File::open("/dev/zero").unwrap();
    let error = dafs_mem::readv(zeros.as_fd(), &[window.view()]).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
    pair.right.deregister(target.region.id);
    assert!(pair.left.map_remote(pair.at_left, remote, Access::REMOTE_READ).is_none());
}

#[test]
fn a_grant_is_refused_on_another_connection() {
    let (mut client, mut server, address) = pair::adapters(ShmConfig::default());
    let mut connect = || {
        let domain = client.protection_domain();
        let at_client = client.connect(domain, &address, b"hello").unwrap();
        let request = pair::wait_request(&mut server);
        let own = server.protection_domain();
        let at_server = server.accept(request, own, b"welcome").unwrap();
        pair::wait(&mut client, |events| matches!(events, [Event::Established { .. }]));
        pair::wait(&mut server, |events| matches!(events, [Event::Established { .. }]));
        (domain, at_client, at_server)
    };
    let (_, first, at_server) = connect();
    let (domain, second, _) = connect();
    let buffer = Arc::new(shm::exposed_buffer(4096).unwrap());
    let remote = server.grant(at_server, &buffer).unwrap().remote(0, 4096).unwrap();
    assert!(client.map_remote(second, remote, Access::REMOTE_READ).is_none());
    assert!(client.map_remote(first, remote, Access::REMOTE_READ).is_some());
    let sink = Memory::new(&mut client, domain, 4096, Access::LOCAL_WRITE, false);
    client.rdma_read(second, 1, sink.region.local(0, 4096), remote).unwrap();
    let (mut ignored, mut events) = (Vec::new(), Vec::new());
    for _ in 0..2000 {
        client.poll(Instant::now(), &mut ignored);
        server.poll(Instant::now(), &mut events);
    }
    assert!(matches!(pair::reason(&events), DisconnectReason::Protocol(_)), "{events:?}");
}

#[test]
fn a_granted_buffer_is_read_until_it_is_taken_back() {
    let quiet = ShmConfig { shareable_buffers_max: 0, ..ShmConfig::default() };
    let mut pair = Pair::new(quiet);
    let buffer = Arc::new(shm::exposed_buffer(8192).unwrap());
    buffer.view().fill(7);
    assert!(pair.right.can_grant());
    let region = pair.right.grant(pair.at_right, &buffer).unwrap();
    let again = pair.right.grant(pair.at_right, &buffer).unwrap();
    assert_ne!(region.key, again.key);
    let remote = region.remote(4096, 4096).unwrap();
    let window = pair.left.map_remote(pair.at_left, remote, Access::REMOTE_READ).unwrap();
    assert!(!window.is_writable());
    assert_eq!(window.view().slice(0, 3).unwrap().to_vec(Site::Inspect), [7; 3]);
    assert!(pair.left.map_remote(pair.at_left, remote, Access::REMOTE_WRITE).is_none());
    let ordinary = Arc::new(Buffer::zeroed(4096).unwrap());
    assert!(pair.right.grant(pair.at_right, &ordinary).is_none(), "memory that cannot be shared");
    pair.right.revoke(pair.at_right, region.id);
    assert!(pair.left.map_remote(pair.at_left, remote, Access::REMOTE_READ).is_none());
    // The peer keeps its mapping, and finds nothing there.
    shm::discard(&buffer).unwrap();
    assert_eq!(window.view().slice(0, 3).unwrap().to_vec(Site::Inspect), [0; 3]);
    pair.right.abort(pair.at_right);
    assert!(pair.right.grant(pair.at_right, &buffer).is_none(), "the connection is over");
    pair.right.revoke(pair.at_right, again.id);
}

#[test]
fn a_granted_buffer_is_not_written_by_rdma() {
    let mut pair = Pair::new(ShmConfig::default());
    let buffer = Arc::new(shm::exposed_buffer(4096).unwrap());
    let region = pair.right.grant(pair.at_right, &buffer).unwrap();
    let local = pair.left_memory(10, Access::LOCAL_WRITE, false);
    let source = [local.region.local(0, 10)];
    pair.left.rdma_write(pair.at_left, 1, &source, region.remote(0, 10).unwrap()).unwrap();
    pair.run();
    assert!(matches!(pair.take_right().last(), Some(Event::Disconnected { .. })));
    assert_eq!(buffer.slice(0, 10).unwrap().to_vec(Site::Inspect), [0; 10]);
}

/// Each of these must break the connection, with a reason on both sides.
#[test]
fn forbidden_rdma_breaks_the_connection() {
    for shared in [true, false] {
        for case in ["forged", "foreign", "past", "before", "access", "gone"] {
            for write in [true, false] {
                let mut pair = Pair::new(ShmConfig::default());
                let access = match (case, write) {
                    ("access", true) => Access::REMOTE_READ | Access::LOCAL_WRITE,
                    ("access", false) => Access::REMOTE_WRITE,
                    _ => ALL,
                };
                let other = pair.right.protection_domain();
                let domain = if case == "foreign" { other } else { pair.right_domain };
                let target = Memory::new(&mut pair.right, domain, 4096, access, shared);
                target.fill(1);
                let mut remote = target.region.remote(0, 100).unwrap();
                match case {
                    "forged" => remote.key ^= 0x10,
                    "past" => remote.address += 4000,
                    "before" => remote.address -= 1,
                    "gone" => pair.right.deregister(target.region.id),
                    _ => {}
                }
                let local = pair.left_memory(100, ALL, true);
                local.fill(9);
                let segment = local.region.local(0, 100);
                if write {
                    pair.left.rdma_write(pair.at_left, 1, &[segment], remote).unwrap();
                } else {
                    pair.left.rdma_read(pair.at_left, 1, segment, remote).unwrap();
                }
                pair.run();
                let what = format!("{case}, write {write}, shared {shared}");
                let right = pair.take_right();
                assert!(
                    matches!(pair::reason(&right), DisconnectReason::Protocol(_)),
                    "{what}: {right:?}"
                );
                let left = pair.take_left();
                assert!(
                    matches!(pair::reason(&left), DisconnectReason::Terminated(_)),
                    "{what}: {left:?}"
                );
                assert_eq!(left.len(), 2, "{what}: the work completes once");
                assert_eq!(target.bytes(0, 4096), pattern(1, 4096), "{what}");
                assert_eq!(local.bytes(0, 100), pattern(9, 100), "{what}");
            }
        }
    }
}

#[test]
fn a_message_without_a_receive_or_too_large_breaks_the_connection() {
    for posted in [None, Some(10)] {
        let mut pair = Pair::new(ShmConfig::default());
        let inbox = pair.right_memory(100, ALL, true);
        if let Some(len) = posted {
            pair.right.post_receive(pair.at_right, 1, inbox.region.local(0, len)).unwrap();
        }
        let source = pair.left_memory(100, ALL, true);
        pair.left.post_send(pair.at_left, 2, &[source.region.local(0, 11)]).unwrap();
        pair.run();
        let right = pair.take_right();
        assert!(matches!(pair::reason(&right), DisconnectReason::Protocol(_)), "{right:?}");
        assert_eq!(right.len(), 1 + usize::from(posted.is_some()));
        let left = pair.take_left();
        assert!(matches!(pair::reason(&left), DisconnectReason::Terminated(_)), "{left:?}");
    }
}

#[test]
fn a_close_delivers_what_was_sent_and_flushes_the_rest() {
    let mut pair = Pair::new(ShmConfig::default());
    let source = pair.left_memory(50_000, ALL, true);
    let inbox = pair.right_memory(50_000, ALL, true);
    for work in 0..3 {
        pair.right.post_receive(pair.at_right, work, inbox.region.local(0, 50_000)).unwrap();
        pair.left.post_receive(pair.at_left, work, source.region.local(0, 10)).unwrap();
    }
    for work in 10..12 {
        pair.left.post_send(pair.at_left, work, &[source.region.local(0, 50_000)]).unwrap();
    }
    pair.left.disconnect(pair.at_left);
    let late = pair.left.post_send(pair.at_left, 99, &[]);
    assert_eq!(late, Err(PostError::NotConnected));
    pair.run();
    let left = pair.take_left();
    let flushed = left
        .iter()
        .filter(|event| status_of(event).is_some_and(|status| status.2 == WorkStatus::Flushed));
    assert_eq!((flushed.count(), left.len()), (3, 6));
    assert_eq!(pair::reason(&left), DisconnectReason::Local);
    let right = pair.take_right();
    let whole = WorkStatus::Ok(50_000);
    assert_eq!(status(&right[0]), (Operation::Receive, 0, whole));
    assert_eq!(status(&right[1]), (Operation::Receive, 1, whole));
    assert_eq!(status(&right[2]), (Operation::Receive, 2, WorkStatus::Flushed));
    assert_eq!(pair::reason(&right), DisconnectReason::Peer);
    assert_eq!(pair.right.connection_count() + pair.left.connection_count(), 0);
}

#[test]
fn an_abort_flushes_everything() {
    let mut pair = Pair::new(ShmConfig::default());
    let source = pair.left_memory(50_000, ALL, true);
    pair.left.post_receive(pair.at_left, 1, source.region.local(0, 10)).unwrap();
    pair.left.post_send(pair.at_left, 2, &[source.region.local(0, 50_000)]).unwrap();
    pair.left.abort(pair.at_left);
    pair.run();
    let left = pair.take_left();
    assert_eq!(status(&left[0]), (Operation::Receive, 1, WorkStatus::Flushed));
    assert_eq!(status(&left[1]), (Operation::Send, 2, WorkStatus::Flushed));
    assert_eq!(pair::reason(&left), DisconnectReason::Local);
    // The ring delivered a message, or a part of one, without a receive.
    let right = pair.take_right();
    assert!(matches!(
        pair::reason(&right),
        DisconnectReason::Lost(_) | DisconnectReason::Protocol(_)
    ));
}

#[test]
fn posting_is_checked() {
    let mut pair = Pair::new(ShmConfig::default());
    let memory = pair.left_memory(100, Access::empty(), true);
    let other = pair.left.protection_domain();
    let foreign = Memory::new(&mut pair.left, other, 100, ALL, true);
    let (left, at) = (&mut pair.left, pair.at_left);
    let inside = memory.region.local(0, 100);
    let beyond = memory.region.local(1, 100);
    assert_eq!(left.post_receive(at, 1, inside), Err(PostError::Access));
    assert_eq!(left.post_send(at, 1, &[beyond]), Err(PostError::Bounds));
    assert_eq!(left.post_send(at, 1, &[foreign.region.local(0, 1)]), Err(PostError::Region));
    assert_eq!(left.post_send(at, 1, &[inside; 17]), Err(PostError::Length));
    let remote = foreign.region.remote(0, 99).unwrap();
    assert_eq!(left.rdma_write(at, 1, &[inside], remote), Err(PostError::Length));
    let nobody = dafs_dat::EndpointId(77);
    assert_eq!(left.post_send(nobody, 1, &[inside]), Err(PostError::NotConnected));
    pair.run();
    assert!(pair.take_left().is_empty());
}

#[test]
fn connections_beyond_the_limit_are_refused_with_a_text() {
    let config = ShmConfig { connections_max: 3, ..ShmConfig::default() };
    let (_, mut server, address) = pair::adapters(config);
    let mut client = ShmAdapter::new(ShmConfig::default()).unwrap();
    let domain = client.protection_domain();
    for _ in 0..5 {
        client.connect(domain, &address, &[]).unwrap();
    }
    let mut events = Vec::new();
    for _ in 0..400 {
        server.poll(Instant::now(), &mut events);
    }
    assert_eq!((events.len(), server.connection_count()), (3, 3));
    let failed = pair::wait(&mut client, |events| events.len() == 2);
    for event in failed {
        match event {
            Event::ConnectFailed { error, .. } => {
                assert!(error.to_string().contains("as many connections as it allows"), "{error}");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_peer_that_does_not_answer_times_out() {
    let socket = shm::bind_listener("").unwrap();
    let mut holder = ShmAdapter::new(ShmConfig::default()).unwrap();
    let listener = holder.add_listener(socket).unwrap();
    let address = holder.listener_address(listener).unwrap();
    let mut client = ShmAdapter::new(ShmConfig::default()).unwrap();
    let domain = client.protection_domain();
    client.connect(domain, &address, &[]).unwrap();
    let start = Instant::now();
    let mut events = Vec::new();
    client.poll(start, &mut events);
    let deadline = client.next_timeout().unwrap();
    assert_eq!(deadline, start + ShmConfig::default().handshake_timeout);
    client.poll(deadline, &mut events);
    match events.as_slice() {
        [Event::ConnectFailed { error, .. }] => {
            assert!(matches!(**error, ConnectError::TimedOut(_)));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn adapters_share_a_listener() {
    let socket = shm::bind_listener("").unwrap();
    let mut servers: Vec<ShmAdapter> =
        (0..2).map(|_| ShmAdapter::new(ShmConfig::default()).unwrap()).collect();
    let mut address = None;
    for server in &mut servers {
        let listener = server.add_listener(socket.try_clone().unwrap()).unwrap();
        address = server.listener_address(listener);
    }
    let mut client = ShmAdapter::new(ShmConfig::default()).unwrap();
    let domain = client.protection_domain();
    for server in &mut servers {
        client.connect(domain, address.as_ref().unwrap(), &[]).unwrap();
        pair::wait_request(server);
    }
}

#[test]
fn a_buffer_stays_alive_while_work_needs_it() {
    let mut pair = Pair::new(ShmConfig::default());
    let buffer = Arc::new(Buffer::zeroed(40_000).unwrap());
    buffer.view().copy_from(&pattern(4, 40_000), Site::Inspect);
    let region = pair.left.register(pair.left_domain, buffer.clone(), ALL).unwrap();
    let inbox = pair.right_memory(40_000, ALL, true);
    pair.right.post_receive(pair.at_right, 1, inbox.region.local(0, 40_000)).unwrap();
    pair.left.post_send(pair.at_left, 2, &[region.local(0, 40_000)]).unwrap();
    pair.left.deregister(region.id);
    assert!(Arc::strong_count(&buffer) > 1);
    pair.run();
    assert_eq!(Arc::strong_count(&buffer), 1);
    assert!(inbox.bytes(0, 40_000) == pattern(4, 40_000));
}

/// The peer does not read its socket while the regions are registered, so it learns of most of them
/// late; the ring reaches them until then.
#[test]
fn more_regions_than_a_socket_takes_are_all_within_reach() {
    const COUNT: usize = 1000;
    let mut pair = Pair::new(ShmConfig::default());
    let target = pair.right_memory(COUNT, ALL, true);
    target.fill(1);
    let regions: Vec<_> = (0..COUNT)
        .map(|_| pair.right.register(pair.right_domain, target.buffer.clone(), ALL).unwrap())
        .collect();
    let local = pair.left_memory(COUNT, ALL, true);
    for round in 0..2 {
        local.fill(9);
        for (number, region) in regions.iter().enumerate() {
            let remote = region.remote(number, 1).unwrap();
            let sink = local.region.local(number, 1);
            pair.left.rdma_read(pair.at_left, 7, sink, remote).unwrap();
        }
        pair.run();
        assert_eq!(pair.take_left().len(), COUNT);
        assert!(local.bytes(0, COUNT) == pattern(1, COUNT), "round {round}");
    }
    let shown = regions
        .iter()
        .map(|region| region.remote(0, 1).unwrap())
        .filter(|&remote| pair.left.map_remote(pair.at_left, remote, Access::REMOTE_READ).is_some())
        .count();
    assert!((1..COUNT).contains(&shown), "the slots of a connection are limited: {shown}");
    for region in &regions {
        pair.right.deregister(region.id);
    }
    for region in &regions {
        let remote = region.remote(0, 1).unwrap();
        assert!(pair.left.map_remote(pair.at_left, remote, Access::REMOTE_READ).is_none());
    }
    pair.run();
    assert!(pair.take_left().is_empty() && pair.take_right().is_empty());
}
