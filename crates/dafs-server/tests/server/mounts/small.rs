//! Small files in one compound each, with many compounds under way.

use super::harness::{SHARED, Served, WAYS};
use dafs_nfs_client::mount::{
    Follow, Handle, Mount, MountError, NewFile, NfsVersion, SetAttributes, SetTime, Time,
};
use dafs_wire::nfs4::Status;
use std::os::unix::fs::MetadataExt;

fn root_of(mount: &Mount) -> Handle {
    mount.resolve(b"/", Follow::Yes).unwrap().handle
}

/// The attributes of a complete file.
fn complete() -> SetAttributes {
    let time = Time { seconds: 1_000_000_000, nanoseconds: 5 };
    let modified = Some(SetTime::Client(time));
    SetAttributes { accessed: modified, modified, ..SetAttributes::mode(0o640) }
}

fn content(number: usize) -> Vec<u8> {
    (0..number * 900).map(|at| (at % 251) as u8).collect()
}

#[test]
fn new_files_appear_complete_with_many_under_way() {
    for way in WAYS.into_iter().chain(SHARED) {
        let served = Served::new();
        let mount = served.mount(way);
        let (root, attributes) = (root_of(&mount), complete());
        std::fs::write(served.path().join("file-3"), b"replaced").unwrap();
        let begun: Vec<_> = (0..10)
            .map(|number| {
                let begun = mount.begin_new_file(&NewFile {
                    dir: &root,
                    temporary_name: format!("part-{number}").as_bytes(),
                    name: format!("file-{number}").as_bytes(),
                    data: &content(number),
                    attributes: &attributes,
                });
                begun.unwrap()
            })
            .collect();
        if way.version == NfsVersion::V3 {
            assert!(mount.small_bytes_max() == 0 && begun.iter().all(Option::is_none));
            continue;
        }
        assert!(mount.small_bytes_max() >= 8192);
        begun.into_iter().for_each(|begun| begun.expect("a slot").wait().unwrap());
        for number in 0..10 {
            let (name, wanted) = (format!("file-{number}"), content(number));
            let path = served.path().join(&name);
            assert!(std::fs::read(&path).unwrap() == wanted, "{way:?}: {name}");
            let found = path.metadata().unwrap();
            assert_eq!(
                (found.mode() & 0o7777, found.mtime(), found.mtime_nsec()),
                (0o640, 1_000_000_000, 5)
            );
            let start = mount.begin_file_start(&root, name.as_bytes(), 5000).unwrap();
            let start = start.expect("a slot").wait().unwrap();
            assert_eq!(start.handle, mount.lookup(&root, name.as_bytes()).unwrap().0);
            assert!(start.data == wanted[..wanted.len().min(5000)]);
            assert_eq!(start.is_whole, wanted.len() <= 5000);
        }
        assert_eq!(std::fs::read_dir(served.path()).unwrap().count(), 10, "a temporary name stays");
    }
}

#[test]
fn a_new_file_that_fails_leaves_nothing_and_no_open() {
    for way in WAYS.into_iter().filter(|way| way.version != NfsVersion::V3) {
        let served = Served::new();
        let mount = served.mount(way);
        let (root, attributes) = (root_of(&mount), complete());
        std::fs::create_dir_all(served.path().join("directory/inner")).unwrap();
        std::fs::write(served.path().join("taken"), b"taken").unwrap();
        let made = |temporary: &str, name: &str| -> Result<(), MountError> {
            let new = NewFile {
                dir: &root,
                temporary_name: temporary.as_bytes(),
                name: name.as_bytes(),
                data: b"content",
                attributes: &attributes,
            };
            mount.begin_new_file(&new).unwrap().expect("a slot").wait()
        };
        let refused = made("part", "directory").unwrap_err();
        let status = refused.status();
        assert!(
            matches!(status, Some(Status::Exist | Status::IsDir | Status::NotEmpty)),
            "{refused}"
        );
        assert_eq!(made("taken", "file").unwrap_err().status(), Some(Status::Exist));
        assert_eq!(std::fs::read(served.path().join("taken")).unwrap(), b"taken");
        assert_eq!(std::fs::read_dir(served.path()).unwrap().count(), 2);
        let start = mount.begin_file_start(&root, b"missing", 10).unwrap().expect("a slot");
        assert_eq!(start.wait().unwrap_err().status(), Some(Status::NoEnt));
        assert!(matches!(mount.begin_remove(&root, b".."), Err(MountError::Argument(_))));
        let removals: Vec<_> = ["taken", "missing", "directory"]
            .map(|name| mount.begin_remove(&root, name.as_bytes()).unwrap().expect("a slot"))
            .into_iter()
            .map(|removal| removal.wait().err().and_then(|error| error.status()))
            .collect();
        assert_eq!(removals, [None, Some(Status::NoEnt), Some(Status::NotEmpty)]);
    }
}

#[test]
fn compounds_leave_slots_to_other_calls() {
    let served = Served::new();
    let mount = served.mount(super::harness::PLAIN);
    let root = root_of(&mount);
    std::fs::write(served.path().join("file"), b"content").unwrap();
    let begin = || mount.begin_file_start(&root, b"file", 10).unwrap();
    let begun: Vec<_> = std::iter::from_fn(begin).collect();
    assert!((1..=512).contains(&begun.len()), "{}", begun.len());
    assert!(mount.lookup(&root, b"file").is_ok());
    // Those that are dropped free their slots, too.
    drop(begun);
    let again: Vec<_> = std::iter::from_fn(begin).collect();
    assert!(!again.is_empty());
    for start in again {
        let start = start.wait().unwrap();
        assert_eq!((&start.data[..], start.is_whole), (&b"content"[..], true));
    }
}
