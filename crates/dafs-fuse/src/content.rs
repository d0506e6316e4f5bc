//! Open files.
//!
//! Invariants
//! * An open file of the kernel is an open file of the server, so that it can be used after its name is
//!   gone.
//! * What was written and not made stable is known to the open file: a server that lost it is found out
//!   when the file is made stable or closed.

use crate::convert::errno;
use crate::limits::READ_BYTES_MAX;
use crate::nodes::NodeId;
use crate::tree::{Outcome, Tree};
use dafs_client::{Create, File, OpenOptions, Stability};
use fuser::{Errno, OpenAccMode, OpenFlags};

/// A file that the kernel has open.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) node: NodeId,
    pub(crate) file: File,
    /// Writes are stable when they are answered.
    is_synchronous: bool,
}

/// How to open a file as the flags say.
pub(crate) fn options(flags: OpenFlags) -> OpenOptions {
    let options = match flags.acc_mode() {
        OpenAccMode::O_RDONLY => OpenOptions::read(),
        OpenAccMode::O_WRONLY => OpenOptions::write(),
        OpenAccMode::O_RDWR => OpenOptions::read_write(),
    };
    options.create(Create::Never).truncate(flags.0 & libc::O_TRUNC != 0)
}

impl OpenFile {
    pub(crate) fn new(node: NodeId, file: File, flags: OpenFlags) -> Self {
        Self { node, file, is_synchronous: flags.0 & libc::O_DSYNC != 0 }
    }

    pub(crate) fn open(tree: &Tree, node: NodeId, flags: OpenFlags) -> Outcome<Self> {
        let failed = |error| errno(&error);
        let options = options(flags);
        let file = tree.client.open_handle(&tree.handle(node)?, &options).map_err(failed)?;
        // Opening by a handle cuts nothing.
        if flags.0 & libc::O_TRUNC != 0 {
            file.set_size(0).map_err(failed)?;
        }
        Ok(Self::new(node, file, flags))
    }

    /// Reads into `buffer`, which is as long as needed afterwards; tells the bytes read.
    pub(crate) fn read(&self, buffer: &mut Vec<u8>, offset: u64, len: u32) -> Outcome<usize> {
        let len = (len as usize).min(READ_BYTES_MAX);
        if buffer.len() < len {
            buffer.resize(len, 0);
        }
        self.file.read_at(&mut buffer[..len], offset).map_err(|error| errno(&error))
    }

    pub(crate) fn write(&self, data: &[u8], offset: u64) -> Outcome<u32> {
        let stability = if self.is_synchronous { Stability::FileSync } else { Stability::Unstable };
        let written = self.file.write_at(data, offset, stability).map_err(|error| errno(&error))?;
        u32::try_from(written).map_err(|_| Errno::EIO)
    }

    /// Makes all that was written stable.
    pub(crate) fn sync(&self) -> Outcome<()> {
        self.file.commit(0, 0).map_err(|error| errno(&error))
    }

    /// One descriptor of it is closed: the program is told now what went wrong before.
    pub(crate) fn flush(&self) -> Outcome<()> {
        self.file.check_writes().map_err(|error| errno(&error))
    }
}
