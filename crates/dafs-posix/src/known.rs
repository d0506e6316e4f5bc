//! Ids that listings have found, so that the next listing asks the kernel for the attributes of an
//! entry alone, and not for its handle.
//!
//! A handle is the number and the generation of an inode. `statx` tells the number and the times.
//! File systems use the number of a removed inode again, with another generation. The times show
//! that: the new inode is younger than the listing that found the old one.
//!
//! Decisions
//! * An id is remembered with the birth time and the ctime of its inode, and only if both are older
//!   than [`KNOWN_AGE_SECONDS`]. A later inode with this number has later times, even where clocks
//!   tick slowly.
//! * An id whose inode has another ctime now is asked for again. So a generation that a program has
//!   changed (`chattr -v`) shows.
//! * Attributes are never remembered. The kernel tells them for each listing, and so a change by a
//!   local program shows at once.
//! * Only file systems are trusted whose times no program can set, and whose handles are known to
//!   hold the number. Elsewhere each entry takes two calls.
//!
//! Invariants
//! * A remembered handle holds the number of the inode under which it is found. So after a jump of
//!   the clock, an id may at worst name a removed inode, which is stale. It never names another
//!   file.
//! * That holds, too, where two files share a number: on tmpfs with 32-bit numbers, once these have
//!   run out. The files differ in birth time. If the second takes a name between the two calls, the
//!   first gets another ctime with the name that it loses. So nothing is found under its old times.
//! * The table is bounded.

use super::cache::ClockCache;
use super::id::device;
use super::sys::KernelHandle;
use crate::limits::{KNOWN_AGE_SECONDS, KNOWN_IDS_MAX, KNOWN_SHARDS};
use dafs_mem::Mutex;
use dafs_store::FileId;
use rustix::fs::{Statx, StatxFlags, StatxTimestamp, Timespec};

/// The magic numbers of EXT4, XFS, Btrfs and tmpfs.
pub(super) const FILE_SYSTEMS: [u64; 4] = [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994];

/// The birth time and the ctime of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Times {
    birth: Timespec,
    change: Timespec,
}

/// The id of an inode that had these times.
struct Known {
    times: Times,
    id: FileId,
}

/// Ids by inode number.
pub(super) struct KnownIds {
    /// The device of the inodes. `None` if the file system is not one of [`FILE_SYSTEMS`].
    device: Option<u64>,
    shards: [Mutex<ClockCache<u64, Known>>; KNOWN_SHARDS],
}

impl KnownIds {
    /// Makes an empty table for the file system with this magic number and device.
    pub(super) fn new(kind: u64, device: u64) -> Self {
        let per_shard = KNOWN_IDS_MAX.div_ceil(KNOWN_SHARDS);
        Self {
            device: FILE_SYSTEMS.contains(&kind).then_some(device),
            shards: std::array::from_fn(|_| Mutex::new(ClockCache::new(per_shard))),
        }
    }

    /// Returns the times of an inode whose id may be remembered.
    fn times(&self, stat: &Statx) -> Option<Times> {
        let time = |stamp: StatxTimestamp| Timespec {
            tv_sec: stamp.tv_sec,
            tv_nsec: stamp.tv_nsec.into(),
        };
        let has_birth = stat.stx_mask & StatxFlags::BTIME.bits() != 0;
        (has_birth && self.device == Some(device(stat)))
            .then(|| Times { birth: time(stat.stx_btime), change: time(stat.stx_ctime) })
    }

    fn shard(&self, stat: &Statx) -> &Mutex<ClockCache<u64, Known>> {
        &self.shards[stat.stx_ino as usize % KNOWN_SHARDS]
    }

    /// Returns the id of the object with these attributes. The caller has checked its mount.
    pub(super) fn find(&self, stat: &Statx) -> Option<FileId> {
        let times = self.times(stat)?;
        let mut shard = self.shard(stat).lock();
        shard.get(&stat.stx_ino).filter(|known| known.times == times).map(|known| known.id)
    }

    /// Remembers the id of an object. Its attributes were read first and then its handle, both
    /// after `begun` by the coarse clock of the kernel.
    pub(super) fn remember(
        &self,
        begun: Timespec,
        stat: &Statx,
        handle: &KernelHandle,
        id: FileId,
    ) {
        let Some(times) = self.times(stat) else { return };
        let settled = Timespec { tv_sec: begun.tv_sec.saturating_sub(KNOWN_AGE_SECONDS), ..begun };
        // If another object has taken the name between the two calls, the handle is that one's.
        if times.birth < settled
            && times.change < settled
            && number_in(handle) == Some(stat.stx_ino)
        {
            self.shard(stat).lock().insert(stat.stx_ino, Known { times, id });
        }
    }
}

/// Returns the inode number in a handle of one of [`FILE_SYSTEMS`].
fn number_in(handle: &KernelHandle) -> Option<u64> {
    let short = |at: usize| handle.bytes.get(at..)?.first_chunk().copied().map(u32::from_ne_bytes);
    let long = || handle.bytes.first_chunk().copied().map(u64::from_ne_bytes);
    match (handle.kind, handle.len) {
        // EXT4, and XFS with short numbers: number, generation.
        (0x01, 8) => short(0).map(u64::from),
        // tmpfs: generation, lower and upper half of the number.
        (0x01, 12) => Some(u64::from(short(4)?) | u64::from(short(8)?) << 32),
        // XFS with long numbers: number, generation.
        (0x81, 12) => long(),
        // Btrfs: number, subvolume, generation.
        (0x4d, 20) => long(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::HANDLE_BYTES_MAX;
    use dafs_store::FILE_ID_BYTES;

    const EXT4: u64 = FILE_SYSTEMS[0];
    const ID: FileId = FileId([7; FILE_ID_BYTES]);

    /// Attributes of an inode of the device that `device` returns.
    fn stat_of(number: u64, born: i64, changed: i64) -> Statx {
        let flags = rustix::fs::AtFlags::empty();
        let mask = StatxFlags::BASIC_STATS;
        let mut stat = rustix::fs::statx(rustix::fs::CWD, c"/", flags, mask).unwrap();
        stat.stx_mask |= StatxFlags::BTIME.bits();
        stat.stx_ino = number;
        (stat.stx_btime.tv_sec, stat.stx_ctime.tv_sec) = (born, changed);
        (stat.stx_btime.tv_nsec, stat.stx_ctime.tv_nsec) = (5, 5);
        stat
    }

    fn at(seconds: i64) -> Timespec {
        Timespec { tv_sec: seconds, tv_nsec: 5 }
    }

    fn handle(kind: u8, len: u8, words: &[u32]) -> KernelHandle {
        let mut bytes = [0; HANDLE_BYTES_MAX];
        for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        KernelHandle { kind, len, bytes }
    }

    #[test]
    fn a_number_that_is_used_again_is_another_object() {
        let stat = stat_of(12, 1000, 2000);
        let known = KnownIds::new(EXT4, device(&stat));
        known.remember(at(3000), &stat, &handle(1, 8, &[12, 1]), ID);
        assert_eq!(known.find(&stat), Some(ID));
        for other in [stat_of(12, 3000, 3000), stat_of(12, 1000, 2001), stat_of(12, 1001, 2000)] {
            assert_eq!(known.find(&other), None);
        }
        let mut soon = stat;
        soon.stx_btime.tv_nsec = 6;
        assert_eq!((known.find(&soon), known.find(&stat_of(13, 1000, 2000))), (None, None));
        let new = FileId([8; FILE_ID_BYTES]);
        known.remember(at(9000), &stat_of(12, 3000, 3000), &handle(1, 8, &[12, 2]), new);
        assert_eq!(known.find(&stat_of(12, 3000, 3000)), Some(new));
        assert_eq!(known.find(&stat), None);
    }

    #[test]
    fn only_a_handle_that_is_certain_is_remembered() {
        let stat = stat_of(12, 1000, 2000);
        let own = handle(1, 8, &[12, 1]);
        let known = KnownIds::new(EXT4, device(&stat));
        // An inode made in the same tick after the removal of this one would have the same times.
        known.remember(at(2000 + KNOWN_AGE_SECONDS), &stat, &own, ID);
        assert_eq!(known.find(&stat), None, "too young");
        known.remember(at(3000), &stat, &handle(1, 8, &[13, 1]), ID);
        assert_eq!(known.find(&stat), None, "the handle of another object");
        known.remember(at(3000), &stat, &handle(2, 8, &[12, 1]), ID);
        assert_eq!(known.find(&stat), None, "a handle of an unknown type");
        let mut elsewhere = stat;
        elsewhere.stx_dev_minor += 1;
        known.remember(at(3000), &elsewhere, &own, ID);
        assert_eq!(known.find(&elsewhere), None, "another device");
        let mut without_birth = stat;
        without_birth.stx_mask &= !StatxFlags::BTIME.bits();
        known.remember(at(3000), &without_birth, &own, ID);
        assert_eq!(known.find(&without_birth), None, "no birth time");
        let unknown = KnownIds::new(0x794c_7630, device(&stat));
        unknown.remember(at(3000), &stat, &own, ID);
        assert_eq!(unknown.find(&stat), None, "an unknown file system");
        known.remember(at(3000), &stat, &own, ID);
        assert_eq!(known.find(&stat), Some(ID));
    }

    #[test]
    fn the_number_is_where_each_file_system_puts_it() {
        let [low, high]: [u32; 2] = [0x89ab_cdef, 0x0123_4567];
        let number = u64::from(low) | u64::from(high) << 32;
        let [first, second] =
            if cfg!(target_endian = "little") { [low, high] } else { [high, low] };
        assert_eq!(number_in(&handle(0x01, 8, &[low, 1])), Some(u64::from(low)));
        assert_eq!(number_in(&handle(0x01, 12, &[1, low, high])), Some(number));
        assert_eq!(number_in(&handle(0x81, 12, &[first, second, 1])), Some(number));
        assert_eq!(number_in(&handle(0x4d, 20, &[first, second, 256, 0, 1])), Some(number));
        assert_eq!(number_in(&handle(0x4d, 32, &[first, second, 256, 0, 1])), None);
    }
}
