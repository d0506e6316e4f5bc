//! A front end that is a data server: it moves data of components, as a metadata server permits.

use crate::{Flavour, Identity, StateRef, TransportSecurity};
use dafs_store::{DataFiles, FileId, StoreError};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// A client's wish to use a component, with its credentials.
#[derive(Debug, Clone, Copy)]
pub struct ForeignUse<'a> {
    /// The client's name for itself (co_ownerid).
    pub owner: &'a [u8],
    /// The identity that the client has proved.
    pub identity: &'a Identity,
    /// The component's handle in the layout.
    pub component: &'a [u8],
    /// The state-id that the metadata server has given to the client.
    pub state: StateRef,
    /// True for a write.
    pub write: bool,
    /// The caller of an NFS call. A session of DAFS has none.
    pub caller: Option<NfsCaller>,
    /// The protection of the client's connection to the data server.
    pub security: TransportSecurity,
    /// The service's clock.
    pub now_ns: u64,
}

/// The caller of an NFS call to a data server, as the rules of an export see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NfsCaller {
    /// The RPC security flavour.
    pub flavour: Flavour,
    /// The address that the client calls from.
    pub address: IpAddr,
    /// True if the port, or the kernel of the data server's host, vouches for the caller.
    pub privileged: bool,
}

/// The metadata server, as far as a data server needs it. Calls may wait, and end in bounded time.
pub trait ForeignStates: Send + Sync {
    /// Decides about the use. If the result is an age, only a session that is no older now may
    /// write: over an older one the client may have sent the write before newer writes elsewhere.
    ///
    /// # Errors
    /// The reason for the client; `Delay` while the metadata server cannot be asked.
    fn check(&self, wanted: &ForeignUse<'_>) -> crate::Result<Option<Duration>>;

    /// Returns the size of the file that a component belongs to. Called only for components that do
    /// not know it. Components of a file system that looks the same to all of its clients do.
    ///
    /// # Errors
    /// [`StoreError::Busy`] while the size is unknown, which makes clients retry.
    /// [`StoreError::NotSupported`] where components know it.
    fn size(&self, component: &FileId) -> Result<u64, StoreError>;
}

/// The role of a front end as a data server.
#[derive(Clone)]
pub struct DataRole {
    /// The files; the service's only export is over a [`DataStore`](dafs_store::DataStore) of them.
    pub files: Arc<dyn DataFiles>,
    /// The judge of state-ids.
    pub states: Arc<dyn ForeignStates>,
}

impl std::fmt::Debug for DataRole {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DataRole").finish_non_exhaustive()
    }
}
