//! Changes that nothing is kept of, beside others that are announced.

use super::*;
use dafs_service::limits::{GUARD_WAIT_NS, GUARDED_CHANGES_MAX, LEASES_EVERY_NS};

const EMPTY: SetAttr = SetAttr { size: Some(0), ..NONE };

impl World {
    fn guard(&self, name: &'static str, change: &Change<'_>) -> Intended {
        self.service.guard(self.caller(), change, || self.notify(name)).unwrap()
    }

    /// One that need not wait.
    fn guarded(&self, change: &Change<'_>) -> Op {
        let Intended::Ready(op) = self.guard("free", change) else { panic!("it need not wait") };
        assert!(op.is_guard());
        op
    }

    fn held(&self) -> (usize, usize) {
        let statistics = self.service.journal_statistics().unwrap();
        (statistics.in_flight, statistics.guarded)
    }
}

fn waiting(intended: Intended) -> Op {
    let Intended::Waiting(op) = intended else { panic!("it has to wait") };
    op
}

#[test]
fn announced_changes_and_others_of_the_same_wait_for_each_other() {
    for mode in [Durability::Crash, Durability::Power] {
        let world = World::new(mode);
        let (root, file) = (world.root(), world.at("linked").unwrap());
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
            // Those that nothing is kept of would not wait for each other, but none overtakes.
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
fn who_announces_nothing_waits_for_nobody_else_of_the_kind() {
    let world = World::new(Durability::Crash);
    let (root, file) = (world.root(), world.at("old").unwrap());
    let create = Change::Create { dir: &root, name: b"old", attr: &EMPTY };
    let chmod = Change::SetAttr { file: &file, change: &CHMOD, masked: None, acl: None };
    let held = [create, create, chmod, chmod].map(|change| world.guarded(&change));
    assert_eq!(world.held(), (0, 4));
    drop(held);
    assert_eq!(world.held(), (0, 0));
    // Data is told by itself, and what cannot be done is not done.
    let (offset, len, digest) = (0, 1, Some(1));
    let write = Change::Write { file: &file, offset, len, stability: Stability::File, digest };
    let long = [b'n'; 256];
    for change in [write, Change::Remove { dir: &root, name: &long }] {
        assert!(matches!(world.guard("none", &change), Intended::Unneeded));
    }
}

/// Who empties a file has that, too, and the one that the name leads to when it goes on.
#[test]
fn an_emptied_file_is_held_with_its_name() {
    for mode in [Durability::Crash, Durability::Power] {
        let world = World::new(mode);
        let (root, store) = (world.root(), world.store.clone());
        let files = [world.at("old").unwrap(), world.at("victim").unwrap()];
        let chmod = |file| Change::SetAttr { file, change: &CHMOD, masked: None, acl: None };
        let others = [(0, &files[0]), (1, &files[1])].map(|(n, file)| world.op(n, &chmod(file)));
        let one = Change::Create { dir: &root, name: b"old", attr: &EMPTY };
        let one = waiting(world.guard("one", &one));
        let two = Change::Create { dir: &root, name: b"victim", attr: &EMPTY };
        let two = waiting(world.intend(3, "two", &two));
        for (from, to) in [("old", "aside"), ("victim", "old"), ("aside", "victim")] {
            let (dir, from, to) = (&root.file, from.as_bytes(), to.as_bytes());
            store.rename(&world.cred, dir, from, dir, to).unwrap();
        }
        others.into_iter().for_each(|op| world.settle(op, b"set"));
        world.run();
        let mut told = world.told();
        told.sort_unstable_by_key(|(name, _)| *name);
        assert_eq!(told, [("one", Ok(())), ("two", Ok(()))]);
        let third = waiting(world.intend(4, "third", &chmod(&files[1])));
        drop(two);
        world.run();
        assert!(world.told().is_empty());
        drop(one);
        world.run();
        assert_eq!(world.told(), [("third", Ok(()))]);
        drop(third);
        assert_eq!(world.held(), (0, 0));
    }
}

/// Somebody who does not come to an end holds up those who announce nothing for so long only.
#[test]
fn who_waits_too_long_is_asked_to_come_again() {
    let world = World::new(Durability::Crash);
    let root = world.root();
    let change = Change::Remove { dir: &root, name: b"victim" };
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
    // Who has what it needs may take its time.
    let guard = world.guarded(&change);
    world.service.tick(4 * GUARD_WAIT_NS);
    assert_eq!(world.held(), (0, 1));
    drop(guard);
    assert_eq!(world.held(), (0, 0));
}

#[test]
fn only_so_many_are_under_way_at_once() {
    let world = World::new(Durability::Crash);
    let root = world.root();
    let change = Change::Remove { dir: &root, name: b"victim" };
    let mut held: Vec<_> = (0..GUARDED_CHANGES_MAX).map(|_| world.guarded(&change)).collect();
    let one_more = || world.service.guard(world.caller(), &change, || world.notify("more"));
    assert_eq!(one_more().err(), Some(ServiceError::Delay));
    held.pop();
    assert!(one_more().is_ok());
    // The last first: each looks at those behind it.
    while held.pop().is_some() {}
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
