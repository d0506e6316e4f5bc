//! Errors for Python: `OSError` and its subclasses by error number, and classes of our own where a
//! program must act differently.

use dafs_client::{Error, LockError};
use pyo3::create_exception;
use pyo3::exceptions::{PyBlockingIOError, PyOSError, PyTimeoutError, PyValueError};
use pyo3::prelude::*;

create_exception!(dafs, ForkedError, PyOSError, "Made before a fork: open it again in the child.");
create_exception!(
    dafs,
    WritesLostError,
    PyOSError,
    "The server lost data that was written and not committed: write it again."
);
create_exception!(
    dafs,
    InDoubtError,
    PyOSError,
    "It may or may not have been done: the connection was lost, and with it the answer."
);
create_exception!(
    dafs,
    NotSentError,
    PyTimeoutError,
    "Not done and never will be, because it could not be sent in time: safe to try again."
);
create_exception!(dafs, LockedError, PyBlockingIOError, "Somebody else has the lock.");
create_exception!(
    dafs,
    BrokenLockError,
    PyOSError,
    "The holder of the lock has failed and may have left the data half changed."
);

/// The exception for an error of the client library.
pub(crate) fn raise(error: Error) -> PyErr {
    with_name(error, None)
}

/// As [`raise`], with the name of the file.
pub(crate) fn raise_for(path: &Bound<'_, PyAny>) -> impl FnOnce(Error) -> PyErr {
    let path = path.clone().unbind();
    move |error| with_name(error, Some(path))
}

fn with_name(error: Error, path: Option<Py<PyAny>>) -> PyErr {
    if let Some(raised) = crate::wait::raised() {
        return raised;
    }
    let (errno, text) = (error.to_errno(), error.to_string());
    match error {
        Error::Url(_) => PyValueError::new_err(text),
        Error::Forked => ForkedError::new_err((errno, text)),
        Error::WritesLost | Error::DelegationLost => WritesLostError::new_err((errno, text)),
        Error::InDoubt { .. } => InDoubtError::new_err((errno, text)),
        Error::NotSent { .. } => NotSentError::new_err((errno, text)),
        _ => match path {
            Some(path) => PyOSError::new_err((errno, text, path)),
            None => PyOSError::new_err((errno, text)),
        },
    }
}

/// The exception for a failed lock request.
pub(crate) fn raise_lock(error: LockError) -> PyErr {
    if let Some(raised) = crate::wait::raised() {
        return raised;
    }
    let text = error.to_string();
    match error {
        LockError::Held(_) => LockedError::new_err((EAGAIN, text)),
        LockError::Broken(_) => BrokenLockError::new_err((EIO, text)),
        LockError::Other(error) => raise(error),
        _ => PyOSError::new_err((EIO, text)),
    }
}

// As in Linux.
const EIO: i32 = 5;
const EAGAIN: i32 = 11;
