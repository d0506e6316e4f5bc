//! The cost of a program's start with our library preloaded: for a program that uses no file of the
//! server, and for one that reads one and so opens a session.
//!
//! A process that another one under `dafs run` starts costs that. The command `dafs run` itself is
//! started once, and is listed apart.

use super::ways::{MEMORY, dafs};
use super::{Front, Site, Way};
use crate::report::{Case, Report, Sample, median};
use crate::targets::Bound;
use crate::{Plan, cpu};
use anyhow::{Context, Result, ensure};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A start is short, so more rounds cost little and average out other load.
const ROUNDS: usize = 4;

/// Most milliseconds that the library may add to a start.
const LIMIT_MILLISECONDS: f64 = 3.0;

const TEXT: &str = "one line\n";

/// A program to start, and the way to start it.
struct Start {
    /// Its arguments, the program first.
    words: Vec<PathBuf>,
    says: &'static str,
    preloaded: bool,
}

pub(super) fn measure(plan: &Plan, report: &mut Report) -> Result<()> {
    let site = Site::start(Path::new(MEMORY))?;
    std::fs::write(site.export.join("file"), TEXT)?;
    let mut list = list(&site)?;
    list.retain(|(case, _)| case.name.contains(&plan.only));
    if list.is_empty() {
        return Ok(());
    }
    let environment = environment(&site.front(Way::Run)?)?;
    for _ in 0..plan.rounds * ROUNDS {
        for (case, start) in &mut list {
            let sample = run(plan, &site, start, &environment);
            case.samples.push(sample.with_context(|| case.name.clone())?);
        }
    }
    let cases: Vec<Case> = list.into_iter().map(|(case, _)| case).collect();
    report.add("start of a program", &cases);
    for case in &cases {
        let Some(floor) = cases.iter().find(|other| case.floor.as_deref() == Some(&other.name))
        else {
            continue;
        };
        let each = |sample: &Sample| sample.elapsed.as_secs_f64() * 1e3 / sample.operations as f64;
        let pairs = case.samples.iter().zip(&floor.samples);
        let more = median(pairs.map(|(with, without)| each(with) - each(without)).collect());
        let text = format!("{more:.2} ms more (target: under {LIMIT_MILLISECONDS} ms)");
        report.figure(&case.name, more, &text);
        let bound = Bound::AtMost(LIMIT_MILLISECONDS);
        report.judge(&format!("{}, beyond a plain start", case.name), bound, more, "ms");
    }
    Ok(())
}

fn list(site: &Site) -> Result<Vec<(Case, Start)>> {
    let front = site.front(Way::Run)?;
    let (local, served) = (site.export.join("file"), front.root.join("file"));
    let at = format!("--at={}={}", front.root.display(), site.url()?);
    let start = |words: &[&Path], says, preloaded| {
        let words = words.iter().map(|word| word.to_path_buf()).collect();
        Start { words, says, preloaded }
    };
    let (nothing, cat, dafs) = (Path::new("/bin/true"), Path::new("/bin/cat"), dafs()?);
    let plain = "start true";
    let floor = Some("start cat of a local file");
    Ok(vec![
        (Case::new(plain, None, None), start(&[nothing], "", false)),
        (Case::new("start true, preloaded", Some(plain), None), start(&[nothing], "", true)),
        (
            Case::new("start true, by dafs run", Some(plain), None),
            start(&[&dafs, "run".as_ref(), at.as_ref(), nothing], "", false),
        ),
        (Case::new("start cat of a local file", None, None), start(&[cat, &local], TEXT, false)),
        (
            Case::new("start cat of a local file, preloaded", floor, None),
            start(&[cat, &local], TEXT, true),
        ),
        (
            Case::new("start cat of a served file, preloaded", floor, None),
            start(&[cat, &served], TEXT, true),
        ),
    ])
}

/// The environment that `dafs run` sets for its program.
fn environment(front: &Front) -> Result<Vec<(OsString, OsString)>> {
    let output = front.command("env").arg("-0").output()?;
    ensure!(output.status.success(), "env ended with {}", output.status);
    let variables = output.stdout.split(|byte| *byte == 0).filter_map(|variable| {
        let at = variable.iter().position(|byte| *byte == b'=')?;
        let (name, value) = (variable[..at].to_vec(), variable[at + 1..].to_vec());
        let is_ours = name == b"LD_PRELOAD" || name.starts_with(b"DAFS_RUN_");
        is_ours.then(|| (OsString::from_vec(name), OsString::from_vec(value)))
    });
    Ok(variables.collect())
}

fn run(
    plan: &Plan,
    site: &Site,
    start: &Start,
    environment: &[(OsString, OsString)],
) -> Result<Sample> {
    let mut command = Command::new(&start.words[0]);
    command.args(&start.words[1..]).stdin(Stdio::null()).stderr(Stdio::inherit());
    if start.preloaded {
        command.envs(environment.iter().map(|(name, value)| (name, value)));
    }
    let work = || {
        let (begin, mut operations) = (Instant::now(), 0);
        while begin.elapsed() < Duration::from_millis(plan.milliseconds / ROUNDS as u64) {
            let output = command.output()?;
            ensure!(output.status.success(), "it ended with {}", output.status);
            ensure!(output.stdout == start.says.as_bytes(), "it said something else");
            operations += 1;
        }
        Ok((operations, 0))
    };
    let server = site.server.id();
    Sample::of(|| Ok((cpu::children_time(), cpu::process_time(Some(server))?)), work)
}
