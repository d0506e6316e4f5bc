//! RPCSEC_GSS over RDMA: contexts are those of TCP, and under integrity and privacy nothing is
//! reduced (RFC 8166 section 8.2.2).

mod attacks;
mod calls;
mod scene;

use dafs_testkit_rpc::gss as toy;
