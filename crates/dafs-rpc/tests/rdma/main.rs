//! The server over RDMA, tested by a client at byte level, on every transport.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
#![allow(unreachable_pub, reason = "the modules of a test program")]

mod back;
mod calls;
mod chunks;
mod common;
mod hostile;
mod shapes_prop;
