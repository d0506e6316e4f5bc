//! Reads and writes of 4 KiB and 1 MiB through `dafs mount`, through a FUSE file system that only
//! passes them on to this machine's files, and on those files.
//!
//! "direct" is O_DIRECT at random places: each operation reaches the server. "cached" goes through
//! the kernel's page cache in sequence, which has no page of the file at first: reads profit from
//! read-ahead.
//!
//! Invariants
//! * Every block begins with its number, also after writes, and each one read is checked.

use super::ways::{MEMORY, OPTIMISTIC};
use super::{Front, Site, Way, hit_ratio};
use crate::child::Process;
use crate::files::FILE_BYTES;
use crate::report::{Case, Report, Sample};
use crate::targets::Target;
use crate::{Plan, cpu};
use anyhow::{Context, Result, ensure};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Bytes of a numbered block, and the alignment of memory for O_DIRECT.
const BLOCK: usize = 4096;
const SIZES: [(&str, usize); 2] = [("4 KiB", 4096), ("1 MiB", 1 << 20)];
const THREADS: [usize; 2] = [1, 4];
const WAYS: [Way; 3] = [Way::Local, Way::Passthrough, Way::Mount];

#[derive(Debug, Clone, Copy)]
struct Load {
    writes: bool,
    bytes: usize,
    direct: bool,
    threads: usize,
    file_bytes: u64,
}

impl Load {
    /// The target of a mount's time, relative to the file system that passes on.
    fn target(self) -> Option<Target> {
        match (self.writes, self.direct) {
            (false, true) if self.bytes == BLOCK && self.threads == 1 => Some(Target::ratio(1.5)),
            (true, true) if self.bytes > BLOCK => Some(Target::ratio(1.3)),
            (true, false) if self.bytes > BLOCK => Some(Target::ratio(1.1)),
            _ => None,
        }
    }
}

pub(super) fn measure(plan: &Plan, report: &mut Report) -> Result<()> {
    let mut list = list();
    list.retain(|(case, ..)| case.name.contains(&plan.only));
    if list.is_empty() {
        return Ok(());
    }
    let site = Site::start(Path::new(MEMORY))?;
    let content: Vec<u8> = (0..FILE_BYTES / BLOCK as u64).flat_map(block).collect();
    std::fs::write(site.export.join("data"), content)?;
    for _ in 0..plan.rounds {
        for (case, way, load) in &mut list {
            let front = site.front(*way)?;
            let sample = run(plan, &site, &front, *load);
            case.samples.push(sample.with_context(|| case.name.clone())?);
        }
    }
    for (number, found) in std::fs::read(site.export.join("data"))?.chunks(BLOCK).enumerate() {
        ensure!(is_block(found, number as u64), "block {number} of the file is not right");
    }
    let cases: Vec<Case> = list.into_iter().map(|(case, ..)| case).collect();
    report.add("mount, against a FUSE file system that passes on", &cases);
    Ok(())
}

fn list() -> Vec<(Case, Way, Load)> {
    let mut list = Vec::new();
    for (writes, does) in [(false, "read"), (true, "write")] {
        for (size, bytes) in SIZES {
            for (direct, kind) in [(true, "direct"), (false, "cached")] {
                for threads in THREADS {
                    let load = Load { writes, bytes, direct, threads, file_bytes: FILE_BYTES };
                    let name =
                        |way: Way| format!("{does} {size} {kind} x{threads}, {}", way.name());
                    for way in WAYS {
                        let floor = match way {
                            Way::Local => None,
                            Way::Mount => Some(name(Way::Passthrough).into()),
                            _ => Some(name(Way::Local).into()),
                        };
                        let target = load.target().filter(|_| way == Way::Mount);
                        let case = Case { floor, ..Case::new(name(way), None, target) };
                        list.push((case, way, load));
                    }
                }
            }
        }
    }
    list
}

/// The file that the server shows, and the runs on a mount before a measurement in which it comes to do so.
const SHOWN_BYTES: u64 = 16 << 20;
const WARM_RUNS: usize = 4;

/// Measures reads of 4 KiB by one and four threads through a mount, with and without reads from
/// memory that the server shows. The hit ratio is the part of a program's reads for which the server had no
/// request.
pub(super) fn measure_optimistic(plan: &Plan, report: &mut Report) -> Result<()> {
    let mut list = Vec::new();
    for threads in THREADS {
        let file_bytes = SHOWN_BYTES;
        let load = Load { writes: false, bytes: BLOCK, direct: true, threads, file_bytes };
        let name = |options| match options {
            OPTIMISTIC => format!("read 4 KiB direct x{threads}, mount optimistic"),
            _ => format!("read 4 KiB direct x{threads}, mount"),
        };
        for options in ["", OPTIMISTIC] {
            let floor = (options == OPTIMISTIC).then(|| name("").into());
            let case = Case { floor, ..Case::new(name(options), None, None) };
            list.push((case, options, load, 0_u64));
        }
    }
    list.retain(|(case, ..)| case.name.contains(&plan.only));
    if list.is_empty() {
        return Ok(());
    }
    let server_cpu = usize::from(cpu::cpu_count() > 1);
    let serve =
        |export: &Path| Process::serve_optimistic(export, server_cpu, "adaptive", 4 * SHOWN_BYTES);
    let site = Site::start_by(Path::new(MEMORY), serve)?;
    let content: Vec<u8> = (0..SHOWN_BYTES / BLOCK as u64).flat_map(block).collect();
    std::fs::write(site.export.join("data"), content)?;
    for _ in 0..plan.rounds {
        for (case, options, load, requests) in &mut list {
            let front = site.front_with(Way::Mount, options)?;
            let warm_runs = if *options == OPTIMISTIC { WARM_RUNS } else { 1 };
            for _ in 0..warm_runs {
                run(plan, &site, &front, *load).with_context(|| case.name.clone())?;
            }
            let before = site.server.read_requests()?;
            let sample = run(plan, &site, &front, *load);
            case.samples.push(sample.with_context(|| case.name.clone())?);
            *requests += site.server.read_requests()? - before;
        }
    }
    let shown = list.iter().filter(|(_, options, ..)| *options == OPTIMISTIC);
    let ratios = shown.map(|(case, _, _, requests)| {
        let reads: u64 = case.samples.iter().map(|sample| sample.operations).sum();
        (case.name.clone(), hit_ratio(reads, *requests))
    });
    let ratios = ratios.collect();
    let cases: Vec<Case> = list.into_iter().map(|(case, ..)| case).collect();
    let title = "optimistic reads, mount";
    report.add(title, &cases);
    report.hit_ratios(title, ratios);
    Ok(())
}

fn block(number: u64) -> [u8; BLOCK] {
    let mut block = [number as u8; BLOCK];
    block[..8].copy_from_slice(&number.to_le_bytes());
    block
}

fn is_block(found: &[u8], number: u64) -> bool {
    found.len() == BLOCK && found[..8] == number.to_le_bytes()
}

/// Runs all threads at once, each in a part of the file of its own and with a descriptor of its
/// own.
fn run(plan: &Plan, site: &Site, front: &Front, load: Load) -> Result<Sample> {
    let (ready, done) = (Barrier::new(load.threads + 1), Barrier::new(load.threads + 1));
    let span = Duration::from_millis(plan.milliseconds);
    std::thread::scope(|scope| {
        let (ready, done) = (&ready, &done);
        let threads: Vec<_> = (0..load.threads)
            .map(|thread| {
                let worker = Worker::open(front, load, thread);
                scope.spawn(move || -> Result<u64> {
                    ready.wait();
                    let worked = worker.and_then(|mut worker| worker.work(span));
                    done.wait();
                    worked
                })
            })
            .collect();
        let times = || -> Result<(Duration, Duration)> {
            let client = cpu::process_time(None)? + front.helper_time()?;
            Ok((client, cpu::process_time(Some(site.server.id()))?))
        };
        let before = times();
        ready.wait();
        let start = Instant::now();
        done.wait();
        let (elapsed, after) = (start.elapsed(), times());
        let mut operations = 0;
        for thread in threads {
            operations += thread.join().map_err(|_| anyhow::anyhow!("a thread failed"))??;
        }
        let (before, after) = (before?, after?);
        Ok(Sample {
            operations,
            bytes: operations * load.bytes as u64,
            elapsed,
            client_cpu: after.0.saturating_sub(before.0),
            server_cpu: after.1.saturating_sub(before.1),
        })
    })
}

struct Worker {
    file: File,
    load: Load,
    /// The first byte of this thread's part of the file.
    begin: u64,
    len: u64,
    random: SmallRng,
    memory: Vec<u8>,
}

impl Worker {
    fn open(front: &Front, load: Load, thread: usize) -> Result<Self> {
        let flags = if load.direct { libc::O_DIRECT } else { 0 };
        let mut options = OpenOptions::new();
        let file = options.read(true).write(load.writes).custom_flags(flags);
        let file = file.open(front.root.join("data"))?;
        let len = load.file_bytes / load.threads as u64;
        let random = SmallRng::seed_from_u64(thread as u64);
        let memory = vec![0; load.bytes + BLOCK];
        let this = Self { file, load, begin: thread as u64 * len, len, random, memory };
        this.forget()?;
        Ok(this)
    }

    /// Drops this part of the file from the page cache, unless the file lies there itself.
    fn forget(&self) -> Result<()> {
        let len = std::num::NonZero::new(self.len);
        Ok(rustix::fs::fadvise(&self.file, self.begin, len, rustix::fs::Advice::DontNeed)?)
    }

    fn work(&mut self, span: Duration) -> Result<u64> {
        let (start, mut operations) = (Instant::now(), 0);
        let places = self.len / self.load.bytes as u64;
        while start.elapsed() < span {
            let place = match self.load.direct {
                true => self.random.random_range(0..places),
                false => operations % places,
            };
            if !self.load.direct && place == 0 && operations > 0 {
                self.forget()?;
            }
            self.one(self.begin + place * self.load.bytes as u64)?;
            operations += 1;
        }
        Ok(operations)
    }

    fn one(&mut self, offset: u64) -> Result<()> {
        let aligned = self.memory.as_ptr().align_offset(BLOCK);
        let memory = &mut self.memory[aligned..][..self.load.bytes];
        let first = offset / BLOCK as u64;
        if self.load.writes {
            for (block, number) in memory.chunks_mut(BLOCK).zip(first..) {
                block[..8].copy_from_slice(&number.to_le_bytes());
            }
            return Ok(self.file.write_all_at(memory, offset)?);
        }
        self.file.read_exact_at(memory, offset)?;
        let is_right =
            memory.chunks(BLOCK).zip(first..).all(|(block, number)| is_block(block, number));
        ensure!(is_right, "something else was read at {offset}");
        Ok(())
    }
}
