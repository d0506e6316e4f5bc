//! The experiments of the papers on DAFS, NFS over RDMA and Direct-pNFS, run again: a sweep of blocks,
//! ways, depths and orders, programs, rows of other groups, the verdict on each claim of the papers, and
//! a page with tables and figures.
//!
//! Each network has a server of its own for all ways, and each way has a client process. Ways that are
//! compared run within milliseconds, so that their ratios mean something beside other load.
//!
//! Invariants
//! * Client and server have one CPU each where there are two, and nothing else of the run is busy.
//! * After each sample, counters must show that its bytes took the way of its cell.
//! * Whatever ends the run, the file of results has all samples so far, and the servers' files are
//!   removed.
//! * A row that fails is tried once more, and then left out with the reason: it ends no other row, and
//!   neither does one that hangs.

mod cells;
mod claims;
mod document;
mod groups;
mod join;
mod kernel;
mod list;
mod load;
mod matching;
mod programs;
mod results;
mod world;

pub(crate) use load::Load;
pub(crate) use matching::serve as serve_slow_disk;
pub(crate) use programs::PageReads;

use crate::folder::Folder;
use crate::{cpu, files, pnfs};
use anyhow::{Context, Error, Result, bail, ensure};
use cells::{Cell, Network, Way};
use results::{Results, Skipped};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use world::World;

/// Time of a sample at full scale, and the shortest.
const MILLISECONDS: u64 = 100;
const MILLISECONDS_MIN: u64 = 5;

/// From this scale in percent on, samples have their full length. They are short beside programs, and a
/// shorter one would tell of a link's first burst.
const FULL_SAMPLES_SCALE: u64 = 20;

/// Rounds, and up to this scale in percent one, so that such a run takes minutes.
const ROUNDS: usize = 3;
const ONE_ROUND_SCALE: u64 = 10;

/// So many rows of a way fail on a network before the way is given up there.
const FAILURES_MAX: usize = 3;

/// The time after which an interruption loses samples.
const WRITE_EACH: Duration = Duration::from_secs(2);

/// Repeats the papers' experiments and judges their claims.
#[derive(clap::Args, Debug, Clone)]
pub(crate) struct Options {
    /// Only these experiments, such as P0-F4,P2-F2
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Only blocks of so many bytes; all from 512 to 1048576 by default
    #[arg(long, value_delimiter = ',')]
    blocks: Vec<usize>,
    /// Percent of the full size of programs' files and of the number of their operations. Samples of reads
    /// are shorter below 20 percent
    #[arg(long, default_value_t = 100)]
    scale: u64,
    /// Rounds; medians are over these. 3 by default, and 1 up to a scale of 10 percent
    #[arg(long)]
    rounds: Option<usize>,
    /// The rate of links, in Mbit/s
    #[arg(long, default_value_t = 1000)]
    megabits: u32,
    /// The clients of Direct-pNFS
    #[arg(long, default_value_t = 8)]
    pnfs_clients: usize,
    /// The folder for the servers' file: in memory, or the disk is measured as well
    #[arg(long, default_value = "/dev/shm")]
    folder: PathBuf,
    /// The file for the JSON
    #[arg(long, default_value = "bench-results/papers.json")]
    json: PathBuf,
    /// The page to write; its figures go into the folder `figures` beside it
    #[arg(long, default_value = "bench-results/benchmarks-papers.md")]
    document: PathBuf,
    /// Measures nothing and writes the page from the JSON of an earlier run
    #[arg(long)]
    draw: bool,
}

/// A signal that ends the run.
#[derive(Default)]
struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    fn watch() -> Result<Self> {
        let interrupt = Self::default();
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, interrupt.0.clone())?;
        }
        Ok(interrupt)
    }

    fn check(&self) -> Result<()> {
        ensure!(!self.0.load(Ordering::Relaxed), "interrupted");
        Ok(())
    }
}

impl Options {
    pub(crate) fn measure(&self) -> Result<()> {
        let unknown = self.only.iter().find(|id| !list::claims().any(|claim| claim.id == **id));
        if let Some(id) = unknown {
            bail!("there is no experiment {id}; an experiment is one such as P0-F4");
        }
        ensure!(self.megabits > 0, "a link has a rate");
        let unknown = self.blocks.iter().find(|block| !cells::ALL_BLOCKS.contains(block));
        ensure!(unknown.is_none(), "blocks are the powers of two from 512 to 1048576");
        let are_possible = (1..=pnfs::CLIENTS_MAX).contains(&self.pnfs_clients);
        ensure!(are_possible, "Direct-pNFS has 1 to {} clients", pnfs::CLIENTS_MAX);
        if !self.draw {
            let interrupt = Interrupt::watch()?;
            let milliseconds = (MILLISECONDS * self.scale / FULL_SAMPLES_SCALE)
                .clamp(MILLISECONDS_MIN, MILLISECONDS);
            let mut results = Results::new(self.round_count(), milliseconds, self.megabits);
            results.only.clone_from(&self.only);
            results.programs.scale = self.scale;
            let outcome = self.measure_parts(&mut results, &interrupt);
            results.is_complete = outcome.is_ok();
            results.write(&self.json)?;
            let file = self.json.display();
            let draw = format!("dafs-bench papers --draw --json {file}");
            outcome
                .with_context(|| format!("rows so far are in {file}; for their page: {draw}"))?;
        }
        document::write(&Results::read(&self.json)?, &self.document)?;
        println!("written to {}", self.document.display());
        Ok(())
    }

    fn round_count(&self) -> usize {
        let default = if self.scale <= ONE_ROUND_SCALE { 1 } else { ROUNDS };
        self.rounds.unwrap_or(default).max(1)
    }

    /// Measures all parts. One that fails costs the others no row.
    fn measure_parts(&self, results: &mut Results, interrupt: &Interrupt) -> Result<()> {
        type Part = fn(&Options, &mut Results, &Interrupt) -> Result<()>;
        let parts: [Part; 3] = [Self::sweep, programs::measure, groups::measure];
        let mut outcome = Ok(());
        for part in parts {
            let done = part(self, results, interrupt);
            interrupt.check()?;
            outcome = outcome.and(done);
            results.write(&self.json)?;
        }
        outcome
    }

    fn sweep(&self, results: &mut Results, interrupt: &Interrupt) -> Result<()> {
        let cells = cells::wanted(&self.only, &self.blocks);
        if cells.is_empty() {
            return Ok(());
        }
        let prepared = Folder::make(&self.folder).and_then(|folder| {
            files::prepare(folder.path())?;
            Ok(folder)
        });
        let folder = match prepared {
            Ok(folder) => folder,
            Err(error) => {
                let reason = format!("there is no file in {}: {error:#}", self.folder.display());
                skip(results, None, None, &reason);
                return Ok(());
            }
        };
        cpu::pin(0)?;
        let outcome = self.start(&cells, folder.path(), results, interrupt).and_then(|worlds| {
            let cells: Vec<Cell> =
                cells.into_iter().filter(|cell| results.reason(cell).is_none()).collect();
            self.rounds(worlds, &cells, results, interrupt)
        });
        cpu::unpin()?;
        // A child that an interrupt has ended, too, fails in its own words.
        interrupt.check()?;
        outcome
    }

    /// Starts the networks, servers and clients of the cells. Those that cannot be are noted.
    fn start(
        &self,
        cells: &BTreeSet<Cell>,
        folder: &Path,
        results: &mut Results,
        interrupt: &Interrupt,
    ) -> Result<BTreeMap<Network, World>> {
        let mut worlds = BTreeMap::new();
        for network in Network::ALL {
            let ways: BTreeSet<Way> =
                cells.iter().filter(|cell| cell.network == network).map(|cell| cell.way).collect();
            if ways.is_empty() {
                continue;
            }
            interrupt.check()?;
            let made = world::nodes(network, self.megabits)
                .and_then(|nodes| Ok((nodes, world::limit(network)?)));
            let (nodes, limit) = match made {
                Ok(made) => made,
                Err(error) => {
                    skip(results, Some(network), None, &format!("{error:#}"));
                    continue;
                }
            };
            let mut world = match World::start(network, nodes, limit, folder) {
                Ok(world) => world,
                Err(error) => {
                    skip(results, Some(network), None, &format!("{error:#}"));
                    continue;
                }
            };
            for way in ways {
                if let Err(error) = world.add(way) {
                    interrupt.check()?;
                    skip(results, Some(network), Some(way), &format!("{error:#}"));
                }
            }
            worlds.insert(network, world);
        }
        Ok(worlds)
    }

    fn rounds(
        &self,
        mut worlds: BTreeMap<Network, World>,
        cells: &[Cell],
        results: &mut Results,
        interrupt: &Interrupt,
    ) -> Result<()> {
        let mut written = Instant::now();
        let milliseconds = results.milliseconds;
        for round in 1..=results.rounds {
            println!("round {round} of {}: {} rows", results.rounds, cells.len());
            for group in cells.chunk_by(Cell::is_beside) {
                for cell in group {
                    interrupt.check()?;
                    if results.reason(cell).is_some() {
                        continue;
                    }
                    let world = worlds.get_mut(&cell.network).context("a row without network")?;
                    let sample = world.measure(cell, milliseconds).or_else(|error| {
                        interrupt.check()?;
                        results.retry(cell.to_string(), &error);
                        world.renew(cell.way)?;
                        world.measure(cell, milliseconds)
                    });
                    match sample {
                        Ok(sample) => results.add(*cell, sample),
                        Err(error) => {
                            interrupt.check()?;
                            fail(results, *cell, &error);
                        }
                    }
                }
                if written.elapsed() > WRITE_EACH {
                    results.write(&self.json)?;
                    written = Instant::now();
                }
            }
        }
        Ok(())
    }
}

/// Notes rows that cannot be, and says why.
fn skip(results: &mut Results, network: Option<Network>, way: Option<Way>, reason: &str) {
    let rows = [network.map(Network::name), way.map(Way::name)];
    let rows: Vec<&str> = rows.into_iter().flatten().collect();
    println!("papers: SKIPPED {}, {reason}", rows.join(" "));
    results.skipped.push(Skipped { network, way, cell: None, reason: reason.to_owned() });
}

/// Notes a row that has failed, and gives its way up where that is one of many.
fn fail(results: &mut Results, cell: Cell, error: &Error) {
    let (network, way) = (Some(cell.network), Some(cell.way));
    println!("papers: SKIPPED {cell}, {error:#}");
    let reason = format!("{error:#}");
    results.skipped.push(Skipped { network, way, cell: Some(cell), reason });
    let is_of_way = |one: &&Skipped| one.cell.is_some() && (one.network, one.way) == (network, way);
    if results.skipped.iter().filter(is_of_way).count() == FAILURES_MAX {
        skip(results, network, way, &format!("{FAILURES_MAX} of its rows have failed: {error:#}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(folder: &Path) -> Options {
        Options {
            only: Vec::new(),
            blocks: Vec::new(),
            scale: 1,
            rounds: None,
            megabits: 1000,
            pnfs_clients: 1,
            folder: folder.to_owned(),
            json: folder.join("papers.json"),
            document: folder.join("page.md"),
            draw: false,
        }
    }

    #[test]
    fn a_small_scale_has_one_round_where_none_are_given() {
        let count =
            |scale, rounds| Options { scale, rounds, ..options(Path::new("")) }.round_count();
        assert_eq!([count(1, None), count(10, None), count(11, None)], [1, 1, 3]);
        assert_eq!([count(10, Some(3)), count(100, Some(2)), count(100, Some(0))], [3, 2, 1]);
    }

    #[test]
    fn an_interrupted_run_ends_at_its_next_row() {
        let interrupt = Interrupt::default();
        interrupt.check().expect("goes on");
        interrupt.0.store(true, Ordering::Relaxed);
        let error = interrupt.check().expect_err("ends").to_string();
        assert_eq!(error, "interrupted");
        let folder = tempfile::tempdir().expect("a folder");
        let options = options(folder.path());
        let mut results = results::tests::run(|_| 1);
        let before = results.clone();
        let cells: Vec<Cell> = cells::wanted(&[], &[]).into_iter().collect();
        let outcome = options.rounds(BTreeMap::new(), &cells, &mut results, &interrupt);
        assert!(outcome.is_err());
        assert_eq!(results, before, "no row is lost");
    }

    #[test]
    fn a_row_that_fails_is_left_out_and_so_is_a_way_whose_rows_all_fail() {
        let mut results = results::tests::run(|_| 1);
        let of_way = |cell: &Cell| (cell.network, cell.way) == (Network::Link, Way::Prepost);
        let mut cells = cells::wanted(&[], &[]).into_iter().filter(of_way);
        let error = Error::msg("it hangs");
        fail(&mut results, cells.next().expect("a row"), &error);
        let next = cells.next().expect("a row");
        assert_eq!((results.skipped.len(), results.reason(&next)), (1, None));
        fail(&mut results, next, &error);
        fail(&mut results, cells.next().expect("a row"), &error);
        assert!(cells.all(|cell| results.reason(&cell).is_some_and(|why| why.contains("hangs"))));
        let free = Cell { network: Network::Free, ..next };
        assert_eq!(results.reason(&free), None);
    }

    #[test]
    fn a_folder_without_room_skips_all_rows_with_the_reason() {
        let folder = tempfile::tempdir().expect("a folder");
        let options = options(&folder.path().join("missing"));
        let mut results = Results::new(1, 1, 1000);
        options.sweep(&mut results, &Interrupt::default()).expect("nothing to measure");
        assert!(results.rows.is_empty());
        assert!(results.skipped[0].reason.contains("missing"), "{:?}", results.skipped);
        let all = cells::wanted(&[], &[]);
        assert!(all.iter().all(|cell| results.reason(cell).is_some()));
    }
}
