//! Requests of broken and hostile clients.

use super::*;
use dafs_wire::nfs3::{MkdirArgs, RenameArgs, SetTime, SetattrArgs, Time};

#[test]
fn arguments_that_end_early_are_garbage() {
    let world = World::new();
    let root = world.root();
    let place = DirOpArgs { dir: FileHandle(&root), name: b"name" };
    let requests = [
        (Procedure::Getattr, bytes(&GetattrArgs { object: FileHandle(&root) })),
        (Procedure::Lookup, bytes(&place)),
        (Procedure::Mkdir, bytes(&MkdirArgs { place, attributes: SetAttributes::default() })),
        (Procedure::Create, bytes(&CreateArgs { place, how: guarded() })),
        (Procedure::Rename, bytes(&RenameArgs { from: place, to: place })),
    ];
    for (procedure, args) in requests {
        for len in 0..args.len() {
            let answer = world.send(len as u32, procedure, &args[..len]);
            assert_eq!(answer, None, "{procedure:?} cut at {len}");
        }
    }
    assert_eq!(world.lookup(&root, "name"), Err(Status::NoEnt), "nothing was carried out");
}

#[test]
fn lengths_past_the_record_are_garbage() {
    let world = World::new();
    let root = world.root();
    let args = bytes(&DirOpArgs { dir: FileHandle(&root), name: b"name" });
    for at in [0, 68] {
        for len in [65u32, 1 << 20, u32::MAX, u32::MAX - 3] {
            let mut bad = args.clone();
            bad[at..at + 4].copy_from_slice(&len.to_be_bytes());
            assert_eq!(world.send(1, Procedure::Lookup, &bad), None, "{len} at {at}");
        }
    }
}

#[test]
fn handles_that_were_never_given_out_are_refused() {
    let world = World::new();
    let root = world.root();
    assert_eq!(world.getattr(&Vec::new()), Err(Status::BadHandle));
    assert_eq!(world.getattr(&root[..63].to_vec()), Err(Status::BadHandle));
    for at in [0, 15, 16, 40, 63] {
        let mut forged = root.clone();
        forged[at] ^= 0x80;
        let status = world.getattr(&forged).unwrap_err();
        assert!(matches!(status, Status::BadHandle | Status::Stale), "{status:?} at {at}");
    }
}

#[test]
fn names_that_are_no_names_are_refused_everywhere() {
    let world = World::new();
    let root = world.root();
    let long = "x".repeat(256);
    let cases = [
        ("", Status::Inval),
        ("a/b", Status::Inval),
        ("/", Status::Inval),
        ("a\0", Status::Inval),
        (&long, Status::NameTooLong),
    ];
    for (name, status) in cases {
        assert_eq!(world.lookup(&root, name), Err(status), "{name:?}");
        assert_eq!(world.create(&root, name, guarded()), Err(status), "{name:?}");
        assert_eq!(world.remove(&root, name), Err(status), "{name:?}");
        assert_eq!(world.remove_by(Procedure::Rmdir, &root, name), Err(status), "{name:?}");
    }
    // Bytes that are not UTF-8 are a name like any other.
    let place = DirOpArgs { dir: FileHandle(&root), name: b"\xff\xfe" };
    let results = world.call(Procedure::Create, &CreateArgs { place, how: guarded() });
    assert!(made(&results).is_ok());
}

#[test]
fn attributes_out_of_range_are_refused() {
    let world = World::new();
    let file = world.file("f");
    let set = |new| {
        let args = SetattrArgs { object: FileHandle(&file), new, guard: None };
        let results = world.call(Procedure::Setattr, &args);
        let result = decode_results::<WccResult, ChangeFailure>(&results).unwrap();
        result.map(|_| ()).map_err(|failure| failure.status)
    };
    let nothing = SetAttributes::default();
    let time = SetTime::ToClient(Time { seconds: 0, nanoseconds: u32::MAX });
    assert_eq!(set(SetAttributes { atime: time, ..nothing }), Err(Status::Inval));
    assert_eq!(set(SetAttributes { size: Some(u64::MAX), ..nothing }), Err(Status::FBig));
    assert_eq!(set(nothing), Ok(()));
}

#[test]
fn callers_from_elsewhere_or_of_another_flavour_are_refused() {
    let mut world = World::with(vec![export("", |options| {
        options.admits.unprivileged_ports = false;
    })]);
    let root = world.root();
    assert!(world.getattr(&root).is_ok());
    world.sender.origin = from("127.0.0.1:1024");
    assert_eq!(world.getattr(&root), Err(Status::Acces));
    world.sender.origin = from("192.0.2.1:700");
    assert_eq!(world.getattr(&root), Err(Status::Acces));
    world.sender.origin = from("127.0.0.1:700");
    world.sender.who.flavour = Flavour::None;
    // Without a user, the root shows only what a mount needs.
    let object = bytes(&GetattrArgs { object: FileHandle(&root) });
    assert!(world.getattr(&root).is_ok());
    assert_eq!(world.send(90, Procedure::FsStat, &object), None);
}

#[test]
fn a_read_only_export_changes_nothing() {
    let world = World::with(vec![export("", |options| options.read_only = true)]);
    let root = world.root();
    assert_eq!(world.create(&root, "f", guarded()), Err(Status::RoFs));
    assert_eq!(world.remove(&root, "f"), Err(Status::RoFs));
}
