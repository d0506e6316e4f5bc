//! Clients and servers that are not trusted, or no longer.

use crate::foreign;
use crate::world::{
    DAY, Ends, Flaw, NOW, Pair, Wires, World, channels, ends, establish, open_all, shake,
};
use dafs_tls::{
    Alert, Channel, ControlError, Distrust, Handshake, HandshakeError, OpenError, Protocol, Reload,
    ReloadingServer, ServerSide, Standing, TransportSecurity,
};
use std::sync::Arc;

/// Lets a client with this certificate connect, and returns the server's judgement, with the alert
/// that the client gets behind its own handshake.
fn refused_by(server: &Arc<ServerSide>, pair: Option<&Pair>) -> (HandshakeError, Alert) {
    let side = World::shared().client_of_its_time(pair);
    let mut client = Handshake::client(&side, "nas.example", Protocol::Rpc, NOW).unwrap();
    let mut server = Handshake::server(server, &[Protocol::Rpc], NOW).unwrap();
    let mut wires = Wires::default();
    let (at_client, at_server) = shake(&mut client, &mut server, &mut wires, || 1000);
    assert_eq!(at_client, Some(Ok(())));
    let mut client = Channel::new(client.finish().unwrap().keys);
    match open_all(&mut client, &mut wires.to_client) {
        Err(OpenError::Control(ControlError::PeerAlert(alert))) => {
            (at_server.unwrap().unwrap_err(), alert)
        }
        other => panic!("no alert: {other:?}"),
    }
}

#[test]
fn mtls_demands_a_certificate() {
    let server = World::shared().server(TransportSecurity::Mtls);
    let (error, alert) = refused_by(&server, None);
    assert_eq!(error, HandshakeError::NoCertificate);
    assert!(alert.to_string().contains("demands a client certificate"), "{alert}");
}

#[test]
fn mtls_refuses_certificates_with_a_flaw() {
    let world = World::shared();
    let server = world.server(TransportSecurity::Mtls);
    let refused = |pair: &Pair| match refused_by(&server, Some(pair)) {
        (HandshakeError::Certificate(distrust), alert) => (distrust, alert.0),
        other => panic!("{other:?}"),
    };
    let stranger = World::new("another CA").client_pair(1, Flaw::None);
    assert_eq!(refused(&stranger), (Distrust::UnknownIssuer, 48));
    let twin = World::new("the CA").client_pair(1, Flaw::None);
    let (distrust, _) = refused(&twin);
    assert!(matches!(distrust, Distrust::Signature | Distrust::UnknownIssuer), "{distrust}");
    assert_eq!(refused(&world.client_pair(1, Flaw::Ended)), (Distrust::Expired, 45));
    assert_eq!(refused(&world.client_pair(1, Flaw::NotYet)).0, Distrust::NotYetValid);
}

#[test]
fn mtls_refuses_certificates_for_other_uses() {
    let world = World::shared();
    let server = world.server(TransportSecurity::Mtls);
    for flaw in [Flaw::NoPurpose, Flaw::ServerPurpose] {
        let pair = world.client_pair(1, flaw);
        let (outcome, _) = foreign::connect(&server, Some(&pair), &[b"sunrpc"]);
        let error = outcome.unwrap_err();
        assert!(matches!(error, HandshakeError::Certificate(Distrust::Purpose(_))), "{error}");
        assert!(error.to_string().contains("clientAuth"));
    }
}

#[test]
fn a_revoked_certificate_is_refused() {
    let world = World::shared();
    let server = world.server_with_lists(&world.revocations(&[5]));
    let (error, alert) = refused_by(&server, Some(&world.client_pair(5, Flaw::None)));
    assert_eq!((error, alert.0), (HandshakeError::Certificate(Distrust::Revoked), 44));
    let pair = world.client_pair(6, Flaw::None);
    let client = Handshake::client(&world.client(Some(&pair)), "nas.example", Protocol::Rpc, NOW);
    let server = Handshake::server(&server, &[Protocol::Rpc], NOW).unwrap();
    let (_, server) = establish(client.unwrap(), server);
    assert!(server.facts.peer.unwrap().is_verified());
}

#[test]
fn without_a_list_of_its_issuer_a_certificate_is_refused() {
    let world = World::shared();
    let server = world.server_with_lists(&World::new("another CA").revocations(&[]));
    let (error, _) = refused_by(&server, Some(&world.client_pair(5, Flaw::None)));
    assert_eq!(error, HandshakeError::Certificate(Distrust::RevocationUnknown));
}

#[test]
fn tls_lets_unverified_clients_in_and_says_so() {
    let world = World::shared();
    let stranger = World::new("another CA").client_pair(1, Flaw::None);
    let (client, server) = ends(TransportSecurity::Tls, Some(&stranger));
    let (_, server) = establish(client, server);
    let peer = server.facts.peer.as_ref().unwrap();
    assert_eq!(peer.standing(), &Standing::Unverified(Distrust::UnknownIssuer));
    assert_eq!(server.facts.level(), TransportSecurity::Tls);
    assert_eq!(peer.certificate().issuer(), "CN=another CA");
    // A server without authorities asks as well, and trusts nobody.
    let mut files = world.server_files(TransportSecurity::Tls);
    files.authorities = None;
    let side = Arc::new(files.load(NOW).unwrap());
    let pair = world.client_pair(1, Flaw::None);
    let client = Handshake::client(&world.client(Some(&pair)), "nas.example", Protocol::Rpc, NOW);
    let server = Handshake::server(&side, &[Protocol::Rpc], NOW).unwrap();
    let (_, server) = establish(client.unwrap(), server);
    let standing = server.facts.peer.unwrap().standing().clone();
    assert_eq!(standing, Standing::Unverified(Distrust::NoAuthorities));
}

fn connect(client: &Handshake, ends: Ends) -> HandshakeError {
    assert!(!client.is_due());
    ends.0.unwrap().unwrap_err()
}

#[test]
fn a_client_refuses_servers_that_it_does_not_know() {
    let world = World::shared();
    let error = |trusting: &World, name: &str, now: u64| {
        let side = trusting.client(None);
        let mut client = Handshake::client(&side, name, Protocol::Rpc, now).unwrap();
        let server = world.server(TransportSecurity::Tls);
        let mut server = Handshake::server(&server, &[Protocol::Rpc], NOW).unwrap();
        let mut wires = Wires::default();
        let ends = shake(&mut client, &mut server, &mut wires, || 500);
        assert!(matches!(ends.1, Some(Err(HandshakeError::PeerAlert(_)))), "{ends:?}");
        connect(&client, ends)
    };
    let wrong = error(world, "other.example", NOW);
    assert!(wrong.to_string().contains("nas.example, 192.0.2.7"), "{wrong}");
    assert!(wrong.to_string().contains("not for other.example"), "{wrong}");
    let wrong = error(world, "192.0.2.8", NOW);
    assert!(matches!(wrong, HandshakeError::Certificate(Distrust::Name { .. })), "{wrong}");
    let wrong = error(&World::new("another CA"), "nas.example", NOW);
    assert_eq!(wrong, HandshakeError::Certificate(Distrust::UnknownIssuer));
    let wrong = error(world, "nas.example", NOW + 400 * DAY);
    assert_eq!(wrong, HandshakeError::Certificate(Distrust::Expired));
}

#[test]
fn a_reload_takes_trust_away_from_a_connected_client() {
    let world = World::shared();
    let files = world.server_files(TransportSecurity::Mtls);
    let server = ReloadingServer::open(files.clone(), NOW).unwrap();
    let pair = world.client_pair(9, Flaw::None);
    let client = Handshake::client(&world.client(Some(&pair)), "nas.example", Protocol::Rpc, NOW);
    let end = Handshake::server(&server.current(), &[Protocol::Rpc], NOW).unwrap();
    let (client, end) = establish(client.unwrap(), end);
    let peer = end.facts.peer.clone().unwrap();
    assert_eq!(server.current().still_trusts(&peer, NOW), Ok(()));
    assert_eq!(server.current().still_trusts(&peer, NOW + 101 * DAY), Err(Distrust::Expired));
    let other = World::new("another CA");
    std::fs::write(files.authorities.as_ref().unwrap(), other.authority.certificate()).unwrap();
    assert_eq!(server.reload(NOW).unwrap(), Reload::Changed { generation: 2 });
    assert!(end.facts.generation < server.current().generation());
    assert_eq!(server.current().still_trusts(&peer, NOW), Err(Distrust::UnknownIssuer));
    // The connection itself goes on until its owner ends it.
    let (mut client, mut end) = channels((client, end));
    assert_eq!(crate::world::send(&mut client, &mut end, b"x").unwrap(), b"x");
}

#[test]
fn a_client_judges_its_server_again() {
    let world = World::shared();
    let side = world.client(None);
    let client = Handshake::client(&side, "nas.example", Protocol::Rpc, NOW).unwrap();
    let server = world.server(TransportSecurity::Tls);
    let server = Handshake::server(&server, &[Protocol::Rpc], NOW).unwrap();
    let (client, _) = establish(client, server);
    let peer = client.facts.peer.unwrap();
    assert_eq!(side.still_trusts(&peer, "nas.example", NOW), Ok(()));
    assert!(side.still_trusts(&peer, "other.example", NOW).is_err());
    assert!(side.still_trusts(&peer, "a b", NOW).is_err());
    assert_eq!(side.still_trusts(&peer, "nas.example", NOW + 400 * DAY), Err(Distrust::Expired));
}

#[test]
fn a_client_may_show_the_way_to_its_authority() {
    let chain = crate::world::Chain::new();
    let (root, pair, alone) = (&chain.root, &chain.pair, &chain.alone);
    let mut files = World::shared().server_files(TransportSecurity::Mtls);
    std::fs::write(files.authorities.as_ref().unwrap(), root).unwrap();
    files.revocations = None;
    let server = Arc::new(files.load(NOW).unwrap());
    let client = World::shared().client(Some(pair));
    let client = Handshake::client(&client, "nas.example", Protocol::Rpc, NOW).unwrap();
    let end = Handshake::server(&server, &[Protocol::Rpc], NOW).unwrap();
    let (_, end) = establish(client, end);
    let peer = end.facts.peer.unwrap();
    assert!(peer.is_verified());
    assert_eq!(server.still_trusts(&peer, NOW), Ok(()));
    // The certificate on the way ends before the client's own.
    assert_eq!(peer.ends_seconds(NOW), NOW + DAY / 2);
    assert!(server.still_trusts(&peer, NOW + DAY / 2 + 1).is_err());
    assert_eq!(peer.ends_seconds(NOW + DAY / 2 + 1), NOW + DAY);
    let (error, _) = refused_by(&server, Some(alone));
    assert_eq!(error, HandshakeError::Certificate(Distrust::UnknownIssuer));
}
