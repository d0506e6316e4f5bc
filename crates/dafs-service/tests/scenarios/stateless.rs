//! Callers without opens.

use crate::common::*;
use dafs_mem::VolatileSlice;
use dafs_service::{Caller, Handle, Result, ServiceError, StatelessFile, Subject};
use dafs_store::{CreateHow, Cred, OpenMode, SetAttr, Stability, StoreError, Wait};
use std::sync::Arc;

fn file(world: &World, uid: u32, handle: &Handle, mode: OpenMode) -> Result<StatelessFile> {
    let cred = Cred::new(uid, uid);
    let client = world.service.stateless_client();
    let caller = Caller {
        client,
        cred: &cred,
        subject: Subject::Server,
        wait: Wait::Never,
        now_ns: world.now_ns.get(),
    };
    world.service.opens.stateless_file(caller, handle, mode)
}

fn create(world: &World, mode: u32, uid: u32) -> Handle {
    let nobody = world.service.stateless_client().clone();
    let attr = SetAttr { mode: Some(mode), uid: Some(uid), gid: Some(uid), ..SetAttr::default() };
    let caller = world.caller(&nobody);
    let made = world.service.stateless_create(caller, &world.root, b"f", CreateHow::Guarded, &attr);
    made.unwrap().handle
}

#[test]
fn files_are_kept_open_and_rights_are_checked_when_they_change() {
    let world = World::new();
    let handle = create(&world, 0o644, 5);
    let first = file(&world, 7, &handle, MODE_READ).unwrap();
    let again = file(&world, 7, &handle, MODE_READ).unwrap();
    assert!(Arc::ptr_eq(&first.file, &again.file));
    let access = ServiceError::Store(StoreError::Access);
    assert_eq!(error(file(&world, 7, &handle, MODE_WRITE)), access);
    // Another caller does not use the cached rights.
    let chmod = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    let nobody = world.service.stateless_client().clone();
    let anonymous = dafs_service::StateRef::ANONYMOUS;
    world.service.setattr(world.caller(&nobody), &handle, anonymous, &chmod).unwrap();
    assert_eq!(error(file(&world, 7, &handle, MODE_READ)), access);
    assert!(file(&world, 5, &handle, MODE_READ).is_ok());
}

/// A client creates a file that it may only read, and goes on writing to it (RFC 1813 4.4).
#[test]
fn the_owner_may_always_read_and_write() {
    let world = World::new();
    let handle = create(&world, 0o000, 5);
    for mode in [MODE_READ, MODE_WRITE] {
        assert!(file(&world, 5, &handle, mode).is_ok());
        assert!(file(&world, 6, &handle, mode).is_err());
    }
}

#[test]
fn attributes_are_those_of_now() {
    let world = World::new();
    let handle = create(&world, 0o666, 5);
    let mut bytes = *b"hello";
    let writer = file(&world, 5, &handle, MODE_WRITE).unwrap();
    assert_eq!(writer.attr.size, 0);
    let view = VolatileSlice::from_mut(&mut bytes);
    writer.file.write_at(&[view], 0, Stability::Unstable, Wait::Allowed).unwrap();
    let reader = file(&world, 5, &handle, MODE_READ).unwrap();
    assert_eq!(reader.attr.size, 5);
    assert!(reader.attr.change != writer.attr.change);
}

#[test]
fn a_removed_file_is_stale_at_once_and_the_cache_is_bounded() {
    let world = World::new();
    let handle = create(&world, 0o666, 5);
    file(&world, 5, &handle, MODE_READ).unwrap();
    let nobody = world.service.stateless_client().clone();
    let mode = dafs_service::RemoveMode::Unchecked;
    world.service.remove(world.caller(&nobody), &world.root, b"f", mode).unwrap();
    assert_eq!(world.service.counts().stateless_files, 0);
    let gone = file(&world, 5, &handle, MODE_READ);
    assert_eq!(error(gone), ServiceError::Store(StoreError::Stale));
    let handle = create(&world, 0o666, 5);
    let most = dafs_service::limits::STATELESS_FILES_MAX;
    for uid in 0..most as u32 {
        file(&world, uid + 1, &handle, MODE_READ).unwrap();
    }
    // All entries of one file are in one shard.
    assert!(world.service.counts().stateless_files <= most / 512);
    world.pass(20 * SECOND_NS);
    assert_eq!(world.service.counts().stateless_files, 0);
}

#[test]
fn an_unchecked_create_empties_what_is_there() {
    let world = World::new();
    let handle = create(&world, 0o666, 5);
    let writer = file(&world, 5, &handle, MODE_WRITE).unwrap();
    writer.file.set_size(100).unwrap();
    let nobody = world.service.stateless_client().clone();
    let make = |how, size| {
        let attr = SetAttr { size, ..SetAttr::default() };
        world.service.stateless_create(world.caller(&nobody), &world.root, b"f", how, &attr)
    };
    let found = make(CreateHow::Unchecked, None).unwrap();
    assert_eq!((found.handle, found.attr.size, found.created), (handle, 100, false));
    assert_eq!(make(CreateHow::Unchecked, Some(0)).unwrap().attr.size, 0);
    let guarded = make(CreateHow::Guarded, None);
    assert_eq!(guarded.unwrap_err(), ServiceError::Store(StoreError::Exists));
}
