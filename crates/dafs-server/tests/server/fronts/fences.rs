//! Fences set by DAFS apply to NFS clients, by their names and by their addresses.

use super::harness::{Served, existing, refused};
use dafs_client::{FenceChange, FenceObject};
use dafs_wire::nfs3;
use dafs_wire::nfs4::{DENY_NONE, ShareAccess, StableHow, Status};
use std::sync::atomic::{AtomicU64, Ordering};

const NAME: &[u8] = b"fenced";
const FILE: FenceObject = FenceObject::File;

#[test]
fn nfs_clients_are_fenced_by_name_and_address() {
    let served = Served::new();
    let manager = served.dafs();
    let (good, root) = served.v4(b"good");
    let (bad, _) = served.v4(b"bad");
    let (v3, root3) = served.v3();
    let good_file = good.create(&root, NAME).unwrap();
    let bad_file = bad.open(&root, NAME, &existing(ShareAccess::BOTH, DENY_NONE)).unwrap();
    let file3 = v3.lookup(&root3, NAME).unwrap();
    let handle = manager.lookup(&manager.root(), NAME).unwrap();
    let stable = StableHow::Unstable;
    let write3 = || v3.write(&file3, 0, b"3", nfs3::Stability::Unstable);

    manager.set_fence(&handle, FILE, FenceChange::Set(&[b"nfs:good"])).unwrap();
    good.write(&good_file.handle, good_file.stateid, 0, b"good", stable).unwrap();
    let written = bad.write(&bad_file.handle, bad_file.stateid, 0, b"bad", stable);
    assert_eq!(refused(written), Status::Access);
    assert_eq!(refused(bad.stat(&bad_file.handle)), Status::Access);
    let again = bad.open(&root, NAME, &existing(ShareAccess::READ, DENY_NONE));
    assert_eq!(refused(again), Status::Access);
    assert_eq!(refused(bad.remove(&root, NAME)), Status::Access);
    assert!(write3().is_err() && v3.read(&file3, 0, 1).is_err());
    assert_eq!(std::fs::read(served.path().join("fenced")).unwrap(), b"good");

    // Their address admits them all.
    manager.set_fence(&handle, FILE, FenceChange::Add(&[b"addr:127.0.0.0/8"])).unwrap();
    bad.write(&bad_file.handle, bad_file.stateid, 0, b"bad!", stable).unwrap();
    write3().unwrap();
    manager.set_fence(&handle, FILE, FenceChange::Remove(&[b"addr:127.0.0.0/8"])).unwrap();
    assert!(write3().is_err());
    manager.set_fence(&handle, FILE, FenceChange::Clear).unwrap();
    assert_eq!(manager.fence_list(&handle, FILE).unwrap(), None);
    write3().unwrap();
    bad.close(&bad_file).unwrap();
    good.close(&good_file).unwrap();
}

/// When the change of the fence has been answered, no further byte arrives.
#[test]
fn an_nfs_writer_has_stopped_when_it_is_fenced() {
    let served = Served::new();
    let manager = served.dafs();
    let path = served.path().join("fenced");
    let (writer, root) = served.v4(b"writer");
    let file = writer.create(&root, NAME).unwrap();
    let handle = manager.lookup(&manager.root(), NAME).unwrap();
    for _ in 0..20 {
        let written = AtomicU64::new(0);
        std::thread::scope(|scope| {
            let writing = scope.spawn(|| {
                for number in 1u64.. {
                    let bytes = number.to_be_bytes();
                    let stable = StableHow::Unstable;
                    match writer.write(&file.handle, file.stateid, 0, &bytes, stable) {
                        Ok(_) => written.store(number, Ordering::SeqCst),
                        refusal => return refused(refusal),
                    }
                }
                unreachable!()
            });
            while written.load(Ordering::SeqCst) < 10 {
                std::thread::yield_now();
            }
            manager.set_fence(&handle, FILE, FenceChange::Set(&[b"nfs:other"])).unwrap();
            let at_the_reply = std::fs::read(&path).unwrap();
            assert_eq!(writing.join().unwrap(), Status::Access);
            assert_eq!(std::fs::read(&path).unwrap(), at_the_reply);
        });
        manager.set_fence(&handle, FILE, FenceChange::Clear).unwrap();
    }
    writer.close(&file).unwrap();
}
