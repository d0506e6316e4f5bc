//! What DAFS calls things of a layout. Locks are taken by those alone who have made sure that this is no fork.

use super::Layouts;
use super::nodes::Node;
use super::plan::Place;
use super::sent::Sent;
use crate::attributes::FileHandle;
use crate::fork::ForkMutex;
use dafs_parallel::{Lock, Protocol, catch_up};
use dafs_wire::dafs::StateId;
use std::net::SocketAddr;
use std::sync::MutexGuard;

pub(super) type Grant = dafs_parallel::Grant<Layouts>;
pub(super) type Granted = dafs_parallel::Granted<Layouts>;
pub(crate) type FileLayout = dafs_parallel::FileLayout<Layouts>;

/// What the server knows a layout by.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Name {
    pub(super) state_id: StateId,
    pub(super) seqid: u32,
}

impl Name {
    /// Whether a recall is of the layout of this name, which takes its number then.
    pub(super) fn is_recalled(&mut self, recalled: Self) -> bool {
        let is_it = self.state_id == recalled.state_id;
        if is_it {
            catch_up(&mut self.seqid, recalled.seqid);
        }
        is_it
    }
}

impl Protocol for Layouts {
    type Handle = FileHandle;
    type Name = Name;
    type Place = Place;
    type Address = SocketAddr;
    type Node = Node;
    /// Restarts of the server that had been seen: a later run knows nothing of it.
    type Terms = u64;
    type Flight = Sent;
    type Lock<T: Default> = ForkMutex<T>;
}

impl<T: Default> Lock<T> for ForkMutex<T> {
    fn hold(&self) -> MutexGuard<'_, T> {
        self.lock_here()
    }

    fn hold_unless_forked(&self) -> Option<MutexGuard<'_, T>> {
        self.lock().ok()
    }
}
