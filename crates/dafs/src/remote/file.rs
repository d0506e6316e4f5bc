//! Open files, and memory for transfers.

use super::error::Error;
use super::types::{Attributes, Handle, nfs_set};
use super::{Remote, SetAttributes, Stability};
use dafs_client as dafs;
use dafs_mem::VolatileSlice;
use dafs_nfs_client::mount as nfs;
use std::ops::Range;

/// How to open a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OpenOptions {
    read: bool,
    write: bool,
    create: Create,
    /// Permission bits of a new file.
    mode: Option<u32>,
    /// No other may have it open for writing. DAFS alone; NFS ignores it.
    deny_write: bool,
}

/// The treatment of missing files by an open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Create {
    No,
    /// It must not exist.
    New,
}

impl OpenOptions {
    pub(crate) fn read() -> Self {
        Self { read: true, write: false, create: Create::No, mode: None, deny_write: false }
    }

    pub(crate) fn write() -> Self {
        Self { read: false, write: true, ..Self::read() }
    }

    pub(crate) fn read_write() -> Self {
        Self { write: true, ..Self::read() }
    }

    pub(crate) fn deny_write(self) -> Self {
        Self { deny_write: true, ..self }
    }

    pub(crate) fn create(self, create: Create) -> Self {
        Self { create, ..self }
    }

    pub(crate) fn mode(self, mode: u32) -> Self {
        Self { mode: Some(mode), ..self }
    }

    fn dafs(&self) -> dafs::OpenOptions {
        let options = match (self.read, self.write) {
            (true, true) => dafs::OpenOptions::read_write(),
            (_, true) => dafs::OpenOptions::write(),
            (_, false) => dafs::OpenOptions::read(),
        };
        let deny = if self.deny_write { dafs::ShareDeny::Write } else { dafs::ShareDeny::None };
        let options = options.deny(deny);
        let create = match self.create {
            Create::No => return options,
            Create::New => dafs::Create::New,
        };
        let options = options.create(create);
        self.mode.map_or(options, |mode| options.mode(mode))
    }

    fn nfs(&self) -> nfs::OpenOptions {
        nfs::OpenOptions {
            read: self.read,
            write: self.write,
            create: match self.create {
                Create::No => nfs::Create::No,
                Create::New => nfs::Create::New,
            },
            truncate: false,
            mode: self.mode.unwrap_or(0o644),
        }
    }
}

/// Memory for transfers.
#[derive(Debug, Clone)]
pub(crate) enum Buffer {
    Dafs(dafs::IoBuffer),
    Nfs(nfs::Memory),
    /// Memory of another connection. It is dropped after its registration here.
    Shared {
        registered: dafs::IoBuffer,
        _memory: Box<Buffer>,
    },
}

impl Buffer {
    /// The whole memory.
    pub(crate) fn view(&self) -> VolatileSlice<'_> {
        match self {
            Self::Dafs(buffer) | Self::Shared { registered: buffer, .. } => buffer.view(),
            Self::Nfs(memory) => memory.view(),
        }
    }

    /// A part of it, if it lies inside.
    pub(crate) fn slice(&self, offset: usize, len: usize) -> Option<VolatileSlice<'_>> {
        self.view().slice(offset, len)
    }

    fn nfs(&self, range: Range<usize>) -> Result<nfs::MemorySlice, Error> {
        let slice = match self {
            Self::Nfs(memory) => memory.slice(range),
            Self::Dafs(_) | Self::Shared { .. } => None,
        };
        slice.ok_or(Error::Nfs(nfs::MountError::Argument("the range leaves the buffer")))
    }

    fn dafs(&self) -> Result<&dafs::IoBuffer, Error> {
        match self {
            Self::Dafs(buffer) | Self::Shared { registered: buffer, .. } => Ok(buffer),
            Self::Nfs(_) => Err(Error::Dafs(dafs::Error::ForeignBuffer)),
        }
    }
}

/// An outstanding transfer.
#[derive(Debug)]
pub(crate) enum Pending {
    Dafs(dafs::Pending<usize>),
    NfsRead(nfs::PendingRead),
    NfsWrite(nfs::PendingWrite),
}

impl Pending {
    /// Waits; returns the number of bytes.
    pub(crate) fn wait(self) -> Result<usize, Error> {
        Ok(match self {
            Self::Dafs(pending) => pending.wait()?,
            Self::NfsRead(pending) => pending.wait()?,
            Self::NfsWrite(pending) => pending.wait()?.bytes,
        })
    }
}

/// An open file.
#[derive(Debug)]
pub(crate) struct File {
    remote: Remote,
    handle: Handle,
    inner: Inner,
}

#[derive(Debug)]
enum Inner {
    Dafs(dafs::File),
    Nfs(nfs::File),
}

impl Remote {
    /// Opens the file at a path, through symlinks.
    pub(crate) fn open(&self, path: &[u8], options: &OpenOptions) -> Result<File, Error> {
        Ok(match self {
            Self::Dafs(client) => self.dafs_file(client.open(path, &options.dafs())?),
            Self::Nfs(mount) => self.nfs_file(mount.open(path, &options.nfs())?),
        })
    }

    /// The content of the file at a path, through symlinks, if it is shorter than `limit` and the
    /// protocol can read it in one round trip.
    pub(crate) fn read_small(&self, path: &[u8], limit: usize) -> Result<Option<Vec<u8>>, Error> {
        Ok(match self {
            Self::Dafs(client) => {
                let start = client.read_file(path, limit)?;
                start.is_whole.then_some(start.data)
            }
            Self::Nfs(_) => None,
        })
    }

    /// True if a file in a directory is certainly empty, and the protocol can check that without an
    /// open.
    pub(crate) fn is_surely_empty(&self, dir: &Handle, name: &[u8]) -> Result<bool, Error> {
        Ok(match self {
            Self::Dafs(client) => {
                let start = client.read_file_from(&dir.dafs(), name, 1)?;
                start.is_whole && start.data.is_empty()
            }
            Self::Nfs(_) => false,
        })
    }

    /// Opens a file by its name in a directory.
    pub(crate) fn open_at(
        &self,
        dir: &Handle,
        name: &[u8],
        options: &OpenOptions,
    ) -> Result<File, Error> {
        Ok(match self {
            Self::Dafs(client) => {
                self.dafs_file(client.open_at(&dir.dafs(), name, &options.dafs())?)
            }
            Self::Nfs(mount) => self.nfs_file(mount.open_at(&dir.nfs(), name, &options.nfs())?),
        })
    }

    /// The same memory for transfers of this connection, too; `None` if its transport needs memory of
    /// its own. It is dropped after its transfers, as those of a ring of pieces are.
    pub(crate) fn share(&self, memory: &Buffer) -> Result<Option<Buffer>, Error> {
        Ok(match (self, memory) {
            (Self::Dafs(client), _) => {
                let view = memory.view();
                // SAFETY: the result keeps the memory mapped until the registration is dropped, which
                // is after all transfers. Buffers give out no references into themselves.
                let registered = unsafe { client.register(view.as_ptr(), view.len())? };
                Some(Buffer::Shared { registered, _memory: Box::new(memory.clone()) })
            }
            // RDMA takes only memory of its own port.
            (Self::Nfs(mount), Buffer::Nfs(_)) if mount.transport() == "tcp" => {
                Some(memory.clone())
            }
            (Self::Nfs(_), _) => None,
        })
    }

    fn dafs_file(&self, file: dafs::File) -> File {
        File { remote: self.clone(), handle: (*file.handle()).into(), inner: Inner::Dafs(file) }
    }

    fn nfs_file(&self, file: nfs::File) -> File {
        File { remote: self.clone(), handle: file.handle().into(), inner: Inner::Nfs(file) }
    }
}

impl File {
    pub(crate) fn remote(&self) -> &Remote {
        &self.remote
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    pub(crate) fn attributes(&self) -> Result<Attributes, Error> {
        self.remote.attributes(&self.handle)
    }

    pub(crate) fn set_attributes(&self, new: &SetAttributes) -> Result<(), Error> {
        match &self.inner {
            Inner::Dafs(file) => Ok(file.set_attributes(new)?),
            Inner::Nfs(file) => Ok(file.set_attributes(&nfs_set(new))?),
        }
    }

    /// Begins to read into a part of a buffer.
    pub(crate) fn submit_read(
        &self,
        buffer: &Buffer,
        range: Range<usize>,
        offset: u64,
    ) -> Result<Pending, Error> {
        Ok(match &self.inner {
            Inner::Dafs(file) => Pending::Dafs(file.submit_read(buffer.dafs()?, range, offset)?),
            Inner::Nfs(file) => Pending::NfsRead(file.submit_read(buffer.nfs(range)?, offset)?),
        })
    }

    /// Begins to write a part of a buffer.
    pub(crate) fn submit_write(
        &self,
        buffer: &Buffer,
        range: Range<usize>,
        offset: u64,
        stability: Stability,
    ) -> Result<Pending, Error> {
        Ok(match &self.inner {
            Inner::Dafs(file) => {
                Pending::Dafs(file.submit_write(buffer.dafs()?, range, offset, stability)?)
            }
            Inner::Nfs(file) => {
                let stable = match stability {
                    Stability::Unstable => nfs::StableHow::Unstable,
                    Stability::DataSync => nfs::StableHow::DataSync,
                    Stability::FileSync => nfs::StableHow::FileSync,
                };
                Pending::NfsWrite(file.submit_write(buffer.nfs(range)?, offset, stable)?)
            }
        })
    }

    /// Reads into a part of a buffer. Retries if the server is busy.
    pub(crate) fn read_into(
        &self,
        buffer: &Buffer,
        range: Range<usize>,
        offset: u64,
    ) -> Result<usize, Error> {
        match &self.inner {
            Inner::Dafs(file) => Ok(file.read_into(buffer.dafs()?, range, offset)?),
            Inner::Nfs(_) => self.submit_read(buffer, range, offset)?.wait(),
        }
    }

    /// Writes a part of a buffer completely. Retries if the server is busy.
    pub(crate) fn write_from(
        &self,
        buffer: &Buffer,
        range: Range<usize>,
        offset: u64,
        stability: Stability,
    ) -> Result<usize, Error> {
        match &self.inner {
            Inner::Dafs(file) => Ok(file.write_from(buffer.dafs()?, range, offset, stability)?),
            Inner::Nfs(_) => self.submit_write(buffer, range, offset, stability)?.wait(),
        }
    }

    /// The next offset with data from `offset` on; `None` if there is none up to the end of the
    /// file.
    pub(crate) fn seek_data(&self, offset: u64) -> Result<Option<u64>, Error> {
        Ok(match &self.inner {
            Inner::Dafs(file) => file.seek_data(offset)?,
            Inner::Nfs(file) => file.seek_data(offset)?,
        })
    }

    /// The next offset of a hole from `offset` on; the end of the file counts as one.
    pub(crate) fn seek_hole(&self, offset: u64) -> Result<Option<u64>, Error> {
        Ok(match &self.inner {
            Inner::Dafs(file) => file.seek_hole(offset)?,
            Inner::Nfs(file) => file.seek_hole(offset)?,
        })
    }

    /// Commits all writes to stable storage.
    pub(crate) fn commit(&self) -> Result<(), Error> {
        match &self.inner {
            Inner::Dafs(file) => Ok(file.commit(0, 0)?),
            Inner::Nfs(file) => Ok(file.commit().map(drop)?),
        }
    }

    /// Checks whether a restart of the server has lost written data.
    pub(crate) fn check_writes(&self) -> Result<(), Error> {
        match &self.inner {
            Inner::Dafs(file) => Ok(file.check_writes()?),
            Inner::Nfs(file) if file.is_unstable() => Ok(file.commit().map(drop)?),
            Inner::Nfs(_) => Ok(()),
        }
    }

    pub(crate) fn close(self) -> Result<(), Error> {
        match self.inner {
            Inner::Dafs(file) => Ok(file.close()?),
            Inner::Nfs(file) => Ok(file.close()?),
        }
    }
}
