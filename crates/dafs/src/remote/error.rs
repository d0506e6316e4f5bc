//! Errors of a server, by both protocols.

use dafs_client as dafs;
use dafs_client::Status;
use dafs_nfs_client::mount::MountError;
use dafs_wire::nfs4;
use std::fmt;

/// The reason why an operation failed.
#[derive(Debug, Clone)]
pub(crate) enum Error {
    Dafs(dafs::Error),
    Nfs(MountError),
    /// The protocol has no such operation.
    NotByNfs(&'static str),
}

impl Error {
    /// The status of the server's answer. For NFS it is the DAFS status with the same meaning,
    /// which exists for all statuses that the commands test.
    pub(crate) fn status(&self) -> Option<Status> {
        match self {
            Self::Dafs(error) => error.status(),
            Self::Nfs(error) => error.status().and_then(same),
            Self::NotByNfs(_) => Some(Status::NotSupp),
        }
    }

    /// True if the connection is over, so that all other operations will fail too.
    pub(crate) fn is_fatal(&self) -> bool {
        match self {
            Self::Dafs(dafs::Error::Connect { .. }) => true,
            Self::Dafs(error) => error.is_fatal(),
            Self::Nfs(error) => error.is_fatal(),
            Self::NotByNfs(_) => false,
        }
    }

    /// True if the server is too busy for the operation: it had no effect.
    pub(crate) fn is_delay(&self) -> bool {
        self.status() == Some(Status::Delay)
    }

    /// True if the server has lost acknowledged writes, so that they must be repeated.
    pub(crate) fn is_loss_of_writes(&self) -> bool {
        matches!(self, Self::Dafs(dafs::Error::WritesLost) | Self::Nfs(MountError::WritesLost))
    }

    /// True if the outcome is unknown.
    pub(crate) fn is_doubt(&self) -> bool {
        matches!(self, Self::Dafs(dafs::Error::InDoubt { .. }))
    }

    /// True if the object is not part of the export: another file system is mounted there on the
    /// server.
    pub(crate) fn is_mount_point(&self) -> bool {
        match self {
            Self::Dafs(error) => error.is_mount_point(),
            Self::Nfs(MountError::Refused { operation, .. }) => {
                self.status() == Some(Status::XDev) && !matches!(*operation, "RENAME" | "LINK")
            }
            _ => false,
        }
    }

    /// The server's status, in a sentence and by its name.
    pub(crate) fn answer(&self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Dafs(error) => error.status().map(|status| (status.sentence(), status.name())),
            Self::Nfs(error) => error.status().map(|status| (status.sentence(), status.name())),
            Self::NotByNfs(_) => None,
        }
    }
}

/// The DAFS status with the same meaning.
fn same(status: nfs4::Status) -> Option<Status> {
    Some(match status {
        nfs4::Status::Access => Status::Acces,
        nfs4::Status::Perm => Status::Perm,
        nfs4::Status::NoEnt => Status::NoEnt,
        nfs4::Status::Io => Status::Io,
        nfs4::Status::Exist => Status::Exist,
        nfs4::Status::NotDir => Status::NotDir,
        nfs4::Status::IsDir => Status::IsDir,
        nfs4::Status::XDev => Status::XDev,
        nfs4::Status::Inval => Status::Inval,
        nfs4::Status::NoSpc => Status::NoSpc,
        nfs4::Status::RoFs => Status::RoFs,
        nfs4::Status::NotEmpty => Status::NotEmpty,
        nfs4::Status::DQuot => Status::DQuot,
        nfs4::Status::Stale => Status::Stale,
        nfs4::Status::NotSupp => Status::NotSupp,
        nfs4::Status::BadType => Status::BadType,
        nfs4::Status::ShareDenied => Status::ShareDenied,
        nfs4::Status::Symlink => Status::Symlink,
        _ => return None,
    })
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dafs(error) => error.fmt(f),
            Self::Nfs(error) => error.fmt(f),
            Self::NotByNfs(what) => f.write_str(what),
        }
    }
}

impl From<dafs::Error> for Error {
    fn from(error: dafs::Error) -> Self {
        Self::Dafs(error)
    }
}

impl From<MountError> for Error {
    fn from(error: MountError) -> Self {
        Self::Nfs(error)
    }
}
