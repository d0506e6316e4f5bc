//! fio on files of a dafs server through our engine, against fio on the local file, and against fio on
//! NFS-Ganesha through libnfs.
//!
//! Invariants
//! * All ways run the same job files (`fio/jobs`) on the same file, which is in the page cache.
//! * Compared cases run within one round, one after the other, on the same CPUs.

mod run;

pub(crate) use run::missing;

use crate::child::Process;
use crate::folder::Folder;
use crate::peer::{self, Ganesha};
use crate::report::{Case, Measure, Report, Sample};
use crate::{Plan, cpu};
use anyhow::{Context, Result, ensure};
use run::{Latency, Load, Programs, Way};
use std::path::Path;

/// The file that the job files name, and its size in them.
const FILE: &str = "fio-data";
const FILE_BYTES: u64 = 256 << 20;

const SMALL_DEPTHS: &[usize] = &[1, 8, 32, 128];
const LARGE_DEPTHS: &[usize] = &[1, 8, 32, 128];

/// The depths at which operations are also submitted and fetched in batches.
const BATCH_DEPTHS: &[usize] = &[32, 128];

const READ_4K: Load =
    Load { name: "read 4 KiB", file: "random-read.fio", writes: false, batches: false };
const WRITE_4K: Load =
    Load { name: "write 4 KiB", file: "random-write.fio", writes: true, batches: false };
const READ_1M: Load =
    Load { name: "read 1 MiB", file: "sequential-read.fio", writes: false, batches: false };
const WRITE_1M: Load =
    Load { name: "write 1 MiB", file: "sequential-write.fio", writes: true, batches: false };

const LOADS: [(Load, &[usize]); 6] = [
    (READ_4K, SMALL_DEPTHS),
    (Load { name: "read 4 KiB batched", batches: true, ..READ_4K }, BATCH_DEPTHS),
    (WRITE_4K, SMALL_DEPTHS),
    (Load { name: "write 4 KiB batched", batches: true, ..WRITE_4K }, BATCH_DEPTHS),
    (READ_1M, LARGE_DEPTHS),
    (WRITE_1M, LARGE_DEPTHS),
];

/// Rows with another peer, over TCP and without batches, and their targets.
const CHIMERA: [&str; 2] = [
    "fio read 4 KiB depth 32 against chimera's engine (at most 0.9)",
    "fio read 1 MiB depth 8 against chimera's engine (at most 0.9)",
];

/// Attempts with libnfs: 4.0 loses its connection at times, or hangs at the end.
const TRIES: usize = 2;

/// Our ways, which the tables compare with the others.
const OURS: [Way; 2] = [Way::Iwarp, Way::Shm];

/// One way to run one load at one depth.
struct Run {
    way: Way,
    load: Load,
    depth: usize,
    samples: Vec<Sample>,
    latencies: Vec<Latency>,
    /// It is not retried.
    failed: bool,
}

impl Run {
    fn name(&self) -> String {
        name(self.way, self.load, self.depth)
    }
}

fn name(way: Way, load: Load, depth: usize) -> String {
    format!("{} {} depth {depth}", way.name(), load.name)
}

pub(crate) fn measure(plan: &Plan, report: &mut Report) -> Result<()> {
    for row in CHIMERA.iter().filter(|row| row.contains(&plan.only)) {
        report.skip(row, peer::NO_CHIMERA);
    }
    if let Some(reason) = missing() {
        report.skip("fio", &reason);
        return Ok(());
    }
    match peer::missing(None) {
        None => peer::in_own_network(|| measure_inside(plan, report, true)),
        Some(reason) => {
            report.skip("fio through libnfs", &reason);
            measure_inside(plan, report, false)
        }
    }
}

/// Measures our ways against local files alone.
pub(crate) fn measure_local(plan: &Plan, report: &mut Report) -> Result<()> {
    measure_inside(plan, report, false)
}

fn measure_inside(plan: &Plan, report: &mut Report, with_ganesha: bool) -> Result<()> {
    // On tmpfs: on a disk, the benchmark would measure the disk.
    let folder = Folder::make(Path::new("/dev/shm"))?;
    let export = folder.path().join("export");
    std::fs::create_dir(&export)?;
    let content: Vec<u8> = (0..FILE_BYTES / 8).flat_map(u64::to_le_bytes).collect();
    std::fs::write(export.join(FILE), content)?;
    let programs = Programs::build(folder.path(), with_ganesha)?;
    for (place, together) in [("one CPU", true), ("own CPUs", false)] {
        let server_cpu = usize::from(!together && cpu::cpu_count() > 1);
        let ganesha = match with_ganesha {
            true => Some(Ganesha::start(&export, folder.path(), server_cpu)?),
            false => None,
        };
        let dafs = Process::serve(&export, server_cpu, "adaptive")?;
        cpu::pin(0)?;
        let mut runs = runs(plan, with_ganesha);
        rounds(plan, &programs, &export, &dafs, ganesha.as_ref(), &mut runs)?;
        for run in runs.iter().filter(|run| run.failed) {
            println!("\nfio, {}, {place}: LEFT OUT, it failed {TRIES} times", run.name());
        }
        // Ratios are of samples of the same round, so a case has all of them or is left out.
        runs.retain(|run| !run.failed);
        print(report, place, &runs, with_ganesha);
        cpu::unpin()?;
    }
    Ok(())
}

fn runs(plan: &Plan, with_ganesha: bool) -> Vec<Run> {
    let ways = [Way::Psync, Way::IoUring, Way::Libnfs].into_iter().chain(OURS);
    let ways = ways.filter(|way| with_ganesha || *way != Way::Libnfs);
    let mut runs = Vec::new();
    for (load, depths) in LOADS {
        for depth in depths {
            for way in ways.clone().filter(|way| *way != Way::Psync || *depth == 1) {
                let (samples, latencies) = (Vec::new(), Vec::new());
                runs.push(Run { way, load, depth: *depth, samples, latencies, failed: false });
            }
        }
    }
    runs.retain(|run| run.name().contains(&plan.only));
    runs
}

fn rounds(
    plan: &Plan,
    programs: &Programs,
    export: &Path,
    dafs: &Process,
    ganesha: Option<&Ganesha>,
    runs: &mut [Run],
) -> Result<()> {
    for _ in 0..plan.rounds {
        for run in runs.iter_mut().filter(|run| !run.failed) {
            let server = match run.way {
                Way::Psync | Way::IoUring => None,
                Way::Iwarp | Way::Shm => Some(dafs.id()),
                Way::Libnfs => ganesha.map(Ganesha::id),
            };
            let target = run.way.arguments(programs, export, &dafs.address);
            let once = || run::once(plan, programs, &target, run.load, run.depth, server);
            let measured = match run.way {
                Way::Libnfs => (0..TRIES).find_map(|_| once().ok().flatten()),
                _ => once().with_context(|| run.name())?,
            };
            let Some((sample, latency)) = measured else {
                ensure!(run.way == Way::Libnfs, "{}: fio does not end", run.name());
                run.failed = true;
                continue;
            };
            run.samples.push(sample);
            run.latencies.push(latency);
        }
        let bytes = std::fs::metadata(export.join(FILE))?.len();
        ensure!(bytes == FILE_BYTES, "the file has {bytes} bytes now");
    }
    Ok(())
}

/// Prints the tables, and the latencies of all.
fn print(report: &mut Report, place: &str, runs: &[Run], with_ganesha: bool) {
    // At depth 1 the floor is the engine that most programs correspond to.
    let local = |depth| if depth == 1 { Way::Psync } else { Way::IoUring };
    let others = [Way::Psync, Way::IoUring];
    report.add(&format!("fio, against local files, {place}"), &cases(runs, &others, local));
    if with_ganesha {
        let cases = cases(runs, &[Way::Libnfs], |_| Way::Libnfs);
        report.add(&format!("fio, against libnfs and NFS-Ganesha, {place}"), &cases);
    }
    println!("\nfio, latency");
    for run in runs {
        let latency = Latency::median(&run.latencies);
        let (mean, late) = (latency.mean_us, latency.percentile_99_us);
        let text = format!("mean {mean:.1} us, 99 % {late:.1} us");
        report.figure(&format!("{}, {place}", run.name()), mean, &text);
    }
}

/// The cases of our ways and of `others`, where ours are compared with `floor` at the same depth.
fn cases(runs: &[Run], others: &[Way], floor: impl Fn(usize) -> Way) -> Vec<Case> {
    let ours = |run: &&Run| OURS.contains(&run.way) || others.contains(&run.way);
    let case = |run: &Run| Case {
        name: run.name(),
        floor: OURS.contains(&run.way).then(|| name(floor(run.depth), run.load, run.depth).into()),
        target: None,
        measure: Measure::Elapsed,
        samples: run.samples.clone(),
    };
    runs.iter().filter(ours).map(case).collect()
}
