//! The trials of programs, and the experiments that read them.
//!
//! A trial is one combination of a work, a step of it, a network, and a door to the files.

use super::super::cells::Network;
use super::super::results::Quantity;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;

/// The work of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Work {
    /// gzip of two files. A step is the number of processes that do it.
    Gzip,
    /// Lookups of Berkeley DB in a cache that others have warmed, in limited memory. A step is the
    /// size of the table, in percent of the cache.
    Sizes,
    /// Lookups of Berkeley DB from empty caches. A step is their number at full scale.
    Counts,
    /// Pages at random from empty caches. A step is their number at full scale.
    Pages,
    /// One traversal of a queue of Berkeley DB. A step is the length of its records, in bytes.
    Queue,
    /// Transactions of TPC-C. A step is the number of processes that run them.
    Tpcc,
}

/// The works on Berkeley DB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Database {
    Sizes,
    Counts,
    Queue,
}

/// The way of a program to the server's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Door {
    /// `dafs run`, which reads ahead where that helps.
    Run,
    /// `dafs run` on a file that is open for writing as well, for which it never reads ahead.
    RunPlain,
    /// `dafs mount`, with the kernel's page cache and read-ahead.
    Mount,
    /// A program that was converted to our API in C, which reads ahead and writes behind by itself.
    Api,
    /// A program on our library, without a cache.
    Library,
    /// The same with the client's own cache.
    Cached,
    /// A command of libnfs that fetches a file by NFSv3 and hands it on.
    Nfs,
}

impl Door {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::RunPlain => "run-plain",
            Self::Mount => "mount",
            Self::Api => "api",
            Self::Library => "library",
            Self::Cached => "cached",
            Self::Nfs => "nfs",
        }
    }
}

/// One measurement of a program. The order of the fields is that of the trials: doors that are
/// compared run one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Trial {
    pub(crate) work: Work,
    pub(crate) step: u64,
    pub(crate) network: Network,
    pub(crate) door: Door,
}

/// Trials that differ in their steps alone.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Series {
    pub(crate) work: Work,
    pub(crate) steps: &'static [u64],
    pub(crate) network: Network,
    pub(crate) door: Door,
}

/// The networks of all trials.
pub(crate) const NETWORKS: [Network; 2] = [Network::Free, Network::Link];

impl Work {
    pub(crate) const ALL: [Self; 6] =
        [Self::Gzip, Self::Sizes, Self::Counts, Self::Pages, Self::Queue, Self::Tpcc];

    /// The experiments that read its trials.
    fn ids(self) -> &'static [&'static str] {
        match self {
            Self::Gzip => &["P0-F8"],
            Self::Sizes => &["P2-F6", "P2-F7"],
            Self::Counts | Self::Pages => &["P2-F8"],
            Self::Queue => &["P2-F10"],
            Self::Tpcc => &["P2-F12"],
        }
    }

    /// The name of its figure.
    pub(crate) fn figure(self) -> &'static str {
        match self {
            Self::Gzip => "papers-gzip.svg",
            Self::Sizes => "papers-sizes.svg",
            Self::Counts => "papers-counts.svg",
            Self::Pages => "papers-pages.svg",
            Self::Queue => "papers-queue.svg",
            Self::Tpcc => "papers-tpcc.svg",
        }
    }

    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Gzip => "P0, figure 8: gzip by one process and by two",
            Self::Sizes => "P2, figures 6 and 7: Berkeley DB over the size of its table",
            Self::Counts => {
                "P2, figure 8: Berkeley DB from cold caches, over the number of lookups"
            }
            Self::Pages => "P2, figure 8: pages from cold caches, with the client's own cache",
            Self::Queue => "P2, figure 10: a queue of Berkeley DB over the length of its records",
            Self::Tpcc => "P2, figure 12: TPC-C on Berkeley DB by one to four processes",
        }
    }

    pub(crate) fn steps(self) -> &'static [u64] {
        match self {
            Self::Gzip => &[1, 2],
            Self::Sizes => &[50, 90, 150, 270],
            Self::Counts => &[1000, 3000, 10_000, 30_000, 100_000, 300_000],
            Self::Pages => &[1000, 10_000, 100_000],
            Self::Queue => &[32, 128, 512, 2048, 8000],
            Self::Tpcc => &[1, 2, 3, 4],
        }
    }

    pub(crate) fn doors(self) -> &'static [Door] {
        match self {
            Self::Gzip => &[Door::Run, Door::Mount, Door::Api, Door::Nfs],
            Self::Sizes | Self::Counts | Self::Tpcc => &[Door::Run, Door::Mount],
            Self::Pages => &[Door::Mount, Door::Library, Door::Cached],
            Self::Queue => &[Door::Run, Door::RunPlain, Door::Mount],
        }
    }

    /// The quantities of its tables.
    pub(crate) fn quantities(self) -> &'static [Quantity] {
        match self {
            Self::Gzip => &[Quantity::Throughput, Quantity::ClientShare, Quantity::BothShare],
            Self::Sizes | Self::Counts | Self::Pages | Self::Tpcc => {
                &[Quantity::Elapsed, Quantity::ClientCpu]
            }
            Self::Queue => &[Quantity::Throughput, Quantity::ClientCpuPerMegabyte],
        }
    }

    /// The work on Berkeley DB, if it is one.
    pub(crate) fn database(self) -> Option<Database> {
        match self {
            Self::Gzip | Self::Pages | Self::Tpcc => None,
            Self::Sizes => Some(Database::Sizes),
            Self::Counts => Some(Database::Counts),
            Self::Queue => Some(Database::Queue),
        }
    }

    /// A step in words.
    pub(crate) fn step(self, step: u64) -> String {
        match self {
            Self::Gzip | Self::Tpcc if step == 1 => "1 process".to_owned(),
            Self::Gzip | Self::Tpcc => format!("{step} processes"),
            Self::Sizes => format!("{step} % of the cache"),
            Self::Counts => format!("{step} lookups"),
            Self::Pages => format!("{step} pages"),
            Self::Queue => format!("{step} B"),
        }
    }

    /// All its trials.
    fn trials(self) -> impl Iterator<Item = Trial> {
        NETWORKS.into_iter().flat_map(move |network| {
            self.doors().iter().flat_map(move |&door| {
                Series { work: self, steps: self.steps(), network, door }.trials()
            })
        })
    }
}

impl Series {
    pub(crate) fn trials(self) -> impl Iterator<Item = Trial> {
        let Self { work, steps, network, door } = self;
        steps.iter().map(move |&step| Trial { work, step, network, door })
    }
}

impl fmt::Display for Series {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.network.name(), self.door.name())?;
        let (first, last) = (self.steps.first(), self.steps.last());
        if let Some(&first) = first {
            write!(f, " {}", self.work.step(first))?;
        }
        match last.filter(|last| first != Some(*last)) {
            Some(&last) => write!(f, " to {}", self.work.step(last)),
            None => Ok(()),
        }
    }
}

/// The trials that the experiments `only` read, or all experiments where it is empty.
pub(crate) fn wanted(only: &[String]) -> BTreeSet<Trial> {
    let is_wanted = |work: &Work| {
        only.is_empty() || work.ids().iter().any(|id| only.iter().any(|wanted| wanted == id))
    };
    Work::ALL.into_iter().filter(is_wanted).flat_map(Work::trials).collect()
}

#[cfg(test)]
mod tests {
    use super::super::super::list;
    use super::*;

    #[test]
    fn a_choice_of_experiments_is_a_part_of_all_trials() {
        let all = wanted(&[]);
        let some = wanted(&["P2-F7".to_owned()]);
        assert!(!some.is_empty() && some.is_subset(&all));
        assert!(some.iter().all(|trial| trial.work == Work::Sizes));
        assert!(wanted(&["P0-F4".to_owned()]).is_empty());
        let mut ids = Work::ALL.into_iter().flat_map(Work::ids);
        assert!(ids.all(|id| list::claims().any(|claim| claim.id == *id)), "an unknown experiment");
    }

    #[test]
    fn doors_that_are_compared_run_one_after_the_other() {
        let all: Vec<Trial> = wanted(&[]).into_iter().collect();
        let is_beside =
            |a: &Trial, b: &Trial| (a.work, a.step, a.network) == (b.work, b.step, b.network);
        for group in all.chunk_by(is_beside) {
            assert_eq!(group.len(), group[0].work.doors().len(), "{group:?}");
        }
    }

    #[test]
    fn series_are_named_by_their_ends() {
        let series = Series {
            work: Work::Queue,
            steps: &[32, 8000],
            network: Network::Link,
            door: Door::RunPlain,
        };
        assert_eq!(series.to_string(), "link run-plain 32 B to 8000 B");
        let series = Series { work: Work::Sizes, steps: &[270], ..series };
        assert_eq!(series.to_string(), "link run-plain 270 % of the cache");
    }
}
