//! Recovery after a restart: which clients may reclaim their state, for how long, and which
//! requests must wait meanwhile (RFC 8881 8.4.2).
//!
//! Invariants
//! * While clients may still reclaim, no state is granted that could conflict with theirs.
//! * Only a client with a durable record of the last run, of the same verifier and principal, may
//!   reclaim, and only until it completes its reclaims.
//! * The records of clients that did not come back are removed before grace ends. So they cannot
//!   reclaim, after the next restart, state that others have had in between (RFC 8881 8.4.2.1).
//! * Grace is extended while clients are reclaiming, so that a late client is not interrupted, but
//!   never beyond twice its time.
//! * A client has its durable record before it gets its first new state, and keeps it as long as it
//!   holds any.
//! * A DAFS client that has held nothing for a lease has no record, though it is connected. So grace
//!   after a crash does not wait for idle mounts.
//! * Records are written and removed one after the other, and none is written for a client that is
//!   gone. So a late request of an old instance cannot destroy the record of the new one.
//! * A DAFS client counts as complete when it says so (X_RECLAIM_COMPLETE, an extension), or when it
//!   asks for new state. Grace does not wait for it any longer. Until grace ends it may go on
//!   reclaiming, because its sessions are not in step with each other.
//! * A client counts for itself alone. One that says too early that it has reclaimed all loses what
//!   it has not, and no other client does.
//! * An NLM client never counts as complete: its protocol has no way to say so, and it may send new
//!   requests before it knows of the restart. So grace takes its whole time when one is awaited.
//! * After an orderly hand-over the state of both kinds is known: `returned.rs`.

mod returned;

use crate::Result;
use crate::client::{Client, ClientKind, Clients};
use crate::error::ServiceError;
use crate::limits::RECORDS_CHECKED_AT_ONCE;
use crate::records::{ClientRecord, RecordsError};
use crate::table::StateTable;
use dafs_mem::Shrinking as _;
use dafs_mem::{Failing, Mutex};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard};

/// How long grace lasts after the last reclaim, in nanoseconds.
const RECLAIM_PAUSE_NS: u64 = 2_000_000_000;

/// The clients of the last run that may still reclaim.
pub(crate) struct Grace {
    active: AtomicBool,
    /// The time of the last reclaim, as of the tick before. 0 if there was none.
    reclaimed_ns: AtomicU64,
    /// The last awaited client has reclaimed all, or has asked for new state.
    all_back: AtomicBool,
    /// Clients may count as complete by their state.
    expects: AtomicBool,
    inner: Mutex<Inner>,
    /// Held while the record of a client is written or removed.
    record_order: Mutex<()>,
    /// Clients without state are tried again twice a second, while their records cannot be removed.
    removals: Failing,
    /// The same for the end of grace.
    ends: Failing,
}

struct Inner {
    started_ns: u64,
    /// Records of the last run whose clients have not come back and completed.
    waiting: FxHashMap<Name, ClientRecord>,
    /// Digests of clients with their state at the end of the former server.
    expected: FxHashSet<u64>,
    /// A thread is ending grace.
    ending: bool,
}

/// The key of a client's record.
type Name = (ClientKind, Vec<u8>);

fn name_of(client: &Client) -> Name {
    (client.kind(), client.name().to_vec())
}

impl Grace {
    /// Begins grace if there are clients to wait for.
    pub(crate) fn new(records: Vec<ClientRecord>, now_ns: u64) -> Self {
        let waiting: FxHashMap<_, _> = records
            .into_iter()
            .map(|record| ((record.kind, record.owner.clone()), record))
            .collect();
        Self {
            active: AtomicBool::new(!waiting.is_empty()),
            reclaimed_ns: AtomicU64::new(0),
            all_back: AtomicBool::new(false),
            expects: AtomicBool::new(false),
            inner: Mutex::new(Inner {
                started_ns: now_ns,
                waiting,
                expected: FxHashSet::default(),
                ending: false,
            }),
            record_order: Mutex::default(),
            removals: Failing::default(),
            ends: Failing::default(),
        }
    }

    pub(crate) fn is_active(&self) -> bool {
        self.active.load(Ordering::SeqCst)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }
}

impl Clients {
    /// Removes the records of DAFS and NLM clients without state, so that grace waits for none of them. A
    /// DAFS client has no session, or has held nothing for a lease. An NLM client has no sessions at all, and
    /// was silent for a lease. A record that cannot be removed is tried again later.
    pub(crate) fn forget_idle_records(&self, now_ns: u64) {
        let lease_ns = self.state.config.lease_ns();
        let is_idle = |table: &StateTable, client: &Client| {
            let holds = table.holds_anything(client.key());
            let without_ns = client.without_state_ns(holds, now_ns);
            let is_over = match client.kind() {
                ClientKind::Nlm => client.idle_ns(now_ns) > lease_ns,
                _ => client.sessions() == 0 || without_ns > lease_ns,
            };
            is_over && !holds
        };
        let may_be = |client: &&Arc<Client>| {
            client.kind().is_recorded_with_state()
                && client.is_recorded()
                && !(self.in_grace() && client.may_reclaim())
        };
        let recorded: Vec<_> = self.lock().by_key.values().filter(may_be).cloned().collect();
        let mut idle = Vec::new();
        for some in recorded.chunks(RECORDS_CHECKED_AT_ONCE) {
            // Requests wait for this lock.
            let table = self.state.lock();
            idle.extend(some.iter().filter(|client| is_idle(&table, client)).cloned());
        }
        if idle.is_empty() {
            return;
        }
        let order = self.grace.record_order.lock();
        let table = self.state.lock();
        idle.retain(|client| is_idle(&table, client));
        // Under the table's lock, so that no state is entered that needs these records.
        idle.iter().for_each(|client| client.set_written(false));
        drop(table);
        let idle: Vec<&Client> = idle.iter().map(|client| &**client).collect();
        let _logged = self.remove_records_in_order(&idle, order);
    }

    /// True while clients of the last run may reclaim.
    pub fn in_grace(&self) -> bool {
        self.grace.is_active()
    }

    /// Nanoseconds since grace began, as of the last tick.
    pub(crate) fn grace_age_ns(&self) -> u64 {
        let ticked_ns = self.recalls_ns.load(Ordering::Relaxed);
        ticked_ns.saturating_sub(self.grace.lock().started_ns)
    }

    /// True when grace waits for no client any more, or a tick of the service will find that so: the next
    /// one should come soon.
    pub fn grace_ends_soon(&self) -> bool {
        let is_soon = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
        (is_soon(&self.grace.all_back) || is_soon(&self.grace.expects)) && self.in_grace()
    }

    /// Completes a client's reclaims (RECLAIM_COMPLETE for all file systems). From now on it may
    /// get new state. Waits for the disk.
    ///
    /// # Errors
    /// `CompleteAlready` when it has completed before. `Expired` when its record is gone. `Delay`
    /// while another thread ends grace.
    pub fn reclaim_complete(&self, client: &Arc<Client>) -> Result<()> {
        if client.kind() != ClientKind::Nfs {
            return Err(ServiceError::NotSupported);
        }
        if client.reclaim_completed() {
            return Err(ServiceError::CompleteAlready);
        }
        let mut grace = self.grace.lock();
        if grace.ending {
            // The record that would be written now might be among those that are being removed.
            return Err(ServiceError::Delay);
        }
        let record = grace.waiting.remove_and_shrink(&name_of(client));
        drop(grace);
        // An awaited client still has its record. So a thousand that come back at once do not wait
        // for a thousand writes.
        if record.is_none_or(|record| !record.is_of(client)) {
            self.put_record(client);
        }
        if client.is_gone() {
            // The thread that ended its state may have removed the record before it was written.
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

    /// A client of this name has confirmed its key. It may reclaim if it is the recorded one.
    /// Otherwise the recorded one will not come back.
    pub(crate) fn confirmed(&self, client: &Arc<Client>) {
        if !self.in_grace() {
            return;
        }
        let mut grace = self.grace.lock();
        if client.is_gone() {
            // The record may be that of the instance which has replaced it.
            return;
        }
        if grace.ending {
            // Too late: the record is being removed, if it was still there.
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
        let record = grace.waiting.remove_and_shrink(&name_of(client));
        let last = grace.waiting.is_empty();
        drop(grace);
        // Its record is of no use, and must not make the next run wait.
        if let Err(error) = self.records.remove(record.as_slice()) {
            tracing::error!(%error, "client record cannot be removed");
        }
        if last {
            self.end_grace();
        }
    }

    /// True if grace waits for a DAFS client of this name, so that a new client of that name may
    /// have to change records.
    pub(crate) fn is_awaited(&self, name: &[u8]) -> bool {
        self.in_grace()
            && self.grace.lock().waiting.contains_key(&(ClientKind::Dafs, name.to_vec()))
    }

    /// The names of the clients of a kind that grace waits for.
    pub(crate) fn awaited(&self, kind: ClientKind) -> Vec<Vec<u8>> {
        let grace = self.grace.lock();
        let names = grace.waiting.keys().filter(|(of, _)| *of == kind);
        names.map(|(_, name)| name.clone()).collect()
    }

    /// True if grace waits under this name for a client other than the one that asks.
    pub(crate) fn awaits_another(
        &self,
        name: (ClientKind, Vec<u8>),
        is_asking: impl FnOnce(&ClientRecord) -> bool,
    ) -> bool {
        self.in_grace()
            && self.grace.lock().waiting.get(&name).is_some_and(|record| !is_asking(record))
    }

    /// A client has ended in order, or by an administrator's command: grace does not wait for it
    /// any more.
    fn wait_no_more(&self, client: &Client) {
        if !self.in_grace() {
            return;
        }
        let mut grace = self.grace.lock();
        let name = name_of(client);
        if grace.waiting.get(&name).is_some_and(|record| record.is_of(client)) {
            grace.waiting.remove_and_shrink(&name);
        }
        let last = grace.waiting.is_empty();
        drop(grace);
        if last {
            self.end_grace();
        }
    }

    /// Notes that a client is reclaiming now.
    fn reclaiming(&self) {
        let ticked_ns = self.recalls_ns.load(Ordering::Relaxed);
        self.grace.reclaimed_ns.store(ticked_ns, Ordering::Relaxed);
    }

    /// Ends grace when its time is over and no client is reclaiming.
    pub(crate) fn tick_grace(&self, now_ns: u64) {
        if !self.in_grace() {
            return;
        }
        let grace = self.grace.lock();
        let grace_ns = u64::try_from(self.state.config.grace_time.as_nanos()).unwrap_or(u64::MAX);
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

    /// Removes the records of clients that did not come back, then allows new state. If the records
    /// cannot be removed, grace goes on and the next tick retries.
    fn end_grace(&self) {
        let mut grace = self.grace.lock();
        if grace.ending || !self.in_grace() {
            return;
        }
        grace.ending = true;
        let mut missing: Vec<_> = grace.waiting.values().cloned().collect();
        drop(grace);
        let order = self.grace.record_order.lock();
        self.keep_returned(&mut missing);
        let removed = self.records.remove(&missing);
        drop(order);
        let mut grace = self.grace.lock();
        grace.ending = false;
        if removed.is_ok() {
            grace.waiting.clear();
            self.grace.active.store(false, Ordering::SeqCst);
        }
        drop(grace);
        match self.grace.ends.news(&removed) {
            Some(Err(error)) => {
                tracing::error!(%error, "client records cannot be removed; grace goes on");
            }
            Some(Ok(())) => tracing::info!("client records could be removed; grace is over"),
            None => {}
        }
    }

    /// Removes from the list the DAFS and NLM clients that hold reclaimed state. Clients that are back and
    /// hold none are recorded anew before they get any.
    fn keep_returned(&self, missing: &mut Vec<ClientRecord>) {
        let clients: Vec<_> = self.lock().by_key.values().cloned().collect();
        let table = self.state.lock();
        missing.retain(|record| {
            let is_there = |client: &&Arc<Client>| {
                client.kind().is_recorded_with_state() && record.is_of(client) && !client.is_gone()
            };
            let Some(client) = clients.iter().find(is_there) else { return true };
            let holds = table.holds_anything(client.key());
            if !holds {
                client.set_written(false);
            }
            !holds
        });
    }

    /// Checks that a client may reclaim now.
    ///
    /// # Errors
    /// `NoGrace` when the time is over or the client has completed. `ReclaimBad` when the server
    /// has no record of its state.
    pub(crate) fn check_reclaim(&self, client: &Client) -> Result<()> {
        let done = !client.kind().is_recorded_with_state() && client.reclaim_completed();
        if done || !self.in_grace() {
            return Err(ServiceError::NoGrace);
        }
        if !client.may_reclaim() {
            return Err(ServiceError::ReclaimBad);
        }
        self.reclaiming();
        Ok(())
    }

    /// Checks that a client may get new state now.
    ///
    /// # Errors
    /// `Grace` while others may reclaim, and before the client has completed its own reclaims (RFC
    /// 8881 18.51).
    pub(crate) fn check_new_state(&self, client: &Client) -> Result<()> {
        if !client.reclaim_completed() {
            return Err(ServiceError::Grace);
        }
        self.count_reclaimed(client);
        self.check_grace(client)
    }

    /// Waits no more for a DAFS client, which has reclaimed all that it wants (X_RECLAIM_COMPLETE). Until a
    /// tick ends grace it may still reclaim. Neither blocks nor waits for the disk.
    pub fn count_reclaimed(&self, client: &Client) {
        if client.kind() == ClientKind::Dafs && self.in_grace() {
            self.count_complete(client);
        }
    }

    /// Grace does not wait for this client any more, if it does. After the last one, the next tick ends it.
    fn count_complete(&self, client: &Client) {
        let mut grace = self.grace.lock();
        let name = name_of(client);
        if grace.waiting.get(&name).is_some_and(|record| record.is_of(client)) {
            grace.waiting.remove_and_shrink(&name);
            self.grace.all_back.store(grace.waiting.is_empty(), Ordering::Relaxed);
        }
    }

    /// True if a client must be recorded before it may hold state.
    pub fn needs_record(&self, client: &Client) -> bool {
        client.kind().is_recorded_with_state()
            && !client.is_written()
            && !client.is_gone()
            && self.records.keeps()
    }

    /// Records a client before its first state, so that it may reclaim after a restart. Waits for the disk.
    pub fn record(&self, client: &Client) {
        if self.needs_record(client) {
            self.put_record(client);
        }
        if client.is_gone() {
            // The thread that ended its state may have removed the record before it was written.
            self.forget_record(client);
        }
    }

    /// Checks that an operation may run that reclaimed state could forbid. Stateless callers do not
    /// wait: their protocol knows no grace, and they would hang. Where share keys are strict, they
    /// wait for their reads and writes alone.
    ///
    /// # Errors
    /// `Grace` while clients may reclaim.
    pub(crate) fn check_grace(&self, client: &Client) -> Result<()> {
        if self.in_grace() && client.kind() != ClientKind::Stateless {
            return Err(ServiceError::Grace);
        }
        Ok(())
    }

    /// Removes the records of clients without state, so that the next run does not wait for them.
    /// The server calls it at an orderly end, when no request is served any more. A client that has
    /// not completed its reclaims stays recorded.
    pub fn settle_records(&self) {
        let mut clients: Vec<_> = self.lock().by_key.values().cloned().collect();
        let table = self.state.lock();
        let in_grace = self.in_grace();
        clients.retain(|client| {
            let recorded = client.kind().is_recorded_with_state();
            let reclaims = recorded && in_grace && client.may_reclaim();
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

    /// Writes the durable record of a client, unless it is gone. After a failure this client cannot
    /// reclaim. Others are not affected, so service goes on.
    pub(crate) fn put_record(&self, client: &Client) {
        let _order = self.grace.record_order.lock();
        if client.is_gone() {
            // The record of this name may belong to the instance that has replaced it.
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
        self.remove_records_in_order(&[client], self.grace.record_order.lock())
    }

    /// Removes the records of several clients, in one step.
    pub(crate) fn remove_records(
        &self,
        clients: &[Arc<Client>],
    ) -> std::result::Result<(), RecordsError> {
        let clients: Vec<&Client> = clients.iter().map(|client| &**client).collect();
        self.remove_records_in_order(&clients, self.grace.record_order.lock())
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
            Err(_) => recorded.iter().for_each(|(client, written)| client.set_written(*written)),
        }
        let (client, count) = (recorded[0].0.name().escape_ascii(), recorded.len());
        match self.grace.removals.news(&removed) {
            Some(Err(error)) => {
                tracing::error!(%client, count, %error, "records of clients cannot be removed");
            }
            Some(Ok(())) => {
                tracing::info!(%client, count, "records of clients can be removed again");
            }
            None => {}
        }
        removed
    }

    /// Removes the record of a client that will not come back. Callers do not depend on success.
    pub(crate) fn forget_record(&self, client: &Client) {
        let _logged = self.remove_record(client);
    }
}
