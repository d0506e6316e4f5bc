//! Features of a local directory: access control lists, holes, extended attributes of the kernel.

use super::helper::*;
use super::ranges::io_advise;
use crate::common::World;
use dafs_posix::{PosixOptions, PosixStore};
use dafs_store::ExportSecret;
use dafs_testkit::{Cached, PAGE_BYTES, eventually, pattern};
use dafs_wire::nfs4::*;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use tempfile::TempDir;

/// Makes a client of a directory, which lives as long as the first value.
fn client() -> (TempDir, Client) {
    let dir = TempDir::new().unwrap();
    let client = client_of(&dir);
    (dir, client)
}

fn client_of(dir: &TempDir) -> Client {
    let options = PosixOptions::new(ExportSecret::from_bytes([3; 16]));
    let store = PosixStore::open(dir.path(), options).unwrap();
    Client::of(World::over(Arc::new(store)), 2)
}

/// Some clients keep no long handles, and all compare them by their bytes.
#[test]
fn a_handle_has_one_form_which_belongs_to_the_secret() {
    let dir = TempDir::new().unwrap();
    let long = ExportSecret::from_bytes([3; 16]);
    for (name, secret) in [(b"long", long), (b"less", long.with_short_ids())] {
        let store = PosixStore::open(dir.path(), PosixOptions::new(secret)).unwrap();
        let mut client = Client::of(World::over(Arc::new(store)), 1);
        let (fh, open) = client.file(name);
        assert_eq!(fh.len() < 64, secret.has_short_ids(), "{fh:?}");
        let told = client.send(&[putfh(&fh), write(open, 0, b"x"), getattr(&[Attr::Filehandle])]);
        assert_eq!(attributes(&told, 3).filehandle, Some(&fh[..]));
        let (body, mac) = fh.split_at(fh.len() - 8);
        let whole = [body, &vec![0; 64 - fh.len()], mac].concat();
        let wanted = if secret.has_short_ids() { Status::BadHandle } else { Status::Ok };
        assert_eq!(client.send(&[putfh(&whole)]).status(), wanted);
    }
}

fn getxattr(name: &[u8]) -> Op<'_> {
    Op::Getxattr(GetxattrArgs { name })
}

fn setxattr<'a>(option: SetxattrOption, name: &'a [u8], value: &'a [u8]) -> Op<'a> {
    Op::Setxattr(SetxattrArgs { option, name, value })
}

fn listxattrs(cookie: u64, result_bytes_max: u32) -> Op<'static> {
    Op::Listxattrs(ListxattrsArgs { cookie, result_bytes_max })
}

fn check_xattrs(client: &mut Client) {
    let (fh, _) = client.file(b"f");
    let mut status = |op| client.send(&[putfh(&fh), op]).status();
    let (create, replace) = (SetxattrOption::Create, SetxattrOption::Replace);
    let either = SetxattrOption::Either;
    let remove = |name| Op::Removexattr(RemovexattrArgs { name });
    assert_eq!(status(getxattr(b"a")), Status::NoXattr);
    assert_eq!(status(setxattr(replace, b"a", b"1")), Status::NoXattr);
    assert_eq!(status(setxattr(create, b"a", b"1")), Status::Ok);
    assert_eq!(status(setxattr(create, b"a", b"1")), Status::Exist);
    assert_eq!(status(setxattr(replace, b"a", b"2")), Status::Ok);
    assert_eq!(status(setxattr(either, b"user.b", b"3")), Status::Ok);
    assert_eq!(status(setxattr(either, b"c", b"")), Status::Ok);
    assert_eq!(status(setxattr(either, b"", b"1")), Status::Inval);
    assert_eq!(status(remove(b"none")), Status::NoXattr);
    assert_eq!(status(listxattrs(4, 1000)), Status::BadCookie);
    assert_eq!(status(listxattrs(0, 17)), Status::TooSmall);
    let answer = client.send(&[putfh(&fh), getxattr(b"a")]);
    let ResultBody::Getxattr(result) = answer.body(2) else { panic!() };
    assert_eq!(result.value, b"2");
    let (mut cookie, mut names) = (0, Vec::new());
    loop {
        // Room for one name of up to eight bytes, or two of four.
        let answer = client.send(&[putfh(&fh), listxattrs(cookie, 28)]);
        let ResultBody::Listxattrs(result) = answer.body(2) else { panic!() };
        names.extend(result.names.iter().map(|name| name.to_vec()));
        cookie = result.cookie;
        if result.eof {
            break;
        }
    }
    names.sort();
    assert_eq!(names, [&b"a"[..], b"c", b"user.b"]);
    assert_eq!(client.send(&[putfh(&fh), remove(b"a")]).status(), Status::Ok);
    assert_eq!(client.send(&[putfh(&fh), getxattr(b"a")]).status(), Status::NoXattr);
    let answer = client.send(&[putfh(&fh), getattr(&[Attr::XattrSupport, Attr::NamedAttr])]);
    let told = attributes(&answer, 2);
    assert_eq!((told.xattr_support, told.named_attr), (Some(true), Some(true)));
}

#[test]
fn extended_attributes_of_a_directory() {
    let (_dir, mut client) = client();
    check_xattrs(&mut client);
}

#[test]
fn extended_attributes_in_memory() {
    check_xattrs(&mut Client::new(2));
}

#[test]
fn holes_are_told_as_holes() {
    let (_dir, mut client) = client();
    let (fh, stateid) = client.file(b"f");
    let far = 8 << 20;
    client.send(&[putfh(&fh), write(stateid, far, b"end")]);
    let seek = |offset, what| Op::Seek(SeekArgs { stateid, offset, what });
    let answer = client.send(&[putfh(&fh), seek(0, SeekWhat::Data), seek(0, SeekWhat::Hole)]);
    let ResultBody::Seek(data) = answer.body(2) else { panic!() };
    let ResultBody::Seek(hole) = answer.body(3) else { panic!() };
    let plus = Op::ReadPlus(ReadPlusArgs { stateid, offset: 0, count: 1 << 20 });
    let answer = client.send(&[putfh(&fh), plus]);
    let ResultBody::ReadPlus(result) = answer.body(2) else { panic!() };
    // A file system without holes reports all as data, and so does READ_PLUS.
    if hole.offset == 0 {
        assert_eq!(data.offset / 65_536, far / 65_536);
        let all = ReadPlusContent::Hole { offset: 0, length: 1 << 20 };
        assert_eq!((result.eof, &result.contents[..]), (false, &[all][..]));
    } else {
        let ReadPlusContent::Data { offset: 0, data } = result.contents[0] else { panic!() };
        assert_eq!(data.len(), 1 << 20);
    }
}

/// Linux reserves room for the requested bytes and the frame of one piece.
#[test]
fn a_reply_with_a_short_hole_is_no_longer_than_its_client_has_room_for() {
    let (_dir, mut client) = client();
    let (fh, stateid) = client.file(b"f");
    client.send(&[putfh(&fh), write(stateid, 0, &[7; 4096]), write(stateid, 1 << 20, b"end")]);
    for count in 4090..4160 {
        let plus = Op::ReadPlus(ReadPlusArgs { stateid, offset: 0, count });
        let answer = client.send(&[putfh(&fh), plus]);
        let ResultBody::ReadPlus(result) = answer.body(2) else { panic!() };
        let bytes = |piece: &ReadPlusContent<'_>| match piece {
            ReadPlusContent::Data { data, .. } => 16 + data.len().next_multiple_of(4),
            ReadPlusContent::Hole { .. } => 20,
        };
        let told: usize = result.contents.iter().map(bytes).sum();
        assert!(told <= count as usize + 20, "{count}: {told}");
    }
}

#[test]
fn lists_of_rights_are_kept() {
    let (_dir, mut client) = client();
    let (fh, stateid) = client.file(b"f");
    let answer = client.send(&[putfh(&fh), getattr(&[Attr::Aclsupport, Attr::Acl])]);
    let told = attributes(&answer, 2);
    if told.aclsupport == Some(AclSupport::empty()) {
        // The file system below has none.
        assert_eq!(told.acl, None);
        return;
    }
    let ace = |who, mask| Ace { kind: ACE_ALLOWED, flags: AceFlags::empty(), mask, who };
    let (read, write) = (AceMask::READ_DATA, AceMask::WRITE_DATA | AceMask::APPEND_DATA);
    let aces = vec![ace(b"OWNER@", read | write), ace(b"1000", read), ace(b"GROUP@", read)];
    let set = SetAttributes { acl: Some(Acl { aces }), ..SetAttributes::default() };
    let values = set.to_values();
    let wanted = Fattr { mask: set.mask(), values: &values };
    let setattr = Op::Setattr(SetattrArgs { stateid, attributes: wanted });
    let answer = client.send(&[putfh(&fh), setattr, getattr(&[Attr::Acl, Attr::Mode])]);
    assert_eq!(answer.status(), Status::Ok, "{:?}", answer.results());
    let told = attributes(&answer, 3);
    assert_eq!(told.mode, Some(0o640));
    let acl = told.acl.unwrap();
    let named = acl.aces.iter().find(|ace| ace.who == b"1000" && ace.kind == ACE_ALLOWED);
    assert!(named.is_some_and(|ace| ace.mask.contains(read) && !ace.mask.contains(write)));
    // Rights that a directory hands down replace the umask (RFC 8275 4).
    let dir = client.directory(b"d");
    let inherit = AceFlags::FILE_INHERIT | AceFlags::DIRECTORY_INHERIT;
    let both = |who| [ace(who, read | write), Ace { flags: inherit, ..ace(who, read | write) }];
    let aces = [&b"OWNER@"[..], b"GROUP@", b"EVERYONE@"].into_iter().flat_map(both).collect();
    let set = SetAttributes { acl: Some(Acl { aces }), ..SetAttributes::default() };
    let values = set.to_values();
    let attributes_wanted = Fattr { mask: set.mask(), values: &values };
    let stateid = Stateid::ANONYMOUS;
    let setattr = Op::Setattr(SetattrArgs { stateid, attributes: attributes_wanted });
    let umask = ModeUmask { mode: 0o666, umask: 0o077 };
    let new = SetAttributes { mode_umask: Some(umask), ..SetAttributes::default() };
    let new_values = new.to_values();
    let how = unchecked(Fattr { mask: new.mask(), values: &new_values });
    let create = || open(b"n", ShareAccess::READ | Want::None.number(), how);
    let answer = client.at_root(&[create(), getattr(&[Attr::Mode])]);
    assert_eq!(attributes(&answer, 3).mode, Some(0o600));
    let answer = client.send(&[putfh(&dir), setattr, create(), getattr(&[Attr::Mode])]);
    assert_eq!(answer.status(), Status::Ok, "{:?}", answer.results());
    assert_eq!(attributes(&answer, 4).mode, Some(0o666));
    let audit = Ace { kind: ACE_AUDIT, ..ace(b"OWNER@", read) };
    let set = SetAttributes { acl: Some(Acl { aces: vec![audit] }), ..SetAttributes::default() };
    let values = set.to_values();
    let wanted = Fattr { mask: set.mask(), values: &values };
    let setattr = Op::Setattr(SetattrArgs { stateid, attributes: wanted });
    assert_eq!(client.send(&[putfh(&fh), setattr]).status(), Status::AttrNotSupp);
}

#[test]
fn names_that_are_not_utf8_are_names() {
    let (dir, mut client) = client();
    let name = b"caf\xe9";
    client.file(name);
    assert!(dir.path().join(OsStr::from_bytes(name)).exists());
    assert_eq!(client.status(&[lookup(name)]), Status::Ok);
    let answer = client.at_root(&[getattr(&[Attr::FsCharsetCap])]);
    let told = attributes(&answer, 2).fs_charset_cap;
    assert_eq!(told, Some(CharsetCapability::CONTAINS_NON_UTF8));
}

/// Returns the hints that the server follows.
fn advised(client: &mut Client, fh: &[u8], op: Op<'_>) -> Bitmap {
    let answer = client.send(&[putfh(fh), op]);
    match answer.body(2) {
        ResultBody::IoAdvise(result) => result.hints,
        _ => panic!("{:?}", answer.results()),
    }
}

#[test]
fn advice_reaches_the_cache_of_the_kernel() {
    const BYTES: usize = 1 << 20;
    // Not the usual place for temporary files, which may live in memory.
    let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let Some(local) = Cached::cold(&dir.path().join("f"), &pattern(BYTES)) else { return };
    let mut client = client_of(&dir);
    let (fh, open) = client.file(b"f");
    let of =
        |hints: &[IoAdvice]| Bitmap::of(&hints.iter().map(|hint| *hint as u32).collect::<Vec<_>>());
    for stateid in [open, Stateid::ANONYMOUS] {
        let mut advise = |range, hints: &[IoAdvice]| {
            advised(&mut client, &fh, io_advise(stateid, range, of(hints)))
        };
        let ahead = [IoAdvice::WillNeed, IoAdvice::InitProximity];
        assert_eq!(advise((0, 0), &ahead), of(&[IoAdvice::WillNeed]));
        eventually("the file is in memory", || local.bytes() == BYTES);
        let kept = [IoAdvice::NoReuse, IoAdvice::WillNeedOpportunistic];
        assert_eq!(advise((0, 0), &kept), of(&kept));
        assert_eq!(local.bytes(), BYTES);
        let half = (0, BYTES as u64 / 2);
        // A page that is still being read does not leave.
        eventually("the first half leaves", || {
            assert_eq!(advise(half, &[IoAdvice::DontNeed]), of(&[IoAdvice::DontNeed]));
            local.bytes_in(0..half.1) == 0
        });
        assert_eq!(local.bytes(), BYTES / 2);
        let pattern = [IoAdvice::Sequential, IoAdvice::Normal, IoAdvice::Random];
        assert_eq!(advise((0, 0), &pattern), of(&pattern));
        // No range of a file.
        assert_eq!(advise((u64::MAX, u64::MAX), &[IoAdvice::DontNeed]), Bitmap::EMPTY);
        eventually("all leaves", || {
            assert_eq!(advise((0, 0), &[IoAdvice::DontNeed]), of(&[IoAdvice::DontNeed]));
            local.bytes() == 0
        });
    }
}

#[test]
fn random_reads_of_an_open_read_nothing_ahead() {
    let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let Some(local) = Cached::cold(&dir.path().join("f"), &pattern(1 << 20)) else { return };
    let mut client = client_of(&dir);
    let (fh, open) = client.file(b"f");
    let random = Bitmap::of(&[IoAdvice::Random as u32]);
    assert_eq!(advised(&mut client, &fh, io_advise(open, (0, 0), random)), random);
    let read = Op::Read(ReadArgs { stateid: open, offset: 0, count: PAGE_BYTES as u32 });
    assert_eq!(client.send(&[putfh(&fh), read]).status(), Status::Ok);
    // The server looks if anything follows.
    assert!(local.bytes() <= 2 * PAGE_BYTES, "{}", local.bytes());
}
