//! `dafs doctor`: the transports that work on this host, the obstacles, and their remedies.
//!
//! Invariants
//! * The command changes no state: it reads files below /sys, /proc, /etc and /usr, and the
//!   transfers stay inside this process.
//! * All files are read through [`host::Host`], so tests can run each judgement on made-up files.
//! * A problem is a defect of something that is installed. Something that is merely not installed
//!   is a note.

mod addresses;
mod devices;
mod finding;
mod host;
mod kerberos;
mod libraries;
mod limits;
mod modules;
mod names;
mod nfs;
mod ports;
mod sandbox;
mod tcp;
mod tls;
mod transfer;
mod transports;

use crate::cli::SessionOptions;
use crate::failure::Failure;
use dafs_sandbox::Kernel;
use dafs_server::Config;
use finding::{Finding, Level};
use host::Host;
use serde_json::json;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

/// Find out which transports work on this host, and the obstacles
///
/// Checks RDMA devices, kernel modules, libraries, limits and ports, and moves data over each
/// transport that works here. With --config it checks what a server needs for that configuration,
/// too. Exit status 1 if there is a problem.
#[derive(Debug, clap::Args)]
pub(crate) struct Doctor {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Print problems alone, and no notes about things that a host may do without
    #[arg(short, long)]
    quiet: bool,
    /// Check what a server with this configuration file needs: its Kerberos keys, its
    /// name, its certificates
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Say which user this Kerberos principal is, or this user of a certificate, and by which rule of
    /// the configuration
    #[arg(long, value_name = "USER@REALM", requires = "config")]
    principal: Option<String>,
}

impl Doctor {
    pub(crate) fn run(&self, session: &SessionOptions) -> Result<(), Failure> {
        if let Some(option) = session.client_only() {
            let text = format!("{option} is for clients and means nothing to doctor; leave it out");
            return Err(Failure::Usage(text));
        }
        let host = Host::here();
        let mut findings = examine(&host);
        findings.extend(names::check(&host, dafs_dat::shm::holder));
        findings.extend(sandbox::check(Kernel::of_this_host(), &host));
        findings.extend(transports::check(&host, &devices::find(&host)));
        if let Some(path) = &self.config {
            let config = Config::load(path).map_err(|error| Failure::Usage(error.to_string()))?;
            findings.extend(kerberos::check(&host, &config));
            let principal = self.principal.iter();
            findings.extend(principal.flat_map(|name| kerberos::explain(&config, name)));
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            findings.extend(tls::check(&config, now.map_or(0, |now| now.as_secs())));
        }
        self.print(&findings).map_err(|error| Failure::local("cannot print", &error))?;
        let problems = findings.iter().any(|finding| finding.level == Level::Problem);
        if problems { Err(Failure::Reported) } else { Ok(()) }
    }

    fn print(&self, findings: &[Finding]) -> io::Result<()> {
        let mut out = io::stdout().lock();
        let is_shown = |finding: &&Finding| !self.quiet || finding.level == Level::Problem;
        let shown: Vec<_> = findings.iter().filter(is_shown).collect();
        if self.json {
            let count = |level| findings.iter().filter(|finding| finding.level == level).count();
            let (problems, notes) = (count(Level::Problem), count(Level::Note));
            let report = json!({ "problems": problems, "notes": notes, "findings": shown });
            return writeln!(out, "{report}");
        }
        shown.iter().try_for_each(|finding| writeln!(out, "{finding}"))
    }
}

/// Everything but the transfers.
fn examine(host: &Host) -> Vec<Finding> {
    let devices = devices::find(host);
    let own_limits = limits::Limits::of_this_process(host);
    [
        devices::check(host, &devices),
        modules::check(host, &devices),
        libraries::check(host, &devices),
        limits::check(&own_limits, !devices.is_empty()),
        ports::check(host),
        tcp::check(host),
        nfs::check(host),
    ]
    .concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use host::fake::Fake;

    #[test]
    fn an_empty_host_has_no_problem() {
        let findings = examine(&Fake::new().host());
        assert!(findings.iter().all(|finding| finding.level != Level::Problem), "{findings:?}");
        assert!(findings.iter().any(|finding| finding.topic == "rdma device"));
    }

    #[test]
    fn each_problem_has_a_remedy() {
        let fake = Fake::new();
        fake.file("sys/class/infiniband/siw0/node_type", "4: RNIC");
        fake.file("sys/class/infiniband/siw0/ports/1/state", "1: DOWN");
        for finding in examine(&fake.host()) {
            assert_eq!(finding.level == Level::Ok, finding.fix.is_none(), "{finding}");
        }
    }
}
