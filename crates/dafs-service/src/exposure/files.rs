//! The exposed files, and the grants of opens. `room.rs` moves memory between them, and `small.rs` has
//! the small ones that share an exposure.
//!
//! Invariants
//! * Each exposure of a file has segments of its own. A call that holds an exposure which has ended
//!   finds nothing in it.
//! * The list has a file until no entry of it stands. So no writer misses an entry.
//! * The lock of the list of files is never taken under the lock of a file. A thread that needs both
//!   takes `filling` before the lock of a file.
//! * No exposure ends under the lock of the table: its memory and its store take time.

use super::Memory;
use super::begun::Unread;
use super::file::{Events, File, Fill, blocks};
use super::frames::FrameCounts;
use super::room::Room;
use super::share::Payer;
use super::small::{SmallFiles, SmallPart};
use super::window::PagePlace;
use crate::append::Writers;
use crate::enter::State;
use crate::error::ServiceError;
use crate::export::Export;
use crate::handle::Handle;
use crate::limits::EXPOSED_GROUP_BLOCKS;
use crate::open::OpenState;
use crate::state::StateRef;
use crate::{Caller, Result, Service};
use dafs_mem::{Mutex, RwLock};
use dafs_store::{FsId, Store, Waits, Watch};
use rustc_hash::{FxHashMap, FxHasher};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, OnceLock};

/// Slots that files share by their hash. A collision costs a writer a look into the list.
const SLOTS: usize = 4096;

/// The numbers of exposed files, of grants, and of events since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ExposureCounts {
    /// Exposed files now. Small files that share an exposure are one.
    pub files: u64,
    /// Small files that share one.
    pub small_files: u64,
    /// Grants that have begun: of opens, and of clients for small files.
    pub grants: u64,
    /// Requests that have read exposed files, of clients with a grant.
    pub missed: u64,
    /// Segments of frames that files have given to others, or for window pages of their own.
    pub given: u64,
    /// Published blocks that changes have taken away.
    pub changed: u64,
    /// Published blocks that were to make room for others.
    pub evicted: u64,
    /// Those of them that came back, because requests asked for them soon.
    pub restored: u64,
    /// Blocks that were filled and published.
    pub published: u64,
    /// Frames with published blocks now.
    pub frames_published: u64,
    /// Frames now whose former readers may still use them, or whose blocks may come back.
    pub frames_waiting: u64,
    /// Frames without a block now.
    pub frames_free: u64,
    /// Fills that were thrown away, because the block changed or could not be read.
    pub wasted: u64,
    /// Exposures that have ended.
    pub withdrawn: u64,
}

#[derive(Default)]
pub(super) struct Counters {
    grants: AtomicU64,
    missed: AtomicU64,
    pub(super) given: AtomicU64,
    changed: AtomicU64,
    evicted: AtomicU64,
    restored: AtomicU64,
    published: AtomicU64,
    wasted: AtomicU64,
    withdrawn: AtomicU64,
}

/// One file with an exposure of its own, and a small one, in the word of a [`Slot`].
pub(super) const OWN: u64 = 1;
pub(super) const SMALL: u64 = 1 << 32;

/// The numbers of exposed files in a slot: of those with an exposure of their own, and of small ones. They
/// share a word, so a writer reads both at once, and looks into the list alone that may have its file.
#[derive(Default)]
pub(super) struct Slot(AtomicU64);

impl Slot {
    pub(super) fn add(&self, one: u64) {
        self.0.fetch_add(one, Ordering::Relaxed);
    }

    pub(super) fn remove(&self, one: u64) {
        self.0.fetch_sub(one, Ordering::Relaxed);
    }

    /// True if there are files with exposures of their own, and if there are small ones.
    pub(super) fn has(&self) -> (bool, bool) {
        let counts = self.0.load(Ordering::Relaxed);
        (counts & (SMALL - 1) != 0, counts >= SMALL)
    }
}

/// The exposed files.
pub(crate) struct Exposure {
    slots: Box<[Slot]>,
    pub(super) memory: OnceLock<Arc<dyn Memory>>,
    pub(super) files: RwLock<FxHashMap<Handle, Arc<ExposedFile>>>,
    /// The small files that have a part of a shared exposure.
    pub(super) small: RwLock<FxHashMap<Handle, (Arc<ExposedFile>, SmallPart)>>,
    /// Held during a look for local changes.
    looking: Mutex<()>,
    /// Held while memory moves between files.
    pub(super) room: Mutex<Room>,
    pub(super) shared: Arc<Shared>,
}

/// The part that all exposures of files share.
#[derive(Default)]
pub(super) struct Shared {
    /// The last time that was handed in. It may be as old as the interval of the clock thread.
    clock_ns: AtomicU64,
    /// The number of exposures so far.
    ids: AtomicU64,
    pub(super) counters: Counters,
}

impl Default for Exposure {
    fn default() -> Self {
        let slots = (0..SLOTS).map(|_| Slot::default()).collect();
        let (memory, files, small) = (OnceLock::new(), RwLock::default(), RwLock::default());
        let (looking, room) = (Mutex::default(), Mutex::default());
        Self { slots, memory, files, small, looking, room, shared: Arc::default() }
    }
}

impl fmt::Debug for Exposure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exposure").field("files", &self.files.read().len()).finish_non_exhaustive()
    }
}

impl Exposure {
    pub(super) fn slot(&self, key: &Handle) -> &Slot {
        let mut hasher = FxHasher::default();
        key.hash(&mut hasher);
        &self.slots[hasher.finish() as usize % SLOTS]
    }

    /// Begins a look for local changes. `None` while another thread looks: that one may have taken
    /// changes from a store whose files are still exposed.
    pub(crate) fn look(&self) -> Option<MutexGuard<'_, ()>> {
        self.looking.try_lock()
    }

    /// Takes the time at which a look for local changes began, after its end.
    pub(crate) fn looked(&self, now_ns: u64) {
        if let Some(memory) = self.memory.get() {
            self.shared.clock_ns.fetch_max(now_ns, Ordering::Relaxed);
            memory.looked(now_ns);
        }
    }

    /// Exposes a file that no writer is changing, and that none begins to change during the call.
    pub(super) fn add(&self, new: &Arc<ExposedFile>) -> Arc<ExposedFile> {
        let mut files = self.files.write();
        let file = files.entry(new.key).or_insert_with(|| {
            // A later writer finds it: the lock that keeps writers out orders this before its load.
            self.slot(&new.key).add(OWN);
            new.clone()
        });
        file.clone()
    }

    /// Returns an exposed file. One relaxed load for most files that are not exposed.
    fn find(&self, key: &Handle) -> Option<Arc<ExposedFile>> {
        let (has_own, _) = self.slot(key).has();
        has_own.then(|| self.files.read().get(key).cloned()).flatten()
    }

    /// Ends the exposure of all files of a store.
    pub(crate) fn withdraw_all_of(&self, fs: FsId) {
        self.withdraw_where(|file| file.key.fs == fs);
    }

    /// Ends the exposures that no request has read for long. One whose readers have hits alone is among
    /// them: they find no entry, and ask again.
    pub(crate) fn end_idle(&self, now_ns: u64) {
        self.withdraw_where(|file| file.file.lock().is_abandoned(now_ns));
    }

    fn withdraw_where(&self, is_meant: impl Fn(&ExposedFile) -> bool) {
        let files = self.files.read();
        let meant: Vec<_> = files.values().filter(|file| is_meant(file)).cloned().collect();
        drop(files);
        meant.iter().for_each(|file| self.end(file));
    }

    /// Ends an exposure. Two threads that do so wait for each other, so both return behind it.
    pub(super) fn end(&self, file: &Arc<ExposedFile>) {
        // Fills that are under way end before, and no other one begins.
        let alone = file.filling.write();
        let mut inner = file.file.lock();
        let segments = inner.withdraw(file.shared.now_ns(), &*file.memory);
        file.count(&mut inner);
        drop(inner);
        segments.into_iter().for_each(|segment| file.memory.discard(segment));
        drop(alone);
        // Until here writers find the file. One that did not could write beside entries that stand.
        self.forget_small(file);
        let mut files = self.files.write();
        if files.get(&file.key).is_some_and(|known| Arc::ptr_eq(known, file)) {
            files.remove(&file.key);
            self.slot(&file.key).remove(OWN);
            self.shared.counters.withdrawn.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn counts(&self) -> ExposureCounts {
        let files: Vec<_> = self.files.read().values().cloned().collect();
        let mut frames = FrameCounts::default();
        for file in &files {
            let mut inner = file.file.lock();
            file.count(&mut inner);
            frames = frames.plus(inner.frame_counts());
        }
        let counters = &self.shared.counters;
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ExposureCounts {
            files: files.len() as u64,
            small_files: self.small.read().len() as u64,
            grants: of(&counters.grants),
            missed: of(&counters.missed),
            given: of(&counters.given),
            changed: of(&counters.changed),
            evicted: of(&counters.evicted),
            restored: of(&counters.restored),
            published: of(&counters.published),
            frames_published: frames.published,
            frames_waiting: frames.waiting,
            frames_free: frames.free,
            wasted: of(&counters.wasted),
            withdrawn: of(&counters.withdrawn),
        }
    }
}

impl Shared {
    /// Returns the time. Under the lock of a file, no call gets an earlier time than one before.
    pub(super) fn now_ns(&self) -> u64 {
        self.clock_ns.load(Ordering::Relaxed)
    }
}

/// One exposure of a file, or of the small files of a store. It ends once, and shows nothing afterwards.
pub struct ExposedFile {
    pub(super) id: u64,
    /// The key of the file, or of the root of the store of small files.
    pub(super) key: Handle,
    /// The client that has exposed it first.
    pub(super) payer: Payer,
    pub(super) store: Arc<dyn Store>,
    pub(super) memory: Arc<dyn Memory>,
    pub(super) shared: Arc<Shared>,
    pub(super) file: Mutex<File>,
    /// Its small files, if it has such.
    pub(super) small: Option<SmallFiles>,
    /// Held while a frame is filled, and exclusively where that must not be.
    pub(super) filling: RwLock<()>,
}

impl fmt::Debug for ExposedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExposedFile").field("key", &self.key).finish_non_exhaustive()
    }
}

impl ExposedFile {
    /// The number of this exposure, not 0. No other exposure of a file has it.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns the place of the page of a window, which it gets now if it has none. `None` when
    /// there is no memory, or the file is no longer exposed.
    pub fn page(&self, window: u64) -> Option<PagePlace> {
        let mut file = self.file.lock();
        file.page(window, self.shared.now_ns(), &*self.memory)
    }

    /// The same for a window that no read needs yet. It gets no page while memory is scarce and pages are
    /// more than a quarter of the file's.
    pub fn spare_page(&self, window: u64) -> Option<PagePlace> {
        let mut file = self.file.lock();
        file.spare_page(window, self.shared.now_ns(), &*self.memory)
    }

    /// Returns its segments from the `skipped`th on that it has had, in the order in which they came,
    /// as far as `find` finds them. While `find` runs, the number of a segment names no other one.
    pub fn segments<T>(&self, skipped: usize, find: impl FnMut(u16) -> Option<T>) -> Vec<T> {
        self.file.lock().segments(skipped).map_while(find).collect()
    }

    /// Adds what has happened to its blocks to the counters.
    fn count(&self, file: &mut File) {
        let Events { changed, evicted, restored } = std::mem::take(&mut file.events);
        let counters = &self.shared.counters;
        let add = |counter: &AtomicU64, count: u64| {
            if count > 0 {
                counter.fetch_add(count, Ordering::Relaxed);
            }
        };
        add(&counters.changed, changed);
        add(&counters.evicted, evicted);
        add(&counters.restored, restored);
    }

    /// Fills a frame and publishes its block, unless it has changed meanwhile. `read` puts the first
    /// bytes of the block into the frame, and zeros behind them. It returns their number, 0 if it
    /// cannot read them without waiting. Returns true if readers find the block now.
    pub fn fill(&self, fill: Fill, read: impl FnOnce() -> usize) -> bool {
        // While this is held, the segment is not discarded, and no end of a grant is over.
        let _filling = self.filling.read();
        let mut unread = Unread { exposed: self, fill: Some(fill) };
        let may_write = self.file.lock().may_write(&fill);
        let bytes = if may_write { read() } else { 0 };
        unread.fill = None;
        let is_published = self.file.lock().end_fill(fill, bytes, &*self.memory);
        let Counters { published, wasted, .. } = &self.shared.counters;
        if is_published {
            published.fetch_add(1, Ordering::Relaxed);
        } else if bytes > 0 || !fill.is_neighbour {
            wasted.fetch_add(1, Ordering::Relaxed);
        }
        is_published
    }
}

impl Drop for ExposedFile {
    fn drop(&mut self) {
        match &self.small {
            Some(small) => small.unwatch(&*self.store),
            None => self.store.unwatch(&self.key.file),
        }
    }
}

/// The right of an open to read an exposed file without requests, or of a client to read an exposure of
/// small files. Its end takes back what its reader may read.
pub(crate) struct Grant {
    file: Arc<ExposedFile>,
    writers: Arc<Writers>,
    /// Its end ends the exposure, also for other readers.
    pub(super) ends_exposure: bool,
}

impl Grant {
    pub(super) fn new(file: Arc<ExposedFile>, writers: Arc<Writers>) -> Option<Self> {
        let is_new = file.file.lock().begin_grant();
        if !is_new {
            return None;
        }
        file.shared.counters.grants.fetch_add(1, Ordering::Relaxed);
        Some(Self { file, writers, ends_exposure: false })
    }

    pub(crate) fn file(&self) -> &Arc<ExposedFile> {
        &self.file
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        let file = &self.file;
        let is_last = file.file.lock().end_grant();
        if is_last || self.ends_exposure {
            self.writers.exposure.end(file);
            return;
        }
        // Fills that are under way end before the reader has none of its rights any more.
        let alone = file.filling.write();
        if file.small.is_some() {
            let removed = file.file.lock().bar_frames(file.shared.now_ns(), &*file.memory);
            removed.into_iter().for_each(|segment| file.memory.discard(segment));
        }
        drop(alone);
    }
}

/// Begins to fill frames with the wanted blocks that have none, and with their neighbours.
pub(super) fn begin_fills(
    file: &mut File,
    wanted: &[u64],
    now_ns: u64,
    memory: &dyn Memory,
) -> Vec<Fill> {
    let mut fills = Vec::new();
    for block in wanted {
        if !file.restore(*block, now_ns, memory) {
            fills.extend(file.begin_fill(*block, now_ns, memory));
        }
    }
    if memory.is_scarce() {
        return fills;
    }
    let mut filled: Vec<u64> = fills.iter().map(|fill| fill.at).collect();
    filled.dedup_by_key(|block| *block / EXPOSED_GROUP_BLOCKS);
    for block in filled {
        let neighbours = file.neighbours(block, now_ns);
        let begin = |block| file.begin_neighbour(block, now_ns, memory);
        fills.extend(neighbours.into_iter().filter_map(begin));
    }
    fills
}

/// True if the export says that its files may be exposed to such clients, and its store reads them
/// without other machines, and alone.
pub(super) fn is_exposable(export: &Export, is_remote: bool) -> bool {
    let capabilities = export.store().capabilities();
    let is_alone = capabilities.waits == Waits::Never && capabilities.layouts.is_none();
    export.options().optimistic.serves(is_remote) && is_alone
}

impl State {
    /// Returns the number of the next exposure, which no run of the server uses again.
    pub(super) fn next_exposure(&self) -> u64 {
        let number = self.writers.exposure.shared.ids.fetch_add(1, Ordering::Relaxed);
        u64::from(self.config.instance) << 32 | (number + 1) & u64::from(u32::MAX)
    }

    /// Exposes a file for a client, unless it is being changed.
    fn expose(
        &self,
        key: Handle,
        store: &Arc<dyn Store>,
        payer: Payer,
    ) -> Option<Arc<ExposedFile>> {
        let exposure = &self.writers.exposure;
        if let Some(known) = exposure.find(&key) {
            return known.small.is_none().then_some(known);
        }
        let memory = exposure.memory.get()?;
        // Changes that bypass the server end the exposure, as far as the store reports them.
        store.watch(&key.file, Watch::Changes).ok()?;
        let limit = exposure.limit_of_new(payer);
        let new = Arc::new(ExposedFile {
            id: self.next_exposure(),
            key,
            payer,
            store: store.clone(),
            memory: memory.clone(),
            shared: exposure.shared.clone(),
            file: Mutex::new(File::new(limit)),
            small: None,
            filling: RwLock::default(),
        });
        let _alone = self.writers.try_alone(&key)?;
        // Under this lock, no change of the size begins. Later ones find the file exposed.
        let table = self.lock();
        let is_changing = table.files.get(&key).is_some_and(|file| file.changing > 0);
        let added = (!is_changing).then(|| exposure.add(&new));
        added.filter(|added| added.small.is_none())
    }
}

impl Service {
    /// Sets the memory in which files are exposed. Before that, none is.
    pub fn start_exposure(&self, memory: Arc<dyn Memory>) {
        let _ = self.state.writers.exposure.memory.set(memory);
    }

    /// Ends the exposure of all files, until clients ask again.
    pub fn stop_exposure(&self) {
        self.state.writers.exposure.withdraw_where(|_| true);
    }

    /// Returns the numbers of exposed files and of their blocks.
    pub fn exposure_counts(&self) -> ExposureCounts {
        self.state.writers.exposure.counts()
    }

    /// True if files of the export of this object may be exposed: to clients that map memory, or to
    /// those that read it by RDMA (`is_remote`).
    pub fn exposes(&self, handle: &Handle, is_remote: bool) -> bool {
        let namespace = self.exports.namespace();
        namespace.export(handle).is_ok_and(|export| is_exposable(export, is_remote))
    }

    /// True if files of some export may be exposed to clients that read memory by RDMA.
    pub fn exposes_remotely(&self) -> bool {
        let namespace = self.exports.namespace();
        namespace.exports().any(|export| is_exposable(export, true))
    }

    /// Exposes the file of an open to the client that has it, which may read it without requests as
    /// long as the open allows reading. `is_remote` is true for a client that reads memory by RDMA.
    /// Returns the present exposure. `None` if the file is not exposed: the export does not say so,
    /// the store waits for other machines or gives out layouts, a fence or a broken lock is on the
    /// file, or it is being changed.
    ///
    /// # Errors
    /// Those of the state-id. `OpenMode`.
    pub fn expose(
        &self,
        caller: Caller<'_>,
        handle: &Handle,
        state: impl Into<StateRef>,
        is_remote: bool,
    ) -> Result<Option<Arc<ExposedFile>>> {
        let open = self.state.open_state(caller, handle, state)?;
        if !open.share().read {
            return Err(ServiceError::OpenMode);
        }
        let namespace = self.exports.namespace();
        let export = namespace.export(handle)?;
        if !is_exposable(export, is_remote) {
            return Ok(None);
        }
        let key = export.key(handle);
        let client = &open.client;
        let payer = Payer { host: client.host().host(), client: client.key() };
        let Some(file) = self.state.expose(key, export.store(), payer) else { return Ok(None) };
        let writers = &self.state.writers;
        // A fence, a broken lock and rules that come later end this exposure.
        let is_barred = self.fences.is_fenced(&key) || self.state.guards.maybe_broken(&key);
        if is_barred || !self.exposes(handle, is_remote) {
            writers.exposure.end(&file);
            return Ok(None);
        }
        // Also where the open has a grant already: another session of the client may map the memory.
        file.file.lock().has_remote_readers |= is_remote;
        let grant = || Grant::new(file.clone(), writers.clone());
        let is_granted = open.grant_exposure(&file, grant);
        if !is_granted && !file.file.lock().has_grants() {
            writers.exposure.end(&file);
        }
        Ok(is_granted.then_some(file))
    }

    /// Makes room in the memory for an exposed file that has got no page or frame.
    pub fn make_room_for_exposed(&self, file: &ExposedFile) {
        self.state.writers.exposure.make_room(file);
    }

    /// Notes that a request of an open has read bytes of its file. Returns the exposure of the file
    /// and the frames to fill now, each by [`ExposedFile::fill`]. More are to be filled later, while
    /// [`ExposedFile::has_remainder`] says so.
    pub fn note_read(
        &self,
        open: &OpenState,
        (offset, bytes): (u64, u64),
        now_ns: u64,
    ) -> Option<(Arc<ExposedFile>, Vec<Fill>)> {
        let (exposed, asked) = match open.exposed() {
            Some(exposed) => (exposed, blocks(offset, bytes)),
            None => self.state.writers.exposure.small_blocks(open, (offset, bytes))?,
        };
        let (shared, memory) = (&exposed.shared, &*exposed.memory);
        shared.counters.missed.fetch_add(1, Ordering::Relaxed);
        shared.clock_ns.fetch_max(now_ns, Ordering::Relaxed);
        let mut file = exposed.file.lock();
        let now_ns = shared.now_ns();
        let wanted = file.asked(asked, now_ns, memory);
        if wanted.is_empty() {
            return None;
        }
        if file.is_used_up() {
            drop(file);
            self.state.writers.exposure.end(&exposed);
            return None;
        }
        let fills = begin_fills(&mut file, &wanted, now_ns, memory);
        file.note_remainders(&wanted, now_ns, memory);
        let is_lacking = file.lacking.is_some();
        exposed.count(&mut file);
        drop(file);
        if is_lacking {
            self.state.writers.exposure.make_room(&exposed);
        }
        (!fills.is_empty()).then_some((exposed, fills))
    }
}
