//! Claims of the paper on applications over DAFS (P2).

use super::super::cells::FROM_4K;
use super::super::cells::Network::{Far, Free, Link, Slow};
use super::super::cells::Way::{DafsIwarp, DafsShm, NfsTcp, NocopyIwarp, NocopyShm};
use super::super::claims::Bound::{AtLeast, AtMost, Within};
use super::super::claims::Claim;
use super::super::claims::Value::{LinkShare, Plain, Ratio};
use super::super::results::Quantity::{ClientCpuPerMegabyte, ClientShare, Copies, Throughput};
use super::{
    BLOCK_4K, BLOCK_16K, BLOCK_256K, BLOCK_512K, CPU_LIMIT, DATABASE, FROM_32K, IDEAL, SOFTWARE,
    drawing, in_order, not_here, not_yet, random, rows,
};

pub(super) static P2: [Claim; 21] = [
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
