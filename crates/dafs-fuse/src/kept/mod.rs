//! Retention of unstable writes: data that programs have written and the server has not made stable
//! yet. The mount retransmits it to a server that has restarted in between, so that programs see no
//! error.
//!
//! | module | what it does |
//! |---|---|
//! | `pieces` | the retained data of one file, by offset |
//! | `memory` | the bound of retained data in all |
//! | `pace` | when data is made stable early |
//! | `file` | writes to a file, commits, retransmission |
//! | `server` | the server's part in that |
//!
//! Invariants
//! * Unstable data is retained before the write is answered. It is dropped when a later COMMIT
//!   shows that it is stable, or when every user of the file is going to get an error for its loss.
//! * Retransmitted data is never older than what this mount has sent to the server: no write of the
//!   file and no change of its size is under way meanwhile.
//! * It does not overwrite data that others wrote under a lock: after an unlock unstable data is
//!   not retransmitted, and after the loss of a lock none is.

mod file;
mod memory;
mod pace;
mod pieces;
mod server;

pub(crate) use self::file::{RetainedFile, Seen};
pub(crate) use self::server::{Remote, RetainedFiles};

#[cfg(test)]
mod tests;
