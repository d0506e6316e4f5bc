//! Every order of the steps of a writer, a fill, a reader, the end of an exposure or a grant, and of
//! blocks that make room, for the blocks of one file. The random model has more of each; this one
//! misses no order.
//!
//! Invariants
//! * A hit has one version of its block. No later version was complete when the read began.
//! * No fill writes to memory that was taken back, nor for a reader that has no grant any more.

use super::choices::Choices;
use super::entry::{BLOCK_BYTES, BlockEntry, FramePlace};
use super::file::{ChangeId, File, Fill, blocks};
use super::{Memory, PagePlace, SegmentKind};
use crate::limits::EXPOSED_REUSE_DELAY_NS;
use dafs_mem::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};

/// The number of a version of a block. The first one of block `b` is `b + 1`.
type Version = u32;

/// The version that the writer makes of block 0. That of block `b` is `b` more.
const WRITTEN: Version = 10;

/// Memory as readers see it.
#[derive(Default)]
struct World {
    /// Both halves of each frame.
    frames: FxHashMap<FramePlace, [Version; 2]>,
    entries: FxHashMap<(PagePlace, usize), BlockEntry>,
    live: FxHashSet<u16>,
    has_frames: bool,
    last: u16,
}

struct Shown {
    frames: usize,
    world: Mutex<World>,
}

impl Memory for Shown {
    fn add(&self, kind: SegmentKind, _is_first: bool) -> Option<(u16, usize)> {
        let mut world = self.world.lock();
        if kind == SegmentKind::Frames && std::mem::replace(&mut world.has_frames, true) {
            return None;
        }
        world.last += 1;
        let number = world.last;
        world.live.insert(number);
        Some((number, if kind == SegmentKind::Frames { self.frames } else { 1 }))
    }

    fn store(&self, page: PagePlace, at: usize, entry: BlockEntry) {
        let mut world = self.world.lock();
        assert!(world.live.contains(&page.segment), "a page that was taken back");
        world.entries.insert((page, at), entry);
    }

    fn discard(&self, segment: u16) {
        let mut world = self.world.lock();
        world.live.remove(&segment);
        world.entries.retain(|(page, _), _| page.segment != segment);
        world.frames.retain(|place, _| place.segment != segment);
    }

    fn is_scarce(&self) -> bool {
        false
    }

    fn looked(&self, _now_ns: u64) {}
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Actor {
    Writer,
    Filler,
    Reader,
    /// Ends the exposure, as a fence does.
    Ender,
    /// Ends one of two grants.
    Closer,
    /// Wants a frame for another block, and lets the time of the second chance go by.
    Evictor,
    /// Requests that want a frame for another block, and no time goes by.
    Candidate,
    /// A request that reads block 0.
    Asker,
    /// Takes the segment of all frames away, for another file.
    Leaver,
}

use Actor::{Asker, Candidate, Closer, Ender, Evictor, Filler, Leaver, Reader, Writer};

/// The actors and the file.
#[derive(Debug, Clone, Copy)]
struct Scene {
    actors: &'static [Actor],
    /// The reader's adapter reads in any order.
    is_remote: bool,
    frames: usize,
    /// The file: its blocks, and the bytes of the last one.
    blocks: usize,
    last_bytes: usize,
    /// Block 0 is published at the start. The reader reads this one.
    is_published: bool,
    /// The blocks that are written and filled.
    written: u64,
    filled: u64,
}

const PLAIN: Scene = Scene {
    actors: &[Writer, Filler, Reader],
    is_remote: false,
    frames: 2,
    blocks: 2,
    last_bytes: BLOCK_BYTES,
    is_published: true,
    written: 0,
    filled: 0,
};
const EMPTY: Scene = Scene { is_published: false, ..PLAIN };
const SHORT: Scene = Scene { blocks: 1, last_bytes: 100, written: 1, ..PLAIN };

/// Those with few orders first.
const SCENES: [Scene; 15] = [
    Scene { actors: &[Filler, Reader, Closer], ..EMPTY },
    Scene { actors: &[Writer, Reader, Ender], ..PLAIN },
    Scene { actors: &[Filler, Reader, Ender], ..EMPTY },
    Scene { actors: &[Writer, Filler, Ender], ..EMPTY },
    SHORT,
    Scene { is_published: false, ..SHORT },
    PLAIN,
    EMPTY,
    // A block makes room, and may come back.
    Scene { actors: &[Evictor, Asker, Writer, Reader], frames: 1, filled: 1, ..PLAIN },
    // The fill takes its frame.
    Scene { actors: &[Evictor, Asker, Filler, Reader], frames: 1, filled: 1, ..PLAIN },
    // The fill wins it.
    Scene { actors: &[Candidate, Asker, Filler, Reader], frames: 1, filled: 1, ..PLAIN },
    Scene { actors: &[Candidate, Filler, Reader], is_remote: true, frames: 1, filled: 1, ..PLAIN },
    Scene { actors: &[Leaver, Filler, Reader], filled: 1, ..PLAIN },
    Scene { actors: &[Leaver, Asker, Writer, Reader], ..PLAIN },
    Scene { is_remote: true, ..PLAIN },
];

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
    /// A reader takes an entry for the same by its frame alone.
    NoGeneration,
    /// A growing file leaves its last block as the last.
    ShortStays,
    /// The end of a grant is forgotten.
    GrantStays,
    /// The end of an exposure does not wait for fills.
    HastyEnd,
    /// A segment leaves although a fill writes there.
    HastyLeave,
    /// A block comes back although it has changed since it made room.
    ChanceStays,
    /// Writers no longer find the file while its entries still stand.
    EarlyUnlist,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Look {
    Half(usize),
    Check,
}

/// A read under way.
struct Reading {
    entry: BlockEntry,
    place: FramePlace,
    bytes: usize,
    left: Vec<Look>,
    halves: [Version; 2],
    is_same: bool,
    /// The last complete version of the block when it began, and the blocks of the file then.
    complete: Version,
    blocks: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    Withdraw,
    Discard,
    Unlist,
}

/// A lock by which fills exclude the end of an exposure and wait for that of a grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Filling {
    Free,
    ByFill,
    Exclusively,
}

struct Run {
    scene: Scene,
    mistake: Mistake,
    file: File,
    memory: Shown,
    page: PagePlace,
    filling: Filling,
    /// Writers find the file.
    is_listed: bool,
    /// A reader has no grant any more, and knows the segments.
    is_closed: bool,
    content: Vec<[Version; 2]>,
    last_bytes: usize,
    /// The last complete version of each block, and the blocks of the file then.
    complete: [Version; 2],
    complete_blocks: usize,
    /// The steps of each actor so far.
    write_step: usize,
    fill_step: usize,
    end_step: usize,
    close_step: usize,
    leave_step: usize,
    is_evicted: bool,
    candidate_step: usize,
    is_asked: bool,
    now_ns: u64,
    is_read: bool,
    change: Option<ChangeId>,
    fill: Option<(Fill, usize)>,
    reading: Option<Reading>,
    segments: Vec<u16>,
    hits: u32,
}

impl Run {
    fn new(scene: &Scene, mistake: Mistake) -> Self {
        let mut file = File::default();
        let memory = Shown { frames: scene.frames, world: Mutex::default() };
        file.has_remote_readers = scene.is_remote && mistake != Mistake::EarlyReuse;
        assert!(file.begin_grant() && file.begin_grant());
        let page = file.page(0, 0, &memory).unwrap();
        if scene.is_published {
            let fill = file.begin_fill(0, 0, &memory).unwrap();
            memory.world.lock().frames.insert(fill.place, [1; 2]);
            let bytes = if scene.blocks == 1 { scene.last_bytes } else { BLOCK_BYTES };
            assert!(file.end_fill(fill, bytes, &memory));
        }
        Self {
            scene: *scene,
            mistake,
            file,
            memory,
            page,
            filling: Filling::Free,
            is_listed: true,
            is_closed: false,
            content: (1..).map(|version| [version; 2]).take(scene.blocks).collect(),
            last_bytes: scene.last_bytes,
            complete: [1, 2].map(|first| if first <= scene.blocks as u32 { first } else { 0 }),
            complete_blocks: scene.blocks,
            write_step: 0,
            fill_step: 0,
            end_step: 0,
            close_step: 0,
            leave_step: 0,
            is_evicted: false,
            candidate_step: 0,
            is_asked: false,
            now_ns: 0,
            is_read: false,
            change: None,
            fill: None,
            reading: None,
            segments: Vec::new(),
            hits: 0,
        }
    }

    /// True if the actor has a step left that needs no wait.
    fn can(&self, actor: Actor) -> bool {
        let is_hasty = self.mistake == Mistake::HastyEnd;
        match actor {
            Writer => self.write_step < 4,
            Filler => match self.fill_step {
                1 => self.filling == Filling::Free,
                step => step < 4,
            },
            Reader => !self.is_read,
            Ender => match self.endings().get(self.end_step) {
                Some(Ending::Withdraw) => self.filling == Filling::Free || is_hasty,
                ending => ending.is_some(),
            },
            Closer => match self.close_step {
                1 => self.filling == Filling::Free,
                step => step < 2,
            },
            Evictor => !self.is_evicted,
            Candidate => self.candidate_step < 2,
            Asker => !self.is_asked,
            Leaver => match self.leave_step {
                1 => self.filling == Filling::Free || self.mistake == Mistake::HastyLeave,
                step => step < 3,
            },
        }
    }

    fn step(&mut self, actor: Actor, choices: &mut Choices) -> Result<(), String> {
        match actor {
            Writer => self.write(),
            Filler => return self.fill(),
            Reader => return self.read(choices),
            Ender => self.end(),
            Closer => self.close(),
            Evictor => {
                self.is_evicted = true;
                self.want_frame();
                self.now_ns = EXPOSED_REUSE_DELAY_NS;
            }
            Candidate => {
                self.candidate_step += 1;
                self.want_frame();
            }
            Asker => {
                self.is_asked = true;
                self.file.restore(0, self.now_ns, &self.memory);
            }
            Leaver => self.leave(),
        }
        Ok(())
    }

    fn begin_change(&mut self) -> ChangeId {
        let written = self.scene.written;
        if self.mistake == Mistake::ShortStays && written as usize >= self.content.len() {
            self.file.forget_short();
        }
        let bytes = BLOCK_BYTES as u64;
        let changed = blocks(written * bytes, bytes);
        if self.mistake == Mistake::ChanceStays {
            let chances = std::mem::take(&mut self.file.chances);
            let change = self.file.begin_change(changed, self.now_ns, &self.memory);
            self.file.chances = chances;
            return change;
        }
        self.file.begin_change(changed, self.now_ns, &self.memory)
    }

    fn write(&mut self) {
        let place = self.scene.written as usize;
        let is_late = self.mistake == Mistake::LateChange;
        self.write_step += 1;
        match self.write_step {
            1 if is_late || !self.is_listed => {}
            1 => self.change = Some(self.begin_change()),
            4 => {
                if is_late {
                    self.change = Some(self.begin_change());
                }
                if let Some(change) = self.change {
                    self.file.end_change(change);
                }
                self.complete[place] = WRITTEN + place as u32;
                self.complete_blocks = self.content.len();
            }
            step => {
                if place >= self.content.len() {
                    self.content.resize(place + 1, [0; 2]);
                    self.last_bytes = BLOCK_BYTES / 2;
                }
                self.content[place][step - 2] = WRITTEN + place as u32;
                if step == 3 && place + 1 == self.content.len() {
                    self.last_bytes = BLOCK_BYTES;
                }
            }
        }
    }

    fn fill(&mut self) -> Result<(), String> {
        let step = self.fill_step;
        self.fill_step += 1;
        if step == 0 {
            let begun = self.file.begin_fill(self.scene.filled, self.now_ns, &self.memory);
            self.fill = begun.map(|fill| (fill, 0));
        }
        let Some((fill, bytes)) = self.fill else {
            self.fill_step = 4;
            return Ok(());
        };
        match step {
            0 => {}
            1 if !self.file.may_write(&fill) => {
                self.file.end_fill(fill, 0, &self.memory);
                self.fill_step = 4;
            }
            1 => {
                self.filling = Filling::ByFill;
                return self.fill_half(fill, 0);
            }
            2 => return self.fill_half(fill, 1),
            _ => {
                if self.mistake == Mistake::StaleFill {
                    self.file.forget_changes();
                }
                self.file.end_fill(fill, bytes, &self.memory);
                self.filling = Filling::Free;
            }
        }
        Ok(())
    }

    /// Reads a half of a block into its frame. At the end the store says how much there was.
    fn fill_half(&mut self, fill: Fill, half: usize) -> Result<(), String> {
        let place = fill.block as usize;
        let bytes = if place + 1 == self.content.len() { self.last_bytes } else { BLOCK_BYTES };
        let version = self.content.get(place).map(|halves| halves[half]);
        self.fill = Some((fill, version.map_or(0, |_| bytes)));
        let mut world = self.memory.world.lock();
        if !world.live.contains(&fill.place.segment) {
            return Err("a fill writes to memory that was taken back".to_owned());
        }
        if self.is_closed {
            return Err("a reader that has closed the file is shown more of it".to_owned());
        }
        world.frames.entry(fill.place).or_default()[half] = version.unwrap_or(0);
        Ok(())
    }

    fn read(&mut self, choices: &mut Choices) -> Result<(), String> {
        let world = self.memory.world.lock();
        let entry = world.entries.get(&(self.page, 0)).copied().unwrap_or_default();
        let Some(reading) = &mut self.reading else {
            let Some((place, bytes)) = entry.block else {
                self.is_read = true;
                return Ok(());
            };
            let left = match self.mistake {
                Mistake::EarlyCheck => vec![Look::Check, Look::Half(0), Look::Half(1)],
                _ => vec![Look::Half(0), Look::Half(1), Look::Check],
            };
            let (complete, blocks) = (self.complete[0], self.complete_blocks);
            let (halves, is_same) = ([0; 2], false);
            let reading = Reading { entry, place, bytes, left, halves, is_same, complete, blocks };
            self.reading = Some(reading);
            return Ok(());
        };
        let next = if self.scene.is_remote { choices.choose(reading.left.len()) } else { 0 };
        match reading.left.remove(next) {
            Look::Half(half) => {
                let frame = world.frames.get(&reading.place);
                reading.halves[half] = frame.map_or(0, |halves| halves[half]);
            }
            Look::Check if self.mistake == Mistake::NoGeneration => {
                reading.is_same = entry.block == reading.entry.block;
            }
            Look::Check => reading.is_same = entry == reading.entry,
        }
        if !reading.left.is_empty() {
            return Ok(());
        }
        self.is_read = true;
        if !reading.is_same {
            return Ok(());
        }
        self.hits += 1;
        judge(reading)
    }

    fn endings(&self) -> [Ending; 3] {
        match self.mistake {
            Mistake::EarlyUnlist => [Ending::Unlist, Ending::Withdraw, Ending::Discard],
            _ => [Ending::Withdraw, Ending::Discard, Ending::Unlist],
        }
    }

    fn end(&mut self) {
        let ending = self.endings()[self.end_step];
        self.end_step += 1;
        match ending {
            Ending::Withdraw => {
                self.filling = Filling::Exclusively;
                self.segments = self.file.withdraw(self.now_ns, &self.memory);
            }
            Ending::Discard => {
                self.segments.drain(..).for_each(|segment| self.memory.discard(segment));
                self.filling = Filling::Free;
            }
            Ending::Unlist => self.is_listed = false,
        }
    }

    /// Another block wants a frame, for which block 0 makes room.
    fn want_frame(&mut self) {
        if let Some(fill) = self.file.begin_fill(self.scene.filled, self.now_ns, &self.memory) {
            self.file.end_fill(fill, 0, &self.memory);
        }
    }

    fn leave(&mut self) {
        self.leave_step += 1;
        match self.leave_step {
            1 => self.file.begin_leaving(self.now_ns, &self.memory),
            2 => {
                self.filling = Filling::Exclusively;
                self.now_ns = EXPOSED_REUSE_DELAY_NS;
                self.segments = self.file.end_leaving(self.now_ns, false, &self.memory);
            }
            _ => {
                self.segments.drain(..).for_each(|segment| self.memory.discard(segment));
                self.filling = Filling::Free;
            }
        }
    }

    fn close(&mut self) {
        self.close_step += 1;
        if self.close_step == 2 {
            self.is_closed = true;
            return;
        }
        assert!(!self.file.end_grant(), "another reader has a grant");
        if self.mistake == Mistake::GrantStays {
            self.file.forget_former_readers();
        }
    }
}

/// A hit has one version of block 0.
fn judge(reading: &Reading) -> Result<(), String> {
    let [first, second] = reading.halves;
    // The second half of a block with fewer bytes is not in the file.
    let is_short = reading.bytes < BLOCK_BYTES;
    if !is_short && first != second {
        return Err(format!("torn: {first} and {second}"));
    }
    if first != 1 && first != WRITTEN {
        return Err(format!("{first} is no version of this block"));
    }
    if first < reading.complete {
        return Err(format!("{first} after {} was complete", reading.complete));
    }
    if is_short && reading.blocks > 1 {
        return Err("the end of the file where it has gone on".to_owned());
    }
    Ok(())
}

/// Runs a scene in every order. Returns the number of hits.
fn explore(scene: &Scene, mistake: Mistake) -> Result<u32, String> {
    let (mut choices, mut hits) = (Choices::default(), 0);
    loop {
        let mut run = Run::new(scene, mistake);
        loop {
            let able: Vec<_> = scene.actors.iter().filter(|actor| run.can(**actor)).collect();
            if able.is_empty() {
                break;
            }
            let actor = *able[choices.choose(able.len())];
            run.step(actor, &mut choices)?;
        }
        hits += run.hits;
        if !choices.advance() {
            return Ok(hits);
        }
    }
}

#[test]
fn every_hit_is_one_version_of_its_block_in_every_order() {
    for scene in &SCENES {
        let hits = explore(scene, Mistake::None);
        let is_read = scene.actors.contains(&Reader);
        assert_eq!(hits.clone().map(|hits| hits > 0), Ok(is_read), "{scene:?}: {hits:?}");
    }
}

#[test]
fn some_order_shows_each_deliberate_mistake() {
    for mistake in [
        Mistake::LateChange,
        Mistake::StaleFill,
        Mistake::EarlyReuse,
        Mistake::EarlyCheck,
        Mistake::NoGeneration,
        Mistake::ShortStays,
        Mistake::GrantStays,
        Mistake::HastyEnd,
        Mistake::HastyLeave,
        Mistake::ChanceStays,
        Mistake::EarlyUnlist,
    ] {
        let is_found = SCENES.iter().any(|scene| explore(scene, mistake).is_err());
        assert!(is_found, "{mistake:?}");
    }
}
