//! Optimistic reads of a world: the memory that its server shows, and the ends of the server.
//!
//! All processes of such a world are on one host. A client's thread reads memory of the server without
//! a message. So the network and the server run between any two steps of a read. In a remote world each
//! client has a host of its own, and its session reads by RDMA.
//!
//! From time to time the server's process ends. Before a client notices, a local program changes a
//! file, and a new server starts.
//!
//! Invariant: a world without optimistic reads draws nothing here.

use crate::common::Common;
use crate::limits::{
    EXPOSED_BYTES, EXPOSED_BYTES_TIGHT, OPTIMISTIC_BLOCKS, SERVE_STEPS_MAX, SHARED_FILES,
};
use crate::model::names::FileNumber;
use crate::plan::ExposureDanger;
use dafs_dat::Instant;
use dafs_dat::sim::SimRng;
use dafs_engine::ExposedMemory;
use dafs_mem::{Mutex, VolatileSlice};
use dafs_service::{BLOCK_BYTES, BlockEntry, Memory, PagePlace, SegmentKind};
use dafs_store::{Cred, OpenFile, OpenMode, Stability, Store, Wait};
use std::sync::Arc;
use std::time::Duration;

/// The memory of a server, and the same as its service sees it.
#[derive(Clone)]
pub(crate) struct Shown {
    pub(crate) memory: Arc<ExposedMemory>,
    pub(crate) seen: Arc<dyn Memory>,
}

impl Shown {
    fn start(bytes_max: usize, danger: ExposureDanger) -> Result<Self, String> {
        let memory = ExposedMemory::start(bytes_max).map_err(|error| error.to_string())?;
        let memory = Arc::new(memory);
        let seen: Arc<dyn Memory> = match danger {
            ExposureDanger::LateUnpublish => {
                Arc::new(Late { memory: memory.clone(), late: Mutex::default() })
            }
            _ => memory.clone(),
        };
        Ok(Self { memory, seen })
    }
}

/// Danger: memory in which an entry is taken away long after the change of its block.
struct Late {
    memory: Arc<ExposedMemory>,
    late: Mutex<Vec<(PagePlace, usize, BlockEntry)>>,
}

impl Late {
    fn catch_up(&self) {
        let late = std::mem::take(&mut *self.late.lock());
        late.into_iter().for_each(|(page, at, entry)| self.memory.store(page, at, entry));
    }
}

impl Memory for Late {
    fn add(&self, kind: SegmentKind, is_first: bool) -> Option<(u16, usize)> {
        self.memory.add(kind, is_first)
    }

    fn store(&self, page: PagePlace, at: usize, entry: BlockEntry) {
        if entry.block.is_none() {
            self.late.lock().push((page, at, entry));
        } else {
            self.catch_up();
            self.memory.store(page, at, entry);
        }
    }

    fn discard(&self, segment: u16) {
        self.late.lock().retain(|(page, ..)| page.segment != segment);
        self.memory.discard(segment);
    }

    fn is_scarce(&self) -> bool {
        self.memory.is_scarce()
    }

    fn looked(&self, now_ns: u64) {
        self.catch_up();
        self.memory.looked(now_ns);
    }
}

/// The optimistic reads of a world.
pub(crate) struct Exposure {
    rng: SimRng,
    danger: ExposureDanger,
    bytes_max: usize,
    shown: Shown,
    /// The mean time between two ends of the server.
    ends_every: Duration,
    next_end: Option<Instant>,
    /// The shared files, as a local program has them open.
    local: Vec<Arc<dyn OpenFile>>,
}

impl Exposure {
    /// Makes the memory of the first server. `store` has the shared files.
    pub(crate) fn new(
        seed: u64,
        danger: ExposureDanger,
        store: &dyn Store,
    ) -> Result<Self, String> {
        let mut rng = SimRng::new(seed ^ 0x626c_6f63_6b73);
        let bytes_max = if rng.chance(300_000) { EXPOSED_BYTES_TIGHT } else { EXPOSED_BYTES };
        let ends_every = Duration::from_millis(rng.between(200, 3_000));
        let local = local_files(store).map_err(|error| error.to_string())?;
        let shown = Shown::start(bytes_max, danger)?;
        let next_end = None;
        let mut exposure = Self { rng, danger, bytes_max, shown, ends_every, next_end, local };
        exposure.plan_end(Instant(0));
        Ok(exposure)
    }

    /// The memory of the present server.
    pub(crate) fn shown(&self) -> Shown {
        self.shown.clone()
    }

    /// The randomness for the start of a server.
    pub(crate) fn rng(&mut self) -> &mut SimRng {
        &mut self.rng
    }

    /// The time of the next end of the server.
    pub(crate) fn next_end(&self) -> Option<Instant> {
        self.next_end
    }

    fn plan_end(&mut self, now: Instant) {
        let mean_us = self.ends_every.as_micros() as u64;
        self.next_end = Some(now + Duration::from_micros(1 + self.rng.below(2 * mean_us)));
    }

    /// Lets the server live.
    pub(crate) fn rest(&mut self) {
        self.next_end = None;
    }

    /// Makes the memory of the next server. The present one dies.
    pub(crate) fn renew(&mut self, now: Instant) -> Result<(), String> {
        let next = Shown::start(self.bytes_max, self.danger)?;
        let former = std::mem::replace(&mut self.shown, next);
        if self.danger != ExposureDanger::UndyingLife {
            former.memory.end();
        }
        self.plan_end(now);
        Ok(())
    }

    /// A local program writes to a shared file. Returns the file.
    pub(crate) fn change_locally(&mut self, common: &mut Common) -> Result<FileNumber, String> {
        let file = self.rng.below(SHARED_FILES as u64) as usize;
        let len = OPTIMISTIC_BLOCKS as usize * BLOCK_BYTES;
        let (tick, write) = (common.tick(), common.next_write());
        let change = common.files[file].model.begin_write(tick, write, 0, len as u64);
        common.note(|| format!("a local program writes {write:?} to file {file}"));
        let mut bytes = write.bytes(0, len);
        let view = [VolatileSlice::from_mut(&mut bytes)];
        let written = self.local[file].write_at(&view, 0, Stability::Unstable, Wait::Allowed);
        if written != Ok(len) {
            return Err(format!("a local program has written {written:?} bytes"));
        }
        let tick = common.tick();
        common.files[file].model.done(change, tick, len as u64);
        common.prune(file);
        Ok(file)
    }

    /// A step of a reader: lets the server run for a while, or not. Returns the most bytes that the
    /// reader copies next.
    pub(crate) fn step(&mut self, serve: &mut dyn FnMut(Duration)) -> usize {
        if self.rng.chance(350_000) {
            for _ in 0..self.rng.between(1, 3) {
                serve(Duration::from_micros(10 * (1 + self.rng.log_below(SERVE_STEPS_MAX))));
            }
        }
        match self.rng.chance(400_000) {
            true => BLOCK_BYTES,
            false => self.rng.between(1, BLOCK_BYTES as u64) as usize,
        }
    }
}

/// Opens the shared files as a local program does.
fn local_files(store: &dyn Store) -> dafs_store::Result<Vec<Arc<dyn OpenFile>>> {
    let (root, mode) = (Cred::new(0, 0), OpenMode { read: true, write: true });
    let (shared, _) = store.lookup(&root, &store.root(), b"shared")?;
    let open = |number: FileNumber| {
        let (id, _) = store.lookup(&root, &shared, format!("s{number}").as_bytes())?;
        store.open(&root, &id, mode)
    };
    (0..SHARED_FILES).map(open).collect()
}
