//! Small files, made, read or removed in one round trip each, with many of them under way.

use super::error::Error;
use super::types::{Handle, nfs_set};
use super::{Remote, SetAttributes};
use dafs_client as dafs;
use dafs_nfs_client::mount as nfs;

/// A small file to make.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewFile<'a> {
    /// The directory of both names.
    pub(crate) dir: &'a Handle,
    /// The name until the file is complete; nothing may have it.
    pub(crate) temporary_name: &'a [u8],
    /// The name of the complete file. The file replaces another object that has it.
    pub(crate) name: &'a [u8],
    /// The content, no more than [`Remote::small_bytes_max`] bytes.
    pub(crate) data: &'a [u8],
    /// The attributes of the complete file, without a size.
    pub(crate) attributes: &'a SetAttributes,
}

/// A new file under way.
#[derive(Debug)]
pub(crate) enum PendingFile {
    Dafs(dafs::PendingFile),
    Nfs(nfs::PendingFile),
}

/// The start of a file, read without opening it.
#[derive(Debug)]
pub(crate) struct FileStart {
    pub(crate) handle: Handle,
    pub(crate) data: Vec<u8>,
    /// True when the file ends behind the data.
    pub(crate) is_whole: bool,
}

/// A read of the start of a file under way.
#[derive(Debug)]
pub(crate) enum PendingStart {
    Dafs(dafs::PendingStart),
    Nfs(nfs::PendingStart),
}

impl Remote {
    /// Small files and removals that all threads together can have under way; 0 where the protocol has no
    /// such requests.
    pub(crate) fn small_under_way_max(&self) -> usize {
        match self {
            // Those without a credit wait for one.
            Self::Dafs(_) => usize::MAX,
            Self::Nfs(mount) => mount.small_under_way_max(),
        }
    }

    /// The longest content that [`Remote::begin_new_file`] sends, in bytes; 0 where the protocol has no such
    /// request.
    pub(crate) fn small_bytes_max(&self) -> usize {
        match self {
            Self::Dafs(client) => client.step_write_bytes_max(),
            Self::Nfs(mount) => mount.small_bytes_max(),
        }
    }

    /// Begins to make a file in one round trip. `None` if that is not possible now.
    pub(crate) fn begin_new_file(&self, new: &NewFile<'_>) -> Result<Option<PendingFile>, Error> {
        match self {
            Self::Dafs(client) => {
                let begun = client.begin_new_file(&dafs::NewFile {
                    dir: new.dir.dafs(),
                    temporary_name: new.temporary_name,
                    name: new.name,
                    data: new.data,
                    attributes: new.attributes,
                });
                Ok(possible(begun)?.map(PendingFile::Dafs))
            }
            Self::Nfs(mount) => {
                let begun = mount.begin_new_file(&nfs::NewFile {
                    dir: &new.dir.nfs(),
                    temporary_name: new.temporary_name,
                    name: new.name,
                    data: new.data,
                    attributes: &nfs_set(new.attributes),
                })?;
                Ok(begun.map(PendingFile::Nfs))
            }
        }
    }
}

impl Remote {
    /// The most bytes that [`Remote::begin_start`] reads; 0 where the protocol has no such request.
    pub(crate) fn start_bytes_max(&self) -> usize {
        match self {
            Self::Dafs(client) => client.step_read_bytes_max(),
            Self::Nfs(mount) => mount.small_bytes_max(),
        }
    }

    /// Begins to read up to `bytes_max` bytes of a file in one round trip. `None` if that is not possible
    /// now.
    pub(crate) fn begin_start(
        &self,
        dir: &Handle,
        name: &[u8],
        bytes_max: usize,
    ) -> Result<Option<PendingStart>, Error> {
        match self {
            Self::Dafs(client) => {
                let begun = client.begin_file_start(&dir.dafs(), name, bytes_max);
                Ok(possible(begun)?.map(PendingStart::Dafs))
            }
            Self::Nfs(mount) => {
                let begun = mount.begin_file_start(&dir.nfs(), name, bytes_max)?;
                Ok(begun.map(PendingStart::Nfs))
            }
        }
    }
}

impl PendingStart {
    pub(crate) fn wait(self) -> Result<FileStart, Error> {
        match self {
            Self::Dafs(pending) => {
                let dafs::FileStart { handle, data, is_whole, .. } = pending.wait()?;
                Ok(FileStart { handle: handle.into(), data, is_whole })
            }
            Self::Nfs(pending) => {
                let nfs::FileStart { handle, data, is_whole, .. } = pending.wait()?;
                Ok(FileStart { handle: (&handle).into(), data, is_whole })
            }
        }
    }
}

impl PendingFile {
    /// Waits until the file has its name. Also after an error it may have it, without all of its content if
    /// the server has restarted.
    pub(crate) fn wait(self) -> Result<(), Error> {
        match self {
            Self::Dafs(pending) => Ok(pending.wait().map(drop)?),
            Self::Nfs(pending) => Ok(pending.wait()?),
        }
    }
}

/// A removal under way.
#[derive(Debug)]
pub(crate) enum PendingRemoval {
    Dafs(dafs::PendingRemoval),
    Nfs(nfs::PendingRemoval),
    /// It is over.
    Done(Result<(), Error>),
}

impl Remote {
    /// Begins to remove a name, also that of an empty directory. Waits for the end if no more removals can
    /// be under way.
    pub(crate) fn begin_remove(&self, dir: &Handle, name: &[u8]) -> PendingRemoval {
        let begun = match self {
            Self::Dafs(client) => possible(client.begin_remove(&dir.dafs(), name))
                .map(|begun| begun.map(PendingRemoval::Dafs))
                .map_err(Error::from),
            Self::Nfs(mount) => mount
                .begin_remove(&dir.nfs(), name)
                .map(|begun| begun.map(PendingRemoval::Nfs))
                .map_err(Error::from),
        };
        match begun {
            Ok(Some(pending)) => pending,
            Ok(None) => PendingRemoval::Done(self.remove(dir, name)),
            Err(error) => PendingRemoval::Done(Err(error)),
        }
    }
}

impl PendingRemoval {
    /// Waits for the end of the removal.
    pub(crate) fn wait(self) -> Result<(), Error> {
        match self {
            Self::Dafs(pending) => Ok(pending.wait()?),
            Self::Nfs(pending) => Ok(pending.wait()?),
            Self::Done(result) => result,
        }
    }
}

/// `None` in place of an error that single requests do not have.
fn possible<T>(begun: dafs::Result<T>) -> dafs::Result<Option<T>> {
    match begun {
        Ok(begun) => Ok(Some(begun)),
        Err(
            dafs::Error::Argument(_)
            | dafs::Error::ChainTooLong { .. }
            | dafs::Error::TooLong(_)
            | dafs::Error::TooMany
            | dafs::Error::Unsendable(_),
        ) => Ok(None),
        Err(error) => Err(error),
    }
}
