//! The striped store, with stripes and with copies.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod advice;
mod away;
mod behaviour;
mod common;
mod copies;
mod copies_leaving;
mod copies_lost;
mod copies_prop;
mod moving;
mod scrub;
mod stripes;
