//! Unreported writes by layouts of an earlier run of this server.
//!
//! Invariants
//! * A client that reclaims an open for writing, or names a layout of an earlier run, goes on when
//!   the file extends to its size at the data servers. Linux drops such layouts, takes BADLAYOUT as
//!   a completed LAYOUTCOMMIT, and does not mention files that it has closed.
//! * If data servers do not answer soon, the reclaim of an open succeeds nevertheless: its client
//!   has other files, and the grace period is short. Other clients wait then, with locks and
//!   delegations, until the data servers answer.
//! * Each caller waits a bounded time for data servers here, and few threads do, whatever clients
//!   ask for.
//! * A client can make the server look for ends only of files that it may write: any client can
//!   invent a layout of an earlier run.

use super::Layouts;
use super::ends::Unknown;
use super::fencing::Written;
use crate::client::Client;
use crate::error::ServiceError;
use crate::export::Export;
use crate::handle::Handle;
use crate::limits::{LAYOUTS_MAX, RECLAIM_PATIENCE_NS};
use crate::open::OpenClaim;
use crate::state::StateRef;
use crate::{Caller, OpenRequest, Result};
use dafs_store::{AccessMask, Wait};
use std::time::Duration;

impl Layouts {
    /// Extends a file that a client reclaims to all that the client may have written. May wait for
    /// data servers.
    ///
    /// # Errors
    /// `WouldWait`. `Delay` for some time after the start, when data servers may be starting as
    /// well.
    pub(crate) fn find_end_before_reclaim(
        &self,
        caller: Caller<'_>,
        export: &Export,
        request: &OpenRequest<'_>,
        handle: &Handle,
    ) -> Result<()> {
        let OpenClaim::Previous(delegation) = request.claim else { return Ok(()) };
        let writes = request.share.write || delegation.is_some_and(|kind| kind.writes());
        if !writes || export.store().layouts().is_none_or(|layouts| layouts.knows_ends()) {
            return Ok(());
        }
        if caller.wait == Wait::Never {
            return Err(ServiceError::WouldWait);
        }
        let half_ns = nanoseconds(self.state.config.grace_time) / 2;
        if let Err(unknown) = self.find_end(caller.client, export.store(), export.key(handle)) {
            let patience_ns = match unknown {
                Unknown::Crowded => half_ns,
                Unknown::Away => half_ns.min(RECLAIM_PATIENCE_NS),
                Unknown::Failed(_) => 0,
            };
            if self.clients.grace_age_ns() < patience_ns {
                return Err(ServiceError::Delay);
            }
            if !self.find_end_later(caller.client, export, handle) {
                tracing::warn!(
                    "a reclaim succeeds before the size of the file is known, because many \
                    searches are queued"
                );
            }
        }
        // Grace may have ended during this wait.
        self.clients.check_reclaim(caller.client)
    }

    /// Does the same for a client that names a layout of an earlier run. After success the client
    /// may be told that there is no such layout.
    ///
    /// # Errors
    /// `Delay` for up to a lease after the start while data servers are away, and while many ask.
    /// The store's.
    pub(super) fn find_end_of_earlier(
        &self,
        caller: Caller<'_>,
        export: &Export,
        handle: &Handle,
        state: StateRef,
    ) -> Result<()> {
        let knows_ends = export.store().layouts().is_none_or(|layouts| layouts.knows_ends());
        if knows_ends || state.is_special() || !self.state.index.is_of_another_run(state.id) {
            return Ok(());
        }
        if !self.may_have_written(caller, export, handle)? {
            return Ok(());
        }
        match self.find_end(caller.client, export.store(), export.key(handle)) {
            Ok(()) => Ok(()),
            Err(Unknown::Crowded) => Err(ServiceError::Delay),
            Err(Unknown::Away)
                if self.clients.grace_age_ns() < nanoseconds(self.state.config.lease_time) =>
            {
                Err(ServiceError::Delay)
            }
            Err(Unknown::Away) => match self.find_end_later(caller.client, export, handle) {
                true => Ok(()),
                false => Err(ServiceError::Delay),
            },
            Err(Unknown::Failed(error)) => Err(error.into()),
        }
    }

    /// True if a client can have had a file open for writing, as far as is known after a restart.
    /// Linux may have closed it, and the owner of a file may have removed its own right since.
    fn may_have_written(
        &self,
        caller: Caller<'_>,
        export: &Export,
        handle: &Handle,
    ) -> Result<bool> {
        if self.has_right(caller.client, &export.key(handle), true) {
            return Ok(true);
        }
        let (store, cred) = (export.store(), export.map_cred(caller.cred));
        let granted = store.access(&cred, &handle.file, AccessMask::MODIFY)?;
        Ok(!granted.is_empty() || store.getattr(&handle.file)?.uid == cred.uid)
    }

    /// Queues a search for the end of a file that a client may have written. No client gets locks or
    /// delegations of it before. False when too many are queued.
    fn find_end_later(&self, client: &Client, export: &Export, handle: &Handle) -> bool {
        let (store, key) = (export.store(), export.key(handle));
        let mut table = self.state.lock();
        if table.fencing.written_by(&key, client.key()).is_some() {
            return true;
        }
        if !table.fencing.is_written(&key) && table.fencing.len_of(store) >= LAYOUTS_MAX {
            return false;
        }
        let written = Written { goes_on: true, mtime: None, client: Some(client.key()) };
        table.fencing.note_written(store, key, written);
        client.note_earlier_layout();
        true
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
