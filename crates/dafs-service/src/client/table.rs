//! All client records, found by name and by key.
//!
//! Invariants
//! * Records of unconfirmed NFS clients have a bound of their own, so they never keep a confirmed
//!   client out. At that bound, a host's new record displaces one of the same host.
//! * Confirmed records are shared among hosts, and counted with their host while they are here.

use super::{Client, ClientKey, ClientKind, Identity};
use crate::hosts::{FairQueue, Host, HostUse, Shared, has_share, least_to_lose};
use crate::limits::{CLIENT_COUNT_MAX, UNCONFIRMED_CLIENTS_MAX};
use dafs_mem::Shrinking as _;
use rustc_hash::FxHashMap;
use siphasher::sip::SipHasher24;
use std::hash::Hasher;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

/// The records of one NFSv4 client owner (RFC 8881 18.35.5).
#[derive(Debug, Default)]
pub(super) struct Owner {
    pub(super) confirmed: Option<Arc<Client>>,
    /// One for each host that gives the name, so that none displaces another. There may be many
    /// hosts, such as those of an IPv6 network.
    pub(super) unconfirmed: FxHashMap<Host, Arc<Client>>,
}

impl Owner {
    pub(super) fn is_empty(&self) -> bool {
        self.confirmed.is_none() && self.unconfirmed.is_empty()
    }
}

/// The counts of hosts, as long as they have records.
#[derive(Debug, Default)]
struct Hosts {
    by_host: FxHashMap<Host, Weak<HostUse>>,
    /// The number of hosts at which those without records are removed.
    prune_at: usize,
}

impl Hosts {
    fn find(&self, host: Host) -> Option<Arc<HostUse>> {
        self.by_host.get(&host)?.upgrade()
    }

    fn enter(&mut self, host: Host) -> Arc<HostUse> {
        if let Some(known) = self.find(host) {
            return known;
        }
        if self.by_host.len() >= self.prune_at {
            self.prune();
        }
        let new = Arc::new(HostUse::new(host));
        self.by_host.insert(host, Arc::downgrade(&new));
        new
    }

    fn prune(&mut self) {
        self.by_host.retain(|_, known| known.strong_count() > 0);
        self.by_host.shrink_if_sparse();
        self.prune_at = (2 * self.by_host.len()).max(64);
    }
}

#[derive(Debug)]
pub(crate) struct ClientTable {
    secret: [u64; 2],
    /// The number of the last NFSv4 record.
    last: u64,
    pub(super) dafs: FxHashMap<Vec<u8>, Arc<Client>>,
    pub(super) nfs: FxHashMap<Vec<u8>, Owner>,
    pub(super) nlm: FxHashMap<Vec<u8>, Arc<Client>>,
    pub(crate) by_key: FxHashMap<ClientKey, Arc<Client>>,
    /// Clients that have not used their key.
    unconfirmed: FairQueue<Arc<Client>>,
    hosts: Hosts,
    /// The most clients that have used their key.
    count_max: usize,
}

impl ClientTable {
    pub(crate) fn new(secret: [u64; 2]) -> Self {
        Self::with_bounds(secret, CLIENT_COUNT_MAX, UNCONFIRMED_CLIENTS_MAX)
    }

    fn with_bounds(secret: [u64; 2], count_max: usize, unconfirmed_max: usize) -> Self {
        Self {
            secret,
            last: 0,
            dafs: FxHashMap::default(),
            nfs: FxHashMap::default(),
            nlm: FxHashMap::default(),
            by_key: FxHashMap::default(),
            unconfirmed: FairQueue::new(unconfirmed_max),
            hosts: Hosts::default(),
            count_max,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.by_key.len()
    }

    pub(crate) fn unconfirmed(&self) -> usize {
        self.unconfirmed.len()
    }

    /// Returns the most clients that have used their key.
    pub(super) fn count_max(&self) -> usize {
        self.count_max
    }

    /// True if a host may have another client that has used its key.
    pub(super) fn has_room(&self, host: Host) -> bool {
        has_share(self.own(host), self.len() - self.unconfirmed(), self.count_max)
    }

    /// The least that a host must have of these to make room for this host.
    pub(super) fn least_to_lose(&self, host: Host) -> usize {
        least_to_lose(self.own(host), self.len() - self.unconfirmed(), self.count_max)
    }

    fn own(&self, host: Host) -> usize {
        self.hosts.find(host).map_or(0, |host| host.count(Shared::Clients))
    }

    /// Returns a key for a new NFSv4 record: a keyed hash of its number, so that a client cannot
    /// compute the keys of others from its own.
    pub(super) fn next_key(&mut self) -> ClientKey {
        loop {
            self.last += 1;
            let mut hasher = SipHasher24::new_with_keys(self.secret[0], self.secret[1]);
            hasher.write_u8(ClientKind::Nfs as u8);
            hasher.write_u64(self.last);
            let key = ClientKey(hasher.finish());
            if key.0 != 0 && !self.by_key.contains_key(&key) {
                return key;
            }
        }
    }

    /// Makes an unconfirmed record. It replaces an older one of the same owner at this host (case
    /// 4). When there are too many, it replaces one that has waited long.
    pub(super) fn enter_unconfirmed(
        &mut self,
        name: &[u8],
        verifier: u64,
        identity: Identity,
        host: Host,
        now_ns: u64,
    ) -> Arc<Client> {
        let known = self.nfs.get(name).and_then(|owner| owner.unconfirmed.get(&host));
        if let Some(old) = known.cloned() {
            self.drop_record(&old);
        }
        let (key, of_host) = (self.next_key(), self.hosts.enter(host));
        let client = Client::new(key, ClientKind::Nfs, name, verifier, identity, of_host, now_ns);
        let (number, gone) = self.unconfirmed.push(host, client.clone());
        client.number.store(number, Ordering::Relaxed);
        if let Some(gone) = gone {
            self.drop_record(&gone);
        }
        self.by_key.insert(key, client.clone());
        let owner = self.nfs.entry(name.to_vec()).or_default();
        owner.unconfirmed.insert(host, client.clone());
        client
    }

    /// Makes the unconfirmed record of an owner the one of that name. Records of other hosts with
    /// that name are dropped. Returns the confirmed record before.
    pub(super) fn confirm(&mut self, client: &Arc<Client>) -> Option<Arc<Client>> {
        self.unconfirmed.remove(client.number.load(Ordering::Relaxed));
        client.confirmed.store(true, Ordering::Relaxed);
        client.host().add(Shared::Clients, 1);
        let owner = self.nfs.entry(client.name.clone()).or_default();
        let late = std::mem::take(&mut owner.unconfirmed);
        let old = owner.confirmed.replace(client.clone());
        for late in late.values().filter(|late| !Arc::ptr_eq(late, client)) {
            self.drop_record(late);
        }
        if let Some(old) = &old {
            self.drop_record(old);
        }
        old
    }

    /// Makes the record of a DAFS client.
    pub(super) fn enter_dafs(
        &mut self,
        key: ClientKey,
        name: &[u8],
        verifier: u64,
        identity: Identity,
        host: Host,
        now_ns: u64,
    ) -> Arc<Client> {
        let of_host = self.hosts.enter(host);
        let client = Client::new(key, ClientKind::Dafs, name, verifier, identity, of_host, now_ns);
        if let Some(other) = self.by_key.get(&key).cloned() {
            self.drop_record(&other);
        }
        client.host().add(Shared::Clients, 1);
        self.dafs.insert(name.to_vec(), client.clone());
        self.by_key.insert(key, client.clone());
        client
    }

    /// Makes the record of the lock manager of an NFSv3 client.
    pub(super) fn enter_nlm(
        &mut self,
        name: &[u8],
        identity: Identity,
        host: Host,
        now_ns: u64,
    ) -> Arc<Client> {
        let (key, of_host) = (self.next_key(), self.hosts.enter(host));
        let client = Client::new(key, ClientKind::Nlm, name, 0, identity, of_host, now_ns);
        client.host().add(Shared::Clients, 1);
        self.nlm.insert(name.to_vec(), client.clone());
        self.by_key.insert(key, client.clone());
        client
    }

    /// Marks a record as gone and removes it from all maps.
    pub(super) fn drop_record(&mut self, client: &Arc<Client>) {
        client.gone.store(true, Ordering::SeqCst);
        self.remove(client);
    }

    /// Forgets hosts without records.
    pub(super) fn prune_hosts(&mut self) {
        self.hosts.prune();
    }

    /// Removes a record from all maps.
    fn remove(&mut self, client: &Arc<Client>) {
        let same =
            |other: Option<&Arc<Client>>| other.is_some_and(|other| Arc::ptr_eq(other, client));
        match client.kind {
            ClientKind::Dafs => {
                if same(self.dafs.get(&client.name)) {
                    self.dafs.remove_and_shrink(&client.name);
                }
            }
            ClientKind::Nfs => {
                if let Some(owner) = self.nfs.get_mut(&client.name) {
                    if same(owner.confirmed.as_ref()) {
                        owner.confirmed = None;
                    }
                    let host = client.host().host();
                    if same(owner.unconfirmed.get(&host)) {
                        owner.unconfirmed.remove_and_shrink(&host);
                    }
                    if owner.is_empty() {
                        self.nfs.remove_and_shrink(&client.name);
                    }
                }
            }
            ClientKind::Nlm => {
                if same(self.nlm.get(&client.name)) {
                    self.nlm.remove_and_shrink(&client.name);
                }
            }
            ClientKind::Stateless => {}
        }
        if same(self.by_key.get(&client.key)) {
            self.by_key.remove_and_shrink(&client.key);
            if client.is_confirmed() {
                client.host().remove(Shared::Clients, 1);
            } else {
                self.unconfirmed.remove(client.number.load(Ordering::Relaxed));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ClientAddress, ExchangeId, Protection, Service};
    use proptest::prelude::*;
    use std::net::Ipv4Addr;

    const COUNT_MAX: usize = 24;
    const UNCONFIRMED_MAX: usize = 12;
    const SECOND_NS: u64 = 1_000_000_000;

    fn service() -> Service {
        let service = Service::of_memory();
        *service.clients.lock() = ClientTable::with_bounds([1; 2], COUNT_MAX, UNCONFIRMED_MAX);
        service
    }

    fn nobody() -> Identity {
        Identity { mechanism: "none", principal: Vec::new() }
    }

    fn exchange(service: &Service, host: u32, name: &str, verifier: u8, now_ns: u64) -> ClientKey {
        let request = ExchangeId {
            owner: name.as_bytes(),
            verifier: [verifier; 8],
            identity: nobody(),
            host: Host::User(host),
            address: ClientAddress { ip: Ipv4Addr::LOCALHOST.into(), privileged: true },
            update: false,
            protection: Protection::None,
        };
        service.clients.exchange_id(&request, now_ns).unwrap().client.key()
    }

    /// Steps of clients of other hosts.
    #[derive(Debug, Clone, Copy)]
    enum Step {
        Exchange { host: u32, name: u8, verifier: u8 },
        Confirm { nth: usize },
        Register { host: u32, name: u8 },
        Destroy { nth: usize },
        Pass { seconds: u64 },
    }

    fn step() -> impl Strategy<Value = Step> {
        let host = || 1..4_u32;
        prop_oneof![
            8 => (host(), 0..50_u8, 0..2_u8)
                .prop_map(|(host, name, verifier)| Step::Exchange { host, name, verifier }),
            6 => (0..100_usize).prop_map(|nth| Step::Confirm { nth }),
            3 => (host(), 0..50_u8).prop_map(|(host, name)| Step::Register { host, name }),
            1 => (0..100_usize).prop_map(|nth| Step::Destroy { nth }),
            1 => (1..120_u64).prop_map(|seconds| Step::Pass { seconds }),
        ]
    }

    /// Checks that bounds hold, and that the counts of hosts match the records.
    fn check(service: &Service) {
        let table = service.clients.lock();
        assert!(table.unconfirmed() <= UNCONFIRMED_MAX);
        assert!(table.len() - table.unconfirmed() <= COUNT_MAX);
        let unconfirmed = table.by_key.values().filter(|client| !client.is_confirmed());
        assert_eq!(unconfirmed.count(), table.unconfirmed());
        for host in [1, 2, 3, 9].map(Host::User) {
            let own = |client: &&Arc<Client>| client.host().host() == host && client.is_confirmed();
            let count = table.by_key.values().filter(own).count();
            let counted = table.hosts.find(host).map_or(0, |host| host.count(Shared::Clients));
            assert_eq!(counted, count, "{host:?}");
        }
    }

    proptest! {
        /// Every step of a new client succeeds, for any steps of other clients in between.
        #[test]
        fn a_newcomer_is_never_refused(steps in prop::collection::vec(step(), 1..200)) {
            let (service, mut now_ns, mut keys) = (service(), SECOND_NS, Vec::new());
            let mut mine = exchange(&service, 9, "honest", 0, now_ns);
            for (at, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Exchange { host, name, verifier } => {
                        keys.push(exchange(&service, host, &name.to_string(), verifier, now_ns));
                    }
                    Step::Confirm { nth } if !keys.is_empty() => {
                        let key = keys[keys.len() - 1 - nth % keys.len()];
                        let _ = service.clients.confirm(key, now_ns);
                    }
                    Step::Destroy { nth } if !keys.is_empty() => {
                        let _ = service.clients.destroy(keys[nth % keys.len()]);
                    }
                    Step::Register { host, name } => {
                        let (name, host) = (name.to_string(), Host::User(host));
                        let name = name.as_bytes();
                        let _ = service.register_client(name, 1, nobody(), host, now_ns);
                    }
                    Step::Confirm { .. } | Step::Destroy { .. } => {}
                    Step::Pass { seconds } => {
                        // The client itself keeps its lease.
                        service.clients.confirm(mine, now_ns).unwrap();
                        now_ns += seconds * SECOND_NS;
                        service.clients.find(mine).unwrap().renew(now_ns);
                        service.tick(now_ns);
                    }
                }
                check(&service);
                if at % 7 == 0 {
                    service.clients.confirm(mine, now_ns).unwrap();
                    service.clients.destroy(mine).unwrap();
                    mine = exchange(&service, 9, "honest", 0, now_ns);
                }
            }
            service.clients.confirm(mine, now_ns).unwrap();
        }
    }

    /// A stranger that gives the name of a client again and again does not keep it out.
    #[test]
    fn another_host_displaces_no_record_that_is_not_confirmed() {
        let service = service();
        let mine = exchange(&service, 1, "name", 0, SECOND_NS);
        let theirs = exchange(&service, 2, "name", 1, SECOND_NS);
        let theirs = [theirs, exchange(&service, 2, "name", 2, SECOND_NS)];
        assert_eq!(service.clients.lock().unconfirmed(), 2);
        service.clients.confirm(mine, SECOND_NS).unwrap();
        for late in theirs {
            assert!(service.clients.confirm(late, SECOND_NS).is_err());
        }
        check(&service);
        assert_eq!(service.clients.lock().len(), 1);
    }

    /// Each host has its own record of a name, found without a search of those of the others.
    #[test]
    fn a_name_that_many_hosts_give_is_one_record_for_each() {
        let service = service();
        let unconfirmed = |service: &Service| {
            let table = service.clients.lock();
            table.nfs.get(&b"name"[..]).map_or(0, |owner| owner.unconfirmed.len())
        };
        for verifier in 0..3 {
            for host in 0..100 {
                exchange(&service, host, "name", verifier, SECOND_NS);
                check(&service);
                assert_eq!(unconfirmed(&service), service.clients.lock().unconfirmed());
            }
            assert_eq!(unconfirmed(&service), UNCONFIRMED_MAX);
        }
        let latest = exchange(&service, 99, "name", 9, SECOND_NS);
        service.clients.confirm(latest, SECOND_NS).unwrap();
        assert_eq!((unconfirmed(&service), service.clients.lock().len()), (0, 1));
    }

    #[test]
    fn hosts_that_have_no_records_are_forgotten() {
        let mut hosts = Hosts::default();
        let kept = hosts.enter(Host::User(0));
        (1..10_000).for_each(|host| drop(hosts.enter(Host::User(host))));
        assert!(hosts.by_host.len() <= 64);
        assert!(Arc::ptr_eq(&kept, &hosts.enter(Host::User(0))));
    }
}
