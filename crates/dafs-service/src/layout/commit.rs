//! LAYOUTCOMMIT: what a client has written at the data servers becomes part of the file.

use super::LayoutState;
use crate::error::ServiceError;
use crate::handle::Handle;
use crate::state::StateRef;
use crate::{Caller, Result, Service};
use dafs_store::{Cred, SetAttr, SetTime, StoreError, Wait};
use std::sync::Arc;

impl Service {
    /// The file reaches to `end` at least from now on, and was changed. With `reclaim`, after a
    /// restart of this server, `state` is the layout of its last run, and an open for writing that
    /// was reclaimed gives the right. May wait for data servers and the disk. Tells how far the file
    /// reaches, as far as that is known: it was made longer by others meanwhile, perhaps.
    ///
    /// # Errors
    /// `BadLayout` without a layout for writing, `Grace`, `NoGrace`, `Delay`, those of the state-id: of one of the
    /// last run when what was written by that is part of the file; the store's, also then: `Invalid` for an end beyond what was written.
    pub fn commit_layout(
        &self,
        caller: Caller<'_>,
        handle: &Handle,
        state: StateRef,
        reclaim: bool,
        end: Option<u64>,
    ) -> Result<u64> {
        let namespace = self.namespace();
        let export = namespace.export(handle)?;
        let layouts = export.store().layouts().ok_or(ServiceError::LayoutUnavailable)?;
        export.writable()?;
        if reclaim {
            if !self.in_grace() {
                return Err(ServiceError::NoGrace);
            }
            let allowed = self.has_right(caller.client, &export.key(handle), true);
            allowed.then_some(()).ok_or(ServiceError::OpenMode)?;
            return Ok(layouts.commit(&handle.file, end)?);
        }
        let layout = self.layout(caller, handle, state);
        if layout.is_err() {
            self.find_end_of_earlier(caller, export, handle, state)?;
        }
        let layout = layout?;
        if !layout.covers(true) {
            return Err(ServiceError::BadLayout);
        }
        // Somebody else may have changed the file since its writer gave it a time.
        let before = || export.store().getattr(&handle.file).map(|attr| attr.mtime);
        let given = layout.written(true).mtime.filter(|time| before() == Ok(*time));
        let size = layouts.commit(&handle.file, end)?;
        let Some(time) = given else { return Ok(size) };
        let change = SetAttr { mtime: Some(SetTime::To(time)), ..SetAttr::default() };
        let kept = export.store().setattr(&Cred::new(0, 0), &handle.file, &change, None);
        // What was told is stable, whatever comes of the time.
        if let Err(error) = kept {
            tracing::debug!(%error, "a file has another time than its writer gave it");
        }
        Ok(size)
    }

    /// Has a file reach as far as this client has written before others may lock it: who has waited for a
    /// lock appends where the file ends, and stock clients send LAYOUTCOMMIT when they close a file, not
    /// when they unlock it. May wait for data servers. Where they do not answer the client goes on, and it
    /// is whoever wants a lock next that waits for them.
    ///
    /// # Errors
    /// `WouldWait`.
    pub(crate) fn settle_before_unlock(&self, caller: Caller<'_>, key: &Handle) -> Result<()> {
        let table = self.lock_table();
        let mut layouts = table.files.get(key).into_iter().flat_map(|file| &file.layouts);
        let own = |layout: &&Arc<LayoutState>| {
            Arc::ptr_eq(&layout.client, caller.client) && layout.covers(true)
        };
        let Some(layout) = layouts.find(own).cloned() else { return Ok(()) };
        drop(table);
        if caller.wait == Wait::Never {
            return Err(ServiceError::WouldWait);
        }
        let Some(layouts) = layout.store.layouts() else { return Ok(()) };
        match layouts.reach(&key.file) {
            Ok(()) | Err(StoreError::Stale) => {}
            // As far as this server was told, nothing was written.
            Err(_) if !layout.is_written() => {}
            Err(error) => {
                tracing::warn!(%error, "a lock is let go of; the next one waits for data servers");
                let written = layout.written(true);
                self.lock_table().fencing.note_written(&layout.store, *key, written);
            }
        }
        Ok(())
    }
}
