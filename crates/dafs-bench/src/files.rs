//! Files through client and server, against the same file read and written locally.

use crate::child::Process;
use crate::report::{Case, Report, Sample};
use crate::targets::Target;
use crate::{Plan, cpu, tcp};
use anyhow::{Context, Result, ensure};
use dafs_client::limits::INLINE_BYTES_DEFAULT;
use dafs_client::{
    Client, Completion, ConnectOptions, DafsUrl, File, IoBuffer, OpenOptions, Stability,
    TransportChoice, WaitPolicy,
};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The file is small enough to stay in the page cache of any machine.
pub(crate) const FILE_BYTES: u64 = 256 << 20;
const SMALL: usize = 4096;
const LARGE: usize = 1 << 20;
/// The longest writes that travel inside messages by default.
const INLINE: usize = INLINE_BYTES_DEFAULT as usize;
/// Writes of a batch.
pub(crate) const BATCH: usize = 64;
/// Bytes of a request and of a reply of a 4 KiB inline read on the wire, for the TCP floor.
const WIRE_REQUEST: usize = 152;
const WIRE_REPLY: usize = SMALL + 72;

/// The operation that is repeated.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Load {
    Read {
        bytes: usize,
        depth: usize,
        random: bool,
    },
    Write {
        bytes: usize,
        depth: usize,
    },
    /// Writes that iWARP carries inside messages, with padding or without.
    Inline {
        bytes: usize,
        padded: bool,
    },
    /// Small writes at random places: this many outstanding, or in one batch.
    Scattered {
        depth: usize,
        batch: bool,
    },
}

impl Load {
    pub(crate) fn bytes(self) -> usize {
        match self {
            Load::Read { bytes, .. } | Load::Write { bytes, .. } | Load::Inline { bytes, .. } => {
                bytes
            }
            Load::Scattered { .. } => SMALL,
        }
    }

    pub(crate) fn depth(self) -> usize {
        match self {
            Load::Read { depth, .. }
            | Load::Write { depth, .. }
            | Load::Scattered { depth, .. } => depth,
            Load::Inline { .. } => BATCH,
        }
    }
}

pub(crate) const READ_1: Load = Load::Read { bytes: SMALL, depth: 1, random: true };
pub(crate) const READ_32: Load = Load::Read { bytes: SMALL, depth: 32, random: true };
const READ_16K: Load = Load::Read { bytes: 16 << 10, depth: 32, random: true };
const STREAM_READ: Load = Load::Read { bytes: LARGE, depth: 8, random: false };
const STREAM_WRITE: Load = Load::Write { bytes: LARGE, depth: 8 };
const INLINE_4K: Load = Load::Inline { bytes: SMALL, padded: false };
const INLINE_4K_PADDED: Load = Load::Inline { bytes: SMALL, padded: true };
const INLINE_8K: Load = Load::Inline { bytes: INLINE, padded: false };
const INLINE_8K_PADDED: Load = Load::Inline { bytes: INLINE, padded: true };
const WRITE_64: Load = Load::Scattered { depth: BATCH, batch: false };
const WRITE_BATCH: Load = Load::Scattered { depth: BATCH, batch: true };

/// A way to run a load.
enum Way {
    Local(Load),
    Tcp { request: usize, reply: usize, depth: usize },
    Dafs { transport: TransportChoice, load: Load },
}

pub(crate) fn measure(plan: &Plan, report: &mut Report) -> Result<()> {
    let directory = tempfile::Builder::new().prefix("dafs-bench").tempdir()?;
    let export = prepare(directory.path())?;
    let apart = [("poll", false), ("sleep", false)];
    let groups = apart.into_iter().chain([("adaptive", true)]);
    for (wake, together) in groups.filter(|(wake, _)| wake.contains(&plan.wake)) {
        group(plan, report, &export, wake, together)?;
    }
    cpu::unpin()
}

/// Makes an export with the file of the loads.
pub(crate) fn prepare(folder: &Path) -> Result<PathBuf> {
    let export = folder.join("export");
    std::fs::create_dir(&export)?;
    let content: Vec<u8> = (0..FILE_BYTES / 8).flat_map(u64::to_le_bytes).collect();
    std::fs::write(export.join("data"), &content)?;
    Ok(export)
}

fn group(
    plan: &Plan,
    report: &mut Report,
    export: &Path,
    wake: &'static str,
    together: bool,
) -> Result<()> {
    let server_cpu = if together || cpu::cpu_count() < 2 { 0 } else { 1 };
    cpu::pin(0)?;
    let poll = wake == "poll";
    let (iwarp, shm) = (TransportChoice::Iwarp, TransportChoice::Shm);
    let dafs = |transport, load| Way::Dafs { transport, load };
    let tcp = |depth| Way::Tcp { request: WIRE_REQUEST, reply: WIRE_REPLY, depth };
    let local_target = poll.then_some(Target::ratio(2.0));
    let mut list: Vec<(Case, Way)> = vec![
        (Case::new("local pread 4 KiB", None, None), Way::Local(READ_1)),
        (Case::new("tcp 4 KiB depth 1", None, None), tcp(1)),
        (
            Case::new(
                "iwarp read 4 KiB depth 1",
                Some("tcp 4 KiB depth 1"),
                Some(Target::ratio(1.15)),
            ),
            dafs(iwarp, READ_1),
        ),
        (
            Case::new("shm read 4 KiB depth 1", Some("local pread 4 KiB"), local_target),
            dafs(shm, READ_1),
        ),
        (Case::new("tcp 4 KiB depth 32", None, None), tcp(32)),
        (
            Case::new(
                "iwarp read 4 KiB depth 32",
                Some("tcp 4 KiB depth 32"),
                together.then_some(Target::rate(300_000.0)),
            ),
            dafs(iwarp, READ_32),
        ),
        (
            Case::new(
                "shm read 4 KiB depth 32",
                Some("local pread 4 KiB"),
                poll.then_some(Target::rate(700_000.0)),
            ),
            dafs(shm, READ_32),
        ),
        (Case::new("iwarp read 16 KiB depth 32", None, None), dafs(iwarp, READ_16K)),
        (Case::new("shm read 16 KiB depth 32", None, None), dafs(shm, READ_16K)),
        (Case::new("local pread 1 MiB", None, None), Way::Local(STREAM_READ)),
        (Case::new("local pwrite 1 MiB", None, None), Way::Local(STREAM_WRITE)),
        (
            Case::new("tcp stream in 1 MiB", None, None),
            Way::Tcp { request: WIRE_REQUEST, reply: LARGE, depth: 8 },
        ),
        (
            Case::new("tcp stream out 1 MiB", None, None),
            Way::Tcp { request: LARGE, reply: 64, depth: 2 },
        ),
        (
            Case::new("iwarp read 1 MiB", Some("tcp stream in 1 MiB"), Some(Target::ratio(1.11))),
            dafs(iwarp, STREAM_READ),
        ),
        (
            Case::new("iwarp write 1 MiB", Some("tcp stream out 1 MiB"), Some(Target::ratio(1.11))),
            dafs(iwarp, STREAM_WRITE),
        ),
        (
            Case::new("shm read 1 MiB", Some("local pread 1 MiB"), Some(Target::ratio(1.11))),
            dafs(shm, STREAM_READ),
        ),
        (
            Case::new("shm write 1 MiB", Some("local pwrite 1 MiB"), Some(Target::ratio(1.11))),
            dafs(shm, STREAM_WRITE),
        ),
        (Case::new("iwarp write 4 KiB depth 64", None, None), dafs(iwarp, WRITE_64)),
        (
            Case::new("iwarp write 4 KiB batch of 64", Some("iwarp write 4 KiB depth 64"), None),
            dafs(iwarp, WRITE_BATCH),
        ),
        (Case::new("shm write 4 KiB depth 64", None, None), dafs(shm, WRITE_64)),
        (
            Case::new("shm write 4 KiB batch of 64", Some("shm write 4 KiB depth 64"), None),
            dafs(shm, WRITE_BATCH),
        ),
    ];
    list.extend(padding());
    list.retain(|(case, _)| case.name.contains(&plan.only));
    for _ in 0..plan.rounds {
        for (case, way) in &mut list {
            let sample = match *way {
                Way::Local(load) => local(plan, export, load)?,
                Way::Tcp { request, reply, depth } => {
                    tcp::measure(plan, server_cpu, poll, request, reply, depth)?
                }
                Way::Dafs { transport, load } => {
                    remote(plan, export, server_cpu, wake, transport, load)
                        .with_context(|| case.name.clone())?
                }
            };
            case.samples.push(sample);
        }
    }
    let place = if together { "both ends on one CPU" } else { "own CPUs" };
    let cases: Vec<Case> = list.into_iter().map(|(case, _)| case).collect();
    report.add(&format!("files, cached: {wake}, {place}"), &cases);
    Ok(())
}

/// Writes inside messages, each with padding right behind its counterpart. Shared memory carries no
/// write inside a message, so its pairs show the noise.
fn padding() -> impl Iterator<Item = (Case, Way)> {
    let (iwarp, shm) = (TransportChoice::Iwarp, TransportChoice::Shm);
    let pairs = [
        ("iwarp inline write 4 KiB", None, iwarp, INLINE_4K),
        (
            "iwarp inline write 4 KiB padded",
            Some("iwarp inline write 4 KiB"),
            iwarp,
            INLINE_4K_PADDED,
        ),
        ("iwarp inline write 8 KiB", None, iwarp, INLINE_8K),
        (
            "iwarp inline write 8 KiB padded",
            Some("iwarp inline write 8 KiB"),
            iwarp,
            INLINE_8K_PADDED,
        ),
        ("shm write 4 KiB, not inline", None, shm, INLINE_4K),
        (
            "shm write 4 KiB, not inline, padded",
            Some("shm write 4 KiB, not inline"),
            shm,
            INLINE_4K_PADDED,
        ),
        ("shm write 8 KiB, not inline", None, shm, INLINE_8K),
        (
            "shm write 8 KiB, not inline, padded",
            Some("shm write 8 KiB, not inline"),
            shm,
            INLINE_8K_PADDED,
        ),
    ];
    pairs.into_iter().map(|(name, floor, transport, load)| {
        (Case::new(name, floor, None), Way::Dafs { transport, load })
    })
}

/// Offsets of a load: random ones, or one after the other.
struct Offsets {
    rng: SmallRng,
    next: u64,
    bytes: u64,
    random: bool,
}

impl Offsets {
    fn new(load: Load) -> Self {
        let random = matches!(load, Load::Read { random: true, .. } | Load::Scattered { .. });
        Self { rng: SmallRng::seed_from_u64(1), next: 0, bytes: load.bytes() as u64, random }
    }

    fn take(&mut self) -> u64 {
        let slots = FILE_BYTES / self.bytes;
        let slot = if self.random { self.rng.random_range(0..slots) } else { self.next % slots };
        self.next += 1;
        slot * self.bytes
    }
}

fn local(plan: &Plan, export: &Path, load: Load) -> Result<Sample> {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(export.join("data"))?;
    // As many buffers as the client has, so that both touch as much memory.
    let mut buffers = vec![5; load.bytes() * load.depth()];
    let mut offsets = Offsets::new(load);
    let work = || {
        let (start, until) = (Instant::now(), Duration::from_millis(plan.milliseconds));
        let mut operations = 0;
        while operations & 15 != 0 || start.elapsed() < until {
            let offset = offsets.take();
            let slot = operations as usize % load.depth();
            let buffer = &mut buffers[slot * load.bytes()..][..load.bytes()];
            match load {
                Load::Read { .. } => file.read_exact_at(buffer, offset)?,
                Load::Write { .. } | Load::Inline { .. } | Load::Scattered { .. } => {
                    file.write_all_at(buffer, offset)?;
                }
            }
            operations += 1;
        }
        Ok((operations, operations * load.bytes() as u64))
    };
    Sample::of(|| cpu::times(None), work)
}

pub(crate) fn remote(
    plan: &Plan,
    export: &Path,
    server_cpu: usize,
    wake: &str,
    transport: TransportChoice,
    load: Load,
) -> Result<Sample> {
    let process = Process::serve(export, server_cpu, wake)?;
    let url = DafsUrl::parse(&format!("{}data", process.address))?;
    let wait = match wake {
        "poll" => WaitPolicy::Poll,
        "sleep" => WaitPolicy::Sleep,
        _ => WaitPolicy::default(),
    };
    let inline_padding = matches!(load, Load::Inline { padded: true, .. });
    let options = ConnectOptions { transport, wait, inline_padding, ..ConnectOptions::default() };
    let client = Client::connect(&url, &options)?;
    let file = client.open(url.path(), &OpenOptions::read_write())?;
    let buffer = client.buffer(load.bytes() * load.depth())?;
    run(&client, &file, &buffer, load, Duration::from_millis(20))?;
    let time = Duration::from_millis(plan.milliseconds);
    let sample = Sample::of(
        || cpu::times(Some(process.id())),
        || {
            let operations = run(&client, &file, &buffer, load, time)?;
            Ok((operations, operations * load.bytes() as u64))
        },
    )?;
    file.close()?;
    client.disconnect()?;
    Ok(sample)
}

/// Keeps `depth` operations outstanding for `time`; returns how many completed.
pub(crate) fn run(
    client: &Client,
    file: &File,
    buffer: &IoBuffer,
    load: Load,
    time: Duration,
) -> Result<u64> {
    let bytes = load.bytes();
    let mut offsets = Offsets::new(load);
    if load == WRITE_BATCH {
        return run_batches(client, file, buffer, offsets, time);
    }
    let group = client.completion_group();
    let mut submit = |slot: usize| -> Result<()> {
        let (range, offset) = (slot * bytes..(slot + 1) * bytes, offsets.take());
        match load {
            Load::Read { .. } => group.read(slot as u64, file, buffer, range, offset)?,
            Load::Write { .. } | Load::Inline { .. } | Load::Scattered { .. } => {
                group.write(slot as u64, file, buffer, range, offset, Stability::Unstable)?
            }
        };
        Ok(())
    };
    let start = Instant::now();
    let mut done = Vec::with_capacity(load.depth());
    let (mut operations, mut in_flight) = (0, 0);
    for slot in 0..load.depth() {
        submit(slot)?;
        in_flight += 1;
    }
    while in_flight > 0 {
        done.clear();
        group.wait(&mut done, 1, None)?;
        let more = start.elapsed() < time;
        for Completion { user_data: slot, result, .. } in &done {
            ensure!(
                *result.as_ref().map_err(|e| anyhow::anyhow!("{e}"))? == bytes,
                "short transfer"
            );
            operations += 1;
            in_flight -= 1;
            if more {
                submit(*slot as usize)?;
                in_flight += 1;
            }
        }
    }
    Ok(operations)
}

/// One batch after the other for `time`; returns the number of writes.
fn run_batches(
    client: &Client,
    file: &File,
    buffer: &IoBuffer,
    mut offsets: Offsets,
    time: Duration,
) -> Result<u64> {
    let start = Instant::now();
    let mut operations = 0;
    while start.elapsed() < time {
        let mut batch = client.batch();
        for slot in 0..BATCH {
            let from = (buffer, slot * SMALL..(slot + 1) * SMALL);
            batch.write(file, &[(offsets.take(), SMALL)], &[from])?;
        }
        for result in batch.run()? {
            ensure!(result? == SMALL, "short transfer");
            operations += 1;
        }
    }
    Ok(operations)
}
