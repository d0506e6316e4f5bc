//! Connection limits of a server: in total, and per address, over all of its front ends.
//!
//! A connection is admitted when it is accepted, before the server reads any byte of it. When a
//! limit is reached, a connection that is not established makes room. A session, or an admitted
//! call, establishes a connection.
//!
//! Invariants
//! * An established connection is never closed to make room for another. The last eighth of the
//!   connections is reserved for origins that have fewer than are left, so that a few origins
//!   cannot starve the others. An origin without a share is refused. Its earlier connections are
//!   closed at the moment when they would be established.
//! * The address with the most connections that are not established makes room. Its oldest
//!   connection without any input is closed first, or else its oldest. So an address that floods a
//!   server closes its own connections, and another client at that address has time for its
//!   handshake.
//! * Each admitted connection is counted until its [`Admitted`] is dropped, or until it is closed
//!   to make room.

use crate::PeerInfo;
use dafs_mem::Mutex;
use dafs_mem::Shrinking as _;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use thiserror::Error;

/// A socket that its owner may close at any time.
pub type WeakSocket = Weak<dyn AsFd + Send + Sync>;

/// The origin of a connection, for counting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Origin {
    /// An IPv4 address, or the first 64 bits of an IPv6 address, because one host may use any
    /// number of addresses with that prefix. All addresses of this host count as one.
    Address(IpAddr),
    /// A user of this host, over any of its addresses.
    User(u32),
    /// A host of a simulated network.
    Sim(u32),
    /// An unknown origin.
    Unknown,
}

impl Origin {
    /// The origin of an address.
    pub fn of_address(address: IpAddr) -> Self {
        const NETWORK: u128 = !(u64::MAX as u128);
        Self::Address(match address.to_canonical() {
            address if address.is_loopback() => Ipv4Addr::LOCALHOST.into(),
            // Many hosts share this prefix and differ in the other bits.
            IpAddr::V6(address) if address.is_unicast_link_local() => address.into(),
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & NETWORK).into(),
            address => address,
        })
    }

    /// The origin of a peer.
    pub fn of_peer(peer: &PeerInfo) -> Self {
        match (peer.address, peer.process.as_ref(), peer.sim_host) {
            (_, Some(process), _) => Self::User(process.uid),
            (Some(_), ..) if peer.is_local => Self::of_address(Ipv4Addr::LOCALHOST.into()),
            (Some(address), ..) => Self::of_address(address.ip()),
            (.., Some(host)) => Self::Sim(host),
            _ => Self::Unknown,
        }
    }
}

/// The reason why a connection is not admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Refusal {
    /// All connections are in use and established.
    #[error("the server has too many connections; raise limits.connections")]
    Full,
    /// All connections of this address are in use and established.
    #[error("too many connections from one address; raise limits.connections_per_address")]
    Address,
    /// The few that are left are reserved for origins with fewer connections.
    #[error(
        "the last connections of the server are for hosts and users that have fewer; raise \
         limits.connections"
    )]
    Share,
}

/// The connection limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Connections in total.
    pub total: usize,
    /// Connections from one address.
    pub per_address: usize,
}

/// The reason why an admitted connection was closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Closed {
    /// It made room for another.
    #[error("it had not been of use yet and made room for another")]
    Evicted,
    /// Its origin had no share left when it would have been established.
    #[error("{}", Refusal::Share)]
    Refused,
}

/// Counters since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ConnectionCounts {
    /// Current connections.
    pub connections: usize,
    /// Connections that were refused.
    pub refused: u64,
    /// Connections that were closed to make room for others.
    pub evicted: u64,
}

/// The connections of a server.
#[derive(Debug)]
pub struct Connections {
    limits: ConnectionLimits,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    counts: ConnectionCounts,
    next: u64,
    /// Established connections.
    established: usize,
    origins: HashMap<Origin, OriginConnections>,
    /// Origins with connections that are not established: their number, and the number of the
    /// oldest.
    order: BTreeSet<(usize, Reverse<u64>, Origin)>,
}

#[derive(Debug, Default)]
struct OriginConnections {
    count: usize,
    established: usize,
    /// Connections that are not established, by whether they have sent anything and by age.
    waiting: BTreeMap<(bool, u64), Waiting>,
}

struct Waiting {
    socket: WeakSocket,
    evicted: Arc<AtomicBool>,
}

impl std::fmt::Debug for Waiting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Waiting").field("evicted", &self.evicted).finish_non_exhaustive()
    }
}

impl OriginConnections {
    /// Removes a connection from those that are not established.
    fn take(&mut self, number: u64) -> Option<Waiting> {
        self.waiting.remove(&(false, number)).or_else(|| self.waiting.remove(&(true, number)))
    }

    fn rank(&self, origin: Origin) -> Option<(usize, Reverse<u64>, Origin)> {
        let (&(_, oldest), _) = self.waiting.first_key_value()?;
        Some((self.waiting.len(), Reverse(oldest), origin))
    }
}

impl State {
    /// Changes the connections of an origin, and updates its place in the order.
    fn change<T>(&mut self, origin: Origin, change: impl FnOnce(&mut OriginConnections) -> T) -> T {
        let own = self.origins.entry(origin).or_default();
        if let Some(rank) = own.rank(origin) {
            self.order.remove(&rank);
        }
        let changed = change(own);
        if let Some(rank) = own.rank(origin) {
            self.order.insert(rank);
        }
        if own.count == 0 {
            self.origins.remove_and_shrink(&origin);
        }
        changed
    }

    /// Evicts the oldest connection of an origin that is not established.
    fn evict(&mut self, origin: Origin) -> Option<Waiting> {
        let (_, waiting) = self.change(origin, |own| {
            let oldest = own.waiting.pop_first();
            own.count -= usize::from(oldest.is_some());
            oldest
        })?;
        waiting.evicted.store(true, Ordering::Release);
        self.counts.connections -= 1;
        self.counts.evicted += 1;
        Some(waiting)
    }

    /// True if an origin may establish another connection under this total limit.
    fn has_share(&self, origin: Origin, total: usize) -> bool {
        let own = self.origins.get(&origin).map_or(0, |own| own.established);
        let left = total.saturating_sub(self.established);
        left > total / 8 || own < left
    }

    fn evict_any(&mut self) -> Option<Waiting> {
        let &(.., origin) = self.order.last()?;
        self.evict(origin)
    }
}

impl Connections {
    /// No connections yet.
    pub fn new(limits: ConnectionLimits) -> Arc<Self> {
        Arc::new(Self { limits, state: Mutex::default() })
    }

    /// Counts a new connection; evicts another one that is not established if a limit is reached.
    /// If this one is evicted later, its `socket` is shut down, which its owner sees; an owner
    /// without a socket polls [`Admitted::is_evicted`].
    ///
    /// # Errors
    /// When no connection can be evicted.
    pub fn admit(
        self: &Arc<Self>,
        origin: Origin,
        socket: WeakSocket,
    ) -> Result<Arc<Admitted>, Refusal> {
        let mut state = self.state.lock();
        let mut leaving = None;
        let total = self.limits.total;
        // If no connection is left at all, the error is `Full` instead.
        if state.established < total && !state.has_share(origin, total) {
            state.counts.refused += 1;
            return Err(Refusal::Share);
        }
        let own = state.origins.get(&origin).map_or(0, |own| own.count);
        if own >= self.limits.per_address {
            leaving = state.evict(origin);
            if leaving.is_none() {
                state.counts.refused += 1;
                return Err(Refusal::Address);
            }
        } else if state.counts.connections >= total {
            leaving = state.evict_any();
            if leaving.is_none() {
                state.counts.refused += 1;
                return Err(Refusal::Full);
            }
        }
        let number = state.next;
        state.next += 1;
        state.counts.connections += 1;
        let evicted = Arc::new(AtomicBool::new(false));
        let waiting = Waiting { socket, evicted: evicted.clone() };
        state.change(origin, |own| {
            own.count += 1;
            own.waiting.insert((false, number), waiting);
        });
        drop(state);
        if let Some(leaving) = leaving {
            leaving.shut_down();
        }
        let (heard, established) = (AtomicBool::new(false), AtomicBool::new(false));
        let (connections, refused) = (self.clone(), AtomicBool::new(false));
        Ok(Arc::new(Admitted { connections, origin, number, heard, established, refused, evicted }))
    }

    /// Evicts a connection that is not established, if there is one, because file descriptors are
    /// short.
    pub fn make_room(&self) -> bool {
        let leaving = self.state.lock().evict_any();
        leaving.map(Waiting::shut_down).is_some()
    }

    /// The current counters.
    pub fn counts(&self) -> ConnectionCounts {
        self.state.lock().counts
    }
}

impl Waiting {
    fn shut_down(self) {
        if let Some(socket) = self.socket.upgrade() {
            // The peer may have closed it already.
            let _ = socket2::SockRef::from(&socket.as_fd()).shutdown(Shutdown::Both);
        }
    }
}

/// A counted connection; dropping this ends the count.
#[derive(Debug)]
pub struct Admitted {
    connections: Arc<Connections>,
    origin: Origin,
    number: u64,
    heard: AtomicBool,
    established: AtomicBool,
    /// True if it was closed when it would have been established.
    refused: AtomicBool,
    evicted: Arc<AtomicBool>,
}

impl Admitted {
    /// Records that the peer has sent valid input; silent connections are evicted before it.
    pub fn hear(&self) {
        if !self.heard.load(Ordering::Relaxed) && !self.heard.swap(true, Ordering::Relaxed) {
            self.connections.state.lock().change(self.origin, |own| {
                if let Some(waiting) = own.waiting.remove(&(false, self.number)) {
                    own.waiting.insert((true, self.number), waiting);
                }
            });
        }
    }

    /// Records that the connection is established; from now on it is never evicted. It is closed
    /// instead if its origin has no share left.
    pub fn establish(&self) {
        if !self.established.load(Ordering::Relaxed)
            && !self.established.swap(true, Ordering::Relaxed)
            && let Some(leaving) = self.enter()
        {
            leaving.shut_down();
        }
    }

    /// Counts the connection as established, or removes it from the count and returns it.
    fn enter(&self) -> Option<Waiting> {
        let mut state = self.connections.state.lock();
        let has_share = state.has_share(self.origin, self.connections.limits.total);
        let waiting = state.change(self.origin, |own| {
            let waiting = own.take(self.number)?;
            if has_share {
                own.established += 1;
            } else {
                own.count -= 1;
            }
            Some(waiting)
        })?;
        if has_share {
            state.established += 1;
            return None;
        }
        self.refused.store(true, Ordering::Relaxed);
        waiting.evicted.store(true, Ordering::Release);
        state.counts.connections -= 1;
        state.counts.refused += 1;
        Some(waiting)
    }

    /// True if it was evicted, or closed because its origin has no share left.
    pub fn is_evicted(&self) -> bool {
        self.evicted.load(Ordering::Acquire)
    }

    /// The reason why it was closed, if it was.
    pub fn closed(&self) -> Option<Closed> {
        self.is_evicted().then(|| match self.refused.load(Ordering::Relaxed) {
            true => Closed::Refused,
            false => Closed::Evicted,
        })
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut state = self.connections.state.lock();
        if self.is_evicted() {
            return;
        }
        let was_waiting = state.change(self.origin, |own| {
            let was_waiting = own.take(self.number).is_some();
            own.count -= 1;
            own.established -= usize::from(!was_waiting);
            was_waiting
        });
        state.established -= usize::from(!was_waiting);
        state.counts.connections -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    fn connections(total: usize, per_address: usize) -> Arc<Connections> {
        Connections::new(ConnectionLimits { total, per_address })
    }

    fn address(text: &str) -> Origin {
        Origin::of_address(text.parse().unwrap())
    }

    fn no_socket() -> WeakSocket {
        Weak::<UnixStream>::new()
    }

    fn flood(of: &Arc<Connections>, from: Origin, count: usize) -> Vec<Arc<Admitted>> {
        (0..count).map(|_| of.admit(from, no_socket()).unwrap()).collect()
    }

    fn left(of: &[Arc<Admitted>]) -> Vec<usize> {
        (0..of.len()).filter(|&at| !of[at].is_evicted()).collect()
    }

    #[test]
    fn an_address_that_floods_a_server_closes_its_own_connections() {
        let connections = connections(10, 8);
        let (one, other) = (address("192.0.2.1"), address("192.0.2.2"));
        let honest = connections.admit(other, no_socket()).unwrap();
        let flood_of_one = flood(&connections, one, 30);
        assert_eq!(left(&flood_of_one), (22..30).collect::<Vec<_>>());
        // There is room for one more; further connections evict those of the flood, oldest first.
        let more = flood(&connections, other, 3);
        assert_eq!(left(&flood_of_one), (24..30).collect::<Vec<_>>());
        assert!(!honest.is_evicted() && left(&more).len() == 3);
        let counts = connections.counts();
        assert_eq!((counts.connections, counts.refused, counts.evicted), (10, 0, 24));
        drop((honest, flood_of_one, more));
        assert_eq!(connections.counts().connections, 0);
        assert!(
            connections.state.lock().origins.is_empty()
                && connections.state.lock().order.is_empty()
        );
    }

    #[test]
    fn established_connections_make_no_room() {
        let connections = connections(4, 3);
        let (one, other) = (address("192.0.2.1"), address("192.0.2.2"));
        let kept = flood(&connections, one, 3);
        kept.iter().for_each(|admitted| admitted.establish());
        kept[0].establish();
        assert_eq!(connections.admit(one, no_socket()).unwrap_err(), Refusal::Address);
        let last = connections.admit(other, no_socket()).unwrap();
        let next = connections.admit(other, no_socket()).unwrap();
        assert!(last.is_evicted() && !next.is_evicted());
        next.establish();
        assert_eq!(connections.admit(other, no_socket()).unwrap_err(), Refusal::Full);
        assert!(!connections.make_room());
        assert_eq!(left(&kept), [0, 1, 2]);
        assert_eq!(connections.counts().refused, 2);
        // An evicted connection that is established later is not counted again.
        last.establish();
        drop((kept, last, next));
        assert_eq!(connections.counts().connections, 0);
    }

    #[test]
    fn few_origins_do_not_take_all_connections_for_ever() {
        let connections = connections(256, 128);
        let establish = |origin| {
            let all = flood(&connections, origin, 128);
            all.iter().for_each(|admitted| admitted.establish());
            assert!(origin == Origin::User(1) || all[127].closed() == Some(Closed::Refused));
            all.into_iter().filter(|admitted| !admitted.is_evicted()).collect::<Vec<_>>()
        };
        let kept: Vec<_> = (1..=5).map(|user| establish(Origin::User(user))).collect();
        let counts: Vec<_> = kept.iter().map(Vec::len).collect();
        assert_eq!(counts, [128, 96, 16, 8, 4]);
        // They are refused now, before they are served.
        for user in 3..=5 {
            let admitted = connections.admit(Origin::User(user), no_socket());
            assert_eq!(admitted.unwrap_err(), Refusal::Share);
        }
        assert_eq!(connections.counts().connections, counts.iter().sum());
        let another = establish(Origin::User(6));
        assert_eq!(another.len(), 2, "there is room for one who has none");
        drop((kept, another));
        let state = connections.state.lock();
        assert_eq!((state.counts.connections, state.established), (0, 0));
        assert!(state.origins.is_empty() && state.order.is_empty());
    }

    #[test]
    fn those_who_say_nothing_make_room_first() {
        let connections = connections(10, 3);
        let one = address("192.0.2.1");
        let greeted = connections.admit(one, no_socket()).unwrap();
        greeted.hear();
        let silent = flood(&connections, one, 10);
        assert_eq!(left(&silent), [8, 9]);
        assert!(!greeted.is_evicted());
        silent[8].hear();
        silent[9].hear();
        silent[9].establish();
        let late = flood(&connections, one, 2);
        late[1].hear();
        flood(&connections, one, 1);
        // The oldest again, if all have sent something.
        assert!(greeted.is_evicted() && late[0].is_evicted());
        assert_eq!(left(&silent), [9]);
        drop((greeted, silent, late));
        assert_eq!(connections.counts().connections, 0);
    }

    #[test]
    fn the_owner_of_a_socket_sees_its_end() {
        let connections = connections(1, 1);
        let (socket, mut peer) = UnixStream::pair().unwrap();
        let socket = Arc::new(socket);
        let weak = Arc::downgrade(&socket);
        let first = connections.admit(Origin::Unknown, weak).unwrap();
        let _second = connections.admit(Origin::User(1), no_socket()).unwrap();
        assert_eq!(first.closed(), Some(Closed::Evicted));
        assert_eq!((&*socket).read(&mut [0]).unwrap(), 0);
        assert_eq!(peer.read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn a_host_has_one_origin_however_many_addresses_it_takes() {
        assert_eq!(address("::ffff:192.0.2.1"), address("192.0.2.1"));
        assert_eq!(address("2001:db8:1:2::1"), address("2001:db8:1:2:ffff::9"));
        assert_ne!(address("2001:db8:1:2::1"), address("2001:db8:1:3::1"));
        assert_ne!(address("fe80::1"), address("fe80::2"));
        assert_eq!(address("127.0.0.1"), address("127.9.9.9"));
        assert_eq!(address("127.0.0.1"), address("::1"));
    }

    #[test]
    fn a_user_of_this_host_has_one_origin_over_all_its_addresses() {
        let process = Some(crate::PeerProcess { pid: 1, uid: 7, gid: 8 });
        let peer = |text: &str, process| PeerInfo {
            address: Some(text.parse().unwrap()),
            process,
            is_local: true,
            ..PeerInfo::default()
        };
        assert_eq!(Origin::of_peer(&peer("127.0.0.2:5", process)), Origin::User(7));
        assert_eq!(Origin::of_peer(&peer("192.0.2.1:5", process)), Origin::User(7));
        let unknown = Origin::of_peer(&peer("192.0.2.1:5", None));
        assert_eq!(unknown, Origin::of_peer(&peer("127.0.0.9:5", None)));
    }
}
