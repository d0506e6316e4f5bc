//! The change attribute: a number that differs after every change made through this store, and only
//! grows.
//!
//! It is the ctime in nanoseconds. Since Linux 6.13 most file systems move the ctime on every change
//! after somebody looked, and nothing else is needed. Elsewhere the ctime moves with a clock that
//! ticks every few milliseconds, or by the second; there, changes of one object within a tick are
//! counted, and the count is added.
//!
//! Decisions
//! * Whether the ctime moves by itself is tried once, on a file without a name in the root of the
//!   export. Where that is not possible, it is taken not to.
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
//! * Where the ctime moves by itself, nothing here costs a system call or a lock.

use super::export::{Export, stat_fd};
use super::node::{Node, lock};
use crate::limits::{CHANGE_COUNTS_MAX, CHANGE_GONE_BITS, COUNTS_PER_TICK};
use crate::{Attr, DirChange, FileId, Result};
use rustc_hash::{FxHashMap, FxHasher};
use rustix::fs::{AtFlags, Mode, OFlags, Statx, StatxFlags};
use rustix::time::ClockId;
use std::collections::VecDeque;
use std::hash::{Hash, Hasher};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Changes made to find out whether the ctime moves; quick enough to fit into one tick, and too many
/// to be told apart by a tick that ends meanwhile.
const TRIALS: u32 = 8;

/// The ctime as one number.
fn stamp(stat: &Statx) -> u64 {
    let seconds = stat.stx_ctime.tv_sec.cast_unsigned();
    seconds.wrapping_mul(1_000_000_000).wrapping_add(u64::from(stat.stx_ctime.tv_nsec))
}

/// A point of time before a change.
#[derive(Debug, Clone, Copy)]
pub(super) struct Before(u64);

/// Makes change attributes.
pub(super) struct Changes {
    /// `None` where the ctime moves by itself.
    counts: Option<Counts>,
}

struct Counts {
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
        if read_only || ctime_moves(dir).unwrap_or(false) { Self::plain() } else { Self::counted() }
    }

    pub(super) fn plain() -> Self {
        Self { counts: None }
    }

    pub(super) fn counted() -> Self {
        let (used, table) = (AtomicUsize::new(0), Mutex::default());
        Self { counts: Some(Counts { used, table }) }
    }

    /// Whether changes have to be noted.
    pub(super) fn are_counted(&self) -> bool {
        self.counts.is_some()
    }

    /// The change attribute of an object with these attributes.
    pub(super) fn value(&self, id: &FileId, stat: &Statx) -> u64 {
        self.at(id, stamp(stat))
    }

    fn at(&self, id: &FileId, stamp: u64) -> u64 {
        let extra = match &self.counts {
            Some(counts) if counts.used.load(Ordering::Acquire) > 0 => {
                lock(&counts.table).extra(id, stamp)
            }
            _ => 0,
        };
        stamp.wrapping_add(extra)
    }

    /// To be called before a change.
    pub(super) fn before(&self) -> Before {
        if self.counts.is_none() {
            return Before(0);
        }
        let now = rustix::time::clock_gettime(ClockId::RealtimeCoarse);
        let seconds = now.tv_sec.cast_unsigned();
        Before(seconds.wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec.cast_unsigned()))
    }

    /// Notes a change that is done, before anybody is told of it. `stat` is from after the change.
    pub(super) fn note(&self, id: &FileId, before: Before, stat: &Statx) {
        self.note_at(id, before, stamp(stat));
    }

    fn note_at(&self, id: &FileId, Before(before): Before, stamp: u64) {
        let Some(counts) = &self.counts else { return };
        // A ctime from after the change began is one that nobody can have seen before.
        if before < stamp && counts.used.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut table = lock(&counts.table);
        let counted = table.by_id.get(id).is_some_and(|count| count.stamp == stamp);
        if before >= stamp || counted {
            table.count(id, stamp);
            counts.used.store(table.by_id.len(), Ordering::Release);
        }
    }
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
    /// Attributes in our form.
    pub(super) fn attr(&self, id: &FileId, stat: &Statx) -> Result<Attr> {
        super::attr::attr(stat, self.changes.value(id, stat))
    }

    /// Attributes of a node in our form.
    pub(super) fn node_attr(&self, node: &Node, stat: &Statx) -> Result<Attr> {
        let attr = self.attr(&node.id, stat)?;
        node.told_change.store(attr.change, Ordering::Relaxed);
        Ok(attr)
    }

    /// The change attribute of a node now.
    pub(super) fn change_of(&self, node: &Node) -> Result<u64> {
        let change = self.changes.value(&node.id, &stat_fd(node.as_fd())?);
        node.told_change.store(change, Ordering::Relaxed);
        Ok(change)
    }

    /// What was told last of a node's change attribute, and the time.
    pub(super) fn before_change(&self, node: &Node) -> Result<(u64, Before)> {
        let told = node.told_change.load(Ordering::Relaxed);
        let told = if told == 0 { self.change_of(node)? } else { told };
        Ok((told, self.changes.before()))
    }

    /// Notes a change of a node, most often a directory, and says what is to be told of it.
    /// Others may have changed it meanwhile; the kernel does not say.
    pub(super) fn changed(&self, node: &Node, (before, time): (u64, Before)) -> Result<DirChange> {
        let stat = stat_fd(node.as_fd())?;
        self.changes.note(&node.id, time, &stat);
        let after = self.changes.value(&node.id, &stat);
        node.told_change.store(after, Ordering::Relaxed);
        Ok(DirChange { before, after, atomic: false })
    }

    /// Notes a change of an object by way of a descriptor, where that is needed at all.
    pub(super) fn note_change(&self, id: &FileId, fd: BorrowedFd<'_>, time: Before) -> Result<()> {
        if self.changes.are_counted() {
            self.changes.note(id, time, &stat_fd(fd)?);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FILE_ID_BYTES;

    fn id(number: u64) -> FileId {
        let mut bytes = [0; FILE_ID_BYTES];
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        FileId(bytes)
    }

    #[test]
    fn changes_within_a_tick_are_counted() {
        let changes = Changes::counted();
        let (first, other) = (id(1), id(2));
        let tick = 1_700_000_000_000_000_000;
        assert_eq!(changes.at(&first, tick), tick);
        changes.note_at(&first, Before(tick - 5), tick);
        assert_eq!(changes.at(&first, tick), tick, "the tick was new");
        changes.note_at(&first, Before(tick), tick);
        changes.note_at(&first, Before(tick + 1), tick);
        assert_eq!(changes.at(&first, tick), tick + 2);
        changes.note_at(&first, Before(tick - 5), tick);
        assert_eq!(changes.at(&first, tick), tick + 3, "two at once");
        assert_eq!(changes.at(&other, tick), tick);
        let next = tick + 4_000_000;
        changes.note_at(&first, Before(next - 1), next);
        assert_eq!(changes.at(&first, next), next);
        changes.note_at(&first, Before(next), next);
        assert_eq!(changes.at(&first, next), next + 1);
    }

    #[test]
    fn a_value_never_goes_back_when_counts_must_go() {
        let changes = Changes::counted();
        let tick = 1_700_000_000_000_000_000;
        let told: Vec<u64> = (0..CHANGE_COUNTS_MAX as u64 + 500)
            .map(|number| {
                changes.note_at(&id(number), Before(tick), tick);
                changes.note_at(&id(number), Before(tick), tick);
                changes.at(&id(number), tick)
            })
            .collect();
        let now = |number: usize| changes.at(&id(number as u64), tick);
        assert!(told.iter().enumerate().all(|(number, &told)| now(number) >= told));
        assert_eq!(now(0), tick + COUNTS_PER_TICK);
        assert_eq!(lock(&changes.counts.as_ref().unwrap().table).by_id.len(), CHANGE_COUNTS_MAX);
    }

    #[test]
    fn counts_stay_within_their_tick() {
        let mut table = Table::default();
        table.by_id.insert(id(1), Count { stamp: 7, changes: u64::MAX });
        assert_eq!(table.extra(&id(1), 7), COUNTS_PER_TICK - 1);
    }
}
