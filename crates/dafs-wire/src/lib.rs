//! Every byte format of dafs: pure encode and decode, no sockets, clocks or threads.
//!
//! Invariants
//! * No input panics, loops without bound or makes a decoder allocate more than a small multiple
//!   of the input.
//! * Decoded values borrow from the input; bulk data is never copied here.
//! * All arithmetic on lengths and offsets from peers is checked.

#![forbid(unsafe_code)]

pub mod cluster;
pub mod dafs;
pub mod hand_over;
pub mod host;
pub mod http;
pub mod iwarp;
pub mod mount3;
pub mod nfs3;
pub mod nfs4;
pub mod nfs_acl3;
pub mod nlm4;
pub mod nsm1;
mod numbers;
pub mod path;
pub mod rpc;
pub mod rpcrdma;
mod status;
pub mod xdr;
