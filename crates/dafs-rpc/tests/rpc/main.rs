//! RPC over TCP and RDMA: servers and clients against each other and against peers of the tests.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod gss_client;
mod gss_server;
mod rdma;
mod rdma_client;
mod rdma_sim;
mod sockets;

use dafs_testkit_rpc::peer;
