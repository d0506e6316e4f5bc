//! The claims of the papers, one after the other.
//!
//! The prefix of an id is the paper: P0 The Direct Access File System (FAST 2003), P1 A DAFS kernel
//! server for FreeBSD (BSDCon 2002), P2 Performance of applications on DAFS for FreeBSD (2004), P3 NFS
//! over RDMA (SIGCOMM workshops 2003), P4 Direct-pNFS (HPDC 2007). F is a figure, T a table, S a
//! section, H a headline of the text.

mod applications;
mod kernel;
mod nfs;
mod protocol;

use super::cells::{Line, Network, Order, Way};
use super::claims::{Best, Claim, Proof, Value};
use crate::targets::Bound;
use applications::P2;
use kernel::P3_KERNEL;
use nfs::{P3, P3_DRAWINGS, P4, P4_DRAWINGS};
use protocol::{P0, P1};

/// All claims, in the order of their papers.
pub(super) fn claims() -> impl Iterator<Item = &'static Claim> {
    let papers: [&[Claim]; 8] = [&P0, &P1, &P2, &P3_DRAWINGS, &P3, &P3_KERNEL, &P4_DRAWINGS, &P4];
    papers.into_iter().flatten()
}

/// Reads at random places.
const fn random(network: Network, way: Way, blocks: &'static [usize], depth: usize) -> Line {
    Line { network, way, blocks, depth, order: Order::Random }
}

/// Reads in order.
const fn in_order(network: Network, way: Way, blocks: &'static [usize], depth: usize) -> Line {
    Line { network, way, blocks, depth, order: Order::Sequential }
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

const fn not_here(id: &'static str, text: &'static str, note: &'static str) -> Claim {
    Claim { id, text, paper: "", proof: Proof::NotHere, note }
}

const fn drawing(id: &'static str, text: &'static str) -> Claim {
    not_here(id, text, "a drawing or a description: there is nothing to measure")
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

const OWN_NFS: &str = "NFS is our client below its mounts, NFSv4.1 over TCP, which copies results out; \
    iWARP in software is TCP below, with frames of its own";
const IDEAL: &str = "shared memory stands for an ideal adapter";
const SOFTWARE: &str = "iWARP in software pays the kernel's TCP at both ends";
const SAME_CLIENT: &str = "both are the same client, which receives TCP into the place of the data; \
    iWARP in software is TCP below, with frames of its own";
const NO_FLIPS: &str = "our NFS over RDMA flips no pages, whose cost the paper's had";
const IDEAL_POLLS: &str =
    "shared memory stands for an ideal adapter, and the client polls while the server copies";
const FLAT: &str = "without a link copies in memory are the limit, so that all blocks from 64 KiB on \
    come close to the best";
