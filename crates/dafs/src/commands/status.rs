//! `dafs status`: a running server on one screen.

use super::admin::{Place, other_answer};
use crate::failure::Failure;
use crate::limits::STATUS_INTERVAL;
use crate::output::{say, say_json};
use dafs_server::{AdminReply, AdminRequest, ExportReport, StatusReport};
use indicatif::{BinaryBytes, FormattedDuration};
use std::time::{Duration, Instant};

/// Show version, uptime, load, clients and exports of a running server
#[derive(Debug, clap::Args)]
pub(crate) struct Status {
    #[command(flatten)]
    place: Place,
    /// Print one JSON object, with counts since the start instead of rates
    #[arg(long)]
    json: bool,
}

impl Status {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        let (begin, before) = (Instant::now(), self.look()?);
        if self.json {
            return say_json(&before);
        }
        std::thread::sleep(STATUS_INTERVAL);
        let after = self.look()?;
        show(&before, &after, begin.elapsed())
    }

    fn look(&self) -> Result<StatusReport, Failure> {
        match self.place.ask(&AdminRequest::Status)? {
            AdminReply::Status(status) => Ok(status),
            _ => Err(other_answer()),
        }
    }
}

fn show(before: &StatusReport, now: &StatusReport, time: Duration) -> Result<(), Failure> {
    let seconds = time.as_secs_f64();
    // A reload may have removed exports, and their counts.
    let rate = |count: fn(&ExportReport) -> u64| {
        let sum = |status: &StatusReport| status.exports.iter().map(count).sum::<u64>();
        sum(now).saturating_sub(sum(before)) as f64 / seconds
    };
    let bytes = |rate: f64| BinaryBytes(rate as u64);
    let addresses: Vec<_> = now.addresses.iter().map(|at| format!("dafs://{at}/")).collect();
    say!(
        "dafs {}, process {}, up {}, {}",
        now.version,
        now.process,
        FormattedDuration(Duration::from_secs(now.uptime_seconds)),
        addresses.join(" ")
    )?;
    say!(
        "load: {:.0} requests/s, {}/s read, {}/s written, {:.0} % of a core; of the host {:.2}",
        rate(|export| export.operations),
        bytes(rate(|export| export.read_bytes)),
        bytes(rate(|export| export.written_bytes)),
        now.cpu_milliseconds.saturating_sub(before.cpu_milliseconds) as f64 / seconds / 10.0,
        now.host_load_milli as f64 / 1000.0
    )?;
    say!(
        "clients: {} of DAFS, {} of NFSv4, {} connections; {} files open, {} locks, {} waiting, {} delegations",
        now.dafs_clients,
        now.nfs_clients,
        now.connections,
        now.open_files,
        now.locks,
        now.lock_waiters,
        now.delegations
    )?;
    say!("{:>12} {:>10} {:>10} {:>10}  export", "requests", "refused", "read", "written")?;
    now.exports.iter().try_for_each(|export| {
        let read_only = if export.read_only { " (read-only)" } else { "" };
        say!(
            "{:>12} {:>10} {:>10} {:>10}  /{}{read_only}",
            export.operations,
            export.errors,
            BinaryBytes(export.read_bytes).to_string(),
            BinaryBytes(export.written_bytes).to_string(),
            export.name
        )
    })
}
