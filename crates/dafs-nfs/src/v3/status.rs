//! From the service's errors to the statuses of NFSv3 (RFC 1813 2.6).

use dafs_service::ServiceError;
use dafs_store::StoreError;
use dafs_wire::nfs3::Status;

/// The status for an error of the service. NFSv3 knows no state, so what another caller's state
/// forbids is either a matter of time or of rights.
pub(super) fn of_service(error: ServiceError) -> Status {
    match error {
        ServiceError::Store(error) => of_store(error),
        // Another client has the file open and denies this access; it may close it any time, but
        // waiting for it would hold up an application for hours (RFC 1813 has no share errors).
        ServiceError::ShareDenied
        | ServiceError::DeleteDenied
        | ServiceError::OpenMode
        | ServiceError::Fenced
        | ServiceError::NotPrincipal
        | ServiceError::ClientInUse => Status::Acces,
        ServiceError::Delay
        | ServiceError::WouldWait
        | ServiceError::Grace
        | ServiceError::Resource => Status::Jukebox,
        ServiceError::NotSupported => Status::NotSupp,
        // Waiting does not mend the data.
        ServiceError::LockBroken => Status::Io,
        // About state, which these callers have none of.
        _ => Status::ServerFault,
    }
}

/// The status for an error of the store.
pub(super) fn of_store(error: StoreError) -> Status {
    match error {
        StoreError::Access => Status::Acces,
        StoreError::BadHandle => Status::BadHandle,
        StoreError::BadCookie => Status::BadCookie,
        StoreError::Busy | StoreError::TooManyOpen | StoreError::WouldBlock => Status::Jukebox,
        StoreError::CrossDevice => Status::XDev,
        StoreError::Exists => Status::Exist,
        StoreError::FileTooBig => Status::FBig,
        StoreError::BadType | StoreError::Invalid | StoreError::Symlink => Status::Inval,
        StoreError::Io => Status::Io,
        StoreError::IsDirectory => Status::IsDir,
        StoreError::NameTooLong => Status::NameTooLong,
        StoreError::NoDevice => Status::NxIo,
        StoreError::NoSpace => Status::NoSpc,
        StoreError::NotDirectory => Status::NotDir,
        StoreError::NotEmpty => Status::NotEmpty,
        StoreError::NotFound => Status::NoEnt,
        StoreError::NotOwner => Status::Perm,
        StoreError::NotSupported => Status::NotSupp,
        StoreError::Quota => Status::DQuot,
        StoreError::ReadOnly => Status::RoFs,
        StoreError::Stale | StoreError::MovedOut => Status::Stale,
        StoreError::TooManyLinks => Status::MLink,
        // What no operation of NFSv3 asks for.
        _ => Status::ServerFault,
    }
}
