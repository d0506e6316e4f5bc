//! Peers that break the rules of TLS, or take it away.

use super::super::common::{Event, PATIENCE, Raw, Server, options, procedure, procedures, sum};
use super::{World, bad_credential, echo, now_seconds, probe, shaking, starttls};
use dafs_rpc::client::{Options, RpcClient};
use dafs_rpc::server::Config;
use dafs_rpc::tls::TransportSecurity::{Mtls, Tls};
use dafs_rpc::{CallbackError, CallbackRequest};
use dafs_wire::rpc::FragmentMark;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;

/// Reads to the end. A reset is an end, too.
fn to_end(stream: &mut impl Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    bytes
}

/// Content type of an alert.
const ALERT: u8 = 21;

#[test]
fn only_a_probe_gets_tls() {
    let world = World::new();
    let mut raw = Raw::connect(&world.server);
    raw.send(&probe(1, procedures::ECHO));
    assert_eq!(raw.record().unwrap(), bad_credential(1));
    let words = [2, 0, 2, super::PROGRAM, 1, 0, super::AUTH_TLS, 0, 0, 0];
    raw.send(&super::record(&words, b"body"));
    assert_eq!(raw.record().unwrap(), bad_credential(2));
    // The connection is in the clear as before.
    raw.send(&echo(3));
    assert_eq!(raw.reply().unwrap().2, b"ping");
    // Without TLS every probe is refused.
    let server = Server::start(1, Config::default());
    let mut raw = Raw::connect(&server);
    raw.send(&probe(4, 0));
    assert_eq!(raw.record().unwrap(), bad_credential(4));
}

#[test]
fn a_probe_inside_tls_is_refused() {
    let world = World::new();
    let mut client = world.foreign_client(world.foreign(false, &["sunrpc"]));
    client.write_all(&probe(9, 0)).unwrap();
    let mut answer = [0; 24];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(answer[4..], bad_credential(9));
    client.write_all(&echo(10)).unwrap();
    client.read_exact(&mut [0; 32]).unwrap();
}

#[test]
fn clear_bytes_behind_the_probe_are_not_carried_out() {
    let world = World::new();
    // In one piece with the probe.
    let mut raw = Raw::connect(&world.server);
    raw.send(&[probe(1, 0), echo(2)].concat());
    assert!(raw.record().is_none_or(|answer| answer == starttls(1)));
    assert!(to_end(&mut raw.0).is_empty());
    // After the answer: an alert, which says that this is no TLS, and the end.
    let mut raw = Raw::connect(&world.server);
    raw.send(&probe(1, 0));
    assert_eq!(raw.record().unwrap(), starttls(1));
    raw.send(&echo(2));
    let end = to_end(&mut raw.0);
    assert!(end.first().is_none_or(|kind| *kind == ALERT), "{end:?}");
    // The probes alone.
    world.server.wait_for(|statistics| (statistics.tls_failed, statistics.calls) == (2, 2));
}

#[test]
fn old_versions_and_other_protocols_get_an_alert() {
    let world = World::new();
    let mut raw = Raw::connect(&world.server);
    raw.send(&probe(1, 0));
    assert_eq!(raw.record().unwrap(), starttls(1));
    // A ClientHello of TLS 1.2 without extensions.
    let hello = [&[3, 3][..], &[7; 32], &[0, 0, 2, 0xc0, 0x2f, 1, 0]].concat();
    let len = hello.len() as u8;
    raw.send(&[&[22, 3, 1, 0, len + 4, 1, 0, 0, len][..], &hello].concat());
    let end = to_end(&mut raw.0);
    // handshake_failure, because there is nothing that TLS 1.3 needs, or protocol_version.
    assert!(end[0] == ALERT && matches!(end[5..], [2, 40 | 70]), "{end:?}");
    let mut client = world.foreign_client(world.foreign(false, &["h2"]));
    let error = client.write_all(&echo(1)).and_then(|()| client.read_exact(&mut [0; 32]));
    assert!(error.unwrap_err().to_string().contains("NoApplicationProtocol"));
    world.server.wait_for(|statistics| statistics.tls_failed == 2);
}

#[test]
fn a_key_update_ends_the_connection() {
    let world = World::new();
    let mut client = world.foreign_client(world.foreign(false, &[]));
    client.write_all(&echo(1)).unwrap();
    client.read_exact(&mut [0; 32]).unwrap();
    client.conn.refresh_traffic_keys().unwrap();
    let _ = client.write_all(&echo(2));
    let _ = client.flush();
    assert!(to_end(&mut client).is_empty());
    world.server.wait_for(|statistics| statistics.tls_failed == 1);
}

#[test]
fn a_record_that_was_changed_ends_the_connection() {
    let world = World::new();
    let mut client = world.foreign_client(world.foreign(false, &[]));
    client.write_all(&echo(1)).unwrap();
    client.read_exact(&mut [0; 32]).unwrap();
    // A record of the right form that this connection has not made.
    let forged = [&[23, 3, 3, 0, 100][..], &[9; 100]].concat();
    client.sock.write_all(&forged).unwrap();
    assert!(to_end(&mut client).is_empty());
    // The probe and the first call.
    world.server.wait_for(|statistics| (statistics.tls_failed, statistics.calls) == (1, 2));
}

#[test]
fn half_a_record_is_not_carried_out_and_others_go_on() {
    let world = World::new();
    let honest = world.connect(Mtls);
    for (reset, calls) in [(false, 2), (true, 4)] {
        let mut client = world.foreign_client(world.foreign(true, &[]));
        let whole = super::call(1, procedures::SUM, &[3; 50_000]);
        client.write_all(&whole[..30_000]).unwrap();
        client.flush().unwrap();
        // A part of another record.
        client.sock.write_all(&[23, 3, 3, 1, 0, 7, 7]).unwrap();
        if reset {
            rustix::net::connect_unspec(&client.sock).unwrap();
        } else {
            client.sock.shutdown(Shutdown::Write).unwrap();
            assert!(to_end(&mut client).is_empty());
        }
        // The probes, and the calls of the honest client.
        world
            .server
            .wait_for(|statistics| (statistics.connections, statistics.calls) == (1, calls));
        let data = [5; 20_000];
        let got = honest.call(procedure(procedures::SUM), &data).unwrap();
        assert_eq!(got[..], sum(&data));
    }
}

#[test]
fn half_handshakes_are_bounded_and_hurt_nobody_else() {
    let world = World::new();
    let honest = world.connect(Tls);
    let mut half = Vec::new();
    // All are this host's, which may have 64 under way.
    for number in 0..64 {
        let mut raw = Raw::connect(&world.server);
        raw.send(&probe(number, 0));
        assert_eq!(raw.record().unwrap(), starttls(number));
        raw.send(&[22, 3, 1]);
        half.push(raw);
    }
    let mut one_more = Raw::connect(&world.server);
    one_more.send(&probe(1, 0));
    assert!(one_more.record().is_none_or(|answer| answer == starttls(1)));
    assert!(one_more.is_closed());
    assert_eq!(honest.call(procedure(procedures::ECHO), b"ping").unwrap()[..], *b"ping");
    drop(half);
    world.server.wait_for(|statistics| statistics.connections == 1);
    let client = world.connect(Tls);
    assert_eq!(client.call(procedure(procedures::ECHO), b"ping").unwrap()[..], *b"ping");
}

#[test]
fn a_busy_connection_gives_up_its_keys() {
    let world = World::with(Config { tls_records_max: 10, ..Config::default() });
    let mut client = world.foreign_client(world.foreign(false, &["sunrpc"]));
    // A call without an answer keeps the connection busy.
    client.write_all(&super::call(1, procedures::HOLD, &[])).unwrap();
    for xid in 2..=10 {
        client.write_all(&echo(xid)).unwrap();
        let mut answer = [0; 32];
        client.read_exact(&mut answer).unwrap();
        assert_eq!(answer[4..8], u32::to_be_bytes(xid));
    }
    if world.tls.kernel().is_ok() {
        // Its records are counted from time to time.
        std::thread::sleep(std::time::Duration::from_secs(2));
    }
    client.write_all(&echo(11)).unwrap();
    client.flush().unwrap();
    world.server.held.lock().unwrap().pop().unwrap().respond(dafs_rpc::Reply::new());
    let mut answer = [0; 28];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(answer[4..8], u32::to_be_bytes(1));
    // The last call is not taken, and close_notify says that nothing is missing.
    assert_eq!(client.read(&mut [0; 32]).unwrap(), 0);
    world.server.wait_for(|statistics| (statistics.connections, statistics.tls_failed) == (0, 0));
}

#[test]
fn a_client_that_loses_its_trust_loses_its_connection() {
    let world = World::new();
    let trusted = world.connect(Mtls);
    // This client itself trusts the server as before.
    let options = Options { tls: Some(world.demand_by(Tls, world.own_authorities())), ..options() };
    let anonymous = world.server.connect_with(options, None);
    trusted.call(procedure(procedures::NULL), &[]).unwrap();
    let other = World::new();
    let authority = world.folder.authority_files().certificate;
    std::fs::copy(other.folder.authority_files().certificate, authority).unwrap();
    world.tls.files().follow(now_seconds()).unwrap();
    world.server.wait_for(|statistics| statistics.tls_failed == 1);
    assert!(trusted.call(procedure(procedures::NULL), &[]).is_err());
    // A client without a certificate had no trust to lose.
    anonymous.call(procedure(procedures::NULL), &[]).unwrap();
}

#[test]
fn replies_arrive_although_the_keys_are_spent_and_the_client_sends_on() {
    let world = World::with(Config { tls_records_max: 10, ..Config::default() });
    let mut client = world.foreign_client(world.foreign(false, &["sunrpc"]));
    // Most of the reply waits at the server while the client sends.
    rustix::net::sockopt::set_socket_recv_buffer_size(&client.sock, 16 << 10).unwrap();
    let bulk_bytes: u32 = 1 << 20;
    let bulk = super::call(1, procedures::BULK, &bulk_bytes.to_be_bytes());
    client.write_all(&[bulk, echo(2)].concat()).unwrap();
    let mut front = [0; 32];
    client.read_exact(&mut front).unwrap();
    assert_eq!(front[4..8], u32::to_be_bytes(1));
    for xid in 3..9 {
        client.write_all(&echo(xid)).unwrap();
    }
    let mut data = vec![0; bulk_bytes as usize];
    client.read_exact(&mut data).unwrap();
    assert_eq!(data, super::super::common::pattern(data.len()));
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).expect("the end of TLS, and no reset");
}

#[test]
fn a_client_that_has_lost_its_trust_makes_no_further_call() {
    let world = World::new();
    let trusted: Vec<_> = (0..70).map(|_| world.connect(Mtls)).collect();
    for client in &trusted {
        client.call(procedure(procedures::NULL), &[]).unwrap();
    }
    let other = World::new();
    let authority = world.folder.authority_files().certificate;
    std::fs::copy(other.folder.authority_files().certificate, authority).unwrap();
    world.tls.files().follow(now_seconds()).unwrap();
    // More than one turn judges, and none may have come.
    for client in &trusted {
        assert!(client.call(procedure(procedures::NULL), &[]).is_err());
    }
}

#[test]
fn a_client_that_has_lost_its_trust_gets_no_callback() {
    let world = World::new();
    let (called, calls) = std::sync::mpsc::channel();
    let back = move |request| drop(called.send(request));
    let client = world.server.connect_with(world.options(Mtls), Some(Box::new(back)));
    let _held = client.submit(procedure(procedures::HOLD), &[]).unwrap();
    client.call(procedure(procedures::NULL), &[]).unwrap();
    let held = world.server.held.lock().unwrap().pop().unwrap();
    let other = World::new();
    let authority = world.folder.authority_files().certificate;
    std::fs::copy(other.folder.authority_files().certificate, authority).unwrap();
    world.tls.files().follow(now_seconds()).unwrap();
    held.connection().send_callback(CallbackRequest {
        program: super::PROGRAM + 1,
        version: 1,
        procedure: 2,
        auth_sys: None,
        args: Vec::new(),
        token: 7,
    });
    // The connection may have ended before.
    let mut events = std::iter::repeat_with(|| world.server.event());
    let told = events.find(|event| *event != Event::Disconnected);
    assert_eq!(told, Some(Event::BackReply(7, Err(CallbackError::Disconnected))));
    // It reads to the end.
    assert!(client.call(procedure(procedures::NULL), &[]).is_err());
    assert!(calls.try_recv().is_err(), "a callback left");
}

#[test]
fn a_server_that_has_lost_its_trust_gets_no_further_call() {
    let (world, other) = (World::new(), World::new());
    let path = world.own_authorities();
    let demand = world.demand_by(Tls, path.clone());
    let options = || Options { tls: Some(demand.clone()), ..options() };
    let client = world.server.connect_with(options(), None);
    let call = |client: &RpcClient| client.call(procedure(procedures::NULL), &[]);
    call(&client).unwrap();
    // The client looks at its files once a second.
    let start = std::time::Instant::now();
    std::fs::copy(other.folder.authority_files().certificate, &path).unwrap();
    while call(&client).is_ok() {
        assert!(start.elapsed() < PATIENCE, "the server is still trusted");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert!(client.broken().unwrap().contains("not trusted any more"), "{:?}", client.broken());
    // A change that leaves the trust as it was ends nothing.
    std::fs::copy(world.folder.authority_files().certificate, &path).unwrap();
    let client = world.server.connect_with(options(), None);
    let both = [&path, &other.folder.authority_files().certificate].map(std::fs::read);
    std::fs::write(&path, both.map(Result::unwrap).concat()).unwrap();
    let start = std::time::Instant::now();
    while start.elapsed() < std::time::Duration::from_secs(2) {
        call(&client).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn a_client_that_becomes_trusted_needs_no_new_connection() {
    let world = World::new();
    let other = World::new();
    let authority = world.folder.authority_files().certificate;
    let own = world.own_authorities();
    std::fs::copy(other.folder.authority_files().certificate, &authority).unwrap();
    world.tls.files().follow(now_seconds()).unwrap();
    // The client itself trusts the server as before.
    let options = Options { tls: Some(world.demand_by(Mtls, own.clone())), ..options() };
    let client = world.server.connect_with(options, None);
    assert_eq!(super::calls::security(&client), "tls");
    std::fs::copy(own, &authority).unwrap();
    world.tls.files().follow(now_seconds()).unwrap();
    let start = std::time::Instant::now();
    while super::calls::security(&client) != "mtls" {
        assert!(start.elapsed() < PATIENCE, "the client is not trusted");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// A server that gives this answer to a probe, and to all that follows.
fn answering(answer: impl Fn(u32) -> Vec<u8> + Send + 'static) -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut raw = Raw(stream.unwrap());
            while let Some(record) = raw.record() {
                let xid = u32::from_be_bytes(*record.first_chunk().unwrap());
                let answer = answer(xid);
                raw.send(&FragmentMark::whole(answer.len()).unwrap().to_bytes());
                raw.send(&answer);
            }
        }
    });
    address
}

#[test]
fn a_client_that_demands_tls_never_uses_a_connection_without() {
    let world = World::new();
    let plain = Server::start(1, Config::default());
    let taken_out = |xid: u32| {
        let mut answer = starttls(xid);
        // An empty verifier: a server without TLS.
        answer.splice(12..28, [0; 8]);
        answer
    };
    let changed = |xid: u32| {
        let mut answer = starttls(xid);
        answer[20] = b'X';
        answer
    };
    let servers =
        [plain.address, answering(taken_out), answering(changed), answering(bad_credential)];
    for (at, server) in servers.into_iter().enumerate() {
        for least in [Tls, Mtls] {
            let error = RpcClient::connect(server, world.options(least), None).unwrap_err();
            assert!(error.to_string().contains("offers no TLS"), "{at}: {error}");
        }
    }
    assert_eq!(plain.group.statistics().accepted, 2);
    // A record in the clear in the place of the handshake.
    let clear = answering(starttls);
    let error = RpcClient::connect(clear, world.options(Tls), None).unwrap_err();
    assert!(!error.to_string().contains("offers no TLS"), "{error}");
}

#[test]
fn a_client_with_mtls_refuses_a_server_that_asks_for_no_certificate() {
    let world = World::new();
    let now = now_seconds();
    let directory = tempfile::tempdir().unwrap();
    // The same authority, so that the server itself is right.
    let copy = directory.path().join("pki");
    std::fs::create_dir(&copy).unwrap();
    let authority = world.folder.authority_files();
    std::fs::copy(authority.certificate, copy.join("ca.pem")).unwrap();
    std::fs::copy(authority.key, copy.join("ca-key.pem")).unwrap();
    let made = dafs_tls::pki::Folder::open(&copy).add_server(&["localhost".to_owned()], now);
    let made = made.unwrap();
    let chain = vec![CertificateDer::from_pem_file(made.certificate).unwrap()];
    let key = PrivateKeyDer::from_pem_file(made.key).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut raw = Raw(stream.unwrap());
            let record = raw.record().unwrap();
            let answer = starttls(u32::from_be_bytes(*record.first_chunk().unwrap()));
            raw.send(&FragmentMark::whole(answer.len()).unwrap().to_bytes());
            raw.send(&answer);
            let connection = rustls::ServerConnection::new(config.clone()).unwrap();
            let mut tls = rustls::StreamOwned::new(connection, raw.0);
            let _ = tls.read(&mut [0]);
        }
    });
    let error = RpcClient::connect(address, world.options(Mtls), None).unwrap_err();
    assert!(error.to_string().contains("does not verify its clients"), "{error}");
    RpcClient::connect(address, world.options(Tls), None).unwrap();
}

#[test]
fn a_server_that_stops_in_the_handshake_is_given_up() {
    let world = World::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let options =
        Options { connect_timeout: std::time::Duration::from_millis(200), ..world.options(Tls) };
    let error = RpcClient::connect(address, options, None).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
    drop(listener);
}

#[test]
fn the_clear_and_tls_live_side_by_side() {
    let world = World::new();
    let clear = RpcClient::connect(world.server.address, options(), None).unwrap();
    let tls = world.connect(Tls);
    for client in [&clear, &tls, &clear, &tls] {
        assert_eq!(client.call(procedure(procedures::ECHO), b"ping").unwrap()[..], *b"ping");
    }
    let stream = TcpStream::connect(world.server.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // A ClientHello without a probe is no record of RPC.
    let mut hello = shaking(stream, world.foreign(false, &[]));
    assert!(hello.write_all(&echo(1)).and_then(|()| hello.read_exact(&mut [0; 32])).is_err());
}
