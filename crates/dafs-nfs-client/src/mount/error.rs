//! Errors of a mount, worded for the person who must act.

use super::security::SecurityFlavour;
use super::url::NfsUrlError;
use crate::error::NfsError;
use dafs_rpc::client::CallError;
use dafs_wire::nfs4::Status;
use dafs_wire::rpc::{AuthStatus, RejectStatus};
use dafs_wire::xdr::XdrError;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;

/// The reason why an operation on a mount failed.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum MountError {
    /// An invalid argument: nothing was sent.
    #[error("{0}")]
    Argument(&'static str),
    /// The mount could not be made.
    #[error("cannot mount from {server}: {reason}")]
    Connect {
        /// The server as the user named it.
        server: Arc<str>,
        /// The cause and the remedy.
        reason: Arc<str>,
    },
    /// There are no tickets for the server, or the server does not accept them.
    #[error("Kerberos: {0}")]
    Kerberos(Arc<str>),
    /// The server is unreachable, and did not come back in time.
    #[error(
        "the server at {server} has not answered for {after:?} ({reason}); check it, then retry"
    )]
    Lost {
        /// The server.
        server: Arc<str>,
        /// The last error.
        reason: Arc<str>,
        /// The timeout of the retries.
        after: Duration,
    },
    /// There is no memory for transfers, or it could not be registered.
    #[error("no memory for transfers: {0}")]
    Memory(Arc<str>),
    /// The path belongs to no export, and NFSv3 can only mount exports.
    #[error("the server exports nothing at {path}; it exports {exports}")]
    NotExported {
        /// The path.
        path: Arc<str>,
        /// The server's exports.
        exports: Arc<str>,
    },
    /// The server lost an open, and refused to reclaim it.
    #[error("the server lost an open file and refuses it now: {}; open it again", .0.sentence())]
    OpenLost(Status),
    /// The server broke the protocol in an answer.
    #[error("the server's answer cannot be used: {0}; report this to its operator")]
    Protocol(Arc<str>),
    /// The server refused an operation.
    #[error("{operation}: {} ({})", status.sentence(), status.name())]
    Refused {
        /// The operation.
        operation: &'static str,
        /// The server's status; the codes of NFSv3 stand for those of NFSv4 with the same meaning.
        status: Status,
    },
    /// The server rejected the RPC call.
    #[error("the server refused the call: {0}")]
    Rejected(CallError),
    /// The server refuses all calls of the mount's flavour from this host and port.
    #[error(
        "the server at {server} refuses calls with sec={uses} from this host or port: see whom it lets \
         in, or add {add} to the URL if it wants Kerberos"
    )]
    TooWeak {
        /// The server.
        server: Arc<str>,
        /// The flavour of the mount.
        uses: SecurityFlavour,
        /// The option to try.
        add: &'static str,
    },
    /// Too many symbolic links in one path.
    #[error("more than {0} symbolic links in one path; it probably leads in a circle")]
    SymlinkLoop(u32),
    /// A URL that cannot be parsed.
    #[error(transparent)]
    Url(#[from] NfsUrlError),
    /// The server lost data that it had acknowledged as unstable.
    #[error("the server lost data that was written but not committed; write it again")]
    WritesLost,
    /// The server takes other security flavours here than the mount uses.
    #[error("the server at {server} takes {takes} here, and this mount uses {uses}; {remedy}")]
    WrongFlavour {
        /// The server.
        server: Arc<str>,
        /// The names of the flavours that it takes.
        takes: Arc<str>,
        /// The flavour of the mount.
        uses: SecurityFlavour,
        /// The option to add to the URL.
        remedy: Arc<str>,
    },
    /// A write made no progress although the server reported success.
    #[error("the server accepted no byte of a write and gave no reason")]
    WriteZero,
}

/// Shorthand for results of this module.
pub type Result<T, E = MountError> = std::result::Result<T, E>;

impl MountError {
    /// The status that the server answered with.
    pub fn status(&self) -> Option<Status> {
        match self {
            Self::Refused { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// True when the server cannot be reached, so that other operations will fail too.
    pub fn is_fatal(&self) -> bool {
        matches!(
            self,
            Self::Connect { .. } | Self::Kerberos(_) | Self::Lost { .. } | Self::TooWeak { .. }
        )
    }

    /// The error for memory that a lost server may still write.
    pub(crate) fn spoiled() -> Self {
        Self::Memory(
            "the connection was lost while the server was writing to shared memory; give that \
             memory up and read again into other"
                .into(),
        )
    }

    /// The error for tickets that are missing or refused.
    pub(crate) fn kerberos(reason: impl std::fmt::Display) -> Self {
        Self::Kerberos(reason.to_string().into())
    }

    /// The error for a call that the server rejected.
    pub(crate) fn rejected(error: CallError) -> Self {
        match error {
            CallError::Context(reason) => Self::kerberos(reason),
            error => Self::Rejected(error),
        }
    }

    pub(crate) fn protocol(reason: impl std::fmt::Display) -> Self {
        Self::Protocol(reason.to_string().into())
    }
}

impl From<XdrError> for MountError {
    fn from(error: XdrError) -> Self {
        Self::protocol(error)
    }
}

impl From<NfsError> for MountError {
    fn from(error: NfsError) -> Self {
        match error {
            NfsError::Status { operation, status } => Self::Refused { operation, status },
            // The numbers are the same where the meaning is; JUKEBOX is DELAY.
            NfsError::Status3 { procedure, status } => {
                Self::Refused { operation: procedure, status: Status::from_u32(status as u32) }
            }
            // Servers refuse hosts and ports without access in this way.
            NfsError::Call(CallError::Denied(RejectStatus::Auth(AuthStatus::TooWeak))) => {
                Self::Refused { operation: "calls from this host or port", status: Status::Access }
            }
            NfsError::Call(error) => Self::rejected(error),
            NfsError::Local(reason) => Self::Argument(reason),
            other => Self::protocol(other),
        }
    }
}
