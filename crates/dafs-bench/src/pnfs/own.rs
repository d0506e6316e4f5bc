//! DAFS with layouts of its own, which no paper has: files in stripes at data servers of dafs on the
//! storage nodes, in their memory, and names at the head.
//!
//! Not obvious
//! * It stores no data in CephFS. The nodes and their links are those of the other ways.
//! * As in `load`, blocks of the application are gathered into pieces of a stripe unit.

use super::UNIT_BYTES;
use super::engine::{METRICS, Server};
use super::load::{Load, STAMP_BYTES, WINDOW, go};
use crate::child::{Process, announce, wait_for_parent};
use crate::folder::Folder;
use crate::fronts::MEMORY;
use crate::link::Node;
use anyhow::{Context, Result, anyhow, ensure};
use dafs_client::{
    Client, ConnectOptions, Create, DafsUrl, File, IoBuffer, OpenOptions, Pending, Stability,
    TransportChoice,
};
use dafs_mem::Site;
use dafs_server::{
    ClusterSecret, Config, DataProcess, DataRdma, DataServerConfig, ExportSource, NodeConfig,
    NodePlace,
};
use dafs_service::{AddressRange, Admits, Squash};
use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

/// The port of the head's server.
pub(super) const PORT: u16 = 20_490;

/// The address range of all nodes.
const NODES: &str = "10.77.0.0/24";

/// The port of the head's server for NFS clients.
pub(super) const NFS_PORT: u16 = 2049;

/// Starts data servers at storage nodes, with their files in memory, and the server of names at the head.
pub(super) fn serve(head: &Node, storage: &[Node]) -> Result<Server> {
    let folder = Folder::make(Path::new(MEMORY))?;
    let directory = |number: usize| folder.path().join(format!("data{number}"));
    let directories: Vec<PathBuf> = (0..storage.len()).map(directory).collect();
    directories.iter().try_for_each(std::fs::create_dir)?;
    serve_in(folder, head, storage, &directories)
}

/// The same with the files of data servers in empty directories.
pub(super) fn serve_on(head: &Node, storage: &[Node], directories: &[PathBuf]) -> Result<Server> {
    serve_in(Folder::make(Path::new(MEMORY))?, head, storage, directories)
}

fn serve_in(
    folder: Folder,
    head: &Node,
    storage: &[Node],
    directories: &[PathBuf],
) -> Result<Server> {
    let utf8 = |path: &Path| path.to_str().map(str::to_owned).context("a name is not UTF-8");
    let text = |name: &str| utf8(&folder.path().join(name));
    let secret = text("secret")?;
    ClusterSecret::make(Path::new(&secret))?;
    let mut nodes = Vec::new();
    for (node, directory) in storage.iter().zip(directories) {
        let (directory, host) = (utf8(directory)?, node.address().to_string());
        let process =
            node.inside(|| Process::start(&["serve-data", &directory, &secret, &host]))??;
        ensure!(!process.address.is_empty(), "a data server does not start");
        nodes.push(process);
    }
    let (names, host) = (text("names")?, head.address().to_string());
    std::fs::create_dir(&names)?;
    let mut arguments = vec!["serve-striped", names.as_str(), secret.as_str(), host.as_str()];
    arguments.extend(nodes.iter().map(|node| node.address.as_str()));
    let process = head.inside(|| Process::start(&arguments))??;
    ensure!(!process.address.is_empty(), "dafs with data servers does not start");
    Ok(Server::of(process, nodes, folder))
}

fn nodes() -> Result<AddressRange> {
    NODES.parse().map_err(|text: String| anyhow!(text))
}

/// A configuration for a directory that admits all nodes.
fn config(directory: &Path) -> Result<Config> {
    let mut config = Config::for_directory(directory.to_owned());
    config.auth.trusted.push(nodes()?);
    config.auth.allow_unauthenticated_remote_clients = true;
    Ok(config)
}

/// Serves stripes until the parent ends. Announces the address for the server of names.
pub(crate) fn serve_data(directory: &Path, secret: &Path, host: Ipv4Addr) -> Result<()> {
    let mut admits = Admits { unprivileged_ports: true, ..Admits::default() };
    admits.networks.push(nodes()?);
    let any: SocketAddr = (host, 0).into();
    let process = DataProcess::start(DataServerConfig {
        directory: directory.to_owned(),
        engine: None,
        cluster_secret: secret.to_owned(),
        control: any,
        nfs: any,
        rdma: DataRdma::default(),
        dafs: Some(any),
        dafs_verbs: false,
        admits,
        general: config(directory)?,
    })?;
    announce(&process.control_address().to_string())?;
    wait_for_parent();
    process.stop();
    Ok(())
}

/// Serves names until the parent ends. `controls` are the addresses that data servers have announced.
pub(crate) fn serve_names(
    names: &Path,
    secret: &Path,
    host: Ipv4Addr,
    controls: &[String],
) -> Result<()> {
    let mut config = config(names)?;
    let node = |(number, control): (u32, &String)| NodeConfig {
        number,
        place: NodePlace::Remote(control.clone()),
    };
    let unit_bytes = NonZeroU32::new(u32::try_from(UNIT_BYTES)?).context("a stripe has bytes")?;
    let export = &mut config.exports[0];
    export.source = ExportSource::Striped {
        path: names.to_owned(),
        unit_bytes,
        copies: 1,
        nodes: (1..).zip(controls).map(node).collect(),
        cluster_secret: Some(secret.to_owned()),
    };
    export.options.squash = Squash::None;
    export.options.admits.networks.push(nodes()?);
    export.options.admits.unprivileged_ports = true;
    config.listen = vec![(host, PORT).into()];
    config.nfs.listen = vec![(host, NFS_PORT).into()];
    config.metrics_listen = Some(METRICS);
    config.state_directory = Some(names.with_extension("state"));
    let server = dafs_server::Server::start(&config)?;
    announce("serving")?;
    wait_for_parent();
    server.stop();
    Ok(())
}

/// Writes or reads as the other loads do.
pub(super) fn run(load: &Load) -> Result<()> {
    let write = load.action == "write";
    let url = DafsUrl::parse(&load.url)?;
    let options = ConnectOptions { transport: TransportChoice::Iwarp, ..ConnectOptions::default() };
    let client = Client::connect(&url, &options)?;
    let options = match write {
        true => OpenOptions::write().create(Create::IfMissing),
        false => OpenOptions::read(),
    };
    let file = client.open(load.path.as_bytes(), &options)?;
    let pieces = Pieces { file, buffer: client.buffer(UNIT_BYTES * WINDOW)?, load };
    go()?;
    if write {
        pieces.write()?
    } else {
        pieces.read()?
    }
    announce("done")?;
    wait_for_parent();
    Ok(pieces.file.close()?)
}

/// The pieces of a client's part. Piece n lies at place n % [`WINDOW`] of the memory.
struct Pieces<'a> {
    file: File,
    buffer: IoBuffer,
    load: &'a Load,
}

/// A piece under way.
struct UnderWay {
    pending: Pending<usize>,
    place: usize,
    offset: u64,
    len: usize,
}

impl UnderWay {
    fn finish(self) -> Result<()> {
        let done = self.pending.wait()?;
        ensure!(done == self.len, "{done} bytes of {} at {}", self.len, self.offset);
        Ok(())
    }
}

impl Pieces<'_> {
    fn write(&self) -> Result<()> {
        let mut under_way: VecDeque<UnderWay> = VecDeque::new();
        for (number, (offset, len)) in self.load.pieces().enumerate() {
            if under_way.len() == WINDOW
                && let Some(oldest) = under_way.pop_front()
            {
                oldest.finish()?;
            }
            let place = number % WINDOW * UNIT_BYTES;
            for stamp in (0..len).step_by(STAMP_BYTES) {
                let memory = self.buffer.slice(place + stamp, 8).context("too little memory")?;
                memory.copy_from(&(offset + stamp as u64).to_le_bytes(), Site::Inspect);
            }
            let range = place..place + len;
            let pending =
                self.file.submit_write(&self.buffer, range, offset, Stability::Unstable)?;
            under_way.push_back(UnderWay { pending, place, offset, len });
        }
        under_way.into_iter().try_for_each(UnderWay::finish)?;
        Ok(self.file.commit(0, 0)?)
    }

    fn read(&self) -> Result<()> {
        let mut under_way: VecDeque<UnderWay> = VecDeque::new();
        let mut pieces = self.load.pieces().enumerate();
        loop {
            while under_way.len() < WINDOW
                && let Some((number, (offset, len))) = pieces.next()
            {
                let place = number % WINDOW * UNIT_BYTES;
                let range = place..place + len;
                let pending = self.file.submit_read(&self.buffer, range, offset)?;
                under_way.push_back(UnderWay { pending, place, offset, len });
            }
            let Some(oldest) = under_way.pop_front() else { return Ok(()) };
            let (place, offset, len) = (oldest.place, oldest.offset, oldest.len);
            oldest.finish()?;
            for stamp in (0..len).step_by(STAMP_BYTES) {
                let memory = self.buffer.slice(place + stamp, 8).context("too little memory")?;
                let mut found = [0; 8];
                memory.copy_to(&mut found, Site::Inspect);
                let at = offset + stamp as u64;
                ensure!(u64::from_le_bytes(found) == at, "wrong content at {at}");
            }
        }
    }
}
