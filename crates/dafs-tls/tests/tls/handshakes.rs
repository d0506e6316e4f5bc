//! Handshakes between two ends of this crate.

use crate::world::{Flaw, NOW, Wires, World, channels, ends, establish, open_all, send, shake};
use dafs_tls::{
    Channel, ClientSide, Distrust, End, Handshake, HandshakeError, Protocol, ServerSide, Side,
    Standing, Suite, TransportSecurity, sealed_bytes,
};
use proptest::prelude::*;
use std::sync::Arc;

#[test]
fn it_works_byte_by_byte() {
    let pair = World::shared().client_pair(1, Flaw::None);
    let (mut client, mut server) = ends(TransportSecurity::Mtls, Some(&pair));
    let outcome = shake(&mut client, &mut server, &mut Wires::default(), || 1);
    assert_eq!(outcome, (Some(Ok(())), Some(Ok(()))));
    let (mut client, mut server) = channels((client.finish().unwrap(), server.finish().unwrap()));
    assert_eq!(send(&mut client, &mut server, b"up").unwrap(), b"up");
    assert_eq!(send(&mut server, &mut client, b"down").unwrap(), b"down");
}

#[test]
fn both_ends_learn_the_facts() {
    let pair = World::shared().client_pair(77, Flaw::None);
    let (client, server) = ends(TransportSecurity::Tls, Some(&pair));
    assert_eq!((client.side(), server.side()), (Side::Client, Side::Server));
    let (client, server) = establish(client, server);
    let facts = &server.facts;
    assert_eq!(facts.protocol, Some(Protocol::Rpc));
    assert_eq!(facts.suite, Suite::Aes256);
    assert_eq!(facts.level(), TransportSecurity::Mtls);
    assert_eq!(facts.generation, 1);
    let peer = facts.peer.as_ref().unwrap();
    assert!(peer.is_verified());
    assert_eq!(peer.certificate().serial(), [77]);
    assert_eq!(peer.certificate().issuer(), "CN=the CA");
    assert_eq!(peer.names()[0].to_string(), "host7.example");
    let peer = client.facts.peer.as_ref().unwrap();
    assert_eq!(peer.standing(), &Standing::Verified);
    assert_eq!(peer.names().len(), 2);
    assert_eq!(client.facts.protocol, Some(Protocol::Rpc));
    assert_eq!(client.facts.suite, facts.suite);
}

#[test]
fn a_client_without_certificate_is_known_as_such() {
    let (client, server) = ends(TransportSecurity::Tls, None);
    let (_, server) = establish(client, server);
    assert!(server.facts.peer.is_none());
    assert_eq!(server.facts.level(), TransportSecurity::Tls);
}

#[test]
fn an_address_is_a_server_name() {
    let world = World::shared();
    let client = world.client(None);
    let client = Handshake::client(&client, "192.0.2.7", Protocol::Rpc, NOW).unwrap();
    let server = world.server(TransportSecurity::Tls);
    let server = Handshake::server(&server, &[Protocol::Rpc], NOW).unwrap();
    establish(client, server);
    let client = Handshake::client(&world.client(None), "a b", Protocol::Rpc, NOW);
    assert!(matches!(client, Err(HandshakeError::Name(name)) if name == "a b"));
}

#[test]
fn data_behind_the_handshake_stays_in_the_socket() {
    let (mut client, mut server) = ends(TransportSecurity::Tls, None);
    let mut wires = Wires::default();
    // Everything but the client's last flight.
    client.step().unwrap();
    server.feed(&[]);
    let mut wire = client.take_output();
    while !wire.is_empty() {
        let taken = server.feed(&wire);
        wire.drain(..taken);
        server.step().unwrap();
    }
    let mut wire = server.take_output();
    while !wire.is_empty() {
        let taken = client.feed(&wire);
        wire.drain(..taken);
        client.step().unwrap();
    }
    wires.to_server = client.take_output();
    let mut client = Channel::new(client.finish().unwrap().keys);
    let mut early = vec![0; sealed_bytes(4)];
    client.sealer.seal(&[b"call"], &mut early).unwrap();
    wires.to_server.extend(&early);
    while !server.is_due() || server.step() == Ok(dafs_tls::Progress::Reading) {
        let taken = server.feed(&wires.to_server);
        assert!(taken <= 5 || taken == server_record(&wires.to_server, taken));
        wires.to_server.drain(..taken);
    }
    assert_eq!(server.needed_bytes(), 0);
    assert_eq!(server.feed(&wires.to_server), 0);
    assert_eq!(wires.to_server, early);
    let mut server = Channel::new(server.finish().unwrap().keys);
    assert_eq!(open_all(&mut server, &mut wires.to_server).unwrap(), b"call");
}

/// The whole record at the front of a wire, if `taken` goes no further.
fn server_record(wire: &[u8], taken: usize) -> usize {
    let body_bytes = usize::from(wire[3]) << 8 | usize::from(wire[4]);
    assert!(taken <= 5 + body_bytes, "more than one record was taken");
    taken
}

#[test]
fn steps_run_on_another_thread() {
    let (mut client, mut server) = ends(TransportSecurity::Tls, None);
    let mut wires = Wires::default();
    let (client, server) = std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            let outcome = shake(&mut client, &mut server, &mut wires, || 333);
            assert_eq!(outcome, (Some(Ok(())), Some(Ok(()))));
            (client, server)
        });
        thread.join().unwrap()
    });
    let (client, server) = (client.finish().unwrap(), server.finish().unwrap());
    assert_eq!(client.exporter.channel_binding(), server.exporter.channel_binding());
}

#[test]
fn each_connection_has_values_of_its_own() {
    let binding = || {
        let (client, server) = ends(TransportSecurity::Tls, None);
        let (client, server) = establish(client, server);
        let mut values = [[0; 40]; 2];
        for (value, end) in values.iter_mut().zip([&client, &server]) {
            end.exporter.export(b"EXPERIMENTAL dafs", b"context", value).unwrap();
        }
        assert_eq!(values[0], values[1]);
        let binding = client.exporter.channel_binding();
        assert_eq!(binding, server.exporter.channel_binding());
        assert_ne!(binding[..], values[0][..32]);
        binding
    };
    assert_ne!(binding(), binding());
}

#[test]
fn anonymous_ends_share_a_channel_and_verify_nobody() {
    let side = Arc::new(ServerSide::dangerous_anonymous().unwrap());
    let server = || Handshake::server(&side, &[Protocol::Cluster], NOW).unwrap();
    let anyone = Arc::new(ClientSide::dangerous_anonymous());
    let client = Handshake::client(&anyone, "192.0.2.7", Protocol::Cluster, NOW).unwrap();
    let (client, server_end) = establish(client, server());
    assert_eq!(client.exporter.channel_binding(), server_end.exporter.channel_binding());
    let standing = client.facts.peer.as_ref().map(dafs_tls::Peer::standing);
    assert_eq!(standing, Some(&Standing::Unverified(Distrust::NoAuthorities)));
    assert_eq!(server_end.facts.peer, None);
    // A client with authorities takes no such server.
    let careful = World::shared().client(None);
    let mut client = Handshake::client(&careful, "192.0.2.7", Protocol::Cluster, NOW).unwrap();
    let ends = shake(&mut client, &mut server(), &mut Wires::default(), || usize::MAX);
    assert!(matches!(ends.0, Some(Err(HandshakeError::Certificate(_)))), "{:?}", ends.0);
}

#[test]
fn keys_come_after_the_last_output_is_taken() {
    let (mut client, mut server) = ends(TransportSecurity::Tls, None);
    client.step().unwrap();
    assert_eq!(client.step().unwrap(), dafs_tls::Progress::Reading);
    let mut wire = client.take_output();
    while !wire.is_empty() {
        let taken = server.feed(&wire);
        wire.drain(..taken);
        server.step().unwrap();
    }
    let mut wire = server.take_output();
    while !wire.is_empty() {
        let taken = client.feed(&wire);
        wire.drain(..taken);
        client.step().unwrap();
    }
    assert_eq!(client.step(), Ok(dafs_tls::Progress::Done));
    assert!(matches!(client.finish(), Err(HandshakeError::Unfinished)));
    assert!(matches!(server.finish(), Err(HandshakeError::Unfinished)));
}

#[test]
fn close_notify_and_cuts_are_told_apart() {
    let (client, server) = ends(TransportSecurity::Tls, None);
    let (mut client, mut server) = channels(establish(client, server));
    assert_eq!(send(&mut client, &mut server, b"last").unwrap(), b"last");
    assert_eq!(server.opener.end(0), End::Cut);
    assert_eq!(server.opener.end(3), End::CutInRecord);
    let mut record = client.sealer.close(dafs_tls::Alert::CLOSE_NOTIFY).unwrap();
    assert_eq!(open_all(&mut server, &mut record).unwrap(), b"");
    assert_eq!(server.opener.end(0), End::Closed);
}

#[test]
fn debug_shows_no_secrets() {
    let (client, server) = ends(TransportSecurity::Tls, None);
    assert!(format!("{client:?}").starts_with("Handshake(Client"));
    let (client, _) = establish(client, server);
    assert_eq!(format!("{:?}", client.keys), "TrafficKeys(Client, AES-256-GCM)");
    let channel = Channel::new(client.keys);
    assert_eq!(
        format!("{channel:?}"),
        "Channel { sealer: Sealer(0 records, Open), opener: Opener(0 records, Open) }"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn it_works_in_pieces_of_any_size(
        sizes in proptest::collection::vec(1usize..3000, 1..50),
        data in proptest::collection::vec(any::<u8>(), 0..40_000),
    ) {
        let pair = World::shared().client_pair(2, Flaw::None);
        let (mut client, mut server) = ends(TransportSecurity::Mtls, Some(&pair));
        let mut sizes = sizes.into_iter().cycle();
        let next = move || sizes.next().unwrap();
        let outcome = shake(&mut client, &mut server, &mut Wires::default(), next);
        prop_assert_eq!(outcome, (Some(Ok(())), Some(Ok(()))));
        let (mut client, mut server) =
            channels((client.finish().unwrap(), server.finish().unwrap()));
        prop_assert_eq!(&send(&mut client, &mut server, &data).unwrap(), &data);
        prop_assert_eq!(&send(&mut server, &mut client, &data).unwrap(), &data);
    }
}
