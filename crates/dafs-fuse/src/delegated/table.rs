//! Which files are kept by right of a delegation, and what is known of them. No I/O.
//!
//! Invariants
//! * Names and attributes are known of a file only while its delegation is there, only what was asked
//!   after it came, and after the last change of our own. A name is known only of a file that has no other
//!   one, so that whatever is done to that name concerns it; of what has no known name, the attributes
//!   are known only until any name is changed here.
//! * No name is learned while names are being changed here: nobody would hear that it means another file.
//! * A file that is open to write here is not kept: the kernel and the server tell different sizes then.
//! * An open file of the kernel that the server does not know (promised) stays one until the server knows
//!   it or the kernel has closed it, also when its file is not kept any more.

use crate::kernel::NodeId;
use dafs_client::{Attributes, FileHandle};
use rustc_hash::FxHashMap;

/// The part of the room for files that is kept free: who comes first does not wait for another to go.
const CROWD_PART: usize = 16;

/// Refusals in a row that mean that the server has no more delegations for this mount. Of files that
/// others write there are seldom so many.
const REFUSALS_MAX: usize = 64;

/// So many files are kept whatever is refused.
const FILES_MAX_LEAST: usize = 256;

/// A delegation, which may be good for nothing any more.
pub(super) trait Right {
    fn is_good(&self) -> bool;
}

/// How far a delegation is on its way; it never goes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Content may be kept by right of it.
    There,
    /// What was kept by right of it is being given up.
    Leaving,
}

/// What is known of a file.
#[derive(Debug)]
struct Known {
    /// The directory, and the name in it.
    name: Option<(FileHandle, Box<[u8]>)>,
    asked: u64,
    attributes: Attributes,
}

/// A file that is kept.
#[derive(Debug)]
struct Held<R> {
    right: R,
    stage: Stage,
    /// When it came.
    since: u64,
    /// When somebody here changed the file last, or its name.
    changed: u64,
    used: u64,
    /// The kernel has dropped what it had from before.
    is_clean: bool,
    known: Option<Known>,
}

/// An open file of the kernel that the server does not know.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Promised {
    pub(crate) handle: FileHandle,
    pub(crate) node: NodeId,
    pub(crate) flags: i32,
}

/// How a file can be opened to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Opening {
    /// Without the server. The kernel may go on with what it has, if that is `clean`.
    Promised { is_clean: bool },
    /// By the server, which may grant a delegation.
    Delegated,
    /// By the server, without one.
    Plain,
}

/// The table.
#[derive(Debug)]
pub(super) struct Table<R> {
    held: FxHashMap<FileHandle, Held<R>>,
    /// The names that are known, by directory.
    names: FxHashMap<FileHandle, FxHashMap<Box<[u8]>, FileHandle>>,
    promised: FxHashMap<u64, Promised>,
    /// Their numbers, by file.
    promised_of: FxHashMap<FileHandle, Vec<u64>>,
    /// How often files are open to write here, or otherwise changed.
    writers: FxHashMap<FileHandle, usize>,
    /// Open files that the kernel drops what it has of the file for, by number, with the time.
    cleaning: FxHashMap<u64, (FileHandle, u64)>,
    /// Counts what happens.
    time: u64,
    /// When names changed here last.
    names_changed: u64,
    /// Changes of names that are under way here.
    naming: usize,
    files_max: usize,
    /// What that may become again.
    files_limit: usize,
    /// How often in a row the server has granted no delegation.
    refusals: usize,
    pub(super) is_paused: bool,
}

impl<R: Right> Table<R> {
    pub(super) fn new(files_max: usize) -> Self {
        Self {
            held: FxHashMap::default(),
            names: FxHashMap::default(),
            promised: FxHashMap::default(),
            promised_of: FxHashMap::default(),
            writers: FxHashMap::default(),
            cleaning: FxHashMap::default(),
            time: 0,
            names_changed: 0,
            naming: 0,
            files_max,
            files_limit: files_max,
            refusals: 0,
            is_paused: false,
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
        !self.promised.is_empty()
    }

    pub(super) fn all(&self) -> Vec<FileHandle> {
        self.held.keys().copied().collect()
    }

    /// The file, if its delegation is good.
    fn usable(&mut self, handle: &FileHandle) -> Option<&mut Held<R>> {
        let time = self.tick();
        let held = self.held.get_mut(handle)?;
        if held.stage != Stage::There || !held.right.is_good() {
            return None;
        }
        held.used = time;
        Some(held)
    }

    /// What is known of a file.
    pub(super) fn attributes(&mut self, handle: &FileHandle) -> Option<Attributes> {
        let names_changed = self.names_changed;
        let known = self.usable(handle)?.known.as_ref()?;
        // A name of it may have been changed since, if nobody knows which it has.
        let is_good = known.name.is_some() || known.asked >= names_changed;
        is_good.then(|| known.attributes.clone())
    }

    /// The file that a name is known to stand for.
    pub(super) fn named(&self, dir: &FileHandle, name: &[u8]) -> Option<FileHandle> {
        self.names.get(dir)?.get(name).copied()
    }

    /// The time of a question to the server, which goes out after it.
    pub(super) fn asking(&self) -> u64 {
        self.time
    }

    /// What the server answered, to a question for a name or for a file.
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
        // What is done to another name of it would not be noticed, nor what is being done to this one.
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

    /// A change of a file has been carried out, or may have been.
    pub(super) fn changed(&mut self, handle: &FileHandle) {
        self.unlearn(handle);
        let time = self.tick();
        if let Some(held) = self.held.get_mut(handle) {
            held.changed = time;
        }
    }

    /// Names are about to change here.
    pub(super) fn begin_names(&mut self) {
        self.naming += 1;
    }

    /// Names have changed here, or may have.
    pub(super) fn end_names(&mut self) {
        debug_assert!(self.naming > 0, "it was said before");
        self.naming -= 1;
        self.names_changed = self.tick();
    }

    /// The kernel opens a file to read it; its `number` would be promised.
    pub(super) fn open(&mut self, number: u64, promised: Promised) -> Opening {
        let handle = promised.handle;
        if self.is_paused || self.writers.contains_key(&handle) {
            return Opening::Plain;
        }
        // One without a known name may be the one that is losing its name; the server must know it then.
        let is_losing =
            |held: &Held<R>| held.known.as_ref().is_none_or(|known| known.name.is_none());
        let is_naming = self.naming > 0;
        if let Some(held) = self.usable(&handle).filter(|held| !is_naming || !is_losing(held)) {
            let is_clean = held.is_clean;
            self.promised.insert(number, promised);
            self.promised_of.entry(handle).or_default().push(number);
            if !is_clean {
                self.cleaning.insert(number, (handle, self.time));
            }
            return Opening::Promised { is_clean };
        }
        match self.held.contains_key(&handle) {
            true => Opening::Plain,
            false => Opening::Delegated,
        }
    }

    /// A delegation has come with the open file of this number. It is good when `ready` says so, which
    /// lets recalls be heard. Yields it when it goes back.
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
        // One of a former run of the server would never be used, and nobody would give it up.
        if !is_wanted || !ready(&mut right) || !right.is_good() {
            return Some(right);
        }
        self.refusals = 0;
        self.files_max = (self.files_max + 1).min(self.files_limit);
        let since = self.tick();
        let (stage, is_clean, known) = (Stage::There, false, None);
        let held = Held { right, stage, since, changed: since, used: since, is_clean, known };
        self.held.insert(handle, held);
        self.cleaning.insert(number, (handle, since));
        None
    }

    /// The server has opened a file and granted no delegation. When it does so again and again it has none
    /// left for this mount, and the files that are used now are to have those of others. True when there is
    /// little room then.
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

    /// The files to give up so that there is room: those that were not used for longest, and nothing
    /// that the server does not know to be open.
    pub(super) fn crowd(&self) -> Vec<FileHandle> {
        let room = 2 * self.room_min();
        let count = (self.held.len() + room).saturating_sub(self.files_max);
        let idle = |(handle, held): &(&FileHandle, &Held<R>)| {
            held.stage == Stage::There && !self.promised_of.contains_key(*handle)
        };
        let mut idle: Vec<(u64, FileHandle)> =
            self.held.iter().filter(idle).map(|(handle, held)| (held.used, *handle)).collect();
        idle.sort_unstable_by_key(|(used, _)| *used);
        idle.into_iter().take(count).map(|(_, handle)| handle).collect()
    }

    /// How many open files there are that [`used`](Self::used) is to be told of.
    pub(super) fn cleaning(&self) -> usize {
        self.cleaning.len()
    }

    /// The kernel uses an open file, so it has dropped what it had when that was opened.
    pub(super) fn used(&mut self, number: u64) {
        if let Some((handle, opened)) = self.cleaning.remove(&number)
            && let Some(held) = self.held.get_mut(&handle)
            && held.since <= opened
        {
            held.is_clean = true;
        }
    }

    /// The kernel closes an open file.
    pub(super) fn closed(&mut self, number: u64) {
        self.cleaning.remove(&number);
    }

    /// Nothing more is kept of a file; false when there is nothing, or somebody is at it already.
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

    /// The open files of a file that the server does not know.
    pub(super) fn promised_of(&self, handle: &FileHandle) -> Vec<u64> {
        self.promised_of.get(handle).cloned().unwrap_or_default()
    }

    /// All of them.
    pub(super) fn all_promised(&self) -> Vec<u64> {
        self.promised.keys().copied().collect()
    }

    /// An open file that the server does not know.
    pub(super) fn promised(&self, number: u64) -> Option<Promised> {
        self.promised.get(&number).copied()
    }

    /// The server knows an open file now, or the kernel has closed it; false when that was so before.
    pub(super) fn settle(&mut self, number: u64) -> bool {
        let Some(promised) = self.promised.remove(&number) else { return false };
        if let Some(numbers) = self.promised_of.get_mut(&promised.handle) {
            numbers.retain(|other| *other != number);
            if numbers.is_empty() {
                self.promised_of.remove(&promised.handle);
            }
        }
        true
    }

    /// Takes a file out that the kernel has forgotten, unless it `is_known` again: it may have been opened
    /// since, and its delegation is as good as before.
    pub(super) fn forget(
        &mut self,
        handle: &FileHandle,
        is_known: impl FnOnce() -> bool,
    ) -> Option<R> {
        let is_idle = self.held.get(handle)?.stage == Stage::There
            && !self.promised_of.contains_key(handle)
            && !is_known();
        if is_idle { self.remove(handle) } else { None }
    }

    /// Takes a file out, to give its delegation back.
    pub(super) fn remove(&mut self, handle: &FileHandle) -> Option<R> {
        self.unlearn(handle);
        self.held.remove(handle).map(|held| held.right)
    }

    /// A file is opened to write here, or about to lose its name, or who may read it is about to change.
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
