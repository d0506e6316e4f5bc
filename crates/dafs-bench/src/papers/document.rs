//! The page of a run: verdicts, tables and figures, from its results alone.

use super::cells::{
    ALL_BLOCKS, FROM_2K, FROM_4K, INLINE_BLOCKS, JOIN_DEPTHS, Line, Network, Order, READ_AHEADS,
    RECORD, Way, size,
};
use super::groups::Group;
use super::list;
use super::programs::{self, trials::Work};
use super::results::{Quantity, Results};
use crate::plot::{self, Panel};
use crate::targets::Verdict;
use anyhow::Result;
use std::fmt::Write;
use std::path::Path;

/// A figure: panels over the same blocks.
struct Picture {
    file: &'static str,
    title: &'static str,
    blocks: &'static [usize],
    specs: &'static [Spec],
}

/// A panel for each of some networks.
struct Spec {
    title: &'static str,
    networks: &'static [Network],
    quantity: Quantity,
    lines: Lines,
}

/// The lines of a panel.
enum Lines {
    /// One for each way, with so many reads under way.
    Ways(&'static [Way], usize, Order),
    /// One for each number of read-aheads.
    ReadAheads(Way),
}

const BOTH: &[Network] = &[Network::Link, Network::Free];
const SLOW: &[Network] = &[Network::Slow];
const ALL_NETWORKS: &[Network] = &[Network::Link, Network::Far, Network::Free];

const P0_WAYS: &[Way] = &[Way::DafsIwarp, Way::DafsShm, Way::Libnfs, Way::NfsTcp];
const P1_WAYS: &[Way] = &[Way::DafsIwarp, Way::DafsShm];
const P2_WAYS: &[Way] = &[
    Way::DafsIwarp,
    Way::DafsShm,
    Way::Libnfs,
    Way::NfsTcp,
    Way::NocopyIwarp,
    Way::NocopyShm,
    Way::Prepost,
];
const P3_WAYS: &[Way] =
    &[Way::DafsIwarp, Way::DafsShm, Way::NfsTcp, Way::NocopyIwarp, Way::NocopyShm, Way::Prepost];

const INLINE_WAYS: &[Way] = &[Way::DafsIwarp, Way::DafsDirect, Way::NfsInline, Way::NfsDirect];

const fn spec(
    title: &'static str,
    networks: &'static [Network],
    quantity: Quantity,
    lines: Lines,
) -> Spec {
    Spec { title, networks, quantity, lines }
}

static PICTURES: [Picture; 5] = {
    use Lines::{ReadAheads, Ways};
    use Order::{Random, Sequential};
    use Quantity::{ClientCpu, ClientCpuPerMegabyte, ClientShare, ServerCpu, Throughput};
    [
        Picture {
            file: "papers-p0.svg",
            title: "P0, figures 4 to 7: reads one at a time, and 32",
            blocks: &FROM_2K,
            specs: &[
                spec("P0-F4, depth 1", BOTH, ClientCpu, Ways(P0_WAYS, 1, Random)),
                spec("P0-F5, depth 1", BOTH, Throughput, Ways(P0_WAYS, 1, Random)),
                spec("P0-F6, depth 32", BOTH, ClientCpu, Ways(P0_WAYS, 32, Random)),
                spec("P0-F7, depth 32", BOTH, Throughput, Ways(P0_WAYS, 32, Random)),
                spec("P0-F5, depth 1", SLOW, Throughput, Ways(P0_WAYS, 1, Random)),
                spec("P0-F7, depth 32", SLOW, Throughput, Ways(P0_WAYS, 32, Random)),
                spec("server, depth 1", BOTH, ServerCpu, Ways(P0_WAYS, 1, Random)),
                spec("server, depth 32", BOTH, ServerCpu, Ways(P0_WAYS, 32, Random)),
            ],
        },
        Picture {
            file: "papers-p1.svg",
            title: "P1, figure 3: asynchronous and synchronous reads",
            blocks: &FROM_4K,
            specs: &[
                spec("P1-F3, depth 64", BOTH, Throughput, Ways(P1_WAYS, 64, Random)),
                spec("P1-F3, depth 1", BOTH, Throughput, Ways(P1_WAYS, 1, Random)),
            ],
        },
        Picture {
            file: "papers-p2.svg",
            title: "P2, figures 2 to 5: without and with read-ahead",
            blocks: &FROM_4K,
            specs: &[
                spec("P2-F2, RA 0", ALL_NETWORKS, Throughput, Ways(P2_WAYS, 1, Random)),
                spec("P2-F3, RA 0", BOTH, ClientCpuPerMegabyte, Ways(P2_WAYS, 1, Random)),
                spec("P2-F4, RA 8", BOTH, Throughput, Ways(P2_WAYS, 9, Sequential)),
                spec("P2-F5, RA 8", BOTH, ClientCpuPerMegabyte, Ways(P2_WAYS, 9, Sequential)),
            ],
        },
        Picture {
            file: "papers-p3.svg",
            title: "P3, figures 15 to 18: NFS over TCP and over RDMA",
            blocks: &ALL_BLOCKS,
            specs: &[
                spec("P3-F15, nfs-tcp", BOTH, Throughput, ReadAheads(Way::NfsTcp)),
                spec("P3-F15, prepost", BOTH, Throughput, ReadAheads(Way::Prepost)),
                spec("P3-F16, nocopy-iwarp", BOTH, Throughput, ReadAheads(Way::NocopyIwarp)),
                spec("P3-F16, nocopy-shm", BOTH, Throughput, ReadAheads(Way::NocopyShm)),
                spec("P3-F17, RA 4", BOTH, ClientShare, Ways(P3_WAYS, 5, Sequential)),
                spec("P3-F17, RA 4", BOTH, Throughput, Ways(P3_WAYS, 5, Sequential)),
                spec("P3-F18, RA 0", BOTH, ClientCpu, Ways(P3_WAYS, 1, Sequential)),
                spec("server, RA 0", BOTH, ServerCpu, Ways(P3_WAYS, 1, Sequential)),
            ],
        },
        Picture {
            file: "papers-inline.svg",
            title: "P3, chunks: reads inside messages and by RDMA",
            blocks: &INLINE_BLOCKS,
            specs: &[
                spec("P3-H2, depth 1", BOTH, ClientCpu, Ways(INLINE_WAYS, 1, Random)),
                spec("P3-H2, depth 32", BOTH, ClientCpu, Ways(INLINE_WAYS, 32, Random)),
                spec("server, depth 1", BOTH, ServerCpu, Ways(INLINE_WAYS, 1, Random)),
                spec("server, depth 32", BOTH, ServerCpu, Ways(INLINE_WAYS, 32, Random)),
            ],
        },
    ]
};

/// Names of the depths of read-aheads.
const READ_AHEAD_NAMES: [&str; READ_AHEADS.len()] =
    ["RA 0", "RA 1", "RA 2", "RA 4", "RA 8", "RA 16"];

const INTRODUCTION: &str = "    make bench-papers

The papers on DAFS (P0 to P2), NFS over RDMA (P3) and Direct-pNFS (P4) prove their systems by experiments. \
`make bench-papers` runs them again and writes this page; `dafs-bench papers --only P0-F4` runs one. \
Figures are named as in the papers: F is a figure, T a table, S a section, H a headline of the text. \
Only ratios and processor time per operation are claimed, because the machine is another one.";

const LEGEND: &str = "\
| way | stands for |
|---|---|
| `dafs-iwarp`, `dafs-shm` | the DAFS client over iWARP in software, and over shared memory of one host |
| `dafs-direct` | the same over iWARP with all data by RDMA; the others send up to 8 KiB inside messages |
| `libnfs` | NFS by libnfs and NFS-Ganesha, NFSv3 over TCP |
| `nfs-tcp` | NFS by the calls of dafs-nfs-client below its mounts, NFSv4.1 over TCP; results are copied out |
| `nfs-inline`, `nfs-direct` | the same over RPC-over-RDMA on iWARP: results inside messages, and placed by RDMA |
| `nocopy-iwarp`, `nocopy-shm` | NFS without copies: dafs-nfs-client over RPC-over-RDMA into registered memory, NFSv3 |
| `prepost` | NFS with receives into place: dafs-nfs-client over TCP, NFSv3 |
| `tcp`, `rdma` | floors: requests of 64 bytes and their answers over a plain socket; RDMA writes over iWARP |

| network | between client and server |
|---|---|
| `free` | loopback |
| `link` | a link with a rate (token bucket), frames of 9000 bytes |
| `far` | the same with a delay of 51 us in each direction, which separated NFS from DAFS in 2002 |
| `slow` | the same as `link`, and the client has a fifth of a processor |
| `frames1500`, `frames9000` | a link without a rate and without segmentation offload |

| way of programs | |
|---|---|
| `run` | `dafs run`, which reads ahead; without a link over shared memory |
| `run-plain` | the same with the file open for writing as well, for which it never reads ahead |
| `mount` | `dafs mount`: the kernel caches and reads ahead, as that of an NFS client does |
| `api` | gzip converted to the API in C (`crates/dafs-capi/examples/gzip.c`): it reads ahead and writes behind by itself |
| `library`, `cached` | a program on the library in Rust, without the client's cache and with it |
| `nfs` | NFSv3 of the same server by `nfs-cat` of libnfs, which hands the file on through a pipe |

Client and server have a processor each, where there are two. All poll a while before they sleep, but for the floors and libnfs, which sleep at once. \
The kernel's work for a socket counts for the process that runs meanwhile. \
After each sample, counters of the network and of copies must show the way of its bytes.";

pub(super) fn write(results: &Results, path: &Path) -> Result<()> {
    let figures = path.parent().unwrap_or(Path::new("")).join("figures");
    std::fs::create_dir_all(&figures)?;
    for picture in &PICTURES {
        let panels = picture.panels(results);
        if !panels.is_empty() {
            let steps: Vec<String> = picture.blocks.iter().map(|&block| size(block)).collect();
            let svg = plot::draw(picture.title, &steps, &panels);
            std::fs::write(figures.join(picture.file), svg)?;
        }
    }
    for work in Work::ALL {
        if let Some(svg) = programs::figure(&results.programs, work) {
            std::fs::write(figures.join(work.figure()), svg)?;
        }
    }
    std::fs::write(path, page(results))?;
    Ok(())
}

fn page(results: &Results) -> String {
    let mut page = format!("# Benchmarks: the experiments of five papers\n\n{INTRODUCTION}\n\n");
    page += &description(results);
    let _ = writeln!(page, "\n{LEGEND}\n\n## Claims\n");
    page += &claims(results);
    let (programs, groups) = (&results.programs, &results.groups);
    let are_all_there = results.skipped.is_empty() && programs.skipped.is_empty();
    if !are_all_there || !groups.skipped.is_empty() {
        page += "\n## Skipped\n\n| rows | reason |\n|---|---|\n";
        for skipped in &results.skipped {
            let _ = writeln!(page, "| {} | {} |", skipped.rows(), cell(&skipped.reason));
        }
        for skipped in &programs.skipped {
            let _ = writeln!(page, "| {} | {} |", skipped.rows(), cell(&skipped.reason));
        }
        for skipped in &groups.skipped {
            let _ = writeln!(page, "| {} | {} |", skipped.rows(), cell(&skipped.reason));
        }
    }
    if !results.retried.is_empty() {
        page += "\n## Tried again\n\nThese rows failed, and were tried once more. Those that failed again are skipped.\n";
        page += "\n| row | first failure |\n|---|---|\n";
        for retried in &results.retried {
            let _ = writeln!(page, "| {} | {} |", retried.rows, cell(&retried.reason));
        }
    }
    page += "\n## Floors\n\nOne byte there and back, in microseconds.\n\n";
    page += &floors(results, &[1], 1, Order::Random, Quantity::Elapsed);
    page += "\nStreams, in MB/s.\n\n";
    page += &floors(results, &[32 << 10, 1 << 20], 8, Order::Sequential, Quantity::Throughput);
    for picture in &PICTURES {
        let (title, file, panels) = (picture.title, picture.file, picture.panels(results));
        if panels.is_empty() {
            continue;
        }
        let _ = writeln!(page, "\n## {title}\n\n![{title}](figures/{file})");
        for panel in &panels {
            let _ = writeln!(page, "\n{}, in {}.\n", panel.title, panel.unit);
            page += &table(picture.blocks, panel);
        }
    }
    page += &joins(results);
    for work in Work::ALL {
        page += &programs::tables(&results.programs, work);
    }
    for group in Group::ALL {
        page += &results.groups.table(group);
    }
    page
}

fn description(results: &Results) -> String {
    let machine: Vec<String> =
        results.machine.iter().map(|(name, value)| format!("{name} {value}")).collect();
    let mut text = format!(
        "The sources are of version `{}`. The machine has: {}. Each row is {} of {} ms, and ratios are of the \
         same round. Links pass {} Mbit/s.\n",
        results.version,
        machine.join(", "),
        match results.rounds {
            1 => "one round".to_owned(),
            rounds => format!("the median of {rounds} rounds"),
        },
        results.milliseconds,
        results.megabits,
    );
    if !results.only.is_empty() {
        let only = results.only.join(", ");
        let _ = writeln!(text, "\nOnly these experiments were measured: {only}.");
    }
    let scale = results.programs.scale;
    if scale != 100 {
        let _ = writeln!(text, "\nSizes of files and numbers of operations are at {scale} %.");
    }
    if !results.is_complete {
        text += "\nThe run was interrupted, or a part of it has failed, so rows are missing or have fewer rounds.\n";
    }
    text
}

/// The verdicts, with their number.
fn claims(results: &Results) -> String {
    let judged: Vec<_> = list::claims().map(|claim| (claim, claim.judge(results))).collect();
    let count =
        |verdict: Verdict| judged.iter().filter(|(_, judged)| judged.verdict == verdict).count();
    let counts = Verdict::ALL.map(|verdict| format!("{} {}", count(verdict), verdict.name()));
    let counts = format!("{} claims: {}.", judged.len(), counts.join(", "));
    println!("{counts}");
    let mut text = format!(
        "{counts}\n\n| experiment | claim | paper | bound | here | verdict | rows and reason |\n\
         |---|---|---|---|---|---|---|\n"
    );
    for (claim, judged) in &judged {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} |",
            claim.id,
            claim.text,
            claim.paper,
            claim.bound(),
            judged.value.map_or_else(String::new, number),
            judged.verdict.name(),
            cell(&judged.reason),
        );
    }
    text
}

/// A text for a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "/").replace('\n', " ")
}

/// A value with about three digits.
pub(super) fn number(value: f64) -> String {
    match value.abs() {
        _ if !value.is_finite() => "-".to_owned(),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.1 || size == 0.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

fn table(blocks: &[usize], panel: &Panel) -> String {
    let names: Vec<&str> = panel.lines.iter().map(|line| line.name).collect();
    let mut text =
        format!("| block | {} |\n|---|{}\n", names.join(" | "), "---|".repeat(names.len()));
    for (index, &block) in blocks.iter().enumerate() {
        let values = panel.lines.iter().map(|line| line.values.get(index).copied());
        let values: Vec<String> = values.map(|value| number(value.unwrap_or(f64::NAN))).collect();
        let _ = writeln!(text, "| {} | {} |", size(block), values.join(" | "));
    }
    text
}

/// A quantity of the ways that have such rows, by network and block.
fn floors(
    results: &Results,
    blocks: &'static [usize],
    depth: usize,
    order: Order,
    quantity: Quantity,
) -> String {
    let values =
        |network, way| results.values(quantity, Line { network, way, blocks, depth, order });
    let networks = [Network::Free, Network::Link, Network::Far];
    let is_there = |way: &Way| {
        networks.iter().any(|&network| values(network, *way).iter().any(|v| v.is_finite()))
    };
    let ways: Vec<Way> = Way::ALL.into_iter().filter(is_there).collect();
    if ways.is_empty() {
        return "None was measured.\n".to_owned();
    }
    let names: Vec<&str> = ways.iter().map(|way| way.name()).collect();
    let mut text = format!(
        "| network | block | {} |\n|---|---|{}\n",
        names.join(" | "),
        "---|".repeat(ways.len())
    );
    for network in networks {
        let columns: Vec<Vec<f64>> = ways.iter().map(|&way| values(network, way)).collect();
        for (index, &block) in blocks.iter().enumerate() {
            let row: Vec<String> = columns.iter().map(|column| number(column[index])).collect();
            let _ =
                writeln!(text, "| {} | {} | {} |", network.name(), size(block), row.join(" | "));
        }
    }
    text
}

/// The records of joins, without and with prefetching; nothing where none was measured.
fn joins(results: &Results) -> String {
    let mut text = String::new();
    for (order, memory) in
        [(Order::Join, "into place"), (Order::CopiedJoin, "copied to memory that is not aligned")]
    {
        for depth in JOIN_DEPTHS {
            let is_there = Network::ALL.into_iter().any(|network| {
                Way::ALL.into_iter().any(|way| {
                    let line = Line { network, way, blocks: &RECORD, depth, order };
                    results.values(Quantity::Throughput, line).iter().any(|v| v.is_finite())
                })
            });
            if is_there {
                let _ = writeln!(text, "\n{depth} at a time, {memory}, in MB/s.\n");
                text += &floors(results, &RECORD, depth, order, Quantity::Throughput);
            }
        }
    }
    if text.is_empty() {
        return text;
    }
    format!("\n## P2, figure 9: a join, whose client works 10 us on each record of 4 KiB\n{text}")
}

impl Picture {
    /// The panels of the lines that have values.
    fn panels(&self, results: &Results) -> Vec<Panel> {
        let of_spec = |spec: &'static Spec| {
            spec.networks
                .iter()
                .filter_map(move |&network| spec.panel(results, network, self.blocks))
        };
        self.specs.iter().flat_map(of_spec).collect()
    }
}

impl Spec {
    fn panel(
        &self,
        results: &Results,
        network: Network,
        blocks: &'static [usize],
    ) -> Option<Panel> {
        let line = |name, way, depth, order| {
            let line = Line { network, way, blocks, depth, order };
            plot::Line { name, values: results.values(self.quantity, line) }
        };
        let lines: Vec<plot::Line> = match self.lines {
            Lines::Ways(ways, depth, order) => {
                ways.iter().map(|&way| line(way.name(), way, depth, order)).collect()
            }
            Lines::ReadAheads(way) => {
                let each = READ_AHEAD_NAMES.into_iter().zip(READ_AHEADS);
                each.map(|(name, depth)| line(name, way, depth, Order::Sequential)).collect()
            }
        };
        let has_values = |line: &plot::Line| line.values.iter().any(|value| value.is_finite());
        let lines: Vec<plot::Line> = lines.into_iter().filter(has_values).collect();
        let title = format!("{}, {}", self.title, network.name());
        (!lines.is_empty()).then(|| Panel { title, unit: self.quantity.unit(), lines })
    }
}

#[cfg(test)]
mod tests {
    use super::super::results::{Skipped, tests::run};
    use super::*;

    #[test]
    fn a_page_has_each_experiment_its_figures_and_their_tables() {
        let results = run(|cell| 1000 + cell.block as u64);
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("docs/page.md");
        write(&results, &path).expect("written");
        let page = std::fs::read_to_string(&path).expect("a page");
        for claim in list::claims() {
            assert!(page.contains(&format!("\n| {} | {} |", claim.id, claim.text)), "{}", claim.id);
        }
        for picture in &PICTURES {
            let figure = path.with_file_name("figures").join(picture.file);
            let figure = std::fs::read_to_string(figure).expect("a figure");
            assert!(page.contains(&format!("](figures/{})", picture.file)));
            // No panel is empty, and shared memory has none of a link alone.
            let panels = picture.panels(&results);
            assert!(panels.iter().all(|panel| figure.contains(&panel.title)), "{}", picture.file);
            assert!(!panels.iter().any(|panel| panel.title == "P3-F16, nocopy-shm, link"));
        }
        for work in Work::ALL {
            assert!(page.contains(&format!("\n## {}\n", work.title())), "{}", work.title());
            assert!(page.contains(&format!("](figures/{})", work.figure())), "{}", work.title());
            let figure = path.with_file_name("figures").join(work.figure());
            let figure = std::fs::read_to_string(figure).expect("a figure");
            let doors = work.doors().iter();
            assert!(doors.map(|door| door.name()).all(|name| figure.contains(name)), "{figure}");
        }
        assert!(page.contains("\n32 at a time, into place, in MB/s.\n"), "{page}");
        assert!(page.contains("\n| 512 KiB | "), "{page}");
        assert!(!page.contains("interrupted") && !page.contains("## Skipped"), "{page}");
        assert!(!page.contains("## Tried again"), "{page}");
    }

    #[test]
    fn a_page_of_an_interrupted_run_says_so_and_has_the_reasons() {
        let mut results = run(|_| 1000);
        results.is_complete = false;
        results.rows.clear();
        let reason = "there is no tc\n| here".to_owned();
        let way = Some(Way::Libnfs);
        results.skipped.push(Skipped { network: None, way, cell: None, reason });
        results.programs.rows.clear();
        results.only = vec!["P0-F4".to_owned(), "P2-F2".to_owned()];
        results.programs.scale = 10;
        results.retry("free libnfs".to_owned(), &anyhow::Error::msg("it hangs"));
        let page = page(&results);
        assert!(page.contains("\n## Tried again\n") && page.contains("| free libnfs | it hangs |"));
        assert!(page.contains("\nOnly these experiments were measured: P0-F4, P2-F2.\n"), "{page}");
        assert!(page.contains("numbers of operations are at 10 %."), "{page}");
        assert!(page.contains("The run was interrupted"), "{page}");
        assert!(page.contains("| libnfs | there is no tc / here |"), "{page}");
        assert!(!page.contains("(figures/") && !page.contains("Berkeley DB over"), "{page}");
    }

    #[test]
    fn numbers_have_about_three_digits() {
        let text = [0.0, 0.012_34, 0.5, 1.234, 12.34, 1234.5, f64::NAN].map(number);
        assert_eq!(text, ["0.00", "0.0123", "0.50", "1.23", "12.3", "1234", "-"]);
    }
}
