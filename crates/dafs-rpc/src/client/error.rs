//! The reasons why a call has no results.

use dafs_wire::rpc::{AcceptStatus, RejectStatus};
use std::io;
use thiserror::Error;

/// The reason why a call has no results.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CallError {
    /// There is no security context with the server (RPCSEC_GSS). The text says why, and what to do.
    #[error("no security context with the server: {0}")]
    Context(String),
    /// The server accepted the call but did not execute it.
    #[error("the server did not carry the call out: {0:?}")]
    NotDone(AcceptStatus),
    /// The server denied the call.
    #[error("the server refused the call: {0:?}")]
    Denied(RejectStatus),
    /// The reply cannot be decoded.
    #[error("the server's answer is malformed")]
    Malformed,
    /// The timeout expired before a reply arrived. The server may have executed the call, or may
    /// still execute it.
    #[error("the server did not answer in time")]
    TimedOut,
    /// The connection has ended. The server may have executed the call.
    #[error("the connection to the server has ended: {0}")]
    Disconnected(String),
    /// More calls are outstanding than the options allow.
    #[error("too many calls are unanswered")]
    TooMany,
    /// The arguments make a record that exceeds the limit.
    #[error("arguments of {0} bytes are too long for one record")]
    TooLong(usize),
    /// The server could not use the chunks of the call, or its reply did not fit them (ERR_CHUNK of
    /// RPC-over-RDMA).
    #[error("the server could not use the memory offered, or its reply did not fit there")]
    Chunks,
    /// The request is invalid.
    #[error("the request cannot be sent: {0}")]
    Request(&'static str),
    /// The reply is not protected with the keys of the call's security context. A party may have
    /// changed it on its way. The server may have executed the call.
    #[error(
        "the answer was not made with the keys of the security context: somebody may have changed it \
         on its way"
    )]
    Unverified,
    /// The client has no memory for the results.
    #[error("no memory for the results: {0}")]
    NoMemory(io::ErrorKind),
}
