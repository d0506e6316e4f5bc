//! Claims of the paper on NFS over RDMA (P3), for the client of Linux's kernel.

use super::super::claims::{Claim, Value::GroupPlain};
use super::super::groups::{Group, Place};
use super::rows;
use crate::targets::Bound::{self, AtLeast, AtMost, Within};

const fn claim(
    id: &'static str,
    text: &'static str,
    paper: &'static str,
    bound: Bound,
    (group, case): (Group, &'static str),
    in_a_guest: &'static str,
) -> Claim {
    let note = match group {
        Group::Host => "client and server share this host, and transfers come one at a time",
        _ => in_a_guest,
    };
    rows(id, text, paper, bound, GroupPlain(Place { group, case }), note)
}

const ONE_AT_A_TIME: &str = "a guest without KVM shows shapes and no rates; transfers come one at a time, so that the \
                             longest block has the fewest calls";
const BUSY: &str = "a guest without KVM shows shapes and no rates; siw and rxe are software, whose work on each \
                    packet keeps the guest's processor busy (client CPU)";

const fn tcp_block(row: (Group, &'static str)) -> Claim {
    let text = "NFS over TCP by the kernel's client is at its best near 256 KiB";
    claim("P3-F15", text, "256 KiB, 4 read-aheads", Within(128.0, 512.0), row, ONE_AT_A_TIME)
}

const fn rdma_block(row: (Group, &'static str)) -> Claim {
    let text = "NFS over RDMA by the kernel's client is at its best near 256 KiB";
    claim("P3-F16", text, "256 KiB, 8 read-aheads", Within(128.0, 512.0), row, ONE_AT_A_TIME)
}

const fn best(row: (Group, &'static str)) -> Claim {
    let text = "the best of the kernel's client over RDMA is 1.6 times its best over TCP";
    claim("P3-F16", text, "1.7 (102 and 60 MB/s)", AtLeast(1.6), row, BUSY)
}

const fn same_size(row: (Group, &'static str)) -> Claim {
    let text = "RDMA costs the kernel's client 30 to 60 % of TCP at each size";
    claim("P3-F18", text, "0.3 to 0.6", AtMost(0.6), row, BUSY)
}

const fn as_reads(row: (Group, &'static str)) -> Claim {
    let text = "writes by the kernel's client gain as much as reads";
    claim("P3-H1", text, "assumed, within 20 %", Within(0.8, 1.2), row, BUSY)
}

pub(super) static P3_KERNEL: [Claim; 14] = [
    tcp_block((Group::Guest, "TCP: block of the best read")),
    tcp_block((Group::Host, "TCP: block of the best read")),
    rdma_block((Group::Guest, "siw: block of the best read")),
    rdma_block((Group::Guest, "rxe: block of the best read")),
    rdma_block((Group::Host, "RDMA: block of the best read")),
    best((Group::Guest, "siw: best read / TCP")),
    best((Group::Guest, "rxe: best read / TCP to a guest")),
    best((Group::Host, "RDMA: best read / TCP")),
    same_size((Group::Guest, "siw: client CPU of a read, at most / TCP")),
    same_size((Group::Guest, "rxe: client CPU of a read, at most / TCP to a guest")),
    same_size((Group::Host, "RDMA: client CPU of a read, at most / TCP")),
    as_reads((Group::Guest, "siw: gain of writes beside that of reads / TCP")),
    as_reads((Group::Guest, "rxe: gain of writes beside that of reads / TCP to a guest")),
    as_reads((Group::Host, "RDMA: gain of writes beside that of reads / TCP")),
];
