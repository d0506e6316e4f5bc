//! The places of small files, for reads by RDMA. Small files share an exposure, and a client keeps their
//! places when it closes them. So it reads a file without a request that it has just opened again. No part of
//! this does I/O.
//!
//! Invariants
//! * A read stays inside the blocks of its file: those behind them are of another one.
//! * One question about small files is under way at a time: two answers would name the same segments, and
//!   count them twice.
//! * Nothing that the server wrote is trusted, as in `directory.rs`.

use super::directory::{Directory, Miss, PageFetch, Plan, Question};
use crate::core::blocks::{BLOCK_BYTES, ExposeAnswer, SMALL_FILE_BYTES, WINDOW_BLOCKS};
use crate::limits::{
    OPTIMISTIC_ASK_PAUSE_MAX, OPTIMISTIC_ASK_PAUSE_MIN, OPTIMISTIC_SHARED_EXPOSURES_MAX,
    OPTIMISTIC_SMALL_FILES_MAX,
};
use dafs_dat::Instant;
use dafs_wire::dafs::{FileHandle, StateId};
use rustc_hash::FxHashMap;

/// The place of a small file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    exposure: u64,
    /// Its first block there.
    base: u64,
}

impl Place {
    fn window(self) -> u64 {
        self.base / WINDOW_BLOCKS
    }
}

/// A file that reads have missed.
#[derive(Debug, Clone, Copy, Default)]
struct File {
    was_missed: bool,
    place: Option<Place>,
    /// No question before this time.
    next: Instant,
}

/// The small files of a session.
#[derive(Debug, Default)]
pub(super) struct SmallFiles {
    files: FxHashMap<FileHandle, File>,
    /// The blocks of each exposure, by its number in the place of an open's name.
    exposures: Directory,
    /// The exposure of the last answer for each file system, which has one at a time.
    latest: FxHashMap<[u8; 16], u64>,
    is_asking: bool,
}

/// The name of an exposure.
fn name_of(exposure: u64) -> StateId {
    StateId(exposure.to_ne_bytes())
}

impl SmallFiles {
    /// The reads by RDMA that a read takes. `None` if the file has no place, or may go on behind it.
    pub(super) fn plan(
        &mut self,
        file: &FileHandle,
        (offset, len): (u64, u32),
        now: Instant,
    ) -> Option<Result<Plan, Miss>> {
        let place = self.files.get(file)?.place?;
        let room = SMALL_FILE_BYTES.checked_sub(offset).filter(|room| *room > 0)?;
        let at = place.base.checked_mul(BLOCK_BYTES)?.checked_add(offset)?;
        // INVARIANT: a small file has 64 KiB.
        let wanted = len.min(room as u32);
        match self.exposures.plan(name_of(place.exposure), (at, wanted), now) {
            Ok(plan) if wanted < len && plan.bytes == wanted => None,
            Ok(mut plan) => {
                (plan.is_small, plan.is_end) = (true, plan.bytes < len);
                Some(Ok(plan))
            }
            Err(miss) => Some(Err(miss)),
        }
    }

    /// Notes that a read was a request. Returns true if the client may ask for the place of the file,
    /// which it had read before.
    pub(super) fn missed(&mut self, file: &FileHandle, now: Instant) -> bool {
        if !self.files.contains_key(file) && self.files.len() >= OPTIMISTIC_SMALL_FILES_MAX {
            self.files.clear();
        }
        let file = self.files.entry(*file).or_default();
        std::mem::replace(&mut file.was_missed, true) && now >= file.next
    }

    /// The page to fetch for the place of a file, if that is due.
    pub(super) fn fetch(&mut self, file: &FileHandle, now: Instant) -> Option<PageFetch> {
        let place = self.files.get(file)?.place?;
        let mut fetch = self.exposures.fetch(name_of(place.exposure), place.window(), now)?;
        fetch.is_small = true;
        Some(fetch)
    }

    /// Takes the content of a page.
    pub(super) fn fetched(&mut self, fetch: &PageFetch, bytes: &[u8; 4096], now: Instant) {
        self.exposures.fetched(fetch, bytes, now);
    }

    /// As [`Directory::verify`].
    pub(super) fn verify(&mut self, plan: &Plan, found: &[u8]) -> bool {
        self.exposures.verify(name_of(plan.exposure), plan, found)
    }

    /// True while the answer to a question is awaited.
    pub(super) fn is_asking(&self) -> bool {
        self.is_asking
    }

    /// Begins a question about a file. Returns the exposure that the client knows, or 0, and the number of
    /// its segments.
    pub(super) fn asks(&mut self, file: &FileHandle) -> (u64, u32) {
        self.is_asking = true;
        let Some(exposure) = self.latest.get(&file.fs).copied() else { return (0, 0) };
        match self.exposures.segment_count(name_of(exposure)) {
            0 => (0, 0),
            count => (exposure, count),
        }
    }

    /// Takes the answer to a question that named this exposure; `None` if there is none, or it has no place
    /// of a small file. Returns true if it has something new.
    pub(super) fn answered(
        &mut self,
        file: &FileHandle,
        (known, answer): ((u64, u32), Option<ExposeAnswer>),
        now: Instant,
    ) -> bool {
        self.is_asking = false;
        let place =
            answer.as_ref().map(|answer| Place { exposure: answer.exposure, base: answer.base });
        let is_new = place.zip(answer).is_some_and(|(place, answer)| {
            self.forget_former(file.fs, place.exposure);
            let name = name_of(place.exposure);
            // Its blocks have an entry from now on.
            self.exposures.missed(name);
            let (exposure, known) = known;
            let (needed, windows) = (place.window(), place.window()..=place.window());
            let question = Question { name, exposure, known, needed, windows };
            self.exposures.answered(&question, Some(answer), now)
        });
        let Some(file) = self.files.get_mut(file) else { return is_new };
        let is_moved = place.is_some() && file.place != place;
        file.place = place;
        let is_new = is_new || is_moved;
        file.next = now + if is_new { OPTIMISTIC_ASK_PAUSE_MIN } else { OPTIMISTIC_ASK_PAUSE_MAX };
        is_new
    }

    /// Forgets what is over when the files of a file system share this exposure.
    fn forget_former(&mut self, fs: [u8; 16], exposure: u64) {
        if self.latest.len() >= OPTIMISTIC_SHARED_EXPOSURES_MAX && !self.latest.contains_key(&fs) {
            self.forget_places();
        }
        let former = self.latest.insert(fs, exposure).filter(|former| *former != exposure);
        former.into_iter().for_each(|former| self.exposures.closed(name_of(former)));
    }

    /// Forgets all places: their keys are no good on another channel.
    pub(super) fn forget_places(&mut self) {
        self.exposures = Directory::default();
        self.latest.clear();
        self.is_asking = false;
        for file in self.files.values_mut() {
            (file.place, file.next) = (None, Instant::default());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_wire::dafs::{EntryBlock, EntryWord, ExposedKind, ExposedSegment, ExposedWindow};

    const FILE: FileHandle = FileHandle { fs: [7; 16], file: [7; 48] };
    const NOW: Instant = Instant(1 << 40);

    /// The file is the third one of its exposure.
    const BASE: u64 = 3 * 16;

    fn answer() -> ExposeAnswer {
        let segment = |number: u32, kind| {
            let address = u64::from(number) << 32;
            ExposedSegment { address, number, key: number, bytes: 1 << 20, kind }
        };
        let segments = vec![segment(1, ExposedKind::Frames), segment(2, ExposedKind::Index)];
        let windows = vec![ExposedWindow { window: 0, segment: 2, page: 0 }];
        ExposeAnswer { exposure: 9, windows, segments, base: BASE }
    }

    /// A file of two blocks, the second one of 10 bytes, whose place is known.
    fn known() -> SmallFiles {
        let mut small = SmallFiles::default();
        assert!(!small.missed(&FILE, NOW) && small.missed(&FILE, NOW), "the second read asks");
        assert_eq!(small.asks(&FILE), (0, 0));
        assert!(small.is_asking());
        assert!(small.answered(&FILE, ((0, 0), Some(answer())), NOW));
        assert!(!small.is_asking());
        let fetch = small.fetch(&FILE, NOW).unwrap();
        assert!(fetch.is_small);
        let mut page = [0; 4096];
        for (at, bytes) in [(0, 4096), (1, 10)] {
            let block = EntryBlock { segment: 1, frame: at as u8, bytes };
            let word = EntryWord::new(1, Some(block)).0.to_le();
            page[(BASE as usize + at) * 8..][..8].copy_from_slice(&word.to_ne_bytes());
        }
        small.fetched(&fetch, &page, NOW);
        small
    }

    #[test]
    fn a_file_that_is_opened_again_is_read_at_its_place() {
        let mut small = known();
        let plan = small.plan(&FILE, (0, 64 << 10), NOW).unwrap().unwrap();
        assert_eq!((plan.bytes, plan.is_end, plan.is_small), (4106, true, true));
        let entries: Vec<u8> = plan
            .checks
            .iter()
            .flat_map(|check| &check.words)
            .flat_map(|w| w.to_ne_bytes())
            .collect();
        assert!(small.verify(&plan, &entries));
        let part = small.plan(&FILE, (4096, 5), NOW).unwrap().unwrap();
        assert_eq!((part.bytes, part.is_end), (5, false));
        assert_eq!(small.plan(&FileHandle::ZERO, (0, 1), NOW), None);
        // Another channel has other keys.
        small.forget_places();
        assert_eq!(small.plan(&FILE, (0, 1), NOW), None);
        assert!(small.missed(&FILE, NOW));
    }

    #[test]
    fn no_read_leads_behind_the_blocks_of_the_file() {
        let mut small = known();
        for offset in [64 << 10, u64::MAX] {
            assert_eq!(small.plan(&FILE, (offset, 1), NOW), None);
        }
        // The next file has its blocks there.
        let last = small.plan(&FILE, ((64 << 10) - 1, 2), NOW);
        assert_eq!(last, Some(Err(Miss::Absent(0))));
        let answer = ExposeAnswer { base: u64::MAX, ..answer() };
        small.answered(&FILE, ((9, 2), Some(answer)), NOW);
        assert_eq!(small.plan(&FILE, (0, 1), NOW), None);
    }

    #[test]
    fn a_file_without_a_place_is_asked_for_again_after_a_while() {
        let mut small = SmallFiles::default();
        small.missed(&FILE, NOW);
        small.asks(&FILE);
        assert!(!small.answered(&FILE, ((0, 0), None), NOW));
        assert!(!small.missed(&FILE, NOW + OPTIMISTIC_ASK_PAUSE_MIN));
        assert!(small.missed(&FILE, NOW + OPTIMISTIC_ASK_PAUSE_MAX));
    }

    #[test]
    fn segments_of_an_exposure_are_counted_once() {
        let mut small = known();
        assert_eq!(small.asks(&FILE), (9, 2));
        let nothing = ExposeAnswer { segments: Vec::new(), ..answer() };
        assert!(!small.answered(&FILE, ((9, 2), Some(nothing)), NOW));
        assert_eq!(small.asks(&FILE), (9, 2));
    }

    #[test]
    fn a_file_system_has_one_exposure_and_others_have_their_own() {
        let mut small = known();
        let other = FileHandle { fs: [8; 16], ..FILE };
        assert_eq!(small.asks(&other), (0, 0));
        let answer_of = |exposure| Some(ExposeAnswer { exposure, ..answer() });
        assert!(small.answered(&other, ((0, 0), answer_of(10)), NOW));
        assert_eq!((small.asks(&FILE), small.asks(&other)), ((9, 2), (10, 2)));
        assert!(small.plan(&FILE, (0, 1), NOW).unwrap().is_ok());
        // The server has ended the first one.
        assert!(small.answered(&FILE, ((9, 2), answer_of(11)), NOW));
        assert_eq!(small.asks(&FILE), (11, 2));
        assert_eq!(small.exposures.segment_count(name_of(9)), 0);
        for number in 0..=OPTIMISTIC_SHARED_EXPOSURES_MAX {
            let file = FileHandle { fs: [100 + number as u8; 16], ..FILE };
            small.answered(&file, ((0, 0), answer_of(100 + number as u64)), NOW);
        }
        assert!(small.latest.len() <= OPTIMISTIC_SHARED_EXPOSURES_MAX);
    }
}
