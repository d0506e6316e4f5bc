//! Stores whose calls wait for other machines: a caller that may not wait is sent to a thread that
//! may.

use crate::common::*;
use crate::spread::Spread;
use dafs_service::{OpenHow, OpenRequest, RemoveMode, Result, ServiceError, StateRef, Touch};
use dafs_store::{CreateHow, SetAttr, Waits};
use std::sync::atomic::Ordering;

#[test]
fn callers_that_may_wait_do_the_work_of_a_blocking_store() {
    let store = Spread::new();
    store.waits.store(true, Ordering::SeqCst);
    let world = World::over(store);
    let one = world.nfs("a");
    let opened = world.open(&one, "f", BOTH).unwrap();
    let handle = *opened.state.handle();
    let calls = |caller| -> [Result<()>; 5] {
        let (service, root) = (&world.service, &world.root);
        let size = SetAttr { size: Some(5), ..SetAttr::default() };
        let empty = OpenHow::Create(CreateHow::Unchecked, SetAttr { size: Some(0), ..size });
        let emptying = OpenRequest { how: empty, ..world.plain("g", "owner", BOTH) };
        [
            service.setattr(caller, &handle, StateRef::ANONYMOUS, &size).map(drop),
            service.opens.open(caller, &emptying).map(drop),
            service.fs_limits(caller, &handle).map(drop),
            service.rename(caller, root, b"g", root, b"h").map(drop),
            service.remove(caller, root, b"h", RemoveMode::Unchecked).map(drop),
        ]
    };
    assert_eq!(calls(world.caller(&one)), [const { Err(ServiceError::WouldWait) }; 5]);
    assert_eq!(calls(world.patient(&one)), [const { Ok(()) }; 5]);
    // Names and attributes are on this machine.
    world.service.delegations.attributes(world.caller(&one), &handle).unwrap();
    let mode = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    world.service.setattr(world.caller(&one), &handle, StateRef::ANONYMOUS, &mode).unwrap();
    let namespace = world.service.namespace();
    assert!(namespace.waits_for(&handle, Touch::Data));
    assert!(!namespace.waits_for(&handle, Touch::Object));
}

#[test]
fn of_a_store_here_everything_is_done_at_once() {
    let world = World::new();
    for touch in [Touch::Data, Touch::Object] {
        assert!(!world.service.namespace().waits_for(&world.root, touch));
    }
    assert_eq!(Waits::default(), Waits::Never);
}
