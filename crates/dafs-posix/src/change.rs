//! The change attribute: a number that differs after every change made through this store, and only
//! grows.
//!
//! It is the ctime in nanoseconds. Since Linux 6.13 most file systems move the ctime on every change
//! after somebody looked. Elsewhere the ctime moves with a clock that ticks every few milliseconds, or
//! by the second; there, changes that leave the ctime where it was are counted, and the count is
//! added. A few file systems with the finer clock, tmpfs among them, still give a directory an old
//! time when a name is removed, so directories are looked after everywhere.
//!
//! Decisions
//! * Whether the ctime moves by itself is tried once, on a file without a name in the root of the
//!   export. Where that is not possible, it is taken not to.
//! * A change counts when the value after it is not above what was told before. What was told is
//!   kept with the node, of which there is one per object while anybody uses it.
//! * A count is kept as long as there is room. When it has to go, one bit stays that says so, and the
//!   object counts as changed once more: its value goes to the end of the tick. Once the bits are
//!   used up, other objects may seem to have changed too.
//! * Counts and bits are lost with the process. The value of an object that changed several times in
//!   the last tick it changed in may then go back by the count, until its next change.
//! * Changes that local processes make within one tick are not seen; only what goes through this
//!   store is counted.
//!
//! Invariants
//! * Ticks are longer than [`COUNTS_PER_TICK`] nanoseconds, so that the count never reaches into the
//!   next one.
//! * Nothing here costs a system call on the way of a read, and none on the way of a write where the
//!   ctime moves by itself.

use super::export::{Export, stat_fd};
use super::node::{Node, lock};
use crate::limits::{CHANGE_COUNTS_MAX, CHANGE_GONE_BITS, COUNTS_PER_TICK};
use dafs_store::{Attr, DirChange, FileId, Result};
use rustc_hash::{FxHashMap, FxHasher};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Statx, StatxFlags};
use std::collections::VecDeque;
use std::hash::{Hash, Hasher};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Changes made to find out whether the ctime moves; quick enough to fit into one tick, and too many
/// to be told apart by a tick that ends meanwhile.
const TRIALS: u32 = 8;

/// The ctime as one number.
fn stamp(stat: &Statx) -> u64 {
    let seconds = stat.stx_ctime.tv_sec.cast_unsigned();
    seconds.wrapping_mul(1_000_000_000).wrapping_add(u64::from(stat.stx_ctime.tv_nsec))
}

/// Makes change attributes.
pub(super) struct Changes {
    /// Only directories need to be looked after.
    ctime_moves: bool,
    /// How many objects have a count, to be looked at without the lock.
    used: AtomicUsize,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    by_id: FxHashMap<FileId, Count>,
    /// Objects in the order in which they got their counts, with those that have none any more.
    order: VecDeque<FileId>,
    /// One bit for each hash of an object and a tick whose count is gone; empty before the first.
    gone: Vec<u64>,
}

/// How often an object changed in the tick that its ctime names, besides the first time.
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
    /// Finds out what is needed in this directory, as the server.
    pub(super) fn find_out(dir: BorrowedFd<'_>, read_only: bool) -> Self {
        Self::new(read_only || ctime_moves(dir).unwrap_or(false))
    }

    fn new(ctime_moves: bool) -> Self {
        Self { ctime_moves, used: AtomicUsize::new(0), table: Mutex::default() }
    }

    /// Whether changes of every object have to be noted, not only those of directories.
    pub(super) fn need_notes(&self) -> bool {
        !self.ctime_moves
    }

    /// The change attribute of an object with these attributes.
    pub(super) fn value(&self, id: &FileId, stat: &Statx) -> u64 {
        let may_have_count = !self.ctime_moves || is_directory(stat);
        if may_have_count { self.at(id, stamp(stat)) } else { stamp(stat) }
    }

    fn at(&self, id: &FileId, stamp: u64) -> u64 {
        if self.used.load(Ordering::Acquire) == 0 {
            return stamp;
        }
        stamp.wrapping_add(lock(&self.table).extra(id, stamp))
    }

    /// Notes a change that is done, before anybody is told of it, and gives the value from then on.
    /// `told` is the highest value that anybody was told, 0 for not known.
    fn note_at(&self, id: &FileId, stamp: u64, told: &AtomicU64) -> u64 {
        let value = self.at(id, stamp);
        let before = told.fetch_max(value, Ordering::AcqRel);
        if before != 0 && before < value {
            return value;
        }
        let value = {
            let mut table = lock(&self.table);
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

/// Changes a file without a name until its ctime stays the same.
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
    /// Attributes of a node in our form.
    pub(super) fn node_attr(&self, node: &Node, stat: &Statx) -> Result<Attr> {
        super::attr::attr(stat, self.tell(node, stat))
    }

    /// The change attribute of a node, which counts as told.
    pub(super) fn tell(&self, node: &Node, stat: &Statx) -> u64 {
        let value = self.changes.value(&node.id, stat);
        node.told_change.fetch_max(value, Ordering::AcqRel);
        value
    }

    /// What is told of a node's change attribute as the one before a change.
    pub(super) fn before_change(&self, node: &Node) -> Result<u64> {
        match node.told_change.load(Ordering::Acquire) {
            0 => Ok(self.tell(node, &stat_fd(node.as_fd())?)),
            told => Ok(told),
        }
    }

    /// Notes a change of a node, most often a directory, and says what is to be told of it.
    /// Others may have changed it meanwhile; the kernel does not say.
    pub(super) fn changed(&self, node: &Node, before: u64) -> Result<DirChange> {
        let stat = stat_fd(node.as_fd())?;
        let after = self.note(node, &stat);
        let attr = super::attr::attr(&stat, after).ok();
        Ok(DirChange { before, after, atomic: false, attr })
    }

    /// Notes a change of a node; `stat` is from after the change.
    pub(super) fn note(&self, node: &Node, stat: &Statx) -> u64 {
        if !self.changes.need_notes() && !is_directory(stat) {
            return self.tell(node, stat);
        }
        self.changes.note_at(&node.id, stamp(stat), &node.told_change)
    }

    /// Notes a change of a node by way of a descriptor, where that is needed at all.
    pub(super) fn note_change(&self, node: &Node, fd: BorrowedFd<'_>) -> Result<()> {
        if self.changes.need_notes() {
            self.note(node, &stat_fd(fd)?);
        }
        Ok(())
    }

    /// Notes what a listing tells of an object's change attribute.
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
        assert_eq!(lock(&changes.table).by_id.len(), CHANGE_COUNTS_MAX);
    }

    #[test]
    fn counts_stay_within_their_tick() {
        let mut table = Table::default();
        table.by_id.insert(id(1), Count { stamp: 7, changes: u64::MAX });
        assert_eq!(table.extra(&id(1), 7), COUNTS_PER_TICK - 1);
    }
}
