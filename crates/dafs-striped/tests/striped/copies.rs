//! Files with whole copies on several nodes: writes while a node is unreachable, stale data that
//! comes back, and repair.

use crate::common::copies::{World, devices, put};
use crate::common::nodes::SimNode;
use dafs_store::DeviceTrouble::{Failed, Full};
use dafs_store::node::Node;
use dafs_store::*;
use dafs_striped::Clock as _;
use dafs_testkit::stores::{READ_WRITE, me, read, write};
use std::sync::Arc;
use std::time::Duration;

#[test]
fn a_file_is_whole_on_two_nodes() {
    let world = World::new();
    let text = vec![7; 300_000];
    for name in ["a", "b", "c", "d", "e", "f"] {
        let (id, file) = world.create(name);
        write(&*file, 5, &text).unwrap();
        file.commit(0, 0).unwrap();
        let contents = world.contents(&id);
        assert_eq!(contents.len(), 2);
        assert!(contents.iter().all(|content| content[5..] == text[..]));
        assert_eq!(read(&*file, 0, 400_000).unwrap().len(), 300_005);
    }
    let used = |node: &Arc<SimNode>| {
        let component = |name: &&str| {
            let root = Store::root(world.store());
            let (id, _) = world.store().lookup(&me(), &root, name.as_bytes()).unwrap();
            world.component(&id)
        };
        ["a", "b", "c", "d", "e", "f"].iter().map(component).any(|id| !node.content(&id).is_empty())
    };
    assert!(world.nodes.iter().filter(|node| used(node)).count() >= 2);
    assert_eq!(world.store().capabilities().layouts, Some(LayoutForm::Copies));
}

#[test]
fn writes_without_a_node_reach_it_when_it_is_back() {
    let (mut world, id, file, copies) = World::with_file(b"before");
    file.commit(0, 0).unwrap();
    copies[0].set_away(true);
    write(&*file, 3, b"after").unwrap();
    file.commit(0, 0).unwrap();
    assert_eq!(world.fresh(&id), [false, true], "and nobody was kept waiting");
    assert_eq!(read(&*file, 0, 99).unwrap(), b"befafter");
    // The node is back with its old data.
    copies[0].set_away(false);
    assert_eq!(read(&*file, 0, 99).unwrap(), b"befafter");
    drop(file);
    world.reopen();
    assert_eq!(world.fresh(&id), [false, true], "another run knows of it");
    assert_eq!(read(&*world.file("f"), 0, 99).unwrap(), b"befafter");
    assert_eq!(world.to_repair(), 1);
    world.repair();
    assert_eq!((world.fresh(&id), world.to_repair()), (vec![true, true], 0));
    copies[1].set_away(true);
    assert_eq!(read(&*world.file("f"), 0, 99).unwrap(), b"befafter");
}

#[test]
fn a_file_waits_for_the_last_copy_that_is_up_to_date() {
    let (world, _id, file, copies) = World::with_file(b"old");
    copies[0].set_away(true);
    write(&*file, 0, b"new").unwrap();
    copies[0].set_away(false);
    copies[1].set_away(true);
    world.repair();
    assert_eq!(read(&*file, 0, 9), Err(StoreError::Busy), "never what is out of date");
    assert_eq!(write(&*file, 0, b"x"), Err(StoreError::Busy));
    assert_eq!(file.set_size(2), Err(StoreError::Busy));
    copies[1].set_away(false);
    assert_eq!(file.set_size(2), Ok(()));
    assert_eq!(read(&*file, 0, 9).unwrap(), b"ne");
}

#[test]
fn a_truncation_waits_for_no_node() {
    let (world, id, file, copies) = World::with_file(&[9; 9000]);
    copies[1].set_away(true);
    file.set_size(10).unwrap();
    assert_eq!(world.fresh(&id), [true, false]);
    file.set_size(5000).unwrap();
    copies[1].set_away(false);
    world.repair();
    assert_eq!(world.fresh(&id), [true, true]);
    copies[0].set_away(true);
    let mut wanted = vec![9; 10];
    wanted.resize(5000, 0);
    assert_eq!(read(&*file, 0, 9999).unwrap(), wanted);
}

#[test]
fn a_node_that_lost_what_was_not_stable_is_not_counted() {
    let (world, id, file, copies) = World::with_file(b"unstable");
    copies[0].lose_unstable();
    // Another write brings the new verifier along; it proves nothing about the first write.
    write(&*file, 8, b" and more").unwrap();
    let lost = world.around.lost();
    file.commit(0, 0).unwrap();
    assert_eq!(world.around.lost(), lost, "nobody has to write again");
    assert_eq!(world.fresh(&id), [false, true]);
    assert_eq!(read(&*file, 0, 99).unwrap(), b"unstable and more");
    world.repair();
    copies[1].set_away(true);
    assert_eq!(read(&*file, 0, 99).unwrap(), b"unstable and more");
}

#[test]
fn clients_write_again_what_all_copies_have_lost() {
    let (world, id, file, _) = World::with_file(b"stable");
    file.commit(0, 0).unwrap();
    write(&*file, 0, b"UN").unwrap();
    world.copies(&id).iter().for_each(|(node, _)| node.lose_unstable());
    let lost = world.around.lost();
    assert_eq!(file.commit(0, 0), Err(StoreError::Busy));
    assert!(world.around.lost() > lost);
    write(&*file, 0, b"UN").unwrap();
    file.commit(0, 0).unwrap();
    world.repair();
    assert_eq!(world.fresh(&id), [true, true]);
    assert_eq!(world.contents(&id), [b"UNable", b"UNable"]);
}

#[test]
fn copies_that_a_crash_has_torn_are_made_alike_and_one_is_read_before() {
    let (mut world, id, file, copies) = World::with_file(b"both");
    file.commit(0, 0).unwrap();
    let component = world.component(&id);
    drop(file);
    // The server died when it had written to one of the copies.
    put(&copies[1], &component, 2, b"ne and longer");
    world.reopen();
    let file = world.file("f");
    let first = read(&*file, 0, 99).unwrap();
    assert_eq!(first, b"both");
    assert_eq!(world.fresh(&id), [true, false], "one counts until they are alike");
    world.repair();
    assert_eq!(world.contents(&id), [b"both", b"both"]);
    assert_eq!(world.fresh(&id), [true, true]);
    // No writer is active, so another run need not compare the copies.
    drop(file);
    world.reopen();
    assert_eq!(world.fresh(&id), [true, true]);
    put(&copies[0], &component, 0, b"B");
    put(&copies[1], &component, 0, b"B");
    write(&*world.file("f"), 1, b"x").unwrap();
    world.reopen();
    assert_eq!(world.fresh(&id), [true, false]);
}

#[test]
fn a_write_waits_for_the_grants_of_an_unreachable_data_server() {
    let (world, id, file, copies) = World::with_file(b"old");
    copies[1].set_believes(true);
    copies[1].set_away(true);
    assert_eq!(
        write(&*file, 0, b"new"),
        Err(StoreError::Busy),
        "clients may be told the old there"
    );
    assert_eq!(file.set_size(1), Err(StoreError::Busy));
    copies[1].set_believes(false);
    write(&*file, 0, b"new").unwrap();
    let component = world.component(&id);
    let number = copies[1].number();
    assert!(!world.store().may_be_used(&component, number), "whatever layouts are out");
    assert!(world.store().may_be_used(&component, copies[0].number()));
    copies[1].set_away(false);
    world.repair();
    assert!(world.store().may_be_used(&component, number));
    assert!(copies[1].forgotten() > 0);
}

#[test]
fn writers_learn_of_a_full_node_and_the_copies_stay_equal() {
    let (world, id, file, copies) = World::with_file(b"old");
    copies[1].set_full(true);
    assert_eq!(write(&*file, 0, b"new"), Err(StoreError::NoSpace));
    copies[1].set_full(false);
    world.repair();
    let contents = world.contents(&id);
    assert_eq!(contents[0], contents[1]);
    assert_eq!(world.fresh(&id), [true, true]);
}

#[test]
fn this_server_does_not_write_beside_clients() {
    let (world, id, file, _) = World::with_file(b"old");
    let placement = world.layouts().placement(&id, true).unwrap().unwrap();
    assert_eq!(devices(&placement).len(), 2);
    assert_eq!(world.layouts().placement(&id, false).unwrap(), Some(placement));
    assert_eq!(write(&*file, 0, b"new"), Err(StoreError::Busy));
    let mut asked = Vec::new();
    world.layouts().take_write_recalls(&mut |file, recall| {
        asked.push((file, recall));
        false
    });
    assert_eq!(asked, [(id, true)]);
    assert_eq!(write(&*file, 0, b"new"), Err(StoreError::Busy));
    assert_eq!(world.layouts().placement(&id, true).unwrap(), None, "not before it has written");
    world.return_all();
    write(&*file, 0, b"new").unwrap();
}

#[test]
fn a_refresh_of_the_size_ends_no_layout() {
    let world = World::new();
    let (id, _) = world.create("f");
    world.file("f").commit(0, 0).unwrap();
    write(&*world.file("f"), 0, b"before").unwrap();
    let placed = world.layouts().placement(&id, true).unwrap().unwrap();
    let component = world.component(&id);
    for (node, _) in world.copies(&id) {
        put(&node, &component, 0, b"written beside");
    }
    world.layouts().refresh_size(&id).unwrap();
    assert_eq!(world.store().getattr(&id).unwrap().size, 14);
    assert_eq!(world.fresh(&id), [true, true]);
    let mut moved = Vec::new();
    world.layouts().take_moved(&mut |file| moved.push(file));
    assert_eq!(moved, []);
    assert_eq!(devices(&world.layouts().placement(&id, true).unwrap().unwrap()), devices(&placed));
}

#[test]
fn a_layout_granted_during_the_question_for_layouts_counts() {
    let (world, id, file, _) = World::with_file(b"old");
    world.layouts().placement(&id, true).unwrap().unwrap();
    // The store asks about idle files without a recall.
    world.repair();
    let mut asked = 0;
    world.layouts().take_write_recalls(&mut |file, recall| {
        asked += 1;
        assert_eq!((file, recall), (id, false));
        world.layouts().placement(&id, true).unwrap().unwrap();
        true
    });
    assert_eq!(asked, 1);
    assert_eq!(write(&*file, 0, b"new"), Err(StoreError::Busy));
}

#[test]
fn a_file_that_clients_write_is_not_repaired() {
    let (world, id, _file, copies) = World::with_file(b"old");
    copies[0].set_away(true);
    let placement = world.layouts().placement(&id, true).unwrap().unwrap();
    assert_eq!(devices(&placement).len(), 1, "what is there is enough");
    let component = world.component(&id);
    put(&copies[1], &component, 0, b"new");
    copies[0].set_away(false);
    world.repair();
    assert_eq!(world.fresh(&id), [false, true]);
    world.return_all();
    world.repair();
    assert_eq!(world.contents(&id), [b"new", b"new"]);
    assert_eq!(world.fresh(&id), [true, true]);
    let mut moved = Vec::new();
    world.layouts().take_moved(&mut |file| moved.push(file));
    assert!(moved.contains(&id), "clients ask again");
}

#[test]
fn a_device_that_a_client_cannot_write_to_is_done_without() {
    let world = World::new();
    let (id, _file) = world.create("f");
    let layouts = world.layouts();
    let both = devices(&layouts.placement(&id, true).unwrap().unwrap());
    layouts.report(&id, &DeviceKey([1; 16]), Failed).unwrap();
    assert_eq!(world.fresh(&id), [true, true]);
    layouts.report(&id, &both[0], Failed).unwrap();
    layouts.report(&id, &both[0], Failed).unwrap();
    let rest = devices(&layouts.placement(&id, true).unwrap().unwrap());
    assert_eq!(rest, both[1..], "at once");
    layouts.report(&id, &both[1], Failed).unwrap();
    assert_eq!(world.fresh(&id), [false, true], "the last one stays");
    // The client may be at fault, so the repair waits for a while.
    world.return_all();
    world.repair();
    assert_eq!(world.fresh(&id), [false, true]);
}

#[test]
fn a_client_that_went_between_two_copies_leaves_one_content() {
    let (world, id, file, copies) = World::with_file(b"old");
    file.commit(0, 0).unwrap();
    world.layouts().placement(&id, true).unwrap().unwrap();
    let component = world.component(&id);
    put(&copies[0], &component, 1, b"ew and long");
    world.layouts().recover_size(&id).unwrap();
    world.repair();
    world.return_all();
    assert_eq!(world.layouts().placement(&id, true).unwrap(), None, "not before they are alike");
    let placement = world.layouts().placement(&id, false).unwrap().unwrap();
    assert_eq!(devices(&placement).len(), 1, "one counts");
    let seen = read(&*file, 0, 99).unwrap();
    world.repair();
    let contents = world.contents(&id);
    assert_eq!(contents[0], contents[1]);
    assert_eq!(seen, contents[0]);
    assert_eq!(file.attr().unwrap().size, contents[0].len() as u64);
    assert_eq!(world.fresh(&id), [true, true]);
}

#[test]
fn a_removed_file_leaves_data_only_on_an_unreachable_node() {
    let (world, id, file, copies) = World::with_file(b"old");
    let root = Store::root(world.store());
    let component = world.component(&id);
    copies[0].set_away(true);
    write(&*file, 0, b"new").unwrap();
    drop(file);
    world.store().remove(&me(), &root, b"f").unwrap();
    world.repair();
    world.store().sweep();
    assert_eq!(copies[1].content(&component), b"");
    assert_eq!(copies[0].content(&component), b"old");
    copies[0].set_away(false);
    world.repair();
    world.store().sweep();
    assert_eq!(copies[0].content(&component), b"");
    assert_eq!(world.to_repair(), 0);
}

#[test]
fn a_new_file_is_placed_on_nodes_that_are_there() {
    let world = World::new();
    world.nodes[0].set_away(true);
    for name in ["a", "b", "c", "d"] {
        let (id, file) = world.create(name);
        write(&*file, 0, b"x").unwrap();
        assert_eq!(world.fresh(&id), [true, true]);
    }
    world.nodes[1].set_away(true);
    let (id, file) = world.create("e");
    write(&*file, 0, b"x").unwrap();
    assert_eq!(world.fresh(&id), [true, false], "one is enough, and more are made later");
    world.nodes.iter().for_each(|node| node.set_away(false));
    world.repair();
    assert_eq!(world.contents(&id), [b"x", b"x"]);
}

#[test]
fn writes_reach_all_copies_in_one_order_during_a_repair() {
    let (world, id, file, copies) = World::with_file(&vec![0; 4 << 20]);
    for round in 0..3_u8 {
        copies[usize::from(round % 2)].set_away(true);
        write(&*file, 0, b"away").unwrap();
        copies[usize::from(round % 2)].set_away(false);
        std::thread::scope(|scope| {
            for writer in 0..3_u8 {
                let file = file.clone();
                scope.spawn(move || {
                    for at in 0..60_u64 {
                        let bytes = vec![round * 8 + writer + 1; 90_000];
                        write(&*file, at * 60_000, &bytes).unwrap();
                    }
                });
            }
            scope.spawn(|| world.repair());
        });
        world.repair();
        assert_eq!(world.fresh(&id), [true, true]);
        let contents = world.contents(&id);
        assert!(contents[0] == contents[1], "the copies differ");
    }
}

#[test]
fn a_repair_ends_with_its_source() {
    let (world, id, file, copies) = World::with_file(&vec![1; 3 << 20]);
    copies[0].set_away(true);
    write(&*file, 0, &vec![2; 3 << 20]).unwrap();
    file.commit(0, 0).unwrap();
    copies[0].set_away(false);
    // The source of the repair loses unstable data between two pieces.
    write(&*file, 2 << 20, &[3; 9]).unwrap();
    let pieces = std::cell::Cell::new(0);
    world.store().repair(Duration::from_secs(9), &|bytes| {
        pieces.set(pieces.get() + usize::from(bytes > 0));
        if pieces.get() == 1 && bytes > 0 {
            copies[1].lose_unstable();
        }
        true
    });
    assert!(pieces.get() >= 1);
    assert_eq!(world.fresh(&id), [false, true]);
    world.repair();
    world.repair();
    let contents = world.contents(&id);
    assert!(contents[0] == contents[1], "the copies differ");
}

#[test]
fn clients_get_no_layout_while_the_repair_of_a_piece_takes_long() {
    let (world, id, file, copies) = World::with_file(&vec![1; 2 << 20]);
    file.commit(0, 0).unwrap();
    copies[0].set_away(true);
    write(&*file, 0, &vec![2; 2 << 20]).unwrap();
    file.commit(0, 0).unwrap();
    copies[0].set_away(false);
    let pieces = std::cell::Cell::new(0);
    world.store().repair(Duration::ZERO, &|bytes| {
        pieces.set(pieces.get() + usize::from(bytes > 0));
        if bytes > 0 && pieces.get() == 1 {
            // Longer than `REPAIR_BAR` keeps clients from layouts.
            world.around.sleep(Duration::from_secs(11));
            assert_eq!(world.layouts().placement(&id, true), Ok(None));
        }
        true
    });
    assert!(pieces.get() >= 2);
    assert_eq!(world.fresh(&id), [true, true]);
    assert!(world.layouts().placement(&id, true).unwrap().is_some());
}

#[test]
fn a_device_without_room_keeps_its_copy() {
    let (world, id, file, _) = World::with_file(b"old");
    let layouts = world.layouts();
    let both = devices(&layouts.placement(&id, true).unwrap().unwrap());
    // The data that the full second device lacks has reached the first one.
    put(&world.copies(&id)[0].0, &world.component(&id), 0, b"new and longer");
    layouts.report(&id, &both[1], Full).unwrap();
    layouts.report(&id, &DeviceKey([1; 16]), Full).unwrap();
    assert_eq!(world.fresh(&id), [false, true], "the full one counts");
    assert_eq!(world.to_repair(), 0, "neither is given up");
    assert_eq!(layouts.placement(&id, true), Err(StoreError::NoSpace), "who would write is told");
    // Neither a repeated report nor one about an unknown device starts anything again.
    layouts.report(&id, &both[0], Full).unwrap();
    assert_eq!(world.fresh(&id), [false, true]);
    world.repair();
    world.return_all();
    world.repair();
    assert_eq!(world.fresh(&id), [true, true]);
    assert!(world.contents(&id).iter().all(|content| content.starts_with(b"old")));
    // Nor does the lost data reappear.
    file.set_size(9).unwrap();
    assert_eq!(read(&*file, 0, 99).unwrap(), b"old\0\0\0\0\0\0");
}

#[test]
fn a_report_about_a_device_from_before_a_restart_counts() {
    let world = World::new();
    let (id, _file) = world.create("f");
    let layouts = world.layouts();
    let both = devices(&layouts.placement(&id, true).unwrap().unwrap());
    world.copies(&id)[1].0.set_run(2);
    let again = devices(&layouts.placement(&id, false).unwrap().unwrap());
    assert!(again[0] == both[0] && again[1] != both[1], "clients ask anew what it is");
    layouts.report(&id, &both[1], Failed).unwrap();
    assert_eq!(world.fresh(&id), [true, false]);
}

#[test]
fn a_repair_makes_copies_equal_after_a_refused_write() {
    let (world, id, file, copies) = World::with_file(b"old");
    copies[1].set_away(true);
    // Nor can the store record the stale copy.
    let (repairs, aside) = (world.dir.path().join("repairs"), world.dir.path().join("aside"));
    std::fs::rename(&repairs, &aside).unwrap();
    assert!(write(&*file, 0, b"new").is_err());
    std::fs::rename(&aside, &repairs).unwrap();
    copies[1].set_away(false);
    world.repair();
    let contents = world.contents(&id);
    assert_eq!(contents[0], contents[1]);
    assert_eq!(world.fresh(&id), [true, true]);
}

#[test]
fn a_copy_that_was_made_alike_is_so_no_more_after_a_refused_write() {
    let mut world = World::with_copies(3);
    let (_, file) = world.create("f");
    write(&*file, 0, b"old").unwrap();
    drop(file);
    world.reopen();
    let file = world.file("f");
    let id = file.id();
    read(&*file, 0, 9).unwrap();
    // The first copy is authoritative. The second one is made equal to it, and then its node is
    // full.
    world.nodes.iter().for_each(|node| node.set_away(true));
    let all = world.layouts().copies(&id).unwrap();
    let node = |at: usize| &world.nodes[all[at].node as usize - 1];
    node(0).set_away(false);
    node(1).set_away(false);
    world.repair();
    node(2).set_away(false);
    node(1).set_full(true);
    assert_eq!(write(&*file, 0, b"new"), Err(StoreError::NoSpace));
    node(1).set_full(false);
    world.repair();
    assert_eq!(world.fresh(&id), [true, true, true]);
    let contents = world.contents(&id);
    assert!(contents.iter().all(|content| *content == contents[0]), "{contents:?}");
}

#[test]
fn files_beyond_the_torn_table_lose_no_data() {
    let world = World::new();
    for number in 0..4096 {
        write(&*world.create(&format!("other {number}")).1, 0, b"x").unwrap();
    }
    let (id, file) = world.create("f");
    write(&*file, 0, b"acknowledged").unwrap();
    let copies = world.copies(&id);
    drop(file);
    copies[0].0.lose_unstable();
    let file = world.file("f");
    file.commit(0, 0).unwrap();
    drop(file);
    copies[1].0.lose_unstable();
    assert_eq!(read(&*world.file("f"), 0, 99).unwrap(), b"acknowledged");
}

#[test]
fn this_server_does_not_cut_beside_clients() {
    let (world, id, file, _) = World::with_file(b"content");
    world.layouts().placement(&id, true).unwrap().unwrap();
    assert_eq!(file.set_size(3), Err(StoreError::Busy));
    assert_eq!(read(&*file, 0, 99).unwrap(), b"content");
    let mut asked = Vec::new();
    world.layouts().take_write_recalls(&mut |file, recall| {
        asked.push((file, recall));
        true
    });
    assert_eq!(asked, [(id, true)]);
    file.set_size(3).unwrap();
    assert_eq!(world.contents(&id), [b"con", b"con"]);
}

#[test]
fn a_node_that_serves_others_first_keeps_its_copy() {
    let (world, id, file, copies) = World::with_file(b"old text");
    let crowd = |calls| copies[1].set_crowded(calls);
    crowd(3);
    write(&*file, 0, b"new").unwrap();
    crowd(3);
    file.commit(0, 0).unwrap();
    crowd(1);
    assert_eq!(world.layouts().placement(&id, true).unwrap(), None, "it has enough to do");
    assert_eq!((world.fresh(&id), world.to_repair()), (vec![true, true], 0));
    // After the last attempt the writer gets an error, and the copies are made equal again.
    crowd(u32::MAX);
    assert_eq!(write(&*file, 0, b"NEW"), Err(StoreError::Busy));
    assert_eq!(world.to_repair(), 0, "none is out of date");
    crowd(2);
    (0..3).for_each(|_| world.repair());
    assert_eq!(world.fresh(&id), [true, true]);
    assert_eq!(world.contents(&id)[0], world.contents(&id)[1]);
}

#[test]
fn readers_wait_for_the_node_of_the_authoritative_copy() {
    let (mut world, id, file, copies) = World::with_file(b"both");
    drop(file);
    put(&copies[1], &world.component(&id), 0, b"LATE");
    world.reopen();
    let file = world.file("f");
    copies[0].set_crowded(1);
    assert_eq!(read(&*file, 0, 99), Err(StoreError::Busy));
    assert_eq!(read(&*file, 0, 99).unwrap(), b"both", "another one would be another content");
}

/// A caller who repeats the create would find the file.
#[test]
fn a_new_file_that_cannot_be_placed_leaves_no_name() {
    let world = World::new();
    let (list, elsewhere) = (world.dir.path().join("repairs"), world.dir.path().join("moved"));
    world.nodes[1..].iter().for_each(|node| node.set_away(true));
    let root = Store::root(world.store());
    let create = || {
        let wish = SetAttr { size: Some(5), ..SetAttr::default() };
        world.store().create(&me(), &root, b"f", CreateHow::Guarded, &wish, READ_WRITE)
    };
    // Its stale copy cannot be listed for repair.
    std::fs::rename(&list, &elsewhere).unwrap();
    assert!(create().is_err());
    assert_eq!(world.store().lookup(&me(), &root, b"f").err(), Some(StoreError::NotFound));
    std::fs::rename(&elsewhere, &list).unwrap();
    assert_eq!(create().map(|created| created.attr.size), Ok(5));
}
