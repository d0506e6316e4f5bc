//! Data servers that stop and come back, recalls, and a metadata server that restarts.

use super::harness::{Bytes, Cluster, PATIENCE, UNIT, content};
use crate::common::{filled, pattern};
use dafs_nfs_client::mount::{Create, File, Mount, MountError, OpenOptions, StableHow};
use std::time::{Duration, Instant};

const LEN: usize = 40 * UNIT;

/// Writes bytes until they are stable, again when some were lost.
fn write_stable(mount: &Mount, file: &File, bytes: &[u8]) {
    let memory = filled(mount, bytes);
    let end = Instant::now() + PATIENCE;
    loop {
        let written = file.write(memory.whole(), 0, StableHow::Unstable);
        match written.and_then(|_| file.commit()) {
            Ok(_) => return,
            Err(MountError::WritesLost) => assert!(Instant::now() < end),
            Err(error) => panic!("{error}"),
        }
    }
}

fn create(mount: &Mount) -> File {
    mount.open(b"/f", &OpenOptions::read_write().create(Create::IfMissing)).unwrap()
}

#[test]
fn a_data_server_that_dies_under_writes_costs_no_byte() {
    let cluster = Cluster::new();
    let mount = cluster.mount();
    a_data_server_dies_under_writes(cluster, &mount);
}

#[test]
fn nor_does_one_of_a_server_that_is_reached_over_rdma() {
    for transport in ["iwarp", "shm"] {
        let cluster = Cluster::with_rdma();
        let mount = cluster.mount_by(transport);
        write_stable(&mount, &create(&mount), &pattern(LEN, 1));
        assert_eq!(cluster.rdma_counts()[0] > 0, transport == "iwarp");
        a_data_server_dies_under_writes(cluster, &mount);
    }
}

fn a_data_server_dies_under_writes(mut cluster: Cluster, mount: &Mount) {
    let file = create(mount);
    write_stable(mount, &file, &pattern(LEN, 1));
    // Unstable data that the data server may lose when it stops.
    let bytes = pattern(LEN, 2);
    let memory = filled(mount, &bytes);
    file.write(memory.slice(0..LEN / 2).unwrap(), 0, StableHow::Unstable).unwrap();
    cluster.stop_node(1);
    let writing = {
        let (mount, file, bytes) = (mount.clone(), file.clone(), bytes.clone());
        std::thread::spawn(move || write_stable(&mount, &file, &bytes))
    };
    std::thread::sleep(Duration::from_millis(300));
    cluster.start_node(1);
    writing.join().unwrap();
    assert!(content(&file, LEN) == bytes);
    let other = cluster.mount();
    assert!(content(&create(&other), LEN) == bytes);
    // The client uses the data server again after a while.
    cluster.reads_directly(LEN as u64, || assert!(content(&file, LEN) == bytes));
}

#[test]
fn data_that_a_data_server_lost_is_reported() {
    let mut cluster = Cluster::new();
    let mount = cluster.mount();
    let file = create(&mount);
    let bytes = pattern(LEN, 3);
    file.write(filled(&mount, &bytes).whole(), 0, StableHow::Unstable).unwrap();
    cluster.stop_node(0);
    cluster.start_node(0);
    assert!(matches!(file.commit(), Err(MountError::WritesLost)));
    cluster.wait_for_nodes();
    write_stable(&mount, &file, &bytes);
    assert!(content(&file, LEN) == bytes);
}

#[test]
fn copies_are_all_written_and_one_is_enough_to_read() {
    let mut cluster = Cluster::with_copies(2);
    let mount = cluster.mount();
    let before = cluster.bytes();
    let file = create(&mount);
    let bytes = pattern(LEN, 6);
    write_stable(&mount, &file, &bytes);
    assert!(content(&file, LEN) == bytes);
    let moved = cluster.since(&before);
    let direct = Bytes { read: LEN as u64, written: 2 * LEN as u64 };
    assert_eq!(moved.direct(), direct, "{moved:?}");
    assert_eq!(moved.server, Bytes::default());
    // A data server with a copy stops, and stays away.
    let with_copy = moved.nodes.iter().position(|node| node.written > 0).unwrap();
    cluster.stop_node(with_copy);
    assert!(content(&file, LEN) == bytes);
    let bytes = pattern(LEN, 7);
    write_stable(&mount, &file, &bytes);
    assert!(content(&file, LEN) == bytes);
    file.close().unwrap();
    let other = cluster.mount();
    assert!(content(&create(&other), LEN) == bytes);
}

#[test]
fn a_reader_goes_on_at_the_other_copy_at_once() {
    let mut cluster = Cluster::with_copies(2);
    let mount = cluster.mount();
    let (file, before) = (create(&mount), cluster.bytes());
    let bytes = pattern(LEN, 8);
    write_stable(&mount, &file, &bytes);
    let moved = cluster.since(&before);
    file.close().unwrap();
    let reader = cluster.mount();
    let file = reader.open(b"/f", &OpenOptions::read()).unwrap();
    cluster.reads_directly(LEN as u64, || assert!(content(&file, LEN) == bytes));
    // Copies take turns: the next read uses the other copy.
    let before = cluster.bytes();
    assert!(content(&file, LEN) == bytes);
    let read = cluster.since(&before);
    let mut nodes = moved.nodes.iter().zip(&read.nodes);
    let next = nodes.position(|(of, read)| of.written > 0 && read.read == 0);
    cluster.stop_node(next.unwrap());
    let before = cluster.bytes();
    assert!(content(&file, LEN) == bytes);
    let moved = cluster.since(&before);
    assert_eq!(moved.direct().read, LEN as u64, "{moved:?}");
    assert_eq!(moved.server.read, 0);
}

#[test]
fn another_client_cuts_the_file_and_the_layout_comes_back() {
    let cluster = Cluster::new();
    let mount = cluster.mount();
    let file = create(&mount);
    let bytes = pattern(LEN, 4);
    file.write(filled(&mount, &bytes).whole(), 0, StableHow::Unstable).unwrap();
    // No caller waits for the first one's writes: unstable data is made stable, and committed.
    let session = cluster.session(b"cutter");
    let root = session.root().unwrap();
    let open = dafs_nfs_client::patiently(|| session.create(&root, b"f")).unwrap();
    let cut = dafs_wire::nfs4::SetAttributes {
        size: Some(3 * UNIT as u64 + 1),
        ..dafs_wire::nfs4::SetAttributes::default()
    };
    let begun = Instant::now();
    dafs_nfs_client::patiently(|| session.setattr(&open.handle, open.stateid, &cut)).unwrap();
    assert!(begun.elapsed() < PATIENCE, "the layout was given back");
    assert!(content(&file, LEN) == bytes[..3 * UNIT + 1]);
    // No data was lost, so earlier unstable data is committed.
    file.commit().unwrap();
    session.close(&open).unwrap();
    // After a while bytes go to the data servers again.
    let end = Instant::now() + PATIENCE;
    loop {
        let before = cluster.bytes();
        write_stable(&mount, &file, &bytes);
        let moved = cluster.since(&before);
        if moved.direct().written == LEN as u64 {
            break;
        }
        assert!(Instant::now() < end, "{moved:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(content(&file, LEN) == bytes);
}

#[test]
fn a_metadata_server_that_restarts_is_told_what_was_written() {
    let mut cluster = Cluster::new();
    let mount = cluster.mount();
    let file = create(&mount);
    let bytes = pattern(LEN, 5);
    file.write(filled(&mount, &bytes).whole(), 0, StableHow::Unstable).unwrap();
    cluster.restart_server();
    write_stable(&mount, &file, &bytes);
    assert_eq!(file.attributes().unwrap().size, LEN as u64);
    assert!(content(&file, LEN) == bytes);
    file.close().unwrap();
    let other = cluster.mount();
    assert!(content(&create(&other), LEN) == bytes);
}
