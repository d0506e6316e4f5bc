//! Scenarios over the whole service with files in memory: one file per subject.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod appends;
mod beside_layouts;
mod clients;
mod common;
mod crowds;
mod delegations;
mod delegations_prop;
mod durable;
mod exposure;
mod fences;
mod hand_over;
mod kept_locks;
mod layouts;
mod layouts_after_restart;
mod locks;
mod names;
mod nlm;
mod opens;
mod own_writes;
mod recovery;
mod replies;
mod share_keys;
mod shares_prop;
mod small_exposure;
mod spread;
mod stateless;
mod threads;
mod undo;
mod waits;
mod wide_recalls;
