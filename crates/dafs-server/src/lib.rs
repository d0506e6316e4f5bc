//! The server: DAFS sessions over direct access transports, reactors, configuration, authentication.
//!
//! Invariants
//! * [`engine`] is free of clocks, threads and sockets; only [`Server`] has them.
//! * Semantics live in `dafs-service`; nothing here decides what a file operation means.

pub mod auth;
pub mod config;
pub mod engine;
pub mod limits;
pub mod pool;
