//! The change attribute: a number that differs after every change made through this store, and only
//! grows.
//!
//! It is the ctime in nanoseconds. Since Linux 6.13 most file systems advance the ctime on every
//! change that comes after a query of it. Elsewhere the ctime advances with a clock that ticks
//! every few milliseconds, or every second. There the store counts changes that leave the ctime
//! unchanged, and adds the count. A few file systems with the finer clock, tmpfs among them, still
//! give a directory an old time when a name is removed, so the store counts changes of directories
//! everywhere.
//!
//! Decisions
//! * The store tests once if the ctime advances by itself, on a file without a name in the root of
//!   the export. Where that is not possible, it assumes that it does not.
//! * A change counts when the value after it is not above the last reported one. The node keeps the
//!   last reported value. All users of an object share one node.
//! * A count is kept while there is room. When it is dropped, one bit records that, and the object
//!   counts as changed once more: its value becomes the end of the tick. Once the bits are used up,
//!   other objects may seem changed, too.
//! * Counts and bits are lost with the process. The value of an object that changed several times
//!   in its last tick may then decrease by the count, until its next change.
//! * Changes by local processes within one tick are not seen. Only changes through this store are
//!   counted.
//!
//! Invariants
//! * Ticks are longer than [`COUNTS_PER_TICK`] nanoseconds, so that the count never reaches into
//!   the next tick.
//! * This costs no system call on the path of a read, and none on that of a write where the ctime
//!   advances by itself.

use super::export::{Export, stat_fd};
use super::node::Node;
use crate::limits::{CHANGE_COUNTS_MAX, CHANGE_GONE_BITS, COUNTS_PER_TICK};
use dafs_mem::Mutex;
use dafs_store::{Attr, DirChange, FileId, Result};
use rustc_hash::{FxHashMap, FxHasher};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Statx, StatxFlags};
use std::collections::VecDeque;
use std::hash::{Hash, Hasher};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The changes that test if the ctime advances. They fit into one tick; and if a tick ends among
/// them, some still have the same ctime.
const TRIALS: u32 = 8;

/// Returns the ctime as one number.
fn stamp(stat: &Statx) -> u64 {
    let seconds = stat.stx_ctime.tv_sec.cast_unsigned();
    seconds.wrapping_mul(1_000_000_000).wrapping_add(u64::from(stat.stx_ctime.tv_nsec))
}

/// Makes change attributes.
pub(super) struct Changes {
    /// True if the ctime advances by itself, so that only changes of directories are counted.
    ctime_moves: bool,
    /// The number of objects with a count, readable without the lock.
    used: AtomicUsize,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    by_id: FxHashMap<FileId, Count>,
    /// Objects in the order in which they got their counts. Some may have none any more.
    order: VecDeque<FileId>,
    /// One bit for each hash of an object and a tick whose count was dropped. Empty before the
    /// first.
    gone: Vec<u64>,
}

/// The number of changes of an object in the tick of its ctime, without the first.
#[derive(Debug, Clone, Copy)]
struct Count {
    stamp: u64,
    changes: u64,
}

fn gone_bit(id: &FileId, stamp: u64) -> (usize, u64) {
    let mut hasher = FxHasher::default();
    (id, stamp).hash(&mut hasher);
    let bit = hasher.finish() as usize % CHANGE_GONE_BITS;
    (bit / 64, 1 << (bit % 64))
}

impl Table {
    fn extra(&self, id: &FileId, stamp: u64) -> u64 {
        match self.by_id.get(id) {
            Some(count) if count.stamp == stamp => count.changes.min(COUNTS_PER_TICK - 1),
            _ if self.is_gone(id, stamp) => COUNTS_PER_TICK,
            _ => 0,
        }
    }

    fn is_gone(&self, id: &FileId, stamp: u64) -> bool {
        let (word, bit) = gone_bit(id, stamp);
        self.gone.get(word).is_some_and(|bits| bits & bit != 0)
    }

    fn count(&mut self, id: &FileId, stamp: u64) {
        if let Some(count) = self.by_id.get_mut(id) {
            let again = count.stamp == stamp;
            *count = Count { stamp, changes: if again { count.changes + 1 } else { 1 } };
            return;
        }
        if self.by_id.len() >= CHANGE_COUNTS_MAX
            && let Some(oldest) = self.order.pop_front()
            && let Some(count) = self.by_id.remove(&oldest)
        {
            self.gone.resize(CHANGE_GONE_BITS / 64, 0);
            let (word, bit) = gone_bit(&oldest, count.stamp);
            self.gone[word] |= bit;
        }
        self.by_id.insert(*id, Count { stamp, changes: 1 });
        self.order.push_back(*id);
    }
}

impl Changes {
    /// Tests the file system of this directory, as the server.
    pub(super) fn find_out(dir: BorrowedFd<'_>, read_only: bool) -> Self {
        Self::new(read_only || ctime_moves(dir).unwrap_or(false))
    }

    fn new(ctime_moves: bool) -> Self {
        Self { ctime_moves, used: AtomicUsize::new(0), table: Mutex::default() }
    }

    /// True if changes of all objects must be counted, not only those of directories.
    pub(super) fn need_notes(&self) -> bool {
        !self.ctime_moves
    }

    /// Returns the change attribute of an object with these attributes.
    pub(super) fn value(&self, id: &FileId, stat: &Statx) -> u64 {
        let may_have_count = !self.ctime_moves || is_directory(stat);
        if may_have_count { self.at(id, stamp(stat)) } else { stamp(stat) }
    }

    fn at(&self, id: &FileId, stamp: u64) -> u64 {
        if self.used.load(Ordering::Acquire) == 0 {
            return stamp;
        }
        stamp.wrapping_add(self.table.lock().extra(id, stamp))
    }

    /// Records a completed change before it is reported, and returns the new value. `told` is the
    /// highest reported value, 0 if unknown.
    fn note_at(&self, id: &FileId, stamp: u64, told: &AtomicU64) -> u64 {
        let value = self.at(id, stamp);
        let before = told.fetch_max(value, Ordering::AcqRel);
        if before != 0 && before < value {
            return value;
        }
        let value = {
            let mut table = self.table.lock();
            table.count(id, stamp);
            self.used.store(table.by_id.len(), Ordering::Release);
            stamp.wrapping_add(table.extra(id, stamp))
        };
        told.fetch_max(value, Ordering::AcqRel);
        value
    }
}

fn is_directory(stat: &Statx) -> bool {
    FileType::from_raw_mode(u32::from(stat.stx_mode)) == FileType::Directory
}

/// Changes a file without a name until its ctime does not advance.
fn ctime_moves(dir: BorrowedFd<'_>) -> rustix::io::Result<bool> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = rustix::fs::openat(dir, c".", flags, Mode::RUSR)?;
    let mut last = None;
    for _ in 0..TRIALS {
        rustix::fs::fchmod(&file, Mode::RUSR)?;
        let stat = rustix::fs::statx(&file, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)?;
        let this = Some(stamp(&stat));
        if this == last {
            return Ok(false);
        }
        last = this;
    }
    Ok(true)
}

impl Export {
    /// Converts the attributes of a node, and records the change attribute as reported.
    pub(super) fn node_attr(&self, node: &Node, stat: &Statx) -> Result<Attr> {
        super::attr::attr(stat, self.tell(node, stat))
    }

    /// Returns the change attribute of a node, and records it as reported.
    pub(super) fn tell(&self, node: &Node, stat: &Statx) -> u64 {
        let value = self.changes.value(&node.id, stat);
        node.told_change.fetch_max(value, Ordering::AcqRel);
        value
    }

    /// Returns the change attribute to be reported as the one before a change.
    pub(super) fn before_change(&self, node: &Node) -> Result<u64> {
        match node.told_change.load(Ordering::Acquire) {
            0 => Ok(self.tell(node, &stat_fd(node.as_fd())?)),
            told => Ok(told),
        }
    }

    /// Records a change of a node, most often a directory, and returns the values to report. Other
    /// processes may have changed it meanwhile; the kernel does not show that.
    pub(super) fn changed(&self, node: &Node, before: u64) -> Result<DirChange> {
        let stat = stat_fd(node.as_fd())?;
        let after = self.note(node, &stat);
        let attr = super::attr::attr(&stat, after).ok();
        Ok(DirChange { before, after, atomic: false, attr })
    }

    /// Records a change of a node. `stat` is from after the change.
    pub(super) fn note(&self, node: &Node, stat: &Statx) -> u64 {
        if !self.changes.need_notes() && !is_directory(stat) {
            return self.tell(node, stat);
        }
        self.changes.note_at(&node.id, stamp(stat), &node.told_change)
    }

    /// Records a change of a node by its descriptor, if changes are counted.
    pub(super) fn note_change(&self, node: &Node, fd: BorrowedFd<'_>) -> Result<()> {
        if self.changes.need_notes() {
            self.note(node, &stat_fd(fd)?);
        }
        Ok(())
    }

    /// Records the change attribute that a listing reports of an object.
    pub(super) fn tell_listed(&self, id: &FileId, stat: &Statx) -> u64 {
        let known = if self.changes.need_notes() || is_directory(stat) {
            self.nodes.get(id).or_else(|| self.nodes.open_node(id))
        } else {
            None
        };
        known.map_or_else(|| self.changes.value(id, stat), |node| self.tell(&node, stat))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_store::FILE_ID_BYTES;

    const TICK: u64 = 1_700_000_000_000_000_000;

    fn id(number: u64) -> FileId {
        let mut bytes = [0; FILE_ID_BYTES];
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        FileId(bytes)
    }

    #[test]
    fn changes_that_leave_the_ctime_are_counted() {
        let changes = Changes::new(false);
        let (first, told) = (id(1), AtomicU64::new(TICK - 7));
        assert_eq!(changes.note_at(&first, TICK, &told), TICK, "the ctime moved");
        assert_eq!(changes.note_at(&first, TICK, &told), TICK + 1);
        assert_eq!(changes.note_at(&first, TICK, &told), TICK + 2);
        assert_eq!((changes.at(&first, TICK), changes.at(&id(2), TICK)), (TICK + 2, TICK));
        let next = TICK + 4_000_000;
        assert_eq!(changes.note_at(&first, next, &told), next);
        assert_eq!(changes.note_at(&first, next, &told), next + 1);
        let unknown = AtomicU64::new(0);
        assert_eq!(changes.note_at(&id(3), TICK, &unknown), TICK + 1, "somebody may know");
        assert_eq!(unknown.into_inner(), TICK + 1);
    }

    #[test]
    fn a_clock_set_back_still_gives_new_values() {
        let changes = Changes::new(false);
        let (object, told) = (id(1), AtomicU64::new(TICK));
        let earlier = TICK - 1_000_000_000;
        let values = [(); 3].map(|()| changes.note_at(&object, earlier, &told));
        assert_eq!(values, [earlier + 1, earlier + 2, earlier + 3]);
    }

    #[test]
    fn a_value_never_goes_back_when_counts_must_go() {
        let changes = Changes::new(false);
        let objects = CHANGE_COUNTS_MAX as u64 + 500;
        let told: Vec<u64> = (0..objects)
            .map(|number| changes.note_at(&id(number), TICK, &AtomicU64::new(TICK)))
            .collect();
        let now = |number: usize| changes.at(&id(number as u64), TICK);
        assert!(told.iter().enumerate().all(|(number, &told)| now(number) >= told));
        assert_eq!(now(0), TICK + COUNTS_PER_TICK);
        assert_eq!(changes.table.lock().by_id.len(), CHANGE_COUNTS_MAX);
    }

    #[test]
    fn counts_stay_within_their_tick() {
        let mut table = Table::default();
        table.by_id.insert(id(1), Count { stamp: 7, changes: u64::MAX });
        assert_eq!(table.extra(&id(1), 7), COUNTS_PER_TICK - 1);
    }
}
