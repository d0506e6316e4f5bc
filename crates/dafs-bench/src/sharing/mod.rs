//! The needs of clusters: changes that survive a power failure, locks, batches, the client's cache,
//! recovery.
//!
//! Invariants
//! * Compared cases run within one round, one after the other, on the same file system.
//! * Clients are sessions of their own, each with one thread, all in this process.

mod batches;
mod cached;
mod clients;
mod durable;
mod locks;
mod recovery;

use crate::child::Process;
use crate::report::Report;
use crate::{Plan, cpu};
use anyhow::{Context, Result};
use dafs_client::{Client, ConnectOptions, DafsUrl, TransportChoice};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Concurrent clients, and threads of the local program.
const MANY: usize = 16;

/// The transports, as the cases name them.
const TRANSPORTS: [(&str, TransportChoice); 2] =
    [("iwarp", TransportChoice::Iwarp), ("shm", TransportChoice::Shm)];

pub(crate) fn measure(plan: &Plan, report: &mut Report) -> Result<()> {
    durable::measure(plan, report)?;
    locks::measure(plan, report)?;
    batches::measure(plan, report)?;
    cached::measure(plan, report)?;
    recovery::measure(plan, report)?;
    cpu::unpin()
}

/// A folder, removed on drop, on the disk that the plan names.
fn folder(plan: &Plan) -> Result<TempDir> {
    let mut builder = tempfile::Builder::new();
    let builder = builder.prefix("dafs-bench");
    let made = match &plan.disk {
        Some(disk) => builder.tempdir_in(disk),
        None => builder.tempdir(),
    };
    made.context("there is no folder for the files of the benchmark")
}

/// A server for an export of its own.
struct Site {
    export: PathBuf,
    server: Process,
}

impl Site {
    /// `durable_replies` as in the configuration of an export; on `cpu` alone, or anywhere.
    fn start(folder: &Path, name: &str, durable_replies: &str, cpu: Option<usize>) -> Result<Self> {
        let export = folder.join(name);
        std::fs::create_dir(&export)?;
        let server = Process::serve_sharing(&export, durable_replies, 0, cpu)?;
        Ok(Self { export, server })
    }

    fn url(&self) -> Result<DafsUrl> {
        self.server.url()
    }

    fn connect(&self, transport: TransportChoice) -> Result<Client> {
        let options = ConnectOptions { transport, ..ConnectOptions::default() };
        Ok(Client::connect(&self.url()?, &options)?)
    }

    fn pid(&self) -> u32 {
        self.server.id()
    }
}
