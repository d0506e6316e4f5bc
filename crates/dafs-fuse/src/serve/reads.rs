//! Reads, carried out by the thread that has received them, or handed over to the thread that
//! drives the client.
//!
//! Otherwise, with several concurrent readers, each answer would cost the wake-up of a thread: one
//! thread drives the client and sees the answer, and another one waits for it. A read that needs no
//! request, because the server shows the bytes in memory, is answered by the thread that hands it over.
//!
//! Invariants
//! * A read that was handed over is answered once: with the result of one attempt, or by a thread
//!   of its own if that is not all.
//! * When the kernel gets the answer, the read no longer uses the file: so a close that follows it
//!   gets the file's errors.
//! * No lock of this module, or of code that it calls, is held while the client is called: a thread
//!   that calls the client may drive it, and so run this code. That would be a deadlock.
//! * Its data arrives in a buffer of its own, which is reused only when no one can write to it any
//!   more.
//! * They are counted, so that their number is bounded and their end can be waited for.

use super::Server;
use crate::content::OpenFile;
use crate::convert::errno;
use crate::kernel::Errno;
use crate::limits::{HANDED_READ_BYTES_MAX, HANDED_READS_MAX};
use crate::tree::Outcome;
use dafs_client::{Error, IoBuffer, ReadPart, Result};
use dafs_mem::{Condvar, Mutex, VolatileSlice};
use std::sync::Arc;
use std::time::Instant;

/// The reads that were handed over.
#[derive(Debug, Default)]
pub(crate) struct Handed {
    state: Mutex<State>,
    /// Signals that none is left.
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    count: usize,
    free: Vec<IoBuffer>,
}

impl Handed {
    /// Room for one more, and a buffer if there is a free one; `None` when there are too many.
    fn begin(&self) -> Option<Option<IoBuffer>> {
        let mut state = self.state.lock();
        if state.count >= HANDED_READS_MAX {
            return None;
        }
        state.count += 1;
        Some(state.free.pop())
    }

    fn end(&self, buffer: Option<IoBuffer>) {
        let mut state = self.state.lock();
        state.free.extend(buffer);
        state.count -= 1;
        if state.count == 0 {
            self.ended.notify_all();
        }
    }

    /// Waits until none is left; false at the timeout. The caller prevents new ones.
    pub(crate) fn wait(&self, until: Instant) -> bool {
        let left = until.saturating_duration_since(Instant::now());
        let waited =
            self.ended.wait_timeout_while(self.state.lock(), left, |state| state.count > 0);
        waited.0.count == 0
    }
}

/// A read that was handed over.
struct HandedRead {
    server: Arc<Server>,
    /// Its number, for the answer.
    unique: u64,
    offset: u64,
    len: u32,
    /// It has begun, and the kernel waits for the answer.
    is_owed: bool,
    /// To be reused.
    buffer: Option<IoBuffer>,
}

impl Drop for HandedRead {
    fn drop(&mut self) {
        if self.is_owed {
            // By a panic, or because no thread could be started.
            self.answer(Err(Errno::EIO));
        }
        self.server.handed.end(self.buffer.take());
    }
}

impl Server {
    /// Reads to the front of `data`; returns the bytes read.
    pub(super) fn read(
        &self,
        file: &OpenFile,
        data: &IoBuffer,
        offset: u64,
        len: u32,
    ) -> Outcome<usize> {
        self.locks.check(file.node)?;
        let bytes = file.read(data, offset, len)?;
        self.locks.check(file.node)?;
        Ok(bytes)
    }

    /// Lets the thread that drives the client answer a read, or answers it if it needs no request; false
    /// when this thread has to carry it out.
    ///
    /// # Errors
    /// A lock was lost. The read is not answered then.
    pub(super) fn hand_over(
        self: &Arc<Self>,
        file: &Arc<OpenFile>,
        unique: u64,
        offset: u64,
        len: u32,
    ) -> Outcome<bool> {
        let bytes = len as usize;
        // Copying much would delay all others; a read of a file in doubt takes more than one
        // request.
        if bytes > HANDED_READ_BYTES_MAX || file.kept.is_in_doubt() {
            return Ok(false);
        }
        self.locks.check(file.node)?;
        let Some(free) = self.handed.begin() else { return Ok(false) };
        let server = self.clone();
        let read = HandedRead { server, unique, offset, len, is_owed: false, buffer: None };
        // A read that cannot be submitted has not begun, and this thread can carry it out.
        let failed = |error| {
            tracing::debug!(%error, "a read is not handed over");
            Ok(false)
        };
        let buffer = match free.map_or_else(|| self.tree.client.buffer(HANDED_READ_BYTES_MAX), Ok) {
            Ok(buffer) => buffer,
            Err(error) => return failed(error),
        };
        let shared = file.clone();
        let then = move |buffer, part| read.over(shared, buffer, part);
        file.file.read_then(buffer, 0..bytes, offset, then).map_or_else(failed, |()| Ok(true))
    }
}

impl HandedRead {
    /// The server has answered, or never will. Does not block.
    fn over(mut self, file: Arc<OpenFile>, buffer: IoBuffer, part: Result<ReadPart>) {
        self.is_owed = true;
        let outcome = match part {
            Ok(part) if part.is_end || part.bytes >= self.len as usize => Ok(part.bytes),
            // The read needs another request.
            Ok(_) | Err(Error::Status { .. }) => return self.repeat(file),
            Err(error) => Err(error.into()),
        };
        // A server that has restarted meanwhile may have returned old data.
        if outcome.is_ok() && file.kept.is_in_doubt() {
            return self.repeat(file);
        }
        let checked = outcome.and_then(|bytes| self.server.locks.check(file.node).map(|()| bytes));
        // After the answer the kernel may close the file, and must be its last user.
        drop(file);
        self.answer(checked.and_then(|bytes| buffer.slice(0, bytes).ok_or(Errno::EIO)));
        // After a failure the server may still write to it.
        self.buffer = outcome.is_ok().then_some(buffer);
    }

    /// Carries it out on a thread of its own, in the ordinary way.
    fn repeat(self, file: Arc<OpenFile>) {
        let thread = std::thread::Builder::new().name("dafs-read".into());
        if let Err(error) = thread.spawn(move || self.carry_out(file)) {
            tracing::warn!(%error, "no thread for a read that takes more than one request");
        }
    }

    fn carry_out(mut self, file: Arc<OpenFile>) {
        let buffer = self.server.tree.client.buffer(HANDED_READ_BYTES_MAX);
        let outcome = match &buffer {
            Ok(buffer) => {
                let read = self.server.read(&file, buffer, self.offset, self.len);
                read.and_then(|bytes| buffer.slice(0, bytes).ok_or(Errno::EIO))
            }
            Err(error) => Err(errno(error)),
        };
        drop(file);
        self.answer(outcome);
    }

    fn answer(&mut self, outcome: Outcome<VolatileSlice<'_>>) {
        self.is_owed = false;
        match outcome {
            Ok(data) => self.server.device.answer_data(self.unique, data),
            Err(error) => self.server.device.answer(self.unique, Err(error)),
        }
    }
}
