//! Samples, medians and the table.

use crate::signs::Compared;
use crate::targets::{self, Bound, Judged, Quantity, Target};
use anyhow::{Context, Result, ensure};
use serde::Serialize;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::AddAssign;
use std::path::Path;
use std::time::{Duration, Instant};

/// The result of one case in one round.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sample {
    pub(crate) operations: u64,
    pub(crate) bytes: u64,
    pub(crate) elapsed: Duration,
    pub(crate) client_cpu: Duration,
    pub(crate) server_cpu: Duration,
}

/// Medians over the rounds.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Row {
    pub(crate) group: String,
    pub(crate) case: String,
    /// The case that this one is compared with.
    pub(crate) floor: Option<String>,
    pub(crate) microseconds_per_operation: f64,
    pub(crate) operations_per_second: f64,
    pub(crate) gigabytes_per_second: f64,
    pub(crate) client_cpu_microseconds: f64,
    pub(crate) server_cpu_microseconds: f64,
    /// Time per operation relative to the floor, or processor time of one side, as the case says:
    /// the median of the ratios of each round; below 1 is better than the floor.
    pub(crate) ratio: Option<f64>,
    /// The client's processor time relative to the floor, in the same way.
    pub(crate) client_cpu_ratio: Option<f64>,
    /// The target of the design beside the row's value.
    pub(crate) target: Option<Judged>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Report {
    machine: BTreeMap<String, String>,
    rows: Vec<Row>,
    figures: BTreeMap<String, f64>,
    /// The predictions of `dafs advise`.
    signs: Vec<Compared>,
    /// The targets of all rows and figures.
    targets: Vec<Judged>,
    /// Rows that cannot be measured, and why.
    skipped: Vec<Skipped>,
    /// Failed cases, which are left out.
    #[serde(skip)]
    failed: Vec<String>,
}

/// Rows that this machine cannot measure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Skipped {
    pub(crate) rows: String,
    pub(crate) reason: String,
}

/// The quantity by which a case is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Measure {
    /// Time.
    #[default]
    Elapsed,
    /// Processor time of the client.
    ClientCpu,
    /// Processor time of the server.
    ServerCpu,
}

/// A case of a group: its name, its floor, its target, and its samples by round.
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) floor: Option<Cow<'static, str>>,
    pub(crate) target: Option<Target>,
    pub(crate) measure: Measure,
    pub(crate) samples: Vec<Sample>,
}

impl Case {
    pub(crate) fn new(
        name: impl Into<String>,
        floor: Option<&'static str>,
        target: Option<Target>,
    ) -> Self {
        Self {
            name: name.into(),
            floor: floor.map(Cow::Borrowed),
            target,
            measure: Measure::default(),
            samples: Vec::new(),
        }
    }
}

const BACKWARDS: &str = "the processor time of a process went backwards";

impl Sample {
    /// Measures `work`, which returns its operations and their bytes. `cpu` returns the processor
    /// time that client and server have used so far.
    pub(crate) fn of(
        cpu: impl Fn() -> Result<(Duration, Duration)>,
        work: impl FnOnce() -> Result<(u64, u64)>,
    ) -> Result<Self> {
        let before = cpu()?;
        let start = Instant::now();
        let (operations, bytes) = work()?;
        let elapsed = start.elapsed();
        let after = cpu()?;
        Ok(Self {
            operations,
            bytes,
            elapsed,
            client_cpu: after.0.checked_sub(before.0).context(BACKWARDS)?,
            server_cpu: after.1.checked_sub(before.1).context(BACKWARDS)?,
        })
    }

    fn seconds_per_operation(&self) -> f64 {
        self.per_operation(Measure::Elapsed)
    }

    /// Seconds for one operation.
    fn per_operation(&self, measure: Measure) -> f64 {
        let time = match measure {
            Measure::Elapsed => self.elapsed,
            Measure::ClientCpu => self.client_cpu,
            Measure::ServerCpu => self.server_cpu,
        };
        time.as_secs_f64() / self.operations.max(1) as f64
    }
}

/// Adds a turn of the same case in the same round.
impl AddAssign for Sample {
    fn add_assign(&mut self, turn: Self) {
        self.operations += turn.operations;
        self.bytes += turn.bytes;
        self.elapsed += turn.elapsed;
        self.client_cpu += turn.client_cpu;
        self.server_cpu += turn.server_cpu;
    }
}

/// The properties of this machine on which figures depend.
pub(crate) fn machine() -> BTreeMap<String, String> {
    let name = rustix::system::uname();
    let mut machine = BTreeMap::from([
        ("cpus".to_owned(), crate::cpu::cpu_count().to_string()),
        ("kernel".to_owned(), name.release().to_string_lossy().into_owned()),
    ]);
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    if let Some((_, model)) = model {
        machine.insert("processor".to_owned(), model.to_owned());
    }
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = total.and_then(|total| total.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    if let Some(kib) = kib {
        machine.insert("memory".to_owned(), format!("{} GiB", (kib + (1 << 19)) >> 20));
    }
    machine
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

impl Row {
    /// The target and its verdict; nothing without a target.
    fn words(&self) -> String {
        let words = |judged: &Judged| format!("{}: {}", judged.target, judged.verdict);
        self.target.as_ref().map_or_else(String::new, words)
    }
}

impl Report {
    pub(crate) fn new() -> Self {
        Self {
            machine: machine(),
            rows: Vec::new(),
            figures: BTreeMap::new(),
            signs: Vec::new(),
            targets: Vec::new(),
            skipped: Vec::new(),
            failed: Vec::new(),
        }
    }

    /// Adds a group and prints it.
    pub(crate) fn add(&mut self, group: &str, cases: &[Case]) {
        println!("\n{group}");
        println!(
            "  {:<40} {:>10} {:>11} {:>8} {:>9} {:>9} {:>7}  target",
            "", "us/op", "op/s", "GB/s", "client us", "server us", "ratio"
        );
        for case in cases {
            let row = row(group, case, cases);
            println!(
                "  {:<40} {:>10.2} {:>11.0} {:>8.2} {:>9.2} {:>9.2} {:>7}  {}",
                row.case,
                row.microseconds_per_operation,
                row.operations_per_second,
                row.gigabytes_per_second,
                row.client_cpu_microseconds,
                row.server_cpu_microseconds,
                row.ratio.map_or(String::new(), |ratio| format!("{ratio:.2}")),
                row.words(),
            );
            self.push(row);
        }
    }

    /// Adds a group whose operations are programs that take seconds, and prints the ratio of their
    /// processor time as well.
    pub(crate) fn add_programs(&mut self, group: &str, cases: &[Case]) {
        println!("\n{group}");
        println!(
            "  {:<40} {:>9} {:>9} {:>9} {:>7} {:>9}  target",
            "", "s", "client s", "server s", "ratio", "CPU ratio"
        );
        for case in cases {
            let row = row(group, case, cases);
            let text =
                |ratio: Option<f64>| ratio.map_or(String::new(), |ratio| format!("{ratio:.2}"));
            println!(
                "  {:<40} {:>9.3} {:>9.3} {:>9.3} {:>7} {:>9}  {}",
                row.case,
                row.microseconds_per_operation / 1e6,
                row.client_cpu_microseconds / 1e6,
                row.server_cpu_microseconds / 1e6,
                text(row.ratio),
                text(row.client_cpu_ratio),
                row.words(),
            );
            self.push(row);
        }
    }

    /// Adds a group that the caller prints.
    pub(crate) fn add_quietly(&mut self, group: &str, cases: &[Case]) {
        cases.iter().for_each(|case| self.push(row(group, case, cases)));
    }

    fn push(&mut self, row: Row) {
        self.targets.extend(row.target.clone());
        self.rows.push(row);
    }

    /// Notes the verdict on a value that is no row's.
    pub(crate) fn judge(&mut self, row: &str, bound: Bound, value: f64, unit: &str) {
        let target = format!("{bound} {unit}").trim_end().to_owned();
        let verdict = bound.judge(value).name();
        self.targets.push(Judged { row: row.to_owned(), target, value, verdict });
    }

    /// Notes and prints that rows cannot be measured.
    pub(crate) fn skip(&mut self, rows: &str, reason: &str) {
        println!("\n{rows}: SKIPPED, {reason}");
        self.skipped.push(Skipped { rows: rows.to_owned(), reason: reason.to_owned() });
    }

    /// All rows so far that cannot be measured.
    pub(crate) fn skipped(&self) -> &[Skipped] {
        &self.skipped
    }

    /// Prints all targets with their verdicts, and the rows that were not measured.
    pub(crate) fn print_targets(&self) {
        println!("\n{}", targets::table(&self.targets));
        for Skipped { rows, reason } in &self.skipped {
            println!("  skipped: {rows}, {reason}");
        }
    }

    /// All rows so far.
    pub(crate) fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Adds predictions that the caller prints.
    pub(crate) fn add_signs(&mut self, signs: Vec<Compared>) {
        self.signs.extend(signs);
    }

    /// All predictions so far.
    pub(crate) fn signs(&self) -> &[Compared] {
        &self.signs
    }

    /// Notes and prints a failure; the rest goes on.
    pub(crate) fn failed(&mut self, name: &str, error: &anyhow::Error) {
        println!("\nFAILED and left out: {error:#}");
        self.failed.push(name.to_owned());
    }

    /// The final result. Call it after all output is written.
    ///
    /// # Errors
    /// A case has failed, for example because an application has left wrong files.
    pub(crate) fn verdict(&self) -> Result<()> {
        ensure!(self.failed.is_empty(), "failed and left out: {}", self.failed.join(", "));
        Ok(())
    }

    /// Adds a single number.
    pub(crate) fn figure(&mut self, name: &str, value: f64, text: &str) {
        println!("  {name:<44} {text}");
        self.figures.insert(name.to_owned(), value);
    }

    /// Adds the hit ratios of rows below their table.
    pub(crate) fn hit_ratios(&mut self, title: &str, ratios: Vec<(String, f64)>) {
        for (name, ratio) in ratios {
            self.figure(&format!("{title}: {name}, hit ratio"), ratio, &format!("{ratio:.4}"));
        }
    }

    pub(crate) fn write_json(&self, path: &Path) -> Result<()> {
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory)?;
        }
        std::fs::write(path, serde_json::to_string_pretty(self)?)?;
        Ok(())
    }
}

fn row(group: &str, case: &Case, cases: &[Case]) -> Row {
    let each = |value: &dyn Fn(&Sample) -> f64| median(case.samples.iter().map(value).collect());
    let per_operation = each(&Sample::seconds_per_operation);
    let floor =
        case.floor.as_ref().and_then(|name| cases.iter().find(|other| other.name == **name));
    let ratio = |measure: Measure| {
        let pairs = case.samples.iter().zip(&floor?.samples);
        let ratios = pairs.map(|(a, b)| a.per_operation(measure) / b.per_operation(measure));
        Some(median(ratios.collect()))
    };
    let more = || {
        let pairs = case.samples.iter().zip(&floor?.samples);
        let of = |sample: &Sample| sample.per_operation(Measure::ServerCpu);
        Some(median(pairs.map(|(a, b)| (of(a) - of(b)) * 1e6).collect()))
    };
    let cpu = |time: Duration, sample: &Sample| {
        time.as_secs_f64() * 1e6 / sample.operations.max(1) as f64
    };
    let server_cpu_microseconds = each(&|s| cpu(s.server_cpu, s));
    let judged = |target: Target| {
        let value = match target.quantity {
            Quantity::Ratio => ratio(case.measure),
            Quantity::ClientCpuRatio => ratio(Measure::ClientCpu),
            Quantity::OperationsPerSecond => Some(1.0 / per_operation),
            Quantity::Microseconds => Some(per_operation * 1e6),
            Quantity::ServerMicroseconds => Some(server_cpu_microseconds),
            Quantity::ServerMicrosecondsMore => more(),
        };
        // A row whose floor was left out.
        let value = value.unwrap_or(f64::NAN);
        let (row, verdict) = (format!("{group}: {}", case.name), target.bound.judge(value).name());
        Judged { row, target: target.words(case.measure), value, verdict }
    };
    Row {
        group: group.to_owned(),
        case: case.name.clone(),
        floor: case.floor.as_deref().map(str::to_owned),
        microseconds_per_operation: per_operation * 1e6,
        operations_per_second: 1.0 / per_operation,
        gigabytes_per_second: each(&|s| s.bytes as f64 / s.elapsed.as_secs_f64() / 1e9),
        client_cpu_microseconds: each(&|s| cpu(s.client_cpu, s)),
        server_cpu_microseconds,
        ratio: ratio(case.measure),
        client_cpu_ratio: ratio(Measure::ClientCpu),
        target: case.target.map(judged),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skipped_row_is_reported_and_fails_the_run() {
        let mut report = Report::new();
        assert!(report.verdict().is_ok());
        report.failed("git", &anyhow::anyhow!("something else was checked out"));
        let folder = tempfile::tempdir().expect("a folder");
        report.write_json(&folder.path().join("bench.json")).expect("the rest is written");
        let error = report.verdict().expect_err("not a good run").to_string();
        assert!(error.contains("git"), "{error}");
    }

    #[test]
    fn a_row_is_judged_by_the_value_that_its_target_bounds() {
        let sample = |elapsed_us, client_us, server_us| Sample {
            operations: 1,
            bytes: 1,
            elapsed: Duration::from_micros(elapsed_us),
            client_cpu: Duration::from_micros(client_us),
            server_cpu: Duration::from_micros(server_us),
        };
        let verdict = |target, measure| {
            let floor =
                Case { samples: vec![sample(100, 100, 100)], ..Case::new("floor", None, None) };
            let samples = vec![sample(200, 50, 130)];
            let case = Case { measure, samples, ..Case::new("row", Some("floor"), Some(target)) };
            row("group", &case, &[floor]).target.expect("a target").verdict
        };
        for (target, measure, wanted) in [
            (Target::ratio(2.0), Measure::Elapsed, "met"),
            (Target::ratio(1.9), Measure::Elapsed, "not met"),
            (Target::ratio(0.5), Measure::ClientCpu, "met"),
            (Target::ratio(1.2), Measure::ServerCpu, "not met"),
            (Target::at_most(Quantity::ClientCpuRatio, 0.5), Measure::Elapsed, "met"),
            (Target::rate(5000.0), Measure::Elapsed, "met"),
            (Target::rate(5001.0), Measure::Elapsed, "not met"),
            (Target::at_most(Quantity::Microseconds, 199.0), Measure::Elapsed, "not met"),
            (Target::at_most(Quantity::ServerMicroseconds, 131.0), Measure::Elapsed, "met"),
            (Target::at_most(Quantity::ServerMicrosecondsMore, 29.0), Measure::Elapsed, "not met"),
            (Target::at_most(Quantity::ServerMicrosecondsMore, 31.0), Measure::Elapsed, "met"),
        ] {
            assert_eq!(verdict(target, measure), wanted, "{target:?}, {measure:?}");
        }
    }

    #[test]
    fn a_row_without_its_floor_proves_nothing() {
        let case = Case {
            samples: vec![Sample { operations: 1, ..Sample::default() }],
            ..Case::new("row", Some("floor"), Some(Target::ratio(1.0)))
        };
        let mut report = Report::new();
        report.add("group", &[case]);
        report.judge("hit ratio", Bound::AtLeast(0.99), 0.5, "");
        report.skip("locks", "there is no ganesha.nfsd");
        let verdicts: Vec<_> = report.targets.iter().map(|judged| judged.verdict).collect();
        assert_eq!(verdicts, ["cannot be shown here", "not met"]);
        assert_eq!(report.targets[1].target, "at least 0.99");
        assert_eq!(report.skipped[0].rows, "locks");
    }
}
