//! Conversion of attributes between stat(2) and the store.

use crate::sys::{Stat, no_stat, set};
use dafs_store::backend::{MODE_BITS, nameless};
use dafs_store::{Attr, Kind, Result, SetAttr, SetTime, StoreError, TimeSpec};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

fn kind(mode: u32) -> Result<Kind> {
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

fn time(seconds: i64, nanoseconds: i64) -> TimeSpec {
    TimeSpec { seconds, nanoseconds: u32::try_from(nanoseconds).unwrap_or(0) }
}

/// Converts the attributes of an object. GlusterFS does not count changes, so the ctime serves as
/// the change attribute.
///
/// # Errors
/// [`StoreError::Io`] for an unknown kind.
pub(crate) fn attr(stat: &Stat) -> Result<Attr> {
    let kind = kind(stat.st_mode)?;
    let ctime = time(stat.st_ctime, stat.st_ctime_nsec);
    Ok(Attr {
        kind,
        mode: stat.st_mode & MODE_BITS,
        links: u32::try_from(stat.st_nlink).unwrap_or(u32::MAX),
        uid: stat.st_uid,
        gid: stat.st_gid,
        size: u64::try_from(stat.st_size).map_err(|_| StoreError::Io)?,
        space_used: u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512),
        file_id: stat.st_ino,
        raw_device: match kind {
            Kind::BlockDevice | Kind::CharDevice => {
                (libc::major(stat.st_rdev), libc::minor(stat.st_rdev))
            }
            _ => (0, 0),
        },
        atime: time(stat.st_atime, stat.st_atime_nsec),
        mtime: time(stat.st_mtime, stat.st_mtime_nsec),
        ctime,
        btime: None,
        change: change_of(ctime),
    })
}

/// Converts the attributes of a regular file on its brick. GlusterFS keeps the times separately
/// from these.
pub(crate) fn of_brick(found: &Metadata) -> Attr {
    let mtime = time(found.mtime(), found.mtime_nsec());
    Attr {
        mode: found.mode() & MODE_BITS,
        uid: found.uid(),
        gid: found.gid(),
        size: found.len(),
        space_used: found.blocks().saturating_mul(512),
        file_id: found.ino(),
        atime: mtime,
        mtime,
        ctime: mtime,
        change: change_of(mtime),
        ..nameless(Kind::Regular)
    }
}

fn change_of(ctime: TimeSpec) -> u64 {
    let seconds = ctime.seconds.unsigned_abs().wrapping_mul(1_000_000_000);
    seconds.wrapping_add(u64::from(ctime.nanoseconds))
}

/// Returns the new attributes and their mask, for a call that sets them. The size is not among
/// them.
///
/// # Errors
/// [`StoreError::Invalid`] for a time that GlusterFS cannot keep: one before 1970 or after 2106.
pub(crate) fn change(change: &SetAttr) -> Result<(Stat, i32)> {
    let (mut stat, mut mask) = (no_stat(), 0);
    if let Some(mode) = change.mode {
        stat.st_mode = mode & MODE_BITS;
        mask |= set::MODE;
    }
    if let Some(uid) = change.uid {
        stat.st_uid = uid;
        mask |= set::UID;
    }
    if let Some(gid) = change.gid {
        stat.st_gid = gid;
        mask |= set::GID;
    }
    let mut now = None;
    let mut at = |wish: SetTime| match wish {
        SetTime::Now => Ok(*now.get_or_insert_with(clock)),
        // Some parts of GlusterFS keep seconds in 32 bits, and would wrap other values.
        SetTime::To(TimeSpec { seconds, nanoseconds })
            if nanoseconds >= 1_000_000_000 || u32::try_from(seconds).is_err() =>
        {
            Err(StoreError::Invalid)
        }
        SetTime::To(TimeSpec { seconds, nanoseconds }) => Ok((seconds, nanoseconds.into())),
    };
    if let Some(wish) = change.atime {
        (stat.st_atime, stat.st_atime_nsec) = at(wish)?;
        mask |= set::ATIME;
    }
    if let Some(wish) = change.mtime {
        (stat.st_mtime, stat.st_mtime_nsec) = at(wish)?;
        mask |= set::MTIME;
    }
    Ok((stat, mask))
}

fn clock() -> (i64, i64) {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let since = since.unwrap_or_default();
    (i64::try_from(since.as_secs()).unwrap_or(i64::MAX), since.subsec_nanos().into())
}
