//! How much listing of directories a reactor does itself.
//!
//! Invariants
//! * In one turn no more than about one short listing, however many are asked for over however many
//!   connections: the others go to the pool, where their clients take turns.

use crate::limits::{READDIR_INLINE_BYTES_MAX, READDIR_PLAIN_SHARE};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The budget of a reactor for listings in one turn. Only that reactor uses it.
#[derive(Debug, Default)]
pub(crate) struct Listings {
    turn_ns: AtomicU64,
    /// Bytes of entries with attributes that it has listed.
    done: AtomicUsize,
}

/// The cost of a listing. An entry with attributes is a look at an object; one without is not.
fn cost(bytes: usize, look: bool) -> usize {
    if look { bytes } else { bytes / READDIR_PLAIN_SHARE }
}

impl Listings {
    /// Whether a listing of up to so many bytes may be made in the turn that began at `now_ns`.
    pub(crate) fn may(&self, now_ns: u64, bytes_max: usize, look: bool) -> bool {
        if self.turn_ns.swap(now_ns, Ordering::Relaxed) != now_ns {
            self.done.store(0, Ordering::Relaxed);
        }
        cost(bytes_max, look) <= READDIR_INLINE_BYTES_MAX
            && self.done.load(Ordering::Relaxed) < READDIR_INLINE_BYTES_MAX
    }

    /// One was made.
    pub(crate) fn add(&self, bytes: usize, look: bool) {
        self.done.fetch_add(cost(bytes, look), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_has_room_for_one_short_listing() {
        let listings = Listings::default();
        assert!(listings.may(1, READDIR_INLINE_BYTES_MAX, true));
        assert!(!listings.may(1, READDIR_INLINE_BYTES_MAX + 1, true));
        assert!(listings.may(1, READDIR_INLINE_BYTES_MAX + 1, false));
        // Directories with little in them cost little, whatever room there was for them.
        (0..10).for_each(|_| listings.add(READDIR_INLINE_BYTES_MAX / 20, true));
        assert!(listings.may(1, READDIR_INLINE_BYTES_MAX, true));
        listings.add(READDIR_INLINE_BYTES_MAX, true);
        assert!(!listings.may(1, 100, true) && !listings.may(1, 100, false));
        assert!(listings.may(2, 100, true));
    }
}
