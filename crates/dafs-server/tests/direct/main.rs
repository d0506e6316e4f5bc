//! Mounts that read and write at data servers themselves (pNFS): what goes where, what becomes of it
//! when a data server fails, when the layout is recalled, and when a server tells nonsense.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod dafs;
mod drivers;
mod failures;
mod fences;
mod harness;
mod hostile;
mod io;
mod late;
mod tamper;
mod told;
