//! The client of a measurement, a process of its own.

use super::{Action, FILE_BYTES};
use crate::report::Sample;
use crate::{cpu, files};
use anyhow::{Context, Result, ensure};
use dafs_client::{Client, ConnectOptions, DafsUrl};
use dafs_nfs_client::mount::{
    File, Memory, MemorySlice, Mount, MountOptions, NfsUrl, OpenOptions, PendingRead, PendingWrite,
    StableHow,
};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::collections::VecDeque;
use std::io::Read as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A client.
#[derive(clap::Args, Debug, Clone)]
pub(crate) struct Load {
    /// Of the file.
    url: String,
    action: Action,
    /// Bytes of one operation.
    block: usize,
    /// Operations under way.
    depth: usize,
    milliseconds: u64,
    /// The process id of the server.
    server: u32,
}

impl Load {
    /// Runs, and prints its operations, their bytes, and the nanoseconds of the clock, of this process
    /// and of the server.
    pub(crate) fn run(&self) -> Result<()> {
        let sample = match (self.url.starts_with("dafs"), self.action) {
            (true, Action::Connect) => {
                let url = DafsUrl::parse(&self.url)?;
                self.connections(|| {
                    Client::connect(&url, &ConnectOptions::default())?;
                    Ok(())
                })?
            }
            (true, _) => self.dafs()?,
            (false, Action::Connect) => {
                let url = NfsUrl::parse(&self.url)?;
                self.connections(|| {
                    Mount::connect(&url, &MountOptions::default())?;
                    Ok(())
                })?
            }
            (false, _) => self.nfs()?,
        };
        let nanoseconds = |time: Duration| time.as_nanos();
        println!(
            "{} {} {} {} {}",
            sample.operations,
            sample.bytes,
            nanoseconds(sample.elapsed),
            nanoseconds(sample.client_cpu),
            nanoseconds(sample.server_cpu)
        );
        Ok(())
    }

    fn time(&self) -> Duration {
        Duration::from_millis(self.milliseconds)
    }

    fn timed(&self, work: impl FnOnce() -> Result<(u64, u64)>) -> Result<Sample> {
        Sample::of(|| cpu::times(Some(self.server)), work)
    }

    fn connections(&self, connect: impl Fn() -> Result<()>) -> Result<Sample> {
        // The first one reads the files and starts the libraries.
        connect()?;
        self.timed(|| {
            let end = Instant::now() + self.time();
            let mut count = 0;
            while Instant::now() < end {
                connect()?;
                count += 1;
            }
            Ok((count, 0))
        })
    }

    fn dafs(&self) -> Result<Sample> {
        let url = DafsUrl::parse(&self.url)?;
        let client = Client::connect(&url, &ConnectOptions::default())?;
        let file = client.open(url.path(), &dafs_client::OpenOptions::read_write())?;
        let buffer = client.buffer(self.block * self.depth)?;
        let load = match self.action {
            Action::Write => files::Load::Write { bytes: self.block, depth: self.depth },
            _ => files::Load::Read { bytes: self.block, depth: self.depth, random: true },
        };
        let sample = self.timed(|| {
            let operations = files::run(&client, &file, &buffer, load, self.time())?;
            Ok((operations, operations * self.block as u64))
        })?;
        file.close()?;
        client.disconnect()?;
        Ok(sample)
    }

    fn nfs(&self) -> Result<Sample> {
        let url = NfsUrl::parse(&self.url)?;
        let mount = Mount::connect(&url, &MountOptions::default())?;
        let options = match self.action {
            Action::Write => OpenOptions::write(),
            _ => OpenOptions::read(),
        };
        let file = mount.open(url.path(), &options)?;
        let memory = mount.allocate(self.block * self.depth)?;
        memory.view().fill(7);
        let sample = self.timed(|| self.transfer(&file, &memory))?;
        file.close()?;
        Ok(sample)
    }

    fn transfer(&self, file: &File, memory: &Memory) -> Result<(u64, u64)> {
        let end = Instant::now() + self.time();
        let mut random = SmallRng::seed_from_u64(1);
        let mut waiting = VecDeque::new();
        let (mut operations, mut bytes) = (0, 0);
        let slots: Vec<MemorySlice> = (0..self.depth)
            .map(|slot| memory.slice(slot * self.block..(slot + 1) * self.block))
            .collect::<Option<_>>()
            .context("the memory is too short")?;
        for slot in (0..self.depth).cycle() {
            if waiting.len() == self.depth || Instant::now() >= end {
                let Some(call) = waiting.pop_front() else { break };
                bytes += wait(call)? as u64;
                operations += 1;
            }
            if Instant::now() < end {
                let offset = random.random_range(0..FILE_BYTES / self.block as u64);
                let (offset, slot) = (offset * self.block as u64, slots[slot].clone());
                waiting.push_back(match self.action {
                    Action::Write => {
                        Call::Write(file.submit_write(slot, offset, StableHow::Unstable)?)
                    }
                    _ => Call::Read(file.submit_read(slot, offset)?),
                });
            }
        }
        Ok((operations, bytes))
    }
}

/// An operation under way.
enum Call {
    Read(PendingRead),
    Write(PendingWrite),
}

fn wait(call: Call) -> Result<usize> {
    Ok(match call {
        Call::Read(read) => read.wait()?,
        Call::Write(write) => write.wait()?.bytes,
    })
}

/// A client that has been started. It ends with this.
pub(super) struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    /// Starts a program that prints numbers.
    pub(super) fn start(command: &mut Command) -> Result<Self> {
        Ok(Self(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?))
    }

    /// Waits for its end. Returns the numbers.
    pub(super) fn numbers<const COUNT: usize>(mut self) -> Result<[u64; COUNT]> {
        let (mut numbers, mut errors) = (String::new(), String::new());
        // The errors are short, so they have room in the pipe until these are read.
        self.0.stdout.take().context("no output")?.read_to_string(&mut numbers)?;
        self.0.stderr.take().context("no output")?.read_to_string(&mut errors)?;
        ensure!(self.0.wait()?.success(), "the client has failed: {errors}");
        let numbers: Result<Vec<u64>, _> = numbers.split_whitespace().map(str::parse).collect();
        numbers?.try_into().ok().context("the client has not said what it did")
    }

    /// Waits for the end of a [`Load`].
    pub(super) fn sample(self) -> Result<Sample> {
        let [operations, bytes, elapsed, client, server] = self.numbers()?;
        let time = Duration::from_nanos;
        let (client_cpu, server_cpu) = (time(client), time(server));
        Ok(Sample { operations, bytes, elapsed: time(elapsed), client_cpu, server_cpu })
    }
}
