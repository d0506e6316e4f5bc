//! Layouts that were taken from holders who did not give them back: until the data servers have let
//! go of them, what they stood against waits.
//!
//! Invariants
//! * A file is held back from the moment on at which a layout was taken away, in the same step under
//!   the table's lock, until the store has said that no data server goes by it any more. So long nobody
//!   is given opens, locks or delegations of it, and nobody writes without an open: what the holder had
//!   may have stood against that.
//! * Data servers are to let go of a file for the sake of late writes alone, too ([`super::late`]): nobody but
//!   who has sent them waits for that.
//! * What a holder may have written and did not tell is looked for after that, and until it is found
//!   nobody is given locks or delegations of the file: who has one appends where the file ends.
//! * The store is asked never under the table's lock and never by a reactor. Of a store that says that it cannot
//!   be sure now no more is asked in that turn; files that are held back come first, and those that were asked
//!   in vain last. A turn touches no more entries than it asks for.
//! * A store that keeps whoever asks it waiting keeps few of them: one has its turn, and one for each of a few
//!   files looks for its end. What other stores are asked does not wait for it.
//! * There are at most as many files of one store as there may be layouts: with more it gives none.

use super::LayoutState;
use crate::handle::Handle;
use crate::limits::{
    END_ANSWER_TIME, ENDS_ASKED_MAX, FENCED_AT_ONCE, LAYOUT_PATIENCE_NS, RETURN_SETTLE_TIME,
};
use crate::table::{Blocked, StateTable};
use crate::{Result, Service, ServiceError};
use dafs_store::{Cred, Layouts, SetAttr, SetTime, Store, StoreError, TimeSpec};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Instant;

/// The files concerned.
#[derive(Default)]
pub(crate) struct Fencing {
    files: FxHashMap<Handle, Fenced>,
    lines: Vec<Line>,
    next: u64,
    /// How much was noted, of all files.
    noted: u64,
}

/// The files of one store, in the order in which they are asked about.
struct Line {
    store: Arc<dyn Store>,
    files: BTreeMap<Turn, Handle>,
    asking: Arc<Asking>,
}

impl Line {
    /// Nothing is to be asked, and nobody asks.
    fn is_idle(&self) -> bool {
        self.files.is_empty() && Arc::strong_count(&self.asking) == 1
    }
}

/// Who asks a store now. Taken from a line under the table's lock.
#[derive(Default)]
pub(super) struct Asking {
    /// Held by the one who has data servers let go of layouts.
    turn: Mutex<()>,
    /// The files whose ends are looked for besides, and since when.
    ends: Mutex<FxHashMap<Handle, Instant>>,
}

impl Asking {
    fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// None if somebody else has it.
    fn turn_if_free(&self) -> Option<MutexGuard<'_, ()>> {
        match self.turn.try_lock() {
            Ok(turn) => Some(turn),
            Err(TryLockError::Poisoned(turn)) => Some(turn.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Whether who looks for the end of this file, or everybody who looks for one, has done so for longer
    /// than anybody waits.
    pub(super) fn is_slow(&self, key: &Handle) -> bool {
        let ends = self.ends();
        let is_slow = |since: &Instant| since.elapsed() >= END_ANSWER_TIME;
        let of_all = !ends.is_empty() && ends.values().all(is_slow);
        of_all || ends.get(key).is_some_and(is_slow)
    }

    fn ends(&self) -> MutexGuard<'_, FxHashMap<Handle, Instant>> {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One who looks for the end of a file.
pub(super) struct EndAsked {
    asking: Arc<Asking>,
    key: Handle,
}

impl EndAsked {
    /// None if somebody does already, or many do for other files of the store.
    pub(super) fn begin(asking: Arc<Asking>, key: Handle) -> Option<Self> {
        let mut ends = asking.ends();
        let begins = ends.len() < ENDS_ASKED_MAX && !ends.contains_key(&key);
        if begins {
            ends.insert(key, Instant::now());
        }
        drop(ends);
        // What is not begun is not to be ended either.
        begins.then(|| Self { asking, key })
    }
}

impl Drop for EndAsked {
    fn drop(&mut self) {
        self.asking.ends().remove(&self.key);
    }
}

/// False comes first, and the smaller number: it waits for nobody, and when it got its place.
type Turn = (bool, u64);

struct Fenced {
    store: Arc<dyn Store>,
    turn: Turn,
    /// Data servers may still go by a layout that was taken away.
    believed: bool,
    /// When somebody was first told that there is no layout for that.
    refused_ns: Option<u64>,
    /// They may still take what a client has sent them before it wrote the same here.
    late: bool,
    /// What is to be looked for.
    written: Option<Written>,
    /// The number of what was noted last, so that what is noted meanwhile is not passed over. No two have
    /// one.
    noted: u64,
}

/// What a holder may have written and did not tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Written {
    /// The holder is there and at it still: it knows itself what it wrote where.
    pub(super) goes_on: bool,
    /// The time of change that it has given the file since.
    pub(super) mtime: Option<TimeSpec>,
}

/// What is to be asked of a store about one file.
struct Due {
    key: Handle,
    store: Arc<dyn Store>,
    forget: bool,
    written: Option<Written>,
    noted: u64,
}

impl Fencing {
    /// A layout was taken away. True when the file was not held back before.
    fn add(&mut self, store: &Arc<dyn Store>, key: Handle, written: Option<Written>) -> bool {
        let fresh = !self.holds_back(&key);
        self.note(store, key, written).believed = true;
        if fresh {
            self.put_last(&key);
        }
        fresh
    }

    /// Somebody may have written what it did not tell.
    pub(super) fn note_written(&mut self, store: &Arc<dyn Store>, key: Handle, written: Written) {
        self.note(store, key, Some(written));
    }

    /// A client has written through this server what it may have sent to data servers before.
    pub(super) fn note_late(&mut self, store: &Arc<dyn Store>, key: Handle) {
        let fresh = !self.files.get(&key).is_some_and(Fenced::is_to_be_forgotten);
        self.note(store, key, None).late = true;
        if fresh {
            self.put_last(&key);
        }
    }

    fn note(
        &mut self,
        store: &Arc<dyn Store>,
        key: Handle,
        written: Option<Written>,
    ) -> &mut Fenced {
        self.noted += 1;
        let noted = self.noted;
        let file = self.enter(store, key);
        file.note(noted, written);
        file
    }

    fn enter(&mut self, store: &Arc<dyn Store>, key: Handle) -> &mut Fenced {
        if let Entry::Vacant(place) = self.files.entry(key) {
            let (store, turn) = (store.clone(), (true, u64::MAX));
            let (believed, refused_ns, late, written, noted) = Default::default();
            place.insert(Fenced { store, turn, believed, refused_ns, late, written, noted });
            self.put_last(&key);
        }
        // INVARIANT: it was put in above if it was not there.
        self.files.get_mut(&key).expect("a file that is in")
    }

    /// Asks about a file after all others like it.
    fn put_last(&mut self, key: &Handle) {
        let Some(file) = self.files.get_mut(key) else { return };
        let line = line_in(&mut self.lines, &file.store);
        line.files.remove(&file.turn);
        file.turn = (!file.is_to_be_forgotten(), self.next);
        self.next += 1;
        line.files.insert(file.turn, *key);
    }

    /// Who asks a store.
    pub(super) fn asking_of(&mut self, store: &Arc<dyn Store>) -> Arc<Asking> {
        line_in(&mut self.lines, store).asking.clone()
    }

    /// Forgets a file of which nothing is to be asked any more.
    fn tidy(&mut self, key: &Handle) {
        let done = |file: &&Fenced| !file.is_to_be_forgotten() && file.written.is_none();
        let Some(file) = self.files.get(key).filter(done) else { return };
        let (store, turn) = (file.store.clone(), file.turn);
        self.files.remove(key);
        self.lines.iter_mut().filter(|line| Arc::ptr_eq(&line.store, &store)).for_each(|line| {
            line.files.remove(&turn);
        });
        self.lines.retain(|line| !line.is_idle());
    }

    /// Whether what changes this file, or who may use it, has to wait.
    pub(crate) fn holds_back(&self, key: &Handle) -> bool {
        self.files.get(key).is_some_and(|file| file.believed)
    }

    /// What whoever asks for a layout of a file is told that is held back. Data servers let go at once, if
    /// they are there, and who hears that there is no layout does without for minutes.
    pub(super) fn refusal(&mut self, key: &Handle, now_ns: u64) -> Option<ServiceError> {
        let file = self.files.get_mut(key).filter(|file| file.believed)?;
        let first_ns = *file.refused_ns.get_or_insert(now_ns);
        match now_ns.saturating_sub(first_ns) < LAYOUT_PATIENCE_NS {
            true => Some(ServiceError::Delay),
            false => Some(ServiceError::LayoutUnavailable),
        }
    }

    /// Whether a client may still have under way what it has written through this server since.
    pub(super) fn is_late(&self, key: &Handle) -> bool {
        self.files.get(key).is_some_and(|file| file.late)
    }

    /// Whether somebody may have written to this file what is not known yet.
    pub(crate) fn is_written(&self, key: &Handle) -> bool {
        self.files.get(key).is_some_and(|file| file.written.is_some())
    }

    /// Whether anything is to be asked about this file.
    pub(super) fn has(&self, key: &Handle) -> bool {
        self.files.contains_key(key)
    }

    /// Files of which something is to be asked.
    pub(crate) fn len(&self) -> usize {
        self.files.len()
    }

    /// The same of one store.
    pub(super) fn len_of(&self, store: &Arc<dyn Store>) -> usize {
        self.line_of(store).map_or(0, |line| line.files.len())
    }

    fn line_of(&self, store: &Arc<dyn Store>) -> Option<&Line> {
        self.lines.iter().find(|line| Arc::ptr_eq(&line.store, store))
    }

    fn stores(&mut self) -> Vec<Arc<dyn Store>> {
        self.lines.retain(|line| !line.is_idle());
        let due = self.lines.iter().filter(|line| !line.files.is_empty());
        due.map(|line| line.store.clone()).collect()
    }

    /// Who asks the store of a file of which something is to be asked.
    fn asking(&self, key: &Handle) -> Option<Arc<Asking>> {
        Some(self.line_of(&self.files.get(key)?.store)?.asking.clone())
    }

    /// What is to be asked of a store next.
    fn next_of(&self, store: &Arc<dyn Store>, count: usize) -> Vec<Due> {
        let files = self.line_of(store).into_iter().flat_map(|line| line.files.values());
        files.take(count).filter_map(|key| Some(self.files.get(key)?.due(key))).collect()
    }

    /// Those that are held back.
    fn held_back(&self, wanted: impl Fn(&Handle) -> bool) -> Vec<Handle> {
        let wanted = |(key, file): &(&Handle, &Fenced)| file.believed && wanted(key);
        self.files.iter().filter(wanted).map(|(key, _)| *key).collect()
    }

    /// What is due of one file.
    fn due_of(&self, key: &Handle) -> Option<Due> {
        Some(self.files.get(key)?.due(key))
    }
}

/// The line of a store, if need be a new one.
fn line_in<'a>(lines: &'a mut Vec<Line>, store: &Arc<dyn Store>) -> &'a mut Line {
    let own = |line: &Line| Arc::ptr_eq(&line.store, store);
    let at = lines.iter().position(own).unwrap_or_else(|| {
        let (store, files, asking) = (store.clone(), BTreeMap::new(), Arc::default());
        lines.push(Line { store, files, asking });
        lines.len() - 1
    });
    &mut lines[at]
}

impl Fenced {
    fn due(&self, key: &Handle) -> Due {
        Due {
            key: *key,
            store: self.store.clone(),
            forget: self.is_to_be_forgotten(),
            written: self.written,
            noted: self.noted,
        }
    }

    /// Whether data servers are to be asked to let go of it.
    fn is_to_be_forgotten(&self) -> bool {
        self.believed || self.late
    }

    fn note(&mut self, noted: u64, written: Option<Written>) {
        self.noted = noted;
        if let Some(written) = written {
            let goes_on = written.goes_on && self.written.is_none_or(|before| before.goes_on);
            self.written = Some(Written { goes_on, ..written });
        }
    }
}

impl StateTable {
    /// A layout was taken away: the file is held back.
    pub(super) fn hold_back(&mut self, layout: &LayoutState, written: bool) {
        let written = written.then(|| layout.written(false));
        self.hold_back_file(&layout.store, layout.key, written);
    }

    /// The same of a file that a layout was of.
    pub(super) fn hold_back_file(
        &mut self,
        store: &Arc<dyn Store>,
        key: Handle,
        written: Option<Written>,
    ) {
        if self.fencing.add(store, key, written) {
            self.guards.add(&key);
        }
    }

    /// Has whoever wants to use a file wait for as long as it is held back.
    pub(crate) fn check_held_back(&self, key: &Handle) -> std::result::Result<(), Blocked> {
        if self.fencing.holds_back(key) { Err(Blocked::Recall(Vec::new())) } else { Ok(()) }
    }

    /// Has whoever wants to lock a file wait until it is known how far it reaches.
    pub(crate) fn check_settled(&self, key: &Handle) -> std::result::Result<(), Blocked> {
        self.check_held_back(key)?;
        if self.fencing.is_written(key) { Err(Blocked::Settle(*key)) } else { Ok(()) }
    }
}

impl Service {
    /// The stores that something is to be asked of.
    pub fn stores_to_fence(&self) -> Vec<Arc<dyn Store>> {
        self.lock_table().fencing.stores()
    }

    /// Has the data servers of a store let go of the layouts that were taken away, and looks for what their
    /// holders have written, unless somebody else does. Waits for them, so it is for a thread that has nothing
    /// else to do; to be called several times a second.
    pub fn fence_layouts(&self, store: &Arc<dyn Store>) {
        let asking = self.lock_table().fencing.line_of(store).map(|line| line.asking.clone());
        let Some(asking) = asking else { return };
        let Some(turn) = asking.turn_if_free() else { return };
        self.fence_store(store);
        drop(turn);
    }

    /// Asks a store about all that it is to be asked about, until it cannot be sure.
    fn fence_store(&self, store: &Arc<dyn Store>) {
        // What comes meanwhile is for the next turn.
        let mut left = self.lock_table().fencing.len_of(store);
        while left > 0 {
            let due = self.lock_table().fencing.next_of(store, left.min(FENCED_AT_ONCE));
            if due.is_empty() {
                return;
            }
            left -= due.len();
            for due in due {
                if let Err(error) = self.fence(&due) {
                    tracing::debug!(%error, "data servers have not let go of a layout yet");
                    return;
                }
            }
        }
    }

    /// The same at once for some files, until nothing of theirs is held back.
    ///
    /// # Errors
    /// `Delay` when that is not sure yet.
    pub(super) fn fence_now(&self, wanted: impl Fn(&Handle) -> bool) -> Result<()> {
        let held_back = self.lock_table().fencing.held_back(wanted);
        for key in held_back {
            let Some(asking) = self.lock_table().fencing.asking(&key) else { continue };
            let turn = asking.turn();
            self.forget(&key)?;
            drop(turn);
        }
        Ok(())
    }

    /// The same for one file, unless somebody else is asking its store now.
    ///
    /// # Errors
    /// `Delay` when it is not sure.
    pub(crate) fn fence_if_free(&self, key: &Handle) -> Result<()> {
        let Some(asking) = self.lock_table().fencing.asking(key) else { return Ok(()) };
        let turn = asking.turn_if_free().ok_or(ServiceError::Delay)?;
        self.forget(key)?;
        drop(turn);
        Ok(())
    }

    /// Has the data servers let go of a file.
    fn forget(&self, key: &Handle) -> Result<()> {
        let due = self.lock_table().fencing.due_of(key).filter(|due| due.forget);
        due.map_or(Ok(()), |due| self.fence(&due)).map_err(|_| ServiceError::Delay)
    }

    /// Looks for what was written to a file, unless somebody else does.
    ///
    /// # Errors
    /// `Delay` when it is not known, as when data servers do not answer.
    pub(crate) fn settle_file(&self, key: &Handle) -> Result<()> {
        let Some(asking) = self.lock_table().fencing.asking(key) else { return Ok(()) };
        let asked = EndAsked::begin(asking, *key).ok_or(ServiceError::Delay)?;
        let due = self.lock_table().fencing.due_of(key);
        due.map_or(Ok(()), |due| self.fence(&due)).map_err(|_| ServiceError::Delay)?;
        drop(asked);
        if self.lock_table().fencing.is_written(key) { Err(ServiceError::Delay) } else { Ok(()) }
    }

    /// Does for layouts that were given back what is due. What cannot be done now, or not soon, is done in
    /// the next turns, as is all else of a store that cannot be sure.
    pub(super) fn settle_now(&self, keys: &[Handle]) {
        let mut unsure: Vec<Arc<dyn Store>> = Vec::new();
        let begun = Instant::now();
        for key in keys {
            if begun.elapsed() >= RETURN_SETTLE_TIME {
                return;
            }
            // Who looks for it already does so for us.
            let asking = self.lock_table().fencing.asking(key);
            let asked = asking.and_then(|asking| EndAsked::begin(asking, *key));
            let due = asked.as_ref().and_then(|_| self.lock_table().fencing.due_of(key));
            let Some(due) = due else { continue };
            if !unsure.iter().any(|store| Arc::ptr_eq(store, &due.store))
                && let Err(error) = self.fence(&due)
            {
                tracing::debug!(%error, "a layout was given back and data servers do not answer");
                unsure.push(due.store);
            }
        }
    }

    /// Asks the store what is due, and notes what it has done.
    fn fence(&self, due: &Due) -> std::result::Result<(), StoreError> {
        let key = &due.key;
        // It had some, and has them again when its data servers are known.
        let layouts = due.store.layouts().ok_or(StoreError::Busy)?;
        if due.forget {
            self.note_fencing(due, gone_is_fine(layouts.forget(&key.file)), |file| {
                file.late = false;
                file.refused_ns = None;
                if std::mem::take(&mut file.believed) {
                    self.guards.remove(key);
                }
            })?;
        }
        if let Some(written) = due.written {
            self.note_fencing(due, gone_is_fine(due.settle(layouts, written)), |file| {
                file.written = None;
            })?;
        }
        self.lock_table().fencing.tidy(key);
        self.returned.notify_all();
        Ok(())
    }

    fn note_fencing(
        &self,
        due: &Due,
        outcome: std::result::Result<(), StoreError>,
        done: impl FnOnce(&mut Fenced),
    ) -> std::result::Result<(), StoreError> {
        let mut table = self.lock_table();
        if let Some(file) = table.fencing.files.get_mut(&due.key)
            && outcome.is_ok()
            && file.noted == due.noted
        {
            done(file);
        }
        // Another one may have been taken away meanwhile.
        table.fencing.put_last(&due.key);
        drop(table);
        if due.forget && outcome.is_ok() {
            self.returned.notify_all();
        }
        outcome
    }
}

impl Due {
    /// Has the file reach as far as was written, and keep the time that the writer gave it, unless it has
    /// another one by now.
    fn settle(
        &self,
        layouts: &dyn Layouts,
        written: Written,
    ) -> std::result::Result<(), StoreError> {
        let (store, file) = (&self.store, &self.key.file);
        let keeps = |time: &TimeSpec| store.getattr(file).is_ok_and(|attr| attr.mtime == *time);
        let given = written.mtime.filter(keeps);
        if written.goes_on { layouts.reach(file) } else { layouts.settle(file) }?;
        if let Some(time) = given {
            let change = SetAttr { mtime: Some(SetTime::To(time)), ..SetAttr::default() };
            if let Err(error) = store.setattr(&Cred::new(0, 0), file, &change, None) {
                tracing::debug!(%error, "a file has another time than its writer gave it");
            }
        }
        Ok(())
    }
}

/// Of a file that is gone there is nothing left to let go of.
fn gone_is_fine(
    outcome: std::result::Result<(), StoreError>,
) -> std::result::Result<(), StoreError> {
    match outcome {
        Err(StoreError::Stale | StoreError::BadHandle | StoreError::BadType) => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_store::{FILE_ID_BYTES, FileId, FsId};

    #[test]
    fn few_look_for_ends_at_a_time_and_one_for_each() {
        let key = |number| Handle { fs: FsId([1; 16]), file: FileId([number; FILE_ID_BYTES]) };
        let asking = Arc::<Asking>::default();
        let begin = |number| EndAsked::begin(asking.clone(), key(number));
        let mut asked: Vec<_> =
            (1..ENDS_ASKED_MAX as u8).map(|number| begin(number).unwrap()).collect();
        assert!(begin(1).is_none(), "somebody does already");
        asked.push(begin(100).unwrap());
        assert!(begin(101).is_none());
        asked.pop();
        assert!(begin(101).is_some());
        drop(asked);
        assert!(asking.ends().is_empty());
    }

    #[test]
    fn those_are_slow_who_look_for_long_and_nobody_when_none_looks() {
        let key = |number| Handle { fs: FsId([1; 16]), file: FileId([number; FILE_ID_BYTES]) };
        let asking = Asking::default();
        assert!(!asking.is_slow(&key(1)));
        let now = Instant::now();
        asking.ends().insert(key(1), now.checked_sub(END_ANSWER_TIME).unwrap());
        asking.ends().insert(key(2), now + END_ANSWER_TIME);
        assert!(asking.is_slow(&key(1)), "others are not waited for by who asks for this one");
        assert!(!asking.is_slow(&key(2)));
        assert!(!asking.is_slow(&key(3)), "there will be a turn soon");
        asking.ends().remove(&key(2));
        assert!(asking.is_slow(&key(3)));
    }
}
