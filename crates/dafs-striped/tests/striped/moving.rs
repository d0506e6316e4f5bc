//! Files that move off a node while they are in use.

use crate::common::steps::{Step, run, steps};
use crate::common::striped::{
    Faulty, UNIT, UNIT64, base, components, create, faulty, layouts, node, open, open_on,
    open_with, opened, pattern, reopen, sealed, stripes, with_file, with_file_on_faulty,
};
use dafs_store::*;
use dafs_striped::{Relocation, StripedStore};
use dafs_testkit::stores::{READ_WRITE, me, read, write};
use proptest::prelude::*;
use std::path::Path;
use std::sync::Arc;

/// Walks through all files, and moves those that it meets.
fn empty(store: &StripedStore) {
    for _ in 0..3 {
        let mut walk = store.walk();
        while let Some(files) = store.misplaced(&mut walk).unwrap() {
            for file in files {
                let mut relocation = store.begin_move(&file).unwrap().unwrap();
                while !relocation.step().unwrap() {}
            }
        }
        assert!(store.met_all(&walk));
    }
    store.sweep();
}

/// Returns the number of components on a node.
fn left(base: &Path, number: u32) -> usize {
    let node = base.join(format!("node{number}"));
    components(base).iter().filter(|(path, _)| path.starts_with(&node)).count()
}

#[test]
fn a_node_is_emptied_and_takes_no_new_files() {
    let (dir, store) = opened();
    let long = pattern(9 * UNIT as usize + 5, 4);
    let root = Store::root(&store);
    let below = store.make(&me(), &root, b"d", NewObject::Directory, &SetAttr::default()).unwrap();
    for (dir, name) in [(&root, b"a"), (&below.id, b"b")] {
        let (how, none) = (CreateHow::Guarded, SetAttr::default());
        let made = store.create(&me(), dir, name, how, &none, READ_WRITE).unwrap();
        write(&*made.file, 0, &long).unwrap();
    }
    let (id, file) = reopen(&store, "a");
    let before = layouts(&store).placement(&id, false).unwrap().unwrap();
    assert_eq!(store.set_leaving(9, true), Err(StoreError::NotFound));
    store.set_leaving(3, true).unwrap();
    assert!(!store.is_idle(3).unwrap());
    empty(&store);
    assert_eq!((left(dir.path(), 3), store.is_idle(3)), (0, Ok(true)));
    let after = layouts(&store).placement(&id, false).unwrap().unwrap();
    assert_ne!(before.epoch, after.epoch);
    let numbers: Vec<_> = stripes(after).handles.iter().map(|handle| sealed(handle).node).collect();
    assert!(numbers.len() == 3 && !numbers.contains(&3), "{numbers:?}");
    assert_eq!(read(&*file, 0, long.len() + 9).unwrap(), long);
    write(&*create(&store, "new").file, 0, &long).unwrap();
    assert_eq!(left(dir.path(), 3), 0);
    // Two nodes are left: one may leave, and the last may not.
    store.set_leaving(2, true).unwrap();
    assert_eq!(store.set_leaving(1, true), Err(StoreError::Invalid));
    empty(&store);
    assert_eq!((left(dir.path(), 2), left(dir.path(), 1)), (0, 3));
    drop((file, store));
    let store = open(dir.path());
    assert_eq!(store.leaving(), [2, 3], "after a restart too");
    assert_eq!(read(&*reopen(&store, "a").1, 0, long.len() + 9).unwrap(), long);
    assert_eq!(read(&*reopen(&store, "new").1, 0, long.len() + 9).unwrap(), long);
    store.remove_node(3).unwrap();
    assert_eq!(store.remove_node(1), Err(StoreError::Busy));
    store.set_leaving(2, false).unwrap();
    assert!(store.leaving().is_empty());
}

#[test]
fn one_node_takes_files_when_all_others_were_taken_away() {
    let (dir, store) = opened();
    (1..3).for_each(|number| store.set_leaving(number, true).unwrap());
    drop(store);
    let store = open_with(dir.path(), vec![node(dir.path(), 1), node(dir.path(), 2)]);
    assert!(store.leaving().is_empty());
    write(&*create(&store, "f").file, 0, &pattern(9 * UNIT as usize, 1)).unwrap();
}

#[test]
fn a_node_that_is_taken_in_gets_what_another_one_loses() {
    let (dir, store) = opened();
    let long = pattern(30 * UNIT as usize, 4);
    let (id, file) = {
        let created = create(&store, "f");
        (created.id, created.file)
    };
    write(&*file, 0, &long).unwrap();
    store.add_node(node(dir.path(), 4)).unwrap();
    assert_eq!(store.add_node(node(dir.path(), 4)), Err(StoreError::Invalid));
    store.set_leaving(1, true).unwrap();
    empty(&store);
    assert_eq!(left(dir.path(), 1), 0);
    let placement = stripes(layouts(&store).placement(&id, false).unwrap().unwrap());
    let numbers: Vec<_> = placement.handles.iter().map(|handle| sealed(handle).node).collect();
    assert_eq!(numbers, [4, 2, 3]);
    assert_eq!(read(&*file, 0, long.len()).unwrap(), long);
    store.remove_node(1).unwrap();
    write(&*create(&store, "g").file, 0, &long).unwrap();
    assert_eq!(read(&*reopen(&store, "g").1, 0, long.len()).unwrap(), long);
}

#[test]
fn while_a_file_is_moved_clients_go_through_the_server() {
    let (_dir, store, created) = with_file(&pattern(9 * UNIT as usize, 1));
    let placement = stripes(layouts(&store).placement(&created.id, true).unwrap().unwrap());
    let handle = sealed(&placement.handles[0]);
    store.admits(&handle).unwrap();
    store.set_leaving(2, true).unwrap();
    let relocation = store.begin_move(&created.id).unwrap().unwrap();
    assert_eq!(layouts(&store).placement(&created.id, true), Ok(None));
    assert_eq!(store.admits(&handle), Err(StoreError::Busy));
    assert_eq!(store.begin_move(&created.id).err(), Some(StoreError::Busy), "once at a time");
    drop(relocation);
    store.admits(&handle).unwrap();
    assert!(layouts(&store).placement(&created.id, true).unwrap().is_some());
}

#[test]
fn a_file_that_is_removed_while_it_is_moved_leaves_nothing() {
    let (dir, store) = opened();
    // A node without data of the file.
    store.add_node(node(dir.path(), 4)).unwrap();
    store.set_leaving(4, true).unwrap();
    for steps in 0..18 {
        let created = create(&store, "f");
        write(&*created.file, 0, &pattern(9 * UNIT as usize, 1)).unwrap();
        store.set_leaving(2, true).unwrap();
        store.set_leaving(4, false).unwrap();
        let mut relocation = store.begin_move(&created.id).unwrap().unwrap();
        let is_done = (0..steps / 2).any(|_| relocation.step().unwrap());
        store.remove(&me(), &Store::root(&store), b"f").unwrap();
        if steps % 2 == 1 && !is_done {
            while relocation.step() == Ok(false) {}
        }
        assert_eq!(read(&*created.file, 0, 5).unwrap(), pattern(5, 1));
        store.sweep();
        drop(relocation);
        store.sweep();
        assert_eq!(read(&*created.file, 0, 5).unwrap(), pattern(5, 1));
        drop(created);
        store.sweep();
        assert!(components(dir.path()).is_empty(), "{steps}");
        assert!(store.is_idle(2).unwrap());
        store.set_leaving(2, false).unwrap();
        store.set_leaving(4, true).unwrap();
    }
}

#[test]
fn two_writers_come_to_both_nodes_of_a_moved_file_in_one_order() {
    let (_dir, store, nodes, created) = with_file_on_faulty(&pattern(9 * UNIT as usize, 1));
    let placement = stripes(layouts(&store).placement(&created.id, false).unwrap().unwrap());
    let place = placement.handles.iter().position(|handle| sealed(handle).node == 1).unwrap();
    let offset = (place + 3 - placement.first_place as usize) as u64 % 3 * UNIT64;
    store.set_leaving(1, true).unwrap();
    let mut relocation = store.begin_move(&created.id).unwrap().unwrap();
    assert!(!relocation.step().unwrap());
    nodes[1..].iter().for_each(|node| {
        node.next_write_ms.store(500, std::sync::atomic::Ordering::SeqCst);
    });
    std::thread::scope(|scope| {
        scope.spawn(|| write(&*created.file, offset, b"one").unwrap());
        std::thread::sleep(std::time::Duration::from_millis(200));
        write(&*created.file, offset, b"two").unwrap();
    });
    let before = read(&*created.file, offset, 3).unwrap();
    while !relocation.step().unwrap() {}
    assert_eq!(read(&*created.file, offset, 3).unwrap(), before);
}

#[test]
fn a_node_is_not_empty_while_something_cannot_be_looked_at() {
    let (dir, store) = opened();
    let file = create(&store, "f").file;
    write(&*file, 0, &pattern(9 * UNIT as usize, 1)).unwrap();
    drop((file, store));
    let (path, none) = (dir.path().join("meta/f"), rustix::fs::XattrFlags::empty());
    let mut record = [0; 4096];
    let len = rustix::fs::getxattr(&path, c"user.dafs.stripes", &mut record).unwrap();
    rustix::fs::setxattr(&path, c"user.dafs.stripes", b"damaged", none).unwrap();
    let store = open(dir.path());
    store.set_leaving(2, true).unwrap();
    let look = || {
        let mut walk = store.walk();
        let mut found = Vec::new();
        while let Some(files) = store.misplaced(&mut walk).unwrap() {
            found.extend(files);
        }
        (found.len(), store.met_all(&walk), walk.unseen().is_some())
    };
    assert_eq!(look(), (0, false, true));
    rustix::fs::setxattr(&path, c"user.dafs.stripes", &record[..len], none).unwrap();
    assert_eq!(look(), (1, true, false));
}

#[test]
fn a_new_node_that_lost_something_meanwhile_does_not_get_the_file() {
    let (dir, store, nodes, created) = with_file_on_faulty(&pattern(9 * UNIT as usize, 1));
    store.set_leaving(1, true).unwrap();
    let mut relocation = store.begin_move(&created.id).unwrap().unwrap();
    assert!(!relocation.step().unwrap());
    nodes[1..].iter().for_each(|node| {
        node.restarts.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    });
    let end = std::iter::repeat_with(|| relocation.step()).find(|step| *step != Ok(false));
    assert_eq!(end, Some(Err(StoreError::Busy)));
    // The loss of other data is reported first; then the step finds that the new node has lost the
    // copy.
    let _ = relocation.step();
    assert!(relocation.has_failed());
    drop(relocation);
    empty(&store);
    assert_eq!(left(dir.path(), 1), 0);
    assert_eq!(read(&*created.file, 0, 9 * UNIT as usize).unwrap(), pattern(9 * UNIT as usize, 1));
}

#[derive(Debug, Clone)]
enum Event {
    Step(Step),
    Away(usize, bool),
    /// The mover does this many steps.
    Move(usize),
    Sweep,
    Leave(u32, bool),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let other = prop_oneof![
        2 => (0..3_usize, any::<bool>()).prop_map(|(node, away)| Event::Away(node, away)),
        6 => (1..6_usize).prop_map(Event::Move),
        1 => Just(Event::Sweep),
        1 => (1..4_u32, any::<bool>()).prop_map(|(node, leaves)| Event::Leave(node, leaves)),
    ];
    let step =
        steps().prop_map(|steps| steps.into_iter().take(3).map(Event::Step).collect::<Vec<_>>());
    let others = proptest::collection::vec(other, 1..4);
    let round = (step, others).prop_map(|(steps, others)| [steps, others].concat());
    proptest::collection::vec(round, 1..12).prop_map(|rounds| rounds.concat())
}

/// Moves a file, and is interrupted at any step.
#[derive(Default)]
struct Mover(Option<Relocation>);

impl Mover {
    fn advance(&mut self, store: &StripedStore, id: &FileId) {
        let Some(relocation) = &mut self.0 else {
            self.0 = store.begin_move(id).unwrap_or_else(|error| {
                assert_eq!(error, StoreError::Busy);
                None
            });
            return;
        };
        match relocation.step() {
            Ok(true) => self.0 = None,
            Ok(false) => {}
            Err(StoreError::Busy) if relocation.has_failed() => self.0 = None,
            Err(error) => assert_eq!(error, StoreError::Busy),
        }
    }
}

fn set_all_up(nodes: &[Arc<Faulty>]) {
    nodes.iter().for_each(|node| node.set_down(false));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    /// With any operations during the move, and a stop of the server anywhere, no data is lost, and
    /// in the end no unused component remains.
    #[test]
    fn a_file_that_is_moved_is_as_one_that_is_not(events in events()) {
        let dir = base();
        let (mut store, nodes) = faulty(dir.path());
        let created = create(&store, "f");
        let (mut id, mut file) = (created.id, created.file);
        let mut mover = Mover::default();
        let mut model: Vec<u8> = Vec::new();
        for event in events {
            match event {
                Event::Away(node, away) => nodes[node].set_down(away),
                Event::Move(steps) => (0..steps).for_each(|_| mover.advance(&store, &id)),
                Event::Sweep => store.sweep(),
                Event::Leave(node, leaves) => drop(store.set_leaving(node, leaves)),
                Event::Step(Step::Reopen) => {
                    drop((std::mem::take(&mut mover), file, store));
                    store = open_on(dir.path(), &nodes);
                    (id, file) = reopen(&store, "f");
                }
                Event::Step(step) => {
                    if !run(step, &*file, &mut model, true) {
                        continue;
                    }
                }
            }
            prop_assert_eq!(file.attr().unwrap().size, model.len() as u64);
        }
        drop(mover);
        set_all_up(&nodes);
        prop_assert_eq!(&read(&*file, 0, model.len() + 9).unwrap(), &model);
        let leaving = store.leaving();
        empty(&store);
        for number in leaving {
            prop_assert_eq!(left(dir.path(), number), 0);
            prop_assert!(store.is_idle(number).unwrap());
        }
        prop_assert_eq!(&read(&*file, 0, model.len() + 9).unwrap(), &model);
        // No data reappears behind the end on any node.
        file.set_size(UNIT64).unwrap();
        file.set_size(9 * UNIT64).unwrap();
        model.resize(UNIT as usize, 0);
        model.resize(9 * UNIT as usize, 0);
        prop_assert_eq!(&read(&*file, 0, model.len()).unwrap(), &model);
        drop(file);
        store.remove(&me(), &Store::root(&store), b"f").unwrap();
        store.sweep();
        prop_assert!(components(dir.path()).is_empty());
    }
}
