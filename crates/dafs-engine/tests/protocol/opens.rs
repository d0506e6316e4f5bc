//! Opens: share reservations, state-ids, creation, removal under an open, leases.

use crate::common::*;
use dafs_service::{Caller, Client, Identity, OpenHow, OpenRequest, Service, ServiceError, Share};
use dafs_store::{CreateHow, Cred, OpenMode, SetAttr, Wait};
use dafs_wire::dafs::{
    self, Attributes, DeleteDisposition, Request, ShareAccess, ShareDeny, StateId, Status, Verifier,
};
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[test]
fn state_ids_belong_to_their_client_and_die_when_closed() {
    let (mut world, one, two) = World::with_two(Setup::default());
    let file = world.open(one, b"f");
    assert_eq!(world.status(two, &read_inline(file, 0, 1)), Status::BadStateId);
    assert_eq!(world.status(two, &close(file)), Status::BadStateId);
    let id = |id: [u8; 8]| File { fh: file.fh, id: StateId(id) };
    assert_eq!(world.status(one, &read_inline(id([0xff; 8]), 0, 1)), Status::BadStateId);
    // A state-id of another run of the server.
    let mut old = file.id.0;
    old[0] ^= 1;
    assert_eq!(world.status(one, &read_inline(id(old), 0, 1)), Status::StaleStateId);
    let mut future = file.id.0;
    future[7] += 1;
    assert_eq!(world.status(one, &read_inline(id(future), 0, 1)), Status::BadStateId);
    // The same client may use it on another session.
    let again = world.session(4, "a");
    assert_eq!(world.status(again, &read_inline(file, 0, 1)), Status::Ok);
    assert_eq!(world.status(again, &close(file)), Status::Ok);
    for session in [one, again] {
        assert_eq!(world.status(session, &read_inline(file, 0, 1)), Status::StaleStateId);
        assert_eq!(world.status(session, &close(file)), Status::StaleStateId);
    }
    assert_eq!(world.service.counts().open_files, 0);
    world.end();
}

const ACCESSES: [ShareAccess; 3] = [ShareAccess::Read, ShareAccess::Write, ShareAccess::Both];

const DENIALS: [ShareDeny; 4] =
    [ShareDeny::None, ShareDeny::Read, ShareDeny::Write, ShareDeny::Both];

fn conflicts(access: ShareAccess, deny: ShareDeny) -> bool {
    let read = matches!(deny, ShareDeny::Read | ShareDeny::Both);
    let write = matches!(deny, ShareDeny::Write | ShareDeny::Both);
    access.reads() && read || access.writes() && write
}

#[test]
fn share_reservations_hold_between_clients() {
    let (mut world, one, two) = World::with_two(Setup::default());
    let root = world.root();
    let open = |owner, share_access, share_deny| dafs::Open {
        share_access,
        share_deny,
        ..open_request(root, F, owner)
    };
    for access in ACCESSES {
        for deny in DENIALS {
            let first = world.open_with(one, &open(b"o", access, deny)).unwrap();
            for other_access in ACCESSES {
                for other_deny in DENIALS {
                    let denied = conflicts(access, other_deny) || conflicts(other_access, deny);
                    let expected = if denied { Err(Status::Denied) } else { Ok(()) };
                    for (client, owner) in [(two, b"o"), (one, b"p")] {
                        let request = open(owner, other_access, other_deny);
                        let got = world.open_with(client, &request);
                        assert_eq!(got.map(|_| ()), expected, "{access:?} {deny:?} {request:?}");
                        if let Ok(file) = got {
                            assert_eq!(world.status(client, &close(file)), Status::Ok);
                        }
                    }
                }
            }
            // The denials also apply to requests without an open (DAFS O37).
            let anonymous = File { id: StateId([0; 8]), ..first };
            for (request, access) in [
                (read_inline(anonymous, 0, 1), ShareAccess::Read),
                (write_inline(anonymous, 0, b"x"), ShareAccess::Write),
                (set(anonymous, size(1)), ShareAccess::Write),
            ] {
                let expected = if conflicts(access, deny) { Status::Denied } else { Status::Ok };
                assert_eq!(world.status(two, &request), expected, "{access:?} {deny:?}");
            }
            // The open itself allows only its own access.
            let expected = |allowed| if allowed { Status::Ok } else { Status::Acces };
            let status = world.status(one, &read_inline(first, 0, 1));
            assert_eq!(status, expected(access.reads()));
            let status = world.status(one, &write_inline(first, 0, b"x"));
            assert_eq!(status, expected(access.writes()));
            assert_eq!(world.status(one, &close(first)), Status::Ok);
        }
    }
    assert_eq!(world.service.counts().opens, 0);
    world.end();
}

#[test]
fn one_owner_widens_its_open_and_one_close_ends_it() {
    let (mut world, one, two) = World::with_two(Setup::default());
    let root = world.root();
    let open = |share_access, share_deny| dafs::Open {
        share_access,
        share_deny,
        ..open_request(root, F, b"o")
    };
    let first = world.open_with(one, &open(ShareAccess::Read, ShareDeny::None)).unwrap();
    assert_eq!(world.status(one, &write_inline(first, 0, b"x")), Status::Acces);
    let second = world.open_with(one, &open(ShareAccess::Write, ShareDeny::Write)).unwrap();
    assert_eq!(first.id, second.id);
    assert_eq!(world.status(one, &write_inline(first, 0, b"x")), Status::Ok);
    assert_eq!(world.status(one, &read_inline(first, 0, 1)), Status::Ok);
    let other = open(ShareAccess::Write, ShareDeny::None);
    assert_eq!(world.open_with(two, &other).unwrap_err(), Status::Denied);
    // A third open that is refused leaves the open unchanged.
    let reader = open(ShareAccess::Read, ShareDeny::None);
    let theirs = world.open_with(two, &reader).unwrap();
    let greedy = open(ShareAccess::Read, ShareDeny::Read);
    assert_eq!(world.open_with(one, &greedy).unwrap_err(), Status::Denied);
    assert_eq!(world.status(two, &close(theirs)), Status::Ok);
    let theirs = world.open_with(two, &reader).unwrap();
    for (access, deny, status) in [
        (ShareAccess::Both, ShareDeny::Both, Status::Inval),
        (ShareAccess::Read, ShareDeny::Read, Status::Inval),
        (ShareAccess::Read, ShareDeny::None, Status::Ok),
        (ShareAccess::Both, ShareDeny::None, Status::Inval),
    ] {
        assert_eq!(world.status(one, &downgrade(first, access, deny)), status);
    }
    assert_eq!(world.status(one, &write_inline(first, 0, b"x")), Status::Acces);
    let writer = world.open_with(two, &other).unwrap();
    assert_eq!(writer.id, theirs.id);
    assert_eq!(world.status(one, &close(first)), Status::Ok);
    assert_eq!(world.status(one, &close(second)), Status::StaleStateId);
    world.end();
}

#[test]
fn a_downgrade_gives_up_what_it_says() {
    let (mut world, one, two) = World::with_two(Setup::default());
    let open = open_request(world.root(), F, b"o");
    let denying = dafs::Open { share_deny: ShareDeny::Both, ..open };
    let file = world.open_with(one, &denying).unwrap();
    assert_eq!(world.open_with(two, &open).unwrap_err(), Status::Denied);
    let down = |share_access, share_deny| {
        Request::OpenDowngrade(dafs::OpenDowngrade {
            fh: file.fh,
            state_id: file.id,
            share_access,
            share_deny,
            share_key: dafs::ShareKey::None,
        })
    };
    assert_eq!(world.status(one, &write_inline(file, 0, b"x")), Status::Ok);
    assert_eq!(world.status(one, &down(ShareAccess::Read, ShareDeny::Write)), Status::Ok);
    assert_eq!(world.status(one, &write_inline(file, 0, b"x")), Status::Acces);
    assert_eq!(world.status(one, &read_inline(file, 0, 1)), Status::Ok);
    assert_eq!(world.open_with(two, &open).unwrap_err(), Status::Denied);
    let reading = dafs::Open { share_access: ShareAccess::Read, ..open };
    let theirs = world.open_with(two, &reading).unwrap();
    assert_eq!(world.status(two, &close(theirs)), Status::Ok);
    // It does not restore access.
    assert_eq!(world.status(one, &down(ShareAccess::Both, ShareDeny::Write)), Status::Inval);
    assert_eq!(world.status(one, &down(ShareAccess::Read, ShareDeny::None)), Status::Ok);
    world.open_with(two, &open).unwrap();
    world.end();
}

#[test]
fn creation_modes_differ_as_they_should() {
    let (mut world, client) = World::with_session(Setup::default());
    let root = world.root();
    let path = [b"f".as_slice()];
    let open = |create| dafs::Open { create, ..open_request(root, &path, b"o") };
    let attributes_of =
        |object_size| Attributes { mode: Some(0o640), object_size, ..Default::default() };
    let guarded = Some(dafs::CreateMode::Guarded { attributes: attributes_of(None) });
    assert_eq!(world.open_with(client, &open(None)).unwrap_err(), Status::NoEnt);
    let file = world.open_with(client, &open(guarded)).unwrap();
    assert_eq!(attributes(&mut world, client, file.fh).unwrap().mode, 0o640);
    assert_eq!(world.open_with(client, &open(guarded)).unwrap_err(), Status::Exist);
    world.write(client, file, 0, b"content");
    let keep = Some(dafs::CreateMode::Unchecked { attributes: attributes_of(None) });
    world.open_with(client, &open(keep)).unwrap();
    assert_eq!(world.read(client, file), b"content");
    let truncate = Some(dafs::CreateMode::Unchecked { attributes: attributes_of(Some(0)) });
    world.open_with(client, &open(truncate)).unwrap();
    assert!(world.read(client, file).is_empty());
    let exclusive = |verifier| Some(dafs::CreateMode::Exclusive { verifier: Verifier(verifier) });
    let error = world.open_with(client, &open(exclusive([1; 8]))).unwrap_err();
    assert_eq!(error, Status::Exist);
    let path = [b"g".as_slice()];
    let open = |create, share_access| dafs::Open {
        create,
        share_access,
        ..open_request(root, &path, b"o")
    };
    let file = world.open_with(client, &open(exclusive([1; 8]), ShareAccess::Both)).unwrap();
    // A retry finds its own file, and the earlier access of the open stays.
    let again = world.open_with(client, &open(exclusive([1; 8]), ShareAccess::Write)).unwrap();
    assert_eq!((file.fh, file.id), (again.fh, again.id));
    assert_eq!(world.status(client, &write_inline(file, 0, b"x")), Status::Ok);
    assert_eq!(world.read(client, file), b"x");
    let error = world.open_with(client, &open(exclusive([2; 8]), ShareAccess::Both)).unwrap_err();
    assert_eq!(error, Status::Exist);
    let claim =
        dafs::OpenClaim::Previous { fh: file.fh, delegate_type: dafs::DelegationType::None };
    // There was no restart, so there is no state to reclaim. A claim makes no file.
    let request = dafs::Open { claim, ..open(None, ShareAccess::Both) };
    assert_eq!(world.open_with(client, &request).unwrap_err(), Status::Expired);
    let request = dafs::Open { claim, ..open(exclusive([3; 8]), ShareAccess::Both) };
    assert_eq!(world.open_with(client, &request).unwrap_err(), Status::Inval);
    // An empty path means the object itself.
    let claim = dafs::OpenClaim::Null { dir: file.fh, path: dafs::Path::new(&[]) };
    let request = dafs::Open { claim, ..open(None, ShareAccess::Both) };
    let same = world.open_with(client, &request).unwrap();
    assert_eq!((file.fh, file.id), (same.fh, same.id));
    world.end();
}

#[test]
fn removed_files_stay_usable_through_their_opens_only() {
    let (mut world, one, two) = World::with_two(Setup::default());
    let root = world.root();
    let file = world.open(one, b"f");
    world.write(one, file, 0, b"before");
    assert_eq!(world.status(two, &remove(root, b"f", true)), Status::DenyDispConflict);
    assert_eq!(world.status(two, &remove(root, b"f", false)), Status::Ok);
    assert_eq!(world.status(two, &lookup(root, &[b"f"])), Status::NoEnt);
    world.write(one, file, 6, b" after");
    assert_eq!(world.read(one, file), b"before after");
    let links = attributes(&mut world, one, file.fh).unwrap();
    assert_eq!((links.size, links.links), (12, 0));
    assert_eq!(world.status(one, &set(file, size(3))), Status::Ok);
    let mode = Attributes { mode: Some(0o600), ..Attributes::default() };
    assert_eq!(world.status(one, &set(file, mode)), Status::Ok);
    assert_eq!(attributes(&mut world, one, file.fh).unwrap().mode, 0o600);
    assert_eq!(world.read(one, file), b"bef");
    let commit = Request::Commit(dafs::Commit { fh: file.fh, offset: 0, count: 0 });
    assert_eq!(world.status(one, &commit), Status::Ok);
    // A new file of that name is another one.
    let new = world.open(two, b"f");
    assert_ne!(new.fh, file.fh);
    assert!(world.read(two, new).is_empty());
    assert_eq!(world.status(one, &close(file)), Status::Ok);
    assert_eq!(attributes(&mut world, one, file.fh), Err(Status::Stale));
    world.end();
}

#[test]
fn an_open_may_deny_removal_and_replacement() {
    let (mut world, one, two) = World::with_two(Setup::default());
    let root = world.root();
    let deny =
        dafs::Open { delete_disposition: DeleteDisposition::Deny, ..open_request(root, F, b"o") };
    let file = world.open_with(one, &deny).unwrap();
    let other = world.open(two, b"g");
    for client in [one, two] {
        assert_eq!(world.status(client, &remove(root, b"f", false)), Status::DenyDispConflict);
        assert_eq!(world.status(client, &remove(root, b"f", true)), Status::DenyDispConflict);
        assert_eq!(world.status(client, &rename(root, b"g", b"f")), Status::DenyDispConflict);
    }
    // A rename of the file itself is no removal (DAFS O42).
    assert_eq!(world.status(two, &rename(root, b"f", b"h")), Status::Ok);
    world.write(one, file, 0, b"mine");
    assert_eq!(world.status(one, &close(file)), Status::Ok);
    assert_eq!(world.status(two, &remove(root, b"h", true)), Status::Ok);
    // A file that is open without the denial can be replaced, and the open keeps the old one.
    let old = world.open(one, b"f");
    world.write(one, old, 0, b"old");
    world.write(two, other, 0, b"new");
    assert_eq!(world.status(two, &rename(root, b"g", b"f")), Status::Ok);
    assert_eq!(world.read(one, old), b"old");
    assert_eq!(found(&world.call(two, &lookup(root, F))), other.fh);
    assert_eq!(world.read(two, other), b"new");
    world.end();
}

#[test]
fn a_silent_client_loses_its_opens_and_any_request_keeps_them() {
    let (mut world, silent, alive) = World::with_two(Setup::default());
    let lost = world.open(silent, b"f");
    let kept = world.open(alive, b"g");
    for _ in 0..5 {
        world.pass(LEASE / 3);
        assert_eq!(world.status(alive, &Request::Null), Status::Ok);
    }
    assert_eq!(world.service.counts().opens, 1);
    assert_eq!(world.status(alive, &read_inline(kept, 0, 1)), Status::Ok);
    assert_eq!(world.status(silent, &read_inline(lost, 0, 1)), Status::StaleStateId);
    // It may go on with new opens.
    world.open(silent, b"f");
    // A client that is gone is removed with its lease.
    world.clients.remove(silent);
    world.settle();
    assert_eq!(world.service.counts().opens, 2);
    world.pass(LEASE + Duration::from_secs(1));
    assert_eq!(world.service.counts().opens, 0);
    world.end();
}

fn caller<'a>(client: &'a Arc<Client>, cred: &'a Cred) -> Caller<'a> {
    Caller { client, cred, subject: dafs_service::Subject::Server, wait: Wait::Never, now_ns: 0 }
}

/// A race: two reactors may serve two sessions of one client at once. A refused open must neither
/// undo nor damage another open of the same owner.
#[test]
fn opens_of_one_owner_at_once_do_not_disturb_each_other() {
    let world = World::new(Setup::default());
    let service = world.service.clone();
    let identity = Identity { mechanism: "none", principal: Vec::new() };
    let client = service.register_client(b"c", 1, identity, Default::default(), 0).unwrap().client;
    let (root, maker, reader) = (service.root(), Cred::new(1, 1), Cred::new(2, 2));
    let read = Share { read: true, ..Share::default() };
    let both = Share { write: true, ..read };
    let attr = SetAttr { mode: Some(0o644), ..SetAttr::default() };
    let make = OpenHow::Create(CreateHow::Guarded, attr);
    let open = move |service: &Service, client: &Arc<Client>, cred: &Cred, share, how| {
        let owner = b"owner";
        let request = OpenRequest::by_name(&root, b"f", owner, share, how);
        service.opens.open(caller(client, cred), &request).map(|opened| opened.state)
    };
    let made = open(&service, &client, &maker, both, make).unwrap();
    let caller = caller(&client, &maker);
    service.opens.close(caller, made.handle(), made.id()).unwrap();
    let inner = Arc::new(Mutex::new(None));
    let (kept, nested, nested_client) = (inner.clone(), service.clone(), client.clone());
    world.disk.on_open(move || {
        let opened = open(&nested, &nested_client, &Cred::new(2, 2), read, OpenHow::Existing);
        *kept.lock().unwrap() = Some(opened);
    });
    // The outer one may not write. The inner one succeeded and has to stay valid.
    assert!(open(&service, &client, &reader, both, OpenHow::Existing).is_err());
    let state = inner.lock().unwrap().take().unwrap().unwrap();
    assert!(state.file(OpenMode { read: true, write: false }).is_ok());
    assert!(state.file(OpenMode { read: false, write: true }).is_err());
    assert_eq!(service.counts().opens, 1);
    service.opens.close(caller, state.handle(), state.id()).unwrap();
    assert_eq!(service.counts().opens, 0);
}

/// A replaced record must get no new state, which would never be released.
#[test]
fn an_open_under_way_is_refused_when_its_client_is_replaced() {
    let world = World::new(Setup::default());
    let service = world.service.clone();
    let identity = Identity { mechanism: "none", principal: Vec::new() };
    let client =
        service.register_client(b"c", 1, identity.clone(), Default::default(), 0).unwrap().client;
    let (root, cred) = (service.root(), Cred::new(1, 1));
    let open = |how| {
        let share = Share { read: true, ..Share::default() };
        let owner = b"owner";
        let request = OpenRequest::by_name(&root, b"f", owner, share, how);
        service.opens.open(caller(&client, &cred), &request).map(|opened| opened.state.id())
    };
    let make = OpenHow::Create(CreateHow::Guarded, SetAttr::default());
    open(make).unwrap();
    let other = service.clone();
    world.disk.on_open(move || {
        other.register_client(b"c", 2, identity, Default::default(), 0).unwrap();
    });
    assert_eq!(open(OpenHow::Existing), Err(ServiceError::Expired));
    assert_eq!(service.counts().opens, 0);
}
