//! The DAFS client reads and writes at data servers itself.

use super::harness::{Bytes, Cluster, PATIENCE, since};
use crate::common::pattern;
use dafs_client::{
    Client, ConnectOptions, Create, DafsUrl, Error, File, IoBuffer, OpenOptions, Stability,
    TransportChoice, WriteState,
};
use dafs_mem::Site;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake};
use std::thread::Thread;
use std::time::{Duration, Instant};

const BYTES: usize = 1 << 20;

fn client(cluster: &Cluster, more: &str) -> Client {
    client_by(cluster, more, TransportChoice::Iwarp)
}

fn client_by(cluster: &Cluster, more: &str, transport: TransportChoice) -> Client {
    let address = cluster.server().addresses()[0];
    let url = DafsUrl::parse(&format!("dafs://{address}/{more}")).unwrap();
    Client::connect(
        &url,
        &ConnectOptions { transport, data_servers: true, ..ConnectOptions::default() },
    )
    .unwrap()
}

fn open(client: &Client, name: &[u8]) -> File {
    let options = OpenOptions::read_write().create(Create::IfMissing).mode(0o644);
    client.open(name, &options).unwrap()
}

/// Returns the bytes of file content that went through the metadata server.
fn through(client: &Client) -> Bytes {
    let stats = client.stats();
    Bytes { read: stats.bytes_read, written: stats.bytes_written }
}

/// Repeats a write of the file until no byte goes through the server: the server must first know
/// that it can call the client.
fn write_direct(file: &File, data: &[u8]) {
    let end = Instant::now() + PATIENCE;
    loop {
        let before = through(file.client());
        assert_eq!(file.write_at(data, 0, Stability::Unstable).unwrap(), data.len());
        let done = through(file.client()).since(before);
        if done.written == 0 {
            return;
        }
        assert!(Instant::now() < end, "{done:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Writes until the data is stable, again when some was lost with a data server.
fn write_stable(file: &File, data: &[u8]) {
    let end = Instant::now() + PATIENCE;
    loop {
        file.write_at(data, 0, Stability::Unstable).unwrap();
        match file.commit(0, 0) {
            Ok(()) => return,
            Err(Error::WritesLost) => assert!(Instant::now() < end),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Returns a buffer with these bytes.
fn filled(client: &Client, data: &[u8]) -> IoBuffer {
    let buffer = client.buffer(data.len()).unwrap();
    buffer.view().copy_from(data, Site::Inspect);
    buffer
}

fn content(file: &File) -> Vec<u8> {
    let mut found = vec![0; BYTES + 100];
    let count = file.read_at(&mut found, 0).unwrap();
    found.truncate(count);
    found
}

#[test]
fn every_byte_goes_to_its_data_server_and_none_through_the_server() {
    let cluster = Cluster::new();
    let (client, other) = (client(&cluster, ""), client(&cluster, "?pnfs=no"));
    let file = open(&client, b"/file");
    let data = pattern(BYTES, 1);
    write_direct(&file, &data);
    let (before, nodes_before) = (through(&client), cluster.node_bytes());
    let data = pattern(BYTES, 2);
    file.write_at(&data, 0, Stability::Unstable).unwrap();
    file.commit(0, 0).unwrap();
    assert!(content(&file) == data);
    let done = through(&client).since(before);
    assert_eq!(done.written, 0);
    assert_eq!(done.read, 0, "behind the end there is nothing");
    let moved = since(&cluster.node_bytes(), &nodes_before);
    let (read, written): (Vec<_>, Vec<_>) = moved.iter().map(|of| (of.read, of.written)).unzip();
    assert_eq!((written.iter().sum(), read.iter().sum()), (BYTES as u64, BYTES as u64));
    assert!(written.iter().all(|&bytes| bytes > BYTES as u64 / 4), "{moved:?}");
    // A client without layouts sees the same.
    let seen = open(&other, b"/file");
    assert!(content(&seen) == data);
    assert_eq!(through(&other), Bytes { read: BYTES as u64, written: 0 });
    file.close().unwrap();
}

/// Wakes a thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<T>(task: impl Future<Output = T>) -> T {
    let mut task = pin!(task);
    let waker = Arc::new(Unpark(std::thread::current())).into();
    loop {
        if let Poll::Ready(result) = task.as_mut().poll(&mut Context::from_waker(&waker)) {
            return result;
        }
        std::thread::park_timeout(PATIENCE);
    }
}

#[test]
fn submitted_transfers_go_to_data_servers_with_every_kind_of_wait() {
    const PIECE: usize = BYTES / 8;
    let cluster = Cluster::new();
    let (client, other) = (client(&cluster, ""), client(&cluster, "?pnfs=no"));
    let file = open(&client, b"/file");
    write_direct(&file, &pattern(BYTES, 30));
    let before = through(&client);
    let data = pattern(BYTES, 31);
    let buffer = filled(&client, &data);
    let range = |at: usize| at * PIECE..(at + 1) * PIECE;
    let write = |at: usize| {
        file.submit_write(&buffer, range(at), (at * PIECE) as u64, Stability::Unstable).unwrap()
    };
    let mut writes: Vec<_> = (0..8).map(write).collect();
    // No caller waits for the first two.
    drop(writes.drain(..2));
    assert_eq!(block_on(writes.remove(0)).unwrap(), PIECE);
    assert_eq!(writes[0].wait_deadline(PATIENCE).unwrap(), PIECE);
    let again = writes.remove(0).wait();
    assert!(again.is_err_and(|error| matches!(error, Error::Argument(_))), "it was taken");
    let end = Instant::now() + PATIENCE;
    while !writes[0].is_done() {
        assert!(Instant::now() < end);
    }
    writes.drain(..).for_each(|write| assert_eq!(write.wait().unwrap(), PIECE));
    assert_eq!(through(&client).since(before).written, 0);
    // A close also waits for writes that no caller waits for.
    file.close().unwrap();
    assert!(content(&open(&other, b"/file")) == data);

    let file = open(&client, b"/file");
    assert_eq!(file.read_at(&mut vec![0; BYTES], 0).unwrap(), BYTES);
    let before = through(&client);
    let back = client.buffer(BYTES + 100).unwrap();
    let read = |at: usize| file.submit_read(&back, range(at), (at * PIECE) as u64).unwrap();
    let mut reads: Vec<_> = (0..8).map(read).collect();
    drop(reads.remove(7));
    assert_eq!(block_on(reads.remove(0)).unwrap(), PIECE);
    reads.drain(..).for_each(|read| assert_eq!(read.wait().unwrap(), PIECE));
    let read = file.submit_read(&back, range(7), 7 * PIECE as u64).unwrap();
    assert_eq!(read.wait().unwrap(), PIECE);
    assert!(back.view().slice(0, BYTES).unwrap().to_vec(Site::Inspect) == data);
    assert_eq!(through(&client).since(before).read, 0);
    // The server decides about the end of the file, and no task waits for that.
    let end = file.submit_read(&back, 0..100, BYTES as u64 - 10).unwrap();
    assert_eq!(block_on(end).unwrap(), 10);
    file.close().unwrap();
}

#[test]
fn a_stable_write_is_told_and_a_size_is_seen_at_once() {
    let cluster = Cluster::new();
    let (client, other) = (client(&cluster, ""), client(&cluster, "?pnfs=no"));
    let file = open(&client, b"/file");
    let data = pattern(BYTES, 3);
    write_direct(&file, &data);
    assert_eq!(file.attributes().unwrap().size, BYTES as u64);
    file.write_at(&data[..4096], BYTES as u64, Stability::FileSync).unwrap();
    let seen = open(&other, b"/file");
    assert_eq!(seen.attributes().unwrap().size, BYTES as u64 + 4096);
    // The client changes the size itself, and then writes behind it.
    file.set_size(10).unwrap();
    file.write_at(b"end", 20, Stability::Unstable).unwrap();
    let mut found = [9; 100];
    assert_eq!(file.read_at(&mut found, 0).unwrap(), 23);
    assert_eq!((&found[..10], &found[10..20]), (&data[..10], &[0; 10][..]));
    file.close().unwrap();
    assert_eq!(seen.attributes().unwrap().size, 23);
}

#[test]
fn a_client_that_writes_both_ways_goes_on_at_data_servers() {
    let cluster = Cluster::new();
    let client = client(&cluster, "");
    let file = open(&client, b"/file");
    let mut data = pattern(BYTES, 9);
    write_direct(&file, &data);
    for round in 0..3 {
        // Through the server. After that no data server accepts writes over earlier sessions.
        let more = pattern(4096, 10 + round);
        assert_eq!(file.append(&more, Stability::DataSync).unwrap(), data.len() as u64);
        let before = through(&client);
        data[..BYTES].copy_from_slice(&pattern(BYTES, 20 + round));
        assert_eq!(file.write_at(&data[..BYTES], 0, Stability::Unstable).unwrap(), BYTES);
        assert_eq!(through(&client).since(before).written, 0, "round {round}");
        data.extend(more);
        file.commit(0, 0).unwrap();
        let mut found = vec![0; data.len() + 100];
        assert_eq!(file.read_at(&mut found, 0).unwrap(), data.len());
        assert!(found[..data.len()] == data);
    }
    file.close().unwrap();
}

#[test]
fn a_client_rewrites_unstable_data_at_data_servers_until_it_is_stable() {
    let mut cluster = Cluster::new();
    let client = client(&cluster, "?deadline=20");
    let file = open(&client, b"/file");
    write_direct(&file, &pattern(BYTES, 40));
    file.commit(0, 0).unwrap();
    let data = pattern(BYTES, 41);
    let buffer = filled(&client, &data);
    let keep = || file.write_retained(&buffer, 0..BYTES, 0).unwrap();
    // The first write learns the server's verifier.
    let through_server = keep();
    let before = through(&client);
    let at_data_servers = keep();
    assert_eq!(through(&client).since(before).written, 0);
    assert_eq!(at_data_servers, through_server, "nothing was lost");
    assert_eq!(WriteState::Unstable(client.commit(file.handle()).unwrap()), at_data_servers);
    keep();
    cluster.stop_node(0);
    cluster.start_node(0);
    cluster.wait_for_nodes();
    let end = Instant::now() + PATIENCE;
    while keep() != WriteState::Unstable(client.commit(file.handle()).unwrap()) {
        assert!(Instant::now() < end);
    }
    assert!(content(&file) == data);
    file.close().unwrap();
}

#[test]
fn a_layout_that_is_asked_back_is_given_back() {
    let cluster = Cluster::new();
    let (client, other) = (client(&cluster, ""), client(&cluster, "?pnfs=no"));
    let file = open(&client, b"/file");
    let data = pattern(BYTES, 4);
    write_direct(&file, &data);
    // This call waits for the layout.
    let begun = Instant::now();
    open(&other, b"/file").set_size(5000).unwrap();
    assert!(begun.elapsed() < client.session().lease, "it was taken away, not given back");
    assert!(content(&file) == data[..5000]);
    let data = pattern(BYTES, 5);
    write_direct(&file, &data);
    assert!(content(&file) == data);
    file.close().unwrap();
}

#[test]
fn the_secret_of_the_cluster_changes_under_writes() {
    let mut cluster = Cluster::new();
    let client = client(&cluster, "");
    let file = open(&client, b"/file");
    write_direct(&file, &pattern(BYTES, 90));
    cluster.change_secret_during(|round| {
        let data = pattern(BYTES, 91 + round);
        assert_eq!(file.write_at(&data, 0, Stability::FileSync).unwrap(), BYTES);
        assert!(content(&file) == data, "round {round}");
    });
    // With the new one alone, and over new connections between the servers and of the client.
    let data = pattern(BYTES, 89);
    write_direct(&file, &data);
    file.commit(0, 0).unwrap();
    cluster.stop_node(1);
    cluster.start_node(1);
    cluster.wait_for_nodes();
    assert!(content(&file) == data);
    file.close().unwrap();
}

#[test]
fn a_data_server_that_dies_is_gone_around() {
    let mut cluster = Cluster::with_copies(2);
    let client = client(&cluster, "?deadline=60");
    let file = open(&client, b"/file");
    write_direct(&file, &pattern(BYTES, 6));
    file.commit(0, 0).unwrap();
    let data = pattern(BYTES, 7);
    file.write_at(&data, 0, Stability::FileSync).unwrap();
    for at in 0..2 {
        cluster.stop_node(at);
        assert!(content(&file) == data, "without {at}");
        cluster.start_node(at);
        cluster.wait_for_nodes();
    }
    cluster.stop_node(0);
    let data = pattern(BYTES + 4096, 8);
    write_stable(&file, &data[..BYTES]);
    // A layout for the commit may exist or not.
    file.write_at(&data[BYTES..BYTES + 4096], BYTES as u64, Stability::FileSync).unwrap();
    let mut found = vec![0; data.len() + 100];
    assert_eq!(file.read_at(&mut found, 0).unwrap(), data.len());
    assert!(found[..data.len()] == data);
    file.close().unwrap();
}

#[test]
fn close_writes_unawaited_data_although_a_data_server_dies() {
    const PIECE: usize = BYTES / 8;
    let mut cluster = Cluster::with_copies(2);
    let (client, other) = (client(&cluster, "?deadline=60"), client(&cluster, "?pnfs=no"));
    let file = open(&client, b"/file");
    let before = cluster.node_bytes();
    write_direct(&file, &pattern(BYTES, 50));
    file.commit(0, 0).unwrap();
    let moved = since(&cluster.node_bytes(), &before);
    cluster.stop_node(moved.iter().position(|of| of.written > 0).unwrap());
    let data = pattern(BYTES, 51);
    let buffer = filled(&client, &data);
    let write = |at: usize| {
        let (range, offset) = (at * PIECE..(at + 1) * PIECE, (at * PIECE) as u64);
        file.submit_write(&buffer, range, offset, Stability::Unstable).unwrap()
    };
    let mut writes: Vec<_> = (0..8).map(write).collect();
    drop(writes.drain(..6));
    file.close().unwrap();
    assert!(content(&open(&other, b"/file")) == data);
    writes.drain(..).for_each(|write| assert_eq!(write.wait().unwrap(), PIECE));
}

#[test]
fn a_short_timeout_of_one_caller_costs_others_nothing() {
    let cluster = Cluster::new();
    let client = client(&cluster, "");
    let (file, same) = (open(&client, b"/file"), open(&client, b"/file"));
    write_direct(&file, &pattern(BYTES, 70));
    write_direct(&same, &pattern(BYTES, 71));
    let data = pattern(BYTES, 72);
    file.write_at(&data, 0, Stability::Unstable).unwrap();
    let hurried = dafs_client::within(Duration::ZERO, || {
        let written = same.write_at(&data[..4096], 0, Stability::Unstable).map(drop);
        [written, same.commit(0, 0)]
    });
    // For any result, no call reported lost data.
    assert!(!hurried.iter().any(|told| matches!(told, Err(Error::WritesLost))), "{hurried:?}");
    file.commit(0, 0).unwrap();
    same.commit(0, 0).unwrap();
    assert!(content(&file) == data);
    same.close().unwrap();
    file.close().unwrap();
}

#[test]
fn commits_outlive_connections_given_up_for_callers_in_a_hurry() {
    let cluster = Cluster::new();
    let client = client(&cluster, "");
    let (file, same) = (open(&client, b"/file"), open(&client, b"/file"));
    write_direct(&file, &pattern(BYTES, 73));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut found = vec![0; BYTES];
            while !is_over.load(Ordering::Relaxed) {
                let _ =
                    dafs_client::within(Duration::from_micros(300), || same.read_at(&mut found, 0));
                // Writes get a turn in between: their layout would be returned.
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        let mut lost = Vec::new();
        for round in 0..60 {
            let data = pattern(BYTES, 100 + round);
            file.write_at(&data, 0, Stability::Unstable).unwrap();
            let committed = file.commit(0, 0);
            lost.extend(committed.err());
        }
        is_over.store(true, Ordering::Relaxed);
        assert!(lost.is_empty(), "{lost:?}");
    });
    assert!(content(&file) == pattern(BYTES, 159));
    same.close().unwrap();
    file.close().unwrap();
}

/// A cancelled write is over: its memory may get other content, which is never written.
#[test]
fn an_operation_given_up_during_a_close_is_over() {
    const PIECE: usize = BYTES / 16;
    let rounds = if std::env::var_os("DAFS_TEST_LONG").is_some() { 6 } else { 2 };
    for round in 0..rounds {
        let mut cluster = Cluster::with_copies(2);
        let (client, other) = (client(&cluster, ""), client(&cluster, "?pnfs=no"));
        let file = open(&client, b"/file");
        write_direct(&file, &vec![1; BYTES]);
        file.commit(0, 0).unwrap();
        let buffer = filled(&client, &vec![2; BYTES]);
        let part = |at: usize| at * PIECE..(at + 1) * PIECE;
        cluster.stop_node(round % 3);
        let write = |at: usize| {
            let offset = (at * PIECE) as u64;
            file.submit_write(&buffer, part(at), offset, Stability::Unstable).unwrap()
        };
        let mut writes: Vec<_> = (0..16).map(write).collect();
        std::thread::scope(|scope| {
            let closing = scope.spawn(move || file.close());
            let mut left: Vec<_> = (0..16).collect();
            let end = Instant::now() + PATIENCE;
            while !left.is_empty() {
                assert!(Instant::now() < end, "{left:?} are not over");
                std::thread::yield_now();
                left.retain(|&at| {
                    let is_over = writes[at].cancel();
                    if is_over {
                        let part = buffer.view().slice(at * PIECE, PIECE).unwrap();
                        part.copy_from(&[3; PIECE], Site::Inspect);
                    }
                    !is_over
                });
            }
            closing.join().unwrap().unwrap();
        });
        let found = content(&open(&other, b"/file"));
        for (at, write) in writes.into_iter().enumerate() {
            // A write through the server may have been cancelled before it was sent.
            let wanted = match write.wait() {
                Ok(bytes) => [2; PIECE][..bytes].to_vec(),
                Err(Error::Canceled) => vec![1; PIECE],
                Err(error) => panic!("{error}"),
            };
            assert!(found[part(at)] == wanted, "round {round}, part {at}");
        }
    }
}

#[test]
fn data_servers_of_this_host_are_reached_through_rings() {
    let mut cluster = Cluster::with_copies(2);
    let client = client_by(&cluster, "", TransportChoice::Shm);
    let file = open(&client, b"/file");
    let nodes = cluster.node_bytes();
    write_direct(&file, &pattern(BYTES, 80));
    file.commit(0, 0).unwrap();
    let with_copy = since(&cluster.node_bytes(), &nodes).iter().position(|of| of.written > 0);
    let (before, data) = (through(&client), pattern(BYTES, 81));
    let buffer = filled(&client, &data);
    let write = file.submit_write(&buffer, 0..BYTES, 0, Stability::Unstable).unwrap();
    assert_eq!(write.wait().unwrap(), BYTES);
    file.commit(0, 0).unwrap();
    assert!(content(&file) == data);
    assert_eq!(through(&client).since(before).written, 0);
    cluster.stop_node(with_copy.unwrap());
    assert!(content(&file) == data);
    file.close().unwrap();
}
