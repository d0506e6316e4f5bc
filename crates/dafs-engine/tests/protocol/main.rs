//! The server's engine against clients made of raw messages, over the simulated network: the rules
//! of the protocol, and the effect of violations.
//!
//! There is one file per subject. `common` has the world that all of them use.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod append;
mod back;
mod batch;
mod cancel;
mod certificates;
mod chains;
mod common;
mod credentials;
mod credits;
mod data;
mod delegations;
mod disk;
mod durable;
mod expose;
mod faults;
mod fences;
mod files;
mod gss;
mod hints;
mod interrupted;
mod keys;
mod locks;
mod malformed;
mod opens;
mod padding;
mod procedures;
mod pulls;
mod reclaims;
mod responses;
mod sessions;
mod shared_state;
mod slow_end;
mod undo;
mod unlinked;
