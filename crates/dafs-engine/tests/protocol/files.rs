//! Files: every procedure on names, opens and attributes, with its conflicts.

use crate::common::*;
use dafs_service::{ExportOptions, Squash};
use dafs_store::{Capabilities, Cred, MemoryOptions, MemoryStore, Quota, Store, Waits};
use dafs_testkit::stores::layer::{Layer, Layered};
use dafs_wire::dafs::{
    self, AttrMask, Attributes, ErrorBody, FileHandle, FsAttrMask, NewObject, ObjectType, Reply,
    Request, StateId, Status, Verifier,
};
use std::sync::Arc;

#[test]
fn names_are_made_found_linked_renamed_and_removed() {
    names(Waits::Never);
}

/// The store fails the test when a reactor calls it.
#[test]
fn no_reactor_waits_for_what_a_store_waits_for() {
    for waits in [Waits::Data, Waits::Always] {
        names(waits);
        let (mut world, client, file) = World::with_file(Setup { waits, ..Setup::default() });
        assert_eq!(world.status(client, &set(file, size(5))), Status::Ok);
        assert_eq!(attributes(&mut world, client, file.fh).unwrap().size, 5);
        let attributes = FsAttrMask::SPACE_FREE;
        let space = Request::GetFsAttr(dafs::GetFsAttr { fh: file.fh, attributes });
        assert_eq!(world.status(client, &space), Status::Ok);
        world.end();
    }
}

fn names(waits: Waits) {
    let (mut world, client) = World::with_session(Setup { waits, ..Setup::default() });
    let root = world.root();
    assert_eq!(found(&world.call(client, &Request::GetRootHandle)), root);
    let dir = found(&world.call(client, &mkdir(root, b"d")));
    let deep = found(&world.call(client, &mkdir(dir, b"e")));
    let path = [b"d".as_slice(), b"e"];
    assert_eq!(found(&world.call(client, &lookup(root, &path))), deep);
    let up = Request::LookupP(dafs::LookupP { fh: deep });
    assert_eq!(found(&world.call(client, &up)), dir);
    let up = Request::LookupP(dafs::LookupP { fh: root });
    assert_eq!(world.status(client, &up), Status::NoEnt);
    assert_eq!(world.status(client, &mkdir(root, b"d")), Status::Exist);
    let link = create(dir, b"link", NewObject::Symlink(b"../somewhere"));
    let link = found(&world.call(client, &link));
    let read = Request::ReadLinkInline(dafs::ReadLinkInline { fh: link });
    let answer = world.call(client, &read);
    let Ok(Reply::ReadLinkInline(text)) = answer.reply() else { panic!() };
    assert_eq!(text.text, b"../somewhere");
    let read = Request::ReadLinkInline(dafs::ReadLinkInline { fh: dir });
    assert_eq!(world.status(client, &read), Status::Inval);
    found(&world.call(client, &create(dir, b"fifo", NewObject::Plain(ObjectType::Fifo))));
    let plain = create(dir, b"x", NewObject::Plain(ObjectType::Regular));
    assert!(!world.status(client, &plain).is_ok(), "files are made by OPEN");
    let file = world.open(client, b"f");
    let other = Request::Link(dafs::Link { source: file.fh, target_dir: dir, name: b"hard" });
    assert_eq!(world.status(client, &other), Status::Ok);
    assert_eq!(world.status(client, &other), Status::Exist);
    assert_eq!(attributes(&mut world, client, file.fh).unwrap().links, 2);
    assert_eq!(world.status(client, &rename(dir, b"hard", b"new")), Status::Ok);
    assert_eq!(world.status(client, &rename(dir, b"hard", b"new")), Status::NoEnt);
    assert_eq!(world.status(client, &remove(root, b"d", false)), Status::NotEmpty);
    for (dir, name) in
        [(dir, b"new".as_slice()), (dir, b"link"), (dir, b"fifo"), (dir, b"e"), (root, b"d")]
    {
        assert_eq!(world.status(client, &remove(dir, name, false)), Status::Ok);
    }
    assert_eq!(world.status(client, &remove(root, b"d", false)), Status::NoEnt);
    assert_eq!(attributes(&mut world, client, dir), Err(Status::Stale));
    world.end();
}

#[test]
fn walks_that_fail_say_how_far_they_came() {
    let (mut world, client) = World::with_session(Setup::default());
    let root = world.root();
    let dir = found(&world.call(client, &mkdir(root, b"d")));
    found(&world.call(client, &create(dir, b"link", NewObject::Symlink(b"."))));
    world.open(client, b"f");
    let cases: [(&[&[u8]], Status, FileHandle, u32); 4] = [
        (&[b"d", b"none", b"x"], Status::NoEnt, dir, 1),
        (&[b"none"], Status::NoEnt, root, 0),
        (&[b"d", b".."], Status::Inval, dir, 1),
        (&[b"d", b"a/b"], Status::Inval, dir, 1),
    ];
    for (path, status, fh, component_count) in cases {
        let answer = world.call(client, &lookup(root, path));
        assert_eq!(answer.status(), status, "{path:?}");
        let reached = dafs::LookupReply { fh, component_count };
        assert_eq!(answer.error_body(), ErrorBody::Walked(reached));
        let open = Request::Open(open_request(root, path, b"o"));
        let answer = world.call(client, &open);
        let created = answer.status().is_ok();
        assert!(!created || path == [b"none"], "{path:?}");
    }
    for path in [[b"f".as_slice(), b"x"], [b"d/link".as_slice(), b"x"]] {
        assert!(!world.status(client, &lookup(root, &path)).is_ok());
    }
    let path = [b"d".as_slice(), b"link", b"x"];
    assert_eq!(world.status(client, &lookup(root, &path)), Status::NotDir);
    let path = [b"d".as_slice(), b"link"];
    let answer = world.call(client, &Request::Open(open_request(root, &path, b"o")));
    assert_eq!(answer.status(), Status::Symlink);
    let long = [b'x'; 256];
    assert_eq!(world.status(client, &lookup(root, &[&long])), Status::NameTooLong);
    let path = [b"d".as_slice()];
    let answer = world.call(client, &Request::Open(open_request(root, &path, b"o")));
    assert_eq!(answer.status(), Status::IsDir);
    assert_eq!(world.status(client, &Request::Open(open_request(root, &[], b"o"))), Status::Inval);
    world.end();
}

#[test]
fn handles_that_are_none_are_refused_everywhere() {
    let (mut world, client) = World::with_session(Setup::default());
    let root = world.root();
    let file = world.open(client, b"f");
    let mut forged = file.fh;
    forged.file[40] ^= 1;
    let mut elsewhere = file.fh;
    elsewhere.fs[0] ^= 1;
    for fh in [FileHandle::ZERO, forged, elsewhere, FileHandle { fs: root.fs, file: [0xff; 48] }] {
        let anonymous = File { fh, id: StateId([0; 8]) };
        let name = b"x".as_slice();
        let path = [name];
        for request in [
            lookup(fh, &path),
            lookup(fh, &[]),
            Request::LookupP(dafs::LookupP { fh }),
            Request::OpenAttr(dafs::OpenAttr { fh }),
            Request::Access(dafs::Access { fh, mask: dafs::AccessMask::READ }),
            Request::GetAttrInline(dafs::GetAttrInline { fh, attributes: AttrMask::MODE }),
            Request::GetFsAttr(dafs::GetFsAttr { fh, attributes: FsAttrMask::ALL }),
            Request::ReadLinkInline(dafs::ReadLinkInline { fh }),
            Request::Commit(dafs::Commit { fh, offset: 0, count: 0 }),
            read_inline(anonymous, 0, 10),
            write_inline(anonymous, 0, b"x"),
            set(anonymous, size(0)),
            remove(fh, name, false),
            rename(fh, name, b"y"),
            mkdir(fh, name),
            Request::Open(open_request(fh, &path, b"o")),
            Request::Link(dafs::Link { source: fh, target_dir: root, name }),
            Request::Verify(dafs::Verify { fh, attributes: size(0) }),
        ] {
            let status = world.status(client, &request);
            assert!(
                matches!(status, Status::BadHandle | Status::Stale),
                "{}: {status:?}",
                request.procedure().name()
            );
        }
        // A state-id does not fit another handle.
        let mixed = File { fh, id: file.id };
        assert_eq!(world.status(client, &read_inline(mixed, 0, 1)), Status::BadStateId);
    }
    world.end();
}

#[test]
fn attributes_are_set_compared_and_guarded() {
    let (mut world, client, file) = World::with_file(Setup::default());
    let time = dafs::Time { seconds: -5, nseconds: 999_999_999 };
    let change = Attributes {
        mode: Some(0o4711),
        object_size: Some(99),
        time_modify_set: Some(dafs::SetTime::Client(time)),
        time_access_set: Some(dafs::SetTime::Server),
        ..Attributes::default()
    };
    let answer = world.call(client, &set(file, change));
    let Ok(Reply::SetAttrInline(reply)) = answer.reply() else { panic!("{:?}", answer.status()) };
    assert_eq!(reply.attributes, change.valid());
    let same =
        Attributes { object_size: Some(99), time_modify: Some(time), ..Attributes::default() };
    let verify = |attributes| Request::Verify(dafs::Verify { fh: file.fh, attributes });
    let nverify = |attributes| Request::NVerify(dafs::Verify { fh: file.fh, attributes });
    assert_eq!(world.status(client, &verify(same)), Status::Ok);
    assert_eq!(world.status(client, &nverify(same)), Status::Same);
    let other = Attributes { object_size: Some(98), ..same };
    assert_eq!(world.status(client, &verify(other)), Status::NotSame);
    assert_eq!(world.status(client, &nverify(other)), Status::Ok);
    let unknown = Attributes { mime_type: Some(b"text/plain"), ..Attributes::default() };
    assert_eq!(world.status(client, &verify(unknown)), Status::NotSupp);
    for (wrong, status) in [
        (unknown, Status::NotSupp),
        (Attributes { mode: Some(0o10_000), ..Attributes::default() }, Status::Inval),
        (Attributes { owner: Some(b"anna"), ..Attributes::default() }, Status::Inval),
        (Attributes { owner: Some(b"0"), ..Attributes::default() }, Status::Perm),
    ] {
        let answer = world.call(client, &set(file, wrong));
        assert_eq!(answer.status(), status, "{wrong:?}");
        let none = dafs::SetAttrReply { attributes: AttrMask::NONE };
        assert_eq!(answer.error_body(), ErrorBody::SetAttr(none));
    }
    let query = dafs::GetFsAttr { fh: file.fh, attributes: FsAttrMask::ALL };
    let answer = world.call(client, &Request::GetFsAttr(query));
    let Ok(Reply::GetFsAttr(reply)) = answer.reply() else { panic!() };
    assert_eq!(reply.attributes.lease_time, Some(30));
    assert_eq!(reply.attributes.fshandle, Some(file.fh.fs));
    let hint = Request::CacheHint(dafs::CacheHint {
        fh: file.fh,
        offset: 0,
        count: 50,
        access_pattern: dafs::AccessPattern::Sequential,
        cache_hint: dafs::HintWord::from_bits(0x0f),
    });
    assert_eq!(world.status(client, &hint), Status::Ok);
    let access = dafs::Access { fh: file.fh, mask: dafs::AccessMask::all() };
    let answer = world.call(client, &Request::Access(access));
    let Ok(Reply::Access(reply)) = answer.reply() else { panic!() };
    assert!(reply.access.contains(dafs::AccessMask::READ));
    world.end();
}

/// A store with a quota.
struct Limited;

impl Layer for Limited {
    fn capabilities(&self, below: Capabilities) -> Capabilities {
        Capabilities { quotas: true, ..below }
    }

    fn quota(&self, _: dafs_store::Result<Quota>, _: &Cred) -> dafs_store::Result<Quota> {
        Ok(Quota { used: 400, soft: None, hard: Some(1000) })
    }
}

#[test]
fn a_quota_is_told_where_there_is_one() {
    let told = |stores: Vec<Arc<dyn Store>>| {
        let (mut world, client) = World::with_session(Setup { stores, ..Setup::default() });
        let query = dafs::GetFsAttr { fh: world.root(), attributes: FsAttrMask::ALL };
        let answer = world.call(client, &Request::GetFsAttr(query));
        let Ok(Reply::GetFsAttr(reply)) = answer.reply() else { panic!() };
        let found = &reply.attributes;
        let supported = FsAttrMask(found.supported_fsattr.unwrap());
        let quota = [found.quota_hard, found.quota_soft, found.quota_used];
        world.end();
        (supported.contains(FsAttrMask::QUOTA_USED), quota)
    };
    assert_eq!(told(Vec::new()), (false, [None; 3]));
    let below = Arc::new(MemoryStore::new(MemoryOptions::default()));
    let limited: Arc<dyn Store> = Arc::new(Layered::new(below, Limited));
    assert_eq!(told(vec![limited]), (true, [Some(1000), Some(u64::MAX), Some(400)]));
}

#[test]
fn listings_come_in_pages_and_survive_changes() {
    let (mut world, client) = World::with_session(Setup::default());
    let root = world.root();
    let names: Vec<String> = (0..100).map(|n| format!("file number {n:03}")).collect();
    for name in &names {
        assert_eq!(world.status(client, &mkdir(root, name.as_bytes())), Status::Ok);
    }
    let (mut cookie, mut verifier) = (0, Verifier::default());
    let mut seen = Vec::new();
    let mut pages = 0;
    loop {
        let answer = world.call(client, &list(root, cookie, verifier, 700));
        assert!(answer.bytes.len() <= 40 + 16 + 700);
        let Ok(Reply::ReadDirInline(page)) = answer.reply() else {
            panic!("{:?}", answer.status())
        };
        for entry in page.entries.iter() {
            assert!(entry.cookie > 2);
            seen.push(String::from_utf8(entry.name.to_vec()).unwrap());
            cookie = entry.cookie;
        }
        verifier = page.cookieverf;
        pages += 1;
        if page.eof {
            break;
        }
        assert!(!page.entries.is_empty());
        // A listed entry may be removed meanwhile.
        let last = seen.last().unwrap();
        assert_eq!(world.status(client, &remove(root, last.as_bytes(), false)), Status::Ok);
    }
    assert!(pages > 5);
    seen.sort();
    assert_eq!(seen, names);
    assert_eq!(world.status(client, &list(root, cookie, Verifier([9; 8]), 700)), Status::BadCookie);
    for reserved in [1, 2] {
        let status = world.status(client, &list(root, reserved, verifier, 700));
        assert_eq!(status, Status::BadCookie);
    }
    for short in [0, 8, 20] {
        let status = world.status(client, &list(root, 0, Verifier::default(), short));
        assert_eq!(status, Status::ReadDirNoSpc);
    }
    let file = world.open(client, b"f");
    let status = world.status(client, &list(file.fh, 0, Verifier::default(), 700));
    assert_eq!(status, Status::NotDir);
    world.end();
}

/// Each entry needs an access to its object, so a long listing would block all other requests of
/// the reactor.
#[test]
fn a_long_listing_is_made_on_the_pool() {
    let (mut world, client) = World::with_session(Setup::default());
    let root = world.root();
    for number in 0..300 {
        let name = format!("file number {number:03}");
        assert_eq!(world.status(client, &mkdir(root, name.as_bytes())), Status::Ok);
    }
    let names = |answer: &Answer| match answer.reply() {
        Ok(Reply::ReadDirInline(page)) => page.entries.iter().count(),
        _ => panic!("{:?}", answer.status()),
    };
    world.hold_jobs = true;
    // A short one is made at once. Most of many concurrent ones are not.
    let short = Request::ReadDirInline(dafs::ReadDirInline {
        fh: root,
        cookie: 0,
        cookieverf: Verifier::default(),
        dircount: 0,
        maxcount: 16_000,
        attributes: AttrMask::ALL,
    });
    let first = names(&world.call(client, &short));
    assert!((10..300).contains(&first), "{first}");
    world.network.pause(SERVER, world.network.now() + std::time::Duration::from_millis(100));
    let streams: Vec<u16> = (0..8).map(|_| world.clients[client].post(&short)).collect();
    world.settle();
    assert!((4..8).contains(&world.jobs()), "{} on the pool", world.jobs());
    world.hold_jobs = false;
    for stream in streams {
        assert_eq!(names(&world.wait(client, stream).unwrap()), first);
    }
    world.hold_jobs = true;
    let memory = world.clients[client].memory(128 << 10);
    let buffers = [memory.direct(0, 128 << 10)];
    let long = Request::ReadDirDirect(dafs::ReadDirDirect {
        fh: root,
        cookie: 0,
        cookieverf: Verifier::default(),
        dircount: 0,
        maxcount: 128 << 10,
        attributes: AttrMask::ALL,
        buffers: dafs::Seq::new(&buffers),
    });
    let stream = world.clients[client].post(&long);
    world.run_until("the pool", |world| world.jobs() == 1);
    world.hold_jobs = false;
    let answer = world.wait(client, stream).unwrap();
    let Ok(Reply::ReadDirDirect(reply)) = answer.reply() else { panic!("{:?}", answer.status()) };
    assert!(reply.eof);
    world.end();
}

#[test]
fn named_attributes_are_files_of_their_own() {
    let (mut world, client, file) = World::with_file(Setup::default());
    let dir = found(&world.call(client, &Request::OpenAttr(dafs::OpenAttr { fh: file.fh })));
    let path = [b"note".as_slice()];
    let note = world.open_with(client, &open_request(dir, &path, b"o")).unwrap();
    world.write(client, note, 0, b"remember");
    assert_eq!(world.read(client, note), b"remember");
    let answer = world.call(client, &list(dir, 0, Verifier::default(), 4000));
    let Ok(Reply::ReadDirInline(page)) = answer.reply() else { panic!() };
    let names: Vec<&[u8]> = page.entries.iter().map(|entry| entry.name).collect();
    assert_eq!(names, [b"note"]);
    assert_eq!(world.status(client, &close(note)), Status::Ok);
    assert_eq!(world.status(client, &remove(dir, b"note", false)), Status::Ok);
    assert_eq!(world.status(client, &lookup(dir, &path)), Status::NoEnt);
    assert!(world.read(client, file).is_empty());
    world.end();
}

#[test]
fn several_exports_hang_below_one_root_each_with_its_rules() {
    let read_only = ExportOptions { read_only: true, ..ExportOptions::default() };
    let exports = vec![("open", ExportOptions::default()), ("fixed", read_only)];
    let (mut world, client) = World::with_session(Setup { exports, ..Setup::default() });
    let top = world.root();
    let answer = world.call(client, &list(top, 0, Verifier::default(), 4000));
    let Ok(Reply::ReadDirInline(page)) = answer.reply() else { panic!() };
    let mut names: Vec<&[u8]> = page.entries.iter().map(|entry| entry.name).collect();
    names.sort_unstable();
    assert_eq!(names, [b"fixed".as_slice(), b"open"]);
    let open = found(&world.call(client, &lookup(top, &[b"open"])));
    let fixed = found(&world.call(client, &lookup(top, &[b"fixed"])));
    assert!(open.fs != fixed.fs && open.fs != top.fs);
    for export in [open, fixed] {
        let up = Request::LookupP(dafs::LookupP { fh: export });
        assert_eq!(found(&world.call(client, &up)), top);
    }
    for dir in [top, fixed] {
        for request in [
            mkdir(dir, b"x"),
            remove(dir, b"open", false),
            rename(dir, b"open", b"closed"),
            Request::Open(open_request(dir, &[b"f"], b"o")),
            Request::Link(dafs::Link { source: dir, target_dir: dir, name: b"l" }),
            set(
                File { fh: dir, id: StateId([0; 8]) },
                Attributes { mode: Some(0o700), ..Attributes::default() },
            ),
        ] {
            assert_eq!(world.status(client, &request), Status::RoFs, "{request:?}");
        }
    }
    let path = [b"open".as_slice(), b"f"];
    let file = world.open_with(client, &open_request(top, &path, b"o")).unwrap();
    let across = Request::Link(dafs::Link { source: file.fh, target_dir: fixed, name: b"l" });
    assert_eq!(world.status(client, &across), Status::XDev);
    let across = Request::Rename(dafs::Rename {
        source_dir: open,
        target_dir: fixed,
        old_name: b"f",
        new_name: b"f",
    });
    assert_eq!(world.status(client, &across), Status::XDev);
    // The object of one export does not exist in another.
    let crossed = FileHandle { fs: fixed.fs, file: file.fh.file };
    let status = attributes(&mut world, client, crossed).unwrap_err();
    assert!(matches!(status, Status::BadHandle | Status::Stale));
    world.end();
}

#[test]
fn squashing_makes_root_nobody() {
    for (squash, uid, expected) in [
        (Squash::Root, 0, "65534"),
        (Squash::Root, 1234, "1234"),
        (Squash::All, 1234, "65534"),
        (Squash::None, 0, "0"),
    ] {
        let options = ExportOptions { squash, ..ExportOptions::default() };
        let (mut world, client) =
            World::with_session(Setup { exports: vec![("", options)], ..Setup::default() });
        let register = Request::RegisterCred(dafs::RegisterCred {
            credential: dafs::Credential::Id { uid, gid: uid, groups: dafs::Seq::empty() },
        });
        let answer = world.call(client, &register);
        let Ok(Reply::RegisterCred(reply)) = answer.reply() else { panic!() };
        world.clients[client].cred = reply.cred_handle.0;
        let file = world.open(client, b"f");
        let wanted = AttrMask::OWNER;
        let get = Request::GetAttrInline(dafs::GetAttrInline { fh: file.fh, attributes: wanted });
        let answer = world.call(client, &get);
        let Ok(Reply::GetAttrInline(reply)) = answer.reply() else { panic!() };
        assert_eq!(reply.attributes.owner, Some(expected.as_bytes()));
        world.end();
    }
}

#[test]
fn the_server_refuses_purges_and_callbacks() {
    let (mut world, client) = World::with_session(Setup::default());
    let File { fh, id: state_id } = world.open(client, b"f");
    assert_eq!(world.status(client, &Request::DelegPurge), Status::NotSupp);
    let callbacks = [
        Request::BcNull,
        Request::BcGetAttr(dafs::GetAttrInline { fh, attributes: AttrMask::CHANGE }),
        Request::BcRecall(dafs::BcRecall { fh, state_id, truncate: false }),
        Request::BcBatchCompletion(dafs::BatchCompletions { completions: dafs::Seq::empty() }),
    ];
    for request in callbacks {
        assert_eq!(world.status(client, &request), Status::IllegalState);
    }
    world.end();
}
