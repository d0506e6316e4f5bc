//! The blocks of a file that the service exposes: the input is opens and closes of two clients, their
//! reads, fills, changes of the file also in the middle of a fill, time, and another file that wants the
//! memory.
//!
//! Invariants that are checked
//! * Every entry that stands names a frame with the block as it is in the file.
//! * Each change of an entry yields another one.
//! * No fill goes to memory that was taken back, or that a client knows that has closed the file.
//! * After the last close nothing is exposed.

use crate::input::Input;
use dafs_mem::{Buffer, Site};
use dafs_service::{
    BLOCK_BYTES, BlockEntry, Caller, Client, Export, ExportOptions, ExposedFile, Fill, FramePlace,
    Handle, Host, Identity, Memory, Namespace, OpenHow, OpenRequest, Opened, OptimisticReads,
    PagePlace, SegmentKind, Service, ServiceConfig, Share, Squash, Subject, Want, WantKind,
};
use dafs_store::{
    CreateHow, Cred, MemoryStore, OpenFile, OpenMode, SetAttr, Stability, Store, Wait,
};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// The blocks that requests are about.
const BLOCKS: u64 = 6;

const STEPS_MAX: usize = 300;
const SECOND_NS: u64 = 1_000_000_000;
const BOTH: OpenMode = OpenMode { read: true, write: true };

/// Memory as clients see it.
#[derive(Default)]
struct Content {
    /// The segments that were not taken back.
    live: HashMap<u16, SegmentKind>,
    last: u16,
    frames: HashMap<FramePlace, Vec<u8>>,
    entries: HashMap<(PagePlace, usize), BlockEntry>,
}

#[derive(Default)]
struct Shown(Mutex<Content>);

impl Memory for Shown {
    fn add(&self, kind: SegmentKind, _is_first: bool) -> Option<(u16, usize)> {
        let mut content = self.0.lock().unwrap();
        // Fewer frames than blocks, and a page for each file.
        let (most, places) = if kind == SegmentKind::Frames { (2, 2) } else { (2, 1) };
        if content.live.values().filter(|known| **known == kind).count() == most {
            return None;
        }
        content.last += 1;
        let number = content.last;
        content.live.insert(number, kind);
        Some((number, places))
    }

    fn store(&self, page: PagePlace, at: usize, entry: BlockEntry) {
        let mut content = self.0.lock().unwrap();
        assert_eq!(content.live.get(&page.segment), Some(&SegmentKind::Index));
        if let Some((place, _)) = entry.block {
            assert_eq!(content.live.get(&place.segment), Some(&SegmentKind::Frames));
        }
        let former = content.entries.insert((page, at), entry).unwrap_or_default();
        assert_ne!(former, entry, "an entry that does not change");
    }

    fn discard(&self, segment: u16) {
        let mut content = self.0.lock().unwrap();
        assert!(content.live.remove(&segment).is_some());
        content.entries.retain(|(page, _), _| page.segment != segment);
        content.frames.retain(|place, _| place.segment != segment);
    }

    fn is_scarce(&self) -> bool {
        false
    }

    fn looked(&self, _now_ns: u64) {}
}

/// An open of a client, with its exposure if there is one.
struct Open {
    opened: Opened,
    file: Arc<dyn OpenFile>,
    exposed: Option<Arc<ExposedFile>>,
}

/// A change of the file.
#[derive(Debug, Clone, Copy)]
enum Change {
    Write { offset: u64, bytes: usize, value: u8 },
    Resize { size: u64 },
}

struct World<'a> {
    input: Input<'a>,
    service: Service,
    shown: Arc<Shown>,
    /// The file, past the service.
    content: Arc<dyn OpenFile>,
    root: Handle,
    cred: Cred,
    clients: [Arc<Client>; 2],
    opens: [Option<Open>; 2],
    /// The open of another file by the first client, and the pages that this file had.
    other: Option<Opened>,
    other_pages: HashSet<PagePlace>,
    fills: Vec<(Arc<ExposedFile>, Fill)>,
    /// Segments that a client knows which has closed the file.
    left: Vec<u16>,
    now_ns: u64,
}

fn caller<'a>(client: &'a Arc<Client>, cred: &'a Cred, now_ns: u64) -> Caller<'a> {
    Caller { client, cred, subject: Subject::Server, wait: Wait::Allowed, now_ns }
}

fn apply(file: &dyn OpenFile, change: Change) {
    match change {
        Change::Write { offset, bytes, value } => {
            let buffer = Buffer::zeroed(bytes).unwrap();
            buffer.view().fill(value);
            let view = [buffer.view()];
            let written = file.write_at(&view, offset, Stability::Unstable, Wait::Allowed);
            assert_eq!(written, Ok(bytes));
        }
        Change::Resize { size } => file.set_size(size).unwrap(),
    }
}

/// The bytes of a block of the file.
fn block_of(file: &dyn OpenFile, block: u64) -> Vec<u8> {
    let buffer = Buffer::zeroed(BLOCK_BYTES).unwrap();
    let count = file.read_at(&[buffer.view()], block * BLOCK, Wait::Allowed).unwrap();
    buffer.slice(0, count).unwrap().to_vec(Site::Inspect)
}

impl<'a> World<'a> {
    fn new(input: Input<'a>) -> Self {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
        let optimistic = OptimisticReads::Remote;
        let options = ExportOptions { squash: Squash::None, optimistic, ..Default::default() };
        let cred = Cred::new(0, 0);
        let made =
            store.create(&cred, &store.root(), b"f", CreateHow::Guarded, &SetAttr::default(), BOTH);
        let content = made.unwrap().file;
        let namespace = Namespace::new(vec![Export::new("", store, options)]).unwrap();
        let service = Service::new(ServiceConfig::new(Duration::from_secs(3600), 1), namespace);
        let shown = Arc::new(Shown::default());
        service.start_exposure(shown.clone());
        let now_ns = SECOND_NS;
        let client = |name: &[u8]| {
            let identity = Identity { mechanism: "none", principal: Vec::new() };
            let client = service.register_client(name, 1, identity, Host::default(), now_ns);
            client.unwrap().client
        };
        let (clients, root) = ([client(b"a"), client(b"b")], service.root());
        Self {
            input,
            service,
            shown,
            content,
            root,
            cred,
            clients,
            opens: [None, None],
            other: None,
            other_pages: HashSet::new(),
            fills: Vec::new(),
            left: Vec::new(),
            now_ns,
        }
    }

    fn choose(&mut self, count: usize) -> usize {
        usize::from(self.input.byte()) % count
    }

    fn change(&mut self) -> Change {
        let at = u64::from(self.input.short()) % (BLOCKS * BLOCK);
        match self.input.byte() {
            value @ 0..=199 => {
                let bytes = 1 + usize::from(self.input.short()) % 9000;
                Change::Write { offset: at, bytes, value }
            }
            _ => Change::Resize { size: at },
        }
    }

    /// Opens a file, which is made if there is none.
    fn opened(&self, number: usize, name: &[u8]) -> Opened {
        let how = OpenHow::Create(CreateHow::Unchecked, SetAttr::default());
        let share = Share { read: true, write: true, deny_read: false, deny_write: false };
        let request = OpenRequest::by_name(&self.root, name, b"owner", share, how);
        let want = Want { kind: WantKind::None, ..Want::default() };
        let caller = caller(&self.clients[number], &self.cred, self.now_ns);
        self.service.opens.open(caller, &OpenRequest { want, ..request }).unwrap()
    }

    /// Opens the file for a client, and exposes it.
    fn open(&mut self, number: usize) {
        let is_remote = self.input.byte() % 2 == 1;
        let caller = caller(&self.clients[number], &self.cred, self.now_ns);
        let known = self.opens[number].take();
        let opened = known.map(|open| (open.opened, open.file));
        let (opened, file) = opened.unwrap_or_else(|| {
            let opened = self.opened(number, b"f");
            let (handle, state) = (*opened.state.handle(), opened.state.reference());
            let file = self.service.opens.io_file(caller, &handle, state, BOTH).unwrap();
            (opened, file)
        });
        let (handle, state) = (*opened.state.handle(), opened.state.reference());
        let exposed = self.service.expose(caller, &handle, state, is_remote).unwrap();
        if let Some(exposed) = &exposed {
            let _ = exposed.page(0);
        }
        self.opens[number] = Some(Open { opened, file, exposed });
    }

    fn close(&mut self, number: usize) {
        let Some(Open { opened, exposed, .. }) = self.opens[number].take() else { return };
        self.left.extend(exposed.iter().flat_map(|exposed| exposed.segments(0, Some)));
        self.end(number, &opened);
    }

    fn end(&self, number: usize, opened: &Opened) {
        let caller = caller(&self.clients[number], &self.cred, self.now_ns);
        let (handle, state) = (*opened.state.handle(), opened.state.reference());
        self.service.opens.close(caller, &handle, state).unwrap();
    }

    /// A request reads blocks.
    fn read(&mut self, number: usize) {
        let (block, blocks) = (self.choose(BLOCKS as usize) as u64, 1 + self.choose(3) as u64);
        let Some(open) = &self.opens[number] else { return };
        let range = (block * BLOCK, blocks * BLOCK);
        let noted = self.service.note_read(&open.opened.state, range, self.now_ns);
        let Some((exposed, fills)) = noted else { return };
        for fill in fills {
            assert!(!self.left.contains(&fill.place.segment), "a frame that is known to others");
            self.fills.push((exposed.clone(), fill));
        }
    }

    /// Ends a fill. The file may change before its block is read, or after that.
    fn fill(&mut self) {
        let at = self.choose(self.fills.len().max(1));
        let changes = [0, 1].map(|_| self.input.byte().is_multiple_of(4).then(|| self.change()));
        if at >= self.fills.len() {
            return;
        }
        let (exposed, fill) = self.fills.swap_remove(at);
        let writer = self.opens.iter().flatten().next().map(|open| open.file.clone());
        let change = |change: Option<Change>| {
            if let (Some(writer), Some(change)) = (&writer, change) {
                apply(&**writer, change);
            }
        };
        let read = || {
            change(changes[0]);
            let bytes = block_of(&*self.content, fill.block);
            let count = bytes.len();
            let mut content = self.shown.0.lock().unwrap();
            let segment = fill.place.segment;
            assert!(content.live.contains_key(&segment), "memory that was taken back");
            assert!(!self.left.contains(&segment), "a client that has closed the file sees more");
            content.frames.insert(fill.place, bytes);
            drop(content);
            change(changes[1]);
            count
        };
        exposed.fill(fill, read);
    }

    /// Requests read the first block of another file twice, which needs memory.
    fn want(&mut self) {
        let opened = self.other.take().unwrap_or_else(|| self.opened(0, b"g"));
        let caller = caller(&self.clients[0], &self.cred, self.now_ns);
        let (handle, state) = (*opened.state.handle(), opened.state.reference());
        if let Some(exposed) = self.service.expose(caller, &handle, state, false).unwrap() {
            match exposed.page(0) {
                Some(page) => {
                    self.other_pages.insert(page);
                }
                None => self.service.make_room_for_exposed(&exposed),
            }
        }
        for _ in 0..2 {
            let noted = self.service.note_read(&opened.state, (0, BLOCK), self.now_ns);
            let Some((exposed, fills)) = noted else { continue };
            for fill in fills {
                exposed.fill(fill, || {
                    let mut content = self.shown.0.lock().unwrap();
                    let is_live = content.live.contains_key(&fill.place.segment);
                    assert!(is_live, "memory that was taken back");
                    content.frames.insert(fill.place, vec![0; BLOCK_BYTES]);
                    if fill.is_neighbour { 0 } else { BLOCK_BYTES }
                });
            }
        }
        self.other = Some(opened);
    }

    fn step(&mut self) {
        let choice = self.input.byte();
        let number = usize::from(choice >> 7);
        match choice & 15 {
            0..=2 => {
                let change = self.change();
                if let Some(open) = &self.opens[number] {
                    apply(&*open.file, change);
                }
            }
            3 | 4 => self.open(number),
            5 => self.close(number),
            6..=10 => self.read(number),
            11..=13 => self.fill(),
            14 => {
                let spans = [SECOND_NS / 1000, SECOND_NS, 5 * SECOND_NS, 31 * SECOND_NS];
                self.now_ns += spans[self.choose(spans.len())];
                self.clients.iter().for_each(|client| client.renew(self.now_ns));
            }
            _ if self.input.byte().is_multiple_of(4) => self.service.stop_exposure(),
            _ => self.want(),
        }
    }

    /// Compares every entry of the file that stands with it.
    fn check(&self) {
        let content = self.shown.0.lock().unwrap();
        let is_own = |page: &PagePlace| !self.other_pages.contains(page);
        for ((_, at), entry) in content.entries.iter().filter(|((page, _), _)| is_own(page)) {
            let Some((place, bytes)) = &entry.block else { continue };
            let wanted = block_of(&*self.content, *at as u64);
            assert_eq!(*bytes, wanted.len(), "the bytes of block {at}");
            assert!(content.frames[place] == wanted, "the content of block {at}");
        }
    }
}

pub fn run(data: &[u8]) {
    let mut world = World::new(Input(data));
    for _ in 0..STEPS_MAX {
        if world.input.is_empty() {
            break;
        }
        world.step();
        world.check();
    }
    world.close(0);
    world.close(1);
    if let Some(other) = world.other.take() {
        world.end(0, &other);
    }
    assert_eq!(world.service.exposure_counts().files, 0);
    assert!(world.shown.0.lock().unwrap().live.is_empty(), "memory that nobody took back");
}
