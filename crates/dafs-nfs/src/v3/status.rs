//! Converts the service's errors to the statuses of NFSv3 (RFC 1813 2.6).

use dafs_service::ServiceError;
use dafs_store::StoreError;
use dafs_wire::nfs3::Status;

/// Returns the status for an error of the service. NFSv3 knows no state. So a conflict with another
/// caller's state becomes either a delay or a lack of rights.
pub(super) fn of_service(error: ServiceError) -> Status {
    match error {
        ServiceError::Store(error) => of_store(error),
        // Another client has the file open and denies this access, or has a share key that excludes
        // others. It may close the file any time, but a wait could block an application for hours
        // (RFC 1813 has no share errors).
        ServiceError::ShareDenied
        | ServiceError::KeyMismatch
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
        // A retry does not repair the data.
        ServiceError::LockBroken => Status::Io,
        // Errors about state, of which these callers have none.
        _ => Status::ServerFault,
    }
}

/// Returns the status for an error of the store.
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
        // Errors of requests that NFSv3 does not have.
        _ => Status::ServerFault,
    }
}
