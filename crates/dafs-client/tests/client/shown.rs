//! Optimistic reads by RDMA, from memory of a server that follows a script, over the simulated network.

use crate::fake::{Answer, ROOT, World, pattern, requests::recovering};
use dafs_client::core::{Done, Piece, ReadCall, RegisteredMemory, SessionConfig, Stage};
use dafs_dat::shm::exposed_buffer;
use dafs_dat::{Adapter, MemoryRegion};
use dafs_mem::{Buffer, Site};
use dafs_wire::dafs::{
    EntryBlock, EntryWord, ExposedKind, ExposedSegment, ExposedWindow, HintWord, Procedure, Reply,
    Request, RequestHeader, ResponseHeader, Seq, StateId, Status, XExposeGetReply, encode_response,
};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const BLOCK: usize = 4096;
const BLOCKS: usize = 8;
const FRAMES: usize = 16;
const NAME: StateId = StateId(*b"the open");

/// The answer to X_EXPOSE_GET.
#[derive(Default)]
struct Told {
    exposure: u64,
    windows: Vec<ExposedWindow>,
    segments: Vec<ExposedSegment>,
}

impl Told {
    fn message(&self, header: &RequestHeader, order: dafs_wire::dafs::ByteOrder) -> Vec<u8> {
        let reply = Reply::XExposeGet(XExposeGetReply {
            exposure: self.exposure,
            windows: Seq::new(&self.windows),
            segments: Seq::new(&self.segments),
            base: 0,
        });
        let mut out = vec![0; 16 << 10];
        let len = encode_response(&mut out, order, &ResponseHeader::answering(header, 8), &reply);
        out.truncate(len.unwrap());
        out
    }
}

/// A world whose server can show the blocks of its file.
struct Showing {
    world: World,
    told: Arc<Mutex<Told>>,
    frames: Arc<Buffer>,
    index: Arc<Buffer>,
    regions: Vec<MemoryRegion>,
    into: Arc<RegisteredMemory>,
}

fn optimistic() -> SessionConfig {
    SessionConfig { optimistic: true, ..recovering() }
}

impl Showing {
    /// A session that has asked for a channel. Nothing is shown.
    fn new(config: SessionConfig) -> Self {
        let told: Arc<Mutex<Told>> = Arc::default();
        let (script, order) = (told.clone(), config.byte_order);
        let mut world = World::open_with(config, |server| {
            server.file = pattern(BLOCKS * BLOCK);
            server.script = Box::new(move |header, request| match request {
                Request::XExposeGet(_) => {
                    Answer::Raw(script.lock().unwrap().message(header, order))
                }
                _ => Answer::File,
            });
        });
        world.network.grant_reads(true);
        let buffer = |bytes: usize| Arc::new(exposed_buffer(bytes).unwrap());
        let (frames, index) = (buffer(FRAMES * BLOCK), buffer(BLOCK));
        let into = world.memory(&[0; BLOCKS * BLOCK]);
        let mut showing = Self { world, told, frames, index, regions: Vec::new(), into };
        for _ in 0..3 {
            showing.read(0, BLOCK);
        }
        showing.world.run_for(Duration::from_millis(10));
        showing
    }

    /// The same, where all blocks are shown: block N in frame N.
    fn all(config: SessionConfig) -> Self {
        let mut showing = Self::new(config);
        showing.fill();
        showing.show(7);
        showing.warm();
        showing
    }

    /// Publishes all blocks.
    fn fill(&mut self) {
        let content = self.world.server.file.clone();
        self.frames.slice(0, content.len()).unwrap().copy_from(&content, Site::Inspect);
        (0..BLOCKS).for_each(|block| self.enter(block, 1, Some(block as u8)));
    }

    /// Grants the memory, and tells the client so when it asks.
    fn show(&mut self, exposure: u64) {
        let buffers =
            [(1, &self.frames, ExposedKind::Frames), (2, &self.index, ExposedKind::Index)];
        let server = &mut self.world.server;
        self.regions = buffers.map(|(_, buffer, _)| server.grant_memory(buffer)).to_vec();
        let segments = buffers.iter().zip(&self.regions).map(|((number, buffer, kind), region)| {
            let (address, key, bytes) = (region.address, region.key, buffer.len() as u32);
            ExposedSegment { address, number: *number, key, bytes, kind: *kind }
        });
        let windows = vec![ExposedWindow { window: 0, segment: 2, page: 0 }];
        *self.told.lock().unwrap() = Told { exposure, windows, segments: segments.collect() };
    }

    /// Changes the entry of a block.
    fn enter(&mut self, block: usize, changes: u32, frame: Option<u8>) {
        let place = frame.map(|frame| EntryBlock { segment: 1, frame, bytes: BLOCK });
        let word = EntryWord::new(changes, place).0.to_le_bytes();
        self.index.slice(8 * block, 8).unwrap().copy_from(&word, Site::Inspect);
    }

    /// Reads until a read is a hit.
    fn warm(&mut self) {
        for _ in 0..100 {
            let before = self.hits();
            self.read(0, BLOCK);
            if self.hits() > before {
                return;
            }
            self.world.run_for(Duration::from_millis(100));
        }
        panic!("no hits: {:?}", self.world.core.remote_read_stats());
    }

    fn submit(&mut self, offset: usize, len: usize) -> u64 {
        let tag = self.world.tag();
        let into = Piece::new(&self.into, offset, len as u32).unwrap();
        let (offset, hint) = (offset as u64, HintWord::NONE);
        let call = ReadCall { handle: ROOT, state_id: NAME, offset, into, hint };
        let World { core, adapter, now, .. } = &mut self.world;
        core.submit_read(adapter, *now, tag, call, Some(Duration::from_secs(60))).unwrap();
        tag
    }

    /// Reads a part of the file. Returns its bytes.
    fn read(&mut self, offset: usize, len: usize) -> Vec<u8> {
        self.into.view().fill(0xee);
        let tag = self.submit(offset, len);
        self.world.run_all(&[tag]);
        let Done::Read { bytes, .. } = &self.world.done[&tag] else {
            panic!("{:?}", self.world.done[&tag])
        };
        self.into.slice(offset, *bytes as usize).unwrap().to_vec(Site::Inspect)
    }

    fn hits(&self) -> u64 {
        self.world.core.remote_read_stats().hits
    }

    fn requests(&self) -> usize {
        let server = &self.world.server;
        server.count(Procedure::ReadInline) + server.count(Procedure::ReadDirect)
    }
}

#[test]
fn a_read_whose_entries_stand_needs_no_request() {
    let mut showing = Showing::all(optimistic());
    let (before, requests) = (showing.hits(), showing.requests());
    let parts = [(0, BLOCK), (5, 10), (100, 3 * BLOCK), (0, BLOCKS * BLOCK), (BLOCK - 1, 2)];
    for (offset, len) in parts {
        assert!(showing.read(offset, len) == pattern(BLOCKS * BLOCK)[offset..offset + len]);
    }
    assert_eq!(showing.hits() - before, parts.len() as u64);
    assert_eq!(showing.requests(), requests);
    // Many at a time; those beyond the limit are requests.
    let tags: Vec<_> =
        (0..200).map(|number| showing.submit(number % BLOCKS * BLOCK, BLOCK)).collect();
    showing.world.run_all(&tags);
    let content = pattern(BLOCKS * BLOCK);
    assert!(showing.into.view().to_vec(Site::Inspect) == content);
    assert!(showing.hits() - before > parts.len() as u64);
    assert_eq!(showing.world.core.remote_read_stats().lost, 0);
}

#[test]
fn a_change_is_found_by_the_next_read() {
    let mut showing = Showing::all(optimistic());
    let moved = vec![7; BLOCK];
    showing.frames.slice(12 * BLOCK, BLOCK).unwrap().copy_from(&moved, Site::Inspect);
    showing.frames.slice(BLOCK, BLOCK).unwrap().copy_from(&[9; BLOCK], Site::Inspect);
    showing.enter(1, 2, Some(12));
    let requests = showing.requests();
    assert_eq!(showing.read(BLOCK, BLOCK), moved);
    let stats = showing.world.core.remote_read_stats();
    assert_eq!((stats.stale, showing.requests()), (1, requests), "it was tried once more");
    // A block that is absent now is read by a request.
    showing.enter(1, 3, None);
    let content = pattern(BLOCKS * BLOCK);
    assert!(showing.read(BLOCK, 10) == content[BLOCK..BLOCK + 10]);
    assert_eq!(showing.requests(), requests + 1);
    showing.world.run_for(Duration::from_millis(50));
    // The same word with another count of changes is another entry.
    showing.enter(2, 2, Some(2));
    assert!(showing.read(2 * BLOCK, 10) == content[2 * BLOCK..2 * BLOCK + 10]);
    assert_eq!(showing.world.core.remote_read_stats().stale, 3);
}

#[test]
fn a_refused_key_costs_the_channel_and_no_read() {
    let mut showing = Showing::all(optimistic());
    let (region, requests) = (showing.regions[0], showing.requests());
    showing.world.server.revoke_memory(region);
    let tags: Vec<_> = (0..BLOCKS).map(|block| showing.submit(block * BLOCK, BLOCK)).collect();
    showing.world.run_all(&tags);
    assert!(showing.into.view().to_vec(Site::Inspect) == pattern(BLOCKS * BLOCK));
    let stats = showing.world.core.remote_read_stats();
    assert_eq!((stats.lost, showing.requests() - requests), (1, BLOCKS));
    assert_eq!(showing.world.core.stats().recoveries, 0, "the session goes on");
    // Another channel has other keys.
    showing.told.lock().unwrap().exposure = 0;
    for _ in 0..20 {
        showing.read(0, BLOCK);
        showing.world.run_for(Duration::from_millis(100));
    }
    assert_eq!(showing.world.server.shown.binds, 2);
    showing.show(7);
    showing.warm();
}

#[test]
fn an_answer_about_a_channel_that_is_gone_is_dropped() {
    let mut showing = Showing::new(optimistic());
    showing.fill();
    showing.show(7);
    // The next question is due.
    showing.world.run_for(Duration::from_millis(100));
    showing.world.server.hold = true;
    let asked = showing.world.server.count(Procedure::XExposeGet);
    let tag = showing.submit(0, BLOCK);
    showing.world.run(|world| world.server.count(Procedure::XExposeGet) > asked);
    showing.told.lock().unwrap().exposure = 0;
    showing.world.server.leave_optimistic();
    showing.world.run(|world| world.core.remote_read_stats().lost == 1);
    showing.world.server.release();
    showing.world.run_all(&[tag]);
    for _ in 0..20 {
        showing.read(0, BLOCK);
        showing.world.run_for(Duration::from_millis(100));
    }
    let stats = showing.world.core.remote_read_stats();
    assert_eq!((stats.lost, showing.world.server.shown.binds), (1, 2), "no old key was used");
    showing.show(7);
    showing.warm();
}

#[test]
fn noise_in_the_memory_harms_nothing() {
    let mut showing = Showing::all(optimistic());
    let mut seed = 1_u64;
    for round in 0..200 {
        let noise: Vec<u8> = (0..BLOCK)
            .map(|_| {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (seed >> 56) as u8
            })
            .collect();
        showing.index.view().copy_from(&noise, Site::Inspect);
        if round % 3 == 0 {
            // Frames of the right segment, and some behind its end.
            let frame = (round * 7 % 40) as u8;
            (0..4).for_each(|block| showing.enter(block, round as u32, Some(frame)));
        }
        let offset = round * 1000 % (BLOCKS * BLOCK - 9000);
        let len = showing.read(offset, 9000).len();
        assert!(len <= 9000);
        showing.world.run_for(Duration::from_millis(20));
    }
    assert_eq!(showing.world.core.stage(), Stage::Ready);
    assert_eq!(showing.world.core.remote_read_stats().lost, 0, "no place outside was read");
    assert_eq!(showing.world.core.stats().recoveries, 0);
}

#[test]
fn hostile_answers_name_nothing_that_is_read() {
    let hostile: [fn(&mut Told); 6] = [
        |told| told.segments.iter_mut().for_each(|segment| segment.bytes = u32::MAX),
        |told| told.segments.iter_mut().for_each(|segment| segment.number = u32::MAX),
        |told| told.segments.iter_mut().for_each(|segment| segment.address = u64::MAX),
        |told| told.segments.iter_mut().for_each(|segment| segment.kind = ExposedKind::Life),
        |told| told.windows.iter_mut().for_each(|window| window.page = u32::MAX),
        |told| told.segments.iter_mut().for_each(|segment| segment.bytes = 100),
    ];
    for spoil in hostile {
        let mut showing = Showing::new(optimistic());
        (0..BLOCKS).for_each(|block| showing.enter(block, 1, Some(200)));
        showing.show(7);
        spoil(&mut showing.told.lock().unwrap());
        let content = pattern(BLOCKS * BLOCK);
        for _ in 0..30 {
            assert!(showing.read(0, 2 * BLOCK) == content[..2 * BLOCK]);
            showing.world.run_for(Duration::from_millis(100));
        }
        assert_eq!(showing.hits(), 0);
        assert_eq!(showing.world.core.stage(), Stage::Ready);
    }
}

#[test]
fn a_server_that_refuses_or_breaks_the_rules_is_asked_for_blocks_no_more() {
    for status in [Status::NotSupp, Status::NotAuthorized, Status::Delay] {
        let mut showing = Showing::new(SessionConfig { optimistic: false, ..optimistic() });
        assert_eq!(showing.world.server.shown.binds, 0, "nobody wants a channel");
        showing = Showing::new(optimistic());
        showing.world.server.shown.refusal = Some(status);
        showing.world.server.leave_optimistic();
        for _ in 0..50 {
            showing.read(0, BLOCK);
            showing.world.run_for(Duration::from_millis(50));
        }
        let binds = showing.world.server.shown.binds;
        match status {
            Status::Delay => assert!((3..40).contains(&binds), "{binds}"),
            _ => assert_eq!(binds, 2, "{status:?}"),
        }
        assert_eq!(showing.world.core.stage(), Stage::Ready);
        assert_eq!(showing.world.core.remote_read_stats().lost, 1, "the others were not bound");
        showing.world.run_for(Duration::from_secs(60));
        showing.read(0, BLOCK);
        showing.world.run_for(Duration::from_millis(10));
        let again = u32::from(status != Status::NotSupp);
        assert_eq!(showing.world.server.shown.binds, binds + again, "{status:?}");
    }
    // A message that nobody expects ends the channel alone.
    let mut showing = Showing::all(optimistic());
    showing.world.server.say_on_optimistic(&[1; 100]);
    showing.world.run_for(Duration::from_millis(10));
    assert_eq!(showing.world.core.remote_read_stats().lost, 1);
    assert!(showing.read(0, 10) == pattern(10));
}

#[test]
fn a_server_with_a_device_is_asked_once_a_second() {
    for device_answers_reads in [false, true] {
        let config = SessionConfig { device_answers_reads, ..optimistic() };
        let mut showing = Showing::all(config);
        for _ in 0..3 {
            // Longer than the client trusts a device.
            showing.world.run_for(Duration::from_millis(1500));
            let (hits, requests) = (showing.hits(), showing.requests());
            for _ in 0..10 {
                assert!(showing.read(0, BLOCK) == pattern(BLOCK));
            }
            let asked = usize::from(device_answers_reads);
            assert_eq!(showing.requests() - requests, asked);
            assert_eq!(showing.hits() - hits, 10 - asked as u64);
        }
    }
}

#[test]
fn a_late_answer_of_a_device_is_no_hit() {
    for device_answers_reads in [false, true] {
        let config = SessionConfig { device_answers_reads, ..optimistic() };
        let mut showing = Showing::all(config);
        let (hits, requests) = (showing.hits(), showing.requests());
        let tag = showing.submit(0, BLOCK);
        // The client is held up while the answer arrives.
        let World { network, adapter, now, .. } = &mut showing.world;
        adapter.flush();
        *now = *now + Duration::from_millis(1500);
        network.advance_to(*now);
        showing.world.run_all(&[tag]);
        let late = usize::from(device_answers_reads);
        assert_eq!(showing.hits() - hits, 1 - late as u64);
        assert_eq!(showing.requests() - requests, late);
        assert_eq!(showing.world.core.remote_read_stats().lost, 0);
    }
}

#[test]
fn reads_under_way_outlive_the_connection() {
    let mut showing = Showing::all(optimistic());
    let tags: Vec<_> = (0..BLOCKS).map(|block| showing.submit(block * BLOCK, BLOCK)).collect();
    assert_eq!(showing.world.core.stats().in_flight, BLOCKS as u16);
    showing.world.lose_and_notice();
    showing.world.run_all(&tags);
    assert!(showing.into.view().to_vec(Site::Inspect) == pattern(BLOCKS * BLOCK));
    assert_eq!(showing.world.core.stats().recoveries, 1);
    // A close waits for them.
    let mut showing = Showing::all(optimistic());
    let tags: Vec<_> = (0..BLOCKS).map(|block| showing.submit(block * BLOCK, BLOCK)).collect();
    let World { core, adapter, now, .. } = &mut showing.world;
    core.close(adapter, *now);
    showing.world.run(|world| world.core.stage() == Stage::Over);
    for tag in tags {
        assert!(matches!(showing.world.done[&tag], Done::Read { bytes: 4096, .. }));
    }
    let mut showing = Showing::all(optimistic());
    let tag = showing.submit(0, BLOCK);
    let World { core, adapter, .. } = &mut showing.world;
    core.abort(adapter);
    showing.world.run_for(Duration::from_millis(1));
    let World { core, done, .. } = &mut showing.world;
    let ended = core.take_completed().map(|completed| completed.done);
    let ended = ended.as_ref().or_else(|| done.get(&tag));
    assert!(matches!(ended, Some(Done::Lost(_))), "{ended:?}");
}

#[test]
fn a_server_that_is_held_up_costs_the_channel_and_no_read() {
    let mut showing = Showing::all(optimistic());
    let start = showing.world.now;
    showing.world.network.pause(1, start + Duration::from_secs(3));
    let first = showing.submit(0, BLOCK);
    showing.world.run_for(Duration::from_millis(600));
    let second = showing.submit(BLOCK, BLOCK);
    showing.world.run(|world| world.core.remote_read_stats().lost == 1);
    // The first read under way counts.
    let waited = showing.world.now.since(start).as_millis();
    assert!((1000..1100).contains(&waited), "{waited} ms of the simulated time");
    showing.world.run_all(&[first, second]);
    let found = showing.into.view().to_vec(Site::Inspect);
    assert!(found[..2 * BLOCK] == pattern(BLOCKS * BLOCK)[..2 * BLOCK]);
    assert_eq!(showing.world.core.stats().recoveries, 0);
    // For some time all reads are requests.
    for _ in 0..20 {
        showing.read(0, BLOCK);
        showing.world.run_for(Duration::from_millis(100));
    }
    assert_eq!(showing.world.server.shown.binds, 1);
    showing.world.run_for(Duration::from_secs(10));
    showing.read(0, BLOCK);
    showing.world.run_for(Duration::from_millis(10));
    assert_eq!(showing.world.server.shown.binds, 2);
}

#[test]
fn a_caller_that_gives_up_has_its_memory_back() {
    let mut showing = Showing::all(optimistic());
    let tag = showing.submit(0, BLOCK);
    let World { core, adapter, now, .. } = &mut showing.world;
    let (at, after) = (*now, Duration::from_secs(1));
    core.give_up(adapter, at, tag, after);
    showing.into.view().fill(0xee);
    showing.world.run_for(Duration::from_millis(50));
    assert!(matches!(showing.world.done[&tag], Done::Lost(_)));
    assert!(showing.into.view().to_vec(Site::Inspect).iter().all(|byte| *byte == 0xee));
}
