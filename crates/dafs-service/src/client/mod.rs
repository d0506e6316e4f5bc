//! Clients: their identity, their lease, and the path to call them.
//!
//! Invariants
//! * One name, one confirmed record per protocol. A client that comes back with a new verifier is a
//!   new instance. It gets a new key, and the state of the old instance is released at that moment
//!   (DAFS 4.1 case C, RFC 8881 18.35.5 case 5).
//! * A name belongs to the mechanism and principal that used it first (DAFS O6), as long as that
//!   client is alive or holds state. An NFS client's name belongs to its addresses, too, because
//!   its principal may be only a claim. A claim from elsewhere takes no name that was proven.
//! * A record that was made protected stays so, also after a restart of the server as long as its
//!   client may reclaim: no request without integrity ends or replaces it during its lease.
//! * Keys cannot be guessed without the service's secret.
//! * A record is marked as gone before its state is released under the table's lock, and no state
//!   is entered for a record that is gone. So no state outlives its client.

pub(crate) mod address;
mod admin;
mod creds;
mod dafs;
mod exchange;
mod expire;
mod nlm;
mod table;

pub use address::ClientAddress;
pub use admin::{ClientInfo, Holding};
use creds::Credentials;
pub use dafs::{Arrival, Newcomer, Registered};
pub use exchange::{ExchangeId, Exchanged, Protection};
pub use nlm::LockManager;
use table::ClientTable;

use crate::Service;
use crate::enter::State;
use crate::exposure::ClientGrants;
use crate::front::Front;
use crate::grace::Grace;
use crate::hosts::{HostUse, Shared};
use crate::layout::{Late, Watching, WideRecalls};
use crate::metrics::Usage;
use crate::records::ClientRecords;
use dafs_mem::Mutex;
use dafs_store::Cred;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard, Weak};

/// The server's short name of a client instance (DAFS client-id, NFSv4 clientid4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientKey(pub u64);

/// How a client authenticated.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Identity {
    /// The mechanism: "none", "text", "sys", "gss", "tls".
    pub mechanism: &'static str,
    /// The authenticated name, with GSS its exported form (RFC 2743 3.2). Empty for mechanism none.
    pub principal: Vec<u8>,
}

impl Identity {
    /// The mechanism of users whom certificates name.
    const CERTIFICATE: &str = "tls";

    /// Comes before the name of such a user, so that no principal of this mechanism is as short as the number
    /// of a user.
    const USER: &[u8] = b"user ";

    /// The identity of clients whose certificate names this user.
    pub fn of_certificate(user: &[u8]) -> Self {
        let principal = [Self::USER, user].concat();
        Self { mechanism: Self::CERTIFICATE, principal }
    }

    /// True if the client has proven its name: by GSS, or by a certificate.
    pub(crate) fn is_proven(&self) -> bool {
        matches!(self.mechanism, "gss" | Self::CERTIFICATE)
    }

    /// The user whom the client's certificate names, if that is its mechanism.
    pub fn certificate_user(&self) -> Option<&[u8]> {
        let is_certificate = self.mechanism == Self::CERTIFICATE;
        is_certificate.then(|| self.principal.strip_prefix(Self::USER).unwrap_or_default())
    }

    /// The mechanism and the name for administrators, such as `sys 1000` or `gss anna@EXAMPLE.ORG`. Bytes that are
    /// not printable ASCII are escaped.
    pub fn shown(&self) -> String {
        let name = match (self.mechanism, self.principal.as_slice()) {
            ("sys", &[a, b, c, d]) => u32::from_be_bytes([a, b, c, d]).to_string(),
            ("gss", name) => exported_name(name).unwrap_or(name).escape_ascii().to_string(),
            (_, name) => name.escape_ascii().to_string(),
        };
        format!("{} {name}", self.mechanism)
    }
}

/// The name in an exported name, without the object identifier of its mechanism (RFC 2743 3.2).
fn exported_name(exported: &[u8]) -> Option<&[u8]> {
    let (length, rest) = exported.strip_prefix(&[4, 1])?.split_first_chunk()?;
    let rest = rest.get(usize::from(u16::from_be_bytes(*length))..)?;
    let (length, name) = rest.split_first_chunk()?;
    (name.len() == usize::try_from(u32::from_be_bytes(*length)).ok()?).then_some(name)
}

/// The kind of a client, which decides the rules for its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ClientKind {
    /// A DAFS client: its opens end with its lease, its persistent locks do not. It may reclaim
    /// after a restart.
    Dafs,
    /// An NFSv4 client: may reclaim after a restart, gets delegations, is kept by courtesy.
    Nfs,
    /// The lock manager of an NFSv3 client (NLM). It has no lease: its state lasts until it gives it
    /// back, restarts, or an administrator ends it. It may reclaim after a restart.
    Nlm,
    /// All callers without any state, such as those of NFSv3, together.
    Stateless,
}

impl ClientKind {
    /// True if the state of such a client ends when it is silent for long.
    pub(crate) fn has_lease(self) -> bool {
        matches!(self, Self::Dafs | Self::Nfs)
    }

    /// True if such a client is recorded before its first state, because no request of its own
    /// begins its reclaims, and none need complete them.
    pub(crate) fn is_recorded_with_state(self) -> bool {
        matches!(self, Self::Dafs | Self::Nlm)
    }

    /// True if such a client names the locks of an owner by the open of that owner.
    pub(crate) fn locks_by_open(self) -> bool {
        matches!(self, Self::Dafs | Self::Nlm)
    }
}

/// The flags about a client's state in a SEQUENCE reply (RFC 8881 18.46.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClientStatus {
    /// The lease has ended and all state is gone.
    pub expired_all_revoked: bool,
    /// State was revoked by an administrator, or with a removed export, and is not freed yet.
    pub admin_revoked: bool,
    /// A delegation was revoked and is not freed yet, or a layout was revoked since the last
    /// report.
    pub recallable_revoked: bool,
    /// The client is to be called and has no back channel.
    pub callback_down: bool,
}

/// A client instance.
pub struct Client {
    key: ClientKey,
    kind: ClientKind,
    name: Vec<u8>,
    verifier: u64,
    identity: Identity,
    /// The counts that all clients of its host share.
    host: Arc<HostUse>,
    /// Its number in the queue of unconfirmed clients.
    number: AtomicU64,
    /// The arrival of the request that registered it. 0 for other clients than those of DAFS.
    arrival: AtomicU64,
    /// Time of the last request, in nanoseconds.
    renewed_ns: AtomicU64,
    sessions: AtomicU32,
    /// Set when the record has been replaced or removed.
    gone: AtomicBool,
    /// Set by the request that proves that the client got its key.
    confirmed: AtomicBool,
    /// Set before others see the record: requests about it are protected.
    protected: AtomicBool,
    /// May reclaim the state that it held before the server's restart.
    may_reclaim: AtomicBool,
    reclaim_completed: AtomicBool,
    /// A durable record of this client may exist.
    recorded: AtomicBool,
    /// The write of that record is over.
    written: AtomicBool,
    /// The time of the first check in a row that has found it without state. `u64::MAX` if the last one
    /// found some.
    stateless_ns: AtomicU64,
    /// Delegations revoked and not freed yet.
    pub(crate) revoked: AtomicU32,
    /// State revoked by an administrator and not freed yet.
    pub(crate) admin_revoked: AtomicU32,
    /// A layout was revoked, and the client was not told yet.
    pub(crate) is_layout_taken: AtomicBool,
    /// Delegations it holds.
    pub(crate) delegated: AtomicU32,
    /// Layouts it holds.
    pub(crate) laid_out: AtomicU32,
    /// The time until which it gets no layouts, because it did not return one.
    pub(crate) layouts_from_ns: AtomicU64,
    /// Recalls of many of its layouts at once.
    pub(crate) wide_recalls: WideRecalls,
    /// Devices whose changes it is to be notified of.
    pub(crate) devices: Watching,
    /// I/O that it may have under way at data servers.
    pub(crate) late: Late,
    /// Its rights to read small files without requests.
    pub(crate) shown: ClientGrants,
    back_channel: AtomicBool,
    /// Weak, because the front end holds the service.
    front: Mutex<Option<Weak<dyn Front>>>,
    peer: Mutex<String>,
    /// The addresses that an NFS client calls from.
    addresses: Mutex<Vec<ClientAddress>>,
    usage: Usage,
    creds: Mutex<Credentials>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name.escape_ascii();
        write!(f, "Client({:x}, {:?}, {name})", self.key.0, self.kind)
    }
}

impl Client {
    pub(crate) fn new(
        key: ClientKey,
        kind: ClientKind,
        name: &[u8],
        verifier: u64,
        identity: Identity,
        host: Arc<HostUse>,
        now_ns: u64,
    ) -> Arc<Self> {
        Arc::new(Self {
            key,
            kind,
            name: name.to_vec(),
            verifier,
            identity,
            host,
            number: AtomicU64::new(0),
            arrival: AtomicU64::new(0),
            renewed_ns: AtomicU64::new(now_ns),
            sessions: AtomicU32::new(0),
            gone: AtomicBool::new(false),
            confirmed: AtomicBool::new(kind != ClientKind::Nfs),
            protected: AtomicBool::new(false),
            may_reclaim: AtomicBool::new(false),
            reclaim_completed: AtomicBool::new(kind != ClientKind::Nfs),
            recorded: AtomicBool::new(false),
            written: AtomicBool::new(false),
            stateless_ns: AtomicU64::new(u64::MAX),
            revoked: AtomicU32::new(0),
            admin_revoked: AtomicU32::new(0),
            is_layout_taken: AtomicBool::new(false),
            delegated: AtomicU32::new(0),
            laid_out: AtomicU32::new(0),
            layouts_from_ns: AtomicU64::new(0),
            wide_recalls: WideRecalls::default(),
            devices: Watching::default(),
            late: Late::default(),
            shown: ClientGrants::default(),
            back_channel: AtomicBool::new(false),
            front: Mutex::new(None),
            peer: Mutex::new(String::new()),
            addresses: Mutex::default(),
            usage: Usage::default(),
            creds: Mutex::default(),
        })
    }

    /// Makes a client for callers without state. It is in no table.
    pub fn stateless(name: &[u8]) -> Arc<Self> {
        let nobody = Identity { mechanism: "none", principal: Vec::new() };
        Self::new(ClientKey(0), ClientKind::Stateless, name, 0, nobody, Arc::default(), 0)
    }

    /// Its key.
    pub fn key(&self) -> ClientKey {
        self.key
    }

    /// Its kind.
    pub fn kind(&self) -> ClientKind {
        self.kind
    }

    /// The name it gave itself.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// Counters of its use.
    pub fn usage(&self) -> &Usage {
        &self.usage
    }

    /// How it authenticated.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The host that it called from when its record was made, with the counts of all clients there.
    pub fn host(&self) -> &HostUse {
        &self.host
    }

    /// The verifier of this instance (RFC 8881 co_verifier).
    pub fn verifier(&self) -> [u8; 8] {
        self.verifier.to_be_bytes()
    }

    /// Renews all leases. Any request does that (DAFS 9.1, RFC 8881 8.3).
    pub fn renew(&self, now_ns: u64) {
        self.renewed_ns.store(now_ns, Ordering::Relaxed);
    }

    /// A session begins.
    pub fn session_started(&self) {
        self.sessions.fetch_add(1, Ordering::Relaxed);
        if self.kind == ClientKind::Nfs {
            self.host.add(Shared::Sessions, 1);
        }
    }

    /// A session is over. Not for a thread with the lock of the table: with the last one end the rights
    /// to read small files without requests, which takes memory back.
    pub fn session_ended(&self) {
        // The last one to end sees what the others were granted.
        let before = self.sessions.fetch_sub(1, Ordering::AcqRel);
        debug_assert!(before > 0, "a session ended that had not begun");
        if before == 1 {
            drop(self.shown.take());
        }
        if self.kind == ClientKind::Nfs {
            self.host.remove(Shared::Sessions, 1);
        }
    }

    /// The number of its sessions.
    pub fn sessions(&self) -> u32 {
        self.sessions.load(Ordering::Relaxed)
    }

    /// True when a newer instance has replaced the record, or its lease has ended and its state was
    /// given to another client. Its sessions are to be dropped.
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::SeqCst)
    }

    /// True once the client has used its key ([`Clients::confirm`]).
    pub fn is_confirmed(&self) -> bool {
        self.confirmed.load(Ordering::Relaxed)
    }

    /// True if requests about the record are only taken from its principal, and with integrity
    /// (SP4_MACH_CRED, RFC 8881 2.10.8.3).
    pub fn is_protected(&self) -> bool {
        self.protected.load(Ordering::Relaxed)
    }

    fn protect(&self) {
        self.protected.store(true, Ordering::Relaxed);
    }

    /// True once the client has completed its reclaims (RECLAIM_COMPLETE). Before that an NFSv4.1
    /// client gets no new state.
    pub fn reclaim_completed(&self) -> bool {
        self.reclaim_completed.load(Ordering::Relaxed)
    }

    /// True if it may reclaim the state that it held before the server's restart, as long as grace
    /// lasts.
    pub(crate) fn may_reclaim(&self) -> bool {
        self.may_reclaim.load(Ordering::Relaxed)
    }

    pub(crate) fn allow_reclaim(&self) {
        self.recorded.store(true, Ordering::SeqCst);
        self.written.store(true, Ordering::SeqCst);
        self.may_reclaim.store(true, Ordering::Relaxed);
    }

    /// Marks reclaiming as complete. Returns true when it was complete before.
    pub(crate) fn complete_reclaim(&self) -> bool {
        self.reclaim_completed.swap(true, Ordering::SeqCst)
    }

    pub(crate) fn is_written(&self) -> bool {
        self.written.load(Ordering::SeqCst)
    }

    /// Notes that its record was written or removed. The time without state begins anew with a record.
    pub(crate) fn set_written(&self, written: bool) {
        self.stateless_ns.store(u64::MAX, Ordering::Relaxed);
        self.written.store(written, Ordering::SeqCst);
    }

    pub(crate) fn is_recorded(&self) -> bool {
        self.recorded.load(Ordering::SeqCst)
    }

    pub(crate) fn set_recorded(&self, recorded: bool) {
        self.recorded.store(recorded, Ordering::SeqCst);
    }

    /// Sets the address of the client that administrators see.
    pub fn set_peer(&self, peer: String) {
        *self.peer.lock() = peer;
    }

    /// The address of the client that the front end has set.
    pub fn peer(&self) -> String {
        self.peer.lock().clone()
    }

    /// True if the client has a back channel.
    pub fn back_channel(&self) -> bool {
        self.back_channel.load(Ordering::Relaxed)
    }

    /// True if it holds delegations or layouts, for which it may have to be called.
    pub fn holds_recallable(&self) -> bool {
        self.delegated.load(Ordering::Relaxed) > 0 || self.holds_layouts()
    }

    /// True if it holds layouts.
    pub(crate) fn holds_layouts(&self) -> bool {
        self.laid_out.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn front(&self) -> Option<Arc<dyn Front>> {
        self.front.lock().as_ref()?.upgrade()
    }

    /// Takes the front end out of the record, for the last call.
    fn take_front(&self) -> Option<Arc<dyn Front>> {
        self.front.lock().take()?.upgrade()
    }

    /// Notes whether it holds state now. Returns for how long checks have found none, in nanoseconds.
    pub(crate) fn without_state_ns(&self, holds: bool, now_ns: u64) -> u64 {
        let since_ns = match self.stateless_ns.load(Ordering::Relaxed) {
            _ if holds => u64::MAX,
            u64::MAX => now_ns,
            since_ns => since_ns,
        };
        self.stateless_ns.store(since_ns, Ordering::Relaxed);
        now_ns.saturating_sub(since_ns)
    }

    /// Nanoseconds since its last request.
    pub(crate) fn idle_ns(&self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.renewed_ns.load(Ordering::Relaxed))
    }

    /// Keeps a credential and returns its number. Returns `None` when `max` are kept.
    pub fn register_cred(&self, cred: Cred, max: usize) -> Option<u32> {
        self.creds.lock().register(cred, max)
    }

    /// Removes one registration of a credential, and with the last one the credential. Returns
    /// false when there is none of that number.
    pub fn release_cred(&self, number: u32) -> bool {
        self.creds.lock().release(number)
    }

    /// The credential of a number.
    pub fn cred(&self, number: u32) -> Option<Arc<Cred>> {
        self.creds.lock().get(number)
    }

    /// Returns the flags for a SEQUENCE reply to this client, without a lock. The loss of layouts
    /// is reported once: a client that misses the report learns of the loss when it uses a layout.
    pub fn status(&self) -> ClientStatus {
        let some = |count: &AtomicU32| count.load(Ordering::Relaxed) > 0;
        let taken = &self.is_layout_taken;
        let is_layout_taken = taken.load(Ordering::Relaxed) && taken.swap(false, Ordering::Relaxed);
        ClientStatus {
            expired_all_revoked: self.is_gone(),
            admin_revoked: some(&self.admin_revoked),
            recallable_revoked: some(&self.revoked) || is_layout_taken,
            callback_down: !self.back_channel() && some(&self.delegated),
        }
    }

    /// Sets the front end through which the service calls this client. The front end does this
    /// once, with the client's first session. [`Front::client_gone`] comes through it even without
    /// a back channel. The reference is weak, because the front end keeps the service alive.
    pub fn set_front(&self, front: Weak<dyn Front>) {
        *self.front.lock() = Some(front);
    }
}

/// All clients, their leases, and which of them may reclaim after a restart.
pub struct Clients {
    pub(crate) state: Arc<State>,
    table: Mutex<ClientTable>,
    /// Expired clients that blocked a caller that may not wait. [`Service::tick`] ends them.
    expiring: Mutex<Vec<Arc<Client>>>,
    pub(crate) records: Box<dyn ClientRecords>,
    pub(crate) grace: Grace,
    /// When grace, recalls and local changes were last checked.
    pub(crate) recalls_ns: AtomicU64,
    /// Requests of DAFS clients to register that have arrived.
    arrivals: AtomicU64,
}

impl Clients {
    pub(crate) fn new(state: Arc<State>, records: Box<dyn ClientRecords>, grace: Grace) -> Self {
        let table = Mutex::new(ClientTable::new(state.config.secret));
        let (expiring, recalls_ns) = (Mutex::default(), AtomicU64::new(0));
        Self { state, table, expiring, records, grace, recalls_ns, arrivals: AtomicU64::new(0) }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, ClientTable> {
        self.table.lock()
    }
}

impl Service {
    /// Sets if the client has a back channel. When it gets one again, unanswered recalls are sent
    /// once more.
    pub fn set_back_channel(&self, client: &Client, up: bool) {
        let before = client.back_channel.swap(up, Ordering::AcqRel);
        if up && !before {
            self.delegations.resend_recalls(client);
            self.layouts.resend_recalls(client);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_are_shown_by_their_names() {
        let shown = |mechanism, principal: &[u8]| {
            Identity { mechanism, principal: principal.to_vec() }.shown()
        };
        assert_eq!(shown("sys", &1000_u32.to_be_bytes()), "sys 1000");
        assert_eq!(shown("text", b"anna\n"), "text anna\\n");
        let exported = b"\x04\x01\x00\x02\x06\x00\x00\x00\x00\x04a@B\xff";
        assert_eq!(shown("gss", exported), "gss a@B\\xff");
        for wrong in [&exported[..4], &exported[..8], &exported[..13], b"\x04\x01\xff\xff"] {
            assert!(shown("gss", wrong).starts_with("gss \\x04"), "{wrong:?}");
        }
    }
}
