//! Clients choose the modes of their objects, and the umask of the process applies to its own
//! files.
//!
//! One test, because the umask belongs to the whole process.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use dafs_posix::{PosixOptions, PosixStore};
use dafs_store::*;
use dafs_testkit::stores::*;
use rustix::fs::{Mode, XattrFlags};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

fn umask() -> Mode {
    let mask = rustix::process::umask(Mode::RWXG | Mode::RWXO);
    rustix::process::umask(mask);
    mask
}

fn mode(mode: u32) -> SetAttr {
    SetAttr { mode: Some(mode), ..SetAttr::default() }
}

/// Makes one object of each kind, and checks their modes.
fn make_all(store: &dyn Store, dir: &FileId, name: &str) {
    let me = me();
    for wanted in [0o666, 0o777, 0o6755, 0o000, 0o622] {
        let (file, how) = (format!("{name}-f{wanted:o}"), CreateHow::Guarded);
        let made = store.create(&me, dir, file.as_bytes(), how, &mode(wanted), READ_WRITE);
        assert_eq!(made.unwrap().attr.mode, wanted);
    }
    for (object, wanted) in [
        (NewObject::Directory, 0o777),
        (NewObject::Directory, 0o3770),
        (NewObject::Directory, 0o1777),
        (NewObject::Fifo, 0o622),
        (NewObject::Socket, 0o777),
    ] {
        let object_name = format!("{name}-o{wanted:o}-{:?}", std::mem::discriminant(&object));
        let made = store.make(&me, dir, object_name.as_bytes(), object, &mode(wanted)).unwrap();
        assert_eq!(made.attr.mode, wanted);
    }
    match store.create_unlinked(&me, dir, &mode(0o666), READ_WRITE) {
        Ok(made) => assert_eq!(made.attr.mode, 0o666),
        Err(error) => assert_eq!(error, StoreError::NotSupported),
    }
}

/// Sets a default list for new objects: all rights for the owner, reading for the group, none for
/// others.
fn set_default_list(path: &Path) -> bool {
    let entry = |tag: u16, perm: u16| {
        let [tag, perm] = [tag.to_le_bytes(), perm.to_le_bytes()];
        [tag[0], tag[1], perm[0], perm[1], 0xff, 0xff, 0xff, 0xff]
    };
    let mut list = 2u32.to_le_bytes().to_vec();
    for (tag, perm) in [(0x01, 7), (0x04, 4), (0x20, 0)] {
        list.extend(entry(tag, perm));
    }
    rustix::fs::setxattr(path, c"system.posix_acl_default", &list, XattrFlags::empty()).is_ok()
}

#[test]
fn objects_of_clients_need_no_umask_and_files_of_the_server_have_one() {
    let private = Mode::RWXG | Mode::RWXO;
    rustix::process::umask(private);
    let dir = tempfile::tempdir().unwrap();
    let store = PosixStore::open(dir.path(), PosixOptions::new(secret())).unwrap();
    assert_eq!(umask(), private, "opening a store leaves it alone");
    let own = tempfile::tempdir().unwrap();
    let done = AtomicBool::new(false);
    // SAFETY: the call takes a plain number and changes the calling thread only, which ends.
    let separate = std::thread::spawn(|| unsafe { libc::unshare(libc::CLONE_FS) } == 0);
    let separate = separate.join().unwrap();
    if !separate {
        skipped("the server's own files: no thread gets a umask of its own here");
    }
    let is_private =
        move |file: &File| !separate || file.metadata().unwrap().mode() & 0o777 == 0o600;
    std::thread::scope(|scope| {
        // One thread makes files of the server's own, without care for modes, while others work for
        // clients.
        let (own, done) = (own.path(), &done);
        let server = scope.spawn(move || {
            let mut count = 0;
            while !done.load(Ordering::Relaxed) {
                count += 1;
                let file = File::create(own.join(count.to_string())).unwrap();
                assert!(is_private(&file));
            }
        });
        let store = &store;
        let clients = (0..4).map(|client| {
            scope.spawn(move || {
                (0..25).for_each(|n| make_all(store, &store.root(), &format!("{client}-{n}")));
                // The same thread also makes files of the server's own.
                let file = File::create(own.join(format!("own{client}"))).unwrap();
                assert!(is_private(&file));
            })
        });
        let clients: Vec<_> = clients.collect();
        let made: Vec<_> = clients.into_iter().map(|client| client.join()).collect();
        done.store(true, Ordering::Relaxed);
        server.join().unwrap();
        made.into_iter().for_each(|made| made.unwrap());
    });
    assert_eq!(umask(), private);

    // A default list alone decides, as with a umask of zero.
    let listed = store.make(&me(), &store.root(), b"listed", NewObject::Directory, &mode(0o777));
    if !set_default_list(&dir.path().join("listed")) {
        return skipped("the file system keeps no lists");
    }
    let (listed, how) = (listed.unwrap().id, CreateHow::Guarded);
    let file = store.create(&me(), &listed, b"f", how, &mode(0o666), READ_WRITE).unwrap();
    assert_eq!(file.attr.mode, 0o640);
    let below = store.make(&me(), &listed, b"d", NewObject::Directory, &mode(0o777)).unwrap();
    assert_eq!(below.attr.mode, 0o740);
}
