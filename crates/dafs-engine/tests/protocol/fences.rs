//! Fencing lists: the rights to set them, the requests that they refuse, and the drain of a change
//! (DAFS 11, O43 to O48).

use crate::common::*;
use dafs_dat::PeerInfo;
use dafs_service::{ExportOptions, Squash};
use dafs_wire::dafs::{
    self, FenceAccess, FenceObject, FenceUpdate, FileHandle, Reply, Request, Seq, Status,
};
use std::time::Duration;

const ALLOW: FenceAccess = FenceAccess::Allow;
const DENY: FenceAccess = FenceAccess::Deny;

fn connect<'a>(name: &'a str, fence_id: &'a [u8]) -> Request<'a> {
    connect_fenced(name, fence_id, 1, PLAIN, dafs::AuthRequest::None)
}

/// Makes a session with a fence id, which is the client's name, too.
fn node(world: &mut World, host: u32, name: &str) -> usize {
    let client = world.connect(host);
    assert_eq!(world.status(client, &connect(name, name.as_bytes())), Status::Ok);
    client
}

/// Makes a world with a manager and a node that has a file open.
fn managed(setup: Setup) -> (World, usize, usize, File) {
    let mut world = World::new(setup);
    let manager = world.session(2, "manager");
    let member = node(&mut world, 3, "n1");
    let file = world.open(member, b"f");
    (world, manager, member, file)
}

/// Posts an update, whose job runs before so many others. It has no reply then. A failure names the
/// row.
fn update(
    world: &mut World,
    manager: usize,
    others: usize,
    request: &Request<'_>,
    row: impl std::fmt::Debug,
) -> u16 {
    let fenced = world.clients[manager].post(request);
    world.run_until("the update", |world| world.jobs() == others + 1);
    assert!(world.run_last_job());
    world.settle();
    assert!(!world.clients[manager].has_answer(fenced), "{row:?}");
    fenced
}

fn set<'a>(
    fh: FileHandle,
    object: FenceObject,
    (access, update): (FenceAccess, FenceUpdate),
    names: &'a [&'a [u8]],
) -> Request<'a> {
    let list = Seq::new(names);
    Request::SetFencingList(dafs::SetFencingList { fh, object, access, update, list })
}

fn fence<'a>(fh: FileHandle, names: &'a [&'a [u8]]) -> Request<'a> {
    set(fh, FenceObject::File, (ALLOW, FenceUpdate::Overwrite), names)
}

fn fence_all<'a>(fh: FileHandle, names: &'a [&'a [u8]]) -> Request<'a> {
    set(fh, FenceObject::FileSystem, (ALLOW, FenceUpdate::Overwrite), names)
}

fn get(world: &mut World, client: usize, fh: FileHandle) -> Result<Vec<String>, Status> {
    let answer = world.call(client, &Request::GetFencingList(dafs::GetFencingList { fh }));
    match answer.reply()? {
        Reply::GetFencingList(reply) => {
            Ok(reply.list.iter().map(|name| String::from_utf8(name.to_vec()).unwrap()).collect())
        }
        other => panic!("{other:?}"),
    }
}

fn whole(fh: FileHandle) -> FileHandle {
    FileHandle { file: [0; 48], ..fh }
}

#[test]
fn lists_change_as_their_pairs_say() {
    let mut world = World::new(Setup::default());
    let manager = world.session(2, "manager");
    let fh = world.open(manager, b"f").fh;
    assert_eq!(get(&mut world, manager, fh), Ok(vec![]));
    for (access, update) in [
        (ALLOW, FenceUpdate::Remove),
        (DENY, FenceUpdate::Overwrite),
        // There is no name to remove.
        (DENY, FenceUpdate::Remove),
        (DENY, FenceUpdate::Append),
    ] {
        let request = set(fh, FenceObject::File, (access, update), &[b"a"]);
        assert_eq!(world.status(manager, &request), Status::Inval, "{access:?} {update:?}");
    }
    let mut does = |request: Request<'_>, names: &[&str]| {
        assert_eq!(world.status(manager, &request), Status::Ok);
        assert_eq!(get(&mut world, manager, fh).unwrap(), names);
    };
    does(fence(fh, &[b"b", b"a"]), &["a", "b"]);
    does(set(fh, FenceObject::File, (ALLOW, FenceUpdate::Append), &[b"c", b"a"]), &["a", "b", "c"]);
    does(set(fh, FenceObject::File, (DENY, FenceUpdate::Remove), &[b"b"]), &["a", "c"]);
    does(set(fh, FenceObject::File, (DENY, FenceUpdate::Append), &[b"c", b"x"]), &["a"]);
    // DAFS O46: an empty list is reported as one empty name.
    does(set(fh, FenceObject::File, (DENY, FenceUpdate::Remove), &[b"a"]), &[""]);
    does(set(fh, FenceObject::File, (ALLOW, FenceUpdate::Append), &[b"d"]), &["d"]);
    does(fence(fh, &[b""]), &[""]);
    does(fence(fh, &[]), &[]);
    does(set(fh, FenceObject::File, (ALLOW, FenceUpdate::Append), &[b"e"]), &["e"]);
    let long = [b'x'; 2000];
    let bad: [&[&[u8]]; 4] = [&[b"a", b""], &[b"nfs:"], &[b"addr:nowhere"], &[&long]];
    for names in bad {
        let request = set(fh, FenceObject::File, (ALLOW, FenceUpdate::Overwrite), names);
        assert_eq!(world.status(manager, &request), Status::Inval);
    }
    let names: Vec<_> = (0..300).map(|number| number.to_string()).collect();
    let names: Vec<_> = names.iter().map(String::as_bytes).collect();
    assert_eq!(world.status(manager, &fence(fh, &names)), Status::Resource);
    assert_eq!(get(&mut world, manager, fh).unwrap(), ["e"]);
    assert_eq!(world.service.counts().fences, 1);
    assert_eq!(world.status(manager, &fence(fh, &[])), Status::Ok);
    assert_eq!(world.service.counts().fences, 0);
    world.end();
}

#[test]
fn both_lists_must_let_in_and_only_sessions_have_names() {
    let mut world = World::new(Setup::default());
    let manager = world.session(2, "manager");
    let [one, two] = [(3, "n1"), (4, "n2")].map(|(host, name)| node(&mut world, host, name));
    let (file, other) = (world.open(one, b"f"), world.open(one, b"g"));
    let reads = |world: &mut World| {
        [one, two, manager].map(|client| {
            let anonymous = File { id: dafs::StateId::default(), ..file };
            world.status(client, &read_inline(anonymous, 0, 1))
        })
    };
    let (ok, no) = (Status::Ok, Status::Fenced);
    assert_eq!(world.status(manager, &fence(file.fh, &[b"n1"])), Status::Ok);
    assert_eq!(reads(&mut world), [ok, no, no]);
    assert_eq!(world.status(manager, &fence_all(file.fh, &[b"n2"])), Status::Ok);
    assert_eq!(reads(&mut world), [no, no, no]);
    assert_eq!(get(&mut world, manager, file.fh).unwrap(), ["n1"]);
    assert_eq!(get(&mut world, manager, whole(file.fh)).unwrap(), ["n2"]);
    assert_eq!(world.status(manager, &fence_all(whole(file.fh), &[b"n2", b"n1"])), Status::Ok);
    assert_eq!(reads(&mut world), [ok, no, no]);
    assert_eq!(
        world.status(two, &read_inline(File { id: dafs::StateId::default(), ..other }, 0, 1)),
        ok
    );
    assert_eq!(world.status(manager, &fence(file.fh, &[])), Status::Ok);
    assert_eq!(reads(&mut world), [ok, ok, no]);
    assert_eq!(world.status(manager, &fence_all(file.fh, &[])), Status::Ok);
    assert_eq!(reads(&mut world), [ok, ok, ok]);
    world.end();
}

#[test]
fn a_fenced_session_keeps_its_state_and_may_not_even_give_it_back() {
    let (mut world, manager, client, file) = managed(Setup::default());
    let root = world.root();
    assert_eq!(world.status(manager, &fence(file.fh, &[b"n2"])), Status::Ok);
    let truncate = dafs::Open {
        create: Some(dafs::CreateMode::Unchecked { attributes: size(0) }),
        ..open_request(root, F, b"owner")
    };
    for request in [
        close(file),
        downgrade(file, dafs::ShareAccess::Read, dafs::ShareDeny::None),
        write_inline(file, 0, b"late"),
        Request::Commit(dafs::Commit { fh: file.fh, offset: 0, count: 0 }),
        Request::LockU(dafs::LockU {
            fh: file.fh,
            lock_type: dafs::LockType::Read,
            state_id: file.id,
            offset: 0,
            length: 1,
        }),
        Request::GetAttrInline(dafs::GetAttrInline { fh: file.fh, attributes: dafs::AttrMask(0) }),
        Request::Link(dafs::Link { source: file.fh, target_dir: root, name: b"l" }),
        fence(file.fh, &[b"n1"]),
        // These refer to the file by its name.
        Request::Open(truncate),
        remove(root, b"f", false),
        rename(root, b"f", b"g"),
    ] {
        let name = request.procedure().name();
        assert_eq!(world.status(client, &request), Status::Fenced, "{name}");
    }
    assert_eq!(get(&mut world, client, file.fh), Err(Status::Fenced));
    // All other requests succeed.
    for request in [Request::Null, Request::GetRootHandle, mkdir(root, b"d"), lookup(root, F)] {
        assert_eq!(world.status(client, &request), Status::Ok);
    }
    assert_eq!(rename_status(&mut world, client, root), Status::Fenced);
    assert_eq!(world.service.counts().opens, 1);
    assert_eq!(world.status(manager, &fence(file.fh, &[])), Status::Ok);
    world.write(client, file, 0, b"again");
    assert_eq!(world.status(client, &close(file)), Status::Ok);
    world.end();
}

/// A rename onto the fenced file would remove it.
fn rename_status(world: &mut World, client: usize, root: FileHandle) -> Status {
    let other = world.open(client, b"other");
    assert_eq!(world.status(client, &close(other)), Status::Ok);
    world.status(client, &rename(root, b"other", b"f"))
}

#[test]
fn only_owners_and_trusted_clients_set_fences() {
    let users = vec![("anna", "right"), ("bert", "other")];
    let mask = |host| match host {
        2 => PeerInfo { sim_host: Some(host), ..PeerInfo::default() },
        host => stranger(host),
    };
    let options = ExportOptions { squash: Squash::None, ..ExportOptions::default() };
    let exports = vec![("", options)];
    let mut world = World::new(Setup { users, mask, exports, ..Setup::default() });
    let manager = world.session(2, "manager");
    let [anna, bert] = [(3, "anna", "right"), (4, "bert", "other")].map(|(host, id, password)| {
        let client = world.connect(host);
        let request = connect_by(id, 1, PLAIN, text(id, password));
        assert_eq!(world.status(client, &request), Status::Ok);
        client
    });
    let fh = world.open(anna, b"f").fh;
    assert_eq!(world.status(bert, &fence(fh, &[b"n"])), Status::Perm);
    assert_eq!(get(&mut world, bert, fh), Err(Status::Perm));
    assert_eq!(world.status(anna, &fence_all(fh, &[b"n"])), Status::Perm);
    assert_eq!(get(&mut world, anna, whole(fh)), Err(Status::Perm));
    assert_eq!(world.status(anna, &fence(fh, &[b"n"])), Status::Ok);
    // Its owner is fenced, too, and can lift the fence.
    assert_eq!(
        world.status(anna, &read_inline(File { fh, id: dafs::StateId::default() }, 0, 1)),
        Status::Fenced
    );
    assert_eq!(get(&mut world, anna, fh).unwrap(), ["n"]);
    assert_eq!(world.status(manager, &fence_all(fh, &[b"n"])), Status::Ok);
    assert_eq!(world.status(manager, &fence(fh, &[b"m"])), Status::Ok);
    assert_eq!(world.status(anna, &fence(fh, &[])), Status::Ok);
    assert_eq!(world.status(manager, &fence_all(fh, &[])), Status::Ok);
    // Invalid handles.
    let nowhere = FileHandle { fs: [9; 16], ..fh };
    assert_eq!(world.status(manager, &fence(nowhere, &[b"n"])), Status::BadHandle);
    assert_eq!(world.status(manager, &fence_all(nowhere, &[b"n"])), Status::BadHandle);
    assert_eq!(world.status(manager, &fence(whole(fh), &[b"n"])), Status::Inval);
    let forged = FileHandle { file: [9; 48], ..fh };
    assert_eq!(world.status(manager, &fence(forged, &[b"n"])), Status::BadHandle);
    assert_eq!(world.service.counts().fences, 0);
    world.end();
}

#[test]
fn a_session_that_is_fenced_from_everything_does_not_begin() {
    let exports = ["a", "b"].map(|name| (name, ExportOptions::default()));
    let mut world = World::new(Setup { exports: exports.to_vec(), ..Setup::default() });
    let manager = world.session(2, "manager");
    let root = world.root();
    let roots = [b"a", b"b"].map(|name| {
        let path = [name.as_slice()];
        found(&world.call(manager, &lookup(root, &path)))
    });
    // The directory of exports is no file system.
    assert_eq!(world.status(manager, &fence_all(root, &[b"n2"])), Status::BadHandle);
    assert_eq!(world.status(manager, &fence(root, &[b"n2"])), Status::Inval);
    assert_eq!(world.status(manager, &fence_all(roots[0], &[b"n2"])), Status::Ok);
    let early = node(&mut world, 3, "n1");
    assert_eq!(world.status(manager, &fence_all(roots[1], &[b"n2"])), Status::Ok);
    let late = world.connect(4);
    assert_eq!(world.status(late, &connect("late", b"n1")), Status::Fenced);
    assert_eq!(world.status(late, &connect("late", b"nfs:n2")), Status::Inval);
    assert_eq!(world.status(late, &connect("late", b"n2")), Status::Ok);
    assert_eq!(world.status(early, &Request::Null), Status::Ok);
    world.session(5, "manager without a name");
    world.end();
}

/// The order: the work under way ends, then comes the reply, and no access follows.
#[test]
fn the_reply_comes_when_nothing_is_under_way_any_more() {
    both_ways(|maps| {
        for inline in [true, false] {
            let mut world = World::new(Setup { maps, ..Setup::default() });
            let manager = world.session(2, "manager");
            let [writer, other] =
                [(3, "n1"), (4, "n2")].map(|(host, name)| node(&mut world, host, name));
            let file = world.open(writer, b"f");
            let theirs = world.open(other, b"f");
            world.stall();
            let bytes = 2 << 20;
            let memory = world.clients[writer].memory_of(&pattern(bytes, 1));
            let buffers = [memory.direct(0, bytes as u32)];
            let data = pattern(5000, 1);
            let request = match inline {
                true => write_inline(file, 0, &data),
                false => Request::WriteDirect(write_direct(file, 0, bytes as u32, &buffers)),
            };
            let write = world.clients[writer].post(&request);
            world.run_until("the first job", |world| world.jobs() == 1);
            // The reply does not wait for another node's work.
            let kept = world.clients[other].post(&write_inline(theirs, 0, b"x"));
            world.run_until("the other's job", |world| world.jobs() == 2);
            let append = set(file.fh, FenceObject::File, (ALLOW, FenceUpdate::Append), &[b"n2"]);
            let fenced = update(&mut world, manager, 2, &append, (maps, inline));
            assert_eq!(world.service.counts().fence_waiters, 1);
            let late = world.status(writer, &write_inline(file, 0, b"late"));
            assert_eq!(late, Status::Fenced);
            while world.jobs() > 1 || !inline && !world.clients[writer].has_answer(write) {
                assert!(world.run_job(), "{maps} {inline}");
                if world.clients[manager].has_answer(fenced) {
                    assert!(world.clients[writer].has_answer(write));
                }
                world.settle();
            }
            let writes = world.disk.writes();
            // Arrived data is written. Data that was still to be fetched is refused.
            let expected = if inline || maps { Status::Ok } else { Status::Fenced };
            assert_eq!(world.wait(writer, write).unwrap().status(), expected);
            world.hold_jobs = false;
            assert_eq!(world.wait(manager, fenced).unwrap().status(), Status::Ok);
            assert_eq!(world.wait(other, kept).unwrap().status(), Status::Ok);
            assert!(world.disk.writes() <= writes + 1);
            world.end();
        }
    });
}

/// A write that waits for its turn in the pool is not allowed any more when it comes.
#[test]
fn a_write_or_append_that_meets_a_fence_in_the_pool_is_told_so() {
    both_ways(|maps| {
        for kind in ["inline", "direct", "append", "append direct"] {
            let (mut world, manager, writer, file) = managed(Setup { maps, ..Setup::default() });
            assert_eq!(world.status(manager, &fence(file.fh, &[b"n1"])), Status::Ok);
            world.stall();
            let data = pattern(5000, 1);
            let memory = world.clients[writer].memory_of(&data);
            let buffers = [memory.direct(0, 5000)];
            let request = match kind {
                "inline" => write_inline(file, 0, &data),
                "direct" => Request::WriteDirect(write_direct(file, 0, 5000, &buffers)),
                "append" => append_inline(file, dafs::Stability::FileSync, &data),
                _ => Request::AppendDirect(append_direct(file, 5000, buffers[0])),
            };
            let write = world.clients[writer].post(&request);
            world.run_until("its job", |world| world.jobs() == 1);
            let fenced = update(&mut world, manager, 1, &fence(file.fh, &[b"n2"]), (kind, maps));
            let writes = world.disk.writes();
            world.hold_jobs = false;
            let status = world.wait(writer, write).unwrap().status();
            assert_eq!(status, Status::Fenced, "{kind} {maps}");
            assert_eq!(world.wait(manager, fenced).unwrap().status(), Status::Ok);
            assert_eq!(world.disk.writes(), writes);
            world.end();
        }
    });
}

/// An addition to a list removes no client's access.
#[test]
fn an_addition_waits_for_nothing() {
    let (mut world, manager, writer, file) = managed(Setup::default());
    assert_eq!(world.status(manager, &fence(file.fh, &[b"n1"])), Status::Ok);
    world.stall();
    let write = world.clients[writer].post(&write_inline(file, 0, b"x"));
    world.run_until("the first job", |world| world.jobs() == 1);
    let update = set(file.fh, FenceObject::File, (ALLOW, FenceUpdate::Append), &[b"n2"]);
    let fenced = world.clients[manager].post(&update);
    world.run_until("the update", |world| world.jobs() == 2);
    assert!(world.run_last_job());
    assert_eq!(world.wait(manager, fenced).unwrap().status(), Status::Ok);
    assert!(!world.clients[writer].has_answer(write));
    world.hold_jobs = false;
    assert_eq!(world.wait(writer, write).unwrap().status(), Status::Ok);
    world.end();
}

/// A job of a lost connection may still be writing.
#[test]
fn a_fence_waits_for_jobs_of_a_lost_connection() {
    let (mut world, manager, writer, file) = managed(Setup::default());
    world.stall();
    world.clients[writer].post(&write_inline(file, 0, b"x"));
    world.run_until("the first job", |world| world.jobs() == 1);
    let endpoint = world.clients[writer].endpoint;
    world.network.lose(endpoint);
    world.run_until("the end", |world| world.clients[writer].closed.is_some());
    world.settle();
    let fenced = update(&mut world, manager, 1, &fence(file.fh, &[b"n2"]), ());
    world.hold_jobs = false;
    assert_eq!(world.wait(manager, fenced).unwrap().status(), Status::Ok);
    world.end();
}

/// A client that does not serve the RDMA of its own write any more.
#[test]
fn a_session_that_does_not_come_to_an_end_is_ended() {
    let (mut world, manager, writer, file) = managed(Setup::default());
    let bytes = 4 << 20;
    let memory = world.clients[writer].memory(bytes);
    let buffers = [memory.direct(0, bytes as u32)];
    let request = Request::WriteDirect(write_direct(file, 0, bytes as u32, &buffers));
    world.clients[writer].post(&request);
    world.run_until("fetching", |world| world.counts().chunks > 0);
    world.network.pause(3, dafs_dat::Instant(u64::MAX));
    let fenced = world.clients[manager].post(&fence(file.fh, &[b"n2"]));
    world.pass(Duration::from_secs(3));
    assert!(!world.clients[manager].has_answer(fenced));
    world.pass(Duration::from_secs(3));
    assert_eq!(world.wait(manager, fenced).unwrap().status(), Status::Ok);
    assert_eq!((world.counts().connections, world.counts().chunks), (1, 0));
}

/// A read job has data from the disk, which goes into the memory of a node that has been fenced
/// since. The manager's reply waits for that, too.
#[test]
fn reads_of_a_fenced_node_arrive_before_the_reply() {
    let (mut world, manager, reader, file) = managed(Setup::default());
    let bytes = 100_000;
    world.write(reader, file, 0, &pattern(bytes, 1));
    world.stall();
    let memory = world.clients[reader].memory(bytes);
    let buffers = [memory.direct(0, bytes as u32)];
    let read = world.clients[reader].post(&read_direct(file, 0, bytes as u32, &buffers));
    world.run_until("the read's job", |world| world.jobs() == 1);
    let fenced = update(&mut world, manager, 1, &fence(file.fh, &[b"n2"]), ());
    world.hold_jobs = false;
    world.run_until("the job's end", |world| world.counts().pending == 1);
    assert!(memory.bytes() != pattern(bytes, 1), "its data is on the way");
    world.run_until("the reply", |world| world.counts().pending == 0);
    assert!(memory.bytes() == pattern(bytes, 1), "and has arrived before the reply is sent");
    assert_eq!(world.wait(reader, read).unwrap().status(), Status::Ok);
    assert_eq!(world.wait(manager, fenced).unwrap().status(), Status::Ok);
    world.end();
}

/// Both may set fences, and each removes the other from the list: one of them is late.
#[test]
fn of_two_nodes_that_eject_each_other_one_wins() {
    let mut world = World::new(Setup::default());
    let manager = world.session(2, "manager");
    let nodes = [(3, "n1"), (4, "n2")].map(|(host, name)| node(&mut world, host, name));
    let fh = world.open(manager, b"f").fh;
    assert_eq!(world.status(manager, &fence(fh, &[b"n1", b"n2"])), Status::Ok);
    world.hold_jobs = true;
    let eject = |name| set(fh, FenceObject::File, (DENY, FenceUpdate::Remove), name);
    let (two, one) = ([b"n2".as_slice()], [b"n1".as_slice()]);
    let first = world.clients[nodes[0]].post(&eject(&two));
    let second = world.clients[nodes[1]].post(&eject(&one));
    world.run_until("both updates", |world| world.jobs() == 2);
    world.hold_jobs = false;
    let answers = [(nodes[0], first), (nodes[1], second)]
        .map(|(client, stream)| world.wait(client, stream).unwrap().status());
    assert!(
        answers == [Status::Ok, Status::Fenced] || answers == [Status::Fenced, Status::Ok],
        "{answers:?}"
    );
    let left = get(&mut world, manager, fh).unwrap();
    assert_eq!(left, [if answers[0] == Status::Ok { "n1" } else { "n2" }]);
    world.end();
}
