//! AUTORECOVERY locks and ABORT, for clients (DAFS 9.5).

use crate::common::*;
use dafs_wire::dafs::{self, LockOptions, LockType, Request, Status};
use std::time::Duration;

fn lock(file: File, lock_type: LockType, options: LockOptions, length: u64) -> Request<'static> {
    let (fh, state_id, offset) = (file.fh, file.id, 0);
    Request::Lock(dafs::Lock { fh, lock_type, options, state_id, offset, length })
}

fn unlock(file: File, lock_type: LockType, length: u64) -> Request<'static> {
    let (fh, state_id, offset) = (file.fh, file.id, 0);
    Request::LockU(dafs::LockU { fh, lock_type, state_id, offset, length })
}

const RECOVER: LockOptions = LockOptions::AUTORECOVERY;
const ALL: u64 = u64::MAX;

/// Makes a world with an undo log in a directory that lives as long.
fn world() -> (World, tempfile::TempDir) {
    let (world, dir) = (World::new(Setup::default()), tempfile::tempdir().unwrap());
    world.service.locks.keep_undo_in(dir.path()).unwrap();
    (world, dir)
}

#[test]
fn abort_undoes_and_unlocks_by_either_procedure() {
    let (mut world, dir) = world();
    let (one, two) = (world.session(2, "a"), world.session(3, "b"));
    let (mine, theirs) = (world.open(one, b"f"), world.open(two, b"f"));
    let before = pattern(50_000, 1);
    world.write(one, mine, 0, &before);
    let lock_theirs = lock(theirs, LockType::Write, LockOptions::empty(), 10);
    for by_lock in [true, false] {
        assert_eq!(world.status(one, &lock(mine, LockType::Write, RECOVER, ALL)), Status::Ok);
        assert_eq!(world.status(two, &lock_theirs), Status::Denied);
        world.write(one, mine, 10_000, &pattern(60_000, 2));
        let memory = world.clients[one].memory_of(&pattern(100_000, 3));
        let buffers = [memory.direct(0, 30_000)];
        let direct = Request::WriteDirect(write_direct(mine, 5, 30_000, &buffers));
        assert_eq!(world.status(one, &direct), Status::Ok);
        assert_eq!(world.status(one, &set(mine, size(100))), Status::Ok);
        assert_ne!(world.read(one, mine), before[..100]);
        let abort = match by_lock {
            true => lock(mine, LockType::Abort, LockOptions::empty(), ALL),
            false => unlock(mine, LockType::Abort, ALL),
        };
        assert_eq!(world.status(one, &abort), Status::Ok);
        assert!(world.read(two, theirs) == before);
        assert_eq!(world.status(one, &abort), Status::Inval);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        assert_eq!(world.status(two, &lock_theirs), Status::Ok);
        assert_eq!(world.status(two, &unlock(theirs, LockType::Write, 10)), Status::Ok);
    }
    world.end();
}

#[test]
fn unlock_and_close_keep_changes() {
    let (mut world, dir) = world();
    let client = world.session(2, "a");
    let file = world.open(client, b"f");
    world.write(client, file, 0, b"one");
    assert_eq!(world.status(client, &lock(file, LockType::Write, RECOVER, ALL)), Status::Ok);
    world.write(client, file, 0, b"two");
    assert_eq!(world.status(client, &unlock(file, LockType::Write, ALL)), Status::Ok);
    assert_eq!(world.read(client, file), b"two");
    assert_eq!(world.status(client, &lock(file, LockType::Write, RECOVER, ALL)), Status::Ok);
    world.write(client, file, 0, b"six");
    assert_eq!(world.status(client, &close(file)), Status::Ok);
    world.pass(Duration::from_secs(1));
    let file = world.open(client, b"f");
    assert_eq!(world.read(client, file), b"six");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    world.end();
}

#[test]
fn a_client_that_is_lost_takes_its_changes_along() {
    let (mut world, dir) = world();
    let (lost, alive) = (world.session(2, "a"), world.session(3, "b"));
    let (mine, theirs) = (world.open(lost, b"f"), world.open(alive, b"f"));
    let before = pattern(20_000, 1);
    world.write(lost, mine, 0, &before);
    assert_eq!(world.status(lost, &lock(mine, LockType::Write, RECOVER, ALL)), Status::Ok);
    world.write(lost, mine, 0, &pattern(30_000, 2));
    world.clients.remove(lost);
    let alive = alive - 1;
    for _ in 0..3 {
        world.pass(LEASE / 2);
        assert_eq!(world.status(alive, &Request::Null), Status::Ok);
    }
    assert!(world.read(alive, theirs) == before);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    world.end();
}

#[test]
fn a_part_of_a_file_asks_for_more_than_is_kept() {
    let (mut world, _dir) = world();
    let client = world.session(2, "a");
    let file = world.open(client, b"f");
    assert_eq!(world.status(client, &lock(file, LockType::Write, RECOVER, 10)), Status::NotSupp);
    assert_eq!(world.status(client, &lock(file, LockType::Write, RECOVER, ALL)), Status::Ok);
    assert_eq!(world.status(client, &unlock(file, LockType::Write, 10)), Status::LockRange);
    let nonsense = lock(file, LockType::Write, RECOVER, 0);
    assert_eq!(world.status(client, &nonsense), Status::Inval);
    world.end();
    // Without a directory for the undo log there are no such locks.
    let (mut world, client, file) = World::with_file(Setup::default());
    assert_eq!(world.status(client, &lock(file, LockType::Write, RECOVER, ALL)), Status::NotSupp);
    let abort = lock(file, LockType::Abort, LockOptions::empty(), ALL);
    assert_eq!(world.status(client, &abort), Status::Inval);
    world.end();
}

/// The reactor writes data that comes by RDMA where it need not wait. A write whose pre-image is
/// not saved yet has to wait.
#[test]
fn writes_of_all_kinds_are_undone_together() {
    both_ways(|maps| {
        let mut world = World::new(Setup { maps, ..Setup::default() });
        let dir = tempfile::tempdir().unwrap();
        world.service.locks.keep_undo_in(dir.path()).unwrap();
        let client = world.session(2, "a");
        let file = world.open(client, b"f");
        let before = pattern(700_000, 1);
        let memory = world.clients[client].memory_of(&before);
        let all = [memory.direct(0, 700_000)];
        let fill = Request::WriteDirect(write_direct(file, 0, 700_000, &all));
        assert_eq!(world.status(client, &fill), Status::Ok);
        assert_eq!(world.status(client, &lock(file, LockType::Write, RECOVER, ALL)), Status::Ok);
        memory.set(&pattern(700_000, 2));
        let change = Request::WriteDirect(write_direct(file, 12_345, 700_000, &all));
        assert_eq!(written(&world.call(client, &change)).count, 700_000);
        let append = Request::AppendInline(dafs::AppendInline {
            fh: file.fh,
            state_id: file.id,
            stable: dafs::Stability::DataSync,
            padded_to: None,
            cache_hint: dafs::HintWord::NONE,
            data: b"behind the end",
        });
        assert_eq!(world.status(client, &append), Status::Ok);
        assert_eq!(world.status(client, &unlock(file, LockType::Abort, ALL)), Status::Ok);
        assert!(world.read(client, file) == before);
        world.end();
    });
}
