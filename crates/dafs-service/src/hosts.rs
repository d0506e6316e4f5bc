//! Hosts, and their shares of the state of all clients together.
//!
//! A client chooses its name and may take as many as it likes, so a bound by client leaves no room
//! to others. It cannot choose its address in the same way.
//!
//! Invariants
//! * A host gets more of a kind only while it has less than is left (the dynamic thresholds of
//!   Choudhury and Hahne). One host alone gets half, two get a third each, and something is left
//!   for every other.
//! * The counts of a host change where state is entered and removed, under the lock of that table.
//!   So to read them costs the same for any number of clients.

use dafs_mem::Shrinking as _;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicUsize, Ordering};

use rustc_hash::FxHashMap;

/// The place that a client calls from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum Host {
    /// Unknown.
    #[default]
    Unknown,
    /// An IPv4 address.
    V4([u8; 4]),
    /// An IPv6 network, as [`network_of_host`] returns it.
    V6([u8; 16]),
    /// A user of this host, by number.
    User(u32),
}

impl Host {
    /// The host at a network address.
    pub fn of(address: IpAddr) -> Self {
        match network_of_host(address) {
            IpAddr::V4(address) => Self::V4(address.octets()),
            IpAddr::V6(address) => Self::V6(address.octets()),
        }
    }

    /// The bytes of the host in records that outlive the server. Empty if it is unknown.
    pub fn to_bytes(self) -> Vec<u8> {
        match self {
            Self::Unknown => Vec::new(),
            Self::V4(address) => address.to_vec(),
            Self::V6([network @ .., 0, 0, 0, 0, 0, 0, 0, 0]) => network.to_vec(),
            Self::V6(address) => address.to_vec(),
            Self::User(uid) => [&b"u"[..], &uid.to_le_bytes()].concat(),
        }
    }
}

/// Returns the network that belongs to one host. For IPv6 it has 64 bits, because a host changes
/// its temporary addresses within that (RFC 8981). On a link many hosts have an address each. All
/// loopback addresses are this host.
pub fn network_of_host(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        address if address.is_loopback() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(address) if !address.is_unicast_link_local() => {
            Ipv6Addr::from(u128::from(address) >> 64 << 64).into()
        }
        address => address,
    }
}

/// True if a host that has `own` of `all` things may have another, where `max` is the bound.
pub fn has_share(own: usize, all: usize, max: usize) -> bool {
    own < max.saturating_sub(all)
}

/// Returns the least that a host must have to lose any of it to a host that has `own`. While there
/// is room, a host that has had its share takes none from hosts that have less than half as much.
pub fn least_to_lose(own: usize, all: usize, max: usize) -> usize {
    if all < max { own.div_ceil(2) } else { 0 }
}

/// The kinds of state that hosts share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shared {
    /// Records of clients that have used their key.
    Clients,
    /// Sessions of NFS clients.
    Sessions,
    /// Opens.
    Opens,
    /// Pairs of lock owner and file.
    Locks,
    /// Byte ranges locked.
    Ranges,
    /// Delegations, and state that was revoked and not freed yet.
    Delegations,
    /// Layouts.
    Layouts,
}

impl Shared {
    pub(crate) const ALL: [Self; 7] = [
        Self::Clients,
        Self::Sessions,
        Self::Opens,
        Self::Locks,
        Self::Ranges,
        Self::Delegations,
        Self::Layouts,
    ];
}

/// The counts of the clients of one host together.
#[derive(Debug, Default)]
pub struct HostUse {
    host: Host,
    counts: [AtomicUsize; Shared::ALL.len()],
}

impl HostUse {
    pub(crate) fn new(host: Host) -> Self {
        Self { host, counts: Default::default() }
    }

    /// The host.
    pub fn host(&self) -> Host {
        self.host
    }

    /// Returns the count of one kind.
    pub fn count(&self, shared: Shared) -> usize {
        self.counts[shared as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn add(&self, shared: Shared, more: usize) {
        self.counts[shared as usize].fetch_add(more, Ordering::Relaxed);
    }

    pub(crate) fn remove(&self, shared: Shared, less: usize) {
        let before = self.counts[shared as usize].fetch_sub(less, Ordering::Relaxed);
        debug_assert!(before >= less, "a host gave back more of {shared:?} than it had");
    }
}

/// Counts by client name, for state that outlives a client's record, and by the hosts of these
/// names. A name counts for the host that its client came from last.
#[derive(Debug, Default)]
pub(crate) struct ByName {
    names: FxHashMap<Box<[u8]>, (Host, u64)>,
    hosts: FxHashMap<Host, u64>,
}

impl ByName {
    pub(crate) fn of_name(&self, name: &[u8]) -> u64 {
        self.names.get(name).map_or(0, |(_, count)| *count)
    }

    /// The last host of the client of a name.
    pub(crate) fn host(&self, name: &[u8]) -> Host {
        self.names.get(name).map_or(Host::Unknown, |(host, _)| *host)
    }

    pub(crate) fn of_host(&self, host: Host) -> u64 {
        self.hosts.get(&host).copied().unwrap_or(0)
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.names.is_empty() && self.hosts.is_empty()
    }

    /// Notes that the client of a name is at this host now.
    pub(crate) fn move_to(&mut self, name: &[u8], host: Host) {
        let Some((at, count)) = self.names.get_mut(name) else { return };
        let before = std::mem::replace(at, host);
        let count = *count;
        self.take(before, count);
        *self.hosts.entry(host).or_default() += count;
    }

    /// Adds to the count of a name. A new name is at this host.
    pub(crate) fn add(&mut self, name: &[u8], host: Host, more: u64) {
        let host = match self.names.get_mut(name) {
            Some((host, count)) => {
                *count += more;
                *host
            }
            None => {
                self.names.insert(name.into(), (host, more));
                host
            }
        };
        *self.hosts.entry(host).or_default() += more;
    }

    /// Subtracts from the count of a name.
    pub(crate) fn remove(&mut self, name: &[u8], less: u64) {
        let Some((host, count)) = self.names.get_mut(name) else { return };
        let (host, less) = (*host, less.min(*count));
        *count -= less;
        if *count == 0 {
            self.names.remove(name);
            self.names.shrink_if_sparse();
        }
        self.take(host, less);
    }

    fn take(&mut self, host: Host, less: u64) {
        if let Some(count) = self.hosts.get_mut(&host) {
            *count = count.saturating_sub(less);
            if *count == 0 {
                self.hosts.remove_and_shrink(&host);
            }
        }
    }
}

/// A queue in the order of arrival, up to a bound that hosts share: above its share, a host loses
/// its own oldest entry for each new one.
#[derive(Debug)]
pub struct FairQueue<T> {
    max: usize,
    last: u64,
    all: BTreeMap<u64, (Host, T)>,
    of_host: FxHashMap<Host, BTreeSet<u64>>,
}

impl<T> FairQueue<T> {
    /// Makes an empty queue for at most `max` entries.
    pub fn new(max: usize) -> Self {
        Self { max, last: 0, all: BTreeMap::new(), of_host: FxHashMap::default() }
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// True when there are no entries.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Adds an entry of a host. Returns its number, and the entry that was evicted for it: the
    /// oldest of this host, or the oldest of all if that host has none.
    pub fn push(&mut self, host: Host, value: T) -> (u64, Option<T>) {
        let own = self.of_host.get(&host).map_or(0, BTreeSet::len);
        let gone = if has_share(own, self.all.len(), self.max) {
            None
        } else {
            let oldest = self.of_host.get(&host).and_then(BTreeSet::first).copied();
            let oldest = oldest.or_else(|| self.oldest().map(|(number, _)| number));
            oldest.and_then(|number| self.remove(number))
        };
        self.last += 1;
        self.all.insert(self.last, (host, value));
        self.of_host.entry(host).or_default().insert(self.last);
        (self.last, gone)
    }

    /// Removes an entry.
    pub fn remove(&mut self, number: u64) -> Option<T> {
        let (host, value) = self.all.remove(&number)?;
        if let Some(own) = self.of_host.get_mut(&host) {
            own.remove(&number);
            if own.is_empty() {
                self.of_host.remove_and_shrink(&host);
            }
        }
        Some(value)
    }

    /// The oldest of all, with its number.
    pub fn oldest(&self) -> Option<(u64, &T)> {
        self.all.first_key_value().map(|(number, (_, value))| (*number, value))
    }

    /// All entries, the oldest first.
    pub fn iter(&self) -> impl Iterator<Item = (Host, &T)> {
        self.all.values().map(|(host, value)| (*host, value))
    }

    /// Keeps the entries for which `keep` is true.
    pub fn retain(&mut self, mut keep: impl FnMut(Host, &T) -> bool) {
        let gone: Vec<u64> = self
            .all
            .iter()
            .filter(|(_, (host, value))| !keep(*host, value))
            .map(|(number, _)| *number)
            .collect();
        for number in gone {
            self.remove(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_host_is_an_address_or_a_network_of_ipv6() {
        let host = |text: &str| Host::of(text.parse().unwrap());
        assert_eq!(host("192.0.2.1"), host("::ffff:192.0.2.1"));
        assert_ne!(host("192.0.2.1"), host("192.0.2.2"));
        assert_eq!(host("2001:db8::1"), host("2001:db8::ffff:0:0:2"));
        assert_ne!(host("2001:db8::1"), host("2001:db8:0:1::1"));
        assert_ne!(host("fe80::1"), host("fe80::2"));
        for address in ["::1", "127.0.0.2", "::ffff:127.1.2.3"] {
            assert_eq!(host(address), host("127.0.0.1"), "{address}");
        }
        let bytes = ["", "192.0.2.1", "2001:db8::1", "fe80::1"]
            .map(|text| text.parse().map_or(Host::Unknown, Host::of).to_bytes().len());
        assert_eq!(bytes, [0, 4, 8, 16]);
        assert_ne!(Host::User(1).to_bytes(), Host::User(2).to_bytes());
    }

    #[test]
    fn hosts_get_equal_shares_and_leave_one() {
        for hosts in 1..10_usize {
            let (mut counts, max) = (vec![0; hosts], 1000);
            // The hosts take all they can, one after the other, the first ones again and again.
            for _ in 0..max {
                for at in 0..hosts {
                    let all: usize = counts.iter().sum();
                    counts[at] += usize::from(has_share(counts[at], all, max));
                }
            }
            let all: usize = counts.iter().sum();
            assert!(max - all >= max / (hosts + 1), "{counts:?}");
            assert!(has_share(0, all, max));
            assert!(
                counts.iter().all(|count| count.abs_diff(max / (hosts + 1)) <= 1),
                "{counts:?}"
            );
        }
    }

    proptest! {
        /// The entry of a rare host survives a flood from all others.
        #[test]
        fn a_flood_pushes_out_its_own(flood in prop::collection::vec(1..6_u32, 1..400)) {
            let mut queue = FairQueue::new(32);
            let (mine, _) = queue.push(Host::Unknown, 0);
            for (at, host) in flood.iter().enumerate() {
                queue.push(Host::User(*host), at);
                prop_assert!(queue.len() <= 32);
            }
            prop_assert_eq!(queue.remove(mine), Some(0));
            queue.retain(|_, _| false);
            prop_assert!(queue.is_empty() && queue.of_host.is_empty());
        }
    }

    #[test]
    fn the_oldest_of_all_goes_where_hosts_are_many() {
        let mut queue = FairQueue::new(3);
        let gone: Vec<_> = (0..6).map(|n| queue.push(Host::User(n), n).1).collect();
        assert_eq!(gone, [None, None, None, Some(0), Some(1), Some(2)]);
        assert_eq!(queue.oldest().map(|(_, value)| *value), Some(3));
        assert_eq!(queue.iter().count(), 3);
    }
}
