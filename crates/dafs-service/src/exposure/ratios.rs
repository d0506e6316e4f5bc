//! Hit ratios of reads that find a block shown or ask the server, which sees no hits. Counts alone: each
//! read takes the same time of the clock that is handed in.

use super::entry::{BLOCK_BYTES, BlockEntry, WINDOW_BLOCKS};
use super::file::File;
use super::files::begin_fills;
use super::{Memory, PagePlace, SegmentKind};
use dafs_mem::Mutex;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom as _;
use rand::{RngExt, SeedableRng};

/// The blocks of the file, and the frames.
const BLOCKS: usize = 4096;
const FRAMES: usize = BLOCKS / 4;

const SEGMENT_FRAMES: usize = 256;

/// The time of a hit, and of a request.
const HIT_NS: u64 = 300;
const REQUEST_NS: u64 = 10_000;

struct World {
    segments: u16,
    frames: usize,
    is_shown: Vec<bool>,
}

/// Memory as a reader sees it, without content.
struct Shown(Mutex<World>);

impl Memory for Shown {
    fn add(&self, kind: SegmentKind, _is_first: bool) -> Option<(u16, usize)> {
        let mut world = self.0.lock();
        if kind == SegmentKind::Frames {
            if world.frames == FRAMES {
                return None;
            }
            world.frames += SEGMENT_FRAMES;
        }
        world.segments += 1;
        Some((world.segments, SEGMENT_FRAMES))
    }

    fn store(&self, page: PagePlace, at: usize, entry: BlockEntry) {
        let block = usize::from(page.page) * WINDOW_BLOCKS + at;
        self.0.lock().is_shown[block] = entry.block.is_some();
    }

    fn discard(&self, _segment: u16) {}

    fn is_scarce(&self) -> bool {
        self.0.lock().frames > FRAMES / 2
    }

    fn looked(&self, _now_ns: u64) {}
}

struct Run {
    file: File,
    memory: Shown,
    now_ns: u64,
}

impl Run {
    /// A file whose windows all have pages, in their order.
    fn new() -> Self {
        let world = World { segments: 0, frames: 0, is_shown: vec![false; BLOCKS] };
        let (memory, mut file) = (Shown(Mutex::new(world)), File::default());
        assert!(file.begin_grant());
        for window in 0..(BLOCKS / WINDOW_BLOCKS) as u64 {
            let page = file.page(window, 0, &memory).unwrap();
            assert_eq!(u64::from(page.page), window);
        }
        Self { file, memory, now_ns: 0 }
    }

    /// Reads a block. Returns true for a hit.
    fn read(&mut self, block: usize) -> bool {
        let is_hit = self.memory.0.lock().is_shown[block];
        self.now_ns += if is_hit { HIT_NS } else { REQUEST_NS };
        if is_hit {
            return true;
        }
        let block = block as u64;
        let wanted = self.file.asked(block..=block, self.now_ns, &self.memory);
        for fill in begin_fills(&mut self.file, &wanted, self.now_ns, &self.memory) {
            assert!(self.file.end_fill(fill, BLOCK_BYTES, &self.memory));
        }
        false
    }

    /// Reads blocks. Returns the part of hits.
    fn ratio(&mut self, blocks: impl Iterator<Item = usize>) -> f64 {
        let (mut reads, mut hits) = (0_u32, 0_u32);
        for block in blocks {
            reads += 1;
            hits += u32::from(self.read(block));
        }
        f64::from(hits) / f64::from(reads)
    }
}

/// Blocks by Zipf's law with exponent 0.99. The popular ones are anywhere in the file.
struct Zipf {
    rng: SmallRng,
    order: Vec<usize>,
    sums: Vec<f64>,
}

impl Zipf {
    fn new(seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut order: Vec<usize> = (0..BLOCKS).collect();
        order.shuffle(&mut rng);
        let mut sum = 0.0;
        let sums = (1..=BLOCKS).map(|rank| {
            sum += (rank as f64).powf(-0.99);
            sum
        });
        let sums = sums.collect();
        Self { rng, order, sums }
    }
}

impl Iterator for Zipf {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let at = self.rng.random_range(0.0..self.sums[BLOCKS - 1]);
        let rank = self.sums.partition_point(|sum| *sum <= at).min(BLOCKS - 1);
        Some(self.order[rank])
    }
}

/// The most popular quarter of the blocks has 0.84 of the reads.
#[test]
fn popular_blocks_are_shown_also_after_others_have_become_popular() {
    let (mut run, mut zipf) = (Run::new(), Zipf::new(1));
    run.ratio(zipf.by_ref().take(250_000));
    let ratio = run.ratio(zipf.take(100_000));
    assert!(ratio > 0.785, "{ratio}");
    let mut zipf = Zipf::new(2);
    run.ratio(zipf.by_ref().take(300_000));
    let ratio = run.ratio(zipf.take(100_000));
    assert!(ratio > 0.775, "{ratio}");
}

/// A database reads pages in random order, and keeps them itself.
#[test]
fn blocks_beside_one_that_was_read_are_shown_at_once_while_memory_is_free() {
    let mut blocks: Vec<usize> = (0..FRAMES / 2).collect();
    blocks.shuffle(&mut SmallRng::seed_from_u64(1));
    let ratio = Run::new().ratio(blocks.into_iter());
    assert!(ratio > 0.9, "{ratio}");
}

#[test]
fn blocks_that_fit_are_read_without_requests() {
    let (mut run, mut rng) = (Run::new(), SmallRng::seed_from_u64(1));
    let mut blocks = std::iter::repeat_with(|| rng.random_range(0..FRAMES));
    run.ratio(blocks.by_ref().take(20_000));
    let ratio = run.ratio(blocks.take(20_000));
    assert!(ratio > 0.99, "{ratio}");
    assert_eq!(run.file.events.evicted, 0);
}

#[test]
fn a_pass_over_the_file_takes_no_popular_block_away() {
    const POPULAR: usize = FRAMES - 128;
    let (mut run, mut rng) = (Run::new(), SmallRng::seed_from_u64(1));
    let mut popular = std::iter::repeat_with(|| rng.random_range(0..POPULAR));
    run.ratio(popular.by_ref().take(20_000));
    let mut pass = |run: &mut Run| {
        let ratios = (POPULAR..BLOCKS).map(|block| {
            run.read(block);
            run.ratio(popular.by_ref().take(10))
        });
        ratios.sum::<f64>() / (BLOCKS - POPULAR) as f64
    };
    let ratio = pass(&mut run);
    assert!(ratio > 0.999, "{ratio}");
    assert_eq!(run.file.events.evicted, 0);
    // Now requests have read each block of it twice.
    let ratio = pass(&mut run);
    assert!(ratio > 0.95, "{ratio}");
}
