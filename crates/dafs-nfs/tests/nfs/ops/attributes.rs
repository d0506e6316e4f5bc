//! GETATTR, SETATTR, VERIFY, NVERIFY, ACCESS.

use super::helper::*;
use crate::common::World;
use dafs_store::{Capabilities, Cred, MemoryOptions, MemoryStore, Quota};
use dafs_testkit::stores::layer::{Layer, Layered};
use dafs_wire::nfs4::*;
use std::sync::Arc;

fn setattr<'a>(stateid: Stateid, mask: Bitmap, values: &'a [u8]) -> Op<'a> {
    Op::Setattr(SetattrArgs { stateid, attributes: Fattr { mask, values } })
}

fn all() -> Op<'static> {
    Op::Getattr(GetattrArgs { request: Attr::GETTABLE.minus(set_only()) })
}

fn set_only() -> Bitmap {
    Attr::SETTABLE.minus(Attr::GETTABLE)
}

#[test]
fn supported_attributes_are_listed_exactly() {
    for minor in [1, 2] {
        let mut client = Client::new(minor);
        let answer = client.at_root(&[all()]);
        let ResultBody::Getattr(result) = answer.body(2) else { panic!() };
        let told = attributes(&answer, 2);
        let supported = told.supported_attrs.unwrap();
        assert_eq!(result.attributes.mask, supported.minus(set_only()));
        assert_eq!(supported.contains(Attr::ModeUmask), minor == 2);
        assert_eq!(told.kind, Some(FileType::Directory));
        assert_eq!(told.lease_time_seconds, Some(crate::common::LEASE_SECONDS as u32));
        assert_eq!((told.maxread, told.maxwrite), (Some(1 << 20), Some(1 << 20)));
        assert_eq!(told.owner, Some(&b"0"[..]));
        assert_eq!(told.mounted_on_fileid, told.fileid);
        let exclusive = told.suppattr_exclcreat.unwrap();
        assert!(exclusive.is_subset_of(supported) && exclusive.contains(Attr::Mode));
        let filehandle = told.filehandle.unwrap().to_vec();
        assert_eq!(handle(&client.at_root(&[getfh()]), 2), filehandle);
    }
    let mut client = Client::new(1);
    assert_eq!(client.status(&[getattr(&[Attr::TimeAccessSet])]), Status::Inval);
    // An attribute that the store does not know is left out.
    let answer = client.at_root(&[getattr(&[Attr::Archive, Attr::Size])]);
    assert_eq!(attributes(&answer, 2).mask(), Attr::set(&[Attr::Size]));
}

/// A store with a quota, of which 400 bytes are used.
struct Limited {
    soft: Option<u64>,
    hard: Option<u64>,
}

impl Layer for Limited {
    fn capabilities(&self, below: Capabilities) -> Capabilities {
        Capabilities { quotas: true, ..below }
    }

    fn quota(&self, _: dafs_store::Result<Quota>, _: &Cred) -> dafs_store::Result<Quota> {
        Ok(Quota { used: 400, soft: self.soft, hard: self.hard })
    }
}

/// RFC 8881 5.8.2.28 to 5.8.2.30.
#[test]
fn a_quota_tells_what_is_left_of_it() {
    let left = |soft, hard| {
        let below = Arc::new(MemoryStore::new(MemoryOptions::default()));
        let store = Layered::new(below, Limited { soft, hard });
        let mut client = Client::of(World::over(Arc::new(store)), 1);
        let quota = [Attr::QuotaUsed, Attr::QuotaAvailSoft, Attr::QuotaAvailHard];
        let answer = client.at_root(&[getattr(&quota), getattr(&[Attr::SpaceAvail])]);
        let told = attributes(&answer, 2);
        assert_eq!(told.quota_used, Some(400));
        let space = attributes(&answer, 3).space_avail;
        [told.quota_avail_soft, told.quota_avail_hard].map(|left| (left != space).then_some(left))
    };
    assert_eq!(left(Some(600), Some(1000)), [Some(Some(200)), Some(Some(600))]);
    assert_eq!(left(Some(300), Some(1000)), [Some(Some(0)), Some(Some(600))]);
    assert_eq!(left(None, Some(1000)), [Some(Some(600)), Some(Some(600))]);
    // Without a limit, the space limits.
    assert_eq!(left(None, None), [None, None]);
}

#[test]
fn attributes_are_set_and_told() {
    let (mut client, fh, stateid) = Client::with_file(2);
    let time = Time { seconds: 1_000_000, nanoseconds: 5 };
    let set = SetAttributes {
        size: Some(77),
        mode: Some(0o4751),
        owner: Some(b"1000"),
        owner_group: Some(b"root@example.org"),
        time_access: Some(SetTime::Server),
        time_modify: Some(SetTime::Client(time)),
        ..SetAttributes::default()
    };
    let values = set.to_values();
    let answer = client.send(&[putfh(&fh), setattr(stateid, set.mask(), &values), all()]);
    let ResultBody::Setattr(result) = answer.body(2) else { panic!("{:?}", answer.results()) };
    assert_eq!(result.attributes_set, set.mask());
    let told = attributes(&answer, 3);
    assert_eq!((told.size, told.time_modify), (Some(77), Some(time)));
    assert_eq!((told.owner, told.owner_group), (Some(&b"1000"[..]), Some(&b"0"[..])));
    assert_eq!(told.mode.map(|mode| mode & 0o777), Some(0o751));
    let masked = ModeMasked { value: 0o020, mask: 0o070 };
    let set = SetAttributes { mode_masked: Some(masked), ..SetAttributes::default() };
    let values = set.to_values();
    let answer = client.send(&[putfh(&fh), setattr(stateid, set.mask(), &values), all()]);
    assert_eq!(attributes(&answer, 3).mode.map(|mode| mode & 0o777), Some(0o721));
}

#[test]
fn a_refused_setattr_says_what_was_set() {
    let (mut client, fh, stateid) = Client::with_file(2);
    let mut refused = |set: SetAttributes<'_>, mask: Bitmap| {
        let values = set.to_values();
        let answer = client.send(&[putfh(&fh), setattr(stateid, set.mask().or(mask), &values)]);
        let result = answer.results().pop().unwrap();
        let ResultBody::Setattr(body) = result.body else { panic!("{:?}", result.body) };
        assert!(body.attributes_set.is_empty());
        result.status
    };
    let none = SetAttributes::default;
    let empty = Bitmap::EMPTY;
    let nanoseconds = 1_000_000_000;
    let time = SetTime::Client(Time { seconds: 0, nanoseconds });
    let umask = ModeUmask { mode: 0o666, umask: 0o22 };
    for (set, mask, status) in [
        (SetAttributes { owner: Some(b"anna@example.org"), ..none() }, empty, Status::BadOwner),
        (SetAttributes { owner: Some(b"\xff"), ..none() }, empty, Status::Inval),
        (SetAttributes { mode: Some(0o10_000), ..none() }, empty, Status::Inval),
        (SetAttributes { time_modify: Some(time), ..none() }, empty, Status::Inval),
        (SetAttributes { mode_umask: Some(umask), ..none() }, empty, Status::Inval),
        (SetAttributes { hidden: Some(true), ..none() }, empty, Status::AttrNotSupp),
        (none(), Attr::set(&[Attr::Fileid]), Status::Inval),
        (none(), Bitmap::EMPTY.with(95), Status::AttrNotSupp),
        (none(), Attr::set(&[Attr::Size]), Status::BadXdr),
        (SetAttributes { size: Some(u64::MAX), ..none() }, empty, Status::FBig),
    ] {
        assert_eq!(refused(set.clone(), mask), status, "{set:?} {mask:?}");
    }
    // A size needs an open for writing, or no denial. Other attributes need no state-id.
    let size = SetAttributes { size: Some(1), ..none() };
    let values = size.to_values();
    let bad = Stateid { seqid: 1, other: [5; 12] };
    let answer = client.send(&[putfh(&fh), setattr(bad, size.mask(), &values)]);
    assert_eq!(answer.status(), Status::BadStateId);
    let mode = SetAttributes { mode: Some(0o600), ..none() };
    let values = mode.to_values();
    let answer = client.send(&[putfh(&fh), setattr(Stateid::ANONYMOUS, mode.mask(), &values)]);
    assert_eq!(answer.status(), Status::Ok);
}

#[test]
fn the_umask_is_for_new_objects() {
    let mut client = Client::new(2);
    let umask = ModeUmask { mode: 0o777, umask: 0o022 };
    let set = SetAttributes { mode_umask: Some(umask), ..SetAttributes::default() };
    let values = set.to_values();
    let attributes_wanted = Fattr { mask: set.mask(), values: &values };
    let kind = CreateType::Plain(FileType::Directory);
    let create = Op::Create(CreateArgs { kind, name: b"d", attributes: attributes_wanted });
    let answer = client.at_root(&[create, getattr(&[Attr::Mode])]);
    let ResultBody::Create(made) = answer.body(2) else { panic!() };
    assert_eq!(made.attributes_set, set.mask());
    assert_eq!(attributes(&answer, 3).mode, Some(0o755));
}

#[test]
fn verify_compares_what_getattr_tells() {
    let (mut client, fh, _) = Client::with_file(1);
    let answer = client.send(&[putfh(&fh), all()]);
    let ResultBody::Getattr(result) = answer.body(2) else { panic!() };
    let mask = result.attributes.mask.without(Attr::RdattrError.number());
    let mut told = attributes(&answer, 2);
    told.rdattr_error = None;
    let values = told.to_values();
    let attributes = Fattr { mask, values: &values };
    let verify = |attributes| Op::Verify(VerifyArgs { attributes });
    let nverify = |attributes| Op::Nverify(VerifyArgs { attributes });
    assert_eq!(client.send(&[putfh(&fh), verify(attributes)]).status(), Status::Ok);
    assert_eq!(client.send(&[putfh(&fh), nverify(attributes)]).status(), Status::Same);
    let size = 17_u64.to_be_bytes();
    let other = Fattr { mask: Attr::set(&[Attr::Size]), values: &size };
    assert_eq!(client.send(&[putfh(&fh), verify(other)]).status(), Status::NotSame);
    assert_eq!(client.send(&[putfh(&fh), nverify(other)]).status(), Status::Ok);
    for (attr, status) in [
        (Attr::RdattrError, Status::Inval),
        (Attr::TimeAccessSet, Status::Inval),
        (Attr::Hidden, Status::AttrNotSupp),
    ] {
        let odd = Fattr { mask: Attr::set(&[attr]), values: &[0, 0, 0, 0] };
        assert_eq!(client.send(&[putfh(&fh), verify(odd)]).status(), status, "{attr}");
    }
    assert_eq!(client.send(&[verify(other)]).status(), Status::NoFileHandle);
}

#[test]
fn access_is_told_as_asked() {
    let (mut client, fh, _) = Client::with_file(2);
    let asked = Access::READ | Access::MODIFY | Access::XATTR_LIST | Access::XATTR_WRITE;
    let access = |access| Op::Access(AccessArgs { access });
    let answer = client.send(&[putfh(&fh), access(asked)]);
    let ResultBody::Access(result) = answer.body(2) else { panic!() };
    assert_eq!((result.supported, result.access), (asked, asked));
    let unknown = access(Access::from_bits_retain(0x1000));
    assert_eq!(client.send(&[putfh(&fh), unknown]).status(), Status::Inval);
}
