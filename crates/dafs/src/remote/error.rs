//! What can go wrong with a server, by both protocols.

use dafs_client as dafs;
use dafs_client::Status;
use dafs_nfs_client::mount::MountError;
use dafs_wire::nfs4;
use std::fmt;

/// Why an operation failed.
#[derive(Debug, Clone)]
pub(crate) enum Error {
    Dafs(dafs::Error),
    Nfs(MountError),
    /// The protocol has nothing of the kind.
    NotByNfs(&'static str),
}

impl Error {
    /// What the server answered. For NFS it is the status of DAFS with the same meaning, which
    /// exists for everything that the commands ask about.
    pub(crate) fn status(&self) -> Option<Status> {
        match self {
            Self::Dafs(error) => error.status(),
            Self::Nfs(error) => error.status().and_then(same),
            Self::NotByNfs(_) => Some(Status::NotSupp),
        }
    }

    /// True when the connection is over, so that everything else will fail too.
    pub(crate) fn is_fatal(&self) -> bool {
        match self {
            Self::Dafs(dafs::Error::Connect { .. }) => true,
            Self::Dafs(error) => error.is_fatal(),
            Self::Nfs(error) => error.is_fatal(),
            Self::NotByNfs(_) => false,
        }
    }

    /// True when the server has no time for the operation now: nothing was done.
    pub(crate) fn is_delay(&self) -> bool {
        self.status() == Some(Status::Delay)
    }

    /// True when the server has lost what it had acknowledged, so that it must be written again.
    pub(crate) fn is_loss_of_writes(&self) -> bool {
        matches!(self, Self::Dafs(dafs::Error::WritesLost) | Self::Nfs(MountError::WritesLost))
    }

    /// True when the operation may or may not have been done.
    pub(crate) fn is_doubt(&self) -> bool {
        matches!(self, Self::Dafs(dafs::Error::InDoubt { .. }))
    }

    /// True when there is something that is no part of the export: a file system is mounted there on the
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

    /// What the server answered, in a sentence and by its name.
    pub(crate) fn answer(&self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Dafs(error) => error.status().map(|status| (status.sentence(), status.name())),
            Self::Nfs(error) => error.status().map(|status| (status.sentence(), status.name())),
            Self::NotByNfs(_) => None,
        }
    }
}

/// The status of DAFS that means the same.
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
