//! Sessions with several requests, connections and threads at a time, and retries over another
//! connection.

use super::harness::Server;
use dafs_nfs_client::{
    Compound, Connection, Identity, NfsError, Options, Results, Session, add_connection,
    bind_connection, connect, create_session, create_session_args, destroy_client_id, exchange_id,
};
use dafs_testkit::eventually;
use dafs_wire::nfs4::*;

fn identity(uid: u32) -> Identity {
    Identity::sys("test", uid, uid, &[])
}

fn getroot(compound: &mut Compound) {
    compound.op(&Op::Putrootfh(PutrootfhArgs)).op(&Op::Getfh(GetfhArgs));
}

/// Builds a compound of its own SEQUENCE and the root's handle.
fn sequenced(sequence: SequenceArgs) -> Compound {
    let mut compound = Compound::new(2);
    compound.op(&Op::Sequence(sequence));
    getroot(&mut compound);
    compound
}

fn refused(result: Result<Results, NfsError>) -> Status {
    let mut results = result.unwrap();
    results.next_result().unwrap().status
}

#[test]
fn many_requests_of_a_session_are_under_way_at_a_time() {
    let server = Server::start();
    let session = server.session(b"pipelined");
    let root = session.root().unwrap();
    for round in 0..4 {
        let pending: Vec<_> = (0..session.granted().fore.requests_max)
            .map(|_| match round % 2 {
                0 => session.queue(false, getroot).unwrap(),
                _ => session.submit(true, getroot).unwrap(),
            })
            .collect();
        let mut slots: Vec<_> = pending.iter().map(|one| one.sequence().slot_id).collect();
        slots.dedup();
        assert_eq!(slots.len(), pending.len());
        for one in pending {
            let mut results = one.wait().unwrap();
            results.take(OpNum::Putrootfh).unwrap();
            let ResultBody::Getfh(found) = results.take(OpNum::Getfh).unwrap() else { panic!() };
            assert_eq!(found.handle, root.0);
        }
    }
}

#[test]
fn threads_share_a_session() {
    let server = Server::start();
    let session = connect(server.address, &Options { slots: 3, ..Options::new(b"threads") });
    let session = session.unwrap();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..50 {
                    session.call(getroot).unwrap().finish().unwrap();
                }
            });
        }
    });
    session.destroy().unwrap();
    assert_eq!(session.call(getroot).unwrap_err().status(), Some(Status::BadSession));
}

#[test]
fn a_session_uses_several_connections() {
    let server = Server::start();
    let session = server.session(b"trunked");
    for _ in 0..3 {
        add_connection(&session, server.address, identity(0)).unwrap();
    }
    let pending: Vec<_> = (0..32).map(|_| session.submit(false, getroot).unwrap()).collect();
    for one in pending {
        one.wait().unwrap().finish().unwrap();
    }
    // SEQUENCE binds an unbound connection, because the client requested no state protection.
    let other = server.connection();
    session.replace_connections(other);
    session.call(getroot).unwrap().finish().unwrap();
}

#[test]
fn clients_and_their_sessions_are_the_same_over_every_connection() {
    let server = Server::start();
    let options = Options::new(b"trunks");
    let (first, second) = (server.connection(), server.connection());
    let one = exchange_id(&first, &options, ExchangeFlags::empty()).unwrap();
    let other = exchange_id(&second, &options, ExchangeFlags::empty()).unwrap();
    assert_eq!(one.server_owner, other.server_owner);
    assert_eq!(one.server_scope, other.server_scope);
    assert!(one.flags.contains(ExchangeFlags::USE_NON_PNFS));
    let args = create_session_args(&options, other.client_id, other.sequence_id);
    let handler = options.back_handler.clone();
    let (granted, back) = create_session(&second, 2, args, &handler).unwrap();
    let session = Session::new(first, other.client_id, 2, granted, back);
    session.call(getroot).unwrap().finish().unwrap();
    assert_eq!(
        destroy_client_id(&second, 2, other.client_id).unwrap_err().status(),
        Some(Status::ClientIdBusy)
    );
    session.destroy().unwrap();
    destroy_client_id(&second, 2, other.client_id).unwrap();
    assert_eq!(server.shared.counts().sessions, 0);
}

#[test]
fn a_retry_over_another_connection_gets_the_kept_reply() {
    let server = Server::start();
    let session = server.session(b"retry");
    let first = server.connection();
    let sequence = session.take_slot(true);
    let compound = sequenced(sequence);
    let answer = first.compound(&compound).unwrap();
    assert_eq!(answer.status(), Status::Ok);
    first.close();
    eventually("the connection ended", || first.rpc().is_broken());
    // The same bytes, over a new connection, and by another user.
    for uid in [0, 5] {
        let again = Connection::open(server.address, identity(uid)).unwrap();
        if uid == 0 {
            assert_eq!(again.compound(&compound).unwrap().bytes(), answer.bytes());
        } else {
            // The digest that detects a false retry includes the principal (RFC 8881 2.10.6.1.3.1).
            let status = again.compound(&compound).unwrap().status();
            assert!(matches!(status, Status::Ok | Status::SeqFalseRetry), "{status:?}");
        }
    }
}

#[test]
fn false_retries_and_wrong_sequences_are_refused_and_harm_nothing() {
    let server = Server::start();
    let session = server.session(b"false");
    let connection = session.connection();
    let sequence = session.take_slot(true);
    let kept = connection.compound(&sequenced(sequence)).unwrap();
    let mut other = Compound::new(2);
    other.op(&Op::Sequence(sequence)).op(&Op::Putrootfh(PutrootfhArgs));
    assert_eq!(refused(connection.compound(&other)), Status::SeqFalseRetry);
    let wrong = |sequence_id| SequenceArgs { sequence_id, ..sequence };
    for sequence_id in [sequence.sequence_id + 2, sequence.sequence_id.wrapping_sub(1)] {
        let answer = connection.compound(&sequenced(wrong(sequence_id)));
        assert_eq!(refused(answer), Status::SeqMisordered);
    }
    let slot = SequenceArgs { slot_id: 1 << 20, ..sequence };
    assert_eq!(refused(connection.compound(&sequenced(slot))), Status::BadSlot);
    let session_id = SessionId([0x5a; 16]);
    let unknown = SequenceArgs { session_id, ..sequence };
    assert_eq!(refused(connection.compound(&sequenced(unknown))), Status::BadSession);
    // The slot is unchanged: the retry finds its reply, and the next request succeeds.
    let again = connection.compound(&sequenced(sequence)).unwrap();
    assert_eq!(again.bytes(), kept.bytes());
    let next = connection.compound(&sequenced(wrong(sequence.sequence_id + 1))).unwrap();
    assert_eq!(next.status(), Status::Ok);
}

#[test]
fn binding_needs_a_session_that_exists() {
    let server = Server::start();
    let session = server.session(b"binding");
    let connection = server.connection();
    let bind = |id, direction| bind_connection(&connection, 2, id, direction);
    let bound = bind(session.id(), ChannelFromClient::ForeOrBoth).unwrap();
    assert!(matches!(bound.direction, ChannelFromServer::Fore | ChannelFromServer::Both));
    let bound = bind(session.id(), ChannelFromClient::BackOrBoth).unwrap();
    assert!(matches!(bound.direction, ChannelFromServer::Back | ChannelFromServer::Both));
    let nobody = bind(SessionId::default(), ChannelFromClient::Fore).unwrap_err();
    assert_eq!(nobody.status(), Some(Status::BadSession));
}

#[test]
fn a_restarted_client_replaces_its_former_self() {
    let server = Server::start();
    let old = server.session(b"phoenix");
    let verifier = *b"restart!";
    let new = connect(server.address, &Options { verifier, ..Options::new(b"phoenix") }).unwrap();
    assert_ne!(old.client_id(), new.client_id());
    let lost = old.call(getroot).unwrap_err().status();
    assert!(matches!(lost, Some(Status::BadSession | Status::DeadSession)), "{lost:?}");
    new.call(getroot).unwrap().finish().unwrap();
}
