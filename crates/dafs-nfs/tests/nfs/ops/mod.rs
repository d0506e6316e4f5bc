//! Operations on files as NFSv4 clients see them, over a store in memory and over a local
//! directory.

#![allow(clippy::expect_used, reason = "a failed unwrap is a failed test")]

mod attributes;
mod away;
mod copies;
mod delegations;
mod directories;
mod files;
mod flex;
mod guards;
pub(crate) mod helper;
mod lanes;
mod layout_stats;
pub(crate) mod layouts;
mod layouts_again;
mod locks;
pub(crate) mod misses;
mod persistent;
mod persistent_bounds;
mod posix;
mod ranges;
mod wide_recalls;
