//! Locks: requests, tests and waiting.

use super::{Answer, Server};
use crate::kernel::{self, Errno, LockFound, LockWanted, NodeId, Request};
use crate::locking::{Locks, Request as Asked, Wanted};
use crate::tree::Outcome;
use std::sync::Arc;

fn wanted(from: &LockWanted) -> Wanted {
    let exclusive = from.kind == libc::F_WRLCK;
    let LockWanted { owner, start, end, process, .. } = *from;
    Wanted { owner, start, end, exclusive, process }
}

impl Server {
    pub(super) fn test_lock(&self, from: &LockWanted) -> Outcome<Answer> {
        let found = self.locks.test(&*self.file(from.handle)?, &wanted(from))?;
        let last = i64::MAX as u64;
        let answer = match found {
            // A lock that begins beyond the largest offset of this system conflicts with none here.
            Some((holder, process)) if holder.offset <= last => {
                let kind = if holder.exclusive { libc::F_WRLCK } else { libc::F_RDLCK };
                let end = holder.offset.saturating_add(holder.length.saturating_sub(1)).min(last);
                LockFound { start: holder.offset, end, kind, process }
            }
            _ => LockFound { start: 0, end: 0, kind: libc::F_UNLCK, process: 0 },
        };
        Ok(kernel::lock(&answer).into())
    }

    pub(super) fn lock(
        self: &Arc<Self>,
        request: &Request<'_>,
        from: &LockWanted,
        waits: bool,
    ) -> Outcome<Answer> {
        let wanted = wanted(from);
        let file = self.file(from.handle)?;
        if from.kind == libc::F_UNLCK {
            if !self.locks.holds(file.node, wanted.owner) {
                return Ok(().into());
            }
            let (_, unlocked) = file.kept.unlock(|| self.locks.unlock(&file, &wanted));
            return unlocked.map(Answer::from);
        }
        self.answer_lock(Asked { unique: request.unique, handle: from.handle, wanted }, waits)?;
        Ok(Answer::Later)
    }

    /// Answers a request for a lock once it is granted.
    ///
    /// The kernel's cache of the file is dropped before: other clients may have changed the file
    /// until the lock was granted. The drop may wait for reads of the file, so it runs on no thread
    /// that these need.
    ///
    /// # Errors
    /// Another owner has a conflicting lock, and the request does not wait; or too many requests
    /// wait.
    pub(crate) fn answer_lock(self: &Arc<Self>, asked: Asked, waits: bool) -> Outcome<()> {
        let file = self.file(asked.handle)?;
        let waiting = Locks::wait(&self.locks, asked)?;
        let is_had = match waiting.try_lock(&file) {
            Err(Errno::EAGAIN) if waits => false,
            other => other.map(|()| true)?,
        };
        let server = self.clone();
        let thread = std::thread::Builder::new().name("dafs-lock".into());
        let held = file.clone();
        let started = thread.spawn(move || {
            let outcome = if is_had { Some(Ok(())) } else { waiting.lock(&file) };
            let Some(outcome) = outcome else { return };
            if outcome.is_ok() {
                // Reads that it would wait for may not be answered any more.
                if server.locks.is_paused() {
                    return waiting.leave_unanswered();
                }
                server.forget_content(file.node);
            }
            server.device.answer(asked.unique, outcome.map(|()| &[][..]));
            drop(waiting);
        });
        started.map(drop).map_err(|error| {
            tracing::warn!(%error, "no thread to answer a request for a lock");
            if is_had && let Err(error) = self.locks.unlock(&held, &asked.wanted) {
                tracing::warn!(?error, "a lock that nobody knows of stays");
            }
            Errno::ENOLCK
        })
    }

    /// Goes on with requests for locks after a handover that failed.
    pub(crate) fn resume_locks(self: &Arc<Self>) {
        self.locks.resume();
        for asked in self.locks.unanswered() {
            if let Err(error) = self.answer_lock(asked, true) {
                self.device.answer(asked.unique, Err(error));
            }
        }
    }

    /// Makes the kernel drop its cache of a file: content and attributes.
    pub(super) fn forget_content(&self, node: NodeId) {
        if let Err(error) = self.device.forget_content(node) {
            tracing::warn!(%error, node, "the kernel did not drop what it keeps of a file");
        }
    }
}
