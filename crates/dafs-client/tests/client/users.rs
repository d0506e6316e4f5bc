//! Several users in one session: the core against a scripted server, and the client against a real
//! one.

use crate::fake::requests::{self, create, opened, recovering, status};
use crate::fake::{Answer, ROOT, World, pattern};
use crate::served::{Served, status as refusal};
use dafs_client::core::{CredentialIds, Done, Piece, Refused, SessionConfig, Stage};
use dafs_client::{
    AccessMask, Create, OpenOptions, Procedure, SetAttributes, Stability, Status, TransportChoice,
    User, acting_as,
};
use dafs_wire::dafs::{Close, OpenClaim, Request, ShareDeny, StateId};
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex};

fn user(uid: u32) -> Option<User> {
    Some(User::new(uid, uid, &[]))
}

fn world(config: SessionConfig) -> World {
    World::open_with(config, |server| server.file = pattern(1000))
}

/// Starts a request, as a user.
fn ask(world: &mut World, as_user: Option<User>, request: &Request<'_>) -> u64 {
    world.core.act_as(as_user);
    world.ask(request)
}

fn ask_and_wait(world: &mut World, as_user: Option<User>, request: &Request<'_>) -> Status {
    let tag = ask(world, as_user, request);
    world.run_all(&[tag]);
    status(&world.done[&tag])
}

/// The users of all requests of a procedure, in the order in which they came; 0 for the session's.
fn users_of(world: &World, procedure: Procedure) -> Vec<u32> {
    let seen = world.server.seen.iter().filter(|(seen, ..)| *seen == procedure);
    seen.map(|(_, _, handle)| *world.server.credentials.given.get(handle).unwrap_or(&0)).collect()
}

#[test]
fn each_request_names_its_user_who_is_registered_once() {
    for own in [None, Some(CredentialIds { uid: 7, gid: 7, groups: Vec::new() })] {
        let of_session = own.as_ref().map_or(0, |own| own.uid);
        let mut world = world(SessionConfig { credential: own, ..recovering() });
        let before = world.server.count(Procedure::RegisterCred);
        let wanted = [1, 2, of_session, 1, 1, 2, 2, of_session];
        // All at once: a call waits for a registration, and those behind it wait, too.
        let mut tags = Vec::new();
        for (number, &uid) in wanted.iter().enumerate() {
            let named = user(uid).filter(|_| uid != of_session);
            tags.push(ask(&mut world, named, &create(format!("{number}").as_bytes())));
        }
        world.run_all(&tags);
        assert_eq!(users_of(&world, Procedure::Create), wanted);
        assert_eq!(world.server.count(Procedure::RegisterCred) - before, 2);
        let memory = world.memory(&[0; 8]);
        for uid in [1, 2] {
            world.core.act_as(user(uid));
            world.read_and_wait(Piece::new(&memory, 0, 8).unwrap(), 0);
            world.core.act_as(user(uid));
            world.write_and_wait(Piece::new(&memory, 0, 8).unwrap(), 0);
            // It holds for one submission.
            assert_eq!(
                ask_and_wait(&mut world, None, &create(b"own")),
                match uid {
                    1 => Status::Ok,
                    _ => Status::Exist,
                }
            );
        }
        assert_eq!(users_of(&world, Procedure::ReadInline), [1, 2]);
        assert_eq!(users_of(&world, Procedure::WriteInline), [1, 2]);
        assert_eq!(users_of(&world, Procedure::Create)[wanted.len()..], [of_session; 2]);
        assert_eq!(world.server.count(Procedure::RegisterCred) - before, 2);
    }
}

#[test]
fn a_client_that_is_not_trusted_acts_for_nobody() {
    let mut world = World::open_with(recovering(), |server| server.trusted = false);
    let seen = world.server.seen.len();
    world.core.act_as(user(1));
    let memory = world.memory(&[0; 8]);
    let refused = world.try_read(Piece::new(&memory, 0, 8).unwrap(), 0);
    assert!(matches!(refused, Err(Refused::NotTrusted)), "{refused:?}");
    assert_eq!(world.server.seen.len(), seen, "nothing was sent");
    // The user of a refused submission is not that of the next one.
    assert_eq!(ask_and_wait(&mut world, None, &create(b"name")), Status::Ok);
    assert_eq!(users_of(&world, Procedure::Create), [0]);
}

#[test]
fn a_revoked_credential_is_registered_anew_and_its_request_sent_once_more() {
    for own in [None, Some(CredentialIds { uid: 1, gid: 1, groups: Vec::new() })] {
        let named = if own.is_none() { user(1) } else { None };
        let mut world = world(SessionConfig { credential: own, ..recovering() });
        assert_eq!(ask_and_wait(&mut world, named.clone(), &create(b"one")), Status::Ok);
        world.server.credentials.uids.clear();
        let tags: Vec<u64> = ["two", "three", "four"]
            .map(|name| ask(&mut world, named.clone(), &create(name.as_bytes())))
            .to_vec();
        world.run_all(&tags);
        for tag in tags {
            assert_eq!(status(&world.done[&tag]), Status::Ok, "executed once");
        }
        let memory = world.memory(&[0; 8]);
        world.server.credentials.uids.clear();
        world.core.act_as(named.clone());
        let tag = world.read_and_wait(Piece::new(&memory, 0, 8).unwrap(), 0);
        assert!(matches!(world.done[&tag], Done::Read { bytes: 8, .. }));
        assert_eq!(world.server.credentials.uids.len(), 1);
        // A server that forgets each credential at once is asked no more than twice.
        world.server.script = Box::new(|_, request| match request {
            Request::Create(_) => Answer::Status(Status::CrHandConflict),
            _ => Answer::File,
        });
        let before = world.server.count(Procedure::Create);
        assert_eq!(ask_and_wait(&mut world, named, &create(b"five")), Status::CrHandConflict);
        assert_eq!(world.server.count(Procedure::Create) - before, 2);
    }
}

#[test]
fn the_table_of_the_server_never_overflows() {
    // The server says how many it keeps, or lets the client find out.
    for agreed in [0, 3] {
        let mut world = World::open_with(recovering(), |server| {
            server.credentials.max = 3;
            server.credentials.agreed = agreed;
        });
        let mut tags = Vec::new();
        for round in 0..4 {
            for uid in 1..=6 {
                let name = format!("{round} {uid}");
                tags.push(ask(&mut world, user(uid), &create(name.as_bytes())));
            }
        }
        world.run_all(&tags);
        for tag in &tags {
            assert_eq!(status(&world.done[tag]), Status::Ok);
        }
        let wanted: Vec<u32> = (0..4).flat_map(|_| 1..=6).collect();
        assert_eq!(users_of(&world, Procedure::Create), wanted);
        assert_eq!(world.server.credentials.uids.len(), 3);
        // A user that is used again and again stays.
        let registered = world.server.count(Procedure::RegisterCred);
        for uid in [6, 5, 6, 7, 6, 8, 6, 9, 6] {
            ask_and_wait(&mut world, user(uid), &create(b"name"));
        }
        assert_eq!(world.server.count(Procedure::RegisterCred) - registered, 3);
    }
}

#[test]
fn a_user_that_the_server_refuses_delays_no_other() {
    let mut world = world(recovering());
    world.server.credentials.refused = vec![2];
    let memory = world.memory(&[0; 8]);
    let piece = Piece::new(&memory, 0, 8).unwrap();
    let first = ask(&mut world, user(2), &create(b"one"));
    world.core.act_as(user(2));
    let read = world.read(piece.clone(), 0);
    world.core.act_as(user(2));
    let write = world.write(piece, 0);
    let other = ask(&mut world, user(1), &create(b"two"));
    world.run_all(&[first, read, write, other]);
    for tag in [first, read, write] {
        assert_eq!(status(&world.done[&tag]), Status::NotAuthorized, "{:?}", world.done[&tag]);
    }
    assert_eq!(status(&world.done[&other]), Status::Ok);
    assert_eq!(users_of(&world, Procedure::Create), [1]);
    // The next call tries again.
    world.server.credentials.refused.clear();
    assert_eq!(ask_and_wait(&mut world, user(2), &create(b"three")), Status::Ok);
}

#[test]
fn a_table_that_others_have_filled_refuses_users_only_as_long_as_it_is_full() {
    let own = CredentialIds { uid: 7, gid: 7, groups: Vec::new() };
    let config = SessionConfig { credential: Some(own), ..recovering() };
    let mut world = World::open_with(config, |server| server.credentials.max = 1);
    assert_eq!(ask_and_wait(&mut world, user(1), &create(b"one")), Status::NoCreds);
    assert_eq!(ask_and_wait(&mut world, None, &create(b"two")), Status::Ok);
    // Another session of this client has ended.
    world.server.credentials.max = 2;
    assert_eq!(ask_and_wait(&mut world, user(1), &create(b"three")), Status::Ok);
    assert_eq!(users_of(&world, Procedure::Create), [7, 1]);
}

#[test]
fn a_user_of_too_many_groups_ends_no_session() {
    let mut world = World::open_with(recovering(), |server| server.request_bytes_max = 4096);
    let groups: Vec<u32> = (0..1024).collect();
    let many = Some(User::new(1, 1, &groups));
    assert_eq!(ask_and_wait(&mut world, many, &create(b"one")), Status::NoCreds);
    assert_eq!(ask_and_wait(&mut world, user(1), &create(b"two")), Status::Ok);
    assert_eq!(world.core.stage(), Stage::Ready);
}

#[test]
fn a_connection_lost_during_a_registration_loses_no_call() {
    let mut world = world(recovering());
    world.server.script = Box::new(|_, request| match request {
        Request::RegisterCred(_) => Answer::Silence,
        _ => Answer::File,
    });
    let tags = [1, 2].map(|uid| ask(&mut world, user(uid), &create(format!("{uid}").as_bytes())));
    world.run(|world| world.server.count(Procedure::RegisterCred) > 0);
    world.server.script = Box::new(|_, _| Answer::File);
    world.lose_and_notice();
    world.run_all(&tags);
    for tag in tags {
        assert_eq!(status(&world.done[&tag]), Status::Ok);
    }
    assert_eq!(users_of(&world, Procedure::Create), [1, 2]);
}

#[test]
fn another_connection_begins_without_users() {
    for own in [None, Some(CredentialIds { uid: 7, gid: 7, groups: Vec::new() })] {
        let of_session = own.as_ref().map_or(0, |own| own.uid);
        let mut world = world(SessionConfig { credential: own, ..recovering() });
        for (uid, name) in [(1, b"one"), (2, b"two")] {
            assert_eq!(ask_and_wait(&mut world, user(uid), &create(name)), Status::Ok);
        }
        // A call of the user that is registered last is lost with the connection.
        world.server.script = Box::new(|_, request| match request {
            Request::Create(_) => Answer::Silence,
            _ => Answer::File,
        });
        let lost = ask(&mut world, user(2), &create(b"lost"));
        world.run(|world| world.server.count(Procedure::Create) == 3);
        world.server.script = Box::new(|_, _| Answer::File);
        world.lose_and_notice();
        let more = [Some(1), None, Some(2)].map(|uid| {
            let name = format!("of {uid:?}");
            ask(&mut world, uid.and_then(user), &create(name.as_bytes()))
        });
        world.run_all(&[&[lost][..], &more].concat());
        for tag in [lost].into_iter().chain(more) {
            assert_eq!(status(&world.done[&tag]), Status::Ok);
        }
        // No request has named a handle of before: it might be another user's by now.
        assert_eq!(users_of(&world, Procedure::Create), [1, 2, 2, 2, 1, of_session, 2]);
    }
}

#[test]
fn after_a_restart_each_user_opens_its_files_again() {
    let mut world = world(recovering());
    world.server.past.names_opens = true;
    let open = |uid: u32| {
        let owner = format!("of {uid}");
        let named = user(uid).filter(|_| uid != 0);
        let tag = ask(&mut world, named, &requests::open(owner.as_bytes(), ShareDeny::Write));
        world.run_all(&[tag]);
        opened(&world.done[&tag])
    };
    let names: Vec<StateId> = [0, 1, 2, 3].map(open).to_vec();
    world.server.credentials.refused = vec![3];
    // The handles of users in the requests that reclaim their opens.
    let reclaims = Arc::new(Mutex::new(Vec::new()));
    let seen = reclaims.clone();
    world.server.script = Box::new(move |header, request| {
        if let Request::Open(open) = request
            && let OpenClaim::Previous { .. } = open.claim
        {
            let owner = String::from_utf8(open.owner.to_vec()).unwrap();
            seen.lock().unwrap().push((owner, header.cred_handle.0));
        }
        Answer::File
    });
    world.server.restart(true);
    world.run(|world| world.core.stage() == Stage::Recovering);
    world.run(|world| world.core.stage() == Stage::Ready);
    let mut reclaims = reclaims.lock().unwrap().clone();
    reclaims.sort();
    let given = &world.server.credentials.given;
    let users: Vec<_> = reclaims
        .iter()
        .map(|(owner, handle)| (&owner[..], *given.get(handle).unwrap_or(&0)))
        .collect();
    assert_eq!(users, [("of 0", 0), ("of 1", 1), ("of 2", 2)]);
    // The open of a user that is refused now is lost, and no other one.
    let mut close = |state_id| {
        let request = Request::Close(Close { fh: ROOT, state_id });
        ask_and_wait(&mut world, None, &request)
    };
    assert_eq!(close(names[3]), Status::StaleStateId);
    assert_eq!(names[..3].iter().map(|name| close(*name)).collect::<Vec<_>>(), [Status::Ok; 3]);
}

fn may_change_users() -> bool {
    let is_root = std::fs::metadata("/proc/self").unwrap().uid() == 0;
    if !is_root {
        println!("needs root, so that the server can act as several users");
    }
    is_root
}

/// Users of one session at a real server, which makes and opens files as each of them.
#[test]
fn a_server_judges_each_call_by_its_user() {
    if !may_change_users() {
        return;
    }
    let served = Served::new();
    std::os::unix::fs::chown(served.path(), Some(0), Some(0)).unwrap();
    let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o1777);
    std::fs::set_permissions(served.path(), everybody).unwrap();
    let (anna, bert) = (User::new(1234, 1234, &[5]), User::new(1235, 1235, &[5, 6]));
    for (number, transport) in
        [TransportChoice::Shm, TransportChoice::Iwarp].into_iter().enumerate()
    {
        let client = served.client(transport);
        assert!(client.session().trusted);
        let name = format!("private {number}").into_bytes();
        let new = OpenOptions::read_write().create(Create::New).mode(0o600);
        let file = acting_as(Some(&anna), || client.open(&name, &new)).unwrap();
        file.write_at(b"of anna", 0, Stability::Unstable).unwrap();
        let found = client.attributes(file.handle()).unwrap();
        assert_eq!((found.owner.id(), found.group.id()), (Some(1234), Some(1234)));
        // Another user neither opens nor changes it, nor takes its name in a sticky directory.
        acting_as(Some(&bert), || {
            let refused = client.open(&name, &OpenOptions::read());
            assert_eq!(refusal(refused), Status::Acces);
            let change = SetAttributes::mode(0o666);
            assert_eq!(refusal(client.set_attributes(file.handle(), &change)), Status::Perm);
            let give = SetAttributes { owner: Some(1235), ..SetAttributes::default() };
            assert_eq!(refusal(client.set_attributes(file.handle(), &give)), Status::Perm);
            let taken = refusal(client.remove(&client.root(), &name));
            assert!(matches!(taken, Status::Perm | Status::Acces), "{taken:?}");
            let wanted = AccessMask::READ | AccessMask::MODIFY;
            assert!(client.access(file.handle(), wanted).unwrap().is_empty());
        });
        // Its group may.
        let give = SetAttributes { group: Some(5), mode: Some(0o640), ..SetAttributes::default() };
        acting_as(Some(&anna), || client.set_attributes(file.handle(), &give)).unwrap();
        let shared = acting_as(Some(&bert), || client.open(&name, &OpenOptions::read())).unwrap();
        let mut content = [0; 100];
        let bytes = shared.read_at(&mut content, 0).unwrap();
        assert_eq!(&content[..bytes], b"of anna");
        let stranger = User::new(1235, 1235, &[6]);
        let refused = acting_as(Some(&stranger), || client.open(&name, &OpenOptions::read()));
        assert_eq!(refusal(refused), Status::Acces, "without the group");
        acting_as(Some(&anna), || client.remove(&client.root(), &name)).unwrap();
    }
}

#[test]
fn files_of_users_outlive_a_restart_of_a_real_server() {
    if !may_change_users() {
        return;
    }
    let mut served = Served::new();
    let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(served.path(), everybody).unwrap();
    let client = served.client(TransportChoice::Iwarp);
    let anna = User::new(1234, 1234, &[]);
    let new = OpenOptions::read_write().create(Create::New).mode(0o600);
    let file = acting_as(Some(&anna), || client.open(b"private", &new)).unwrap();
    served.stop();
    served.start();
    file.write_at(b"later", 0, Stability::FileSync).unwrap();
    assert!(client.stats().restarts > 0, "{:?}", client.stats());
    assert_eq!(served.content("private"), b"later");
    let bert = User::new(1235, 1235, &[]);
    let refused = acting_as(Some(&bert), || client.open(b"private", &OpenOptions::read()));
    assert_eq!(refusal(refused), Status::Acces);
    let again = acting_as(Some(&anna), || client.open(b"private", &OpenOptions::read()));
    assert!(again.is_ok(), "{again:?}");
}
