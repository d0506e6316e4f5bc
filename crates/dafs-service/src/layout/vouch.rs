//! The answer to a data server that asks if a client may read or write there.

use super::{LayoutState, Layouts};
use crate::Result;
use crate::data_server::{ForeignUse, NfsCaller};
use crate::error::ServiceError;
use crate::index::Held;
use crate::state::check_seqid;
use dafs_store::{LayoutForm, StoreError};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

impl Layouts {
    /// Decides if a client may use a component at a data server. The state-id of this server must
    /// be valid, and belong to an open, a lock, a delegation or a layout of that client. Its state
    /// must allow the use, and it must hold a layout of the file for such use. The export must
    /// admit the caller and the protection of its connection, as at this server now: a change of
    /// its rules holds for the next question. A session of DAFS proves no user there, so an export
    /// that demands proof refuses it. For a write, the result may bound the age of the session: a
    /// write by an older session may have been sent before the client's last write through this
    /// server.
    ///
    /// # Errors
    /// `BadLayout` without such a layout, `OpenMode`, `Expired`, those of the state-id, `ReadOnly`.
    /// [`StoreError::Access`] for a caller of another network, port or flavour, or less protection.
    pub fn vouch(&self, wanted: &ForeignUse<'_>) -> Result<Option<Duration>> {
        let ForeignUse { owner, identity, component, state, write, caller, security, now_ns } =
            *wanted;
        if state.is_special() {
            return Err(ServiceError::BadStateId);
        }
        let held = self.state.index.find(state.id)?;
        let client = held.client();
        if client.name() != owner || client.identity() != identity {
            return Err(ServiceError::BadStateId);
        }
        held.life().check()?;
        // A request with an earlier number was under way together with others. A later number was
        // never issued.
        match check_seqid(held.seqid(), state.seqid) {
            Ok(()) | Err(ServiceError::OldStateId) => {}
            Err(error) => return Err(error),
        }
        if client.is_gone() || self.clients.is_over(client, now_ns) {
            return Err(ServiceError::Expired);
        }
        let (key, allowed) = match &held {
            Held::Open(open) => (open.key, open.share().allows(write)),
            Held::Lock(lock) => (lock.open.key, lock.open.share().allows(write)),
            Held::Delegation(held) => (held.key, held.kind.writes() || !write),
            // With copies, clients show the layout's state-id to data servers (RFC 8435 5.1). It
            // names the data, and an open or a delegation gives the right.
            Held::Layout(layout) if layout.form == LayoutForm::Copies => {
                (layout.key, self.has_right(client, &layout.key, write))
            }
            Held::Layout(_) => return Err(ServiceError::BadStateId),
        };
        if !allowed {
            return Err(ServiceError::OpenMode);
        }
        let namespace = self.exports.namespace();
        let export = namespace.export(held.handle())?;
        let admits = &export.options().admits;
        let admitted = match caller {
            Some(NfsCaller { flavour, address, privileged }) => {
                admits.admits(address, flavour, privileged)
            }
            None => !admits.demands_proof(),
        };
        if !admitted || !admits.is_secure_enough(security) {
            return Err(StoreError::Access.into());
        }
        if write {
            export.writable()?;
        }
        let mut table = self.state.lock();
        let Some(file) = table.files.get_mut(&key) else { return Err(ServiceError::BadLayout) };
        let layouts = file.layouts.iter();
        let mut own = layouts.filter(|layout| Arc::ptr_eq(&layout.client, client));
        let leads = |layout: &&Arc<LayoutState>| layout.covers(write) && layout.leads_to(component);
        let layout = own.find(leads).ok_or(ServiceError::BadLayout)?;
        if !write {
            return Ok(None);
        }
        layout.written.store(true, Ordering::SeqCst);
        layout.forget_mtime();
        file.note_authorised(client.key(), component);
        let since_ns = client.late.at_ns(component);
        Ok(since_ns.map(|at_ns| Duration::from_nanos(now_ns.saturating_sub(at_ns))))
    }
}
