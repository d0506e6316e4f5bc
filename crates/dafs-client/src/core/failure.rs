//! The reasons why a session ended, before the name of its server is added.

use dafs_mem::Inaccessible;
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;

/// The end of a session. Every operation still in flight fails with it.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum Failure {
    /// The application cancelled this call; the session goes on.
    #[error("the call was cancelled")]
    Canceled,
    /// The application has unmapped, or made read-only, memory that the call uses; the session goes
    /// on.
    #[error(transparent)]
    Inaccessible(#[from] Inaccessible),
    /// The data was cached under a delegation that is gone; the session goes on.
    #[error("the delegation that the data was kept by is gone")]
    DelegationLost,
    /// The application closed the session.
    #[error("the session was closed by this side")]
    Closed,
    /// The session could not be opened: the server refused, or cannot do what was asked.
    #[error("{0}")]
    Refused(Arc<str>),
    /// The call does not fit the current connection; the session goes on.
    #[error("{0}")]
    Unsendable(Arc<str>),
    /// A request was not answered in time.
    #[error("no answer within {0:?}")]
    Deadline(Duration),
    /// A request was not sent in time; the session goes on.
    #[error("not sent within {0:?}")]
    Unsent(Duration),
    /// The transport connection ended.
    #[error("{0}")]
    Lost(Arc<str>),
    /// No memory for messages.
    #[error("no memory for messages: {0}")]
    Memory(Arc<str>),
    /// The server broke the protocol.
    #[error("{0}")]
    Protocol(Arc<str>),
    /// A checksum did not match: the connection cannot be trusted.
    #[error("{0}")]
    Corrupt(Arc<str>),
}

impl Failure {
    pub(crate) fn lost(reason: impl Display) -> Self {
        Self::Lost(reason.to_string().into())
    }

    pub(crate) fn memory(reason: impl Display) -> Self {
        Self::Memory(reason.to_string().into())
    }

    pub(crate) fn protocol(reason: impl Display) -> Self {
        Self::Protocol(reason.to_string().into())
    }

    pub(crate) fn corrupt(reason: impl Display) -> Self {
        Self::Corrupt(reason.to_string().into())
    }

    pub(crate) fn unsendable(reason: impl Display) -> Self {
        Self::Unsendable(reason.to_string().into())
    }

    /// True when another connection may succeed.
    pub(crate) fn is_passing(&self) -> bool {
        matches!(self, Self::Deadline(_) | Self::Lost(_) | Self::Corrupt(_))
    }

    pub(crate) fn refused(reason: impl Display) -> Self {
        Self::Refused(reason.to_string().into())
    }
}
