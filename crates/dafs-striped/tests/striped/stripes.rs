//! The particulars of files spread over nodes: content, sizes, truncation, removal, nodes that
//! fail.

use crate::common::steps::{Step, run, steps};
use crate::common::striped::{
    Faulty, Surroundings, UNIT, UNIT64, as_nodes, base, components, create, layouts, node, open,
    open_copies, open_with, opened, pattern, reopen, stripes, with_file, with_file_on_faulty,
    write_behind,
};
use dafs_posix::{PosixOptions, PosixStore};
use dafs_store::node::{ComponentId, DirectoryError, DirectoryNode};
use dafs_store::*;
use dafs_striped::{StripedOptions, StripedStore};
use dafs_testkit::stores::{READ, READ_WRITE, me, read, secret, skipped, write};
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::Ordering;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn a_striped_file_is_as_a_plain_one(steps in steps()) {
        let dir = base();
        let mut store = open(dir.path());
        let mut file = create(&store, "f").file;
        let mut model: Vec<u8> = Vec::new();
        for step in steps {
            match step {
                Step::Reopen => {
                    drop(file);
                    drop(store);
                    store = open(dir.path());
                    file = reopen(&store, "f").1;
                }
                step => assert!(run(step, &*file, &mut model, false)),
            }
            prop_assert_eq!(file.attr().unwrap().size, model.len() as u64);
        }
        prop_assert_eq!(read(&*file, 0, model.len() + 9).unwrap(), model);
    }
}

#[test]
fn stripes_lie_on_all_nodes_and_come_back_in_a_new_run() {
    let bytes = pattern(7 * UNIT as usize + 5, 1);
    let (dir, store, created) = with_file(&bytes);
    created.file.commit(0, 0).unwrap();
    assert_eq!(components(dir.path()).len(), 3);
    let meta = std::fs::metadata(dir.path().join("meta/f")).unwrap();
    assert_eq!(meta.len(), bytes.len() as u64);
    drop((created, store));
    let store = open(dir.path());
    let (id, file) = reopen(&store, "f");
    assert_eq!(read(&*file, 0, bytes.len() + 1).unwrap(), bytes);
    assert!(
        store.getattr(&id).unwrap().space_used >= bytes.len() as u64,
        "not to be taken for empty"
    );
}

#[test]
fn files_without_a_record_are_served_as_they_are() {
    let dir = base();
    std::fs::write(dir.path().join("meta/old"), b"from before").unwrap();
    let store = open(dir.path());
    let (id, file) = reopen(&store, "old");
    assert_eq!(read(&*file, 0, 99).unwrap(), b"from before");
    write(&*file, 5, b"after!").unwrap();
    assert_eq!(std::fs::read(dir.path().join("meta/old")).unwrap(), b"from after!");
    assert_eq!(layouts(&store).placement(&id, true), Ok(None), "clients go through the store");
    assert!(components(dir.path()).is_empty());
    file.set_size(0).unwrap();
    write(&*file, 0, b"new").unwrap();
    assert_eq!(components(dir.path()).len(), 1, "an emptied file is placed anew");
    assert_eq!(read(&*file, 0, 9).unwrap(), b"new");
}

#[test]
fn clients_do_not_see_the_record() {
    let (_dir, store, created) = with_file(b"x");
    let name = b"dafs.stripes";
    assert_eq!(store.list_xattrs(&me(), &created.id), Ok(vec![]));
    assert_eq!(store.xattr(&me(), &created.id, name), Err(StoreError::NoXattr));
    let set = store.set_xattr(&me(), &created.id, name, b"x", SetXattr::Either);
    assert_eq!(set, Err(StoreError::Access));
    assert_eq!(store.remove_xattr(&me(), &created.id, name), Err(StoreError::NoXattr));
    let attrs = store.attr_dir(&me(), &created.id).unwrap();
    let mut seen = 0;
    let end = store.readdir(&me(), &attrs, 0, true, &mut |_| {
        seen += 1;
        true
    });
    assert_eq!((end, seen), (Ok(true), 0));
    assert_eq!(store.lookup(&me(), &attrs, name).err(), Some(StoreError::NotFound));
    assert_eq!(store.remove(&me(), &attrs, name).err(), Some(StoreError::NotFound));
    let (how, none) = (CreateHow::Unchecked, SetAttr::default());
    let made = store.create(&me(), &attrs, name, how, &none, READ_WRITE);
    assert_eq!(made.err(), Some(StoreError::Access));
    assert_eq!(read(&*created.file, 0, 9).unwrap(), b"x");
}

#[test]
fn a_copy_of_a_metadata_file_leads_nowhere() {
    let (dir, store) = opened();
    write(&*create(&store, "f").file, 0, b"mine").unwrap();
    let meta = dir.path().join("meta");
    let mut record = vec![0; 4096];
    let len = rustix::fs::getxattr(meta.join("f"), c"user.dafs.stripes", &mut record).unwrap();
    std::fs::write(meta.join("copy"), [0; 4]).unwrap();
    let none = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(meta.join("copy"), c"user.dafs.stripes", &record[..len], none).unwrap();
    let (_, copy) = reopen(&store, "copy");
    assert_eq!(read(&*copy, 0, 9), Err(StoreError::Io));
    assert_eq!(write(&*copy, 0, b"yours"), Err(StoreError::Io));
    store.remove(&me(), &Store::root(&store), b"copy").unwrap();
    store.sweep();
    assert_eq!(read(&*reopen(&store, "f").1, 0, 9).unwrap(), b"mine");
}

#[test]
fn a_commit_makes_what_was_written_part_of_the_file_and_never_cuts_it() {
    let (dir, store) = opened();
    let id = create(&store, "f").id;
    let layouts = layouts(&store);
    write_behind(&store, dir.path(), &id, 5000, b"written");
    assert_eq!(store.getattr(&id).unwrap().size, 0, "nobody has said so yet");
    assert_eq!(layouts.commit(&id, Some(5008)), Err(StoreError::Invalid));
    assert_eq!(layouts.commit(&id, Some(u64::MAX)), Err(StoreError::Invalid));
    let before = store.getattr(&id).unwrap();
    assert_eq!(layouts.commit(&id, Some(5007)), Ok(5007));
    let attr = store.getattr(&id).unwrap();
    assert_eq!(attr.size, 5007);
    assert!(attr.mtime >= before.mtime);
    assert_eq!(layouts.commit(&id, Some(17)), Ok(5007), "nothing becomes shorter");
    assert_ne!(store.getattr(&id).unwrap().change, attr.change);
    assert_eq!(layouts.commit(&id, None), Ok(5007));
    let (_, file) = reopen(&store, "f");
    assert_eq!(read(&*file, 4998, 99).unwrap(), b"\0\0written");
}

#[test]
fn data_of_a_lost_client_is_adopted() {
    let (dir, store) = opened();
    let id = create(&store, "f").id;
    write_behind(&store, dir.path(), &id, 9000, b"left");
    drop(store);
    let store = open(dir.path());
    assert_eq!(store.getattr(&id).unwrap().size, 0);
    layouts(&store).recover_size(&id).unwrap();
    assert_eq!(store.getattr(&id).unwrap().size, 9004);
    write(&*reopen(&store, "f").1, 20_000, b"more").unwrap();
    layouts(&store).recover_size(&id).unwrap();
    assert_eq!(store.getattr(&id).unwrap().size, 20_004);
    let text = read(&*reopen(&store, "f").1, 8998, 8).unwrap();
    assert_eq!(text, b"\0\0left\0\0");
}

#[test]
fn uncommitted_data_does_not_come_back_after_a_change_of_the_size() {
    let (dir, store) = opened();
    for size in [0, 100] {
        let created = create(&store, &format!("f{size}"));
        created.file.set_size(100).unwrap();
        write_behind(&store, dir.path(), &created.id, 5000, b"stale");
        created.file.set_size(size).unwrap();
        assert_eq!(created.file.attr().unwrap().size, size);
        created.file.set_size(9000).unwrap();
        let read = read(&*created.file, 0, 9000).unwrap();
        assert_eq!(read.len(), 9000);
        assert!(read.iter().all(|byte| *byte == 0), "bytes from before are back");
    }
}

#[test]
fn writes_before_a_restart_count_before_others_write() {
    let (dir, store) = opened();
    let id = create(&store, "f").id;
    write_behind(&store, dir.path(), &id, 5000, b"stable");
    drop(store);
    let store = open(dir.path());
    assert_eq!(store.getattr(&id).unwrap().size, 0);
    layouts(&store).placement(&id, false).unwrap().unwrap();
    assert_eq!(store.getattr(&id).unwrap().size, 0, "readers change nothing");
    layouts(&store).placement(&id, true).unwrap().unwrap();
    assert_eq!(store.getattr(&id).unwrap().size, 5006);
}

#[test]
fn a_removal_that_a_crash_undid_takes_nothing_away() {
    let (dir, store) = opened();
    let long = pattern(5 * UNIT as usize, 4);
    let created = create(&store, "f");
    write(&*created.file, 0, &long).unwrap();
    let placement = stripes(layouts(&store).placement(&created.id, false).unwrap().unwrap());
    let component = ComponentId(*placement.handles[0][32..].first_chunk().unwrap());
    drop((created.file, store));
    // The entry of the removal, on another disk: in the form of an earlier version.
    let mut entry = created.id.0.to_vec();
    entry.extend([1u32, 2, 3].iter().flat_map(|node| node.to_le_bytes()));
    std::fs::write(dir.path().join("removed").join(component.to_string()), &entry).unwrap();
    std::fs::remove_file(dir.path().join("removed.coded")).unwrap();
    let store = open(dir.path());
    store.sweep();
    assert_eq!(read(&*reopen(&store, "f").1, 0, long.len()).unwrap(), long);
    assert_eq!(std::fs::read_dir(dir.path().join("removed")).unwrap().count(), 0);
}

#[test]
fn an_entry_that_another_user_wrote_removes_nothing() {
    let (dir, store) = opened();
    let long = pattern(5 * UNIT as usize, 4);
    let victim = create(&store, "victim");
    write(&*victim.file, 0, &long).unwrap();
    let placement = stripes(layouts(&store).placement(&victim.id, false).unwrap().unwrap());
    let component = ComponentId(*placement.handles[0][32..].first_chunk().unwrap());
    // A removed file, with the components of an existing one.
    let gone = create(&store, "gone").id;
    store.remove(&me(), &Store::root(&store), b"gone").unwrap();
    let mut entry = gone.0.to_vec();
    entry.extend([1u32, 2, 3].iter().flat_map(|node| node.to_le_bytes()));
    let path = dir.path().join("removed").join(component.to_string());
    std::fs::write(&path, &entry).unwrap();
    store.sweep();
    assert_eq!(components(dir.path()).len(), 3);
    assert_eq!(read(&*victim.file, 0, long.len()).unwrap(), long);
    // The server does not write through a symlink to a file of root, where an entry should be.
    let precious = dir.path().join("precious");
    std::fs::write(&precious, "precious").unwrap();
    std::fs::remove_file(&path).unwrap();
    for name in [path.clone(), path.with_extension("new")] {
        std::os::unix::fs::symlink(&precious, name).unwrap();
    }
    drop(victim.file);
    store.remove(&me(), &Store::root(&store), b"victim").unwrap();
    assert_eq!(std::fs::read(&precious).unwrap(), b"precious");
    store.sweep();
    assert!(components(dir.path()).is_empty());
}

#[test]
fn a_placement_says_where_stripes_are() {
    let (dir, store) = opened();
    let created = create(&store, "f");
    let layouts = layouts(&store);
    assert_eq!(layouts.placement(&created.id, false), Ok(None), "nothing is there to be read");
    let placement = layouts.placement(&created.id, true).unwrap().unwrap();
    assert_eq!(layouts.placement(&created.id, false).unwrap(), Some(placement.clone()));
    let placement = stripes(placement);
    assert_eq!((placement.unit_bytes.get(), placement.packing), (UNIT, Packing::Sparse));
    let device = layouts.device(&placement.device).unwrap();
    assert_eq!(device.pattern, [0, 1, 2]);
    let ports: Vec<_> = device.servers.iter().map(|server| server.tcp[0].port()).collect();
    assert_eq!(ports, [7001, 7002, 7003]);
    assert_eq!(placement.handles.len(), 3);
    assert!(placement.handles.iter().all(|handle| handle.len() == 64));
    drop(created);
    let store2 = open(dir.path());
    assert!(store2.layouts().unwrap().device(&placement.device).is_some(), "after a restart too");
    assert_eq!(layouts.placement(&Store::root(&store), true), Err(StoreError::BadType));
}

#[test]
fn a_cut_that_was_torn_is_finished_before_the_file_is_used() {
    // The machine stops after `done` of the three nodes have truncated.
    for done in 0..=3 {
        let bytes = pattern(9 * UNIT as usize, 3);
        let (dir, store, nodes, created) = with_file_on_faulty(&bytes);
        for (at, node) in nodes.iter().enumerate() {
            node.truncations_left.store(u64::from(at < done), Ordering::SeqCst);
        }
        let cut = created.file.set_size(UNIT64 + 10);
        assert_eq!(cut.is_ok(), done == 3, "{done}");
        if done < 3 {
            assert_eq!(read(&*created.file, 0, 9), Err(StoreError::Io), "{done}: not by halves");
            assert_eq!(write(&*created.file, 0, b"x"), Err(StoreError::Io), "{done}");
        }
        drop((created, store));
        let store = open(dir.path());
        let (id, file) = reopen(&store, "f");
        file.set_size(9 * UNIT64).unwrap();
        let mut wanted = bytes[..UNIT as usize + 10].to_vec();
        wanted.resize(9 * UNIT as usize, 0);
        assert_eq!(read(&*file, 0, bytes.len()).unwrap(), wanted, "{done}");
        assert_eq!(store.getattr(&id).unwrap().size, 9 * UNIT64);
    }
}

#[test]
fn a_removed_file_leaves_no_components() {
    let (dir, store) = opened();
    let root = Store::root(&store);
    let long = pattern(5 * UNIT as usize, 4);
    for name in ["removed", "replaced", "linked", "open"] {
        write(&*create(&store, name).file, 0, &long).unwrap();
    }
    assert_eq!(components(dir.path()).len(), 12);
    store.remove(&me(), &root, b"removed").unwrap();
    create(&store, "new");
    store.rename(&me(), &root, b"new", &root, b"replaced").unwrap();
    let (linked, _) = store.lookup(&me(), &root, b"linked").unwrap();
    store.link(&me(), &linked, &root, b"again").unwrap();
    store.remove(&me(), &root, b"linked").unwrap();
    let (_, file) = reopen(&store, "open");
    store.remove(&me(), &root, b"open").unwrap();
    store.sweep();
    assert_eq!(components(dir.path()).len(), 6, "one has a name, one is open");
    assert_eq!(read(&*file, 0, long.len()).unwrap(), long);
    assert_eq!(read(&*reopen(&store, "again").1, 0, long.len()).unwrap(), long);
    drop(file);
    store.sweep();
    assert_eq!(components(dir.path()).len(), 3);
    store.remove(&me(), &root, b"again").unwrap();
    // Another run of the server removes them.
    drop(store);
    open(dir.path()).sweep();
    assert!(components(dir.path()).is_empty());
    assert_eq!(std::fs::read_dir(dir.path().join("removed")).unwrap().count(), 0);
}

#[test]
fn a_file_without_a_name_leaves_nothing_either() {
    let (dir, store) = opened();
    let (root, none) = (Store::root(&store), SetAttr::default());
    let made = || match store.create_unlinked(&me(), &root, &none, READ_WRITE) {
        Err(StoreError::NotSupported) => None,
        made => Some(made.unwrap()),
    };
    let Some(dropped) = made() else { return skipped("no files without names here") };
    write(&*dropped.file, 0, b"for a moment").unwrap();
    let kept = made().unwrap();
    write(&*kept.file, 0, b"for ever").unwrap();
    store.link(&me(), &kept.id, &root, b"kept").unwrap();
    drop((dropped, kept));
    store.sweep();
    assert_eq!(components(dir.path()).len(), 1);
    assert_eq!(read(&*reopen(&store, "kept").1, 0, 99).unwrap(), b"for ever");
}

#[test]
fn a_node_that_lost_unstable_data_is_noticed_by_the_commit() {
    let dir = base();
    let nodes: Vec<_> = (1..=3).map(|number| Faulty::new(node(dir.path(), number))).collect();
    let around = Arc::<Surroundings>::default();
    let store = open_copies(dir.path(), as_nodes(&nodes), 1, &around);
    let file = create(&store, "f").file;
    write(&*file, 0, &pattern(3 * UNIT as usize, 8)).unwrap();
    file.commit(0, 0).unwrap();
    nodes[1].restarts.fetch_add(1, Ordering::SeqCst);
    assert_eq!(file.commit(0, 0), Err(StoreError::Busy), "asked again, with the new verifier");
    assert_eq!(around.lost(), 1);
    file.commit(0, 0).unwrap();
}

#[test]
fn a_directory_that_is_no_nodes_is_not_used() {
    let dir = base();
    let (path, store) = (dir.path().join("n"), [1; 16]);
    let open = || DirectoryNode::open(&path, &store, 1, vec![]);
    assert!(matches!(DirectoryNode::make(&path, &store, 1), Err(DirectoryError::Io(..))));
    std::fs::create_dir(&path).unwrap();
    assert!(matches!(open(), Err(DirectoryError::Unmarked(_))), "say, not mounted");
    DirectoryNode::make(&path, &store, 1).unwrap();
    DirectoryNode::make(&path, &store, 1).unwrap();
    open().unwrap();
    let other = DirectoryNode::make(&path, &store, 2);
    assert!(matches!(other, Err(DirectoryError::Other(_))));
    let other = DirectoryNode::open(&path, &[2; 16], 1, vec![]);
    assert!(matches!(other, Err(DirectoryError::Other(_))));
    let full = dir.path().join("full");
    std::fs::create_dir(&full).unwrap();
    std::fs::write(full.join("somebody's"), b"").unwrap();
    let made = DirectoryNode::make(&full, &store, 1);
    assert!(matches!(made, Err(DirectoryError::NotEmpty(_))));
}

#[test]
fn a_node_that_vanishes_is_an_error_and_not_a_hole() {
    let (dir, store) = opened();
    let file = create(&store, "f").file;
    let bytes = pattern(3 * UNIT as usize, 8);
    write(&*file, 0, &bytes).unwrap();
    drop((file, store));
    let store = open(dir.path());
    let (_, file) = reopen(&store, "f");
    let (here, away) = (dir.path().join("node2"), dir.path().join("away"));
    std::fs::rename(&here, &away).unwrap();
    std::fs::create_dir(&here).unwrap();
    let got: Vec<_> = (0..3).map(|at| read(&*file, at * UNIT64, UNIT as usize)).collect();
    assert_eq!(got.iter().filter(|read| **read == Err(StoreError::Io)).count(), 1);
    let writes: Vec<_> = (0..3).map(|at| write(&*file, at * UNIT64, b"x")).collect();
    assert_eq!(writes.iter().filter(|write| **write == Err(StoreError::Io)).count(), 1);
    std::fs::remove_dir(&here).unwrap();
    std::fs::rename(&away, &here).unwrap();
    assert_eq!(read(&*file, 1, 9).unwrap(), bytes[1..10]);
}

#[test]
fn a_store_that_cannot_work_is_not_opened() {
    let dir = base();
    let meta = || PosixStore::open(dir.path().join("meta"), PosixOptions::new(secret())).unwrap();
    let options = |unit: u32| StripedOptions::new(dir.path(), [1; 16], unit.try_into().unwrap());
    let nodes = |numbers: &[u32]| numbers.iter().map(|&number| node(dir.path(), number)).collect();
    let open =
        |numbers: &[u32], unit| StripedStore::open(meta(), nodes(numbers), options(unit)).err();
    assert_eq!(open(&[], UNIT), Some(StoreError::Invalid));
    assert_eq!(open(&[1, 1], UNIT), Some(StoreError::Invalid));
    assert_eq!(open(&[1], 64), Some(StoreError::Invalid));
    assert_eq!(open(&[1], UNIT + 1), Some(StoreError::Invalid));
    assert_eq!(open(&[1], UNIT), None);
    // A file on a node that is not configured any more.
    let store = crate::common::striped::open(dir.path());
    write(&*create(&store, "f").file, 0, &pattern(3 * UNIT as usize, 8)).unwrap();
    drop(store);
    let store = open_with(dir.path(), nodes(&[1, 2]));
    let (id, _) = store.lookup(&me(), &Store::root(&store), b"f").unwrap();
    let file = store.open(&me(), &id, READ).unwrap();
    let got: Vec<_> = (0..3).map(|at| read(&*file, at * UNIT64, 9)).collect();
    assert_eq!(got.iter().filter(|read| **read == Err(StoreError::Io)).count(), 1);
    assert_eq!(layouts(&store).placement(&id, true), Ok(None));
}
