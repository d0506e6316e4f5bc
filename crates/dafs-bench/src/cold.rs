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
use crate::{Plan, cpu, nfs4};
use anyhow::{Context, Result};
use dafs_client::{Client, ConnectOptions, DafsUrl, OpenOptions, TransportChoice, WaitPolicy};
use dafs_engine::ReadRing;
use rustix::fs::Advice;
use std::borrow::Cow;
use std::net::Ipv4Addr;
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
    let mut rows = nfs_rows();
    rows.retain(|row| row.case.name.contains(&plan.only));
    for _ in 0..plan.rounds {
        for row in &mut rows {
            let sample = nfs_sample(plan, &export, row)?;
            row.case.samples.push(sample);
        }
    }
    let cases: Vec<Case> = rows.into_iter().map(|row| row.case).collect();
    report.add("reads from the disk by NFSv4.1: own CPUs", &cases);
    cpu::unpin()
}

fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for (medium, transport) in [("iwarp", TransportChoice::Iwarp), ("shm", TransportChoice::Shm)] {
        for load in [READ_1, READ_32] {
            let cases = pair(&format!("{medium} read 4 KiB"), load.depth());
            rows.extend(cases.map(|(case, way)| Row { case, way, transport, load }));
        }
    }
    rows
}

/// Returns the cases of both ways.
fn pair(name: &str, depth: usize) -> [(Case, Way); 2] {
    let name = |way| format!("{name} depth {depth}, {way}");
    let target = (depth == 32).then_some(Target::ratio(0.8));
    let mut ring = Case::new(name("io_uring"), None, target);
    ring.floor = Some(Cow::Owned(name("pool")));
    ring.measure = Measure::ServerCpu;
    [(Case::new(name("pool"), None, None), Way::Pool), (ring, Way::Ring)]
}

/// A case of NFS over TCP.
struct NfsRow {
    case: Case,
    way: Way,
    depth: usize,
}

fn nfs_rows() -> Vec<NfsRow> {
    let rows = |depth| pair("nfs read 4 KiB", depth).map(|(case, way)| NfsRow { case, way, depth });
    [1, 32].into_iter().flat_map(rows).collect()
}

fn nfs_sample(plan: &Plan, export: &Path, row: &NfsRow) -> Result<Sample> {
    let server_cpu = if cpu::cpu_count() < 2 { 0 } else { 1 };
    cpu::pin(0)?;
    // The server must not wait for clients of the last run.
    let _ = std::fs::remove_dir_all(export.with_extension("state"));
    let process = match row.way {
        Way::Pool => Process::serve_nfs_by_pool(export, server_cpu)?,
        Way::Ring => Process::serve_nfs(export, server_cpu)?,
    };
    let client = nfs4::Client::open((Ipv4Addr::LOCALHOST, process.port()?).into(), "")?;
    // The threads of the pool are started, and the ways of the code are known.
    client.run(nfs4::READ_4K, row.depth, 20, process.id())?;
    drop_pages(&export.join("data"))?;
    client.run(nfs4::READ_4K, row.depth, plan.milliseconds, process.id())
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
