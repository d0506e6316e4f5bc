//! Behaviour of names, directories and ids.

use super::*;
use dafs_mem::VolatileSlice;
use dafs_store::*;
use std::collections::BTreeSet;

const NO_ATTR: SetAttr =
    SetAttr { mode: None, uid: None, gid: None, size: None, atime: None, mtime: None };

pub fn every_kind_can_be_made(w: &World) {
    let root = w.root();
    let kinds = [
        ("d", NewObject::Directory, Kind::Directory),
        ("l", NewObject::Symlink(b"a/b"), Kind::Symlink),
        ("s", NewObject::Socket, Kind::Socket),
        ("p", NewObject::Fifo, Kind::Fifo),
    ];
    for (name, object, kind) in kinds {
        let before = w.store.getattr(&root).unwrap();
        let made = w.make(&root, name, object, &NO_ATTR).unwrap();
        assert_eq!((made.attr.kind, made.attr.uid), (kind, w.cred.uid), "{name}");
        assert_eq!(made.dir.before, before.change);
        assert_eq!(w.store.getattr(&made.id).unwrap().kind, kind);
        assert_eq!(w.lookup(&root, name), Ok(made.id));
        assert_eq!(w.make(&root, name, object, &NO_ATTR).err(), Some(StoreError::Exists));
        w.remove(&root, name).unwrap();
        assert_eq!(w.store.getattr(&made.id), Err(StoreError::Stale), "{name}");
    }
    let device = w.make(&root, "c", NewObject::CharDevice { major: 1, minor: 3 }, &NO_ATTR);
    match device {
        Ok(made) => assert_eq!(made.attr.raw_device, (1, 3)),
        Err(error) => assert_eq!(error, StoreError::NotOwner),
    }
}

pub fn files_without_a_name_can_get_one(w: &World) {
    let root = w.root();
    let dir = w.make(&root, "d", NewObject::Directory, &NO_ATTR).unwrap().id;
    let make = |mode| {
        let attr = SetAttr { mode: Some(0o640), size: Some(5), ..NO_ATTR };
        w.store.create_unlinked(&w.cred, &dir, &attr, mode)
    };
    let before = w.store.getattr(&dir).unwrap().change;
    let made = make(OpenMode { read: true, write: true }).unwrap();
    let Attr { kind, links, uid, size, mode, .. } = made.attr;
    assert_eq!((kind, links, uid, size, mode), (Kind::Regular, 0, w.cred.uid, 5, 0o640));
    assert_eq!((made.dir.before, made.dir.after), (before, before));
    assert_eq!(w.names(&dir), Vec::<String>::new());
    let mut bytes = *b"content";
    let view = [VolatileSlice::from_mut(&mut bytes)];
    assert_eq!(made.file.append(&view, Stability::File), Ok(5));
    w.store.link(&w.cred, &made.id, &root, b"named").unwrap();
    assert_eq!(w.lookup(&root, "named"), Ok(made.id));
    assert_eq!(w.store.getattr(&made.id).unwrap().links, 1);
    w.store.link(&w.cred, &made.id, &dir, b"again").unwrap();
    drop(made.file);
    assert_eq!(w.store.getattr(&made.id).unwrap().size, 12);
    // A file that never gets a name is removed with its last open.
    let made = make(OpenMode { read: true, write: false }).unwrap();
    assert_eq!(made.file.append(&view, Stability::Data), Err(StoreError::Access));
    drop(made.file);
    assert_eq!(w.store.getattr(&made.id), Err(StoreError::Stale));
    let link = w.store.link(&w.cred, &made.id, &root, b"late");
    assert_eq!(link.err(), Some(StoreError::Stale));
    // A file that has lost its name does not get another.
    let made = make(OpenMode { read: false, write: true }).unwrap();
    w.store.link(&w.cred, &made.id, &root, b"short").unwrap();
    w.remove(&root, "short").unwrap();
    let link = w.store.link(&w.cred, &made.id, &root, b"late");
    assert_eq!(link.err(), Some(StoreError::Stale));
    assert_eq!(make(OpenMode { read: false, write: false }).err(), Some(StoreError::Invalid));
    let in_file =
        w.store.create_unlinked(&w.cred, &made.id, &NO_ATTR, OpenMode { read: true, write: true });
    assert_eq!(in_file.err(), Some(StoreError::NotDirectory));
    w.remove(&root, "named").unwrap();
    w.remove(&dir, "again").unwrap();
    w.remove(&root, "d").unwrap();
}

pub fn names_and_attributes_can_be_made_stable(w: &World) {
    let root = w.root();
    let dir = w.make(&root, "d", NewObject::Directory, &NO_ATTR).unwrap().id;
    let link = w.make(&dir, "l", NewObject::Symlink(b"x"), &NO_ATTR).unwrap().id;
    let file = w.create(&dir, "f").id;
    let gone = w.make(&root, "g", NewObject::Directory, &NO_ATTR).unwrap().id;
    w.remove(&root, "g").unwrap();
    w.store.commit_names(&[]).unwrap();
    w.store.commit_names(&[dir, file, root, link, dir]).unwrap();
    // Removed objects need no sync any more.
    w.store.commit_names(&[gone, dir]).unwrap();
    let forged = w.store.commit_names(&[dir, FileId([7; FILE_ID_BYTES])]);
    assert_eq!(forged, Err(StoreError::BadHandle));
}

pub fn names_are_checked_everywhere(w: &World) {
    let root = w.root();
    let f = w.create(&root, "f").id;
    let long = "x".repeat(256);
    let bad = [
        ("", StoreError::Invalid),
        (".", StoreError::Invalid),
        ("..", StoreError::Invalid),
        ("a/b", StoreError::Invalid),
        ("../f", StoreError::Invalid),
        ("a\0", StoreError::Invalid),
        (&long, StoreError::NameTooLong),
    ];
    for (name, error) in bad {
        let bytes = name.as_bytes();
        assert_eq!(w.lookup(&root, name), Err(error));
        assert_eq!(w.remove(&root, name), Err(error));
        assert_eq!(w.rename(&root, "f", &root, name), Err(error));
        assert_eq!(w.rename(&root, name, &root, "f"), Err(error));
        assert_eq!(w.store.link(&w.cred, &f, &root, bytes), Err(error));
        assert_eq!(w.make(&root, name, NewObject::Directory, &NO_ATTR).err(), Some(error));
        let how = CreateHow::Unchecked;
        let created = w.store.create(&w.cred, &root, bytes, how, &NO_ATTR, READ_WRITE);
        assert_eq!(created.err(), Some(error));
    }
    assert_eq!(w.names(&root), ["f"]);
}

pub fn any_bytes_make_a_name(w: &World) {
    let root = w.root();
    let names: [&[u8]; 4] = [b"\xff\xfe\x01", &[b'y'; 255], b"...", b" \n\t\\"];
    for name in names {
        let how = CreateHow::Guarded;
        let made = w.store.create(&w.cred, &root, name, how, &NO_ATTR, READ_WRITE).unwrap();
        assert_eq!(w.store.lookup(&w.cred, &root, name).unwrap().0, made.id);
    }
    let mut seen = BTreeSet::new();
    let end =
        w.store.readdir(&w.cred, &root, 0, false, &mut |entry| seen.insert(entry.name.to_vec()));
    assert_eq!(end, Ok(true));
    assert_eq!(seen, names.iter().map(|name| name.to_vec()).collect());
}

pub fn creating_respects_what_is_there(w: &World) {
    let root = w.root();
    let create = |name: &str, how, attr: &SetAttr| {
        w.store.create(&w.cred, &root, name.as_bytes(), how, attr, READ_WRITE)
    };
    let first = create("f", CreateHow::Unchecked, &NO_ATTR).unwrap();
    assert!(first.created);
    write(&*first.file, 0, b"content").unwrap();
    let again = create("f", CreateHow::Unchecked, &SetAttr { mode: Some(0), ..NO_ATTR }).unwrap();
    assert_eq!((again.created, again.id, again.attr.size), (false, first.id, 7));
    assert_eq!(again.attr.mode, first.attr.mode);
    let cut = create("f", CreateHow::Unchecked, &SetAttr { size: Some(0), ..NO_ATTR }).unwrap();
    assert_eq!((cut.created, cut.attr.size), (false, 0));
    assert_eq!(create("f", CreateHow::Guarded, &NO_ATTR).err(), Some(StoreError::Exists));
    let sized = create("g", CreateHow::Guarded, &SetAttr { size: Some(10), ..NO_ATTR }).unwrap();
    assert_eq!(sized.attr.size, 10);
    // A create of a file that its creator may not write later still opens it for writing.
    let sealed =
        create("h", CreateHow::Guarded, &SetAttr { mode: Some(0o444), ..NO_ATTR }).unwrap();
    assert_eq!(write(&*sealed.file, 0, b"x"), Ok(1));
    w.mkdir(&root, "d");
    assert_eq!(create("d", CreateHow::Unchecked, &NO_ATTR).err(), Some(StoreError::IsDirectory));
    assert_eq!(create("d", CreateHow::Guarded, &NO_ATTR).err(), Some(StoreError::Exists));
    w.make(&root, "l", NewObject::Symlink(b"g"), &NO_ATTR).unwrap();
    assert_eq!(create("l", CreateHow::Unchecked, &NO_ATTR).err(), Some(StoreError::Symlink));
    w.make(&root, "p", NewObject::Fifo, &NO_ATTR).unwrap();
    assert_eq!(create("p", CreateHow::Unchecked, &NO_ATTR).err(), Some(StoreError::BadType));
}

pub fn exclusive_creates_know_their_own(w: &World) {
    let root = w.root();
    let create = |verifier: [u8; 8]| {
        let how = CreateHow::Exclusive(verifier);
        w.store.create(&w.cred, &root, b"x", how, &NO_ATTR, READ_WRITE)
    };
    let mine = create(*b"\xff\x01\x02\x03\x84\x05\x06\x07").unwrap();
    assert!(mine.created);
    let retry = create(*b"\xff\x01\x02\x03\x84\x05\x06\x07").unwrap();
    assert_eq!((retry.created, retry.id), (false, mine.id));
    assert_eq!(create(*b"\xff\x01\x02\x03\x84\x05\x06\x08").err(), Some(StoreError::Exists));
    w.mkdir(&root, "d");
    let how = CreateHow::Exclusive([1; 8]);
    let on_dir = w.store.create(&w.cred, &root, b"d", how, &NO_ATTR, READ_WRITE);
    assert_eq!(on_dir.err(), Some(StoreError::Exists));
}

pub fn removed_files_live_until_closed(w: &World) {
    let root = w.root();
    let created = w.create(&root, "f");
    write(&*created.file, 0, b"still here").unwrap();
    let second = w.store.open(&w.cred, &created.id, READ).unwrap();
    w.remove(&root, "f").unwrap();
    assert_eq!(w.lookup(&root, "f"), Err(StoreError::NotFound));
    assert_eq!(read(&*second, 0, 50).unwrap(), b"still here");
    assert_eq!(write(&*created.file, 10, b"!"), Ok(1));
    assert_eq!(created.file.attr().unwrap().links, 0);
    assert_eq!(w.store.getattr(&created.id).unwrap().size, 11);
    let third = w.store.open(&w.cred, &created.id, READ).unwrap();
    assert_eq!(read(&*third, 8, 50).unwrap(), b"re!");
    let relink = w.store.link(&w.cred, &created.id, &root, b"back");
    assert_eq!(relink, Err(StoreError::Stale));
    drop((created.file, second, third));
    assert_eq!(w.store.getattr(&created.id), Err(StoreError::Stale));
    assert_eq!(w.store.open(&w.cred, &created.id, READ).err(), Some(StoreError::Stale));
    let again = w.create(&root, "f");
    assert_ne!(again.id, created.id);
    assert_eq!(w.store.getattr(&created.id), Err(StoreError::Stale));
}

pub fn hard_links_are_one_object(w: &World) {
    let root = w.root();
    let created = w.create(&root, "a");
    let dir = w.mkdir(&root, "d");
    w.store.link(&w.cred, &created.id, &dir, b"b").unwrap();
    assert_eq!(w.lookup(&dir, "b"), Ok(created.id));
    assert_eq!(w.store.getattr(&created.id).unwrap().links, 2);
    assert_eq!(w.store.link(&w.cred, &created.id, &dir, b"b"), Err(StoreError::Exists));
    assert_eq!(w.store.link(&w.cred, &dir, &root, b"dd"), Err(StoreError::IsDirectory));
    // Renaming one name of an object to another name of it has no effect.
    w.rename(&root, "a", &dir, "b").unwrap();
    assert_eq!((w.names(&dir), w.lookup(&root, "a")), (vec!["b".into()], Ok(created.id)));
    w.remove(&root, "a").unwrap();
    assert_eq!(w.store.getattr(&created.id).unwrap().links, 1);
    let link = w.make(&root, "l", NewObject::Symlink(b"d"), &NO_ATTR).unwrap();
    w.store.link(&w.cred, &link.id, &root, b"m").unwrap();
    assert_eq!(w.lookup(&root, "m"), Ok(link.id));
    assert_eq!(w.store.readlink(&w.cred, &link.id).unwrap(), b"d");
}

pub fn renames_replace_what_fits(w: &World) {
    let root = w.root();
    let (d, e) = (w.mkdir(&root, "d"), w.mkdir(&root, "e"));
    let f = w.create(&root, "f").id;
    let g = w.create(&root, "g").id;
    let inner = w.mkdir(&d, "inner");
    let rename = |from_dir, from, to_dir, to| w.rename(from_dir, from, to_dir, to);
    assert_eq!(rename(&root, "none", &root, "x"), Err(StoreError::NotFound));
    assert_eq!(rename(&root, "f", &root, "f"), Ok(()));
    assert_eq!(rename(&root, "f", &root, "d"), Err(StoreError::IsDirectory));
    assert_eq!(rename(&root, "d", &root, "f"), Err(StoreError::NotDirectory));
    assert_eq!(rename(&root, "d", &d, "x"), Err(StoreError::Invalid));
    assert_eq!(rename(&root, "d", &inner, "x"), Err(StoreError::Invalid));
    assert_eq!(rename(&root, "e", &root, "d"), Err(StoreError::NotEmpty));
    assert_eq!(rename(&d, "inner", &root, "d"), Err(StoreError::NotEmpty));
    assert_eq!(rename(&root, "f", &f, "x"), Err(StoreError::NotDirectory));
    rename(&root, "f", &root, "g").unwrap();
    assert_eq!((w.lookup(&root, "g"), w.lookup(&root, "f")), (Ok(f), Err(StoreError::NotFound)));
    assert_eq!(w.store.getattr(&g), Err(StoreError::Stale));
    rename(&root, "d", &root, "e").unwrap();
    assert_eq!(w.lookup(&root, "e"), Ok(d));
    assert_eq!(w.store.getattr(&e), Err(StoreError::Stale));
    rename(&d, "inner", &root, "outer").unwrap();
    assert_eq!(w.store.parent(&w.cred, &inner), Ok(root));
    assert_eq!(w.store.getattr(&root).unwrap().links, 4);
    assert_eq!(w.names(&root), ["e", "g", "outer"]);
}

pub fn directories_go_up_to_the_root_and_no_further(w: &World) {
    let root = w.root();
    assert_eq!(w.store.parent(&w.cred, &root), Err(StoreError::NotFound));
    let mut above = root;
    for depth in 0..20 {
        let dir = w.mkdir(&above, &format!("level{depth}"));
        assert_eq!(w.store.parent(&w.cred, &dir), Ok(above));
        above = dir;
    }
    let file = w.create(&above, "f").id;
    assert_eq!(w.store.parent(&w.cred, &file), Err(StoreError::NotDirectory));
}

pub fn removed_directories_are_stale(w: &World) {
    let root = w.root();
    let dir = w.mkdir(&root, "d");
    w.create(&dir, "f");
    assert_eq!(w.remove(&root, "d"), Err(StoreError::NotEmpty));
    w.remove(&dir, "f").unwrap();
    w.remove(&root, "d").unwrap();
    assert_eq!(w.store.getattr(&dir), Err(StoreError::Stale));
    assert_eq!(w.lookup(&dir, "f"), Err(StoreError::Stale));
    assert_eq!(w.make(&dir, "x", NewObject::Directory, &NO_ATTR).err(), Some(StoreError::Stale));
    assert_eq!(w.store.parent(&w.cred, &dir), Err(StoreError::Stale));
    let listed = w.store.readdir(&w.cred, &dir, 0, false, &mut |_| true);
    assert_eq!(listed, Err(StoreError::Stale));
    assert_eq!(w.remove(&root, "d"), Err(StoreError::NotFound));
}

pub fn removals_take_only_their_kind(w: &World) {
    let root = w.root();
    let remove = |name: &str, kind: RemoveKind| {
        let id = w.store.peek_of_kind(&w.cred, &root, name.as_bytes(), kind)?;
        w.store.remove_known(&w.cred, &root, name.as_bytes(), &id, kind)
    };
    w.create(&root, "f");
    w.mkdir(&root, "d");
    assert_eq!(remove("f", RemoveKind::Directory), Err(StoreError::NotDirectory));
    assert_eq!(remove("d", RemoveKind::NoDirectory), Err(StoreError::IsDirectory));
    assert!(w.lookup(&root, "f").is_ok() && w.lookup(&root, "d").is_ok());
    remove("f", RemoveKind::NoDirectory).unwrap();
    remove("d", RemoveKind::Directory).unwrap();
    assert_eq!(remove("d", RemoveKind::Any), Err(StoreError::NotFound));
}

pub fn wrong_kinds_are_named(w: &World) {
    let root = w.root();
    let f = w.create(&root, "f").id;
    let l = w.make(&root, "l", NewObject::Symlink(b"/etc"), &NO_ATTR).unwrap().id;
    let p = w.make(&root, "p", NewObject::Fifo, &NO_ATTR).unwrap().id;
    assert_eq!(w.lookup(&f, "x"), Err(StoreError::NotDirectory));
    assert_eq!(w.lookup(&l, "passwd"), Err(StoreError::NotDirectory));
    assert_eq!(w.remove(&l, "passwd"), Err(StoreError::NotDirectory));
    let listed = w.store.readdir(&w.cred, &f, 0, false, &mut |_| true);
    assert_eq!(listed, Err(StoreError::NotDirectory));
    assert_eq!(w.store.open(&w.cred, &root, READ).err(), Some(StoreError::IsDirectory));
    assert_eq!(w.store.open(&w.cred, &l, READ).err(), Some(StoreError::Symlink));
    assert_eq!(w.store.open(&w.cred, &p, READ).err(), Some(StoreError::BadType));
    assert_eq!(w.store.readlink(&w.cred, &f), Err(StoreError::Invalid));
    let cut = SetAttr { size: Some(0), ..NO_ATTR };
    assert_eq!(w.store.setattr(&w.cred, &root, &cut, None), Err(StoreError::IsDirectory));
    for text in [&b""[..], b"a\0b"] {
        let made = w.make(&root, "bad", NewObject::Symlink(text), &NO_ATTR);
        assert_eq!(made.err(), Some(StoreError::Invalid));
    }
    let long = vec![b'x'; 4096];
    let made = w.make(&root, "bad", NewObject::Symlink(&long), &NO_ATTR);
    assert_eq!(made.err(), Some(StoreError::NameTooLong));
}

pub fn forged_ids_are_refused(w: &World) {
    let dir = w.mkdir(&w.root(), "d");
    let ids = [w.root(), dir, w.create(&dir, "f").id];
    for id in ids {
        for byte in 0..FILE_ID_BYTES {
            let mut forged = id;
            forged.0[byte] ^= 1;
            assert_eq!(w.store.getattr(&forged), Err(StoreError::BadHandle));
            assert_eq!(w.lookup(&forged, "f"), Err(StoreError::BadHandle));
            let opened = w.store.open(&w.cred, &forged, READ);
            assert_eq!(opened.err(), Some(StoreError::BadHandle));
        }
    }
    for byte in [0, 0xff] {
        assert_eq!(w.store.getattr(&FileId([byte; FILE_ID_BYTES])), Err(StoreError::BadHandle));
    }
}

pub fn listings_in_pages_miss_and_repeat_nothing(w: &World) {
    let dir = w.mkdir(&w.root(), "d");
    let all: BTreeSet<String> = (0..1000).map(|i| format!("entry number {i}")).collect();
    for name in &all {
        w.create(&dir, name);
    }
    for (page, refuse, with_attr) in [(1, true, false), (7, false, true), (300, true, true)] {
        let (mut seen, mut cookie) = (BTreeSet::new(), 0);
        loop {
            let mut count = 0;
            let end = w.store.readdir(&w.cred, &dir, cookie, with_attr, &mut |entry| {
                if refuse && count == page {
                    return false;
                }
                let name = String::from_utf8(entry.name.to_vec()).unwrap();
                assert!(entry.cookie > 2);
                assert_eq!(entry.object.is_some(), with_attr, "{name}");
                if let Some((id, attr)) = entry.object {
                    assert_eq!((attr.file_id, attr.kind), (entry.file_id, Kind::Regular));
                    assert_eq!(w.lookup(&dir, &name), Ok(id));
                }
                assert!(seen.insert(name), "repeated");
                cookie = entry.cookie;
                count += 1;
                refuse || count < page
            });
            if end.unwrap() {
                break;
            }
            assert_eq!(count, page);
        }
        assert_eq!(seen, all);
    }
    for bad in [1, 2] {
        let listed = w.store.readdir(&w.cred, &dir, bad, false, &mut |_| true);
        assert_eq!(listed, Err(StoreError::BadCookie));
    }
}

pub fn listings_bear_changes_in_between(w: &World) {
    let dir = w.mkdir(&w.root(), "d");
    for i in 0..200 {
        w.create(&dir, &format!("stays{i}"));
        w.create(&dir, &format!("goes{i}"));
    }
    let (mut seen, mut cookie, mut turn) = (Vec::new(), 0, 0);
    loop {
        let mut count = 0;
        let end = w.store.readdir(&w.cred, &dir, cookie, false, &mut |entry| {
            seen.push(String::from_utf8(entry.name.to_vec()).unwrap());
            cookie = entry.cookie;
            count += 1;
            count < 10
        });
        if end.unwrap() {
            break;
        }
        for _ in 0..8 {
            if turn < 200 {
                w.remove(&dir, &format!("goes{turn}")).unwrap();
                w.create(&dir, &format!("comes{turn}"));
            }
            turn += 1;
        }
    }
    let stays: BTreeSet<_> = seen.iter().filter(|name| name.starts_with("stays")).collect();
    let stays_seen = seen.iter().filter(|name| name.starts_with("stays")).count();
    assert_eq!((stays.len(), stays_seen), (200, 200));
}

pub fn changes_of_a_directory_are_told(w: &World) {
    let root = w.root();
    let before = w.store.getattr(&root).unwrap().change;
    let made = w.create(&root, "f");
    assert_eq!(made.dir.before, before);
    assert_eq!(made.dir.after, w.store.getattr(&root).unwrap().change);
    let removed = w.remove(&root, "f").unwrap();
    assert_eq!(
        (removed.before, removed.after),
        (made.dir.after, w.store.getattr(&root).unwrap().change)
    );
}

pub fn space_is_told(w: &World) {
    let stat = w.store.fs_stat(&w.cred, &w.root()).unwrap();
    assert!(stat.space_total >= stat.space_free && stat.space_free >= stat.space_available);
    assert!(stat.space_available > 0 && stat.files_total >= stat.files_free);
    assert_eq!((stat.name_bytes_max, stat.read_only), (255, false));
}

pub fn threads_do_not_disturb_each_other(w: &World) {
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                let dir = w.mkdir(&w.root(), &format!("dir{thread}"));
                for i in 0..100 {
                    let made = w.create(&dir, "a");
                    write(&*made.file, 0, &[i; 100]).unwrap();
                    w.rename(&dir, "a", &w.root(), &format!("b{thread}")).unwrap();
                    assert_eq!(read(&*made.file, 0, 200).unwrap(), [i; 100]);
                    let shared = w.store.create(
                        &w.cred,
                        &w.root(),
                        b"shared",
                        CreateHow::Unchecked,
                        &NO_ATTR,
                        READ_WRITE,
                    );
                    assert_eq!(shared.err(), None);
                    match w.remove(&w.root(), "shared") {
                        Ok(_) | Err(StoreError::NotFound) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
    });
    assert_eq!(w.names(&w.root()).len(), 8);
}
