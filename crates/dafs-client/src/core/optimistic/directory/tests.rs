//! The directory, with answers of servers of every kind.

use super::*;
use dafs_wire::dafs::{EntryBlock, ExposedSegment, ExposedWindow};

const NAME: StateId = StateId(*b"the open");
const BLOCK: u64 = BLOCK_BYTES;
const KEY: u32 = 100;

fn segment(number: u32, kind: ExposedKind, bytes: u32) -> ExposedSegment {
    let address = u64::from(number) << 32;
    ExposedSegment { address, number, key: KEY + number, bytes, kind }
}

/// An answer with segments of frames 1 and 2, and the pages of windows 0 and 1 in segment 9.
fn answer() -> ExposeAnswer {
    let segments = vec![
        segment(1, ExposedKind::Frames, 16 * 4096),
        segment(2, ExposedKind::Frames, 16 * 4096),
        segment(9, ExposedKind::Index, 2 * 4096),
    ];
    let page = |window: u64| ExposedWindow { window, segment: 9, page: window as u32 };
    ExposeAnswer { exposure: 7, windows: vec![page(0), page(1)], segments, base: 0 }
}

fn word(changes: u32, segment: u16, frame: u8, bytes: usize) -> u64 {
    EntryWord::new(changes, Some(EntryBlock { segment, frame, bytes })).0.to_le()
}

fn page(words: &[(usize, u64)]) -> [u8; PAGE_BYTES] {
    let mut page = [0; PAGE_BYTES];
    for (at, word) in words {
        page[at * ENTRY_BYTES..][..ENTRY_BYTES].copy_from_slice(&word.to_ne_bytes());
    }
    page
}

fn ask(directory: &mut Directory, windows: RangeInclusive<u64>) -> Question {
    directory.missed(NAME);
    let question = directory.question(NAME, 0, Instant(u64::MAX / 2)).unwrap();
    Question { windows, ..question }
}

/// A directory that knows blocks 0 to 3: in frames 4, 5 and 6 of segment 1, the last one of 10 bytes in
/// frame 0 of segment 2.
fn directory() -> Directory {
    let mut directory = Directory::default();
    let question = ask(&mut directory, 0..=1);
    assert!(directory.answered(&question, Some(answer()), Instant(0)));
    let words = [4, 5, 6].map(|frame| (usize::from(frame) - 4, word(1, 1, frame, 4096)));
    let words = [words[0], words[1], words[2], (3, word(8, 2, 0, 10))];
    let fetch = directory.fetch(NAME, 0, Instant(0)).unwrap();
    assert_eq!(fetch.source, RemoteBuffer { key: KEY + 9, address: 9 << 32, len: 4096 });
    directory.fetched(&fetch, &page(&words), Instant(0));
    directory
}

fn entries(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

#[test]
fn a_plan_reads_runs_of_frames_and_the_entries_behind_them() {
    let mut directory = directory();
    let plan = directory.plan(NAME, (100, 3 * 4096), Instant(0)).unwrap();
    let runs = [
        Run {
            source: RemoteBuffer {
                key: KEY + 1,
                address: (1 << 32) + 4 * BLOCK + 100,
                len: 3 * 4096 - 100,
            },
            at: 0,
        },
        Run {
            source: RemoteBuffer { key: KEY + 2, address: 2 << 32, len: 10 },
            at: 3 * 4096 - 100,
        },
    ];
    assert_eq!(plan.runs[..], runs);
    assert_eq!((plan.bytes, plan.is_end), (3 * 4096 - 90, true));
    let check = &plan.checks[0];
    assert_eq!(check.source, RemoteBuffer { key: KEY + 9, address: 9 << 32, len: 32 });
    assert_eq!((plan.checks.len(), plan.entries_bytes()), (1, 32));
    // Behind the end there is nothing to read but the entry.
    let plan = directory.plan(NAME, (3 * BLOCK + 50, 7), Instant(0)).unwrap();
    assert!(plan.runs.is_empty() && plan.is_end && plan.bytes == 0);
    assert_eq!(plan.checks[0].source.address, (9 << 32) + 24);
    // A part of the last block is no end of the file, nor are all bytes of it.
    for (inside, len) in [(0, 4), (2, 7), (0, 10), (9, 1)] {
        let plan = directory.plan(NAME, (3 * BLOCK + inside, len), Instant(0)).unwrap();
        assert_eq!((plan.bytes, plan.is_end), (len, false), "{len} bytes from {inside}");
    }
    let absent = directory.plan(NAME, (4 * BLOCK, 1), Instant(0));
    assert_eq!(absent, Err(Miss::Absent(0)));
    assert_eq!(directory.plan(NAME, (512 * BLOCK, 1), Instant(0)), Err(Miss::Entries(1)));
    assert_eq!(directory.plan(NAME, (1024 * BLOCK, 1), Instant(0)), Err(Miss::Place(2)));
    assert_eq!(directory.plan(NAME, (u64::MAX, 9), Instant(0)), Err(Miss::Scattered));
    let other = StateId(*b"another.");
    assert_eq!(directory.plan(other, (0, 1), Instant(0)), Err(Miss::Place(0)));
}

#[test]
fn a_read_is_a_hit_only_if_no_entry_has_changed() {
    let mut directory = directory();
    let plan = directory.plan(NAME, (0, 2 * 4096), Instant(0)).unwrap();
    let same = [word(1, 1, 4, 4096), word(1, 1, 5, 4096)];
    assert!(directory.verify(NAME, &plan, &entries(&same)));
    let changed = [same[0], word(2, 1, 5, 4096)];
    assert!(!directory.verify(NAME, &plan, &entries(&changed)));
    // The new entry is known now.
    let again = directory.plan(NAME, (0, 2 * 4096), Instant(0)).unwrap();
    assert!(directory.verify(NAME, &again, &entries(&changed)));
    for found in [&entries(&same)[..8], &[]] {
        assert!(!directory.verify(NAME, &again, found), "a part of it");
    }
    assert!(!directory.verify(NAME, &again, &entries(&[0, 0])));
    assert_eq!(directory.plan(NAME, (0, 1), Instant(0)), Err(Miss::Absent(0)));
    // An open that is closed meanwhile changes nothing of that.
    let last = directory.plan(NAME, (2 * BLOCK, 1), Instant(0)).unwrap();
    directory.closed(NAME);
    assert!(directory.verify(NAME, &last, &entries(&[word(1, 1, 6, 4096)])));
    assert!(!directory.verify(NAME, &last, &entries(&[word(2, 1, 6, 4096)])));
}

#[test]
fn scattered_blocks_are_read_by_a_request() {
    let mut directory = directory();
    let fetch = directory.fetch(NAME, 1, Instant(0)).unwrap();
    let words: Vec<_> = (0..6).map(|at| (at, word(1, 1, 2 * at as u8, 4096))).collect();
    directory.fetched(&fetch, &page(&words), Instant(0));
    let mut plan = |blocks: u32| directory.plan(NAME, (512 * BLOCK, blocks * 4096), Instant(0));
    assert_eq!(plan(4).unwrap().runs.len(), OPTIMISTIC_RUNS_MAX);
    assert_eq!(plan(5), Err(Miss::Scattered));
}

#[test]
fn places_outside_of_segments_are_not_read() {
    let mut directory = directory();
    let hostile = [
        (0, word(1, 1, 16, 4096)),
        (1, word(1, 3, 0, 4096)),
        (2, word(1, 9, 0, 4096)),
        (3, u64::MAX),
    ];
    let fetch = directory.fetch(NAME, 1, Instant(0)).unwrap();
    directory.fetched(&fetch, &page(&hostile), Instant(0));
    for block in 0..4 {
        let planned = directory.plan(NAME, ((512 + block) * BLOCK, 10), Instant(0));
        assert_eq!(planned, Err(Miss::Place(1)), "{block}");
    }
    let pages = [
        ExposedWindow { window: 0, segment: 9, page: 2 },
        ExposedWindow { window: 0, segment: 9, page: u32::MAX },
        ExposedWindow { window: 0, segment: 1, page: 0 },
        ExposedWindow { window: 0, segment: u32::MAX, page: 0 },
        ExposedWindow { window: 1, segment: 9, page: 0 },
    ];
    for page in pages {
        let mut directory = Directory::default();
        let question = ask(&mut directory, 0..=0);
        let answer = ExposeAnswer { windows: vec![page], ..answer() };
        assert!(directory.answered(&question, Some(answer), Instant(0)), "its segments are new");
        assert_eq!(directory.fetch(NAME, page.window, Instant(u64::MAX / 2)), None);
    }
    // Segments that end behind the last address.
    let mut directory = Directory::default();
    let question = ask(&mut directory, 0..=0);
    let mut huge = answer();
    huge.segments.iter_mut().for_each(|segment| segment.address = u64::MAX - 5000);
    directory.answered(&question, Some(huge), Instant(0));
    let fetch = directory.fetch(NAME, 0, Instant(u64::MAX / 2)).unwrap();
    directory.fetched(&fetch, &page(&[(0, word(1, 1, 3, 4096))]), Instant(0));
    assert_eq!(directory.plan(NAME, (0, 10), Instant(0)), Err(Miss::Place(0)));
}

#[test]
fn another_exposure_makes_all_void() {
    let mut directory = directory();
    let plan = directory.plan(NAME, (0, 1), Instant(0)).unwrap();
    let question = ask(&mut directory, 0..=0);
    assert_eq!((question.exposure, question.known), (7, 3));
    // Nothing new of the same one.
    let same = ExposeAnswer { segments: Vec::new(), ..answer() };
    assert!(!directory.answered(&question, Some(same), Instant(0)));
    assert!(directory.plan(NAME, (0, 1), Instant(0)).is_ok());
    let question = ask(&mut directory, 0..=0);
    let other = ExposeAnswer { exposure: 8, ..answer() };
    assert!(directory.answered(&question, Some(other), Instant(0)));
    assert_eq!(directory.plan(NAME, (0, 1), Instant(0)), Err(Miss::Entries(0)));
    // A read that was under way is judged by its own entries, and teaches nothing.
    assert!(directory.verify(NAME, &plan, &entries(&[word(1, 1, 4, 4096)])));
    let question = ask(&mut directory, 0..=0);
    assert!(!directory.answered(&question, Some(ExposeAnswer::default()), Instant(0)));
    assert_eq!(directory.plan(NAME, (0, 1), Instant(0)), Err(Miss::Place(0)));
    // An answer that names only what is new, about places that were forgotten.
    let question = Question { exposure: 8, ..ask(&mut directory, 0..=0) };
    let late = ExposeAnswer { exposure: 8, ..answer() };
    assert!(!directory.answered(&question, Some(late), Instant(0)));
    assert_eq!(directory.plan(NAME, (0, 1), Instant(0)), Err(Miss::Place(0)));
}

#[test]
fn entries_of_a_page_that_has_moved_teach_nothing() {
    let mut directory = directory();
    let plan = directory.plan(NAME, (0, 1), Instant(0)).unwrap();
    let question = ask(&mut directory, 0..=0);
    let windows = vec![ExposedWindow { window: 0, segment: 9, page: 1 }];
    let moved = ExposeAnswer { windows, segments: Vec::new(), ..answer() };
    assert!(directory.answered(&question, Some(moved), Instant(0)));
    let fetch = directory.fetch(NAME, 0, Instant(0)).unwrap();
    directory.fetched(&fetch, &page(&[(0, word(1, 1, 7, 4096))]), Instant(0));
    // The former page is another window's now.
    assert!(!directory.verify(NAME, &plan, &entries(&[word(5, 2, 3, 4096)])));
    let plan = directory.plan(NAME, (0, 1), Instant(0)).unwrap();
    assert_eq!(plan.runs[0].source.address, (1 << 32) + 7 * BLOCK);
    // Those of the present one do.
    assert!(!directory.verify(NAME, &plan, &entries(&[word(2, 2, 3, 4096)])));
    let plan = directory.plan(NAME, (0, 1), Instant(0)).unwrap();
    assert_eq!(plan.runs[0].source.address, (2 << 32) + 3 * BLOCK);
}

#[test]
fn entries_are_kept_for_an_hour_and_of_so_many_windows() {
    let mut directory = directory();
    let later = Instant(0) + OPTIMISTIC_ENTRIES_TIME;
    assert!(directory.plan(NAME, (0, 1), later).is_ok());
    let later = later + Duration::from_nanos(1);
    assert_eq!(directory.plan(NAME, (0, 1), later), Err(Miss::Entries(0)));
    directory.forget_places();
    assert_eq!(directory.plan(NAME, (0, 1), Instant(0)), Err(Miss::Place(0)));
    let question = ask(&mut directory, 0..=u64::MAX);
    let page_of = |window| ExposedWindow { window, segment: 9, page: 0 };
    let windows: Vec<_> = (0..=OPTIMISTIC_WINDOWS_MAX as u64).map(page_of).collect();
    let answer = ExposeAnswer { windows, ..answer() };
    directory.answered(&question, Some(answer), Instant(0));
    let content = page(&[(0, word(1, 1, 0, 4096))]);
    let at = |window: u64| (window * WINDOW_BLOCKS * BLOCK, 1);
    for window in 0..OPTIMISTIC_WINDOWS_MAX as u64 {
        let fetch = directory.fetch(NAME, window, Instant(0)).unwrap();
        directory.fetched(&fetch, &content, Instant(0));
    }
    // The first one has been used, so the second one goes.
    assert!(directory.plan(NAME, at(0), Instant(0)).is_ok());
    let last = OPTIMISTIC_WINDOWS_MAX as u64;
    let fetch = directory.fetch(NAME, last, Instant(0)).unwrap();
    directory.fetched(&fetch, &content, Instant(0));
    assert!(directory.plan(NAME, at(0), Instant(0)).is_ok());
    assert!(directory.plan(NAME, at(last), Instant(0)).is_ok());
    assert_eq!(directory.plan(NAME, at(1), Instant(0)), Err(Miss::Entries(1)));
}

#[test]
fn a_large_file_has_so_many_places() {
    let mut directory = directory();
    let question = ask(&mut directory, 0..=u64::MAX);
    let page_of = |window| ExposedWindow { window, segment: 9, page: 0 };
    let windows = (0..=OPTIMISTIC_PLACES_MAX as u64).map(page_of).collect();
    let many = ExposeAnswer { windows, segments: Vec::new(), ..answer() };
    directory.answered(&question, Some(many), Instant(0));
    assert!(directory.files[&NAME].pages.len() <= OPTIMISTIC_PLACES_MAX);
    // Windows with entries are kept.
    assert!(directory.plan(NAME, (0, 1), Instant(0)).is_ok());
}

/// Reads of a file of a gibibyte, here and there.
#[test]
fn few_questions_make_a_large_file_known() {
    const WINDOWS: u64 = 512;
    let mut directory = Directory::default();
    directory.missed(NAME);
    let (mut now, mut asked) = (Instant(1), Vec::new());
    for number in 0..WINDOWS {
        let needed = number * 37 % WINDOWS;
        let at = needed * WINDOW_BLOCKS * BLOCK;
        if directory.plan(NAME, (at, 1), now) != Err(Miss::Place(needed)) {
            continue;
        }
        let question = directory.question(NAME, needed, now).unwrap();
        asked.push(question.windows.clone().count());
        let inside = question.windows.clone().filter(|window| *window < WINDOWS);
        let place = |window| ExposedWindow { window, segment: 9, page: window as u32 };
        let windows = inside.map(place).collect();
        let segments = vec![segment(9, ExposedKind::Index, 512 * 4096)];
        let segments = if question.known == 0 { segments } else { Vec::new() };
        let answer = ExposeAnswer { exposure: 7, windows, segments, base: 0 };
        assert!(directory.answered(&question, Some(answer), now));
        assert!(directory.fetch(NAME, needed, now).is_some());
        now = now + OPTIMISTIC_ASK_PAUSE_MIN;
    }
    assert_eq!(directory.files[&NAME].pages.len() as u64, WINDOWS);
    assert_eq!(asked, [1, 2, 4, 8, 16, 32, 64, 64, 64, 64, 64, 64, 64, 64]);
}

#[test]
fn a_window_without_a_place_is_asked_for_alone() {
    let mut directory = directory();
    for (needed, windows) in [(2, 2..=3), (3, 3..=3), (4, 4..=4)] {
        let now = Instant(u64::MAX / 2 + needed);
        directory.files.get_mut(&NAME).unwrap().questions = Pace::default();
        let question = directory.question(NAME, needed, now).unwrap();
        assert_eq!((question.needed, &question.windows), (needed, &windows));
        // The server has no memory for its page.
        let nothing = ExposeAnswer { exposure: 7, ..ExposeAnswer::default() };
        assert!(!directory.answered(&question, Some(nothing), now));
    }
}

#[test]
fn questions_and_fetches_without_news_become_rare() {
    let mut directory = Directory::default();
    assert!(!directory.missed(NAME) && directory.missed(NAME));
    let mut now = Instant(1);
    let question = directory.question(NAME, 0, now).unwrap();
    assert_eq!(directory.question(NAME, 0, now), None, "it is under way");
    directory.answered(&question, None, now);
    assert_eq!(directory.question(NAME, 0, now), None);
    now = now + OPTIMISTIC_ASK_PAUSE_MIN;
    let question = directory.question(NAME, 0, now).unwrap();
    directory.answered(&question, Some(answer()), now);
    let fetch = directory.fetch(NAME, 0, now).unwrap();
    assert_eq!(directory.fetch(NAME, 0, now), None);
    directory.fetched(&fetch, &page(&[]), now);
    let soon = now + OPTIMISTIC_FETCH_PAUSE_MIN;
    let fetch = directory.fetch(NAME, 0, soon).unwrap();
    directory.fetched(&fetch, &page(&[]), soon);
    assert_eq!(directory.fetch(NAME, 0, soon + OPTIMISTIC_FETCH_PAUSE_MIN), None);
    assert!(directory.fetch(NAME, 0, soon + OPTIMISTIC_FETCH_PAUSE_MAX).is_some());
    for number in 0..OPTIMISTIC_FILES_MAX as u64 {
        directory.missed(StateId(number.to_ne_bytes()));
    }
    let more = StateId(u64::MAX.to_ne_bytes());
    assert!(!directory.missed(more) && !directory.missed(more), "too many files");
}
