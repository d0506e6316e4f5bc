//! Requests that are sent twice, over different connections: executed once, with equal answers.

use super::harness::{Served, existing};
use dafs_nfs_client::{Compound, Connection, Create, Handle, Identity, Session, append_open};
use dafs_wire::nfs4::*;
use std::sync::Barrier;

fn putfh(handle: &Handle) -> Op<'_> {
    Op::Putfh(PutfhArgs { handle: &handle.0 })
}

/// Sends a compound, and retries over other connections. All answers have to be equal.
fn twice(served: &Served, session: &Session, build: impl Fn(&mut Compound)) -> Status {
    let sequence = session.take_slot(true);
    let mut compound = Compound::new(session.minor_version());
    compound.op(&Op::Sequence(sequence));
    build(&mut compound);
    let first = session.connection().compound(&compound).unwrap();
    for _ in 0..2 {
        let other = Connection::open(served.nfs, Identity::sys("retry", 0, 0, &[])).unwrap();
        // AUTH_SYS credentials that name the same user are the same principal.
        let again = other.compound(&compound).unwrap();
        assert_eq!(again.bytes(), first.bytes());
    }
    let mut results = first;
    let ResultBody::Sequence(result) = results.take(OpNum::Sequence).unwrap() else { panic!() };
    session.give_slot(&sequence, Some(&result));
    results.status()
}

#[test]
fn changes_are_made_once() {
    let served = Served::new();
    let (session, root) = served.v4(b"retries");
    let empty = Fattr::default();
    let directory = CreateType::Plain(FileType::Directory);
    let made = twice(&served, &session, |compound| {
        let create = Op::Create(CreateArgs { kind: directory, name: b"dir", attributes: empty });
        compound.op(&putfh(&root)).op(&create);
    });
    assert_eq!(made, Status::Ok);
    let renamed = twice(&served, &session, |compound| {
        compound.op(&putfh(&root)).op(&Op::Savefh(SavefhArgs)).op(&putfh(&root));
        compound.op(&Op::Rename(RenameArgs { old_name: b"dir", new_name: b"moved" }));
    });
    assert_eq!(renamed, Status::Ok);
    let removed = twice(&served, &session, |compound| {
        compound.op(&putfh(&root)).op(&Op::Remove(RemoveArgs { name: b"moved" }));
    });
    assert_eq!(removed, Status::Ok);
    // A failure is repeated, even if the operation would succeed now.
    let missing = twice(&served, &session, |compound| {
        compound.op(&putfh(&root)).op(&Op::Remove(RemoveArgs { name: b"moved" }));
    });
    assert_eq!(missing, Status::NoEnt);
}

#[test]
fn an_open_is_made_once() {
    let served = Served::new();
    let (session, root) = served.v4(b"retries");
    let mut options = existing(ShareAccess::BOTH, DENY_NONE);
    options.create = Create::Guarded(SetAttributes::default());
    let opened = twice(&served, &session, |compound| {
        compound.op(&putfh(&root));
        append_open(compound, OpenClaim::Null(b"file"), &options);
    });
    assert_eq!(opened, Status::Ok);
    options.create = Create::No;
    // The next open of the same owner is the second, as its seqid shows.
    let file = session.open(&root, b"file", &options).unwrap();
    assert_eq!(file.stateid.seqid, 2);
}

#[test]
fn writes_that_are_sent_by_many_at_a_time_are_done_once() {
    let served = Served::new();
    let (session, root) = served.v4(b"retries");
    let file = session.create(&root, b"file").unwrap();
    for round in 0..10u8 {
        let sequence = session.take_slot(true);
        let mut compound = Compound::new(session.minor_version());
        let data = [round];
        let write = WriteArgs {
            stateid: file.stateid,
            offset: u64::from(round),
            stable: StableHow::FileSync,
            data: data.as_slice().into(),
        };
        compound.op(&Op::Sequence(sequence)).op(&putfh(&file.handle)).op(&Op::Write(write));
        let before = session.stat(&file.handle).unwrap().change;
        let barrier = Barrier::new(4);
        let answers: Vec<_> = std::thread::scope(|scope| {
            let send = || {
                let identity = Identity::sys("retry", 0, 0, &[]);
                let connection = Connection::open(served.nfs, identity).unwrap();
                barrier.wait();
                connection.compound(&compound).unwrap()
            };
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(send)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        // Retries during the first execution may be delayed, and get no other error.
        let done: Vec<_> = answers.iter().filter(|one| one.status() == Status::Ok).collect();
        assert!(!done.is_empty());
        assert!(done.iter().all(|one| one.bytes() == done[0].bytes()));
        assert!(
            answers.iter().all(|one| matches!(one.status(), Status::Ok | Status::Delay)),
            "{:?}",
            answers.iter().map(dafs_nfs_client::Results::status).collect::<Vec<_>>()
        );
        let kept = session.connection().compound(&compound).unwrap();
        assert_eq!(kept.bytes(), done[0].bytes());
        assert!(session.stat(&file.handle).unwrap().change > before);
        let result = SequenceResult {
            session_id: sequence.session_id,
            sequence_id: sequence.sequence_id,
            slot_id: sequence.slot_id,
            highest_slot_id: sequence.slot_id,
            target_highest_slot_id: u32::MAX,
            status: SequenceStatus::empty(),
        };
        session.give_slot(&sequence, Some(&result));
    }
    assert_eq!(session.stat(&file.handle).unwrap().size, 10);
}
