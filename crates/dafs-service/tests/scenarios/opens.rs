//! Opens of NFS clients: state-ids with sequence numbers, upgrade and downgrade, claims, denials
//! across protocols.

use crate::common::*;
use dafs_service::{
    Client, Handle, LockKind, OpenHow, OpenRequest, OpenTarget, RemoveMode, ServiceError, Share,
    StateId, StateKind, StateRef,
};
use dafs_store::{CreateHow, MemoryStore, NewObject, SetAttr, StoreError};
use dafs_testkit::stores::layer::{Call, Layer, Layered};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

#[test]
fn sequence_numbers_tell_old_state_ids_from_new_ones() {
    let world = World::new();
    let client = world.nfs("a");
    let first = world.open(&client, "f", READ).unwrap();
    assert_eq!(first.seqid, 1);
    let second = world.open(&client, "f", WRITE).unwrap();
    assert_eq!((second.state.id(), second.seqid), (first.state.id(), 2));
    let (id, handle) = (first.state.id(), *first.state.handle());
    let io = |seqid| {
        let state = StateRef { id, seqid };
        world.service.opens.io_file(world.caller(&client), &handle, state, MODE_READ).map(|_| ())
    };
    assert_eq!(io(0), Ok(()));
    assert_eq!(io(2), Ok(()));
    assert_eq!(io(1), Err(ServiceError::OldStateId));
    assert_eq!(io(3), Err(ServiceError::BadStateId));
    let test = |seqid| {
        world.service.state.check_state(world.caller(&client), None, StateRef { id, seqid })
    };
    assert_eq!(test(2), Ok(StateKind::Open));
    assert_eq!(test(1), Err(ServiceError::OldStateId));
    let state = second.state.reference();
    assert_eq!(
        world.service.opens.free(world.caller(&client), state),
        Err(ServiceError::LocksHeld)
    );
    // A state-id of another client, of another file, of another run, and an invalid one.
    let other = world.nfs("b");
    let caller = world.caller(&other);
    let stolen = world.service.opens.io_file(caller, &handle, id, MODE_READ);
    assert_eq!(error(stolen), ServiceError::BadStateId);
    let freed = world.service.opens.free(caller, state);
    assert_eq!(freed, Err(ServiceError::BadStateId));
    let elsewhere = world.service.opens.io_file(world.caller(&client), &world.root, id, MODE_READ);
    assert_eq!(error(elsewhere), ServiceError::BadStateId);
    world.close(&client, &second);
    assert_eq!(io(0), Err(ServiceError::StaleStateId));
    assert_eq!(io(0), test(0).map(|_| ()));
    for id in [StateId(7), StateId(u64::MAX), StateId(u64::MAX - 1)] {
        let used = world.service.opens.io_file(world.caller(&client), &handle, id, MODE_READ);
        assert!(matches!(error(used), ServiceError::BadStateId | ServiceError::StaleStateId));
    }
    assert_eq!(world.service.counts().opens, 0);
}

#[test]
fn a_create_in_a_removed_directory_fails_at_once() {
    let world = World::new();
    let (client, nfs) = (world.dafs("d"), world.nfs("n"));
    let object = NewObject::Directory;
    let (caller, none) = (world.caller(&client), SetAttr::default());
    let made = world.service.make(caller, &world.root, b"gone", object, &none).unwrap();
    let dir = Handle { fs: world.root.fs, file: made.id };
    world.service.remove(caller, &world.root, b"gone", RemoveMode::Unchecked).unwrap();
    for client in [&client, &nfs] {
        for how in [CreateHow::Unchecked, CreateHow::Guarded] {
            let how = OpenHow::Create(how, none);
            let request = OpenRequest::by_name(&dir, b"f", b"owner", BOTH, how);
            let opened = world.service.opens.open(world.caller(client), &request);
            assert_eq!(error(opened), ServiceError::Store(StoreError::Stale));
        }
    }
}

/// Counts the lookups of names. Creations of files fail while it is full.
#[derive(Default)]
struct Lookups {
    count: AtomicU32,
    is_full: AtomicBool,
}

impl Layer for Lookups {
    fn before(&self, call: Call<'_>) -> dafs_store::Result<()> {
        match call {
            Call::Lookup => {
                self.count.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            Call::Create(..) if self.is_full.load(Ordering::Relaxed) => Err(StoreError::NoSpace),
            _ => Ok(()),
        }
    }
}

#[test]
fn a_guarded_create_looks_a_name_up_only_when_it_fails() {
    let store = Arc::new(Layered::new(Arc::new(MemoryStore::default()), Lookups::default()));
    let world = World::over(store.clone());
    let client = world.dafs("a");
    let open = |name| {
        let how = OpenHow::Create(CreateHow::Guarded, SetAttr::default());
        let request = OpenRequest { how, ..world.plain(name, "owner", WRITE) };
        world.service.opens.open(world.caller(&client), &request)
    };
    let exists = ServiceError::Store(StoreError::Exists);
    assert!(open("f").unwrap().created);
    assert_eq!(error(open("f")), exists);
    let (caller, none) = (world.caller(&client), SetAttr::default());
    world.service.make(caller, &world.root, b"d", NewObject::Directory, &none).unwrap();
    assert_eq!(error(open("d")), exists);
    assert_eq!(store.count.load(Ordering::Relaxed), 0, "the store has said so");
    // A name that exists goes before a full file system.
    store.is_full.store(true, Ordering::Relaxed);
    assert_eq!(error(open("f")), exists);
    assert_eq!(error(open("d")), exists);
    assert_eq!(error(open("g")), ServiceError::Store(StoreError::NoSpace));
    assert_eq!(store.count.load(Ordering::Relaxed), 3);
}

/// RFC 8881 18.18.3.
#[test]
fn a_downgrade_goes_to_a_union_of_earlier_opens() {
    let world = World::new();
    let client = world.nfs("a");
    let opened = world.open(&client, "f", BOTH).unwrap();
    let handle = *opened.state.handle();
    let downgrade = |state: StateRef, share| {
        world.service.opens.downgrade(world.caller(&client), &handle, state, share, None)
    };
    let invalid = Err(ServiceError::Store(StoreError::Invalid));
    let state = opened.state.reference();
    assert_eq!(downgrade(state, READ), invalid);
    world.open(&client, "f", READ).unwrap();
    let state = StateRef { id: state.id, seqid: 2 };
    assert_eq!(downgrade(state, WRITE), invalid);
    assert_eq!(downgrade(state, DENY_WRITE), invalid);
    let state = downgrade(state, READ).unwrap();
    assert_eq!(state.seqid, 3);
    // Opens beyond the new share are forgotten.
    assert_eq!(downgrade(state, BOTH), invalid);
    assert_eq!(downgrade(StateRef { seqid: 2, ..state }, READ), Err(ServiceError::OldStateId));
    // A DAFS client may keep any part of its share.
    let dafs = world.dafs("d");
    let opened = world.open(&dafs, "g", BOTH).unwrap();
    let id = opened.state.id();
    let handle = *opened.state.handle();
    assert!(world.service.opens.downgrade(world.caller(&dafs), &handle, id, WRITE, None).is_ok());
}

#[test]
fn files_are_opened_by_handle() {
    let world = World::new();
    let client = world.nfs("a");
    let made = world.open(&client, "f", READ).unwrap();
    assert!(made.created);
    let handle = *made.state.handle();
    let request = |target, how| OpenRequest { target, how, ..world.plain("", "o", READ) };
    let open = |target, how| world.service.opens.open(world.caller(&client), &request(target, how));
    let opened = open(OpenTarget::Handle(&handle), OpenHow::Existing).unwrap();
    assert!(!opened.created);
    assert_eq!(*opened.state.handle(), handle);
    let make = OpenHow::Create(CreateHow::Guarded, SetAttr::default());
    let refused = error(open(OpenTarget::Handle(&handle), make));
    assert_eq!(refused, ServiceError::Store(StoreError::Invalid));
    let refused = error(open(OpenTarget::Handle(&world.root), OpenHow::Existing));
    assert_eq!(refused, ServiceError::Store(StoreError::IsDirectory));
}

/// An exclusive create may be retried, because its answer may have been lost.
#[test]
fn an_exclusive_create_finds_its_own_file_again() {
    let world = World::new();
    let client = world.nfs("a");
    let attr = SetAttr { mode: Some(0o640), ..SetAttr::default() };
    let open = |verifier| {
        let how = OpenHow::Create(CreateHow::Exclusive([verifier; 8]), attr);
        let request = OpenRequest { how, ..world.plain("f", "o", BOTH) };
        // It is stable before the answer.
        let at_once = world.service.opens.open(world.caller(&client), &request);
        assert_eq!(error(at_once), ServiceError::WouldWait);
        world.service.opens.open(world.patient(&client), &request)
    };
    let first = open(1).unwrap();
    assert!(first.created);
    let again = open(1).unwrap();
    assert_eq!((again.created, again.state.id()), (false, first.state.id()));
    assert_eq!(error(open(2)), ServiceError::Store(StoreError::Exists));
}

#[test]
fn denials_hold_between_protocols() {
    let world = World::new();
    let (nfs, dafs) = (world.nfs("n"), world.dafs("d"));
    let nobody = world.service.stateless_client().clone();
    for (denier, denied) in [(&nfs, &dafs), (&dafs, &nfs)] {
        let opened = world.open(denier, "f", DENY_WRITE).unwrap();
        let handle = *opened.state.handle();
        assert_eq!(error(world.open(denied, "f", WRITE)), ServiceError::ShareDenied);
        let anonymous = StateRef::ANONYMOUS;
        for client in [denied, &nobody] {
            let caller = world.caller(client);
            let write = world.service.opens.io_file(caller, &handle, anonymous, MODE_WRITE);
            assert_eq!(error(write), ServiceError::ShareDenied);
            assert!(world.service.opens.io_file(caller, &handle, anonymous, MODE_READ).is_ok());
            let size = SetAttr { size: Some(1), ..SetAttr::default() };
            let cut = world.service.setattr(caller, &handle, anonymous, &size);
            assert_eq!(error(cut), ServiceError::ShareDenied);
        }
        let reader = world.open(denied, "f", READ).unwrap();
        world.close(denied, &reader);
        world.close(denier, &opened);
        let writer = world.open(denied, "f", WRITE).unwrap();
        assert_eq!(error(world.open(denier, "f", DENY_WRITE)), ServiceError::ShareDenied);
        world.close(denied, &writer);
    }
    let counts = world.service.counts();
    assert_eq!((counts.opens, counts.open_files), (0, 0));
}

#[test]
fn the_bypass_reads_what_is_denied_and_writes_nothing() {
    let world = World::new();
    let (one, two) = (world.nfs("a"), world.nfs("b"));
    let share = Share { deny_read: true, deny_write: true, ..BOTH };
    let opened = world.open(&one, "f", share).unwrap();
    let io = |state, mode| {
        let file =
            world.service.opens.io_file(world.caller(&two), opened.state.handle(), state, mode);
        file.map(|_| ())
    };
    assert_eq!(io(StateRef::ANONYMOUS, MODE_READ), Err(ServiceError::ShareDenied));
    assert_eq!(io(StateRef::READ_BYPASS, MODE_READ), Ok(()));
    assert_eq!(io(StateRef::READ_BYPASS, MODE_WRITE), Err(ServiceError::ShareDenied));
}

#[test]
fn emptying_a_file_is_a_write_that_can_be_denied() {
    let world = World::new();
    let (one, two) = (world.nfs("a"), world.nfs("b"));
    world.open(&one, "f", DENY_WRITE).unwrap();
    let attr = SetAttr { size: Some(0), ..SetAttr::default() };
    let how = OpenHow::Create(CreateHow::Unchecked, attr);
    let request = OpenRequest { how, ..world.plain("f", "o", READ) };
    let refused = world.service.opens.open(world.caller(&two), &request);
    assert_eq!(error(refused), ServiceError::ShareDenied);
}

#[test]
fn a_removed_file_lives_for_those_who_have_it_open() {
    let world = World::new();
    let (nfs, dafs) = (world.nfs("n"), world.dafs("d"));
    let opened = world.open(&nfs, "f", BOTH).unwrap();
    let handle = *opened.state.handle();
    let remove = |mode| world.service.remove(world.caller(&dafs), &world.root, b"f", mode);
    assert_eq!(error(remove(RemoveMode::CheckOpen)), ServiceError::DeleteDenied);
    remove(RemoveMode::Unchecked).unwrap();
    let state = opened.state.reference();
    assert!(world.service.opens.io_file(world.caller(&nfs), &handle, state, MODE_WRITE).is_ok());
    assert_eq!(world.service.getattr(&handle).unwrap().links, 0);
    world.close(&nfs, &opened);
    assert_eq!(error(world.service.getattr(&handle)), ServiceError::Store(StoreError::Stale));
}

/// RFC 8881 18.51.
#[test]
fn no_new_open_before_reclaim_complete() {
    let world = World::new();
    let client = world.returning("a", 1);
    assert_eq!(error(world.open(&client, "f", READ)), ServiceError::Grace);
    world.service.clients.reclaim_complete(&client).unwrap();
    let again = world.service.clients.reclaim_complete(&client);
    assert_eq!(again, Err(ServiceError::CompleteAlready));
    let opened = world.open(&client, "f", READ).unwrap();
    let handle = *opened.state.handle();
    assert_eq!(error(world.reclaim(&client, &handle, READ)), ServiceError::NoGrace);
    assert_eq!(world.disk.owners(), [b"a".to_vec()]);
}

#[test]
fn an_export_that_goes_takes_its_state_along() {
    let world = World::new();
    let client = world.nfs("a");
    let opened = world.open(&client, "f", BOTH).unwrap();
    let lock = world.lock(&client, &opened, "l", (0, 1), LockKind::Write).unwrap();
    let (caller, handle) = (world.caller(&client), *opened.state.handle());
    let state = opened.state.reference();
    let store = Arc::new(MemoryStore::default());
    let export = dafs_service::Export::new("", store, Default::default());
    // The same file system under the same name is the same export.
    world.service.replace_namespace(dafs_service::Namespace::new(vec![export]).unwrap());
    assert!(world.service.opens.io_file(caller, &handle, state, MODE_READ).is_ok());
    let options = dafs_store::MemoryOptions {
        fs_id: dafs_store::FsId(*b"another fs      "),
        ..Default::default()
    };
    let store = Arc::new(MemoryStore::new(options));
    let export = dafs_service::Export::new("", store, Default::default());
    world.service.replace_namespace(dafs_service::Namespace::new(vec![export]).unwrap());
    let used = world.service.opens.io_file(caller, &handle, state, MODE_READ);
    assert_eq!(error(used), ServiceError::AdminRevoked);
    assert!(client.status().admin_revoked);
    assert!(world.service.opens.free(caller, lock).is_err());
    world.service.opens.free(caller, state).unwrap();
    assert!(!client.status().admin_revoked);
    assert_eq!(world.service.counts().revoked, 0);
    let used = world.service.opens.io_file(caller, &handle, state, MODE_READ);
    assert_eq!(error(used), ServiceError::StaleStateId);
}

#[test]
fn no_host_takes_all_files_that_can_be_open() {
    let world = World::with_files_max(4);
    let open = |client: &Arc<Client>, name: &str| world.open(client, name, READ).map(drop);
    let hosts = [(1, "a"), (1, "b"), (2, "c"), (3, "d")];
    let clients = hosts.map(|(host, name)| {
        world.come_from(host);
        world.nfs(name)
    });
    assert_eq!([0, 1].map(|at| open(&clients[at], "f")), [Ok(()), Ok(())]);
    for client in &clients[..2] {
        assert_eq!(open(client, "h"), Err(ServiceError::Resource));
    }
    let made = world.service.lookup(world.caller(&clients[0]), &world.root, [&b"h"[..]]);
    assert!(made.is_err(), "what cannot be opened is not made");
    assert_eq!(open(&clients[2], "f"), Ok(()));
    assert_eq!(open(&clients[2], "g"), Err(ServiceError::Resource));
    assert_eq!(open(&clients[3], "f"), Ok(()));
}

/// An open from the time when the export was writable allows no writes.
#[test]
fn an_export_that_becomes_read_only_is_so_for_files_that_are_open() {
    let world = World::new();
    let (one, nfs) = (world.dafs("a"), world.nfs("b"));
    let opens = [&one, &nfs].map(|client| (client, world.open(client, "f", BOTH).unwrap()));
    let outcome = |need| {
        opens.each_ref().map(|(client, opened)| {
            let handle = opened.state.handle();
            let state = opened.state.reference();
            let by_state = world.service.opens.io_file(world.caller(client), handle, state, need);
            let direct = opened.state.file(need);
            assert_eq!(by_state.as_ref().err(), direct.as_ref().err());
            direct.map(drop)
        })
    };
    let refused = Err(ServiceError::Store(StoreError::ReadOnly));
    world.serve(&[("", true)]);
    assert_eq!(outcome(MODE_WRITE), [refused, refused]);
    assert_eq!(outcome(MODE_READ), [Ok(()), Ok(())]);
    world.serve(&[("", false)]);
    assert_eq!(outcome(MODE_WRITE), [Ok(()), Ok(())]);
}
