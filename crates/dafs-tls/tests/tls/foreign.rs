//! Connections with rustls' own, buffered connections: another user of the protocol.

use crate::world::{NOW, Pair, World, open_all};
use dafs_tls::{
    Channel, ControlError, Established, Handshake, HandshakeError, OpenError, Opened, Opener,
    Progress, Protocol, ServerSide, Suite, TransportSecurity, sealed_bytes,
};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::time_provider::TimeProvider;
use rustls::{ClientConfig, Connection, RootCertStore, ServerConfig};
use std::io::{Read as _, Write as _};
use std::sync::Arc;
use std::time::Duration;

#[derive(Debug)]
struct Fixed;

impl TimeProvider for Fixed {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(Duration::from_secs(NOW)))
    }
}

fn provider(suite: Suite) -> Arc<CryptoProvider> {
    let suites = match suite {
        Suite::Aes128 => vec![aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256],
        Suite::Aes256 => vec![
            aws_lc_rs::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
            aws_lc_rs::cipher_suite::TLS13_AES_256_GCM_SHA384,
        ],
    };
    Arc::new(CryptoProvider { cipher_suites: suites, ..aws_lc_rs::default_provider() })
}

fn identity(pair: &Pair) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
    let own = CertificateDer::from_pem_slice(pair.certificate.as_bytes()).unwrap();
    (vec![own], PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).unwrap())
}

/// A client of the shared world.
fn client(pair: Option<&Pair>, protocols: &[&[u8]], suite: Suite) -> Connection {
    let mut roots = RootCertStore::empty();
    roots.add(World::shared().authority.certificate_der()).unwrap();
    let builder = ClientConfig::builder_with_details(provider(suite), Arc::new(Fixed))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match pair.map(identity) {
        Some((chain, key)) => builder.with_client_auth_cert(chain, key).unwrap(),
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    let name = "nas.example".try_into().unwrap();
    Connection::Client(rustls::ClientConnection::new(Arc::new(config), name).unwrap())
}

/// A server of the shared world that sends tickets.
fn server(suite: Suite, protocols: &[&[u8]]) -> Connection {
    let pair = World::shared().authority.server(&["nas.example".to_owned()], NOW).unwrap();
    let pair = Pair { certificate: pair.certificate, key: pair.key.to_string() };
    let (chain, key) = identity(&pair);
    let mut config = ServerConfig::builder_with_details(provider(suite), Arc::new(Fixed))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    config.send_tls13_tickets = 4;
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    Connection::Server(rustls::ServerConnection::new(Arc::new(config)).unwrap())
}

/// Hands bytes to the foreign end.
fn give(foreign: &mut Connection, mut bytes: &[u8]) -> Result<(), rustls::Error> {
    while !bytes.is_empty() {
        foreign.read_tls(&mut bytes).unwrap();
        foreign.process_new_packets()?;
    }
    Ok(())
}

/// Takes all bytes that the foreign end wants to send.
fn take(foreign: &mut Connection) -> Vec<u8> {
    let mut bytes = Vec::new();
    while foreign.wants_write() {
        foreign.write_tls(&mut bytes).unwrap();
    }
    bytes
}

/// Shakes hands. Returns the judgement of our end, and the bytes that came behind the handshake.
fn shake(ours: &mut Handshake, foreign: &mut Connection) -> (Result<(), HandshakeError>, Vec<u8>) {
    let mut wire = Vec::new();
    loop {
        let outcome = ours.step();
        let output = ours.take_output();
        let is_quiet = output.is_empty();
        let accepted = give(foreign, &output);
        wire.extend(take(foreign));
        let taken = ours.feed(&wire);
        wire.drain(..taken);
        match outcome {
            Ok(Progress::Done) => return (Ok(()), wire),
            Err(error) => return (Err(error), wire),
            Ok(Progress::Reading) if is_quiet && taken == 0 => {
                panic!("nothing moves: {accepted:?}, {ours:?}")
            }
            Ok(Progress::Reading) => {}
        }
    }
}

/// Connects a foreign client to a server that speaks RPC.
pub(crate) fn connect(
    side: &Arc<ServerSide>,
    pair: Option<&Pair>,
    protocols: &[&[u8]],
) -> (Result<Established, HandshakeError>, Connection) {
    connect_to(side, pair, protocols, &[Protocol::Rpc])
}

fn connect_to(
    side: &Arc<ServerSide>,
    pair: Option<&Pair>,
    offered: &[&[u8]],
    served: &[Protocol],
) -> (Result<Established, HandshakeError>, Connection) {
    let mut foreign = client(pair, offered, Suite::Aes256);
    let mut ours = Handshake::server(side, served, NOW).unwrap();
    let (outcome, rest) = shake(&mut ours, &mut foreign);
    assert!(rest.is_empty());
    (outcome.and_then(|()| ours.finish()), foreign)
}

fn tls_server() -> Arc<ServerSide> {
    World::shared().server(TransportSecurity::Tls)
}

/// Compares exported values, and sends data both ways.
fn check(ours: Established, foreign: &mut Connection, rest: Vec<u8>) {
    let mut mine = [0; 32];
    let context = b"a context";
    ours.exporter.export(b"EXPERIMENTAL dafs", context, &mut mine).unwrap();
    let theirs =
        foreign.export_keying_material([0; 32], b"EXPERIMENTAL dafs", Some(&context[..])).unwrap();
    assert_eq!(mine, theirs);
    let binding =
        foreign.export_keying_material([0; 32], b"EXPORTER-Channel-Binding", None).unwrap();
    assert_eq!(ours.exporter.channel_binding(), binding);

    let mut channel = Channel::new(ours.keys);
    let data: Vec<u8> = (0..12_000u32).map(|at| (at % 253) as u8).collect();
    let mut wire = vec![0; sealed_bytes(data.len())];
    channel.sealer.seal(&[&data[..100], &data[100..]], &mut wire).unwrap();
    give(foreign, &wire).unwrap();
    let mut got = vec![0; data.len()];
    foreign.reader().read_exact(&mut got).unwrap();
    assert_eq!(got, data);
    foreign.writer().write_all(&data).unwrap();
    let mut wire = rest;
    wire.extend(take(foreign));
    assert_eq!(open_all(&mut channel, &mut wire).unwrap(), data);
    foreign.send_close_notify();
    let mut wire = take(foreign);
    assert_eq!(Opener::record_bytes(&wire), Ok(Some(wire.len())));
    assert_eq!(channel.opener.open(&mut wire), Ok(Opened::Closed));
    let close = channel.sealer.close(dafs_tls::Alert::CLOSE_NOTIFY).unwrap();
    give(foreign, &close).unwrap();
    assert_eq!(foreign.reader().read(&mut [0]).unwrap(), 0);
}

#[test]
fn a_foreign_client_and_our_server_agree() {
    for suite in [Suite::Aes128, Suite::Aes256] {
        let mut foreign = client(None, &[b"sunrpc"], suite);
        let mut ours = Handshake::server(&tls_server(), &[Protocol::Rpc], NOW).unwrap();
        let (outcome, rest) = shake(&mut ours, &mut foreign);
        outcome.unwrap();
        let ours = ours.finish().unwrap();
        assert_eq!(ours.facts.suite, suite);
        assert_eq!(foreign.alpn_protocol(), Some(&b"sunrpc"[..]));
        check(ours, &mut foreign, rest);
    }
}

#[test]
fn our_client_and_a_foreign_server_agree_and_tickets_are_ignored() {
    for suite in [Suite::Aes128, Suite::Aes256] {
        let mut foreign = server(suite, &[b"sunrpc"]);
        let side = World::shared().client(None);
        let mut ours = Handshake::client(&side, "nas.example", Protocol::Rpc, NOW).unwrap();
        let (outcome, mut rest) = shake(&mut ours, &mut foreign);
        outcome.unwrap();
        give(&mut foreign, &ours.take_output()).unwrap();
        rest.extend(take(&mut foreign));
        assert!(!rest.is_empty(), "the server has sent tickets");
        check(ours.finish().unwrap(), &mut foreign, rest);
    }
}

#[test]
fn our_server_sends_no_tickets() {
    let (ours, mut foreign) = connect(&tls_server(), None, &[b"sunrpc"]);
    let mut channel = Channel::new(ours.unwrap().keys);
    let mut wire = vec![0; sealed_bytes(1)];
    channel.sealer.seal(&[b"x"], &mut wire).unwrap();
    give(&mut foreign, &wire).unwrap();
    let Connection::Client(client) = &foreign else { panic!("a client") };
    assert_eq!(client.tls13_tickets_received(), 0);
}

#[test]
fn rpc_does_without_a_protocol_and_dafs_does_not() {
    let side = tls_server();
    let (ours, _) = connect(&side, None, &[]);
    assert_eq!(ours.unwrap().facts.protocol, None);
    for served in
        [&[Protocol::Dafs][..], &[Protocol::RpcRdma], &[Protocol::Dafs, Protocol::RpcRdma]]
    {
        let (outcome, _) = connect_to(&side, None, &[], served);
        assert!(matches!(outcome, Err(HandshakeError::NoProtocol(_))), "{outcome:?}");
    }
    let (ours, _) =
        connect_to(&side, None, &[b"sunrpc-rdma/1"], &[Protocol::Dafs, Protocol::RpcRdma]);
    assert_eq!(ours.unwrap().facts.protocol, Some(Protocol::RpcRdma));
}

#[test]
fn other_protocols_are_refused_with_their_alert() {
    let side = tls_server();
    for served in [Protocol::Rpc, Protocol::Dafs] {
        let mut foreign = client(None, &[b"h2"], Suite::Aes256);
        let mut ours = Handshake::server(&side, &[served], NOW).unwrap();
        let hello = take(&mut foreign);
        assert_eq!(
            feed_all(&mut ours, &hello),
            Err(HandshakeError::NoProtocol(served.to_string()))
        );
        let output = ours.take_output();
        let error = give(&mut foreign, &output).unwrap_err();
        assert_eq!(
            error,
            rustls::Error::AlertReceived(rustls::AlertDescription::NoApplicationProtocol)
        );
    }
}

/// Feeds a whole wire, and returns the last state.
fn feed_all(ours: &mut Handshake, mut wire: &[u8]) -> Result<Progress, HandshakeError> {
    while !wire.is_empty() {
        let taken = ours.feed(wire);
        wire = &wire[taken..];
        ours.step()?;
        assert!(taken > 0);
    }
    ours.step()
}

#[test]
fn our_client_demands_the_protocol() {
    let mut foreign = server(Suite::Aes256, &[]);
    let side = World::shared().client(None);
    let mut ours = Handshake::client(&side, "nas.example", Protocol::Dafs, NOW).unwrap();
    let (outcome, _) = shake(&mut ours, &mut foreign);
    assert_eq!(outcome, Err(HandshakeError::NoProtocol("dafs/1".to_owned())));
    assert!(ours.finish().is_err());
    let mut foreign = server(Suite::Aes256, &[]);
    let mut ours = Handshake::client(&side, "nas.example", Protocol::Rpc, NOW).unwrap();
    assert_eq!(shake(&mut ours, &mut foreign).0, Ok(()));
    assert_eq!(ours.needed_bytes(), 0);
}

#[test]
fn a_key_update_ends_the_connection() {
    let (ours, mut foreign) = connect(&tls_server(), None, &[b"sunrpc"]);
    let mut channel = Channel::new(ours.unwrap().keys);
    foreign.refresh_traffic_keys().unwrap();
    foreign.writer().write_all(b"under new keys").unwrap();
    let mut wire = take(&mut foreign);
    let error = open_all(&mut channel, &mut wire).unwrap_err();
    assert_eq!(error, OpenError::Control(ControlError::KeyUpdate));
    let last = channel.sealer.close(error.alert().unwrap()).unwrap();
    give(&mut foreign, &last).unwrap();
}
