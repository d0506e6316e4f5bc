//! Sessions and the clients that own them (RFC 8881 2.10).
//!
//! Invariants
//! * A session belongs to one client instance and ends with it. Its id is unpredictable and never
//!   reused.
//! * A client's sessions, slots and cached replies are bounded, and so is the sum of all. Hosts
//!   share the sessions.
//! * A slot that a request has taken is released exactly once, however the request and its
//!   connection end ([`HeldSlot`]).

mod cache;
mod shares;

pub(crate) use shares::SessionWeight;

use super::callback::{BackParameters, Callbacks, PathState};
use super::persistent::{Host, PersistentShare, PersistentShares};
use super::slot::{Begin, SlotRequest, SlotTable};
use crate::limits::{
    BACK_SILENCE_NS, CLIENTS_PRUNE_MIN, DURABLE_OPERATIONS_MAX, DURABLE_SLOTS_MAX, SESSIONS_MAX,
    SESSIONS_PER_CLIENT_MAX,
};
use crate::principal::Principal;
use cache::ReplyCache;
use dafs_mem::Shrinking as _;
use dafs_mem::{Mutex, RwLock};
use dafs_service::{Client, ClientKey, Shared, has_share, least_to_lose};
use dafs_store::Wait;
use dafs_wire::nfs4::{ChannelAttributes, ProtectedOps, SessionId, Status};
use rustc_hash::FxHashMap;
use siphasher::sip128::{Hasher128, SipHasher24};
use std::hash::Hasher;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard};

/// A client as this front end knows it, from its first EXCHANGE_ID on.
#[derive(Debug)]
pub(crate) struct NfsClient {
    /// The service's record.
    record: Arc<Client>,
    /// The principal that made the record. No other may confirm it.
    principal: Principal,
    /// The operations under state protection by the machine credential, if the client has that.
    protected: Option<ProtectedOps>,
    /// Locked while a session is made, which may take long.
    create: Mutex<CreateSlot>,
    /// The sequence id of the last successful CREATE_SESSION.
    created: AtomicU32,
    /// The client's sessions.
    sessions: Mutex<Vec<SessionId>>,
    callbacks: Mutex<Callbacks>,
    /// The client has asked for a back channel, so SEQUENCE reports its absence.
    wants_callbacks: AtomicBool,
    /// The last value of [`Callbacks::path`], for SEQUENCE to read without the lock.
    path_up: AtomicBool,
    path_fault: AtomicBool,
}

/// The one slot of CREATE_SESSION (RFC 8881 18.36.4).
#[derive(Debug)]
pub(crate) struct CreateSlot {
    /// The sequence id of the last successful CREATE_SESSION.
    sequence: u32,
    /// Its result, without the status.
    result: Option<Vec<u8>>,
}

/// The verdict on the sequence id of a CREATE_SESSION.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Creation {
    New,
    Replay(Vec<u8>),
}

impl CreateSlot {
    /// Compares the sequence id of a request.
    ///
    /// # Errors
    /// `SeqMisordered`.
    pub(crate) fn check(&self, sequence: u32) -> Result<Creation, Status> {
        if sequence == self.sequence.wrapping_add(1) {
            return Ok(Creation::New);
        }
        match &self.result {
            Some(result) if sequence == self.sequence => Ok(Creation::Replay(result.clone())),
            _ => Err(Status::SeqMisordered),
        }
    }

    /// Caches a result for retries.
    fn done(&mut self, sequence: u32, result: Vec<u8>) {
        self.sequence = sequence;
        self.result = Some(result);
    }
}

impl NfsClient {
    fn new(record: Arc<Client>, principal: Principal, protected: Option<ProtectedOps>) -> Self {
        Self {
            record,
            principal,
            protected,
            create: Mutex::new(CreateSlot { sequence: 0, result: None }),
            created: AtomicU32::new(0),
            sessions: Mutex::default(),
            callbacks: Mutex::new(Callbacks::new()),
            wants_callbacks: AtomicBool::new(false),
            path_up: AtomicBool::new(false),
            path_fault: AtomicBool::new(false),
        }
    }

    pub(crate) fn key(&self) -> ClientKey {
        self.record.key()
    }

    /// Returns the service's record.
    pub(crate) fn record(&self) -> &Arc<Client> {
        &self.record
    }

    pub(crate) fn principal(&self) -> &Principal {
        &self.principal
    }

    /// Returns the operations under state protection, if the client has asked for that.
    pub(crate) fn protected_ops(&self) -> Option<ProtectedOps> {
        self.protected
    }

    /// True if the client wants its machine to send this operation for all its users.
    pub(crate) fn machine_may(&self, number: u32) -> bool {
        self.protected.is_some_and(|ops| ops.must_allow.contains(number))
    }

    /// Locks the slot of CREATE_SESSION. With `Wait::Never`, returns `None` while a session is
    /// being made.
    pub(crate) fn create_slot(&self, wait: Wait) -> Option<MutexGuard<'_, CreateSlot>> {
        match wait {
            Wait::Allowed => Some(self.create.lock()),
            Wait::Never => self.create.try_lock(),
        }
    }

    /// Records a successful CREATE_SESSION.
    pub(crate) fn created(&self, slot: &mut CreateSlot, sequence: u32, result: Vec<u8>) {
        slot.done(sequence, result);
        self.created.store(sequence, Ordering::Relaxed);
    }

    /// Returns the sequence id that the next CREATE_SESSION must have.
    pub(crate) fn next_sequence(&self) -> u32 {
        self.created.load(Ordering::Relaxed).wrapping_add(1)
    }

    /// True if the client may have another session.
    pub(crate) fn has_room(&self) -> bool {
        self.sessions.lock().len() < SESSIONS_PER_CLIENT_MAX
    }

    pub(crate) fn callbacks(&self) -> MutexGuard<'_, Callbacks> {
        self.callbacks.lock()
    }

    /// Returns the last known state of the callback path.
    pub(crate) fn path(&self) -> PathState {
        let (up, fault) = (&self.path_up, &self.path_fault);
        PathState { up: up.load(Ordering::Relaxed), fault: fault.load(Ordering::Relaxed) }
    }

    pub(crate) fn set_path(&self, path: PathState) {
        self.path_up.store(path.up, Ordering::Relaxed);
        self.path_fault.store(path.fault, Ordering::Relaxed);
    }

    pub(crate) fn want_callbacks(&self) {
        self.wants_callbacks.store(true, Ordering::Relaxed);
    }

    pub(crate) fn wants_callbacks(&self) -> bool {
        self.wants_callbacks.load(Ordering::Relaxed)
    }
}

/// The state of a session's back channel that SEQUENCE reports, readable without the lock of
/// callbacks.
#[derive(Debug, Default)]
struct BackWatch {
    /// True if a back channel was requested and is missing now.
    down: AtomicBool,
    /// The connection that callbacks use.
    used: AtomicU64,
    /// The time of the last request over it.
    heard_ns: AtomicU64,
    /// All connections that may carry callbacks.
    bound: Mutex<Vec<u64>>,
}

/// A session.
#[derive(Debug)]
pub(crate) struct Session {
    id: SessionId,
    owner: Arc<NfsClient>,
    /// The time of the request for it.
    made_ns: u64,
    fore: ChannelAttributes,
    slots: Mutex<SlotTable>,
    /// Its replies are durable.
    persistent: bool,
    /// Its share of the persistent sessions, until it ends.
    share: Mutex<Option<PersistentShare>>,
    gone: AtomicBool,
    back: BackWatch,
    importance: SessionWeight,
    /// Cached replies of all sessions.
    cache: Arc<ReplyCache>,
}

impl Session {
    pub(crate) fn id(&self) -> SessionId {
        self.id
    }

    pub(crate) fn owner(&self) -> &Arc<NfsClient> {
        &self.owner
    }

    pub(crate) fn client(&self) -> &Arc<Client> {
        &self.owner.record
    }

    /// Returns the time of the request for it. All requests over it were sent later.
    pub(crate) fn made_ns(&self) -> u64 {
        self.made_ns
    }

    /// Returns the limits of the fore channel.
    pub(crate) fn fore(&self) -> &ChannelAttributes {
        &self.fore
    }

    /// Makes a stand-in for a session of an earlier run of the server. It has no usable slots, and
    /// is in no table.
    pub(crate) fn absent(id: SessionId, client: Arc<Client>, principal: Principal) -> Arc<Self> {
        Arc::new(Self {
            id,
            owner: Arc::new(NfsClient::new(client, principal, None)),
            made_ns: 0,
            fore: ChannelAttributes::default(),
            slots: Mutex::new(SlotTable::fixed(1)),
            persistent: false,
            share: Mutex::default(),
            gone: AtomicBool::new(false),
            back: BackWatch::default(),
            importance: SessionWeight::default(),
            cache: Arc::default(),
        })
    }

    /// True if its replies are durable.
    pub(crate) fn is_persistent(&self) -> bool {
        self.persistent
    }

    /// Marks it as removed from all tables.
    fn end(&self) {
        self.gone.store(true, Ordering::Release);
        self.share.lock().take();
    }

    /// True once the session has been destroyed or its client has been replaced.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire) || self.owner.record.is_gone()
    }

    pub(crate) fn slots(&self) -> MutexGuard<'_, SlotTable> {
        self.slots.lock()
    }

    /// Sets the connections that carry its callbacks now. The last one is used.
    pub(crate) fn set_back(&self, down: bool, bound: Vec<u64>) {
        self.back.down.store(down, Ordering::Relaxed);
        self.back.used.store(bound.last().copied().unwrap_or(u64::MAX), Ordering::Relaxed);
        *self.back.bound.lock() = bound;
    }

    /// True if a back channel was requested and is missing now.
    pub(crate) fn back_down(&self) -> bool {
        self.back.down.load(Ordering::Relaxed)
    }

    /// Notes that the client is alive on the connection that callbacks use.
    pub(crate) fn heard_back(&self, now_ns: u64) {
        self.back.heard_ns.fetch_max(now_ns, Ordering::Relaxed);
    }

    /// Notes a request over a connection. Returns true if no request has come for a while over the
    /// one that callbacks use, so that it is most likely dead.
    pub(crate) fn is_back_silent(&self, connection: u64, now_ns: u64) -> bool {
        if self.back.used.load(Ordering::Relaxed) == connection {
            self.heard_back(now_ns);
            return false;
        }
        let heard_ns = self.back.heard_ns.load(Ordering::Relaxed);
        now_ns.saturating_sub(heard_ns) > BACK_SILENCE_NS
            && !self.back.bound.lock().contains(&connection)
    }

    /// Takes a slot for a request, or finds the result of an earlier copy.
    ///
    /// # Errors
    /// Those of [`SlotTable::begin`].
    pub(crate) fn begin(
        self: &Arc<Self>,
        request: SlotRequest,
    ) -> Result<(Begin, SlotsLeft, Option<HeldSlot>), Status> {
        let allowed_bytes = self.cache.allowance(self.importance.weight());
        let slot = request.slot;
        let mut slots = self.slots();
        let before_bytes = slots.cached_bytes();
        slots.shrink_to_fit(allowed_bytes);
        let begin = slots.begin(request);
        let freed_bytes = before_bytes - slots.cached_bytes();
        let left = SlotsLeft { highest: slots.highest(), target: slots.target_highest() };
        drop(slots);
        self.cache.remove(freed_bytes);
        let begin = begin?;
        let held = (begin == Begin::New).then(|| HeldSlot {
            session: self.clone(),
            slot,
            finished: false,
        });
        Ok((begin, left, held))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let bytes = self.slots().cached_bytes();
        self.cache.remove(bytes);
    }
}

/// The slots that the session has now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SlotsLeft {
    /// The highest slot that is accepted.
    pub(crate) highest: u32,
    /// The highest slot that should be used.
    pub(crate) target: u32,
}

/// A slot that a request has taken.
#[derive(Debug)]
pub(crate) struct HeldSlot {
    session: Arc<Session>,
    slot: u32,
    finished: bool,
}

impl HeldSlot {
    /// Releases the slot with the reply to cache, if any.
    pub(crate) fn finish(mut self, reply: Option<Arc<[u8]>>) {
        self.release(reply);
    }

    fn release(&mut self, reply: Option<Arc<[u8]>>) {
        if std::mem::replace(&mut self.finished, true) {
            return;
        }
        let session = &self.session;
        let bytes = reply.as_ref().map_or(0, |reply| reply.len());
        session.cache.add(bytes);
        let share = session.cache.allowance(session.importance.weight());
        let mut slots = session.slots();
        let before_bytes = slots.cached_bytes() + bytes;
        slots.finish(self.slot, reply, share);
        let freed_bytes = before_bytes.saturating_sub(slots.cached_bytes());
        drop(slots);
        session.cache.remove(freed_bytes);
    }
}

impl Drop for HeldSlot {
    fn drop(&mut self) {
        // The request ended unexpectedly. Its sequence id stays used, so that it is not executed
        // again.
        self.release(None);
    }
}

/// The parameters of a new session.
pub(crate) struct NewSession {
    pub(crate) owner: Arc<NfsClient>,
    pub(crate) made_ns: u64,
    pub(crate) fore: ChannelAttributes,
    pub(crate) back: BackParameters,
    /// The client's host, if its replies are to be durable and there is room for one more such
    /// session.
    pub(crate) persistent: Option<Host>,
    /// Its importance.
    pub(crate) importance: SessionWeight,
}

#[derive(Debug, Default)]
struct Clients {
    by_key: FxHashMap<ClientKey, Arc<NfsClient>>,
    /// The number of records at which dead ones are removed.
    prune_at: usize,
}

impl Clients {
    /// Removes records that the service has dropped, now and then. So requests for ever new clients
    /// do not make the table longer than twice the service's.
    fn prune(&mut self) {
        if self.by_key.len() >= self.prune_at {
            // Records with sessions are removed together with these.
            let over =
                |client: &NfsClient| client.record.is_gone() && client.sessions.lock().is_empty();
            self.by_key.retain(|_, client| !over(client));
            self.by_key.shrink_if_sparse();
            self.prune_at = (2 * self.by_key.len()).max(CLIENTS_PRUNE_MIN);
        }
    }
}

type Sessions = FxHashMap<SessionId, Arc<Session>>;

/// All clients and sessions of this front end.
#[derive(Debug)]
pub(crate) struct SessionTable {
    secret: (u64, u64),
    counter: AtomicU64,
    sessions: RwLock<Sessions>,
    clients: RwLock<Clients>,
    cache: Arc<ReplyCache>,
    persistent: Arc<PersistentShares>,
    sessions_max: usize,
}

impl SessionTable {
    /// Makes an empty table. The secret makes ids unpredictable.
    pub(crate) fn new(secret: [u8; 16]) -> Self {
        let secret = u128::from_be_bytes(secret);
        Self {
            secret: ((secret >> 64) as u64, secret as u64),
            counter: AtomicU64::new(0),
            sessions: RwLock::default(),
            clients: RwLock::default(),
            cache: Arc::default(),
            persistent: Arc::default(),
            sessions_max: SESSIONS_MAX,
        }
    }

    /// Finds a live session by its id.
    pub(crate) fn find(&self, id: SessionId) -> Option<Arc<Session>> {
        let sessions = self.sessions.read();
        sessions.get(&id).filter(|session| !session.is_gone()).cloned()
    }

    /// Finds a client by its key.
    pub(crate) fn client(&self, key: ClientKey) -> Option<Arc<NfsClient>> {
        let clients = self.clients.read();
        clients.by_key.get(&key).cloned()
    }

    /// Returns all clients.
    pub(crate) fn clients(&self) -> Vec<Arc<NfsClient>> {
        let clients = self.clients.read();
        clients.by_key.values().cloned().collect()
    }

    /// Returns the client of a service's record, and makes it if it is new here. Then it belongs to
    /// this principal, with this protection.
    pub(crate) fn enter_client(
        &self,
        record: &Arc<Client>,
        principal: Principal,
        protected: Option<ProtectedOps>,
    ) -> Arc<NfsClient> {
        let mut clients = self.clients.write();
        clients.prune();
        let make = || Arc::new(NfsClient::new(record.clone(), principal, protected));
        clients.by_key.entry(record.key()).or_insert_with(make).clone()
    }

    /// True if the host of a client may have another session.
    pub(crate) fn has_room(&self, owner: &NfsClient) -> bool {
        self.is_room(&self.sessions.read(), owner)
    }

    /// Returns the least number of sessions that a host must have to make room for another one of
    /// this client's.
    pub(crate) fn least_to_lose(&self, owner: &NfsClient) -> usize {
        let all = self.sessions.read().len();
        least_to_lose(owner.record.host().count(Shared::Sessions), all, self.sessions_max)
    }

    fn is_room(&self, sessions: &Sessions, owner: &NfsClient) -> bool {
        let own = owner.record.host().count(Shared::Sessions);
        has_share(own, sessions.len(), self.sessions_max)
    }

    /// Makes a session.
    ///
    /// # Errors
    /// `NoSpc` when the client's host has its share, `StaleClientId` when the client is gone.
    pub(crate) fn create(&self, mut new: NewSession) -> Result<Arc<Session>, Status> {
        let host = new.persistent.take();
        let share = host.and_then(|host| self.persistent.take(&host, new.owner.key()));
        let mut slots = SlotTable::new(new.fore.requests_max);
        if share.is_some() {
            let fore = &mut new.fore;
            fore.operations_max = fore.operations_max.min(DURABLE_OPERATIONS_MAX);
            fore.requests_max = fore.requests_max.min(DURABLE_SLOTS_MAX);
            slots = SlotTable::fixed(fore.requests_max);
        }
        let number = self.counter.fetch_add(1, Ordering::Relaxed);
        let mut hasher = SipHasher24::new_with_keys(self.secret.0, self.secret.1);
        hasher.write_u64(number);
        hasher.write_u64(new.owner.key().0);
        let id = SessionId(hasher.finish128().as_bytes());
        let session = Arc::new(Session {
            id,
            slots: Mutex::new(slots),
            persistent: share.is_some(),
            share: Mutex::new(share),
            fore: new.fore,
            gone: AtomicBool::new(false),
            back: BackWatch::default(),
            importance: new.importance,
            cache: self.cache.clone(),
            owner: new.owner,
            made_ns: new.made_ns,
        });
        let mut sessions = self.sessions.write();
        if !self.is_room(&sessions, &session.owner) {
            return Err(Status::NoSpc);
        }
        // A thread that removes a client takes this lock after it has marked the record.
        if session.client().is_gone() {
            return Err(Status::StaleClientId);
        }
        // Counted first, because it may end as soon as it is in the table.
        session.client().session_started();
        sessions.insert(id, session.clone());
        session.owner.sessions.lock().push(id);
        drop(sessions);
        session.owner.callbacks().add_session(Arc::downgrade(&session), new.back);
        Ok(session)
    }

    /// Removes a session. Returns false when another thread did.
    pub(crate) fn destroy(&self, session: &Arc<Session>) -> bool {
        let mut sessions = self.sessions.write();
        let removed = sessions.remove_and_shrink(&session.id).is_some();
        drop(sessions);
        if removed {
            session.end();
            session.owner.sessions.lock().retain(|id| *id != session.id);
            session.client().session_ended();
        }
        removed
    }

    /// Removes a client and its sessions, and returns these.
    pub(crate) fn forget_client(&self, key: ClientKey) -> Vec<Arc<Session>> {
        let mut clients = self.clients.write();
        let Some(client) = clients.by_key.remove_and_shrink(&key) else { return Vec::new() };
        drop(clients);
        let mut sessions = self.sessions.write();
        let ids = std::mem::take(&mut *client.sessions.lock());
        let ended: Vec<_> = ids.iter().filter_map(|id| sessions.remove_and_shrink(id)).collect();
        drop(sessions);
        // Drops the connections, which would keep this record alive.
        *client.callbacks() = Callbacks::new();
        for session in &ended {
            session.end();
            session.client().session_ended();
        }
        ended
    }

    /// Returns the clients whose record the service has dropped.
    pub(crate) fn gone(&self) -> Vec<ClientKey> {
        let clients = self.clients.read();
        let gone = clients.by_key.values().filter(|client| client.record.is_gone());
        gone.map(|client| client.key()).collect()
    }
}

#[cfg(test)]
mod tests;
