//! X_RECLAIM_COMPLETE: a client says that it has reclaimed all that it held before a restart.

use crate::common::*;
use dafs_wire::dafs::{self, FsAttrMask, Reply, Request, Status};
use std::time::Duration;

/// Opens a file that did not exist before.
fn open_new(world: &mut World, client: usize) -> Status {
    let path = [b"new".as_slice()];
    let request = open_request(world.root(), &path, b"owner");
    world.status(client, &Request::Open(request))
}

#[test]
fn others_get_new_state_when_a_client_says_that_it_has_reclaimed() {
    let recorded = Recorded::default();
    let setup = || Setup { records: true, recorded: recorded.clone(), ..Setup::default() };
    let (world, _, file) = World::with_file(setup());
    let stores = world.stores.clone();
    // The server crashes, so no drop may run.
    std::mem::forget(world);
    let mut world = World::new(Setup { stores, run: 8, ..setup() });
    let (client, other) = (world.session(2, "a"), world.session(3, "b"));
    assert_eq!(open_new(&mut world, other), Status::Grace);
    let delegate_type = dafs::DelegationType::None;
    let claim = dafs::OpenClaim::Previous { fh: file.fh, delegate_type };
    let reclaim = dafs::Open { claim, create: None, ..open_request(file.fh, F, b"owner") };
    let again = world.open_with(client, &reclaim).unwrap();
    // It asks for nothing new.
    assert_eq!(world.read(client, again), b"");
    world.pass(Duration::from_secs(1));
    assert_eq!(open_new(&mut world, other), Status::Grace);
    // A client that is not awaited has nothing to say.
    assert_eq!(world.status(other, &Request::XReclaimComplete), Status::Ok);
    world.pass(Duration::from_secs(1));
    assert_eq!(open_new(&mut world, other), Status::Grace);
    // Twice, as after a lost reply.
    for _ in 0..2 {
        let answer = world.call(client, &Request::XReclaimComplete);
        assert_eq!(answer.reply(), Ok(Reply::XReclaimComplete));
    }
    world.pass(Duration::from_secs(1));
    assert_eq!(open_new(&mut world, other), Status::Ok);
    assert_eq!(world.status(client, &Request::XReclaimComplete), Status::Ok);
    assert_eq!(world.open_with(client, &reclaim).unwrap_err(), Status::Expired);
    world.end();
}

#[test]
fn the_end_of_reclaims_is_offered() {
    let (mut world, client) = World::with_session(Setup::default());
    let attributes = FsAttrMask::SUPPORTED_FSATTR | FsAttrMask::X_RECLAIM_COMPLETE;
    let ask = Request::GetFsAttr(dafs::GetFsAttr { fh: world.root(), attributes });
    let answer = world.call(client, &ask);
    let Reply::GetFsAttr(reply) = answer.reply().unwrap() else { panic!() };
    assert_eq!(reply.attributes.x_reclaim_complete, Some(true));
    let supported = FsAttrMask(reply.attributes.supported_fsattr.unwrap());
    assert!(supported.contains(FsAttrMask::X_RECLAIM_COMPLETE));
    // Without a restart it says nothing.
    assert_eq!(world.status(client, &Request::XReclaimComplete), Status::Ok);
    world.end();
}
