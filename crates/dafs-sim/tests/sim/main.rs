//! Worlds of broken connections and of crashes. `state.rs` is a binary of its own, because it sets
//! the panic hook of its process.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod crashes;
mod optimistic;
mod worlds;
