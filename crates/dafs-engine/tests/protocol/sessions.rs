//! Sessions: connection, authentication, bound channels, disconnection.

use crate::common::*;
use dafs_engine::{OwnIdentity, SessionLimits};
use dafs_wire::dafs::{
    self, AuthRequest, AuthType, ByteOrder, ClientId, ConnectBind, PROTOCOL_VERSION, Procedure,
    Reply, Request, SecInfoEntry, SessionId, SessionOptions, Status,
};
use std::time::Duration;

fn client_auth(auth: AuthRequest<'_>) -> Request<'_> {
    Request::ClientAuth(dafs::ClientAuth { auth })
}

fn connect_text<'a>(name: &'a str, verifier: u64, id: &'a str, password: &'a str) -> Request<'a> {
    connect_by(name, verifier, PLAIN, text(id, password))
}

fn ids(answer: &Answer) -> (SessionId, ClientId) {
    match answer.reply().unwrap() {
        Reply::ClientConnect(reply) => (reply.session_id, reply.client_id),
        Reply::ClientConnectAuth(reply) => (reply.session_id, reply.client_id),
        other => panic!("{other:?}"),
    }
}

fn with_users() -> Setup {
    Setup { users: vec![("anna", "right"), ("bert", "other")], mask: stranger, ..Setup::default() }
}

#[test]
fn both_ways_to_begin_work_in_both_byte_orders() {
    for order in [ByteOrder::Big, ByteOrder::Little] {
        let mut world = World::new(Setup::default());
        let one = world.connect_as(2, 1, order);
        assert_eq!(world.status(one, &connect_auth("a", 1, PLAIN)), Status::Ok);
        let two = world.connect_as(3, 1, order);
        let answer = world.call(two, &client_connect("b", 1, PLAIN));
        assert_eq!(answer.header().target_nreq, SessionLimits::default().credits_initial);
        assert_eq!(world.counts().sessions, 1);
        // Only SECINFO may come before the proof.
        let answer = world.call(two, &Request::SecInfo);
        let Ok(Reply::SecInfo(reply)) = answer.reply() else { panic!() };
        assert_eq!(reply.entries.iter().collect::<Vec<_>>(), [SecInfoEntry::None]);
        for early in [Request::Null, Request::GetRootHandle, Request::Disconnect] {
            assert_eq!(world.status(two, &early), Status::NotAuthenticated);
        }
        assert_eq!(world.status(two, &client_connect("b", 1, PLAIN)), Status::IllegalState);
        assert_eq!(world.status(two, &client_auth(AuthRequest::None)), Status::Ok);
        assert_eq!(world.counts().sessions, 2);
        for late in [
            client_auth(AuthRequest::None),
            connect_auth("b", 1, PLAIN),
            client_connect("b", 1, PLAIN),
        ] {
            assert_eq!(world.status(two, &late), Status::IllegalState);
        }
        for client in [one, two] {
            assert_eq!(world.status(client, &Request::Null), Status::Ok);
            assert_eq!(world.status(client, &Request::Disconnect), Status::Ok);
            world.settle();
            assert!(world.clients[client].closed.is_some());
        }
        world.assert_idle();
        world.end();
    }
}

#[test]
fn a_connection_that_begins_with_anything_else_gets_an_error() {
    let mut world = World::new(Setup::default());
    for request in [Request::Null, Request::SecInfo, client_auth(AuthRequest::None)] {
        let client = world.connect(2);
        assert_eq!(world.status(client, &request), Status::NotAuthenticated);
        // The client may still succeed on the same connection.
        assert_eq!(world.status(client, &connect_auth("a", 1, PLAIN)), Status::Ok);
    }
    let client = world.connect(2);
    assert_eq!(world.status(client, &connect_auth("", 1, PLAIN)), Status::Inval);
    assert_eq!(world.status(client, &client_connect("", 1, PLAIN)), Status::Inval);
    let tiny = SessionOptions { max_request_size: 100, ..PLAIN };
    assert_eq!(world.status(client, &connect_auth("a", 1, tiny)), Status::Inval);
    let tiny = SessionOptions { max_response_size: 100, ..PLAIN };
    assert_eq!(world.status(client, &client_connect("a", 1, tiny)), Status::Inval);
    world.end();
}

#[test]
fn other_versions_are_told_which_one_to_speak() {
    let mut world = World::new(Setup::default());
    for (asked, told) in [(0, 0), (2, PROTOCOL_VERSION), (u32::MAX, PROTOCOL_VERSION)] {
        let client = world.connect(2);
        world.clients[client].version = asked;
        let answer = world.call(client, &connect_auth("a", 1, PLAIN));
        assert_eq!(answer.status(), Status::IllegalProt);
        assert_eq!(answer.header().protocol_version, told, "for version {asked}");
        world.clients[client].version = PROTOCOL_VERSION;
        assert_eq!(world.status(client, &connect_auth("a", 1, PLAIN)), Status::Ok);
    }
    world.end();
}

/// DAFS 4.1, cases A, B and C.
#[test]
fn a_client_that_restarts_loses_what_it_held_once_it_has_proved_itself() {
    let mut world = World::new(Setup::default());
    let one = world.connect(2);
    let first = ids(&world.call(one, &connect_auth("c", 1, PLAIN)));
    world.open(one, b"f");
    let two = world.connect(2);
    let second = ids(&world.call(two, &connect_auth("c", 1, PLAIN)));
    assert_eq!(first.1, second.1, "the same instance");
    assert_ne!(first.0, second.0);
    let three = world.connect(2);
    let third = ids(&world.call(three, &client_connect("c", 2, PLAIN)));
    assert_ne!(third.1, first.1, "a new instance");
    assert_eq!(world.service.counts().opens, 1, "nothing is released before the proof");
    assert_eq!(world.status(three, &client_auth(AuthRequest::None)), Status::Ok);
    assert_eq!(world.service.counts().opens, 0);
    assert_eq!(world.service.counts().clients, 1);
    for old in [one, two] {
        assert_eq!(world.status(old, &Request::GetRootHandle), Status::StaleClientId);
        assert_eq!(world.status(old, &Request::Disconnect), Status::Ok);
    }
    world.open(three, b"f");
    world.end();
}

/// A name belongs to its first user (DAFS O6), and a refused client may try another.
#[test]
fn a_name_in_use_by_another_principal_is_refused() {
    let mut world = World::new(with_users());
    let anna = world.connect(2);
    assert_eq!(world.status(anna, &connect_text("c", 1, "anna", "right")), Status::Ok);
    world.service.counts();
    let bert = world.connect(3);
    assert_eq!(world.status(bert, &connect_text("c", 2, "bert", "other")), Status::ClIdInUse);
    assert_eq!(world.status(bert, &connect_text("d", 2, "bert", "other")), Status::Ok);
    let bert = world.connect(3);
    assert_eq!(world.status(bert, &client_connect("c", 1, PLAIN)), Status::Ok);
    assert_eq!(world.status(bert, &client_auth(text("bert", "other"))), Status::ClIdInUse);
    assert_eq!(world.status(anna, &Request::GetRootHandle), Status::Ok);
    world.end();
}

#[test]
fn a_wrong_password_may_be_corrected_on_the_same_connection() {
    let mut world = World::new(with_users());
    let client = world.connect(2);
    for (id, password) in [("anna", "wrong"), ("nobody", "right"), ("anna", "")] {
        let request = connect_text("c", 1, id, password);
        assert_eq!(world.status(client, &request), Status::NotAuthorized);
    }
    assert_eq!(world.status(client, &connect_auth("c", 1, PLAIN)), Status::NotAuthorized);
    assert_eq!(world.status(client, &Request::Null), Status::NotAuthenticated);
    assert_eq!(world.status(client, &connect_text("c", 1, "anna", "right")), Status::Ok);
    let answer = world.call(client, &Request::SecInfo);
    let Ok(Reply::SecInfo(reply)) = answer.reply() else { panic!() };
    assert_eq!(reply.entries.iter().collect::<Vec<_>>(), [SecInfoEntry::Text]);
    let other = world.connect(3);
    world.call(other, &client_connect("d", 1, PLAIN));
    assert_eq!(world.status(other, &client_auth(text("anna", "no"))), Status::NotAuthorized);
    assert_eq!(world.status(other, &client_auth(AuthRequest::None)), Status::NotAuthorized);
    assert_eq!(world.status(other, &client_auth(text("bert", "other"))), Status::Ok);
    world.end();
}

#[test]
fn text_is_not_offered_without_a_password_file_and_gss_not_at_all() {
    let mut world = World::new(Setup::default());
    let client = world.connect(2);
    world.call(client, &client_connect("c", 1, PLAIN));
    assert_eq!(world.status(client, &client_auth(text("a", "b"))), Status::NotSupp);
    let gss = AuthRequest::Gss {
        procedure: dafs::GssProcedure::Init,
        service: dafs::GssService::Auth,
        token: b"token",
    };
    assert_eq!(world.status(client, &client_auth(gss)), Status::NotSupp);
    assert_eq!(world.status(client, &client_auth(AuthRequest::Default)), Status::Ok);
    world.end();
}

/// Each failed attempt makes memory for a session. A client that fails on purpose must not make the
/// server keep it all, nor guess passwords for ever.
#[test]
fn failing_to_begin_again_and_again_ends_the_connection_with_bounded_memory() {
    let mut world = World::new(Setup { mask: stranger, ..Setup::default() });
    let before = world.network.region_count(SERVER);
    let client = world.connect(2);
    let mut attempts = 0;
    let mut regions = 0;
    while attempts < 200 && world.clients[client].closed.is_none() {
        attempts += 1;
        let options = SessionOptions { max_request_size: 2048 + 8 * attempts, ..PLAIN };
        match world.try_call(client, &connect_auth("c", 1, options)) {
            Some(answer) => assert_eq!(answer.status(), Status::NotAuthorized),
            None => break,
        }
        regions = regions.max(world.network.region_count(SERVER) - before);
    }
    assert!(attempts < 200, "the connection lives after {attempts} attempts");
    assert!(regions < 32, "{regions} regions");
    world.settle();
    assert_eq!(world.counts().connections, 0);
    world.end();
}

/// The next first message may be as long as the first (4096 bytes), whatever sizes the failed
/// attempt had requested.
#[test]
fn after_a_failed_attempt_a_long_first_message_still_fits() {
    let mut world = World::new(with_users());
    let client = world.connect(2);
    let small = SessionOptions { max_request_size: 1024, ..PLAIN };
    assert_eq!(world.status(client, &connect_auth("c", 1, small)), Status::NotAuthorized);
    let name = "n".repeat(1024);
    let long = "x".repeat(2000);
    let request = connect_text(&name, 1, "anna", &long);
    assert_eq!(world.status(client, &request), Status::NotAuthorized);
    assert_eq!(world.status(client, &connect_text(&name, 1, "anna", "right")), Status::Ok);
    world.end();
}

/// Two proofs under way on one connection would begin two sessions.
#[test]
fn a_second_proof_has_to_wait_for_the_first() {
    let mut world = World::new(with_users());
    let client = world.connect(2);
    world.call(client, &client_connect("c", 1, PLAIN));
    world.hold_jobs = true;
    let first = world.clients[client].post(&client_auth(text("anna", "right")));
    let second = world.clients[client].post(&client_auth(text("anna", "right")));
    let answer = world.wait(client, second).unwrap();
    assert_eq!(answer.status(), Status::IllegalState);
    assert_eq!(world.jobs(), 1);
    world.hold_jobs = false;
    assert_eq!(world.wait(client, first).unwrap().status(), Status::Ok);
    // A record with a session that never ends would stay for ever. `end` checks that.
    world.end();
}

#[test]
fn a_connection_may_end_while_its_password_is_checked() {
    let mut world = World::new(with_users());
    for lose in [true, false] {
        let client = world.connect(2);
        world.call(client, &client_connect("c", 1, PLAIN));
        world.hold_jobs = true;
        world.clients[client].post(&client_auth(text("anna", "right")));
        world.run_until("check", |world| world.jobs() == 1);
        if lose {
            let endpoint = world.clients[client].endpoint;
            world.network.lose(endpoint);
            world.settle();
        } else {
            // A message out of order drops the session while the check goes on.
            let header = dafs::RequestHeader { seq_number: 99, ..world.clients[client].header(3) };
            let message = world.clients[client].encode(&header, &Request::Null);
            world.clients[client].send_raw(&message);
            world.settle();
        }
        world.release();
        world.assert_idle();
        assert_eq!(world.service.counts().clients, 0, "nobody has connected");
    }
    world.end();
}

/// The user's own logins from another host still succeed.
#[test]
fn a_host_that_guesses_passwords_has_to_wait() {
    let mut world = World::new(with_users());
    let guesser = world.connect(2);
    for _ in 0..5 {
        let guess = connect_text("c", 1, "anna", "wrong");
        assert_eq!(world.status(guesser, &guess), Status::NotAuthorized);
    }
    let right = connect_text("c", 1, "anna", "right");
    assert_eq!(world.status(guesser, &right), Status::Delay);
    let elsewhere = world.connect(3);
    assert_eq!(world.status(elsewhere, &connect_text("d", 1, "anna", "right")), Status::Ok);
    world.pass(Duration::from_secs(2));
    assert_eq!(world.status(guesser, &right), Status::Ok);
    world.end();
}

#[test]
fn guesses_at_the_same_time_are_counted_like_others() {
    let mut world = World::new(with_users());
    world.hold_jobs = true;
    let guesses: Vec<_> = (0..9)
        .map(|_| {
            let client = world.connect(2);
            (client, world.clients[client].post(&connect_text("c", 1, "anna", "wrong")))
        })
        .collect();
    world.run_until("guesses", |world| world.jobs() == 9);
    world.hold_jobs = false;
    let statuses = guesses.iter().map(|(client, id)| world.wait(*client, *id).unwrap().status());
    let checked = statuses.filter(|status| *status == Status::NotAuthorized).count();
    assert_eq!(checked, 5);
    world.end();
}

/// Otherwise checks of guesses would go on after the end of their connections, and delay others.
#[test]
fn the_password_of_a_client_that_has_left_is_not_checked() {
    let mut world = World::new(with_users());
    world.hold_jobs = true;
    for _ in 0..9 {
        let client = world.connect(2);
        world.clients[client].post(&connect_text("c", 1, "anna", "wrong"));
        world.settle();
        let endpoint = world.clients[client].endpoint;
        world.network.lose(endpoint);
    }
    world.settle();
    assert_eq!(world.jobs(), 9);
    world.release();
    assert_eq!((world.jobs(), world.authenticator.checks()), (0, 0));
    let client = world.connect(2);
    assert_eq!(world.status(client, &connect_text("c", 1, "anna", "right")), Status::Ok);
    assert_eq!(world.authenticator.checks(), 1);
    world.end();
}

#[test]
fn a_client_that_says_nothing_is_dropped() {
    let mut world = World::new(Setup::default());
    let silent = world.connect(2);
    let half = world.connect(3);
    world.call(half, &client_connect("c", 1, PLAIN));
    let whole = world.session(4, "d");
    world.pass(Duration::from_secs(11));
    assert!(world.clients[silent].closed.is_some());
    assert!(world.clients[half].closed.is_some());
    assert!(world.clients[whole].closed.is_none());
    world.end();
}

fn bind(session_id: SessionId, auth: AuthRequest<'_>) -> ConnectBind<'_> {
    ConnectBind { auth, ..bind_request(session_id) }
}

#[test]
fn a_channel_binds_to_a_session_of_the_same_principal_only() {
    let mut world = World::new(with_users());
    let client = world.connect(2);
    let (session, _) = ids(&world.call(client, &connect_text("c", 1, "anna", "right")));
    let right = text("anna", "right");
    let channel = world.connect_as(2, 2, ByteOrder::Little);
    let rdma = ConnectBind { channel_use: dafs::ChannelUse::RdmaRead, ..bind(session, right) };
    let status = world.status(channel, &Request::ConnectBind(rdma));
    assert_eq!(status, Status::RdmaReadChannelUnusable);
    let unknown = bind(SessionId([9; 8]), right);
    assert_eq!(world.status(channel, &Request::ConnectBind(unknown)), Status::UnknownSession);
    for (auth, status) in [
        (text("bert", "other"), Status::NotAuthorized),
        (text("anna", "wrong"), Status::NotAuthorized),
        (AuthRequest::None, Status::NotAuthorized),
    ] {
        assert_eq!(world.status(channel, &Request::ConnectBind(bind(session, auth))), status);
    }
    let channel = world.connect_as(2, 2, ByteOrder::Little);
    let tiny = ConnectBind { max_request_size: 1, ..bind(session, right) };
    assert_eq!(world.status(channel, &Request::ConnectBind(tiny)), Status::Inval);
    let tiny = ConnectBind { max_response_size: 1, ..bind(session, right) };
    assert_eq!(world.status(channel, &Request::ConnectBind(tiny)), Status::Inval);
    let answer = world.call(channel, &Request::ConnectBind(bind(session, right)));
    let Ok(Reply::ConnectBind(reply)) = answer.reply() else { panic!() };
    assert_eq!((reply.max_requests, reply.trusted), (4, false));
    assert_eq!(world.status(channel, &Request::Null), Status::IllegalState);
    // The operation channel accepts no binding and the other no session.
    let early = world.connect(2);
    let request = Request::ConnectBind(bind(session, right));
    assert_eq!(world.status(early, &request), Status::IllegalState);
    let early = world.connect_as(2, 2, ByteOrder::Little);
    assert_eq!(world.status(early, &connect_text("c", 1, "anna", "right")), Status::IllegalState);
    assert_eq!(world.status(client, &request), Status::IllegalState);
    // It ends with its session.
    assert_eq!(world.status(client, &Request::Disconnect), Status::Ok);
    world.pass(Duration::from_secs(1));
    assert!(world.clients[channel].closed.is_some());
    world.end();
}

#[test]
fn channels_of_other_kinds_are_rejected() {
    let mut world = World::new(Setup::default());
    for channel in [0, 3, 4, 0x0100_0000] {
        let client = world.connect_as(2, channel, ByteOrder::Little);
        assert!(world.clients[client].closed.is_some(), "channel {channel}");
    }
    assert_eq!(world.counts().connections, 0);
    world.end();
}

#[test]
fn the_server_proves_itself_as_configured() {
    let own = OwnIdentity { id: "server".into(), password: "here".into() };
    for own_identity in [None, Some(own)] {
        let known = own_identity.is_some();
        let (mut world, client) = World::with_session(Setup { own_identity, ..Setup::default() });
        let ask = |auth_type| Request::ServerAuth(dafs::ServerAuth { auth_type });
        assert_eq!(world.status(client, &ask(AuthType::None)), Status::Ok);
        assert_eq!(world.status(client, &ask(AuthType::Gss)), Status::NotSupp);
        let answer = world.call(client, &ask(AuthType::Text));
        match answer.reply() {
            Ok(Reply::ServerAuth(reply)) => {
                assert!(known && reply.id == b"server" && reply.password == b"here");
            }
            Err(status) => assert!(!known && status == Status::NotSupp),
            Ok(other) => panic!("{other:?}"),
        }
        world.end();
    }
}

#[test]
fn options_are_answered_within_the_servers_limits() {
    let mut world = World::new(Setup::default());
    let limits = SessionLimits::default();
    let client = world.connect(2);
    let wish = SessionOptions {
        use_checksums: true,
        use_response_cache: true,
        max_credentials: u32::MAX,
        max_request_size: u32::MAX,
        max_response_size: 1031,
        max_requests: u32::MAX,
        inline_write_header_size: u32::MAX,
        use_back_control_channel: true,
        use_rdma_read_channel: true,
    };
    let answer = world.call(client, &connect_auth("a", 1, wish));
    let Ok(Reply::ClientConnectAuth(reply)) = answer.reply() else { panic!() };
    let options = reply.options;
    assert!(options.use_checksums && !options.use_rdma_read_channel);
    assert_eq!(options.max_request_size, limits.request_bytes_max);
    assert!(options.max_response_size <= 1031 && options.max_response_size >= 1024);
    assert!(options.max_requests <= u32::from(limits.credits_initial));
    assert_eq!(answer.header().target_nreq, options.max_requests as u16);
    assert!(options.inline_write_header_size < options.max_request_size);
    assert_eq!(options.inline_write_header_size % 8, 0);
    world.clients[client].checksums = true;
    // A reply that does not fit is refused, or shortened where the protocol allows it.
    let file = world.open(client, b"f");
    world.write(client, file, 0, &pattern(3000, 1));
    let answer = world.call(client, &read_inline(file, 0, 3000));
    let Ok(Reply::ReadInline(data)) = answer.reply() else { panic!() };
    assert!(data.data.len() < 1031 && !data.eof);
    let few = SessionOptions { max_requests: 2, ..PLAIN };
    let client = world.connect(3);
    let answer = world.call(client, &connect_auth("b", 1, few));
    assert_eq!(answer.header().target_nreq, 2);
    world.end();
}

/// DAFS O20, O21.
#[test]
fn a_message_with_a_wrong_checksum_is_not_executed() {
    let mut world = World::new(Setup::default());
    let options = SessionOptions { use_checksums: true, ..PLAIN };
    let client = world.session_with(2, "a", 1, options);
    let root = world.root();
    let name = [b"f".as_slice()];
    let request = open_request(root, &name, b"o");
    let header = world.clients[client].header(0);
    let mut message = world.clients[client].encode(&header, &Request::Open(request));
    let last = message.len() - 1;
    message[last] ^= 1;
    let endpoint = &mut world.clients[client];
    endpoint.send_raw(&message);
    world.settle();
    let stray = world.clients[client].stray.pop().unwrap();
    let reply = dafs::ResponseHeader::decode(&stray, ByteOrder::Little).unwrap();
    assert_eq!((reply.status, reply.seq_number), (Status::ChkSum, header.seq_number));
    assert_eq!(world.service.counts().opens, 0);
    // The stream has not moved on.
    message[last] ^= 1;
    world.clients[client].mark(0, Procedure::Open);
    world.clients[client].send_raw(&message);
    assert_eq!(world.wait(client, 0).unwrap().status(), Status::Ok);
    // On a stream that does not exist there is no request to answer.
    let header = world.clients[client].header(200);
    let mut message = world.clients[client].encode(&header, &Request::Null);
    message[24] ^= 1;
    world.clients[client].send_raw(&message);
    world.settle();
    assert!(world.clients[client].closed.is_some());
    world.end();
}

#[test]
fn one_address_gets_only_so_many_connections() {
    let limits = SessionLimits { connections_per_address_max: 3, ..SessionLimits::default() };
    let mut world = World::new(Setup { limits, ..Setup::default() });
    let clients: Vec<usize> = (0..5).map(|_| world.connect(2)).collect();
    // Connections without a session make room, the oldest first.
    world.pass(Duration::from_secs(1));
    world.settle();
    let open: Vec<usize> =
        clients.iter().copied().filter(|&c| world.clients[c].closed.is_none()).collect();
    assert_eq!(open, clients[2..]);
    for (at, &client) in open.iter().enumerate() {
        let name = format!("client {at}");
        assert_eq!(world.status(client, &connect_auth(&name, 1, PLAIN)), Status::Ok);
    }
    let refused = world.connect(2);
    let other = world.connect(3);
    assert!(world.clients[refused].closed.is_some() && world.clients[other].closed.is_none());
    assert_eq!(world.status(open[0], &Request::Disconnect), Status::Ok);
    world.settle();
    let again = world.connect(2);
    assert!(world.clients[again].closed.is_none());
    assert_eq!(world.status(open[1], &Request::Null), Status::Ok);
    world.end();
}

/// The record of the older instance is removed from the disk first. Other clients are served
/// meanwhile, and a client that disappears meanwhile leaves no state behind.
#[test]
fn a_client_that_is_started_anew_holds_up_no_reactor() {
    for goes_away in [false, true] {
        let mut world = World::new(Setup { records: true, ..Setup::default() });
        let other = world.session(3, "other");
        let one = world.session_with(2, "a", 1, PLAIN);
        let file = world.open(one, b"f");
        world.hold_jobs = true;
        let two = world.connect_as(2, 1, ByteOrder::Big);
        let stream = world.clients[two].post(&connect_auth("a", 2, PLAIN));
        world.settle();
        assert_eq!((world.jobs(), world.counts().sessions), (1, 2));
        assert_eq!(world.status(other, &Request::Null), Status::Ok);
        if goes_away {
            crate::responses::lose(&mut world, two);
        }
        world.release();
        if !goes_away {
            assert_eq!(world.wait(two, stream).unwrap().status(), Status::Ok);
            assert_eq!(world.status(two, &Request::Null), Status::Ok);
        }
        assert_eq!(world.service.counts().opens, 0, "what the older one held is released");
        assert_eq!(world.status(one, &write_inline(file, 0, b"x")), Status::StaleStateId);
        assert_eq!(world.counts().sessions, 3 - usize::from(goes_away));
        world.end();
    }
}
