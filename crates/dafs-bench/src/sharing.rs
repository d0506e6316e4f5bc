//! What clusters ask for: changes that survive a power cut, locks, batches, recovery.
//!
//! Durable changes are compared with the same changes on the same local file system, each followed
//! by `fsync`, from as many threads as there are clients.

use crate::child::Process;
use crate::report::{Case, Report, Sample};
use crate::{Plan, cpu};
use anyhow::{Context, Result};
use dafs_client::{
    Client, ConnectOptions, Create, DafsUrl, OpenOptions, TransportChoice, WaitPolicy,
};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Clients, and threads of the local program.
const CLIENTS: usize = 16;
const APPEND_BYTES: usize = 4096;

/// A change of names or of a file's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    Create,
    Rename,
    Append,
}

impl Change {
    const ALL: [Change; 3] = [Change::Create, Change::Rename, Change::Append];

    fn name(self) -> &'static str {
        match self {
            Change::Create => "create",
            Change::Rename => "rename",
            Change::Append => "append 4 KiB",
        }
    }
}

/// Runs `work` in `workers` threads for a time; it is told its number and how often it was called.
fn together<W>(plan: &Plan, workers: usize, server: Option<u32>, make: impl Fn(usize) -> Result<W> + Sync) -> Result<Sample>
where
    W: FnMut(u64) -> Result<()>,
{
    let operations = AtomicU64::new(0);
    let (ready, done) = (Barrier::new(workers + 1), Barrier::new(workers + 1));
    let span = Duration::from_millis(plan.milliseconds);
    std::thread::scope(|scope| {
        let worker = |number: usize| {
            let work = make(number);
            ready.wait();
            let result = work.and_then(|mut work| {
                let end = Instant::now() + span;
                let mut count = 0;
                while Instant::now() < end {
                    work(count)?;
                    count += 1;
                }
                operations.fetch_add(count, Ordering::Relaxed);
                Ok(())
            });
            done.wait();
            result
        };
        let threads: Vec<_> =
            (0..workers).map(|number| { let worker = &worker; scope.spawn(move || worker(number)) }).collect();
        ready.wait();
        let server_before = server.map(|pid| cpu::process_time(Some(pid))).transpose()?;
        let client_before = cpu::process_time(None)?;
        let began = Instant::now();
        done.wait();
        let elapsed = began.elapsed();
        let client_cpu = cpu::process_time(None)?.saturating_sub(client_before);
        let server_after = server.map(|pid| cpu::process_time(Some(pid))).transpose()?;
        for thread in threads {
            thread.join().map_err(|_| anyhow::anyhow!("a client of the benchmark panicked"))??;
        }
        Ok(Sample {
            operations: operations.load(Ordering::Relaxed),
            bytes: 0,
            elapsed,
            client_cpu,
            server_cpu: server_after.unwrap_or_default().saturating_sub(server_before.unwrap_or_default()),
        })
    })
}

/// The change on the local file system, made stable each time.
fn local(plan: &Plan, directory: &Path, change: Change, round: usize) -> Result<Sample> {
    together(plan, CLIENTS, None, |number| {
        let folder = directory.to_owned();
        let names = File::open(&folder)?;
        let base = format!("{}-{round}-{number}", change.name().replace(' ', "-"));
        let file = File::create(folder.join(&base))?;
        let content = vec![7; APPEND_BYTES];
        Ok(move |count: u64| {
            match change {
                Change::Create => {
                    File::create(folder.join(format!("{base}-{count}")))?.sync_all()?;
                }
                Change::Rename => {
                    let name = |count: u64| match count {
                        0 => folder.join(&base),
                        count => folder.join(format!("{base}-{count}")),
                    };
                    std::fs::rename(name(count), name(count + 1))?;
                    names.sync_all()?;
                }
                Change::Append => {
                    file.write_all_at(&content, count * APPEND_BYTES as u64)?;
                    file.sync_data()?;
                }
            }
            Ok(())
        })
    })
}
