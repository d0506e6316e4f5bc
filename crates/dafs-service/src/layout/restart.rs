//! What clients have written by layouts of an earlier run of this server, and did not tell.
//!
//! Invariants
//! * Who takes back an open for writing, or speaks of a layout of an earlier run, goes on when the file reaches
//!   as far as the data servers have something of it. Linux drops such layouts, takes BADLAYOUT for a
//!   LAYOUTCOMMIT that is done, and says no word of files that it has closed.
//! * Where data servers do not answer soon, an open is given back all the same: its holder has other files,
//!   and the time to take them back is short. Others wait then, with locks and delegations, until they do.
//! * Nobody waits long for data servers here, and few threads do, whatever clients ask for.
//! * Nobody has ends looked for of files that are not theirs to write: anybody can invent a layout of an earlier
//!   run.

use super::fencing::{EndAsked, Written};
use crate::error::ServiceError;
use crate::export::Export;
use crate::handle::Handle;
use crate::limits::{END_ANSWER_TIME, END_TURN_TIME, LAYOUTS_MAX, RECLAIM_PATIENCE_NS};
use crate::open::OpenClaim;
use crate::state::StateRef;
use crate::{Caller, OpenRequest, Result, Service};
use dafs_store::{AccessMask, StoreError, Wait};
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

/// How often it is looked whether it is somebody's turn.
const TURN_PAUSE: Duration = Duration::from_millis(1);

/// Why the end of a file is not known.
enum Unknown {
    /// Others are asking.
    Crowded,
    /// Data servers do not answer.
    Away,
    /// They, or the metadata, cannot be used.
    Failed(StoreError),
}

impl Service {
    /// Has a file that a client takes back reach as far as it may have written. May wait for data servers.
    ///
    /// # Errors
    /// `WouldWait`; `Delay` for some time after the start, when data servers may be just starting as well.
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
        let half_ns = nanoseconds(self.config().grace_time) / 2;
        if let Err(unknown) = self.find_end(export, handle) {
            let patience_ns = match unknown {
                Unknown::Crowded => half_ns,
                Unknown::Away => half_ns.min(RECLAIM_PATIENCE_NS),
                Unknown::Failed(_) => 0,
            };
            if self.grace_age_ns() < patience_ns {
                return Err(ServiceError::Delay);
            }
            if !self.find_end_later(export, handle) {
                tracing::warn!(
                    "a file is given back whose end is not known, because many are looked for"
                );
            }
        }
        // Grace may have ended while this waited.
        self.check_reclaim(caller.client)
    }

    /// The same for a client that speaks of a layout of an earlier run. When this succeeds, it may be told that
    /// there is no such layout.
    ///
    /// # Errors
    /// `Delay` for as long as a lease after the start while data servers are away, and while many ask; the
    /// store's.
    pub(super) fn find_end_of_earlier(
        &self,
        caller: Caller<'_>,
        export: &Export,
        handle: &Handle,
        state: StateRef,
    ) -> Result<()> {
        let knows_ends = export.store().layouts().is_none_or(|layouts| layouts.knows_ends());
        if knows_ends || state.is_special() || !self.index.is_of_another_run(state.id) {
            return Ok(());
        }
        if !self.may_have_written(caller, export, handle)? {
            return Ok(());
        }
        match self.find_end(export, handle) {
            Ok(()) => Ok(()),
            Err(Unknown::Crowded) => Err(ServiceError::Delay),
            Err(Unknown::Away) if self.grace_age_ns() < nanoseconds(self.config().lease_time) => {
                Err(ServiceError::Delay)
            }
            Err(Unknown::Away) => match self.find_end_later(export, handle) {
                true => Ok(()),
                false => Err(ServiceError::Delay),
            },
            Err(Unknown::Failed(error)) => Err(error.into()),
        }
    }

    /// Whether a client can have had a file open for writing, as far as can be told after a restart: Linux has
    /// closed it, perhaps, and who owns a file may have taken the right from himself since.
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

    /// Has the end of a file looked for in turn; nobody gets locks or delegations of it before. False when that
    /// is to be done for too many.
    fn find_end_later(&self, export: &Export, handle: &Handle) -> bool {
        let (store, key) = (export.store(), export.key(handle));
        let mut table = self.lock_table();
        if table.fencing.is_written(&key) {
            return true;
        }
        if table.fencing.len_of(store) >= LAYOUTS_MAX {
            return false;
        }
        table.fencing.note_written(store, key, Written { goes_on: true, mtime: None });
        true
    }

    /// Looks for the end of a file, in a thread of its own: a data server may hang.
    fn find_end(&self, export: &Export, handle: &Handle) -> std::result::Result<(), Unknown> {
        let (store, key, file) = (export.store().clone(), export.key(handle), handle.file);
        let asking = self.lock_table().fencing.asking_of(&store);
        let begun = Instant::now();
        let asked = loop {
            if let Some(asked) = EndAsked::begin(asking.clone(), key) {
                break asked;
            }
            if begun.elapsed() >= END_TURN_TIME {
                let is_slow = asking.is_slow(&key);
                return Err(if is_slow { Unknown::Away } else { Unknown::Crowded });
            }
            std::thread::sleep(TURN_PAUSE);
        };
        let (answer, answered) = sync_channel(1);
        let ask = move || {
            // It had some when it was asked for this.
            let layouts = store.layouts().ok_or(StoreError::Busy);
            let found = layouts.and_then(|layouts| layouts.reach(&file));
            drop(asked);
            // Nobody waits for it any more, perhaps.
            let _ = answer.send(found);
        };
        let asker = std::thread::Builder::new().name("dafs-end".to_owned()).spawn(ask);
        asker.map_err(|_| Unknown::Crowded)?;
        match answered.recv_timeout(END_ANSWER_TIME) {
            // Whoever uses what is no file, or gone, is told so.
            Ok(Ok(()) | Err(StoreError::Stale | StoreError::BadHandle | StoreError::BadType)) => {
                Ok(())
            }
            Ok(Err(StoreError::Busy)) | Err(_) => Err(Unknown::Away),
            Ok(Err(error)) => Err(Unknown::Failed(error)),
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
