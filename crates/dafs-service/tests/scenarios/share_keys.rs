//! Strict share keys: the right to exclude others, and callers that were admitted before.

use crate::common::*;
use dafs_service::{
    Caller, Client, ExportOptions, OpenHow, OpenRequest, Opened, Result, ServiceError, ShareKey,
    SharedKeys, StateRef,
};
use dafs_store::{CreateHow, Cred, SetAttr, StoreError};
use std::sync::Arc;

const STRICT: Option<ShareKey> = Some(ShareKey { key: 7, strict: true });
const ADVISORY: Option<ShareKey> = Some(ShareKey { key: 7, strict: false });

fn strict_export() -> ExportOptions {
    ExportOptions { shared_keys: SharedKeys::Strict, ..ExportOptions::default() }
}

/// Opens the file "f" for reading, with the rights of a user.
fn open_as(world: &World, client: &Arc<Client>, uid: u32, key: Option<ShareKey>) -> Result<Opened> {
    let cred = Cred::new(uid, uid);
    let how = OpenHow::Existing;
    let request = OpenRequest { share_key: key, how, ..world.plain("f", "o", READ) };
    world.service.opens.open(Caller { cred: &cred, ..world.caller(client) }, &request)
}

/// Makes the file "f" of user 5, that all may read.
fn make(world: &World, client: &Arc<Client>) {
    let attr = SetAttr { mode: Some(0o644), uid: Some(5), ..SetAttr::default() };
    let how = OpenHow::Create(CreateHow::Guarded, attr);
    let request = OpenRequest { how, ..world.plain("f", "maker", BOTH) };
    let made = world.service.opens.open(world.caller(client), &request).unwrap();
    world.close(client, &made);
}

#[test]
fn a_strict_key_needs_the_right_to_write() {
    let world = World::new();
    let client = world.dafs("a");
    make(&world, &client);
    let refused = ServiceError::Store(StoreError::Access);
    assert_eq!(error(open_as(&world, &client, 6, STRICT)), refused);
    // The refused open excludes nobody.
    world.close(&client, &open_as(&world, &client, 7, None).unwrap());
    world.close(&client, &open_as(&world, &client, 6, ADVISORY).unwrap());
    // One who might write need not do so.
    for uid in [5, 0] {
        let opened = open_as(&world, &client, uid, STRICT).unwrap();
        world.close(&client, &opened);
    }
    // A rule of the export makes no difference.
    world.serve_by(strict_export());
    assert_eq!(error(open_as(&world, &client, 6, ADVISORY)), refused);
    world.close(&client, &open_as(&world, &client, 5, ADVISORY).unwrap());
    world.serve_by(ExportOptions { read_only: true, ..ExportOptions::default() });
    let refused = ServiceError::Store(StoreError::ReadOnly);
    assert_eq!(error(open_as(&world, &client, 5, STRICT)), refused);
    open_as(&world, &client, 6, ADVISORY).unwrap();
}

#[test]
fn stateless_callers_wait_for_grace_where_keys_are_strict() {
    let mut world = World::new();
    let client = world.dafs("a");
    let handle = *world.open(&client, "f", BOTH).unwrap().state.handle();
    world.restart();
    assert!(world.service.clients.in_grace());
    let nobody = world.service.stateless_client().clone();
    let file = |need| world.service.opens.stateless_file(world.caller(&nobody), &handle, need);
    assert!(file(MODE_WRITE).is_ok());
    world.serve_by(strict_export());
    for need in [MODE_READ, MODE_WRITE] {
        assert_eq!(error(file(need)), ServiceError::Grace);
    }
    let cut = SetAttr { size: Some(0), ..SetAttr::default() };
    let cut = world.service.setattr(world.caller(&nobody), &handle, StateRef::ANONYMOUS, &cut);
    assert_eq!(error(cut), ServiceError::Grace);
    world.pass(LEASE_NS);
    world.pass(SECOND_NS);
    assert!(!world.service.clients.in_grace());
    assert!(file(MODE_WRITE).is_ok());
}

#[test]
fn a_caller_without_an_open_is_checked_again() {
    let world = World::new();
    let client = world.dafs("a");
    let open = |share, share_key| {
        let request = OpenRequest { share_key, ..world.plain("f", "o", share) };
        world.service.opens.open(world.caller(&client), &request).unwrap()
    };
    let opened = open(READ, ADVISORY);
    let handle = *opened.state.handle();
    let check = |need| world.service.opens.check_again(&handle, need);
    assert_eq!([check(MODE_READ), check(MODE_WRITE)], [Ok(()), Ok(())]);
    world.close(&client, &opened);
    let opened = open(READ, STRICT);
    let excluded = Err(ServiceError::KeyMismatch);
    assert_eq!([check(MODE_READ), check(MODE_WRITE)], [excluded, excluded]);
    world.close(&client, &opened);
    let opened = open(DENY_WRITE, None);
    assert_eq!([check(MODE_READ), check(MODE_WRITE)], [Ok(()), Err(ServiceError::ShareDenied)]);
    world.close(&client, &opened);
    assert_eq!([check(MODE_READ), check(MODE_WRITE)], [Ok(()), Ok(())]);
}
