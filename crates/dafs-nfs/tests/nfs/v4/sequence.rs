//! SEQUENCE and the slots of the fore channel (RFC 8881 2.10.6, 18.46).

use crate::common::*;
use dafs_wire::nfs4::*;

const ROOT: Op<'static> = Op::Putrootfh(PutrootfhArgs);
const GETFH: Op<'static> = Op::Getfh(GetfhArgs);

fn sequence_result(answer: &Answer) -> SequenceResult {
    let ResultBody::Sequence(result) = answer.body(0) else { panic!("{answer:?}") };
    result
}

#[test]
fn the_result_names_session_slot_and_sequence() {
    let (mut world, mut session) = World::with_client();
    let args = SequenceArgs {
        session_id: session.id,
        sequence_id: 1,
        slot_id: 2,
        highest_slot_id: 3,
        cache_this: false,
    };
    let result = sequence_result(&world.send(1, 0, &[Op::Sequence(args)]));
    assert_eq!(
        result,
        SequenceResult {
            session_id: session.id,
            sequence_id: 1,
            slot_id: 2,
            highest_slot_id: 7,
            target_highest_slot_id: 7,
            status: SequenceStatus::empty(),
        }
    );
    assert_eq!(world.next(&mut session, &[ROOT]).status(), Status::Ok);
}

#[test]
fn a_retry_gets_the_same_bytes_and_runs_nothing() {
    let (mut world, mut session) = World::with_client();
    let complete = Op::ReclaimComplete(ReclaimCompleteArgs { one_fs: false });
    let ops = [ROOT, GETFH, complete];
    let first = world.next(&mut session, &ops);
    assert_eq!(first.status(), Status::Ok);
    // A second RECLAIM_COMPLETE would fail. The tag and the highest slot may differ.
    world.tag = b"again";
    let args = SequenceArgs { highest_slot_id: 5, ..session.sequence_args() };
    assert_eq!(world.send(2, 0, &with_sequence(args, &ops)), first);
    // Failures are cached as well.
    let bad = [GETFH];
    let failed = world.next(&mut session, &bad);
    assert_eq!(failed.status(), Status::NoFileHandle);
    assert_eq!(world.again(&session, &bad), failed);
}

#[test]
fn a_false_retry_is_told_apart() {
    let (mut world, mut session) = World::with_client();
    let first = world.next(&mut session, &[ROOT, GETFH]);
    for other in [&[ROOT][..], &[ROOT, ROOT], &[GETFH, ROOT], &[]] {
        assert_eq!(world.again(&session, other).status(), Status::SeqFalseRetry, "{other:?}");
    }
    // Another user does not get the reply to this one.
    let ops = with_sequence(session.sequence_args(), &[ROOT, GETFH]);
    assert_eq!(world.send(1, 4, &ops).status(), Status::SeqFalseRetry);
    assert_eq!(world.again(&session, &[ROOT, GETFH]), first);
}

#[test]
fn a_reply_that_was_not_kept_is_not_made_again() {
    let (mut world, mut session) = World::with_client();
    session.sequence = 1;
    let args = SequenceArgs { cache_this: false, ..session.sequence_args() };
    let ops = with_sequence(args, &[ROOT, GETFH]);
    assert_eq!(world.send(1, 0, &ops).status(), Status::Ok);
    let answer = world.send(1, 0, &ops);
    assert_eq!(answer.status(), Status::RetryUncachedRep);
    assert_eq!(answer.results()[0].status, Status::Ok);
    assert_eq!(answer.results()[1].number, OpNum::Putrootfh as u32);
    // A SEQUENCE alone is always cached.
    session.sequence = 2;
    let args = SequenceArgs { cache_this: false, ..session.sequence_args() };
    let first = world.send(1, 0, &[Op::Sequence(args)]);
    assert_eq!(first.status(), Status::Ok);
    assert_eq!(world.send(1, 0, &[Op::Sequence(args)]), first);
}

#[test]
fn a_retry_renews_the_lease() {
    let (mut world, mut session) = World::with_client();
    let first = world.next(&mut session, &[ROOT]);
    for _ in 0..3 {
        world.tick(LEASE_SECONDS * SECOND / 3 * 2);
        assert_eq!(world.again(&session, &[ROOT]), first);
    }
    assert_eq!(world.next(&mut session, &[ROOT]).status(), Status::Ok);
}

#[test]
fn setattr_has_its_mask_even_when_it_does_not_run() {
    let (mut world, mut session) = World::with_client();
    let attributes = Fattr { mask: Bitmap::EMPTY, values: b"" };
    let setattr = Op::Setattr(SetattrArgs { stateid: Stateid::ANONYMOUS, attributes });
    let mask = |answer: &Answer, status| {
        let last = answer.results().pop().unwrap();
        assert_eq!((last.number, last.status), (OpNum::Setattr as u32, status));
        let ResultBody::Setattr(result) = last.body else { panic!("{:?}", last.body) };
        assert_eq!(result.attributes_set, Bitmap::EMPTY);
    };
    let alone = world.send(1, 0, std::slice::from_ref(&setattr));
    mask(&alone, Status::OpNotInSession);
    session.sequence = 1;
    let args = SequenceArgs { cache_this: false, ..session.sequence_args() };
    let ops = with_sequence(args, &[setattr]);
    mask(&world.send(1, 0, &ops), Status::NoFileHandle);
    mask(&world.send(1, 0, &ops), Status::RetryUncachedRep);
}

#[test]
fn slots_and_sequences_out_of_range_are_refused() {
    let (mut world, mut session) = World::with_client();
    world.next(&mut session, &[]);
    let good = session.sequence_args();
    let cases = [
        (SequenceArgs { slot_id: 8, sequence_id: 1, highest_slot_id: 8, ..good }, Status::BadSlot),
        (SequenceArgs { slot_id: u32::MAX, sequence_id: 1, ..good }, Status::BadSlot),
        (SequenceArgs { sequence_id: 2, highest_slot_id: 8, ..good }, Status::BadHighSlot),
        (SequenceArgs { sequence_id: 3, ..good }, Status::SeqMisordered),
        (SequenceArgs { sequence_id: 0, ..good }, Status::SeqMisordered),
        (SequenceArgs { sequence_id: u32::MAX, ..good }, Status::SeqMisordered),
        (SequenceArgs { slot_id: 1, sequence_id: 0, ..good }, Status::SeqMisordered),
        (SequenceArgs { session_id: SessionId([7; 16]), ..good }, Status::BadSession),
    ];
    for (args, status) in cases {
        let answer = world.send(1, 0, &[Op::Sequence(args), ROOT]);
        assert_eq!(answer.status(), status, "{args:?}");
        assert_eq!(answer.results().len(), 1);
    }
    // None of these requests changed the slot.
    assert_eq!(world.next(&mut session, &[ROOT]).status(), Status::Ok);
}

#[test]
fn a_request_too_large_is_refused_before_it_takes_the_slot() {
    let mut world = World::default();
    let client = world.exchange(0, b"client", 1);
    let fore = ChannelAttributes {
        request_bytes_max: 512,
        response_bytes_max: 400,
        response_bytes_max_cached: 100,
        operations_max: 8,
        ..channel()
    };
    let args = create_session(client.client_id, client.sequence_id);
    let mut session = world.session(1, CreateSessionArgs { fore, ..args });
    session.sequence = 1;
    let uncached = SequenceArgs { cache_this: false, ..session.sequence_args() };
    let name = [b'n'; 500];
    let lookup = Op::Lookup(LookupArgs { name: &name });
    let cases: [(Vec<Op<'_>>, Status); 3] = [
        (with_sequence(uncached, &[ROOT, lookup]), Status::ReqTooBig),
        (with_sequence(uncached, &vec![ROOT; 8]), Status::TooManyOps),
        (with_sequence(session.sequence_args(), &[ROOT]), Status::Ok),
    ];
    for (ops, status) in cases {
        assert_eq!(world.send(1, 0, &ops).status(), status, "{ops:?}");
    }
    // The reply grows step by step up to its limit. The results that fit stay.
    let ops = [ROOT, GETFH, GETFH, GETFH, GETFH, GETFH];
    session.sequence = 2;
    let uncached = SequenceArgs { cache_this: false, ..session.sequence_args() };
    let answer = world.send(1, 0, &with_sequence(uncached, &ops));
    assert_eq!(answer.status(), Status::RepTooBig);
    assert!(answer.0.len() <= 400 - 24, "{} bytes", answer.0.len());
    assert!(answer.results().len() > 4);
    session.sequence = 3;
    let answer = world.again(&session, &ops[..3]);
    assert_eq!(answer.status(), Status::RepTooBigToCache);
    assert_eq!(world.again(&session, &ops[..3]), answer);
}

#[test]
fn a_reply_cache_that_holds_nothing_refuses_to_keep() {
    let mut world = World::default();
    let client = world.exchange(0, b"client", 1);
    let fore = ChannelAttributes { response_bytes_max_cached: 10, ..channel() };
    let args = create_session(client.client_id, client.sequence_id);
    let mut session = world.session(1, CreateSessionArgs { fore, ..args });
    assert_eq!(world.next(&mut session, &[]).status(), Status::RepTooBigToCache);
    let args = SequenceArgs { cache_this: false, ..session.sequence_args() };
    assert_eq!(world.send(1, 0, &[Op::Sequence(args)]).status(), Status::Ok);
}

#[test]
fn any_connection_and_user_may_use_a_session_without_protection() {
    let (mut world, mut session) = World::with_client();
    session.sequence = 1;
    for (connection, uid) in [(5, 0), (6, 1000)] {
        let ops = with_sequence(session.sequence_args(), &[ROOT]);
        assert_eq!(world.send(connection, uid, &ops).status(), Status::Ok);
        session.sequence += 1;
    }
}

#[test]
fn a_busy_session_is_offered_more_slots() {
    let (mut world, session) = World::with_client();
    let mut waiting = 0;
    let other = world.exchange(0, b"other", 1);
    // CREATE_SESSION of a new client waits for the disk, so each of these holds its slot.
    for slot_id in 0..6 {
        let args = SequenceArgs {
            session_id: session.id,
            sequence_id: 1,
            slot_id,
            highest_slot_id: slot_id,
            cache_this: false,
        };
        let create = create_session(other.client_id, other.sequence_id);
        let args = world.encode(&[Op::Sequence(args), Op::CreateSession(create)]);
        let handled = world.start(1, 0, &args);
        waiting += usize::from(matches!(handled, dafs_rpc::Handled::Later));
    }
    assert_eq!(waiting, 6);
    let args = SequenceArgs { slot_id: 6, sequence_id: 1, ..session.sequence_args() };
    let args = SequenceArgs { highest_slot_id: 6, ..args };
    let result = sequence_result(&world.send(1, 0, &[Op::Sequence(args)]));
    assert_eq!((result.highest_slot_id, result.target_highest_slot_id), (15, 15));
    assert_eq!(world.pool.run(), 6);
    let answers = world.collect();
    // One made the session, and the others are retries of it.
    let bytes: Vec<_> = answers.into_iter().map(|answer| answer.unwrap().to_bytes()).collect();
    assert!(bytes.iter().all(|bytes| Answer(bytes.clone()).status() == Status::Ok));
    assert_eq!(world.shared.counts().sessions, 2);
}

#[test]
fn a_retry_while_the_first_runs_is_put_off_and_the_reply_is_kept_without_its_connection() {
    let (mut world, mut session) = World::with_client();
    session.sequence = 1;
    let other = world.exchange(0, b"other", 1);
    let create = Op::CreateSession(create_session(other.client_id, other.sequence_id));
    let args = world.encode(&with_sequence(session.sequence_args(), std::slice::from_ref(&create)));
    assert!(matches!(world.start(3, 0, &args), dafs_rpc::Handled::Later));
    assert_eq!(world.again(&session, std::slice::from_ref(&create)).status(), Status::Delay);
    // The connection ends before the answer is there.
    let connection = world.reactor.connection(3).id();
    dafs_rpc::Handler::disconnected(&mut world.handler, connection);
    let first = world.finish().unwrap();
    assert_eq!(world.again(&session, &[create]), Answer(first));
    assert_eq!(world.shared.counts().sessions, 2);
}

#[test]
fn the_lease_is_renewed_by_requests_that_succeed() {
    let (mut world, mut session) = World::with_client();
    for _ in 0..4 {
        world.tick(LEASE_SECONDS / 2 * SECOND);
        assert_eq!(world.next(&mut session, &[]).status(), Status::Ok);
    }
}
