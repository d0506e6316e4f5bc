//! NFSv4 statuses for what the service and its stores say (RFC 8881 15, RFC 7862 11, RFC 8276 8.4).
//!
//! Invariants
//! * Statuses that NFSv4.1 has made obsolete (RESOURCE, STALE_STATEID) are never answered
//!   (RFC 8881 15.1.16).
//! * "Must wait" is no status: it moves the compound to a thread that may wait.

use super::compound::OpError;
use dafs_service::ServiceError;
use dafs_store::StoreError;
use dafs_wire::nfs4::Status;

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

/// The status for an error of the service.
pub(crate) fn of(error: ServiceError) -> Status {
    match error {
        ServiceError::Store(error) => of_store(error),
        // A state-id of another run looks like one that never was (RFC 8881 15.1.16.5).
        ServiceError::BadStateId | ServiceError::StaleStateId => Status::BadStateId,
        ServiceError::OldStateId => Status::OldStateId,
        ServiceError::Expired => Status::Expired,
        ServiceError::DelegRevoked => Status::DelegRevoked,
        ServiceError::AdminRevoked => Status::AdminRevoked,
        ServiceError::ShareDenied => Status::ShareDenied,
        ServiceError::OpenMode => Status::OpenMode,
        // No open of NFS asks for a key.
        ServiceError::KeyMismatch => Status::ShareDenied,
        ServiceError::DeleteDenied => Status::FileOpen,
        ServiceError::LocksHeld => Status::LocksHeld,
        // A kernel client reports it as an I/O error. With LOCKED it would ask again, and nothing
        // that it can do mends the data.
        ServiceError::LockBroken => Status::Io,
        ServiceError::LockRange => Status::LockRange,
        ServiceError::ClientInUse => Status::ClidInUse,
        ServiceError::StaleClientId => Status::StaleClientId,
        ServiceError::ClientIdBusy => Status::ClientIdBusy,
        ServiceError::NoClient => Status::NoEnt,
        ServiceError::NotSame => Status::NotSame,
        ServiceError::NotPrincipal => Status::Perm,
        ServiceError::Grace => Status::Grace,
        ServiceError::NoGrace => Status::NoGrace,
        ServiceError::ReclaimBad => Status::ReclaimBad,
        ServiceError::ReclaimConflict => Status::ReclaimConflict,
        ServiceError::CompleteAlready => Status::CompleteAlready,
        // RESOURCE is gone from 4.1. Tables become free again, so the client is to ask again.
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

/// The status for an error of a store.
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
        // NXIO of devices is gone from 4.1 (RFC 8881 15.1.16.3).
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

/// For operations that have no PERM (RFC 8881 table 6): what only an owner may do is denied to
/// others for lack of access.
pub(crate) fn without_perm(error: ServiceError) -> OpError {
    match OpError::from(error) {
        OpError::Status(Status::Perm) => OpError::Status(Status::Access),
        error => error,
    }
}

/// For I/O: a share reservation of another open looks like a mandatory lock (RFC 8881 9.7), and
/// rights are a matter of access.
pub(crate) fn of_io(error: ServiceError) -> OpError {
    match error {
        ServiceError::ShareDenied => OpError::Status(Status::Locked),
        error => without_perm(error),
    }
}

/// For SETATTR: a size is set under the same rules as data is written, but PERM stays, and an object
/// that has no size of its own has the wrong type (RFC 8881 table 6).
pub(crate) fn of_setattr(error: ServiceError) -> OpError {
    match error {
        ServiceError::ShareDenied => OpError::Status(Status::Locked),
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
    fn nothing_obsolete_is_answered() {
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
