//! Conversion of attributes between stat(2) and the store.

use crate::sys::{Stat, no_stat, set};
use dafs_store::backend::{MODE_BITS, nameless};
use dafs_store::inode::{device_of, kind_of, time_to_set};
use dafs_store::{Attr, Kind, Result, SetAttr, StoreError, TimeSpec};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

fn time(seconds: i64, nanoseconds: i64) -> TimeSpec {
    TimeSpec { seconds, nanoseconds: u32::try_from(nanoseconds).unwrap_or(0) }
}

/// Converts the attributes of an object. GlusterFS does not count changes, so the ctime serves as
/// the change attribute.
///
/// # Errors
/// [`StoreError::Io`] for an unknown kind.
pub(crate) fn attr(stat: &Stat) -> Result<Attr> {
    let kind = kind_of(stat.st_mode)?;
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
        raw_device: device_of(kind, stat.st_rdev),
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
    let mut at = |wish| {
        let TimeSpec { seconds, nanoseconds } = time_to_set(wish, &mut now)?;
        Ok::<_, StoreError>((seconds, nanoseconds.into()))
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
