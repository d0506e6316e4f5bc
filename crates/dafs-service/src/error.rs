//! Why the service refused.

use dafs_store::StoreError;
use thiserror::Error;

/// An error in terms that every protocol can map to its own codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say it")]
pub enum ServiceError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the state-id was never given out, or belongs to another client or file")]
    BadStateId,
    #[error("the state-id is of an earlier run of the server, or was given back")]
    StaleStateId,
    #[error("the lease has ended and the state is gone")]
    Expired,
    #[error("a share reservation of another open forbids it")]
    ShareDenied,
    #[error("the open does not allow this access")]
    OpenMode,
    #[error("an open forbids the removal")]
    DeleteDenied,
    #[error("this client name belongs to another principal")]
    ClientInUse,
    #[error("a limit of the server is reached")]
    Resource,
    #[error("not supported")]
    NotSupported,
}
