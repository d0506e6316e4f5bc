//! Programs that cannot change, on files of a server: by `dafs run` and on a mount, whose kernel
//! caches and reads ahead as that of an NFS client does. Beside them, programs on our libraries.
//!
//! Invariants
//! * A client's program and the server have one CPU each where there are two.
//! * After each trial, counters must show the way of its bytes.
//! * A trial that fails is tried once more, and then left out with the reason.

mod berkeley;
mod gzip;
mod pages;
mod rows;
mod stage;
mod tpcc;
pub(crate) mod trials;

pub(crate) use pages::Reads as PageReads;
pub(crate) use rows::Programs;

use super::cells::Network;
use super::document::number;
use super::results::{Quantity, Results, Sample};
use super::{Interrupt, Options, WRITE_EACH};
use crate::folder::Folder;
use crate::limit::{Limit, Resource};
use crate::plot::{self, Panel};
use crate::{cpu, database, fronts};
use anyhow::{Context, Result, anyhow};
use berkeley::Berkeley;
use gzip::Gzip;
use pages::Pages;
use rows::Skipped;
use stage::Stage;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;
use std::time::Instant;
use tpcc::Tpcc;
use trials::{Door, NETWORKS, Trial, Work};

/// Runs the trials of the experiments that are wanted.
pub(super) fn measure(
    options: &Options,
    results: &mut Results,
    interrupt: &Interrupt,
) -> Result<()> {
    let trials = trials::wanted(&options.only);
    if trials.is_empty() {
        return Ok(());
    }
    if let Some(reason) = fronts::missing() {
        skip(results, None, None, &reason);
        return Ok(());
    }
    // Its holder is outside of the mounts, through which it would remove the server's files.
    let folder = match Folder::make(&options.folder) {
        Ok(folder) => folder,
        Err(error) => {
            let reason = format!("no folder in {}: {error:#}", options.folder.display());
            skip(results, None, None, &reason);
            return Ok(());
        }
    };
    let folder = folder.path();
    cpu::pin(0)?;
    let outcome =
        fronts::in_own_mounts(|| measure_inside(options, folder, &trials, results, interrupt));
    cpu::unpin()?;
    // A child that an interrupt has ended, too, fails in its own words.
    interrupt.check()?;
    outcome
}

fn measure_inside(
    options: &Options,
    folder: &Path,
    trials: &BTreeSet<Trial>,
    results: &mut Results,
    interrupt: &Interrupt,
) -> Result<()> {
    let files = folder.join("files");
    std::fs::create_dir(&files)?;
    let works = Works::prepare(folder, &files, trials, options.scale, results);
    let stages = start(options, folder, &files, results, interrupt)?;
    let memory_bytes = works.berkeley.as_ref().map(Berkeley::memory_bytes);
    let limit = memory_bytes.map(|bytes| Limit::start(Resource::Memory, bytes)).transpose();
    let limit = limit.unwrap_or_else(|error| {
        skip(results, Some(Work::Sizes), None, &format!("{error:#}"));
        None
    });
    let is_possible = |trial: &&Trial| results.programs.reason(trial).is_none();
    let trials: Vec<Trial> = trials.iter().filter(is_possible).copied().collect();
    let mut written = Instant::now();
    for round in 1..=results.rounds {
        println!("round {round} of {}: {} trials of programs", results.rounds, trials.len());
        for trial in &trials {
            interrupt.check()?;
            if results.programs.reason(trial).is_some() {
                continue;
            }
            let stage = stages.get(&trial.network).context("a trial without network")?;
            let limit = limit.as_ref().filter(|_| trial.work == Work::Sizes);
            let run = || -> Result<(Sample, Option<u64>)> {
                let before = limit.and_then(Limit::refaults);
                let sample = stage.run(trial, &works, limit)?;
                let refaults = limit.and_then(Limit::refaults).zip(before);
                Ok((sample, refaults.map(|(after, before)| after.saturating_sub(before))))
            };
            let measured = run().or_else(|error| {
                interrupt.check()?;
                results.retry(Skipped::failed(trial, &error).rows(), &error);
                run()
            });
            match measured {
                Ok((sample, refaults)) => results.programs.add(*trial, sample, refaults),
                Err(error) => {
                    interrupt.check()?;
                    skip_rows(results, Skipped::failed(trial, &error));
                }
            }
            if written.elapsed() > WRITE_EACH {
                results.write(&options.json)?;
                written = Instant::now();
            }
        }
    }
    Ok(())
}

/// The programs of the trials, as far as they are wanted and possible.
#[derive(Default)]
struct Works {
    berkeley: Option<Berkeley>,
    gzip: Option<Gzip>,
    pages: Option<Pages>,
    tpcc: Option<Tpcc>,
}

impl Works {
    /// Makes their files in `files`. Works that cannot be are noted.
    fn prepare(
        folder: &Path,
        files: &Path,
        trials: &BTreeSet<Trial>,
        scale: u64,
        results: &mut Results,
    ) -> Self {
        let mut works = Self::default();
        if trials.iter().any(|trial| trial.work == Work::Gzip) {
            let made = possible(gzip::missing()).and_then(|()| Gzip::make(folder, files, scale));
            match made {
                Ok(mut gzip) => {
                    let converted =
                        possible(gzip::missing_converted()).and_then(|()| gzip.convert());
                    if let Err(error) = converted {
                        let (work, door) = (Some(Work::Gzip), Some(Door::Api));
                        let reason = format!("{error:#}");
                        let (network, step) = (None, None);
                        skip_rows(results, Skipped { work, network, door, step, reason });
                    }
                    works.gzip = Some(gzip);
                }
                Err(error) => skip(results, Some(Work::Gzip), None, &format!("{error:#}")),
            }
        }
        if trials.iter().any(|trial| trial.work.database().is_some()) {
            let made = possible(database::missing())
                .and_then(|()| Berkeley::make(folder, files, trials, scale));
            match made {
                Ok(berkeley) => works.berkeley = Some(berkeley),
                Err(error) => {
                    let all = Work::ALL.into_iter().filter(|work| work.database().is_some());
                    all.for_each(|work| skip(results, Some(work), None, &format!("{error:#}")));
                }
            }
        }
        if trials.iter().any(|trial| trial.work == Work::Pages) {
            match Pages::make(files, scale) {
                Ok(pages) => works.pages = Some(pages),
                Err(error) => skip(results, Some(Work::Pages), None, &format!("{error:#}")),
            }
        }
        if trials.iter().any(|trial| trial.work == Work::Tpcc) {
            match possible(database::missing()).and_then(|()| Tpcc::make(folder, scale)) {
                Ok(tpcc) => works.tpcc = Some(tpcc),
                Err(error) => skip(results, Some(Work::Tpcc), None, &format!("{error:#}")),
            }
        }
        works
    }
}

/// An error where something is missing.
fn possible(missing: Option<String>) -> Result<()> {
    missing.map_or(Ok(()), |reason| Err(anyhow!(reason)))
}

/// Starts the servers. Networks that cannot be are noted.
fn start(
    options: &Options,
    folder: &Path,
    files: &Path,
    results: &mut Results,
    interrupt: &Interrupt,
) -> Result<BTreeMap<Network, Stage>> {
    let mut stages = BTreeMap::new();
    for network in NETWORKS {
        interrupt.check()?;
        match Stage::start(network, options.megabits, folder, files) {
            Ok(stage) => {
                stages.insert(network, stage);
            }
            Err(error) => skip(results, None, Some(network), &format!("{error:#}")),
        }
    }
    Ok(stages)
}

/// Notes trials that cannot be, and says why.
fn skip(results: &mut Results, work: Option<Work>, network: Option<Network>, reason: &str) {
    let reason = reason.to_owned();
    skip_rows(results, Skipped { work, network, door: None, step: None, reason });
}

fn skip_rows(results: &mut Results, skipped: Skipped) {
    println!("papers: SKIPPED {}, {}", skipped.rows(), skipped.reason);
    results.programs.skipped.push(skipped);
}

/// The tables of a work; nothing where none of its trials ran.
pub(super) fn tables(programs: &Programs, work: Work) -> String {
    let mut text = String::new();
    for &quantity in work.quantities() {
        let value = |trial: &Trial| programs.value(quantity, trial).ok();
        text += &table(work, quantity.unit(), value);
    }
    if text.is_empty() {
        return text;
    }
    let pages = "pages that the client's kernel has read again";
    text += &table(work, pages, |trial| programs.refaults(trial));
    let (scale, title, figure) = (programs.scale, work.title(), work.figure());
    let picture = format!("![{title}](figures/{figure})");
    format!("\n## {title}\n\n{picture}\n\nAll sizes and numbers are at {scale} %.\n{text}")
}

/// The figure of a work, with a panel for each quantity and network; none where none of its trials ran.
pub(super) fn figure(programs: &Programs, work: Work) -> Option<String> {
    let panel = |quantity: Quantity, network: Network| {
        let line = |&door: &Door| {
            let trials = work.steps().iter().map(|&step| Trial { work, step, network, door });
            let value = |trial| programs.value(quantity, &trial).unwrap_or(f64::NAN);
            plot::Line { name: door.name(), values: trials.map(value).collect() }
        };
        let lines: Vec<plot::Line> = work.doors().iter().map(line).collect();
        let is_there = lines.iter().flat_map(|line| &line.values).any(|value| value.is_finite());
        let (title, unit) = (network.name().to_owned(), quantity.unit());
        is_there.then_some(Panel { title, unit, lines })
    };
    let mut panels = Vec::new();
    for &quantity in work.quantities() {
        panels.extend(NETWORKS.into_iter().filter_map(|network| panel(quantity, network)));
    }
    let steps: Vec<String> = work.steps().iter().map(u64::to_string).collect();
    (!panels.is_empty()).then(|| plot::draw(work.title(), &steps, &panels))
}

/// A table of values by step, network and door; nothing where there is no value.
fn table(work: Work, unit: &str, value: impl Fn(&Trial) -> Option<f64>) -> String {
    let columns: Vec<(Network, Door)> = NETWORKS
        .into_iter()
        .flat_map(|network| work.doors().iter().map(move |&door| (network, door)))
        .collect();
    let names: Vec<String> = columns
        .iter()
        .map(|(network, door)| format!("{} {}", network.name(), door.name()))
        .collect();
    let mut text = format!(
        "\nIn {unit}.\n\n| step | {} |\n|---|{}\n",
        names.join(" | "),
        "---|".repeat(names.len())
    );
    let mut is_empty = true;
    for &step in work.steps() {
        let of = |&(network, door): &(Network, Door)| value(&Trial { work, step, network, door });
        let values: Vec<Option<f64>> = columns.iter().map(of).collect();
        is_empty &= values.iter().all(Option::is_none);
        let values: Vec<String> =
            values.into_iter().map(|value| number(value.unwrap_or(f64::NAN))).collect();
        let _ = writeln!(text, "| {} | {} |", work.step(step), values.join(" | "));
    }
    if is_empty { String::new() } else { text }
}
