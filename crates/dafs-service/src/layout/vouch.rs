//! What this server answers a data server that asks whether somebody may read or write there.

use super::LayoutState;
use crate::error::ServiceError;
use crate::index::Held;
use crate::state::{StateId, StateRef};
use crate::{Result, Service};
use std::sync::Arc;

impl Service {
    /// Whether the client that calls itself `owner` at a data server may read, or write, what is
    /// called `component` there, by a state-id of this server: it holds a layout of that file for
    /// such use, and the state-id is good and allows it. Special state-ids stand for the layout alone.
    ///
    /// # Errors
    /// `BadLayout` without such a layout, `OpenMode`, `Expired`, those of the state-id, the store's.
    pub fn vouch(
        &self,
        owner: &[u8],
        component: &[u8],
        state: StateRef,
        write: bool,
        now_ns: u64,
    ) -> Result<()> {
        let layout = match state.is_special() {
            true => self.layout_of_component(owner, component),
            false => self.layout_beside(owner, state, write)?,
        };
        let layout = layout.ok_or(ServiceError::BadLayout)?;
        if layout.client.is_gone() || self.is_over(&layout.client, now_ns) {
            return Err(ServiceError::Expired);
        }
        if !layout.covers(write) {
            return Err(ServiceError::BadLayout);
        }
        let layouts = layout.store.layouts().ok_or(ServiceError::BadLayout)?;
        let placement = layouts.placement(&layout.key.file, false)?;
        let handles = placement.map(|placement| placement.handles).unwrap_or_default();
        if handles.iter().any(|handle| **handle == *component) {
            Ok(())
        } else {
            Err(ServiceError::BadLayout)
        }
    }

    /// The layout of the client and the file that a state-id is of.
    fn layout_beside(
        &self,
        owner: &[u8],
        state: StateRef,
        write: bool,
    ) -> Result<Option<Arc<LayoutState>>> {
        let held = self.index.find(state.id)?;
        if held.client().name() != owner {
            return Err(ServiceError::BadStateId);
        }
        held.life().check()?;
        let (key, allowed) = match &held {
            Held::Open(open) => (open.key, open.share().allows(write)),
            Held::Lock(lock) => (lock.open.key, lock.open.share().allows(write)),
            Held::Delegation(held) => (held.key, held.kind.writes() || !write),
            Held::Layout(layout) => (layout.key, true),
        };
        if !allowed {
            return Err(ServiceError::OpenMode);
        }
        let table = self.lock_table();
        let layouts = table.files.get(&key).into_iter().flat_map(|file| &file.layouts);
        let mut own = layouts.filter(|layout| Arc::ptr_eq(&layout.client, held.client()));
        Ok(own.find(|layout| layout.covers(write)).cloned())
    }

    /// The layout of a client that a component belongs to.
    fn layout_of_component(&self, owner: &[u8], component: &[u8]) -> Option<Arc<LayoutState>> {
        let clients = self.lock_clients();
        let named = clients.by_key.values().filter(|client| client.name() == owner);
        let keys: Vec<_> = named.map(|client| client.key()).collect();
        drop(clients);
        let table = self.lock_table();
        let held = keys.iter().filter_map(|key| table.by_client.get(key));
        let ids: Vec<StateId> = held.flat_map(|held| &held.layouts).copied().collect();
        drop(table);
        ids.into_iter().find_map(|id| {
            let Ok(Held::Layout(layout)) = self.index.find(id) else { return None };
            let placement = layout.store.layouts()?.placement(&layout.key.file, false).ok()??;
            placement.handles.iter().any(|handle| **handle == *component).then_some(layout)
        })
    }
}
