//! Locks. One of the server's belongs to an open file, one of the kernel's to an owner: so each owner
//! that locks in a file has an open of its own for that.
//!
//! Locks of whole files (`flock`) and of ranges (`fcntl`) are one kind here, as on NFS: they see each
//! other.
//!
//! Invariants
//! * An owner's open lasts from its first lock until it closes the file or unlocks all of it. What is
//!   left is given up with the open.
//! * Requests that wait have threads of their own, a bounded number, so that an unlock always finds one
//!   of the others.

use crate::content::OpenFile;
use crate::convert::errno;
use crate::limits::{LOCK_SIGNAL_PAUSE, LOCK_WAITERS_MAX};
use crate::nodes::NodeId;
use crate::signals;
use crate::tree::Outcome;
use dafs_client::{Error, File, LockError, LockHolder, LockRange, OpenOptions};
use fuser::Errno;
use rustc_hash::FxHashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

type Owners = FxHashMap<(NodeId, u64), Arc<File>>;

/// Who locks where.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    owners: Mutex<Owners>,
    waiters: AtomicUsize,
}

/// A request of an owner.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    pub(crate) owner: u64,
    /// First byte.
    pub(crate) start: u64,
    /// Last byte.
    pub(crate) end: u64,
    pub(crate) exclusive: bool,
    /// The thread that asks.
    pub(crate) thread: u32,
}

/// The kernel's last byte of a file of any length.
const LAST: u64 = i64::MAX as u64;

impl Wanted {
    fn offset_and_length(&self) -> (u64, u64) {
        match self.end {
            LAST.. => (self.start, u64::MAX),
            end => (self.start, end.saturating_sub(self.start) + 1),
        }
    }

    fn range(&self) -> LockRange {
        let (offset, length) = self.offset_and_length();
        let range = if self.exclusive { LockRange::exclusive() } else { LockRange::shared() };
        range.bytes(offset, length)
    }

    fn is_all(&self) -> bool {
        self.start == 0 && self.end >= LAST
    }
}

/// One of the requests that wait.
pub(crate) struct Waiting(Arc<Locks>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waiters.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Locks {
    fn owners(&self) -> MutexGuard<'_, Owners> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The open of an owner, made if it has none.
    fn open_of(&self, file: &OpenFile, owner: u64) -> Outcome<Arc<File>> {
        let key = (file.node, owner);
        if let Some(known) = self.owners().get(&key) {
            return Ok(known.clone());
        }
        let (client, handle) = (file.file.client(), file.file.handle());
        // It may lock in both ways, whatever the first one is, if the user may open it so.
        let ways = [OpenOptions::read_write(), OpenOptions::read(), OpenOptions::write()];
        let mut opened = Err(Errno::EBADF);
        for way in ways {
            opened = client.open_handle(handle, &way.direct(true)).map_err(|error| errno(&error));
            if opened.is_ok() {
                break;
            }
        }
        let opened = Arc::new(opened?);
        // Two threads of one owner may have come here; the first open counts.
        Ok(self.owners().entry(key).or_insert(opened).clone())
    }

    /// Locks if nobody stands in the way.
    pub(crate) fn try_lock(&self, file: &OpenFile, wanted: &Wanted) -> Outcome<()> {
        let open = self.open_of(file, wanted.owner)?;
        open.try_lock(&wanted.range()).map_err(|error| refusal(&error))
    }

    /// A place among the requests that wait.
    pub(crate) fn wait(locks: &Arc<Self>) -> Outcome<Waiting> {
        let more = |waiters| (waiters < LOCK_WAITERS_MAX).then_some(waiters + 1);
        match locks.waiters.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) {
            Ok(_) => Ok(Waiting(locks.clone())),
            Err(_) => Err(Errno::ENOLCK),
        }
    }

    /// Unlocks a range; with all of it, the owner's open goes.
    pub(crate) fn unlock(&self, file: &OpenFile, wanted: &Wanted) -> Outcome<()> {
        if wanted.is_all() {
            return self.leave(file.node, wanted.owner);
        }
        let known = self.owners().get(&(file.node, wanted.owner)).cloned();
        let Some(open) = known else { return Ok(()) };
        let (offset, length) = wanted.offset_and_length();
        open.unlock(offset, length).map_err(|error| errno(&error))
    }

    /// Gives up all that an owner has locked in a file.
    pub(crate) fn leave(&self, node: NodeId, owner: u64) -> Outcome<()> {
        let Some(open) = self.owners().remove(&(node, owner)) else { return Ok(()) };
        open.unlock(0, u64::MAX).map_err(|error| errno(&error))
    }

    /// Who stands in the way.
    pub(crate) fn test(&self, file: &OpenFile, wanted: &Wanted) -> Outcome<Option<LockHolder>> {
        let known = self.owners().get(&(file.node, wanted.owner)).cloned();
        let found = match known {
            Some(open) => open.test_own_lock(&wanted.range()),
            None => file.file.test_lock(&wanted.range()),
        };
        found.map_err(|error| refusal(&error))
    }
}

impl Waiting {
    /// Locks, and waits for those who stand in the way until a signal comes.
    pub(crate) fn lock(&self, file: &OpenFile, wanted: &Wanted) -> Outcome<()> {
        let open = self.0.open_of(file, wanted.owner)?;
        loop {
            match open.lock(&wanted.range(), Some(LOCK_SIGNAL_PAUSE)) {
                Err(LockError::Held(_)) if signals::is_interrupted(wanted.thread) => {
                    return Err(Errno::EINTR);
                }
                Err(LockError::Held(_)) => {}
                other => return other.map_err(|error| refusal(&error)),
            }
        }
    }
}

fn refusal(error: &LockError) -> Errno {
    match error {
        LockError::Held(_) => Errno::EAGAIN,
        LockError::Broken(_) => Errno::EIO,
        LockError::Other(error @ Error::Status { .. }) => match errno(error) {
            // A file that was opened in the other way.
            Errno::EACCES => Errno::EBADF,
            other => other,
        },
        LockError::Other(error) => errno(error),
        _ => Errno::EIO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_told_by_their_last_byte() {
        let wanted = |start, end| Wanted { owner: 1, start, end, exclusive: true, thread: 1 };
        assert_eq!(wanted(10, 19).offset_and_length(), (10, 10));
        assert_eq!(wanted(10, LAST).offset_and_length(), (10, u64::MAX));
        assert_eq!(wanted(0, u64::MAX).offset_and_length(), (0, u64::MAX));
        assert!(wanted(0, LAST).is_all() && !wanted(1, LAST).is_all() && !wanted(0, 5).is_all());
    }
}
