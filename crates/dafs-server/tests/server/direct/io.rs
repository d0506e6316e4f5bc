//! I/O at data servers, and the view of the file meanwhile.

use super::harness::{Bytes, Cluster, UNIT, content, mount};
use super::tamper::{Lies, Tamper};
use crate::common::{encoded, filled, new_file, pattern};
use dafs_nfs_client::mount::{OpenOptions, SetAttributes, StableHow};
use dafs_wire::nfs4::{ResultBody, Status};

const LEN: usize = 50 * UNIT + 77;

#[test]
fn all_bytes_go_to_the_data_servers_and_none_through_the_server() {
    let cluster = Cluster::new();
    let mount = cluster.mount();
    let before = cluster.bytes();
    let file = new_file(&mount, "/f");
    let bytes = pattern(LEN, 1);
    let written = file.write(filled(&mount, &bytes).whole(), 0, StableHow::Unstable).unwrap();
    assert_eq!((written.bytes, written.stable), (LEN, StableHow::Unstable));
    // Every client sees the size, though only data servers were written to.
    assert_eq!(file.attributes().unwrap().size, LEN as u64);
    assert!(file.is_unstable());
    assert_eq!(file.commit().unwrap(), written.verifier);
    assert!(!file.is_unstable());
    assert!(content(&file, LEN) == bytes);
    let moved = cluster.since(&before);
    let third = (LEN / 3 - UNIT) as u64;
    for node in &moved.nodes {
        assert!(node.written >= third && node.read >= third, "{moved:?}");
    }
    assert_eq!(moved.direct(), Bytes::both(LEN));
    assert_eq!(moved.server, Bytes::default());
    file.close().unwrap();
    // Another mount reads ahead.
    let before = cluster.bytes();
    let other = cluster.mount();
    let file = other.open(b"/f", &OpenOptions::read()).unwrap();
    let mut reader = file.reader(0, 64 << 10, 4).unwrap();
    let mut got = Vec::new();
    while let Some(piece) = reader.next_piece().unwrap() {
        got.extend(piece.view.to_vec(dafs_mem::Site::Inspect));
    }
    assert!(got == bytes);
    let moved = cluster.since(&before);
    assert_eq!(moved.direct().read, LEN as u64);
    assert_eq!(moved.server.read, 0);
}

#[test]
fn data_servers_are_reached_by_tcp_where_they_are_reached_by_that_alone() {
    let cluster = Cluster::new();
    for (transport, name) in [("iwarp", "/iwarp"), ("shm", "/shm")] {
        let mount = cluster.mount_by(transport);
        assert_eq!(mount.transport(), transport);
        let before = cluster.bytes();
        let file = new_file(&mount, name);
        let bytes = pattern(LEN, 6);
        file.write(filled(&mount, &bytes).whole(), 0, StableHow::Unstable).unwrap();
        file.commit().unwrap();
        assert!(content(&file, LEN) == bytes, "{transport}");
        let moved = cluster.since(&before);
        assert_eq!(moved.direct(), Bytes::both(LEN));
        assert_eq!(moved.server, Bytes::default());
    }
}

#[test]
fn data_servers_are_reached_as_the_server_is() {
    let cluster = Cluster::with_rdma();
    let mounts = [("tcp", cluster.mount())].into_iter();
    let by_rdma = ["iwarp", "shm"].map(|transport| (transport, cluster.mount_by(transport)));
    for (transport, mount) in mounts.chain(by_rdma) {
        assert_eq!(mount.transport(), transport);
        let before = cluster.bytes();
        let counts = cluster.rdma_counts();
        let file = new_file(&mount, &format!("/{transport}"));
        let bytes = pattern(LEN, 7);
        file.write(filled(&mount, &bytes).whole(), 0, StableHow::Unstable).unwrap();
        file.commit().unwrap();
        assert!(content(&file, LEN) == bytes, "{transport}");
        let moved = cluster.since(&before);
        assert_eq!(moved.direct(), Bytes::both(LEN));
        assert_eq!(moved.server, Bytes::default());
        let after = cluster.rdma_counts();
        let [calls, fetched, placed] = [0, 1, 2].map(|at| after[at] - counts[at]);
        // Except for the last 77 bytes, which fit into a message.
        let (stripes, chunks) = ((LEN / UNIT) as u64, (LEN / UNIT * UNIT) as u64);
        match transport {
            // Mapped memory is shared with the server only.
            "tcp" | "shm" => assert_eq!([calls, fetched, placed], [0; 3]),
            _ => {
                assert!(calls >= 2 * stripes, "{calls}");
                assert!(fetched >= chunks && placed >= chunks, "{fetched} {placed}");
            }
        }
    }
}

#[test]
fn a_data_server_that_comes_back_is_reached_over_rdma_again() {
    let mut cluster = Cluster::with_rdma();
    let mount = cluster.mount_by("iwarp");
    let bytes = pattern(LEN, 8);
    let file = new_file(&mount, "/before");
    file.write(filled(&mount, &bytes).whole(), 0, StableHow::FileSync).unwrap();
    file.close().unwrap();
    cluster.stop_node(1);
    cluster.start_node(1);
    cluster.wait_for_nodes();
    let before = cluster.rdma_counts();
    let file = new_file(&mount, "/after");
    file.write(filled(&mount, &bytes).whole(), 0, StableHow::FileSync).unwrap();
    assert!(content(&file, LEN) == bytes);
    // The client knew no address of the device, which is another one.
    let chunks = (LEN / UNIT * UNIT) as u64;
    let after = cluster.rdma_counts();
    assert!(after[1] - before[1] >= chunks && after[2] - before[2] >= chunks, "{after:?}");
}

#[test]
fn the_secret_of_the_cluster_changes_under_writes() {
    let cluster = Cluster::new();
    let mount = cluster.mount();
    let file = new_file(&mount, "/f");
    file.write(filled(&mount, &pattern(LEN, 9)).whole(), 0, StableHow::FileSync).unwrap();
    cluster.change_secret_during(|round| {
        let bytes = pattern(LEN, 10 + round);
        let written = file.write(filled(&mount, &bytes).whole(), 0, StableHow::FileSync).unwrap();
        assert_eq!(written.bytes, LEN);
        assert!(content(&file, LEN) == bytes, "round {round}");
    });
    cluster.reads_directly(LEN as u64, || drop(content(&file, LEN)));
}

#[test]
fn a_mount_can_do_without_data_servers() {
    let cluster = Cluster::new();
    let before = cluster.bytes();
    let mount = mount(cluster.address(), "", false);
    let file = new_file(&mount, "/f");
    let bytes = pattern(LEN, 2);
    file.write(filled(&mount, &bytes).whole(), 0, StableHow::FileSync).unwrap();
    assert!(content(&file, LEN) == bytes);
    let moved = cluster.since(&before);
    assert_eq!(moved.nodes, [Bytes::default(); 3]);
    assert_eq!(moved.server, Bytes::both(LEN));
}

#[test]
fn small_files_are_done_with_before_a_layout_is_asked_for() {
    let cluster = Cluster::new();
    let before = cluster.bytes();
    let mount = cluster.mount();
    let file = new_file(&mount, "/f");
    let bytes = pattern(10_000, 3);
    file.write(filled(&mount, &bytes).whole(), 0, StableHow::FileSync).unwrap();
    assert!(content(&file, bytes.len()) == bytes);
    file.close().unwrap();
    // A request beyond the end of the file does not change that either.
    let file = mount.open(b"/f", &OpenOptions::read()).unwrap();
    for _ in 0..2 {
        let mut reader = file.reader(0, 256 << 10, 4).unwrap();
        let piece = reader.next_piece().unwrap().unwrap();
        assert!(piece.view.to_vec(dafs_mem::Site::Inspect) == bytes);
        assert!(reader.next_piece().unwrap().is_none());
    }
    assert_eq!(cluster.since(&before).nodes, [Bytes::default(); 3]);
}

#[test]
fn a_file_that_has_grown_since_it_was_opened_is_worth_a_layout_too() {
    let cluster = Cluster::new();
    let (writer, reader) = (cluster.mount(), cluster.mount());
    let file = new_file(&writer, "/f");
    let early = reader.open(b"/f", &OpenOptions::read()).unwrap();
    let bytes = pattern(LEN, 5);
    file.write(filled(&writer, &bytes).whole(), 0, StableHow::FileSync).unwrap();
    // The client did not know the size.
    assert!(content(&early, LEN) == bytes);
    let before = cluster.bytes();
    assert!(content(&early, LEN) == bytes);
    let moved = cluster.since(&before);
    assert_eq!(moved.direct().read, LEN as u64);
}

#[test]
fn a_file_looks_as_if_there_was_one_server() {
    let cluster = Cluster::new();
    let (writer, other) = (cluster.mount(), cluster.mount());
    let file = new_file(&writer, "/f");
    let bytes = pattern(30 * UNIT, 4);
    let memory = filled(&writer, &bytes);
    let start = memory.slice(0..20 * UNIT).unwrap();
    // The data lies behind a hole of several stripes.
    file.write(start, 10 * UNIT as u64, StableHow::Unstable).unwrap();
    let mut expected = vec![0; 10 * UNIT];
    expected.extend_from_slice(&bytes[..20 * UNIT]);
    assert!(content(&file, expected.len()) == expected, "holes are zeros");
    // Stable data is visible to others, too.
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
    // A second open of the same mount sees the writes of the first.
    let again = writer.open(b"/f", &OpenOptions::read()).unwrap();
    file.write(memory.slice(0..UNIT).unwrap(), 40 * UNIT as u64, StableHow::Unstable).unwrap();
    expected.extend_from_slice(&bytes[..UNIT]);
    assert!(content(&again, expected.len()) == expected);
    // A shorter size stays, despite earlier writes.
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
    let file = new_file(&mount, "/f");
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

/// A policy whose layouts cover so many bytes from the start of each file.
pub(crate) struct Start(pub(crate) u64);

impl Lies for Start {
    fn layout(&self, told: &ResultBody<'_>) -> Option<Result<Vec<u8>, Status>> {
        let ResultBody::Layoutget(told) = told else { return None };
        let mut told = told.clone();
        told.layouts.iter_mut().for_each(|layout| layout.length = self.0);
        Some(Ok(encoded(&told)))
    }
}

#[test]
fn a_layout_of_a_part_leads_to_the_data_servers_for_that_part() {
    const PART: usize = 20 * UNIT;
    let cluster = Cluster::new();
    let tamper = Tamper::new(cluster.address(), Start(PART as u64));
    let mount = mount(tamper.address, "", true);
    let file = new_file(&mount, "/f");
    let before = cluster.bytes();
    let bytes = pattern(LEN, 7);
    let memory = filled(&mount, &bytes);
    // The pieces lie within the layout, across its end, and behind it.
    let pieces = [0..PART, 10 * UNIT..30 * UNIT, 30 * UNIT..LEN];
    for piece in pieces.clone() {
        let (offset, len) = (piece.start as u64, piece.len());
        let memory = memory.slice(piece).unwrap();
        assert_eq!(file.write(memory, offset, StableHow::Unstable).unwrap().bytes, len);
    }
    file.commit().unwrap();
    let back = mount.allocate(LEN).unwrap();
    for piece in pieces {
        let (offset, len) = (piece.start as u64, piece.len());
        let memory = back.slice(piece).unwrap();
        assert_eq!(file.read(memory, offset).unwrap(), len);
    }
    assert!(back.view().to_vec(dafs_mem::Site::Inspect) == bytes);
    let moved = cluster.since(&before);
    assert_eq!(moved.direct(), Bytes::both(PART));
    assert_eq!(moved.server, Bytes::both(LEN - 10 * UNIT));
    assert_eq!(tamper.layouts(), 1, "what it leaves out is not asked for each time");
    file.close().unwrap();
    let other = cluster.mount().open(b"/f", &OpenOptions::read()).unwrap();
    assert!(content(&other, LEN) == bytes);
}
