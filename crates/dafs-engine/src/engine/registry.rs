//! Sessions of all engines of a server.

use super::back::{Address, Mail};
use crate::limits::SessionLimits;
use crate::ops::batch::{Batches, Gate};
use dafs_dat::PeerInfo;
use dafs_dat::connections::{Admitted, Connections, Origin, Refusal};
use dafs_mem::{Mutex, Shrinking as _};
use dafs_service::{Client, ClientKey, Host, Identity, Owner, TransportSecurity};
use dafs_wire::dafs::SessionId;
use rustc_hash::FxHashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

/// Returns the host whose share of common resources a client with this peer takes.
pub(super) fn host_of(peer: &PeerInfo) -> Host {
    match (peer.process, ip_of(peer), peer.sim_host) {
        (Some(process), ..) => Host::User(process.uid),
        (_, Some(ip), _) => Host::of(ip),
        (.., Some(host)) => Host::V4(host.to_be_bytes()),
        _ => Host::Unknown,
    }
}

/// Returns the address of a peer. All addresses of this host count as one, or a local user could
/// act as many hosts.
fn ip_of(peer: &PeerInfo) -> Option<IpAddr> {
    let address = peer.address?;
    Some(if peer.is_local { Ipv4Addr::LOCALHOST.into() } else { address.ip() })
}

/// A session that other connections may be bound to.
#[derive(Debug, Clone)]
pub(super) struct SessionEntry {
    pub(super) record: Arc<Client>,
    pub(super) client: ClientKey,
    pub(super) identity: Identity,
    pub(super) fence_id: Vec<u8>,
    pub(super) checksums: bool,
    pub(super) back: Option<BackEntry>,
    /// Its optimistic channel.
    pub(super) optimistic: Option<Address>,
    /// The protection of its connection. No channel of it has less.
    pub(super) security: TransportSecurity,
    /// Closed with the session, so that none of its batches goes on.
    pub(super) batch_gate: Arc<Gate>,
    /// The connection of the session.
    pub(super) address: Address,
}

/// Called when a session is over. Must not block.
pub(super) type Over = Box<dyn FnOnce() + Send>;

impl SessionEntry {
    /// True if it belongs to this instance of a client, whose record may be another one by now.
    fn is_of(&self, client: &Client) -> bool {
        self.record.name() == client.name()
            && self.record.verifier() == client.verifier()
            && self.identity == *client.identity()
    }
}

/// The back-control channel of a session.
#[derive(Debug, Clone)]
pub(super) struct BackEntry {
    pub(super) address: Address,
    /// The client has answered a call on it.
    listening: bool,
    /// The batches that are outstanding on it.
    batches: Arc<Batches>,
}

#[derive(Default)]
struct Tables {
    sessions: FxHashMap<SessionId, SessionEntry>,
    /// Callbacks for the end of a session.
    over: FxHashMap<SessionId, Vec<Over>>,
    next_session: u64,
}

/// The state by which the engines of a server know of each other.
pub struct Registry {
    /// The key for unpredictable session ids.
    key: [u64; 2],
    connections: OnceLock<Arc<Connections>>,
    /// The number of connections so far.
    owners: AtomicU64,
    tables: Mutex<Tables>,
}

impl Registry {
    /// Makes an empty registry. `key` is secret and differs between two runs of the server.
    pub fn new(key: [u64; 2]) -> Self {
        let (connections, tables) = (OnceLock::new(), Mutex::default());
        Self { key, connections, owners: AtomicU64::new(0), tables }
    }

    /// Makes an empty registry whose connections are counted and limited together with those of
    /// others.
    pub fn counting_in(key: [u64; 2], connections: Arc<Connections>) -> Self {
        Self { connections: OnceLock::from(connections), ..Self::new(key) }
    }

    /// Counts a new connection, unless its adapter has done so.
    ///
    /// # Errors
    /// The limit that it exceeds.
    pub(super) fn admit(
        &self,
        counted: Option<Arc<Admitted>>,
        peer: &PeerInfo,
        limits: &SessionLimits,
    ) -> Result<Arc<Admitted>, Refusal> {
        if let Some(admitted) = counted {
            return Ok(admitted);
        }
        let connections = self.connections.get_or_init(|| Connections::new(limits.connections()));
        connections.admit(Origin::of_peer(peer), Weak::<OwnedFd>::new())
    }

    /// Returns the owner of a new connection for the scheduler.
    pub(super) fn owner(&self, peer: &PeerInfo) -> Owner {
        let origin = match (peer.process, ip_of(peer), peer.sim_host) {
            (Some(process), ..) => dafs_service::Origin::User(process.uid),
            (_, Some(ip), _) => dafs_service::Origin::host(ip),
            (.., host) => dafs_service::Origin::Sim(host.unwrap_or_default()),
        };
        Owner { origin, number: self.owners.fetch_add(1, Ordering::Relaxed) }
    }

    pub(super) fn new_session_id(&self) -> SessionId {
        let mut tables = self.tables.lock();
        tables.next_session += 1;
        let number = tables.next_session;
        drop(tables);
        let hash = siphash(self.key, number);
        SessionId(hash.to_be_bytes())
    }

    pub(super) fn add_session(&self, id: SessionId, entry: SessionEntry) {
        self.tables.lock().sessions.insert(id, entry);
    }

    pub(super) fn session(&self, id: SessionId) -> Option<SessionEntry> {
        self.tables.lock().sessions.get(&id).cloned()
    }

    pub(super) fn has_session(&self, id: SessionId) -> bool {
        self.tables.lock().sessions.contains_key(&id)
    }

    pub(super) fn session_addresses(&self) -> Vec<Address> {
        self.tables.lock().sessions.values().map(|entry| entry.address.clone()).collect()
    }

    /// Removes a session with its back-control channel. From now on the client can ask for its
    /// replies.
    pub(super) fn remove_session(&self, id: SessionId) {
        let mut tables = self.tables.lock();
        let (entry, over) =
            (tables.sessions.remove_and_shrink(&id), tables.over.remove_and_shrink(&id));
        drop(tables);
        if let Some(SessionEntry { back, optimistic, .. }) = entry {
            let channels = back.map(|back| back.address).into_iter().chain(optimistic);
            channels.for_each(|channel| channel.post(Mail::Leave("its session is over")));
        }
        over.into_iter().flatten().for_each(|over| over());
    }

    /// Lets no more work of batches begin for a session. Returns true when none is under way.
    pub(super) fn close_batches(&self, id: SessionId) -> bool {
        self.tables.lock().sessions.get(&id).is_none_or(|entry| entry.batch_gate.close())
    }

    /// Notes the end of the last batch work for an ended session.
    pub(super) fn settled(&self, id: SessionId) {
        let address = self.tables.lock().sessions.get(&id).map(|entry| entry.address.clone());
        if let Some(address) = address {
            address.post(Mail::Settled);
        }
    }

    /// True if it is a session in use of this client instance.
    pub(super) fn is_live(&self, id: SessionId, client: &Client) -> bool {
        self.tables.lock().sessions.get(&id).is_some_and(|entry| entry.is_of(client))
    }

    /// Ends a session of this client instance. `over` is called when all its work has stopped, or
    /// at once if that has happened.
    pub(super) fn end_session(&self, id: SessionId, client: &Client, over: Over) {
        let mut tables = self.tables.lock();
        let Some(entry) = tables.sessions.get(&id).filter(|entry| entry.is_of(client)) else {
            drop(tables);
            return over();
        };
        let address = entry.address.clone();
        tables.over.entry(id).or_default().push(over);
        drop(tables);
        address.post(Mail::Leave("its client has begun another one"));
    }

    /// Has the sessions of a client whose record was removed end soon, and their channels with them. Until
    /// then their requests are refused, for the client is gone.
    pub fn end_sessions_of(&self, client: &Arc<Client>) {
        let tables = self.tables.lock();
        let own = tables.sessions.values().filter(|entry| Arc::ptr_eq(&entry.record, client));
        let addresses: Vec<_> = own.map(|entry| entry.address.clone()).collect();
        drop(tables);
        for address in addresses {
            address.post(Mail::Leave("an administrator has ended its client"));
        }
    }

    /// Stops the batches of a session's back-control channel, because another channel is to replace
    /// it. Returns false while work that they have begun goes on.
    pub(super) fn stop_batches(&self, id: SessionId) -> bool {
        let tables = self.tables.lock();
        let Some(entry) = tables.sessions.get(&id) else { return true };
        if let Some(former) = &entry.back {
            former.batches.close();
        }
        !entry.batch_gate.is_working()
    }

    /// Makes a connection the back-control channel of a session. Returns the one that it replaces,
    /// and the ledger of the new channel's batches.
    ///
    /// # Errors
    /// The session is gone.
    pub(super) fn bind_back(
        &self,
        id: SessionId,
        address: &Address,
    ) -> Result<(Option<Address>, Arc<Batches>), ()> {
        let mut tables = self.tables.lock();
        let entry = tables.sessions.get_mut(&id).ok_or(())?;
        let former = entry.back.take();
        let batches =
            Batches::succeeding(former.as_ref().map(|back| &*back.batches), &entry.batch_gate);
        let batches = Arc::new(batches);
        let (address, ledger) = (address.clone(), batches.clone());
        entry.back = Some(BackEntry { address, listening: false, batches: ledger });
        Ok((former.map(|former| former.address), batches))
    }

    /// Returns the back-control channel of a session, which executes its batches, with their
    /// ledger.
    pub(super) fn batches(&self, id: SessionId) -> Option<(Address, Arc<Batches>)> {
        let tables = self.tables.lock();
        let back = tables.sessions.get(&id)?.back.as_ref()?;
        Some((back.address.clone(), back.batches.clone()))
    }

    /// Notes that the client has answered on its back-control channel.
    pub(super) fn set_listening(&self, id: SessionId, address: &Address) {
        let mut tables = self.tables.lock();
        let back = tables.sessions.get_mut(&id).and_then(|entry| entry.back.as_mut());
        if let Some(back) = back.filter(|back| back.address.is(address)) {
            back.listening = true;
        }
    }

    /// Removes a back-control channel, unless another one has replaced it.
    pub(super) fn unbind_back(&self, id: SessionId, address: &Address) {
        let mut tables = self.tables.lock();
        if let Some(entry) = tables.sessions.get_mut(&id) {
            entry.back.take_if(|back| back.address.is(address));
        }
    }

    /// Makes a connection the optimistic channel of a session. Returns the one that it replaces.
    ///
    /// # Errors
    /// The session is gone.
    pub(super) fn bind_optimistic(
        &self,
        id: SessionId,
        address: &Address,
    ) -> Result<Option<Address>, ()> {
        let mut tables = self.tables.lock();
        let entry = tables.sessions.get_mut(&id).ok_or(())?;
        Ok(entry.optimistic.replace(address.clone()))
    }

    /// Returns the optimistic channel of a session.
    pub(super) fn optimistic_channel(&self, id: SessionId) -> Option<Address> {
        self.tables.lock().sessions.get(&id)?.optimistic.clone()
    }

    /// Removes an optimistic channel, unless another one has replaced it.
    pub(super) fn unbind_optimistic(&self, id: SessionId, address: &Address) {
        let mut tables = self.tables.lock();
        if let Some(entry) = tables.sessions.get_mut(&id) {
            entry.optimistic.take_if(|optimistic| optimistic.is(address));
        }
    }

    /// Returns a client that has a session, and the channel to call it on, if there is one.
    pub(super) fn back_channel(&self, client: ClientKey) -> Option<(Arc<Client>, Option<Address>)> {
        let tables = self.tables.lock();
        let mut record = None;
        for entry in tables.sessions.values().filter(|entry| entry.client == client) {
            record = Some(entry.record.clone());
            if let Some(back) = entry.back.as_ref().filter(|back| back.listening) {
                return Some((entry.record.clone(), Some(back.address.clone())));
            }
        }
        record.map(|record| (record, None))
    }

    pub(super) fn is_callable(&self, client: ClientKey) -> bool {
        self.back_channel(client).is_some_and(|(_, address)| address.is_some())
    }
}

fn siphash(key: [u64; 2], number: u64) -> u64 {
    use std::hash::Hasher;
    let mut hasher = siphasher::sip::SipHasher24::new_with_keys(key[0], key[1]);
    hasher.write_u64(number);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_counts_for_its_address_or_its_user() {
        let process = Some(dafs_dat::PeerProcess { pid: 1, uid: 7, gid: 8 });
        let address = Some("[2001:db8::1]:5".parse().unwrap());
        let none = PeerInfo::default();
        assert_eq!(host_of(&PeerInfo { process, ..none.clone() }), Host::User(7));
        let network = Host::of("2001:db8::2".parse().unwrap());
        assert_eq!(host_of(&PeerInfo { address, ..none.clone() }), network);
        assert_eq!(host_of(&none), Host::Unknown);
        // A local peer whose user is unknown is one host, with any of its addresses.
        let local = |text: &str| PeerInfo {
            address: Some(text.parse().unwrap()),
            is_local: true,
            ..none.clone()
        };
        assert_eq!(host_of(&local("127.0.0.9:5")), host_of(&local("192.0.2.1:5")));
    }
}
