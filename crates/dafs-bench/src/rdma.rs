//! NFS over RDMA against NFS over TCP: one server, one client, three transports, in turn.
//!
//! After figures 15 to 18 of the paper that proposed NFS over RDMA in 2003: sequential and random
//! reads and writes of blocks of several sizes, with none to many read-aheads, for versions 3 and
//! 4.1. Every combination runs over TCP, over iWARP and over shared memory within milliseconds, so
//! that the ratios are meaningful on a machine with other load.

use crate::child::Process;
use crate::folder::Folder;
use crate::plot::{self, Line, Panel};
use crate::report::{Case, Report, Row, Sample};
use crate::{Plan, cpu};
use anyhow::{Context, Result};
use dafs_nfs_client::mount::{
    File, Memory, Mount, MountOptions, NfsUrl, OpenOptions, PendingRead, PendingWrite, StableHow,
};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::collections::VecDeque;
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

/// Size of the file; it fits the page cache of any machine.
const FILE_BYTES: u64 = 128 << 20;

const BLOCKS: [usize; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
const READ_AHEADS: [usize; 6] = [0, 1, 2, 4, 8, 16];
const VERSIONS: [&str; 2] = ["3", "4.1"];

/// The first one is the floor of the others.
const TRANSPORTS: [&str; 3] = ["tcp", "iwarp", "shm"];

/// The values shown in the table and fixed in the figures.
const SHOWN_READ_AHEADS: [usize; 2] = [0, 8];
const SHOWN_BLOCK: usize = 64 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) write: bool,
    pub(crate) random: bool,
}

const LOADS: [Load; 4] = [
    Load { write: false, random: false },
    Load { write: false, random: true },
    Load { write: true, random: false },
    Load { write: true, random: true },
];

impl Load {
    fn name(self) -> &'static str {
        match (self.write, self.random) {
            (false, false) => "sequential read",
            (false, true) => "random read",
            (true, false) => "sequential write",
            (true, true) => "random write",
        }
    }
}

pub(crate) fn kib(bytes: usize) -> String {
    if bytes >= 1 << 20 { format!("{} MiB", bytes >> 20) } else { format!("{} KiB", bytes >> 10) }
}

fn case_name(transport: &str, load: Load, block: usize, read_ahead: usize) -> String {
    format!("{transport} {} {} read-ahead {read_ahead}", load.name(), kib(block))
}

pub(crate) fn measure(plan: &Plan, report: &mut Report, figures: &Path) -> Result<()> {
    // On tmpfs: on a disk, the benchmark would measure the disk.
    let directory = Folder::make(Path::new("/dev/shm"))?;
    let export = directory.path().join("export");
    std::fs::create_dir_all(&export)?;
    let content: Vec<u8> = (0..FILE_BYTES / 8).flat_map(u64::to_le_bytes).collect();
    std::fs::write(export.join("data"), &content)?;
    for (name, together) in [("both ends on one CPU", true), ("own CPUs", false)] {
        let server_cpu = if together || cpu::cpu_count() < 2 { 0 } else { 1 };
        let server = Process::serve_nfs(&export, server_cpu)?;
        cpu::pin(0)?;
        for version in VERSIONS {
            let cases = rounds(plan, &server, version)?;
            let group = format!("NFS {version} over TCP and RDMA, {name}");
            let from = report.rows().len();
            report.add_quietly(&group, &cases);
            let rows = &report.rows()[from..];
            print_table(&group, rows);
            if together {
                draw(version, rows, figures)?;
            }
        }
        cpu::unpin()?;
    }
    Ok(())
}

/// One mount for each transport with the file open.
pub(crate) struct Target {
    mount: Mount,
    file: File,
    memory: Memory,
    file_bytes: u64,
}

impl Target {
    /// Mounts, opens the first `file_bytes` of a file, and takes memory for as many bytes under way.
    pub(crate) fn connect(url: &str, file_bytes: u64, memory_bytes: usize) -> Result<Self> {
        let url = NfsUrl::parse(url)?;
        let mount = Mount::connect(&url, &MountOptions::default())
            .with_context(|| format!("cannot mount {url}"))?;
        let file = mount.open(url.path(), &OpenOptions::read_write())?;
        let memory = mount.allocate(memory_bytes)?;
        Ok(Self { mount, file, memory, file_bytes })
    }

    /// Starts a read into a part of its memory.
    pub(crate) fn fetch(&self, place: Range<usize>, offset: u64) -> Result<PendingRead> {
        let memory = self.memory.slice(place).context("too little memory")?;
        Ok(self.file.submit_read(memory, offset)?)
    }

    /// All of its memory.
    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }
}

fn targets(server: &Process, version: &str) -> Result<Vec<Target>> {
    let (tcp, rdma) = server.address.split_once(' ').context("the server has no RDMA port")?;
    let connect = |transport: &&str| {
        let url = match *transport {
            "tcp" => format!("nfs://{tcp}/data?vers={version}"),
            other => format!("nfs+rdma://{rdma}/data?vers={version}&transport={other}"),
        };
        Target::connect(&url, FILE_BYTES, BLOCKS[BLOCKS.len() - 1] * (READ_AHEADS[5] + 1))
    };
    TRANSPORTS.iter().map(connect).collect()
}

fn rounds(plan: &Plan, server: &Process, version: &str) -> Result<Vec<Case>> {
    let targets = targets(server, version)?;
    let mut cases = Vec::new();
    let mut work = Vec::new();
    for load in LOADS {
        for block in BLOCKS {
            for read_ahead in READ_AHEADS {
                if !case_name("", load, block, read_ahead).contains(&plan.only) {
                    continue;
                }
                for (index, transport) in TRANSPORTS.into_iter().enumerate() {
                    let floor = case_name(TRANSPORTS[0], load, block, read_ahead);
                    let name = case_name(transport, load, block, read_ahead);
                    let floor = (index > 0).then(|| floor.into());
                    cases.push(Case { floor, ..Case::new(name, None, None) });
                    work.push((index, load, block, read_ahead));
                }
            }
        }
    }
    // There are hundreds of cases, so each is short.
    let time = Duration::from_millis(plan.milliseconds / 6 + 1);
    for _ in 0..plan.rounds {
        for (case, &(index, load, block, read_ahead)) in cases.iter_mut().zip(&work) {
            let sample = run(&targets[index], load, block, read_ahead + 1, time, server.id());
            case.samples.push(sample.with_context(|| case.name.clone())?);
        }
    }
    for target in targets {
        target.file.close()?;
        drop(target.mount);
    }
    Ok(cases)
}

enum Pending {
    Read(PendingRead),
    Write(PendingWrite),
}

/// Repeats a load for `time` with `depth` transfers under way. `server` is the server's process id.
pub(crate) fn run(
    target: &Target,
    load: Load,
    block: usize,
    depth: usize,
    time: Duration,
    server: u32,
) -> Result<Sample> {
    let mut random = SmallRng::seed_from_u64(1);
    let mut waiting = VecDeque::with_capacity(depth);
    let blocks = target.file_bytes / block as u64;
    let (mut operations, mut submitted) = (0u64, 0u64);
    let work = || {
        let began = Instant::now();
        loop {
            // At least one transfer, however late this thread runs.
            while waiting.len() < depth && (submitted == 0 || began.elapsed() < time) {
                let number =
                    if load.random { random.random_range(0..blocks) } else { submitted % blocks };
                let at = (submitted as usize % depth) * block;
                let memory = target.memory.slice(at..at + block).context("too little memory")?;
                let offset = number * block as u64;
                waiting.push_back(if load.write {
                    Pending::Write(target.file.submit_write(memory, offset, StableHow::Unstable)?)
                } else {
                    Pending::Read(target.file.submit_read(memory, offset)?)
                });
                submitted += 1;
            }
            let Some(pending) = waiting.pop_front() else { break };
            match pending {
                Pending::Read(pending) => anyhow::ensure!(pending.wait()? == block, "a short read"),
                Pending::Write(pending) => {
                    anyhow::ensure!(pending.wait()?.bytes == block, "a short write");
                }
            }
            operations += 1;
        }
        Ok((operations, operations * block as u64))
    };
    Sample::of(|| cpu::times(Some(server)), work)
}

fn find<'a>(
    rows: &'a [Row],
    transport: &str,
    load: Load,
    block: usize,
    read_ahead: usize,
) -> Option<&'a Row> {
    let name = case_name(transport, load, block, read_ahead);
    rows.iter().find(|row| row.case == name)
}

/// Processor time in microseconds for a mebibyte.
fn client_per_mebibyte(row: &Row, block: usize) -> f64 {
    row.client_cpu_microseconds * f64::from(1 << 20) / block as f64
}

fn print_table(group: &str, rows: &[Row]) {
    println!("\n{group}");
    println!(
        "| load | block | read-ahead | TCP MB/s | iwarp | shm | client us: TCP | iwarp | shm | server us: TCP | iwarp | shm |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|");
    for load in LOADS {
        for block in BLOCKS {
            for read_ahead in SHOWN_READ_AHEADS {
                let found = TRANSPORTS.map(|name| find(rows, name, load, block, read_ahead));
                let [Some(tcp), Some(iwarp), Some(shm)] = found else { continue };
                let times = |row: &Row| format!("{:.2} x", 1.0 / row.ratio.unwrap_or(f64::NAN));
                let us = |row: &Row, side: fn(&Row) -> f64| format!("{:.1}", side(row));
                let client = |row: &Row| us(row, |row| row.client_cpu_microseconds);
                let server = |row: &Row| us(row, |row| row.server_cpu_microseconds);
                println!(
                    "| {} | {} | {read_ahead} | {:.0} | {} | {} | {} | {} | {} | {} | {} | {} |",
                    load.name(),
                    kib(block),
                    tcp.gigabytes_per_second * 1000.0,
                    times(iwarp),
                    times(shm),
                    client(tcp),
                    client(iwarp),
                    client(shm),
                    server(tcp),
                    server(iwarp),
                    server(shm),
                );
            }
        }
    }
}

/// Draws throughput and the client's processor time, over block sizes and over read-aheads.
fn draw(version: &str, rows: &[Row], directory: &Path) -> Result<()> {
    std::fs::create_dir_all(directory)?;
    let panels = |points: &[(usize, usize)]| -> Vec<Panel> {
        let lines = |load: Load, value: fn(&Row, usize) -> f64| {
            let line = |name: &'static str| {
                let values = points.iter().map(|&(block, read_ahead)| {
                    find(rows, name, load, block, read_ahead)
                        .map_or(f64::NAN, |row| value(row, block))
                });
                Line { name, values: values.collect() }
            };
            TRANSPORTS.into_iter().map(line).collect()
        };
        let sequential = LOADS.into_iter().filter(|load| !load.random);
        let pair = |load: Load| {
            [
                Panel {
                    title: format!("{}, throughput", load.name()),
                    unit: "MB/s",
                    lines: lines(load, |row, _| row.gigabytes_per_second * 1000.0),
                },
                Panel {
                    title: format!("{}, client CPU", load.name()),
                    unit: "us per MiB",
                    lines: lines(load, client_per_mebibyte),
                },
            ]
        };
        sequential.flat_map(pair).collect()
    };
    let by_block: Vec<_> = BLOCKS.iter().map(|&block| (block, SHOWN_READ_AHEADS[1])).collect();
    let by_read_ahead: Vec<_> = READ_AHEADS.iter().map(|&count| (SHOWN_BLOCK, count)).collect();
    let short = version.replace('.', "");
    let blocks: Vec<_> = BLOCKS.iter().map(|&block| kib(block)).collect();
    let title =
        format!("NFS {version}, both ends on one CPU, {} read-aheads", SHOWN_READ_AHEADS[1]);
    let svg = plot::draw(&title, &blocks, &panels(&by_block));
    std::fs::write(directory.join(format!("nfs{short}-blocks.svg")), svg)?;
    let counts: Vec<_> = READ_AHEADS.iter().map(|count| format!("{count} ahead")).collect();
    let title = format!("NFS {version}, both ends on one CPU, blocks of {}", kib(SHOWN_BLOCK));
    let svg = plot::draw(&title, &counts, &panels(&by_read_ahead));
    std::fs::write(directory.join(format!("nfs{short}-read-ahead.svg")), svg)?;
    Ok(())
}
