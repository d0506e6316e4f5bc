//! Conversion of attributes between libcephfs and the store.

use crate::sys::{StatX, set};
use dafs_store::backend::MODE_BITS;
use dafs_store::inode::{device_of, kind_of, time_to_set};
use dafs_store::{Attr, Result, SetAttr, SetTime, StoreError, TimeSpec};

fn time(time: &libc::timespec) -> TimeSpec {
    TimeSpec { seconds: time.tv_sec, nanoseconds: u32::try_from(time.tv_nsec).unwrap_or(0) }
}

/// Converts the attributes of an object.
///
/// # Errors
/// [`StoreError::Io`] for an unknown kind.
pub(crate) fn attr(stat: &StatX) -> Result<Attr> {
    let kind = kind_of(stat.mode.into())?;
    Ok(Attr {
        kind,
        mode: u32::from(stat.mode) & MODE_BITS,
        links: stat.nlink,
        uid: stat.uid,
        gid: stat.gid,
        size: stat.size,
        space_used: stat.blocks.saturating_mul(512),
        file_id: stat.ino,
        raw_device: device_of(kind, stat.rdev),
        atime: time(&stat.atime),
        mtime: time(&stat.mtime),
        ctime: time(&stat.ctime),
        btime: Some(time(&stat.btime)),
        change: stat.version,
    })
}

/// Returns the new attributes and their mask, for a call that sets them. The size is not among
/// them.
///
/// # Errors
/// [`StoreError::Invalid`] for a time that CephFS cannot keep: one before 1970 or after 2106.
pub(crate) fn change(change: &SetAttr) -> Result<(StatX, i32)> {
    let (mut stat, mut mask) = (StatX::empty(), 0);
    if let Some(mode) = change.mode {
        stat.mode = u16::try_from(mode & MODE_BITS).unwrap_or(0);
        mask |= set::MODE;
    }
    if let Some(uid) = change.uid {
        stat.uid = uid;
        mask |= set::UID;
    }
    if let Some(gid) = change.gid {
        stat.gid = gid;
        mask |= set::GID;
    }
    let mut now = None;
    let mut put = |wish: Option<SetTime>, at: &mut libc::timespec, to: i32, to_now: i32| {
        if let Some(wish) = wish {
            let TimeSpec { seconds, nanoseconds } = time_to_set(wish, &mut now)?;
            *at = libc::timespec { tv_sec: seconds, tv_nsec: nanoseconds.into() };
            mask |= if matches!(wish, SetTime::Now) { to | to_now } else { to };
        }
        Ok::<_, StoreError>(())
    };
    put(change.atime, &mut stat.atime, set::ATIME, set::ATIME_NOW)?;
    put(change.mtime, &mut stat.mtime, set::MTIME, set::MTIME_NOW)?;
    Ok((stat, mask))
}
