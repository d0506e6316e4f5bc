//! COMPOUND as such: versions, tags, positions of operations, hostile frames (RFC 8881 16.2,
//! 2.6.3.1).

use crate::common::*;
use dafs_rpc::{AcceptStatus, Rejection};
use dafs_wire::nfs4::*;
use dafs_wire::xdr::{Encode, Encoder};

const ROOT: Op<'static> = Op::Putrootfh(PutrootfhArgs);
const GETFH: Op<'static> = Op::Getfh(GetfhArgs);

#[test]
fn minor_versions_that_are_not_spoken_are_refused_with_the_tag() {
    let mut world = World { tag: b"hello", ..World::default() };
    for minor in [0, 3, 50, u32::MAX] {
        world.minor = minor;
        let answer = world.send(1, 0, &[exchange_id(b"client", 1)]);
        assert_eq!(answer.status(), Status::MinorVersMismatch);
        assert_eq!(answer.head().tag, b"hello");
        assert_eq!(answer.head().op_count, 0);
    }
}

#[test]
fn an_empty_compound_succeeds_and_tags_come_back() {
    let mut world = World { tag: "t\u{e4}g".as_bytes(), ..World::default() };
    let answer = world.send(1, 0, &[]);
    assert_eq!((answer.status(), answer.head().tag), (Status::Ok, "t\u{e4}g".as_bytes()));
    world.tag = b"\xff\xfe";
    let answer = world.send(1, 0, &[exchange_id(b"client", 1)]);
    assert_eq!((answer.status(), answer.head().op_count), (Status::Inval, 0));
}

#[test]
fn operations_stand_where_they_may() {
    let (mut world, mut session) = World::with_client();
    let destroy = Op::DestroyClientid(DestroyClientidArgs { client_id: 1 });
    let bind = Op::BindConnToSession(BindConnToSessionArgs {
        session_id: session.id,
        direction: ChannelFromClient::Fore,
        use_rdma: false,
    });
    for first in [exchange_id(b"client", 1), destroy, bind.clone()] {
        assert_eq!(world.send(1, 0, &[first, ROOT]).status(), Status::NotOnlyOp);
    }
    assert_eq!(world.send(1, 0, &[ROOT]).status(), Status::OpNotInSession);
    let again = Op::Sequence(session.sequence_args());
    assert_eq!(world.next(&mut session, &[again]).status(), Status::SequencePos);
    assert_eq!(world.next(&mut session, &[bind]).status(), Status::NotOnlyOp);
    assert_eq!(world.next(&mut session, &[exchange_id(b"x", 1)]).status(), Status::Ok);
}

#[test]
fn unknown_operations_and_those_of_other_minor_versions() {
    let (mut world, mut session) = World::with_client();
    for number in [0, 1, 2, 76, OP_ILLEGAL, u32::MAX] {
        for answer in [
            world.send(1, 0, &[Op::Illegal(number)]),
            world.next(&mut session, &[Op::Illegal(number)]),
        ] {
            assert_eq!(answer.status(), Status::OpIllegal);
            assert_eq!(answer.results().last().unwrap().number, OP_ILLEGAL);
        }
    }
    // 4.2 operations do not exist in 4.1. Those of 4.0 exist and are not supported.
    let seek = Op::Seek(SeekArgs { stateid: Stateid::ANONYMOUS, offset: 0, what: SeekWhat::Data });
    assert_eq!(world.next(&mut session, &[seek]).status(), Status::OpIllegal);
    for old in [OpNum::OpenConfirm, OpNum::Renew, OpNum::Setclientid, OpNum::ReleaseLockowner] {
        let answer = world.next(&mut session, &[Op::Obsolete(old)]);
        assert_eq!(answer.status(), Status::NotSupp);
        assert_eq!(answer.results()[1].number, old as u32);
    }
}

#[test]
fn pnfs_is_not_supported() {
    let (mut world, mut session) = World::with_client();
    let op = Op::Getdeviceinfo(GetdeviceinfoArgs {
        device_id: DeviceId([0; 16]),
        layout_type: 1,
        result_bytes_max: 4096,
        notifications: Bitmap::EMPTY,
    });
    assert_eq!(world.next(&mut session, &[op]).status(), Status::NotSupp);
}

#[test]
fn a_compound_of_ten_thousand_operations_is_refused_unread() {
    let (mut world, mut session) = World::with_client();
    let answer = world.next(&mut session, &vec![ROOT; 10_000]);
    assert!(matches!(answer.status(), Status::ReqTooBig | Status::TooManyOps));
    // The count may be wrong, too.
    let mut bytes = Vec::new();
    let mut e = Encoder::new(&mut bytes);
    CompoundArgs { tag: b"", minor_version: 1, op_count: u32::MAX }.encode(&mut e);
    Op::Sequence(session.sequence_args()).encode(&mut e);
    let answer = Answer(world.raw(1, 0, &bytes).unwrap());
    assert_eq!(answer.status(), Status::TooManyOps);
}

#[test]
fn frames_that_are_no_xdr_are_refused() {
    let mut world = World::default();
    let garbage = Rejection::Accept(AcceptStatus::GarbageArgs);
    for bytes in [&b""[..], b"\0\0", b"\xff\xff\xff\xff\0\0\0\0", b"\0\0\0\0\0\0\0\x01"] {
        assert_eq!(world.raw(1, 0, bytes), Err(garbage));
    }
}

#[test]
fn arguments_that_cannot_be_decoded_end_the_compound() {
    let (mut world, mut session) = World::with_client();
    session.sequence += 1;
    let ops = with_sequence(session.sequence_args(), &[ROOT]);
    let mut bytes = world.encode(&ops);
    // The count includes a third operation that is missing. Then comes one whose name is longer
    // than the rest.
    bytes[11] = 3;
    let answer = Answer(world.raw(1, 0, &bytes).unwrap());
    assert_eq!(answer.status(), Status::BadXdr);
    assert_eq!(answer.results()[2].number, OP_ILLEGAL);
    session.sequence += 1;
    let mut bytes = world.encode(&with_sequence(session.sequence_args(), &[ROOT]));
    bytes[11] = 3;
    bytes.extend_from_slice(&[0, 0, 0, 15, 0x7f, 0xff, 0xff, 0xff]);
    let answer = Answer(world.raw(1, 0, &bytes).unwrap());
    assert_eq!(answer.status(), Status::BadXdr);
    assert_eq!(answer.results()[2].number, OpNum::Lookup as u32);
    assert_eq!(world.next(&mut session, &[ROOT]).status(), Status::Ok);
}

#[test]
fn file_handles_come_and_go() {
    let (mut world, mut session) = World::with_client();
    let answer = world.next(&mut session, &[ROOT, GETFH]);
    let ResultBody::Getfh(root) = answer.body(2) else { panic!() };
    let putfh = Op::Putfh(PutfhArgs { handle: root.handle });
    let ops = [putfh, Op::Savefh(SavefhArgs), ROOT, Op::Restorefh(RestorefhArgs), GETFH];
    let again = world.next(&mut session, &ops);
    let ResultBody::Getfh(same) = again.body(5) else { panic!() };
    assert_eq!(same.handle, root.handle);
    let cases = [
        (Op::Putfh(PutfhArgs { handle: b"abc" }), Status::BadHandle),
        (Op::Restorefh(RestorefhArgs), Status::NoFileHandle),
        (Op::Savefh(SavefhArgs), Status::NoFileHandle),
        (GETFH, Status::NoFileHandle),
        (Op::SetSsv(SetSsvArgs { ssv: b"", digest: b"" }), Status::Inval),
    ];
    for (op, status) in cases {
        assert_eq!(world.next(&mut session, &[op]).status(), status);
    }
}

#[test]
fn security_is_told_and_uses_the_handle_up() {
    let (mut world, mut session) = World::with_client();
    let ask = |style| Op::SecinfoNoName(SecinfoNoNameArgs { style });
    let answer = world.next(&mut session, &[ROOT, ask(SecinfoStyle::Current)]);
    let ResultBody::SecinfoNoName(result) = answer.body(2) else { panic!() };
    assert_eq!(result.flavors, [Security::Sys]);
    let answer = world.next(&mut session, &[ROOT, ask(SecinfoStyle::Current), GETFH]);
    assert_eq!(answer.status(), Status::NoFileHandle);
    let answer = world.next(&mut session, &[ROOT, ask(SecinfoStyle::Parent)]);
    assert_eq!(answer.status(), Status::NoEnt);
    let named = |name| Op::Secinfo(SecinfoArgs { name });
    for (name, status) in [
        (&b""[..], Status::Inval),
        (b"..", Status::BadName),
        (b"a/b", Status::BadName),
        (b"none", Status::NoEnt),
    ] {
        assert_eq!(world.next(&mut session, &[ROOT, named(name)]).status(), status);
    }
}

#[test]
fn state_ids_are_tested_and_freed() {
    let (mut world, mut session) = World::with_client();
    let unknown = Stateid { seqid: 1, other: [5; 12] };
    let stateids = vec![Stateid::ANONYMOUS, Stateid::READ_BYPASS, Stateid::CURRENT, unknown];
    let answer = world.next(&mut session, &[Op::TestStateid(TestStateidArgs { stateids })]);
    let ResultBody::TestStateid(result) = answer.body(1) else { panic!() };
    assert_eq!(result.statuses, [Status::BadStateId; 4]);
    for stateid in [Stateid::ANONYMOUS, Stateid::CURRENT, unknown] {
        let free = Op::FreeStateid(FreeStateidArgs { stateid });
        assert_eq!(world.next(&mut session, &[free]).status(), Status::BadStateId);
    }
}
