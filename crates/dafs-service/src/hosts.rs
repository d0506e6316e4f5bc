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
use std::collections::VecDeque;
use std::fmt;
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

/// As in metrics and logs: an address, the network of an IPv6 host, or `local` for users of this host.
impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("unknown"),
            Self::V4(address) => write!(f, "{}", Ipv4Addr::from(*address)),
            Self::V6(address) => write!(f, "{}", Ipv6Addr::from(*address)),
            Self::User(_) => f.write_str("local"),
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
/// its own oldest entry for each new one. A change takes at most two binary searches, and else
/// constant time in the average; but to remove from the middle of a host's entries moves those on
/// one side.
#[derive(Debug)]
pub struct FairQueue<T> {
    max: usize,
    last: u64,
    /// The number of entries that are still there.
    len: usize,
    /// By ascending number. An entry that was removed stays as a gap until it is the first, or the
    /// gaps are more than half.
    all: VecDeque<(u64, Option<(Host, T)>)>,
    /// The numbers of a host's entries, ascending.
    of_host: FxHashMap<Host, VecDeque<u64>>,
}

impl<T> FairQueue<T> {
    /// Makes an empty queue for at most `max` entries.
    pub fn new(max: usize) -> Self {
        Self { max, last: 0, len: 0, all: VecDeque::new(), of_host: FxHashMap::default() }
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True when there are no entries.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds an entry of a host. Returns its number, and the entry that was evicted for it: the
    /// oldest of this host, or the oldest of all if that host has none.
    pub fn push(&mut self, host: Host, value: T) -> (u64, Option<T>) {
        let own = self.of_host.entry(host).or_default();
        let gone = if has_share(own.len(), self.len, self.max) {
            None
        } else if let Some(oldest) = own.pop_front() {
            self.take(oldest).map(|(_, value)| value)
        } else {
            let oldest = self.oldest().map(|(number, _)| number);
            oldest.and_then(|number| self.remove(number))
        };
        self.last += 1;
        self.of_host.entry(host).or_default().push_back(self.last);
        self.all.push_back((self.last, Some((host, value))));
        self.len += 1;
        (self.last, gone)
    }

    /// Removes an entry.
    pub fn remove(&mut self, number: u64) -> Option<T> {
        let (host, value) = self.take(number)?;
        if let Some(own) = self.of_host.get_mut(&host) {
            if let Ok(at) = own.binary_search(&number) {
                own.remove(at);
            }
            shrink_if_sparse(own);
            if own.is_empty() {
                self.of_host.remove_and_shrink(&host);
            }
        }
        Some(value)
    }

    /// Removes an entry, but not its number from those of its host.
    fn take(&mut self, number: u64) -> Option<(Host, T)> {
        let (first, _) = self.all.front()?;
        // The position if no gap was left out, as it is for the first and mostly for others.
        let guess = usize::try_from(number.checked_sub(*first)?).ok()?;
        let at = match self.all.get(guess) {
            Some((found, _)) if *found == number => guess,
            _ => self.all.binary_search_by_key(&number, |(number, _)| *number).ok()?,
        };
        let taken = self.all[at].1.take()?;
        self.len -= 1;
        while let Some((_, None)) = self.all.front() {
            self.all.pop_front();
        }
        if self.all.len() > 2 * self.len {
            self.all.retain(|(_, entry)| entry.is_some());
        }
        shrink_if_sparse(&mut self.all);
        Some(taken)
    }

    /// The oldest of all, with its number.
    pub fn oldest(&self) -> Option<(u64, &T)> {
        let (number, entry) = self.all.front()?;
        entry.as_ref().map(|(_, value)| (*number, value))
    }

    /// All entries, the oldest first.
    pub fn iter(&self) -> impl Iterator<Item = (Host, &T)> {
        self.all.iter().filter_map(|(_, entry)| entry.as_ref().map(|(host, value)| (*host, value)))
    }

    /// Keeps the entries for which `keep` is true.
    pub fn retain(&mut self, mut keep: impl FnMut(Host, &T) -> bool) {
        let all = self.all.iter();
        let gone: Vec<u64> = all
            .filter(|(_, entry)| entry.as_ref().is_some_and(|(host, value)| !keep(*host, value)))
            .map(|(number, _)| *number)
            .collect();
        for number in gone {
            self.remove(number);
        }
    }
}

/// Releases memory of a queue that has many more places than entries. Every host has a queue, so
/// few places count, too.
fn shrink_if_sparse<T>(queue: &mut VecDeque<T>) {
    let entries = queue.len().max(4);
    if queue.capacity() > 8 * entries {
        queue.shrink_to(2 * entries);
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
        /// The queue behaves as a plain list of its entries does.
        #[test]
        fn a_queue_is_a_list_with_shares(
            steps in prop::collection::vec((0..6_u32, 0..12_usize, any::<bool>()), 1..300),
        ) {
            const MAX: usize = 12;
            let mut queue = FairQueue::new(MAX);
            let mut list: Vec<(u64, Host, usize)> = Vec::new();
            for (step, (user, at, is_push)) in steps.into_iter().enumerate() {
                let host = Host::User(user);
                if is_push {
                    let own = list.iter().filter(|(_, of, _)| *of == host).count();
                    let gone = (!has_share(own, list.len(), MAX)).then(|| {
                        let first = list.iter().position(|(_, of, _)| own == 0 || *of == host);
                        list.remove(first.unwrap()).2
                    });
                    let (number, pushed_out) = queue.push(host, step);
                    prop_assert_eq!(pushed_out, gone);
                    list.push((number, host, step));
                } else {
                    let number = list.get(at).map_or(u64::MAX, |(number, ..)| *number);
                    let removed = (at < list.len()).then(|| list.remove(at).2);
                    prop_assert_eq!(queue.remove(number), removed);
                    prop_assert_eq!(queue.remove(number), None);
                }
                prop_assert_eq!(queue.len(), list.len());
                prop_assert_eq!(queue.oldest(), list.first().map(|(number, _, value)| (*number, value)));
                prop_assert!(queue.iter().eq(list.iter().map(|(_, host, value)| (*host, value))));
                prop_assert!(queue.all.len() <= 2 * queue.len());
                prop_assert!(queue.of_host.values().map(VecDeque::len).sum::<usize>() == list.len());
            }
        }

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
    fn a_queue_that_has_emptied_keeps_little_memory() {
        let mut queue = FairQueue::new(10_000);
        (0..4096).for_each(|n| _ = queue.push(Host::Unknown, n));
        (2..4096).rev().for_each(|number| assert_eq!(queue.remove(number), Some(number - 1)));
        assert!(queue.iter().map(|(_, n)| *n).eq([0, 4095]));
        assert!(queue.all.capacity() <= 64 && queue.of_host[&Host::Unknown].capacity() <= 64);
        assert_eq!((queue.remove(4096), queue.remove(4096)), (Some(4095), None));
        assert_eq!(queue.oldest(), Some((1, &0)));
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
