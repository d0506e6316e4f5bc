//! Why a call has no results.

use dafs_wire::rpc::{AcceptStatus, RejectStatus};
use std::io;
use thiserror::Error;

/// Why a call has no results.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CallError {
    /// The server let the call in and did not carry it out.
    #[error("the server did not carry the call out: {0:?}")]
    NotDone(AcceptStatus),
    /// The server did not let the call in.
    #[error("the server refused the call: {0:?}")]
    Denied(RejectStatus),
    /// The server's answer cannot be understood.
    #[error("the server's answer is malformed")]
    Malformed,
    /// There was no answer in time. The call may have been carried out or may still be.
    #[error("the server did not answer in time")]
    TimedOut,
    /// The connection has ended. The call may have been carried out.
    #[error("the connection to the server has ended: {0}")]
    Disconnected(String),
    /// More calls are unanswered than the options allow.
    #[error("too many calls are unanswered")]
    TooMany,
    /// The arguments make a record that is too long.
    #[error("arguments of {0} bytes are too long for one record")]
    TooLong(usize),
    /// The server could not use the memory that was offered with the call, or its reply did not
    /// fit what was offered for it (ERR_CHUNK of RPC-over-RDMA).
    #[error("the server could not use the memory offered, or its reply did not fit there")]
    Chunks,
    /// The request makes no sense.
    #[error("the request cannot be sent: {0}")]
    Request(&'static str),
    /// There is no memory for the results.
    #[error("no memory for the results: {0}")]
    NoMemory(io::ErrorKind),
}
