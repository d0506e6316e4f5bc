//! A file system on a server, by DAFS or by NFS: the operations that the commands need, and no
//! more.
//!
//! Invariants
//! * Handles, files, buffers and errors of the two protocols never mix: each is used with the server
//!   that it came from.

mod error;
mod file;
mod names;
mod small;
mod types;
mod url;

pub(crate) use dafs_client::{
    Follow, FsStatus, ObjectType, Owner, SetAttributes, SetTime, SpecialFile, Stability, Status,
    Time,
};
pub(crate) use error::Error;
pub(crate) use file::{Buffer, Create, File, OpenOptions, Pending};
pub(crate) use small::{FileStart, NewFile, PendingFile, PendingRemoval, PendingStart};
pub(crate) use types::{Attributes, DirEntry, Found, Handle, Place};
pub(crate) use url::RemoteUrl;

use dafs_client::Client;
use dafs_nfs_client::mount::Mount;
use names::Listing;

/// A connection to a server. Clones share it.
#[derive(Debug, Clone)]
pub(crate) enum Remote {
    Dafs(Client),
    Nfs(Mount),
}

/// The entries of a directory.
#[derive(Debug)]
pub(crate) struct ReadDir(Listing);

impl Iterator for ReadDir {
    type Item = Result<DirEntry, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next()
    }
}

impl Remote {
    /// The name of the transport, and the reason for its choice.
    pub(crate) fn transport(&self) -> (String, String) {
        match self {
            Self::Dafs(client) => {
                let transport = client.transport();
                (transport.kind.to_string(), transport.why.clone())
            }
            Self::Nfs(mount) => {
                let user = mount.principal().map(|name| format!(" as {name}")).unwrap_or_default();
                let why = format!("NFS version {}, {}{user}", mount.version(), mount.security());
                (mount.transport().to_owned(), why)
            }
        }
    }

    /// False while a lost connection is being replaced, or after that has been given up.
    pub(crate) fn is_connected(&self) -> bool {
        match self {
            Self::Dafs(client) => client.is_connected(),
            // It does not know, and gives up its requests by itself.
            Self::Nfs(_) => true,
        }
    }

    /// The server as the user named it.
    pub(crate) fn server(&self) -> &str {
        match self {
            Self::Dafs(client) => client.server(),
            Self::Nfs(mount) => mount.server(),
        }
    }

    /// The longest read, in bytes.
    pub(crate) fn read_bytes_max(&self) -> usize {
        match self {
            Self::Dafs(client) => client.read_bytes_max(),
            Self::Nfs(mount) => mount.read_bytes_max(),
        }
    }

    /// The longest write, in bytes.
    pub(crate) fn write_bytes_max(&self) -> usize {
        match self {
            Self::Dafs(client) => client.write_bytes_max(),
            Self::Nfs(mount) => mount.write_bytes_max(),
        }
    }

    /// Memory for transfers.
    pub(crate) fn buffer(&self, bytes: usize) -> Result<Buffer, Error> {
        Ok(match self {
            Self::Dafs(client) => Buffer::Dafs(client.buffer(bytes)?),
            Self::Nfs(mount) => Buffer::Nfs(mount.allocate(bytes)?),
        })
    }

    /// Sends submitted requests now.
    pub(crate) fn flush(&self) -> Result<(), Error> {
        match self {
            Self::Dafs(client) => Ok(client.flush()?),
            // They have been sent already.
            Self::Nfs(_) => Ok(()),
        }
    }
}
