//! The semantics of files, once for every protocol: exports, handles, clients and their leases,
//! opens with share reservations, and every operation on them.
//!
//! This crate knows no wire format and no socket. Callers pass the time in, as nanoseconds since an
//! arbitrary start.
//!
//! Invariants
//! * One state: a share reservation or an open taken through one front end holds at all others,
//!   because there is one [`Service`] and stores are reached only through it.
//! * An operation names its export through the handle. That export's rules map the caller's
//!   credential (root squash) before the store sees it.
//! * A removed file stays usable through the opens that hold it, and only through them.
//! * Everything that a client holds is found from its record. It ends with the client's lease, or
//!   when the client comes back as a new instance.
//! * Tables are bounded by [`limits`].

#![forbid(unsafe_code)]

pub mod durable;
pub mod limits;

mod admit;
mod advice;
mod append;
mod client;
mod data_server;
mod database;
mod delegation;
mod enter;
mod error;
mod export;
mod exposure;
mod extras;
mod fence;
mod files;
mod front;
mod grace;
mod guards;
mod handle;
mod hosts;
mod identities;
mod importance;
mod index;
mod layout;
mod lock;
mod metrics;
mod names;
mod network;
mod nlm;
mod open;
mod pool;
mod pseudo;
mod records;
mod replies;
mod state;
mod stateless;
mod table;
mod turns;
mod undo;
mod write_verifier;

pub use advice::{AdvisedFile, advice_by_likelihood};
pub use client::{
    Arrival, Client, ClientAddress, ClientInfo, ClientKey, ClientKind, ClientStatus, Clients,
    ExchangeId, Exchanged, Holding, Identity, LockManager, Newcomer, Protection, Registered,
};
pub use dafs_tls::TransportSecurity;
pub use data_server::{DataRole, ForeignStates, ForeignUse, NfsCaller};
pub use database::{StateFile, StateFileId, bears_seal};
pub use delegation::{
    AttrAnswer, Delegation, DelegationKind, Delegations, NoDelegation, Want, WantKind,
};
pub use enter::State;
pub use error::ServiceError;
pub use export::{
    Export, ExportOptions, NO_USER, Namespace, NamespaceError, OptimisticReads, Squash, Touch,
};
pub use exposure::{
    BLOCK_BYTES, Begun, BlockEntry, ExposedFile, ExposureCounts, Fill, FramePlace, Memory,
    PagePlace, SMALL_FILE_BYTES, SegmentKind, SmallFile, SmallPart, WINDOW_BLOCKS,
};
pub use fence::{
    Drain, Drained, Draining, FenceEntry, FenceObject, FenceRecord, FenceRecords, FenceRight,
    FenceUpdate, Fences, FileFences, NoFenceRecords, Subject, is_fence_id,
};
pub use files::{FsLimits, Resolved, Unresolved};
pub use front::Front;
pub use handle::Handle;
pub use hosts::{FairQueue, Host, HostUse, Shared, has_share, least_to_lose, network_of_host};
pub use identities::{
    Directory, Identities, Known, LocalDirectory, LocalUser, LookupFailed, Mapped, OwnerAnswer,
    OwnerKind, OwnerNames, OwnerQuery, Pattern, Rule, Rules, UserOf,
};
pub use importance::{
    Claim, ClientPattern, Importance, ImportanceRule, Level, SessionFrom, Weight, divide,
};
pub use layout::{
    DeviceUse, DeviceWithTicket, IoCount, LayoutGranted, LayoutMode, LayoutRequest, Layouts, Ticket,
};
pub use lock::{
    LockChange, LockConflict, LockError, LockExtras, LockHolder, LockInfo, LockKind, LockOwner,
    LockRecord, LockRequest, LockStatus, Locks,
};
pub use metrics::{
    Answered, BUCKETS, Class, DirectUse, Done, ExportUse, FrontEnd, Histogram, LatencyCounts,
    LogSink, LoggedRequest, Metrics, OPERATIONS_MAX, OperationMetrics, SharedUsage, Usage,
    UsageCounts, Usages,
};
pub use names::{EntryObject, EntrySink};
pub use network::{AddressRange, Admits, Flavour, SessionProof};
pub use nlm::{NLM_LOCKS, NLM_SHARES, OwnerRange};
pub use open::{
    OpenClaim, OpenHow, OpenRequest, OpenState, OpenTarget, Opened, Opens, RemoveMode, Share,
    ShareKey, SharedKeys,
};
pub use pool::{FileRange, Job, PageReads, Pool};
pub use records::{ClientRecord, ClientRecords, FileRecords, NoRecords, RecordsError};
pub use replies::{
    EndedSession, Entry, Kept, KeptReply, NoReply, Replies, RequestKey, Sender, SessionReplies,
};
pub use state::{StateId, StateKind, StateRef};
pub use stateless::{StatelessCreated, StatelessFile};
pub use turns::{Origin, Owner, Place, Turn, Turns};
pub use undo::{UndoError, undo_list_instance};
pub use write_verifier::WriteVerifier;

pub(crate) use open::Break;

use dafs_mem::Mutex;
use dafs_store::{Cred, Wait};
use durable::Durable;
use enter::Conflicts;
use export::Exports;
use grace::Grace;
use index::Held;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;
use table::Ended;

/// Shorthand for service results.
pub type Result<T> = std::result::Result<T, ServiceError>;

/// Times and sizes of one service.
#[derive(Debug, Clone, Copy)]
pub struct ServiceConfig {
    /// How long a silent client keeps its state.
    pub lease_time: Duration,
    /// Differs between two runs of the server, so that ids of an earlier run are recognised.
    pub instance: u32,
    /// Makes keys of clients unguessable. Differs between two runs of the server, too.
    pub secret: [u64; 2],
    /// The longest time in which clients may reclaim after a restart.
    pub grace_time: Duration,
    /// How long an expired NFS client keeps its state by courtesy, unless another client conflicts
    /// with it.
    pub courtesy_time: Duration,
    /// Grant delegations.
    pub delegations: bool,
    /// The most opens of all clients, and the most delegations, because each keeps a file of a
    /// store open. One host gets half of that.
    pub files_max: usize,
    /// How long a call waits for other clients, if it may wait, before its client is told to retry.
    pub recall_wait: Duration,
}

impl ServiceConfig {
    /// The usual configuration for a lease: grace takes as long as a lease, courtesy a day,
    /// delegations are granted, and only [`limits`] bounds the open files. The secret is for tests.
    pub fn new(lease_time: Duration, instance: u32) -> Self {
        let courtesy_time = limits::COURTESY_TIME;
        let (grace_time, delegations, files_max) = (lease_time, true, usize::MAX);
        let recall_wait = limits::RECALL_WAIT;
        Self {
            lease_time,
            instance,
            secret: [u64::from(instance), 0],
            grace_time,
            courtesy_time,
            delegations,
            files_max,
            recall_wait,
        }
    }

    /// The lease in nanoseconds.
    pub(crate) fn lease_ns(&self) -> u64 {
        u64::try_from(self.lease_time.as_nanos()).unwrap_or(u64::MAX)
    }
}

/// The origin of a request, and its time.
#[derive(Debug, Clone, Copy)]
pub struct Caller<'a> {
    /// The client whose lease and opens the request uses.
    pub client: &'a Arc<Client>,
    /// The credential the request runs under, before squashing.
    pub cred: &'a Cred,
    /// The subject that fence lists are checked for.
    pub subject: Subject<'a>,
    /// Allows the call to wait for other clients or for the disk. A call that would have to wait
    /// and may not ends with `WouldWait` and has no effect. A call that has waited too long ends
    /// with `Delay`.
    pub wait: Wait,
    /// The time, in nanoseconds.
    pub now_ns: u64,
}

/// The one shared state of a server.
pub struct Service {
    /// The state of all clients.
    pub state: Arc<State>,
    exports: Arc<Exports>,
    /// Clients and their leases.
    pub clients: Arc<Clients>,
    /// The one client record of all callers without state.
    stateless_client: Arc<Client>,
    /// Fence lists.
    pub fences: Arc<Fences>,
    /// Layouts of files on data servers.
    pub layouts: Arc<Layouts>,
    conflicts: Arc<Conflicts>,
    /// Delegations.
    pub delegations: Arc<Delegations>,
    /// Byte-range locks.
    pub locks: Arc<Locks>,
    /// Opens.
    pub opens: Opens,
    /// The replies of sessions that have ended.
    pub replies: Replies,
    /// The weights of sessions.
    pub importance: Importance,
    /// Changes whose replies survive a crash.
    pub durable: Arc<Durable>,
    /// Held while an operation removes or replaces a name in a directory. Opens and I/O do not take
    /// it.
    names: Box<[Mutex<()>]>,
    metrics: Metrics,
    /// When state without users was swept last.
    swept_ns: AtomicU64,
    stores_swept_ns: AtomicU64,
    /// When leases were last checked.
    leases_ns: AtomicU64,
}

/// Counts of the state that the service holds, for metrics and tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ServiceCounts {
    /// Known clients.
    pub clients: usize,
    /// Of these, NFS clients that have not used their key yet.
    pub unconfirmed_clients: usize,
    /// Opens of all clients.
    pub opens: usize,
    /// Open files.
    pub open_files: usize,
    /// Pairs of lock owner and file.
    pub locks: usize,
    /// Byte ranges locked.
    pub lock_ranges: usize,
    /// Owners that wait for a byte-range lock.
    pub lock_waiters: usize,
    /// Persistent locks, held or orphaned.
    pub kept_locks: usize,
    /// Broken ones among them.
    pub broken_locks: usize,
    /// Delegations.
    pub delegations: usize,
    /// Recalled and not yet returned ones among them.
    pub recalled_delegations: usize,
    /// Layouts.
    pub layouts: usize,
    /// Recalled and not yet returned ones among them.
    pub recalled_layouts: usize,
    /// Files whose layouts were revoked and may still be honoured by data servers.
    pub fenced_layouts: usize,
    /// Holders of delegations that were asked for a file's attributes and have not answered yet.
    pub attribute_queries: usize,
    /// State that was revoked and not freed by its client yet.
    pub revoked: usize,
    /// Files kept open for callers without opens.
    pub stateless_files: usize,
    /// Files whose changes are undone when the lock on them is lost.
    pub undo_files: usize,
    /// Ended sessions whose replies are kept.
    pub ended_sessions: usize,
    /// Fence lists.
    pub fences: usize,
    /// Updates of fences that wait for requests to finish.
    pub fence_waiters: usize,
}

/// Directories share this many locks for changes of names.
const NAME_LOCKS: usize = 256;

impl Service {
    /// Makes a service over `namespace` whose clients cannot reclaim after a restart.
    pub fn new(config: ServiceConfig, namespace: Namespace) -> Self {
        Self::with_grace(config, namespace, Box::new(NoRecords), Grace::new(Vec::new(), 0))
    }

    /// Makes a service over `namespace` that lets the clients of the last run reclaim their state.
    ///
    /// # Errors
    /// When the records cannot be read.
    pub fn with_records(
        config: ServiceConfig,
        namespace: Namespace,
        records: Box<dyn ClientRecords>,
        now_ns: u64,
    ) -> std::result::Result<Self, RecordsError> {
        let grace = Grace::new(records.load()?, now_ns);
        let locks = records.load_locks()?;
        let service = Self::with_grace(config, namespace, records, grace);
        service.locks.restore(&locks);
        Ok(service)
    }

    fn with_grace(
        config: ServiceConfig,
        namespace: Namespace,
        records: Box<dyn ClientRecords>,
        grace: Grace,
    ) -> Self {
        let exports = Arc::new(Exports::new(namespace));
        let state = Arc::new(State::new(config));
        let clients = Arc::new(Clients::new(state.clone(), records, grace));
        let durable = Arc::new(Durable::new(exports.clone(), config.lease_ns()));
        let fences = Arc::new(Fences::new(exports.clone(), clients.clone()));
        let layouts = Layouts::new(exports.clone(), clients.clone(), fences.clone());
        let layouts = Arc::new(layouts);
        let conflicts = Conflicts::new(exports.clone(), clients.clone(), layouts.clone());
        let conflicts = Arc::new(conflicts);
        let delegations = Arc::new(Delegations::new(conflicts.clone()));
        let locks = Arc::new(Locks::new(conflicts.clone(), delegations.clone()));
        let opens =
            Opens::new(conflicts.clone(), fences.clone(), delegations.clone(), locks.clone());
        Self {
            state,
            stateless_client: Client::stateless(b""),
            fences,
            replies: Replies::new(clients.clone(), durable.clone()),
            importance: Importance::default(),
            durable,
            exports,
            clients,
            layouts,
            locks,
            opens,
            delegations,
            conflicts,
            names: (0..NAME_LOCKS).map(|_| Mutex::new(())).collect(),
            metrics: Metrics::default(),
            swept_ns: AtomicU64::new(0),
            stores_swept_ns: AtomicU64::new(0),
            leases_ns: AtomicU64::new(0),
        }
    }

    /// The configuration.
    pub fn config(&self) -> &ServiceConfig {
        &self.state.config
    }

    /// The counters of all operations.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// The exports.
    pub fn namespace(&self) -> Arc<Namespace> {
        self.exports.namespace()
    }

    /// Changes whenever the exports are replaced.
    pub fn namespace_version(&self) -> u64 {
        self.exports.version()
    }

    /// Replaces the exports. Requests under way finish with the old ones. State on an export that
    /// is gone is revoked, and its clients are notified. Everything else goes on.
    pub fn replace_namespace(&self, namespace: Namespace) {
        let namespace = Arc::new(namespace);
        self.exports.replace(namespace.clone());
        self.opens.stateless.clear();
        let mut ended = Ended::default();
        let mut table = self.state.lock();
        let gone = |held: &Held| namespace.export(held.handle()).is_err();
        for held in table.all_held() {
            match &held {
                _ if gone(&held) => table.revoke(&held, true, &mut ended),
                Held::Open(open) => {
                    let export = namespace.export(held.handle());
                    open.set_read_only(export.is_ok_and(|export| export.writable().is_err()));
                }
                Held::Layout(layout) if layout.covers(true) => {
                    let export = namespace.export(held.handle());
                    if export.is_ok_and(|export| export.writable().is_err()) {
                        table.revoke(&held, true, &mut ended);
                    }
                }
                Held::Lock(_) | Held::Delegation(_) | Held::Layout(_) => {}
            }
        }
        drop(table);
        layout::tell_of_taken(&mut ended);
        self.state.finish(ended);
        // Readers without requests would not notice new rules. They ask again.
        self.stop_exposure();
    }

    /// The one client record of all callers without state.
    pub fn stateless_client(&self) -> &Arc<Client> {
        &self.stateless_client
    }

    /// Counts the state that is held now.
    pub fn counts(&self) -> ServiceCounts {
        let clients = self.clients.lock();
        let (known, unconfirmed) = (clients.len(), clients.unconfirmed());
        drop(clients);
        let table = self.state.lock();
        let (counts, recalled) = (table.counts, table.recalling.len());
        let attribute_queries = table.queries.len();
        let (recalled_layouts, fenced_layouts) =
            (table.recalling_layouts.len(), table.fencing.len());
        drop(table);
        let (fences, fence_waiters) = self.fences.counts();
        ServiceCounts {
            clients: known,
            unconfirmed_clients: unconfirmed,
            opens: counts.opens,
            open_files: counts.open_files,
            locks: counts.locks,
            lock_ranges: counts.ranges,
            lock_waiters: counts.waiters,
            kept_locks: self.locks.lock_log.kept(),
            broken_locks: self.state.guards.broken(),
            delegations: counts.delegations,
            recalled_delegations: recalled,
            layouts: counts.layouts,
            recalled_layouts,
            fenced_layouts,
            attribute_queries,
            revoked: counts.revoked,
            stateless_files: self.opens.stateless.len(),
            undo_files: self.state.writers.undo.len(),
            ended_sessions: self.replies.len(),
            fences,
            fence_waiters,
        }
    }

    /// Does the periodic work: ends expired leases, grace and overdue recalls. Any thread calls it,
    /// several times a second. A call soon after another does little.
    pub fn tick(&self, now_ns: u64) {
        if is_due(&self.leases_ns, now_ns, limits::LEASES_EVERY_NS) {
            self.clients.expire(now_ns);
            self.clients.forget_idle_records(now_ns);
            self.clients.forget_idle_lock_managers(now_ns);
            self.replies.tick(now_ns);
            self.durable.tick(now_ns);
            let clock = open::Clock { now_ns, lease_ns: self.state.config.lease_ns() };
            let mut ended = Ended::default();
            let mut table = self.state.lock();
            table.end_turns(now_ns, &mut ended);
            let overdue = table.overdue_holders(clock);
            drop(table);
            self.state.finish(ended);
            self.clients.expire_soon(overdue);
        }
        if self.clients.grace_ends_soon() {
            self.clients.tick_grace(now_ns);
        }
        if is_due(&self.clients.recalls_ns, now_ns, limits::RECALLS_EVERY_NS) {
            self.clients.end_expiring_leases(now_ns);
            self.clients.find_returned();
            self.clients.tick_grace(now_ns);
            self.delegations.tick(now_ns);
            self.layouts.tick(now_ns);
            self.locks.tick(now_ns);
            self.take_local_changes(now_ns);
        }
        if is_due(&self.swept_ns, now_ns, limits::SWEEP_EVERY_NS) {
            self.opens.stateless.sweep(now_ns);
            self.fences.sweep();
            self.locks.sweep();
            self.state.writers.exposure.end_idle(now_ns);
        }
    }

    /// Lets the stores release what they do not need, every few seconds. May wait for other
    /// machines, so only a thread without other work calls it.
    pub fn sweep_stores(&self, now_ns: u64) {
        if is_due(&self.stores_swept_ns, now_ns, limits::SWEEP_EVERY_NS) {
            self.namespace().exports().for_each(|export| export.store().sweep());
        }
    }

    /// Recalls delegations on files that a local process has changed, bypassing the server, and ends
    /// the exposure of these files, or takes the blocks of small ones away.
    /// [`tick`](Self::tick) calls it. The owner of a store's descriptor calls it at once when the
    /// descriptor signals a change. While another thread does so, it does nothing.
    pub fn take_local_changes(&self, now_ns: u64) {
        let Some(_looking) = self.state.writers.exposure.look() else { return };
        for export in self.namespace().exports() {
            let fs = export.store().fs_id();
            export.store().take_local_changes(&mut |file| {
                let changed = Handle { fs, file };
                self.delegations.recall_all(&changed, now_ns);
                self.state.writers.exposure.changed_locally(&changed);
            });
        }
        self.state.writers.exposure.looked(now_ns);
    }

    /// The lock under which names of a directory are removed or replaced.
    fn lock_names(&self, dir: usize) -> MutexGuard<'_, ()> {
        self.names[dir].lock()
    }
}

#[cfg(test)]
impl Service {
    /// Makes a service over an empty file system in memory.
    fn of_memory() -> Self {
        let store = Arc::new(dafs_store::MemoryStore::default());
        let export = Export::new("", store, ExportOptions::default());
        let config = ServiceConfig::new(Duration::from_secs(90), 1);
        // INVARIANT: one export has no name twice.
        Self::new(config, Namespace::new(vec![export]).expect("one export"))
    }
}

/// True if the caller is to do something now, because it was done last at least `every_ns` ago. Of
/// several callers one gets true.
fn is_due(last_ns: &AtomicU64, now_ns: u64, every_ns: u64) -> bool {
    let last = last_ns.load(Ordering::Relaxed);
    let order = Ordering::Relaxed;
    now_ns.saturating_sub(last) >= every_ns
        && last_ns.compare_exchange(last, now_ns, order, order).is_ok()
}
