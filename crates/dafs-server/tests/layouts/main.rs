//! Layouts over DAFS: clients made of raw messages ask a server where files lie, and read and write at its
//! data servers by themselves, over iWARP.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod harness;
mod holders;
mod late;
mod recalls;
mod refusals;
mod stripes;
