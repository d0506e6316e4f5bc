//! Fences: kept over a restart, removed with their files, and effective for clients of every kind.

use crate::common::*;
use dafs_service::{
    Caller, FenceObject, FenceRight, FenceUpdate, FileFences, Handle, Host, RemoveMode, Result,
    Service, ServiceError, StateFile, Subject,
};
use dafs_store::{CreateHow, SetAttr, StoreError};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

fn set(service: &Service, object: FenceObject, update: FenceUpdate<'_>) -> Result<bool> {
    let drained = Arc::new(AtomicBool::new(false));
    let told = drained.clone();
    let tell = Box::new(move || told.store(true, Ordering::SeqCst));
    service.set_fence(FenceRight::Administrator, &object, update, tell)?;
    Ok(drained.load(Ordering::SeqCst))
}

fn list(service: &Service, object: FenceObject) -> Option<Vec<String>> {
    let names = service.fences.list(FenceRight::Administrator, &object).unwrap()?;
    Some(names.into_iter().map(|name| String::from_utf8(name).unwrap()).collect())
}

fn nfs<'a>(owner: &'a str, address: &str) -> Subject<'a> {
    let (owner, address) = (Some(owner.as_bytes()), address.parse().unwrap());
    Subject::Nfs { owner, address, host: Host::of(address) }
}

fn file(world: &World, name: &str) -> Handle {
    let client = world.dafs("maker");
    let opened = world.open(&client, name, READ).unwrap();
    let handle = *opened.state.handle();
    world.close(&client, &opened);
    handle
}

/// The same world with fences on a disk.
fn with_fences(world: World, path: &Path) -> World {
    let records = Box::new(FileFences::open(path, StateFile::New([7; 16])).unwrap());
    world.service.fences.load(records).unwrap();
    world
}

#[test]
fn fences_hold_after_a_restart_and_go_with_their_files() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("fences.redb");
    let mut world = with_fences(World::new(), &path);
    let (kept, gone) = (file(&world, "kept"), file(&world, "gone"));
    let fs = FenceObject::FileSystem(world.root.fs);
    for handle in [kept, gone] {
        let fenced = set(&world.service, FenceObject::File(handle), FenceUpdate::Install(&[b"n1"]));
        assert_eq!(fenced, Ok(true));
    }
    assert_eq!(set(&world.service, fs, FenceUpdate::Install(&[])), Ok(true));
    world.restart();
    let world = with_fences(world, &path);
    assert_eq!(world.service.counts().fences, 3);
    assert_eq!(list(&world.service, fs), Some(vec![]));
    assert_eq!(list(&world.service, FenceObject::File(kept)), Some(vec!["n1".to_owned()]));
    assert_eq!(
        world.service.fences.check(&Subject::Session(b"n1"), &kept),
        Err(ServiceError::Fenced)
    );
    assert_eq!(set(&world.service, fs, FenceUpdate::Lift), Ok(true));
    assert_eq!(world.service.fences.check(&Subject::Session(b"n1"), &kept), Ok(()));
    let client = world.nfs("remover");
    world.pass_with(&[&client], LEASE_NS);
    let removed =
        world.service.remove(world.caller(&client), &world.root, b"gone", RemoveMode::Unchecked);
    removed.unwrap();
    world.pass_with(&[&client], 20 * SECOND_NS);
    assert_eq!(world.service.counts().fences, 1);
    drop(world.service);
    let records = FileFences::open(&path, StateFile::New([7; 16])).unwrap();
    let left = dafs_service::FenceRecords::load(&records).unwrap();
    assert_eq!(left.len(), 1, "the file's list is gone from the disk, too: {left:?}");
}

#[test]
fn nfs_clients_are_known_by_name_and_address() {
    let world = World::new();
    let handle = file(&world, "f");
    let update = FenceUpdate::Install(&[b"nfs:linux 1", b"addr:10.0.0.0/24", b"n1"]);
    assert_eq!(set(&world.service, FenceObject::File(handle), update), Ok(true));
    let check = |subject: Subject<'_>| world.service.fences.check(&subject, &handle);
    assert_eq!(check(nfs("linux 1", "192.0.2.1")), Ok(()));
    assert_eq!(check(nfs("linux 2", "10.0.0.7")), Ok(()));
    assert_eq!(check(nfs("linux 2", "10.0.1.7")), Err(ServiceError::Fenced));
    assert_eq!(check(nfs("n1", "10.0.1.7")), Err(ServiceError::Fenced));
    assert_eq!(check(Subject::Session(b"n1")), Ok(()));
    assert_eq!(check(Subject::Session(b"linux 1")), Err(ServiceError::Fenced));
    assert_eq!(world.service.fences.check(&nfs("linux 2", "10.0.1.7"), &world.root), Ok(()));
}

#[test]
fn a_fenced_file_is_not_reached_by_its_name_either() {
    let world = World::new();
    let handle = file(&world, "f");
    let other = file(&world, "other");
    let client = world.nfs("a");
    let update = FenceUpdate::Install(&[b"nfs:b"]);
    assert_eq!(set(&world.service, FenceObject::File(handle), update), Ok(true));
    let fenced = Caller { subject: nfs("a", "10.0.0.1"), ..world.caller(&client) };
    let fenced_out = Err(ServiceError::Fenced);
    let service = &world.service;
    let open = service.opens.open(fenced, &world.plain("f", "owner", READ));
    assert_eq!(open.map(|_| ()), fenced_out);
    let removed = service.remove(fenced, &world.root, b"f", RemoveMode::Unchecked);
    assert_eq!(removed.map(|_| ()), fenced_out);
    for (from, to) in [("f", "g"), ("other", "f")] {
        let (from, to) = (from.as_bytes(), to.as_bytes());
        let renamed = service.rename(fenced, &world.root, from, &world.root, to);
        assert_eq!(renamed.map(|_| ()), fenced_out);
    }
    let empty = SetAttr { size: Some(0), ..SetAttr::default() };
    let made = service.stateless_create(fenced, &world.root, b"f", CreateHow::Unchecked, &empty);
    assert_eq!(made.map(|_| ()), fenced_out);
    assert_eq!(service.counts().opens, 0);
    let allowed = Caller { subject: nfs("b", "10.0.0.1"), ..fenced };
    assert!(service.opens.open(allowed, &world.plain("f", "owner", READ)).is_ok());
    assert_eq!(service.fences.check(&fenced.subject, &other), Ok(()));
}

#[test]
fn a_change_waits_for_requests_that_had_begun() {
    let world = World::new();
    let handle = file(&world, "f");
    let object = FenceObject::File(handle);
    let begin = |address: &str| world.service.fences.begin_work(address.parse().unwrap());
    let entry = begin("10.0.0.1");
    assert_eq!(set(&world.service, object, FenceUpdate::Add(&[b"n1"])), Ok(false));
    assert_eq!(world.service.counts().fence_waiters, 1);
    assert_eq!(set(&world.service, object, FenceUpdate::Add(&[b"n2"])), Ok(true));
    // The list does not change, but the update before is not over.
    assert_eq!(set(&world.service, object, FenceUpdate::Remove(&[b"n3"])), Ok(false));
    let later = begin("10.0.0.1");
    drop(entry);
    drop(later);
    assert_eq!(world.service.counts().fence_waiters, 0);
    let invalid = Err(StoreError::Invalid.into());
    assert_eq!(set(&world.service, object, FenceUpdate::Remove(&[b""])), invalid);
}

/// An ejected client is out at once, however long requests of others take.
#[test]
fn a_change_waits_for_nobody_who_stays() {
    let world = World::new();
    let object = FenceObject::File(file(&world, "f"));
    let clients = ["stays", "goes"].map(|name| world.nfs(name));
    let begin = |address: &str| world.service.fences.begin_work(address.parse().unwrap());
    let all: [&[u8]; 3] = [b"nfs:stays", b"nfs:goes", b"addr:10.0.0.0/24"];
    assert_eq!(set(&world.service, object, FenceUpdate::Install(&all)), Ok(true));
    // One is on the list by its name, one by its address.
    let by_name = begin("192.0.2.1");
    by_name.is_of(&clients[0]);
    let by_address = begin("10.0.0.1");
    let leave = FenceUpdate::Remove(&[b"nfs:goes"]);
    assert_eq!(set(&world.service, object, leave), Ok(true));
    assert_eq!(set(&world.service, object, FenceUpdate::Add(&[b"nfs:goes"])), Ok(true));
    let going = begin("192.0.2.2");
    going.is_of(&clients[1]);
    assert_eq!(set(&world.service, object, leave), Ok(false));
    assert_eq!(world.service.counts().fence_waiters, 1);
    drop(going);
    assert_eq!(world.service.counts().fence_waiters, 0);
    drop((by_name, by_address));
}
