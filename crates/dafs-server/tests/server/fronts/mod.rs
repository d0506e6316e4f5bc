//! One state behind three front ends: a DAFS, an NFSv4 and an NFSv3 client use the same files, pair
//! by pair, against a real server on a directory.

mod broken;
mod contents;
mod dafs_holder;
mod delegations;
mod fences;
mod harness;
mod keys;
mod locks;
mod names;
mod rdma;
mod recovery;
mod retries;
mod shares;
mod stalls;
