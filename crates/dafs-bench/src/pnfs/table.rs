//! The measurements as lines, tables, a figure and JSON.

use super::check::Seen;
use super::kernel::{self, Kernel};
use super::{Applied, Architecture, Cell, Opens, Options, patterns};
use crate::plot::{self, Line, Panel};
use anyhow::Result;
use serde::Serialize;

pub(crate) fn print_cell(cell: &Cell, bytes: u64, seen: &Seen) {
    println!(
        "{:<12} {} clients {}: {:.1} MB/s; of each byte {:.2} crossed links of storage nodes, {:.2} the head's",
        cell.architecture.name(),
        cell.clients,
        title(cell.write, cell.one_file, cell.block),
        cell.megabytes_per_second,
        seen.crossed_storage() as f64 / bytes as f64,
        seen.crossed_head() as f64 / bytes as f64,
    );
}

pub(crate) fn title(write: bool, one_file: bool, block: usize) -> String {
    let action = if write { "write" } else { "read" };
    let files = if one_file { "one file" } else { "separate files" };
    let block = match block >> 20 {
        0 => format!("{} KiB", block >> 10),
        mib => format!("{mib} MiB"),
    };
    format!("{action}, {files}, {block}")
}

/// The panels: reads or writes, of one file or several, by block size.
fn panels(options: &Options) -> impl Iterator<Item = (bool, bool, usize)> {
    let files = |write| [(write, false), (write, true)];
    let kinds = [true, false].into_iter().flat_map(files);
    kinds.flat_map(|(write, one_file)| {
        options.blocks.iter().map(move |kib| (write, one_file, kib * 1024))
    })
}

/// The cells of one architecture in a panel, by numbers of clients.
fn of_line(
    options: &Options,
    cells: &[Cell],
    architecture: Architecture,
    panel: (bool, bool, usize),
) -> impl Iterator<Item = Option<Cell>> {
    options.clients.iter().map(move |&clients| {
        let is_it = |cell: &&Cell| {
            cell.architecture == architecture
                && (cell.write, cell.one_file, cell.block) == panel
                && cell.clients == clients
        };
        cells.iter().find(is_it).copied()
    })
}

/// All architectures that were measured.
fn measured(cells: &[Cell]) -> impl Iterator<Item = Architecture> {
    let is_there = |a: &Architecture| cells.iter().any(|cell| cell.architecture == *a);
    Architecture::ALL.into_iter().filter(is_there)
}

pub(crate) fn print(options: &Options, cells: &[Cell]) {
    println!(
        "\nMB/s, and how busy the busiest link was; {} storage nodes, each link {} Mbit/s ({:.1} MB/s; all storage nodes {:.1}), {} MiB for \
         each client",
        options.storage_nodes,
        options.megabits,
        options.link_megabytes(),
        options.link_megabytes() * options.storage_nodes as f64,
        options.megabytes,
    );
    for panel in panels(options) {
        print!("\n| {} |", title(panel.0, panel.1, panel.2));
        options.clients.iter().for_each(|clients| print!(" {clients} |"));
        print!("\n|---|");
        options.clients.iter().for_each(|_| print!("---|"));
        println!();
        for architecture in measured(cells) {
            print!("| {} |", architecture.name());
            for cell in of_line(options, cells, architecture, panel) {
                let text = |cell: Cell| {
                    format!("{:.1} ({:.2})", cell.megabytes_per_second, cell.busiest_link)
                };
                print!(" {} |", cell.map_or("-".to_owned(), text));
            }
            println!();
        }
    }
}

pub(crate) fn print_one_applied(one: &Applied) {
    println!(
        "{:<12} {} clients {}: {:.1} MB/s, {:.0} transactions/s",
        one.architecture.name(),
        one.clients,
        one.pattern,
        one.megabytes_per_second,
        one.transactions_per_second,
    );
}

/// Patterns of applications: rates of bytes, and of transactions.
pub(crate) fn print_applied(options: &Options, applied: &[Applied]) {
    for pattern in &options.patterns {
        print!("\n| {pattern}: MB/s (transactions/s) |");
        options.clients.iter().for_each(|clients| print!(" {clients} |"));
        print!("\n|---|");
        options.clients.iter().for_each(|_| print!("---|"));
        for (index, one) in applied.iter().filter(|one| one.pattern == *pattern).enumerate() {
            // They are ordered by architecture, then by number of clients.
            if index.is_multiple_of(options.clients.len()) {
                print!("\n| {} |", one.architecture.name());
            }
            print!(" {:.1} ({:.0}) |", one.megabytes_per_second, one.transactions_per_second);
        }
        println!();
    }
}

/// The cost of LAYOUTGET for open, read and close of a small file.
pub(crate) fn print_opens(opens: Opens) {
    println!(
        "\nopen, read and close of a file of 4 KiB: {:.0} us, with LAYOUTGET {:.0} us ({:+.1} %)",
        opens.without_us,
        opens.with_us,
        opens.added_percent(),
    );
}

/// The figure's panels for patterns: rates of bytes, or of transactions where files are small.
fn pattern_panels(options: &Options, applied: &[Applied]) -> impl Iterator<Item = Panel> {
    let is_there = |pattern: &&String| applied.iter().any(|one| one.pattern == **pattern);
    let patterns: Vec<_> = options.patterns.iter().filter(is_there).collect();
    patterns.into_iter().map(|pattern| {
        let value = |architecture, clients| {
            let is_it = |one: &&Applied| {
                one.architecture == architecture
                    && one.pattern == *pattern
                    && one.clients == clients
            };
            let rate = |one: &Applied| match patterns::is_of_bytes(pattern) {
                true => one.megabytes_per_second,
                false => one.transactions_per_second,
            };
            applied.iter().find(is_it).map_or(f64::NAN, rate)
        };
        let lines = Architecture::ALL.into_iter().map(|architecture| Line {
            name: architecture.name(),
            values: options.clients.iter().map(|&clients| value(architecture, clients)).collect(),
        });
        let lines = lines.filter(|line| line.values.iter().any(|value| value.is_finite()));
        let unit = if patterns::is_of_bytes(pattern) { "MB/s" } else { "transactions/s" };
        Panel { title: pattern.clone(), unit, lines: lines.collect() }
    })
}

pub(crate) fn write(
    options: &Options,
    cells: &[Cell],
    applied: &[Applied],
    opens: Option<Opens>,
    kernel: &Kernel,
) -> Result<()> {
    #[derive(Serialize)]
    struct All<'a> {
        storage_nodes: usize,
        megabits: u32,
        megabytes: u64,
        cells: &'a [Cell],
        applications: &'a [Applied],
        open_read_close: Option<Opens>,
        kernel_clients: &'a Kernel,
    }
    std::fs::create_dir_all(&options.results)?;
    let &Options { storage_nodes, megabits, megabytes, .. } = options;
    let all = All {
        storage_nodes,
        megabits,
        megabytes,
        cells,
        applications: applied,
        open_read_close: opens,
        kernel_clients: kernel,
    };
    std::fs::write(options.results.join("pnfs.json"), serde_json::to_string_pretty(&all)?)?;
    let steps: Vec<_> = options
        .clients
        .iter()
        .map(|&clients| match clients {
            1 => "1 client".to_owned(),
            _ => format!("{clients} clients"),
        })
        .collect();
    let panels: Vec<_> = panels(options)
        .map(|panel| {
            let line = |architecture: Architecture| Line {
                name: architecture.name(),
                values: of_line(options, cells, architecture, panel)
                    .map(|cell| cell.map_or(f64::NAN, |cell| cell.megabytes_per_second))
                    .collect(),
            };
            let lines = measured(cells).map(line).collect();
            Panel { title: title(panel.0, panel.1, panel.2), unit: "MB/s", lines }
        })
        .chain(pattern_panels(options, applied))
        .chain(kernel::panels(options, kernel))
        .collect();
    let figure = plot::draw("Ways to the same storage nodes", &steps, &panels);
    std::fs::write(options.results.join("pnfs.svg"), figure)?;
    println!("\nwritten to {}", options.results.display());
    Ok(())
}
