//! Writes to a server that shows files to clients, against the same writes to a server that does not.
//!
//! A write of a file that is not shown has to find that out. A write of a file that is shown takes the blocks out of
//! the memory first. After a few changes the server shows these blocks no more for a while, so the steady state is
//! a write of absent blocks of a shown file. The writes go to the first half of the file, and the other half stays
//! shown: its hit ratio stands below the table.
//!
//! Invariants
//! * The three cases take short turns within each round, because a difference of one in a hundred is less than
//!   what a machine changes within seconds.
//! * The files lie in memory, so that no disk and no file system on one is measured.

use super::{FILE_BYTES, LARGE, MEMORY_BYTES, SMALL, open, repeat, warm};
use crate::child::Process;
use crate::fronts::MEMORY;
use crate::report::{Case, Measure, Report, Sample};
use crate::targets::Target;
use crate::{Plan, cpu};
use anyhow::Result;
use dafs_client::{Client, File, IoBuffer, OpenOptions, Stability, TransportChoice};
use std::borrow::Cow;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

const PLAIN: &str = "write 4 KiB, server without";
const HIDDEN: &str = "write 4 KiB, file not shown";
const SHOWN: &str = "write 4 KiB, file shown";

/// Name, target of the time.
const CASES: [(&str, Option<Target>); 3] =
    [(PLAIN, None), (HIDDEN, Some(Target::ratio(1.01))), (SHOWN, Some(Target::ratio(1.05)))];

/// Turns of each case in one round.
const TURNS: u32 = 10;

/// The part of the file that nobody writes.
const QUIET: Range<u64> = FILE_BYTES / 2..FILE_BYTES;

pub(super) fn measure(plan: &Plan, report: &mut Report) -> Result<()> {
    // Servers that poll would take the CPU from each other.
    let ways = [("adaptive", true), ("sleep", false)];
    let Some((wake, together)) = ways.into_iter().find(|(wake, _)| wake.contains(&plan.wake))
    else {
        return Ok(());
    };
    if !CASES.iter().any(|(name, _)| name.contains(&plan.only)) {
        return Ok(());
    }
    if !Path::new(MEMORY).is_dir() {
        report.skip("optimistic reads, writes", &format!("there is no {MEMORY}"));
        return Ok(());
    }
    let server_cpu = if together || cpu::cpu_count() < 2 { 0 } else { 1 };
    let folder = tempfile::Builder::new().prefix("dafs-bench").tempdir_in(MEMORY)?;
    cpu::pin(0)?;
    let world = World::start(folder.path(), wake, server_cpu)?;
    let mut samples: [Vec<Sample>; 3] = Default::default();
    let (mut reads, mut hits) = (0, 0);
    for _ in 0..plan.rounds {
        let round = world.round(Duration::from_millis(plan.milliseconds) / TURNS)?;
        for (samples, sample) in samples.iter_mut().zip(round) {
            samples.push(sample);
        }
        let (more_reads, more_hits) = world.read_quiet_part()?;
        reads += more_reads;
        hits += more_hits;
    }
    cpu::unpin()?;
    let place = if together { "both ends on one CPU" } else { "own CPUs" };
    let title = format!("optimistic reads, writes over shm: {wake}, {place}");
    report.add(&title, &cases(samples));
    let ratio = hits as f64 / f64::from(reads.max(1));
    report.hit_ratios(&title, vec![(format!("{SHOWN}, the other half"), ratio)]);
    Ok(())
}

/// Each case by time, and behind them those with a floor by the server's processor time.
fn cases(samples: [Vec<Sample>; 3]) -> Vec<Case> {
    let floor = |name: &str| (name != PLAIN).then_some(Cow::Borrowed(PLAIN));
    let by_cpu: Vec<Case> = CASES
        .into_iter()
        .zip(&samples)
        .skip(1)
        .map(|((name, _), samples)| Case {
            floor: floor(name),
            measure: Measure::ServerCpu,
            samples: samples.clone(),
            ..Case::new(format!("{name}, server CPU"), None, None)
        })
        .collect();
    let by_time = CASES.into_iter().zip(samples).map(|((name, target), samples)| Case {
        floor: floor(name),
        samples,
        ..Case::new(name, None, target)
    });
    by_time.chain(by_cpu).collect()
}

/// A client with a file that it writes.
struct Writer {
    opened: (Client, File),
    buffer: IoBuffer,
}

/// A server that shows files, and one that does not.
struct World {
    /// The writers, in the order of the cases.
    writers: [Writer; 3],
    reader: (Client, File),
    /// The servers of the writers. The last to be dropped.
    plain: Process,
    optimistic: Process,
}

impl World {
    fn start(folder: &Path, wake: &str, server_cpu: usize) -> Result<Self> {
        let (without, with) = (folder.join("without"), folder.join("with"));
        let content: Vec<u8> = (0..FILE_BYTES / 8).flat_map(u64::to_le_bytes).collect();
        for export in [&without, &with] {
            std::fs::create_dir(export)?;
            for name in ["hidden", "shown"] {
                std::fs::write(export.join(name), &content)?;
            }
        }
        let plain = Process::serve(&without, server_cpu, wake)?;
        let optimistic = Process::serve_optimistic(&with, server_cpu, wake, MEMORY_BYTES)?;
        let way = (TransportChoice::Shm, wake);
        let writer = |process: &Process, name: &str| -> Result<Writer> {
            let opened = open(&process.file_url(name)?, way, false, &OpenOptions::read_write())?;
            let buffer = opened.0.buffer(SMALL)?;
            Ok(Writer { opened, buffer })
        };
        let reader = open(&optimistic.file_url("shown")?, way, true, &OpenOptions::read())?;
        let writers = [
            writer(&plain, "hidden")?,
            writer(&optimistic, "hidden")?,
            writer(&optimistic, "shown")?,
        ];
        let world = Self { writers, reader, plain, optimistic };
        warm(&world.reader, &(0..FILE_BYTES))?;
        Ok(world)
    }

    /// Measures the cases in turns. Returns the sum of the turns of each.
    fn round(&self, time: Duration) -> Result<[Sample; 3]> {
        let mut sums = [Sample::default(); 3];
        for turn in 0..TURNS {
            for ((sum, writer), (name, _)) in sums.iter_mut().zip(&self.writers).zip(CASES) {
                let server = if name == PLAIN { &self.plain } else { &self.optimistic };
                *sum += Sample::of(
                    || cpu::times(Some(server.id())),
                    || {
                        let writes = writer.work(time, u64::from(turn))?;
                        Ok((writes, writes * SMALL as u64))
                    },
                )?;
            }
        }
        Ok(sums)
    }

    /// Reads the part of the shown file that nobody writes. Returns the reads, and the hits among them.
    fn read_quiet_part(&self) -> Result<(u32, u64)> {
        let (client, file) = &self.reader;
        let buffer = client.buffer(LARGE)?;
        let (before, mut reads) = (client.optimistic_stats().hits, 0);
        for offset in QUIET.step_by(LARGE) {
            file.read_into(&buffer, 0..LARGE, offset)?;
            reads += 1;
        }
        Ok((reads, client.optimistic_stats().hits - before))
    }
}

impl Writer {
    /// Writes blocks in the first half of the file, at random places. Returns the number of writes.
    fn work(&self, time: Duration, seed: u64) -> Result<u64> {
        let Self { opened: (_, file), buffer } = self;
        repeat(time, SMALL, seed, |place| {
            let offset = place / 2 / SMALL as u64 * SMALL as u64;
            Ok(file.write_from(buffer, 0..SMALL, offset, Stability::Unstable)?)
        })
    }
}
