//! Changes that wait for each other, and their results when a step fails.

use super::*;

/// A change that has a name's lock waits for that of the file behind it. If another client
/// exchanges the names meanwhile, each holds the file that the other one needs.
#[test]
fn changes_that_empty_files_do_not_wait_for_each_other_for_ever() {
    for mode in [Durability::Crash, Durability::Power] {
        let world = World::new(mode);
        empty_exchanged(&world, |change| world.intend(2, "one", change));
        assert_eq!(world.statistics().in_flight, 0);
    }
}

#[test]
fn everybody_is_told_though_one_of_them_makes_a_mistake() {
    let world = World::new(Durability::Power);
    let names: [&[u8]; 4] = [b"a", b"b", b"c", b"d"];
    let settle = |op: LoggedChange, ready: Notify| {
        assert_eq!(world.service.durable.settle(op, b"reply", true, ready), Settled::Later);
    };
    let ops: Vec<_> = (0u16..)
        .zip(names)
        .map(|(stream, name)| world.op(stream, &Change::Remove { dir: &world.root, name }))
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
    assert_eq!(world.statistics().in_flight, 0);
}
