//! Rights of different callers, decided alike by the memory store and, as root, by the kernel.

use crate::common::open_posix;
use dafs_posix::{PosixOptions, PosixStore};
use dafs_store::*;
use dafs_testkit::stores::*;
use std::sync::Arc;
use tempfile::TempDir;

const NONE: SetAttr =
    SetAttr { mode: None, uid: None, gid: None, size: None, atime: None, mtime: None };

fn alice() -> Cred {
    Cred { uid: 1001, gid: 101, groups: Arc::new([500, 501]) }
}

fn bob() -> Cred {
    Cred { uid: 1002, gid: 102, groups: Arc::new([501]) }
}

fn carol() -> Cred {
    Cred::new(1003, 103)
}

fn admin() -> Cred {
    Cred::new(0, 0)
}

/// Runs a test with a store whose root all callers may change.
fn check(test: fn(&dyn Store)) {
    let options = MemoryOptions { root_mode: 0o777, ..MemoryOptions::default() };
    test(&MemoryStore::new(options));
    if let Some((_dir, store)) = open_to_all() {
        test(&store);
    }
}

/// A local directory that all callers may change, if this process may act as them.
fn open_to_all() -> Option<(TempDir, PosixStore)> {
    if !is_root() {
        skipped("acting as several users needs root");
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let store = open_posix(&dir);
    assert!(store.checks_callers());
    let open = SetAttr { mode: Some(0o777), ..NONE };
    store.setattr(&admin(), &store.root(), &open, None).unwrap();
    Some((dir, store))
}

fn create(store: &dyn Store, cred: &Cred, dir: &FileId, name: &str, mode: u32) -> Created {
    let attr = SetAttr { mode: Some(mode), ..NONE };
    store.create(cred, dir, name.as_bytes(), CreateHow::Guarded, &attr, READ_WRITE).unwrap()
}

fn mkdir(store: &dyn Store, cred: &Cred, dir: &FileId, name: &str, mode: u32) -> Made {
    let attr = SetAttr { mode: Some(mode), ..NONE };
    store.make(cred, dir, name.as_bytes(), NewObject::Directory, &attr).unwrap()
}

#[test]
fn files_belong_to_their_makers_and_obey_their_modes() {
    check(|store| {
        let root = store.root();
        let file = create(store, &alice(), &root, "f", 0o640);
        assert_eq!((file.attr.uid, file.attr.gid), (1001, 101));
        let set = SetAttr { gid: Some(501), ..NONE };
        assert_eq!(store.setattr(&alice(), &file.id, &set, None).unwrap().gid, 501);
        let may = |cred: &Cred, mode| store.open(cred, &file.id, mode).err();
        let denied = Some(StoreError::Access);
        assert_eq!((may(&alice(), READ), may(&alice(), WRITE)), (None, None));
        assert_eq!((may(&bob(), READ), may(&bob(), WRITE)), (None, denied));
        assert_eq!((may(&carol(), READ), may(&carol(), WRITE)), (denied, denied));
        assert_eq!((may(&admin(), READ), may(&admin(), WRITE)), (None, None));
        let wanted = AccessMask::READ | AccessMask::MODIFY | AccessMask::EXECUTE;
        let access = |cred: &Cred| store.access(cred, &file.id, wanted).unwrap();
        assert_eq!(access(&alice()), AccessMask::READ | AccessMask::MODIFY);
        assert_eq!(access(&bob()), AccessMask::READ);
        assert_eq!(access(&carol()), AccessMask::empty());
        assert_eq!(access(&admin()), AccessMask::READ | AccessMask::MODIFY);
        let how = CreateHow::Unchecked;
        let other = store.create(&carol(), &root, b"f", how, &NONE, READ).err();
        assert_eq!(other, denied);
    });
}

#[test]
fn directories_obey_their_modes() {
    check(|store| {
        let dir = mkdir(store, &alice(), &store.root(), "d", 0o750).id;
        create(store, &alice(), &dir, "f", 0o666);
        let denied = Some(StoreError::Access);
        assert_eq!(store.lookup(&bob(), &dir, b"f").err(), denied);
        assert_eq!(store.remove(&bob(), &dir, b"f").err(), denied);
        assert_eq!(store.readdir(&bob(), &dir, 0, false, &mut |_| true), Err(StoreError::Access));
        let made = store.make(&bob(), &dir, b"x", NewObject::Fifo, &NONE);
        assert_eq!(made.err(), denied);
        let how = CreateHow::Guarded;
        let made = store.create(&bob(), &dir, b"x", how, &NONE, READ_WRITE);
        assert_eq!(made.err(), denied);
        assert_eq!(store.rename(&bob(), &dir, b"f", &store.root(), b"f").err(), denied);
        assert_eq!(store.parent(&bob(), &dir).err(), denied);
        store.lookup(&admin(), &dir, b"f").unwrap();
        store.remove(&admin(), &dir, b"f").unwrap();
    });
}

#[test]
fn only_owners_change_attributes_and_only_into_their_groups() {
    check(|store| {
        let file = create(store, &alice(), &store.root(), "f", 0o666);
        write(&*file.file, 0, b"content").unwrap();
        let id = file.id;
        let refused = |cred: &Cred, change: SetAttr| {
            assert_eq!(store.setattr(cred, &id, &change, None), Err(StoreError::NotOwner));
        };
        let past = Some(SetTime::To(TimeSpec { seconds: 1, nanoseconds: 0 }));
        for change in [
            SetAttr { mode: Some(0o600), ..NONE },
            SetAttr { mtime: past, ..NONE },
            SetAttr { gid: Some(501), ..NONE },
            SetAttr { uid: Some(1002), ..NONE },
            // No part of the change may be applied: bob could change the size, but not the mode.
            SetAttr { size: Some(0), mode: Some(0o600), ..NONE },
            SetAttr { size: Some(0), mtime: past, ..NONE },
        ] {
            refused(&bob(), change);
        }
        refused(&alice(), SetAttr { uid: Some(1002), ..NONE });
        refused(&alice(), SetAttr { gid: Some(102), ..NONE });
        refused(&alice(), SetAttr { size: Some(0), gid: Some(102), ..NONE });
        assert_eq!(store.getattr(&id).unwrap().size, 7);
        let now = SetAttr { atime: Some(SetTime::Now), mtime: Some(SetTime::Now), ..NONE };
        store.setattr(&bob(), &id, &now, None).unwrap();
        let cut = SetAttr { size: Some(3), ..NONE };
        assert_eq!(store.setattr(&bob(), &id, &cut, None).unwrap().size, 3);
        let give = SetAttr { uid: Some(1002), gid: Some(777), ..NONE };
        let attr = store.setattr(&admin(), &id, &give, None).unwrap();
        assert_eq!((attr.uid, attr.gid), (1002, 777));
        let sealed = create(store, &alice(), &store.root(), "g", 0o644);
        let cut = store.setattr(&bob(), &sealed.id, &cut, None);
        assert_eq!(cut, Err(StoreError::Access));
        assert_eq!(store.setattr(&bob(), &sealed.id, &now, None), Err(StoreError::Access));
    });
}

#[test]
fn a_new_object_that_cannot_be_given_away_is_not_made() {
    check(|store| {
        let root = store.root();
        let give = SetAttr { uid: Some(1002), ..NONE };
        let how = CreateHow::Guarded;
        let made = store.create(&alice(), &root, b"f", how, &give, READ_WRITE);
        assert_eq!(made.err(), Some(StoreError::NotOwner));
        let made = store.make(&alice(), &root, b"d", NewObject::Directory, &give);
        assert_eq!(made.err(), Some(StoreError::NotOwner));
        assert!(store.readdir(&alice(), &root, 0, false, &mut |_| panic!("left")).unwrap());
        let made = store.make(&admin(), &root, b"d", NewObject::Directory, &give).unwrap();
        assert_eq!(made.attr.uid, 1002);
        let own = SetAttr { uid: Some(1001), gid: Some(500), ..NONE };
        let made = store.create(&alice(), &root, b"f", how, &own, READ_WRITE).unwrap();
        assert_eq!((made.attr.uid, made.attr.gid), (1001, 500));
    });
}

#[test]
fn sticky_directories_protect_what_belongs_to_others() {
    check(|store| {
        let dir = mkdir(store, &alice(), &store.root(), "tmp", 0o1777).id;
        create(store, &bob(), &dir, "bobs", 0o666);
        create(store, &carol(), &dir, "carols", 0o666);
        assert_eq!(store.remove(&carol(), &dir, b"bobs").err(), Some(StoreError::NotOwner));
        let renamed = store.rename(&carol(), &dir, b"carols", &dir, b"bobs");
        assert_eq!(renamed.err(), Some(StoreError::NotOwner));
        store.remove(&bob(), &dir, b"bobs").unwrap();
        store.remove(&alice(), &dir, b"carols").unwrap();
    });
}

#[test]
fn setgid_directories_hand_down_their_group() {
    check(|store| {
        let dir = mkdir(store, &alice(), &store.root(), "d", 0o2777);
        assert_eq!(dir.attr.mode, 0o2777);
        let file = create(store, &bob(), &dir.id, "f", 0o644);
        assert_eq!((file.attr.uid, file.attr.gid), (1002, 101));
        let sub = mkdir(store, &bob(), &dir.id, "sub", 0o755);
        assert_eq!((sub.attr.gid, sub.attr.mode), (101, 0o2755));
    });
}

#[test]
fn setuid_ends_when_others_write_and_when_the_owner_changes() {
    check(|store| {
        let file = create(store, &alice(), &store.root(), "f", 0o6777);
        let mode = || store.getattr(&file.id).unwrap().mode;
        assert_eq!(mode(), 0o6777);
        let theirs = store.open(&bob(), &file.id, WRITE).unwrap();
        // Another caller's operation in between must not lend its rights to the write.
        store.getattr(&store.root()).unwrap();
        store.lookup(&admin(), &store.root(), b"f").unwrap();
        write(&*theirs, 0, b"x").unwrap();
        assert_eq!(mode(), 0o777);
        let again = SetAttr { mode: Some(0o4755), ..NONE };
        store.setattr(&alice(), &file.id, &again, None).unwrap();
        let root_file = store.open(&admin(), &file.id, WRITE).unwrap();
        write(&*root_file, 0, b"x").unwrap();
        assert_eq!(mode(), 0o4755);
        let give = SetAttr { gid: Some(501), ..NONE };
        store.setattr(&alice(), &file.id, &give, None).unwrap();
        assert_eq!(mode(), 0o755);
        let both = SetAttr { gid: Some(101), mode: Some(0o4711), ..NONE };
        assert_eq!(store.setattr(&alice(), &file.id, &both, None).unwrap().mode, 0o4711);
    });
}

#[test]
fn opens_keep_their_rights_when_the_mode_changes() {
    check(|store| {
        let file = create(store, &alice(), &store.root(), "f", 0o666);
        let theirs = store.open(&bob(), &file.id, READ_WRITE).unwrap();
        let shut = SetAttr { mode: Some(0), ..NONE };
        store.setattr(&alice(), &file.id, &shut, None).unwrap();
        assert_eq!(write(&*theirs, 0, b"still"), Ok(5));
        assert_eq!(read(&*theirs, 0, 9).unwrap(), b"still");
        let cut = SetAttr { size: Some(1), ..NONE };
        assert_eq!(store.setattr(&bob(), &file.id, &cut, None), Err(StoreError::Access));
        let attr = store.setattr(&bob(), &file.id, &cut, Some(&*theirs)).unwrap();
        assert_eq!(attr.size, 1);
    });
}

#[test]
fn named_attributes_obey_the_mode_of_their_file() {
    check(|store| {
        let file = create(store, &alice(), &store.root(), "f", 0o644);
        let dir = match store.attr_dir(&alice(), &file.id) {
            Ok(dir) => dir,
            Err(StoreError::NotSupported) => return skipped("no user.* attributes here"),
            Err(error) => panic!("{error}"),
        };
        let how = CreateHow::Guarded;
        let made = store.create(&bob(), &dir, b"a", how, &NONE, READ_WRITE);
        assert_eq!(made.err(), Some(StoreError::Access));
        let made = store.create(&alice(), &dir, b"a", how, &NONE, READ_WRITE).unwrap();
        assert_eq!(store.open(&bob(), &made.id, READ).err(), None);
        assert_eq!(store.open(&bob(), &made.id, WRITE).err(), Some(StoreError::Access));
        assert_eq!(store.remove(&bob(), &dir, b"a").err(), Some(StoreError::Access));
        let wanted = AccessMask::READ | AccessMask::MODIFY;
        assert_eq!(store.access(&bob(), &made.id, wanted), Ok(AccessMask::READ));
        let shut = SetAttr { mode: Some(0o600), ..NONE };
        store.setattr(&alice(), &file.id, &shut, None).unwrap();
        assert_eq!(store.lookup(&bob(), &dir, b"a").err(), Some(StoreError::Access));
        assert_eq!(store.open(&bob(), &made.id, READ).err(), Some(StoreError::Access));
        store.lookup(&admin(), &dir, b"a").unwrap();
    });
}

#[test]
fn callers_on_many_threads_stay_themselves() {
    check(|store| {
        std::thread::scope(|scope| {
            for thread in 0..4u32 {
                scope.spawn(move || {
                    for i in 0..60u32 {
                        let uid = 2000 + (thread * 7 + i) % 5;
                        let cred = Cred { uid, gid: uid + 1, groups: Arc::new([uid + 2]) };
                        let name = format!("{thread} {i}");
                        let file = create(store, &cred, &store.root(), &name, 0o600);
                        assert_eq!((file.attr.uid, file.attr.gid), (uid, uid + 1));
                        let group = SetAttr { gid: Some(uid + 2), ..NONE };
                        store.setattr(&cred, &file.id, &group, None).unwrap();
                        let other = Cred::new(uid + 1, uid + 1);
                        let opened = store.open(&other, &file.id, READ).err();
                        assert_eq!(opened, Some(StoreError::Access));
                        store.remove(&cred, &store.root(), name.as_bytes()).unwrap();
                    }
                });
            }
        });
    });
}

/// A POSIX ACL as the kernel keeps it: version 2, then tag, permissions and id of each entry.
fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(permissions.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

#[test]
fn access_lists_count() {
    let Some((dir, store)) = open_to_all() else { return };
    let file = create(&store, &alice(), &store.root(), "f", 0o600);
    let none = u32::MAX;
    let list = acl(&[(1, 6, none), (2, 4, 1002), (4, 0, none), (0x10, 4, none), (0x20, 0, none)]);
    let path = dir.path().join("f");
    let flags = rustix::fs::XattrFlags::empty();
    if let Err(error) = rustix::fs::setxattr(path, c"system.posix_acl_access", &list, flags) {
        return skipped(&format!("no access lists on this file system: {error}"));
    }
    let wanted = AccessMask::READ | AccessMask::MODIFY;
    assert_eq!(store.access(&bob(), &file.id, wanted), Ok(AccessMask::READ));
    assert_eq!(store.access(&carol(), &file.id, wanted), Ok(AccessMask::empty()));
    assert_eq!(store.open(&bob(), &file.id, READ).err(), None);
    assert_eq!(store.open(&bob(), &file.id, WRITE).err(), Some(StoreError::Access));
}

#[test]
fn default_access_lists_limit_new_objects() {
    let Some((dir, store)) = open_to_all() else { return };
    let none = u32::MAX;
    let list = acl(&[(1, 7, none), (2, 7, 1002), (4, 5, none), (0x10, 5, none), (0x20, 0, none)]);
    let flags = rustix::fs::XattrFlags::empty();
    if let Err(error) = rustix::fs::setxattr(dir.path(), c"system.posix_acl_default", &list, flags)
    {
        return skipped(&format!("no access lists on this file system: {error}"));
    }
    let file = create(&store, &admin(), &store.root(), "f", 0o4777);
    assert_eq!(file.attr.mode, 0o4750);
}

#[test]
fn impossible_callers_are_refused_and_threads_come_back() {
    let Some((dir, store)) = open_to_all() else { return };
    let file = create(&store, &admin(), &store.root(), "f", 0o600);
    for cred in [Cred::new(u32::MAX, 0), Cred::new(1, u32::MAX)] {
        assert_eq!(store.open(&cred, &file.id, READ).err(), Some(StoreError::Access));
        assert_eq!(store.open(&bob(), &file.id, READ).err(), Some(StoreError::Access));
    }
    dafs_mem::sys::as_server().unwrap();
    assert_eq!(std::fs::read(dir.path().join("f")).unwrap(), b"");
    let groups = rustix::process::getgroups().unwrap();
    assert_eq!(groups, []);
    store.open(&admin(), &file.id, READ).unwrap();
}

#[test]
fn sinks_may_call_the_store_as_another_user() {
    check(|store| {
        let dir = mkdir(store, &alice(), &store.root(), "d", 0o700).id;
        for i in 0..5 {
            create(store, &alice(), &dir, &format!("f{i}"), 0o600);
        }
        let mut seen = 0;
        let end = store.readdir(&alice(), &dir, 0, true, &mut |entry| {
            let (id, attr) = entry.object.expect("alice may see it");
            assert_eq!(attr.uid, 1001);
            assert_eq!(store.open(&bob(), &id, READ).err(), Some(StoreError::Access));
            assert_eq!(store.lookup(&bob(), &dir, b"f0").err(), Some(StoreError::Access));
            seen += 1;
            true
        });
        assert_eq!((end, seen), (Ok(true), 5));
    });
}

/// Opens a store in a process whose root is not the usual one, and prints the outcome.
#[test]
fn open_when_asked() {
    let Some(path) = std::env::var_os("DAFS_STORE_TEST_OPEN") else { return };
    let opened = PosixStore::open(path, PosixOptions::new(secret()));
    println!("opened {:?} end", opened.map(|store| store.checks_callers()));
}

#[test]
fn root_that_cannot_act_as_its_callers_is_refused() {
    if !is_root() {
        return skipped("only root can be a root with less power");
    }
    let dir = tempfile::tempdir().unwrap();
    for (less, expected) in [
        (&["--inh-caps=-all"][..], "Ok(true)"),
        (&["--bounding-set=-setuid"], "Err(Access)"),
        (&["--bounding-set=-setgid"], "Err(Access)"),
        (&["--securebits=+no_setuid_fixup"], "Err(Access)"),
    ] {
        let mut command = std::process::Command::new("setpriv");
        command.args(less).arg(std::env::current_exe().unwrap());
        command.args(["--exact", "permissions::open_when_asked", "--nocapture"]);
        let output = match command.env("DAFS_STORE_TEST_OPEN", dir.path()).output() {
            Ok(output) => output,
            Err(error) => return skipped(&format!("setpriv: {error}")),
        };
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains(&format!("opened {expected} end")), "{less:?}: {text}");
    }
}

#[test]
fn an_open_for_reading_proves_no_right_to_write() {
    check(|store| {
        let file = create(store, &alice(), &store.root(), "f", 0o644);
        let open = store.open(&bob(), &file.id, READ).unwrap();
        let now = SetAttr { atime: Some(SetTime::Now), mtime: Some(SetTime::Now), ..NONE };
        let set = store.setattr(&bob(), &file.id, &now, Some(&*open));
        assert_eq!(set, Err(StoreError::Access));
        let cut = SetAttr { size: Some(0), ..NONE };
        let set = store.setattr(&bob(), &file.id, &cut, Some(&*open));
        assert_eq!(set, Err(StoreError::Access));
    });
}
