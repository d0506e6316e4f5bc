//! Errors of the service.

use dafs_store::StoreError;
use thiserror::Error;

/// An error in terms that every protocol can map to its own codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say it")]
pub enum ServiceError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the state-id was never issued, or belongs to another client or file")]
    BadStateId,
    /// NFSv4.1 has no such status and answers with `BadStateId` (RFC 8881 15.1.16.5).
    #[error("the state-id is of an earlier run of the server, or was returned")]
    StaleStateId,
    #[error("the state-id has changed since; ask with its current sequence number")]
    OldStateId,
    #[error("the lease has ended and the state is gone")]
    Expired,
    #[error("the delegation was not returned in time and has been revoked")]
    DelegRevoked,
    #[error("an administrator has revoked the state")]
    AdminRevoked,
    #[error("a share reservation of another open forbids it")]
    ShareDenied,
    #[error("the open does not allow this access")]
    OpenMode,
    #[error("the file is open under a share key that the caller does not give")]
    KeyMismatch,
    #[error("an open forbids the removal")]
    DeleteDenied,
    #[error("byte ranges are still locked, or the file is still open, under this state-id")]
    LocksHeld,
    #[error("this client name belongs to another principal")]
    ClientInUse,
    #[error("no such client; its lease ended or the server has restarted")]
    StaleClientId,
    #[error("the client still has sessions or state")]
    ClientIdBusy,
    #[error("there is no confirmed record of this client to update")]
    NoClient,
    #[error("the verifier differs from that of the client's record")]
    NotSame,
    #[error("the caller is not the principal that owns the client's record")]
    NotPrincipal,
    #[error(
        "the client's record is protected: it takes this only from its principal, with integrity"
    )]
    WrongCredential,
    #[error("the server waits for clients to reclaim what they held before its restart")]
    Grace,
    #[error("the time to reclaim is over")]
    NoGrace,
    #[error("the server does not know that this client held anything")]
    ReclaimBad,
    #[error("the reclaimed state conflicts with that of another client")]
    ReclaimConflict,
    #[error("the client has already said that it reclaims nothing more")]
    CompleteAlready,
    /// Only for callers with `Wait::Never`: repeat the call with `Wait::Allowed`, on a thread that
    /// may block for about 100 ms and for the disk.
    #[error("the call must wait for another client or for the disk")]
    WouldWait,
    /// The client is to retry after a pause.
    #[error("a recall from another client is not answered yet")]
    Delay,
    #[error(
        "the bytes are under a lock that its holder's failure has broken; it is to be repaired"
    )]
    LockBroken,
    #[error("the range is only a part of a lock that is changed as a whole")]
    LockRange,
    #[error("a limit of the server is reached")]
    Resource,
    #[error("this client is fenced from the object")]
    Fenced,
    #[error("this file is read and written through this server alone")]
    LayoutUnavailable,
    #[error("no layout can be granted now; retry later")]
    LayoutTryLater,
    #[error("the layout has been recalled and must be returned first")]
    RecallConflict,
    #[error("the layout does not fit into the largest reply that the client accepts")]
    LayoutTooBig,
    #[error("no layout allows this")]
    BadLayout,
    #[error("not supported")]
    NotSupported,
}
