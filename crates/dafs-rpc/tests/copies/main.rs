//! The counters of copies. They belong to the process, so these tests are alone in it and take turns.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
#![allow(unreachable_pub, dead_code, reason = "modules of other programs")]

#[path = "../../examples/values/client.rs"]
mod client;
#[path = "../rpc/rdma/common.rs"]
mod common;
#[path = "../../examples/values/protocol.rs"]
mod protocol;
mod rdma;
mod records;
#[path = "../rpc/rdma_client/world.rs"]
mod scripted;
#[path = "../../examples/values/server.rs"]
mod server;
#[path = "../rpc/sockets/common.rs"]
mod sockets;
mod tls;
mod values;

use dafs_mem::Mutex;
use dafs_testkit_rpc::peer;
use std::sync::MutexGuard;

/// Holds up the other tests until it is dropped.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock()
}
