//! One seed, one world: the shipped server and client code over a simulated network, store and
//! clock, with every answer compared with a model.
//!
//! A world has one server and a few clients that connect, do random operations on shared files and
//! on trees of their own, lose their connections at any byte, learn of it in their own time, and
//! start again. What a client sees must be explainable: an answered write is visible to later
//! reads; one whose connection broke may be there, partly or not; nothing of another file or client
//! shows; names and attributes are never torn. When the world has come to rest the server holds
//! nothing any more, and a fresh session reads everything once again.
//!
//! Invariants
//! * A world is one thread. Nothing in it reads a clock, an environment or a source of randomness
//!   but its seed.
//! * The same options give the same digest, or the same violation.

#![forbid(unsafe_code)]

mod actor;
mod audit;
mod common;
pub mod crash;
mod disk;
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
pub use plan::{Danger, Profile, WorldOptions};
pub use world::{Failure, Report, Violation, check, run};
