//! Listings of large directories miss no entry and repeat none, while other callers list and names
//! change. `DAFS_TEST_LONG` in the environment makes the directory a million entries large.

use crate::common::open_posix;
use dafs_posix::PosixStore;
use dafs_store::*;
use dafs_testkit::stores::*;
use tempfile::TempDir;

const PAGE_ENTRIES: usize = 331;

/// The entries that stay in the directory. Other names come and go.
fn entries() -> usize {
    if std::env::var_os("DAFS_TEST_LONG").is_some() { 1_000_000 } else { 100_000 }
}

/// In memory where possible, because a disk would take minutes to make so many files.
fn directory() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// One client's walk through the directory.
struct Walk {
    cred: Cred,
    cookie: u64,
    seen: Vec<bool>,
    ended: bool,
}

impl Walk {
    fn new(cred: Cred) -> Self {
        Self { cred, cookie: 0, seen: vec![false; entries()], ended: false }
    }

    /// Takes one page; drops the last entry of some pages, as a full reply does.
    fn page(&mut self, store: &PosixStore, dir: &FileId, drop_last: bool) {
        let mut names = Vec::new();
        let end = store.readdir(&self.cred, dir, self.cookie, true, &mut |entry| {
            if names.len() == PAGE_ENTRIES {
                return false;
            }
            let (id, attr) = entry.object.unwrap();
            assert_eq!((attr.kind, attr.file_id), (Kind::Regular, entry.file_id));
            names.push((entry.name.to_vec(), entry.cookie, id));
            true
        });
        self.ended = end.unwrap();
        if drop_last && !self.ended {
            names.pop();
        }
        for (name, cookie, _) in &names {
            self.cookie = *cookie;
            // Other names come and go, and may be listed or not.
            let Some(number) = name.strip_prefix(b"stays") else { continue };
            let number: usize = std::str::from_utf8(number).unwrap().parse().unwrap();
            assert!(!std::mem::replace(&mut self.seen[number], true), "{number} twice");
        }
        if let Some((name, _, id)) = names.get(7) {
            assert_eq!(store.peek(&self.cred, dir, name), Ok((*id, Kind::Regular)));
        }
    }
}

#[test]
fn a_large_directory_is_listed_by_several_at_once_while_it_changes() {
    let dir = directory();
    for number in 0..entries() {
        std::fs::File::create(dir.path().join(format!("stays{number}"))).unwrap();
    }
    let store = open_posix(&dir);
    let root = store.root();
    let me = me();
    let other = Cred { groups: [77].into(), ..me.clone() };
    let mut walks = [Walk::new(me.clone()), Walk::new(me.clone()), Walk::new(other)];
    let mut round = 0;
    while walks.iter().any(|walk| !walk.ended) {
        for (at, walk) in walks.iter_mut().enumerate().filter(|(_, walk)| !walk.ended) {
            walk.page(&store, &root, (round + at) % 3 == 0);
        }
        if round % 2 == 0 {
            std::fs::File::create(dir.path().join(format!("comes{round}"))).unwrap();
        } else {
            let gone = store.remove(&me, &root, format!("comes{}", round - 1).as_bytes());
            gone.unwrap();
        }
        round += 1;
    }
    for walk in &walks {
        let missed = walk.seen.iter().filter(|seen| !**seen).count();
        assert_eq!(missed, 0);
    }
}

#[test]
fn cookies_hold_over_a_restart_of_the_server() {
    let dir = directory();
    for number in 0..5000 {
        std::fs::File::create(dir.path().join(format!("f{number}"))).unwrap();
    }
    let (mut names, mut cookie) = (Vec::new(), 0);
    loop {
        let store = open_posix(&dir);
        let mut page = 0;
        let end = store.readdir(&me(), &store.root(), cookie, false, &mut |entry| {
            page += 1;
            names.push(entry.name.to_vec());
            cookie = entry.cookie;
            page < 700
        });
        if end.unwrap() {
            break;
        }
    }
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), 5000);
}

#[test]
fn abandoned_listings_are_closed() {
    let dir = directory();
    for number in 0..100 {
        std::fs::File::create(dir.path().join(format!("f{number}"))).unwrap();
    }
    let store = open_posix(&dir);
    let before = descriptors();
    store.readdir(&me(), &store.root(), 0, false, &mut |_| false).unwrap();
    assert!(lists(&dir), "a listing waits for its next page");
    store.sweep();
    store.sweep();
    assert!(!lists(&dir), "{before:?}");
}

/// Returns the open descriptors of this process.
fn descriptors() -> Vec<std::path::PathBuf> {
    let open = std::fs::read_dir("/proc/self/fdinfo").unwrap();
    open.filter_map(|entry| {
        let number = entry.ok()?.file_name();
        std::fs::read_link(std::path::Path::new("/proc/self/fd").join(number)).ok()
    })
    .collect()
}

/// True if the directory has more descriptors than the two of the store itself.
fn lists(dir: &TempDir) -> bool {
    let path = dir.path().canonicalize().unwrap();
    descriptors().iter().filter(|open| **open == path).count() > 2
}
