//! What programs have written and the server has not made stable yet. It is kept until it is, so that a
//! server that was started anew in between is given it again, and no program hears of that.
//!
//! | module | what it does |
//! |---|---|
//! | `pieces` | what is kept of one file, by its place in it |
//! | `memory` | how much that may be in all |
//! | `file` | writing to a file, making it stable, writing it again |
//! | `server` | what the server does for that |
//!
//! Invariants
//! * Unstable data is kept before the write is answered, and dropped when a COMMIT sent later tells that
//!   the server has made it stable, or when everybody who has the file open is going to be told that it
//!   is lost.
//! * What is written again is never older than what the server has been given by this mount: no write of
//!   the file and no change of its size is under way meanwhile.
//! * It is not written over what others wrote under a lock: what is not stable when one is given up is not
//!   written again, and nothing is when one was lost.

mod file;
mod memory;
mod pieces;
mod server;

pub(crate) use self::file::{KeptFile, Seen};
pub(crate) use self::server::{Kept, Remote};

#[cfg(test)]
mod tests;
