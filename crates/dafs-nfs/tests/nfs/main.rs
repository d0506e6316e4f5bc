//! The NFS front ends: handlers without sockets, and servers over real connections.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod certified;
mod common;
mod ops;
mod sockets;
mod transport;
mod v3;
mod v4;
