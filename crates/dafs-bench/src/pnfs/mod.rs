//! Direct-pNFS against the other ways to the files of a parallel file system, after figures 6 and 7
//! of the paper of 2007: five architectures on the same storage nodes, whose links have a rate, and
//! DAFS with layouts of its own (`own`).
//!
//! The storage engine is CephFS. Each storage node is a network namespace with a storage daemon and
//! one link to a switch. So is the head (monitor, metadata servers of Ceph and of dafs) and each
//! client. Traffic of a node to itself does not cross its link.
//!
//! Not obvious
//! * The data servers are threads of one dafs, each with its sockets and its client of CephFS in
//!   its node's namespace: their traffic crosses their node's link. Their queries to the metadata
//!   server do not, which are some bytes for each state-id.
//!
//! Invariants
//! * After each case, counters are checked: bytes must have taken the path of its architecture.

mod build;
mod check;
mod checkpoint;
mod client;
mod disks;
mod engine;
mod kernel;
mod load;
mod opens;
mod own;
mod patterns;
mod rates;
mod table;

pub(crate) use disks::{disk_rates, disks_missing, hold_disk};
pub(crate) use engine::missing;
pub(crate) use kernel::Here;
pub(crate) use load::Load;
pub(crate) use own::{serve_data, serve_names};
pub(crate) use rates::{Rate, rates};

use crate::folder::Folder;
use crate::link::{self, Link, Node};
use crate::peer;
use anyhow::{Context, Result, ensure};
use check::Seen;
use client::Client;
use engine::{Cluster, Pool, Server};
use kernel::Kernel;
use patterns::Done;
use serde::Serialize;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

/// The stripe unit of all files.
const UNIT_BYTES: usize = 256 << 10;

const STORAGE_NODES_MAX: usize = 32;
pub(crate) const CLIENTS_MAX: usize = 32;

/// Compares Direct-pNFS with pNFS in two and in three tiers, plain NFSv4, and the client of CephFS.
#[derive(clap::Args, Debug, Clone)]
pub(crate) struct Options {
    #[arg(long, default_value_t = 6)]
    storage_nodes: usize,
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8")]
    clients: Vec<usize>,
    /// The rate of each node's link, in Mbit/s, in each direction
    #[arg(long, default_value_t = 100)]
    megabits: u32,
    /// The amount that each client writes and reads, in MiB
    #[arg(long, default_value_t = 24)]
    megabytes: u64,
    /// Bytes of an application's block, in KiB
    #[arg(long, value_delimiter = ',', default_value = "2048,8")]
    blocks: Vec<usize>,
    /// Patterns of applications to run as well: atlas, oltp, postmark, btio, unpack, configure, build.
    #[arg(long, value_delimiter = ',', default_values_t = patterns::PATTERNS.map(str::to_owned))]
    patterns: Vec<String>,
    /// Only architectures with this in their name.
    #[arg(long, default_value = "")]
    only: String,
    /// Compare Linux's client with ours over three data servers as well
    #[arg(long, value_enum, default_value_t)]
    kernel_clients: KernelClients,
    /// CephFS's client without its cache
    #[arg(long)]
    uncached: bool,
    /// The folder for table and figure
    #[arg(long, default_value = "bench-results")]
    results: PathBuf,
}

/// Ways to the storage nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
enum Architecture {
    Direct,
    Native,
    TwoTier,
    ThreeTier,
    Plain,
    /// DAFS with data servers of its own.
    Own,
}

impl Architecture {
    const ALL: [Self; 6] =
        [Self::Direct, Self::Native, Self::TwoTier, Self::ThreeTier, Self::Plain, Self::Own];

    fn name(self) -> &'static str {
        match self {
            Self::Direct => "Direct-pNFS",
            Self::Native => "CephFS",
            Self::TwoTier => "2-tier",
            Self::ThreeTier => "3-tier",
            Self::Plain => "NFSv4",
            Self::Own => "DAFS layouts",
        }
    }

    fn directory(self) -> &'static str {
        match self {
            Self::Direct => "/direct",
            Self::Native => "/native",
            Self::TwoTier => "/two",
            Self::ThreeTier => "/three",
            Self::Plain => "/plain",
            Self::Own => "/own",
        }
    }

    fn pool(self) -> Pool {
        if self == Self::ThreeTier { Pool::Narrow } else { Pool::Wide }
    }
}

/// Measurements of Linux's client, in guests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
enum KernelClients {
    /// After all others.
    #[default]
    Too,
    /// Without any other.
    Alone,
    None,
}

/// Times of open, read and close of a small file.
#[derive(Debug, Clone, Copy, Serialize)]
struct Opens {
    without_us: f64,
    with_us: f64,
}

impl Opens {
    fn added_percent(self) -> f64 {
        100.0 * (self.with_us / self.without_us - 1.0)
    }
}

/// All measurements.
#[derive(Default)]
struct Measured {
    cells: Vec<Cell>,
    applied: Vec<Applied>,
    opens: Option<Opens>,
    /// Why an architecture has no cells, or not all of them.
    skipped: Vec<String>,
}

/// One measurement.
#[derive(Debug, Clone, Copy, Serialize)]
struct Cell {
    architecture: Architecture,
    write: bool,
    one_file: bool,
    block: usize,
    clients: usize,
    megabytes_per_second: f64,
    /// Time that the busiest link needs for its bytes, relative to the elapsed time: 1 when that
    /// link is the only bottleneck.
    busiest_link: f64,
}

/// The result of a pattern of an application.
#[derive(Debug, Clone, Serialize)]
struct Applied {
    architecture: Architecture,
    pattern: String,
    clients: usize,
    megabytes_per_second: f64,
    transactions_per_second: f64,
}

/// The parameters of one case.
#[derive(Debug, Clone, Copy)]
struct Case {
    one_file: bool,
    block: usize,
    clients: usize,
}

impl Options {
    fn check(&self) -> Result<()> {
        ensure!((2..=STORAGE_NODES_MAX).contains(&self.storage_nodes), "2 to 32 storage nodes");
        ensure!(
            self.clients.iter().all(|count| (1..=CLIENTS_MAX).contains(count)),
            "1 to 32 clients"
        );
        let whole =
            |kib: &usize| kib.is_multiple_of(8) && self.bytes().is_multiple_of(*kib as u64 * 1024);
        ensure!(
            self.megabytes > 0 && self.blocks.iter().all(|kib| *kib > 0 && whole(kib)),
            "blocks are of some times 8 KiB, and each client has a whole number of them"
        );
        let unknown = |name: &&String| !patterns::PATTERNS.contains(&name.as_str());
        let unknown = self.patterns.iter().find(unknown);
        ensure!(unknown.is_none(), "patterns are {}", patterns::PATTERNS.join(", "));
        Ok(())
    }

    pub(crate) fn measure(&self) -> Result<()> {
        self.check()?;
        let mut measured = Measured::default();
        if self.kernel_clients != KernelClients::Alone {
            if let Some(reason) = missing() {
                println!("pnfs: SKIPPED, {reason}");
                return Ok(());
            }
            peer::in_own_network(|| self.measure_inside(&mut measured, &|| Ok(())))?;
        }
        let kernel = match self.kernel_clients {
            KernelClients::None => Kernel::default(),
            _ => kernel::measure(self)?,
        };
        let Measured { cells, applied, opens, .. } = measured;
        if !cells.is_empty() {
            table::print(self, &cells);
            table::print_applied(self, &applied);
        }
        if let Some(opens) = opens {
            table::print_opens(opens);
        }
        kernel::print(self, &kernel);
        table::write(self, &cells, &applied, opens, &kernel)
    }

    /// Measures all architectures. `check` fails when the run shall end. An architecture that fails costs the
    /// others nothing; the first failure is returned in the end.
    fn measure_inside(
        &self,
        measured: &mut Measured,
        check: &(dyn Fn() -> Result<()> + Sync),
    ) -> Result<()> {
        let bench = Bench::start(self)?;
        let mut outcome = Ok(());
        for architecture in Architecture::ALL {
            check()?;
            let is_own = architecture == Architecture::Own;
            // DAFS's own layouts have blocks alone.
            if !architecture.name().contains(&self.only) || (is_own && self.blocks.is_empty()) {
                continue;
            }
            let done = bench.measure(self, architecture, measured, check);
            let Err(error) = done.with_context(|| architecture.name()) else { continue };
            measured.skipped.push(format!("{error:#}"));
            // No paper has DAFS's own, and the other ways do without.
            if is_own {
                println!("pnfs: SKIPPED {error:#}");
            } else {
                println!("pnfs: FAILED {error:#}");
                outcome = outcome.and(Err(error));
            }
        }
        outcome
    }

    /// The rate of a link, in MB/s.
    fn link_megabytes(&self) -> f64 {
        f64::from(self.megabits) / 8.0
    }

    fn bytes(&self) -> u64 {
        self.megabytes << 20
    }
}

/// All running parts.
struct Bench {
    cluster: Cluster,
    head: Node,
    storage: Vec<Node>,
    clients: Vec<Node>,
    /// Number of storage nodes that store in the three tiers; the others are their data servers.
    narrow: usize,
    /// The source tree for builds.
    tree: PathBuf,
    /// CephFS's client has no cache.
    is_uncached: bool,
    _folder: Folder,
}

impl Bench {
    fn start(options: &Options) -> Result<Self> {
        link::make_switch()?;
        let link = Link { megabits: Some(options.megabits), ..Link::default() };
        let node = |number: usize| Node::add(u8::try_from(number)?, &link);
        let storage: Vec<_> = (1..=options.storage_nodes).map(node).collect::<Result<_>>()?;
        let clients = options.clients.iter().copied().max().unwrap_or(0);
        let clients: Vec<_> =
            (1..=clients).map(|client| node(100 + client)).collect::<Result<_>>()?;
        let head = node(99)?;
        let folder = Folder::make(&std::env::temp_dir())?;
        let cluster = Cluster::start(&head, &storage, folder.path())?;
        let narrow = storage.len().div_ceil(2);
        let directories = Architecture::ALL.map(|a| (a.directory(), a.pool()));
        cluster.prepare(&head, narrow, &directories)?;
        let tree = folder.path().join("tree");
        build::write_tree(&tree)?;
        let is_uncached = options.uncached;
        Ok(Self { cluster, head, storage, clients, narrow, tree, is_uncached, _folder: folder })
    }

    fn measure(
        &self,
        options: &Options,
        architecture: Architecture,
        measured: &mut Measured,
        check: &(dyn Fn() -> Result<()> + Sync),
    ) -> Result<()> {
        let server = self.serve(architecture)?;
        // The first access asks for the placement of all files.
        let warm = Case { one_file: false, block: UNIT_BYTES, clients: 1 };
        self.run(architecture, warm, true, 1 << 20)?;
        for one_file in [false, true] {
            for block in options.blocks.iter().map(|kib| kib * 1024) {
                for &clients in &options.clients {
                    check()?;
                    self.cluster.clear(&self.head, architecture.directory())?;
                    let case = Case { one_file, block, clients };
                    for write in [true, false] {
                        let before = self.see(server.as_ref())?;
                        let rate = self.run(architecture, case, write, options.bytes())?;
                        let seen = self.see(server.as_ref())?.since(&before);
                        let bytes = options.bytes() * clients as u64;
                        let way = check::way(architecture, bytes, &seen);
                        way.with_context(|| format!("{case:?}, write: {write}"))?;
                        let cell = Cell {
                            architecture,
                            write,
                            one_file,
                            block,
                            clients,
                            megabytes_per_second: rate,
                            busiest_link: seen.busiest() as f64 / bytes as f64 * rate
                                / options.link_megabytes(),
                        };
                        table::print_cell(&cell, bytes, &seen);
                        measured.cells.push(cell);
                    }
                }
            }
        }
        // The patterns are those of NFS clients.
        let patterns: &[String] = match architecture {
            Architecture::Own => &[],
            _ => &options.patterns,
        };
        for pattern in patterns {
            for &clients in &options.clients {
                check()?;
                self.cluster.clear(&self.head, architecture.directory())?;
                let before = self.see(server.as_ref())?;
                let one = self.apply(architecture, pattern, clients, options.bytes())?;
                let seen = self.see(server.as_ref())?.since(&before);
                let bytes = patterns::bytes_past_server(pattern, one.0);
                let way = check::way_of_pattern(architecture, bytes, &seen);
                way.with_context(|| format!("{pattern}, clients: {clients}"))?;
                table::print_one_applied(&one.1);
                measured.applied.push(one.1);
            }
        }
        if architecture == Architecture::Direct {
            measured.opens = Some(self.open_read_close(architecture)?);
        }
        Ok(())
    }

    /// Measures the cost of LAYOUTGET for opening small files.
    fn open_read_close(&self, architecture: Architecture) -> Result<Opens> {
        let mut client = self.client(architecture, (0, 1), "small", "opens", (1, 0, UNIT_BYTES))?;
        client.expect("ready")?;
        client.go()?;
        let Done { bytes: without_ns, transactions: with_ns } = client.done()?;
        client.end()?;
        Ok(Opens { without_us: without_ns as f64 / 1e3, with_us: with_ns as f64 / 1e3 })
    }

    /// Runs a pattern; returns its bytes and rates.
    fn apply(
        &self,
        architecture: Architecture,
        pattern: &str,
        clients: usize,
        bytes: u64,
    ) -> Result<(u64, Applied)> {
        let start = |number: usize| {
            let numbers = (number as u64 + 1, bytes, UNIT_BYTES);
            let name = match patterns::is_of_one_file(pattern) {
                true => "one".to_owned(),
                false => format!("part{number}"),
            };
            self.client(architecture, (number, clients), &name, pattern, numbers)
        };
        let mut running = (0..clients).map(start).collect::<Result<Vec<_>>>()?;
        running.iter_mut().try_for_each(|client| client.expect("ready"))?;
        let began = Instant::now();
        running.iter_mut().try_for_each(Client::go)?;
        for _ in 0..patterns::meetings(pattern) {
            running.iter_mut().try_for_each(|client| client.expect("ready"))?;
            running.iter_mut().try_for_each(Client::go)?;
        }
        let done = running.iter_mut().map(Client::done).collect::<Result<Vec<_>>>()?;
        let seconds = began.elapsed().as_secs_f64();
        running.into_iter().try_for_each(Client::end)?;
        let sum = |of: fn(&Done) -> u64| done.iter().map(of).sum::<u64>();
        let (bytes, transactions) = (sum(|done| done.bytes), sum(|done| done.transactions));
        let applied = Applied {
            architecture,
            pattern: pattern.to_owned(),
            clients,
            megabytes_per_second: bytes as f64 / 1e6 / seconds,
            transactions_per_second: transactions as f64 / seconds,
        };
        Ok((bytes, applied))
    }

    /// Starts dafs for an architecture.
    fn serve(&self, architecture: Architecture) -> Result<Option<Server>> {
        let all: Vec<_> = (0..).zip(&self.storage).collect();
        let (layouts, data_servers) = match architecture {
            Architecture::Native => return Ok(None),
            Architecture::Own => return own::serve(&self.head, &self.storage).map(Some),
            Architecture::Direct => ("placement", &all[..]),
            Architecture::TwoTier => ("turns", &all[..]),
            Architecture::ThreeTier => ("turns", &all[self.narrow..]),
            Architecture::Plain => ("placement", &[][..]),
        };
        let directory = architecture.directory();
        self.cluster.serve(&self.head, directory, layouts, data_servers).map(Some)
    }

    /// Reads all counters.
    fn see(&self, server: Option<&Server>) -> Result<Seen> {
        let counters = server.map(|server| server.counters(&self.head)).transpose()?;
        let crossed = |nodes: &[Node]| nodes.iter().map(Node::crossed).collect::<Result<Vec<_>>>();
        Ok(Seen {
            head: self.head.crossed()?,
            storage: crossed(&self.storage)?,
            clients: crossed(&self.clients)?,
            counters: counters.unwrap_or_default(),
        })
    }

    /// Runs all clients of a case at once, each for `bytes`. Returns the MB/s of all together.
    fn run(&self, architecture: Architecture, case: Case, write: bool, bytes: u64) -> Result<f64> {
        let start = |number| {
            // A client reads the part of another one.
            let part = if write { number } else { (number + 1) % case.clients };
            let (name, begin) = match case.one_file {
                true => ("one".to_owned(), part as u64 * bytes),
                false => (format!("part{part}"), 0),
            };
            let action = if write { "write" } else { "read" };
            let numbers = (begin, bytes, case.block);
            self.client(architecture, (number, case.clients), &name, action, numbers)
        };
        let clients = (0..case.clients).map(start).collect::<Result<Vec<_>>>()?;
        let seconds = Client::run_together(clients)?;
        Ok((bytes * case.clients as u64) as f64 / 1e6 / seconds)
    }

    fn client(
        &self,
        architecture: Architecture,
        (number, count): (usize, usize),
        name: &str,
        action: &str,
        (begin, bytes, block): (u64, u64, usize),
    ) -> Result<Client> {
        let numbers = [begin, bytes, block as u64, count as u64].map(|number| number.to_string());
        let mut command = if architecture == Architecture::Native {
            let (program, arguments) = self.cluster.client()?;
            let mut command = Command::new(program);
            let path = format!("{}/{name}", architecture.directory());
            command.args(arguments).args([action, &path]);
            if self.is_uncached {
                command.env("CEPHFS_CACHE", "no");
            }
            command
        } else if architecture == Architecture::Own {
            let mut command = Command::new(std::env::current_exe()?);
            let url = format!("dafs://{}:{}/?pnfs=yes", self.head.address(), own::PORT);
            command.args(["pnfs-load", &url, name, action]);
            command
        } else {
            let mut command = Command::new(std::env::current_exe()?);
            let url = format!("nfs://{}:2049/data?vers=4.1", self.head.address());
            command.args(["pnfs-load", &url, &format!("data/{name}"), action]);
            command
        };
        command.args(numbers).arg(&self.tree);
        self.clients[number].inside(|| Client::start(&mut command))?
    }
}

/// Runs a server with a configuration file; a child of the benchmark.
pub(crate) fn serve(config: &std::path::Path) -> Result<()> {
    let server = dafs_server::Server::start(&dafs_server::Config::load(config)?)?;
    crate::child::announce("serving")?;
    crate::child::wait_for_parent();
    server.stop();
    Ok(())
}
