//! Locks of byte ranges.

use crate::boundary::{call, call_plainly};
use crate::error::{Failure, invalid};
use crate::file::file;
use crate::handle::dap_file_t;
use crate::pointer::Out;
use dafs_client::{LockError, LockHolder, LockRange};
use std::time::Duration;

/// Conflicts with all locks of others; without it, only with exclusive ones.
pub const DAP_LOCK_EXCLUSIVE: u32 = 1;
/// Survives its holder: if that fails, the next request gets DAP_E_LOCK_BROKEN until the data is
/// repaired.
pub const DAP_LOCK_PERSIST: u32 = 2;
/// Writes to the file under it are undone when the lock is lost or aborted. Only for exclusive
/// locks of all bytes.
pub const DAP_LOCK_AUTO_RECOVERY: u32 = 4;

/// All bytes from an offset on.
pub const DAP_TO_END: u64 = u64::MAX;

/// The holder of a lock, or the former one.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct dap_lock_holder_t {
    /// The server's key of the client.
    pub client: u64,
    /// First byte.
    pub offset: u64,
    /// Bytes; DAP_TO_END for all from there on.
    pub length: u64,
    /// 1 for an exclusive lock.
    pub exclusive: u32,
    /// 0.
    pub reserved: u32,
}

impl From<&LockHolder> for dap_lock_holder_t {
    fn from(of: &LockHolder) -> Self {
        Self {
            client: of.client,
            offset: of.offset,
            length: of.length,
            exclusive: of.exclusive.into(),
            reserved: 0,
        }
    }
}

pub(crate) fn range(offset: u64, length: u64, flags: u32) -> Result<LockRange, Failure> {
    if flags >= DAP_LOCK_AUTO_RECOVERY << 1 {
        return Err(invalid("there is no such flag for locking"));
    }
    let kind = match flags & DAP_LOCK_EXCLUSIVE {
        0 => LockRange::shared(),
        _ => LockRange::exclusive(),
    };
    let range = kind.bytes(offset, length);
    let range = range.persist(flags & DAP_LOCK_PERSIST != 0);
    Ok(range.auto_recovery(flags & DAP_LOCK_AUTO_RECOVERY != 0))
}

fn told(out: Option<Out<dap_lock_holder_t>>, error: LockError) -> Failure {
    if let (Some(out), LockError::Held(holder) | LockError::Broken(holder)) = (out, &error) {
        out.set(holder.into());
    }
    error.into()
}

/// Locks `length` bytes from `offset`, and waits up to `milliseconds` for conflicting locks (0: not
/// at all; negative: no timeout). With DAP_E_LOCK_HELD and DAP_E_LOCK_BROKEN, the holder is stored
/// in `holder`, if that is not null. Two opens of one process are two owners.
///
/// Threads: any.
///
/// # Safety
/// `holder` is null or good for one struct.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_lock(
    handle: dap_file_t,
    offset: u64,
    length: u64,
    flags: u32,
    milliseconds: i64,
    holder: *mut dap_lock_holder_t,
) -> i32 {
    call_plainly(|| {
        let (file, range) = (file(handle)?, range(offset, length, flags)?);
        // SAFETY: as the caller promises.
        let out = unsafe { Out::optional(holder) }?;
        let locked = match u64::try_from(milliseconds) {
            Ok(0) => file.0.try_lock(&range),
            time => file.0.lock(&range, time.ok().map(Duration::from_millis)),
        };
        locked.map_err(|error| told(out, error))
    })
}

/// Takes over broken locks, which the range must cover entirely, so that the caller can repair the
/// data; dap_unlock() ends the repair. Until then reads and writes of others fail with
/// DAP_E_STALE_STATEID. DAP_E_INVAL if no lock is broken, DAP_E_LOCK_RANGE for a part of a lock.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn dap_lock_for_repair(handle: dap_file_t, offset: u64, length: u64) -> i32 {
    call_plainly(|| Ok(file(handle)?.0.lock_for_repair(offset, length)?))
}

/// Releases the locks of this file in a range. Closing the file releases all.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn dap_unlock(handle: dap_file_t, offset: u64, length: u64) -> i32 {
    call_plainly(|| Ok(file(handle)?.0.unlock(offset, length)?))
}

/// Undoes all writes since the file was locked with DAP_LOCK_AUTO_RECOVERY, and releases the lock.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn dap_abort_lock(handle: dap_file_t) -> i32 {
    call_plainly(|| Ok(file(handle)?.0.abort_lock()?))
}

/// Tests for a lock that would conflict with a lock of another owner: 1, and the holder in
/// `holder`, if that is not null; else 0.
///
/// Threads: any.
///
/// # Safety
/// `holder` is null or good for one struct.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dap_test_lock(
    handle: dap_file_t,
    offset: u64,
    length: u64,
    flags: u32,
    holder: *mut dap_lock_holder_t,
) -> i32 {
    call(|| {
        let (file, range) = (file(handle)?, range(offset, length, flags)?);
        // SAFETY: as the caller promises.
        let out = unsafe { Out::optional(holder) }?;
        match file.0.test_lock(&range) {
            Ok(None) => Ok(0),
            Ok(Some(found)) => {
                if let Some(out) = out {
                    out.set((&found).into());
                }
                Ok(1)
            }
            Err(error) => Err(told(out, error)),
        }
    }) as i32
}
