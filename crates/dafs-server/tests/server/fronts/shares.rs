//! Share reservations: a deny mode of one front end applies to the others.

use super::harness::{Served, existing, refused};
use dafs_client::{Create, OpenOptions, ShareDeny, Stability as DafsStability};
use dafs_nfs_client::{Handle, Options, Session, connect};
use dafs_testkit::eventually;
use dafs_wire::nfs3::{Stability, Status as Status3};
use dafs_wire::nfs4::{
    DENY_BOTH, DENY_NONE, DENY_READ, DENY_WRITE, ShareAccess, StableHow, Stateid, Status,
};
use std::time::Duration;

const NAME: &[u8] = b"shared";

fn dafs_create() -> OpenOptions {
    OpenOptions::read_write().create(Create::IfMissing).mode(0o666)
}

#[test]
fn a_deny_mode_of_dafs_holds_for_nfs4() {
    let served = Served::new();
    let dafs = served.dafs();
    let file = dafs.open(NAME, &dafs_create().deny(ShareDeny::Write)).unwrap();
    let (session, root) = served.v4(b"shares");
    for access in [ShareAccess::WRITE, ShareAccess::BOTH] {
        let opened = session.open(&root, NAME, &existing(access, DENY_NONE));
        assert_eq!(refused(opened), Status::ShareDenied);
    }
    // The reverse of the same rule: the DAFS open writes, so no other open may deny writing.
    for deny in [DENY_WRITE, DENY_READ, DENY_BOTH] {
        let opened = session.open(&root, NAME, &existing(ShareAccess::READ, deny));
        assert_eq!(refused(opened), Status::ShareDenied);
    }
    let reader = session.open(&root, NAME, &existing(ShareAccess::READ, DENY_NONE)).unwrap();
    session.close(&reader).unwrap();
    file.close().unwrap();
    let writer = session.open(&root, NAME, &existing(ShareAccess::WRITE, DENY_NONE)).unwrap();
    session.close(&writer).unwrap();
}

#[test]
fn a_deny_mode_of_nfs4_holds_for_dafs() {
    let served = Served::new();
    let dafs = served.dafs();
    dafs.open(NAME, &dafs_create()).unwrap().close().unwrap();
    let (session, root) = served.v4(b"shares");
    let open = session.open(&root, NAME, &existing(ShareAccess::READ, DENY_WRITE)).unwrap();
    let write = dafs.open(NAME, &OpenOptions::read_write()).unwrap_err();
    // DAFS has one status for all denials of another holder.
    assert_eq!(write.status(), Some(dafs_client::Status::Denied));
    dafs.open(NAME, &OpenOptions::read()).unwrap().close().unwrap();
    session.close(&open).unwrap();
    dafs.open(NAME, &OpenOptions::read_write()).unwrap().close().unwrap();
}

#[test]
fn downgrades_let_others_in() {
    let served = Served::new();
    let dafs = served.dafs();
    dafs.open(NAME, &dafs_create()).unwrap().close().unwrap();
    let (session, root) = served.v4(b"shares");
    let first = session.open(&root, NAME, &existing(ShareAccess::READ, DENY_NONE)).unwrap();
    let second = session.open(&root, NAME, &existing(ShareAccess::BOTH, DENY_WRITE)).unwrap();
    assert_eq!(first.stateid.other, second.stateid.other);
    assert!(second.stateid.seqid > first.stateid.seqid);
    assert!(dafs.open(NAME, &OpenOptions::write()).is_err());
    let now = session.downgrade(&second, ShareAccess::READ, DENY_NONE).unwrap();
    assert!(now.seqid > second.stateid.seqid);
    dafs.open(NAME, &OpenOptions::write()).unwrap().close().unwrap();
    // A write through the downgraded open is refused.
    let write = session.write(&second.handle, now, 0, b"x", StableHow::Unstable);
    assert_eq!(refused(write), Status::OpenMode);
}

#[test]
fn deny_modes_hold_for_nfs3_and_anonymous_io() {
    let served = Served::new();
    let dafs = served.dafs();
    let file = dafs.open(NAME, &dafs_create().deny(ShareDeny::Both)).unwrap();
    file.write_at(b"data", 0, DafsStability::Unstable).unwrap();
    let (v3, root) = served.v3();
    let handle = v3.lookup(&root, NAME).unwrap();
    let denied = |status: Option<Status3>| {
        assert!(
            matches!(status, Some(Status3::Acces | Status3::Jukebox)),
            "{status:?} instead of a denial"
        );
    };
    denied(v3.read(&handle, 0, 10).unwrap_err().status3());
    denied(v3.write(&handle, 0, b"x", Stability::FileSync).unwrap_err().status3());
    let (session, _) = served.v4(b"anonymous");
    let anonymous = session.read(&handle_of(&session, NAME), Stateid::ANONYMOUS, 0, 10);
    let status = refused(anonymous);
    assert!(matches!(status, Status::Locked | Status::ShareDenied), "{status:?}");
    file.close().unwrap();
    assert_eq!(v3.read(&handle, 0, 10).unwrap().0, b"data");
    v3.write(&handle, 0, b"DA", Stability::FileSync).unwrap();
    let read = session.read(&handle_of(&session, NAME), Stateid::ANONYMOUS, 0, 10).unwrap();
    assert_eq!(read, (b"DAta".to_vec(), true));
}

fn handle_of(session: &Session, name: &[u8]) -> Handle {
    session.lookup(&session.root().unwrap(), name).unwrap()
}

#[test]
fn opens_of_a_dafs_client_that_left_deny_others_until_its_lease_is_over() {
    let served = Served::with(|config| config.lease_time = Duration::from_secs(2));
    let dafs = served.dafs();
    let file = dafs.open(NAME, &dafs_create().deny(ShareDeny::Both)).unwrap();
    let (session, root) = served.v4(b"shares");
    let both = existing(ShareAccess::BOTH, DENY_BOTH);
    assert_eq!(refused(session.open(&root, NAME, &both)), Status::ShareDenied);
    dafs.disconnect().unwrap();
    drop(file);
    eventually("the lease ended", || session.open(&root, NAME, &both).is_ok());
}

#[test]
fn opens_of_an_nfs4_client_that_restarts_deny_nobody() {
    let served = Served::new();
    let dafs = served.dafs();
    dafs.open(NAME, &dafs_create()).unwrap().close().unwrap();
    let (session, root) = served.v4(b"phoenix");
    session.open(&root, NAME, &existing(ShareAccess::BOTH, DENY_BOTH)).unwrap();
    assert!(dafs.open(NAME, &OpenOptions::read()).is_err());
    let options = Options { verifier: *b"restart!", ..Options::new(b"phoenix") };
    connect(served.nfs, &options).unwrap();
    eventually("the opens went", || dafs.open(NAME, &OpenOptions::read()).is_ok());
}
