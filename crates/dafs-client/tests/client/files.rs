//! Files and names, end to end over both transports.

use crate::served::{
    Served, TRANSPORTS, in_threads, on_each_transport, on_each_transport_with, pattern, status,
};
use dafs_client::{
    AccessMask, AccessPattern, ByteOrder, Create, Error, Follow, HintWord, ObjectType, OpenOptions,
    SetAttributes, SetTime, ShareDeny, SpecialFile, Stability, Status, Time, TransportChoice,
    TransportKind, WaitPolicy,
};
use dafs_mem::Site;
use std::time::Duration;

#[test]
fn a_reader_gets_the_written_bytes() {
    for (served, client) in on_each_transport() {
        let options = OpenOptions::read_write().create(Create::New).mode(0o640);
        let file = client.open(b"/file", &options).unwrap();
        let content = pattern(3_000_001);
        for (offset, len) in [(0, 1), (1, 8000), (8001, 300_000), (308_001, 2_692_000)] {
            let part = &content[offset..offset + len];
            let written = file.write_at(part, offset as u64, Stability::Unstable).unwrap();
            assert_eq!(written, len);
        }
        file.commit(0, 0).unwrap();
        assert_eq!(served.content("file"), content);
        for (offset, len) in [(0usize, 10usize), (5, 8192), (100, 1 << 20), (0, 4 << 20)] {
            let mut found = vec![0; len];
            let read = file.read_at(&mut found, offset as u64).unwrap();
            assert_eq!(read, len.min(content.len() - offset));
            assert_eq!(found[..read], content[offset..offset + read]);
        }
        assert_eq!(file.read_at(&mut [0; 10], 5_000_000).unwrap(), 0);
        assert_eq!(file.attributes().unwrap().size, content.len() as u64);
        file.close().unwrap();
    }
}

#[test]
fn every_kind_of_session_moves_the_same_bytes() {
    let served = Served::new();
    let content = served.with_file("file", 100_000);
    for transport in TRANSPORTS {
        for byte_order in [ByteOrder::Big, ByteOrder::Little] {
            for (checksums, crc) in [(false, false), (true, true)] {
                let client = served.client_with(|options| {
                    options.transport = transport;
                    options.byte_order = byte_order;
                    options.checksums = checksums;
                    options.crc = crc;
                });
                let file = client.open(b"file", &OpenOptions::read_write()).unwrap();
                let mut found = vec![0; 100_000];
                assert_eq!(file.read_at(&mut found, 0).unwrap(), 100_000);
                assert!(found == content);
                file.write_at(&content[..5000], 10, Stability::FileSync).unwrap();
                file.write_at(&content[10..], 10, Stability::DataSync).unwrap();
                file.write_at(&content[..10], 0, Stability::DataSync).unwrap();
                let entries: Vec<_> =
                    client.read_dir(&client.root()).map(|entry| entry.unwrap().name).collect();
                assert_eq!(entries, [b"file"]);
                assert!(served.content("file") == content);
            }
        }
    }
}

#[test]
fn large_transfers_are_direct() {
    for (_served, client) in on_each_transport() {
        let options = OpenOptions::read_write().create(Create::New);
        let file = client.open(b"big", &options).unwrap();
        let buffer = client.buffer(1 << 20).unwrap();
        buffer.view().copy_from(&pattern(1 << 20), Site::Inspect);
        assert_eq!(file.write_from(&buffer, 0..1 << 20, 0, Stability::Unstable).unwrap(), 1 << 20);
        buffer.view().fill(0);
        assert_eq!(file.read_into(&buffer, 0..1 << 20, 0).unwrap(), 1 << 20);
        assert!(buffer.view().to_vec(Site::Inspect) == pattern(1 << 20));
        // The counters of copies belong to the process, where other tests copy meanwhile; the test
        // of copies runs in a process of its own.
        assert_eq!(client.stats().inline_transfers, 0);
    }
}

#[test]
fn many_reads_in_flight_arrive_where_they_belong() {
    for (served, client) in on_each_transport() {
        let content = served.with_file("file", 1 << 20);
        let file = client.open(b"file", &OpenOptions::read()).unwrap();
        let buffer = client.buffer(1 << 20).unwrap();
        let mut completions = Vec::new();
        let places: Vec<usize> = (0..256).map(|number| (number * 37 % 256) * 4096).collect();
        let group = client.completion_group();
        for (tag, &at) in places.iter().enumerate() {
            group.read(tag as u64, &file, &buffer, at..at + 4096, at as u64).unwrap();
        }
        let time = Some(Duration::from_secs(30));
        group.wait(&mut completions, 256, time).unwrap();
        let mut tags: Vec<u64> = completions.iter().map(|done| done.user_data).collect();
        tags.sort_unstable();
        assert!(tags.iter().copied().eq(0..256));
        assert!(completions.iter().all(|done| *done.result.as_ref().unwrap() == 4096));
        assert!(buffer.view().to_vec(Site::Inspect) == content);

        let pending: Vec<_> = (0..64)
            .map(|number| file.submit_read(&buffer, number * 100..number * 100 + 100, 7).unwrap())
            .collect();
        for (number, pending) in pending.into_iter().enumerate() {
            assert_eq!(pending.wait().unwrap(), 100);
            let found = buffer.slice(number * 100, 100).unwrap().to_vec(Site::Inspect);
            assert_eq!(found, content[7..107]);
        }
    }
}

#[test]
fn threads_share_a_client() {
    for (served, client) in on_each_transport() {
        let content = served.with_file("file", 1 << 20);
        in_threads(6, |thread| {
            let file = client.clone().open(b"file", &OpenOptions::read()).unwrap();
            for round in 0..100usize {
                let at = (thread * 7919 + round * 4099) % 900_000;
                let len = 1 + (round * 211) % 20_000;
                let mut found = vec![0; len];
                assert_eq!(file.read_at(&mut found, at as u64).unwrap(), len);
                assert!(found == content[at..at + len]);
            }
        });
    }
}

/// Threads follow and lead in turn all the time here, and some time out early. A lost wake-up ends
/// with an error.
#[test]
fn every_waiter_wakes_however_threads_wait() {
    const ROUNDS: usize = 150;
    const TIME: Duration = Duration::from_secs(60);
    let policies = [WaitPolicy::default(), WaitPolicy::Sleep, WaitPolicy::Adaptive { spin: 10 }];
    for (transport, policy) in TRANSPORTS.into_iter().flat_map(|one| policies.map(|two| (one, two)))
    {
        let served = Served::new();
        served.with_file("file", 1 << 20);
        let client = served.client_with(|options| {
            options.transport = transport;
            options.wait = policy;
        });
        let file = client.open(b"file", &OpenOptions::read()).unwrap();
        let buffer = client.buffer(8 * 4096).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (client, file, buffer) = (&client, &file, &buffer);
                let range =
                    move |half: usize| (2 * thread + half) * 4096..(2 * thread + half + 1) * 4096;
                let within = |work: &dyn Fn()| {
                    dafs_client::within(TIME, || (0..ROUNDS).for_each(|_| work()))
                };
                scope.spawn(move || within(&|| assert!(client.ping().is_ok())));
                scope.spawn(move || {
                    within(&|| assert_eq!(file.read_into(buffer, range(0), 7).unwrap(), 4096));
                });
                scope.spawn(move || {
                    let begun = std::time::Instant::now();
                    within(&|| {
                        let mut pending = file.submit_read(buffer, range(1), 0).unwrap();
                        // Early timeouts, again and again.
                        let read = loop {
                            match pending.wait_deadline(Duration::from_micros(20)) {
                                Err(Error::TimedOut(_)) if begun.elapsed() < TIME => {}
                                read => break read,
                            }
                        };
                        assert_eq!(read.unwrap(), 4096);
                    });
                });
            }
        });
    }
}

#[test]
fn sleepers_and_pollers_share_a_client() {
    for (served, client) in on_each_transport_with(|options| options.wait = WaitPolicy::Sleep) {
        served.with_file("file", 1 << 20);
        let file = client.open(b"file", &OpenOptions::read()).unwrap();
        let buffer = client.buffer(1 << 20).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| assert!((0..500).all(|_| client.ping().is_ok())));
            scope.spawn(|| {
                for number in 0..500usize {
                    let range = number..number + 4096;
                    let pending = file.submit_read(&buffer, range, number as u64).unwrap();
                    assert_eq!(pending.wait().unwrap(), 4096);
                }
            });
            scope.spawn(|| {
                let group = client.completion_group();
                let (mut completions, mut count) = (Vec::new(), 0);
                for number in 0..500usize {
                    let range = number..number + 100;
                    group.read(7, &file, &buffer, range, number as u64).unwrap();
                    if number % 8 == 0 {
                        count += group.poll(&mut completions);
                    }
                }
                while count < 500 {
                    count += group.poll(&mut completions);
                    std::thread::yield_now();
                }
                assert!(
                    completions.iter().all(|done| {
                        done.user_data == 7 && *done.result.as_ref().unwrap() == 100
                    })
                );
            });
        });
    }
}

#[test]
fn operations_that_nobody_waits_for_complete_all_the_same() {
    for (served, client) in on_each_transport() {
        let options = OpenOptions::write().create(Create::New);
        let file = client.open(b"file", &options).unwrap();
        let buffer = client.buffer(100 * 4096).unwrap();
        buffer.view().copy_from(&pattern(100 * 4096), Site::Inspect);
        for number in 0..100 {
            let (start, end) = (number * 4096, (number + 1) * 4096);
            let offset = start as u64;
            drop(file.submit_write(&buffer, start..end, offset, Stability::Unstable).unwrap());
        }
        drop(buffer);
        let path = served.path().join("file");
        while std::fs::read(&path).unwrap() != pattern(100 * 4096) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn names_are_made_moved_and_removed() {
    for (_served, client) in on_each_transport() {
        let root = client.root();
        let dir = client.mkdir(&root, b"dir", &SetAttributes::mode(0o750)).unwrap();
        assert_eq!(client.lookup(&root, b"dir").unwrap(), dir);
        assert_eq!(client.parent(&dir).unwrap(), root);
        let attributes = client.attributes(&dir).unwrap();
        assert_eq!((attributes.kind, attributes.mode), (ObjectType::Directory, 0o750));
        assert_eq!(attributes.handle, dir);
        assert_eq!(status(client.mkdir(&root, b"dir", &SetAttributes::default())), Status::Exist);

        let name = b"not utf-8: \xff\xfe";
        let file = client.open_at(&dir, name, &OpenOptions::write().create(Create::New)).unwrap();
        client.link(file.handle(), &root, b"second").unwrap();
        assert_eq!(file.attributes().unwrap().links, 2);
        client.rename(&root, b"second", &dir, b"third").unwrap();
        assert_eq!(status(client.lookup(&root, b"second")), Status::NoEnt);
        assert_eq!(status(client.remove(&root, b"dir")), Status::NotEmpty);
        client.remove(&dir, name).unwrap();
        client.remove(&dir, b"third").unwrap();
        assert_eq!(file.attributes().unwrap().links, 0, "still open");
        file.close().unwrap();
        client.remove(&root, b"dir").unwrap();
        assert_eq!(status(client.attributes(&dir)), Status::Stale);

        let fifo = client.mknod(&root, b"fifo", SpecialFile::Fifo, &SetAttributes::mode(0o600));
        let fifo = client.attributes(&fifo.unwrap()).unwrap();
        assert_eq!((fifo.kind, fifo.mode), (ObjectType::Fifo, 0o600));
    }
}

#[test]
fn links_are_followed_and_circles_found() {
    for (served, client) in on_each_transport() {
        std::fs::create_dir_all(served.path().join("a/b/c")).unwrap();
        std::fs::write(served.path().join("a/b/c/file"), "content").unwrap();
        let root = client.root();
        for (name, text) in [
            (&b"to-b"[..], &b"a/b"[..]),
            (b"to-file", b"to-b/./c//file"),
            (b"absolute", b"/to-b/c/../c/file"),
            (b"circle", b"circle"),
            (b"dangling", b"a/new"),
        ] {
            client.symlink(&root, name, text).unwrap();
        }
        let direct = client.resolve(b"/a/b/c/file", Follow::Yes).unwrap();
        assert_eq!(direct.attributes.size, 7);
        for path in [
            &b"to-b/c/file"[..],
            b"//to-file",
            b"/absolute",
            b"to-b/../b/c/file",
            b"../../to-b/c/./file",
        ] {
            let found = client.resolve(path, Follow::Yes).unwrap();
            assert_eq!(found.handle, direct.handle, "{}", path.escape_ascii());
        }
        let link = client.resolve(b"to-file", Follow::No).unwrap();
        assert!(link.attributes.is_symlink());
        assert_eq!(client.readlink(&link.handle).unwrap(), b"to-b/./c//file");
        assert!(matches!(client.resolve(b"circle", Follow::Yes), Err(Error::SymlinkLoop(_))));
        assert!(matches!(client.resolve(b"circle/x", Follow::Yes), Err(Error::SymlinkLoop(_))));
        assert_eq!(status(client.resolve(b"a/b/c/file/x", Follow::Yes)), Status::NotDir);
        assert_eq!(status(client.resolve(b"a/x/y", Follow::Yes)), Status::NoEnt);
        assert_eq!(client.resolve(b"/", Follow::Yes).unwrap().handle, root);

        let mut found = [0; 16];
        let file = client.open(b"to-file", &OpenOptions::read()).unwrap();
        assert_eq!(file.read_at(&mut found, 0).unwrap(), 7);
        let options = OpenOptions::write().create(Create::IfMissing);
        client.open(b"dangling", &options).unwrap().close().unwrap();
        assert!(served.path().join("a/new").exists());
        let place = client.resolve_new_directory_from(&root, b"to-b/c/new//").unwrap();
        assert_eq!(place.name, b"new");
        assert_eq!(place.dir, client.resolve(b"a/b/c", Follow::Yes).unwrap().handle);
        assert!(matches!(client.resolve_parent(b"/a/.."), Err(Error::Argument(_))));
    }
}

#[test]
fn data_and_holes_are_found() {
    for (_served, client) in on_each_transport() {
        let options = OpenOptions::write().create(Create::New);
        let file = client.open(b"sparse", &options).unwrap();
        const MIB: u64 = 1 << 20;
        file.write_at(b"content", 2 * MIB, Stability::Unstable).unwrap();
        file.set_size(20 << 30).unwrap();
        assert_eq!(file.seek_data(0).unwrap(), Some(2 * MIB));
        let hole = file.seek_hole(2 * MIB).unwrap().unwrap();
        assert!(hole > 2 * MIB && hole < 4 * MIB, "{hole}");
        assert_eq!(file.seek_hole(hole + 1).unwrap(), Some(hole + 1));
        assert_eq!(file.seek_data(hole).unwrap(), None, "a hole up to the end");
        assert_eq!(file.seek_data(20 << 30).unwrap(), None);
        assert_eq!(file.seek_hole(20 << 30).unwrap(), None);
        file.set_size(2 * MIB + 7).unwrap();
        assert_eq!(file.seek_hole(2 * MIB).unwrap(), Some(2 * MIB + 7), "the end is a hole");
    }
}

#[test]
fn a_slash_behind_a_name_asks_for_a_directory() {
    for (served, client) in on_each_transport() {
        std::fs::create_dir_all(served.path().join("d/inner")).unwrap();
        std::fs::write(served.path().join("f"), "content").unwrap();
        let root = client.root();
        for (name, text) in [
            (&b"to-d"[..], &b"d"[..]),
            (b"to-f", b"f"),
            (b"to-f-slash", b"f/"),
            (b"to-new", b"new/"),
        ] {
            client.symlink(&root, name, text).unwrap();
        }
        for path in
            [&b"f/"[..], b"f//", b"f/.", b"f/..", b"f/../d", b"to-f/", b"to-f/.", b"to-f-slash"]
        {
            let read = client.read_file(path, 100).map(|start| start.data);
            let what = path.escape_ascii().to_string();
            assert_eq!(status(client.resolve(path, Follow::Yes)), Status::NotDir, "{what}");
            assert_eq!(status(client.open(path, &OpenOptions::read())), Status::NotDir, "{what}");
            assert_eq!(status(read), Status::NotDir, "{what}");
        }
        for path in [&b"f/"[..], b"f/.", b"to-f/", b"to-d/"] {
            let what = path.escape_ascii().to_string();
            assert_eq!(status(client.resolve_parent(path)), Status::NotDir, "{what}");
        }
        assert_eq!(status(client.resolve_parent(b"new/")), Status::NoEnt);
        assert_eq!(status(client.resolve_parent(b"new/.")), Status::NoEnt);
        assert_eq!(client.resolve_parent(b"d/inner/").unwrap().name, b"inner");
        // A link is followed where a directory is asked for.
        for path in [&b"to-d/"[..], b"to-d/.", b"d/", b"d/inner/.."] {
            let found = client.resolve(path, Follow::No).unwrap();
            assert!(found.attributes.is_directory(), "{}", path.escape_ascii());
        }
        for create in [Create::IfMissing, Create::New] {
            let options = OpenOptions::write().create(create).truncate(true);
            for path in [&b"f/"[..], b"new/", b"d/"] {
                let what = path.escape_ascii().to_string();
                assert_eq!(status(client.open(path, &options)), Status::IsDir, "{what}");
            }
            let is_new = create == Create::New;
            let expected = if is_new { Status::Exist } else { Status::IsDir };
            assert_eq!(status(client.open(b"d/.", &options)), expected);
        }
        let options = OpenOptions::write().create(Create::IfMissing);
        assert_eq!(status(client.open(b"to-new", &options)), Status::IsDir);
        assert!(!served.path().join("new").exists());
        let place = |from: &[u8], to: &[u8]| client.resolve_rename((&root, from), (&root, to));
        assert_eq!(status(place(b"f/", b"g")), Status::NotDir);
        assert_eq!(status(place(b"f", b"g/")), Status::NotDir);
        let (old, new) = place(b"d/inner/", b"d/other/").unwrap();
        client.rename(&old.dir, &old.name, &new.dir, &new.name).unwrap();
        assert!(served.path().join("d/other").is_dir());
        assert_eq!(served.content("f"), b"content");
    }
}

#[test]
fn a_large_directory_is_listed_with_attributes() {
    for transport in TRANSPORTS {
        let served = Served::new();
        for number in 0..3000 {
            std::fs::write(served.path().join(format!("{number:0200}")), "x").unwrap();
        }
        for checksums in [false, true] {
            let client = served.client_with(|options| {
                options.transport = transport;
                options.checksums = checksums;
            });
            let mut names = Vec::new();
            for entry in client.read_dir(&client.root()) {
                let entry = entry.unwrap();
                let attributes = entry.attributes.unwrap();
                assert_eq!((attributes.size, attributes.kind), (1, ObjectType::Regular));
                if names.len() % 500 == 0 {
                    assert_eq!(
                        client.lookup(&client.root(), &entry.name).unwrap(),
                        attributes.handle
                    );
                }
                names.push(String::from_utf8(entry.name).unwrap().parse::<u32>().unwrap());
            }
            names.sort_unstable();
            assert!(names.into_iter().eq(0..3000));
        }
    }
}

#[test]
fn attributes_are_set_and_read() {
    for (_served, client) in on_each_transport() {
        let file = client
            .open(b"file", &OpenOptions::read_write().create(Create::New).mode(0o600))
            .unwrap();
        let time = Time { seconds: -5, nseconds: 123_456_789 };
        let change = SetAttributes {
            mode: Some(0o4751),
            size: Some(10_000),
            accessed: Some(SetTime::Client(time)),
            modified: Some(SetTime::Client(Time { seconds: 1_000_000_000, nseconds: 1 })),
            ..SetAttributes::default()
        };
        file.set_attributes(&change).unwrap();
        let found = file.attributes().unwrap();
        assert_eq!((found.mode, found.size), (0o4751, 10_000));
        assert_eq!(found.accessed, Some(time));
        assert_eq!(found.modified, Some(Time { seconds: 1_000_000_000, nseconds: 1 }));
        assert!(found.owner.id().is_some() && found.group.id().is_some());
        file.set_size(5).unwrap();
        assert_eq!(file.attributes().unwrap().size, 5);
        let wanted = AccessMask::READ | AccessMask::MODIFY;
        assert_eq!(client.access(file.handle(), wanted).unwrap(), wanted);
        let fs = client.fs_status(file.handle()).unwrap();
        assert!(fs.space_total.unwrap() >= fs.space_free.unwrap());
        assert_eq!(fs.name_bytes_max, Some(255));
        file.cache_hint(0, 0, AccessPattern::Sequential, HintWord::NONE).unwrap();
    }
}

#[test]
fn opens_create_truncate_and_exclude() {
    for transport in TRANSPORTS {
        let served = Served::new();
        let (client, other) = (served.client(transport), served.client(transport));
        let missing = client.open(b"file", &OpenOptions::read());
        assert_eq!(status(missing), Status::NoEnt);
        let options = OpenOptions::write().mode(0o604);
        let file = client.open(b"file", &options.create(Create::Exclusive)).unwrap();
        assert_eq!(file.attributes().unwrap().mode, 0o604);
        file.write_at(b"content", 0, Stability::Unstable).unwrap();
        assert_eq!(status(client.open(b"file", &options.create(Create::New))), Status::Exist);
        file.close().unwrap();

        let deny = OpenOptions::write().deny(ShareDeny::Both);
        let held = client.open(b"file", &deny).unwrap();
        assert_eq!(status(other.open(b"file", &OpenOptions::read())), Status::Denied);
        drop(held);
        let reader = other.open(b"file", &OpenOptions::read()).unwrap();
        let cut = client.open(b"file", &OpenOptions::write().truncate(true)).unwrap();
        assert_eq!(reader.attributes().unwrap().size, 0);
        cut.write_at(b"new", 0, Stability::Unstable).unwrap();
        let again = OpenOptions::write().create(Create::IfMissing).truncate(true);
        client.open(b"file", &again).unwrap();
        assert_eq!(reader.attributes().unwrap().size, 0);
        assert_eq!(status(client.open(b"/", &OpenOptions::read())), Status::IsDir);
    }
}

#[test]
fn the_transport_is_chosen_and_explained() {
    let served = Served::new();
    let client = served.client(TransportChoice::Auto);
    assert_eq!(client.transport().kind, TransportKind::Shm);
    assert_eq!(client.transport().to_string(), "shm: the server runs on this host");
    let client = served.client(TransportChoice::Iwarp);
    assert_eq!(client.transport().to_string(), "iwarp: it was asked for");
}

#[test]
fn buffers_of_another_client_are_refused() {
    let served = Served::new();
    std::fs::write(served.path().join("file"), "content").unwrap();
    let client = served.client(TransportChoice::Iwarp);
    let other = served.client(TransportChoice::Iwarp);
    let file = client.open(b"file", &OpenOptions::read()).unwrap();
    let buffer = other.buffer(100).unwrap();
    assert!(matches!(file.read_into(&buffer, 0..100, 0), Err(Error::ForeignBuffer)));
    assert!(matches!(file.read_into(&buffer, 50..101, 0), Err(Error::Argument(_))));
    let bad = std::ops::Range { start: 5, end: 4 };
    assert!(matches!(file.read_into(&buffer, bad, 0), Err(Error::Argument(_))));
}
