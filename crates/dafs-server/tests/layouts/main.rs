//! Layouts over DAFS: clients made of raw messages ask a server where files lie, and read and write at its
//! data servers by themselves, over iWARP.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

#[path = "../../../dafs-engine/tests/protocol/common/client.rs"]
#[allow(dead_code, unreachable_pub, reason = "what it can do more is for others")]
mod client;
mod harness;
mod holders;
mod late;
mod recalls;
mod refusals;
mod stripes;
