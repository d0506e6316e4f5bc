//! Locks. A lock of the server belongs to an open file, a lock of the kernel to an owner: so each
//! owner that locks in a file has an open of its own for that.
//!
//! Locks of whole files (`flock`) and of ranges (`fcntl`) are one kind here, as on NFS: they
//! conflict with each other.
//!
//! Invariants
//! * An owner's open lasts from its first lock until it closes the file or unlocks all of it, until
//!   the last handle that it locked through is closed, and no shorter than its requests that are
//!   under way. Closing the open releases its remaining locks.
//! * Requests that wait have threads of their own, a bounded number, so that an unlock always finds
//!   a free one.
//! * While one of a node's locks is lost, all processes that may believe to hold it are refused
//!   reads and writes of the file.

use crate::content::OpenFile;
use crate::convert::errno;
use crate::kernel::{Errno, NodeId};
use crate::limits::{INTERRUPTS_KEPT, LOCK_SIGNAL_PAUSE, LOCK_WAITERS_MAX};
use crate::tree::Outcome;
use dafs_client::{Error, File, LockError, LockHolder, LockRange, OpenOptions, Status, acting_as};
use dafs_mem::{Condvar, Mutex};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A lock owner in a file.
#[derive(Debug)]
struct Owner {
    name: u64,
    open: Arc<File>,
    /// True when its open can write.
    may_write: bool,
    /// The process that asked last.
    process: u32,
    /// The open files that it has locked through.
    handles: Vec<u64>,
    /// Its requests that are under way.
    requests: usize,
}

/// The lock owners of all files.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    owners: Mutex<FxHashMap<NodeId, Vec<Owner>>>,
    waiters: Mutex<Waiters>,
    /// Signals that a waiting request has ended.
    left: Condvar,
    /// No request waits any more: another process takes them over.
    is_paused: AtomicBool,
}

/// The requests that wait.
#[derive(Debug, Default)]
struct Waiters {
    /// By number; true once the request was interrupted.
    waiting: FxHashMap<u64, bool>,
    /// Numbers of requests that were interrupted before they waited, if they are for locks at all.
    given_up: VecDeque<u64>,
    /// Requests that were left unanswered for another process.
    unanswered: Vec<Request>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Request {
    /// Its number, for the answer.
    pub(crate) unique: u64,
    /// The open file.
    pub(crate) handle: u64,
    pub(crate) wanted: Wanted,
}

/// The lock or unlock that an owner asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) owner: u64,
    /// First byte.
    pub(crate) start: u64,
    /// Last byte.
    pub(crate) end: u64,
    pub(crate) exclusive: bool,
    /// The process that asks.
    pub(crate) process: u32,
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

/// One of the requests that may wait.
pub(crate) struct Waiting {
    locks: Arc<Locks>,
    request: Request,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.locks.waiters.lock().waiting.remove(&self.request.unique);
        self.locks.left.notify_all();
    }
}

/// A request of an owner that is under way.
struct UnderWay<'a> {
    locks: &'a Locks,
    node: NodeId,
    owner: u64,
    open: Arc<File>,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        // An owner without locks was refused all of them, or has released them meanwhile.
        let gone = self.locks.with_owner(self.node, self.owner, |owner| {
            owner.requests -= 1;
            owner.requests == 0 && owner.open.locks().is_ok_and(|held| held.is_empty())
        });
        drop(gone);
    }
}

impl Locks {
    /// Changes an owner; removes it when `change` says so.
    fn with_owner(
        &self,
        node: NodeId,
        name: u64,
        change: impl FnOnce(&mut Owner) -> bool,
    ) -> Option<Owner> {
        let mut nodes = self.owners.lock();
        let owners = nodes.get_mut(&node)?;
        let place = owners.iter().position(|owner| owner.name == name)?;
        if !change(&mut owners[place]) {
            return None;
        }
        let gone = owners.swap_remove(place);
        if owners.is_empty() {
            nodes.remove(&node);
        }
        Some(gone)
    }

    /// The open of an owner, and true if it can write.
    fn opened(&self, node: NodeId, owner: u64) -> Option<(Arc<File>, bool)> {
        let nodes = self.owners.lock();
        let found = nodes.get(&node)?.iter().find(|known| known.name == owner)?;
        Some((found.open.clone(), found.may_write))
    }

    fn open_of(&self, node: NodeId, owner: u64) -> Option<Arc<File>> {
        self.opened(node, owner).map(|(open, _)| open)
    }

    /// Begins a request of an owner; makes its open if it has none.
    fn begin(&self, file: &OpenFile, handle: u64, wanted: &Wanted) -> Outcome<UnderWay<'_>> {
        let Wanted { owner: name, process, .. } = *wanted;
        let mut made = None;
        let (mut nodes, place) = loop {
            if made.is_none() && self.opened(file.node, name).is_none() {
                let (open, may_write) = open_to_lock(file)?;
                made = Some((Arc::new(open), may_write));
            }
            let mut nodes = self.owners.lock();
            let owners = nodes.entry(file.node).or_default();
            match owners.iter().position(|owner| owner.name == name) {
                // Two threads of one owner may race to here; the first open counts.
                Some(place) => break (nodes, place),
                None => {
                    // The owner has left meanwhile, and its open is being unlocked: it needs a new
                    // one.
                    let Some((open, may_write)) = made.take() else {
                        if owners.is_empty() {
                            nodes.remove(&file.node);
                        }
                        continue;
                    };
                    let (handles, requests) = (Vec::new(), 0);
                    owners.push(Owner { name, open, may_write, process, handles, requests });
                    let place = owners.len() - 1;
                    break (nodes, place);
                }
            }
        };
        let owners = nodes.entry(file.node).or_default();
        let owner = &mut owners[place];
        owner.requests += 1;
        owner.process = process;
        if !owner.handles.contains(&handle) {
            owner.handles.push(handle);
        }
        let open = owner.open.clone();
        drop(nodes);
        // An open that lost the race is closed without the lock.
        drop(made);
        Ok(UnderWay { locks: self, node: file.node, owner: name, open })
    }

    /// Locks if no lock conflicts.
    pub(crate) fn try_lock(&self, file: &OpenFile, handle: u64, wanted: &Wanted) -> Outcome<()> {
        let request = self.begin(file, handle, wanted)?;
        request.open.try_lock(&wanted.range()).map_err(|error| refusal(&error))
    }

    /// Unlocks a range; unlocking all of it closes the owner's open.
    pub(crate) fn unlock(&self, file: &OpenFile, wanted: &Wanted) -> Outcome<()> {
        if wanted.is_all() {
            return self.leave(file.node, wanted.owner);
        }
        let Some(open) = self.open_of(file.node, wanted.owner) else { return Ok(()) };
        let (offset, length) = wanted.offset_and_length();
        Ok(open.unlock(offset, length)?)
    }

    /// True when an owner has locks in a file. An owner without locks is removed, unless a request
    /// of it is under way, which a close or an unlock does not concern.
    pub(crate) fn holds(&self, node: NodeId, name: u64) -> bool {
        let mut holds = false;
        let gone = self.with_owner(node, name, |owner| {
            holds = owner.open.locks().map_or(true, |held| !held.is_empty());
            !holds && owner.requests == 0
        });
        drop(gone);
        holds
    }

    /// Releases all locks of an owner in a file.
    pub(crate) fn leave(&self, node: NodeId, owner: u64) -> Outcome<()> {
        self.leave_if(node, owner, |_| true)
    }

    /// As [`leave`](Self::leave), if `may` still agrees.
    fn leave_if(&self, node: NodeId, owner: u64, may: impl FnOnce(&Owner) -> bool) -> Outcome<()> {
        let mut open = None;
        let gone = self.with_owner(node, owner, |owner| {
            open = may(owner).then(|| owner.open.clone());
            // A request that is under way still uses the open.
            open.is_some() && owner.requests == 0
        });
        let unlocked = open.map_or(Ok(()), |open| open.unlock(0, u64::MAX));
        drop(gone);
        Ok(unlocked?)
    }

    /// An open file is closed; returns the owners with locks that have locked through no other one.
    pub(crate) fn closed(&self, node: NodeId, handle: u64) -> Vec<u64> {
        let mut leaving = Vec::new();
        if let Some(owners) = self.owners.lock().get_mut(&node) {
            for owner in owners {
                owner.handles.retain(|known| *known != handle);
                if owner.handles.is_empty() {
                    leaving.push(owner.name);
                }
            }
        }
        leaving.retain(|owner| self.holds(node, *owner));
        leaving
    }

    /// Releases the locks of these owners.
    pub(crate) fn leave_closed(&self, node: NodeId, owners: &[u64]) -> Outcome<()> {
        let mut done = Ok(());
        for owner in owners {
            // It may have locked through another one by now.
            done = done.and(self.leave_if(node, *owner, |owner| owner.handles.is_empty()));
        }
        done
    }

    /// The holder of a conflicting lock, and its process on this mount: 0 for another client.
    pub(crate) fn test(
        &self,
        file: &OpenFile,
        wanted: &Wanted,
    ) -> Outcome<Option<(LockHolder, u32)>> {
        let found = match self.open_of(file.node, wanted.owner) {
            Some(open) => open.test_own_lock(&wanted.range()),
            None => file.file.test_lock(&wanted.range()),
        };
        let Some(holder) = found.map_err(|error| refusal(&error))? else { return Ok(None) };
        let nodes = self.owners.lock();
        let mut owners = nodes.get(&file.node).into_iter().flatten();
        let process = owners.find(|owner| owner.open.is_holder(&holder)).map(|owner| owner.process);
        Ok(Some((holder, process.unwrap_or(0))))
    }

    /// # Errors
    /// EIO: one of the locks in a file was lost, and another client may have it by now.
    pub(crate) fn check(&self, node: NodeId) -> Outcome<()> {
        let nodes = self.owners.lock();
        match nodes.get(&node) {
            Some(owners) if owners.iter().any(|owner| owner.open.locks().is_err()) => {
                Err(Errno::EIO)
            }
            _ => Ok(()),
        }
    }

    /// An open with locks in a file that can write, if there is one: the server refuses writes
    /// through it once they are lost.
    ///
    /// # Errors
    /// As [`check`](Self::check).
    pub(crate) fn writer(&self, node: NodeId) -> Outcome<Option<Arc<File>>> {
        let nodes = self.owners.lock();
        let Some(owners) = nodes.get(&node) else { return Ok(None) };
        let mut found = None;
        for owner in owners {
            let locks = owner.open.locks().map_err(|_| Errno::EIO)?;
            if owner.may_write && !locks.is_empty() {
                found = Some(owner.open.clone());
            }
        }
        Ok(found)
    }

    /// A place among the requests that may wait.
    pub(crate) fn wait(locks: &Arc<Self>, request: Request) -> Outcome<Waiting> {
        let mut waiters = locks.waiters.lock();
        if waiters.waiting.len() >= LOCK_WAITERS_MAX {
            return Err(Errno::ENOLCK);
        }
        let is_given_up = waiters.given_up.contains(&request.unique);
        waiters.waiting.insert(request.unique, is_given_up);
        Ok(Waiting { locks: locks.clone(), request })
    }

    /// Interrupts a request.
    pub(crate) fn give_up(&self, unique: u64) {
        let mut waiters = self.waiters.lock();
        if let Some(is_given_up) = waiters.waiting.get_mut(&unique) {
            *is_given_up = true;
            return;
        }
        // Another thread may be about to process it.
        if waiters.given_up.len() >= INTERRUPTS_KEPT {
            waiters.given_up.pop_front();
        }
        waiters.given_up.push_back(unique);
    }

    /// Ends all waiting, so that another process can take over the waiting requests; false at the
    /// timeout.
    pub(crate) fn pause(&self, patience: Duration) -> bool {
        self.is_paused.store(true, Ordering::SeqCst);
        let some_wait = |waiters: &mut Waiters| !waiters.waiting.is_empty();
        let waited = self.left.wait_timeout_while(self.waiters.lock(), patience, some_wait);
        let (waiters, _) = waited;
        waiters.waiting.is_empty()
    }

    /// True when no request may wait or make the kernel drop pages.
    pub(crate) fn is_paused(&self) -> bool {
        self.is_paused.load(Ordering::SeqCst)
    }

    /// Requests that were interrupted and are not known to wait.
    pub(crate) fn given_up(&self) -> Vec<u64> {
        self.waiters.lock().given_up.iter().copied().collect()
    }

    /// The requests that were left unanswered since the waiting was ended.
    pub(crate) fn unanswered(&self) -> Vec<Request> {
        std::mem::take(&mut self.waiters.lock().unanswered)
    }

    /// Leaves requests unanswered again that no process has taken over.
    pub(crate) fn take_back(&self, requests: Vec<Request>) {
        self.waiters.lock().unanswered.extend(requests);
    }

    /// Lets requests wait again.
    pub(crate) fn resume(&self) {
        self.is_paused.store(false, Ordering::SeqCst);
    }

    /// Calls `each` with all owners: node, name and process, open, and the handles it locked
    /// through.
    pub(crate) fn for_each(&self, mut each: impl FnMut(NodeId, (u64, u32), &File, &[u64])) {
        for (node, owners) in self.owners.lock().iter() {
            for owner in owners {
                each(*node, (owner.name, owner.process), &owner.open, &owner.handles);
            }
        }
    }

    /// Takes over an owner of another process.
    pub(crate) fn take_over(
        &self,
        node: NodeId,
        (name, process): (u64, u32),
        open: (File, bool),
        handles: Vec<u64>,
    ) {
        let (open, may_write) = (Arc::new(open.0), open.1);
        let owner = Owner { name, open, may_write, process, handles, requests: 0 };
        self.owners.lock().entry(node).or_default().push(owner);
    }
}

/// An open for locks alone, and true if it can write.
fn open_to_lock(file: &OpenFile) -> Outcome<(File, bool)> {
    let (client, handle) = (file.file.client(), file.file.handle());
    // It may lock in both modes later, if the user may open the file so.
    let mut refused = Errno::EBADF;
    let ways = [OpenOptions::read_write(), OpenOptions::read(), OpenOptions::write()];
    for (way, may_write) in ways.into_iter().zip([true, false, true]) {
        match acting_as(file.user.as_ref(), || client.open_handle(handle, &way.direct(true))) {
            Ok(open) => return Ok((open, may_write)),
            Err(error) => match error.status() {
                Some(Status::Acces | Status::Perm | Status::RoFs) => refused = errno(&error),
                _ => return Err(errno(&error)),
            },
        }
    }
    Err(refused)
}

impl Waiting {
    /// Locks if no lock conflicts.
    pub(crate) fn try_lock(&self, file: &OpenFile) -> Outcome<()> {
        self.locks.try_lock(file, self.request.handle, &self.request.wanted)
    }

    /// Leaves the answer to another process, which gets the lock at once if its owner has it.
    pub(crate) fn leave_unanswered(&self) {
        self.locks.waiters.lock().unanswered.push(self.request);
    }

    /// Locks, and waits for conflicting locks until the request is interrupted; `None` when another
    /// process takes it over.
    pub(crate) fn lock(&self, file: &OpenFile) -> Option<Outcome<()>> {
        let Request { unique, handle, wanted } = &self.request;
        let under_way = match self.locks.begin(file, *handle, wanted) {
            Ok(under_way) => under_way,
            Err(error) => return Some(Err(error)),
        };
        let is_given_up = || self.locks.waiters.lock().waiting.get(unique) == Some(&true);
        loop {
            if self.locks.is_paused() {
                // The other process would not see the interrupt.
                if is_given_up() {
                    return Some(Err(Errno::EINTR));
                }
                self.leave_unanswered();
                return None;
            }
            match under_way.open.lock(&wanted.range(), Some(LOCK_SIGNAL_PAUSE)) {
                Err(LockError::Held(_)) if is_given_up() => return Some(Err(Errno::EINTR)),
                Err(LockError::Held(_)) => {}
                other => return Some(other.map_err(|error| refusal(&error))),
            }
        }
    }
}

fn refusal(error: &LockError) -> Errno {
    match error {
        LockError::Held(_) => Errno::EAGAIN,
        LockError::Broken(_) => Errno::EIO,
        LockError::Other(error @ Error::Status { .. }) => match errno(error) {
            // A file that was opened with the other access mode.
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
        let wanted = |start, end| Wanted { owner: 1, start, end, exclusive: true, process: 77 };
        assert_eq!(wanted(10, 19).offset_and_length(), (10, 10));
        assert_eq!(wanted(10, LAST).offset_and_length(), (10, u64::MAX));
        assert_eq!(wanted(0, u64::MAX).offset_and_length(), (0, u64::MAX));
        assert!(wanted(0, LAST).is_all() && !wanted(1, LAST).is_all() && !wanted(0, 5).is_all());
    }

    #[test]
    fn a_request_may_be_given_up_before_it_is_known() {
        let locks = Arc::<Locks>::default();
        let wanted = Wanted { owner: 1, start: 0, end: 1, exclusive: true, process: 77 };
        let request = |unique| Request { unique, handle: 1, wanted };
        locks.give_up(5);
        let early = Locks::wait(&locks, request(5));
        let late = Locks::wait(&locks, request(6));
        locks.give_up(6);
        assert_eq!(locks.waiters.lock().waiting.get(&5), Some(&true));
        assert_eq!(locks.waiters.lock().waiting.get(&6), Some(&true));
        drop((early, late));
        assert!(locks.waiters.lock().waiting.is_empty());
        (0..1000).for_each(|unique| locks.give_up(unique));
        assert_eq!(locks.waiters.lock().given_up.len(), INTERRUPTS_KEPT);
    }

    #[test]
    fn a_waiting_lock_is_handed_over_or_prevents_the_handover() {
        let locks = Arc::<Locks>::default();
        let wanted = Wanted { owner: 1, start: 0, end: 1, exclusive: true, process: 77 };
        let request = Request { unique: 5, handle: 1, wanted };
        let waiting = Locks::wait(&locks, request).unwrap();
        assert!(!locks.pause(Duration::ZERO) && locks.is_paused());
        waiting.leave_unanswered();
        drop(waiting);
        assert!(locks.pause(Duration::ZERO));
        let unanswered = locks.unanswered();
        assert_eq!(unanswered.iter().map(|asked| asked.unique).collect::<Vec<_>>(), [5]);
        locks.take_back(unanswered);
        locks.resume();
        assert!(!locks.is_paused() && locks.unanswered().len() == 1);
        // It is interrupted while it is on its way to the other process.
        locks.give_up(5);
        assert_eq!(locks.given_up(), [5]);
    }

    #[test]
    fn no_more_wait_than_there_may_be() {
        let locks = Arc::<Locks>::default();
        let wanted = Wanted { owner: 1, start: 0, end: 1, exclusive: true, process: 77 };
        let request = |unique| Request { unique, handle: 1, wanted };
        let mut waiting: Vec<_> = (0..LOCK_WAITERS_MAX as u64)
            .map(|unique| Locks::wait(&locks, request(unique)))
            .collect();
        assert!(Locks::wait(&locks, request(9999)).is_err());
        waiting.pop();
        assert!(Locks::wait(&locks, request(9999)).is_ok());
    }
}
