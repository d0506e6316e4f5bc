//! What was measured, as lines, tables, a figure and JSON.

use super::check::Seen;
use super::{Architecture, Cell, Options};
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

fn title(write: bool, one_file: bool, block: usize) -> String {
    let action = if write { "write" } else { "read" };
    let files = if one_file { "one file" } else { "separate files" };
    let block = match block >> 20 {
        0 => format!("{} KiB", block >> 10),
        mib => format!("{mib} MiB"),
    };
    format!("{action}, {files}, {block}")
}

/// The panels: what is done, and how.
fn panels(options: &Options) -> impl Iterator<Item = (bool, bool, usize)> {
    let files = |write| [(write, false), (write, true)];
    let kinds = [true, false].into_iter().flat_map(files);
    kinds.flat_map(|(write, one_file)| {
        options.blocks.iter().map(move |kib| (write, one_file, kib * 1024))
    })
}

fn values(
    options: &Options,
    cells: &[Cell],
    architecture: Architecture,
    panel: (bool, bool, usize),
) -> Vec<f64> {
    let of = |clients: usize| {
        let mut found = cells.iter().filter(|cell| {
            cell.architecture == architecture
                && (cell.write, cell.one_file, cell.block) == panel
                && cell.clients == clients
        });
        found.next().map_or(f64::NAN, |cell| cell.megabytes_per_second)
    };
    options.clients.iter().map(|&clients| of(clients)).collect()
}

/// All architectures that were measured.
fn measured(cells: &[Cell]) -> impl Iterator<Item = Architecture> {
    let is_there = |a: &Architecture| cells.iter().any(|cell| cell.architecture == *a);
    Architecture::ALL.into_iter().filter(is_there)
}

pub(crate) fn print(options: &Options, cells: &[Cell]) {
    println!(
        "\nMB/s; {} storage nodes, each link {} Mbit/s ({:.1} MB/s; all storage nodes {:.1}), {} MiB for \
         each client",
        options.storage_nodes,
        options.megabits,
        f64::from(options.megabits) / 8.0,
        f64::from(options.megabits) / 8.0 * options.storage_nodes as f64,
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
            for value in values(options, cells, architecture, panel) {
                print!(" {value:.1} |");
            }
            println!();
        }
    }
}

pub(crate) fn write(options: &Options, cells: &[Cell]) -> Result<()> {
    #[derive(Serialize)]
    struct All<'a> {
        storage_nodes: usize,
        megabits: u32,
        megabytes: u64,
        cells: &'a [Cell],
    }
    std::fs::create_dir_all(&options.results)?;
    let &Options { storage_nodes, megabits, megabytes, .. } = options;
    let all = All { storage_nodes, megabits, megabytes, cells };
    std::fs::write(options.results.join("pnfs.json"), serde_json::to_string_pretty(&all)?)?;
    let steps: Vec<_> =
        options.clients.iter().map(|clients| format!("{clients} clients")).collect();
    let panels: Vec<_> = panels(options)
        .map(|panel| {
            let line = |architecture: Architecture| Line {
                name: architecture.name(),
                values: values(options, cells, architecture, panel),
            };
            let lines = measured(cells).map(line).collect();
            Panel { title: title(panel.0, panel.1, panel.2), unit: "MB/s", lines }
        })
        .collect();
    let figure = plot::draw("Five ways to the same storage nodes", &steps, &panels);
    std::fs::write(options.results.join("pnfs.svg"), figure)?;
    println!("\nwritten to {}", options.results.display());
    Ok(())
}
