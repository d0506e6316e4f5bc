//! Byte-range locks between NFSv4 clients, and the effects of closes, restarts and other front
//! ends.

use super::harness::{Event, Served, existing, refused};
use dafs_nfs_client::{LockRange, Locked, Options, connect};
use dafs_testkit::eventually;
use dafs_wire::nfs3;
use dafs_wire::nfs4::{DENY_NONE, LockType, ShareAccess, Stateid, Status};

const NAME: &[u8] = b"locked";

fn range(kind: LockType, offset: u64, length: u64) -> LockRange {
    LockRange { kind, offset, length }
}

fn held(locked: Locked) -> Stateid {
    match locked {
        Locked::Held(stateid) => stateid,
        Locked::Denied { .. } => panic!("{locked:?}"),
    }
}

#[test]
fn locks_of_one_client_are_in_the_way_of_another() {
    let served = Served::new();
    let (a, root) = served.v4(b"a");
    let (b, _) = served.v4(b"b");
    let file_a = a.create(&root, NAME).unwrap();
    let file_b = b.create(&root, NAME).unwrap();
    let lock = held(a.lock(&file_a, b"owner a", range(LockType::Write, 100, 100)).unwrap());
    let wanted = Locked::Denied {
        offset: 100,
        length: 100,
        kind: LockType::Write,
        owner: b"owner a".to_vec(),
    };
    let mine = range(LockType::Read, 150, 10);
    assert_eq!(b.lock(&file_b, b"owner b", mine).unwrap(), wanted);
    assert_eq!(b.lock_test(&file_b.handle, b"owner b", mine).unwrap(), Some(wanted));
    // Split in the middle: the other client can lock the hole, but not the ends.
    let lock = a.unlock(&file_a.handle, lock, range(LockType::Write, 140, 20)).unwrap();
    let other = held(b.lock(&file_b, b"owner b", range(LockType::Write, 140, 20)).unwrap());
    for offset in [139, 160] {
        let end = range(LockType::Read, offset, 1);
        let denied = b.lock_more(&file_b.handle, other, end).unwrap();
        assert!(matches!(denied, Locked::Denied { .. }), "{offset}");
    }
    // A close releases the locks (RFC 8881 18.2.3: the server may do so).
    a.unlock(&file_a.handle, lock, range(LockType::Write, 0, u64::MAX)).unwrap();
    assert_eq!(
        a.lock_test(&file_a.handle, b"owner a", range(LockType::Read, 0, 139)).unwrap(),
        None
    );
    b.unlock(&file_b.handle, other, range(LockType::Write, 0, u64::MAX)).unwrap();
    a.close(&file_a).unwrap();
    b.close(&file_b).unwrap();
}

#[test]
fn readers_share_and_a_waiting_writer_is_told() {
    let served = Served::new();
    let (a, root) = served.v4(b"a");
    let (b, _, heard) = served.v4_listening(b"b");
    let file_a = a.create(&root, NAME).unwrap();
    let file_b = b.create(&root, NAME).unwrap();
    let lock_a = held(a.lock(&file_a, b"a", range(LockType::Read, 0, 10)).unwrap());
    let lock_b = held(b.lock(&file_b, b"b", range(LockType::Read, 0, 10)).unwrap());
    let upgrade = b.lock_more(&file_b.handle, lock_b, range(LockType::WriteWait, 0, 10)).unwrap();
    assert!(matches!(upgrade, Locked::Denied { .. }));
    a.unlock(&file_a.handle, lock_a, range(LockType::Read, 0, 10)).unwrap();
    assert_eq!(heard.next(), Event::LockFree(b"b".to_vec()));
    held(b.lock_more(&file_b.handle, lock_b, range(LockType::WriteWait, 0, 10)).unwrap());
}

#[test]
fn state_ids_of_locks_are_checked() {
    let served = Served::new();
    let (a, root) = served.v4(b"a");
    let (b, _) = served.v4(b"b");
    let file = a.create(&root, NAME).unwrap();
    let lock = held(a.lock(&file, b"owner", range(LockType::Write, 0, 10)).unwrap());
    let more = held(a.lock_more(&file.handle, lock, range(LockType::Write, 20, 10)).unwrap());
    assert_eq!(more.seqid, lock.seqid + 1);
    let old = a.lock_more(&file.handle, lock, range(LockType::Write, 40, 10));
    assert_eq!(refused(old), Status::OldStateId);
    let future = Stateid { seqid: more.seqid + 5, ..more };
    assert_eq!(
        refused(a.unlock(&file.handle, future, range(LockType::Write, 0, 1))),
        Status::BadStateId
    );
    // Another client cannot use it.
    assert_eq!(
        refused(b.unlock(&file.handle, more, range(LockType::Write, 0, 1))),
        Status::BadStateId
    );
    assert_eq!(refused(a.free_stateid(more)), Status::LocksHeld);
    let free = a.unlock(&file.handle, more, range(LockType::Write, 0, u64::MAX)).unwrap();
    a.free_stateid(free).unwrap();
    assert_eq!(
        a.test_stateids(vec![free, file.stateid]).unwrap(),
        [Status::BadStateId, Status::Ok]
    );
}

#[test]
fn locks_end_with_their_client() {
    let served = Served::new();
    let (a, root) = served.v4(b"a");
    let (b, _) = served.v4(b"b");
    let file_a = a.create(&root, NAME).unwrap();
    held(a.lock(&file_a, b"a", range(LockType::Write, 0, 10)).unwrap());
    let file_b = b.create(&root, NAME).unwrap();
    let wanted = range(LockType::Write, 5, 1);
    assert!(b.lock_test(&file_b.handle, b"b", wanted).unwrap().is_some());
    // The first client restarts: it has another verifier, and its state is gone.
    let options = Options { verifier: *b"restart!", ..Options::new(b"a") };
    let again = connect(served.nfs, &options).unwrap();
    again.renew().unwrap();
    eventually("the lock went", || b.lock_test(&file_b.handle, b"b", wanted).unwrap().is_none());
    held(b.lock(&file_b, b"b", wanted).unwrap());
}

#[test]
fn locks_do_not_stop_other_front_doors_from_reading_and_writing() {
    let served = Served::new();
    let (session, root) = served.v4(b"advisory");
    let file = session.create(&root, NAME).unwrap();
    held(session.lock(&file, b"owner", range(LockType::Write, 0, u64::MAX)).unwrap());
    let (v3, root3) = served.v3();
    let handle = v3.lookup(&root3, NAME).unwrap();
    v3.write(&handle, 0, b"advisory", nfs3::Stability::FileSync).unwrap();
    let dafs = served.dafs();
    let other = dafs.open(NAME, &dafs_client::OpenOptions::read_write()).unwrap();
    let mut read = [0; 8];
    assert_eq!(other.read_at(&mut read, 0).unwrap(), 8);
    assert_eq!(&read, b"advisory");
    let (second, _) = served.v4(b"second");
    second.open(&root, NAME, &existing(ShareAccess::BOTH, DENY_NONE)).unwrap();
}
