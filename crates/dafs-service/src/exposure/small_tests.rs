//! Small files that share an exposure, against a model of each: writers, fills, readers that keep what
//! they know, readers that go, segments that leave, exposures that end, and the clock, in every order that
//! a seed makes.
//! Deliberate mistakes must be found.

use super::entry::{BLOCK_BYTES, BlockEntry, FramePlace};
use super::file::{ChangeId, File, Fill};
use super::small::SmallPart;
use super::{Memory, PagePlace, SegmentKind};
use dafs_mem::Mutex;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom as _;
use rand::{RngExt, SeedableRng};
use rustc_hash::{FxHashMap, FxHashSet};

const FILES: usize = 3;
const BLOCKS: usize = 2;
/// Fewer frames than blocks.
const FRAMES: usize = 4;
/// The bytes of a block that is not whole.
const SHORT_BYTES: usize = 100;

/// Half a block: the file that it is of, and the number of the write that has made it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Half {
    file: usize,
    write: u32,
}

/// Memory as readers see it.
#[derive(Default)]
struct World {
    frames: FxHashMap<FramePlace, [Half; 2]>,
    pages: FxHashMap<(PagePlace, usize), BlockEntry>,
    live: FxHashSet<u16>,
    last: u16,
    frame_segments: FxHashSet<u16>,
    /// Segments that a reader knows whose right has ended.
    former: FxHashSet<u16>,
}

#[derive(Default)]
struct Shown(Mutex<World>);

impl Memory for Shown {
    fn add(&self, kind: SegmentKind, _is_first: bool) -> Option<(u16, usize)> {
        let mut world = self.0.lock();
        let has_frames = world.frame_segments.difference(&world.former).next().is_some();
        if kind == SegmentKind::Frames && has_frames {
            return None;
        }
        world.last += 1;
        let number = world.last;
        world.live.insert(number);
        match kind {
            SegmentKind::Frames => {
                world.frame_segments.insert(number);
                Some((number, FRAMES))
            }
            SegmentKind::Index => Some((number, 1)),
        }
    }

    fn store(&self, page: PagePlace, at: usize, entry: BlockEntry) {
        let mut world = self.0.lock();
        assert!(world.live.contains(&page.segment));
        world.pages.insert((page, at), entry);
    }

    fn discard(&self, segment: u16) {
        let mut world = self.0.lock();
        world.live.remove(&segment);
        world.frame_segments.remove(&segment);
        world.pages.retain(|(page, _), _| page.segment != segment);
        world.frames.retain(|place, _| place.segment != segment);
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
    /// A part is given to another file while readers know it.
    PartReused,
    /// A change takes only the block away that it writes to.
    OneBlock,
    /// The end of a right is forgotten.
    GrantStays,
}

/// A file, and the last complete write of each block.
struct Model {
    content: Vec<[Half; 2]>,
    last_bytes: usize,
    shown: [u32; BLOCKS],
}

/// A write under way. A cut leaves one block that is not whole.
struct Write {
    file: usize,
    block: usize,
    is_cut: bool,
    number: u32,
    step: u8,
    change: ChangeId,
}

/// A fill under way: its halves so far.
struct Filling {
    file: usize,
    fill: Fill,
    step: usize,
    bytes: usize,
}

/// A read under way.
struct Read {
    file: usize,
    block: usize,
    page: PagePlace,
    at: usize,
    entry: BlockEntry,
    step: usize,
    halves: [Half; 2],
    /// The last number that was shown for the block when it began, and the blocks of the file then; 0 if
    /// that was changing.
    shown: u32,
    shown_blocks: usize,
}

struct Run {
    exposed: File,
    memory: Shown,
    rng: SmallRng,
    mistake: Mistake,
    /// The parts of the files, as the server has them and as readers know them.
    parts: [SmallPart; FILES],
    known: [SmallPart; FILES],
    /// The last part that a file has had.
    last_part: u64,
    page: PagePlace,
    now_ns: u64,
    number: u32,
    files: [Model; FILES],
    writes: Vec<Write>,
    fills: Vec<Filling>,
    reads: Vec<Read>,
    hits: u32,
}

/// Begins an exposure with a page for all parts.
fn exposure(memory: &Shown, now_ns: u64) -> (File, PagePlace) {
    let mut exposed = File::of_small_files(None);
    assert!(exposed.begin_grant() && exposed.begin_grant());
    let page = exposed.page(SmallPart(1).window(), now_ns, memory).unwrap();
    (exposed, page)
}

impl Run {
    fn new(seed: u64, mistake: Mistake) -> Self {
        let memory = Shown::default();
        let (exposed, page) = exposure(&memory, 0);
        let parts = [1, 2, 3].map(SmallPart);
        let files = [0, 1, 2].map(|file| Model {
            content: vec![[Half { file, write: 0 }; 2]],
            last_bytes: SHORT_BYTES,
            shown: [0; BLOCKS],
        });
        Self {
            exposed,
            memory,
            rng: SmallRng::seed_from_u64(seed),
            mistake,
            parts,
            known: parts,
            last_part: FILES as u64,
            page,
            now_ns: 0,
            number: 0,
            files,
            writes: Vec::new(),
            fills: Vec::new(),
            reads: Vec::new(),
            hits: 0,
        }
    }

    fn one_of(&mut self, count: usize) -> Option<usize> {
        (count > 0).then(|| self.rng.random_range(0..count))
    }

    fn is_changing(&self, file: usize) -> bool {
        self.writes.iter().any(|write| write.file == file)
    }

    /// The block of the exposure, as the server counts.
    fn place(&self, file: usize, block: usize) -> u64 {
        self.parts[file].base() + block as u64
    }

    fn step(&mut self) -> Result<(), String> {
        let file = self.rng.random_range(0..FILES);
        let block = self.rng.random_range(0..BLOCKS);
        match self.rng.random_range(0..100) {
            0 => self.expose_again(),
            1 => self.lose_reader(),
            2..=8 => self.begin_write(file, block),
            9..=30 => {
                if let Some(at) = self.one_of(self.writes.len()) {
                    self.write_on(at);
                }
            }
            31..=42 => self.begin_fill(file, block),
            43..=64 => {
                if let Some(at) = self.one_of(self.fills.len()) {
                    return self.fill_on(at);
                }
            }
            65..=74 => return self.begin_read(file, block),
            75..=92 => {
                if let Some(at) = self.one_of(self.reads.len()) {
                    return self.read_on(at);
                }
            }
            93..=94 => self.now_ns += self.rng.random_range(0..2_000_000_000),
            95 => self.leave(),
            96 => self.retire(file),
            // A reader asks.
            97 => self.known[file] = self.parts[file],
            98 => {
                let place = self.place(file, block);
                self.exposed.restore(place, self.now_ns, &self.memory);
            }
            _ if self.mistake == Mistake::PartReused => self.reuse_part(file),
            _ => {}
        }
        Ok(())
    }

    /// The exposure ends, and another one begins. Readers ask again. Reads under way know the former.
    fn expose_again(&mut self) {
        if !self.fills.is_empty() || !self.writes.is_empty() {
            return;
        }
        for segment in self.exposed.withdraw(self.now_ns, &self.memory) {
            self.memory.discard(segment);
        }
        (self.exposed, self.page) = exposure(&self.memory, self.now_ns);
        self.parts = [1, 2, 3].map(SmallPart);
        self.parts.shuffle(&mut self.rng);
        (self.known, self.last_part) = (self.parts, FILES as u64);
    }

    /// A file loses a name, and gets another part because it has others.
    fn retire(&mut self, file: usize) {
        // All parts have the same page.
        if self.is_changing(file) || SmallPart(self.last_part + 1).window() > 0 {
            return;
        }
        self.exposed.retire(self.parts[file].blocks(), self.now_ns, &self.memory);
        self.last_part += 1;
        self.parts[file] = SmallPart(self.last_part);
    }

    /// A reader comes and goes. It keeps what it knows.
    fn lose_reader(&mut self) {
        assert!(self.exposed.begin_grant() && !self.exposed.end_grant());
        let known = self.memory.0.lock().frame_segments.clone();
        self.memory.0.lock().former.extend(known);
        if self.mistake == Mistake::GrantStays {
            self.exposed.forget_former_readers();
            return;
        }
        for segment in self.exposed.bar_frames(self.now_ns, &self.memory) {
            self.memory.discard(segment);
        }
    }

    /// Mistake: two files change parts. No entry of these stands then.
    fn reuse_part(&mut self, file: usize) {
        let other = (file + 1) % FILES;
        if self.is_changing(file) || self.is_changing(other) {
            return;
        }
        for part in [self.parts[file], self.parts[other]] {
            let change = self.exposed.begin_change(part.blocks(), self.now_ns, &self.memory);
            self.exposed.end_change(change);
        }
        self.parts.swap(file, other);
    }

    /// A segment begins to leave, or is gone.
    fn leave(&mut self) {
        if self.rng.random_range(0..2) == 0 {
            self.exposed.begin_leaving(self.now_ns, &self.memory);
        }
        for segment in self.exposed.end_leaving(self.now_ns, true, &self.memory) {
            self.memory.discard(segment);
        }
    }

    fn begin_write(&mut self, file: usize, block: usize) {
        if self.is_changing(file) {
            return;
        }
        self.number += 1;
        let is_cut = block > 0 && self.rng.random_range(0..2) == 0;
        let changed = match self.mistake {
            Mistake::OneBlock => self.place(file, block)..=self.place(file, block),
            _ => self.parts[file].blocks(),
        };
        let change = self.exposed.begin_change(changed, self.now_ns, &self.memory);
        self.writes.push(Write { file, block, is_cut, number: self.number, step: 0, change });
    }

    fn write_on(&mut self, at: usize) {
        let Write { file, block, is_cut, number, step, change } = self.writes[at];
        self.writes[at].step += 1;
        let model = &mut self.files[file];
        match step {
            0 if is_cut => {
                model.content.truncate(1);
                model.last_bytes = SHORT_BYTES;
            }
            0 | 1 if !is_cut => {
                let half = usize::from(step);
                if block >= model.content.len() {
                    model.content.resize(block + 1, [Half { file, write: 0 }; 2]);
                    model.last_bytes = BLOCK_BYTES / 2;
                }
                if block + 1 == model.content.len() && half == 1 {
                    model.last_bytes =
                        if number.is_multiple_of(2) { BLOCK_BYTES } else { SHORT_BYTES };
                }
                model.content[block][half] = Half { file, write: number };
            }
            0 | 1 => {}
            _ => {
                self.exposed.end_change(change);
                if !is_cut {
                    model.shown[block] = number;
                }
                self.writes.swap_remove(at);
            }
        }
    }

    fn begin_fill(&mut self, file: usize, block: usize) {
        let place = self.place(file, block);
        if let Some(fill) = self.exposed.begin_fill(place, self.now_ns, &self.memory) {
            assert_eq!(fill.block, block as u64, "the block of the file");
            self.fills.push(Filling { file, fill, step: 0, bytes: 0 });
        }
    }

    fn fill_on(&mut self, at: usize) -> Result<(), String> {
        let Filling { file, fill, step, .. } = self.fills[at];
        let (model, block) = (&self.files[file], fill.block as usize);
        self.fills[at].step += 1;
        if !self.exposed.may_write(&fill) {
            self.fills.swap_remove(at);
            self.exposed.end_fill(fill, 0, &self.memory);
        } else if step < 2 {
            self.fills[at].bytes = match block + 1 == model.content.len() {
                true => model.last_bytes,
                false if block < model.content.len() => BLOCK_BYTES,
                false => 0,
            };
            let half = model.content.get(block).map(|halves| halves[step]).unwrap_or_default();
            let mut world = self.memory.0.lock();
            if world.former.contains(&fill.place.segment) {
                return Err("a reader without the right is shown more".to_owned());
            }
            world.frames.entry(fill.place).or_default()[step] = half;
        } else {
            let Filling { fill, bytes, .. } = self.fills.swap_remove(at);
            self.exposed.end_fill(fill, bytes, &self.memory);
        }
        Ok(())
    }

    fn begin_read(&mut self, file: usize, block: usize) -> Result<(), String> {
        let at = self.known[file].base() as usize + block;
        let entry = self.memory.0.lock().pages.get(&(self.page, at)).copied();
        let Some(entry) = entry.filter(|entry| entry.block.is_some()) else { return Ok(()) };
        let (is_changing, model) = (self.is_changing(file), &self.files[file]);
        let blocks = model.content.len();
        // The entry of a block of another file is found by its bytes.
        if self.mistake != Mistake::PartReused && !is_changing && block >= blocks {
            return Err("a block behind the end of the file".to_owned());
        }
        self.reads.push(Read {
            file,
            block,
            page: self.page,
            at,
            entry,
            step: 0,
            halves: [Half::default(); 2],
            shown: model.shown[block],
            shown_blocks: if is_changing { 0 } else { blocks },
        });
        Ok(())
    }

    fn read_on(&mut self, index: usize) -> Result<(), String> {
        let world = self.memory.0.lock();
        let read = &mut self.reads[index];
        let (place, bytes) = read.entry.block.expect("it was read for that");
        if read.step < 2 {
            let halves = world.frames.get(&place).copied().unwrap_or_default();
            read.halves[read.step] = halves[read.step];
            read.step += 1;
            return Ok(());
        }
        // A discarded page has no entry.
        let now = world.pages.get(&(read.page, read.at)).copied().unwrap_or_default();
        drop(world);
        let read = self.reads.swap_remove(index);
        if now != read.entry {
            return Ok(());
        }
        self.hits += 1;
        judge(&read, bytes < BLOCK_BYTES)
    }
}

/// A hit has the block of its file as it was at some moment since the read began. The second half of a
/// short one is not in the file.
fn judge(read: &Read, is_short: bool) -> Result<(), String> {
    let [first, second] = read.halves;
    if first.file != read.file {
        return Err(format!("file {} in place of file {}", first.file, read.file));
    }
    if !is_short && first != second {
        return Err(format!("torn: {first:?} and {second:?}"));
    }
    if first.write < read.shown {
        return Err(format!("{} after {} was shown", first.write, read.shown));
    }
    if is_short && read.shown_blocks > read.block + 1 {
        return Err("the end of the file where it has gone on".to_owned());
    }
    Ok(())
}

const SEEDS: u64 = 2000;

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
fn every_hit_is_the_block_of_its_file_as_it_was_at_one_moment() {
    let (error, hits) = run(Mistake::None, SEEDS);
    assert_eq!(error, None);
    assert!(hits > SEEDS as u32 / 10, "{hits} hits");
}

#[test]
fn deliberate_mistakes_with_small_files_are_found() {
    for mistake in [Mistake::PartReused, Mistake::OneBlock, Mistake::GrantStays] {
        let (error, _) = run(mistake, 10 * SEEDS);
        assert!(error.is_some(), "{mistake:?}");
    }
}

#[test]
fn parts_are_apart_and_none_leaves_its_window() {
    let parts: Vec<_> = (1..100).map(SmallPart).collect();
    for (part, next) in parts.iter().zip(&parts[1..]) {
        assert!(part.base() > 0 && *part.blocks().end() < next.base());
        let windows = [*part.blocks().start(), *part.blocks().end()].map(|block| block / 512);
        assert_eq!(windows, [part.window(); 2]);
    }
    let part = SmallPart(2);
    assert_eq!(part.within(&(0..=0)), Some(32..=32));
    assert_eq!(part.within(&(3..=u64::MAX)), Some(35..=47));
    assert_eq!((part.within(&(16..=16)), part.within(&(15..=16))), (None, Some(47..=47)));
}
