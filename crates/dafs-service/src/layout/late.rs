//! Late writes: the client sent them to a data server, gave up, and wrote through this server
//! instead. A late write may still be under way, or wait in a queue. It must not be executed after
//! the newer write.
//!
//! Invariants
//! * A client's write through this server is ordered after all its writes to data servers for the
//!   same bytes. First, the data servers that hold an authorisation to write drop it. From then on,
//!   they accept a write of the client only by a session that is younger than the write through
//!   this server, because it was sent after that write.
//! * This holds from the client's first layout for writing until its last open of the file is
//!   closed, even if no data server has asked about it. By then the client has written again all
//!   data whose answer it still awaited. The minimum age of sessions is kept as long as the client.
//! * One time may stand for many components. A later time may replace an earlier one, but not the
//!   reverse.

use super::Layouts;
use crate::client::{Client, ClientKey};
use crate::handle::Handle;
use crate::limits::LATE_COMPONENTS_MAX;
use crate::table::{FileState, StateTable};
use crate::{Result, ServiceError};
use dafs_mem::Mutex;
use dafs_store::{Device, Packing, Placement, Spread, Store, Wait};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The names of a file's components, and the map from bytes to components.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Components {
    names: Vec<Box<[u8]>>,
    /// The components of the first unit, the second, and so on in turn. Empty if each component has
    /// all bytes.
    turns: Vec<u32>,
    unit_bytes: u64,
}

impl Components {
    pub(super) fn of(placement: &Placement, device: Option<Device>) -> Self {
        let names: Vec<Box<[u8]>> = placement.handles().map(Into::into).collect();
        let all = |names| Self { names, turns: Vec::new(), unit_bytes: 1 };
        let Spread::Stripes(stripes) = &placement.spread else { return all(names) };
        // One name for all data servers does not distinguish them.
        let Some(device) = device.filter(|_| names.len() > 1) else { return all(names) };
        let places = device.pattern.len();
        let turns = (0..places).map(|turn| {
            let place = (stripes.first_place as usize + turn) % places;
            match stripes.packing {
                Packing::Sparse => device.pattern[place],
                Packing::Dense => place as u32,
            }
        });
        let turns: Vec<u32> = turns.collect();
        if turns.iter().any(|&turn| turn as usize >= names.len()) {
            return all(names);
        }
        Self { names, turns, unit_bytes: stripes.unit_bytes.get().into() }
    }

    /// The components that have bytes of a range. For a long range a component may come more than
    /// once.
    fn names(&self, (offset, len): (u64, u64)) -> impl Iterator<Item = &[u8]> {
        let count = self.turns.len() as u64;
        let first = offset / self.unit_bytes;
        let last = offset.saturating_add(len.saturating_sub(1)) / self.unit_bytes;
        let units = (last - first).saturating_add(1).min(count);
        let some = (first..first.saturating_add(units))
            .map(move |unit| &*self.names[self.turns[(unit % count) as usize] as usize]);
        let all = self.names.iter().filter(move |_| count == 0).map(|name| &**name);
        some.chain(all)
    }
}

/// The clients that have got a layout for writing, and have the file open still.
pub(crate) struct DirectWriters {
    store: Arc<dyn Store>,
    components: Arc<Components>,
    /// Those before the last change of their names: a client may have requests by these under way.
    earlier: Option<Arc<Components>>,
    /// For each client, the components whose data servers have got an authorisation to write since
    /// the last drop.
    clients: FxHashMap<ClientKey, FxHashSet<Box<[u8]>>>,
}

/// Writes of one client that may be under way, and that it has given up.
#[derive(Default)]
pub(crate) struct Late {
    /// It has had a layout for writing, perhaps in an earlier run of this server.
    any: AtomicBool,
    since: Mutex<Since>,
}

/// The times of the last writes through this server.
#[derive(Default)]
struct Since {
    /// For each component that is not in the list.
    all_ns: Option<u64>,
    components: FxHashMap<Box<[u8]>, u64>,
}

impl Late {
    fn note(&self, component: &[u8], now_ns: u64) {
        let mut since = self.since.lock();
        if let Some(noted_ns) = since.components.get_mut(component) {
            *noted_ns = now_ns.max(*noted_ns);
            return;
        }
        if since.components.len() >= LATE_COMPONENTS_MAX {
            let latest = since.components.values().copied().max();
            since.all_ns = since.all_ns.max(latest);
            since.components = FxHashMap::default();
        }
        since.components.insert(component.into(), now_ns);
    }

    /// Sessions must be younger than this time for a write to the component.
    pub(super) fn at_ns(&self, component: &[u8]) -> Option<u64> {
        let since = self.since.lock();
        since.components.get(component).copied().max(since.all_ns)
    }
}

impl Client {
    /// True if it has had a layout by which it may have written. Otherwise it has no late writes.
    pub fn may_have_late_writes(&self) -> bool {
        self.late.any.load(Ordering::Relaxed)
    }

    /// Notes that it may have written by a layout of an earlier run of this server.
    pub(super) fn note_earlier_layout(&self) {
        self.late.any.store(true, Ordering::Relaxed);
    }
}

impl FileState {
    /// Notes that a data server gets an authorisation for a client to write to a component.
    pub(super) fn note_authorised(&mut self, client: ClientKey, component: &[u8]) {
        let writers = self.direct_writers.as_mut();
        let authorised = writers.and_then(|writers| writers.clients.get_mut(&client));
        if let Some(authorised) = authorised.filter(|names| !names.contains(component)) {
            authorised.insert(component.into());
        }
    }

    /// Forgets a client that has closed the file.
    pub(super) fn remove_direct_writer(&mut self, client: ClientKey) {
        if let Some(writers) = &mut self.direct_writers {
            writers.clients.remove(&client);
            if writers.clients.is_empty() {
                self.direct_writers = None;
            }
        }
    }
}

impl StateTable {
    /// Notes that a client gets a layout for writing.
    pub(super) fn note_direct_writer(
        &mut self,
        key: Handle,
        client: &Client,
        store: &Arc<dyn Store>,
        components: Arc<Components>,
    ) {
        client.late.any.store(true, Ordering::Relaxed);
        let file = self.files.entry(key).or_default();
        let (store, clients) = (store.clone(), FxHashMap::default());
        let fresh = || {
            let components = components.clone();
            Box::new(DirectWriters { store, components, earlier: None, clients })
        };
        let writers = file.direct_writers.get_or_insert_with(fresh);
        if writers.components != components {
            writers.earlier = Some(std::mem::replace(&mut writers.components, components));
        }
        writers.clients.entry(client.key()).or_default();
    }

    /// Notes that a client is about to write these bytes of a file through this server. True if it
    /// has to wait until data servers have dropped their authorisations.
    fn overtake(&mut self, client: &Client, key: &Handle, range: (u64, u64), now_ns: u64) -> bool {
        let writers = self.files.get_mut(key).and_then(|file| file.direct_writers.as_mut());
        let Some(writers) = writers else { return false };
        let Some(authorised) = writers.clients.get_mut(&client.key()) else { return false };
        let mut forget = false;
        let all = std::iter::once(&writers.components).chain(&writers.earlier);
        for name in all.flat_map(|components| components.names(range)) {
            // Before the check, so that a data server that asks from now on gets this time.
            client.late.note(name, now_ns);
            forget |= authorised.remove(name);
        }
        if forget {
            let store = writers.store.clone();
            self.fencing.note_late(&store, *key);
        }
        // An earlier call may have ended with a retry.
        self.fencing.is_late(key)
    }
}

impl Layouts {
    /// Orders a client's write to these bytes of a file after its earlier ones. The caller calls it
    /// before the write, with a time that is not before the arrival of the request. When it
    /// returns, all writes to data servers that the client has given up by then have been executed,
    /// or never will be. A client without [late writes](Client::may_have_late_writes) has none of
    /// them.
    ///
    /// # Errors
    /// `WouldWait`, `Delay` when that is not certain yet. `BadHandle`.
    pub fn overtake_late_writes(
        &self,
        client: &Client,
        (now_ns, wait): (u64, Wait),
        handle: &Handle,
        range: (u64, u64),
    ) -> Result<()> {
        let key = self.exports.namespace().export(handle)?.key(handle);
        let must_wait = self.state.lock().overtake(client, &key, range, now_ns);
        match wait {
            _ if !must_wait => Ok(()),
            Wait::Never => Err(ServiceError::WouldWait),
            Wait::Allowed => self.fence_if_free(&key),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_store::{DeviceKey, FileCopy, NfsAddresses, Stripes};
    use std::num::NonZeroU32;

    const DEVICE: DeviceKey = DeviceKey([1; 16]);

    fn components(
        names: &[&str],
        packing: Packing,
        pattern: Vec<u32>,
        first_place: u32,
    ) -> Components {
        let handles = names.iter().map(|name| name.as_bytes().into()).collect();
        let unit_bytes = NonZeroU32::new(64).unwrap();
        let stripes = Stripes { device: DEVICE, first_place, unit_bytes, packing, handles };
        let servers = vec![NfsAddresses::default(); 3];
        let placement = Placement { epoch: 1, spread: Spread::Stripes(stripes) };
        Components::of(&placement, Some(Device { pattern, servers }))
    }

    fn named(components: &Components, range: (u64, u64)) -> String {
        components.names(range).map(|name| str::from_utf8(name).unwrap()).collect()
    }

    #[test]
    fn a_range_names_the_components_that_have_it() {
        for packing in [Packing::Sparse, Packing::Dense] {
            let components = components(&["a", "b", "c"], packing, vec![0, 1, 2], 1);
            let cases = [
                ((0, 1), "b"),
                ((63, 1), "b"),
                ((63, 2), "bc"),
                ((64, 65), "ca"),
                ((130, 0), "a"),
                ((1, u64::MAX), "bca"),
                ((192, 64), "b"),
            ];
            for (range, names) in cases {
                assert_eq!(named(&components, range), names, "{range:?}");
            }
        }
        // One server has two turns of three.
        let sparse = components(&["a", "b"], Packing::Sparse, vec![1, 0, 1], 0);
        assert_eq!((&*named(&sparse, (0, 64)), &*named(&sparse, (64, 65))), ("b", "ab"));
        let dense = components(&["a", "b", "c"], Packing::Dense, vec![1, 0, 1], 0);
        assert_eq!(named(&dense, (64, 65)), "bc");
    }

    #[test]
    fn components_that_look_alike_are_named_together() {
        let one = components(&["a"], Packing::Sparse, vec![0, 1, 2], 0);
        assert_eq!(named(&one, (1 << 40, 1)), "a");
        let short = components(&["a", "b"], Packing::Sparse, vec![0, 1, 2], 0);
        assert_eq!(named(&short, (0, 1)), "ab");
        let copy = |name: &str| FileCopy { device: DEVICE, handle: name.as_bytes().into() };
        let spread = Spread::Copies(vec![copy("a"), copy("b")]);
        let copies = Components::of(&Placement { epoch: 1, spread }, None);
        assert_eq!(named(&copies, (5, 0)), "ab");
    }

    #[test]
    fn components_beyond_the_bound_count_as_written_later() {
        let late = Late::default();
        assert_eq!(late.at_ns(b"x"), None);
        for number in 0..LATE_COMPONENTS_MAX as u64 {
            late.note(&number.to_be_bytes(), 100 + number);
        }
        assert_eq!((late.at_ns(&3_u64.to_be_bytes()), late.at_ns(b"x")), (Some(103), None));
        late.note(&3_u64.to_be_bytes(), 50);
        assert_eq!(late.at_ns(&3_u64.to_be_bytes()), Some(103));
        late.note(b"x", 5);
        let last = Some(99 + LATE_COMPONENTS_MAX as u64);
        assert_eq!((late.at_ns(b"x"), late.at_ns(&3_u64.to_be_bytes())), (last, last));
        late.note(b"x", 1 << 40);
        assert_eq!(late.at_ns(b"x"), Some(1 << 40));
    }
}
