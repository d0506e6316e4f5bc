//! `dafs cluster scrub`: comparison of the copies of files.

use super::progress::{Meter, Progress};
use crate::commands::admin::{Place, other_answer};
use crate::failure::Failure;
use crate::output::{complain, say, say_json};
use crate::show::readable;
use dafs_server::{AdminReply, AdminRequest, FaultReport, ScrubOrder, ScrubReport};
use indicatif::BinaryBytes;
use std::time::Duration;

/// Compare the copies of each file on its data servers, and repair those that are wrong
///
/// The data servers read the files and compute checksums. A copy is repaired if it is missing or cannot be read,
/// or if more than half of the copies are equal without it. Otherwise the file is reported, and nothing is changed:
/// see `dafs cluster repair`. Of files with stripes it shows whether they can be read. Files that are written to
/// are compared later. The comparison goes on in the server when this command is interrupted. The exit status is
/// 1 if a fault remains, or a file was not compared.
#[derive(Debug, clap::Args)]
pub(super) struct Scrub {
    /// The export to compare, if several have nodes
    #[arg(long)]
    export: Option<String>,
    /// Report faults, and repair nothing
    #[arg(long, short = 'n')]
    dry_run: bool,
    /// Let each data server read at most so many bytes per second; k, m or g may follow the number
    #[arg(long, value_name = "BYTES", default_value = "64m", value_parser = crate::commands::bench::bytes)]
    bwlimit: u64,
    /// Follow the comparison that is running, or show the last one
    #[arg(long, conflicts_with_all = ["dry_run", "bwlimit", "stop"])]
    show: bool,
    /// End the comparison that is running
    #[arg(long, conflicts_with_all = ["dry_run", "bwlimit"])]
    stop: bool,
    /// Print one JSON object at the end
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: Place,
}

/// Time between two queries.
const LOOK: Duration = Duration::from_millis(500);

impl Scrub {
    pub(super) fn run(&self) -> Result<(), Failure> {
        let mut report = self.order(match (self.stop, self.show) {
            (true, _) => ScrubOrder::Stop,
            (_, true) => ScrubOrder::Show,
            _ => {
                let (bytes_per_second, mend) = (Some(self.bwlimit), !self.dry_run);
                ScrubOrder::Start { bytes_per_second, mend }
            }
        })?;
        let mut meter = Meter::new();
        while report.running {
            let progress = Progress { files: report.files, bytes: report.bytes, left: None };
            let note = match report.waiting_files {
                0 => String::new(),
                count => format!("{count} in use, to be compared later"),
            };
            meter.show(&progress, &note);
            std::thread::sleep(LOOK);
            report = self.order(ScrubOrder::Show)?;
        }
        drop(meter);
        if self.json {
            say_json(&report)?;
        } else {
            show(&report)?;
        }
        match is_sound(&report) || self.stop {
            true => Ok(()),
            false => Err(Failure::Reported),
        }
    }

    fn order(&self, order: ScrubOrder) -> Result<ScrubReport, Failure> {
        match self.place.ask(&AdminRequest::Scrub { export: self.export.clone(), order })? {
            AdminReply::Scrub(report) => Ok(report),
            _ => Err(other_answer()),
        }
    }
}

/// True if all files were compared, and all faults are being repaired.
fn is_sound(report: &ScrubReport) -> bool {
    let unknown = report.in_use_files + report.away_files;
    let is_whole = !report.stopped && report.trouble.is_empty();
    is_whole && unknown == 0 && report.faulty_files == report.mended_files
}

fn show(report: &ScrubReport) -> Result<(), Failure> {
    report.faults.iter().try_for_each(|fault| say!("{}", line(fault)))?;
    if !report.trouble.is_empty() {
        complain!("dafs: {}", readable(report.trouble.as_bytes()));
    }
    say!("{}", summary(report))
}

/// Returns a fault on one line.
fn line(fault: &FaultReport) -> String {
    let FaultReport { path, node, fault, right, mended } = fault;
    let outcome = match (mended, right) {
        (true, _) => "is being repaired".to_owned(),
        (false, Some(right)) => format!("node {right} has a right copy"),
        (false, None) => "it is not known which copy is right".to_owned(),
    };
    format!("{}: node {node}: {fault}; {outcome}", readable(path.as_bytes()))
}

/// Returns the whole outcome on one line. Counts of zero are left out.
fn summary(report: &ScrubReport) -> String {
    let seconds = report.milliseconds as f64 / 1000.0;
    let (files, bytes) = (report.files, BinaryBytes(report.bytes));
    let mut text = format!("{files} files compared, {bytes} in {seconds:.1} s");
    for (count, words) in [
        (report.faulty_files, "damaged"),
        (report.mended_files, "being repaired"),
        (report.in_use_files, "not compared because they were in use"),
        (report.away_files, "not compared because a node is missing"),
    ] {
        if count > 0 {
            text.push_str(&format!(", {count} {words}"));
        }
    }
    if report.stopped {
        text.push_str("; stopped before the end");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_is_sound_only_if_all_was_compared_and_is_repaired() {
        let sound =
            ScrubReport { files: 2, bytes: 3 << 20, milliseconds: 1500, ..Default::default() };
        assert!(is_sound(&sound));
        assert_eq!(summary(&sound), "2 files compared, 3.00 MiB in 1.5 s");
        let repaired = ScrubReport { faulty_files: 1, mended_files: 1, ..sound.clone() };
        assert!(is_sound(&repaired));
        let away = ScrubReport { away_files: 1, ..sound.clone() };
        assert!(!is_sound(&away) && summary(&away).ends_with("because a node is missing"));
        let stopped = ScrubReport { stopped: true, ..sound.clone() };
        assert!(!is_sound(&stopped) && summary(&stopped).ends_with("before the end"));
        assert!(!is_sound(&ScrubReport { faulty_files: 1, ..sound }));
    }

    #[test]
    fn a_fault_tells_its_node_and_what_becomes_of_it() {
        let (path, fault) = ("/safe/f".to_owned(), "differs".to_owned());
        let fault = FaultReport { path, node: 2, fault, right: None, mended: false };
        let text = "/safe/f: node 2: differs; it is not known which copy is right";
        assert_eq!(line(&fault), text);
        let strange = FaultReport { path: "/a\nb".to_owned(), ..fault.clone() };
        assert!(line(&strange).starts_with("/a\\nb: node 2"), "users choose the names of files");
        let mended = FaultReport { right: Some(1), mended: true, ..fault.clone() };
        assert_eq!(line(&mended), "/safe/f: node 2: differs; is being repaired");
        let known = FaultReport { right: Some(1), ..fault };
        assert_eq!(line(&known), "/safe/f: node 2: differs; node 1 has a right copy");
    }
}
