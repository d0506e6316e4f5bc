//! Files whose layouts were returned a short while ago. If a client writes after its return, data
//! servers serve it as long as their cached authorisations live. Changes for other clients wait
//! until that is over.
//!
//! Invariants
//! * A return itself costs no message: data servers are notified only when another client comes in
//!   that time.
//! * Operations of the client that has returned the layout do not wait.

use super::LayoutState;
use crate::client::{Client, ClientKey};
use crate::handle::Handle;
use crate::limits::LAYOUTS_MAX;
use dafs_mem::Shrinking as _;
use dafs_store::Store;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Time that may have passed since the last tick.
const CLOCK_SLACK_NS: u64 = 1_000_000_000;

/// The files with returned layouts.
#[derive(Default)]
pub(crate) struct Returned {
    now_ns: u64,
    files: FxHashMap<Handle, Entry>,
}

struct Entry {
    store: Arc<dyn Store>,
    /// The client, or `None` if several have returned layouts.
    client: Option<ClientKey>,
    until_ns: u64,
}

impl Returned {
    /// Notes a returned layout. False when there is no room to remember it.
    pub(super) fn add(&mut self, layout: &LayoutState) -> bool {
        if layout.grant_ttl.is_zero() {
            return true;
        }
        if self.files.len() >= LAYOUTS_MAX && !self.files.contains_key(&layout.key) {
            return false;
        }
        let grant_ttl_ns = u64::try_from(layout.grant_ttl.as_nanos()).unwrap_or(u64::MAX);
        let until_ns = self.now_ns.saturating_add(grant_ttl_ns).saturating_add(CLOCK_SLACK_NS);
        let client = layout.client.key();
        let (store, fresh) = (layout.store.clone(), Some(client));
        let entry = self.files.entry(layout.key);
        let entry = entry.or_insert(Entry { store, client: fresh, until_ns });
        entry.client = entry.client.filter(|known| *known == client);
        entry.until_ns = until_ns;
        true
    }

    /// Removes and returns a file whose layouts were returned lately by clients other than this
    /// one.
    pub(super) fn take(&mut self, key: &Handle, client: &Client) -> Option<Arc<dyn Store>> {
        let entry = self.files.get(key)?;
        if entry.client == Some(client.key()) {
            return None;
        }
        self.take_file(key)
    }

    /// True if data servers may still serve a client for a returned layout of this file.
    pub(super) fn has(&self, key: &Handle) -> bool {
        self.files.contains_key(key)
    }

    /// Removes a file, whichever client returned its layouts.
    pub(super) fn take_file(&mut self, key: &Handle) -> Option<Arc<dyn Store>> {
        self.files.remove_and_shrink(key).map(|entry| entry.store)
    }

    /// Removes all wanted files.
    pub(super) fn take_all(
        &mut self,
        wanted: impl Fn(&Handle) -> bool,
    ) -> Vec<(Handle, Arc<dyn Store>)> {
        let taken = self.files.extract_if(|key, _| wanted(key));
        taken.map(|(key, entry)| (key, entry.store)).collect()
    }

    /// Sets the time, and removes old entries.
    pub(super) fn tick(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        self.files.retain(|_, entry| now_ns < entry.until_ns);
        self.files.shrink_if_sparse();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }
}
