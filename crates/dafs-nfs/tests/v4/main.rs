//! Sessions of NFSv4.1, driven with hand-built compounds and without sockets.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod back_channel;
mod clients;
#[allow(dead_code, reason = "shared with the tests of operations, which use more of it")]
mod common;
mod compounds;
mod data_server;
mod sequence;
