//! The exposed blocks against a model of a file: writers, fills, readers of this host and of others,
//! blocks and segments that make room, and the clock, in every order that a seed makes. Deliberate
//! mistakes must be found.

use super::entry::{BLOCK_BYTES, BlockEntry, FramePlace};
use super::file::{ChangeId, File, Fill, Valid, blocks};
use super::{Memory, PagePlace, SegmentKind};
use dafs_mem::Mutex;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom as _;
use rand::{RngExt, SeedableRng};
use rustc_hash::FxHashMap;

const BLOCKS: u64 = 3;
const FRAMES: usize = 2;
const BLOCK: u64 = BLOCK_BYTES as u64;

/// Half a block: the number of the write that has made it. 0 for zeros.
type Half = u32;

/// Memory as readers see it.
#[derive(Default)]
struct World {
    frames: FxHashMap<FramePlace, [Half; 2]>,
    pages: FxHashMap<(PagePlace, usize), BlockEntry>,
    /// The segments that live, by number, with their kind.
    segments: FxHashMap<u16, SegmentKind>,
    next: u16,
    /// A discarded segment of pages comes back as one of frames.
    reuses_pages: bool,
    former_pages: Option<u16>,
}

#[derive(Default)]
struct Shown(Mutex<World>);

impl Memory for Shown {
    fn add(&self, kind: SegmentKind, _is_first: bool) -> Option<(u16, usize)> {
        let mut world = self.0.lock();
        let count = world.segments.values().filter(|known| **known == kind).count();
        let (most, places) = match kind {
            // Fewer frames than blocks.
            SegmentKind::Frames => (1, FRAMES),
            SegmentKind::Index => (1, 1),
        };
        if count == most {
            return None;
        }
        let former = (kind == SegmentKind::Frames && world.reuses_pages)
            .then(|| world.former_pages.take())
            .flatten();
        let number = former.unwrap_or(world.next + 1);
        world.next = world.next.max(number);
        world.segments.insert(number, kind);
        Some((number, places))
    }

    fn store(&self, page: PagePlace, at: usize, entry: BlockEntry) {
        let mut world = self.0.lock();
        assert_eq!(world.segments.get(&page.segment), Some(&SegmentKind::Index));
        world.pages.insert((page, at), entry);
    }

    fn discard(&self, segment: u16) {
        let mut world = self.0.lock();
        let kind = world.segments.remove(&segment);
        world.pages.retain(|(page, _), _| page.segment != segment);
        world.frames.retain(|place, _| place.segment != segment);
        if kind == Some(SegmentKind::Index) {
            world.former_pages = Some(segment);
        }
    }

    fn is_scarce(&self) -> bool {
        false
    }

    fn looked(&self, _now_ns: u64) {}
}

/// A deliberate mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mistake {
    None,
    /// Entries are taken away behind the write.
    LateChange,
    /// A fill is published although its block has changed.
    StaleFill,
    /// Frames are used again at once, although others read them by the network.
    EarlyReuse,
    /// A reader checks the entry before it reads the frame.
    EarlyCheck,
    /// A growing file leaves its last block as the last.
    ShortStays,
    /// The end of a grant is forgotten.
    GrantStays,
    /// Memory of window pages becomes memory of frames.
    PagesAsFrames,
    /// A block comes back although it has changed since it made room.
    ChanceStays,
}

/// A write under way: its block, its number, its steps so far.
struct Write {
    block: u64,
    number: Half,
    step: u8,
    change: Option<ChangeId>,
}

/// A fill under way: its halves so far.
struct Filling {
    fill: Fill,
    step: usize,
    bytes: usize,
}

/// The step of a read that checks the entry. The others read a half of the frame.
const CHECK: usize = 2;

/// A read under way.
struct Read {
    page: PagePlace,
    at: usize,
    entry: BlockEntry,
    /// The steps that are left, the next one last.
    left: Vec<usize>,
    halves: [Half; 2],
    bytes: usize,
    is_checked: bool,
    began_ns: u64,
    /// The last number that was shown for the block when it began, and the size of the file then.
    shown: Half,
    shown_blocks: u64,
}

struct Run {
    file: File,
    memory: Shown,
    rng: SmallRng,
    mistake: Mistake,
    /// Readers of other hosts, whose adapters read in any order.
    is_remote: bool,
    page: PagePlace,
    /// The segments that a reader knew at the end of its grant.
    left: Vec<u16>,
    now_ns: u64,
    /// The file: its blocks, and the bytes of the last one.
    content: Vec<[Half; 2]>,
    last_bytes: usize,
    /// The last complete write of each block.
    shown: Vec<Half>,
    number: Half,
    writes: Vec<Write>,
    fills: Vec<Filling>,
    reads: Vec<Read>,
    hits: u32,
}

impl Run {
    fn new(seed: u64, mistake: Mistake) -> Self {
        let (memory, mut file) = (Shown::default(), File::default());
        let is_remote = match mistake {
            Mistake::EarlyReuse => true,
            Mistake::EarlyCheck => false,
            _ => seed.is_multiple_of(2),
        };
        memory.0.lock().reuses_pages = mistake == Mistake::PagesAsFrames;
        file.has_remote_readers = is_remote && mistake != Mistake::EarlyReuse;
        assert!(file.begin_grant() && file.begin_grant());
        let page = file.page(0, 0, &memory).unwrap();
        let content = vec![[0; 2]];
        Self {
            file,
            memory,
            rng: SmallRng::seed_from_u64(seed),
            mistake,
            is_remote,
            page,
            left: Vec::new(),
            now_ns: 0,
            content,
            last_bytes: 100,
            shown: vec![0; BLOCKS as usize],
            number: 0,
            writes: Vec::new(),
            fills: Vec::new(),
            reads: Vec::new(),
            hits: 0,
        }
    }

    fn one_of(&mut self, count: usize) -> Option<usize> {
        (count > 0).then(|| self.rng.random_range(0..count))
    }

    fn step(&mut self) -> Result<(), String> {
        match self.rng.random_range(0..200) {
            0 if self.left.is_empty() => self.end_grant(),
            1 => self.expose_again(),
            number => return self.usual_step(number % 14),
        }
        Ok(())
    }

    /// One of two readers closes the file, and still knows its segments.
    fn end_grant(&mut self) {
        self.left = self.file.segments(0).collect();
        assert!(!self.file.end_grant(), "another reader has a grant");
        if self.mistake == Mistake::GrantStays {
            self.file.forget_former_readers();
        }
    }

    /// The file is withdrawn and exposed again. Readers keep the page that they know until they find
    /// nothing there.
    fn expose_again(&mut self) {
        if !self.fills.is_empty() || !self.writes.is_empty() {
            return;
        }
        for segment in self.file.withdraw(self.now_ns, &self.memory) {
            self.memory.discard(segment);
        }
        let has_remote_readers = self.file.has_remote_readers;
        self.file = File::default();
        self.file.has_remote_readers = has_remote_readers;
        assert!(self.file.begin_grant() && self.file.begin_grant());
        self.left.clear();
        if self.mistake == Mistake::PagesAsFrames {
            // The first fill takes the memory that readers still know as a page.
            let taken = self.file.page(1, self.now_ns, &self.memory);
            assert!(taken.is_some_and(|page| page != self.page));
            for block in 512..514 {
                self.file.begin_fill(block, self.now_ns, &self.memory);
            }
            return;
        }
        self.page = self.file.page(0, self.now_ns, &self.memory).unwrap();
    }

    fn usual_step(&mut self, number: u32) -> Result<(), String> {
        match number {
            0 if self.writes.is_empty() => self.begin_write(),
            1..=2 => {
                if let Some(at) = self.one_of(self.writes.len()) {
                    self.write_on(at);
                }
            }
            3 => return self.begin_fill(),
            4..=6 => {
                if let Some(at) = self.one_of(self.fills.len()) {
                    self.fill_on(at);
                }
            }
            7 => return self.begin_read(),
            8..=10 => {
                if let Some(at) = self.one_of(self.reads.len()) {
                    return self.read_on(at);
                }
            }
            // A read takes no longer than frames wait.
            11 => {
                let oldest_ns = self.reads.iter().map(|read| read.began_ns).min();
                let limit_ns = oldest_ns.map_or(u64::MAX, |began| began + 3_000_000_000);
                self.now_ns = (self.now_ns + self.rng.random_range(0..2_000_000_000)).min(limit_ns);
            }
            12 => {
                let block = self.rng.random_range(0..BLOCKS);
                self.file.restore(block, self.now_ns, &self.memory);
            }
            13 => self.leave(),
            _ => {}
        }
        Ok(())
    }

    /// The segment of frames begins to leave, or is gone.
    fn leave(&mut self) {
        if self.rng.random_range(0..8) == 0 {
            self.file.begin_leaving(self.now_ns, &self.memory);
        }
        let has_much = self.rng.random_range(0..2) == 0;
        for segment in self.file.end_leaving(self.now_ns, has_much, &self.memory) {
            self.memory.discard(segment);
        }
    }

    fn change(&mut self, block: u64) -> ChangeId {
        let grows = block >= self.content.len() as u64;
        if grows && self.mistake == Mistake::ShortStays {
            self.file.forget_short();
        }
        let changed = blocks(block * BLOCK, BLOCK);
        if self.mistake == Mistake::ChanceStays {
            let chances = std::mem::take(&mut self.file.chances);
            let change = self.file.begin_change(changed, self.now_ns, &self.memory);
            self.file.chances = chances;
            return change;
        }
        self.file.begin_change(changed, self.now_ns, &self.memory)
    }

    fn begin_write(&mut self) {
        let block = self.rng.random_range(0..BLOCKS);
        self.number += 1;
        let is_late = self.mistake == Mistake::LateChange;
        let change = (!is_late).then(|| self.change(block));
        self.writes.push(Write { block, number: self.number, step: 0, change });
    }

    fn write_on(&mut self, at: usize) {
        let Write { block, number, step, change } = self.writes[at];
        self.writes[at].step += 1;
        match step {
            0 | 1 => {
                let half = usize::from(step);
                let place = block as usize;
                if place >= self.content.len() {
                    self.content.resize(place + 1, [0; 2]);
                    self.last_bytes = BLOCK_BYTES / 2;
                }
                if place + 1 == self.content.len() && half == 1 {
                    self.last_bytes = BLOCK_BYTES;
                }
                self.content[place][half] = number;
            }
            _ => {
                let change = change.unwrap_or_else(|| self.change(block));
                self.file.end_change(change);
                self.shown[block as usize] = number;
                self.writes.swap_remove(at);
            }
        }
    }

    fn begin_fill(&mut self) -> Result<(), String> {
        let block = self.rng.random_range(0..BLOCKS);
        if let Some(fill) = self.file.begin_fill(block, self.now_ns, &self.memory) {
            self.fills.push(Filling { fill, step: 0, bytes: 0 });
            if self.left.contains(&fill.place.segment) {
                return Err("a reader that has closed the file is shown more of it".to_owned());
            }
        }
        Ok(())
    }

    fn fill_on(&mut self, at: usize) {
        let Filling { fill, step, .. } = self.fills[at];
        let place = fill.block as usize;
        self.fills[at].step += 1;
        if !self.file.may_write(&fill) {
            self.fills.swap_remove(at);
            self.file.end_fill(fill, 0, &self.memory);
        } else if step < 2 {
            let bytes = match place + 1 == self.content.len() {
                true => self.last_bytes,
                false if place < self.content.len() => BLOCK_BYTES,
                false => 0,
            };
            let half = self.content.get(place).map_or(0, |halves| halves[step]);
            self.memory.0.lock().frames.entry(fill.place).or_default()[step] = half;
            // The store says at the end how much there was.
            self.fills[at].bytes = bytes;
        } else {
            let filling = self.fills.swap_remove(at);
            if self.mistake == Mistake::StaleFill {
                self.file.forget_changes();
            }
            self.file.end_fill(filling.fill, filling.bytes, &self.memory);
        }
    }

    fn begin_read(&mut self) -> Result<(), String> {
        let at = self.rng.random_range(0..BLOCKS as usize);
        let world = self.memory.0.lock();
        if world.segments.get(&self.page.segment) == Some(&SegmentKind::Frames) {
            return Err("the bytes of a file are taken for entries".to_owned());
        }
        let entry = world.pages.get(&(self.page, at)).copied();
        drop(world);
        let Some(entry) = entry.filter(|entry| entry.block.is_some()) else { return Ok(()) };
        let (shown, shown_blocks) = (self.shown[at], self.content.len() as u64);
        let is_writing = self.writes.iter().any(|write| write.block >= shown_blocks - 1);
        let mut left = vec![CHECK, 1, 0];
        if self.is_remote {
            left.shuffle(&mut self.rng);
        } else if self.mistake == Mistake::EarlyCheck {
            left = vec![1, 0, CHECK];
        }
        self.reads.push(Read {
            page: self.page,
            at,
            entry,
            left,
            halves: [0; 2],
            bytes: 0,
            is_checked: false,
            began_ns: self.now_ns,
            shown,
            shown_blocks: if is_writing { 0 } else { shown_blocks },
        });
        Ok(())
    }

    fn read_on(&mut self, index: usize) -> Result<(), String> {
        let world = self.memory.0.lock();
        let read = &mut self.reads[index];
        let (place, bytes) = read.entry.block.expect("it was read for that");
        if self.is_remote && !world.segments.contains_key(&place.segment) {
            // The adapter refuses the key of memory that was taken back. The connection ends.
            self.reads.swap_remove(index);
            return Ok(());
        }
        match read.left.pop().expect("a read without steps has ended") {
            CHECK => {
                // A discarded page has no entry.
                let now = world.pages.get(&(read.page, read.at)).copied().unwrap_or_default();
                read.is_checked = now == read.entry;
            }
            half => read.halves[half] = world.frames.get(&place).map_or(0, |halves| halves[half]),
        }
        if !read.left.is_empty() {
            return Ok(());
        }
        drop(world);
        let read = self.reads.swap_remove(index);
        if !read.is_checked {
            return Ok(());
        }
        self.hits += 1;
        self.judge(&Read { bytes, ..read })
    }

    /// A hit has the block as it was at some moment since the read began.
    fn judge(&self, read: &Read) -> Result<(), String> {
        let [first, second] = read.halves;
        // The second half of a block with fewer bytes is not in the file.
        let is_short = read.bytes < BLOCK_BYTES;
        if !is_short && first != second {
            return Err(format!("torn: {first} and {second}"));
        }
        if first < read.shown {
            return Err(format!("{first} after {} was shown", read.shown));
        }
        if is_short && read.shown_blocks > read.at as u64 + 1 {
            return Err("the end of the file where it has gone on".to_owned());
        }
        Ok(())
    }
}

/// Seeds without an error.
const SEEDS: u64 = 2000;

/// Seeds of which one at least finds a mistake. Most mistakes are found by one of the first.
const SEEDS_MAX: u64 = 20_000;

/// Runs with this many seeds. Returns the first error, and the number of hits.
fn run(mistake: Mistake, seeds: u64) -> (Option<String>, u32) {
    let mut hits = 0;
    for seed in 0..seeds {
        let mut run = Run::new(seed, mistake);
        for step in 0..400 {
            if let Err(error) = run.step() {
                return (Some(format!("seed {seed}, step {step}: {error}")), hits);
            }
        }
        hits += run.hits;
    }
    (None, hits)
}

#[test]
fn every_hit_is_the_block_as_it_was_at_one_moment() {
    let (error, hits) = run(Mistake::None, SEEDS);
    assert_eq!(error, None);
    assert!(hits > SEEDS as u32 / 10, "{hits} hits");
}

#[test]
fn deliberate_mistakes_are_found() {
    for mistake in [
        Mistake::LateChange,
        Mistake::StaleFill,
        Mistake::EarlyReuse,
        Mistake::EarlyCheck,
        Mistake::ShortStays,
        Mistake::GrantStays,
        Mistake::PagesAsFrames,
        Mistake::ChanceStays,
    ] {
        let (error, _) = run(mistake, SEEDS_MAX);
        assert!(error.is_some(), "{mistake:?}");
    }
}

/// Mistakes that tests make on purpose.
impl File {
    /// Forgets that blocks have changed since their fills began.
    pub(super) fn forget_changes(&mut self) {
        self.fills.iter_mut().for_each(|(_, valid)| *valid = Valid::Any);
        self.shorts.clear();
    }

    /// Forgets the last block.
    pub(super) fn forget_short(&mut self) {
        self.shorts.clear();
    }

    /// Forgets that grants have ended.
    pub(super) fn forget_former_readers(&mut self) {
        self.has_former_readers = false;
    }
}
