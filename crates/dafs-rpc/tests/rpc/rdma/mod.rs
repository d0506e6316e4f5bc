//! The server over RDMA, tested by a client at byte level, on every transport.

#![allow(unreachable_pub, reason = "the modules of a test program")]

mod back;
mod both;
mod calls;
mod chunks;
mod common;
mod gss;
mod hostile;
mod shapes_prop;
