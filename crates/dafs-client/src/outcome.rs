//! From how a call ended to what the caller is told.

use crate::append;
use crate::core::{Done, Failure};
use crate::error::{Error, Result};
use crate::pending::Moved;
use crate::uncommitted::{Mark, Uncommitted};
use dafs_wire::dafs::{Outcome, Reply};
use std::sync::Arc;

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
        Failure::Gone(_) => Error::BadMemory,
        Failure::DelegationLost => Error::DelegationLost,
        Failure::Unsendable(reason) => Error::Unsendable(reason.clone()),
        Failure::Memory(reason) => Error::Memory(reason.clone()),
        other => Error::Lost { server, reason: other.to_string().into() },
    }
}

/// What a read or write moved.
pub(crate) fn moved(done: Done, server: &Arc<str>) -> Result<Moved> {
    match done {
        Done::Read { bytes, end_of_file } => Ok(Moved { bytes: bytes as usize, end_of_file }),
        Done::Written { bytes, .. } => Ok(Moved { bytes: bytes as usize, end_of_file: false }),
        done => Err(failure_of(done, server)),
    }
}

/// Whether a COMMIT has made stable what it was sent for.
pub(crate) fn committed(
    done: Done,
    server: &Arc<str>,
    writes: &Uncommitted,
    mark: Mark,
    whole: bool,
) -> Result<()> {
    let Done::Answered(reply) = done else { return Err(failure_of(done, server)) };
    let procedure = reply.procedure();
    match reply.decode() {
        Ok(Outcome::Ok(Reply::Commit(reply))) => {
            match writes.committed(mark, reply.verifier, whole) {
                true => Ok(()),
                false => Err(Error::WritesLost),
            }
        }
        Ok(Outcome::Error { status, .. }) => Err(Error::Status { procedure, status }),
        _ => Err(Error::Protocol {
            server: server.clone(),
            reason: "an answer of another kind".into(),
        }),
    }
}

/// Where the data of an append begins.
pub(crate) fn appended(done: Done, server: &Arc<str>) -> Result<usize> {
    let Done::Answered(reply) = done else { return Err(failure_of(done, server)) };
    let offset = append::appended(&reply, server)?;
    usize::try_from(offset).map_err(|_| Error::Protocol {
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
