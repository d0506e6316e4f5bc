//! LAYOUTCOMMIT: a client's writes at the data servers become part of the file.

use super::mtime::learn_of_writes;
use super::{LayoutState, Layouts};
use crate::error::ServiceError;
use crate::handle::Handle;
use crate::state::StateRef;
use crate::{Caller, Result};
use dafs_store::{StoreError, Wait};
use std::sync::Arc;

impl Layouts {
    /// Commits a client's writes: the file extends to `end` at least, and is changed. With
    /// `reclaim`, after a restart of this server, `state` is a layout of its last run, and a
    /// reclaimed open for writing gives the right. May wait for data servers and the disk. Returns
    /// the size of the file as far as it is known. Others may have extended it meanwhile.
    ///
    /// # Errors
    /// * `BadLayout` without a layout for writing, `Grace`, `NoGrace`, `Delay`.
    /// * Those of the state-id. For a state-id of the last run they are returned after its writes
    ///   have become part of the file.
    /// * The store's, among them `Invalid` for an end beyond the written data.
    pub fn commit(
        &self,
        caller: Caller<'_>,
        handle: &Handle,
        state: StateRef,
        reclaim: bool,
        end: Option<u64>,
    ) -> Result<u64> {
        let namespace = self.exports.namespace();
        let export = namespace.export(handle)?;
        let layouts = export.store().layouts().ok_or(ServiceError::LayoutUnavailable)?;
        export.writable()?;
        if reclaim {
            if !self.clients.in_grace() {
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
        let commit = || layouts.commit(&handle.file, end);
        let given = layout.written(true).mtime;
        Ok(learn_of_writes(&**export.store(), &handle.file, given, commit)?)
    }

    /// Extends a file to all that this client has written, before others may lock it. The next
    /// holder of a lock appends at the end of the file, and stock clients send LAYOUTCOMMIT when
    /// they close a file, not when they unlock it. May wait for data servers. If they do not
    /// answer, the client goes on, and the next locker waits for them.
    ///
    /// # Errors
    /// `WouldWait`.
    pub(crate) fn refresh_size_before_unlock(
        &self,
        caller: Caller<'_>,
        key: &Handle,
    ) -> Result<()> {
        let table = self.state.lock();
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
        let refresh = || layouts.refresh_size(&key.file);
        let given = layout.written(true).mtime;
        match learn_of_writes(&*layout.store, &key.file, given, refresh) {
            Ok(()) | Err(StoreError::Stale) => {}
            // As far as this server knows, the client has not written.
            Err(_) if !layout.is_written() => {}
            Err(error) => {
                tracing::warn!(%error, "a lock is released; the next one waits for data servers");
                let written = layout.written(true);
                self.state.lock().fencing.note_written(&layout.store, *key, written);
            }
        }
        Ok(())
    }
}
