//! Eviction of sessions of earlier runs when there are too many, or their records take too much.
//!
//! Invariants
//! * A client loses a session only if it, and its host, have more than others: the host with most
//!   records loses the oldest session of its client that has most. Names of clients are free to
//!   choose, so hosts are compared as a whole.

use super::ledger::Kept;
use crate::limits::{DURABLE_RECOVERED_BYTES_MAX, DURABLE_SESSIONS_MAX};
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;

/// The overhead of a session in bytes, so that many small ones count, too.
const SESSION_BYTES: usize = DURABLE_RECOVERED_BYTES_MAX / DURABLE_SESSIONS_MAX;

/// Numbered counts, the largest last.
#[derive(Default)]
struct Ranked {
    bytes: Vec<usize>,
    order: BTreeSet<(usize, usize)>,
}

impl Ranked {
    /// Adds an item with a count of zero.
    fn enter(&mut self) -> usize {
        self.bytes.push(0);
        self.order.insert((0, self.bytes.len() - 1));
        self.bytes.len() - 1
    }

    fn change(&mut self, index: usize, change: impl FnOnce(usize) -> usize) {
        let bytes = &mut self.bytes[index];
        self.order.remove(&(*bytes, index));
        *bytes = change(*bytes);
        self.order.insert((*bytes, index));
    }

    /// The item with the largest count.
    fn most(&self) -> Option<usize> {
        self.order.last().map(|(_, index)| *index)
    }
}

struct Held {
    /// The number of the latest change.
    latest: Option<u64>,
    id: [u8; 8],
    bytes: usize,
}

/// The clients of a host.
#[derive(Default)]
struct Host {
    numbers: FxHashMap<(Vec<u8>, Vec<u8>), usize>,
    clients: Ranked,
    /// By client, the latest first.
    sessions: Vec<Vec<Held>>,
}

/// Evicts sessions until the rest is within the limits.
pub(super) fn limit(sessions: &mut FxHashMap<[u8; 8], Kept>) {
    let mut bytes: usize = sessions.values().map(Kept::count).sum();
    let fits = |count, bytes| count <= DURABLE_SESSIONS_MAX && bytes <= DURABLE_RECOVERED_BYTES_MAX;
    if fits(sessions.len(), bytes) {
        return;
    }
    let (mut numbers, mut ranked, mut hosts) =
        (FxHashMap::default(), Ranked::default(), Vec::new());
    for (id, kept) in &*sessions {
        let (at, client) = match &kept.session {
            Some(session) => {
                (session.host.clone(), (session.client.clone(), session.principal.clone()))
            }
            None => Default::default(),
        };
        let at = *numbers.entry(at).or_insert_with(|| {
            hosts.push(Host::default());
            ranked.enter()
        });
        let Host { numbers, clients, sessions } = &mut hosts[at];
        let client = *numbers.entry(client).or_insert_with(|| {
            sessions.push(Vec::new());
            clients.enter()
        });
        let latest = kept.streams.values().map(|entry| entry.about.op).max();
        let held = Held { latest, id: *id, bytes: kept.count() + SESSION_BYTES };
        clients.change(client, |bytes| bytes + held.bytes);
        ranked.change(at, |bytes| bytes + held.bytes);
        sessions[client].push(held);
    }
    for held in hosts.iter_mut().flat_map(|host| &mut host.sessions) {
        held.sort_unstable_by_key(|held| std::cmp::Reverse((held.latest, held.id)));
    }
    while !fits(sessions.len(), bytes) {
        let Some(at) = ranked.most() else { return };
        let host = &mut hosts[at];
        let Some(client) = host.clients.most() else { return };
        let Some(held) = host.sessions[client].pop() else { return };
        host.clients.change(client, |bytes| bytes - held.bytes);
        ranked.change(at, |bytes| bytes - held.bytes);
        sessions.remove(&held.id);
        bytes -= held.bytes - SESSION_BYTES;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::durable::Session;
    use crate::durable::ledger::Entry;
    use crate::durable::record::{self, About};
    use crate::replies::{RequestKey, Sender};

    /// A session with a change whose reply has this length.
    fn kept(number: u64, host: u8, client: u8, reply_bytes: usize) -> ([u8; 8], Kept) {
        let id = number.to_be_bytes();
        let key = RequestKey {
            session: id,
            stream: 0,
            sequence: 1,
            procedure: 9,
            sender: Sender::OF_SESSION,
        };
        let about = About { op: number, key, power: false };
        let mut entry = Entry { about, record: Vec::new() };
        record::put_reply(&about, false, &vec![7; reply_bytes], &mut entry.record);
        let session = Session {
            id,
            host: vec![host],
            client: vec![client],
            verifier: [0; 8],
            mechanism: String::new(),
            principal: Vec::new(),
        };
        let mut kept = Kept::default();
        kept.session = Some(session);
        kept.streams.insert(0, entry);
        (id, kept)
    }

    fn count(sessions: &FxHashMap<[u8; 8], Kept>, host: u8, client: u8) -> usize {
        let is = |session: &Session| session.host == [host] && session.client == [client];
        sessions.values().filter(|kept| kept.session.as_ref().is_some_and(is)).count()
    }

    #[test]
    fn a_host_with_many_names_takes_nothing_from_others() {
        // Two clients without recent requests, and one host that uses many names.
        let mut sessions: FxHashMap<_, _> = (0..20).map(|n| kept(n, 1, 1, 40)).collect();
        sessions.extend((20..120).map(|n| kept(n, 2, 1, 40)));
        let many = 2 * DURABLE_SESSIONS_MAX as u64;
        sessions.extend((1000..1000 + many).map(|n| kept(n, 3, n as u8, 40)));
        limit(&mut sessions);
        assert_eq!(sessions.len(), DURABLE_SESSIONS_MAX);
        assert_eq!((count(&sessions, 1, 1), count(&sessions, 2, 1)), (20, 100));
        // The latest sessions of a client are kept.
        assert!(sessions.contains_key(&(1000 + many - 1).to_be_bytes()));
        assert!(!sessions.contains_key(&1000_u64.to_be_bytes()));
    }

    #[test]
    fn a_client_with_much_takes_nothing_from_others_of_its_host() {
        let large = 60 << 10;
        let mut sessions: FxHashMap<_, _> = (0..10).map(|n| kept(n, 1, 1, large)).collect();
        let enough = 2 * (DURABLE_RECOVERED_BYTES_MAX / large) as u64;
        sessions.extend((100..100 + enough).map(|n| kept(n, 1, 2, large)));
        limit(&mut sessions);
        assert!(sessions.values().map(Kept::count).sum::<usize>() <= DURABLE_RECOVERED_BYTES_MAX);
        assert_eq!(count(&sessions, 1, 1), 10);
        assert!(count(&sessions, 1, 2) > enough as usize / 3);
    }
}
