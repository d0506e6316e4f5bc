//! The C library: its header, and programs in C that use it.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod c;
mod header;
