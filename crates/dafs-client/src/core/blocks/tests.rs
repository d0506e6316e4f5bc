use super::*;
use dafs_mem::Buffer;
use proptest::prelude::*;
use std::sync::Arc;

/// Memory of a server: one segment of each kind.
struct Server {
    life: Arc<Buffer>,
    index: Arc<Buffer>,
    frames: Arc<Buffer>,
}

const NOW: Instant = Instant(5_000_000_000);
const INDEX: u32 = 3;
const FRAMES: u16 = 4;

fn window(buffer: &Arc<Buffer>) -> RemoteWindow {
    // SAFETY: the buffer lives as long as the window, which is only read.
    unsafe { RemoteWindow::read_only(buffer.as_ptr(), buffer.len(), buffer.clone()) }
}

impl Server {
    fn new() -> Self {
        let buffer = |bytes| Arc::new(Buffer::zeroed(bytes).unwrap());
        let server = Self { life: buffer(4096), index: buffer(8192), frames: buffer(16_384) };
        server.live(77, NOW);
        server
    }

    fn live(&self, word: u32, looked: Instant) {
        self.life.view().word32(0).unwrap().store(word, Ordering::Release);
        self.life.view().word64(8).unwrap().store(looked.0.to_le(), Ordering::Release);
    }

    /// A client that knows window 1 of a file, on the second page.
    fn known(&self) -> BlockDirectory {
        let mut known = BlockDirectory::new(9, 1);
        assert!(known.add(0, ExposedKind::Life, window(&self.life)));
        assert!(known.add(INDEX, ExposedKind::Index, window(&self.index)));
        assert!(known.add(FRAMES.into(), ExposedKind::Frames, window(&self.frames)));
        assert!(known.add_page(1, INDEX, 1));
        known
    }

    fn word(&self, at: u64) -> &AtomicU64 {
        self.index.view().word64(4096 + at as usize * 8).unwrap()
    }

    /// Publishes a block of the window in a frame that is full of this byte.
    fn publish(&self, at: u64, changes: u32, frame: u8, bytes: usize, byte: u8) {
        if let Some(place) = self.frames.slice(usize::from(frame) * 4096, 4096) {
            place.fill(byte);
            // In full at both ends, for blocks that are published often.
            if changes > u32::from(u8::MAX) {
                place.copy_from(&changes.to_ne_bytes(), Site::Inspect);
                place.slice(4092, 4).unwrap().copy_from(&changes.to_ne_bytes(), Site::Inspect);
            }
        }
        let block = EntryBlock { segment: FRAMES, frame, bytes };
        self.word(at).store(EntryWord::new(changes, Some(block)).0.to_le(), Ordering::Release);
    }
}

const START: u64 = WINDOW_BLOCKS * BLOCK_BYTES;

fn read(known: &BlockDirectory, offset: u64, len: usize) -> (BlockRead, Vec<u8>) {
    let mut target = vec![0; len];
    let outcome = known.read(CheckedSlice::from_mut(&mut target), offset, NOW);
    (outcome, target)
}

#[test]
fn blocks_are_read_from_their_frames() {
    let server = Server::new();
    let known = server.known();
    server.publish(0, 1, 2, 4096, b'a');
    server.publish(1, 7, 0, 100, b'b');
    let (outcome, bytes) = read(&known, START + 4090, 200);
    assert_eq!(outcome, BlockRead::Hit(106));
    assert_eq!((&bytes[..6], &bytes[6..106]), (&[b'a'; 6][..], &[b'b'; 100][..]));
    assert_eq!(read(&known, START, 4096), (BlockRead::Hit(4096), vec![b'a'; 4096]));
    assert_eq!(read(&known, START + 4096 + 100, 5).0, BlockRead::Hit(0), "the end of the file");
    assert_eq!(read(&known, START + 4096, 8192).0, BlockRead::Hit(100));
}

#[test]
fn what_the_client_does_not_know_is_no_hit() {
    let server = Server::new();
    let known = server.known();
    assert_eq!(read(&known, START, 1).0, BlockRead::Absent);
    assert_eq!(read(&known, 0, 1).0, BlockRead::Unknown, "another window");
    assert_eq!(read(&known, u64::MAX, 2).0, BlockRead::Unknown);
    server.publish(0, 1, 2, 4096, b'a');
    assert_eq!(read(&known, START, 4097).0, BlockRead::Absent, "the second block");
    let block = EntryBlock { segment: FRAMES + 1, frame: 0, bytes: 4096 };
    server.word(0).store(EntryWord::new(2, Some(block)).0.to_le(), Ordering::Release);
    assert_eq!(read(&known, START, 1).0, BlockRead::Unknown, "another segment");
}

#[test]
fn a_hostile_server_names_no_memory_outside_of_its_segments() {
    let server = Server::new();
    let mut known = server.known();
    server.publish(0, 1, 4, 4096, b'a');
    assert_eq!(read(&known, START, 1).0, BlockRead::Unknown, "a frame behind the segment");
    assert!(!known.add_page(5, INDEX, 2) && !known.add_page(5, INDEX, u32::MAX));
    assert!(!known.add_page(5, FRAMES.into(), 0), "frames are no pages");
    assert!(!known.add(1 << 16, ExposedKind::Index, window(&server.index)));
    // A page of noise leads nowhere else either.
    for at in 0..WINDOW_BLOCKS {
        let noise = at.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17);
        server.word(at).store(noise.to_le(), Ordering::Release);
        let (outcome, _) = read(&known, START + at * BLOCK_BYTES, 4096);
        let place = EntryWord(noise).block();
        let is_inside = place.is_some_and(|place| place.segment == FRAMES && place.frame < 4);
        assert_eq!(matches!(outcome, BlockRead::Hit(_)), is_inside, "{noise:x}");
    }
}

/// An answer with these segments of exposure 9, to a client that knew so many of them, or another exposure.
fn answered(
    former: Option<BlockDirectory>,
    (exposure, known): (u64, u32),
    numbers: &[u32],
) -> (BlockDirectory, bool) {
    let buffer = Arc::new(Buffer::zeroed(4096).unwrap());
    let segment = |number: &u32| {
        let (address, key, bytes, kind) = (0, 0, 4096, ExposedKind::Frames);
        ExposedSegment { address, number: *number, key, bytes, kind }
    };
    let segments = numbers.iter().map(segment).collect();
    let answer = ExposeAnswer { exposure: 9, windows: Vec::new(), segments, base: 0 };
    let question = ExposeQuestion { exposure, known, connection: 1, windows: 0..=0 };
    let (directory, is_new) =
        BlockDirectory::after(former, answer, &question, |_| Some(window(&buffer)));
    (directory.unwrap(), is_new)
}

#[test]
fn a_segment_in_the_answers_to_two_questions_counts_once() {
    let (first, is_new) = answered(None, (0, 0), &[1, 2, 3]);
    assert_eq!((first.segment_count(), is_new), (3, true));
    // Two questions know three.
    let (second, _) = answered(Some(first.clone()), (9, 3), &[4]);
    let (third, _) = answered(Some(second), (9, 3), &[4, 5]);
    assert_eq!(third.segment_count(), 5);
    let (same, is_new) = answered(Some(third.clone()), (9, 5), &[]);
    assert_eq!((same.segment_count(), is_new), (5, false));
    // One that the server names again, because an earlier one has left, counts again.
    assert_eq!(answered(Some(third), (9, 5), &[5]).0.segment_count(), 6);
    // An answer with all of them comes late, and is followed by one for a client that knew more.
    let (anew, _) = answered(Some(first), (8, 7), &[1, 2]);
    assert_eq!(anew.segment_count(), 2);
    assert_eq!(answered(Some(anew), (9, 3), &[4]).0.segment_count(), 2, "3 is missing");
}

#[test]
fn a_read_of_a_small_file_stays_inside_its_part() {
    let server = Server::new();
    let known = server.known();
    // The second part of the window, and the first block of the next one.
    let base = WINDOW_BLOCKS + 16;
    server.publish(16, 1, 2, 4096, b'a');
    server.publish(17, 1, 0, 100, b'b');
    server.publish(31, 1, 1, 4096, b'c');
    server.publish(32, 1, 3, 4096, b'x');
    let read = |offset: u64, len: usize| {
        let mut target = vec![0; len];
        let view = CheckedSlice::from_mut(&mut target);
        (known.read_small(view, (base, offset), NOW), target)
    };
    let (outcome, bytes) = read(4090, 200);
    assert_eq!(outcome, BlockRead::Hit(106));
    assert_eq!((&bytes[..6], &bytes[6..106]), (&[b'a'; 6][..], &[b'b'; 100][..]));
    let last = 15 * BLOCK_BYTES;
    assert_eq!(read(last, 4096), (BlockRead::Hit(4096), vec![b'c'; 4096]));
    for (offset, len) in [(last, 4097), (last + 4095, 2), (last + 4096, 1), (u64::MAX, 1)] {
        let (outcome, bytes) = read(offset, len);
        assert_eq!(outcome, BlockRead::Unknown, "{offset}");
        assert!(!bytes.contains(&b'x'), "a byte of the next file");
    }
    assert!(known.was_shown(base) && !known.was_shown(base + 5) && !known.was_shown(0));
    server.word(16).store(EntryWord::new(2, None).0.to_le(), Ordering::Release);
    assert_eq!(read(0, 1).0, BlockRead::Absent);
    assert!(known.was_shown(base), "the page has it not, but has had it");
    for base in [u64::MAX, u64::MAX / BLOCK_BYTES, u64::MAX / BLOCK_BYTES - 15] {
        let mut target = [0];
        let outcome = known.read_small(CheckedSlice::from_mut(&mut target), (base, 0), NOW);
        assert_eq!(outcome, BlockRead::Unknown, "{base}");
    }
}

/// Words of a page: most name a frame, which there may be or not.
fn word() -> impl Strategy<Value = u64> {
    let bytes = prop_oneof![3 => Just(4096_usize), 1 => 1..=4096_usize];
    let named =
        (any::<u32>(), 3..7_u16, 0..5_u8, bytes).prop_map(|(changes, segment, frame, bytes)| {
            EntryWord::new(changes, Some(EntryBlock { segment, frame, bytes })).0
        });
    prop_oneof![4 => named, 1 => any::<u64>()]
}

/// The bytes that a read finds, as the words of the page say; `None` if it must be no hit.
fn wanted(
    words: &[u64],
    segments: &[(u16, Arc<Buffer>)],
    offset: u64,
    len: usize,
) -> Option<Vec<u8>> {
    let mut found = Vec::new();
    while found.len() < len {
        let at = offset + found.len() as u64;
        let place = EntryWord(*words.get((at / BLOCK_BYTES) as usize)?).block()?;
        let (_, segment) = segments.iter().find(|(number, _)| *number == place.segment)?;
        let frame = segment.slice(usize::from(place.frame) * 4096, 4096)?.to_vec(Site::Inspect);
        let part = frame[..place.bytes].get((at % BLOCK_BYTES) as usize..).unwrap_or_default();
        found.extend(part.iter().take(len - found.len()));
        if place.bytes < 4096 {
            break;
        }
    }
    Some(found)
}

proptest! {
    #[test]
    fn any_page_leads_to_whole_frames_of_known_segments_alone(
        words in prop::collection::vec(word(), 24),
        offset in 0..24 * BLOCK_BYTES,
        len in 1..40_000_usize,
    ) {
        let server = Server::new();
        let mut known = server.known();
        // One frame, and a part of another.
        let odd = Arc::new(Buffer::zeroed(5000).unwrap());
        assert!(known.add(u32::from(FRAMES) + 1, ExposedKind::Frames, window(&odd)));
        let segments = [(FRAMES, server.frames.clone()), (FRAMES + 1, odd)];
        for (number, buffer) in &segments {
            let content: Vec<u8> =
                (0..buffer.len()).map(|at| (at / 4096 + at * usize::from(*number)) as u8).collect();
            buffer.view().copy_from(&content, Site::Inspect);
        }
        for (at, word) in (0..).zip(&words) {
            server.word(at).store(word.to_le(), Ordering::Release);
        }
        let (outcome, bytes) = read(&known, START + offset, len);
        match wanted(&words, &segments, offset, len) {
            Some(want) => {
                prop_assert_eq!(outcome, BlockRead::Hit(want.len()));
                prop_assert!(bytes[..want.len()] == want[..]);
            }
            None => prop_assert!(matches!(outcome, BlockRead::Absent | BlockRead::Unknown)),
        }
    }
}

#[test]
fn a_dead_server_is_not_read() {
    let server = Server::new();
    let known = server.known();
    server.publish(0, 1, 2, 4096, b'a');
    assert!(matches!(read(&known, START, 1).0, BlockRead::Hit(1)));
    for word in [0, 77 | 0x4000_0000] {
        server.live(word, NOW);
        assert_eq!(read(&known, START, 1).0, BlockRead::Dead, "{word:x}");
    }
    server.live(77, Instant(NOW.0 - 1_000_000_001));
    assert_eq!(read(&known, START, 1).0, BlockRead::Dead, "it is held up");
    server.live(77, Instant(NOW.0 - 1_000_000_000));
    assert_eq!(read(&known, START, 1).0, BlockRead::Hit(1));
    let mut blind = BlockDirectory::new(9, 1);
    assert!(!blind.is_alive(NOW) && blind.add(0, ExposedKind::Life, window(&server.life)));
    assert!(blind.is_alive(NOW));
}

/// A thread publishes one block again and again in the same frames. A hit is never torn, nor older
/// than a block that was published before it began.
#[test]
fn a_hit_is_whole_and_not_older_than_what_was_there() {
    const FIRST: u32 = 1000;
    const ROUNDS: u32 = 20_000;
    let server = Arc::new(Server::new());
    let known = server.known();
    server.publish(0, 2 * FIRST, 0, 4096, 0);
    let writer = server.clone();
    let thread = std::thread::spawn(move || {
        for round in FIRST + 1..FIRST + ROUNDS {
            writer.word(0).store(EntryWord::new(2 * round - 1, None).0.to_le(), Ordering::Release);
            fence(Ordering::SeqCst);
            writer.publish(0, 2 * round, (round % 2) as u8, 4096, round as u8);
        }
    });
    while !thread.is_finished() {
        let before = (u64::from_le(server.word(0).load(Ordering::Acquire)) >> 36) as u32;
        let (outcome, bytes) = read(&known, START, 4096);
        if outcome == BlockRead::Hit(4096) {
            let [first, last] =
                [0, 4092].map(|at| u32::from_ne_bytes(*bytes[at..].first_chunk().unwrap()));
            assert!(first == last && first >= before, "{first} and {last} after {before}");
            assert!(bytes[4..4092].iter().all(|byte| *byte == bytes[4]), "torn at {first}");
        }
    }
    thread.join().unwrap();
    assert_eq!(read(&known, START, 1).0, BlockRead::Hit(1));
}
