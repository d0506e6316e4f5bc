//! Networks with servers and clients, and the check that bytes took the way of their cell.
//!
//! Invariants
//! * Every process ends with this one, also when this one is killed: each has the end of its input
//!   as its sign. Namespaces go with the processes that hold them.
//! * All networks serve the same file, by hard links: servers share no other file.

use super::cells::{Cell, Network, Order, Way};
use super::load::Running;
use super::results::Sample;
use crate::child::Process;
use crate::limit::{Limit, Resource};
use crate::link::{self, Link, Node};
use crate::peer::{self, Ganesha};
use crate::{cpu, nfs};
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The delay of each end of [`Network::Far`]: a round trip of 132 us in place of 30.
const DELAY: Duration = Duration::from_micros(51);

/// Processor time of the clients of [`Network::Slow`], in percent of one processor: about what DAFS
/// needs on a link of 1 Gbit/s, and less than NFS needs.
const SLOW_PERCENT: u64 = 20;

/// From this block on data must be placed, and headers are few beside it.
const CHECKED_BLOCK: usize = 32 << 10;

/// A network with its servers and clients.
pub(super) struct World {
    /// Ended first.
    clients: BTreeMap<Way, Running>,
    libnfs: Option<Libnfs>,
    floors: BTreeMap<Way, Process>,
    server: Process,
    /// That of all clients together.
    limit: Option<Limit>,
    host: Ipv4Addr,
    /// None for the network of this process; one where both ends are one node; server and client.
    nodes: Vec<Node>,
    /// The folder for the files of its servers.
    folder: PathBuf,
}

/// NFS-Ganesha with the load generator on libnfs.
struct Libnfs {
    program: PathBuf,
    export: String,
    /// The process id of the server.
    pid: u32,
    _server: Process,
}

/// Runs `work` in a node's network, or in that of this process.
pub(super) fn at<T: Send>(
    node: Option<&Node>,
    work: impl FnOnce() -> Result<T> + Send,
) -> Result<T> {
    match node {
        Some(node) => node.inside(work)?,
        None => work(),
    }
}

/// The properties of a network's link.
fn link(network: Network, megabits: u32) -> Link {
    let link = Link { megabits: Some(megabits), ..Link::default() };
    // A rate that large frames and small ones reach would hide the cost of the small ones.
    let by_frame = Link { is_by_frame: true, ..Link::default() };
    match network {
        Network::Free | Network::Link | Network::Slow => link,
        Network::Far => Link { delay: DELAY, ..link },
        Network::Frames1500 => Link { frame_bytes: 1500, ..by_frame },
        Network::Frames9000 => by_frame,
    }
}

/// Makes the nodes of a network.
pub(super) fn nodes(network: Network, megabits: u32) -> Result<Vec<Node>> {
    let is_free = network == Network::Free;
    Ok(match link::missing() {
        None if is_free => vec![Node::alone()?],
        None => Node::pair(&link(network, megabits))?.into(),
        // Without a link the network of this process will do.
        Some(_) if is_free => Vec::new(),
        Some(reason) => bail!(reason),
    })
}

/// The address of the server.
pub(super) fn host(nodes: &[Node]) -> Ipv4Addr {
    match nodes {
        [server, _] => server.address(),
        _ => Ipv4Addr::LOCALHOST,
    }
}

/// Limits the processor time of a network's clients.
pub(super) fn limit(network: Network) -> Result<Option<Limit>> {
    (network == Network::Slow).then(|| Limit::start(Resource::Cpu, SLOW_PERCENT)).transpose()
}

impl World {
    /// Starts the dafs server of a network on the file that [`files::prepare`] has made in `file_of`.
    ///
    /// [`files::prepare`]: crate::files::prepare
    pub(super) fn start(
        network: Network,
        nodes: Vec<Node>,
        limit: Option<Limit>,
        file_of: &Path,
    ) -> Result<Self> {
        let host = host(&nodes);
        let folder = file_of.join(network.name());
        let export = folder.join("export");
        // A directory that the load generator on libnfs wants to see.
        std::fs::create_dir_all(export.join("new"))?;
        std::fs::hard_link(file_of.join("export/data"), export.join("data"))?;
        let directory = export.to_str().context("the directory's name is not UTF-8")?;
        let server = start(nodes.first(), &["serve-all", directory, &host.to_string()], &[])?;
        let (clients, floors) = (BTreeMap::new(), BTreeMap::new());
        Ok(Self { clients, libnfs: None, floors, server, limit, host, nodes, folder })
    }

    /// Starts the client of a way anew, after a failure.
    pub(super) fn renew(&mut self, way: Way) -> Result<()> {
        // Each sample of libnfs has a client of its own.
        if way == Way::Libnfs {
            return Ok(());
        }
        drop(self.clients.remove(&way));
        self.add(way)
    }

    /// Starts the client of a way, and its server where that is another one.
    pub(super) fn add(&mut self, way: Way) -> Result<()> {
        let host = self.host;
        let ports: Vec<&str> = self.server.address.split(' ').collect();
        let [dafs, nfs, rdma] = ports[..] else { bail!("no dafs server") };
        let (address, server) = match way {
            Way::Libnfs => {
                self.libnfs = Some(self.start_ganesha()?);
                return Ok(());
            }
            Way::Tcp | Way::Rdma => {
                let kind: &[&str] =
                    if way == Way::Tcp { &["tcp"] } else { &["transport", "iwarp"] };
                // It sleeps while it waits, as all others do in the end.
                let floor = start(self.nodes.first(), kind, &["false", &host.to_string()])?;
                let (address, id) = (floor.address.clone(), floor.id());
                self.floors.insert(way, floor);
                (address, id)
            }
            _ => {
                let address = match way {
                    Way::DafsIwarp | Way::DafsDirect | Way::DafsShm => {
                        format!("dafs://{host}:{dafs}/data")
                    }
                    Way::NfsInline => format!("{host}:{rdma}"),
                    Way::NfsDirect => {
                        format!("nfs+rdma://{host}:{rdma}/data?vers=4.1&transport=iwarp")
                    }
                    Way::NocopyIwarp => {
                        format!("nfs+rdma://{host}:{rdma}/data?vers=3&transport=iwarp")
                    }
                    Way::NocopyShm => format!("nfs+rdma://{host}:{rdma}/data?vers=3&transport=shm"),
                    Way::Prepost => format!("nfs://{host}:{nfs}/data?vers=3"),
                    _ => format!("{host}:{nfs}"),
                };
                (address, self.server.id())
            }
        };
        let client = at(self.nodes.last(), || Running::start(way, &address, server))?;
        self.limit.as_ref().map_or(Ok(()), |limit| limit.take(client.id()))?;
        self.clients.insert(way, client);
        Ok(())
    }

    fn start_ganesha(&self) -> Result<Libnfs> {
        if let Some(reason) = peer::missing(None) {
            bail!(reason);
        }
        ensure!(!self.nodes.is_empty(), "NFS-Ganesha needs a network of its own");
        let folder = &self.folder;
        let mut program = peer::build_load(folder)?;
        if let Some(limit) = &self.limit {
            let limited = folder.join("limited");
            let (group, load) = (limit.processes(), program.display());
            let script =
                format!("#!/bin/sh\necho $$ >'{}' && exec '{load}' \"$@\"\n", group.display());
            std::fs::write(&limited, script)?;
            std::fs::set_permissions(&limited, PermissionsExt::from_mode(0o755))?;
            program = limited;
        }
        let text = |path: &Path| path.to_str().map(str::to_owned);
        let names = text(folder).zip(text(&folder.join("export")));
        let (folder, export) = names.context("the directory's name is not UTF-8")?;
        let server = start(self.nodes.first(), &["serve-ganesha", &export, &folder], &[])?;
        let pid = server.address.parse().ok().context("NFS-Ganesha does not start")?;
        Ok(Libnfs { program, export, pid, _server: server })
    }

    /// Measures a cell and checks the way of its bytes.
    pub(super) fn measure(&mut self, cell: &Cell, milliseconds: u64) -> Result<Sample> {
        let before = self.nodes.last().map(Node::crossed).transpose()?;
        let sample = match (cell.way, &self.libnfs) {
            (Way::Libnfs, Some(libnfs)) => {
                let target = nfs::Server {
                    host: self.host,
                    port: Ganesha::PORT,
                    mount_port: Ganesha::MOUNT_PORT,
                    path: &libnfs.export,
                    pid: libnfs.pid,
                };
                let order = match cell.order {
                    Order::Random => "random",
                    Order::Sequential => "order",
                    Order::Join | Order::CopiedJoin => bail!("this way has no join"),
                };
                let case = format!("{order}:{}", cell.block);
                let samples = at(self.nodes.last(), || {
                    nfs::sample(&libnfs.program, &target, &case, cell.depth, milliseconds)
                })?;
                Sample::from(*samples.first().context("no sample")?)
            }
            _ => {
                let client = self.clients.get_mut(&cell.way).context("a way without a client")?;
                client.sample(cell, milliseconds)?
            }
        };
        let after = self.nodes.last().map(Node::crossed).transpose()?;
        let crossed_bytes = after.zip(before).map(|(after, before)| after.since(before).to_node);
        let sample = Sample { crossed_bytes, ..sample };
        check(cell, &sample)?;
        Ok(sample)
    }
}

/// Starts a process in a node's network, on the CPU of servers.
pub(super) fn start(node: Option<&Node>, before: &[&str], behind: &[&str]) -> Result<Process> {
    let cpu = usize::from(cpu::cpu_count() > 1).to_string();
    let mut arguments = before.to_vec();
    arguments.push(&cpu);
    arguments.extend(behind);
    let process = at(node, || Process::start(&arguments))?;
    ensure!(!process.address.is_empty(), "{} does not start", before.join(" "));
    Ok(process)
}

/// Checks that something was read and nothing was short, that the bytes crossed the client's network
/// once, or not at all by shared memory, and that the client's program did not copy what the transport
/// has placed.
fn check(cell: &Cell, sample: &Sample) -> Result<()> {
    let bytes = sample.bytes;
    ensure!(
        bytes > 0 && bytes == sample.operations * cell.block as u64,
        "{} reads of {} bytes brought {bytes} bytes",
        sample.operations,
        cell.block
    );
    if cell.block < CHECKED_BLOCK {
        return Ok(());
    }
    if let Some(crossed) = sample.crossed_bytes {
        let name = cell.way.name();
        if cell.way.is_shm() {
            ensure!(crossed < bytes / 10, "{crossed} of {bytes} bytes of {name} crossed a network");
        } else {
            // The loopback carries both directions. Headers, acknowledgements and what is sent again
            // come on top.
            ensure!(
                (bytes..=bytes + bytes / 2).contains(&crossed),
                "{crossed} bytes crossed the network for {bytes} bytes of {name}"
            );
        }
    }
    let copied = sample.copied_bytes.filter(|_| cell.way.is_placed());
    let copied = copied.unwrap_or(0);
    ensure!(copied < bytes / 10, "the client copied {copied} of {bytes} bytes");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(way: Way, block: usize, copied: u64, crossed: u64) -> bool {
        let cell = Cell { block, depth: 1, order: Order::Random, network: Network::Free, way };
        let sample = Sample {
            operations: 10,
            bytes: 10 * block as u64,
            elapsed_ns: 1,
            client_cpu_ns: 1,
            server_cpu_ns: 1,
            copied_bytes: Some(copied),
            crossed_bytes: Some(crossed),
        };
        check(&cell, &sample).is_ok()
    }

    #[test]
    fn bytes_on_another_way_are_found() {
        let (block, bytes) = (64 << 10, 640 << 10);
        assert!(checked(Way::DafsIwarp, block, 0, bytes + 10_000));
        assert!(!checked(Way::DafsIwarp, block, 0, 0));
        assert!(!checked(Way::DafsIwarp, block, 0, 2 * bytes));
        assert!(!checked(Way::DafsIwarp, block, bytes, bytes));
        assert!(checked(Way::NfsTcp, block, bytes, bytes));
        assert!(checked(Way::DafsShm, block, 0, 1000));
        assert!(!checked(Way::DafsShm, block, 0, bytes));
        assert!(checked(Way::DafsIwarp, 512, 5120, 0));
    }

    #[test]
    fn a_sample_without_reads_or_with_short_ones_is_none() {
        let cell = Cell {
            block: 512,
            depth: 1,
            order: Order::Random,
            network: Network::Free,
            way: Way::Libnfs,
        };
        let sample = |operations, bytes| Sample {
            operations,
            bytes,
            elapsed_ns: 1,
            client_cpu_ns: 1,
            server_cpu_ns: 1,
            copied_bytes: None,
            crossed_bytes: None,
        };
        assert!(check(&cell, &sample(2, 1024)).is_ok());
        assert!(check(&cell, &sample(0, 0)).is_err());
        assert!(check(&cell, &sample(2, 1023)).is_err());
    }

    #[test]
    fn each_network_has_its_link() {
        let all = Network::ALL.map(|network| link(network, 100));
        let has_rate = |link: &&Link| link.megabits == Some(100);
        assert_eq!(all.iter().filter(has_rate).count(), 4);
        assert!(all.iter().all(|link| link.megabits.is_some() != link.is_by_frame));
        let delayed = all.iter().filter(|link| !link.delay.is_zero());
        assert_eq!(delayed.count(), 1);
        assert_eq!(all.iter().filter(|link| link.is_by_frame).count(), 2);
        assert_eq!(all.iter().filter(|link| link.frame_bytes == 1500).count(), 1);
    }
}
