//! The iWARP provider against peers that behave like the kernel's NFS client and server over siw.

use crate::raw::{Node, Raw, send_place};
use dafs_dat::iwarp::IwarpConfig;
use dafs_dat::{Adapter, Address, DisconnectReason, EndpointId, Event, WorkStatus};
use dafs_wire::iwarp::ddp::Place;
use dafs_wire::iwarp::mpa::{Enhanced, Frame, FrameKind};
use dafs_wire::iwarp::rdmap::{Opcode, ReadRequest};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;

/// The adapter under test connects; the listener answers with `reply`.
fn connect_to_raw(node: &mut Node, ask: &[u8], reply: &[u8]) -> (Raw, EndpointId, Vec<u8>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::Tcp(listener.local_addr().unwrap());
    let endpoint = node.adapter.connect(node.domain, &address, ask).unwrap();
    node.settle();
    let (stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut raw = Raw { stream, crc: false };
    let mut request = vec![0; 20];
    raw.stream.read_exact(&mut request).unwrap();
    let more = usize::from(u16::from_be_bytes([request[18], request[19]]));
    request.resize(20 + more, 0);
    raw.stream.read_exact(&mut request[20..]).unwrap();
    raw.stream.write_all(reply).unwrap();
    (raw, endpoint, request)
}

/// The private data of the peer, once the connection is established.
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

/// The private data of Linux NFS clients and servers (RFC 8797).
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
    // The enhanced words and the consumer's data, without the block of this implementation.
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
    // The server reads from us to answer, so it must be offered some reads.
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
    // No answer arrives. The peer may have missed the message.
    for _ in 0..2 {
        assert!(is_silent(&mut raw));
        node.now = node.adapter.next_timeout().unwrap();
        node.settle();
        let (header, payload) = raw.read_fpdu();
        assert_eq!((header.opcode, header.last, payload.len()), (Opcode::Write, true, 0));
    }
    // After its first message the peer gets no more nudges.
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
fn posted_data_reaches_a_foreign_peer_before_the_end() {
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
