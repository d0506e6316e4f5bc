//! One to eight clients that read from the memory of one server at once, against READ by as many.
//!
//! The server has one CPU. Each client has a session and a thread of its own, on the other CPUs. Where these are
//! few, the clients are at their limit before the server is. So the table has two ratios: of time, and of the
//! server's processor time. The inverse of the latter is the ratio of the rates at the limit of the server's CPU.
//! The part of that CPU which the server uses stands below the table.
//!
//! Invariants
//! * READ and hits take turns in each round, by as many clients of the same server.
//! * The server sleeps when it has no work, so that its processor time is that of the work.

use super::{FILE_BYTES, MEMORY_BYTES, SMALL, open, prepare, read_deep, repeat, warm};
use crate::child::Process;
use crate::report::{Case, Measure, Report, Sample, median};
use crate::targets::Target;
use crate::{Plan, cpu};
use anyhow::{Result, bail};
use dafs_client::{Client, File, IoBuffer, OpenOptions, TransportChoice};
use std::borrow::Cow;
use std::path::Path;
use std::time::Duration;

const COUNTS: [usize; 4] = [1, 2, 4, 8];

/// The number of clients for which hits over iWARP have a target: 1.3 times the rate of READ.
const TARGET_COUNT: usize = 4;

const WAKE: &str = "sleep";

/// The transports, with the reads of one client at a time. Over iWARP a few reads keep a server busier. Over
/// shared memory only a read that its thread waits for can be a hit.
const TRANSPORTS: [(&str, TransportChoice, usize); 2] =
    [("iwarp", TransportChoice::Iwarp, 8), ("shm", TransportChoice::Shm, 1)];

pub(super) fn measure(plan: &Plan, report: &mut Report) -> Result<()> {
    let is_wanted = |count: &usize| name_of(*count).contains(&plan.only);
    let counts: Vec<usize> = COUNTS.into_iter().filter(is_wanted).collect();
    if counts.is_empty() || !WAKE.contains(&plan.wake) {
        return Ok(());
    }
    let directory = tempfile::Builder::new().prefix("dafs-bench").tempdir()?;
    let export = directory.path().join("export");
    prepare(&export)?;
    for (medium, transport, depth) in TRANSPORTS {
        let title = format!("optimistic reads, {medium}: {WAKE}, clients of a server on one CPU");
        let (mut cases, mut ratios, mut parts) = (Vec::new(), Vec::new(), Vec::new());
        for count in &counts {
            let world = World::start(&export, transport, *count, depth)?;
            let done = world.measure(plan, depth)?;
            let name = name_of(*count);
            ratios.push((format!("hit {name}"), done.hit_ratio));
            for (way, samples) in [("read", &done.read), ("hit", &done.hit)] {
                parts.push((format!("{way} {name}"), part_in_use(samples)));
            }
            let is_target = transport == TransportChoice::Iwarp && *count == TARGET_COUNT;
            cases.extend(done.into_cases(&name, is_target));
        }
        report.add(&title, &cases);
        report.hit_ratios(&title, ratios);
        for (name, part) in parts {
            let name = format!("{title}: {name}, part of the server's CPU");
            report.figure(&name, part, &format!("{part:.2}"));
        }
    }
    cpu::unpin()
}

fn name_of(count: usize) -> String {
    format!("4 KiB, clients: {count}")
}

/// The part of its CPU that the server has used.
fn part_in_use(samples: &[Sample]) -> f64 {
    let part = |sample: &Sample| sample.server_cpu.as_secs_f64() / sample.elapsed.as_secs_f64();
    median(samples.iter().map(part).collect())
}

/// The samples of READ and of hits, by round.
struct Done {
    read: Vec<Sample>,
    hit: Vec<Sample>,
    hit_ratio: f64,
}

impl Done {
    fn into_cases(self, name: &str, is_target: bool) -> [Case; 3] {
        let read = format!("read {name}");
        let hit = |name: String, target| {
            let floor = Some(Cow::Owned(read.clone()));
            Case { floor, samples: self.hit.clone(), ..Case::new(name, None, target) }
        };
        let by_time = hit(format!("hit {name}"), None);
        let target = is_target.then_some(Target::ratio(0.77));
        let mut by_cpu = hit(format!("hit {name}, server CPU"), target);
        by_cpu.measure = Measure::ServerCpu;
        [Case { samples: self.read, ..Case::new(read, None, None) }, by_time, by_cpu]
    }
}

/// A client that reads, with memory for its reads.
struct End {
    opened: (Client, File),
    buffer: IoBuffer,
}

/// A server with as many clients of both kinds.
struct World {
    plain: Vec<End>,
    optimistic: Vec<End>,
    /// The last to be dropped.
    process: Process,
}

impl World {
    fn start(
        export: &Path,
        transport: TransportChoice,
        count: usize,
        depth: usize,
    ) -> Result<Self> {
        cpu::pin(0)?;
        let process = Process::serve_optimistic(export, server_cpu(), WAKE, MEMORY_BYTES)?;
        let url = process.file_url("data")?;
        let end = |is_optimistic: bool| -> Result<End> {
            let way = (transport, WAKE);
            let opened = open(&url, way, is_optimistic, &OpenOptions::read())?;
            let buffer = opened.0.buffer(depth * SMALL)?;
            Ok(End { opened, buffer })
        };
        let ends = |is_optimistic| -> Result<Vec<End>> {
            (0..count).map(|_| end(is_optimistic)).collect()
        };
        let world = Self { plain: ends(false)?, optimistic: ends(true)?, process };
        for end in &world.optimistic {
            warm(&end.opened, &(0..FILE_BYTES))?;
        }
        Ok(world)
    }

    fn measure(&self, plan: &Plan, depth: usize) -> Result<Done> {
        let time = Duration::from_millis(plan.milliseconds);
        let (mut read, mut hit) = (Vec::new(), Vec::new());
        let before = self.hits();
        for _ in 0..plan.rounds {
            for (ends, samples) in [(&self.plain, &mut read), (&self.optimistic, &mut hit)] {
                samples.push(Sample::of(
                    || cpu::times(Some(self.process.id())),
                    || {
                        let reads = read_together(ends, depth, time)?;
                        Ok((reads, reads * SMALL as u64))
                    },
                )?);
            }
        }
        let reads: u64 = hit.iter().map(|sample: &Sample| sample.operations).sum();
        let hit_ratio = (self.hits() - before) as f64 / reads.max(1) as f64;
        Ok(Done { read, hit, hit_ratio })
    }

    fn hits(&self) -> u64 {
        self.optimistic.iter().map(|end| end.opened.0.optimistic_stats().hits).sum()
    }
}

fn server_cpu() -> usize {
    usize::from(cpu::cpu_count() > 1)
}

/// Reads with all clients at once, each in a thread, on the CPUs that are not the server's. Returns the number
/// of reads.
fn read_together(ends: &[End], depth: usize, time: Duration) -> Result<u64> {
    let mut cpus: Vec<usize> = (0..cpu::cpu_count()).collect();
    if cpus.len() > 1 {
        cpus.remove(server_cpu());
    }
    let read = |number: usize, end: &End| -> Result<u64> {
        cpu::pin(cpus[number % cpus.len()])?;
        let End { opened: (_, file), buffer } = end;
        if depth > 1 {
            return read_deep(file, buffer, (SMALL, depth), time);
        }
        repeat(time, SMALL, number as u64, |at| Ok(file.read_into(buffer, 0..SMALL, at)?))
    };
    let read = &read;
    std::thread::scope(|scope| {
        let threads: Vec<_> = ends
            .iter()
            .enumerate()
            .map(|(number, end)| scope.spawn(move || read(number, end)))
            .collect();
        let ended = threads.into_iter().map(|thread| match thread.join() {
            Ok(reads) => reads,
            Err(_) => bail!("a client of the benchmark has failed"),
        });
        ended.sum()
    })
}
