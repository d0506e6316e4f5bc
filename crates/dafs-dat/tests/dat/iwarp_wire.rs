//! The iWARP provider against byte-level peers: manual set-up, deliberate violations.

use crate::raw::{Node, Raw, WORDS, read_place, request, send_place};
use dafs_dat::connections::{ConnectionLimits, Connections};
use dafs_dat::iwarp::{IwarpAdapter, IwarpConfig, limits};
use dafs_dat::{Access, Adapter, Address, DisconnectReason, Event, Instant, WorkStatus};
use dafs_wire::iwarp::ddp::{Place, Queue};
use dafs_wire::iwarp::mpa::Enhanced;
use dafs_wire::iwarp::rdmap::{Opcode, ReadRequest, Terminate};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;

#[test]
fn revision_one_is_answered_with_revision_one() {
    let mut node = Node::new(IwarpConfig::default());
    let (mut raw, endpoint) = node.raw_peer(&request(false, 1, None));
    let reply = raw.read_reply();
    assert_eq!((reply.revision, reply.enhanced, reply.crc), (1, None, false));
    node.adapter.post_receive(endpoint, 5, node.region.local(0, 100)).unwrap();
    raw.send(Opcode::Send, true, send_place(1, 0), b"hello");
    node.until(|event| match event {
        Event::Completion(done) if done.work == 5 => {
            assert_eq!(done.status, WorkStatus::Ok(5));
            Some(())
        }
        _ => None,
    });
}

#[test]
fn the_responder_is_silent_until_the_first_fpdu() {
    let mut node = Node::new(IwarpConfig { crc: true, ..IwarpConfig::default() });
    let (mut raw, endpoint) = node.raw_peer(&request(false, 2, Some(WORDS)));
    assert!(raw.read_reply().crc, "one side asks, both do it");
    raw.crc = true;
    node.adapter.post_send(endpoint, 1, &[node.region.local(0, 64)]).unwrap();
    node.settle();
    raw.stream.set_nonblocking(true).unwrap();
    assert!(raw.stream.read(&mut [0; 1]).is_err(), "nothing may come yet");
    raw.stream.set_nonblocking(false).unwrap();
    // A zero-length write, the peer's ready-to-receive frame.
    raw.send(Opcode::Write, true, Place::Tagged { stag: 0, offset: 0 }, b"");
    node.settle();
    assert_eq!(raw.read_fpdu().1, [0; 64]);
}

#[test]
fn a_peer_may_ask_to_say_that_it_is_ready() {
    let ask = Enhanced { peer_to_peer: true, rtr_empty: true, ..WORDS };
    // By a write, if the peer offers one; else by a zero-length read.
    let mut node = Node::new(IwarpConfig::default());
    let both = Enhanced { rtr_write: true, rtr_read: true, ..ask };
    let (mut raw, _) = node.raw_peer(&request(false, 2, Some(both)));
    let words = raw.read_reply().enhanced.unwrap();
    assert!(words.peer_to_peer && words.rtr_write && !words.rtr_read && !words.rtr_empty);

    let read = Enhanced { rtr_read: true, ..ask };
    let (mut raw, endpoint) = node.raw_peer(&request(false, 2, Some(read)));
    let words = raw.read_reply().enhanced.unwrap();
    assert!(words.peer_to_peer && words.rtr_read && !words.rtr_write);
    let mut payload = Vec::new();
    let nothing =
        ReadRequest { sink_stag: 1, sink_offset: 0, length: 0, source_stag: 0, source_offset: 0 };
    nothing.encode(&mut payload);
    raw.send(Opcode::ReadRequest, true, read_place(1), &payload);
    node.settle();
    let (header, payload) = raw.read_fpdu();
    assert_eq!((header.opcode, header.last, payload.len()), (Opcode::ReadResponse, true, 0));
    node.adapter.post_send(endpoint, 1, &[]).unwrap();
    node.settle();
    assert_eq!(raw.read_fpdu().0.opcode, Opcode::Send);
}

#[test]
fn set_up_that_is_not_mpa_is_closed() {
    let mut node = Node::new(IwarpConfig::default());
    let mut markers = request(false, 2, Some(WORDS));
    markers[16] |= 0x80;
    for bytes in [b"GET / HTTP/1.1\r\n\r\n".to_vec(), markers, request(false, 3, None)] {
        let mut raw = Raw::connect(node.address);
        raw.stream.write_all(&bytes).unwrap();
        node.settle();
        assert!(raw.is_closed());
    }
    assert!(node.events.is_empty());
    assert_eq!(node.adapter.socket_count(), 0);
}

#[test]
fn half_a_set_up_times_out() {
    let config = IwarpConfig::default();
    let timeout = config.handshake_timeout;
    let mut node = Node::new(config);
    let mut raw = Raw::connect(node.address);
    raw.stream.write_all(&request(false, 2, Some(WORDS))[..19]).unwrap();
    node.settle();
    assert_eq!(node.adapter.socket_count(), 1);
    let when = node.adapter.next_timeout().unwrap();
    assert_eq!(when, Instant(1) + timeout);
    node.now = when;
    node.poll();
    assert_eq!(node.adapter.socket_count(), 0);
    assert!(raw.is_closed());
    // In the other direction: a server that never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::Tcp(silent.local_addr().unwrap());
    let endpoint = node.adapter.connect(node.domain, &address, b"").unwrap();
    node.adapter.post_receive(endpoint, 3, node.region.local(0, 10)).unwrap();
    node.settle();
    node.now = node.now + timeout;
    node.poll();
    let kinds: Vec<bool> = node
        .events
        .iter()
        .map(|event| match event {
            Event::Completion(done) => {
                assert_eq!((done.work, done.status), (3, WorkStatus::Flushed));
                false
            }
            Event::ConnectFailed { endpoint: known, error } => {
                assert_eq!(*known, endpoint);
                assert!(matches!(**error, dafs_dat::ConnectError::TimedOut(_)), "{error}");
                true
            }
            event => panic!("{event:?}"),
        })
        .collect();
    assert_eq!(kinds, [false, true]);
}

#[test]
fn a_damaged_fpdu_is_refused_and_nothing_of_it_reported() {
    let mut node = Node::new(IwarpConfig::default());
    let (mut raw, endpoint) = node.plain_peer(true);
    node.adapter.post_receive(endpoint, 1, node.region.local(0, 100)).unwrap();
    let mut bytes = raw.fpdu(Opcode::Send, true, send_place(1, 0), b"hello");
    bytes[22] ^= 0x10;
    raw.stream.write_all(&bytes).unwrap();
    let reason = node.gone(endpoint);
    assert!(matches!(reason, DisconnectReason::Protocol(text) if text.contains("CRC")));
    assert!(matches!(
        &node.events[..],
        [Event::Completion(done)] if done.status == WorkStatus::Flushed
    ));
    raw.expect_terminate(Terminate::CRC);
}

#[test]
fn a_terminate_is_reported_with_its_reason() {
    let mut node = Node::new(IwarpConfig::default());
    let (mut raw, endpoint) = node.plain_peer(false);
    let mut payload = Vec::new();
    Terminate::NO_BUFFER.encode(&mut payload);
    // Some peers also send the headers of the offending segment.
    payload.resize(60, 0xaa);
    let place = Place::Untagged { invalidate_stag: 0, queue: Queue::Terminate, msn: 1, offset: 0 };
    raw.send(Opcode::Terminate, true, place, &payload);
    let reason = node.gone(endpoint);
    assert!(matches!(reason, DisconnectReason::Terminated(text) if text.contains("no receive")));
}

#[test]
fn the_stream_may_end_only_between_messages() {
    let mut node = Node::new(IwarpConfig::default());
    let (raw, endpoint) = node.plain_peer(false);
    drop(raw);
    assert_eq!(node.gone(endpoint), DisconnectReason::Peer);
    let (mut raw, endpoint) = node.plain_peer(false);
    raw.stream.write_all(&[0, 40, 0x41]).unwrap();
    drop(raw);
    assert!(matches!(node.gone(endpoint), DisconnectReason::Lost(_)));
    // Between two segments of a write.
    let (mut raw, endpoint) = node.plain_peer(false);
    let remote = node.region.remote(0, 100).unwrap();
    let place = Place::Tagged { stag: remote.key, offset: remote.address };
    raw.send(Opcode::Write, false, place, &[1; 40]);
    drop(raw);
    assert!(matches!(node.gone(endpoint), DisconnectReason::Lost(_)));
    // Between two segments of a read response.
    let (mut raw, endpoint) = node.plain_peer(false);
    raw.send(Opcode::Write, true, Place::Tagged { stag: 0, offset: 0 }, b"");
    let source = dafs_dat::RemoteBuffer { key: 9, address: 0, len: 100 };
    node.adapter.rdma_read(endpoint, 1, node.region.local(0, 100), source).unwrap();
    node.settle();
    let (_, payload) = raw.read_fpdu();
    let request = ReadRequest::decode(&payload).unwrap();
    let place = Place::Tagged { stag: request.sink_stag, offset: request.sink_offset };
    raw.send(Opcode::ReadResponse, false, place, &[1; 40]);
    drop(raw);
    assert!(matches!(node.gone(endpoint), DisconnectReason::Lost(_)));
}

/// The timer of the set-up still runs afterwards; it must not end a connection with a later
/// deadline.
#[test]
fn an_orderly_end_has_its_own_time() {
    let config = IwarpConfig::default();
    let (set_up, linger) = (config.handshake_timeout, config.linger_timeout);
    let mut node = Node::new(config);
    let (mut raw, endpoint) = node.plain_peer(false);
    raw.send(Opcode::Write, true, Place::Tagged { stag: 0, offset: 0 }, b"");
    // More data than the sockets hold, for a peer that does not read.
    let big = node.adapter.allocate(64 << 20).unwrap();
    let big = node.adapter.register(node.domain, big, Access::empty()).unwrap();
    node.adapter.post_send(endpoint, 2, &[big.local(0, 64 << 20)]).unwrap();
    node.settle();
    let started = Instant(1) + (set_up - Duration::from_millis(1));
    node.now = started;
    node.adapter.disconnect(endpoint);
    node.settle();
    node.now = Instant(1) + set_up;
    node.settle();
    node.now = started + (linger - Duration::from_millis(1));
    node.settle();
    assert!(node.events.is_empty(), "{:?}", node.events);
    node.now = started + linger;
    assert_eq!(node.gone(endpoint), DisconnectReason::Local);
}

/// The end of a socket with unread input would reset the connection.
#[test]
fn a_caller_that_waits_while_something_lingers_loses_nothing() {
    const BYTES: usize = 256 << 10;
    for sends_on in [false, true] {
        let mut node = Node::new(IwarpConfig::default());
        let (mut raw, endpoint) = node.plain_peer(false);
        // Most of the message waits on this side.
        rustix::net::sockopt::set_socket_recv_buffer_size(&raw.stream, 16 << 10).unwrap();
        raw.send(Opcode::Write, true, Place::Tagged { stag: 0, offset: 0 }, b"");
        let big = node.adapter.allocate(BYTES).unwrap();
        let big = node.adapter.register(node.domain, big, Access::empty()).unwrap();
        node.adapter.post_send(endpoint, 1, &[big.local(0, BYTES)]).unwrap();
        node.settle();
        assert!(!node.adapter.is_lingering());
        node.adapter.disconnect(endpoint);
        assert_eq!(node.gone(endpoint), DisconnectReason::Local);
        assert!(node.adapter.is_lingering());
        if sends_on {
            raw.send(Opcode::Send, true, send_place(1, 0), &[1; 1000]);
        }
        let mut stream = raw.stream;
        let (done, is_done) = std::sync::mpsc::channel::<()>();
        let reader = std::thread::spawn(move || {
            let mut message = Vec::new();
            let read = stream.read_to_end(&mut message);
            // An idle peer need not close its side.
            sends_on.then(|| drop(stream));
            let _ = is_done.recv();
            read.map(|_| message.len())
        });
        while node.adapter.is_lingering() {
            node.poll();
        }
        assert_eq!(node.adapter.socket_count(), usize::from(!sends_on));
        drop((node, done));
        assert!(reader.join().unwrap().expect("the end, and no reset") > BYTES);
    }
}

#[test]
fn a_reset_in_mid_transfer_flushes() {
    let mut node = Node::new(IwarpConfig::default());
    let (mut raw, endpoint) = node.plain_peer(false);
    node.adapter.post_receive(endpoint, 1, node.region.local(0, 4096)).unwrap();
    raw.send(Opcode::Send, false, send_place(1, 0), &[1; 1000]);
    let bytes = raw.fpdu(Opcode::Send, true, send_place(1, 1000), &[1; 1000]);
    raw.stream.write_all(&bytes[..500]).unwrap();
    // More data than the sockets hold, so that some of it is queued when the reset arrives.
    let big = node.adapter.allocate(64 << 20).unwrap();
    let big = node.adapter.register(node.domain, big, Access::empty()).unwrap();
    let all = big.local(0, 64 << 20);
    let remote = dafs_dat::RemoteBuffer { key: 9, address: 0, len: 64 << 20 };
    node.adapter.rdma_write(endpoint, 2, &[all], remote).unwrap();
    node.adapter.post_send(endpoint, 3, &[]).unwrap();
    node.settle();
    assert!(node.events.is_empty());
    socket2::SockRef::from(&raw.stream).set_linger(Some(Duration::ZERO)).unwrap();
    drop(raw);
    assert!(matches!(node.gone(endpoint), DisconnectReason::Lost(_)));
    let flushed: Vec<u64> = node
        .events
        .iter()
        .filter_map(|event| match event {
            Event::Completion(done) => {
                assert_eq!(done.status, WorkStatus::Flushed);
                Some(done.work)
            }
            _ => None,
        })
        .collect();
    assert_eq!(flushed, [2, 3, 1]);
}

#[test]
fn reads_beyond_the_depth_end_the_connection() {
    let config = IwarpConfig { inbound_reads_max: 3, ..IwarpConfig::default() };
    let mut node = Node::new(config);
    let (mut raw, endpoint) = node.plain_peer(false);
    let mut bytes = Vec::new();
    for msn in 1..=4 {
        let mut payload = Vec::new();
        let read = ReadRequest {
            sink_stag: msn,
            sink_offset: 0,
            length: 100,
            source_stag: node.region.key,
            source_offset: node.region.address,
        };
        read.encode(&mut payload);
        bytes.extend(raw.fpdu(Opcode::ReadRequest, true, read_place(msn), &payload));
    }
    // In one write, so that the adapter answers none before it has seen the last.
    raw.stream.write_all(&bytes).unwrap();
    let reason = node.gone(endpoint);
    assert!(matches!(reason, DisconnectReason::Protocol(text) if text.contains("more than 3")));
}

#[test]
fn a_key_that_dies_between_two_segments_is_refused() {
    let mut node = Node::new(IwarpConfig::default());
    let (mut raw, endpoint) = node.plain_peer(false);
    let (key, address) = (node.region.key, node.region.address);
    let bytes =
        raw.fpdu(Opcode::Write, true, Place::Tagged { stag: key, offset: address }, &[7; 64]);
    raw.stream.write_all(&bytes[..40]).unwrap();
    node.settle();
    node.adapter.deregister(node.region.id);
    raw.stream.write_all(&bytes[40..]).unwrap();
    let reason = node.gone(endpoint);
    assert!(matches!(reason, DisconnectReason::Protocol(text) if text.contains("RDMA write")));
    raw.expect_terminate(Terminate::WRITE_STAG);
}

#[test]
fn a_full_house_closes_further_connections() {
    let config = IwarpConfig { connection_count_max: 4, ..IwarpConfig::default() };
    let mut node = Node::new(config);
    let mut guests: Vec<_> = (0..4).map(|_| node.plain_peer(false)).collect();
    let mut excess = Raw::connect(node.address);
    excess.stream.write_all(&request(false, 2, Some(WORDS))).unwrap();
    node.settle();
    assert!(excess.is_closed());
    // The accepted connections still work, and a freed slot can be taken.
    let (mut raw, endpoint) = guests.pop().unwrap();
    node.adapter.post_receive(endpoint, 1, node.region.local(0, 10)).unwrap();
    raw.send(Opcode::Send, true, send_place(1, 0), b"hi");
    node.until(|event| matches!(event, Event::Completion(_)).then_some(()));
    drop(raw);
    assert_eq!(node.gone(endpoint), DisconnectReason::Peer);
    guests.push(node.plain_peer(false));
}

#[test]
fn half_set_ups_are_bounded() {
    let config = IwarpConfig { handshake_count_max: 3, ..IwarpConfig::default() };
    let mut node = Node::new(config);
    let crowd: Vec<_> = (0..10).map(|_| Raw::connect(node.address)).collect();
    node.settle();
    assert_eq!(node.adapter.socket_count(), 3);
    drop(crowd);
    node.settle();
    assert_eq!(node.adapter.socket_count(), 0);
}

#[test]
fn set_ups_that_are_counted_with_others_make_room() {
    let connections = Connections::new(ConnectionLimits { total: 10, per_address: 3 });
    let mut node = Node::new(IwarpConfig::default());
    node.adapter.count_in(connections.clone());
    let mut crowd: Vec<_> = (0..10).map(|_| Raw::connect(node.address)).collect();
    node.settle();
    assert!(crowd[..7].iter_mut().all(Raw::is_closed));
    let (guest, _) = node.plain_peer(false);
    assert!(crowd[7].is_closed());
    node.settle();
    let counts = connections.counts();
    assert_eq!((counts.connections, counts.evicted, counts.refused), (3, 8, 0));
    assert_eq!(node.adapter.socket_count(), 3);
    drop((crowd, guest));
    node.settle();
    assert_eq!((node.adapter.socket_count(), connections.counts().connections), (0, 0));
}

#[test]
fn peers_that_are_turned_away_are_bounded_until_their_sockets_are_closed() {
    let mut node = Node::new(IwarpConfig::default());
    node.adapter.count_in(Connections::new(ConnectionLimits { total: 0, per_address: 1 }));
    let count_max = limits::TURNED_AWAY_COUNT_MAX;
    let mut crowd: Vec<_> = (0..count_max + 8).map(|_| Raw::connect(node.address)).collect();
    node.settle();
    assert_eq!(node.adapter.socket_count(), count_max);
    let open = crowd.iter_mut().take(count_max);
    open.for_each(|raw| raw.stream.write_all(&request(false, 2, Some(WORDS))).unwrap());
    node.settle();
    // They are rejected, and no socket waits for them to close.
    assert_eq!(node.adapter.socket_count(), 0);
    for raw in crowd.iter_mut().take(count_max) {
        raw.read_reply();
    }
    assert!(crowd.iter_mut().all(Raw::is_closed));
}

#[test]
fn a_peer_that_stops_reading_holds_up_only_itself() {
    let mut node = Node::new(IwarpConfig::default());
    let (mut lazy, stuck) = node.plain_peer(false);
    let (mut keen, endpoint) = node.plain_peer(false);
    // The peer requests megabytes and reads none of them.
    let big = node.adapter.allocate(64 << 20).unwrap();
    let big = node.adapter.register(node.domain, big, Access::REMOTE_READ).unwrap();
    let mut payload = Vec::new();
    let read = ReadRequest {
        sink_stag: 1,
        sink_offset: 0,
        length: 64 << 20,
        source_stag: big.key,
        source_offset: big.address,
    };
    read.encode(&mut payload);
    lazy.send(Opcode::ReadRequest, true, read_place(1), &payload);
    node.settle();
    for round in 1..=3 {
        node.adapter.post_receive(endpoint, 1, node.region.local(0, 10)).unwrap();
        keen.send(Opcode::Send, true, send_place(round, 0), b"hi");
        node.until(|event| matches!(event, Event::Completion(_)).then_some(()));
    }
    // After `disconnect` it gets its timeout and no more.
    node.adapter.disconnect(stuck);
    node.settle();
    assert!(node.events.is_empty());
    node.now = node.adapter.next_timeout().unwrap();
    while node.events.is_empty() {
        node.poll();
        node.now = node.now + Duration::from_secs(1);
    }
    assert_eq!(node.gone(stuck), DisconnectReason::Local);
}

#[test]
fn adapters_share_a_listening_socket() {
    let shared = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = shared.local_addr().unwrap();
    let mut nodes = [Node::new(IwarpConfig::default()), Node::new(IwarpConfig::default())];
    for node in &mut nodes {
        node.adapter.add_listener(shared.try_clone().unwrap()).unwrap();
    }
    // The adapter that polls first takes the connection.
    for node in &mut nodes {
        node.address = address;
        let (mut raw, endpoint) = node.plain_peer(false);
        node.adapter.post_receive(endpoint, 1, node.region.local(0, 10)).unwrap();
        raw.send(Opcode::Send, true, send_place(1, 0), b"hi");
        node.until(|event| matches!(event, Event::Completion(_)).then_some(()));
    }
}

#[test]
fn sleeping_ends_when_something_comes() {
    let mut node = Node::new(IwarpConfig::default());
    let (mut raw, endpoint) = node.plain_peer(false);
    node.adapter.post_receive(endpoint, 1, node.region.local(0, 10)).unwrap();
    node.settle();
    assert!(node.adapter.arm().unwrap());
    assert!(!is_readable(&node.adapter));
    raw.send(Opcode::Send, true, send_place(1, 0), b"hi");
    for _ in 0..10_000 {
        if is_readable(&node.adapter) {
            break;
        }
        std::thread::sleep(Duration::from_micros(100));
    }
    assert!(is_readable(&node.adapter));
    let mut events = Vec::new();
    assert_eq!(node.adapter.poll(node.now, &mut events), 1);
    assert!(!is_readable(&node.adapter));
    // The completions of a flush wait for the next poll, so the caller must not sleep on them.
    node.adapter.post_send(endpoint, 2, &[node.region.local(0, 10)]).unwrap();
    node.adapter.flush();
    assert!(!node.adapter.arm().unwrap());
}

fn is_readable(adapter: &IwarpAdapter) -> bool {
    use std::os::fd::AsRawFd;
    let fd = adapter.descriptor().unwrap().as_raw_fd();
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd, which lives through the call.
    unsafe { libc::poll(&mut poll, 1, 0) == 1 }
}

#[test]
fn settings_are_checked() {
    let bad = |config: IwarpConfig| IwarpAdapter::new(config).err().unwrap().to_string();
    let good = IwarpConfig::default();
    let text = bad(IwarpConfig { fpdu_bytes_max: 10, ..good.clone() });
    assert!(text.contains("10 bytes"), "{text}");
    let text = bad(IwarpConfig { foreign_fpdu_bytes_max: Some(1 << 20), ..good.clone() });
    assert!(text.contains("1048576"), "{text}");
    let text = bad(IwarpConfig { inbound_reads_max: limits::READ_DEPTH_MAX + 1, ..good });
    assert!(text.contains("128"), "{text}");
}
