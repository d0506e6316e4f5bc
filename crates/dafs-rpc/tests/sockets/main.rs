//! Server and client over real sockets of this host.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod back;
mod calls;
mod common;
mod hostile;
