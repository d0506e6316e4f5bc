//! From the end of a call to the result for the caller.

use crate::append;
use crate::core::{Done, Failure};
use crate::error::{Error, Result};
use crate::pending::Moved;
use crate::uncommitted::{Mark, Uncommitted};
use dafs_wire::dafs::{Outcome, Reply};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The error for the end of the session, or of one call by itself.
pub(crate) fn ended(failure: &Failure, server: &Arc<str>) -> Error {
    let server = server.clone();
    match failure {
        Failure::Deadline(after) => Error::Deadline { server, after: *after },
        Failure::Unsent(after) => Error::NotSent { server, after: *after },
        Failure::Protocol(reason) | Failure::Corrupt(reason) => {
            Error::Protocol { server, reason: reason.clone() }
        }
        Failure::Canceled => Error::Canceled,
        Failure::Inaccessible(_) => Error::BadMemory,
        Failure::DelegationLost => Error::DelegationLost,
        Failure::Unsendable(reason) => Error::Unsendable(reason.clone()),
        Failure::Memory(reason) => Error::Memory(reason.clone()),
        other => Error::Lost { server, reason: other.to_string().into() },
    }
}

/// The bytes that a read or write moved.
pub(crate) fn moved(done: Done, server: &Arc<str>) -> Result<Moved> {
    match done {
        Done::Read { bytes, end_of_file } => Ok(Moved { bytes: bytes as usize, end_of_file }),
        Done::Written { bytes, .. } => Ok(Moved { bytes: bytes as usize, end_of_file: false }),
        done => Err(failure_of(done, server)),
    }
}

/// The writes that a COMMIT under way is to make stable.
#[derive(Debug)]
pub(crate) struct CommitWatch {
    pub(crate) writes: Arc<Uncommitted>,
    /// The writes that were answered before it was sent.
    pub(crate) mark: Mark,
    /// True when it covers the whole file.
    pub(crate) whole: bool,
    /// Set to notify the cache of a loss.
    pub(crate) lost: Option<Arc<AtomicBool>>,
}

impl CommitWatch {
    /// Checks that it has made stable the writes that it was sent for.
    pub(crate) fn judge(&self, done: Done, server: &Arc<str>) -> Result<()> {
        let Done::Answered(reply) = done else { return Err(failure_of(done, server)) };
        let procedure = reply.procedure();
        let verifier = match reply.decode() {
            Ok(Outcome::Ok(Reply::Commit(reply))) => reply.verifier,
            Ok(Outcome::Error { status, .. }) => return Err(Error::Status { procedure, status }),
            _ => {
                let reason = "an answer of another kind".into();
                return Err(Error::Protocol { server: server.clone(), reason });
            }
        };
        if self.writes.committed(self.mark, verifier, self.whole) {
            return Ok(());
        }
        if let Some(lost) = &self.lost {
            // The cache may hold data that the server has lost.
            lost.store(true, Ordering::Release);
        }
        Err(Error::WritesLost)
    }
}

/// The offset of an append's data.
pub(crate) fn appended(done: Done, server: &Arc<str>) -> Result<u64> {
    let Done::Answered(reply) = done else { return Err(failure_of(done, server)) };
    append::appended(&reply, server)
}

/// As [`appended`], as the value of a group's completion.
pub(crate) fn appended_word(done: Done, server: &Arc<str>) -> Result<usize> {
    usize::try_from(appended(done, server)?).map_err(|_| Error::Protocol {
        server: server.clone(),
        reason: "an append behind all that this machine can count".into(),
    })
}

pub(crate) fn failure_of(done: Done, server: &Arc<str>) -> Error {
    match done {
        Done::Refused { procedure, status } => Error::Status { procedure, status },
        Done::InDoubt(procedure) => Error::InDoubt { server: server.clone(), procedure },
        Done::Lost(failure) => ended(&failure, server),
        Done::Answered(reply) => {
            Error::Status { procedure: reply.procedure(), status: reply.status() }
        }
        Done::Read { .. } | Done::Written { .. } => {
            Error::Protocol { server: server.clone(), reason: "an answer of another kind".into() }
        }
    }
}
