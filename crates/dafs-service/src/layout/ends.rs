//! The ends of files that clients write at data servers, asked for in bounded time.
//!
//! Invariants
//! * Each caller waits a bounded time for data servers here, and few threads do, whatever clients
//!   ask for.
//! * A client that may have written to a file at data servers gets no attributes of it that are
//!   older than these writes. Linux sends LAYOUTCOMMIT when it closes the file, but takes the size
//!   of any reply before, if it has no data left to write. An append would then overwrite data.

use super::asking::EndAsked;
use super::mtime::{given_by, learn_of_writes};
use super::{LayoutState, Layouts};
use crate::client::Client;
use crate::error::ServiceError;
use crate::export::Export;
use crate::handle::Handle;
use crate::limits::{END_ANSWER_TIME, END_THREAD_IDLE_TIME};
use crate::{Caller, Result};
use dafs_store::{Store, StoreError, Wait};
use std::sync::Arc;

/// Why the end of a file is not known.
pub(super) enum Unknown {
    /// Too many searches are under way.
    Crowded,
    /// Data servers do not answer.
    Away,
    /// The data servers, or the metadata, cannot be used.
    Failed(StoreError),
}

impl Layouts {
    /// Extends a file to all that this client may have written at data servers, for operations that
    /// depend on the size but return no attributes: Linux sends no LAYOUTCOMMIT before them.
    ///
    /// # Errors
    /// `BadHandle`, `WouldWait`. `Delay` while data servers do not answer.
    pub fn extend_to_own(&self, caller: Caller<'_>, handle: &Handle) -> Result<()> {
        let namespace = self.exports.namespace();
        self.extend_to_own_writes(caller, namespace.export(handle)?, handle).map(drop)
    }

    /// Does the same for a file of an export. Returns true if there was anything to ask about:
    /// attributes read before are out of date.
    ///
    /// # Errors
    /// `WouldWait`. `Delay` while data servers do not answer.
    pub(crate) fn extend_to_own_writes(
        &self,
        caller: Caller<'_>,
        export: &Export,
        handle: &Handle,
    ) -> Result<bool> {
        // First, because it takes no lock.
        if export.store().layouts().is_none_or(|layouts| layouts.knows_ends()) {
            return Ok(false);
        }
        let key = export.key(handle);
        let Some(store) = self.written_by(caller.client, &key) else { return Ok(false) };
        if caller.wait == Wait::Never {
            return Err(ServiceError::WouldWait);
        }
        match self.find_end(caller.client, &store, key) {
            Ok(()) => Ok(true),
            Err(Unknown::Crowded | Unknown::Away) => Err(ServiceError::Delay),
            Err(Unknown::Failed(error)) => Err(error.into()),
        }
    }

    /// Returns the store of a file to which this client may have written without a report: by a
    /// layout that it holds, or that it has returned while data servers did not answer.
    fn written_by(&self, client: &Arc<Client>, key: &Handle) -> Option<Arc<dyn Store>> {
        // Most clients never had a layout for writing.
        if !client.may_have_late_writes() {
            return None;
        }
        let table = self.state.lock();
        let mut layouts = table.files.get(key).into_iter().flat_map(|file| &file.layouts);
        let own =
            |layout: &&Arc<LayoutState>| Arc::ptr_eq(&layout.client, client) && layout.is_written();
        let held = layouts.find(own).map(|layout| layout.store.clone());
        held.or_else(|| table.fencing.written_by(key, client.key()))
    }

    /// Looks for the end of a file for a client, in another thread, because a data server may
    /// hang. Callers that wait for another search of the file share the next one.
    pub(super) fn find_end(
        &self,
        client: &Client,
        store: &Arc<dyn Store>,
        key: Handle,
    ) -> std::result::Result<(), Unknown> {
        let mut table = self.state.lock();
        let (store, asking) = (store.clone(), table.fencing.asking_of(store));
        let writers = table.files.get(&key).map(|file| file.layouts.to_vec()).unwrap_or_default();
        let returned = table.fencing.mtime_of(&key);
        drop(table);
        let searchers = asking.searchers.clone();
        let begin = move |asked: EndAsked| {
            let ask = move || {
                let given = given_by(&writers).or(returned);
                // It had layouts when the search was requested.
                let layouts = store.layouts().ok_or(StoreError::Busy);
                let refresh = || layouts.and_then(|layouts| layouts.refresh_size(&key.file));
                asked.end(learn_of_writes(&*store, &key.file, given, refresh));
            };
            searchers.run(Box::new(ask), END_THREAD_IDLE_TIME)
        };
        match asking.found((key, client.host().host()), END_ANSWER_TIME, begin)? {
            // The operation itself reports an object that is gone or no file.
            Ok(()) | Err(StoreError::Stale | StoreError::BadHandle | StoreError::BadType) => Ok(()),
            Err(StoreError::Busy) => Err(Unknown::Away),
            Err(error) => Err(Unknown::Failed(error)),
        }
    }
}
