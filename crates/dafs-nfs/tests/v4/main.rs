//! Sessions of NFSv4.1, driven with hand-built compounds and without sockets.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod back_channel;
mod clients;
mod common;
mod compounds;
mod data_server;
mod sequence;
