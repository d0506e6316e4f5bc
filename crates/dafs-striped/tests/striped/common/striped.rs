//! Striped stores to test with: metadata, three nodes and a list of removals below one directory.

use dafs_mem::VolatileSlice;
use dafs_posix::{PosixOptions, PosixStore};
use dafs_store::node::{ComponentHandle, ComponentId, DirectoryNode, Node, NodeSpace, Written};
use dafs_store::*;
use dafs_striped::{Clock, StripedOptions, StripedStore};
use dafs_testkit::stores::{READ_WRITE, World, is_root, me, secret, skipped, write};
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Bytes of a stripe.
pub(crate) const UNIT: u32 = 4096;
pub(crate) const UNIT64: u64 = UNIT as u64;

const STORE: [u8; 16] = [6; 16];

/// The clock of a store, which moves on when somebody sleeps, and its reports of lost data.
#[derive(Default)]
pub(crate) struct Surroundings {
    slept_ms: AtomicU64,
    lost: AtomicUsize,
}

impl Surroundings {
    /// Returns the number of reports that unstable data may be lost.
    pub(crate) fn lost(&self) -> usize {
        self.lost.load(Ordering::SeqCst)
    }
}

impl Clock for Surroundings {
    fn now(&self) -> Instant {
        Instant::now() + Duration::from_millis(self.slept_ms.load(Ordering::SeqCst))
    }

    fn sleep(&self, time: Duration) {
        self.slept_ms.fetch_add(time.as_millis() as u64, Ordering::SeqCst);
        std::thread::yield_now();
    }
}

pub(crate) fn node(base: &Path, number: u32) -> Arc<dyn Node> {
    let path = base.join(format!("node{number}"));
    std::fs::create_dir_all(&path).unwrap();
    DirectoryNode::make(&path, &STORE, number).unwrap();
    let address = format!("127.0.0.1:{}", 7000 + number).parse().unwrap();
    Arc::new(DirectoryNode::open(&path, &STORE, number, vec![address]).unwrap())
}

/// Opens a store with its metadata in `meta`, which must exist.
pub(crate) fn open(base: &Path) -> StripedStore {
    open_with(base, (1..=3).map(|number| node(base, number)).collect())
}

pub(crate) fn open_with(base: &Path, nodes: Vec<Arc<dyn Node>>) -> StripedStore {
    open_copies(base, nodes, 1, &Arc::default())
}

pub(crate) fn open_copies(
    base: &Path,
    nodes: Vec<Arc<dyn Node>>,
    copies: usize,
    around: &Arc<Surroundings>,
) -> StripedStore {
    let meta = PosixStore::open(base.join("meta"), PosixOptions::new(secret())).unwrap();
    let reports = around.clone();
    let options = StripedOptions {
        component_fs: FsId([8; 16]),
        copies,
        clock: around.clone(),
        lost: Box::new(move || {
            reports.lost.fetch_add(1, Ordering::SeqCst);
        }),
        ..StripedOptions::new(base, *b"a striped secret", NonZeroU32::new(UNIT).unwrap())
    };
    StripedStore::open(meta, nodes, options).unwrap()
}

/// A store with `copies` copies of each file on three directories, or stripes on all with 1. The
/// current user calls it.
pub(crate) fn world(copies: usize) -> Option<World> {
    Some(world_of(copies, me()))
}

/// The same for an ordinary caller of a privileged server.
pub(crate) fn world_of_other_user(copies: usize) -> Option<World> {
    if !is_root() {
        skipped("acting as another user needs root");
        return None;
    }
    Some(world_of(copies, Cred::new(1000, 100)))
}

fn world_of(copies: usize, cred: Cred) -> World {
    let dir = base();
    if cred.uid != me().uid {
        let meta = dir.path().join("meta");
        std::os::unix::fs::chown(meta, Some(cred.uid), Some(cred.gid)).unwrap();
    }
    let nodes = (1..=3).map(|number| node(dir.path(), number)).collect();
    let store = Arc::new(open_copies(dir.path(), nodes, copies, &Arc::default()));
    World { store, cred, dir: Some(dir) }
}

pub(crate) fn base() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("meta")).unwrap();
    dir
}

/// A store in a new directory.
pub(crate) fn opened() -> (TempDir, StripedStore) {
    let dir = base();
    let store = open(dir.path());
    (dir, store)
}

/// A store in a new directory, and the new file `f` with this content.
pub(crate) fn with_file(content: &[u8]) -> (TempDir, StripedStore, Created) {
    let (dir, store) = opened();
    let created = create(&store, "f");
    write(&*created.file, 0, content).unwrap();
    (dir, store, created)
}

/// The same on nodes that can fail.
pub(crate) fn with_file_on_faulty(
    content: &[u8],
) -> (TempDir, StripedStore, Vec<Arc<Faulty>>, Created) {
    let dir = base();
    let (store, nodes) = faulty(dir.path());
    let created = create(&store, "f");
    write(&*created.file, 0, content).unwrap();
    (dir, store, nodes, created)
}

pub(crate) fn stripes(placement: Placement) -> Stripes {
    match placement.spread {
        Spread::Stripes(stripes) => stripes,
        Spread::Copies(_) => panic!("the store has stripes"),
    }
}

/// Decodes the handle by which a client names a component.
pub(crate) fn sealed(handle: &[u8]) -> ComponentHandle {
    let file = FileId(*handle[16..].first_chunk().unwrap());
    ComponentHandle::open(&file, &FsId([8; 16]), b"a striped secret").unwrap()
}

pub(crate) fn create(store: &StripedStore, name: &str) -> Created {
    let (how, none) = (CreateHow::Guarded, SetAttr::default());
    let root = Store::root(store);
    store.create(&me(), &root, name.as_bytes(), how, &none, READ_WRITE).unwrap()
}

pub(crate) fn reopen(store: &StripedStore, name: &str) -> (FileId, Arc<dyn OpenFile>) {
    let (id, _) = store.lookup(&me(), &Store::root(store), name.as_bytes()).unwrap();
    (id, store.open(&me(), &id, READ_WRITE).unwrap())
}

pub(crate) fn layouts(store: &StripedStore) -> &dyn Layouts {
    store.layouts().unwrap()
}

/// All components below the nodes, with their sizes.
pub(crate) fn components(base: &Path) -> Vec<(PathBuf, u64)> {
    let mut found = Vec::new();
    for number in 1..=4 {
        let Ok(node) = std::fs::read_dir(base.join(format!("node{number}"))) else { continue };
        for directory in node {
            let directory = directory.unwrap();
            if directory.file_type().unwrap().is_dir() {
                for entry in std::fs::read_dir(directory.path()).unwrap() {
                    let entry = entry.unwrap();
                    found.push((entry.path(), entry.metadata().unwrap().len()));
                }
            }
        }
    }
    found
}

pub(crate) fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8 ^ seed).collect()
}

/// A node that a test can make unreachable, restart, or fail after some truncations.
pub(crate) struct Faulty {
    inner: Arc<dyn Node>,
    pub(crate) down: AtomicBool,
    /// It is unreachable, and was so since the start, so its addresses for clients are unknown.
    pub(crate) unheard_of: AtomicBool,
    /// While it is unreachable, its data server may hold cached authorisations.
    pub(crate) believes: AtomicBool,
    pub(crate) restarts: AtomicU64,
    pub(crate) truncations_left: AtomicU64,
    /// The delay of the next write, in milliseconds.
    pub(crate) next_write_ms: AtomicU64,
}

impl Faulty {
    pub(crate) fn new(inner: Arc<dyn Node>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            down: AtomicBool::new(false),
            unheard_of: AtomicBool::new(false),
            believes: AtomicBool::new(false),
            restarts: AtomicU64::new(0),
            truncations_left: AtomicU64::new(u64::MAX),
            next_write_ms: AtomicU64::new(0),
        })
    }

    pub(crate) fn set_down(&self, down: bool) {
        self.down.store(down, Ordering::SeqCst);
    }

    pub(crate) fn up(&self) -> Result<&Arc<dyn Node>> {
        if self.down.load(Ordering::SeqCst) { Err(StoreError::Busy) } else { Ok(&self.inner) }
    }

    pub(crate) fn verifier(&self, verifier: u64) -> u64 {
        verifier.wrapping_add(self.restarts.load(Ordering::SeqCst))
    }
}

impl Node for Faulty {
    fn number(&self) -> u32 {
        self.inner.number()
    }
    fn addresses(&self) -> Vec<SocketAddr> {
        match self.unheard_of.load(Ordering::SeqCst) {
            true => Vec::new(),
            false => self.inner.addresses(),
        }
    }
    fn serves_clients(&self) -> bool {
        true
    }
    fn is_reachable(&self) -> bool {
        !self.down.load(Ordering::SeqCst)
    }
    fn read(&self, id: &ComponentId, views: &[VolatileSlice<'_>], offset: u64) -> Result<usize> {
        self.up()?.read(id, views, offset)
    }
    fn advise(&self, id: &ComponentId, at: u64, len: u64, advice: CacheAdvice) -> Result<Advised> {
        self.up()?.advise(id, at, len, advice)
    }
    fn write(
        &self,
        id: &ComponentId,
        views: &[VolatileSlice<'_>],
        offset: u64,
        stability: Stability,
    ) -> Result<Written> {
        let wait_ms = self.next_write_ms.swap(0, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(wait_ms));
        let written = self.up()?.write(id, views, offset, stability)?;
        Ok(Written { verifier: self.verifier(written.verifier), ..written })
    }
    fn commit(&self, id: &ComponentId) -> Result<u64> {
        Ok(self.verifier(self.up()?.commit(id)?))
    }
    fn truncate(&self, id: &ComponentId, size: u64) -> Result<()> {
        let left = self.truncations_left.load(Ordering::SeqCst);
        self.truncations_left.store(left.checked_sub(1).ok_or(StoreError::Io)?, Ordering::SeqCst);
        self.up()?.truncate(id, size)
    }
    fn size(&self, id: &ComponentId) -> Result<u64> {
        self.up()?.size(id)
    }
    fn remove(&self, id: &ComponentId) -> Result<()> {
        self.up()?.remove(id)
    }
    fn space(&self) -> Result<NodeSpace> {
        self.up()?.space()
    }
    fn drop_grants(&self, component: &ComponentId) -> Result<()> {
        match self.up() {
            Ok(node) => node.drop_grants(component),
            Err(error) if self.believes.load(Ordering::SeqCst) => Err(error),
            Err(_) => Ok(()),
        }
    }
}

pub(crate) fn faulty(base: &Path) -> (StripedStore, Vec<Arc<Faulty>>) {
    let nodes: Vec<_> = (1..=3).map(|number| Faulty::new(node(base, number))).collect();
    (open_on(base, &nodes), nodes)
}

pub(crate) fn open_on(base: &Path, nodes: &[Arc<Faulty>]) -> StripedStore {
    open_with(base, as_nodes(nodes))
}

pub(crate) fn as_nodes<N: Node + 'static>(nodes: &[Arc<N>]) -> Vec<Arc<dyn Node>> {
    nodes.iter().map(|node| node.clone() as Arc<dyn Node>).collect()
}

/// Writes to a component as a client does that holds a layout.
pub(crate) fn write_behind(
    store: &StripedStore,
    base: &Path,
    id: &FileId,
    offset: u64,
    bytes: &[u8],
) {
    let placement = stripes(layouts(store).placement(id, true).unwrap().unwrap());
    let unit = u64::from(placement.unit_bytes.get());
    assert!(offset % unit + bytes.len() as u64 <= unit, "one stripe");
    let count = placement.handles.len() as u64;
    let place = (offset / unit + u64::from(placement.first_place)) % count;
    let component = ComponentId(*placement.handles[0][32..].first_chunk().unwrap());
    let mut bytes = bytes.to_vec();
    let views = [VolatileSlice::from_mut(&mut bytes)];
    let node = node(base, place as u32 + 1);
    node.write(&component, &views, offset, Stability::Data).unwrap();
}
