//! Berkeley DB on a table of 512 MB, as in the measurements of the first file system over direct
//! access. The part of the table that fits into the database's own cache decides how often the file
//! is read.
//!
//! Invariants
//! * The table lies in the memory of the server's host. Each run is a process with an empty cache,
//!   and has a mount or a session of its own.
//! * Every record that is read is compared with the expected one (`applications/berkeley_db.c`).

use crate::child::Process;
use crate::fronts::{MEMORY, OPTIMISTIC, ROOT, Site, Way, hit_ratio};
use crate::report::{Case, Report, Sample};
use crate::signs::{self, Predicted, Sign};
use crate::targets::Target;
use crate::{Plan, cpu, peer};
use anyhow::{Context, Result, ensure};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Records of 1008 bytes, which make up this size with the overhead of pages.
const BYTES: u64 = 512 << 20;
const RECORDS: u64 = 490_000;

/// About four for each page of the table.
const LOOKUPS: u64 = 150_000;

/// A way, with options behind the server's URL.
type Door = (Way, &'static str);

const WAYS: [Door; 3] = [(Way::Local, ""), (Way::Run, ""), (Way::Mount, "")];
const SHOWN_WAYS: [Door; 3] = [(Way::Local, ""), (Way::Run, ""), (Way::Run, OPTIMISTIC)];

/// The memory in which a server shows the table: a fourth more than that has.
const SHOWN_BYTES: u64 = BYTES + BYTES / 4;

/// The beginning of the names of all rows, and of none of the other applications'.
pub(crate) const ROWS: &str = "DB ";

/// Runs are long, so a few rounds must do.
const ROUNDS_MAX: usize = 3;

/// The part of the table that the cache holds.
#[derive(Clone, Copy)]
struct Part {
    name: &'static str,
    numerator: u64,
    denominator: u64,
}

const PARTS: [Part; 3] = [
    Part { name: "an eighth", numerator: 1, denominator: 8 },
    Part { name: "half", numerator: 1, denominator: 2 },
    // With the cache's own index of pages.
    Part { name: "all", numerator: 5, denominator: 4 },
];

#[derive(Clone, Copy)]
enum Work {
    Look,
    Scan,
}

pub(crate) fn measure(plan: &Plan, report: &mut Report) -> Result<()> {
    let mut list = list(&WAYS);
    list.extend(scans());
    let title = "Berkeley DB: lookups in, and a scan of,";
    measure_all(plan, report, list, title, || Site::start(Path::new(MEMORY)))
}

/// Measures lookups under `dafs run` with and without reads from memory that the server shows.
pub(crate) fn measure_optimistic(plan: &Plan, report: &mut Report) -> Result<()> {
    let bytes = (SHOWN_BYTES * plan.scale / 100).max(1 << 20);
    let cpu = usize::from(cpu::cpu_count() > 1);
    let serve = |export: &Path| Process::serve_optimistic(export, cpu, "adaptive", bytes);
    let title = "optimistic reads, Berkeley DB: lookups in";
    measure_all(plan, report, list(&SHOWN_WAYS), title, || Site::start_by(Path::new(MEMORY), serve))
}

fn measure_all(
    plan: &Plan,
    report: &mut Report,
    mut list: Vec<Row>,
    title: &str,
    start: impl FnOnce() -> Result<Site>,
) -> Result<()> {
    list.retain(|row| row.case.name.contains(&plan.only));
    if list.is_empty() {
        return Ok(());
    }
    if let Some(reason) = missing() {
        report.skip("Berkeley DB's own cache", &reason);
        return Ok(());
    }
    let site = start()?;
    let stage = Stage::new(&site, plan.scale)?;
    // A server that shows no files counts nothing.
    let is_counted = list.iter().any(Row::is_shown);
    let requests = || if is_counted { site.server.read_requests() } else { Ok(0) };
    for _ in 0..plan.rounds.min(ROUNDS_MAX) {
        for row in &mut list {
            let before = requests()?;
            let sample = stage.run(row.door, row.work, row.part);
            row.case.samples.push(sample.with_context(|| row.case.name.clone())?);
            row.requests += requests()? - before;
        }
    }
    let ratios = hit_ratios(&list);
    let signs = signs::if_any(stage.signs(&list));
    let cases: Vec<Case> = list.into_iter().map(|row| row.case).collect();
    let (lookups, mib) = (stage.lookups, stage.bytes >> 20);
    let title = format!("{title} a table of {mib} MiB, {lookups} lookups");
    report.add_programs(&title, &cases);
    report.hit_ratios(&title, ratios);
    signs::tell(report, &signs);
    Ok(())
}

/// The missing requirement of programs on Berkeley DB, in words, if any.
pub(crate) fn missing() -> Option<String> {
    let is_there = peer::find("cc").is_some() && Path::new("/usr/include/db.h").exists();
    let reason = "there is no cc or libdb5.3-dev; run: scripts/setup.sh bench";
    (!is_there).then(|| reason.to_owned())
}

/// Builds a program on Berkeley DB in `folder`, from sources of the folder `applications`. The first
/// source has its name.
pub(crate) fn build(folder: &Path, sources: &[&str]) -> Result<PathBuf> {
    let applications = Path::new(ROOT).join("crates/dafs-bench/applications");
    let program = folder.join(sources.first().context("no source")?);
    let sources: Vec<PathBuf> =
        sources.iter().map(|name| applications.join(format!("{name}.c"))).collect();
    let output: [&OsStr; 3] = ["-O2".as_ref(), "-o".as_ref(), program.as_ref()];
    let sources = sources.iter().map(|source| source.as_os_str());
    peer::run("cc", output.into_iter().chain(sources).chain(["-ldb-5.3".as_ref()]))?;
    Ok(program)
}

/// The source of the program that looks records up.
pub(crate) const LOOKUPS_PROGRAM: [&str; 1] = ["berkeley_db"];

/// The hit ratio of each row with reads from memory that the server shows. Runs on the same table read the same
/// pages. So it is the part of the requests of a run without that memory which a run with it has spared.
fn hit_ratios(list: &[Row]) -> Vec<(String, f64)> {
    let ratio = |shown: &Row| {
        let plain = (Way::Run, "");
        let plain = |row: &&Row| row.door == plain && row.part.name == shown.part.name;
        let reads = list.iter().find(plain)?.requests;
        Some((shown.case.name.clone(), hit_ratio(reads, shown.requests)))
    };
    list.iter().filter(|row| row.is_shown()).filter_map(ratio).collect()
}

struct Row {
    case: Case,
    door: Door,
    work: Work,
    part: Part,
    /// Requests that have read files in all runs.
    requests: u64,
}

impl Row {
    fn is_shown(&self) -> bool {
        self.door.1 == OPTIMISTIC
    }
}

/// Lookups by these ways.
fn list(ways: &[Door]) -> Vec<Row> {
    let rows = |part: Part| {
        let name = move |door| format!("{ROWS}lookups, cache for {}, {}", part.name, name_of(door));
        ways.iter().map(move |door| row(*door, Work::Look, part, name))
    };
    PARTS.into_iter().flat_map(rows).collect()
}

fn scans() -> Vec<Row> {
    let name = |door| format!("{ROWS}scan, {}", name_of(door));
    WAYS.into_iter().map(|door| row(door, Work::Scan, PARTS[0], name)).collect()
}

fn row(door: Door, work: Work, part: Part, name: impl Fn(Door) -> String) -> Row {
    let floor = (door.0 != Way::Local).then(|| name(WAYS[0]).into());
    let target = (door.1 == OPTIMISTIC).then_some(Target::ratio(1.5));
    let case = Case { floor, ..Case::new(name(door), None, target) };
    Row { case, door, work, part, requests: 0 }
}

fn name_of((way, options): Door) -> String {
    let optimistic = if options == OPTIMISTIC { " optimistic" } else { "" };
    format!("{}{optimistic}", way.name())
}

/// The table and the program that reads it.
struct Stage<'a> {
    site: &'a Site,
    program: PathBuf,
    bytes: u64,
    records: u64,
    lookups: u64,
}

impl<'a> Stage<'a> {
    fn new(site: &'a Site, scale: u64) -> Result<Self> {
        let program = build(site.folder.path(), &LOOKUPS_PROGRAM)?;
        let scaled = |count: u64| (count * scale / 100).max(1);
        let (records, lookups) = (scaled(RECORDS), scaled(LOOKUPS));
        let table = site.export.join("table.db");
        let mut make = Command::new(&program);
        let made = make.arg("make").arg(&table).arg(records.to_string()).status()?;
        ensure!(made.success(), "no table was made: {made}");
        let bytes = std::fs::metadata(&table)?.len();
        let wanted = scaled(BYTES);
        ensure!(
            bytes > wanted * 9 / 10 && (bytes < wanted * 11 / 10 || bytes < 1 << 20),
            "the table has {bytes} bytes, not about {wanted}"
        );
        Ok(Self { site, program, bytes, records, lookups })
    }

    /// The predicted signs of rows. Each work is watched once, on the local table.
    fn signs(&self, rows: &[Row]) -> Result<Vec<Sign>> {
        let answer = self.site.folder.path().join("advise.json");
        let mut signs = Vec::new();
        for Row { case, work, part, .. } in rows.iter().filter(|row| row.case.floor.is_none()) {
            let mut command = signs::watching(&self.site.export, &answer)?;
            command.arg(&self.program);
            self.arguments(&mut command, &self.site.export, *work, *part);
            let status = command.status()?;
            ensure!(status.success(), "{}, watched, ended with {status}", case.name);
            let predicted = Predicted::read(&answer)?;
            let own =
                rows.iter().filter(|row| row.case.floor.as_deref() == Some(case.name.as_str()));
            signs.extend(
                own.filter_map(|row| predicted.sign(&row.case.name, row.door.0, row.is_shown())),
            );
        }
        Ok(signs)
    }

    /// The arguments of the program for the table in a folder.
    fn arguments(&self, command: &mut Command, folder: &Path, work: Work, part: Part) {
        let cache = self.bytes * part.numerator / part.denominator;
        command.arg(match work {
            Work::Look => "look",
            Work::Scan => "scan",
        });
        command.arg(folder.join("table.db")).arg(self.records.to_string()).arg(cache.to_string());
        if let Work::Look = work {
            command.arg(self.lookups.to_string());
        }
    }

    fn run(&self, (way, options): Door, work: Work, part: Part) -> Result<Sample> {
        let front = self.site.front_with(way, options)?;
        let mut command = front.command(&self.program);
        self.arguments(&mut command, &front.root, work, part);
        Sample::of(
            || self.site.times(&front),
            || {
                let status = command.status()?;
                ensure!(status.success(), "it ended with {status}");
                Ok((1, self.bytes))
            },
        )
    }
}
