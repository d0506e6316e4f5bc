//! The end of a connection inside TLS whose socket is full, and the bound of a turn.

use super::*;
use crate::iwarp::adapter::Entry;
use crate::iwarp::limits::TURN_BYTES_PER_RECORD;
use crate::iwarp::records::BLOCK_BYTES;
use crate::iwarp::{IwarpAdapter, IwarpConfig, Violation};
use crate::tls::{ClientTls, Job, ServerTls, now_seconds};
use crate::{Adapter as _, Address, EndpointId, Event, Instant};
use dafs_tls::pki::Folder;
use dafs_tls::{
    ClientFiles, OVERHEAD_BYTES, Protocol, ReloadingClient, ReloadingServer, ServerFiles,
    TransportSecurity,
};
use dafs_wire::iwarp::ddp::{Header, Place};
use dafs_wire::iwarp::mpa;
use dafs_wire::iwarp::rdmap::Opcode;
use socket2::SockRef;
use std::io::Write as _;
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;

/// One end of an established connection.
struct Side {
    adapter: IwarpAdapter,
    id: u64,
    /// Its socket.
    stream: TcpStream,
}

impl Side {
    fn new(mut adapter: IwarpAdapter, EndpointId(id): EndpointId) -> Self {
        let stream = connection(&mut adapter, id).stream.try_clone().unwrap();
        Self { adapter, id, stream }
    }

    fn connection(&mut self) -> &mut Connection {
        connection(&mut self.adapter, self.id)
    }
}

fn connection(adapter: &mut IwarpAdapter, id: u64) -> &mut Connection {
    match adapter.slots.get_mut(id) {
        Some(Entry::Connection(connection)) => connection,
        other => panic!("{other:?}"),
    }
}

/// A connection inside TLS: its client and its server.
fn pair() -> (Side, Side) {
    let (directory, now) = (tempfile::tempdir().unwrap(), now_seconds());
    let folder = Folder::create(&directory.path().join("pki"), "CA", now).unwrap();
    let made = folder.add_server(&["localhost".to_owned()], now).unwrap();
    let files = ServerFiles { certificate: made.certificate, key: made.key, ..Default::default() };
    let files = Arc::new(ReloadingServer::open(files, now).unwrap());
    let mut server = IwarpAdapter::new(IwarpConfig::default()).unwrap();
    let host = ServerTls::new(files, Box::new(|_, job: Job| job()));
    server.serve_tls(host, Protocol::Dafs).unwrap();
    let authorities = folder.authority_files().certificate;
    let files = ClientFiles { authorities, ..Default::default() };
    let files = Arc::new(ReloadingClient::open(files, now).unwrap());
    let tls = ClientTls::new(files, "localhost", TransportSecurity::Tls, Protocol::Dafs);
    let config = IwarpConfig { tls: Some(tls), ..IwarpConfig::default() };
    let mut client = IwarpAdapter::new(config).unwrap();

    let listener = server.listen(&Address::Tcp("127.0.0.1:0".parse().unwrap())).unwrap();
    let address = server.listener_address(listener).unwrap();
    let domains = [client.protection_domain(), server.protection_domain()];
    let client_end = client.connect(domains[0], &address, b"").unwrap();
    let (mut events, mut server_end) = (Vec::new(), None);
    loop {
        client.poll(Instant::now(), &mut events);
        if !events.is_empty() {
            break;
        }
        server.poll(Instant::now(), &mut events);
        for event in events.drain(..) {
            if let Event::ConnectRequest { request, .. } = event {
                server_end = Some(server.accept(request, domains[1], b"").unwrap());
            }
        }
    }
    assert!(matches!(events[..], [Event::Established { .. }]), "{events:?}");
    (Side::new(client, client_end), Side::new(server, server_end.unwrap()))
}

#[test]
fn the_last_record_waits_for_room_in_the_socket() {
    const LAST: usize = OVERHEAD_BYTES + 2;
    for (end, is_half_closed) in [
        (TlsEnd::Spent.into(), false),
        (End::Local, false),
        (End::Local, true),
        (End::Violation(Violation::NoReceive), false),
    ] {
        let has_terminate = matches!(end, End::Violation(_));
        let (mut client, Side { mut adapter, id, mut stream }) = pair();
        SockRef::from(&stream).set_send_buffer_size(4096).unwrap();
        // A socket that is closed before its input was read resets the connection.
        client.stream.write_all(b"input that nobody has read").unwrap();
        let mut filled = 0;
        while let Ok(bytes) = stream.write(&[0; 512]) {
            filled += bytes;
        }
        drop(stream);
        if is_half_closed {
            client.stream.shutdown(Shutdown::Write).unwrap();
        }
        adapter.end(id, end);
        let (mut got, mut part, mut events) = (Vec::new(), [0; 4096], Vec::new());
        loop {
            adapter.poll(Instant::now(), &mut events);
            match client.stream.read(&mut part) {
                Ok(0) => break,
                Ok(bytes) => got.extend_from_slice(&part[..bytes]),
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "{error}"),
            }
        }
        let last = got.len() - LAST;
        assert_eq!((last > filled, &got[last..][..5]), (has_terminate, &[23, 3, 3, 0, 19][..]));
        assert!(
            is_half_closed || adapter.socket_count() == 1,
            "the client has not closed its side"
        );
        drop(client);
        while adapter.socket_count() > 0 {
            adapter.poll(Instant::now(), &mut events);
        }
    }
}

#[test]
fn a_turn_opens_a_bounded_number_of_records() {
    // So many that fill more than a turn's bytes of memory, if each record has one byte.
    const RECORDS: usize = 60_000;
    const MOST: usize = TURN_BYTES / TURN_BYTES_PER_RECORD + BLOCK_BYTES / (OVERHEAD_BYTES + 1);
    let (mut client, mut server) = pair();
    SockRef::from(&client.stream).set_send_buffer_size(4 << 20).unwrap();
    SockRef::from(&server.stream).set_recv_buffer_size(4 << 20).unwrap();
    let place = Place::Tagged { stag: 0, offset: 0 };
    let header = Header { opcode: Opcode::Write, last: true, place, payload_bytes: 0 };
    let mut empty_write = Vec::new();
    header.encode(&mut empty_write);
    let rest = mpa::padding_bytes(header.segment_bytes()) + mpa::FPDU_CRC_BYTES;
    empty_write.resize(empty_write.len() + rest, 0);
    let mut sealed = Vec::new();
    for byte in empty_write.iter().cycle().take(RECORDS) {
        let tls = client.connection().tls.as_mut().unwrap();
        sealed.extend(tls.seal_short(&[*byte]).unwrap());
    }
    // One record was the frame of the set-up.
    let (mut sent, mut opened) = (0, 1);
    while opened <= RECORDS {
        while let Ok(bytes @ 1..) = client.stream.write(&sealed[sent..]) {
            sent += bytes;
        }
        server.adapter.serve(server.id, |connection, core| connection.receive(core)).unwrap();
        let now = server.connection().tls.as_ref().unwrap().count() as usize;
        assert!(now - opened <= MOST, "{} records in one turn", now - opened);
        opened = now;
    }
}
