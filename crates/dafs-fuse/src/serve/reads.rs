//! Reads, carried out by the thread that has received them, or answered by whichever one drives the client.
//!
//! Several programs that read at a time would else cost the wake-up of a thread for each answer: the one that
//! drives the client knows that it has come, and another one waits for it.
//!
//! Invariants
//! * A read that was handed over is answered once: with what one attempt has brought, or by a thread of its
//!   own if that is not all there is to it.
//! * Whoever is told of one finds nobody else at the file: who closes it then is told how that went.
//! * Nothing that is locked here, or in what is asked here, is locked while the client is called: whoever
//!   calls it may drive it, and so come here.
//! * Its data comes to a buffer of its own, which is used again only when nobody can put anything there.
//! * They are counted, so that their number is bounded and their end can be waited for.

use super::Server;
use crate::content::OpenFile;
use crate::convert::errno;
use crate::kernel::Errno;
use crate::limits::{HANDED_READ_BYTES_MAX, HANDED_READS_MAX};
use crate::tree::Outcome;
use dafs_client::{Error, IoBuffer, ReadPart, Result};
use dafs_mem::VolatileSlice;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// The reads that were handed over.
#[derive(Debug, Default)]
pub(crate) struct Handed {
    state: Mutex<State>,
    /// None is left.
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    count: usize,
    /// Buffers that nobody uses.
    free: Vec<IoBuffer>,
}

impl Handed {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for one more, and a buffer if there is one; `None` when there are too many.
    fn begin(&self) -> Option<Option<IoBuffer>> {
        let mut state = self.state();
        if state.count >= HANDED_READS_MAX {
            return None;
        }
        state.count += 1;
        Some(state.free.pop())
    }

    fn end(&self, buffer: Option<IoBuffer>) {
        let mut state = self.state();
        state.free.extend(buffer);
        state.count -= 1;
        if state.count == 0 {
            self.ended.notify_all();
        }
    }

    /// Waits until none is left; false when that takes longer than it may. No more are to be begun.
    pub(crate) fn wait(&self, until: Instant) -> bool {
        let left = until.saturating_duration_since(Instant::now());
        let waited = self.ended.wait_timeout_while(self.state(), left, |state| state.count > 0);
        waited.unwrap_or_else(PoisonError::into_inner).0.count == 0
    }
}

/// A read that was handed over.
struct HandedRead {
    server: Arc<Server>,
    /// Its name, for the answer.
    unique: u64,
    offset: u64,
    len: u32,
    /// It has begun, and the kernel waits for the answer.
    is_owed: bool,
    /// To be used again.
    buffer: Option<IoBuffer>,
}

impl Drop for HandedRead {
    fn drop(&mut self) {
        if self.is_owed {
            // By a panic, or for want of a thread.
            self.answer(Err(Errno::EIO));
        }
        self.server.handed.end(self.buffer.take());
    }
}

impl Server {
    /// Reads to the front of `data`; tells the bytes read.
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

    /// Lets whoever drives the client answer a read; false when this thread has to carry it out.
    ///
    /// # Errors
    /// A lock stands against it. It is not answered then.
    pub(super) fn hand_over(
        self: &Arc<Self>,
        file: &Arc<OpenFile>,
        unique: u64,
        offset: u64,
        len: u32,
    ) -> Outcome<bool> {
        let bytes = len as usize;
        // Copying much would keep all others waiting; what is in doubt takes more than one request.
        if bytes > HANDED_READ_BYTES_MAX || file.kept.is_in_doubt() {
            return Ok(false);
        }
        self.locks.check(file.node)?;
        let Some(free) = self.handed.begin() else { return Ok(false) };
        let server = self.clone();
        let read = HandedRead { server, unique, offset, len, is_owed: false, buffer: None };
        // What cannot be begun so has not begun at all, and this thread has what it takes.
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
    /// The server has answered, or never will. Waits for nothing.
    fn over(mut self, file: Arc<OpenFile>, buffer: IoBuffer, part: Result<ReadPart>) {
        self.is_owed = true;
        let outcome = match part {
            Ok(part) if part.is_end || part.bytes >= self.len as usize => Ok(part.bytes),
            // There is more to it.
            Ok(_) | Err(Error::Status { .. }) => return self.repeat(file),
            Err(error) => Err(errno(&error)),
        };
        // A server that has restarted meanwhile may have told what was there before.
        if outcome.is_ok() && file.kept.is_in_doubt() {
            return self.repeat(file);
        }
        let checked = outcome.and_then(|bytes| self.server.locks.check(file.node).map(|()| bytes));
        // Who is told may close the file, and is to be the last one who has it.
        drop(file);
        self.answer(checked.and_then(|bytes| buffer.slice(0, bytes).ok_or(Errno::EIO)));
        // After a failure the server may still put something there.
        self.buffer = outcome.is_ok().then_some(buffer);
    }

    /// Lets a thread of its own carry it out in the ordinary way.
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
