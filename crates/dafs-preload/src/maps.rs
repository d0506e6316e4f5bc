//! The memory that stands for files which the program has mapped.
//!
//! It is anonymous to the kernel, which would hand out zeros where it knows a file: behind the end when such
//! a map grows, and in place of what the program lets it drop. So what is done to these maps is looked at.
//!
//! Invariants
//! * No two ranges overlap, and none is empty; all begin and end with a page.
//! * A program that maps no served file takes no lock.
//! * The lock is held for moments only, and what this library calls meanwhile is not looked at.

use crate::limits::PAGE_BYTES;
use crate::next::{aside, quietly};
use crate::table::locked;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

/// One map, or what is left of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Map {
    /// Others would see what is written there, so nothing may be.
    pub(crate) is_shared: bool,
    /// The program may have written there, to a copy of its own.
    pub(crate) is_written: bool,
}

/// The addresses of whole pages.
pub(crate) type Pages = Range<usize>;

/// The pages that so many bytes from an address lie in.
pub(crate) fn pages(address: usize, bytes: usize) -> Pages {
    let end = address.saturating_add(bytes).checked_next_multiple_of(PAGE_BYTES);
    address - address % PAGE_BYTES..end.unwrap_or(usize::MAX)
}

#[derive(Debug, Default)]
pub(crate) struct Maps(BTreeMap<usize, (usize, Map)>);

impl Maps {
    const fn new() -> Self {
        Self(BTreeMap::new())
    }

    /// What lies in a range, cut at its ends.
    pub(crate) fn within(&self, pages: &Pages) -> Vec<(Pages, Map)> {
        let before = self.0.range(..pages.start).next_back();
        let all = before.into_iter().chain(self.0.range(pages.clone()));
        let cut = |(&start, &(end, map)): (&usize, &(usize, Map))| {
            (start.max(pages.start)..end.min(pages.end), map)
        };
        all.map(cut).filter(|(part, _)| !part.is_empty()).collect()
    }

    /// Whether nothing else lies in a range.
    pub(crate) fn cover(&self, pages: &Pages) -> bool {
        self.within(pages).iter().map(|(part, _)| part.len()).sum::<usize>() == pages.len()
    }

    /// Takes out what lies in a range.
    pub(crate) fn take(&mut self, pages: &Pages) -> Vec<(Pages, Map)> {
        let taken = self.within(pages);
        for (part, map) in &taken {
            let Some((&start, &(end, _))) = self.0.range(..=part.start).next_back() else {
                continue;
            };
            self.0.remove(&start);
            self.put(start..part.start, *map);
            self.put(part.end..end, *map);
        }
        taken
    }

    /// Notes what lies in a range where nothing is.
    pub(crate) fn put(&mut self, pages: Pages, map: Map) {
        if !pages.is_empty() {
            self.0.insert(pages.start, (pages.end, map));
        }
    }
}

static MAPS: Mutex<Maps> = Mutex::new(Maps::new());

/// Whether there have ever been any.
static ARE_ANY: AtomicBool = AtomicBool::new(false);

/// Whether nothing of the program's memory can be such a map.
pub(crate) fn are_none() -> bool {
    !ARE_ANY.load(Ordering::Relaxed)
}

/// Runs `work`, which calls nothing of the program's, on the maps.
pub(crate) fn with<T>(work: impl FnOnce(&mut Maps) -> T) -> T {
    // Memory for the maps may come from functions that stand before ours.
    quietly(|| aside(|| work(&mut locked(&MAPS))))
}

/// Notes a map; what lay in its place is gone.
pub(crate) fn note(pages: Pages, map: Map) {
    ARE_ANY.store(true, Ordering::Relaxed);
    with(|maps| {
        maps.take(&pages);
        maps.put(pages, map);
    });
}

/// Nothing of ours lies in a range any more.
pub(crate) fn forget(pages: &Pages) {
    if !are_none() {
        with(|maps| maps.take(pages));
    }
}

/// The maps, kept from everybody over a fork so that the child finds them whole.
static HELD: Mutex<Held> = Mutex::new(Held(None));

struct Held(Option<MutexGuard<'static, Maps>>);

// SAFETY: a guard must be dropped by the thread that took it. It is put there and taken out again by
// the thread that forks, between the handlers that run before and after its fork.
unsafe impl Send for Held {}

/// After the table is held, so that no handler runs here.
pub(crate) fn before_fork() {
    let guard = locked(&MAPS);
    locked(&HELD).0 = Some(guard);
}

/// Before the table is let go.
pub(crate) fn after_fork() {
    drop(locked(&HELD).0.take());
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARED: Map = Map { is_shared: true, is_written: false };
    const OWN: Map = Map { is_shared: false, is_written: true };
    const PAGE: usize = PAGE_BYTES;

    #[test]
    fn what_is_unmapped_in_the_middle_leaves_both_ends() {
        let mut maps = Maps::new();
        maps.put(10 * PAGE..20 * PAGE, SHARED);
        maps.put(20 * PAGE..22 * PAGE, OWN);
        assert!(maps.cover(&(10 * PAGE..22 * PAGE)) && !maps.cover(&(9 * PAGE..11 * PAGE)));
        assert_eq!(maps.take(&(12 * PAGE..13 * PAGE)), [(12 * PAGE..13 * PAGE, SHARED)]);
        assert!(maps.within(&(12 * PAGE..13 * PAGE)).is_empty());
        assert!(maps.cover(&(10 * PAGE..12 * PAGE)) && maps.cover(&(13 * PAGE..20 * PAGE)));
        let over = maps.take(&(19 * PAGE..30 * PAGE));
        assert_eq!(over, [(19 * PAGE..20 * PAGE, SHARED), (20 * PAGE..22 * PAGE, OWN)]);
        let rest = [(10 * PAGE..12 * PAGE, SHARED), (13 * PAGE..19 * PAGE, SHARED)];
        assert_eq!(maps.take(&(0..usize::MAX)), rest);
        assert!(maps.0.is_empty());
    }

    #[test]
    fn pages_are_whole_ones() {
        assert_eq!(pages(PAGE, 1), PAGE..2 * PAGE);
        assert_eq!(pages(PAGE + 5, PAGE), PAGE..3 * PAGE);
        assert_eq!(pages(PAGE, 0), PAGE..PAGE);
        assert_eq!(pages(PAGE, usize::MAX), PAGE..usize::MAX);
    }
}
