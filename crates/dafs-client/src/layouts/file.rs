//! The types of a DAFS layout. A caller checks that the process is no fork before it takes a lock.

use super::Layouts;
use crate::fork::ForkMutex;
use dafs_parallel::Lock;
use dafs_wire::dafs::StateId;
use std::fmt::Debug;
use std::sync::MutexGuard;

pub(super) type Grant = dafs_parallel::Grant<Layouts>;
pub(super) type Granted = dafs_parallel::Granted<Layouts>;
pub(crate) type FileLayout = dafs_parallel::FileLayout<Layouts>;
pub(super) type At<'a> = dafs_parallel::Holder<'a, Layouts>;

/// The state-id of a layout, with its sequence number.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Name {
    pub(super) state_id: StateId,
    pub(super) seqid: u32,
}

impl<T: Debug + Default> Lock<T> for ForkMutex<T> {
    fn hold(&self) -> MutexGuard<'_, T> {
        self.lock_here()
    }

    fn hold_unless_forked(&self) -> Option<MutexGuard<'_, T>> {
        self.lock().ok()
    }
}
