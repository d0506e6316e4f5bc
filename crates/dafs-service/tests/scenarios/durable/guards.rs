//! Guarded changes, concurrent with logged ones.

use super::*;
use dafs_service::Host;
use dafs_service::limits::{
    GUARD_WAIT_NS, GUARDED_CHANGES_MAX, GUARDED_CHANGES_SHARE_MAX, LEASES_EVERY_NS,
};
use std::net::{IpAddr, Ipv4Addr};

impl World {
    fn guard(&self, name: &'static str, change: &Change<'_>) -> Intended {
        self.service.durable.guard(self.caller(), change, || self.notify(name)).unwrap()
    }

    /// A change that need not wait.
    fn guarded(&self, change: &Change<'_>) -> LoggedChange {
        let Intended::Ready(op) = self.guard("free", change) else { panic!("it need not wait") };
        assert!(op.is_guard());
        op
    }

    fn held(&self) -> (usize, usize) {
        let statistics = self.service.durable.journal_statistics().unwrap();
        (statistics.in_flight, statistics.guarded)
    }
}

#[test]
fn announced_changes_and_others_of_the_same_wait_for_each_other() {
    for mode in [Durability::Crash, Durability::Power] {
        let world = World::new(mode);
        let (root, file) = (world.root, world.at("linked").unwrap());
        let (victim, other) = (b"victim".as_slice(), b"other".as_slice());
        let remove = Change::Remove { dir: &root, name: victim };
        let rename = Change::Rename { from_dir: &root, from: other, to_dir: &root, to: victim };
        let chmod = Change::SetAttr { file: &file, change: &CHMOD, masked: None, acl: None };
        let value = Some(1);
        let how = SetXattr::Either;
        let tag = Change::SetXattr { file: &file, name: b"tag", value, how };
        for (announced, other) in [(remove, rename), (rename, remove), (chmod, tag), (tag, chmod)] {
            let op = world.op(0, &announced);
            let guard = waiting(world.guard("guard", &other));
            world.run();
            assert!(world.told().is_empty());
            world.settle(op, b"done");
            world.run();
            assert_eq!(world.told().last(), Some(&("guard", Ok(()))));
            let op = waiting(world.intend(0, "op", &announced));
            // Guarded changes would not wait for each other, but none overtakes a logged one.
            let second = waiting(world.guard("second", &other));
            world.run();
            assert!(world.told().is_empty());
            drop(guard);
            world.run();
            assert_eq!(world.told(), [("op", Ok(()))]);
            drop(op);
            world.run();
            assert_eq!(world.told(), [("second", Ok(()))]);
            drop(second);
            assert_eq!(world.held(), (0, 0));
        }
    }
}

#[test]
fn guarded_changes_do_not_wait_for_each_other() {
    let world = World::new(Durability::Crash);
    let (root, file) = (world.root, world.at("old").unwrap());
    let create = Change::Create { dir: &root, name: b"old", attr: &EMPTY };
    let chmod = Change::SetAttr { file: &file, change: &CHMOD, masked: None, acl: None };
    let held = [create, create, chmod, chmod].map(|change| world.guarded(&change));
    assert_eq!(world.held(), (0, 4));
    drop(held);
    assert_eq!(world.held(), (0, 0));
    // Data is its own evidence, and an impossible change is not executed.
    let (offset, len, digest) = (0, 1, Some(1));
    let write = Change::Write { file: &file, offset, len, stability: Stability::File, digest };
    let long = [b'n'; 256];
    for change in [write, Change::Remove { dir: &root, name: &long }] {
        assert!(matches!(world.guard("none", &change), Intended::Unneeded));
    }
}

/// A change that empties a file locks that file, too, as of the lookup when it goes on.
#[test]
fn an_emptied_file_is_held_with_its_name() {
    for mode in [Durability::Crash, Durability::Power] {
        let world = World::new(mode);
        empty_exchanged(&world, |change| world.guard("one", change));
        assert_eq!(world.held(), (0, 0));
    }
}

/// A logged change that does not end delays guarded changes only for a bounded time.
#[test]
fn a_guard_that_waits_too_long_is_asked_to_retry() {
    let world = World::new(Durability::Crash);
    let change = Change::Remove { dir: &world.root, name: b"victim" };
    let op = world.op(0, &change);
    let guard = waiting(world.guard("guard", &change));
    let behind = waiting(world.intend(1, "behind", &change));
    world.service.tick(GUARD_WAIT_NS - 1);
    world.run();
    assert!(world.told().is_empty());
    world.service.tick(GUARD_WAIT_NS + LEASES_EVERY_NS);
    world.run();
    assert_eq!(world.told(), [("guard", Err(ServiceError::Delay))]);
    assert_eq!(world.held(), (2, 0));
    drop(guard);
    drop(op);
    world.run();
    assert_eq!(world.told(), [("behind", Ok(()))]);
    drop(behind);
    // A change that has all its locks may take any time.
    let guard = world.guarded(&change);
    world.service.tick(4 * GUARD_WAIT_NS);
    assert_eq!(world.held(), (0, 1));
    drop(guard);
    assert_eq!(world.held(), (0, 0));
}

#[test]
fn only_so_many_are_under_way_at_once() {
    let world = World::new(Durability::Crash);
    let change = Change::Remove { dir: &world.root, name: b"victim" };
    let guard = |address: u32| {
        let address = IpAddr::V4(Ipv4Addr::from_bits(address));
        let subject = Subject::Nfs { owner: None, address, host: Host::of(address) };
        let caller = Caller { subject, ..world.caller() };
        world.service.durable.guard(caller, &change, || world.notify("more"))
    };
    let hosts = (GUARDED_CHANGES_MAX / GUARDED_CHANGES_SHARE_MAX) as u32;
    let mut held = Vec::new();
    for host in 0..hosts {
        held.extend((0..GUARDED_CHANGES_SHARE_MAX).map(|_| guard(host).unwrap()));
        assert_eq!(guard(host).err(), Some(ServiceError::Delay), "of one host");
    }
    assert_eq!(guard(hosts).err(), Some(ServiceError::Delay), "of all");
    held.pop();
    assert_eq!(guard(0).err(), Some(ServiceError::Delay));
    assert!(guard(hosts - 1).is_ok() && guard(hosts).is_ok());
    // The last first, because each looks at those before it.
    while held.pop().is_some() {}
    assert_eq!(world.held(), (0, 0));
    assert!(guard(0).is_ok(), "shares are given back");
}

/// Otherwise the logged change, whose end is lost with the power, would look as if it had never
/// happened, and be executed a second time.
#[test]
fn a_guarded_change_goes_on_when_the_end_before_it_is_stable() {
    let world = World::new(Durability::Power);
    let make = Change::Make { dir: &world.root, name: b"new", kind: Kind::Directory, attr: &NONE };
    let op = world.op(0, &make);
    world.service.make(world.caller(), &world.root, b"new", NewObject::Directory, &NONE).unwrap();
    world.settle(op, b"made");
    drop(world.guarded(&Change::Remove { dir: &world.root, name: b"another" }));
    // Its wait is bounded.
    let late = waiting(world.guard("late", &Change::Remove { dir: &world.root, name: b"new" }));
    world.service.tick(GUARD_WAIT_NS + LEASES_EVERY_NS);
    assert_eq!(world.told(), [("late", Err(ServiceError::Delay))]);
    let guard = waiting(world.guard("guard", &Change::Remove { dir: &world.root, name: b"new" }));
    assert!(world.told().is_empty(), "the end is not stable");
    assert_eq!(world.run(), 1);
    drop(late);
    assert_eq!(world.told(), [("guard", Ok(()))]);
    world.service.remove(world.caller(), &world.root, b"new", RemoveMode::Unchecked).unwrap();
    drop(guard);
    // There is no more to make stable.
    drop(world.guarded(&make));
    let world = world.crash(true);
    let reply = Answer::Reply { bytes: b"made".to_vec(), order_le: true };
    assert_eq!(world.kept_answer(0), Some(reply));
}

/// The same for a change that waited, and for one that empties a file.
#[test]
fn a_waiting_change_goes_on_when_the_end_before_it_is_stable() {
    let world = World::new(Durability::Power);
    let (root, file) = (world.root, world.at("old").unwrap());
    let chmod = Change::SetAttr { file: &file, change: &CHMOD, masked: None, acl: None };
    let empty = Change::Create { dir: &root, name: b"old", attr: &EMPTY };
    for waits in [false, true] {
        let op = world.op(0, &chmod);
        let early = waits.then(|| waiting(world.guard("guard", &empty)));
        let syncs = world.disk.syncs();
        let Settled::Later = world.service.durable.settle(op, b"done", true, world.notify("sent"))
        else {
            panic!("the change is made stable first")
        };
        if !waits {
            world.run();
            assert_eq!(world.told(), [("sent", Ok(()))]);
            assert_eq!(world.disk.syncs(), syncs);
        }
        let _guard = early.unwrap_or_else(|| waiting(world.guard("guard", &empty)));
        world.run();
        assert!(world.disk.syncs() > syncs);
        assert_eq!(world.told().last(), Some(&("guard", Ok(()))));
    }
}

/// Otherwise another client's work would be taken for its work after a crash.
#[test]
fn a_change_that_was_given_up_stays_so_whoever_does_the_same() {
    for mode in [Durability::Crash, Durability::Power] {
        let world = World::new(mode);
        let remove = Change::Remove { dir: &world.root, name: b"victim" };
        drop(world.op(0, &remove));
        let guard = world.guard("guard", &remove);
        world.run();
        assert_eq!(matches!(guard, Intended::Waiting(_)), mode == Durability::Power);
        world
            .service
            .remove(world.caller(), &world.root, b"victim", RemoveMode::Unchecked)
            .unwrap();
        let world = world.crash(mode == Durability::Power);
        assert_eq!(world.kept_answer(0), None);
    }
}

/// When the end of a logged change cannot be written, its objects must not be changed.
#[test]
fn no_change_goes_on_when_the_end_before_it_is_lost() {
    for mode in [Durability::Crash, Durability::Power] {
        let world = World::new(mode);
        let remove = Change::Remove { dir: &world.root, name: b"victim" };
        let create = Change::Create { dir: &world.root, name: b"victim", attr: &NONE };
        let op = world.op(0, &remove);
        world
            .service
            .remove(world.caller(), &world.root, b"victim", RemoveMode::Unchecked)
            .unwrap();
        world.disk.fail_after(Some(0));
        let _ = world.service.durable.settle(op, b"removed", true, world.notify("sent"));
        world.run();
        world.told();
        match world.service.durable.guard(world.caller(), &create, || world.notify("guard")) {
            Err(error) => assert_eq!(error, StoreError::Io.into()),
            Ok(_guard) => {
                world.run();
                assert_eq!(world.told(), [("guard", Err(StoreError::Io.into()))]);
            }
        }
        assert_eq!(world.held(), (0, 0));
        // Others are not affected, not even after a failed intent.
        let other = Change::Remove { dir: &world.root, name: b"other" };
        let tried =
            world.service.durable.intend(world.caller(), &world.key(1), &other, Box::new(|_| ()));
        assert_eq!(tried.err(), Some(StoreError::Io.into()));
        drop(world.guarded(&other));
    }
}

/// A change that is logged for the end of the process only, after one of the same files that is
/// logged for a loss of power, too.
#[test]
fn an_intent_is_as_durable_as_the_change_before_it() {
    let world = World::new(Durability::Power);
    let export = |path: &str, durable_replies| {
        let options =
            ExportOptions { squash: Squash::None, durable_replies, ..ExportOptions::default() };
        Export::new(path, world.store.clone(), options)
    };
    let exports = vec![export("a", Durability::Power), export("b", Durability::Crash)];
    world.service.replace_namespace(Namespace::new(exports).unwrap());
    let namespace = world.service.namespace();
    let roots = [Durability::Power, Durability::Crash].map(|durability| {
        let mut exports = namespace.exports();
        exports.find(|export| export.options().durable_replies == durability).unwrap().root()
    });
    let make = |root| Change::Make { dir: root, name: b"new", kind: Kind::Directory, attr: &NONE };
    let op = world.op(0, &make(&roots[0]));
    world.service.make(world.caller(), &roots[0], b"new", NewObject::Directory, &NONE).unwrap();
    world.settle(op, b"made");
    let remove = Change::Remove { dir: &roots[1], name: b"new" };
    let op = waiting(world.intend(1, "op", &remove));
    assert!(world.told().is_empty());
    assert_eq!(world.run(), 1);
    assert_eq!(world.told(), [("op", Ok(()))]);
    world.settle(op, b"removed");
    assert!(matches!(world.intend(1, "next", &make(&roots[1])), Intended::Ready(_)));
}

/// No client would ask for its record, and no event would remove it.
#[test]
fn a_forgotten_session_keeps_no_record() {
    let world = World::new(Durability::Crash);
    let remove = Change::Remove { dir: &world.root, name: b"victim" };
    let first = world.op(0, &remove);
    let second = waiting(world.intend(1, "second", &remove));
    let append =
        world.op(2, &Change::Append { file: &world.at("grown").unwrap(), len: 4, digest: 1 });
    world.service.durable.forget_session(&SESSION);
    world.settle(first, b"removed");
    assert_eq!(world.told(), [("second", Err(ServiceError::Delay))]);
    drop(second);
    // A partial append would have to be undone, so the file is locked for it.
    assert_eq!(world.append(&append, b"more"), Ok(6));
    world.settle(append, b"appended");
    write(&*world.open("grown"), 0, b"others");
    let Intended::Ready(op) = world.intend(3, "third", &remove) else { panic!("it may go on") };
    assert!(op.is_guard());
    drop(op);
    let statistics = world.statistics();
    assert_eq!((statistics.sessions, statistics.changes, statistics.kept_bytes), (0, 0, 0));
    assert_eq!(world.held(), (0, 0));
}

/// Two exports lead to the same files, and only one of them keeps replies.
#[test]
fn another_way_to_the_same_files_is_no_way_around() {
    let world = World::new(Durability::Crash);
    let export = |path: &str, durable_replies| {
        let options =
            ExportOptions { squash: Squash::None, durable_replies, ..ExportOptions::default() };
        Export::new(path, world.store.clone(), options)
    };
    for (first, second) in
        [(Durability::Off, Durability::Crash), (Durability::Off, Durability::Off)]
    {
        let exports = vec![export("a", first), export("b", second)];
        world.service.replace_namespace(Namespace::new(exports).unwrap());
        let namespace = world.service.namespace();
        let root = namespace.exports().next().unwrap().root();
        let guard = world.guard("guard", &Change::Remove { dir: &root, name: b"victim" });
        assert_eq!(matches!(guard, Intended::Ready(_)), second == Durability::Crash);
    }
}
