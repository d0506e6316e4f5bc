//! The store against a real cluster of three storage daemons on loopback. The first test starts it,
//! and the end of this process stops it. Without ceph all tests are skipped.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use dafs_cephfs::{CephData, CephStore};
use dafs_store::*;
use dafs_testkit::{store_suite, stores};
use std::sync::Arc;
use std::time::Duration;

store_suite! {
    one_mount: support::world(1, false),
    other_user_of_two_mounts: support::world(2, true);
    { data::every_mode_bit_survives }
}

// The suite leaves out files without a name, which CephFS does not have, and space, which a cluster
// without a manager does not report.

#[test]
fn files_without_a_name_are_not_supported() {
    let Some(w) = support::world(1, false) else { return };
    let attr = SetAttr::default();
    let made = w.store.create_unlinked(&w.cred, &w.root(), &attr, stores::READ_WRITE);
    assert_eq!(made.err(), Some(StoreError::NotSupported));
}

#[test]
fn a_prefetch_reads_at_the_storage_daemons_and_other_advice_is_ignored() {
    const BYTES: u64 = 8 << 20;
    let Some((store, _)) = support::fresh(1, &stores::me()) else { return };
    let (how, none) = (CreateHow::Guarded, SetAttr::default());
    let root = store.root();
    let made = store.create(&stores::me(), &root, b"f", how, &none, stores::READ_WRITE).unwrap();
    stores::write(&*made.file, 0, &vec![7; BYTES as usize]).unwrap();
    made.file.sync().unwrap();
    let Some(before) = support::bytes_read() else {
        stores::skipped("the storage daemons show no counters");
        return;
    };
    assert_eq!(made.file.advise(0, 0, CacheAdvice::WillNeed), Ok(Advised::Followed));
    // Other tests read, too.
    assert!(support::bytes_read().unwrap() >= before + BYTES);
    for advice in [CacheAdvice::DontNeed, CacheAdvice::LeaveFirst, CacheAdvice::Sequential] {
        assert_eq!(made.file.advise(0, 0, advice), Ok(Advised::Ignored), "{advice:?}");
    }
    let writer = store.open(&stores::me(), &made.id, stores::WRITE).unwrap();
    assert_eq!(writer.advise(0, 0, CacheAdvice::WillNeed), Ok(Advised::Ignored));
}

#[test]
fn ids_and_content_outlive_the_store() {
    let Some((store, options)) = support::fresh(1, &stores::me()) else { return };
    stores::ids_and_content_outlive(store, || CephStore::open(&options).unwrap());
}

#[test]
fn a_name_that_a_crash_left_behind_is_taken_over() {
    let Some((crashed, options)) = support::fresh(1, &stores::me()) else { return };
    let (cred, attr) = (stores::me(), SetAttr::default());
    let how = CreateHow::Guarded;
    let root = crashed.root();
    let made = crashed.create(&cred, &root, b"f", how, &attr, stores::READ_WRITE).unwrap();
    stores::write(&*made.file, 0, b"stable").unwrap();
    made.file.sync().unwrap();
    // As after a crash, the old client does not close its session.
    let id = made.id;
    std::mem::forget((made, crashed));
    let began = std::time::Instant::now();
    let store = CephStore::open(&options).unwrap();
    assert_eq!(store.getattr(&id).unwrap().size, 6);
    println!("taken over after {:?}", began.elapsed());
    // A session times out after more than a minute.
    assert!(began.elapsed() < Duration::from_secs(30));
}

/// A new file, and its view at the data server.
fn spread(store: &CephStore, name: &str) -> (FileId, Arc<dyn DataFile>) {
    let (cred, attr, how) = (stores::me(), SetAttr::default(), CreateHow::Guarded);
    let (root, mode) = (store.root(), stores::READ_WRITE);
    let made = store.create(&cred, &root, name.as_bytes(), how, &attr, mode).unwrap();
    let servers: Vec<Arc<CephData>> = store.data_servers();
    (made.id, servers[0].open(&support::placed(store, &made.id)).unwrap())
}

fn write_stable(file: &dyn DataFile, offset: u64, mut data: Vec<u8>) {
    let (len, view) = (data.len(), dafs_mem::VolatileSlice::from_mut(&mut data));
    assert_eq!(file.write_at(&[view], offset, Stability::Data, Wait::Allowed), Ok(len));
}

#[test]
fn a_write_below_a_known_size_waits_for_no_metadata_server() {
    let Some((store, _)) = support::served() else { return };
    let (id, file) = spread(&store, "f");
    write_stable(&*file, 0, vec![1; 100]);
    let layouts = store.layouts().unwrap();
    assert_eq!(layouts.commit(&id, Some(100)), Ok(100));
    let before = store.getattr(&id).unwrap();
    // The query above has revoked the write capability, so the client must get it again first.
    write_stable(&*file, 0, vec![2; 1]);
    let (told, done) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let frozen = support::Frozen::begin();
        scope.spawn(|| {
            write_stable(&*file, 10, vec![3; 50]);
            file.commit(0, 0).unwrap();
            told.send(layouts.commit(&id, Some(60))).unwrap();
        });
        let done = done.recv_timeout(Duration::from_secs(20));
        drop(frozen);
        assert_eq!(done, Ok(Ok(100)), "nobody else is asked");
    });
    let after = store.getattr(&id).unwrap();
    assert!(after.change != before.change && after.mtime >= before.mtime);
    assert_eq!(layouts.commit(&id, Some(101)), Err(StoreError::Invalid));
    write_stable(&*file, 99, vec![4; 10]);
    assert_eq!(layouts.commit(&id, Some(109)), Ok(109));
    assert_eq!(store.getattr(&id).unwrap().size, 109);
}

#[test]
fn stable_data_outlives_an_evicted_data_server() {
    let Some((crashed, options)) = support::served() else { return };
    let (whole, file) = spread(&crashed, "whole");
    write_stable(&*file, 0, vec![1; 100]);
    write_stable(&*file, 20, vec![2; 10]);
    // Another client truncates a file that was long enough before.
    let (cut, other) = spread(&crashed, "cut");
    write_stable(&*other, 0, vec![1; 100]);
    let shorter = SetAttr { size: Some(10), ..SetAttr::default() };
    crashed.setattr(&stores::me(), &cut, &shorter, None).unwrap();
    write_stable(&*other, 50, vec![2; 10]);
    write_stable(&*other, 20, vec![3; 10]);
    // As after a crash, the old client does not close its session, and a mount with the same
    // identity evicts it.
    std::mem::forget((crashed, file, other));
    let store = CephStore::open(&options).unwrap();
    for (id, wanted) in [
        (whole, [vec![1; 20], vec![2; 10], vec![1; 70]].concat()),
        (cut, [vec![1; 10], vec![0; 10], vec![3; 10], vec![0; 20], vec![2; 10]].concat()),
    ] {
        let file = store.open(&stores::me(), &id, stores::READ).unwrap();
        assert_eq!(stores::read(&*file, 0, 200).unwrap(), wanted);
    }
}
