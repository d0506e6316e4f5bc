//! Linux's own client, in guests of the laboratory, beside ours, over the same three data servers:
//! large writes and reads, and small files. The striped store lies below, and each data server is
//! behind a link with a rate.
//!
//! Not obvious
//! * `lab/kernel-clients.sh` runs the measurement in a network namespace of its own. It starts this
//!   program there for the share of `dafs-nfs-client` (`Here`).

use super::patterns::{SMALL_FILE_BYTES, SMALL_FILES};
use super::{Client, Opens, Options, UNIT_BYTES};
use crate::plot::{Line, Panel};
use crate::targets::Bound;
use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// The amount that each client writes and reads, in MiB.
const MEGABYTES: u64 = 64;

/// The largest number of clients at once.
const COUNTS: [usize; 2] = [1, 2];

const LINUX: &str = "Linux";
const OURS: &str = "dafs-nfs-client";

/// The time of our client for a small file, relative to that of Linux's.
const SMALL_FILE_TARGET: Bound = Bound::AtMost(1.5);

/// The exit status of a script that was skipped; its last line has the reason.
const SKIPPED: i32 = 77;

/// A kind of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Work {
    Write,
    Read,
    SmallWrite,
    SmallRead,
}

impl Work {
    const ALL: [Self; 4] = [Self::Write, Self::Read, Self::SmallWrite, Self::SmallRead];

    /// Its word in the output.
    fn word(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Read => "read",
            Self::SmallWrite => "small-write",
            Self::SmallRead => "small-read",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Write => "write, separate files, 2 MiB",
            Self::Read => "read, separate files, 2 MiB",
            Self::SmallWrite => "small files made",
            Self::SmallRead => "small files read",
        }
    }

    fn unit(self) -> &'static str {
        match self {
            Self::Write | Self::Read => "MB/s",
            Self::SmallWrite | Self::SmallRead => "files/s",
        }
    }
}

/// One measurement.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct KernelCell {
    client: &'static str,
    work: Work,
    clients: usize,
    per_second: f64,
}

/// All measurements.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Kernel {
    pub(super) cells: Vec<KernelCell>,
    pub(super) open_read_close: Option<Opens>,
}

impl Kernel {
    /// Takes one line of the output.
    fn take(&mut self, line: &str) -> Result<()> {
        let words: Vec<_> = line.split_whitespace().collect();
        match words[..] {
            ["rate", client, work, clients, per_second] => {
                let client = [LINUX, OURS].into_iter().find(|known| *known == client);
                let work = Work::ALL.into_iter().find(|known| known.word() == work);
                self.cells.push(KernelCell {
                    client: client.context("an unknown client")?,
                    work: work.context("an unknown kind of work")?,
                    clients: clients.parse()?,
                    per_second: per_second.parse()?,
                });
            }
            ["opens", without_us, with_us] => {
                let (without_us, with_us) = (without_us.parse()?, with_us.parse()?);
                self.open_read_close = Some(Opens { without_us, with_us });
            }
            _ => println!("{line}"),
        }
        Ok(())
    }

    fn rate(&self, client: &str, work: Work, clients: usize) -> Option<f64> {
        let is_it =
            |cell: &&KernelCell| (cell.client, cell.work, cell.clients) == (client, work, clients);
        self.cells.iter().find(is_it).map(|cell| cell.per_second)
    }
}

/// Runs both clients. Prints the reason and returns no cells where guests cannot run.
pub(super) fn measure(options: &Options) -> Result<Kernel> {
    let lab = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../lab");
    let skipped = |reason: &str| {
        println!("pnfs: kernel clients SKIPPED, {reason}");
        Ok(Kernel::default())
    };
    for step in ["check", "build"] {
        let output = Command::new("bash").arg(lab.join("lab.sh")).arg(step).output()?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return skipped(said.lines().last().unwrap_or("there can be no guest"));
        }
    }
    let bench = std::env::current_exe()?;
    let numbers = [MEGABYTES, options.megabits.into(), SMALL_FILES, SMALL_FILE_BYTES];
    let mut script = Command::new("bash");
    script.arg(lab.join("lab.sh")).arg("net").arg(lab.join("kernel-clients.sh")).arg(bench);
    script.args(numbers.map(|number| number.to_string()));
    let mut script = script.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let output = script.stdout.take().context("no output")?;
    let (mut kernel, mut last) = (Kernel::default(), String::new());
    for line in BufReader::new(output).lines() {
        last = line?;
        kernel.take(&last)?;
    }
    match script.wait()? {
        status if status.success() => {}
        status if status.code() == Some(SKIPPED) => return skipped(&last),
        status => bail!("{} failed: {status}", lab.join("kernel-clients.sh").display()),
    }
    let wanted = 2 * COUNTS.len() * Work::ALL.len();
    ensure!(kernel.cells.len() == wanted, "{} of {wanted} rates came", kernel.cells.len());
    Ok(kernel)
}

/// Our share, with a server that runs already.
#[derive(clap::Args, Debug, Clone)]
pub(crate) struct Here {
    /// The server, and options.
    url: String,
    /// The amount that each client writes and reads, in MiB.
    megabytes: u64,
    #[arg(value_delimiter = ',')]
    clients: Vec<usize>,
}

impl Here {
    pub(crate) fn measure(&self) -> Result<()> {
        let bytes = self.megabytes << 20;
        for &count in &self.clients {
            for work in [Work::Write, Work::Read] {
                let seconds = self.run(count, work.word(), bytes, 0)?;
                let megabytes = (bytes * count as u64) as f64 / 1e6;
                println!("rate {OURS} {} {count} {:.3}", work.word(), megabytes / seconds[0]);
            }
            let seconds = self.run(count, "files", bytes, super::patterns::meetings("files"))?;
            for (work, seconds) in [Work::SmallWrite, Work::SmallRead].into_iter().zip(seconds) {
                let files = (SMALL_FILES * count as u64) as f64;
                println!("rate {OURS} {} {count} {:.3}", work.word(), files / seconds);
            }
        }
        let mut client = self.client(0, 1, "opens", 0)?;
        client.expect("ready")?;
        client.go()?;
        let done = client.done()?;
        client.end()?;
        println!("opens {} {}", done.bytes as f64 / 1e3, done.transactions as f64 / 1e3);
        Ok(())
    }

    /// Runs `count` clients at once. Returns the time of each part; there is one more part than
    /// meetings.
    fn run(&self, count: usize, action: &str, bytes: u64, meetings: u64) -> Result<Vec<f64>> {
        let start = |number| self.client(number, count, action, bytes);
        let mut clients = (0..count).map(start).collect::<Result<Vec<_>>>()?;
        let mut times = Vec::new();
        for part in 0..=meetings {
            clients.iter_mut().try_for_each(|client| client.expect("ready"))?;
            times.push(Instant::now());
            clients.iter_mut().try_for_each(Client::go)?;
            if part == meetings {
                clients.iter_mut().try_for_each(|client| {
                    let line = client.line()?;
                    ensure!(line.starts_with("done"), "a client has failed");
                    Ok(())
                })?;
                times.push(Instant::now());
            }
        }
        clients.into_iter().try_for_each(Client::end)?;
        Ok(times.windows(2).map(|two| (two[1] - two[0]).as_secs_f64()).collect())
    }

    fn client(&self, number: usize, count: usize, action: &str, bytes: u64) -> Result<Client> {
        let begin = if ["write", "read"].contains(&action) { 0 } else { number as u64 + 1 };
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["pnfs-load", &self.url, &format!("data/ours{count}-{number}"), action]);
        command.args([begin, bytes, UNIT_BYTES as u64, count as u64].map(|n| n.to_string()));
        // No pattern here builds a tree.
        Client::start(command.arg(PathBuf::from(".")))
    }
}

/// A table with a column for each client.
pub(super) fn print(options: &Options, kernel: &Kernel) {
    if kernel.cells.is_empty() {
        return;
    }
    println!(
        "\nLinux's client in guests and dafs-nfs-client, over three data servers of the striped store, \
         each link {} Mbit/s (all {:.1} MB/s); {MEGABYTES} MiB for each client, {SMALL_FILES} small \
         files of {} KiB",
        options.megabits,
        3.0 * options.link_megabytes(),
        SMALL_FILE_BYTES / 1024,
    );
    print!("\n| |");
    let columns = || COUNTS.into_iter().flat_map(|count| [(LINUX, count), (OURS, count)]);
    columns().for_each(|(client, count)| print!(" {client}, {count} |"));
    print!("\n|---|");
    columns().for_each(|_| print!("---|"));
    for work in Work::ALL {
        print!("\n| {}, {} |", work.title(), work.unit());
        for (client, count) in columns() {
            let text = kernel.rate(client, work, count).map(|rate| format!("{rate:.1}"));
            print!(" {} |", text.unwrap_or_else(|| "-".to_owned()));
        }
    }
    println!();
    verdicts(kernel).for_each(|verdict| println!("{verdict}"));
    if let Some(opens) = kernel.open_read_close {
        println!("\nthe same server:");
        super::table::print_opens(opens);
    }
}

/// The verdicts on the times of small files, one a line.
fn verdicts(kernel: &Kernel) -> impl Iterator<Item = String> {
    let works = [Work::SmallWrite, Work::SmallRead].into_iter();
    works.flat_map(|work| COUNTS.map(|count| (work, count))).map(|(work, count)| {
        let rates = kernel.rate(LINUX, work, count).zip(kernel.rate(OURS, work, count));
        let time = rates.map_or(f64::NAN, |(linux, ours)| linux / ours);
        let (target, verdict) = (SMALL_FILE_TARGET, SMALL_FILE_TARGET.judge(time).name());
        format!(
            "{}, clients: {count}: {time:.2} of Linux's time, {target}: {verdict}",
            work.title()
        )
    })
}

/// The figure's panels: the measured numbers of clients, among all of the figure.
pub(super) fn panels(options: &Options, kernel: &Kernel) -> Vec<Panel> {
    if kernel.cells.is_empty() {
        return Vec::new();
    }
    let panel = |work: Work| {
        let line = |name| Line {
            name,
            values: options
                .clients
                .iter()
                .map(|&count| kernel.rate(name, work, count).unwrap_or(f64::NAN))
                .collect(),
        };
        let title = format!("striped store: {}", work.title());
        Panel { title, unit: work.unit(), lines: [LINUX, OURS].map(line).into() }
    };
    Work::ALL.map(panel).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_files_are_judged_by_time_against_linux() {
        let mut kernel = Kernel::default();
        for line in [
            "rate Linux small-write 1 300",
            "rate dafs-nfs-client small-write 1 200",
            "rate Linux small-read 1 400",
            "rate dafs-nfs-client small-read 1 200",
        ] {
            kernel.take(line).expect("a line");
        }
        let all: Vec<String> = verdicts(&kernel).collect();
        assert_eq!(all[0], "small files made, clients: 1: 1.50 of Linux's time, at most 1.5: met");
        assert!(all[1].ends_with("at most 1.5: cannot be shown here"), "{}", all[1]);
        assert!(all[2].ends_with("2.00 of Linux's time, at most 1.5: not met"), "{}", all[2]);
    }

    #[test]
    fn lines_of_the_script_become_cells_and_the_rest_is_shown() {
        let mut kernel = Kernel::default();
        for line in [
            "--- after 3 s: guests: 1",
            "rate Linux write 1 36.125",
            "rate dafs-nfs-client small-read 2 410.5",
            "opens 812.5 840.25",
        ] {
            kernel.take(line).expect("a line");
        }
        assert_eq!(kernel.cells.len(), 2);
        assert_eq!(kernel.rate(LINUX, Work::Write, 1), Some(36.125));
        assert_eq!(kernel.rate(OURS, Work::SmallRead, 2), Some(410.5));
        assert_eq!(kernel.rate(LINUX, Work::Write, 2), None);
        let opens = kernel.open_read_close.expect("told");
        assert!((opens.added_percent() - 3.415).abs() < 0.01);
        for wrong in ["rate Windows write 1 3", "rate Linux sing 1 3", "rate Linux write 1 fast"] {
            assert!(kernel.take(wrong).is_err(), "{wrong}");
        }
    }
}
