//! Open files.
//!
//! Invariants
//! * An open file of the kernel is an open file of the server, so that it can be used after its name is
//!   gone.
//! * What was written is stable when the file is closed. Until then the open file knows what is not: a
//!   server that lost it is found out when any open file of the node is made stable, and each of them
//!   is told once.

use crate::convert::errno;
use crate::kernel::{Errno, NodeId};
use crate::limits::{READ_BYTES_MAX, WRITE_BYTES_MAX};
use crate::tree::{Outcome, Tree};
use dafs_client::{Create, Error, File, IoBuffer, OpenOptions, SetAttributes, Stability};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// A file that the kernel has open.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) node: NodeId,
    pub(crate) file: File,
    /// How it was opened, as `open` has it.
    pub(crate) flags: i32,
    /// Writes that were answered as unstable, or that failed.
    written: AtomicU64,
    /// How many of these are stable, or known to be lost. Held while the server makes them so: who asks
    /// for the same meanwhile waits.
    stable: Mutex<u64>,
    /// Something that was written to the file is lost, and who has this open does not know.
    is_lost: AtomicBool,
}

/// How to open a file as the flags say.
pub(crate) fn options(flags: i32) -> OpenOptions {
    let options = match flags & libc::O_ACCMODE {
        libc::O_WRONLY => OpenOptions::write(),
        libc::O_RDWR => OpenOptions::read_write(),
        _ => OpenOptions::read(),
    };
    options.create(Create::Never).truncate(flags & libc::O_TRUNC != 0)
}

/// A mode without the bits that lend the rights of the owner and of the group.
fn without_rights(mode: u32) -> u32 {
    match mode & libc::S_IXGRP {
        0 => mode & !libc::S_ISUID,
        _ => mode & !(libc::S_ISUID | libc::S_ISGID),
    }
}

impl OpenFile {
    pub(crate) fn new(node: NodeId, file: File, flags: i32) -> Self {
        let (written, stable, is_lost) = (0.into(), Mutex::default(), false.into());
        Self { node, file, flags, written, stable, is_lost }
    }

    /// Opens a file, and cuts it if the flags say so. The kernel leaves it to us then to take the bits that
    /// lend rights, unless the user `keeps_bits`.
    pub(crate) fn open(tree: &Tree, node: NodeId, flags: i32, keeps_bits: bool) -> Outcome<Self> {
        let failed = |error| errno(&error);
        let handle = tree.handle(node)?;
        let file = tree.client.open_handle(&handle, &options(flags)).map_err(failed)?;
        // Opening by a handle cuts nothing; and who opens only to read may cut as well.
        if flags & libc::O_TRUNC != 0 {
            let mut cut = SetAttributes { size: Some(0), ..SetAttributes::default() };
            if !keeps_bits {
                let mode = tree.client.attributes(&handle).map_err(failed)?.mode;
                cut.mode = Some(without_rights(mode)).filter(|left| *left != mode);
            }
            tree.client.set_attributes(&handle, &cut).map_err(failed)?;
        }
        Ok(Self::new(node, file, flags))
    }

    /// True when the kernel must not believe to know where the file ends.
    pub(crate) fn appends(&self) -> bool {
        self.flags & libc::O_APPEND != 0
    }

    /// Reads to the front of `data`; tells the bytes read.
    pub(crate) fn read(&self, data: &IoBuffer, offset: u64, len: u32) -> Outcome<usize> {
        let len = (len as usize).min(READ_BYTES_MAX);
        self.file.read_into(data, 0..len, offset).map_err(|error| errno(&error))
    }

    /// Writes what is at the front of `data`, at the end of the file without an offset.
    pub(crate) fn write(&self, data: &IoBuffer, len: u32, offset: Option<u64>) -> Outcome<u32> {
        if len > WRITE_BYTES_MAX {
            return Err(Errno::EINVAL);
        }
        let range = 0..len as usize;
        let Some(offset) = offset else {
            let appended = self.file.append_from(data, range, Stability::DataSync);
            return appended.map(|_| len).map_err(|error| errno(&error));
        };
        let is_synchronous = self.flags & libc::O_DSYNC != 0;
        let stability = if is_synchronous { Stability::FileSync } else { Stability::Unstable };
        let written = self.file.write_from(data, range, offset, stability);
        // Not before: a COMMIT that the server does first would seem to be for this as well.
        self.written.fetch_add(u64::from(!is_synchronous), Ordering::SeqCst);
        let written = written.map_err(|error| errno(&error))?;
        u32::try_from(written).map_err(|_| Errno::EIO)
    }

    /// Makes all stable that was written through it.
    pub(crate) fn commit(&self) -> Outcome<()> {
        let mut stable = self.stable.lock().unwrap_or_else(PoisonError::into_inner);
        let written = self.written.load(Ordering::SeqCst);
        if *stable == written {
            return Ok(());
        }
        let committed = self.file.commit(0, 0);
        // What failed otherwise may work the next time.
        if matches!(committed, Ok(_) | Err(Error::WritesLost)) {
            *stable = written;
        }
        committed.map(drop).map_err(|error| errno(&error))
    }

    /// Something that was written to the file is lost.
    pub(crate) fn lose(&self) {
        self.is_lost.store(true, Ordering::SeqCst);
    }

    /// Whether something was lost, told once.
    pub(crate) fn told(&self) -> Outcome<()> {
        if self.is_lost.swap(false, Ordering::SeqCst) { Err(Errno::EIO) } else { Ok(()) }
    }

    pub(crate) fn close(self) -> Outcome<()> {
        self.file.close().map_err(|error| errno(&error))
    }
}
