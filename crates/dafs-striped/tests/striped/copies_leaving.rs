//! Copies that leave a node which is being emptied, while their files are in use.

use crate::common::copies::{World, devices, put};
use crate::common::nodes::SimNode;
use dafs_store::node::Node;
use dafs_store::*;
use dafs_striped::Leaving;
use dafs_testkit::stores::{me, read, write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A file on two of three nodes. Returns the nodes with a copy, and then the third.
fn file(content: &[u8]) -> (World, FileId, Arc<dyn OpenFile>, Vec<Arc<SimNode>>) {
    let (world, id, file, copies) = World::with_file(content);
    file.commit(0, 0).unwrap();
    let is_other = |node: &&Arc<SimNode>| copies.iter().all(|used| used.number() != node.number());
    let other = world.nodes.iter().find(is_other).unwrap().clone();
    let nodes = copies.into_iter().chain([other]).collect();
    (world, id, file, nodes)
}

fn numbers(world: &World, id: &FileId) -> Vec<u32> {
    world.copies(id).iter().map(|(node, _)| node.number()).collect()
}

/// Goes on until the file has left the nodes that are being emptied.
fn leave(world: &World, id: &FileId) {
    for _ in 0..9 {
        if world.store().leave_nodes(id).unwrap() == Leaving::Nothing {
            world.store().sweep();
            return;
        }
        world.repair();
    }
    panic!("copies do not leave: {:?}", world.layouts().copies(id));
}

#[test]
fn a_copy_leaves_when_another_node_has_one_and_nothing_is_left_behind() {
    let text = vec![7; 3 << 20];
    let (mut world, id, opened, nodes) = file(&text);
    let component = world.component(&id);
    let [gone, stays, new] = [0, 1, 2].map(|at: usize| nodes[at].number());
    drop(opened);
    // No writer is active, so another run takes the copies as equal.
    world.repair();
    world.store().set_leaving(gone, true).unwrap();
    // The metadata server dies between each two steps.
    world.reopen();
    assert_eq!(world.store().leave_nodes(&id), Ok(Leaving::Waits));
    assert_eq!(numbers(&world, &id), [gone, stays, new]);
    world.reopen();
    assert_eq!(world.fresh(&id), [true, true, false], "all that there was counts");
    assert_eq!(world.store().leave_nodes(&id), Ok(Leaving::Waits));
    // The leaving copy is read and written until then.
    nodes[1].set_away(true);
    assert_eq!(read(&*world.file("f"), 0, 9).unwrap(), [7; 9]);
    nodes[1].set_away(false);
    world.repair();
    world.reopen();
    // The sweep removes the components of a failed attempt.
    world.store().sweep();
    let left = world.store().leave_nodes(&id);
    assert_eq!(left, Ok(Leaving::Left(3 << 20)));
    assert_eq!((numbers(&world, &id), world.fresh(&id)), (vec![stays, new], vec![true, true]));
    assert_eq!(world.store().leave_nodes(&id), Ok(Leaving::Nothing));
    assert!(!nodes[0].is_bare() && !world.store().is_idle(gone).unwrap());
    world.reopen();
    world.store().sweep();
    assert!(nodes[0].is_bare() && world.store().is_idle(gone).unwrap());
    for away in [1, 2] {
        nodes[away].set_away(true);
        assert!(read(&*world.file("f"), 0, text.len()).unwrap() == text);
        nodes[away].set_away(false);
    }
    assert!(nodes[1].content(&component) == nodes[2].content(&component));
    assert_eq!(world.to_repair(), 0);
    world.store().remove_node(gone).unwrap();
    let (id, new_file) = world.create("new");
    write(&*new_file, 0, b"x").unwrap();
    assert!(!numbers(&world, &id).contains(&gone));
}

#[test]
fn as_many_nodes_stay_as_files_have_copies() {
    let world = World::new();
    world.store().set_leaving(2, true).unwrap();
    assert_eq!(world.store().set_leaving(3, true), Err(StoreError::Invalid));
    world.store().set_leaving(2, false).unwrap();
    world.store().set_leaving(3, true).unwrap();
    let three = World::with_copies(3);
    assert_eq!(three.store().set_leaving(1, true), Err(StoreError::Invalid));
}

#[test]
fn writes_while_copies_leave_reach_those_that_stay() {
    let (world, id, opened, nodes) = file(&vec![0; 4 << 20]);
    world.store().set_leaving(nodes[0].number(), true).unwrap();
    let over = AtomicBool::new(false);
    let written = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..3_u64)
            .map(|writer| {
                let (opened, over) = (opened.clone(), &over);
                scope.spawn(move || {
                    let mut rounds = 0;
                    while rounds < 3 || !over.load(Ordering::SeqCst) {
                        rounds += 1;
                        for at in 0..60 {
                            let bytes = vec![(rounds * 3 + writer) as u8; 20_000];
                            write(&*opened, (at * 3 + writer) * 20_000, &bytes).unwrap();
                        }
                    }
                    (rounds * 3 + writer) as u8
                })
            })
            .collect();
        leave(&world, &id);
        over.store(true, Ordering::SeqCst);
        writers.into_iter().map(|writer| writer.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(nodes[0].is_bare());
    let whole = read(&*opened, 0, 4 << 20).unwrap();
    for (at, piece) in whole[..180 * 20_000].chunks(20_000).enumerate() {
        assert!(piece.iter().all(|byte| *byte == written[at % 3]), "piece {at}");
    }
    let component = world.component(&id);
    assert!(nodes[1].content(&component) == whole && nodes[2].content(&component) == whole);
}

#[test]
fn clients_that_write_by_themselves_stop_before_a_copy_leaves() {
    let (world, id, opened, nodes) = file(b"old content");
    let component = world.component(&id);
    let gone = nodes[0].number();
    world.store().set_leaving(gone, true).unwrap();
    assert_eq!(world.store().leave_nodes(&id), Ok(Leaving::Waits));
    world.repair();
    let before = world.layouts().placement(&id, true).unwrap().unwrap();
    assert_eq!(devices(&before).len(), 3, "it has all copies for now");
    assert_eq!(world.store().leave_nodes(&id), Ok(Leaving::Waits));
    let mut asked = Vec::new();
    world.layouts().take_write_recalls(&mut |file, recall| {
        asked.push((file, recall));
        false
    });
    assert_eq!(asked, [(id, true)]);
    assert_eq!(world.store().leave_nodes(&id), Ok(Leaving::Waits));
    assert_eq!(world.layouts().placement(&id, true).unwrap(), None, "nobody else begins");
    nodes.iter().for_each(|node| put(node, &component, 0, b"new"));
    assert!(world.store().may_be_used(&component, gone));
    world.return_all();
    assert!(matches!(world.store().leave_nodes(&id), Ok(Leaving::Left(_))));
    assert!(!world.store().may_be_used(&component, gone), "whatever layouts are out");
    assert!(nodes[1..].iter().all(|node| world.store().may_be_used(&component, node.number())));
    let mut moved = Vec::new();
    world.layouts().take_moved(&mut |file| moved.push(file));
    assert!(moved.contains(&id), "clients ask again");
    let after = world.layouts().placement(&id, true).unwrap().unwrap();
    assert!(devices(&after).len() == 2 && after.epoch != before.epoch);
    assert_eq!(read(&*opened, 0, 99).unwrap(), b"new content");
}

#[test]
fn a_copy_stays_while_its_data_server_may_show_it() {
    let (world, id, opened, nodes) = file(b"text");
    let gone = nodes[0].number();
    world.store().set_leaving(gone, true).unwrap();
    world.store().leave_nodes(&id).unwrap();
    world.repair();
    let component = world.component(&id);
    nodes[0].set_believes(true);
    nodes[0].set_away(true);
    assert_eq!(world.store().leave_nodes(&id), Ok(Leaving::Waits));
    assert!(numbers(&world, &id).contains(&gone) && world.store().may_be_used(&component, gone));
    // Its data server is dead, and its cached authorisations have expired.
    nodes[0].set_believes(false);
    assert!(matches!(world.store().leave_nodes(&id), Ok(Leaving::Left(_))));
    write(&*opened, 0, b"TEXT").unwrap();
    assert_eq!(world.fresh(&id), [true, true], "nobody waits for it");
    world.store().sweep();
    assert!(!world.store().is_idle(gone).unwrap(), "something lies there yet");
    nodes[0].set_away(false);
    world.store().sweep();
    assert!(nodes[0].is_bare() && world.store().is_idle(gone).unwrap());
}

#[test]
fn a_stale_copy_leaves_without_a_repair() {
    let (world, id, opened, nodes) = file(b"old");
    nodes[0].set_away(true);
    write(&*opened, 0, b"new").unwrap();
    opened.commit(0, 0).unwrap();
    nodes[0].set_away(false);
    world.store().set_leaving(nodes[0].number(), true).unwrap();
    let component = world.component(&id);
    world.repair();
    assert_eq!(nodes[0].content(&component), b"old");
    leave(&world, &id);
    assert!(nodes[0].is_bare());
    assert_eq!(world.contents(&id), [b"new", b"new"]);
    world.repair();
    assert_eq!(world.to_repair(), 0);
}

#[test]
fn a_node_that_is_to_take_files_again_keeps_what_it_has() {
    let (world, id, opened, nodes) = file(b"text");
    world.store().set_leaving(nodes[0].number(), true).unwrap();
    world.store().leave_nodes(&id).unwrap();
    world.store().set_leaving(nodes[0].number(), false).unwrap();
    assert_eq!(world.store().leave_nodes(&id), Ok(Leaving::Nothing));
    world.repair();
    assert_eq!(world.fresh(&id), [true, true, true]);
    // If it leaves after all, no new copy is needed.
    world.store().set_leaving(nodes[0].number(), true).unwrap();
    assert!(matches!(world.store().leave_nodes(&id), Ok(Leaving::Left(4))));
    assert_eq!(read(&*opened, 0, 9).unwrap(), b"text");
    drop(opened);
    world.store().remove(&me(), &Store::root(world.store()), b"f").unwrap();
    world.store().sweep();
    assert!(world.nodes.iter().all(|node| node.is_bare()));
}
