//! Errors, worded for the person who must act.

use crate::url::UrlError;
use dafs_dat::{PostError, RegisterError};
use dafs_mem::Inaccessible;
use dafs_wire::dafs::{Procedure, Status};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;

/// Shorthand for client results.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason why an operation failed.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum Error {
    /// The range leaves the buffer, a name is empty or holds a slash: nothing was sent.
    #[error("{0}")]
    Argument(&'static str),
    /// The buffer belongs to another client, whose registrations mean nothing here.
    #[error("the buffer was made by another client; allocate it from the one that uses it")]
    ForeignBuffer,
    /// The file, or the batch, belongs to another client, whose handles mean nothing here.
    #[error("the file or batch was made by another client than the one that is to use it")]
    ForeignFile,
    /// Memory that the caller named is not mapped, or may not be written, or was unmapped while the
    /// operation used it. Then a read may have filled any part of the remaining memory, and a write
    /// may have been done in part. The session goes on, if need be over another connection.
    #[error("the memory given for a transfer is not mapped, or is read-only")]
    BadMemory,
    /// Memory cannot be withdrawn while an operation uses it.
    #[error("the memory is in use by an operation; wait for that first")]
    BusyMemory,
    /// The caller has cancelled the operation. If the server had the request when its connection
    /// was lost, it may have been carried out. Else it was not, and will not be: the client had not
    /// sent it, or the server has taken it out before it began.
    #[error("the operation was cancelled")]
    Canceled,
    /// The request was not carried out, because an earlier one of the same chain has failed.
    #[error(
        "{} was not carried out, because number {member} of the chain has failed",
        procedure.name()
    )]
    ChainBroken {
        /// The procedure of the request.
        procedure: Procedure,
        /// The index of the request that failed or was a short write, counted from zero.
        member: usize,
    },
    /// A chain is sent in one piece, so it needs a credit for each request: nothing was sent.
    #[error("the chain has {members} requests, and the server takes only {credits} at a time")]
    ChainTooLong {
        /// Requests in the chain.
        members: usize,
        /// Requests that the server takes at a time.
        credits: usize,
    },
    /// The session could not be opened.
    #[error("cannot connect to {server}: {reason}")]
    Connect {
        /// The server as the user named it.
        server: Arc<str>,
        /// The cause and the remedy.
        reason: Arc<str>,
    },
    /// The operation timed out. The server may or may not have done it, or may do it yet; an open
    /// or a lock that it grants too late is released again. The session goes on, if need be over
    /// another connection: DAFS cannot cancel a request, so one that names memory of the caller's
    /// costs the connection.
    #[error("the server at {server} did not answer within {after:?}; check it, then try again")]
    Deadline {
        /// The server.
        server: Arc<str>,
        /// The deadline.
        after: Duration,
    },
    /// Dirty data of the cache was lost: the delegation was revoked before it had been written
    /// back, so others were allowed to change the file.
    #[error(
        "data that was written is lost: the server took back the right to keep it here before it \
         was written there; others may have changed the file, so look at it and write again"
    )]
    DelegationLost,
    /// The process that opened the client was another one.
    #[error("this process was forked after the client had connected; connect again in the child")]
    Forked,
    /// The connection was lost while the server worked on this, and the server's replay cache no
    /// longer has the answer. The session goes on.
    #[error(
        "{} may or may not have been done: the connection to the server at {server} was lost and \
         its record of the answer with it; look at what it was to change, and repeat it if nothing \
         has",
        procedure.name()
    )]
    InDoubt {
        /// The server.
        server: Arc<str>,
        /// The procedure of the request.
        procedure: Procedure,
    },
    /// The session ended.
    #[error("the connection to the server at {server} is gone: {reason}; retry or reconnect")]
    Lost {
        /// The server.
        server: Arc<str>,
        /// The cause.
        reason: Arc<str>,
    },
    /// The operation was not sent in time, because the connection is lost or other operations are
    /// ahead of it. The server has not done it and will not. The session goes on.
    #[error(
        "not sent to the server at {server} within {after:?}, so nothing was done; try again later"
    )]
    NotSent {
        /// The server.
        server: Arc<str>,
        /// The deadline.
        after: Duration,
    },
    /// Memory could not be allocated or registered.
    #[error("no memory for transfers: {0}")]
    Memory(Arc<str>),
    /// The server broke the protocol in an answer; the session is over.
    #[error("the server at {server} broke the protocol: {reason}; report this to its operator")]
    Protocol {
        /// The server.
        server: Arc<str>,
        /// The violation.
        reason: Arc<str>,
    },
    /// The server refused.
    #[error("{} failed: {}", procedure.name(), answer(*procedure, *status))]
    Status {
        /// The procedure of the request.
        procedure: Procedure,
        /// The answer.
        status: Status,
    },
    /// A name, a path or the text of a link is longer than one may be: nothing was sent.
    #[error("{0}")]
    TooLong(&'static str),
    /// Too many symbolic links in one path.
    #[error("more than {0} symbolic links in one path; it probably leads in a circle")]
    SymlinkLoop(u32),
    /// The wait timed out; the operation goes on.
    #[error("not done within {0:?}")]
    TimedOut(Duration),
    /// More operations are waiting than the client keeps.
    #[error("too many operations are in flight; wait for some of them")]
    TooMany,
    /// The operation waited for a lost connection to be replaced, and it cannot be sent over the
    /// new one: the server takes shorter messages or fewer at a time than before. The session goes
    /// on.
    #[error("not sent, because the server takes less since the connection was replaced: {0}")]
    Unsendable(Arc<str>),
    /// A URL that cannot be parsed.
    #[error(transparent)]
    Url(#[from] UrlError),
    /// The server lost data that it had acknowledged as unstable.
    #[error("the server lost data that was written but not committed; write it again")]
    WritesLost,
    /// A write made no progress although the server reported success.
    #[error("the server accepted no byte of a write and gave no reason")]
    WriteZero,
}

impl From<Inaccessible> for Error {
    fn from(Inaccessible: Inaccessible) -> Self {
        Self::BadMemory
    }
}

impl Error {
    /// The status that the server answered with.
    pub fn status(&self) -> Option<Status> {
        match self {
            Self::Status { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// True for an object outside the export: another file system is mounted there on the server.
    pub fn is_mount_point(&self) -> bool {
        match self {
            Self::Status { procedure, status } => is_mount_point(*procedure, *status),
            _ => false,
        }
    }

    /// True when the server answered DELAY or GRACE: nothing was done, and the request can be
    /// retried.
    pub(crate) fn is_passing(&self) -> bool {
        self.status().is_some_and(crate::backoff::is_passing)
    }

    /// True when the session is over, or when the server is unreachable so that further operations
    /// will probably fail too.
    pub fn is_fatal(&self) -> bool {
        matches!(
            self,
            Self::Deadline { .. }
                | Self::Forked
                | Self::Lost { .. }
                | Self::NotSent { .. }
                | Self::Protocol { .. }
        )
    }

    /// The error number that a POSIX program would expect.
    pub fn to_errno(&self) -> i32 {
        match self {
            Self::Argument(_) | Self::ForeignBuffer | Self::ForeignFile | Self::Url(_) => {
                libc::EINVAL
            }
            Self::BadMemory => libc::EFAULT,
            Self::BusyMemory => libc::EBUSY,
            Self::Canceled | Self::ChainBroken { .. } => libc::ECANCELED,
            Self::ChainTooLong { .. } => libc::E2BIG,
            Self::Connect { .. } => libc::ECONNREFUSED,
            Self::Deadline { .. } | Self::NotSent { .. } | Self::TimedOut(_) => libc::ETIMEDOUT,
            Self::Forked => libc::EBADF,
            Self::InDoubt { .. } | Self::Lost { .. } => libc::ECONNRESET,
            Self::Memory(_) => libc::ENOMEM,
            Self::Protocol { .. } => libc::EPROTO,
            // The server has as many files open as it allows, or as it allows this client.
            Self::Status { procedure: Procedure::Open, status: Status::Resource } => libc::ENFILE,
            Self::Status { status, .. } => status_errno(*status),
            Self::SymlinkLoop(_) => libc::ELOOP,
            Self::TooLong(_) => libc::ENAMETOOLONG,
            Self::TooMany => libc::EAGAIN,
            Self::Unsendable(_) => libc::EMSGSIZE,
            Self::DelegationLost | Self::WritesLost | Self::WriteZero => libc::EIO,
        }
    }
}

/// For RENAME and LINK the same status means that the two names lie in different file systems.
fn is_mount_point(procedure: Procedure, status: Status) -> bool {
    status == Status::XDev && !matches!(procedure, Procedure::Rename | Procedure::Link)
}

/// The answer in words.
fn answer(procedure: Procedure, status: Status) -> String {
    if is_mount_point(procedure, status) {
        return format!(
            "{}: another file system is mounted there on the server, which is no part of this export",
            status.name()
        );
    }
    status.to_string()
}

/// The error number for a status (DAFS 15).
fn status_errno(status: Status) -> i32 {
    match status {
        Status::Perm => libc::EPERM,
        Status::NoEnt => libc::ENOENT,
        Status::Nxio => libc::ENXIO,
        Status::Acces | Status::Fenced | Status::NotAuthorized => libc::EACCES,
        Status::Exist => libc::EEXIST,
        Status::XDev => libc::EXDEV,
        Status::NoDev => libc::ENODEV,
        Status::NotDir => libc::ENOTDIR,
        Status::IsDir => libc::EISDIR,
        Status::Inval | Status::BadType => libc::EINVAL,
        Status::FBig | Status::WriteTooBig => libc::EFBIG,
        Status::NoSpc => libc::ENOSPC,
        Status::RoFs => libc::EROFS,
        Status::MLink => libc::EMLINK,
        Status::NameTooLong => libc::ENAMETOOLONG,
        Status::NotEmpty => libc::ENOTEMPTY,
        Status::DQuot => libc::EDQUOT,
        Status::Stale | Status::BadHandle | Status::FhExpired => libc::ESTALE,
        Status::NotSupp => libc::EOPNOTSUPP,
        Status::Delay | Status::Grace | Status::Resource | Status::Locked => libc::EAGAIN,
        Status::Denied | Status::ShareDenied | Status::KeyMismatch => libc::EBUSY,
        Status::Symlink => libc::ELOOP,
        Status::XCanceled => libc::ECANCELED,
        _ => libc::EIO,
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = io::Error::from_raw_os_error(error.to_errno()).kind();
        io::Error::new(kind, error)
    }
}

impl From<RegisterError> for Error {
    fn from(error: RegisterError) -> Self {
        Self::Memory(error.to_string().into())
    }
}

impl From<PostError> for Error {
    fn from(error: PostError) -> Self {
        Self::Memory(error.to_string().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_point_is_told_from_names_that_lie_apart() {
        let error = |procedure| Error::Status { procedure, status: Status::XDev };
        let lookup = error(Procedure::Lookup);
        assert!(lookup.is_mount_point());
        assert!(lookup.to_string().contains("is mounted there on the server"), "{lookup}");
        let rename = error(Procedure::Rename);
        assert!(!rename.is_mount_point());
        assert!(rename.to_string().contains("both names"), "{rename}");
    }

    #[test]
    fn a_used_up_quota_is_told_from_a_full_disk() {
        let errno = |status| Error::Status { procedure: Procedure::Lookup, status }.to_errno();
        assert_eq!(errno(Status::DQuot), libc::EDQUOT);
        assert_eq!(errno(Status::NoSpc), libc::ENOSPC);
    }
}
