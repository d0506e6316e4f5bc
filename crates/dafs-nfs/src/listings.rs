//! The budget of a reactor for the directory listings that it makes itself.
//!
//! Invariants
//! * In one turn a reactor lists about as much as one short listing, however many clients ask over
//!   however many connections. The pool makes the others, where clients take turns.

use crate::limits::{READDIR_INLINE_BYTES_MAX, READDIR_PLAIN_SHARE};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The budget of a reactor for listings in one turn. Only that reactor uses it.
#[derive(Debug, Default)]
pub(crate) struct Listings {
    turn_ns: AtomicU64,
    /// Bytes of entries with attributes in this turn.
    done: AtomicUsize,
}

/// Returns the cost of a listing. Only an entry with attributes needs an access to its object.
fn cost(bytes: usize, look: bool) -> usize {
    if look { bytes } else { bytes / READDIR_PLAIN_SHARE }
}

impl Listings {
    /// True if a listing of up to so many bytes may be made in the turn that began at `now_ns`.
    pub(crate) fn may(&self, now_ns: u64, bytes_max: usize, look: bool) -> bool {
        if self.turn_ns.swap(now_ns, Ordering::Relaxed) != now_ns {
            self.done.store(0, Ordering::Relaxed);
        }
        cost(bytes_max, look) <= READDIR_INLINE_BYTES_MAX
            && self.done.load(Ordering::Relaxed) < READDIR_INLINE_BYTES_MAX
    }

    /// Charges a listing to the turn.
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
        // A short directory costs little, even if the client's limit is high.
        (0..10).for_each(|_| listings.add(READDIR_INLINE_BYTES_MAX / 20, true));
        assert!(listings.may(1, READDIR_INLINE_BYTES_MAX, true));
        listings.add(READDIR_INLINE_BYTES_MAX, true);
        assert!(!listings.may(1, 100, true) && !listings.may(1, 100, false));
        assert!(listings.may(2, 100, true));
    }
}
