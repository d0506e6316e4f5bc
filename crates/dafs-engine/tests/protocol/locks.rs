//! LOCK, LOCKT and LOCKU on the wire (DAFS 9).

use crate::common::*;
use dafs_service::Identity;
use dafs_wire::dafs::{
    self, ErrorBody, LockHolder, LockOptions, LockType, Request, ShareAccess, StateId, Status,
};
use std::time::Duration;

const ALL: u64 = u64::MAX;

fn lock(file: File, lock_type: LockType, offset: u64, length: u64) -> Request<'static> {
    lock_with(file, lock_type, LockOptions::empty(), offset, length)
}

fn lock_with(
    file: File,
    lock_type: LockType,
    options: LockOptions,
    offset: u64,
    length: u64,
) -> Request<'static> {
    let (fh, state_id) = (file.fh, file.id);
    Request::Lock(dafs::Lock { fh, lock_type, options, state_id, offset, length })
}

fn test(file: File, owner: &[u8], lock_type: LockType, offset: u64, length: u64) -> Request<'_> {
    Request::LockT(dafs::LockT { fh: file.fh, lock_type, owner, offset, length })
}

fn unlock(file: File, offset: u64, length: u64) -> Request<'static> {
    let (fh, state_id) = (file.fh, file.id);
    Request::LockU(dafs::LockU { fh, lock_type: LockType::Write, state_id, offset, length })
}

/// Owner, offset, length and type.
type Holder = (Vec<u8>, u64, u64, LockType);

/// Returns the status and, where there is one, the holder.
fn outcome(answer: &Answer) -> (Status, Option<Holder>) {
    let holder = match answer.status() {
        Status::Ok => None,
        _ => match answer.error_body() {
            ErrorBody::LockHolder(LockHolder { owner, offset, length, lock_type, client_id }) => {
                assert_ne!(client_id.0, [0; 8]);
                Some((owner.to_vec(), offset, length, lock_type))
            }
            _ => None,
        },
    };
    (answer.status(), holder)
}

#[test]
fn a_lock_that_is_denied_names_the_holder() {
    let (mut world, one, two) = World::with_two(Setup::default());
    let root = world.root();
    let mine = world.open_with(one, &open_request(root, F, b"first")).unwrap();
    let theirs = world.open_with(two, &open_request(root, F, b"second")).unwrap();
    let done = world.call(one, &lock(mine, LockType::Write, 10, 20));
    assert_eq!(done.status(), Status::Ok);
    // DAFS O14.
    assert_eq!(done.bytes[40..], [0; 40]);
    let holder = Some((b"first".to_vec(), 10, 20, LockType::Write));
    for lock_type in [LockType::Read, LockType::Write, LockType::ReadWait, LockType::WriteWait] {
        let denied = world.call(two, &lock(theirs, lock_type, 0, ALL));
        assert_eq!(outcome(&denied), (Status::Denied, holder.clone()), "{lock_type:?}");
        let tested = world.call(two, &test(theirs, b"second", lock_type, 29, 1));
        assert_eq!(outcome(&tested), (Status::Denied, holder.clone()), "{lock_type:?}");
    }
    // A client's own lock does not conflict with its test, which needs no open.
    assert_eq!(world.status(one, &test(mine, b"first", LockType::Write, 0, ALL)), Status::Ok);
    assert_eq!(world.status(one, &test(mine, b"other", LockType::Read, 0, 11)), Status::Denied);
    assert_eq!(world.status(two, &test(theirs, b"second", LockType::Write, 30, ALL)), Status::Ok);
    // The state-id of the open stays valid for all requests.
    assert_eq!(world.status(one, &unlock(mine, 15, 5)), Status::Ok);
    assert_eq!(world.service.counts().lock_ranges, 2);
    assert_eq!(world.status(one, &read_inline(mine, 0, 1)), Status::Ok);
    assert_eq!(world.status(one, &unlock(mine, 0, ALL)), Status::Ok);
    assert_eq!(world.status(one, &unlock(mine, 0, ALL)), Status::Ok);
    assert_eq!(world.status(two, &lock(theirs, LockType::WriteWait, 0, ALL)), Status::Ok);
    // DAFS O36.
    assert_eq!(world.status(two, &close(theirs)), Status::Ok);
    assert_eq!(world.status(one, &lock(mine, LockType::Write, 0, ALL)), Status::Ok);
    assert_eq!(world.status(one, &close(mine)), Status::Ok);
    let counts = world.service.counts();
    assert_eq!((counts.locks, counts.lock_ranges, counts.lock_waiters), (0, 0, 0));
    world.end();
}

#[test]
fn locks_that_make_no_sense_are_refused() {
    let (mut world, one, two) = World::with_two(Setup::default());
    let file = world.open(one, b"f");
    for (offset, length) in [(0, 0), (7, 0), (ALL, 2), (3, ALL - 1), (ALL, 0)] {
        for request in [
            lock(file, LockType::Write, offset, length),
            test(file, b"owner", LockType::Write, offset, length),
            unlock(file, offset, length),
        ] {
            assert_eq!(world.status(one, &request), Status::Inval, "{request:?}");
        }
    }
    for (offset, length) in [(ALL, 1), (ALL, ALL), (0, ALL), (5, ALL), (2, ALL - 1)] {
        let status = world.status(one, &lock(file, LockType::Write, offset, length));
        assert_eq!(status, Status::Ok, "{offset} {length}");
    }
    let id = |id: [u8; 8]| File { fh: file.fh, id: StateId(id) };
    let mut old = file.id.0;
    old[0] ^= 1;
    for (file, status) in [
        (id([0; 8]), Status::StaleStateId),
        (id([0xff; 8]), Status::BadStateId),
        (id(old), Status::StaleStateId),
    ] {
        assert_eq!(world.status(one, &lock(file, LockType::Read, 0, 1)), status);
        assert_eq!(world.status(one, &unlock(file, 0, 1)), status);
    }
    // The open of another client.
    assert_eq!(world.status(two, &lock(file, LockType::Read, 0, 1)), Status::BadStateId);
    assert_eq!(world.status(two, &unlock(file, 0, 1)), Status::BadStateId);
    // An open that does not allow it.
    let root = world.root();
    for (share_access, refused) in
        [(ShareAccess::Read, LockType::Write), (ShareAccess::Write, LockType::Read)]
    {
        let open = dafs::Open { share_access, ..open_request(root, F, b"narrow") };
        let narrow = world.open_with(two, &open).unwrap();
        assert_eq!(world.status(two, &lock(narrow, refused, 0, 1)), Status::Acces);
        assert_eq!(world.status(two, &close(narrow)), Status::Ok);
    }
    // ABORT cannot be tested or released.
    assert_eq!(world.status(one, &test(file, b"o", LockType::Abort, 0, 1)), Status::Inval);
    world.end();
}

#[test]
fn a_client_that_polls_for_a_lock_is_not_overtaken() {
    let mut world = World::new(Setup::default());
    let names = ["a", "b", "c"];
    let sessions: Vec<_> = (2..).zip(names).map(|(host, name)| world.session(host, name)).collect();
    let files: Vec<_> = sessions.iter().map(|&session| world.open(session, b"f")).collect();
    let try_lock = |world: &mut World, who: usize, lock_type| {
        world.status(sessions[who], &lock(files[who], lock_type, 0, 100))
    };
    assert_eq!(try_lock(&mut world, 0, LockType::Read), Status::Ok);
    // The writer waits. Later readers would starve it.
    assert_eq!(try_lock(&mut world, 1, LockType::WriteWait), Status::Denied);
    assert_eq!(try_lock(&mut world, 2, LockType::Read), Status::Denied);
    assert_eq!(try_lock(&mut world, 2, LockType::ReadWait), Status::Denied);
    // The holder is not refused a range for which the waiter waits anyway.
    assert_eq!(try_lock(&mut world, 0, LockType::Read), Status::Ok);
    assert_eq!(world.status(sessions[0], &unlock(files[0], 0, 100)), Status::Ok);
    assert_eq!(try_lock(&mut world, 0, LockType::Write), Status::Denied);
    let denied = world.call(sessions[2], &lock(files[2], LockType::Read, 50, 1));
    let waiter = Some((b"owner".to_vec(), 0, 100, LockType::Write));
    assert_eq!(outcome(&denied), (Status::Denied, waiter));
    // In another range there is no waiter.
    assert_eq!(world.status(sessions[2], &lock(files[2], LockType::Write, 100, 1)), Status::Ok);
    assert_eq!(try_lock(&mut world, 1, LockType::WriteWait), Status::Ok);
    // The reader's turn comes before that of a later writer.
    assert_eq!(world.service.counts().lock_waiters, 1);
    assert_eq!(world.status(sessions[1], &unlock(files[1], 0, 100)), Status::Ok);
    assert_eq!(try_lock(&mut world, 0, LockType::Write), Status::Denied);
    // A waiter that does not poll any more loses its turn.
    world.pass(Duration::from_secs(2));
    assert_eq!(world.service.counts().lock_waiters, 0);
    assert_eq!(try_lock(&mut world, 0, LockType::Write), Status::Ok);
    assert_eq!(try_lock(&mut world, 2, LockType::ReadWait), Status::Denied);
    assert_eq!(world.status(sessions[2], &close(files[2])), Status::Ok);
    assert_eq!(world.service.counts().lock_waiters, 0);
    world.end();
}

/// A holder whose lease is over loses its lock to a conflicting request, which waits for that on
/// the pool.
#[test]
fn a_lock_ends_with_the_lease_of_its_client() {
    let (mut world, one, mine) = World::with_file(Setup::default());
    assert_eq!(world.status(one, &lock(mine, LockType::Write, 0, ALL)), Status::Ok);
    world.pass(LEASE + Duration::from_secs(1));
    let two = world.session(3, "b");
    let theirs = world.open(two, b"f");
    assert_eq!(world.status(two, &lock(theirs, LockType::Write, 0, ALL)), Status::Ok);
    assert_eq!(world.status(one, &unlock(mine, 0, ALL)), Status::StaleStateId);
    world.end();
}

const PERSIST: LockOptions = LockOptions::PERSIST;
const REPAIR: LockOptions = LockOptions::REPAIR;

/// The holder crashes, and the next one is told. No client reads or writes before the repair (DAFS
/// 9.3).
#[test]
fn a_broken_lock_is_told_to_everybody_until_it_is_repaired() {
    let (mut world, one, two) = World::with_two(Setup::default());
    let root = world.root();
    let mine = world.open_with(one, &open_request(root, F, b"first")).unwrap();
    let theirs = world.open_with(two, &open_request(root, F, b"second")).unwrap();
    world.write(one, mine, 0, b"a record that is half written");
    let kept = lock_with(mine, LockType::Write, PERSIST, 0, 10);
    assert_eq!(world.status(one, &kept), Status::Ok);
    assert_eq!(world.status(two, &lock(theirs, LockType::Write, 0, ALL)), Status::Denied);
    assert_eq!(world.status(two, &read_inline(theirs, 0, 4)), Status::Ok);
    let again = world.session_with(4, "a", 2, dafs::SessionOptions::default());
    let former = Some((b"first".to_vec(), 0, 10, LockType::Write));
    for lock_type in [LockType::Read, LockType::Write, LockType::ReadWait, LockType::WriteWait] {
        let told = world.call(two, &lock(theirs, lock_type, 5, 20));
        assert_eq!(outcome(&told), (Status::LockBroken, former.clone()));
        let told = world.call(two, &test(theirs, b"second", lock_type, 9, 1));
        assert_eq!(outcome(&told), (Status::LockBroken, former.clone()));
    }
    let anonymous = File { id: StateId([0; 8]), ..theirs };
    let memory = world.clients[two].memory(16);
    let buffers = [memory.direct(0, 16)];
    for (file, expected) in [(theirs, Status::StaleStateId), (anonymous, Status::Locked)] {
        for request in [
            read_inline(file, 9, 1),
            write_inline(file, 9, b"x"),
            read_direct(file, 0, 16, &buffers),
            Request::WriteDirect(write_direct(file, 0, 16, &buffers)),
        ] {
            assert_eq!(world.status(two, &request), expected, "{request:?}");
        }
        assert_eq!(world.status(two, &read_inline(file, 10, 1)), Status::Ok);
        assert_eq!(world.status(two, &write_inline(file, 10, b"x")), Status::Ok);
        assert_eq!(world.status(two, &set(file, size(3))), Status::Locked);
    }
    // The rules of repair (O34).
    let repair = |lock_type, offset, length| lock_with(theirs, lock_type, REPAIR, offset, length);
    for (request, expected) in [
        (repair(LockType::Write, 0, 9), Status::LockRange),
        (repair(LockType::Write, 10, 9), Status::Inval),
        (repair(LockType::Read, 0, 10), Status::Inval),
        (repair(LockType::WriteWait, 0, 10), Status::Inval),
        (repair(LockType::Write, 0, 10), Status::Ok),
    ] {
        assert_eq!(world.status(two, &request), expected, "{request:?}");
    }
    assert_eq!(world.status(two, &write_inline(theirs, 0, b"mended")), Status::Ok);
    let mine = world.open_with(again, &open_request(root, F, b"first")).unwrap();
    let denied = world.call(again, &lock(mine, LockType::Read, 0, 1));
    let holder = Some((b"second".to_vec(), 0, 10, LockType::Write));
    assert_eq!(outcome(&denied), (Status::Denied, holder));
    assert_eq!(world.status(two, &unlock(theirs, 0, 5)), Status::LockRange);
    assert_eq!(world.status(two, &unlock(theirs, 0, ALL)), Status::Ok);
    let kept = lock_with(mine, LockType::Write, PERSIST, 0, ALL);
    assert_eq!(world.status(again, &kept), Status::Ok);
    // DAFS O36, on disk too.
    assert_eq!(world.status(again, &close(mine)), Status::Ok);
    assert_eq!(world.service.counts().kept_locks, 0);
    world.end();
}

/// The data of a write may come late. The write is checked against changes of the file meanwhile.
#[test]
fn a_write_whose_data_is_on_its_way_meets_a_lock_that_breaks() {
    both_ways(|maps| {
        let kinds = ["inline", "direct", "append"];
        for (kind, anonymous) in kinds.into_iter().flat_map(|kind| [(kind, false), (kind, true)]) {
            let (mut world, one, two) = World::with_two(Setup { maps, ..Setup::default() });
            let (mine, theirs) = (world.open(one, b"f"), world.open(two, b"f"));
            world.write(one, mine, 0, b"as it was left");
            let kept = lock_with(mine, LockType::Write, PERSIST, 0, ALL);
            assert_eq!(world.status(one, &kept), Status::Ok);
            world.stall();
            let bytes = 2 << 20;
            let memory = world.clients[two].memory(bytes);
            let id = if anonymous { StateId::ZERO } else { theirs.id };
            let target = File { id, ..theirs };
            let buffers = [memory.direct(0, bytes as u32)];
            let request = match kind {
                "inline" => write_inline(target, 3, b"not any more"),
                "direct" => Request::WriteDirect(write_direct(target, 0, bytes as u32, &buffers)),
                _ => append_inline(target, dafs::Stability::DataSync, b"not any more"),
            };
            let write = world.clients[two].post(&request);
            world.run_until("its job", |world| world.jobs() == 1);
            let identity = Identity { mechanism: "none", principal: Vec::new() };
            world.service.register_client(b"a", 99, identity, Default::default(), 0).unwrap();
            world.hold_jobs = false;
            let status = world.wait(two, write).unwrap().status();
            let expected = if anonymous { Status::Locked } else { Status::StaleStateId };
            assert_eq!(status, expected, "{kind} {maps} {anonymous}");
            world.disk.set_slow(false);
            let repair = lock_with(theirs, LockType::Write, REPAIR, 0, ALL);
            assert_eq!(world.status(two, &repair), Status::Ok);
            assert_eq!(world.read(two, theirs), b"as it was left", "{kind} {maps}");
        }
    });
}

#[test]
fn a_lapsed_persistent_lock_is_broken_by_the_first_who_wants_it() {
    let (mut world, one, mine) = World::with_file(Setup::default());
    let kept = lock_with(mine, LockType::Write, PERSIST, 0, 10);
    assert_eq!(world.status(one, &kept), Status::Ok);
    world.pass(LEASE + Duration::from_secs(1));
    // Any message renews the lease, and the lock with it.
    assert_eq!(world.status(one, &Request::Null), Status::Ok);
    assert_eq!(world.status(one, &read_inline(mine, 0, 1)), Status::Ok);
    let two = world.session(3, "b");
    let theirs = world.open(two, b"f");
    assert_eq!(world.status(two, &lock(theirs, LockType::Write, 0, 1)), Status::Denied);
    world.pass(LEASE + Duration::from_secs(1));
    assert_eq!(world.status(two, &lock(theirs, LockType::Write, 10, 1)), Status::StaleStateId);
    let theirs = world.open(two, b"f");
    assert_eq!(world.status(two, &lock(theirs, LockType::Write, 10, 1)), Status::Ok);
    assert_eq!(world.service.counts().broken_locks, 0);
    assert_eq!(world.status(two, &lock(theirs, LockType::Write, 9, 1)), Status::LockBroken);
    assert_eq!(world.service.counts().broken_locks, 1);
    // The holder comes back too late, and learns of it.
    assert_eq!(world.status(one, &read_inline(mine, 0, 1)), Status::StaleStateId);
    assert_eq!(world.status(one, &unlock(mine, 0, 10)), Status::StaleStateId);
    let repair = lock_with(theirs, LockType::Write, REPAIR, 0, 10);
    assert_eq!(world.status(two, &repair), Status::Ok);
    assert_eq!(world.status(two, &close(theirs)), Status::Ok);
    world.end();
}
