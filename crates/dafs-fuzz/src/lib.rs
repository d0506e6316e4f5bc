//! The bodies of the fuzz targets: one module each, whose `run` takes an input.
//!
//! libFuzzer calls them from the programs in `fuzz/`, which are built apart, with coverage counters.
//! The test `seeds` calls them with the inputs in `fuzz/seeds`.

#![allow(
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "test code; a panic is a finding"
)]

pub mod block_directory;
pub mod cluster_frames;
pub mod dafs_attributes;
pub mod dafs_entries;
pub mod dafs_request;
pub mod dafs_response;
pub mod exposed_blocks;
pub mod gss_keytab;
pub mod gss_tokens;
pub mod hand_over;
pub mod http_head;
mod input;
mod iwarp;
pub mod iwarp_connection;
pub mod iwarp_ddp;
pub mod iwarp_mpa;
pub mod iwarp_rdmap;
pub mod iwarp_receive;
pub mod journal_scan;
pub mod nfs3_args;
pub mod nfs3_results;
pub mod nfs4_attributes;
pub mod nfs4_callback;
pub mod nfs4_compound;
pub mod nfs4_layouts;
pub mod nfs4_state;
pub mod nfs_acl3;
pub mod nlm4;
pub mod remote_blocks;
pub mod rpc_gss;
pub mod rpc_gss_accept;
pub mod rpc_gss_reply;
pub mod rpc_header;
pub mod rpc_stream;
pub mod rpcrdma_client;
pub mod rpcrdma_header;
pub mod rpcrdma_private_data;
pub mod rpcrdma_server;
mod rpcrdma_steps;
pub mod shm_packets;
pub mod tls_certificate;
pub mod tls_first_bytes;
