//! RPCSEC_GSS over RDMA: contexts are those of TCP, and under integrity and privacy nothing is
//! reduced (RFC 8166 section 8.2.2).

use dafs_rpc::gss::*;

mod attacks;
mod calls;
mod scene;
// The mechanism of the unit tests.
#[allow(dead_code, reason = "these tests use a part of it")]
#[path = "../../../../src/gss/toy.rs"]
mod toy;
