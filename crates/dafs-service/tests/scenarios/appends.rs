//! Appends: exclusive at the end of the file, atomic, concurrent with every other kind of writer.

use crate::common::*;
use dafs_mem::VolatileSlice;
use dafs_posix::{PosixOptions, PosixStore};
use dafs_service::{
    Caller, Client, ExportOptions, Handle, Namespace, Service, ServiceConfig, Squash, StateRef,
};
use dafs_store::{Cred, ExportSecret, OpenMode, SetAttr, Stability, Store, Wait};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes of one record: enough that another thread could see a partial write of it.
const RECORD_BYTES: usize = 3000;
const RECORDS: usize = 60;
/// The data of writers that do not append, and its length for a write behind the end.
const OTHER: u8 = 0xee;
const OTHER_BYTES: usize = 50;
/// The range of other writers: the start of the file.
const HEAD_BYTES: u64 = 8192;

fn record(writer: usize, number: usize) -> Vec<u8> {
    let mut bytes = vec![writer as u8 + 1; RECORD_BYTES];
    bytes[..8].copy_from_slice(&(number as u64).to_be_bytes());
    bytes
}

#[test]
fn appends_and_writes_of_all_doors_never_meet() {
    let world = World::new();
    let dir = tempfile::tempdir().unwrap();
    let options = PosixOptions::new(ExportSecret::from_bytes([5; 16]));
    let posix: Arc<dyn Store> = Arc::new(PosixStore::open(dir.path(), options).unwrap());
    let rules = ExportOptions { squash: Squash::None, ..ExportOptions::default() };
    let export = dafs_service::Export::new("", posix, rules);
    let on_disk = Service::new(ServiceConfig::new(LEASE, 1), Namespace::new(vec![export]).unwrap());
    meet(&world.service, 4);
    meet(&on_disk, 4);
}

/// Appenders run concurrently with writers with and without an open, as those of NFS.
fn meet(service: &Service, appenders: usize) {
    let own = std::fs::metadata("/proc/self").unwrap();
    let cred = Cred::new(own.uid(), own.gid());
    let (root, now_ns) = (service.root(), SECOND_NS);
    let identity = || dafs_service::Identity { mechanism: "none", principal: Vec::new() };
    let client = |name: String| {
        service
            .register_client(name.as_bytes(), 1, identity(), Default::default(), now_ns)
            .unwrap()
            .client
    };
    let caller = |client: &Arc<Client>| -> Caller<'_> {
        Caller {
            client: leak(client.clone()),
            cred: leak(cred.clone()),
            subject: dafs_service::Subject::Server,
            wait: Wait::Allowed,
            now_ns,
        }
    };
    let open = |client: &Arc<Client>| -> (Handle, StateRef) {
        let how =
            dafs_service::OpenHow::Create(dafs_store::CreateHow::Unchecked, SetAttr::default());
        let request = dafs_service::OpenRequest::by_name(&root, b"log", b"o", BOTH, how);
        let opened = service.opens.open(caller(client), &request).unwrap();
        (*opened.state.handle(), opened.state.reference())
    };
    let first = client("first".to_owned());
    let (handle, state) = open(&first);
    let head = SetAttr { size: Some(HEAD_BYTES), ..SetAttr::default() };
    service.setattr(caller(&first), &handle, state, &head).unwrap();
    let done = AtomicBool::new(false);
    let (places, others) = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..appenders)
            .map(|writer| {
                let (client, open, caller) = (client(format!("a{writer}")), &open, &caller);
                scope.spawn(move || {
                    let (handle, state) = open(&client);
                    let append = |number| {
                        let mut bytes = record(writer, number);
                        // In pieces, as RDMA delivers them.
                        let (one, two) = bytes.split_at_mut(1234);
                        let views = [VolatileSlice::from_mut(one), VolatileSlice::from_mut(two)];
                        let stability =
                            if number % 2 == 0 { Stability::Data } else { Stability::File };
                        service
                            .opens
                            .append(caller(&client), &handle, state, &views, stability)
                            .unwrap()
                    };
                    (0..RECORDS).map(append).collect::<Vec<u64>>()
                })
            })
            .collect();
        // Others write all the time: within the head, and behind the end that they see, where an
        // append may be by now.
        let (done, caller) = (&done, &caller);
        let (head_writer, end_writer) = (client("w0".to_owned()), client("w1".to_owned()));
        let mode = OpenMode { read: true, write: true };
        scope.spawn(move || {
            let special = StateRef::ANONYMOUS;
            let file = service.opens.io_file(caller(&head_writer), &handle, special, mode).unwrap();
            let mut bytes = vec![OTHER; 2000];
            let view = [VolatileSlice::from_mut(&mut bytes)];
            while !done.load(Ordering::Relaxed) {
                file.write_at(&view, 1000, Stability::Unstable, Wait::Allowed).unwrap();
                file.allocate(0, HEAD_BYTES).unwrap();
            }
        });
        let others = scope.spawn(move || {
            let mut others = Vec::new();
            let mut bytes = vec![OTHER; OTHER_BYTES];
            let view = [VolatileSlice::from_mut(&mut bytes)];
            while !done.load(Ordering::Relaxed) && others.len() < 1000 {
                let stateless = caller(service.stateless_client());
                let file = match others.len() % 2 {
                    0 => service
                        .opens
                        .stateless_file(stateless, &handle, mode)
                        .map(|found| found.file),
                    _ => service.opens.io_file(
                        caller(&end_writer),
                        &handle,
                        StateRef::ANONYMOUS,
                        mode,
                    ),
                };
                let file = file.unwrap();
                let size = file.attr().unwrap().size;
                file.write_at(&view, size, Stability::Unstable, Wait::Allowed).unwrap();
                others.push(size);
            }
            others
        });
        let places: Vec<Vec<u64>> =
            threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        done.store(true, Ordering::Relaxed);
        (places, others.join().unwrap())
    });
    let file = service.opens.io_file(caller(&first), &handle, state, MODE_READ).unwrap();
    let mut all: Vec<u64> = Vec::new();
    for (writer, offsets) in places.iter().enumerate() {
        assert!(offsets.windows(2).all(|pair| pair[0] < pair[1]), "one after the other");
        for (number, &offset) in offsets.iter().enumerate() {
            let mut bytes = vec![0; RECORD_BYTES];
            let view = [VolatileSlice::from_mut(&mut bytes)];
            assert_eq!(file.read_at(&view, offset, Wait::Allowed), Ok(RECORD_BYTES));
            let mut expected = record(writer, number);
            // A write may replace bytes of an append, but an append never replaces a write.
            for byte in others.iter().flat_map(|&at| at..at + OTHER_BYTES as u64) {
                if let Some(byte) =
                    byte.checked_sub(offset).filter(|&byte| byte < RECORD_BYTES as u64)
                {
                    expected[byte as usize] = OTHER;
                }
            }
            assert!(bytes == expected, "record {number} of {writer} at {offset}");
        }
        all.extend(offsets);
    }
    all.sort_unstable();
    assert!(all[0] >= HEAD_BYTES);
    assert!(all.windows(2).all(|pair| pair[1] - pair[0] >= RECORD_BYTES as u64), "no overlap");
}

fn leak<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}
