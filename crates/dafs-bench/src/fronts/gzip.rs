//! gzip of a large file of the server, written back beside it: whole, by one process; and in two
//! halves, by one process for both and by one for each. The first file system over direct access
//! was measured like this.
//!
//! The files are in the memory of the server's host, and not cached at the client: each run has a
//! mount or a session of its own.

use super::ways::MEMORY;
use super::{Site, Way};
use crate::report::{Case, Report, Sample};
use crate::signs::{self, Predicted, Sign};
use crate::targets::{Bound, Quantity, Target};
use crate::{Plan, cpu};
use anyhow::{Context, Result, ensure};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

/// The size of both halves together, and of the whole.
const BYTES: u64 = 550 << 20;
const HALVES: [&str; 2] = ["first", "second"];
const WHOLE: &str = "whole";

/// The files that each process compresses, with the load's name in the table.
type Load = (&'static str, &'static [&'static [&'static str]]);

const LOADS: [Load; 3] =
    [("whole", &[&[WHOLE]]), ("one", &[&HALVES]), ("two", &[&[HALVES[0]], &[HALVES[1]]])];
const WAYS: [Way; 3] = [Way::Local, Way::Run, Way::Mount];

/// Runs are long, so a few rounds must do.
const ROUNDS_MAX: usize = 3;

pub(super) fn measure(plan: &Plan, report: &mut Report) -> Result<()> {
    let mut list = list();
    list.retain(|(case, ..)| case.name.contains(&plan.only));
    if list.is_empty() {
        return Ok(());
    }
    let site = Site::start(Path::new(MEMORY))?;
    let bytes = BYTES * plan.scale / 100;
    for (number, half) in HALVES.iter().enumerate() {
        write_log(&site.export.join(half), bytes / 2, number as u64)?;
    }
    let mut whole = File::create(site.export.join(WHOLE))?;
    for half in HALVES {
        std::io::copy(&mut File::open(site.export.join(half))?, &mut whole)?;
    }
    for _ in 0..plan.rounds.min(ROUNDS_MAX) {
        for (case, way, load) in &mut list {
            let sample = run(&site, *way, *load, bytes).with_context(|| case.name.clone())?;
            case.samples.push(sample);
            keep_or_compare(&site, *load).with_context(|| case.name.clone())?;
        }
    }
    let signs = signs::if_any(signs(&site, &list));
    let cases: Vec<Case> = list.into_iter().map(|(case, ..)| case).collect();
    let title = format!("gzip of {} MiB, one and two processes", bytes >> 20);
    report.add_programs(&title, &cases);
    speed_up(report, &cases);
    signs::tell(report, &signs);
    Ok(())
}

/// The predicted signs of rows. Each load is watched once, on local files.
fn signs(site: &Site, list: &[(Case, Way, Load)]) -> Result<Vec<Sign>> {
    let answer = site.folder.path().join("advise.json");
    let mut signs = Vec::new();
    for (_, _, load) in list.iter().filter(|(_, way, _)| *way == Way::Local) {
        let each = load.1.iter().map(|files| format!("gzip -n -k -f {} &", files.join(" ")));
        let script = format!("{} wait", each.collect::<Vec<_>>().join(" "));
        let mut command = signs::watching(&site.export, &answer)?;
        let status = command.args(["sh", "-c", &script]).current_dir(&site.export).status()?;
        ensure!(status.success(), "gzip ended with {status}");
        keep_or_compare(site, *load)?;
        let predicted = Predicted::read(&answer)?;
        let own = list.iter().filter(|(.., other)| other.0 == load.0);
        signs.extend(own.filter_map(|(case, way, _)| predicted.sign(&case.name, *way, false)));
    }
    Ok(signs)
}

fn list() -> Vec<(Case, Way, Load)> {
    let mut list = Vec::new();
    for load in LOADS {
        let word = load.0;
        for way in WAYS {
            let floor = (way != Way::Local).then(|| format!("gzip {word}, local").into());
            let target =
                (way != Way::Local).then_some(Target::at_most(Quantity::ClientCpuRatio, 1.05));
            let name = format!("gzip {word}, {}", way.name());
            list.push((Case { floor, ..Case::new(name, None, target) }, way, load));
        }
    }
    list
}

fn run(site: &Site, way: Way, load: Load, bytes: u64) -> Result<Sample> {
    let front = site.front(way)?;
    let work = || {
        let mut children = Vec::new();
        for files in load.1 {
            // Without name and time in it, the output is the same everywhere.
            let mut command = front.command("gzip");
            command.args(["-n", "-k", "-f"]).args(files.iter().map(|file| front.root.join(file)));
            children.push(command.spawn()?);
        }
        let ended: Vec<_> = children.iter_mut().map(std::process::Child::wait).collect();
        for status in ended {
            let status = status?;
            ensure!(status.success(), "gzip ended with {status}");
        }
        Ok((1, bytes))
    };
    Sample::of(|| site.times(&front), work)
}

/// Unpacks the first result and compares it with the input; compares the others with the first
/// result.
fn keep_or_compare(site: &Site, load: Load) -> Result<()> {
    for file in load.1.iter().copied().flatten() {
        let packed = site.export.join(format!("{file}.gz"));
        let kept = site.folder.path().join(format!("{file}.kept"));
        if kept.exists() {
            let is_same = std::fs::read(&packed)? == std::fs::read(&kept)?;
            ensure!(is_same, "gzip has written something else");
            std::fs::remove_file(packed)?;
            continue;
        }
        let unpacked = std::process::Command::new("gzip").arg("-dc").arg(&packed).output()?;
        let original = std::fs::read(site.export.join(file))?;
        ensure!(unpacked.stdout == original, "gzip has packed something else");
        std::fs::rename(packed, kept)?;
    }
    Ok(())
}

/// The speed-up by two processes, and its upper bound: all processor time on all processors.
fn speed_up(report: &mut Report, cases: &[Case]) {
    let find = |name: String| cases.iter().find(|case| case.name == name);
    for way in WAYS {
        let one = find(format!("gzip one, {}", way.name()));
        let two = find(format!("gzip two, {}", way.name()));
        let (Some(one), Some(two)) = (one, two) else { continue };
        let pairs = || one.samples.iter().zip(&two.samples);
        let gain = crate::report::median(
            pairs().map(|(a, b)| a.elapsed.as_secs_f64() / b.elapsed.as_secs_f64()).collect(),
        );
        let bound = crate::report::median(
            pairs()
                .map(|(a, b)| {
                    let work = (b.client_cpu + b.server_cpu).as_secs_f64();
                    let least = work / cpu::cpu_count().min(2) as f64;
                    a.elapsed.as_secs_f64() / least
                })
                .collect(),
        );
        let text = format!(
            "{gain:.2} x one (target: at least 1.95); without a moment's rest of {} CPUs, server \
             included, {bound:.2} x",
            cpu::cpu_count()
        );
        let name = format!("gzip two, {}", way.name());
        report.figure(&name, gain, &text);
        // One CPU proves nothing about two processes.
        let gain = if cpu::cpu_count() > 1 { gain } else { f64::NAN };
        report.judge(&format!("{name}, against one"), Bound::AtLeast(1.95), gain, "");
    }
}

/// Lines of a web server's log, the same in every run.
pub(crate) fn write_log(path: &Path, bytes: u64, seed: u64) -> Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    let (mut state, mut written) = (seed + 1, 0);
    let mut next = move |below: u64| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let (mut line, mut time) = (String::new(), 0);
    while written < bytes {
        time += next(900);
        line.clear();
        writeln!(
            line,
            "10.0.0.{} - - [{time:012}] \"GET /{}/{:x}.html HTTP/1.1\" {} {} \"agent {}\"",
            next(64),
            ["archive", "image", "news", "search"][next(4) as usize],
            next(500),
            [200, 200, 200, 304, 404][next(5) as usize],
            next(500) * 16,
            next(4),
        )?;
        let part = &line.as_bytes()[..line.len().min((bytes - written) as usize)];
        file.write_all(part)?;
        written += part.len() as u64;
    }
    Ok(file.flush()?)
}
