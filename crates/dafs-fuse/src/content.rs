//! Open files.
//!
//! Invariants
//! * An open file of the kernel is an open file of the server, so that it can be used after its
//!   name is gone.
//! * Writes are stable when the file is closed. Until then they are retained; if they are lost
//!   nevertheless, each user of the file gets one error.

use crate::kept::{Remote, RetainedFile, RetainedFiles, Seen};
use crate::kernel::{Errno, NodeId};
use crate::limits::{KEPT_ATTEMPTS_MAX, READ_BYTES_MAX, WRITE_BYTES_MAX};
use crate::locking::Locks;
use crate::rights::Changer;
use crate::tree::{Outcome, Tree};
use dafs_client::posix::open_options;
use dafs_client::{Create, File, IoBuffer, OpenOptions, SetAttributes, Stability, User};
use dafs_mem::Mutex;
use std::sync::Arc;

/// A file that the kernel has open.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) node: NodeId,
    pub(crate) file: Arc<File>,
    /// The flags of `open`.
    pub(crate) flags: i32,
    /// The user that it is used as; `None` for that of the session.
    pub(crate) user: Option<User>,
    /// The retained writes of the file, shared by all its users.
    pub(crate) kept: Arc<RetainedFile<Remote>>,
    /// The losses that this open file has reported.
    seen: Mutex<Seen>,
}

/// The tables to which an open file belongs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Home<'a> {
    pub(crate) kept: &'a RetainedFiles,
    pub(crate) locks: &'a Arc<Locks>,
}

pub(crate) fn options(flags: i32) -> OpenOptions {
    open_options(flags).create(Create::Never).truncate(flags & libc::O_TRUNC != 0)
}

impl OpenFile {
    pub(crate) fn new(
        home: Home<'_>,
        node: NodeId,
        file: File,
        (flags, user): (i32, Option<User>),
    ) -> Self {
        let kept = home.kept.opened(&file, node, home.locks);
        let seen = Mutex::new(kept.seen());
        Self { node, file: Arc::new(file), flags, user, kept, seen }
    }

    /// Opens a file, and truncates it if the flags say so. The kernel leaves it to the mount then
    /// to clear setuid and setgid, unless there is no `taker`.
    pub(crate) fn open(
        tree: &Tree,
        home: Home<'_>,
        node: NodeId,
        (flags, user): (i32, Option<User>),
        taker: Option<Changer>,
    ) -> Outcome<Self> {
        let handle = tree.handle(node)?;
        let file = tree.client.open_handle(&handle, &options(flags))?;
        let open = Self::new(home, node, file, (flags, user));
        // An open by handle truncates nothing; and an open for reading may truncate, too.
        if flags & libc::O_TRUNC != 0 {
            home.locks.check(node)?;
            let mut cut = SetAttributes { size: Some(0), ..SetAttributes::default() };
            if let Some(taker) = taker {
                let found = tree.client.attributes(&handle)?;
                cut.mode = Some(taker.leaves(&found)).filter(|left| *left != found.mode);
            }
            let change = || Ok(tree.client.set_attributes(&handle, &cut)?);
            open.kept.resize(0, change)?;
        }
        Ok(open)
    }

    /// True when the kernel must not cache the file's end.
    pub(crate) fn appends(&self) -> bool {
        self.flags & libc::O_APPEND != 0
    }

    /// True when writes are possible through it.
    pub(crate) fn writes(&self) -> bool {
        self.flags & libc::O_ACCMODE != libc::O_RDONLY
    }

    /// Reads to the front of `data`; returns the bytes read.
    pub(crate) fn read(&self, data: &IoBuffer, offset: u64, len: u32) -> Outcome<usize> {
        let len = (len as usize).min(READ_BYTES_MAX);
        let mut bytes = 0;
        for _ in 0..KEPT_ATTEMPTS_MAX {
            self.kept.settle_after_restart()?;
            bytes = self.file.read_into(data, 0..len, offset)?;
            // A server that has restarted meanwhile may have returned old data.
            if !self.kept.is_in_doubt() {
                break;
            }
        }
        Ok(bytes)
    }

    /// Writes the front of `data`, at the end of the file without an offset; through another open
    /// than its own if there is one. `data` may be another buffer afterwards.
    pub(crate) fn write(
        &self,
        through: Option<&Arc<File>>,
        data: &mut IoBuffer,
        len: u32,
        offset: Option<u64>,
    ) -> Outcome<u32> {
        if len > WRITE_BYTES_MAX {
            return Err(Errno::EINVAL);
        }
        let (file, bytes) = (through.unwrap_or(&self.file), len as usize);
        match offset {
            None => self.kept.append(data, bytes, |data| {
                Ok(file.append_from(data, 0..bytes, Stability::DataSync)?)
            })?,
            Some(offset) if self.flags & libc::O_DSYNC != 0 => {
                self.kept.write_stably(file, data, bytes, offset)?;
            }
            Some(offset) => self.kept.write(file, data, bytes, offset)?,
        }
        Ok(len)
    }

    /// Marks a loss as unreported, as it was in the former process.
    pub(crate) fn lose(&self) {
        *self.seen.lock() = Seen::NOTHING;
    }

    /// True when a loss has not been reported.
    pub(crate) fn is_lost(&self) -> bool {
        *self.seen.lock() != self.kept.seen()
    }

    /// Reports a loss, once.
    pub(crate) fn told(&self) -> Outcome<()> {
        self.kept.told(&mut self.seen.lock())
    }

    /// Reports a loss that `fsync` has not reported yet.
    pub(crate) fn tell(&self) -> Outcome<()> {
        self.kept.tell(*self.seen.lock())
    }

    pub(crate) fn close(self) -> Outcome<()> {
        // Data that could not be made stable may still hold a reference.
        Ok(Arc::into_inner(self.file).map_or(Ok(()), File::close)?)
    }
}
