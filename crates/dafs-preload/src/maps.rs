//! The memory of files that the program has mapped.
//!
//! It is anonymous to the kernel, which would provide zeros instead of the file's content: behind
//! the end when such a map grows, and for pages that the program drops. Changes of these maps are
//! therefore intercepted.
//!
//! Invariants
//! * No two ranges overlap, and none is empty; all begin and end with a page.
//! * A program that maps no served file takes no lock. No call takes one for memory that lies apart
//!   from all maps.
//! * Allocators call these functions with their own locks held, so no code allocates under our
//!   lock: the list lies in memory mapped directly from the kernel.
//! * A fork finds the list intact at any moment: a change is made in a second list, which then
//!   replaces the first. A lock that another process has taken counts as free here.
//! * The second list has room for the content of the first: a change that shortens the list needs
//!   no memory.

use crate::limits::PAGE_BYTES;
use crate::next::with_signals_deferred;
use std::cell::UnsafeCell;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

/// One map, or the rest of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Map {
    /// Writes would have to be visible to others, so they are not allowed.
    pub(crate) is_shared: bool,
    /// The program may have written to its private copy.
    pub(crate) is_written: bool,
}

/// The addresses of whole pages.
pub(crate) type Pages = Range<usize>;

/// The pages of a range of bytes.
pub(crate) fn pages(address: usize, bytes: usize) -> Pages {
    let end = address.saturating_add(bytes).checked_next_multiple_of(PAGE_BYTES);
    address - address % PAGE_BYTES..end.unwrap_or(usize::MAX)
}

/// A range and its map.
type Part = (Pages, Map);

#[derive(Debug, Clone, Copy)]
struct Entry {
    start: usize,
    end: usize,
    map: Map,
}

/// Entries by their addresses, in pages of their own.
#[derive(Debug)]
struct List {
    at: *mut Entry,
    len: usize,
    capacity: usize,
}

impl List {
    const fn new() -> Self {
        Self { at: std::ptr::null_mut(), len: 0, capacity: 0 }
    }

    fn entries(&self) -> &[Entry] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: so many have been written, in memory that is this list's alone.
        unsafe { std::slice::from_raw_parts(self.at, self.len) }
    }

    /// Empties it, with room for `count` entries. Returns false, and changes nothing, if there is
    /// no memory.
    fn clear_for(&mut self, count: usize) -> bool {
        if count > self.capacity {
            let Some(old) = self.renew(count) else { return false };
            old.unmap();
        }
        self.len = 0;
        true
    }

    /// Gives it new memory for at least `count` entries, and returns the old memory, to which no
    /// reference remains. A fork in the middle finds a valid list, although perhaps without
    /// capacity and with some pages leaked.
    fn renew(&mut self, count: usize) -> Option<Room> {
        let bytes = (2 * count * size_of::<Entry>()).next_multiple_of(PAGE_BYTES);
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping. By a system call, since the function of that name is a hook of ours.
        let at = unsafe { libc::syscall(libc::SYS_mmap, 0_usize, bytes, access, flags, -1, 0_i64) };
        if at == -1 {
            return None;
        }
        let old = Room { at: self.at, bytes: self.capacity * size_of::<Entry>() };
        // SAFETY: fields of our own. One after the other, as a fork must find them.
        unsafe {
            (&raw mut self.len).write_volatile(0);
            (&raw mut self.capacity).write_volatile(0);
            (&raw mut self.at).write_volatile(at as *mut Entry);
            // The whole mapping, as far as entries fit; the rest of the last page stays unused.
            (&raw mut self.capacity).write_volatile(bytes / size_of::<Entry>());
        }
        Some(old)
    }

    fn push(&mut self, start: usize, end: usize, map: Map) {
        debug_assert!(self.len < self.capacity);
        if start < end {
            // SAFETY: there is room, which `clear_for` was asked for.
            unsafe { self.at.add(self.len).write(Entry { start, end, map }) };
            self.len += 1;
        }
    }
}

/// Former memory of a list.
#[must_use]
struct Room {
    at: *mut Entry,
    bytes: usize,
}

impl Room {
    fn unmap(self) {
        if self.bytes > 0 {
            // SAFETY: nothing refers to it. By a system call, as above.
            unsafe { libc::syscall(libc::SYS_munmap, self.at, self.bytes) };
        }
    }
}

#[derive(Debug)]
pub(crate) struct Maps {
    lists: [List; 2],
    /// Index of the current list.
    now: AtomicUsize,
}

impl Maps {
    const fn new() -> Self {
        Self { lists: [List::new(), List::new()], now: AtomicUsize::new(0) }
    }

    fn entries(&self) -> &[Entry] {
        self.lists[self.now.load(Ordering::Acquire) & 1].entries()
    }

    /// The maps in a range, cut at its ends.
    pub(crate) fn within(&self, pages: &Pages) -> impl Iterator<Item = Part> {
        let (start, end) = (pages.start, pages.end);
        let all = self.entries().iter();
        all.map(move |entry| (entry.start.max(start)..entry.end.min(end), entry.map))
            .filter(|(part, _)| !part.is_empty())
    }

    /// True if maps cover the whole range.
    pub(crate) fn cover(&self, pages: &Pages) -> bool {
        self.within(pages).map(|(part, _)| part.len()).sum::<usize>() == pages.len()
    }

    /// Number of entries without the range, plus `added`.
    fn count_without(&self, cut: &Pages, added: usize) -> usize {
        let left = |entry: &Entry| {
            let (before, behind) = (entry.end.min(cut.start), entry.start.max(cut.end));
            usize::from(entry.start < before) + usize::from(behind < entry.end)
        };
        self.entries().iter().map(left).sum::<usize>() + added
    }

    /// Replaces the content of a range. Returns false, and changes nothing, if there is no memory.
    fn exchange(&mut self, cut: &Pages, mut added: Option<Part>) -> bool {
        debug_assert!(added.as_ref().is_none_or(|(part, _)| cut.start <= part.start));
        let count = self.count_without(cut, usize::from(added.is_some()));
        let now = self.now.load(Ordering::Acquire) & 1;
        let [first, second] = &mut self.lists;
        let (old, new) = if now == 0 { (first, second) } else { (second, first) };
        if !new.clear_for(count) {
            return false;
        }
        for &Entry { start, end, map } in old.entries() {
            if end > cut.start {
                new.push(start, end.min(cut.start), map);
                if let Some((part, map)) = added.take() {
                    new.push(part.start, part.end, map);
                }
                new.push(start.max(cut.end), end, map);
            } else {
                new.push(start, end, map);
            }
        }
        if let Some((part, map)) = added {
            new.push(part.start, part.end, map);
        }
        self.now.store(1 - now, Ordering::Release);
        // The entry added now can be removed later, however little memory there is then.
        if !old.clear_for(count) {
            self.now.store(now, Ordering::Release);
            return false;
        }
        true
    }

    /// Removes all maps in a range. Returns false, and changes nothing, if that splits a map and
    /// there is no memory.
    pub(crate) fn take(&mut self, pages: &Pages) -> bool {
        self.within(pages).next().is_none() || self.exchange(pages, None)
    }

    /// Enters a map in a range, and replaces the former ones there. False if there is no memory.
    pub(crate) fn put(&mut self, pages: Pages, map: Map) -> bool {
        self.exchange(&pages.clone(), Some((pages, map)))
    }

    /// Notes that the program may have written to a range.
    pub(crate) fn write(&mut self, pages: &Pages) {
        loop {
            let found = self.within(pages).find(|(_, map)| !map.is_written);
            let Some((part, map)) = found else { return };
            if !self.put(part, Map { is_written: true, ..map }) {
                return;
            }
        }
    }
}

struct Shared(UnsafeCell<Maps>);

// SAFETY: used only by the thread that holds the lock.
unsafe impl Sync for Shared {}

static MAPS: Shared = Shared(UnsafeCell::new(Maps::new()));

/// The process whose thread has the lock, or zero.
static LOCK: AtomicU32 = AtomicU32::new(0);

/// All maps lie between these addresses.
static FIRST: AtomicUsize = AtomicUsize::new(usize::MAX);
static LAST: AtomicUsize = AtomicUsize::new(0);

/// True if a map may lie in a range; takes no lock.
pub(crate) fn may_hold(pages: &Pages) -> bool {
    pages.start < LAST.load(Ordering::Relaxed) && pages.end > FIRST.load(Ordering::Relaxed)
}

/// Spins this often before it yields to other threads, which may have lower priority.
const TRIES: u32 = 64;
const PAUSE: Duration = Duration::from_micros(50);

/// Takes the lock. If another process has taken it, the lock was held during the fork of this one,
/// and no thread here holds it.
fn lock() {
    let process = std::process::id();
    for tries in 1_u32.. {
        let holder = match LOCK.load(Ordering::Relaxed) {
            own if own == process => {
                if tries.is_multiple_of(TRIES) {
                    std::thread::sleep(PAUSE);
                }
                continue;
            }
            other => other,
        };
        let taken = LOCK.compare_exchange(holder, process, Ordering::Acquire, Ordering::Relaxed);
        if taken.is_ok() {
            return;
        }
    }
}

/// Runs `work` on the maps. `work` allocates nothing and calls no code of the program.
pub(crate) fn with<T>(work: impl FnOnce(&mut Maps) -> T) -> T {
    with_signals_deferred(|| {
        lock();
        // SAFETY: the lock is held.
        let maps = unsafe { &mut *MAPS.0.get() };
        let done = work(maps);
        if maps.entries().is_empty() {
            FIRST.store(usize::MAX, Ordering::Relaxed);
            LAST.store(0, Ordering::Relaxed);
        }
        LOCK.store(0, Ordering::Release);
        done
    })
}

/// Notes a map, in place of earlier ones there. False if there is no memory.
pub(crate) fn note(pages: Pages, map: Map) -> bool {
    with(|maps| {
        FIRST.fetch_min(pages.start, Ordering::Relaxed);
        LAST.fetch_max(pages.end, Ordering::Relaxed);
        maps.put(pages, map)
    })
}

/// Forgets a range that has been mapped anew. Without memory for a split, the rest of a surrounding
/// map is kept as ours.
pub(crate) fn forget(pages: &Pages) {
    if may_hold(pages) {
        with(|maps| maps.take(pages));
    }
}

/// Removes the maps of a range, and returns them. `None`, and no change, if there is no memory.
/// Allocates only if there are maps, and then the caller is no allocator.
pub(crate) fn take(pages: &Pages) -> Option<Vec<Part>> {
    let mut taken = Vec::new();
    while may_hold(pages) {
        let (count, is_done) = with(|maps| {
            let count = maps.within(pages).count();
            let has_room = count <= taken.capacity();
            if has_room {
                taken.extend(maps.within(pages));
            }
            (count, !has_room || maps.take(pages))
        });
        if !is_done {
            return None;
        }
        if count <= taken.capacity() {
            break;
        }
        taken.reserve_exact(count);
    }
    Some(taken)
}

/// Restores maps after a failed call, except where others were noted meanwhile.
pub(crate) fn put_back(taken: Vec<Part>) {
    for (part, map) in taken {
        let is_free = with(|maps| maps.within(&part).next().is_none());
        if is_free {
            note(part, map);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARED: Map = Map { is_shared: true, is_written: false };
    const OWN: Map = Map { is_shared: false, is_written: true };
    const PAGE: usize = PAGE_BYTES;

    #[test]
    fn an_unmap_in_the_middle_leaves_both_ends() {
        let mut maps = Maps::new();
        let within = |maps: &Maps, pages: Pages| maps.within(&pages).collect::<Vec<_>>();
        assert!(maps.put(20 * PAGE..22 * PAGE, OWN) && maps.put(10 * PAGE..20 * PAGE, SHARED));
        assert!(maps.cover(&(10 * PAGE..22 * PAGE)) && !maps.cover(&(9 * PAGE..11 * PAGE)));
        let middle = 12 * PAGE..13 * PAGE;
        assert_eq!(within(&maps, middle.clone()), [(middle.clone(), SHARED)]);
        assert!(maps.take(&middle));
        assert!(within(&maps, middle).is_empty());
        assert!(maps.cover(&(10 * PAGE..12 * PAGE)) && maps.cover(&(13 * PAGE..20 * PAGE)));
        let over = 19 * PAGE..30 * PAGE;
        let parts = [(19 * PAGE..20 * PAGE, SHARED), (20 * PAGE..22 * PAGE, OWN)];
        assert_eq!(within(&maps, over.clone()), parts);
        assert!(maps.take(&over));
        maps.write(&(11 * PAGE..14 * PAGE));
        let written = Map { is_written: true, ..SHARED };
        let rest = [
            (10 * PAGE..11 * PAGE, SHARED),
            (11 * PAGE..12 * PAGE, written),
            (13 * PAGE..14 * PAGE, written),
            (14 * PAGE..19 * PAGE, SHARED),
        ];
        assert_eq!(within(&maps, 0..usize::MAX), rest);
        assert!(maps.take(&(0..usize::MAX)));
        assert!(maps.entries().is_empty());
        for at in 0..1000 {
            assert!(maps.put(2 * at * PAGE..(2 * at + 1) * PAGE, OWN));
        }
        assert_eq!(maps.within(&(0..usize::MAX)).count(), 1000);
    }

    #[test]
    fn a_grown_mapping_forgets_its_former_memory() {
        let mut list = List::new();
        assert!(list.clear_for(3));
        list.push(PAGE, 2 * PAGE, OWN);
        let before = list.at;
        let old = list.renew(1000).unwrap();
        // A fork at this point never touches it.
        assert!(old.at == before && list.at != before && list.entries().is_empty());
        assert!(list.capacity >= 1000);
        old.unmap();
    }

    #[test]
    fn a_mapping_is_taken_out_without_memory() {
        let mut maps = Maps::new();
        for at in 0..500 {
            assert!(maps.put(3 * at * PAGE..(3 * at + 2) * PAGE, SHARED));
            let room = maps.lists.each_ref().map(|list| list.capacity);
            assert!(room.into_iter().all(|room| room > at), "{room:?} for {at}");
        }
        // As if there was no memory.
        let rooms = |maps: &Maps| maps.lists.each_ref().map(|list| (list.at, list.capacity));
        let before = rooms(&maps);
        for at in (0..500).rev() {
            assert!(maps.take(&(3 * at * PAGE..(3 * at + 1) * PAGE)), "an end of it");
            assert!(maps.take(&(3 * at * PAGE..(3 * at + 2) * PAGE)), "the rest");
        }
        assert!(maps.entries().is_empty());
        assert_eq!(rooms(&maps), before);
    }

    #[test]
    fn a_taken_mapping_is_put_back_where_there_is_room() {
        let all = 100 * PAGE..110 * PAGE;
        assert!(!may_hold(&all) && note(all.clone(), SHARED) && may_hold(&all));
        let taken = take(&(102 * PAGE..108 * PAGE)).unwrap();
        assert_eq!(taken, [(102 * PAGE..108 * PAGE, SHARED)]);
        put_back(taken);
        assert!(with(|maps| maps.cover(&all)));
        // Locked by a thread of the parent process at the time of the fork.
        LOCK.store(u32::MAX, Ordering::Relaxed);
        assert_eq!(take(&all).unwrap().len(), 3);
        assert!(!may_hold(&all));
    }

    #[test]
    fn pages_are_whole_ones() {
        assert_eq!(pages(PAGE, 1), PAGE..2 * PAGE);
        assert_eq!(pages(PAGE + 5, PAGE), PAGE..3 * PAGE);
        assert_eq!(pages(PAGE, 0), PAGE..PAGE);
        assert_eq!(pages(PAGE, usize::MAX), PAGE..usize::MAX);
    }
}
