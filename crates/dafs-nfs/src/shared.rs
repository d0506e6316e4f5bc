//! The state that all reactors of the NFS front ends share.
//!
//! Invariants
//! * No lock that the service's calls to [`Front`] need is held in a call of the service, or a
//!   deadlock would be possible. These are the locks of a client's callbacks and of the session
//!   table.

use crate::admission::{Admission, Origin, Refusal};
use crate::connection::Connection;
use crate::disk::Misses;
use crate::gss::NfsGss;
use crate::limits::TIDY_EVERY_NS;
use crate::mount::Mounts;
use crate::nlm::{self, LockManagers, Peers};
use crate::refusals::Refusals;
use crate::v3::Duplicates;
use crate::v4::callback::{BackCredential, Callback, CallbackReport, Callbacks, Tokens};
use crate::v4::compound::names::LookUps;
use crate::v4::journal::session_key;
use crate::v4::ops::offload::Copies;
use crate::v4::session::{NfsClient, Session, SessionTable};
use dafs_rpc::CallbackError;
use dafs_rpc::gss::ContextCounts;
use dafs_service::{
    AttrAnswer, Client, ClientKey, DataRole, Export, Flavour, Front, Handle, Identities, Job,
    Place, Pool, Service, StateRef, WriteVerifier,
};
use dafs_store::{DeviceKey, LayoutForm};
use dafs_wire::nfs4::Status;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

/// The identity of this server towards NFS clients.
#[derive(Debug, Clone)]
pub struct NfsOptions {
    /// The server's identity (so_major_id, RFC 8881 2.10.5). It is the same after a restart and on
    /// all its addresses, and unique to this server.
    pub server_owner: Vec<u8>,
    /// The scope in which client ids and handles have the same meaning (eir_server_scope).
    pub server_scope: Vec<u8>,
    /// Domain name of the implementor (nii_domain).
    pub implementation_domain: String,
    /// Name and version of the software (nii_name).
    pub implementation_name: String,
    /// A random secret that makes session ids unpredictable.
    pub secret: [u8; 16],
    /// The RPC server's clock at zero of the service's clock, in nanoseconds.
    pub clock_start_ns: u64,
    /// Reads the RPC server's clock. It serves only to measure the duration of requests.
    pub clock: fn() -> u64,
}

impl NfsOptions {
    /// Returns the present time of the service's clock, to measure durations.
    pub(crate) fn clock_ns(&self) -> u64 {
        (self.clock)().saturating_sub(self.clock_start_ns)
    }
}

/// The state that all reactors share.
pub struct NfsShared {
    /// The semantics.
    pub service: Arc<Service>,
    /// Changes when unstable data may have been lost.
    pub write_verifier: Arc<WriteVerifier>,
    pool: Arc<dyn Pool>,
    admission: Admission,
    options: Arc<NfsOptions>,
    /// Set before the first call, if the server has RPCSEC_GSS.
    gss: OnceLock<Arc<NfsGss>>,
    /// Set before the first call, if the server has rules for users of certificates.
    users: OnceLock<Arc<Identities>>,
    /// The role of a data server, if it is one.
    data_role: Option<DataRole>,
    pub(crate) sessions: SessionTable,
    /// Replies to non-idempotent NFSv3 requests.
    pub(crate) duplicates: Duplicates,
    /// The mounts that MOUNT DUMP lists.
    pub(crate) mounts: Mounts,
    /// The lock managers of NFSv3 clients.
    pub(crate) nlm: LockManagers,
    /// Reads that had to wait for a disk.
    pub(crate) misses: Misses,
    refusals: Refusals,
    tokens: Tokens,
    copies: Copies,
    /// The latest known time, for calls that come without one.
    now_ns: AtomicU64,
    tidied_ns: AtomicU64,
    /// Look-ups of names of owners that operations wait for.
    pub(crate) name_look_ups: LookUps,
    /// A reference to itself, for the service's calls back.
    front: Weak<NfsShared>,
}

impl std::fmt::Debug for NfsShared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NfsShared").field("options", &self.options).finish_non_exhaustive()
    }
}

/// The state that the front end holds, for metrics and tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NfsCounts {
    /// Client records, confirmed or not.
    pub clients: usize,
    /// Sessions of all clients.
    pub sessions: usize,
    /// Bytes of replies cached for retries.
    pub cached_bytes: usize,
    /// Slots of all sessions.
    pub slots: usize,
    /// Slots that clients are asked to give back (sr_target_highest_slotid, RFC 8881 2.10.6.1).
    pub slots_owed: usize,
    /// Sessions with more than the default weight.
    pub important_sessions: usize,
    /// Slots of these sessions.
    pub important_slots: usize,
    /// Reads that had to wait for a disk, and that the kernel's ring has taken.
    pub ring_reads: u64,
    /// Those that the pool has taken, also after the ring.
    pub pool_reads: u64,
}

/// A session at some moment, for administrators.
#[derive(Debug, Clone)]
pub struct NfsSessionFacts {
    /// The id of the session.
    pub id: [u8; 16],
    /// Its client.
    pub client: Arc<Client>,
    /// Seconds since it was made.
    pub age_seconds: u64,
    /// Its weight, 1 to 10,000.
    pub weight: u32,
    /// Slots that it may use.
    pub slots: u32,
    /// The slots that its client is asked to come down to.
    pub share: Option<u32>,
    /// Requests that have arrived and are not answered.
    pub in_flight: u32,
    /// Replies cached for retries.
    pub cached: usize,
    /// Their bytes.
    pub cached_bytes: usize,
}

impl NfsShared {
    /// Makes a front end to `service`, whose blocking operations run in `pool`.
    pub fn new(
        service: Arc<Service>,
        pool: Arc<dyn Pool>,
        write_verifier: Arc<WriteVerifier>,
        admission: Admission,
        options: NfsOptions,
    ) -> Arc<Self> {
        Self::in_role(service, pool, write_verifier, admission, options, None)
    }

    /// Makes the front end of a data server. `service` exports its components only. It knows
    /// clients and sessions, and no other state.
    pub fn new_data_server(
        service: Arc<Service>,
        pool: Arc<dyn Pool>,
        write_verifier: Arc<WriteVerifier>,
        admission: Admission,
        options: NfsOptions,
        role: DataRole,
    ) -> Arc<Self> {
        Self::in_role(service, pool, write_verifier, admission, options, Some(role))
    }

    fn in_role(
        service: Arc<Service>,
        pool: Arc<dyn Pool>,
        write_verifier: Arc<WriteVerifier>,
        admission: Admission,
        options: NfsOptions,
        data_role: Option<DataRole>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|front| Self {
            service,
            write_verifier,
            pool,
            admission,
            sessions: SessionTable::new(options.secret),
            duplicates: Duplicates::new(options.secret),
            mounts: Mounts::default(),
            nlm: LockManagers::default(),
            misses: Misses::default(),
            options: Arc::new(options),
            gss: OnceLock::new(),
            users: OnceLock::new(),
            data_role,
            refusals: Refusals::default(),
            tokens: Tokens::default(),
            copies: Copies::default(),
            now_ns: AtomicU64::new(0),
            tidied_ns: AtomicU64::new(0),
            name_look_ups: LookUps::default(),
            front: front.clone(),
        })
    }

    /// True while operations wait for names of owners. Such a look-up keeps the state open, and a compound goes on
    /// after it.
    pub fn looks_up_names(&self) -> bool {
        self.name_look_ups.is_any()
    }

    /// Lets these operations go on without the names, which the database may never tell.
    pub fn give_up_names(&self) {
        if let Some(owners) = self.gss().and_then(|gss| gss.owners.as_deref()) {
            self.name_look_ups.give_up(owners, self.clock_ns());
        }
    }

    /// Returns the identity of this server.
    pub fn options(&self) -> &Arc<NfsOptions> {
        &self.options
    }

    /// Lets callers prove their names. For the time before the first call.
    pub fn accept_gss(&self, gss: Arc<NfsGss>) {
        let _ = self.gss.set(gss);
    }

    /// The acceptor of callers that prove their names, if the server has one.
    pub(crate) fn gss(&self) -> Option<&Arc<NfsGss>> {
        self.gss.get()
    }

    /// Takes the users of certificates. For the time before the first call.
    pub fn accept_users(&self, users: Arc<Identities>) {
        let _ = self.users.set(users);
    }

    /// Takes the way to the hosts of NFSv3 clients. For the time before the first call.
    pub fn accept_peers(&self, peers: Arc<dyn Peers>) {
        self.nlm.accept_peers(peers);
    }

    /// The users of certificates, if there are rules for them.
    pub(crate) fn users(&self) -> Option<&Arc<Identities>> {
        self.users.get()
    }

    /// Counts the contexts of callers that prove their names, if the server has them.
    pub fn context_counts(&self) -> Option<ContextCounts> {
        self.gss().map(|gss| gss.acceptor.contexts().counts())
    }

    /// Returns the role of a data server, if this is one.
    pub(crate) fn data_role(&self) -> Option<&DataRole> {
        self.data_role.as_ref()
    }

    /// Runs a job of the server's own that may wait.
    pub(crate) fn run_elsewhere(&self, job: Job) {
        self.pool.submit(job);
    }

    /// Runs a job for a client that may wait for the machines of a lane.
    pub(crate) fn run_in(&self, place: Place, job: Job) {
        self.pool.submit_to(place, job);
    }

    /// Returns the lane for the object of `handle`.
    pub(crate) fn lane(&self, handle: Option<Handle>) -> u64 {
        handle.map_or(0, |handle| self.service.namespace().lane(&handle))
    }

    /// Returns the rules that identify callers.
    pub(crate) fn admission(&self) -> &Admission {
        &self.admission
    }

    /// Returns the flavours that an export accepts from an origin, the preferred ones first.
    pub(crate) fn flavours(
        &self,
        origin: &Origin,
        export: &Export,
    ) -> impl Iterator<Item = Flavour> {
        let flavours = export.options().admits.flavours.iter().copied();
        let can_prove = self.gss().is_some();
        flavours.filter(move |flavour| {
            origin.admitted(export, *flavour) && (can_prove || !flavour.is_proven())
        })
    }

    /// Checks that the export of a handle admits a caller.
    ///
    /// # Errors
    /// `Access` for an origin that is not admitted, `WrongSec` for a flavour that is not, or for a
    /// connection with too little protection (RFC 9289 5).
    pub(crate) fn admits(
        &self,
        handle: &Handle,
        origin: &Origin,
        flavour: Flavour,
    ) -> Result<(), Status> {
        let namespace = self.service.namespace();
        // The operation that uses the handle reports an unknown export.
        let Ok(export) = namespace.export(handle) else { return Ok(()) };
        if origin.admitted(export, flavour) {
            return Ok(());
        }
        match origin.refusal(export) {
            None => return Err(Status::WrongSec),
            Some(Refusal::Transport(_)) => {
                self.note_refusal(origin, export);
                return Err(Status::WrongSec);
            }
            Some(_) => self.note_refusal(origin, export),
        }
        Err(Status::Access)
    }

    /// Logs the reason why callers of an origin may not use an export.
    pub(crate) fn note_refusal(&self, origin: &Origin, export: &Export) {
        if let Some(refusal) = origin.refusal(export) {
            self.refusals.note(origin, export, refusal, self.now_ns.load(Ordering::Relaxed));
        }
    }

    /// Does the same for callers that prove their names, or for those that do not.
    pub(crate) fn note_refusal_of(&self, origin: &Origin, export: &Export, proven: bool) {
        if let Some(refusal) = origin.refusal_of(export, proven) {
            self.refusals.note(origin, export, refusal, self.now_ns.load(Ordering::Relaxed));
        }
    }

    /// Returns the asynchronous copies.
    pub(crate) fn copies(&self) -> &Copies {
        &self.copies
    }

    /// Ends the asynchronous copies after their present slices. For a server that ends: a copy may take
    /// hours.
    pub fn end_copies(&self) {
        self.copies.end_all();
    }

    /// Counts the state that is held now.
    pub fn counts(&self) -> NfsCounts {
        let [ring_reads, pool_reads] = self.misses.counts();
        NfsCounts { ring_reads, pool_reads, ..self.sessions.counts() }
    }

    /// Returns all sessions. `now_ns` is the service's time.
    pub fn session_facts(&self, now_ns: u64) -> Vec<NfsSessionFacts> {
        self.sessions.weigh(&self.service.importance);
        self.sessions.facts(now_ns)
    }

    /// Returns the present time of the service's clock, to measure durations.
    pub(crate) fn clock_ns(&self) -> u64 {
        self.options.clock_ns()
    }

    /// Converts the RPC server's time to the service's.
    pub(crate) fn service_time(&self, clock_ns: u64) -> u64 {
        clock_ns.saturating_sub(self.options.clock_start_ns)
    }

    /// Does periodic work: drops expired records, and retries delayed callbacks. Any reactor, or
    /// all, call it about once a second. `now_ns` is the service's time.
    pub fn tick(&self, now_ns: u64) {
        self.now_ns.fetch_max(now_ns, Ordering::Relaxed);
        let tidied_ns = self.tidied_ns.load(Ordering::Relaxed);
        let order = Ordering::Relaxed;
        if now_ns.saturating_sub(tidied_ns) < TIDY_EVERY_NS
            || self.tidied_ns.compare_exchange(tidied_ns, now_ns, order, order).is_err()
        {
            return;
        }
        // The service may have to write to disk before it revokes a client's state.
        if let Some(shared) = self.front.upgrade() {
            self.run_elsewhere(Box::new(move || {
                shared.tidy(now_ns);
                nlm::tick(&shared, now_ns);
            }));
        }
    }

    fn tidy(&self, now_ns: u64) {
        self.service.tick(now_ns);
        self.duplicates.tidy(now_ns);
        self.sessions.weigh(&self.service.importance);
        if let Some(gss) = self.gss() {
            gss.acceptor.contexts().tick((self.options.clock)());
        }
        for key in self.sessions.gone() {
            self.forget_client(key);
        }
        for client in self.sessions.clients() {
            self.with_callbacks(&client, now_ns, |_| ());
        }
    }

    /// Confirms the service's record of a client, and lets the service call the client.
    pub(crate) fn confirm(&self, owner: &NfsClient, now_ns: u64) -> dafs_service::Result<()> {
        if !owner.record().is_confirmed() {
            owner.record().set_front(self.front.clone());
        }
        self.service.clients.confirm(owner.key(), now_ns)?;
        Ok(())
    }

    /// Lets a connection carry a session's callbacks. Returns false when the session cannot have
    /// any.
    pub(crate) fn bind_back(
        &self,
        session: &Arc<Session>,
        connection: &Arc<Connection>,
        now_ns: u64,
    ) -> bool {
        let owner = session.owner();
        owner.want_callbacks();
        connection.serves(owner);
        self.with_callbacks(owner, now_ns, |callbacks| {
            callbacks.bind(session.id(), connection, now_ns);
            session.heard_back(now_ns);
        });
        !session.back_down()
    }

    /// Changes the program and credential of a session's callbacks.
    pub(crate) fn control_back(
        &self,
        session: &Arc<Session>,
        program: u32,
        credential: Option<BackCredential>,
        now_ns: u64,
    ) {
        self.with_callbacks(session.owner(), now_ns, |callbacks| {
            callbacks.control(session.id(), program, credential);
        });
    }

    /// Destroys a session. Its unfinished callbacks go to the client's other sessions.
    pub(crate) fn destroy_session(&self, session: &Arc<Session>, now_ns: u64) {
        if self.sessions.destroy(session) {
            let id = session.id();
            self.forget_replies(session);
            self.with_callbacks(session.owner(), now_ns, |callbacks| callbacks.remove_session(id));
        }
    }

    /// Removes a client and its sessions.
    pub(crate) fn forget_client(&self, key: ClientKey) {
        self.sessions.forget_client(key).iter().for_each(|session| self.forget_replies(session));
    }

    /// Drops durable replies of a session, because no client will ask for them after a restart.
    fn forget_replies(&self, session: &Session) {
        if session.is_persistent() {
            self.service.durable.forget_session(&session_key(session.id()));
        }
    }

    /// Sends a callback to a client. Without a way to the client the service is notified.
    pub(crate) fn call_client(&self, key: ClientKey, callback: Callback) {
        let Some(client) = self.sessions.client(key) else {
            if let Callback::Recall { state, .. } = callback {
                // The client may be about to create a session, and would never get this recall.
                self.service.delegations.recall_failed(key, state);
            }
            return;
        };
        let now_ns = self.now_ns.load(Ordering::Relaxed);
        let submit = |callbacks: &mut Callbacks| callbacks.submit(callback);
        if let Some(report) = self.with_callbacks(&client, now_ns, submit) {
            self.tell(&client, report);
        }
    }

    /// Handles the reply to a callback.
    pub(crate) fn back_reply(&self, token: u64, result: Result<&[u8], CallbackError>) {
        let now_ns = self.now_ns.load(Ordering::Relaxed);
        let Some(client) = self.tokens.take(token) else { return };
        if let Err(error) = result {
            tracing::debug!(client = client.key().0, %error, "a callback failed");
        }
        let answer = |callbacks: &mut Callbacks| callbacks.answer(token, result, now_ns);
        if let Some(report) = self.with_callbacks(&client, now_ns, answer) {
            self.tell(&client, report);
        }
    }

    /// Reports the result of a callback to the service.
    fn tell(&self, client: &NfsClient, report: CallbackReport) {
        match report {
            CallbackReport::Attributes { query, answer } => {
                let answer = answer.map(|(change, size)| AttrAnswer {
                    change,
                    size,
                    atime: None,
                    mtime: None,
                });
                self.service.delegations.attr_answer(client.record(), query, answer);
            }
            CallbackReport::RecallFailed { state } => {
                self.service.delegations.recall_failed(client.record().key(), state);
            }
            CallbackReport::LayoutRecallFailed { state } => {
                self.service.layouts.recall_failed(client.record().key(), state);
            }
            CallbackReport::LayoutForgotten { state } => {
                self.service.layouts.forgotten(client.record().key(), state);
            }
            CallbackReport::LayoutsRecallFailed { of, form } => {
                self.service.layouts.wide_recall_failed(client.record().key(), of.as_ref(), form);
            }
            CallbackReport::LayoutsForgotten { of, form } => {
                self.service.layouts.wide_forgotten(client.record().key(), of.as_ref(), form);
            }
        }
    }

    /// Handles the end of a connection.
    pub(crate) fn disconnected(&self, connection: &Connection) {
        let now_ns = self.now_ns.load(Ordering::Relaxed);
        for client in connection.close() {
            self.with_callbacks(&client, now_ns, |callbacks| callbacks.unbind(connection.id()));
        }
    }

    /// Runs `work` on a client's callbacks, sends those that can be sent then, and tells the
    /// service if the client can be called.
    fn with_callbacks<R>(
        &self,
        owner: &Arc<NfsClient>,
        now_ns: u64,
        work: impl FnOnce(&mut Callbacks) -> R,
    ) -> R {
        let mut callbacks = owner.callbacks();
        let result = work(&mut callbacks);
        callbacks.pump(&Arc::downgrade(owner), &self.tokens, now_ns);
        let path = callbacks.path();
        let given_up = if path.up { Vec::new() } else { callbacks.give_up_waiting() };
        owner.set_path(path);
        drop(callbacks);
        if !given_up.is_empty() {
            given_up.into_iter().for_each(|report| self.tell(owner, report));
            // The service retries unanswered recalls over a path that has come meanwhile, but only
            // if it sees the path go down first.
            self.service.set_back_channel(owner.record(), false);
        }
        // A race: other threads may be doing the same, so the last value is checked.
        loop {
            let up = owner.path().up;
            self.service.set_back_channel(owner.record(), up);
            if owner.path().up == up {
                return result;
            }
        }
    }
}

impl Front for NfsShared {
    fn recall(&self, client: ClientKey, handle: &Handle, state: StateRef, truncate: bool) {
        self.call_client(client, Callback::Recall { handle: *handle, state, truncate });
    }

    fn recall_layout(&self, client: ClientKey, handle: &Handle, state: StateRef, form: LayoutForm) {
        self.call_client(client, Callback::RecallLayout { handle: *handle, state, form });
    }

    fn recall_layouts(&self, client: ClientKey, of: Option<&Handle>, form: LayoutForm) {
        self.call_client(client, Callback::RecallLayouts { of: of.copied(), form });
    }

    fn device_gone(&self, client: ClientKey, key: &DeviceKey, form: LayoutForm) {
        self.call_client(client, Callback::DeviceGone { key: *key, form });
    }

    fn get_attr(&self, client: ClientKey, handle: &Handle, query: u64) {
        self.call_client(client, Callback::Attributes { handle: *handle, query });
    }

    fn lock_available(&self, client: ClientKey, handle: &Handle, owner: &[u8]) {
        if let Some(manager) = self.service.clients.lock_manager_of(client) {
            if let Some(shared) = self.front.upgrade() {
                nlm::lock_available(&shared, manager, handle, owner);
            }
            return;
        }
        let owner = owner.to_vec();
        let callback = Callback::LockAvailable { handle: *handle, client: client.0, owner };
        self.call_client(client, callback);
    }

    fn client_gone(&self, client: ClientKey) {
        self.nlm.forget(client);
        self.forget_client(client);
    }
}
