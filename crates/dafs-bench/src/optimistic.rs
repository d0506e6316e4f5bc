//! Optimistic reads over shared memory and over iWARP, against READ and local files.
//!
//! One client reads from memory that the server shows, another by requests, in turn. Over shared memory the
//! client maps that memory, over iWARP it reads by RDMA. The file fits the memory and is shown whole before the
//! measurement. The hit ratio of each row stands below the table.
//!
//! | rows | file |
//! |---|---|
//! | files that do not fit the memory, and a client that writes beside the reader | `sets.rs` |
//! | several clients of a server on one CPU | `clients.rs` |
//! | small files, that stay open or are opened again, with and without the client's cache | `small.rs` |
//! | the price of exposure for writes | `writes.rs` |
//! | unmodified programs | `fronts`, `database.rs` |

mod clients;
mod sets;
mod small;
mod writes;

use crate::child::Process;
use crate::report::{Case, Measure, Report, Sample};
use crate::targets::Target;
use crate::{Plan, cpu, fronts, tcp};
use anyhow::{Result, bail, ensure};
use dafs_client::{
    Client, ConnectOptions, DafsUrl, File, IoBuffer, OpenOptions, TransportChoice, WaitPolicy,
};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::borrow::Cow;
use std::collections::VecDeque;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

const FILE_BYTES: u64 = 16 << 20;

/// The memory in which the server shows it.
const MEMORY_BYTES: u64 = 256 << 20;
const SIZES: [usize; 5] = [4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10];
const SMALL: usize = SIZES[0];
const LARGE: usize = SIZES[4];
const THREADS: [usize; 3] = [1, 2, 4];

/// Reads at a time in the rows of a deep queue.
const DEPTH: usize = 32;

/// The bytes of a hit over iWARP on the wire: two RDMA read requests, and their answers of a block and of an
/// entry, each in an FPDU with its headers and CRC (RFC 5040 4.4, RFC 5041 4, RFC 5044 4).
const WIRE_REQUEST: usize = 2 * 52;
const WIRE_REPLY: usize = SMALL + 20 + 8 + 20;

/// Passes over the file within which all of it must be shown, and the pause after each.
const PASSES_MAX: usize = 500;
const PASS_PAUSE: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, PartialEq)]
enum Way {
    Local,
    /// A ping-pong of as many bytes as a hit has, over a plain TCP connection.
    Tcp,
    Read,
    Hit,
}

/// A case, with its reads and hits in all rounds.
struct Row {
    case: Case,
    way: Way,
    bytes: usize,
    threads: usize,
    /// Reads of one thread at a time.
    depth: usize,
    reads: u64,
    hits: u64,
}

/// A server with both clients.
struct World {
    local: std::fs::File,
    plain: (Client, File),
    optimistic: (Client, File),
    /// The last to be dropped.
    process: Process,
}

pub(crate) fn measure(plan: &Plan, report: &mut Report) -> Result<()> {
    let directory = tempfile::Builder::new().prefix("dafs-bench").tempdir()?;
    let export = directory.path().join("export");
    prepare(&export)?;
    let groups = [("poll", false), ("sleep", false), ("adaptive", true)];
    for transport in [TransportChoice::Shm, TransportChoice::Iwarp] {
        for (wake, together) in groups.into_iter().filter(|(wake, _)| wake.contains(&plan.wake)) {
            group(plan, report, &export, transport, (wake, together))?;
        }
    }
    cpu::unpin()?;
    sets::measure(plan, report)?;
    clients::measure(plan, report)?;
    small::measure(plan, report)?;
    writes::measure(plan, report)?;
    cpu::unpin()?;
    fronts::measure_optimistic(plan, report)
}

/// Makes an export with the file.
fn prepare(export: &Path) -> Result<()> {
    std::fs::create_dir(export)?;
    let content: Vec<u8> = (0..FILE_BYTES / 8).flat_map(u64::to_le_bytes).collect();
    Ok(std::fs::write(export.join("data"), &content)?)
}

fn group(
    plan: &Plan,
    report: &mut Report,
    export: &Path,
    transport: TransportChoice,
    (wake, together): (&str, bool),
) -> Result<()> {
    let server_cpu = if together || cpu::cpu_count() < 2 { 0 } else { 1 };
    let mut rows = match transport {
        TransportChoice::Shm => rows(wake, together),
        _ => rows_by_rdma(together),
    };
    rows.retain(|row| row.case.name.contains(&plan.only));
    if rows.is_empty() {
        return Ok(());
    }
    for _ in 0..plan.rounds {
        cpu::pin(0)?;
        // A server that polls would share its CPU with the other end of a ping-pong, so that comes first.
        for row in rows.iter_mut().filter(|row| row.way == Way::Tcp) {
            let poll = wake == "poll";
            let sample = tcp::measure(plan, server_cpu, poll, WIRE_REQUEST, WIRE_REPLY, row.depth)?;
            row.case.samples.push(sample);
        }
        let world = World::start(export, server_cpu, transport, wake)?;
        for row in rows.iter_mut().filter(|row| row.way != Way::Tcp) {
            let sample = world.sample(row, Duration::from_millis(plan.milliseconds))?;
            row.case.samples.push(sample);
        }
    }
    let place = if together { "both ends on one CPU" } else { "own CPUs" };
    let name = if transport == TransportChoice::Shm { "shm" } else { "iwarp" };
    let title = format!("optimistic reads, {name}: {wake}, {place}");
    let ratios: Vec<_> = rows
        .iter()
        .filter(|row| row.way == Way::Hit)
        .map(|row| (row.case.name.clone(), row.hits as f64 / row.reads.max(1) as f64))
        .collect();
    let cases: Vec<Case> = rows.into_iter().map(|row| row.case).collect();
    report.add(&title, &cases);
    report.hit_ratios(&title, ratios);
    Ok(())
}

/// Connects, and opens the file.
fn open(
    url: &DafsUrl,
    (transport, wake): (TransportChoice, &str),
    optimistic: bool,
    how: &OpenOptions,
) -> Result<(Client, File)> {
    let options = connect_options((transport, wake), optimistic);
    let client = Client::connect(url, &options)?;
    let file = client.open(url.path(), how)?;
    Ok((client, file))
}

fn connect_options((transport, wake): (TransportChoice, &str), optimistic: bool) -> ConnectOptions {
    let wait = match wake {
        "poll" => WaitPolicy::Poll,
        "sleep" => WaitPolicy::Sleep,
        _ => WaitPolicy::default(),
    };
    ConnectOptions { transport, wait, optimistic, ..ConnectOptions::default() }
}

/// Reads with an optimistic client until all of a range is shown.
fn warm((client, file): &(Client, File), range: &Range<u64>) -> Result<()> {
    let buffer = client.buffer(LARGE)?;
    for _ in 0..PASSES_MAX {
        let (before, mut reads) = (client.optimistic_stats().hits, 0);
        for offset in range.clone().step_by(LARGE) {
            file.read_into(&buffer, 0..LARGE, offset)?;
            reads += 1;
        }
        if client.optimistic_stats().hits - before == reads {
            return Ok(());
        }
        std::thread::sleep(PASS_PAUSE);
    }
    bail!("the server does not show all of the file")
}

fn rows(wake: &str, together: bool) -> Vec<Row> {
    let row = |name: String, way, bytes, threads, floor: Option<String>, target| {
        let mut case = Case::new(name, None, target);
        case.floor = floor.map(Cow::Owned);
        Row { case, way, bytes, threads, depth: 1, reads: 0, hits: 0 }
    };
    let mut rows = Vec::new();
    for bytes in SIZES {
        let size = format!("{} KiB", bytes >> 10);
        let local = format!("local pread {size}");
        let target = match (bytes, wake) {
            (SMALL, "poll") => Some(Target::ratio(1.0)),
            (SMALL, _) => Some(Target::ratio(1.2)),
            _ => None,
        };
        rows.push(row(local.clone(), Way::Local, bytes, 1, None, None));
        rows.push(row(format!("read {size}"), Way::Read, bytes, 1, Some(local.clone()), None));
        rows.push(row(format!("hit {size}"), Way::Hit, bytes, 1, Some(local), target));
    }
    let floor = |bytes: usize| Some(format!("read {} KiB", bytes >> 10));
    let name = "hit 64 KiB, against read".to_owned();
    rows.push(row(name, Way::Hit, LARGE, 1, floor(LARGE), Some(Target::ratio(1.05))));
    let name = "hit 4 KiB, server CPU against read".to_owned();
    let mut cpu_row = row(name, Way::Hit, SMALL, 1, floor(SMALL), Some(Target::ratio(0.02)));
    cpu_row.case.measure = Measure::ServerCpu;
    rows.push(cpu_row);
    for (way, target) in [(Way::Read, None), (Way::Hit, Some(Target::ratio(1.0)))] {
        let kind = if way == Way::Hit { "hit" } else { "read" };
        let local = Some("local pread 4 KiB".to_owned());
        let deep = row(format!("{kind} 4 KiB, depth {DEPTH}"), way, SMALL, 1, local, target);
        rows.push(Row { depth: DEPTH, ..deep });
    }
    // Threads need CPUs of their own.
    for threads in THREADS.into_iter().filter(|_| !together) {
        let floor = (threads > 1).then(|| "hit 4 KiB, threads: 1".to_owned());
        let target = (threads == 2).then_some(Target::ratio(0.59));
        let name = format!("hit 4 KiB, threads: {threads}");
        rows.push(row(name, Way::Hit, SMALL, threads, floor, target));
    }
    rows
}

/// The rows over a network: each hit against the same read by a request.
fn rows_by_rdma(together: bool) -> Vec<Row> {
    let row = |name: String, way, (bytes, depth), floor: Option<String>, target| {
        let mut case = Case::new(name, None, target);
        case.floor = floor.map(Cow::Owned);
        Row { case, way, bytes, threads: 1, depth, reads: 0, hits: 0 }
    };
    let mut rows = Vec::new();
    for bytes in SIZES {
        let size = format!("{} KiB", bytes >> 10);
        let read = format!("read {size}");
        let target = match bytes {
            SMALL => Some(Target::ratio(0.80)),
            LARGE => Some(Target::ratio(1.05)),
            _ => None,
        };
        rows.push(row(read.clone(), Way::Read, (bytes, 1), None, None));
        rows.push(row(format!("hit {size}"), Way::Hit, (bytes, 1), Some(read), target));
    }
    let ping_pong = "tcp 4 KiB".to_owned();
    let name = "hit 4 KiB, against tcp".to_owned();
    rows.push(row(ping_pong.clone(), Way::Tcp, (SMALL, 1), None, None));
    rows.push(row(name, Way::Hit, (SMALL, 1), Some(ping_pong), Some(Target::ratio(1.15))));
    let read = format!("read 4 KiB, depth {DEPTH}");
    let deep = (SMALL, DEPTH);
    rows.push(row(read.clone(), Way::Read, deep, None, None));
    // On one CPU the rate shows the CPU time of both ends.
    let target = together.then_some(Target::ratio(0.76));
    let hit = format!("hit 4 KiB, depth {DEPTH}");
    rows.push(row(hit, Way::Hit, deep, Some(read.clone()), target));
    for (depth, read) in [(1, "read 4 KiB".to_owned()), (DEPTH, read)] {
        let name = format!("hit 4 KiB, depth {depth}, server CPU against read");
        let target = (depth == DEPTH).then_some(Target::ratio(0.76));
        let mut cpu_row = row(name, Way::Hit, (SMALL, depth), Some(read), target);
        cpu_row.case.measure = Measure::ServerCpu;
        rows.push(cpu_row);
    }
    rows
}

impl World {
    fn start(
        export: &Path,
        server_cpu: usize,
        transport: TransportChoice,
        wake: &str,
    ) -> Result<Self> {
        let process = Process::serve_optimistic(export, server_cpu, wake, MEMORY_BYTES)?;
        let url = process.file_url("data")?;
        let way = (transport, wake);
        let open = |optimistic| open(&url, way, optimistic, &OpenOptions::read());
        let local = std::fs::File::open(export.join("data"))?;
        let world = Self { local, plain: open(false)?, optimistic: open(true)?, process };
        warm(&world.optimistic, &(0..FILE_BYTES))?;
        Ok(world)
    }

    /// Measures a row once.
    fn sample(&self, row: &mut Row, time: Duration) -> Result<Sample> {
        let bytes = row.bytes;
        if row.way == Way::Local {
            let mut buffer = vec![0; bytes];
            let mut read = |at: u64| -> Result<usize> { Ok(self.local.read_at(&mut buffer, at)?) };
            return Sample::of(
                || cpu::times(None),
                || Ok(with_bytes(repeat(time, bytes, 1, &mut read)?, bytes)),
            );
        }
        let (client, file) = if row.way == Way::Hit { &self.optimistic } else { &self.plain };
        let depth = row.depth;
        let buffers: Vec<IoBuffer> =
            (0..row.threads).map(|_| client.buffer(depth * bytes)).collect::<Result<_, _>>()?;
        let before = client.optimistic_stats().hits;
        let read = || match (depth, &buffers[..]) {
            (2.., [buffer]) => read_deep(file, buffer, (bytes, depth), time),
            _ => read_in_threads(file, &buffers, bytes, time),
        };
        let sample =
            Sample::of(|| cpu::times(Some(self.process.id())), || Ok(with_bytes(read()?, bytes)))?;
        row.hits += client.optimistic_stats().hits - before;
        row.reads += sample.operations;
        Ok(sample)
    }
}

fn with_bytes(operations: u64, bytes: usize) -> (u64, u64) {
    (operations, operations * bytes as u64)
}

/// Reads in a thread for each buffer. Returns the number of reads. Several threads have a CPU each.
fn read_in_threads(file: &File, buffers: &[IoBuffer], bytes: usize, time: Duration) -> Result<u64> {
    let read = |number: usize, buffer: &IoBuffer| -> Result<u64> {
        if buffers.len() > 1 {
            cpu::pin(number % cpu::cpu_count())?;
        }
        repeat(time, bytes, number as u64, |at| Ok(file.read_into(buffer, 0..bytes, at)?))
    };
    let read = &read;
    std::thread::scope(|scope| {
        let threads: Vec<_> = buffers
            .iter()
            .enumerate()
            .map(|(number, buffer)| scope.spawn(move || read(number, buffer)))
            .collect();
        let ended = threads.into_iter().map(|thread| match thread.join() {
            Ok(reads) => reads,
            Err(_) => bail!("a thread that reads has failed"),
        });
        ended.sum()
    })
}

/// Reads so many parts of the file at a time, at random places, for `time`. Returns the number of reads.
fn read_deep(
    file: &File,
    buffer: &IoBuffer,
    (bytes, depth): (usize, usize),
    time: Duration,
) -> Result<u64> {
    let mut rng = SmallRng::seed_from_u64(7);
    let places = FILE_BYTES / bytes as u64;
    let start = Instant::now();
    let (mut begun, mut operations, mut pending) = (0, 0, VecDeque::with_capacity(depth));
    let mut is_over = false;
    while !is_over || !pending.is_empty() {
        while !is_over && pending.len() < depth {
            // The part of the buffer whose read was waited for last.
            let at = begun % depth * bytes;
            let offset = rng.random_range(0..places) * bytes as u64;
            pending.push_back(file.submit_read(buffer, at..at + bytes, offset)?);
            begun += 1;
        }
        if let Some(read) = pending.pop_front() {
            ensure!(read.wait()? == bytes, "a short read");
            operations += 1;
        }
        is_over |= operations & 15 == 0 && start.elapsed() >= time;
    }
    Ok(operations)
}

/// Reads at random places for `time`. Returns the number of reads.
fn repeat(
    time: Duration,
    bytes: usize,
    seed: u64,
    mut read: impl FnMut(u64) -> Result<usize>,
) -> Result<u64> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let places = FILE_BYTES / bytes as u64;
    let start = Instant::now();
    let mut operations = 0;
    while operations & 15 != 0 || start.elapsed() < time {
        let offset = rng.random_range(0..places) * bytes as u64;
        ensure!(read(offset)? == bytes, "a short transfer");
        operations += 1;
    }
    Ok(operations)
}
