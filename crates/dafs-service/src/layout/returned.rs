//! Files whose layouts were given back a short while ago. Who has done so and goes on all the same is
//! served by data servers for as long as they go by what they were told; nothing is changed for
//! others before that is over.
//!
//! Invariants
//! * It costs a return nothing: data servers are told only when somebody else comes in time.
//! * What comes from the one who has given it back does not wait.

use super::LayoutState;
use crate::client::{Client, ClientKey};
use crate::handle::Handle;
use crate::limits::LAYOUTS_MAX;
use dafs_store::Store;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Time that may have passed since the clock was told last.
const CLOCK_SLACK_NS: u64 = 1_000_000_000;

/// The files concerned.
#[derive(Default)]
pub(crate) struct Returned {
    now_ns: u64,
    files: FxHashMap<Handle, Entry>,
}

struct Entry {
    store: Arc<dyn Store>,
    /// Who; nobody in particular when there were several.
    client: Option<ClientKey>,
    until_ns: u64,
}

impl Returned {
    /// A layout was given back. False when there is no room to remember it.
    pub(super) fn add(&mut self, layout: &LayoutState) -> bool {
        if layout.belief.is_zero() {
            return true;
        }
        if self.files.len() >= LAYOUTS_MAX && !self.files.contains_key(&layout.key) {
            return false;
        }
        let belief_ns = u64::try_from(layout.belief.as_nanos()).unwrap_or(u64::MAX);
        let until_ns = self.now_ns.saturating_add(belief_ns).saturating_add(CLOCK_SLACK_NS);
        let client = layout.client.key();
        let (store, fresh) = (layout.store.clone(), Some(client));
        let entry = self.files.entry(layout.key);
        let entry = entry.or_insert(Entry { store, client: fresh, until_ns });
        entry.client = entry.client.filter(|known| *known == client);
        entry.until_ns = until_ns;
        true
    }

    /// Takes out a file whose layouts others than this client have given back in the last time.
    pub(super) fn take(&mut self, key: &Handle, client: &Client) -> Option<Arc<dyn Store>> {
        let entry = self.files.get(key)?;
        if entry.client == Some(client.key()) {
            return None;
        }
        self.take_file(key)
    }

    /// Whether somebody may still be served for a layout of this file that was given back.
    pub(super) fn has(&self, key: &Handle) -> bool {
        self.files.contains_key(key)
    }

    /// Takes out a file, whoever gave its layouts back.
    pub(super) fn take_file(&mut self, key: &Handle) -> Option<Arc<dyn Store>> {
        self.files.remove(key).map(|entry| entry.store)
    }

    /// Takes out all that are wanted.
    pub(super) fn take_all(
        &mut self,
        wanted: impl Fn(&Handle) -> bool,
    ) -> Vec<(Handle, Arc<dyn Store>)> {
        let taken = self.files.extract_if(|key, _| wanted(key));
        taken.map(|(key, entry)| (key, entry.store)).collect()
    }

    /// Time has passed.
    pub(super) fn tick(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        self.files.retain(|_, entry| now_ns < entry.until_ns);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }
}
