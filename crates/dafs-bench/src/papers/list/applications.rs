//! Claims of the paper on applications over DAFS (P2).

use super::super::cells::Network::{Far, Free, Link, Slow};
use super::super::cells::Way::{DafsIwarp, DafsShm, NfsTcp, NocopyIwarp, NocopyShm};
use super::super::cells::{FROM_4K, Line, Network, Order, RECORD, Way};
use super::super::claims::Claim;
use super::super::claims::Value::{GroupPlain, LinkShare, Plain, Ratio, TrialRatio};
use super::super::groups::{Group, Place, RIGHT};
use super::super::programs::trials::{Door, Series, Work};
use super::super::results::Quantity::{
    ClientCpu, ClientCpuPerMegabyte, ClientShare, Copies, Elapsed, Throughput,
};
use super::{
    BLOCK_4K, BLOCK_16K, BLOCK_256K, BLOCK_512K, FROM_32K, IDEAL, SOFTWARE, drawing, in_order,
    not_here, random, rows,
};
use crate::targets::Bound::{AtLeast, AtMost, Within};

/// Records of a join.
const fn join(network: Network, way: Way, depth: usize) -> Line {
    Line { network, way, blocks: &RECORD, depth, order: Order::Join }
}

/// A join with prefetching beside one without.
const fn prefetched(network: Network, way: Way, note: &'static str) -> Claim {
    let (with, without) = (join(network, way, 32), join(network, way, 1));
    let text = "prefetching makes a join faster";
    rows("P2-F9", text, "above 1", AtLeast(1.0), Ratio(Throughput, with, without), note)
}

/// Lookups in a warm cache of Berkeley DB.
const fn sizes(network: Network, door: Door, steps: &'static [u64]) -> Series {
    Series { work: Work::Sizes, steps, network, door }
}

/// Lookups from cold caches.
const fn counts(door: Door, steps: &'static [u64]) -> Series {
    Series { work: Work::Counts, steps, network: Link, door }
}

/// Pages from cold caches.
const fn pages(door: Door, steps: &'static [u64]) -> Series {
    Series { work: Work::Pages, steps, network: Link, door }
}

/// Traversals of a queue.
const fn queue(door: Door, steps: &'static [u64]) -> Series {
    Series { work: Work::Queue, steps, network: Link, door }
}

/// Transactions of TPC-C.
const fn tpcc(network: Network, door: Door, steps: &'static [u64]) -> Series {
    Series { work: Work::Tpcc, steps, network, door }
}

/// TPC-C on DAFS beside NFS, with each number of processes.
const fn transactions(network: Network, note: &'static str) -> Claim {
    let (nfs, dafs) = (tpcc(network, Door::Mount, TO_FOUR), tpcc(network, Door::Run, TO_FOUR));
    let text = "TPC-C runs faster on DAFS than on NFS with one to four processes";
    rows("P2-F12", text, "above 1", AtLeast(1.0), TrialRatio(Elapsed, nfs, dafs), note)
}

/// The numbers of processes.
const TO_FOUR: &[u64] = &[1, 2, 3, 4];

/// The numbers of pages.
const PAGES: &[u64] = &[1000, 10_000, 100_000];

/// The lengths of a queue's records.
const LENGTHS: &[u64] = &[32, 128, 512, 2048, 8000];

const KERNEL: &str = "a mount stands for NFS: the kernel caches and reads ahead over FUSE";
const OWN_PROGRAM: &str = "a program on the library stands for Berkeley DB, and a mount for NFS; the \
    client's cache has room for the file";
const ONE_PROCESSOR: &str = "all processes share one processor, so that another one gains the time in which one \
    waits for the link, and loses by locks of the database";
const FILE_PAGES: &str = "a mount stands for NFS; Linux gives up pages of files first, and has no \
    swap, so that the database's cache stays; the memory of the program itself is the same at each scale, and \
    at a small one the kernel caches most of the table in it";
const CPU_LIMIT: &str = "the client has a fifth of a processor (cgroup), and needs less for the link's rate, as a long \
    block costs this processor little more than a copy";
const HEADERS: &str = "calls, answers and headers of iWARP cross the link beside the data, and weigh with short reads; \
    a row of one short round may be some percent off";
const IN_CACHE: &str = "the program's own cache has all of the table, so that neither way moves a byte, and the \
    difference is that between two runs of the same program";
const PAGE_CACHE: &str = "the kernel's cache answers many lookups of the mount, and `dafs run` polls while the link \
    carries each page";
const PAGE_CACHE_HERE: &str = "the kernel's cache answers many lookups of the mount, and `dafs run` polls while the \
    server copies each page";
const PAGES_ON_LINK: &str = "a mount stands for NFS; each lookup fetches a page of 16 KiB, whose time on the link is \
    most of both; rows without a link show the ways alone";
const AHEAD_LATE: &str = "a mount stands for NFS; `dafs run` reads ahead from the fifth MiB on, and the kernel from \
    the start";
const SMALL_COPY: &str = "our client would place the data there as well; the row copies it as the paper's did, and a \
    copy of 4 KiB takes little beside the 10 us of work on it";
const ADVISE: &str = "`dafs advise` answers the questions; it leaves out the start of a session in each process and \
    the server's part of the processors; signs are beside local files, and a row without a prediction is none \
    that is right";
const NOT_BUILT: &str =
    "the server's files lie in memory; a server with little memory and a disk is not built";

pub(super) static P2: [Claim; 37] = [
    not_here(
        "P2-T1",
        "one byte there and back takes 30 us (VI) and 132 us (UDP); 113 and 120 MB/s",
        "values of two adapters; the table of floors has those of this machine",
    ),
    rows(
        "P2-F1",
        "DAFS copies nothing at the client",
        "0, and 2 for NFS",
        AtMost(0.01),
        Plain(Copies, random(Free, DafsIwarp, BLOCK_256K, 1)),
        "the copy out of the kernel's socket is not counted",
    ),
    rows(
        "P2-F2",
        "16 KiB at a time: DAFS moves twice as much as NFS without copies on unequal links",
        "about 2",
        AtLeast(2.0),
        Ratio(
            Throughput,
            random(Link, DafsIwarp, BLOCK_16K, 1),
            random(Far, NocopyIwarp, BLOCK_16K, 1),
        ),
        "the NFS link has the delay of the paper's",
    ),
    rows(
        "P2-F2",
        "16 KiB at a time: DAFS moves more than NFS without copies on equal links",
        "above 1",
        AtLeast(1.0),
        Ratio(
            Throughput,
            random(Link, DafsIwarp, BLOCK_16K, 1),
            random(Link, NocopyIwarp, BLOCK_16K, 1),
        ),
        "",
    ),
    rows(
        "P2-F3",
        "a megabyte costs a DAFS client a quarter with 512 KiB of what it costs with 4 KiB",
        "0.25",
        AtMost(0.25),
        Ratio(
            ClientCpuPerMegabyte,
            random(Link, DafsIwarp, BLOCK_512K, 1),
            random(Link, DafsIwarp, BLOCK_4K, 1),
        ),
        SOFTWARE,
    ),
    rows(
        "P2-F3",
        "a megabyte costs a DAFS client a quarter with 512 KiB of what it costs with 4 KiB",
        "0.25",
        AtMost(0.25),
        Ratio(
            ClientCpuPerMegabyte,
            random(Free, DafsShm, BLOCK_512K, 1),
            random(Free, DafsShm, BLOCK_4K, 1),
        ),
        IDEAL,
    ),
    rows(
        "P2-F3",
        "a megabyte costs NFS without copies the same with any block",
        "within 25 %",
        Within(0.75, 1.25),
        Ratio(
            ClientCpuPerMegabyte,
            random(Link, NocopyIwarp, BLOCK_512K, 1),
            random(Link, NocopyIwarp, BLOCK_4K, 1),
        ),
        "the paper's client flips each page, ours none",
    ),
    rows(
        "P2-F3",
        "512 KiB at a time: NFS does not fill the link",
        "below 0.8",
        AtMost(0.8),
        LinkShare(random(Slow, NfsTcp, BLOCK_512K, 1)),
        CPU_LIMIT,
    ),
    rows(
        "P2-F3",
        "512 KiB at a time: NFS fills its processor",
        "0.95, here of a fifth",
        AtLeast(0.19),
        Plain(ClientShare, random(Slow, NfsTcp, BLOCK_512K, 1)),
        CPU_LIMIT,
    ),
    rows(
        "P2-F4",
        "DAFS with read-ahead fills the link with any block",
        "1",
        AtLeast(0.95),
        LinkShare(in_order(Link, DafsIwarp, &FROM_4K, 9)),
        "",
    ),
    rows(
        "P2-F4",
        "NFS without copies fills the link with any block",
        "1",
        AtLeast(0.95),
        LinkShare(in_order(Link, NocopyIwarp, &FROM_4K, 9)),
        HEADERS,
    ),
    rows(
        "P2-F5",
        "from 32 KiB on DAFS costs a client less than NFS without copies",
        "below 1",
        AtMost(1.0),
        Ratio(
            ClientCpuPerMegabyte,
            in_order(Link, DafsIwarp, FROM_32K, 9),
            in_order(Link, NocopyIwarp, FROM_32K, 9),
        ),
        SOFTWARE,
    ),
    rows(
        "P2-F5",
        "from 32 KiB on DAFS costs a client less than NFS without copies",
        "below 1",
        AtMost(1.0),
        Ratio(
            ClientCpuPerMegabyte,
            in_order(Free, DafsShm, FROM_32K, 9),
            in_order(Free, NocopyShm, FROM_32K, 9),
        ),
        IDEAL,
    ),
    rows(
        "P2-F6",
        "Berkeley DB with a table that fits its cache is as fast on DAFS as on NFS",
        "1.0",
        Within(0.9, 1.1),
        TrialRatio(Elapsed, sizes(Link, Door::Mount, &[50]), sizes(Link, Door::Run, &[50])),
        IN_CACHE,
    ),
    rows(
        "P2-F6",
        "with a table of 2.7 caches it is 3.5 times as fast on DAFS",
        "above 3.5",
        AtLeast(3.5),
        TrialRatio(Elapsed, sizes(Link, Door::Mount, &[270]), sizes(Link, Door::Run, &[270])),
        FILE_PAGES,
    ),
    not_here("P2-F6", "both wait for the server's disk when its memory is exceeded", NOT_BUILT),
    rows(
        "P2-F7",
        "a transaction costs a DAFS client half the processor",
        "0.5",
        AtMost(0.5),
        TrialRatio(ClientCpu, sizes(Link, Door::Run, &[270]), sizes(Link, Door::Mount, &[270])),
        PAGE_CACHE,
    ),
    rows(
        "P2-F7",
        "a transaction costs a DAFS client half the processor",
        "0.5",
        AtMost(0.5),
        TrialRatio(ClientCpu, sizes(Free, Door::Run, &[270]), sizes(Free, Door::Mount, &[270])),
        PAGE_CACHE_HERE,
    ),
    rows(
        "P2-F8",
        "from cold caches DAFS is twice as fast at first",
        "about 2",
        AtLeast(2.0),
        TrialRatio(Elapsed, counts(Door::Mount, &[1000]), counts(Door::Run, &[1000])),
        PAGES_ON_LINK,
    ),
    rows(
        "P2-F8",
        "the kernel's cache has overtaken DAFS when all of the table is in it",
        "below 1",
        AtMost(1.0),
        TrialRatio(Elapsed, counts(Door::Mount, &[300_000]), counts(Door::Run, &[300_000])),
        KERNEL,
    ),
    rows(
        "P2-F8",
        "a DAFS client without a cache is behind when the kernel has all of the file",
        "below 1",
        AtMost(1.0),
        TrialRatio(Elapsed, pages(Door::Mount, &[100_000]), pages(Door::Library, &[100_000])),
        OWN_PROGRAM,
    ),
    rows(
        "P2-F8",
        "a DAFS client with a cache does not fall behind",
        "ours: 0.9",
        AtLeast(0.9),
        TrialRatio(Elapsed, pages(Door::Mount, PAGES), pages(Door::Cached, PAGES)),
        OWN_PROGRAM,
    ),
    prefetched(Link, DafsIwarp, ""),
    prefetched(Link, NocopyIwarp, ""),
    prefetched(Free, DafsShm, IDEAL),
    rows(
        "P2-F9",
        "a join with prefetching is faster on DAFS than on NFS without copies",
        "above 1",
        AtLeast(1.0),
        Ratio(Throughput, join(Link, DafsIwarp, 32), join(Link, NocopyIwarp, 32)),
        SOFTWARE,
    ),
    rows(
        "P2-F9",
        "a join with prefetching is faster on DAFS than on NFS without copies",
        "above 1",
        AtLeast(1.0),
        Ratio(Throughput, join(Free, DafsShm, 32), join(Free, NocopyShm, 32)),
        IDEAL,
    ),
    rows(
        "P2-F9",
        "NFS without copies loses by memory that is not aligned",
        "below 1",
        AtMost(1.0),
        Ratio(
            Throughput,
            Line { order: Order::CopiedJoin, ..join(Link, NocopyIwarp, 32) },
            join(Link, NocopyIwarp, 32),
        ),
        SMALL_COPY,
    ),
    rows(
        "P2-F10",
        "the kernel's read-ahead helps a program that asks for none",
        "below 1",
        AtMost(1.0),
        TrialRatio(Throughput, queue(Door::RunPlain, &[8000]), queue(Door::Mount, &[8000])),
        KERNEL,
    ),
    rows(
        "P2-F10",
        "small records, which cost the program time, make the difference small",
        "near 1",
        Within(0.9, 1.1),
        TrialRatio(Throughput, queue(Door::RunPlain, &[32]), queue(Door::Mount, &[32])),
        KERNEL,
    ),
    rows(
        "P2-F10",
        "a DAFS client that reads ahead is not behind at any length",
        "ours: 0.95",
        AtLeast(0.95),
        TrialRatio(Throughput, queue(Door::Run, LENGTHS), queue(Door::Mount, LENGTHS)),
        AHEAD_LATE,
    ),
    drawing("P2-F11", "the parts of the TPC-C experiment"),
    transactions(Link, KERNEL),
    transactions(Free, IDEAL),
    rows(
        "P2-F12",
        "TPC-C runs faster with two processes than with one",
        "above 1",
        AtLeast(1.0),
        TrialRatio(Elapsed, tpcc(Link, Door::Run, &[1]), tpcc(Link, Door::Run, &[2])),
        ONE_PROCESSOR,
    ),
    rows(
        "P2-F12",
        "TPC-C runs no faster with three and four processes than with two",
        "at most 1",
        AtMost(1.0),
        TrialRatio(Elapsed, tpcc(Link, Door::Run, &[2, 2]), tpcc(Link, Door::Run, &[3, 4])),
        ONE_PROCESSOR,
    ),
    rows(
        "P2-S6",
        "three questions predict whether DAFS or NFS is faster",
        "all signs right",
        AtLeast(1.0),
        GroupPlain(Place { group: Group::Advise, case: RIGHT }),
        ADVISE,
    ),
];
