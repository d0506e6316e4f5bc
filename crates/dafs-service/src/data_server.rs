//! A front door that is a data server's: it moves data of components, by leave of a metadata server.

use crate::{Identity, StateRef};
use dafs_store::{DataFiles, FileId, StoreError};
use std::sync::Arc;
use std::time::Duration;

/// What a client wants to do with a component, and what it shows for it.
#[derive(Debug, Clone, Copy)]
pub struct ForeignUse<'a> {
    /// What the client calls itself (co_ownerid).
    pub owner: &'a [u8],
    /// Who it has shown itself to be.
    pub identity: &'a Identity,
    /// The component's handle, as the layout has it.
    pub component: &'a [u8],
    /// The state-id, which the metadata server has given to the client.
    pub state: StateRef,
    /// Whether it wants to write.
    pub write: bool,
    /// The time of the service.
    pub now_ns: u64,
}

/// The metadata server, as far as a data server needs it. Calls may wait, and end in bounded time.
pub trait ForeignStates: Send + Sync {
    /// Whether that may be done. A write only by a session that is no older now than what is returned, if
    /// anything is: by an older one it may have been sent before what its client has written elsewhere
    /// since.
    ///
    /// # Errors
    /// Why not, as for the client; `Delay` while the metadata server cannot be asked.
    fn check(&self, wanted: &ForeignUse<'_>) -> crate::Result<Option<Duration>>;

    /// How far the file reaches that a component is of. Asked only for components that do not know; those
    /// of a file system that all of its clients see alike do.
    ///
    /// # Errors
    /// [`StoreError::Busy`] while that cannot be told.
    fn size(&self, _component: &FileId) -> Result<u64, StoreError> {
        Err(StoreError::Busy)
    }
}

/// What makes a front door that of a data server.
#[derive(Clone)]
pub struct DataRole {
    /// What it serves; the service's only export is over a
    /// [`DataStore`](dafs_store::DataStore) of it.
    pub files: Arc<dyn DataFiles>,
    /// Who judges state-ids.
    pub states: Arc<dyn ForeignStates>,
}

impl std::fmt::Debug for DataRole {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DataRole").finish_non_exhaustive()
    }
}
