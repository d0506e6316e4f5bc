//! Fixtures that tests of RPC, of NFS and the fuzz targets share: servers without sockets, peers that
//! break the rules, and a mechanism of GSS-API. They stand apart from `dafs-testkit`, so that the tests of
//! other crates are not compiled again after a change of RPC or NFS.

#![forbid(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a failed unwrap is a failed test; messages and steps have their names in the protocols"
)]

pub mod gss;
pub mod net;
#[cfg(feature = "nfs")]
pub mod nfs;
pub mod peer;
pub mod program;
pub mod raw;
pub mod tokens;
