//! Berkeley DB on a table of 512 MB, as in the measurements of the first file system over direct
//! access. The part of the table that fits into the database's own cache decides how often the file
//! is read.
//!
//! Invariants
//! * The table lies in the memory of the server's host. Each run is a process with an empty cache,
//!   and has a mount or a session of its own.
//! * Every record that is read is compared with the expected one (`applications/berkeley_db.c`).

use crate::fronts::{MEMORY, ROOT, Site, Way};
use crate::report::{Case, Report, Sample};
use crate::{Plan, peer};
use anyhow::{Context, Result, ensure};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Records of 1008 bytes, which make up this size with the overhead of pages.
const BYTES: u64 = 512 << 20;
const RECORDS: u64 = 490_000;

/// About four for each page of the table.
const LOOKUPS: u64 = 150_000;

const WAYS: [Way; 3] = [Way::Local, Way::Run, Way::Mount];

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
    let mut list = list();
    list.retain(|(case, ..)| case.name.contains(&plan.only));
    if list.is_empty() {
        return Ok(());
    }
    if peer::find("cc").is_none() || !Path::new("/usr/include/db.h").exists() {
        println!(
            "\nBerkeley DB's own cache: SKIPPED, there is no cc or libdb5.3-dev; run: \
             scripts/setup.sh bench"
        );
        return Ok(());
    }
    let site = Site::start(Path::new(MEMORY))?;
    let stage = Stage::new(&site, plan.scale)?;
    for _ in 0..plan.rounds.min(ROUNDS_MAX) {
        for (case, way, work, part) in &mut list {
            let sample = stage.run(*way, *work, *part).with_context(|| case.name.clone())?;
            case.samples.push(sample);
        }
    }
    let cases: Vec<Case> = list.into_iter().map(|(case, ..)| case).collect();
    let (lookups, mib) = (stage.lookups, stage.bytes >> 20);
    let title = format!("Berkeley DB: {lookups} lookups in, and a scan of, a table of {mib} MiB");
    report.add_programs(&title, &cases);
    Ok(())
}

fn list() -> Vec<(Case, Way, Work, Part)> {
    let mut list = Vec::new();
    let works = PARTS.map(|part| (Work::Look, part));
    for (work, part) in works.into_iter().chain([(Work::Scan, PARTS[0])]) {
        let name = |way: Way| match work {
            Work::Look => format!("DB lookups, cache for {}, {}", part.name, way.name()),
            Work::Scan => format!("DB scan, {}", way.name()),
        };
        for way in WAYS {
            let floor = (way != Way::Local).then(|| name(Way::Local).into());
            list.push((Case { floor, ..Case::new(name(way), None, None) }, way, work, part));
        }
    }
    list
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
        let source = Path::new(ROOT).join("crates/dafs-bench/applications/berkeley_db.c");
        let program = site.folder.path().join("berkeley_db");
        let output: [&OsStr; 3] = ["-O2".as_ref(), "-o".as_ref(), program.as_ref()];
        peer::run("cc", output.into_iter().chain([source.as_ref(), "-ldb-5.3".as_ref()]))?;
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

    fn run(&self, way: Way, work: Work, part: Part) -> Result<Sample> {
        let front = self.site.front(way)?;
        let cache = self.bytes * part.numerator / part.denominator;
        let mut command = front.command(&self.program);
        command.arg(match work {
            Work::Look => "look",
            Work::Scan => "scan",
        });
        command.arg(front.root.join("table.db")).arg(self.records.to_string());
        command.arg(cache.to_string());
        if let Work::Look = work {
            command.arg(self.lookups.to_string());
        }
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
