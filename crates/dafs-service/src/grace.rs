//! Recovery after a restart: who may reclaim what it held, for how long, and what others must wait
//! for meanwhile (RFC 8881 8.4.2).
//!
//! Invariants
//! * While clients may still reclaim, nothing is given out that could conflict with what they hold.
//! * Only a client with a durable record of the last run, of the same verifier and principal, may
//!   reclaim, and only until it says that it is done.
//! * The records of those who did not come back are removed before grace ends, so that they cannot
//!   reclaim after the next restart what others have had in between (RFC 8881 8.4.2.1).
//! * Grace goes on while clients are just reclaiming, so that one that comes late is not cut off in
//!   the middle, but never for more than twice its time.
//! * A client has its durable record before it gets its first new state, and keeps it for as long as
//!   it holds anything.
//! * Records are written and removed one after the other, and none is written for a client that is
//!   gone: a late request of an old instance must not cost the new one its record.
//! * A DAFS client has no way to say that it is done. It counts as done when it asks for something
//!   new, so that nobody waits for it any longer; but while grace lasts it may go on reclaiming,
//!   because its sessions are not in step with each other.

use crate::client::{Client, ClientKind};
use crate::error::ServiceError;
use crate::records::{ClientRecord, RecordsError};
use crate::{Result, Service};
use rustc_hash::FxHashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How long after the last reclaim grace goes on, in nanoseconds.
const RECLAIM_PAUSE_NS: u64 = 2_000_000_000;

/// The clients of the last run that may still reclaim.
pub(crate) struct Grace {
    active: AtomicBool,
    /// When something was reclaimed last, as of the tick before; 0 for never.
    reclaimed_ns: AtomicU64,
    /// The last one that was waited for has asked for something new.
    all_back: AtomicBool,
    inner: Mutex<Inner>,
    /// Held while the record of a client is written or removed.
    record_order: Mutex<()>,
}

struct Inner {
    started_ns: u64,
    /// Records of the last run whose clients have not come back and finished.
    waiting: FxHashMap<Name, ClientRecord>,
    /// Somebody is ending grace just now.
    ending: bool,
}

/// What a client is recorded by.
type Name = (ClientKind, Vec<u8>);

fn name_of(client: &Client) -> Name {
    (client.kind(), client.name().to_vec())
}

impl Grace {
    /// Begins when there is anybody to wait for.
    pub(crate) fn new(records: Vec<ClientRecord>, now_ns: u64) -> Self {
        let waiting: FxHashMap<_, _> = records
            .into_iter()
            .map(|record| ((record.kind, record.owner.clone()), record))
            .collect();
        Self {
            active: AtomicBool::new(!waiting.is_empty()),
            reclaimed_ns: AtomicU64::new(0),
            all_back: AtomicBool::new(false),
            inner: Mutex::new(Inner { started_ns: now_ns, waiting, ending: false }),
            record_order: Mutex::default(),
        }
    }

    pub(crate) fn is_active(&self) -> bool {
        self.active.load(Ordering::SeqCst)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Service {
    /// Forgets on disk the DAFS clients that have gone away in order: without a session, and holding
    /// nothing.
    pub(crate) fn forget_idle_records(&self) {
        let clients = self.lock_clients();
        let idle = |client: &&Arc<Client>| {
            client.kind() == ClientKind::Dafs
                && client.is_written()
                && client.sessions() == 0
                && !(self.in_grace() && client.may_reclaim())
        };
        let idle: Vec<_> = clients.by_key.values().filter(idle).cloned().collect();
        drop(clients);
        for client in idle {
            let order = self.lock_record_order();
            let table = self.lock_table();
            if client.sessions() > 0 || table.holds_anything(client.key()) {
                continue;
            }
            // Under the table's lock, so that nothing is entered that counts on this record.
            client.set_written(false);
            drop(table);
            let _logged = self.remove_records_in_order(&[&client], order);
        }
    }

    fn lock_record_order(&self) -> MutexGuard<'_, ()> {
        self.grace.record_order.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True while clients of the last run may reclaim.
    pub fn in_grace(&self) -> bool {
        self.grace.is_active()
    }

    /// How long ago grace began, as of the last tick, in nanoseconds.
    pub(crate) fn grace_age_ns(&self) -> u64 {
        let ticked_ns = self.recalls_ns.load(Ordering::Relaxed);
        ticked_ns.saturating_sub(self.grace.lock().started_ns)
    }

    /// True when nobody is waited for any more, so that the next [`tick`](Self::tick) ends grace and
    /// should come soon.
    pub fn grace_ends_soon(&self) -> bool {
        self.grace.all_back.load(Ordering::Relaxed) && self.in_grace()
    }

    /// The client reclaims nothing more (RECLAIM_COMPLETE for all file systems). From now on it may
    /// get new state. Waits for the disk.
    ///
    /// # Errors
    /// `CompleteAlready` when it has said so before; `Expired` when its record is gone; `Delay` while
    /// grace is being ended.
    pub fn reclaim_complete(&self, client: &Arc<Client>) -> Result<()> {
        if client.kind() != ClientKind::Nfs {
            return Err(ServiceError::NotSupported);
        }
        if client.reclaim_completed() {
            return Err(ServiceError::CompleteAlready);
        }
        let mut grace = self.grace.lock();
        if grace.ending {
            // The record that would be written now might be among those just being removed.
            return Err(ServiceError::Delay);
        }
        let record = grace.waiting.remove(&name_of(client));
        drop(grace);
        // One that was awaited has its record still; a thousand that come back at once do not wait
        // for a thousand writes.
        if record.is_none_or(|record| !record.is_of(client)) {
            self.put_record(client);
        }
        if client.is_gone() {
            // Whoever took its state away may have removed the record before it was written.
            self.forget_record(client);
            return Err(ServiceError::Expired);
        }
        if client.complete_reclaim() {
            return Err(ServiceError::CompleteAlready);
        }
        if self.in_grace() && self.grace.lock().waiting.is_empty() {
            tracing::info!("all clients of the last run are back");
            self.end_grace();
        }
        Ok(())
    }

    /// A client of this name has proved to be there: it may reclaim if it is the one that was
    /// recorded; otherwise that one will not come back.
    pub(crate) fn client_confirmed(&self, client: &Arc<Client>) {
        if !self.in_grace() {
            return;
        }
        let mut grace = self.grace.lock();
        if grace.ending {
            // Just too late: the record is being removed, if it was still there.
            return;
        }
        match grace.waiting.get(&name_of(client)) {
            Some(record) if record.is_of(client) => {
                self.reclaiming();
                return client.allow_reclaim();
            }
            Some(_) => {}
            None => return,
        }
        let record = grace.waiting.remove(&name_of(client));
        let last = grace.waiting.is_empty();
        drop(grace);
        // Its record is of no use to anybody, and must not keep the next run waiting.
        if let Err(error) = self.records.remove(record.as_slice()) {
            tracing::error!(%error, "client record cannot be removed");
        }
        if last {
            self.end_grace();
        }
    }

    /// Whether a DAFS client of this name is waited for, so that one that comes may have to change
    /// records.
    pub(crate) fn is_awaited(&self, name: &[u8]) -> bool {
        self.in_grace()
            && self.grace.lock().waiting.contains_key(&(ClientKind::Dafs, name.to_vec()))
    }

    /// Whether a client is waited for under a name that is not the one that asks for it.
    pub(crate) fn awaits_another(
        &self,
        name: (ClientKind, Vec<u8>),
        is_asking: impl FnOnce(&ClientRecord) -> bool,
    ) -> bool {
        self.in_grace()
            && self.grace.lock().waiting.get(&name).is_some_and(|record| !is_asking(record))
    }

    /// A client has ended in order, or at an administrator's word: nobody waits for it.
    fn wait_no_more(&self, client: &Client) {
        if !self.in_grace() {
            return;
        }
        let mut grace = self.grace.lock();
        let name = name_of(client);
        if grace.waiting.get(&name).is_some_and(|record| record.is_of(client)) {
            grace.waiting.remove(&name);
        }
        let last = grace.waiting.is_empty();
        drop(grace);
        if last {
            self.end_grace();
        }
    }

    /// Somebody is just reclaiming.
    fn reclaiming(&self) {
        let ticked_ns = self.recalls_ns.load(Ordering::Relaxed);
        self.grace.reclaimed_ns.store(ticked_ns, Ordering::Relaxed);
    }

    /// Ends grace when its time is over and nobody is just reclaiming.
    pub(crate) fn tick_grace(&self, now_ns: u64) {
        if !self.in_grace() {
            return;
        }
        let grace = self.grace.lock();
        let grace_ns = u64::try_from(self.config().grace_time.as_nanos()).unwrap_or(u64::MAX);
        let passed_ns = now_ns.saturating_sub(grace.started_ns);
        let reclaimed_ns = self.grace.reclaimed_ns.load(Ordering::Relaxed);
        let quiet = reclaimed_ns == 0 || now_ns.saturating_sub(reclaimed_ns) >= RECLAIM_PAUSE_NS;
        let missing = grace.waiting.len();
        let over = missing == 0
            || passed_ns >= grace_ns && quiet
            || passed_ns >= grace_ns.saturating_mul(2);
        drop(grace);
        if over {
            tracing::info!(missing, "grace is over");
            self.end_grace();
        }
    }

    /// Removes the records of those who did not come, then lets new state be given out. If the
    /// records cannot be removed, grace goes on and the next tick tries again.
    fn end_grace(&self) {
        let mut grace = self.grace.lock();
        if grace.ending || !self.in_grace() {
            return;
        }
        grace.ending = true;
        let mut missing: Vec<_> = grace.waiting.values().cloned().collect();
        drop(grace);
        let order = self.lock_record_order();
        self.keep_returned(&mut missing);
        let removed = self.records.remove(&missing);
        drop(order);
        let mut grace = self.grace.lock();
        grace.ending = false;
        match removed {
            Ok(()) => {
                grace.waiting.clear();
                self.grace.active.store(false, Ordering::SeqCst);
            }
            Err(error) => {
                tracing::error!(%error, "client records cannot be removed; grace goes on");
            }
        }
    }

    /// Takes those DAFS clients out of the list that hold what they have reclaimed. Those that are
    /// back and hold nothing are recorded anew before they get anything.
    fn keep_returned(&self, missing: &mut Vec<ClientRecord>) {
        let clients: Vec<_> = self.lock_clients().by_key.values().cloned().collect();
        let table = self.lock_table();
        missing.retain(|record| {
            let is_there = |client: &&Arc<Client>| {
                client.kind() == ClientKind::Dafs && record.is_of(client) && !client.is_gone()
            };
            let Some(client) = clients.iter().find(is_there) else { return true };
            let holds = table.holds_anything(client.key());
            if !holds {
                client.set_written(false);
            }
            !holds
        });
    }

    /// Whether a client may reclaim now.
    ///
    /// # Errors
    /// `NoGrace` when the time is over or the client has finished, `ReclaimBad` when the server does
    /// not know that it held anything.
    pub(crate) fn check_reclaim(&self, client: &Client) -> Result<()> {
        let done = client.kind() != ClientKind::Dafs && client.reclaim_completed();
        if done || !self.in_grace() {
            return Err(ServiceError::NoGrace);
        }
        if !client.may_reclaim() {
            return Err(ServiceError::ReclaimBad);
        }
        self.reclaiming();
        Ok(())
    }

    /// Whether new state may be given to a client now.
    ///
    /// # Errors
    /// `Grace` while others may reclaim, and before the client has finished its own reclaiming (RFC
    /// 8881 18.51).
    pub(crate) fn check_new_state(&self, client: &Client) -> Result<()> {
        if !client.reclaim_completed() {
            return Err(ServiceError::Grace);
        }
        if client.kind() == ClientKind::Dafs && self.in_grace() {
            let mut grace = self.grace.lock();
            let name = name_of(client);
            if grace.waiting.get(&name).is_some_and(|record| record.is_of(client)) {
                // With the last one, the next tick ends grace.
                grace.waiting.remove(&name);
                self.grace.all_back.store(grace.waiting.is_empty(), Ordering::Relaxed);
            }
        }
        self.check_grace(client)
    }

    /// Whether a client is to be recorded before it may hold anything.
    pub fn needs_record(&self, client: &Client) -> bool {
        client.kind() == ClientKind::Dafs
            && !client.is_written()
            && !client.is_gone()
            && self.records.keeps()
    }

    /// Records a DAFS client, so that it may reclaim after a restart. Waits for the disk.
    pub fn record_client(&self, client: &Client) {
        if self.needs_record(client) {
            self.put_record(client);
        }
        if client.is_gone() {
            // Whoever took its state away may have removed the record before it was written.
            self.forget_record(client);
        }
    }

    /// Whether something that reclaimed state could forbid may be done now. Stateless callers do not
    /// wait: they know no grace, and would hang.
    ///
    /// # Errors
    /// `Grace` while clients may reclaim.
    pub(crate) fn check_grace(&self, client: &Client) -> Result<()> {
        if self.in_grace() && client.kind() != ClientKind::Stateless {
            return Err(ServiceError::Grace);
        }
        Ok(())
    }

    /// Forgets on disk those clients that hold nothing, so that nobody waits for them after the next
    /// start. To be called when the server ends in order and no request is served any more. A client
    /// that has not said what it reclaims stays recorded.
    pub fn settle_records(&self) {
        let mut clients: Vec<_> = self.lock_clients().by_key.values().cloned().collect();
        let table = self.lock_table();
        let in_grace = self.in_grace();
        clients.retain(|client| {
            let reclaims = client.kind() == ClientKind::Dafs && in_grace && client.may_reclaim();
            !reclaims
                && client.is_recorded()
                && client.reclaim_completed()
                && !table.by_client.contains_key(&client.key())
        });
        drop(table);
        let records: Vec<_> = clients.iter().map(|client| ClientRecord::of(client)).collect();
        if let Err(error) = self.records.remove(&records) {
            tracing::warn!(%error, "the records of idle clients cannot be removed");
        }
    }

    /// Writes the durable record of a client, unless it is gone. A failure costs the client its right
    /// to reclaim, and nobody else anything, so service goes on.
    pub(crate) fn put_record(&self, client: &Client) {
        let _order = self.lock_record_order();
        if client.is_gone() {
            // The record of this name may be that of the instance that has taken its place.
            return;
        }
        client.set_recorded(true);
        if let Err(error) = self.records.put(&ClientRecord::of(client)) {
            let client = client.name().escape_ascii();
            tracing::error!(%client, %error, "client cannot be recorded; it will not reclaim");
        }
        client.set_written(true);
    }

    /// Removes the durable record of a client.
    ///
    /// # Errors
    /// Those of the disk.
    pub(crate) fn remove_record(&self, client: &Client) -> std::result::Result<(), RecordsError> {
        self.remove_records_in_order(&[client], self.lock_record_order())
    }

    /// The same of several clients, in one step.
    pub(crate) fn remove_records(
        &self,
        clients: &[Arc<Client>],
    ) -> std::result::Result<(), RecordsError> {
        let clients: Vec<&Client> = clients.iter().map(|client| &**client).collect();
        self.remove_records_in_order(&clients, self.lock_record_order())
    }

    fn remove_records_in_order(
        &self,
        clients: &[&Client],
        order: MutexGuard<'_, ()>,
    ) -> std::result::Result<(), RecordsError> {
        let recorded = clients.iter().copied().filter(|client| client.is_recorded());
        let recorded: Vec<(&Client, bool)> =
            recorded.map(|client| (client, client.is_written())).collect();
        if recorded.is_empty() {
            return Ok(());
        }
        recorded.iter().for_each(|(client, _)| client.set_written(false));
        let records: Vec<_> = recorded.iter().map(|(client, _)| ClientRecord::of(client)).collect();
        let removed = self.records.remove(&records);
        match &removed {
            Ok(()) => {
                recorded.iter().for_each(|(client, _)| client.set_recorded(false));
                drop(order);
                recorded.iter().for_each(|(client, _)| self.wait_no_more(client));
            }
            Err(error) => {
                recorded.iter().for_each(|(client, written)| client.set_written(*written));
                let (client, count) = (recorded[0].0.name().escape_ascii(), recorded.len());
                tracing::error!(%client, count, %error, "records of clients cannot be removed");
            }
        }
        removed
    }

    /// Removes the record of a client that will not come back; nothing hangs on the success.
    pub(crate) fn forget_record(&self, client: &Client) {
        let _logged = self.remove_record(client);
    }
}
