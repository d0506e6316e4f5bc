//! Optimistic reads of small files, whose blocks lie together in the server's memory: a client keeps their
//! places when it closes them.

use crate::optimistic::{self, BLOCK, hits, open, optimistic, read, served};
use crate::served::{pattern, requests};
use dafs_client::{Client, Create, OpenOptions, Stability, TransportChoice};
use dafs_testkit::eventually;
use std::process::Command;

/// The longest read that may be optimistic.
const ALL: usize = 16 * BLOCK;

/// Opens a file, reads all of it and closes it.
fn look(client: &Client, name: &str) -> Vec<u8> {
    let file = client.open(name.as_bytes(), &OpenOptions::read()).unwrap();
    let bytes = read(&file, 0, ALL);
    file.close().unwrap();
    bytes
}

/// Looks until that is a hit. Each time the file has this content.
fn warm(client: &Client, name: &str, content: &[u8]) {
    eventually("the file is shown", || {
        let before = hits(client);
        assert!(look(client, name) == content, "{name}");
        hits(client) > before
    });
}

/// The requests that an open and a close take.
fn bare(client: &Client, name: &str) -> u64 {
    requests(client, || {
        client.open(name.as_bytes(), &OpenOptions::read()).unwrap().close().unwrap();
    })
}

fn write(client: &Client, name: &str, offset: usize, bytes: &[u8]) {
    let options = OpenOptions::read_write().create(Create::IfMissing);
    let file = client.open(name.as_bytes(), &options).unwrap();
    file.write_at(bytes, offset as u64, Stability::Unstable).unwrap();
    file.close().unwrap();
}

#[test]
fn a_file_that_is_opened_read_and_closed_again_costs_no_read_request() {
    let served = served();
    let content = served.with_file("file", 2 * BLOCK + 77);
    let client = optimistic(&served);
    warm(&client, "file", &content);
    let bare = bare(&client, "file");
    eventually("the server is asked to open and to close alone", || {
        requests(&client, || assert!(look(&client, "file") == content)) == bare
    });
    let counts = served.exposure_counts();
    assert_eq!((counts.files, counts.small_files, counts.grants), (1, 1, 1));
}

/// Programs read files into buffers that are longer.
#[test]
fn a_long_buffer_gets_a_small_file_without_a_read_request() {
    const BUFFER: usize = 1 << 20;
    let served = served();
    let client = optimistic(&served);
    let whole = |name: &str| {
        let file = client.open(name.as_bytes(), &OpenOptions::read()).unwrap();
        let bytes = read(&file, 0, BUFFER);
        file.close().unwrap();
        bytes
    };
    let content = served.with_file("file", 5 * BLOCK + 77);
    let bare = bare(&client, "file");
    eventually("the server is asked to open and to close alone", || {
        requests(&client, || assert!(whole("file") == content)) == bare
    });
    // These fill their part, and may go on behind it.
    for bytes in [ALL, ALL + 1, 3 * ALL] {
        let content = served.with_file("larger", bytes);
        for _ in 0..10 {
            assert!(whole("larger") == content, "{bytes}");
        }
        std::fs::remove_file(served.path().join("larger")).unwrap();
    }
}

/// A program that reads a file once reads at its end as well.
#[test]
fn a_file_that_is_read_once_into_a_long_buffer_gets_no_place() {
    let served = served();
    let content = served.with_file("file", 5 * BLOCK + 77);
    let client = optimistic(&served);
    let file = client.open(b"file", &OpenOptions::read()).unwrap();
    for bytes in [ALL + 1, 1 << 20] {
        assert!(read(&file, 0, bytes) == content);
        assert!(read(&file, content.len(), bytes).is_empty());
    }
    file.close().unwrap();
    // A question would have been answered before.
    client.ping().unwrap();
    assert_eq!(served.exposure_counts().small_files, 0);
}

#[test]
fn small_files_lie_in_the_same_memory_and_none_is_taken_for_another() {
    const FILES: usize = 100;
    let served = served();
    let name = |number: usize| format!("file{number}");
    let content = |number: usize| pattern(100 * number + 4000 + number).split_off(number);
    for number in 0..FILES {
        std::fs::write(served.path().join(name(number)), content(number)).unwrap();
    }
    let client = optimistic(&served);
    for _ in 0..3 {
        for number in 0..FILES {
            assert!(look(&client, &name(number)) == content(number), "{number}");
        }
    }
    for number in [0, 1, 31, 32, 63, FILES - 1] {
        warm(&client, &name(number), &content(number));
    }
    let counts = served.exposure_counts();
    assert_eq!((counts.files, counts.grants), (1, 1));
    assert!(counts.small_files >= 6);
    let other = served.client(TransportChoice::Iwarp);
    write(&other, "file1", 0, &[7; 50]);
    let mut changed = content(1);
    changed[..50].fill(7);
    assert!(look(&client, "file1") == changed, "a write is seen from its answer on");
    assert!(look(&client, "file0") == content(0) && look(&client, "file31") == content(31));
    warm(&client, "file1", &changed);
}

#[test]
fn the_end_of_a_small_file_moves_with_it() {
    let served = served();
    let mut content = served.with_file("file", 100);
    let (client, other) = (optimistic(&served), served.client(TransportChoice::Shm));
    warm(&client, "file", &content);
    for bytes in [2 * BLOCK + 5, 7 * BLOCK + 9] {
        let grown = pattern(bytes);
        write(&other, "file", content.len(), &grown[content.len()..]);
        let kept = content.len();
        content.extend_from_slice(&grown[kept..]);
        assert!(look(&client, "file") == content);
    }
    warm(&client, "file", &content);
    // Then it is no small one.
    let rest = pattern(20 * BLOCK);
    write(&other, "file", content.len(), &rest);
    content.extend_from_slice(&rest);
    let file = client.open(b"file", &OpenOptions::read()).unwrap();
    eventually("the file is shown by itself", || {
        let before = hits(&client);
        let found = read(&file, 10 * BLOCK, ALL);
        assert!(found == content[10 * BLOCK..][..ALL]);
        hits(&client) > before
    });
    assert!(read(&file, 0, ALL) == content[..ALL]);
}

/// The part that the file has left says nothing of the memory that it has alone.
#[test]
fn a_file_that_was_small_is_shown_again_when_its_own_memory_was_taken_back() {
    let served = served();
    let content = served.with_file("file", 100);
    let client = optimistic(&served);
    warm(&client, "file", &content);
    write(&served.client(TransportChoice::Shm), "file", 0, &pattern(20 * BLOCK));
    let (first, second) = (open(&client), open(&client));
    optimistic::warm(&client, &first, 0, BLOCK);
    optimistic::warm(&client, &second, 17 * BLOCK, BLOCK);
    // The memory is known to an open that has ended, so it is replaced.
    first.close().unwrap();
    optimistic::warm(&client, &second, 18 * BLOCK, BLOCK);
    optimistic::warm(&client, &second, 17 * BLOCK, BLOCK);
}

#[test]
fn another_file_of_the_same_name_is_another_file() {
    let served = served();
    let content = served.with_file("file", 300);
    let (client, other) = (optimistic(&served), served.client(TransportChoice::Iwarp));
    warm(&client, "file", &content);
    write(&other, "next", 0, &[9; 300]);
    other.rename(&other.root(), b"next", &other.root(), b"file").unwrap();
    assert!(look(&client, "file") == [9; 300]);
    warm(&client, "file", &[9; 300]);
}

/// The server would keep the space of the file otherwise.
#[test]
fn a_small_file_that_a_local_program_removes_leaves_its_part() {
    let served = served();
    let content = served.with_file("file", 300);
    let client = optimistic(&served);
    warm(&client, "file", &content);
    assert_eq!(served.exposure_counts().small_files, 1);
    let path = served.path().join("file");
    assert!(Command::new("rm").arg(&path).status().unwrap().success());
    eventually("the file has no part", || served.exposure_counts().small_files == 0);
}

#[test]
fn small_files_are_shown_again_after_a_restart_of_the_server() {
    let mut served = served();
    let content = served.with_file("file", 300);
    let client = optimistic(&served);
    warm(&client, "file", &content);
    served.stop();
    std::fs::write(served.path().join("file"), [5; 200]).unwrap();
    served.start();
    assert!(look(&client, "file") == [5; 200]);
    warm(&client, "file", &[5; 200]);
}
