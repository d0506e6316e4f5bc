//! Advice about striped files, seen in the kernel's cache of their nodes.

use crate::common::striped::{UNIT, as_nodes, components, create, faulty, open_copies, pattern};
use dafs_store::node::ComponentId;
use dafs_store::*;
use dafs_testkit::stores::{read, write};
use dafs_testkit::{Cached, eventually};
use std::path::Path;
use std::sync::Arc;

/// Many stripes on each node.
const BYTES: usize = 96 * UNIT as usize;

/// A directory on a disk; `None` where content never leaves memory.
fn on_disk() -> Option<tempfile::TempDir> {
    // Not the usual place for temporary files, which may live in memory.
    let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    std::fs::create_dir(dir.path().join("meta")).unwrap();
    Cached::cold(&dir.path().join("probe"), b"probe")?;
    Some(dir)
}

fn cached(base: &Path) -> Vec<usize> {
    components(base).iter().map(|(path, _)| Cached::of(path).bytes()).collect()
}

fn drop_all(base: &Path) {
    components(base).iter().for_each(|(path, _)| Cached::of(path).drop_all());
}

/// Drops the file. A page that is still being read does not leave.
fn leaves(file: &dyn OpenFile, base: &Path) {
    eventually("the nodes have dropped it", || {
        assert_eq!(file.advise(0, 0, CacheAdvice::DontNeed), Ok(Advised::Followed));
        cached(base).iter().all(|bytes| *bytes == 0)
    });
}

#[test]
fn advice_reaches_the_nodes_of_the_stripes() {
    let Some(dir) = on_disk() else { return };
    let (store, _nodes) = faulty(dir.path());
    let file = create(&store, "f").file;
    let content = pattern(BYTES, 1);
    write(&*file, 0, &content).unwrap();
    file.commit(0, 0).unwrap();
    drop_all(dir.path());
    assert_eq!(cached(dir.path()), [0; 3]);
    assert_eq!(file.advise(0, 0, CacheAdvice::WillNeed), Ok(Advised::Followed));
    eventually("all stripes are in memory", || {
        cached(dir.path()).iter().all(|bytes| *bytes >= BYTES / 3)
    });
    assert_eq!(file.advise(0, 0, CacheAdvice::LeaveFirst), Ok(Advised::Followed));
    assert_eq!(file.advise(0, 0, CacheAdvice::Keep), Ok(Advised::Followed));
    leaves(&*file, dir.path());
    // The components are shared by all opens of all clients.
    for pattern in [CacheAdvice::Normal, CacheAdvice::Random, CacheAdvice::Sequential] {
        assert_eq!(file.advise(0, 0, pattern), Ok(Advised::Ignored));
    }
    assert_eq!(file.advise(u64::MAX, 1, CacheAdvice::DontNeed), Err(StoreError::Invalid));
    assert_eq!(read(&*file, 0, BYTES).unwrap(), content);
}

#[test]
fn unneeded_stripes_leave_when_they_are_stable() {
    let Some(dir) = on_disk() else { return };
    let (store, _nodes) = faulty(dir.path());
    let file = create(&store, "f").file;
    write(&*file, 0, &pattern(BYTES, 1)).unwrap();
    assert_eq!(file.advise(0, 0, CacheAdvice::DontNeed), Ok(Advised::Followed));
    file.commit(0, 0).unwrap();
    assert_eq!(cached(dir.path()), [0; 3]);
}

#[test]
fn advice_reaches_all_copies_and_one_is_read_ahead() {
    let Some(dir) = on_disk() else { return };
    let nodes = (1..=3).map(|number| crate::common::striped::node(dir.path(), number)).collect();
    let store = open_copies(dir.path(), nodes, 2, &Arc::default());
    let file = create(&store, "f").file;
    write(&*file, 0, &pattern(BYTES, 1)).unwrap();
    file.sync().unwrap();
    drop_all(dir.path());
    assert_eq!(cached(dir.path()), [0; 2]);
    assert_eq!(file.advise(0, 0, CacheAdvice::WillNeed), Ok(Advised::Followed));
    eventually("one copy is in memory", || cached(dir.path()).contains(&BYTES));
    assert!(cached(dir.path()).contains(&0), "readers begin with the same copy");
    leaves(&*file, dir.path());
}

#[test]
fn nodes_that_are_away_miss_advice_and_nothing_else() {
    let Some(dir) = on_disk() else { return };
    let (store, nodes) = faulty(dir.path());
    let file = create(&store, "f").file;
    write(&*file, 0, &pattern(BYTES, 1)).unwrap();
    file.commit(0, 0).unwrap();
    nodes[0].set_down(true);
    assert_eq!(file.advise(0, 0, CacheAdvice::DontNeed), Ok(Advised::Followed));
    assert_eq!(cached(dir.path()).iter().filter(|bytes| **bytes == 0).count(), 2);
    nodes.iter().for_each(|node| node.set_down(true));
    assert_eq!(file.advise(0, 0, CacheAdvice::DontNeed), Ok(Advised::Ignored));
    let unknown = as_nodes(&nodes)[0].advise(&ComponentId([9; 16]), 0, 0, CacheAdvice::DontNeed);
    assert_eq!(unknown, Err(StoreError::Busy));
}
