//! Changes that wait for each other, and their results when a step fails.

use super::*;

const EMPTY: SetAttr = SetAttr { size: Some(0), ..NONE };

/// A change that has a name's lock waits for that of the file behind it. If another client
/// exchanges the names meanwhile, each holds the file that the other one needs.
#[test]
fn changes_that_empty_files_do_not_wait_for_each_other_for_ever() {
    for mode in [Durability::Crash, Durability::Power] {
        let world = World::new(mode);
        let (root, store) = (world.root(), world.store.clone());
        let files = [world.at("old").unwrap(), world.at("victim").unwrap()];
        let others = files.map(|file| {
            let change = Change::SetAttr { file: &file, change: &CHMOD, masked: None, acl: None };
            world.op(u16::from(file == files[1]), &change)
        });
        let one = Change::Create { dir: &root, name: b"old", attr: &EMPTY };
        let Intended::Waiting(one) = world.intend(2, "one", &one) else { panic!() };
        let two = Change::Create { dir: &root, name: b"victim", attr: &EMPTY };
        let Intended::Waiting(two) = world.intend(3, "two", &two) else { panic!() };
        for (from, to) in [("old", "aside"), ("victim", "old"), ("aside", "victim")] {
            let (dir, from, to) = (&root.file, from.as_bytes(), to.as_bytes());
            store.rename(&world.cred, dir, from, dir, to).unwrap();
        }
        others.into_iter().for_each(|op| world.settle(op, b"set"));
        world.run();
        let mut told = world.told();
        told.sort_unstable_by_key(|(name, _)| *name);
        assert_eq!(told, [("one", Ok(())), ("two", Ok(()))]);
        // Each holds the file that its name leads to now, and no other.
        let change = Change::SetAttr { file: &files[1], change: &CHMOD, masked: None, acl: None };
        let Intended::Waiting(third) = world.intend(4, "third", &change) else { panic!() };
        drop(two);
        world.run();
        assert!(world.told().is_empty());
        drop(one);
        world.run();
        assert_eq!(world.told(), [("third", Ok(()))]);
        drop(third);
        assert_eq!(world.service.durable.journal_statistics().unwrap().in_flight, 0);
    }
}

#[test]
fn everybody_is_told_though_one_of_them_makes_a_mistake() {
    let world = World::new(Durability::Power);
    let root = world.root();
    let names: [&[u8]; 4] = [b"a", b"b", b"c", b"d"];
    let settle = |op: LoggedChange, ready: Notify| {
        assert_eq!(world.service.durable.settle(op, b"reply", true, ready), Settled::Later);
    };
    let ops: Vec<_> = (0u16..)
        .zip(names)
        .map(|(stream, name)| world.op(stream, &Change::Remove { dir: &root, name }))
        .collect();
    let mut ops = ops.into_iter();
    settle(ops.next().unwrap(), world.notify("first"));
    settle(ops.next().unwrap(), Box::new(|_| panic!("a mistake")));
    settle(ops.next().unwrap(), world.notify("third"));
    world.run();
    assert_eq!(world.told(), [("first", Ok(())), ("third", Ok(()))]);
    // Later ones are made stable as usual.
    settle(ops.next().unwrap(), world.notify("fourth"));
    world.run();
    assert_eq!(world.told(), [("fourth", Ok(()))]);
    assert_eq!(world.service.durable.journal_statistics().unwrap().in_flight, 0);
}
