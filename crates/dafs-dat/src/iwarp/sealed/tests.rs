//! The end of a connection inside TLS whose socket is full.

use super::*;
use crate::iwarp::adapter::Entry;
use crate::iwarp::{IwarpAdapter, IwarpConfig, Violation};
use crate::tls::{ClientTls, Job, ServerTls, now_seconds};
use crate::{Adapter as _, Address, EndpointId, Event, Instant};
use dafs_tls::pki::Folder;
use dafs_tls::{
    ClientFiles, OVERHEAD_BYTES, Protocol, ReloadingClient, ReloadingServer, ServerFiles,
    TransportSecurity,
};
use socket2::SockRef;
use std::io::Write as _;
use std::net::TcpStream;
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
    for end in [TlsEnd::Spent.into(), End::Local, End::Violation(Violation::NoReceive)] {
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
        // The client has not closed its side.
        assert_eq!(adapter.socket_count(), 1);
        drop(client);
        while adapter.socket_count() > 0 {
            adapter.poll(Instant::now(), &mut events);
        }
    }
}
