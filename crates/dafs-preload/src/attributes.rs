//! Attributes in the structures of the C library.

use dafs_client::{Attributes, FileHandle, FsStatus, ObjectType, Time, posix};

/// The preferred size of a read, in bytes.
const BLOCK_BYTES: u32 = 1 << 20;

/// The type of an entry for `readdir`.
pub(crate) fn entry_type(kind: ObjectType) -> u8 {
    // The two numberings are related like this by definition (IFTODT).
    ((posix::type_bits(kind) & libc::S_IFMT) >> 12) as u8
}

/// A device number for a file system, which no device of this machine has.
fn device(handle: &FileHandle) -> u64 {
    let mix = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = handle.fs.iter().fold(0xcbf2_9ce4_8422_2325, mix);
    let (major, minor) = (0xd00 | (hash >> 40) as u32 & 0xff, hash as u32 & 0xf_ffff);
    libc::makedev(major, minor)
}

fn time(time: Time) -> (i64, i64) {
    (time.seconds, time.nseconds.into())
}

pub(crate) fn stat(of: &Attributes) -> libc::stat {
    // SAFETY: all zero is a valid value of this plain structure.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    let times = posix::Times::of(of);
    stat.st_dev = device(&of.handle);
    stat.st_ino = of.file_id;
    stat.st_mode = posix::mode(of);
    stat.st_nlink = of.links.into();
    (stat.st_uid, stat.st_gid) = (posix::number(&of.owner), posix::number(&of.group));
    stat.st_rdev = libc::makedev(of.raw_device.0 as u32, of.raw_device.1 as u32);
    stat.st_size = i64::try_from(of.size).unwrap_or(i64::MAX);
    stat.st_blksize = BLOCK_BYTES.into();
    stat.st_blocks = i64::try_from(posix::blocks(of)).unwrap_or(i64::MAX);
    (stat.st_atime, stat.st_atime_nsec) = time(times.accessed);
    (stat.st_mtime, stat.st_mtime_nsec) = time(times.modified);
    (stat.st_ctime, stat.st_ctime_nsec) = time(times.changed);
    stat
}

pub(crate) fn statx(of: &Attributes) -> libc::statx {
    let stat = stat(of);
    // SAFETY: all zero is a valid value of this plain structure.
    let mut out: libc::statx = unsafe { std::mem::zeroed() };
    let moment = |seconds: i64, nanoseconds: i64| {
        // SAFETY: as above.
        let mut moment: libc::statx_timestamp = unsafe { std::mem::zeroed() };
        (moment.tv_sec, moment.tv_nsec) = (seconds, nanoseconds as u32);
        moment
    };
    out.stx_mask = libc::STATX_BASIC_STATS;
    out.stx_blksize = BLOCK_BYTES;
    out.stx_nlink = of.links;
    (out.stx_uid, out.stx_gid) = (stat.st_uid, stat.st_gid);
    out.stx_mode = stat.st_mode as u16;
    (out.stx_ino, out.stx_size) = (of.file_id, of.size);
    out.stx_blocks = stat.st_blocks as u64;
    out.stx_atime = moment(stat.st_atime, stat.st_atime_nsec);
    out.stx_mtime = moment(stat.st_mtime, stat.st_mtime_nsec);
    out.stx_ctime = moment(stat.st_ctime, stat.st_ctime_nsec);
    if let Some(created) = of.created {
        out.stx_mask |= libc::STATX_BTIME;
        out.stx_btime = moment(created.seconds, created.nseconds.into());
    }
    (out.stx_dev_major, out.stx_dev_minor) = (libc::major(stat.st_dev), libc::minor(stat.st_dev));
    (out.stx_rdev_major, out.stx_rdev_minor) =
        (libc::major(stat.st_rdev), libc::minor(stat.st_rdev));
    out
}

/// The space of a file system, for `statfs`.
pub(crate) fn statfs(of: &FsStatus) -> libc::statfs {
    // SAFETY: all zero is a valid value of this plain structure.
    let mut out: libc::statfs = unsafe { std::mem::zeroed() };
    let blocks = |bytes: Option<u64>| bytes.unwrap_or(0) / 4096;
    // "DAFS", which is the number of no file system of the kernel.
    out.f_type = 0x4441_4653;
    (out.f_bsize, out.f_frsize) = (4096, 4096);
    out.f_blocks = blocks(of.space_total);
    out.f_bfree = blocks(of.space_free);
    out.f_bavail = blocks(of.space_available);
    (out.f_files, out.f_ffree) = (of.files_total.unwrap_or(0), of.files_free.unwrap_or(0));
    out.f_namelen = of.name_bytes_max.unwrap_or(255).into();
    out
}

/// The space of a file system, for `statvfs`.
pub(crate) fn statvfs(of: &FsStatus) -> libc::statvfs {
    let from = statfs(of);
    // SAFETY: all zero is a valid value of this plain structure.
    let mut out: libc::statvfs = unsafe { std::mem::zeroed() };
    (out.f_bsize, out.f_frsize) = (4096, 4096);
    (out.f_blocks, out.f_bfree, out.f_bavail) = (from.f_blocks, from.f_bfree, from.f_bavail);
    (out.f_files, out.f_ffree) = (from.f_files, from.f_ffree);
    out.f_favail = of.files_available.unwrap_or(0);
    out.f_namemax = u64::from(of.name_bytes_max.unwrap_or(255));
    out
}
