//! Optimistic reads of files that the server's memory does not hold, and beside a client that writes.
//!
//! The places are chosen before the measurement: each with the same chance, or by Zipf's law with exponent
//! 0.99 and the popular ones anywhere in the file. The optimistic client reads until its hit ratio grows no
//! more. Then it and a client that sends requests take turns. A client that writes is another one, but has the
//! same thread, so each row has the same mix.

use super::open;
use crate::child::Process;
use crate::report::{Case, Report, Sample};
use crate::targets::{Bound, Target};
use crate::{Plan, cpu};
use anyhow::{Result, ensure};
use dafs_client::{Client, File, IoBuffer, OpenOptions, Stability, TransportChoice};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom as _;
use rand::{RngExt, SeedableRng};
use std::borrow::Cow;
use std::path::Path;
use std::time::{Duration, Instant};

const BLOCK: usize = 4096;

/// The memory in which the server shows files, and the sizes of these, in halves of it.
const MEMORY_BYTES: u64 = 16 << 20;
const SETS: [(u64, &str); 4] = [(1, "1/2"), (2, "1"), (4, "2"), (8, "4")];

/// Percent of the operations that are writes, of a file of half the memory.
const WRITES: [u64; 3] = [1, 10, 50];

/// Places that are chosen beforehand. A measurement goes round in them.
const PLACES: usize = 1 << 18;

const ZIPF_EXPONENT: f64 = 0.99;

/// Reads before a measurement: spans of that time until the hit ratio grows by less than this. A file that
/// does not fit needs more of them, because blocks make room for others over some seconds.
const WARM_SPAN: Duration = Duration::from_secs(1);
const WARM_SPANS_MIN: usize = 6;
const WARM_SPANS_MIN_FITTING: usize = 2;
const WARM_SPANS_MAX: usize = 40;
const WARM_GAIN_MIN: f64 = 0.0025;

#[derive(Clone, Copy)]
enum Choice {
    Uniform,
    Zipf,
}

/// A file and the way in which clients use it.
struct Load {
    name: String,
    bytes: u64,
    choice: Choice,
    writes: u64,
    /// The target of the time, and of the hit ratio.
    target: Option<Target>,
    hits: Option<Bound>,
}

pub(super) fn measure(plan: &Plan, report: &mut Report) -> Result<()> {
    let ways = [("poll", false), ("sleep", false), ("adaptive", true)];
    let Some((wake, together)) = ways.into_iter().find(|(wake, _)| wake.contains(&plan.wake))
    else {
        return Ok(());
    };
    let server_cpu = if together || cpu::cpu_count() < 2 { 0 } else { 1 };
    let title = format!("optimistic reads, shm, memory of {} MiB: {wake}", MEMORY_BYTES >> 20);
    let (mut cases, mut ratios) = (Vec::new(), Vec::new());
    for load in loads() {
        if !load.name.contains(&plan.only) {
            continue;
        }
        let (own, ratio) = run(plan, &load, wake, server_cpu)?;
        cases.extend(own);
        if let Some(bound) = load.hits {
            report.judge(&format!("{title}: {}, hit ratio", load.name), bound, ratio, "");
        }
        ratios.push((load.name, ratio));
    }
    if cases.is_empty() {
        return Ok(());
    }
    report.add(&title, &cases);
    report.hit_ratios(&title, ratios);
    Ok(())
}

fn loads() -> Vec<Load> {
    let mut loads = Vec::new();
    for (choice, word) in [(Choice::Uniform, "uniform"), (Choice::Zipf, "Zipf")] {
        for (halves, size) in SETS {
            let hits = match (choice, halves) {
                (Choice::Uniform, 1) => Some(Bound::AtLeast(0.99)),
                (Choice::Zipf, 8) => Some(Bound::AtLeast(0.8)),
                _ => None,
            };
            let (name, bytes) =
                (format!("{word}, {size} of the memory"), halves * MEMORY_BYTES / 2);
            loads.push(Load { name, bytes, choice, writes: 0, target: None, hits });
        }
    }
    for writes in WRITES {
        let target = (writes == 10).then_some(Target::ratio(1.05));
        let (name, bytes) = (format!("{writes} % writes"), MEMORY_BYTES / 2);
        let choice = Choice::Uniform;
        loads.push(Load { name, bytes, choice, writes, target, hits: None });
    }
    loads
}

/// Measures a load by both ways. Returns the cases, and the hit ratio.
fn run(plan: &Plan, load: &Load, wake: &str, server_cpu: usize) -> Result<([Case; 2], f64)> {
    let directory = tempfile::Builder::new().prefix("dafs-bench").tempdir()?;
    let export = directory.path().join("export");
    std::fs::create_dir(&export)?;
    let content: Vec<u8> = (0..load.bytes / 8).flat_map(u64::to_le_bytes).collect();
    std::fs::write(export.join("data"), &content)?;
    cpu::pin(0)?;
    let world = World::start(&export, server_cpu, wake, load)?;
    let mut places = places(load.bytes / BLOCK as u64, load.choice).into_iter().cycle();
    let fits = load.bytes < MEMORY_BYTES;
    let spans_min = if fits { WARM_SPANS_MIN_FITTING } else { WARM_SPANS_MIN };
    world.warm(&mut places, spans_min)?;
    let [read, hit] = ["read", "hit"].map(|way| format!("{way} 4 KiB, {}", load.name));
    let mut cases = [
        Case::new(read.clone(), None, None),
        Case { floor: Some(Cow::Owned(read)), ..Case::new(hit, None, load.target) },
    ];
    let (mut reads, mut hits) = (0, 0);
    let time = Duration::from_millis(plan.milliseconds);
    for _ in 0..plan.rounds {
        for (case, ends) in cases.iter_mut().zip([&world.plain, &world.optimistic]) {
            let before = ends.client.optimistic_stats().hits;
            let mut done = Done::default();
            let sample = Sample::of(
                || cpu::times(Some(world.process.id())),
                || {
                    done = world.work(ends, &mut places, time)?;
                    let operations = done.reads + done.writes;
                    Ok((operations, operations * BLOCK as u64))
                },
            )?;
            case.samples.push(sample);
            let gained = ends.client.optimistic_stats().hits - before;
            hits += gained;
            reads += if case.floor.is_some() { done.reads } else { 0 };
        }
    }
    cpu::unpin()?;
    Ok((cases, hits as f64 / (reads as f64).max(1.0)))
}

/// Returns places of a file of so many blocks, in bytes.
fn places(blocks: u64, choice: Choice) -> Vec<u64> {
    let mut rng = SmallRng::seed_from_u64(1);
    let mut order: Vec<u64> = (0..blocks).collect();
    order.shuffle(&mut rng);
    let mut sum = 0.0;
    let weight = |rank: u64| match choice {
        Choice::Uniform => 1.0,
        Choice::Zipf => (rank as f64).powf(-ZIPF_EXPONENT),
    };
    let sums: Vec<f64> = (1..=blocks)
        .map(|rank| {
            sum += weight(rank);
            sum
        })
        .collect();
    let mut place = || {
        let at = rng.random_range(0.0..sum);
        let rank = sums.partition_point(|sum| *sum <= at).min(order.len() - 1);
        order[rank] * BLOCK as u64
    };
    (0..PLACES).map(|_| place()).collect()
}

/// One client's session and file.
struct End {
    client: Client,
    file: File,
    buffer: IoBuffer,
}

#[derive(Default)]
struct Done {
    reads: u64,
    writes: u64,
}

struct World {
    plain: End,
    optimistic: End,
    writer: End,
    /// Percent of the operations.
    writes: u64,
    /// The last to be dropped.
    process: Process,
}

impl World {
    fn start(export: &Path, server_cpu: usize, wake: &str, load: &Load) -> Result<Self> {
        let process = Process::serve_optimistic(export, server_cpu, wake, MEMORY_BYTES)?;
        let url = process.file_url("data")?;
        let end = |optimistic, how: &OpenOptions| -> Result<End> {
            let way = (TransportChoice::Shm, wake);
            let (client, file) = open(&url, way, optimistic, how)?;
            let buffer = client.buffer(BLOCK)?;
            Ok(End { client, file, buffer })
        };
        let (plain, optimistic) =
            (end(false, &OpenOptions::read())?, end(true, &OpenOptions::read())?);
        let writer = end(false, &OpenOptions::read_write())?;
        Ok(Self { plain, optimistic, writer, writes: load.writes, process })
    }

    /// Reads until the hit ratio grows no more.
    fn warm(&self, places: &mut impl Iterator<Item = u64>, spans_min: usize) -> Result<()> {
        let mut former = 0.0;
        for span in 0..WARM_SPANS_MAX {
            let before = self.optimistic.client.optimistic_stats().hits;
            let done = self.work(&self.optimistic, places, WARM_SPAN)?;
            let hits = self.optimistic.client.optimistic_stats().hits - before;
            let ratio = hits as f64 / (done.reads as f64).max(1.0);
            if span + 1 >= spans_min && ratio < former + WARM_GAIN_MIN {
                return Ok(());
            }
            former = ratio;
        }
        Ok(())
    }

    /// Reads by one client, and writes by another, for some time.
    fn work(
        &self,
        reader: &End,
        places: &mut impl Iterator<Item = u64>,
        time: Duration,
    ) -> Result<Done> {
        let (start, mut done, mut owed) = (Instant::now(), Done::default(), 0);
        for (number, offset) in places.enumerate() {
            if number.is_multiple_of(16) && start.elapsed() >= time {
                break;
            }
            owed += self.writes;
            if owed >= 100 {
                owed -= 100;
                let End { file, buffer, .. } = &self.writer;
                file.write_from(buffer, 0..BLOCK, offset, Stability::Unstable)?;
                done.writes += 1;
                continue;
            }
            let count = reader.file.read_into(&reader.buffer, 0..BLOCK, offset)?;
            ensure!(count == BLOCK, "a short read");
            done.reads += 1;
        }
        Ok(done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_of_the_blocks_has_most_of_the_places_by_zipfs_law() {
        let blocks = 4096;
        let mut counts = vec![0_u32; blocks];
        for place in places(blocks as u64, Choice::Zipf) {
            counts[place as usize / BLOCK] += 1;
        }
        counts.sort_unstable_by(|one, other| other.cmp(one));
        let popular: u32 = counts[..blocks / 4].iter().sum();
        let part = f64::from(popular) / PLACES as f64;
        assert!((0.8..0.95).contains(&part), "{part}");
    }
}
