//! The server's part for files with retained writes, and the files of a mount.
//!
//! Invariants
//! * All users of a file share its retained writes.

use super::file::{Failure, Queue, RetainedFile, Store};
use super::memory::Memory;
use crate::convert::errno;
use crate::kernel::{Errno, NodeId};
use crate::limits::WRITE_BYTES_MAX;
use crate::locking::Locks;
use crate::tree::Outcome;
use dafs_client::{
    Client, Error, File, FileHandle, IoBuffer, Stability, Status, Verifier, WriteState,
};
use dafs_mem::Mutex;
use rustc_hash::FxHashMap;
use std::ops::Range;
use std::sync::{Arc, Weak, mpsc};
use std::time::Duration;

/// A file of the server.
#[derive(Debug)]
pub(crate) struct Remote {
    client: Client,
    handle: FileHandle,
    node: NodeId,
    locks: Arc<Locks>,
}

fn failure(error: &Error) -> Failure {
    let errno = errno(error);
    match error {
        Error::Memory(_)
        | Error::InDoubt { .. }
        | Error::TooMany
        | Error::TimedOut(_)
        | Error::Canceled
        | Error::Unsendable(_) => Failure::Passing(errno),
        error if error.is_fatal() => Failure::Passing(errno),
        Error::Status { status: Status::Delay | Status::Grace | Status::Resource, .. } => {
            Failure::Passing(errno)
        }
        _ => Failure::Final(errno),
    }
}

impl Store for Remote {
    type Writer = Arc<File>;
    type Buffer = IoBuffer;

    fn write(
        &self,
        writer: &Arc<File>,
        from: &IoBuffer,
        range: Range<usize>,
        offset: u64,
    ) -> Result<WriteState, Failure> {
        writer.write_retained(from, range, offset).map_err(|error| failure(&error))
    }

    fn write_stably(
        &self,
        writer: &Arc<File>,
        from: &IoBuffer,
        len: usize,
        offset: u64,
    ) -> Result<(), Failure> {
        let written = writer.write_from(from, 0..len, offset, Stability::FileSync);
        written.map(drop).map_err(|error| failure(&error))
    }

    fn commit(&self) -> Result<Verifier, Failure> {
        self.client.commit(&self.handle).map_err(|error| failure(&error))
    }

    fn buffer(&self) -> Result<IoBuffer, Failure> {
        self.client.buffer(WRITE_BYTES_MAX as usize).map_err(|error| failure(&error))
    }

    fn may_write_again(&self) -> bool {
        self.locks.check(self.node).is_ok()
    }

    fn size(&self) -> Option<u64> {
        self.client.attributes(&self.handle).ok().map(|found| found.size)
    }

    fn restarts(&self) -> u64 {
        self.client.restarts()
    }
}

/// The open files.
#[derive(Debug, Default)]
pub(crate) struct RetainedFiles {
    files: Mutex<FxHashMap<FileHandle, Weak<RetainedFile<Remote>>>>,
    memory: Arc<Memory<IoBuffer>>,
    queue: Arc<Queue<Remote>>,
}

impl RetainedFiles {
    /// The file of a handle, for a new user.
    pub(crate) fn opened(
        &self,
        file: &File,
        node: NodeId,
        locks: &Arc<Locks>,
    ) -> Arc<RetainedFile<Remote>> {
        let mut files = self.files.lock();
        if let Some(known) = files.get(file.handle()).and_then(Weak::upgrade) {
            return known;
        }
        // From time to time, so that closed files are not more than the open ones.
        if files.len() == files.capacity() {
            files.retain(|_, file| file.strong_count() > 0);
        }
        let handle = *file.handle();
        let store = Remote { client: file.client().clone(), handle, node, locks: locks.clone() };
        let new = RetainedFile::new(store, self.memory.clone(), self.queue.clone());
        files.insert(handle, Arc::downgrade(&new));
        new
    }

    /// The file of a handle, if it is open.
    pub(crate) fn find(&self, handle: &FileHandle) -> Option<Arc<RetainedFile<Remote>>> {
        let files = self.files.lock();
        files.get(handle).and_then(Weak::upgrade)
    }

    /// Makes all retained writes stable, within `patience`.
    ///
    /// # Errors
    /// The first one; all are tried.
    pub(crate) fn settle(&self, patience: Duration) -> Outcome<()> {
        let files = self.queue.all();
        if files.is_empty() {
            return Ok(());
        }
        // In a thread of its own: another thread may hold the lock, and wait for the server for
        // ever.
        let (tell, end) = mpsc::channel();
        let thread = std::thread::Builder::new().name("dafs-settle".into());
        let started = thread.spawn(move || {
            let settle = || {
                let settled: Vec<_> = files.iter().map(|file| file.settle()).collect();
                settled.into_iter().collect::<Outcome<()>>()
            };
            let _ = tell.send(dafs_client::within(patience, settle));
        });
        started.map_err(|_| Errno::EAGAIN)?;
        end.recv_timeout(patience).unwrap_or(Err(Errno::ETIMEDOUT))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_commit_may_be_done_later() {
        let errors = [Error::TimedOut(Duration::ZERO), Error::Canceled, Error::TooMany];
        for error in errors {
            assert_eq!(failure(&error), Failure::Passing(errno(&error)));
        }
        assert_eq!(failure(&Error::DelegationLost), Failure::Final(Errno::EIO));
    }
}
