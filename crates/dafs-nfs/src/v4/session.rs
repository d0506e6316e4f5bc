//! Sessions and the clients that own them (RFC 8881 2.10).
//!
//! Invariants
//! * A session belongs to one client instance and goes with it; its id is never given out again
//!   and cannot be guessed.
//! * What a client may have of sessions, slots and kept replies is bounded, and so is the sum. Hosts
//!   share the sessions.
//! * A slot that a request has taken is given back exactly once, whatever becomes of the request
//!   and of its connection ([`HeldSlot`]).

use super::callback::{BackParameters, Callbacks, PathState};
use super::persistent::{Host, Place, Places};
use super::slot::{Begin, SlotRequest, SlotTable};
use crate::limits::{
    BACK_SILENCE_NS, CLIENTS_PRUNE_MIN, DURABLE_OPERATIONS_MAX, DURABLE_SLOTS_MAX,
    REPLY_CACHE_BYTES_MAX, REPLY_CACHE_SHARE_BYTES, SESSIONS_MAX, SESSIONS_PER_CLIENT_MAX,
};
use crate::principal::Principal;
use crate::shared::NfsCounts;
use dafs_service::{Client, ClientKey, Shared, has_share, least_to_lose};
use dafs_store::Wait;
use dafs_wire::nfs4::{ChannelAttributes, SessionId, Status};
use rustc_hash::FxHashMap;
use siphasher::sip128::{Hasher128, SipHasher24};
use std::hash::Hasher;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, TryLockError};

/// A client as this front door knows it, from its first EXCHANGE_ID on.
#[derive(Debug)]
pub(crate) struct NfsClient {
    /// The service's record.
    record: Arc<Client>,
    /// Who made the record; nobody else may confirm it.
    principal: Principal,
    /// Held while a session is made, which may take long.
    create: Mutex<CreateSlot>,
    /// The sequence of the last CREATE_SESSION that succeeded.
    created: AtomicU32,
    /// The client's sessions.
    sessions: Mutex<Vec<SessionId>>,
    callbacks: Mutex<Callbacks>,
    /// Whether the client has asked for a back channel, so that its absence is worth telling.
    wants_callbacks: AtomicBool,
    /// What [`Callbacks::path`] said last, for SEQUENCE to read without the lock.
    path_up: AtomicBool,
    path_fault: AtomicBool,
}

/// The one slot of CREATE_SESSION (RFC 8881 18.36.4).
#[derive(Debug)]
pub(crate) struct CreateSlot {
    /// The sequence of the last CREATE_SESSION that succeeded.
    sequence: u32,
    /// Its result, without the status.
    result: Option<Vec<u8>>,
}

/// What a CREATE_SESSION's sequence says about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Creation {
    New,
    Replay(Vec<u8>),
}

impl CreateSlot {
    /// Compares the sequence of a request.
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

    /// Remembers a result for retries.
    fn done(&mut self, sequence: u32, result: Vec<u8>) {
        self.sequence = sequence;
        self.result = Some(result);
    }
}

impl NfsClient {
    fn new(record: Arc<Client>, principal: Principal) -> Self {
        Self {
            record,
            principal,
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

    /// The service's record.
    pub(crate) fn record(&self) -> &Arc<Client> {
        &self.record
    }

    pub(crate) fn principal(&self) -> &Principal {
        &self.principal
    }

    /// The slot of CREATE_SESSION. Without waiting: `None` while a session is being made.
    pub(crate) fn create_slot(&self, wait: Wait) -> Option<MutexGuard<'_, CreateSlot>> {
        match wait {
            Wait::Allowed => Some(self.create.lock().unwrap_or_else(PoisonError::into_inner)),
            Wait::Never => match self.create.try_lock() {
                Ok(slot) => Some(slot),
                Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => None,
            },
        }
    }

    /// Remembers a CREATE_SESSION that succeeded.
    pub(crate) fn created(&self, slot: &mut CreateSlot, sequence: u32, result: Vec<u8>) {
        slot.done(sequence, result);
        self.created.store(sequence, Ordering::Relaxed);
    }

    /// The sequence that the next CREATE_SESSION has to carry.
    pub(crate) fn next_sequence(&self) -> u32 {
        self.created.load(Ordering::Relaxed).wrapping_add(1)
    }

    /// Whether another session can be had.
    pub(crate) fn has_room(&self) -> bool {
        self.sessions().len() < SESSIONS_PER_CLIENT_MAX
    }

    fn sessions(&self) -> MutexGuard<'_, Vec<SessionId>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn callbacks(&self) -> MutexGuard<'_, Callbacks> {
        self.callbacks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the client can be called, as far as was known last.
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

/// What SEQUENCE tells about a session's back channel, where no request waits for callbacks.
#[derive(Debug, Default)]
struct BackWatch {
    /// Whether a back channel was asked for and is not there now.
    down: AtomicBool,
    /// The connection that callbacks use.
    used: AtomicU64,
    /// When a request came over it last.
    heard_ns: AtomicU64,
    /// All connections that may carry callbacks.
    bound: Mutex<Vec<u64>>,
}

/// A session.
#[derive(Debug)]
pub(crate) struct Session {
    id: SessionId,
    owner: Arc<NfsClient>,
    /// When it was asked for.
    made_ns: u64,
    fore: ChannelAttributes,
    slots: Mutex<SlotTable>,
    /// Its replies outlive the server.
    persistent: bool,
    /// Its place among those that persist, until it ends.
    place: Mutex<Option<Place>>,
    gone: AtomicBool,
    back: BackWatch,
    /// Bytes of kept replies of all sessions.
    cache_bytes: Arc<AtomicUsize>,
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

    /// When it was asked for: whatever comes by it was sent later.
    pub(crate) fn made_ns(&self) -> u64 {
        self.made_ns
    }

    /// Limits of the fore channel.
    pub(crate) fn fore(&self) -> &ChannelAttributes {
        &self.fore
    }

    /// Stands for a session of an earlier run of the server: it has no slots to speak of, and is in no
    /// table.
    pub(crate) fn absent(id: SessionId, client: Arc<Client>, principal: Principal) -> Arc<Self> {
        Arc::new(Self {
            id,
            owner: Arc::new(NfsClient::new(client, principal)),
            made_ns: 0,
            fore: ChannelAttributes::default(),
            slots: Mutex::new(SlotTable::fixed(1)),
            persistent: false,
            place: Mutex::default(),
            gone: AtomicBool::new(false),
            back: BackWatch::default(),
            cache_bytes: Arc::default(),
        })
    }

    /// Whether its replies outlive the server.
    pub(crate) fn is_persistent(&self) -> bool {
        self.persistent
    }

    /// It is in no table any more.
    fn end(&self) {
        self.gone.store(true, Ordering::Release);
        self.place.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// True once the session has been destroyed or its client has been replaced.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire) || self.owner.record.is_gone()
    }

    pub(crate) fn slots(&self) -> MutexGuard<'_, SlotTable> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Which connections carry its callbacks now, the one to use last.
    pub(crate) fn set_back(&self, down: bool, bound: Vec<u64>) {
        self.back.down.store(down, Ordering::Relaxed);
        self.back.used.store(bound.last().copied().unwrap_or(u64::MAX), Ordering::Relaxed);
        *self.back.bound.lock().unwrap_or_else(PoisonError::into_inner) = bound;
    }

    /// Whether a back channel was asked for and is not there now.
    pub(crate) fn back_down(&self) -> bool {
        self.back.down.load(Ordering::Relaxed)
    }

    /// The client can be heard over the connection that callbacks use.
    pub(crate) fn heard_back(&self, now_ns: u64) {
        self.back.heard_ns.fetch_max(now_ns, Ordering::Relaxed);
    }

    /// A request has come over a connection. True if nothing has come for a while over the one that
    /// callbacks use, so that it is most likely dead.
    pub(crate) fn is_back_silent(&self, connection: u64, now_ns: u64) -> bool {
        if self.back.used.load(Ordering::Relaxed) == connection {
            self.heard_back(now_ns);
            return false;
        }
        let heard_ns = self.back.heard_ns.load(Ordering::Relaxed);
        now_ns.saturating_sub(heard_ns) > BACK_SILENCE_NS
            && !self.back.bound.lock().unwrap_or_else(PoisonError::into_inner).contains(&connection)
    }

    /// Takes a slot for a request, or finds what became of it earlier.
    ///
    /// # Errors
    /// Those of [`SlotTable::begin`].
    pub(crate) fn begin(
        self: &Arc<Self>,
        request: SlotRequest,
    ) -> Result<(Begin, SlotsLeft, Option<HeldSlot>), Status> {
        let short = self.is_short();
        let mut slots = self.slots();
        let before_bytes = slots.cached_bytes();
        if short && before_bytes > REPLY_CACHE_SHARE_BYTES {
            slots.shrink();
        }
        let begin = slots.begin(request);
        let freed_bytes = before_bytes - slots.cached_bytes();
        let left = SlotsLeft { highest: slots.highest(), target: slots.target_highest() };
        drop(slots);
        self.cache_bytes.fetch_sub(freed_bytes, Ordering::Relaxed);
        let begin = begin?;
        let held = (begin == Begin::New).then(|| HeldSlot {
            session: self.clone(),
            slot: request.slot,
            finished: false,
        });
        Ok((begin, left, held))
    }

    /// Whether all sessions together keep too much.
    fn is_short(&self) -> bool {
        self.cache_bytes.load(Ordering::Relaxed) > REPLY_CACHE_BYTES_MAX
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let bytes = self.slots().cached_bytes();
        self.cache_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Slots that the session has now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SlotsLeft {
    /// The highest that is accepted.
    pub(crate) highest: u32,
    /// The highest that should be used.
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
    /// Gives the slot back with the reply to keep, if any.
    pub(crate) fn finish(mut self, reply: Option<Arc<[u8]>>) {
        self.release(reply);
    }

    fn release(&mut self, reply: Option<Arc<[u8]>>) {
        if std::mem::replace(&mut self.finished, true) {
            return;
        }
        let session = &self.session;
        let bytes = reply.as_ref().map_or(0, |reply| reply.len());
        session.cache_bytes.fetch_add(bytes, Ordering::Relaxed);
        let share = if session.is_short() { REPLY_CACHE_SHARE_BYTES } else { usize::MAX };
        let mut slots = session.slots();
        let before_bytes = slots.cached_bytes() + bytes;
        slots.finish(self.slot, reply, share);
        let freed_bytes = before_bytes.saturating_sub(slots.cached_bytes());
        drop(slots);
        session.cache_bytes.fetch_sub(freed_bytes, Ordering::Relaxed);
    }
}

impl Drop for HeldSlot {
    fn drop(&mut self) {
        // The request came to an end that nobody foresaw; its sequence stays used, so that what it
        // did is not done again.
        self.release(None);
    }
}

/// What a new session is made of.
pub(crate) struct NewSession {
    pub(crate) owner: Arc<NfsClient>,
    pub(crate) made_ns: u64,
    pub(crate) fore: ChannelAttributes,
    pub(crate) back: BackParameters,
    /// Where the client is, if its replies are to outlive the server, should there be room for one more
    /// session like that.
    pub(crate) persistent: Option<Host>,
}

#[derive(Debug, Default)]
struct Clients {
    by_key: FxHashMap<ClientKey, Arc<NfsClient>>,
    /// At how many records those that are over are looked for.
    prune_at: usize,
}

impl Clients {
    /// Forgets the records that the service has given up, now and then, so that requests for ever
    /// new clients do not make the table longer than the service's.
    fn prune(&mut self) {
        if self.by_key.len() >= self.prune_at {
            // Those with sessions are forgotten together with them.
            let over = |client: &NfsClient| client.record.is_gone() && client.sessions().is_empty();
            self.by_key.retain(|_, client| !over(client));
            self.prune_at = (2 * self.by_key.len()).max(CLIENTS_PRUNE_MIN);
        }
    }
}

type Sessions = FxHashMap<SessionId, Arc<Session>>;

/// All clients and sessions of this front door.
#[derive(Debug)]
pub(crate) struct SessionTable {
    secret: (u64, u64),
    counter: AtomicU64,
    sessions: RwLock<Sessions>,
    clients: RwLock<Clients>,
    cache_bytes: Arc<AtomicUsize>,
    persistent: Arc<Places>,
    sessions_max: usize,
}

impl SessionTable {
    /// An empty table; the secret makes ids that cannot be guessed.
    pub(crate) fn new(secret: [u8; 16]) -> Self {
        let secret = u128::from_be_bytes(secret);
        Self {
            secret: ((secret >> 64) as u64, secret as u64),
            counter: AtomicU64::new(0),
            sessions: RwLock::default(),
            clients: RwLock::default(),
            cache_bytes: Arc::default(),
            persistent: Arc::default(),
            sessions_max: SESSIONS_MAX,
        }
    }

    /// The session of an id, if it lives.
    pub(crate) fn find(&self, id: SessionId) -> Option<Arc<Session>> {
        let sessions = self.sessions.read().unwrap_or_else(PoisonError::into_inner);
        sessions.get(&id).filter(|session| !session.is_gone()).cloned()
    }

    /// The client of a key.
    pub(crate) fn client(&self, key: ClientKey) -> Option<Arc<NfsClient>> {
        let clients = self.clients.read().unwrap_or_else(PoisonError::into_inner);
        clients.by_key.get(&key).cloned()
    }

    /// Every client.
    pub(crate) fn clients(&self) -> Vec<Arc<NfsClient>> {
        let clients = self.clients.read().unwrap_or_else(PoisonError::into_inner);
        clients.by_key.values().cloned().collect()
    }

    /// The client of a service's record, made if it is new here.
    pub(crate) fn enter_client(
        &self,
        record: &Arc<Client>,
        principal: Principal,
    ) -> Arc<NfsClient> {
        let mut clients = self.clients.write().unwrap_or_else(PoisonError::into_inner);
        clients.prune();
        let make = || Arc::new(NfsClient::new(record.clone(), principal));
        clients.by_key.entry(record.key()).or_insert_with(make).clone()
    }

    /// Whether the host of a client may have another session.
    pub(crate) fn has_room(&self, owner: &NfsClient) -> bool {
        self.is_room(&self.sessions.read().unwrap_or_else(PoisonError::into_inner), owner)
    }

    /// How many sessions a host has at least that makes room for another one of this client's.
    pub(crate) fn least_to_lose(&self, owner: &NfsClient) -> usize {
        let all = self.sessions.read().unwrap_or_else(PoisonError::into_inner).len();
        least_to_lose(owner.record.host().count(Shared::Sessions), all, self.sessions_max)
    }

    fn is_room(&self, sessions: &Sessions, owner: &NfsClient) -> bool {
        let own = owner.record.host().count(Shared::Sessions);
        has_share(own, sessions.len(), self.sessions_max)
    }

    /// Makes a session.
    ///
    /// # Errors
    /// `NoSpc` when the client's host has as many as it may, `StaleClientId` when the client is gone.
    pub(crate) fn create(&self, mut new: NewSession) -> Result<Arc<Session>, Status> {
        let host = new.persistent.take();
        let place = host.and_then(|host| self.persistent.take(&host, new.owner.key()));
        let mut slots = SlotTable::new(new.fore.requests_max);
        if place.is_some() {
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
            persistent: place.is_some(),
            place: Mutex::new(place),
            fore: new.fore,
            gone: AtomicBool::new(false),
            back: BackWatch::default(),
            cache_bytes: self.cache_bytes.clone(),
            owner: new.owner,
            made_ns: new.made_ns,
        });
        let mut sessions = self.sessions.write().unwrap_or_else(PoisonError::into_inner);
        if !self.is_room(&sessions, &session.owner) {
            return Err(Status::NoSpc);
        }
        // Whoever forgets a client takes this lock after the record is marked.
        if session.client().is_gone() {
            return Err(Status::StaleClientId);
        }
        // Counted first, because it may end as soon as it is in the table.
        session.client().session_started();
        sessions.insert(id, session.clone());
        session.owner.sessions().push(id);
        drop(sessions);
        session.owner.callbacks().add_session(Arc::downgrade(&session), new.back);
        Ok(session)
    }

    /// Ends a session. False when somebody else did.
    pub(crate) fn destroy(&self, session: &Arc<Session>) -> bool {
        let mut sessions = self.sessions.write().unwrap_or_else(PoisonError::into_inner);
        let removed = sessions.remove(&session.id).is_some();
        drop(sessions);
        if removed {
            session.end();
            session.owner.sessions().retain(|id| *id != session.id);
            session.client().session_ended();
        }
        removed
    }

    /// Ends what belongs to a client, and forgets it. Returns the sessions that it had.
    pub(crate) fn forget_client(&self, key: ClientKey) -> Vec<Arc<Session>> {
        let mut clients = self.clients.write().unwrap_or_else(PoisonError::into_inner);
        let Some(client) = clients.by_key.remove(&key) else { return Vec::new() };
        drop(clients);
        let mut sessions = self.sessions.write().unwrap_or_else(PoisonError::into_inner);
        let ids = std::mem::take(&mut *client.sessions());
        let ended: Vec<_> = ids.iter().filter_map(|id| sessions.remove(id)).collect();
        drop(sessions);
        // Their connections are let go of, and with them what would hold this record.
        *client.callbacks() = Callbacks::new();
        for session in &ended {
            session.end();
            session.client().session_ended();
        }
        ended
    }

    /// Clients whose record the service has given up.
    pub(crate) fn gone(&self) -> Vec<ClientKey> {
        let clients = self.clients.read().unwrap_or_else(PoisonError::into_inner);
        let gone = clients.by_key.values().filter(|client| client.record.is_gone());
        gone.map(|client| client.key()).collect()
    }

    /// What is in the table.
    pub(crate) fn counts(&self) -> NfsCounts {
        let sessions = self.sessions.read().unwrap_or_else(PoisonError::into_inner).len();
        let clients = self.clients.read().unwrap_or_else(PoisonError::into_inner).by_key.len();
        NfsCounts { clients, sessions, cached_bytes: self.cache_bytes.load(Ordering::Relaxed) }
    }
}

#[cfg(test)]
mod tests;
