//! Claims of the papers on NFS over RDMA (P3) and on Direct-pNFS (P4).

use super::super::cells::Network::{Frames1500, Frames9000, Free, Link, Slow};
use super::super::cells::Way::{
    DafsDirect, DafsIwarp, NfsDirect, NfsInline, NfsTcp, NocopyIwarp, NocopyShm, Prepost,
};
use super::super::cells::{ALL_BLOCKS, Network, Way};
use super::super::claims::Claim;
use super::super::claims::Value::{BestBlock, BestDepthRatio, BestRatio, GroupRatio, Ratio};
use super::super::groups::{Group, Place};
use super::super::results::Quantity::{ClientCpu, ClientCpuPerMegabyte, Throughput};
use super::{
    BLOCK_256K, FLAT, IDEAL, IDEAL_POLLS, OWN_NFS, SAME_CLIENT, SOFTWARE, best, drawing, in_order,
    not_here, random, rows,
};
use crate::targets::Bound::{self, AtLeast, AtMost, Within};

/// The best throughput of NFS over RDMA beside that over TCP.
const fn best_of(network: Network, rdma: Way, tcp: Way, note: &'static str) -> Claim {
    let value = BestRatio(best(network, rdma), best(network, tcp));
    let text = "the best over RDMA is 1.6 times the best over TCP";
    rows("P3-F16", text, "1.7 (102 and 60 MB/s)", AtLeast(1.6), value, note)
}

/// Processor time of a read over RDMA beside that over TCP, without a link and read-ahead.
const fn same_size(rdma: Way, tcp: Way, note: &'static str) -> Claim {
    let (rdma, tcp) = (in_order(Free, rdma, &ALL_BLOCKS, 1), in_order(Free, tcp, &ALL_BLOCKS, 1));
    let text = "RDMA costs a client 30 to 60 % of TCP at each size";
    rows("P3-F18", text, "0.3 to 0.6", AtMost(0.6), Ratio(ClientCpu, rdma, tcp), note)
}

/// The gain of writes beside that of reads.
const fn as_reads(write: &'static str, read: &'static str, note: &'static str) -> Claim {
    let (group, text) = (Group::Rdma, "writes gain as much as reads");
    let value = GroupRatio(Place { group, case: write }, Place { group, case: read });
    rows("P3-H1", text, "assumed, within 20 %", Within(0.8, 1.2), value, note)
}

/// Reads by RDMA beside reads inside messages, from the size on that the paper assumes.
const fn worth_rdma(
    (direct, inline): (Way, Way),
    blocks: &'static [usize],
    depth: usize,
    note: &'static str,
) -> Claim {
    let (direct, inline) =
        (random(Link, direct, blocks, depth), random(Link, inline, blocks, depth));
    let text = "from 1 KiB on a read by RDMA costs a client no more than one inside a message";
    rows("P3-H2", text, "1 KB assumed", AtMost(1.0), Ratio(ClientCpu, direct, inline), note)
}

/// The blocks that DAFS can send inside messages, and those of NFS.
const FROM_1K: &[usize] = &[1 << 10, 2 << 10, 4 << 10, 8 << 10];
const NFS_FROM_1K: &[usize] = &[1 << 10, 2 << 10];

const LIMITED: &str = "the client has a fifth of a processor (cgroup), which is enough for TCP with long blocks on \
    this link; iWARP in software is TCP below, with frames of its own";
const DAFS_LIMIT: &str = "a DAFS client with all reads direct, beside one with all of these inline; over iWARP in \
    software a direct read is a message more, which costs more than a copy of 8 KiB";
const NFS_LIMIT: &str = "NFSv4.1; messages have at most 4096 bytes; over iWARP in software a read by RDMA is a \
    message more, which costs more than a copy of 2 KiB";

/// A rate of an architecture beside that of another.
const fn beside(
    id: &'static str,
    text: &'static str,
    paper: &'static str,
    bound: Bound,
    (of, to): (&'static str, &'static str),
    note: &'static str,
) -> Claim {
    let group = Group::Pnfs;
    let value = GroupRatio(Place { group, case: of }, Place { group, case: to });
    rows(id, text, paper, bound, value, note)
}

/// DAFS with layouts of its own beside Direct-pNFS.
const fn own_layouts(id: &'static str, rows: (&'static str, &'static str)) -> Claim {
    let text = "DAFS with layouts of its own is as fast as Direct-pNFS";
    beside(id, text, "ours: 0.95", AtLeast(0.95), rows, OWN_FILES)
}

/// Direct-pNFS beside the native client, where disks are the limit.
const fn on_disks(
    id: &'static str,
    paper: &'static str,
    (of, to): (&'static str, &'static str),
) -> Claim {
    let group = Group::Disks;
    let value = GroupRatio(Place { group, case: of }, Place { group, case: to });
    let text = "with the disks as the limit Direct-pNFS is as fast as the native client";
    rows(id, text, paper, AtLeast(0.95), value, ON_DISKS)
}

const ON_DISKS: &str = "files in stripes of dafs; its client with layouts of its own stands for PVFS2's, \
    as CephFS keeps its data in memory here";
const OWN_FILES: &str = "files in stripes of dafs, in the memory of the same nodes";
const NATIVE: &str = "CephFS with its client's cache stands for PVFS2, which had none";
const GATHERS: &str = "CephFS stands for PVFS2; its client gathers small writes and reads ahead in its cache, \
    and PVFS2 had none";
const UNCACHED: &str = "CephFS with a client that caches no content stands for PVFS2; its daemons answer from \
    memory, so that small requests of many clients come near the links";
const STABLE_IN_MEMORY: &str = "CephFS stands for PVFS2; its daemons make a write stable in memory, and PVFS2's waited \
    for disks";
const RIGHTS: &str = "CephFS stands for PVFS2; its client keeps the rights on a file (capabilities), where one of NFS \
    asks one server for an open, a layout, stable data and a close, and that asks CephFS";
const COMPILER: &str = "CephFS stands for PVFS2; the compiler takes most of the time of both, and each use of a file is \
    an open and a close at one server for NFS, and none for a client with capabilities";
const ONE_RUN: &str = "one run of each, which differs from the next by more";
const TWO_TIERS: &str = "links of 100 Mbit/s, as in figure 6c; with many clients the uneven placement of objects and \
    the processors hold Direct-pNFS up before all links are full, and two tiers are held up by the links";
const LINKS: &str = "links of 100 Mbit/s, as in figure 6c";
const TWICE: &str =
    "each byte of three tiers crosses equal links twice, so that 2 is the limit here";

/// The protocol of 2003. Tests of the wire format show its successor (RFC 8166).
pub(super) static P3_DRAWINGS: [Claim; 14] = [
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

pub(super) static P3: [Claim; 19] = [
    rows(
        "P3-F15",
        "NFS over TCP is at its best near 256 KiB",
        "256 KiB, 4 read-aheads",
        Within(128.0, 512.0),
        BestBlock(best(Free, NfsTcp)),
        FLAT,
    ),
    rows(
        "P3-F16",
        "NFS over RDMA is at its best near 256 KiB",
        "256 KiB, 8 read-aheads",
        Within(128.0, 512.0),
        BestBlock(best(Free, NocopyIwarp)),
        FLAT,
    ),
    best_of(Free, NocopyIwarp, NfsTcp, OWN_NFS),
    best_of(Free, NocopyIwarp, Prepost, SAME_CLIENT),
    best_of(Free, NocopyShm, Prepost, IDEAL),
    best_of(Slow, NocopyIwarp, Prepost, LIMITED),
    rows(
        "P3-F16",
        "RDMA is at its best with more read-ahead than TCP",
        "9 and 5 reads under way",
        AtLeast(1.01),
        BestDepthRatio(best(Free, NocopyIwarp), best(Free, Prepost)),
        FLAT,
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
        "a link that both fill makes the throughput the same; iWARP in software is TCP below, with work on \
         each of its frames",
    ),
    same_size(NocopyIwarp, NfsTcp, OWN_NFS),
    same_size(NocopyIwarp, Prepost, SAME_CLIENT),
    same_size(NocopyShm, Prepost, IDEAL_POLLS),
    as_reads(
        "NFS 3 over TCP and RDMA, own CPUs: iwarp sequential write 256 KiB read-ahead 8",
        "NFS 3 over TCP and RDMA, own CPUs: iwarp sequential read 256 KiB read-ahead 8",
        SOFTWARE,
    ),
    as_reads(
        "NFS 3 over TCP and RDMA, own CPUs: shm sequential write 256 KiB read-ahead 8",
        "NFS 3 over TCP and RDMA, own CPUs: shm sequential read 256 KiB read-ahead 8",
        IDEAL,
    ),
    worth_rdma((DafsDirect, DafsIwarp), FROM_1K, 1, DAFS_LIMIT),
    worth_rdma((DafsDirect, DafsIwarp), FROM_1K, 32, DAFS_LIMIT),
    worth_rdma((NfsDirect, NfsInline), NFS_FROM_1K, 1, NFS_LIMIT),
    worth_rdma((NfsDirect, NfsInline), NFS_FROM_1K, 32, NFS_LIMIT),
    not_here(
        "P3-H3",
        "tests of NFS pass over RDMA",
        "no measurement: lab/tests/nfs-rdma.sh shows it",
    ),
];

pub(super) static P4_DRAWINGS: [Claim; 5] = [
    drawing("P4-F1", "parts of pNFS"),
    drawing("P4-F2", "parts of pNFS"),
    drawing("P4-F3", "parts of pNFS"),
    drawing("P4-F4", "parts of pNFS"),
    drawing("P4-F5", "parts of pNFS"),
];

pub(super) static P4: [Claim; 34] = [
    own_layouts(
        "P4-F6a",
        ("DAFS layouts: write, separate files, 2 MiB", "Direct-pNFS: write, separate files, 2 MiB"),
    ),
    own_layouts(
        "P4-F7a",
        ("DAFS layouts: read, separate files, 2 MiB", "Direct-pNFS: read, separate files, 2 MiB"),
    ),
    beside(
        "P4-F6a",
        "writes of separate files: Direct-pNFS is as fast as PVFS2",
        "1.0 (119 MB/s)",
        AtLeast(0.95),
        ("Direct-pNFS: write, separate files, 2 MiB", "CephFS: write, separate files, 2 MiB"),
        NATIVE,
    ),
    beside(
        "P4-F6a",
        "writes of separate files: three tiers are slower",
        "0.7 (83 MB/s)",
        AtMost(0.7),
        ("3-tier: write, separate files, 2 MiB", "Direct-pNFS: write, separate files, 2 MiB"),
        LINKS,
    ),
    beside(
        "P4-F6b",
        "writes of one file: Direct-pNFS is as fast as PVFS2",
        "1.0 (110 MB/s)",
        AtLeast(0.95),
        ("Direct-pNFS: write, one file, 2 MiB", "CephFS: write, one file, 2 MiB"),
        NATIVE,
    ),
    beside(
        "P4-F6b",
        "writes of one file: three tiers are slower",
        "0.7",
        AtMost(0.7),
        ("3-tier: write, one file, 2 MiB", "Direct-pNFS: write, one file, 2 MiB"),
        LINKS,
    ),
    beside(
        "P4-F6c",
        "writes over slow links: two tiers are half as fast",
        "0.5",
        AtMost(0.55),
        ("2-tier: write, separate files, 2 MiB", "Direct-pNFS: write, separate files, 2 MiB"),
        TWO_TIERS,
    ),
    beside(
        "P4-F6d",
        "writes of 8 KiB, separate files: as fast as large ones",
        "1",
        AtLeast(0.95),
        ("Direct-pNFS: write, separate files, 8 KiB", "Direct-pNFS: write, separate files, 2 MiB"),
        ONE_RUN,
    ),
    beside(
        "P4-F6d",
        "writes of 8 KiB, separate files: 3 times PVFS2",
        "3 (PVFS2 39.4 MB/s)",
        AtLeast(3.0),
        ("Direct-pNFS: write, separate files, 8 KiB", "CephFS: write, separate files, 8 KiB"),
        GATHERS,
    ),
    beside(
        "P4-F6d",
        "writes of 8 KiB, separate files: 3 times PVFS2",
        "3 (PVFS2 39.4 MB/s)",
        AtLeast(3.0),
        (
            "Direct-pNFS: write, separate files, 8 KiB",
            "CephFS uncached: write, separate files, 8 KiB",
        ),
        UNCACHED,
    ),
    beside(
        "P4-F6e",
        "writes of 8 KiB, one file: as fast as large ones",
        "1",
        AtLeast(0.95),
        ("Direct-pNFS: write, one file, 8 KiB", "Direct-pNFS: write, one file, 2 MiB"),
        ONE_RUN,
    ),
    beside(
        "P4-F6e",
        "writes of 8 KiB, one file: 3 times PVFS2",
        "3",
        AtLeast(3.0),
        ("Direct-pNFS: write, one file, 8 KiB", "CephFS: write, one file, 8 KiB"),
        GATHERS,
    ),
    beside(
        "P4-F6e",
        "writes of 8 KiB, one file: 3 times PVFS2",
        "3",
        AtLeast(3.0),
        ("Direct-pNFS: write, one file, 8 KiB", "CephFS uncached: write, one file, 8 KiB"),
        UNCACHED,
    ),
    beside(
        "P4-F7a",
        "reads of separate files: Direct-pNFS is as fast as PVFS2",
        "1.0 (509 MB/s)",
        AtLeast(0.95),
        ("Direct-pNFS: read, separate files, 2 MiB", "CephFS: read, separate files, 2 MiB"),
        NATIVE,
    ),
    beside(
        "P4-F7a",
        "reads of separate files: Direct-pNFS is 4 times as fast as three tiers",
        "4.4",
        AtLeast(4.0),
        ("Direct-pNFS: read, separate files, 2 MiB", "3-tier: read, separate files, 2 MiB"),
        TWICE,
    ),
    beside(
        "P4-F7b",
        "reads of one file: Direct-pNFS is nearly as fast as PVFS2",
        "0.9",
        AtLeast(0.9),
        ("Direct-pNFS: read, one file, 2 MiB", "CephFS: read, one file, 2 MiB"),
        NATIVE,
    ),
    beside(
        "P4-F7c",
        "reads of 8 KiB, separate files: 8 times PVFS2",
        "10 (PVFS2 51 MB/s)",
        AtLeast(8.0),
        ("Direct-pNFS: read, separate files, 8 KiB", "CephFS: read, separate files, 8 KiB"),
        GATHERS,
    ),
    beside(
        "P4-F7c",
        "reads of 8 KiB, separate files: 8 times PVFS2",
        "10 (PVFS2 51 MB/s)",
        AtLeast(8.0),
        (
            "Direct-pNFS: read, separate files, 8 KiB",
            "CephFS uncached: read, separate files, 8 KiB",
        ),
        UNCACHED,
    ),
    beside(
        "P4-F7d",
        "reads of 8 KiB, one file: 8 times PVFS2",
        "10",
        AtLeast(8.0),
        ("Direct-pNFS: read, one file, 8 KiB", "CephFS: read, one file, 8 KiB"),
        GATHERS,
    ),
    beside(
        "P4-F7d",
        "reads of 8 KiB, one file: 8 times PVFS2",
        "10",
        AtLeast(8.0),
        ("Direct-pNFS: read, one file, 8 KiB", "CephFS uncached: read, one file, 8 KiB"),
        UNCACHED,
    ),
    beside(
        "P4-F8a",
        "ATLAS: Direct-pNFS keeps most of its best rate",
        "0.86",
        AtLeast(0.85),
        ("Direct-pNFS: atlas", "Direct-pNFS: write, separate files, 2 MiB"),
        "",
    ),
    beside(
        "P4-F8a",
        "ATLAS: PVFS2 keeps half of its best rate",
        "0.41",
        AtMost(0.5),
        ("CephFS: atlas", "CephFS: write, separate files, 2 MiB"),
        GATHERS,
    ),
    beside(
        "P4-F8a",
        "ATLAS: PVFS2 keeps half of its best rate",
        "0.41",
        AtMost(0.5),
        ("CephFS uncached: atlas", "CephFS uncached: write, separate files, 2 MiB"),
        UNCACHED,
    ),
    beside(
        "P4-F8b",
        "BTIO takes as long as on PVFS2",
        "1.05 at most",
        AtMost(1.05),
        ("CephFS: btio", "Direct-pNFS: btio"),
        NATIVE,
    ),
    beside(
        "P4-F8b",
        "with nine clients BTIO takes 5 % longer than on PVFS2",
        "1.05",
        AtMost(1.05),
        ("CephFS with nine clients: btio", "Direct-pNFS with nine clients: btio"),
        NATIVE,
    ),
    beside(
        "P4-F8c",
        "OLTP runs 4 times as fast as on PVFS2",
        "4.3 (26 and 6 MB/s)",
        AtLeast(4.0),
        ("Direct-pNFS: oltp", "CephFS: oltp"),
        STABLE_IN_MEMORY,
    ),
    beside(
        "P4-F8c",
        "OLTP runs 4 times as fast as on PVFS2",
        "4.3 (26 and 6 MB/s)",
        AtLeast(4.0),
        ("Direct-pNFS: oltp", "CephFS uncached: oltp"),
        STABLE_IN_MEMORY,
    ),
    beside(
        "P4-F8d",
        "Postmark runs 10 times as fast as on PVFS2",
        "36",
        AtLeast(10.0),
        ("Direct-pNFS: postmark", "CephFS: postmark"),
        RIGHTS,
    ),
    beside(
        "P4-F8d",
        "Postmark runs 10 times as fast as on PVFS2",
        "36",
        AtLeast(10.0),
        ("Direct-pNFS: postmark", "CephFS uncached: postmark"),
        RIGHTS,
    ),
    beside(
        "P4-H1",
        "a build compiles faster than on PVFS2",
        "above 1",
        AtLeast(1.0),
        ("Direct-pNFS: build", "CephFS: build"),
        COMPILER,
    ),
    beside(
        "P4-H1",
        "a build unpacks more slowly than on PVFS2",
        "below 1",
        AtMost(1.0),
        ("Direct-pNFS: unpack", "CephFS: unpack"),
        NATIVE,
    ),
    beside(
        "P4-H1",
        "a build configures more slowly than on PVFS2",
        "below 1",
        AtMost(1.0),
        ("Direct-pNFS: configure", "CephFS: configure"),
        NATIVE,
    ),
    on_disks(
        "P4-F6a",
        "1.0 (119 MB/s)",
        (
            "Direct-pNFS on slow disks: write, separate files, 2 MiB",
            "DAFS layouts on slow disks: write, separate files, 2 MiB",
        ),
    ),
    on_disks(
        "P4-F6b",
        "1.0 (110 MB/s)",
        (
            "Direct-pNFS on slow disks: write, one file, 2 MiB",
            "DAFS layouts on slow disks: write, one file, 2 MiB",
        ),
    ),
];
