//! EXCHANGE_ID, CREATE_SESSION, DESTROY_SESSION, DESTROY_CLIENTID (RFC 8881 18.35 - 18.37, 18.50).

use crate::common::*;
use dafs_rpc::{AuthStatus, CallerProcess, PeerProcess, RejectStatus, Rejection};
use dafs_service::Host;
use dafs_wire::nfs4::*;

fn exchange_with(flags: ExchangeFlags, protect: StateProtectArgs<'static>) -> Op<'static> {
    let Op::ExchangeId(args) = exchange_id(b"client", 1) else { panic!() };
    Op::ExchangeId(ExchangeIdArgs { flags, state_protect: protect, ..args })
}

#[test]
fn exchange_id_says_who_the_server_is() {
    let mut world = World::default();
    let answer = world.send(1, 0, &[exchange_id(b"client", 1)]);
    let ResultBody::ExchangeId(result) = answer.body(0) else { panic!() };
    assert_eq!(result.flags, ExchangeFlags::USE_NON_PNFS);
    assert_eq!(result.state_protect, StateProtectResult::None);
    assert_eq!(result.server_owner, ServerOwner { minor_id: 0, major_id: b"server" });
    assert_eq!(result.server_scope, b"scope");
    assert_eq!(result.implementation.unwrap().domain, b"example.org");
}

#[test]
fn exchange_id_refuses_what_it_does_not_know() {
    let mut world = World::default();
    let ops = ProtectedOps { must_enforce: Bitmap::EMPTY, must_allow: Bitmap::EMPTY };
    let ssv = SsvParameters {
        ops,
        hash_algorithms: Vec::new(),
        encryption_algorithms: Vec::new(),
        window: 1,
        gss_handles: 1,
    };
    let cases = [
        (exchange_with(ExchangeFlags::CONFIRMED_R, StateProtectArgs::None), Status::Inval),
        (exchange_with(ExchangeFlags::from_bits_retain(4), StateProtectArgs::None), Status::Inval),
        (
            exchange_with(ExchangeFlags::empty(), StateProtectArgs::MachineCredential(ops)),
            Status::Inval,
        ),
        (exchange_with(ExchangeFlags::empty(), StateProtectArgs::Ssv(ssv)), Status::EncrAlgUnsupp),
        (exchange_with(ExchangeFlags::UPD_CONFIRMED_REC_A, StateProtectArgs::None), Status::NoEnt),
    ];
    for (op, status) in cases {
        assert_eq!(world.send(1, 0, std::slice::from_ref(&op)).status(), status, "{op:?}");
    }
}

#[test]
fn a_confirmed_client_is_found_again_and_may_update_its_record() {
    let (mut world, session) = World::with_client();
    let again = world.exchange(0, b"client", 1);
    assert_eq!(again.client_id, session.client_id);
    assert!(again.flags.contains(ExchangeFlags::CONFIRMED_R));
    let update = exchange_with(ExchangeFlags::UPD_CONFIRMED_REC_A, StateProtectArgs::None);
    assert_eq!(world.send(1, 0, std::slice::from_ref(&update)).status(), Status::Ok);
    assert_eq!(world.send(1, 5, std::slice::from_ref(&update)).status(), Status::Perm);
    let Op::ExchangeId(args) = update else { panic!() };
    let owner = ClientOwner { verifier: Verifier([9; 8]), owner_id: b"client" };
    let other = Op::ExchangeId(ExchangeIdArgs { owner, ..args });
    assert_eq!(world.send(1, 0, &[other]).status(), Status::NotSame);
    // Another principal does not get the name while the client lives.
    assert_eq!(world.send(1, 5, &[exchange_id(b"client", 1)]).status(), Status::ClidInUse);
}

#[test]
fn a_restarted_client_loses_its_old_sessions_when_it_confirms() {
    let mut world = World::default();
    let mut old = world.client(b"client");
    let new = world.exchange(0, b"client", 2);
    assert_ne!(new.client_id, old.client_id);
    assert!(!new.flags.contains(ExchangeFlags::CONFIRMED_R));
    assert_eq!(world.next(&mut old, &[]).status(), Status::Ok);
    let mut session = world.session(1, create_session(new.client_id, new.sequence_id));
    assert_eq!(world.next(&mut old, &[]).status(), Status::BadSession);
    assert_eq!(world.next(&mut session, &[]).status(), Status::Ok);
    assert_eq!(world.shared.counts().sessions, 1);
}

#[test]
fn create_session_is_repeated_and_counted() {
    let mut world = World::default();
    let client = world.exchange(0, b"client", 1);
    let args = create_session(client.client_id, client.sequence_id);
    for wrong in [client.sequence_id.wrapping_sub(1), client.sequence_id + 1] {
        let args = CreateSessionArgs { sequence: wrong, ..args.clone() };
        let answer = world.send(1, 0, &[Op::CreateSession(args)]);
        assert_eq!(answer.status(), Status::SeqMisordered);
    }
    let first = world.send(1, 0, &[Op::CreateSession(args.clone())]);
    assert_eq!(first.status(), Status::Ok);
    assert_eq!(world.send(2, 0, &[Op::CreateSession(args.clone())]), first);
    assert_eq!(world.shared.counts().sessions, 1);
    let ResultBody::CreateSession(created) = first.body(0) else { panic!() };
    assert_eq!(created.sequence, client.sequence_id);
    assert_eq!(created.flags, CreateSessionFlags::CONN_BACK_CHAN);
    let next = CreateSessionArgs { sequence: args.sequence + 1, ..args };
    assert_eq!(world.send(2, 7, &[Op::CreateSession(next)]).status(), Status::Ok);
    assert_eq!(world.shared.counts().sessions, 2);
}

#[test]
fn a_failed_create_session_leaves_the_sequence() {
    let mut world = World::default();
    let client = world.exchange(1, b"client", 1);
    let args = create_session(client.client_id, client.sequence_id);
    let small = ChannelAttributes { request_bytes_max: 10, ..channel() };
    let cases = [
        (CreateSessionArgs { back: small, ..args.clone() }, 1, Status::TooSmall),
        (CreateSessionArgs { fore: small, ..args.clone() }, 1, Status::TooSmall),
        (
            CreateSessionArgs { flags: CreateSessionFlags::from_bits_retain(0xf), ..args.clone() },
            1,
            Status::Inval,
        ),
        // Only the principal that made the record confirms it.
        (args.clone(), 2, Status::ClidInUse),
        (CreateSessionArgs { client_id: 12345, ..args.clone() }, 1, Status::StaleClientId),
    ];
    for (args, uid, status) in cases {
        let op = Op::CreateSession(args);
        assert_eq!(world.send(1, uid, std::slice::from_ref(&op)).status(), status, "{op:?}");
    }
    assert_eq!(world.send(1, 1, &[Op::CreateSession(args)]).status(), Status::Ok);
}

#[test]
fn flags_that_are_not_granted_are_not_promised() {
    let mut world = World::default();
    let client = world.exchange(0, b"client", 1);
    let flags = CreateSessionFlags::PERSIST
        | CreateSessionFlags::CONN_RDMA
        | CreateSessionFlags::CONN_BACK_CHAN;
    let args = create_session(client.client_id, client.sequence_id);
    let created = world.session(1, CreateSessionArgs { flags, ..args.clone() }).created;
    assert_eq!(created.flags, CreateSessionFlags::CONN_BACK_CHAN);
    // The client accepts no credential that the server could present, so there is no back channel.
    let args = CreateSessionArgs { sequence: args.sequence + 1, security: vec![], ..args };
    let created = world.session(1, args).created;
    assert_eq!(created.flags, CreateSessionFlags::empty());
}

#[test]
fn sessions_of_a_client_are_bounded() {
    let mut world = World::default();
    let client = world.exchange(0, b"client", 1);
    let max = dafs_nfs::limits::SESSIONS_PER_CLIENT_MAX as u32;
    for number in 0..max {
        let args = create_session(client.client_id, client.sequence_id + number);
        world.session(1, args);
    }
    let args = create_session(client.client_id, client.sequence_id + max);
    let answer = world.send(1, 0, &[Op::CreateSession(args)]);
    assert_eq!(answer.status(), Status::NoSpc);
}

#[test]
fn sessions_and_clients_end() {
    let (mut world, mut session) = World::with_client();
    let client = Op::DestroyClientid(DestroyClientidArgs { client_id: session.client_id });
    let destroy = Op::DestroySession(DestroySessionArgs { session_id: session.id });
    assert_eq!(world.send(2, 0, std::slice::from_ref(&client)).status(), Status::ClientIdBusy);
    let answer = world.next(&mut session, std::slice::from_ref(&client));
    assert_eq!(answer.status(), Status::ClientIdBusy);
    assert_eq!(world.send(2, 0, std::slice::from_ref(&destroy)).status(), Status::Ok);
    assert_eq!(world.send(2, 0, std::slice::from_ref(&destroy)).status(), Status::BadSession);
    assert_eq!(world.next(&mut session, &[]).status(), Status::BadSession);
    assert_eq!(world.send(2, 0, std::slice::from_ref(&client)).status(), Status::Ok);
    assert_eq!(world.send(2, 0, std::slice::from_ref(&client)).status(), Status::StaleClientId);
    assert_eq!(world.shared.counts().sessions, 0);
}

#[test]
fn a_session_that_destroys_itself_does_so_last() {
    let (mut world, mut session) = World::with_client();
    let destroy = Op::DestroySession(DestroySessionArgs { session_id: session.id });
    let answer = world.next(&mut session, &[destroy.clone(), Op::Putrootfh(PutrootfhArgs)]);
    assert_eq!(answer.status(), Status::NotOnlyOp);
    let answer = world.next(&mut session, &[Op::Putrootfh(PutrootfhArgs), destroy]);
    assert_eq!(answer.status(), Status::Ok);
    assert_eq!(world.next(&mut session, &[]).status(), Status::BadSession);
}

#[test]
fn reclaiming_is_completed_once() {
    let (mut world, mut session) = World::with_client();
    let complete = |one_fs| Op::ReclaimComplete(ReclaimCompleteArgs { one_fs });
    assert_eq!(world.next(&mut session, &[complete(true)]).status(), Status::NoFileHandle);
    let ops = [Op::Putrootfh(PutrootfhArgs), complete(true)];
    assert_eq!(world.next(&mut session, &ops).status(), Status::Ok);
    assert_eq!(world.next(&mut session, &[complete(false)]).status(), Status::Ok);
    assert_eq!(world.next(&mut session, &[complete(false)]).status(), Status::CompleteAlready);
}

#[test]
fn a_thousand_clients_cost_little() {
    let mut world = World::default();
    for number in 0..1000u32 {
        let mut session = world.client(&number.to_be_bytes());
        assert_eq!(world.next(&mut session, &[]).status(), Status::Ok);
    }
    let counts = world.shared.counts();
    assert_eq!(counts.sessions, 1000);
    assert!(counts.cached_bytes <= 1000 * 128, "{counts:?}");
}

#[test]
fn a_flood_of_new_clients_is_bounded() {
    let (mut world, mut session) = World::with_client();
    for number in 0..20_000u32 {
        let owner = number.to_be_bytes();
        world.send(1, 0, &[exchange_id(&owner, 1)]);
    }
    let known = world.shared.service.counts().clients;
    let counts = world.shared.counts();
    assert!(counts.clients <= 2 * known + 1024, "{counts:?}, {known} in the service");
    assert!(counts.clients < 20_000);
    assert_eq!(world.next(&mut session, &[]).status(), Status::Ok);
}

#[test]
fn clients_that_never_confirm_are_forgotten() {
    let mut world = World::default();
    let client = world.exchange(0, b"client", 1);
    world.tick((2 * LEASE_SECONDS + 5) * SECOND);
    let args = create_session(client.client_id, client.sequence_id);
    let answer = world.send(1, 0, &[Op::CreateSession(args)]);
    assert_eq!(answer.status(), Status::StaleClientId);
}

#[test]
fn local_users_get_no_sessions_of_other_peoples_clients() {
    let mut world = World::default();
    let client = world.client(b"client");
    world.reactor.process = CallerProcess::Known(PeerProcess { pid: 0, uid: 2000, gid: 100 });
    // The client gets neither the cached result of the first session nor another session, for any
    // claimed user.
    for sequence in [client.created.sequence, client.created.sequence + 1] {
        let args = create_session(client.client_id, sequence);
        let answer = world.send(9, 0, &[Op::CreateSession(args)]);
        assert_eq!(answer.status(), Status::ClidInUse);
    }
    assert_eq!(world.shared.counts().sessions, 1);
    let own = world.send(9, 0, &[exchange_id(b"own", 1)]);
    let ResultBody::ExchangeId(own) = own.body(0) else { panic!() };
    let args = create_session(own.client_id, own.sequence_id);
    for args in [args.clone(), CreateSessionArgs { sequence: args.sequence + 1, ..args }] {
        assert_eq!(world.send(9, 0, &[Op::CreateSession(args)]).status(), Status::Ok);
    }
}

#[test]
fn local_users_end_no_clients_of_other_people() {
    let mut world = World::default();
    let session = world.client(b"between sessions");
    let id = DestroySessionArgs { session_id: session.created.session_id };
    assert_eq!(world.send(1, 0, &[Op::DestroySession(id)]).status(), Status::Ok);
    let unconfirmed = world.exchange(0, b"new", 1).client_id;
    let own = world.reactor.process;
    for client_id in [session.client_id, unconfirmed] {
        let destroy = Op::DestroyClientid(DestroyClientidArgs { client_id });
        world.reactor.process = CallerProcess::Known(PeerProcess { pid: 0, uid: 2000, gid: 100 });
        let answer = world.send(9, 0, std::slice::from_ref(&destroy));
        assert_eq!(answer.status(), Status::StaleClientId);
        world.reactor.process = own;
        assert_eq!(world.send(1, 0, &[destroy]).status(), Status::Ok);
    }
}

/// Sets the origin of the next calls.
fn move_to(world: &mut World, peer: &str) {
    world.reactor.peer = peer.parse().unwrap();
}

#[test]
fn hosts_that_no_export_admits_hold_nothing() {
    let (mut world, mut session) = World::with_client();
    for (connection, peer) in [(5, "192.0.2.1:700"), (6, "127.0.0.1:50000")] {
        move_to(&mut world, peer);
        let args = world.encode(&[exchange_id(b"client", 2)]);
        let refused = Rejection::Reject(RejectStatus::Auth(AuthStatus::TooWeak));
        assert_eq!(world.raw(connection, 0, &args), Err(refused));
    }
    move_to(&mut world, "127.0.0.1:1");
    assert_eq!(world.next(&mut session, &[]).status(), Status::Ok);
    let counts = world.shared.counts();
    assert_eq!((counts.clients, counts.sessions), (1, 1));
}

/// Makes a client with a session from one host, and sets another origin for the next calls.
fn with_a_stranger() -> (World, Session) {
    let mut world = World::for_networks(&["192.0.2.0/24"]);
    move_to(&mut world, "192.0.2.1:700");
    let session = world.client(b"client");
    move_to(&mut world, "192.0.2.2:700");
    (world, session)
}

#[test]
fn a_stranger_does_not_end_a_client_by_its_name() {
    let (mut world, mut session) = with_a_stranger();
    let answer = world.send(9, 0, &[exchange_id(b"client", 2)]);
    assert_eq!(answer.status(), Status::ClidInUse);
    move_to(&mut world, "192.0.2.1:700");
    assert_eq!(world.next(&mut session, &[]).status(), Status::Ok);
    // Other users of its host do not either, where an export admits them.
    let mut world = World::for_networks(&["192.0.2.0/24"]);
    move_to(&mut world, "192.0.2.1:700");
    let mut session = world.client(b"client");
    move_to(&mut world, "192.0.2.1:50000");
    let answer = world.send(9, 0, &[exchange_id(b"client", 2)]);
    assert_eq!(answer.status(), Status::ClidInUse);
    assert_eq!(world.next(&mut session, &[]).status(), Status::Ok);
}

#[test]
fn a_stranger_gets_no_session_by_a_client_id() {
    let (mut world, mut session) = with_a_stranger();
    // The caller gets neither the cached result of the first session nor another session.
    for sequence in [session.created.sequence, session.created.sequence + 1] {
        let args = create_session(session.client_id, sequence);
        let answer = world.send(9, 0, &[Op::CreateSession(args)]);
        assert_eq!(answer.status(), Status::ClidInUse);
    }
    let destroy = Op::DestroyClientid(DestroyClientidArgs { client_id: session.client_id });
    assert_eq!(world.send(9, 0, &[destroy]).status(), Status::StaleClientId);
    let other = world.exchange(0, b"other", 1);
    move_to(&mut world, "192.0.2.3:700");
    let args = create_session(other.client_id, other.sequence_id);
    assert_eq!(world.send(10, 0, &[Op::CreateSession(args)]).status(), Status::ClidInUse);
    // A caller that knows the session is the client, from any address.
    session.sequence += 1;
    let ops = with_sequence(session.sequence_args(), &[]);
    assert_eq!(world.send(11, 0, &ops).status(), Status::Ok);
    let args = create_session(session.client_id, session.created.sequence + 1);
    assert_eq!(world.send(11, 0, &[Op::CreateSession(args)]).status(), Status::Ok);
}

/// A client's state counts for the host that it came from, or for the user of this host.
#[test]
fn a_client_counts_for_its_host() {
    let mut world = World::for_networks(&["192.0.2.0/24", "2001:db8::/32", "127.0.0.0/8"]);
    let mut hosts = Vec::new();
    for (number, peer) in ["192.0.2.1:700", "192.0.2.1:701", "[2001:db8::1]:700", "127.0.0.1:2000"]
        .into_iter()
        .enumerate()
    {
        world.reactor.peer = peer.parse().unwrap();
        if peer.starts_with("127.") {
            world.reactor.process =
                CallerProcess::Known(PeerProcess { pid: 0, uid: 2000, gid: 100 });
        }
        let connection = 1 + number as u32;
        let answer = world.send(connection, 0, &[exchange_id(peer.as_bytes(), 1)]);
        let ResultBody::ExchangeId(result) = answer.body(0) else { panic!() };
        let key = dafs_service::ClientKey(result.client_id);
        hosts.push(world.shared.service.clients.find(key).unwrap().host().host());
    }
    let at = |text: &str| Host::of(text.parse().unwrap());
    let user = Host::User(2000);
    assert_eq!(hosts, [at("192.0.2.1"), at("192.0.2.1"), at("2001:db8::9"), user]);
}
