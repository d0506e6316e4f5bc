//! Reads that the kernel carries out for the reactor (io_uring), and their ways back to the pool. The
//! descriptor that it reads is a file, or a pipe: a read of a pipe waits until the test writes.

use crate::cancel::{cancel, post, request_item};
use crate::common::*;
use crate::responses::lose;
use dafs_engine::DiskReads;
use dafs_wire::dafs::{CancelOutcome, Checksum, Reply, Request, SessionOptions, Status};
use std::io::Write as _;
use std::os::fd::OwnedFd;

/// Sends a request and waits for its answer, which may need the kernel.
fn call(world: &mut World, client: usize, request: &Request<'_>) -> Answer {
    let (stream, _) = post(world, client, request);
    answer(world, client, stream)
}

fn answer(world: &mut World, client: usize, stream: u16) -> Answer {
    complete(world);
    world.wait(client, stream).unwrap()
}

/// Waits until the kernel has completed all reads. Before Linux 6.4 a thread of its own reads pipes.
fn complete(world: &mut World) {
    world.settle();
    while world.counts().pending > 0 {
        assert!(!world.hold_jobs || world.jobs() == 0, "the pool was asked");
        std::thread::yield_now();
        world.settle();
    }
}

/// Returns the data of an inline read, and whether it met the end of the file.
fn inline(answer: &Answer) -> (Vec<u8>, bool) {
    match answer.reply().unwrap() {
        Reply::ReadInline(reply) => (reply.data.to_vec(), reply.eof),
        other => panic!("{other:?}"),
    }
}

fn file_with(bytes: &[u8]) -> OwnedFd {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file.into()
}

/// Makes a world whose files read from a pipe, and returns its other end. No job of the pool runs.
fn over_a_pipe(maps: bool) -> Option<(World, usize, File, OwnedFd)> {
    let (mut world, client, file) = World::with_file(Setup { maps, ..Setup::default() });
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let has_ring = world.use_ring(reader);
    world.stall();
    has_ring.then_some((world, client, file, writer))
}

#[test]
fn the_kernel_reads_files_up_to_their_end() {
    both_ways(|maps| {
        let (mut world, client, file) = World::with_file(Setup { maps, ..Setup::default() });
        let data = pattern(700_001, 1);
        if !world.use_ring(file_with(&data)) {
            return;
        }
        world.stall();
        let places = [(0, 100), (4096, 4096), (699_991, 100), (700_001, 5), (1 << 62, 5)];
        for (offset, count) in places {
            let start = usize::try_from(offset).unwrap().min(data.len());
            let end = (start + count as usize).min(data.len());
            let read = inline(&call(&mut world, client, &read_inline(file, offset, count)));
            let is_short = end - start < count as usize;
            assert!(read == (data[start..end].to_vec(), is_short), "{count} at {offset}");
        }
        let memory = world.clients[client].memory(1 << 20);
        let buffers = [memory.direct(0, 1 << 20)];
        let answer = call(&mut world, client, &read_direct(file, 1, 1 << 20, &buffers));
        assert_eq!(read_done(&answer), (700_000, true, Checksum::ZERO));
        assert!(memory.bytes()[..700_000] == data[1..]);
        let answer = call(&mut world, client, &read_direct(file, 7, 1000, &buffers));
        assert_eq!(read_done(&answer), (1000, false, Checksum::ZERO));
        assert!(memory.bytes()[..1000] == data[7..1007]);
        let reads = world.engine.disk_reads();
        assert!(reads.ring >= 7 && reads.pool == 0, "{reads:?}");
        world.end();
    });
}

#[test]
fn without_a_ring_the_pool_reads() {
    let (mut world, client, file) = World::with_file(Setup::default());
    let data = pattern(1000, 2);
    world.write(client, file, 0, &data);
    world.disk.lend(file_with(b"of no use"));
    world.disk.set_slow(true);
    assert_eq!(inline(&call(&mut world, client, &read_inline(file, 0, 1000))), (data, false));
    assert_eq!(world.engine.disk_reads(), DiskReads { ring: 0, pool: 1 });
    world.end();
}

#[test]
fn checksums_are_those_of_the_bytes_that_the_kernel_has_read() {
    both_ways(|maps| {
        let mut world = World::new(Setup { maps, ..Setup::default() });
        let options = SessionOptions { use_checksums: true, ..SessionOptions::default() };
        let client = world.session_with(2, "a", 1, options);
        let file = world.open(client, b"f");
        let data = pattern(300_000, 3);
        if !world.use_ring(file_with(&data)) {
            return;
        }
        world.stall();
        let memory = world.clients[client].memory(300_000);
        let buffers = [memory.direct(0, 300_000)];
        let answer = call(&mut world, client, &read_direct(file, 0, 300_000, &buffers));
        let sum = dafs_wire::dafs::checksum(&data);
        assert_eq!(read_done(&answer), (300_000, false, sum));
        assert!(memory.bytes() == data);
        world.end();
    });
}

#[test]
fn a_short_read_goes_on_until_the_end_of_the_file() {
    both_ways(|maps| {
        let Some((mut world, client, file, writer)) = over_a_pipe(maps) else { return };
        let (stream, _) = post(&mut world, client, &read_inline(file, 0, 10));
        for part in [&b"abc"[..], b"defg"] {
            assert_eq!(world.counts().pending, 1);
            rustix::io::write(&writer, part).unwrap();
            world.settle();
        }
        assert!(!world.clients[client].has_answer(stream));
        // As if the file had been truncated meanwhile.
        drop(writer);
        let answer = answer(&mut world, client, stream);
        assert_eq!(inline(&answer), (b"abcdefg".to_vec(), true));
        assert_eq!(world.engine.disk_reads(), DiskReads { ring: 1, pool: 0 });
        world.end();
    });
}

#[test]
fn the_pool_reads_what_the_kernel_refuses() {
    both_ways(|maps| {
        let (mut world, client, file) = World::with_file(Setup { maps, ..Setup::default() });
        let data = pattern(5000, 4);
        world.write(client, file, 0, &data);
        // No directory can be read.
        if !world.use_ring(std::fs::File::open("/").unwrap().into()) {
            return;
        }
        world.disk.set_slow(true);
        assert_eq!(inline(&call(&mut world, client, &read_inline(file, 7, 9000))).0, data[7..]);
        let memory = world.clients[client].memory(5000);
        let buffers = [memory.direct(0, 5000)];
        let answer = call(&mut world, client, &read_direct(file, 0, 5000, &buffers));
        assert_eq!(read_done(&answer).0, 5000);
        assert!(memory.bytes() == data);
        let DiskReads { ring, pool } = world.engine.disk_reads();
        assert!(ring == pool && ring >= 2, "{ring} {pool}");
        world.disk.set_bad_from(0);
        let answer = call(&mut world, client, &read_inline(file, 0, 10));
        assert_eq!(answer.status(), Status::Io);
        world.end();
    });
}

#[test]
fn the_pool_reads_into_many_pieces_of_mapped_memory() {
    let (mut world, client, file) = World::with_file(Setup { maps: true, ..Setup::default() });
    let data = pattern(100, 5);
    world.write(client, file, 0, &data);
    if !world.use_ring(file_with(&data)) {
        return;
    }
    world.disk.set_slow(true);
    let memory = world.clients[client].memory(100);
    let buffers = [memory.direct(0, 40), memory.direct(40, 60)];
    let answer = call(&mut world, client, &read_direct(file, 0, 100, &buffers));
    assert_eq!(read_done(&answer), (100, false, Checksum::ZERO));
    assert!(memory.bytes() == data);
    assert_eq!(world.engine.disk_reads(), DiskReads { ring: 0, pool: 1 });
    world.end();
}

/// The connection and all memory of its reads stay until the kernel has completed them.
#[test]
fn reads_outlive_their_connection() {
    both_ways(|maps| {
        let Some((mut world, client, file, writer)) = over_a_pipe(maps) else { return };
        let memory = world.clients[client].memory(100);
        let buffers = [memory.direct(0, 100)];
        post(&mut world, client, &read_inline(file, 0, 10));
        post(&mut world, client, &read_direct(file, 0, 100, &buffers));
        lose(&mut world, client);
        world.settle();
        assert_eq!((world.counts().connections, world.counts().pending), (1, 2));
        rustix::io::write(&writer, &pattern(110, 6)).unwrap();
        complete(&mut world);
        assert_eq!((world.counts().connections, world.counts().pending), (0, 0));
        world.end();
    });
}

/// An engine that ends leaves their memory to the kernel.
#[test]
fn reads_outlive_their_engine() {
    let Some((mut world, client, file, writer)) = over_a_pipe(false) else { return };
    post(&mut world, client, &read_inline(file, 0, 10));
    drop(world);
    // The kernel may have given up the read by now, or not.
    let _ = rustix::io::write(&writer, b"0123456789");
}

#[test]
fn a_read_in_the_kernel_cannot_be_cancelled() {
    both_ways(|maps| {
        let Some((mut world, client, file, writer)) = over_a_pipe(maps) else { return };
        let request = post(&mut world, client, &read_inline(file, 0, 3));
        let outcomes = cancel(&mut world, client, &[request_item(request)]);
        assert_eq!(outcomes, [CancelOutcome::TooLate]);
        rustix::io::write(&writer, b"abc").unwrap();
        let answer = answer(&mut world, client, request.0);
        assert_eq!(inline(&answer), (b"abc".to_vec(), false));
        world.end();
    });
}
