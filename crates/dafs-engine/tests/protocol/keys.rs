//! Share keys: the first keyed open of a file sets the key, and the last close removes it. A strict
//! key also excludes callers without one.

use crate::cancel::{WINDOW, chunk, post, reported, submit, transfer};
use crate::common::*;
use dafs_service::{ExportOptions, SharedKeys};
use dafs_wire::dafs::{self, Request, ShareAccess, ShareDeny, ShareKey, StateId, Status};
use std::time::Duration;

const KEY: ShareKey = ShareKey::Both(0xfeed_0000_0000_0001);
const OTHER: ShareKey = ShareKey::Both(2);
const STRICT: ShareKey = ShareKey::XStrict(0xfeed_0000_0000_0001);
const NONE: ShareKey = ShareKey::None;

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
    let zero = ShareKey::Both(0);
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
    world.pass(LEASE / 2 + Duration::from_secs(1));
    world.open_keyed(alive, b"o", OTHER).unwrap();
    world.end();
}

fn strict_export() -> Setup {
    let options = ExportOptions { shared_keys: SharedKeys::Strict, ..ExportOptions::default() };
    Setup { exports: vec![("", options)], ..Setup::default() }
}

/// Every way of a caller without the key to the file's data is closed.
fn assert_excluded(world: &mut World, client: usize, fh: dafs::FileHandle) {
    let anonymous = File { fh, id: StateId::ZERO };
    for request in [
        read_inline(anonymous, 0, 1),
        write_inline(anonymous, 0, b"x"),
        append_inline(anonymous, dafs::Stability::DataSync, b"x"),
        set(anonymous, size(0)),
    ] {
        let status = world.status(client, &request);
        assert_eq!(status, Status::KeyMismatch, "{}", request.procedure().name());
    }
    let memory = world.clients[client].memory_of(b"x");
    let (chunks, buffers) = (
        [dafs::FileChunk { offset: 0, byte_count: 1, cache_hint: dafs::HintWord::NONE }],
        [memory.direct(0, 1)],
    );
    let direct = Request::WriteDirect(write_direct(anonymous, 0, 1, &buffers));
    assert_eq!(world.status(client, &direct), Status::KeyMismatch);
    for rw_flag in [dafs::ReadWrite::Read, dafs::ReadWrite::Write] {
        let request = dafs::ReadWriteRequest {
            fh,
            request_id: 1,
            state_id: StateId::ZERO,
            rw_flag,
            chunks: dafs::Seq::new(&chunks),
            buffers: dafs::Seq::new(&buffers),
            direct_checksum: dafs::Checksum::ZERO,
        };
        let requests = [request];
        let batch = dafs::BatchSubmit {
            requests: dafs::Seq::new(&requests),
            usec_window: 0,
            num_completions: 0,
            synchronous: true,
        };
        let answer = world.call(client, &Request::BatchSubmit(batch));
        let dafs::Reply::BatchSubmit(reply) = answer.reply().unwrap() else { panic!() };
        let done: Vec<_> = reply.completions.iter().map(|done| done.status).collect();
        assert_eq!(done, [Status::KeyMismatch]);
    }
    let by_handle = dafs::Open {
        claim: dafs::OpenClaim::Null { dir: fh, path: dafs::Path::new(&[]) },
        create: None,
        ..open_request(fh, &[], b"by handle")
    };
    assert_eq!(world.open_with(client, &by_handle).unwrap_err(), Status::KeyMismatch);
    let cutting = dafs::Attributes { object_size: Some(0), ..dafs::Attributes::default() };
    let cutting = dafs::Open {
        create: Some(dafs::CreateMode::Unchecked { attributes: cutting }),
        share_access: ShareAccess::Read,
        ..open_request(world.root(), F, b"cutting")
    };
    assert_eq!(world.open_with(client, &cutting).unwrap_err(), Status::KeyMismatch);
}

#[test]
fn a_strict_key_excludes_callers_without_it() {
    let (mut world, one, two) = World::with_two(Setup::default());
    let first = world.open_keyed(one, b"o", STRICT).unwrap();
    world.write(one, first, 0, b"data");
    assert_eq!(world.open_keyed(two, b"o", NONE).unwrap_err(), Status::KeyMismatch);
    assert_eq!(world.open_keyed(two, b"o", OTHER).unwrap_err(), Status::KeyMismatch);
    assert_excluded(&mut world, two, first.fh);
    // Neither the client that has the key nor its owner may do without.
    assert_eq!(world.open_keyed(one, b"other", NONE).unwrap_err(), Status::KeyMismatch);
    assert_eq!(world.open_keyed(one, b"o", NONE).unwrap_err(), Status::KeyMismatch);
    assert_excluded(&mut world, one, first.fh);
    // Nothing that was refused has left a trace.
    assert_eq!(world.read(one, first), b"data");
    // Opens with the key share the file, strict or not.
    let second = world.open_keyed(two, b"o", KEY).unwrap();
    assert_eq!(world.read(two, second), b"data");
    // The strict open ends, and the advisory one excludes only other keys.
    assert_eq!(world.status(one, &close(first)), Status::Ok);
    assert_eq!(world.open_keyed(one, b"o", OTHER).unwrap_err(), Status::KeyMismatch);
    let plain = world.open_keyed(one, b"plain", NONE).unwrap();
    for (client, file) in [(one, plain), (two, second)] {
        assert_eq!(world.status(client, &close(file)), Status::Ok);
    }
    assert_eq!(world.service.counts().opens, 0);
    world.end();
}

/// A request without an open that waits when a strict key comes does nothing afterwards.
#[test]
fn a_strict_key_excludes_requests_that_came_before_it() {
    both_ways(|maps| {
        let (mut world, one) = World::with_session(Setup { maps, ..Setup::default() });
        let options = dafs::SessionOptions::default();
        let (two, channel) = with_channel(&mut world, 3, "b", options);
        let file = world.open(one, b"f");
        world.write(one, file, 0, &[1; 100]);
        assert_eq!(world.status(one, &close(file)), Status::Ok);
        let anonymous = File { fh: file.fh, id: StateId::ZERO };
        let memory = world.clients[two].memory_of(&[9; 100]);
        let (range, buffer) = (chunk(0, 50), [memory.direct(0, 50)]);
        let batch = [dafs::ReadWrite::Read, dafs::ReadWrite::Write];
        let batch: Vec<_> = (1..)
            .zip(batch)
            .map(|(id, way)| transfer(id, anonymous, way, &range, &buffer))
            .collect();
        assert_eq!(submit(&mut world, two, &batch, WINDOW), Status::Ok);
        world.stall();
        let stable = dafs::Stability::FileSync;
        let requests = [
            write_stable(anonymous, 0, b"x", stable),
            Request::WriteDirect(write_direct(anonymous, 0, 50, &buffer)),
            append_inline(anonymous, stable, b"x"),
            read_inline(anonymous, 0, 50),
            read_direct(anonymous, 0, 50, &buffer),
        ];
        let posted = requests.map(|request| post(&mut world, two, &request).0);
        assert_eq!(world.jobs(), 5);
        let keyed = world.open_keyed(one, b"o", STRICT).unwrap();
        world.release();
        let statuses = posted.map(|stream| world.wait(two, stream).unwrap().status());
        // A read is repeated, and gets the reason.
        let (excluded, again) = (Status::KeyMismatch, Status::Delay);
        assert_eq!(statuses, [excluded, excluded, excluded, again, again]);
        world.pass(WINDOW + Duration::from_secs(1));
        assert_eq!(reported(&mut world, channel), [(1, excluded), (2, excluded)]);
        assert_eq!(memory.bytes(), [9; 100]);
        assert_eq!(world.read(one, keyed), [1; 100]);
        world.end();
    });
}

#[test]
fn a_strict_key_is_refused_while_the_file_is_open_without_it() {
    let (mut world, one, two) = World::with_two(Setup::default());
    let plain = world.open_keyed(one, b"plain", NONE).unwrap();
    assert_eq!(world.open_keyed(two, b"o", STRICT).unwrap_err(), Status::KeyMismatch);
    // The refused open excludes nobody.
    let more = world.open_keyed(two, b"plain", NONE).unwrap();
    assert_eq!(world.status(two, &close(more)), Status::Ok);
    // The owner's own open gets the key.
    let same = world.open_keyed(one, b"plain", STRICT).unwrap();
    assert_eq!(same.id, plain.id);
    assert_eq!(world.open_keyed(two, b"o", NONE).unwrap_err(), Status::KeyMismatch);
    world.open_keyed(two, b"o", STRICT).unwrap();
    world.end();
}

#[test]
fn a_downgrade_relaxes_a_strict_key_and_never_begins_one() {
    let (mut world, one, two) = World::with_two(Setup::default());
    let first = world.open_keyed(one, b"o", STRICT).unwrap();
    let second = world.open_keyed(two, b"o", KEY).unwrap();
    // The key cannot be given up while another open demands it.
    assert_eq!(world.downgrade(two, second, NONE), Status::KeyMismatch);
    assert_eq!(world.downgrade(two, second, STRICT), Status::Inval);
    assert_eq!(world.downgrade(one, first, KEY), Status::Ok);
    let plain = world.open_keyed(two, b"plain", NONE).unwrap();
    assert_eq!(world.downgrade(one, first, STRICT), Status::Inval);
    assert_eq!(world.downgrade(two, second, NONE), Status::Ok);
    assert_eq!(world.status(two, &close(plain)), Status::Ok);
    world.end();
}

#[test]
fn an_export_makes_every_key_strict() {
    let (mut world, one, two) = World::with_two(strict_export());
    // Without a key in force all is as ever.
    let plain = world.open_keyed(two, b"plain", NONE).unwrap();
    assert_eq!(world.open_keyed(one, b"o", KEY).unwrap_err(), Status::KeyMismatch);
    assert_eq!(world.status(two, &close(plain)), Status::Ok);
    let first = world.open_keyed(one, b"o", KEY).unwrap();
    assert_excluded(&mut world, two, first.fh);
    assert_eq!(world.open_keyed(two, b"o", NONE).unwrap_err(), Status::KeyMismatch);
    // Its rule stands over a client's wish to relax it.
    assert_eq!(world.downgrade(one, first, KEY), Status::Ok);
    assert_excluded(&mut world, two, first.fh);
    let second = world.open_keyed(two, b"o", KEY).unwrap();
    assert_eq!(world.status(one, &close(first)), Status::Ok);
    assert_excluded(&mut world, one, second.fh);
    assert_eq!(world.status(two, &close(second)), Status::Ok);
    let anonymous = File { fh: second.fh, id: StateId::ZERO };
    assert_eq!(world.status(one, &write_inline(anonymous, 0, b"x")), Status::Ok);
    world.end();
}

#[test]
fn every_number_is_a_strict_key_of_its_own() {
    let (mut world, one, two) = World::with_two(Setup::default());
    for key in [0, 1, u64::from(u32::MAX), 1 << 32, u64::MAX - 1, u64::MAX] {
        let first = world.open_keyed(one, b"o", ShareKey::XStrict(key)).unwrap();
        for wrong in [key ^ 1, key ^ 1 << 63, key.swap_bytes() ^ 1] {
            let open = world.open_keyed(two, b"o", ShareKey::XStrict(wrong));
            assert_eq!(open.unwrap_err(), Status::KeyMismatch, "{wrong:x} for {key:x}");
        }
        assert_eq!(world.open_keyed(two, b"o", NONE).unwrap_err(), Status::KeyMismatch);
        let second = world.open_keyed(two, b"o", ShareKey::XStrict(key)).unwrap();
        assert_eq!(world.status(one, &close(first)), Status::Ok);
        assert_eq!(world.status(two, &close(second)), Status::Ok);
    }
    world.end();
}

#[test]
fn many_holders_keep_one_key_until_the_last_has_gone() {
    let (mut world, one, two) = World::with_two(Setup::default());
    let owners: Vec<String> = (0..200).map(|number| number.to_string()).collect();
    let open = |world: &mut World, owner: &String| {
        world.open_keyed(one, owner.as_bytes(), STRICT).unwrap()
    };
    let mut files: Vec<File> = owners.iter().map(|owner| open(&mut world, owner)).collect();
    while let Some(file) = files.pop() {
        assert_eq!(world.open_keyed(two, b"o", NONE).unwrap_err(), Status::KeyMismatch);
        assert_eq!(world.open_keyed(two, b"o", OTHER).unwrap_err(), Status::KeyMismatch);
        assert_eq!(world.status(one, &close(file)), Status::Ok);
    }
    world.open_keyed(two, b"o", OTHER).unwrap();
    world.end();
}

#[test]
fn a_strict_key_ends_with_the_lease_of_its_holder() {
    let (mut world, silent, alive) = World::with_two(Setup::default());
    let file = world.open_keyed(silent, b"o", STRICT).unwrap();
    world.clients.remove(silent);
    let alive = alive - 1;
    world.settle();
    assert_excluded(&mut world, alive, file.fh);
    world.pass(LEASE / 2);
    assert_eq!(world.status(alive, &Request::Null), Status::Ok);
    world.pass(LEASE / 2 + Duration::from_secs(1));
    let anonymous = File { fh: file.fh, id: StateId::ZERO };
    assert_eq!(world.status(alive, &write_inline(anonymous, 0, b"x")), Status::Ok);
    world.open_keyed(alive, b"o", NONE).unwrap();
    world.end();
}

#[test]
fn an_open_that_fails_in_the_store_excludes_nobody() {
    let (mut world, one, two) = World::with_two(Setup::default());
    let gone = [b"missing".as_slice()];
    let missing = dafs::Open { create: None, ..open_request(world.root(), &gone, b"o") };
    let missing = dafs::Open { share_key: STRICT, ..missing };
    assert_eq!(world.open_with(one, &missing).unwrap_err(), Status::NoEnt);
    let made = world.open_with(two, &open_request(world.root(), &gone, b"o")).unwrap();
    let mut others = dafs::Open { share_key: STRICT, ..open_request(world.root(), &gone, b"o") };
    others.share_deny = ShareDeny::Write;
    assert_eq!(world.open_with(one, &others).unwrap_err(), Status::Denied);
    world.write(two, made, 0, b"x");
    world.end();
}
