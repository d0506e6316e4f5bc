//! The errors of stores.

use std::io;
use thiserror::Error;

/// An error of a store, in the terms that file protocols share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say it")]
pub enum StoreError {
    #[error("permission denied")]
    Access,
    #[error("the handle was not made by this export")]
    BadHandle,
    #[error("the object has the wrong type for this operation")]
    BadType,
    #[error("a limit of the server is reached; try again later")]
    Busy,
    #[error("the objects lie on different file systems")]
    CrossDevice,
    #[error("the node serves others first")]
    Crowded,
    #[error("the directory position is no longer valid")]
    BadCookie,
    #[error("the name exists already")]
    Exists,
    #[error("the file would become larger than the file system allows")]
    FileTooBig,
    #[error("the argument is not valid")]
    Invalid,
    #[error("the device reported an error")]
    Io,
    #[error("the object is a directory")]
    IsDirectory,
    #[error("the node has answered what its protocol does not allow")]
    Malformed,
    #[error("the object is a symbolic link")]
    Symlink,
    #[error("no name below the root of the export leads to the file any more")]
    MovedOut,
    #[error("the name is too long")]
    NameTooLong,
    #[error("the server has too many files open")]
    TooManyOpen,
    #[error("no such device")]
    NoDevice,
    #[error("no space is left")]
    NoSpace,
    #[error("the object is not a directory")]
    NotDirectory,
    #[error("the directory is not empty")]
    NotEmpty,
    #[error("no such file or directory")]
    NotFound,
    #[error("no such extended attribute")]
    NoXattr,
    #[error("only the owner may do this")]
    NotOwner,
    #[error("this export cannot do that")]
    NotSupported,
    #[error("its client may have sent this before something that it wrote elsewhere since")]
    Outdated,
    #[error("the offset lies behind the end of the file")]
    PastEnd,
    #[error("the quota is used up")]
    Quota,
    #[error("the export is read-only")]
    ReadOnly,
    #[error("the object no longer exists")]
    Stale,
    #[error("the object has too many links")]
    TooManyLinks,
    #[error("the metadata server does not allow this here")]
    Unvouched,
    #[error("the data is not in memory")]
    WouldBlock,
    #[error("the extended attribute is larger than the file system allows")]
    XattrTooBig,
}

impl StoreError {
    /// Maps an error of a node to the one for clients: a crowded node means a retry.
    pub fn of_node(self) -> Self {
        if self == Self::Crowded { Self::Busy } else { self }
    }

    /// The store error for a system error number.
    pub fn from_errno(errno: i32) -> Self {
        match errno {
            // A running program and a mount point may stay for any time, so a retry would not help.
            libc::EACCES | libc::EBUSY | libc::ETXTBSY => Self::Access,
            libc::EPERM => Self::NotOwner,
            libc::ENOENT => Self::NotFound,
            libc::EEXIST => Self::Exists,
            libc::ENOTDIR => Self::NotDirectory,
            libc::EISDIR => Self::IsDirectory,
            libc::ENOTEMPTY => Self::NotEmpty,
            libc::EINVAL => Self::Invalid,
            libc::ENAMETOOLONG => Self::NameTooLong,
            libc::ENOSPC => Self::NoSpace,
            libc::EDQUOT => Self::Quota,
            libc::EROFS => Self::ReadOnly,
            libc::EXDEV => Self::CrossDevice,
            libc::EMLINK => Self::TooManyLinks,
            libc::EFBIG | libc::EOVERFLOW => Self::FileTooBig,
            libc::ESTALE => Self::Stale,
            libc::ELOOP => Self::Symlink,
            libc::ENXIO | libc::ENODEV => Self::NoDevice,
            libc::EOPNOTSUPP | libc::ENOSYS | libc::ENOTTY => Self::NotSupported,
            libc::EAGAIN => Self::WouldBlock,
            libc::ENFILE | libc::EMFILE | libc::ENOMEM | libc::EINTR => Self::Busy,
            _ => Self::Io,
        }
    }
}

impl From<rustix::io::Errno> for StoreError {
    fn from(errno: rustix::io::Errno) -> Self {
        Self::from_errno(errno.raw_os_error())
    }
}

impl From<io::Error> for StoreError {
    fn from(error: io::Error) -> Self {
        error.raw_os_error().map_or(Self::Io, Self::from_errno)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_passes_by_itself_is_to_be_tried_again() {
        for errno in [libc::ENFILE, libc::EMFILE, libc::ENOMEM, libc::EINTR] {
            assert_eq!(StoreError::from_errno(errno), StoreError::Busy);
        }
        for errno in [libc::EBUSY, libc::ETXTBSY] {
            assert_eq!(StoreError::from_errno(errno), StoreError::Access);
        }
    }

    #[test]
    fn a_used_up_quota_is_told_from_a_full_disk() {
        assert_eq!(StoreError::from_errno(libc::EDQUOT), StoreError::Quota);
        assert_eq!(StoreError::from_errno(libc::ENOSPC), StoreError::NoSpace);
    }
}
