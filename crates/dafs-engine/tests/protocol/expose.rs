//! X_EXPOSE_GET for clients that cannot map memory of the server, and their optimistic channels. Tests of
//! the client show the rest, over shared memory.

use crate::common::*;
use dafs_dat::{Access, RemoteBuffer};
use dafs_service::{ExportOptions, OptimisticReads, Squash};
use dafs_wire::dafs::{
    self, ByteOrder, ChannelUse, ConnectBind, EXPOSED_WINDOWS_MAX, EntryWord, ExposedKind,
    ExposedSegment, ExposedWindow, FsAttrMask, Reply, Request, Seq, SessionId, SessionOptions,
    Status, XExposeGetReply,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const BLOCK: usize = 4096;

/// The interval of the server's timeout checks.
const TICK: Duration = Duration::from_millis(500);

fn get(file: File, windows: u32) -> dafs::XExposeGet {
    let (fh, state_id) = (file.fh, file.id);
    dafs::XExposeGet { fh, state_id, window: 0, exposure: 0, windows, known: 0, small: false }
}

/// A server that shows files to clients of other hosts.
fn showing() -> Setup {
    let optimistic = OptimisticReads::Remote;
    let options = ExportOptions { squash: Squash::None, optimistic, ..ExportOptions::default() };
    Setup { exports: vec![("", options)], exposes: true, ..Setup::default() }
}

/// A session, its channel, and the file "f", whose three whole blocks and a part of another one are shown.
struct Reader {
    client: usize,
    session: SessionId,
    channel: usize,
    file: File,
    exposure: u64,
    page: RemoteBuffer,
    segments: Vec<ExposedSegment>,
}

fn session(
    world: &mut World,
    host: u32,
    name: &str,
    options: SessionOptions,
) -> (usize, SessionId) {
    let client = world.connect(host);
    let answer = world.call(client, &connect_auth(name, 1, options));
    let Ok(Reply::ClientConnectAuth(reply)) = answer.reply() else { panic!() };
    world.clients[client].checksums = options.use_checksums;
    (client, reply.session_id)
}

fn bind(session: SessionId) -> Request<'static> {
    let channel_use = ChannelUse::Optimistic;
    Request::ConnectBind(ConnectBind { channel_use, ..bind_request(session) })
}

fn channel(world: &mut World, client: usize, session: SessionId) -> usize {
    let channel = world.connect_beside(client, 8, ByteOrder::Little);
    assert_eq!(world.status(channel, &bind(session)), Status::Ok);
    channel
}

fn ask(
    world: &mut World,
    client: usize,
    get: dafs::XExposeGet,
) -> (u64, Vec<ExposedWindow>, Vec<ExposedSegment>) {
    let answer = world.call(client, &Request::XExposeGet(get));
    let Ok(Reply::XExposeGet(reply)) = answer.reply() else { panic!("{:?}", answer.status()) };
    (reply.exposure, reply.windows.iter().collect(), reply.segments.iter().collect())
}

/// Reads the file, which must have this content, by READ_DIRECT.
fn read_directly(world: &mut World, client: usize, file: File, content: &[u8]) {
    let len = content.len() as u32;
    let memory = world.clients[client].memory(content.len());
    let buffers = [memory.direct(0, len)];
    let answer = world.call(client, &read_direct(file, 0, len, &buffers));
    assert_eq!(read_done(&answer).0, len);
    assert_eq!(memory.bytes(), content);
}

impl Reader {
    fn new(world: &mut World, host: u32, name: &str) -> Self {
        Self::reading(world, host, name, |world, client, file, content| {
            assert_eq!(world.read(client, file), content);
        })
    }

    /// The same for a session that reads the file in this way.
    fn reading(
        world: &mut World,
        host: u32,
        name: &str,
        read: impl Fn(&mut World, usize, File, &[u8]),
    ) -> Self {
        let (client, session) = session(world, host, name, SessionOptions::default());
        let file = world.open(client, b"f");
        let content = pattern(3 * BLOCK + 100, 3);
        world.write(client, file, 0, &content);
        assert_eq!(ask(world, client, get(file, 1)).0, 0, "there is no channel");
        let channel = channel(world, client, session);
        let (exposure, windows, mut segments) = ask(world, client, get(file, 64));
        assert_ne!(exposure, 0);
        assert_eq!(windows.len(), 1, "windows behind the end of the file have no page");
        assert_eq!(segments[0].kind, ExposedKind::Index);
        // Blocks that are read twice are shown.
        (0..2).for_each(|_| read(world, client, file, &content));
        let known = dafs::XExposeGet { exposure, known: segments.len() as u32, ..get(file, 1) };
        segments.extend(ask(world, client, known).2);
        let index = segments[0];
        let at = u64::from(windows[0].page) * BLOCK as u64;
        let page = RemoteBuffer { key: index.key, address: index.address + at, len: BLOCK as u32 };
        Self { client, session, channel, file, exposure, page, segments }
    }

    /// Reads memory of the server over the channel. `None` if that ends the channel.
    fn read(&self, world: &mut World, remote: RemoteBuffer) -> Option<Vec<u8>> {
        read(world, self.channel, remote)
    }

    /// The blocks that are shown.
    fn blocks(&self, world: &mut World) -> Vec<Option<Vec<u8>>> {
        let page = self.read(world, self.page).unwrap();
        let words = page.as_chunks::<8>().0.iter().map(|word| EntryWord(u64::from_le_bytes(*word)));
        let words: Vec<_> = words.take(4).collect();
        let mut block = |word: EntryWord| {
            let place = word.block()?;
            let number = u32::from(place.segment);
            let segment = self.segments.iter().find(|segment| segment.number == number).unwrap();
            let address = segment.address + u64::from(place.frame) * BLOCK as u64;
            let remote = RemoteBuffer { key: segment.key, address, len: place.bytes as u32 };
            self.read(world, remote)
        };
        words.into_iter().map(&mut block).collect()
    }
}

fn read(world: &mut World, channel: usize, remote: RemoteBuffer) -> Option<Vec<u8>> {
    let into = world.clients[channel].memory_with(remote.len as usize, Access::LOCAL_WRITE);
    let done = world.clients[channel].reads_done;
    world.clients[channel].rdma_read(&into, remote);
    world.run_until("read", |world| {
        let client = &world.clients[channel];
        client.reads_done > done || client.closed.is_some()
    });
    (world.clients[channel].reads_done > done).then(|| into.bytes())
}

fn is_open(world: &World, client: usize) -> bool {
    world.clients[client].closed.is_none()
}

#[test]
fn a_client_of_another_host_reads_blocks_over_a_channel() {
    let mut world = World::new(showing());
    let reader = Reader::new(&mut world, 2, "a");
    assert_eq!(world.counts().optimistic_channels, 1);
    let content = pattern(3 * BLOCK + 100, 3);
    let blocks = |content: &[u8]| -> Vec<_> {
        content.chunks(BLOCK).map(|block| Some(block.to_vec())).collect()
    };
    assert_eq!(reader.blocks(&mut world), blocks(&content));
    // A change takes its blocks away.
    world.write(reader.client, reader.file, BLOCK as u64 + 5, b"new");
    let found = reader.blocks(&mut world);
    assert_eq!((found[1].is_none(), found[0].is_some(), found[2].is_some()), (true, true, true));
    // A known segment keeps its key.
    let again = ask(&mut world, reader.client, get(reader.file, 1));
    assert_eq!((again.0, again.2), (reader.exposure, reader.segments.clone()));
    world.pass(TICK);
    assert!(world.exposed.as_ref().unwrap().remote_reads() >= 8);
    assert!(is_open(&world, reader.channel), "the open is still there");
    let attributes = FsAttrMask::X_OPTIMISTIC;
    let asked = Request::GetFsAttr(dafs::GetFsAttr { fh: reader.file.fh, attributes });
    let answer = world.call(reader.client, &asked);
    let Reply::GetFsAttr(reply) = answer.reply().unwrap() else { panic!() };
    assert_eq!(reply.attributes.x_optimistic, Some(true));
    world.end();
}

#[test]
fn blocks_that_direct_reads_ask_for_are_shown() {
    let mut world = World::new(showing());
    let reader = Reader::reading(&mut world, 2, "a", read_directly);
    let content = pattern(3 * BLOCK + 100, 3);
    let blocks: Vec<_> = content.chunks(BLOCK).map(|block| Some(block.to_vec())).collect();
    assert_eq!(reader.blocks(&mut world), blocks);
    world.end();
}

/// A client does not wait while blocks are copied for its later reads.
#[test]
fn an_answer_leaves_before_blocks_are_filled() {
    let mut world = World::new(showing());
    let (client, session) = session(&mut world, 2, "a", SessionOptions::default());
    let file = world.open(client, b"f");
    let content = pattern(3 * BLOCK + 100, 3);
    world.write(client, file, 0, &content);
    let _channel = channel(&mut world, client, session);
    assert_ne!(ask(&mut world, client, get(file, 1)).0, 0);
    let counts = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    let (network, seen) = (world.network.clone(), counts.clone());
    // The events to come before the request has an answer.
    let before = AtomicUsize::new(usize::MAX);
    world.disk.on_read(move |bytes| {
        // The request itself reads more than a block, and less at the end of the file.
        if bytes > BLOCK {
            before.store(network.scheduled(), Ordering::Relaxed);
        } else if bytes == BLOCK {
            let has_left = network.scheduled() > before.load(Ordering::Relaxed);
            seen[usize::from(has_left)].fetch_add(1, Ordering::Relaxed);
        }
    });
    assert_eq!(world.read(client, file), content);
    let [early, behind] = [0, 1].map(|at: usize| counts[at].load(Ordering::Relaxed));
    assert!(behind >= 4, "{behind} fills");
    assert_eq!(early, 0, "fills before the answer has left");
    world.end();
}

/// Requests read here and there in a window. When they have asked for a quarter of its groups, the server fills
/// the others while it has no request.
#[test]
fn the_other_blocks_of_a_window_follow_while_there_is_no_request() {
    const GROUPS: u64 = 32;
    const GROUP_BLOCKS: u64 = 16;
    let mut world = World::new(showing());
    let (client, session) = session(&mut world, 2, "a", SessionOptions::default());
    let file = world.open(client, b"f");
    let blocks = GROUPS * GROUP_BLOCKS;
    world.write(client, file, 0, &pattern(blocks as usize * BLOCK, 3));
    let _channel = channel(&mut world, client, session);
    assert_ne!(ask(&mut world, client, get(file, 1)).0, 0);
    for asked in 0..GROUPS / 4 {
        assert_eq!(world.service.exposure_counts().published, asked * GROUP_BLOCKS);
        let offset = 4 * asked * GROUP_BLOCKS * BLOCK as u64;
        assert_eq!(world.status(client, &read_inline(file, offset, 100)), Status::Ok);
        world.settle();
    }
    let counts = world.service.exposure_counts();
    assert_eq!((counts.published, counts.wasted, counts.missed), (blocks, 0, GROUPS / 4));
    world.end();
}

#[test]
fn keys_are_good_on_their_channel_alone() {
    let mut world = World::new(showing());
    let reader = Reader::new(&mut world, 2, "a");
    let frames = *reader.segments.last().unwrap();
    let remote = RemoteBuffer { key: frames.key, address: frames.address, len: 100 };
    // On the connection of its own session.
    let (own, _) = session(&mut world, 4, "own", SessionOptions::default());
    assert_eq!(read(&mut world, own, remote), None);
    // On the channel of another session, which goes on.
    let (other, theirs) = session(&mut world, 3, "b", SessionOptions::default());
    let stranger = channel(&mut world, other, theirs);
    assert_eq!(read(&mut world, stranger, remote), None);
    assert_eq!(world.status(other, &Request::Null), Status::Ok);
    // On a channel of its own process that is not bound.
    let unbound = world.connect_beside(reader.client, 8, ByteOrder::Little);
    assert_eq!(read(&mut world, unbound, remote), None);
    assert!(reader.read(&mut world, remote).is_some());
    // Out of bounds, and for writing.
    let far = RemoteBuffer { address: frames.address + u64::from(frames.bytes) - 50, ..remote };
    for is_write in [false, true] {
        let beside = channel(&mut world, reader.client, reader.session);
        let answer = ask(&mut world, reader.client, get(reader.file, 1));
        let key = answer.2.last().unwrap().key;
        if is_write {
            let from = world.clients[beside].memory_of(&[9; 100]);
            world.clients[beside].rdma_write(&from, RemoteBuffer { key, ..remote });
        } else {
            assert_eq!(read(&mut world, beside, RemoteBuffer { key, ..far }), None);
        }
        world.settle();
        assert!(!is_open(&world, beside));
        assert_eq!(world.status(reader.client, &Request::Null), Status::Ok);
    }
    assert_eq!(world.read(reader.client, reader.file), pattern(3 * BLOCK + 100, 3));
    world.end();
}

#[test]
fn keys_end_after_the_close() {
    let mut world = World::new(showing());
    let reader = Reader::new(&mut world, 2, "a");
    // Another client keeps the file exposed.
    let (other, theirs) = session(&mut world, 3, "b", SessionOptions::default());
    let _channel = channel(&mut world, other, theirs);
    let kept = world.open(other, b"f");
    assert_eq!(ask(&mut world, other, get(kept, 1)).0, reader.exposure);
    assert_eq!(world.status(reader.client, &close(reader.file)), Status::Ok);
    world.pass(TICK);
    world.pass(TICK);
    let closed = Request::XExposeGet(get(reader.file, 1));
    assert_ne!(world.status(reader.client, &closed), Status::Ok);
    // This ends the channel.
    assert_eq!(reader.read(&mut world, reader.page), None);
    assert_eq!(world.status(reader.client, &Request::Null), Status::Ok);
    world.end();
}

#[test]
fn keys_stay_for_another_open_of_the_client() {
    let mut world = World::new(showing());
    let reader = Reader::new(&mut world, 2, "a");
    let request = open_request(world.root(), F, b"another owner");
    let other = world.open_with(reader.client, &request).unwrap();
    assert_ne!(other.id, reader.file.id);
    let (exposure, _, segments) = ask(&mut world, reader.client, get(other, 1));
    assert_eq!((exposure, &segments), (reader.exposure, &reader.segments));
    assert_eq!(world.status(reader.client, &close(reader.file)), Status::Ok);
    (0..2).for_each(|_| world.pass(TICK));
    assert!(reader.read(&mut world, reader.page).is_some());
    assert_eq!(world.status(reader.client, &close(other)), Status::Ok);
    (0..2).for_each(|_| world.pass(TICK));
    assert_eq!(reader.read(&mut world, reader.page), None);
    world.end();
}

/// The client may speak for any user.
#[test]
fn the_place_of_a_small_file_stays_after_its_close() {
    let mut world = World::new(showing());
    let (client, own) = session(&mut world, 2, "a", SessionOptions::default());
    let file = world.open(client, b"f");
    let content = pattern(BLOCK + 100, 3);
    world.write(client, file, 0, &content);
    let channel = channel(&mut world, client, own);
    let asked = Request::XExposeGet(dafs::XExposeGet { small: true, ..get(file, 1) });
    let answer = world.call(client, &asked);
    let Ok(Reply::XExposeGet(reply)) = answer.reply() else { panic!("{:?}", answer.status()) };
    let (base, windows) = (reply.base, reply.windows.iter().collect::<Vec<_>>());
    let index = reply.segments.iter().next().unwrap();
    assert!(base > 0 && base.is_multiple_of(16));
    assert_eq!((windows[0].window, index.kind), (base / 512, ExposedKind::Index));
    let at = u64::from(windows[0].page) * BLOCK as u64 + base % 512 * 8;
    let entries = RemoteBuffer { key: index.key, address: index.address + at, len: 16 };
    assert_eq!(world.read(client, file), content);
    assert_eq!(world.status(client, &close(file)), Status::Ok);
    (0..2).for_each(|_| world.pass(TICK));
    let words = read(&mut world, channel, entries).unwrap();
    let words = words.as_chunks::<8>().0.iter().map(|word| EntryWord(u64::from_le_bytes(*word)));
    let lengths: Vec<_> = words.map(|word| word.block().map(|block| block.bytes)).collect();
    assert_eq!(lengths, [Some(BLOCK), Some(100)]);
    assert_eq!(world.status(client, &Request::Disconnect), Status::Ok);
    world.settle();
    assert!(!is_open(&world, channel));
    world.end();
}

#[test]
fn after_the_last_close_nothing_is_there() {
    let mut world = World::new(showing());
    let reader = Reader::new(&mut world, 2, "a");
    assert_eq!(world.status(reader.client, &close(reader.file)), Status::Ok);
    // The key may stay for a moment, the content does not.
    for segment in &reader.segments {
        let (key, address) = (segment.key, segment.address);
        let found = reader.read(&mut world, RemoteBuffer { key, address, len: segment.bytes });
        assert!(found.is_none_or(|bytes| bytes.iter().all(|byte| *byte == 0)));
    }
    world.pass(TICK);
    world.pass(TICK);
    assert_eq!(reader.read(&mut world, reader.page), None);
    assert_eq!(world.exposed.as_ref().unwrap().used_bytes(), 0);
    world.end();
}

#[test]
fn a_fence_empties_the_memory_before_its_answer() {
    let mut world = World::new(showing());
    let reader = Reader::new(&mut world, 2, "a");
    let (manager, _) = session(&mut world, 3, "m", SessionOptions::default());
    let names: &[&[u8]] = &[b"nobody"];
    let fence = Request::SetFencingList(dafs::SetFencingList {
        fh: reader.file.fh,
        object: dafs::FenceObject::File,
        access: dafs::FenceAccess::Allow,
        update: dafs::FenceUpdate::Overwrite,
        list: Seq::new(names),
    });
    assert_eq!(world.status(manager, &fence), Status::Ok);
    for segment in &reader.segments {
        let (key, address) = (segment.key, segment.address);
        let found = reader.read(&mut world, RemoteBuffer { key, address, len: segment.bytes });
        assert!(found.is_some_and(|bytes| bytes.iter().all(|byte| *byte == 0)));
    }
    world.pass(TICK);
    world.pass(TICK);
    assert_eq!(reader.read(&mut world, reader.page), None);
    assert_eq!(world.exposed.as_ref().unwrap().used_bytes(), 0);
    world.end();
}

#[test]
fn channels_keep_the_rules_of_their_binding() {
    let mut world = World::new(showing());
    let (client, own) = session(&mut world, 2, "a", SessionOptions::default());
    let wrong = [
        (8, ChannelUse::BackControl, Status::Inval),
        (8, ChannelUse::RdmaRead, Status::RdmaReadChannelUnusable),
        (2, ChannelUse::Optimistic, Status::Inval),
    ];
    for (channel, channel_use, status) in wrong {
        let channel = world.connect_beside(client, channel, ByteOrder::Little);
        let bind = Request::ConnectBind(ConnectBind { channel_use, ..bind_request(own) });
        assert_eq!(world.status(channel, &bind), status);
    }
    let unbound = world.connect_beside(client, 8, ByteOrder::Little);
    assert_eq!(world.status(unbound, &bind(SessionId([9; 8]))), Status::UnknownSession);
    assert_eq!(world.status(unbound, &Request::Null), Status::NotAuthenticated);
    let first = channel(&mut world, client, own);
    // It takes no request, and another one replaces it.
    assert_eq!(world.status(first, &Request::Null), Status::IllegalState);
    let second = channel(&mut world, client, own);
    world.settle();
    assert!(!is_open(&world, first) && is_open(&world, second));
    assert_eq!(world.counts().optimistic_channels, 1);
    // A session with checksums has none.
    let (summed, theirs) = session(&mut world, 3, "b", CHECKED);
    let channel = world.connect_beside(summed, 8, ByteOrder::Little);
    assert_eq!(world.status(channel, &bind(theirs)), Status::NotSupp);
    // It ends with its session.
    assert_eq!(world.status(client, &Request::Disconnect), Status::Ok);
    world.settle();
    assert!(!is_open(&world, second));
    world.end();
}

#[test]
fn no_channel_is_offered_where_no_file_is_shown_to_other_hosts() {
    let local = ExportOptions { optimistic: OptimisticReads::Local, ..ExportOptions::default() };
    for setup in [Setup::default(), Setup { exports: vec![("", local)], ..showing() }] {
        let mut world = World::new(setup);
        let (client, _) = session(&mut world, 2, "a", SessionOptions::default());
        let channel = world.connect_beside(client, 8, ByteOrder::Little);
        let why = world.clients[channel].closed.clone().unwrap();
        assert!(why.contains("rejected"), "{why}");
        assert_eq!(world.status(client, &Request::Null), Status::Ok);
        world.end();
    }
}

#[test]
fn a_server_that_does_not_look_for_local_changes_answers_no_read() {
    let mut world = World::new(showing());
    let reader = Reader::new(&mut world, 2, "a");
    for _ in 0..4 {
        world.pass(TICK);
        assert!(reader.read(&mut world, reader.page).is_some());
    }
    world.pass(Duration::from_millis(1_100));
    assert!(!is_open(&world, reader.channel));
    assert_eq!(world.status(reader.client, &Request::Null), Status::Ok);
    // It has looked since.
    let again = channel(&mut world, reader.client, reader.session);
    let (_, _, segments) = ask(&mut world, reader.client, get(reader.file, 1));
    assert_ne!(segments[0].key, reader.segments[0].key, "keys are of one channel");
    assert!(is_open(&world, again));
    world.pass(Duration::from_millis(1_100));
    assert!(!is_open(&world, again));
    world.end();
}

#[test]
fn a_client_that_cannot_map_memory_is_shown_none() {
    let (mut world, client, file) = World::with_file(Setup::default());
    for windows in [1, EXPOSED_WINDOWS_MAX as u32] {
        let answer = world.call(client, &Request::XExposeGet(get(file, windows)));
        let (windows, segments) = (Seq::empty(), Seq::empty());
        let nothing = XExposeGetReply { exposure: 0, windows, segments, base: 0 };
        assert_eq!(answer.reply(), Ok(Reply::XExposeGet(nothing)));
    }
    for windows in [0, EXPOSED_WINDOWS_MAX as u32 + 1, u32::MAX] {
        let ask = Request::XExposeGet(get(file, windows));
        assert_eq!(world.status(client, &ask), Status::Inval);
    }
    let attributes = FsAttrMask::SUPPORTED_FSATTR | FsAttrMask::X_OPTIMISTIC;
    let ask = Request::GetFsAttr(dafs::GetFsAttr { fh: file.fh, attributes });
    let answer = world.call(client, &ask);
    let Reply::GetFsAttr(reply) = answer.reply().unwrap() else { panic!() };
    assert_eq!(reply.attributes.x_optimistic, Some(false));
    let supported = FsAttrMask(reply.attributes.supported_fsattr.unwrap());
    assert!(supported.contains(FsAttrMask::X_OPTIMISTIC));
    world.end();
}
