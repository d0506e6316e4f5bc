//! RPC-over-RDMA over the simulated network: the product's server and client, against each other
//! and against peers that break every rule. Every delay and loss follows from a seed.

mod caller;
mod cuts;
mod hostile_back;
mod hostile_chunks;
mod hostile_client;
mod hostile_server;
mod scene;
mod worlds;

use dafs_testkit_rpc::{net, program, raw};
