//! Read-only exports and full stores fail with the right error.

use dafs_store::*;
use dafs_testkit::stores::*;
use std::sync::Arc;

const NONE: SetAttr =
    SetAttr { mode: None, uid: None, gid: None, size: None, atime: None, mtime: None };

#[test]
fn a_read_only_memory_store_stays_empty() {
    let options = MemoryOptions { read_only: true, ..MemoryOptions::default() };
    let store = MemoryStore::new(options);
    let (cred, root) = (Cred::new(0, 0), store.root());
    let denied = Some(StoreError::ReadOnly);
    let how = CreateHow::Guarded;
    assert_eq!(store.create(&cred, &root, b"f", how, &NONE, READ_WRITE).err(), denied);
    assert_eq!(store.make(&cred, &root, b"d", NewObject::Directory, &NONE).err(), denied);
    assert_eq!(store.remove(&cred, &root, b"d").err(), denied);
    assert_eq!(store.rename(&cred, &root, b"a", &root, b"b").err(), denied);
    assert_eq!(store.link(&cred, &root, &root, b"b").err(), denied);
    assert_eq!(store.setattr(&cred, &root, &NONE, None).err(), denied);
    let rights = store.access(&cred, &root, AccessMask::all()).unwrap();
    assert_eq!(rights, AccessMask::READ | AccessMask::LOOKUP);
    let files_free = || store.fs_stat(&cred, &root).unwrap().files_free;
    let before = files_free();
    assert_eq!(store.attr_dir(&cred, &root).err(), denied);
    assert_eq!(files_free(), before);
}

#[test]
fn a_full_memory_store_says_so_and_recovers() {
    // Content, and a name of one byte, which counts twice.
    let bytes_max = (64 << 10) + 2;
    let options = MemoryOptions { bytes_max, files_max: 4, ..MemoryOptions::default() };
    let w = World { store: Arc::new(MemoryStore::new(options)), cred: Cred::new(0, 0), dir: None };
    let file = w.create(&w.root(), "f").file;
    assert_eq!(write(&*file, 0, &[7; 100 << 10]), Ok(64 << 10));
    assert_eq!(write(&*file, 64 << 10, &[7]), Err(StoreError::NoSpace));
    assert_eq!(w.store.fs_stat(&w.cred, &w.root()).unwrap().space_free, 0);
    w.remove(&w.root(), "f").unwrap();
    assert_eq!(read(&*file, 0, 3).unwrap(), [7; 3]);
    drop(file);
    assert_eq!(w.store.fs_stat(&w.cred, &w.root()).unwrap().space_free, bytes_max);
    for name in ["a", "b", "c"] {
        w.mkdir(&w.root(), name);
    }
    let fourth = w.make(&w.root(), "d", NewObject::Fifo, &NONE);
    assert_eq!(fourth.err(), Some(StoreError::NoSpace));
    w.remove(&w.root(), "a").unwrap();
    w.make(&w.root(), "d", NewObject::Fifo, &NONE).unwrap();
}

#[test]
fn memory_stores_are_deterministic() {
    let run = || {
        let ticks = std::sync::atomic::AtomicI64::new(0);
        let clock = move || TimeSpec {
            seconds: ticks.fetch_add(1, std::sync::atomic::Ordering::Relaxed),
            nanoseconds: 0,
        };
        let (clock, id_key) = (Arc::new(clock), Some(secret()));
        let options = MemoryOptions { clock, id_key, ..MemoryOptions::default() };
        let store = Arc::new(MemoryStore::new(options));
        let w = World { store, cred: Cred::new(0, 0), dir: None };
        let dir = w.mkdir(&w.root(), "d");
        for i in 0..20 {
            write(&*w.create(&dir, &format!("{}", i * 7 % 20)).file, i, b"x").unwrap();
        }
        w.remove(&dir, "3").unwrap();
        let mut listing = Vec::new();
        w.store
            .readdir(&w.cred, &dir, 0, true, &mut |entry| {
                listing.push((entry.name.to_vec(), entry.cookie, entry.file_id, entry.object));
                true
            })
            .unwrap();
        (listing, w.store.getattr(&dir))
    };
    assert_eq!(run(), run());
}

#[test]
fn ids_of_one_memory_store_mean_nothing_to_another() {
    let store = || MemoryStore::new(MemoryOptions::default());
    let (one, other) = (store(), store());
    assert_eq!(one.fs_id(), other.fs_id());
    assert_eq!(other.getattr(&one.root()), Err(StoreError::BadHandle));
    assert_eq!(one.getattr(&one.root()).map(|attr| attr.kind), Ok(Kind::Directory));
}

#[test]
fn names_and_symlinks_of_a_memory_store_take_space() {
    let options = MemoryOptions { bytes_max: 1000, ..MemoryOptions::default() };
    let w = World { store: Arc::new(MemoryStore::new(options)), cred: Cred::new(0, 0), dir: None };
    let free = || w.store.fs_stat(&w.cred, &w.root()).unwrap().space_free;
    let text = NewObject::Symlink(&[b'x'; 500]);
    w.make(&w.root(), "link", text, &NONE).unwrap();
    assert_eq!(free(), 492);
    assert_eq!(w.make(&w.root(), "more", text, &NONE).err(), Some(StoreError::NoSpace));
    let long = "n".repeat(250);
    assert_eq!(w.make(&w.root(), &long, NewObject::Fifo, &NONE).err(), Some(StoreError::NoSpace));
    w.mkdir(&w.root(), &long[..100]);
    assert_eq!(free(), 292);
    let too_long = w.rename(&w.root(), "link", &w.root(), &long);
    assert_eq!(too_long, Err(StoreError::NoSpace));
    assert_eq!(w.names(&w.root()), ["link", &long[..100]]);
    w.rename(&w.root(), "link", &w.root(), "l").unwrap();
    w.remove(&w.root(), "l").unwrap();
    w.remove(&w.root(), &long[..100]).unwrap();
    assert_eq!(free(), 1000);
}
