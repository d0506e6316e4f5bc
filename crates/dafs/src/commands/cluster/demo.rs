//! `dafs cluster demo`: a cluster on loopback, for demonstration.

use crate::commands::serve::{set_umask, start_failure};
use crate::failure::Failure;
use crate::output::say;
use dafs_server::{
    ClusterSecret, Config, DataProcess, DataRdma, DataServerConfig, ExportSource, NodeConfig,
    NodePlace, Server, parse_listen, parse_listen_nfs,
};
use dafs_service::{Admits, Squash};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

/// Bytes of a stripe: short, so that a small file shows them.
const STRIPE_BYTES: NonZeroU32 = NonZeroU32::new(64 << 10).unwrap();

/// Run a metadata server and three data servers on loopback, until a signal ends them
///
/// All are in this one process, and communicate over connections as servers of different machines
/// do.
#[derive(Debug, clap::Args)]
pub(super) struct Demo {
    /// Where to keep everything; made if it does not exist, and used again by the next demo
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Where DAFS clients connect
    #[arg(long, value_name = "HOST:PORT", value_parser = parse_listen, default_value = "127.0.0.1:20490")]
    listen: SocketAddr,
    /// Where NFS clients connect
    #[arg(long, value_name = "HOST:PORT", value_parser = parse_listen_nfs, default_value = "127.0.0.1:12049")]
    nfs: SocketAddr,
    /// Number of data servers that hold a whole copy of each new file, instead of stripes on all
    #[arg(long, value_name = "COPIES", default_value = "1", value_parser = copies)]
    copies: usize,
}

fn copies(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|copies| (1..=3).contains(copies)).ok_or("use 1 to 3".to_owned())
}

impl Demo {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let mut signals = Signals::new([SIGTERM, SIGINT])
            .map_err(|error| Failure::local("cannot handle signals", &error))?;
        let secret = self.make("names").and_then(|_| {
            // The modes of names decide about access; the umask protects all other files.
            set_umask();
            let secret = self.directory.join("secret");
            if !secret.exists() {
                ClusterSecret::make(&secret).map_err(|error| Failure::Failed(error.to_string()))?;
            }
            Ok(secret)
        })?;
        let data = (1..=3).map(|number| self.data_server(number, &secret));
        let data = data.collect::<Result<Vec<_>, _>>()?;
        let server = self.server(&data, &secret)?;
        for (number, data) in (1..).zip(&data) {
            let (control, nfs) = (data.control_address(), data.nfs_address());
            let dafs = data.dafs_address().map(|address| format!(", DAFS {address}"));
            say!("data server {number}: control {control}, NFS {nfs}{}", dafs.unwrap_or_default())?;
        }
        let url = server.url();
        say!("try:  dafs put FILE {url}FILE")?;
        for line in server.mount_lines("127.0.0.1") {
            // Later minor versions use pNFS as well.
            say!("or:   {line}")?;
        }
        say!("and:  dafs cluster status --state-directory {}", self.state().display())?;
        say!("ready {url}")?;
        signals.forever().next();
        server.stop();
        data.into_iter().for_each(DataProcess::stop);
        Ok(())
    }

    fn state(&self) -> PathBuf {
        self.directory.join("state")
    }

    fn make(&self, name: &str) -> Result<PathBuf, Failure> {
        let path = self.directory.join(name);
        std::fs::create_dir_all(&path).map_err(|error| Failure::local(path.display(), &error))?;
        Ok(path)
    }

    fn data_server(&self, number: u32, secret: &Path) -> Result<DataProcess, Failure> {
        let directory = self.make(&format!("data{number}"))?;
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let config = DataServerConfig {
            general: Config::for_directory(directory.clone()),
            directory,
            engine: None,
            cluster_secret: secret.to_owned(),
            control: any,
            nfs: any,
            rdma: DataRdma::default(),
            dafs: Some(any),
            dafs_verbs: false,
            admits: Admits { unprivileged_ports: true, ..Admits::default() },
        };
        DataProcess::start(config).map_err(|error| start_failure(&error))
    }

    fn server(&self, data: &[DataProcess], secret: &Path) -> Result<Server, Failure> {
        let names = self.make("names")?;
        let mut config = Config::for_directory(names.clone());
        let node = |(number, data): (u32, &DataProcess)| NodeConfig {
            number,
            place: NodePlace::Remote(data.control_address().to_string()),
        };
        let export = &mut config.exports[0];
        export.source = ExportSource::Striped {
            path: names,
            unit_bytes: STRIPE_BYTES,
            copies: self.copies,
            nodes: (1..).zip(data).map(node).collect(),
            cluster_secret: Some(secret.to_owned()),
        };
        export.options.squash = Squash::None;
        export.options.admits.unprivileged_ports = true;
        config.listen = vec![self.listen];
        config.nfs.listen = vec![self.nfs];
        config.state_directory = Some(self.state());
        Server::start(&config).map_err(|error| start_failure(&error))
    }
}
