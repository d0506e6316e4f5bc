//! What goes to data servers, and how a file looks meanwhile.

use crate::harness::{Cluster, UNIT, content, filled, mount, pattern, since};
use dafs_nfs_client::mount::{Create, OpenOptions, SetAttributes, StableHow};

const LEN: usize = 50 * UNIT + 77;

#[test]
fn all_bytes_go_to_the_data_servers_and_none_through_the_server() {
    let cluster = Cluster::new();
    let mount = cluster.mount();
    let (nodes, server) = (cluster.node_bytes(), cluster.server_bytes());
    let options = OpenOptions::read_write().create(Create::New);
    let file = mount.open(b"/f", &options).unwrap();
    let bytes = pattern(LEN, 1);
    let written = file.write(filled(&mount, &bytes).whole(), 0, StableHow::Unstable).unwrap();
    assert_eq!((written.bytes, written.stable), (LEN, StableHow::Unstable));
    // The size is the file's for whoever asks, though only data servers were written to.
    assert_eq!(file.attributes().unwrap().size, LEN as u64);
    assert!(file.is_unstable());
    assert_eq!(file.commit().unwrap(), written.verifier);
    assert!(!file.is_unstable());
    assert!(content(&file, LEN) == bytes);
    let moved = since(&cluster.node_bytes(), &nodes);
    let third = (LEN / 3 - UNIT) as u64;
    for node in &moved {
        assert!(node.written >= third && node.read >= third, "{moved:?}");
    }
    assert_eq!(moved.iter().map(|node| node.written).sum::<u64>(), LEN as u64);
    assert_eq!(moved.iter().map(|node| node.read).sum::<u64>(), LEN as u64);
    let through = cluster.server_bytes().since(server);
    assert_eq!((through.read, through.written), (0, 0));
    file.close().unwrap();
    // A reader of its own, with requests ahead.
    let nodes = cluster.node_bytes();
    let other = cluster.mount();
    let file = other.open(b"/f", &OpenOptions::read()).unwrap();
    let mut reader = file.reader(0, 64 << 10, 4).unwrap();
    let mut got = Vec::new();
    while let Some(piece) = reader.next_piece().unwrap() {
        got.extend(piece.view.to_vec(dafs_mem::Site::Inspect));
    }
    assert!(got == bytes);
    let moved = since(&cluster.node_bytes(), &nodes);
    assert_eq!(moved.iter().map(|node| node.read).sum::<u64>(), LEN as u64);
    assert_eq!(cluster.server_bytes().since(server).read, 0);
}

#[test]
fn data_servers_are_reached_by_tcp_where_they_are_reached_by_that_alone() {
    let cluster = Cluster::new();
    for (transport, name) in [("iwarp", "/iwarp"), ("shm", "/shm")] {
        let mount = cluster.mount_by(transport);
        assert_eq!(mount.transport(), transport);
        let (nodes, server) = (cluster.node_bytes(), cluster.server_bytes());
        let options = OpenOptions::read_write().create(Create::New);
        let file = mount.open(name.as_bytes(), &options).unwrap();
        let bytes = pattern(LEN, 6);
        file.write(filled(&mount, &bytes).whole(), 0, StableHow::Unstable).unwrap();
        file.commit().unwrap();
        assert!(content(&file, LEN) == bytes, "{transport}");
        let moved = since(&cluster.node_bytes(), &nodes);
        assert_eq!(moved.iter().map(|node| node.written).sum::<u64>(), LEN as u64);
        assert_eq!(moved.iter().map(|node| node.read).sum::<u64>(), LEN as u64);
        let through = cluster.server_bytes().since(server);
        assert_eq!((through.read, through.written), (0, 0));
    }
}

#[test]
fn a_mount_can_do_without_data_servers() {
    let cluster = Cluster::new();
    let (nodes, server) = (cluster.node_bytes(), cluster.server_bytes());
    let mount = mount(cluster.address(), "", false);
    let options = OpenOptions::read_write().create(Create::New);
    let file = mount.open(b"/f", &options).unwrap();
    let bytes = pattern(LEN, 2);
    file.write(filled(&mount, &bytes).whole(), 0, StableHow::FileSync).unwrap();
    assert!(content(&file, LEN) == bytes);
    assert_eq!(
        since(&cluster.node_bytes(), &nodes),
        [crate::harness::Bytes { read: 0, written: 0 }; 3]
    );
    let through = cluster.server_bytes().since(server);
    assert_eq!((through.read, through.written), (LEN as u64, LEN as u64));
}

#[test]
fn small_files_are_done_with_before_a_layout_is_asked_for() {
    let cluster = Cluster::new();
    let nodes = cluster.node_bytes();
    let mount = cluster.mount();
    let options = OpenOptions::read_write().create(Create::New);
    let file = mount.open(b"/f", &options).unwrap();
    let bytes = pattern(10_000, 3);
    file.write(filled(&mount, &bytes).whole(), 0, StableHow::FileSync).unwrap();
    assert!(content(&file, bytes.len()) == bytes);
    assert_eq!(
        since(&cluster.node_bytes(), &nodes),
        [crate::harness::Bytes { read: 0, written: 0 }; 3]
    );
}

#[test]
fn a_file_looks_as_if_there_was_one_server() {
    let cluster = Cluster::new();
    let (writer, other) = (cluster.mount(), cluster.mount());
    let options = OpenOptions::read_write().create(Create::New);
    let file = writer.open(b"/f", &options).unwrap();
    let bytes = pattern(30 * UNIT, 4);
    let memory = filled(&writer, &bytes);
    let start = memory.slice(0..20 * UNIT).unwrap();
    // Behind a hole of several stripes.
    file.write(start, 10 * UNIT as u64, StableHow::Unstable).unwrap();
    let mut expected = vec![0; 10 * UNIT];
    expected.extend_from_slice(&bytes[..20 * UNIT]);
    assert!(content(&file, expected.len()) == expected, "holes are zeros");
    // What is stable is the file's for others, too.
    let tail = memory.slice(20 * UNIT..30 * UNIT).unwrap();
    let stable = file.write(tail, 30 * UNIT as u64, StableHow::FileSync).unwrap().stable;
    assert_eq!(stable, StableHow::FileSync);
    expected.extend_from_slice(&bytes[20 * UNIT..]);
    assert_eq!(
        other
            .lookup(&other.resolve(b"/", dafs_nfs_client::mount::Follow::Yes).unwrap().handle, b"f")
            .unwrap()
            .1
            .size,
        expected.len() as u64
    );
    // A second open of the same mount sees what the first has written.
    let again = writer.open(b"/f", &OpenOptions::read()).unwrap();
    file.write(memory.slice(0..UNIT).unwrap(), 40 * UNIT as u64, StableHow::Unstable).unwrap();
    expected.extend_from_slice(&bytes[..UNIT]);
    assert!(content(&again, expected.len()) == expected);
    // A shorter size stays, whatever was written before.
    let cut = SetAttributes { size: Some(5), ..SetAttributes::default() };
    file.set_attributes(&cut).unwrap();
    assert_eq!(file.attributes().unwrap().size, 5);
    assert!(content(&file, expected.len()) == expected[..5]);
    file.write(memory.slice(0..20 * UNIT).unwrap(), UNIT as u64, StableHow::Unstable).unwrap();
    file.close().unwrap();
    again.close().unwrap();
    let seen = other.open(b"/f", &OpenOptions::read()).unwrap();
    let mut expected = expected[..5].to_vec();
    expected.resize(UNIT, 0);
    expected.extend_from_slice(&bytes[..20 * UNIT]);
    assert!(content(&seen, expected.len()) == expected, "closed is told");
}

#[test]
fn many_threads_and_transfers_share_a_file() {
    const PIECE: usize = 3 * UNIT + 5;
    const PIECES: usize = 40;
    let cluster = Cluster::new();
    let mount = cluster.mount();
    let options = OpenOptions::read_write().create(Create::New);
    let file = mount.open(b"/f", &options).unwrap();
    let bytes = pattern(4 * PIECES * PIECE, 5);
    let memory = filled(&mount, &bytes);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (file, memory) = (&file, &memory);
            scope.spawn(move || {
                let mut pending = Vec::new();
                for at in 0..PIECES {
                    let at = (4 * at + thread) * PIECE;
                    let piece = memory.slice(at..at + PIECE).unwrap();
                    pending.push(file.submit_write(piece, at as u64, StableHow::Unstable).unwrap());
                }
                for write in pending.into_iter().rev() {
                    assert_eq!(write.wait().unwrap().bytes, PIECE);
                }
            });
        }
    });
    file.commit().unwrap();
    assert!(content(&file, bytes.len()) == bytes);
}
