//! The claims of the papers, one after the other.
//!
//! The prefix of an id is the paper: P0 The Direct Access File System (FAST 2003), P1 A DAFS kernel
//! server for FreeBSD (BSDCon 2002), P2 Performance of applications on DAFS for FreeBSD (2004), P3 NFS
//! over RDMA (SIGCOMM workshops 2003), P4 Direct-pNFS (HPDC 2007). F is a figure, T a table, S a
//! section, H a headline of the text.

use super::cells::{ALL_BLOCKS, FROM_4K, Line, Network, Order, Way};
use super::claims::{Best, Bound, Claim, Proof, Value};
use super::results::Quantity;
use Bound::{AtLeast, AtMost, Within};
use Network::{Far, Frames1500, Frames9000, Free, Link, Slow};
use Order::{Random, Sequential};
use Quantity::{ClientCpu, ClientCpuPerMegabyte, ClientShare, Copies, Throughput};
use Value::{BestBlock, BestDepthRatio, BestRatio, LinkShare, Plain, Ratio};
use Way::{DafsIwarp, DafsShm, Libnfs, NfsTcp, NocopyIwarp, NocopyShm, Prepost, Rdma};

/// All claims, in the order of their papers.
pub(super) fn claims() -> impl Iterator<Item = &'static Claim> {
    let papers: [&[Claim]; 7] = [&P0, &P1, &P2, &P3_DRAWINGS, &P3, &P4_DRAWINGS, &P4];
    papers.into_iter().flatten()
}

/// Reads at random places.
const fn random(network: Network, way: Way, blocks: &'static [usize], depth: usize) -> Line {
    Line { network, way, blocks, depth, order: Random }
}

/// Reads in order.
const fn in_order(network: Network, way: Way, blocks: &'static [usize], depth: usize) -> Line {
    Line { network, way, blocks, depth, order: Sequential }
}

const fn best(network: Network, way: Way) -> Best {
    Best { network, way }
}

const fn rows(
    id: &'static str,
    text: &'static str,
    paper: &'static str,
    bound: Bound,
    value: Value,
    note: &'static str,
) -> Claim {
    Claim { id, text, paper, proof: Proof::Rows(bound, value), note }
}

const fn not_yet(
    id: &'static str,
    text: &'static str,
    paper: &'static str,
    note: &'static str,
) -> Claim {
    Claim { id, text, paper, proof: Proof::NotYet, note }
}

const fn not_here(id: &'static str, text: &'static str, note: &'static str) -> Claim {
    Claim { id, text, paper: "", proof: Proof::NotHere, note }
}

const fn drawing(id: &'static str, text: &'static str) -> Claim {
    not_here(id, text, "a drawing or a description: there is nothing to measure")
}

/// Processor time of NFS beside that of DAFS, for reads of 16 KiB.
const fn five_times(
    id: &'static str,
    network: Network,
    (nfs, dafs): (Way, Way),
    depth: usize,
    note: &'static str,
) -> Claim {
    let (nfs, dafs) =
        (random(network, nfs, BLOCK_16K, depth), random(network, dafs, BLOCK_16K, depth));
    let text = match depth {
        1 => "one read of 16 KiB at a time costs an NFS client 5 times the processor of DAFS",
        _ => "each of 32 reads of 16 KiB costs an NFS client 5 times the processor of DAFS",
    };
    rows(id, text, "5 (100 and 20 us)", AtLeast(5.0), Ratio(ClientCpu, nfs, dafs), note)
}

/// Throughput of DAFS beside that of NFS, both with a part of a processor.
const fn beyond(id: &'static str, nfs: Way, depth: usize) -> Claim {
    let (dafs, nfs) =
        (random(Slow, DafsIwarp, FROM_16K, depth), random(Slow, nfs, FROM_16K, depth));
    let text = "beyond the NFS client's limit DAFS moves more";
    rows(id, text, "above 1 (DAFS 85 MB/s)", AtLeast(1.0), Ratio(Throughput, dafs, nfs), CPU_LIMIT)
}

/// Processor time of DAFS beside that of NFS without copies.
const fn placed(
    blocks: &'static [usize],
    paper: &'static str,
    most: f64,
    network: Network,
    (dafs, nfs): (Way, Way),
    note: &'static str,
) -> Claim {
    let (dafs, nfs) = (in_order(network, dafs, blocks, 9), in_order(network, nfs, blocks, 9));
    let text = "direct placement costs a part of the processor of NFS without copies";
    rows("P0-H1", text, paper, AtMost(most), Ratio(ClientCpu, dafs, nfs), note)
}

/// The best throughput of NFS over RDMA beside that over TCP, without a link.
const fn best_of(rdma: Way, tcp: Way, note: &'static str) -> Claim {
    let value = BestRatio(best(Free, rdma), best(Free, tcp));
    let text = "the best over RDMA is 1.6 times the best over TCP";
    rows("P3-F16", text, "1.7 (102 and 60 MB/s)", AtLeast(1.6), value, note)
}

/// Processor time of a read over RDMA beside that over TCP, without a link and read-ahead.
const fn same_size(rdma: Way, tcp: Way, note: &'static str) -> Claim {
    let (rdma, tcp) = (in_order(Free, rdma, &ALL_BLOCKS, 1), in_order(Free, tcp, &ALL_BLOCKS, 1));
    let text = "RDMA costs a client 30 to 60 % of TCP at each size";
    rows("P3-F18", text, "0.3 to 0.6", AtMost(0.6), Ratio(ClientCpu, rdma, tcp), note)
}

const BLOCK_2K: &[usize] = &[2 << 10];
const BLOCK_4K: &[usize] = &[4 << 10];
const BLOCK_8K: &[usize] = &[8 << 10];
const BLOCK_16K: &[usize] = &[16 << 10];
const BLOCK_32K: &[usize] = &[32 << 10];
const BLOCK_128K: &[usize] = &[128 << 10];
const BLOCK_256K: &[usize] = &[256 << 10];
const BLOCK_512K: &[usize] = &[512 << 10];
const FROM_16K: &[usize] = &[16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10];
const FROM_32K: &[usize] = &[32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10];

const GANESHA: &str = "NFS is libnfs and NFS-Ganesha";
const OWN_NFS: &str =
    "NFS is our client below its mounts, NFSv4.1 over TCP, which copies results out";
const IDEAL: &str = "shared memory stands for an ideal adapter";
const SOFTWARE: &str = "iWARP in software pays the kernel's TCP at both ends";
const SAME_CLIENT: &str = "both are the same client, which receives TCP into the place of the data";
const NO_FLIPS: &str = "our NFS over RDMA flips no pages, whose cost the paper's had";
const CPU_LIMIT: &str = "the client has a fifth of a processor (cgroup), which is its limit";
const PNFS: &str = "`dafs-bench pnfs` measures it; this command does not read its results yet";
const DATABASE: &str = "the sweep of Berkeley DB with a limit of memory is not built";
const GZIP: &str =
    "gzip on a link and over NFS is not built; `--group fronts` has it over shared memory";

static P0: [Claim; 26] = [
    drawing("P0-F1", "descriptors of the virtual interface"),
    rows(
        "P0-F2",
        "an inline read is copied once at the client",
        "1",
        Within(0.99, 1.01),
        Plain(Copies, random(Free, DafsIwarp, BLOCK_4K, 1)),
        "the transport's copies are not counted: they stand for an adapter's",
    ),
    rows(
        "P0-F3",
        "a direct read is not copied at the client",
        "0",
        AtMost(0.01),
        Plain(Copies, random(Free, DafsIwarp, BLOCK_256K, 1)),
        "the copy out of the kernel's socket is not counted",
    ),
    rows(
        "P0-F3",
        "a direct read is not copied at the client",
        "0",
        AtMost(0.01),
        Plain(Copies, random(Free, DafsShm, BLOCK_256K, 1)),
        IDEAL,
    ),
    five_times("P0-F4", Link, (Libnfs, DafsIwarp), 1, GANESHA),
    five_times("P0-F4", Link, (NfsTcp, DafsIwarp), 1, OWN_NFS),
    five_times("P0-F4", Free, (Libnfs, DafsShm), 1, IDEAL),
    rows(
        "P0-F4",
        "the processor time of a DAFS client does not grow with the block",
        "flat, 2 to 512 KiB",
        AtMost(1.2),
        Ratio(ClientCpu, random(Free, DafsShm, BLOCK_512K, 1), random(Free, DafsShm, BLOCK_2K, 1)),
        IDEAL,
    ),
    not_here(
        "P0-F4",
        "the same over a network",
        "iWARP in software pays the kernel's TCP for each byte; the figure has the slope",
    ),
    beyond("P0-F5", Libnfs, 1),
    beyond("P0-F5", NfsTcp, 1),
    five_times("P0-F6", Link, (Libnfs, DafsIwarp), 32, GANESHA),
    five_times("P0-F6", Free, (Libnfs, DafsShm), 32, IDEAL),
    rows(
        "P0-F6",
        "a DAFS read costs less with 32 under way than with one",
        "below 1",
        AtMost(1.0),
        Ratio(
            ClientCpu,
            random(Link, DafsIwarp, BLOCK_16K, 32),
            random(Link, DafsIwarp, BLOCK_16K, 1),
        ),
        "",
    ),
    rows(
        "P0-F6",
        "an NFS read costs more with 32 under way than with one",
        "above 1",
        AtLeast(1.0),
        Ratio(ClientCpu, random(Link, Libnfs, BLOCK_16K, 32), random(Link, Libnfs, BLOCK_16K, 1)),
        "libnfs has one thread and no processes that wait for each other",
    ),
    rows(
        "P0-F7",
        "DAFS with 32 reads under way fills the link from 16 KiB on",
        "85 MB/s, the bus's limit",
        AtLeast(0.95),
        LinkShare(random(Link, DafsIwarp, FROM_16K, 32)),
        "",
    ),
    beyond("P0-F7", Libnfs, 32),
    beyond("P0-F7", NfsTcp, 32),
    not_yet("P0-F8", "gzip: DAFS costs no more processor, and idles 1 % or less", "0.4 %", GZIP),
    not_yet("P0-F8", "two of gzip run 1.95 times as fast as one", "2.0; NFS below 1.6", GZIP),
    placed(BLOCK_8K, "0.67", 0.67, Link, (DafsIwarp, NocopyIwarp), SOFTWARE),
    placed(BLOCK_8K, "0.67", 0.67, Free, (DafsShm, NocopyShm), IDEAL),
    placed(BLOCK_256K, "0.10", 0.10, Link, (DafsIwarp, NocopyIwarp), NO_FLIPS),
    placed(BLOCK_256K, "0.10", 0.10, Free, (DafsShm, NocopyShm), NO_FLIPS),
    not_yet(
        "P0-H2",
        "a DAFS client is faster than a local file system",
        "below 1",
        "`--group fio` measures it; this command does not read its rows yet",
    ),
    not_here(
        "P0-H3",
        "fencing, exactly-once, broken locks, shared keys",
        "semantics without a measurement; tests and the simulation show them",
    ),
];

static P1: [Claim; 12] = [
    drawing("P1-F1", "the server's state machine"),
    drawing("P1-F2", "memory management of processor and adapter"),
    drawing("P1-T1", "an interface of the kernel server"),
    drawing("P1-T2", "an interface of the kernel server"),
    drawing("P1-T3", "an interface of the kernel server"),
    drawing("P1-T4", "an interface of the kernel server"),
    rows(
        "P1-F3",
        "64 reads of 4 KiB under way come near the floor",
        "0.88 (100 of 113 MB/s)",
        AtLeast(0.88),
        Ratio(
            Throughput,
            random(Link, DafsIwarp, BLOCK_4K, 64),
            in_order(Link, Rdma, BLOCK_32K, 8),
        ),
        "the floor is RDMA writes of 32 KiB on the same link",
    ),
    rows(
        "P1-F3",
        "one read of 128 KiB at a time comes near the floor",
        "close to the wire",
        AtLeast(0.9),
        Ratio(
            Throughput,
            random(Link, DafsIwarp, BLOCK_128K, 1),
            in_order(Link, Rdma, BLOCK_32K, 8),
        ),
        "",
    ),
    rows(
        "P1-F3",
        "one read of 4 KiB at a time is far below the floor",
        "far less",
        AtMost(0.5),
        Ratio(Throughput, random(Link, DafsIwarp, BLOCK_4K, 1), in_order(Link, Rdma, BLOCK_32K, 8)),
        "",
    ),
    rows(
        "P1-F3",
        "with 64 reads under way the throughput is flat from 4 KiB on",
        "1.13 (113 of 100 MB/s)",
        AtMost(1.13),
        Ratio(
            Throughput,
            random(Link, DafsIwarp, BLOCK_512K, 64),
            random(Link, DafsIwarp, BLOCK_4K, 64),
        ),
        "",
    ),
    not_yet(
        "P1-H1",
        "a server that fetches writes takes no more than its disk writes",
        "stated",
        "needs a slow disk (cgroup io.max), which is not built",
    ),
    not_here(
        "P1-H2",
        "the server's handler does not wait for its RDMA",
        "a design without a measurement; tests of the engine show it",
    ),
];

static P2: [Claim; 21] = [
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
        "",
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
    not_yet("P2-F6", "Berkeley DB over its size: DAFS beside NFS", "1.0 to 3.5", DATABASE),
    not_yet("P2-F7", "a transaction costs DAFS half the processor", "0.5", DATABASE),
    not_yet("P2-F8", "the kernel's cache overtakes a client without one", "2 to below 1", DATABASE),
    not_yet("P2-F9", "prefetching helps a join, and DAFS most", "above 1", DATABASE),
    not_yet("P2-F10", "the kernel's read-ahead helps a program that asks for none", "1", DATABASE),
    drawing("P2-F11", "the parts of the TPC-C experiment"),
    not_yet(
        "P2-F12",
        "TPC-C: DAFS above NFS from 1 to 4 processes, and two are best",
        "above 1",
        "TPC-C is not built",
    ),
    not_yet(
        "P2-S6",
        "three questions predict whether DAFS or NFS is faster",
        "all signs right",
        "there are no predictions yet",
    ),
];

/// The protocol of 2003. Tests of the wire format show its successor (RFC 8166).
static P3_DRAWINGS: [Claim; 14] = [
    drawing("P3-F1", "the protocol of 2003"),
    drawing("P3-F2", "the protocol of 2003"),
    drawing("P3-F3", "the protocol of 2003"),
    drawing("P3-F4", "the protocol of 2003"),
    drawing("P3-F5", "the protocol of 2003"),
    drawing("P3-F6", "the protocol of 2003"),
    drawing("P3-F7", "the protocol of 2003"),
    drawing("P3-F8", "the protocol of 2003"),
    drawing("P3-F9", "the protocol of 2003"),
    drawing("P3-F10", "the protocol of 2003"),
    drawing("P3-F11", "the protocol of 2003"),
    drawing("P3-F12", "the protocol of 2003"),
    drawing("P3-F13", "the protocol of 2003"),
    drawing("P3-F14", "the protocol of 2003"),
];

static P3: [Claim; 14] = [
    rows(
        "P3-F15",
        "NFS over TCP is at its best near 256 KiB",
        "256 KiB, 4 read-aheads",
        Within(128.0, 512.0),
        BestBlock(best(Free, NfsTcp)),
        OWN_NFS,
    ),
    rows(
        "P3-F16",
        "NFS over RDMA is at its best near 256 KiB",
        "256 KiB, 8 read-aheads",
        Within(128.0, 512.0),
        BestBlock(best(Free, NocopyIwarp)),
        "",
    ),
    best_of(NocopyIwarp, NfsTcp, OWN_NFS),
    best_of(NocopyIwarp, Prepost, SAME_CLIENT),
    best_of(NocopyShm, Prepost, IDEAL),
    rows(
        "P3-F16",
        "RDMA is at its best with more read-ahead than TCP",
        "9 and 5 reads under way",
        AtLeast(1.01),
        BestDepthRatio(best(Free, NocopyIwarp), best(Free, Prepost)),
        "",
    ),
    rows(
        "P3-F16",
        "frames of 1500 bytes in place of 9000 cost NFS over RDMA 40 %",
        "0.6",
        Within(0.5, 0.7),
        Ratio(
            Throughput,
            in_order(Frames1500, NocopyIwarp, BLOCK_256K, 9),
            in_order(Frames9000, NocopyIwarp, BLOCK_256K, 9),
        ),
        "neither link has a rate, so processors are the limit",
    ),
    rows(
        "P3-F17",
        "at the same throughput RDMA costs a client less than TCP",
        "below 1",
        AtMost(1.0),
        Ratio(
            ClientCpuPerMegabyte,
            in_order(Link, NocopyIwarp, BLOCK_256K, 5),
            in_order(Link, Prepost, BLOCK_256K, 5),
        ),
        "a link that both fill makes the throughput the same",
    ),
    same_size(NocopyIwarp, NfsTcp, OWN_NFS),
    same_size(NocopyIwarp, Prepost, SAME_CLIENT),
    same_size(NocopyShm, Prepost, IDEAL),
    not_yet(
        "P3-H1",
        "writes gain as much as reads",
        "assumed",
        "`--group rdma` measures it; this command does not read its rows yet",
    ),
    not_yet(
        "P3-H2",
        "the smallest data that is worth an RDMA",
        "1 KB assumed",
        "the sweep of the inline limit is not built",
    ),
    not_here(
        "P3-H3",
        "tests of NFS pass over RDMA",
        "no measurement: lab/tests/nfs-rdma.sh shows it",
    ),
];

static P4_DRAWINGS: [Claim; 5] = [
    drawing("P4-F1", "parts of pNFS"),
    drawing("P4-F2", "parts of pNFS"),
    drawing("P4-F3", "parts of pNFS"),
    drawing("P4-F4", "parts of pNFS"),
    drawing("P4-F5", "parts of pNFS"),
];

static P4: [Claim; 14] = [
    not_yet("P4-F6a", "writes of separate files: Direct-pNFS is as fast as PVFS2", "1.0", PNFS),
    not_yet("P4-F6b", "writes of one file: Direct-pNFS is as fast as PVFS2", "1.0", PNFS),
    not_yet("P4-F6c", "writes over slow links: two tiers are half as fast", "0.5", PNFS),
    not_yet(
        "P4-F6d",
        "writes of 8 KiB, separate files: as fast as large ones",
        "1; PVFS2 1/3",
        PNFS,
    ),
    not_yet("P4-F6e", "writes of 8 KiB, one file: as fast as large ones", "1; PVFS2 1/3", PNFS),
    not_yet("P4-F7a", "reads of separate files: Direct-pNFS is 4 times three tiers", "4.4", PNFS),
    not_yet("P4-F7b", "reads of one file: Direct-pNFS is as fast as PVFS2", "0.9", PNFS),
    not_yet("P4-F7c", "reads of 8 KiB, separate files: 8 times PVFS2", "10", PNFS),
    not_yet("P4-F7d", "reads of 8 KiB, one file: 8 times PVFS2", "10", PNFS),
    not_yet("P4-F8a", "ATLAS: Direct-pNFS keeps 0.85 of its best, PVFS2 half", "0.86; 0.41", PNFS),
    not_yet("P4-F8b", "BTIO takes as long as on PVFS2", "1.05 at most", PNFS),
    not_yet("P4-F8c", "OLTP runs 4 times as fast as on PVFS2", "4.3", PNFS),
    not_yet("P4-F8d", "Postmark runs 10 times as fast as on PVFS2", "36", PNFS),
    not_yet("P4-H1", "a build compiles faster and unpacks more slowly", "signs", PNFS),
];
