//! NFSv4 statuses for errors of the service and its stores (RFC 8881 15, RFC 7862 11, RFC 8276
//! 8.4).
//!
//! Invariants
//! * Statuses that NFSv4.1 has made obsolete (RESOURCE, STALE_STATEID) are never sent (RFC 8881
//!   15.1.16).
//! * "Must wait" is no status: it moves the compound to a thread that may wait.

use dafs_service::ServiceError;
use dafs_store::StoreError;
use dafs_wire::nfs4::Status;
use dafs_wire::xdr::XdrError;

/// The outcome of an operation. On success its result body follows the status in the reply.
pub(crate) type OpResult = Result<(), OpError>;

/// The reason why an operation has no ordinary result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OpError {
    /// It failed, and its output is truncated.
    Status(Status),
    /// It failed, and its output is the body that belongs to this status.
    WithBody(Status),
    /// It must wait. Its output is truncated, and it runs again where waiting is allowed.
    Wait,
    /// It must wait for the journal, on any thread. Its output is truncated, and it runs again when
    /// the gate has opened.
    Later,
    /// It may wait for machines of another store than those of its thread's lane. It runs again on
    /// a thread of that lane.
    Elsewhere,
    /// It has done a piece, and other jobs get their turns before the next one. Its output is
    /// truncated, and it runs again.
    NextTurn,
}

impl From<Status> for OpError {
    fn from(status: Status) -> Self {
        Self::Status(status)
    }
}

impl From<XdrError> for OpError {
    fn from(_: XdrError) -> Self {
        Self::Status(Status::BadXdr)
    }
}

impl From<StoreError> for OpError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::WouldBlock => Self::Wait,
            error => Self::Status(of_store(error)),
        }
    }
}

impl From<ServiceError> for OpError {
    fn from(error: ServiceError) -> Self {
        match error {
            ServiceError::WouldWait | ServiceError::Store(StoreError::WouldBlock) => Self::Wait,
            error => Self::Status(of(error)),
        }
    }
}

/// Returns the status for an error of the service.
pub(crate) fn of(error: ServiceError) -> Status {
    match error {
        ServiceError::Store(error) => of_store(error),
        // A state-id of another run looks like one that was never assigned (RFC 8881 15.1.16.5).
        ServiceError::BadStateId | ServiceError::StaleStateId => Status::BadStateId,
        ServiceError::OldStateId => Status::OldStateId,
        ServiceError::Expired => Status::Expired,
        ServiceError::DelegRevoked => Status::DelegRevoked,
        ServiceError::AdminRevoked => Status::AdminRevoked,
        ServiceError::ShareDenied => Status::ShareDenied,
        ServiceError::OpenMode => Status::OpenMode,
        // A share key of DAFS excludes callers without it until its holders close the file. So it is
        // a conflict of opens and no lack of rights: ACCESS could make a client remember that the
        // user has none (RFC 8881 15.1.8.4).
        ServiceError::KeyMismatch => Status::ShareDenied,
        ServiceError::DeleteDenied => Status::FileOpen,
        ServiceError::LocksHeld => Status::LocksHeld,
        // A kernel client reports it as an I/O error. With LOCKED it would retry, but it has no
        // means to repair the data.
        ServiceError::LockBroken => Status::Io,
        ServiceError::LockRange => Status::LockRange,
        ServiceError::ClientInUse => Status::ClidInUse,
        ServiceError::StaleClientId => Status::StaleClientId,
        ServiceError::ClientIdBusy => Status::ClientIdBusy,
        ServiceError::NoClient => Status::NoEnt,
        ServiceError::NotSame => Status::NotSame,
        ServiceError::NotPrincipal => Status::Perm,
        ServiceError::WrongCredential => Status::WrongCred,
        ServiceError::Grace => Status::Grace,
        ServiceError::NoGrace => Status::NoGrace,
        ServiceError::ReclaimBad => Status::ReclaimBad,
        ServiceError::ReclaimConflict => Status::ReclaimConflict,
        ServiceError::CompleteAlready => Status::CompleteAlready,
        // NFSv4.1 has no RESOURCE. Tables become free again, so the client is told to retry.
        ServiceError::Delay | ServiceError::WouldWait | ServiceError::Resource => Status::Delay,
        ServiceError::NotSupported => Status::NotSupp,
        ServiceError::LayoutUnavailable => Status::LayoutUnavailable,
        ServiceError::LayoutTryLater => Status::LayoutTryLater,
        ServiceError::LayoutTooBig => Status::TooSmall,
        ServiceError::RecallConflict => Status::RecallConflict,
        ServiceError::BadLayout => Status::BadLayout,
        ServiceError::Fenced => Status::Access,
        _ => Status::ServerFault,
    }
}

/// Returns the status for an error of a store.
pub(crate) fn of_store(error: StoreError) -> Status {
    match error {
        StoreError::Access => Status::Access,
        StoreError::BadHandle => Status::BadHandle,
        StoreError::BadType => Status::WrongType,
        StoreError::Busy | StoreError::TooManyOpen | StoreError::WouldBlock => Status::Delay,
        StoreError::CrossDevice => Status::XDev,
        StoreError::BadCookie => Status::BadCookie,
        StoreError::Exists => Status::Exist,
        StoreError::FileTooBig => Status::FBig,
        StoreError::Invalid => Status::Inval,
        // NFSv4.1 has no NXIO for devices (RFC 8881 15.1.16.3).
        StoreError::Io | StoreError::NoDevice => Status::Io,
        StoreError::IsDirectory => Status::IsDir,
        StoreError::Symlink => Status::Symlink,
        StoreError::NameTooLong => Status::NameTooLong,
        StoreError::NoSpace => Status::NoSpc,
        StoreError::NotDirectory => Status::NotDir,
        StoreError::NotEmpty => Status::NotEmpty,
        StoreError::NotFound => Status::NoEnt,
        StoreError::NoXattr => Status::NoXattr,
        StoreError::NotOwner => Status::Perm,
        StoreError::NotSupported => Status::NotSupp,
        // RFC 7862 15.11.3.
        StoreError::PastEnd => Status::Nxio,
        StoreError::Quota => Status::DQuot,
        StoreError::ReadOnly => Status::RoFs,
        StoreError::Stale | StoreError::MovedOut => Status::Stale,
        StoreError::TooManyLinks => Status::MLink,
        StoreError::XattrTooBig => Status::Xattr2Big,
        _ => Status::ServerFault,
    }
}

/// Returns the outcome for operations that have no PERM (RFC 8881 table 6). A caller that is not
/// the owner gets ACCESS.
pub(crate) fn without_perm(error: ServiceError) -> OpError {
    match OpError::from(error) {
        OpError::Status(Status::Perm) => OpError::Status(Status::Access),
        error => error,
    }
}

/// Returns the outcome for I/O. The share reservation of another open looks like a mandatory lock
/// (RFC 8881 9.7), as its share key does, and a lack of rights is ACCESS.
pub(crate) fn of_io(error: ServiceError) -> OpError {
    match error {
        ServiceError::ShareDenied | ServiceError::KeyMismatch => OpError::Status(Status::Locked),
        error => without_perm(error),
    }
}

/// Returns the outcome for SETATTR. The rules for a size are those for a write, but PERM stays. An
/// object without a size of its own has the wrong type (RFC 8881 table 6).
pub(crate) fn of_setattr(error: ServiceError) -> OpError {
    match error {
        ServiceError::ShareDenied | ServiceError::KeyMismatch => OpError::Status(Status::Locked),
        ServiceError::Store(
            StoreError::IsDirectory | StoreError::Symlink | StoreError::BadType,
        ) => OpError::Status(Status::WrongType),
        error => OpError::from(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_obsolete_status_is_answered() {
        assert_eq!(of(ServiceError::StaleStateId), Status::BadStateId);
        assert_eq!(of(ServiceError::Resource), Status::Delay);
        assert_eq!(of_store(StoreError::NoDevice), Status::Io);
    }

    #[test]
    fn waiting_is_no_status() {
        let errors = [ServiceError::WouldWait, ServiceError::Store(StoreError::WouldBlock)];
        for error in errors {
            assert!(matches!(OpError::from(error), OpError::Wait));
            assert!(matches!(of_io(error), OpError::Wait));
        }
    }
}
