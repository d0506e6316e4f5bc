//! Share keys: the first keyed open of a file sets the key, and the last close removes it.

use crate::common::*;
use dafs_wire::dafs::{self, Request, ShareAccess, ShareDeny, ShareKey, Status};

const KEY: ShareKey = ShareKey(Some(0xfeed_0000_0000_0001));
const OTHER: ShareKey = ShareKey(Some(2));
const NONE: ShareKey = ShareKey(None);

impl World {
    fn open_keyed(
        &mut self,
        client: usize,
        owner: &[u8],
        share_key: ShareKey,
    ) -> Result<File, Status> {
        let path = [b"f".as_slice()];
        let request = dafs::Open { share_key, ..open_request(self.root(), &path, owner) };
        self.open_with(client, &request)
    }

    fn downgrade(&mut self, client: usize, file: File, share_key: ShareKey) -> Status {
        let request = dafs::OpenDowngrade {
            fh: file.fh,
            state_id: file.id,
            share_access: ShareAccess::Read,
            share_deny: ShareDeny::None,
            share_key,
        };
        self.status(client, &Request::OpenDowngrade(request))
    }
}

#[test]
fn keyed_opens_agree_and_others_pass_by() {
    let (mut world, one, two) = World::with_two(Setup::default());
    let plain = world.open_keyed(one, b"plain", NONE).unwrap();
    let first = world.open_keyed(one, b"o", KEY).unwrap();
    assert_eq!(world.open_keyed(two, b"o", OTHER).unwrap_err(), Status::KeyMismatch);
    assert_eq!(world.open_keyed(one, b"p", OTHER).unwrap_err(), Status::KeyMismatch);
    // Zero is a key like any other.
    let zero = ShareKey(Some(0));
    assert_eq!(world.open_keyed(two, b"o", zero).unwrap_err(), Status::KeyMismatch);
    let second = world.open_keyed(two, b"o", KEY).unwrap();
    let unkeyed = world.open_keyed(two, b"plain", NONE).unwrap();
    // The key lapses with the last keyed open.
    assert_eq!(world.status(one, &close(first)), Status::Ok);
    assert_eq!(world.open_keyed(one, b"o", OTHER).unwrap_err(), Status::KeyMismatch);
    assert_eq!(world.status(two, &close(second)), Status::Ok);
    let other = world.open_keyed(one, b"o", OTHER).unwrap();
    assert_eq!(world.open_keyed(two, b"o", KEY).unwrap_err(), Status::KeyMismatch);
    for (client, file) in [(one, plain), (one, other), (two, unkeyed)] {
        assert_eq!(world.status(client, &close(file)), Status::Ok);
    }
    assert_eq!(world.service.counts().opens, 0);
    world.end();
}

#[test]
fn one_owner_has_one_key_and_a_downgrade_gives_it_up() {
    let (mut world, one, two) = World::with_two(Setup::default());
    let file = world.open_keyed(one, b"o", NONE).unwrap();
    // An open without a key cannot be reduced to one.
    assert_eq!(world.downgrade(one, file, KEY), Status::Inval);
    assert_eq!(world.open_keyed(one, b"o", KEY).unwrap().id, file.id);
    assert_eq!(world.open_keyed(one, b"o", OTHER).unwrap_err(), Status::KeyMismatch);
    // Another open of the owner without a key keeps the key.
    assert_eq!(world.open_keyed(one, b"o", NONE).unwrap().id, file.id);
    assert_eq!(world.open_keyed(two, b"o", OTHER).unwrap_err(), Status::KeyMismatch);
    assert_eq!(world.downgrade(one, file, OTHER), Status::KeyMismatch);
    assert_eq!(world.downgrade(one, file, KEY), Status::Ok);
    assert_eq!(world.open_keyed(two, b"o", OTHER).unwrap_err(), Status::KeyMismatch);
    assert_eq!(world.downgrade(one, file, NONE), Status::Ok);
    let theirs = world.open_keyed(two, b"o", OTHER).unwrap();
    assert_eq!(world.open_keyed(one, b"o", KEY).unwrap_err(), Status::KeyMismatch);
    // A closed open leaves no key, and cannot be named any more.
    assert_eq!(world.status(two, &close(theirs)), Status::Ok);
    assert_eq!(world.downgrade(two, theirs, OTHER), Status::StaleStateId);
    world.open_keyed(one, b"o", KEY).unwrap();
    world.end();
}

#[test]
fn shares_are_checked_before_keys_and_a_refusal_leaves_no_key() {
    let (mut world, one, two) = World::with_two(Setup::default());
    let keyed = |world: &World, share_key, share_deny| dafs::Open {
        share_key,
        share_deny,
        ..open_request(world.root(), F, b"o")
    };
    let denying = keyed(&world, KEY, ShareDeny::Write);
    let first = world.open_with(one, &denying).unwrap();
    let both_wrong = keyed(&world, OTHER, ShareDeny::None);
    assert_eq!(world.open_with(two, &both_wrong).unwrap_err(), Status::Denied);
    let denied = keyed(&world, KEY, ShareDeny::None);
    assert_eq!(world.open_with(two, &denied).unwrap_err(), Status::Denied);
    assert_eq!(world.status(one, &close(first)), Status::Ok);
    // The same holds for an open that fails in the store.
    let gone = [b"missing".as_slice()];
    let missing = dafs::Open { create: None, ..open_request(world.root(), &gone, b"o") };
    let missing = dafs::Open { share_key: KEY, ..missing };
    assert_eq!(world.open_with(two, &missing).unwrap_err(), Status::NoEnt);
    world.open_with(two, &both_wrong).unwrap();
    world.end();
}

#[test]
fn the_key_of_a_client_that_is_gone_gives_way() {
    let (mut world, silent, alive) = World::with_two(Setup::default());
    world.open_keyed(silent, b"o", KEY).unwrap();
    world.clients.remove(silent);
    let alive = alive - 1;
    world.settle();
    assert_eq!(world.open_keyed(alive, b"o", OTHER).unwrap_err(), Status::KeyMismatch);
    world.pass(LEASE / 2);
    assert_eq!(world.status(alive, &Request::Null), Status::Ok);
    world.pass(LEASE / 2 + std::time::Duration::from_secs(1));
    world.open_keyed(alive, b"o", OTHER).unwrap();
    world.end();
}
