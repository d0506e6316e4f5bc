//! Locks of byte ranges (DAFS 9).
//!
//! Invariants
//! * A denied lock is retried until a timeout, with pauses short enough to keep its place in the
//!   server's queue (DAFS 9.2).
//! * The locks of a file are reclaimed when the server has restarted, like the file's open; a
//!   failed reclaim is reported at the next use of the file.

use crate::error::{Error, Result};
use crate::file::File;
use crate::limit::{self, Limit};
use crate::limits::{LOCK_PAUSE_MAX, RETRY_PAUSE_MIN};
use dafs_wire::dafs::{
    ErrorBody, Lock, LockOptions, LockT, LockType, LockU, Outcome, Procedure, Reply, Request,
    Status,
};
use std::fmt;
use std::time::{Duration, Instant};
use thiserror::Error;

/// The bytes of a lock, and its kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockRange {
    offset: u64,
    length: u64,
    exclusive: bool,
    persist: bool,
    auto_recovery: bool,
}

impl LockRange {
    /// All bytes, exclusive.
    pub fn exclusive() -> Self {
        let (persist, auto_recovery) = (false, false);
        Self { offset: 0, length: u64::MAX, exclusive: true, persist, auto_recovery }
    }

    /// All bytes, shared: conflicts with exclusive locks only.
    pub fn shared() -> Self {
        Self { exclusive: false, ..Self::exclusive() }
    }

    /// Only `length` bytes from `offset`; `u64::MAX` for all from there on.
    #[must_use]
    pub fn bytes(self, offset: u64, length: u64) -> Self {
        Self { offset, length, ..self }
    }

    /// Makes the lock outlive its holder: if the holder fails, the next one gets
    /// [`LockError::Broken`], and the server refuses reads and writes of the bytes until a client
    /// has repaired them.
    #[must_use]
    pub fn persist(self, persist: bool) -> Self {
        Self { persist, ..self }
    }

    /// Makes the server undo writes under the lock when the lock is lost or
    /// [aborted](File::abort_lock): it restores content and size from the pre-image before the next
    /// holder gets the lock. Unlocking keeps the writes. Only for exclusive locks of all bytes
    /// (DAFS 9.5). The server saves bytes before they are overwritten, so a write may need space
    /// there and fail with `NoSpc` where there is none.
    #[must_use]
    pub fn auto_recovery(self, auto_recovery: bool) -> Self {
        Self { auto_recovery, ..self }
    }

    /// First byte.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes; `u64::MAX` for all from there on.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// True for an exclusive lock.
    pub fn is_exclusive(&self) -> bool {
        self.exclusive
    }

    fn kind(self, waits: bool) -> LockType {
        match (self.exclusive, waits) {
            (true, false) => LockType::Write,
            (true, true) => LockType::WriteWait,
            (false, false) => LockType::Read,
            (false, true) => LockType::ReadWait,
        }
    }

    fn options(&self) -> LockOptions {
        let mut options = LockOptions::empty();
        options.set(LockOptions::PERSIST, self.persist);
        options.set(LockOptions::AUTORECOVERY, self.auto_recovery);
        options
    }
}

/// The holder of a lock, or its former holder.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockHolder {
    /// The server's key of the client, as administrators see it.
    pub client: u64,
    /// The lock owner at that client.
    pub owner: Vec<u8>,
    /// First byte.
    pub offset: u64,
    /// Bytes; `u64::MAX` for all from there on.
    pub length: u64,
    /// True for an exclusive lock.
    pub exclusive: bool,
}

impl fmt::Display for LockHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.exclusive { "exclusive" } else { "shared" };
        write!(f, "client {:016x} ({kind}, from byte {}", self.client, self.offset)?;
        match self.length {
            u64::MAX => write!(f, " to the end)"),
            length => write!(f, ", {length} bytes)"),
        }
    }
}

/// The reason why a lock was not granted.
#[derive(Debug, Clone, Error)]
#[non_exhaustive]
pub enum LockError {
    /// Another owner holds a conflicting lock.
    #[error("locked by {0}")]
    Held(LockHolder),
    /// The holder of a conflicting lock has failed: the data may be half changed. Lock it for
    /// repair, check and mend it, and unlock.
    #[error("the lock is broken: its holder, {0}, has failed and may have left the data half done")]
    Broken(LockHolder),
    /// Everything else.
    #[error(transparent)]
    Other(#[from] Error),
}

impl File {
    /// Locks a range if no lock conflicts now.
    ///
    /// # Errors
    /// `Held` names the holder of the conflicting lock; the server's answer.
    pub fn try_lock(&self, range: &LockRange) -> Result<(), LockError> {
        self.ask_for_lock(range, range.kind(false), range.options())
    }

    /// Locks a range, and waits up to `patience` for conflicting locks; for ever without one.
    /// Requests that come later do not overtake it.
    ///
    /// # Errors
    /// `Held` at the timeout, `Broken` at once; the server's answer.
    pub fn lock(&self, range: &LockRange, patience: Option<Duration>) -> Result<(), LockError> {
        let until = patience.and_then(|patience| Instant::now().checked_add(patience));
        let mut pause = RETRY_PAUSE_MIN;
        let mut before = None;
        loop {
            let held = match self.ask_for_lock(range, range.kind(true), range.options()) {
                Err(LockError::Held(holder)) => LockError::Held(holder),
                // The last attempt ended by the limit of this thread: report the conflict that it
                // waited for.
                Err(LockError::Other(Error::NotSent { .. } | Error::Deadline { .. }))
                    if before.is_some() && is_time_over() =>
                {
                    return before.map_or(Ok(()), Err);
                }
                other => return other,
            };
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let limit = Limit::current().map(|limit| limit.at.since(dafs_dat::Instant::now()));
            let left = [left, limit].into_iter().flatten().min();
            if left.is_some_and(|left| left.is_zero()) {
                return Err(held);
            }
            std::thread::sleep(left.map_or(pause, |left| left.min(pause)));
            if limit::is_stopped() {
                return Err(held);
            }
            pause = (pause * 2).min(LOCK_PAUSE_MAX);
            before = Some(held);
        }
    }

    /// Takes over broken locks, which the range must cover entirely, to repair the data under them.
    /// The lock is exclusive and persistent; [`File::unlock`] ends the repair.
    ///
    /// # Errors
    /// `Held`; the server's answer: `Inval` where no lock is broken, `LockRange` where only a part
    /// of a broken lock is covered.
    pub fn lock_for_repair(&self, offset: u64, length: u64) -> Result<(), LockError> {
        let range = LockRange::exclusive().bytes(offset, length);
        self.ask_for_lock(&range, LockType::Write, LockOptions::REPAIR)
    }

    /// Unlocks a range of this file. Closing the file unlocks all.
    ///
    /// # Errors
    /// The server's answer: `LockRange` for a part of a persistent lock.
    pub fn unlock(&self, offset: u64, length: u64) -> Result<()> {
        self.give_up(LockType::Write, offset, length)
    }

    /// Undoes all writes to the file, of all clients, since it was locked with
    /// [auto-recovery](LockRange::auto_recovery), and releases the lock.
    ///
    /// # Errors
    /// The server's answer: `Inval` where there is no such lock; after any other error it is still
    /// held.
    pub fn abort_lock(&self) -> Result<()> {
        self.give_up(LockType::Abort, 0, u64::MAX)
    }

    fn give_up(&self, lock_type: LockType, offset: u64, length: u64) -> Result<()> {
        // The next holder must see dirty data of the cache. If the write-back fails the lock is
        // kept.
        self.write_back()?;
        let (fh, state_id) = (*self.handle(), self.state_id());
        let request = Request::LockU(LockU { fh, lock_type, state_id, offset, length });
        self.client().ask(&request, |reply| matches!(reply, Reply::LockU).then_some(()))
    }

    /// The holder of a lock that conflicts with this one for another owner; `None` without a
    /// conflict.
    ///
    /// # Errors
    /// `Broken`; the server's answer.
    pub fn test_lock(&self, range: &LockRange) -> Result<Option<LockHolder>, LockError> {
        self.test_lock_of(range, b"")
    }

    /// The holder of a lock that conflicts with this one for this file; `None` without a conflict.
    /// The file's own locks do not conflict.
    ///
    /// # Errors
    /// As [`File::test_lock`].
    pub fn test_own_lock(&self, range: &LockRange) -> Result<Option<LockHolder>, LockError> {
        self.test_lock_of(range, &self.owner().to_be_bytes())
    }

    /// True if this open file holds the lock.
    pub fn is_holder(&self, holder: &LockHolder) -> bool {
        let client = u64::from_be_bytes(self.client().session().client_id.0);
        holder.client == client && holder.owner == self.owner().to_be_bytes()
    }

    fn test_lock_of(
        &self,
        range: &LockRange,
        owner: &[u8],
    ) -> Result<Option<LockHolder>, LockError> {
        let request = Request::LockT(LockT {
            fh: *self.handle(),
            lock_type: range.kind(false),
            owner,
            offset: range.offset,
            length: range.length,
        });
        match self.lock_answer(&request) {
            Ok(()) => Ok(None),
            Err(LockError::Held(holder)) => Ok(Some(holder)),
            Err(error) => Err(error),
        }
    }

    fn ask_for_lock(
        &self,
        range: &LockRange,
        lock_type: LockType,
        options: LockOptions,
    ) -> Result<(), LockError> {
        self.lock_answer(&self.request_for_lock(range, lock_type, options))
    }

    /// A request for a lock, without a place in the server's queue.
    pub(crate) fn lock_request(&self, range: &LockRange) -> Request<'static> {
        self.request_for_lock(range, range.kind(false), range.options())
    }

    fn request_for_lock(
        &self,
        range: &LockRange,
        lock_type: LockType,
        options: LockOptions,
    ) -> Request<'static> {
        Request::Lock(Lock {
            fh: *self.handle(),
            lock_type,
            options,
            state_id: self.state_id(),
            offset: range.offset,
            length: range.length,
        })
    }

    fn lock_answer(&self, request: &Request<'_>) -> Result<(), LockError> {
        let shared = self.client().shared();
        let reply = shared.call(request)?;
        let procedure = reply.procedure();
        match reply.decode() {
            Ok(Outcome::Ok(Reply::Lock | Reply::LockT)) => Ok(()),
            Ok(Outcome::Ok(_)) => Err(shared.broken(&"an answer of another procedure").into()),
            Ok(Outcome::Error { status, body }) => Err(refusal(procedure, status, &body)),
            Err(error) => Err(shared.broken(&error).into()),
        }
    }
}

/// True when the calls of this thread have no time left.
fn is_time_over() -> bool {
    Limit::current().is_some_and(|limit| limit.at <= dafs_dat::Instant::now())
}

fn refusal(procedure: Procedure, status: Status, body: &ErrorBody<'_>) -> LockError {
    let ErrorBody::LockHolder(holder) = body else {
        return Error::Status { procedure, status }.into();
    };
    let holder = LockHolder {
        client: u64::from_be_bytes(holder.client_id.0),
        owner: holder.owner.to_vec(),
        offset: holder.offset,
        length: holder.length,
        exclusive: matches!(holder.lock_type, LockType::Write | LockType::WriteWait),
    };
    match status {
        Status::LockBroken => LockError::Broken(holder),
        _ => LockError::Held(holder),
    }
}
