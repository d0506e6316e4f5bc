//! Rows of other groups of the benchmark, measured again by their code for the claims that read them.
//!
//! Invariants
//! * A row has the name by which its group prints it.

use super::document::number;
use super::results::Results;
use super::{Interrupt, Options, kernel, matching};
use crate::report::Report;
use crate::signs::Compared;
use crate::{Plan, applications, cpu, fio, fronts, pnfs, rdma};
use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};
use std::fmt::Write;
use std::time::Duration;

/// The shortest run of fio, in milliseconds.
const FIO_MILLISECONDS_MIN: u64 = 100;

/// Storage nodes of Direct-pNFS, and below which scale in percent half of them must do.
const STORAGE_NODES: usize = 6;
const STORAGE_SCALE_MIN: u64 = 10;

/// The MiB of each client of Direct-pNFS at full scale, and the fewest: two of its large blocks, beside
/// which the bytes of names and layouts are few.
const MEGABYTES: u64 = 24;
const MEGABYTES_MIN: u64 = 4;

/// A group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Group {
    /// fio on local files and through our engine.
    Fio,
    /// Writes to a disk that is slower than the network, and reads beside them.
    Matching,
    /// NFS over RDMA and over TCP.
    Rdma,
    /// Linux's NFS client in a guest of the laboratory, over TCP and RDMA.
    Guest,
    /// The same on this host.
    Host,
    /// Direct-pNFS and other ways to the same storage nodes.
    Pnfs,
    /// Direct-pNFS on storage nodes whose disks are slow.
    Disks,
    /// Whole applications beside the predictions of `dafs advise`.
    Advise,
}

/// A row of a group.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) group: Group,
    pub(crate) case: String,
    pub(crate) unit: String,
    pub(crate) value: f64,
}

/// A group that this machine cannot measure, or one of its ways.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Skipped {
    pub(crate) group: Group,
    /// The way, by the start of its rows' names.
    #[serde(default)]
    pub(crate) way: Option<String>,
    pub(crate) reason: String,
}

impl Skipped {
    /// The rows in words.
    pub(super) fn rows(&self) -> String {
        let title = self.group.title();
        self.way.as_ref().map_or_else(|| title.to_owned(), |way| format!("{title}, {way}"))
    }

    /// True if a row is missing for this reason: that of its group, of its way, or of the way beside which
    /// it is judged.
    fn explains(&self, place: Place) -> bool {
        let is_of = |way: &String| {
            let rest = place.case.strip_prefix(way.as_str());
            let beside = place.case.strip_suffix(way.as_str());
            rest.is_some_and(|rest| rest.starts_with(": "))
                || beside.is_some_and(|beside| beside.ends_with(" / "))
        };
        self.group == place.group && self.way.as_ref().is_none_or(is_of)
    }
}

/// The groups of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Groups {
    pub(crate) skipped: Vec<Skipped>,
    pub(crate) rows: Vec<Row>,
}

/// The row that a claim reads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) group: Group,
    pub(crate) case: &'static str,
}

impl Groups {
    /// The value of a row, or the reason why there is none.
    pub(crate) fn value(&self, place: Place) -> Result<f64, String> {
        let is_it = |row: &&Row| row.group == place.group && row.case == place.case;
        self.rows.iter().find(is_it).map(|row| row.value).ok_or_else(|| {
            let skipped = self.skipped.iter().find(|skipped| skipped.explains(place));
            let reason = skipped.map(|skipped| skipped.reason.clone());
            reason.unwrap_or_else(|| "its group was not measured in this run".to_owned())
        })
    }
}

impl Groups {
    /// The rows of a group; nothing where there are none.
    pub(super) fn table(&self, group: Group) -> String {
        let mut text = String::new();
        for row in self.rows.iter().filter(|row| row.group == group) {
            let _ = writeln!(text, "| {} | {} | {} |", row.case, number(row.value), row.unit);
        }
        if text.is_empty() {
            return text;
        }
        let (title, about) = (group.title(), group.about());
        format!("\n## {title}\n\n{about}\n\n| row | value | unit |\n|---|---|---|\n{text}")
    }
}

impl Group {
    pub(crate) const ALL: [Self; 8] = [
        Self::Fio,
        Self::Matching,
        Self::Rdma,
        Self::Guest,
        Self::Host,
        Self::Pnfs,
        Self::Disks,
        Self::Advise,
    ];

    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Fio => "fio, against local files",
            Self::Matching => "P1: writes to a disk that is slower than the network",
            Self::Rdma => "NFS over TCP and RDMA: reads and writes",
            Self::Guest => "P3: the kernel's client in a guest",
            Self::Host => "P3: the kernel's client on this host",
            Self::Pnfs => "Direct-pNFS and other ways to the same storage nodes",
            Self::Disks => "Direct-pNFS on slow disks",
            Self::Advise => "P2, section 6: applications, predicted and measured",
        }
    }

    /// A sentence above its rows.
    fn about(self) -> &'static str {
        match self {
            Self::Fio | Self::Rdma => "Medians of ratios of the same round; below 1 is faster.",
            Self::Matching => {
                "64 writes of 256 KiB under way over iWARP, to a disk of 20 MB/s; another client reads 4 KiB \
                 at a time from memory."
            }
            Self::Guest => {
                "NFSv3, direct I/O in order, one call at a time, of a file in the server's memory. The guest has \
                 no KVM, one processor and slow system calls, so that its rows show shapes and no rates. With \
                 rxe and \"TCP to a guest\" the server runs in a second guest, otherwise on the host."
            }
            Self::Host => {
                "NFSv3, direct I/O in order, one call at a time, of a file in the server's memory. Client and \
                 server are on this host. All that its processors do besides the server counts as the client."
            }
            Self::Pnfs => {
                "One run of each over links of 100 Mbit/s. All clients of a row run at once, and ways one \
                 after the other, so that small differences mean nothing."
            }
            Self::Disks => {
                "One run of each. Data servers are those of a striped export, each with a file system on a disk \
                 that writes at a third of its link's rate, or at less with few clients."
            }
            Self::Advise => {
                "Times over shared memory. A prediction by `dafs advise` is right where both times are more than \
                 a tenth above 1, or more than a tenth below, or neither."
            }
        }
    }

    /// True if it has the rows of an experiment.
    pub(super) fn has(self, id: &str) -> bool {
        match self {
            Self::Fio => id == "P0-H2",
            Self::Matching => id == "P1-H1",
            Self::Rdma => id == "P3-H1",
            Self::Guest | Self::Host => ["P3-F15", "P3-F16", "P3-F18", "P3-H1"].contains(&id),
            // The other figures are drawings.
            Self::Pnfs => {
                ["P4-F6", "P4-F7", "P4-F8", "P4-H"].iter().any(|start| id.starts_with(start))
            }
            Self::Disks => ["P4-F6a", "P4-F6b"].contains(&id),
            Self::Advise => id == "P2-S6",
        }
    }

    fn missing(self) -> Option<String> {
        match self {
            Self::Fio => fio::missing(),
            Self::Matching | Self::Rdma => None,
            Self::Guest | Self::Host => kernel::missing(self),
            Self::Pnfs => pnfs::missing(),
            Self::Disks => pnfs::disks_missing(),
            Self::Advise => fronts::missing(),
        }
    }

    fn rows(
        self,
        options: &Options,
        results: &mut Results,
        interrupt: &Interrupt,
    ) -> Result<Vec<Row>> {
        let (rounds, milliseconds) = (results.rounds, results.milliseconds);
        let plan = |only: &str, milliseconds| Plan {
            rounds,
            milliseconds,
            only: only.to_owned(),
            wake: String::new(),
            disk: None,
            scale: options.scale.max(1),
        };
        let mut report = Report::new();
        match self {
            Self::Fio => {
                let plan = plan("read 4 KiB depth", milliseconds.max(FIO_MILLISECONDS_MIN));
                fio::measure_local(&plan, &mut report)?;
            }
            Self::Rdma => {
                let figures = tempfile::tempdir()?;
                rdma::measure(&plan(PAIRS, milliseconds), &mut report, figures.path())?;
            }
            Self::Matching => return self.matched(rounds, milliseconds),
            Self::Guest | Self::Host => {
                return kernel::measure(self, options, results, interrupt);
            }
            Self::Pnfs | Self::Disks => return self.rates(options, results, interrupt),
            Self::Advise => {
                let mut are_all_there = true;
                for only in applications::each() {
                    interrupt.check()?;
                    let done = applications::measure(&plan(&only, milliseconds), &mut report);
                    are_all_there &= is_done(results, interrupt, done)?;
                }
                let done = fronts::measure_gzip(&plan("gzip ", milliseconds), &mut report);
                are_all_there &= is_done(results, interrupt, done)?;
                are_all_there &= is_done(results, interrupt, report.verdict())?;
                for skipped in report.skipped() {
                    skip(results, self, format!("{}: {}", skipped.rows, skipped.reason));
                }
                return signs(&report, are_all_there);
            }
        }
        let ratios = report.rows().iter().filter_map(|row| {
            let (value, floor) = (row.ratio?, row.floor.as_deref()?);
            let case = format!("{}: {}", row.group, row.case);
            Some(Row { group: self, case, unit: format!("time relative to {floor}"), value })
        });
        Ok(ratios.collect())
    }

    fn matched(self, rounds: usize, milliseconds: u64) -> Result<Vec<Row>> {
        let matched = matching::measure(rounds, Duration::from_millis(milliseconds))?;
        let row = |case: &str, unit: &str, value| {
            let (case, unit) = (case.to_owned(), unit.to_owned());
            Row { group: self, case, unit, value }
        };
        Ok(vec![
            row(matching::MEMORY, "MiB", matched.memory_mib),
            row(matching::READS, "relative to that without writes", matched.reads),
        ])
    }

    /// The rates. Where some are missing, the reason is noted.
    fn rates(
        self,
        options: &Options,
        results: &mut Results,
        interrupt: &Interrupt,
    ) -> Result<Vec<Row>> {
        let is_small = options.scale < STORAGE_SCALE_MIN;
        let storage_nodes = if is_small { STORAGE_NODES / 2 } else { STORAGE_NODES };
        // Whole blocks.
        let megabytes = (MEGABYTES * options.scale / 100 / 2 * 2).max(MEGABYTES_MIN);
        let (clients, check) = (options.pnfs_clients, || interrupt.check());
        let list = if self == Self::Disks {
            pnfs::disk_rates(clients, storage_nodes, megabytes, check)?
        } else {
            let rates = pnfs::rates(clients, storage_nodes, megabytes, check)?;
            rates.skipped.into_iter().for_each(|reason| skip(results, self, reason));
            rates.list
        };
        let row = |rate: pnfs::Rate| {
            let (case, unit) = (rate.case, rate.unit.to_owned());
            Row { group: self, case, unit, value: rate.value }
        };
        Ok(list.into_iter().map(row).collect())
    }
}

/// False for an application that has failed, which is noted. An error is that of an interrupt.
fn is_done(results: &mut Results, interrupt: &Interrupt, done: Result<()>) -> Result<bool> {
    interrupt.check()?;
    let is_done = done.is_ok();
    if let Err(error) = done {
        skip(results, Group::Advise, format!("{error:#}"));
    }
    Ok(is_done)
}

/// The row with the share of right predictions.
pub(crate) const RIGHT: &str = "share of right predictions";

/// The predictions of a report beside its measurements, and the share of the right ones. Where rows have
/// failed there is no share: that of the others would say too much.
fn signs(report: &Report, are_all_there: bool) -> Result<Vec<Row>> {
    let count = report.rows().iter().filter(|row| row.ratio.is_some()).count();
    ensure!(count > 0, "no application can run here");
    let row = |case: String, unit: String, value| Row { group: Group::Advise, case, unit, value };
    let right = report.signs().iter().filter(|sign| sign.is_right()).count();
    let share = row(RIGHT.to_owned(), format!("of {count} rows"), right as f64 / count as f64);
    let each = report.signs().iter().flat_map(|sign| {
        let Compared { case, predicted, measured } = sign;
        [("predicted", *predicted), ("measured", *measured)].map(|(word, value)| {
            row(format!("{case}: {word}"), "time relative to local files".to_owned(), value)
        })
    });
    Ok(each.chain(are_all_there.then_some(share)).collect())
}

/// The cases of NFS over RDMA that are compared: reads and writes of a size at which both are at their
/// best.
const PAIRS: &str = "256 KiB read-ahead 8";

/// Measures the groups of the experiments that are wanted.
pub(super) fn measure(
    options: &Options,
    results: &mut Results,
    interrupt: &Interrupt,
) -> Result<()> {
    for group in Group::ALL {
        if !options.only.is_empty() && !options.only.iter().any(|id| group.has(id)) {
            continue;
        }
        interrupt.check()?;
        if let Some(reason) = group.missing() {
            skip(results, group, reason);
            continue;
        }
        let rows = group.rows(options, results, interrupt);
        // A group that fails may have left this thread on one processor.
        cpu::unpin()?;
        // A child that an interrupt has ended, too, fails in its own words.
        interrupt.check()?;
        match rows {
            // The other groups are measured all the same.
            Err(error) => skip(results, group, format!("{error:#}")),
            // JSON has no other numbers.
            Ok(rows) => {
                let rows = rows.into_iter().filter(|row| row.value.is_finite());
                results.groups.rows.extend(rows);
            }
        }
        results.write(&options.json)?;
    }
    Ok(())
}

/// Notes a group that cannot be, and says why.
pub(super) fn skip(results: &mut Results, group: Group, reason: String) {
    note(results, Skipped { group, way: None, reason });
}

/// The same for one way of a group.
pub(super) fn skip_way(results: &mut Results, group: Group, way: &str, reason: String) {
    note(results, Skipped { group, way: Some(way.to_owned()), reason });
}

fn note(results: &mut Results, skipped: Skipped) {
    println!("papers: SKIPPED {}, {}", skipped.rows(), skipped.reason);
    results.groups.skipped.push(skipped);
}

#[cfg(test)]
mod tests {
    use super::super::list;
    use super::*;
    use crate::report::{Case, Sample};

    #[test]
    fn a_row_has_a_value_or_a_reason() {
        let place = Place { group: Group::Fio, case: "one" };
        let mut groups = Groups::default();
        let reason = groups.value(place).expect_err("no row");
        assert_eq!(reason, "its group was not measured in this run");
        let reason = "there is no fio".to_owned();
        groups.skipped.push(Skipped { group: Group::Fio, way: None, reason });
        assert_eq!(groups.value(place).expect_err("no row"), "there is no fio");
        let row = |group, value| Row { group, case: "one".into(), unit: "MB/s".into(), value };
        groups.rows = vec![row(Group::Rdma, 1.0), row(Group::Fio, 2.0)];
        assert!((groups.value(place).expect("it is there") - 2.0).abs() < 1e-9);
    }

    #[test]
    fn a_way_that_was_skipped_is_no_reason_for_the_rows_of_another() {
        let mut results = Results::new(1, 1, 1000);
        for way in ["TCP", "rxe"] {
            skip_way(&mut results, Group::Guest, way, format!("no {way}"));
        }
        let reason = |case| results.groups.value(Place { group: Group::Guest, case });
        let unknown = "its group was not measured in this run";
        for (case, why) in [
            ("TCP: read 4 KiB", "no TCP"),
            ("siw: best read / TCP", "no TCP"),
            ("rxe: best read / TCP to a guest", "no rxe"),
            ("siw: read 4 KiB", unknown),
            ("TCP to a guest: read 4 KiB", unknown),
        ] {
            assert_eq!(reason(case).expect_err("no row"), why, "{case}");
        }
        assert_eq!(results.groups.skipped[1].rows(), "P3: the kernel's client in a guest, rxe");
    }

    #[test]
    fn each_group_has_experiments_and_only_those_of_disks_and_of_linux_have_more() {
        let ids: Vec<&str> = list::claims().map(|claim| claim.id).collect();
        for group in Group::ALL {
            assert!(ids.iter().any(|id| group.has(id)), "{group:?}");
        }
        for id in ids {
            let count = Group::ALL.iter().filter(|group| group.has(id)).count();
            let more = usize::from(Group::Disks.has(id)) + 2 * usize::from(Group::Guest.has(id));
            assert!(count <= 1 + more, "{id}");
        }
        assert!(!Group::Pnfs.has("P4-F1"));
    }

    #[test]
    fn a_row_without_a_prediction_is_none_that_is_right() {
        let mut report = Report::new();
        assert!(signs(&report, true).is_err());
        let sample = |seconds| Sample {
            operations: 1,
            elapsed: Duration::from_secs(seconds),
            ..Sample::default()
        };
        let case = |name: &str, floor, seconds| Case {
            samples: vec![sample(seconds)],
            ..Case::new(name, floor, None)
        };
        let cases = [
            case("git, local", None, 1),
            case("git, mount", Some("git, local"), 3),
            case("git, run", Some("git, local"), 2),
        ];
        report.add_quietly("applications", &cases);
        let compared =
            |predicted| Compared { case: "git, run".to_owned(), predicted, measured: 2.0 };
        report.add_signs(vec![compared(1.5)]);
        let rows = signs(&report, true).expect("rows");
        let row = |case: &str| rows.iter().find(|row| row.case == case).map(|row| row.value);
        assert_eq!((row(RIGHT), row("git, run: measured")), (Some(0.5), Some(2.0)));
        assert_eq!((row("git, run: predicted"), rows.len()), (Some(1.5), 3));
        report.add_signs(vec![compared(1.0)]);
        let rows = signs(&report, true).expect("rows");
        assert_eq!(rows.last().map(|row| (row.value, row.unit.as_str())), Some((0.5, "of 2 rows")));
        let rows = signs(&report, false).expect("rows");
        assert!(!rows.is_empty() && rows.iter().all(|row| row.case != RIGHT), "{rows:?}");
    }
}
