//! Callers that have proven their name, with the mechanism of the unit tests of dafs-rpc.

use dafs_rpc::gss::*;

mod sizes;
#[allow(dead_code, reason = "these tests use a part of it")]
#[path = "../../../../../dafs-rpc/src/gss/toy.rs"]
mod toy;
