//! The results of a run, as its JSON file has them.
//!
//! Invariants
//! * Sample n of each row is of round n, so that two rows are compared within a round.
//! * The file is replaced as a whole: an interrupted run leaves the rows that it has measured.

use super::cells::{Cell, Line, Network, Way};
use super::groups::Groups;
use super::programs::Programs;
use crate::report::{self, median};
use anyhow::{Context, Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// The result of one cell in one round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sample {
    pub(crate) operations: u64,
    pub(crate) bytes: u64,
    pub(crate) elapsed_ns: u64,
    pub(crate) client_cpu_ns: u64,
    pub(crate) server_cpu_ns: u64,
    /// Bytes that the client's program has copied; unknown for a program of others.
    pub(crate) copied_bytes: Option<u64>,
    /// Bytes that the client's node has received; unknown without a node.
    pub(crate) crossed_bytes: Option<u64>,
}

impl From<report::Sample> for Sample {
    fn from(sample: report::Sample) -> Self {
        let ns = |time: std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Self {
            operations: sample.operations,
            bytes: sample.bytes,
            elapsed_ns: ns(sample.elapsed),
            client_cpu_ns: ns(sample.client_cpu),
            server_cpu_ns: ns(sample.server_cpu),
            copied_bytes: None,
            crossed_bytes: None,
        }
    }
}

/// A quantity of a sample, in the unit that people read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Quantity {
    /// MB/s.
    Throughput,
    /// Microseconds of an operation.
    Elapsed,
    /// Microseconds of the client's processor for an operation.
    ClientCpu,
    /// The same of the server's.
    ServerCpu,
    /// Milliseconds of the client's processor for a megabyte.
    ClientCpuPerMegabyte,
    /// The part of the elapsed time in which the client's processor was busy.
    ClientShare,
    /// The part in which a client of one processor was idle.
    IdleShare,
    /// The same of the busier of both ends.
    BusierShare,
    /// The processor time of both ends relative to the elapsed time.
    BothShare,
    /// Bytes that the client's program copies for each byte it reads.
    Copies,
}

impl Quantity {
    pub(crate) fn unit(self) -> &'static str {
        match self {
            Self::Throughput => "MB/s",
            Self::Elapsed => "us",
            Self::ClientCpu => "client CPU us",
            Self::ServerCpu => "server CPU us",
            Self::ClientCpuPerMegabyte => "client CPU ms per MB",
            Self::ClientShare => "client CPU share",
            Self::IdleShare => "client idle share",
            Self::BusierShare => "CPU share",
            Self::BothShare => "CPU share of both ends together",
            Self::Copies => "copies per byte",
        }
    }

    pub(super) fn of(self, sample: &Sample) -> f64 {
        let operations = sample.operations.max(1) as f64;
        let bytes = sample.bytes.max(1) as f64;
        let elapsed_ns = sample.elapsed_ns.max(1) as f64;
        let client_ns = sample.client_cpu_ns as f64;
        match self {
            Self::Throughput => bytes * 1e3 / elapsed_ns,
            Self::Elapsed => elapsed_ns / 1e3 / operations,
            Self::ClientCpu => client_ns / 1e3 / operations,
            Self::ServerCpu => sample.server_cpu_ns as f64 / 1e3 / operations,
            Self::ClientCpuPerMegabyte => client_ns / bytes,
            Self::ClientShare => client_ns / elapsed_ns,
            Self::IdleShare => 1.0 - client_ns / elapsed_ns,
            Self::BusierShare => client_ns.max(sample.server_cpu_ns as f64) / elapsed_ns,
            Self::BothShare => (client_ns + sample.server_cpu_ns as f64) / elapsed_ns,
            Self::Copies => sample.copied_bytes.map_or(f64::NAN, |copied| copied as f64 / bytes),
        }
    }
}

/// All rounds of a cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    #[serde(flatten)]
    pub(crate) cell: Cell,
    pub(crate) samples: Vec<Sample>,
}

/// Cells that this machine cannot measure: those of a network, of a way, of both, or all. Or one cell
/// that has failed: its earlier rounds stay in the file, and decide nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Skipped {
    pub(crate) network: Option<Network>,
    pub(crate) way: Option<Way>,
    #[serde(default)]
    pub(crate) cell: Option<Cell>,
    pub(crate) reason: String,
}

impl Skipped {
    /// The rows in words.
    pub(crate) fn rows(&self) -> String {
        if let Some(cell) = self.cell {
            return cell.to_string();
        }
        let rows = [self.network.map(Network::name), self.way.map(Way::name)];
        let rows: Vec<&str> = rows.into_iter().flatten().collect();
        if rows.is_empty() { "all".to_owned() } else { rows.join(" ") }
    }

    fn covers(&self, cell: &Cell) -> bool {
        self.network.is_none_or(|network| network == cell.network)
            && self.way.is_none_or(|way| way == cell.way)
            && self.cell.is_none_or(|one| one == *cell)
    }
}

/// A row that has failed and was tried once more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Retried {
    pub(crate) rows: String,
    pub(crate) reason: String,
}

/// A run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Results {
    pub(crate) machine: BTreeMap<String, String>,
    /// The commit of the sources.
    pub(crate) version: String,
    /// The only experiments that were wanted; none where all were.
    #[serde(default)]
    pub(crate) only: Vec<String>,
    pub(crate) rounds: usize,
    pub(crate) milliseconds: u64,
    /// The rate of links, in Mbit/s.
    pub(crate) megabits: u32,
    /// The run has come to its end.
    pub(crate) is_complete: bool,
    pub(crate) skipped: Vec<Skipped>,
    /// Of the sweep and of programs.
    #[serde(default)]
    pub(crate) retried: Vec<Retried>,
    pub(crate) rows: Vec<Row>,
    #[serde(default)]
    pub(crate) programs: Programs,
    #[serde(default)]
    pub(crate) groups: Groups,
}

impl Results {
    pub(crate) fn new(rounds: usize, milliseconds: u64, megabits: u32) -> Self {
        let describe = ["describe", "--always", "--dirty", "--abbrev=12"];
        let version = Command::new("git").args(describe).output().ok();
        let version = version.filter(|output| output.status.success());
        let version =
            version.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
        Self {
            machine: report::machine(),
            version: version.unwrap_or_else(|| "unknown".to_owned()),
            only: Vec::new(),
            rounds,
            milliseconds,
            megabits,
            is_complete: false,
            skipped: Vec::new(),
            retried: Vec::new(),
            rows: Vec::new(),
            programs: Programs::default(),
            groups: Groups::default(),
        }
    }

    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        serde_json::from_str(&text).with_context(|| format!("{} has no results", path.display()))
    }

    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory)?;
        }
        let part = path.with_extension("part");
        std::fs::write(&part, serde_json::to_string(self)?)?;
        Ok(std::fs::rename(part, path)?)
    }

    /// The reason why this machine cannot measure a cell, if it cannot.
    pub(crate) fn reason(&self, cell: &Cell) -> Option<&str> {
        let skipped = self.skipped.iter().find(|skipped| skipped.covers(cell))?;
        Some(&skipped.reason)
    }

    /// Notes and prints that a row has failed and is tried once more.
    pub(crate) fn retry(&mut self, rows: String, error: &Error) {
        let reason = format!("{error:#}");
        println!("{rows}: {reason}; it is tried once more");
        self.retried.push(Retried { rows, reason });
    }

    /// Adds the next round of a cell.
    pub(crate) fn add(&mut self, cell: Cell, sample: Sample) {
        match self.rows.iter_mut().find(|row| row.cell == cell) {
            Some(row) => row.samples.push(sample),
            None => self.rows.push(Row { cell, samples: vec![sample] }),
        }
    }

    /// All rounds of a cell, or the reason why there are none. Rounds before a failure are none: the
    /// others might have said something else.
    fn samples(&self, cell: &Cell) -> Result<&[Sample], String> {
        if let Some(reason) = self.reason(cell) {
            return Err(reason.to_owned());
        }
        let row = self.rows.iter().find(|row| row.cell == *cell);
        let samples = row.map(|row| &row.samples[..]).filter(|samples| !samples.is_empty());
        samples.ok_or_else(|| "its rows were not measured in this run".to_owned())
    }

    /// The median of a quantity over the rounds of a cell.
    pub(crate) fn value(&self, quantity: Quantity, cell: &Cell) -> Result<f64, String> {
        let samples = self.samples(cell)?;
        Ok(median(samples.iter().map(|sample| quantity.of(sample)).collect()))
    }

    /// The median of the ratios of a quantity of two cells in each round.
    pub(crate) fn ratio(&self, quantity: Quantity, of: &Cell, to: &Cell) -> Result<f64, String> {
        let pairs = self.samples(of)?.iter().zip(self.samples(to)?);
        Ok(median(pairs.map(|(of, to)| quantity.of(of) / quantity.of(to)).collect()))
    }

    /// The values along a line; not a number where there is none.
    pub(crate) fn values(&self, quantity: Quantity, line: Line) -> Vec<f64> {
        line.cells().map(|cell| self.value(quantity, &cell).unwrap_or(f64::NAN)).collect()
    }

    /// The rate of links, in MB/s.
    pub(crate) fn link_megabytes(&self) -> f64 {
        f64::from(self.megabits) / 8.0
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::cells::{self, Order};
    use super::super::programs::trials;
    use super::*;

    /// A run of two rounds, in which the time of all cells is `elapsed_ns` of the cell for an
    /// operation in the first round, and twice that in the second.
    pub(crate) fn run(elapsed_ns: impl Fn(&Cell) -> u64) -> Results {
        let mut results = Results { version: "v".to_owned(), ..Results::new(2, 100, 1000) };
        for round in 1..=2 {
            for cell in cells::wanted(&[], &[]) {
                let elapsed_ns = elapsed_ns(&cell) * round;
                let sample = Sample {
                    operations: 1,
                    bytes: cell.block as u64,
                    elapsed_ns,
                    client_cpu_ns: elapsed_ns / 2,
                    server_cpu_ns: elapsed_ns / 4,
                    copied_bytes: Some(0),
                    crossed_bytes: None,
                };
                results.add(cell, sample);
            }
            for trial in trials::wanted(&[]) {
                let sample = Sample {
                    operations: 1,
                    bytes: 1000,
                    elapsed_ns: 1000 * round,
                    client_cpu_ns: 500 * round,
                    server_cpu_ns: 250 * round,
                    copied_bytes: None,
                    crossed_bytes: None,
                };
                results.programs.add(trial, sample, None);
            }
        }
        results.is_complete = true;
        results
    }

    #[test]
    fn results_are_the_same_after_a_round_trip_through_their_file() {
        let mut results = run(|cell| cell.block as u64);
        results.skipped.push(Skipped {
            network: Some(Network::Far),
            way: None,
            cell: None,
            reason: "no netem".to_owned(),
        });
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("new/papers.json");
        results.write(&path).expect("written");
        assert_eq!(Results::read(&path).expect("read"), results);
        assert_eq!(std::fs::read_dir(path.parent().expect("a folder")).expect("it").count(), 1);
        std::fs::write(&path, "{").expect("written");
        assert!(Results::read(&path).is_err());
    }

    #[test]
    fn rows_are_compared_round_by_round_and_missing_ones_have_a_reason() {
        let cell =
            |way, network| Cell { block: 4096, depth: 1, order: Order::Random, network, way };
        let (iwarp, nfs) = (cell(Way::DafsIwarp, Network::Link), cell(Way::NfsTcp, Network::Link));
        let mut results = run(|cell| if cell.way == Way::NfsTcp { 300 } else { 100 });
        let ratio = results.ratio(Quantity::Elapsed, &nfs, &iwarp).expect("both are there");
        assert!((ratio - 3.0).abs() < 1e-9, "{ratio}");
        let value = results.value(Quantity::Throughput, &iwarp).expect("it is there");
        assert!((value - 4096.0 * 1e3 / 100.0).abs() < 1e-6, "{value}");
        results.rows.retain(|row| row.cell.network != Network::Link);
        let reason = results.value(Quantity::Elapsed, &iwarp).expect_err("no row");
        assert_eq!(reason, "its rows were not measured in this run");
        let (network, reason) = (Some(Network::Link), "there is no tc".to_owned());
        results.skipped.push(Skipped { network, way: None, cell: None, reason });
        let reason = results.value(Quantity::Elapsed, &iwarp).expect_err("no row");
        assert_eq!(reason, "there is no tc");
        let free = cell(Way::DafsIwarp, Network::Free);
        assert!(results.reason(&free).is_none());
        // The earlier rounds of one that fails decide nothing, and no other one is concerned.
        assert!(results.value(Quantity::Elapsed, &free).is_ok());
        let reason = "it hangs".to_owned();
        let failed = Skipped { network: None, way: None, cell: Some(free), reason };
        assert_eq!(failed.rows(), "free dafs-iwarp 4 KiB depth 1 random");
        results.skipped.push(failed);
        let reason = results.value(Quantity::Elapsed, &free).expect_err("a failure");
        assert_eq!(reason, "it hangs");
        assert!(results.reason(&Cell { depth: 32, ..free }).is_none());
    }
}
