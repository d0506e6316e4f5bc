//! Blocks that clients read without a request: every change takes them away first, and so does the
//! end of the right to read.

use crate::common::*;
use crate::kept_locks::{PERSIST, try_lock};
use dafs_mem::{Buffer, Site};
use dafs_service::{
    BLOCK_BYTES, BlockEntry, Client, ExportOptions, ExposedFile, FenceObject, FenceRight,
    FenceUpdate, Fill, FramePlace, Handle, LockKind, Memory, Opened, OptimisticReads, PagePlace,
    SegmentKind, ServiceError, Squash,
};
use dafs_store::{OpenFile, OpenMode, SetAttr, Stability, Wait};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

pub(crate) const BLOCK: u64 = BLOCK_BYTES as u64;
pub(crate) const FULL: Option<usize> = Some(BLOCK_BYTES);

/// Memory without content: entries alone.
#[derive(Default)]
pub(crate) struct Shown {
    pub(crate) entries: Mutex<HashMap<(PagePlace, usize), BlockEntry>>,
    segments: AtomicU16,
    pub(crate) discarded: Mutex<Vec<u16>>,
    /// There is memory for as many segments of frames alone as were discarded.
    is_full: AtomicBool,
    /// The same for window pages.
    lacks_pages: AtomicBool,
    returned: AtomicUsize,
    is_plentiful: AtomicBool,
    /// Runs once, before the next entry is stored.
    before_store: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Shown {
    pub(crate) fn is_shown(&self, page: PagePlace, at: usize) -> bool {
        let entries = self.entries.lock().unwrap();
        entries.get(&(page, at)).is_some_and(|entry| entry.block.is_some())
    }
}

impl Memory for Shown {
    fn add(&self, kind: SegmentKind, _is_first: bool) -> Option<(u16, usize)> {
        let places = kind.places(kind == SegmentKind::Index);
        let less = |returned: usize| returned.checked_sub(1);
        let is_full = match kind {
            SegmentKind::Frames => &self.is_full,
            SegmentKind::Index => &self.lacks_pages,
        };
        if is_full.load(Ordering::Relaxed) {
            let order = Ordering::Relaxed;
            self.returned.fetch_update(order, order, less).ok()?;
        }
        Some((self.segments.fetch_add(1, Ordering::Relaxed), places))
    }

    fn store(&self, page: PagePlace, at: usize, entry: BlockEntry) {
        let before_store = self.before_store.lock().unwrap().take();
        if let Some(before_store) = before_store {
            before_store();
        }
        self.entries.lock().unwrap().insert((page, at), entry);
    }

    fn discard(&self, segment: u16) {
        self.discarded.lock().unwrap().push(segment);
        self.returned.fetch_add(1, Ordering::Relaxed);
    }

    fn is_scarce(&self) -> bool {
        !self.is_plentiful.load(Ordering::Relaxed)
    }

    fn looked(&self, _now_ns: u64) {}
}

struct Exposed {
    world: World,
    client: Arc<Client>,
    opened: Opened,
    file: Arc<dyn OpenFile>,
    shown: Arc<Shown>,
    exposed: Arc<ExposedFile>,
    page: PagePlace,
}

pub(crate) fn optimistic() -> ExportOptions {
    let optimistic = OptimisticReads::Local;
    ExportOptions { squash: Squash::None, optimistic, ..ExportOptions::default() }
}

impl Exposed {
    /// A file of two blocks and a part of a third, which are all shown.
    fn new() -> Self {
        let world = World::new();
        world.serve_by(optimistic());
        let shown = Arc::new(Shown::default());
        world.service.start_exposure(shown.clone());
        let client = world.dafs("a");
        let opened = world.open(&client, "f", BOTH).unwrap();
        let handle = *opened.state.handle();
        let mode = OpenMode { read: true, write: true };
        let state = opened.state.reference();
        let caller = world.patient(&client);
        let file = world.service.opens.io_file(caller, &handle, state, mode).unwrap();
        write(&*file, 0, 2 * BLOCK_BYTES + 100);
        let exposed = expose(&world, &client, &opened).unwrap().unwrap();
        let page = exposed.page(0).unwrap();
        let exposed = Self { world, client, opened, file, shown, exposed, page };
        let ended: Vec<bool> = exposed.begin().into_iter().map(|fill| exposed.end(fill)).collect();
        assert_eq!(ended, [true; 3]);
        assert_eq!(exposed.entries(), [FULL, FULL, Some(100)]);
        exposed
    }

    fn handle(&self) -> &Handle {
        self.opened.state.handle()
    }

    /// Has blocks filled that requests read twice.
    fn begin(&self) -> Vec<Fill> {
        let note = || {
            let now_ns = self.world.now_ns.get();
            self.world.service.note_read(&self.opened.state, (0, 3 * BLOCK), now_ns)
        };
        let _ = note();
        note().map(|(_, fills)| fills).unwrap_or_default()
    }

    fn end(&self, fill: Fill) -> bool {
        let size = self.file.attr().unwrap().size;
        let bytes = size.saturating_sub(fill.block * BLOCK).min(BLOCK) as usize;
        self.exposed.fill(fill, || bytes)
    }

    /// The bytes of the blocks that are shown.
    fn entries(&self) -> [Option<usize>; 3] {
        let shown = self.shown.entries.lock().unwrap();
        let entry = |at| shown.get(&(self.page, at)).and_then(|entry| entry.block);
        [0, 1, 2].map(|at| entry(at).map(|(_, bytes)| bytes))
    }

    fn discarded(&self) -> usize {
        self.shown.discarded.lock().unwrap().len()
    }
}

fn expose(
    world: &World,
    client: &Arc<Client>,
    opened: &Opened,
) -> dafs_service::Result<Option<Arc<ExposedFile>>> {
    let state = opened.state.reference();
    world.service.expose(world.patient(client), opened.state.handle(), state, false)
}

pub(crate) fn write(file: &dyn OpenFile, offset: u64, bytes: usize) {
    let buffer = Buffer::zeroed(bytes).unwrap();
    buffer.view().copy_from(&vec![7; bytes], Site::Inspect);
    let view = [buffer.view()];
    assert_eq!(file.write_at(&view, offset, Stability::Unstable, Wait::Allowed), Ok(bytes));
}

#[test]
fn a_change_takes_its_blocks_away_and_the_end_of_the_file_before_it() {
    let exposed = Exposed::new();
    write(&*exposed.file, BLOCK + 5, 1);
    assert_eq!(exposed.entries(), [FULL, None, Some(100)]);
    let exposed = Exposed::new();
    write(&*exposed.file, BLOCK - 1, 2);
    assert_eq!(exposed.entries(), [None, None, Some(100)]);
    // A hole behind the end makes the last block longer.
    let exposed = Exposed::new();
    write(&*exposed.file, 100 * BLOCK, 1);
    assert_eq!(exposed.entries(), [FULL, FULL, None]);
    let exposed = Exposed::new();
    let buffer = Buffer::zeroed(10).unwrap();
    exposed.file.append(&[buffer.view()], Stability::Data).unwrap();
    assert_eq!(exposed.entries(), [FULL, FULL, None]);
}

#[test]
fn a_change_of_the_size_takes_blocks_away_by_every_way() {
    let exposed = Exposed::new();
    exposed.file.set_size(BLOCK + 1).unwrap();
    assert_eq!(exposed.entries(), [FULL, None, None]);
    let exposed = Exposed::new();
    exposed.file.set_size(9 * BLOCK).unwrap();
    assert_eq!(exposed.entries(), [FULL, FULL, None]);
    let exposed = Exposed::new();
    let (world, client) = (&exposed.world, &exposed.client);
    let change = SetAttr { size: Some(1), ..SetAttr::default() };
    let state = exposed.opened.state.reference();
    world.service.setattr(world.patient(client), exposed.handle(), state, &change).unwrap();
    assert_eq!(exposed.entries(), [None; 3]);
}

#[test]
fn a_fill_whose_block_changes_meanwhile_is_not_shown() {
    let exposed = Exposed::new();
    write(&*exposed.file, 0, 2 * BLOCK_BYTES);
    let fills = exposed.begin();
    assert_eq!(fills.iter().map(|fill| fill.block).collect::<Vec<_>>(), [0, 1]);
    write(&*exposed.file, 0, 1);
    let shown: Vec<bool> = fills.into_iter().map(|fill| exposed.end(fill)).collect();
    assert_eq!(shown, [false, true]);
    assert_eq!(exposed.entries(), [None, FULL, Some(100)]);
    let counts = exposed.world.service.exposure_counts();
    assert_eq!((counts.published, counts.wasted), (4, 1));
}

/// While memory is plentiful, one request is enough.
#[test]
fn blocks_next_to_a_wanted_one_come_along() {
    let exposed = Exposed::new();
    write(&*exposed.file, 0, 2 * BLOCK_BYTES);
    exposed.shown.is_plentiful.store(true, Ordering::Relaxed);
    let (world, state) = (&exposed.world, &exposed.opened.state);
    let (_, fills) = world.service.note_read(state, (BLOCK, 1), world.now_ns.get()).unwrap();
    let blocks: Vec<_> = fills.iter().map(|fill| (fill.block, fill.is_neighbour)).collect();
    // Block 2 is shown already. The file has no other ones.
    assert_eq!((blocks[0], blocks[1], blocks[14]), ((1, false), (3, true), (0, true)));
    let shown: Vec<bool> = fills.into_iter().map(|fill| exposed.end(fill)).collect();
    assert_eq!(shown.iter().filter(|is_shown| **is_shown).count(), 2);
    assert_eq!(exposed.entries(), [FULL, FULL, Some(100)]);
    assert_eq!(world.service.exposure_counts().wasted, 0);
}

/// The server sees no hits. Readers that are still there ask again.
#[test]
fn memory_for_which_no_request_has_asked_for_long_is_taken_back() {
    let exposed = Exposed::new();
    let (world, client) = (&exposed.world, &exposed.client);
    for is_shown in [true, false] {
        world.pass_with(&[client], 400 * SECOND_NS);
        let expected = if is_shown { [FULL, FULL, Some(100)] } else { [None; 3] };
        assert_eq!(exposed.entries(), expected);
    }
    let counts = world.service.exposure_counts();
    assert_eq!((counts.files, counts.withdrawn), (0, 1));
    assert!(exposed.discarded() > 0);
    let again = expose(world, client, &exposed.opened).unwrap().unwrap();
    assert_ne!(again.id(), exposed.exposed.id());
}

#[test]
fn a_panic_leaves_no_fill_under_way() {
    let exposed = Exposed::new();
    write(&*exposed.file, 0, 2 * BLOCK_BYTES + 100);
    let fills = exposed.begin();
    let count = fills.len();
    assert!(count > 0);
    let fill_all = || {
        for fill in exposed.exposed.begun(fills) {
            exposed.exposed.fill(fill, || panic!("on purpose"));
        }
    };
    catch_unwind(AssertUnwindSafe(fill_all)).unwrap_err();
    assert_eq!(exposed.entries(), [None; 3]);
    let note = || {
        let now_ns = exposed.world.now_ns.get();
        exposed.world.service.note_read(&exposed.opened.state, (0, 3 * BLOCK), now_ns)
    };
    let again = [note(), note()].into_iter().flatten().flat_map(|(_, fills)| fills);
    let ended: Vec<bool> = again.map(|fill| exposed.end(fill)).collect();
    assert_eq!(ended, vec![true; count]);
}

/// Returns the frame of a block before and after a change of it. The client's sessions map its memory,
/// and one reads it by RDMA, too, if `is_remote`.
fn frames_around_a_change(is_remote: bool) -> [FramePlace; 2] {
    let exposed = Exposed::new();
    let (world, client, state) = (&exposed.world, &exposed.client, &exposed.opened.state);
    world.serve_by(ExportOptions { optimistic: OptimisticReads::Remote, ..optimistic() });
    let file = expose(world, client, &exposed.opened).unwrap().unwrap();
    assert!(file.page(0).is_some());
    let show = || {
        let fills = exposed.begin();
        let place = fills.iter().find(|fill| fill.block == 0).map(|fill| fill.place);
        assert!(fills.into_iter().all(|fill| file.fill(fill, || BLOCK_BYTES)));
        place.unwrap()
    };
    let before = show();
    let caller = world.patient(client);
    let again = world.service.expose(caller, exposed.handle(), state.reference(), is_remote);
    assert!(Arc::ptr_eq(&again.unwrap().unwrap(), &file), "it has a grant already");
    write(&*exposed.file, 0, 1);
    [before, show()]
}

#[test]
fn a_frame_that_a_reader_by_rdma_may_know_rests() {
    let [before, after] = frames_around_a_change(false);
    assert_eq!(before, after);
    let [before, after] = frames_around_a_change(true);
    assert_ne!(before, after);
}

/// Another file of the same client, which has a window page and no frames, and the next one that a
/// request reads twice.
struct Other<'a> {
    exposed: &'a Exposed,
    opened: Opened,
}

impl<'a> Other<'a> {
    fn new(exposed: &'a Exposed) -> Self {
        let (world, client) = (&exposed.world, &exposed.client);
        exposed.shown.is_full.store(true, Ordering::Relaxed);
        let opened = world.open(client, "other", BOTH).unwrap();
        let other = expose(world, client, &opened).unwrap().unwrap();
        assert!(other.page(0).is_some());
        let other = Self { exposed, opened };
        assert!(!other.gets_frames(), "there is no memory");
        assert_eq!(exposed.entries(), [None; 3], "the other file is to give some");
        other
    }

    /// Some seconds later a request reads the first block twice.
    fn gets_frames(&self) -> bool {
        let world = &self.exposed.world;
        world.now_ns.set(world.now_ns.get() + 5_000_000_000);
        let note = || {
            let noted = world.service.note_read(&self.opened.state, (0, 1), world.now_ns.get());
            noted.is_some_and(|(_, fills)| !fills.is_empty())
        };
        let notes = [note(), note(), note()];
        notes.contains(&true)
    }
}

#[test]
fn a_file_gets_memory_that_requests_for_another_one_do_not_use() {
    let exposed = Exposed::new();
    let other = Other::new(&exposed);
    assert!(other.gets_frames());
    assert_eq!((exposed.entries(), exposed.discarded()), ([None; 3], 1));
    let counts = exposed.world.service.exposure_counts();
    assert_eq!((counts.given, counts.evicted, counts.restored), (1, 3, 0));
}

#[test]
fn blocks_that_requests_ask_for_come_back_and_stay_for_some_time() {
    let exposed = Exposed::new();
    let other = Other::new(&exposed);
    assert_eq!(exposed.begin(), []);
    assert_eq!(exposed.entries(), [FULL, FULL, None], "the end of the file is read anew");
    assert!(!other.gets_frames());
    assert_eq!(exposed.entries()[..2], [FULL, FULL]);
    let counts = exposed.world.service.exposure_counts();
    assert_eq!((counts.given, counts.restored), (0, 2));
    // A file with more than its share does not keep all for ever.
    let is_given = (0..100).any(|_| {
        exposed.begin();
        other.gets_frames()
    });
    assert!(is_given);
    assert_eq!(exposed.world.service.exposure_counts().given, 1);
}

/// The first segment of pages has those of windows 0 to 15, and takes 320 KiB. Frames take 1 MiB.
#[test]
fn windows_that_no_read_needs_get_pages_while_these_are_a_small_part() {
    let exposed = Exposed::new();
    let file = &exposed.exposed;
    // Memory is scarce.
    assert!((0..16).all(|window| file.spare_page(window).is_some()));
    assert!(file.spare_page(16).is_some(), "pages are less than a quarter of its memory");
    assert_eq!((file.spare_page(17), file.spare_page(16)), (None, file.page(16)));
    assert!(file.page(17).is_some() && file.spare_page(17).is_some());
    exposed.shown.is_plentiful.store(true, Ordering::Relaxed);
    assert!((18..40).all(|window| file.spare_page(window).is_some()));
}

#[test]
fn a_file_gives_frames_for_window_pages_of_its_own() {
    let exposed = Exposed::new();
    exposed.shown.lacks_pages.store(true, Ordering::Relaxed);
    let world = &exposed.world;
    let page = |window| exposed.exposed.page(window);
    // The next window finds no page some seconds later.
    let look = || {
        world.now_ns.set(world.now_ns.get() + 5_000_000_000);
        assert_eq!(exposed.begin(), []);
        assert_eq!(page(16), None);
        world.service.make_room_for_exposed(&exposed.exposed);
    };
    assert!((1..16).all(|window| page(window).is_some()));
    look();
    assert_eq!((exposed.entries(), exposed.discarded()), ([None; 3], 0));
    look();
    assert_eq!((exposed.entries(), exposed.discarded()), ([None; 3], 1));
    assert!(page(16).is_some());
}

#[test]
fn the_close_of_the_last_open_takes_everything_back() {
    let exposed = Exposed::new();
    write(&*exposed.file, 0, 1);
    let fills = exposed.begin();
    exposed.world.close(&exposed.client, &exposed.opened);
    assert_eq!((exposed.entries(), exposed.discarded()), ([None; 3], 2));
    assert!(fills.into_iter().all(|fill| !exposed.end(fill)));
    assert_eq!((exposed.begin(), exposed.exposed.page(1)), (vec![], None));
    assert_eq!(exposed.entries(), [None; 3]);
    assert_eq!(exposed.world.service.exposure_counts().files, 0);
}

#[test]
fn a_write_beside_the_end_of_an_exposure_waits_until_its_block_is_taken_away() {
    let exposed = Exposed::new();
    let (file, shown, page) = (exposed.file.clone(), exposed.shown.clone(), exposed.page);
    let started: Arc<Mutex<Option<JoinHandle<bool>>>> = Arc::default();
    let writer = started.clone();
    *exposed.shown.before_store.lock().unwrap() = Some(Box::new(move || {
        let thread = std::thread::spawn(move || {
            write(&*file, 0, 1);
            shown.is_shown(page, 0)
        });
        // A writer that does not wait has this much time to be found out.
        for _ in 0..50 {
            if !thread.is_finished() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        *writer.lock().unwrap() = Some(thread);
    }));
    exposed.world.close(&exposed.client, &exposed.opened);
    let thread = started.lock().unwrap().take().expect("an entry was taken away");
    assert!(!thread.join().unwrap(), "the block is shown after the write");
}

#[test]
fn a_client_that_has_closed_the_file_is_shown_nothing_new() {
    let exposed = Exposed::new();
    let (world, other) = (&exposed.world, exposed.world.dafs("b"));
    let opened = world.open(&other, "f", READ).unwrap();
    let known = expose(world, &other, &opened).unwrap().unwrap();
    assert!(Arc::ptr_eq(&known, &exposed.exposed));
    world.close(&other, &opened);
    assert_eq!(exposed.entries(), [FULL, FULL, Some(100)], "the other could have kept these");
    write(&*exposed.file, 0, 1);
    assert_eq!(exposed.begin(), []);
    assert_eq!((exposed.entries(), exposed.discarded()), ([None; 3], 2));
    // The first client asks again, and gets other memory.
    let again = expose(world, &exposed.client, &exposed.opened).unwrap().unwrap();
    assert!(again.page(0).is_some_and(|page| page != exposed.page));
}

#[test]
fn the_end_of_a_lease_and_of_the_right_to_read_take_the_memory_back() {
    let exposed = Exposed::new();
    exposed.world.pass_with(&[], 2 * LEASE_NS);
    exposed.world.service.tick(exposed.world.now_ns.get());
    assert_eq!((exposed.entries(), exposed.discarded()), ([None; 3], 2));
    let exposed = Exposed::new();
    let (world, client) = (&exposed.world, &exposed.client);
    let state = exposed.opened.state.reference();
    let caller = world.patient(client);
    world.service.opens.downgrade(caller, exposed.handle(), state, WRITE, None).unwrap();
    assert_eq!((exposed.entries(), exposed.discarded()), ([None; 3], 2));
    let refused = expose(world, client, &exposed.opened);
    assert_eq!(refused.err(), Some(ServiceError::OpenMode));
}

#[test]
fn a_fence_takes_the_memory_back_before_it_holds() {
    let exposed = Exposed::new();
    let (world, handle) = (&exposed.world, *exposed.handle());
    let fence = |object, update| {
        world.service.set_fence(FenceRight::Administrator, &object, update, Box::new(|| {}))
    };
    fence(FenceObject::File(handle), FenceUpdate::Install(&[b"n1"])).unwrap();
    assert_eq!((exposed.entries(), exposed.discarded()), ([None; 3], 2));
    let none = || expose(world, &exposed.client, &exposed.opened).unwrap().is_none();
    assert!(none(), "a file with a fence");
    fence(FenceObject::File(handle), FenceUpdate::Lift).unwrap();
    assert!(!none());
    fence(FenceObject::FileSystem(handle.fs), FenceUpdate::Install(&[b"n1"])).unwrap();
    assert_eq!(world.service.exposure_counts().files, 0);
    assert!(none(), "a file system with a fence");
}

#[test]
fn a_broken_lock_takes_the_memory_back() {
    let exposed = Exposed::new();
    let world = &exposed.world;
    let holder = world.instance("holder", 1);
    let opened = world.open_patiently(&holder, "f", BOTH).unwrap();
    try_lock(world, &holder, &opened, (10, 10), LockKind::Write, PERSIST).unwrap();
    assert_eq!(exposed.entries(), [FULL, FULL, Some(100)]);
    world.instance("holder", 2);
    assert_eq!((exposed.entries(), exposed.discarded()), ([None; 3], 2));
    assert!(expose(world, &exposed.client, &exposed.opened).unwrap().is_none());
}

#[test]
fn only_an_export_that_says_so_exposes_files() {
    let exposed = Exposed::new();
    let (world, client) = (&exposed.world, &exposed.client);
    let opened = world.open(client, "other", BOTH).unwrap();
    world.serve_by(ExportOptions { optimistic: OptimisticReads::Off, ..optimistic() });
    assert_eq!(exposed.entries(), [None; 3], "the rules have changed");
    assert!(expose(world, client, &opened).unwrap().is_none());
    world.serve_by(optimistic());
    assert!(expose(world, client, &opened).unwrap().is_some());
    let (handle, state) = (*opened.state.handle(), opened.state.reference());
    let remotely = || world.service.expose(world.patient(client), &handle, state, true).unwrap();
    assert!(remotely().is_none() && !world.service.exposes_remotely());
    world.serve_by(ExportOptions { optimistic: OptimisticReads::Remote, ..optimistic() });
    assert!(world.service.exposes(&handle, false) && world.service.exposes_remotely());
    let shown = remotely().unwrap();
    assert!(opened.state.is_shown(shown.id()) && !opened.state.is_shown(shown.id() + 1));
    let for_writing = world.open(client, "third", WRITE).unwrap();
    let refused = expose(world, client, &for_writing);
    assert_eq!(refused.err(), Some(ServiceError::OpenMode));
}
