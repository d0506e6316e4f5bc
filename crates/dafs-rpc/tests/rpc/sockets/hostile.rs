//! Hostile and faulty peers.

use super::common::{PATIENCE, Raw, Server, call, call_words, procedure, procedures, record};
use dafs_rpc::server::Config;
use dafs_rpc::{AuthStatus, RejectStatus, Reply, VersionRange};
use dafs_wire::rpc::{FragmentMark, ReplyStatus};
use std::io::Write;
use std::time::{Duration, Instant};

/// Checks that another client is served as usual.
fn still_serves(server: &Server) {
    let client = server.connect();
    assert_eq!(client.call(procedure(procedures::ECHO), b"fine").unwrap()[..], *b"fine");
}

#[test]
fn wrong_versions_and_credentials_get_their_answers() {
    let server = Server::start(1, Config::default());
    let mut raw = Raw::connect(&server);
    let mut denied = |at: usize, values: &[u32], rest: &[u8]| {
        let mut words = call_words(9, procedures::NULL).to_vec();
        words.splice(at..at + values.len(), values.iter().copied());
        raw.send(&record(&words, rest));
        match raw.reply().unwrap().1.status {
            ReplyStatus::Denied(status) => status,
            accepted => panic!("{accepted:?}"),
        }
    };
    let range = VersionRange { low: 2, high: 2 };
    assert_eq!(denied(2, &[3], &[]), RejectStatus::RpcMismatch(range));
    let auth = RejectStatus::Auth;
    // AUTH_SYS without a body, with garbage, and longer than allowed.
    assert_eq!(denied(6, &[1, 0], &[]), auth(AuthStatus::BadCredential));
    assert_eq!(denied(6, &[1, 8, u32::MAX, u32::MAX], &[0; 8]), auth(AuthStatus::BadCredential));
    assert_eq!(denied(6, &[1, 401], &[]), auth(AuthStatus::BadCredential));
    assert_eq!(denied(8, &[0, 401], &[]), auth(AuthStatus::BadVerifier));
    assert_eq!(denied(6, &[2, 0], &[]), auth(AuthStatus::RejectedCredential));
    assert_eq!(denied(6, &[6, 0], &[]), auth(AuthStatus::TooWeak));
    assert_eq!(denied(6, &[7, 0], &[]), auth(AuthStatus::BadCredential));
    // The connection has survived all that.
    raw.send(&call(10, procedures::NULL, &[]));
    assert_eq!(raw.reply().unwrap().0, 10);
}

#[test]
fn a_malformed_record_ends_its_connection_only() {
    let server = Server::start(1, Config::default());
    let truncated = record(&call_words(1, 0)[..9], &[]);
    let too_long = FragmentMark { len: 0x7fff_ffff, last: true }.to_bytes().to_vec();
    let endless = FragmentMark { len: 0, last: false }.to_bytes().repeat(10_000);
    let wrong_way = record(&[1, 2, 2, 0, 0, 0, 0, 0, 0, 0], &[]);
    let web = b"GET / HTTP/1.0\r\n\r\n".to_vec();
    let streams = [truncated, too_long, endless, wrong_way, record(&[], &[]), web];
    for (number, stream) in streams.into_iter().enumerate() {
        let mut raw = Raw::connect(&server);
        // The server may end the connection before it has read everything.
        let _ = raw.0.write_all(&stream);
        assert!(raw.is_closed(), "stream {number}");
    }
    server.wait_for(|statistics| statistics.broken == 6);
    still_serves(&server);
}

#[test]
fn answers_that_nobody_asked_for_are_ignored() {
    let server = Server::start(1, Config::default());
    let mut raw = Raw::connect(&server);
    raw.send(&record(&[5, 1, 0, 0, 0, 0], &[]));
    raw.send(&record(&[5, 1], &[]));
    raw.send(&call(6, procedures::NULL, &[]));
    assert_eq!(raw.reply().unwrap().0, 6);
    server.wait_for(|statistics| statistics.unasked == 2);
}

#[test]
fn fragments_of_any_size_make_up_records() {
    let server = Server::start(1, Config::default());
    let mut raw = Raw::connect(&server);
    let whole = call(1, procedures::ECHO, &[7; 3000]);
    let body = &whole[4..];
    for size in [1, 3, 500, 3040] {
        let mut stream = Vec::new();
        for piece in body.chunks(size) {
            stream.extend(FragmentMark { len: piece.len() as u32, last: false }.to_bytes());
            stream.extend(piece);
            stream.extend(FragmentMark { len: 0, last: false }.to_bytes());
        }
        stream.extend(FragmentMark { len: 0, last: true }.to_bytes());
        let marks = (stream.len() - body.len()) / 4;
        if marks > 4096 {
            // More fragments than the limit.
            let _ = raw.0.write_all(&stream);
            assert!(raw.is_closed());
            raw = Raw::connect(&server);
            continue;
        }
        raw.send(&stream);
        assert_eq!(raw.reply().unwrap().2, vec![7; 3000]);
    }
    // Byte by byte, the slowest possible sender.
    for byte in call(2, procedures::ECHO, b"slow") {
        raw.send(&[byte]);
    }
    assert_eq!(raw.reply().unwrap().2, b"slow");
}

#[test]
fn half_records_are_given_up() {
    let config = Config { stall_timeout: Duration::from_millis(50), ..Config::default() };
    let server = Server::start(1, config);
    let whole = call(1, procedures::ECHO, &[7; 100_000]);
    let mut idle = Raw::connect(&server);
    for len in [1, 3, 4, 5, 50, 99_999] {
        let mut raw = Raw::connect(&server);
        raw.send(&whole[..len]);
        assert!(raw.is_closed(), "{len} bytes");
    }
    // A connection that is only idle stays open.
    idle.send(&call(2, procedures::NULL, &[]));
    assert_eq!(idle.reply().unwrap().0, 2);
}

#[test]
fn disconnects_in_mid_record_leave_nothing_behind() {
    let server = Server::start(1, Config::default());
    let whole = call(1, procedures::SUM, &[7; 300_000]);
    for len in [0, 2, 4, 44, 5000, 299_000] {
        let mut raw = Raw::connect(&server);
        raw.send(&whole[..len]);
    }
    server.wait_for(|statistics| statistics.accepted == 6 && statistics.connections == 0);
    still_serves(&server);
}

#[test]
fn a_flood_that_does_not_read_is_held_back_and_dropped() {
    let config = Config {
        output_bytes_max: 256 << 10,
        output_timeout: Duration::from_millis(300),
        ..Config::default()
    };
    let server = Server::start(1, config);
    let mut raw = Raw::connect(&server);
    raw.0.set_write_timeout(Some(Duration::from_millis(100))).unwrap();
    let calls = call(1, procedures::BULK, &(1u32 << 20).to_be_bytes()).repeat(1000);
    let mut sent = 0;
    // The server stops reading long before this much has been sent.
    while sent < 100 << 20 {
        match raw.0.write(&calls) {
            Ok(len) => sent += len,
            Err(_) => break,
        }
    }
    assert!(sent < 100 << 20, "the server took everything");
    server.wait_for(|statistics| statistics.connections == 0 && statistics.broken == 1);
    assert!(server.group.statistics().calls < 200, "{:?}", server.group.statistics());
    still_serves(&server);
}

#[test]
fn many_that_do_not_read_are_dropped_before_they_take_all_memory() {
    let config = Config { waiting_bytes_max: 8 << 20, ..Config::default() };
    let server = Server::start(1, config);
    let calls = call(1, procedures::BULK, &(1u32 << 20).to_be_bytes()).repeat(100);
    let mut floods: Vec<_> = (0..20).map(|_| Raw::connect(&server)).collect();
    for flood in &mut floods {
        flood.send(&calls);
    }
    server.wait_for(|statistics| statistics.broken > 0);
    still_serves(&server);
    // A connection that was not dropped gets all replies when it reads.
    let replies = |flood: &mut Raw| (0..100).take_while(|_| flood.record().is_some()).count();
    let spared =
        floods.iter_mut().filter_map(|flood| (replies(flood) == 100).then_some(())).count();
    assert_eq!(spared as u64 + server.group.statistics().broken, 20);
}

#[test]
fn a_flood_that_reads_late_gets_every_answer() {
    let config = Config { output_bytes_max: 64 << 10, ..Config::default() };
    let server = Server::start(1, config);
    let mut raw = Raw::connect(&server);
    let mut writer = Raw(raw.0.try_clone().unwrap());
    let sender = std::thread::spawn(move || {
        for xid in 0..5000 {
            writer.send(&call(xid, procedures::ECHO, &[xid as u8; 2000]));
        }
    });
    std::thread::sleep(Duration::from_millis(100));
    for xid in 0..5000 {
        let (got, _, results) = raw.reply().unwrap();
        assert_eq!((got, results), (xid, vec![xid as u8; 2000]));
    }
    sender.join().unwrap();
}

/// The calls that one connection has in a turn of the reactor: four reads of 64 calls.
const TURN_CALLS: usize = 256;

/// However many small calls one peer sends at once, another peer is served soon.
#[test]
fn a_flood_of_small_calls_lets_others_have_their_turn() {
    let config = Config { calls_per_connection_max: 10_000, ..Config::default() };
    let server = Server::start(1, config);
    let hold = |xid| call(xid, procedures::HOLD, &[]);
    let [mut first, mut flood, mut honest] = [(); 3].map(|()| Raw::connect(&server));
    server.wait_for(|statistics| statistics.connections == 3);
    // The reactor waits in the first call for the lock, until both others have sent everything.
    let held = server.held.lock().unwrap();
    first.send(&hold(1));
    flood.send(&hold(2).repeat(4000));
    honest.send(&hold(3));
    drop(held);
    let start = Instant::now();
    while server.held.lock().unwrap().len() < 4002 {
        assert!(start.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut held = std::mem::take(&mut *server.held.lock().unwrap());
    // The flood may have come to the reactor with the first call, and then has two turns at most.
    let late = held.split_off(1 + 2 * TURN_CALLS);
    held.into_iter().for_each(|responder| responder.respond(Reply::new()));
    assert_eq!(honest.reply().unwrap().0, 3);
    late.into_iter().for_each(|responder| responder.respond(Reply::new()));
    for _ in 0..4000 {
        assert_eq!(flood.reply().unwrap().0, 2);
    }
}

#[test]
fn calls_in_hand_are_bounded_and_go_on_when_answered() {
    let config = Config { calls_per_connection_max: 4, ..Config::default() };
    let server = Server::start(1, config);
    let mut raw = Raw::connect(&server);
    let calls: Vec<u8> = (0..10).flat_map(|xid| call(xid, procedures::HOLD, &[])).collect();
    raw.send(&calls);
    for answered in 0..10 {
        let expected = (10 - answered).min(4);
        let start = Instant::now();
        while server.held.lock().unwrap().len() < expected {
            assert!(start.elapsed() < PATIENCE);
            std::thread::yield_now();
        }
        assert_eq!(server.held.lock().unwrap().len(), expected);
        // Answer some, drop some.
        let responder = server.held.lock().unwrap().remove(0);
        let xid = responder.xid();
        if answered % 2 == 0 {
            responder.respond(Reply::new());
            assert_eq!(raw.reply().unwrap().0, xid);
        }
    }
    raw.send(&call(99, procedures::NULL, &[]));
    assert_eq!(raw.reply().unwrap().0, 99);
}

#[test]
fn connections_are_bounded_and_those_of_no_use_yet_make_room() {
    let config = Config { connections_max: 3, ..Config::default() };
    let server = Server::start(1, config);
    let mut first = Raw::connect(&server);
    let mut busy = Raw::connect(&server);
    for raw in [&mut first, &mut busy] {
        raw.send(&call(1, procedures::NULL, &[]));
        raw.reply().unwrap();
    }
    busy.send(&call(2, procedures::HOLD, &[]));
    let mut half = Raw::connect(&server);
    half.send(&call(3, procedures::NULL, &[])[..20]);
    server.wait_for(|statistics| statistics.received_bytes == 44 * 3 + 20);
    still_serves(&server);
    assert!(half.is_closed(), "it has not said anything yet");
    server.wait_for(|statistics| (statistics.connections, statistics.evicted) == (2, 1));
    let mut late = Raw::connect(&server);
    late.send(&call(3, procedures::NULL, &[]));
    late.reply().unwrap();
    let mut last = Raw::connect(&server);
    assert!(first.is_closed(), "it is the oldest of those that have");
    // All connections are in use now, so none can be closed to make room.
    for raw in [&mut late, &mut last] {
        let held = server.held.lock().unwrap().len();
        raw.send(&call(4, procedures::HOLD, &[]));
        while server.held.lock().unwrap().len() == held {
            std::thread::yield_now();
        }
    }
    let mut refused = Raw::connect(&server);
    assert!(refused.is_closed());
    let statistics = server.group.statistics();
    assert_eq!((statistics.connections, statistics.refused, statistics.evicted), (3, 1, 2));
}

#[test]
fn a_peer_without_a_call_in_time_is_disconnected() {
    let config = Config { first_call_timeout: Duration::from_millis(100), ..Config::default() };
    let server = Server::start(1, config);
    assert!(Raw::connect(&server).is_closed());
}

#[test]
fn half_records_of_many_are_bounded_and_completed_in_turn() {
    // Room for two records at a time.
    let config = Config { assembly_bytes_max: 0, ..Config::default() };
    let server = Server::start(1, config);
    let whole = call(1, procedures::SUM, &vec![1; 1 << 20]);
    let mut peers: Vec<_> = (0..8).map(|_| Raw::connect(&server)).collect();
    for peer in &mut peers {
        peer.send(&whole[..2000]);
    }
    // A record of which more arrives at first takes more memory, and eight of them take it all.
    server.wait_for(|statistics| statistics.received_bytes == 8 * 2000);
    std::thread::scope(|scope| {
        for peer in &mut peers {
            let rest = &whole[2000..];
            scope.spawn(move || {
                peer.send(rest);
                assert_eq!(peer.reply().unwrap().2[..8], (1u64 << 20).to_be_bytes());
            });
        }
    });
}
