//! LAYOUTGET: grants one client a layout.

use super::late::Components;
use super::{Inner, LayoutState, Layouts, Spans};
use crate::admit::Applicant;
use crate::client::{Client, ClientKind};
use crate::enter::State;
use crate::error::ServiceError;
use crate::handle::Handle;
use crate::index::{Held, Life};
use crate::state::{StateRef, check_seqid, next_seqid};
use crate::table::{Blocked, Ended, StateTable};
use crate::{Caller, Result};
use dafs_mem::Mutex;
use dafs_store::{LayoutForm, Placement, Store, StoreError};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A client's request.
#[derive(Debug, Clone, Copy)]
pub struct LayoutRequest {
    /// An open, a byte-range lock or a delegation for the first layout of a file. Then the layout.
    pub state: StateRef,
    /// The client wants to write, too.
    pub write: bool,
    /// The form of layout that the client understands. `None` for any.
    pub form: Option<LayoutForm>,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayoutGranted {
    /// The layout's state-id.
    pub state: StateRef,
    /// The placement of the whole file.
    pub placement: Placement,
}

impl Layouts {
    /// Grants a client a layout. It ends when the client returns it, or with the client's last open
    /// and delegation of the file. `fits` is true if the answer has room for the placement.
    ///
    /// # Errors
    /// * `LayoutUnavailable` for files that are reached through this server alone.
    /// * `RecallConflict` while the client's layout is recalled.
    /// * `LayoutTryLater`, `LayoutTooBig`, `OpenMode`, `Grace`, `Resource`, `WouldWait`, `Delay`.
    /// * Those of the state-id and the store's.
    pub fn get(
        &self,
        caller: Caller<'_>,
        handle: &Handle,
        request: LayoutRequest,
        fits: &dyn Fn(&Placement) -> bool,
    ) -> Result<LayoutGranted> {
        let namespace = self.exports.namespace();
        let export = namespace.export(handle)?;
        if export.store().layouts().is_none() || caller.client.kind() == ClientKind::Stateless {
            return Err(ServiceError::LayoutUnavailable);
        }
        if request.write {
            export.writable()?;
        }
        self.check_right(caller, handle, request)?;
        self.clients.check_grace(caller.client)?;
        let key = export.key(handle);
        self.check_allowed(caller, &key)?;
        let store = export.store().clone();
        let ttl = store.layouts().map(|layouts| layouts.grant_ttl()).unwrap_or_default();
        let _granting = self.begin_granting(key);
        let placement = placement(&*store, handle, request.write)?;
        if request.form.is_some_and(|form| placement.form() != form) {
            return Err(ServiceError::LayoutUnavailable);
        }
        self.check_wide_recalls(caller.client, handle, placement.form(), caller.now_ns)?;
        if !fits(&placement) {
            return Err(ServiceError::LayoutTooBig);
        }
        let components = request.write.then(|| Arc::new(component_map(&*store, &placement)));
        let by = self.state.applicant(caller);
        let entered = self.state.attempt(|table, _| {
            let state =
                table.lay_out(caller, by, (handle, key), request, (&store, ttl), &placement)?;
            if let Some(components) = &components {
                table.note_direct_writer(key, caller.client, &store, components.clone());
            }
            Ok(state)
        });
        let state = entered.map_err(|blocked| match blocked {
            // The client can reach the file without a layout.
            Blocked::Refused(ServiceError::Resource) => ServiceError::LayoutUnavailable,
            Blocked::Refused(error) => error,
            Blocked::Expire(expired) => {
                self.clients.expire_soon(expired);
                ServiceError::LayoutUnavailable
            }
            Blocked::Recall(_) | Blocked::Fence(_) | Blocked::RecoverSize(_) | Blocked::Undo(_) => {
                ServiceError::LayoutTryLater
            }
        })?;
        // In a race with a fence, either the fence sees the layout, or this check sees the fence.
        self.check_allowed(caller, &key).inspect_err(|_| self.abandon(caller, &key))?;
        // If the file had moved before the layout was entered, the move would recall no layout.
        let is_current =
            |layouts: &dyn dafs_store::Layouts| layouts.is_current(&handle.file, placement.epoch);
        if !store.layouts().is_some_and(is_current) {
            self.recall_all(&[key], caller.now_ns);
            return Err(ServiceError::LayoutTryLater);
        }
        Ok(LayoutGranted { state, placement })
    }

    /// Checks that the request's state-id lets the client read, or write, the file.
    fn check_right(
        &self,
        caller: Caller<'_>,
        handle: &Handle,
        request: LayoutRequest,
    ) -> Result<()> {
        if request.state.is_special() {
            return Err(ServiceError::BadStateId);
        }
        let allowed = match self.state.held(caller, Some(handle), request.state.id.into())? {
            Held::Layout(layout) => {
                return match check_seqid(layout.seqid(), request.state.seqid) {
                    // A layout gives no right to write by itself. The right comes from an open,
                    // which may be another one.
                    Ok(()) | Err(ServiceError::OldStateId) => {
                        match self.has_right(caller.client, &layout.key, request.write) {
                            true => Ok(()),
                            false => Err(ServiceError::OpenMode),
                        }
                    }
                    Err(error) => Err(error),
                };
            }
            Held::Open(open) => open.share().allows(request.write),
            Held::Lock(lock) => lock.open.share().allows(request.write),
            Held::Delegation(delegation) => delegation.kind.writes() || !request.write,
        };
        // An old or unknown seqid is refused for all state but layouts.
        self.state.held(caller, Some(handle), request.state)?;
        if allowed { Ok(()) } else { Err(ServiceError::OpenMode) }
    }

    /// Refuses layouts where data servers do not know the restrictions here: the file or its file
    /// system has a fence list, whether or not that admits the client, writes under a lock may have
    /// to be undone, or a lock is broken. A client that did not return a layout a short while ago
    /// gets none either.
    fn check_allowed(&self, caller: Caller<'_>, key: &Handle) -> Result<()> {
        let quiet = caller.client.layouts_from_ns.load(Ordering::Relaxed) > caller.now_ns;
        let undone = self.state.writers.undo.find(key).is_some();
        if quiet || undone || self.state.guards.maybe_broken(key) || self.fences.is_fenced(key) {
            return Err(ServiceError::LayoutUnavailable);
        }
        Ok(())
    }

    /// Makes the grant visible, until the layout is entered or refused, so that no operation takes
    /// the file for one without layouts.
    fn begin_granting(&self, key: Handle) -> Granting<'_> {
        self.state.lock().files.entry(key).or_default().granting += 1;
        Granting { state: &self.state, key }
    }

    fn abandon(&self, caller: Caller<'_>, key: &Handle) {
        let mut ended = Ended::default();
        let mut table = self.state.lock();
        let layouts = table.files.get(key).map(|file| file.layouts.clone()).unwrap_or_default();
        for layout in layouts.iter().filter(|layout| Arc::ptr_eq(&layout.client, caller.client)) {
            table.abandon_layout(layout, &mut ended);
        }
        drop(table);
        self.state.finish(ended);
    }

    /// True if an open or delegation of the client lets it read, or write, the file.
    pub(super) fn has_right(&self, client: &Arc<Client>, key: &Handle, write: bool) -> bool {
        let table = self.state.lock();
        table.files.get(key).is_some_and(|file| {
            let own = |other| Arc::ptr_eq(other, client);
            file.opens.iter().any(|open| own(&open.client) && open.share().allows(write))
                || file.delegations.iter().any(|d| own(&d.client) && (d.kind.writes() || !write))
        })
    }
}

/// Marks a grant of a layout as under way while it lives.
struct Granting<'a> {
    state: &'a State,
    key: Handle,
}

impl Drop for Granting<'_> {
    fn drop(&mut self) {
        let mut table = self.state.lock();
        if let Some(file) = table.files.get_mut(&self.key) {
            file.granting -= 1;
        }
        table.tidy(&self.key);
    }
}

fn placement(store: &dyn Store, handle: &Handle, write: bool) -> Result<Placement> {
    let unavailable = ServiceError::LayoutUnavailable;
    let layouts = store.layouts().ok_or(unavailable)?;
    match layouts.placement(&handle.file, write) {
        Ok(placement) => placement.ok_or(unavailable),
        // A client that is told to try later does so for two leases, and does no I/O meanwhile.
        Err(StoreError::Busy) => Err(unavailable),
        Err(error) => Err(error.into()),
    }
}

/// Returns the map from bytes to components.
fn component_map(store: &dyn Store, placement: &Placement) -> Components {
    let device = placement.devices().next();
    let device = device.and_then(|device| store.layouts()?.device(&device));
    Components::of(placement, device)
}

fn components(placement: &Placement) -> Vec<Box<[u8]>> {
    placement.handles().map(Into::into).collect()
}

impl StateTable {
    /// Enters a layout, or adds to the one that the client has.
    fn lay_out(
        &mut self,
        caller: Caller<'_>,
        by: Applicant<'_>,
        (handle, key): (&Handle, Handle),
        request: LayoutRequest,
        (store, grant_ttl): (&Arc<dyn Store>, Duration),
        placement: &Placement,
    ) -> std::result::Result<StateRef, Blocked> {
        Self::check_current(caller.client)?;
        let file = self.files.get(&key);
        // The state-id of the request may have been released since.
        let own = |client: &Arc<_>| Arc::ptr_eq(client, caller.client);
        let in_use = file.is_some_and(|file| {
            file.opens.iter().any(|open| own(&open.client))
                || file.delegations.iter().any(|delegation| own(&delegation.client))
        });
        if !in_use {
            return Err(ServiceError::BadStateId.into());
        }
        let changes = |file: &crate::table::FileState| {
            file.changing + file.removing_checked + file.removing_unchecked > 0
        };
        let changing = file.is_some_and(changes);
        if let Some(refusal) = self.fencing.refusal(&key, caller.now_ns) {
            return Err(refusal.into());
        }
        if changing {
            return Err(ServiceError::LayoutTryLater.into());
        }
        let mut of_client = file.into_iter().flat_map(|file| &file.layouts);
        let present = of_client.find(|layout| own(&layout.client) && layout.handle == *handle);
        if let Some(layout) = present {
            let mut inner = layout.lock();
            if inner.recalled_ns.is_some() {
                return Err(ServiceError::RecallConflict.into());
            }
            if request.write {
                inner.write = Spans::whole();
                // Data servers may still honour a returned layout of this file without a question.
                // So its holder may write unnoticed.
                layout.written.fetch_or(self.returned_layouts.has(&key), Ordering::SeqCst);
            } else {
                inner.read = Spans::whole();
            }
            inner.seqid = next_seqid(inner.seqid);
            inner.granted_seqid = inner.seqid;
            inner.components = components(placement);
            inner.name_devices(placement);
            return Ok(StateRef { id: layout.id, seqid: inner.seqid });
        }
        // A client without a back channel would make others wait for a lease.
        if !caller.client.back_channel() {
            return Err(ServiceError::LayoutUnavailable.into());
        }
        let id = self.admit_layout(by, self.fencing.len_of(store))?;
        let written = request.write && self.returned_layouts.has(&key);
        let (read, write) = match request.write {
            true => (Spans::default(), Spans::whole()),
            false => (Spans::whole(), Spans::default()),
        };
        let layout = Arc::new(LayoutState {
            id,
            client: caller.client.clone(),
            handle: *handle,
            key,
            store: store.clone(),
            form: placement.form(),
            grant_ttl,
            written: AtomicBool::new(written),
            failing: AtomicBool::new(false),
            life: Life::default(),
            inner: Mutex::new(Inner {
                seqid: 1,
                granted_seqid: 1,
                components: components(placement),
                devices: placement.devices().collect(),
                use_reports: Vec::new(),
                read,
                write,
                own_mtime: None,
                quiet: false,
                recalled_ns: None,
                recalled_seqid: 0,
                resend: false,
            }),
        });
        self.enter_layout(&layout);
        Ok(StateRef { id, seqid: 1 })
    }
}
