//! The client on RDMA against a scripted server, over the simulated network.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod back;
mod calls;
mod hostile;
mod real;
mod world;
