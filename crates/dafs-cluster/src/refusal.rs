//! Errors as numbers of the control protocol.
//!
//! An error without a number becomes an I/O error, or `Delay` for the check of a state-id.

use dafs_service::ServiceError;
use dafs_store::{Result, StoreError};
use dafs_wire::cluster::Answer;

const STORE: [(u32, StoreError); 13] = [
    (1, StoreError::Io),
    (2, StoreError::Busy),
    (3, StoreError::NoSpace),
    (4, StoreError::Quota),
    (5, StoreError::FileTooBig),
    (6, StoreError::ReadOnly),
    (7, StoreError::Access),
    (8, StoreError::NotOwner),
    (9, StoreError::Invalid),
    (10, StoreError::Stale),
    (11, StoreError::NotFound),
    (12, StoreError::NoDevice),
    (13, StoreError::NotSupported),
];

const SERVICE: [(u32, ServiceError); 13] = [
    (101, ServiceError::BadStateId),
    (102, ServiceError::StaleStateId),
    (103, ServiceError::OldStateId),
    (104, ServiceError::Expired),
    (105, ServiceError::DelegRevoked),
    (106, ServiceError::AdminRevoked),
    (107, ServiceError::OpenMode),
    (108, ServiceError::BadLayout),
    (109, ServiceError::Delay),
    (110, ServiceError::Fenced),
    (111, ServiceError::Grace),
    (112, ServiceError::StaleClientId),
    (113, ServiceError::LayoutUnavailable),
];

pub(crate) fn of_store(error: StoreError) -> u32 {
    let error = if error == StoreError::TooManyOpen { StoreError::Busy } else { error };
    STORE.iter().find(|(_, known)| *known == error).map_or(1, |(number, _)| *number)
}

pub(crate) fn to_store(number: u32) -> StoreError {
    known(number).unwrap_or(StoreError::Io)
}

/// Returns the error with a number, if there is one.
pub(crate) fn known(number: u32) -> Option<StoreError> {
    STORE.iter().find(|(known, _)| *known == number).map(|(_, error)| *error)
}

/// Returns what `take` makes of the answer to a request of data: nothing if it is not of its kind.
pub(crate) fn taken<T>(
    answer: Answer<'_>,
    take: impl FnOnce(Answer<'_>) -> Option<T>,
) -> Result<T> {
    match answer {
        Answer::Refused(number) => Err(to_store(number)),
        answer => take(answer).ok_or(StoreError::Io),
    }
}

pub(crate) fn of_service(error: ServiceError) -> u32 {
    match error {
        ServiceError::Store(error) => of_store(error),
        error => {
            SERVICE.iter().find(|(_, known)| *known == error).map_or(109, |(number, _)| *number)
        }
    }
}

pub(crate) fn to_service(number: u32) -> ServiceError {
    let service = SERVICE.iter().find(|(known, _)| *known == number).map(|(_, error)| *error);
    service.or(known(number).map(ServiceError::Store)).unwrap_or(ServiceError::Delay)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_come_back() {
        for (number, error) in STORE {
            assert_eq!((of_store(error), to_store(number)), (number, error));
            assert_eq!(to_service(of_service(error.into())), ServiceError::Store(error));
        }
        for (number, error) in SERVICE {
            assert_eq!((of_service(error), to_service(number)), (number, error));
        }
        assert_eq!(to_store(of_store(StoreError::Symlink)), StoreError::Io);
        assert_eq!(to_service(of_service(ServiceError::LocksHeld)), ServiceError::Delay);
        assert_eq!((to_store(9999), to_service(9999)), (StoreError::Io, ServiceError::Delay));
    }
}
