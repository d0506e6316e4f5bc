//! Strict share keys of DAFS: NFS clients have no key, so they are excluded while one is in force.

use super::harness::{Served, existing, open_wanting, refused};
use dafs_client::{Create, OpenOptions, ShareDeny, Stability as DafsStability};
use dafs_nfs_client::{Handle, NfsError, Session, patiently};
use dafs_service::SharedKeys;
use dafs_testkit::eventually;
use dafs_wire::nfs3::{self, Stability};
use dafs_wire::nfs4::{
    AllocateArgs, CloneArgs, CopyArgs, DENY_NONE, DelegationType, Op, PutfhArgs, SavefhArgs,
    SeekWhat, SetAttributes, ShareAccess, StableHow, Stateid, Status, Want,
};
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

const NAME: &[u8] = b"keyed";
const KEY: u64 = u64::MAX;

fn options() -> OpenOptions {
    OpenOptions::read_write().create(Create::IfMissing).mode(0o666)
}

/// Makes the file that all may write: a strict key needs that right, also to read.
fn make_keyed(served: &Served) {
    let path = served.path().join("keyed");
    std::fs::write(&path, "data").unwrap();
    std::fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
}

/// Sends an operation with a saved and a current file.
fn between(session: &Session, saved: &Handle, current: &Handle, op: &Op<'_>) -> Status {
    let results = session.call(|compound| {
        compound.op(&Op::Putfh(PutfhArgs { handle: &saved.0 })).op(&Op::Savefh(SavefhArgs));
        compound.op(&Op::Putfh(PutfhArgs { handle: &current.0 })).op(op);
    });
    results.unwrap().status()
}

fn copy(session: &Session, source: &Handle, target: &Handle) -> Status {
    let copy = CopyArgs {
        source_stateid: Stateid::ANONYMOUS,
        destination_stateid: Stateid::ANONYMOUS,
        source_offset: 0,
        destination_offset: 0,
        count: 1,
        consecutive: true,
        synchronous: true,
        source_servers: Vec::new(),
    };
    between(session, source, target, &Op::Copy(copy))
}

fn clone(session: &Session, source: &Handle, target: &Handle) -> Status {
    let clone = CloneArgs {
        source_stateid: Stateid::ANONYMOUS,
        destination_stateid: Stateid::ANONYMOUS,
        source_offset: 0,
        destination_offset: 0,
        count: 0,
    };
    between(session, source, target, &Op::Clone(clone))
}

/// An NFSv4 client reaches the data of `keyed` in no way. `other` is a file without a key.
fn assert_excluded(session: &Session, root: &Handle, other: &Handle) {
    let keyed = session.lookup(root, NAME).unwrap();
    for access in [ShareAccess::READ, ShareAccess::WRITE, ShareAccess::BOTH] {
        let opened = session.open(root, NAME, &existing(access, DENY_NONE));
        assert_eq!(refused(opened), Status::ShareDenied);
        let opened = session.open_handle(&keyed, &existing(access, DENY_NONE));
        assert_eq!(refused(opened), Status::ShareDenied);
    }
    for stateid in [Stateid::ANONYMOUS, Stateid::READ_BYPASS] {
        assert_eq!(refused(session.read(&keyed, stateid, 0, 1)), Status::Locked);
        assert_eq!(refused(session.seek(&keyed, stateid, 0, SeekWhat::Data)), Status::Locked);
    }
    let write = session.write(&keyed, Stateid::ANONYMOUS, 0, b"x", StableHow::Unstable);
    assert_eq!(refused(write), Status::Locked);
    let cut = SetAttributes { size: Some(0), ..SetAttributes::default() };
    assert_eq!(refused(session.setattr(&keyed, Stateid::ANONYMOUS, &cut)), Status::Locked);
    let allocate = AllocateArgs { stateid: Stateid::ANONYMOUS, offset: 0, length: 9 };
    assert_eq!(between(session, &keyed, &keyed, &Op::Allocate(allocate)), Status::Locked);
    for (source, target) in [(&keyed, other), (other, &keyed)] {
        assert_eq!(copy(session, source, target), Status::Locked);
        assert_eq!(clone(session, source, target), Status::Locked);
    }
}

fn status3<T: std::fmt::Debug>(result: Result<T, NfsError>) -> nfs3::Status {
    result.unwrap_err().status3().unwrap()
}

#[test]
fn a_strict_key_of_dafs_excludes_nfs_clients() {
    let served = Served::new();
    let dafs = served.dafs();
    let file = dafs.open(NAME, &options().strict_share_key(KEY)).unwrap();
    file.write_at(b"data", 0, DafsStability::Unstable).unwrap();
    dafs.open(b"other", &options()).unwrap().close().unwrap();
    let (session, root) = served.v4(b"keys");
    let other = session.lookup(&root, b"other").unwrap();
    assert_excluded(&session, &root, &other);
    let (v3, root3) = served.v3();
    let keyed = v3.lookup(&root3, NAME).unwrap();
    assert_eq!(status3(v3.read(&keyed, 0, 10)), nfs3::Status::Acces);
    assert_eq!(status3(v3.write(&keyed, 0, b"x", Stability::FileSync)), nfs3::Status::Acces);
    let cut = nfs3::SetAttributes { size: Some(0), ..Default::default() };
    assert_eq!(status3(v3.setattr(&keyed, cut)), nfs3::Status::Acces);
    // The attributes are no data.
    assert_eq!(session.stat(&session.lookup(&root, NAME).unwrap()).unwrap().size, 4);
    let mut found = [0; 4];
    assert_eq!(file.read_at(&mut found, 0).unwrap(), 4);
    assert_eq!(&found, b"data");
    // The key ends with the last strict open.
    file.close().unwrap();
    let open = session.open(&root, NAME, &existing(ShareAccess::BOTH, DENY_NONE)).unwrap();
    assert_eq!(v3.read(&keyed, 0, 10).unwrap().0, b"data");
    assert_eq!(
        dafs.open(NAME, &options().strict_share_key(KEY)).unwrap_err().status(),
        Some(dafs_client::Status::KeyMismatch)
    );
    session.close(&open).unwrap();
    dafs.open(NAME, &options().strict_share_key(KEY)).unwrap();
}

#[test]
fn an_advisory_key_excludes_no_nfs_client() {
    let served = Served::new();
    let dafs = served.dafs();
    let file = dafs.open(NAME, &options().share_key(KEY)).unwrap();
    let (session, root) = served.v4(b"keys");
    let open = session.open(&root, NAME, &existing(ShareAccess::BOTH, DENY_NONE)).unwrap();
    let (v3, root3) = served.v3();
    v3.write(&v3.lookup(&root3, NAME).unwrap(), 0, b"x", Stability::FileSync).unwrap();
    session.close(&open).unwrap();
    file.close().unwrap();
}

#[test]
fn an_export_with_strict_keys_needs_no_wish_of_the_opener() {
    let served = Served::with(|config| config.exports[0].options.shared_keys = SharedKeys::Strict);
    let dafs = served.dafs();
    let file = dafs.open(NAME, &options().share_key(KEY)).unwrap();
    dafs.open(b"other", &options()).unwrap().close().unwrap();
    let (session, root) = served.v4(b"keys");
    let other = session.lookup(&root, b"other").unwrap();
    assert_excluded(&session, &root, &other);
    file.close().unwrap();
    session.open(&root, NAME, &existing(ShareAccess::BOTH, DENY_NONE)).unwrap();
}

/// An NFS client with a read delegation opens the file without the server. It must not miss that a
/// reader has set a strict key.
#[test]
fn a_strict_key_recalls_read_delegations() {
    let served = Served::new();
    make_keyed(&served);
    let (session, root, heard) = served.v4_listening(b"holder");
    let file = open_wanting(&session, &root, NAME, ShareAccess::READ, Want::Read);
    assert_eq!(file.delegation.map(|given| given.kind), Some(DelegationType::Read));
    session.close(&file).unwrap();
    let dafs = served.dafs();
    // A plain reader leaves the delegation alone.
    dafs.open(NAME, &OpenOptions::read()).unwrap().close().unwrap();
    assert!(heard.is_silent());
    let keyed = heard.while_returning(&session, &file, || {
        dafs.open(NAME, &OpenOptions::read().strict_share_key(KEY)).unwrap()
    });
    let opened = session.open(&root, NAME, &existing(ShareAccess::READ, DENY_NONE));
    assert_eq!(refused(opened), Status::ShareDenied);
    keyed.close().unwrap();
}

/// The holder of a delegation that still has the file open says so when it is recalled.
#[test]
fn a_strict_key_is_refused_while_a_delegation_hides_an_open() {
    let served = Served::new();
    make_keyed(&served);
    let (session, root, heard) = served.v4_listening(b"holder");
    let file = open_wanting(&session, &root, NAME, ShareAccess::READ, Want::Read);
    assert!(file.delegation.is_some());
    let dafs = served.dafs();
    let open = || dafs.open(NAME, &OpenOptions::read().strict_share_key(KEY));
    // The open that the server knows suffices for a refusal.
    assert_eq!(open().unwrap_err().status(), Some(dafs_client::Status::KeyMismatch));
    assert!(heard.is_silent());
    session.close(&file).unwrap();
    let kept = heard.while_returning(&session, &file, || open().unwrap());
    kept.close().unwrap();
}

#[test]
fn a_strict_key_ends_with_the_lease_of_a_client_that_left() {
    let served = Served::with(|config| config.lease_time = Duration::from_secs(2));
    let dafs = served.dafs();
    let file = dafs.open(NAME, &options().strict_share_key(KEY)).unwrap();
    let (session, root) = served.v4(b"keys");
    let both = existing(ShareAccess::BOTH, DENY_NONE);
    assert_eq!(refused(session.open(&root, NAME, &both)), Status::ShareDenied);
    dafs.disconnect().unwrap();
    drop(file);
    eventually("the lease ended", || session.open(&root, NAME, &both).is_ok());
}

/// A DAFS client that asks for a strict key during grace waits, and then the reclaimed open of an NFS
/// client, which has no key, stands against it.
#[test]
fn an_nfs_client_that_reclaims_keeps_a_strict_key_out() {
    let mut served = Served::with(|config| config.nfs.grace_time = Some(Duration::from_secs(600)));
    let (session, root) = served.v4(b"holder");
    let made = session.create(&root, NAME).unwrap();
    served.restart();
    let dafs = &served.dafs();
    std::thread::scope(|scope| {
        let keyed = options().deny(ShareDeny::None).strict_share_key(KEY);
        let opening = scope.spawn(move || dafs.open(NAME, &keyed).map(|_| ()));
        let again = dafs_nfs_client::Options {
            reclaim_complete: false,
            ..dafs_nfs_client::Options::new(b"holder")
        };
        let again = dafs_nfs_client::connect(served.nfs, &again).unwrap();
        let both = existing(ShareAccess::BOTH, DENY_NONE);
        patiently(|| again.reclaim_open(&made.handle, DelegationType::None, &both)).unwrap();
        again.reclaim_complete().unwrap();
        let status = opening.join().unwrap().unwrap_err().status();
        assert_eq!(status, Some(dafs_client::Status::KeyMismatch));
        again.renew().unwrap();
    });
}
