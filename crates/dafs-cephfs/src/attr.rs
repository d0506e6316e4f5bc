//! Conversion of attributes between libcephfs and the store.

use crate::sys::{StatX, set};
use dafs_store::backend::MODE_BITS;
use dafs_store::{Attr, Kind, Result, SetAttr, SetTime, StoreError, TimeSpec};

fn kind(mode: u16) -> Result<Kind> {
    match u32::from(mode) & libc::S_IFMT {
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

fn time(time: &libc::timespec) -> TimeSpec {
    TimeSpec { seconds: time.tv_sec, nanoseconds: u32::try_from(time.tv_nsec).unwrap_or(0) }
}

/// Converts the attributes of an object.
///
/// # Errors
/// [`StoreError::Io`] for an unknown kind.
pub(crate) fn attr(stat: &StatX) -> Result<Attr> {
    let kind = kind(stat.mode)?;
    Ok(Attr {
        kind,
        mode: u32::from(stat.mode) & MODE_BITS,
        links: stat.nlink,
        uid: stat.uid,
        gid: stat.gid,
        size: stat.size,
        space_used: stat.blocks.saturating_mul(512),
        file_id: stat.ino,
        raw_device: match kind {
            Kind::BlockDevice | Kind::CharDevice => {
                (libc::major(stat.rdev), libc::minor(stat.rdev))
            }
            _ => (0, 0),
        },
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
        match wish {
            None => {}
            Some(SetTime::To(time)) => {
                // CephFS keeps seconds in 32 unsigned bits, and would wrap other values.
                if time.nanoseconds >= 1_000_000_000 || u32::try_from(time.seconds).is_err() {
                    return Err(StoreError::Invalid);
                }
                *at = libc::timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds.into() };
                mask |= to;
            }
            Some(SetTime::Now) => {
                *at = *now.get_or_insert_with(clock);
                mask |= to | to_now;
            }
        }
        Ok(())
    };
    put(change.atime, &mut stat.atime, set::ATIME, set::ATIME_NOW)?;
    put(change.mtime, &mut stat.mtime, set::MTIME, set::MTIME_NOW)?;
    Ok((stat, mask))
}

fn clock() -> libc::timespec {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let since = since.unwrap_or_default();
    libc::timespec {
        tv_sec: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: since.subsec_nanos().into(),
    }
}
