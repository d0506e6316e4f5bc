//! Files spread over nodes of which some are unreachable: which operations go on, which wait, and
//! what is repaired when the nodes are back.

use crate::common::steps::{Step, run, steps};
use crate::common::striped::{
    UNIT, UNIT64, base, components, create, faulty, layouts, open_on, pattern, reopen, sealed,
    stripes, with_file_on_faulty, write_behind,
};
use dafs_store::*;
use dafs_striped::StripedStore;
use dafs_testkit::stores::{me, read, write};
use proptest::prelude::*;
use std::sync::atomic::Ordering;

#[test]
fn a_truncation_waits_for_an_unreachable_node_while_that_may_hold_grants() {
    let (dir, _store, nodes, created) = with_file_on_faulty(&pattern(6 * UNIT as usize, 9));
    nodes[1].set_down(true);
    nodes[1].believes.store(true, Ordering::SeqCst);
    assert_eq!(created.file.set_size(100), Err(StoreError::Busy));
    assert_eq!(read(&*created.file, 0, 9999), Err(StoreError::Busy), "not by halves");
    nodes[1].believes.store(false, Ordering::SeqCst);
    created.file.set_size(100).unwrap();
    assert_eq!(created.file.attr().unwrap().size, 100);
    nodes[1].set_down(false);
    assert_eq!(read(&*created.file, 0, 9999).unwrap(), &pattern(100, 9)[..]);
    assert!(components(dir.path()).iter().all(|(_, size)| *size <= 100));
}

#[test]
fn clients_get_no_component_with_a_pending_truncation() {
    let (dir, store, nodes, created) = with_file_on_faulty(&pattern(6 * UNIT as usize, 9));
    let placement = stripes(layouts(&store).placement(&created.id, true).unwrap().unwrap());
    let handles: Vec<_> = placement.handles.iter().map(|handle| sealed(handle)).collect();
    nodes[1].set_down(true);
    created.file.set_size(100).unwrap();
    created.file.set_size(6 * UNIT64).unwrap();
    let admitted = |store: &StripedStore| -> Vec<_> {
        handles.iter().map(|handle| store.admits(handle).is_ok()).collect()
    };
    // Its data server asks when it is back; the component keeps its old data until the store
    // truncates it.
    nodes[1].set_down(false);
    assert_eq!(admitted(&store), [true, false, true]);
    nodes[1].set_down(true);
    assert_eq!(layouts(&store).placement(&created.id, false), Ok(None), "nobody else goes there");
    drop((created, store));
    let store = open_on(dir.path(), &nodes);
    let (id, _file) = reopen(&store, "f");
    assert_eq!(layouts(&store).placement(&id, true), Ok(None), "after a restart");
    assert_eq!(admitted(&store), [true, false, true]);
    nodes[1].set_down(false);
    store.sweep();
    assert_eq!(admitted(&store), [true; 3]);
    assert!(components(dir.path()).iter().all(|(_, size)| *size <= 100));
    assert!(layouts(&store).placement(&id, true).unwrap().is_some());
}

#[test]
fn files_are_spread_also_while_a_node_was_not_there_yet_since_the_start() {
    let dir = base();
    let (store, nodes) = faulty(dir.path());
    let created = create(&store, "f");
    let (id, at) = (created.id, 5 * UNIT64);
    write_behind(&store, dir.path(), &id, at, b"written");
    drop((created, store));
    let set_away = |away| {
        nodes[1].set_down(away);
        nodes[1].unheard_of.store(away, Ordering::SeqCst);
    };
    set_away(true);
    let store = open_on(dir.path(), &nodes);
    assert_eq!(store.capabilities().layouts, Some(LayoutForm::Stripes));
    assert_eq!(
        layouts(&store).refresh_size(&id),
        Err(StoreError::Busy),
        "not as if nobody had written"
    );
    assert_eq!(layouts(&store).placement(&id, false), Ok(None));
    let mut nodes_of_file = layouts(&store).nodes(&id).unwrap();
    nodes_of_file.sort_unstable();
    assert_eq!(nodes_of_file, [1, 2, 3], "an administrator sees where it lies");
    set_away(false);
    layouts(&store).refresh_size(&id).unwrap();
    let (_, file) = reopen(&store, "f");
    assert_eq!(read(&*file, at, 99).unwrap(), b"written");
    assert!(layouts(&store).placement(&id, true).unwrap().is_some());
}

#[test]
fn a_commit_waits_for_no_node() {
    let dir = base();
    let (store, nodes) = faulty(dir.path());
    let id = create(&store, "f").id;
    write_behind(&store, dir.path(), &id, 5000, b"written");
    nodes.iter().for_each(|node| node.set_down(true));
    let layouts = layouts(&store);
    assert_eq!(layouts.commit(&id, Some(5007)), Ok(5007));
    assert_eq!(layouts.recover_size(&id), Err(StoreError::Busy));
    store.remove(&me(), &Store::root(&store), b"f").unwrap();
    assert_eq!(layouts.recover_size(&id), Err(StoreError::Stale), "of a file that is gone");
}

#[derive(Debug, Clone)]
enum Fault {
    Step(Step),
    Away(usize, bool),
}

fn faults() -> impl Strategy<Value = Vec<Fault>> {
    let away = (0..3_usize, any::<bool>()).prop_map(|(node, away)| Fault::Away(node, away));
    let step = steps().prop_map(|steps| steps.into_iter().map(Fault::Step).collect::<Vec<_>>());
    let some = proptest::collection::vec(away, 1..3);
    proptest::collection::vec((step, some).prop_map(|(a, b)| [a, b].concat()), 1..6)
        .prop_map(|all| all.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    /// With any nodes unreachable, reads and sizes are right.
    #[test]
    fn unreachable_nodes_change_only_waits(faults in faults()) {
        let dir = base();
        let (mut store, nodes) = faulty(dir.path());
        let mut file = create(&store, "f").file;
        let mut model: Vec<u8> = Vec::new();
        for fault in faults {
            match fault {
                Fault::Away(node, away) => nodes[node].set_down(away),
                Fault::Step(Step::Reopen) => {
                    drop(file);
                    drop(store);
                    store = open_on(dir.path(), &nodes);
                    file = reopen(&store, "f").1;
                }
                Fault::Step(step) => {
                    if !run(step, &*file, &mut model, true) {
                        continue;
                    }
                }
            }
            prop_assert_eq!(file.attr().unwrap().size, model.len() as u64);
        }
        nodes.iter().for_each(|node| node.set_down(false));
        prop_assert_eq!(read(&*file, 0, model.len() + 9).unwrap(), model);
    }
}

#[test]
fn a_removal_waits_for_a_node_that_is_away() {
    let dir = base();
    let (store, nodes) = faulty(dir.path());
    write(&*create(&store, "f").file, 0, &pattern(5 * UNIT as usize, 4)).unwrap();
    nodes[2].down.store(true, Ordering::SeqCst);
    store.remove(&me(), &Store::root(&store), b"f").unwrap();
    store.sweep();
    assert_eq!(components(dir.path()).len(), 1);
    nodes[2].down.store(false, Ordering::SeqCst);
    store.sweep();
    assert!(components(dir.path()).is_empty());
}

#[test]
fn stripes_of_nodes_that_are_there_can_be_used() {
    let dir = base();
    let (store, nodes) = faulty(dir.path());
    let file = create(&store, "f").file;
    let bytes = pattern(3 * UNIT as usize, 8);
    write(&*file, 0, &bytes).unwrap();
    nodes[0].down.store(true, Ordering::SeqCst);
    let got: Vec<_> = (0..3).map(|at| read(&*file, at * UNIT64, UNIT as usize)).collect();
    assert_eq!(got.iter().filter(|read| **read == Err(StoreError::Busy)).count(), 1);
    assert_eq!(got.iter().filter(|read| read.is_ok()).count(), 2);
    assert_eq!(file.commit(0, 0), Err(StoreError::Busy));
    nodes[0].down.store(false, Ordering::SeqCst);
    assert_eq!(read(&*file, 0, bytes.len()).unwrap(), bytes);
}
