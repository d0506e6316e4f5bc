//! Why undo logs cannot be read, and what the administrator can do.

use std::io;
use std::path::PathBuf;
use thiserror::Error;

/// How to go on without a log.
const LEAVE: &str = "to leave that file as it is, move the log and the list undo.index away and say \
                     `dafs accept-loss undo.index`";

/// Why an undo log cannot be read.
#[derive(Debug, Error)]
pub enum UndoError {
    /// The disk.
    #[error("the undo log cannot be read: {0}")]
    Io(#[from] io::Error),
    /// A log does not contain what was written to it.
    #[error(
        "{} is damaged at byte {at}; it holds what a lock's failed holder changed in a file. Restore \
         it from a copy; or {LEAVE}", path.display()
    )]
    Damaged {
        /// The log, as it was.
        path: PathBuf,
        /// Where the damage begins.
        at: u64,
    },
    /// A damaged log of an earlier version of the server, which kept no list.
    #[error(
        "{} is damaged at byte {}; an earlier version wrote it to hold what a lock's failed holder \
         changed in a file. Restore it from a copy; or move it away, and that file stays as it is, half \
         changed", .0.display(), .1
    )]
    DamagedEarlier(PathBuf, u64),
    /// The copy that a log refers to is missing or changed.
    #[error(
        "{} is missing or was cut; it is the copy of a file that a lock's failed holder has changed, \
         for the log {}. Restore it; or {LEAVE}", copy.display(), log.display()
    )]
    Copy {
        /// The copy.
        copy: PathBuf,
        /// The log.
        log: PathBuf,
    },
    /// A log on the list is missing.
    #[error(
        "{} is missing, or another log has its name; it holds what a lock's failed holder changed in \
         a file. Restore it from a copy; or {LEAVE}", .0.display()
    )]
    Missing(PathBuf),
    /// A log has fewer records than before.
    #[error(
        "{} is an older copy of itself; it holds only a part of what a lock's failed holder changed in a \
         file. Put the latest one in its place; or {LEAVE}", .0.display()
    )]
    Older(PathBuf),
    /// A log is in use and not on the list.
    #[error(
        "{} does not name {}, so it is an older copy of itself, or that log is none of this server's. \
         Put the latest list in its place, or move such a log away. Or move the list away and say \
         `dafs accept-loss undo.index`, to use the logs that are there", list.display(), log.display()
    )]
    OlderList {
        /// The list.
        list: PathBuf,
        /// The log.
        log: PathBuf,
    },
    /// A log of an earlier version of the server, where there is a list.
    #[error(
        "{} is of an earlier version, which put it there without the list undo.index; it holds what a \
         lock's failed holder changed in a file. Move undo.index away and say `dafs accept-loss \
         undo.index`, and keep the log: then that is undone", .0.display()
    )]
    Earlier(PathBuf),
    /// The list of the logs is damaged.
    #[error(
        "{} is damaged; it says which logs there are of what locks have to undo. Restore it from a \
         copy; or move it away and say `dafs accept-loss undo.index`, to use those that are there",
        .0.display()
    )]
    List(PathBuf),
    /// A log is of another version of the server.
    #[error(
        "{} has format {version}, which this server does not know; start the version that wrote it; \
         or {LEAVE}", path.display()
    )]
    Version {
        /// The log, as it was.
        path: PathBuf,
        /// Its format.
        version: u32,
    },
}
