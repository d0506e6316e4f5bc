//! Claims of the papers on NFS over RDMA (P3) and on Direct-pNFS (P4).

use super::super::cells::Network::{Frames1500, Frames9000, Free, Link};
use super::super::cells::Way::{NfsTcp, NocopyIwarp, NocopyShm, Prepost};
use super::super::cells::{ALL_BLOCKS, Way};
use super::super::claims::Bound::{AtLeast, AtMost, Within};
use super::super::claims::Claim;
use super::super::claims::Value::{BestBlock, BestDepthRatio, BestRatio, Ratio};
use super::super::results::Quantity::{ClientCpu, ClientCpuPerMegabyte, Throughput};
use super::{
    BLOCK_256K, IDEAL, OWN_NFS, PNFS, SAME_CLIENT, best, drawing, in_order, not_here, not_yet, rows,
};

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

pub(super) static P3: [Claim; 14] = [
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

pub(super) static P4_DRAWINGS: [Claim; 5] = [
    drawing("P4-F1", "parts of pNFS"),
    drawing("P4-F2", "parts of pNFS"),
    drawing("P4-F3", "parts of pNFS"),
    drawing("P4-F4", "parts of pNFS"),
    drawing("P4-F5", "parts of pNFS"),
];

pub(super) static P4: [Claim; 14] = [
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
