//! Small files in one round trip each, over both transports.

use crate::served::{on_each_transport, pattern};
use dafs_client::{Error, NewFile, SetAttributes, SetTime, Status, Time};
use std::os::unix::fs::MetadataExt;

/// The attributes of a complete file.
fn complete() -> SetAttributes {
    let time = Time { seconds: 1_000_000_000, nseconds: 123_456_789 };
    let modified = Some(SetTime::Client(time));
    SetAttributes { accessed: modified, modified, ..SetAttributes::mode(0o640) }
}

#[test]
fn new_files_appear_complete_with_many_under_way() {
    for (served, client) in on_each_transport() {
        let attributes = complete();
        served.with_file("file-3", 9000);
        let before = client.stats().answered;
        let begun: Vec<_> = (0..40_usize)
            .map(|number| {
                let content = pattern(number * 200);
                let (name, temporary) = (format!("file-{number}"), format!("part-{number}"));
                client.begin_new_file(&NewFile {
                    dir: client.root(),
                    temporary_name: temporary.as_bytes(),
                    name: name.as_bytes(),
                    data: &content,
                    attributes: &attributes,
                })
            })
            .collect();
        let made: Vec<_> = begun.into_iter().map(|begun| begun.unwrap().wait().unwrap()).collect();
        assert_eq!(client.stats().answered - before, 40 * 5 - 1, "an empty file needs no WRITE");
        for (number, made) in made.iter().enumerate() {
            let name = format!("file-{number}");
            assert!(served.content(&name) == pattern(number * 200), "{name}");
            let found = std::fs::metadata(served.path().join(&name)).unwrap();
            assert_eq!(found.mode() & 0o7777, 0o640);
            assert_eq!((found.mtime(), found.mtime_nsec()), (1_000_000_000, 123_456_789));
            assert_eq!(client.lookup(&client.root(), name.as_bytes()).unwrap(), *made);
            let start = client.begin_file_start(&client.root(), name.as_bytes(), 5001).unwrap();
            let start = start.wait().unwrap();
            assert_eq!((start.handle, start.is_whole), (*made, number * 200 < 5001), "{name}");
            assert!(start.data == pattern((number * 200).min(5001)));
        }
        assert_eq!(
            std::fs::read_dir(served.path()).unwrap().count(),
            40,
            "no temporary name stays"
        );
    }
}

#[test]
fn a_new_file_that_fails_leaves_nothing() {
    for (served, client) in on_each_transport() {
        let (attributes, content) = (complete(), pattern(100));
        std::fs::create_dir_all(served.path().join("directory/inner")).unwrap();
        served.with_file("taken", 7);
        let begin = |temporary: &str, name: &str, data: &[u8]| {
            client.begin_new_file(&NewFile {
                dir: client.root(),
                temporary_name: temporary.as_bytes(),
                name: name.as_bytes(),
                data,
                attributes: &attributes,
            })
        };
        let error = begin("part", "directory", &content).unwrap().wait().unwrap_err();
        assert!(matches!(error.status(), Some(Status::IsDir | Status::Exist | Status::NotEmpty)));
        assert!(!served.path().join("part").exists());
        let error = begin("taken", "file", &content).unwrap().wait().unwrap_err();
        assert_eq!(error.status(), Some(Status::Exist));
        assert!(served.content("taken") == pattern(7) && !served.path().join("file").exists());
        let long = vec![1; client.step_write_bytes_max() + 1];
        assert!(matches!(begin("part", "file", &long), Err(Error::Argument(_))));
        let start = client.begin_file_start(&client.root(), b"missing", 10).unwrap();
        assert_eq!(start.wait().unwrap_err().status(), Some(Status::NoEnt));
        assert_eq!(std::fs::read_dir(served.path()).unwrap().count(), 2);
    }
}

#[test]
fn removals_are_under_way_together_and_each_has_its_answer() {
    for (served, client) in on_each_transport() {
        std::fs::create_dir_all(served.path().join("directory/inner")).unwrap();
        let names: Vec<String> = (0..50).map(|number| format!("file-{number}")).collect();
        for name in names.iter().filter(|name| *name != "file-7") {
            served.with_file(name, 10);
        }
        let root = client.root();
        let begun: Vec<_> =
            names.iter().map(|name| client.begin_remove(&root, name.as_bytes()).unwrap()).collect();
        for (name, removal) in names.iter().zip(begun) {
            let error = removal.wait().err().and_then(|error| error.status());
            assert_eq!(error, (name == "file-7").then_some(Status::NoEnt), "{name}");
        }
        let error = client.begin_remove(&root, b"directory").unwrap().wait().unwrap_err();
        assert!(matches!(error.status(), Some(Status::Exist | Status::NotEmpty)));
        client.begin_remove(&root, b"missing").map(drop).unwrap();
        assert_eq!(std::fs::read_dir(served.path()).unwrap().count(), 1);
    }
}
