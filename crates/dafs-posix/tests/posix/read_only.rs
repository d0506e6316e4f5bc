//! Read-only exports refuse changes with the right error.

use dafs_posix::{PosixOptions, PosixStore};
use dafs_store::*;
use dafs_testkit::stores::*;
use std::sync::Arc;

const NONE: SetAttr =
    SetAttr { mode: None, uid: None, gid: None, size: None, atime: None, mtime: None };

fn refuses_every_change(w: &World, file: &FileId, dir: &FileId) {
    let (store, cred, root) = (&w.store, &w.cred, w.root());
    let denied = Some(StoreError::ReadOnly);
    for how in [CreateHow::Unchecked, CreateHow::Guarded, CreateHow::Exclusive([1; 8])] {
        assert_eq!(store.create(cred, &root, b"new", how, &NONE, READ_WRITE).err(), denied);
        assert_eq!(store.create(cred, &root, b"f", how, &NONE, READ).err(), denied);
    }
    for object in [NewObject::Directory, NewObject::Symlink(b"x"), NewObject::Fifo] {
        assert_eq!(store.make(cred, &root, b"new", object, &NONE).err(), denied);
    }
    assert_eq!(store.link(cred, file, dir, b"new").err(), denied);
    assert_eq!(store.remove(cred, &root, b"f").err(), denied);
    assert_eq!(store.rename(cred, &root, b"f", dir, b"g").err(), denied);
    let mode = SetAttr { mode: Some(0o777), ..NONE };
    assert_eq!(store.setattr(cred, file, &mode, None).err(), denied);
    let removed = store.remove_known(cred, &root, b"f", file, RemoveKind::Any);
    assert_eq!(removed.err(), denied);
    assert_eq!(store.set_xattr(cred, file, b"x", b"", SetXattr::Either).err(), denied);
    assert_eq!(store.remove_xattr(cred, file, b"x").err(), denied);
    assert_eq!(store.set_acl(cred, file, &Acl::from_mode(0o777, false)).err(), denied);
    assert_eq!(store.acl(file), Ok(Acl::from_mode(store.getattr(file).unwrap().mode, false)));
    assert_eq!(store.open(cred, file, WRITE).err(), denied);
    assert_eq!(store.open(cred, file, READ_WRITE).err(), denied);
    let all = AccessMask::all();
    let granted = store.access(cred, dir, all).unwrap();
    assert_eq!(granted, AccessMask::READ | AccessMask::LOOKUP);
    assert!(store.fs_stat(cred, &root).unwrap().read_only);
    let open = store.open(cred, file, READ).unwrap();
    assert_eq!(read(&*open, 0, 10), Ok(b"text".to_vec()));
    assert_eq!(open.set_size(0), Err(StoreError::Access));
    assert_eq!(open.allocate(0, 1), Err(StoreError::Access));
    assert_eq!(open.deallocate(0, 1), Err(StoreError::Access));
    assert_eq!(open.copy_from(&*open, CopyRange::new(0, 2, 1)), Err(StoreError::Access));
    assert_eq!(w.names(&root), ["d", "f"]);
    assert_eq!(w.lookup(&root, "f"), Ok(*file));
}

#[test]
fn a_read_only_directory() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("f"), "text").unwrap();
    std::fs::create_dir(dir.path().join("d")).unwrap();
    let options = PosixOptions { read_only: true, ..PosixOptions::new(secret()) };
    let store = Arc::new(PosixStore::open(dir.path(), options).unwrap());
    let w = World { store, cred: me(), dir: Some(dir) };
    let (f, d) = (w.lookup(&w.root(), "f").unwrap(), w.lookup(&w.root(), "d").unwrap());
    refuses_every_change(&w, &f, &d);
}
