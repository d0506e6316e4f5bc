//! A CephFS whose storage daemons are separate nodes, with dafs in front of it.

use crate::child::Process;
use crate::folder::Folder;
use crate::link::{self, Node};
use crate::peer::find;
use anyhow::{Context, Result, bail, ensure};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Placement groups: enough of them that all daemons get about as many objects.
const GROUPS: &str = "256";

/// The address of a server's metrics, at the head.
pub(super) const METRICS: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 9300);

const NATIVE: &str = include_str!("native.py");

/// The missing requirement, in words, if any.
pub(crate) fn missing() -> Option<String> {
    if let Some(reason) = link::missing() {
        return Some(reason);
    }
    let programs = ["ceph-mon", "ceph-osd", "ceph-mds", "ceph", "osdmaptool", "nsenter", "cc"];
    if let Some(absent) = programs.into_iter().find(|program| find(program).is_none()) {
        return Some(format!("there is no {absent}; run: scripts/setup.sh bench"));
    }
    let bindings =
        Command::new(PYTHON).args(["-c", "import cephfs"]).stderr(Stdio::null()).status();
    match bindings {
        Ok(status) if status.success() => None,
        _ => Some("there is no python3-cephfs; run: scripts/setup.sh bench".to_owned()),
    }
}

/// Debian's Python, whose packages have the bindings.
const PYTHON: &str = "/usr/bin/python3";

/// The running cluster. It ends on drop, with all daemons and its directory.
pub(crate) struct Cluster {
    holder: Child,
    config: PathBuf,
    folder: PathBuf,
}

impl Cluster {
    /// Starts a cluster: monitor and metadata server at `head`, a storage daemon at each of
    /// `storage`. `folder` is for local files.
    pub(crate) fn start(head: &Node, storage: &[Node], folder: &Path) -> Result<Self> {
        let mut nodes = format!("{}\n", head.address());
        for node in storage {
            writeln!(nodes, "{} {}", node.address(), node.namespace().display())?;
        }
        let list = folder.join("nodes");
        std::fs::write(&list, nodes)?;
        std::fs::write(folder.join("native.py"), NATIVE)?;
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../lab/engines/cephfs.sh");
        let mut holder = head.inside(|| {
            Command::new("bash")
                .arg(script)
                .arg("hold")
                .arg(&list)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
        })??;
        let mut line = String::new();
        let output = holder.stdout.take().context("no output")?;
        BufReader::new(output).read_line(&mut line)?;
        let cluster = Self { holder, config: line.trim().into(), folder: folder.to_path_buf() };
        ensure!(cluster.config.is_file(), "the cluster does not start");
        Ok(cluster)
    }

    /// Makes pools, evenly spread, and a directory for each: `wide` lies on all storage daemons,
    /// `narrow` on the first `narrow_daemons`.
    pub(crate) fn prepare(
        &self,
        head: &Node,
        narrow_daemons: usize,
        of: &[(&str, Pool)],
    ) -> Result<()> {
        let daemons: Vec<_> = (0..narrow_daemons).map(|osd| format!("osd.{osd}")).collect();
        let daemons = daemons.join(" ");
        // Rules that name a class exclude daemons without a class.
        let commands = format!(
            "set -e\n\
             ceph osd set-require-min-compat-client luminous\n\
             ceph osd crush set-device-class narrow {daemons}\n\
             ceph osd crush rule create-replicated narrow default osd narrow\n\
             ceph osd pool create narrow {GROUPS} {GROUPS} replicated narrow\n\
             ceph osd pool create wide {GROUPS}\n\
             for pool in wide narrow; do\n\
                 ceph fs add_data_pool cephfs $pool\n\
                 ceph osd getmap -o map\n\
                 osdmaptool map --upmap moves --upmap-pool $pool --upmap-max 512 --upmap-deviation 1\n\
                 bash moves\n\
             done\n"
        );
        self.at(head, "bash", &["-c", &commands])?;
        let directories: Vec<_> =
            of.iter().map(|(directory, pool)| format!("{directory}={}", pool.name())).collect();
        let mut arguments = vec!["prepare"];
        arguments.extend(directories.iter().map(String::as_str));
        self.native(head, &arguments)
    }

    /// Removes the files of a directory.
    pub(crate) fn clear(&self, head: &Node, directory: &str) -> Result<()> {
        self.native(head, &["remove", directory])
    }

    fn native(&self, head: &Node, arguments: &[&str]) -> Result<()> {
        let (script, config) = self.script()?;
        self.at(head, PYTHON, &[&[script.as_str(), &config], arguments].concat())
    }

    fn script(&self) -> Result<(String, String)> {
        let text = |path: PathBuf| path.into_os_string().into_string().ok();
        let script = text(self.folder.join("native.py")).context("a name is not UTF-8")?;
        Ok((script, text(self.config.clone()).context("a name is not UTF-8")?))
    }

    /// The program and arguments of a client of CephFS.
    pub(crate) fn client(&self) -> Result<(PathBuf, Vec<String>)> {
        let (script, config) = self.script()?;
        Ok((PYTHON.into(), vec![script, config]))
    }

    /// Runs a program of Ceph to its end.
    fn at(&self, head: &Node, program: &str, arguments: &[&str]) -> Result<()> {
        let output = head.inside(|| {
            let mut command = Command::new(program);
            command.args(arguments).current_dir(&self.folder).env("CEPH_CONF", &self.config);
            command.stdin(Stdio::null()).output()
        })??;
        if !output.status.success() {
            bail!("{program} {arguments:?} failed: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(())
    }

    /// Starts dafs at `head` with data servers at some nodes, each next to its node's storage
    /// daemon.
    pub(crate) fn serve(
        &self,
        head: &Node,
        directory: &str,
        layouts: &str,
        data_servers: &[(u32, &Node)],
    ) -> Result<Server> {
        let name = directory.trim_start_matches('/');
        let mut text = format!(
            "listen = []\nmetrics_listen = \"{METRICS}\"\nstate_directory = \"{name}.state\"\n\
             [nfs]\nlisten = [\"{address}:2049\"]\n\
             [[export]]\nname = \"data\"\nstore = \"cephfs\"\nsquash = \"none\"\n\
             networks = [\"10.77.0.0/24\"]\nunprivileged_ports = true\n\
             [export.ceph]\nconf = \"{conf}\"\nroot = \"{directory}\"\nlayouts = \"{layouts}\"\n",
            address = head.address(),
            conf = self.config.display(),
        );
        for (osd, node) in data_servers {
            let (address, network) = (node.address(), node.namespace());
            write!(
                text,
                "[[export.ceph.data_server]]\nlisten = \"{address}:2051\"\nosds = [{osd}]\n\
                 network_namespace = \"{}\"\n",
                network.display()
            )?;
        }
        let config = self.folder.join(format!("{name}.toml"));
        std::fs::write(&config, text)?;
        let config = config.to_str().context("a name is not UTF-8")?;
        let process = head.inside(|| Process::start(&["serve-config", config]))??;
        ensure!(!process.address.is_empty(), "dafs does not start");
        Ok(Server { _process: process, _nodes: Vec::new(), _folder: None })
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        let _ = self.holder.wait();
    }
}

/// The pool of a directory's files.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Pool {
    Wide,
    Narrow,
}

impl Pool {
    fn name(self) -> &'static str {
        match self {
            Self::Wide => "wide",
            Self::Narrow => "narrow",
        }
    }
}

/// dafs in front of the cluster, or with data servers of its own.
pub(crate) struct Server {
    /// Killed on drop.
    _process: Process,
    /// Data servers that are processes of their own, and the folder of all their files.
    _nodes: Vec<Process>,
    _folder: Option<Folder>,
}

/// The counters of dafs.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counters {
    /// Bytes from and to clients at data servers.
    pub(crate) data: u64,
    /// The part of these that lay on another node.
    pub(crate) indirect: u64,
}

impl Server {
    /// A server with data servers of its own.
    pub(super) fn of(process: Process, nodes: Vec<Process>, folder: Folder) -> Self {
        Self { _process: process, _nodes: nodes, _folder: Some(folder) }
    }

    pub(crate) fn counters(&self, head: &Node) -> Result<Counters> {
        let text = head.inside(|| -> std::io::Result<String> {
            let (mut socket, mut text) = (TcpStream::connect(METRICS)?, String::new());
            socket.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
            socket.read_to_string(&mut text)?;
            Ok(text)
        })??;
        let value = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.and_then(|value| value.trim().parse::<f64>().ok()).unwrap_or(0.0) as u64
        };
        Ok(Counters {
            data: value("dafs_data_received_bytes_total") + value("dafs_data_sent_bytes_total"),
            indirect: value("dafs_data_indirect_bytes_total"),
        })
    }
}
