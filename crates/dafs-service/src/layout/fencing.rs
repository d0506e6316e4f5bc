//! Revoked layouts of holders that did not return them. Conflicting operations wait until the data
//! servers have dropped their authorisations.
//!
//! Invariants
//! * A file is held back from the revocation on, in the same step under the table's lock, and
//!   released when the store says that no data server honours the layout any more. Meanwhile no
//!   client gets opens, locks or delegations of it, and no client writes without an open: they may
//!   conflict with the revoked state.
//! * Data servers also drop authorisations for the sake of late writes ([`super::late`]). Only the
//!   client that has sent these waits for that.
//! * Then the server looks for unreported writes of the holder. Until it knows the size, no client
//!   gets locks or delegations of the file, because their holders append at the end of the file.
//! * The store is never asked under the table's lock, and never by a reactor thread. A store that
//!   cannot be certain now is not asked again in the same round. Files that are held back come
//!   first, and those that were asked in vain last. A round touches only the entries that it asks
//!   for.
//! * A slow store blocks few threads: one has the round, and at most one for each of a few files
//!   looks for its end. Other stores do not wait for it.
//! * There are at most as many files of one store as there may be layouts. With more the store gets
//!   no new layouts.

use super::asking::{Asking, EndAsked};
use super::mtime::learn_of_writes;
use super::{LayoutState, Layouts};
use crate::client::{Client, ClientKey};
use crate::handle::Handle;
use crate::limits::{FENCED_AT_ONCE, LAYOUT_PATIENCE_NS, RETURN_SETTLE_TIME};
use crate::table::{Blocked, StateTable};
use crate::{Result, ServiceError};
use dafs_mem::Shrinking as _;
use dafs_store::{Store, StoreError, TimeSpec};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Instant;

/// The files with questions to their stores.
#[derive(Default)]
pub(crate) struct Fencing {
    files: FxHashMap<Handle, Fenced>,
    lines: Vec<Line>,
    next: u64,
    /// Counts the notes of all files.
    noted: u64,
}

/// The files of one store, in the order in which they are asked about.
struct Line {
    store: Arc<dyn Store>,
    files: BTreeMap<Turn, Handle>,
    asking: Arc<Asking>,
}

impl Line {
    /// True if no question is due, and no thread asks.
    fn is_idle(&self) -> bool {
        self.files.is_empty() && Arc::strong_count(&self.asking) == 1
    }
}

/// The order of files: first false, for files whose authorisations are to be dropped, then the
/// smaller number, which a file gets with its place.
type Turn = (bool, u64);

struct Fenced {
    store: Arc<dyn Store>,
    turn: Turn,
    /// Data servers may still honour a revoked layout.
    believed: bool,
    /// The time of the first refusal of a layout for that reason.
    refused_ns: Option<u64>,
    /// They may still execute writes of a client that it has replaced by writes through this
    /// server.
    late: bool,
    /// Unreported writes to look for.
    written: Option<Written>,
    /// The unique number of the last note: it shows a note that came while the store was asked.
    noted: u64,
}

/// Writes that a holder may not have reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Written {
    /// The holder is there and goes on writing: it knows itself which data it wrote.
    pub(super) goes_on: bool,
    /// The modification time that it has set since.
    pub(super) mtime: Option<TimeSpec>,
    /// The holder, or `None` for several.
    pub(super) client: Option<ClientKey>,
}

/// The questions to a store about one file.
struct Due {
    key: Handle,
    store: Arc<dyn Store>,
    forget: bool,
    written: Option<Written>,
    noted: u64,
}

impl Fencing {
    /// Notes a revoked layout. True when the file was not held back before.
    fn add(&mut self, store: &Arc<dyn Store>, key: Handle, written: Option<Written>) -> bool {
        let fresh = !self.holds_back(&key);
        self.note(store, key, written).believed = true;
        if fresh {
            self.put_last(&key);
        }
        fresh
    }

    /// Notes writes that may not have been reported.
    pub(super) fn note_written(&mut self, store: &Arc<dyn Store>, key: Handle, written: Written) {
        self.note(store, key, Some(written));
    }

    /// Notes that a client has written through this server bytes that it may have sent to data
    /// servers before.
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

    /// Moves a file behind all others of its kind.
    fn put_last(&mut self, key: &Handle) {
        let Some(file) = self.files.get_mut(key) else { return };
        let line = line_in(&mut self.lines, &file.store);
        line.files.remove(&file.turn);
        file.turn = (!file.is_to_be_forgotten(), self.next);
        self.next += 1;
        line.files.insert(file.turn, *key);
    }

    /// Returns the threads that ask a store.
    pub(super) fn asking_of(&mut self, store: &Arc<dyn Store>) -> Arc<Asking> {
        line_in(&mut self.lines, store).asking.clone()
    }

    /// Removes a file without questions.
    fn tidy(&mut self, key: &Handle) {
        let done = |file: &&Fenced| !file.is_to_be_forgotten() && file.written.is_none();
        let Some(file) = self.files.get(key).filter(done) else { return };
        let (store, turn) = (file.store.clone(), file.turn);
        self.files.remove_and_shrink(key);
        self.lines.iter_mut().filter(|line| Arc::ptr_eq(&line.store, &store)).for_each(|line| {
            line.files.remove(&turn);
        });
        self.lines.retain(|line| !line.is_idle());
    }

    /// True if changes of this file, and new state on it, have to wait.
    pub(crate) fn holds_back(&self, key: &Handle) -> bool {
        self.files.get(key).is_some_and(|file| file.believed)
    }

    /// Returns the answer to a request for a layout of a file that is held back. Data servers that
    /// are reachable drop their authorisations at once, and a client that is told that there is no
    /// layout does not ask again for minutes. So the first answers are `Delay`.
    pub(super) fn refusal(&mut self, key: &Handle, now_ns: u64) -> Option<ServiceError> {
        let file = self.files.get_mut(key).filter(|file| file.believed)?;
        let first_ns = *file.refused_ns.get_or_insert(now_ns);
        match now_ns.saturating_sub(first_ns) < LAYOUT_PATIENCE_NS {
            true => Some(ServiceError::Delay),
            false => Some(ServiceError::LayoutUnavailable),
        }
    }

    /// True if a client may still have writes under way that it has replaced through this server.
    pub(super) fn is_late(&self, key: &Handle) -> bool {
        self.files.get(key).is_some_and(|file| file.late)
    }

    /// True if there may be unreported writes to this file.
    pub(crate) fn is_written(&self, key: &Handle) -> bool {
        self.files.get(key).is_some_and(|file| file.written.is_some())
    }

    /// Returns the store of a file with such writes, if they may be this client's.
    pub(super) fn written_by(&self, key: &Handle, client: ClientKey) -> Option<Arc<dyn Store>> {
        let file = self.files.get(key)?;
        let writer = file.written?.client;
        writer.is_none_or(|writer| writer == client).then(|| file.store.clone())
    }

    /// Returns the modification time that the writer of a file has set since such writes.
    pub(super) fn mtime_of(&self, key: &Handle) -> Option<TimeSpec> {
        self.files.get(key)?.written?.mtime
    }

    /// True if there is any question about this file.
    pub(super) fn has(&self, key: &Handle) -> bool {
        self.files.contains_key(key)
    }

    /// The number of files with questions.
    pub(crate) fn len(&self) -> usize {
        self.files.len()
    }

    /// The number of files with questions to one store.
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

    /// Returns the threads that ask the store of a file with questions.
    fn asking(&self, key: &Handle) -> Option<Arc<Asking>> {
        Some(self.line_of(&self.files.get(key)?.store)?.asking.clone())
    }

    /// The next questions to a store.
    fn next_of(&self, store: &Arc<dyn Store>, count: usize) -> Vec<Due> {
        let files = self.line_of(store).into_iter().flat_map(|line| line.files.values());
        files.take(count).filter_map(|key| Some(self.files.get(key)?.due(key))).collect()
    }

    /// The files that are held back.
    fn held_back(&self, wanted: impl Fn(&Handle) -> bool) -> Vec<Handle> {
        let wanted = |(key, file): &(&Handle, &Fenced)| file.believed && wanted(key);
        self.files.iter().filter(wanted).map(|(key, _)| *key).collect()
    }

    /// The questions about one file.
    fn due_of(&self, key: &Handle) -> Option<Due> {
        Some(self.files.get(key)?.due(key))
    }
}

/// Returns the line of a store, and makes it if there is none.
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

    /// True if data servers are to drop their authorisations for it.
    fn is_to_be_forgotten(&self) -> bool {
        self.believed || self.late
    }

    fn note(&mut self, noted: u64, written: Option<Written>) {
        self.noted = noted;
        if let Some(written) = written {
            let goes_on = written.goes_on && self.written.is_none_or(|before| before.goes_on);
            let before = self.written.map_or(written.client, |before| before.client);
            let client = written.client.filter(|_| before == written.client);
            self.written = Some(Written { goes_on, client, ..written });
        }
    }
}

impl StateTable {
    /// Holds a file back, because a layout was revoked.
    pub(super) fn hold_back(&mut self, layout: &LayoutState, written: bool) {
        let written = written.then(|| layout.written(false));
        self.hold_back_file(&layout.store, layout.key, written);
    }

    /// Does the same for a file of a revoked layout.
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

    /// Blocks an operation on a file as long as it is held back.
    pub(crate) fn check_held_back(&self, key: &Handle) -> std::result::Result<(), Blocked> {
        if self.fencing.holds_back(key) { Err(Blocked::Recall(Vec::new())) } else { Ok(()) }
    }

    /// Blocks a lock of a file until its size is known.
    pub(crate) fn check_size_known(&self, key: &Handle) -> std::result::Result<(), Blocked> {
        self.check_held_back(key)?;
        if self.fencing.is_written(key) { Err(Blocked::RecoverSize(*key)) } else { Ok(()) }
    }
}

impl Layouts {
    /// The stores with questions.
    pub fn stores_to_fence(&self) -> Vec<Arc<dyn Store>> {
        self.state.lock().fencing.stores()
    }

    /// Makes the data servers of a store drop their authorisations for revoked layouts, and looks
    /// for the holders' writes, unless another thread does. It waits for the data servers, so a
    /// thread without other work calls it, several times a second.
    pub fn fence_some(&self, store: &Arc<dyn Store>) {
        let asking = self.state.lock().fencing.line_of(store).map(|line| line.asking.clone());
        let Some(asking) = asking else { return };
        let Some(turn) = asking.turn.try_lock() else { return };
        self.fence_store(store);
        drop(turn);
    }

    /// Asks a store all questions about it, until it cannot be certain.
    fn fence_store(&self, store: &Arc<dyn Store>) {
        // Questions that come meanwhile wait for the next round.
        let mut left = self.state.lock().fencing.len_of(store);
        while left > 0 {
            let due = self.state.lock().fencing.next_of(store, left.min(FENCED_AT_ONCE));
            if due.is_empty() {
                return;
            }
            left -= due.len();
            for due in due {
                if let Err(error) = self.fence(&due) {
                    tracing::debug!(%error, "data servers still have grants for a layout");
                    return;
                }
            }
        }
    }

    /// Does the same at once for some files, until none of them is held back.
    ///
    /// # Errors
    /// `Delay` when that is not certain yet.
    pub(super) fn fence_now(&self, wanted: impl Fn(&Handle) -> bool) -> Result<()> {
        let held_back = self.state.lock().fencing.held_back(wanted);
        for key in held_back {
            let Some(asking) = self.state.lock().fencing.asking(&key) else { continue };
            let turn = asking.turn.lock();
            self.forget(&key)?;
            drop(turn);
        }
        Ok(())
    }

    /// Does the same for one file, unless another thread is asking its store now.
    ///
    /// # Errors
    /// `Delay` when that is not certain yet.
    pub(crate) fn fence_if_free(&self, key: &Handle) -> Result<()> {
        let Some(asking) = self.state.lock().fencing.asking(key) else { return Ok(()) };
        let turn = asking.turn.try_lock().ok_or(ServiceError::Delay)?;
        self.forget(key)?;
        drop(turn);
        Ok(())
    }

    /// Makes the data servers drop their authorisations for a file.
    fn forget(&self, key: &Handle) -> Result<()> {
        let due = self.state.lock().fencing.due_of(key).filter(|due| due.forget);
        due.map_or(Ok(()), |due| self.fence(&due)).map_err(|_| ServiceError::Delay)
    }

    /// Looks for the writes to a file for a client, unless another thread does.
    ///
    /// # Errors
    /// `Delay` when the size is not known, for instance because data servers do not answer.
    pub(crate) fn recover_size(&self, client: &Client, key: &Handle) -> Result<()> {
        let Some(asking) = self.state.lock().fencing.asking(key) else { return Ok(()) };
        let asked = EndAsked::begin(asking, *key, client.host().host());
        let asked = asked.ok_or(ServiceError::Delay)?;
        let due = self.state.lock().fencing.due_of(key);
        due.map_or(Ok(()), |due| self.fence(&due)).map_err(|_| ServiceError::Delay)?;
        drop(asked);
        if self.state.lock().fencing.is_written(key) { Err(ServiceError::Delay) } else { Ok(()) }
    }

    /// Asks the questions about layouts that a client has returned. The next rounds ask those that
    /// cannot be answered now, or not soon, like all others of a store that cannot be certain.
    pub(super) fn recover_sizes(&self, client: &Client, keys: &[Handle]) {
        let host = client.host().host();
        let mut unsure: Vec<Arc<dyn Store>> = Vec::new();
        let begun = Instant::now();
        for key in keys {
            if begun.elapsed() >= RETURN_SETTLE_TIME {
                return;
            }
            // A thread that looks for it already does so for this caller too.
            let asking = self.state.lock().fencing.asking(key);
            let asked = asking.and_then(|asking| EndAsked::begin(asking, *key, host));
            let due = asked.as_ref().and_then(|_| self.state.lock().fencing.due_of(key));
            let Some(due) = due else { continue };
            if !unsure.iter().any(|store| Arc::ptr_eq(store, &due.store))
                && let Err(error) = self.fence(&due)
            {
                tracing::debug!(%error, "a layout was returned and data servers do not answer");
                unsure.push(due.store);
            }
        }
    }

    /// Asks the store the questions that are due, and notes the results.
    fn fence(&self, due: &Due) -> std::result::Result<(), StoreError> {
        let key = &due.key;
        // It had layouts, and has them again when its data servers are known.
        let layouts = due.store.layouts().ok_or(StoreError::Busy)?;
        if due.forget {
            self.note_fencing(due, gone_is_fine(layouts.drop_grants(&key.file)), |file| {
                file.late = false;
                file.refused_ns = None;
                if std::mem::take(&mut file.believed) {
                    self.state.guards.remove(key);
                }
            })?;
        }
        if let Some(written) = due.written {
            self.note_fencing(due, gone_is_fine(due.recover_size(layouts, written)), |file| {
                file.written = None;
            })?;
        }
        self.state.lock().fencing.tidy(key);
        self.state.returned.notify_all();
        Ok(())
    }

    fn note_fencing(
        &self,
        due: &Due,
        outcome: std::result::Result<(), StoreError>,
        done: impl FnOnce(&mut Fenced),
    ) -> std::result::Result<(), StoreError> {
        let mut table = self.state.lock();
        if let Some(file) = table.fencing.files.get_mut(&due.key)
            && outcome.is_ok()
            && file.noted == due.noted
        {
            done(file);
        }
        // Another layout may have been revoked meanwhile.
        table.fencing.put_last(&due.key);
        drop(table);
        if due.forget && outcome.is_ok() {
            self.state.returned.notify_all();
        }
        outcome
    }
}

impl Due {
    /// Extends the file to the end of the written data, and keeps the time that the writer set,
    /// unless the file has another one by now.
    fn recover_size(
        &self,
        layouts: &dyn dafs_store::Layouts,
        written: Written,
    ) -> std::result::Result<(), StoreError> {
        let file = &self.key.file;
        let learn = || match written.goes_on {
            true => layouts.refresh_size(file),
            false => layouts.recover_size(file),
        };
        learn_of_writes(&*self.store, file, written.mtime, learn)
    }
}

/// For a file that is gone no authorisation is left.
fn gone_is_fine(
    outcome: std::result::Result<(), StoreError>,
) -> std::result::Result<(), StoreError> {
    match outcome {
        Err(StoreError::Stale | StoreError::BadHandle | StoreError::BadType) => Ok(()),
        other => other,
    }
}
