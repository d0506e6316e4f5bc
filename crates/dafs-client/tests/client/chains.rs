//! Chains, end to end over both transports, and over wires that break.

use crate::served::{
    Served, TRANSPORTS, Wire, connected, in_threads, on_each_transport, on_each_transport_with,
    pattern,
};
use dafs_client::{
    AccessMask, Client, Error, LockRange, OpenOptions, SetAttributes, Stability, Status, Step,
    StepIn, StepOn, Stepped, Takes,
};
use dafs_wire::dafs as wire;
use dafs_wire::dafs::Request;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::Ordering;

fn lookup<'a>(client: &Client, path: &'a [&'a [u8]]) -> Request<'a> {
    Request::Lookup(wire::Lookup { dir: client.root(), path: wire::Path::new(path) })
}

fn mkdir<'a>(client: &Client, name: &'a [u8]) -> Request<'a> {
    Request::Create(wire::Create {
        dir: client.root(),
        name,
        object: wire::NewObject::Plain(wire::ObjectType::Directory),
        attributes: wire::Attributes::default(),
    })
}

#[test]
fn a_small_file_is_read_in_two_messages_at_once() {
    for transport in TRANSPORTS {
        let served = Served::new();
        std::fs::create_dir(served.path().join("dir")).unwrap();
        for (len, bytes_max) in [(0, 100), (1, 100), (99, 100), (101, 100), (3000, 9)] {
            let content = served.with_file("dir/file", len);
            let client = served.client(transport);
            let before = client.stats().answered;
            let start = client.read_file(b"/dir//file", bytes_max).unwrap();
            assert_eq!(client.stats().answered - before, 2);
            assert!(start.data == content[..len.min(bytes_max)]);
            assert_eq!(start.is_whole, len <= bytes_max, "{len} of {bytes_max}");
            let (handle, attributes) = client.lookup_attributes(&client.root(), b"dir").unwrap();
            assert!(attributes.is_directory());
            assert_eq!(client.lookup_attributes(&handle, b"file").unwrap().1.size, len as u64);
            assert_eq!(client.stats().answered - before, 6);
        }
    }
}

#[test]
fn reading_follows_links_and_goes_on_where_a_message_ends() {
    let served = Served::new();
    let content = pattern(300_000);
    std::fs::create_dir(served.path().join("dir")).unwrap();
    std::fs::write(served.path().join("dir/file"), &content).unwrap();
    std::os::unix::fs::symlink("dir", served.path().join("way")).unwrap();
    std::os::unix::fs::symlink("way/file", served.path().join("link")).unwrap();
    let client = served.client(TRANSPORTS[0]);
    for path in [&b"dir/file"[..], b"way/file", b"link", b"dir/../link"] {
        let start = client.read_file(path, 1 << 20).unwrap();
        assert!(start.is_whole && start.data == content, "{}", path.escape_ascii());
    }
    let status = |path: &[u8]| client.read_file(path, 10).unwrap_err().status();
    assert_eq!(status(b"nothing"), Some(Status::NoEnt));
    assert_eq!(status(b"dir"), Some(Status::IsDir));
    assert_eq!(status(b"dir/file/more"), Some(Status::NotDir));
}

#[test]
fn a_small_file_is_made_in_three_messages_at_once() {
    for (served, client) in on_each_transport() {
        let (root, mode) = (client.root(), SetAttributes::mode(0o640));
        let content = pattern(2000);
        let before = client.stats().answered;
        let make = |name: &[u8], data: &[u8]| {
            client.create_file(&root, name, &mode, data, Stability::FileSync)
        };
        let made = make(b"file", &content).unwrap();
        assert_eq!(client.stats().answered - before, 3);
        assert_eq!(client.lookup(&root, b"file").unwrap(), made);
        assert!(served.content("file") == content);
        assert_eq!(make(b"file", &content).unwrap_err().status(), Some(Status::Exist));
        make(b"empty", b"").unwrap();
        let long = pattern(20_000);
        make(b"long", &long).unwrap();
        assert!(served.content("long") == long);
        assert!(served.content("empty").is_empty());
    }
}

#[test]
fn small_files_are_read_and_made_with_one_credit_too() {
    for (served, client) in on_each_transport_with(|options| options.requests = 1) {
        assert_eq!(client.stats().credits, 1);
        let (root, mode) = (client.root(), SetAttributes::mode(0o640));
        let make = |name: &[u8], data: &[u8]| {
            client.create_file(&root, name, &mode, data, Stability::FileSync)
        };
        for (name, bytes) in [("empty", 0), ("short", 2000), ("long", 200_000)] {
            let made = make(name.as_bytes(), &pattern(bytes)).unwrap();
            assert_eq!(client.lookup(&root, name.as_bytes()).unwrap(), made);
            let path = served.path().join(name);
            assert!(std::fs::read(&path).unwrap() == pattern(bytes));
            assert_eq!(std::fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o640);
            let again = make(name.as_bytes(), b"other").unwrap_err();
            assert_eq!(again.status(), Some(Status::Exist));
            let start = client.read_file(name.as_bytes(), 1 << 20).unwrap();
            assert!(start.data == pattern(bytes) && start.is_whole);
        }
    }
}

#[test]
fn members_behind_a_failure_are_not_done() {
    for (served, client) in on_each_transport() {
        let chain = client.chain().then(mkdir(&client, b"one"), Takes::Nothing);
        let chain = chain.then(lookup(&client, &[b"none"]), Takes::Nothing);
        let chain = chain.then(mkdir(&client, b"two"), Takes::Nothing);
        let results = chain.then(Request::Null, Takes::Nothing).run().unwrap();
        assert!(results[0].is_ok(), "{results:?}");
        assert_eq!(results[1].as_ref().unwrap_err().status(), Some(Status::NoEnt));
        for result in &results[2..] {
            assert!(matches!(result, Err(Error::ChainBroken { member: 1, .. })), "{results:?}");
        }
        assert!(served.path().join("one").exists() && !served.path().join("two").exists());
        // The next request is no member of the chain.
        client.ping().unwrap();
    }
}

#[test]
fn steps_on_names_and_files_are_one_round_trip() {
    for (served, client) in on_each_transport() {
        std::fs::create_dir(served.path().join("dir")).unwrap();
        std::fs::write(served.path().join("dir/file"), b"0123456789").unwrap();
        let root = StepIn::Directory(client.root());
        let file = client.open(b"/dir/file", &OpenOptions::read_write()).unwrap();
        let run = |steps: &[Step<'_>]| {
            let before = client.stats().answered;
            let results = client.run_steps(steps).unwrap();
            assert_eq!(client.stats().answered - before, steps.len() as u64);
            results
        };
        let done = run(&[
            Step::Lookup { from: root, names: &[b"dir"] },
            Step::MakeDirectory { within: StepIn::Found, name: b"new", mode: 0o700 },
            Step::Attributes,
        ]);
        let Ok(Stepped::Found(made)) = &done[1] else { panic!("{done:?}") };
        assert_eq!(
            client
                .lookup(&client.resolve(b"/dir", dafs_client::Follow::Yes).unwrap().handle, b"new")
                .unwrap(),
            *made
        );
        let Ok(Stepped::Attributes(attributes)) = &done[2] else { panic!("{done:?}") };
        assert_eq!((attributes.mode, attributes.handle), (0o700, *made));
        let on = StepOn::File(&file);
        let (stability, range) = (Stability::FileSync, LockRange::exclusive().bytes(0, 4));
        let done = run(&[
            Step::Lock { file: &file, range },
            Step::Write { on, offset: 2, data: b"xy", stability },
            Step::Read { on, offset: 0, bytes: 100 },
            Step::Unlock { file: &file, offset: 0, length: 4 },
        ]);
        let done: Vec<_> = done.into_iter().map(Result::unwrap).collect();
        assert_eq!(done[1..3], [Stepped::Written(2), Stepped::Read(b"01xy456789".to_vec())]);
        assert!(file.test_lock(&LockRange::exclusive()).unwrap().is_none());
        let done = run(&[
            Step::Lookup { from: root, names: &[b"dir", b"file"] },
            Step::Access(AccessMask::READ | AccessMask::EXECUTE),
            Step::Lookup { from: root, names: &[b"dir", b"none"] },
            Step::Remove { within: root, name: b"dir" },
        ]);
        assert!(done[..2].iter().all(Result::is_ok), "{done:?}");
        assert_eq!(done[2].as_ref().unwrap_err().status(), Some(Status::NoEnt));
        assert!(matches!(done[3], Err(Error::ChainBroken { member: 2, .. })), "{done:?}");
        let done = run(&[
            Step::Lookup { from: root, names: &[b"dir"] },
            Step::Remove { within: StepIn::Found, name: b"new" },
        ]);
        assert!(done.iter().all(Result::is_ok), "{done:?}");
        assert!(!served.path().join("dir/new").exists());
    }
}

#[test]
fn steps_that_are_no_chain_are_not_sent() {
    let served = Served::new();
    let (client, other) = (served.client(TRANSPORTS[0]), served.client(TRANSPORTS[0]));
    std::fs::write(served.path().join("file"), b"0123456789").unwrap();
    let foreign = other.open(b"/file", &OpenOptions::read_write()).unwrap();
    let file = client.open(b"/file", &OpenOptions::read_write()).unwrap();
    let (on, stability) = (StepOn::File(&file), Stability::FileSync);
    let before = client.stats().answered;
    let argument = |steps: &[Step<'_>]| {
        let error = client.run_steps(steps).unwrap_err();
        assert!(matches!(error, Error::Argument(_) | Error::ForeignFile), "{steps:?}: {error:?}");
    };
    let root = StepIn::Directory(client.root());
    argument(&[Step::Attributes]);
    argument(&[Step::Lookup { from: root, names: &[] }]);
    argument(&[Step::Lookup { from: root, names: &[b".."] }]);
    argument(&[Step::Lookup { from: root, names: &[b"a".as_slice(); 65] }]);
    argument(&[Step::Read { on: StepOn::File(&foreign), offset: 0, bytes: 1 }]);
    argument(&[Step::Read { on, offset: 0, bytes: 1 << 30 }]);
    argument(&[Step::Write { on, offset: 0, data: &[0; 1 << 20], stability }]);
    argument(&[Step::Write { on, offset: 0, data: b"a", stability: Stability::Unstable }]);
    argument(&[
        Step::Read { on, offset: 0, bytes: 1 },
        Step::Write { on, offset: 0, data: b"a", stability },
    ]);
    let many = vec![Step::Read { on, offset: 0, bytes: 1 }; 100_000];
    assert!(matches!(client.run_steps(&many), Err(Error::ChainTooLong { .. })));
    assert_eq!(client.stats().answered, before);
    assert!(client.run_steps(&[]).unwrap().is_empty());
    let most = client.step_read_bytes_max();
    let read = client.run_steps(&[Step::Read { on, offset: 0, bytes: most }]).unwrap();
    assert!(matches!(&read[0], Ok(Stepped::Read(data)) if data.len() == 10));
}

#[test]
fn impossible_chains_are_not_sent() {
    let (_served, client) = connected();
    let before = client.stats().answered;
    let read = Request::GetAttrInline(wire::GetAttrInline {
        fh: client.root(),
        attributes: wire::AttrMask::MODE,
    });
    let late = client.chain().then(read, Takes::Nothing);
    let late = late.then(mkdir(&client, b"late"), Takes::Nothing);
    assert!(matches!(late.run(), Err(Error::Argument(_))));
    let first = client.chain().then(read, Takes::Handle);
    assert!(matches!(first.run(), Err(Error::Argument(_))));
    let special = client.chain().then(Request::Null, Takes::Nothing);
    let special = special.then(Request::Disconnect, Takes::Nothing);
    assert!(matches!(special.run(), Err(Error::Argument(_))));
    let credits = usize::from(client.stats().credits);
    let mut chain = client.chain();
    for _ in 0..=credits {
        chain = chain.then(Request::Null, Takes::Nothing);
    }
    assert!(matches!(chain.run(), Err(Error::ChainTooLong { members, .. }) if members > credits));
    assert!(client.chain().run().unwrap().is_empty());
    assert_eq!(client.stats().answered, before);
}

#[test]
fn chains_of_many_threads_do_not_mix() {
    for (served, client) in on_each_transport_with(|options| options.requests = 5) {
        for number in 0..8 {
            std::fs::write(served.path().join(format!("{number}")), [number; 500]).unwrap();
        }
        in_threads(8, |number| {
            let (client, path) = (client.clone(), format!("/{number}"));
            for _ in 0..100 {
                let start = client.read_file(path.as_bytes(), 1000).unwrap();
                assert!(start.is_whole && start.data == [number as u8; 500]);
                client.ping().unwrap();
            }
        });
    }
}

/// Does `work` with a connection that is cut after each number of bytes; it must succeed, and clean
/// up after itself.
pub(crate) fn cut_everywhere(served: &Served, work: impl Fn(&Client, u64)) {
    let mut cuts = 0;
    let mut quiet = 0;
    for bytes in (0..).map(|step| 600 + step * 61) {
        let mut first = true;
        let wire = Wire::new(served.address, move || std::mem::take(&mut first).then_some(bytes));
        let client = wire.client();
        if wire.cuts.load(Ordering::SeqCst) > 0 {
            // It has opened the session by another connection.
            continue;
        }
        work(&client, bytes);
        let cut = client.stats().recoveries;
        // The wire may break now.
        let _ = client.disconnect();
        cuts += cut;
        quiet = if cut == 0 { quiet + 1 } else { 0 };
        if quiet > 3 {
            break;
        }
    }
    assert!(cuts > 10, "{cuts} cuts");
}

#[test]
fn a_file_is_read_over_a_wire_that_breaks_anywhere() {
    let served = Served::new();
    let content = served.with_file("file", 700);
    cut_everywhere(&served, |client, _| {
        assert!(client.read_file(b"/file", 1000).unwrap().data == content);
    });
}

#[test]
fn a_file_is_made_once_over_a_wire_that_breaks_anywhere() {
    let served = Served::new();
    let content = pattern(900);
    cut_everywhere(&served, |client, bytes| {
        let (root, name) = (client.root(), format!("{bytes}"));
        let mode = SetAttributes::mode(0o640);
        // A second OPEN would fail on the file of the first.
        let stability = Stability::Unstable;
        client.create_file(&root, name.as_bytes(), &mode, &content, stability).unwrap();
        assert!(served.content(&name) == content);
        // The file is closed, so it conflicts with no share reservation.
        client.remove(&root, name.as_bytes()).unwrap();
    });
}

#[test]
fn a_chain_of_changes_is_done_once_over_a_wire_that_breaks_anywhere() {
    let served = Served::new();
    cut_everywhere(&served, |client, bytes| {
        let names: Vec<String> = (0..4).map(|number| format!("{bytes}-{number}")).collect();
        let mut chain = client.chain();
        for name in &names {
            chain = chain.then(Request::GetRootHandle, Takes::Nothing);
            chain = chain.then(mkdir(client, name.as_bytes()), Takes::Nothing);
        }
        for result in chain.run().unwrap() {
            result.unwrap();
        }
        for name in &names {
            assert!(served.path().join(name).is_dir());
        }
    });
}

/// The server may leave a session one credit, as when it has just reconnected.
#[test]
fn with_one_credit_names_and_small_files_take_more_trips() {
    for (served, client) in on_each_transport_with(|options| options.requests = 1) {
        std::fs::write(served.path().join("file"), b"content").unwrap();
        assert_eq!(client.stats().credits, 1);
        let (handle, attributes) = client.lookup_attributes(&client.root(), b"file").unwrap();
        assert_eq!(attributes.size, 7);
        assert_eq!(client.attributes(&handle).unwrap().file_id, attributes.file_id);
        let missing = client.lookup_attributes(&client.root(), b"missing");
        assert!(matches!(missing, Err(Error::Status { status: Status::NoEnt, .. })), "{missing:?}");
        assert_eq!(client.read_file(b"file", 100).unwrap().data, b"content");
    }
}
