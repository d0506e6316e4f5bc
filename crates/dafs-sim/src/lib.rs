//! One seed, one world: the shipped server and client code over a simulated network, store and
//! clock. Models check every answer.
//!
//! A world has one server and a few clients. They connect, do random operations on shared files and
//! on trees of their own, lose their connections at any byte, notice it after a delay, and start
//! again. The model must explain every answer:
//!
//! * Later reads see an answered write.
//! * A write whose connection broke may be there, partly or not at all.
//! * A read never shows bytes of another file or client.
//! * Names and attributes are never torn.
//!
//! In worlds of optimistic reads the clients also read from memory that the server shows, mapped or by
//! RDMA, and the server ends and starts again.
//!
//! When the world has come to rest the server holds no state, and a fresh session reads everything
//! once again.
//!
//! Invariants
//! * A world is one thread, but for those that own life pages, which only wait. It reads no clock, no
//!   environment and no source of randomness but its seed.
//! * The same options give the same digest, or the same violation.

#![forbid(unsafe_code)]

mod actor;
mod audit;
mod common;
pub mod crash;
mod disk;
mod exposure;
mod limits;
pub mod model;
pub mod pattern;
mod plan;
mod pool;
mod records;
mod server;
pub mod state;
mod store;
mod world;

pub use common::WorkCounts;
pub use plan::{Danger, ExposureDanger, Profile, WorldOptions};
pub use world::{Failure, Report, Violation, check, run};
