//! Names: LOOKUP, CREATE, LINK, RENAME, REMOVE, READLINK, READDIR.

use super::helper::*;
use dafs_wire::nfs4::*;

fn readdir(cookie: u64, verifier: Verifier, names: u32, max: u32, request: Bitmap) -> Op<'static> {
    Op::Readdir(ReaddirArgs {
        cookie,
        cookie_verifier: verifier,
        directory_bytes: names,
        result_bytes_max: max,
        request,
    })
}

#[test]
fn names_are_checked_and_looked_up() {
    let mut client = Client::new(1);
    client.directory(b"d");
    client.file(b"f");
    client.status(&[make(CreateType::Symlink(b"f".into()), b"l")]);
    let long = [b'a'; 300];
    for (name, status) in [
        (&b""[..], Status::Inval),
        (b".", Status::BadName),
        (b"..", Status::BadName),
        (b"a/b", Status::BadChar),
        (b"a\0b", Status::BadChar),
        (&long, Status::NameTooLong),
        (b"none", Status::NoEnt),
        (b"d", Status::Ok),
    ] {
        assert_eq!(client.status(&[lookup(name)]), status, "{name:?}");
    }
    assert_eq!(client.status(&[lookup(b"f"), lookup(b"x")]), Status::NotDir);
    assert_eq!(client.status(&[lookup(b"l"), lookup(b"x")]), Status::Symlink);
    let up = || Op::Lookupp(LookuppArgs);
    assert_eq!(client.status(&[up()]), Status::NoEnt);
    assert_eq!(client.status(&[lookup(b"f"), up()]), Status::NotDir);
    assert_eq!(client.status(&[lookup(b"l"), up()]), Status::Symlink);
    let answer = client.at_root(&[getfh(), lookup(b"d"), up(), getfh()]);
    assert_eq!(handle(&answer, 2), handle(&answer, 5));
    // A lookup needs a file handle.
    assert_eq!(client.send(&[lookup(b"d")]).status(), Status::NoFileHandle);
}

#[test]
fn every_kind_of_object_is_made() {
    let mut client = Client::new(1);
    let numbers = DeviceNumbers { major: 1, minor: 3 };
    for (kind, name) in [
        (CreateType::Plain(FileType::Directory), &b"d"[..]),
        (CreateType::Plain(FileType::Socket), b"s"),
        (CreateType::Plain(FileType::Fifo), b"p"),
        (CreateType::Symlink(b"to/there".into()), b"l"),
        (CreateType::BlockDevice(numbers), b"b"),
        (CreateType::CharacterDevice(numbers), b"c"),
    ] {
        let answer = client.at_root(&[make(kind, name), getattr(&[Attr::Type, Attr::Rawdev])]);
        assert_eq!(answer.status(), Status::Ok, "{kind:?}");
        let ResultBody::Create(made) = answer.body(2) else { panic!() };
        assert!(made.change.before != made.change.after);
        let told = attributes(&answer, 3);
        assert_eq!(told.kind, Some(kind.file_type()));
        if matches!(kind, CreateType::BlockDevice(_) | CreateType::CharacterDevice(_)) {
            assert_eq!(told.rawdev, Some(numbers));
        }
        assert_eq!(client.status(&[make(kind, name)]), Status::Exist);
    }
    let answer = client.at_root(&[lookup(b"l"), Op::Readlink(ReadlinkArgs)]);
    let ResultBody::Readlink(link) = answer.body(3) else { panic!() };
    assert_eq!(link.text, b"to/there".into());
    assert_eq!(client.status(&[lookup(b"d"), Op::Readlink(ReadlinkArgs)]), Status::WrongType);
    for kind in [FileType::Regular, FileType::NamedAttribute, FileType::Other(77)] {
        assert_eq!(client.status(&[make(CreateType::Plain(kind), b"x")]), Status::BadType);
    }
    assert_eq!(client.status(&[make(CreateType::Symlink(b"".into()), b"x")]), Status::Inval);
    let directory = CreateType::Plain(FileType::Directory);
    assert_eq!(client.status(&[lookup(b"s"), make(directory, b"x")]), Status::NotDir);
}

#[test]
fn names_come_move_and_go() {
    let mut client = Client::new(1);
    client.directory(b"d");
    let (fh, stateid) = client.file(b"f");
    let link = |name| Op::Link(LinkArgs { name });
    let remove = |name| Op::Remove(RemoveArgs { name });
    let rename = |old_name, new_name| Op::Rename(RenameArgs { old_name, new_name });
    let root = || Op::Putrootfh(PutrootfhArgs);
    assert_eq!(client.send(&[putfh(&fh), savefh(), root(), link(b"g")]).status(), Status::Ok);
    assert_eq!(client.send(&[putfh(&fh), savefh(), root(), link(b"g")]).status(), Status::Exist);
    let linked = client.at_root(&[lookup(b"d"), savefh(), root(), link(b"h")]);
    assert_eq!(linked.status(), Status::IsDir);
    assert_eq!(client.status(&[link(b"h")]), Status::NoFileHandle);
    // Both names lead to one file, so the rename has no effect.
    for (from, to) in [(b"f", b"g"), (b"f", b"f"), (b"d", b"d")] {
        let answer = client.at_root(&[savefh(), rename(from, to)]);
        let ResultBody::Rename(change) = answer.body(3) else { panic!() };
        assert_eq!(change.source.before, change.source.after);
        assert_eq!(change.target.before, change.target.after);
    }
    assert_eq!(client.status(&[lookup(b"f")]), Status::Ok);
    for (from, to, status) in [
        (&b"none"[..], &b"x"[..], Status::NoEnt),
        (b"", b"x", Status::Inval),
        (b"f", b"", Status::Inval),
        (b"..", b"x", Status::BadName),
        (b"f", b".", Status::BadName),
        (b"f", b"d", Status::Exist),
        (b"d", b"f", Status::NotDir),
    ] {
        assert_eq!(client.status(&[savefh(), rename(from, to)]), status, "{from:?} {to:?}");
    }
    let moved = client.at_root(&[savefh(), lookup(b"d"), rename(b"g", b"g")]);
    let ResultBody::Rename(change) = moved.body(4) else { panic!() };
    assert!(change.source.before != change.source.after);
    assert_eq!(client.status(&[remove(b"d")]), Status::NotEmpty);
    assert_eq!(client.status(&[lookup(b"d"), remove(b"g")]), Status::Ok);
    assert_eq!(client.status(&[remove(b"d")]), Status::Ok);
    assert_eq!(client.status(&[remove(b"f")]), Status::Ok);
    assert_eq!(client.status(&[remove(b"f")]), Status::NoEnt);
    // The file stays for clients that have it open.
    let answer = client.send(&[putfh(&fh), write(stateid, 0, b"x"), getattr(&[Attr::Numlinks])]);
    assert_eq!(attributes(&answer, 3).numlinks, Some(0));
    assert_eq!(client.send(&[putfh(&fh), close(stateid)]).status(), Status::Ok);
    assert_eq!(client.send(&[putfh(&fh), getattr(&[Attr::Size])]).status(), Status::Stale);
}

/// Each entry needs an access to its object, so the listings would block all other requests.
#[test]
fn a_reactor_makes_few_listings_in_a_turn() {
    let mut client = Client::new(1);
    for number in 0..300 {
        let name = format!("name-{number:03}").into_bytes();
        client.status(&[make(CreateType::Plain(FileType::Fifo), &name)]);
    }
    let request =
        Attr::set(&[Attr::Type, Attr::Fileid, Attr::RdattrError, Attr::Size, Attr::Owner]);
    for turn in 0..3 {
        client.world.now_ns += 1;
        client.world.pool.take_lanes();
        for _ in 0..20 {
            let answer = client.at_root(&[readdir(0, Verifier::default(), 0, 20_000, request)]);
            let ResultBody::Readdir(result) = answer.body(2) else { panic!() };
            assert!(result.entries().count() > 100);
        }
        let elsewhere = client.world.pool.take_lanes().len();
        assert!((16..20).contains(&elsewhere), "{elsewhere} of 20 in turn {turn}");
    }
}

#[test]
fn listings_keep_to_their_limits_and_go_on() {
    let mut client = Client::new(1);
    let mut names: Vec<Vec<u8>> = (0..40).map(|at| format!("name-{at:02}").into_bytes()).collect();
    for name in &names {
        client.status(&[make(CreateType::Plain(FileType::Fifo), name)]);
    }
    let request = Attr::set(&[Attr::Type, Attr::Fileid, Attr::RdattrError, Attr::Size]);
    let (mut cookie, mut verifier) = (0, Verifier::default());
    let mut listed = Vec::new();
    let mut rounds = 0;
    loop {
        let answer = client.at_root(&[readdir(cookie, verifier, 0, 500, request)]);
        let ResultBody::Readdir(result) = answer.body(2) else { panic!() };
        let bytes = answer.0.len() - 16 - (8 + 36) - 8 - 8;
        assert!(bytes <= 500, "{bytes}");
        for entry in result.entries() {
            assert!(entry.cookie > 2);
            cookie = entry.cookie;
            listed.push(entry.name.to_vec());
            let told = Attributes::decode(&entry.attributes).unwrap();
            assert_eq!(told.kind, Some(FileType::Fifo));
            assert_eq!(told.mask(), request);
        }
        verifier = result.cookie_verifier;
        rounds += 1;
        if result.eof {
            break;
        }
    }
    assert!(rounds > 3);
    listed.sort();
    names.sort();
    assert_eq!(listed, names);
    // Names and cookies alone: 20 bytes each.
    let answer = client.at_root(&[readdir(0, Verifier::default(), 65, 4000, Bitmap::EMPTY)]);
    let ResultBody::Readdir(result) = answer.body(2) else { panic!() };
    assert_eq!(result.entries().count(), 3);
    let bad = [
        (1, verifier, 4000, Status::BadCookie),
        (2, verifier, 4000, Status::BadCookie),
        (cookie, Verifier([1; 8]), 4000, Status::NotSame),
        (0, Verifier::default(), 16, Status::TooSmall),
        (0, Verifier::default(), 3, Status::TooSmall),
    ];
    for (cookie, verifier, max, status) in bad {
        assert_eq!(client.status(&[readdir(cookie, verifier, 0, max, request)]), status);
    }
    let op = || readdir(0, Verifier::default(), 0, 4000, request);
    assert_eq!(client.status(&[lookup(b"name-00"), op()]), Status::NotDir);
    let set_only = readdir(0, Verifier::default(), 0, 4000, Attr::set(&[Attr::TimeModifySet]));
    assert_eq!(client.status(&[set_only]), Status::Inval);
    client.directory(b"empty");
    let answer =
        client.at_root(&[lookup(b"empty"), readdir(0, Verifier::default(), 0, 16, request)]);
    let ResultBody::Readdir(result) = answer.body(3) else { panic!() };
    assert!(result.eof && result.entries().next().is_none());
}
