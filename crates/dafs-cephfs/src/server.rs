//! A data server from the view of the metadata server: a part of this process, or another process,
//! which may disconnect and reconnect.
//!
//! Notes
//! * A dead data server still holds capabilities in the cluster, and other clients wait for them.
//!   So the metadata server evicts it as soon as its cached authorisations have expired.
//!
//! Invariants
//! * Clients get no placement with a data server that is unreachable or being evicted.
//! * An evicted data server is made to rejoin, because it may still be running.

use crate::OpenError;
use crate::data::{CephData, Settled};
use crate::id::Object;
use dafs_mem::Mutex;
use dafs_store::node::{ComponentId, Node};
use dafs_store::{NfsAddresses, Result, StoreError};
use rustc_hash::FxHashSet;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

/// Evicts the data server with a number from the cluster.
pub(crate) type Evict = dyn Fn(u32) -> std::result::Result<(), OpenError> + Send + Sync;

/// The process of a data server.
pub(crate) enum Place {
    /// This process, with the addresses for clients.
    Here(Arc<CephData>, NfsAddresses),
    /// Another process.
    Far(Arc<dyn Node>),
}

/// A data server.
pub(crate) struct Server {
    place: Place,
    /// The daemons next to it.
    daemons: FxHashSet<u32>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The addresses and run that clients have got, as of the last turn.
    door: Option<(NfsAddresses, u64)>,
    /// The time since when it is unreachable.
    missed: Option<Instant>,
    hold: Hold,
}

/// The capabilities that a disconnected data server may hold in the cluster.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Hold {
    /// Those of all files that it had open when it was last connected.
    #[default]
    Unknown,
    /// It is being evicted.
    Ending,
    /// None: it was evicted, and has not reconnected.
    Nothing,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("daemons", &self.daemons).finish_non_exhaustive()
    }
}

/// Returns the id by which metadata server and data servers name an object.
pub(crate) fn component(object: Object) -> ComponentId {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&object.ino.to_be_bytes());
    id[8..].copy_from_slice(&object.snap.to_be_bytes());
    ComponentId(id)
}

/// Returns the object of such an id.
pub(crate) fn object(component: &ComponentId) -> Object {
    let number = |at: usize| {
        let mut number = [0; 8];
        number.copy_from_slice(&component.0[at..at + 8]);
        u64::from_be_bytes(number)
    };
    Object { ino: number(0), snap: number(8) }
}

impl Server {
    pub(crate) fn new(place: Place, daemons: FxHashSet<u32>) -> Self {
        let server = Self { place, daemons, state: Mutex::default() };
        let door = server.door();
        server.state().door = door;
        server
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(crate) fn here(&self) -> Option<&Arc<CephData>> {
        match &self.place {
            Place::Here(data, _) => Some(data),
            Place::Far(_) => None,
        }
    }

    pub(crate) fn is_next_to(&self, daemon: u32) -> bool {
        self.daemons.contains(&daemon)
    }

    /// Returns the addresses for clients, and a number that changes with each start: clients that
    /// have marked it as dead then retry it. `None` while it is unreachable.
    pub(crate) fn door(&self) -> Option<(NfsAddresses, u64)> {
        match &self.place {
            Place::Here(_, addresses) => Some((addresses.clone(), 0)),
            Place::Far(node) => {
                let usable = node.is_reachable() && self.state().hold == Hold::Unknown;
                Some((node.nfs_addresses(), node.run()))
                    .filter(|door| usable && !door.0.tcp.is_empty())
            }
        }
    }

    /// Does the periodic work. True if placements must change.
    pub(crate) fn turn(self: &Arc<Self>, evict: &Arc<Evict>) -> bool {
        let Place::Far(node) = &self.place else { return false };
        let there = node.is_reachable();
        let mut state = self.state();
        match (there, state.hold) {
            (true, Hold::Ending) => {}
            (true, hold) => {
                (state.missed, state.hold) = (None, Hold::Unknown);
                if hold == Hold::Nothing {
                    // It may have reconnected before the eviction was over, or may never have
                    // disconnected.
                    node.rejoin();
                }
            }
            (false, _) => {
                let missed = *state.missed.get_or_insert_with(Instant::now);
                if state.hold == Hold::Unknown && missed.elapsed() >= node.grant_ttl() {
                    state.hold = Hold::Ending;
                    self.end_hold(&mut state, evict);
                }
            }
        }
        drop(state);
        let door = self.door();
        let mut state = self.state();
        std::mem::replace(&mut state.door, door.clone()) != door
    }

    /// Evicts it on another thread, because the cluster may be unreachable as well.
    fn end_hold(self: &Arc<Self>, state: &mut State, evict: &Arc<Evict>) {
        let (own, evict) = (self.clone(), evict.clone());
        let run = move || {
            let Place::Far(node) = &own.place else { return };
            let number = node.number();
            let ended = evict(number);
            match &ended {
                Ok(()) => {
                    tracing::warn!(number, "an unreachable data server was evicted from CephFS")
                }
                Err(error) => {
                    tracing::warn!(number, "a data server cannot be evicted from CephFS: {error}");
                }
            }
            let mut state = own.state();
            state.hold = if ended.is_ok() { Hold::Nothing } else { Hold::Unknown };
            state.missed = Some(Instant::now());
        };
        let thread = std::thread::Builder::new().name("dafs-ceph-end".to_owned()).spawn(run);
        if let Err(error) = thread {
            tracing::warn!(%error, "there is no thread to shut a data server out of CephFS");
            state.hold = Hold::Unknown;
        }
    }

    /// Returns the result of [`settle`](Self::settle) if it needs no wait.
    pub(crate) fn settled_size(&self, object: Object) -> Result<Option<Settled>> {
        match &self.place {
            Place::Here(data, _) => data.settled_size(object),
            Place::Far(_) => Ok(None),
        }
    }

    /// Makes the size of a file that was written there known and stable. An evicted data server has
    /// lost its state.
    pub(crate) fn settle(&self, object: Object) -> Result<Settled> {
        match &self.place {
            Place::Here(data, _) => data.settle(object),
            Place::Far(node) => match node.size(&component(object)) {
                Ok(size) => Ok(Some(size)),
                Err(StoreError::NoDevice) => Ok(None),
                Err(StoreError::Busy) if self.state().hold == Hold::Nothing => Ok(None),
                Err(error) => Err(error),
            },
        }
    }

    pub(crate) fn drop_grants(&self, object: Object) -> Result<()> {
        match &self.place {
            Place::Here(data, _) => data.drop_grants(object),
            Place::Far(node) => node.drop_grants(&component(object)),
        }
    }

    pub(crate) fn grant_ttl(&self) -> Duration {
        match &self.place {
            Place::Here(..) => Duration::ZERO,
            Place::Far(node) => node.grant_ttl(),
        }
    }

    pub(crate) fn old_grants_expired(&self) -> Result<()> {
        match &self.place {
            Place::Here(..) => Ok(()),
            Place::Far(node) => node.old_grants_expired(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};

    #[derive(Default)]
    struct Fake {
        there: AtomicBool,
        rejoined: AtomicU32,
    }

    impl Node for Fake {
        fn number(&self) -> u32 {
            7
        }

        fn addresses(&self) -> Vec<SocketAddr> {
            vec![SocketAddr::from(([127, 0, 0, 1], 1))]
        }

        fn is_reachable(&self) -> bool {
            self.there.load(SeqCst)
        }

        fn rejoin(&self) {
            self.rejoined.fetch_add(1, SeqCst);
        }

        fn size(&self, _: &ComponentId) -> Result<u64> {
            if self.is_reachable() { Err(StoreError::NoDevice) } else { Err(StoreError::Busy) }
        }

        fn drop_grants(&self, _: &ComponentId) -> Result<()> {
            Err(StoreError::Busy)
        }
    }

    const OBJECT: Object = Object { ino: 1 << 40 | 5, snap: u64::MAX - 1 };

    #[test]
    fn objects_are_called_so_that_they_are_known_again() {
        assert_eq!(object(&component(OBJECT)), OBJECT);
    }

    #[test]
    fn an_unreachable_data_server_is_evicted_before_others_do_without_it() {
        let node = Arc::new(Fake::default());
        node.there.store(true, SeqCst);
        let server = Arc::new(Server::new(Place::Far(node.clone()), FxHashSet::default()));
        let (fails, ended) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicU32::new(0)));
        let (failing, ending) = (fails.clone(), ended.clone());
        let evict: Arc<Evict> = Arc::new(move |number| {
            assert_eq!(number, 7);
            ending.fetch_add(1, SeqCst);
            if failing.load(SeqCst) { Err(OpenError::Mounts) } else { Ok(()) }
        });
        assert!(!server.turn(&evict), "nothing is new");
        assert!(server.door().is_some());
        node.there.store(false, SeqCst);
        assert_eq!(server.settle(OBJECT), Err(StoreError::Busy));
        // Its cached authorisations have no lifetime, so it can be evicted at once. Some attempts
        // fail first.
        assert!(server.turn(&evict), "it is away");
        while ended.load(SeqCst) < 3 {
            server.turn(&evict);
            assert_eq!((server.settle(OBJECT), server.door()), (Err(StoreError::Busy), None));
        }
        fails.store(false, SeqCst);
        while server.settle(OBJECT).is_err() {
            server.turn(&evict);
        }
        assert_eq!(server.door(), None);
        let turns = ended.load(SeqCst);
        server.turn(&evict);
        assert_eq!(ended.load(SeqCst), turns, "once is enough");
        node.there.store(true, SeqCst);
        assert_eq!((server.door(), node.rejoined.load(SeqCst)), (None, 0));
        assert!(server.turn(&evict), "it is back");
        assert!(server.door().is_some());
        assert_eq!(node.rejoined.load(SeqCst), 1, "as a new client of the cluster");
        node.there.store(false, SeqCst);
        assert_eq!(server.settle(OBJECT), Err(StoreError::Busy), "it has had files open again");
    }
}
