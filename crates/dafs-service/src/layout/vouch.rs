//! What this server answers a data server that asks whether somebody may read or write there.

use super::LayoutState;
use crate::client::Identity;
use crate::error::ServiceError;
use crate::index::Held;
use crate::state::{StateRef, check_seqid};
use crate::{Result, Service};
use dafs_store::LayoutForm;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

impl Service {
    /// Whether the client that calls itself `owner` at a data server, and has shown itself to be
    /// `identity` there, may read, or write, what is called `component` there, by a state-id of this
    /// server: that is of an open, a lock, a delegation or a layout of its own that is good, the client may use the
    /// file so, and it holds a layout of that file for such use. Says how old the session may be that
    /// a write comes by, where that matters: by an older one it may have been sent before what the client has
    /// written through this server since.
    ///
    /// # Errors
    /// `BadLayout` without such a layout, `OpenMode`, `Expired`, those of the state-id, `ReadOnly`.
    pub fn vouch(
        &self,
        (owner, identity): (&[u8], &Identity),
        component: &[u8],
        state: StateRef,
        write: bool,
        now_ns: u64,
    ) -> Result<Option<Duration>> {
        if state.is_special() {
            return Err(ServiceError::BadStateId);
        }
        let held = self.index.find(state.id)?;
        let client = held.client();
        if client.name() != owner || client.identity() != identity {
            return Err(ServiceError::BadStateId);
        }
        held.life().check()?;
        // An earlier number is of a request that was under way with others; a later one was never given.
        match check_seqid(held.seqid(), state.seqid) {
            Ok(()) | Err(ServiceError::OldStateId) => {}
            Err(error) => return Err(error),
        }
        if client.is_gone() || self.is_over(client, now_ns) {
            return Err(ServiceError::Expired);
        }
        let (key, allowed) = match &held {
            Held::Open(open) => (open.key, open.share().allows(write)),
            Held::Lock(lock) => (lock.open.key, lock.open.share().allows(write)),
            Held::Delegation(held) => (held.key, held.kind.writes() || !write),
            // Where copies are told, it is what data servers are shown (RFC 8435 5.1). It says where the
            // data is; who may have it, an open or a delegation says.
            Held::Layout(layout) if layout.form == LayoutForm::Copies => {
                (layout.key, self.has_right(client, &layout.key, write))
            }
            Held::Layout(_) => return Err(ServiceError::BadStateId),
        };
        if !allowed {
            return Err(ServiceError::OpenMode);
        }
        if write {
            self.namespace().export(held.handle())?.writable()?;
        }
        let mut table = self.lock_table();
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
        file.note_told(client.key(), component);
        let since_ns = client.late.at_ns(component);
        Ok(since_ns.map(|at_ns| Duration::from_nanos(now_ns.saturating_sub(at_ns))))
    }
}
