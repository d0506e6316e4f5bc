//! Nodes in memory that die, come back, and lose unstable data.

use dafs_mem::{Mutex, Site, VolatileSlice};
use dafs_store::node::{ComponentId, Node, NodeSpace, Written};
use dafs_store::{Result, Stability, StoreError};
use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::{Arc, MutexGuard};
use std::thread::ThreadId;

/// The content of a component: as it is on the disk, and as readers see it.
#[derive(Default, Clone)]
struct Content {
    stable: Vec<u8>,
    seen: Vec<u8>,
}

#[derive(Default)]
struct State {
    components: HashMap<ComponentId, Content>,
    verifier: u64,
    /// Counts the starts of its data server.
    run: u64,
    away: bool,
    full: bool,
    /// Its device cannot read what was written before.
    unreadable: bool,
    /// The threads that have read data.
    readers: HashSet<ThreadId>,
    /// The number of next calls for data that are refused as crowded.
    crowded: u32,
    /// The number of calls that change something until the node dies by itself.
    calls_left: Option<u32>,
    forgotten: u32,
    /// True while its data server may hold cached authorisations.
    believes: bool,
}

pub(crate) struct SimNode {
    number: u32,
    state: Mutex<State>,
}

impl SimNode {
    pub(crate) fn new(number: u32) -> Arc<Self> {
        let state = State { verifier: u64::from(number) << 32 | 1, ..State::default() };
        Arc::new(Self { number, state: Mutex::new(state) })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(crate) fn set_away(&self, away: bool) {
        let mut state = self.lock();
        state.away = away;
        state.calls_left = None;
    }

    pub(crate) fn set_full(&self, full: bool) {
        self.lock().full = full;
    }

    pub(crate) fn set_unreadable(&self) {
        self.lock().unreadable = true;
    }

    pub(crate) fn set_crowded(&self, calls: u32) {
        self.lock().crowded = calls;
    }

    pub(crate) fn set_run(&self, run: u64) {
        self.lock().run = run;
    }

    pub(crate) fn set_believes(&self, believes: bool) {
        self.lock().believes = believes;
    }

    pub(crate) fn forgotten(&self) -> u32 {
        self.lock().forgotten
    }

    /// Makes the node unreachable at the call after `calls` changes, before or after the call has
    /// taken effect.
    pub(crate) fn die_after(&self, calls: u32) {
        self.lock().calls_left = Some(calls);
    }

    /// Loses unstable data, like a machine that lost its power and has restarted.
    pub(crate) fn lose_unstable(&self) {
        let mut state = self.lock();
        state.verifier += 1;
        state.components.values_mut().for_each(|content| content.seen = content.stable.clone());
    }

    /// Replaces its disk by an empty one.
    pub(crate) fn lose_all(&self) {
        let mut state = self.lock();
        state.verifier += 1;
        state.components.clear();
    }

    /// True if it has no data of any file.
    pub(crate) fn is_bare(&self) -> bool {
        self.lock().components.is_empty()
    }

    /// Returns the content of a component, without a call.
    pub(crate) fn content(&self, id: &ComponentId) -> Vec<u8> {
        self.lock().components.get(id).map(|content| content.seen.clone()).unwrap_or_default()
    }

    /// Returns the threads that have read data since the last call.
    pub(crate) fn take_readers(&self) -> HashSet<ThreadId> {
        std::mem::take(&mut self.lock().readers)
    }

    fn there(&self) -> Result<MutexGuard<'_, State>> {
        let state = self.lock();
        if state.away { Err(StoreError::Busy) } else { Ok(state) }
    }

    /// Admits or refuses a call for data.
    fn turn(&self) -> Result<()> {
        let mut state = self.there()?;
        match state.crowded.checked_sub(1) {
            None => Ok(()),
            Some(left) => {
                state.crowded = left;
                Err(StoreError::Crowded)
            }
        }
    }

    /// Executes a call that changes something. `run` may take effect although the caller gets an
    /// error.
    fn change<T>(&self, run: impl FnOnce(&mut State) -> Result<T>) -> Result<T> {
        let mut state = self.there()?;
        match state.calls_left {
            Some(0) => {
                state.away = true;
                state.calls_left = None;
                // Half of the dying nodes have executed the call.
                if state.verifier % 2 == 0 {
                    let _ = run(&mut state);
                }
                Err(StoreError::Busy)
            }
            left => {
                state.calls_left = left.map(|left| left - 1);
                run(&mut state)
            }
        }
    }
}

impl Node for SimNode {
    fn number(&self) -> u32 {
        self.number
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        vec![format!("127.0.0.1:{}", 7000 + self.number).parse().unwrap()]
    }

    fn run(&self) -> u64 {
        self.lock().run
    }

    fn is_reachable(&self) -> bool {
        !self.lock().away
    }

    fn read(&self, id: &ComponentId, views: &[VolatileSlice<'_>], offset: u64) -> Result<usize> {
        self.turn()?;
        let mut state = self.there()?;
        state.readers.insert(std::thread::current().id());
        if state.unreadable {
            return Err(StoreError::Io);
        }
        let Some(content) = state.components.get(id) else { return Ok(0) };
        let mut rest = content.seen.get(offset as usize..).unwrap_or_default();
        let mut done = 0;
        for view in views {
            let count = view.copy_from(rest, Site::Cluster);
            rest = &rest[count..];
            done += count;
        }
        Ok(done)
    }

    fn write(
        &self,
        id: &ComponentId,
        views: &[VolatileSlice<'_>],
        offset: u64,
        stability: Stability,
    ) -> Result<Written> {
        self.turn()?;
        let len: usize = views.iter().map(VolatileSlice::len).sum();
        let mut bytes = vec![0; len];
        let mut done = 0;
        for view in views {
            done += view.copy_to(&mut bytes[done..], Site::Cluster);
        }
        self.change(|state| {
            if state.full {
                return Err(StoreError::NoSpace);
            }
            state.unreadable = false;
            let content = state.components.entry(*id).or_default();
            put(&mut content.seen, offset as usize, &bytes);
            if stability != Stability::Unstable {
                put(&mut content.stable, offset as usize, &bytes);
            }
            Ok(Written { count: len, verifier: state.verifier })
        })
    }

    fn commit(&self, id: &ComponentId) -> Result<u64> {
        self.turn()?;
        self.change(|state| {
            if let Some(content) = state.components.get_mut(id) {
                content.stable = content.seen.clone();
            }
            Ok(state.verifier)
        })
    }

    fn truncate(&self, id: &ComponentId, size: u64) -> Result<()> {
        self.change(|state| {
            if let Some(content) = state.components.get_mut(id)
                && content.seen.len() as u64 > size
            {
                content.seen.truncate(size as usize);
                content.stable = content.seen.clone();
            }
            Ok(())
        })
    }

    fn size(&self, id: &ComponentId) -> Result<u64> {
        Ok(self.there()?.components.get(id).map_or(0, |content| content.seen.len() as u64))
    }

    fn remove(&self, id: &ComponentId) -> Result<()> {
        self.there()?.components.remove(id);
        Ok(())
    }

    fn space(&self) -> Result<NodeSpace> {
        self.there().map(|_| NodeSpace::default())
    }

    fn drop_grants(&self, _component: &ComponentId) -> Result<()> {
        let mut state = self.lock();
        state.forgotten += 1;
        if state.away && state.believes { Err(StoreError::Busy) } else { Ok(()) }
    }
}

fn put(content: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    content.resize(content.len().max(offset + bytes.len()), 0);
    content[offset..offset + bytes.len()].copy_from_slice(bytes);
}
