//! The cells of the sweep, and the experiments that read them.
//!
//! A cell is one combination of network, way, block, depth and order. Experiments share cells, so
//! that each is measured once for all of them.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;

/// The network between client and server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Network {
    /// The loopback of one node, without limits.
    Free,
    /// Two nodes with a link of a limited rate.
    Link,
    /// The same link with a delay, by which NFS of 2002 was slower than DAFS.
    Far,
    /// The same link as [`Network::Link`] with a client that has a part of a processor.
    Slow,
    /// A link without a rate, whose frames have 1500 bytes.
    Frames1500,
    /// The same link with frames of 9000 bytes.
    Frames9000,
}

impl Network {
    pub(crate) const ALL: [Self; 6] =
        [Self::Free, Self::Link, Self::Far, Self::Slow, Self::Frames1500, Self::Frames9000];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Link => "link",
            Self::Far => "far",
            Self::Slow => "slow",
            Self::Frames1500 => "frames1500",
            Self::Frames9000 => "frames9000",
        }
    }
}

/// A way to the server's file, and the floors below them.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Way {
    /// Requests and answers of a plain socket.
    Tcp,
    /// RDMA writes over iWARP, and messages where the block is one byte.
    Rdma,
    DafsIwarp,
    /// The same client, which sends no data inside messages.
    DafsDirect,
    DafsShm,
    /// libnfs and NFS-Ganesha, NFSv3.
    Libnfs,
    /// Calls of our NFS client below its mounts, NFSv4.1: results are copied out.
    NfsTcp,
    /// The same over RPC-over-RDMA, with results inside messages.
    NfsInline,
    /// Our NFS client over RPC-over-RDMA, NFSv4.1, into registered memory.
    NfsDirect,
    /// The same by NFSv3.
    NocopyIwarp,
    NocopyShm,
    /// Our NFS client over TCP, NFSv3: it receives into the place of the data.
    Prepost,
}

impl Way {
    pub(crate) const ALL: [Self; 12] = [
        Self::Tcp,
        Self::Rdma,
        Self::DafsIwarp,
        Self::DafsDirect,
        Self::DafsShm,
        Self::Libnfs,
        Self::NfsTcp,
        Self::NfsInline,
        Self::NfsDirect,
        Self::NocopyIwarp,
        Self::NocopyShm,
        Self::Prepost,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Rdma => "rdma",
            Self::DafsIwarp => "dafs-iwarp",
            Self::DafsDirect => "dafs-direct",
            Self::DafsShm => "dafs-shm",
            Self::Libnfs => "libnfs",
            Self::NfsTcp => "nfs-tcp",
            Self::NfsInline => "nfs-inline",
            Self::NfsDirect => "nfs-direct",
            Self::NocopyIwarp => "nocopy-iwarp",
            Self::NocopyShm => "nocopy-shm",
            Self::Prepost => "prepost",
        }
    }

    /// True if client and server share memory, which no link lies between.
    pub(crate) fn is_shm(self) -> bool {
        matches!(self, Self::DafsShm | Self::NocopyShm)
    }

    /// True if RDMA places the client's data, so that its program copies none.
    pub(crate) fn is_placed(self) -> bool {
        matches!(
            self,
            Self::DafsIwarp
                | Self::DafsDirect
                | Self::DafsShm
                | Self::NfsDirect
                | Self::NocopyIwarp
                | Self::NocopyShm
        )
    }
}

/// The order of a file's blocks, and the work on each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Order {
    Random,
    Sequential,
    /// At random, with some work on each, as a database joins tables.
    Join,
    /// The same, and the client copies each to memory that is not aligned.
    CopiedJoin,
}

impl Order {
    pub(crate) fn is_join(self) -> bool {
        matches!(self, Self::Join | Self::CopiedJoin)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::Sequential => "in order",
            Self::Join => "join",
            Self::CopiedJoin => "join with copies",
        }
    }
}

/// One measurement. The order of the fields is that of the sweep: ways that are compared run one
/// after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Cell {
    /// Bytes of a read.
    pub(crate) block: usize,
    /// Reads under way. With r read-aheads they are r + 1.
    pub(crate) depth: usize,
    pub(crate) order: Order,
    pub(crate) network: Network,
    pub(crate) way: Way,
}

impl Cell {
    /// True for cells that run as one group.
    pub(crate) fn is_beside(&self, other: &Self) -> bool {
        (self.block, self.depth, self.order) == (other.block, other.depth, other.order)
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (network, way) = (self.network.name(), self.way.name());
        let (block, depth, order) = (size(self.block), self.depth, self.order.name());
        write!(f, "{network} {way} {block} depth {depth} {order}")
    }
}

/// Cells that differ in their blocks alone.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Line {
    pub(crate) network: Network,
    pub(crate) way: Way,
    pub(crate) blocks: &'static [usize],
    pub(crate) depth: usize,
    pub(crate) order: Order,
}

impl Line {
    pub(crate) fn cells(self) -> impl Iterator<Item = Cell> {
        let Self { network, way, blocks, depth, order } = self;
        blocks.iter().map(move |&block| Cell { block, depth, order, network, way })
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, last) = (self.blocks.first(), self.blocks.last());
        let size = |bytes: Option<&usize>| bytes.map_or_else(String::new, |&bytes| size(bytes));
        write!(f, "{} {} {}", self.network.name(), self.way.name(), size(first))?;
        if first != last {
            write!(f, " to {}", size(last))?;
        }
        write!(f, " depth {} {}", self.depth, self.order.name())
    }
}

/// A number of bytes for people.
pub(crate) fn size(bytes: usize) -> String {
    if bytes < 1024 { format!("{bytes} B") } else { crate::rdma::kib(bytes) }
}

/// Powers of two from `first` on.
const fn powers<const COUNT: usize>(first: usize) -> [usize; COUNT] {
    let mut all = [first; COUNT];
    let mut at = 1;
    while at < COUNT {
        all[at] = all[at - 1] * 2;
        at += 1;
    }
    all
}

pub(crate) const ALL_BLOCKS: [usize; 12] = powers(512);
pub(crate) const FROM_2K: [usize; 9] = powers(2 << 10);
pub(crate) const FROM_4K: [usize; 8] = powers(4 << 10);

/// Blocks that the DAFS client receives inside messages, unless it is told otherwise.
pub(crate) const INLINE_BLOCKS: [usize; 5] = powers(512);

/// The blocks that our NFS client receives inside messages of 4096 bytes.
pub(crate) const NFS_INLINE_BLOCKS: [usize; 3] = powers(512);

/// The record of a join, and the records that are fetched at a time: without prefetching, and with it.
pub(crate) const RECORD: [usize; 1] = [4 << 10];
pub(crate) const JOIN_DEPTHS: [usize; 2] = [1, 32];

/// The most bytes under way.
pub(crate) const UNDER_WAY_MAX: usize = 32 << 20;

/// The cells behind some figures.
struct Experiment {
    ids: &'static [&'static str],
    networks: &'static [Network],
    ways: &'static [Way],
    blocks: &'static [usize],
    depths: &'static [usize],
    order: Order,
}

const OWN: [Way; 6] =
    [Way::DafsIwarp, Way::DafsShm, Way::NfsTcp, Way::NocopyIwarp, Way::NocopyShm, Way::Prepost];
const ALL_NFS: [Way; 7] = [
    Way::DafsIwarp,
    Way::DafsShm,
    Way::Libnfs,
    Way::NfsTcp,
    Way::NocopyIwarp,
    Way::NocopyShm,
    Way::Prepost,
];
const WITH_FLOORS: [Way; 9] = [
    Way::Tcp,
    Way::Rdma,
    Way::DafsIwarp,
    Way::DafsShm,
    Way::Libnfs,
    Way::NfsTcp,
    Way::NocopyIwarp,
    Way::NocopyShm,
    Way::Prepost,
];
const DAFS: [Way; 2] = [Way::DafsIwarp, Way::DafsShm];

static EXPERIMENTS: [Experiment; 16] = {
    use Network::{Far, Frames1500, Frames9000, Free, Link, Slow};
    use Order::{CopiedJoin, Join, Random, Sequential};
    [
        Experiment {
            ids: &["P2-T1"],
            networks: &[Free, Link, Far],
            ways: &WITH_FLOORS,
            blocks: &[1],
            depths: &[1],
            order: Random,
        },
        Experiment {
            ids: &["P2-T1", "P1-F3"],
            networks: &[Free, Link, Far],
            ways: &[Way::Tcp, Way::Rdma],
            blocks: &[32 << 10, 1 << 20],
            depths: &[8],
            order: Sequential,
        },
        Experiment {
            ids: &["P0-F4", "P0-F5", "P0-F6", "P0-F7"],
            networks: &[Free, Link],
            ways: &[Way::DafsIwarp, Way::DafsShm, Way::Libnfs, Way::NfsTcp],
            blocks: &FROM_2K,
            depths: &[1, 32],
            order: Random,
        },
        Experiment {
            ids: &["P0-F5", "P0-F7", "P2-F3"],
            networks: &[Slow],
            ways: &[Way::DafsIwarp, Way::Libnfs, Way::NfsTcp],
            blocks: &FROM_2K,
            depths: &[1, 32],
            order: Random,
        },
        Experiment {
            ids: &["P0-F2", "P0-F3", "P2-F1"],
            networks: &[Free],
            ways: &DAFS,
            blocks: &[4 << 10, 256 << 10],
            depths: &[1],
            order: Random,
        },
        Experiment {
            ids: &["P1-F3"],
            networks: &[Free, Link],
            ways: &DAFS,
            blocks: &FROM_4K,
            depths: &[1, 64],
            order: Random,
        },
        Experiment {
            ids: &["P2-F2", "P2-F3"],
            networks: &[Free, Link, Far],
            ways: &ALL_NFS,
            blocks: &FROM_4K,
            depths: &[1],
            order: Random,
        },
        Experiment {
            ids: &["P2-F4", "P2-F5"],
            networks: &[Free, Link],
            ways: &ALL_NFS,
            blocks: &FROM_4K,
            depths: &[9],
            order: Sequential,
        },
        Experiment {
            ids: &["P2-F9"],
            networks: &[Free, Link],
            ways: &[Way::DafsIwarp, Way::DafsShm, Way::NocopyIwarp, Way::NocopyShm],
            blocks: &RECORD,
            depths: &JOIN_DEPTHS,
            order: Join,
        },
        Experiment {
            ids: &["P2-F9"],
            networks: &[Free, Link],
            ways: &[Way::NocopyIwarp, Way::NocopyShm],
            blocks: &RECORD,
            depths: &JOIN_DEPTHS,
            order: CopiedJoin,
        },
        Experiment {
            ids: &["P0-H1"],
            networks: &[Free, Link],
            ways: &OWN,
            blocks: &[8 << 10, 256 << 10],
            depths: &[9],
            order: Sequential,
        },
        Experiment {
            ids: &["P3-F15", "P3-F16", "P3-F17", "P3-F18"],
            networks: &[Free, Link],
            ways: &OWN,
            blocks: &ALL_BLOCKS,
            depths: &READ_AHEADS,
            order: Sequential,
        },
        Experiment {
            ids: &["P3-F16"],
            networks: &[Slow],
            ways: &[Way::NocopyIwarp, Way::Prepost],
            blocks: &ALL_BLOCKS,
            depths: &READ_AHEADS,
            order: Sequential,
        },
        Experiment {
            ids: &["P3-H2"],
            networks: &[Free, Link],
            ways: &[Way::DafsIwarp, Way::DafsDirect],
            blocks: &INLINE_BLOCKS,
            depths: &[1, 32],
            order: Random,
        },
        Experiment {
            ids: &["P3-H2"],
            networks: &[Free, Link],
            ways: &[Way::NfsInline, Way::NfsDirect],
            blocks: &NFS_INLINE_BLOCKS,
            depths: &[1, 32],
            order: Random,
        },
        Experiment {
            ids: &["P3-F16"],
            networks: &[Frames1500, Frames9000],
            ways: &[Way::NocopyIwarp],
            blocks: &[256 << 10],
            depths: &[9],
            order: Sequential,
        },
    ]
};

/// Depths of 0, 1, 2, 4, 8 and 16 read-aheads.
pub(crate) const READ_AHEADS: [usize; 6] = [1, 2, 3, 5, 9, 17];

impl Experiment {
    fn cells(&self) -> impl Iterator<Item = Cell> {
        let lines = self.networks.iter().flat_map(move |&network| {
            self.ways.iter().flat_map(move |&way| {
                self.depths.iter().map(move |&depth| {
                    let (blocks, order) = (self.blocks, self.order);
                    Line { network, way, blocks, depth, order }
                })
            })
        });
        let is_there = |line: &Line| line.network == Network::Free || !line.way.is_shm();
        lines.filter(is_there).flat_map(Line::cells)
    }
}

/// The cells that the experiments `only` read, or all experiments where it is empty. `blocks`, where
/// there are any, restricts the cells, but for the single bytes of round trips.
pub(crate) fn wanted(only: &[String], blocks: &[usize]) -> BTreeSet<Cell> {
    let is_wanted = |one: &&Experiment| {
        only.is_empty() || one.ids.iter().any(|id| only.iter().any(|wanted| wanted == id))
    };
    let is_of_size =
        |cell: &Cell| cell.block == 1 || blocks.is_empty() || blocks.contains(&cell.block);
    EXPERIMENTS.iter().filter(is_wanted).flat_map(Experiment::cells).filter(is_of_size).collect()
}

#[cfg(test)]
mod tests {
    use super::super::list;
    use super::*;
    use clap::ValueEnum;

    #[test]
    fn a_name_of_a_way_is_the_one_that_a_child_understands() {
        for way in Way::ALL {
            assert_eq!(Way::from_str(way.name(), false), Ok(way));
            assert_eq!(serde_json::to_value(way).expect("a name"), way.name());
        }
        for network in Network::ALL {
            assert_eq!(serde_json::to_value(network).expect("a name"), network.name());
        }
    }

    #[test]
    fn shared_memory_crosses_no_link_and_nothing_is_measured_twice() {
        let all = wanted(&[], &[]);
        assert!(all.iter().all(|cell| cell.network == Network::Free || !cell.way.is_shm()));
        let each: usize = EXPERIMENTS.iter().map(|one| one.cells().count()).sum();
        assert!(all.len() < each, "{} of {each}", all.len());
        assert!(all.iter().all(|cell| cell.block * cell.depth <= UNDER_WAY_MAX));
    }

    #[test]
    fn a_choice_of_experiments_and_blocks_is_a_part_of_all() {
        let all = wanted(&[], &[]);
        let some = wanted(&["P1-F3".to_owned()], &[4096]);
        assert!(!some.is_empty() && some.is_subset(&all));
        assert!(some.iter().all(|cell| cell.block == 4096 && DAFS.contains(&cell.way)), "{some:?}");
        assert!(wanted(&["P0-F8".to_owned()], &[]).is_empty());
        let mut ids = EXPERIMENTS.iter().flat_map(|one| one.ids);
        assert!(ids.all(|id| list::claims().any(|claim| claim.id == *id)), "an unknown experiment");
    }

    #[test]
    fn lines_are_named_by_their_ends() {
        let line = Line {
            network: Network::Link,
            way: Way::DafsIwarp,
            blocks: &FROM_4K,
            depth: 9,
            order: Order::Sequential,
        };
        assert_eq!(line.to_string(), "link dafs-iwarp 4 KiB to 512 KiB depth 9 in order");
        let line = Line { blocks: &[512], depth: 1, order: Order::Random, ..line };
        assert_eq!(line.to_string(), "link dafs-iwarp 512 B depth 1 random");
    }
}
