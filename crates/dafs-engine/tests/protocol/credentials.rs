//! Credentials: several users in one session (DAFS 4.5).

use crate::common::*;
use dafs_engine::SessionLimits;
use dafs_service::{ExportOptions, Squash};
use dafs_wire::dafs::{
    self, AttrMask, Attributes, Commit, Credential, FileHandle, Reply, Request, SessionOptions,
    Status,
};

fn credential(uid: u32, groups: &[u32]) -> Request<'_> {
    let groups = dafs::Seq::new(groups);
    Request::RegisterCred(dafs::RegisterCred {
        credential: Credential::Id { uid, gid: uid, groups },
    })
}

fn release(number: u32) -> Request<'static> {
    let cred_handle = dafs::CredHandle(number);
    Request::ReleaseCred(dafs::CredHandleBody { cred_handle })
}

/// The owner of an object.
fn owner(world: &mut World, client: usize, fh: FileHandle) -> String {
    let get = dafs::GetAttrInline { fh, attributes: AttrMask::OWNER };
    let answer = world.call(client, &Request::GetAttrInline(get));
    let Ok(Reply::GetAttrInline(reply)) = answer.reply() else { panic!("{answer:?}") };
    String::from_utf8(reply.attributes.owner.unwrap().to_vec()).unwrap()
}

/// Lets a session act as a user from now on; returns the handle.
fn act_as(world: &mut World, client: usize, uid: u32, groups: &[u32]) -> u32 {
    world.clients[client].cred = 0;
    let number = cred_of(&world.call(client, &credential(uid, groups)));
    world.clients[client].cred = number;
    number
}

fn cred_of(answer: &Answer) -> u32 {
    match answer.reply().unwrap() {
        Reply::RegisterCred(reply) => reply.cred_handle.0,
        other => panic!("{other:?}"),
    }
}

#[test]
fn trusted_clients_name_users_within_a_limit() {
    let limits = SessionLimits { credentials_max: 3, ..SessionLimits::default() };
    let (mut world, client) = World::with_session(Setup { limits, ..Setup::default() });
    let first = cred_of(&world.call(client, &credential(1001, &[5, 6])));
    let second = cred_of(&world.call(client, &credential(1002, &[])));
    assert_ne!(first, second);
    world.clients[client].cred = first;
    let file = world.open(client, b"f");
    assert_eq!(owner(&mut world, client, file.fh), "1001");
    world.clients[client].cred = 77;
    assert_eq!(world.status(client, &Request::GetRootHandle), Status::CrHandConflict);
    assert_eq!(world.status(client, &read_inline(file, 0, 10)), Status::CrHandConflict);
    world.clients[client].cred = 0;
    cred_of(&world.call(client, &credential(1003, &[])));
    assert_eq!(world.status(client, &credential(1004, &[])), Status::NoCreds);
    assert_eq!(world.status(client, &release(0)), Status::CrHandConflict);
    assert_eq!(world.status(client, &release(first)), Status::Ok);
    assert_eq!(world.status(client, &release(first)), Status::CrHandConflict);
    cred_of(&world.call(client, &credential(1004, &[])));
    let named = dafs::RegisterCred { credential: Credential::Name(b"anna") };
    assert_eq!(world.status(client, &Request::RegisterCred(named)), Status::NotSupp);
    // They belong to the client, so another of its sessions may use them.
    let other = world.session(3, "a");
    world.clients[other].cred = second;
    assert_eq!(world.status(other, &Request::GetRootHandle), Status::Ok);
    let foreign = world.session(4, "b");
    world.clients[foreign].cred = second;
    assert_eq!(world.status(foreign, &Request::GetRootHandle), Status::CrHandConflict);
    world.end();
}

#[test]
fn untrusted_clients_are_who_they_proved_to_be() {
    let users = vec![("anna", "right"), ("bert", "other")];
    let mut world = World::new(Setup { users, mask: stranger, ..Setup::default() });
    let client = world.connect(2);
    assert_eq!(world.status(client, &connect_by("c", 1, PLAIN, text("bert", "other"))), Status::Ok);
    assert_eq!(world.status(client, &credential(0, &[])), Status::NotAuthorized);
    assert_eq!(world.status(client, &release(1)), Status::NotAuthorized);
    let file = world.open(client, b"f");
    assert_eq!(owner(&mut world, client, file.fh), "1001");
    world.clients[client].cred = 1;
    assert_eq!(world.status(client, &Request::GetRootHandle), Status::CrHandConflict);
    world.end();
}

#[test]
fn a_client_that_has_proven_a_user_acts_for_no_other_whatever_its_address() {
    // Clients of this address need no proof, and then may act for all users.
    let users = vec![("anna", "right")];
    let mut world = World::new(Setup { users, ..Setup::default() });
    let anna = world.connect(2);
    let request = connect_by("c", 1, PLAIN, text("anna", "right"));
    let answer = world.call(anna, &request);
    let Ok(Reply::ClientConnectAuth(reply)) = answer.reply() else { panic!("{answer:?}") };
    assert!(!reply.trusted, "the client does not try");
    let other = world.session(3, "d");
    let registered = cred_of(&world.call(other, &credential(0, &[])));
    for uid in [0, 1000, 1001] {
        assert_eq!(world.status(anna, &credential(uid, &[])), Status::NotAuthorized, "{uid}");
    }
    let default = dafs::RegisterCred { credential: Credential::Default };
    assert_eq!(world.status(anna, &Request::RegisterCred(default)), Status::NotAuthorized);
    assert_eq!(world.status(anna, &release(registered)), Status::NotAuthorized);
    world.clients[anna].cred = registered;
    assert_eq!(world.status(anna, &Request::GetRootHandle), Status::CrHandConflict);
    world.clients[anna].cred = 0;
    let file = world.open(anna, b"f");
    assert_eq!(owner(&mut world, anna, file.fh), "1000");
    world.end();
}

#[test]
fn rights_are_those_of_the_request_and_state_is_that_of_the_client() {
    let (mut world, client) = World::with_session(Setup::default());
    let anna = act_as(&mut world, client, 1001, &[50]);
    let file = world.open(client, b"f");
    assert_eq!(world.status(client, &write_inline(file, 0, b"data")), Status::Ok);
    let mode = |mode| Attributes { mode: Some(mode), ..Attributes::default() };
    let named = File { id: dafs::StateId::ZERO, ..file };
    assert_eq!(world.status(client, &set(named, mode(0o640))), Status::Ok);
    let path: [&[u8]; 1] = [b"f"];
    let root = world.root();
    let open =
        |owner: &'static [u8]| dafs::Open { create: None, ..open_request(root, &path, owner) };
    let bert = act_as(&mut world, client, 1002, &[60]);
    // By name, without an open, and by attributes.
    assert_eq!(world.open_with(client, &open(b"bert")).unwrap_err(), Status::Acces);
    assert_eq!(world.status(client, &read_inline(named, 0, 4)), Status::Acces);
    assert_eq!(world.status(client, &set(named, mode(0o666))), Status::Perm);
    let give = Attributes { owner: Some(b"1002"), ..Attributes::default() };
    assert_eq!(world.status(client, &set(named, give)), Status::Perm);
    // The open belongs to the client, whichever of its users has opened it.
    assert_eq!(world.status(client, &read_inline(file, 0, 4)), Status::Ok);
    // A credential is what it was when it was registered: other groups are another one.
    let changed = act_as(&mut world, client, 1002, &[1001]);
    assert!(changed != bert && changed != anna);
    let read = dafs::Open { share_access: dafs::ShareAccess::Read, ..open(b"member") };
    let shared = world.open_with(client, &read);
    assert!(shared.is_ok(), "the group of the file may read: {shared:?}");
    assert_eq!(world.status(client, &set(named, mode(0o666))), Status::Perm);
    world.end();
}

#[test]
fn a_released_credential_is_refused_and_never_another_user() {
    let (mut world, client) = World::with_session(Setup::default());
    let anna = act_as(&mut world, client, 1001, &[]);
    let file = world.open(client, b"f");
    assert_eq!(world.status(client, &release(anna)), Status::Ok);
    let root = act_as(&mut world, client, 0, &[]);
    assert_ne!(root, anna, "a request under the old handle would run as root");
    world.clients[client].cred = anna;
    let dir = world.root();
    let commit = Request::Commit(Commit { fh: file.fh, offset: 0, count: 0 });
    let path: [&[u8]; 1] = [b"g"];
    let open = Request::Open(open_request(dir, &path, b"owner"));
    for request in [
        open,
        commit,
        read_inline(file, 0, 1),
        write_inline(file, 0, b"x"),
        set(file, size(1)),
        remove(dir, b"f", false),
        rename(dir, b"f", b"g"),
        mkdir(dir, b"d"),
        lookup(dir, &[b"f"]),
        Request::GetAttrInline(dafs::GetAttrInline { fh: dir, attributes: AttrMask::MODE }),
    ] {
        let procedure = request.procedure();
        assert_eq!(world.status(client, &request), Status::CrHandConflict, "{procedure:?}");
    }
    world.clients[client].cred = 0;
    assert_eq!(world.status(client, &lookup(dir, &[b"f"])), Status::Ok, "nothing was done");
    assert_eq!(world.status(client, &close(file)), Status::Ok);
    world.end();
}

#[test]
fn sessions_of_a_client_share_its_credentials_until_the_last_releases_them() {
    let (mut world, one) = World::with_session(Setup::default());
    let other = world.session(3, "a");
    let first = cred_of(&world.call(one, &credential(1001, &[])));
    assert_eq!(cred_of(&world.call(other, &credential(1001, &[]))), first);
    // A session has it once, however often it asks.
    assert_eq!(cred_of(&world.call(one, &credential(1001, &[]))), first);
    assert_eq!(world.status(one, &release(first)), Status::Ok);
    assert_eq!(world.status(one, &release(first)), Status::CrHandConflict, "it is the other's");
    world.clients[other].cred = first;
    assert_eq!(world.status(other, &Request::GetRootHandle), Status::Ok);
    assert_eq!(world.status(other, &release(first)), Status::Ok);
    assert_eq!(world.status(other, &Request::GetRootHandle), Status::CrHandConflict);
    world.end();
}

#[test]
fn the_credentials_of_a_session_end_with_it() {
    let limits = SessionLimits { credentials_max: 2, ..SessionLimits::default() };
    let (mut world, one) = World::with_session(Setup { limits, ..Setup::default() });
    let other = world.session(3, "a");
    let own = cred_of(&world.call(one, &credential(1001, &[])));
    assert_eq!(cred_of(&world.call(one, &credential(1001, &[]))), own);
    let shared = cred_of(&world.call(one, &credential(1002, &[])));
    assert_eq!(cred_of(&world.call(other, &credential(1002, &[]))), shared);
    assert_eq!(world.status(other, &credential(1003, &[])), Status::NoCreds);
    assert_eq!(world.status(one, &Request::Disconnect), Status::Ok);
    world.settle();
    assert!(world.clients[one].closed.is_some());
    world.clients[other].cred = own;
    assert_eq!(world.status(other, &Request::GetRootHandle), Status::CrHandConflict);
    world.clients[other].cred = shared;
    assert_eq!(world.status(other, &Request::GetRootHandle), Status::Ok);
    // There is room, and the number is none of before.
    world.clients[other].cred = 0;
    let new = cred_of(&world.call(other, &credential(1003, &[])));
    assert!(new != own && new != shared);
    world.end();
}

#[test]
fn a_session_registers_no_more_credentials_than_it_has_agreed() {
    let mut world = World::new(Setup::default());
    let options = SessionOptions { max_credentials: 2, ..SessionOptions::default() };
    let client = world.session_with(2, "a", 1, options);
    for uid in [1, 2] {
        cred_of(&world.call(client, &credential(uid, &[])));
    }
    assert_eq!(world.status(client, &credential(3, &[])), Status::NoCreds);
    cred_of(&world.call(client, &credential(2, &[])));
    world.end();
}

#[test]
fn an_export_squashes_the_root_of_a_client_that_acts_for_users() {
    for (squash, root, anna) in [
        (Squash::Root, "65534", "1001"),
        (Squash::All, "65534", "65534"),
        (Squash::None, "0", "1001"),
    ] {
        let options = ExportOptions { squash, ..ExportOptions::default() };
        let setup = Setup { exports: vec![("", options)], ..Setup::default() };
        let (mut world, client) = World::with_session(setup);
        act_as(&mut world, client, 0, &[0]);
        let file = world.open(client, b"of root");
        assert_eq!(owner(&mut world, client, file.fh), root, "{squash:?}");
        act_as(&mut world, client, 1001, &[0]);
        let file = world.open(client, b"of anna");
        assert_eq!(owner(&mut world, client, file.fh), anna, "{squash:?}");
        world.end();
    }
}
