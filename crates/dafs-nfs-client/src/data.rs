//! Data, byte-range locks, ranges and extended attributes over a session.

use crate::compound::Results;
use crate::error::NfsError;
use crate::files::{Handle, putfh, read_result};
use crate::open::OpenFile;
use crate::session::{PendingCompound, Session};
use dafs_wire::nfs4::*;
use dafs_wire::xdr::{Encode, Encoder};

/// The outcome of a WRITE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// The number of bytes written.
    pub count: u32,
    /// The stability of the data.
    pub committed: StableHow,
    /// Changes when unstable data was lost.
    pub verifier: Verifier,
}

/// The outcome of a LOCK.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Locked {
    /// The lock is held, under this state-id.
    Held(Stateid),
    /// Another lock conflicts.
    Denied {
        /// The start of the conflicting lock.
        offset: u64,
        /// The length of the conflicting lock.
        length: u64,
        /// Its kind.
        kind: LockType,
        /// Its owner.
        owner: Vec<u8>,
    },
}

/// A range to lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockRange {
    /// The kind.
    pub kind: LockType,
    /// The start of the range.
    pub offset: u64,
    /// The length of the range; all ones: to the end of all files.
    pub length: u64,
}

fn denied(denied: &LockDenied<'_>) -> Locked {
    Locked::Denied {
        offset: denied.offset,
        length: denied.length,
        kind: denied.kind,
        owner: denied.owner.owner.to_vec(),
    }
}

/// Takes the outcome of a WRITE from the answer to [`Session::submit_write`].
///
/// # Errors
/// [`NfsError::Status`], [`NfsError::Malformed`].
pub fn write_result(results: &mut Results) -> Result<Written, NfsError> {
    let result = results.skip(&[OpNum::Putfh])?.take_write()?;
    Ok(Written { count: result.count, committed: result.committed, verifier: result.verifier })
}

impl Session {
    /// Reads at most `count` bytes; returns true at the end of the file.
    ///
    /// # Errors
    /// Those of [`Session::call`].
    pub fn read(
        &self,
        file: &Handle,
        stateid: Stateid,
        offset: u64,
        count: u32,
    ) -> Result<(Vec<u8>, bool), NfsError> {
        let mut results = self.submit_read(file, stateid, offset, count)?.wait()?;
        let mut data = vec![0; count as usize];
        let (length, eof) = read_result(&mut results, &mut data)?;
        data.truncate(length);
        Ok((data, eof))
    }

    /// Writes bytes, all of them if the server takes so many at a time.
    ///
    /// # Errors
    /// Those of [`Session::call`].
    pub fn write(
        &self,
        file: &Handle,
        stateid: Stateid,
        offset: u64,
        data: &[u8],
        stable: StableHow,
    ) -> Result<Written, NfsError> {
        let mut results = self.submit_write(file, stateid, offset, data, stable)?.wait()?;
        write_result(&mut results)
    }

    /// Sends a WRITE, whose data is not copied; the answer goes to [`write_result`].
    ///
    /// # Errors
    /// Those of [`Session::submit`].
    pub fn submit_write(
        &self,
        file: &Handle,
        stateid: Stateid,
        offset: u64,
        data: &[u8],
        stable: StableHow,
    ) -> Result<PendingCompound, NfsError> {
        self.submit_with_data(data, |compound| {
            let mut args = Vec::with_capacity(28);
            let mut e = Encoder::new(&mut args);
            stateid.encode(&mut e);
            e.u64(offset);
            stable.encode(&mut e);
            compound.op(&putfh(file)).raw(OpNum::Write as u32, &args);
        })
    }

    /// Makes written data stable; `count` 0: to the end.
    ///
    /// # Errors
    /// Those of [`Session::call`].
    pub fn commit(&self, file: &Handle, offset: u64, count: u32) -> Result<Verifier, NfsError> {
        let mut results = self.ask(file, &Op::Commit(CommitArgs { offset, count }))?;
        Ok(results.take_commit()?.verifier)
    }

    /// Locks a range for the first time under an open.
    ///
    /// # Errors
    /// Those of [`Session::call`].
    pub fn lock(
        &self,
        file: &OpenFile,
        owner: &[u8],
        range: LockRange,
    ) -> Result<Locked, NfsError> {
        let locker = Locker::New {
            open_seqid: 0,
            open: file.stateid,
            lock_seqid: 0,
            owner: StateOwner { client_id: 0, owner },
        };
        self.lock_with(&file.handle, locker, range, false)
    }

    /// Locks a further range of an owner that holds locks already.
    ///
    /// # Errors
    /// Those of [`Session::call`].
    pub fn lock_more(
        &self,
        file: &Handle,
        lock: Stateid,
        range: LockRange,
    ) -> Result<Locked, NfsError> {
        self.lock_with(file, Locker::Existing { lock, lock_seqid: 0 }, range, false)
    }

    /// Locks a range, or reclaims a lock after the server's restart.
    ///
    /// # Errors
    /// Those of [`Session::call`].
    pub fn lock_with(
        &self,
        file: &Handle,
        locker: Locker<'_>,
        range: LockRange,
        reclaim: bool,
    ) -> Result<Locked, NfsError> {
        let LockRange { kind, offset, length } = range;
        let mut results =
            self.change(file, &Op::Lock(LockArgs { kind, reclaim, offset, length, locker }))?;
        let result = results.next_result()?;
        match (result.status, &result.body) {
            (Status::Ok, ResultBody::Lock(held)) => Ok(Locked::Held(held.stateid)),
            (Status::Denied, ResultBody::Denied(other)) => Ok(denied(other)),
            (Status::Ok, _) => Err(NfsError::Unexpected("no result of LOCK")),
            (status, _) => Err(NfsError::refused(result.number, status)),
        }
    }

    /// The lock that would conflict; `None` without a conflict.
    ///
    /// # Errors
    /// Those of [`Session::call`].
    pub fn lock_test(
        &self,
        file: &Handle,
        owner: &[u8],
        range: LockRange,
    ) -> Result<Option<Locked>, NfsError> {
        let LockRange { kind, offset, length } = range;
        let owner = StateOwner { client_id: 0, owner };
        let mut results = self.ask(file, &Op::Lockt(LocktArgs { kind, offset, length, owner }))?;
        let result = results.next_result()?;
        match (result.status, &result.body) {
            (Status::Ok, _) => Ok(None),
            (Status::Denied, ResultBody::Denied(other)) => Ok(Some(denied(other))),
            (status, _) => Err(NfsError::refused(result.number, status)),
        }
    }

    /// Unlocks a range; returns the new state-id of the owner's locks.
    ///
    /// # Errors
    /// Those of [`Session::call`].
    pub fn unlock(
        &self,
        file: &Handle,
        stateid: Stateid,
        range: LockRange,
    ) -> Result<Stateid, NfsError> {
        let LockRange { kind, offset, length } = range;
        let mut results =
            self.change(file, &Op::Locku(LockuArgs { kind, seqid: 0, stateid, offset, length }))?;
        Ok(results.take_locku()?.stateid)
    }

    /// Forgets a state-id that is not used any more.
    ///
    /// # Errors
    /// Those of [`Session::call`].
    pub fn free_stateid(&self, stateid: Stateid) -> Result<(), NfsError> {
        self.call_cached(|compound| {
            compound.op(&Op::FreeStateid(FreeStateidArgs { stateid }));
        })?
        .finish()
    }

    /// The validity of each state-id.
    ///
    /// # Errors
    /// Those of [`Session::call`].
    pub fn test_stateids(&self, stateids: Vec<Stateid>) -> Result<Vec<Status>, NfsError> {
        let mut results = self.call(|compound| {
            compound.op(&Op::TestStateid(TestStateidArgs { stateids }));
        })?;
        Ok(results.take_test_stateid()?.statuses)
    }

    /// Looks for data or a hole; `None`: there is none up to the end of the file.
    ///
    /// # Errors
    /// Those of [`Session::call`]; NXIO when `offset` lies behind the end.
    pub fn seek(
        &self,
        file: &Handle,
        stateid: Stateid,
        offset: u64,
        what: SeekWhat,
    ) -> Result<Option<u64>, NfsError> {
        let mut results = self.ask(file, &Op::Seek(SeekArgs { stateid, offset, what }))?;
        let result = results.take_seek()?;
        Ok((!result.eof).then_some(result.offset))
    }

    /// The value of an extended attribute.
    ///
    /// # Errors
    /// Those of [`Session::call`]; NOXATTR.
    pub fn xattr(&self, object: &Handle, name: &[u8]) -> Result<Vec<u8>, NfsError> {
        let mut results = self.ask(object, &Op::Getxattr(GetxattrArgs { name }))?;
        Ok(results.take_getxattr()?.value.to_vec())
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// Those of [`Session::call`].
    pub fn set_xattr(
        &self,
        object: &Handle,
        option: SetxattrOption,
        name: &[u8],
        value: &[u8],
    ) -> Result<(), NfsError> {
        self.change(object, &Op::Setxattr(SetxattrArgs { option, name, value }))?.finish()
    }
}
