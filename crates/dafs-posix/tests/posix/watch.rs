//! Changes of watched files by local processes are reported, and the server's own changes are not.

use crate::common::open_posix;
use dafs_posix::PosixStore;
use dafs_store::*;
use dafs_testkit::stores::*;
use std::path::PathBuf;
use std::process::Command;

/// A store whose watches name the process, and its directory.
fn world() -> Option<(PosixStore, tempfile::TempDir)> {
    let dir = tempfile::tempdir().unwrap();
    let store = open_posix(&dir);
    let made = make(&store, b"probe");
    match store.watch(&made, Watch::Uses) {
        Ok(()) => {
            store.unwatch(&made);
            Some((store, dir))
        }
        Err(StoreError::NotSupported) => {
            skipped("the system does not tell who uses files");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn make(store: &PosixStore, name: &[u8]) -> FileId {
    let attr = SetAttr { mode: Some(0o644), ..SetAttr::default() };
    let how = CreateHow::Guarded;
    store.create(&me(), &store.root(), name, how, &attr, READ_WRITE).unwrap().id
}

fn reported(store: &PosixStore) -> Vec<FileId> {
    let mut ids = Vec::new();
    store.take_local_changes(&mut |id| ids.push(id));
    ids
}

/// Runs a shell command in the directory, as another process.
fn shell(dir: &tempfile::TempDir, command: &str) {
    let done = Command::new("sh").args(["-c", command]).current_dir(dir.path()).status().unwrap();
    assert!(done.success(), "{command}");
}

#[test]
fn every_local_change_is_reported_once() {
    let Some((store, dir)) = world() else { return };
    let (id, other) = (make(&store, b"f"), make(&store, b"g"));
    store.watch(&id, Watch::Changes).unwrap();
    shell(&dir, "cat f; echo x > g");
    assert_eq!(reported(&store), [], "reading, and files that nobody watches");
    for command in
        ["echo x > f", "echo y >> f", "chmod 600 f", "touch f", "ln f l", "mv f h", "rm h", "rm l"]
    {
        shell(&dir, command);
        assert_eq!(reported(&store), [id], "{command}");
        assert_eq!(reported(&store), [], "{command}");
    }
    store.unwatch(&id);
    store.unwatch(&id);
    store.unwatch(&other);
}

#[test]
fn opens_are_uses() {
    let Some((store, dir)) = world() else { return };
    let id = make(&store, b"f");
    store.watch(&id, Watch::Changes).unwrap();
    store.watch(&id, Watch::Uses).unwrap();
    shell(&dir, "cat f");
    assert_eq!(reported(&store), [id]);
    store.unwatch(&id);
    shell(&dir, "cat f");
    assert_eq!(reported(&store), [id], "one watcher is left");
    store.unwatch(&id);
    shell(&dir, "echo x > f");
    store.watch(&id, Watch::Changes).unwrap();
    assert_eq!(reported(&store), [], "before the watch");
    shell(&dir, "cat f");
    assert_eq!(reported(&store), [], "only changes now");
}

#[test]
fn the_servers_own_work_is_not_reported() {
    let Some((store, dir)) = world() else { return };
    let id = make(&store, b"f");
    store.watch(&id, Watch::Uses).unwrap();
    let file = store.open(&me(), &id, READ_WRITE).unwrap();
    write(&*file, 0, b"text").unwrap();
    assert_eq!(read(&*file, 0, 9).unwrap(), b"text");
    let mode = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    store.setattr(&me(), &id, &mode, None).unwrap();
    store.rename(&me(), &store.root(), b"f", &store.root(), b"g").unwrap();
    let thread = std::thread::scope(|scope| {
        scope.spawn(|| write(&*store.open(&me(), &id, WRITE).unwrap(), 0, b"more")).join()
    });
    assert_eq!(thread.unwrap(), Ok(4));
    assert_eq!(reported(&store), []);
    shell(&dir, "cat g");
    assert_eq!(reported(&store), [id]);
    store.remove(&me(), &store.root(), b"g").unwrap();
    assert_eq!(reported(&store), []);
    store.unwatch(&id);
}

#[test]
fn objects_that_cannot_be_watched_are_refused() {
    let Some((store, _dir)) = world() else { return };
    let root = store.root();
    assert_eq!(store.watch(&root, Watch::Changes), Err(StoreError::NotSupported));
    let id = make(&store, b"f");
    let mut forged = id;
    forged.0[9] ^= 1;
    assert_eq!(store.watch(&forged, Watch::Changes), Err(StoreError::BadHandle));
    store.remove(&me(), &root, b"f").unwrap();
    assert_eq!(store.watch(&id, Watch::Changes), Err(StoreError::Stale));
    store.unwatch(&id);
}

#[test]
fn many_files_are_watched_at_once_and_none_is_missed() {
    let Some((store, dir)) = world() else { return };
    let names: Vec<String> = (0..500).map(|number| format!("f{number}")).collect();
    let mut ids: Vec<FileId> = names.iter().map(|name| make(&store, name.as_bytes())).collect();
    ids.iter().for_each(|id| store.watch(id, Watch::Changes).unwrap());
    shell(&dir, "for f in f*; do echo x > $f; done");
    let mut seen = Vec::new();
    while seen.len() < ids.len() {
        let more = reported(&store);
        assert!(!more.is_empty(), "{} of {}", seen.len(), ids.len());
        seen.extend(more);
    }
    seen.sort_unstable();
    ids.sort_unstable();
    assert_eq!(seen, ids);
    let fd = store.local_changes_fd().unwrap();
    let path = PathBuf::from(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd)));
    assert!(path.exists());
    ids.iter().for_each(|id| store.unwatch(id));
}
