//! Measures dafs against the limits of the machine: raw TCP, memcpy, local `pread` and `pwrite`.
//!
//! Machines are noisy, so only a ratio against a floor measured at the same time is meaningful:
//! every round runs all cases of a group one after the other, and the medians over the rounds are
//! compared. Every peer is a process of its own, so that its CPU time can be measured separately.

mod applications;
mod child;
mod cold;
mod cpu;
mod database;
mod files;
mod fio;
mod folder;
mod fronts;
mod limit;
mod link;
mod memory;
mod nfs;
mod nfs4;
mod optimistic;
mod papers;
mod peer;
mod plot;
mod pnfs;
mod python;
mod rdma;
mod report;
mod security;
mod sharing;
mod signs;
mod targets;
mod tcp;
mod transport;

use anyhow::Result;
use clap::{Parser, Subcommand};
use report::Report;
use std::net::Ipv4Addr;
use std::path::PathBuf;

#[derive(Parser)]
#[command(version, about = "Measures dafs against raw TCP, memcpy and local files")]
struct Arguments {
    #[command(subcommand)]
    child: Option<Child>,
    /// Rounds of each group; medians are over these.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Milliseconds that one case runs in one round.
    #[arg(long, default_value_t = 300)]
    milliseconds: u64,
    /// Groups to run: transport, file, cold, optimistic, nfs, rdma, security, sharing, fio, python,
    /// fronts, applications, memory. All by default.
    #[arg(long)]
    group: Vec<String>,
    /// Only cases whose name contains this.
    #[arg(long, default_value = "")]
    only: String,
    /// Only this way of waiting: poll, sleep, or adaptive with both ends on one CPU.
    #[arg(long, default_value = "")]
    wake: String,
    /// A folder on the disk for changes that survive a power failure; by default the system's
    /// temporary one.
    #[arg(long)]
    disk: Option<PathBuf>,
    /// Percent of their full size at which gzip and the applications run.
    #[arg(long, default_value_t = 100)]
    scale: u64,
    /// The file for the JSON.
    #[arg(long, default_value = "bench-results/bench.json")]
    json: PathBuf,
    /// The folder for the figures.
    #[arg(long, default_value = "bench-results")]
    figures: PathBuf,
}

/// Subcommands beside the groups; and the processes at the other end, which the benchmark starts
/// itself.
#[derive(Subcommand, Clone)]
enum Child {
    #[command(hide = true)]
    Tcp {
        cpu: usize,
        #[arg(action = clap::ArgAction::Set)]
        poll: bool,
        #[arg(default_value_t = Ipv4Addr::LOCALHOST)]
        host: Ipv4Addr,
    },
    #[command(hide = true)]
    Transport {
        kind: String,
        cpu: usize,
        #[arg(action = clap::ArgAction::Set)]
        poll: bool,
        #[arg(default_value_t = Ipv4Addr::LOCALHOST)]
        host: Ipv4Addr,
    },
    #[command(hide = true)]
    ServeAll { directory: PathBuf, host: Ipv4Addr, cpu: usize },
    #[command(hide = true)]
    ServeSlowDisk { cpu: usize },
    #[command(hide = true)]
    ServeGanesha { export: PathBuf, folder: PathBuf, cpu: usize },
    #[command(hide = true)]
    PapersLoad(papers::Load),
    #[command(hide = true)]
    PapersPages(papers::PageReads),
    #[command(hide = true)]
    Serve {
        directory: PathBuf,
        cpu: usize,
        wake: String,
        /// Shows files to clients, in so many bytes of memory.
        #[arg(long)]
        optimistic: Option<usize>,
        #[arg(long)]
        pool: bool,
    },
    #[command(hide = true)]
    ServeNfs {
        directory: PathBuf,
        cpu: usize,
        #[arg(long)]
        pool: bool,
    },
    #[command(hide = true)]
    ServeSharing { directory: PathBuf, durable_replies: String, port: u16, cpu: Option<usize> },
    #[command(hide = true)]
    ServeData { directory: PathBuf, secret: PathBuf, host: Ipv4Addr },
    #[command(hide = true)]
    ServeStriped { names: PathBuf, secret: PathBuf, host: Ipv4Addr, controls: Vec<String> },
    #[command(hide = true)]
    ServeConfig { config: PathBuf },
    #[command(hide = true)]
    ServeSecure { config: PathBuf, cpu: Option<usize> },
    #[command(hide = true)]
    SecureLoad(security::Load),
    #[command(hide = true)]
    HoldDisk { point: PathBuf, bytes_per_second: u64 },
    #[command(hide = true)]
    HoldFolder { folder: PathBuf },
    #[command(hide = true)]
    HoldLimit { resource: limit::Resource, amount: u64 },
    #[command(hide = true)]
    HoldMount {
        point: PathBuf,
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<String>,
    },
    #[command(hide = true)]
    HoldNetwork,
    #[command(hide = true)]
    PnfsLoad(pnfs::Load),
    #[command(hide = true)]
    PnfsHere(pnfs::Here),
    /// Compares Direct-pNFS with the other ways to the files of a CephFS on nodes with slow links.
    /// Runs by itself, not with the groups.
    Pnfs(pnfs::Options),
    /// Repeats experiments of the papers on DAFS, NFS over RDMA and Direct-pNFS, and judges their
    /// claims. Runs by itself, not with the groups.
    Papers(papers::Options),
}

/// Number and length of measurements.
#[derive(Clone)]
pub(crate) struct Plan {
    rounds: usize,
    milliseconds: u64,
    only: String,
    wake: String,
    disk: Option<PathBuf>,
    scale: u64,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    if let Some(child) = arguments.child {
        return child::run(child);
    }
    let plan = Plan {
        rounds: arguments.rounds.max(1),
        milliseconds: arguments.milliseconds,
        only: arguments.only,
        wake: arguments.wake,
        disk: arguments.disk,
        scale: arguments.scale.max(1),
    };
    let wanted =
        |name: &str| arguments.group.is_empty() || arguments.group.iter().any(|g| g == name);
    let mut report = Report::new();
    if wanted("transport") {
        transport::measure(&plan, &mut report)?;
    }
    if wanted("file") {
        files::measure(&plan, &mut report)?;
    }
    if wanted("cold") {
        cold::measure(&plan, &mut report)?;
    }
    if wanted("optimistic") {
        optimistic::measure(&plan, &mut report)?;
    }
    if wanted("nfs") {
        nfs::measure(&plan, &mut report)?;
    }
    if wanted("rdma") {
        rdma::measure(&plan, &mut report, &arguments.figures)?;
    }
    if wanted("security") {
        security::measure(&plan, &mut report)?;
    }
    if wanted("sharing") {
        sharing::measure(&plan, &mut report)?;
    }
    if wanted("fio") {
        fio::measure(&plan, &mut report)?;
    }
    if wanted("python") {
        python::measure(&plan, &mut report)?;
    }
    if wanted("fronts") {
        fronts::measure(&plan, &mut report)?;
    }
    if wanted("applications") {
        applications::measure(&plan, &mut report)?;
    }
    if wanted("memory") {
        memory::measure(&mut report)?;
    }
    report.print_targets();
    report.write_json(&arguments.json)?;
    println!("\nwritten to {}", arguments.json.display());
    report.verdict()
}
