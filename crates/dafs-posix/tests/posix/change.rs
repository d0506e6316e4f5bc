//! The change attribute differs after every change, also where the clock of the file system is too
//! coarse to tell changes apart.

use dafs_posix::{PosixOptions, PosixStore};
use dafs_store::*;
use dafs_testkit::stores::*;
use std::path::Path;
use std::sync::Arc;

const ROUNDS: u32 = 200;

/// Reads an object's change attribute after each change.
struct Watcher<'a> {
    store: &'a dyn Store,
    id: FileId,
    last: u64,
}

impl<'a> Watcher<'a> {
    fn new(store: &'a dyn Store, id: FileId) -> Self {
        Self { store, id, last: store.getattr(&id).unwrap().change }
    }

    fn moved(&mut self, what: &str) {
        let now = self.store.getattr(&self.id).unwrap().change;
        assert!(now > self.last, "{what}: {} then {now}", self.last);
        assert_eq!(self.store.getattr(&self.id).unwrap().change, now, "looking is no change");
        self.last = now;
    }
}

fn every_change_counts(path: &Path) {
    let store = PosixStore::open(path, PosixOptions::new(secret())).unwrap();
    let w = World { store: Arc::new(store), cred: me(), dir: None };
    let dir = w.mkdir(&w.root(), "d");
    let made = w.create(&dir, "f");
    let store = &*w.store;
    let mut directory = Watcher::new(store, dir);
    let mut file = Watcher::new(store, made.id);
    for round in 0..ROUNDS {
        write(&*made.file, 0, b"x").unwrap();
        file.moved("write");
        made.file.set_size(u64::from(round)).unwrap();
        file.moved("size");
        let mode = SetAttr { mode: Some(0o600 | (round % 2)), ..SetAttr::default() };
        let attr = store.setattr(&w.cred, &made.id, &mode, None).unwrap();
        assert!(attr.change > file.last);
        file.moved("mode");
        let change = store.link(&w.cred, &made.id, &dir, b"l").unwrap();
        assert_eq!(change.before, directory.last);
        directory.moved("link");
        assert_eq!(change.after, directory.last);
        file.moved("link of the file");
        let (from, to) = store.rename(&w.cred, &dir, b"l", &dir, b"m").unwrap();
        assert_eq!((from.before, from.after), (to.before, to.after));
        assert_eq!(from.before, directory.last);
        directory.moved("rename");
        assert_eq!(from.after, directory.last);
        file.moved("rename of the file");
        w.remove(&dir, "m").unwrap();
        directory.moved("remove");
        file.moved("remove of a name");
        let made = w.create(&dir, "g");
        assert_eq!(made.dir.before, directory.last);
        directory.moved("create");
        drop(made);
        w.remove(&dir, "g").unwrap();
        directory.moved("second remove");
        let cut = SetAttr { size: Some(0), ..SetAttr::default() };
        store.create(&w.cred, &dir, b"f", CreateHow::Unchecked, &cut, READ_WRITE).unwrap();
        file.moved("truncating open");
    }
}

#[test]
fn on_the_usual_file_systems() {
    let dir = tempfile::tempdir().unwrap();
    every_change_counts(dir.path());
    if let Ok(memory) = tempfile::tempdir_in("/dev/shm") {
        every_change_counts(memory.path());
    }
}

#[test]
fn where_the_clock_is_coarse() {
    if !in_own_mounts("change::where_the_clock_is_coarse") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    if mount(&["-t", "ramfs", "ramfs", dir.path().to_str().unwrap()]) {
        every_change_counts(dir.path());
    }
}
