//! The iWARP provider against peers made of bytes: set-up by hand, rules broken on purpose.

// A helper of tests fails the test.
#![allow(clippy::unwrap_used)]

use dafs_dat::iwarp::{IwarpAdapter, IwarpConfig, limits};
use dafs_dat::{
    Access, Adapter, Address, DisconnectReason, EndpointId, Event, Instant, MemoryRegion,
    ProtectionDomain, WorkStatus,
};
use dafs_wire::iwarp::crc::Crc32c;
use dafs_wire::iwarp::ddp::{self, Header, Place, Queue};
use dafs_wire::iwarp::mpa::{self, Decoded, Enhanced, Frame, FrameKind};
use dafs_wire::iwarp::rdmap::{Opcode, ReadRequest, Terminate};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

/// The adapter under test and its memory.
struct Node {
    adapter: IwarpAdapter,
    events: Vec<Event>,
    domain: ProtectionDomain,
    address: SocketAddr,
    now: Instant,
    region: MemoryRegion,
}

impl Node {
    fn new(config: IwarpConfig) -> Self {
        let mut adapter = IwarpAdapter::new(config).unwrap();
        let listen = Address::Tcp("127.0.0.1:0".parse().unwrap());
        let listener = adapter.listen(&listen).unwrap();
        let Some(Address::Tcp(address)) = adapter.listener_address(listener) else { panic!() };
        let domain = adapter.protection_domain();
        let buffer = adapter.allocate(8192).unwrap();
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let region = adapter.register(domain, buffer, access).unwrap();
        Self { adapter, events: Vec::new(), domain, address, now: Instant(1), region }
    }

    fn poll(&mut self) {
        self.adapter.poll(self.now, &mut self.events);
        std::thread::sleep(Duration::from_micros(100));
    }

    fn until<T>(&mut self, mut pick: impl FnMut(&Event) -> Option<T>) -> T {
        for _ in 0..100_000 {
            if let Some(at) = self.events.iter().position(|event| pick(event).is_some()) {
                return pick(&self.events.remove(at)).unwrap();
            }
            self.poll();
        }
        panic!("nothing came; have {:?}", self.events);
    }

    fn settle(&mut self) {
        for _ in 0..50 {
            self.poll();
        }
    }

    fn gone(&mut self, endpoint: EndpointId) -> DisconnectReason {
        self.until(|event| match event {
            Event::Disconnected { endpoint: known, reason } if *known == endpoint => {
                Some((**reason).clone())
            }
            _ => None,
        })
    }

    /// Takes the next request and accepts it.
    fn accept(&mut self) -> EndpointId {
        let request = self.until(|event| match event {
            Event::ConnectRequest { request, .. } => Some(*request),
            _ => None,
        });
        self.adapter.accept(request, self.domain, b"").unwrap()
    }

    /// A peer whose request, with these flags, was accepted; and the reply it got.
    fn raw_peer(&mut self, request: &[u8]) -> (Raw, EndpointId) {
        let mut raw = Raw::connect(self.address);
        raw.stream.write_all(request).unwrap();
        let endpoint = self.accept();
        self.until(|event| matches!(event, Event::Established { .. }).then_some(()));
        (raw, endpoint)
    }

    /// The same with a plain request, its reply read.
    fn plain_peer(&mut self, crc: bool) -> (Raw, EndpointId) {
        let (mut raw, endpoint) = self.raw_peer(&request(crc, 2, Some(WORDS)));
        let reply = raw.read_reply();
        assert_eq!(reply.crc, crc);
        raw.crc = crc;
        (raw, endpoint)
    }
}

const WORDS: Enhanced = Enhanced {
    ird: 4,
    ord: 4,
    peer_to_peer: false,
    rtr_empty: false,
    rtr_write: false,
    rtr_read: false,
};

fn request(crc: bool, revision: u8, enhanced: Option<Enhanced>) -> Vec<u8> {
    let frame = Frame {
        kind: FrameKind::Request,
        markers: false,
        crc,
        reject: false,
        revision,
        enhanced,
        private_data: b"raw",
    };
    let mut bytes = Vec::new();
    frame.encode(&mut bytes).unwrap();
    bytes
}

#[derive(Debug)]
struct Reply {
    crc: bool,
    revision: u8,
    enhanced: Option<Enhanced>,
}

/// A peer by hand.
struct Raw {
    stream: TcpStream,
    crc: bool,
}

impl Raw {
    fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Self { stream, crc: false }
    }

    fn read_reply(&mut self) -> Reply {
        let mut bytes = Vec::new();
        loop {
            match Frame::decode(FrameKind::Reply, &bytes).unwrap() {
                Decoded::Frame(frame, _) => {
                    let Frame { crc, revision, enhanced, .. } = frame;
                    return Reply { crc, revision, enhanced };
                }
                Decoded::Need(need) => {
                    let have = bytes.len();
                    bytes.resize(need, 0);
                    self.stream.read_exact(&mut bytes[have..]).unwrap();
                }
            }
        }
    }

    fn fpdu(&self, opcode: Opcode, last: bool, place: Place, payload: &[u8]) -> Vec<u8> {
        let header = Header { opcode, last, place, payload_bytes: payload.len() as u16 };
        let mut bytes = Vec::new();
        header.encode(&mut bytes);
        bytes.extend_from_slice(payload);
        bytes.resize(bytes.len() + mpa::padding_bytes(header.segment_bytes()), 0);
        let mut crc = Crc32c::new();
        crc.update(&bytes);
        bytes.extend_from_slice(&if self.crc { crc.finish() } else { [0; 4] });
        bytes
    }

    fn send(&mut self, opcode: Opcode, last: bool, place: Place, payload: &[u8]) {
        let bytes = self.fpdu(opcode, last, place, payload);
        self.stream.write_all(&bytes).unwrap();
    }

    /// The next FPDU: header, payload.
    fn read_fpdu(&mut self) -> (Header, Vec<u8>) {
        let mut bytes = vec![0; ddp::TAGGED_FPDU_HEADER_BYTES];
        self.stream.read_exact(&mut bytes).unwrap();
        let need = ddp::fpdu_header_bytes(&bytes);
        let have = bytes.len();
        bytes.resize(need, 0);
        self.stream.read_exact(&mut bytes[have..]).unwrap();
        let header = Header::decode(&bytes).unwrap().unwrap();
        let mut payload = vec![0; usize::from(header.payload_bytes)];
        self.stream.read_exact(&mut payload).unwrap();
        let mut trailer = vec![0; mpa::padding_bytes(header.segment_bytes()) + 4];
        self.stream.read_exact(&mut trailer).unwrap();
        if self.crc {
            let mut crc = Crc32c::new();
            for part in [&bytes[..], &payload, &trailer[..trailer.len() - 4]] {
                crc.update(part);
            }
            assert_eq!(crc.finish(), trailer[trailer.len() - 4..]);
        }
        (header, payload)
    }

    /// The adapter says why it ends, then ends.
    fn expect_terminate(&mut self, codes: Terminate) {
        let (header, payload) = self.read_fpdu();
        assert_eq!(header.opcode, Opcode::Terminate);
        assert_eq!(Terminate::decode(&payload), Some(codes));
        assert!(self.is_closed());
    }

    fn is_closed(&mut self) -> bool {
        matches!(self.stream.read(&mut [0; 16]), Ok(0) | Err(_))
    }
}

fn send_place(msn: u32, offset: u32) -> Place {
    Place::Untagged { invalidate_stag: 0, queue: Queue::Send, msn, offset }
}

fn read_place(msn: u32) -> Place {
    Place::Untagged { invalidate_stag: 0, queue: Queue::ReadRequest, msn, offset: 0 }
}

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
    // A write of nothing, as a peer sends to say that it is ready.
    raw.send(Opcode::Write, true, Place::Tagged { stag: 0, offset: 0 }, b"");
    node.settle();
    assert_eq!(raw.read_fpdu().1, [0; 64]);
}

#[test]
fn a_peer_may_ask_to_say_that_it_is_ready() {
    let ask = Enhanced { peer_to_peer: true, rtr_empty: true, ..WORDS };
    // By a write, if it offers one; else by a read of nothing.
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

/// The adapter under test connects; the listener's answer is `reply`.
fn connect_to_raw(node: &mut Node, ask: &[u8], reply: &[u8]) -> (Raw, EndpointId, Vec<u8>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::Tcp(listener.local_addr().unwrap());
    let endpoint = node.adapter.connect(node.domain, &address, ask).unwrap();
    node.settle();
    let (stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut raw = Raw { stream, crc: false };
    let mut request = vec![0; 20];
    raw.stream.read_exact(&mut request).unwrap();
    let more = usize::from(u16::from_be_bytes([request[18], request[19]]));
    request.resize(20 + more, 0);
    raw.stream.read_exact(&mut request[20..]).unwrap();
    raw.stream.write_all(reply).unwrap();
    (raw, endpoint, request)
}

/// The private data of the other side, once the connection is up.
fn established(node: &mut Node) -> Vec<u8> {
    node.until(|event| match event {
        Event::Established { private_data, .. } => Some(private_data.to_vec()),
        _ => None,
    })
}

fn is_silent(raw: &mut Raw) -> bool {
    raw.stream.set_nonblocking(true).unwrap();
    let silent = raw.stream.peek(&mut [0; 1]).is_err();
    raw.stream.set_nonblocking(false).unwrap();
    silent
}

/// What Linux clients and servers of NFS say about themselves (RFC 8797).
const NFS_DATA: [u8; 8] = [0xf6, 0xab, 0x0e, 0x18, 1, 1, 3, 3];

fn nfs_frame(kind: FrameKind, ird: u16, ord: u16) -> Vec<u8> {
    let enhanced = Some(Enhanced { ird, ord, ..Enhanced::default() });
    let (markers, crc, reject, revision) = (false, false, false, 2);
    let private_data = &NFS_DATA;
    let mut bytes = Vec::new();
    Frame { kind, markers, crc, reject, revision, enhanced, private_data }
        .encode(&mut bytes)
        .unwrap();
    bytes
}

#[test]
fn a_kernel_nfs_client_is_answered_in_its_own_terms() {
    let mut node = Node::new(IwarpConfig::default());
    let mut raw = Raw::connect(node.address);
    raw.stream.write_all(&nfs_frame(FrameKind::Request, 128, 0)).unwrap();
    let (request, asked) = node.until(|event| match event {
        Event::ConnectRequest { request, private_data, .. } => {
            Some((*request, private_data.to_vec()))
        }
        _ => None,
    });
    assert_eq!(asked, NFS_DATA);
    node.adapter.accept(request, node.domain, &NFS_DATA).unwrap();
    established(&mut node);
    let mut reply = [0; 32];
    raw.stream.read_exact(&mut reply).unwrap();
    // The enhanced words and what the consumer said, and no block of our own behind it.
    let depth = IwarpConfig::default().outbound_reads_max;
    assert_eq!(reply[..], nfs_frame(FrameKind::Reply, depth, depth));
    assert!(is_silent(&mut raw));
}

#[test]
fn reads_keep_to_the_depth_of_a_kernel_client() {
    let mut node = Node::new(IwarpConfig::default());
    let mut raw = Raw::connect(node.address);
    raw.stream.write_all(&nfs_frame(FrameKind::Request, 2, 0)).unwrap();
    let endpoint = node.accept();
    established(&mut node);
    let mut reply = [0; 24];
    raw.stream.read_exact(&mut reply).unwrap();
    assert_eq!(reply[20..], [0, 32, 0, 2]);
    raw.send(Opcode::Write, true, Place::Tagged { stag: 0, offset: 0 }, b"");
    for work in 0..5 {
        let source = dafs_dat::RemoteBuffer { key: 9, address: work * 16, len: 16 };
        let sink = node.region.local(16 * work as usize, 16);
        node.adapter.rdma_read(endpoint, work, sink, source).unwrap();
    }
    let next = |node: &mut Node, raw: &mut Raw| {
        node.settle();
        ReadRequest::decode(&raw.read_fpdu().1).unwrap()
    };
    let mut asked = vec![next(&mut node, &mut raw), next(&mut node, &mut raw)];
    for answered in 0..3 {
        node.settle();
        assert!(is_silent(&mut raw), "two reads are under way");
        let place = Place::Tagged { stag: asked[answered].sink_stag, offset: 0 };
        raw.send(Opcode::ReadResponse, true, place, &[7; 16]);
        asked.push(next(&mut node, &mut raw));
    }
    let addresses: Vec<u64> = asked.iter().map(|request| request.source_offset).collect();
    assert_eq!(addresses, [0, 16, 32, 48, 64]);
}

#[test]
fn a_kernel_nfs_server_is_given_time_and_a_nudge() {
    let mut node = Node::new(IwarpConfig::default());
    let reply = nfs_frame(FrameKind::Reply, 32, 32);
    let (mut raw, endpoint, request) = connect_to_raw(&mut node, &NFS_DATA, &reply);
    // It reads what it answers with from us, so it must be offered some reads.
    assert!(u16::from_be_bytes([request[20], request[21]]) >= 1);
    assert_eq!(request[24..32], NFS_DATA);
    assert_eq!(established(&mut node), NFS_DATA);
    node.adapter.post_receive(endpoint, 1, node.region.local(0, 100)).unwrap();
    node.adapter.post_send(endpoint, 2, &[node.region.local(0, 64)]).unwrap();
    node.settle();
    assert!(is_silent(&mut raw), "it may not be listening yet");
    node.now = node.adapter.next_timeout().unwrap();
    node.settle();
    assert_eq!(raw.read_fpdu().0.opcode, Opcode::Send);
    // Nothing comes back. It may have missed that.
    for _ in 0..2 {
        assert!(is_silent(&mut raw));
        node.now = node.adapter.next_timeout().unwrap();
        node.settle();
        let (header, payload) = raw.read_fpdu();
        assert_eq!((header.opcode, header.last, payload.len()), (Opcode::Write, true, 0));
    }
    // From its first word on it is left alone.
    raw.send(Opcode::Send, true, send_place(1, 0), b"hi");
    node.settle();
    let done: Vec<u64> = node
        .events
        .drain(..)
        .map(|event| match event {
            Event::Completion(done) if matches!(done.status, WorkStatus::Ok(_)) => done.work,
            event => panic!("{event:?}"),
        })
        .collect();
    assert_eq!(done, [2, 1], "a nudge is nobody's work");
    for _ in 0..10 {
        node.now = node.now + Duration::from_secs(1);
        node.settle();
    }
    assert!(is_silent(&mut raw));
}

#[test]
fn what_was_posted_to_a_stranger_is_sent_before_the_end() {
    let mut node = Node::new(IwarpConfig::default());
    let reply = nfs_frame(FrameKind::Reply, 32, 32);
    let (mut raw, endpoint, _) = connect_to_raw(&mut node, &NFS_DATA, &reply);
    established(&mut node);
    node.adapter.post_send(endpoint, 2, &[node.region.local(0, 64)]).unwrap();
    node.adapter.disconnect(endpoint);
    assert_eq!(node.gone(endpoint), DisconnectReason::Local);
    assert_eq!(raw.read_fpdu().0.opcode, Opcode::Send);
    assert!(raw.is_closed());
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
    // The other way round: a server that never answers.
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
    // Some peers send the headers of the offending segment, too.
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

/// The timer of the set-up runs on after it; it must not end what has more time.
#[test]
fn an_orderly_end_has_its_own_time() {
    let config = IwarpConfig::default();
    let (set_up, linger) = (config.handshake_timeout, config.linger_timeout);
    let mut node = Node::new(config);
    let (mut raw, endpoint) = node.plain_peer(false);
    raw.send(Opcode::Write, true, Place::Tagged { stag: 0, offset: 0 }, b"");
    // More than the sockets hold, to a peer that reads nothing.
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

#[test]
fn a_reset_in_mid_transfer_flushes() {
    let mut node = Node::new(IwarpConfig::default());
    let (mut raw, endpoint) = node.plain_peer(false);
    node.adapter.post_receive(endpoint, 1, node.region.local(0, 4096)).unwrap();
    raw.send(Opcode::Send, false, send_place(1, 0), &[1; 1000]);
    let bytes = raw.fpdu(Opcode::Send, true, send_place(1, 1000), &[1; 1000]);
    raw.stream.write_all(&bytes[..500]).unwrap();
    // More than the sockets hold, so that some of it is queued when the reset comes.
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
    // All in one piece, so that none is answered before the last is seen.
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
    // Those inside are none the worse, and a place that gets free can be taken.
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
fn a_peer_that_stops_reading_holds_up_only_itself() {
    let mut node = Node::new(IwarpConfig::default());
    let (mut lazy, stuck) = node.plain_peer(false);
    let (mut keen, endpoint) = node.plain_peer(false);
    // It asks for megabytes and reads none of them.
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
    // Told to end, it gets its time and no more.
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
    // Whichever polls takes the connection.
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
    // What a flush completes waits for the poll, so nobody may sleep on it.
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
    let text = bad(IwarpConfig { stranger_fpdu_bytes_max: Some(1 << 20), ..good.clone() });
    assert!(text.contains("1048576"), "{text}");
    let text = bad(IwarpConfig { inbound_reads_max: limits::READ_DEPTH_MAX + 1, ..good });
    assert!(text.contains("128"), "{text}");
}
