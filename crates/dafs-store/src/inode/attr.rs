//! Attributes in the forms of stat(2).

use crate::{Kind, Result, SetTime, StoreError, TimeSpec};
use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the kind of an object by its mode.
///
/// # Errors
/// [`StoreError::Io`] for an unknown kind.
pub fn kind_of(mode: u32) -> Result<Kind> {
    match mode & libc::S_IFMT {
        libc::S_IFREG => Ok(Kind::Regular),
        libc::S_IFDIR => Ok(Kind::Directory),
        libc::S_IFLNK => Ok(Kind::Symlink),
        libc::S_IFBLK => Ok(Kind::BlockDevice),
        libc::S_IFCHR => Ok(Kind::CharDevice),
        libc::S_IFSOCK => Ok(Kind::Socket),
        libc::S_IFIFO => Ok(Kind::Fifo),
        _ => Err(StoreError::Io),
    }
}

/// Returns the numbers of a device file; zeros for other kinds.
pub fn device_of(kind: Kind, device: u64) -> (u32, u32) {
    match kind {
        Kind::BlockDevice | Kind::CharDevice => (libc::major(device), libc::minor(device)),
        _ => (0, 0),
    }
}

/// Returns a time that is to be set, for engines that keep seconds in 32 unsigned bits and would
/// wrap other values. `now` keeps the present time for all times of one change.
///
/// # Errors
/// [`StoreError::Invalid`] for a time before 1970 or after 2106.
pub fn time_to_set(wish: SetTime, now: &mut Option<TimeSpec>) -> Result<TimeSpec> {
    match wish {
        SetTime::Now => Ok(*now.get_or_insert_with(clock)),
        SetTime::To(time)
            if time.nanoseconds >= 1_000_000_000 || u32::try_from(time.seconds).is_err() =>
        {
            Err(StoreError::Invalid)
        }
        SetTime::To(time) => Ok(time),
    }
}

fn clock() -> TimeSpec {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    TimeSpec {
        seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        nanoseconds: since.subsec_nanos(),
    }
}
