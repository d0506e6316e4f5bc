//! Other clients change the same objects between the intent of a change and the crash, without
//! intents.

use super::*;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

/// An object of another client under the name stays unchanged: the client with the intent gets no
/// rights on it, and is not told that it made it.
#[test]
fn an_object_that_somebody_else_made_is_left_alone() {
    let greedy = SetAttr { mode: Some(0o6777), uid: Some(7), gid: Some(7), ..NONE };
    for mode in [Durability::Crash, Durability::Power] {
        let mut world = World::new(mode);
        world.cred = Cred::new(7, 7);
        for (stream, kind) in [(0, Kind::Regular), (1, Kind::Directory)] {
            let name = if kind == Kind::Regular { &b"file"[..] } else { b"directory" };
            let change = match kind {
                Kind::Regular => Change::Create { dir: &world.root, name, attr: &greedy },
                _ => Change::Make { dir: &world.root, name, kind, attr: &greedy },
            };
            std::mem::forget(world.op(stream, &change));
            let (other, own) = (Cred::new(8, 8), SetAttr { mode: Some(0o600), ..NONE });
            if kind == Kind::Regular {
                let (how, mode) = (CreateHow::Guarded, OpenMode { read: true, write: true });
                drop(world.store.create(&other, &world.root.file, name, how, &own, mode).unwrap());
            } else {
                let object = NewObject::Directory;
                world.store.make(&other, &world.root.file, name, object, &own).unwrap();
            }
        }
        let (keys, store) = ([world.key(0), world.key(1)], world.store.clone());
        let world = world.restart(mode == Durability::Power, store);
        for name in ["file", "directory"] {
            let found = world.store.getattr(&world.at(name).unwrap().file).unwrap();
            assert_eq!((found.uid, found.gid, found.mode), (8, 8, 0o600), "{name}");
        }
        assert_eq!(keys.map(|key| world.service.durable.kept_answer(&key)), [None, None]);
    }
}

/// An old file that was moved to the name is not the new one of the intent, even if it belongs to
/// the same user.
#[test]
fn an_object_that_is_older_than_its_making_was_not_made() {
    let attr = SetAttr { mode: Some(0o6777), ..NONE };
    let now = Arc::new(AtomicI64::new(1));
    let clock = now.clone();
    let options = MemoryOptions {
        clock: Arc::new(move || TimeSpec { seconds: clock.load(Relaxed), nanoseconds: 0 }),
        root_mode: 0o777,
        ..MemoryOptions::default()
    };
    let store = Arc::new(MemoryStore::new(options));
    let make = |name| {
        let (how, mode) = (CreateHow::Guarded, OpenMode { read: true, write: true });
        drop(store.create(&cred(), &store.root(), name, how, &NONE, mode).unwrap());
    };
    make(b"old");
    now.store(2, Relaxed);
    make(b"another");
    let world = World::with(Durability::Crash, store);
    std::mem::forget(world.op(0, &Change::Create { dir: &world.root, name: b"new", attr: &attr }));
    world.store.rename(&cred(), &world.root.file, b"old", &world.root.file, b"new").unwrap();
    let world = world.crash(false);
    assert_eq!(world.kept_answer(0), None);
    let found = world.store.getattr(&world.at("new").unwrap().file).unwrap();
    assert_eq!(found.mode & 0o7000, 0);
}

/// A file that others change does not look emptied, nor does one that was empty before. But it may
/// have been emptied, and filled again.
#[test]
fn a_file_is_emptied_when_its_content_is_gone() {
    for (size, emptied) in [(6, false), (0, false), (6, true)] {
        let world = World::new(Durability::Crash);
        let (root, file) = (world.root, world.at("grown").unwrap());
        if !emptied {
            let cut = SetAttr { size: Some(size), ..NONE };
            world.store.setattr(&cred(), &file.file, &cut, None).unwrap();
        }
        std::mem::forget(world.op(0, &Change::Create { dir: &root, name: b"grown", attr: &EMPTY }));
        if emptied {
            world.store.setattr(&cred(), &file.file, &EMPTY, None).unwrap();
        } else {
            // Only the change attribute is evidence.
            let chown = SetAttr { uid: Some(3), ..NONE };
            world.store.setattr(&cred(), &file.file, &chown, None).unwrap();
        }
        let world = world.crash(false);
        match (world.kept_answer(0), emptied, size) {
            (Some(Answer::Happened(_)), true, _)
            | (Some(Answer::Failed), false, 6)
            | (None, false, 0) => {}
            (answer, ..) => panic!("{answer:?} {emptied} {size}"),
        }
    }
}

/// An object that belongs to another user gets no rights that its owner has not given it, even if
/// the superuser intended to give the new object away.
#[test]
fn a_file_of_another_user_gives_no_rights() {
    let attr = SetAttr { mode: Some(0o6755), uid: Some(7), gid: Some(7), ..NONE };
    let world = World::new(Durability::Crash);
    std::mem::forget(world.op(0, &Change::Create { dir: &world.root, name: b"new", attr: &attr }));
    let (other, own) = (Cred::new(7, 7), SetAttr { mode: Some(0o755), ..NONE });
    let (how, mode) = (CreateHow::Guarded, OpenMode { read: true, write: true });
    drop(world.store.create(&other, &world.root.file, b"new", how, &own, mode).unwrap());
    let world = world.crash(false);
    assert_eq!(world.kept_answer(0), Some(Answer::Failed));
    let found = world.store.getattr(&world.at("new").unwrap().file).unwrap();
    assert_eq!((found.uid, found.mode), (7, 0o755));
}

/// When neither name leads to the source of a rename, it may have been renamed and removed, or
/// removed before. The client is told neither.
#[test]
fn a_rename_of_what_is_gone_from_both_names_is_told_as_failed() {
    for (to, other, answer) in [
        (&b"fresh"[..], &b"fresh"[..], Some(Answer::Failed)),
        (b"fresh", b"moved", Some(Answer::Failed)),
        // The target that would have been replaced is there.
        (b"victim", b"moved", None),
    ] {
        let world = World::new(Durability::Crash);
        let change =
            Change::Rename { from_dir: &world.root, from: b"moved", to_dir: &world.root, to };
        std::mem::forget(world.op(0, &change));
        if other == to {
            world.store.rename(&cred(), &world.root.file, b"moved", &world.root.file, to).unwrap();
        }
        world.store.remove(&cred(), &world.root.file, other).unwrap();
        let world = world.crash(false);
        assert_eq!(world.kept_answer(0), answer);
    }
}
