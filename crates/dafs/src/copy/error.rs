//! Errors of one object of a tree, and their effect on the rest.

use crate::failure::{Failure, words};
use crate::remote::{Error, Status};
use std::fmt::Display;

/// The reason why an object was not copied.
#[derive(Debug)]
pub(super) enum CopyError {
    /// A problem of this object: it is reported and counted, and the rest goes on.
    Object(String),
    /// As `Object`, because the file system of the copy is full or a quota is used up.
    NoSpace(String),
    /// The end of the whole copy.
    Stop(Failure),
    /// The copy is being ended; there is no more to report.
    Stopped,
}

pub(super) type Outcome<T = ()> = Result<T, CopyError>;

/// The server's error about `what`.
pub(super) fn remote(what: impl Display, error: &Error) -> CopyError {
    if error.is_fatal() {
        return CopyError::Stop(Failure::remote(what, error));
    }
    let text = format!("{what}: {}", words(error));
    match error.status() {
        Some(Status::NoSpc | Status::DQuot) => CopyError::NoSpace(text),
        _ => CopyError::Object(text),
    }
}

/// This system's error about `what`.
pub(super) fn here(what: impl Display, error: impl Into<std::io::Error>) -> CopyError {
    let error = error.into();
    match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE) => {
            CopyError::Object(format!("{what}: {error}; raise the limit of open files (ulimit -n)"))
        }
        Some(libc::ENOSPC | libc::EDQUOT) => {
            CopyError::NoSpace(format!("{what}: {error}; free some space or choose another place"))
        }
        _ => CopyError::Object(format!("{what}: {error}")),
    }
}
