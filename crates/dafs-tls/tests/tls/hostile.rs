//! Strangers: old versions, clear text, floods, changed and unfinished handshakes.

use crate::world::{NOW, World, ends};
use dafs_tls::{
    Alert, CLIENT_HELLO_FIRST_BYTE, Handshake, HandshakeError, Progress, Protocol,
    TransportSecurity,
};

fn server() -> Handshake {
    let side = World::shared().server(TransportSecurity::Tls);
    Handshake::server(&side, &[Protocol::Rpc], NOW).unwrap()
}

/// Feeds bytes until the handshake fails, and returns the error and the bytes that it took.
fn failure(end: &mut Handshake, mut bytes: &[u8]) -> (HandshakeError, usize) {
    let mut taken = 0;
    loop {
        let now = end.feed(bytes);
        taken += now;
        bytes = &bytes[now..];
        match end.step() {
            Err(error) => return (error, taken),
            Ok(progress) => assert!(progress == Progress::Reading && now > 0, "it is not refused"),
        }
    }
}

/// The description in an alert that is not protected.
fn clear_alert(bytes: &[u8]) -> Option<Alert> {
    match bytes {
        [21, 3, _, 0, 2, 2, description] => Some(Alert(*description)),
        _ => None,
    }
}

/// A record of a content type.
fn record(kind: u8, body: &[u8]) -> Vec<u8> {
    let [high, low] = (body.len() as u16).to_be_bytes();
    [&[kind, 3, 1, high, low], body].concat()
}

/// A ClientHello of TLS 1.2 (RFC 5246 7.4.1.2): one cipher suite, P-256, ECDSA.
fn hello_of_tls_1_2() -> Vec<u8> {
    let mut body = vec![3, 3];
    body.extend([7; 32]);
    body.extend([0, 0, 4, 0xc0, 0x2b, 0xc0, 0x2f, 1, 0]);
    let extensions = [
        0, 10, 0, 4, 0, 2, 0, 23, // supported_groups
        0, 11, 0, 2, 1, 0, // ec_point_formats
        0, 13, 0, 4, 0, 2, 4, 3, // signature_algorithms
        0, 23, 0, 0, // extended_master_secret
    ];
    body.extend((extensions.len() as u16).to_be_bytes());
    body.extend(extensions);
    let mut message = vec![1, 0];
    message.extend((body.len() as u16).to_be_bytes());
    message.extend(body);
    record(22, &message)
}

#[test]
fn tls_1_2_is_refused_with_its_alert() {
    let hello = hello_of_tls_1_2();
    assert_eq!(hello[0], CLIENT_HELLO_FIRST_BYTE);
    let mut server = server();
    let (error, _) = failure(&mut server, &hello);
    assert_eq!(error, HandshakeError::OldVersion);
    let alert = clear_alert(&server.take_output()).unwrap();
    assert!(alert.to_string().contains("does not speak TLS 1.3"), "{alert}");
    assert_eq!(server.step(), Err(HandshakeError::OldVersion));
    assert_eq!(server.needed_bytes(), 0);
    assert_eq!(server.feed(&hello), 0);
}

#[test]
fn clear_text_is_refused_after_its_first_bytes() {
    let call = [0x80, 0, 0, 0x28, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 2];
    let request = b"GET / HTTP/1.1\r\n\r\n";
    let mpa = b"MPA ID Req Frame";
    let old = [0x80, 46, 1, 3, 1, 0, 0, 0, 0, 0, 0, 0];
    for bytes in [&call[..], request, mpa, &old, &[22, 2, 0, 0, 5], &[22, 3, 1, 0xff, 0xff]] {
        let mut server = server();
        let (error, taken) = failure(&mut server, bytes);
        assert_eq!(taken, 5, "bytes of {bytes:x?}");
        assert!(
            matches!(error, HandshakeError::NotTls | HandshakeError::Protocol(_)),
            "{bytes:x?}: {error}"
        );
        assert!(clear_alert(&server.take_output()).is_some(), "{bytes:x?}: no alert");
    }
}

#[test]
fn a_clear_call_behind_a_handshake_record_ends_it() {
    let (mut client, mut server) = ends(TransportSecurity::Tls, None);
    client.step().unwrap();
    let hello = client.take_output();
    let mut wire = hello.as_slice();
    while !wire.is_empty() {
        let taken = server.feed(wire);
        wire = &wire[taken..];
        server.step().unwrap();
    }
    assert!(!server.take_output().is_empty());
    let (error, _) = failure(&mut server, &[0x80, 0, 0, 0x28, 1, 2, 3, 4, 0, 0, 0, 0]);
    assert!(matches!(error, HandshakeError::NotTls | HandshakeError::Protocol(_)), "{error}");
}

#[test]
fn a_flood_of_small_records_is_bounded() {
    let fragment = record(22, &[1]);
    let hello = hello_of_tls_1_2();
    let one_by_one: Vec<u8> = hello[5..].iter().flat_map(|byte| record(22, &[*byte])).collect();
    let first = [record(22, &[1, 0, 0xff, 0]), record(22, &[0]).repeat(1000)].concat();
    let change = record(20, &[1]).repeat(1000);
    let empty = record(22, &[]).repeat(1000);
    let data = record(23, &[0; 40]).repeat(1000);
    let alerts = record(21, &[1, 90]).repeat(1000);
    for flood in [first, change, empty, data, alerts, fragment.repeat(1000)] {
        let mut server = server();
        let (_, taken) = failure(&mut server, &flood);
        assert!(taken <= 129 * 45, "{taken} bytes");
        assert!(server.take_output().len() < 100);
    }
    // A peer may cut its hello, within the bound.
    assert_eq!(failure(&mut server(), &one_by_one).0, HandshakeError::OldVersion);
}

#[test]
fn a_long_handshake_is_bounded() {
    let mut message = vec![1, 0, 0xff, 0xf0];
    message.extend([0; 10_000]);
    let flood = [record(22, &message), record(22, &[0; 16_384]).repeat(100)].concat();
    let (_, taken) = failure(&mut server(), &flood);
    assert!(taken <= 160 << 10, "{taken} bytes");
}

/// A value that an end exports.
type Value = [u8; 32];

/// A direction, and the number of a flight in it.
#[derive(Clone, Copy, Debug)]
enum Flight {
    ToServer(usize),
    ToClient(usize),
}

#[test]
fn a_changed_handshake_never_ends_with_different_views() {
    let (hello, whole) = shake_with_flip(Flight::ToServer(9), 0);
    assert!(matches!(whole, Some((client, server)) if client == server), "without a change");
    let mut finished = 0;
    // Each run is a handshake of its own, with one bit of one of its flights turned.
    let hellos = (0..hello).step_by(23).map(|at| (Flight::ToServer(0), at));
    let answers = (0..1500).step_by(29).map(|at| (Flight::ToClient(0), at));
    let ends = (0..90).map(|at| (Flight::ToServer(1), at));
    for (flight, at) in hellos.chain(answers).chain(ends) {
        if let (_, Some((client, server))) = shake_with_flip(flight, at) {
            assert_eq!(client, server, "bit {} of byte {at} of {flight:?}", at % 8);
            finished += 1;
        }
    }
    // Only bits that TLS ignores may change: the versions in the headers of records.
    assert!(finished < 8, "{finished} changes went unnoticed");
}

/// Shakes hands with one bit of a flight turned. Returns the bytes of the client's hello, and the value
/// that each end exports if both have finished.
fn shake_with_flip(flight: Flight, at: usize) -> (usize, Option<(Value, Value)>) {
    let (mut client, mut server) = ends(TransportSecurity::Tls, None);
    let mut hello_bytes = 0;
    for round in 0..3 {
        let _ = client.step();
        let mut wire = client.take_output();
        if round == 0 {
            hello_bytes = wire.len();
        }
        if matches!(flight, Flight::ToServer(wanted) if wanted == round) {
            flip(&mut wire, at);
        }
        feed_all(&mut server, &wire);
        let mut wire = server.take_output();
        if matches!(flight, Flight::ToClient(wanted) if wanted == round) {
            flip(&mut wire, at);
        }
        feed_all(&mut client, &wire);
    }
    (hello_bytes, finish(client).and_then(|client| Some((client, finish(server)?))))
}

fn flip(wire: &mut [u8], at: usize) {
    if !wire.is_empty() {
        wire[at % wire.len()] ^= 1 << (at % 8);
    }
}

/// Feeds and steps until the end takes no more.
fn feed_all(end: &mut Handshake, mut wire: &[u8]) {
    loop {
        let taken = end.feed(wire);
        wire = &wire[taken..];
        if taken == 0 || end.step().is_err() {
            return;
        }
    }
}

/// The value that both ends share.
fn finish(mut end: Handshake) -> Option<Value> {
    end.take_output();
    Some(end.finish().ok()?.exporter.channel_binding())
}

#[test]
fn a_cut_handshake_gives_no_keys() {
    let (mut client, mut server) = ends(TransportSecurity::Tls, None);
    client.step().unwrap();
    let hello = client.take_output();
    for cut in [0, 1, 5, 100, hello.len() - 1] {
        let mut server = self::server();
        assert_eq!(server.feed(&hello[..cut]), cut.min(hello.len()));
        assert!(!server.is_due() && server.needed_bytes() > 0);
        assert_eq!(server.step(), Ok(Progress::Reading));
        assert!(matches!(server.finish(), Err(HandshakeError::Unfinished)));
    }
    assert_eq!(server.feed(&hello), hello.len());
    server.step().unwrap();
    server.take_output();
    assert!(matches!(server.finish(), Err(HandshakeError::Unfinished)));
}

#[test]
fn a_strangers_alert_ends_the_handshake() {
    let (error, _) = failure(&mut server(), &record(21, &[2, 40]));
    assert_eq!(error, HandshakeError::PeerAlert(Alert(40)));
    // A stranger's close_notify proves nothing, and four are too many.
    let (_, taken) = failure(&mut server(), &record(21, &[1, 0]).repeat(10));
    assert!(taken <= 5 * 7, "{taken} bytes");
}
