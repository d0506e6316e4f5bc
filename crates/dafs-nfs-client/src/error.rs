//! Errors between a client and a server.

use dafs_wire::nfs4::{FattrError, OpNum, Status};
use dafs_wire::xdr::XdrError;
use std::io;
use thiserror::Error;

/// The reason why an operation has no result.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NfsError {
    /// The server refused an NFSv4 operation.
    #[error("{operation}: {status}")]
    Status {
        /// The operation; `COMPOUND` when the compound as a whole was refused.
        operation: &'static str,
        /// The server's status.
        status: Status,
    },
    /// The server refused an NFSv3 procedure.
    #[error("{procedure}: {status:?}")]
    Status3 {
        /// The procedure.
        procedure: &'static str,
        /// The server's status.
        status: dafs_wire::nfs3::Status,
    },
    /// The call itself failed: the connection ended, or the server rejected the call.
    #[error("the call failed: {0}")]
    Call(#[from] dafs_rpc::client::CallError),
    /// The server could not be reached.
    #[error("the server cannot be reached: {0}")]
    Io(#[from] io::Error),
    /// The server's answer cannot be decoded.
    #[error("the server's answer is malformed: {0}")]
    Malformed(#[from] XdrError),
    /// Attributes in the server's answer cannot be decoded.
    #[error("the server's answer is malformed: {0}")]
    Attributes(#[from] FattrError),
    /// The server's answer is well formed and does not match the request.
    #[error("the server's answer does not fit the request: {0}")]
    Unexpected(&'static str),
    /// The client cannot do what was asked for.
    #[error("{0}")]
    Local(&'static str),
}

impl NfsError {
    /// The status with which an operation was refused.
    pub fn status(&self) -> Option<Status> {
        match self {
            Self::Status { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// The status with which an NFSv3 procedure was refused.
    pub fn status3(&self) -> Option<dafs_wire::nfs3::Status> {
        match self {
            Self::Status3 { status, .. } => Some(*status),
            _ => None,
        }
    }

    pub(crate) fn refused(number: u32, status: Status) -> Self {
        let operation = OpNum::from_u32(number).map_or("ILLEGAL", OpNum::name);
        Self::Status { operation, status }
    }
}
