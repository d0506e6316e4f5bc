//! A node that has lost all its data. Its copies are given up, and repaired when it is back.

use crate::common::copies::World;
use dafs_store::node::Node;
use dafs_store::*;
use dafs_testkit::stores::{me, read, write};

/// Walks through all files and gives up their copies on a node. Returns the number of files.
fn give_up(world: &World, number: u32) -> Result<usize> {
    let mut walk = world.store().walk();
    let mut count = 0;
    while let Some(files) = world.store().relying_on(number, &mut walk)? {
        for file in files {
            world.store().give_up_lost(&file, number)?;
            count += 1;
        }
    }
    assert!(world.store().met_all(&walk));
    world.store().give_up_lost_in_use(number)?;
    Ok(count)
}

#[test]
fn a_repair_restores_the_data_of_a_lost_disk() {
    let mut world = World::new();
    let text = |number: usize| vec![number as u8 + 1; 100_000 + number];
    let files: Vec<_> = (0..6).map(|number| world.create(&format!("f{number}"))).collect();
    for (number, (_, file)) in files.iter().enumerate() {
        write(&**file, 0, &text(number)).unwrap();
        file.commit(0, 0).unwrap();
    }
    let ids: Vec<_> = files.iter().map(|(id, _)| *id).collect();
    let on = |world: &World, id: &FileId, number: u32| {
        world.copies(id).iter().any(|(node, _)| node.number() == number)
    };
    let number =
        (1..=3).max_by_key(|&n| ids.iter().filter(|id| on(&world, id, n)).count()).unwrap();
    let there: Vec<_> = ids.iter().filter(|id| on(&world, id, number)).copied().collect();
    let node = world.nodes[number as usize - 1].clone();
    assert_eq!(world.store().set_lost(number, true), Err(StoreError::Busy), "it is there");
    assert_eq!(world.store().set_lost(9, true), Err(StoreError::NotFound));
    node.set_away(true);
    // One of the files is open and has no name.
    let gone = ids.iter().position(|id| *id == there[0]).unwrap();
    let root = Store::root(world.store());
    world.store().remove(&me(), &root, format!("f{gone}").as_bytes()).unwrap();
    world.store().set_lost(number, true).unwrap();
    assert_eq!(give_up(&world, number), Ok(there.len() - 1));
    assert_eq!(give_up(&world, number), Ok(0), "nothing relies on it any more");
    for id in &there {
        let fresh = world.copies(id).iter().filter(|(_, fresh)| *fresh).count();
        assert_eq!(fresh, 1, "one copy counts");
    }
    assert!(there.iter().all(|id| { !world.store().may_be_used(&world.component(id), number) }));
    node.lose_all();
    node.set_away(false);
    world.store().set_lost(number, false).unwrap();
    world.repair();
    assert_eq!(read(&*files[gone].1, 0, 200_000).unwrap(), text(gone));
    drop(files);
    world.reopen();
    world
        .nodes
        .iter()
        .filter(|other| other.number() != number)
        .for_each(|node| node.set_away(true));
    for id in &there[1..] {
        let at = ids.iter().position(|known| known == id).unwrap();
        assert!(read(&*world.file(&format!("f{at}")), 0, 200_000).unwrap() == text(at));
    }
    assert_eq!(world.to_repair(), 0);
}

#[test]
fn that_a_disk_is_lost_is_known_after_a_restart_until_all_is_given_up() {
    let (mut world, id, file, _) = World::with_file(b"text");
    drop(file);
    let number = world.copies(&id)[0].0.number();
    world.nodes[number as usize - 1].set_away(true);
    world.store().set_lost(number, true).unwrap();
    world.reopen();
    assert_eq!(world.store().lost(), [number]);
    assert_eq!(give_up(&world, number), Ok(1));
    world.store().set_lost(number, false).unwrap();
    world.reopen();
    assert_eq!((world.store().lost(), world.fresh(&id)), (vec![], vec![false, true]));
}

#[test]
fn the_only_copy_is_not_given_up() {
    let (world, id, file, copies) = World::with_file(b"old");
    copies[1].set_away(true);
    write(&*file, 0, b"new").unwrap();
    copies[1].set_away(false);
    copies[0].set_away(true);
    let number = copies[0].number();
    world.store().set_lost(number, true).unwrap();
    assert_eq!(give_up(&world, number), Err(StoreError::Busy));
    assert_eq!(world.fresh(&id), [true, false]);
    // The disk has reappeared.
    copies[0].set_away(false);
    world.store().set_lost(number, false).unwrap();
    assert_eq!(read(&*file, 0, 9).unwrap(), b"new");

    let striped = World::with_copies(1);
    let (_, file) = striped.create("f");
    write(&*file, 0, &[7; 50_000]).unwrap();
    striped.nodes[1].set_away(true);
    striped.store().set_lost(2, true).unwrap();
    assert_eq!(give_up(&striped, 2), Err(StoreError::NotSupported));
}
