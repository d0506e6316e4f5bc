//! Ranges in NFSv4.2: SEEK, ALLOCATE, DEALLOCATE, READ_PLUS, COPY, CLONE, IO_ADVISE.

use super::helper::*;
use crate::common::{CLOCK_NS, LEASE_SECONDS, SECOND, back_op};
use dafs_nfs::limits::COPY_SLICE_BYTES;
use dafs_wire::nfs4::*;

fn copy<'a>(source: Stateid, target: Stateid, range: (u64, u64, u64), synchronous: bool) -> Op<'a> {
    let (source_offset, destination_offset, count) = range;
    Op::Copy(CopyArgs {
        source_stateid: source,
        destination_stateid: target,
        source_offset,
        destination_offset,
        count,
        consecutive: true,
        synchronous,
        source_servers: Vec::new(),
    })
}

pub(super) fn io_advise(stateid: Stateid, range: (u64, u64), hints: Bitmap) -> Op<'static> {
    let (offset, count) = range;
    Op::IoAdvise(IoAdviseArgs { stateid, offset, count, hints })
}

#[test]
fn read_plus_gives_all_in_order() {
    let (mut client, fh, stateid) = Client::with_file(2);
    client.send(&[putfh(&fh), write(stateid, 70_000, b"end")]);
    let plus = |offset, count| Op::ReadPlus(ReadPlusArgs { stateid, offset, count });
    for (offset, count, ends, eof) in
        [(0, 1 << 20, 70_003, true), (60_000, 10_001, 70_001, false), (70_003, 5, 70_003, true)]
    {
        let answer = client.send(&[putfh(&fh), plus(offset, count)]);
        let ResultBody::ReadPlus(result) = answer.body(2) else { panic!() };
        assert_eq!(result.eof, eof);
        let mut at = offset;
        for piece in &result.contents {
            match *piece {
                ReadPlusContent::Data { offset, data } => {
                    assert_eq!(offset, at);
                    at += data.len() as u64;
                }
                ReadPlusContent::Hole { offset, length } => {
                    assert_eq!(offset, at);
                    assert!(length > 0 && offset + length <= 70_000);
                    at += length;
                }
            }
        }
        assert_eq!(at, ends);
    }
}

#[test]
fn space_is_sought_set_aside_and_given_back() {
    let (mut client, fh, stateid) = Client::with_file(2);
    let allocate = |offset, length| Op::Allocate(AllocateArgs { stateid, offset, length });
    let deallocate = |offset, length| Op::Deallocate(DeallocateArgs { stateid, offset, length });
    let seek = |offset, what| Op::Seek(SeekArgs { stateid, offset, what });
    let answer = client.send(&[putfh(&fh), allocate(0, 100), getattr(&[Attr::Size])]);
    assert_eq!(attributes(&answer, 3).size, Some(100));
    client.send(&[putfh(&fh), write(stateid, 0, &[7; 100])]);
    assert_eq!(client.send(&[putfh(&fh), deallocate(10, 20)]).status(), Status::Ok);
    let answer = client.send(&[putfh(&fh), read(stateid, 9, 3)]);
    let ResultBody::Read(result) = answer.body(2) else { panic!() };
    assert_eq!(result.data.here().unwrap(), [7, 0, 0]);
    let answer = client.send(&[putfh(&fh), seek(0, SeekWhat::Data)]);
    let ResultBody::Seek(found) = answer.body(2) else { panic!() };
    assert_eq!((found.eof, found.offset), (false, 0));
    let answer = client.send(&[putfh(&fh), seek(99, SeekWhat::Hole)]);
    let ResultBody::Seek(found) = answer.body(2) else { panic!() };
    assert_eq!((found.eof, found.offset), (true, 100));
    for (op, status) in [
        (seek(100, SeekWhat::Data), Status::Nxio),
        (seek(0, SeekWhat::Other(5)), Status::UnionNotSupp),
        (allocate(0, 0), Status::Inval),
        (allocate(u64::MAX, 2), Status::Inval),
        (deallocate(u64::MAX, 2), Status::Inval),
    ] {
        assert_eq!(client.send(&[putfh(&fh), op.clone()]).status(), status, "{op:?}");
    }
    let other = open_by(b"other", OpenClaim::Null(b"f"), 1, DENY_NONE, OpenHow::NoCreate);
    let answer = client.at_root(&[other]);
    let ResultBody::Open(opened) = answer.body(2) else { panic!() };
    let op = Op::Allocate(AllocateArgs { stateid: opened.stateid, offset: 0, length: 1 });
    assert_eq!(client.send(&[putfh(&fh), op]).status(), Status::OpenMode);
}

#[test]
fn ranges_are_copied_and_cloned() {
    let mut client = Client::new(2);
    let (source, from) = client.file(b"a");
    let (target, to) = client.file(b"b");
    client.send(&[putfh(&source), write(from, 0, b"write test data")]);
    // A count of zero means all of the rest.
    let both = |op| [putfh(&source), savefh(), putfh(&target), op];
    let answer = client.send(&both(copy(from, to, (6, 2, 0), true)));
    let ResultBody::Copy(copied) = answer.body(4) else { panic!("{:?}", answer.results()) };
    assert_eq!((copied.response.count, copied.response.callback_id), (9, None));
    assert!(copied.requirements.synchronous);
    let answer = client.send(&[putfh(&target), read(to, 0, 99)]);
    let ResultBody::Read(result) = answer.body(2) else { panic!() };
    assert_eq!(result.data.here().unwrap(), b"\0\0test data");
    let clone = Op::Clone(CloneArgs {
        source_stateid: from,
        destination_stateid: to,
        source_offset: 0,
        destination_offset: 0,
        count: 0,
    });
    assert_eq!(client.send(&both(clone)).status(), Status::Ok);
    let answer = client.send(&[putfh(&target), read(to, 0, 99)]);
    let ResultBody::Read(result) = answer.body(2) else { panic!() };
    assert_eq!(result.data.here().unwrap(), b"write test data");
    for (range, status) in [
        ((16, 0, 0), Status::Inval),
        ((0, 0, 16), Status::Inval),
        ((0, u64::MAX, 2), Status::Inval),
    ] {
        let answer = client.send(&both(copy(from, to, range, true)));
        assert_eq!(answer.status(), status, "{range:?}");
    }
    let same = [putfh(&source), savefh(), copy(from, from, (0, 3, 5), true)];
    assert_eq!(client.send(&same).status(), Status::Inval);
    let missing = [putfh(&target), copy(from, to, (0, 0, 0), true)];
    assert_eq!(client.send(&missing).status(), Status::NoFileHandle);
}

/// Each slice is a job of its own, so other jobs run between them.
#[test]
fn a_copy_before_its_reply_is_made_in_turns() {
    const SIZE: u64 = 2 * COPY_SLICE_BYTES + 5;
    let mut client = Client::new(2);
    let (source, from) = client.file(b"a");
    let (target, to) = client.file(b"b");
    client.send(&[putfh(&source), write(from, SIZE - 3, b"end")]);
    client.world.pool.take_lanes();
    let ops = [putfh(&source), savefh(), putfh(&target), copy(from, to, (0, 0, 0), true)];
    let answer = client.send(&[&ops[..], &[getattr(&[Attr::Size])]].concat());
    let ResultBody::Copy(copied) = answer.body(4) else { panic!("{:?}", answer.results()) };
    assert_eq!((copied.response.count, copied.response.callback_id), (SIZE, None));
    assert_eq!(attributes(&answer, 5).size, Some(SIZE));
    assert_eq!(client.world.pool.take_lanes(), [0; 3]);
    let answer = client.send(&[putfh(&target), read(to, SIZE - 4, 9)]);
    let ResultBody::Read(result) = answer.body(2) else { panic!() };
    assert_eq!(result.data.here().unwrap(), b"\0end");
}

#[test]
fn a_long_copy_goes_on_behind_its_reply() {
    const SIZE: u64 = (64 << 20) + 5;
    let mut client = Client::new(2);
    let (source, from) = client.file(b"a");
    let (target, to) = client.file(b"b");
    client.send(&[putfh(&source), write(from, SIZE - 3, b"end")]);
    let ops = [putfh(&source), savefh(), putfh(&target), copy(from, to, (0, 0, 0), false)];
    let answer = client.send(&ops);
    let ResultBody::Copy(copied) = answer.body(4) else { panic!("{:?}", answer.results()) };
    let stateid = copied.response.callback_id.unwrap();
    assert!(!copied.requirements.synchronous);
    let status = || Op::OffloadStatus(OffloadStatusArgs { stateid });
    let answer = client.send(&[putfh(&target), status()]);
    let ResultBody::OffloadStatus(told) = answer.body(2) else { panic!() };
    assert_eq!((told.count, told.complete), (0, None));
    while client.world.pool.run() > 0 {}
    client.world.collect();
    let answer = client.send(&[putfh(&target), status(), getattr(&[Attr::Size])]);
    let ResultBody::OffloadStatus(told) = answer.body(2) else { panic!() };
    assert_eq!((told.count, told.complete), (SIZE, Some(Status::Ok)));
    assert_eq!(attributes(&answer, 3).size, Some(SIZE));
    let (_, call) = client.world.back_calls.pop().expect("the client is told");
    let CbOp::Offload(offload) = back_op(&call) else { panic!() };
    assert_eq!(offload.stateid, stateid);
    // Another copy is cancelled.
    let answer = client.send(&ops);
    let ResultBody::Copy(copied) = answer.body(4) else { panic!() };
    let stateid = copied.response.callback_id.unwrap();
    let cancel = || Op::OffloadCancel(OffloadCancelArgs { stateid });
    assert_eq!(client.send(&[putfh(&target), cancel()]).status(), Status::Ok);
    while client.world.pool.run() > 0 {}
    assert_eq!(client.send(&[putfh(&target), cancel()]).status(), Status::BadStateId);
}

#[test]
fn a_holder_recalled_by_a_long_copy_has_a_lease_from_then_on() {
    let mut client = Client::new(2);
    let (_, own) = client.file(b"a");
    let (target, to) = client.file(b"b");
    let source = handle(&client.at_root(&[lookup(b"a"), getfh()]), 3);
    client.send(&[putfh(&source), write(own, 64 << 20, b"end"), close(own)]);
    let mut other = session(&mut client.world, b"other");
    let opened = [Op::Putrootfh(PutrootfhArgs), open(b"c", ShareAccess::BOTH, unchecked(NOTHING))];
    assert_eq!(client.world.next(&mut other, &opened).status(), Status::Ok);
    let from = Stateid::ANONYMOUS;
    let ops = [putfh(&source), savefh(), putfh(&target), copy(from, to, (0, 0, 0), false)];
    let answer = client.send(&ops);
    let ResultBody::Copy(copied) = answer.body(4) else { panic!("{:?}", answer.results()) };
    assert!(!copied.requirements.synchronous);
    // Meanwhile another client gets a write delegation, and more than a lease passes.
    let access = ShareAccess::BOTH | Want::Write.number();
    let writes = [Op::Putrootfh(PutrootfhArgs), open(b"a", access, OpenHow::NoCreate)];
    let answer = client.world.next(&mut other, &writes);
    let ResultBody::Open(opened) = answer.body(2) else { panic!("{:?}", answer.results()) };
    let OpenDelegation::Write(given) = opened.delegation else { panic!("{opened:?}") };
    let alive = [Op::Putrootfh(PutrootfhArgs)];
    for _ in 0..2 {
        client.world.now_ns += LEASE_SECONDS * SECOND * 3 / 4;
        assert_eq!(client.world.next(&mut other, &alive).status(), Status::Ok);
        assert_eq!(client.send(&alive).status(), Status::Ok);
    }
    assert!(client.world.back_calls.is_empty(), "the copy has not gone on yet");
    CLOCK_NS.set(client.world.now_ns);
    while client.world.pool.run() > 0 {}
    client.world.collect();
    let recall = client.world.back_calls.iter().find_map(|(_, call)| match back_op(call) {
        CbOp::Recall(recall) => Some(recall.stateid),
        _ => None,
    });
    assert_eq!(recall, Some(given.stateid));
    client.world.tick(SECOND);
    let kept = [putfh(&source), write(given.stateid, 0, b"kept")];
    assert_eq!(client.world.next(&mut other, &kept).status(), Status::Ok);
}

#[test]
fn advice_about_content_in_memory_is_not_followed() {
    let (mut client, fh, stateid) = Client::with_file(2);
    let all: Vec<u32> = (0..11).collect();
    let op = io_advise(stateid, (0, 0), Bitmap::of(&all));
    let answer = client.send(&[putfh(&fh), op]);
    let ResultBody::IoAdvise(result) = answer.body(2) else { panic!() };
    assert_eq!(result.hints, Bitmap::EMPTY);
    // A wrong state-id is one whatever the hints.
    for hints in [Bitmap::EMPTY, Bitmap::of(&all)] {
        let wrong = Stateid { other: [9; 12], ..stateid };
        let answer = client.send(&[putfh(&fh), io_advise(wrong, (0, 0), hints)]);
        assert_eq!(answer.status(), Status::BadStateId);
    }
}
