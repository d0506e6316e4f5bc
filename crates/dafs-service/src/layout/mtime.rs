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
//! * Whatever makes a store learn of writes goes through [`learn_of_writes`], so a time that was set
//!   since the last of them stays.

use super::{LayoutState, Layouts};
use crate::Caller;
use crate::error::ServiceError;
use crate::handle::Handle;
use dafs_store::{Cred, FileId, SetAttr, SetTime, Store, StoreError, TimeSpec, Wait};
use std::sync::Arc;

/// Makes a store learn of writes to a file at data servers. The modification time stays if it is one
/// that a writer has set since its last write.
pub(super) fn learn_of_writes<T>(
    store: &dyn Store,
    file: &FileId,
    given: Option<TimeSpec>,
    learn: impl FnOnce() -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    // Another client may have changed the file since its writer set the time.
    let given = given.filter(|time| store.getattr(file).is_ok_and(|attr| attr.mtime == *time));
    let learned = learn()?;
    let Some(time) = given else { return Ok(learned) };
    let change = SetAttr { mtime: Some(SetTime::To(time)), ..SetAttr::default() };
    // The size that was learned is right, even if the time cannot be set.
    if let Err(error) = store.setattr(&Cred::new(0, 0), file, &change, None) {
        tracing::debug!(%error, "a file has another mtime than its writer set");
    }
    Ok(learned)
}

/// Returns the modification time that the writers of a file have set since their last writes.
/// `None` if one of them has set none, or they have set several.
pub(super) fn given_by(writers: &[Arc<LayoutState>]) -> Option<TimeSpec> {
    let mut times =
        writers.iter().filter(|layout| layout.is_written()).map(|layout| layout.lock().own_mtime);
    let first = times.next()??;
    times.all(|time| time == Some(first)).then_some(first)
}

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
    pub(crate) fn begin_giving_mtime(&self, caller: Caller<'_>, key: &Handle) -> crate::Result<()> {
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
