//! The server that is started for a measurement.
//!
//! Invariants
//! * It ends with its value, in order if it does so in time.

use super::measure::Variant;
use crate::failure::Failure;
use crate::remote::RemoteUrl;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Time for its end.
const END_TIME: Duration = Duration::from_secs(2);

/// A server of this command on loopback and in shared memory, for a directory of its own.
pub(super) struct OwnServer {
    child: Child,
    log: PathBuf,
    url: String,
}

impl OwnServer {
    pub(super) fn start(dir: &Path) -> Result<Self, Failure> {
        let failed =
            |error: std::io::Error| Failure::local("cannot start a server to measure", &error);
        let (export, log) = (dir.join("export"), dir.join("log"));
        fs::create_dir(&export).map_err(failed)?;
        let program = std::env::current_exe().map_err(failed)?;
        let options =
            ["--listen", "127.0.0.1:0", "--nfs", "127.0.0.1:0", "--nfs-unprivileged-ports"];
        let child = Command::new(program)
            .arg("serve")
            .arg(&export)
            .args(options)
            .args(["--no-root-squash", "--optimistic", "--log", "info", "--state-directory"])
            .arg(dir.join("state"))
            // The keys of a terminal end the measurement, and that ends the server.
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(fs::File::create(&log).map_err(failed)?)
            .spawn()
            .map_err(failed)?;
        let mut this = Self { child, log, url: String::new() };
        let mut line = String::new();
        if let Some(output) = this.child.stdout.take() {
            BufReader::new(output).read_line(&mut line).map_err(failed)?;
        }
        match line.trim().strip_prefix("ready ") {
            Some(url) => {
                this.url = url.to_owned();
                Ok(this)
            }
            None => {
                let text = this.said();
                let last = text.lines().last().unwrap_or("it says nothing");
                Err(Failure::Failed(format!("the server for a measurement does not start: {last}")))
            }
        }
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The transports of this server, NFS over TCP last.
    pub(super) fn urls(&self) -> Result<Vec<Variant>, Failure> {
        let url = self.url.trim_end_matches('/');
        // Its line in the log ends with the address.
        let said = self.said();
        let nfs = said.lines().filter(|line| line.contains("listening for NFS"));
        let nfs = nfs
            .filter(|line| !line.contains("RDMA"))
            .find_map(|line| line.split("address=").nth(1));
        let mut variants = vec![
            ("shm", false, format!("{url}/?transport=shm")),
            ("shm", true, format!("{url}/?transport=shm&optimistic=yes")),
            ("iwarp", false, format!("{url}/?transport=iwarp")),
        ];
        if let Some(address) = nfs.and_then(|rest| rest.split_whitespace().next()) {
            variants.push(("tcp", false, format!("nfs://{address}/")));
        }
        let variant =
            |(name, optimistic, url): (&'static str, bool, String)| -> Result<Variant, Failure> {
                let url = RemoteUrl::parse(&url).map_err(Failure::Usage)?;
                Ok(Variant { url, name, optimistic })
            };
        variants.into_iter().map(variant).collect()
    }
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let begin = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) {
            if begin.elapsed() > END_TIME {
                let _ = self.child.kill();
                let _ = self.child.wait();
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}
