//! The delegated files, and their known names and attributes. No I/O.
//!
//! Invariants
//! * Names and attributes of a file are known only while its delegation is held. Only answers to
//!   requests sent after it came, and after the last change of our own, are stored. A name is known
//!   only for a file without other names, so that any operation on that name concerns it. The
//!   attributes of a file without a known name are valid only until any name is changed here.
//! * No name is stored while names are being changed here: a recall would not report that it
//!   denotes another file.
//! * A file that is open for writing here is not delegated: the sizes of the kernel and of the
//!   server differ then.
//! * A deferred open (promised) stays one until the server knows it or the kernel has closed it,
//!   also when its file is not delegated any more.

use crate::kernel::NodeId;
use crate::limits::ADMITTED_USERS_MAX;
use dafs_client::{Attributes, FileHandle, User};
use rustc_hash::FxHashMap;

/// The part of the room for files that is kept free, so that a new file need not wait for another
/// to leave.
const CROWD_PART: usize = 16;

/// Refusals in a row that mean that the server has no more delegations for this mount. Files that
/// other clients write seldom cause so many.
const REFUSALS_MAX: usize = 64;

/// The number of files that are kept despite refusals.
const FILES_MAX_LEAST: usize = 256;

/// A delegation, which may have become invalid.
pub(super) trait Right {
    fn is_good(&self) -> bool;
}

/// The stages of a delegation, which only move forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Content may be cached under it.
    There,
    /// The cached content is being dropped.
    Leaving,
}

/// The known name and attributes of a file.
#[derive(Debug)]
struct Known {
    /// The directory, and the name in it.
    name: Option<(FileHandle, Box<[u8]>)>,
    asked: u64,
    attributes: Attributes,
}

/// A delegated file.
#[derive(Debug)]
struct Held<R> {
    right: R,
    stage: Stage,
    /// The time when its delegation came.
    since: u64,
    /// The time of the last change of the file or its name here.
    changed: u64,
    used: u64,
    /// The users that may open it, if the server judges each; `None` is that of the session.
    admitted: Vec<Option<User>>,
    /// The kernel has dropped older pages.
    is_clean: bool,
    known: Option<Known>,
}

/// A deferred open: an open file of the kernel that the server does not know.
#[derive(Debug, Clone)]
pub(crate) struct DeferredOpen {
    pub(crate) handle: FileHandle,
    pub(crate) node: NodeId,
    pub(crate) flags: i32,
    /// The user that opens it; `None` for that of the session.
    pub(crate) user: Option<User>,
}

/// The way to open a file for reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Opening {
    /// Without the server. The kernel may use its cached pages if they are `clean`.
    Deferred { is_clean: bool },
    /// At the server, which may grant a delegation.
    Delegated,
    /// At the server, without a delegation.
    Plain,
}

/// The table of delegated files.
#[derive(Debug)]
pub(super) struct Table<R> {
    held: FxHashMap<FileHandle, Held<R>>,
    /// The known names, by directory.
    names: FxHashMap<FileHandle, FxHashMap<Box<[u8]>, FileHandle>>,
    deferred: FxHashMap<u64, DeferredOpen>,
    /// Their numbers, by file.
    deferred_of: FxHashMap<FileHandle, Vec<u64>>,
    /// The number of opens for writing and of other changes here, by file.
    writers: FxHashMap<FileHandle, usize>,
    /// Open files for which the kernel drops older pages, by number, with the time.
    cleaning: FxHashMap<u64, (FileHandle, u64)>,
    /// A logical clock of events.
    time: u64,
    /// The time of the last change of names here.
    names_changed: u64,
    /// The time of the last change of any file here.
    files_changed: u64,
    /// Changes of names under way here.
    naming: usize,
    files_max: usize,
    /// The maximum to which that may grow again.
    files_limit: usize,
    /// Refusals of a delegation in a row.
    refusals: usize,
    pub(super) is_paused: bool,
    /// The server lets each user open a file for itself.
    pub(super) judges_users: bool,
}

impl<R: Right> Table<R> {
    pub(super) fn new(files_max: usize) -> Self {
        Self {
            held: FxHashMap::default(),
            names: FxHashMap::default(),
            deferred: FxHashMap::default(),
            deferred_of: FxHashMap::default(),
            writers: FxHashMap::default(),
            cleaning: FxHashMap::default(),
            time: 0,
            names_changed: 0,
            files_changed: 0,
            naming: 0,
            files_max,
            files_limit: files_max,
            refusals: 0,
            is_paused: false,
            judges_users: false,
        }
    }

    fn tick(&mut self) -> u64 {
        self.time += 1;
        self.time
    }

    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    pub(super) fn has_promised(&self) -> bool {
        !self.deferred.is_empty()
    }

    pub(super) fn all(&self) -> Vec<FileHandle> {
        self.held.keys().copied().collect()
    }

    /// The file, if its delegation is valid.
    fn usable(&mut self, handle: &FileHandle) -> Option<&mut Held<R>> {
        let time = self.tick();
        let held = self.held.get_mut(handle)?;
        if held.stage != Stage::There || !held.right.is_good() {
            return None;
        }
        held.used = time;
        Some(held)
    }

    pub(super) fn attributes(&mut self, handle: &FileHandle) -> Option<Attributes> {
        let names_changed = self.names_changed;
        let known = self.usable(handle)?.known.as_ref()?;
        // A file without a known name may have lost a name since.
        let is_good = known.name.is_some() || known.asked >= names_changed;
        is_good.then(|| known.attributes.clone())
    }

    pub(super) fn named(&self, dir: &FileHandle, name: &[u8]) -> Option<FileHandle> {
        self.names.get(dir)?.get(name).copied()
    }

    /// The time of a request to the server, which is sent after this.
    pub(super) fn asking(&self) -> u64 {
        self.time
    }

    pub(super) fn learn(
        &mut self,
        asked: u64,
        name: Option<(&FileHandle, &[u8])>,
        attributes: &Attributes,
    ) {
        let handle = attributes.handle;
        let Some(held) = self.held.get(&handle) else { return };
        let newest = held.since.max(held.changed).max(self.names_changed);
        if held.stage != Stage::There || newest > asked {
            return;
        }
        // Changes through other names of it would not be seen, nor those under way of this one.
        let name = name.filter(|_| attributes.links == 1 && self.naming == 0);
        let name = name.map(|(dir, name)| (*dir, Box::<[u8]>::from(name)));
        self.unlearn(&handle);
        if let Some(held) = self.held.get_mut(&handle) {
            if let Some((dir, name)) = &name {
                self.names.entry(*dir).or_default().insert(name.clone(), handle);
            }
            held.known = Some(Known { name, asked, attributes: attributes.clone() });
        }
    }

    fn unlearn(&mut self, handle: &FileHandle) {
        let known = self.held.get_mut(handle).and_then(|held| held.known.take());
        let Some((dir, name)) = known.and_then(|known| known.name) else { return };
        if let Some(names) = self.names.get_mut(&dir) {
            if names.get(&name) == Some(handle) {
                names.remove(&name);
            }
            if names.is_empty() {
                self.names.remove(&dir);
            }
        }
    }

    pub(super) fn changed(&mut self, handle: &FileHandle) {
        self.unlearn(handle);
        let time = self.tick();
        self.files_changed = time;
        if let Some(held) = self.held.get_mut(handle) {
            held.changed = time;
            held.admitted.clear();
        }
    }

    /// Records that the server has let a user open a file, under this number. It was asked at
    /// `asked`: since then nobody may have changed the rights, neither here nor elsewhere.
    pub(super) fn admit(
        &mut self,
        asked: u64,
        number: u64,
        handle: &FileHandle,
        user: &Option<User>,
    ) {
        let judges_users = self.judges_users;
        let Some(held) = self.held.get_mut(handle) else { return };
        // The delegation came with this very open, or was there before; else another host may have
        // changed the file between the two. A file that was not delegated has no time of its own.
        let is_current = match self.cleaning.get(&number) == Some(&(*handle, held.since)) {
            true => self.files_changed <= asked && held.changed == held.since,
            false => held.since.max(held.changed) <= asked,
        };
        let has_room = held.admitted.len() < ADMITTED_USERS_MAX;
        if judges_users && has_room && is_current && !held.admitted.contains(user) {
            held.admitted.push(user.clone());
        }
    }

    /// Records that a change of names begins here.
    pub(super) fn begin_names(&mut self) {
        self.naming += 1;
    }

    /// Records that names have changed here, or may have.
    pub(super) fn end_names(&mut self) {
        debug_assert!(self.naming > 0, "it was said before");
        self.naming -= 1;
        self.names_changed = self.tick();
    }

    /// The kernel opens a file for reading; `number` would be that of a deferred open.
    pub(super) fn open(&mut self, number: u64, deferred: DeferredOpen) -> Opening {
        let handle = deferred.handle;
        if self.is_paused || self.writers.contains_key(&handle) {
            return Opening::Plain;
        }
        // A file without a known name may be the one that is losing its name; the server must know
        // the open then.
        let is_losing =
            |held: &Held<R>| held.known.as_ref().is_none_or(|known| known.name.is_none());
        let (is_naming, judges_users) = (self.naming > 0, self.judges_users);
        let may_defer = |held: &&mut Held<R>| {
            (!is_naming || !is_losing(held))
                && (!judges_users || held.admitted.contains(&deferred.user))
        };
        if let Some(held) = self.usable(&handle).filter(may_defer) {
            let is_clean = held.is_clean;
            self.deferred.insert(number, deferred);
            self.deferred_of.entry(handle).or_default().push(number);
            if !is_clean {
                self.cleaning.insert(number, (handle, self.time));
            }
            return Opening::Deferred { is_clean };
        }
        match self.held.contains_key(&handle) {
            true => Opening::Plain,
            false => Opening::Delegated,
        }
    }

    /// Adds the delegation that came with the open file of this number. It is valid when `ready`
    /// says so, which registers it for recalls. Returns a delegation that is to be returned.
    pub(super) fn came(
        &mut self,
        number: u64,
        handle: FileHandle,
        mut right: R,
        ready: impl FnOnce(&mut R) -> bool,
    ) -> Option<R> {
        let is_wanted = !self.is_paused
            && !self.writers.contains_key(&handle)
            && !self.held.contains_key(&handle)
            && self.held.len() < self.files_max;
        // A delegation of a former run of the server would never be used, and never given up.
        if !is_wanted || !ready(&mut right) || !right.is_good() {
            return Some(right);
        }
        self.refusals = 0;
        self.files_max = (self.files_max + 1).min(self.files_limit);
        let since = self.tick();
        let (stage, is_clean, known) = (Stage::There, false, None);
        let (changed, used, admitted) = (since, since, Vec::new());
        let held = Held { right, stage, since, changed, used, admitted, is_clean, known };
        self.held.insert(handle, held);
        self.cleaning.insert(number, (handle, since));
        None
    }

    /// Records that the server opened a file without a delegation. If it does so again and again it
    /// has none left for this mount, and the files in use now should get those of others. True when
    /// there is little room then.
    pub(super) fn refused(&mut self) -> bool {
        self.refusals += 1;
        let is_enough = self.refusals >= REFUSALS_MAX && self.held.len() >= FILES_MAX_LEAST;
        if is_enough {
            self.refusals = 0;
            self.files_max = self.files_max.min(self.held.len());
        }
        is_enough && self.is_crowded()
    }

    /// True when there is little room for more files.
    pub(super) fn is_crowded(&self) -> bool {
        self.held.len() + self.room_min() > self.files_max
    }

    fn room_min(&self) -> usize {
        (self.files_max / CROWD_PART).max(1)
    }

    /// The files to give up to make room: the least recently used, without deferred opens.
    pub(super) fn crowd(&self) -> Vec<FileHandle> {
        let room = 2 * self.room_min();
        let count = (self.held.len() + room).saturating_sub(self.files_max);
        let idle = |(handle, held): &(&FileHandle, &Held<R>)| {
            held.stage == Stage::There && !self.deferred_of.contains_key(*handle)
        };
        let mut idle: Vec<(u64, FileHandle)> =
            self.held.iter().filter(idle).map(|(handle, held)| (held.used, *handle)).collect();
        idle.sort_unstable_by_key(|(used, _)| *used);
        idle.into_iter().take(count).map(|(_, handle)| handle).collect()
    }

    /// The number of open files of which [`used`](Self::used) must be called.
    pub(super) fn cleaning(&self) -> usize {
        self.cleaning.len()
    }

    pub(super) fn used(&mut self, number: u64) {
        if let Some((handle, opened)) = self.cleaning.remove(&number)
            && let Some(held) = self.held.get_mut(&handle)
            && held.since <= opened
        {
            held.is_clean = true;
        }
    }

    pub(super) fn closed(&mut self, number: u64) {
        self.cleaning.remove(&number);
    }

    pub(super) fn leave(&mut self, handle: &FileHandle) -> bool {
        self.unlearn(handle);
        match self.held.get_mut(handle) {
            Some(held) if held.stage != Stage::Leaving => {
                held.stage = Stage::Leaving;
                true
            }
            _ => false,
        }
    }

    pub(super) fn deferred_of(&self, handle: &FileHandle) -> Vec<u64> {
        self.deferred_of.get(handle).cloned().unwrap_or_default()
    }

    pub(super) fn all_promised(&self) -> Vec<u64> {
        self.deferred.keys().copied().collect()
    }

    pub(super) fn deferred(&self, number: u64) -> Option<DeferredOpen> {
        self.deferred.get(&number).cloned()
    }

    pub(super) fn settle(&mut self, number: u64) -> bool {
        let Some(deferred) = self.deferred.remove(&number) else { return false };
        if let Some(numbers) = self.deferred_of.get_mut(&deferred.handle) {
            numbers.retain(|other| *other != number);
            if numbers.is_empty() {
                self.deferred_of.remove(&deferred.handle);
            }
        }
        true
    }

    /// Removes a file that the kernel has forgotten, unless it `is_known` again: it may have been
    /// opened since, and its delegation is as good as before.
    pub(super) fn forget(
        &mut self,
        handle: &FileHandle,
        is_known: impl FnOnce() -> bool,
    ) -> Option<R> {
        let is_idle = self.held.get(handle)?.stage == Stage::There
            && !self.deferred_of.contains_key(handle)
            && !is_known();
        if is_idle { self.remove(handle) } else { None }
    }

    pub(super) fn remove(&mut self, handle: &FileHandle) -> Option<R> {
        self.unlearn(handle);
        self.held.remove(handle).map(|held| held.right)
    }

    pub(super) fn begin_write(&mut self, handle: FileHandle) {
        *self.writers.entry(handle).or_default() += 1;
    }

    pub(super) fn end_write(&mut self, handle: &FileHandle) {
        if let Some(count) = self.writers.get_mut(handle) {
            *count -= 1;
            if *count == 0 {
                self.writers.remove(handle);
            }
        }
    }
}
