//! What the server says, in the kernel's words.

use crate::limits::BLOCK_BYTES;
use crate::nodes::NodeId;
use dafs_client::{Attributes, Error, ObjectType, SetTime, Status, Time};
use fuser::{Errno, FileAttr, FileType, INodeNo, TimeOrNow};
use std::time::{Duration, SystemTime};

/// The error number for an error of the client.
pub(crate) fn errno(error: &Error) -> Errno {
    // A server that puts things off for longer than the deadline is as good as one that is not there.
    match error.status() {
        Some(Status::Delay | Status::Grace | Status::Resource) => Errno::ETIMEDOUT,
        _ => Errno::from_i32(error.to_errno()),
    }
}

/// The attributes of a node.
pub(crate) fn attributes(node: NodeId, from: &Attributes) -> FileAttr {
    let changed = from.changed.or(from.modified);
    FileAttr {
        ino: INodeNo(node),
        size: from.size,
        blocks: from.space_used.div_ceil(512),
        atime: time(from.accessed.or(from.modified)),
        mtime: time(from.modified),
        ctime: time(changed),
        crtime: time(from.created),
        kind: kind(from.kind),
        // Masked, so it fits.
        perm: (from.mode & 0o7777) as u16,
        nlink: from.links,
        uid: from.owner.id().unwrap_or(NOBODY),
        gid: from.group.id().unwrap_or(NOBODY),
        rdev: device(from.raw_device),
        blksize: BLOCK_BYTES,
        flags: 0,
    }
}

/// Whom files belong to whose owner has no number.
const NOBODY: u32 = 65534;

pub(crate) fn kind(from: ObjectType) -> FileType {
    match from {
        ObjectType::Directory | ObjectType::AttrDirectory => FileType::Directory,
        ObjectType::BlockDevice => FileType::BlockDevice,
        ObjectType::CharDevice => FileType::CharDevice,
        ObjectType::Symlink => FileType::Symlink,
        ObjectType::Socket => FileType::Socket,
        ObjectType::Fifo => FileType::NamedPipe,
        ObjectType::Regular | ObjectType::NamedAttr | ObjectType::Invalid => FileType::RegularFile,
    }
}

/// The kernel's 32 bits for a device: 12 of the major number between 20 of the minor.
fn device((major, minor): (u64, u64)) -> u32 {
    let (major, minor) = (major as u32 & 0xfff, minor as u32 & 0xf_ffff);
    minor & 0xff | major << 8 | (minor & !0xff) << 12
}

/// Major and minor number in the kernel's 32 bits.
pub(crate) fn device_numbers(device: u32) -> (u32, u32) {
    (device >> 8 & 0xfff, device & 0xff | device >> 12 & 0xf_ff00)
}

fn time(from: Option<Time>) -> SystemTime {
    let Some(Time { seconds, nseconds }) = from else { return SystemTime::UNIX_EPOCH };
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let base = match seconds {
        0.. => SystemTime::UNIX_EPOCH.checked_add(whole),
        _ => SystemTime::UNIX_EPOCH.checked_sub(whole),
    };
    let fraction = Duration::from_nanos(nseconds.into());
    base.and_then(|base| base.checked_add(fraction)).unwrap_or(SystemTime::UNIX_EPOCH)
}

/// A time to be set.
pub(crate) fn set_time(from: TimeOrNow) -> SetTime {
    let TimeOrNow::SpecificTime(time) = from else { return SetTime::Server };
    let (seconds, nseconds) = match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => (since.as_secs() as i64, since.subsec_nanos()),
        Err(error) => {
            let before = error.duration();
            match before.subsec_nanos() {
                0 => (-(before.as_secs() as i64), 0),
                nanos => (-(before.as_secs() as i64) - 1, 1_000_000_000 - nanos),
            }
        }
    };
    SetTime::Client(Time { seconds, nseconds })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_survive() {
        for numbers in [(0, 0), (8, 1), (0xfff, 0xf_ffff), (259, 70_000)] {
            let packed = device((u64::from(numbers.0), u64::from(numbers.1)));
            assert_eq!(device_numbers(packed), numbers);
        }
        // As the C library packs them for small numbers.
        assert_eq!(device((1, 3)), 0x103);
    }

    #[test]
    fn times_survive_on_both_sides_of_1970() {
        for (seconds, nseconds) in [(0, 0), (5, 999_999_999), (-5, 0), (-5, 1), (1 << 40, 7)] {
            let wire = Time { seconds, nseconds };
            let back = set_time(TimeOrNow::SpecificTime(time(Some(wire))));
            assert_eq!(back, SetTime::Client(wire));
        }
    }
}
