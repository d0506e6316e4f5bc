//! Cooperation of several clients on one file: appends, share keys, denials of removal, and files
//! that get their name when they are done.

use crate::served::{Served, TRANSPORTS, on_each_transport, pattern, status};
use dafs_client::{Create, Error, LockRange, OpenOptions, Stability, Status};
use std::time::Duration;

fn new() -> OpenOptions {
    OpenOptions::read_write().create(Create::IfMissing).mode(0o640)
}

#[test]
fn appends_of_several_clients_do_not_overlap() {
    let served = Served::new();
    let places = std::thread::scope(|scope| {
        let append = |at: u8| {
            let served = &served;
            move || {
                let transport = TRANSPORTS[usize::from(at) % TRANSPORTS.len()];
                let client = served.client_with(|options| {
                    options.transport = transport;
                    options.checksums = at.is_multiple_of(3);
                });
                let file = client.open(b"/log", &new()).unwrap();
                let mut places = Vec::new();
                // Inline, through a staging buffer, and through a buffer of its own.
                for len in [100, 5000, 100_000, 700_000, 0, 1] {
                    let data = vec![at + 1; len];
                    places.push((file.append(&data, Stability::DataSync).unwrap(), data));
                }
                let buffer = client.buffer(5000).unwrap();
                buffer.view().copy_from(&[at + 1; 5000], dafs_mem::Site::Inspect);
                let place = file.append_from(&buffer, 10..4010, Stability::FileSync).unwrap();
                places.push((place, vec![at + 1; 4000]));
                file.close().unwrap();
                places
            }
        };
        let threads: Vec<_> = (0..4).map(|at| scope.spawn(append(at))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    let content = served.content("log");
    assert_eq!(content.len(), places.iter().map(|(_, data)| data.len()).sum::<usize>());
    for (offset, data) in places {
        let at = offset as usize;
        assert!(content[at..at + data.len()] == data, "{} bytes at {at}", data.len());
    }
}

#[test]
fn appends_keep_to_their_rules() {
    for (_served, client) in on_each_transport() {
        let file = client.open(b"/log", &new()).unwrap();
        let longest = client.fs_status(&client.root()).unwrap().append_bytes_max.unwrap();
        let data = pattern(longest as usize + 1);
        assert_eq!(status(file.append(&data, Stability::DataSync)), Status::WriteTooBig);
        assert!(matches!(file.append(b"x", Stability::Unstable), Err(Error::Argument(_))));
        assert_eq!(file.attributes().unwrap().size, 0);
        assert_eq!(file.append(&data[1..], Stability::DataSync).unwrap(), 0);
        assert_eq!(file.append(b"end", Stability::DataSync).unwrap(), longest);
        let buffer = client.buffer(10).unwrap();
        assert!(file.append_from(&buffer, 5..11, Stability::DataSync).is_err());
    }
}

#[test]
fn keys_and_denials_are_agreed_on() {
    let served = Served::new();
    let (one, two) = (served.client(TRANSPORTS[0]), served.client(TRANSPORTS[1]));
    let root = one.root();
    let first = one.open(b"/f", &new().share_key(7).deny_delete(true)).unwrap();
    assert_eq!(status(two.open(b"/f", &new().share_key(8))), Status::KeyMismatch);
    let second = two.open(b"/f", &new().share_key(7)).unwrap();
    assert_eq!(status(two.remove(&root, b"f")), Status::DenyDispConflict);
    first.close().unwrap();
    assert_eq!(status(one.remove_unused(&root, b"f")), Status::DenyDispConflict);
    second.close().unwrap();
    one.open(b"/f", &new().share_key(8)).unwrap().close().unwrap();
    one.remove_unused(&root, b"f").unwrap();
    assert!(!served.path().join("f").exists());
}

#[test]
fn a_strict_key_is_shared_by_those_who_have_it() {
    for (served, one) in on_each_transport() {
        let two = served.client(TRANSPORTS[0]);
        let strict = new().strict_share_key(u64::MAX);
        let first = one.open(b"/f", &strict).unwrap();
        for options in [new(), new().share_key(0), new().strict_share_key(1)] {
            let error = two.open(b"/f", &options).unwrap_err();
            assert_eq!(error.status(), Some(Status::KeyMismatch));
            assert_eq!(error.to_errno(), libc::EBUSY);
        }
        assert_eq!(status(two.read_file(b"/f", 10)), Status::KeyMismatch);
        let second = two.open(b"/f", &new().share_key(u64::MAX)).unwrap();
        first.write_at(b"data", 0, Stability::Unstable).unwrap();
        let mut found = [0; 4];
        assert_eq!(second.read_at(&mut found, 0).unwrap(), 4);
        assert_eq!(&found, b"data");
        first.close().unwrap();
        second.close().unwrap();
        two.open(b"/f", &new()).unwrap().close().unwrap();
    }
}

#[test]
fn a_strict_key_survives_a_restart_of_the_server() {
    for (mut served, one) in on_each_transport() {
        let two = served.client(TRANSPORTS[0]);
        let strict = new().strict_share_key(7);
        let file = one.open(b"/f", &strict).unwrap();
        served.stop();
        served.start();
        file.write_at(b"data", 0, Stability::Unstable).unwrap();
        assert_eq!(one.stats().restarts, 1);
        // The holder needs new state, so the server waits for no more reclaims of it.
        one.open(b"/g", &new()).unwrap().close().unwrap();
        assert_eq!(status(two.open(b"/f", &new())), Status::KeyMismatch);
        let second = two.open(b"/f", &new().share_key(7)).unwrap();
        file.close().unwrap();
        second.close().unwrap();
        two.open(b"/f", &new()).unwrap().close().unwrap();
    }
}

/// A client that only reads asks the server for nothing new.
#[test]
fn a_reader_holds_nobody_up_after_a_restart() {
    for transport in TRANSPORTS {
        let long = Duration::from_secs(3600);
        let mut served = Served::with(|setup| setup.grace_time = Some(long));
        std::fs::write(served.path().join("f"), b"data").unwrap();
        let (one, mut found) = (served.client(transport), [0; 4]);
        let file = one.open(b"/f", &OpenOptions::read()).unwrap();
        served.stop();
        served.start();
        assert_eq!(file.read_at(&mut found, 0).unwrap(), 4);
        assert_eq!((&found, one.stats().restarts), (b"data", 1));
        let two = served.client(transport);
        let other = two.open(b"/g", &new()).unwrap();
        other.try_lock(&LockRange::exclusive()).unwrap();
        other.close().unwrap();
        file.close().unwrap();
    }
}

#[test]
fn a_file_gets_its_name_when_it_is_done() {
    for (mut served, client) in on_each_transport() {
        let root = client.root();
        let options = OpenOptions::read_write().mode(0o640);
        let file = client.create_unlinked(&root, &options).unwrap();
        let content = pattern(300_000);
        file.write_at(&content, 0, Stability::Unstable).unwrap();
        let names = || std::fs::read_dir(served.path()).unwrap().count();
        assert_eq!(names(), 0);
        file.link(&root, b"f").unwrap();
        assert_eq!(served.content("f"), content);
        file.close().unwrap();
        // A file that never gets a name leaves no trace, however the server ends.
        let lost = client.create_unlinked(&root, &options).unwrap();
        lost.append(b"lost", Stability::FileSync).unwrap();
        let handle = *lost.handle();
        lost.close().unwrap();
        assert_eq!(status(client.attributes(&handle)), Status::Stale);
        let lost = client.create_unlinked(&root, &options).unwrap();
        drop(client);
        served.stop();
        assert_eq!(std::fs::read_dir(served.path()).unwrap().count(), 1);
        drop(lost);
    }
}
