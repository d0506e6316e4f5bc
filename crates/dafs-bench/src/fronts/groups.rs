//! The cost of fetching results from a completion group, against waiting for each operation by
//! itself: with a blocking wait, by polling, and by its descriptor, as a program with an event loop
//! does.

use crate::child::Process;
use crate::files::{FILE_BYTES, prepare};
use crate::report::{Case, Report, Sample};
use crate::{Plan, cpu};
use anyhow::{Context, Result, ensure};
use dafs_client::{
    Client, CompletionGroup, ConnectOptions, DafsUrl, File, IoBuffer, OpenOptions, TransportChoice,
};
use rustix::event::{PollFd, PollFlags, poll};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

const PIECE: usize = 4096;
const DEPTHS: [usize; 2] = [1, 32];
const TRANSPORTS: [(&str, TransportChoice); 2] =
    [("iwarp", TransportChoice::Iwarp), ("shm", TransportChoice::Shm)];

/// The method of fetching results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fetch {
    /// Each operation by itself, the oldest first.
    Single,
    /// `CompletionGroup::wait` for any result.
    Wait,
    /// `CompletionGroup::poll`, over and over.
    Poll,
    /// `poll` of the system on the group's descriptor.
    Descriptor,
}

const FETCHES: [(&str, Fetch); 4] = [
    ("one by one", Fetch::Single),
    ("group, wait", Fetch::Wait),
    ("group, poll", Fetch::Poll),
    ("group, descriptor", Fetch::Descriptor),
];

struct Load {
    transport: TransportChoice,
    depth: usize,
    fetch: Fetch,
}

pub(super) fn measure(plan: &Plan, report: &mut Report) -> Result<()> {
    let mut list = list();
    list.retain(|(case, _)| case.name.contains(&plan.only));
    if list.is_empty() {
        return Ok(());
    }
    let directory = tempfile::Builder::new().prefix("dafs-bench").tempdir()?;
    let export = prepare(directory.path())?;
    cpu::pin(0)?;
    let server_cpu = usize::from(cpu::cpu_count() > 1);
    for _ in 0..plan.rounds {
        for (case, load) in &mut list {
            let process = Process::serve(&export, server_cpu, "adaptive")?;
            case.samples.push(run(plan, &process, load).with_context(|| case.name.clone())?);
        }
    }
    cpu::unpin()?;
    let cases: Vec<Case> = list.into_iter().map(|(case, _)| case).collect();
    report.add("reads of 4 KiB, how results are fetched", &cases);
    Ok(())
}

fn list() -> Vec<(Case, Load)> {
    let mut list = Vec::new();
    for (medium, transport) in TRANSPORTS {
        for depth in DEPTHS {
            let name = |words: &str| format!("{medium} depth {depth} {words}");
            for (words, fetch) in FETCHES {
                let floor = (fetch != Fetch::Single).then(|| name(FETCHES[0].0).into());
                let case = Case { floor, ..Case::new(name(words), None, None) };
                list.push((case, Load { transport, depth, fetch }));
            }
        }
    }
    list
}

fn run(plan: &Plan, process: &Process, load: &Load) -> Result<Sample> {
    let url = DafsUrl::parse(&format!("{}data", process.address))?;
    let options = ConnectOptions { transport: load.transport, ..ConnectOptions::default() };
    let client = Client::connect(&url, &options)?;
    let file = client.open(url.path(), &OpenOptions::read())?;
    let reader = Reader { buffer: client.buffer(load.depth * PIECE)?, file, depth: load.depth };
    reader.read(&client, load.fetch, Duration::from_millis(20))?;
    let time = Duration::from_millis(plan.milliseconds);
    let sample = Sample::of(
        || cpu::times(Some(process.id())),
        || {
            let operations = reader.read(&client, load.fetch, time)?;
            Ok((operations, operations * PIECE as u64))
        },
    )?;
    reader.file.close()?;
    client.disconnect()?;
    Ok(sample)
}

/// Keeps a number of reads outstanding.
struct Reader {
    file: File,
    buffer: IoBuffer,
    depth: usize,
}

impl Reader {
    fn read(&self, client: &Client, fetch: Fetch, time: Duration) -> Result<u64> {
        match fetch {
            Fetch::Single => self.one_by_one(time),
            _ => self.in_group(&client.completion_group(), fetch, time),
        }
    }

    /// The memory of an outstanding read, and the file offset of the read `number`.
    fn place(&self, slot: usize, number: u64) -> (std::ops::Range<usize>, u64) {
        let pieces = FILE_BYTES / PIECE as u64;
        // Far apart, and each once.
        let piece = number.wrapping_mul(40_503) % pieces;
        (slot * PIECE..(slot + 1) * PIECE, piece * PIECE as u64)
    }

    fn one_by_one(&self, time: Duration) -> Result<u64> {
        let (start, mut submitted, mut done) = (Instant::now(), 0, 0);
        let mut pending = VecDeque::new();
        loop {
            let is_over = start.elapsed() >= time;
            while !is_over && pending.len() < self.depth {
                let (range, offset) = self.place(submitted as usize % self.depth, submitted);
                pending.push_back(self.file.submit_read(&self.buffer, range, offset)?);
                submitted += 1;
            }
            let Some(oldest) = pending.pop_front() else { return Ok(done) };
            ensure!(oldest.wait()? == PIECE, "short read");
            done += 1;
        }
    }

    fn in_group(&self, group: &CompletionGroup, fetch: Fetch, time: Duration) -> Result<u64> {
        let (start, mut submitted, mut done) = (Instant::now(), 0, 0);
        let mut free: Vec<usize> = (0..self.depth).collect();
        let mut completions = Vec::new();
        loop {
            let is_over = start.elapsed() >= time;
            if !is_over {
                for slot in free.drain(..) {
                    let (range, offset) = self.place(slot, submitted);
                    group.read(slot as u64, &self.file, &self.buffer, range, offset)?;
                    submitted += 1;
                }
            }
            if done == submitted {
                return Ok(done);
            }
            match fetch {
                Fetch::Single | Fetch::Wait => drop(group.wait(&mut completions, 1, None)?),
                Fetch::Poll => while group.poll(&mut completions) == 0 {},
                Fetch::Descriptor => {
                    let descriptor = group.descriptor()?;
                    poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], None)?;
                    group.poll(&mut completions);
                }
            }
            for completion in completions.drain(..) {
                ensure!(completion.result? == PIECE, "short read");
                free.push(completion.user_data as usize);
                done += 1;
            }
        }
    }
}
