//! A metadata server and three data servers, each as on a machine of its own, with byte counters.

use crate::common::{self, WRITE, any, data_server, scrape, whole_file};
use dafs_mem::Site;
use dafs_nfs_client::mount::{File, Mount, MountOptions, NfsUrl};
use dafs_nfs_client::{Options, Session, connect, patiently};
use dafs_server::{
    AdminReply, AdminRequest, ClusterSecret, Config, DataProcess, DataRdma, DataServerConfig,
    ExportSource, NodeConfig, NodePlace, Server, ask_server,
};
use dafs_wire::nfs4::*;
use socket2::{Domain, Socket, Type};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Bytes of a stripe.
pub(crate) const UNIT: usize = 4096;

/// Longer than any working operation takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A data server, which may be stopped.
struct Node {
    process: Option<DataProcess>,
    /// The address of its restart.
    control: Port,
    nfs: Port,
    rdma: Option<Port>,
}

pub(crate) struct Cluster {
    nodes: Vec<Node>,
    server: Option<Server>,
    config: Config,
    layout_type: u32,
    dir: TempDir,
    _nfs: Port,
}

/// A port that no other process gets, even while no process listens there.
struct Port {
    address: SocketAddr,
    _socket: Socket,
}

impl Port {
    fn reserve() -> Self {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.set_reuse_address(true).unwrap();
        socket.bind(&any().into()).unwrap();
        let address = socket.local_addr().unwrap().as_socket().unwrap();
        Self { address, _socket: socket }
    }
}

fn start_process(
    base: &Path,
    number: usize,
    (control, nfs, rdma): (&Port, &Port, Option<&Port>),
) -> DataProcess {
    let directory = base.join(format!("far{number}"));
    std::fs::create_dir_all(&directory).unwrap();
    let mut config = data_server(directory, &base.join("secret"));
    config.general.metrics_listen = Some(any());
    let rdma = DataRdma { soft: rdma.map(|port| port.address), verbs: None };
    let (control, nfs) = (control.address, nfs.address);
    let config = DataServerConfig { control, nfs, rdma, ..config };
    DataProcess::start(config).unwrap()
}

impl Cluster {
    /// Starts a cluster that keeps files in stripes.
    pub(crate) fn new() -> Self {
        Self::with_copies(1)
    }

    /// Starts a cluster whose data servers are also reachable over RDMA.
    pub(crate) fn with_rdma() -> Self {
        Self::start(1, true)
    }

    /// Starts a cluster that keeps each file whole on so many data servers, or in stripes on all.
    pub(crate) fn with_copies(copies: usize) -> Self {
        Self::start(copies, false)
    }

    fn start(copies: usize, rdma: bool) -> Self {
        let dir = TempDir::new().unwrap();
        ClusterSecret::make(&dir.path().join("secret")).unwrap();
        let node = |number| {
            let (control, nfs) = (Port::reserve(), Port::reserve());
            let rdma = rdma.then(Port::reserve);
            let process = start_process(dir.path(), number, (&control, &nfs, rdma.as_ref()));
            Node { process: Some(process), control, nfs, rdma }
        };
        let nodes: Vec<Node> = (0..3).map(node).collect();
        let names = dir.path().join("meta");
        std::fs::create_dir(&names).unwrap();
        let mut config = common::config(names.clone(), dir.path().join("state"));
        let place = |(number, node): (u32, &Node)| NodeConfig {
            number,
            place: NodePlace::Remote(node.control.address.to_string()),
        };
        config.exports[0].source = ExportSource::Striped {
            path: names,
            unit_bytes: (UNIT as u32).try_into().unwrap(),
            copies,
            nodes: (1..).zip(&nodes).map(place).collect(),
            cluster_secret: Some(dir.path().join("secret")),
        };
        config.exports[0].options.admits.unprivileged_ports = true;
        let nfs = Port::reserve();
        // The server restarts at the same address.
        config.nfs.listen = vec![nfs.address];
        config.nfs.rdma_listen = Some(vec![any()]);
        config.nfs.no_delegations = true;
        config.metrics_listen = Some(any());
        let server = Server::start(&config).unwrap();
        let layout_type = if copies == 1 { LAYOUT_FILES } else { LAYOUT_FLEX_FILES };
        let cluster = Self { nodes, server: Some(server), config, layout_type, dir, _nfs: nfs };
        cluster.wait_for_nodes();
        cluster
    }

    pub(crate) fn server(&self) -> &Server {
        self.server.as_ref().unwrap()
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.server().nfs_addresses()[0]
    }

    /// Waits until layouts are granted, which takes all data servers, and copies are equal again.
    /// Until then the next data server that stops may have the last good copy.
    pub(crate) fn wait_for_nodes(&self) {
        let session = self.session(b"probe");
        let root = session.root().unwrap();
        // A stopped data server may delay this.
        let file = patiently(|| session.create(&root, b"probe")).unwrap();
        let args = whole_file(self.layout_type, WRITE, file.stateid);
        let end = Instant::now() + PATIENCE;
        loop {
            let asked = session.call(|compound| {
                let handle = Op::Putfh(PutfhArgs { handle: &file.handle.0 });
                compound.op(&handle).op(&Op::Layoutget(args));
            });
            match asked.and_then(dafs_nfs_client::Results::finish) {
                Ok(()) => break,
                Err(error) => assert!(Instant::now() < end, "{error}: {:?}", self.node_reports()),
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        patiently(|| session.close(&file)).unwrap();
        session.destroy().unwrap();
        let is_whole = |reply: &AdminReply| match reply {
            AdminReply::Nodes(nodes) => {
                nodes.iter().all(|node| node.connected && node.files_to_mend == Some(0))
            }
            _ => false,
        };
        while !self.node_reports().is_ok_and(|reply| is_whole(&reply)) {
            assert!(Instant::now() < end, "{:?}", self.node_reports());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Sends a request to the metadata server as its administrator.
    pub(crate) fn administer(&self, request: &AdminRequest) {
        ask_server(self.config.state_directory.as_ref().unwrap(), request).unwrap();
    }

    /// Returns the metadata server's reports on its data servers.
    fn node_reports(&self) -> Result<AdminReply, impl std::fmt::Debug + use<>> {
        let state = self.config.state_directory.as_ref().unwrap();
        ask_server(state, &AdminRequest::Nodes)
    }

    /// Opens a session of a client below the level of mounts.
    pub(crate) fn session(&self, owner: &[u8]) -> Session {
        let options = Options { minor_version: 1, ..Options::new(owner) };
        // A server that has just started may answer with a delay.
        patiently(|| connect(self.address(), &options)).unwrap()
    }

    pub(crate) fn mount(&self) -> Mount {
        mount(self.address(), "", true)
    }

    /// Returns the address of a data server for clients.
    pub(crate) fn node_address(&self, at: usize) -> SocketAddr {
        self.nodes[at].nfs.address
    }

    /// Returns the content of the only non-empty component on a data server.
    pub(crate) fn component_on(&self, at: usize) -> Vec<u8> {
        // Components lie in directories with the first two digits of their names.
        let children = |path: &Path| -> Vec<_> {
            let entries = std::fs::read_dir(path).unwrap();
            entries.map(|entry| entry.unwrap().path()).collect()
        };
        let named = |path: &Path, digits: usize| {
            let name = path.file_name().unwrap().to_str().unwrap();
            name.len() == digits && name.bytes().all(|byte| byte.is_ascii_hexdigit())
        };
        let directories = children(&self.dir.path().join(format!("far{at}")));
        let directories = directories.iter().filter(|path| named(path, 2) && path.is_dir());
        let files = directories.flat_map(|path| children(path));
        let content = files.filter(|path| named(path, 32)).map(|path| std::fs::read(path).unwrap());
        let mut found: Vec<_> = content.filter(|content| !content.is_empty()).collect();
        assert_eq!(found.len(), 1);
        found.remove(0)
    }

    /// Stops a data server, with all connections.
    pub(crate) fn stop_node(&mut self, at: usize) {
        self.nodes[at].process.take().unwrap().stop();
    }

    /// Starts a data server again at its address.
    pub(crate) fn start_node(&mut self, at: usize) {
        let Node { process, control, nfs, rdma } = &mut self.nodes[at];
        *process = Some(start_process(self.dir.path(), at, (control, nfs, rdma.as_ref())));
    }

    /// Changes the secret of the cluster to another one, step by step, while another thread repeats
    /// some work.
    pub(crate) fn change_secret_during(&self, mut work: impl FnMut(u64) + Send) {
        let path = self.dir.path().join("secret");
        let (old, new) = (std::fs::read(&path).unwrap(), [7_u8; 32]);
        let steps: [&[&[u8]]; 3] = [&[&old, &new], &[&new, &old], &[&new]];
        let config = self.config.clone();
        self.server().set_read_config(Box::new(move || Ok(config.clone())));
        let (is_over, rounds) = (&AtomicBool::new(false), &AtomicU64::new(0));
        let end = Instant::now() + PATIENCE;
        let worker = move || {
            while !is_over.load(Ordering::Relaxed) && Instant::now() < end {
                work(rounds.fetch_add(1, Ordering::Relaxed));
            }
        };
        std::thread::scope(|scope| {
            let worker = scope.spawn(worker);
            for secrets in steps {
                let before = rounds.load(Ordering::Relaxed);
                std::fs::write(&path, secrets.concat()).unwrap();
                self.server().reload().unwrap();
                let running = self.nodes.iter().filter_map(|node| node.process.as_ref());
                running.for_each(|process| assert!(process.read_secret().unwrap()));
                while rounds.load(Ordering::Relaxed) < before + 3 {
                    assert!(!worker.is_finished(), "it has failed, or takes too long");
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
            is_over.store(true, Ordering::Relaxed);
        });
    }

    pub(crate) fn restart_server(&mut self) {
        self.server.take().unwrap().stop();
        self.server = Some(Server::start(&self.config).unwrap());
        self.wait_for_nodes();
    }

    /// Returns the bytes of files that each data server has read and written for clients.
    pub(crate) fn node_bytes(&self) -> Vec<Bytes> {
        let running = self.nodes.iter().filter_map(|node| node.process.as_ref());
        running.map(|process| Bytes::of(process.metrics_address().unwrap())).collect()
    }

    /// Returns the metadata server's metrics for Prometheus.
    pub(crate) fn server_metrics(&self) -> String {
        scrape(self.server().metrics_address().unwrap())
    }

    /// Returns all bytes of files that clients have moved.
    pub(crate) fn bytes(&self) -> Moved {
        Moved { nodes: self.node_bytes(), server: self.server_bytes() }
    }

    /// Returns the bytes that clients have moved since then.
    pub(crate) fn since(&self, before: &Moved) -> Moved {
        let nodes = since(&self.node_bytes(), &before.nodes);
        Moved { nodes, server: self.server_bytes().since(before.server) }
    }

    /// Repeats a read until all of so many bytes have come from the running data servers, and none
    /// through the metadata server.
    pub(crate) fn reads_directly(&self, bytes: u64, mut read: impl FnMut()) {
        let end = Instant::now() + PATIENCE;
        loop {
            let before = self.bytes();
            read();
            let moved = self.since(&before);
            if (moved.direct().read, moved.server.read) == (bytes, 0) {
                return;
            }
            assert!(Instant::now() < end, "{moved:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Returns the RDMA transfers of data servers, in calls and in bytes of chunks.
    pub(crate) fn rdma_counts(&self) -> [u64; 3] {
        let running = self.nodes.iter().filter_map(|node| node.process.as_ref());
        let texts: Vec<_> =
            running.map(|process| scrape(process.metrics_address().unwrap())).collect();
        [
            "dafs_data_rdma_calls_total",
            "dafs_data_rdma_read_bytes_total",
            "dafs_data_rdma_written_bytes_total",
        ]
        .map(|name| texts.iter().map(|text| sum(text, name)).sum())
    }

    /// Returns the bytes that went through the metadata server.
    pub(crate) fn server_bytes(&self) -> Bytes {
        Bytes::of(self.server().metrics_address().unwrap())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.stop();
        }
        for node in &mut self.nodes {
            if let Some(process) = node.process.take() {
                process.stop();
            }
        }
    }
}

/// Bytes of files.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bytes {
    pub(crate) read: u64,
    pub(crate) written: u64,
}

/// Bytes of files at each data server, and through the metadata server.
#[derive(Debug)]
pub(crate) struct Moved {
    pub(crate) nodes: Vec<Bytes>,
    pub(crate) server: Bytes,
}

impl Moved {
    /// Returns the sum of all data servers.
    pub(crate) fn direct(&self) -> Bytes {
        let sum = |of: fn(&Bytes) -> u64| self.nodes.iter().map(of).sum();
        Bytes { read: sum(|node| node.read), written: sum(|node| node.written) }
    }
}

impl Bytes {
    /// Returns so many bytes in both directions.
    pub(crate) fn both(bytes: usize) -> Self {
        Self { read: bytes as u64, written: bytes as u64 }
    }

    fn of(metrics: SocketAddr) -> Self {
        let text = scrape(metrics);
        let sum = |name| sum(&text, name);
        Self {
            read: sum("dafs_export_read_bytes_total"),
            written: sum("dafs_export_written_bytes_total"),
        }
    }

    pub(crate) fn since(self, before: Self) -> Self {
        Self { read: self.read - before.read, written: self.written - before.written }
    }
}

fn sum(metrics: &str, name: &str) -> u64 {
    let lines = metrics.lines().filter(|line| line.starts_with(name));
    let values = lines.map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap());
    values.sum::<f64>() as u64
}

/// Returns the differences since then, for each data server.
pub(crate) fn since(now: &[Bytes], before: &[Bytes]) -> Vec<Bytes> {
    now.iter().zip(before).map(|(now, before)| now.since(*before)).collect()
}

impl Cluster {
    /// Mounts over a direct access transport to the metadata server.
    pub(crate) fn mount_by(&self, transport: &str) -> Mount {
        let address = self.server().nfs_rdma_addresses()[0];
        let url = NfsUrl::parse(&format!("nfs+rdma://{address}/?transport={transport}")).unwrap();
        let options = MountOptions { retry_timeout: PATIENCE, ..MountOptions::default() };
        Mount::connect(&url, &options).unwrap()
    }
}

/// Mounts from a server at an address, with further options of the URL.
pub(crate) fn mount(address: SocketAddr, more: &str, data_servers: bool) -> Mount {
    let url = NfsUrl::parse(&format!("nfs://{address}/?vers=4.2{more}")).unwrap();
    let options = MountOptions { retry_timeout: PATIENCE, data_servers, ..MountOptions::default() };
    Mount::connect(&url, &options).unwrap()
}

/// Reads the content of a file, with a request for a little more.
pub(crate) fn content(file: &File, len: usize) -> Vec<u8> {
    let memory = file.mount().allocate(len + 100).unwrap();
    let count = file.read(memory.whole(), 0).unwrap();
    memory.view().slice(0, count).unwrap().to_vec(Site::Inspect)
}
