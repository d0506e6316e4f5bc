//! Durable replies: a client's queries about its requests after a crash of the server.

use crate::common::*;
use crate::responses::{begin, key, lose};
use dafs_journal::sim::SimDisk;
use dafs_service::ExportOptions;
use dafs_service::durable::Durability;
use dafs_store::Cred;
use dafs_wire::dafs::{
    self, ByteOrder, CheckResponse, FileHandle, HEADER_BYTES, Procedure, Reply, Request, SessionId,
    StateId, Status,
};
use std::sync::Arc;

pub(crate) fn setup(mode: Durability, disk: &Arc<SimDisk>) -> Setup {
    let options = ExportOptions { durable_replies: mode, ..ExportOptions::default() };
    Setup { exports: vec![("", options)], journal: Some(disk.clone()), ..Setup::default() }
}

/// Crashes the server with all its memory and restarts it.
fn crash(world: World, mode: Durability, disk: &Arc<SimDisk>) -> World {
    let stores = world.stores.clone();
    // The log gets no further record, because no drop runs.
    std::mem::forget(world);
    World::new(Setup { stores, run: 8, ..setup(mode, disk) })
}

/// Does the same, and returns a new session of the client, too.
pub(crate) fn restart(
    world: World,
    mode: Durability,
    disk: &Arc<SimDisk>,
    order: ByteOrder,
) -> (World, usize) {
    let mut world = crash(world, mode, disk);
    let (new, _) = begin(&mut world, 2, "a", order);
    (world, new)
}

/// The same file without the open.
pub(crate) fn without_open(file: File) -> File {
    File { id: StateId::ZERO, ..file }
}

const OPENED: [&[u8]; 1] = [b"opened"];

/// Returns one change of each logged kind. None of them can be executed twice in a row.
fn changes(root: FileHandle, file: File) -> Vec<Request<'static>> {
    let attributes = dafs::Attributes { mode: Some(0o600), ..dafs::Attributes::default() };
    let setattr = dafs::SetAttrInline { fh: file.fh, state_id: StateId::ZERO, attributes };
    vec![
        mkdir(root, b"made"),
        Request::Open(open_request(root, &OPENED, b"owner")),
        remove(root, b"old", false),
        Request::Rename(dafs::Rename {
            source_dir: root,
            target_dir: root,
            old_name: b"moving",
            new_name: b"moved",
        }),
        Request::Link(dafs::Link { source: file.fh, target_dir: root, name: b"linked" }),
        Request::SetAttrInline(setattr),
        write_stable(without_open(file), 3, b"stable", dafs::Stability::FileSync),
        append_inline(without_open(file), dafs::Stability::FileSync, b"more"),
    ]
}

/// Makes a server with objects to change, and a client without requests in flight.
pub(crate) fn prepared(setup: Setup, order: ByteOrder) -> (World, usize, SessionId, File) {
    let mut world = World::new(setup);
    let (client, id) = begin(&mut world, 2, "a", order);
    for name in [b"old".as_slice(), b"moving"] {
        world.open(client, name);
    }
    let file = world.open(client, b"f");
    (world, client, id, file)
}

pub(crate) fn status(world: &mut World, client: usize, asked: CheckResponse) -> Status {
    world.status(client, &Request::CheckResponse(asked))
}

/// Runs until so many jobs have been run or no work is left.
fn run_jobs(world: &mut World, most: usize) {
    world.hold_jobs = true;
    world.settle();
    for _ in 0..most {
        world.run_job();
        world.settle();
    }
}

#[test]
fn replies_are_found_after_the_server_has_died() {
    for mode in [Durability::Crash, Durability::Power] {
        for order in [ByteOrder::Big, ByteOrder::Little] {
            let disk = Arc::new(SimDisk::new());
            let (mut world, client, id, file) = prepared(setup(mode, &disk), order);
            let root = world.root();
            let requests = changes(root, file);
            // Each has a stream of its own, so that all of them are the latest.
            let streams: Vec<_> =
                requests[..7].iter().map(|request| world.clients[client].post(request)).collect();
            let answers: Vec<_> = streams
                .iter()
                .map(|stream| world.wait(client, *stream).expect("an answer"))
                .collect();
            let keys: Vec<_> = (streams.iter().zip(&answers))
                .map(|(stream, answer)| key(&mut world, client, id, *stream, answer.procedure))
                .collect();
            let mut world = crash(world, mode, &disk);
            let (new, new_id) = begin(&mut world, 2, "a", order);
            assert_ne!(new_id, id, "sessions of all runs have names of their own");
            for (asked, answer) in keys.iter().zip(&answers) {
                assert_eq!(answer.status(), Status::Ok);
                assert_eq!(status(&mut world, new, *asked), Status::Ok, "{asked:?}");
                let fetched = world.call(new, &Request::FetchResponse(*asked));
                assert_eq!(fetched.bytes[HEADER_BYTES..], answer.bytes[HEADER_BYTES..]);
            }
            let other = CheckResponse { seq_number: 99, ..keys[0] };
            assert_eq!(status(&mut world, new, other), Status::NoXidMatch);
            let (foreign, _) = begin(&mut world, 3, "b", order);
            assert_eq!(status(&mut world, foreign, keys[0]), Status::UnknownSession);
            let discard = dafs::DiscardResponses { session_id: id };
            let discard = Request::DiscardResponses(discard);
            assert_eq!(world.status(foreign, &discard), Status::UnknownSession);
            assert_eq!(world.status(new, &discard), Status::Ok);
            assert_eq!(status(&mut world, new, keys[0]), Status::UnknownSession);
            world.end();
        }
    }
}

/// The server crashes after any number of steps. A change without a received reply is either known,
/// with an equal reply, or has left no trace and is executed once when it is retried.
#[test]
fn a_change_happens_once_wherever_the_server_dies() {
    let mut outcomes = [0; 2];
    for which in 0..8 {
        for steps in 0..8 {
            let (mode, order) = (Durability::Power, ByteOrder::Little);
            let disk = Arc::new(SimDisk::new());
            let (mut world, client, id, file) = prepared(setup(mode, &disk), order);
            let root = world.root();
            let request = changes(root, file)[which];
            world.hold_jobs = true;
            let stream = world.clients[client].post(&request);
            run_jobs(&mut world, steps);
            let done = world.clients[client].take_answer(stream).is_some();
            let asked = key(&mut world, client, id, stream, request.procedure());
            let (mut world, new) = restart(world, mode, &disk, order);
            let known = match status(&mut world, new, asked) {
                Status::Ok => true,
                Status::NoXidMatch => false,
                status => panic!("{request:?} {steps}: {status:?}"),
            };
            outcomes[usize::from(known)] += 1;
            assert!(known || !done, "{request:?}: the client has the reply");
            let fetched = if known {
                world.call(new, &Request::FetchResponse(asked))
            } else {
                world.call(new, &request)
            };
            let decoded = dafs::decode_response(&fetched.bytes, order, request.procedure());
            let reply = decoded.unwrap().1.into_result().unwrap();
            assert_eq!(reply.procedure(), request.procedure());
            match reply {
                Reply::Create(made) => {
                    let path: [&[u8]; 1] = [b"made"];
                    let path = dafs::Path::new(&path);
                    let found = world.call(new, &Request::Lookup(dafs::Lookup { dir: root, path }));
                    let Ok(Reply::Lookup(found)) = found.reply() else { panic!() };
                    assert_eq!(found.fh, made.fh);
                }
                Reply::WriteInline(reply) => assert_eq!(reply.count, 6),
                Reply::AppendInline(reply) => {
                    assert_eq!(reply.offset, 0);
                    assert_eq!(world.read(new, without_open(file)), b"more");
                }
                _ => {}
            }
        }
    }
    assert!(outcomes.iter().all(|count| *count > 8), "{outcomes:?}");
}

/// The path leads to another directory when the journal has the intent. There the change would
/// neither be made stable nor be found after a crash.
#[test]
fn an_open_makes_its_file_where_its_intent_names() {
    for mode in [Durability::Crash, Durability::Power] {
        let disk = Arc::new(SimDisk::new());
        let (mut world, client, id, _) = prepared(setup(mode, &disk), ByteOrder::Little);
        let root = world.root();
        for name in [b"here".as_slice(), b"there"] {
            assert_eq!(world.status(client, &mkdir(root, name)), Status::Ok);
        }
        let path: [&[u8]; 2] = [b"here", b"new"];
        world.hold_jobs = true;
        let stream = world.clients[client].post(&Request::Open(open_request(root, &path, b"o")));
        world.settle();
        let (store, cred) = (world.stores[0].clone(), Cred::new(0, 0));
        let top = store.root();
        let (here, _) = store.lookup(&cred, &top, b"here").unwrap();
        let early = store.lookup(&cred, &here, b"new").is_ok();
        store.rename(&cred, &top, b"here", &top, b"moved").unwrap();
        store.rename(&cred, &top, b"there", &top, b"here").unwrap();
        run_jobs(&mut world, 99);
        let answer = world.clients[client].take_answer(stream).expect("an answer");
        assert_eq!(answer.status(), Status::Ok);
        assert!(store.lookup(&cred, &here, b"new").is_ok(), "made where its intent names it");
        assert_eq!(early, mode == Durability::Crash, "in the other mode it had to wait");
        let asked = key(&mut world, client, id, stream, Procedure::Open);
        let (mut world, new) = restart(world, mode, &disk, ByteOrder::Little);
        assert_eq!(status(&mut world, new, asked), Status::Ok);
    }
}

/// One of two clients removes a name, and only that one gets success, wherever the server crashes
/// meanwhile. The other one has no record.
#[test]
fn a_change_is_not_taken_for_that_of_a_session_without_replies() {
    for mode in [Durability::Crash, Durability::Power] {
        let mut told = [0; 2];
        for steps in 0..8 {
            for more in [0, 99] {
                let (disk, order) = (Arc::new(SimDisk::new()), ByteOrder::Little);
                let (mut world, client, id, _) = prepared(setup(mode, &disk), order);
                let other = world.connect_as(3, 1, order);
                let greeting = connect_auth("b", 1, CHECKED);
                assert_eq!(world.call(other, &greeting).status(), Status::Ok);
                let root = world.root();
                world.hold_jobs = true;
                let stream = world.clients[client].post(&remove(root, b"old", false));
                run_jobs(&mut world, steps);
                let their_stream = world.clients[other].post(&remove(root, b"old", false));
                run_jobs(&mut world, more);
                let answer = world.clients[other].take_answer(their_stream);
                let theirs = answer.as_ref().is_some_and(|answer| answer.status() == Status::Ok);
                assert!(more == 0 || answer.is_some(), "{mode:?} {steps}");
                let asked = key(&mut world, client, id, stream, Procedure::Remove);
                let (mut world, new) = restart(world, mode, &disk, order);
                let known = status(&mut world, new, asked) == Status::Ok;
                let ours =
                    known && world.call(new, &Request::FetchResponse(asked)).status() == Status::Ok;
                assert!(!(ours && theirs), "{mode:?} {steps} {more}: both have removed it");
                assert!(more == 0 || ours || theirs, "{mode:?} {steps}");
                told[0] += u32::from(ours);
                told[1] += u32::from(theirs);
                world.end();
            }
        }
        assert!(told[0] > 0, "{mode:?} {told:?}");
    }
}

/// A connection that ends before its change has begun leaves no trace. One that ends later leaves
/// the reply.
#[test]
fn a_connection_lost_around_a_durable_change() {
    for order in [ByteOrder::Big, ByteOrder::Little] {
        for steps in 0..6 {
            let disk = Arc::new(SimDisk::new());
            let (mut world, client, id, _) = prepared(setup(Durability::Power, &disk), order);
            let root = world.root();
            world.hold_jobs = true;
            let stream = world.clients[client].post(&mkdir(root, b"made"));
            run_jobs(&mut world, steps);
            let asked = key(&mut world, client, id, stream, Procedure::Create);
            lose(&mut world, client);
            world.release();
            let counts = world.counts();
            assert_eq!((counts.connections, counts.pending, counts.replies), (0, 0, 0));
            let (new, _) = begin(&mut world, 2, "a", order);
            let known = status(&mut world, new, asked);
            let again = world.status(new, &mkdir(root, b"made"));
            match known {
                Status::Ok => assert_eq!(again, Status::Exist),
                Status::NoXidMatch => assert_eq!(again, Status::Ok, "after {steps}"),
                status => panic!("{status:?}"),
            }
            world.end();
        }
    }
}

/// A change that cannot be made stable is in doubt. The client gets that answer from any later run
/// of the server, whatever changes others have made since.
#[test]
fn a_change_that_cannot_be_made_stable_stays_in_doubt() {
    for (restarts, panics) in [(false, false), (true, false), (false, true), (true, true)] {
        let (mode, order) = (Durability::Power, ByteOrder::Little);
        let disk = Arc::new(SimDisk::new());
        let (mut world, client, id, _) = prepared(setup(mode, &disk), order);
        let (other, _) = begin(&mut world, 3, "b", order);
        let root = world.root();
        world.disk.set_bad_sync(true);
        world.disk.set_mad_sync(panics);
        let stream = world.clients[client].post(&mkdir(root, b"made"));
        assert_eq!(world.wait(client, stream).unwrap().status(), Status::Io);
        world.disk.set_bad_sync(false);
        world.disk.set_mad_sync(false);
        // Writes of others may be lost with it: the system reports that once.
        assert_ne!(world.verifier.current(), WRITE_VERIFIER.0);
        let asked = key(&mut world, client, id, stream, Procedure::Create);
        assert_eq!(world.status(other, &remove(root, b"made", false)), Status::Ok);
        if restarts {
            world = crash(world, mode, &disk);
        } else {
            lose(&mut world, client);
        }
        let (new, _) = begin(&mut world, 2, "a", order);
        assert_eq!(status(&mut world, new, asked), Status::Ok);
        let fetched = world.call(new, &Request::FetchResponse(asked));
        assert_eq!(fetched.status(), Status::Io);
        world.end();
    }
}

/// A stream's numbers wrap around after 65,536 requests, none of which need be a change.
#[test]
fn an_old_reply_is_not_taken_for_that_of_a_later_request_with_its_number() {
    let (mode, order) = (Durability::Power, ByteOrder::Little);
    let disk = Arc::new(SimDisk::new());
    let (mut world, client, id, _) = prepared(setup(mode, &disk), order);
    let root = world.root();
    let stream = world.clients[client].post(&mkdir(root, b"made"));
    assert_eq!(world.wait(client, stream).unwrap().status(), Status::Ok);
    let asked = key(&mut world, client, id, stream, Procedure::Create);
    let syncs = disk.syncs();
    for _ in 0..1 << 15 {
        let again = world.clients[client].post(&Request::Null);
        assert_eq!(again, stream);
        assert_eq!(world.wait(client, again).unwrap().status(), Status::Ok);
    }
    assert_eq!(disk.syncs(), syncs + 1);
    let (mut world, new) = restart(world, mode, &disk, order);
    assert_eq!(status(&mut world, new, asked), Status::NoXidMatch);
    world.end();
}

/// A client that knows its session can ask about it. One that does not know it has none.
#[test]
fn a_session_is_stable_before_its_client_hears_of_it() {
    let (mode, order) = (Durability::Power, ByteOrder::Little);
    let disk = Arc::new(SimDisk::new());
    let mut world = World::new(setup(mode, &disk));
    let (client, id) = begin(&mut world, 2, "a", order);
    let root = world.root();
    world.hold_jobs = true;
    let stream = world.clients[client].post(&mkdir(root, b"made"));
    world.settle();
    let asked = key(&mut world, client, id, stream, Procedure::Create);
    disk.cut_power(&mut || false);
    let (mut world, new) = restart(world, mode, &disk, order);
    assert_eq!(status(&mut world, new, asked), Status::NoXidMatch);
    // A connection that ends while the journal is written leaves no trace.
    world.hold_jobs = true;
    let gone = world.connect_as(3, 1, order);
    let options =
        dafs::SessionOptions { use_response_cache: true, ..dafs::SessionOptions::default() };
    world.clients[gone].post(&connect_auth("b", 1, options));
    world.settle();
    assert!(world.counts().pending > 0, "it waits for the journal");
    lose(&mut world, gone);
    world.release();
    let counts = world.counts();
    assert_eq!((counts.pending, counts.replies), (0, 0));
    world.end();
}

/// Members of chains wait for the journal as for a disk. Changes of the same name follow each
/// other.
#[test]
fn durable_changes_keep_their_order() {
    let disk = Arc::new(SimDisk::new());
    let (mut world, client, _, _) = prepared(setup(Durability::Power, &disk), ByteOrder::Little);
    let root = world.root();
    let (forw, back) = (1, 2);
    let mut streams = Vec::new();
    for (flags, request) in [
        (forw, mkdir(root, b"x")),
        (back | forw, remove(root, b"x", false)),
        (back, mkdir(root, b"x")),
        (0, remove(root, b"old", false)),
        (0, remove(root, b"old", false)),
    ] {
        world.clients[client].flags = flags;
        streams.push(world.clients[client].post(&request));
    }
    world.clients[client].flags = 0;
    let answers = streams.into_iter().map(|stream| world.wait(client, stream).unwrap().status());
    let answers: Vec<_> = answers.collect();
    assert_eq!(answers, [Status::Ok, Status::Ok, Status::Ok, Status::Ok, Status::NoEnt]);
    world.end();
}

/// An append whose data has to be fetched is identified by its data, like one with inline data.
#[test]
fn fetched_appends_happen_once_wherever_the_server_dies() {
    let mut outcomes = [0; 2];
    for (maps, power) in [(false, false), (true, true)] {
        for steps in 0..10 {
            let (mode, order) = (Durability::Power, ByteOrder::Little);
            let disk = Arc::new(SimDisk::new());
            let setup = Setup { maps, ..setup(mode, &disk) };
            let (mut world, client, id, file) = prepared(setup, order);
            // Longer than one piece of staging. Zeros look like unwritten data.
            let len = 700_000u32;
            let memory = world.clients[client].memory(len as usize);
            let mut data = pattern(len as usize, 3);
            data[8192..16384].fill(0);
            memory.set(&data);
            let request = Request::AppendDirect(append_direct(
                without_open(file),
                len,
                memory.direct(0, len),
            ));
            world.hold_jobs = true;
            let stream = world.clients[client].post(&request);
            run_jobs(&mut world, steps);
            let done = world.clients[client].take_answer(stream).is_some();
            let asked = key(&mut world, client, id, stream, Procedure::AppendDirect);
            if power {
                disk.cut_power(&mut || true);
            }
            let (mut world, new) = restart(world, mode, &disk, order);
            let known = match status(&mut world, new, asked) {
                Status::Ok => true,
                Status::NoXidMatch => false,
                status => panic!("{steps}: {status:?}"),
            };
            outcomes[usize::from(known)] += 1;
            assert!(known || !done, "the client has the reply");
            let has = world.read(new, without_open(file));
            assert!(has == if known { data.as_slice() } else { &[] }, "{steps}: {}", has.len());
            world.end();
        }
    }
    assert!(outcomes.iter().all(|count| *count > 1), "{outcomes:?}");
}

/// Attributes that have to be fetched are set once, like those that come with the request.
#[test]
fn fetched_attributes_are_set_once_wherever_the_server_dies() {
    let mut outcomes = [0; 2];
    for mode in [Durability::Crash, Durability::Power] {
        for steps in 0..6 {
            let order = ByteOrder::Big;
            let disk = Arc::new(SimDisk::new());
            let (mut world, client, id, file) = prepared(setup(mode, &disk), order);
            let set = dafs::Attributes { mode: Some(0o640), ..dafs::Attributes::default() };
            let mut area = [0; 256];
            let len = set.encode_direct(&mut area, order).unwrap();
            let memory = world.clients[client].memory_of(&area);
            let request = Request::SetAttrDirect(dafs::SetAttrDirect {
                fh: file.fh,
                state_id: StateId::ZERO,
                direct_checksum: dafs::Checksum::ZERO,
                buffer: memory.direct(0, len as u32),
            });
            world.hold_jobs = true;
            let stream = world.clients[client].post(&request);
            run_jobs(&mut world, steps);
            let done = world.clients[client].take_answer(stream).is_some();
            let asked = key(&mut world, client, id, stream, Procedure::SetAttrDirect);
            if mode == Durability::Power {
                disk.cut_power(&mut || false);
            }
            let (mut world, new) = restart(world, mode, &disk, order);
            let known = status(&mut world, new, asked);
            let wanted = dafs::AttrMask::MODE;
            let get = dafs::GetAttrInline { fh: file.fh, attributes: wanted };
            let answer = world.call(new, &Request::GetAttrInline(get));
            let Ok(Reply::GetAttrInline(reply)) = answer.reply() else { panic!() };
            let is_set = reply.attributes.mode == Some(0o640);
            outcomes[usize::from(is_set)] += 1;
            assert_eq!(known, if is_set { Status::Ok } else { Status::NoXidMatch }, "{steps}");
            assert!(is_set || !done, "the client has the reply");
            if is_set {
                let fetched = world.call(new, &Request::FetchResponse(asked));
                let procedure = Procedure::SetAttrDirect;
                let decoded = dafs::decode_response(&fetched.bytes, order, procedure).unwrap();
                let Ok(Reply::SetAttrDirect(reply)) = decoded.1.into_result() else { panic!() };
                assert!(reply.attributes.contains(wanted));
            }
            world.end();
        }
    }
    assert!(outcomes.iter().all(|count| *count > 0), "{outcomes:?}");
}

/// An append that has not begun blocks no other change when its connection ends.
#[test]
fn a_connection_that_ends_among_fetched_appends_is_over() {
    for maps in [false, true] {
        for steps in 0..6 {
            let disk = Arc::new(SimDisk::new());
            let setup = Setup { maps, ..setup(Durability::Power, &disk) };
            let (mut world, client, _, file) = prepared(setup, ByteOrder::Little);
            world.hold_jobs = true;
            let len = 1 << 20;
            for _ in 0..6 {
                let memory = world.clients[client].memory(len as usize);
                let request = Request::AppendDirect(append_direct(
                    without_open(file),
                    len,
                    memory.direct(0, len),
                ));
                world.clients[client].post(&request);
            }
            run_jobs(&mut world, steps);
            lose(&mut world, client);
            world.release();
            let counts = world.counts();
            assert_eq!((counts.connections, counts.pending, counts.chunks), (0, 0, 0), "{steps}");
            world.end();
        }
    }
}

/// An open with a logged intent waits for the record of its client, and another change of the same
/// session waits for the open.
#[test]
fn a_connection_that_ends_before_its_client_is_recorded_holds_no_name() {
    for mode in [Durability::Crash, Durability::Power] {
        for steps in 0..3 {
            let disk = Arc::new(SimDisk::new());
            let setup = Setup { records: true, ..setup(mode, &disk) };
            let mut world = World::new(setup);
            let (client, _) = begin(&mut world, 2, "a", ByteOrder::Little);
            let root = world.root();
            world.hold_jobs = true;
            world.clients[client].post(&Request::Open(open_request(root, &OPENED, b"owner")));
            world.clients[client].post(&remove(root, OPENED[0], false));
            run_jobs(&mut world, steps);
            lose(&mut world, client);
            world.release();
            assert_eq!((world.counts().connections, world.counts().pending), (0, 0), "{steps}");
            let (other, _) = begin(&mut world, 3, "b", ByteOrder::Little);
            let made = world.status(other, &mkdir(root, OPENED[0]));
            assert!([Status::Ok, Status::Exist].contains(&made), "{made:?}");
            world.end();
        }
    }
}

/// Data that another client has written at the end meanwhile is not taken for the append.
#[test]
fn a_fetched_append_is_not_taken_for_other_data() {
    for maps in [false, true] {
        let mut unknown = 0;
        for steps in 0..6 {
            let disk = Arc::new(SimDisk::new());
            let setup = Setup { maps, ..setup(Durability::Power, &disk) };
            let (mut world, client, id, file) = prepared(setup, ByteOrder::Little);
            let (other, _) = begin(&mut world, 3, "b", ByteOrder::Little);
            let memory = world.clients[client].memory(4);
            memory.set(b"more");
            world.hold_jobs = true;
            let request =
                Request::AppendDirect(append_direct(without_open(file), 4, memory.direct(0, 4)));
            let stream = world.clients[client].post(&request);
            run_jobs(&mut world, steps);
            let asked = key(&mut world, client, id, stream, Procedure::AppendDirect);
            // Behind the present end.
            world.clients[other].post(&write_inline(without_open(file), 4, b"other"));
            world.settle();
            let (mut world, new) = restart(world, Durability::Power, &disk, ByteOrder::Little);
            let known = status(&mut world, new, asked) == Status::Ok;
            unknown += u32::from(!known);
            let has = world.read(new, without_open(file));
            assert_eq!(known, has.starts_with(b"more"), "{maps} {steps}: {has:?}");
            world.end();
        }
        assert!(unknown > 0);
    }
}
