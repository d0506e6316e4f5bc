//! Reads of the Python package against those of the library below it.
//!
//! Both read the same file of the same server, one after the other in every round, with one
//! outstanding read. The whole difference is therefore Python's.

mod interpreter;

use crate::child::Process;
use crate::files::{FILE_BYTES, prepare};
use crate::report::{Case, Report, Sample};
use crate::targets::Target;
use crate::{Plan, cpu};
use anyhow::{Context, Result, ensure};
use dafs_client::{Client, ConnectOptions, DafsUrl, File, OpenOptions, TransportChoice};
pub(crate) use interpreter::Interpreter;
use std::time::{Duration, Instant};

const SIZES: [(&str, usize); 3] = [("64 KiB", 64 << 10), ("1 MiB", 1 << 20), ("4 MiB", 4 << 20)];
const TARGET: Target = Target::ratio(1.1);

/// The target memory of a read.
#[derive(Clone, Copy)]
enum Memory {
    /// Memory from the client: `Client.buffer`.
    Own,
    /// Memory of the program: a `bytearray`, or a slice of a vector.
    Any,
    /// A new object for every read: `bytes`, or a vector.
    New,
}

impl Memory {
    fn name(self) -> &'static str {
        match self {
            Self::Own => "own",
            Self::Any => "any",
            Self::New => "new",
        }
    }
}

struct Load {
    transport: TransportChoice,
    memory: Memory,
    bytes: usize,
    python: bool,
}

pub(crate) fn measure(plan: &Plan, report: &mut Report) -> Result<()> {
    let Some(interpreter) = Interpreter::find()? else {
        println!(
            "\npython: not measured; it needs python3, and what this builds: cargo build --release -p \
             dafs-python"
        );
        return Ok(());
    };
    let directory = tempfile::Builder::new().prefix("dafs-bench").tempdir()?;
    let export = prepare(directory.path())?;
    let mut list = list();
    list.retain(|(case, _)| case.name.contains(&plan.only));
    cpu::pin(0)?;
    let server_cpu = usize::from(cpu::cpu_count() > 1);
    for _ in 0..plan.rounds {
        for (case, load) in &mut list {
            let process = Process::serve(&export, server_cpu, "adaptive")?;
            let sample = match load.python {
                true => interpreter.run(plan, &process, load),
                false => rust(plan, &process, load),
            };
            case.samples.push(sample.with_context(|| case.name.clone())?);
        }
    }
    cpu::unpin()?;
    let cases: Vec<Case> = list.into_iter().map(|(case, _)| case).collect();
    report.add("Python against Rust, one read in flight", &cases);
    Ok(())
}

fn list() -> Vec<(Case, Load)> {
    let mut list = Vec::new();
    for transport in [TransportChoice::Iwarp, TransportChoice::Shm] {
        for (size, bytes) in SIZES {
            for memory in [Memory::Own, Memory::Any, Memory::New] {
                let words = format!("{} {size} {}", word(transport), memory.name());
                let floor = format!("{words}, Rust");
                let load = |python| Load { transport, memory, bytes, python };
                list.push((Case::new(floor.clone(), None, None), load(false)));
                let mut case = Case::new(format!("{words}, Python"), None, Some(TARGET));
                case.floor = Some(floor.into());
                list.push((case, load(true)));
            }
        }
    }
    list
}

fn word(transport: TransportChoice) -> &'static str {
    match transport {
        TransportChoice::Shm => "shm",
        _ => "iwarp",
    }
}

fn rust(plan: &Plan, process: &Process, load: &Load) -> Result<Sample> {
    let url = DafsUrl::parse(&format!("{}data", process.address))?;
    let options = ConnectOptions { transport: load.transport, ..ConnectOptions::default() };
    let client = Client::connect(&url, &options)?;
    let file = client.open(url.path(), &OpenOptions::read())?;
    read(&client, &file, load, Duration::from_millis(20))?;
    let time = Duration::from_millis(plan.milliseconds);
    let sample = Sample::of(
        || cpu::times(Some(process.id())),
        || {
            let operations = read(&client, &file, load, time)?;
            Ok((operations, operations * load.bytes as u64))
        },
    )?;
    file.close()?;
    client.disconnect()?;
    Ok(sample)
}

fn read(client: &Client, file: &File, load: &Load, time: Duration) -> Result<u64> {
    let own = client.buffer(load.bytes)?;
    let mut any = vec![0; load.bytes];
    let (start, mut operations) = (Instant::now(), 0);
    while start.elapsed() < time {
        let offset = operations * load.bytes as u64 % FILE_BYTES;
        let count = match load.memory {
            Memory::Own => file.read_into(&own, 0..load.bytes, offset)?,
            Memory::Any => in_place(client, file, &mut any, load, offset)?,
            Memory::New => in_place(client, file, &mut vec![0; load.bytes], load, offset)?,
        };
        ensure!(count == load.bytes, "short read");
        operations += 1;
    }
    Ok(operations)
}

/// As the documentation advises: over shared memory, the program's own memory is copied anyway.
fn in_place(
    client: &Client,
    file: &File,
    target: &mut [u8],
    load: &Load,
    offset: u64,
) -> Result<usize> {
    if load.transport == TransportChoice::Shm {
        return Ok(file.read_at(target, offset)?);
    }
    // SAFETY: the memory outlives the buffer, and no code accesses it during the read.
    let buffer = unsafe { client.register(target.as_mut_ptr(), target.len())? };
    Ok(file.read_into(&buffer, 0..load.bytes, offset)?)
}
