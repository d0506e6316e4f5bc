//! Random reads of a file that is not in the page cache, by the kernel's ring (io_uring) against the
//! pool: the processor time of the server for each, and time.
//!
//! Each way has a server of its own in each round. Before each sample the kernel drops the pages of the
//! file. A page that a sample reads again is in memory by then. The faster way has more of these, so
//! samples should be short: on a disk with 30000 reads in a second, 7 % of 300 ms.

use crate::child::Process;
use crate::files::{self, Load, READ_1, READ_32};
use crate::report::{Case, Measure, Report, Sample};
use crate::targets::Target;
use crate::{Plan, cpu};
use anyhow::{Context, Result};
use dafs_client::{Client, ConnectOptions, DafsUrl, OpenOptions, TransportChoice, WaitPolicy};
use dafs_engine::ReadRing;
use rustix::fs::Advice;
use std::borrow::Cow;
use std::path::Path;
use std::time::Duration;

/// A way of a server to the disk.
enum Way {
    Pool,
    Ring,
}

/// A case of a group.
struct Row {
    case: Case,
    way: Way,
    transport: TransportChoice,
    load: Load,
}

pub(crate) fn measure(plan: &Plan, report: &mut Report) -> Result<()> {
    if let Err(error) = ReadRing::new() {
        let error = anyhow::Error::new(error).context("this kernel or container has no io_uring");
        report.failed("cold", &error);
        return Ok(());
    }
    let mut builder = tempfile::Builder::new();
    let builder = builder.prefix("dafs-bench");
    let directory = match &plan.disk {
        Some(disk) => builder.tempdir_in(disk),
        None => builder.tempdir(),
    };
    let directory = directory.context("there is no folder for the file of the benchmark")?;
    let export = files::prepare(directory.path())?;
    for wake in ["sleep", "adaptive"].into_iter().filter(|wake| wake.contains(&plan.wake)) {
        let mut rows = rows();
        rows.retain(|row| row.case.name.contains(&plan.only));
        for _ in 0..plan.rounds {
            for row in &mut rows {
                let sample = sample(plan, &export, wake, row)?;
                row.case.samples.push(sample);
            }
        }
        let cases: Vec<Case> = rows.into_iter().map(|row| row.case).collect();
        report.add(&format!("reads from the disk: {wake}, own CPUs"), &cases);
    }
    cpu::unpin()
}

fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for (medium, transport) in [("iwarp", TransportChoice::Iwarp), ("shm", TransportChoice::Shm)] {
        for load in [READ_1, READ_32] {
            let name = |way| format!("{medium} read 4 KiB depth {}, {way}", load.depth());
            rows.push(Row {
                case: Case::new(name("pool"), None, None),
                way: Way::Pool,
                transport,
                load,
            });
            let target = (load == READ_32).then_some(Target::ratio(0.8));
            let mut case = Case::new(name("io_uring"), None, target);
            case.floor = Some(Cow::Owned(name("pool")));
            case.measure = Measure::ServerCpu;
            rows.push(Row { case, way: Way::Ring, transport, load });
        }
    }
    rows
}

fn sample(plan: &Plan, export: &Path, wake: &str, row: &Row) -> Result<Sample> {
    let server_cpu = if cpu::cpu_count() < 2 { 0 } else { 1 };
    cpu::pin(0)?;
    let process = match row.way {
        Way::Pool => Process::serve_by_pool(export, server_cpu, wake)?,
        Way::Ring => Process::serve(export, server_cpu, wake)?,
    };
    let url = DafsUrl::parse(&format!("{}data", process.address))?;
    let wait = if wake == "sleep" { WaitPolicy::Sleep } else { WaitPolicy::default() };
    let options = ConnectOptions { transport: row.transport, wait, ..ConnectOptions::default() };
    let client = Client::connect(&url, &options)?;
    let file = client.open(url.path(), &OpenOptions::read())?;
    let buffer = client.buffer(row.load.bytes() * row.load.depth())?;
    // The threads of the pool are started, and the ways of the code are known.
    files::run(&client, &file, &buffer, row.load, Duration::from_millis(20))?;
    drop_pages(&export.join("data"))?;
    let time = Duration::from_millis(plan.milliseconds);
    let sample = Sample::of(
        || cpu::times(Some(process.id())),
        || {
            let operations = files::run(&client, &file, &buffer, row.load, time)?;
            Ok((operations, operations * row.load.bytes() as u64))
        },
    )?;
    file.close()?;
    client.disconnect()?;
    Ok(sample)
}

/// Drops the pages of a file from the kernel's cache. Only clean ones can be dropped.
fn drop_pages(path: &Path) -> Result<()> {
    let file = std::fs::File::open(path)?;
    file.sync_all()?;
    Ok(rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)?)
}
