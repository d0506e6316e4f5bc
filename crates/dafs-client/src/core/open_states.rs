//! State that the application holds at the server: opens and their locks, as far as needed to
//! reclaim them from a restarted server.
//!
//! Invariants
//! * The application knows an open under one state-id for as long as it lives, the one of its first
//!   OPEN; the server's current state-id is filled in when a request is sent. No two opens have one
//!   such name, also when a later run of the server reuses the state-id of an earlier one.
//! * The state-id of an open that could not be reclaimed is never sent to the server: it may denote
//!   another open now.

use super::users::User;
use crate::lock::LockRange;
use dafs_wire::dafs::{
    ClientId, DeleteDisposition, FileHandle, Lock, LockOptions, LockType, LockU, Open,
    OpenDowngrade, OpenReply, ShareAccess, ShareDeny, ShareKey, StateId, Status,
};
use rustc_hash::FxHashMap;

/// A byte-range lock that is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HeldLock {
    pub(crate) lock_type: LockType,
    pub(crate) options: LockOptions,
    /// First byte.
    first: u64,
    /// Last byte.
    last: u64,
    /// The run of the server that granted it.
    server: ClientId,
}

/// An open file.
#[derive(Debug, Clone)]
pub(crate) struct OpenState {
    pub(crate) handle: FileHandle,
    pub(crate) owner: Vec<u8>,
    pub(crate) access: ShareAccess,
    pub(crate) deny: ShareDeny,
    pub(crate) key: ShareKey,
    pub(crate) disposition: DeleteDisposition,
    /// The user that opened it; `None` for the session's own.
    pub(crate) user: Option<User>,
    /// The server's state-id of it.
    current: StateId,
    /// The run of the server that granted it.
    server: ClientId,
    /// The reason why it, or one of its locks, could not be reclaimed.
    lost: Option<Status>,
    locks: Vec<HeldLock>,
}

/// The opens of one session, by the state-ids that the application knows.
#[derive(Debug, Default)]
pub(crate) struct OpenStates {
    opens: FxHashMap<StateId, OpenState>,
    /// Some open has another state-id than at first, or is lost.
    changed: bool,
}

impl OpenState {
    /// True when this run of the server knows it.
    pub(crate) fn is_at(&self, server: ClientId) -> bool {
        self.server == server
    }

    /// True when it conflicts with no other open: a new open is as good as a reclaimed one.
    pub(crate) fn is_harmless(&self) -> bool {
        self.deny == ShareDeny::None
            && self.key == ShareKey::None
            && self.disposition == DeleteDisposition::DontCare
            && self.locks.is_empty()
    }
}

impl HeldLock {
    fn new(lock: &Lock, server: ClientId) -> Self {
        // A held lock is shared or exclusive; waiting and repair are ways to get it. A repaired
        // lock is persistent (DAFS O34).
        let lock_type = match lock.lock_type {
            LockType::Read | LockType::ReadWait => LockType::Read,
            _ => LockType::Write,
        };
        let mut options = lock.options & (LockOptions::PERSIST | LockOptions::AUTORECOVERY);
        if lock.options.contains(LockOptions::REPAIR) {
            options |= LockOptions::PERSIST;
        }
        let (first, last) = range(lock.offset, lock.length);
        Self { lock_type, options, first, last, server }
    }

    /// The request that reclaims it.
    pub(crate) fn request(&self, fh: FileHandle, state_id: StateId) -> Lock {
        let length = match self.last {
            u64::MAX => u64::MAX,
            last => last - self.first + 1,
        };
        let options = self.options | LockOptions::RECLAIM;
        Lock { fh, lock_type: self.lock_type, options, state_id, offset: self.first, length }
    }

    fn range(&self) -> LockRange {
        let range = match self.lock_type {
            LockType::Read => LockRange::shared(),
            _ => LockRange::exclusive(),
        };
        let length = match self.last {
            u64::MAX => u64::MAX,
            last => last - self.first + 1,
        };
        range
            .bytes(self.first, length)
            .persist(self.options.contains(LockOptions::PERSIST))
            .auto_recovery(self.options.contains(LockOptions::AUTORECOVERY))
    }

    /// The remainder of it without a range: no piece, one or two.
    fn without(self, first: u64, last: u64) -> impl Iterator<Item = Self> {
        let apart = self.last < first || last < self.first;
        let before = (!apart && self.first < first).then(|| Self { last: first - 1, ..self });
        let after = (!apart && last < self.last).then(|| Self { first: last + 1, ..self });
        [apart.then_some(self), before, after].into_iter().flatten()
    }
}

/// First and last byte; a length of all ones reaches to the end (DAFS 9.2).
fn range(offset: u64, length: u64) -> (u64, u64) {
    match length {
        u64::MAX => (offset, u64::MAX),
        _ => (offset, offset.saturating_add(length.saturating_sub(1))),
    }
}

impl OpenStates {
    /// The server's current state-id of an open; the status with which the open was lost.
    pub(crate) fn current(&self, name: StateId) -> Result<StateId, Status> {
        if !self.changed {
            return Ok(name);
        }
        match self.opens.get(&name) {
            Some(OpenState { lost: Some(status), .. }) => Err(*status),
            Some(open) => Ok(open.current),
            None => Ok(name),
        }
    }

    /// As [`current`](Self::current), for closing: an open whose locks are gone can still be
    /// closed.
    pub(crate) fn current_for_close(
        &self,
        name: StateId,
        server: ClientId,
    ) -> Result<StateId, Status> {
        match self.opens.get(&name) {
            Some(open) if open.lost.is_none() || open.server == server => Ok(open.current),
            Some(open) => Err(open.lost.unwrap_or(Status::StaleStateId)),
            None => Ok(name),
        }
    }

    /// Records an open that `server` granted to `user`; returns its state-id for the application.
    pub(crate) fn opened(
        &mut self,
        request: &Open<'_>,
        reply: &OpenReply<'_>,
        server: ClientId,
        user: Option<&User>,
    ) -> StateId {
        let current = reply.state_id;
        if current == StateId::ZERO {
            // The server knows from before its restart that the file was created, and has no open
            // of this client any more. The open is reclaimed like all others, under a name made up
            // here.
            let mut wish = [0; 8];
            wish.copy_from_slice(&reply.fh.file[..8]);
            return self.hold(self.free_name(StateId(wish)), request, reply, server, user);
        }
        // The same owner has it open already: one open, with the accesses of both (DAFS 10.1).
        let known = |open: &OpenState| open.current == current && open.server == server;
        let mut name = current;
        if self.changed {
            let old = self.opens.iter().find(|(_, open)| known(open) && open.lost.is_none());
            name = old.map_or_else(|| self.free_name(current), |(name, _)| *name);
        }
        self.hold(name, request, reply, server, user)
    }

    fn hold(
        &mut self,
        name: StateId,
        request: &Open<'_>,
        reply: &OpenReply<'_>,
        server: ClientId,
        user: Option<&User>,
    ) -> StateId {
        let current = reply.state_id;
        self.changed |= name != current;
        let open = self.opens.entry(name).or_insert_with(|| OpenState {
            handle: reply.fh,
            owner: request.owner.to_vec(),
            access: request.share_access,
            deny: request.share_deny,
            key: request.share_key,
            disposition: request.delete_disposition,
            user: user.cloned(),
            current,
            server,
            lost: None,
            locks: Vec::new(),
        });
        open.access = access(open.access, request.share_access);
        open.deny = deny(open.deny, request.share_deny);
        open.key = key(open.key, request.share_key);
        name
    }

    /// A state-id that no open has.
    fn free_name(&self, wish: StateId) -> StateId {
        let mut number = u64::from_ne_bytes(wish.0);
        loop {
            let name = StateId(number.to_ne_bytes());
            if !self.opens.contains_key(&name) && number != 0 && number != u64::MAX {
                return name;
            }
            // The step is odd, so the sequence covers all numbers before one repeats; there are
            // fewer opens.
            number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
        }
    }

    pub(crate) fn closed(&mut self, name: StateId) {
        self.opens.remove(&name);
    }

    pub(crate) fn downgraded(&mut self, request: &OpenDowngrade) {
        if let Some(open) = self.opens.get_mut(&request.state_id) {
            open.access = request.share_access;
            open.deny = request.share_deny;
            open.key = request.share_key;
        }
    }

    pub(crate) fn locked(&mut self, request: &Lock, server: ClientId) {
        let Some(open) = self.opens.get_mut(&request.state_id) else { return };
        let (first, last) = range(request.offset, request.length);
        open.drop_range(first, last);
        if request.lock_type != LockType::Abort {
            open.locks.push(HeldLock::new(request, server));
        }
    }

    pub(crate) fn unlocked(&mut self, request: &LockU) {
        let Some(open) = self.opens.get_mut(&request.state_id) else { return };
        let (first, last) = range(request.offset, request.length);
        open.drop_range(first, last);
    }

    /// An open of a file for writing, if there is one.
    pub(crate) fn writer_of(&self, handle: &FileHandle) -> Option<StateId> {
        let is_one = |open: &OpenState| {
            open.handle == *handle && open.access != ShareAccess::Read && open.lost.is_none()
        };
        self.opens.iter().find(|(_, open)| is_one(open)).map(|(name, _)| *name)
    }

    /// True if a file may be read by an open: it is one of the file, allows reading, and is not lost.
    pub(crate) fn may_read(&self, name: StateId, handle: &FileHandle) -> bool {
        self.opens.get(&name).is_some_and(|open| {
            open.handle == *handle && open.access != ShareAccess::Write && open.lost.is_none()
        })
    }

    pub(crate) fn open(&self, name: StateId) -> Option<&OpenState> {
        self.opens.get(&name)
    }

    /// The locks of an open; the status with which it, or one of its locks, was lost.
    pub(crate) fn locks_held(&self, name: StateId) -> Result<Vec<LockRange>, Status> {
        let Some(open) = self.opens.get(&name) else { return Ok(Vec::new()) };
        match open.lost {
            Some(status) => Err(status),
            None => Ok(open.locks.iter().map(HeldLock::range).collect()),
        }
    }

    /// The opens that this run of the server does not know, in the order of their names.
    pub(crate) fn opens_to_reclaim(&self, server: ClientId) -> Vec<StateId> {
        let strange = |open: &OpenState| open.server != server && open.lost.is_none();
        let opens = self.opens.iter().filter(|(_, open)| strange(open));
        let mut names: Vec<StateId> = opens.map(|(name, _)| *name).collect();
        names.sort_unstable_by_key(|name| name.0);
        names
    }

    /// The locks of existing opens that this run of the server does not know.
    pub(crate) fn locks_to_reclaim(&self, server: ClientId) -> Vec<(StateId, HeldLock)> {
        let opens = self.opens.iter().filter(|(_, open)| open.lost.is_none());
        let locks = opens.flat_map(|(name, open)| open.locks.iter().map(|lock| (*name, *lock)));
        let mut locks: Vec<_> = locks.filter(|(_, lock)| lock.server != server).collect();
        locks.sort_unstable_by_key(|(name, lock)| (name.0, lock.first));
        locks
    }

    /// The locks to reclaim of one open.
    pub(crate) fn locks_of(
        &self,
        name: StateId,
        server: ClientId,
    ) -> impl Iterator<Item = (StateId, HeldLock)> {
        let locks = self.opens.get(&name).into_iter().flat_map(|open| &open.locks);
        locks.filter(move |lock| lock.server != server).map(move |lock| (name, *lock))
    }

    /// Records that an open was reclaimed.
    pub(crate) fn reclaimed(&mut self, name: StateId, current: StateId, server: ClientId) {
        if let Some(open) = self.opens.get_mut(&name) {
            (open.current, open.server) = (current, server);
            self.changed = true;
        }
    }

    /// Records that a lock was reclaimed.
    pub(crate) fn lock_reclaimed(&mut self, name: StateId, lock: &HeldLock, server: ClientId) {
        let open = self.opens.get_mut(&name);
        let locks = open.into_iter().flat_map(|open| &mut open.locks);
        locks.filter(|held| *held == lock).for_each(|held| held.server = server);
    }

    /// Records that an open, or one of its locks, is lost for good. Later uses of it get this
    /// status.
    pub(crate) fn lost(&mut self, name: StateId, status: Status) {
        if let Some(open) = self.opens.get_mut(&name) {
            open.lost = Some(status);
            self.changed = true;
        }
    }
}

impl OpenState {
    fn drop_range(&mut self, first: u64, last: u64) {
        let locks = std::mem::take(&mut self.locks);
        self.locks = locks.into_iter().flat_map(|lock| lock.without(first, last)).collect();
    }
}

fn access(a: ShareAccess, b: ShareAccess) -> ShareAccess {
    if a == b { a } else { ShareAccess::Both }
}

/// The key of two opens by one owner, which the server has found to be the same if both have one.
fn key(a: ShareKey, b: ShareKey) -> ShareKey {
    match (a, b) {
        (ShareKey::None, other) | (other, ShareKey::None) => other,
        (ShareKey::XStrict(_), _) => a,
        _ => b,
    }
}

fn deny(a: ShareDeny, b: ShareDeny) -> ShareDeny {
    match (a, b) {
        (ShareDeny::None, other) | (other, ShareDeny::None) => other,
        (a, b) if a == b => a,
        _ => ShareDeny::Both,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_wire::dafs::{ChangeInfo, Delegation, OpenClaim, OpenResultFlags};

    const FILE: FileHandle = FileHandle { fs: [1; 16], file: [2; 48] };
    const FIRST: ClientId = ClientId([1; 8]);
    const SECOND: ClientId = ClientId([2; 8]);

    fn id(number: u8) -> StateId {
        StateId([number; 8])
    }

    fn open(held: &mut OpenStates, current: StateId, server: ClientId) -> StateId {
        let request = Open {
            claim: OpenClaim::CreateUnlinked { dir: FILE },
            create: None,
            delete_disposition: DeleteDisposition::DontCare,
            owner: b"me",
            share_access: ShareAccess::Read,
            share_deny: ShareDeny::None,
            share_key: ShareKey::None,
        };
        let reply = OpenReply {
            fh: FILE,
            state_id: current,
            change: ChangeInfo::default(),
            component_count: 0,
            result_flags: OpenResultFlags::default(),
            delegation: Delegation::None,
        };
        held.opened(&request, &reply, server, None)
    }

    fn lock(name: StateId, lock_type: LockType, offset: u64, length: u64) -> Lock {
        let options = LockOptions::PERSIST;
        Lock { fh: FILE, lock_type, options, state_id: name, offset, length }
    }

    fn ranges(held: &OpenStates) -> Vec<(LockType, u64, u64)> {
        let locks = held.locks_to_reclaim(SECOND);
        let range = |(_, lock): &(StateId, HeldLock)| {
            let request = lock.request(FILE, id(9));
            (lock.lock_type, request.offset, request.length)
        };
        locks.iter().map(range).collect()
    }

    #[test]
    fn an_open_of_which_only_the_effect_is_known_is_reclaimed() {
        let mut held = OpenStates::default();
        let name = open(&mut held, StateId::ZERO, FIRST);
        assert_ne!(name, StateId::ZERO);
        assert_eq!(held.opens_to_reclaim(SECOND), [name]);
        held.reclaimed(name, id(5), SECOND);
        assert_eq!(held.current(name), Ok(id(5)));
    }

    #[test]
    fn opens_keep_their_names_and_never_share_one() {
        let mut held = OpenStates::default();
        let first = open(&mut held, id(1), FIRST);
        assert_eq!(first, id(1));
        assert_eq!(held.opens_to_reclaim(SECOND), [first]);
        held.reclaimed(first, id(5), SECOND);
        assert_eq!(held.current(first), Ok(id(5)));
        // The restarted server reuses a state-id that the application knows as another open.
        let second = open(&mut held, id(1), SECOND);
        assert_ne!(second, first);
        assert_eq!(held.current(second), Ok(id(1)));
        // The same owner again: one open, under its old state-id.
        assert_eq!(open(&mut held, id(5), SECOND), first);
        held.closed(first);
        assert!(held.open(first).is_none());
        assert_eq!(held.current(second), Ok(id(1)));
    }

    #[test]
    fn an_open_that_is_lost_or_for_writing_alone_reads_nothing() {
        let mut held = OpenStates::default();
        let name = open(&mut held, id(1), FIRST);
        assert!(held.may_read(name, &FILE) && !held.may_read(id(2), &FILE));
        assert!(!held.may_read(name, &FileHandle::ZERO), "it is of another file");
        for (access, may_read) in [(ShareAccess::Write, false), (ShareAccess::Both, true)] {
            held.opens.get_mut(&name).unwrap().access = access;
            assert_eq!(held.may_read(name, &FILE), may_read);
        }
        held.lost(name, Status::StaleStateId);
        assert!(!held.may_read(name, &FILE));
    }

    #[test]
    fn a_lost_open_is_not_sent_and_can_be_closed_if_it_exists() {
        let mut held = OpenStates::default();
        let (gone, broken) = (open(&mut held, id(1), FIRST), open(&mut held, id(2), FIRST));
        held.lost(gone, Status::Stale);
        held.reclaimed(broken, id(7), SECOND);
        held.lost(broken, Status::StaleStateId);
        assert_eq!(held.current(gone), Err(Status::Stale));
        assert_eq!(held.current(broken), Err(Status::StaleStateId));
        assert_eq!(held.current_for_close(gone, SECOND), Err(Status::Stale));
        assert_eq!(held.current_for_close(broken, SECOND), Ok(id(7)));
        assert!(held.opens_to_reclaim(SECOND).is_empty());
    }

    #[test]
    fn locks_are_cut_replaced_and_released() {
        let mut held = OpenStates::default();
        let name = open(&mut held, id(1), FIRST);
        held.locked(&lock(name, LockType::WriteWait, 0, u64::MAX), FIRST);
        assert_eq!(ranges(&held), [(LockType::Write, 0, u64::MAX)]);
        held.locked(&lock(name, LockType::Read, 10, 10), FIRST);
        let end = u64::MAX;
        assert_eq!(
            ranges(&held),
            [(LockType::Write, 0, 10), (LockType::Read, 10, 10), (LockType::Write, 20, end)]
        );
        let unlock = |offset, length| LockU {
            fh: FILE,
            lock_type: LockType::Write,
            state_id: name,
            offset,
            length,
        };
        held.unlocked(&unlock(5, 10));
        held.unlocked(&unlock(u64::MAX, 1));
        let held_now = ranges(&held);
        assert_eq!(held_now[..2], [(LockType::Write, 0, 5), (LockType::Read, 15, 5)]);
        assert_eq!(held_now[2], (LockType::Write, 20, end - 20), "all but the last byte");
        held.locked(&lock(name, LockType::Abort, 0, u64::MAX), FIRST);
        assert!(ranges(&held).is_empty());
    }

    #[test]
    fn locks_are_asked_for_once_per_run_of_the_server() {
        let mut held = OpenStates::default();
        let name = open(&mut held, id(1), FIRST);
        held.locked(&lock(name, LockType::Write, 3, 4), FIRST);
        let locks = held.locks_to_reclaim(SECOND);
        let request = locks[0].1.request(FILE, id(9));
        assert_eq!(request.options, LockOptions::PERSIST | LockOptions::RECLAIM);
        held.lock_reclaimed(name, &locks[0].1, SECOND);
        assert!(held.locks_to_reclaim(SECOND).is_empty());
        assert_eq!(held.locks_to_reclaim(FIRST).len(), 1);
    }
}
