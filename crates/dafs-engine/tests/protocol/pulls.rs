//! Large writes to a disk that is slower than the network: what is pulled stays bounded, and others
//! go on. The disk and the network have a simulated clock.

use crate::common::*;
use dafs_dat::Instant;
use dafs_engine::SessionLimits;
use dafs_service::ExportOptions;
use dafs_wire::dafs::{Request, Status};
use std::time::Duration;

/// Bytes that the server pulls, and hands to the disk, at once.
const PIECE: usize = 256 << 10;

/// The time of the disk for that: 20 MB/s.
const PIECE_TIME: Duration = Duration::from_micros(13_107);

/// The memory of the server that data of clients may occupy.
const RESIDENT_MAX: usize = 16 << 20;

/// Bytes of one write to the slow disk.
const WRITE: usize = 1 << 20;

/// A kind of load.
#[derive(Clone, Copy)]
enum Kind {
    /// Cached reads of 4 KiB, one after the other.
    Reader,
    /// Writes, as many as a depth of 64 allows.
    Writer,
    /// A few shorter writes at once.
    LightWriter,
}

/// Writes of a file go to this many places in turn.
const PLACES: u64 = 8;

/// A client that repeats one request.
struct Load {
    client: usize,
    file: File,
    memory: Memory,
    /// Bytes of each request.
    bytes: usize,
    writes: bool,
    depth: usize,
    posted: u64,
    streams: Vec<u16>,
    /// Requests that were answered.
    done: u64,
}

impl Load {
    fn new(world: &mut World, host: u32, export: &str, kind: Kind) -> Self {
        let client = world.session(host, &format!("{host} {}", world.clients.len()));
        let (writes, bytes, depth) = match kind {
            Kind::Reader => (false, 4096, 1),
            Kind::Writer => (true, WRITE, 64),
            Kind::LightWriter => (true, 64 << 10, 4),
        };
        world.clients[client].desired = depth as u16 + 1;
        for _ in 0..6 {
            world.status(client, &Request::Null);
        }
        let name = format!("{}", world.clients.len());
        let path = [export.as_bytes(), name.as_bytes()];
        let request = open_request(world.root(), &path, b"owner");
        let file = world.open_with(client, &request).unwrap();
        let memory = world.clients[client].memory(bytes);
        if !writes {
            world.write(client, file, 0, &pattern(bytes, 7));
        }
        Self { client, file, memory, bytes, writes, depth, posted: 0, streams: Vec::new(), done: 0 }
    }

    /// Takes answers, and posts requests as deep as it goes, `total` in all.
    fn turn(&mut self, world: &mut World, total: u64) {
        let client = &mut world.clients[self.client];
        self.streams.retain(|&stream| {
            let Some(answer) = client.take_answer(stream) else { return true };
            let count = if self.writes { written(&answer).count } else { read_done(&answer).0 };
            assert_eq!((answer.status(), count as usize), (Status::Ok, self.bytes));
            self.done += 1;
            false
        });
        assert_eq!(client.closed, None);
        let buffers = [self.memory.direct(0, self.bytes as u32)];
        while self.streams.len() < self.depth && self.posted < total {
            let offset = self.posted % PLACES * self.bytes as u64;
            let request = match self.writes {
                true => Request::WriteDirect(write_direct(
                    self.file,
                    offset,
                    self.bytes as u32,
                    &buffers,
                )),
                false => read_direct(self.file, 0, self.bytes as u32, &buffers),
            };
            self.streams.push(client.post(&request));
            self.posted += 1;
        }
    }
}

/// A world with a slow disk, and the most that it has held so far.
struct Run {
    world: World,
    /// When the disk has finished its present piece.
    disk_at: Instant,
    chunks_max: usize,
    pulled_bytes_max: usize,
    fetches_max: usize,
}

impl Run {
    /// Makes a world with a slow and a fast file system.
    fn new() -> Self {
        let exports = ["slow", "fast"].map(|name| (name, ExportOptions::default())).to_vec();
        let world = World::new(Setup { exports, ..Setup::default() });
        world.disk.set_slow_writes(0);
        Self { world, disk_at: Instant(0), chunks_max: 0, pulled_bytes_max: 0, fetches_max: 0 }
    }

    /// Runs until `done`, with these clients.
    fn until(
        &mut self,
        loads: &mut [&mut Load],
        total: u64,
        done: impl Fn(&[&mut Load], Instant) -> bool,
    ) {
        self.world.hold_jobs = true;
        while !done(loads, self.world.now()) {
            for load in &mut *loads {
                load.turn(&mut self.world, total);
            }
            let now = self.world.now();
            if now >= self.disk_at && self.world.run_job() {
                self.disk_at = self.disk_at.max(now) + PIECE_TIME;
            }
            let counts = self.world.counts();
            self.chunks_max = self.chunks_max.max(counts.chunks);
            self.pulled_bytes_max = self.pulled_bytes_max.max(counts.pulled_bytes);
            self.fetches_max = self.fetches_max.max(counts.fetches);
            if !self.world.step() {
                let wait = self.disk_at.since(self.world.now());
                self.world.pass(wait.max(Duration::from_micros(10)));
            }
        }
        self.world.hold_jobs = false;
    }

    /// Runs for the time of some pieces on the disk. Returns the requests that the first client got
    /// answered.
    fn rate(&mut self, loads: &mut [&mut Load], pieces: u32) -> u64 {
        let (before, end) = (loads[0].done, self.world.now() + PIECE_TIME * pieces);
        self.until(loads, u64::MAX, |_, now| now >= end);
        loads[0].done - before
    }

    fn end(mut self) {
        self.world.settle();
        assert!(self.chunks_max * PIECE <= RESIDENT_MAX + (RESIDENT_MAX >> 2));
        assert!(self.pulled_bytes_max <= RESIDENT_MAX, "{} bytes", self.pulled_bytes_max);
        assert!(self.fetches_max * PIECE <= self.pulled_bytes_max);
        let counts = self.world.counts();
        assert_eq!((counts.chunks, counts.pulled_bytes, counts.fetches), (0, 0, 0));
        self.world.end();
    }
}

/// A writer of 1 GiB offers as much as it may, and a client reads beside it.
#[test]
fn a_disk_sets_the_pace_of_what_is_pulled_and_readers_go_on() {
    let mut run = Run::new();
    let mut reader = Load::new(&mut run.world, 2, "fast", Kind::Reader);
    let mut writer = Load::new(&mut run.world, 3, "slow", Kind::Writer);
    let alone = run.rate(&mut [&mut reader], 20);
    assert!(alone > 500, "{alone} reads");
    let beside = run.rate(&mut [&mut reader, &mut writer], 40) / 2;
    assert!(beside * 10 >= alone * 8, "{beside} reads beside the writer, {alone} alone");
    let total = (1 << 30) / WRITE as u64;
    run.until(&mut [&mut writer], total, |loads, _| loads[0].done == total);
    let transfer_max = SessionLimits::default().transfer_bytes_max as usize;
    assert!(run.pulled_bytes_max <= transfer_max, "one session has the memory of one write");
    assert!(run.fetches_max > 1, "the network is kept busy");
    run.end();
}

/// Writers of several hosts take all the memory that there is for writes.
#[test]
fn readers_go_on_beside_many_writers_to_a_slow_disk() {
    let mut run = Run::new();
    let mut near = Load::new(&mut run.world, 3, "slow", Kind::Reader);
    let mut far = Load::new(&mut run.world, 9, "fast", Kind::Reader);
    let mut writers: Vec<Load> =
        (0..8).map(|n| Load::new(&mut run.world, 3 + n % 4, "slow", Kind::Writer)).collect();
    let alone = run.rate(&mut [&mut near], 10);
    let mut loads: Vec<&mut Load> = std::iter::once(&mut near).chain(&mut writers).collect();
    run.rate(&mut loads, 10);
    let beside = run.rate(&mut loads, 10);
    assert!(beside * 10 >= alone * 8, "{beside} reads on the host of a writer, {alone} alone");
    drop(loads);
    let alone = {
        let mut idle = Run::new();
        let mut far = Load::new(&mut idle.world, 9, "fast", Kind::Reader);
        idle.rate(&mut [&mut far], 10)
    };
    let mut loads: Vec<&mut Load> = std::iter::once(&mut far).chain(&mut writers).collect();
    let beside = run.rate(&mut loads, 10);
    assert!(beside * 10 >= alone * 8, "{beside} reads on another host, {alone} alone");
    // The disk shares itself fairly: no writer has been forgotten.
    run.until(&mut loads[1..], u64::MAX, |loads, _| loads.iter().all(|load| load.done >= 8));
    let done: Vec<u64> = writers.iter().map(|writer| writer.done).collect();
    let (least, most) = (done.iter().min().unwrap(), done.iter().max().unwrap());
    assert!(*most <= 2 * least + 4, "{done:?}");
    for writer in &mut writers {
        let total = writer.posted;
        run.until(&mut [writer], total, |loads, _| loads[0].done == total);
    }
    run.end();
}

/// A slow disk holds up no writes to another file system.
#[test]
fn writers_to_another_file_system_go_on_beside_many_writers_to_a_slow_disk() {
    let mut run = Run::new();
    let mut fast = Load::new(&mut run.world, 9, "fast", Kind::LightWriter);
    let mut writers: Vec<Load> =
        (0..8).map(|n| Load::new(&mut run.world, 3 + n % 4, "slow", Kind::Writer)).collect();
    let alone = run.rate(&mut [&mut fast], 2);
    assert!(alone > 20, "{alone} writes");
    let mut loads: Vec<&mut Load> = std::iter::once(&mut fast).chain(&mut writers).collect();
    run.rate(&mut loads, 4);
    let beside = run.rate(&mut loads, 2);
    assert!(beside * 10 >= alone * 8, "{beside} writes beside the others, {alone} alone");
    drop(loads);
    for load in std::iter::once(&mut fast).chain(&mut writers) {
        let total = load.posted;
        run.until(&mut [load], total, |loads, _| loads[0].done == total);
    }
    run.end();
}
