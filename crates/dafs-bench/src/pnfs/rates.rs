//! The rates of all architectures with one number of clients, for others to read.

use super::{Architecture, KernelClients, Measured, Options, patterns, table};
use crate::peer;
use anyhow::Result;
use std::path::PathBuf;

/// The rate of each link, in Mbit/s.
pub(super) const MEGABITS: u32 = 100;

/// The most clients of BTIO in the paper.
const NINE: usize = 9;

/// Bytes of a block, in KiB: large ones, and those of applications.
const BLOCKS: [usize; 2] = [2048, 8];

/// A rate of an architecture.
pub(crate) struct Rate {
    /// The architecture and the load, such as `Direct-pNFS: write, one file, 2 MiB`, or
    /// `CephFS uncached: oltp`.
    pub(crate) case: String,
    pub(crate) unit: &'static str,
    pub(crate) value: f64,
}

/// All rates, and the reasons why some are missing.
#[derive(Default)]
pub(crate) struct Rates {
    pub(crate) list: Vec<Rate>,
    pub(crate) skipped: Vec<String>,
}

/// Measures all architectures and patterns; CephFS's client once more without its cache; and BTIO once
/// more with nine clients. `check` fails when the run shall end. Cases with other failures are left out.
pub(crate) fn rates(
    clients: usize,
    storage_nodes: usize,
    megabytes: u64,
    check: impl Fn() -> Result<()> + Sync,
) -> Result<Rates> {
    let options = Options {
        storage_nodes,
        clients: vec![clients],
        megabits: MEGABITS,
        megabytes,
        blocks: BLOCKS.to_vec(),
        patterns: patterns::PATTERNS.map(str::to_owned).to_vec(),
        only: String::new(),
        kernel_clients: KernelClients::None,
        uncached: false,
        results: PathBuf::new(),
    };
    let uncached =
        Options { only: Architecture::Native.name().to_owned(), uncached: true, ..options.clone() };
    let nine = Options {
        clients: vec![NINE],
        blocks: Vec::new(),
        patterns: vec!["btio".to_owned()],
        ..options.clone()
    };
    let mut rates = Rates::default();
    for (options, words) in [(options, ""), (uncached, " uncached"), (nine, " with nine clients")] {
        check()?;
        let Rates { list, skipped } = of(&options, words, &check)?;
        // An interrupt ends clients, too.
        check()?;
        rates.list.extend(list);
        rates.skipped.extend(skipped);
    }
    Ok(rates)
}

/// The rates of a comparison, whose architectures are named with some words more.
fn of(options: &Options, words: &str, check: &(dyn Fn() -> Result<()> + Sync)) -> Result<Rates> {
    options.check()?;
    let mut measured = Measured::default();
    let outcome = peer::in_own_network(|| options.measure_inside(&mut measured, check));
    let mut skipped = measured.skipped;
    if let Err(error) = outcome {
        let reason = format!("{error:#}");
        // That of an architecture is there already.
        if !skipped.contains(&reason) {
            skipped.push(reason);
        }
    }
    let cells = measured.cells.iter().map(|cell| {
        let load = table::title(cell.write, cell.one_file, cell.block);
        let case = format!("{}{words}: {load}", cell.architecture.name());
        Rate { case, unit: "MB/s", value: cell.megabytes_per_second }
    });
    let applied = measured.applied.iter().map(|one| {
        let case = format!("{}{words}: {}", one.architecture.name(), one.pattern);
        match patterns::is_of_bytes(&one.pattern) {
            true => Rate { case, unit: "MB/s", value: one.megabytes_per_second },
            false => Rate { case, unit: "transactions/s", value: one.transactions_per_second },
        }
    });
    let list = cells.chain(applied).collect();
    Ok(Rates { list, skipped })
}
