//! Claims of the papers on DAFS: its protocol (P0) and its kernel server (P1).

use super::super::cells::Network::{Free, Link, Slow};
use super::super::cells::Way::{DafsIwarp, DafsShm, Libnfs, NfsTcp, NocopyIwarp, NocopyShm, Rdma};
use super::super::cells::{Network, Way};
use super::super::claims::Claim;
use super::super::claims::Value::{GroupPlain, LinkShare, Plain, Ratio, TrialPlain, TrialRatio};
use super::super::groups::{Group, Place};
use super::super::matching::{MEMORY, READS};
use super::super::programs::trials::{Door, Series, Work};
use super::super::results::Quantity::{ClientCpu, Copies, Elapsed, IdleShare, Throughput};
use super::{
    BLOCK_2K, BLOCK_4K, BLOCK_8K, BLOCK_16K, BLOCK_32K, BLOCK_128K, BLOCK_256K, BLOCK_512K,
    FROM_16K, IDEAL, IDEAL_POLLS, NO_FLIPS, SOFTWARE, drawing, in_order, not_here, random, rows,
};
use crate::targets::Bound::{AtLeast, AtMost, Within};

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
    let note = if depth == 1 { POLLED_AWAY } else { SOFTWARE_LIMIT };
    let value = Ratio(Throughput, dafs, nfs);
    rows(id, text, "above 1 (DAFS 85 MB/s)", AtLeast(1.0), value, note)
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

/// gzip on the link.
const fn gzip(door: Door, steps: &'static [u64]) -> Series {
    Series { work: Work::Gzip, steps, network: Link, door }
}

/// Reads of 4 KiB by fio, beside a local file.
const fn faster_than_local(case: &'static str) -> Claim {
    let value = GroupPlain(Place { group: Group::Fio, case });
    let text = "a DAFS client is faster than a local file system";
    rows("P0-H2", text, "below 1", AtMost(1.0), value, ONE_CALL)
}

const SLOW_DISK: &str = "the disk is a layer above the server's files that writes 20 MB/s";

const GANESHA_SLEEPS: &str = "NFS is libnfs and NFS-Ganesha, and sleeps; the DAFS client polls while the link carries \
                              a block, and iWARP in software pays the kernel's TCP";
const SOFTWARE_POLLS: &str = "NFS is our client below its mounts, NFSv4.1 over TCP; iWARP in software pays the kernel's \
                              TCP, and its client polls while the link carries a block";
const SOFTWARE_LIMIT: &str = "the client has a fifth of a processor (cgroup), which is its limit; iWARP in software \
                              takes more of it for each byte than TCP alone";
const POLLED_AWAY: &str = "the client has a fifth of a processor (cgroup), and polls that away while the link \
                           carries a block of 16 KiB; with longer blocks it sleeps, and both fill the link";
const FRAMES: &str = "both receive by the kernel's TCP; iWARP in software adds its frames, a message for each \
                      read, and the polls between them";
const ONE_CALL: &str = "shared memory stands for an ideal adapter; a local read of a page in memory is one system call, \
                        without another process";

const ONE: &[u64] = &[1];
const TWO: &[u64] = &[2];

const PIPE: &str = "nfs-cat of libnfs reads beside gzip, so that the pipe is a read-ahead";
const PACKS: &str = "gzip's own work is nearly all of both; nfs-cat of libnfs reads beside gzip, so that the \
                     pipe is a read-ahead";
const AHEAD_LATE: &str = "`dafs run` reads ahead from the fifth MiB of a file on, and gzip waits for each block \
                          before that";
const CONVERTED: &str = "zlib packs in place of gzip's own code, and the result goes to the server";
const CONVERTED_WAITS: &str = "zlib packs in place of gzip's own code; the open, the first pieces and the commit at \
                               the end are waited for, which counts at a small scale";
const CONVERTED_SHARE: &str = "one and the server keep more than a processor busy (CPU share of both ends), so that \
                               two are less than twice as fast on two processors";
const AHEAD_SHARED: &str = "both and the server share two processors (CPU share of both ends), so that blocks that \
                            are not read ahead are waited for longer";
const NO_LOCKS: &str = "each nfs-cat has a connection of its own; the paper's processes waited for locks of one \
                        kernel";

pub(super) static P0: [Claim; 33] = [
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
    five_times("P0-F4", Link, (Libnfs, DafsIwarp), 1, GANESHA_SLEEPS),
    five_times("P0-F4", Link, (NfsTcp, DafsIwarp), 1, SOFTWARE_POLLS),
    five_times("P0-F4", Free, (Libnfs, DafsShm), 1, IDEAL_POLLS),
    rows(
        "P0-F4",
        "the processor time of a DAFS client does not grow with the block",
        "flat, 2 to 512 KiB",
        AtMost(1.2),
        Ratio(ClientCpu, random(Free, DafsShm, BLOCK_512K, 1), random(Free, DafsShm, BLOCK_2K, 1)),
        IDEAL_POLLS,
    ),
    not_here(
        "P0-F4",
        "the same over a network",
        "iWARP in software pays the kernel's TCP for each byte; the figure has the slope",
    ),
    beyond("P0-F5", Libnfs, 1),
    beyond("P0-F5", NfsTcp, 1),
    five_times("P0-F6", Link, (Libnfs, DafsIwarp), 32, FRAMES),
    five_times("P0-F6", Free, (Libnfs, DafsShm), 32, IDEAL_POLLS),
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
    rows(
        "P0-F8",
        "gzip costs no more processor on DAFS than on NFS",
        "below 1",
        AtMost(1.0),
        TrialRatio(ClientCpu, gzip(Door::Run, ONE), gzip(Door::Nfs, ONE)),
        PACKS,
    ),
    rows(
        "P0-F8",
        "one gzip on DAFS leaves the processor idle for 1 % of the time at most",
        "0.4 %",
        AtMost(0.01),
        TrialPlain(IdleShare, gzip(Door::Run, ONE)),
        AHEAD_LATE,
    ),
    rows(
        "P0-F8",
        "gzip converted to the API costs no more processor than on NFS",
        "below 1",
        AtMost(1.0),
        TrialRatio(ClientCpu, gzip(Door::Api, ONE), gzip(Door::Nfs, ONE)),
        CONVERTED,
    ),
    rows(
        "P0-F8",
        "one converted gzip leaves the processor idle for 1 % of the time at most",
        "0.4 %",
        AtMost(0.01),
        TrialPlain(IdleShare, gzip(Door::Api, ONE)),
        CONVERTED_WAITS,
    ),
    rows(
        "P0-F8",
        "two converted ones are nearly twice as fast as one",
        "2.0",
        AtLeast(1.95),
        TrialRatio(Elapsed, gzip(Door::Api, ONE), gzip(Door::Api, TWO)),
        CONVERTED_SHARE,
    ),
    rows(
        "P0-F8",
        "one gzip on NFS leaves the processor idle for more than 5 % of the time",
        "6.4 %",
        AtLeast(0.05),
        TrialPlain(IdleShare, gzip(Door::Nfs, ONE)),
        PIPE,
    ),
    rows(
        "P0-F8",
        "two of gzip on DAFS are nearly twice as fast as one",
        "2.0",
        AtLeast(1.95),
        TrialRatio(Elapsed, gzip(Door::Run, ONE), gzip(Door::Run, TWO)),
        AHEAD_SHARED,
    ),
    rows(
        "P0-F8",
        "two of gzip on NFS are not",
        "1.6 or less",
        AtMost(1.6),
        TrialRatio(Elapsed, gzip(Door::Nfs, ONE), gzip(Door::Nfs, TWO)),
        NO_LOCKS,
    ),
    placed(BLOCK_8K, "0.67", 0.67, Link, (DafsIwarp, NocopyIwarp), SOFTWARE),
    placed(BLOCK_8K, "0.67", 0.67, Free, (DafsShm, NocopyShm), IDEAL),
    placed(BLOCK_256K, "0.10", 0.10, Link, (DafsIwarp, NocopyIwarp), NO_FLIPS),
    placed(BLOCK_256K, "0.10", 0.10, Free, (DafsShm, NocopyShm), NO_FLIPS),
    faster_than_local("fio, against local files, own CPUs: shm read 4 KiB depth 1"),
    faster_than_local("fio, against local files, own CPUs: shm read 4 KiB depth 32"),
    not_here(
        "P0-H3",
        "fencing, exactly-once, broken locks, shared keys",
        "semantics without a measurement; tests and the simulation show them",
    ),
];

pub(super) static P1: [Claim; 13] = [
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
        "a read takes less time than this link needs for 4 KiB",
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
    rows(
        "P1-H1",
        "a server that fetches writes takes no more than its disk writes",
        "16 MiB of memory",
        AtMost(16.0),
        GroupPlain(Place { group: Group::Matching, case: MEMORY }),
        SLOW_DISK,
    ),
    rows(
        "P1-H1",
        "writes that wait for the disk hold up no reads of others",
        "0.8",
        AtLeast(0.8),
        GroupPlain(Place { group: Group::Matching, case: READS }),
        SLOW_DISK,
    ),
    not_here(
        "P1-H2",
        "the server's handler does not wait for its RDMA",
        "a design without a measurement; tests of the engine show it",
    ),
];
