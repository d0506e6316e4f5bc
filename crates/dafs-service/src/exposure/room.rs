//! Room in the memory for a file that lacks it: others give segments, each after a second chance. For
//! window pages a file gives frames of its own, too.
//!
//! Invariants
//! * No file keeps all memory for ever while another one with less than its share reads: one with
//!   more than its share gives a segment at least after a few that requests have asked for, and does
//!   not grow meanwhile.
//! * The lock of the room is taken under no other lock of an exposure.
//! * A reactor spends few of its turns with searches, however many files clients expose.

use super::files::{ExposedFile, Exposure};
use super::leave::Limit;
use super::share::{Gift, Holding, Payer, Shares, giver};
use crate::limits::{
    EXPOSED_PERIOD_NS, EXPOSED_SEARCH_FILE_NS, EXPOSED_SEARCH_NS, EXPOSED_WISH_NS,
};
use std::sync::atomic::Ordering;

/// The state of the search for memory.
#[derive(Debug, Default)]
pub(super) struct Room {
    /// The time of the last search.
    last_ns: u64,
    /// The number of exposed files that it has looked at.
    files: u64,
    /// The exposure that gave last.
    hand: u64,
    /// Until then, files with more than their share do not grow.
    pressed_until_ns: u64,
    /// The shares as of the last search.
    shares: Shares,
}

impl Room {
    /// True if a search may begin now. Searches of files with more than their share leave time for
    /// those of others, however many requests their clients send. A search looks at all files, so
    /// many of them make the pause longer.
    fn is_due(&mut self, is_entitled: bool, now_ns: u64) -> bool {
        let of_files_ns = self.files.saturating_mul(EXPOSED_SEARCH_FILE_NS);
        let factor = if is_entitled { 1 } else { EXPOSED_WISH_NS / EXPOSED_SEARCH_NS };
        let pause_ns = EXPOSED_SEARCH_NS.max(of_files_ns).saturating_mul(factor);
        let is_due = now_ns >= self.last_ns.saturating_add(pause_ns);
        if is_due {
            self.last_ns = now_ns;
        }
        is_due
    }
}

impl Exposure {
    /// Makes room for a file that has got no page or frame. It gets that when it asks again, some
    /// seconds later.
    pub(super) fn make_room(&self, wanting: &ExposedFile) {
        let Some(mut room) = self.room.try_lock() else { return };
        let now_ns = self.shared.now_ns();
        let mut wants = wanting.file.lock();
        let Some(lacking) = wants.lacking else { return };
        let wanted = wants.bytes.saturating_add(lacking);
        let was_entitled = wanted <= room.shares.share(wanting.payer);
        if !room.is_due(was_entitled, now_ns) {
            return;
        }
        wants.lacking = None;
        drop(wants);
        let mut files: Vec<_> = self.files.read().values().cloned().collect();
        files.sort_unstable_by_key(|file| file.id);
        room.files = files.len() as u64;
        let holdings: Vec<_> = files.iter().map(|file| file.holding(now_ns)).collect();
        room.shares = Shares::of(&holdings, wanting.id);
        let is_entitled = wanted <= room.shares.share(wanting.payer);
        if is_entitled {
            room.pressed_until_ns = now_ns.saturating_add(EXPOSED_PERIOD_NS);
        }
        if !is_entitled {
            let mut file = wanting.file.lock();
            file.begin_leaving_for_pages(self.shared.now_ns(), &*wanting.memory);
        }
        let until_ns = room.pressed_until_ns;
        let is_pressed = now_ns < until_ns;
        for (file, holding) in files.iter().zip(&holdings) {
            let share = room.shares.share(holding.payer);
            let limit = is_pressed.then_some(Limit { bytes: share, until_ns });
            self.end_leaving(file, limit, is_pressed && holding.bytes > share);
        }
        let wish = (wanting.id, is_entitled);
        let Some((at, gift)) = giver(&holdings, &room.shares, wish, room.hand) else { return };
        room.hand = holdings[at].id;
        match gift {
            Gift::Segment => {
                let mut file = files[at].file.lock();
                file.begin_leaving(self.shared.now_ns(), &*files[at].memory);
            }
            Gift::All => self.end(&files[at]),
        }
    }

    /// Returns the limit of a file that a client exposes now.
    pub(super) fn limit_of_new(&self, payer: Payer) -> Option<Limit> {
        let room = self.room.lock();
        let is_pressed = self.shared.now_ns() < room.pressed_until_ns;
        let (bytes, until_ns) = (room.shares.share_of_new(payer), room.pressed_until_ns);
        is_pressed.then_some(Limit { bytes, until_ns })
    }

    /// Sets the limit of a file, and discards its segments that have left.
    fn end_leaving(&self, file: &ExposedFile, limit: Option<Limit>, has_much: bool) {
        let mut inner = file.file.lock();
        inner.limit = limit;
        let has_left = inner.has_left(self.shared.now_ns());
        drop(inner);
        if !has_left {
            return;
        }
        // Fills that are under way end before, so none writes to a segment that is gone.
        let alone = file.filling.write();
        let mut inner = file.file.lock();
        let removed = inner.end_leaving(self.shared.now_ns(), has_much, &*file.memory);
        drop(inner);
        removed.iter().for_each(|segment| file.memory.discard(*segment));
        drop(alone);
        self.shared.counters.given.fetch_add(removed.len() as u64, Ordering::Relaxed);
    }
}

impl ExposedFile {
    fn holding(&self, now_ns: u64) -> Holding {
        let file = self.file.lock();
        Holding {
            id: self.id,
            payer: self.payer,
            bytes: file.bytes,
            has_frames: !file.frames.is_empty(),
            may_leave: file.may_leave(),
            is_idle: file.is_idle(now_ns),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn searches_of_files_with_much_leave_time_for_those_of_others() {
        let mut room = Room::default();
        let (start, due) = (1_000_000_000, 1_000_000_000 + EXPOSED_SEARCH_NS);
        assert!(room.is_due(false, start));
        // A client with much asks all the time.
        assert!((start..due).step_by(1_000_000).all(|now_ns| !room.is_due(false, now_ns)));
        assert!(!room.is_due(true, due - 1) && !room.is_due(false, due));
        assert!(room.is_due(true, due) && !room.is_due(false, start + EXPOSED_WISH_NS));
        assert!(room.is_due(false, due + EXPOSED_WISH_NS));
    }

    #[test]
    fn searches_among_many_files_leave_time_for_other_work() {
        let mut room = Room { files: 100_000, ..Room::default() };
        let pause_ns = 100_000 * EXPOSED_SEARCH_FILE_NS;
        assert!(room.is_due(true, pause_ns) && !room.is_due(true, 2 * pause_ns - 1));
        assert!(room.is_due(true, 2 * pause_ns));
        // Those of files with much still leave time for others.
        assert!(!room.is_due(false, 4 * pause_ns) && room.is_due(true, 4 * pause_ns));
    }
}
