//! Comparison of copies that no writer knows to differ, and the repair of those that are wrong.

use crate::common::copies::{World, put};
use dafs_store::node::Node;
use dafs_store::*;
use dafs_striped::{Fault, Faults, Scrubbed};
use dafs_testkit::stores::{READ_WRITE, me, read, write};
use std::cell::Cell;
use std::collections::HashSet;

fn scrub(world: &World, id: &FileId) -> Scrubbed {
    world.store().scrub(id, &|_, _| true).unwrap()
}

fn faulty(nodes: &[(u32, Fault)], right: Option<u32>) -> Scrubbed {
    Scrubbed::Faulty(Faults { nodes: nodes.to_vec(), right })
}

/// Gives up the copies that are certainly wrong, and repairs them.
fn mend(world: &World, id: &FileId) {
    let Scrubbed::Faulty(Faults { nodes, right: Some(_) }) = scrub(world, id) else {
        panic!("it is not known which copy is right")
    };
    let is_wrong = |number| nodes.iter().any(|(node, _)| *node == number);
    world.store().give_up_copies(id, &is_wrong).unwrap();
    world.repair();
    assert_eq!((scrub(world, id), world.to_repair()), (Scrubbed::Sound, 0));
}

#[test]
fn of_two_copies_that_differ_neither_is_changed_until_one_is_named() {
    let content = vec![5; 3_000_000];
    let (world, id, file, nodes) = World::with_file(&content);
    world.repair();
    assert_eq!(scrub(&world, &id), Scrubbed::Sound);
    let component = world.component(&id);
    put(&nodes[0], &component, 2_500_000, b"rot");
    let numbers = [nodes[0].number(), nodes[1].number()];
    let differ = faulty(&numbers.map(|number| (number, Fault::Differs)), None);
    assert_eq!(scrub(&world, &id), differ);
    world.repair();
    assert_eq!((scrub(&world, &id), world.fresh(&id)), (differ, vec![true, true]));
    let none_left = world.store().give_up_copies(&id, &|_| true);
    assert_eq!(none_left, Err(StoreError::Invalid), "this does not pass");
    nodes[1].set_away(true);
    let away = world.store().give_up_copies(&id, &|number| number != numbers[1]);
    assert_eq!(away, Err(StoreError::NoDevice), "its copy may be lost");
    assert_eq!(world.fresh(&id), [true, true]);
    nodes[1].set_away(false);
    world.store().give_up_copies(&id, &|number| number != numbers[1]).unwrap();
    assert_eq!(world.fresh(&id), [false, true]);
    world.repair();
    assert_eq!((scrub(&world, &id), world.fresh(&id)), (Scrubbed::Sound, vec![true, true]));
    nodes[1].set_away(true);
    assert!(read(&*file, 0, 3_000_000).unwrap() == content);
}

#[test]
fn small_files_are_compared_by_one_thread() {
    let own = HashSet::from([std::thread::current().id()]);
    for (bytes, is_small) in [(10_000, true), (500_000, false)] {
        let (world, id, _file, nodes) = World::with_file(&vec![7; bytes]);
        world.repair();
        nodes.iter().for_each(|node| drop(node.take_readers()));
        assert_eq!(scrub(&world, &id), Scrubbed::Sound);
        let readers: HashSet<_> = nodes.iter().flat_map(|node| node.take_readers()).collect();
        assert_eq!(readers == own, is_small, "{bytes} bytes");
    }
}

#[test]
fn a_copy_that_was_lost_or_cannot_be_read_is_made_anew() {
    let content = vec![6; 70_000];
    let (world, id, _file, nodes) = World::with_file(&content);
    world.repair();
    nodes[1].lose_all();
    let [first, second] = [nodes[0].number(), nodes[1].number()];
    let missing = faulty(&[(second, Fault::Missing)], Some(first));
    assert_eq!(scrub(&world, &id), missing);
    let is_lost = |node| world.store().has_lost_copy(&id, node);
    assert_eq!((is_lost(first), is_lost(second)), (Ok(false), Ok(true)));
    mend(&world, &id);
    assert_eq!((is_lost(first), is_lost(second)), (Ok(false), Ok(false)));
    nodes[0].set_unreadable();
    assert_eq!((is_lost(first), is_lost(second)), (Ok(true), Ok(false)));
    let unreadable = faulty(&[(first, Fault::Unreadable)], Some(second));
    assert_eq!(scrub(&world, &id), unreadable);
    mend(&world, &id);
    assert!(world.contents(&id).iter().all(|copy| *copy == content));
}

#[test]
fn a_file_that_no_node_can_read_takes_no_further_time() {
    let (world, id, _file, nodes) = World::with_file(&vec![6; 3_000_000]);
    world.repair();
    nodes.iter().for_each(|node| node.set_unreadable());
    let pieces = Cell::new(0);
    let pace = |_: &[u32], _: usize| {
        pieces.set(pieces.get() + 1);
        true
    };
    let all = nodes.each_ref().map(|node| (node.number(), Fault::Unreadable));
    assert_eq!(world.store().scrub(&id, &pace), Ok(faulty(&all, None)));
    assert_eq!(pieces.get(), 1, "the rest cannot be read either");
}

#[test]
fn most_of_three_copies_show_which_one_is_wrong() {
    let world = World::with_copies(3);
    let (id, file) = world.create("f");
    write(&*file, 0, &[7; 10_000]).unwrap();
    world.repair();
    put(&world.nodes[2], &world.component(&id), 9_999, b"8");
    let Scrubbed::Faulty(found) = scrub(&world, &id) else { panic!("a fault is missed") };
    assert_eq!(found.nodes, [(3, Fault::Differs)]);
    mend(&world, &id);
    assert!(world.contents(&id).iter().all(|copy| *copy == [7; 10_000]));
}

#[test]
fn a_file_in_use_and_a_node_that_is_away_show_nothing() {
    let (world, id, file, nodes) = World::with_file(b"text");
    assert_eq!(scrub(&world, &id), Scrubbed::InUse, "a writer may be active");
    world.repair();
    assert_eq!(scrub(&world, &id), Scrubbed::Sound);
    // A writer comes between the pieces, and copies differ meanwhile.
    write(&*file, 0, &[1; 2_000_000]).unwrap();
    world.repair();
    let pace = |_: &[u32], _: usize| {
        write(&*file, 0, b"2").unwrap();
        world.repair();
        true
    };
    assert_eq!(world.store().scrub(&id, &pace), Ok(Scrubbed::InUse));
    nodes[0].set_crowded(3);
    assert_eq!(scrub(&world, &id), Scrubbed::Sound, "a crowded node is asked again");
    nodes[0].set_away(true);
    assert_eq!(scrub(&world, &id), Scrubbed::Away(nodes[0].number()));
}

#[test]
fn stripes_that_cannot_be_read_are_told() {
    let world = World::with_copies(1);
    let (id, file) = world.create("f");
    write(&*file, 0, &[9; 600_000]).unwrap();
    assert_eq!(scrub(&world, &id), Scrubbed::Sound);
    world.nodes[1].set_unreadable();
    assert_eq!(scrub(&world, &id), faulty(&[(2, Fault::Unreadable)], None));
    let given_up = world.store().give_up_copies(&id, &|_| true);
    assert_eq!(given_up, Err(StoreError::NotSupported));
}

#[test]
fn a_walk_names_the_files() {
    let world = World::new();
    let (store, none) = (world.store(), SetAttr::default());
    let root = Store::root(store);
    let directory = |above: &FileId, name: &[u8]| {
        let attr = SetAttr { mode: Some(0o755), ..SetAttr::default() };
        store.make(&me(), above, name, NewObject::Directory, &attr).unwrap().id
    };
    let file = |above: &FileId, name: &[u8]| {
        store.create(&me(), above, name, CreateHow::Guarded, &none, READ_WRITE).unwrap();
    };
    let (d, e) = (directory(&root, b"d"), directory(&root, b"e"));
    let below = directory(&d, b"x");
    for (above, name) in [(&root, b"a"), (&d, b"b"), (&below, b"c"), (&e, b"f")] {
        file(above, name);
    }
    let (mut walk, mut paths) = (store.walk(), Vec::new());
    while let Some(files) = store.next_files(&mut walk) {
        paths.extend(files.into_iter().map(|(_, path)| path));
    }
    paths.sort();
    let expected: [&[u8]; 4] = [b"/a", b"/d/b", b"/d/x/c", b"/e/f"];
    assert_eq!(paths, expected);
}
