//! Memory of an idle server and of a session.

use crate::child::Process;
use crate::report::Report;
use crate::targets::Bound;
use anyhow::{Context, Result};
use dafs_client::{Client, ConnectOptions, DafsUrl, TransportChoice};

const SESSIONS: usize = 200;

pub(crate) fn measure(report: &mut Report) -> Result<()> {
    println!("\nmemory");
    let directory = tempfile::Builder::new().prefix("dafs-bench").tempdir()?;
    let export = directory.path().join("export");
    std::fs::create_dir(&export)?;
    for (name, transport) in [("iwarp", TransportChoice::Iwarp), ("shm", TransportChoice::Shm)] {
        let process = Process::serve(&export, 0, "sleep")?;
        let url = DafsUrl::parse(&process.address)?;
        let options = ConnectOptions { transport, ..ConnectOptions::default() };
        // The first session allocates the memory that all share.
        let first = Client::connect(&url, &options)?;
        first.ping()?;
        let idle = resident_bytes(process.id())?;
        let sessions = (0..SESSIONS).map(|_| Client::connect(&url, &options));
        let sessions = sessions.collect::<Result<Vec<_>, _>>()?;
        for session in &sessions {
            session.ping()?;
        }
        let each = resident_bytes(process.id())?.saturating_sub(idle) / SESSIONS;
        let text = format!("{:.1} MiB (target: under 20)", idle as f64 / f64::from(1 << 20));
        report.figure(&format!("idle server, {name}, bytes"), idle as f64, &text);
        let mib = idle as f64 / f64::from(1 << 20);
        report.judge(&format!("memory: idle server, {name}"), Bound::AtMost(20.0), mib, "MiB");
        let text = format!("{:.1} KiB (target: under 64 plus buffers)", each as f64 / 1024.0);
        report.figure(&format!("idle session, {name}, bytes"), each as f64, &text);
    }
    Ok(())
}

pub(crate) fn resident_bytes(pid: u32) -> Result<usize> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = text.lines().find(|line| line.starts_with("VmRSS:")).context("no VmRSS")?;
    let number = line.split_whitespace().nth(1).context("no number in VmRSS")?;
    Ok(number.parse::<usize>()? * 1024)
}
