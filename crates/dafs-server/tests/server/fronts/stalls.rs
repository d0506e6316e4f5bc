//! Reactors wait for no disk: other threads make data stable. All calls of this program that make
//! files stable pass here, except for those of stores, which have tests of their own.

use super::harness::Served;
use dafs_client::{Create, FenceChange, FenceObject, LockRange, OpenOptions};
use dafs_nfs_client::{Options, connect};
use dafs_service::durable::Durability;
use dafs_testkit::eventually;
use libc::{c_int, c_long};
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;

/// The names of threads that have made data stable.
static SYNCED_BY: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

fn sync(number: c_long, fd: c_int) -> c_int {
    let name = std::thread::current().name().unwrap_or_default().to_owned();
    SYNCED_BY.lock().unwrap().insert(name);
    // SAFETY: both system calls take only a descriptor, and check it themselves.
    unsafe { libc::syscall(number, fd) as c_int }
}

/// Replaces the C library's function for this program, the standard library included.
// SAFETY: same name, same signature and same effect as the function that it replaces.
#[unsafe(no_mangle)]
extern "C" fn fsync(fd: c_int) -> c_int {
    sync(libc::SYS_fsync, fd)
}

/// See [`fsync`].
// SAFETY: as there.
#[unsafe(no_mangle)]
extern "C" fn fdatasync(fd: c_int) -> c_int {
    sync(libc::SYS_fdatasync, fd)
}

#[test]
fn reactors_wait_for_no_disk() {
    let served = Served::with(|config| {
        config.lease_time = Duration::from_secs(1);
        config.exports[0].options.durable_replies = Durability::Power;
    });
    // A client that has state, takes a persistent lock, and disconnects in order.
    let dafs = served.dafs();
    let options = OpenOptions::read_write().create(Create::New).mode(0o666);
    let file = dafs.open(b"file", &options).unwrap();
    file.try_lock(&LockRange::exclusive().persist(true)).unwrap();
    file.unlock(0, u64::MAX).unwrap();
    file.try_lock(&LockRange::exclusive().auto_recovery(true)).unwrap();
    file.write_at(b"content", 0, dafs_client::Stability::FileSync).unwrap();
    file.unlock(0, u64::MAX).unwrap();
    let handle = dafs.lookup(&dafs.root(), b"file").unwrap();
    dafs.set_fence(&handle, FenceObject::File, FenceChange::Set(&[b"nfs:node"])).unwrap();
    dafs.set_fence(&handle, FenceObject::File, FenceChange::Clear).unwrap();
    drop((file, dafs));
    // NFS clients: one restarts, and then disappears.
    for run in 1..=2 {
        let options = Options { verifier: [run; 8], ..Options::new(b"node") };
        let session = connect(served.nfs, &options).unwrap();
        let root = session.root().unwrap();
        let made = session.create(&root, format!("nfs{run}").as_bytes()).unwrap();
        session.close(&made).unwrap();
        std::mem::forget(session);
    }
    eventually("all clients are forgotten", || served.counts().clients == 0);
    let synced_by = SYNCED_BY.lock().unwrap().clone();
    let reactor = |name: &&String| {
        ["dafs-reactor", "dafs-nfs-", "dafs-rdma-"].iter().any(|prefix| name.starts_with(prefix))
    };
    assert_eq!(synced_by.iter().find(reactor), None, "{synced_by:?}");
    // This shows that the calls do pass here.
    for name in ["dafs-pool", "dafs-clock", "dafs-journal-0"] {
        assert!(synced_by.iter().any(|synced| synced == name), "{name}: {synced_by:?}");
    }
}
