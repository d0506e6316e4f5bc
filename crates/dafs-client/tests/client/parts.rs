//! Parts of many files, read without opening them, by many chains in flight.

use crate::chains::cut_everywhere;
use crate::served::{Served, on_each_transport, on_each_transport_with, requests};
use dafs_client::{Error, FilePart, Status};

/// Files of growing length, by name.
fn files(served: &Served, count: usize, step_bytes: usize) -> Vec<(String, Vec<u8>)> {
    std::fs::create_dir(served.path().join("dir")).unwrap();
    let file = |number: usize| {
        let name = format!("dir/{number}");
        let content = served.with_file(&name, number * step_bytes);
        (name, content)
    };
    (0..count).map(file).collect()
}

fn part(path: &[u8], offset: u64, bytes: usize) -> FilePart<'_> {
    FilePart { path, offset, bytes }
}

#[test]
fn parts_come_in_their_order_with_two_messages_each() {
    for (served, client) in on_each_transport() {
        let files = files(&served, 300, 10);
        let parts: Vec<_> = files.iter().map(|(name, _)| part(name.as_bytes(), 50, 2495)).collect();
        let mut found = Vec::new();
        let answered = requests(&client, || found = client.read_parts(&parts).unwrap());
        assert_eq!(answered, 600);
        for ((name, content), found) in files.iter().zip(found) {
            let (found, wanted) = (found.unwrap(), content.get(50..).unwrap_or_default());
            assert!(found.data == wanted[..wanted.len().min(2495)], "{name}");
            assert_eq!(found.is_end, wanted.len() <= 2495, "{name}");
        }
        assert!(client.read_parts(&[]).unwrap().is_empty());
    }
}

#[test]
fn long_parts_and_links_are_read_and_errors_stay_with_their_file() {
    // With one credit there are no chains.
    for credits in [1, 32] {
        for (served, client) in on_each_transport_with(|options| options.requests = credits) {
            let content = served.with_file("file", 100_000);
            std::fs::create_dir(served.path().join("dir")).unwrap();
            std::os::unix::fs::symlink("../file", served.path().join("dir/link")).unwrap();
            std::os::unix::fs::symlink("nothing", served.path().join("dangling")).unwrap();
            let long = vec![b'x'; 300];
            let parts = [
                part(b"/file", 0, 100_000),
                part(b"missing", 0, 10),
                part(b"dir/link", 99_000, 5000),
                part(b"dir", 0, 10),
                part(b"dir/../file", 7, 3),
                part(b"file/", 0, 10),
                part(b"dangling", 0, 10),
                part(&long, 0, 10),
                part(b"file", 99_999, 1),
            ];
            let found = client.read_parts(&parts).unwrap();
            let data = |at: usize| found[at].as_ref().unwrap().data.as_slice();
            let status = |at: usize| found[at].as_ref().unwrap_err().status();
            assert!(data(0) == content && data(2) == &content[99_000..]);
            assert!(data(4) == &content[7..10] && data(8) == &content[99_999..]);
            assert_eq!([status(1), status(6)], [Some(Status::NoEnt); 2]);
            assert_eq!([status(3), status(5)], [Some(Status::IsDir), Some(Status::NotDir)]);
            assert!(matches!(found[7], Err(Error::TooLong(_))));
        }
    }
}

#[test]
fn parts_are_read_over_a_wire_that_breaks_anywhere() {
    let served = Served::new();
    let files = files(&served, 5, 100);
    let parts: Vec<_> = files.iter().map(|(name, _)| part(name.as_bytes(), 0, 1000)).collect();
    cut_everywhere(&served, |client, _| {
        let found = client.read_parts(&parts).unwrap();
        assert!(
            files.iter().zip(found).all(|((_, content), found)| found.unwrap().data == *content)
        );
    });
}

#[test]
fn the_end_of_the_session_ends_the_call() {
    for (served, client) in on_each_transport() {
        served.with_file("file", 10);
        client.disconnect().unwrap();
        assert!(matches!(client.read_parts(&[part(b"file", 0, 10); 3]), Err(Error::Lost { .. })));
    }
}
