//! The steps of a logged change: wait for its change locks, read the pre-image, log the intent, let
//! the caller execute it, make the touched objects stable, log the reply.
//!
//! Invariants
//! * No store call, no write and no notification happens with the ledger's lock held.
//! * A logged change releases its change locks exactly once: when it is settled or dropped.
//! * A change that goes on after a logged one finds the end of that one in the log, as durable as
//!   the intent promised.
//! * At most one job makes changes stable. All changes that are executed meanwhile share the next
//!   round.
//! * Every waiter is notified, whatever fails: a step that panics counts as failed, and the next
//!   step goes on.

use super::change_locks::{ChangeLock, Ends, Hold, LockList};
use super::execution::Ending;
use super::intent::Intent;
use super::ledger::{Executed, Flight, Ledger, Waiting};
use super::record::About;
use super::{Change, Effect, Intended, LoggedChange, Notify, Session, Settled};
use crate::Result;
use crate::error::ServiceError;
use crate::handle::Handle;
use crate::limits::{DURABLE_PRE_IMAGES_MAX, DURABLE_REPLY_BYTES_MAX};
use crate::replies::RequestKey;
use crate::write_verifier::WriteVerifier;
use dafs_journal::{Log, LogFailed, Spawn};
use dafs_mem::Mutex;
use dafs_mem::Shrinking as _;
use dafs_store::{Cred, FileId, Store, StoreError};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, OnceLock};

/// The journal of a service, and the changes under way.
pub(crate) struct Journal {
    pub(super) log: Arc<Log>,
    pub(super) spawn: Spawn,
    ledger: Mutex<Ledger>,
    /// Rounds in which changes were made stable, and the number of these changes.
    pub(super) rounds: AtomicU64,
    pub(super) committed: AtomicU64,
    /// The write verifier that changes when unstable data may be lost.
    lost: Arc<OnceLock<Arc<WriteVerifier>>>,
}

/// The next step of a change whose change locks are free.
enum PreImage {
    Intent(Intent),
    /// It is recorded when its offset in the file is known.
    Append,
    /// It waits for another change lock, or was given up.
    Waits,
}

fn failed(_: LogFailed) -> ServiceError {
    StoreError::Io.into()
}

/// Runs a part whose panic must not affect other changes. A panic becomes an I/O error.
pub(super) fn shielded<T>(part: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(part)).unwrap_or_else(|_| Err(StoreError::Io.into()))
}

/// Calls a notification. Its panic must not affect other changes.
pub(super) fn tell(ready: Notify, outcome: Result<()>) {
    let _its_own = catch_unwind(AssertUnwindSafe(|| ready(outcome)));
}

impl Journal {
    pub(super) fn new(
        log: Arc<Log>,
        spawn: Spawn,
        ledger: Ledger,
        lost: Arc<OnceLock<Arc<WriteVerifier>>>,
    ) -> Self {
        let (rounds, committed) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { log, spawn, ledger: Mutex::new(ledger), rounds, committed, lost }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock()
    }

    pub(super) fn intend(
        self: &Arc<Self>,
        store: &Arc<dyn Store>,
        power: bool,
        key: &RequestKey,
        (change, cred): (&Change<'_>, &Cred),
        locks: LockList,
        ready: Notify,
    ) -> Result<Intended> {
        let mut ledger = self.lock();
        if !ledger.has_room_for(&key.session) {
            return Err(ServiceError::Resource);
        }
        ledger.next_op += 1;
        let number = ledger.next_op;
        let about = About { op: number, key: *key, power };
        let free = ledger.locks.enter(number, &locks);
        let (mut now, waiting) = match free {
            true => (Some(ready), None),
            false => (None, Some(Waiting { change: change.owned(), cred: cred.clone(), ready })),
        };
        let store = store.clone();
        let (emptied, intent, ended) = (None, None, false);
        let flight = Flight { about, store: store.clone(), locks, emptied, intent, waiting, ended };
        ledger.flights.insert(number, flight);
        drop(ledger);
        let op = LoggedChange::new(Ending::new(self.clone(), number, false), change);
        if now.is_none() {
            return Ok(Intended::Waiting(op));
        }
        let mut next = Vec::new();
        let what = (change, cred);
        let pre_image = shielded(|| self.pre_image(number, &store, what, &mut now, &mut next));
        self.resume(next);
        // When this has failed, the change ends with `op`.
        let intent = match pre_image? {
            PreImage::Intent(intent) => intent,
            PreImage::Append => return Ok(Intended::Ready(op)),
            PreImage::Waits => return Ok(Intended::Waiting(op)),
        };
        let (Some(announced), Some(ready)) = (self.announce(number, intent)?, now) else {
            return Err(ServiceError::Delay);
        };
        if self.is_kept(announced)? {
            return Ok(Intended::Ready(op));
        }
        self.keep_soon(announced, ready);
        Ok(Intended::Waiting(op))
    }

    /// Reads the pre-image of a change whose change locks are free. A change that empties a file
    /// needs the lock of that file, too, and may have to wait for it with `ready`. If the name
    /// leads to another file meanwhile, the lock of the former one is released first: the holder of
    /// a file's lock waits for no other one, so there is no deadlock. The changes that waited for
    /// it are added to `next`, also after an error.
    ///
    /// # Errors
    /// Those of the store. `Delay` when the name leads to another file at each attempt.
    fn pre_image(
        &self,
        number: u64,
        store: &Arc<dyn Store>,
        (change, cred): (&Change<'_>, &Cred),
        ready: &mut Option<Notify>,
        next: &mut Vec<u64>,
    ) -> Result<PreImage> {
        for _ in 0..DURABLE_PRE_IMAGES_MAX {
            let Some(intent) = Intent::pre_image(&**store, change, cred)? else {
                return Ok(PreImage::Append);
            };
            if !change.empties() {
                return Ok(PreImage::Intent(intent));
            }
            let emptied = intent.emptied();
            let file = emptied
                .map(|file| ChangeLock::file(&Handle { fs: store.fs_id(), file }, Hold::Alone));
            let mut ledger = self.lock();
            let Ledger { flights, locks, .. } = &mut *ledger;
            let Some(flight) = flights.get_mut(&number) else { return Ok(PreImage::Waits) };
            if flight.emptied == file {
                return Ok(PreImage::Intent(intent));
            }
            if let Some(former) = std::mem::replace(&mut flight.emptied, file) {
                locks.leave(number, &[former], next);
            }
            let Some(file) = file else { return Ok(PreImage::Intent(intent)) };
            if locks.join(number, file) {
                // A race: another client may have changed it after the lookup.
                continue;
            }
            let (change, cred) = (change.owned(), cred.clone());
            flight.waiting = ready.take().map(|ready| Waiting { change, cred, ready });
            return Ok(PreImage::Waits);
        }
        Err(ServiceError::Delay)
    }

    /// Records a session and its client.
    pub(super) fn introduce(
        self: &Arc<Self>,
        session: &Session,
        power: bool,
        ready: Notify,
    ) -> Settled {
        let noted = self.lock().introduce(&self.log, session);
        let Some(sequence) = noted else { return Settled::Now };
        if power {
            self.log.sync_soon(sequence, Box::new(move |done| ready(done.map_err(failed))));
            return Settled::Later;
        }
        // If this fails, so will every change of the session.
        let _ = self.log.flush(sequence);
        Settled::Now
    }

    /// Records that a session is about to make a change without a record.
    pub(super) fn leave_out(&self, session: &[u8; 8]) -> Result<()> {
        let noted = self.lock().leave_out(&self.log, session);
        let Some(sequence) = noted else { return Ok(()) };
        self.log.flush(sequence).map_err(failed)?;
        // The change itself is no more stable than this.
        self.log.sync_soon(sequence, Box::new(|_| ()));
        Ok(())
    }

    /// Appends the intent to the log, and returns up to where that must be durable before the
    /// change is executed. `None` when the change was dropped meanwhile.
    ///
    /// # Errors
    /// The log accepts no more records. `Delay` when the session was forgotten meanwhile: its
    /// client waits for no reply.
    fn announce(&self, number: u64, intent: Intent) -> Result<Option<Ends>> {
        // Otherwise recovery would wait for the end of a change without an intent.
        if self.log.has_failed() {
            return Err(StoreError::Io.into());
        }
        let mut ledger = self.lock();
        let Ledger { flights, sessions, locks, .. } = &mut *ledger;
        let Some(flight) = flights.get_mut(&number) else { return Ok(None) };
        let about = flight.about;
        if !intent.appends() && !sessions.contains_key(&about.key.session) {
            return Err(ServiceError::Delay);
        }
        let before = locks.ends(flight.locks.iter().chain(&flight.emptied));
        let intent = Arc::new(intent);
        flight.intent = Some(intent.clone());
        let written = ledger.intend(&self.log, &about, &intent);
        // The ends before it are durable, too, as far as they have to be.
        let stable = if about.power { written } else { before.stable };
        Ok(Some(Ends { written, stable }))
    }

    /// Writes the log up to `ends`. False when [`keep_soon`](Self::keep_soon) has to do the rest.
    ///
    /// # Errors
    /// The log cannot be written.
    pub(super) fn is_kept(&self, ends: Ends) -> Result<bool> {
        let stable = self.log.is_stable(ends.stable);
        if stable {
            self.log.flush(ends.written).map_err(failed)?;
        }
        Ok(stable)
    }

    /// Notifies when the log is durable up to `ends`.
    pub(super) fn keep_soon(&self, ends: Ends, ready: Notify) {
        let sequence = ends.written.max(ends.stable);
        self.log.sync_soon(sequence, Box::new(move |done| tell(ready, done.map_err(failed))));
    }

    /// Records the offset of an append before its data is written.
    pub(super) fn place(&self, number: u64, intent: Intent) -> Result<()> {
        // No data is written for a change that was given up.
        let announced = self.announce(number, intent)?.ok_or(StoreError::Io)?;
        let power = !self.log.is_stable(announced.stable);
        self.keep(announced.written, power)
    }

    /// Records the result of an append: its effect, or none.
    pub(super) fn ended(&self, number: u64, effect: Option<&Effect>) -> Result<()> {
        let mut ledger = self.lock();
        let Some(flight) = ledger.flights.get_mut(&number) else {
            return Err(StoreError::Io.into());
        };
        flight.ended = true;
        let about = flight.about;
        let sequence = ledger.ended(&self.log, &about, effect);
        drop(ledger);
        self.keep(sequence, about.power)
    }

    /// Waits until a record is as durable as it must be.
    fn keep(&self, sequence: u64, power: bool) -> Result<()> {
        match power {
            true => self.log.sync_through(sequence).map_err(failed),
            false => self.log.flush(sequence).map_err(failed),
        }
    }

    /// Forgets the answer to the latest change of a stream, because its client has it. `None` when
    /// there is none, or when it is forgotten already.
    pub(super) fn outlived(
        self: &Arc<Self>,
        session: &[u8; 8],
        stream: u16,
        ready: Notify,
    ) -> Option<()> {
        let sequence = self.lock().outlived(&self.log, session, stream)?;
        self.log.sync_soon(sequence, Box::new(move |done| ready(done.map_err(failed))));
        Some(())
    }

    /// Lets changes go on that waited for a finished one.
    pub(super) fn resume(self: &Arc<Self>, mut next: Vec<u64>) {
        while let Some(number) = next.pop() {
            let mut ledger = self.lock();
            if ledger.guards.contains(number) {
                drop(ledger);
                self.resume_guard(number, &mut next);
                continue;
            }
            let Ledger { flights, locks, .. } = &mut *ledger;
            let Some(flight) = flights.get_mut(&number) else { continue };
            if flight.waiting.is_none() || !flight.is_first(number, locks) {
                continue;
            }
            let Some(Waiting { change, cred, ready }) = flight.waiting.take() else { continue };
            let store = flight.store.clone();
            drop(ledger);
            let mut ready = Some(ready);
            let what = (&change.borrow(), &cred);
            let pre_image =
                shielded(|| self.pre_image(number, &store, what, &mut ready, &mut next));
            let Some(ready) = ready else { continue };
            let intent = match pre_image {
                Ok(PreImage::Intent(intent)) => intent,
                Ok(PreImage::Append) => {
                    tell(ready, Ok(()));
                    continue;
                }
                Ok(PreImage::Waits) => continue,
                Err(error) => {
                    tell(ready, Err(error));
                    continue;
                }
            };
            let announced = match shielded(|| self.announce(number, intent)) {
                Ok(Some(announced)) => announced,
                Ok(None) => continue,
                Err(error) => {
                    tell(ready, Err(error));
                    continue;
                }
            };
            match self.is_kept(announced) {
                Ok(true) => tell(ready, Ok(())),
                Ok(false) => self.keep_soon(announced, ready),
                Err(error) => tell(ready, Err(error)),
            }
        }
    }

    pub(super) fn settle(
        self: &Arc<Self>,
        op: LoggedChange,
        reply: &[u8],
        order_le: bool,
        ready: Notify,
    ) -> Settled {
        op.ending.settle();
        let number = op.number();
        if op.is_guard() {
            self.end_guard(number);
            return Settled::Now;
        }
        let mut ledger = self.lock();
        let Some(flight) = ledger.flights.get(&number) else { return Settled::Now };
        let about = flight.about;
        let appends = flight.intent.as_ref().is_some_and(|intent| intent.appends());
        let touches = !op.unchanged && flight.intent.as_ref().is_some_and(|i| i.touches_names());
        // The next start finds out the result of an append that has not ended.
        let known = !appends || flight.ended;
        if about.power && touches {
            let reply = reply.to_vec();
            ledger.executed.push(Executed { op: number, order_le, reply, ready });
            if !std::mem::replace(&mut ledger.committing, true) {
                drop(ledger);
                let journal = self.clone();
                (self.spawn)(Box::new(move || journal.commit_job()));
            }
            return Settled::Later;
        }
        let mut left = Left::default();
        let end = if known { End::Reply(order_le, reply) } else { End::Open };
        left.finish(&mut ledger, &self.log, number, end);
        drop(ledger);
        // If this fails, the next change is refused, and the next start finds out the results.
        let _ = self.log.flush(left.last);
        self.resume(left.next);
        Settled::Now
    }

    /// Makes executed changes stable, as long as there are any.
    fn commit_job(self: &Arc<Self>) {
        while let Some(round) = self.next_round() {
            let done = catch_unwind(AssertUnwindSafe(|| self.commit_round(&round)));
            let outcomes = done.unwrap_or_else(|_| {
                // Changes that have left the ledger are recorded as executed, which is as correct
                // as the error.
                for executed in &round {
                    let _in_doubt = shielded(|| {
                        self.doubt(executed.op);
                        Ok(())
                    });
                }
                vec![Err(StoreError::Io.into()); round.len()]
            });
            for (executed, outcome) in round.into_iter().zip(outcomes) {
                tell(executed.ready, outcome);
            }
        }
    }

    /// Returns the changes to be made stable next. `None` when this job is over.
    fn next_round(&self) -> Option<Vec<Executed>> {
        let mut ledger = self.lock();
        let round = std::mem::take(&mut ledger.executed);
        ledger.committing = !round.is_empty();
        ledger.committing.then_some(round)
    }

    /// Makes changes stable, records their replies, and lets others go on. Returns the outcome of
    /// each.
    fn commit_round(self: &Arc<Self>, round: &[Executed]) -> Vec<Result<()>> {
        let ledger = self.lock();
        let find = |executed: &Executed| -> Touched {
            let flight = ledger.flights.get(&executed.op)?;
            Some((flight.store.clone(), flight.intent.clone()?))
        };
        let touched: Vec<_> = round.iter().map(find).collect();
        drop(ledger);
        self.rounds.fetch_add(1, Ordering::Relaxed);
        self.committed.fetch_add(round.len() as u64, Ordering::Relaxed);
        let outcomes = commit(&touched);
        let lost = |outcome: &Result<()>| *outcome == Err(StoreError::Io.into());
        if outcomes.iter().any(lost)
            && let Some(verifier) = self.lost.get()
        {
            // Files were synced whole, and the system reports a failed write once.
            verifier.change();
        }
        let mut left = Left::default();
        let mut ledger = self.lock();
        for (executed, outcome) in round.iter().zip(&outcomes) {
            let end = match outcome {
                Ok(()) => End::Reply(executed.order_le, &executed.reply),
                Err(_) => End::Failed,
            };
            left.finish(&mut ledger, &self.log, executed.op, end);
        }
        drop(ledger);
        let written = self.log.flush(left.last).map_err(failed);
        self.resume(left.next);
        outcomes.into_iter().map(|outcome| outcome.and(written)).collect()
    }

    /// Records that it is not known any more if a change was executed.
    pub(super) fn doubt(self: &Arc<Self>, number: u64) {
        let mut ledger = self.lock();
        let Some(flight) = ledger.flights.get(&number) else { return };
        let (end, mut left) = (flight.end_if_announced(End::Failed), Left::default());
        left.finish(&mut ledger, &self.log, number, end);
        drop(ledger);
        // If this fails, the next change is refused.
        let _ = self.log.flush(left.last);
        self.resume(left.next);
    }

    /// Records that a logged change is not executed.
    pub(super) fn abandon(self: &Arc<Self>, number: u64) {
        let mut ledger = self.lock();
        let Some(flight) = ledger.flights.get(&number) else { return };
        let (end, mut left) = (flight.end_if_announced(End::Dropped), Left::default());
        left.finish(&mut ledger, &self.log, number, end);
        drop(ledger);
        // After a crash, another client's work must not seem to be that of this change. If this
        // fails, the next change is refused.
        let _ = self.log.flush(left.last);
        self.resume(left.next);
    }
}

/// The last record of a change that leaves the ledger.
enum End<'a> {
    /// Its reply, and true for little-endian order.
    Reply(bool, &'a [u8]),
    /// A failure. Its client gets the same answer after a restart, because the disk proves nothing
    /// once others have changed the same.
    Failed,
    /// The change was not executed.
    Dropped,
    /// No record: there was no intent, or the next start finds out the result.
    Open,
}

impl Flight {
    /// The next start finds out the result of an append that has not ended.
    fn end_if_announced<'a>(&self, end: End<'a>) -> End<'a> {
        let announced = self.intent.as_ref().is_some_and(|intent| !intent.appends());
        if announced { end } else { End::Open }
    }
}

/// The work after changes were removed from the ledger, to be done without its lock.
#[derive(Default)]
struct Left {
    /// The number of the last record that must be written before the changes have any effect.
    last: u64,
    /// Changes that can go on now.
    next: Vec<u64>,
    /// The removed changes, with unused notifications. Their drop may call this service again.
    gone: Vec<Flight>,
}

impl Left {
    /// Removes a change from the ledger.
    fn finish(&mut self, ledger: &mut Ledger, log: &Arc<Log>, number: u64, end: End<'_>) {
        let Some(flight) = ledger.flights.remove_and_shrink(&number) else { return };
        let about = &flight.about;
        let sequence = match end {
            End::Reply(order_le, bytes) if bytes.len() <= DURABLE_REPLY_BYTES_MAX => {
                Some(ledger.reply(log, about, order_le, bytes))
            }
            End::Reply(..) | End::Failed => Some(ledger.failed(log, about)),
            End::Dropped => Some(ledger.dropped(log, about)),
            End::Open => None,
        };
        if let Some(sequence) = sequence {
            ledger.end(log, &flight, sequence);
            self.last = self.last.max(sequence);
        }
        flight.leave(number, &mut ledger.locks, &mut self.next);
        self.gone.push(flight);
    }
}

/// The objects that a change has touched, if it is still known.
type Touched = Option<(Arc<dyn Store>, Arc<Intent>)>;

/// The objects to be made stable in one store.
struct Group<'a> {
    store: &'a Arc<dyn Store>,
    ids: Vec<FileId>,
    outcome: Result<()>,
}

/// Makes the objects of changes stable, each once. Returns the outcome for each change.
fn commit(touched: &[Touched]) -> Vec<Result<()>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for (store, intent) in touched.iter().flatten() {
        let at = groups.iter().position(|group| Arc::ptr_eq(group.store, store));
        let at = at.unwrap_or_else(|| {
            groups.push(Group { store, ids: Vec::new(), outcome: Ok(()) });
            groups.len() - 1
        });
        intent.touched(&**store, &mut groups[at].ids);
    }
    for group in &mut groups {
        group.ids.sort_unstable();
        group.ids.dedup();
        let stable = shielded(|| Ok(group.store.commit_names(&group.ids)?));
        group.outcome = stable.inspect_err(|error| {
            tracing::error!(%error, "changes cannot be made stable");
        });
    }
    let outcome = |touched: &Touched| {
        let Some((store, _)) = touched else { return Ok(()) };
        let group = groups.iter().find(|group| Arc::ptr_eq(group.store, store));
        group.map_or(Ok(()), |group| group.outcome)
    };
    touched.iter().map(outcome).collect()
}
