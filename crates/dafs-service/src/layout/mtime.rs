//! Modification times that clients set on files which they write at data servers.
//!
//! A store learns late of writes at data servers, and takes the moment when it learns of them as
//! modification time. That moment would replace the time that a program such as tar sets after its
//! writes.
//!
//! Invariants
//! * A time is kept only if the data servers ask about every later write first. So before the time
//!   is set, they drop their cached authorisations for the file. A write that is asked about
//!   meanwhile counts as later.

use super::{LayoutState, Layouts};
use crate::error::ServiceError;
use crate::handle::Handle;
use crate::{Caller, Result};
use dafs_store::{TimeSpec, Wait};
use std::sync::Arc;

impl LayoutState {
    /// Notes that its holder writes.
    pub(super) fn forget_mtime(&self) {
        let mut inner = self.lock();
        inner.own_mtime = None;
        inner.quiet = false;
    }

    fn await_mtime(&self) {
        let mut inner = self.lock();
        inner.own_mtime = None;
        inner.quiet = true;
    }

    fn note_mtime(&self, time: TimeSpec) {
        let mut inner = self.lock();
        inner.own_mtime = inner.quiet.then_some(time);
    }
}

impl Layouts {
    /// Prepares for a client that sets the modification time of a file, to a given time or to now.
    /// May wait for data servers if the client has written there.
    ///
    /// # Errors
    /// `WouldWait`.
    pub(crate) fn begin_giving_mtime(&self, caller: Caller<'_>, key: &Handle) -> Result<()> {
        let held = self.own(caller, key);
        let believed =
            |layout: &&Arc<LayoutState>| layout.is_written() && !layout.grant_ttl.is_zero();
        let believed = held.iter().find(believed);
        if believed.is_some() && caller.wait == Wait::Never {
            return Err(ServiceError::WouldWait);
        }
        held.iter().for_each(|layout| layout.await_mtime());
        let Some(layouts) = believed.and_then(|layout| layout.store.layouts()) else {
            return Ok(());
        };
        if let Err(error) = layouts.drop_grants(&key.file) {
            tracing::debug!(%error, "an mtime that a client sets may be replaced");
            held.iter().for_each(|layout| layout.forget_mtime());
        }
        Ok(())
    }

    /// Notes the modification time that the client has set.
    pub(crate) fn note_mtime(&self, caller: Caller<'_>, key: &Handle, time: TimeSpec) {
        self.own(caller, key).iter().for_each(|layout| layout.note_mtime(time));
    }

    /// Returns the layouts of a file that this client holds.
    fn own(&self, caller: Caller<'_>, key: &Handle) -> Vec<Arc<LayoutState>> {
        // Most clients have none.
        if !caller.client.holds_layouts() {
            return Vec::new();
        }
        let table = self.state.lock();
        let layouts = table.files.get(key).into_iter().flat_map(|file| &file.layouts);
        layouts.filter(|layout| Arc::ptr_eq(&layout.client, caller.client)).cloned().collect()
    }
}
