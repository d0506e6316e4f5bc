//! Restarts of the server: clients of NFSv4 reclaim their state, and no other client gets it before
//! (RFC 8881 8.4.2).

use super::harness::{Served, existing, open_wanting, refused};
use dafs_client::{Create as DafsCreate, OpenOptions as DafsOptions};
use dafs_nfs_client::{Handle, LockRange, Locked, Options, Session, connect, patiently};
use dafs_wire::nfs4::{
    DENY_NONE, DENY_WRITE, DelegationType, LockType, Locker, ShareAccess, StateOwner, Status, Want,
};
use std::time::Duration;

const NAME: &[u8] = b"kept";
const RANGE: LockRange = LockRange { kind: LockType::Write, offset: 10, length: 10 };

/// Starts a server whose grace period is longer than any test.
fn served() -> Served {
    Served::with(|config| config.nfs.grace_time = Some(Duration::from_secs(600)))
}

/// Opens the session of a client from the earlier run that will reclaim.
fn return_of(served: &Served, owner: &[u8]) -> Session {
    let options = Options { reclaim_complete: false, ..Options::new(owner) };
    connect(served.nfs, &options).unwrap()
}

/// Makes a client hold an open that denies writing, and a lock.
fn hold(served: &Served, owner: &[u8]) -> Handle {
    let (session, root) = served.v4(owner);
    let made = session.create(&root, NAME).unwrap();
    session.close(&made).unwrap();
    let file = session.open(&root, NAME, &existing(ShareAccess::BOTH, DENY_WRITE)).unwrap();
    let lock = session.lock(&file, b"lock owner", RANGE).unwrap();
    assert!(matches!(lock, Locked::Held(_)));
    file.handle
}

#[test]
fn a_client_takes_back_its_opens_and_locks() {
    let mut served = served();
    let handle = hold(&served, b"holder");
    served.restart();
    let (other, root) = served.v4(b"other");
    let open = || other.open(&root, NAME, &existing(ShareAccess::WRITE, DENY_NONE));
    assert_eq!(refused(open()), Status::Grace);
    let session = return_of(&served, b"holder");
    let options = existing(ShareAccess::BOTH, DENY_WRITE);
    let file = session.reclaim_open(&handle, DelegationType::None, &options).unwrap();
    assert_eq!(file.handle, handle);
    let locker = Locker::New {
        open_seqid: 0,
        open: file.stateid,
        lock_seqid: 0,
        owner: StateOwner { client_id: 0, owner: b"lock owner" },
    };
    let lock = session.lock_with(&handle, locker, RANGE, true).unwrap();
    assert!(matches!(lock, Locked::Held(_)));
    // New state has to wait, also for the client that reclaims.
    assert_eq!(refused(session.create(&root, b"new")), Status::Grace);
    // The server waits for no other client, so the end of these reclaims ends grace.
    session.reclaim_complete().unwrap();
    assert_eq!(refused(open()), Status::ShareDenied);
    let late = session.reclaim_open(&handle, DelegationType::None, &options);
    assert_eq!(refused(late), Status::NoGrace);
    assert_eq!(refused(session.reclaim_complete()), Status::CompleteAlready);
    let reader = other.open(&root, NAME, &existing(ShareAccess::READ, DENY_NONE)).unwrap();
    let test = other.lock_test(&reader.handle, b"other", LockRange { offset: 0, ..RANGE });
    assert_eq!(test.unwrap(), None);
    assert!(other.lock_test(&reader.handle, b"other", RANGE).unwrap().is_some());
}

#[test]
fn a_delegation_is_reclaimed() {
    let mut served = served();
    let (session, root) = served.v4(b"holder");
    let file = open_wanting(&session, &root, NAME, ShareAccess::BOTH, Want::Write);
    assert!(file.delegation.is_some());
    served.restart();
    let session = return_of(&served, b"holder");
    let options = existing(ShareAccess::BOTH, DENY_NONE);
    let again = session.reclaim_open(&file.handle, DelegationType::Write, &options).unwrap();
    assert_eq!(again.delegation.map(|given| given.kind), Some(DelegationType::Write));
    session.reclaim_complete().unwrap();
}

#[test]
fn without_former_clients_there_is_no_grace() {
    let mut served = served();
    let dafs = served.dafs();
    let options = DafsOptions::read_write().create(DafsCreate::New).mode(0o666);
    dafs.open(NAME, &options).unwrap().close().unwrap();
    drop(dafs);
    served.restart();
    let (session, root) = served.v4(b"new");
    session.open(&root, NAME, &existing(ShareAccess::BOTH, DENY_NONE)).unwrap();
    let nothing = session.reclaim_open(
        &session.lookup(&root, NAME).unwrap(),
        DelegationType::None,
        &existing(ShareAccess::READ, DENY_NONE),
    );
    assert_eq!(refused(nothing), Status::NoGrace);
}

#[test]
fn a_stranger_cannot_reclaim() {
    let mut served = served();
    let handle = hold(&served, b"holder");
    served.restart();
    let stranger = return_of(&served, b"stranger");
    let options = existing(ShareAccess::READ, DENY_NONE);
    let taken = stranger.reclaim_open(&handle, DelegationType::None, &options);
    let status = refused(taken);
    assert!(matches!(status, Status::NoGrace | Status::ReclaimBad), "{status:?}");
}

#[test]
fn a_client_that_does_not_return_loses_its_state() {
    let mut served = Served::with(|config| config.nfs.grace_time = Some(Duration::from_secs(2)));
    let handle = hold(&served, b"holder");
    served.restart();
    let (other, root) = served.v4(b"other");
    let both = existing(ShareAccess::BOTH, DENY_NONE);
    let open = patiently(|| other.open(&root, NAME, &both)).unwrap();
    other.close(&open).unwrap();
    let late = return_of(&served, b"holder");
    let taken = late.reclaim_open(&handle, DelegationType::None, &both);
    assert_eq!(refused(taken), Status::NoGrace);
}

#[test]
fn dafs_waits_until_nfs_clients_have_reclaimed() {
    let mut served = served();
    let handle = hold(&served, b"holder");
    served.restart();
    let dafs = served.dafs();
    std::thread::scope(|scope| {
        let opening = scope.spawn(|| dafs.open(NAME, &DafsOptions::write()).map(|_| ()));
        let session = return_of(&served, b"holder");
        let options = existing(ShareAccess::BOTH, DENY_WRITE);
        session.reclaim_open(&handle, DelegationType::None, &options).unwrap();
        session.reclaim_complete().unwrap();
        // Delayed during grace, and denied after it.
        let status = opening.join().unwrap().unwrap_err().status();
        assert_eq!(status, Some(dafs_client::Status::Denied));
        // The session is alive to the end.
        session.renew().unwrap();
    });
}

#[test]
fn old_sessions_and_state_ids_are_unknown_after_a_restart() {
    let mut served = served();
    let (session, root) = served.v4(b"holder");
    let file = session.create(&root, NAME).unwrap();
    served.restart();
    let again = return_of(&served, b"holder");
    let read = again.read(&file.handle, file.stateid, 0, 1);
    let status = refused(read);
    assert!(matches!(status, Status::StaleStateId | Status::BadStateId), "{status:?}");
    session.replace_connections(again.connection());
    assert_eq!(refused(session.renew()), Status::BadSession);
}
