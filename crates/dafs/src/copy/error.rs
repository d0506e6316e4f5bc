//! Errors of one object of a tree, and their effect on the rest.

use crate::failure::{Failure, words};
use crate::remote::Error;
use std::fmt::Display;

/// The reason why an object was not copied.
#[derive(Debug)]
pub(super) enum CopyError {
    /// A problem of this object: it is reported and counted, and the rest goes on.
    Object(String),
    /// The end of the whole copy.
    Stop(Failure),
    /// The copy is being ended; there is no more to report.
    Stopped,
}

pub(super) type Outcome<T = ()> = Result<T, CopyError>;

/// The server's error about `what`.
pub(super) fn remote(what: impl Display, error: &Error) -> CopyError {
    match error.is_fatal() {
        true => CopyError::Stop(Failure::remote(what, error)),
        false => CopyError::Object(format!("{what}: {}", words(error))),
    }
}

/// This system's error about `what`.
pub(super) fn here(what: impl Display, error: impl Into<std::io::Error>) -> CopyError {
    let error = error.into();
    let remedy = match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE) => "; raise the limit of open files (ulimit -n)",
        Some(libc::ENOSPC | libc::EDQUOT) => "; free some space or choose another place",
        _ => "",
    };
    CopyError::Object(format!("{what}: {error}{remedy}"))
}
