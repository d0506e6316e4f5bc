//! LOCK, LOCKT, LOCKU.

use super::helper::*;
use dafs_wire::nfs4::*;

fn lock(owner: &[u8], open: Stateid, kind: LockType, offset: u64, length: u64) -> Op<'_> {
    let owner = StateOwner { client_id: 0, owner };
    let locker = Locker::New { open_seqid: 0, open, lock_seqid: 0, owner };
    Op::Lock(LockArgs { kind, reclaim: false, offset, length, locker })
}

fn lockt(owner: &[u8], offset: u64, length: u64) -> Op<'_> {
    let owner = StateOwner { client_id: 0, owner };
    Op::Lockt(LocktArgs { kind: LockType::Write, offset, length, owner })
}

fn locku(stateid: Stateid, offset: u64, length: u64) -> Op<'static> {
    Op::Locku(LockuArgs { kind: LockType::Write, seqid: 0, stateid, offset, length })
}

#[test]
fn locks_keep_owners_apart() {
    let (mut client, fh, open) = Client::with_file(1);
    let ops = [putfh(&fh), lock(b"one", open, LockType::Write, 10, 20)];
    let answer = client.send(&ops);
    let ResultBody::Lock(locked) = answer.body(2) else { panic!() };
    assert_eq!(locked.stateid.seqid, 1);
    for op in [
        lock(b"two", open, LockType::Read, 0, u64::MAX),
        lock(b"two", open, LockType::WriteWait, 29, 1),
        lockt(b"two", 0, 11),
    ] {
        let answer = client.send(&[putfh(&fh), op.clone()]);
        assert_eq!(answer.status(), Status::Denied, "{op:?}");
        let ResultBody::Denied(denied) = answer.results().pop().unwrap().body else { panic!() };
        assert_eq!((denied.offset, denied.length), (10, 20));
        assert_eq!(denied.owner.owner, b"one");
        assert_eq!(denied.kind, LockType::Write);
    }
    assert_eq!(client.send(&[putfh(&fh), lockt(b"one", 0, 11)]).status(), Status::Ok);
    assert_eq!(client.send(&[putfh(&fh), lockt(b"two", 0, 10)]).status(), Status::Ok);
    let answer = client.send(&[putfh(&fh), locku(locked.stateid, 0, u64::MAX)]);
    let ResultBody::Locku(unlocked) = answer.body(2) else { panic!() };
    assert_eq!(unlocked.stateid, Stateid { seqid: 2, ..locked.stateid });
    assert_eq!(client.send(&[putfh(&fh), lockt(b"two", 0, u64::MAX)]).status(), Status::Ok);
}

#[test]
fn locks_and_the_current_stateid_go_together() {
    let (mut client, fh, open) = Client::with_file(1);
    let current = Stateid::CURRENT;
    let ops = [
        putfh(&fh),
        lock(b"one", open, LockType::Write, 0, u64::MAX),
        write(current, 5, b"data"),
        locku(current, 0, u64::MAX),
        close(open),
    ];
    let answer = client.send(&ops);
    assert_eq!(answer.status(), Status::Ok, "{:?}", answer.results());
}

#[test]
fn ranges_and_files_that_cannot_be_locked() {
    let (mut client, fh, open) = Client::with_file(1);
    for (offset, length) in [(0, 0), (u64::MAX, 2), (2, u64::MAX - 1)] {
        let op = lock(b"one", open, LockType::Write, offset, length);
        assert_eq!(client.send(&[putfh(&fh), op]).status(), Status::Inval, "{offset} {length}");
        let op = lockt(b"one", offset, length);
        assert_eq!(client.send(&[putfh(&fh), op]).status(), Status::Inval, "{offset} {length}");
    }
    assert_eq!(client.status(&[lockt(b"one", 0, 1)]), Status::IsDir);
    let op = lock(b"one", Stateid::ANONYMOUS, LockType::Write, 0, 1);
    assert_eq!(client.send(&[putfh(&fh), op]).status(), Status::BadStateId);
}
