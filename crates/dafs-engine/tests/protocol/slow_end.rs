//! Durable replies when the reactor ends in the middle of a change: with the server, before the job of
//! the change, or in a panic.

use crate::common::*;
use crate::durable::{prepared, restart, setup, status, without_open};
use crate::responses::{begin, key};
use dafs_journal::sim::SimDisk;
use dafs_service::durable::Durability;
use dafs_wire::dafs::{self, ByteOrder, CheckResponse, FileHandle, Request, Status, Verifier};
use std::sync::Arc;

const MADE: [&[u8]; 1] = [b"made"];
const EXISTING: [&[u8]; 1] = [b"f"];

/// Returns changes that the pool executes.
fn changes(root: FileHandle, file: File) -> [Request<'static>; 2] {
    let create = Some(dafs::CreateMode::Exclusive { verifier: Verifier([1; 8]) });
    [
        Request::Open(dafs::Open { create, ..open_request(root, &MADE, b"owner") }),
        write_stable(without_open(file), 3, b"stable", dafs::Stability::FileSync),
    ]
}

fn assert_in_doubt(world: &mut World, client: usize, asked: CheckResponse) {
    assert_eq!(status(world, client, asked), Status::Ok);
    let fetched = world.call(client, &Request::FetchResponse(asked));
    assert_eq!(fetched.status(), Status::Io);
}

/// The client would repeat a change of which the next server says that it was not made.
#[test]
fn a_change_is_not_called_undone_when_the_reactor_ends_before_its_job() {
    let (mode, order) = (Durability::Crash, ByteOrder::Little);
    for which in 0..2 {
        for (before, after) in [(false, false), (false, true), (true, false)] {
            let disk = Arc::new(SimDisk::new());
            let (mut world, client, id, file) = prepared(setup(mode, &disk), order);
            let request = changes(world.root(), file)[which];
            world.hold_jobs = true;
            let stream = world.clients[client].post(&request);
            world.settle();
            assert_eq!(world.jobs(), 1);
            if before {
                // The reactor does not take its result.
                assert!(world.run_job());
            }
            let asked = key(&mut world, client, id, stream, request.procedure());
            let stores = world.stores.clone();
            world.end_before_jobs(usize::from(after));
            let mut world = World::new(Setup { stores, run: 8, ..setup(mode, &disk) });
            let (new, _) = begin(&mut world, 2, "a", order);
            if before || after {
                assert_in_doubt(&mut world, new, asked);
            } else {
                assert_eq!(status(&mut world, new, asked), Status::NoXidMatch);
                assert_eq!(world.status(new, &request), Status::Ok);
            }
            world.end();
        }
    }
}

/// A reactor that ends waits for it.
#[test]
fn a_change_is_under_way_until_its_job_is_over() {
    let (mode, order) = (Durability::Crash, ByteOrder::Little);
    for which in 0..2 {
        let disk = Arc::new(SimDisk::new());
        let (mut world, client, _, file) = prepared(setup(mode, &disk), order);
        assert!(!world.engine.has_logged_changes());
        let request = changes(world.root(), file)[which];
        world.hold_jobs = true;
        world.clients[client].post(&request);
        world.settle();
        assert!(world.engine.has_logged_changes());
        while world.run_job() {
            world.settle();
        }
        assert!(!world.engine.has_logged_changes());
        world.hold_jobs = false;
        world.end();
    }
}

#[test]
fn a_change_is_in_doubt_when_the_reactor_panics_in_it() {
    let (mode, order) = (Durability::Crash, ByteOrder::Little);
    let disk = Arc::new(SimDisk::new());
    let (mut world, client, id, _) = prepared(setup(mode, &disk), order);
    let request = Request::Open(open_request(world.root(), &EXISTING, b"another"));
    world.disk.on_open(|| panic!("on purpose"));
    let stream = world.clients[client].post(&request);
    assert!(world.wait(client, stream).is_none());
    world.settle();
    assert_eq!(world.counts().connections, 0);
    let asked = key(&mut world, client, id, stream, request.procedure());
    let (mut world, new) = restart(world, mode, &disk, order);
    assert_in_doubt(&mut world, new, asked);
}
