//! Small files, which share an exposure: one for all files of 64 KiB at most of a file system. Each has
//! a part of it, 16 blocks. So they share segments, and a page has the entries of 32 files.
//!
//! A client has the right to read such an exposure as long as it has a session and its lease, not as
//! long as it has a file open. So it reads a file without a request that it has just opened again.
//! Therefore only a client gets that right which may read every file of the export anyway.
//!
//! Example. A mount has read a file twice, asks where it is, and closes it. Another client writes to the
//! file: all entries of its part become absent. The mount opens the file again, finds no entry, and
//! sends READ, after which the server fills the frames anew.
//!
//! Invariants
//! * A part belongs to one file as long as the exposure lasts. So an entry of it never names a frame
//!   with a block of another file. A client may know a part for as long as it likes.
//! * The client has every right over the files of the export: it may speak for any user, and root is
//!   not squashed. The caller shows the first, this module checks the second.
//! * After the end of a client's right no content comes into memory that it may know. After that of its
//!   last session others keep what is there. A client that may go on to read, because its lease has ended
//!   or it is no longer one of these, loses all at once.
//! * A file without names has no part: its watch would keep its space.
//! * An exposure has files of one directory tree. Exports of others, also of a part of it, have another
//!   one, because their clients may not see the whole tree.
//! * A file gets its part while no change of it is under way, and writers find the part until no entry
//!   stands.
//! * A fence, a broken lock and new rules end the whole exposure, because its memory has no walls
//!   between files.

use super::entry::{BLOCK_BYTES, WINDOW_BLOCKS};
use super::file::{File, blocks};
use super::files::{ExposedFile, Exposure, Grant, SMALL, is_exposable};
use super::share::Payer;
use super::window::PagePlace;
use crate::client::Client;
use crate::enter::State;
use crate::export::{Export, Squash};
use crate::handle::Handle;
use crate::limits::{EXPOSED_GROUP_BLOCKS, EXPOSED_SMALL_FILES_MAX, EXPOSED_SMALL_FILES_TIME_NS};
use crate::open::OpenState;
use crate::state::StateRef;
use crate::table::StateTable;
use crate::{Caller, Result, Service};
use dafs_mem::{Mutex, RwLock};
use dafs_store::{FileId, OpenMode, Store, Watch};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The most bytes of a small file.
pub const SMALL_FILE_BYTES: u64 = EXPOSED_GROUP_BLOCKS * BLOCK_BYTES as u64;

/// The part of a small file in an exposure: the number of the file there, from 1 on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SmallPart(pub(super) u64);

impl SmallPart {
    /// The block of the exposure that is the first one of the file. Not 0.
    pub fn base(self) -> u64 {
        self.0 * EXPOSED_GROUP_BLOCKS
    }

    /// The window of the exposure that has its blocks.
    pub fn window(self) -> u64 {
        self.base() / WINDOW_BLOCKS as u64
    }

    /// Its blocks in the exposure.
    pub(super) fn blocks(self) -> RangeInclusive<u64> {
        self.base()..=self.base() + (EXPOSED_GROUP_BLOCKS - 1)
    }

    /// Returns those of some blocks of the file that it has, as blocks of the exposure.
    pub(super) fn within(self, blocks: &RangeInclusive<u64>) -> Option<RangeInclusive<u64>> {
        let (first, last) = (*blocks.start(), (*blocks.end()).min(EXPOSED_GROUP_BLOCKS - 1));
        (first <= last).then(|| self.base() + first..=self.base() + last)
    }
}

/// The answer about a file that may be a small one.
#[derive(Debug)]
pub enum SmallFile {
    /// It is none, or its export does not let small files share an exposure.
    Other,
    /// It is not exposed now.
    Hidden,
    /// It is exposed.
    Shown {
        /// The exposure that it shares with others.
        exposure: Arc<ExposedFile>,
        /// Its part.
        part: SmallPart,
        /// The page of the window of its part.
        page: PagePlace,
    },
}

/// The files of an exposure that is shared.
pub(super) struct SmallFiles {
    begun_ns: u64,
    /// The files in the order of their parts. Each is watched for local changes. `None` for one that has
    /// left.
    watched: Mutex<Vec<Option<FileId>>>,
}

impl SmallFiles {
    fn is_full(&self) -> bool {
        self.watched.lock().len() >= EXPOSED_SMALL_FILES_MAX
    }

    /// Ends the watches. No file gets a part afterwards.
    pub(super) fn unwatch(&self, store: &dyn Store) {
        let watched = std::mem::take(&mut *self.watched.lock());
        watched.iter().flatten().for_each(|file| store.unwatch(file));
    }

    /// Ends the watch of a file that has left.
    fn unwatch_one(&self, part: SmallPart, store: &dyn Store) {
        // The list is empty when the exposure is over.
        let file = self.watched.lock().get_mut(part.0 as usize - 1).and_then(Option::take);
        file.iter().for_each(|file| store.unwatch(file));
    }
}

/// The rights of a client to read exposures that small files share.
#[derive(Default)]
pub(crate) struct ClientGrants {
    /// It has, or had, one.
    has_some: AtomicBool,
    grants: Mutex<Vec<Grant>>,
}

impl ClientGrants {
    fn has(&self, exposed: &Arc<ExposedFile>) -> bool {
        let is_it = |grant: &Grant| Arc::ptr_eq(grant.file(), exposed);
        self.has_some.load(Ordering::Relaxed) && self.grants.lock().iter().any(is_it)
    }

    /// Takes the one that `new` makes, unless there is one for this exposure. Returns true if there is
    /// one then, and the one for an earlier exposure of the same files, to be dropped without locks.
    fn grant(
        &self,
        exposed: &Arc<ExposedFile>,
        new: impl FnOnce() -> Option<Grant>,
    ) -> (bool, Option<Grant>) {
        let mut grants = self.grants.lock();
        let former = grants.iter().position(|known| known.file().key == exposed.key);
        if former.is_some_and(|at| Arc::ptr_eq(grants[at].file(), exposed)) {
            return (true, None);
        }
        let Some(grant) = new() else { return (false, None) };
        let former = former.map(|at| grants.swap_remove(at));
        grants.push(grant);
        self.has_some.store(true, Ordering::Relaxed);
        (true, former)
    }

    /// Takes all, to be dropped without locks.
    pub(crate) fn take(&self) -> Vec<Grant> {
        match self.has_some.load(Ordering::Relaxed) {
            true => std::mem::take(&mut *self.grants.lock()),
            false => Vec::new(),
        }
    }

    /// The same of a client that may go on to read: the ends of these rights end the exposures.
    pub(crate) fn revoke(&self) -> Vec<Grant> {
        let mut grants = self.take();
        grants.iter_mut().for_each(|grant| grant.ends_exposure = true);
        grants
    }
}

impl Exposure {
    /// Returns the exposure and the part of a small file that has one.
    fn small_file(&self, key: &Handle) -> Option<(Arc<ExposedFile>, SmallPart)> {
        let (_, has_small) = self.slot(key).has();
        has_small.then(|| self.small.read().get(key).cloned()).flatten()
    }

    /// Returns the exposure of the file of an open, and the blocks there that a request has read, if its
    /// client may read that exposure.
    pub(super) fn small_blocks(
        &self,
        open: &OpenState,
        (offset, bytes): (u64, u64),
    ) -> Option<(Arc<ExposedFile>, RangeInclusive<u64>)> {
        let grants = &open.client.shown;
        if !grants.has_some.load(Ordering::Relaxed) {
            return None;
        }
        let (exposed, part) = self.small_file(&open.key)?;
        let asked = part.within(&blocks(offset, bytes))?;
        grants.has(&exposed).then_some((exposed, asked))
    }

    /// Gives a part to a small file that no writer is changing, and that none begins to change during
    /// the call. Returns true with it if it is new.
    fn add_small(&self, key: Handle, exposed: &Arc<ExposedFile>) -> Option<(SmallPart, bool)> {
        let mut files = self.small.write();
        // The end of the exposure looks into the list afterwards.
        if exposed.file.lock().is_over {
            return None;
        }
        if let Some((known, part)) = files.get(&key) {
            return Arc::ptr_eq(known, exposed).then_some((*part, false));
        }
        let mut watched = exposed.small.as_ref()?.watched.lock();
        watched.push(Some(key.file));
        let part = SmallPart(watched.len() as u64);
        // A later writer finds it: the lock that keeps writers out orders this before its load.
        self.slot(&key).add(SMALL);
        files.insert(key, (exposed.clone(), part));
        Some((part, true))
    }

    /// Ends the part of a small file that has lost a name. A file that has others gets another part when a
    /// client asks.
    pub(crate) fn removed(&self, key: &Handle) {
        let Some((exposed, part)) = self.small_file(key) else { return };
        exposed.file.lock().retire(part.blocks(), exposed.shared.now_ns(), &*exposed.memory);
        // Writers find the part until no entry stands, and none can come.
        let mut files = self.small.write();
        let is_it = |(known, own): &(Arc<ExposedFile>, SmallPart)| {
            Arc::ptr_eq(known, &exposed) && *own == part
        };
        if !files.get(key).is_some_and(is_it) {
            return;
        }
        files.remove(key);
        drop(files);
        self.slot(key).remove(SMALL);
        exposed.small.iter().for_each(|small| small.unwatch_one(part, &*exposed.store));
    }

    /// Forgets the small files of an exposure that is over. Their watches end here, because clients keep
    /// their grants of it until they ask again.
    pub(super) fn forget_small(&self, exposed: &Arc<ExposedFile>) {
        let Some(small) = &exposed.small else { return };
        self.small.write().retain(|key, (known, _)| {
            let stays = !Arc::ptr_eq(known, exposed);
            if !stays {
                self.slot(key).remove(SMALL);
            }
            stays
        });
        small.unwatch(&*exposed.store);
    }
}

impl State {
    /// Returns the exposure that the small files of a store share. There is one from now on.
    fn expose_together(&self, store: &Arc<dyn Store>, payer: Payer) -> Option<Arc<ExposedFile>> {
        let exposure = &self.writers.exposure;
        let key = root_of(&**store);
        let known = exposure.files.read().get(&key).cloned();
        let exposed = match known {
            Some(known) => known,
            None => {
                let memory = exposure.memory.get()?;
                let file = File::of_small_files(exposure.limit_of_new(payer));
                let begun_ns = exposure.shared.now_ns();
                exposure.add(&Arc::new(ExposedFile {
                    id: self.next_exposure(),
                    key,
                    payer,
                    store: store.clone(),
                    memory: memory.clone(),
                    shared: exposure.shared.clone(),
                    file: Mutex::new(file),
                    small: Some(SmallFiles { begun_ns, watched: Mutex::default() }),
                    filling: RwLock::default(),
                }))
            }
        };
        exposed.small.is_some().then_some(exposed)
    }

    /// Returns the part of a small file. It gets one now, unless it is being changed.
    fn expose_small(
        &self,
        key: Handle,
        store: &Arc<dyn Store>,
        payer: Payer,
    ) -> Option<(Arc<ExposedFile>, SmallPart)> {
        let exposure = &self.writers.exposure;
        if let Some(known) = exposure.small_file(&key) {
            return Some(known);
        }
        let exposed = self.expose_together(store, payer)?;
        let small = exposed.small.as_ref().filter(|small| small.is_full());
        if let Some(full) = small {
            // Parts of files that no client reads any more go with all others.
            let age_ns = exposed.shared.now_ns().saturating_sub(full.begun_ns);
            if age_ns >= EXPOSED_SMALL_FILES_TIME_NS {
                exposure.end(&exposed);
            }
            return None;
        }
        // Changes that bypass the server take its blocks away, as far as the store reports them. The
        // watch ends with the exposure, whose store may be that of another export of the same tree.
        exposed.store.watch(&key.file, Watch::Changes).ok()?;
        let added = self.add_small(key, &exposed);
        if !added.is_some_and(|(_, is_new)| is_new) {
            exposed.store.unwatch(&key.file);
        }
        let (part, _) = added?;
        Some((exposed, part))
    }

    fn add_small(&self, key: Handle, exposed: &Arc<ExposedFile>) -> Option<(SmallPart, bool)> {
        let _alone = self.writers.try_alone(&key)?;
        // Under this lock, no change of the size begins. Later ones find the part.
        let table = self.lock();
        let is_changing = table.files.get(&key).is_some_and(|file| file.changing > 0);
        let add = || self.writers.exposure.add_small(key, exposed);
        (!is_changing).then(add).flatten()
    }

    /// Lets the client of an open read a shared exposure until its last session or its lease ends.
    fn grant_small(&self, open: &OpenState, exposed: &Arc<ExposedFile>) -> bool {
        let client: &Client = &open.client;
        // Under this lock, the state of the client does not end.
        let table = self.lock();
        let is_live = open.life.is_live() && StateTable::check_current(client).is_ok();
        let new = || Grant::new(exposed.clone(), self.writers.clone());
        let (is_granted, former) = match is_live {
            true => client.shown.grant(exposed, new),
            false => (false, None),
        };
        drop(table);
        drop(former);
        is_granted
    }
}

/// Returns the key of the root of a store. No client has a file of this key open.
fn root_of(store: &dyn Store) -> Handle {
    Handle { fs: store.fs_id(), file: store.root() }
}

/// True if the export lets small files share an exposure for such clients: it squashes no root.
fn lets_share(export: &Export, is_remote: bool) -> bool {
    is_exposable(export, is_remote) && export.options().squash == Squash::None
}

impl Service {
    /// Exposes the file of an open together with other small files, to a client that maps memory, or that
    /// reads it by RDMA (`is_remote`). The client must be one that may speak for any user: it can read
    /// all of them then, until its last session or its lease ends, or
    /// [`end_small_grants`](Self::end_small_grants). The question counts as a request that has read the
    /// file.
    ///
    /// # Errors
    /// Those of the state-id. `OpenMode`. The store's.
    pub fn expose_small(
        &self,
        caller: Caller<'_>,
        handle: &Handle,
        state: impl Into<StateRef>,
        is_remote: bool,
    ) -> Result<SmallFile> {
        let open = self.state.open_state(caller, handle, state)?;
        let file = open.file(OpenMode { read: true, write: false })?;
        let namespace = self.exports.namespace();
        let export = namespace.export(handle)?;
        if !lets_share(export, is_remote) {
            return Ok(SmallFile::Other);
        }
        let attr = file.attr()?;
        let size = attr.size;
        if size > SMALL_FILE_BYTES || attr.links == 0 {
            return Ok(SmallFile::Other);
        }
        let key = export.key(handle);
        let all = &self.state.writers.exposure;
        let root = root_of(&**export.store());
        if all.small_file(&key).is_some_and(|(known, _)| known.key != root) {
            return Ok(SmallFile::Other);
        }
        let is_barred = || self.fences.is_fenced(&key) || self.state.guards.maybe_broken(&key);
        if is_barred() {
            return Ok(SmallFile::Hidden);
        }
        let client = &open.client;
        let payer = Payer { host: client.host().host(), client: client.key() };
        let shown = self.state.expose_small(key, export.store(), payer);
        let Some((exposure, part)) = shown else { return Ok(SmallFile::Hidden) };
        // A fence, a broken lock and rules that come later end this exposure.
        let namespace = self.exports.namespace();
        let is_allowed = exposure.key == root
            && namespace.export(handle).is_ok_and(|export| lets_share(export, is_remote));
        if is_barred() || !is_allowed {
            all.end(&exposure);
            return Ok(SmallFile::Hidden);
        }
        // Before the client can know a frame.
        exposure.file.lock().has_remote_readers |= is_remote;
        if !self.state.grant_small(&open, &exposure) {
            if !exposure.file.lock().has_grants() {
                all.end(&exposure);
            }
            return Ok(SmallFile::Hidden);
        }
        let Some(page) = exposure.page(part.window()) else {
            all.make_room(&exposure);
            return Ok(SmallFile::Hidden);
        };
        if let Some(asked) = part.within(&blocks(0, size)) {
            exposure.file.lock().asked(asked, exposure.shared.now_ns(), &*exposure.memory);
        }
        // Its client looks there alone from now on. Requests would fill the memory of the file alone.
        drop(open.take_grant());
        Ok(SmallFile::Shown { exposure, part, page })
    }

    /// Ends the right of a client to read exposures that small files share, because it may no longer
    /// speak for any user. On return their memory is taken back. It may ask again.
    pub fn end_small_grants(&self, client: &Client) {
        drop(client.shown.revoke());
    }
}
