//! Small files that are only read, as PostMark has them: by requests, and from the server's memory, each with a
//! cache of the client that holds a part of the files.
//!
//! The clients choose files of 4 to 16 KiB at random and read them whole. They open and close a file around each
//! read ("opened"), or use an open that stays ("kept open"). OPEN and CLOSE are requests. A client keeps the
//! places of small files when it closes them, over iWARP if it may speak for any user.
//!
//! Over shared memory they also read into a buffer that is longer than any of the files, as programs do, beside
//! one who reads the local files.
//!
//! The hit ratio below the table is that of all reads. The part of the reads that the client's cache has served
//! stands beside it, for opens that stay: their other reads are hits or requests.
//!
//! Invariants
//! * Every client has all files open all the time, also while it opens one again, because its cache forgets a
//!   file that it has not open.
//! * Every file begins with its number, and each read is checked.

use super::{MEMORY_BYTES, PASS_PAUSE, connect_options};
use crate::child::Process;
use crate::report::{Case, Measure, Report, Sample};
use crate::{Plan, cpu};
use anyhow::{Context, Result, ensure};
use dafs_client::limits::CACHE_BYTES_MIN;
use dafs_client::{CacheOptions, Client, ConnectOptions, File, OpenOptions, TransportChoice};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::borrow::Cow;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const FILES: usize = 256;
const FILE_BYTES_MIN: usize = 4 << 10;
const FILE_BYTES_MAX: usize = 16 << 10;

/// The length of a buffer of programs.
const BUFFER_BYTES: usize = 128 << 10;

/// Percent of the files that the client's cache holds. Each takes a block of the cache.
const PARTS: [usize; 4] = [0, 25, 50, 75];
const CACHE_BLOCK_BYTES: usize = 64 << 10;

const TRANSPORTS: [(&str, TransportChoice); 2] =
    [("iwarp", TransportChoice::Iwarp), ("shm", TransportChoice::Shm)];

/// There are many rows, so a few rounds must do.
const ROUNDS_MAX: usize = 3;

/// The passes over all files in which the server comes to show them.
const WARM_PASSES_MAX: usize = 60;

/// The use of opens.
#[derive(Clone, Copy, PartialEq)]
enum Opens {
    Kept,
    /// Each read has an open of its own.
    Fresh,
    /// The same, into a buffer that is longer than the files.
    FreshLong,
}

const OPENS: [(Opens, &str); 3] = [
    (Opens::Kept, "kept open"),
    (Opens::Fresh, "opened"),
    (Opens::FreshLong, "opened, long buffer"),
];

/// The reader of a case.
#[derive(Clone, Copy, PartialEq)]
enum Reader {
    Local,
    Plain,
    Optimistic,
}

#[derive(Clone, Copy)]
struct Load {
    opens: Opens,
    /// Percent of the files in the cache.
    part: usize,
}

impl Load {
    fn name(self) -> String {
        let opens = OPENS.iter().find(|(opens, _)| *opens == self.opens).map_or("", |each| each.1);
        match self.part {
            0 => format!("small files, {opens}, no cache"),
            part => format!("small files, {opens}, cache {part} %"),
        }
    }

    /// Hits against READ, and READ against a local read where there is one.
    fn cases(self) -> Vec<(Reader, Case)> {
        let name = self.name();
        let [local, read] = ["local", "read"].map(|way| format!("{way} {name}"));
        let case = |name: String, floor: Option<&String>| {
            let floor = floor.cloned().map(Cow::Owned);
            Case { floor, ..Case::new(name, None, None) }
        };
        let is_long = self.opens == Opens::FreshLong;
        let mut cases = Vec::new();
        if is_long {
            cases.push((Reader::Local, case(local.clone(), None)));
        }
        cases.push((Reader::Plain, case(read.clone(), is_long.then_some(&local))));
        cases.push((Reader::Optimistic, case(format!("hit {name}"), Some(&read))));
        if self.part == 0 {
            let case = case(format!("hit {name}, server CPU against read"), Some(&read));
            cases.push((Reader::Optimistic, Case { measure: Measure::ServerCpu, ..case }));
        }
        cases
    }
}

pub(super) fn measure(plan: &Plan, report: &mut Report) -> Result<()> {
    // One CPU for both ends shows what a read costs them.
    let ways = [("adaptive", true), ("sleep", false), ("poll", false)];
    let Some((wake, together)) = ways.into_iter().find(|(wake, _)| wake.contains(&plan.wake))
    else {
        return Ok(());
    };
    let server_cpu = if together || cpu::cpu_count() < 2 { 0 } else { 1 };
    let is_wanted = |load: &Load| {
        let is_meant = load.opens != Opens::FreshLong || load.part == 0;
        is_meant && load.name().contains(&plan.only)
    };
    let loads = PARTS.map(|part| -> Vec<Load> {
        OPENS.into_iter().map(|(opens, _)| Load { opens, part }).filter(is_wanted).collect()
    });
    if loads.iter().all(Vec::is_empty) {
        return Ok(());
    }
    cpu::pin(0)?;
    for (medium, transport) in TRANSPORTS {
        let (mut cases, mut figures) = (Vec::new(), Vec::new());
        for loads in loads.iter().filter(|loads| !loads.is_empty()) {
            let world = World::start((transport, wake), server_cpu, loads[0].part)?;
            // Over iWARP a read into a long buffer is no optimistic one.
            let is_meant = |load: &&Load| medium == "shm" || load.opens != Opens::FreshLong;
            for load in loads.iter().filter(is_meant) {
                let done = world.measure(plan, *load).with_context(|| load.name())?;
                figures.push((load.name(), done.hit_ratio, done.cached));
                cases.extend(done.cases);
            }
        }
        let place = if together { "both ends on one CPU" } else { "own CPUs" };
        let title = format!("optimistic reads, {medium}: {wake}, {place}, {FILES} small files");
        report.add(&title, &cases);
        for (name, hit_ratio, cached) in figures {
            report.hit_ratios(&title, vec![(format!("hit {name}"), hit_ratio)]);
            if let Some(cached) = cached {
                let name = format!("{title}: hit {name}, part from the cache");
                report.figure(&name, cached, &format!("{cached:.4}"));
            }
        }
    }
    cpu::unpin()
}

fn name_of(number: usize) -> String {
    format!("{number:03}")
}

/// Makes an export with the files. Returns their sizes in bytes.
fn make_files(export: &Path) -> Result<Vec<usize>> {
    std::fs::create_dir(export)?;
    let mut rng = SmallRng::seed_from_u64(3);
    let mut sizes = Vec::with_capacity(FILES);
    for number in 0..FILES {
        let size = rng.random_range(FILE_BYTES_MIN..=FILE_BYTES_MAX);
        let mut content = vec![number as u8; size];
        content[..8].copy_from_slice(&number.to_le_bytes());
        std::fs::write(export.join(name_of(number)), content)?;
        sizes.push(size);
    }
    Ok(sizes)
}

/// A client with all files open.
struct End {
    client: Client,
    files: Vec<File>,
}

/// The counters of a client.
#[derive(Clone, Copy)]
struct Counts {
    hits: u64,
    requests: u64,
}

/// The result of a load.
struct Done {
    cases: Vec<Case>,
    hit_ratio: f64,
    /// The part of the optimistic client's reads that its cache has served.
    cached: Option<f64>,
}

/// A server with both clients.
struct World {
    /// The sizes of the files in bytes.
    sizes: Vec<usize>,
    export: PathBuf,
    plain: End,
    optimistic: End,
    /// The last to be dropped, but for the folder of its files.
    process: Process,
    _folder: TempDir,
}

impl World {
    fn start(way: (TransportChoice, &str), server_cpu: usize, part: usize) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("dafs-bench").tempdir()?;
        let export = folder.path().join("export");
        let sizes = make_files(&export)?;
        let process = Process::serve_optimistic(&export, server_cpu, way.1, MEMORY_BYTES)?;
        let url = process.url()?;
        let bytes = FILES * part / 100 * CACHE_BLOCK_BYTES;
        // Read-ahead behind a small file brings nothing.
        let cache = CacheOptions { read_ahead_bytes: 0, ..CacheOptions::new(bytes) };
        let end = |is_optimistic| -> Result<End> {
            let options = ConnectOptions {
                cache: (part > 0).then_some(cache),
                ..connect_options(way, is_optimistic)
            };
            let client = Client::connect(&url, &options)?;
            let open = |number| client.open(name_of(number).as_bytes(), &OpenOptions::read());
            let files = (0..FILES).map(open).collect::<Result<Vec<_>, _>>()?;
            Ok(End { client, files })
        };
        let (plain, optimistic) = (end(false)?, end(true)?);
        let world = Self { sizes, export, plain, optimistic, process, _folder: folder };
        world.warm()?;
        Ok(world)
    }

    /// Reads all files until the server shows them. A client's cache may serve some reads, and then not all
    /// are hits.
    fn warm(&self) -> Result<()> {
        self.read_all(&self.plain)?;
        let End { client, .. } = &self.optimistic;
        for _ in 0..WARM_PASSES_MAX {
            let before = client.optimistic_stats().hits;
            self.read_all(&self.optimistic)?;
            if client.optimistic_stats().hits - before == FILES as u64 {
                break;
            }
            std::thread::sleep(PASS_PAUSE);
        }
        Ok(())
    }

    fn read_all(&self, end: &End) -> Result<()> {
        let mut memory = vec![0; FILE_BYTES_MAX];
        for (number, file) in end.files.iter().enumerate() {
            self.check(number, &mut memory[..self.sizes[number]], |into| {
                Ok(file.read_at(into, 0)?)
            })?;
        }
        Ok(())
    }

    /// Reads a file whole, and checks it. Returns its size in bytes.
    fn check(
        &self,
        number: usize,
        into: &mut [u8],
        read: impl FnOnce(&mut [u8]) -> Result<usize>,
    ) -> Result<u64> {
        let size = self.sizes[number];
        ensure!(read(into)? == size, "a short read");
        ensure!(into[..8] == number.to_le_bytes(), "another file was read");
        Ok(size as u64)
    }

    /// Reads a file, with an open of its own unless it stays open.
    fn read(&self, reader: Reader, opens: Opens, number: usize, into: &mut [u8]) -> Result<usize> {
        let end = match reader {
            Reader::Local => {
                let mut file = std::fs::File::open(self.export.join(name_of(number)))?;
                return Ok(file.read(into)?);
            }
            Reader::Plain => &self.plain,
            Reader::Optimistic => &self.optimistic,
        };
        if opens == Opens::Kept {
            return Ok(end.files[number].read_at(into, 0)?);
        }
        let file = end.client.open(name_of(number).as_bytes(), &OpenOptions::read())?;
        let bytes = file.read_at(into, 0)?;
        file.close()?;
        Ok(bytes)
    }

    /// Reads files at random for some time. Returns the number of reads, and their bytes.
    fn work(&self, reader: Reader, opens: Opens, seed: u64, time: Duration) -> Result<(u64, u64)> {
        let mut rng = SmallRng::seed_from_u64(seed);
        let start = Instant::now();
        let mut memory = vec![0; BUFFER_BYTES];
        let (mut reads, mut bytes) = (0, 0);
        while reads & 15 != 0 || start.elapsed() < time {
            let number = rng.random_range(0..FILES);
            let len = if opens == Opens::FreshLong { BUFFER_BYTES } else { self.sizes[number] };
            let read = |into: &mut [u8]| self.read(reader, opens, number, into);
            bytes += self.check(number, &mut memory[..len], read)?;
            reads += 1;
        }
        Ok((reads, bytes))
    }

    fn measure(&self, plan: &Plan, load: Load) -> Result<Done> {
        let mut cases = load.cases();
        let time = Duration::from_millis(plan.milliseconds);
        let (mut sum, mut reads) = (Counts { hits: 0, requests: 0 }, 0_u64);
        for round in 0..plan.rounds.min(ROUNDS_MAX) {
            for (reader, case) in &mut cases {
                let before = self.optimistic.counts();
                let sample = Sample::of(
                    || cpu::times(Some(self.process.id())),
                    || self.work(*reader, load.opens, round as u64, time),
                )?;
                let after = self.optimistic.counts();
                if *reader == Reader::Optimistic {
                    sum.hits += after.hits - before.hits;
                    sum.requests += after.requests - before.requests;
                    reads += sample.operations;
                }
                case.samples.push(sample);
            }
        }
        let part = |count: u64| count as f64 / reads.max(1) as f64;
        let cached = (load.opens == Opens::Kept && load.part > 0)
            .then(|| part(reads.saturating_sub(sum.hits + sum.requests)));
        let cases = cases.into_iter().map(|(_, case)| case).collect();
        Ok(Done { hit_ratio: part(sum.hits), cached, cases })
    }
}

impl End {
    fn counts(&self) -> Counts {
        let hits = self.client.optimistic_stats().hits;
        Counts { hits, requests: self.client.stats().answered }
    }
}

// The client's cache is as small as asked for.
const _: () = assert!(FILES * PARTS[1] / 100 * CACHE_BLOCK_BYTES >= CACHE_BYTES_MIN);
